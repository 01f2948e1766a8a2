/* What a call would write over. See tool.h. */
#include "tool_internal.h"

#include "sandbox/workspace.h"

void tool_overwrite_deinit(struct tool_overwrite *overwrite) {
    buffer_deinit(&overwrite->patch);
    *overwrite = (struct tool_overwrite){0};
}

/* Nothing is said of a file that cannot be read: the call itself says why. */
static result compare(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_overwrite *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    struct view content = tool_argument(arguments, "content");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    struct beneath_info info = {0};
    CLEANUP(tool_result_deinit) struct tool_result unsaid;
    tool_result_init(&unsaid);
    TRY(tool_path(given, path, &usable, &unsaid, error));
    if (!usable || is_failed(beneath_stat(context->root, path, &info, NULL)) ||
        info.kind != BENEATH_FILE) {
        return OK;
    }
    out->is_there = true;
    out->bytes = info.bytes;
    if (info.bytes > WORKSPACE_TEXT_BYTES_MAX) {
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer old = {NULL, 0, 0, 0};
    TRY(tool_file_read(context, given, path, &old, &usable, &unsaid, error));
    if (!usable) {
        return OK;
    }
    result compared = workspace_compare_texts(buffer_view(&old), content, &out->patch, error);
    out->has_patch = is_ok(compared);
    return compared.code == RESULT_MEMORY ? compared : OK;
}

bool tool_may_overwrite(const struct tool_subject *subject) {
    return subject->tool != NULL && strcmp(subject->tool, "write") == 0;
}

result tool_overwrite_find(
    struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_overwrite *out,
    struct error *error
) {
    CLEANUP(tool_subject_deinit) struct tool_subject subject = {0};
    *out = (struct tool_overwrite){0};
    buffer_init(&out->patch, 4 * WORKSPACE_TEXT_BYTES_MAX);
    TRY(tool_subject_find(context, name, arguments, &subject, error));
    if (!tool_may_overwrite(&subject) || subject.arguments == NULL) {
        return OK;
    }
    struct json_value root = json_root(subject.arguments);
    bool is_complete =
        json_type(root) == JSON_OBJECT && json_type(json_get(root, "content")) == JSON_STRING;
    return is_complete ? compare(context, root, out, error) : OK;
}
