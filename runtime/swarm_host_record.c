/* What the record is told beside the runs of nodes: other shares and efforts, and what their results are
 * worth. One at a time on a worker; what changed meanwhile is told once. See swarm_host_internal.h.
 */
#include "swarm_host_internal.h"

const char *host_outcome_word(enum swarm_outcome outcome) {
    return outcome == SWARM_UNDECIDED ? "" : swarm_outcome_name(outcome);
}

static const char *verdict_word(enum swarm_verdict verdict) {
    static const char *const words[] = {
        [SWARM_NOT_VERIFIED] = "",
        [SWARM_VERIFIED_PASS] = "pass",
        [SWARM_VERIFIED_FAIL] = "fail",
        [SWARM_VERIFIED_HUNG] = "hung",
        [SWARM_VERIFIED_CRASHED] = "crashed",
        [SWARM_VERIFIED_EDITED] = "edited",
    };
    return words[verdict];
}

/* Whether the record has its end, so that it can be judged; and before that, its beginning. */
static bool has_ended(const struct host_node *node) {
    return node->agent.text[0] != '\0' && node->run == NULL &&
           (node->phase == NODE_COLLECTS || node->phase == NODE_CLOSES || node->phase == NODE_OVER);
}

static bool has_begun(const struct host_node *node) {
    return node->is_begun && node->run != NULL;
}

static bool is_due(const struct host_node *node) {
    return node->index != SWARM_ROOT &&
           ((node->share_is_new && has_begun(node)) || (node->judgement_is_new && has_ended(node)));
}

bool host_record_is_idle(const struct swarm_host *host) {
    for (size_t i = 1; i < host->node_count; i++) {
        if (is_due(&host->nodes[i])) {
            return false;
        }
    }
    return !host->record.is_running;
}

static void work(void *context) {
    struct swarm_host *host = context;
    struct host_record *record = &host->record;
    struct session_store *store = host->options.run.store;
    record->recorded =
        record->is_judgement
            ? session_node_judge(store, &record->agent, &record->judgement, &record->error)
            : session_node_change(
                  store, &record->agent, &record->share, record->effort, &record->error
              );
}

static void done(void *context) {
    struct swarm_host *host = context;
    struct host_record *record = &host->record;
    record->is_running = false;
    /* A share for an agent that has ended meanwhile is of no use, and refused. */
    bool is_late = !record->is_judgement && record->recorded.code == RESULT_INVALID_INPUT;
    if (is_failed(record->recorded) && !is_late) {
        host_fault(host, record->recorded, &record->error);
    }
    host_go_on(host);
}

static void fill_judgement(struct host_record *record, struct host_node *node) {
    const struct swarm_node *told = swarm_node(node->host->swarm, node->index);
    node->judgement_is_new = false;
    buffer_clear(&record->detail); /* a copy: the swarm may write another one */
    result copied = buffer_append(&record->detail, buffer_view(&told->detail), NULL);
    result_ignore(copied); /* without memory the verdict alone is recorded */
    record->judgement = (struct session_judgement){
        .outcome = view_of_text(host_outcome_word(told->outcome)),
        .verdict = view_of_text(verdict_word(told->verdict)),
        .detail = buffer_view(&record->detail),
        .has_score = told->has_score,
        .score = told->score,
    };
}

void host_record_start(struct swarm_host *host) {
    struct host_record *record = &host->record;
    struct host_node *node = NULL;
    for (size_t i = 1; i < host->node_count && node == NULL; i++) {
        node = is_due(&host->nodes[i]) ? &host->nodes[i] : NULL;
    }
    if (node == NULL || record->is_running) {
        return;
    }
    record->agent = node->agent;
    record->is_judgement = node->judgement_is_new && has_ended(node);
    if (record->is_judgement) {
        fill_judgement(record, node);
    } else {
        node->share_is_new = false;
        record->share = host_record_share(node);
        record->effort = node->effort;
    }
    record->error = (struct error){0};
    record->is_running = true;
    record->job = (struct loop_job){.work = work, .done = done, .context = host};
    loop_job_start(host->loop, &record->job);
}
