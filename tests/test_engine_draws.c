/* What the engine makes of settings, against their definitions: which token penalties leave, who goes on
 * first, when a cancel takes effect. The test sees each draw, and makes its logits or holds it there. And what trouble in a draw leaves. */
#include "engine_support.h"

#include <math.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

/* ---- penalties ------------------------------------------------------------------------------- */

#define PENALISED 12

/* Raw logits of each draw, which the test makes: some ids of the prompt are the likeliest. */
struct seen_logits {
    const int32_t *prompt;
    float rows[PENALISED][VOCABULARY];
    int32_t count;
};

static void see(void *context, uint64_t sequence, int32_t length, float *logits, int32_t count) {
    struct seen_logits *seen = context;
    (void)sequence;
    assert_true(length - PROMPT == seen->count && seen->count < PENALISED && count == VOCABULARY);
    for (int32_t i = 0; i < count; i++) {
        logits[i] = (float)((i * 7919 + length) % 1000) / 1000.0F - 0.2F;
    }
    for (int32_t i = 0; i < 3; i++) {
        logits[seen->prompt[i]] = 1.0F + 0.25F * (float)i;
    }
    memcpy(seen->rows[seen->count++], logits, sizeof seen->rows[0]);
}

/* The largest logit by the definitions of sampling.h; of equals the first. */
static int32_t largest_by_definition(
    const float *row,
    const struct sampling *sampling,
    const int32_t *prompt,
    int32_t prompt_count,
    const int32_t *sampled,
    int32_t sampled_count
) {
    int32_t best = 0;
    double largest = -HUGE_VAL;
    for (int32_t id = 0; id < VOCABULARY; id++) {
        int32_t in_prompt = 0;
        int32_t times = 0;
        for (int32_t i = 0; i < prompt_count; i++) {
            in_prompt += prompt[i] == id;
        }
        for (int32_t i = 0; i < sampled_count; i++) {
            times += sampled[i] == id;
        }
        double logit = (double)row[id];
        if (in_prompt + times > 0) {
            double by = sampling->repetition_penalty;
            logit = logit < 0 ? logit * by : logit / by;
        }
        logit -= times > 0 ? sampling->presence_penalty + sampling->frequency_penalty * times : 0;
        logit = (double)(float)logit;
        if (logit > largest) {
            largest = logit;
            best = id;
        }
    }
    return best;
}

static void penalties_count_prompt_and_what_was_sampled(void **state) {
    (void)state;
    static struct seen_logits seen;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    int32_t tokens[PENALISED];
    seen.prompt = prompt;
    make_prompt(prompt, PROMPT, 3);
    open_engine(&fixture, 2, 512);
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = see;
    fixture.engine->observe_context = &seen;
    pthread_mutex_unlock(&fixture.engine->lock);
    static const struct sampling settings[] = {
        {.repetition_penalty = 1.8},
        {.repetition_penalty = 1, .presence_penalty = 2},
        {.repetition_penalty = 1, .frequency_penalty = 1.5},
        {.repetition_penalty = 1.3, .presence_penalty = 0.5, .frequency_penalty = 2},
    };
    int32_t by_prompt = 0;
    int32_t by_sampled = 0;
    for (size_t s = 0; s < COUNT_OF(settings); s++) {
        int32_t count = 0;
        seen.count = 0;
        const struct generation_request request = {
            .sampling = settings[s], .tokens_max = PENALISED, .speculation = SPECULATE_OFF};
        (void)run_request(&fixture, request, tokens, &count);
        assert_int_equal(count, seen.count);
        for (int32_t i = 0; i < count; i++) {
            const float *row = seen.rows[i];
            int32_t all = largest_by_definition(row, &settings[s], prompt, PROMPT, tokens, i);
            assert_int_equal(tokens[i], all);
            by_prompt += largest_by_definition(row, &settings[s], prompt, 0, tokens, i) != all;
            by_sampled +=
                largest_by_definition(row, &settings[s], prompt, PROMPT, tokens, 0) != all;
        }
    }
    print_message("draws changed: %d by the prompt, %d by tokens before\n", by_prompt, by_sampled);
    assert_true(by_prompt > 0 && by_sampled > 0);
    close_engine(&fixture);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Holds the engine thread in a draw until the test lets it go on. */
struct gate {
    atomic_bool is_reached, is_open;
    uint64_t sequence;
};

static void wait_at(void *context, uint64_t sequence, int32_t length, float *logits, int32_t n) {
    struct gate *gate = context;
    (void)logits;
    (void)n;
    if (sequence == gate->sequence && length == PROMPT + 2) {
        atomic_store(&gate->is_reached, true);
        while (!atomic_load(&gate->is_open)) {
            (void)sched_yield();
        }
    }
}

/* One runs in the only slot, two come while it does; which of these goes on when it ends. */
static int32_t first_behind(const struct generation_request requests[3]) {
    char path[TEST_PATH_MAX];
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    uint64_t sequences[3];
    struct gate gate = {0};
    model_directory(path);
    open_options(
        &fixture,
        &(struct engine_options
        ){.model_directory = path,
          .threads = 1,
          .context_max = 512,
          .sequences_max = 3,
          .windows_max = 1,
          .step_rows_max = 32}
    );
    for (uint32_t i = 0; i < 3; i++) {
        sequences[i] = create(&fixture);
    }
    gate.sequence = sequences[0];
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = wait_at;
    fixture.engine->observe_context = &gate;
    pthread_mutex_unlock(&fixture.engine->lock);
    for (uint32_t i = 0; i < 3; i++) {
        struct generation_request request = requests[i];
        make_prompt(prompt, PROMPT, 20 + i);
        request.sequence = sequences[i];
        request.append = prompt;
        request.append_count = PROMPT;
        request.sampling = (struct sampling){.temperature = 1, .top_p = 1, .seed = i};
        request.tokens_max = 8;
        request.deadline_ms += request.deadline_ms > 0 ? engine_now_ms(fixture.engine) : 0;
        assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
        while (i == 0 && !atomic_load(&gate.is_reached)) {
            (void)sched_yield();
        }
    }
    atomic_store(&gate.is_open, true);
    int32_t first = -1;
    for (int32_t ends = 0; ends < 3;) {
        struct engine_event event = next_event(&fixture);
        ends += event.type == ENGINE_FINISHED;
        for (int32_t i = 1; i < 3 && first < 0; i++) {
            first = event.sequence == sequences[i] ? i : first;
        }
    }
    close_engine(&fixture);
    return first;
}

static void slack_then_fairness_then_age_order_requests(void **state) {
    (void)state;
    const struct generation_request by_age[3] = {{.agent = 1}, {.agent = 2}, {.agent = 3}};
    assert_int_equal(first_behind(by_age), 1);
    const struct generation_request by_service[3] = {{.agent = 1}, {.agent = 1}, {.agent = 2}};
    assert_int_equal(first_behind(by_service), 2);
    const struct generation_request by_slack[3] = {
        {.agent = 1}, {.agent = 2}, {.agent = 1, .deadline_ms = 3600000}};
    assert_int_equal(first_behind(by_slack), 2);
}

/* Nobody waits for a step, and what is said is about the one that runs. */
static void questions_are_answered_while_a_step_runs(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    int32_t tokens[8];
    int32_t count = 0;
    struct gate gate = {0};
    make_prompt(prompt, PROMPT, 20);
    open_engine(&fixture, 2, 512);
    gate.sequence = create(&fixture);
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = wait_at;
    fixture.engine->observe_context = &gate;
    pthread_mutex_unlock(&fixture.engine->lock);
    must_generate(&fixture, gate.sequence, prompt, PROMPT, 8);
    while (!atomic_load(&gate.is_reached)) {
        (void)sched_yield();
    }
    (void)poll(NULL, 0, 30); /* time has to pass for a step to be long */
    struct engine_statistics statistics;
    struct engine_stuck stuck = {0};
    engine_statistics(fixture.engine, &statistics);
    assert_true(statistics.step_running_ms >= 25);
    assert_int_equal(statistics.decoding, 1);
    const struct engine_request_status *request = &statistics.requests[0];
    assert_true(request->sequence == gate.sequence && request->wait == ENGINE_WAIT_NONE);
    assert_true(request->sampled == 2 && request->progress_ms >= 25);
    assert_true(engine_watch(fixture.engine, 25, &stuck));
    assert_true(stuck.sequence == gate.sequence && stuck.wait == ENGINE_WAIT_NONE);
    assert_true(stuck.stuck_ms >= 25);
    assert_non_null(strstr(stuck.why, "a step that it is part of"));
    atomic_store(&gate.is_open, true);
    struct engine_event end = collect(&fixture, gate.sequence, tokens, &count);
    assert_int_equal(end.reason, FINISH_LENGTH);
    assert_false(engine_watch(fixture.engine, 0, &stuck));
    close_engine(&fixture);
}

/* ---- cancel ---------------------------------------------------------------------------------- */

struct canceller {
    struct engine *engine;
    int32_t length;
};

static void cancel_at(void *context, uint64_t sequence, int32_t length, float *logits, int32_t n) {
    const struct canceller *canceller = context;
    (void)logits;
    (void)n;
    if (length == canceller->length) {
        engine_cancel(canceller->engine, sequence);
    }
}

/* Said while a step draws: that step is the last one. */
static void cancel_takes_effect_at_the_next_step(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    struct canceller canceller = {.engine = fixture.engine, .length = PROMPT + 3};
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = cancel_at;
    fixture.engine->observe_context = &canceller;
    pthread_mutex_unlock(&fixture.engine->lock);
    int32_t tokens[64];
    int32_t count = 0;
    const struct generation_request request = {
        .sampling = {.temperature = 1, .seed = 5},
        .tokens_max = 64,
        .speculation = SPECULATE_OFF,
    };
    struct engine_event end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_CANCELLED);
    assert_int_equal(count, 4);
    assert_int_equal(end.facts.sampled, 4);
    close_engine(&fixture);
}

/* Holds the draw behind the second token, and cancels the other one behind the fifth. */
struct prefill_canceller {
    struct gate gate;
    struct engine *engine;
    atomic_ullong other;
};

static void
cancel_other(void *context, uint64_t sequence, int32_t length, float *logits, int32_t n) {
    struct prefill_canceller *canceller = context;
    wait_at(&canceller->gate, sequence, length, logits, n);
    if (sequence == canceller->gate.sequence && length == PROMPT + 4) {
        engine_cancel(canceller->engine, atomic_load(&canceller->other));
    }
}

/* Said while a step runs rows of its prompt: its end is told before the next step's token of the other. */
static void cancel_of_a_prompt_takes_effect_at_the_next_step(void **state) {
    (void)state;
    enum { LONG = 450 };
    struct fixture fixture;
    int32_t prompt[LONG];
    open_engine(&fixture, 2, 512);
    struct prefill_canceller canceller = {.engine = fixture.engine};
    canceller.gate.sequence = create(&fixture);
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = cancel_other;
    fixture.engine->observe_context = &canceller;
    pthread_mutex_unlock(&fixture.engine->lock);
    make_prompt(prompt, LONG, 3);
    const struct generation_request running = {
        .sequence = canceller.gate.sequence,
        .append = prompt,
        .append_count = PROMPT,
        .sampling = {.temperature = 1, .top_p = 1, .seed = 5},
        .tokens_max = 16,
        .speculation = SPECULATE_OFF,
    };
    struct error error = {0};
    assert_true(is_ok(engine_generate(fixture.engine, &running, &error)));
    while (!atomic_load(&canceller.gate.is_reached)) {
        (void)sched_yield();
    }
    uint64_t other = create(&fixture);
    make_prompt(prompt, LONG, 4);
    atomic_store(&canceller.other, other);
    must_generate(&fixture, other, prompt, LONG, 8);
    atomic_store(&canceller.gate.is_open, true);
    int32_t count = 0;
    int32_t done = 0;
    bool is_cancelled = false;
    for (bool is_over = false; !is_over;) {
        struct engine_event event = next_event(&fixture);
        if (event.sequence != other) {
            count += event.type == ENGINE_TOKEN;
            is_over = event.type == ENGINE_FINISHED;
        } else if (event.type == ENGINE_PROGRESS) {
            done = event.done;
        } else {
            assert_int_equal(event.type, ENGINE_FINISHED);
            assert_int_equal(event.reason, FINISH_CANCELLED);
            assert_int_equal(count, 5);
            assert_true(event.facts.evaluated > 0 && event.facts.evaluated < LONG);
            assert_int_equal(event.facts.evaluated, done);
            assert_int_equal(event.facts.prompt_tokens, done);
            assert_int_equal(event.facts.sampled, 0);
            is_cancelled = true;
        }
    }
    assert_true(is_cancelled);
    assert_int_equal(count, 16);
    close_engine(&fixture);
}

/* ---- trouble --------------------------------------------------------------------------------- */

static atomic_int calls_left; /* until one of synchronize fails; 0: none does */
static result (*synchronize_well)(struct backend *backend, struct error *error);

static result synchronize_badly(struct backend *backend, struct error *error) {
    if (atomic_load(&calls_left) > 0 && atomic_fetch_sub(&calls_left, 1) == 1) {
        FAIL(error, DEVICE, "the device is gone");
    }
    return synchronize_well(backend, error);
}

static int32_t
suggest_wrongly(void *context, uint64_t sequence, int32_t length, int32_t most, int32_t *ids) {
    const int32_t *nth = context;
    (void)sequence;
    atomic_store(&calls_left, length == PROMPT + 3 ? *nth : 0);
    for (int32_t i = 0; i < most; i++) {
        ids[i] = 3 + i;
    }
    return most;
}

/* In a step with drafts, wherever that is: sequences of the step are lost, the engine goes on. */
static void device_that_fails_with_drafts_ends_that_step_alone(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t tokens[64];
    int32_t count = 0;
    int32_t errors = 0;
    open_engine(&fixture, 2, 512);
    struct backend *backend = fixture.engine->backend;
    for (int32_t nth = 1; nth <= 3; nth++) {
        pthread_mutex_lock(&fixture.engine->lock);
        synchronize_well = nth == 1 ? backend->synchronize : synchronize_well;
        backend->synchronize = synchronize_badly;
        fixture.engine->suggest = suggest_wrongly;
        fixture.engine->suggest_context = &nth;
        pthread_mutex_unlock(&fixture.engine->lock);
        const struct generation_request request = {
            .sampling = {.temperature = 1, .seed = 6},
            .tokens_max = 16,
            .speculation = SPECULATE_LOOKUP,
        };
        int32_t prompt[PROMPT];
        struct error error = {0};
        struct generation_request whole = request;
        make_prompt(prompt, PROMPT, 3);
        whole.sequence = create(&fixture);
        whole.append = prompt;
        whole.append_count = PROMPT;
        whole.sampling.top_p = 1;
        assert_true(is_ok(engine_generate(fixture.engine, &whole, &error)));
        struct engine_event end = collect(&fixture, whole.sequence, tokens, &count);
        errors += end.reason == FINISH_ERROR;
        engine_sequence_destroy(fixture.engine, whole.sequence);
        pthread_mutex_lock(&fixture.engine->lock);
        atomic_store(&calls_left, 0);
        fixture.engine->suggest = NULL;
        pthread_mutex_unlock(&fixture.engine->lock);
        end = run_request(&fixture, request, tokens, &count);
        assert_int_equal(end.reason, FINISH_LENGTH);
    }
    print_message("%d of 3 calls that failed ended a generation\n", errors);
    assert_true(errors >= 2);
    close_engine(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_count_prompt_and_what_was_sampled),
        cmocka_unit_test(slack_then_fairness_then_age_order_requests),
        cmocka_unit_test(questions_are_answered_while_a_step_runs),
        cmocka_unit_test(cancel_takes_effect_at_the_next_step),
        cmocka_unit_test(cancel_of_a_prompt_takes_effect_at_the_next_step),
        cmocka_unit_test(device_that_fails_with_drafts_ends_that_step_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
