/* Several attempts at the whole task side by side: race and best-of. See strategy.h.
 *
 * All begin with the same context and differ by their seed. In a race the first that the verifier
 * passes is the result, and the others are cancelled in the same step. With best-of all run to their
 * end; among those that passed (or, when nobody can say, among those that have something) the model's
 * ranking decides, then the shorter diff.
 */
#include "strategy.h"

#include <assert.h>

struct attempts {
    size_t open;   /* neither ended nor verified, as far as that is to come */
    size_t passed; /* of those seen */
    bool is_ranking;
};

static_assert(sizeof(struct attempts) <= STRATEGY_STATE_BYTES, "the swarm keeps it");

static void attempts_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    struct attempts *attempts = state;
    const struct swarm_options *options = swarm_options(swarm);
    size_t count = (size_t)options->attempts;
    for (size_t i = 0; i < count; i++) {
        struct strategy_start *start =
            strategy_order_start(orders, view_of(NULL, 0), (int64_t)(count - i));
        start->is_fork = true;
        start->value = STRATEGY_VALUE_ATTEMPT;
        start->seed = strategy_seed(options->seed, i);
        start->index_of = i;
        start->count_of = count;
    }
    attempts->open = count;
}

/* best-of keeps the price of the ranking back. */
static void best_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    attempts_start(state, swarm, orders);
    for (size_t i = 0; orders->count > 1 && i < orders->count; i++) {
        orders->items[i].start.keep_tokens = (int64_t)orders->count * STRATEGY_RANK_TOKENS;
    }
}

/* Takes a note; true: it brought one attempt to its end. */
static bool takes_note(
    struct attempts *attempts,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    if (note->type == STRATEGY_NODE_ENDED && swarm_class(swarm, note->node) >= 2) {
        strategy_order(orders, STRATEGY_ORDER_VERIFY, note->node);
        return false;
    }
    if (note->type == STRATEGY_NODE_VERIFIED &&
        swarm_node(swarm, note->node)->outcome == SWARM_PASSED) {
        attempts->passed++;
    }
    bool is_over = note->type == STRATEGY_NODE_ENDED || note->type == STRATEGY_NODE_VERIFIED ||
                   note->type == STRATEGY_REFUSED;
    attempts->open -= is_over && attempts->open > 0 ? 1 : 0;
    return is_over;
}

static void race_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    struct attempts *attempts = state;
    size_t before = attempts->passed;
    bool is_over = takes_note(attempts, swarm, note, orders);
    if (attempts->passed > before) {
        strategy_end(orders, note->node, "%s passed first", swarm_node(swarm, note->node)->name);
    } else if (is_over && attempts->open == 0) {
        strategy_end(orders, SWARM_NONE, "no attempt passed");
    }
}

/* Those of the best class that is there, when there is something to choose between. */
static size_t mark_for_ranking(const struct swarm *swarm, struct strategy_orders *orders) {
    size_t best = swarm_best(swarm);
    int class = best != SWARM_NONE ? swarm_class(swarm, best) : 0;
    for (size_t i = 1; class >= 2 && i < swarm_node_count(swarm); i++) {
        if (swarm_node(swarm, i)->is_order && swarm_class(swarm, i) == class) {
            orders->rank_nodes[orders->rank_count++] = i;
        }
    }
    return orders->rank_count;
}

static void best_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    struct attempts *attempts = state;
    bool is_over = takes_note(attempts, swarm, note, orders);
    bool is_ranked = note->type == STRATEGY_RANKED && attempts->is_ranking;
    if (is_over && attempts->open == 0 && mark_for_ranking(swarm, orders) > 1) {
        attempts->is_ranking = true;
        strategy_order(orders, STRATEGY_ORDER_RANK, SWARM_NONE);
    } else if (is_ranked || (is_over && attempts->open == 0)) {
        size_t best = swarm_best(swarm);
        long long count = (long long)swarm_options(swarm)->attempts;
        bool has_score =
            best != SWARM_NONE && best != SWARM_ROOT && swarm_node(swarm, best)->has_score;
        const char *ranked = is_ranked && has_score ? "; the ranking decided" : "";
        if (swarm_options(swarm)->has_verifier) {
            strategy_end(
                orders, best, "%zu of %lld attempts passed%s", attempts->passed, count, ranked
            );
        } else {
            strategy_end(orders, best, "%lld attempts are over%s", count, ranked);
        }
    }
}

const struct strategy strategy_race = {
    .name = "race",
    .summary = "several attempts; the first that passes the verifier wins",
    .attempts_default = 4,
    .attempts_min = 1,
    .needs_verifier = true,
    .start = attempts_start,
    .note = race_note,
};

const struct strategy strategy_best_of = {
    .name = "best-of",
    .summary = "several attempts to their end; verifier, ranking, then the shorter diff",
    .attempts_default = 4,
    .attempts_min = 1,
    .start = best_start,
    .note = best_note,
};
