/* Many sequences on few window slots and few blocks: arrivals, cancels, forks, deadlines, destroyed
 * ones, pre-emptions whose windows are parked or lost, idle ones that give their blocks back; each generation then again alone (promise P2).
 *
 * HEARTH_STRESS_SEED and HEARTH_STRESS_GENERATIONS choose another run. The clock moves with every look
 * at it, so that seconds of waiting take milliseconds; which decisions a run meets depends on the
 * machine, results do not.
 */
#include "engine_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define AGENTS      64
#define WINDOWS     9
#define CONTEXT     512
#define TEXT        120 /* shared by the first prompts, in part */
#define TOKENS_MAX  12
#define BIASES      2
#define GENERATIONS 260
#define SLOW_PART   7 /* of them with sanitizers */

#ifdef __SANITIZE_ADDRESS__
#define IS_SLOW 1
#elif defined(__SANITIZE_THREAD__)
#define IS_SLOW 1
#else
#define IS_SLOW 0
#endif

struct random {
    uint64_t state;
};

static uint32_t random_next(struct random *random) {
    random->state = random->state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(random->state >> 33);
}

static int32_t random_range(struct random *random, int32_t least, int32_t most) {
    return least + (int32_t)(random_next(random) % (uint32_t)(most - least + 1));
}

static bool random_chance(struct random *random, int32_t percent) {
    return random_range(random, 1, 100) <= percent;
}

/* What a generation was, to be run again. */
struct record {
    int32_t context[CONTEXT]; /* all tokens before the first sampled one */
    int32_t context_count;
    struct sampling sampling;
    struct logit_bias bias[BIASES];
    int32_t tokens[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    struct token_alternative first[TOKENS_MAX]; /* the most likely of each */
    int32_t count;
    enum finish_reason reason;
    struct generation_facts facts;
};

struct agent {
    uint64_t sequence; /* 0: none */
    bool is_running;
    int32_t events, cancel_after; /* -1: not cancelled */
    int32_t text[CONTEXT];
    int32_t count; /* known to be in the sequence */
    struct record *record;
};

struct coverage {
    int32_t forks, cancels, deadlines, destroyed, preempted, rebuilt, lost;
};

struct stress {
    struct fixture fixture;
    atomic_llong now_ms;
    struct random random;
    struct agent agents[AGENTS];
    struct record *records;
    int32_t record_count, record_max, running;
    struct coverage coverage;
};

static int64_t stress_monotonic_ms(void *context) {
    struct stress *stress = context;
    return atomic_fetch_add(&stress->now_ms, IS_SLOW ? 4 : 12);
}

static void stress_open(struct stress *stress, int32_t windows, int64_t tokens, int32_t rows) {
    char path[TEST_PATH_MAX];
    model_directory(path);
    const struct engine_options options = {
        .model_directory = path,
        .threads = 2,
        .context_max = CONTEXT,
        .sequences_max = AGENTS,
        .windows_max = windows,
        .kv_tokens_max = tokens,
        .step_rows_max = rows,
        .cache_memory_bytes = 1,
        .snapshot_bytes = (uint64_t)3 << 16, /* parked windows have to be dropped */
        .clock = {stress_monotonic_ms, stress_monotonic_ms, stress},
    };
    open_options(&stress->fixture, &options);
}

static struct agent *find_agent(struct stress *stress, uint64_t sequence) {
    for (int i = 0; i < AGENTS; i++) {
        if (stress->agents[i].sequence == sequence) {
            return &stress->agents[i];
        }
    }
    return NULL;
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void draw_sampling(struct stress *stress, struct record *record) {
    struct random *random = &stress->random;
    record->sampling = (struct sampling){
        .temperature = random_chance(random, 30) ? 0 : 0.9,
        .top_p = random_chance(random, 50) ? 1 : 0.9,
        .top_k = random_chance(random, 30) ? 20 : 0,
        .min_p = random_chance(random, 20) ? 0.02 : 0,
        .repetition_penalty = random_chance(random, 30) ? 1.3 : 0,
        .presence_penalty = random_chance(random, 30) ? 0.7 : 0,
        .frequency_penalty = random_chance(random, 30) ? 0.2 : 0,
        .alternatives = random_chance(random, 40) ? 3 : 0,
        .seed = random_next(random),
    };
    if (random_chance(random, 30)) {
        record->bias[0] = (struct logit_bias){.id = random_range(random, 3, 600), .bias = 4};
        record->bias[1] = (struct logit_bias){.id = random_range(random, 601, 1200), .bias = -9};
        record->sampling.bias = record->bias;
        record->sampling.bias_count = BIASES;
    }
}

/* Starts a generation; false when the context is used up. */
static bool start(struct stress *stress, struct agent *agent) {
    struct random *random = &stress->random;
    int32_t append =
        agent->count == 0 ? random_range(random, 2, TEXT) : random_range(random, 0, 60);
    int32_t tokens = random_range(random, agent->count == 0 ? 0 : 1, TOKENS_MAX);
    if (agent->count + append + tokens >= CONTEXT || (append == 0 && agent->count == 0)) {
        return false;
    }
    struct record *record = &stress->records[stress->record_count];
    *record = (struct record){.context_count = agent->count + append};
    if (agent->count == 0) {
        int32_t shared = random_range(random, 0, append);
        make_prompt(agent->text, append, 1);
        make_prompt(agent->text + shared, append - shared, random_next(random));
    } else {
        make_prompt(agent->text + agent->count, append, random_next(random));
    }
    memcpy(record->context, agent->text, (size_t)record->context_count * sizeof(int32_t));
    draw_sampling(stress, record);
    int64_t now_ms = atomic_load(&stress->now_ms);
    struct generation_request request = {
        .sequence = agent->sequence,
        .append = agent->text + agent->count,
        .append_count = (size_t)append,
        .sampling = record->sampling,
        .tokens_max = tokens,
        .agent = random_chance(random, 50) ? (uint64_t)random_range(random, 1, 4) : 0,
        .deadline_ms = random_chance(random, 50) ? now_ms + random_range(random, 500, 90000) : 0,
    };
    struct error error = {0};
    if (is_failed(engine_generate(stress->fixture.engine, &request, &error))) {
        /* Nothing new and nothing left to compute: the draw of before came to its end. */
        assert_int_equal(append, 0);
        return false;
    }
    agent->record = record;
    agent->is_running = true;
    agent->events = 0;
    agent->cancel_after = random_chance(random, 15) ? random_range(random, 0, 6) : -1;
    stress->record_count++;
    stress->running++;
    return true;
}

static void finish(struct stress *stress, struct agent *agent, const struct engine_event *event) {
    struct record *record = agent->record;
    record->reason = event->reason;
    record->facts = event->facts;
    agent->is_running = false;
    stress->running--;
    stress->coverage.cancels += event->reason == FINISH_CANCELLED;
    stress->coverage.deadlines += event->reason == FINISH_DEADLINE;
    stress->coverage.preempted += event->facts.preempted;
    stress->coverage.rebuilt += strcmp(event->facts.window_source, "rebuilt") == 0;
    stress->coverage.lost += event->facts.preempted_rebuilt > 0;
    if (event->reason == FINISH_ERROR) {
        print_error("%s\n", event->error.message);
        fail();
    }
    int32_t length = engine_sequence_length(stress->fixture.engine, agent->sequence);
    memcpy(
        agent->text + record->context_count, record->tokens, (size_t)record->count * sizeof(int32_t)
    );
    /* One that was cancelled before it began left nothing of its prompt. */
    bool has_begun = length == record->context_count + record->count;
    assert_true(has_begun || (record->count == 0 && length == agent->count));
    agent->count = length;
}

static void take_event(struct stress *stress, const struct engine_event *event) {
    struct agent *agent = find_agent(stress, event->sequence);
    ASSERT(agent != NULL);
    struct record *record = agent->record;
    if (event->type == ENGINE_TOKEN) {
        assert_true(record->count < TOKENS_MAX);
        record->tokens[record->count] = event->token;
        record->logprobs[record->count] = event->logprob;
        assert_int_equal(event->alternative_count, record->sampling.alternatives);
        record->first[record->count] = event->alternatives[0];
        record->count++;
    } else if (event->type == ENGINE_FINISHED) {
        finish(stress, agent, event);
    }
    if (agent->is_running && agent->cancel_after == agent->events++) {
        engine_cancel(stress->fixture.engine, agent->sequence);
    }
}

static void fork_agent(struct stress *stress, const struct agent *parent, struct agent *child) {
    struct error error = {0};
    uint64_t id = 0;
    if (is_failed(engine_sequence_fork(stress->fixture.engine, parent->sequence, &id, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    *child = *parent;
    child->sequence = id;
    stress->coverage.forks++;
}

/* Something for an agent that does not run. */
static void act(struct stress *stress, struct agent *agent) {
    struct random *random = &stress->random;
    struct engine *engine = stress->fixture.engine;
    if (agent->sequence == 0) {
        *agent = (struct agent){.sequence = create(&stress->fixture)};
    }
    if (random_chance(random, 6)) {
        engine_sequence_destroy(engine, agent->sequence);
        stress->running -= agent->is_running;
        if (agent->is_running) {
            agent->record->reason = FINISH_ERROR; /* nobody knows its end: not run again */
        }
        *agent = (struct agent){0};
        stress->coverage.destroyed++;
        return;
    }
    if (agent->is_running) {
        return;
    }
    struct agent *other = find_agent(stress, 0);
    if (agent->count > 0 && random_chance(random, IS_SLOW ? 50 : 20) && other != NULL) {
        fork_agent(stress, agent, other);
        return;
    }
    if (random_chance(random, 20)) {
        engine_sequence_tell(engine, agent->sequence, SEQUENCE_WAITING, 1000);
    } else if (stress->record_count < stress->record_max && !start(stress, agent) && agent->count + 70 + TOKENS_MAX > CONTEXT) {
        engine_sequence_destroy(engine, agent->sequence);
        *agent = (struct agent){0};
    }
}

static void drive(struct stress *stress) {
    while (stress->record_count < stress->record_max || stress->running > 0) {
        int32_t actions = stress->running == AGENTS ? 0 : random_range(&stress->random, 0, 40);
        for (int32_t i = 0; i < actions && stress->record_count < stress->record_max; i++) {
            act(stress, &stress->agents[random_range(&stress->random, 0, AGENTS - 1)]);
        }
        for (int32_t i = random_range(&stress->random, 1, 60); i > 0 && stress->running > 0; i--) {
            struct engine_event event = next_event(&stress->fixture);
            take_event(stress, &event);
        }
    }
}

/* ---- the same alone -------------------------------------------------------------------------- */

static void check_alone(struct fixture *alone, const struct record *record, int32_t number) {
    uint64_t sequence = create(alone);
    struct generation_request request = {
        .sequence = sequence,
        .append = record->context,
        .append_count = (size_t)record->context_count,
        .sampling = record->sampling,
        .tokens_max = record->count,
    };
    struct error error = {0};
    assert_true(is_ok(engine_generate(alone->engine, &request, &error)));
    int32_t count = 0;
    struct engine_event event = next_event(alone);
    for (; event.type != ENGINE_FINISHED; event = next_event(alone)) {
        if (event.type != ENGINE_TOKEN) {
            continue;
        }
        bool is_same = event.token == record->tokens[count] &&
                       memcmp(&event.logprob, &record->logprobs[count], sizeof(float)) == 0 &&
                       (record->sampling.alternatives == 0 ||
                        (event.alternatives[0].id == record->first[count].id &&
                         event.alternatives[0].logprob == record->first[count].logprob));
        if (!is_same) {
            print_error(
                "generation %d, token %d after %d: %d %.9g, alone %d %.9g (window %s, reused %d, "
                "rebuilt %d, preempted %d, of these rows %d)\n",
                number,
                count,
                record->context_count,
                record->tokens[count],
                (double)record->logprobs[count],
                event.token,
                (double)event.logprob,
                record->facts.window_source,
                record->facts.reused,
                record->facts.rebuilt,
                record->facts.preempted,
                record->facts.preempted_rebuilt
            );
            fail();
        }
        count++;
    }
    assert_int_equal(count, record->count);
    engine_sequence_destroy(alone->engine, sequence);
}

static void check_all(const struct stress *stress) {
    char path[TEST_PATH_MAX];
    model_directory(path);
    const struct engine_options options = {
        .model_directory = path,
        .threads = 1,
        .context_max = CONTEXT,
        .sequences_max = 1,
        .step_rows_max = CONTEXT,
        .has_no_prefix_cache = true,
        .has_no_speculation = true,
    };
    struct fixture alone;
    open_options(&alone, &options);
    for (int32_t i = 0; i < stress->record_count; i++) {
        if (stress->records[i].reason != FINISH_ERROR && stress->records[i].count > 0) {
            check_alone(&alone, &stress->records[i], i);
        }
    }
    close_engine(&alone);
}

static int32_t environment(const char *name, int32_t otherwise) {
    uint64_t value = 0;
    const char *text = getenv(name);
    return text != NULL && parse_u64(view_of_text(text), &value) ? (int32_t)value : otherwise;
}

static void many_in_few_slots_equal_each_alone(void **state) {
    (void)state;
    struct stress *stress = calloc(1, sizeof *stress);
    assert_non_null(stress);
    int32_t seed = environment("HEARTH_STRESS_SEED", 1);
    int32_t most = IS_SLOW ? GENERATIONS / SLOW_PART : GENERATIONS;
    stress->record_max = environment("HEARTH_STRESS_GENERATIONS", most);
    stress->records = calloc((size_t)stress->record_max, sizeof *stress->records);
    assert_non_null(stress->records);
    stress->random.state = (uint64_t)seed;
    atomic_store(&stress->now_ms, 1000);
    /* A fifth of what all contexts together could need: those that do not run give theirs. */
    stress_open(stress, WINDOWS, (int64_t)AGENTS * CONTEXT / 5, 40);
    drive(stress);
    struct engine_statistics statistics;
    engine_statistics(stress->fixture.engine, &statistics);
    const struct coverage *coverage = &stress->coverage;
    print_message(
        "seed %d: %d generations, %d forks, %d cancels, %d late, %d destroyed, %d pre-empted, %d "
        "rebuilt, %d with a parked window lost, %llu demoted; %llu steps, longest %lld us; "
        "decisions %.1f us a step, longest %lld us\n",
        seed,
        stress->record_count,
        coverage->forks,
        coverage->cancels,
        coverage->deadlines,
        coverage->destroyed,
        coverage->preempted,
        coverage->rebuilt,
        coverage->lost,
        (unsigned long long)statistics.total.demoted,
        (unsigned long long)statistics.total.steps,
        (long long)statistics.step_us_max,
        (double)statistics.decision_us / (double)statistics.total.steps,
        (long long)statistics.decision_us_max
    );
    assert_int_equal(statistics.request_count, 0);
    assert_int_equal(statistics.blocks_promised, 0);
    assert_true(coverage->preempted + coverage->rebuilt > 0);
    if (IS_SLOW) { /* too few to have met everything */
        assert_true(coverage->forks + coverage->cancels + coverage->destroyed > 0);
    } else {
        assert_true(coverage->forks > 0 && coverage->cancels > 0 && coverage->destroyed > 0);
        assert_true(coverage->preempted > 0 && coverage->rebuilt > 0 && coverage->lost > 0);
        assert_true(statistics.total.demoted > 0);
    }
    close_engine(&stress->fixture);
    check_all(stress);
    free(stress->records);
    free(stress);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_in_few_slots_equal_each_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
