/* What others say to an agent: messages of a person and remarks that wait, and what they find when they come. See
 * agent.h. */
#include "agent_internal.h"

bool agent_stop_is_pause(const struct agent *agent) {
    if (!agent->is_interactive || agent->is_leaving) {
        return false;
    }
    static const enum agent_stop ends[] = {
        AGENT_GOES_ON,
        AGENT_STOP_TOKENS,
        AGENT_STOP_TIME,
        AGENT_STOP_CALLS,
        AGENT_STOP_ENGINE,
        AGENT_STOP_RECORD,
        AGENT_STOP_TOOL,
        AGENT_STOP_QUIT,
    };
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (agent->stop == ends[i]) {
            return false;
        }
    }
    return true;
}

result agent_queue_push(struct agent *agent, struct view text, struct error *error) {
    if (!agent_takes_message(agent, text.length)) {
        FAIL(
            error,
            LIMIT,
            "%zu messages of %zu bytes wait already",
            agent->queue_count,
            agent->queue_bytes
        );
    }
    struct buffer *slot = &agent->queue[agent->queue_count];
    buffer_init(slot, AGENT_QUEUE_BYTES_MAX);
    result copied = buffer_append(slot, text, error);
    if (is_failed(copied)) {
        buffer_deinit(slot);
        return copied;
    }
    agent->queue_count++;
    agent->queue_bytes += text.length;
    return OK;
}

result agent_remark_push(struct agent *agent, struct view text, struct error *error) {
    if (!agent_takes_remark(agent, text.length)) {
        FAIL(
            error,
            LIMIT,
            "%zu remarks of %zu bytes wait already",
            agent->remark_count,
            agent->remark_bytes
        );
    }
    CLEANUP(buffer_deinit) struct buffer copy;
    buffer_init(&copy, AGENT_REMARKS_BYTES_MAX);
    TRY(buffer_append(&copy, text, error));
    agent->remarks[agent->remark_count++] = copy;
    copy = (struct buffer){0};
    agent->remark_bytes += text.length;
    return OK;
}

result agent_answer_unrun(struct agent *agent, const char *text, struct error *error) {
    size_t count = chat_conversation_count(agent->conversation);
    size_t answered = agent->call_count > 0 ? count - agent->turn_message - 1 : 0;
    for (size_t i = answered; i < agent->call_count; i++) {
        const struct chat_message answer = {
            .role = CHAT_TOOL,
            .content = view_of_text(text),
            .call_id = agent_call(agent, i)->id,
        };
        TRY(agent_append(agent, &answer, error));
        if (agent->unrun_count == 0) {
            agent->unrun_from = chat_conversation_count(agent->conversation) - 1;
        }
        agent->unrun_count++;
    }
    return OK;
}

static result append_user(struct agent *agent, struct view text, struct error *error) {
    const struct chat_message message = {.role = CHAT_USER, .content = text};
    return agent_append(agent, &message, error);
}

/* The person's messages begin a piece of work: what was counted against the last one is forgotten. */
static void forget_troubles(struct agent *agent) {
    agent->turns_max = agent->turns + agent->turns_each;
    agent->stops_refused = 0;
    agent->malformed_in_row = 0;
    agent->cuts_in_row = 0;
    agent->loops_in_row = 0;
    agent->unknown_in_row = 0;
    agent->history = (struct call_history){0};
}

/* Takes all, also after a failure: a message that does not fit is not tried again for ever. */
static result take_queue(struct agent *agent, struct error *error) {
    result taken = OK;
    if (agent->queue_count > 0) {
        forget_troubles(agent);
    }
    for (size_t i = 0; i < agent->queue_count; i++) {
        if (is_ok(taken)) {
            taken = append_user(agent, buffer_view(&agent->queue[i]), error);
        }
        if (is_ok(taken) && agent->person_count++ == 0) {
            agent->person_from = chat_conversation_count(agent->conversation) - 1;
        }
        buffer_deinit(&agent->queue[i]);
    }
    agent->queue_count = 0;
    agent->queue_bytes = 0;
    return taken;
}

/* All, as with messages. They are no person's: what was counted against the agent stays, but for repeated
 * calls: waiting for the next message is the same call with the same result, and no circle. */
static result take_remarks(struct agent *agent, struct error *error) {
    result taken = OK;
    if (agent->remark_count > 0) {
        agent->history = (struct call_history){0};
    }
    for (size_t i = 0; i < agent->remark_count; i++) {
        if (is_ok(taken)) {
            taken = append_user(agent, buffer_view(&agent->remarks[i]), error);
        }
        if (is_ok(taken)) {
            ASSERT(agent->remarks_given < AGENT_REMARKS_MAX); /* agent_takes_remark saw to it */
            agent->remark_at[agent->remarks_given++] =
                chat_conversation_count(agent->conversation) - 1;
        }
        buffer_deinit(&agent->remarks[i]);
    }
    agent->remark_count = 0;
    agent->remark_bytes = 0;
    return taken;
}

/* A context that ends with the header of a turn which was not written, as after a compaction or a
 * resume that was interrupted: for what follows it counts as cut before its first token. */
result agent_close_turn(struct agent *agent, struct error *error) {
    size_t count = chat_conversation_count(agent->conversation);
    const struct chat_message *messages = chat_conversation_messages(agent->conversation);
    if (count == 0 || count != agent->context_messages ||
        messages[count - 1].role == CHAT_ASSISTANT || messages[count - 1].role == CHAT_SYSTEM) {
        return OK;
    }
    TRY(agent_append(agent, &(struct chat_message){.role = CHAT_ASSISTANT}, error));
    agent->context_messages = count + 1;
    agent->end_is_missing = true;
    return OK;
}

result agent_take_messages(struct agent *agent, struct error *error) {
    TRY(agent_answer_unrun(agent, AGENT_NOT_RUN, error));
    if (agent->effort != agent->effort_told && agent->effort != CHAT_EFFORT_OFF) {
        if (agent->context_messages > 0) { /* else the prompt's head says it */
            agent_notice(agent, "Reasoning effort from now on: %d of 100.", agent->effort);
        }
        agent->effort_told = agent->effort;
    }
    if (agent->notice[0] != '\0' || agent->queue_count > 0 || agent->remark_count > 0) {
        TRY(agent_close_turn(agent, error));
    }
    if (agent->notice[0] != '\0') {
        TRY(append_user(agent, view_of_text(agent->notice), error));
        agent->notice[0] = '\0';
    }
    TRY(take_remarks(agent, error));
    return take_queue(agent, error);
}
