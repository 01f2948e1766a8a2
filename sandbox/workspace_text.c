/* Two texts that are in no snapshot. See workspace.h. */
#include "workspace_internal.h"

#define CONTEXT_LINES 2

static void patch_cleanup(git_patch **patch) {
    git_patch_free(*patch);
}

static result check(struct view text, struct error *error) {
    size_t lines = 0;
    for (size_t i = 0; i < text.length && text.length <= WORKSPACE_TEXT_BYTES_MAX; i++) {
        lines += text.data[i] == '\n' ? 1 : 0;
    }
    if (text.length > WORKSPACE_TEXT_BYTES_MAX || lines > WORKSPACE_TEXT_LINES_MAX) {
        FAIL(error, LIMIT, "too large to be compared: %zu bytes", text.length);
    }
    if (text.length > 0 && memchr(text.data, 0, text.length) != NULL) {
        FAIL(error, INVALID_INPUT, "not a text");
    }
    return OK;
}

result workspace_compare_texts(
    struct view old_text, struct view new_text, struct buffer *out, struct error *error
) {
    TRY(check(old_text, error));
    TRY(check(new_text, error));
    TRY(workspace_prepare_library(error));
    git_diff_options options;
    TRY_GIT(git_diff_options_init(&options, GIT_DIFF_OPTIONS_VERSION), "libgit2 options");
    options.context_lines = CONTEXT_LINES;
    options.flags = GIT_DIFF_FORCE_TEXT;
    CLEANUP(patch_cleanup) git_patch *patch = NULL;
    const void *old_data = old_text.length > 0 ? (const void *)old_text.data : "";
    const void *new_data = new_text.length > 0 ? (const void *)new_text.data : "";
    TRY_GIT(
        git_patch_from_buffers(
            &patch, old_data, old_text.length, "a", new_data, new_text.length, "a", &options
        ),
        "comparing texts"
    );
    git_buf rendered = GIT_BUF_INIT;
    TRY_GIT(git_patch_to_buf(&rendered, patch), "rendering a difference");
    struct view text = view_of(rendered.ptr, rendered.size);
    size_t first = view_find(text, view_of_text("\n@@"), 0); /* behind the head */
    result appended = OK;
    if (first != SIZE_MAX) {
        appended = buffer_append(out, view_slice(text, first + 1, SIZE_MAX), error);
    }
    git_buf_dispose(&rendered);
    return appended;
}
