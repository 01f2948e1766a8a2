/* Where an agent goes next: a turn, a generation, a call, the person, the end. See agent.h. */
#include "agent_internal.h"

#include <inttypes.h>
#include <stdarg.h>

struct agent_effect *agent_effect_add(struct agent_effects *effects, enum agent_effect_type type) {
    ASSERT(effects->count < AGENT_EFFECTS_MAX);
    struct agent_effect *effect = &effects->items[effects->count++];
    *effect = (struct agent_effect){.type = type};
    return effect;
}

/* The first reason to stop is the one that is reported. */
PRINTF_LIKE(3, 4)
void agent_stop_set(struct agent *agent, enum agent_stop stop, const char *format, ...) {
    if (agent->stop != AGENT_GOES_ON) {
        return;
    }
    agent->stop = stop;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(agent->detail, sizeof agent->detail, format, arguments);
    va_end(arguments);
    if (written < 0) {
        agent->detail[0] = '\0';
    }
}

void agent_stop_set_error(
    struct agent *agent, enum agent_stop stop, const struct error *error, const char *otherwise
) {
    agent_stop_set(
        agent, stop, "%s", error != NULL && error->message[0] ? error->message : otherwise
    );
}

void agent_go_to_turn(struct agent *agent, struct agent_effects *effects);

/* What would be the end of another agent: messages that wait are given, else the person is waited for. */
static void go_to_idle(struct agent *agent, struct agent_effects *effects) {
    agent->idle_stop = agent->stop;
    agent->stop = AGENT_GOES_ON;
    if (agent->queue_count > 0) {
        agent_go_to_turn(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_IDLE;
    agent_effect_add(effects, AGENT_IDLE);
}

void agent_go_to_end(struct agent *agent, struct agent_effects *effects) {
    ASSERT(agent->stop != AGENT_GOES_ON);
    if (agent->turn_is_open) {
        agent->state = AGENT_STATE_TURN_END;
        agent_effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    bool has_answered = agent->stop == AGENT_STOP_ANSWER || agent->stop == AGENT_STOP_FINISH;
    if (has_answered && agent->checks_stop && !agent->stop_is_checked &&
        agent->stops_refused < AGENT_STOP_REFUSALS_MAX && agent->turns < agent->turns_max) {
        agent->state = AGENT_STATE_CHECKING;
        agent_effect_add(effects, AGENT_CHECK_STOP);
        return;
    }
    agent->stop_is_checked = false;
    if (agent_stop_is_pause(agent) && (agent->queue_count > 0 || !agent->leaves_when_idle)) {
        go_to_idle(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_END;
    agent_effect_add(effects, AGENT_RECORD_END);
}

void agent_stop_for_turns(struct agent *agent) {
    agent_stop_set(agent, AGENT_STOP_TURNS, "%d turns", agent->turns_each);
}

void agent_go_to_record_turn(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_TURN;
    agent->turn_is_open = true;
    struct agent_effect *effect = agent_effect_add(effects, AGENT_RECORD_TURN);
    effect->from_message = agent->context_messages;
    effect->end_is_missing = agent->end_is_missing;
    effect->append_max = agent_compaction_append_max(agent);
    effect->unrun_from = agent->unrun_from;
    effect->unrun_count = agent->unrun_count;
    effect->person_from = agent->person_from;
    effect->person_count = agent->person_count;
    effect->remark_count = agent->remarks_given;
}

void agent_go_to_compact(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_COMPACTING;
    agent->turn_deadline_ms = agent->deadline_ms;
    agent->turns++; /* it has a turn of its own in the record, beside those that are allowed */
    agent->turns_max++;
    agent_compaction_fill(agent, agent_effect_add(effects, AGENT_COMPACT));
}

void agent_go_to_turn(struct agent *agent, struct agent_effects *effects) {
    struct error error = {0};
    if (agent->stop == AGENT_GOES_ON && agent->queue_count == 0 &&
        agent->turns >= agent->turns_max) {
        agent_stop_for_turns(agent);
    }
    if (agent->stop == AGENT_GOES_ON && is_failed(agent_take_messages(agent, &error))) {
        agent_stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->turn_effort = agent->effort;
    if (agent->stop != AGENT_GOES_ON) {
        agent_go_to_end(agent, effects);
    } else if (agent_compaction_is_due(agent)) {
        agent_go_to_compact(agent, effects);
    } else {
        agent_go_to_record_turn(agent, effects);
    }
}

/* Sampled tokens allowed in the turn that starts, or a reason not to start it. */
static int32_t turn_tokens(struct agent *agent) {
    int32_t end = agent_compaction_turn_end(agent);
    int64_t room = (int64_t)end - agent->context_tokens - agent->append_tokens;
    if (room <= 0) {
        agent_stop_set(
            agent,
            AGENT_STOP_CONTEXT,
            "%d tokens in the context and %d more to append, of %d",
            agent->context_tokens,
            agent->append_tokens,
            agent->context_max
        );
        return 0;
    }
    int64_t tokens =
        agent->turn_tokens_max > 0 && agent->turn_tokens_max < room ? agent->turn_tokens_max : room;
    agent->turn_is_budgeted = false;
    if (agent->tokens_max != AGENT_NO_LIMIT) {
        int64_t left = agent->tokens_max - agent->tokens_sampled;
        if (left <= 0) {
            agent_stop_set(agent, AGENT_STOP_TOKENS, "%" PRId64 " tokens", agent->tokens_max);
            return 0;
        }
        agent->turn_is_budgeted = left < tokens;
        tokens = left < tokens ? left : tokens;
    }
    agent->turn_is_capped = end < agent->context_max && tokens == room;
    agent->turn_tokens = tokens;
    return narrow_i32(tokens);
}

void agent_stop_for_time(struct agent *agent) {
    agent_stop_set(agent, AGENT_STOP_TIME, "%.1f seconds", (double)agent->time_ms_max / 1000.0);
}

void agent_go_to_generate(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (now_ms >= agent->deadline_ms) {
        agent_stop_for_time(agent);
    }
    int32_t tokens = agent->stop == AGENT_GOES_ON ? turn_tokens(agent) : 0;
    if (agent->stop != AGENT_GOES_ON) {
        agent_go_to_end(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_GENERATING;
    agent->turns++;
    agent->call_count = 0;
    agent->call_index = 0;
    agent->turn_digest = 0;
    agent->turn_deadline_ms = agent->deadline_ms;
    struct agent_effect *effect = agent_effect_add(effects, AGENT_GENERATE);
    effect->tokens_max = tokens;
    effect->deadline_ms = agent->deadline_ms == INT64_MAX ? 0 : agent->deadline_ms;
    effect->first_call_number = agent->calls_total;
}

void agent_go_to_call(struct agent *agent, struct agent_effects *effects);

/* The budget of calls is spent: one turn is left to answer in. */
static void refuse_calls(struct agent *agent, struct agent_effects *effects) {
    struct error error = {0};
    if (agent->has_refused_calls) {
        agent_stop_set(agent, AGENT_STOP_CALLS, "%" PRId64 " calls", agent->calls_max);
    } else if (is_failed(agent_answer_unrun(
                   agent, "not run: the budget of tool calls is spent. Answer now.", &error
               ))) {
        agent_stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->has_refused_calls = true;
    agent->call_index = agent->call_count;
    agent_go_to_call(agent, effects);
}

void agent_go_to_call(struct agent *agent, struct agent_effects *effects) {
    if (agent->stop != AGENT_GOES_ON) {
        agent_go_to_end(agent, effects);
        return;
    }
    if (agent->call_index == agent->call_count && !agent->turn_is_open) {
        agent_go_to_turn(agent, effects); /* the calls were of a turn before the resume */
        return;
    }
    if (agent->call_index < agent->call_count && agent->calls_run >= agent->calls_max) {
        refuse_calls(agent, effects);
        return;
    }
    if (agent->call_index == agent->call_count) {
        agent->state = AGENT_STATE_TURN_END;
        agent_effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    agent->state = AGENT_STATE_CALL;
    agent_effect_add(effects, AGENT_RECORD_CALL)->call_index = agent->call_index;
}

void agent_go_to_calling(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (agent->stop != AGENT_GOES_ON) {
        /* Recorded, but never started: say so, then leave. */
        agent->state = AGENT_STATE_RESULT;
        struct agent_effect *record = agent_effect_add(effects, AGENT_RECORD_RESULT);
        record->call_index = agent->call_index;
        record->is_cancelled = true;
        return;
    }
    agent->state = AGENT_STATE_CALLING;
    struct agent_effect *effect = agent_effect_add(effects, AGENT_CALL);
    effect->call_index = agent->call_index;
    effect->time_ms_max = agent_budget_call_ms(agent, now_ms);
    agent->calls_run++;
}
