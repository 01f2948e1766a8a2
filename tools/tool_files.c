/* read, edit, write, list and finish: files of the workspace through sandbox/beneath.h only.
 *
 * Texts are what the bundled model was trained with; where it knows no text for a case, its own
 * begins the same way and says more in parentheses.
 */
#include "tool_internal.h"

#define LIST_ENTRIES_MAX ((size_t)1000) /* lines a model can still use */

/* The answer for a failure of beneath.h. Faults of the machine stay errors. */
static result answer_failure(
    struct tool_result *out,
    struct view path,
    result failed,
    const struct error *why,
    struct error *error
) {
    if (failed.code == RESULT_NOT_FOUND) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: no such file: %.*s", VIEW_ARGUMENTS(path)
        );
    }
    if (failed.code == RESULT_INVALID_INPUT) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: bad path: %.*s (%s)",
            VIEW_ARGUMENTS(path),
            why->message
        );
    }
    if (failed.code == RESULT_MEMORY) {
        return error_set(
            error, failed.code, why->foreign, why->file, why->line, "%s", why->message
        );
    }
    return tool_answer(
        out, TOOL_ERROR, error, "error: %.*s: %s", VIEW_ARGUMENTS(path), why->message
    );
}

/* Reads a whole file into `content`; false: the answer says why not. */
static result read_file(
    struct tool_context *context,
    struct view given,
    char path[TOOL_PATH_BYTES],
    struct buffer *content,
    bool *usable,
    struct tool_result *out,
    struct error *error
) {
    TRY(tool_path(given, path, usable, out, error));
    if (!*usable) {
        return OK;
    }
    *usable = false;
    struct error why = {0};
    struct beneath_info info = {0};
    result status = beneath_stat(context->root, path, &info, &why);
    if (is_failed(status)) {
        return answer_failure(out, given, status, &why, error);
    }
    if (info.kind == BENEATH_DIRECTORY) {
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: no such file: %.*s (it is a directory)",
            VIEW_ARGUMENTS(given)
        );
    }
    if (info.bytes > TOOL_FILE_BYTES_MAX) {
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: %.*s is too large: %llu bytes, at most %zu; use shell with head, tail or sed",
            VIEW_ARGUMENTS(given),
            (unsigned long long)info.bytes,
            TOOL_FILE_BYTES_MAX
        );
    }
    buffer_init(content, TOOL_FILE_BYTES_MAX + BENEATH_READ_BYTES_MAX);
    for (size_t before = SIZE_MAX; content->length != before;) { // it may grow while we read
        before = content->length;
        size_t length = BENEATH_READ_BYTES_MAX;
        status = beneath_read(context->root, path, before, length, content, NULL, &why);
        if (is_failed(status)) {
            return answer_failure(out, given, status, &why, error);
        }
        if (content->length > TOOL_FILE_BYTES_MAX) {
            return tool_answer(
                out, TOOL_ERROR, error, "error: %.*s is too large", VIEW_ARGUMENTS(given)
            );
        }
    }
    *usable = true;
    return OK;
}

/* True for bytes that no text has; the answer then says so. */
static result refuse_binary(
    struct view content,
    struct view given,
    bool *is_binary,
    struct tool_result *out,
    struct error *error
) {
    *is_binary = content.length > 0 && memchr(content.data, 0, content.length) != NULL;
    if (!*is_binary) {
        return OK;
    }
    return tool_answer(
        out,
        TOOL_ERROR,
        error,
        "error: %.*s is a binary file (%zu bytes)",
        VIEW_ARGUMENTS(given),
        content.length
    );
}

result tool_run_read(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    TRY(read_file(context, given, path, &content, &usable, out, error));
    if (!usable) {
        return OK;
    }
    bool is_binary = false;
    TRY(refuse_binary(buffer_view(&content), given, &is_binary, out, error));
    if (is_binary) {
        return OK;
    }
    struct view text = buffer_view(&content);
    struct tool_cut cut = tool_cut_lines(text, context->options.text_bytes_max);
    out->status = TOOL_OK;
    out->output_bytes = text.length;
    TRY(tool_append_cut(out, text, cut, 0, error));
    if (!out->text_is_truncated) {
        return OK;
    }
    // The record keeps what the model was not shown.
    buffer_deinit(&out->output);
    out->output = content;
    content = (struct buffer){NULL, 0, 0, 0};
    return OK;
}

/* -------------------------------------------------------------------- edit ---- */

/* Occurrences that do not overlap, from left to right; `*first` is where the first one is. */
static size_t count_occurrences(struct view text, struct view old, size_t *first) {
    size_t count = 0;
    if (old.length == 0) {
        return 0;
    }
    for (size_t at = view_find(text, old, 0); at != SIZE_MAX;
         at = view_find(text, old, at + old.length)) {
        *first = count == 0 ? at : *first;
        count += 1;
    }
    return count;
}

/* Line ends of `text` as CR LF; those that are already stay. */
static result append_crlf(struct buffer *out, struct view text, struct error *error) {
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] == '\n' && (i == 0 || text.data[i - 1] != '\r')) {
            TRY(buffer_append_byte(out, '\r', error));
        }
        TRY(buffer_append_byte(out, text.data[i], error));
    }
    return OK;
}

static result replace_at(
    struct view text,
    size_t at,
    struct view old,
    struct view new,
    struct buffer *out,
    struct error *error
) {
    TRY(buffer_append(out, view_slice(text, 0, at), error));
    TRY(buffer_append(out, new, error));
    size_t behind = at + old.length;
    return buffer_append(out, view_slice(text, behind, text.length - behind), error);
}

static result write_file(
    struct tool_context *context,
    const char *path,
    struct view given,
    struct view content,
    const char *done,
    struct tool_result *out,
    struct error *error
) {
    struct error why = {0};
    result status = beneath_write(context->root, path, content, &why);
    if (is_failed(status)) {
        return answer_failure(out, given, status, &why, error);
    }
    return tool_answer(out, TOOL_OK, error, "ok: %s %.*s", done, VIEW_ARGUMENTS(given));
}

result tool_run_edit(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    struct view old = tool_argument(arguments, "old");
    struct view new = tool_argument(arguments, "new");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    TRY(read_file(context, given, path, &content, &usable, out, error));
    if (!usable) {
        return OK;
    }
    struct view text = buffer_view(&content);
    size_t at = 0;
    size_t count = count_occurrences(text, old, &at);
    // The model is shown LF for CR LF, so what it quotes has LF too; the file keeps its own.
    CLEANUP(buffer_deinit) struct buffer old_crlf = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer new_crlf = {NULL, 0, 0, 0};
    buffer_init(&old_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    buffer_init(&new_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    if (count == 0 && old.length > 0 && view_find(text, view_of_text("\r\n"), 0) != SIZE_MAX) {
        TRY(append_crlf(&old_crlf, old, error));
        TRY(append_crlf(&new_crlf, new, error));
        old = buffer_view(&old_crlf);
        new = buffer_view(&new_crlf);
        count = count_occurrences(text, old, &at);
    }
    if (count == 0) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: old text not found in %.*s", VIEW_ARGUMENTS(given)
        );
    }
    if (count > 1) {
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: old text found %zu times in %.*s, give more context",
            count,
            VIEW_ARGUMENTS(given)
        );
    }
    CLEANUP(buffer_deinit) struct buffer edited = {NULL, 0, 0, 0};
    buffer_init(&edited, TOOL_FILE_BYTES_MAX + 2 * TOOL_ARGUMENTS_BYTES_MAX);
    TRY(replace_at(text, at, old, new, &edited, error));
    return write_file(context, path, given, buffer_view(&edited), "edited", out, error);
}

/* ------------------------------------------------------------------- write ---- */

static result make_parents(
    struct tool_context *context,
    const char *path,
    struct view given,
    bool *made,
    struct tool_result *out,
    struct error *error
) {
    *made = true;
    const char *slash = strrchr(path, '/');
    if (slash == NULL || slash == path) {
        return OK;
    }
    char parents[TOOL_PATH_BYTES];
    size_t length = (size_t)(slash - path);
    memcpy(parents, path, length);
    parents[length] = '\0';
    struct error why = {0};
    result status = beneath_mkdir(context->root, parents, true, &why);
    if (is_ok(status)) {
        return OK;
    }
    *made = false;
    return answer_failure(out, given, status, &why, error);
}

result tool_run_write(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    struct view content = tool_argument(arguments, "content");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(given, path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    TRY(make_parents(context, path, given, &usable, out, error));
    if (!usable) {
        return OK;
    }
    return write_file(context, path, given, content, "wrote", out, error);
}

/* -------------------------------------------------------------------- list ---- */

static tool_run run_list;

const struct tool_row tool_row_list = {
    .shown =
        {"list",
         "List a directory.",
         OBJECT_SCHEMA(STRING_PROPERTY("path", "directory, the workspace when left out"), ""),
         TOOL_READS,
         false},
    .run = run_list,
};

static const char *entry_suffix(enum beneath_kind kind) {
    static const char *const suffixes[] = {"", "/", "@", "?"}; // as ls -F marks them
    ASSERT((size_t)kind < COUNT_OF(suffixes));
    return suffixes[kind];
}

static result run_list(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(given, path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    struct error why = {0};
    result status = beneath_list_directory(context->root, path, BENEATH_ENTRIES_MAX, &list, &why);
    if (is_failed(status)) {
        return answer_failure(
            out, given.length == 0 ? view_of_text(".") : given, status, &why, error
        );
    }
    out->status = TOOL_OK;
    if (list.count == 0) {
        return tool_answer(out, TOOL_OK, error, "(empty directory)");
    }
    size_t shown = 0;
    for (; shown < list.count && shown < LIST_ENTRIES_MAX &&
           out->text.length < context->options.text_bytes_max;
         shown++) {
        const struct beneath_entry *entry = &list.entries[shown];
        if (shown > 0) {
            TRY(buffer_append_byte(&out->text, '\n', error));
        }
        TRY(sandbox_sanitise(view_of_text(entry->name), 0, &out->text, error));
        TRY(buffer_append_text(&out->text, entry_suffix(entry->info.kind), error));
    }
    if (shown < list.count || list.truncated) {
        out->text_is_truncated = true;
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n... [%zu%s more entries omitted] ...",
            list.count - shown,
            list.truncated ? " or" : ""
        ));
    }
    return OK;
}

result tool_run_finish(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    (void)context;
    out->status = TOOL_OK;
    out->ends_task = true;
    return sandbox_sanitise(tool_argument(arguments, "summary"), 0, &out->text, error);
}
