/* What of the host a call may see beside the minimal root: the workspace, its .git, protected
 * paths and extra read-only directories, each opened and checked once and mounted by descriptor.
 * Internal to sandbox/.
 */
#ifndef HEARTH_SANDBOX_MOUNTS_H
#define HEARTH_SANDBOX_MOUNTS_H

#include "sandbox.h"

#define MOUNTS_READ_ONLY_MAX 24

struct mount_item {
    int fd; /* O_PATH */
    char destination[SANDBOX_PATH_BYTES];
    bool is_outside_workspace; /* Landlock then needs a rule of its own */
};

struct hold;
struct hold_table;

struct mounts {
    char workspace[SANDBOX_PATH_BYTES]; /* host path without symlinks */
    int workspace_fd;
    struct hold *hold; /* while a command runs in the workspace; null: not taken */
    struct mount_item read_only[MOUNTS_READ_ONLY_MAX];
    size_t read_only_count;
    char work_tree_link[SANDBOX_PATH_BYTES]; /* where a submodule's git looks for its tree, or "" */
};

/* Opens and checks everything the policy names and takes a share in the workspace until
 * mounts_close; hold.h tells which commands can run there together.
 * `keep_out` is a directory that must not lie in the workspace (our own helpers).
 * Expected errors: INVALID_INPUT, LIMIT (another command is in the way), UNSUPPORTED (no openat2). */
MUST_CHECK result mounts_open(
    struct hold_table *holds,
    const struct sandbox_policy *policy,
    const char *keep_out,
    struct mounts *out,
    struct error *error
);
void mounts_close(struct mounts *mounts);

/* Whether the workspace has a `.git` and may: a directory, or a file whose git directory points back
 * here; others could lead to any repository. Expected errors: INVALID_INPUT, UNSUPPORTED. */
MUST_CHECK result mounts_check_git(const char *workspace, bool *has_git, struct error *error);
void mounts_close_read_only(struct mounts *mounts); /* forgets what was to be mounted read-only */

#endif
