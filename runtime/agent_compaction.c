/* When an agent's context is replaced, and what it is afterwards; see agent.h and agent_history.h.
 *
 * A context is replaced between turns, never behind one that ended the work, and not again before the
 * model has finished a turn in the new one: so that it cannot go round in circles.
 */
#include "agent_internal.h"

#define SUMMARY_TOKENS_LEAST 64 /* of a budget that is nearly spent */

static struct agent_history_limits limits_of(const struct agent *agent) {
    return (struct agent_history_limits){agent->context_max, agent->compact_at_percent};
}

int32_t agent_context_due_at(const struct agent *agent) {
    const struct agent_history_limits limits = limits_of(agent);
    return agent_history_due_at(&limits);
}

bool agent_can_compact(const struct agent *agent) {
    if (agent->context_messages == 0) {
        return false;
    }
    /* What a summary is asked for in goes behind a turn of the model. */
    const struct chat_message *messages = chat_conversation_messages(agent->conversation);
    return messages[agent->context_messages - 1].role == CHAT_ASSISTANT;
}

void agent_compaction_resume(struct agent *agent) {
    const struct chat_message *messages = chat_conversation_messages(agent->conversation);
    size_t count = chat_conversation_count(agent->conversation);
    agent->fresh_from = count;
    for (size_t i = count; i > 2 && agent->person_message == 0; i--) { /* 1 is the task */
        if (messages[i - 1].role == CHAT_USER && !agent_message_is_of_host(&messages[i - 1])) {
            agent->person_message = i - 1;
        }
    }
}

/* Whether it may happen without anybody asking for it. */
static bool may_compact(const struct agent *agent) {
    int64_t left = agent->tokens_max - agent->tokens_sampled;
    bool has_tokens = agent->tokens_max == AGENT_NO_LIMIT || left >= SUMMARY_TOKENS_LEAST;
    return agent->compact_at_percent > 0 && agent->context_max >= AGENT_HISTORY_CONTEXT_MIN &&
           !agent->has_compacted && has_tokens && agent_can_compact(agent);
}

bool agent_compaction_is_due(const struct agent *agent) {
    const struct agent_history_limits limits = limits_of(agent);
    if (agent->compact_is_asked) {
        return agent_can_compact(agent);
    }
    return may_compact(agent) && agent_history_is_due(&limits, agent->context_tokens, 0);
}

bool agent_compaction_may_follow(const struct agent *agent) {
    return may_compact(agent);
}

int32_t agent_compaction_append_max(const struct agent *agent) {
    const struct agent_history_limits limits = limits_of(agent);
    if (!may_compact(agent)) {
        return INT32_MAX;
    }
    int32_t room = agent_history_turn_end(&limits) - agent->context_tokens;
    return room > limits.context_max / 16 ? room - limits.context_max / 16 : 0;
}

int32_t agent_compaction_turn_end(const struct agent *agent) {
    const struct agent_history_limits limits = limits_of(agent);
    int32_t end = agent_history_turn_end(&limits);
    /* A prompt that leaves no room below it has the whole context: there is no other way. */
    return agent->context_tokens + agent->append_tokens < end ? end : agent->context_max;
}

void agent_compaction_fill(const struct agent *agent, struct agent_effect *effect) {
    int64_t tokens = agent_history_summary_tokens(agent->context_max);
    int64_t left = agent->tokens_max - agent->tokens_sampled;
    if (agent->tokens_max != AGENT_NO_LIMIT && left < tokens) {
        tokens = left > 1 ? left : 1;
    }
    effect->from_message = agent->context_messages;
    effect->end_is_missing = agent->end_is_missing;
    effect->tokens_max = narrow_i32(tokens);
    effect->deadline_ms = agent->deadline_ms == INT64_MAX ? 0 : agent->deadline_ms;
    effect->limits = limits_of(agent);
    effect->keep_turns = agent->compact_keep_turns;
    effect->person_message = agent->person_count > 0 ? agent->person_from + agent->person_count - 1
                                                     : agent->person_message;
    effect->fresh_from = agent->fresh_from;
    effect->is_asked = agent->compact_is_asked;
    effect->remark_count = agent->remarks_given;
}

result agent_compaction_ask(struct agent *agent, struct view remark, struct error *error) {
    buffer_clear(&agent->compact_remark);
    TRY(buffer_append(&agent->compact_remark, remark, error));
    agent->compact_is_asked = true;
    return OK;
}

void agent_compaction_forget(struct agent *agent) {
    agent->compact_is_asked = false;
    buffer_clear(&agent->compact_remark);
}

/* The end of the conversation, with what came since the last turn, is as it was. */
static void move_marks(struct agent *agent, size_t before, size_t count) {
    if (agent->person_count > 0) {
        ASSERT(agent->person_from + count >= before);
        agent->person_from = agent->person_from + count - before;
    }
    agent->unrun_count = 0;   /* recorded with the rest, */
    agent->remarks_given = 0; /* and so are these */
    agent->fresh_from = agent->fresh_from + count > before ? agent->fresh_from + count - before : 0;
}

/* Another conversation, and the tokens of its context. */
static void replace(struct agent *agent, const struct agent_event *event) {
    chat_conversation_destroy(agent->conversation);
    agent->conversation = event->conversation;
    size_t count = chat_conversation_count(agent->conversation);
    const struct chat_message *messages = chat_conversation_messages(agent->conversation);
    ASSERT(messages[0].tool_count == agent->tool_count);
    for (size_t i = 0; i < agent->tool_count; i++) {
        agent->tool_names[i] = messages[0].tools[i].name;
    }
    agent->conversation_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        agent->conversation_bytes += agent_message_bytes(&messages[i]);
    }
    agent->context_tokens = event->context_tokens;
    agent->append_tokens = 0;
    agent->call_count = 0;
    agent->call_index = 0;
    agent->turn_message = 0;
}

void agent_rewind_take(struct agent *agent, const struct agent_event *event) {
    if (event->context_max > 0) {
        agent->context_max = event->context_max;
    }
    if (event->conversation == NULL) {
        return;
    }
    replace(agent, event);
    agent->context_messages = event->context_messages;
    agent->end_is_missing = event->end_is_missing;
    agent->unrun_count = 0;
    agent->person_count = 0;
    agent->remarks_given = 0;
    agent->person_message = 0;
    agent->fresh_from = 0;
    agent->notice[0] = '\0';
    agent->has_compacted = false;
}

void agent_compaction_take(struct agent *agent, const struct agent_event *event) {
    size_t count = chat_conversation_count(event->conversation);
    move_marks(agent, chat_conversation_count(agent->conversation), count);
    replace(agent, event);
    agent->tokens_sampled += event->sampled;
    agent->context_messages = count;
    agent->end_is_missing = false;
    agent->person_message = event->person_message;
    agent->has_compacted = true;
    agent_compaction_forget(agent);
}

struct view agent_compaction_remark(const struct agent *agent) {
    return buffer_view(&agent->compact_remark);
}
