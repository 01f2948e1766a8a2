/* read, edit, write and finish as the bundled model knows them: files of the workspace through sandbox/beneath.h only.
 *
 * Texts are what the bundled model was trained with; where it knows no text for a case, its own
 * begins the same way and says more in parentheses.
 */
#include "tool_internal.h"

result tool_file_failure(
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

result tool_file_read(
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
        return tool_file_failure(out, given, status, &why, error);
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
            return tool_file_failure(out, given, status, &why, error);
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
    TRY(tool_file_read(context, given, path, &content, &usable, out, error));
    if (!usable) {
        return OK;
    }
    bool is_binary = false;
    TRY(refuse_binary(buffer_view(&content), given, &is_binary, out, error));
    if (is_binary) {
        return OK;
    }
    struct view text = buffer_view(&content);
    TRY(tool_ledger_note(&context->ledger, path, text, false, error));
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

size_t tool_count_occurrences(struct view text, struct view old, size_t *first) {
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

result tool_append_crlf(struct buffer *out, struct view text, struct error *error) {
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

result tool_file_check(
    struct tool_context *context,
    const char *path,
    struct view given,
    struct view content,
    bool *usable,
    struct tool_result *out,
    struct error *error
) {
    enum tool_file_state state =
        context->is_strict ? tool_ledger_state(&context->ledger, path, content) : TOOL_FILE_SAME;
    *usable = state == TOOL_FILE_SAME;
    if (*usable) {
        return OK;
    }
    const char *why = state == TOOL_FILE_UNREAD ? "has not been read yet; read it first"
                                                : "changed since it was read; read it again";
    return tool_answer(out, TOOL_REFUSED, error, "error: %.*s %s", VIEW_ARGUMENTS(given), why);
}

result tool_file_write(
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
        return tool_file_failure(out, given, status, &why, error);
    }
    TRY(tool_ledger_note(&context->ledger, path, content, true, error));
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
    TRY(tool_file_read(context, given, path, &content, &usable, out, error));
    if (!usable) {
        return OK;
    }
    struct view text = buffer_view(&content);
    size_t at = 0;
    size_t count = tool_count_occurrences(text, old, &at);
    // The model is shown LF for CR LF, so what it quotes has LF too; the file keeps its own.
    CLEANUP(buffer_deinit) struct buffer old_crlf = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer new_crlf = {NULL, 0, 0, 0};
    buffer_init(&old_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    buffer_init(&new_crlf, 2 * TOOL_ARGUMENTS_BYTES_MAX);
    if (count == 0 && old.length > 0 && view_find(text, view_of_text("\r\n"), 0) != SIZE_MAX) {
        TRY(tool_append_crlf(&old_crlf, old, error));
        TRY(tool_append_crlf(&new_crlf, new, error));
        old = buffer_view(&old_crlf);
        new = buffer_view(&new_crlf);
        count = tool_count_occurrences(text, old, &at);
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
    return tool_file_write(context, path, given, buffer_view(&edited), "edited", out, error);
}

/* ------------------------------------------------------------------- write ---- */

result tool_make_parents(
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
    return tool_file_failure(out, given, status, &why, error);
}

/* A file that is there and is to be replaced must be known where the context is strict. */
static result may_write_over(
    struct tool_context *context,
    char path[TOOL_PATH_BYTES],
    struct view given,
    bool *usable,
    struct tool_result *out,
    struct error *error
) {
    struct beneath_info info = {0};
    struct error why = {0};
    if (!context->is_strict || is_failed(beneath_stat(context->root, path, &info, &why)) ||
        info.kind != BENEATH_FILE) {
        return OK; // what else it may be, beneath_write says
    }
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    TRY(tool_file_read(context, given, path, &content, usable, out, error));
    if (!*usable) {
        return OK;
    }
    return tool_file_check(context, path, given, buffer_view(&content), usable, out, error);
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
    TRY(may_write_over(context, path, given, &usable, out, error));
    if (usable) {
        TRY(tool_make_parents(context, path, given, &usable, out, error));
    }
    if (!usable) {
        return OK;
    }
    return tool_file_write(context, path, given, content, "wrote", out, error);
}

/* ------------------------------------------------------------------ finish ---- */

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
