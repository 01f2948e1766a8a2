/* What blocks in a swarm: each node's directory and tools, what it made, its verification, merges.
 *
 *     PLACE/work/NAME     the node's copy of its parent's workspace (sandbox/worktree.h), leased while it is open
 *     PLACE/stores/NAME   the copy's own snapshots
 *     PLACE/verify/...    copies that a verification runs in, and that go with it
 *
 * A node begins with a snapshot of its parent, and its result is a snapshot, brought into the stores of its
 * parent and of the root. Nothing is ever written into a workspace but by a merge of such snapshots. A
 * directory is removed when all that is in it is in a snapshot that is kept, else it stays and is named.
 * Knows swarm.h's words, and nothing of its state.
 *
 * Thread: any worker that is kept (sandbox/sandbox.h), any number of them at once, different nodes or the
 * same; where it says "loop" also the loop thread. Calls block.
 */
#ifndef HEARTH_RUNTIME_SWARM_WORK_H
#define HEARTH_RUNTIME_SWARM_WORK_H

#include "hooks.h"
#include "permission.h"
#include "sandbox/workspace.h"
#include "sandbox/worktree.h"
#include "swarm.h"
#include "tools/tool.h"

struct swarm_work;
struct swarm_work_node; /* lives until swarm_work_destroy, also when it is closed */

/* Everything is borrowed until swarm_work_destroy. */
struct swarm_work_options {
    const char *workspace; /* of the root */
    const char *snapshots; /* its store */
    const char *place;     /* absolute: STATE/swarms/SESSION; made, with the directory above it */
    bool with_ignored; /* copies have ignored files too; no command may run where they are taken */
    const char *verifier; /* command line of a shell; null: none */
    struct sandbox *sandbox;
    const struct sandbox_policy
        *policy; /* of the root's commands; the workspace becomes the node's */
    /* Template of each node's tools; workspace, sandbox, policy, output, agents and hides are filled in.
     * Null: nodes get no tools. */
    const struct tool_context_options *tools;
    const struct permission_options *permission; /* null: every call is allowed */
    const struct config *config;                 /* with hooks; null: none */
};

/* Takes the place: nobody sweeps it until destroy, or the end of the process. Expected errors:
 * INVALID_INPUT (paths), LIMIT (another process has the place), IO. */
MUST_CHECK result swarm_work_create(
    struct swarm_work **out, const struct swarm_work_options *options, struct error *error
);
/* Closes what is open, as swarm_work_close, and removes the place when it is empty. Accepts null. */
void swarm_work_destroy(struct swarm_work *work);
void swarm_work_cleanup(struct swarm_work **work);

/* The root: a node without tools, of the user's own workspace. It is never closed. Thread: loop. */
struct swarm_work_node *swarm_work_root(struct swarm_work *work);

/* ---- life of a node ---- */

struct swarm_work_open {
    const char *name;               /* letters, digits, - and _; once in a swarm */
    struct swarm_work_node *parent; /* its workspace is the beginning */
    /* Null: the parent's workspace is as it is now; else that snapshot (swarm_work_snapshot of the
     * parent): many children of one moment cost one snapshot. */
    const char *commit;
    /* Of swarm_node.conflict_of, a node with a result: its merge into the parent's workspace, with the conflicts,
     * is what the new node finds. Null: none. */
    struct swarm_work_node *conflict_of;
    int64_t processes_max,
        memory_bytes_max; /* of its commands; 0 or BUDGET_NO_LIMIT: the policy's */
    tool_output *output;  /* of its tools, with context; may be null */
    void *output_context;
    const struct tool_agents *agents; /* borrowed; may be null */
};

/* On failure nothing is left. Expected errors: INVALID_INPUT (name; the parent's directory is gone), IO
 * (see swarm_work_is_full), LIMIT (too large), and those of tool_context_create. */
MUST_CHECK result swarm_work_open(
    struct swarm_work *work,
    const struct swarm_work_open *options,
    struct swarm_work_node **out,
    struct error *error
);

/* Another share: of the commands that start from now on. Thread: loop, while none of its calls runs. */
void swarm_work_limit(
    struct swarm_work_node *node, int64_t processes_max, int64_t memory_bytes_max
);

/* For run_options and the record; thread: loop. All but the first two are null of the root, and after
 * swarm_work_result and swarm_work_close. */
const char *swarm_work_directory(const struct swarm_work_node *node);
const char *swarm_work_commit_before(const struct swarm_work_node *node
);                                                                    /* "": not yet, of the root */
struct workspace *swarm_work_workspace(struct swarm_work_node *node); /* the run's own */
struct tool_context *swarm_work_tools(struct swarm_work_node *node);
struct permission *swarm_work_permission(struct swarm_work_node *node
); /* a copy of the rules' answers */
const struct hooks *swarm_work_hooks(struct swarm_work_node *node);
/* Files that the copy has not, "" for none, for a note: sockets, what cannot be read. */
const char *swarm_work_skipped(const struct swarm_work_node *node);

/* The node's workspace as it is now, also while its agent works. Expected errors: IO, LIMIT, NOT_FOUND
 * (the directory was deleted). */
MUST_CHECK result swarm_work_snapshot(
    struct swarm_work_node *node,
    const char *why,
    char out[WORKSPACE_COMMIT_BYTES],
    struct error *error
);

struct swarm_work_made {
    char commit[WORKSPACE_COMMIT_BYTES]; /* "": nothing was changed */
    int64_t changed_lines;               /* against what it would be merged with */
    size_t files;                        /* changed */
    char skipped_names[480]; /* in no snapshot: too large or unreadable, ignored ones apart */
};

/* What the node made, once its agent has ended, in whatever way: ends what its tools still run, closes its
 * tools, permission and workspace (so that a node costs little from now on), and brings the
 * snapshot into the stores of parent and root. May be repeated after a failure. Expected errors: IO, LIMIT,
 * NOT_FOUND (the directory was deleted: nothing is known of what it made). */
MUST_CHECK result
swarm_work_result(struct swarm_work_node *node, struct swarm_work_made *out, struct error *error);

/* What became of the node's directory. */
struct swarm_work_closed {
    bool is_removed;
    char reason[320]; /* why it stays: what in it is in no kept snapshot, or what failed */
};
/* After swarm_work_result, or instead of it where no agent ever worked there. Its children, verifications and
 * merges may be called for afterwards, as long as a result was made. Once; the root's and a second one's do nothing. */
void swarm_work_close(struct swarm_work_node *node, struct swarm_work_closed *out);

/* ---- verification ---- */

/* What ends a verification from another thread: a descriptor for swarm_work_verification.cancel_fd, of the
 * caller, who closes it. Expected errors: IO. */
MUST_CHECK result swarm_work_cancel_create(int *out_fd, struct error *error);
void swarm_work_cancel(int fd); /* thread: any */

struct swarm_work_verification {
    const char *commit; /* of the node's result; null: what was made; of the root: what it is now */
    int64_t time_ms_max;
    int cancel_fd; /* -1: none; see swarm_work_cancel_create */
};

struct swarm_work_verdict {
    enum swarm_verdict verdict;          /* SWARM_NOT_VERIFIED: cancelled */
    char detail[SWARM_DETAIL_BYTES_MAX]; /* UTF-8: how it ended, and the end of its output */
    bool is_full;                        /* it could not run because a disk is full */
};

/* Runs the verifier in a copy of the snapshot, confined as the node's commands are; what it writes goes
 * with the copy. Exit status 0 of a verifier that left the snapshot's files alone: pass; other files may
 * come. The command ends time_ms_max after the call at the latest, and the two seconds that it has after SIGTERM; the
 * copy before it and the look at its files take as long as they take, cancelled or not.
 * Whatever fails is CRASHED, with the reason. A status of a shell that cannot run it (126, 127) is CRASHED where the
 * verifier cannot be run on the root's first snapshot either, else the node broke it: FAIL. */
void swarm_work_verify(
    struct swarm_work_node *node,
    const struct swarm_work_verification *options,
    struct swarm_work_verdict *out
);

/* ---- merges ---- */

struct swarm_work_merge {
    enum swarm_merge merge;
    char commit[WORKSPACE_COMMIT_BYTES]; /* of the target, with the changes; "" unless OK */
    int64_t changed_lines;               /* of the target, since it began */
    char before[WORKSPACE_COMMIT_BYTES]; /* of the target: the way back; "" unless OK */
    size_t conflict_count;
    char detail[SWARM_DETAIL_BYTES_MAX]; /* conflicts, one a line: "PATH: kind"; or why it failed */
    bool is_full;
};

/* Brings what a node made (its result) into the workspace of the target, which is above it: what both
 * changed since the node began is merged by lines, or named, and then nothing is written. Files that changed
 * after the last look are never written over. FAILED also: a command runs in the target. */
void swarm_work_merge(
    struct swarm_work_node *node, struct swarm_work_node *target, struct swarm_work_merge *out
);

/* ---- trouble ---- */

/* Whether a failure came from a full disk: no further node can be started. */
bool swarm_work_is_full(const struct swarm_work *work, const struct error *error);

struct swarm_work_swept {
    size_t removed;
    size_t in_use; /* directories of swarms that run */
    size_t
        kept; /* copies with changes that are in no snapshot that is kept, or that could not be removed; swarms
               * that could not be looked through */
    char kept_names[WORKTREE_NAMES_BYTES];
};
/* What dead owners left below STATE/swarms; no such directory: nothing to do. Expected errors: IO. */
MUST_CHECK result
swarm_work_sweep(const char *swarms, struct swarm_work_swept *out, struct error *error);

#endif
