/* Steps whose arguments follow from their rows run from a record where the backend keeps some (a CUDA
 * graph): whatever else they were recorded with, their bits are those of a prompt evaluated at once. */
#include "forward_support.h"
#include "guarded_backend.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SEQUENCES = 3, PROMPT_LEAST = 9, STEPS = 5, LENGTH_MAX = PROMPT_LEAST + SEQUENCES + STEPS };

struct steps {
    struct bench bench;
    int32_t ids[SEQUENCES][LENGTH_MAX];
    float *wanted[SEQUENCES]; /* [LENGTH_MAX, V] */
    struct kv_sequence *truth[SEQUENCES];
};

static int32_t prompt_of(int32_t s) {
    return PROMPT_LEAST + s; // odd and even positions in one step
}

static void open_steps(struct steps *steps) {
    *steps = (struct steps){0};
    struct bench_options options = {
        .model = "golden/tiny-a",
        .rows_max = LENGTH_MAX,
        .sequences_max = 2 * SEQUENCES,
        .context_max = 256,
    };
    bench_open(&steps->bench, &options);
    size_t vocabulary = (size_t)steps->bench.config->vocabulary;
    for (int32_t s = 0; s < SEQUENCES; s++) {
        for (int32_t i = 0; i < LENGTH_MAX; i++) {
            steps->ids[s][i] = 3 + (i * 37 + s * 101) % 1000;
        }
        int32_t length = prompt_of(s) + STEPS;
        steps->wanted[s] = calloc(LENGTH_MAX * vocabulary, sizeof(float));
        assert_non_null(steps->wanted[s]);
        steps->truth[s] = bench_sequence(&steps->bench, steps->ids[s], length);
        bench_run(&steps->bench, steps->truth[s], length, length, true, steps->wanted[s], NULL);
    }
}

static void close_steps(struct steps *steps) {
    for (int32_t s = 0; s < SEQUENCES; s++) {
        free(steps->wanted[s]);
    }
    bench_close(&steps->bench);
}

/* One token more of each sequence, in one step. */
static void
decode(struct steps *steps, struct kv_sequence *const *sequences, int32_t count, int32_t step) {
    struct bench *bench = &steps->bench;
    size_t vocabulary = (size_t)bench->config->vocabulary;
    struct forward_segment segments[SEQUENCES];
    float *logits = calloc(SEQUENCES * vocabulary, sizeof *logits);
    assert_non_null(logits);
    for (int32_t s = 0; s < count; s++) {
        int32_t position = prompt_of(s) + step;
        bench_append(bench, sequences[s], &steps->ids[s][position], 1);
        segments[s] = (struct forward_segment){
            .sequence = sequences[s],
            .position = position,
            .count = 1,
            .prompt_end = position + 1,
            .logits = FORWARD_LOGITS_LAST,
        };
    }
    MUST(forward_step(bench->forward, segments, count, NULL, error));
    assert_int_equal(forward_logit_rows(bench->forward), count);
    /* By turns together and one by one, as callers may. */
    for (int32_t first = 0; first < count;) {
        int32_t rows = step % 2 == 0 ? count : 1;
        float *to = logits + (size_t)first * vocabulary;
        MUST(forward_logits(bench->forward, first, rows, to, error));
        first += rows;
    }
    for (int32_t s = 0; s < count; s++) {
        const float *wanted = steps->wanted[s] + (size_t)(prompt_of(s) + step) * vocabulary;
        assert_memory_equal(logits + (size_t)s * vocabulary, wanted, vocabulary * sizeof *wanted);
    }
    free(logits);
}

static void decode_steps_equal_one_shot_whoever_recorded_them(void **state) {
    (void)state;
    struct steps steps;
    open_steps(&steps);
    struct bench *bench = &steps.bench;
    /* Twice with other sequences, in other blocks and window slots. */
    for (int32_t round = 0; round < 2; round++) {
        struct kv_sequence *sequences[SEQUENCES];
        for (int32_t s = SEQUENCES; s-- > 0;) {
            int32_t prompt = prompt_of(s);
            sequences[s] = bench_sequence(bench, steps.ids[s], prompt);
            bench_run(bench, sequences[s], prompt, prompt, false, NULL, NULL);
        }
        for (int32_t step = 0; step < STEPS; step++) {
            decode(&steps, sequences, SEQUENCES, step);
        }
        for (int32_t s = 0; s < SEQUENCES; s++) {
            bench_assert_state_equal(bench, sequences[s], bench, steps.truth[s]);
        }
        kv_cache_release(&bench->cache, sequences[round]);
        kv_cache_release(&bench->cache, sequences[1 - round]);
        kv_cache_release(&bench->cache, sequences[2]);
    }
    if (strcmp(bench->backend->name, GUARDED_BACKEND_NAME) == 0) {
        struct guarded_counts counts;
        guarded_backend_count(bench->backend, &counts);
        assert_true(counts.recorded > 0 && counts.replayed >= 2 * STEPS - 2);
    }
    close_steps(&steps);
}

/* A step that somebody counts, or with rows of a prompt, is none of them, and changes none. */
static void steps_of_other_kinds_are_not_recorded(void **state) {
    (void)state;
    struct steps steps;
    open_steps(&steps);
    struct bench *bench = &steps.bench;
    struct kv_sequence *sequence = bench_sequence(bench, steps.ids[0], prompt_of(0));
    bench_run(bench, sequence, prompt_of(0), 1, false, NULL, NULL); // rows that no logits follow
    size_t vocabulary = (size_t)bench->config->vocabulary;
    float *logits = calloc(vocabulary, sizeof *logits);
    assert_non_null(logits);
    for (int32_t step = 0; step < STEPS; step++) {
        struct layer_counters counters[MODEL_LAYERS_MAX] = {{0}};
        int32_t position = prompt_of(0) + step;
        bench_append(bench, sequence, &steps.ids[0][position], 1);
        bool is_counted = step % 2 == 1;
        bench_run(bench, sequence, position + 1, 1, false, logits, is_counted ? counters : NULL);
        const float *wanted = steps.wanted[0] + (size_t)position * vocabulary;
        assert_memory_equal(logits, wanted, vocabulary * sizeof *wanted);
        assert_int_equal(counters[0].rows_full, is_counted);
    }
    bench_assert_state_equal(bench, sequence, bench, steps.truth[0]);
    if (strcmp(bench->backend->name, GUARDED_BACKEND_NAME) == 0) {
        struct guarded_counts counts;
        guarded_backend_count(bench->backend, &counts);
        assert_true(counts.recorded > 0);
        assert_true(counts.recorded + counts.replayed <= (STEPS + 1) / 2 + 1);
    }
    free(logits);
    close_steps(&steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_steps_equal_one_shot_whoever_recorded_them),
        cmocka_unit_test(steps_of_other_kinds_are_not_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
