/* The root of a swarm: the session, its root agent, and the context that all agents begin with.
 *
 * The root has no agent that runs: it has one turn, whose prompt is the system text and the tools, and whose sequence
 * holds that prompt, evaluated once. Nodes are runs that go on behind it (loop_nodes.h). What blocks is done on
 * workers; the functions that end with a callback return at once.
 *
 *     swarm_root_open -> opened -> forks of its sequence, runs of nodes -> swarm_root_finish -> finished
 *
 * Thread: the loop's.
 */
#ifndef HEARTH_RUNTIME_SWARM_ROOT_H
#define HEARTH_RUNTIME_SWARM_ROOT_H

#include "loop_nodes.h"

struct swarm_root;

/* Borrowed until the root is destroyed. */
struct swarm_root_options {
    struct loop *loop;
    struct engine_ports engine;
    uint64_t
        sequence; /* an empty one, of the root from now on; destroyed by who made it, at the end */
    const struct chat_encoder *encoder;
    struct engine_info engine_info;
    struct sampling sampling;
    enum window_mode window;
    struct view system;
    const struct chat_tool *tools; /* [tool_count] */
    size_t tool_count;
    struct view tools_json; /* for the record */
    int32_t effort;         /* that the head speaks of */
    struct session_store *store;
    struct session_begin begin;       /* commit_before is filled in */
    struct workspace *workspace;      /* of the user, that takes the result; null: no snapshots */
    struct session_swarm_begin swarm; /* root is filled in */
    void *context;
    /* Once. After a failure the session, when there is one, has ended as failed, or as stopped after
     * swarm_root_cancel (CANCELLED), and the root is only to be destroyed. Never before swarm_root_open has
     * returned. */
    void (*opened)(void *context, result opened, const struct error *error);
};

/* Expected errors: MEMORY. */
MUST_CHECK result swarm_root_open(
    struct swarm_root **out, const struct swarm_root_options *options, struct error *error
);
/* Before `opened`: ends it soon. */
void swarm_root_cancel(struct swarm_root *root, const char *why);
/* Accepts null; not between open and `opened`, or finish and `finished`. */
void swarm_root_destroy(struct swarm_root *root);

/* After it was opened; borrowed. */
const struct session_id *swarm_root_session(const struct swarm_root *root);
const struct session_id *swarm_root_agent(const struct swarm_root *root);
int64_t swarm_root_swarm(const struct swarm_root *root); /* key of session_swarm.h */
/* Snapshot of the workspace before anything; "": none. */
const char *swarm_root_commit_before(const struct swarm_root *root);
/* What nodes go on behind, forks and spawned ones alike. */
void swarm_root_prefix(const struct swarm_root *root, struct run_prefix *out);
/* What it cost to evaluate. */
const struct generation_facts *swarm_root_facts(const struct swarm_root *root);

struct swarm_root_end {
    struct session_swarm_end swarm; /* commit_after is filled in */
    enum session_status status;
    const char *verdict, *stop_reason; /* of the session */
    int exit_status;
};
/* When all nodes have ended in the record: snapshot of the workspace, end of the swarm and of the session in one
 * transaction. `end` is copied but for its views, which are borrowed until `finished`. */
void swarm_root_finish(
    struct swarm_root *root,
    const struct swarm_root_end *end,
    void (*finished)(void *context, result finished, const struct error *error)
);
/* After that. */
const char *swarm_root_commit_after(const struct swarm_root *root);

#endif
