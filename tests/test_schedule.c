/* Decisions of the scheduler as tables: slack, admission, slots, rows. Long runs are in
 * test_schedule_simulation.c, costs in test_schedule_cost.c. */
#include "engine/schedule.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

#define SEQUENCES 128
#define SECOND    1000000
#define NOW       (1000 * (int64_t)SECOND)

/* A machine with a measured cost, and sequences put together by a test. */
struct world {
    struct schedule *schedule;
    struct schedule_cost cost;
    struct schedule_machine machine;
    struct schedule_sequence sequences[SEQUENCES];
    int32_t count;
    struct schedule_step step;
};

/* 10 ms a step, 1 ms a decode row, 0.5 ms a draft, 0.25 ms a row of a prompt. */
static const struct schedule_cost measured = {
    .us = {10000, 1000, 500, 250},
    .load = 1,
    .step_us = 20000,
    .rows_seen = 1000,
    .steps = 1,
    .rows = {1, 1, 1},
};

static struct world *create(void) {
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    struct error error = {0};
    assert_true(is_ok(schedule_create(&world->schedule, SEQUENCES, &error)));
    world->cost = measured;
    world->machine = (struct schedule_machine){
        .now_us = NOW,
        .cost = &world->cost,
        .rows_max = 1024,
        .entries_max = SEQUENCES,
        .slots_total = 64,
        .blocks_total = 100,
    };
    return world;
}

static void destroy(struct world *world) {
    schedule_destroy(world->schedule);
    free(world);
}

/* One that holds a slot since long ago; its own agent; older than those added later. */
static struct schedule_sequence *add(struct world *world, enum schedule_state state) {
    assert_true(world->count < SEQUENCES);
    int32_t number = world->count++;
    struct schedule_sequence *sequence = &world->sequences[number];
    *sequence = (struct schedule_sequence){
        .number = 1000 + number,
        .state = state,
        .agent = (uint64_t)number + 1,
        .queue_number = (uint64_t)number + 1,
        .since_us = NOW - 100,
        .progress_us = NOW - 100,
        .is_preemptible = true,
    };
    return sequence;
}

static struct schedule_sequence *add_decoding(struct world *world) {
    struct schedule_sequence *sequence = add(world, SCHEDULE_ACTIVE);
    sequence->is_decoding = true;
    sequence->tokens_left = 100;
    return sequence;
}

static struct schedule_sequence *add_prompt(struct world *world, int32_t rows) {
    struct schedule_sequence *sequence = add(world, SCHEDULE_ACTIVE);
    sequence->rows_left = rows;
    return sequence;
}

static struct schedule_sequence *add_queued(struct world *world, int32_t blocks) {
    struct schedule_sequence *sequence = add(world, SCHEDULE_QUEUED);
    sequence->blocks_needed = blocks;
    return sequence;
}

static void decide_rows(struct world *world) {
    schedule_rows(world->schedule, &world->machine, world->sequences, world->count, &world->step);
}

static void decide_slots(struct world *world) {
    schedule_slots(world->schedule, &world->machine, world->sequences, world->count, &world->step);
}

static void decide_admission(struct world *world) {
    schedule_admit(world->schedule, &world->machine, world->sequences, world->count, &world->step);
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
    struct world *world = create();
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
        {INT64_MAX, 0, 0, INT64_MAX - NOW},
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
    destroy(world);
}

/* ---- admission
 * -------------------------------------------------------------------------------- */

static void admission_says_run_wait_or_refuse_with_numbers(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void admission_takes_who_fits_in_order(void **state) {
    (void)state;
    struct world *world = create();
    world->machine.blocks_promised = 50;
    add_queued(world, 20);
    add_queued(world, 20)->served = -1;
    add_queued(world, 5)->deadline_us = NOW + 9 * SECOND;
    add_queued(world, 20);
    add_decoding(world);
    add(world, SCHEDULE_PARKED)->blocks_needed = 1;
    decide_admission(world);
    /* Slack, service, age; the last is short of 15. */
    assert_list(world->step.admit, world->step.admit_count, "2 1 0");
    assert_int_equal(world->step.blocked, 3);
    destroy(world);
}

static void admission_small_ones_pass_a_large_one_for_a_while(void **state) {
    (void)state;
    struct world *world = create();
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
    assert_list(world->step.admit, world->step.admit_count, "");
    assert_int_equal(world->step.blocked, 0);
    world->machine.blocks_promised = 20;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "0");
    assert_int_equal(world->step.blocked, 1);
    destroy(world);
}

static void admission_after_patience_comes_before_deadlines(void **state) {
    (void)state;
    struct world *world = create();
    world->machine.blocks_promised = 50;
    add_queued(world, 40)->deadline_us = NOW + SECOND;
    struct schedule_sequence *old = add_queued(world, 40);
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "0");
    old->since_us = NOW - SCHEDULE_PATIENCE_US;
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1");
    destroy(world);
}

static void admission_one_that_never_fits_blocks_nobody(void **state) {
    (void)state;
    struct world *world = create();
    add_queued(world, 101)->since_us = 0;
    add_queued(world, 100);
    decide_admission(world);
    assert_list(world->step.admit, world->step.admit_count, "1");
    assert_int_equal(world->step.blocked, -1);
    destroy(world);
}

/* ---- slots
 * ------------------------------------------------------------------------------------ */

static void slots_that_are_free_go_to_the_waiting_in_order(void **state) {
    (void)state;
    struct world *world = create();
    world->machine.slots_free = 2;
    add(world, SCHEDULE_PARKED);
    add(world, SCHEDULE_PARKED)->is_restoring = true;
    add(world, SCHEDULE_PARKED)->deadline_us = NOW + 60 * (int64_t)SECOND;
    add(world, SCHEDULE_PARKED)->served = -5;
    add(world, SCHEDULE_QUEUED)->deadline_us = NOW + SECOND;
    add_decoding(world);
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "2 3");
    assert_int_equal(world->step.preempt_count, 0);
    world->machine.slots_free = 64;
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "2 3 0");
    destroy(world);
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
        struct world *world = create();
        struct schedule_sequence *holder = add_decoding(world);
        struct schedule_sequence *waiting = add(world, SCHEDULE_PARKED);
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
        destroy(world);
    }
}

static void slots_the_least_urgent_holder_loses(void **state) {
    (void)state;
    struct world *world = create();
    for (int32_t i = 0; i < 4; i++) {
        add_decoding(world)->since_us = 0;
    }
    world->sequences[0].served = 7;
    world->sequences[1].served = 9;
    world->sequences[2].served = 8;
    world->sequences[3].deadline_us = NOW + 90 * (int64_t)SECOND;
    for (int32_t i = 0; i < 2; i++) {
        add(world, SCHEDULE_PARKED)->deadline_us = NOW + 2 * SECOND - i;
    }
    decide_slots(world);
    assert_list(world->step.preempt, world->step.preempt_count, "1 2");
    assert_list(world->step.activate, world->step.activate_count, "5 4");
    destroy(world);
}

static void slots_change_hands_a_few_at_a_time(void **state) {
    (void)state;
    struct world *world = create();
    for (int32_t i = 0; i < 30; i++) {
        add_decoding(world)->since_us = 0;
        add(world, SCHEDULE_PARKED)->since_us = NOW - 3 * SECOND;
    }
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, SCHEDULE_PREEMPT_MAX);
    assert_int_equal(world->step.activate_count, SCHEDULE_PREEMPT_MAX);
    destroy(world);
}

/* With so many that wait that turns alone take longer than patience, deadlines still count. */
static void slots_patience_grows_with_the_number_that_wait(void **state) {
    (void)state;
    struct world *world = create();
    world->machine.slots_total = 2;
    for (int32_t i = 0; i < 2; i++) {
        struct schedule_sequence *holder = add_decoding(world);
        holder->since_us = 0;
        holder->deadline_us = NOW + 3 * SECOND; /* both press */
        holder->tokens_left = 0;
    }
    for (int32_t i = 0; i < 60; i++) { /* 30 turns of 2 s */
        add(world, SCHEDULE_PARKED)->since_us = NOW - 100 * (int64_t)SECOND;
    }
    decide_slots(world);
    assert_int_equal(world->step.preempt_count, 0);
    world->sequences[50].since_us = NOW - 240 * (int64_t)SECOND;
    decide_slots(world);
    assert_list(world->step.activate, world->step.activate_count, "50");
    destroy(world);
}

/* ---- rows
 * ------------------------------------------------------------------------------------- */

static void rows_everybody_that_decodes_gets_one(void **state) {
    (void)state;
    struct world *world = create();
    for (int32_t i = 0; i < 64; i++) {
        add_decoding(world);
    }
    add(world, SCHEDULE_PARKED)->is_decoding = true;
    add(world, SCHEDULE_QUEUED)->rows_left = 50;
    add_decoding(world)->is_restoring = true;
    add_prompt(world, 0); /* nothing to do */
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 64);
    assert_int_equal(world->step.rows.rows[SCHEDULE_DECODE], 64);
    assert_true(world->step.predicted_us == 74000);
    destroy(world);
}

static void rows_of_nobody_make_an_empty_step(void **state) {
    (void)state;
    struct world *world = create();
    decide_rows(world);
    assert_int_equal(world->step.entry_count, 0);
    decide_slots(world);
    decide_admission(world);
    assert_int_equal(world->step.activate_count + world->step.admit_count, 0);
    destroy(world);
}

static void rows_are_few_until_steps_were_measured(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_grow_by_a_factor_of_the_largest_step_measured(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_when_not_all_fit_go_by_order_and_to_the_patient(void **state) {
    (void)state;
    struct world *world = create();
    world->cost.us[1] = 20000; /* 7 rows */
    for (int32_t i = 0; i < 12; i++) {
        add_decoding(world)->served = i;
    }
    world->sequences[11].deadline_us = NOW + 60 * (int64_t)SECOND;
    world->sequences[9].progress_us = NOW - SECOND;
    decide_rows(world);
    assert_entries(&world->step, "11:1 0:1 1:1 2:1 3:1 4:1 9:1");
    assert_true(world->step.predicted_us == 150000);
    destroy(world);
}

static void rows_of_prompts_have_a_share_beside_any_number_that_decode(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_of_drafts_come_behind_decode_rows_and_before_prompts(void **state) {
    (void)state;
    struct world *world = create();
    world->cost.us[2] = 20000;
    for (int32_t i = 0; i < 10; i++) {
        add_decoding(world)->drafts = i == 0 ? 4 : 2;
    }
    decide_rows(world);
    assert_entries(&world->step, "0:1+4 1:1+2 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1");
    add_prompt(world, 100000);
    decide_rows(world);
    assert_entries(&world->step, "0:1+4 1:1 2:1 3:1 4:1 5:1 6:1 7:1 8:1 9:1 10:200");
    destroy(world);
}

static void rows_several_prompts_go_on_at_once(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_many_prompts_get_chunks_of_some_size(void **state) {
    (void)state;
    struct world *world = create();
    for (int32_t i = 0; i < 50; i++) {
        add_prompt(world, 1000);
    }
    decide_rows(world);
    assert_true(world->step.entry_count >= 5 && world->step.entry_count <= 10);
    for (int32_t i = 0; i + 1 < world->step.entry_count; i++) {
        assert_true(world->step.entries[i].rows >= 16);
    }
    assert_int_equal(world->step.rows.rows[SCHEDULE_PREFILL], 560);
    destroy(world);
}

static void rows_a_huge_prompt_is_short_beside_a_pressing_decode(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_that_are_dearer_than_the_target_go_alone(void **state) {
    (void)state;
    struct world *world = create();
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
    destroy(world);
}

static void rows_of_two_kinds_that_do_not_fit_together_take_turns(void **state) {
    (void)state;
    for (int32_t dear = 0; dear < 3; dear++) {
        struct world *world = create();
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
        destroy(world);
    }
}

static void rows_keep_a_place_for_a_prompt(void **state) {
    (void)state;
    struct world *world = create();
    world->machine.entries_max = 4;
    for (int32_t i = 0; i < 6; i++) {
        add_decoding(world);
    }
    add_prompt(world, 20);
    add_prompt(world, 20);
    decide_rows(world);
    assert_entries(&world->step, "0:1 1:1 2:1 6:20");
    destroy(world);
}

/* ---- any state
 * -------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int32_t draw(uint64_t *random, int32_t count) {
    return (int32_t)(next(random) % (uint64_t)count);
}

static void fill_randomly(struct world *world, uint64_t *random) {
    static const double fixed[] = {0, 500, 10000, 120000, 400000};
    static const double rows[] = {0.1, 30, 1000, 20000, 170000};
    world->cost.us[0] = fixed[draw(random, 5)];
    for (int32_t kind = 0; kind < SCHEDULE_ROW_KINDS; kind++) {
        world->cost.us[1 + kind] = rows[draw(random, 5)];
        world->cost.rows[kind] = draw(random, 3);
    }
    world->cost.load = 1 + draw(random, 3);
    world->cost.steps = draw(random, 6) == 0 ? 0 : 10;
    world->cost.rows_seen = 1 << draw(random, 12);
    world->machine.rows_max = 1 << draw(random, 11);
    world->machine.entries_max = 1 + draw(random, SEQUENCES);
    world->machine.slots_free = draw(random, 4);
    world->machine.blocks_promised = draw(random, 101);
    world->count = 0;
    for (int32_t i = draw(random, SEQUENCES + 1); i > 0; i--) {
        struct schedule_sequence *sequence = add(world, (enum schedule_state)draw(random, 3));
        sequence->is_decoding = draw(random, 2) == 0;
        sequence->rows_left = sequence->is_decoding ? 0 : draw(random, 2000);
        sequence->drafts = draw(random, 2) == 0 ? draw(random, 9) : 0;
        sequence->tokens_left = draw(random, 1000);
        sequence->served = draw(random, 5);
        sequence->deadline_us = draw(random, 3) == 0 ? NOW + draw(random, 40 * SECOND) - SECOND : 0;
        sequence->since_us = NOW - draw(random, 40 * SECOND);
        sequence->progress_us = NOW - draw(random, 3);
        sequence->is_restoring = draw(random, 6) == 0;
        sequence->is_preemptible = draw(random, 6) != 0;
        sequence->blocks_needed = draw(random, 40);
    }
}

static void check_rows(const struct world *world) {
    const struct schedule_step *step = &world->step;
    bool seen[SEQUENCES] = {false};
    int32_t decoding = 0;
    int32_t prompts = 0;
    int32_t total = 0;
    for (int32_t i = 0; i < world->count; i++) {
        const struct schedule_sequence *sequence = &world->sequences[i];
        if (sequence->state == SCHEDULE_ACTIVE && !sequence->is_restoring) {
            decoding += sequence->is_decoding ? 1 : 0;
            prompts += sequence->rows_left > 0 ? 1 : 0;
        }
    }
    for (int32_t i = 0; i < step->entry_count; i++) {
        const struct schedule_entry *entry = &step->entries[i];
        const struct schedule_sequence *sequence = &world->sequences[entry->index];
        assert_false(seen[entry->index]);
        seen[entry->index] = true;
        assert_true(sequence->state == SCHEDULE_ACTIVE && !sequence->is_restoring);
        assert_true(entry->rows >= 1);
        if (sequence->is_decoding) {
            assert_int_equal(entry->rows, 1 + entry->drafted);
            assert_in_range(entry->drafted, 0, sequence->drafts);
        } else {
            assert_int_equal(entry->drafted, 0);
            assert_in_range(entry->rows, 1, sequence->rows_left);
        }
        total += entry->rows;
    }
    const struct schedule_rows_count *rows = &step->rows;
    assert_int_equal(total, rows->rows[0] + rows->rows[1] + rows->rows[2]);
    assert_in_range(total, 0, world->machine.rows_max);
    assert_in_range(step->entry_count, 0, world->machine.entries_max);
    /* Whoever can run is not stopped by the other kind, if both fit at all. */
    bool has_decode = rows->rows[SCHEDULE_DECODE] > 0;
    bool has_prompt = rows->rows[SCHEDULE_PREFILL] > 0;
    assert_int_equal(has_decode || has_prompt, decoding + prompts > 0);
    const struct schedule_cost *cost = &world->cost;
    double one_of_each = schedule_cost_fixed(cost) + schedule_cost_row(cost, SCHEDULE_DECODE) +
                         schedule_cost_row(cost, SCHEDULE_PREFILL);
    if (one_of_each <= SCHEDULE_STEP_TARGET_US && world->machine.rows_max > 1 &&
        world->machine.entries_max > 1) {
        assert_int_equal(has_decode, decoding > 0);
        assert_int_equal(has_prompt, prompts > 0);
    }
    /* The target holds, but for what a single row takes and a quarter. */
    double row = has_decode ? schedule_cost_row(cost, SCHEDULE_DECODE) : 0;
    double other = has_prompt ? schedule_cost_row(cost, SCHEDULE_PREFILL) : 0;
    double single = 1.25 * (schedule_cost_fixed(cost) + (row > other ? row : other));
    double most = single > SCHEDULE_STEP_TARGET_US * 1.25 ? single : SCHEDULE_STEP_TARGET_US;
    assert_true(step->predicted_us <= most * 1.000001);
}

static void check_slots(const struct world *world) {
    const struct schedule_step *step = &world->step;
    bool seen[SEQUENCES] = {false};
    for (int32_t i = 0; i < step->activate_count; i++) {
        const struct schedule_sequence *sequence = &world->sequences[step->activate[i]];
        assert_true(sequence->state == SCHEDULE_PARKED && !sequence->is_restoring);
        assert_false(seen[step->activate[i]]);
        seen[step->activate[i]] = true;
    }
    for (int32_t i = 0; i < step->preempt_count; i++) {
        const struct schedule_sequence *sequence = &world->sequences[step->preempt[i]];
        assert_true(sequence->state == SCHEDULE_ACTIVE && sequence->is_preemptible);
        assert_true(NOW - sequence->since_us >= SCHEDULE_HOLD_US);
        assert_false(seen[step->preempt[i]]);
        seen[step->preempt[i]] = true;
    }
    assert_in_range(step->preempt_count, 0, SCHEDULE_PREEMPT_MAX);
    assert_in_range(step->activate_count - step->preempt_count, 0, world->machine.slots_free);
}

static void check_admission(const struct world *world) {
    int64_t promised = world->machine.blocks_promised;
    for (int32_t i = 0; i < world->step.admit_count; i++) {
        const struct schedule_sequence *sequence = &world->sequences[world->step.admit[i]];
        assert_int_equal(sequence->state, SCHEDULE_QUEUED);
        promised += sequence->blocks_needed;
    }
    assert_true(promised <= world->machine.blocks_total);
}

/* What was decided, by number: independent of places in the array. */
static uint64_t digest(const struct world *world) {
    const struct schedule_step *step = &world->step;
    uint64_t sum = 17;
    for (int32_t i = 0; i < step->entry_count; i++) {
        sum = sum * 1000003 + (uint64_t)step->entries[i].number;
        sum = sum * 1000003 + (uint64_t)step->entries[i].rows;
        sum = sum * 1000003 + (uint64_t)step->entries[i].drafted;
    }
    const int32_t *lists[] = {step->admit, step->preempt, step->activate};
    const int32_t counts[] = {step->admit_count, step->preempt_count, step->activate_count};
    for (int32_t l = 0; l < 3; l++) {
        for (int32_t i = 0; i < counts[l]; i++) {
            sum = sum * 1000003 + (uint64_t)world->sequences[lists[l][i]].number;
        }
        sum = sum * 31 + (uint64_t)counts[l];
    }
    return sum;
}

static void decide_all(struct world *world) {
    decide_admission(world);
    decide_slots(world);
    decide_rows(world);
}

static void decisions_in_any_state_keep_the_rules(void **state) {
    (void)state;
    uint64_t random = 20261130;
    print_message("seed %llu\n", (unsigned long long)random);
    struct world *world = create();
    for (int32_t round = 0; round < 3000; round++) {
        fill_randomly(world, &random);
        decide_all(world);
        check_rows(world);
        check_slots(world);
        check_admission(world);
        /* The same again, and with the sequences at other places of the array. */
        uint64_t first = digest(world);
        decide_all(world);
        assert_true(digest(world) == first);
        for (int32_t i = world->count - 1; i > 0; i--) {
            int32_t j = draw(&random, i + 1);
            struct schedule_sequence swap = world->sequences[i];
            world->sequences[i] = world->sequences[j];
            world->sequences[j] = swap;
        }
        decide_all(world);
        assert_true(digest(world) == first);
    }
    destroy(world);
}

static void decisions_allocate_nothing_and_creation_may_fail(void **state) {
    (void)state;
    for (size_t nth = 1; nth <= 4; nth++) {
        struct schedule *schedule = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result created = schedule_create(&schedule, 77, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        assert_true(fired);
        assert_int_equal(created.code, RESULT_MEMORY);
        assert_non_null(strstr(error.message, "77 sequences"));
        assert_null(schedule);
        struct schedule_ledger *ledger = NULL;
        failing_memory_arm(nth <= 2 ? nth : 1);
        assert_int_equal(schedule_ledger_create(&ledger, 5, &error).code, RESULT_MEMORY);
        failing_memory_arm(0);
        assert_null(ledger);
    }
    schedule_destroy(NULL);
    uint64_t random = 3;
    size_t before = failing_memory_bytes();
    struct schedule *schedule = NULL;
    assert_true(is_ok(schedule_create(&schedule, SEQUENCES, NULL)));
    assert_int_equal(failing_memory_bytes() - before, schedule_bytes(SEQUENCES));
    schedule_destroy(schedule);
    struct world *world = create();
    fill_randomly(world, &random);
    size_t count = failing_memory_count();
    decide_all(world);
    assert_int_equal(failing_memory_count(), count);
    destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slack_is_what_is_left_after_the_estimated_rest),
        cmocka_unit_test(admission_says_run_wait_or_refuse_with_numbers),
        cmocka_unit_test(admission_takes_who_fits_in_order),
        cmocka_unit_test(admission_small_ones_pass_a_large_one_for_a_while),
        cmocka_unit_test(admission_after_patience_comes_before_deadlines),
        cmocka_unit_test(admission_one_that_never_fits_blocks_nobody),
        cmocka_unit_test(slots_that_are_free_go_to_the_waiting_in_order),
        cmocka_unit_test(slots_change_hands_only_for_a_reason),
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
        cmocka_unit_test(decisions_in_any_state_keep_the_rules),
        cmocka_unit_test(decisions_allocate_nothing_and_creation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
