/* Puts files of a snapshot back beneath a root, whatever was planted there. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_TREE_FILES_H
#define HEARTH_SANDBOX_TREE_FILES_H

#include "base/bytes.h"

#define TREE_PATH_BYTES_MAX ((size_t)4000)

enum tree_file_kind { TREE_FILE_PLAIN, TREE_FILE_EXECUTABLE, TREE_FILE_SYMLINK };

/* Removes a file and the directories that become empty by it; what is gone already is fine.
 * Expected errors: IO, INVALID_INPUT. */
MUST_CHECK result tree_remove_file(int root_fd, const char *path, struct error *error);
/* Writes a file (or a symlink to `content`) in place of what is there; parents are made.
 * Expected errors: IO, INVALID_INPUT. */
MUST_CHECK result tree_write_file(
    int root_fd,
    const char *path,
    enum tree_file_kind kind,
    struct view content,
    struct error *error
);

#endif
