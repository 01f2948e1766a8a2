/* Strategies step by step, the clock and the way out: who is started, cancelled, verified and merged in
 * answer to what, and what is said at the end. */
#include "swarm_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct swarm_result *finished(const struct desk *desk) {
    assert_true(swarm_is_finished(desk->swarm));
    assert_int_equal(desk_count(desk, SWARM_DO_FINISH), 1);
    return swarm_result(desk->swarm);
}

static void expect_why(const struct desk *desk, const char *part) {
    if (strstr(swarm_result(desk->swarm)->why, part) == NULL) {
        fail_msg("'%s' does not say '%s'", swarm_result(desk->swarm)->why, part);
    }
}

static struct swarm_options verified_options(const char *strategy, int64_t attempts) {
    struct swarm_options options = desk_options(strategy);
    options.attempts = attempts;
    options.has_verifier = true;
    options.time_ms_max = 100000; /* agents until 75,000 - 1, decided at 95,000 */
    options.verify_ms_max = 20000;
    options.merge_ms_max = 5000;
    options.kill_grace_ms = 2000;
    return options;
}

static void
answer_and_verify(struct desk *desk, size_t node, int64_t lines, enum swarm_verdict verdict) {
    desk_ended(desk, node, SWARM_END_ANSWER, "done", lines);
    assert_non_null(desk_effect_for(desk, SWARM_DO_VERIFY, node));
    desk_verified(desk, node, verdict);
}

/* ---- options ----------------------------------------------------------------------------------- */

static void options_out_of_range_are_named(void **state) {
    (void)state;
    struct error error = {0};
    struct swarm *swarm = NULL;
    struct swarm_options options = verified_options("race", 0);
    assert_int_equal(swarm_create(&swarm, &options, &error).code, RESULT_INVALID_INPUT);
    assert_string_equal(error.message, "0 attempts: race takes 1 to 63");
    options.attempts = 10000;
    assert_true(is_failed(swarm_create(&swarm, &options, &error)));
    assert_string_equal(error.message, "10000 attempts: race takes 1 to 63");
    options.attempts = 2;
    options.has_verifier = false;
    assert_true(is_failed(swarm_create(&swarm, &options, &error)));
    assert_non_null(strstr(error.message, "race needs a verifier"));
    options.has_verifier = true;
    options.nodes_max = SWARM_NODES_MAX + 1;
    assert_true(is_failed(swarm_create(&swarm, &options, &error)));
    options.nodes_max = 0;
    options.time_ms_max = INT64_MAX;
    assert_true(is_failed(swarm_create(&swarm, &options, &error)));
    assert_non_null(strstr(error.message, "at most 30 days"));
    options.time_ms_max = 0;
    options.tokens_max = -1;
    assert_true(is_failed(swarm_create(&swarm, &options, &error)));
    assert_null(swarm);
}

/* ---- race and best-of -------------------------------------------------------------------------- */

static void race_first_that_passes_wins_and_the_rest_stop(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 3);
    options.tokens_max = 30000;
    desk_open(&desk, &options);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 3);
    assert_int_equal(desk_effect(&desk, SWARM_DO_START, 2)->tokens_max, 10000);
    desk_start_all(&desk);
    answer_and_verify(&desk, 2, 9, SWARM_VERIFIED_FAIL);
    answer_and_verify(&desk, 3, 5, SWARM_VERIFIED_PASS);
    assert_non_null(desk_effect_for(&desk, SWARM_DO_CANCEL, 1));
    assert_int_equal(desk_effect(&desk, SWARM_DO_MERGE, 0)->node, 3);
    desk_merged(&desk, 3, SWARM_MERGE_OK);
    assert_false(swarm_is_finished(desk.swarm)); /* the cancelled one has not ended yet */
    desk_ended(&desk, 1, SWARM_END_CANCEL, "", 2);
    assert_int_equal(finished(&desk)->node, 3);
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_PASSED);
    assert_true(swarm_result(desk.swarm)->is_merged);
    assert_string_equal(swarm_result(desk.swarm)->why, "agent-3 passed first: agent-3, verified.");
    desk_at(&desk, 200000);
    assert_int_equal(desk.effects.count, 0);
    desk_close(&desk);
}

static void race_that_nobody_passes_merges_nothing(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 2);
    desk_open(&desk, &options);
    desk_start_all(&desk);
    answer_and_verify(&desk, 1, 9, SWARM_VERIFIED_FAIL);
    answer_and_verify(&desk, 2, 5, SWARM_VERIFIED_FAIL);
    assert_int_equal(finished(&desk)->outcome, SWARM_FAILED);
    assert_int_equal(desk_count(&desk, SWARM_DO_MERGE), 0);
    expect_why(&desk, "no attempt passed: agent-2, which the verifier refuses");
    desk_close(&desk);
}

static void best_of_ranks_those_that_passed(void **state) {
    (void)state;
    struct desk desk;
    static const double scores[] = {0.5, 0.9};
    static const double same[] = {0.5, 0.5};
    for (int round = 0; round < 3; round++) { /* by score; by the shorter diff; without scores */
        struct swarm_options options = verified_options("best-of", 3);
        options.tokens_max = 30000;
        desk_open(&desk, &options);
        int64_t kept = (int64_t)3 * STRATEGY_RANK_TOKENS;
        assert_int_equal(desk_effect(&desk, SWARM_DO_START, 2)->tokens_max, (30000 - kept) / 3);
        desk_start_all(&desk);
        answer_and_verify(&desk, 1, 4, SWARM_VERIFIED_PASS);
        answer_and_verify(&desk, 2, 1, SWARM_VERIFIED_FAIL);
        answer_and_verify(&desk, 3, 6, SWARM_VERIFIED_PASS);
        const struct swarm_effect *rank = desk_effect(&desk, SWARM_DO_RANK, 0);
        assert_int_equal(rank->node_count, 2);
        assert_int_equal(rank->nodes[1], 3);
        assert_int_equal(rank->tokens_max, 2 * STRATEGY_RANK_TOKENS);
        struct swarm_event ranked = {
            .type = SWARM_RANKED, .scores = round == 0 ? scores : same, .tokens = 100};
        ranked.score_count = round == 2 ? 0 : 2;
        desk_event(&desk, ranked);
        size_t expected = round == 0 ? 3 : 1;
        assert_int_equal(desk_effect(&desk, SWARM_DO_MERGE, 0)->node, expected);
        desk_merged(&desk, expected, SWARM_MERGE_CONFLICTS);
        assert_false(finished(&desk)->is_merged);
        expect_why(&desk, "2 of 3 attempts passed");
        expect_why(&desk, "it conflicts with what is there");
        desk_close(&desk);
    }
}

static void best_of_takes_turns_when_there_is_not_room_for_all(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("best-of", 4);
    options.live_max = 2;
    desk_open(&desk, &options);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 2);
    int64_t first = desk_node(&desk, 1)->deadline_ms;
    assert_int_equal(first, 1000 + 75000 / 2);
    desk_start_all(&desk);
    desk_ended(&desk, 1, SWARM_END_ANSWER, "done", 1);
    assert_non_null(desk_effect_for(&desk, SWARM_DO_START, 3));
    assert_int_equal(desk_node(&desk, 3)->deadline_ms, 1000 + 75000);
    desk_close(&desk);
}

static void verifier_that_fails_again_and_again_is_given_up(void **state) {
    (void)state;
    static const enum swarm_verdict faults[] = {
        SWARM_VERIFIED_HUNG, SWARM_VERIFIED_CRASHED, SWARM_VERIFIED_EDITED};
    struct desk desk;
    struct swarm_options options = verified_options("best-of", 5);
    desk_open(&desk, &options);
    desk_start_all(&desk);
    for (size_t i = 0; i < 3; i++) {
        answer_and_verify(&desk, i + 1, 1 + (int64_t)i, faults[i]);
    }
    assert_int_equal(desk_node(&desk, 1)->outcome, SWARM_FAILED); /* hung: its tests do not end */
    assert_int_equal(desk_node(&desk, 2)->outcome, SWARM_UNVERIFIED);
    assert_int_equal(desk_node(&desk, 3)->outcome, SWARM_UNVERIFIED);
    desk_ended(&desk, 4, SWARM_END_ANSWER, "done", 9);
    assert_int_equal(desk_count(&desk, SWARM_DO_VERIFY), 0);
    desk_ended(&desk, 5, SWARM_END_ANSWER, "done", 9);
    assert_int_equal(desk_effect(&desk, SWARM_DO_RANK, 0)->node_count, 4);
    desk_event(&desk, (struct swarm_event){.type = SWARM_RANKED});
    desk_merged(&desk, 2, SWARM_MERGE_OK);
    assert_int_equal(finished(&desk)->node, 2);
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_UNVERIFIED);
    expect_why(&desk, "The verifier failed again and again");
    desk_close(&desk);
}

/* ---- time and the way out ---------------------------------------------------------------------- */

static void deadline_returns_the_best_that_was_verified(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("best-of", 3);
    desk_open(&desk, &options);
    desk_start_all(&desk);
    answer_and_verify(&desk, 2, 8, SWARM_VERIFIED_PASS);
    desk_at(&desk, 1000 + 60000); /* 80 % of the agents' time */
    assert_int_equal(desk_count(&desk, SWARM_DO_TELL), 2);
    assert_int_equal(desk_effect(&desk, SWARM_DO_TELL, 0)->tell, SWARM_TELL_WRAP_UP);
    desk_at(&desk, 1000 + 75000);
    assert_int_equal(desk_count(&desk, SWARM_DO_CANCEL), 2);
    desk_ended(&desk, 1, SWARM_END_CANCEL, "almost", 3); /* cut off, and still worth a look */
    assert_non_null(desk_effect_for(&desk, SWARM_DO_VERIFY, 1));
    assert_int_equal(desk_effect_for(&desk, SWARM_DO_VERIFY, 1)->time_ms_max, 20000);
    desk_at(&desk, 1000 + 77000);
    assert_int_equal(desk_node(&desk, 3)->outcome, SWARM_LOST);
    desk_at(&desk, 1000 + 95000);
    assert_non_null(desk_effect_for(&desk, SWARM_DO_CANCEL_VERIFY, 1));
    assert_int_equal(desk_effect(&desk, SWARM_DO_MERGE, 0)->node, 2);
    desk_at(&desk, 1000 + 100000); /* the merge does not come back */
    assert_int_equal(finished(&desk)->node, 2);
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_PASSED);
    expect_why(&desk, "the time is up: agent-2, verified. The merge did not end in time.");
    expect_why(&desk, "1 agents did not end when told");
    assert_false(swarm_result(desk.swarm)->is_merged);
    desk_merged(&desk, 2, SWARM_MERGE_OK); /* it does after all: the workspace has it */
    assert_int_equal(desk.effects.count, 0);
    assert_true(swarm_result(desk.swarm)->is_merged);
    assert_true(desk_node(&desk, 2)->is_merged);
    expect_why(&desk, "the time is up: agent-2, verified. 1 agents");
    desk_close(&desk);
}

static void budget_of_one_second_ends_in_time(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 4);
    options.time_ms_max = 1000;
    desk_open(&desk, &options);
    assert_true(desk_node(&desk, 1)->deadline_ms < 2000);
    desk_start_all(&desk);
    desk_at(&desk, 1950);
    assert_true(swarm_is_ending(desk.swarm));
    desk_at(&desk, 4000);
    assert_int_equal(finished(&desk)->node, SWARM_NONE);
    expect_why(&desk, "there is no result");
    desk_close(&desk);
}

static void sixty_four_that_do_not_die_do_not_hold_it_up(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 64);
    options.time_ms_max = 60000;
    options.nodes_max = 65;
    options.live_max = 64;
    options.tokens_max = 64000;
    desk_open(&desk, &options);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 64);
    desk_start_all(&desk);
    desk_at(&desk, 1000 + 45000);
    assert_int_equal(desk_count(&desk, SWARM_DO_CANCEL), 64);
    desk_at(&desk, 1000 + 47000); /* the grace is over */
    assert_int_equal(finished(&desk)->node, SWARM_NONE);
    expect_why(&desk, "64 agents did not end when told");
    /* Nobody knows what they have used, so all of it counts as used. */
    assert_int_equal(budget_left(swarm_budget(desk.swarm), BUDGET_ROOT).of[BUDGET_TOKENS], 0);
    desk_close(&desk);
}

static void interrupt_ends_all_and_merges_nothing(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("best-of", 2);
    desk_open(&desk, &options);
    desk_start_all(&desk);
    answer_and_verify(&desk, 1, 8, SWARM_VERIFIED_PASS);
    desk_event(&desk, (struct swarm_event){.type = SWARM_INTERRUPT});
    assert_non_null(desk_effect_for(&desk, SWARM_DO_CANCEL, 2));
    assert_int_equal(desk_count(&desk, SWARM_DO_MERGE), 0);
    desk_ended(&desk, 2, SWARM_END_CANCEL, "", 0);
    assert_int_equal(finished(&desk)->node, 1);
    expect_why(&desk, "interrupted: agent-1, verified. Not merged, since it was interrupted.");
    desk_close(&desk);
}

static void full_disk_starts_nobody_else(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 3);
    options.live_max = 1;
    desk_open(&desk, &options);
    desk_start_all(&desk);
    desk_event(&desk, (struct swarm_event){.type = SWARM_DISK_FULL});
    assert_int_equal(desk_node(&desk, 3)->outcome, SWARM_FAILED);
    assert_true(
        view_equals_text(buffer_view(&desk_node(&desk, 3)->detail), "not started: the disk is full")
    );
    answer_and_verify(&desk, 1, 1, SWARM_VERIFIED_PASS); /* what runs goes on */
    desk_merged(&desk, 1, SWARM_MERGE_OK);
    assert_int_equal(finished(&desk)->outcome, SWARM_PASSED);
    desk_close(&desk);
}

static void lost_engine_keeps_what_is_there(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("single", 1);
    desk_open(&desk, &options);
    desk_start_all(&desk);
    desk_event(
        &desk,
        (struct swarm_event){.type = SWARM_ENGINE_LOST, .detail = view_of_text("device lost")}
    );
    desk_ended(&desk, 1, SWARM_END_FAULT, "", 4);
    desk_merged(&desk, 1, SWARM_MERGE_OK);
    assert_int_equal(finished(&desk)->outcome, SWARM_UNVERIFIED);
    expect_why(&desk, "the engine failed: device lost: agent-1, not verified");
    desk_close(&desk);
}

static void runaways_are_cut_and_their_share_comes_back(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("race", 4);
    options.tokens_max = 40000;
    desk_open(&desk, &options);
    desk_start_all(&desk);
    for (int i = 0; i < SWARM_LOOP_TURNS; i++) {
        assert_int_equal(desk_node(&desk, 1)->cut, SWARM_CUT_NONE);
        desk_turn(&desk, 1, 100, 77);
    }
    assert_int_equal(desk_node(&desk, 1)->cut, SWARM_CUT_LOOP);
    for (uint64_t i = 1; i <= SWARM_TWIN_TURNS; i++) {
        desk_turn(&desk, 2, 100, 1000 + i);
        assert_int_equal(desk_node(&desk, 3)->cut, SWARM_CUT_NONE);
        desk_turn(&desk, 3, 100, i == 3 ? 9 : 1000 + i); /* once it did something else */
    }
    assert_int_equal(desk_node(&desk, 3)->cut, SWARM_CUT_NONE);
    for (uint64_t i = 4; i <= SWARM_TWIN_TURNS + 4; i++) {
        desk_turn(&desk, 2, 100, 2000 + i);
        desk_turn(&desk, 3, 100, 2000 + i);
    }
    assert_int_equal(desk_node(&desk, 3)->cut, SWARM_CUT_TWIN);
    assert_int_equal(desk_node(&desk, 3)->twin, 2);
    desk_turn(&desk, 4, 10001, 5);
    assert_int_equal(desk_node(&desk, 4)->cut, SWARM_CUT_BUDGET);
    desk_ended(&desk, 1, SWARM_END_CANCEL, "", 0);
    assert_int_equal(budget_left(swarm_budget(desk.swarm), BUDGET_ROOT).of[BUDGET_TOKENS], 9600);
    desk_close(&desk);
}

/* ---- staged ------------------------------------------------------------------------------------ */

static void staged_goes_on_with_fewer_at_higher_effort(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("staged", 4);
    options.effort = 100;
    options.effort_may_vary = true;
    options.tokens_max = 120000;
    desk_open(&desk, &options);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 4);
    assert_int_equal(desk_effect(&desk, SWARM_DO_START, 3)->tokens_max, 10000);
    assert_int_equal(desk_node(&desk, 1)->effort, 50);
    assert_int_equal(desk_node(&desk, 1)->deadline_ms, 1000 + 75000 / 3);
    desk_start_all(&desk);
    for (size_t i = 1; i <= 4; i++) {
        answer_and_verify(&desk, i, 1, SWARM_VERIFIED_FAIL);
    }
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 2);
    assert_int_equal(desk_effect(&desk, SWARM_DO_START, 0)->tokens_max, 30000);
    assert_int_equal(desk_node(&desk, 5)->effort, 75);
    struct view brief = buffer_view(&desk_node(&desk, 5)->brief);
    assert_true(view_find(brief, view_of_text("agent-3 (failed)"), 0) != SIZE_MAX);
    assert_true(view_find(brief, view_of_text("2 tests failed"), 0) != SIZE_MAX);
    desk_start_all(&desk);
    answer_and_verify(&desk, 5, 1, SWARM_VERIFIED_FAIL);
    answer_and_verify(&desk, 6, 1, SWARM_VERIFIED_FAIL);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
    assert_int_equal(desk_node(&desk, 7)->effort, 100);
    desk_start_all(&desk);
    answer_and_verify(&desk, 7, 1, SWARM_VERIFIED_FAIL);
    assert_int_equal(finished(&desk)->outcome, SWARM_FAILED);
    expect_why(&desk, "no attempt passed in 3 stages");
    desk_close(&desk);
}

static void effort_stays_where_the_model_was_not_trained_for_it(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("staged", 1);
    options.effort = 100;
    options.tokens_max = 3000;
    desk_open(&desk, &options);
    assert_int_equal(desk_node(&desk, 1)->effort, 100);
    desk_start_all(&desk);
    desk_turn(&desk, 1, 900, 1); /* nearly all of its share in one turn */
    assert_int_equal(desk_count(&desk, SWARM_DO_SET_EFFORT), 0);
    assert_int_equal(desk_count(&desk, SWARM_DO_TELL), 1);
    desk_close(&desk);
    options.effort_may_vary = true;
    desk_open(&desk, &options);
    desk_start_all(&desk);
    desk_turn(&desk, 1, 900, 1);
    assert_int_equal(desk_effect_for(&desk, SWARM_DO_SET_EFFORT, 1)->effort, 25);
    desk_close(&desk);
}

/* ---- auto -------------------------------------------------------------------------------------- */

static void auto_chooses_and_says_why(void **state) {
    (void)state;
    static const char list[] = "Do this:\n- a parser\n- a printer\n 3. tests\n";
    const struct strategy_facts usual = {
        .task = {(const unsigned char *)"mend it", 7},
        .has_verifier = true,
        .time_ms = 600000,
        .tokens = BUDGET_NO_LIMIT,
        .memory_bytes = BUDGET_NO_LIMIT,
        .attempts = SWARM_ATTEMPTS_DEFAULT,
        .live_max = 8,
    };
    struct strategy_facts facts[9];
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        facts[i] = usual;
    }
    facts[1].has_verifier = false;
    facts[2].time_ms = 1000;
    facts[3].tokens = 10000;
    facts[4].memory_bytes = 100;
    facts[4].node_memory_bytes = 60;
    facts[5].task = view_of_text(list);
    facts[6].effort_may_vary = true;
    facts[6].tokens = 100000;
    facts[7].attempts = 1;
    facts[8].tokens = 20000;
    static const char *const expected[] = {
        "race: a verifier is there: the first of 4",
        "best-of: 4 attempts, ranked, since no verifier",
        "single: 1000 ms are too short",
        "single: 10000 tokens are too few",
        "single: memory suffices for one agent",
        "plan: the task lists 3 parts",
        "staged: a verifier is there and tokens are few: 4",
        "single: one agent was asked for",
        "race: a verifier is there: the first of 2",
    };
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        struct strategy_choice choice = {0};
        strategy_choose(&facts[i], &choice);
        if (strncmp(choice.why, expected[i], strlen(expected[i])) != 0) {
            fail_msg("%zu: %s", i, choice.why);
        }
        assert_int_equal(
            strncmp(choice.why, choice.strategy->name, strlen(choice.strategy->name)), 0
        );
        assert_true(choice.attempts >= choice.strategy->attempts_min);
    }
    assert_null(strategy_find(view_of_text("auto")));
    assert_ptr_equal(strategy_find(view_of_text("race")), &strategy_race);
}

/* ---- retries ----------------------------------------------------------------------------------- */

static void retries_go_on_alone_until_one_passes(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("retries", 3);
    options.tokens_max = 1000;
    desk_open(&desk, &options);
    for (size_t node = 1; node <= 3; node++) {
        assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
        int64_t left = 1000 - 100 * ((int64_t)node - 1);
        assert_int_equal(desk_effect(&desk, SWARM_DO_START, 0)->tokens_max, left); /* all of it */
        desk_start_all(&desk);
        desk_turn(&desk, node, 100, node);
        assert_int_equal(swarm_live(desk.swarm), 1);
        answer_and_verify(&desk, node, 2, node == 3 ? SWARM_VERIFIED_PASS : SWARM_VERIFIED_FAIL);
    }
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 0);
    assert_true(desk_node(&desk, 1)->seed != desk_node(&desk, 2)->seed);
    desk_merged(&desk, 3, SWARM_MERGE_OK);
    assert_int_equal(finished(&desk)->node, 3);
    expect_why(&desk, "attempt 3 passed: agent-3, verified");
    desk_close(&desk);
}

static void retries_end_with_attempts_tokens_and_the_verifier(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = verified_options("retries", 2);
    desk_open(&desk, &options);
    for (size_t node = 1; node <= 2; node++) {
        desk_start_all(&desk);
        answer_and_verify(&desk, node, 2, SWARM_VERIFIED_FAIL);
    }
    assert_int_equal(finished(&desk)->outcome, SWARM_FAILED);
    expect_why(&desk, "no attempt of 2 passed");
    desk_close(&desk);

    options = verified_options("retries", SWARM_ATTEMPTS_DEFAULT);
    options.tokens_max = SWARM_CHILD_TOKENS_MIN + 100;
    desk_open(&desk, &options);
    desk_start_all(&desk);
    desk_turn(&desk, 1, 101, 1);
    answer_and_verify(&desk, 1, 2, SWARM_VERIFIED_FAIL);
    assert_int_equal(finished(&desk)->outcome, SWARM_FAILED);
    expect_why(&desk, "1 attempts, then none was started");
    desk_close(&desk);

    options = verified_options("retries", SWARM_ATTEMPTS_DEFAULT);
    desk_open(&desk, &options);
    for (size_t node = 1; node <= SWARM_VERIFIER_FAULTS_MAX; node++) {
        desk_start_all(&desk);
        answer_and_verify(&desk, node, 2, SWARM_VERIFIED_CRASHED);
    }
    desk_merged(&desk, 1, SWARM_MERGE_OK);
    assert_int_equal(finished(&desk)->outcome, SWARM_UNVERIFIED);
    expect_why(&desk, "nobody can say whether an attempt passes");
    desk_close(&desk);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(race_first_that_passes_wins_and_the_rest_stop),
        cmocka_unit_test(race_that_nobody_passes_merges_nothing),
        cmocka_unit_test(best_of_ranks_those_that_passed),
        cmocka_unit_test(best_of_takes_turns_when_there_is_not_room_for_all),
        cmocka_unit_test(verifier_that_fails_again_and_again_is_given_up),
        cmocka_unit_test(deadline_returns_the_best_that_was_verified),
        cmocka_unit_test(budget_of_one_second_ends_in_time),
        cmocka_unit_test(sixty_four_that_do_not_die_do_not_hold_it_up),
        cmocka_unit_test(interrupt_ends_all_and_merges_nothing),
        cmocka_unit_test(full_disk_starts_nobody_else),
        cmocka_unit_test(lost_engine_keeps_what_is_there),
        cmocka_unit_test(runaways_are_cut_and_their_share_comes_back),
        cmocka_unit_test(staged_goes_on_with_fewer_at_higher_effort),
        cmocka_unit_test(effort_stays_where_the_model_was_not_trained_for_it),
        cmocka_unit_test(auto_chooses_and_says_why),
        cmocka_unit_test(retries_go_on_alone_until_one_passes),
        cmocka_unit_test(retries_end_with_attempts_tokens_and_the_verifier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
