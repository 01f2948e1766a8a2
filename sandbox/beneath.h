/* File functions that cannot leave a root directory: the kernel resolves every path below an open
 * descriptor (openat2 with RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS, NO_XDEV), so that neither
 * "..", links nor a race with a running command leads outside.
 *
 * Paths are relative, bytes without NUL, at most BENEATH_PATH_BYTES_MAX. Changing functions also
 * refuse `.git` and files that host tools act upon (.envrc, .vscode, ...). Each refusal names
 * itself: "outside", "symlink", "protected", "not a regular file", ... Thread: any.
 */
#ifndef HEARTH_SANDBOX_BENEATH_H
#define HEARTH_SANDBOX_BENEATH_H

#include "base/bytes.h"

#define BENEATH_PATH_BYTES_MAX  ((size_t)4000)
#define BENEATH_READ_BYTES_MAX  ((size_t)1 << 20)
#define BENEATH_WRITE_BYTES_MAX ((size_t)16 << 20)
#define BENEATH_ENTRIES_MAX     ((size_t)100000)

struct beneath; /* an open root */

/* Expected errors: NOT_FOUND, INVALID_INPUT (no directory), UNSUPPORTED (no openat2). */
MUST_CHECK result beneath_open(const char *root, struct beneath **out, struct error *error);
void beneath_close(struct beneath *root);
void beneath_cleanup(struct beneath **root); /* for CLEANUP */

enum beneath_kind { BENEATH_FILE, BENEATH_DIRECTORY, BENEATH_SYMLINK, BENEATH_OTHER };

struct beneath_info {
    enum beneath_kind kind;
    uint64_t bytes;
    uint64_t mtime_ns;
    bool executable;
};

/* Does not follow a symlink at the end. Expected errors: NOT_FOUND, INVALID_INPUT (refused), IO. */
MUST_CHECK result beneath_stat(
    const struct beneath *root, const char *path, struct beneath_info *out, struct error *error
);

/* Appends at most `length_max` bytes from `offset` of a regular file to `out`; never waits on a
 * FIFO. `info` (may be null) has the size of the whole file.
 * Expected errors: NOT_FOUND, INVALID_INPUT (refused), IO. */
MUST_CHECK result beneath_read(
    const struct beneath *root,
    const char *path,
    uint64_t offset,
    size_t length_max,
    struct buffer *out,
    struct beneath_info *info,
    struct error *error
);

/* Replaces or creates a regular file through a temporary one and rename: other names of the old
 * file (hard links) keep the old content. Permission bits are kept without setuid and setgid;
 * 0644 for a new file. Parents must exist. Expected errors: NOT_FOUND (parent), INVALID_INPUT
 * (refused), LIMIT, IO. */
MUST_CHECK result beneath_write(
    const struct beneath *root, const char *path, struct view content, struct error *error
);

/* Creates one directory, or with `parents` all that are missing (an existing one is then fine). */
MUST_CHECK result
beneath_mkdir(const struct beneath *root, const char *path, bool parents, struct error *error);

/* Removes a file, a symlink itself, or an empty directory. Expected errors: NOT_FOUND,
 * INVALID_INPUT (refused), IO. */
MUST_CHECK result beneath_remove(const struct beneath *root, const char *path, struct error *error);

/* Moves a regular file with its permission bits to a name that is free; its directory must exist.
 * Expected errors: NOT_FOUND, INVALID_INPUT (refused, or the name is taken), IO. */
MUST_CHECK result
beneath_rename(const struct beneath *root, const char *from, const char *to, struct error *error);

struct beneath_entry {
    const char *name; /* any bytes but NUL and '/'; may be invalid UTF-8 */
    struct beneath_info info;
};

struct beneath_list {
    struct beneath_entry *entries; /* sorted by name, bytewise */
    size_t count;
    char *names;    /* what the entries' names point into */
    bool truncated; /* more than entries_max were there */
};

/* Lists one directory ("" or "." is the root). Expected errors: NOT_FOUND, INVALID_INPUT, IO. */
MUST_CHECK result beneath_list_directory(
    const struct beneath *root,
    const char *path,
    size_t entries_max,
    struct beneath_list *out,
    struct error *error
);
void beneath_list_deinit(struct beneath_list *list); /* usable with CLEANUP */

#endif
