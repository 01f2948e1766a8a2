/* What the strategy is told, and its orders carried out; see strategy.h. */
#include "swarm_internal.h"

void swarm_note(struct swarm *swarm, enum strategy_note_type type, size_t node) {
    if (swarm->phase != SWARM_PHASE_WORKS) {
        return; /* it has had its say */
    }
    ASSERT(swarm->note_count < SWARM_NOTES_MAX);
    swarm->notes[swarm->note_count++] = (struct strategy_note){.type = type, .node = node};
}

static void order_start(struct swarm *swarm, const struct strategy_start *start) {
    struct budget_amounts left = budget_left(swarm->budget, SWARM_ROOT);
    if (left.of[BUDGET_TOKENS] != BUDGET_NO_LIMIT) {
        int64_t rest = left.of[BUDGET_TOKENS] - start->keep_tokens;
        left.of[BUDGET_TOKENS] = rest > 0 ? rest : 0;
    }
    const struct budget_share share = {
        .amounts.of[BUDGET_TOKENS] = budget_part(left.of[BUDGET_TOKENS], start->parts),
        .amounts.of[BUDGET_CALLS] = budget_part(left.of[BUDGET_CALLS], start->parts),
        .deadline_ms = swarm->nodes_deadline_ms,
    };
    size_t node = SWARM_NONE;
    if (!swarm_can_start(swarm)) {
        swarm_refuse(swarm, "%s", swarm->disk_is_full ? "the disk is full" : "no time is left");
    } else {
        node = swarm_add(swarm, SWARM_ROOT, start->brief, view_of(NULL, 0), &share);
    }
    if (node == SWARM_NONE) {
        swarm_note(swarm, STRATEGY_REFUSED, SWARM_NONE);
        swarm->notes[swarm->note_count - 1].tag = start->tag;
        return;
    }
    struct swarm_node *added = &swarm->nodes[node];
    added->kind = start->is_fork ? SWARM_KIND_FORK : SWARM_KIND_SPAWN;
    added->is_order = true;
    added->is_part = start->is_part;
    added->index_of = start->index_of;
    added->count_of = start->count_of > 0 ? start->count_of : 1;
    added->conflict_of = start->conflict_of;
    added->value = start->value;
    added->tag = start->tag;
    added->seed = start->seed != 0 ? start->seed : added->seed;
    if (swarm->options.effort > 0 && swarm->options.effort_may_vary && start->effort > 0) {
        added->effort =
            start->effort > swarm->options.effort_min ? start->effort : swarm->options.effort_min;
        swarm->insides[node].effort_asked = added->effort;
    }
    swarm->insides[node].time_parts = start->time_parts > 0 ? start->time_parts : 1;
}

static void carry_out(struct swarm *swarm, const struct strategy_order *order) {
    if (order->type == STRATEGY_ORDER_START) {
        order_start(swarm, &order->start);
    } else if (order->type == STRATEGY_ORDER_CANCEL) {
        swarm_cancel(swarm, order->node, SWARM_CUT_DECIDED);
    } else if (order->type == STRATEGY_ORDER_VERIFY) {
        swarm_verify(swarm, order->node);
    } else if (order->type == STRATEGY_ORDER_RANK) {
        swarm_rank(swarm);
    } else if (order->type == STRATEGY_ORDER_MERGE) {
        swarm_merge(swarm, order->node, SWARM_ROOT);
    } else {
        swarm_end(swarm, order->node, "%s", swarm->orders.why);
    }
}

static void carry_out_all(struct swarm *swarm) {
    for (size_t i = 0; i < swarm->orders.count && swarm->phase == SWARM_PHASE_WORKS; i++) {
        carry_out(swarm, &swarm->orders.items[i]);
    }
}

static void clear_orders(struct swarm *swarm) {
    swarm->orders.count = 0;
    swarm->orders.rank_count = 0;
    swarm->orders.why[0] = '\0';
}

void swarm_start_strategy(struct swarm *swarm) {
    clear_orders(swarm);
    swarm->options.strategy->start(swarm->state, swarm, &swarm->orders);
    carry_out_all(swarm);
}

/* A strategy that orders what is refused, again and again, is ended: each note may bring at most as
 * many orders as there are nodes. */
void swarm_run_strategy(struct swarm *swarm) {
    size_t heard = 0;
    while (swarm->note_count > 0 && swarm->phase == SWARM_PHASE_WORKS) {
        struct strategy_note note = swarm->notes[0];
        swarm->note_count--;
        memmove(&swarm->notes[0], &swarm->notes[1], swarm->note_count * sizeof note);
        clear_orders(swarm);
        swarm->options.strategy->note(swarm->state, swarm, &note, &swarm->orders);
        if (++heard > SWARM_NOTES_MAX ||
            swarm->note_count + swarm->orders.count + SWARM_NODES_MAX > SWARM_NOTES_MAX) {
            swarm_end(swarm, SWARM_NONE, "the strategy goes round in circles");
            return;
        }
        carry_out_all(swarm);
    }
    if (swarm->phase != SWARM_PHASE_WORKS) {
        swarm->note_count = 0;
    }
}
