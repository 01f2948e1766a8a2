/* The controller of drafts: tables of its rules, and whether it earns what the best fixed number of
 * drafts would, for many acceptances and prices. */
#include "engine/speculation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A step of 10 ms alone, 1 ms a row more. */
static const struct speculation_price cheap = {.step_us = 10000, .row_us = 1000, .tokens = 1};

static void feed(struct speculation *speculation, int32_t grade, int32_t kept, int32_t tried) {
    for (int32_t i = 0; i < tried; i++) {
        int32_t accepted = i < kept ? 1 : 0;
        speculation_update(speculation, SPECULATION_LOOKUP, grade, 1, accepted);
    }
}

static int32_t decide(struct speculation *speculation, int32_t grade, int32_t most) {
    return speculation_decide(speculation, SPECULATION_LOOKUP, grade, most, &cheap);
}

static void speculation_lookup_grades_rise_with_agreement(void **state) {
    (void)state;
    static const struct {
        int32_t matched, grade;
    } cases[] = {
        {0, 0},
        {2, 0},
        {3, 1},
        {4, 2},
        {5, 2},
        {6, 3},
        {8, 4},
        {12, 5},
        {19, 5},
        {20, 6},
        {40, 7},
        {64, 7},
        {9999, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(speculation_grade_lookup(cases[i].matched), cases[i].grade);
    }
}

static void speculation_stage_grades_take_any_confidence(void **state) {
    (void)state;
    assert_int_equal(speculation_grade_stages(0), 0);
    assert_int_equal(speculation_grade_stages(0.5F), 4);
    assert_int_equal(speculation_grade_stages(1), SPECULATION_GRADES - 1);
    assert_int_equal(speculation_grade_stages(1e30F), SPECULATION_GRADES - 1);
    assert_int_equal(speculation_grade_stages(-1), 0);
    assert_int_equal(speculation_grade_stages(__builtin_nanf("")), 0);
}

static void speculation_acceptance_is_measured_by_grade_and_source(void **state) {
    (void)state;
    struct speculation speculation = {0};
    double before = speculation_acceptance(&speculation, SPECULATION_STAGES, 3);
    feed(&speculation, 3, 0, 100);
    assert_true(speculation_acceptance(&speculation, SPECULATION_LOOKUP, 3) < 0.08);
    assert_true(speculation_acceptance(&speculation, SPECULATION_LOOKUP, 4) > 0.7);
    assert_true(speculation_acceptance(&speculation, SPECULATION_STAGES, 3) == before);
    feed(&speculation, 3, 100, 100); /* what is long ago fades */
    assert_true(speculation_acceptance(&speculation, SPECULATION_LOOKUP, 3) > 0.7);
}

static void speculation_drafts_behind_a_rejected_one_are_not_judged(void **state) {
    (void)state;
    struct speculation a = {0};
    struct speculation b = {0};
    speculation_update(&a, SPECULATION_LOOKUP, 2, 8, 1);
    speculation_update(&b, SPECULATION_LOOKUP, 2, 2, 1);
    assert_true(
        speculation_acceptance(&a, SPECULATION_LOOKUP, 2) ==
        speculation_acceptance(&b, SPECULATION_LOOKUP, 2)
    );
    const struct speculation before = a;
    speculation_update(&a, SPECULATION_LOOKUP, 2, 0, 0);
    speculation_update(&a, SPECULATION_NONE, 2, 5, 5);
    assert_memory_equal(&a, &before, sizeof a);
}

static void speculation_more_acceptance_asks_for_more_drafts(void **state) {
    (void)state;
    int32_t last = 0;
    for (int32_t kept = 0; kept <= 100; kept += 10) {
        struct speculation speculation = {0};
        for (int32_t i = 0; i < 1000; i++) {
            speculation_update(&speculation, SPECULATION_LOOKUP, 0, 1, i * 37 % 100 < kept);
        }
        int32_t count = decide(&speculation, 0, 16);
        assert_true(count >= last);
        last = count;
        if (kept == 0) {
            assert_int_equal(count, 0);
        }
    }
    assert_int_equal(last, 16);
}

static void speculation_dear_rows_ask_for_fewer_drafts(void **state) {
    (void)state;
    int32_t last = 17;
    for (double row_us = 50; row_us < 40000; row_us *= 2) {
        struct speculation speculation = {0};
        struct speculation_price price = {.step_us = 10000, .row_us = row_us, .tokens = 1};
        int32_t count = speculation_decide(&speculation, SPECULATION_LOOKUP, 4, 16, &price);
        assert_true(count <= last);
        last = count;
    }
    assert_int_equal(last, 0);
}

/* In a step that many share a row costs a part of what a token costs there. */
static void speculation_in_a_full_step_only_sure_drafts_pay(void **state) {
    (void)state;
    struct speculation_price alone = {.step_us = 10000, .row_us = 1000, .tokens = 1};
    struct speculation_price shared = {.step_us = 74000, .row_us = 1000, .tokens = 64};
    struct speculation speculation = {0};
    assert_true(speculation_decide(&speculation, SPECULATION_LOOKUP, 0, 8, &alone) > 0);
    assert_int_equal(speculation_decide(&speculation, SPECULATION_LOOKUP, 0, 8, &shared), 0);
    assert_true(speculation_decide(&speculation, SPECULATION_LOOKUP, 7, 8, &shared) > 0);
}

static void speculation_proposals_that_cost_more_than_they_give_are_not_made(void **state) {
    (void)state;
    struct speculation_price price = cheap;
    struct speculation speculation = {0};
    assert_true(speculation_decide(&speculation, SPECULATION_STAGES, 5, 5, &price) > 0);
    price.propose_us = 30000;
    assert_int_equal(speculation_decide(&speculation, SPECULATION_STAGES, 5, 5, &price), 0);
}

static void speculation_without_source_or_room_asks_for_nothing(void **state) {
    (void)state;
    struct speculation speculation = {0};
    assert_int_equal(speculation_decide(&speculation, SPECULATION_NONE, 0, 8, &cheap), 0);
    assert_int_equal(decide(&speculation, 7, 0), 0);
    assert_int_equal(decide(&speculation, 7, 1), 1);
    struct speculation_price free_rows = {0}; /* nothing measured: no division by zero */
    assert_int_equal(
        speculation_decide(&speculation, SPECULATION_LOOKUP, 7, 1000, &free_rows),
        SPECULATION_DRAFT_MAX
    );
}

static void speculation_that_does_not_pay_is_probed_less_and_less(void **state) {
    (void)state;
    struct speculation speculation = {0};
    feed(&speculation, 0, 0, 200);
    int32_t at[8];
    int32_t probes = 0;
    for (int32_t chance = 1; chance <= 1200 && probes < 8; chance++) {
        int32_t count = decide(&speculation, 0, 8);
        if (count > 0) {
            assert_int_equal(count, 2);
            speculation_update(&speculation, SPECULATION_LOOKUP, 0, count, 0);
            at[probes++] = chance;
        }
    }
    static const int32_t want[] = {16, 48, 112, 240, 496, 752, 1008};
    assert_int_equal(probes, 7);
    for (int32_t i = 0; i < probes; i++) {
        assert_int_equal(at[i], want[i]);
    }
}

static void speculation_that_pays_again_comes_back(void **state) {
    (void)state;
    struct speculation speculation = {0};
    feed(&speculation, 0, 0, 500);
    int32_t chances = 0;
    int32_t drafts = 0;
    while (drafts < 4 && chances < 10000) { /* from now on all are accepted */
        drafts = decide(&speculation, 0, 8);
        speculation_update(&speculation, SPECULATION_LOOKUP, 0, drafts, drafts);
        chances++;
    }
    print_message("back after %d chances\n", chances);
    assert_true(chances < 4000);
    struct speculation_grade *grade = &speculation.lookup[0];
    assert_int_equal(grade->interval, 0); /* the next time it waits shortly */
}

/* ---- what it earns
 * ---------------------------------------------------------------------------- */

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int32_t accept(uint64_t *random, double acceptance, int32_t drafted) {
    int32_t accepted = 0;
    while (accepted < drafted && (double)(next(random) >> 11) / 9007199254740992.0 < acceptance) {
        accepted++;
    }
    return accepted;
}

/* Tokens per second of 4,000 steps; fixed < 0: by the controller. */
static double earn(double acceptance, const struct speculation_price *price, int32_t fixed) {
    uint64_t random = 4242;
    struct speculation speculation = {0};
    double tokens = 0;
    double us = 0;
    for (int32_t step = 0; step < 4000; step++) {
        int32_t count =
            fixed >= 0 ? fixed : speculation_decide(&speculation, SPECULATION_LOOKUP, 2, 12, price);
        int32_t accepted = accept(&random, acceptance, count);
        speculation_update(&speculation, SPECULATION_LOOKUP, 2, count, accepted);
        tokens += price->tokens + accepted;
        us += price->step_us + count * price->row_us + (count > 0 ? price->propose_us : 0);
    }
    return tokens / us * 1e6;
}

static void speculation_earns_nearly_what_the_best_fixed_number_does(void **state) {
    (void)state;
    static const struct speculation_price prices[] = {
        {.step_us = 10000, .row_us = 200, .tokens = 1},
        {.step_us = 10000, .row_us = 1000, .tokens = 1},
        {.step_us = 10000, .row_us = 5000, .tokens = 1},
        {.step_us = 30000, .row_us = 1000, .tokens = 16},
        {.step_us = 10000, .row_us = 1000, .propose_us = 3000, .tokens = 1},
    };
    double worst = 1;
    for (size_t p = 0; p < sizeof prices / sizeof prices[0]; p++) {
        for (double acceptance = 0; acceptance < 0.99; acceptance += 0.1) {
            double best = 0;
            for (int32_t fixed = 0; fixed <= 12; fixed++) {
                double earned = earn(acceptance, &prices[p], fixed);
                best = earned > best ? earned : best;
            }
            double share = earn(acceptance, &prices[p], -1) / best;
            worst = share < worst ? share : worst;
            if (share < 0.95) {
                print_message("price %zu, acceptance %.1f: %.3f\n", p, acceptance, share);
            }
            assert_true(share >= 0.95);
        }
    }
    print_message("at least %.3f of the best fixed number\n", worst);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speculation_lookup_grades_rise_with_agreement),
        cmocka_unit_test(speculation_stage_grades_take_any_confidence),
        cmocka_unit_test(speculation_acceptance_is_measured_by_grade_and_source),
        cmocka_unit_test(speculation_drafts_behind_a_rejected_one_are_not_judged),
        cmocka_unit_test(speculation_more_acceptance_asks_for_more_drafts),
        cmocka_unit_test(speculation_dear_rows_ask_for_fewer_drafts),
        cmocka_unit_test(speculation_in_a_full_step_only_sure_drafts_pay),
        cmocka_unit_test(speculation_proposals_that_cost_more_than_they_give_are_not_made),
        cmocka_unit_test(speculation_without_source_or_room_asks_for_nothing),
        cmocka_unit_test(speculation_that_does_not_pay_is_probed_less_and_less),
        cmocka_unit_test(speculation_that_pays_again_comes_back),
        cmocka_unit_test(speculation_earns_nearly_what_the_best_fixed_number_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
