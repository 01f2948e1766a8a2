/* Between the files of the agent, whose state is here: events (agent.c), where it goes next (agent_go.c), what a
 * turn gave (agent_turn.c), its making (agent_create.c), a person and remarks (agent_person.c), budgets (agent_budget.c) and
 * compaction (agent_compaction.c). Thread: as agent.h.
 */
#ifndef HEARTH_RUNTIME_AGENT_INTERNAL_H
#define HEARTH_RUNTIME_AGENT_INTERNAL_H

#include "agent.h"
#include "call_history.h"

enum agent_state {
    AGENT_STATE_NEW,
    AGENT_STATE_BEGIN,
    AGENT_STATE_TURN,
    AGENT_STATE_GENERATING,
    AGENT_STATE_OUTPUT,
    AGENT_STATE_CALL,
    AGENT_STATE_CALLING,
    AGENT_STATE_RESULT,
    AGENT_STATE_TURN_END,
    AGENT_STATE_COMPACTING,
    AGENT_STATE_END,
    AGENT_STATE_IDLE,
    AGENT_STATE_CHECKING,
    AGENT_STATE_FINISHED
};

struct agent {
    enum agent_state state;
    struct chat_conversation *conversation;
    struct view *tool_names; /* into the conversation's system message */
    size_t tool_count;
    int32_t effort, turns_max, turn_tokens_max, context_max;
    int32_t turns_each;                                      /* turns_max of the options */
    int64_t tokens_max, time_ms_max, deadline_ms, calls_max; /* AGENT_NO_LIMIT: none */

    enum agent_stop stop; /* decided */
    char detail[AGENT_DETAIL_BYTES];
    bool turn_is_open;

    /* a person */
    bool is_interactive, waits; /* waits: before anything else */
    bool has_begun;             /* RECORD_BEGIN was asked for */
    bool checks_stop, stop_is_checked;
    int stops_refused;
    bool is_leaving;       /* somebody ended the run */
    bool leaves_when_idle; /* no message comes any more */
    enum agent_stop idle_stop;
    struct buffer queue[AGENT_QUEUE_MAX]; /* [queue_count] messages for the next turn */
    size_t queue_count, queue_bytes;
    struct buffer remarks[AGENT_REMARKS_MAX]; /* [remark_count] for the next turn */
    size_t remark_count, remark_bytes;
    size_t remarks_given;                /* in the conversation since the last turn was recorded, */
    size_t remark_at[AGENT_REMARKS_MAX]; /* [remarks_given] as these messages */
    size_t person_from, person_count;    /* of them, in the conversation since the last turn */
    size_t unrun_from, unrun_count;      /* answers to calls that never ran, since the last turn */
    int32_t turn_effort;                 /* of the present turn */
    int32_t effort_told;                 /* as the context has it */

    /* budgets */
    int64_t started_ms;
    int64_t calls_run;
    int budget_said;        /* percent of the last mark that was told */
    bool has_refused_calls; /* for the budget of calls: one turn for an answer is left */

    int32_t turns;        /* with those before */
    int32_t turns_before; /* of a session that goes on */
    int64_t tokens_sampled;
    int32_t context_tokens;
    int32_t append_tokens;
    size_t conversation_bytes;
    size_t context_messages; /* messages the sequence holds */
    bool end_is_missing;

    /* compaction */
    int32_t compact_at_percent, compact_keep_turns;
    bool compact_is_asked;
    bool has_compacted;      /* and no turn has come to its end since */
    bool is_idle_compaction; /* nothing is to be done behind it */
    struct buffer compact_remark;
    size_t fresh_from;     /* messages below were there before this run */
    size_t person_message; /* the last one that a person wrote; 0: the task, or not known */

    /* the present turn */
    int64_t turn_tokens;      /* that it may sample */
    int64_t turn_deadline_ms; /* as it began with it */
    bool turn_is_budgeted;    /* turn_tokens is what was left of the budget */
    uint64_t turn_digest;
    bool turn_is_capped; /* it ends where a summary needs the rest of the context */
    enum finish_reason reason;
    bool has_problems;
    char problem[AGENT_DETAIL_BYTES];
    char stop_string[AGENT_DETAIL_BYTES];
    size_t turn_message; /* index of the assistant's message */
    size_t call_count;
    size_t call_index;
    size_t calls_total;
    bool output_is_empty;

    /* detectors */
    int malformed_in_row;
    int cuts_in_row, loops_in_row;
    char notice[2 * AGENT_DETAIL_BYTES]; /* for the model before its next turn; "": none */
    int unknown_in_row;
    struct call_history history;
    bool ends_task;
};

/* ---- agent_go.c ---- */
struct agent_effect *agent_effect_add(struct agent_effects *effects, enum agent_effect_type type);
/* The first reason to stop is the one that is reported. */
void agent_stop_set(struct agent *agent, enum agent_stop stop, const char *format, ...)
    PRINTF_LIKE(3, 4);
void agent_stop_set_error(
    struct agent *agent, enum agent_stop stop, const struct error *error, const char *otherwise
);
void agent_stop_for_time(struct agent *agent);
void agent_stop_for_turns(struct agent *agent);
void agent_go_to_turn(struct agent *agent, struct agent_effects *effects);
void agent_go_to_record_turn(struct agent *agent, struct agent_effects *effects);
void agent_go_to_compact(struct agent *agent, struct agent_effects *effects);
void agent_go_to_generate(struct agent *agent, int64_t now_ms, struct agent_effects *effects);
void agent_go_to_call(struct agent *agent, struct agent_effects *effects);
void agent_go_to_calling(struct agent *agent, int64_t now_ms, struct agent_effects *effects);
/* By way of whatever is open; an interactive agent then waits, if it may. */
void agent_go_to_end(struct agent *agent, struct agent_effects *effects);

/* ---- agent_turn.c ---- */
void agent_take_output(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
);
void agent_decide_after_output(struct agent *agent, struct agent_effects *effects);
void agent_take_result(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
);

/* ---- agent_person.c ---- */
/* Whether the present stop leads to waiting for the person instead of the end. */
bool agent_stop_is_pause(const struct agent *agent);
/* Copies a message for the next turn. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result agent_queue_push(struct agent *agent, struct view text, struct error *error);
/* The same with a remark. */
MUST_CHECK result agent_remark_push(struct agent *agent, struct view text, struct error *error);
/* Answers the calls of the last turn that have no result, as `text` says. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result agent_answer_unrun(struct agent *agent, const char *text, struct error *error);
/* Closes a turn that the context begins and nobody wrote; nothing when there is none. Expected errors:
 * LIMIT, MEMORY. */
MUST_CHECK result agent_close_turn(struct agent *agent, struct error *error);
/* What comes before the next turn: notices, remarks, then the messages of the person. Expected errors: as above. */
MUST_CHECK result agent_take_messages(struct agent *agent, struct error *error);

/* ---- agent_budget.c ---- */
void agent_share_take(struct agent *agent, const struct agent_share *share);
/* Whether what ended the present turn is a share that has grown meanwhile. */
bool agent_share_has_grown(const struct agent *agent, int64_t now_ms);
/* What is left, for the tail of a result; false when nothing is to be said. */
bool agent_budget_line(struct agent *agent, int64_t now_ms, char *out, size_t bytes);
/* Time for a call: what is left to the deadline less a reserve for the answer; 0: no deadline. */
int64_t agent_budget_call_ms(const struct agent *agent, int64_t now_ms);

/* ---- agent_compaction.c ---- */
/* What is known of a conversation that goes on. */
void agent_compaction_resume(struct agent *agent);
/* Before a turn: whether the context is replaced first. */
bool agent_compaction_is_due(const struct agent *agent);
/* For RECORD_TURN, INT32_MAX when there is nothing else to do with a longer one. */
int32_t agent_compaction_append_max(const struct agent *agent);
/* Where the turn ends that begins with append_tokens. */
int32_t agent_compaction_turn_end(const struct agent *agent);
/* Whether a turn that the end of the context cut is followed by a compaction. */
bool agent_compaction_may_follow(const struct agent *agent);
void agent_compaction_fill(const struct agent *agent, struct agent_effect *effect);
/* Expected errors: LIMIT, MEMORY (of the remark). */
MUST_CHECK result
agent_compaction_ask(struct agent *agent, struct view remark, struct error *error);
void agent_compaction_take(struct agent *agent, const struct agent_event *event);
/* AGENT_REWOUND: the conversation and its context are earlier ones. */
void agent_rewind_take(struct agent *agent, const struct agent_event *event);
/* It came to nothing. */
void agent_compaction_forget(struct agent *agent);

/* ---- agent_create.c ---- */
size_t agent_message_bytes(const struct chat_message *message);
/* Appends to the conversation. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result
agent_append(struct agent *agent, const struct chat_message *message, struct error *error);
/* Something that the model is told before its next turn. */
void agent_notice(struct agent *agent, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
