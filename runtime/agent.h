/* One agent as a state machine: an event goes in, a short list of effects comes out.
 *
 * The agent decides and does nothing else: no I/O, no threads, no clock (each event carries the
 * time), so the same events give the same effects. Whoever drives it (loop.h, or a test's script)
 * carries out the effects in order and answers with one event each. Its rule is that a step is on
 * the disk before it is acted upon: a RECORD effect comes first and the action follows only after
 * AGENT_RECORDED. Memory is bounded by the limits below. Thread: one at a time; between an effect
 * and its answer the driver may lend the conversation to one worker, since the agent changes it
 * only on AGENT_GENERATED and AGENT_CALLED.
 *
 * A model that runs away is told before it is stopped: of a turn that a guard cut and of a call that
 * gives the same result again, in a message of the user before the next turn. A resume begins these
 * counts anew.
 *
 * An interactive agent waits for a person (AGENT_IDLE) where another one ends: after an answer, an
 * interrupt, a guard or a full context. It ends when the person leaves, a budget is spent, or engine,
 * record or sandbox fail. Messages that come while it works are given before its next turn; what they
 * left without a result is answered for them. Nothing is recorded before the first message.
 *
 * Whoever drives it may change what it may use (AGENT_SHARE) and its effort, and say something to the model
 * (AGENT_REMARK), at any time. A generation keeps the limits that it began with: one that a share ended which has
 * grown meanwhile is told so and goes on; one that is beyond a smaller share is for the driver to cancel
 * (agent_turn_is_spent).
 *
 * A context that fills is replaced by a smaller one between two turns (AGENT_COMPACT, agent_history.h),
 * or the run ends. What is recorded of that is the driver's.
 *
 *     start -> record begin -> [record turn -> generate -> record output ->
 *              (record call -> call -> record result)* -> record turn end]* -> record end -> finish
 */
#ifndef HEARTH_RUNTIME_AGENT_H
#define HEARTH_RUNTIME_AGENT_H

#include "agent_history.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "tools/tool.h"

#define AGENT_TURNS_MAX_DEFAULT      40 /* generations of one run */
#define AGENT_REPEATS_MAX            4  /* same call, same result, with nothing new in between */
#define AGENT_UNKNOWN_MAX            4  /* calls of unknown tools in a row */
#define AGENT_MALFORMED_MAX          3 /* turns in a row that hold neither a readable call nor text */
#define AGENT_LOOPS_MAX              2    /* turns in a row that went round in circles */
#define AGENT_CUTS_MAX               3    /* turns in a row that any guard cut */
#define AGENT_CALLS_MAX              4096 /* calls of one run */
#define AGENT_CONVERSATION_BYTES_MAX ((size_t)64 << 20)
#define AGENT_EFFECTS_MAX            3  /* of one event */
#define AGENT_STOP_REFUSALS_MAX      3  /* of one message's end, by AGENT_CHECK_STOP */
#define AGENT_QUEUE_MAX              64 /* messages that wait for the next turn */
#define AGENT_QUEUE_BYTES_MAX        ((size_t)4 << 20)
#define AGENT_REMARKS_MAX            32 /* remarks that wait for the next turn */
#define AGENT_REMARKS_BYTES_MAX      ((size_t)1 << 20)
#define AGENT_NO_LIMIT               INT64_MAX
#define AGENT_NOT_RUN                "not run: the user went on with a new message"
#define AGENT_LIMIT_RAISED                                                                         \
    "Your last turn was ended by a limit that has been raised meanwhile: go on."
#define AGENT_DETAIL_BYTES 240

/* Why a run ended. */
enum agent_stop {
    AGENT_GOES_ON,
    AGENT_STOP_ANSWER,    /* the model ended with a turn that calls nothing */
    AGENT_STOP_FINISH,    /* it called the finish tool */
    AGENT_STOP_TURNS,     /* turn limit */
    AGENT_STOP_TOKENS,    /* token budget */
    AGENT_STOP_TIME,      /* time budget */
    AGENT_STOP_REPEAT,    /* the same call gave the same result again and again */
    AGENT_STOP_UNKNOWN,   /* calls of unknown tools in a row */
    AGENT_STOP_GARBAGE,   /* turns in a row that cannot be read */
    AGENT_STOP_LENGTH,    /* one turn did not end within its token limit */
    AGENT_STOP_STRING,    /* it wrote a stop string */
    AGENT_STOP_LOOP,      /* turns in a row repeated one text on end */
    AGENT_STOP_THINKING,  /* turns in a row never ended their thinking */
    AGENT_STOP_OPEN_CALL, /* turns in a row never closed a block of calls */
    AGENT_STOP_CONTEXT,   /* the context is full */
    AGENT_STOP_INTERRUPT, /* the user asked to stop */
    AGENT_STOP_QUIT,      /* the person left */
    AGENT_STOP_CALLS,     /* budget of tool calls */
    AGENT_STOP_ENGINE,    /* the engine failed */
    AGENT_STOP_RECORD,    /* a step could not be made durable */
    AGENT_STOP_TOOL       /* the host could not run a tool at all (not: the tool failed) */
};

const char *agent_stop_name(enum agent_stop stop); /* "answer", "finish", "turns", ... */
const char *agent_stop_text(enum agent_stop stop); /* a few words for people */
/* Exit status of the program: 0 done, 1 task failed, 3 refused, 4 budget, 5 data, 6 engine, 130. */
int agent_stop_exit_status(enum agent_stop stop);

/* A conversation that goes on instead of a new one. */
struct agent_resume {
    const struct chat_message *messages; /* [message_count], the system's first */
    size_t message_count;
    size_t context_messages; /* of these, the context holds that many */
    bool end_is_missing;     /* the context ends in a turn of the model without end of sequence */
    int32_t context_tokens;
    int32_t turns; /* before */
    /* Calls [next_call, all) of message turn_message run before the next turn. */
    bool has_calls;
    size_t turn_message, next_call;
    size_t calls_total; /* in all messages */
    /* How the last turn ended: the model is told of a guard that cut it. */
    enum finish_reason reason;
    bool waits;         /* nothing runs before a message comes; only of an interactive agent */
    int32_t effort;     /* that the context speaks of; CHAT_EFFORT_OFF: that of the options */
    size_t unrun_count; /* so many messages behind the context answer calls and are in no record */
};

struct agent_options {
    struct view system;            /* system text */
    struct view task;              /* what the user asks */
    const struct chat_tool *tools; /* [tool_count] declared to the model; copied */
    size_t tool_count;
    int32_t effort;          /* CHAT_EFFORT_OFF, or 1..100 */
    int32_t turns_max;       /* 0: AGENT_TURNS_MAX_DEFAULT */
    int32_t turn_tokens_max; /* sampled tokens of one turn; 0: until the context is full */
    int64_t tokens_max;      /* sampled tokens of the run; 0: none */
    int64_t time_ms_max;     /* from the start event; 0: none */
    int64_t calls_max;       /* tool calls of the run; 0: none */
    /* Waits for a person; turns_max is then for each of their messages. With an empty task, or with
     * `waits` of a resume, it begins by waiting. */
    bool is_interactive;
    bool checks_stop;                  /* asks AGENT_CHECK_STOP before an answer is the end */
    int32_t context_max;               /* tokens of the context; > 0 */
    int32_t compact_at_percent;        /* of the context; 0: a full one ends the run */
    int32_t compact_keep_turns;        /* turns that stay; 0: AGENT_HISTORY_KEEP_TURNS */
    const struct agent_resume *resume; /* null: a new conversation of `system` and `task` */
};

/* What an agent may use in its whole life; AGENT_NO_LIMIT: as much as it wants. */
struct agent_share {
    int64_t tokens_max, calls_max;
    int64_t deadline_ms; /* on the clock of the events */
};

enum agent_event_type {
    AGENT_START,
    AGENT_NOT_READY,     /* before anything is recorded: what it needs is not there: error */
    AGENT_RECORDED,      /* the last RECORD effect is durable; prompt_tokens after RECORD_TURN */
    AGENT_RECORD_FAILED, /* error */
    AGENT_GENERATED,     /* the generation ended, for whatever reason */
    AGENT_CALLED,        /* the tool ended */
    AGENT_CALL_FAILED,   /* the host could not run it: error */
    AGENT_DOES_NOT_FIT,  /* a RECORD_TURN of more than append_max tokens: nothing is recorded */
    AGENT_COMPACTED, /* the context is another one, and recorded: conversation, context_tokens, sampled */
    AGENT_COMPACT_FAILED, /* it is the old one: error, sampled */
    AGENT_REWOUND,      /* while it waits for a person: the context is an earlier one: conversation,
                             context_messages, end_is_missing, context_tokens */
    AGENT_TELL,         /* text: what the model is told before its next turn */
    AGENT_ASK_COMPACT,  /* as soon as no turn runs; text: what the summary is to keep */
    AGENT_TIME,         /* the time asked for with AGENT_WAIT has come, or any later one */
    AGENT_STOP_CHECKED, /* text: why it should go on, for the model; empty: it may end */
    AGENT_INTERRUPT,    /* somebody asks to stop: text says who, empty: the user */
    AGENT_SHARE,        /* after START: share takes the place of the options' budgets */
    AGENT_EFFORT,       /* effort, from the next turn on */
    AGENT_REMARK,       /* text: a message of its own before the next turn; begins none. See
                     agent_takes_remark */
    /* of an interactive agent: */
    AGENT_MESSAGE,  /* text, from the person; see agent_takes_message */
    AGENT_PAUSE,    /* ends what runs and waits for the person */
    AGENT_QUIT,     /* the person leaves */
    AGENT_INPUT_END /* no message comes any more: ends where it would wait */
};

struct agent_event {
    enum agent_event_type type;
    int64_t now_ms;            /* monotonic */
    const struct error *error; /* *_FAILED, and GENERATED with FINISH_ERROR */
    int32_t append_tokens;     /* RECORDED after RECORD_TURN: tokens to append to the context */
    enum finish_reason reason; /* GENERATED */
    int32_t sampled;           /* GENERATED: tokens */
    int32_t context_tokens; /* GENERATED: whole context now; 0 when nothing ran: it is as before */
    const struct chat_message *message; /* GENERATED: role assistant; null when nothing ran */
    bool has_problems;                  /* GENERATED: the parser skipped something */
    struct view problem;                /* GENERATED: its first problem in words, may be empty */
    struct view stop;                   /* GENERATED with FINISH_STOP: what was met, in words */
    enum tool_status status;            /* CALLED */
    struct view text;                   /* CALLED: for the model; INTERRUPT: detail */
    bool ends_task;                     /* CALLED: the finish tool */
    struct chat_conversation *conversation; /* COMPACTED: all of it is in the context; taken */
                                            /* REWOUND: messages [0, context_messages) are; taken */
    size_t context_messages;                /* REWOUND */
    int32_t
        context_max; /* REWOUND: of another model; 0: the same. Then without a conversation it stays */
    bool end_is_missing;      /* REWOUND */
    size_t person_message;    /* COMPACTED: as agent_history.h */
    int32_t effort;           /* EFFORT */
    struct agent_share share; /* SHARE */
};

enum agent_effect_type {
    AGENT_RECORD_BEGIN,    /* session and agent */
    AGENT_RECORD_TURN,     /* a turn with the messages and tokens of its prompt */
    AGENT_GENERATE,        /* append the prompt of the turn and sample */
    AGENT_CANCEL_GENERATE, /* answered by AGENT_GENERATED */
    AGENT_RECORD_OUTPUT,   /* tokens and message of the model */
    AGENT_RECORD_CALL,     /* before it starts */
    AGENT_CALL,
    AGENT_CANCEL_CALL, /* answered by AGENT_CALLED */
    AGENT_RECORD_RESULT,
    AGENT_RECORD_TURN_END,
    AGENT_CHECK_STOP,   /* answered by AGENT_STOP_CHECKED */
    AGENT_CANCEL_CHECK, /* answered by AGENT_STOP_CHECKED */
    AGENT_RECORD_END,
    AGENT_IDLE,           /* nothing runs until a message comes; agent_idle_stop says why */
    AGENT_COMPACT,        /* answered by COMPACTED or COMPACT_FAILED, or RECORD_FAILED */
    AGENT_CANCEL_COMPACT, /* answered as AGENT_COMPACT */
    AGENT_WAIT,           /* send AGENT_TIME at wake_ms; replaces an earlier wait */
    AGENT_FINISH          /* nothing follows */
};

struct agent_effect {
    enum agent_effect_type type;
    size_t from_message; /* RECORD_TURN: messages [from, count) are new in the context */
    bool end_is_missing; /* RECORD_TURN: the last generation ended without end of sequence */
    /* RECORD_TURN: messages [unrun_from, unrun_from + unrun_count) are answers to calls that never ran,
     * which no RECORD_RESULT has recorded. */
    size_t unrun_from, unrun_count;
    /* RECORD_TURN: messages [person_from, person_from + person_count) came with AGENT_MESSAGE. */
    size_t person_from, person_count;
    /* RECORD_TURN, COMPACT: so many remarks are in it for the first time, the oldest; agent_remark_message */
    size_t remark_count;
    int32_t append_max;       /* RECORD_TURN: of more tokens than that, DOES_NOT_FIT */
    int32_t tokens_max;       /* GENERATE; COMPACT: of the summary */
    int64_t deadline_ms;      /* GENERATE, COMPACT: on the clock of the events; 0: none */
    size_t first_call_number; /* GENERATE: of the calls in its output */
    size_t call_index;        /* *_CALL, RECORD_RESULT: within the turn */
    int64_t time_ms_max;      /* CALL: until the deadline; 0: no deadline */
    int64_t wake_ms;          /* WAIT */
    bool is_cancelled;        /* RECORD_RESULT: the call was recorded but never started */
    /* COMPACT: messages [0, from_message) are in the context. */
    struct agent_history_limits limits;
    int32_t keep_turns;
    size_t person_message, fresh_from;
    bool is_asked; /* by the person: with a summary in any case */
};

struct agent_effects {
    size_t count;
    struct agent_effect items[AGENT_EFFECTS_MAX];
};

struct agent;

/* Copies everything in the options. Expected errors: MEMORY. */
MUST_CHECK result
agent_create(struct agent **out, const struct agent_options *options, struct error *error);
void agent_destroy(struct agent *agent); /* accepts null */
void agent_cleanup(struct agent **agent);

/* Whether a problem means that something the model wanted to say was lost. */
bool agent_problem_is_serious(enum chat_problem problem);
/* Before what a stop hook said: it is no word of the person's. */
#define AGENT_STOP_REMARK  "Checked before the end: "
#define AGENT_NOTHING_SAID "the turn holds no text and no call" /* problem of such a turn */
/* Whether the host, not the person, wrote a message of the user's role: known by how the host words its own. */
bool agent_message_is_of_host(const struct chat_message *message);
/* What the model is told of a turn that cannot be read; `problem` may be empty. */
void agent_malformed_text(const char *problem, char *out, size_t bytes);

/* Whether a guard ended the generation: what it wrote stays, and the model is told. */
bool agent_reason_is_cut(enum finish_reason reason);
/* What the model is told of it, and of FINISH_LENGTH at the end of a context; static. Null for other
 * reasons. */
const char *agent_cut_text(enum finish_reason reason);

/* Takes one event; *effects is overwritten. Events that do not fit the state (a late time, a
 * second interrupt) give no effects. */
void agent_handle(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
);

/* Other tools than those of the options, before anything is recorded; copied. Expected errors: MEMORY. */
MUST_CHECK result agent_declare(
    struct agent *agent, const struct chat_tool *tools, size_t tool_count, struct error *error
);
const struct chat_conversation *agent_conversation(const struct agent *agent);
struct chat_options agent_chat_options(const struct agent *agent);
/* Call `index` of the present turn; borrowed until the next event. */
const struct chat_call *agent_call(const struct agent *agent, size_t index);
enum agent_stop agent_stop(const struct agent *agent);
/* Numbers or the error behind the stop, one line; "" when the name says it all. */
const char *agent_stop_detail(const struct agent *agent);
int32_t agent_turns(const struct agent *agent); /* with those before a resume */
int32_t agent_turns_before(const struct agent *agent);
int32_t agent_turns_max(const struct agent *agent);
int64_t agent_tokens_sampled(const struct agent *agent);
int64_t agent_tokens_max(const struct agent *agent); /* AGENT_NO_LIMIT: none */
int64_t agent_calls_max(const struct agent *agent);  /* AGENT_NO_LIMIT: none */
/* Whether the generation, which has sampled so many tokens, is beyond what the share has become. */
bool agent_turn_is_spent(const struct agent *agent, int64_t sampled);
/* Of the calls of the present or last turn and their results; 0: it called nothing. */
uint64_t agent_turn_digest(const struct agent *agent);
int32_t agent_context_tokens(const struct agent *agent);
int64_t agent_calls(const struct agent *agent); /* that ran in this run */
/* Deadline on the clock of the events; INT64_MAX when there is none. */
int64_t agent_deadline_ms(const struct agent *agent);
bool agent_is_finished(const struct agent *agent);
/* Tokens of a context that is made smaller before the next turn, or is full. */
int32_t agent_context_due_at(const struct agent *agent);
/* Whether there is something in the context that a compaction could replace. */
bool agent_can_compact(const struct agent *agent);
/* What the person said with AGENT_ASK_COMPACT; may be empty. */
struct view agent_compaction_remark(const struct agent *agent);
bool agent_is_idle(const struct agent *agent);
/* Why it waits, or waited last; AGENT_GOES_ON: it has had no task. Its detail is agent_stop_detail. */
enum agent_stop agent_idle_stop(const struct agent *agent);
/* Whether a message of that many bytes finds room in the queue. */
bool agent_takes_message(const struct agent *agent, size_t bytes);
/* Whether a remark of that many bytes does. */
bool agent_takes_remark(const struct agent *agent, size_t bytes);
size_t agent_remarks_waiting(const struct agent *agent);
/* Of an effect with remarks: the message that holds this one of them. */
size_t agent_remark_message(const struct agent *agent, size_t index);
/* What its context holds, for an agent that goes on behind it: messages, message_count, context_messages,
 * end_is_missing, context_tokens, calls_total, effort. Borrowed until the next event. */
void agent_context(const struct agent *agent, struct agent_resume *out);
/* Messages below were there before this run. */
size_t agent_fresh_from(const struct agent *agent);
/* Calls of the present turn. */
size_t agent_call_count(const struct agent *agent);
size_t agent_queued(const struct agent *agent);
struct view agent_queued_text(const struct agent *agent, size_t index);
/* Whether a RECORD_BEGIN was asked for. */
bool agent_has_begun(const struct agent *agent);

#endif
