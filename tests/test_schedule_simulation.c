/* The scheduler against virtual machines and agents: a clock of its own, random arrivals, tools,
 * deadlines, window slots and memory that do not suffice. Checked: steps stay under 200 ms, nobody
 * starves, agents get equal shares, deadlines that can be met are met, the same seed gives the same
 * run.
 *
 * Seeds are printed; HEARTH_SCHEDULE_SEEDS in the environment sets how many run (default 2).
 */
#include "engine/schedule.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SECOND     1000000
#define AGENTS_MAX 1000

/* ---- random
 * ----------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int64_t draw(uint64_t *random, int64_t count) {
    return (int64_t)(next(random) % (uint64_t)count);
}

static int64_t draw_between(uint64_t *random, int64_t least, int64_t most) {
    return least + draw(random, most - least + 1);
}

/* ---- machines
 * --------------------------------------------------------------------------------- */

/* First rows are dear: weights are read once, experts more and more. */
struct machine {
    const char *name;
    double fixed_us, decode_us, prefill_us, draft_us;
    double first_us; /* on top, reached as rows grow to `first_rows` */
    int32_t first_rows;
    int32_t rows_max;
    int32_t outlier_percent; /* steps that take five times as long */
};

static const struct machine machines[] = {
    {"two cores", 6000, 900, 700, 800, 4000, 16, 256, 0},
    {"two cores, disturbed", 6000, 900, 700, 800, 4000, 16, 256, 2},
    {"accelerator", 9000, 60, 18, 30, 6000, 64, 8192, 0},
    {"rows only", 300, 4000, 3500, 4000, 0, 1, 512, 0},
};

static double true_cost(const struct machine *machine, const struct schedule_rows_count *rows) {
    int32_t total = rows->rows[0] + rows->rows[1] + rows->rows[2];
    double first = total < machine->first_rows ? (double)total / machine->first_rows : 1;
    return machine->fixed_us + machine->first_us * first +
           machine->decode_us * rows->rows[SCHEDULE_DECODE] +
           machine->draft_us * rows->rows[SCHEDULE_DRAFT] +
           machine->prefill_us * rows->rows[SCHEDULE_PREFILL];
}

/* ---- agents
 * ----------------------------------------------------------------------------------- */

enum life { IDLE, LIVE };

struct agent {
    enum life life;
    struct schedule_sequence sequence; /* while LIVE */
    int64_t wake_us;                   /* IDLE: the tool is done */
    int64_t begun_us;
    int64_t gap_us; /* longest without a row while it held blocks */
    int32_t blocks;
    int64_t rows; /* run in all */
    int32_t turns;
};

struct plan {
    const struct machine *machine;
    uint64_t seed;
    int32_t agents; /* sequences */
    int32_t groups; /* fairness groups; the first holds all but one of each other */
    int32_t slots;
    int32_t blocks;
    int64_t tool_us; /* mean pause between turns */
    int32_t prompt_max, tokens_max;
    int32_t deadline_percent;
    int64_t deadline_us; /* from the begin of a turn */
    int64_t duration_us;
};

struct outcome {
    int64_t steps, over_limit, turns, preempted, met, missed;
    int64_t step_max_us, gap_max_us, turn_max_us;
    int64_t rows;
    uint64_t digest;
};

struct simulation {
    struct plan plan;
    uint64_t random;
    int64_t now_us;
    struct schedule *schedule;
    struct schedule_ledger *ledger;
    struct schedule_cost cost;
    struct agent agents[AGENTS_MAX];
    struct schedule_sequence sequences[AGENTS_MAX];
    int32_t count;
    uint64_t queue_number;
    int32_t slots_free;
    int64_t promised;
    struct outcome outcome;
};

static void mix(struct simulation *simulation, int64_t value) {
    simulation->outcome.digest = simulation->outcome.digest * 1000003 + (uint64_t)value;
}

static uint64_t group_of(const struct plan *plan, int32_t agent) {
    int32_t alone = plan->groups - 1;
    return agent < plan->agents - alone ? 1 : (uint64_t)(agent - (plan->agents - alone)) + 2;
}

static void begin_turn(struct simulation *simulation, int32_t number) {
    struct agent *agent = &simulation->agents[number];
    const struct plan *plan = &simulation->plan;
    uint64_t *random = &simulation->random;
    int32_t rows = (int32_t)draw_between(random, 1, plan->prompt_max);
    rows = draw(random, 4) == 0 ? rows : 1 + rows / 20; /* mostly tool results */
    int32_t tokens = (int32_t)draw_between(random, 1, plan->tokens_max);
    bool has_deadline = draw(random, 100) < plan->deadline_percent;
    agent->life = LIVE;
    agent->begun_us = simulation->now_us;
    agent->blocks = 1 + (rows + tokens) / 128;
    agent->sequence = (struct schedule_sequence){
        .number = number,
        .state = SCHEDULE_QUEUED,
        .agent = group_of(plan, number),
        .queue_number = ++simulation->queue_number,
        .deadline_us = has_deadline ? simulation->now_us + plan->deadline_us : 0,
        .since_us = simulation->now_us,
        .progress_us = simulation->now_us,
        .rows_left = rows,
        .tokens_left = tokens,
        .blocks_needed = agent->blocks,
        .is_preemptible = true,
    };
    schedule_ledger_join(simulation->ledger, agent->sequence.agent);
}

static void end_turn(struct simulation *simulation, struct agent *agent) {
    struct schedule_sequence *sequence = &agent->sequence;
    int64_t taken_us = simulation->now_us - agent->begun_us;
    struct outcome *outcome = &simulation->outcome;
    outcome->turn_max_us = taken_us > outcome->turn_max_us ? taken_us : outcome->turn_max_us;
    if (sequence->deadline_us != 0) {
        bool is_met = simulation->now_us <= sequence->deadline_us;
        outcome->met += is_met ? 1 : 0;
        outcome->missed += is_met ? 0 : 1;
    }
    outcome->turns++;
    agent->turns++;
    schedule_ledger_leave(simulation->ledger, sequence->agent);
    simulation->slots_free++;
    simulation->promised -= agent->blocks;
    agent->life = IDLE;
    agent->wake_us =
        simulation->now_us + draw(&simulation->random, 2 * simulation->plan.tool_us + 1);
}

/* ---- one decision and one step
 * ---------------------------------------------------------------- */

static void collect(struct simulation *simulation) {
    simulation->count = 0;
    for (int32_t a = 0; a < simulation->plan.agents; a++) {
        struct agent *agent = &simulation->agents[a];
        if (agent->life == IDLE && agent->wake_us <= simulation->now_us) {
            begin_turn(simulation, a);
        }
        if (agent->life == LIVE) {
            agent->sequence.served =
                schedule_ledger_served(simulation->ledger, agent->sequence.agent);
            simulation->sequences[simulation->count++] = agent->sequence;
        }
    }
}

static struct schedule_machine machine_of(const struct simulation *simulation) {
    return (struct schedule_machine){
        .now_us = simulation->now_us,
        .cost = &simulation->cost,
        .rows_max = simulation->plan.machine->rows_max,
        .entries_max = AGENTS_MAX,
        .slots_total = simulation->plan.slots,
        .slots_free = simulation->slots_free,
        .blocks_total = simulation->plan.blocks,
        .blocks_promised = simulation->promised,
    };
}

static void enter(struct simulation *simulation, int32_t index, enum schedule_state state) {
    int32_t number = simulation->sequences[index].number;
    struct schedule_sequence *sequence = &simulation->agents[number].sequence;
    sequence->state = state;
    sequence->since_us = simulation->now_us;
    mix(simulation, number * 4 + (int)state);
}

static void decide(struct simulation *simulation, struct schedule_step *step) {
    collect(simulation);
    struct schedule_machine machine = machine_of(simulation);
    schedule_admit(simulation->schedule, &machine, simulation->sequences, simulation->count, step);
    for (int32_t i = 0; i < step->admit_count; i++) {
        enter(simulation, step->admit[i], SCHEDULE_PARKED);
        simulation->promised += simulation->sequences[step->admit[i]].blocks_needed;
    }
    assert_true(simulation->promised <= simulation->plan.blocks);
    collect(simulation);
    machine = machine_of(simulation);
    schedule_slots(simulation->schedule, &machine, simulation->sequences, simulation->count, step);
    for (int32_t i = 0; i < step->preempt_count; i++) {
        enter(simulation, step->preempt[i], SCHEDULE_PARKED);
    }
    for (int32_t i = 0; i < step->activate_count; i++) {
        enter(simulation, step->activate[i], SCHEDULE_ACTIVE);
    }
    simulation->slots_free += step->preempt_count - step->activate_count;
    simulation->outcome.preempted += step->preempt_count;
    assert_true(simulation->slots_free >= 0);
    collect(simulation);
    machine = machine_of(simulation);
    schedule_rows(simulation->schedule, &machine, simulation->sequences, simulation->count, step);
}

static void carry_out(struct simulation *simulation, const struct schedule_entry *entry) {
    struct agent *agent = &simulation->agents[entry->number];
    struct schedule_sequence *sequence = &agent->sequence;
    int64_t gap_us = simulation->now_us - sequence->progress_us;
    agent->gap_us = gap_us > agent->gap_us ? gap_us : agent->gap_us;
    sequence->progress_us = simulation->now_us;
    agent->rows += entry->rows;
    simulation->outcome.rows += entry->rows;
    schedule_ledger_charge(simulation->ledger, sequence->agent, entry->rows);
    mix(simulation, entry->number * 8192 + entry->rows);
    if (sequence->is_decoding) {
        sequence->tokens_left--;
    } else {
        sequence->rows_left -= entry->rows;
        if (sequence->rows_left == 0) { /* the prompt's last row gives the first token */
            sequence->is_decoding = true;
            sequence->tokens_left--;
        }
    }
    if (sequence->is_decoding && sequence->tokens_left <= 0) {
        end_turn(simulation, agent);
    }
}

static void run_step(struct simulation *simulation, const struct schedule_step *step) {
    const struct machine *machine = simulation->plan.machine;
    double noise = 0.95 + (double)draw(&simulation->random, 1001) / 10000;
    bool is_outlier = draw(&simulation->random, 100) < machine->outlier_percent;
    double taken = true_cost(machine, &step->rows) * noise * (is_outlier ? 5 : 1);
    int64_t taken_us = (int64_t)taken;
    assert_true(step->predicted_us <= SCHEDULE_STEP_TARGET_US * 1.000001);
    struct outcome *outcome = &simulation->outcome;
    outcome->steps++;
    if (!is_outlier) {
        outcome->over_limit += taken_us > SCHEDULE_STEP_LIMIT_US ? 1 : 0;
        outcome->step_max_us = taken_us > outcome->step_max_us ? taken_us : outcome->step_max_us;
    }
    simulation->now_us += taken_us;
    schedule_cost_update(&simulation->cost, &step->rows, taken_us);
    for (int32_t i = 0; i < step->entry_count; i++) {
        carry_out(simulation, &step->entries[i]);
    }
}

/* Until somebody's tool is done. */
static void wait_for_tool(struct simulation *simulation) {
    int64_t first_us = INT64_MAX;
    for (int32_t a = 0; a < simulation->plan.agents; a++) {
        const struct agent *agent = &simulation->agents[a];
        if (agent->life == IDLE && agent->wake_us < first_us) {
            first_us = agent->wake_us;
        }
    }
    assert_true(first_us != INT64_MAX); /* nobody runs and nobody comes: all are stuck */
    simulation->now_us = first_us > simulation->now_us ? first_us : simulation->now_us;
}

static struct simulation *simulate(const struct plan *plan) {
    struct simulation *simulation = calloc(1, sizeof *simulation);
    assert_non_null(simulation);
    simulation->plan = *plan;
    simulation->random = plan->seed * 0x9E3779B97F4A7C15U + 1;
    simulation->now_us = SECOND;
    simulation->slots_free = plan->slots;
    assert_true(is_ok(schedule_create(&simulation->schedule, AGENTS_MAX, NULL)));
    assert_true(is_ok(schedule_ledger_create(&simulation->ledger, AGENTS_MAX, NULL)));
    for (int32_t a = 0; a < plan->agents; a++) {
        int64_t within = plan->tool_us + 1;
        simulation->agents[a].wake_us = SECOND + draw(&simulation->random, within);
    }
    while (simulation->now_us < SECOND + plan->duration_us) {
        struct schedule_step step = {0};
        decide(simulation, &step);
        if (step.entry_count == 0) {
            wait_for_tool(simulation);
        } else {
            run_step(simulation, &step);
        }
    }
    for (int32_t a = 0; a < plan->agents; a++) {
        struct agent *agent = &simulation->agents[a];
        if (agent->life == LIVE) { /* what waits at the end counts, too */
            int64_t gap_us = simulation->now_us - agent->sequence.progress_us;
            agent->gap_us = gap_us > agent->gap_us ? gap_us : agent->gap_us;
        }
        int64_t *most_us = &simulation->outcome.gap_max_us;
        *most_us = agent->gap_us > *most_us ? agent->gap_us : *most_us;
    }
    return simulation;
}

static void finish(struct simulation *simulation) {
    schedule_destroy(simulation->schedule);
    schedule_ledger_destroy(simulation->ledger);
    free(simulation);
}

static void report(const struct simulation *simulation, const char *what) {
    const struct outcome *outcome = &simulation->outcome;
    print_message(
        "%s, %s, seed %llu: %lld steps (longest %lld us, %lld over the limit), %lld rows, %lld "
        "turns, "
        "longest gap %lld ms, longest turn %lld ms, %lld pre-empted, deadlines %lld met %lld "
        "missed\n",
        what,
        simulation->plan.machine->name,
        (unsigned long long)simulation->plan.seed,
        (long long)outcome->steps,
        (long long)outcome->step_max_us,
        (long long)outcome->over_limit,
        (long long)outcome->rows,
        (long long)outcome->turns,
        (long long)outcome->gap_max_us / 1000,
        (long long)outcome->turn_max_us / 1000,
        (long long)outcome->preempted,
        (long long)outcome->met,
        (long long)outcome->missed
    );
}

static uint64_t seed_count(void) {
    const char *text = getenv("HEARTH_SCHEDULE_SEEDS");
    return text == NULL ? 2 : strtoull(text, NULL, 10);
}

/* ---- what has to hold
 * ------------------------------------------------------------------------- */

#define MACHINES ((int)(sizeof machines / sizeof machines[0]))

/* Enough slots and memory: everybody decodes at once. */
static void simulation_steps_stay_under_the_limit_and_nobody_starves(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= seed_count(); seed++) {
        for (int m = 0; m < MACHINES; m++) {
            struct plan plan = {
                .machine = &machines[m],
                .seed = seed,
                .agents = 64,
                .groups = 1 + (int32_t)seed % 3,
                .slots = 64,
                .blocks = 1 << 20,
                .tool_us = 3 * SECOND,
                .prompt_max = 6000,
                .tokens_max = 300,
                .deadline_percent = 20,
                .deadline_us = 60 * (int64_t)SECOND,
                .duration_us = 120 * (int64_t)SECOND,
            };
            struct simulation *simulation = simulate(&plan);
            report(simulation, "64 agents");
            assert_int_equal(simulation->outcome.over_limit, 0);
            assert_true(simulation->outcome.turns > 20);
            assert_true(simulation->outcome.gap_max_us < 15 * (int64_t)SECOND);
            finish(simulation);
        }
    }
}

/* A thousand agents on 64 slots and little memory: queues, parking, turns. */
static void simulation_a_thousand_agents_all_get_on(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= seed_count(); seed++) {
        struct plan plan = {
            .machine = &machines[2],
            .seed = seed,
            .agents = AGENTS_MAX,
            .groups = 1,
            .slots = 64,
            .blocks = 4000,
            .tool_us = 20 * (int64_t)SECOND,
            .prompt_max = 4000,
            .tokens_max = 200,
            .deadline_percent = 10,
            .deadline_us = 300 * (int64_t)SECOND,
            .duration_us = 240 * (int64_t)SECOND,
        };
        struct simulation *simulation = simulate(&plan);
        report(simulation, "1,000 agents");
        assert_int_equal(simulation->outcome.over_limit, 0);
        int32_t without = 0;
        for (int32_t a = 0; a < plan.agents; a++) {
            without += simulation->agents[a].rows == 0 ? 1 : 0;
        }
        assert_int_equal(without, 0);
        assert_true(simulation->outcome.gap_max_us < 150 * (int64_t)SECOND);
        finish(simulation);
    }
}

/* One group has 61 agents that never pause, three have one each: each group gets what it can use of
 * a quarter. Without fairness the single ones would get a 64th each. */
static void simulation_agents_alone_get_their_share_beside_many(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= seed_count(); seed++) {
        struct plan plan = {
            .machine = &machines[3], /* 37 decode rows fit a step */
            .seed = seed,
            .agents = 64,
            .groups = 4,
            .slots = 8,
            .blocks = 1 << 20,
            .tool_us = 0,
            .prompt_max = 2000,
            .tokens_max = 200,
            .duration_us = 600 * (int64_t)SECOND,
        };
        struct simulation *simulation = simulate(&plan);
        report(simulation, "61 agents of one group, 3 of their own");
        int64_t many = 0;
        for (int32_t a = 0; a < plan.agents - 3; a++) {
            many += simulation->agents[a].rows;
        }
        int64_t total = simulation->outcome.rows;
        for (int32_t a = plan.agents - 3; a < plan.agents; a++) {
            double share = (double)simulation->agents[a].rows / (double)total;
            print_message("  alone: %.3f of all rows\n", share);
            assert_true(share > 0.08); /* five times a 64th */
            assert_true(share < 0.30);
        }
        print_message("  61 together: %.3f\n", (double)many / (double)total);
        assert_true((double)many / (double)total < 0.75);
        assert_true(simulation->outcome.gap_max_us < 150 * (int64_t)SECOND);
        finish(simulation);
    }
}

/* Deadlines that leave room are met although others without keep the machine more than busy: once
 * slots are short, once rows are. */
static void simulation_deadlines_with_room_are_met_under_overload(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2 * seed_count(); seed++) {
        bool has_few_slots = seed % 2 == 0;
        struct plan plan = {
            .machine = has_few_slots ? &machines[0] : &machines[3],
            .seed = seed,
            .agents = has_few_slots ? 200 : 120,
            .groups = 1,
            .slots = has_few_slots ? 16 : 120,
            .blocks = 1 << 20,
            .tool_us = 2 * SECOND,
            .prompt_max = has_few_slots ? 1000 : 100,
            .tokens_max = 100,
            .deadline_percent = 4,
            .deadline_us = (has_few_slots ? 15 : 30) * (int64_t)SECOND,
            .duration_us = 600 * (int64_t)SECOND,
        };
        struct simulation *simulation = simulate(&plan);
        report(simulation, has_few_slots ? "few slots, 4 % deadlines" : "few rows, 4 % deadlines");
        const struct outcome *outcome = &simulation->outcome;
        assert_true(outcome->met >= 20);
        assert_true(outcome->met >= 19 * outcome->missed);
        assert_int_equal(outcome->over_limit, 0);
        finish(simulation);
    }
}

/* Half of all turns have deadlines that cannot be met: the other half still gets on. */
static void simulation_hopeless_deadlines_do_not_starve_others(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= seed_count(); seed++) {
        struct plan plan = {
            .machine = &machines[3],
            .seed = seed,
            .agents = 48,
            .groups = 1,
            .slots = 8,
            .blocks = 1 << 20,
            .tool_us = SECOND,
            .prompt_max = 1000,
            .tokens_max = 200,
            .deadline_percent = 50,
            .deadline_us = SECOND / 2,
            .duration_us = 600 * (int64_t)SECOND,
        };
        struct simulation *simulation = simulate(&plan);
        report(simulation, "half of the deadlines hopeless");
        assert_true(simulation->outcome.gap_max_us < 150 * (int64_t)SECOND);
        assert_true(simulation->outcome.turns > 60);
        finish(simulation);
    }
}

static void simulation_the_same_seed_gives_the_same_run(void **state) {
    (void)state;
    struct plan plan = {
        .machine = &machines[1],
        .seed = 5,
        .agents = 100,
        .groups = 7,
        .slots = 12,
        .blocks = 600,
        .tool_us = SECOND,
        .prompt_max = 3000,
        .tokens_max = 150,
        .deadline_percent = 30,
        .deadline_us = 20 * (int64_t)SECOND,
        .duration_us = 60 * (int64_t)SECOND,
    };
    struct simulation *first = simulate(&plan);
    struct simulation *second = simulate(&plan);
    report(first, "twice");
    assert_true(first->outcome.digest == second->outcome.digest);
    assert_int_equal(first->outcome.steps, second->outcome.steps);
    finish(second);
    plan.seed = 6;
    second = simulate(&plan);
    assert_true(first->outcome.digest != second->outcome.digest);
    finish(first);
    finish(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulation_steps_stay_under_the_limit_and_nobody_starves),
        cmocka_unit_test(simulation_a_thousand_agents_all_get_on),
        cmocka_unit_test(simulation_agents_alone_get_their_share_beside_many),
        cmocka_unit_test(simulation_deadlines_with_room_are_met_under_overload),
        cmocka_unit_test(simulation_hopeless_deadlines_do_not_starve_others),
        cmocka_unit_test(simulation_the_same_seed_gives_the_same_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
