/* Between swarm_work.c (life of nodes), swarm_work_merge.c (snapshots, results, merges), swarm_work_verify.c and
 * swarm_work_sweep.c. Internal to these.
 */
#ifndef HEARTH_RUNTIME_SWARM_WORK_INTERNAL_H
#define HEARTH_RUNTIME_SWARM_WORK_INTERNAL_H

#include "sandbox/workspace_merge.h"
#include "swarm_work.h"

#include <pthread.h>
#include <sys/stat.h>

#define SWARM_WORK_COPIES "work"
#define SWARM_WORK_STORES "stores"
#define SWARM_WORK_VERIFY "verify"
#define SWARM_WORK_PATH   ((size_t)4096)

/* Whether the verifier can be run at all, on the root's first snapshot. */
enum swarm_work_verifier {
    SWARM_WORK_VERIFIER_UNKNOWN,
    SWARM_WORK_VERIFIER_RUNS,
    SWARM_WORK_VERIFIER_NEVER
};

struct swarm_work {
    struct swarm_work_options options;
    char place[SWARM_WORK_PATH];
    int place_fd; /* locked (flock) as long as this lives */
    struct swarm_work_node *root;
    pthread_mutex_t lock; /* of what follows */
    struct swarm_work_node *nodes;
    enum swarm_work_verifier verifier;
    uint64_t serial; /* of verifications */
};

struct swarm_work_node {
    struct swarm_work *work;
    struct swarm_work_node *parent; /* null: the root */
    /* Fixed once it is open. */
    char name[SWARM_NAME_BYTES];
    char directory[SWARM_WORK_PATH], store[SWARM_WORK_PATH];
    dev_t device; /* of the directory, and: */
    ino_t inode;
    char commit_before[WORKSPACE_COMMIT_BYTES];
    char base[WORKSPACE_COMMIT_BYTES]; /* in the parent's store: what a merge starts from */
    char skipped[WORKTREE_NAMES_BYTES];
    struct workspace_merge marks; /* conflicts that it begins with */
    struct sandbox_policy policy;
    struct hooks hooks;
    /* Of the run. */
    struct workspace *workspace;
    struct tool_context *tools;
    struct permission *permission;

    pthread_mutex_t
        lock;  /* of what follows, and of the directory: one snapshot or merge at a time */
    int lease; /* -1: closed, or the root */
    bool is_closed, has_result;
    char saved
        [WORKSPACE_COMMIT_BYTES]; /* the snapshot of the result, also when nothing was changed */
    struct swarm_work_made made;
    struct buffer unresolved; /* paths of marks that are left, one a line */

    struct swarm_work_node *next; /* under the work's lock */
};

MUST_CHECK result swarm_work_join(
    char out[SWARM_WORK_PATH],
    const char *directory,
    const char *folder,
    const char *name,
    struct error *error
);

/* Fails with NOT_FOUND unless the node's directory is the one that was made. */
MUST_CHECK result swarm_work_check_there(const struct swarm_work_node *node, struct error *error);

/* With the node's lock: its workspace, and a snapshot of what it is now. *out is the caller's. */
MUST_CHECK result swarm_work_look(
    struct swarm_work_node *node,
    const char *why,
    struct workspace **out,
    struct workspace_snapshot *now,
    struct error *error
);

/* Brings a snapshot from one store to another, by an object of its own: the run uses its workspace meanwhile. */
MUST_CHECK result swarm_work_bring(
    const char *from_store, const char *commit, const char *to_store, struct error *error
);

/* With the target's lock: the result of `node` and the target as it is now, merged; nothing is written. *out is the
 * target's workspace. Expected errors: INVALID_INPUT (the target is not above it). */
MUST_CHECK result swarm_work_try_merge(
    struct swarm_work_node *node,
    struct swarm_work_node *target,
    bool has_marks,
    struct workspace **out,
    char ours[WORKSPACE_COMMIT_BYTES],
    struct workspace_merge *merge,
    struct error *error
);

/* While nobody works there: copies that are thrown away, and stores whose copy is gone. Expected errors: IO. */
MUST_CHECK result swarm_work_sweep_rest(const char *place, struct error *error);

/* With the node's lock: what only a run needs. Ends jobs. */
void swarm_work_close_tools(struct swarm_work_node *node);

static inline void swarm_work_unlock(pthread_mutex_t **lock) {
    (void)pthread_mutex_unlock(*lock); // cannot fail: it is ours
}
/* Holds a lock until the end of the scope. */
#define SWARM_WORK_LOCK(mutex)                                                                     \
    CLEANUP(swarm_work_unlock) pthread_mutex_t *held_ = (mutex);                                   \
    (void)pthread_mutex_lock(held_)

#endif
