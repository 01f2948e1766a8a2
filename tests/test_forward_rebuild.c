/* Promise P2 after a hit in the cache: a sequence that takes over the blocks of another one and
 * rebuilds its windows, or starts from a snapshot of them, has the logits, entries and windows of a
 * cold run, bit for bit, and runs exactly the rows that architecture section 4 says.
 *
 * Everything a rebuild must not read is poisoned: rings and pending pairs before it, and the
 * entries behind the hit in a block that is used in part. */
#include "forward_support.h"

#include "engine/kv_window.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define STEPS  8 /* decode steps behind the prompt */
#define TOKENS 1200
#define POISON                                                                                     \
    0x78 /* 2.0 in every window record, infinity-like in scales: whoever reads it differs */
#define SEQUENCES 4
#define PACE      (BENCH_IS_SLOW ? 3 : 1)

struct plan {
    const char *model;
    int32_t prompt; /* N */
    int32_t rows_max;
    size_t slow_stride; /* a slow build checks one in so many cases */
};

static const struct plan tiny_a = {"golden/tiny-a", 410, 410, 3};
static const struct plan tiny_b = {"golden/tiny-b", BENCH_IS_SLOW ? 480 : 700, 700, 8};
static const struct plan mini = {"mini", 1090, 512, 9};

struct rebuild {
    struct bench bench;
    const struct plan *plan;
    struct kv_window *pool;
    int32_t ids[TOKENS + STEPS];
    struct kv_sequence *cold;       /* the prompt alone */
    struct kv_sequence *cold_after; /* and the steps */
    float *wanted, *logits;         /* [1 + STEPS, V] */
    uint32_t seed;
    int32_t trials;
};

static int32_t draw(struct rebuild *rebuild, int32_t below) {
    rebuild->seed = rebuild->seed * 1664525U + 1013904223U;
    return (int32_t)((rebuild->seed >> 8) % (uint32_t)below);
}

static size_t logit_bytes(const struct rebuild *rebuild) {
    return (size_t)rebuild->bench.config->vocabulary * sizeof(float);
}

/* The last logits of the prompt are there: runs the steps with the tokens that follow. */
static void run_steps(struct rebuild *rebuild, struct kv_sequence *sequence, float *logits) {
    size_t vocabulary = (size_t)rebuild->bench.config->vocabulary;
    for (int32_t i = 0; i < STEPS; i++) {
        bench_append(&rebuild->bench, sequence, rebuild->ids + rebuild->plan->prompt + i, 1);
        logits += vocabulary;
        bench_run(&rebuild->bench, sequence, sequence->length, 1, false, logits, NULL);
    }
}

static void open_rebuild(struct rebuild *rebuild, const struct plan *plan) {
    *rebuild = (struct rebuild){.plan = plan, .seed = 20261130U};
    struct bench_options options = {
        .model = plan->model,
        .threads = 2,
        .rows_max = plan->rows_max,
        .sequences_max = SEQUENCES,
        .context_max = plan->prompt + STEPS,
    };
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, plan->model)) {
        print_message("SKIPPED %s: set HEARTH_TEST_DATA\n", plan->model);
        skip();
    }
    bench_open(&rebuild->bench, &options);
    struct kv_window_options window = {
        .cache = &rebuild->bench.cache,
        .encoder_layers = rebuild->bench.config->encoder_layers,
        .window = rebuild->bench.config->window,
        .bytes_max = UINT64_MAX,
        .count_max = 4,
    };
    MUST(kv_window_create(&rebuild->pool, &window, error));
    ASSERT(plan->prompt <= TOKENS);
    for (int32_t i = 0; i < plan->prompt + STEPS; i++) {
        rebuild->ids[i] = 3 + draw(rebuild, 1000);
    }
    rebuild->wanted = calloc(1 + STEPS, logit_bytes(rebuild));
    rebuild->logits = calloc(1 + STEPS, logit_bytes(rebuild));
    assert_true(rebuild->wanted != NULL && rebuild->logits != NULL);
    rebuild->cold_after = bench_sequence(&rebuild->bench, rebuild->ids, plan->prompt);
    bench_run(
        &rebuild->bench,
        rebuild->cold_after,
        plan->prompt,
        plan->rows_max,
        false,
        rebuild->wanted,
        NULL
    );
    rebuild->cold = kv_cache_fork(&rebuild->bench.cache, rebuild->cold_after);
    assert_non_null(rebuild->cold);
    run_steps(rebuild, rebuild->cold_after, rebuild->wanted);
}

static void close_rebuild(struct rebuild *rebuild) {
    struct kv_cache *cache = &rebuild->bench.cache;
    kv_window_destroy(rebuild->pool);
    kv_cache_release(cache, rebuild->cold);
    kv_cache_release(cache, rebuild->cold_after);
    assert_int_equal(cache->block_free_count, cache->block_total);
    print_message("%s: %d rebuilds\n", rebuild->plan->model, rebuild->trials);
    free(rebuild->wanted);
    free(rebuild->logits);
    bench_close(&rebuild->bench);
}

/* ---- one hit -------------------------------------------------------------------------------- */

struct hit {
    int32_t position; /* H */
    int32_t start;
    uint64_t snapshot; /* 0: none */
    enum kv_snapshot_kind kind;
    int32_t chunk; /* 0: random ones */
};

/* Records of tokens from `from` on in the blocks that are the sequence's own. */
static void poison_entries(struct rebuild *rebuild, struct kv_sequence *sequence, int32_t from) {
    const struct bench *bench = &rebuild->bench;
    const struct model_config *config = bench->config;
    size_t key = (size_t)config->index_dim / 2;
    size_t scale = (size_t)config->index_dim / 32;
    for (int32_t s = 0; s < config->kv_source_count; s++) {
        const struct kv_source_layout *source = &rebuild->bench.cache.layout.sources[s];
        int32_t end = sequence->block_count * source->entries;
        for (int32_t g = (from + source->ratio - 1) / source->ratio; g < end; g++) {
            uint8_t *block = sequence->blocks[g / source->entries];
            size_t at = (size_t)(g % source->entries);
            size_t record = source->main_record_bytes;
            bench_fill(bench, block + source->main_offset + at * record, POISON, record);
            bench_fill(bench, block + source->index_code_offset + at * key, POISON, key);
            bench_fill(bench, block + source->index_scale_offset + at * scale, POISON, scale);
        }
    }
}

/* A sequence with the blocks of `from` up to the hit and the ids of the prompt. */
static struct kv_sequence *
take_hit(struct rebuild *rebuild, const struct kv_sequence *from, const struct hit *hit) {
    struct kv_cache *cache = &rebuild->bench.cache;
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    assert_non_null(sequence);
    bench_fill(&rebuild->bench, sequence->state, POISON, cache->layout.state_bytes);
    for (int32_t b = 0; b * KV_BLOCK_TOKENS < hit->position; b++) {
        kv_block_share(cache, from->numbers[b]);
    }
    struct kv_adoption adoption = {
        .blocks = from->numbers, .kept = hit->position, .start = hit->start};
    kv_cache_adopt(cache, sequence, &adoption);
    if (hit->snapshot != 0) {
        assert_true(kv_window_restore(rebuild->pool, hit->snapshot, hit->kind, sequence, 0));
    }
    bench_append(
        &rebuild->bench,
        sequence,
        rebuild->ids + hit->position,
        rebuild->plan->prompt - hit->position
    );
    poison_entries(rebuild, sequence, hit->position);
    return sequence;
}

static void run_hit(
    struct rebuild *rebuild,
    struct kv_sequence *sequence,
    const struct hit *hit,
    struct layer_counters *counters
) {
    int32_t end = rebuild->plan->prompt;
    while (sequence->computed < end) {
        int32_t left = end - sequence->computed;
        int32_t chunk = hit->chunk > 0 ? hit->chunk : 1 + draw(rebuild, rebuild->plan->rows_max);
        int32_t rows = left < chunk ? left : chunk;
        rows = rows < rebuild->plan->rows_max ? rows : rebuild->plan->rows_max;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = rows,
            .prompt_end = end,
            .logits = rows == left ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .write_floor = hit->position,
        };
        MUST(forward_step(rebuild->bench.forward, &segment, 1, counters, error));
    }
    MUST(forward_logits(rebuild->bench.forward, 0, 1, rebuild->logits, error));
}

static int32_t max_of(int32_t a, int32_t b) {
    return a > b ? a : b;
}

/* architecture section 4 and spec 3.13, written out once more. */
static void check_rows(
    const struct rebuild *rebuild, const struct hit *hit, const struct layer_counters *counters
) {
    const struct model_config *config = rebuild->bench.config;
    int32_t end = rebuild->plan->prompt;
    int32_t older = config->window - 1;
    int32_t before = end - hit->start; /* rows that reach the layer */
    for (int32_t l = 0; l < config->layers; l++) {
        int32_t needed = end - (1 + (config->layers - 1 - l) * older);
        if (l < config->encoder_layers) {
            int32_t entries = hit->position - (config->encoder_layers - 1 - l) * older;
            needed = entries < needed ? entries : needed;
        }
        int32_t full = end - max_of(hit->start, needed);
        int32_t window = end - max_of(hit->start, needed - older);
        window = l == config->encoder_layers ? before : window;
        assert_int_equal(counters[l].rows_full, full);
        assert_int_equal(counters[l].rows_window_only, window - full);
        before = full;
    }
}

/* Whether logits, entries and windows are those of the cold run; asserts it when `must` is set. */
static bool check_hit(
    struct rebuild *rebuild, const struct kv_sequence *from, const struct hit *hit, bool must
) {
    struct bench *bench = &rebuild->bench;
    struct layer_counters counters[MODEL_LAYERS_MAX] = {{0}};
    struct kv_sequence *sequence = take_hit(rebuild, from, hit);
    uint8_t *before = malloc(bench->cache.layout.block_bytes);
    assert_non_null(before);
    kv_block_read(&bench->cache, from->numbers[(hit->position - 1) / KV_BLOCK_TOKENS], before);
    run_hit(rebuild, sequence, hit, counters);
    if (must) {
        check_rows(rebuild, hit, counters);
        bench_assert_state_equal(bench, rebuild->cold, bench, sequence);
        assert_memory_equal(rebuild->logits, rebuild->wanted, logit_bytes(rebuild));
    }
    run_steps(rebuild, sequence, rebuild->logits);
    if (must) {
        bench_assert_state_equal(bench, rebuild->cold_after, bench, sequence);
        assert_memory_equal(rebuild->logits, rebuild->wanted, (1 + STEPS) * logit_bytes(rebuild));
    }
    /* The donor's block that was used in part is as it was. */
    size_t block_bytes = bench->cache.layout.block_bytes;
    const uint8_t *block = from->blocks[(hit->position - 1) / KV_BLOCK_TOKENS];
    assert_memory_equal(bench_read(bench, block, block_bytes), before, block_bytes);
    free(before);
    kv_cache_release(&bench->cache, sequence);
    rebuild->trials++;
    return memcmp(rebuild->logits, rebuild->wanted, (1 + STEPS) * logit_bytes(rebuild)) == 0;
}

/* ---- without a snapshot --------------------------------------------------------------------- */

static void check_rebuilds(const struct plan *plan) {
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, plan);
    const struct model_config *config = rebuild->bench.config;
    int32_t window = config->window;
    int32_t narrow = config->encoder_layers * (window - 1);
    int32_t hits[] = {
        256,                             /* of whole blocks */
        384,                             /* the same */
        2 * ((narrow + 40) / 2),         /* inside a block, the rebuild starts above 0 */
        window - 2,                      /* within the first window */
        window + 2,                      /* just above it */
        (plan->prompt - 1) / 2 * 2,      /* all but one or two tokens */
        plan->prompt - 2,                /* near the end */
        (plan->prompt - narrow) / 2 * 2, /* where the two bounds meet, about */
        (plan->prompt - config->layers * 3) / 2 * 2,
    };
    for (size_t i = 0; i < COUNT_OF(hits); i++) {
        struct hit hit = {.position = hits[i]};
        assert_true(hit.position > 0 && hit.position < plan->prompt && hit.position % 2 == 0);
        if (BENCH_IS_SLOW && i % plan->slow_stride != 2) {
            continue;
        }
        hit.start = model_rebuild_start(config, hit.position, plan->prompt);
        (void)check_hit(rebuild, rebuild->cold_after, &hit, true);
        hit.chunk = plan->rows_max;
        (void)check_hit(rebuild, rebuild->cold_after, &hit, true);
    }
    close_rebuild(rebuild);
    free(rebuild);
}

static void rebuild_tiny_a_equals_cold(void **state) {
    (void)state;
    check_rebuilds(&tiny_a);
}

static void rebuild_tiny_b_equals_cold(void **state) {
    (void)state;
    check_rebuilds(&tiny_b);
}

static void rebuild_mini_equals_cold(void **state) {
    (void)state;
    if (!BENCH_IS_SLOW) {
        check_rebuilds(&mini);
    }
}

/* One row per step, the worst cut. */
static void rebuild_row_by_row_equals_cold(void **state) {
    (void)state;
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, &tiny_a);
    struct hit hit = {.position = 300, .chunk = BENCH_IS_SLOW ? 9 : 1};
    hit.start = model_rebuild_start(rebuild->bench.config, hit.position, tiny_a.prompt);
    assert_true(hit.start > 0);
    (void)check_hit(rebuild, rebuild->cold_after, &hit, true);
    close_rebuild(rebuild);
    free(rebuild);
}

/* The start is tight: a row later, the poison below it is seen. */
static void rebuild_started_late_differs(void **state) {
    (void)state;
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, &tiny_a);
    int32_t different = 0;
    int32_t wanted = BENCH_IS_SLOW ? 1 : 3;
    /* Not every position shows it: what one key changes in the last row may round away. */
    for (int32_t position = 200; position < 360 && different < wanted; position += 20) {
        struct hit hit = {.position = position};
        hit.start = 1 + model_rebuild_start(rebuild->bench.config, hit.position, tiny_a.prompt);
        different += !check_hit(rebuild, rebuild->cold_after, &hit, false);
    }
    print_message("%d rebuilds that start a row late have other logits\n", different);
    assert_int_equal(different, wanted);
    close_rebuild(rebuild);
    free(rebuild);
}

/* ---- with a snapshot ------------------------------------------------------------------------- */

/* A sequence that ran to `position`, as a prompt of its own or inside of one that ends at
 * `prompt_end`. */
static struct kv_sequence *
run_donor(struct rebuild *rebuild, int32_t position, int32_t prompt_end) {
    struct kv_sequence *donor = bench_sequence(&rebuild->bench, rebuild->ids, prompt_end);
    while (donor->computed < position) {
        int32_t left = position - donor->computed;
        struct forward_segment segment = {
            .sequence = donor,
            .position = donor->computed,
            .count = left < rebuild->plan->rows_max ? left : rebuild->plan->rows_max,
            .prompt_end = prompt_end,
            .logits = FORWARD_LOGITS_NONE,
        };
        MUST(forward_step(rebuild->bench.forward, &segment, 1, NULL, error));
    }
    return donor;
}

static uint64_t
capture(struct rebuild *rebuild, const struct kv_sequence *donor, enum kv_snapshot_kind kind) {
    struct kv_snapshot about = {.kind = kind, .expected_ms = INT64_MAX};
    uint64_t id = kv_window_capture(rebuild->pool, donor, &about, 0);
    assert_true(id != 0);
    return id;
}

static void check_snapshot(
    struct rebuild *rebuild,
    int32_t position, /* S */
    int32_t hit_position,
    int32_t prompt_end, /* of the donor; `position` for a FULL one */
    enum kv_snapshot_kind captured,
    enum kv_snapshot_kind restored
) {
    struct kv_sequence *donor = run_donor(rebuild, position, prompt_end);
    struct hit hit = {
        .position = hit_position,
        .start = position,
        .snapshot = capture(rebuild, donor, captured),
        .kind = restored,
    };
    bench_fill(&rebuild->bench, donor->state, POISON, rebuild->bench.cache.layout.state_bytes);
    const struct kv_sequence *from = hit_position <= position ? donor : rebuild->cold_after;
    (void)check_hit(rebuild, from, &hit, true);
    kv_cache_release(&rebuild->bench.cache, donor);
    kv_window_drop_all(rebuild->pool);
}

static void check_snapshots(const struct plan *plan) {
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, plan);
    int32_t end = plan->prompt;
    size_t stride = BENCH_IS_SLOW ? plan->slow_stride : 1;
    int32_t needed =
        model_rows_needed(rebuild->bench.config, rebuild->bench.config->encoder_layers);
    const int32_t full[] = {128, 129, end - 1, end - 2, 37, 36, 2 * needed + 1};
    for (size_t i = 0; i < COUNT_OF(full); i += stride) {
        check_snapshot(rebuild, full[i], full[i], full[i], KV_SNAPSHOT_FULL, KV_SNAPSHOT_FULL);
    }
    /* A snapshot before the hit: rows between run again and are not written. */
    if (stride <= 3) {
        check_snapshot(rebuild, 131, 160, 131, KV_SNAPSHOT_FULL, KV_SNAPSHOT_FULL);
    }
    check_snapshot(rebuild, 130, 256, 130, KV_SNAPSHOT_FULL, KV_SNAPSHOT_FULL);
    /* Encoder snapshots, down to the last usable position. */
    const int32_t encoder[] = {128, 201, end - needed - 5, end - needed};
    for (size_t i = 0; i < COUNT_OF(encoder); i += stride) {
        int32_t at = encoder[i];
        int32_t even = at + at % 2;
        check_snapshot(rebuild, at, even, end, KV_SNAPSHOT_ENCODER, KV_SNAPSHOT_ENCODER);
        check_snapshot(rebuild, at, even + 6, at, KV_SNAPSHOT_FULL, KV_SNAPSHOT_ENCODER);
    }
    close_rebuild(rebuild);
    free(rebuild);
}

static void snapshots_tiny_a_equal_cold(void **state) {
    (void)state;
    check_snapshots(&tiny_a);
}

static void snapshots_tiny_b_equal_cold(void **state) {
    (void)state;
    check_snapshots(&tiny_b);
}

static void snapshots_mini_equal_cold(void **state) {
    (void)state;
    if (!BENCH_IS_SLOW) {
        check_snapshots(&mini);
    }
}

/* An encoder snapshot one row too late differs; one without the source's ring needs W - 1 more. */
static void snapshots_used_late_differ(void **state) {
    (void)state;
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, &tiny_a);
    const struct model_config *config = rebuild->bench.config;
    int32_t needed = model_rows_needed(config, config->encoder_layers);
    int32_t different = 0;
    for (int32_t late = 1; late < 10; late += PACE) {
        int32_t at = tiny_a.prompt - needed + late;
        struct kv_sequence *donor = run_donor(rebuild, at, tiny_a.prompt);
        struct hit hit = {
            .position = at + at % 2,
            .start = at,
            .snapshot = capture(rebuild, donor, KV_SNAPSHOT_ENCODER),
            .kind = KV_SNAPSHOT_ENCODER,
        };
        different += !check_hit(rebuild, rebuild->cold_after, &hit, false);
        kv_cache_release(&rebuild->bench.cache, donor);
        kv_window_drop_all(rebuild->pool);
    }
    print_message("%d encoder snapshots used too late give other logits\n", different);
    assert_true(different > 0);
    close_rebuild(rebuild);
    free(rebuild);
}

/* A sequence that was itself rebuilt says whether its ring of layer E is complete: at the hit it is
 * not unless the end of the prompt is near, W - 1 rows later it is. */
static void snapshots_know_whether_source_ring_is_complete(void **state) {
    (void)state;
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, &tiny_a);
    const struct model_config *config = rebuild->bench.config;
    int32_t older = config->window - 1;
    for (int32_t extra = 0; extra <= 2 * older; extra += 5 * PACE) {
        struct hit first = {.position = 200};
        first.start = model_rebuild_start(config, first.position, tiny_a.prompt);
        struct kv_sequence *donor = take_hit(rebuild, rebuild->cold_after, &first);
        int32_t at = first.position + extra;
        struct forward_segment segment = {
            .sequence = donor,
            .position = first.start,
            .count = at - first.start,
            .prompt_end = tiny_a.prompt,
            .write_floor = first.position,
        };
        MUST(forward_step(rebuild->bench.forward, &segment, 1, NULL, error));
        struct hit hit = {
            .position = at + at % 2,
            .start = at,
            .snapshot = capture(rebuild, donor, KV_SNAPSHOT_ENCODER),
            .kind = KV_SNAPSHOT_ENCODER,
        };
        bool is_complete = kv_window_get(rebuild->pool, hit.snapshot)->has_source_ring;
        assert_int_equal(is_complete, extra >= older);
        int32_t most = model_rows_reached(config, config->encoder_layers - !is_complete);
        assert_true(tiny_a.prompt - at >= most);
        (void)check_hit(rebuild, rebuild->cold_after, &hit, true);
        kv_cache_release(&rebuild->bench.cache, donor);
        kv_window_drop_all(rebuild->pool);
    }
    close_rebuild(rebuild);
    free(rebuild);
}

/* ---- with others ----------------------------------------------------------------------------- */

/* Two rebuilds share their steps; each has its own bits. */
static void rebuild_among_others_equals_cold(void **state) {
    (void)state;
    struct rebuild *rebuild = calloc(1, sizeof *rebuild);
    assert_non_null(rebuild);
    open_rebuild(rebuild, &tiny_a);
    struct bench *bench = &rebuild->bench;
    const struct hit hits[] = {{.position = 300}, {.position = 130}};
    struct kv_sequence *sequences[2];
    for (int32_t i = 0; i < 2; i++) {
        struct hit hit = hits[i];
        hit.start = model_rebuild_start(bench->config, hit.position, tiny_a.prompt);
        sequences[i] = take_hit(rebuild, rebuild->cold_after, &hit);
    }
    int32_t finished = 0;
    while (finished < 2) {
        struct forward_segment segments[2];
        int32_t count = 0;
        int32_t which[2];
        for (int32_t i = 0; i < 2; i++) {
            int32_t left = tiny_a.prompt - sequences[i]->computed;
            int32_t rows = 1 + draw(rebuild, 60);
            if (left == 0) {
                continue;
            }
            rows = rows < left ? rows : left;
            which[count] = i;
            segments[count++] = (struct forward_segment){
                .sequence = sequences[i],
                .position = sequences[i]->computed,
                .count = rows,
                .prompt_end = tiny_a.prompt,
                .logits = rows == left ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
                .write_floor = hits[i].position,
            };
        }
        MUST(forward_step(bench->forward, segments, count, NULL, error));
        int32_t row = 0;
        for (int32_t s = 0; s < count; s++) {
            if (segments[s].logits == FORWARD_LOGITS_LAST) {
                MUST(forward_logits(bench->forward, row++, 1, rebuild->logits, error));
                assert_memory_equal(rebuild->logits, rebuild->wanted, logit_bytes(rebuild));
                bench_assert_state_equal(bench, rebuild->cold, bench, sequences[which[s]]);
                finished++;
            }
        }
    }
    kv_cache_release(&bench->cache, sequences[0]);
    kv_cache_release(&bench->cache, sequences[1]);
    close_rebuild(rebuild);
    free(rebuild);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rebuild_tiny_a_equals_cold),
        cmocka_unit_test(rebuild_tiny_b_equals_cold),
        cmocka_unit_test(rebuild_mini_equals_cold),
        cmocka_unit_test(rebuild_row_by_row_equals_cold),
        cmocka_unit_test(rebuild_started_late_differs),
        cmocka_unit_test(snapshots_tiny_a_equal_cold),
        cmocka_unit_test(snapshots_tiny_b_equal_cold),
        cmocka_unit_test(snapshots_mini_equal_cold),
        cmocka_unit_test(snapshots_used_late_differ),
        cmocka_unit_test(snapshots_know_whether_source_ring_is_complete),
        cmocka_unit_test(rebuild_among_others_equals_cold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
