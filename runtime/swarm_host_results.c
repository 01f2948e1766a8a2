/* What becomes of results: verifications, merges, rankings. Each runs beside everything else and is
 * answered once. See swarm_host_internal.h.
 */
#include "swarm_host_internal.h"

/* ---- verifications ----------------------------------------------------------------------------- */

static void verify_work(void *context) {
    struct host_node *node = context;
    struct host_verification *one = &node->verification;
    swarm_work_verify(node->work, &one->options, &one->verdict);
}

static void verify_start(struct host_node *node, int64_t time_ms_max);

static void verify_done(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    struct host_verification *one = &node->verification;
    one->is_running = false;
    fd_cleanup(&one->options.cancel_fd);
    if (one->is_cancelled) {
        if (one->is_wanted) {
            verify_start(node, one->wanted_ms_max);
        }
        host_go_on(host);
        return;
    }
    if (one->verdict.is_full) {
        host_disk_is_full(host);
    }
    const struct swarm_event event = {
        .type = SWARM_VERIFIED,
        .node = node->index,
        .verdict = one->verdict.verdict != SWARM_NOT_VERIFIED ? one->verdict.verdict
                                                              : SWARM_VERIFIED_CRASHED,
        .detail = view_of_text(one->verdict.detail),
    };
    const struct swarm_host_event shown = {
        .type = SWARM_HOST_VERIFIED,
        .node = node->index,
        .verdict = event.verdict,
        .text = event.detail,
    };
    host_show(host, &shown);
    host_event(host, &event);
}

static void verify_start(struct host_node *node, int64_t time_ms_max) {
    struct host_verification *one = &node->verification;
    struct error error = {0};
    *one = (struct host_verification){
        .job = {.work = verify_work, .done = verify_done, .context = node},
        .options = {.time_ms_max = time_ms_max, .cancel_fd = -1},
        .is_running = true,
    };
    if (node->index != SWARM_ROOT) {
        memcpy(one->commit, node->made.commit, sizeof one->commit);
        one->options.commit = one->commit[0] != '\0' ? one->commit : NULL;
    }
    if (is_failed(swarm_work_cancel_create(&one->options.cancel_fd, &error))) {
        one->options.cancel_fd = -1; /* it then ends at its own time at the latest */
    }
    node->host->totals.verifications++;
    loop_job_start(node->host->loop, &one->job);
}

void host_verify(struct host_node *node, const struct swarm_effect *effect) {
    struct host_verification *one = &node->verification;
    if (one->is_running) { /* the root's, given up, and not at its end yet */
        ASSERT(one->is_cancelled && !one->is_wanted);
        one->is_wanted = true;
        one->wanted_ms_max = effect->time_ms_max;
    } else {
        verify_start(node, effect->time_ms_max);
    }
}

void host_verify_cancel(struct host_node *node) {
    struct host_verification *one = &node->verification;
    one->is_cancelled = true;
    one->is_wanted = false;
    if (one->is_running && one->options.cancel_fd >= 0) {
        swarm_work_cancel(one->options.cancel_fd);
    }
}

/* ---- merges ------------------------------------------------------------------------------------ */

static void merge_work(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    struct host_merge *one = &node->merge;
    const struct host_node *target = &host->nodes[one->target];
    swarm_work_merge(node->work, target->work, &one->made);
    const struct session_merge merge = {
        .into = target->agent,
        .commit = view_of_text(one->made.commit),
        .conflicts = view_of_text(one->made.detail),
    };
    if (one->made.merge != SWARM_MERGE_FAILED) {
        one->recorded =
            session_node_merge(host->options.run.store, &node->agent, &merge, &one->error);
    }
}

static void merge_done(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    struct host_merge *one = &node->merge;
    one->is_running = false;
    if (is_failed(one->recorded)) {
        host_say(host, SWARM_HOST_WARNING, "%s: %s", node->name, one->error.message);
    }
    if (one->made.is_full) {
        host_disk_is_full(host);
    }
    bool is_made = one->made.merge == SWARM_MERGE_OK;
    if (is_made && one->target == SWARM_ROOT) {
        memcpy(host->root_commit, one->made.commit, sizeof host->root_commit);
    }
    host->totals.merges += is_made ? 1 : 0;
    const struct swarm_event event = {
        .type = SWARM_MERGED,
        .node = node->index,
        .merge = one->made.merge,
        .detail = view_of_text(one->made.detail),
        .commit = view_of_text(one->made.commit),
        .changed_lines = one->made.changed_lines,
    };
    const struct swarm_host_event shown = {
        .type = SWARM_HOST_MERGED,
        .node = node->index,
        .other = one->target,
        .merge = one->made.merge,
        .text = event.detail,
    };
    host_show(host, &shown);
    host_event(host, &event);
}

void host_merge(struct host_node *node, const struct swarm_effect *effect) {
    struct host_merge *one = &node->merge;
    ASSERT(!one->is_running);
    one->job = (struct loop_job){.work = merge_work, .done = merge_done, .context = node};
    one->target = effect->target;
    one->recorded = OK;
    one->is_running = true;
    loop_job_start(node->host->loop, &one->job);
}

/* ---- rankings ---------------------------------------------------------------------------------- */

static void ranked(void *context, const double *scores, int64_t tokens) {
    struct swarm_host *host = context;
    double copy[SWARM_NODES_MAX];
    bool has_scores = scores != NULL;
    if (has_scores) { /* they go with the ranking */
        memcpy(copy, scores, host->rank_count * sizeof copy[0]);
    }
    swarm_rank_destroy(host->rank);
    host->rank = NULL;
    host->totals.rank_tokens += tokens;
    const struct swarm_event event = {
        .type = SWARM_RANKED,
        .node = SWARM_ROOT,
        .scores = has_scores ? copy : NULL,
        .score_count = has_scores ? host->rank_count : 0,
        .tokens = tokens,
    };
    host_event(host, &event);
    if (has_scores) {
        host_show(host, &(struct swarm_host_event){.type = SWARM_HOST_RANKED});
    }
}

void host_rank(struct swarm_host *host, const struct swarm_effect *effect) {
    const struct run_options *run = &host->options.run;
    struct error error = {0};
    ASSERT(host->rank == NULL && effect->node_count <= COUNT_OF(host->rank_contexts));
    host->rank_count = effect->node_count;
    for (size_t i = 0; i < effect->node_count; i++) {
        const struct host_node *node = &host->nodes[effect->nodes[i]];
        host->rank_contexts[i] = (struct swarm_rank_context){
            .sequence = node->sequence,
            .end_is_missing = node->stop != AGENT_STOP_ANSWER && node->stop != AGENT_STOP_FINISH,
        };
    }
    const struct swarm_rank_options options = {
        .loop = host->loop,
        .engine = run->engine,
        .tokenizer = run->tokenizer,
        .encoder = run->encoder,
        .window = run->window,
        .contexts = host->rank_contexts,
        .count = host->rank_count,
        .tokens_max = effect->tokens_max,
        .context = host,
        .done = ranked,
    };
    if (is_failed(swarm_rank_start(&host->rank, &options, &error))) {
        host_say(host, SWARM_HOST_WARNING, "no ranking: %s", error.message);
        host->rank_has_failed = true; /* an answer of its own, after the effects */
    }
}

void host_rank_cancel(struct swarm_host *host) {
    if (host->rank != NULL) {
        swarm_rank_cancel(host->rank);
    }
}
