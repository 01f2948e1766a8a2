/* Copies of a workspace with a repository of their own, for work that must not touch the original.
 *
 * The files are copied as they are (tracked and untracked; ignored ones when asked); objects of the
 * user's repository are linked, never written; `.git` of the copy is a directory of its own, also
 * when the original has a file there (a git worktree or submodule). Branches and tags come along,
 * configuration, remotes, hooks and stashes do not; nor do `.git`s further below.
 *
 * A copy is kept while anybody works in it (a lease) or anything in it differs from how it was made and
 * is not in a snapshot; the functions that remove one refuse otherwise. A scratch copy is made to be
 * thrown away, with whatever was changed in it.
 * Thread: any; calls block on the disk, so use a worker.
 */
#ifndef HEARTH_SANDBOX_WORKTREE_H
#define HEARTH_SANDBOX_WORKTREE_H

#include "base/bytes.h"

#define WORKTREE_COMMIT_BYTES 41 /* 40 hex digits and NUL */
#define WORKTREE_NAMES_BYTES  480
#define WORKTREE_FILES_MAX    ((size_t)500000)
#define WORKTREE_BYTES_MAX    ((uint64_t)64 << 30) /* of all files copied */

struct worktree_options {
    const char *source; /* the workspace */
    const char
        *directory; /* absolute path of the copy: missing, its parent there, outside of source */
    const char *branch; /* made at the source's HEAD and checked out; null: HEAD is detached */
    bool with_ignored;
    bool is_scratch;
    /* Null: the files as they are now. Else as they are in snapshot `commit` of the source's store
     * `snapshots` (workspace.h); commands may run in the source, unless ignored files are to come along.
     * Files that no snapshot holds come from the source, if they are tracked or with_ignored. */
    const char *snapshots, *commit;
    /* With `commit`: where the copy's own store of snapshots is made, with that snapshot in it under the
     * same name; the first one of the copy then reads only what was changed. Null: none is made. */
    const char *own_snapshots;
    int *
        lease; /* receives one of the copy (worktree_lease), taken before it can be found; may be null */
};

struct worktree {
    char
        head[WORKTREE_COMMIT_BYTES]; /* commit that the work builds on; "" when there is none yet */
    size_t files;
    uint64_t bytes;
    size_t skipped; /* unreadable, changed while it was read, or no file: sockets, pipes, devices */
    char skipped_names[WORKTREE_NAMES_BYTES];
};

/* Makes the copy; on failure nothing is left. No command may be running in the source (but see
 * `commit`). A source without a repository gets one in the copy, with a first commit of the files.
 * Expected errors: INVALID_INPUT (paths, a .git that is not the workspace's, an existing directory),
 * LIMIT (too large, or a command runs there), NOT_FOUND (no such snapshot), UNSUPPORTED (a repository
 * that libgit2 cannot read), IO. */
MUST_CHECK result
worktree_create(const struct worktree_options *options, struct worktree *out, struct error *error);

/* Keeps the copy from being removed, by this and other processes, until the descriptor is closed or
 * the process ends. Expected errors: NOT_FOUND (no copy of ours), LIMIT (being removed), IO. */
MUST_CHECK result worktree_lease(const char *directory, int *out_fd, struct error *error);
/* Gives a lease back at once, *fd is -1 then; closing alone does not where a process is being started, which has a
 * copy of the descriptor until it runs its program. Accepts -1. Usable with CLEANUP. */
void worktree_release(int *fd);

/* Whether files or branches differ from how the copy was made; `names` has the first few. What is
 * ignored and was not copied does not count. Expected errors: NOT_FOUND (no copy of ours), IO. */
MUST_CHECK result worktree_is_dirty(
    const char *directory, bool *out, char names[WORKTREE_NAMES_BYTES], struct error *error
);

/* Removes a copy in which nothing was changed. Expected errors: NOT_FOUND (no copy of ours),
 * INVALID_INPUT (dirty: names what), LIMIT (somebody works there), IO. */
MUST_CHECK result worktree_remove(const char *directory, struct error *error);

/* The same, where what was changed may be in snapshot `commit` of the copy's store `snapshots`: a copy whose
 * files are what they are there is removed. Expected errors: as worktree_remove, NOT_FOUND also for the
 * snapshot. */
MUST_CHECK result worktree_remove_saved(
    const char *directory, const char *snapshots, const char *commit, struct error *error
);

/* Removes a scratch copy, whatever is in it. Expected errors: NOT_FOUND (no copy of ours), INVALID_INPUT (no
 * scratch copy), LIMIT (somebody works there), IO. */
MUST_CHECK result worktree_discard(const char *directory, struct error *error);

/* Removes a store of snapshots (workspace.h) with all that is in it: that of a copy which is gone. Nobody may have
 * it open. Expected errors: NOT_FOUND (no store), LIMIT (in use), IO. */
MUST_CHECK result worktree_remove_store(const char *store, struct error *error);

struct worktree_swept {
    size_t removed;
    size_t in_use;
    size_t kept; /* dirty, or could not be removed */
    char kept_names[WORKTREE_NAMES_BYTES];
};

/* Looks at all copies in a directory that is for copies alone: those that nobody works in (a lease ends
 * with its process) and in which nothing was changed are removed, and scratch copies, and what was left half
 * made or half removed. Whatever is no copy is left alone. No such directory: nothing to do. A trial removes nothing and
 * counts what would be, as if nobody worked anywhere. Expected errors: IO. */
MUST_CHECK result worktree_sweep(
    const char *directory, bool is_trial, struct worktree_swept *out, struct error *error
);

/* Appends the names in a directory that do not begin with a dot, each with its NUL; no such directory: none.
 * Expected errors: IO, LIMIT (of the buffer). */
MUST_CHECK result
worktree_list_names(const char *directory, struct buffer *names, struct error *error);

#endif
