/* The event loop that carries out agents' effects: the only module that knows libuv besides
 * output.c.
 *
 * A loop has one run (loop_run), or many (loop_start, loop_drive): agents that are driven beside each
 * other and know nothing of one another. The loop thread owns agents, parsers and display. The engine
 * wakes it with loop_wake. What blocks for a moment (SQLite, snapshots, encoding of prompts) runs on
 * libuv's pool, what may block for long (tools, hooks) on threads that live as long as the loop; an
 * agent has one step under way at a time. SIGINT and SIGTERM stop a run cleanly, a second one ends the
 * process. Engine and tools are reached through small tables, so that tests can put others in their
 * place. Thread: the main thread, loop_wake apart.
 */
#ifndef HEARTH_RUNTIME_LOOP_H
#define HEARTH_RUNTIME_LOOP_H

#include "agent.h"
#include "base/clock.h"
#include "display.h"
#include "hooks.h"
#include "permission.h"
#include "resume.h"
#include "sandbox/workspace.h"
#include "sessions/session.h"
#include "tools/tool.h"

#define LOOP_WATCH_INTERVAL_MS 5000
#define LOOP_STUCK_MS          10000

struct loop;
struct run_call_hook;
struct run_node;
struct run_prefix;

/* Expected errors: MEMORY, IO (no more descriptors or threads). */
MUST_CHECK result loop_create(struct loop **out, struct error *error);
/* After the engine that wakes it was closed; asserts that no handle is left. */
void loop_destroy(struct loop *loop);
/* For engine_options.wake. Thread: any, until loop_destroy. */
void loop_wake(void *loop);
/* Its libuv loop, for handles of others, which are closed before loop_drive returns. */
struct uv_loop_s;
struct uv_loop_s *loop_uv(struct loop *loop);
/* Something that was decided beside a call, for the record: a connection, a server that is trusted. Kept
 * until the next step that is recorded. Thread: any. */
struct loop_decision {
    bool is_allowed;
    const char *kind, *subject, *decider, *reason; /* as in session_decision_begin; copied */
};
#define LOOP_DECISIONS_MAX 256 /* that wait; more are counted */

/* What other threads send to one run: made before it and before its tools, destroyed after both. A loop has one,
 * for the run that has no other. Expected errors: MEMORY. */
struct run_channel;
MUST_CHECK result
run_channel_create(struct run_channel **out, struct loop *loop, struct error *error);
void run_channel_destroy(struct run_channel *channel); /* accepts null */
/* For tool_context_options.output: what a command writes while it runs. Thread: any. */
void run_channel_output(void *channel, struct view bytes);
void run_channel_decided(struct run_channel *channel, const struct loop_decision *decision);
/* These by the loop's own. */
void loop_tool_output(void *loop, struct view bytes);
void loop_decided(struct loop *loop, const struct loop_decision *decision);

/* The queue for standard output that belongs to this loop. */
MUST_CHECK result loop_output(struct loop *loop, int fd, struct output **out, struct error *error);

/* What the loop needs of an engine; engine_ports() fills it with engine.h. */
struct engine_ports {
    void *context;
    result (*generate
    )(void *context, const struct generation_request *request, struct error *error);
    void (*cancel)(void *context, uint64_t sequence);
    /* What becomes of the sequence: waiting for a tool, finished, abandoned. */
    void (*tell)(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms);
    /* What is wrong with the cache on disk, a sentence; "" when nothing is. */
    void (*cache_trouble)(void *context, char *out, size_t bytes);
    bool (*next_event)(void *context, struct engine_event *out);
    /* The request that stands still, and what is done for all of them. Neither waits for a step. */
    bool (*watch)(void *context, int64_t stuck_ms, struct engine_stuck *out);
    void (*statistics)(void *context, struct engine_statistics *out);
    /* Tokens of a sequence that does not run: those appended and sampled so far. */
    int32_t (*length)(void *context, uint64_t sequence);
    /* Further sequences, and their end. */
    result (*create)(void *context, uint64_t *out, struct error *error);
    result (*fork)(void *context, uint64_t parent, uint64_t *out, struct error *error);
    void (*destroy)(void *context, uint64_t sequence);
};
struct engine_ports engine_ports_of(struct engine *engine);

/* What it needs of the tools; called on a worker, cancel on the loop thread. */
struct tool_ports {
    void *context;
    result (*call
    )(void *context,
      struct view name,
      struct view arguments,
      int64_t time_ms_max,
      struct tool_result *out,
      struct error *error);
    void (*cancel)(void *context);
    /* Calls run again after a cancel; on the loop thread, while none runs. */
    void (*renew)(void *context);
    /* Ends servers and background jobs, so that files can be put back; on a worker while no call runs.
     * Servers come back with the next call to them. */
    void (*settle)(void *context);
    /* What a call is about; on the loop thread, while none runs. Only with run_options.permission. */
    result (*subject
    )(void *context,
      struct view name,
      struct view arguments,
      struct tool_subject *out,
      struct error *error);
    /* What a call that tool_may_overwrite writes over; on a worker while no call runs. Null: not shown. */
    result (*overwrite
    )(void *context,
      struct view name,
      struct view arguments,
      struct tool_overwrite *out,
      struct error *error);
    /* Files that were read or written, the oldest first; null: not known. */
    void (*files
    )(void *context, void (*file)(void *file_context, struct view path), void *file_context);
    /* Whether "output:N" can still be read; null: none can. */
    bool (*has_output)(void *context, struct view locator);
    /* The model's list of what is to be done, as lines; null: none. On the loop thread, while no call runs. */
    struct view (*todo)(void *context);
};
struct tool_ports tool_ports_of(struct tool_context *context);

/* ---- a person ---- */

enum run_input_type {
    RUN_INPUT_MESSAGE, /* text: for the model; while it works it is given before the next turn */
    RUN_INPUT_INTERRUPT, /* ends the generation or the tool that runs and waits for the person, or goes
                            on with messages that are queued; a second one within RUN_INTERRUPT_MS ends
                            the run */
    RUN_INPUT_ANSWER,    /* to RUN_ASK: question, answer; text: a remark, for the model on a no */
    RUN_INPUT_COMMAND, /* command; text: its argument, may be empty */
    RUN_INPUT_END /* there is no more: the run ends where it would wait for a person, and can be
                          resumed; questions are answered with no */
};
enum run_command {
    RUN_COMMAND_EFFORT, /* text: 1..100, low, high, max, off */
    RUN_COMMAND_COMPACT,
    RUN_COMMAND_FORK,
    RUN_COMMAND_REWIND, /* text: turn; 0: before the first */
    RUN_COMMAND_UNDO,
    RUN_COMMAND_DIFF,
    RUN_COMMAND_BUDGET,
    RUN_COMMAND_MODEL, /* text: directory; empty: says which one it is */
    RUN_COMMAND_SESSIONS,
    RUN_COMMAND_STATUS,
    RUN_COMMAND_PERMISSIONS,
    RUN_COMMAND_CLEAR, /* ends this session; who drives the loop begins another: begins_anew */
    RUN_COMMAND_QUIT
};
enum run_answer {
    RUN_ANSWER_YES,
    RUN_ANSWER_ALWAYS,
    RUN_ANSWER_NO,
    RUN_ANSWER_VIEW /* none yet: the call is to be shown whole */
};
#define RUN_INTERRUPT_MS 2000

struct run_input {
    enum run_input_type type;
    struct view text; /* copied */
    enum run_command command;
    enum run_answer answer;
    bool is_steering; /* INTERRUPT: to say something else; a second one does not end the run */
    uint64_t
        question; /* of the RUN_ASK that is answered: a late key does not answer the next one */
};
/* To the run that has run_options.input; ignored when there is none. What cannot be done is said as an event. */
void loop_input(struct loop *loop, const struct run_input *input);
/* Whether it waits for the person: for a message, a command, or an answer. */
bool loop_waits(const struct loop *loop);
/* Whether the run ends so that another session begins: further input is for that one. */
bool loop_begins_anew(const struct loop *loop);

/* Where the input of a person comes from: a terminal, or a test. */
struct run_front {
    void *context;
    /* Before the first event of the run: starts to read, with handles of its own on `uv`. */
    result (*attach)(void *context, struct uv_loop_s *uv, struct loop *loop, struct error *error);
    /* At the end, once after attach: closes its handles; loop_run returns when they are closed. */
    void (*detach)(void *context);
};

/* The rule of a recorded decision that a person's "always" made, and its pattern (empty: any call). */
#define RUN_ALWAYS "always"
bool run_always_parse(struct view rule, struct view *pattern);

/* The tools of a run as they are declared; borrowed. */
struct run_declared {
    const struct chat_tool *tools; /* [tool_count] */
    size_t tool_count;
    struct view tools_json;        /* for the record */
    struct constraint *constraint; /* of what the model may write; null: none */
};

/* What starts beside the prompt, and what the first turn waits for. tool_ports.cancel ends it soon. */
struct run_preparation {
    void *context;
    /* On a worker, while no call runs. A failure ends the run, before anything is recorded. */
    result (*prepare)(void *context, struct error *error);
    const char *(*waits_for)(void *context); /* name of what it waits for now; thread: loop */
    /* On the loop thread, after prepare: says what it found, and what is declared now. */
    void (*ready)(void *context, struct run_declared *out);
};

/* A model that was opened beside the one that runs; borrowed from who opened it. */
struct run_model {
    struct engine_ports engine;
    uint64_t sequence; /* an empty one */
    const struct tokenizer *tokenizer;
    const struct chat_encoder *encoder;
    struct engine_info info;
    struct view directory, numerics;
    struct constraint *constraint; /* as in run_declared */
    char plan[800];                /* of its memory, for the person */
};

/* For /model; each on a worker, open first, then settle. */
struct run_models {
    void *context;
    /* Expected errors: those of the engine; LIMIT: both do not fit. */
    result (*open
    )(void *context,
      const char *directory,
      const struct run_declared *declared,
      struct run_model *out,
      struct error *error);
    void (*settle)(void *context, bool takes_new); /* closes the old one, or the new one */
};

/* Everything is borrowed until the run has ended. */
struct run_options {
    bool is_interactive;           /* waits for a person instead of ending */
    const struct run_front *input; /* null: nobody is there; one run of a loop has it */
    struct run_channel *channel;   /* null: the loop's own; of one run */
    struct engine_ports engine;
    struct tool_ports tools;
    uint64_t sequence;
    const struct tokenizer *tokenizer;
    const struct chat_encoder *encoder;
    struct engine_info engine_info;
    struct sampling sampling;
    enum window_mode window;
    const struct view *stops; /* [stop_count] strings that end a turn */
    size_t stop_count;
    struct guard_limits guard;
    struct constraint *constraint; /* of what the model may write; null: none */
    const struct run_preparation
        *preparation; /* replaces tools, tools_json and constraint; null: none */
    enum speculate speculation;
    int32_t draft_max;
    struct view settings; /* all of these as a record keeps them */
    bool shows_tokens;    /* an event for each, with its log-probabilities */
    int64_t
        watch_interval_ms; /* looks for a request that stands still; 0: LOOP_WATCH_INTERVAL_MS */
    int64_t stuck_ms;      /* that is without progress for so long; 0: LOOP_STUCK_MS */

    /* Whether a call may run; null: every one may. */
    struct permission *permission;
    const struct permission_rule *rules; /* [rule_count] those of `permission`, for the record */
    size_t rule_count;
    /* Whether the network's list allows a URL; null: none. */
    bool (*url_is_listed)(void *context, struct view url);
    void *url_context;

    const struct hooks *hooks; /* null: none */

    const struct run_models *models; /* null: there is one model */

    struct agent_options agent;
    struct view tools_json; /* declarations, for the record */

    const struct resume *resume; /* a session that goes on, with agent.resume; null: a new one */
    /* A node of an open session, what its sequence holds, and who looks on when calls are recorded; see
     * loop_nodes.h. Null: none. */
    const struct run_node *node;
    const struct run_prefix *prefix;
    const struct run_call_hook *called;
    struct session_store *store;
    struct session_begin begin;  /* commit_before is filled in by the loop */
    struct workspace *workspace; /* null: no snapshots */

    /* Where the last text that the model wrote beside its thinking goes at the end (whole only after an answer);
     * null: not asked for. What cannot be written changes the exit status of the run and its detail. */
    const char *last_message_path;

    const char *state_option; /* for the hint at the end; null: the default directory */
    struct display *display;  /* null: nothing is shown but to the listener */
    struct output *output;    /* of the loop: the run ends when everything is written; null: none */
    struct clock clock;
    bool handles_signals; /* of one run of a loop */
    /* Called on the second SIGINT or SIGTERM; must not return. Null: _exit is not called and the
     * signal is ignored. */
    void (*kill)(void);
};

struct run_outcome {
    enum agent_stop stop;
    int exit_status;
    char detail[AGENT_DETAIL_BYTES]; /* may be empty */
    struct session_id session;
    bool begins_anew; /* the person left for a new session (RUN_COMMAND_CLEAR) */
    uint64_t
        sequence; /* that holds the context now; that of the options unless a compaction changed it */
};

/* ---- many runs ---- */

struct run;

/* Borrowed until the callback returns. */
struct run_ended {
    enum agent_stop stop;
    int exit_status;
    const char *detail; /* may be empty */
    struct view
        last_text; /* that the model wrote beside its thinking; whole only after an answer */
    int64_t tokens, calls;     /* sampled ones; calls that ran */
    int32_t turns;             /* without those before a resume */
    struct session_id session; /* "": nothing was recorded */
    struct session_id agent;   /* as session */
    const char
        *commit; /* that the workspace has become; "": nothing was changed, or it is not known */
    int64_t changed_lines;    /* of it; may be 0, of binary files */
    bool changes_are_unknown; /* there was no time for a snapshot */
    bool begins_anew;         /* as in run_outcome */
    uint64_t sequence;        /* as in run_outcome */
};

/* What the run has come to, in all. */
struct run_turned {
    int32_t turns;         /* with those before a resume */
    int64_t tokens, calls; /* as in run_ended */
    uint64_t digest;       /* of the turn: agent_turn_digest */
};

/* Called on the loop thread. All but `event` may start runs, and do to them what is declared below. */
struct run_listener {
    void *context;
    /* Each event of the run, beside what its display shows; null: nobody looks. In the middle of what it tells:
     * nothing may be started, and nothing done to any run. */
    void (*event)(void *context, const struct run_event *event);
    /* So many remarks of run_remark, the oldest, are in the record and in the next prompt; null: nobody asks. */
    void (*given)(void *context, size_t count);
    /* A turn is over, with its calls; null: nobody asks. */
    void (*turned)(void *context, const struct run_turned *turned);
    /* Once: nothing of the run is under way any more, and it is gone afterwards. Never before loop_start has
     * returned. */
    void (*ended)(void *context, const struct run_ended *ended);
};

/* Starts a run beside the others; `listener` is copied. After a failure nothing is called and nothing of it
 * is left when loop_drive returns. *out is valid until `ended` returns. Expected errors: MEMORY, IO (libuv). */
MUST_CHECK result loop_start(
    struct loop *loop,
    const struct run_options *options,
    const struct run_listener *listener,
    struct run **out,
    struct error *error
);

/* A remark before the next turn, as a message of its own: 1 to AGENT_REMARKS_BYTES_MAX bytes of UTF-8. */
struct run_remark {
    struct view text;
    /* Keys of mail (session_swarm.h), 0: none: what it delivers, or whose return it tells of. Settled in one
     * transaction with the turn that holds it, and with no other. */
    int64_t delivers, returns;
};
/* These at any time until `ended` is called, also by callbacks; a run that is about to end takes no notice.
 * False: it was not taken. One that was is lost when the run ends before `given`, and its mail is not settled. */
MUST_CHECK bool run_remark(struct run *run, const struct run_remark *remark);
void run_cancel(struct run *run, const char *why); /* mid-token; as AGENT_INTERRUPT */
void run_set_share(struct run *run, const struct agent_share *share);
void run_set_effort(struct run *run, int32_t effort); /* from the next turn on */

/* Work for who drives many runs, or for a run. It stays where it is until `done` is called, and may be used again in
 * it. */
struct loop_job {
    struct loop_job *next;       /* the loop's */
    void (*work)(void *context); /* may block for as long as it likes */
    void (*done)(void *context
    ); /* on the loop thread, never before the function below has returned there */
    void *context;
};
/* `work` on a thread that lives as long as the loop, then `done`. loop_drive does not return before. */
void loop_job_start(struct loop *loop, struct loop_job *job);
/* `done` alone: something for the loop thread. Thread: any; while a run or a job is there. */
void loop_job_post(struct loop *loop, struct loop_job *job);
/* For who drives many runs: calls `came` once, on the loop thread, in so many milliseconds; in the place of an
 * earlier wait. Null: none. */
void loop_wait(struct loop *loop, int64_t wait_ms, void (*came)(void *context), void *context);
/* Returns when no run is left, no wait and no handle of anybody else. */
void loop_drive(struct loop *loop);

/* Runs one agent to its end, alone. Expected errors: MEMORY, IO (libuv). Whatever happened to the run
 * itself is in the outcome. */
MUST_CHECK result loop_run(
    struct loop *loop,
    const struct run_options *options,
    struct run_outcome *out,
    struct error *error
);

#endif
