/* See engine_support.h. */
#include "engine_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MODEL_FILE   "golden/tiny-a/config.json"
#define WAIT_SECONDS 120

static void wake(void *context) {
    struct waker *waker = context;
    pthread_mutex_lock(&waker->lock);
    waker->wakes++;
    pthread_cond_signal(&waker->woken);
    pthread_mutex_unlock(&waker->lock);
}

void model_directory(char path[TEST_PATH_MAX]) {
    assert_true(test_data_find(path, MODEL_FILE));
    path[strlen(path) - strlen("/config.json")] = '\0';
}

void open_options(struct fixture *fixture, const struct engine_options *options) {
    struct error error = {0};
    struct engine_options complete = *options;
    memset(fixture, 0, sizeof *fixture);
    pthread_mutex_init(&fixture->waker.lock, NULL);
    pthread_cond_init(&fixture->waker.woken, NULL);
    complete.wake = wake;
    complete.wake_context = &fixture->waker;
    if (is_failed(engine_open(&complete, &fixture->engine, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
}

void open_engine(struct fixture *fixture, int32_t sequences, int32_t context) {
    char path[TEST_PATH_MAX];
    model_directory(path);
    const struct engine_options options = {
        .model_directory = path,
        .threads = 1,
        .context_max = context,
        .sequences_max = sequences,
        .step_rows_max = 32,
    };
    open_options(fixture, &options);
}

void close_engine(struct fixture *fixture) {
    engine_close(fixture->engine);
    pthread_cond_destroy(&fixture->waker.woken);
    pthread_mutex_destroy(&fixture->waker.lock);
}

struct engine_event next_event(struct fixture *fixture) {
    struct engine_event event;
    struct timespec deadline;
    (void)clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_SECONDS;
    while (!engine_next_event(fixture->engine, &event)) {
        pthread_mutex_lock(&fixture->waker.lock);
        int failed = 0;
        while (fixture->waker.wakes == 0 && failed == 0) {
            failed = pthread_cond_timedwait(&fixture->waker.woken, &fixture->waker.lock, &deadline);
        }
        fixture->waker.wakes = 0;
        pthread_mutex_unlock(&fixture->waker.lock);
        assert_int_equal(failed, 0);
    }
    return event;
}

void make_prompt(int32_t *ids, int32_t count, uint32_t seed) {
    for (int32_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        ids[i] = 3 + (int32_t)((seed >> 8) % 1200U);
    }
}

uint64_t create(struct fixture *fixture) {
    uint64_t sequence = 0;
    struct error error;
    assert_true(is_ok(engine_sequence_create(fixture->engine, &sequence, &error)));
    return sequence;
}

result generate(
    struct fixture *fixture,
    uint64_t sequence,
    const int32_t *ids,
    size_t count,
    int32_t tokens,
    struct error *error
) {
    struct generation_request request = {
        .sequence = sequence,
        .append = ids,
        .append_count = count,
        .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 42},
        .tokens_max = tokens,
    };
    return engine_generate(fixture->engine, &request, error);
}

void must_generate(
    struct fixture *fixture, uint64_t sequence, const int32_t *ids, size_t count, int32_t tokens
) {
    struct error error = {0};
    if (is_failed(generate(fixture, sequence, ids, count, tokens, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
}

struct engine_event
collect(struct fixture *fixture, uint64_t sequence, int32_t *tokens, int32_t *count) {
    *count = 0;
    for (;;) {
        struct engine_event event = next_event(fixture);
        assert_true(event.sequence == sequence);
        if (event.type == ENGINE_TOKEN) {
            assert_true(event.logprob <= 0 && isfinite(event.logprob));
            tokens[(*count)++] = event.token;
        } else if (event.type == ENGINE_FINISHED) {
            return event;
        }
    }
}

void check_facts(const struct generation_facts *facts, int32_t sampled) {
    assert_int_equal(facts->evaluated + facts->reused, facts->prompt_tokens);
    assert_int_equal(facts->hit_position, facts->reused);
    assert_int_equal(facts->rebuilt, facts->reused - facts->rebuilt_from);
    assert_int_equal(facts->sampled, sampled);
    assert_int_equal(strlen(facts->lineage), 64);
    assert_true(facts->queued_us >= 0 && facts->prefill_us >= 0 && facts->decode_us >= 0);
}

struct engine_event run_request(
    struct fixture *fixture, struct generation_request request, int32_t *tokens, int32_t *count
) {
    int32_t prompt[PROMPT];
    struct error error = {0};
    uint64_t sequence = create(fixture);
    make_prompt(prompt, PROMPT, 3);
    request.sequence = sequence;
    request.append = prompt;
    request.append_count = PROMPT;
    request.sampling.top_p = 1;
    if (is_failed(engine_generate(fixture->engine, &request, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    struct engine_event end = collect(fixture, sequence, tokens, count);
    assert_int_equal(engine_sequence_length(fixture->engine, sequence), PROMPT + *count);
    engine_sequence_destroy(fixture->engine, sequence);
    return end;
}
