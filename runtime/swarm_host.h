/* Runs a swarm: carries out what swarm.h decides, with real agents, directories and processes.
 *
 * Everything that decides is in struct swarm; here each effect is done (docs/swarm.md has the table) and
 * answered by its event, also when it failed. Agents are runs of one loop, nodes of one session; each goes
 * on from a fork of one sequence that holds the system text and the tools (swarm_root.h), in a directory of
 * its own (swarm_work.h). What blocks is on workers of the loop. When the host returns nothing of the swarm
 * is left: no run, process, sequence, lease or thread; directories with something that no snapshot has stay,
 * and are named.
 *
 * Thread: that of the loop; the callbacks too.
 */
#ifndef HEARTH_RUNTIME_SWARM_HOST_H
#define HEARTH_RUNTIME_SWARM_HOST_H

#include "loop.h"
#include "swarm.h"

struct sandbox_policy;
struct swarm_host;

/* ---- what is seen of it ------------------------------------------------------------------------ */

enum swarm_host_event_type {
    SWARM_HOST_BEGAN, /* session and root are there, the shared prefix is evaluated; facts of that */
    SWARM_HOST_NODE,  /* another state or outcome of a node than before, or its result is known */
    SWARM_HOST_ACTIVITY, /* a node does something else now: swarm_host_look */
    SWARM_HOST_RUN,      /* run: an event of the node's agent, as hearth run --json has it */
    SWARM_HOST_MESSAGE,  /* node sent text to `other` */
    SWARM_HOST_VERIFIED, /* of node, which may be the root; text: the end of what was said */
    SWARM_HOST_RANKED,   /* the nodes of a ranking have their scores */
    SWARM_HOST_MERGED, /* node's commit into the workspace of `other`; text: conflicts or an error */
    SWARM_HOST_ENDING,  /* it is decided, what runs is being ended */
    SWARM_HOST_NOTE,    /* text: one line of the host */
    SWARM_HOST_WARNING, /* text: what does not work, or what to look at; it goes on */
    SWARM_HOST_FINISHED /* last: all is over and recorded; swarm_result, swarm_host_totals */
};

struct swarm_host_outcome;

struct swarm_host_event {
    enum swarm_host_event_type type;
    size_t node, other;
    struct view text;
    const struct run_event *run;
    const struct generation_facts *facts;
    enum swarm_verdict verdict;
    enum swarm_merge merge;
    const struct swarm_host_outcome *outcome; /* FINISHED */
};

struct swarm_host_listener {
    void *context;
    /* Nothing may be done in it but to look. Everything is borrowed until it returns. */
    void (*event)(void *context, struct swarm_host *host, const struct swarm_host_event *event);
};

const struct swarm *swarm_host_swarm(const struct swarm_host *host);
const struct session_id *swarm_host_session(const struct swarm_host *host); /* "": not begun */
int64_t swarm_host_now_ms(const struct swarm_host *host); /* as the swarm's times */

/* Of one node, beside what swarm_node says; borrowed until the next event. Of the root: the session's agent,
 * its directory and the facts of the prefix. */
struct swarm_host_look {
    const char *activity; /* "preparing", "thinking", "shell", ..., "verifying"; "" after its end */
    struct view subject;  /* of the call at hand: its command or path, one line; may be empty */
    struct session_id agent; /* "": not recorded yet */
    const char *directory;   /* "": none yet */
    bool is_kept; /* the directory is still there after the end: it has what nobody saved */
    int32_t turns, context_tokens;
    int64_t tokens, calls; /* sampled; called; with the turn at hand */
    /* Of its prompts: in all, found in the cache or the fork, evaluated. */
    int64_t prompt_tokens, reused_tokens, evaluated_tokens;
};
void swarm_host_look(const struct swarm_host *host, size_t node, struct swarm_host_look *out);

struct swarm_host_totals {
    size_t nodes; /* that were started, without the root */
    int64_t tokens, rank_tokens, calls;
    int64_t prompt_tokens, reused_tokens, evaluated_tokens;
    size_t verifications, merges, messages, kept; /* kept: directories */
    int64_t duration_ms;
};
void swarm_host_totals(const struct swarm_host *host, struct swarm_host_totals *out);

/* ---- running ----------------------------------------------------------------------------------- */

/* Everything is borrowed until swarm_host_run returns. */
struct swarm_host_options {
    struct swarm_options swarm;
    struct view reason; /* why this strategy was chosen; empty: it was asked for */
    const char *
        verifier; /* command line, run in a copy of a node's files; with swarm.has_verifier, else null */
    struct view settings; /* for the record: what else was asked for, a JSON object; may be empty */

    /* What all agents have in common: engine, tokenizer, encoder, sampling and the rest of a generation, store,
     * rules, hooks, and of `agent` system text, tools and limits of a turn. `sequence` is an empty one, and
     * becomes the root's; `begin` that of the session; `workspace` the root's. Not used: input, channel,
     * resume, preparation, models, display and output, tools and permission (each agent has its own). */
    struct run_options run;
    struct tool_context_options
        tools; /* as of the root's workspace; `output`, `agents` and `hides` are the host's */
    struct permission_options permission;
    const char *state;     /* directory: copies lie below swarms/ in it */
    const char *snapshots; /* store of the root's workspace */

    /* Whether agents are told of their name, share and deadline, and to wrap up; not a model that was trained
     * with bare tasks. */
    bool has_notes;
    /* For measurements: an agent evaluates all of its prompt itself, in a context of its own. */
    bool shares_nothing;
    bool
        has_agent_tools; /* `tools.set` and the declarations have them: agents start and ask others */

    struct swarm_host_listener listener;
    bool handles_signals; /* the first SIGINT, SIGTERM or SIGHUP ends the swarm, */
    void (*kill)(void); /* the second one calls this, which must not return; null: it is ignored */
};

struct swarm_host_outcome {
    struct swarm_result result;
    struct session_id session;   /* "": nothing was recorded */
    char name[SWARM_NAME_BYTES]; /* of the node of the result; "": the root, or nothing */
    char commit[sizeof(struct swarm_commit)]; /* of the root's workspace at the end; "": unknown */
    struct swarm_host_totals totals;
    /* "answer", "failed" (nothing passed), "time", "tokens", "interrupt", "engine", "record"; as of hearth run. */
    const char *stop;
    int exit_status;
    bool is_interrupted;   /* by a signal or swarm_host_interrupt */
    bool is_out_of_budget; /* time, tokens or calls of the tree ended it */
    /* OK, or what the host could not do, with `error`: record, disk, engine. */
    result fault;
    struct error error;
};

/* Of an engine for such a swarm: sequences for all nodes, windows and blocks for those at work. What is set
 * already stays. */
void swarm_host_plan_engine(const struct swarm_options *options, struct engine_options *engine);

/* Runs it to its end. A failure: it did not begin, and nothing is left. Expected errors: INVALID_INPUT (options:
 * named), MEMORY, IO. */
MUST_CHECK result swarm_host_run(
    struct loop *loop,
    const struct swarm_host_options *options,
    struct swarm_host_outcome *out,
    struct error *error
);

/* As a first signal. After the end was decided it changes nothing. */
void swarm_host_interrupt(struct swarm_host *host);

#endif
