/* Whole runs against the official reference: logits of prompts, greedy decode steps, caches, and
 * bounded replay. Lengths 1 and 2 are sharp; longer ones are a coarse net, because two correct
 * implementations differ by quantisation noise there (limits: golden/README.md). */
#include "forward_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct limits {
    const char *model;
    double rms, kl, argmax;
};

static const struct limits tiny_a = {"golden/tiny-a", 0.23, 0.025, 0.85};
static const struct limits tiny_b = {"golden/tiny-b", 0.16, 0.011, 0.85};

static const int lengths[] = {1, 2, 12, 37, 129, 200, 333};
#define DECODE_STEPS 40

static void open_vectors(struct test_tensors *tensors, const char *model, const char *file) {
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, model) || !bench_find_vectors(path, model, file)) {
        print_message("SKIPPED %s of %s: set HEARTH_TEST_DATA\n", file, model);
        skip();
    }
    MUST(test_tensors_open(tensors, path, error));
}

static bool is_verbose(void) {
    return getenv("HEARTH_TEST_VERBOSE") != NULL;
}

/* ---- prompts and decode steps --------------------------------------------------------------- */

static int check_prompt(
    const struct limits *limits,
    const struct test_tensors *vectors,
    struct bench *bench,
    struct kv_sequence *sequence,
    int length
) {
    struct test_tensor tensor;
    int32_t vocabulary = bench->config->vocabulary;
    const float *wanted = vectors_get(vectors, &tensor, "len%d.logits", length);
    size_t count = (size_t)length * (size_t)vocabulary;
    assert_true(tensor.count == count);
    float *got = calloc(count, sizeof *got);
    assert_non_null(got);
    bench_run(bench, sequence, length, length, true, got, NULL);
    struct logit_difference difference = {0};
    for (int i = 0; i < length; i++) {
        size_t at = (size_t)i * (size_t)vocabulary;
        logits_compare(&difference, got + at, wanted + at, vocabulary);
    }
    free(got);
    double argmax = (double)difference.argmax_equal / length;
    /* One position of a short prompt is 3 to 8 %; the reference's own second platform has 84 % equal
     * at length 37. */
    double argmax_limit = length < 100 ? limits->argmax - 0.02 : limits->argmax;
    bool holds = length <= 2 ? difference.difference_max <= 1e-3
                             : logits_rms(&difference) <= limits->rms &&
                                   logits_kl(&difference) <= limits->kl && argmax >= argmax_limit;
    if (!holds || is_verbose()) {
        print_message(
            "%s length %d: rms %.3f, mean KL %.4f, largest KL %.3f, largest difference %.2g, "
            "argmax "
            "%.0f %%\n",
            limits->model,
            length,
            logits_rms(&difference),
            logits_kl(&difference),
            difference.kl_max,
            difference.difference_max,
            100 * argmax
        );
    }
    return holds ? 0 : 1;
}

/* Added up over all lengths: single decode runs of 40 steps scatter around the limits. */
struct decode_totals {
    double square_sum;
    size_t values;
    int clear, clear_wrong;
};

/* Top-20 logits of each step, and the greedy id where its lead exceeds 0.5. */
static void add_decode(
    const struct test_tensors *vectors,
    struct bench *bench,
    struct kv_sequence *sequence,
    int length,
    struct decode_totals *totals
) {
    struct test_tensor tensor;
    int32_t vocabulary = bench->config->vocabulary;
    const int32_t *tokens = vectors_get(vectors, &tensor, "len%d.decode.tokens_in", length);
    assert_int_equal(tensor.count, DECODE_STEPS);
    const int32_t *next = vectors_get(vectors, &tensor, "len%d.decode.greedy_next", length);
    const int32_t *top_ids = vectors_get(vectors, &tensor, "len%d.decode.top20_ids", length);
    const float *top = vectors_get(vectors, &tensor, "len%d.decode.top20_logits", length);
    float *got = calloc((size_t)vocabulary, sizeof *got);
    assert_non_null(got);
    for (int step = 0; step < DECODE_STEPS; step++) {
        bench_append(bench, sequence, &tokens[step], 1);
        bench_run(bench, sequence, sequence->length, 1, false, got, NULL);
        for (int i = 0; i < 20; i++) {
            double difference = (double)got[top_ids[step * 20 + i]] - (double)top[step * 20 + i];
            totals->square_sum += difference * difference;
            totals->values++;
        }
        if (top[step * 20] - top[step * 20 + 1] > 0.5F) {
            totals->clear++;
            totals->clear_wrong += logits_argmax(got, vocabulary) != next[step];
        }
    }
    free(got);
}

/* The limit of whole prompts for the logits. A lead of 0.5 is two standard deviations of the
 * difference of two such logits, so one clear choice in fifty may turn. */
static int check_decode(const struct limits *limits, const struct decode_totals *totals) {
    double rms = sqrt(totals->square_sum / (double)totals->values);
    print_message(
        "%s decode: rms of top 20 %.3f, %d of %d clear choices differ\n",
        limits->model,
        rms,
        totals->clear_wrong,
        totals->clear
    );
    return rms <= limits->rms && totals->clear_wrong * 50 <= totals->clear ? 0 : 1;
}

/* ---- caches --------------------------------------------------------------------------------- */

static float e4m3(uint8_t code) {
    int exponent = code >> 3 & 15;
    int mantissa = code & 7;
    float value =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return (code & 0x80) != 0 ? -value : value;
}

static float e2m1(uint8_t nibble) {
    static const float values[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    return (nibble & 8) != 0 ? -values[nibble & 7] : values[nibble & 7];
}

static float fp4_at(const uint8_t *codes, size_t i) {
    return e2m1(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4);
}

struct closeness {
    size_t count, equal;
    double difference, size; /* sums of squares */
};

static void add_value(struct closeness *total, float got, uint16_t wanted) {
    double value = (double)bf16_value(wanted);
    double difference = (double)got - value;
    total->count++;
    total->equal += difference == 0;
    total->difference += difference * difference;
    total->size += value * value;
}

static double relative_rms(const struct closeness *total) {
    return total->size == 0 ? 0 : sqrt(total->difference / total->size);
}

static void compare_ring(
    const struct bench *bench,
    const struct kv_sequence *sequence,
    int32_t layer,
    const struct test_tensor *tensor,
    struct closeness *total
) {
    size_t dim = (size_t)bench->config->head_dim;
    const uint16_t *wanted = tensor->data;
    const uint8_t *ring = bench_read(
        bench, kv_cache_ring(&bench->cache, sequence, layer), bench->cache.layout.ring_bytes
    );
    for (size_t slot = 0; slot < tensor->count / dim; slot++) {
        const uint8_t *record = ring + slot * window_record_bytes(bench->config->head_dim);
        for (size_t c = 0; c < dim; c++) {
            float got = e4m3(record[c]) * ldexpf(1, (int)record[dim + c / 32] - 127);
            add_value(total, got, wanted[slot * dim + c]);
        }
    }
}

static void compare_entries(
    const struct bench *bench,
    const struct kv_sequence *sequence,
    int32_t source_number,
    const struct test_tensor *main,
    const struct test_tensor *index,
    struct closeness *total
) {
    const struct kv_source_layout *source = &bench->cache.layout.sources[source_number];
    size_t dim = (size_t)bench->config->head_dim;
    size_t key = (size_t)bench->config->index_dim;
    const uint16_t *wanted = main->data;
    const uint16_t *wanted_key = index->data;
    const uint8_t *block = NULL;
    for (size_t g = 0; g < main->count / dim; g++) {
        size_t slot = g % (size_t)source->entries;
        if (slot == 0) {
            const uint8_t *from = sequence->blocks[g / (size_t)source->entries];
            block = bench_read(bench, from, bench->cache.layout.block_bytes);
        }
        const uint8_t *record = block + source->main_offset + slot * source->main_record_bytes;
        for (size_t c = 0; c < dim; c++) {
            float got = fp4_at(record, c) * e4m3(record[dim / 2 + c / 16]);
            add_value(total, got, wanted[g * dim + c]);
        }
        const uint8_t *codes = block + source->index_code_offset + slot * (key / 2);
        const uint8_t *scales = block + source->index_scale_offset + slot * (key / 32);
        for (size_t c = 0; c < key; c++) {
            float got = fp4_at(codes, c) * ldexpf(1, (int)scales[c / 32] - 127);
            add_value(total, got, wanted_key[g * key + c]);
        }
    }
}

static void compare_pending(
    const struct bench *bench,
    const struct kv_sequence *sequence,
    int32_t source,
    const struct test_tensors *vectors,
    const char *prefix,
    double *worst
) {
    struct test_tensor tensor;
    int32_t layer = bench->config->kv_source_layers[source];
    size_t dim = (size_t)bench->config->head_dim;
    static const char *const halves[2] = {"pending_kv", "pending_score"};
    for (size_t half = 0; half < 2; half++) {
        if (!vectors_has(vectors, "%s.layers.%d.%s", prefix, layer, halves[half])) {
            continue;
        }
        const float *wanted =
            vectors_get(vectors, &tensor, "%s.layers.%d.%s", prefix, layer, halves[half]);
        const float *pending = kv_cache_pending(&bench->cache, sequence, source) + half * dim;
        const float *got = bench_read(bench, pending, dim * sizeof *got);
        double difference = 0;
        double size = 0;
        for (size_t c = 0; c < dim; c++) {
            difference += pow((double)got[c] - (double)wanted[c], 2);
            size += pow((double)wanted[c], 2);
        }
        *worst = fmax(*worst, sqrt(difference / size));
    }
}

/* Lengths 1 and 2 nearly all codes; later, as hidden states scatter, most codes and values within
 * the noise of the reference itself. Windows of layer 0 see embeddings only: always nearly all. */
static int check_state(
    const struct test_tensors *vectors,
    const struct bench *bench,
    const struct kv_sequence *sequence,
    const char *prefix,
    bool is_sharp
) {
    struct test_tensor tensor;
    struct test_tensor keys;
    struct closeness first = {0};
    struct closeness rings = {0};
    struct closeness entries = {0};
    double pending = 0;
    const int32_t *ids = vectors_get(vectors, &tensor, "%s.compressed_ids", prefix);
    assert_int_equal(tensor.count, sequence->computed);
    int32_t *compressed = calloc(tensor.count, sizeof *compressed);
    assert_non_null(compressed);
    kv_cache_read_compressed(&bench->cache, sequence, 0, sequence->computed, compressed);
    assert_memory_equal(compressed, ids, tensor.bytes);
    free(compressed);
    for (int32_t l = 0; l < bench->config->layers; l++) {
        if (vectors_has(vectors, "%s.layers.%d.window_ring", prefix, l)) {
            (void)vectors_get(vectors, &tensor, "%s.layers.%d.window_ring", prefix, l);
            compare_ring(bench, sequence, l, &tensor, l == 0 ? &first : &rings);
        }
    }
    for (int32_t s = 0; s < bench->config->kv_source_count; s++) {
        int32_t layer = bench->config->kv_source_layers[s];
        if (vectors_has(vectors, "%s.layers.%d.compress_kv", prefix, layer)) {
            (void)vectors_get(vectors, &tensor, "%s.layers.%d.compress_kv", prefix, layer);
            (void)vectors_get(vectors, &keys, "%s.layers.%d.index_k", prefix, layer);
            compare_entries(bench, sequence, s, &tensor, &keys, &entries);
        }
        compare_pending(bench, sequence, s, vectors, prefix, &pending);
    }
    /* tiny-b stores only ids after some runs, and the rings of some layers. */
    double ring_share = rings.count == 0 ? 1 : (double)rings.equal / (double)rings.count;
    double entry_share = entries.count == 0 ? 1 : (double)entries.equal / (double)entries.count;
    bool holds = first.equal * 100 >= first.count * 99 && ring_share >= (is_sharp ? 0.99 : 0.5) &&
                 entry_share >= (is_sharp ? 0.99 : 0.5) && relative_rms(&rings) <= 0.15 &&
                 relative_rms(&entries) <= 0.25 && pending <= (is_sharp ? 1e-2 : 0.15);
    if (!holds || is_verbose()) {
        print_message(
            "%s: layer 0 %.2f %% equal; rings %.1f %%, relative rms %.3f; entries %.1f %%, %.3f; "
            "pending %.2g\n",
            prefix,
            first.count == 0 ? 100 : 100.0 * (double)first.equal / (double)first.count,
            100 * ring_share,
            relative_rms(&rings),
            100 * entry_share,
            relative_rms(&entries),
            pending
        );
    }
    return holds ? 0 : 1;
}

static void check_runs(const struct limits *limits) {
    struct test_tensors vectors = {0};
    struct test_tensors states = {0};
    open_vectors(&vectors, limits->model, "e2e");
    open_vectors(&states, limits->model, "state");
    struct bench bench;
    struct bench_options options = {
        .model = limits->model, .rows_max = 333, .context_max = 333 + DECODE_STEPS};
    bench_open(&bench, &options);
    int failures = 0;
    int runs = 0;
    struct decode_totals decode = {0};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        struct test_tensor tensor;
        char prefix[64];
        if (!vectors_has(&vectors, "len%d.input_ids", lengths[i]) ||
            (BENCH_IS_SLOW && lengths[i] > 37)) {
            continue;
        }
        runs++;
        const int32_t *ids = vectors_get(&vectors, &tensor, "len%d.input_ids", lengths[i]);
        struct kv_sequence *sequence = bench_sequence(&bench, ids, (int32_t)tensor.count);
        failures += check_prompt(limits, &vectors, &bench, sequence, lengths[i]);
        (void)snprintf(prefix, sizeof prefix, "len%d", lengths[i]);
        failures += check_state(&states, &bench, sequence, prefix, lengths[i] <= 2);
        add_decode(&vectors, &bench, sequence, lengths[i], &decode);
        (void)snprintf(prefix, sizeof prefix, "len%d.after_decode", lengths[i]);
        failures += check_state(&states, &bench, sequence, prefix, false);
        kv_cache_release(&bench.cache, sequence);
    }
    failures += check_decode(limits, &decode);
    bench_close(&bench);
    test_tensors_close(&states);
    test_tensors_close(&vectors);
    assert_true(runs >= 4);
    assert_int_equal(failures, 0);
}

static void runs_tiny_a_stay_within_noise(void **state) {
    (void)state;
    check_runs(&tiny_a);
}

static void runs_tiny_b_stay_within_noise(void **state) {
    (void)state;
    check_runs(&tiny_b);
}

/* ---- replay --------------------------------------------------------------------------------- */

#define REPLAY_STEPS 8
#define REPLAY_CHUNK 61

struct replay {
    struct bench bench;
    struct test_tensors vectors;
    const int32_t *tokens;
    int32_t length; /* N */
    float *logits;  /* [1 + REPLAY_STEPS, V]: last of the prompt, then teacher-forced steps */
    double kl_to_variant, kl_to_exact; /* sums over rows of all variants */
    size_t rows;
    double own_exact; /* the same of our exact run to the stored one: the noise */
    size_t own_rows;
};

static void teacher_force(struct replay *replay, struct kv_sequence *sequence) {
    size_t vocabulary = (size_t)replay->bench.config->vocabulary;
    for (int i = 0; i < REPLAY_STEPS; i++) {
        bench_append(&replay->bench, sequence, replay->tokens + replay->length + i, 1);
        float *row = replay->logits + (size_t)(1 + i) * vocabulary;
        bench_run(&replay->bench, sequence, sequence->length, 1, false, row, NULL);
    }
}

/* Mean KL of our rows to a stored variant; rows that the cut lacks are left out. */
static double kl_to(const struct replay *replay, const char *variant, size_t *rows) {
    struct test_tensor tensor;
    int32_t vocabulary = replay->bench.config->vocabulary;
    struct logit_difference difference = {0};
    const float *last =
        vectors_get(&replay->vectors, &tensor, "len%d.%s.last_logits", replay->length, variant);
    logits_compare(&difference, replay->logits, last, vocabulary);
    if (vectors_has(&replay->vectors, "len%d.%s.decode_logits", replay->length, variant)) {
        const float *steps = vectors_get(
            &replay->vectors, &tensor, "len%d.%s.decode_logits", replay->length, variant
        );
        for (size_t i = 0; i < REPLAY_STEPS; i++) {
            const float *row = replay->logits + (1 + i) * (size_t)vocabulary;
            logits_compare(&difference, row, steps + i * (size_t)vocabulary, vocabulary);
        }
    }
    *rows = difference.rows;
    return logits_kl(&difference);
}

/* Exact narrowing: rows as the reference counts them, and bit for bit the full run. */
static void check_narrowing(struct replay *replay) {
    struct bench *bench = &replay->bench;
    struct test_tensor tensor;
    size_t vocabulary = (size_t)bench->config->vocabulary;
    size_t layers = (size_t)bench->config->layers;
    struct layer_counters *counters = calloc(layers, sizeof *counters);
    float *all = calloc((size_t)replay->length * vocabulary, sizeof *all);
    assert_non_null(counters);
    assert_non_null(all);
    struct kv_sequence *full = bench_sequence(bench, replay->tokens, replay->length);
    bench_run(bench, full, replay->length, replay->length, true, all, NULL);
    struct kv_sequence *narrow = bench_sequence(bench, replay->tokens, replay->length);
    bench_run(bench, narrow, replay->length, replay->length, false, replay->logits, counters);
    const int32_t *rows =
        vectors_get(&replay->vectors, &tensor, "len%d.narrow.rows_per_layer", replay->length);
    for (size_t l = 0; l < layers; l++) {
        assert_int_equal(counters[l].rows_full, rows[l]);
    }
    assert_memory_equal(
        replay->logits, all + (size_t)(replay->length - 1) * vocabulary, vocabulary * sizeof *all
    );
    size_t ring_bytes =
        (size_t)bench->config->window * window_record_bytes(bench->config->head_dim);
    for (int32_t l = 0; l < bench->config->layers; l++) {
        assert_memory_equal(
            bench_read(bench, kv_cache_ring(&bench->cache, narrow, l), ring_bytes),
            bench_read(bench, kv_cache_ring(&bench->cache, full, l), ring_bytes),
            ring_bytes
        );
    }
    kv_cache_release(&bench->cache, full);
    teacher_force(replay, narrow);
    size_t own_rows = 0;
    double own = kl_to(replay, "exact", &own_rows);
    replay->own_exact += own * (double)own_rows;
    replay->own_rows += own_rows;
    kv_cache_release(&bench->cache, narrow);
    free(all);
    free(counters);
}

/* The prompt with the blocks of a sequence that was evaluated exactly up to the hit. Rings are filled
 * with rubbish first: nothing below a bound may be read. */
static struct kv_sequence *take_hit(struct replay *replay, int32_t hit) {
    struct kv_cache *cache = &replay->bench.cache;
    struct kv_sequence *donor = bench_sequence(&replay->bench, replay->tokens, replay->length);
    bench_run(&replay->bench, donor, hit, replay->length, true, NULL, NULL);
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    assert_non_null(sequence);
    for (int32_t b = 0; b * KV_BLOCK_TOKENS < hit; b++) {
        kv_block_share(cache, donor->numbers[b]);
    }
    struct kv_adoption adoption = {
        .blocks = donor->numbers,
        .kept = hit,
        .start = hit - replay->bench.config->window,
    };
    kv_cache_adopt(cache, sequence, &adoption);
    size_t rings = (size_t)replay->bench.config->layers * cache->layout.ring_bytes;
    bench_fill(&replay->bench, sequence->state, 0x5a, rings);
    bench_append(&replay->bench, sequence, replay->tokens + hit, replay->length - hit);
    kv_cache_release(cache, donor);
    return sequence;
}

/* Runs one variant: encoder replay from hit - W when hit > 0, decoder replay when asked. */
static struct kv_sequence *run_variant(struct replay *replay, int32_t hit, bool decoder) {
    struct bench *bench = &replay->bench;
    int32_t window = bench->config->window;
    int32_t first = hit > 0 ? hit - window : 0;
    struct kv_sequence *sequence =
        hit > 0 ? take_hit(replay, hit) : bench_sequence(bench, replay->tokens, replay->length);
    int32_t floor = decoder ? replay->length - window : first;
    while (sequence->computed < replay->length) {
        int32_t left = replay->length - sequence->computed;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = left < REPLAY_CHUNK ? left : REPLAY_CHUNK,
            .prompt_end = replay->length,
            .logits = left <= REPLAY_CHUNK ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .window = decoder ? WINDOW_REPLAY : WINDOW_EXACT,
            .window_floor_encoder = first,
            .window_floor_decoder = floor,
            .write_floor = hit,
        };
        MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    }
    MUST(forward_logits(bench->forward, 0, 1, replay->logits, error));
    sequence->decoder_floor = floor;
    return sequence;
}

static void check_variant(struct replay *replay, int32_t hit, bool decoder, const char *name) {
    struct bench *bench = &replay->bench;
    struct kv_sequence *sequence = run_variant(replay, hit, decoder);
    teacher_force(replay, sequence);
    size_t rows = 0;
    double variant = kl_to(replay, name, &rows);
    double exact = kl_to(replay, "exact", &rows);
    replay->kl_to_variant += variant * (double)rows;
    replay->kl_to_exact += exact * (double)rows;
    replay->rows += rows;
    if (is_verbose()) {
        print_message(
            "length %d %s: KL %.4f to the stored variant, %.4f to the stored exact run\n",
            replay->length,
            name,
            variant,
            exact
        );
    }
    kv_cache_release(&bench->cache, sequence);
}

static void check_replays(struct replay *replay) {
    static const int hits[] = {18, 32, 34, 96, 128, 150, 198, 300, 332};
    check_narrowing(replay);
    check_variant(replay, 0, true, "dec");
    for (size_t i = 0; i < COUNT_OF(hits); i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "enc_H%d", hits[i]);
        if (!vectors_has(&replay->vectors, "len%d.%s.last_logits", replay->length, name) ||
            (BENCH_IS_SLOW && hits[i] != 96)) {
            continue;
        }
        check_variant(replay, hits[i], false, name);
        (void)snprintf(name, sizeof name, "enc_H%d_dec", hits[i]);
        check_variant(replay, hits[i], true, name);
    }
}

/* Single variants differ from the exact run by about as much as two implementations differ, so the
 * test is on their sum: ours must be no further from the stored variants than from the stored exact
 * run, and not much further than our exact run is from it. */
static void check_replay_model(const struct limits *limits) {
    struct replay replay = {.length = 0};
    open_vectors(&replay.vectors, limits->model, "replay");
    struct bench_options options = {
        .model = limits->model, .rows_max = 333, .sequences_max = 2, .context_max = 341};
    bench_open(&replay.bench, &options);
    size_t vocabulary = (size_t)replay.bench.config->vocabulary;
    replay.logits = calloc((1 + REPLAY_STEPS) * vocabulary, sizeof(float));
    assert_non_null(replay.logits);
    int found = 0;
    int32_t longest = BENCH_IS_SLOW ? 200 : 333;
    for (int32_t length = 200; length <= longest; length += 133) {
        struct test_tensor tensor;
        if (vectors_has(&replay.vectors, "len%d.tokens", length)) {
            found++;
            replay.length = length;
            replay.tokens = vectors_get(&replay.vectors, &tensor, "len%d.tokens", length);
            assert_true(tensor.count == (size_t)(length + REPLAY_STEPS));
            check_replays(&replay);
        }
    }
    double variant = replay.kl_to_variant / (double)replay.rows;
    double exact = replay.kl_to_exact / (double)replay.rows;
    double noise = replay.own_exact / (double)replay.own_rows;
    print_message(
        "%s: mean KL %.4f to the stored replays, %.4f to the stored exact run, over %zu rows; "
        "exact "
        "to exact %.4f over %zu\n",
        limits->model,
        variant,
        exact,
        replay.rows,
        noise,
        replay.own_rows
    );
    free(replay.logits);
    bench_close(&replay.bench);
    test_tensors_close(&replay.vectors);
    assert_true(found >= 1);
    /* A few rows alone say nothing about means. */
    assert_true(BENCH_IS_SLOW || variant <= exact);
    assert_true(variant <= (BENCH_IS_SLOW ? 3 : 1.5) * noise);
}

static void replay_tiny_a_follows_stored_variants(void **state) {
    (void)state;
    check_replay_model(&tiny_a);
}

static void replay_tiny_b_follows_stored_variants(void **state) {
    (void)state;
    check_replay_model(&tiny_b);
}

/* Encoder replay leaves entries below the hit as they were, byte for byte, and writes the rest. */
static void replay_below_hit_rewrites_no_entry(void **state) {
    (void)state;
    enum { LENGTH = 90, HIT = 50 };
    struct replay replay = {.length = LENGTH};
    struct bench_options options = {
        .model = "golden/tiny-a", .rows_max = LENGTH, .context_max = LENGTH};
    bench_open(&replay.bench, &options);
    int32_t ids[LENGTH];
    for (int32_t i = 0; i < LENGTH; i++) {
        ids[i] = 3 + (i * 37) % 1000;
    }
    replay.tokens = ids;
    replay.logits = calloc((size_t)replay.bench.config->vocabulary, sizeof(float));
    assert_non_null(replay.logits);
    struct kv_sequence *sequence = bench_sequence(&replay.bench, ids, LENGTH);
    bench_run(&replay.bench, sequence, HIT, LENGTH, true, NULL, NULL);
    size_t block_bytes = replay.bench.cache.layout.block_bytes;
    uint8_t *before = malloc(block_bytes);
    assert_non_null(before);
    memcpy(before, bench_read(&replay.bench, sequence->blocks[0], block_bytes), block_bytes);
    /* Mark what was written: a rewrite with the right value must be seen too. */
    for (size_t i = 0; i < block_bytes; i++) {
        before[i] ^= 0x11;
    }
    bench_write(&replay.bench, sequence->blocks[0], before, block_bytes);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = HIT - replay.bench.config->window,
        .count = LENGTH - HIT + replay.bench.config->window,
        .prompt_end = LENGTH,
        .logits = FORWARD_LOGITS_LAST,
        .window_floor_encoder = HIT - replay.bench.config->window,
        .window_floor_decoder = HIT - replay.bench.config->window,
        .write_floor = HIT,
    };
    MUST(forward_step(replay.bench.forward, &segment, 1, NULL, error));
    const uint8_t *block = bench_read(&replay.bench, sequence->blocks[0], block_bytes);
    for (int32_t s = 0; s < replay.bench.config->kv_source_count; s++) {
        const struct kv_source_layout *source = &replay.bench.cache.layout.sources[s];
        size_t kept = (size_t)(HIT / source->ratio) * source->main_record_bytes;
        size_t end = (size_t)(LENGTH / source->ratio) * source->main_record_bytes;
        const uint8_t *now = block + source->main_offset;
        assert_memory_equal(now, before + source->main_offset, kept);
        assert_true(memcmp(now + kept, before + source->main_offset + kept, end - kept) != 0);
        size_t key = (size_t)replay.bench.config->index_dim / 2;
        assert_memory_equal(
            block + source->index_code_offset,
            before + source->index_code_offset,
            (size_t)(HIT / source->ratio) * key
        );
    }
    free(before);
    free(replay.logits);
    bench_close(&replay.bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_tiny_a_stay_within_noise),
        cmocka_unit_test(runs_tiny_b_stay_within_noise),
        cmocka_unit_test(replay_tiny_a_follows_stored_variants),
        cmocka_unit_test(replay_tiny_b_follows_stored_variants),
        cmocka_unit_test(replay_below_hit_rewrites_no_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
