/* See loop.h. `struct run` is one agent being driven; its step is the one thing a worker may be
 * doing for it. Everything a worker touches while a step is in flight (recorder, conversation,
 * tokens, tool result) is left alone by the loop thread until step_done.
 */
#include "loop_internal.h"

#define STATUS_INTERVAL_MS 100
#define LOGPROB_BYTES_MAX  ((size_t)64 << 20)
#define SNAPSHOT_GRACE_MS  500 /* for a snapshot after the run was stopped */

/* ---- the loop ------------------------------------------------------------------------------- */

static void wake_came(uv_async_t *handle);

result loop_create(struct loop **out, struct error *error) {
    struct loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL) {
        FAIL(error, MEMORY, "no memory for the event loop");
    }
    int status = uv_loop_init(&loop->uv);
    if (status != 0) {
        free(loop);
        FAIL_FOREIGN(error, IO, -status, "cannot make an event loop: %s", uv_strerror(status));
    }
    status = uv_async_init(&loop->uv, &loop->wake, wake_came);
    if (status != 0) {
        (void)uv_loop_close(&loop->uv);
        free(loop);
        FAIL_FOREIGN(error, IO, -status, "cannot make a wake-up: %s", uv_strerror(status));
    }
    loop_decisions_init(loop);
    status = uv_mutex_init(&loop->live_lock);
    ASSERT(status == 0); /* it takes no resource */
    buffer_init(&loop->live, BUFFER_CEILING_DEFAULT);
    loop->wake.data = loop;
    *out = loop;
    return OK;
}

void loop_destroy(struct loop *loop) {
    if (loop == NULL) {
        return;
    }
    ASSERT(loop->run == NULL);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    int alive = uv_run(&loop->uv, UV_RUN_DEFAULT);
    ASSERT(alive == 0);
    output_destroy(loop->output);
    int status = uv_loop_close(&loop->uv);
    ASSERT(status == 0); /* no handle is left */
    loop_decisions_deinit(loop);
    uv_mutex_destroy(&loop->live_lock);
    buffer_deinit(&loop->live);
    free(loop);
}

void loop_wake(void *loop) {
    struct loop *target = loop;
    int status = uv_async_send(&target->wake);
    ASSERT(status == 0);
}

result loop_output(struct loop *loop, int fd, struct output **out, struct error *error) {
    ASSERT(loop->output == NULL);
    TRY(output_create(&loop->output, &loop->uv, fd, error));
    *out = loop->output;
    return OK;
}

/* ---- events of the engine -------------------------------------------------------------------- */

static void wake_came(uv_async_t *handle) {
    struct loop *loop = handle->data;
    struct engine_event event;
    while (loop->run != NULL &&
           loop->run->options->engine.next_event(loop->run->options->engine.context, &event)) {
        run_engine_event(loop->run, &event);
    }
    if (loop->run != NULL) {
        run_live_came(loop->run);
    }
}

/* ---- effects -------------------------------------------------------------------------------- */

void run_limit_snapshots(struct run *run) {
    if (run->options->workspace != NULL) {
        workspace_limit_time(run->options->workspace, run_now_ms(run) + SNAPSHOT_GRACE_MS);
    }
}

static void deadline_came(uv_timer_t *timer) {
    struct run *run = timer->data;
    if (run_now_ms(run) >= agent_deadline_ms(run->agent)) {
        run_limit_snapshots(run);
    }
    run_dispatch(run, &(struct agent_event){.type = AGENT_TIME});
}

static void wait_until(struct run *run, int64_t wake_ms) {
    int64_t left = wake_ms - run_now_ms(run);
    uv_update_time(&run->loop->uv);
    int status = uv_timer_start(&run->deadline, deadline_came, left > 0 ? (uint64_t)left : 0, 0);
    ASSERT(status == 0);
}

static void close_when_idle(void *context);

static void end(struct run *run) {
    run->is_ending = true;
    run_prepare_cancel(run);
    /* A recorded session may go on later; what could not be recorded has nobody to come back to. */
    bool is_recorded = run->recorder.session.text[0] != '\0';
    run->options->engine.tell(
        run->options->engine.context,
        run->sequence,
        is_recorded ? SEQUENCE_FINISHED : SEQUENCE_ABANDONED,
        0
    );
    run_show_cache_trouble(run);
    run_say_unsent(run);
    run_show_finished(run);
    close_when_idle(run);
}

static void idle(struct run *run) {
    if (agent_has_begun(run->agent)) { /* for nobody knows how long: others may have its place */
        run->options->engine.tell(run->options->engine.context, run->sequence, SEQUENCE_WAITING, 0);
    }
    run_show_idle(run);
}

static void execute(struct run *run, const struct agent_effect *effect) {
    if (effect->type == AGENT_GENERATE) {
        run_generate(run, effect);
    } else if (effect->type == AGENT_CANCEL_GENERATE) {
        run->options->engine.cancel(run->options->engine.context, run->sequence);
    } else if (effect->type == AGENT_CALL) {
        run_call(run, effect);
    } else if (effect->type == AGENT_COMPACT) {
        run_compact(run, effect);
    } else if (effect->type == AGENT_CANCEL_COMPACT) {
        run_compact_cancel(run);
    } else if (effect->type == AGENT_CHECK_STOP) {
        run_check_stop(run);
    } else if (effect->type == AGENT_CANCEL_CHECK) {
        run_hooks_cancel(run);
    } else if (effect->type == AGENT_CANCEL_CALL) {
        run_call_cancel(run);
    } else if (effect->type == AGENT_WAIT) {
        wait_until(run, effect->wake_ms);
    } else if (effect->type == AGENT_IDLE) {
        idle(run);
    } else if (effect->type == AGENT_FINISH) {
        end(run);
    } else {
        run_step(run, effect);
    }
}

void run_dispatch(struct run *run, const struct agent_event *event) {
    struct agent_event timed = *event;
    timed.now_ms = run_now_ms(run);
    struct agent_effects effects;
    agent_handle(run->agent, &timed, &effects);
    bool is_wish = event->type == AGENT_PAUSE || event->type == AGENT_INTERRUPT ||
                   event->type == AGENT_QUIT ||
                   (event->type == AGENT_TIME && timed.now_ms >= agent_deadline_ms(run->agent));
    if (is_wish) {
        run_prepare_cancel(run);
    }
    for (size_t i = 0; i < effects.count; i++) {
        execute(run, &effects.items[i]);
    }
    run_command_waiting(run);
}

/* ---- signals, closing ----------------------------------------------------------------------- */

static void signal_came(uv_signal_t *handle, int number) {
    struct run *run = handle->data;
    if (run->options->is_interactive && number == SIGINT && run->signals_seen == 0) {
        run_interrupt(run, false);
        return;
    }
    run->signals_seen++;
    if (run->signals_seen > 1) {
        if (run->options->kill != NULL) {
            run->options->kill();
        }
        return;
    }
    struct run_event note = {
        .type = RUN_NOTE,
        .text = view_of_text("stopping; once more to kill"),
    };
    run_show(run, &note);
    run_limit_snapshots(run);
    const char *detail = number == SIGTERM  ? "by SIGTERM"
                         : number == SIGHUP ? "the terminal went away"
                                            : "by the user";
    run_dispatch(run, &(struct agent_event){.type = AGENT_INTERRUPT, .text = view_of_text(detail)});
}

static void resized(uv_signal_t *handle, int number) {
    struct run *run = handle->data;
    (void)number;
    struct display_options options = display_options_for(1, false);
    display_set_size(run->options->display, options.width, options.height);
}

static void ticked(uv_timer_t *timer) {
    struct run *run = timer->data;
    run_status_update(run);
    display_status(run->options->display, &run->status);
}

static void watched(uv_timer_t *timer) {
    run_watch(timer->data);
}

static void close_handles(struct run *run) {
    run->is_closed = true;
    if (run->has_front) {
        run->options->input->detach(run->options->input->context);
    }
    uv_close((uv_handle_t *)&run->deadline, NULL);
    uv_close((uv_handle_t *)&run->ticker, NULL);
    uv_close((uv_handle_t *)&run->watcher, NULL);
    uv_close((uv_handle_t *)&run->interrupt, NULL);
    uv_close((uv_handle_t *)&run->terminate, NULL);
    uv_close((uv_handle_t *)&run->hang_up, NULL);
    uv_close((uv_handle_t *)&run->resize, NULL);
    uv_unref((uv_handle_t *)&run->loop->wake);
}

/* Called after each write, and at the end: the run is over when everything was written. */
static void close_when_idle(void *context) {
    struct run *run = context;
    if (run->is_closed) {
        return;
    }
    struct error error = {0};
    if (!run->is_ending && is_failed(output_status(run->options->output, &error))) {
        run_dispatch(
            run, &(struct agent_event){.type = AGENT_INTERRUPT, .text = view_of_text(error.message)}
        );
    } else if (run->is_ending && output_is_idle(run->options->output)) {
        close_handles(run);
    }
}

static void handles_init(struct run *run) {
    uv_loop_t *uv = &run->loop->uv;
    int status = uv_timer_init(uv, &run->deadline);
    status |= uv_timer_init(uv, &run->ticker);
    status |= uv_timer_init(uv, &run->watcher);
    status |= uv_signal_init(uv, &run->interrupt);
    status |= uv_signal_init(uv, &run->terminate);
    status |= uv_signal_init(uv, &run->hang_up);
    status |= uv_signal_init(uv, &run->resize);
    ASSERT(status == 0); /* these calls only fill in the handle */
    run->deadline.data = run;
    run->ticker.data = run;
    run->watcher.data = run;
    run->interrupt.data = run;
    run->terminate.data = run;
    run->hang_up.data = run;
    run->resize.data = run;
    uv_ref((uv_handle_t *)&run->loop->wake);
}

static result handles_start(struct run *run, struct error *error) {
    int status = uv_timer_start(&run->ticker, ticked, STATUS_INTERVAL_MS, STATUS_INTERVAL_MS);
    if (status == 0) {
        int64_t interval = run->options->watch_interval_ms;
        uint64_t every = (uint64_t)(interval > 0 ? interval : LOOP_WATCH_INTERVAL_MS);
        status = uv_timer_start(&run->watcher, watched, every, every);
    }
    if (status == 0 && run->options->handles_signals) {
        status = uv_signal_start(&run->interrupt, signal_came, SIGINT);
        if (status == 0) {
            status = uv_signal_start(&run->terminate, signal_came, SIGTERM);
        }
        struct sigaction before; // under nohup it stays ignored
        if (status == 0 && sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            status = uv_signal_start(&run->hang_up, signal_came, SIGHUP);
        }
        if (status == 0) {
            status = uv_signal_start(&run->resize, resized, SIGWINCH);
        }
    }
    if (status != 0) {
        FAIL_FOREIGN(error, IO, -status, "cannot watch signals: %s", uv_strerror(status));
    }
    return OK;
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void run_deinit(struct run *run) {
    agent_destroy(run->agent);
    chat_parser_destroy(run->parser);
    recorder_deinit(&run->recorder);
    token_list_deinit(&run->context_ids);
    token_list_deinit(&run->prompt_ids);
    token_list_deinit(&run->output_ids);
    buffer_deinit(&run->log_probabilities);
    tool_result_deinit(&run->tool);
    run_call_deinit(run);
    run_command_deinit(run);
    fd_cleanup(&run->hooks_fd);
    free(run->tool_times);
    free(run->tool_names);
}

static result run_init(struct run *run, const struct run_options *options, struct error *error) {
    token_list_init(&run->context_ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&run->prompt_ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&run->output_ids, TOKEN_LIST_CEILING_DEFAULT);
    buffer_init(&run->log_probabilities, LOGPROB_BYTES_MAX);
    tool_result_init(&run->tool);
    run->own = *options;
    run->options = &run->own;
    run->hooks_fd = -1;
    run->sequence = options->sequence;
    run->recorder.store = options->store;
    run->recorder.workspace = options->workspace;
    run->recorder.begin = options->begin;
    run->recorder.engine = options->engine_info;
    run->recorder.resume = options->resume;
    run->resume = options->resume;
    run->started_ms = clock_monotonic_ms(&options->clock);
    run->status.context_max = options->agent.context_max;
    run->status.activity = "starting";
    const struct run_declared declared = {
        .tools = options->agent.tools,
        .tool_count = options->agent.tool_count,
        .tools_json = options->tools_json,
        .constraint = options->constraint,
    };
    TRY(run_declare(run, &declared, error));
    TRY(agent_create(&run->agent, &options->agent, error));
    run->status.turns_before = agent_turns_before(run->agent);
    run->status.turn = run->status.turns_before;
    if (options->resume != NULL) {
        const struct token_list *ids = &options->resume->ids;
        run->is_resuming = true;
        run->status.context_tokens = narrow_i32((int64_t)ids->count);
        TRY(token_list_append_all(&run->context_ids, ids->ids, ids->count, error));
    }
    return OK;
}

static result run_drive(struct run *run, struct error *error) {
    handles_init(run);
    const struct run_front *front = run->options->input;
    result started = handles_start(run, error);
    if (is_ok(started) && front != NULL) {
        started = front->attach(front->context, &run->loop->uv, run->loop, error);
        run->has_front = is_ok(started);
    }
    if (is_failed(started)) {
        close_handles(run);
    } else {
        run_show_earlier(run);
        run_prepare(run);
        run_dispatch(run, &(struct agent_event){.type = AGENT_START});
    }
    int alive = uv_run(&run->loop->uv, UV_RUN_DEFAULT);
    ASSERT(alive == 0);
    ASSERT(!run->step_is_running);
    return started;
}

static result take_last_message(const struct run *run, struct buffer *out, struct error *error) {
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    for (size_t i = chat_conversation_count(conversation); i > 0; i--) {
        const struct chat_message *message = &messages[i - 1];
        if (message->role == CHAT_ASSISTANT && message->content.length > 0) {
            return buffer_append(out, message->content, error);
        }
    }
    return OK;
}

result loop_run(
    struct loop *loop,
    const struct run_options *options,
    struct run_outcome *out,
    struct error *error
) {
    ASSERT(loop->run == NULL);
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        FAIL(error, MEMORY, "no memory for a run");
    }
    run->loop = loop;
    result done = run_init(run, options, error);
    if (is_ok(done)) {
        loop->run = run;
        output_on_idle(options->output, close_when_idle, run);
        done = run_drive(run, error);
        output_on_idle(options->output, NULL, NULL);
        loop->run = NULL;
    }
    if (is_ok(done)) {
        ASSERT(agent_is_finished(run->agent));
        out->stop = agent_stop(run->agent);
        out->begins_anew = run->begins_anew && out->stop == AGENT_STOP_QUIT;
        out->exit_status = agent_stop_exit_status(out->stop);
        (void)snprintf(out->detail, sizeof out->detail, "%s", agent_stop_detail(run->agent));
        out->session = run->recorder.session;
        if (out->last_message != NULL) {
            done = take_last_message(run, out->last_message, error);
        }
        out->sequence = run->sequence;
    }
    run_deinit(run);
    free(run);
    return done;
}
