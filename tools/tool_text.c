/* Texts for a model: shortening, harmless bytes, and paths as it writes them. */
#include "tool_internal.h"

#include <stdarg.h>

const char *tool_status_name(enum tool_status status) {
    static const char *const names[] = {"ok", "error", "timeout", "cancelled", "refused"};
    ASSERT((size_t)status < COUNT_OF(names));
    return names[status];
}

void tool_result_init(struct tool_result *value) {
    memset(value, 0, sizeof *value);
    buffer_init(&value->text, TOOL_RESULT_BYTES_MAX);
    buffer_init(&value->output, TOOL_RESULT_BYTES_MAX);
}

void tool_result_deinit(struct tool_result *value) {
    buffer_deinit(&value->text);
    buffer_deinit(&value->output);
}

result tool_answer(
    struct tool_result *out, enum tool_status status, struct error *error, const char *format, ...
) {
    // Texts that embed names of files: a path is at most BENEATH_PATH_BYTES_MAX.
    char line[BENEATH_PATH_BYTES_MAX + 1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    size_t bytes = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    out->status = status;
    buffer_clear(&out->text);
    return sandbox_sanitise(view_of(line, bytes), 0, &out->text, error);
}

void tool_stopped_text(char line[TOOL_STOPPED_BYTES], int64_t limit_ms) {
    bool whole = limit_ms % 1000 == 0;
    int length = snprintf(
        line,
        TOOL_STOPPED_BYTES,
        "error: stopped after %lld %s",
        (long long)(whole ? limit_ms / 1000 : limit_ms),
        whole ? "s" : "ms"
    );
    ASSERT(length > 0 && length < TOOL_STOPPED_BYTES);
}

struct view tool_argument(struct json_value arguments, const char *name) {
    struct view text = {NULL, 0};
    (void)json_as_string(json_get(arguments, name), &text);
    return text;
}

/* ---------------------------------------------------------------- shortening ---- */

/* Length of the character at `at`; 1 for a byte that begins none. */
static size_t character_bytes(struct view text, size_t at) {
    uint32_t code_point = 0;
    size_t length = utf8_decode(view_slice(text, at, 4), &code_point);
    return length == 0 ? 1 : length;
}

struct tool_cut tool_cut_characters(struct view text, size_t whole, size_t head, size_t tail) {
    ASSERT(whole >= head + tail);
    size_t count = 0;
    struct tool_cut cut = {text.length, text.length};
    for (size_t at = 0; at < text.length; at += character_bytes(text, at)) {
        if (count == head) {
            cut.head_bytes = at;
        }
        count += 1;
    }
    if (count <= whole) {
        cut.head_bytes = text.length;
        return cut;
    }
    size_t skipped = 0;
    for (cut.tail_at = 0; skipped < count - tail; skipped++) {
        cut.tail_at += character_bytes(text, cut.tail_at);
    }
    return cut;
}

struct tool_cut tool_cut_lines(struct view text, size_t bytes_max) {
    struct tool_cut cut = {text.length, text.length};
    if (text.length <= bytes_max) {
        return cut;
    }
    size_t head = bytes_max / 3 * 2;
    size_t tail_at = text.length - bytes_max / 3;
    // A line end within the last quarter of the head, and the first quarter of the tail.
    cut.head_bytes = head;
    for (size_t at = head; at > head - head / 4; at--) {
        if (text.data[at - 1] == '\n') {
            cut.head_bytes = at - 1;
            break;
        }
    }
    cut.tail_at = tail_at;
    for (size_t at = tail_at; at < tail_at + bytes_max / 12; at++) {
        if (text.data[at] == '\n') {
            cut.tail_at = at + 1;
            break;
        }
    }
    while (cut.head_bytes > 0 && (text.data[cut.head_bytes] & 0xC0U) == 0x80U) {
        cut.head_bytes -= 1;
    }
    while (cut.tail_at < text.length && (text.data[cut.tail_at] & 0xC0U) == 0x80U) {
        cut.tail_at += 1;
    }
    return cut;
}

static struct view without_newlines_at_end(struct view text) {
    while (text.length > 0 && text.data[text.length - 1] == '\n') {
        text.length -= 1;
        if (text.length > 0 && text.data[text.length - 1] == '\r') {
            text.length -= 1;
        }
    }
    return text;
}

result tool_append_cut(
    struct tool_result *out,
    struct view text,
    struct tool_cut cut,
    uint64_t missing,
    struct error *error
) {
    ASSERT(cut.head_bytes <= cut.tail_at && cut.tail_at <= text.length);
    struct view head = view_slice(text, 0, cut.head_bytes);
    struct view tail = view_slice(text, cut.tail_at, text.length - cut.tail_at);
    uint64_t omitted = cut.tail_at - cut.head_bytes + missing;
    if (omitted == 0) {
        return sandbox_sanitise(without_newlines_at_end(text), 0, &out->text, error);
    }
    out->text_is_truncated = true;
    out->omitted_at = cut.head_bytes;
    out->omitted_bytes = omitted;
    TRY(sandbox_sanitise(head, 0, &out->text, error));
    TRY(buffer_append_format(
        &out->text, error, "\n... [%llu bytes omitted] ...\n", (unsigned long long)omitted
    ));
    return sandbox_sanitise(without_newlines_at_end(tail), 0, &out->text, error);
}

/* --------------------------------------------------------------------- paths ---- */

static struct view strip_prefix(struct view path) {
    struct view inside = view_of_text(TOOL_WORKSPACE_INSIDE);
    if (view_starts_with(path, inside) &&
        (path.length == inside.length || path.data[inside.length] == '/')) {
        path = view_slice(path, inside.length, path.length - inside.length);
        while (path.length > 0 && path.data[0] == '/') {
            path = view_slice(path, 1, path.length - 1);
        }
    }
    while (view_starts_with(path, view_of_text("./"))) {
        path = view_slice(path, 2, path.length - 2);
        while (path.length > 0 && path.data[0] == '/') {
            path = view_slice(path, 1, path.length - 1);
        }
    }
    return path;
}

result tool_path(
    struct view given,
    char out[TOOL_PATH_BYTES],
    bool *usable,
    struct tool_result *answer,
    struct error *error
) {
    struct view path = strip_prefix(given);
    *usable = false;
    if (path.length > BENEATH_PATH_BYTES_MAX) {
        return tool_answer(
            answer,
            TOOL_REFUSED,
            error,
            "error: bad path: %.80s... (%zu bytes, at most %zu)",
            (const char *)path.data,
            path.length,
            BENEATH_PATH_BYTES_MAX
        );
    }
    if (path.length > 0 && path.data[0] == '/') {
        return tool_answer(
            answer,
            TOOL_REFUSED,
            error,
            "error: bad path: %.*s (outside of the workspace; paths are relative to it)",
            VIEW_ARGUMENTS(given)
        );
    }
    memcpy(
        out, path.length == 0 ? "." : (const char *)path.data, path.length == 0 ? 1 : path.length
    );
    out[path.length == 0 ? 1 : path.length] = '\0';
    *usable = true;
    return OK;
}
