/* Leases of copies, whether they were changed, their removal, and what dead owners left. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "lock.h"
#include "resolve.h"
#include "worktree_internal.h"

#define NAMES_BYTES_MAX ((size_t)16 << 20) /* of one directory */

/* ---- use and removal ------------------------------------------------------------------------ */

/* The list of files, which every copy of ours has, opened and locked. */
result worktree_open_list(const char *directory, int operation, int *out_fd, struct error *error) {
    char path[WORKTREE_PATH_BYTES];
    TRY(worktree_join(path, directory, ".git/" WORKTREE_FILES_NAME, error));
    CLEANUP(fd_cleanup) int fd = resolve_open(AT_FDCWD, path, O_RDONLY, 0, RESOLVE_NO_MAGICLINKS);
    if (fd < 0) {
        FAIL_FOREIGN(
            error, NOT_FOUND, errno, "'%.300s' is no copy of a workspace made by Hearth", directory
        );
    }
    if (flock(fd, operation | LOCK_NB) != 0) {
        FAIL_FOREIGN(error, LIMIT, errno, "'%.300s' is in use, or about to be removed", directory);
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}

result worktree_lease(const char *directory, int *out_fd, struct error *error) {
    return worktree_open_list(directory, LOCK_SH, out_fd, error);
}

void worktree_release(int *fd) {
    if (*fd >= 0) {
        (void)flock(*fd, LOCK_UN); /* of all copies of the descriptor */
    }
    fd_cleanup(fd);
    *fd = -1;
}

struct checking {
    git_index *files;
    git_tree *saved; /* of a snapshot of all that is there; null: none */
    size_t found;
    size_t changed;
    char names[WORKTREE_NAMES_BYTES];
};

static bool is_saved(const struct checking *checking, const char *path) {
    git_tree_entry *entry = NULL;
    bool saved = checking->saved != NULL &&
                 git_tree_entry_bypath(&entry, checking->saved, path) == 0 &&
                 git_tree_entry_type(entry) == GIT_OBJECT_BLOB;
    git_tree_entry_free(entry);
    return saved;
}

static void note_change(void *context, const char *path) {
    struct checking *checking = context;
    checking->changed += 1;
    worktree_note_name(checking->names, sizeof checking->names, path);
}

static result
check_visited(void *context, const struct worktree_entry *entry, struct error *error) {
    struct checking *checking = context;
    (void)error;
    if (S_ISDIR(entry->about->st_mode)) {
        return OK; // empty ones are no work
    }
    git_index_entry now;
    worktree_fill_entry(&now, entry->path, NULL, entry->about);
    const git_index_entry *made = git_index_get_bypath(checking->files, entry->path, 0);
    checking->found += made != NULL ? 1 : 0;
    if ((made == NULL || !worktree_is_same_entry(made, &now)) && !is_saved(checking, entry->path)) {
        note_change(checking, entry->path);
    }
    return OK;
}

static result check_references(
    git_repository *copy, const char *directory, struct checking *checking, struct error *error
) {
    char path[WORKTREE_PATH_BYTES];
    CLEANUP(buffer_deinit) struct buffer now;
    CLEANUP(buffer_deinit) struct buffer made;
    buffer_init(&now, WORKTREE_REFERENCES_BYTES);
    buffer_init(&made, WORKTREE_REFERENCES_BYTES);
    TRY(worktree_join(path, directory, ".git/" WORKTREE_REFERENCES_NAME, error));
    TRY(file_read(path, &made, error));
    TRY(worktree_list_references(copy, &now, error));
    if (!view_equals(buffer_view(&made), buffer_view(&now))) {
        note_change(checking, "(branches)");
    }
    return OK;
}

static result check(const char *directory, struct checking *checking, struct error *error) {
    char path[WORKTREE_PATH_BYTES];
    CLEANUP(repository_cleanup) git_repository *copy = NULL;
    CLEANUP(index_cleanup) git_index *files = NULL;
    TRY(workspace_prepare_library(error));
    TRY_GIT(
        git_repository_open_ext(&copy, directory, GIT_REPOSITORY_OPEN_NO_SEARCH, NULL),
        "opening the copy"
    );
    TRY(worktree_join(path, directory, ".git/" WORKTREE_FILES_NAME, error));
    TRY_GIT(git_index_open(&files, path), "reading the list of files");
    checking->files = files;
    CLEANUP(fd_cleanup) int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    const struct worktree_walk walk = {
        .root_fd = root,
        .ignore = copy,
        .tracked = files,
        .visit = check_visited,
        .skip = note_change,
        .context = checking,
    };
    TRY(worktree_walk(&walk, error));
    if (checking->saved == NULL && checking->found != git_index_entrycount(files)) {
        note_change(checking, "(files are gone)");
    }
    checking->files = NULL;
    return check_references(copy, directory, checking, error);
}

result worktree_is_dirty(
    const char *directory, bool *out, char names[WORKTREE_NAMES_BYTES], struct error *error
) {
    CLEANUP(worktree_release) int lease = -1;
    TRY(worktree_lease(directory, &lease, error));
    struct checking checking = {.changed = 0};
    TRY(check(directory, &checking, error));
    *out = checking.changed > 0;
    memcpy(names, checking.names, sizeof checking.names);
    return OK;
}

/* Out of sight in one step, so that what is half removed is taken for neither a copy nor work. */
static result take_away(const char *directory, int root_fd, struct error *error) {
    char partial[WORKTREE_PATH_BYTES];
    CLEANUP(fd_cleanup) int place = -1;
    if (flock(root_fd, LOCK_EX | LOCK_NB) != 0) {
        FAIL_FOREIGN(error, LIMIT, errno, "'%.300s' is in use", directory);
    }
    TRY(worktree_make_partial(directory, partial, &place, error));
    if (rename(directory, partial) != 0) { // onto the empty directory
        int number = errno;
        (void)rmdir(partial);
        FAIL_FOREIGN(error, IO, number, "'%.300s': %s", directory, strerror(number));
    }
    TRY(worktree_clear(root_fd, error));
    if (rmdir(partial) != 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", partial, strerror(errno));
    }
    return OK;
}

/* The tree of the snapshot, if the copy is what it says. Holds all locks of the copy. */
static result find_saved(
    const char *directory,
    struct workspace *workspace,
    const char *commit,
    git_tree **out,
    struct error *error
) {
    struct workspace_snapshot now;
    CLEANUP(tree_cleanup) git_tree *saved = NULL;
    CLEANUP(tree_cleanup) git_tree *present = NULL;
    CLEANUP(diff_cleanup) git_diff *diff = NULL;
    TRY(workspace_find_tree(workspace, commit, &saved, error));
    TRY(workspace_take_snapshot(workspace, "before the copy is removed", &now, error));
    TRY(workspace_find_tree(workspace, now.commit, &present, error));
    TRY(workspace_compare_trees(workspace, saved, present, &diff, error));
    if (git_diff_num_deltas(diff) > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%.150s' has changes that would be lost: %.200s",
            directory,
            git_diff_get_delta(diff, 0)->new_file.path
        );
    }
    *out = TAKE(saved);
    return OK;
}

static result remove_copy(
    const char *directory, struct workspace *workspace, const char *commit, struct error *error
) {
    CLEANUP(worktree_release) int list = -1;
    CLEANUP(fd_cleanup) int lock = -1;
    CLEANUP(tree_cleanup) git_tree *saved = NULL;
    TRY(worktree_open_list(directory, LOCK_EX, &list, error));
    CLEANUP(fd_cleanup) int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    TRY(lock_directory(root, directory, &lock, error));
    if (workspace != NULL) {
        TRY(find_saved(directory, workspace, commit, &saved, error));
    }
    struct checking checking = {.saved = saved};
    TRY(check(directory, &checking, error));
    if (checking.changed > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%.150s' has %zu changes that would be lost: %.200s",
            directory,
            checking.changed,
            checking.names
        );
    }
    return take_away(directory, root, error);
}

result worktree_remove(const char *directory, struct error *error) {
    return remove_copy(directory, NULL, NULL, error);
}

result worktree_remove_saved(
    const char *directory, const char *snapshots, const char *commit, struct error *error
) {
    CLEANUP(worktree_release) int list = -1;
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    TRY(worktree_open_list(directory, LOCK_SH, &list, error)
    ); // a copy, before a store is made for it
    TRY(workspace_open(directory, snapshots, &workspace, error));
    worktree_release(&list);
    return remove_copy(directory, workspace, commit, error);
}

/* ---- what is thrown away ------------------------------------------------------------------------ */

static bool is_scratch(const char *directory) {
    char path[WORKTREE_PATH_BYTES];
    return is_ok(worktree_join(path, directory, ".git/" WORKTREE_SCRATCH_NAME, NULL)) &&
           access(path, F_OK) == 0;
}

result worktree_discard(const char *directory, struct error *error) {
    CLEANUP(worktree_release) int list = -1;
    CLEANUP(fd_cleanup) int lock = -1;
    TRY(worktree_open_list(directory, LOCK_EX, &list, error));
    if (!is_scratch(directory)) {
        FAIL(error, INVALID_INPUT, "'%.300s' is no copy to be thrown away", directory);
    }
    CLEANUP(fd_cleanup) int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    TRY(lock_directory(root, directory, &lock, error));
    return take_away(directory, root, error);
}

result worktree_remove_store(const char *store, struct error *error) {
    char path[WORKTREE_PATH_BYTES];
    TRY(worktree_join(path, store, "objects", error));
    CLEANUP(fd_cleanup)
    int root = open(store, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root < 0 || access(path, F_OK) != 0) {
        FAIL(error, NOT_FOUND, "there is no snapshot store '%.300s'", store);
    }
    return take_away(store, root, error);
}

/* ---- sweep ---------------------------------------------------------------------------------- */

static bool is_partial(const char *name) {
    size_t suffix = strlen(WORKTREE_PARTIAL_SUFFIX);
    size_t fixed = suffix - strlen("XXXXXX");
    size_t length = strlen(name);
    return length > suffix && strncmp(name + length - suffix, WORKTREE_PARTIAL_SUFFIX, fixed) == 0;
}

/* What a killed process was putting together or taking away. */
static result sweep_partial(const char *path, bool is_trial, struct worktree_swept *swept) {
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = open(path, flags);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        swept->in_use += fd >= 0 ? 1 : 0;
        return OK;
    }
    if (is_trial) {
        swept->removed += 1;
        return OK;
    }
    TRY(worktree_clear(fd, NULL));
    if (rmdir(path) != 0) {
        return error_set(NULL, RESULT_IO, errno, __FILE__, __LINE__, "'%s'", path);
    }
    swept->removed += 1;
    return OK;
}

static result try_removal(const char *path) {
    char names[WORKTREE_NAMES_BYTES];
    bool is_dirty = false;
    if (is_scratch(path)) {
        return OK;
    }
    TRY(worktree_is_dirty(path, &is_dirty, names, NULL));
    return is_dirty ? (result){RESULT_INVALID_INPUT} : OK;
}

static result sweep_copy(const char *path, bool is_trial, struct worktree_swept *swept) {
    result removed = is_trial           ? try_removal(path)
                     : is_scratch(path) ? worktree_discard(path, NULL)
                                        : worktree_remove(path, NULL);
    if (removed.code == RESULT_LIMIT) {
        swept->in_use += 1;
        return OK;
    }
    swept->removed += is_ok(removed) ? 1 : 0;
    return removed.code == RESULT_NOT_FOUND ? OK : removed; // no copy of ours
}

result worktree_list_names(const char *directory, struct buffer *names, struct error *error) {
    DIR *entries = opendir(directory);
    result listed = OK;
    if (entries == NULL && errno == ENOENT) {
        return OK;
    }
    if (entries == NULL) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    for (struct dirent *entry = readdir(entries); entry != NULL && is_ok(listed);
         entry = readdir(entries)) {
        if (entry->d_name[0] != '.') {
            struct view name = view_of(entry->d_name, strlen(entry->d_name) + 1);
            listed = buffer_append(names, name, error);
        }
    }
    closedir(entries);
    return listed;
}

result worktree_sweep(
    const char *directory, bool is_trial, struct worktree_swept *out, struct error *error
) {
    struct worktree_swept swept = {.removed = 0};
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, NAMES_BYTES_MAX);
    TRY(worktree_list_names(directory, &names, error));
    for (size_t at = 0; at < names.length;) {
        char path[WORKTREE_PATH_BYTES];
        const char *name = (const char *)names.data + at;
        TRY(worktree_join(path, directory, name, error));
        result done = is_partial(name) ? sweep_partial(path, is_trial, &swept)
                                       : sweep_copy(path, is_trial, &swept);
        if (is_failed(done)) {
            swept.kept += 1;
            worktree_note_name(swept.kept_names, sizeof swept.kept_names, name);
        }
        at += strlen(name) + 1;
    }
    *out = swept;
    return OK;
}
