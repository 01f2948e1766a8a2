/* Bounded replay after a hit: what may be read and what is written, by position, and that it does
 * not depend on where the blocks come from or how the rows are cut into steps. How far it is from
 * the exact run, and from the stored vectors, is in test_forward_runs.c. */
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PROMPT 300
#define STEPS  8

struct replay {
    struct bench bench;
    struct kv_sequence *donor; /* the prompt, exact */
    int32_t ids[PROMPT + STEPS];
    float *logits[2]; /* [1 + STEPS, V] each */
};

/* A variant of replay, and how it is run. */
struct variant {
    int32_t hit;
    bool decoder;
    int32_t chunk;
    int poison; /* byte of rings and pending pairs before */
};

static size_t logit_bytes(const struct replay *replay) {
    return (size_t)replay->bench.config->vocabulary * sizeof(float);
}

static void open_replay(struct replay *replay, const char *model) {
    *replay = (struct replay){.donor = NULL};
    struct bench_options options = {
        .model = model,
        .threads = 2,
        .rows_max = PROMPT,
        .sequences_max = 3,
        .context_max = PROMPT + STEPS,
    };
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, model)) {
        print_message("SKIPPED %s: set HEARTH_TEST_DATA\n", model);
        skip();
    }
    bench_open(&replay->bench, &options);
    for (int32_t i = 0; i < PROMPT + STEPS; i++) {
        replay->ids[i] = 3 + (i * 7919) % 1100;
    }
    for (int32_t i = 0; i < 2; i++) {
        replay->logits[i] = calloc(1 + STEPS, logit_bytes(replay));
        assert_non_null(replay->logits[i]);
    }
    replay->donor = bench_sequence(&replay->bench, replay->ids, PROMPT);
    bench_run(&replay->bench, replay->donor, PROMPT, PROMPT, false, NULL, NULL);
}

static void close_replay(struct replay *replay) {
    kv_cache_release(&replay->bench.cache, replay->donor);
    assert_int_equal(replay->bench.cache.block_free_count, replay->bench.cache.block_total);
    free(replay->logits[0]);
    free(replay->logits[1]);
    bench_close(&replay->bench);
}

static struct kv_sequence *adopt(struct replay *replay, const struct variant *variant) {
    struct kv_cache *cache = &replay->bench.cache;
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    assert_non_null(sequence);
    bench_fill(&replay->bench, sequence->state, variant->poison, cache->layout.state_bytes);
    if (variant->hit > 0) {
        for (int32_t b = 0; b * KV_BLOCK_TOKENS < variant->hit; b++) {
            kv_block_share(cache, replay->donor->numbers[b]);
        }
        struct kv_adoption adoption = {
            .blocks = replay->donor->numbers,
            .kept = variant->hit,
            .start = variant->hit - replay->bench.config->window,
        };
        kv_cache_adopt(cache, sequence, &adoption);
    }
    bench_append(&replay->bench, sequence, replay->ids + variant->hit, PROMPT - variant->hit);
    return sequence;
}

/* The prompt and the steps; `counters` of the prompt alone. */
static struct kv_sequence *run_variant(
    struct replay *replay,
    const struct variant *variant,
    float *logits,
    struct layer_counters *counters
) {
    struct bench *bench = &replay->bench;
    int32_t window = bench->config->window;
    int32_t floor = variant->hit > 0 ? variant->hit - window : 0;
    struct kv_sequence *sequence = adopt(replay, variant);
    while (sequence->computed < PROMPT) {
        int32_t left = PROMPT - sequence->computed;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = left < variant->chunk ? left : variant->chunk,
            .prompt_end = PROMPT,
            .logits = left <= variant->chunk ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .window = variant->decoder ? WINDOW_REPLAY : WINDOW_EXACT,
            .window_floor_encoder = floor,
            .window_floor_decoder = variant->decoder ? PROMPT - window : floor,
            .write_floor = variant->hit,
        };
        MUST(forward_step(bench->forward, &segment, 1, counters, error));
        sequence->decoder_floor = segment.window_floor_decoder;
    }
    MUST(forward_logits(bench->forward, 0, 1, logits, error));
    for (int32_t i = 0; i < STEPS; i++) {
        bench_append(bench, sequence, replay->ids + PROMPT + i, 1);
        logits += bench->config->vocabulary;
        bench_run(bench, sequence, sequence->length, 1, false, logits, NULL);
    }
    return sequence;
}

/* Encoder: all rows from hit - W, and nothing below. Decoder: the last W rows. Layer E makes window
 * KV of every row. */
static void check_rows(
    const struct replay *replay,
    const struct variant *variant,
    const struct layer_counters *counters
) {
    const struct model_config *config = replay->bench.config;
    int32_t there = PROMPT - (variant->hit > 0 ? variant->hit - config->window : 0);
    for (int32_t l = 0; l < config->layers; l++) {
        int32_t full = there;
        int32_t window_only = 0;
        if (config->plan[l].decoder) {
            int32_t needed = variant->decoder ? config->window : model_rows_needed(config, l);
            full = needed < there ? needed : there;
            window_only = variant->decoder ? 0 : config->window - 1;
            window_only = window_only < there - full ? window_only : there - full;
            window_only = l == config->encoder_layers ? there - full : window_only;
        }
        assert_int_equal(counters[l].rows_full, full);
        assert_int_equal(counters[l].rows_window_only, window_only);
    }
}

/* Two ways of running one variant have the same bits; the donor's bytes are as they were. */
static void check_variant(struct replay *replay, int32_t hit, bool decoder) {
    struct bench *bench = &replay->bench;
    size_t block_bytes = bench->cache.layout.block_bytes;
    int32_t blocks = replay->donor->block_count;
    uint8_t *before = malloc((size_t)blocks * block_bytes);
    assert_non_null(before);
    for (int32_t b = 0; b < blocks; b++) {
        const void *block = bench_read(bench, replay->donor->blocks[b], block_bytes);
        memcpy(before + (size_t)b * block_bytes, block, block_bytes);
    }
    const struct variant variants[2] = {
        {.hit = hit, .decoder = decoder, .chunk = PROMPT, .poison = 0x5a},
        {.hit = hit, .decoder = decoder, .chunk = 1 + hit % 53, .poison = 0x78},
    };
    struct kv_sequence *sequences[2];
    for (int32_t i = 0; i < 2; i++) {
        struct layer_counters counters[MODEL_LAYERS_MAX] = {{0}};
        sequences[i] = run_variant(replay, &variants[i], replay->logits[i], counters);
        check_rows(replay, &variants[i], counters);
        assert_int_equal(sequences[i]->kept, hit);
    }
    assert_memory_equal(replay->logits[0], replay->logits[1], (1 + STEPS) * logit_bytes(replay));
    bench_assert_state_equal(bench, sequences[0], bench, sequences[1]);
    for (int32_t b = 0; b < blocks; b++) {
        const void *block = bench_read(bench, replay->donor->blocks[b], block_bytes);
        assert_memory_equal(before + (size_t)b * block_bytes, block, block_bytes);
    }
    /* Whole blocks below the hit are the donor's own, not copies. */
    for (int32_t b = 0; b < hit / KV_BLOCK_TOKENS; b++) {
        assert_int_equal(sequences[0]->numbers[b], replay->donor->numbers[b]);
    }
    for (int32_t i = 0; i < 2; i++) {
        kv_cache_release(&bench->cache, sequences[i]);
    }
    free(before);
}

static void check_model(const char *model) {
    struct replay *replay = calloc(1, sizeof *replay);
    assert_non_null(replay);
    open_replay(replay, model);
    const int32_t hits[] = {128, 256, 190, replay->bench.config->window + 2, PROMPT - 2};
    check_variant(replay, 0, true);
    for (size_t i = 0; i < COUNT_OF(hits); i += BENCH_IS_SLOW ? 2 : 1) {
        check_variant(replay, hits[i], false);
        check_variant(replay, hits[i], true);
    }
    close_replay(replay);
    free(replay);
}

static void replay_of_tiny_a_depends_on_nothing_else(void **state) {
    (void)state;
    check_model("golden/tiny-a");
}

static void replay_of_tiny_b_depends_on_nothing_else(void **state) {
    (void)state;
    check_model("golden/tiny-b");
}

static bool has_same_logits(const struct replay *replay, size_t from) {
    size_t bytes = logit_bytes(replay);
    return memcmp(
               (const uint8_t *)replay->logits[0] + from * bytes,
               (const uint8_t *)replay->logits[1] + from * bytes,
               bytes
           ) == 0;
}

/* The tests above could not fail if nothing were different: the exact run is, and so is the same
 * replay with a bound one lower, which then reads a poisoned window key. */
static void replay_differs_from_exact_and_by_its_bound(void **state) {
    (void)state;
    struct replay *replay = calloc(1, sizeof *replay);
    assert_non_null(replay);
    open_replay(replay, "golden/tiny-a");
    struct bench *bench = &replay->bench;
    const struct variant variant = {.hit = 200, .chunk = PROMPT, .poison = 0x78};
    kv_cache_release(&bench->cache, run_variant(replay, &variant, replay->logits[0], NULL));
    struct kv_sequence *exact = bench_sequence(bench, replay->ids, PROMPT);
    bench_run(bench, exact, PROMPT, PROMPT, false, replay->logits[1], NULL);
    assert_false(has_same_logits(replay, 0));
    kv_cache_release(&bench->cache, exact);
    struct kv_sequence *sequence = adopt(replay, &variant);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = sequence->computed,
        .count = PROMPT - sequence->computed,
        .prompt_end = PROMPT,
        .logits = FORWARD_LOGITS_LAST,
        .window_floor_encoder = sequence->computed - 1,
        .window_floor_decoder = sequence->computed,
        .write_floor = variant.hit,
    };
    MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    MUST(forward_logits(bench->forward, 0, 1, replay->logits[1], error));
    assert_false(has_same_logits(replay, 0));
    kv_cache_release(&bench->cache, sequence);
    close_replay(replay);
    free(replay);
}

/* Exact encoder after a hit, decoder replay: the encoder narrows to what these rows need, and its
 * entries are those of the exact run. */
static void decoder_replay_after_exact_rebuild_keeps_entries_exact(void **state) {
    (void)state;
    struct replay *replay = calloc(1, sizeof *replay);
    assert_non_null(replay);
    open_replay(replay, "golden/tiny-a");
    struct bench *bench = &replay->bench;
    const struct model_config *config = bench->config;
    int32_t bound = PROMPT - config->window;
    for (int32_t hit = 200; hit < PROMPT; hit += 92) {
        int32_t start = hit < bound ? hit : bound;
        start -= config->encoder_layers * (config->window - 1);
        for (int32_t way = 0; way < 2; way++) {
            struct kv_sequence *sequence = bench_sequence(bench, replay->ids, 0);
            if (way == 1) {
                for (int32_t b = 0; b * KV_BLOCK_TOKENS < hit; b++) {
                    kv_block_share(&bench->cache, replay->donor->numbers[b]);
                }
                struct kv_adoption adoption = {
                    .blocks = replay->donor->numbers, .kept = hit, .start = start};
                bench_fill(bench, sequence->state, 0x78, bench->cache.layout.state_bytes);
                kv_cache_adopt(&bench->cache, sequence, &adoption);
            }
            bench_append(
                bench, sequence, replay->ids + sequence->length, PROMPT - sequence->length
            );
            struct forward_segment segment = {
                .sequence = sequence,
                .position = sequence->computed,
                .count = PROMPT - sequence->computed,
                .prompt_end = PROMPT,
                .logits = FORWARD_LOGITS_LAST,
                .window = WINDOW_REPLAY,
                .window_floor_decoder = bound,
                .write_floor = way == 1 ? hit : 0,
            };
            struct layer_counters counters[MODEL_LAYERS_MAX] = {{0}};
            MUST(forward_step(bench->forward, &segment, 1, counters, error));
            MUST(forward_logits(bench->forward, 0, 1, replay->logits[way], error));
            if (way == 1) {
                int32_t most = PROMPT - start - (config->window - 1);
                assert_int_equal(counters[0].rows_full, most);
                assert_int_equal(counters[config->layers - 1].rows_full, config->window);
            }
            for (int32_t b = 0; b < sequence->block_count; b++) {
                /* Behind the prompt a block holds what it held before. */
                size_t end = (size_t)(PROMPT - b * KV_BLOCK_TOKENS);
                if (end >= KV_BLOCK_TOKENS) {
                    size_t bytes = bench->cache.layout.block_bytes;
                    assert_memory_equal(
                        bench_read(bench, sequence->blocks[b], bytes),
                        bench_read(bench, replay->donor->blocks[b], bytes),
                        bytes
                    );
                }
            }
            kv_cache_release(&bench->cache, sequence);
        }
        assert_true(has_same_logits(replay, 0));
    }
    close_replay(replay);
    free(replay);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_of_tiny_a_depends_on_nothing_else),
        cmocka_unit_test(replay_of_tiny_b_depends_on_nothing_else),
        cmocka_unit_test(replay_differs_from_exact_and_by_its_bound),
        cmocka_unit_test(decoder_replay_after_exact_rebuild_keeps_entries_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
