/* Whether the sums of a budget are right, the effort that what is left allows, and who goes first; see
 * budget.h. The sums are computed here from what the accounts say in public, not by the code that
 * keeps them. */
#include "budget.h"

#include <inttypes.h>

/* ---- sums -------------------------------------------------------------------------------------- */

static result
check_node(const struct budget *budget, size_t node, size_t resource, struct error *error) {
    const char *name = budget_resource_name((enum budget_resource)resource);
    int64_t share = budget_share(budget, node).of[resource];
    int64_t spent = budget_spent(budget, node).of[resource];
    int64_t left = budget_left(budget, node).of[resource];
    int64_t reserved = budget_reserved(budget, node).of[resource];
    if (left < 0 || spent < 0 || reserved < 0) {
        FAIL(
            error,
            CORRUPT,
            "%s of account %zu: %" PRId64 " left, %" PRId64 " spent",
            name,
            node,
            left,
            spent
        );
    }
    int64_t given = 0;
    int64_t spent_closed = 0;
    for (size_t i = node + 1; i < budget_nodes(budget); i++) {
        if (budget_parent(budget, i) != node) {
            continue;
        }
        int64_t child = budget_is_open(budget, i) ? budget_share(budget, i).of[resource] : 0;
        bool is_endless = child == BUDGET_NO_LIMIT || share == BUDGET_NO_LIMIT;
        if (child == BUDGET_NO_LIMIT && share != BUDGET_NO_LIMIT) {
            FAIL(error, CORRUPT, "%s of account %zu: no limit under a limited one", name, i);
        }
        given += is_endless ? 0 : child;
        spent_closed += budget_is_open(budget, i) ? 0 : budget_spent(budget, i).of[resource];
    }
    bool is_consumed = resource == BUDGET_TOKENS || resource == BUDGET_CALLS;
    int64_t own = budget_own_spent(budget, node, (enum budget_resource)resource);
    if (is_consumed && spent != own + spent_closed) {
        FAIL(
            error,
            CORRUPT,
            "%s of account %zu: %" PRId64 " spent, %" PRId64 " by itself and %" PRId64
            " by its children",
            name,
            node,
            spent,
            own,
            spent_closed
        );
    }
    if (share != BUDGET_NO_LIMIT && budget_is_open(budget, node) &&
        spent + given + reserved + left != share) {
        FAIL(
            error,
            CORRUPT,
            "%s of account %zu: %" PRId64 " spent, %" PRId64 " given, %" PRId64
            " reserved and %" PRId64 " left of %" PRId64,
            name,
            node,
            spent,
            given,
            reserved,
            left,
            share
        );
    }
    return OK;
}

/* The tree's total, from the leaves: every account's own spending. */
static result check_total(const struct budget *budget, size_t resource, struct error *error) {
    int64_t total = 0;
    int64_t limit = budget_share(budget, BUDGET_ROOT).of[resource];
    for (size_t i = 0; i < budget_nodes(budget); i++) {
        total += budget_own_spent(budget, i, (enum budget_resource)resource);
    }
    if (total > limit) {
        FAIL(
            error,
            CORRUPT,
            "%s: %" PRId64 " spent in all of %" PRId64,
            budget_resource_name((enum budget_resource)resource),
            total,
            limit
        );
    }
    return OK;
}

result budget_check(const struct budget *budget, struct error *error) {
    if (budget_nodes(budget) > budget_nodes_max(budget)) {
        FAIL(error, CORRUPT, "%zu accounts", budget_nodes(budget));
    }
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        for (size_t node = 0; node < budget_nodes(budget); node++) {
            TRY(check_node(budget, node, i, error));
        }
        TRY(check_total(budget, i, error));
    }
    for (size_t node = 0; node < budget_nodes(budget); node++) {
        size_t open = 0;
        for (size_t i = 1; i < budget_nodes(budget); i++) {
            open += budget_parent(budget, i) == node && budget_is_open(budget, i) ? 1 : 0;
        }
        if (open != budget_children_open(budget, node)) {
            FAIL(error, CORRUPT, "account %zu: %zu children are open", node, open);
        }
    }
    for (size_t node = 1; node < budget_nodes(budget); node++) {
        size_t parent = budget_parent(budget, node);
        bool is_behind = budget_deadline_ms(budget, node) > budget_deadline_ms(budget, parent);
        if (budget_depth(budget, node) > budget_depth_max(budget) ||
            (budget_is_open(budget, node) && (is_behind || !budget_is_open(budget, parent)))) {
            FAIL(error, CORRUPT, "account %zu: its depth, its deadline or its parent", node);
        }
    }
    return OK;
}

/* ---- effort ------------------------------------------------------------------------------------ */

/* Turns that `left` suffices for, at most `turns`. */
static int64_t turns_in(int64_t left, int64_t each, int64_t turns) {
    if (left == BUDGET_NO_LIMIT || each <= 0) {
        return turns;
    }
    int64_t count = left > 0 ? left / each : 0;
    return count < turns ? count : turns;
}

int32_t budget_effort(const struct budget_pace *pace) {
    static const int32_t steps[BUDGET_EFFORT_STEPS] = {100, 75, 50, 25};
    ASSERT(pace->turns_of_work >= 1 && pace->effort_min <= pace->effort);
    if (!pace->effort_may_vary) {
        return pace->effort;
    }
    int64_t turns = turns_in(pace->time_left_ms, pace->turn_ms, pace->turns_of_work);
    turns = turns_in(pace->tokens_left, pace->turn_tokens, turns);
    if (turns == pace->turns_of_work) {
        return pace->effort;
    }
    /* Less than all of it: a step; of half of it: two; of a quarter: as low as it goes. */
    int down = turns * 4 <= pace->turns_of_work   ? BUDGET_EFFORT_STEPS
               : turns * 2 <= pace->turns_of_work ? 2
                                                  : 1;
    int32_t effort = pace->effort;
    for (size_t i = 0; i < BUDGET_EFFORT_STEPS && down > 0; i++) {
        if (steps[i] < effort) {
            effort = steps[i];
            down--;
        }
    }
    return effort > pace->effort_min ? effort : pace->effort_min;
}

/* ---- order ------------------------------------------------------------------------------------- */

int64_t budget_slack_ms(const struct budget_rank *rank, int64_t now_ms) {
    return rank->deadline_ms == BUDGET_NO_LIMIT ? BUDGET_NO_LIMIT
                                                : rank->deadline_ms - now_ms - rank->work_ms;
}

bool budget_goes_before(const struct budget_rank *a, const struct budget_rank *b, int64_t now_ms) {
    int64_t slack_a = budget_slack_ms(a, now_ms);
    int64_t slack_b = budget_slack_ms(b, now_ms);
    if ((slack_a >= 0) != (slack_b >= 0)) {
        return slack_a >= 0;
    }
    if (a->value != b->value) {
        return a->value > b->value;
    }
    return slack_a != slack_b ? slack_a < slack_b : a->index < b->index;
}
