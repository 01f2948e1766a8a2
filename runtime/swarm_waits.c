/* Who waits for whom: when a wait is over, when nobody is left to end it, and circles. See swarm.h. */
#include "swarm_internal.h"

/* With a verification that somebody waits for, a node is not done before its verdict. */
static bool is_done(const struct swarm *swarm, size_t node) {
    const struct swarm_node *target = &swarm->nodes[node];
    return target->state == SWARM_ENDED && target->verify != SWARM_VERIFY_QUEUED &&
           target->verify != SWARM_VERIFY_RUNS;
}

void swarm_wait_forget(struct swarm *swarm, size_t node) {
    struct swarm_inside *inside = &swarm->insides[node];
    inside->wait = SWARM_WAIT_NONE;
    inside->is_ready = false;
    inside->is_fork_call = false;
    inside->target_count = 0;
}

/* Nodes of the answer: those that are done for ENDED, else those that are not. */
void swarm_wait_ready(struct swarm *swarm, size_t node, enum swarm_answer answer) {
    struct swarm_inside *inside = &swarm->insides[node];
    ASSERT(inside->wait != SWARM_WAIT_NONE);
    if (inside->is_ready) {
        return;
    }
    inside->is_ready = true;
    swarm->changes++;
    inside->answer = answer;
    inside->answer_count = 0;
    for (size_t i = 0; i < inside->target_count; i++) {
        size_t target = inside->targets[i];
        bool is_wanted = inside->wait == SWARM_WAIT_MERGE ||
                         is_done(swarm, target) == (answer == SWARM_ANSWER_ENDED);
        if (is_wanted) {
            inside->answer_nodes[inside->answer_count++] = target;
        }
    }
}

bool swarm_passing_is_wanted(const struct swarm *swarm, size_t node) {
    const struct swarm_node *ended = &swarm->nodes[node];
    if (ended->outcome != SWARM_UNVERIFIED || ended->verify != SWARM_VERIFY_NONE ||
        swarm->phase != SWARM_PHASE_WORKS) {
        return false;
    }
    for (size_t i = 1; i < swarm->count; i++) {
        const struct swarm_inside *inside = &swarm->insides[i];
        bool waits = inside->wait == SWARM_WAIT_NODES && inside->join == SWARM_JOIN_PASSING;
        for (size_t j = 0; waits && !inside->is_ready && j < inside->target_count; j++) {
            if (inside->targets[j] == node) {
                return true;
            }
        }
    }
    return false;
}

static bool is_over(const struct swarm *swarm, const struct swarm_inside *inside) {
    size_t done = 0;
    bool has_passed = false;
    for (size_t i = 0; i < inside->target_count; i++) {
        done += is_done(swarm, inside->targets[i]) ? 1 : 0;
        has_passed = has_passed || (is_done(swarm, inside->targets[i]) &&
                                    swarm->nodes[inside->targets[i]].outcome == SWARM_PASSED);
    }
    return done == inside->target_count || (inside->join == SWARM_JOIN_ANY && done > 0) ||
           (inside->join == SWARM_JOIN_PASSING && has_passed);
}

/* ---- progress ---------------------------------------------------------------------------------- */

/* Whether something besides waits will bring this node on. */
static bool works_by_itself(const struct swarm *swarm, size_t node, bool somebody_works) {
    const struct swarm_node *at = &swarm->nodes[node];
    const struct swarm_inside *inside = &swarm->insides[node];
    bool is_verified_now = at->verify == SWARM_VERIFY_QUEUED || at->verify == SWARM_VERIFY_RUNS;
    return at->is_cancelling || at->state == SWARM_STARTING || at->state == SWARM_RUNNING ||
           is_verified_now ||
           (at->state == SWARM_PLANNED && (somebody_works || swarm_is_startable(swarm, node))) ||
           (at->state == SWARM_WAITING && (inside->is_ready || inside->wait == SWARM_WAIT_MERGE));
}

static bool has_help(const struct swarm *swarm, size_t node) {
    const struct swarm_inside *inside = &swarm->insides[node];
    if (inside->wait == SWARM_WAIT_MESSAGE) {
        for (size_t i = 1; i < swarm->count; i++) {
            if (i != node && !swarm_has_ended(swarm, i) && swarm->insides[i].is_progressing) {
                return true;
            }
        }
    }
    for (size_t i = 0; inside->wait == SWARM_WAIT_NODES && i < inside->target_count; i++) {
        size_t target = inside->targets[i];
        if (!is_done(swarm, target) && swarm->insides[target].is_progressing) {
            return true;
        }
    }
    return false;
}

/* Grows the set of nodes that will come on: those that do by themselves, then who waits for one. */
static void find_progress(struct swarm *swarm) {
    bool somebody_works = false; /* who will end, and so make room for planned ones */
    for (size_t i = 1; i < swarm->count; i++) {
        bool is_ending = swarm->nodes[i].is_cancelling && !swarm_has_ended(swarm, i);
        somebody_works = somebody_works || is_ending || swarm_is_live(swarm, i);
    }
    for (size_t i = 1; i < swarm->count; i++) {
        swarm->insides[i].is_progressing = works_by_itself(swarm, i, somebody_works);
    }
    bool has_grown = true;
    while (has_grown) {
        has_grown = false;
        for (size_t i = 1; i < swarm->count; i++) {
            bool waits = swarm->nodes[i].state == SWARM_WAITING;
            if (waits && !swarm->insides[i].is_progressing && has_help(swarm, i)) {
                swarm->insides[i].is_progressing = true;
                has_grown = true;
            }
        }
    }
}

bool swarm_somebody_is_at_work(const struct swarm *swarm, size_t node) {
    return swarm->insides[node].is_progressing || swarm->insides[node].is_ready;
}

/* Of a fork that looks for the first that passes, the others are of no more use. */
static void cancel_others(struct swarm *swarm, size_t node) {
    const struct swarm_inside *inside = &swarm->insides[node];
    if (!inside->is_fork_call || inside->join != SWARM_JOIN_PASSING) {
        return;
    }
    for (size_t i = 0; i < inside->target_count; i++) {
        swarm_cancel(swarm, inside->targets[i], SWARM_CUT_DECIDED);
    }
}

void swarm_look_at_waits(struct swarm *swarm) {
    size_t waiting = 0;
    if (swarm->phase != SWARM_PHASE_WORKS) {
        return;
    }
    for (size_t i = 1; i < swarm->count; i++) {
        struct swarm_inside *inside = &swarm->insides[i];
        if (swarm->nodes[i].state != SWARM_WAITING || swarm->nodes[i].is_cancelling ||
            inside->is_ready) {
            continue;
        }
        if (inside->wait == SWARM_WAIT_NODES && is_over(swarm, inside)) {
            swarm_wait_ready(swarm, i, SWARM_ANSWER_ENDED);
            cancel_others(swarm, i);
        } else if (inside->wait != SWARM_WAIT_MERGE && swarm->now_ms >= inside->wait_until_ms) {
            swarm_wait_ready(swarm, i, SWARM_ANSWER_TIMEOUT);
        } else {
            waiting++;
        }
    }
    if (waiting == 0) {
        return;
    }
    find_progress(swarm);
    for (size_t i = 1; i < swarm->count; i++) {
        if (swarm->nodes[i].state == SWARM_WAITING && !swarm->nodes[i].is_cancelling &&
            !swarm_somebody_is_at_work(swarm, i)) {
            swarm_wait_ready(swarm, i, SWARM_ANSWER_STUCK);
        }
    }
}

/* ---- circles ----------------------------------------------------------------------------------- */

/* Walks from `target` along waits; came_from tells the way back for the names. */
bool swarm_wait_is_circle(struct swarm *swarm, size_t node, size_t target) {
    size_t came_from[SWARM_NODES_MAX];
    size_t queue[SWARM_NODES_MAX];
    size_t count = 1;
    for (size_t i = 0; i < swarm->count; i++) {
        came_from[i] = SWARM_NONE;
    }
    queue[0] = target;
    came_from[target] = node;
    for (size_t i = 0; i < count && came_from[node] == SWARM_NONE; i++) {
        const struct swarm_inside *inside = &swarm->insides[queue[i]];
        for (size_t j = 0; inside->wait == SWARM_WAIT_NODES && j < inside->target_count; j++) {
            size_t next = inside->targets[j];
            if (came_from[next] == SWARM_NONE && !is_done(swarm, next)) {
                came_from[next] = queue[i];
                queue[count++] = next;
            }
        }
    }
    if (node != target && came_from[node] == SWARM_NONE) {
        return false;
    }
    size_t path[SWARM_NODES_MAX + 1];
    size_t length = 0;
    path[length++] = node;
    for (size_t at = came_from[node]; at != node && node != target; at = came_from[at]) {
        path[length++] = at;
    }
    char names[SWARM_WHY_BYTES - 64] = "";
    size_t used = 0;
    for (size_t i = length; i-- > 0 && used < sizeof names;) {
        int written = snprintf(
            names + used, sizeof names - used, " waits for %s", swarm->nodes[path[i]].name
        );
        used += written > 0 ? (size_t)written : 0;
    }
    swarm_refuse(swarm, "a circle of waits: %s%s", swarm->nodes[node].name, names);
    return true;
}
