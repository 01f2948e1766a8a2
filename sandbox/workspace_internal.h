/* Between workspace.c (snapshots), workspace_undo.c (the way back), workspace_store.c (the store on disk),
 * workspace_collect.c (what goes from it) and worktree*.c (copies). Internal to sandbox/. Thread: one at a time per object.
 */
#ifndef HEARTH_SANDBOX_WORKSPACE_INTERNAL_H
#define HEARTH_SANDBOX_WORKSPACE_INTERNAL_H

#include "workspace.h"

#include <git2.h>
#include <stdatomic.h>
#include <sys/stat.h>

struct workspace {
    char *directory; /* null: the store alone is open, as root_fd and ignore */
    int root_fd;
    int store_fd;               /* directory; locked while objects are written or removed */
    int lock_depth;             /* of workspace_store_lock */
    git_repository *repository; /* bare: attributes of the tree do not influence comparisons */
    git_repository *ignore;     /* the same store with the tree attached, for .gitignore alone */
    git_index *cache;
    atomic_int_least64_t until_ms; /* written by any thread; a late read costs one more file */
};

/* Initialises libgit2: nothing of the user's or the system's git configuration applies, no filters,
 * no excludes, no attributes. Expected errors: IO. */
MUST_CHECK result workspace_prepare_library(struct error *error);
/* libgit2's last failure as an error. */
MUST_CHECK result workspace_git_failed(struct error *error, int status, const char *what);

#define TRY_GIT(call, what)                                                                        \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ < 0) {                                                                         \
            return workspace_git_failed(error, status_, (what));                                   \
        }                                                                                          \
    } while (0)

static inline void tree_cleanup(git_tree **tree) {
    git_tree_free(*tree);
}

static inline void diff_cleanup(git_diff **diff) {
    git_diff_free(*diff);
}

static inline void blob_cleanup(git_blob **blob) {
    git_blob_free(*blob);
}

#define WORKSPACE_SNAPSHOT_REFERENCE "refs/heads/snapshots" /* the latest one */
#define WORKSPACE_CACHE_NAME         "stat-cache"
#define WORKSPACE_OBJECTS_MAX        ((size_t)1 << 25) /* a GiB of names */

/* One writer of the store at a time, across processes. May be taken again by who holds it; released as
 * often by workspace_store_unlock. Expected errors: LIMIT, TIMEOUT (see workspace_limit_time), IO. */
MUST_CHECK result workspace_store_lock(struct workspace *workspace, struct error *error);
void workspace_store_unlock(struct workspace *workspace);

/* For CLEANUP, behind a workspace_store_lock that worked. */
static inline void store_lock_cleanup(struct workspace **workspace) {
    workspace_store_unlock(*workspace);
}

/* With the lock: what workspace_measure knows no longer holds. */
void workspace_store_grows(struct workspace *workspace);
/* With the lock: what it is to know. */
void workspace_store_has(struct workspace *workspace, uint64_t bytes);

/* A regular file in objects/00 to ff; `id` null: not an object, what a killed writer left. */
typedef result (*store_visit
)(void *context, const char *name, const git_oid *id, const struct stat *about, struct error *error
);
MUST_CHECK result workspace_store_visit(
    struct workspace *workspace, store_visit visit, void *context, struct error *error
);

/* A directory of the store; its files are named as snapshots that no reference leads to, from an import
 * or a merge, and as old as the last time that somebody made one. They are collected when they are older
 * than workspace_collect's age_s. */
#define WORKSPACE_KEPT_NAME "kept"
/* With the lock, before the snapshot is made. Expected errors: IO. */
MUST_CHECK result
workspace_keep(struct workspace *workspace, const git_oid *commit, struct error *error);

/* With the lock: the cache as another process left it, which may have removed objects that only an older
 * one names. */
MUST_CHECK result workspace_read_cache(struct workspace *workspace, struct error *error);

/* Expected errors: TIMEOUT. */
MUST_CHECK result workspace_check_time(const struct workspace *workspace, struct error *error);

/* The tree of a snapshot. Expected errors: NOT_FOUND. */
MUST_CHECK result workspace_find_tree(
    struct workspace *workspace, const char *commit, git_tree **out, struct error *error
);
MUST_CHECK result workspace_compare_trees(
    struct workspace *workspace, git_tree *from, git_tree *to, git_diff **out, struct error *error
);

/* Brings a snapshot, or a directory of one, to another store or repository whose objects/ is in `to_fd`;
 * files of objects are linked where they can be. With the lock of a store that receives them. Expected
 * errors: NOT_FOUND, CORRUPT, IO. */
MUST_CHECK result workspace_link_snapshot(
    const struct workspace *from, const git_oid *commit, struct workspace *to, struct error *error
);
MUST_CHECK result workspace_link_tree(
    const struct workspace *from,
    const git_oid *tree,
    git_repository *to,
    int to_fd,
    struct error *error
);

/* workspace_restore, refused with INVALID_INPUT and names where the tree is not what it is in
 * `expected` (null: whatever it is). */
MUST_CHECK result workspace_restore_from(
    struct workspace *workspace,
    const char *expected,
    const char *commit,
    struct workspace_snapshot *before,
    struct error *error
);

#endif
