/* Opening an engine while the nth allocation fails: an error each time, nothing left behind (the leak
 * sanitizer watches), and it opens when memory is back. And once it is open, tokens allocate nothing, and requests what the plan has for them. */
#include "engine/engine_internal.h"
#include "failing_memory.h"
#include "test_safetensors.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define ALLOCATIONS_MAX 200000

/* Memory of the backend comes aligned, which failing_memory.c does not count. */
static atomic_size_t aligned_allocations;
void *__real_aligned_alloc(size_t alignment, size_t bytes); // NOLINT(bugprone-reserved-identifier)
void *__wrap_aligned_alloc(size_t alignment, size_t bytes); // NOLINT(bugprone-reserved-identifier)

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    atomic_fetch_add(&aligned_allocations, 1);
    return __real_aligned_alloc(alignment, bytes);
}

static void find_model(char path[TEST_PATH_MAX]) {
    assert_true(test_data_find(path, "golden/tiny-a/config.json"));
    path[strlen(path) - strlen("/config.json")] = '\0';
}

static void open_survives_any_failed_allocation(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    find_model(path);
    struct engine_options options = {
        .model_directory = path, .threads = 1, .context_max = 64, .step_rows_max = 8};
    bool fired = true;
    size_t tried = 0;
    /* Steps grow: the tokenizer allocates thousands of small pieces by the same few lines. */
    for (size_t nth = 1; fired && nth < ALLOCATIONS_MAX; nth += 1 + nth / 12) {
        struct engine *engine = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result opened = engine_open(&options, &engine, &error);
        fired = failing_memory_fired();
        failing_memory_arm(0);
        /* Where memory is only a convenience, it may open all the same. */
        assert_true(is_ok(opened) == (engine != NULL));
        if (is_failed(opened)) {
            assert_true(fired);
            assert_true(error.message[0] != '\0');
        }
        engine_close(engine);
        tried++;
    }
    assert_false(fired);
    print_message("%zu failed allocations tried\n", tried);
}

static void tokens_allocate_nothing_after_start(void **state) {
    (void)state;
    enum { PROMPT = 50, SAMPLED = 40 };
    char path[TEST_PATH_MAX];
    find_model(path);
    struct engine_options options = {
        .model_directory = path, .threads = 2, .context_max = 128, .step_rows_max = 8};
    struct engine *engine = NULL;
    struct error error = {0};
    uint64_t sequence = 0;
    assert_true(is_ok(engine_open(&options, &engine, &error)));
    assert_true(atomic_load(&aligned_allocations) > 0);
    assert_true(is_ok(engine_sequence_create(engine, &sequence, &error)));
    int32_t ids[PROMPT];
    for (int32_t i = 0; i < PROMPT; i++) {
        ids[i] = 3 + (i * 37) % 1000;
    }
    struct generation_request request = {
        .sequence = sequence,
        .append = ids,
        .append_count = PROMPT,
        .sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 1},
        .tokens_max = SAMPLED,
    };
    size_t before = failing_memory_count();
    size_t aligned_before = atomic_load(&aligned_allocations);
    assert_true(is_ok(engine_generate(engine, &request, &error)));
    struct engine_event event = {.type = ENGINE_PROGRESS};
    while (event.type != ENGINE_FINISHED) {
        if (!engine_next_event(engine, &event)) {
            (void)sched_yield();
        }
    }
    assert_true(event.facts.sampled > 1);
    /* The request's own: a copy of the ids, an index of the sequence for drafts and its tables. */
    assert_int_equal(failing_memory_count() - before, 3);
    assert_int_equal(atomic_load(&aligned_allocations), aligned_before);
    engine_close(engine);
}

/* Everything that a request can ask for, at its largest. */
static void request_takes_what_the_plan_has_for_it(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    find_model(path);
    struct engine_options options = {.model_directory = path, .threads = 1, .context_max = 1500};
    struct engine *engine = NULL;
    struct error error = {0};
    uint64_t sequence = 0;
    assert_true(is_ok(engine_open(&options, &engine, &error)));
    int32_t vocabulary = engine->info.vocabulary;
    struct sampler *sampler = NULL;
    size_t before = failing_memory_bytes();
    assert_true(is_ok(sampler_create(&sampler, vocabulary, &error)));
    assert_int_equal(failing_memory_bytes() - before, sampler_bytes(vocabulary));
    sampler_destroy(sampler);
    static int32_t ids[1499];
    static struct logit_bias bias[SAMPLING_BIAS_MAX];
    static char text[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX];
    struct view stops[STOP_STRINGS_MAX];
    for (int32_t i = 0; i < STOP_STRINGS_MAX; i++) {
        memset(text[i], 'a' + i % 26, STOP_STRING_BYTES_MAX);
        stops[i] = view_of(text[i], STOP_STRING_BYTES_MAX);
    }
    for (int32_t i = 0; i < SAMPLING_BIAS_MAX; i++) {
        bias[i].id = i;
    }
    assert_true(is_ok(engine_sequence_create(engine, &sequence, &error)));
    const struct generation_request request = {
        .sequence = sequence,
        .append = ids,
        .append_count = COUNT_OF(ids),
        .sampling =
            {.temperature = 1,
             .top_p = 1,
             .repetition_penalty = 1.1,
             .bias = bias,
             .bias_count = SAMPLING_BIAS_MAX},
        .tokens_max = 1500,
        .stops = stops,
        .stop_count = STOP_STRINGS_MAX,
        .guard = {.loop_span_max = 8, .loop_times = 4, .loop_tokens = 8, .call_max = 100},
    };
    before = failing_memory_bytes();
    assert_true(is_ok(engine_generate(engine, &request, &error)));
    uint64_t taken = failing_memory_bytes() - before;
    uint64_t planned = engine_request_bytes(&engine->plan, vocabulary) + lookup_bytes(1500);
    print_message("%llu of %llu bytes\n", (unsigned long long)taken, (unsigned long long)planned);
    assert_true(taken <= planned && taken >= planned - planned / 100);
    engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_allocate_nothing_after_start),
        cmocka_unit_test(request_takes_what_the_plan_has_for_it),
        cmocka_unit_test(open_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
