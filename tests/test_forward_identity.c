/* Promise P2: the same tokens give the same logits and caches, bit for bit, however they got there:
 * one shot or chunks of any size, step by step, appended turn by turn, narrowed or not, in a batch
 * with other sequences, on any instruction set and number of threads. And what ran is counted. */
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MODEL   "golden/tiny-a"
#define LENGTH  213
#define CONTEXT 240

/* Tokens of a fixed generator (seed below); ids of ordinary tokens. */
static void make_ids(int32_t *ids, int32_t count, uint32_t seed) {
    for (int32_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        ids[i] = 3 + (int32_t)((seed >> 8) % 1200U);
    }
}

/* Another backend than the CPU's has other bits: then all of this is that backend with itself. */
static bool backend_is_chosen(void) {
    return getenv("HEARTH_TEST_BACKEND") != NULL;
}

static void open_bench(struct bench *bench, const char *isa, int32_t threads, int32_t sequences) {
    struct bench_options options = {
        .model = MODEL,
        .isa = backend_is_chosen() ? NULL : isa,
        .threads = threads,
        .rows_max = 300,
        .sequences_max = sequences,
        .context_max = CONTEXT,
    };
    bench_open(bench, &options);
}

/* What everything is compared with: plain C, one thread, one shot, logits of all positions. Plain C takes
 * minutes under sanitizers, where the tests of the kernels run it: the best instruction set stands in. */
#define BASE_ISA (BENCH_IS_SLOW ? NULL : "plain")

struct baseline {
    struct bench bench;
    int32_t ids[LENGTH];
    float *logits; /* [LENGTH, V] */
    struct kv_sequence *sequence;
};

static int open_baseline(void **state) {
    struct baseline *base = calloc(1, sizeof *base);
    assert_non_null(base);
    make_ids(base->ids, LENGTH, 20261129U);
    open_bench(&base->bench, BASE_ISA, 1, 1);
    base->logits = calloc((size_t)LENGTH * (size_t)base->bench.config->vocabulary, sizeof(float));
    assert_non_null(base->logits);
    base->sequence = bench_sequence(&base->bench, base->ids, LENGTH);
    bench_run(&base->bench, base->sequence, LENGTH, LENGTH, true, base->logits, NULL);
    *state = base;
    return 0;
}

static int close_baseline(void **state) {
    struct baseline *base = *state;
    bench_close(&base->bench);
    free(base->logits);
    free(base);
    return 0;
}

static size_t row_bytes(const struct baseline *base) {
    return (size_t)base->bench.config->vocabulary * sizeof(float);
}

static const float *row_of(const struct baseline *base, int32_t position) {
    return base->logits + (size_t)position * (size_t)base->bench.config->vocabulary;
}

static const char *const isas[] = {"plain", "avx2", "avx512"};

static bool has_isa(const struct baseline *base, const char *isa) {
    if (backend_is_chosen()) {
        return isa == isas[0]; // once, whatever its name
    }
    struct backend_options probe;
    struct backend *backend = NULL;
    forward_backend_options(base->bench.config, 1, 1, &probe);
    probe.name = "cpu";
    probe.threads = 1;
    probe.isa = isa;
    if (is_failed(backend_open(&probe, &backend, NULL))) {
        print_message("SKIPPED %s: this CPU lacks it\n", isa);
        return false;
    }
    backend_close(backend);
    return true;
}

static void check_chunks(struct baseline *base, struct bench *bench, int32_t chunk) {
    float *logits = calloc(LENGTH, row_bytes(base));
    assert_non_null(logits);
    struct kv_sequence *all = bench_sequence(bench, base->ids, LENGTH);
    bench_run(bench, all, LENGTH, chunk, true, logits, NULL);
    assert_memory_equal(logits, base->logits, LENGTH * row_bytes(base));
    bench_assert_state_equal(&base->bench, base->sequence, bench, all);
    kv_cache_release(&bench->cache, all);
    struct kv_sequence *last = bench_sequence(bench, base->ids, LENGTH);
    bench_run(bench, last, LENGTH, chunk, false, logits, NULL);
    assert_memory_equal(logits, row_of(base, LENGTH - 1), row_bytes(base));
    bench_assert_state_equal(&base->bench, base->sequence, bench, last);
    kv_cache_release(&bench->cache, last);
    free(logits);
}

static void identity_chunks_and_isa_and_threads_same_bits(void **state) {
    struct baseline *base = *state;
    static const int32_t chunks[] = {7, 1, LENGTH, 33, 64, 150};
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        bool is_plain = i == 0 && !backend_is_chosen();
        if ((is_plain && BENCH_IS_SLOW) || !has_isa(base, isas[i])) {
            continue;
        }
        /* Plain C is slow, and the baseline is plain C on one thread: two more ways tell. */
        for (int32_t threads = i == 0 ? 2 : 1; threads <= 2; threads++) {
            struct bench bench;
            open_bench(&bench, isas[i], threads, 1);
            for (size_t c = 0; c < (BENCH_IS_SLOW ? 1 : is_plain ? 2 : COUNT_OF(chunks)); c++) {
                check_chunks(base, &bench, chunks[c]);
            }
            bench_close(&bench);
        }
    }
}

/* Turns of odd and even lengths; the last row of each turn is exact though decoder layers ran only
 * what the turn needed. */
static void identity_turn_by_turn_same_bits(void **state) {
    struct baseline *base = *state;
    static const int32_t ends[] = {1, 2, 5, 70, 71, 104, 190, 191, LENGTH};
    static const int32_t chunks[] = {300, 13};
    struct bench bench;
    open_bench(&bench, NULL, 2, 1);
    float *logits = calloc(1, row_bytes(base));
    assert_non_null(logits);
    for (size_t c = 0; c < COUNT_OF(chunks); c++) {
        struct kv_sequence *sequence = bench_sequence(&bench, base->ids, 0);
        for (size_t i = 0; i < COUNT_OF(ends); i++) {
            int32_t from = sequence->length;
            bench_append(&bench, sequence, base->ids + from, ends[i] - from);
            bench_run(&bench, sequence, ends[i], chunks[c], false, logits, NULL);
            assert_memory_equal(logits, row_of(base, ends[i] - 1), row_bytes(base));
        }
        bench_assert_state_equal(&base->bench, base->sequence, &bench, sequence);
        kv_cache_release(&bench.cache, sequence);
    }
    free(logits);
    bench_close(&bench);
}

#define BATCH 3

/* One step of a random subset of the sequences with random chunk sizes, decode-like ones included. */
static void batch_step(
    struct bench *bench,
    struct kv_sequence *const sequences[BATCH],
    uint32_t *seed,
    float *logits[BATCH]
) {
    struct forward_segment segments[BATCH];
    int32_t owner[BATCH];
    int32_t count = 0;
    for (int32_t s = 0; s < BATCH; s++) {
        *seed = *seed * 1664525U + 1013904223U;
        int32_t left = sequences[s]->length - sequences[s]->computed;
        int32_t rows = (int32_t)((*seed >> 10) % 40U);
        rows = (*seed >> 30) == 0 ? 1 : rows;
        rows = rows > left ? left : rows;
        if (rows == 0) {
            continue;
        }
        owner[count] = s;
        segments[count++] = (struct forward_segment){
            .sequence = sequences[s],
            .position = sequences[s]->computed,
            .count = rows,
            .prompt_end = sequences[s]->length,
            .logits = s == 1         ? FORWARD_LOGITS_ALL
                      : rows == left ? FORWARD_LOGITS_LAST
                                     : FORWARD_LOGITS_NONE,
        };
    }
    if (count == 0) {
        return;
    }
    MUST(forward_step(bench->forward, segments, count, NULL, error));
    size_t vocabulary = (size_t)bench->config->vocabulary;
    int32_t row = 0;
    for (int32_t i = 0; i < count; i++) {
        int32_t rows = segments[i].logits == FORWARD_LOGITS_ALL    ? segments[i].count
                       : segments[i].logits == FORWARD_LOGITS_LAST ? 1
                                                                   : 0;
        int32_t end = segments[i].position + segments[i].count;
        float *to = logits[owner[i]] + (size_t)(end - rows) * vocabulary;
        MUST(forward_logits(bench->forward, row, rows, to, error));
        row += rows;
    }
    assert_int_equal(row, forward_logit_rows(bench->forward));
}

static void check_batch(struct baseline *base, const char *isa) {
    static const int32_t counts[BATCH] = {LENGTH, LENGTH, 97};
    struct bench bench;
    open_bench(&bench, backend_is_chosen() ? NULL : isa, 2, BATCH);
    int32_t ids[BATCH][LENGTH];
    float *logits[BATCH];
    struct kv_sequence *sequences[BATCH];
    for (int32_t s = 0; s < BATCH; s++) {
        make_ids(ids[s], LENGTH, 7U + (uint32_t)s);
        memcpy(ids[s], s < 2 ? base->ids : ids[s], sizeof ids[s]);
        sequences[s] = bench_sequence(&bench, ids[s], counts[s]);
        logits[s] = calloc(LENGTH, row_bytes(base));
        assert_non_null(logits[s]);
    }
    uint32_t seed = 4711U;
    while (sequences[0]->computed < LENGTH || sequences[1]->computed < LENGTH ||
           sequences[2]->computed < 97) {
        batch_step(&bench, sequences, &seed, logits);
    }
    size_t vocabulary = (size_t)base->bench.config->vocabulary;
    assert_memory_equal(logits[1], base->logits, LENGTH * row_bytes(base));
    assert_memory_equal(
        logits[0] + (LENGTH - 1) * vocabulary, row_of(base, LENGTH - 1), row_bytes(base)
    );
    bench_assert_state_equal(&base->bench, base->sequence, &bench, sequences[0]);
    bench_assert_state_equal(&base->bench, base->sequence, &bench, sequences[1]);
    struct bench alone;
    open_bench(&alone, backend_is_chosen() ? NULL : BASE_ISA, 1, 1);
    float *last = calloc(1, row_bytes(base));
    assert_non_null(last);
    struct kv_sequence *third = bench_sequence(&alone, ids[2], 97);
    bench_run(&alone, third, 97, 97, false, last, NULL);
    assert_memory_equal(logits[2] + 96 * vocabulary, last, row_bytes(base));
    bench_assert_state_equal(&alone, third, &bench, sequences[2]);
    free(last);
    bench_close(&alone);
    for (int32_t s = 0; s < BATCH; s++) {
        free(logits[s]);
    }
    bench_close(&bench);
}

static void identity_batched_with_others_same_bits(void **state) {
    struct baseline *base = *state;
    if (BENCH_IS_SLOW) {
        check_batch(base, NULL);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(isas); i++) {
        if (has_isa(base, isas[i])) {
            check_batch(base, isas[i]);
        }
    }
}

/* ---- counters ------------------------------------------------------------------------------- */

#define LONG 4000

/* Rows of one layer whose selection needs scores, and the entries they see. */
static void expected_scores(
    const struct model_config *config,
    int32_t layer,
    int32_t first,
    uint64_t *rows,
    uint64_t *entries
) {
    *rows = 0;
    *entries = 0;
    for (int32_t p = first; p < LONG && config->plan[layer].ratio > 0; p++) {
        int32_t visible = (p + 1) / config->plan[layer].ratio;
        if (visible > config->index_topk) {
            (*rows)++;
            *entries += (uint64_t)visible;
        }
    }
}

static void check_layer_counters(
    const struct model_config *config,
    int32_t layer,
    const struct layer_counters *counters,
    enum window_mode window
) {
    const struct layer_plan *plan = &config->plan[layer];
    int32_t needed = !plan->decoder            ? LONG
                     : window == WINDOW_REPLAY ? config->window
                                               : model_rows_needed(config, layer);
    bool has_window_only = plan->decoder && window == WINDOW_EXACT;
    int32_t window_only = layer == config->encoder_layers ? LONG - needed
                          : has_window_only               ? config->window - 1
                                                          : 0;
    assert_int_equal(counters->rows_full, needed);
    assert_int_equal(counters->rows_window_only, window_only);
    uint64_t rows = 0;
    uint64_t entries = 0;
    uint64_t pool = (uint64_t)config->candidate_blocks * (uint64_t)config->candidate_block_entries;
    expected_scores(config, layer, LONG - needed, &rows, &entries);
    if (plan->mode == LAYER_FULL) {
        assert_int_equal(counters->topk_runs, rows);
        assert_int_equal(counters->index_rows, entries);
        assert_int_equal(counters->index_rows_max, LONG / plan->ratio);
    } else if (plan->mode == LAYER_REINDEX) {
        assert_int_equal(counters->topk_runs, rows);
        assert_true(counters->index_rows > 0);
        assert_true(counters->index_rows_max <= pool);
        assert_true(counters->index_rows <= rows * pool);
    } else {
        assert_int_equal(counters->topk_runs, 0);
        assert_int_equal(counters->index_rows, 0);
    }
}

static void count_long_prompt(int32_t chunk, enum window_mode window) {
    struct bench bench;
    struct bench_options options = {
        .model = MODEL, .threads = 2, .rows_max = 512, .context_max = LONG};
    bench_open(&bench, &options);
    const struct model_config *config = bench.config;
    int32_t *ids = calloc(LONG, sizeof *ids);
    struct layer_counters *counters = calloc((size_t)config->layers, sizeof *counters);
    assert_non_null(ids);
    assert_non_null(counters);
    make_ids(ids, LONG, 99U);
    struct kv_sequence *sequence = bench_sequence(&bench, ids, LONG);
    while (sequence->computed < LONG) {
        int32_t left = LONG - sequence->computed;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = left < chunk ? left : chunk,
            .prompt_end = LONG,
            .logits = left <= chunk ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .window = window,
            .window_floor_decoder = window == WINDOW_REPLAY ? LONG - config->window : 0,
        };
        MUST(forward_step(bench.forward, &segment, 1, counters, error));
    }
    for (int32_t l = 0; l < config->layers; l++) {
        check_layer_counters(config, l, &counters[l], window);
    }
    free(counters);
    free(ids);
    bench_close(&bench);
}

static void counters_long_prompt_runs_exactly_what_it_needs(void **state) {
    (void)state;
    count_long_prompt(512, WINDOW_EXACT);
    if (!BENCH_IS_SLOW) {
        count_long_prompt(61, WINDOW_EXACT);
    }
}

static void counters_long_prompt_replay_runs_one_window(void **state) {
    (void)state;
    count_long_prompt(512, WINDOW_REPLAY);
    if (!BENCH_IS_SLOW) {
        count_long_prompt(37, WINDOW_REPLAY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity_chunks_and_isa_and_threads_same_bits),
        cmocka_unit_test(identity_turn_by_turn_same_bits),
        cmocka_unit_test(identity_batched_with_others_same_bits),
        cmocka_unit_test(counters_long_prompt_runs_exactly_what_it_needs),
        cmocka_unit_test(counters_long_prompt_replay_runs_one_window),
    };
    return cmocka_run_group_tests(tests, open_baseline, close_baseline);
}
