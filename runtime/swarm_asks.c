/* What agents ask by tool: the verbs. All of it is foreign and bounded; what may not be is refused with
 * a reason that the model can act upon. See swarm.h. */
#include "swarm_internal.h"

#include <stdarg.h>

void swarm_refuse(struct swarm *swarm, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(swarm->refusal, sizeof swarm->refusal, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0); /* too long: cut, and still clear */
}

struct swarm_effect *
swarm_answer(struct swarm *swarm, size_t node, uint64_t ask, enum swarm_answer answer) {
    ASSERT(swarm->nodes[node].has_ask && swarm->nodes[node].ask == ask);
    struct swarm_effect *effect = swarm_emit(swarm, SWARM_DO_ANSWER, node);
    effect->ask = ask;
    effect->answer = answer;
    swarm->nodes[node].has_ask = false;
    return effect;
}

/* ---- names ------------------------------------------------------------------------------------- */

/* An agent by its name, or the asker's parent; SWARM_NONE: refused. */
static size_t resolve(struct swarm *swarm, size_t node, struct view name) {
    size_t found =
        view_equals_text(name, "parent") ? swarm->nodes[node].parent : swarm_find(swarm, name);
    if (found == SWARM_NONE) {
        struct view words = swarm_words(name, SWARM_NAME_BYTES);
        swarm_refuse(swarm, "there is no agent named %.*s", VIEW_ARGUMENTS(words));
    } else if (found == SWARM_ROOT) {
        swarm_refuse(swarm, "the root is no agent: nobody reads or works there");
        found = SWARM_NONE;
    }
    return found;
}

static bool is_above(const struct swarm *swarm, size_t above, size_t node) {
    while (node != SWARM_ROOT && node != above) {
        node = swarm->nodes[node].parent;
    }
    return node == above;
}

void swarm_begin_wait(
    struct swarm *swarm, size_t node, enum swarm_wait wait, const struct swarm_ask *ask
) {
    struct swarm_inside *inside = &swarm->insides[node];
    inside->wait = wait;
    inside->join = ask->join;
    inside->is_ready = false;
    inside->wait_until_ms = ask->type != SWARM_ASK_FORK && ask->time_ms > 0
                                ? swarm_after(swarm, ask->time_ms)
                                : BUDGET_NO_LIMIT;
    swarm->nodes[node].state = SWARM_WAITING;
}

/* ---- wait, receive, send ----------------------------------------------------------------------- */

static bool add_target(struct swarm *swarm, size_t node, size_t target) {
    struct swarm_inside *inside = &swarm->insides[node];
    for (size_t i = 0; i < inside->target_count; i++) {
        if (inside->targets[i] == target) {
            return true; /* named twice */
        }
    }
    if (inside->target_count == SWARM_CHILDREN_MAX) {
        swarm_refuse(swarm, "one wait is for at most %d agents", SWARM_CHILDREN_MAX);
        return false;
    }
    inside->targets[inside->target_count++] = target;
    return true;
}

static bool find_targets(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    struct swarm_inside *inside = &swarm->insides[node];
    inside->target_count = 0;
    for (size_t i = 0; i < ask->name_count; i++) {
        size_t target = resolve(swarm, node, ask->names[i]);
        if (target == SWARM_NONE) {
            return false;
        }
        if (target != node && is_above(swarm, target, node)) {
            swarm_refuse(
                swarm, "%s started this agent and cannot end before it", swarm->nodes[target].name
            );
            return false;
        }
        if ((target == node || !swarm_has_ended(swarm, target)) &&
            swarm_wait_is_circle(swarm, node, target)) {
            return false;
        }
        if (!add_target(swarm, node, target)) {
            return false;
        }
    }
    for (size_t i = 1; ask->name_count == 0 && i < swarm->count; i++) {
        const struct swarm_node *child = &swarm->nodes[i];
        if (child->parent == node && !child->is_read && !add_target(swarm, node, i)) {
            return false;
        }
    }
    if (inside->target_count == 0) {
        swarm_refuse(swarm, "this agent has started nobody whose result it has not read");
        return false;
    }
    return true;
}

static void ask_wait(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    struct swarm_inside *inside = &swarm->insides[node];
    if (!find_targets(swarm, node, ask)) {
        inside->target_count = 0;
        swarm_answer(swarm, node, ask->number, SWARM_ANSWER_REFUSED);
        return;
    }
    swarm_begin_wait(swarm, node, SWARM_WAIT_NODES, ask);
    for (size_t i = 0; i < inside->target_count; i++) {
        if (swarm_passing_is_wanted(swarm, inside->targets[i])) {
            swarm_verify(swarm, inside->targets[i]);
        }
    }
    if (swarm_has_mail(swarm, node)) {
        swarm_wait_ready(swarm, node, SWARM_ANSWER_MESSAGE);
    }
}

static void ask_receive(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    swarm->insides[node].target_count = 0;
    swarm_begin_wait(swarm, node, SWARM_WAIT_MESSAGE, ask);
    if (swarm_has_mail(swarm, node)) {
        swarm_wait_ready(swarm, node, SWARM_ANSWER_MESSAGE);
    }
}

static void ask_send(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    size_t reader = ask->name_count == 1 ? resolve(swarm, node, ask->names[0]) : SWARM_NONE;
    uint64_t message = 0;
    if (ask->name_count != 1) {
        swarm_refuse(swarm, "a message goes to one agent, not to %zu", ask->name_count);
    } else if (reader == node) {
        swarm_refuse(swarm, "a message to itself is not sent");
    } else if (reader != SWARM_NONE && (swarm_has_ended(swarm, reader) || swarm->nodes[reader].is_cancelling)) {
        swarm_refuse(swarm, "%s has ended and reads nothing", swarm->nodes[reader].name);
    } else if (reader != SWARM_NONE) {
        message = swarm_send(swarm, node, reader, ask->text);
    }
    if (message == 0) {
        swarm_answer(swarm, node, ask->number, SWARM_ANSWER_REFUSED);
        return;
    }
    swarm_answer(swarm, node, ask->number, SWARM_ANSWER_SENT)->message = message;
    swarm_deliver(swarm, reader);
}

/* ---- cancel and merge -------------------------------------------------------------------------- */

static void ask_cancel(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    struct swarm_inside *inside = &swarm->insides[node];
    inside->answer_count = 0;
    bool is_fine = ask->name_count >= 1 && ask->name_count <= SWARM_CHILDREN_MAX;
    if (!is_fine) {
        swarm_refuse(swarm, "%zu names: 1 to %d", ask->name_count, SWARM_CHILDREN_MAX);
    }
    for (size_t i = 0; is_fine && i < ask->name_count; i++) {
        size_t target = resolve(swarm, node, ask->names[i]);
        is_fine = target != SWARM_NONE;
        if (is_fine && (target == node || !is_above(swarm, node, target))) {
            swarm_refuse(swarm, "%s was not started by this agent", swarm->nodes[target].name);
            is_fine = false;
        }
        inside->answer_nodes[inside->answer_count++] = target;
    }
    if (!is_fine) {
        swarm_answer(swarm, node, ask->number, SWARM_ANSWER_REFUSED);
        return;
    }
    for (size_t i = 0; i < inside->answer_count; i++) {
        swarm_cancel(swarm, inside->answer_nodes[i], SWARM_CUT_ASKED);
    }
    struct swarm_effect *effect = swarm_answer(swarm, node, ask->number, SWARM_ANSWER_CANCELLED);
    effect->nodes = inside->answer_nodes;
    effect->node_count = inside->answer_count;
}

static void ask_merge(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    size_t child = ask->name_count == 1 ? resolve(swarm, node, ask->names[0]) : SWARM_NONE;
    const struct swarm_node *source = child != SWARM_NONE ? &swarm->nodes[child] : NULL;
    bool is_fine = false;
    if (ask->name_count != 1) {
        swarm_refuse(swarm, "one agent's changes are merged at a time, not %zu", ask->name_count);
    } else if (source == NULL) {
        is_fine = false;
    } else if (source->parent != node) {
        swarm_refuse(swarm, "%s was not started by this agent", source->name);
    } else if (source->state != SWARM_ENDED) {
        swarm_refuse(swarm, "%s is still at work: wait for it or cancel it", source->name);
    } else if (source->commit.text[0] == '\0') {
        swarm_refuse(swarm, "%s has changed nothing", source->name);
    } else if (source->is_merged) {
        swarm_refuse(swarm, "the changes of %s are merged already", source->name);
    } else {
        is_fine = true;
    }
    if (!is_fine) {
        swarm_answer(swarm, node, ask->number, SWARM_ANSWER_REFUSED);
        return;
    }
    swarm_begin_wait(swarm, node, SWARM_WAIT_MERGE, ask);
    swarm->insides[node].targets[0] = child;
    swarm->insides[node].target_count = 1;
    swarm_merge(swarm, child, node);
}

void swarm_asked(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    struct swarm_node *asker = &swarm->nodes[node];
    if (asker->has_ask) {
        return; /* the host runs one call of an agent at a time; the first is answered */
    }
    asker->has_ask = true;
    asker->ask = ask->number;
    asker->heard_ms = swarm->now_ms;
    if (asker->is_cancelling || swarm->phase != SWARM_PHASE_WORKS) {
        return; /* the call ends with its agent */
    }
    if (ask->type == SWARM_ASK_SPAWN || ask->type == SWARM_ASK_FORK) {
        swarm_ask_children(swarm, node, ask);
    } else if (ask->type == SWARM_ASK_SEND) {
        ask_send(swarm, node, ask);
    } else if (ask->type == SWARM_ASK_WAIT) {
        ask_wait(swarm, node, ask);
    } else if (ask->type == SWARM_ASK_RECEIVE) {
        ask_receive(swarm, node, ask);
    } else if (ask->type == SWARM_ASK_CANCEL) {
        ask_cancel(swarm, node, ask);
    } else {
        ask_merge(swarm, node, ask);
    }
}
