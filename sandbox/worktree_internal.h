/* Between worktree.c (makes copies), worktree_snapshot.c (files of a snapshot into a copy) and
 * worktree_use.c (leases, checks, removal). Internal to sandbox/. Thread: one at a time.
 *
 * What makes a copy ours, and tells whether it was changed, lies in its `.git`: a list of the files
 * as they were made (a git index, for its format alone: path, size, inode and times, which no
 * command can set back) and a list of its branches. `.git` is read-only to commands.
 */
#ifndef HEARTH_SANDBOX_WORKTREE_INTERNAL_H
#define HEARTH_SANDBOX_WORKTREE_INTERNAL_H

#include "workspace_internal.h"
#include "worktree.h"
#include "worktree_walk.h"

#define WORKTREE_FILES_NAME       "hearth-files"
#define WORKTREE_REFERENCES_NAME  "hearth-branches"
#define WORKTREE_SCRATCH_NAME     "hearth-scratch" /* in .git of a copy that is to be thrown away */
#define WORKTREE_PATH_BYTES_MAX   ((size_t)3800)
#define WORKTREE_PATH_BYTES       (WORKTREE_PATH_BYTES_MAX + 64)
#define WORKTREE_REFERENCES_BYTES ((size_t)64 << 20)
/* Ends the name of what is being put together or taken away; locked (flock) by who does it. */
#define WORKTREE_PARTIAL_SUFFIX ".partial-XXXXXX"

struct worktree_creation {
    const struct worktree_options *options;
    const char *directory; /* where it is put together, beside its place */
    int source_fd;
    int to_fd;
    git_index *files;            /* as they were made */
    struct workspace *snapshots; /* of the source; null: the files come as they are now */
    git_tree *tree;              /* of the snapshot */
    struct timespec last;        /* of all changes of files in the copy */
    bool has_clones;             /* the file system may share blocks: not refused yet */
    struct worktree made;
};

MUST_CHECK result worktree_join(
    char out[WORKTREE_PATH_BYTES], const char *directory, const char *name, struct error *error
);

/* `id` null: no object, the list is only looked up by path. */
void worktree_fill_entry(
    git_index_entry *entry, const char *path, const git_oid *id, const struct stat *about
);
bool worktree_is_same_entry(const git_index_entry *a, const git_index_entry *b);

/* Branches and HEAD as text, in libgit2's order. */
MUST_CHECK result
worktree_list_references(git_repository *repository, struct buffer *out, struct error *error);

/* A file or symlink that was made in the copy. Expected errors: LIMIT. */
MUST_CHECK result worktree_note_made(
    struct worktree_creation *creation,
    const char *path,
    const git_oid *id,
    const struct stat *about,
    struct error *error
);
void worktree_skip(struct worktree_creation *creation, const char *path);

/* The snapshot's files, from the source where they still are the same, else from the store; and from the
 * source what no snapshot holds: files of `tracked` (may be null) that are ignored or too large, all such
 * files when asked. Expected errors: IO, LIMIT. */
MUST_CHECK result
worktree_copy_snapshot(struct worktree_creation *creation, git_index *tracked, struct error *error);
/* Makes the copy's own snapshot store, with the snapshot in it as the latest one and a cache that knows
 * the copy's files. Expected errors: those of workspace_open, IO. */
MUST_CHECK result worktree_seed_store(struct worktree_creation *creation, struct error *error);

/* Makes DIRECTORY.partial-XXXXXX and locks it. Expected errors: IO. */
MUST_CHECK result worktree_make_partial(
    const char *directory, char partial[WORKTREE_PATH_BYTES], int *out_fd, struct error *error
);
/* A lease, shared or exclusive. Expected errors: those of worktree_lease. */
MUST_CHECK result
worktree_open_list(const char *directory, int operation, int *out_fd, struct error *error);

static inline void repository_cleanup(git_repository **repository) {
    git_repository_free(*repository);
}

static inline void index_cleanup(git_index **index) {
    git_index_free(*index);
}

#endif
