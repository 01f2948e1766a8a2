/* Bounded replay beside the exact computation (spec 5.5): it is closer than a context cut to the
 * last W tokens, equals it for short prompts, sees nothing it must not see, and puts every window
 * record into its slot. The long table is bench_replay's. */
#include "replay_quality.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SUFFIX_MAX 45
#define HIT        202
#define ROWS       8
#define TEXT       (333 + SUFFIX_MAX + ROWS)

static const char *const models[] = {"golden/tiny-a", "golden/tiny-b", "mini"};

struct fixture {
    struct bench bench;
    int32_t ids[TEXT];
};

static bool open_model(struct fixture *fixture, const char *model) {
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, model)) {
        print_message("SKIPPED replay quality of %s: set HEARTH_TEST_DATA\n", model);
        return false;
    }
    struct bench_options options = {
        .model = model,
        .rows_max = replay_rows_max(SUFFIX_MAX),
        .sequences_max = REPLAY_SEQUENCES,
        .context_max = TEXT,
    };
    bench_open(&fixture->bench, &options);
    uint32_t state = 7;
    for (int32_t i = 0; i < TEXT; i++) {
        state = state * 1664525U + 1013904223U;
        fixture->ids[i] = 20 + (int32_t)((state >> 8) % 1000U);
    }
    return true;
}

static float *take_floats(size_t count) {
    float *floats = calloc(count, sizeof *floats);
    assert_non_null(floats);
    return floats;
}

/* ---- the order of distances ----------------------------------------------------------------- */

static void replay_after_hit_is_closer_than_last_window(void **state) {
    (void)state;
    static const int32_t hits[] = {130, HIT, 332};
    static const int32_t suffixes[] = {1, 21, SUFFIX_MAX};
    int found = 0;
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        struct fixture fixture;
        if ((BENCH_IS_SLOW && m > 0) || !open_model(&fixture, models[m])) {
            continue;
        }
        struct replay_base base = {0};
        for (size_t h = 0; h < COUNT_OF(hits); h++) {
            struct logit_difference totals[REPLAY_VARIANTS] = {0};
            replay_base_advance(&fixture.bench, &base, fixture.ids, hits[h]);
            for (size_t s = 0; s < COUNT_OF(suffixes); s++) {
                struct replay_case chosen = {
                    .ids = fixture.ids,
                    .hit = hits[h],
                    .length = hits[h] + suffixes[s],
                    .rows = ROWS,
                };
                replay_measure(&fixture.bench, &base, &chosen, totals);
            }
            /* Not a matter of noise: measured factors are 7 and more. */
            double cut = logits_kl(&totals[REPLAY_LAST_WINDOW]);
            for (int v = 0; v < REPLAY_LAST_WINDOW; v++) {
                assert_true(logits_kl(&totals[v]) > 0);
                assert_true(logits_kl(&totals[v]) < cut / 2);
            }
            assert_true(
                totals[REPLAY_BOTH].argmax_equal >= totals[REPLAY_LAST_WINDOW].argmax_equal
            );
        }
        replay_base_release(&fixture.bench, &base);
        bench_close(&fixture.bench);
        found++;
    }
    assert_true(found > 0);
}

/* ---- prompts no longer than the window ------------------------------------------------------ */

static void run_short(struct fixture *fixture, int32_t length, bool replay, float *logits) {
    struct bench *bench = &fixture->bench;
    struct kv_sequence *sequence = bench_sequence(bench, fixture->ids, length);
    int32_t bound = length - bench->config->window;
    struct forward_segment segment = {
        .sequence = sequence,
        .count = length,
        .prompt_end = length,
        .logits = FORWARD_LOGITS_ALL,
        .window = replay ? WINDOW_REPLAY : WINDOW_EXACT,
        .window_floor_decoder = replay && bound > 0 ? bound : 0,
    };
    MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    int32_t rows = forward_logit_rows(bench->forward);
    size_t skipped = (size_t)(length - rows) * (size_t)bench->config->vocabulary;
    MUST(forward_logits(bench->forward, 0, rows, logits + skipped, error));
    kv_cache_release(&bench->cache, sequence);
}

static void replay_of_prompt_within_window_is_exact(void **state) {
    (void)state;
    struct fixture fixture;
    assert_true(open_model(&fixture, models[0]));
    int32_t window = fixture.bench.config->window;
    size_t row = (size_t)fixture.bench.config->vocabulary;
    float *exact = take_floats((size_t)(window + 1) * row);
    float *replay = take_floats((size_t)(window + 1) * row);
    for (int32_t length = 1; length <= window; length++) {
        run_short(&fixture, length, false, exact);
        run_short(&fixture, length, true, replay);
        assert_memory_equal(exact, replay, (size_t)length * row * sizeof *exact);
    }
    /* One token more and the first row is not seen any more. */
    run_short(&fixture, window + 1, false, exact);
    run_short(&fixture, window + 1, true, replay);
    size_t last = (size_t)window * row;
    assert_memory_not_equal(exact + last, replay + last, row * sizeof *exact);
    free(replay);
    free(exact);
    bench_close(&fixture.bench);
}

/* ---- what rows of the segment see ----------------------------------------------------------- */

/* Replays at HIT with logits of all rows from HIT - W on; windows below are rubbish. */
static void run_segment(
    struct fixture *fixture,
    const struct replay_base *base,
    const int32_t *suffix,
    int32_t suffix_count,
    int rubbish,
    float *logits
) {
    struct bench *bench = &fixture->bench;
    int32_t start = HIT - bench->config->window;
    struct kv_sequence *sequence = kv_cache_fork(&bench->cache, base->at);
    assert_non_null(sequence);
    size_t rings = (size_t)bench->config->layers * bench->cache.layout.ring_bytes;
    bench_fill(bench, sequence->state, rubbish, rings);
    sequence->computed = start;
    sequence->kept = HIT;
    bench_append(bench, sequence, suffix, suffix_count);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = start,
        .count = HIT + suffix_count - start,
        .prompt_end = HIT + suffix_count,
        .logits = FORWARD_LOGITS_ALL,
        .window_floor_encoder = start,
        .window_floor_decoder = start,
        .write_floor = HIT,
    };
    MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    assert_int_equal(forward_logit_rows(bench->forward), segment.count);
    MUST(forward_logits(bench->forward, 0, segment.count, logits, error));
    kv_cache_release(&bench->cache, sequence);
}

/* A changed token changes its own row and later ones, never an earlier one; what the windows held
 * before the segment changes nothing. */
static void replay_row_sees_segment_up_to_itself(void **state) {
    (void)state;
    enum { SUFFIX = 23 };
    struct fixture fixture;
    assert_true(open_model(&fixture, models[0]));
    struct replay_base base = {0};
    replay_base_advance(&fixture.bench, &base, fixture.ids, HIT);
    size_t row = (size_t)fixture.bench.config->vocabulary;
    size_t rows = (size_t)(SUFFIX + fixture.bench.config->window);
    float *first = take_floats(rows * row);
    float *other = take_floats(rows * row);
    int32_t suffix[SUFFIX];
    memcpy(suffix, fixture.ids + HIT, sizeof suffix);
    run_segment(&fixture, &base, suffix, SUFFIX, 0x5a, first);
    run_segment(&fixture, &base, suffix, SUFFIX, 0x31, other);
    assert_memory_equal(first, other, rows * row * sizeof *first);
    for (size_t changed = 0; changed < SUFFIX; changed += BENCH_IS_SLOW ? 11 : 1) {
        memcpy(suffix, fixture.ids + HIT, sizeof suffix);
        suffix[changed] = suffix[changed] == 19 ? 18 : 19;
        run_segment(&fixture, &base, suffix, SUFFIX, 0x5a, other);
        size_t before = rows - SUFFIX + changed;
        assert_memory_equal(first, other, before * row * sizeof *first);
        for (size_t i = before; i < rows; i++) {
            assert_memory_not_equal(first + i * row, other + i * row, row * sizeof *first);
        }
    }
    free(other);
    free(first);
    replay_base_release(&fixture.bench, &base);
    bench_close(&fixture.bench);
}

/* ---- rings ---------------------------------------------------------------------------------- */

static float e4m3(uint8_t code) {
    int exponent = code >> 3 & 15;
    int mantissa = code & 7;
    float value =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return (code & 0x80) != 0 ? -value : value;
}

/* Squared distance of two window records. */
static double record_distance(const uint8_t *a, const uint8_t *b, size_t dim) {
    double sum = 0;
    for (size_t c = 0; c < dim; c++) {
        float x = e4m3(a[c]) * ldexpf(1, (int)a[dim + c / 32] - 127);
        float y = e4m3(b[c]) * ldexpf(1, (int)b[dim + c / 32] - 127);
        sum += ((double)x - (double)y) * ((double)x - (double)y);
    }
    return sum;
}

/* The first decoder layer takes the encoder's output, so its ring after a decoder replay is that of
 * the exact run, slot by slot; after an encoder replay each slot is near its own position's record
 * and far from those of others, which an offset of one slot would not be. */
static void
check_source_rings(struct fixture *fixture, int32_t length, const struct replay_base *base) {
    struct bench *bench = &fixture->bench;
    const struct model_config *config = bench->config;
    struct replay_case chosen = {.ids = fixture->ids, .hit = HIT, .length = length};
    float *logits = take_floats((size_t)config->vocabulary);
    struct kv_sequence *exact = replay_exact(bench, base, &chosen, logits);
    int32_t layer = 0;
    while (!config->plan[layer].decoder) {
        layer++;
    }
    size_t dim = (size_t)config->head_dim;
    size_t record = window_record_bytes(config->head_dim);
    size_t bytes = (size_t)config->window * record;
    const uint8_t *wanted_ring = kv_cache_ring(&bench->cache, exact, layer);
    const uint8_t *wanted_next = kv_cache_ring(&bench->cache, exact, layer + 1);
    for (int v = REPLAY_ENCODER; v <= REPLAY_BOTH; v++) {
        struct kv_sequence *sequence =
            replay_variant_run(bench, base, &chosen, (enum replay_variant)v, logits);
        const uint8_t *wanted = bench_read(bench, wanted_ring, bytes);
        const uint8_t *ring =
            bench_read(bench, kv_cache_ring(&bench->cache, sequence, layer), bytes);
        for (int32_t slot = 0; slot < config->window; slot++) {
            const uint8_t *got = ring + (size_t)slot * record;
            if (v == REPLAY_DECODER) {
                assert_memory_equal(got, wanted + (size_t)slot * record, record);
                continue;
            }
            double own = record_distance(got, wanted + (size_t)slot * record, dim);
            for (int32_t other = 0; other < config->window; other++) {
                double distance = record_distance(got, wanted + (size_t)other * record, dim);
                assert_true(other == slot || own < distance);
            }
        }
        const uint8_t *next =
            bench_read(bench, kv_cache_ring(&bench->cache, sequence, layer + 1), bytes);
        assert_memory_not_equal(next, bench_read(bench, wanted_next, bytes), bytes);
        kv_cache_release(&bench->cache, sequence);
    }
    kv_cache_release(&bench->cache, exact);
    free(logits);
}

static void replay_rings_match_exact_ones_slot_by_slot(void **state) {
    (void)state;
    static const int32_t lengths[] = {HIT + 1, HIT + 13, HIT + SUFFIX_MAX};
    struct fixture fixture;
    assert_true(open_model(&fixture, models[0]));
    struct replay_base base = {0};
    replay_base_advance(&fixture.bench, &base, fixture.ids, HIT);
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        assert_true(lengths[i] % fixture.bench.config->window != 0);
        check_source_rings(&fixture, lengths[i], &base);
    }
    replay_base_release(&fixture.bench, &base);
    bench_close(&fixture.bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_after_hit_is_closer_than_last_window),
        cmocka_unit_test(replay_of_prompt_within_window_is_exact),
        cmocka_unit_test(replay_row_sees_segment_up_to_itself),
        cmocka_unit_test(replay_rings_match_exact_ones_slot_by_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
