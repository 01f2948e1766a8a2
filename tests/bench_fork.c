/* Times forks and window snapshots at the release's cache layout, on synthetic sequences: no weights
 * are needed.
 *
 *   bench_fork
 *
 * Medians of 100: the fork, the first append of the child (which copies the tail block) and its
 * release; capture and restore of full and encoder snapshots, parking and its end, the first copy into
 * each slot apart, since it touches new memory; with warm processor caches, and with the caches swept before each. Takes about 1 GB: the
 * pool for a million tokens. */
#include "engine/kv_window.h"

#include <time.h>

#define ROUNDS    100
#define TOKENS    ((int32_t)1 << 20)
#define SEQUENCES 2
#define SWEEP     ((size_t)256 << 20) /* bytes, more than the processor caches hold */

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

struct times {
    double fork[ROUNDS], append[ROUNDS], release[ROUNDS];
};

static void print_times(const char *name, double us[ROUNDS]) {
    qsort(us, ROUNDS, sizeof *us, compare);
    printf("  %s %8.1f us (most %8.1f)", name, us[ROUNDS / 2], us[ROUNDS - 1]);
}

/* `sweep`: memory to write between rounds; null: caches stay warm. */
static result
time_forks(struct kv_cache *cache, int32_t tokens, uint8_t *sweep, struct error *error) {
    struct times times;
    struct kv_sequence *parent = kv_cache_acquire(cache);
    ASSERT(parent != NULL);
    TRY(kv_cache_reserve(cache, parent, tokens, error));
    for (int32_t i = 0; i < tokens; i++) {
        kv_cache_append(cache, parent, i % 1000, i % 1000);
    }
    parent->computed = tokens;
    memset(parent->state, 1, cache->layout.state_bytes);
    memset(parent->blocks[parent->block_count - 1], 1, cache->layout.block_bytes);
    for (int32_t i = 0; i < ROUNDS; i++) {
        if (sweep != NULL) {
            memset(sweep, i, SWEEP);
        }
        double start = now_us();
        struct kv_sequence *child = kv_cache_fork(cache, parent);
        double forked = now_us();
        ASSERT(child != NULL);
        TRY(kv_cache_reserve(cache, child, tokens + 1, error));
        kv_cache_append(cache, child, 1, 1);
        double appended = now_us();
        kv_cache_release(cache, child);
        times.fork[i] = forked - start;
        times.append[i] = appended - forked;
        times.release[i] = now_us() - appended;
    }
    kv_cache_release(cache, parent);
    ASSERT(cache->block_free_count == cache->block_total);
    printf("%8d tokens, %s:", tokens, sweep == NULL ? "warm" : "cold");
    print_times("fork", times.fork);
    print_times("first append", times.append);
    print_times("release", times.release);
    printf("\n");
    return OK;
}

/* Captures into `SLOTS` slots in turn, each `kind`, and restores the latest. */
static result time_snapshots(
    struct kv_cache *cache, enum kv_snapshot_kind kind, uint8_t *sweep, struct error *error
) {
    double first[ROUNDS];
    double capture[ROUNDS];
    double restore[ROUNDS];
    struct kv_window *pool = NULL;
    struct kv_window_options options = {
        .cache = cache,
        .encoder_layers = 20,
        .window = 128,
        .bytes_max = UINT64_MAX,
        .count_max = ROUNDS,
    };
    TRY(kv_window_create(&pool, &options, error));
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    ASSERT(sequence != NULL);
    TRY(kv_cache_reserve(cache, sequence, 1023, error));
    for (int32_t i = 0; i < 1023; i++) {
        kv_cache_append(cache, sequence, i, i);
    }
    sequence->computed = 1023;
    memset(sequence->state, 1, cache->layout.state_bytes);
    for (int32_t i = 0; i < 2 * ROUNDS; i++) {
        struct kv_snapshot about = {.kind = kind, .expected_ms = INT64_MAX, .node = (uint64_t)i};
        if (sweep != NULL) {
            memset(sweep, i, SWEEP);
        }
        double start = now_us();
        uint64_t id = kv_window_capture(pool, sequence, &about, i);
        double captured = now_us();
        if (sweep != NULL) {
            memset(sweep, i, SWEEP);
        }
        double again = now_us();
        bool is_there = kv_window_restore(pool, id, kind, sequence, i);
        restore[i % ROUNDS] = now_us() - again;
        ASSERT(is_there);
        (i < ROUNDS ? first : capture)[i % ROUNDS] = captured - start;
    }
    kv_window_destroy(pool);
    kv_cache_release(cache, sequence);
    bool is_full = kind == KV_SNAPSHOT_FULL;
    printf("%s snapshot, %s:", is_full ? "   full" : "encoder", sweep == NULL ? "warm" : "cold");
    print_times("first capture", first);
    print_times("capture", capture);
    print_times("restore", restore);
    printf("\n");
    return OK;
}

/* Parks into `ROUNDS` slots in turn, new ones first, and brings the latest back. */
static result time_parks(struct kv_cache *cache, uint8_t *sweep, struct error *error) {
    double first[ROUNDS];
    double park[ROUNDS];
    double unpark[ROUNDS];
    uint64_t held[ROUNDS];
    struct kv_window *pool = NULL;
    struct kv_window_options options = {
        .cache = cache,
        .encoder_layers = 20,
        .window = 128,
        .bytes_max = UINT64_MAX,
        .count_max = ROUNDS,
    };
    TRY(kv_window_create(&pool, &options, error));
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    ASSERT(sequence != NULL);
    sequence->computed = 1023;
    memset(sequence->state, 1, cache->layout.state_bytes);
    for (int32_t i = 0; i < 2 * ROUNDS; i++) {
        if (sweep != NULL) {
            memset(sweep, i, SWEEP);
        }
        double start = now_us();
        uint64_t ticket = kv_window_park(pool, sequence, 0, i);
        kv_cache_window_release(cache, sequence);
        double parked = now_us() - start;
        ASSERT(ticket != 0);
        if (sweep != NULL) {
            memset(sweep, i, SWEEP);
        }
        start = now_us();
        bool has_slot = kv_cache_window_acquire(cache, sequence);
        ASSERT(has_slot);
        if (i < ROUNDS) {
            first[i] = parked; /* stays: the next one takes a new slot */
            held[i] = ticket;
        } else {
            bool is_there = kv_window_unpark(pool, ticket, sequence);
            unpark[i - ROUNDS] = now_us() - start;
            park[i - ROUNDS] = parked;
            ASSERT(is_there);
        }
        if (i == ROUNDS - 1) {
            for (int32_t j = 0; j < ROUNDS; j++) {
                kv_window_leave(pool, held[j]);
            }
        }
    }
    kv_window_destroy(pool);
    sequence->computed = 0;
    kv_cache_release(cache, sequence);
    printf("parked state, %s:", sweep == NULL ? "warm" : "cold");
    print_times("first park", first);
    print_times("park", park);
    print_times("unpark", unpark);
    printf("\n");
    return OK;
}

/* Dimensions of the release that the layout reads. */
static void fill_config(struct model_config *config) {
    static const int32_t sources[] = {2, 8, 14, 20};
    config->layers = 40;
    config->head_dim = 512;
    config->index_dim = 128;
    config->window = 128;
    config->draft_layers = 3;
    config->draft_block = 5;
    config->kv_source_count = 4;
    for (int32_t s = 0; s < 4; s++) {
        config->kv_source_layers[s] = sources[s];
        config->plan[sources[s]].ratio = s < 3 ? 2 : 1;
    }
}

static result run(struct error *error) {
    /* An odd length inside a block: the tail is copied. */
    static const int32_t lengths[] = {1023, 65535, TOKENS - 1};
    struct backend_options options = {
        .name = "cpu", .threads = 1, .rows_max = 1, .dim_max = 64, .context_max = 64};
    CLEANUP(free_cleanup) struct model_config *config = calloc(1, sizeof *config);
    struct backend *backend = NULL;
    struct kv_layout layout;
    struct kv_cache cache = {0};
    CLEANUP(free_cleanup) uint8_t *sweep = malloc(SWEEP);
    if (config == NULL || sweep == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes", SWEEP);
    }
    fill_config(config);
    TRY(kv_layout_make(config, &layout, error));
    kv_layout_add_draft(config, &layout);
    struct kv_cache_shape shape = {
        .context_max = TOKENS + 1,
        .sequences_max = SEQUENCES,
        .block_total = TOKENS / KV_BLOCK_TOKENS + 2,
    };
    struct kv_cache_size size;
    kv_cache_measure(&layout, &shape, &size);
    printf(
        "pool %.1f MB, window state %.2f MB a sequence, all %.1f MB\n",
        (double)size.pool_bytes / 1e6,
        (double)size.window_bytes_per_sequence / 1e6,
        (double)size.total_bytes / 1e6
    );
    TRY(backend_open(&options, &backend, error));
    result done = kv_cache_init_shape(&cache, backend, &layout, &shape, error);
    for (size_t i = 0; is_ok(done) && i < COUNT_OF(lengths); i++) {
        done = time_forks(&cache, lengths[i], NULL, error);
        if (is_ok(done)) {
            done = time_forks(&cache, lengths[i], sweep, error);
        }
    }
    for (int32_t i = 0; is_ok(done) && i < 4; i++) {
        enum kv_snapshot_kind kind = i < 2 ? KV_SNAPSHOT_FULL : KV_SNAPSHOT_ENCODER;
        done = time_snapshots(&cache, kind, i % 2 == 0 ? NULL : sweep, error);
    }
    for (int32_t i = 0; is_ok(done) && i < 2; i++) {
        done = time_parks(&cache, i == 0 ? NULL : sweep, error);
    }
    kv_cache_deinit(&cache);
    backend_close(backend);
    return done;
}

int main(void) {
    struct error error = {0};
    if (is_failed(run(&error))) {
        (void)fprintf(stderr, "bench_fork: %s\n", error.message);
        return 1;
    }
    return 0;
}
