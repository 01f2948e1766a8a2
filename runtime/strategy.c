/* The table of strategies, and what they share; see strategy.h. */
#include "strategy.h"

#include <stdarg.h>

static const struct strategy *const strategies[] = {
    &strategy_single,
    &strategy_race,
    &strategy_best_of,
    &strategy_plan,
    &strategy_staged,
    &strategy_retries,
};

const struct strategy *strategy_find(struct view name) {
    for (size_t i = 0; i < COUNT_OF(strategies); i++) {
        if (view_equals_text(name, strategies[i]->name)) {
            return strategies[i];
        }
    }
    return NULL;
}

const char *strategy_names(void) {
    return "single, race, best-of, plan, staged, retries, auto";
}

struct strategy_order *
strategy_order(struct strategy_orders *orders, enum strategy_order_type type, size_t node) {
    ASSERT(orders->count < STRATEGY_ORDERS_MAX);
    struct strategy_order *order = &orders->items[orders->count++];
    *order = (struct strategy_order){.type = type, .node = node};
    return order;
}

struct strategy_start *
strategy_order_start(struct strategy_orders *orders, struct view brief, int64_t parts) {
    ASSERT(parts >= 1);
    struct strategy_start *start = &strategy_order(orders, STRATEGY_ORDER_START, SWARM_NONE)->start;
    start->brief = brief;
    start->parts = parts;
    start->time_parts = 1;
    start->conflict_of = SWARM_NONE;
    return start;
}

void strategy_end(struct strategy_orders *orders, size_t node, const char *format, ...) {
    strategy_order(orders, STRATEGY_ORDER_END, node);
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(orders->why, sizeof orders->why, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0); /* too long: cut */
}

/* splitmix64 (Steele, Lea and Flood 2014): neighbouring indices give unrelated seeds. */
uint64_t strategy_seed(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return z != 0 ? z : 1;
}

/* ---- single ------------------------------------------------------------------------------------ */

static void single_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    (void)state;
    (void)swarm;
    struct strategy_start *start = strategy_order_start(orders, view_of(NULL, 0), 1);
    start->is_fork = true;
    start->value = STRATEGY_VALUE_WORKER;
}

static void single_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    (void)state;
    if (note->type == STRATEGY_REFUSED) {
        strategy_end(orders, SWARM_NONE, "the agent was not started: %s", swarm_refusal(swarm));
    } else if (note->type == STRATEGY_NODE_ENDED && swarm_class(swarm, note->node) >= 2) {
        strategy_order(orders, STRATEGY_ORDER_VERIFY, note->node);
    } else if (note->type == STRATEGY_NODE_ENDED || note->type == STRATEGY_NODE_VERIFIED) {
        strategy_end(orders, note->node, "the agent has ended");
    }
}

const struct strategy strategy_single = {
    .name = "single",
    .summary = "one agent, which may start others itself",
    .attempts_default = 1,
    .attempts_min = 1,
    .start = single_start,
    .note = single_note,
};
