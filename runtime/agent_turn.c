/* What an agent makes of a generation and of a call's result, and when it gives up. See agent.h. */
#include "agent_internal.h"

#include <inttypes.h>

/* ---- after a generation --------------------------------------------------------------------- */

void agent_take_output(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
) {
    agent->reason = event->reason;
    agent->tokens_sampled += event->sampled;
    if (event->context_tokens > 0) {
        agent->context_tokens = event->context_tokens;
    }
    bool was_missing = agent->end_is_missing;
    agent->end_is_missing = event->reason != FINISH_EOS;
    agent->has_problems = event->has_problems;
    int written =
        snprintf(agent->problem, sizeof agent->problem, "%.*s", VIEW_ARGUMENTS(event->problem));
    ASSERT(written >= 0);
    written = snprintf(
        agent->stop_string, sizeof agent->stop_string, "%.*s", VIEW_ARGUMENTS(event->stop)
    );
    ASSERT(written >= 0);
    bool has_grown = agent_share_has_grown(agent, event->now_ms);
    if (event->reason == FINISH_DEADLINE && !has_grown) {
        agent_stop_for_time(agent);
    } else if (event->reason == FINISH_ERROR) {
        bool is_full = event->error != NULL && event->error->code == RESULT_LIMIT;
        agent_stop_set_error(
            agent, is_full ? AGENT_STOP_CONTEXT : AGENT_STOP_ENGINE, event->error, "no reason given"
        );
    }
    if (event->message == NULL && has_grown && agent->stop == AGENT_GOES_ON) {
        agent->end_is_missing = was_missing; /* the next turn asks for it again */
        agent->state = AGENT_STATE_TURN_END;
        agent_effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    if (event->message == NULL) {
        agent_stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "the generation did not begin");
        agent->end_is_missing = was_missing; /* the context is what it was */
        agent_go_to_end(agent, effects);
        return;
    }
    struct error error = {0};
    if (is_failed(agent_append(agent, event->message, &error))) {
        agent_stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
        agent_go_to_end(agent, effects);
        return;
    }
    agent->turn_message = chat_conversation_count(agent->conversation) - 1;
    agent->context_messages = agent->turn_message + 1;
    agent->call_count = event->message->call_count;
    agent->output_is_empty = event->message->content.length == 0 && agent->call_count == 0;
    agent->state = AGENT_STATE_OUTPUT;
    agent_effect_add(effects, AGENT_RECORD_OUTPUT);
}

/* A guard ended the turn: the model is told and may go on, a few times. */
static void take_cut(struct agent *agent) {
    agent->cuts_in_row++;
    agent->loops_in_row += agent->reason == FINISH_LOOP ? 1 : 0;
    if (agent->cuts_in_row >= AGENT_CUTS_MAX || agent->loops_in_row >= AGENT_LOOPS_MAX) {
        enum agent_stop stop = agent->reason == FINISH_LOOP       ? AGENT_STOP_LOOP
                               : agent->reason == FINISH_THINKING ? AGENT_STOP_THINKING
                                                                  : AGENT_STOP_OPEN_CALL;
        agent_stop_set(agent, stop, "%d turns in a row were cut", agent->cuts_in_row);
        return;
    }
    agent_notice(agent, "%s", agent_cut_text(agent->reason));
}

/* A turn that holds nothing usable: the model is told what was wrong and may try again, a few
 * times. */
static void answer_malformed(struct agent *agent, struct agent_effects *effects) {
    agent->malformed_in_row++;
    const char *why = agent->problem[0] ? agent->problem : AGENT_NOTHING_SAID;
    if (agent->malformed_in_row >= AGENT_MALFORMED_MAX) {
        agent_stop_set(
            agent, AGENT_STOP_GARBAGE, "%d turns in a row: %s", agent->malformed_in_row, why
        );
        agent_go_to_end(agent, effects);
        return;
    }
    char text[AGENT_DETAIL_BYTES + 120];
    agent_malformed_text(agent->problem, text, sizeof text);
    agent_notice(agent, "%s", text);
    agent->state = AGENT_STATE_TURN_END;
    agent_effect_add(effects, AGENT_RECORD_TURN_END);
}

/* The turn reached the part of the context that a summary needs. */
static void take_full(struct agent *agent) {
    if (agent_compaction_may_follow(agent)) {
        agent_notice(agent, "%s", agent_cut_text(FINISH_LENGTH));
        return;
    }
    agent_stop_set(
        agent,
        AGENT_STOP_CONTEXT,
        "%d of %d tokens, and it was made smaller just before",
        agent->context_tokens,
        agent->context_max
    );
}

static void stop_for_tokens(struct agent *agent) {
    agent_stop_set(agent, AGENT_STOP_TOKENS, "%" PRId64 " tokens", agent->tokens_max);
}

/* Reasons to stop that lie in how the generation ended. */
static void stop_by_reason(struct agent *agent) {
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_CONTEXT) {
        agent_stop_set(
            agent, AGENT_STOP_CONTEXT, "%d of %d tokens", agent->context_tokens, agent->context_max
        );
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_LENGTH) {
        if (agent->tokens_sampled >= agent->tokens_max) {
            stop_for_tokens(agent);
        } else if (agent->context_tokens >= agent->context_max) {
            agent_stop_set(agent, AGENT_STOP_CONTEXT, "all %d tokens are used", agent->context_max);
        } else if (agent->turn_is_capped) {
            take_full(agent);
        } else if (agent->turn_is_budgeted) { /* and the budget has grown */
            agent_notice(agent, "%s", AGENT_LIMIT_RAISED);
        } else {
            agent_stop_set(
                agent,
                AGENT_STOP_LENGTH,
                "no end after %d tokens: see --max-turn-tokens",
                agent->turn_tokens_max
            );
        }
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_DEADLINE) { /* which is later now */
        agent_notice(agent, "%s", AGENT_LIMIT_RAISED);
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_CANCELLED &&
        agent->tokens_sampled >= agent->tokens_max) {
        stop_for_tokens(agent); /* the budget became smaller meanwhile */
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_CANCELLED) {
        agent_stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "the generation was cancelled");
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_STOP && agent->call_count == 0) {
        agent_stop_set(agent, AGENT_STOP_STRING, "%s", agent->stop_string);
    }
    if (agent->stop == AGENT_GOES_ON && agent_reason_is_cut(agent->reason)) {
        take_cut(agent);
    }
}

void agent_decide_after_output(struct agent *agent, struct agent_effects *effects) {
    stop_by_reason(agent);
    if (agent->stop != AGENT_GOES_ON) {
        agent_go_to_end(agent, effects);
        return;
    }
    /* By a guard, by the end of the context, or by a limit that was raised: else the run ended. */
    bool is_cut = agent_reason_is_cut(agent->reason) || agent->reason == FINISH_LENGTH ||
                  agent->reason == FINISH_DEADLINE;
    if (agent->reason == FINISH_EOS || agent->reason == FINISH_STOP) {
        agent->has_compacted = false;
    }
    if (!is_cut) {
        agent->cuts_in_row = 0;
        agent->loops_in_row = 0;
    }
    if (is_cut && agent->call_count == 0) {
        agent->state = AGENT_STATE_TURN_END;
        agent_effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    if (agent->call_count == 0 && (agent->has_problems || agent->output_is_empty)) {
        answer_malformed(agent, effects);
        return;
    }
    agent->malformed_in_row = 0;
    if (agent->call_count == 0) {
        agent_stop_set(agent, AGENT_STOP_ANSWER, "%s", "");
    } else if (agent->turns >= agent->turns_max) {
        /* Nobody would read the results. */
        agent_stop_for_turns(agent);
    } else if (agent->calls_total + agent->call_count > AGENT_CALLS_MAX) {
        agent_stop_set(agent, AGENT_STOP_REPEAT, "more than %d calls", AGENT_CALLS_MAX);
    }
    agent->calls_total += agent->call_count;
    agent_go_to_call(agent, effects);
}

/* ---- after a call --------------------------------------------------------------------------- */

static bool tool_is_declared(const struct agent *agent, struct view name) {
    for (size_t i = 0; i < agent->tool_count; i++) {
        if (view_equals(agent->tool_names[i], name)) {
            return true;
        }
    }
    return false;
}

/* The result, and what is left of the budgets at its tail, where it costs no prefix. */
static result append_answer(
    struct agent *agent,
    const struct chat_call *call,
    const struct agent_event *event,
    struct error *error
) {
    char line[AGENT_DETAIL_BYTES];
    struct chat_message message = {.role = CHAT_TOOL, .content = event->text, .call_id = call->id};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, AGENT_CONVERSATION_BYTES_MAX);
    if (agent_budget_line(agent, event->now_ms, line, sizeof line)) {
        TRY(buffer_append(&text, event->text, error));
        TRY(buffer_append_format(&text, error, "%s%s", event->text.length > 0 ? "\n" : "", line));
        message.content = buffer_view(&text);
    }
    return agent_append(agent, &message, error);
}

void agent_take_result(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
) {
    const struct chat_call *call = agent_call(agent, agent->call_index);
    agent->unknown_in_row = tool_is_declared(agent, call->name) ? 0 : agent->unknown_in_row + 1;
    int repeats = call_history_add(&agent->history, call, event->text);
    agent->turn_digest = call_digest(agent->turn_digest, call, event->text);
    if (event->ends_task) {
        agent_stop_set(agent, AGENT_STOP_FINISH, "%s", "");
    } else if (agent->unknown_in_row >= AGENT_UNKNOWN_MAX) {
        agent_stop_set(
            agent,
            AGENT_STOP_UNKNOWN,
            "%d in a row, the last one \"%.*s\"",
            agent->unknown_in_row,
            (int)(call->name.length > 64 ? 64 : call->name.length),
            (const char *)call->name.data
        );
    } else if (repeats >= AGENT_REPEATS_MAX) {
        agent_stop_set(
            agent,
            AGENT_STOP_REPEAT,
            "%.*s, %d times",
            (int)(call->name.length > 64 ? 64 : call->name.length),
            (const char *)call->name.data,
            repeats
        );
    } else if (repeats == AGENT_REPEATS_MAX - 1) {
        agent_notice(
            agent,
            "You called %.*s %d times in the same way and got the same result each time. Do "
            "something else.",
            (int)(call->name.length > 64 ? 64 : call->name.length),
            (const char *)call->name.data,
            repeats
        );
    }
    struct error error = {0};
    if (is_failed(append_answer(agent, call, event, &error))) {
        agent_stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->state = AGENT_STATE_RESULT;
    agent_effect_add(effects, AGENT_RECORD_RESULT)->call_index = agent->call_index;
}
