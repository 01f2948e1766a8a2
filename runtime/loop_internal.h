/* Between the files of the loop: events and effects (loop.c), the life of runs (loop_runs.c), their steps on
 * workers (loop_steps.c), generations (loop_generation.c), calls (loop_calls.c, loop_hooks.c), what other threads
 * send (loop_channel.c), threads for long work (loop_workers.c), nodes of swarms (loop_nodes.c), what a person does (loop_input.c,
 * loop_commands.c, loop_status.c), what starts beside the prompt (loop_prepare.c), compaction
 * (loop_compaction.c) and what is shown (loop_view.c). See loop.h. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_LOOP_INTERNAL_H
#define HEARTH_RUNTIME_LOOP_INTERNAL_H

#include "loop_nodes.h"
#include "recorder.h"
#include <uv.h>

/* Mail that a remark holds. */
struct run_mail {
    int64_t delivers, returns; /* keys; 0: none */
};

/* How long calls of one tool take. */
struct tool_time {
    int64_t calls, total_ms;
};

struct compaction;
struct run_model_change;

#define RUN_HELD_MAX 8

#define RUN_REMARK_BYTES_MAX ((size_t)16 << 10)

enum run_call_phase { RUN_CALL_NONE, RUN_CALL_LOOKS, RUN_CALL_HOOKS, RUN_CALL_ASKS, RUN_CALL_RUNS };

/* The call on its way. */
struct run_call {
    enum run_call_phase phase;
    struct tool_subject subject;
    struct tool_overwrite overwrite; /* for those who look on; found in RUN_CALL_LOOKS */
    bool is_withdrawn;               /* cancelled before it was shown */
    uint64_t question;               /* number of the last one */
    bool has_always;                 /* "always" would add a rule: */
    struct buffer pattern;
    bool has_decision, is_allowed, is_recorded;
    const char *decider;
    char rule[PERMISSION_PATTERN_MAX + 16]; /* that applied, or that was made */
    char reason[PERMISSION_REASON_BYTES];
    struct buffer remark; /* of the person who said no */
    size_t live_bytes;    /* of its output, that were shown */
    enum hook_event hook; /* of the report: */
    struct hook_report report;
};

struct waiting_decision {
    bool is_allowed;
    char kind[16], subject[300], decider[16], reason[300];
};

struct loop_jobs {
    struct loop_job *first, *last;
};

struct loop_workers {
    struct loop *loop;
    uv_mutex_t lock; /* guards what follows, up to is_closing */
    uv_cond_t changed;
    struct loop_jobs waiting;
    struct loop_jobs ended, posted; /* on their way to the loop */
    size_t waiting_count, idle;
    bool is_closing;
    struct loop_worker *all;
    size_t open_count; /* jobs whose `done` has not returned; loop thread */
};

struct run_channel {
    struct loop *loop;
    uv_mutex_t lock;                  /* guards the rest */
    struct waiting_decision *decided; /* [decided_count] of LOOP_DECISIONS_MAX */
    size_t decided_count, decided_dropped;
    struct buffer live; /* output of the running tool, on its way here */
};

struct loop {
    uv_loop_t uv;
    struct run_channel channel; /* of the run that has no other */
    struct loop_workers workers;
    uv_timer_t timer; /* of loop_wait */
    void (*timer_came)(void *context);
    void *timer_context;
    uv_async_t wake; /* keeps the loop alive while there are runs */
    /* In the order in which they were started. One goes only in a callback of its own, never while the list is
     * walked; new ones come at the end. */
    struct run *first;
    struct loop_generation *generations; /* that have not ended */
    int shown;                           /* events that are being shown to listeners */
    struct run *person;                  /* the run that a person's input belongs to; null: none */
    struct output *output;
};

struct run {
    struct run *next;
    struct loop *loop;
    struct run_channel *channel;
    struct run_listener listener;
    struct run_options own;            /* a copy: another model changes it */
    const struct run_options *options; /* that */
    struct agent *agent;
    uint64_t sequence; /* of the engine, that holds the context; a compaction changes it */
    struct compaction *compaction; /* null: none is under way */
    struct chat_parser *parser;    /* of the present generation */
    struct recorder recorder;
    struct recorder_node node; /* with options->node */
    /* Of a node: [mail_count] of the remarks that were not given yet, the oldest first. A worker reads the first ones,
     * which are in the turn at hand, while others are added behind them. */
    struct run_mail mail[AGENT_REMARKS_MAX];
    size_t mail_count;
    const struct resume *resume;      /* what the context goes on from; null: a new session */
    struct resume rewound;            /* that, after a rewind or under another model */
    struct run_command_work *command; /* null: none is under way */
    struct run_model_change *change;  /* of the model; null: none */
    bool diff_waits;                  /* for the step on a worker */
    struct buffer held[RUN_HELD_MAX]; /* [held_count] messages that came meanwhile */
    size_t held_count;
    bool has_postponed; /* a step that waits for it, or for the preparation: */
    struct agent_effect postponed;
    struct run_declared declared; /* tools */
    struct view *tool_names;      /* [declared.tool_count] */
    struct tool_time *tool_times; /* [declared.tool_count] */
    char cache_trouble[560];      /* as told */

    struct loop_job prepare; /* on its thread while is_preparing */
    bool is_preparing;
    result prepare_result;
    struct error prepare_error;

    /* the step on a worker */
    uv_work_t work;      /* of one that is short, */
    struct loop_job job; /* and of a call or hooks */
    bool step_is_running;
    struct agent_effect step;
    result step_result;
    struct error step_error;

    /* tokens of the present turn */
    struct token_list context_ids; /* of a resumed session, until its first generation */
    bool is_resuming;              /* that has not ended yet */
    struct token_list prompt_ids;
    struct token_list output_ids;
    struct buffer log_probabilities; /* floats */
    struct generation_facts facts;
    bool has_facts;
    enum finish_reason reason;
    bool is_generating;
    bool prompt_fits; /* of the turn just recorded, or not recorded */
    int64_t first_token_ms;
    int32_t length_before; /* tokens of the sequence before the present generation */
    struct tool_result tool;
    struct run_call call;
    int hooks_fd;         /* eventfd: ends the hooks that run */
    bool input_has_ended; /* no person answers any more */
    bool has_tool;
    /* First problem of the turn that makes it unreadable. */
    bool has_problems;
    char problem[AGENT_DETAIL_BYTES];

    uv_timer_t deadline;
    uv_timer_t ticker;
    uv_timer_t watcher;
    uv_signal_t interrupt;
    uv_signal_t terminate;
    uv_signal_t hang_up;
    uv_signal_t resize;
    int signals_seen;
    int64_t interrupted_ms; /* when the person last interrupted; 0: never */
    size_t person_shown;    /* messages of the person that were shown */
    bool is_ending;
    bool last_is_kept; /* the text for options->last_message_path was written, or could not be: */
    result last_result;
    struct error last_error;
    bool begins_anew; /* the person wants a new session */
    bool is_closed;   /* its handles are being closed, or are: */
    int handles_open; /* that are not closed yet */
    bool has_front;   /* options->input is attached */

    struct run_status status;
    int64_t started_ms;

    /* What was said of a generation that stands still; 0: nothing. */
    int64_t stuck_said_ms;
    enum engine_wait stuck_wait;
    struct engine_statistics statistics;
};

/* ---- loop.c ---- */
/* The loop goes on while there are runs or jobs. */
void loop_keep(struct loop *loop);
/* Handles of a run, with its signals. Expected errors: IO (libuv). */
void run_handles_init(struct run *run);
MUST_CHECK result run_handles_start(struct run *run, struct error *error);
void run_handles_close(struct run *run);
/* The run is to stop: snapshots of a very large workspace must not hold it up (promise P5). */
void run_limit_snapshots(struct run *run);
/* Gives the agent an event and carries out what it wants. */
void run_dispatch(struct run *run, const struct agent_event *event);

/* ---- loop_runs.c ---- */
/* Writes the last text of the model where the options want it, once. Thread: any, while the agent stands still. */
void run_keep_last(struct run *run);
/* With what the run ends, and why: of the agent, but for a last text that could not be written. */
int run_exit_status(const struct run *run);
const char *run_detail(const struct run *run);
/* To the listener: remarks that the turn just recorded holds, or a compaction; the end of a turn. */
void run_say_given(struct run *run, size_t count);
void run_say_turned(struct run *run);
/* Ends what is left of a run when nothing of it is under way any more: then *run is gone. The last thing that a
 * callback does which may be the last one of its run. */
void run_leave(struct run *run);

/* ---- loop_nodes.c ---- */
/* The prefix of the options, and what comes behind it, as a conversation that goes on. *messages is to be freed when
 * the agent is made. Expected errors: INVALID_INPUT (the sequence holds something else), MEMORY. */
MUST_CHECK result run_prefix_take(
    const struct run_options *options,
    struct agent_resume *out,
    struct chat_message **messages,
    struct error *error
);
/* Before the agent is there. */
void run_node_init(struct run *run);
/* Keeps what a remark of a node settles that the agent has taken. */
void run_mail_push(struct run *run, const struct run_remark *remark);
/* Mail of `count` remarks that an effect gives, whose messages lie `moved` further on. Thread: the step's. */
size_t run_mail_of(
    const struct run *run,
    size_t count,
    ptrdiff_t moved,
    struct recorder_mail out[AGENT_REMARKS_MAX]
);
/* Thread: the step's. */
MUST_CHECK result run_record_node_end(struct run *run, struct error *error);
/* The result of the present call, with what options->called adds. Thread: the step's. */
MUST_CHECK result run_record_result(
    struct run *run, const struct tool_result *value, struct view answer, struct error *error
);
/* The last text that the model wrote beside its thinking. */
struct view run_last_text(const struct run *run);
/* To the generation whose sequence it is of; false: of none. */
bool loop_generation_event(struct loop *loop, const void *engine, const struct engine_event *event);

/* ---- loop_view.c ---- */
int64_t run_now_ms(const struct run *run);
void run_status_update(struct run *run);
/* Fills in the status and shows the event. */
void run_show(struct run *run, struct run_event *event);
void run_show_status(struct run *run); /* between events */
void run_show_session(struct run *run);
/* Once for each trouble: at the beginning, or at the end when it came in between. */
void run_show_cache_trouble(struct run *run);
/* Of a session that goes on: the end of what was said. */
void run_show_earlier(struct run *run);
/* Messages of the person that the turn just recorded holds. */
void run_show_person(struct run *run);
void run_show_idle(struct run *run);
void run_show_finished(struct run *run);

/* ---- loop_steps.c ---- */
/* Starts a RECORD effect on a worker; answered by what agent.h says. */
void run_step(struct run *run, const struct agent_effect *effect);
void run_step_postponed(struct run *run); /* again, when what it waited for may be over */
/* How long the agent waits for a call, for the engine; and how long it did. */
void run_tell_waiting(struct run *run, const struct chat_call *call);
void run_note_duration(struct run *run, const struct chat_call *call);

/* ---- loop_calls.c ---- */
/* AGENT_CALL: decides, asks, runs; answered by AGENT_CALLED or AGENT_CALL_FAILED. */
void run_call(struct run *run, const struct agent_effect *effect);
void run_call_cancel(struct run *run);
void run_call_answer(struct run *run, const struct run_input *input);
/* Nobody answers any more. */
void run_call_nobody(struct run *run);
void run_live_came(struct run *run);
void run_call_deinit(struct run *run);

/* ---- loop_hooks.c ---- */
bool run_has_hooks(const struct run *run, enum hook_event event, struct view tool);
/* Runs them and keeps their report. Thread: the step's. Expected errors: MEMORY. */
MUST_CHECK result run_hooks(
    struct run *run, enum hook_event event, const struct hook_subject *subject, struct error *error
);
void run_hooks_show(struct run *run); /* the notes of the report */
void run_hooks_cancel(struct run *run);
void run_hooks_renew(struct run *run);
/* AGENT_CHECK_STOP; answered by AGENT_STOP_CHECKED. */
void run_check_stop(struct run *run);

/* ---- loop_channel.c ---- */
void run_channel_init(struct run_channel *channel, struct loop *loop);
void run_channel_deinit(struct run_channel *channel);
/* Appends what came; `is_last`: nothing is held back. Expected errors: MEMORY; what came is lost then. */
MUST_CHECK result
run_channel_take_output(struct run_channel *channel, bool is_last, struct buffer *out);
/* Records what waits. Thread: the step's. Expected errors: those of the store. */
MUST_CHECK result run_record_decisions(struct run *run, struct error *error);

/* ---- loop_workers.c ---- */
/* Expected errors: IO (no thread). */
MUST_CHECK result
loop_workers_init(struct loop_workers *workers, struct loop *loop, struct error *error);
void loop_workers_deinit(struct loop_workers *workers); /* while no job is there */
/* Calls `done` of those that have ended. */
void loop_jobs_came(struct loop *loop);

/* ---- loop_input.c ---- */
void run_take_input(struct run *run, const struct run_input *input);
/* An interrupt of the person, by key or by signal. */
void run_interrupt(struct run *run, bool is_steering);
/* At the end: messages that were never given. */
void run_say_unsent(struct run *run);

/* ---- loop_prepare.c ---- */
/* Expected errors: MEMORY. */
MUST_CHECK result
run_declare(struct run *run, const struct run_declared *declared, struct error *error);
/* Starts options->preparation. */
void run_prepare(struct run *run);
/* Says what the first turn waits for. */
void run_prepare_say(struct run *run);
void run_prepare_cancel(struct run *run);

/* ---- loop_commands.c ---- */
/* A command of the person that reads or changes record and workspace, while the agent waits. */
void run_command(struct run *run, const struct run_input *input);
/* Starts a difference that waits, between two steps. */
void run_command_waiting(struct run *run);
/* Takes a message that comes meanwhile; false: none is under way, nor a change of the model. */
bool run_command_holds(struct run *run, struct view message);
/* Gives what was held, and does the step that waited, when nothing holds them any more. */
void run_release_held(struct run *run);
/* The conversation of a record, whose head declares no tools, with those of the run. Expected errors:
 * MEMORY. Thread: any. */
MUST_CHECK result run_declare_tools(
    const struct run *run,
    const struct resume *resume,
    struct chat_conversation **out,
    struct error *error
);
void run_command_deinit(struct run *run);

/* ---- loop_status.c ---- */
/* False: a command of another kind. */
bool run_tell(struct run *run, enum run_command command);

/* ---- loop_model.c ---- */
void run_change_model(struct run *run, struct view directory);

/* ---- loop_generation.c ---- */
/* What all requests of a run ask for beside tokens, limits and their turn. */
struct generation_request run_request(const struct run *run, uint64_t sequence);
/* Adds to what the run cost. */
void run_count_facts(struct run *run, const struct generation_facts *facts);
/* Starts what AGENT_GENERATE asks for; answered by AGENT_GENERATED. */
void run_generate(struct run *run, const struct agent_effect *effect);
/* Events of other sequences and of generations that ended are ignored. */
void run_engine_event(struct run *run, const struct engine_event *event);
/* The stop string that ended the generation; empty: none did. */
struct view run_stop_met(const struct run *run);
/* Says that a generation stands still, and what the engine does. */
void run_watch(struct run *run);

/* ---- loop_compaction.c ---- */
/* Starts what AGENT_COMPACT asks for; answered by AGENT_COMPACTED or AGENT_COMPACT_FAILED. */
void run_compact(struct run *run, const struct agent_effect *effect);
void run_compact_cancel(struct run *run);
/* Whether it is the run's, or that of its compaction. */
bool run_has_sequence(const struct run *run, uint64_t sequence);
/* Takes an event of one of its sequences; false: it is of another. */
bool run_compaction_event(struct run *run, const struct engine_event *event);
/* Whether it waits for the engine. */
bool run_compaction_is_generating(const struct run *run);

#endif
