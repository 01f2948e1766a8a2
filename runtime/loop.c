/* See loop.h: the loop, whose events go to its runs, and what a run does about them. A run's step is the one thing
 * a worker may be doing for it. Everything a worker touches while a step is in flight (recorder, conversation,
 * tokens, tool result) is left alone by the loop thread until step_done.
 */
#include "loop_internal.h"

#define STATUS_INTERVAL_MS 100
#define SNAPSHOT_GRACE_MS  500 /* for a snapshot after the run was stopped */
#define LOOP_ENGINES_MAX   8   /* of one program: a model that changes has two */

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
    run_channel_init(&loop->channel, loop);
    result has_workers = loop_workers_init(&loop->workers, loop, error);
    if (is_failed(has_workers)) {
        uv_close((uv_handle_t *)&loop->wake, NULL);
        (void)uv_run(&loop->uv, UV_RUN_DEFAULT);
        (void)uv_loop_close(&loop->uv);
        run_channel_deinit(&loop->channel);
        free(loop);
        return has_workers;
    }
    status = uv_timer_init(&loop->uv, &loop->timer);
    ASSERT(status == 0); /* it only fills in the handle */
    loop->timer.data = loop;
    loop->wake.data = loop;
    uv_unref((uv_handle_t *)&loop->wake);
    *out = loop;
    return OK;
}

void loop_destroy(struct loop *loop) {
    if (loop == NULL) {
        return;
    }
    ASSERT(loop->first == NULL && loop->generations == NULL);
    loop_workers_deinit(&loop->workers);
    uv_close((uv_handle_t *)&loop->timer, NULL);
    uv_close((uv_handle_t *)&loop->wake, NULL);
    int alive = uv_run(&loop->uv, UV_RUN_DEFAULT);
    ASSERT(alive == 0);
    output_destroy(loop->output);
    int status = uv_loop_close(&loop->uv);
    ASSERT(status == 0); /* no handle is left */
    run_channel_deinit(&loop->channel);
    free(loop);
}

void loop_wake(void *loop) {
    struct loop *target = loop;
    int status = uv_async_send(&target->wake);
    ASSERT(status == 0);
}

static void close_when_idle(struct run *run);

/* Called after each write. */
static void written(void *context) {
    struct loop *loop = context;
    for (struct run *run = loop->first; run != NULL; run = run->next) {
        close_when_idle(run);
    }
}

void loop_keep(struct loop *loop) {
    uv_handle_t *wake = (uv_handle_t *)&loop->wake;
    if (loop->first != NULL || loop->generations != NULL || loop->workers.open_count > 0) {
        uv_ref(wake);
    } else {
        uv_unref(wake);
    }
}

result loop_output(struct loop *loop, int fd, struct output **out, struct error *error) {
    ASSERT(loop->output == NULL);
    TRY(output_create(&loop->output, &loop->uv, fd, error));
    output_on_idle(loop->output, written, loop);
    *out = loop->output;
    return OK;
}

static void timer_came(uv_timer_t *timer) {
    const struct loop *loop = timer->data;
    loop->timer_came(loop->timer_context);
}

void loop_wait(struct loop *loop, int64_t wait_ms, void (*came)(void *context), void *context) {
    loop->timer_came = came;
    loop->timer_context = context;
    int status = uv_timer_stop(&loop->timer);
    if (came != NULL) {
        uv_update_time(&loop->uv);
        status = uv_timer_start(&loop->timer, timer_came, wait_ms > 0 ? (uint64_t)wait_ms : 0, 0);
    }
    ASSERT(status == 0);
}

struct uv_loop_s *loop_uv(struct loop *loop) {
    return &loop->uv;
}

/* ---- events of the engine -------------------------------------------------------------------- */

/* To the run or the generation whose sequence it is of; there is none when it has ended. */
static void deliver(struct loop *loop, const void *engine, const struct engine_event *event) {
    for (struct run *run = loop->first; run != NULL; run = run->next) {
        if (run->options->engine.context == engine && run_has_sequence(run, event->sequence)) {
            run_engine_event(run, event);
            return;
        }
    }
    bool is_taken = loop_generation_event(loop, engine, event);
    (void)is_taken;
}

/* Engines of runs and generations; most share one. What is delivered may end them and start others. */
static size_t engines_of(const struct loop *loop, struct engine_ports out[LOOP_ENGINES_MAX]) {
    size_t count = 0;
    const struct run *run = loop->first;
    const struct loop_generation *generation = loop->generations;
    while (run != NULL || generation != NULL) {
        const struct engine_ports *engine =
            run != NULL ? &run->options->engine : &generation->engine;
        bool is_known = false;
        for (size_t i = 0; i < count; i++) {
            is_known = is_known || out[i].context == engine->context;
        }
        if (!is_known) {
            ASSERT(count < LOOP_ENGINES_MAX);
            out[count++] = *engine;
        }
        if (run != NULL) {
            run = run->next;
        } else {
            generation = generation->next;
        }
    }
    return count;
}

static void wake_came(uv_async_t *handle) {
    struct loop *loop = handle->data;
    struct engine_ports engines[LOOP_ENGINES_MAX];
    size_t count = engines_of(loop, engines);
    for (size_t i = 0; i < count; i++) {
        struct engine_event event;
        while (engines[i].next_event(engines[i].context, &event)) {
            deliver(loop, engines[i].context, &event);
        }
    }
    for (struct run *run = loop->first; run != NULL; run = run->next) {
        run_live_came(run);
    }
    loop_jobs_came(loop);
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

/* All of the run is over, and its end is told. */
static void tell_finished(void *context) {
    struct run *run = context;
    run->step_is_running = false;
    run_show_finished(run);
    close_when_idle(run);
}

static void keep_last(void *context) {
    run_keep_last(context);
}

static void end(struct run *run) {
    ASSERT(!run->step_is_running);
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
    if (run->options->last_message_path == NULL || run->last_is_kept) {
        tell_finished(run);
        return;
    }
    run->step_is_running = true; /* nothing was recorded, or it failed */
    run->job = (struct loop_job){.work = keep_last, .done = tell_finished, .context = run};
    loop_job_start(run->loop, &run->job);
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
                   ((event->type == AGENT_TIME || event->type == AGENT_SHARE) &&
                    timed.now_ms >= agent_deadline_ms(run->agent));
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
    if (run->options->display != NULL) {
        display_set_size(run->options->display, options.width, options.height);
    }
}

static void ticked(uv_timer_t *timer) {
    struct run *run = timer->data;
    run_status_update(run);
    run_show_status(run);
}

static void watched(uv_timer_t *timer) {
    run_watch(timer->data);
}

#define RUN_HANDLES 7

static void handles_of(struct run *run, uv_handle_t *out[RUN_HANDLES]) {
    out[0] = (uv_handle_t *)&run->deadline;
    out[1] = (uv_handle_t *)&run->ticker;
    out[2] = (uv_handle_t *)&run->watcher;
    out[3] = (uv_handle_t *)&run->interrupt;
    out[4] = (uv_handle_t *)&run->terminate;
    out[5] = (uv_handle_t *)&run->hang_up;
    out[6] = (uv_handle_t *)&run->resize;
}

static void handle_closed(uv_handle_t *handle) {
    struct run *run = handle->data;
    run->handles_open--;
    run_leave(run);
}

void run_handles_close(struct run *run) {
    uv_handle_t *handles[RUN_HANDLES];
    run->is_closed = true;
    if (run->has_front) {
        run->options->input->detach(run->options->input->context);
    }
    handles_of(run, handles);
    for (size_t i = 0; i < RUN_HANDLES; i++) {
        uv_close(handles[i], handle_closed);
    }
}

/* Called after each write, and at the end: the run is over when everything was written. */
static void close_when_idle(struct run *run) {
    const struct output *output = run->options->output;
    if (run->is_closed) {
        return;
    }
    struct error error = {0};
    if (!run->is_ending && output != NULL && is_failed(output_status(output, &error))) {
        run_dispatch(
            run, &(struct agent_event){.type = AGENT_INTERRUPT, .text = view_of_text(error.message)}
        );
    } else if (run->is_ending && !run->step_is_running && (output == NULL || output_is_idle(output))) {
        run_handles_close(run);
    }
}

void run_handles_init(struct run *run) {
    uv_loop_t *uv = &run->loop->uv;
    int status = uv_timer_init(uv, &run->deadline);
    status |= uv_timer_init(uv, &run->ticker);
    status |= uv_timer_init(uv, &run->watcher);
    status |= uv_signal_init(uv, &run->interrupt);
    status |= uv_signal_init(uv, &run->terminate);
    status |= uv_signal_init(uv, &run->hang_up);
    status |= uv_signal_init(uv, &run->resize);
    ASSERT(status == 0); /* these calls only fill in the handle */
    uv_handle_t *handles[RUN_HANDLES];
    handles_of(run, handles);
    for (size_t i = 0; i < RUN_HANDLES; i++) {
        handles[i]->data = run;
    }
    run->handles_open = RUN_HANDLES;
}

result run_handles_start(struct run *run, struct error *error) {
    int status = 0;
    if (run->options->display != NULL) {
        status = uv_timer_start(&run->ticker, ticked, STATUS_INTERVAL_MS, STATUS_INTERVAL_MS);
    }
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
