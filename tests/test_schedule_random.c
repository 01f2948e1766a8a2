/* Rules that every decision of the scheduler keeps, in random states; what it allocates. */
#include "schedule_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

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
        struct schedule_sequence *sequence = world_add(world, (enum schedule_state)draw(random, 3));
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
    struct world *world = world_create();
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
    world_destroy(world);
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
    struct world *world = world_create();
    fill_randomly(world, &random);
    size_t count = failing_memory_count();
    decide_all(world);
    assert_int_equal(failing_memory_count(), count);
    world_destroy(world);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_in_any_state_keep_the_rules),
        cmocka_unit_test(decisions_allocate_nothing_and_creation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
