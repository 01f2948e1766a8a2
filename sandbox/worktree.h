/* Copies of a workspace with a repository of their own, for work that must not touch the original.
 *
 * The files are copied as they are (tracked and untracked; ignored ones when asked); objects of the
 * user's repository are linked, never written; `.git` of the copy is a directory of its own, also
 * when the original has a file there (a git worktree or submodule). Branches and tags come along,
 * configuration, remotes, hooks and stashes do not; nor do `.git`s further below.
 *
 * A copy is kept while anybody works in it (a lease) or anything in it differs from how it was made;
 * worktree_remove refuses otherwise, and nothing else removes one.
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
};

struct worktree {
    char
        head[WORKTREE_COMMIT_BYTES]; /* commit that the work builds on; "" when there is none yet */
    size_t files;
    uint64_t bytes;
    size_t skipped; /* unreadable, or no file: sockets, pipes, devices */
    char skipped_names[WORKTREE_NAMES_BYTES];
};

/* Makes the copy; on failure nothing is left. No command may be running in the source. A source
 * without a repository gets one in the copy, with a first commit of the files. Expected errors:
 * INVALID_INPUT (paths, a .git that is not the workspace's, an existing directory), LIMIT (too
 * large, or a command runs there), UNSUPPORTED (a repository that libgit2 cannot read), IO. */
MUST_CHECK result
worktree_create(const struct worktree_options *options, struct worktree *out, struct error *error);

/* Keeps the copy from being removed, by this and other processes, until the descriptor is closed or
 * the process ends. Expected errors: NOT_FOUND (no copy of ours), LIMIT (being removed), IO. */
MUST_CHECK result worktree_lease(const char *directory, int *out_fd, struct error *error);

/* Whether files or branches differ from how the copy was made; `names` has the first few. What is
 * ignored and was not copied does not count. Expected errors: NOT_FOUND (no copy of ours), IO. */
MUST_CHECK result worktree_is_dirty(
    const char *directory, bool *out, char names[WORKTREE_NAMES_BYTES], struct error *error
);

/* Removes a copy in which nothing was changed. Expected errors: NOT_FOUND (no copy of ours),
 * INVALID_INPUT (dirty: names what), LIMIT (somebody works there), IO. */
MUST_CHECK result worktree_remove(const char *directory, struct error *error);

#endif
