/* Between the files of the agent: its state (agent.c), its making (agent_create.c), what a person does
 * with it (agent_person.c) and what its budgets say (agent_budget.c). See agent.h.
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
    AGENT_STATE_END,
    AGENT_STATE_FINISHED
};

struct agent {
    enum agent_state state;
    struct chat_conversation *conversation;
    struct view *tool_names; /* into the conversation's system message */
    size_t tool_count;
    int32_t effort, turns_max, turn_tokens_max, context_max;
    int64_t tokens_max, time_ms_max, deadline_ms;

    enum agent_stop stop; /* decided */
    char detail[AGENT_DETAIL_BYTES];
    bool turn_is_open;

    int32_t turns;        /* with those before */
    int32_t turns_before; /* of a session that goes on */
    int64_t tokens_sampled;
    int32_t context_tokens;
    int32_t append_tokens;
    size_t conversation_bytes;
    size_t context_messages; /* messages the sequence holds */
    bool end_is_missing;

    /* the present turn */
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

/* ---- agent_create.c ---- */
/* Appends to the conversation. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result
agent_append(struct agent *agent, const struct chat_message *message, struct error *error);
/* Something that the model is told before its next turn. */
void agent_notice(struct agent *agent, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
