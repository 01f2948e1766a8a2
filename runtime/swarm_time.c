/* The clock of a swarm: deadlines, remarks on what is left, and agents that hang, go round in circles
 * or repeat each other. See swarm.h. */
#include "swarm_internal.h"

/* Of the whole time, kept back at most: for verifying, and for merging, the best. */
#define VERIFY_SHARE 5
#define MERGE_SHARE  20

void swarm_set_times(struct swarm *swarm) {
    const struct swarm_options *options = &swarm->options;
    swarm->nodes_deadline_ms = BUDGET_NO_LIMIT;
    swarm->decide_ms = BUDGET_NO_LIMIT;
    swarm->deadline_ms = BUDGET_NO_LIMIT;
    if (options->time_ms_max > 0) {
        int64_t verify = options->has_verifier ? options->time_ms_max / VERIFY_SHARE : 0;
        int64_t merge = options->time_ms_max / MERGE_SHARE;
        verify = verify < options->verify_ms_max ? verify : options->verify_ms_max;
        merge = merge < options->merge_ms_max ? merge : options->merge_ms_max;
        swarm->deadline_ms = swarm_after(swarm, options->time_ms_max);
        swarm->decide_ms = swarm->deadline_ms - merge;
        swarm->nodes_deadline_ms = swarm->decide_ms - verify;
    }
    swarm->nodes[SWARM_ROOT].planned_ms = swarm->now_ms;
    swarm->nodes[SWARM_ROOT].started_ms = swarm->now_ms;
    swarm->nodes[SWARM_ROOT].deadline_ms = swarm->deadline_ms;
    budget_set_deadline(swarm->budget, SWARM_ROOT, swarm->nodes_deadline_ms);
}

/* ---- remarks and effort ------------------------------------------------------------------------ */

/* Whether so much of a share is spent; one without limit never is. */
static bool is_spent(int64_t spent, int64_t share) {
    return share != BUDGET_NO_LIMIT &&
           (double)spent * 100.0 >= (double)share * (double)SWARM_WRAP_UP_PERCENT;
}

static void tell_to_wrap_up(struct swarm *swarm, size_t node) {
    struct swarm_node *told = &swarm->nodes[node];
    bool is_due = swarm->now_ms >= swarm->insides[node].wrap_up_ms;
    for (size_t i = BUDGET_TOKENS; i <= BUDGET_CALLS && told->turns > 0; i++) {
        enum budget_resource resource = (enum budget_resource)i;
        is_due = is_due || is_spent(
                               budget_own_spent(swarm->budget, node, resource),
                               budget_own_max(swarm->budget, node, resource)
                           );
    }
    if (is_due && !told->was_told_to_wrap_up) {
        told->was_told_to_wrap_up = true;
        swarm_emit(swarm, SWARM_DO_TELL, node)->tell = SWARM_TELL_WRAP_UP;
    }
}

static void set_effort(struct swarm *swarm, size_t node) {
    struct swarm_node *at = &swarm->nodes[node];
    int64_t left_ms =
        at->deadline_ms == BUDGET_NO_LIMIT ? BUDGET_NO_LIMIT : at->deadline_ms - swarm->now_ms;
    int32_t asked = swarm->insides[node].effort_asked;
    int32_t least = swarm->options.effort_min;
    const struct budget_pace pace = {
        .effort_may_vary = swarm->options.effort_may_vary,
        .effort = asked,
        .effort_min = least < asked ? least : asked,
        .time_left_ms = left_ms,
        .tokens_left = budget_left(swarm->budget, node).of[BUDGET_TOKENS],
        .turn_ms = (swarm->now_ms - at->started_ms) / at->turns,
        .turn_tokens = budget_own_spent(swarm->budget, node, BUDGET_TOKENS) / at->turns,
        .turns_of_work = SWARM_TURNS_OF_WORK,
    };
    if (asked == 0) {
        return; /* a model without */
    }
    int32_t effort = budget_effort(&pace);
    if (effort != at->effort) {
        at->effort = effort;
        swarm_emit(swarm, SWARM_DO_SET_EFFORT, node)->effort = effort;
    }
}

/* ---- circles and twins ------------------------------------------------------------------------- */

/* Digest of the turn so many turns before the last; 0: forgotten, or it called nothing. */
static uint64_t digest_at(const struct swarm_node *node, int64_t before) {
    if (before >= node->turns || before >= SWARM_DIGESTS) {
        return 0;
    }
    return node->digests[(node->turns - 1 - before) % SWARM_DIGESTS];
}

static bool goes_round(const struct swarm_node *node) {
    uint64_t last = digest_at(node, 0);
    for (int64_t i = 1; i < SWARM_LOOP_TURNS; i++) {
        if (digest_at(node, i) != last) {
            return false;
        }
    }
    return last != 0;
}

/* Whether the last turns of `node` are those that `sibling` made, now or some turns ago. */
static bool repeats(const struct swarm_node *node, const struct swarm_node *sibling) {
    for (int64_t shift = 0; shift + SWARM_TWIN_TURNS <= SWARM_DIGESTS; shift++) {
        int64_t same = 0;
        while (same < SWARM_TWIN_TURNS && digest_at(node, same) != 0 &&
               digest_at(node, same) == digest_at(sibling, shift + same)) {
            same++;
        }
        if (same == SWARM_TWIN_TURNS) {
            return true;
        }
    }
    return false;
}

static void look_for_repeats(struct swarm *swarm, size_t node) {
    struct swarm_node *at = &swarm->nodes[node];
    if (goes_round(at)) {
        swarm_cancel(swarm, node, SWARM_CUT_LOOP);
        return;
    }
    for (size_t i = 1; i < swarm->count && at->turns >= SWARM_TWIN_TURNS; i++) {
        const struct swarm_node *sibling = &swarm->nodes[i];
        bool is_sibling = i != node && sibling->parent == at->parent && sibling->tag == at->tag;
        if (is_sibling && sibling->cut != SWARM_CUT_TWIN && repeats(at, sibling)) {
            at->twin = i;
            swarm_cancel(swarm, node, SWARM_CUT_TWIN);
            return;
        }
    }
}

void swarm_turn_ended(struct swarm *swarm, size_t node, const struct swarm_event *event) {
    struct swarm_node *at = &swarm->nodes[node];
    at->heard_ms = swarm->now_ms;
    at->digests[at->turns % SWARM_DIGESTS] = swarm->insides[node].has_waited ? 0 : event->digest;
    swarm->insides[node].has_waited = false;
    at->turns++;
    swarm_charge(swarm, node, event->tokens, event->calls);
    if (at->is_cancelling || swarm->phase != SWARM_PHASE_WORKS) {
        return;
    }
    look_for_repeats(swarm, node);
    if (!at->is_cancelling) {
        tell_to_wrap_up(swarm, node);
        set_effort(swarm, node);
    }
}

/* ---- what is due ------------------------------------------------------------------------------- */

static void look_at_node(struct swarm *swarm, size_t node) {
    struct swarm_node *at = &swarm->nodes[node];
    bool works = at->state == SWARM_RUNNING || at->state == SWARM_WAITING;
    bool is_awaited = works || at->state == SWARM_STARTING;
    if (!is_awaited) {
        return;
    }
    if (at->is_cancelling) {
        if (swarm->now_ms - at->cancel_ms >= swarm->options.kill_grace_ms) {
            swarm_node_lost(swarm, node);
        }
    } else if (swarm->now_ms >= at->deadline_ms) {
        swarm_cancel(swarm, node, SWARM_CUT_TIME);
    } else if (at->state != SWARM_WAITING && swarm->now_ms - at->heard_ms >= swarm->options.silent_ms_max) {
        swarm_cancel(swarm, node, SWARM_CUT_SILENT);
    } else if (works) {
        tell_to_wrap_up(swarm, node);
    }
}

/* The verifier has a limit of its own, which the host enforces; this is for a host that does not. */
static void look_at_verification(struct swarm *swarm, size_t node) {
    const struct swarm_node *at = &swarm->nodes[node];
    if (at->verify == SWARM_VERIFY_RUNS &&
        swarm->now_ms - at->verify_until_ms >= swarm->options.kill_grace_ms) {
        const struct swarm_event event = {.type = SWARM_VERIFIED, .verdict = SWARM_VERIFIED_HUNG};
        swarm_emit(swarm, SWARM_DO_CANCEL_VERIFY, node);
        swarm_verified(swarm, node, &event);
    }
}

void swarm_look_at_time(struct swarm *swarm) {
    for (size_t i = 0; i < swarm->count; i++) {
        if (i != SWARM_ROOT) {
            look_at_node(swarm, i);
        }
        if (swarm->phase == SWARM_PHASE_WORKS) {
            look_at_verification(swarm, i);
        }
    }
    if (swarm->phase == SWARM_PHASE_WORKS && swarm->now_ms >= swarm->decide_ms) {
        swarm_end(swarm, SWARM_NONE, "the time is up");
    }
}

static void sooner(int64_t *wake_ms, int64_t at_ms, int64_t now_ms) {
    if (at_ms > now_ms && at_ms < *wake_ms) {
        *wake_ms = at_ms;
    }
}

static int64_t later(int64_t at_ms, int64_t ms) {
    int64_t sum = 0;
    return __builtin_add_overflow(at_ms, ms, &sum) ? BUDGET_NO_LIMIT : sum;
}

int64_t swarm_next_wake(const struct swarm *swarm) {
    const struct swarm_options *options = &swarm->options;
    int64_t wake_ms = BUDGET_NO_LIMIT;
    int64_t now_ms = swarm->now_ms;
    if (swarm->phase == SWARM_PHASE_WORKS) {
        sooner(&wake_ms, swarm->decide_ms, now_ms);
    } else {
        sooner(&wake_ms, swarm->end_until_ms, now_ms);
        sooner(&wake_ms, swarm->is_merging_result ? swarm->merge_until_ms : wake_ms, now_ms);
    }
    for (size_t i = 0; i < swarm->count; i++) {
        const struct swarm_node *at = &swarm->nodes[i];
        if (at->verify == SWARM_VERIFY_RUNS) {
            sooner(&wake_ms, later(at->verify_until_ms, options->kill_grace_ms), now_ms);
        }
        if (i == SWARM_ROOT || swarm_has_ended(swarm, i)) {
            continue;
        }
        if (at->is_cancelling) {
            sooner(&wake_ms, later(at->cancel_ms, options->kill_grace_ms), now_ms);
            continue;
        }
        sooner(&wake_ms, at->deadline_ms, now_ms);
        sooner(&wake_ms, at->was_told_to_wrap_up ? wake_ms : swarm->insides[i].wrap_up_ms, now_ms);
        if (at->state == SWARM_WAITING) {
            sooner(&wake_ms, swarm->insides[i].wait_until_ms, now_ms);
        } else if (at->state != SWARM_PLANNED) {
            sooner(&wake_ms, later(at->heard_ms, options->silent_ms_max), now_ms);
        }
    }
    return wake_ms;
}
