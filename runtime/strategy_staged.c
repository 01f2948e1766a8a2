/* A few attempts at low effort, then fewer at higher effort on what failed, told what was learnt. See
 * strategy.h.
 *
 * Each stage may use an equal part of what is left of time and tokens, so that the last one, with the most
 * effort, is not starved by those before. The first result that the verifier passes ends it.
 */
#include "strategy.h"

#define STAGES           3
#define STAGE_EFFORT     25 /* less than in the stage after it */
#define LEARNT_BYTES_MAX ((size_t)6 << 10)
#define LEARNT_EACH                                                                                \
    ((size_t)1 << 10) /* of one attempt: what the verifier said, and its last text */

struct staged {
    size_t stage;
    size_t open; /* attempts of this stage */
    struct buffer learnt;
};

static void
order_stage(struct staged *staged, const struct swarm *swarm, struct strategy_orders *orders) {
    const struct swarm_options *options = swarm_options(swarm);
    size_t count = (size_t)options->attempts >> staged->stage;
    size_t stages_left = STAGES - staged->stage;
    count = count > 0 && stages_left > 1 ? count : 1;
    for (size_t i = 0; i < count; i++) {
        struct strategy_start *start = strategy_order_start(
            orders, buffer_view(&staged->learnt), (int64_t)(stages_left * count - i)
        );
        start->is_fork = true;
        start->time_parts = (int64_t)stages_left;
        start->effort = options->effort - STAGE_EFFORT * (int32_t)(stages_left - 1);
        start->effort = start->effort > 0 ? start->effort : 1;
        start->value = STRATEGY_VALUE_ATTEMPT;
        start->seed = strategy_seed(options->seed, 1000 * staged->stage + i);
        start->index_of = i;
        start->count_of = count;
        start->tag = (int64_t)staged->stage;
    }
    staged->open = count;
}

static void staged_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    struct staged *staged = state;
    buffer_init(&staged->learnt, LEARNT_BYTES_MAX);
    order_stage(staged, swarm, orders);
}

static result add_attempt(struct buffer *out, const struct swarm_node *node, struct error *error) {
    struct view detail = view_slice(buffer_view(&node->detail), 0, LEARNT_EACH);
    struct view summary = view_slice(buffer_view(&node->summary), 0, LEARNT_EACH);
    TRY(buffer_append_format(out, error, "\n%s (%s", node->name, swarm_outcome_name(node->outcome))
    );
    if (node->cut != SWARM_CUT_NONE) {
        TRY(buffer_append_format(out, error, ": %s", swarm_cut_text(node->cut)));
    }
    TRY(buffer_append_text(out, ")", error));
    if (detail.length > 0) {
        TRY(buffer_append_text(out, "\nWhat went wrong: ", error));
        TRY(utf8_append_lossy(out, detail, error));
    }
    if (summary.length > 0) {
        TRY(buffer_append_text(out, "\nIts last words: ", error));
        TRY(utf8_append_lossy(out, summary, error));
    }
    return OK;
}

/* What the last stage has shown; as much of it as fits. */
static void learn(struct staged *staged, const struct swarm *swarm) {
    struct error error = {0};
    buffer_clear(&staged->learnt);
    result added = buffer_append_text(
        &staged->learnt, "Attempts before this one did not pass. Do not repeat them:", &error
    );
    for (size_t i = 1; is_ok(added) && i < swarm_node_count(swarm); i++) {
        const struct swarm_node *node = swarm_node(swarm, i);
        size_t before = staged->learnt.length;
        if (!node->is_order || node->tag != (int64_t)staged->stage) {
            continue;
        }
        added = add_attempt(&staged->learnt, node, &error);
        if (is_failed(added)) { /* whole ones only */
            staged->learnt.length = before;
            staged->learnt.data[before] = 0;
        }
    }
}

static void staged_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    struct staged *staged = state;
    if (note->type == STRATEGY_NODE_ENDED && swarm_class(swarm, note->node) >= 2) {
        strategy_order(orders, STRATEGY_ORDER_VERIFY, note->node);
        return;
    }
    if (note->type == STRATEGY_NODE_VERIFIED &&
        swarm_node(swarm, note->node)->outcome == SWARM_PASSED) {
        const char *name = swarm_node(swarm, note->node)->name;
        strategy_end(orders, note->node, "%s passed in stage %zu", name, staged->stage + 1);
        return;
    }
    bool is_over = note->type == STRATEGY_NODE_ENDED || note->type == STRATEGY_NODE_VERIFIED ||
                   note->type == STRATEGY_REFUSED;
    staged->open -= is_over && staged->open > 0 ? 1 : 0;
    if (!is_over || staged->open > 0) {
        return;
    }
    if (staged->stage + 1 == STAGES || !swarm_can_start(swarm)) {
        strategy_end(orders, SWARM_NONE, "no attempt passed in %zu stages", staged->stage + 1);
        return;
    }
    learn(staged, swarm);
    staged->stage++;
    order_stage(staged, swarm, orders);
}

static void staged_deinit(void *state) {
    struct staged *staged = state;
    buffer_deinit(&staged->learnt);
}

const struct strategy strategy_staged = {
    .name = "staged",
    .summary = "attempts at low effort, then fewer at higher effort on what failed",
    .attempts_default = 4,
    .attempts_min = 1,
    .needs_verifier = true,
    .start = staged_start,
    .note = staged_note,
    .deinit = staged_deinit,
};
