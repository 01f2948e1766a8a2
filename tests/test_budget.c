/* Accounts of a tree of agents: shares, refusals, what comes back; random trees against a sum that is
 * kept beside; effort and order. */
#include "base/bytes.h"
#include "runtime/budget.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define NOW 1000

static struct budget_limits limits_of(int64_t tokens, int64_t calls, int64_t processes) {
    return (struct budget_limits){
        .amounts.of[BUDGET_TOKENS] = tokens,
        .amounts.of[BUDGET_CALLS] = calls,
        .amounts.of[BUDGET_PROCESSES] = processes,
        .amounts.of[BUDGET_MEMORY] = BUDGET_NO_LIMIT,
        .deadline_ms = NOW + 1000,
    };
}

static struct budget *create(const struct budget_limits *limits) {
    struct budget *budget = NULL;
    struct error error = {0};
    if (is_failed(budget_create(&budget, limits, &error))) {
        fail_msg("%s", error.message);
    }
    return budget;
}

static void check(const struct budget *budget) {
    struct error error = {0};
    if (is_failed(budget_check(budget, &error))) {
        fail_msg("%s", error.message);
    }
}

static struct budget_share share_of(int64_t tokens, int64_t calls) {
    return (struct budget_share){
        .amounts.of[BUDGET_TOKENS] = tokens,
        .amounts.of[BUDGET_CALLS] = calls,
        .deadline_ms = BUDGET_NO_LIMIT,
    };
}

static size_t open_one(struct budget *budget, size_t parent, int64_t tokens) {
    struct budget_share share = share_of(tokens, 0);
    struct budget_refusal refusal;
    size_t node = 0;
    assert_true(budget_open(budget, parent, &share, NOW, &node, &refusal));
    check(budget);
    return node;
}

static struct budget_amounts tokens_of(int64_t tokens) {
    return (struct budget_amounts){.of[BUDGET_TOKENS] = tokens};
}

/* ---- shares ------------------------------------------------------------------------------------ */

static void child_unused_share_comes_back(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, 600);
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 400);
    struct budget_amounts used = tokens_of(250);
    assert_true(budget_charge(budget, child, &used));
    assert_int_equal(budget_left(budget, child).of[BUDGET_TOKENS], 350);
    assert_int_equal(budget_own_max(budget, child, BUDGET_TOKENS), 600);
    budget_close(budget, child, false);
    check(budget);
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 750);
    assert_int_equal(budget_spent(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 250);
}

static void lost_child_counts_as_all_used(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, 600);
    budget_close(budget, child, true);
    check(budget);
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 400);
}

static void refusal_names_resource_asked_and_left(void **state) {
    (void)state;
    char text[BUDGET_TEXT_BYTES];
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    struct budget_share share = share_of(10, 11);
    struct budget_refusal refusal;
    size_t node = 77;
    assert_false(budget_open(budget, BUDGET_ROOT, &share, NOW, &node, &refusal));
    assert_int_equal(node, 77);
    assert_int_equal(refusal.reason, BUDGET_REFUSED_AMOUNT);
    budget_refusal_text(&refusal, text);
    assert_string_equal(text, "calls: 11 asked, 10 left");
    share = share_of(BUDGET_NO_LIMIT, 1);
    assert_false(budget_open(budget, BUDGET_ROOT, &share, NOW, &node, &refusal));
    budget_refusal_text(&refusal, text);
    assert_string_equal(text, "tokens: no limit asked, 1000 left");
    share = share_of(1, 1);
    assert_false(budget_open(budget, BUDGET_ROOT, &share, NOW + 1000, &node, &refusal));
    assert_int_equal(refusal.reason, BUDGET_REFUSED_TIME);
    check(budget);
}

static void depth_and_nodes_are_capped(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    limits.depth_max = 2;
    limits.nodes_max = 4;
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    struct budget_share share = share_of(1, 0);
    struct budget_refusal refusal;
    size_t node = 0;
    size_t child = open_one(budget, BUDGET_ROOT, 100);
    size_t grandchild = open_one(budget, child, 50);
    assert_false(budget_open(budget, grandchild, &share, NOW, &node, &refusal));
    assert_int_equal(refusal.reason, BUDGET_REFUSED_DEPTH);
    assert_int_equal(refusal.left, 2);
    budget_close(budget, grandchild, false);
    open_one(budget, child, 50);
    /* Closed accounts count: an agent that starts and ends others without end is stopped. */
    assert_false(budget_open(budget, child, &share, NOW, &node, &refusal));
    assert_int_equal(refusal.reason, BUDGET_REFUSED_NODES);
    limits.nodes_max = BUDGET_NODES_MAX + 1;
    struct budget *none = NULL;
    assert_int_equal(budget_create(&none, &limits, NULL).code, RESULT_INVALID_INPUT);
    limits = limits_of(-1, 10, 4);
    assert_int_equal(budget_create(&none, &limits, NULL).code, RESULT_INVALID_INPUT);
    assert_null(none);
}

static void reserved_is_settled_and_overdraft_is_counted(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, 100);
    struct budget_refusal refusal;
    struct budget_amounts asked = tokens_of(80);
    assert_true(budget_reserve(budget, child, &asked, &refusal));
    check(budget);
    assert_false(budget_reserve(budget, child, &asked, &refusal));
    assert_int_equal(refusal.left, 20);
    struct budget_amounts used = tokens_of(30);
    assert_true(budget_settle(budget, child, &asked, &used));
    assert_int_equal(budget_left(budget, child).of[BUDGET_TOKENS], 70);
    used = tokens_of(90);
    assert_false(budget_charge(budget, child, &used));
    check(budget);
    assert_int_equal(budget_left(budget, child).of[BUDGET_TOKENS], 0);
    assert_int_equal(budget_overdrawn(budget).of[BUDGET_TOKENS], 20);
    assert_int_equal(budget_spent(budget, child).of[BUDGET_TOKENS], 100);
}

static void held_resources_come_back(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, 100);
    struct budget_refusal refusal;
    struct budget_amounts held = {.of[BUDGET_PROCESSES] = 3};
    assert_true(budget_grow(budget, child, &held, &refusal));
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_PROCESSES], 1);
    assert_false(budget_grow(budget, child, &held, &refusal));
    held.of[BUDGET_PROCESSES] = 2;
    assert_true(budget_reserve(budget, child, &held, &refusal));
    budget_shrink_held(budget, child);
    check(budget);
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_PROCESSES], 2);
    assert_true(budget_settle(budget, child, &held, &held));
    assert_int_equal(budget_left(budget, child).of[BUDGET_PROCESSES], 2);
    budget_close(budget, child, false);
    assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_PROCESSES], 4);
    check(budget);
}

static void deadline_of_child_is_not_behind_its_parent(void **state) {
    (void)state;
    struct budget_limits limits = limits_of(1000, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, 100);
    assert_int_equal(budget_deadline_ms(budget, child), NOW + 1000);
    assert_int_equal(budget_set_deadline(budget, child, NOW + 10), NOW + 10);
    size_t grandchild = open_one(budget, child, 10);
    assert_int_equal(budget_deadline_ms(budget, grandchild), NOW + 10);
    assert_int_equal(budget_set_deadline(budget, child, NOW + 5000), NOW + 1000);
}

static void parts_of_no_limit_have_none(void **state) {
    (void)state;
    assert_int_equal(budget_part(100, 3), 33);
    assert_true(budget_part(BUDGET_NO_LIMIT, 3) == BUDGET_NO_LIMIT);
    struct budget_limits limits = limits_of(BUDGET_NO_LIMIT, 10, 4);
    CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
    size_t child = open_one(budget, BUDGET_ROOT, BUDGET_NO_LIMIT);
    size_t limited = open_one(budget, child, 5);
    struct budget_amounts used = tokens_of(5);
    assert_true(budget_charge(budget, limited, &used));
    budget_close(budget, limited, false);
    budget_close(budget, child, false);
    check(budget);
    assert_true(budget_left(budget, BUDGET_ROOT).of[BUDGET_TOKENS] == BUDGET_NO_LIMIT);
    assert_int_equal(budget_spent(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 5);
}

/* ---- random trees ------------------------------------------------------------------------------ */

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int64_t draw(uint64_t *random, int64_t count) {
    return (int64_t)(next(random) % (uint64_t)count);
}

/* Spends and gives at random; the sum of all that was said to be covered is kept beside. */
static int64_t act(struct budget *budget, uint64_t *random) {
    struct budget_refusal refusal;
    size_t node = (size_t)draw(random, (int64_t)budget_nodes(budget));
    struct budget_amounts amounts = tokens_of(draw(random, 300));
    int64_t action = draw(random, 10);
    if (!budget_is_open(budget, node)) {
        return 0;
    }
    if (action < 4) {
        struct budget_share share = {
            .amounts = amounts, .deadline_ms = NOW + 1 + draw(random, 2000)};
        size_t child = 0;
        (void)budget_open(budget, node, &share, NOW, &child, &refusal);
    } else if (action < 5 && node != BUDGET_ROOT) {
        (void)budget_grow(budget, node, &amounts, &refusal);
    } else if (action < 8) {
        bool is_granted = budget_reserve(budget, node, &amounts, &refusal);
        struct budget_amounts used = tokens_of(draw(random, amounts.of[BUDGET_TOKENS] + 1));
        if (is_granted) {
            assert_true(budget_settle(budget, node, &amounts, &used));
            return used.of[BUDGET_TOKENS];
        }
    } else if (node != BUDGET_ROOT && budget_children_open(budget, node) == 0) {
        bool is_lost = action == 9;
        int64_t left = budget_left(budget, node).of[BUDGET_TOKENS];
        budget_close(budget, node, is_lost);
        return is_lost ? left : 0;
    }
    return 0;
}

static void random_trees_never_exceed_the_root(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed * 7919;
        int64_t spent = 0;
        struct budget_limits limits = limits_of(5000, 10, 4);
        limits.depth_max = 4;
        CLEANUP(budget_cleanup) struct budget *budget = create(&limits);
        for (int i = 0; i < 200; i++) {
            spent += act(budget, &random);
            struct error error = {0};
            if (is_failed(budget_check(budget, &error)) || spent > 5000) {
                fail_msg("seed %llu, step %d: %s", (unsigned long long)seed, i, error.message);
            }
        }
        for (size_t i = budget_nodes(budget); i-- > 1;) {
            if (budget_is_open(budget, i)) {
                budget_close(budget, i, false);
            }
        }
        check(budget);
        assert_int_equal(budget_spent(budget, BUDGET_ROOT).of[BUDGET_TOKENS], spent);
        assert_int_equal(budget_left(budget, BUDGET_ROOT).of[BUDGET_TOKENS], 5000 - spent);
    }
}

/* ---- effort and order -------------------------------------------------------------------------- */

static void effort_falls_when_what_is_left_is_short(void **state) {
    (void)state;
    static const struct {
        int64_t time_left_ms, tokens_left;
        int32_t expected;
    } rows[] = {
        {80000, 80000, 100}, /* enough for eight turns */
        {79999, 80000, 75},  /* one turn too few */
        {80000, 40000, 50},  /* of tokens, half */
        {20000, 80000, 30},  /* a quarter: as low as it goes, and not below the least */
        {0, 0, 30},
        {BUDGET_NO_LIMIT, 80000, 100},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct budget_pace pace = {
            .effort_may_vary = true,
            .effort = 100,
            .effort_min = 30,
            .time_left_ms = rows[i].time_left_ms,
            .tokens_left = rows[i].tokens_left,
            .turn_ms = 10000,
            .turn_tokens = 10000,
            .turns_of_work = 8,
        };
        assert_int_equal(budget_effort(&pace), rows[i].expected);
        pace.effort_may_vary = false;
        assert_int_equal(budget_effort(&pace), 100);
    }
}

static void order_is_by_value_then_by_slack(void **state) {
    (void)state;
    const struct budget_rank worker = {.value = 2, .deadline_ms = NOW + 500, .index = 1};
    const struct budget_rank planner = {.value = 3, .deadline_ms = BUDGET_NO_LIMIT, .index = 2};
    const struct budget_rank urgent = {.value = 2, .deadline_ms = NOW + 100, .index = 3};
    const struct budget_rank hopeless = {
        .value = 3, .deadline_ms = NOW + 100, .work_ms = 200, .index = 0};
    assert_true(budget_goes_before(&planner, &worker, NOW));
    assert_true(budget_goes_before(&urgent, &worker, NOW));
    assert_true(budget_goes_before(&worker, &hopeless, NOW));
    assert_false(budget_goes_before(&hopeless, &worker, NOW));
    struct budget_rank twin = worker;
    twin.index = 9;
    assert_true(budget_goes_before(&worker, &twin, NOW));
    assert_false(budget_goes_before(&twin, &worker, NOW));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_unused_share_comes_back),
        cmocka_unit_test(lost_child_counts_as_all_used),
        cmocka_unit_test(refusal_names_resource_asked_and_left),
        cmocka_unit_test(depth_and_nodes_are_capped),
        cmocka_unit_test(reserved_is_settled_and_overdraft_is_counted),
        cmocka_unit_test(held_resources_come_back),
        cmocka_unit_test(deadline_of_child_is_not_behind_its_parent),
        cmocka_unit_test(parts_of_no_limit_have_none),
        cmocka_unit_test(random_trees_never_exceed_the_root),
        cmocka_unit_test(effort_falls_when_what_is_left_is_short),
        cmocka_unit_test(order_is_by_value_then_by_slack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
