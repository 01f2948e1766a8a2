/* The way back to earlier snapshots: a whole tree, or what certain stretches of work changed. */
#include "workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lock.h"
#include "resolve.h"
#include "tree_files.h"

#define CHANGES_MAX       ((size_t)1000000) /* of all stretches */
#define NAMES_SHOWN_MAX   300
#define PENDING_BYTES_MAX ((size_t)16 << 20) /* of paths of directories still to visit */

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

/* ---- what no snapshot holds ------------------------------------------------------------------ */

static bool is_held(git_tree *tree, const char *path) {
    git_tree_entry *entry = NULL;
    bool held = git_tree_entry_bypath(&entry, tree, path) == 0 &&
                git_tree_entry_type(entry) != GIT_OBJECT_TREE;
    git_tree_entry_free(entry);
    return held;
}

/* Looks at the directory `path`; directories in it are appended to `pending`, NUL after each. True
 * when it is empty or has a file that `present` does not hold. */
static bool look_into(int root_fd, git_tree *present, const char *path, struct buffer *pending) {
    int fd = resolve_open(root_fd, path, O_RDONLY | O_DIRECTORY, 0, RESOLVE_CONFINE);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        fd_cleanup(&fd);
        return true;
    }
    size_t entries = 0;
    bool found = false;
    for (struct dirent *entry = readdir(directory); entry != NULL && !found;
         entry = readdir(directory)) {
        char child[TREE_PATH_BYTES_MAX + 1];
        struct stat about;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        entries += 1;
        int length = snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof child ||
            fstatat(dirfd(directory), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
            found = true;
        } else if (S_ISDIR(about.st_mode)) {
            found = is_failed(buffer_append(pending, view_of(child, (size_t)length + 1), NULL));
        } else {
            found = !is_held(present, child);
        }
    }
    closedir(directory);
    return found || entries == 0;
}

/* Whether the directory would stay, because something in it is no snapshot's to remove. */
static bool stays(int root_fd, git_tree *present, const char *directory) {
    CLEANUP(buffer_deinit) struct buffer pending;
    buffer_init(&pending, PENDING_BYTES_MAX);
    if (is_failed(buffer_append(&pending, view_of(directory, strlen(directory) + 1), NULL))) {
        return true;
    }
    for (size_t at = 0; at < pending.length;) {
        char path[TREE_PATH_BYTES_MAX + 1];
        size_t length = strlen((const char *)pending.data + at);
        ASSERT(length <= TREE_PATH_BYTES_MAX);
        memcpy(path, pending.data + at, length + 1); // the buffer moves as it grows
        if (look_into(root_fd, present, path, &pending)) {
            return true;
        }
        at += length + 1;
    }
    return false;
}

/* Whether something stands where a file that `present` lacks is to come, and is in no snapshot:
 * ignored, too large, a socket. It would be lost. */
static bool is_obstructed(const struct workspace *workspace, git_tree *present, const char *path) {
    char prefix[TREE_PATH_BYTES_MAX + 1];
    size_t length = strlen(path);
    if (length > TREE_PATH_BYTES_MAX) {
        return true;
    }
    memcpy(prefix, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        struct stat about;
        prefix[i] = '\0'; // all before was found to be directories
        if (fstatat(workspace->root_fd, prefix, &about, AT_SYMLINK_NOFOLLOW) != 0) {
            return errno != ENOENT;
        }
        if (!S_ISDIR(about.st_mode)) { // an ancestor goes when a snapshot holds it
            return !is_held(present, prefix);
        }
        if (path[i] == '\0') {
            return stays(workspace->root_fd, present, path);
        }
        prefix[i] = '/';
    }
    return false;
}

struct obstacles {
    size_t count;
    char names[NAMES_SHOWN_MAX];
};

static void note_obstacle(struct obstacles *obstacles, const char *path) {
    size_t used = strlen(obstacles->names);
    (void)snprintf(
        obstacles->names + used, sizeof obstacles->names - used, "%s%s", used > 0 ? ", " : "", path
    ); // cut: the number says the rest
    obstacles->count += 1;
}

static result refuse_obstacles(const struct obstacles *obstacles, struct error *error) {
    if (obstacles->count > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "in the way of %zu files is what no snapshot holds (ignored or too large), move it "
            "first: %s",
            obstacles->count,
            obstacles->names
        );
    }
    return OK;
}

/* A snapshot whose content is gone in part is noticed before anything is changed. */
static result check_content(
    struct workspace *workspace, const git_oid *id, const char *path, struct error *error
) {
    git_odb *objects = NULL;
    TRY_GIT(git_repository_odb(&objects, workspace->repository), "opening the snapshot store");
    int found = git_odb_exists(objects, id);
    git_odb_free(objects);
    if (found == 0) {
        FAIL(error, NOT_FOUND, "the snapshot store has lost the content of '%s'", path);
    }
    return OK;
}

static result check_obstacles(
    struct workspace *workspace, git_tree *present, git_diff *diff, struct error *error
) {
    struct obstacles obstacles = {0};
    for (size_t i = 0; i < git_diff_num_deltas(diff); i++) {
        const git_diff_delta *delta = git_diff_get_delta(diff, i);
        if (delta->status != GIT_DELTA_DELETED) {
            TRY(check_content(workspace, &delta->new_file.id, delta->new_file.path, error));
        }
        if (delta->status == GIT_DELTA_ADDED &&
            is_obstructed(workspace, present, delta->new_file.path)) {
            note_obstacle(&obstacles, delta->new_file.path);
        }
    }
    return refuse_obstacles(&obstacles, error);
}

/* ---- restore -------------------------------------------------------------------------------- */

static result apply(struct workspace *workspace, git_diff *diff, struct error *error) {
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
    return OK;
}

/* Names the files in which the tree is not `expected`. */
static result check_expected(
    struct workspace *workspace, git_tree *expected, git_tree *present, struct error *error
) {
    CLEANUP(diff_cleanup) git_diff *diff = NULL;
    TRY(workspace_compare_trees(workspace, expected, present, &diff, error));
    struct obstacles changed = {0};
    for (size_t i = 0; i < git_diff_num_deltas(diff); i++) {
        note_obstacle(&changed, git_diff_get_delta(diff, i)->new_file.path);
    }
    if (changed.count > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "%zu files of '%.100s' were changed since: %s",
            changed.count,
            workspace->directory,
            changed.names
        );
    }
    return OK;
}

result workspace_restore_from(
    struct workspace *workspace,
    const char *expected,
    const char *commit,
    struct workspace_snapshot *before,
    struct error *error
) {
    // The same lock as a sandboxed command's: none can start or run while files are put back.
    CLEANUP(fd_cleanup) int lock = -1;
    TRY(lock_directory(workspace->root_fd, workspace->directory, &lock, error));
    // Nothing is collected meanwhile.
    TRY(workspace_store_lock(workspace, error));
    CLEANUP(store_lock_cleanup) struct workspace *locked = workspace;
    ASSERT(locked->lock_depth > 0);
    CLEANUP(tree_cleanup) git_tree *target = NULL;
    CLEANUP(tree_cleanup) git_tree *should_be = NULL;
    TRY(workspace_find_tree(workspace, commit, &target, error));
    if (expected != NULL) {
        TRY(workspace_find_tree(workspace, expected, &should_be, error));
    }
    struct workspace_snapshot present;
    TRY(workspace_take_snapshot(workspace, "before restoring", &present, error));
    CLEANUP(tree_cleanup) git_tree *from = NULL;
    TRY(workspace_find_tree(workspace, present.commit, &from, error));
    if (should_be != NULL) {
        TRY(check_expected(workspace, should_be, from, error));
    }
    CLEANUP(diff_cleanup) git_diff *diff = NULL;
    TRY(workspace_compare_trees(workspace, from, target, &diff, error));
    TRY(check_obstacles(workspace, from, diff, error));
    TRY_NOTE(
        error, apply(workspace, diff, error), "what was there before is snapshot %s", present.commit
    );
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

result workspace_restore(
    struct workspace *workspace,
    const char *commit,
    struct workspace_snapshot *before,
    struct error *error
) {
    return workspace_restore_from(workspace, NULL, commit, before, error);
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
        if (!is_foreign && is_same(&merged.before, &now)) { // somebody took it back already
            free(merged.path);
            changes->items[i].path = NULL;
            i = next;
            continue;
        }
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

static result check_changes(
    struct workspace *workspace,
    git_tree *present,
    const struct changes *changes,
    struct error *error
) {
    struct obstacles obstacles = {0};
    for (size_t i = 0; i < changes->count; i++) {
        const struct change *change = &changes->items[i];
        if (change->before.mode != 0) {
            TRY(check_content(workspace, &change->before.id, change->path, error));
        }
        if (change->after.mode == 0 && is_obstructed(workspace, present, change->path)) {
            note_obstacle(&obstacles, change->path);
        }
    }
    return refuse_obstacles(&obstacles, error);
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
    // Nothing is collected meanwhile.
    TRY(workspace_store_lock(workspace, error));
    CLEANUP(store_lock_cleanup) struct workspace *locked = workspace;
    ASSERT(locked->lock_depth > 0);
    struct workspace_undone undone = {0};
    CLEANUP(changes_deinit) struct changes changes = {0};
    TRY(collect(workspace, stretches, count, &changes, error));
    struct workspace_snapshot present;
    TRY(workspace_take_snapshot(workspace, "before undoing", &present, error));
    memcpy(undone.before, present.commit, sizeof undone.before);
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    TRY(workspace_find_tree(workspace, present.commit, &tree, error));
    TRY(merge(&changes, tree, error));
    TRY(check_changes(workspace, tree, &changes, error));
    TRY_NOTE(
        error,
        put_back(workspace, &changes, error),
        "what was there before is snapshot %s",
        present.commit
    );
    struct workspace_snapshot after;
    TRY(workspace_take_snapshot(workspace, "undone", &after, error));
    memcpy(undone.after, after.commit, sizeof undone.after);
    undone.files = changes.count;
    *out = undone;
    return OK;
}
