/* Thousands of simulated swarms: what swarm.h promises holds after each event, one seed gives one run,
 * and the simulation comes to everything that it is there for. A failing seed is printed;
 * HEARTH_SWARM_SEED=N runs that one alone, HEARTH_SWARM_RUNS=N so many. */
#include "swarm_simulation.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/clock.h"
#include "failing_memory.h"

#define RUNS_DEFAULT 3000

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    uint64_t value = 0;
    return text != NULL && parse_u64(view_of_text(text), &value) ? value : otherwise;
}

static void run_one(uint64_t seed, size_t failing_allocation, struct simulation_counts *counts) {
    char problem[SIMULATION_PROBLEM_BYTES] = "";
    if (!simulation_run(seed, failing_allocation, counts, problem)) {
        fail_msg(
            "HEARTH_SWARM_SEED=%llu, allocation %zu fails: %s",
            (unsigned long long)seed,
            failing_allocation,
            problem
        );
    }
}

static void expect_all(const char *what, const size_t *counts, size_t first, size_t last) {
    for (size_t i = first; i <= last; i++) {
        if (counts[i] == 0) {
            fail_msg("no %s %zu in any run: the simulation does not come to it", what, i);
        }
    }
}

static void promises_hold_on_every_seed(void **state) {
    (void)state;
    struct simulation_counts counts = {0};
    uint64_t seed = number_of("HEARTH_SWARM_SEED", 0);
    uint64_t runs = number_of("HEARTH_SWARM_RUNS", RUNS_DEFAULT);
    if (seed != 0) {
        run_one(seed, 0, &counts);
        return;
    }
    struct clock clock = clock_real();
    int64_t start_ms = clock_monotonic_ms(&clock);
    for (uint64_t i = 1; i <= runs; i++) {
        run_one(i, 0, &counts);
    }
    print_message(
        "%zu runs, %zu events, %zu agents, %lld ms\n",
        counts.runs,
        counts.events,
        counts.nodes,
        (long long)(clock_monotonic_ms(&clock) - start_ms)
    );
    if (runs < RUNS_DEFAULT) {
        return;
    }
    expect_all("effect", counts.effects, SWARM_DO_START, SWARM_DO_FINISH);
    expect_all("answer", counts.answers, SWARM_ANSWER_STARTED, SWARM_ANSWER_REFUSED);
    expect_all("remark", counts.tells, SWARM_TELL_WRAP_UP, SWARM_TELL_BOUNCED);
    expect_all("cut", counts.cuts, SWARM_CUT_NONE, SWARM_CUT_BUDGET);
    expect_all("outcome", counts.outcomes, SWARM_PASSED, SWARM_LOST);
    expect_all("result", counts.results, SWARM_PASSED, SWARM_CANCELLED);
    expect_all("strategy", counts.strategies, 0, 5);
}

static void same_seed_gives_the_same_run(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct simulation_counts first = {0};
        struct simulation_counts second = {0};
        run_one(seed, 0, &first);
        run_one(seed, 0, &second);
        assert_true(first.trace == second.trace);
        assert_int_equal(first.events, second.events);
        run_one(seed + 1, 0, &second);
        assert_true(first.trace != second.trace);
    }
}

static void promises_hold_when_memory_fails(void **state) {
    (void)state;
    struct simulation_counts counts = {0};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        size_t before = SIZE_MAX;
        for (size_t nth = 1; before != counts.memory_failures; nth += 1 + nth / 8) {
            before = counts.memory_failures;
            run_one(seed, nth, &counts); /* until there is no nth one */
        }
    }
    assert_true(counts.memory_failures > 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_hold_on_every_seed),
        cmocka_unit_test(promises_hold_when_memory_fails),
        cmocka_unit_test(same_seed_gives_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
