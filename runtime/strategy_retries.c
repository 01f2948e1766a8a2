/* One agent after another: each a fresh attempt at the whole task with another seed, for what time and
 * tokens are left, until the verifier passes one. See strategy.h.
 *
 * This is what one agent does with a budget that it need not share: the measure for all that runs side by
 * side. It ends after `attempts` attempts, when what is left starts no further one, or when the verifier
 * was given up.
 */
#include "strategy.h"

struct retries {
    int64_t started;
};

static void
start_next(struct retries *retries, const struct swarm *swarm, struct strategy_orders *orders) {
    const struct swarm_options *options = swarm_options(swarm);
    struct strategy_start *start = strategy_order_start(orders, view_of(NULL, 0), 1);
    start->is_fork = true;
    start->value = STRATEGY_VALUE_ATTEMPT;
    start->seed = strategy_seed(options->seed, (uint64_t)retries->started);
    start->count_of = 1; /* alone, as far as it knows */
    retries->started++;
}

static void retries_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    start_next(state, swarm, orders);
}

static void retries_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    struct retries *retries = state;
    if (note->type == STRATEGY_NODE_ENDED && swarm_class(swarm, note->node) >= 2) {
        strategy_order(orders, STRATEGY_ORDER_VERIFY, note->node);
    } else if (note->type == STRATEGY_REFUSED) {
        strategy_end(
            orders,
            SWARM_NONE,
            "%lld attempts, then none was started: %s",
            (long long)retries->started - 1,
            swarm_refusal(swarm)
        );
    } else if (note->type == STRATEGY_NODE_VERIFIED && swarm_node(swarm, note->node)->outcome == SWARM_PASSED) {
        strategy_end(orders, note->node, "attempt %lld passed", (long long)retries->started);
    } else if (note->type == STRATEGY_NODE_ENDED || note->type == STRATEGY_NODE_VERIFIED) {
        bool is_last = retries->started >= swarm_options(swarm)->attempts;
        if (!swarm_can_verify(swarm)) { /* a further one would be as unknown as this one */
            strategy_end(orders, SWARM_NONE, "nobody can say whether an attempt passes");
        } else if (is_last || !swarm_can_start(swarm)) {
            strategy_end(
                orders, SWARM_NONE, "no attempt of %lld passed", (long long)retries->started
            );
        } else {
            start_next(retries, swarm, orders);
        }
    }
}

const struct strategy strategy_retries = {
    .name = "retries",
    .summary = "one agent after another, until the verifier passes one",
    .attempts_default = 32,
    .attempts_min = 1,
    .needs_verifier = true,
    .start = retries_start,
    .note = retries_note,
};
