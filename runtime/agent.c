/* The agent's states; see agent.h.
 *
 * Every stop takes the same way out: close the open turn, record the end, finish. A wish to stop
 * (interrupt, deadline) that arrives while a generation or a tool runs cancels it and waits for its
 * answer; one that arrives while a record is written acts after it.
 */
#include "agent_internal.h"

static void begin(struct agent *agent, struct agent_effects *effects) {
    agent->state = AGENT_STATE_BEGIN;
    agent->has_begun = true;
    agent_effect_add(effects, AGENT_RECORD_BEGIN);
}

static void start(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    agent->started_ms = now_ms;
    if (agent->waits) {
        agent->state = AGENT_STATE_IDLE;
        agent_effect_add(effects, AGENT_IDLE);
    } else {
        begin(agent, effects);
    }
    if (agent->time_ms_max != AGENT_NO_LIMIT) {
        agent->deadline_ms = now_ms + agent->time_ms_max;
        agent_effect_add(effects, AGENT_WAIT)->wake_ms = agent->deadline_ms;
    }
}

/* The prompt of the turn that was to begin is too long for this context. */
static void does_not_fit(struct agent *agent, struct agent_effects *effects) {
    agent->turn_is_open = false;
    if (agent->stop != AGENT_GOES_ON) {
        agent_go_to_end(agent, effects);
    } else {
        agent_go_to_compact(agent, effects);
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
        agent_stop_for_time(agent);
    }
    if (code == RESULT_CANCELLED && agent->turn_deadline_ms < agent->deadline_ms) {
        return; /* its deadline came, and is a later one now */
    }
    bool is_engine = code != RESULT_LIMIT && code != RESULT_MEMORY;
    agent_stop_set_error(
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
        agent_go_to_end(agent, effects);
    } else if (is_idle && agent->queue_count == 0) {
        agent->state = AGENT_STATE_IDLE;
        agent_effect_add(effects, AGENT_IDLE);
    } else if (is_done && !is_idle) {
        agent_go_to_record_turn(
            agent, effects
        ); /* messages that came meanwhile wait for the next one */
    } else {
        agent_go_to_turn(agent, effects);
    }
}

static void
recorded(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_BEGIN && agent->call_index < agent->call_count) {
        agent_go_to_call(agent, effects);
    } else if (agent->state == AGENT_STATE_BEGIN) {
        agent_go_to_turn(agent, effects);
    } else if (agent->state == AGENT_STATE_TURN) {
        agent->append_tokens = event->append_tokens;
        agent->unrun_count = 0;
        agent->person_count = 0;
        agent->remarks_given = 0;
        agent_go_to_generate(agent, event->now_ms, effects);
    } else if (agent->state == AGENT_STATE_OUTPUT) {
        agent_decide_after_output(agent, effects);
    } else if (agent->state == AGENT_STATE_CALL) {
        agent_go_to_calling(agent, event->now_ms, effects);
    } else if (agent->state == AGENT_STATE_RESULT) {
        agent->call_index++;
        agent_go_to_call(agent, effects);
    } else if (agent->state == AGENT_STATE_TURN_END) {
        agent->turn_is_open = false;
        agent_go_to_turn(agent, effects);
    } else if (agent->state == AGENT_STATE_END) {
        agent->state = AGENT_STATE_FINISHED;
        agent_effect_add(effects, AGENT_FINISH);
    }
}

/* What cannot be recorded is not acted upon. The end is still recorded if that works. */
static void
record_failed(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_END) {
        agent->state = AGENT_STATE_FINISHED;
        if (agent->stop != AGENT_STOP_RECORD) {
            agent->stop = AGENT_GOES_ON; /* the outcome itself is not durable */
            agent_stop_set_error(agent, AGENT_STOP_RECORD, event->error, "unknown");
        }
        agent_effect_add(effects, AGENT_FINISH);
        return;
    }
    if (agent->stop == AGENT_GOES_ON || agent->stop == AGENT_STOP_ANSWER ||
        agent->stop == AGENT_STOP_FINISH || agent_stop_is_pause(agent)) {
        agent->stop = AGENT_GOES_ON;
        agent_stop_set_error(agent, AGENT_STOP_RECORD, event->error, "unknown");
    }
    agent->turn_is_open = false; /* closing it would fail in the same way; the store marks it */
    agent->state = AGENT_STATE_END;
    agent_effect_add(effects, AGENT_RECORD_END);
}

/* Somebody wished to stop: what runs is cancelled, a record that is written is waited for. */
static void act_on_wish(struct agent *agent, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_NEW ||
        (agent->state == AGENT_STATE_IDLE && !agent->has_begun)) {
        agent->state = AGENT_STATE_FINISHED;
        agent_effect_add(effects, AGENT_FINISH);
    } else if (agent->state == AGENT_STATE_IDLE) {
        agent_go_to_end(agent, effects);
    } else if (agent->state == AGENT_STATE_GENERATING) {
        agent_effect_add(effects, AGENT_CANCEL_GENERATE);
    } else if (agent->state == AGENT_STATE_CALLING) {
        agent_effect_add(effects, AGENT_CANCEL_CALL);
    } else if (agent->state == AGENT_STATE_CHECKING) {
        agent_effect_add(effects, AGENT_CANCEL_CHECK);
    } else if (agent->state == AGENT_STATE_COMPACTING) {
        agent_effect_add(effects, AGENT_CANCEL_COMPACT);
    }
}

static void time_came(struct agent *agent, int64_t now_ms, struct agent_effects *effects) {
    if (agent->deadline_ms == INT64_MAX || agent->state == AGENT_STATE_FINISHED) {
        return;
    }
    if (now_ms < agent->deadline_ms) {
        agent_effect_add(effects, AGENT_WAIT)->wake_ms = agent->deadline_ms;
        return;
    }
    bool goes_on = agent->stop == AGENT_GOES_ON;
    if (goes_on || agent_stop_is_pause(agent)) {
        agent->stop = AGENT_GOES_ON;
        agent_stop_for_time(agent);
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
    agent_stop_set(agent, stop, "%.*s", VIEW_ARGUMENTS(who));
    if (goes_on || agent->state == AGENT_STATE_CHECKING) {
        act_on_wish(agent, effects);
    }
}

/* What looks at an answer may want more: then the model is told, as often as is allowed. */
static void stop_checked(struct agent *agent, struct view text, struct agent_effects *effects) {
    bool has_answered = agent->stop == AGENT_STOP_ANSWER || agent->stop == AGENT_STOP_FINISH;
    agent->stop_is_checked = true;
    if (text.length == 0 || !has_answered) { /* or somebody ended it meanwhile */
        agent_go_to_end(agent, effects);
        return;
    }
    struct error error = {0};
    CLEANUP(buffer_deinit) struct buffer remark;
    buffer_init(&remark, BUFFER_CEILING_DEFAULT);
    agent->stops_refused++;
    agent->stop_is_checked = false;
    agent->stop = AGENT_GOES_ON;
    result told = agent_answer_unrun(agent, AGENT_NOT_RUN, &error);
    if (is_ok(told)) {
        told = buffer_append_format(
            &remark, &error, "%s%.*s", AGENT_STOP_REMARK, VIEW_ARGUMENTS(text)
        );
    }
    if (is_ok(told)) {
        const struct chat_message message = {.role = CHAT_USER, .content = buffer_view(&remark)};
        told = agent_append(agent, &message, &error);
    }
    if (is_failed(told)) {
        agent_stop_set_error(agent, AGENT_STOP_CONTEXT, &error, "no memory");
    }
    agent_go_to_turn(agent, effects);
}

static void message_came(struct agent *agent, struct view text, struct agent_effects *effects) {
    struct error error = {0};
    if (is_failed(agent_queue_push(agent, text, &error)) || agent->state != AGENT_STATE_IDLE) {
        return;
    }
    if (agent->has_begun) {
        agent_go_to_turn(agent, effects);
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
    agent_go_to_compact(agent, effects);
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
        agent_stop_set(agent, AGENT_STOP_INTERRUPT, "%s", "by the user");
        act_on_wish(agent, effects);
    }
}

/* Nothing was recorded, so nothing has to be closed. */
static void
not_ready(struct agent *agent, const struct agent_event *event, struct agent_effects *effects) {
    if (agent->state == AGENT_STATE_FINISHED) {
        return;
    }
    ASSERT(
        agent->state == AGENT_STATE_NEW || agent->state == AGENT_STATE_IDLE ||
        agent->state == AGENT_STATE_BEGIN
    );
    agent_stop_set_error(agent, AGENT_STOP_TOOL, event->error, "no reason given");
    agent->state = AGENT_STATE_FINISHED;
    agent_effect_add(effects, AGENT_FINISH);
}

void agent_handle(
    struct agent *agent, const struct agent_event *event, struct agent_effects *effects
) {
    *effects = (struct agent_effects){0};
    enum agent_state state = agent->state;
    if (event->type == AGENT_START && state == AGENT_STATE_NEW) {
        start(agent, event->now_ms, effects);
    } else if (event->type == AGENT_NOT_READY) {
        not_ready(agent, event, effects);
    } else if (event->type == AGENT_RECORDED) {
        recorded(agent, event, effects);
    } else if (event->type == AGENT_RECORD_FAILED) {
        record_failed(agent, event, effects);
    } else if (event->type == AGENT_GENERATED && state == AGENT_STATE_GENERATING) {
        agent_take_output(agent, event, effects);
    } else if (event->type == AGENT_CALLED && state == AGENT_STATE_CALLING) {
        agent_take_result(agent, event, effects);
    } else if (event->type == AGENT_CALL_FAILED && state == AGENT_STATE_CALLING) {
        agent_stop_set_error(agent, AGENT_STOP_TOOL, event->error, "no reason given");
        agent->state = AGENT_STATE_RESULT;
        struct agent_effect *record = agent_effect_add(effects, AGENT_RECORD_RESULT);
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
    } else if (event->type == AGENT_SHARE && state != AGENT_STATE_NEW) {
        agent_share_take(agent, &event->share);
        time_came(agent, event->now_ms, effects);
    } else if (event->type == AGENT_EFFORT) {
        agent->effort = event->effort;
    } else if (event->type == AGENT_REMARK) {
        struct error error = {0};
        result pushed = agent_remark_push(agent, event->text, &error);
        result_ignore(pushed); /* agent_takes_remark told before */
    } else if (agent->is_interactive) {
        person_came(agent, event, effects);
    }
}
