/* Block layout (promise P1), pool and window state. */
#include "engine/kv_cache.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Dimensions of the release (specification 1.2); only what the layout reads. */
static struct model_config *release_config(void) {
    struct model_config *config = calloc(1, sizeof *config);
    assert_non_null(config);
    config->layers = 40;
    config->head_dim = 512;
    config->index_dim = 128;
    config->window = 128;
    static const int32_t sources[] = {2, 8, 14, 20};
    config->kv_source_count = 4;
    for (int32_t s = 0; s < 4; s++) {
        config->kv_source_layers[s] = sources[s];
        config->plan[sources[s]].ratio = s < 3 ? 2 : 1;
    }
    return config;
}

static struct backend *open_backend(void) {
    struct backend_options options = {
        .name = "cpu", .threads = 1, .rows_max = 1, .dim_max = 64, .context_max = 64};
    struct backend *backend = NULL;
    struct error error;
    if (is_failed(backend_open(&options, &backend, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    return backend;
}

static void layout_of_release_costs_890_bytes_per_token(void **state) {
    (void)state;
    struct model_config *config = release_config();
    struct kv_layout layout;
    struct error error;
    assert_true(is_ok(kv_layout_make(config, &layout, &error)));
    assert_int_equal(layout.block_bytes, 113920);
    assert_int_equal(kv_layout_token_bytes(&layout), 890);
    assert_int_equal(layout.sources[0].main_record_bytes, 288);
    assert_int_equal(layout.ring_bytes, 67584);
    assert_int_equal((size_t)layout.pending_count * layout.pending_bytes, 12288);
    assert_int_equal(layout.state_bytes, 40 * 67584 + 12288); /* rings and pending pairs */
    /* Draft rings have room for the 5 rows of a block beside the window's 128. */
    config->draft_layers = 3;
    config->draft_block = 5;
    kv_layout_add_draft(config, &layout);
    assert_int_equal(layout.draft_ring_bytes, 70272);
    assert_int_equal(layout.state_bytes, 40 * 67584 + 3 * 70272 + 12288);
    free(config);
}

/* As allocated, not as computed: blocks handed out for N tokens, by the pool's own count. */
static void pool_hands_out_890_bytes_per_token(void **state) {
    (void)state;
    struct model_config *config = release_config();
    struct kv_layout layout;
    struct kv_cache cache;
    struct error error;
    assert_true(is_ok(kv_layout_make(config, &layout, &error)));
    struct backend *backend = open_backend();
    assert_true(is_ok(kv_cache_init(&cache, backend, &layout, 1280, 2, &error)));
    int32_t before = cache.block_free_count;
    struct kv_sequence *sequence = kv_cache_acquire(&cache);
    assert_true(is_ok(kv_cache_reserve(&cache, sequence, 1024, &error)));
    size_t taken = (size_t)(before - cache.block_free_count) * layout.block_bytes;
    assert_int_equal(taken, 1024 * 890);
    /* Blocks do not overlap and lie in the pool. */
    for (int32_t i = 0; i < sequence->block_count; i++) {
        assert_ptr_equal(sequence->device_blocks[i], sequence->blocks[i]);
        for (int32_t j = 0; j < i; j++) {
            ptrdiff_t apart = sequence->blocks[i] - sequence->blocks[j];
            assert_true((size_t)(apart < 0 ? -apart : apart) >= layout.block_bytes);
        }
    }
    kv_cache_release(&cache, sequence);
    assert_int_equal(cache.block_free_count, before);
    kv_cache_deinit(&cache);
    backend_close(backend);
    free(config);
}

static void pool_refuses_beyond_context_and_keeps_state(void **state) {
    (void)state;
    struct model_config *config = release_config();
    struct kv_layout layout;
    struct kv_cache cache;
    struct error error;
    assert_true(is_ok(kv_layout_make(config, &layout, &error)));
    struct backend *backend = open_backend();
    assert_true(is_ok(kv_cache_init(&cache, backend, &layout, 200, 2, &error)));
    struct kv_sequence *a = kv_cache_acquire(&cache);
    struct kv_sequence *b = kv_cache_acquire(&cache);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(kv_cache_acquire(&cache));
    assert_int_equal(kv_cache_reserve(&cache, a, 257, &error).code, RESULT_LIMIT);
    assert_int_equal(a->block_count, 0);
    /* Every admitted sequence can grow to the whole context. */
    assert_true(is_ok(kv_cache_reserve(&cache, a, 200, &error)));
    assert_true(is_ok(kv_cache_reserve(&cache, b, 200, &error)));
    assert_int_equal(cache.block_free_count, 0);
    /* Rings and pending pairs of two sequences are apart. */
    assert_true(kv_cache_ring(&cache, a, 39) != kv_cache_ring(&cache, b, 39));
    assert_null(kv_cache_pending(&cache, a, 3));
    const uint8_t *last = (const uint8_t *)kv_cache_pending(&cache, a, 2);
    assert_true(last + layout.pending_bytes <= a->state + layout.state_bytes);
    assert_true(last >= kv_cache_ring(&cache, a, 39) + layout.ring_bytes);
    kv_cache_deinit(&cache);
    backend_close(backend);
    free(config);
}

static void layout_refuses_odd_dimensions(void **state) {
    (void)state;
    struct model_config *config = release_config();
    struct kv_layout layout;
    struct error error;
    config->head_dim = 500;
    assert_int_equal(kv_layout_make(config, &layout, &error).code, RESULT_UNSUPPORTED);
    config->head_dim = 512;
    config->plan[8].ratio = 4;
    assert_int_equal(kv_layout_make(config, &layout, &error).code, RESULT_UNSUPPORTED);
    free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_of_release_costs_890_bytes_per_token),
        cmocka_unit_test(pool_hands_out_890_bytes_per_token),
        cmocka_unit_test(pool_refuses_beyond_context_and_keeps_state),
        cmocka_unit_test(layout_refuses_odd_dimensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
