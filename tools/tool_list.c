/* list: the entries of a directory. */
#include "tool_internal.h"

#define LIST_ENTRIES_MAX ((size_t)1000) /* lines a model can still use */

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
        return tool_file_failure(
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
