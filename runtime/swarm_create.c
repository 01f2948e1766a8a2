/* Making a swarm, and what may be asked of it; see swarm.h. */
#include "swarm_internal.h"

#include <inttypes.h>

static size_t size_or(size_t value, size_t otherwise) {
    return value > 0 ? value : otherwise;
}

static int64_t ms_or(int64_t value, int64_t otherwise) {
    return value > 0 ? value : otherwise;
}

static result check_options(const struct swarm_options *options, struct error *error) {
    const int64_t amounts[] = {
        options->time_ms_max,
        options->tokens_max,
        options->calls_max,
        options->processes_max,
        options->memory_bytes_max,
        options->verify_ms_max,
        options->merge_ms_max,
        options->kill_grace_ms,
        options->silent_ms_max,
        options->node_memory_bytes,
    };
    const int64_t times[] = {
        options->time_ms_max,
        options->verify_ms_max,
        options->merge_ms_max,
        options->kill_grace_ms,
        options->silent_ms_max,
    };
    const struct strategy *strategy = options->strategy;
    for (size_t i = 0; i < COUNT_OF(amounts); i++) {
        if (amounts[i] < 0) {
            FAIL(error, INVALID_INPUT, "%" PRId64 ": a limit is not negative", amounts[i]);
        }
    }
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        if (times[i] > SWARM_TIME_MS_MAX) {
            FAIL(error, INVALID_INPUT, "%" PRId64 " ms: at most 30 days", times[i]);
        }
    }
    if (options->nodes_max > SWARM_NODES_MAX || options->nodes_max == 1) {
        FAIL(error, INVALID_INPUT, "%zu nodes: 2 to %d", options->nodes_max, SWARM_NODES_MAX);
    }
    int64_t attempts_max = (int64_t)size_or(options->nodes_max, SWARM_NODES_DEFAULT) - 1;
    if (options->attempts != SWARM_ATTEMPTS_DEFAULT &&
        (options->attempts < strategy->attempts_min || options->attempts > attempts_max)) {
        FAIL(
            error,
            INVALID_INPUT,
            "%" PRId64 " attempts: %s takes %" PRId64 " to %" PRId64,
            options->attempts,
            strategy->name,
            strategy->attempts_min,
            attempts_max
        );
    }
    if (strategy->needs_verifier && !options->has_verifier) {
        FAIL(
            error,
            INVALID_INPUT,
            "%s needs a verifier: without one nobody knows which attempt is right",
            strategy->name
        );
    }
    if (options->task.length == 0 || options->task.length > SWARM_BRIEF_BYTES_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "a task of %zu bytes: 1 to %zu",
            options->task.length,
            SWARM_BRIEF_BYTES_MAX
        );
    }
    if (options->effort < 0 || options->effort > 100) {
        FAIL(error, INVALID_INPUT, "effort %d: 1 to 100", (int)options->effort);
    }
    return OK;
}

static void fill_options(struct swarm_options *options) {
    options->depth_max = size_or(options->depth_max, SWARM_DEPTH_DEFAULT);
    options->nodes_max = size_or(options->nodes_max, SWARM_NODES_DEFAULT);
    options->live_max = size_or(options->live_max, SWARM_LIVE_DEFAULT);
    options->live_max =
        options->live_max < options->nodes_max ? options->live_max : options->nodes_max;
    options->verify_ms_max = ms_or(options->verify_ms_max, SWARM_VERIFY_MS_DEFAULT);
    options->merge_ms_max = ms_or(options->merge_ms_max, SWARM_MERGE_MS_DEFAULT);
    options->kill_grace_ms = ms_or(options->kill_grace_ms, SWARM_GRACE_MS_DEFAULT);
    options->silent_ms_max = ms_or(options->silent_ms_max, SWARM_SILENT_MS_DEFAULT);
    if (options->attempts == SWARM_ATTEMPTS_DEFAULT) {
        int64_t most = (int64_t)options->nodes_max - 1;
        int64_t usual = options->strategy->attempts_default;
        options->attempts = usual < most ? usual : most;
    }
    int32_t least = options->effort_min > 0 ? options->effort_min : 25;
    options->effort_min = least < options->effort ? least : options->effort;
}

static result fill(struct swarm *swarm, struct error *error) {
    size_t nodes_max = swarm->options.nodes_max;
    const struct swarm_options *options = &swarm->options;
    const struct budget_limits limits = {
        .amounts.of[BUDGET_TOKENS] = ms_or(options->tokens_max, BUDGET_NO_LIMIT),
        .amounts.of[BUDGET_CALLS] = ms_or(options->calls_max, BUDGET_NO_LIMIT),
        .amounts.of[BUDGET_PROCESSES] = ms_or(options->processes_max, BUDGET_NO_LIMIT),
        .amounts.of[BUDGET_MEMORY] = ms_or(options->memory_bytes_max, BUDGET_NO_LIMIT),
        .deadline_ms = BUDGET_NO_LIMIT,
        .depth_max = options->depth_max,
        .nodes_max = nodes_max,
    };
    TRY(budget_create(&swarm->budget, &limits, error));
    TRY(buffer_append(&swarm->task, options->task, error));
    swarm->options.task = buffer_view(&swarm->task);
    /* Of one event each node gives at most one of each kind but messages and remarks on others. */
    swarm->effects_max = 12 * nodes_max + (size_t)2 * SWARM_MESSAGES_MAX + 16;
    swarm->nodes = calloc(nodes_max, sizeof *swarm->nodes);
    swarm->insides = calloc(nodes_max, sizeof *swarm->insides);
    swarm->effects = calloc(swarm->effects_max, sizeof *swarm->effects);
    swarm->orders.items = calloc(STRATEGY_ORDERS_MAX, sizeof *swarm->orders.items);
    swarm->orders.rank_nodes = calloc(SWARM_NODES_MAX, sizeof *swarm->orders.rank_nodes);
    if (swarm->nodes == NULL || swarm->insides == NULL || swarm->effects == NULL ||
        swarm->orders.items == NULL || swarm->orders.rank_nodes == NULL) {
        FAIL(error, MEMORY, "no memory for a swarm of %zu nodes", nodes_max);
    }
    return OK;
}

result swarm_create(struct swarm **out, const struct swarm_options *options, struct error *error) {
    ASSERT(options->strategy != NULL);
    TRY(check_options(options, error));
    CLEANUP(swarm_cleanup) struct swarm *swarm = calloc(1, sizeof *swarm);
    if (swarm == NULL) {
        FAIL(error, MEMORY, "no memory for a swarm");
    }
    swarm->options = *options;
    buffer_init(&swarm->task, SWARM_BRIEF_BYTES_MAX);
    fill_options(&swarm->options);
    TRY(fill(swarm, error));
    swarm->root_merging = SWARM_NONE;
    swarm->wanted = SWARM_NONE;
    swarm->result.node = SWARM_NONE;
    swarm->wake_ms = BUDGET_NO_LIMIT;
    swarm->count = 1;
    swarm->nodes[SWARM_ROOT] = (struct swarm_node){
        .name = "root",
        .kind = SWARM_KIND_ROOT,
        .state = SWARM_RUNNING,
        .parent = SWARM_ROOT,
        .deadline_ms = BUDGET_NO_LIMIT,
        .effort = swarm->options.effort,
        .conflict_of = SWARM_NONE,
        .twin = SWARM_NONE,
    };
    swarm->insides[SWARM_ROOT].merge_target = SWARM_NONE;
    for (size_t i = 0; i < COUNT_OF(swarm->mail); i++) {
        buffer_init(&swarm->mail[i].text, SWARM_MESSAGE_BYTES_MAX);
    }
    buffer_init(&swarm->nodes[SWARM_ROOT].detail, SWARM_DETAIL_BYTES_MAX);
    *out = TAKE(swarm);
    return OK;
}

void swarm_destroy(struct swarm *swarm) {
    if (swarm == NULL) {
        return;
    }
    if (swarm->phase != SWARM_PHASE_NEW && swarm->options.strategy->deinit != NULL) {
        swarm->options.strategy->deinit(swarm->state);
    }
    for (size_t i = 0; i < swarm->count; i++) {
        buffer_deinit(&swarm->nodes[i].brief);
        buffer_deinit(&swarm->nodes[i].summary);
        buffer_deinit(&swarm->nodes[i].detail);
    }
    for (size_t i = 0; i < COUNT_OF(swarm->mail); i++) {
        buffer_deinit(&swarm->mail[i].text);
    }
    free(swarm->nodes);
    free(swarm->insides);
    free(swarm->effects);
    free(swarm->orders.items);
    free(swarm->orders.rank_nodes);
    buffer_deinit(&swarm->task);
    budget_destroy(swarm->budget);
    free(swarm);
}

void swarm_cleanup(struct swarm **swarm) {
    swarm_destroy(*swarm);
    *swarm = NULL;
}

/* ---- questions --------------------------------------------------------------------------------- */

bool swarm_is_finished(const struct swarm *swarm) {
    return swarm->phase == SWARM_PHASE_FINISHED;
}

bool swarm_is_ending(const struct swarm *swarm) {
    return swarm->phase >= SWARM_PHASE_ENDS;
}

const struct swarm_result *swarm_result(const struct swarm *swarm) {
    return &swarm->result;
}

size_t swarm_node_count(const struct swarm *swarm) {
    return swarm->count;
}

const struct swarm_node *swarm_node(const struct swarm *swarm, size_t node) {
    ASSERT(node < swarm->count);
    return &swarm->nodes[node];
}

size_t swarm_find(const struct swarm *swarm, struct view name) {
    for (size_t i = 0; i < swarm->count; i++) {
        if (view_equals_text(name, swarm->nodes[i].name)) {
            return i;
        }
    }
    return SWARM_NONE;
}

const struct budget *swarm_budget(const struct swarm *swarm) {
    return swarm->budget;
}

const struct swarm_options *swarm_options(const struct swarm *swarm) {
    return &swarm->options;
}

int64_t swarm_nodes_deadline_ms(const struct swarm *swarm) {
    return swarm->nodes_deadline_ms;
}

size_t swarm_live(const struct swarm *swarm) {
    size_t count = 0;
    for (size_t i = 1; i < swarm->count; i++) {
        count += swarm_is_live(swarm, i) ? 1 : 0;
    }
    return count;
}

bool swarm_can_verify(const struct swarm *swarm) {
    return swarm->options.has_verifier && swarm->verifier_faults < SWARM_VERIFIER_FAULTS_MAX;
}

bool swarm_can_start(const struct swarm *swarm) {
    return swarm->phase == SWARM_PHASE_WORKS && !swarm->disk_is_full &&
           swarm->now_ms < swarm->nodes_deadline_ms;
}

bool swarm_goes_before(const struct swarm *swarm, size_t a, size_t b, int64_t now_ms) {
    const size_t nodes[2] = {a, b};
    struct budget_rank ranks[2];
    for (size_t i = 0; i < 2; i++) {
        const struct swarm_node *node = &swarm->nodes[nodes[i]];
        ranks[i] = (struct budget_rank){
            .value = node->value,
            .deadline_ms = node->deadline_ms,
            .work_ms = node->turns > 0 ? (node->heard_ms - node->started_ms) / node->turns : 0,
            .index = nodes[i],
        };
    }
    return budget_goes_before(&ranks[0], &ranks[1], now_ms);
}

bool swarm_message(const struct swarm *swarm, uint64_t message, struct swarm_message *out) {
    for (size_t i = 0; message != 0 && i < COUNT_OF(swarm->mail); i++) {
        const struct swarm_mail *mail = &swarm->mail[i];
        if (mail->number == message) {
            *out = (struct swarm_message){
                .from = mail->from,
                .to = mail->to,
                .text = buffer_view(&mail->text),
            };
            return true;
        }
    }
    return false;
}

const char *swarm_refusal(const struct swarm *swarm) {
    return swarm->refusal;
}
