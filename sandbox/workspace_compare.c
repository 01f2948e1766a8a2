/* What differs between two snapshots: files, lines, and a patch. */
#include "workspace_internal.h"

static void patch_cleanup(git_patch **patch) {
    git_patch_free(*patch);
}

static result compare_trees(
    struct workspace *workspace,
    git_tree *from,
    git_tree *to,
    uint32_t flags,
    git_diff **out,
    struct error *error
) {
    git_diff_options options;
    TRY_GIT(git_diff_options_init(&options, GIT_DIFF_OPTIONS_VERSION), "libgit2 options");
    options.flags = GIT_DIFF_INCLUDE_TYPECHANGE | flags;
    TRY_GIT(
        git_diff_tree_to_tree(out, workspace->repository, from, to, &options), "comparing snapshots"
    );
    return OK;
}

result workspace_compare_trees(
    struct workspace *workspace, git_tree *from, git_tree *to, git_diff **out, struct error *error
) {
    return compare_trees(workspace, from, to, 0, out, error);
}

static enum workspace_change change_of(git_delta_t status) {
    if (status == GIT_DELTA_ADDED) {
        return WORKSPACE_ADDED;
    }
    if (status == GIT_DELTA_DELETED) {
        return WORKSPACE_DELETED;
    }
    return status == GIT_DELTA_TYPECHANGE ? WORKSPACE_TYPE : WORKSPACE_MODIFIED;
}

static result add_patch(
    git_diff *diff,
    size_t index,
    struct workspace_difference *difference,
    struct buffer *text,
    struct error *error
) {
    CLEANUP(patch_cleanup) git_patch *patch = NULL;
    TRY_GIT(git_patch_from_diff(&patch, diff, index), "comparing a file");
    // Flags are only known once the content was looked at.
    const git_diff_delta *delta =
        patch != NULL ? git_patch_get_delta(patch) : git_diff_get_delta(diff, index);
    struct workspace_file_change *file = &difference->files[difference->file_count];
    char *path = strdup(delta->new_file.path);
    if (path == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    *file = (struct workspace_file_change){
        .path = path,
        .change = change_of(delta->status),
        .binary = (delta->flags & GIT_DIFF_FLAG_BINARY) != 0,
    };
    difference->file_count += 1;
    if (patch == NULL) {
        return OK;
    }
    TRY_GIT(
        git_patch_line_stats(NULL, &file->lines_added, &file->lines_removed, patch),
        "counting lines"
    );
    difference->lines_added += file->lines_added;
    difference->lines_removed += file->lines_removed;
    size_t room = text->ceiling - text->length;
    if (room == 0) {
        return OK;
    }
    git_buf rendered = GIT_BUF_INIT;
    TRY_GIT(git_patch_to_buf(&rendered, patch), "rendering a difference");
    size_t part = rendered.size < room ? rendered.size : room;
    difference->patch_truncated = difference->patch_truncated || part < rendered.size;
    result appended = buffer_append(text, view_of(rendered.ptr, part), error);
    git_buf_dispose(&rendered);
    return appended;
}

void workspace_difference_deinit(struct workspace_difference *difference) {
    for (size_t i = 0; i < difference->file_count; i++) {
        void *path = NULL;
        memcpy(&path, &difference->files[i].path, sizeof path); // ours to free, const to others
        free(path);
    }
    free(difference->files);
    free(difference->patch);
    *difference = (struct workspace_difference){0};
}

static result compare(
    struct workspace *workspace,
    const char *from_commit,
    const char *to_commit,
    size_t patch_bytes_max,
    uint32_t flags,
    struct workspace_difference *out,
    struct error *error
) {
    CLEANUP(tree_cleanup) git_tree *from = NULL;
    CLEANUP(tree_cleanup) git_tree *to = NULL;
    TRY(workspace_find_tree(workspace, from_commit, &from, error));
    TRY(workspace_find_tree(workspace, to_commit, &to, error));
    CLEANUP(diff_cleanup) git_diff *diff = NULL;
    TRY(compare_trees(workspace, from, to, flags, &diff, error));
    size_t count = git_diff_num_deltas(diff);
    CLEANUP(workspace_difference_deinit)
    struct workspace_difference difference = {.files = calloc(count + 1, sizeof *difference.files)};
    if (difference.files == NULL) {
        FAIL(error, MEMORY, "no memory for %zu changed files", count);
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, patch_bytes_max);
    for (size_t i = 0; i < count; i++) {
        TRY(add_patch(diff, i, &difference, &text, error));
    }
    if (patch_bytes_max == 0) {
        difference.patch_truncated = false; // none was asked for
    }
    TRY(buffer_take(&text, &difference.patch, &difference.patch_bytes, error));
    *out = difference;
    difference = (struct workspace_difference){0};
    return OK;
}

result workspace_compare(
    struct workspace *workspace,
    const char *from_commit,
    const char *to_commit,
    size_t patch_bytes_max,
    struct workspace_difference *out,
    struct error *error
) {
    return compare(workspace, from_commit, to_commit, patch_bytes_max, 0, out, error);
}

result workspace_compare_whole(
    struct workspace *workspace,
    const char *from_commit,
    const char *to_commit,
    size_t patch_bytes_max,
    struct workspace_difference *out,
    struct error *error
) {
    uint32_t flags = GIT_DIFF_SHOW_BINARY;
    return compare(workspace, from_commit, to_commit, patch_bytes_max, flags, out, error);
}
