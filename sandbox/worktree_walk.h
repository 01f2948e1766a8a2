/* Walks the files of a working tree as git would see them, and copies or removes trees. Internal to
 * sandbox/worktree*.c. Thread: one at a time.
 */
#ifndef HEARTH_SANDBOX_WORKTREE_WALK_H
#define HEARTH_SANDBOX_WORKTREE_WALK_H

#include <git2.h>
#include <sys/stat.h>

#include "worktree.h"

struct worktree_entry {
    int directory_fd; /* of its parent */
    const char *name;
    const char *path; /* below the root */
    const struct stat *about;
};

struct worktree_walk {
    int root_fd;
    git_repository *ignore; /* decides what .gitignore ignores */
    git_index *tracked;     /* comes along even when ignored; may be null */
    bool with_ignored;
    /* For every directory (before what is in it), file and symlink, and whatever else. */
    result (*visit)(void *context, const struct worktree_entry *entry, struct error *error);
    /* A directory that cannot be read. */
    void (*skip)(void *context, const char *path);
    void *context;
};

/* `.git` is never visited, at any depth. Expected errors: those of visit, LIMIT, MEMORY. */
MUST_CHECK result worktree_walk(const struct worktree_walk *walk, struct error *error);

/* Copies one file or symlink to `path` below `to_fd`, a tree that nobody else writes; mode and time
 * of change come along, special bits do not. *copied false: it cannot be read or is no file.
 * Expected errors: IO. */
MUST_CHECK result worktree_copy_entry(
    int to_fd, const struct worktree_entry *entry, bool *copied, struct error *error
);

/* The rest of `from` to `to`, by sharing blocks where the file system can; *has_clones is made false where
 * it cannot. `bytes` is what is expected. Returns 0 or errno. */
int worktree_copy_bytes(int from, int to, uint64_t bytes, bool *has_clones);

/* Links the files of a directory of objects into another, or copies them where that is on another
 * file system. Missing source: nothing. Expected errors: IO, LIMIT. */
MUST_CHECK result worktree_link_objects(const char *from, const char *to, struct error *error);

/* Removes everything below `fd` (a directory), whatever its modes and depth. Expected errors: IO. */
MUST_CHECK result worktree_clear(int fd, struct error *error);

/* Appends `name` to a list with blanks, while it fits. */
void worktree_note_name(char *names, size_t bytes, const char *name);

#endif
