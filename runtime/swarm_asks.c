/* What agents ask by tool: the verbs. All of it is foreign and bounded; what may not be is refused with
 * a reason that the model can act upon. See swarm.h. */
#include "swarm_internal.h"

#include <assert.h>
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

static bool name_is_fine(struct swarm *swarm, struct view name) {
    bool is_fine = name.length < SWARM_NAME_BYTES;
    for (size_t i = 0; is_fine && i < name.length; i++) {
        unsigned char c = name.data[i];
        is_fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_';
    }
    if (!is_fine) {
        swarm_refuse(swarm, "a name has at most %d letters, digits, - and _", SWARM_NAME_BYTES - 1);
        return false;
    }
    bool is_ours =
        view_equals_text(name, "parent") || view_starts_with(name, view_of_text("agent-"));
    if (is_ours || (name.length > 0 && swarm_find(swarm, name) != SWARM_NONE)) {
        swarm_refuse(swarm, "the name %.*s is taken", VIEW_ARGUMENTS(name));
        return false;
    }
    return true;
}

/* An agent by its name, or the asker's parent; SWARM_NONE: refused. */
static size_t resolve(struct swarm *swarm, size_t node, struct view name) {
    size_t found =
        view_equals_text(name, "parent") ? swarm->nodes[node].parent : swarm_find(swarm, name);
    if (found == SWARM_NONE) {
        swarm_refuse(
            swarm, "there is no agent named %.*s", VIEW_ARGUMENTS(view_slice(name, 0, 64))
        );
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

/* ---- spawn and fork ---------------------------------------------------------------------------- */

/* Blanks and case apart: a brief that only looks different is the same work. */
static bool next_letter(struct cursor *cursor, unsigned char *out) {
    uint8_t byte = 0;
    while (cursor_take_u8(cursor, &byte)) {
        if (byte > ' ') {
            *out = byte >= 'A' && byte <= 'Z' ? (unsigned char)(byte + 32) : byte;
            return true;
        }
    }
    return false;
}

static bool is_same_brief(struct view a, struct view b) {
    struct cursor left = cursor_over(a);
    struct cursor right = cursor_over(b);
    unsigned char x = 0;
    unsigned char y = 0;
    for (;;) {
        bool has_left = next_letter(&left, &x);
        bool has_right = next_letter(&right, &y);
        if (!has_left || !has_right) {
            return has_left == has_right;
        }
        if (x != y) {
            return false;
        }
    }
}

static bool brief_is_fine(struct swarm *swarm, size_t node, struct view brief, bool is_fork) {
    struct cursor cursor = cursor_over(brief);
    unsigned char letter = 0;
    bool is_empty = !next_letter(&cursor, &letter);
    if (is_empty && !is_fork) {
        swarm_refuse(swarm, "an agent needs a brief: what it is to do, in full");
        return false;
    }
    for (size_t at = node; !is_empty && at != SWARM_ROOT; at = swarm->nodes[at].parent) {
        if (is_same_brief(brief, buffer_view(&swarm->nodes[at].brief))) {
            swarm_refuse(
                swarm,
                "that is the brief of %s itself: do it, or give a part of it away",
                at == node ? "this agent" : swarm->nodes[at].name
            );
            return false;
        }
    }
    if (!is_empty && is_same_brief(brief, swarm->options.task)) {
        swarm_refuse(swarm, "that is the whole task: do it, or give a part of it away");
        return false;
    }
    return true;
}

/* Of `count` children each gets an equal part, and the asker keeps one; of what is held, half goes to
 * the children. */
static struct budget_share
share_of(const struct swarm *swarm, size_t node, const struct swarm_ask *ask, size_t count) {
    struct budget_amounts left = budget_left(swarm->budget, node);
    struct budget_share share = {.deadline_ms = swarm->nodes[node].deadline_ms};
    int64_t parts = (int64_t)count + 1;
    for (size_t i = BUDGET_TOKENS; i <= BUDGET_CALLS; i++) {
        share.amounts.of[i] = budget_part(left.of[i], parts);
    }
    if (ask->tokens > 0) {
        share.amounts.of[BUDGET_TOKENS] = ask->tokens;
    }
    for (size_t i = BUDGET_PROCESSES; i <= BUDGET_MEMORY; i++) {
        share.amounts.of[i] = budget_part(left.of[i], 2 * (int64_t)count);
    }
    if (share.amounts.of[BUDGET_PROCESSES] == 0) {
        share.amounts.of[BUDGET_PROCESSES] = 1;
    }
    if (share.amounts.of[BUDGET_MEMORY] < swarm->options.node_memory_bytes) {
        share.amounts.of[BUDGET_MEMORY] = swarm->options.node_memory_bytes;
    }
    if (share.deadline_ms != BUDGET_NO_LIMIT) { /* the asker has time for the result */
        share.deadline_ms -= (share.deadline_ms - swarm->now_ms) / 10;
    }
    if (ask->time_ms > 0 && swarm_after(swarm, ask->time_ms) < share.deadline_ms) {
        share.deadline_ms = swarm_after(swarm, ask->time_ms);
    }
    return share;
}

/* All of them or none: what does not fit as a whole is refused before any is made. */
static bool
children_fit(struct swarm *swarm, size_t node, size_t count, const struct budget_share *share) {
    const struct swarm_node *asker = &swarm->nodes[node];
    struct budget_amounts left = budget_left(swarm->budget, node);
    if (!swarm_can_start(swarm)) {
        swarm_refuse(swarm, "%s", swarm->disk_is_full ? "the disk is full" : "no time is left");
        return false;
    }
    if (swarm->insides[node].children + count > SWARM_CHILDREN_MAX) {
        swarm_refuse(
            swarm,
            "%zu more agents: one agent may start %d in all and has started %zu",
            count,
            SWARM_CHILDREN_MAX,
            swarm->insides[node].children
        );
        return false;
    }
    if (swarm->count + count > swarm->options.nodes_max) {
        swarm_refuse(
            swarm,
            "%zu more agents: %zu of %zu are left for all together",
            count,
            swarm->options.nodes_max - swarm->count,
            swarm->options.nodes_max - 1
        );
        return false;
    }
    if (asker->depth >= swarm->options.depth_max) {
        swarm_refuse(
            swarm, "agents below this one would be deeper than %zu: do it here", asker->depth
        );
        return false;
    }
    if (share->amounts.of[BUDGET_TOKENS] < SWARM_CHILD_TOKENS_MIN) {
        swarm_refuse(
            swarm,
            "tokens: %lld for each of %zu agents, at least %d are needed",
            (long long)share->amounts.of[BUDGET_TOKENS],
            count,
            SWARM_CHILD_TOKENS_MIN
        );
        return false;
    }
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        int64_t each = share->amounts.of[i];
        int64_t most = budget_part(left.of[i], (int64_t)count);
        if (left.of[i] != BUDGET_NO_LIMIT && (each == BUDGET_NO_LIMIT || each > most)) {
            swarm_refuse(
                swarm,
                "%s: %lld for each of %zu agents, %lld left in all",
                budget_resource_name((enum budget_resource)i),
                (long long)each,
                count,
                (long long)left.of[i]
            );
            return false;
        }
    }
    return true;
}

static bool
add_children(struct swarm *swarm, size_t node, const struct swarm_ask *ask, size_t count) {
    bool is_fork = ask->type == SWARM_ASK_FORK;
    struct swarm_inside *inside = &swarm->insides[node];
    struct budget_share share = share_of(swarm, node, ask, count);
    if (!children_fit(swarm, node, count, &share)) {
        return false;
    }
    inside->answer_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct view brief = i < ask->brief_count ? ask->briefs[i] : view_of(NULL, 0);
        size_t child = swarm_add(swarm, node, brief, ask->name, &share);
        if (child == SWARM_NONE) { /* no memory: what was made is taken back */
            for (size_t j = 0; j < inside->answer_count; j++) {
                swarm_cancel(swarm, inside->answer_nodes[j], SWARM_CUT_ASKED);
            }
            return false;
        }
        swarm->nodes[child].kind = is_fork ? SWARM_KIND_FORK : SWARM_KIND_SPAWN;
        swarm->nodes[child].is_part = true;
        swarm->nodes[child].index_of = i;
        swarm->nodes[child].count_of = count;
        inside->children++;
        inside->answer_nodes[inside->answer_count++] = child;
    }
    return true;
}

static void
begin_wait(struct swarm *swarm, size_t node, enum swarm_wait wait, const struct swarm_ask *ask) {
    struct swarm_inside *inside = &swarm->insides[node];
    inside->wait = wait;
    inside->join = ask->join;
    inside->is_ready = false;
    inside->wait_until_ms = ask->type != SWARM_ASK_FORK && ask->time_ms > 0
                                ? swarm_after(swarm, ask->time_ms)
                                : BUDGET_NO_LIMIT;
    swarm->nodes[node].state = SWARM_WAITING;
}

static void ask_children(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    bool is_fork = ask->type == SWARM_ASK_FORK;
    int64_t count = ask->brief_count > 0 ? (int64_t)ask->brief_count : ask->count;
    count = !is_fork && ask->count == 0 ? 1 : count;
    struct swarm_inside *inside = &swarm->insides[node];
    bool is_fine = count >= 1 && count <= SWARM_CHILDREN_MAX && (is_fork || count == 1);
    if (!is_fine) {
        swarm_refuse(
            swarm,
            "%lld agents: %s",
            (long long)count,
            is_fork ? "a fork makes 1 to 32" : "spawn makes one"
        );
        static_assert(SWARM_CHILDREN_MAX == 32, "the text above says it");
    }
    is_fine = is_fine && name_is_fine(swarm, ask->name);
    for (size_t i = 0; is_fine && i < (size_t)count; i++) {
        struct view brief = i < ask->brief_count ? ask->briefs[i] : view_of(NULL, 0);
        is_fine = brief_is_fine(swarm, node, brief, is_fork);
    }
    if (is_fine && is_fork && ask->name.length > 0) {
        swarm_refuse(
            swarm, "forks are named by their number, not by %.*s", VIEW_ARGUMENTS(ask->name)
        );
        is_fine = false;
    }
    if (!is_fine || !add_children(swarm, node, ask, (size_t)count)) {
        swarm_answer(swarm, node, ask->number, SWARM_ANSWER_REFUSED);
        return;
    }
    if (is_fork) {
        begin_wait(swarm, node, SWARM_WAIT_NODES, ask);
        inside->is_fork_call = true;
        inside->target_count = inside->answer_count;
        memcpy(inside->targets, inside->answer_nodes, sizeof inside->targets);
    } else {
        struct swarm_effect *effect = swarm_answer(swarm, node, ask->number, SWARM_ANSWER_STARTED);
        effect->nodes = inside->answer_nodes;
        effect->node_count = inside->answer_count;
    }
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
    begin_wait(swarm, node, SWARM_WAIT_NODES, ask);
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
    begin_wait(swarm, node, SWARM_WAIT_MESSAGE, ask);
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
    } else if (source->commit.text[0] == '\0' || source->changed_lines == 0) {
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
    begin_wait(swarm, node, SWARM_WAIT_MERGE, ask);
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
        ask_children(swarm, node, ask);
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
