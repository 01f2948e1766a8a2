/* Steps of a run on a worker, one at a time: records and calls. See loop_internal.h. */
#include "loop_internal.h"

static enum session_status session_status_of(const struct agent *agent) {
    enum agent_stop stop = agent_stop(agent);
    if (stop == AGENT_STOP_QUIT) { /* done when the work was */
        stop = agent_idle_stop(agent);
    }
    if (stop == AGENT_STOP_ANSWER || stop == AGENT_STOP_FINISH || stop == AGENT_STOP_STRING) {
        return SESSION_DONE;
    }
    if (stop == AGENT_STOP_ENGINE || stop == AGENT_STOP_RECORD || stop == AGENT_STOP_TOOL) {
        return SESSION_FAILED;
    }
    return SESSION_STOPPED;
}

static const struct chat_message *last_message(const struct run *run) {
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    size_t count = chat_conversation_count(conversation);
    ASSERT(count > 0);
    return &chat_conversation_messages(conversation)[count - 1];
}

static result step_record_turn(struct run *run, struct error *error) {
    struct chat_options options = agent_chat_options(run->agent);
    run->recorder.begin.sampler.effort = options.effort;
    struct recorder_mail mail[AGENT_REMARKS_MAX];
    const struct recorder_turn turn = {
        .encoder = run->options->encoder,
        .conversation = agent_conversation(run->agent),
        .from_message = run->step.from_message,
        .end_is_missing = run->step.end_is_missing,
        .unrun_from = run->step.unrun_from,
        .unrun_count = run->step.unrun_count,
        .options = options,
        .tokens_max = run->step.append_max,
        .mail = mail,
        .mail_count = run_mail_of(run, run->step.remark_count, 0, mail),
    };
    return recorder_turn_start(&run->recorder, &turn, &run->prompt_ids, &run->prompt_fits, error);
}

static result step_record_output(struct run *run, struct error *error) {
    const void *floats = run->log_probabilities.data;
    const struct recorder_generation generation = {
        .ids = &run->output_ids,
        .log_probabilities = floats,
        .message = last_message(run),
        .facts = run->has_facts ? &run->facts : NULL,
        .reason = run->reason,
        .stop = run_stop_met(run),
    };
    return recorder_output(&run->recorder, &generation, error);
}

static result step_record_end(struct run *run, struct error *error) {
    if (run->options->node != NULL) {
        return run_record_node_end(run, error);
    }
    enum agent_stop stop = agent_stop(run->agent);
    run_keep_last(run); /* first: the record says with what it ended */
    const struct recorder_end end = {
        .status = session_status_of(run->agent),
        .verdict = agent_stop_text(stop),
        .stop_reason = agent_stop_name(stop),
        .exit_status = run_exit_status(run),
    };
    return recorder_end(&run->recorder, &end, error);
}

static result step_execute(struct run *run, struct error *error) {
    enum agent_effect_type type = run->step.type;
    if (type == AGENT_RECORD_BEGIN) {
        TRY(recorder_begin(&run->recorder, error));
        return run_record_decisions(run, error);
    }
    if (type == AGENT_RECORD_TURN) {
        return step_record_turn(run, error);
    }
    if (type == AGENT_RECORD_OUTPUT) {
        return step_record_output(run, error);
    }
    if (type == AGENT_RECORD_CALL) {
        return recorder_call_start(
            &run->recorder, agent_call(run->agent, run->step.call_index), error
        );
    }
    if (type == AGENT_RECORD_RESULT) {
        const struct tool_result *value = run->step.is_cancelled ? NULL : &run->tool;
        struct view answer = value != NULL ? last_message(run)->content : view_of(NULL, 0);
        TRY(run_record_decisions(run, error));
        return run_record_result(run, value, answer, error);
    }
    if (type == AGENT_RECORD_TURN_END) {
        return recorder_turn_end(
            &run->recorder, run->has_facts ? &run->facts : NULL, run->reason, error
        );
    }
    ASSERT(type == AGENT_RECORD_END);
    return step_record_end(run, error);
}

static void step_work(uv_work_t *work) {
    struct run *run = work->data;
    run->step_error = (struct error){0};
    run->step_result = step_execute(run, &run->step_error);
}

/* The declared tool of that name, or null. */
static struct tool_time *tool_time_of(struct run *run, struct view name) {
    for (size_t i = 0; i < run->declared.tool_count; i++) {
        if (view_equals(run->tool_names[i], name)) {
            return &run->tool_times[i];
        }
    }
    return NULL;
}

/* The engine keeps the context of an agent that waits for a tool: as long as this one usually takes. */
void run_tell_waiting(struct run *run, const struct chat_call *call) {
    const struct tool_time *time = tool_time_of(run, call->name);
    bool is_known = time != NULL && time->calls > 0;
    int64_t estimate_ms = is_known ? time->total_ms / time->calls : 0;
    run->options->engine.tell(
        run->options->engine.context, run->sequence, SEQUENCE_WAITING, estimate_ms
    );
}

void run_note_duration(struct run *run, const struct chat_call *call) {
    struct tool_time *time = tool_time_of(run, call->name);
    if (time != NULL && run->tool.duration_ms >= 0) {
        time->calls++;
        time->total_ms += run->tool.duration_ms;
    }
}

static void step_done(uv_work_t *work, int status) {
    struct run *run = work->data;
    ASSERT(status == 0); /* steps are never cancelled in the pool's queue */
    run->step_is_running = false;
    bool succeeded = is_ok(run->step_result);
    enum agent_effect_type type = run->step.type;
    if (!succeeded) {
        run_dispatch(
            run, &(struct agent_event){.type = AGENT_RECORD_FAILED, .error = &run->step_error}
        );
        return;
    }
    if (type == AGENT_RECORD_BEGIN) {
        run_show_session(run);
        run_show_cache_trouble(run);
    }
    if (type == AGENT_RECORD_TURN_END) {
        run_say_turned(run);
    }
    struct agent_event event = {.type = AGENT_RECORDED};
    if (type == AGENT_RECORD_TURN && !run->prompt_fits) {
        event.type = AGENT_DOES_NOT_FIT;
    } else if (type == AGENT_RECORD_TURN) {
        run_show_person(run);
        run_say_given(run, run->step.remark_count);
        event.append_tokens = narrow_i32((int64_t)run->prompt_ids.count);
    }
    run_dispatch(run, &event);
}

void run_step(struct run *run, const struct agent_effect *effect) {
    ASSERT(!run->step_is_running);
    if (run->is_preparing && !run->has_postponed) {
        run_prepare_say(run);
    }
    run_command_waiting(run);
    /* A command, and a change of the model, have the record for themselves. */
    if (run->command != NULL || run->change != NULL || run->is_preparing) {
        run->has_postponed = true;
        run->postponed = *effect;
        return;
    }
    run->has_postponed = false;
    run->step = *effect;
    if (effect->type == AGENT_RECORD_BEGIN && agent_queued(run->agent) > 0) {
        run->recorder.begin.task = agent_queued_text(run->agent, 0); /* until the next turn */
    }
    run->step_is_running = true;
    run->work.data = run;
    int status = uv_queue_work(&run->loop->uv, &run->work, step_work, step_done);
    ASSERT(status == 0); /* fails only without a work function */
}

void run_step_postponed(struct run *run) {
    const struct agent_effect effect = run->postponed;
    run_step(run, &effect);
}
