/* Decisions of the scheduler as tables: slack, admission, slots, rows. Any state is in
 * test_schedule_random.c, long runs in test_schedule_simulation.c, costs in test_schedule_cost.c. */
#include "schedule_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct schedule_sequence *add_decoding(struct world *world) {
    struct schedule_sequence *sequence = world_add(world, SCHEDULE_ACTIVE);
    sequence->is_decoding = true;
    sequence->tokens_left = 100;
    return sequence;
}

static struct schedule_sequence *add_prompt(struct world *world, int32_t rows) {
    struct schedule_sequence *sequence = world_add(world, SCHEDULE_ACTIVE);
    sequence->rows_left = rows;
    return sequence;
}

static struct schedule_sequence *add_queued(struct world *world, int32_t blocks) {
    struct schedule_sequence *sequence = world_add(world, SCHEDULE_QUEUED);
    sequence->blocks_needed = blocks;
    return sequence;
}

/* `want` as "2 0 1". */
static void assert_list(const int32_t *list, int32_t count, const char *want) {
    char text[1024] = "";
    size_t length = 0;
    for (int32_t i = 0; i < count; i++) {
        int wrote = snprintf(text + length, sizeof text - length, i == 0 ? "%d" : " %d", list[i]);
        length += (size_t)wrote;
        assert_true(length < sizeof text);
    }
    assert_string_equal(text, want);
}

/* `want` as "2:1 0:1+3 5:70": index, rows and drafts among them. */
static void assert_entries(const struct schedule_step *step, const char *want) {
    char text[1024] = "";
    size_t length = 0;
    for (int32_t i = 0; i < step->entry_count; i++) {
        const struct schedule_entry *entry = &step->entries[i];
        assert_int_equal(entry->number, 1000 + entry->index);
        int wrote = snprintf(
            text + length,
            sizeof text - length,
            "%s%d:%d",
            i == 0 ? "" : " ",
            entry->index,
            entry->rows - entry->drafted
        );
        length += (size_t)wrote;
        if (entry->drafted > 0) {
            wrote = snprintf(text + length, sizeof text - length, "+%d", entry->drafted);
            length += (size_t)wrote;
        }
        assert_true(length < sizeof text);
    }
    assert_string_equal(text, want);
}

static int32_t rows_of(const struct world *world, int32_t index) {
    for (int32_t i = 0; i < world->step.entry_count; i++) {
        if (world->step.entries[i].index == index) {
            return world->step.entries[i].rows;
        }
    }
    return 0;
}

/* ---- slack
 * ------------------------------------------------------------------------------------ */

static void slack_is_what_is_left_after_the_estimated_rest(void **state) {
    (void)state;
    struct world *world = world_create();
    static const struct {
        int64_t deadline_us;
        int32_t rows, tokens;
        int64_t want;
    } cases[] = {
        {0, 1000, 1000, SCHEDULE_SLACK_NONE},
        {NOW + 5 * SECOND, 0, 0, 5 * SECOND},
        {NOW + 5 * SECOND, 4000, 0, 4 * SECOND},   /* 4,000 rows of 0.25 ms */
        {NOW + 5 * SECOND, 4000, 100, 2 * SECOND}, /* 100 steps of 20 ms */
        {NOW + 5 * SECOND, 4000, 1000000, 0},      /* cannot be met: no less than zero */
        {NOW - 5 * SECOND, 0, 0, 0},               /* over */
        {1, 0, 0, 0},
        {9000000 * (int64_t)SECOND, 0, 0, 9000000 * (int64_t)SECOND - NOW},
        {INT64_MAX, 0, 0, SCHEDULE_SLACK_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct schedule_sequence sequence = {
            .deadline_us = cases[i].deadline_us,
            .rows_left = cases[i].rows,
            .tokens_left = cases[i].tokens,
        };
        int64_t slack = schedule_slack(&world->machine, &sequence);
        int64_t error = slack - cases[i].want;
        assert_true(error >= -2000 && error <= 2000); /* doubles hold 53 bits */
    }
    world_destroy(world);
}

/* ---- admission
 * -------------------------------------------------------------------------------- */

static void admission_says_run_wait_or_refuse_with_numbers(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.blocks_promised = 60;
    struct error error = {0};
    assert_int_equal(schedule_admits(&world->machine, 40), SCHEDULE_RUN);
    assert_true(is_ok(schedule_admits_checked(&world->machine, 40, &error)));
    assert_int_equal(schedule_admits(&world->machine, 41), SCHEDULE_WAIT);
    assert_int_equal(schedule_admits_checked(&world->machine, 41, &error).code, RESULT_LIMIT);
    assert_string_equal(
        error.message, "needs 41 blocks, but 60 of 100 are taken or promised: 1 short"
    );
    assert_int_equal(schedule_admits(&world->machine, 100), SCHEDULE_WAIT);
    assert_int_equal(schedule_admits(&world->machine, 101), SCHEDULE_REFUSE);
    assert_int_equal(schedule_admits_checked(&world->machine, 101, &error).code, RESULT_LIMIT);
    assert_string_equal(error.message, "needs 101 blocks, but there are 100 in all");
    world_destroy(world);
}

static void admission_takes_who_fits_in_order(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.blocks_promised = 50;
    add_queued(world, 20);
    add_queued(world, 20)->served = -1;
    add_queued(world, 5)->deadline_us = NOW + 9 * SECOND;
    add_queued(world, 20);
    add_decoding(world);
    world_add(world, SCHEDULE_PARKED)->blocks_needed = 1;
    decide_admission(world);
    /* Slack, service, age; the last is short of 15. */
    assert_list(world->step.admit, world->step.admit_count, "2 1 0");
    assert_int_equal(world->step.blocked, 3);
    world_destroy(world);
}

static void admission_small_ones_pass_a_large_one_for_a_while(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.blocks_promised = 50;
    struct schedule_sequence *large = add_queued(world, 80);
    add_queued(world, 10);
    add_queued(world, 10);
    large->since_us = NOW - SCHEDULE_PASS_US + 1;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1 2");
    assert_int_equal(world->step.blocked, 0);
    large->since_us = NOW - SCHEDULE_PASS_US;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1"); /* nobody else would ever run */
    assert_int_equal(world->step.blocked, 0);
    add_decoding(world);
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "");
    assert_int_equal(world->step.blocked, 0);
    world->machine.blocks_promised = 20;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "0");
    assert_int_equal(world->step.blocked, 1);
    world_destroy(world);
}

static void admission_after_patience_comes_before_deadlines(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.blocks_promised = 50;
    add_queued(world, 40)->deadline_us = NOW + SECOND;
    struct schedule_sequence *old = add_queued(world, 40);
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "0");
    old->since_us = NOW - SCHEDULE_PATIENCE_US;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1");
    world_destroy(world);
}

static void admission_one_that_never_fits_blocks_nobody(void **state) {
    (void)state;
    struct world *world = world_create();
    add_queued(world, 101)->since_us = 0;
    add_queued(world, 100);
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1");
    assert_int_equal(world->step.blocked, -1);
    world_destroy(world);
}

/* ---- slots
 * ------------------------------------------------------------------------------------ */

static void slots_that_are_free_go_to_the_waiting_in_order(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.slots_free = 2;
    world_add(world, SCHEDULE_PARKED);
    world_add(world, SCHEDULE_PARKED)->is_restoring = true;
    world_add(world, SCHEDULE_PARKED)->deadline_us = NOW + 60 * (int64_t)SECOND;
    world_add(world, SCHEDULE_PARKED)->served = -5;
    world_add(world, SCHEDULE_QUEUED)->deadline_us = NOW + SECOND;
    add_decoding(world);
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "2 3");
    assert_int_equal(world->step.preempt_count, 0);
    world->machine.slots_free = 64;
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "2 3 0");
    world_destroy(world);
}

/* One holder, one that waits, no free slot: who has it afterwards? */
static void slots_change_hands_only_for_a_reason(void **state) {
    (void)state;
    const int64_t s = SECOND;
    static const int64_t none = 0;
    const struct {
        const char *what;
        int64_t deadline, waited, served; /* of the waiting one */
        int64_t holder_deadline, held, holder_served;
        bool is_fixed, changes;
    } cases[] = {
        {"nobody is more urgent", none, s, 0, none, 10 * s, 0, false, false},
        {"its turn", none, 2 * s, 0, none, 2 * s, 0, false, true},
        {"its turn, the holder's is not over", none, 9 * s, 0, none, 2 * s - 1, 0, false, false},
        {"waited less than a turn", none, 2 * s - 1, 0, none, 9 * s, 0, false, false},
        {"its turn, but was served more", none, 9 * s, 11, none, 9 * s, 10, false, false},
        {"its turn, the holder presses", none, 9 * s, 0, 4 * s, 9 * s, 0, false, false},
        {"presses", 3 * s, 0, 99, none, s / 5, 0, false, true},
        {"presses, the holder has just got it", 3 * s, 0, 0, none, s / 5 - 1, 0, false, false},
        {"presses, the holder nearly as much", 3 * s, 0, 0, 4 * s, 9 * s, 0, false, false},
        {"presses, the holder less", 3 * s, 0, 0, 4 * s + 1, 9 * s, 0, false, true},
        {"both are late", 1, 0, 0, 1, 9 * s, 9, false, false},
        {"does not press yet", 6 * s, 0, 0, none, 9 * s, 0, false, false},
        {"presses, the window cannot be parked", 3 * s, 0, 0, none, 9 * s, 0, true, false},
        {"waited beyond patience", none, 20 * s, 99, 2 * s, 2 * s, 0, false, true},
        {"waited beyond patience, no turn yet", none, 20 * s, 0, none, 2 * s - 1, 0, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world *world = world_create();
        struct schedule_sequence *holder = add_decoding(world);
        struct schedule_sequence *waiting = world_add(world, SCHEDULE_PARKED);
        holder->tokens_left = 0;
        holder->deadline_us = cases[i].holder_deadline == none ? 0 : NOW + cases[i].holder_deadline;
        holder->since_us = NOW - cases[i].held;
        holder->served = cases[i].holder_served;
        holder->is_preemptible = !cases[i].is_fixed;
        waiting->deadline_us = cases[i].deadline == none ? 0 : NOW + cases[i].deadline;
        waiting->since_us = NOW - cases[i].waited;
        waiting->served = cases[i].served;
        decide_slots(world);
        if (cases[i].changes != (world->step.preempt_count == 1)) {
            print_message("%s\n", cases[i].what);
        }
        assert_list(world->step.preempt, world->step.preempt_count, cases[i].changes ? "0" : "");
        assert_list(world->step.activate, world->step.activate_count, cases[i].changes ? "1" : "");
        world_destroy(world);
    }
}

static void slots_whose_window_must_be_rebuilt_are_kept_longer(void **state) {
    (void)state;
    struct world *world = world_create();
    struct schedule_sequence *holder = add_decoding(world);
    struct schedule_sequence *waiting = world_add(world, SCHEDULE_PARKED);
    holder->rebuild_rows = 4000; /* of 0.25 ms: one second */
    waiting->since_us = NOW - 10 * SECOND;
    holder->since_us = NOW - 6 * SECOND + 1;
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, 0);
    holder->since_us = NOW - 6 * SECOND;
    decide_slots(world);
    assert_list(world->step.preempt, world->step.preempt_count, "0");
    waiting->deadline_us = NOW + SECOND;
    holder->since_us = NOW - 1200000 + 1;
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, 0);
    holder->since_us = NOW - 1200000;
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "1");
    world_destroy(world);
}

static void slots_the_least_urgent_holder_loses(void **state) {
    (void)state;
    struct world *world = world_create();
    for (int32_t i = 0; i < 4; i++) {
        add_decoding(world)->since_us = 0;
    }
    world->sequences[0].served = 7;
    world->sequences[1].served = 9;
    world->sequences[2].served = 8;
    world->sequences[3].deadline_us = NOW + 90 * (int64_t)SECOND;
    for (int32_t i = 0; i < 2; i++) {
        world_add(world, SCHEDULE_PARKED)->deadline_us = NOW + 2 * SECOND - i;
    }
    decide_slots(world);
    assert_list(world->step.preempt, world->step.preempt_count, "1 2");
    assert_list(world->step.activate, world->step.activate_count, "5 4");
    world_destroy(world);
}

static void slots_change_hands_a_few_at_a_time(void **state) {
    (void)state;
    struct world *world = world_create();
    for (int32_t i = 0; i < 30; i++) {
        add_decoding(world)->since_us = 0;
        world_add(world, SCHEDULE_PARKED)->since_us = NOW - 3 * SECOND;
    }
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, SCHEDULE_PREEMPT_MAX);
    assert_int_equal(world->step.activate_count, SCHEDULE_PREEMPT_MAX);
    world_destroy(world);
}

/* With so many that wait that turns alone take longer than patience, deadlines still count. */
static void slots_patience_grows_with_the_number_that_wait(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.slots_total = 2;
    for (int32_t i = 0; i < 2; i++) {
        struct schedule_sequence *holder = add_decoding(world);
        holder->since_us = 0;
        holder->deadline_us = NOW + 3 * SECOND; /* both press */
        holder->tokens_left = 0;
    }
    for (int32_t i = 0; i < 60; i++) { /* 30 turns of 2 s */
        world_add(world, SCHEDULE_PARKED)->since_us = NOW - 100 * (int64_t)SECOND;
    }
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, 0);
    world->sequences[50].since_us = NOW - 240 * (int64_t)SECOND;
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "50");
    world_destroy(world);
}

/* ---- rows
 * ------------------------------------------------------------------------------------- */

static void rows_everybody_that_decodes_gets_one(void **state) {
    (void)state;
    struct world *world = world_create();
    for (int32_t i = 0; i < 64; i++) {
        add_decoding(world);
    }
    world_add(world, SCHEDULE_PARKED)->is_decoding = true;
    world_add(world, SCHEDULE_QUEUED)->rows_left = 50;
    add_decoding(world)->is_restoring = true;
    add_prompt(world, 0); /* nothing to do */
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 64);
    assert_int_equal(world->step.rows.rows[SCHEDULE_DECODE], 64);
    assert_true(world->step.predicted_us == 74000);
    world_destroy(world);
}

static void rows_of_nobody_make_an_empty_step(void **state) {
    (void)state;
    struct world *world = world_create();
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 0);
    add_decoding(world);
    world->machine.entries_max = 0; /* no place is left */
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 0);
    world->machine.entries_max = 1;
    world->machine.rows_max = 0;
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 0);
    assert_true(world->step.predicted_us == 0);
    decide_slots(world);
    decide_admission(world);
    assert_int_equal(world->step.activate_count + world->step.admit_count, 0);
    world_destroy(world);
}

static void rows_are_few_until_steps_were_measured(void **state) {
    (void)state;
    struct world *world = world_create();
    world->cost = (struct schedule_cost){0};
    add_decoding(world)->drafts = 3;
    add_prompt(world, 5000);
    decide_rows(world);
    assert_entries(&world->step, "0:1+3 1:4");
    for (int32_t i = 0; i < 60; i++) {
        add_decoding(world);
    }
    decide_rows(world);
    assert_int_equal(world->step.rows.rows[SCHEDULE_DECODE], 5);
    assert_int_equal(world->step.rows.rows[SCHEDULE_PREFILL], 3);
    assert_true(world->step.predicted_us == 0);
    world_destroy(world);
}

static void rows_grow_by_a_factor_of_the_largest_step_measured(void **state) {
    (void)state;
    struct world *world = world_create();
    add_prompt(world, 5000);
    world->cost.rows_seen = 8;
    decide_rows(world);
    assert_entries(&world->step, "0:32");
    world->cost.rows_seen = 1;
    decide_rows(world);
    assert_entries(&world->step, "0:8");
    world->cost.rows_seen = INT32_MAX;
    decide_rows(world);
    assert_entries(&world->step, "0:560");
    world->machine.rows_max = 100;
    decide_rows(world);
    assert_entries(&world->step, "0:100");
    world->machine.rows_max = 1024;
    world->machine.target_us = 20000;
    decide_rows(world);
    assert_entries(&world->step, "0:40");
    world->cost.load = 2; /* a step of nothing takes all of it: a quarter more than a row */
    decide_rows(world);
    assert_entries(&world->step, "0:11");
    world_destroy(world);
}

static void rows_when_not_all_fit_go_by_order_and_to_the_patient(void **state) {
    (void)state;
    struct world *world = world_create();
    world->cost.us[1] = 20000; /* 7 rows */
    for (int32_t i = 0; i < 12; i++) {
        add_decoding(world)->served = i;
    }
    world->sequences[11].deadline_us = NOW + 60 * (int64_t)SECOND;
    world->sequences[9].progress_us = NOW - SECOND;
    decide_rows(world);
    assert_entries(&world->step, "11:1 0:1 1:1 2:1 3:1 4:1 9:1");
    assert_true(world->step.predicted_us == 150000);
    world_destroy(world);
}

static void rows_of_prompts_have_a_share_beside_any_number_that_decode(void **state) {
    (void)state;
    struct world *world = world_create();
    world->cost.us[1] = 5000;
    for (int32_t i = 0; i < 40; i++) {
        add_decoding(world);
    }
    decide_rows(world);
    assert_int_equal(world->step.rows.rows[SCHEDULE_DECODE], 28);
    add_prompt(world, 100000);
    decide_rows(world);
    assert_int_equal(world->step.rows.rows[SCHEDULE_DECODE], 20); /* 102.5 ms */
    assert_int_equal(rows_of(world, 40), 160);
    assert_true(world->step.predicted_us == 150000);
    world_destroy(world);
}

static void rows_of_drafts_come_behind_decode_rows_and_before_prompts(void **state) {
    (void)state;
    struct world *world = world_create();
    world->cost.us[2] = 20000;
    for (int32_t i = 0; i < 10; i++) {
        add_decoding(world)->drafts = i == 0 ? 4 : 2;
    }
    decide_rows(world);
    assert_entries(&world->step, "0:1+4 1:1+2 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1");
    add_prompt(world, 100000);
    decide_rows(world);
    assert_entries(&world->step, "0:1+4 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:200");
    world_destroy(world);
}

static void rows_several_prompts_go_on_at_once(void **state) {
    (void)state;
    struct world *world = world_create();
    add_prompt(world, 5000);
    add_prompt(world, 5000);
    add_prompt(world, 30);
    decide_rows(world);
    assert_entries(&world->step, "0:425 1:105 2:30");
    world->sequences[1].progress_us = NOW - SECOND; /* waited longest: comes first, too */
    decide_rows(world);
    assert_entries(&world->step, "1:425 0:105 2:30");
    world->sequences[0].served = -1; /* first in order, the other waited longer */
    decide_rows(world);
    assert_entries(&world->step, "0:285 1:245 2:30");
    world->sequences[0].rows_left = 3;
    world->sequences[1].rows_left = 4;
    decide_rows(world);
    assert_entries(&world->step, "0:3 1:4 2:30");
    world_destroy(world);
}

static void rows_many_prompts_get_chunks_of_some_size(void **state) {
    (void)state;
    struct world *world = world_create();
    for (int32_t i = 0; i < 50; i++) {
        add_prompt(world, 1000);
    }
    decide_rows(world);
    assert_true(world->step.entry_count >= 5 && world->step.entry_count <= 10);
    for (int32_t i = 0; i + 1 < world->step.entry_count; i++) {
        assert_true(world->step.entries[i].rows >= 16);
    }
    assert_int_equal(world->step.rows.rows[SCHEDULE_PREFILL], 560);
    world_destroy(world);
}

static void rows_a_huge_prompt_is_short_beside_a_pressing_decode(void **state) {
    (void)state;
    struct world *world = world_create();
    struct schedule_sequence *decoding = add_decoding(world);
    struct schedule_sequence *prompt = add_prompt(world, 100000);
    decide_rows(world);
    assert_entries(&world->step, "0:1 1:556");
    decoding->deadline_us = NOW + 7 * SECOND - 1; /* of them 2 s of work */
    decide_rows(world);
    assert_entries(&world->step, "0:1 1:150");
    prompt->deadline_us = NOW + SECOND; /* is late itself */
    decide_rows(world);
    assert_entries(&world->step, "0:1 1:556");
    world_destroy(world);
}

static void rows_that_are_dearer_than_the_target_go_alone(void **state) {
    (void)state;
    struct world *world = world_create();
    add_decoding(world)->drafts = 5;
    add_decoding(world);
    world->cost.us[1] = 200000;
    world->cost.us[2] = 200000;
    decide_rows(world);
    assert_entries(&world->step, "0:1");
    /* Where the weights are what takes long, more rows are nearly free. */
    world->cost.us[0] = 160000;
    world->cost.us[1] = 1000;
    world->cost.us[2] = 10000;
    decide_rows(world);
    assert_entries(&world->step, "0:1+3 1:1");
    world_destroy(world);
}

static void rows_of_two_kinds_that_do_not_fit_together_take_turns(void **state) {
    (void)state;
    for (int32_t dear = 0; dear < 3; dear++) {
        struct world *world = world_create();
        struct schedule_sequence *decoding = add_decoding(world);
        struct schedule_sequence *prompt = add_prompt(world, 100);
        if (dear == 0) {
            world->cost.us[1] = 100000;
            world->cost.us[3] = 80000;
        } else if (dear == 1) {
            world->machine.rows_max = 1;
        } else {
            world->machine.entries_max = 1;
            world->machine.rows_max = 10;
        }
        decide_rows(world);
        assert_entries(&world->step, "0:1");
        decoding->progress_us = NOW;
        decide_rows(world);
        assert_entries(&world->step, dear == 2 ? "1:10" : "1:1");
        prompt->progress_us = NOW + 1;
        decide_rows(world);
        assert_entries(&world->step, "0:1");
        world_destroy(world);
    }
}

static void rows_keep_a_place_for_a_prompt(void **state) {
    (void)state;
    struct world *world = world_create();
    world->machine.entries_max = 4;
    for (int32_t i = 0; i < 6; i++) {
        add_decoding(world);
    }
    add_prompt(world, 20);
    add_prompt(world, 20);
    decide_rows(world);
    assert_entries(&world->step, "0:1 1:1 2:1 6:20");
    world_destroy(world);
}

/* ---- demotion --------------------------------------------------------------------------------- */

static void demotion_takes_the_least_valuable_when_it_helps(void **state) {
    (void)state;
    static const int64_t later = NOW + 60 * (int64_t)SECOND;
    static const int64_t unknown = INT64_MAX;
    /* 100 blocks in all. The idle ones: over or not, queued or not, back at, idle since, id, blocks. */
    static const struct {
        int64_t needed, promised, open, waited_us;
        int32_t running, want;
        struct schedule_idle idle[3];
    } cases[] = {
        /* It fits. */
        {10, 90, 0, 0, 0, -1, {{.id = 1, .blocks = 50, .return_us = unknown}}},
        /* Nobody runs: one that holds something goes, even where it is not enough. */
        {20, 90, 0, 0, 0, 0, {{.id = 1, .blocks = 50, .return_us = unknown}}},
        {60, 90, 0, 0, 0, 0, {{.id = 1, .blocks = 5, .return_us = unknown}}},
        {20, 90, 0, 0, 0, 1, {{.id = 1}, {.id = 2, .blocks = 0.5, .return_us = NOW}}},
        {20, 90, 0, 0, 0, -1, {{.id = 1}, {.id = 2}}},
        /* Running ones may give back enough: not at once; cannot: at once; it would not help: not. */
        {20, 90, 10, 0, 1, -1, {{.id = 1, .blocks = 50, .return_us = unknown}}},
        {20, 90, 10, SCHEDULE_DEMOTE_US, 1, 0, {{.id = 1, .blocks = 50, .return_us = unknown}}},
        {20, 90, 9, 0, 1, 0, {{.id = 1, .blocks = 50, .return_us = unknown}}},
        {20, 90, 0, SECOND * 100, 1, -1, {{.id = 1, .blocks = 9, .return_us = unknown}}},
        {20,
         90,
         0,
         0,
         1,
         0,
         {{.id = 1, .blocks = 3 + 1.0 / 3, .return_us = unknown},
          {.id = 2, .blocks = 3 + 1.0 / 3, .return_us = NOW},
          {.id = 3, .blocks = 3 + 1.0 / 3, .return_us = NOW}}},
        /* Whose: over, then back last, then idle for longest, then the older; queued ones last. */
        {20,
         90,
         0,
         0,
         0,
         2,
         {{.id = 1, .blocks = 9, .return_us = unknown},
          {.id = 2, .blocks = 9, .return_us = unknown},
          {.id = 3, .blocks = 9, .return_us = NOW, .is_over = true}}},
        {20,
         90,
         0,
         0,
         0,
         1,
         {{.id = 1, .blocks = 9, .return_us = NOW},
          {.id = 2, .blocks = 9, .return_us = later},
          {.id = 3, .blocks = 9, .return_us = later - 1}}},
        {20,
         90,
         0,
         0,
         0,
         2,
         {{.id = 1, .blocks = 9, .return_us = later, .idle_us = NOW},
          {.id = 2, .blocks = 9, .return_us = later, .idle_us = NOW - 1},
          {.id = 3, .blocks = 9, .return_us = later, .idle_us = NOW - 2}}},
        {20,
         90,
         0,
         0,
         0,
         1,
         {{.id = 7, .blocks = 9, .return_us = later}, {.id = 6, .blocks = 9, .return_us = later}}},
        {20,
         90,
         0,
         0,
         0,
         1,
         {{.id = 1, .blocks = 9, .return_us = unknown, .is_queued = true},
          {.id = 2, .blocks = 9, .return_us = NOW}}},
    };
    struct world *world = world_create();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        world->machine.blocks_promised = cases[i].promised;
        world->machine.blocks_open = cases[i].open;
        world->machine.running = cases[i].running;
        const struct schedule_sequence blocked = {
            .blocks_needed = (int32_t)cases[i].needed,
            .since_us = NOW - cases[i].waited_us,
        };
        int32_t got = schedule_demote(&world->machine, &blocked, cases[i].idle, 3);
        if (got != cases[i].want) {
            print_error("case %zu: %d, not %d\n", i, got, cases[i].want);
            fail();
        }
    }
    world_destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slack_is_what_is_left_after_the_estimated_rest),
        cmocka_unit_test(admission_says_run_wait_or_refuse_with_numbers),
        cmocka_unit_test(admission_takes_who_fits_in_order),
        cmocka_unit_test(admission_small_ones_pass_a_large_one_for_a_while),
        cmocka_unit_test(admission_after_patience_comes_before_deadlines),
        cmocka_unit_test(admission_one_that_never_fits_blocks_nobody),
        cmocka_unit_test(demotion_takes_the_least_valuable_when_it_helps),
        cmocka_unit_test(slots_that_are_free_go_to_the_waiting_in_order),
        cmocka_unit_test(slots_change_hands_only_for_a_reason),
        cmocka_unit_test(slots_whose_window_must_be_rebuilt_are_kept_longer),
        cmocka_unit_test(slots_the_least_urgent_holder_loses),
        cmocka_unit_test(slots_change_hands_a_few_at_a_time),
        cmocka_unit_test(slots_patience_grows_with_the_number_that_wait),
        cmocka_unit_test(rows_everybody_that_decodes_gets_one),
        cmocka_unit_test(rows_of_nobody_make_an_empty_step),
        cmocka_unit_test(rows_are_few_until_steps_were_measured),
        cmocka_unit_test(rows_grow_by_a_factor_of_the_largest_step_measured),
        cmocka_unit_test(rows_when_not_all_fit_go_by_order_and_to_the_patient),
        cmocka_unit_test(rows_of_prompts_have_a_share_beside_any_number_that_decode),
        cmocka_unit_test(rows_of_drafts_come_behind_decode_rows_and_before_prompts),
        cmocka_unit_test(rows_several_prompts_go_on_at_once),
        cmocka_unit_test(rows_many_prompts_get_chunks_of_some_size),
        cmocka_unit_test(rows_a_huge_prompt_is_short_beside_a_pressing_decode),
        cmocka_unit_test(rows_that_are_dearer_than_the_target_go_alone),
        cmocka_unit_test(rows_of_two_kinds_that_do_not_fit_together_take_turns),
        cmocka_unit_test(rows_keep_a_place_for_a_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
