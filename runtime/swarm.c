/* Events and what follows from each; see swarm.h.
 *
 * An event changes its node and leaves notes for the strategy. Then, always in the same order: what
 * time makes due, the strategy's orders, waits, the end, and room for what is planned. Effects are
 * written as they arise, so their order is that of the decisions.
 */
#include "swarm_internal.h"

struct swarm_effect *swarm_emit(struct swarm *swarm, enum swarm_effect_type type, size_t node) {
    ASSERT(swarm->effect_count < swarm->effects_max);
    ASSERT(swarm->phase != SWARM_PHASE_FINISHED || type == SWARM_DO_FINISH);
    struct swarm_effect *effect = &swarm->effects[swarm->effect_count++];
    swarm->changes++;
    *effect = (struct swarm_effect){.type = type, .node = node, .target = SWARM_NONE};
    return effect;
}

int64_t swarm_after(const struct swarm *swarm, int64_t ms) {
    int64_t at = 0;
    return __builtin_add_overflow(swarm->now_ms, ms, &at) ? BUDGET_NO_LIMIT : at;
}

struct view swarm_words(struct view text, size_t bytes_max) {
    struct view cut = view_slice(text, 0, bytes_max);
    return view_slice(cut, 0, utf8_valid_prefix(cut));
}

/* Text from outside is cut between characters; without memory it stays empty, which the reader sees. */
void swarm_set_text(struct buffer *out, struct view text, size_t bytes_max) {
    buffer_clear(out);
    result_ignore(buffer_append(out, swarm_words(text, bytes_max), NULL)); /* see above */
}

static void start(struct swarm *swarm) {
    swarm->phase = SWARM_PHASE_WORKS;
    swarm_set_times(swarm);
    swarm_start_strategy(swarm);
}

/* Of a node: nothing is heard of one that has ended. */
static void node_event(struct swarm *swarm, const struct swarm_event *event) {
    size_t node = event->node;
    if (node >= swarm->count || node == SWARM_ROOT) {
        return;
    }
    enum swarm_state state = swarm->nodes[node].state;
    bool works = state == SWARM_RUNNING || state == SWARM_WAITING;
    if (event->type == SWARM_NODE_STARTED && state == SWARM_STARTING) {
        swarm_node_started(swarm, node);
    } else if (event->type == SWARM_NODE_START_FAILED && state == SWARM_STARTING) {
        swarm_node_start_failed(swarm, node, event->text);
    } else if (event->type == SWARM_TURN_ENDED && works) {
        swarm_turn_ended(swarm, node, event);
    } else if (event->type == SWARM_HEARD && works) {
        swarm->nodes[node].heard_ms = swarm->now_ms;
    } else if (event->type == SWARM_NODE_ENDED && (works || state == SWARM_STARTING)) {
        swarm_node_ended(swarm, event);
    } else if (event->type == SWARM_ASKED && state == SWARM_RUNNING) {
        swarm_asked(swarm, node, event->ask);
    } else if (event->type == SWARM_DELIVERED && works) {
        swarm_delivered(swarm, node, event->message);
    }
}

static void dispatch(struct swarm *swarm, const struct swarm_event *event) {
    if (event->type == SWARM_VERIFIED) {
        swarm_verified(swarm, event->node, event);
    } else if (event->type == SWARM_RANKED) {
        swarm_ranked(swarm, event);
    } else if (event->type == SWARM_MERGED) {
        swarm_merged(swarm, event->node, event);
    } else if (event->type == SWARM_INTERRUPT) {
        swarm->is_interrupted = true;
        swarm_end(swarm, SWARM_NONE, "interrupted");
    } else if (event->type == SWARM_DISK_FULL) {
        swarm->disk_is_full = true;
    } else if (event->type == SWARM_ENGINE_LOST) {
        struct view detail = swarm_words(event->detail, STRATEGY_WHY_BYTES / 2);
        swarm_end(swarm, SWARM_NONE, "the engine failed: %.*s", VIEW_ARGUMENTS(detail));
    } else if (event->type != SWARM_START && event->type != SWARM_TIME) {
        node_event(swarm, event);
    }
}

/* Until nothing follows any more. Each round that goes on has ended a node, a verification or a merge
 * or has started one of the bounded number of nodes, so it comes to an end. */
static void settle(struct swarm *swarm) {
    size_t before = 0;
    do {
        before = swarm->changes;
        swarm_run_strategy(swarm);
        swarm_look_at_waits(swarm);
        swarm_go_on_ending(swarm);
        if (swarm->phase == SWARM_PHASE_WORKS) {
            swarm_fill_merges(swarm);
            swarm_fill_verifications(swarm);
            swarm_fill(swarm);
        }
        if (swarm->phase == SWARM_PHASE_WORKS && swarm->note_count == 0 &&
            swarm_is_stalled(swarm)) {
            swarm_end(swarm, SWARM_NONE, "nothing is left to do");
        }
    } while (swarm->phase != SWARM_PHASE_FINISHED &&
             (swarm->note_count > 0 || swarm->changes != before));
}

void swarm_handle(
    struct swarm *swarm, const struct swarm_event *event, struct swarm_effects *effects
) {
    swarm->effect_count = 0;
    *effects = (struct swarm_effects){0};
    if (swarm->phase == SWARM_PHASE_FINISHED && event->type == SWARM_MERGED) {
        swarm_merged_late(swarm, event->node, event);
    }
    if (swarm->phase == SWARM_PHASE_FINISHED ||
        (event->type == SWARM_START) != (swarm->phase == SWARM_PHASE_NEW)) {
        return;
    }
    swarm->now_ms = event->now_ms > swarm->now_ms ? event->now_ms : swarm->now_ms;
    if (event->type == SWARM_START) {
        swarm->now_ms = event->now_ms;
        start(swarm);
    } else {
        dispatch(swarm, event);
    }
    swarm_look_at_time(swarm);
    settle(swarm);
    if (swarm->phase != SWARM_PHASE_FINISHED) {
        swarm_tell_shares(swarm);
        int64_t wake_ms = swarm_next_wake(swarm);
        if (wake_ms != swarm->wake_ms && wake_ms != BUDGET_NO_LIMIT) {
            swarm_emit(swarm, SWARM_DO_WAIT, SWARM_NONE)->wake_ms = wake_ms;
        }
        swarm->wake_ms = wake_ms;
    }
    *effects = (struct swarm_effects){.items = swarm->effects, .count = swarm->effect_count};
}
