/* The tiers with memory that fails, and the bytes that they say they take. */
#include "failing_memory.h"
#include "kv_tier_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define BLOCK 1000

static void opening_survives_any_allocation_that_fails(void **state) {
    (void)state;
    char directory[256];
    directory_make(directory);
    int32_t refused = 0;
    bool has_fired = true;
    for (size_t nth = 1; has_fired; nth++) {
        struct kv_tier_options options = {
            .directory = directory,
            .host_bytes = 40000,
            .block_bytes = BLOCK,
        };
        struct kv_tier *tier = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result opened = kv_tier_open(&tier, &options, &error);
        has_fired = failing_memory_fired();
        failing_memory_arm(0);
        if (is_failed(opened)) {
            assert_int_equal(opened.code, RESULT_MEMORY);
            assert_true(has_fired);
            assert_null(tier);
            refused++;
        } else {
            kv_tier_close(tier);
        }
    }
    assert_true(refused >= 18); /* of the tiers' own alone */
    directory_remove(directory);
}

static void a_ticket_without_memory_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    struct kv_tier_options options = {.host_bytes = 40000, .block_bytes = BLOCK};
    struct kv_tier *tier = NULL;
    struct error error = {0};
    assert_true(is_ok(kv_tier_open(&tier, &options, &error)));
    static struct tree tree;
    tree_make(&tree, 4, BLOCK, &options.root, 3);
    struct kv_tier_record record = tree_record(&tree, 0);
    kv_tier_put_host(tier, &record, 1);
    for (size_t nth = 1; nth <= 2; nth++) {
        failing_memory_arm(nth);
        assert_false(kv_tier_read(tier, 1, tree.keys, 1));
        assert_true(failing_memory_fired());
    }
    failing_memory_arm(0);
    struct kv_tier_counts counts;
    kv_tier_count(tier, &counts);
    assert_int_equal(counts.tickets, 0);
    assert_true(kv_tier_read(tier, 1, tree.keys, 1));
    struct kv_tier_batch batch;
    assert_true(kv_tier_next(tier, &batch));
    assert_true(batch.count == 1 && tree_is(&tree, 0, &batch.records[0]));
    kv_tier_done(tier, &batch);
    assert_int_equal(kv_tier_drop_host(tier, 0), 1); /* nothing stayed pinned */
    kv_tier_close(tier);
    tree_free(&tree);
}

static void measured_bytes_are_what_open_takes(void **state) {
    (void)state;
    for (uint64_t host_bytes = 0; host_bytes <= 9000000; host_bytes += 1234567) {
        struct kv_tier_options options = {.host_bytes = host_bytes, .block_bytes = 113920};
        struct kv_tier_size size;
        kv_tier_measure(&options, &size);
        assert_true(size.host_bytes <= host_bytes);
        assert_int_equal(size.host_blocks > 0, host_bytes > 120000);
        size_t before = failing_memory_bytes();
        struct kv_tier *tier = NULL;
        struct error error = {0};
        assert_true(is_ok(kv_tier_open(&tier, &options, &error)));
        assert_int_equal(failing_memory_bytes() - before, size.total_bytes);
        kv_tier_close(tier);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_survives_any_allocation_that_fails),
        cmocka_unit_test(a_ticket_without_memory_is_refused_and_leaves_nothing),
        cmocka_unit_test(measured_bytes_are_what_open_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
