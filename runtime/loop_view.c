/* What a run shows: its status, and the events that begin and end it. See loop_internal.h. */
#include "loop_internal.h"

int64_t run_now_ms(const struct run *run) {
    return clock_monotonic_ms(&run->options->clock);
}

/* 0: none. */
static int64_t shown_limit(int64_t limit) {
    return limit != AGENT_NO_LIMIT ? limit : 0;
}

void run_status_update(struct run *run) {
    struct run_status *status = &run->status;
    int64_t now = run_now_ms(run);
    int64_t deadline = agent_deadline_ms(run->agent);
    status->time_left_ms = -1;
    if (deadline != INT64_MAX) {
        status->time_left_ms = deadline > now ? deadline - now : 0;
    }
    status->turn = agent_turns(run->agent);
    int32_t left = agent_context_due_at(run->agent) - status->context_tokens;
    status->context_left = left > 0 ? left : 0;
    status->turns_max = agent_turns_max(run->agent);
    status->tokens_max = shown_limit(agent_tokens_max(run->agent));
    status->calls = narrow_i32(agent_calls(run->agent));
    int64_t calls_max = shown_limit(agent_calls_max(run->agent));
    status->calls_max = (int32_t)(calls_max < INT32_MAX ? calls_max : INT32_MAX);
    status->effort = agent_chat_options(run->agent).effort;
    if (run->is_generating && run->output_ids.count > 1) {
        int64_t elapsed = now - run->first_token_ms;
        status->tokens_per_second =
            elapsed > 0 ? (double)(run->output_ids.count - 1) * 1000.0 / (double)elapsed : 0.0;
    }
}

void run_show(struct run *run, struct run_event *event) {
    run_status_update(run);
    event->status = &run->status;
    if (run->options->display != NULL) {
        display_event(run->options->display, event);
    }
    if (run->listener.event != NULL) {
        run->loop->shown++;
        run->listener.event(run->listener.context, event);
        run->loop->shown--;
    }
}

void run_show_status(struct run *run) {
    if (run->options->display != NULL) {
        display_status(run->options->display, &run->status);
    }
}

void run_show_session(struct run *run) {
    const struct run_options *options = run->options;
    struct run_event event = {
        .type = RUN_SESSION,
        .session_id = run->recorder.session.text,
        .task = options->agent.task.length > 0 ? options->agent.task : run->recorder.begin.task,
        .workspace = options->begin.workspace,
        .model = options->begin.model,
        .tools = run->declared.tools_json,
        .engine = &options->engine_info,
        .sampling = &options->sampling,
        .settings = options->settings,
        .effort = options->agent.effort,
        .window = options->window == WINDOW_EXACT ? "exact" : "replay",
        .time_ms_max = options->agent.time_ms_max,
        .tokens_max = options->agent.tokens_max,
        .is_resumed = options->resume != NULL,
        .context_tokens = run->status.context_tokens,
    };
    run_show(run, &event);
}

/* Once for each trouble: at the beginning, or at the end when it came in between. */
void run_show_cache_trouble(struct run *run) {
    char trouble[sizeof run->cache_trouble];
    run->options->engine.cache_trouble(run->options->engine.context, trouble, sizeof trouble);
    if (trouble[0] == '\0' || strcmp(trouble, run->cache_trouble) == 0) {
        return;
    }
    memcpy(run->cache_trouble, trouble, sizeof trouble);
    struct run_event warning = {.type = RUN_WARNING, .text = view_of_text(trouble)};
    run_show(run, &warning);
}

void run_show_earlier(struct run *run) {
    const struct resume *resume = run->options->resume;
    if (resume == NULL || !run->options->is_interactive || resume->recorded_messages < 2) {
        return;
    }
    const struct tool_ports *tools = &run->options->tools;
    struct run_event event = {
        .type = RUN_EARLIER,
        .session_id = resume->session.text,
        .earlier = chat_conversation_messages(resume->conversation),
        .earlier_count = resume->recorded_messages,
        .text = tools->todo != NULL ? tools->todo(tools->context) : view_of(NULL, 0),
        .state_option = run->options->state_option != NULL ? run->options->state_option : "",
    };
    run_show(run, &event);
}

void run_show_person(struct run *run) {
    const struct agent_effect *turn = &run->step;
    const struct chat_message *messages =
        chat_conversation_messages(agent_conversation(run->agent));
    bool is_task = run->options->resume == NULL && run->options->agent.task.length == 0;
    for (size_t i = 0; i < turn->person_count; i++) {
        struct run_event event = {
            .type = RUN_USER,
            .text = messages[turn->person_from + i].content,
        };
        if (run->person_shown++ > 0 || !is_task) { /* the session was shown with its task */
            run_show(run, &event);
        }
    }
}

void run_show_idle(struct run *run) {
    enum agent_stop stop = agent_idle_stop(run->agent);
    bool has_worked = stop != AGENT_GOES_ON;
    struct run_event event = {
        .type = RUN_IDLE,
        .stop = has_worked ? agent_stop_name(stop) : NULL,
        .stop_text = has_worked ? agent_stop_text(stop) : NULL,
        .detail = has_worked ? agent_stop_detail(run->agent) : NULL,
    };
    run->status.activity = "waiting";
    run_show(run, &event);
}

void run_show_finished(struct run *run) {
    enum agent_stop stop = agent_stop(run->agent);
    if (run->recorder.difference_is_unknown) {
        struct run_event note = {
            .type = RUN_NOTE,
            .text = view_of_text("what changed is not known: there was no time for a snapshot"),
        };
        run_show(run, &note);
    } else if (run->options->workspace != NULL && run->recorder.session.text[0] != '\0') {
        struct run_event changes = {
            .type = RUN_CHANGES,
            .difference = &run->recorder.difference,
            .commit_before = run->recorder.commit_base,
            .commit_after = run->recorder.commit_last,
        };
        run_show(run, &changes);
    }
    run->status.activity = "finished";
    struct run_event event = {
        .type = RUN_FINISHED,
        .session_id = run->recorder.session.text,
        .stop = agent_stop_name(stop),
        .stop_text = agent_stop_text(stop),
        .detail = run_detail(run),
        .exit_status = run_exit_status(run),
        .duration_ms = run_now_ms(run) - run->started_ms,
        .state_option = run->options->state_option != NULL ? run->options->state_option : "",
    };
    run_show(run, &event);
    if (run->options->display != NULL) {
        display_end(run->options->display);
    }
}
