/* read in its wide form: numbered lines of a range, of a file or of an earlier call's output.
 *
 * Files that an edit could change are read whole, so that the ledger knows them; larger ones are
 * walked through in pieces and never loaded. Lines, the range and the walk are bounded, and what
 * was left out is told with where to read on.
 */
#include "tool_image.h"
#include "tool_internal.h"

#define LINES_DEFAULT  2000
#define LINE_BYTES_MAX ((size_t)2000)      /* shown of one line */
#define SKIP_BYTES_MAX ((uint64_t)1 << 30) /* walked through to find a line of a huge file */
#define BINARY_BYTES   ((size_t)8000)      /* looked at for a NUL, as git does */
#define CHUNK_BYTES    BENEATH_READ_BYTES_MAX
#define RANGE_PROPERTIES                                                                           \
    TYPED_PROPERTY("offset", "integer", "line to begin with, from 1")                              \
    ", " TYPED_PROPERTY("limit", "integer", "lines to show, 2000 when left out")

const struct tool_descriptor tool_wide_read = {
    "read",
    "Read a file with line numbers. Long files are shown in part: read on with offset. The output "
    "of an earlier call that was cut short is read as \"output:N\".",
    OBJECT_SCHEMA(
        STRING_PROPERTY("path", "file path") ", " RANGE_PROPERTIES ", " TYPED_PROPERTY(
            "byte_offset",
            "integer",
            "byte to begin with, from 0, instead of a line: for very long lines; no numbers then"
        ),
        "\"path\""
    ),
    TOOL_READS,
    false,
};

/* Where bytes come from, and the piece of them that is in hand. */
struct reader {
    struct tool_context *context;
    struct tool_result *out;
    const char *path;    /* of a huge file; null: all is in `memory` */
    const char *image;   /* path of what may be a picture; null: an output */
    struct view memory;  /* borrowed */
    uint64_t bytes;      /* of the whole */
    struct buffer chunk; /* of a file */
    uint64_t at;         /* next byte */
    uint64_t chunk_at;   /* where the chunk begins */
    bool has_stopped;    /* cancelled, out of time or unreadable: the answer says so */
};

static void reader_cleanup(struct reader *reader) {
    buffer_deinit(&reader->chunk);
}

/* The bytes from `at` that are at hand; empty at the end. */
static result reader_peek(struct reader *reader, struct view *bytes, struct error *error) {
    *bytes = view_of(NULL, 0);
    if (reader->path == NULL) {
        *bytes = view_slice(reader->memory, (size_t)reader->at, SIZE_MAX);
        return OK;
    }
    if (reader->at >= reader->chunk_at + reader->chunk.length || reader->at < reader->chunk_at) {
        TRY(tool_should_stop(reader->context, reader->out, &reader->has_stopped, error));
        if (reader->has_stopped) {
            return OK;
        }
        buffer_clear(&reader->chunk);
        reader->chunk_at = reader->at;
        struct error why = {0};
        result status = beneath_read(
            reader->context->root, reader->path, reader->at, CHUNK_BYTES, &reader->chunk, NULL, &why
        );
        if (is_failed(status)) {
            reader->has_stopped = true;
            return tool_file_failure(reader->out, view_of_text(reader->path), status, &why, error);
        }
    }
    *bytes =
        view_slice(buffer_view(&reader->chunk), (size_t)(reader->at - reader->chunk_at), SIZE_MAX);
    return OK;
}

struct line {
    uint64_t at;    /* its first byte */
    uint64_t bytes; /* of all of it, without the newline */
    bool is_there;  /* false: the end was before it */
};

/* Goes behind the next newline; the first `keep_max` bytes of the line are put into `text`. */
static result reader_line(
    struct reader *reader,
    size_t keep_max,
    struct buffer *text,
    struct line *line,
    struct error *error
) {
    *line = (struct line){reader->at, 0, false};
    for (;;) {
        struct view bytes;
        TRY(reader_peek(reader, &bytes, error));
        if (bytes.length == 0 || reader->has_stopped) {
            return OK;
        }
        line->is_there = true;
        const unsigned char *newline = memchr(bytes.data, '\n', bytes.length);
        size_t length = newline == NULL ? bytes.length : (size_t)(newline - bytes.data);
        if (text != NULL) {
            size_t room = keep_max - text->length;
            TRY(buffer_append(text, view_slice(bytes, 0, length < room ? length : room), error));
        }
        line->bytes += length;
        reader->at += length + (newline != NULL);
        if (newline != NULL) {
            return OK;
        }
    }
}

/* Without what a cut left of a character at the end. */
static struct view whole_characters(struct view text) {
    size_t back = 0;
    while (back < 3 && back < text.length && (text.data[text.length - 1 - back] & 0xC0U) == 0x80U) {
        back += 1;
    }
    struct view head = view_slice(text, 0, text.length - back);
    uint32_t code_point = 0;
    if (head.length == 0 || head.data[head.length - 1] < 0xC0U) {
        return text;
    }
    struct view last = view_slice(text, head.length - 1, back + 1);
    return utf8_decode(last, &code_point) > 0 ? text : view_slice(text, 0, head.length - 1);
}

static result append_line(
    struct reader *reader,
    uint64_t number,
    struct view text,
    const struct line *line,
    struct error *error
) {
    struct buffer *out = &reader->out->text;
    bool is_cut = line->bytes > text.length;
    if (is_cut) {
        text = whole_characters(text);
    } else if (text.length > 0 && text.data[text.length - 1] == '\r') {
        text.length -= 1;
    }
    TRY(buffer_append_format(out, error, "%6llu\t", (unsigned long long)number));
    TRY(sandbox_sanitise(text, 0, out, error));
    if (is_cut) {
        TRY(buffer_append_format(
            out,
            error,
            " ... [%llu more bytes of this line, from byte_offset %llu]",
            (unsigned long long)(line->bytes - text.length),
            (unsigned long long)(line->at + text.length)
        ));
    }
    return buffer_append_byte(out, '\n', error);
}

/* The last line: what was shown, where it is not all. */
static result
append_range(struct reader *reader, uint64_t first, uint64_t behind, struct error *error) {
    struct buffer *out = &reader->out->text;
    unsigned long long from = first;
    unsigned long long to = behind - 1;
    if (reader->at >= reader->bytes) {
        return first == 1
                   ? OK
                   : buffer_append_format(out, error, "[lines %llu-%llu, the last ones]", from, to);
    }
    reader->out->text_is_truncated = true;
    return buffer_append_format(
        out,
        error,
        "[lines %llu-%llu; %llu of %llu bytes follow; read on with offset %llu]",
        from,
        to,
        (unsigned long long)(reader->bytes - reader->at),
        (unsigned long long)reader->bytes,
        to + 1
    );
}

static result skip_lines(
    struct reader *reader, struct view given, uint64_t first, bool *found, struct error *error
) {
    struct line line = {0, 0, true};
    uint64_t number = 1;
    *found = false;
    while (number < first && line.is_there && !reader->has_stopped && reader->at < SKIP_BYTES_MAX) {
        TRY(reader_line(reader, 0, NULL, &line, error));
        number += line.is_there;
    }
    if (reader->has_stopped) {
        return OK;
    }
    if (number < first && line.is_there) {
        return tool_answer(
            reader->out,
            TOOL_ERROR,
            error,
            "error: line %llu of %.*s is too far behind; use byte_offset",
            (unsigned long long)first,
            VIEW_ARGUMENTS(given)
        );
    }
    *found = reader->at < reader->bytes;
    if (*found || first == 1) {
        return *found ? OK : tool_answer(reader->out, TOOL_OK, error, "(empty file)");
    }
    return tool_answer(
        reader->out,
        TOOL_ERROR,
        error,
        "error: %.*s has %llu lines, offset %llu is behind the last",
        VIEW_ARGUMENTS(given),
        (unsigned long long)(number - 1),
        (unsigned long long)first
    );
}

static result show_lines(
    struct reader *reader, struct view given, uint64_t first, uint64_t limit, struct error *error
) {
    bool found = false;
    TRY(skip_lines(reader, given, first, &found, error));
    size_t shown_max = reader->context->options.text_bytes_max;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, LINE_BYTES_MAX);
    uint64_t number = first;
    for (; found && number - first < limit && reader->out->text.length < shown_max; number++) {
        struct line line;
        buffer_clear(&text);
        TRY(reader_line(reader, LINE_BYTES_MAX, &text, &line, error));
        if (reader->has_stopped || !line.is_there) {
            break;
        }
        TRY(append_line(reader, number, buffer_view(&text), &line, error));
    }
    if (!found || reader->has_stopped) {
        return OK;
    }
    TRY(append_range(reader, first, number, error));
    struct buffer *out = &reader->out->text;
    if (out->length > 0 && out->data[out->length - 1] == '\n') {
        out->length -= 1;
        out->data[out->length] = '\0';
    }
    return OK;
}

static result
show_bytes(struct reader *reader, struct view given, uint64_t from, struct error *error) {
    if (from >= reader->bytes) {
        return tool_answer(
            reader->out,
            TOOL_ERROR,
            error,
            "error: %.*s has %llu bytes, byte_offset %llu is behind the last",
            VIEW_ARGUMENTS(given),
            (unsigned long long)reader->bytes,
            (unsigned long long)from
        );
    }
    reader->at = from;
    struct view bytes;
    TRY(reader_peek(reader, &bytes, error));
    if (reader->has_stopped) {
        return OK;
    }
    bytes = whole_characters(view_slice(bytes, 0, reader->context->options.text_bytes_max));
    uint64_t behind = from + bytes.length;
    TRY(sandbox_sanitise(bytes, 0, &reader->out->text, error));
    reader->out->text_is_truncated = behind < reader->bytes;
    return buffer_append_format(
        &reader->out->text,
        error,
        behind < reader->bytes ? "\n[bytes %llu-%llu of %llu; read on with byte_offset %llu]"
                               : "\n[bytes %llu-%llu, the last ones]",
        (unsigned long long)from,
        (unsigned long long)behind - 1,
        (unsigned long long)reader->bytes,
        (unsigned long long)behind
    );
}

/* Bytes that no text has, or a picture: said so with size and kind. */
static result
refuse_binary(struct reader *reader, struct view given, bool *is_binary, struct error *error) {
    struct view bytes;
    TRY(reader_peek(reader, &bytes, error));
    struct view head = view_slice(bytes, 0, BINARY_BYTES);
    *is_binary =
        !reader->has_stopped && head.length > 0 && memchr(head.data, 0, head.length) != NULL;
    if (!*is_binary) {
        return OK;
    }
    struct image_facts facts;
    if (reader->image != NULL && image_facts_read(reader->context->root, reader->image, &facts)) {
        return image_facts_answer(reader->out, given, &facts, error);
    }
    return tool_answer(
        reader->out,
        TOOL_ERROR,
        error,
        "error: %.*s is a binary file (%llu bytes%s%s)",
        VIEW_ARGUMENTS(given),
        (unsigned long long)reader->bytes,
        file_kind(head)[0] == '\0' ? "" : ", ",
        file_kind(head)
    );
}

static result
show(struct reader *reader, struct view given, struct json_value arguments, struct error *error) {
    bool is_binary = false;
    TRY(refuse_binary(reader, given, &is_binary, error));
    if (is_binary || reader->has_stopped) {
        return OK;
    }
    int64_t offset = 1;
    int64_t limit = LINES_DEFAULT;
    int64_t from = 0;
    (void)json_as_i64(json_get(arguments, "offset"), &offset);
    (void)json_as_i64(json_get(arguments, "limit"), &limit);
    offset = offset < 1 ? 1 : offset; // models count from 0 at times
    limit = limit < 1 ? LINES_DEFAULT : limit;
    reader->out->status = TOOL_OK;
    reader->out->output_bytes = reader->bytes;
    if (json_as_i64(json_get(arguments, "byte_offset"), &from)) {
        return show_bytes(reader, given, from < 0 ? 0 : (uint64_t)from, error);
    }
    return show_lines(reader, given, (uint64_t)offset, (uint64_t)limit, error);
}

static result
read_output(struct reader *reader, struct view given, bool *is_output, struct error *error) {
    struct view prefix = view_of_text(TOOL_OUTPUT_PREFIX);
    uint64_t call = 0;
    *is_output = view_starts_with(given, prefix) &&
                 parse_u64(view_slice(given, prefix.length, SIZE_MAX), &call);
    const struct buffer *kept =
        *is_output ? tool_outputs_find(&reader->context->outputs, call) : NULL;
    if (kept != NULL) {
        reader->memory = buffer_view(kept);
        reader->bytes = kept->length;
    } else if (*is_output) {
        reader->has_stopped = true;
        return tool_answer(
            reader->out,
            TOOL_ERROR,
            error,
            "error: %.*s is not kept: only the last %zu outputs that were cut short are",
            VIEW_ARGUMENTS(given),
            TOOL_OUTPUTS_MAX
        );
    }
    return OK;
}

result tool_run_read_wide(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    CLEANUP(reader_cleanup) struct reader reader = {.context = context, .out = out};
    buffer_init(&reader.chunk, CHUNK_BYTES);
    bool is_done = false;
    TRY(read_output(&reader, given, &is_done, error));
    if (is_done) {
        return reader.has_stopped ? OK : show(&reader, given, arguments, error);
    }
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    struct beneath_info info = {0};
    struct error why = {0};
    TRY(tool_path(given, path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    bool is_huge = is_ok(beneath_stat(context->root, path, &info, &why)) &&
                   info.kind == BENEATH_FILE && info.bytes > TOOL_FILE_BYTES_MAX;
    if (is_huge) {
        reader.path = path;
        reader.image = path;
        reader.bytes = info.bytes;
        TRY(tool_ledger_note_part(&context->ledger, path, info.bytes, error));
        return show(&reader, given, arguments, error);
    }
    TRY(tool_file_read(context, given, path, &content, &usable, out, error));
    if (!usable) {
        return OK;
    }
    TRY(tool_ledger_note(&context->ledger, path, buffer_view(&content), false, error));
    reader.memory = buffer_view(&content);
    reader.bytes = content.length;
    reader.image = path;
    return show(&reader, given, arguments, error);
}
