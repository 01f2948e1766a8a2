/* The life of a node: its directory is opened, its agent runs, what it made is brought home, the directory
 * goes. What fails on the way is answered too. See swarm_host_internal.h.
 *
 *     new -> opens -> runs -> collects -> closes -> over
 *               `-> gives up ------------------------^
 */
#include "swarm_host_internal.h"

#include <sys/statvfs.h>

#define DISK_BYTES_MIN ((uint64_t)1 << 20) /* with less nothing can be recorded */

static void job_start(
    struct host_node *node,
    enum node_phase phase,
    void (*work)(void *context),
    void (*done)(void *context)
) {
    node->phase = phase;
    node->worked = OK;
    node->job = (struct loop_job){.work = work, .done = done, .context = node};
    loop_job_start(node->host->loop, &node->job);
}

/* ---- what it holds ----------------------------------------------------------------------------- */

void host_node_drop_sequence(struct host_node *node) {
    const struct engine_ports *engine = &node->host->options.run.engine;
    if (node->sequence != 0) {
        engine->destroy(engine->context, node->sequence);
        node->sequence = 0;
    }
}

/* Nothing of its agent runs any more. */
static void drop_lines(struct host_node *node) {
    swarm_agents_destroy(node->agents);
    run_channel_destroy(node->channel);
    node->agents = NULL;
    node->channel = NULL;
}

void host_node_deinit(struct host_node *node) {
    drop_lines(node);
    host_remarks_drop(node);
    host_node_drop_base(node);
    buffer_deinit(&node->first);
    buffer_deinit(&node->directory);
    buffer_deinit(&node->summary);
    buffer_deinit(&node->detail);
    buffer_deinit(&node->held_text);
}

static void close_work(void *context) {
    struct host_node *node = context;
    swarm_work_close(node->work, &node->closed);
}

static void close_done(void *context) {
    struct host_node *node = context;
    node->phase = NODE_OVER;
    node->look.is_kept = !node->closed.is_removed;
    if (node->look.is_kept) {
        host_say(
            node->host,
            SWARM_HOST_WARNING,
            "%s: %s stays: %s",
            node->name,
            swarm_work_directory(node->work),
            node->closed.reason
        );
    }
    host_go_on(node->host);
}

/* ---- it could not be started ------------------------------------------------------------------- */

/* The record has it all the same: an agent that began and ended at once; unless the agent that started it has
 * ended, below which it takes nobody. On a worker. */
static void record_unborn(struct host_node *node, const char *ending, struct view detail) {
    struct session_store *store = node->host->options.run.store;
    struct error error = {0};
    struct session_node_begin begin = node->node.begin;
    begin.agent.session = *swarm_root_session(node->host->root);
    if (node->work != NULL) {
        begin.commit_before = view_of_text(swarm_work_commit_before(node->work));
    }
    const struct session_node_end end = {
        .ending = view_of_text(ending),
        .outcome = view_of_text(node->is_cancelled ? "cancelled" : "failed"),
        .detail = detail,
    };
    result recorded = session_node_start(store, &begin, &node->given_up, &error);
    if (is_ok(recorded)) {
        recorded = session_node_end(store, &node->given_up, &end, &error);
    }
    result_ignore(recorded); /* see above; a record that fails will say so at the end */
}

static void take_unborn(struct host_node *node) {
    if (node->agent.text[0] == '\0') {
        node->agent = node->given_up;
        node->look.agent = node->agent;
    }
}

static void give_up_work(void *context) {
    struct host_node *node = context;
    const struct swarm_work *work = node->host->work;
    node->disk_is_full = work != NULL && swarm_work_is_full(work, &node->error);
    record_unborn(node, "start", view_of_text(node->error.message));
    if (node->work != NULL) {
        swarm_work_close(node->work, &node->closed);
    }
}

static void give_up_done(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    node->phase = NODE_OVER;
    take_unborn(node);
    host_node_drop_sequence(node);
    host_node_drop_base(node);
    drop_lines(node);
    if (node->disk_is_full) {
        host_disk_is_full(host);
    }
    const struct swarm_event event = {
        .type = SWARM_NODE_START_FAILED,
        .node = node->index,
        .text = view_of_text(node->error.message),
    };
    host_event(host, &event);
}

static void give_up(struct host_node *node) {
    host_agent_begin(node, &node->node.begin);
    host_set_activity(node, "");
    job_start(node, NODE_GIVES_UP, give_up_work, give_up_done);
}

/* ---- start ------------------------------------------------------------------------------------- */

static void open_work(void *context) {
    struct host_node *node = context;
    node->worked = swarm_work_open(node->host->work, &node->open, &node->work, &node->error);
}

static result fail_cancelled(struct error *error) {
    FAIL(error, CANCELLED, "cancelled before it began");
}

/* An engine that has lost more than a sequence gives no other one either. */
static void note_engine(struct host_node *node, result failed) {
    struct swarm_host *host = node->host;
    if (failed.code == RESULT_DEVICE && !host->engine_is_lost) {
        host->engine_is_lost = true;
        const struct swarm_event lost = {
            .type = SWARM_ENGINE_LOST, .detail = view_of_text(node->error.message)};
        host_event(host, &lost);
    }
}

static void open_done(void *context) {
    struct host_node *node = context;
    if (is_failed(node->worked)) {
        give_up(node);
        return;
    }
    if (node->is_cancelled) {
        node->worked = fail_cancelled(&node->error);
        give_up(node);
        return;
    }
    const char *directory = swarm_work_directory(node->work);
    if (is_ok(buffer_append_text(&node->directory, directory, NULL))) { /* else it is not shown */
        node->look.directory = buffer_text(&node->directory);
    }
    const char *skipped = swarm_work_skipped(node->work);
    if (skipped[0] != '\0') {
        host_say(
            node->host, SWARM_HOST_WARNING, "the files of %s lack some: %s", node->name, skipped
        );
    }
    result started = host_agent_start(node, &node->error);
    if (is_failed(started)) {
        give_up(node);
        note_engine(node, started);
        return;
    }
    node->phase = NODE_RUNS;
}

/* The lines between its agent and the loop. */
static result make_lines(struct host_node *node, struct error *error) {
    struct loop *loop = node->host->loop;
    TRY(run_channel_create(&node->channel, loop, error));
    if (!node->host->options.has_agent_tools) {
        return OK;
    }
    return swarm_agents_create(&node->agents, loop, host_asked, node, error);
}

void host_node_start(struct host_node *node, const struct swarm_effect *effect) {
    struct swarm_host *host = node->host;
    const struct swarm_node *told = swarm_node(host->swarm, node->index);
    ASSERT(node->phase == NODE_NEW && node->index != SWARM_ROOT);
    memcpy(node->name, told->name, sizeof node->name);
    node->share = (struct agent_share){
        .tokens_max = effect->tokens_max,
        .calls_max = effect->calls_max,
        .deadline_ms = told->deadline_ms,
    };
    node->processes_max = effect->processes_max;
    node->memory_bytes_max = effect->memory_bytes_max;
    node->effort = told->effort > 0 ? told->effort : host->options.run.agent.effort;
    host->totals.nodes++;
    host_set_activity(node, "preparing");
    if (is_failed(make_lines(node, &node->error))) {
        give_up(node);
        return;
    }
    /* Those of one moment begin with one snapshot of the root; an agent's own files are as they are now. */
    bool is_of_root = told->parent == SWARM_ROOT && host->root_commit[0] != '\0';
    memcpy(node->commit_before, host->root_commit, sizeof node->commit_before);
    node->open = (struct swarm_work_open){
        .name = node->name,
        .parent = host->nodes[told->parent].work,
        .commit = is_of_root ? node->commit_before : NULL,
        .conflict_of = told->conflict_of != SWARM_NONE ? host->nodes[told->conflict_of].work : NULL,
        .processes_max = effect->processes_max,
        .memory_bytes_max = effect->memory_bytes_max,
        .output = run_channel_output,
        .output_context = node->channel,
        .agents = node->agents != NULL ? swarm_agents_port(node->agents) : NULL,
    };
    job_start(node, NODE_OPENS, open_work, open_done);
}

void host_node_cancel(struct host_node *node) {
    const struct swarm_node *told = swarm_node(node->host->swarm, node->index);
    node->is_cancelled = true;
    if (node->run != NULL) {
        run_cancel(node->run, swarm_cut_text(told->cut));
    }
}

/* ---- end --------------------------------------------------------------------------------------- */

/* A record that fails says not in numbers why. */
static bool is_full(const char *directory) {
    struct statvfs about;
    return statvfs(directory, &about) == 0 && about.f_bavail * about.f_frsize < DISK_BYTES_MIN;
}

static void collect_work(void *context) {
    struct host_node *node = context;
    node->disk_is_full = node->stop == AGENT_STOP_RECORD && is_full(node->host->options.state);
    if (node->agent.text[0] == '\0') { /* its run ended before the record had begun */
        record_unborn(node, run_end_name(run_end_of(node->stop)), buffer_view(&node->detail));
    }
    node->worked = swarm_work_result(node->work, &node->made, &node->error);
    if (is_failed(node->worked)) {
        node->disk_is_full =
            node->disk_is_full || swarm_work_is_full(node->host->work, &node->error);
    }
}

/* It was not the model's doing when one run after the other ends so. */
static void count_engine_faults(struct host_node *node) {
    struct swarm_host *host = node->host;
    host->engine_faults = node->stop == AGENT_STOP_ENGINE ? host->engine_faults + 1
                          : node->turns > 0               ? 0
                                                          : host->engine_faults;
    if (host->engine_faults == HOST_ENGINE_FAULTS_MAX && !host->engine_is_lost) {
        host->engine_is_lost = true;
        const struct swarm_event lost = {
            .type = SWARM_ENGINE_LOST, .detail = buffer_view(&node->detail)};
        host_event(host, &lost);
    }
}

static void add_detail(struct host_node *node, const char *text) {
    const char *between = node->detail.length > 0 ? "; " : "";
    result added = buffer_append_format(&node->detail, NULL, "%s%s", between, text);
    result_ignore(added); /* without memory it is shorter */
}

static void collect_done(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    bool is_unknown = is_failed(node->worked);
    take_unborn(node);
    if (is_unknown) {
        node->made = (struct swarm_work_made){0};
        add_detail(node, node->error.message);
        host_say(host, SWARM_HOST_WARNING, "%s: %s", node->name, node->error.message);
    }
    if (node->disk_is_full) {
        host_disk_is_full(host);
    }
    if (node->made.skipped_names[0] != '\0') {
        host_say(
            host,
            SWARM_HOST_WARNING,
            "%s changed files that no snapshot holds: %s",
            node->name,
            node->made.skipped_names
        );
    }
    drop_lines(node);
    job_start(node, NODE_CLOSES, close_work, close_done);
    count_engine_faults(node);
    const struct swarm_event event = {
        .type = SWARM_NODE_ENDED,
        .node = node->index,
        /* What it said of files that are not kept is worth nothing. */
        .end = is_unknown ? SWARM_END_FAULT : run_end_of(node->stop),
        .text = buffer_view(&node->summary),
        .detail = buffer_view(&node->detail),
        .commit = view_of_text(node->made.commit),
        .changed_lines = node->made.changed_lines,
        .tokens = node->tokens - node->told_tokens,
        .calls = node->calls - node->told_calls,
    };
    node->told_tokens = node->tokens;
    node->told_calls = node->calls;
    host_event(host, &event);
    /* Whose result may still be ranked keeps its context until the end. */
    if (host->phase != HOST_WORKS || swarm_class(host->swarm, node->index) < 2) {
        host_node_drop_sequence(node);
    }
}

void host_node_collect(struct host_node *node) {
    host_node_drop_base(node);
    host_set_activity(node, "collecting");
    job_start(node, NODE_COLLECTS, collect_work, collect_done);
}
