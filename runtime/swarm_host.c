/* The life of a swarm's host: how it begins, the pump of events, and how it ends. See swarm_host.h.
 *
 *     root, shared prefix -> place of the copies -> START -> events and effects -> FINISH
 *         -> what is still under way -> the place goes -> the record's end -> over
 */
#include "swarm_host_internal.h"

#include "cli.h"
#include "hooks.h"
#include "strategy.h"

/* ---- the end ----------------------------------------------------------------------------------- */

void host_fault(struct swarm_host *host, result failed, const struct error *error) {
    if (is_ok(host->fault)) {
        host->fault = failed;
        host->fault_error = *error;
    }
    host_say(host, SWARM_HOST_WARNING, "%s", error->message);
}

void host_disk_is_full(struct swarm_host *host) {
    if (!host->disk_is_full) {
        host->disk_is_full = true;
        host_say(host, SWARM_HOST_WARNING, "the disk is full: no further agent is started");
        host_event(host, &(struct swarm_event){.type = SWARM_DISK_FULL});
    }
}

static bool is_out_of_budget(const struct swarm_host *host) {
    const struct budget *budget = swarm_budget(host->swarm);
    struct budget_amounts left = budget_left(budget, SWARM_ROOT);
    return host->ended_ms >= swarm_nodes_deadline_ms(host->swarm) ||
           left.of[BUDGET_TOKENS] < SWARM_CHILD_TOKENS_MIN || left.of[BUDGET_CALLS] == 0;
}

struct conclusion {
    const char *stop, *verdict;
    int exit_status;
    enum session_status status;
};

static struct conclusion conclude(const struct swarm_host *host) {
    const struct swarm_result *end = host->has_begun ? swarm_result(host->swarm) : NULL;
    bool is_answer = end != NULL && end->node != SWARM_NONE &&
                     (end->outcome == SWARM_PASSED ||
                      (end->outcome == SWARM_UNVERIFIED && !host->options.swarm.has_verifier));
    if (is_failed(host->begun)) {
        return (struct conclusion){"record", "it did not begin", STATUS_DATA, SESSION_FAILED};
    }
    if (end != NULL && is_failed(host->fault)) { /* whatever came of it: the record lacks some */
        return (struct conclusion){"record", end->why, STATUS_DATA, SESSION_FAILED};
    }
    if (end != NULL && end->outcome == SWARM_PASSED) {
        return (struct conclusion){"answer", end->why, STATUS_DONE, SESSION_DONE};
    }
    if (host->is_interrupted) {
        return (struct conclusion
        ){"interrupt", end != NULL ? end->why : "interrupted", STATUS_INTERRUPTED, SESSION_STOPPED};
    }
    if (host->engine_is_lost) {
        return (struct conclusion){"engine", end->why, STATUS_ENGINE, SESSION_FAILED};
    }
    if (is_answer) {
        return (struct conclusion){"answer", end->why, STATUS_DONE, SESSION_DONE};
    }
    if (is_out_of_budget(host)) {
        bool is_time = host->ended_ms >= swarm_nodes_deadline_ms(host->swarm);
        return (struct conclusion
        ){is_time ? "time" : "tokens", end->why, STATUS_BUDGET, SESSION_STOPPED};
    }
    return (struct conclusion){"failed", end->why, STATUS_TASK_FAILED, SESSION_DONE};
}

static void fill_outcome(const struct swarm_host *host, struct swarm_host_outcome *out) {
    struct conclusion conclusion = conclude(host);
    *out = (struct swarm_host_outcome){
        .result = {.node = SWARM_NONE, .outcome = SWARM_CANCELLED},
        .stop = conclusion.stop,
        .exit_status = conclusion.exit_status,
        .is_interrupted = host->is_interrupted,
        .fault = host->fault,
        .error = host->fault_error,
    };
    (void)snprintf(out->result.why, sizeof out->result.why, "%s", conclusion.verdict);
    out->session =
        *swarm_root_session(host->root); /* also when it was interrupted before it began */
    if (!host->has_begun) {
        return;
    }
    out->result = *swarm_result(host->swarm);
    out->is_out_of_budget = is_out_of_budget(host);
    size_t node = out->result.node;
    if (node != SWARM_NONE && node != SWARM_ROOT) {
        memcpy(out->name, swarm_node(host->swarm, node)->name, sizeof out->name);
    }
    (void)snprintf(out->commit, sizeof out->commit, "%s", swarm_root_commit_after(host->root));
    swarm_host_totals(host, &out->totals);
}

static void signal_closed(uv_handle_t *handle) {
    struct swarm_host *host = handle->data;
    host->signals_open--;
}

static void over(struct swarm_host *host) {
    host->phase = HOST_OVER;
    loop_wait(host->loop, 0, NULL, NULL);
    for (size_t i = 0; i < host->signals_open; i++) {
        uv_close((uv_handle_t *)&host->signals[i], signal_closed);
    }
    if (is_ok(host->begun)) {
        struct swarm_host_outcome outcome;
        fill_outcome(host, &outcome);
        host_show(
            host, &(struct swarm_host_event){.type = SWARM_HOST_FINISHED, .outcome = &outcome}
        );
    }
}

static void finished(void *context, result finished, const struct error *error) {
    struct swarm_host *host = context;
    if (is_failed(finished)) {
        host_fault(host, finished, error);
    }
    over(host);
}

static void record_end(struct swarm_host *host) {
    const struct swarm_result *end = host->has_begun ? swarm_result(host->swarm) : NULL;
    bool has_best = end != NULL && end->node != SWARM_NONE;
    struct conclusion conclusion = conclude(host);
    host->phase = HOST_RECORDS;
    host->end = (struct swarm_root_end){
        .swarm =
            {.outcome = view_of_text(end != NULL ? host_outcome_word(end->outcome) : "cancelled"),
             .is_merged = end != NULL && end->is_merged,
             .why = view_of_text(conclusion.verdict)},
        .status = conclusion.status,
        .verdict = conclusion.verdict,
        .stop_reason = conclusion.stop,
        .exit_status = conclusion.exit_status,
    };
    if (has_best && end->node != SWARM_ROOT) {
        host->end.swarm.best = host->nodes[end->node].agent;
    }
    swarm_root_finish(host->root, &host->end, finished);
}

static void close_work(void *context) {
    struct swarm_host *host = context;
    swarm_work_destroy(host->work);
}

static void close_done(void *context) {
    struct swarm_host *host = context;
    host->work = NULL;
    record_end(host);
}

static bool is_idle(const struct swarm_host *host) {
    for (size_t i = 0; i < host->node_count; i++) {
        const struct host_node *node = &host->nodes[i];
        bool is_over = node->phase == NODE_NEW || node->phase == NODE_OVER;
        if (!is_over || node->is_posted || node->verification.is_running ||
            node->merge.is_running) {
            return false;
        }
    }
    return host->rank == NULL && host->mail_under_way == NULL && host_record_is_idle(host);
}

void host_go_on(struct swarm_host *host) {
    if (host->phase != HOST_WORKS && host->phase != HOST_ENDS) {
        return;
    }
    host_record_start(host);
    if (host->phase == HOST_ENDS && is_idle(host)) {
        host->phase = HOST_CLOSES;
        for (size_t i = 0; i < host->node_count; i++) {
            host_node_drop_sequence(&host->nodes[i]);
            host_node_drop_base(&host->nodes[i]);
        }
        host->job = (struct loop_job){.work = close_work, .done = close_done, .context = host};
        loop_job_start(host->loop, &host->job);
    }
}

/* ---- events ------------------------------------------------------------------------------------ */

/* What the swarm promises of itself, looked at where that is affordable. */
static void check(const struct swarm_host *host) {
#ifndef NDEBUG_HOT
    struct error error = {0};
    if (is_failed(swarm_check(host->swarm, &error))) {
        assert_failed(error.message, __FILE__, __LINE__);
    }
#else
    (void)host;
#endif
}

static void handle(struct swarm_host *host, const struct swarm_event *event) {
    struct swarm_event timed = *event;
    struct swarm_effects effects;
    timed.now_ms = swarm_host_now_ms(host);
    host->is_pumping = true;
    swarm_handle(host->swarm, &timed, &effects);
    check(host);
    host_give_bases(host);
    for (size_t i = 0; i < effects.count; i++) {
        if (effects.items[i].type == SWARM_DO_FINISH) {
            host->phase = HOST_ENDS;
            host->ended_ms = timed.now_ms;
            loop_wait(host->loop, 0, NULL, NULL);
        } else {
            host_effect(host, &effects.items[i]);
        }
    }
    host_look_at_nodes(host);
    if (swarm_is_ending(host->swarm) && !host->was_ending) {
        host->was_ending = true;
        host_show(host, &(struct swarm_host_event){.type = SWARM_HOST_ENDING});
    }
    host->is_pumping = false;
}

void host_event(struct swarm_host *host, const struct swarm_event *event) {
    ASSERT(!host->is_pumping);
    bool is_late_merge = host->phase == HOST_ENDS && event->type == SWARM_MERGED;
    if (host->phase == HOST_WORKS || is_late_merge) {
        handle(host, event);
    }
    while (host->rank_has_failed) {
        host->rank_has_failed = false;
        handle(host, &(struct swarm_event){.type = SWARM_RANKED, .node = SWARM_ROOT});
    }
    host_go_on(host);
}

void swarm_host_interrupt(struct swarm_host *host) {
    if (host->phase != HOST_BEGINS && host->phase != HOST_WORKS) {
        return; /* it is decided, and the record says so */
    }
    host->is_interrupted = true;
    if (host->phase == HOST_BEGINS && !host->has_begun) {
        swarm_root_cancel(host->root, "by the user");
    } else if (host->phase == HOST_WORKS) {
        host_event(host, &(struct swarm_event){.type = SWARM_INTERRUPT});
    }
}

static void signal_came(uv_signal_t *handle, int number) {
    struct swarm_host *host = handle->data;
    (void)number;
    host->signals_seen++;
    if (host->signals_seen == 1) {
        host_say(host, SWARM_HOST_NOTE, "stopping; once more to kill");
        swarm_host_interrupt(host);
    } else if (host->options.kill != NULL) {
        host->options.kill();
    }
}

/* ---- the beginning ----------------------------------------------------------------------------- */

static void place_work(void *context) {
    struct swarm_host *host = context;
    const struct swarm_host_options *options = &host->options;
    const struct swarm_work_options work = {
        .workspace = options->tools.workspace,
        .snapshots = options->snapshots,
        .place = buffer_text(&host->place),
        .verifier = options->swarm.has_verifier ? options->verifier : NULL,
        .sandbox = options->tools.sandbox,
        .policy = options->tools.policy,
        .tools = &host->options.tools,
        .permission = &host->options.permission,
        .config = options->run.hooks != NULL ? options->run.hooks->config : NULL,
    };
    host->begun = swarm_work_create(&host->work, &work, &host->begin_error);
}

static void place_done(void *context) {
    struct swarm_host *host = context;
    if (is_failed(host->begun) || host->is_interrupted) {
        if (host->work != NULL) {
            host->phase = HOST_CLOSES;
            host->job = (struct loop_job){.work = close_work, .done = close_done, .context = host};
            loop_job_start(host->loop, &host->job);
        } else {
            record_end(host);
        }
        return;
    }
    struct host_node *root = &host->nodes[SWARM_ROOT];
    root->work = swarm_work_root(host->work);
    root->agent = *swarm_root_agent(host->root);
    root->look.agent = root->agent;
    root->look.directory = host->options.tools.workspace;
    (void)snprintf(
        host->root_commit, sizeof host->root_commit, "%s", swarm_root_commit_before(host->root)
    );
    host->phase = HOST_WORKS;
    host->has_begun = true;
    host_show(
        host,
        &(struct swarm_host_event){.type = SWARM_HOST_BEGAN, .facts = swarm_root_facts(host->root)}
    );
    host_event(host, &(struct swarm_event){.type = SWARM_START});
}

static void opened(void *context, result opened, const struct error *error) {
    struct swarm_host *host = context;
    struct error local = {0};
    if (is_ok(opened)) {
        opened = buffer_append_format(
            &host->place,
            &local,
            "%s/swarms/%s",
            host->options.state,
            swarm_root_session(host->root)->text
        );
        error = &local;
        if (is_failed(opened)) {
            host->begun = opened;
            host->begin_error = local;
            record_end(host);
            return;
        }
    }
    if (is_failed(opened)) {
        host->begun = host->is_interrupted ? OK : opened;
        host->begin_error = *error;
        over(host);
        return;
    }
    host->job = (struct loop_job){.work = place_work, .done = place_done, .context = host};
    loop_job_start(host->loop, &host->job);
}

static result start_signals(struct swarm_host *host, struct error *error) {
    static const int numbers[HOST_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before; /* under nohup it stays ignored */
    bool is_ignored = sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
    size_t count = !host->options.handles_signals ? 0
                   : is_ignored                   ? HOST_SIGNALS - 1
                                                  : HOST_SIGNALS;
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        status = uv_signal_init(loop_uv(host->loop), &host->signals[i]);
        ASSERT(status == 0); /* it only fills in the handle */
        host->signals[i].data = host;
        host->signals_open++;
        status = uv_signal_start(&host->signals[i], signal_came, numbers[i]);
    }
    if (status != 0) {
        FAIL_FOREIGN(error, IO, -status, "cannot watch signals: %s", uv_strerror(status));
    }
    return OK;
}

static result open_root(struct swarm_host *host, struct error *error) {
    const struct swarm_host_options *options = &host->options;
    const struct run_options *run = &options->run;
    const struct swarm_root_options root = {
        .loop = host->loop,
        .engine = run->engine,
        .sequence = run->sequence,
        .encoder = run->encoder,
        .engine_info = run->engine_info,
        .sampling = run->sampling,
        .window = run->window,
        .system = run->agent.system,
        .tools = run->agent.tools,
        .tool_count = run->agent.tool_count,
        .tools_json = run->tools_json,
        .effort = run->agent.effort,
        .store = run->store,
        .begin = run->begin,
        .workspace = run->workspace,
        .swarm =
            {.strategy = view_of_text(options->swarm.strategy->name),
             .reason = options->reason,
             .verifier = view_of_text(options->verifier),
             .settings = options->settings,
             .seed = options->swarm.seed,
             .share = host_record_share(&host->nodes[SWARM_ROOT])},
        .context = host,
        .opened = opened,
    };
    return swarm_root_open(&host->root, &root, error);
}

/* ---- making ------------------------------------------------------------------------------------ */

static void host_destroy(struct swarm_host *host) {
    if (host == NULL) {
        return;
    }
    ASSERT(host->signals_open == 0 && host->work == NULL && host->rank == NULL);
    host_mail_deinit(host);
    for (size_t i = 0; i < host->node_count; i++) {
        host_node_deinit(&host->nodes[i]);
    }
    swarm_root_destroy(host->root);
    buffer_deinit(&host->record.detail);
    buffer_deinit(&host->place);
    swarm_destroy(host->swarm);
    free(host->nodes);
    free(host);
}

static void host_cleanup(struct swarm_host **host) {
    host_destroy(*host);
}

static int64_t limit_of(int64_t limit) {
    return limit > 0 ? limit : BUDGET_NO_LIMIT;
}

static result make_nodes(struct swarm_host *host, struct error *error) {
    const struct swarm_options *limits = swarm_options(host->swarm);
    host->nodes = calloc(limits->nodes_max, sizeof *host->nodes);
    if (host->nodes == NULL) {
        FAIL(error, MEMORY, "no memory for %zu nodes", limits->nodes_max);
    }
    host->node_count = limits->nodes_max;
    for (size_t i = 0; i < host->node_count; i++) {
        struct host_node *node = &host->nodes[i];
        node->host = host;
        node->index = i;
        buffer_init(&node->directory, BUFFER_CEILING_DEFAULT);
        buffer_init(&node->first, 2 * SWARM_BRIEF_BYTES_MAX + limits->task.length);
        buffer_init(&node->summary, SWARM_SUMMARY_BYTES_MAX);
        buffer_init(&node->detail, SWARM_DETAIL_BYTES_MAX);
        buffer_init(&node->held_text, BUFFER_CEILING_DEFAULT);
    }
    struct host_node *root = &host->nodes[SWARM_ROOT];
    root->share = (struct agent_share){
        .tokens_max = limit_of(limits->tokens_max),
        .calls_max = limit_of(limits->calls_max),
        .deadline_ms =
            limits->time_ms_max > 0 ? host->started_ms + limits->time_ms_max : BUDGET_NO_LIMIT,
    };
    root->processes_max = limit_of(limits->processes_max);
    root->memory_bytes_max = limit_of(limits->memory_bytes_max);
    return OK;
}

static result host_create(
    struct swarm_host **out,
    struct loop *loop,
    const struct swarm_host_options *options,
    struct error *error
) {
    CLEANUP(host_cleanup) struct swarm_host *host = calloc(1, sizeof *host);
    if (host == NULL) {
        FAIL(error, MEMORY, "no memory for a swarm");
    }
    host->options = *options;
    host->loop = loop;
    host->begun = OK;
    host->fault = OK;
    buffer_init(&host->place, BUFFER_CEILING_DEFAULT);
    buffer_init(&host->record.detail, SWARM_DETAIL_BYTES_MAX);
    TRY(swarm_create(&host->swarm, &options->swarm, error));
    host->started_ms = swarm_host_now_ms(host);
    TRY(make_nodes(host, error));
    *out = TAKE(host);
    return OK;
}

result swarm_host_run(
    struct loop *loop,
    const struct swarm_host_options *options,
    struct swarm_host_outcome *out,
    struct error *error
) {
    CLEANUP(host_cleanup) struct swarm_host *host = NULL;
    TRY(host_create(&host, loop, options, error));
    ASSERT(host != NULL);
    result started = start_signals(host, error);
    if (is_ok(started)) {
        started = open_root(host, error);
    }
    if (is_failed(started)) {
        for (size_t i = 0; i < host->signals_open; i++) {
            uv_close((uv_handle_t *)&host->signals[i], signal_closed);
        }
        loop_drive(loop); /* closes them */
        return started;
    }
    loop_drive(loop);
    ASSERT(host->phase == HOST_OVER);
    if (is_failed(host->begun)) {
        if (error != NULL) {
            *error = host->begin_error;
        }
        return host->begun;
    }
    fill_outcome(host, out);
    return OK;
}
