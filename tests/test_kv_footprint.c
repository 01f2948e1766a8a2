/* Promise P1, memory per token: what sequences of N tokens take, by the pool's own counts and by
 * the bytes that a run really touches, is what the formula says and no more.
 *
 * Release: 890 B a token in blocks of 128 (113,920 B), and beside them 40 window rings of 67,584 B
 * and three pending pairs of 4,096 B for each sequence. The three draft rings, 2,906,112 B of rings
 * in all, are not kept yet. */
#include "engine/kv_window.h"
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

#define PATTERN 0xee

/* Specification 4.1 and 4.3, in bytes per token: FP4 codes with a scale per 16 channels, and index
 * keys as FP4 with a scale per 32; a ratio-2 source has one entry for two tokens. In halves. */
static uint64_t token_half_bytes(const struct model_config *config) {
    uint64_t d = (uint64_t)config->head_dim;
    uint64_t i = (uint64_t)config->index_dim;
    uint64_t entry = d / 2 + d / 16 + i / 2 + i / 32;
    uint64_t halves = 0;
    for (int32_t s = 0; s < config->kv_source_count; s++) {
        halves += config->plan[config->kv_source_layers[s]].ratio == 2 ? entry : 2 * entry;
    }
    return halves;
}

static uint64_t block_bytes_of(const struct model_config *config, uint64_t tokens) {
    uint64_t blocks = (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    return blocks * KV_BLOCK_TOKENS * token_half_bytes(config) / 2;
}

static uint64_t taken_bytes(const struct kv_cache *cache) {
    uint64_t blocks = (uint64_t)(cache->block_total - cache->block_free_count);
    uint64_t counted = 0;
    for (int32_t n = 0; n < cache->block_total; n++) {
        counted += cache->block_references[n] > 0;
    }
    assert_int_equal(counted, blocks);
    return blocks * cache->layout.block_bytes;
}

/* ---- the release's dimensions, without weights ----------------------------------------------- */

static uint64_t device_bytes;

static result
count_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    (void)backend;
    /* Room for a million tokens that nobody touches. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, bytes + 64, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
        FAIL(error, MEMORY, "no memory");
    }
    memcpy(memory, &bytes, sizeof bytes);
    device_bytes += bytes;
    *out = (uint8_t *)memory + 64;
    return OK;
}

static void count_release(struct backend *backend, void *memory) {
    (void)backend;
    if (memory != NULL) {
        void *start = (uint8_t *)memory - 64;
        size_t bytes = 0;
        memcpy(&bytes, start, sizeof bytes);
        device_bytes -= bytes;
        assert_int_equal(munmap(start, bytes + 64), 0);
    }
}

static void plain_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    memcpy(to, from, bytes);
}

static struct model_config *release_config(void) {
    static const int32_t sources[] = {2, 8, 14, 20};
    struct model_config *config = calloc(1, sizeof *config);
    assert_non_null(config);
    config->layers = 40;
    config->head_dim = 512;
    config->index_dim = 128;
    config->window = 128;
    config->kv_source_count = 4;
    for (int32_t s = 0; s < 4; s++) {
        config->kv_source_layers[s] = sources[s];
        config->plan[sources[s]].ratio = s < 3 ? 2 : 1;
    }
    return config;
}

static void release_costs_890_bytes_per_token(void **state) {
    (void)state;
    enum { CONTEXT = 1 << 20, SEQUENCES = 3 };
    static const int32_t lengths[] = {1, 127, 128, 129, 1000, 65536, 65537, 1000000, CONTEXT};
    struct model_config *config = release_config();
    struct backend backend = {
        .allocate = count_allocate,
        .release = count_release,
        .upload = plain_copy,
        .download = plain_copy,
        .copy = plain_copy,
    };
    struct kv_layout layout;
    struct kv_cache cache;
    MUST(kv_layout_make(config, &layout, error));
    assert_int_equal(token_half_bytes(config), 2 * 890);
    assert_int_equal(layout.block_bytes, 113920);
    assert_int_equal(kv_layout_token_bytes(&layout), 890);
    struct kv_cache_shape shape = {
        .context_max = CONTEXT,
        .sequences_max = SEQUENCES,
        .block_total = CONTEXT / KV_BLOCK_TOKENS + 1,
    };
    device_bytes = 0;
    MUST(kv_cache_init_shape(&cache, &backend, &layout, &shape, error));
    /* What was asked of the backend: blocks, windows, and tables of 8 bytes a block. */
    uint64_t windows = 40 * 67584 + 3 * 4096;
    uint64_t tables = SEQUENCES * (uint64_t)cache.blocks_max * sizeof(void *);
    assert_int_equal(layout.state_bytes, windows);
    assert_int_equal((40 + 3) * layout.ring_bytes, 2906112); /* with draft rings */
    assert_int_equal(
        device_bytes, (uint64_t)shape.block_total * 113920 + SEQUENCES * windows + tables
    );
    uint64_t at_start = device_bytes;
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        struct kv_sequence *sequence = kv_cache_acquire(&cache);
        MUST(kv_cache_reserve(&cache, sequence, lengths[i], error));
        for (int32_t p = 0; p < lengths[i]; p++) {
            kv_cache_append(&cache, sequence, p % 1000, p % 1000);
        }
        sequence->computed = lengths[i];
        uint64_t wanted = ((uint64_t)lengths[i] + 127) / 128 * 128 * 890;
        assert_int_equal(taken_bytes(&cache), wanted);
        assert_int_equal(taken_bytes(&cache), block_bytes_of(config, (uint64_t)lengths[i]));
        /* A fork takes nothing until it writes, then one block at most. */
        struct kv_sequence *child = kv_cache_fork(&cache, sequence);
        assert_int_equal(taken_bytes(&cache), wanted);
        if (lengths[i] < CONTEXT) {
            MUST(kv_cache_reserve(&cache, child, lengths[i] + 1, error));
            assert_int_equal(taken_bytes(&cache), wanted + 113920);
        }
        assert_int_equal(device_bytes, at_start); /* nothing was allocated meanwhile */
        kv_cache_release(&cache, child);
        kv_cache_release(&cache, sequence);
        assert_int_equal(taken_bytes(&cache), 0);
    }
    kv_cache_deinit(&cache);
    assert_int_equal(device_bytes, 0);
    free(config);
}

/* An agent that waits for a tool costs its blocks and one window state in the snapshot pool, however
 * many wait and wherever they are; window slots are as many as run at a time. */
static void waiting_agent_costs_its_blocks_and_its_window_state(void **state) {
    (void)state;
    enum { AGENTS = 6, SLOTS = 2, TOKENS = 1000 };
    struct model_config *config = release_config();
    struct backend backend = {
        .allocate = count_allocate,
        .release = count_release,
        .upload = plain_copy,
        .download = plain_copy,
        .copy = plain_copy,
    };
    struct kv_layout layout;
    MUST(kv_layout_make(config, &layout, error));
    config->draft_layers = 3;
    config->draft_block = 5;
    kv_layout_add_draft(config, &layout);
    /* A draft ring has 5 slots more than a layer's, in units of 64 bytes. */
    assert_int_equal(layout.state_bytes, 40 * 67584 + 3 * 70272 + 3 * 4096);
    struct kv_cache cache;
    struct kv_cache_shape shape = {
        .context_max = TOKENS, .sequences_max = AGENTS, .windows_max = SLOTS};
    device_bytes = 0;
    MUST(kv_cache_init_shape(&cache, &backend, &layout, &shape, error));
    uint64_t tables = AGENTS * (uint64_t)cache.blocks_max * sizeof(void *);
    assert_int_equal(
        device_bytes,
        (uint64_t)cache.block_total * 113920 + SLOTS * (uint64_t)layout.state_bytes + tables
    );
    struct kv_window_options options = {
        .cache = &cache,
        .encoder_layers = 20,
        .window = config->window,
        .bytes_max = AGENTS * layout.state_bytes,
    };
    struct kv_window *pool = NULL;
    MUST(kv_window_create(&pool, &options, error));
    for (int32_t i = 1; i <= AGENTS; i++) {
        struct kv_sequence *sequence = kv_cache_acquire(&cache);
        assert_non_null(sequence);
        MUST(kv_cache_reserve(&cache, sequence, TOKENS - i, error));
        for (int32_t p = 0; p < TOKENS - i; p++) {
            kv_cache_append(&cache, sequence, p, p);
        }
        sequence->computed = TOKENS - i;
        assert_true(kv_window_park(pool, sequence, INT64_MAX, 0) != 0);
        kv_cache_window_release(&cache, sequence);
        struct kv_window_counts counts;
        kv_window_count(pool, &counts);
        assert_int_equal(counts.parked, i);
        assert_int_equal(counts.bytes_touched, (uint64_t)i * layout.state_bytes);
        assert_int_equal(taken_bytes(&cache), (uint64_t)i * 8 * 113920);
        assert_int_equal(cache.window_free_count, SLOTS);
    }
    kv_window_destroy(pool);
    for (int32_t i = 0; i < AGENTS; i++) {
        kv_cache_release(&cache, &cache.sequences[i]);
    }
    kv_cache_deinit(&cache);
    assert_int_equal(device_bytes, 0);
    free(config);
}

/* ---- real runs ------------------------------------------------------------------------------- */

/* Every byte of records behind `tokens`, and of blocks that nobody has, is still the pattern.
 * `written` counts the bytes of the records before. */
static void check_touched(
    const struct bench *bench, const struct kv_sequence *sequence, int32_t tokens, uint64_t *written
) {
    const struct kv_cache *cache = &bench->cache;
    const struct model_config *config = bench->config;
    size_t block_bytes = cache->layout.block_bytes;
    bool *may = calloc(block_bytes, 1);
    assert_non_null(may);
    *written = 0;
    for (int32_t n = 0; n < cache->block_total; n++) {
        int32_t place = -1;
        for (int32_t b = 0; b < sequence->block_count; b++) {
            place = sequence->numbers[b] == n ? b : place;
        }
        memset(may, 0, block_bytes);
        for (int32_t s = 0; s < config->kv_source_count && place >= 0; s++) {
            const struct kv_source_layout *source = &cache->layout.sources[s];
            int32_t inside = tokens / source->ratio - place * source->entries;
            inside = inside < 0 ? 0 : inside > source->entries ? source->entries : inside;
            size_t entries = (size_t)inside;
            size_t index = (size_t)config->index_dim;
            memset(may + source->main_offset, 1, entries * source->main_record_bytes);
            memset(may + source->index_code_offset, 1, entries * (index / 2));
            memset(may + source->index_scale_offset, 1, entries * (index / 32));
        }
        const uint8_t *block = kv_block_address(cache, n);
        for (size_t i = 0; i < block_bytes; i++) {
            assert_true(may[i] || block[i] == PATTERN);
            *written += may[i];
        }
    }
    free(may);
}

static void check_model(const char *model) {
    static const int32_t lengths[] = {1, 2, 50, 128, 129, 300};
    struct bench bench;
    struct bench_options options = {
        .model = model, .threads = 2, .rows_max = 300, .sequences_max = 2, .context_max = 400};
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, model)) {
        print_message("SKIPPED %s: set HEARTH_TEST_DATA\n", model);
        skip();
    }
    bench_open(&bench, &options);
    struct kv_cache *cache = &bench.cache;
    int32_t ids[301];
    for (int32_t i = 0; i < 301; i++) {
        ids[i] = 3 + (i * 7919) % 900;
    }
    size_t pool_bytes = (size_t)cache->block_total * cache->layout.block_bytes;
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        int32_t tokens = lengths[i];
        memset(cache->pool, PATTERN, pool_bytes);
        struct kv_sequence *sequence = bench_sequence(&bench, ids, tokens);
        bench_run(&bench, sequence, tokens, 70, false, NULL, NULL);
        assert_int_equal(taken_bytes(cache), block_bytes_of(bench.config, (uint64_t)tokens));
        uint64_t written = 0;
        check_touched(&bench, sequence, tokens, &written);
        /* An odd last token of a ratio-2 source waits in the pending pair. */
        uint64_t halves = (uint64_t)tokens * token_half_bytes(bench.config);
        assert_true(2 * written <= halves);
        assert_true(tokens % 2 == 1 || 2 * written == halves);
        bench_append(&bench, sequence, ids + tokens, 1);
        bench_run(&bench, sequence, tokens + 1, 1, false, NULL, NULL);
        check_touched(&bench, sequence, tokens + 1, &written);
        assert_int_equal(taken_bytes(cache), block_bytes_of(bench.config, (uint64_t)tokens + 1));
        kv_cache_release(cache, sequence);
        assert_int_equal(taken_bytes(cache), 0);
    }
    print_message(
        "%s: %llu bytes for two tokens, %zu for the windows of a sequence\n",
        model,
        (unsigned long long)token_half_bytes(bench.config),
        cache->layout.state_bytes
    );
    bench_close(&bench);
}

static void runs_of_tiny_a_take_what_the_formula_says(void **state) {
    (void)state;
    check_model("golden/tiny-a");
}

static void runs_of_tiny_b_take_what_the_formula_says(void **state) {
    (void)state;
    check_model("golden/tiny-b");
}

static void runs_of_mini_take_what_the_formula_says(void **state) {
    (void)state;
    check_model("mini");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_costs_890_bytes_per_token),
        cmocka_unit_test(waiting_agent_costs_its_blocks_and_its_window_state),
        cmocka_unit_test(runs_of_tiny_a_take_what_the_formula_says),
        cmocka_unit_test(runs_of_tiny_b_take_what_the_formula_says),
        cmocka_unit_test(runs_of_mini_take_what_the_formula_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
