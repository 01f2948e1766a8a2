/* edit in its wide form: one or several exact replacements in a file, all of them or none.
 *
 * Each replacement works on what the one before it left. Where the old text is not found, or found
 * more than once, the answer says where a model has to look.
 */
#include "tool_internal.h"

#define EDITS_MAX    ((size_t)200)
#define PLACES_SHOWN 8
#define EDIT_PROPERTIES                                                                            \
    STRING_PROPERTY("old", "exact text to replace")                                                \
    ", " STRING_PROPERTY("new", "replacement") ", " TYPED_PROPERTY(                                \
        "replace_all", "boolean", "replace every occurrence instead of the only one"               \
    )

const struct tool_descriptor tool_wide_edit = {
    "edit",
    "Replace exact strings in a file that was read before. Each old text must occur once, unless "
    "replace_all is set. Give old and new, or several replacements as edits: all are made, or "
    "none.",
    OBJECT_SCHEMA(
        STRING_PROPERTY(
            "path", "file path"
        ) ", " EDIT_PROPERTIES
          ", \"edits\": {\"type\": \"array\", \"description\": \"replacements in order\", "
          "\"items\": " OBJECT_SCHEMA(EDIT_PROPERTIES, "\"old\", \"new\"") "}",
        "\"path\""
    ),
    TOOL_READS | TOOL_WRITES,
    false,
};

struct edit {
    struct tool_context *context;
    struct tool_result *out;
    struct view given;
    size_t number;       /* of the replacement, from 1; 0: there is one only */
    size_t replacements; /* made so far */
    bool has_failed;     /* the answer says why */
    struct buffer text;  /* the file as it becomes */
    struct buffer next;
};

static void edit_cleanup(struct edit *edit) {
    buffer_deinit(&edit->text);
    buffer_deinit(&edit->next);
}

static size_t line_of(struct view text, size_t at) {
    size_t line = 1;
    for (size_t i = 0; i < at; i++) {
        line += text.data[i] == '\n';
    }
    return line;
}

/* "error: edits[2]: " or "error: " */
static result fail_begin(struct edit *edit, struct buffer *line, struct error *error) {
    edit->has_failed = true;
    TRY(buffer_append_text(line, "error: ", error));
    return edit->number == 0 ? OK
                             : buffer_append_format(line, error, "edits[%zu]: ", edit->number - 1);
}

static result fail_end(struct edit *edit, struct buffer *line, struct error *error) {
    if (edit->number > 0) {
        TRY(buffer_append_text(line, "; nothing was changed", error));
    }
    return tool_answer(edit->out, TOOL_ERROR, error, "%s", buffer_text(line));
}

static result
fail_ambiguous(struct edit *edit, struct view old, size_t count, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    TRY(fail_begin(edit, &line, error));
    TRY(buffer_append_format(
        &line,
        error,
        "old text found %zu times in %.*s, at lines",
        count,
        VIEW_ARGUMENTS(edit->given)
    ));
    struct view text = buffer_view(&edit->text);
    size_t at = view_find(text, old, 0);
    for (size_t i = 0; i < PLACES_SHOWN && at != SIZE_MAX; i++) {
        TRY(buffer_append_format(&line, error, "%s %zu", i == 0 ? "" : ",", line_of(text, at)));
        at = view_find(text, old, at + old.length);
    }
    TRY(buffer_append_text(&line, at == SIZE_MAX ? "" : ", ...", error));
    TRY(buffer_append_text(&line, "; give more context or set replace_all", error));
    return fail_end(edit, &line, error);
}

static struct view trimmed(struct view line) {
    while (line.length > 0 && (line.data[0] == ' ' || line.data[0] == '\t')) {
        line = view_slice(line, 1, SIZE_MAX);
    }
    while (line.length > 0 && strchr(" \t\r", line.data[line.length - 1]) != NULL) {
        line.length -= 1;
    }
    return line;
}

/* The line of the text that is the first one of `old` but for its blanks; 0: none. */
static size_t similar_line(struct view text, struct view old) {
    struct cursor lines = cursor_over(old);
    struct view wanted = {NULL, 0};
    while (wanted.length == 0 && cursor_remaining(&lines) > 0) {
        struct view line;
        if (!cursor_take_until(&lines, '\n', &line)) {
            (void)cursor_take(&lines, cursor_remaining(&lines), &line);
        }
        wanted = trimmed(line);
    }
    lines = cursor_over(text);
    for (size_t number = 1; wanted.length > 0 && cursor_remaining(&lines) > 0; number++) {
        struct view line;
        if (!cursor_take_until(&lines, '\n', &line)) {
            (void)cursor_take(&lines, cursor_remaining(&lines), &line);
        }
        if (view_equals(trimmed(line), wanted)) {
            return number;
        }
    }
    return 0;
}

static result fail_absent(struct edit *edit, struct view old, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    TRY(fail_begin(edit, &line, error));
    TRY(buffer_append_format(
        &line, error, "old text not found in %.*s", VIEW_ARGUMENTS(edit->given)
    ));
    size_t similar = similar_line(buffer_view(&edit->text), old);
    if (similar > 0) {
        TRY(buffer_append_format(
            &line,
            error,
            "; its first line is like line %zu, but blanks or what follows differ",
            similar
        ));
    }
    return fail_end(edit, &line, error);
}

/* Puts `new` in the place of each `old`. */
static result
replace(struct edit *edit, struct view old, struct view new, size_t count, struct error *error) {
    struct view text = buffer_view(&edit->text);
    buffer_clear(&edit->next);
    size_t from = 0;
    for (size_t i = 0; i < count; i++) {
        size_t at = view_find(text, old, from);
        ASSERT(at != SIZE_MAX);
        TRY(buffer_append(&edit->next, view_slice(text, from, at - from), error));
        TRY(buffer_append(&edit->next, new, error));
        from = at + old.length;
    }
    TRY(buffer_append(&edit->next, view_slice(text, from, SIZE_MAX), error));
    struct buffer before = edit->text;
    edit->text = edit->next;
    edit->next = before;
    edit->replacements += count;
    return OK;
}

static result refuse(struct edit *edit, const char *why, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    TRY(fail_begin(edit, &line, error));
    TRY(buffer_append_text(&line, why, error));
    TRY(fail_end(edit, &line, error));
    edit->out->status = TOOL_REFUSED;
    return OK;
}

/* One replacement; `item` has old, new and replace_all. */
static result edit_once(struct edit *edit, struct json_value item, struct error *error) {
    struct view old = tool_argument(item, "old");
    struct view new = tool_argument(item, "new");
    bool is_all = false;
    (void)json_as_bool(json_get(item, "replace_all"), &is_all);
    if (old.length == 0) {
        return refuse(edit, "the old text is empty; a new file is made with write", error);
    }
    if (view_equals(old, new)) {
        return refuse(edit, "old and new text are the same", error);
    }
    struct view text = buffer_view(&edit->text);
    size_t at = 0;
    size_t count = tool_count_occurrences(text, old, &at);
    // The model is shown LF for CR LF, so what it quotes has LF too; the file keeps its own.
    CLEANUP(buffer_deinit) struct buffer old_crlf = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer new_crlf = {NULL, 0, 0, 0};
    buffer_init(&old_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    buffer_init(&new_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    if (count == 0 && view_find(text, view_of_text("\r\n"), 0) != SIZE_MAX) {
        TRY(tool_append_crlf(&old_crlf, old, error));
        TRY(tool_append_crlf(&new_crlf, new, error));
        old = buffer_view(&old_crlf);
        new = buffer_view(&new_crlf);
        count = tool_count_occurrences(text, old, &at);
    }
    if (count == 0) {
        return fail_absent(edit, tool_argument(item, "old"), error);
    }
    if (count > 1 && !is_all) {
        return fail_ambiguous(edit, old, count, error);
    }
    if (new.length > old.length &&
        (new.length - old.length) > (TOOL_FILE_BYTES_MAX - text.length) / count) {
        return refuse(edit, "the file would become too large", error);
    }
    return replace(edit, old, new, count, error);
}

static result edit_all(struct edit *edit, struct json_value arguments, struct error *error) {
    struct json_value edits = json_get(arguments, "edits");
    bool has_one = json_type(json_get(arguments, "old")) == JSON_STRING &&
                   json_type(json_get(arguments, "new")) == JSON_STRING;
    bool has_many = json_count(edits) > 0;
    if (has_one == has_many) {
        return refuse(edit, "edit needs either old and new, or edits", error);
    }
    if (has_one) {
        return edit_once(edit, arguments, error);
    }
    if (json_count(edits) > EDITS_MAX) {
        return refuse(edit, "more than 200 edits in one call", error);
    }
    struct json_value item = json_first(edits);
    for (; json_type(item) != JSON_ABSENT && !edit->has_failed; item = json_next(item)) {
        edit->number += 1;
        TRY(edit_once(edit, item, error));
    }
    return OK;
}

result tool_run_edit_wide(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(edit_cleanup) struct edit edit = {.context = context, .out = out};
    edit.given = tool_argument(arguments, "path");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_file_read(context, edit.given, path, &edit.text, &usable, out, error));
    if (usable) {
        struct view content = buffer_view(&edit.text);
        TRY(tool_file_check(context, path, edit.given, content, &usable, out, error));
    }
    if (!usable) {
        return OK;
    }
    buffer_init(&edit.next, edit.text.ceiling);
    TRY(edit_all(&edit, arguments, error));
    if (edit.has_failed) {
        return OK;
    }
    TRY(tool_file_write(context, path, edit.given, buffer_view(&edit.text), "edited", out, error));
    if (out->status != TOOL_OK || edit.replacements == 1) {
        return OK;
    }
    return buffer_append_format(&out->text, error, " (%zu replacements)", edit.replacements);
}
