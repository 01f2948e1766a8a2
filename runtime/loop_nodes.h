/* Runs that are nodes of a swarm, and generations that are no run's: what who drives a swarm needs beyond loop.h.
 *
 * A node is an agent of a session that is open (swarm_root.h): its run starts the node instead of a session, and ends
 * it instead of one. It goes on behind a prefix, a context that its sequence holds already: a fork of what holds the
 * root's, or of a run that has a call open. Nothing of it is encoded, evaluated or recorded again.
 * Thread: the loop's, unless it says otherwise.
 */
#ifndef HEARTH_RUNTIME_LOOP_NODES_H
#define HEARTH_RUNTIME_LOOP_NODES_H

#include "loop.h"
#include "sessions/session_swarm.h"
#include "swarm.h"

/* run_options.node. The run is not interactive and has no resume; its clock, sampler, store and workspace are those
 * of the options, of whose session_begin only the sampler counts. */
struct run_node {
    struct session_id session;
    /* Filled in by the run: agent.session, agent.tools, agent.sampler; commit_before, with a workspace;
     * agent.fork_turn, with a prefix. */
    struct session_node_begin begin;
};

/* run_options.prefix, of a node. The first turn appends what comes behind it: `answer`, or the task. */
struct run_prefix {
    const struct chat_message *messages; /* [message_count] that it holds, the system's first */
    size_t message_count;
    bool end_is_missing; /* it ends in a turn of the model without end of sequence */
    int32_t tokens;      /* of it */
    int32_t effort;      /* that its head speaks of; CHAT_EFFORT_OFF: it does not */
    size_t calls_total;  /* in all messages: later ids of calls are others */
    struct view call;    /* id of the one that is open in its last message; empty: none is */
    struct view answer;  /* to that call, for the new agent alone: set by the host */

    uint64_t sequence;       /* that holds it; the run has a fork of it in run_options.sequence */
    struct session_id agent; /* whose context it is */
    int64_t turn; /* number in the record: it ends with that turn's output, or its prompt */
};

/* The context of a run up to and with the block of its open call, so that others go on behind it. Borrowed until the
 * call returns; the sequence may be forked until then. Expected errors: INVALID_INPUT (no call runs, or it is not the
 * only one of its block: says so in words for the model). */
MUST_CHECK result
run_prefix_at_call(const struct run *run, struct run_prefix *out, struct error *error);

/* run_options.called: looks on when the result of a call is recorded. */
struct run_called {
    struct session_store *store;
    const struct session_id *session, *agent;
    const struct chat_call *call;
    const struct tool_result *value; /* null: the call was recorded and never ran */
};
struct run_call_hook {
    void *context;
    /* Within the batch that records the result: nothing but appends, as session_mail_send. INVALID_INPUT and LIMIT, as
     * of mail for an agent that has ended: the result is recorded without what it would have appended, and
     * `refused` says so. Any other failure is one of the record. Thread: a worker. */
    result (*append)(void *context, const struct run_called *called, struct error *error);
    /* Once for each call, after `append`: the batch is on the disk (RESULT_OK), or without what was appended. Thread:
     * a worker; loop_job_post leads to the loop. */
    void (*recorded)(void *context, const struct run_called *called, result appended);
};

/* The agent of a run, in the record; "": it has not begun there. Known from its RUN_SESSION on. */
const struct session_id *run_agent(const struct run *run);

/* How an agent ended, for the swarm; and in the words of the record: "answer", "budget", "fault", "cancel". */
enum swarm_end run_end_of(enum agent_stop stop);
const char *run_end_name(enum swarm_end end);

/* ---- generations beside runs ---- */

/* Of a prompt that no agent wrote: the prefix of all, a ranking. It stays where it is until its last event. */
struct loop_generation {
    struct loop_generation *next; /* the loop's */
    struct engine_ports engine;
    uint64_t sequence; /* of no run */
    /* On the loop thread, never before loop_generate has returned; ENGINE_FINISHED is the last one, and then it may
     * be used again. May start runs and generations. */
    void (*event)(void *context, const struct engine_event *event);
    void *context;
};
/* Starts what the request says, whose sequence is that of the generation. The loop does not end before its last
 * event; engine.cancel brings it soon. Expected errors: those of engine_generate; then there is no event. */
MUST_CHECK result loop_generate(
    struct loop *loop,
    struct loop_generation *generation,
    const struct generation_request *request,
    struct error *error
);

#endif
