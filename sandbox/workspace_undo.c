/* The way back to earlier snapshots: a whole tree, or what certain stretches of work changed. */
#include "workspace_internal.h"

#include "base/clock.h"
#include "lock.h"
#include "tree_files.h"

#include <unistd.h>

#define CHANGES_MAX     ((size_t)1000000) /* of all stretches */
#define NAMES_SHOWN_MAX 300

static result
write_path(const struct workspace *workspace, const git_diff_file *file, struct error *error) {
    CLEANUP(blob_cleanup) git_blob *blob = NULL;
    TRY_GIT(git_blob_lookup(&blob, workspace->repository, &file->id), "reading a stored file");
    enum tree_file_kind kind = TREE_FILE_PLAIN;
    if (file->mode == GIT_FILEMODE_LINK) {
        kind = TREE_FILE_SYMLINK;
    } else if (file->mode == GIT_FILEMODE_BLOB_EXECUTABLE) {
        kind = TREE_FILE_EXECUTABLE;
    }
    struct view content = view_of(git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob));
    return tree_write_file(workspace->root_fd, file->path, kind, content, error);
}

result workspace_restore(
    struct workspace *workspace,
    const char *commit,
    struct workspace_snapshot *before,
    struct error *error
) {
    // The same lock as a sandboxed command's: none can start or run while files are put back.
    CLEANUP(fd_cleanup) int lock = -1;
    TRY(lock_directory(workspace->root_fd, workspace->directory, &lock, error));
    CLEANUP(tree_cleanup) git_tree *target = NULL;
    TRY(workspace_find_tree(workspace, commit, &target, error));
    struct workspace_snapshot present;
    TRY(workspace_take_snapshot(workspace, "before restoring", &present, error));
    CLEANUP(tree_cleanup) git_tree *from = NULL;
    TRY(workspace_find_tree(workspace, present.commit, &from, error));
    CLEANUP(diff_cleanup) git_diff *diff = NULL;
    TRY(workspace_compare_trees(workspace, from, target, &diff, error));
    size_t count = git_diff_num_deltas(diff);
    for (size_t i = 0; i < count; i++) { // removals first: a directory may stand where a file was
        const git_diff_delta *delta = git_diff_get_delta(diff, i);
        if (delta->status == GIT_DELTA_DELETED) {
            TRY(tree_remove_file(workspace->root_fd, delta->old_file.path, error));
        }
    }
    for (size_t i = 0; i < count; i++) {
        const git_diff_delta *delta = git_diff_get_delta(diff, i);
        if (delta->status != GIT_DELTA_DELETED) {
            TRY(write_path(workspace, &delta->new_file, error));
        }
    }
    struct workspace_snapshot after;
    TRY(workspace_take_snapshot(workspace, "restored", &after, error));
    CLEANUP(tree_cleanup) git_tree *reached = NULL;
    TRY(workspace_find_tree(workspace, after.commit, &reached, error));
    if (!git_oid_equal(git_tree_id(reached), git_tree_id(target))) {
        FAIL(error, IO, "the workspace could not be made what it was at %s", commit);
    }
    if (before != NULL) {
        *before = present;
    }
    return OK;
}

/* ---- undo ----------------------------------------------------------------------------------- */

/* A file as it was or is; mode 0: it is not there. */
struct state {
    git_oid id;
    uint16_t mode;
};

struct change {
    char *path; /* owned */
    size_t stretch;
    struct state before, after;
};

struct changes {
    struct change *items;
    size_t count, capacity;
};

static void changes_deinit(struct changes *changes) {
    for (size_t i = 0; i < changes->count; i++) {
        free(changes->items[i].path);
    }
    free(changes->items);
}

static result add_change(
    struct changes *changes, size_t stretch, const git_diff_delta *delta, struct error *error
) {
    if (changes->count == changes->capacity) {
        size_t capacity = changes->capacity == 0 ? 64 : 2 * changes->capacity;
        void *grown = capacity <= CHANGES_MAX
                          ? realloc(changes->items, capacity * sizeof *changes->items)
                          : NULL;
        if (grown == NULL) {
            FAIL(error, LIMIT, "more than %zu changes to undo", changes->count);
        }
        changes->items = grown;
        changes->capacity = capacity;
    }
    bool is_new = delta->status == GIT_DELTA_ADDED, is_gone = delta->status == GIT_DELTA_DELETED;
    struct change change = {
        .path = strdup(is_new ? delta->new_file.path : delta->old_file.path),
        .stretch = stretch,
        .before = {delta->old_file.id, is_new ? 0 : delta->old_file.mode},
        .after = {delta->new_file.id, is_gone ? 0 : delta->new_file.mode},
    };
    if (change.path == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    changes->items[changes->count++] = change;
    return OK;
}

static result collect(
    struct workspace *workspace,
    const struct workspace_stretch *stretches,
    size_t count,
    struct changes *changes,
    struct error *error
) {
    for (size_t i = 0; i < count; i++) {
        CLEANUP(tree_cleanup) git_tree *from = NULL;
        CLEANUP(tree_cleanup) git_tree *to = NULL;
        CLEANUP(diff_cleanup) git_diff *diff = NULL;
        TRY(workspace_find_tree(workspace, stretches[i].from, &from, error));
        TRY(workspace_find_tree(workspace, stretches[i].to, &to, error));
        TRY(workspace_compare_trees(workspace, from, to, &diff, error));
        for (size_t k = 0; k < git_diff_num_deltas(diff); k++) {
            TRY(add_change(changes, i, git_diff_get_delta(diff, k), error));
        }
    }
    return OK;
}

static int by_path_and_time(const void *left, const void *right) {
    const struct change *a = left, *b = right;
    int order = strcmp(a->path, b->path);
    return order != 0 ? order : (a->stretch > b->stretch) - (a->stretch < b->stretch);
}

static bool is_same(const struct state *a, const struct state *b) {
    return a->mode == b->mode && (a->mode == 0 || git_oid_equal(&a->id, &b->id));
}

static struct state state_in(git_tree *tree, const char *path) {
    struct state state = {0};
    git_tree_entry *entry = NULL;
    if (git_tree_entry_bypath(&entry, tree, path) == 0) {
        if (git_tree_entry_type(entry) != GIT_OBJECT_TREE) { // a directory is its files
            state.id = *git_tree_entry_id(entry);
            state.mode = (uint16_t)git_tree_entry_filemode(entry);
        }
        git_tree_entry_free(entry);
    }
    return state;
}

/* One change a path, from before its first to after its last, in place. Names what somebody else changed
 * in between or since. */
static result merge(struct changes *changes, git_tree *present, struct error *error) {
    char names[NAMES_SHOWN_MAX] = "";
    size_t foreign = 0, kept = 0;
    if (changes->count == 0) {
        return OK;
    }
    qsort(changes->items, changes->count, sizeof *changes->items, by_path_and_time);
    for (size_t i = 0; i < changes->count;) {
        struct change merged = changes->items[i];
        size_t next = i + 1;
        bool is_foreign = false;
        for (; next < changes->count && strcmp(changes->items[next].path, merged.path) == 0;
             next++) {
            struct change *later = &changes->items[next];
            is_foreign = is_foreign || !is_same(&merged.after, &later->before);
            merged.after = later->after;
            free(later->path);
            later->path = NULL;
        }
        const struct state now = state_in(present, merged.path);
        if (is_foreign || !is_same(&merged.after, &now)) {
            size_t used = strlen(names);
            (void)snprintf(
                names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", merged.path
            ); // cut: the number says the rest
            foreign++;
        }
        changes->items[i].path = NULL;
        changes->items[kept++] = merged;
        i = next;
    }
    changes->count = kept;
    if (foreign > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "%zu of %zu files were changed by somebody else since: %s",
            foreign,
            kept,
            names
        );
    }
    return OK;
}

static result
put_back(struct workspace *workspace, const struct changes *changes, struct error *error) {
    for (size_t i = 0; i < changes->count; i++) { // removals first: as in workspace_restore
        if (changes->items[i].before.mode == 0) {
            TRY(tree_remove_file(workspace->root_fd, changes->items[i].path, error));
        }
    }
    for (size_t i = 0; i < changes->count; i++) {
        const struct change *change = &changes->items[i];
        if (change->before.mode != 0) {
            const git_diff_file file = {
                .id = change->before.id, .path = change->path, .mode = change->before.mode};
            TRY(write_path(workspace, &file, error));
        }
    }
    return OK;
}

result workspace_undo(
    struct workspace *workspace,
    const struct workspace_stretch *stretches,
    size_t count,
    struct workspace_undone *out,
    struct error *error
) {
    CLEANUP(fd_cleanup) int lock = -1;
    TRY(lock_directory(workspace->root_fd, workspace->directory, &lock, error));
    struct workspace_undone undone = {0};
    CLEANUP(changes_deinit) struct changes changes = {0};
    TRY(collect(workspace, stretches, count, &changes, error));
    struct workspace_snapshot present;
    TRY(workspace_take_snapshot(workspace, "before undoing", &present, error));
    memcpy(undone.before, present.commit, sizeof undone.before);
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    TRY(workspace_find_tree(workspace, present.commit, &tree, error));
    TRY(merge(&changes, tree, error));
    TRY(put_back(workspace, &changes, error));
    struct workspace_snapshot after;
    TRY(workspace_take_snapshot(workspace, "undone", &after, error));
    memcpy(undone.after, after.commit, sizeof undone.after);
    undone.files = changes.count;
    *out = undone;
    return OK;
}
