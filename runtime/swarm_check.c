/* Whether the promises of swarm.h hold, as far as the state shows them; the simulation watches the rest
 * from outside. For tests. */
#include "swarm_internal.h"

static result check_caps(const struct swarm *swarm, struct error *error) {
    const struct swarm_options *options = &swarm->options;
    size_t live = 0;
    size_t verifying = 0;
    for (size_t i = 0; i < swarm->count; i++) {
        const struct swarm_node *node = &swarm->nodes[i];
        bool is_live = node->state == SWARM_STARTING || node->state == SWARM_RUNNING;
        live += is_live && i != SWARM_ROOT ? 1 : 0;
        verifying += node->verify == SWARM_VERIFY_RUNS ? 1 : 0;
        if (node->depth > options->depth_max || swarm->insides[i].children > SWARM_CHILDREN_MAX) {
            FAIL(error, CORRUPT, "%s: depth %zu or its children", node->name, node->depth);
        }
    }
    if (swarm->count > options->nodes_max || live > options->live_max ||
        verifying > SWARM_VERIFICATIONS_MAX || verifying != swarm->verifying) {
        FAIL(
            error,
            CORRUPT,
            "%zu nodes, %zu live, %zu verifications (%zu counted)",
            swarm->count,
            live,
            verifying,
            swarm->verifying
        );
    }
    return OK;
}

/* State, account and parent of a node agree. */
static result check_node(const struct swarm *swarm, size_t i, struct error *error) {
    const struct swarm_node *node = &swarm->nodes[i];
    const struct swarm_inside *inside = &swarm->insides[i];
    bool has_ended = node->state == SWARM_ENDED || node->state == SWARM_VERIFYING;
    bool is_open = budget_is_open(swarm->budget, i);
    if (is_open == (has_ended && budget_children_open(swarm->budget, i) == 0)) {
        FAIL(
            error,
            CORRUPT,
            "%s: %s with its account %s",
            node->name,
            swarm_state_name(node->state),
            is_open ? "open" : "closed"
        );
    }
    if ((node->outcome != SWARM_UNDECIDED) != has_ended) {
        FAIL(
            error,
            CORRUPT,
            "%s: %s and %s",
            node->name,
            swarm_state_name(node->state),
            swarm_outcome_name(node->outcome)
        );
    }
    const struct swarm_node *parent = &swarm->nodes[node->parent];
    bool parent_goes = node->parent != SWARM_ROOT &&
                       (parent->is_cancelling || swarm_has_ended(swarm, node->parent));
    if (parent_goes && !has_ended && !node->is_cancelling) {
        FAIL(error, CORRUPT, "%s works on though %s has ended", node->name, parent->name);
    }
    bool waits = inside->wait != SWARM_WAIT_NONE;
    bool is_cut = node->is_cancelling || swarm->phase != SWARM_PHASE_WORKS;
    if ((waits && node->state != SWARM_WAITING) ||
        (node->state == SWARM_WAITING && (!node->has_ask || (!waits && !is_cut))) ||
        (node->state == SWARM_RUNNING && node->has_ask && !is_cut)) {
        FAIL(
            error,
            CORRUPT,
            "%s: %s with a wait or a call that does not fit",
            node->name,
            swarm_state_name(node->state)
        );
    }
    if (node->state == SWARM_PLANNED && (node->turns > 0 || node->is_cancelling)) {
        FAIL(error, CORRUPT, "%s has worked before it started", node->name);
    }
    return OK;
}

/* Independent of how the swarm finds it: a node comes on when it works, or waits for one that does. */
static bool comes_on(const struct swarm *swarm, size_t i, const bool known[]) {
    const struct swarm_node *node = &swarm->nodes[i];
    const struct swarm_inside *inside = &swarm->insides[i];
    if (node->state == SWARM_PLANNED) { /* what can start has started: it waits for room */
        for (size_t j = 1; j < swarm->count; j++) {
            enum swarm_state state = swarm->nodes[j].state;
            if (state == SWARM_STARTING || state == SWARM_RUNNING ||
                (state == SWARM_WAITING && swarm->nodes[j].is_cancelling)) {
                return true;
            }
        }
        return false;
    }
    if (node->state != SWARM_WAITING) {
        return node->state != SWARM_ENDED;
    }
    if (node->is_cancelling || inside->is_ready || inside->wait == SWARM_WAIT_MERGE) {
        return true;
    }
    for (size_t j = 1; inside->wait == SWARM_WAIT_MESSAGE && j < swarm->count; j++) {
        if (j != i && known[j] && swarm->nodes[j].state != SWARM_VERIFYING) {
            return true;
        }
    }
    for (size_t j = 0; inside->wait == SWARM_WAIT_NODES && j < inside->target_count; j++) {
        if (known[inside->targets[j]]) {
            return true;
        }
    }
    return false;
}

static result check_waits(const struct swarm *swarm, struct error *error) {
    bool known[SWARM_NODES_MAX] = {false};
    for (size_t round = 0; round < swarm->count; round++) {
        for (size_t i = 1; i < swarm->count; i++) {
            known[i] = known[i] || comes_on(swarm, i, known);
        }
    }
    for (size_t i = 1; i < swarm->count; i++) {
        if (swarm->nodes[i].state == SWARM_WAITING && !known[i]) {
            FAIL(error, CORRUPT, "%s waits and nobody works for it", swarm->nodes[i].name);
        }
        if (swarm->insides[i].is_ready && swarm_live(swarm) < swarm->options.live_max &&
            !swarm->nodes[i].is_cancelling) {
            FAIL(error, CORRUPT, "%s is not answered though there is room", swarm->nodes[i].name);
        }
    }
    return OK;
}

static result check_mail(const struct swarm *swarm, struct error *error) {
    size_t count = 0;
    size_t sent[SWARM_NODES_MAX] = {0};
    for (size_t i = 0; i < COUNT_OF(swarm->mail); i++) {
        const struct swarm_mail *mail = &swarm->mail[i];
        if (mail->number == 0) {
            continue;
        }
        count++;
        sent[mail->to] += mail->is_sent ? 1 : 0;
        if (swarm_has_ended(swarm, mail->to) || sent[mail->to] > 1) {
            FAIL(
                error,
                CORRUPT,
                "message to %s, which has ended or is given two",
                swarm->nodes[mail->to].name
            );
        }
    }
    if (count != swarm->mail_count) {
        FAIL(error, CORRUPT, "%zu messages, %zu counted", count, swarm->mail_count);
    }
    return OK;
}

static result check_end(const struct swarm *swarm, struct error *error) {
    if (swarm->phase < SWARM_PHASE_ENDS) {
        return OK;
    }
    int most = 0;
    for (size_t i = 0; i < swarm->count; i++) {
        const struct swarm_node *node = &swarm->nodes[i];
        int class = swarm_class(swarm, i);
        most = class > most ? class : most;
        bool is_over = swarm_has_ended(swarm, i) || i == SWARM_ROOT;
        if (node->state == SWARM_PLANNED || (!is_over && !node->is_cancelling) ||
            node->verify == SWARM_VERIFY_RUNS || node->verify == SWARM_VERIFY_QUEUED) {
            FAIL(error, CORRUPT, "%s works on after the end", node->name);
        }
        if (swarm->phase == SWARM_PHASE_FINISHED && !is_over) {
            FAIL(error, CORRUPT, "%s has not ended before the swarm", node->name);
        }
    }
    size_t chosen = swarm->result.node;
    int class = chosen != SWARM_NONE ? swarm_class(swarm, chosen) : 0;
    /* Once it is chosen, what is cut off by the end is not waited for; what is verified or whole is. */
    if (swarm->phase == SWARM_PHASE_FINISHED && class < most && most >= 3) {
        FAIL(error, CORRUPT, "the result is of class %d, the best is %d", class, most);
    }
    return OK;
}

result swarm_check(const struct swarm *swarm, struct error *error) {
    TRY(budget_check(swarm->budget, error));
    TRY(check_caps(swarm, error));
    for (size_t i = 1; i < swarm->count; i++) {
        TRY(check_node(swarm, i, error));
    }
    if (swarm->phase == SWARM_PHASE_WORKS) {
        TRY(check_waits(swarm, error));
    }
    TRY(check_mail(swarm, error));
    return check_end(swarm, error);
}
