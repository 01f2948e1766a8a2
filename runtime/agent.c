/* The agent's states; see agent.h.
 *
 * Every stop takes the same way out: close the open turn, record the end, finish. A wish to stop
 * (interrupt, deadline) that arrives while a generation or a tool runs cancels it and waits for its
 * answer; one that arrives while a record is written acts after it.
 */
#include "agent_internal.h"

#include <inttypes.h>
#include <stdarg.h>

/* ---- effects -------------------------------------------------------------------------------- */

static struct agent_effect *effect_add(struct agent_effects *effects, enum agent_effect_type type) {
    ASSERT(effects->count < AGENT_EFFECTS_MAX);
    struct agent_effect *effect = &effects->items[effects->count++];
    *effect = (struct agent_effect){.type = type};
    return effect;
}

/* The first reason to stop is the one that is reported. */
PRINTF_LIKE(3, 4)
static void stop_set(struct agent *agent, enum agent_stop stop, const char *format, ...) {
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

static void stop_set_error(
    struct agent *agent, enum agent_stop stop, const struct error *error, const char *otherwise
) {
    stop_set(agent, stop, "%s", error != NULL && error->message[0] ? error->message : otherwise);
}

static void go_to_turn(struct agent *agent, struct agent_effects *effects);

/* What would be the end of another agent: messages that wait are given, else the person is waited for. */
static void go_to_idle(struct agent *agent, struct agent_effects *effects) {
    agent->idle_stop = agent->stop;
    agent->stop = AGENT_GOES_ON;
    if (agent->queue_count > 0) {
        go_to_turn(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_IDLE;
    effect_add(effects, AGENT_IDLE);
}

static void go_to_end(struct agent *agent, struct agent_effects *effects) {
    ASSERT(agent->stop != AGENT_GOES_ON);
    if (agent->turn_is_open) {
        agent->state = AGENT_STATE_TURN_END;
        effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    bool has_answered = agent->stop == AGENT_STOP_ANSWER || agent->stop == AGENT_STOP_FINISH;
    if (has_answered && agent->checks_stop && !agent->stop_is_checked &&
        agent->stops_refused < AGENT_STOP_REFUSALS_MAX && agent->turns < agent->turns_max) {
        agent->state = AGENT_STATE_CHECKING;
        effect_add(effects, AGENT_CHECK_STOP);
        return;
    }
    agent->stop_is_checked = false;
    if (agent_stop_is_pause(agent) && (agent->queue_count > 0 || !agent->leaves_when_idle)) {
        go_to_idle(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_END;
    effect_add(effects, AGENT_RECORD_END);
}

static void stop_for_turns(struct agent *agent) {
    stop_set(agent, AGENT_STOP_TURNS, "%d turns", agent->turns_each);
}

static void go_to_record_turn(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_TURN;
    agent->turn_is_open = true;
    struct agent_effect *effect = effect_add(effects, AGENT_RECORD_TURN);
    effect->from_message = agent->context_messages;
    effect->end_is_missing = agent->end_is_missing;
    effect->append_max = agent_compaction_append_max(agent);
    effect->unrun_from = agent->unrun_from;
    effect->unrun_count = agent->unrun_count;
    effect->person_from = agent->person_from;
    effect->person_count = agent->person_count;
}

static void go_to_compact(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_COMPACTING;
    agent->turns++; /* it has a turn of its own in the record, beside those that are allowed */
    agent->turns_max++;
    agent_compaction_fill(agent, effect_add(effects, AGENT_COMPACT));
}

static void go_to_turn(struct agent *agent, struct agent_effects *effects) {
    struct error error = {0};
    if (agent->stop == AGENT_GOES_ON && agent->queue_count == 0 &&
        agent->turns >= agent->turns_max) {
        stop_for_turns(agent);
    }
    if (agent->stop == AGENT_GOES_ON && is_failed(agent_take_messages(agent, &error))) {
        stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->turn_effort = agent->effort;
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
    } else if (agent_compaction_is_due(agent)) {
        go_to_compact(agent, effects);
    } else {
        go_to_record_turn(agent, effects);
    }
}

/* Sampled tokens allowed in the turn that starts, or a reason not to start it. */
static int32_t turn_tokens(struct agent *agent) {
    int32_t end = agent_compaction_turn_end(agent);
    int64_t room = (int64_t)end - agent->context_tokens - agent->append_tokens;
    if (room <= 0) {
        stop_set(
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
    if (agent->tokens_max > 0) {
        int64_t left = agent->tokens_max - agent->tokens_sampled;
        if (left <= 0) {
            stop_set(agent, AGENT_STOP_TOKENS, "%" PRId64 " tokens", agent->tokens_max);
            return 0;
        }
        tokens = left < tokens ? left : tokens;
    }
    agent->turn_is_capped = end < agent->context_max && tokens == room;
    return narrow_i32(tokens);
}

static void stop_for_time(struct agent *agent) {
    stop_set(agent, AGENT_STOP_TIME, "%.1f seconds", (double)agent->time_ms_max / 1000.0);
}

static void go_to_generate(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (now_ms >= agent->deadline_ms) {
        stop_for_time(agent);
    }
    int32_t tokens = agent->stop == AGENT_GOES_ON ? turn_tokens(agent) : 0;
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
        return;
    }
    agent->state = AGENT_STATE_GENERATING;
    agent->turns++;
    agent->call_count = 0;
    agent->call_index = 0;
    struct agent_effect *effect = effect_add(effects, AGENT_GENERATE);
    effect->tokens_max = tokens;
    effect->deadline_ms = agent->deadline_ms == INT64_MAX ? 0 : agent->deadline_ms;
    effect->first_call_number = agent->calls_total;
}

static void go_to_call(struct agent *agent, struct agent_effects *effects);

/* The budget of calls is spent: one turn is left to answer in. */
static void refuse_calls(struct agent *agent, struct agent_effects *effects) {
    struct error error = {0};
    if (agent->has_refused_calls) {
        stop_set(agent, AGENT_STOP_CALLS, "%" PRId64 " calls", agent->calls_max);
    } else if (is_failed(agent_answer_unrun(
                   agent, "not run: the budget of tool calls is spent. Answer now.", &error
               ))) {
        stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->has_refused_calls = true;
    agent->call_index = agent->call_count;
    go_to_call(agent, effects);
}

static void go_to_call(struct agent *agent, struct agent_effects *effects) {
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
        return;
    }
    if (agent->call_index == agent->call_count && !agent->turn_is_open) {
        go_to_turn(agent, effects); /* the calls were of a turn before the resume */
        return;
    }
    if (agent->call_index < agent->call_count && agent->calls_max > 0 &&
        agent->calls_run >= agent->calls_max) {
        refuse_calls(agent, effects);
        return;
    }
    if (agent->call_index == agent->call_count) {
        agent->state = AGENT_STATE_TURN_END;
        effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    agent->state = AGENT_STATE_CALL;
    effect_add(effects, AGENT_RECORD_CALL)->call_index = agent->call_index;
}

/* ---- after a generation --------------------------------------------------------------------- */

static void
take_output(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
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
    if (event->reason == FINISH_DEADLINE) {
        stop_for_time(agent);
    } else if (event->reason == FINISH_ERROR) {
        bool is_full = event->error != NULL && event->error->code == RESULT_LIMIT;
        stop_set_error(
            agent, is_full ? AGENT_STOP_CONTEXT : AGENT_STOP_ENGINE, event->error, "no reason given"
        );
    }
    if (event->message == NULL) {
        stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "the generation did not begin");
        agent->end_is_missing = was_missing; /* the context is what it was */
        go_to_end(agent, effects);
        return;
    }
    struct error error = {0};
    if (is_failed(agent_append(agent, event->message, &error))) {
        stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
        go_to_end(agent, effects);
        return;
    }
    agent->turn_message = chat_conversation_count(agent->conversation) - 1;
    agent->context_messages = agent->turn_message + 1;
    agent->call_count = event->message->call_count;
    agent->output_is_empty = event->message->content.length == 0 && agent->call_count == 0;
    agent->state = AGENT_STATE_OUTPUT;
    effect_add(effects, AGENT_RECORD_OUTPUT);
}

/* A guard ended the turn: the model is told and may go on, a few times. */
static void take_cut(struct agent *agent) {
    agent->cuts_in_row++;
    agent->loops_in_row += agent->reason == FINISH_LOOP ? 1 : 0;
    if (agent->cuts_in_row >= AGENT_CUTS_MAX || agent->loops_in_row >= AGENT_LOOPS_MAX) {
        enum agent_stop stop = agent->reason == FINISH_LOOP       ? AGENT_STOP_LOOP
                               : agent->reason == FINISH_THINKING ? AGENT_STOP_THINKING
                                                                  : AGENT_STOP_OPEN_CALL;
        stop_set(agent, stop, "%d turns in a row were cut", agent->cuts_in_row);
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
        stop_set(agent, AGENT_STOP_GARBAGE, "%d turns in a row: %s", agent->malformed_in_row, why);
        go_to_end(agent, effects);
        return;
    }
    char text[AGENT_DETAIL_BYTES + 120];
    agent_malformed_text(agent->problem, text, sizeof text);
    agent_notice(agent, "%s", text);
    agent->state = AGENT_STATE_TURN_END;
    effect_add(effects, AGENT_RECORD_TURN_END);
}

/* The turn reached the part of the context that a summary needs. */
static void take_full(struct agent *agent) {
    if (agent_compaction_may_follow(agent)) {
        agent_notice(agent, "%s", agent_cut_text(FINISH_LENGTH));
        return;
    }
    stop_set(
        agent,
        AGENT_STOP_CONTEXT,
        "%d of %d tokens, and it was made smaller just before",
        agent->context_tokens,
        agent->context_max
    );
}

/* Reasons to stop that lie in how the generation ended. */
static void stop_by_reason(struct agent *agent) {
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_CONTEXT) {
        stop_set(
            agent, AGENT_STOP_CONTEXT, "%d of %d tokens", agent->context_tokens, agent->context_max
        );
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_LENGTH) {
        if (agent->tokens_max > 0 && agent->tokens_sampled >= agent->tokens_max) {
            stop_set(agent, AGENT_STOP_TOKENS, "%" PRId64 " tokens", agent->tokens_max);
        } else if (agent->context_tokens >= agent->context_max) {
            stop_set(agent, AGENT_STOP_CONTEXT, "all %d tokens are used", agent->context_max);
        } else if (agent->turn_is_capped) {
            take_full(agent);
        } else {
            stop_set(
                agent,
                AGENT_STOP_LENGTH,
                "no end after %d tokens: see --max-turn-tokens",
                agent->turn_tokens_max
            );
        }
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_CANCELLED) {
        stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "the generation was cancelled");
    }
    if (agent->stop == AGENT_GOES_ON && agent->reason == FINISH_STOP && agent->call_count == 0) {
        stop_set(agent, AGENT_STOP_STRING, "%s", agent->stop_string);
    }
    if (agent->stop == AGENT_GOES_ON && agent_reason_is_cut(agent->reason)) {
        take_cut(agent);
    }
}

static void decide_after_output(struct agent *agent, struct agent_effects *effects) {
    stop_by_reason(agent);
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
        return;
    }
    /* By a guard, or by the end of the context: other turns of that length ended the run. */
    bool is_cut = agent_reason_is_cut(agent->reason) || agent->reason == FINISH_LENGTH;
    if (agent->reason == FINISH_EOS || agent->reason == FINISH_STOP) {
        agent->has_compacted = false;
    }
    if (!is_cut) {
        agent->cuts_in_row = 0;
        agent->loops_in_row = 0;
    }
    if (is_cut && agent->call_count == 0) {
        agent->state = AGENT_STATE_TURN_END;
        effect_add(effects, AGENT_RECORD_TURN_END);
        return;
    }
    if (agent->call_count == 0 && (agent->has_problems || agent->output_is_empty)) {
        answer_malformed(agent, effects);
        return;
    }
    agent->malformed_in_row = 0;
    if (agent->call_count == 0) {
        stop_set(agent, AGENT_STOP_ANSWER, "%s", "");
    } else if (agent->turns >= agent->turns_max) {
        /* Nobody would read the results. */
        stop_for_turns(agent);
    } else if (agent->calls_total + agent->call_count > AGENT_CALLS_MAX) {
        stop_set(agent, AGENT_STOP_REPEAT, "more than %d calls", AGENT_CALLS_MAX);
    }
    agent->calls_total += agent->call_count;
    go_to_call(agent, effects);
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

static void
take_result(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    const struct chat_call *call = agent_call(agent, agent->call_index);
    agent->unknown_in_row = tool_is_declared(agent, call->name) ? 0 : agent->unknown_in_row + 1;
    int repeats = call_history_add(&agent->history, call, event->text);
    if (event->ends_task) {
        stop_set(agent, AGENT_STOP_FINISH, "%s", "");
    } else if (agent->unknown_in_row >= AGENT_UNKNOWN_MAX) {
        stop_set(
            agent,
            AGENT_STOP_UNKNOWN,
            "%d in a row, the last one \"%.*s\"",
            agent->unknown_in_row,
            (int)(call->name.length > 64 ? 64 : call->name.length),
            (const char *)call->name.data
        );
    } else if (repeats >= AGENT_REPEATS_MAX) {
        stop_set(
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
        stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent->state = AGENT_STATE_RESULT;
    effect_add(effects, AGENT_RECORD_RESULT)->call_index = agent->call_index;
}

static void go_to_calling(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (agent->stop != AGENT_GOES_ON) {
        /* Recorded, but never started: say so, then leave. */
        agent->state = AGENT_STATE_RESULT;
        struct agent_effect *record = effect_add(effects, AGENT_RECORD_RESULT);
        record->call_index = agent->call_index;
        record->is_cancelled = true;
        return;
    }
    agent->state = AGENT_STATE_CALLING;
    struct agent_effect *effect = effect_add(effects, AGENT_CALL);
    effect->call_index = agent->call_index;
    effect->time_ms_max = agent_budget_call_ms(agent, now_ms);
    agent->calls_run++;
}

/* ---- events --------------------------------------------------------------------------------- */

static void begin(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_BEGIN;
    agent->has_begun = true;
    effect_add(effects, AGENT_RECORD_BEGIN);
}

static void start(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    agent->started_ms = now_ms;
    if (agent->waits) {
        agent->state = AGENT_STATE_IDLE;
        effect_add(effects, AGENT_IDLE);
    } else {
        begin(agent, effects);
    }
    if (agent->time_ms_max > 0) {
        agent->deadline_ms = now_ms + agent->time_ms_max;
        effect_add(effects, AGENT_WAIT)->wake_ms = agent->deadline_ms;
    }
}

/* The prompt of the turn that was to begin is too long for this context. */
static void does_not_fit(struct agent *agent, struct agent_effects *effects) {
    agent->turn_is_open = false;
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
    } else {
        go_to_compact(agent, effects);
    }
}

static void compaction_failed(struct agent *agent, const struct agent_event *event) {
    bool was_asked = agent->compact_is_asked;
    enum result_code code = event->error != NULL ? event->error->code : RESULT_LIMIT;
    agent->turns--;
    agent->turns_max--;
    agent->tokens_sampled += event->sampled;
    /* One that was stopped is tried again when the work goes on. */
    agent->has_compacted = agent->has_compacted || code != RESULT_CANCELLED;
    agent_compaction_forget(agent);
    if (was_asked) {
        return; /* the driver says why; the work goes on as it was */
    }
    if (event->now_ms >= agent->deadline_ms) {
        stop_for_time(agent);
    }
    bool is_engine = code != RESULT_LIMIT && code != RESULT_MEMORY;
    stop_set_error(
        agent,
        code == RESULT_CANCELLED ? AGENT_STOP_INTERRUPT
        : is_engine              ? AGENT_STOP_ENGINE
                                 : AGENT_STOP_CONTEXT,
        event->error,
        "it cannot be made smaller"
    );
}

static void compaction_ended(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
) {
    bool is_idle = agent->is_idle_compaction;
    bool is_done = event->type == AGENT_COMPACTED;
    agent->is_idle_compaction = false;
    if (is_done) {
        agent_compaction_take(agent, event);
    } else {
        compaction_failed(agent, event);
    }
    if (agent->stop != AGENT_GOES_ON) {
        go_to_end(agent, effects);
    } else if (is_idle && agent->queue_count == 0) {
        agent->state = AGENT_STATE_IDLE;
        effect_add(effects, AGENT_IDLE);
    } else if (is_done && !is_idle) {
        go_to_record_turn(agent, effects); /* messages that came meanwhile wait for the next one */
    } else {
        go_to_turn(agent, effects);
    }
}

static void
recorded(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_BEGIN && agent->call_index < agent->call_count) {
        go_to_call(agent, effects);
    } else if (agent->state == AGENT_STATE_BEGIN) {
        go_to_turn(agent, effects);
    } else if (agent->state == AGENT_STATE_TURN) {
        agent->append_tokens = event->append_tokens;
        agent->unrun_count = 0;
        agent->person_count = 0;
        go_to_generate(agent, event->now_ms, effects);
    } else if (agent->state == AGENT_STATE_OUTPUT) {
        decide_after_output(agent, effects);
    } else if (agent->state == AGENT_STATE_CALL) {
        go_to_calling(agent, event->now_ms, effects);
    } else if (agent->state == AGENT_STATE_RESULT) {
        agent->call_index++;
        go_to_call(agent, effects);
    } else if (agent->state == AGENT_STATE_TURN_END) {
        agent->turn_is_open = false;
        go_to_turn(agent, effects);
    } else if (agent->state == AGENT_STATE_END) {
        agent->state = AGENT_STATE_FINISHED;
        effect_add(effects, AGENT_FINISH);
    }
}

/* What cannot be recorded is not acted upon. The end is still recorded if that works. */
static void
record_failed(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_END) {
        agent->state = AGENT_STATE_FINISHED;
        if (agent->stop != AGENT_STOP_RECORD) {
            agent->stop = AGENT_GOES_ON; /* the outcome itself is not durable */
            stop_set_error(agent, AGENT_STOP_RECORD, event->error, "unknown");
        }
        effect_add(effects, AGENT_FINISH);
        return;
    }
    if (agent->stop == AGENT_GOES_ON || agent->stop == AGENT_STOP_ANSWER ||
        agent->stop == AGENT_STOP_FINISH || agent_stop_is_pause(agent)) {
        agent->stop = AGENT_GOES_ON;
        stop_set_error(agent, AGENT_STOP_RECORD, event->error, "unknown");
    }
    agent->turn_is_open = false; /* closing it would fail in the same way; the store marks it */
    agent->state = AGENT_STATE_END;
    effect_add(effects, AGENT_RECORD_END);
}

/* Somebody wished to stop: what runs is cancelled, a record that is written is waited for. */
static void act_on_wish(struct agent *agent, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_NEW ||
        (agent->state == AGENT_STATE_IDLE && !agent->has_begun)) {
        agent->state = AGENT_STATE_FINISHED;
        effect_add(effects, AGENT_FINISH);
    } else if (agent->state == AGENT_STATE_IDLE) {
        go_to_end(agent, effects);
    } else if (agent->state == AGENT_STATE_GENERATING) {
        effect_add(effects, AGENT_CANCEL_GENERATE);
    } else if (agent->state == AGENT_STATE_CALLING) {
        effect_add(effects, AGENT_CANCEL_CALL);
    } else if (agent->state == AGENT_STATE_CHECKING) {
        effect_add(effects, AGENT_CANCEL_CHECK);
    } else if (agent->state == AGENT_STATE_COMPACTING) {
        effect_add(effects, AGENT_CANCEL_COMPACT);
    }
}

static void time_came(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (agent->deadline_ms == INT64_MAX || agent->state == AGENT_STATE_FINISHED) {
        return;
    }
    if (now_ms < agent->deadline_ms) {
        effect_add(effects, AGENT_WAIT)->wake_ms = agent->deadline_ms;
        return;
    }
    bool goes_on = agent->stop == AGENT_GOES_ON;
    if (goes_on || agent_stop_is_pause(agent)) {
        agent->stop = AGENT_GOES_ON;
        stop_for_time(agent);
    }
    if (goes_on || agent->state == AGENT_STATE_CHECKING) {
        act_on_wish(agent, effects);
    }
}

/* Somebody ends the run: where it would have waited for the person, it ends now. */
static void
leave(struct agent *agent, enum agent_stop stop, struct view who, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_FINISHED) {
        return;
    }
    bool goes_on = agent->stop == AGENT_GOES_ON;
    if (!goes_on && agent_stop_is_pause(agent)) {
        agent->idle_stop = agent->stop;
        agent->stop = AGENT_GOES_ON;
    }
    if (goes_on && agent->state != AGENT_STATE_IDLE) {
        agent->idle_stop = AGENT_GOES_ON; /* it is in the middle of something */
    }
    agent->is_leaving = true;
    stop_set(agent, stop, "%.*s", VIEW_ARGUMENTS(who));
    if (goes_on || agent->state == AGENT_STATE_CHECKING) {
        act_on_wish(agent, effects);
    }
}

/* What looks at an answer may want more: then the model is told, as often as is allowed. */
static void stop_checked(struct agent *agent, struct view text, struct agent_effects *effects) {
    bool has_answered = agent->stop == AGENT_STOP_ANSWER || agent->stop == AGENT_STOP_FINISH;
    agent->stop_is_checked = true;
    if (text.length == 0 || !has_answered) { /* or somebody ended it meanwhile */
        go_to_end(agent, effects);
        return;
    }
    const struct chat_message message = {.role = CHAT_USER, .content = text};
    struct error error = {0};
    agent->stops_refused++;
    agent->stop_is_checked = false;
    agent->stop = AGENT_GOES_ON;
    if (is_failed(agent_answer_unrun(agent, AGENT_NOT_RUN, &error)) ||
        is_failed(agent_append(agent, &message, &error))) {
        stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    go_to_turn(agent, effects);
}

static void message_came(struct agent *agent, struct view text, struct agent_effects *effects) {
    struct error error = {0};
    if (is_failed(agent_queue_push(agent, text, &error)) || agent->state != AGENT_STATE_IDLE) {
        return;
    }
    if (agent->has_begun) {
        go_to_turn(agent, effects);
    } else {
        begin(agent, effects);
    }
}

/* Before the next turn, or now when it waits for the person. */
static void
compaction_asked(struct agent *agent, struct view remark, struct agent_effects *effects) {
    struct error error = {0};
    bool is_idle = agent->state == AGENT_STATE_IDLE;
    if (agent->state == AGENT_STATE_COMPACTING || (is_idle && !agent_can_compact(agent)) ||
        is_failed(agent_compaction_ask(agent, remark, &error)) || !is_idle || !agent->has_begun ||
        is_failed(agent_answer_unrun(agent, AGENT_NOT_RUN, &error))) {
        return;
    }
    agent->is_idle_compaction = true;
    agent->turn_effort = agent->effort;
    go_to_compact(agent, effects);
}

/* What only an interactive agent takes. */
static void
person_came(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    bool works = agent->state != AGENT_STATE_NEW && agent->state != AGENT_STATE_IDLE &&
                 agent->state != AGENT_STATE_FINISHED;
    if (event->type == AGENT_MESSAGE) {
        message_came(agent, event->text, effects);
    } else if (event->type == AGENT_ASK_COMPACT) {
        compaction_asked(agent, event->text, effects);
    } else if (event->type == AGENT_EFFORT) {
        agent->effort = event->effort;
    } else if (event->type == AGENT_TELL) {
        agent_notice(agent, "%.*s", VIEW_ARGUMENTS(event->text));
    } else if (event->type == AGENT_REWOUND && agent->state == AGENT_STATE_IDLE) {
        agent_rewind_take(agent, event);
    } else if (event->type == AGENT_INPUT_END && works) {
        agent->leaves_when_idle = true;
    } else if (event->type == AGENT_QUIT || event->type == AGENT_INPUT_END) {
        leave(agent, AGENT_STOP_QUIT, view_of(NULL, 0), effects);
    } else if (event->type == AGENT_PAUSE && agent->state == AGENT_STATE_CHECKING) {
        act_on_wish(agent, effects);
    } else if (event->type == AGENT_PAUSE && works && agent->stop == AGENT_GOES_ON) {
        stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "by the user");
        act_on_wish(agent, effects);
    }
}

void agent_handle(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
) {
    *effects = (struct agent_effects){0};
    enum agent_state state = agent->state;
    if (event->type == AGENT_START && state == AGENT_STATE_NEW) {
        start(agent, event->now_ms, effects);
    } else if (event->type == AGENT_RECORDED) {
        recorded(agent, event, effects);
    } else if (event->type == AGENT_RECORD_FAILED) {
        record_failed(agent, event, effects);
    } else if (event->type == AGENT_GENERATED && state == AGENT_STATE_GENERATING) {
        take_output(agent, event, effects);
    } else if (event->type == AGENT_CALLED && state == AGENT_STATE_CALLING) {
        take_result(agent, event, effects);
    } else if (event->type == AGENT_CALL_FAILED && state == AGENT_STATE_CALLING) {
        stop_set_error(agent, AGENT_STOP_TOOL, event->error, "no reason given");
        agent->state = AGENT_STATE_RESULT;
        struct agent_effect *record = effect_add(effects, AGENT_RECORD_RESULT);
        record->call_index = agent->call_index;
        record->is_cancelled = true;
    } else if (event->type == AGENT_DOES_NOT_FIT && state == AGENT_STATE_TURN) {
        does_not_fit(agent, effects);
    } else if ((event->type == AGENT_COMPACTED || event->type == AGENT_COMPACT_FAILED) && state == AGENT_STATE_COMPACTING) {
        compaction_ended(agent, event, effects);
    } else if (event->type == AGENT_STOP_CHECKED && state == AGENT_STATE_CHECKING) {
        stop_checked(agent, event->text, effects);
    } else if (event->type == AGENT_TIME) {
        time_came(agent, event->now_ms, effects);
    } else if (event->type == AGENT_INTERRUPT) {
        struct view who = event->text.length > 0 ? event->text : view_of_text("by the user");
        leave(agent, AGENT_STOP_INTERRUPT, who, effects);
    } else if (agent->is_interactive) {
        person_came(agent, event, effects);
    }
}
