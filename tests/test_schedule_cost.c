/* What steps cost: how soon it is learnt, what outliers and drift do to it; and rows served by
 * agent. */
#include "engine/schedule.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static double uniform(uint64_t *random) {
    return (double)(next(random) >> 11) / 9007199254740992.0;
}

static struct schedule_rows_count rows_of(int32_t decode, int32_t draft, int32_t prefill) {
    return (struct schedule_rows_count){{decode, draft, prefill}};
}

/* A machine. */
struct truth {
    double fixed, decode, draft, prefill;
};

static double duration(const struct truth *truth, const struct schedule_rows_count *rows) {
    return truth->fixed + truth->decode * rows->rows[SCHEDULE_DECODE] +
           truth->draft * rows->rows[SCHEDULE_DRAFT] +
           truth->prefill * rows->rows[SCHEDULE_PREFILL];
}

static struct schedule_rows_count random_rows(uint64_t *random) {
    int32_t decode = (int32_t)(next(random) % 32);
    int32_t draft = next(random) % 3 == 0 ? (int32_t)(next(random) % 16) : 0;
    int32_t prefill = next(random) % 2 == 0 ? (int32_t)(next(random) % 128) : 0;
    decode += decode + prefill == 0 ? 1 : 0;
    return rows_of(decode, draft, prefill);
}

static void cost_is_zero_before_the_first_step(void **state) {
    (void)state;
    struct schedule_cost cost = {0};
    struct schedule_rows_count rows = rows_of(3, 2, 50);
    assert_true(schedule_cost_predict(&cost, &rows) == 0);
    assert_true(schedule_cost_row(&cost, SCHEDULE_PREFILL) == 0);
    assert_true(schedule_cost_fixed(&cost) == 0);
    rows = rows_of(0, 0, 0);
    schedule_cost_update(&cost, &rows, 1000); /* no rows: tells nothing */
    assert_int_equal(cost.steps, 0);
}

static void cost_after_one_step_predicts_that_step(void **state) {
    (void)state;
    static const int64_t taken[] = {-5, 0, 1, 40, 30000, 900000000};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        struct schedule_cost cost = {0};
        struct schedule_rows_count rows = rows_of(0, 0, 8);
        schedule_cost_update(&cost, &rows, taken[i]);
        double want = taken[i] < 1 ? 1 : (double)taken[i];
        double predicted = schedule_cost_predict(&cost, &rows);
        assert_true(predicted >= want * 0.99 && predicted <= want * 1.01);
        /* Nothing is known of the fixed part: all counts as the rows', so that more rows are not
         * taken for cheap. */
        rows = rows_of(0, 0, 32);
        assert_true(schedule_cost_predict(&cost, &rows) >= want * 3.9);
        /* Other kinds cost as much. */
        assert_true(
            schedule_cost_row(&cost, SCHEDULE_DECODE) == schedule_cost_row(&cost, SCHEDULE_PREFILL)
        );
    }
}

static void cost_learns_machines_within_some_steps(void **state) {
    (void)state;
    static const struct truth machines[] = {
        {8000, 1200, 1000, 900}, /* two cores */
        {15000, 40, 30, 12},     /* an accelerator: weights read once, rows nearly free */
        {500, 9000, 9000, 9000}, /* rows are all */
        {0, 100, 100, 100},
        {120000, 1000, 500, 300},
    };
    for (uint64_t seed = 1; seed <= 5; seed++) {
        for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++) {
            uint64_t random = seed * 1000 + m;
            struct schedule_cost cost = {0};
            for (int step = 0; step < 400; step++) {
                struct schedule_rows_count rows = random_rows(&random);
                double taken = duration(&machines[m], &rows);
                if (step >= 60) {
                    double share = schedule_cost_predict(&cost, &rows) / taken;
                    if (share < 0.75 || share > 1.35) {
                        print_message(
                            "seed %llu, machine %zu, step %d: %.2f\n",
                            (unsigned long long)seed,
                            m,
                            step,
                            share
                        );
                    }
                    assert_true(share >= 0.75 && share <= 1.35);
                }
                taken *= 0.95 + 0.1 * uniform(&random);
                schedule_cost_update(&cost, &rows, (int64_t)taken);
            }
        }
    }
}

static void cost_forgets_outliers_within_some_steps(void **state) {
    (void)state;
    const struct truth machine = {8000, 1200, 1000, 900};
    uint64_t random = 5;
    struct schedule_cost cost = {0};
    for (int step = 0; step < 200; step++) {
        struct schedule_rows_count rows = random_rows(&random);
        schedule_cost_update(&cost, &rows, (int64_t)duration(&machine, &rows));
    }
    struct schedule_rows_count rows = rows_of(8, 0, 64);
    double usual = duration(&machine, &rows);
    schedule_cost_update(&cost, &rows, (int64_t)(40 * usual));
    assert_int_equal(cost.outliers, 1);
    /* The next step is planned carefully, soon after nothing is left of it. */
    double after = schedule_cost_predict(&cost, &rows);
    assert_true(after > 1.5 * usual && after < 3.5 * usual);
    for (int step = 0; step < 12; step++) {
        schedule_cost_update(&cost, &rows, (int64_t)usual);
    }
    after = schedule_cost_predict(&cost, &rows);
    print_message(
        "12 steps after one of 40 times its duration: %.2f of the truth\n", after / usual
    );
    assert_true(after > 0.9 * usual && after < 1.25 * usual);
    assert_int_equal(cost.load < 1.2, 1);
}

static void cost_follows_a_machine_that_becomes_slower_and_faster(void **state) {
    (void)state;
    const struct truth fast = {8000, 1200, 1000, 900};
    const struct truth slow = {24000, 3600, 3000, 2700};
    uint64_t random = 9;
    struct schedule_cost cost = {0};
    for (int step = 0; step < 100; step++) {
        struct schedule_rows_count rows = random_rows(&random);
        schedule_cost_update(&cost, &rows, (int64_t)duration(&fast, &rows));
    }
    int32_t too_low = 0;
    for (int step = 0; step < 60; step++) {
        struct schedule_rows_count rows = random_rows(&random);
        double taken = duration(&slow, &rows);
        too_low += schedule_cost_predict(&cost, &rows) < 0.75 * taken ? 1 : 0;
        schedule_cost_update(&cost, &rows, (int64_t)taken);
    }
    print_message("three times slower: %d steps were predicted too short\n", too_low);
    assert_true(too_low <= 4);
    int32_t too_high = 0;
    for (int step = 0; step < 200; step++) {
        struct schedule_rows_count rows = random_rows(&random);
        double taken = duration(&fast, &rows);
        too_high += schedule_cost_predict(&cost, &rows) > 1.3 * taken ? 1 : 0;
        schedule_cost_update(&cost, &rows, (int64_t)taken);
    }
    print_message("three times faster: %d steps were predicted too long\n", too_high);
    assert_true(too_high <= 60);
}

/* Thousands of steps of one kind leave the others as they were, and the numbers finite. */
static void cost_of_a_kind_that_does_not_run_stays(void **state) {
    (void)state;
    const struct truth machine = {8000, 1200, 1000, 900};
    uint64_t random = 3;
    struct schedule_cost cost = {0};
    for (int step = 0; step < 200; step++) {
        struct schedule_rows_count rows = random_rows(&random);
        schedule_cost_update(&cost, &rows, (int64_t)duration(&machine, &rows));
    }
    struct schedule_rows_count one = rows_of(1, 0, 0);
    for (int step = 0; step < 20000; step++) {
        double noise = 0.9 + 0.2 * uniform(&random);
        schedule_cost_update(&cost, &one, (int64_t)(noise * duration(&machine, &one)));
    }
    struct schedule_rows_count rows = rows_of(1, 0, 100);
    double share = schedule_cost_predict(&cost, &rows) / duration(&machine, &rows);
    print_message("after 20,000 steps of another kind: %.2f of the truth\n", share);
    assert_true(share > 0.75 && share < 1.5);
}

static void cost_step_us_is_the_mean_of_decoding_steps(void **state) {
    (void)state;
    struct schedule_cost cost = {0};
    struct schedule_rows_count decode = rows_of(4, 0, 0);
    struct schedule_rows_count prefill = rows_of(0, 0, 100);
    for (int step = 0; step < 100; step++) {
        schedule_cost_update(&cost, &decode, 20000);
        schedule_cost_update(&cost, &prefill, 120000);
    }
    assert_true(cost.step_us > 19999 && cost.step_us < 20001);
}

/* ---- ledger
 * ----------------------------------------------------------------------------------- */

static struct schedule_ledger *create_ledger(int32_t agents_max) {
    struct schedule_ledger *ledger = NULL;
    struct error error = {0};
    assert_true(is_ok(schedule_ledger_create(&ledger, agents_max, &error)));
    return ledger;
}

static void ledger_counts_rows_by_agent(void **state) {
    (void)state;
    struct schedule_ledger *ledger = create_ledger(8);
    schedule_ledger_join(ledger, 70);
    schedule_ledger_join(ledger, 5);
    schedule_ledger_join(ledger, 70); /* a second generation */
    schedule_ledger_charge(ledger, 70, 10);
    schedule_ledger_charge(ledger, 5, 3);
    schedule_ledger_charge(ledger, 70, 1);
    assert_int_equal(schedule_ledger_served(ledger, 70), 11);
    assert_int_equal(schedule_ledger_served(ledger, 5), 3);
    schedule_ledger_destroy(ledger);
    schedule_ledger_destroy(NULL);
}

static void ledger_newcomers_start_at_the_least_active(void **state) {
    (void)state;
    struct schedule_ledger *ledger = create_ledger(8);
    schedule_ledger_join(ledger, 1);
    schedule_ledger_join(ledger, 2);
    schedule_ledger_charge(ledger, 1, 1000);
    schedule_ledger_charge(ledger, 2, 600);
    schedule_ledger_join(ledger, 3);
    assert_int_equal(schedule_ledger_served(ledger, 3), 600);
    /* Having been away is no credit ... */
    schedule_ledger_leave(ledger, 3);
    schedule_ledger_charge(ledger, 1, 1000);
    schedule_ledger_charge(ledger, 2, 1000);
    schedule_ledger_join(ledger, 3);
    assert_int_equal(schedule_ledger_served(ledger, 3), 1600);
    /* ... and going away no escape. */
    schedule_ledger_leave(ledger, 1);
    schedule_ledger_join(ledger, 1);
    assert_int_equal(schedule_ledger_served(ledger, 1), 2000);
    schedule_ledger_destroy(ledger);
}

static void ledger_when_all_have_left_the_past_is_settled(void **state) {
    (void)state;
    struct schedule_ledger *ledger = create_ledger(8);
    schedule_ledger_join(ledger, 1);
    schedule_ledger_charge(ledger, 1, 1000000);
    schedule_ledger_leave(ledger, 1);
    schedule_ledger_join(ledger, 2);
    schedule_ledger_join(ledger, 1);
    assert_int_equal(schedule_ledger_served(ledger, 2), schedule_ledger_served(ledger, 1));
    schedule_ledger_destroy(ledger);
}

static void ledger_that_is_full_forgets_inactive_agents(void **state) {
    (void)state;
    struct schedule_ledger *ledger = create_ledger(4);
    for (uint64_t agent = 100; agent > 0; agent--) {
        schedule_ledger_join(ledger, agent);
        schedule_ledger_charge(ledger, agent, 10);
        if (agent % 3 != 0 || agent > 9) { /* 9, 6 and 3 stay */
            schedule_ledger_leave(ledger, agent);
        }
    }
    for (uint64_t agent = 3; agent <= 9; agent += 3) {
        schedule_ledger_charge(ledger, agent, 1); /* asserts that it is active */
    }
    assert_true(schedule_ledger_served(ledger, 9) > schedule_ledger_served(ledger, 12345) - 11);
    schedule_ledger_destroy(ledger);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cost_is_zero_before_the_first_step),
        cmocka_unit_test(cost_after_one_step_predicts_that_step),
        cmocka_unit_test(cost_learns_machines_within_some_steps),
        cmocka_unit_test(cost_forgets_outliers_within_some_steps),
        cmocka_unit_test(cost_follows_a_machine_that_becomes_slower_and_faster),
        cmocka_unit_test(cost_of_a_kind_that_does_not_run_stays),
        cmocka_unit_test(cost_step_us_is_the_mean_of_decoding_steps),
        cmocka_unit_test(ledger_counts_rows_by_agent),
        cmocka_unit_test(ledger_newcomers_start_at_the_least_active),
        cmocka_unit_test(ledger_when_all_have_left_the_past_is_settled),
        cmocka_unit_test(ledger_that_is_full_forgets_inactive_agents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
