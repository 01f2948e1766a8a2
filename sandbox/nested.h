/* Git directories below the top of a workspace: of submodules, of repositories in it. Git acts upon
 * their hooks and configuration when it is called there. Internal to sandbox/. Thread: any.
 */
#ifndef HEARTH_SANDBOX_NESTED_H
#define HEARTH_SANDBOX_NESTED_H

#include "sandbox.h"

#define NESTED_MAX         16              /* more are not protected, a change of theirs is told */
#define NESTED_ENTRIES_MAX ((size_t)50000) /* looked at, the upper directories first */

struct nested {
    char paths[NESTED_MAX][SANDBOX_PATH_BYTES]; /* "lib/.git": a directory or a file */
    size_t count;
};

/* What cannot be read has none. Links and other file systems are not entered. Expected errors:
 * MEMORY. */
MUST_CHECK result nested_find(int workspace_fd, struct nested *out, struct error *error);

#endif
