/* Agents that agents start: spawn and fork, what is refused and what each gets. See swarm.h. */
#include "swarm_internal.h"

#include <assert.h>

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

void swarm_ask_children(struct swarm *swarm, size_t node, const struct swarm_ask *ask) {
    bool is_fork = ask->type == SWARM_ASK_FORK;
    int64_t count = ask->brief_count > 0 ? (int64_t)ask->brief_count : ask->count;
    count = !is_fork && count == 0 ? 1 : count;
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
        swarm_begin_wait(swarm, node, SWARM_WAIT_NODES, ask);
        inside->is_fork_call = true;
        inside->target_count = inside->answer_count;
        memcpy(inside->targets, inside->answer_nodes, sizeof inside->targets);
    } else {
        struct swarm_effect *effect = swarm_answer(swarm, node, ask->number, SWARM_ANSWER_STARTED);
        effect->nodes = inside->answer_nodes;
        effect->node_count = inside->answer_count;
    }
}
