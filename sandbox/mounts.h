/* What of the host a call may see beside the minimal root: the workspace, its .git, protected
 * paths and extra read-only directories, each opened and checked once and mounted by descriptor.
 * Internal to sandbox/.
 */
#ifndef HEARTH_SANDBOX_MOUNTS_H
#define HEARTH_SANDBOX_MOUNTS_H

#include "sandbox.h"

#define MOUNTS_MAX        88 /* all of them */
#define MOUNTS_NESTED_MAX 40 /* for git directories below the top */

enum mount_kind {
    MOUNT_BELOW, /* the workspace, read-only */
    MOUNT_PIN, /* a directory in the workspace, as writable as that: a mount point stays in place */
    MOUNT_OUTSIDE, /* of the host, read-only; Landlock then needs a rule of its own */
};

struct mount_item {
    int fd; /* O_PATH */
    char destination[SANDBOX_PATH_BYTES];
    enum mount_kind kind;
};

struct hold;
struct hold_table;
struct nested;

struct mounts {
    char workspace[SANDBOX_PATH_BYTES]; /* host path without symlinks */
    int workspace_fd;
    struct hold *hold;           /* while a command runs in the workspace; null: not taken */
    const struct nested *nested; /* git directories below the top; borrowed from the hold table */
    struct mount_item items[MOUNTS_MAX]; /* in the order in which they are made */
    size_t item_count;
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
void mounts_close_items(struct mounts *mounts); /* forgets what was to be mounted */

#endif
