/* The tiers below the device in trouble: a disk that hangs, fills up or belongs to somebody else, and
 * the bounds of all queues. */
#include "kv_tier_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- bounds and trouble ------------------------------------------------------------------------ */

static void a_disk_that_hangs_bounds_the_queue_and_blocks_nobody(void **state) {
    (void)state;
    begin(0, true, 400, 20);
    write_node(0);
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    disk_shut(true);
    int32_t node = 1;
    struct kv_tier_record record = tree_record(&world.tree, node);
    while (kv_tier_write(world.tier, &record, 1) == 1) {
        record = tree_record(&world.tree, ++node);
    }
    assert_int_equal(node, 1 + KV_TIER_QUEUE_BLOCKS);
    assert_int_equal(kv_tier_room(world.tier), 0);
    assert_int_equal(counts().queued_blocks, KV_TIER_QUEUE_BLOCKS);
    disk_wait_until_stuck();
    assert_false(kv_tier_flush(world.tier, 20));
    /* A read waits, for a while: the clock is the test's. */
    struct kv_tier_batch batch;
    assert_true(kv_tier_read(world.tier, 5, &world.tree.keys[0], 1));
    assert_false(kv_tier_next(world.tier, &batch));
    clock_move(9000);
    assert_false(kv_tier_next(world.tier, &batch));
    clock_move(2000);
    assert_true(kv_tier_next(world.tier, &batch));
    assert_true(batch.is_last && batch.has_timed_out && batch.ticket == 5 && batch.count == 0);
    assert_int_equal(batch.miss, KV_PREFIX_MISS_NOT_READ);
    kv_tier_done(world.tier, &batch);
    assert_int_equal(counts().tickets_timed_out, 1);
    /* One that is cancelled leaves nothing behind. */
    assert_true(kv_tier_read(world.tier, 6, &world.tree.keys[0], 1));
    kv_tier_cancel(world.tier, 6);
    assert_int_equal(counts().tickets, 0);
    disk_shut(false);
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    assert_int_equal(counts().written_blocks, 1 + KV_TIER_QUEUE_BLOCKS);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    (void)read_path(100, 7, &miss);
    assert_int_equal(miss, KV_PREFIX_MISS_NONE);
    end();
}

static void reading_ahead_is_bounded(void **state) {
    (void)state;
    begin(0, true, 1, 21);
    /* One path of many batches. */
    enum { COUNT = KV_TIER_BATCH_BLOCKS * (KV_TIER_BATCHES + 3) };
    static struct kv_key keys[COUNT];
    struct kv_tier_record record = tree_record(&world.tree, 0);
    int32_t tokens[KV_BLOCK_TOKENS] = {0};
    record.tokens = tokens;
    for (int32_t i = 0; i < COUNT; i++) {
        tokens[0] = i;
        kv_key_make(&record.parent, &record.lineage, tokens, &record.key);
        while (kv_tier_write(world.tier, &record, 1) == 0) {
            assert_true(kv_tier_flush(world.tier, WAIT_MS));
        }
        keys[i] = record.key;
        record.parent = record.key;
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    assert_true(kv_tier_read(world.tier, 1, keys, COUNT));
    struct kv_tier_batch held[KV_TIER_BATCHES];
    struct kv_tier_batch more;
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        held[i] = take();
        assert_int_equal(held[i].count, KV_TIER_BATCH_BLOCKS);
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS)); /* the worker went round once more */
    assert_false(kv_tier_next(world.tier, &more));
    assert_int_equal(counts().disk_read_blocks, KV_TIER_BATCHES * KV_TIER_BATCH_BLOCKS);
    for (int32_t i = KV_TIER_BATCHES - 1; i >= 0; i--) {
        kv_tier_done(world.tier, &held[i]);
    }
    int32_t came = KV_TIER_BATCHES * KV_TIER_BATCH_BLOCKS;
    do {
        more = take();
        assert_int_equal(more.first, came);
        came += more.count;
        kv_tier_done(world.tier, &more);
    } while (!more.is_last);
    assert_int_equal(came, COUNT);
    end();
}

static void tickets_are_bounded(void **state) {
    (void)state;
    begin(4, false, 8, 22);
    put_node(0);
    for (uint64_t i = 0; i < KV_TIER_TICKETS; i++) {
        assert_true(kv_tier_read(world.tier, 100 + i, world.tree.keys, 1));
    }
    assert_false(kv_tier_read(world.tier, 99, world.tree.keys, 1));
    kv_tier_cancel(world.tier, 100);
    assert_true(kv_tier_read(world.tier, 99, world.tree.keys, 1));
    for (uint64_t i = 1; i < KV_TIER_TICKETS; i++) {
        kv_tier_cancel(world.tier, 100 + i);
    }
    kv_tier_cancel(world.tier, 99);
    assert_int_equal(counts().tickets, 0);
    assert_int_equal(kv_tier_drop_host(world.tier, 0), 1);
    end();
}

static void close_finishes_the_queue(void **state) {
    (void)state;
    begin(0, true, 100, 23);
    for (int32_t node = 0; node < 100; node++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        assert_int_equal(kv_tier_write(world.tier, &record, 1), 1);
    }
    struct kv_key keys[TREE_BLOCKS];
    int32_t count = tree_keys(&world.tree, 99, keys);
    assert_true(kv_tier_read(world.tier, 1, keys, count)); /* goes down with it */
    kv_tier_close(world.tier);
    open_tier();
    for (int32_t node = 0; node < 100; node++) {
        assert_true(has_node(node));
    }
    end();
}

static void close_gives_up_on_a_disk_that_hangs(void **state) {
    (void)state;
    begin(0, true, 10, 24);
    world.options.close_timeout_ms = 100;
    kv_tier_close(world.tier);
    open_tier();
    disk_shut(true);
    for (int32_t node = 0; node < 10; node++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        assert_int_equal(kv_tier_write(world.tier, &record, 1), 1);
    }
    disk_wait_until_stuck();
    kv_tier_close(world.tier); /* waits for a tenth of a second */
    disk_shut(false);
    /* The worker, left alone, closes the disk; from then on the directory is free again. */
    struct error trouble = {.code = RESULT_LIMIT};
    while (trouble.code != RESULT_OK) {
        struct error error = {0};
        if (is_failed(kv_tier_open(&world.tier, &world.options, &error))) {
            fail_msg("%s", error.message);
        }
        kv_tier_trouble(world.tier, &trouble);
        if (trouble.code != RESULT_OK) {
            assert_int_equal(trouble.code, RESULT_LIMIT); /* in use */
            kv_tier_close(world.tier);
        }
    }
    assert_false(has_node(9));
    end();
}

static void a_full_disk_ends_writing_and_is_named(void **state) {
    (void)state;
    begin(8, true, 200, 25);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    for (int32_t node = 0; node < 50; node++) {
        write_node(node);
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    disk_fail_after(0);
    for (int32_t node = 50; node < 60; node++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        if (kv_tier_write(world.tier, &record, 1) == 0) {
            break; /* it knows already */
        }
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    struct error trouble = {0};
    kv_tier_trouble(world.tier, &trouble);
    assert_int_equal(trouble.code, RESULT_IO);
    assert_true(strlen(trouble.message) > 10);
    assert_true(counts().disk.is_readable);
    disk_fail_after(-1);
    struct kv_tier_record record = tree_record(&world.tree, 70);
    assert_int_equal(kv_tier_room(world.tier), 0);
    assert_int_equal(kv_tier_write(world.tier, &record, 1), 0);
    assert_true(counts().lost_blocks > 0);
    for (int32_t node = 0; node < 50; node += 9) { /* what was there still is */
        (void)read_path(node, 1, &miss);
        assert_int_equal(miss, KV_PREFIX_MISS_NONE);
    }
    put_node(70); /* and the host pool goes on */
    assert_true(has_node(70));
    end();
}

static void a_read_error_ends_the_disk_and_is_named(void **state) {
    (void)state;
    begin(8, true, 120, 28);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    for (int32_t node = 0; node < 120; node++) {
        write_node(node);
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    put_node(119);
    int32_t path[TREE_BLOCKS];
    int32_t node = 0;
    while (tree_path(&world.tree, node, path) < 5) {
        node++;
    }
    put_node(path[0]);
    put_node(path[1]);
    disk_fail_reads_after(0);
    assert_int_equal(read_path(node, 1, &miss), 2); /* two came, the ticket ends at the third */
    assert_int_equal(miss, KV_PREFIX_MISS_NOT_READ);
    disk_fail_reads_after(-1);
    (void)read_path(node, 2, &miss); /* nor is it read later */
    assert_int_equal(miss, KV_PREFIX_MISS_NOT_READ);
    struct error trouble = {0};
    kv_tier_trouble(world.tier, &trouble);
    assert_int_equal(trouble.code, RESULT_IO);
    assert_false(counts().disk.is_readable);
    assert_false(has_node(node));
    assert_int_equal(kv_tier_room(world.tier), 0);
    assert_true(has_node(119)); /* the host pool goes on */
    end();
}

/* Flips a byte of the block as it lies in some file of the directory's one folder. */
static void damage(int32_t node) {
    char path[1024];
    CLEANUP(buffer_deinit) struct buffer content;
    struct error error = {0};
    int32_t flipped = 0;
    for (uint32_t number = 1; number < 100; number++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        int length = snprintf(
            path,
            sizeof path,
            "%s/0102030000000000/seg-%08u.data",
            world.directory,
            (unsigned)number
        );
        assert_in_range(length, 1, sizeof path - 1);
        buffer_init(&content, BUFFER_CEILING_DEFAULT);
        if (is_ok(file_read(path, &content, &error))) {
            size_t at = view_find(buffer_view(&content), view_of(record.bytes, BLOCK), 0);
            CLEANUP(file_cleanup) FILE *file = fopen(path, "r+b");
            assert_non_null(file);
            if (at != SIZE_MAX) {
                assert_int_equal(fseek(file, (long)at + 500, SEEK_SET), 0);
                assert_int_equal(fputc(record.bytes[500] ^ 4, file), record.bytes[500] ^ 4);
                flipped++;
            }
        }
        buffer_deinit(&content);
    }
    assert_int_equal(flipped, 1);
}

static void a_damaged_block_ends_its_ticket_and_is_never_handed_over(void **state) {
    (void)state;
    begin(0, true, 200, 30);
    for (int32_t node = 0; node < 200; node++) {
        write_node(node);
    }
    int32_t path[TREE_BLOCKS];
    int32_t node = 0;
    while (tree_path(&world.tree, node, path) < 12) {
        node++;
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    damage(path[7]);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    assert_int_equal(read_path(node, 1, &miss), 7);
    assert_int_equal(miss, KV_PREFIX_MISS_DAMAGED);
    assert_int_equal(kv_tier_find(world.tier, &world.tree.keys[path[7]], 1, &miss), 0);
    assert_int_equal(miss, KV_PREFIX_MISS_DAMAGED);
    assert_true(has_node(path[8])); /* the others are whole */
    write_node(path[7]);            /* and this one again, once it is computed */
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    assert_int_equal(read_path(node, 2, &miss), 12);
    end();
}

static void an_hour_takes_no_more_than_its_budget(void **state) {
    (void)state;
    begin(0, true, 60, 31);
    world.options.write_bytes_per_hour = 20 * kv_disk_stride(BLOCK);
    kv_tier_close(world.tier);
    open_tier();
    int32_t written = 0;
    int32_t room = kv_tier_room(world.tier);
    assert_in_range(room, 15, 20); /* the segment's own header counts too */
    for (int32_t node = 0; node < 60; node++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        written += kv_tier_write(world.tier, &record, 1);
    }
    assert_in_range(written, 15, 20);
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    assert_int_equal(kv_tier_room(world.tier), 0);
    clock_move(INT64_C(2) * 3600 * 1000);
    assert_in_range(kv_tier_room(world.tier), 15, 20);
    end();
}

static int32_t downloads;
static size_t downloaded;

static void download(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    memcpy(to, from, bytes);
    downloads++;
    downloaded += bytes;
}

static result synchronize_badly(struct backend *backend, struct error *error) {
    FAIL(error, DEVICE, "attention on backend '%s': broken for a test", backend->name);
}

/* What it gives is not what was computed. */
static void nothing_of_a_faulty_device_is_written(void **state) {
    (void)state;
    begin(100, true, 80, 32);
    struct backend device = {
        .name = "test", .download = download, .synchronize = synchronize_badly};
    world.options.backend = &device;
    kv_tier_close(world.tier);
    open_tier();
    for (int32_t node = 0; node < 8; node++) {
        struct kv_tier_record record = tree_record(&world.tree, node);
        assert_int_equal(kv_tier_write(world.tier, &record, 1), 1); /* done with */
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    (void)read_path(7, 1, &miss);
    assert_int_not_equal(miss, KV_PREFIX_MISS_NONE);
    struct kv_tier_counts counts;
    kv_tier_count(world.tier, &counts);
    assert_int_equal(counts.disk.blocks, 0);
    end();
}

static void neighbours_leave_the_device_in_one_piece(void **state) {
    (void)state;
    begin(100, true, 80, 32);
    struct backend device = {.name = "test", .download = download};
    world.options.backend = &device;
    kv_tier_close(world.tier);
    open_tier();
    struct kv_tier_record records[80];
    for (int32_t node = 0; node < 80; node++) {
        records[node] = tree_record(&world.tree, node);
    }
    downloads = 0;
    kv_tier_put_host(world.tier, records, 80);
    assert_int_equal(downloads, 3); /* 32, 32, 16 */
    assert_int_equal(kv_tier_write(world.tier, records, 80), 80);
    assert_int_equal(downloads, 6);
    assert_int_equal(downloaded, 160 * BLOCK);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    for (int32_t node = 0; node < 80; node++) {
        (void)read_path(node, 1, &miss);
        assert_int_equal(miss, KV_PREFIX_MISS_NONE);
    }
    assert_int_equal(kv_tier_drop_host(world.tier, 0), 80);
    (void)read_path(79, 1, &miss);
    assert_int_equal(miss, KV_PREFIX_MISS_NONE);
    end();
}

static void a_read_that_hangs_ends_its_ticket(void **state) {
    (void)state;
    begin(8, true, 100, 29);
    struct kv_key keys[TREE_BLOCKS];
    for (int32_t node = 0; node < 100; node++) {
        write_node(node);
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    put_node(0); /* the root of a path: comes at once */
    int32_t node = 99;
    while (tree_keys(&world.tree, node, keys), !kv_key_equals(&keys[0], &world.tree.keys[0])) {
        node--;
    }
    int32_t count = tree_keys(&world.tree, node, keys);
    assert_true(count > 1);
    disk_shut(true);
    assert_true(kv_tier_read(world.tier, 1, keys, count));
    assert_true(kv_tier_read(world.tier, 2, keys, count));
    disk_wait_until_stuck();
    struct kv_tier_batch batch;
    for (int32_t i = 0; i < 2; i++) {
        assert_true(kv_tier_next(world.tier, &batch));
        assert_true(batch.count == 1 && !batch.from_disk && !batch.is_last);
        kv_tier_done(world.tier, &batch);
    }
    assert_false(kv_tier_next(world.tier, &batch));
    clock_move(11000);
    for (uint64_t ticket = 1; ticket <= 2; ticket++) {
        assert_true(kv_tier_next(world.tier, &batch));
        assert_true(batch.ticket == ticket && batch.is_last && batch.has_timed_out);
        assert_int_equal(batch.miss, KV_PREFIX_MISS_NOT_READ);
        kv_tier_done(world.tier, &batch);
    }
    disk_shut(false);
    assert_true(kv_tier_flush(world.tier, WAIT_MS)); /* the worker is back */
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    assert_int_equal(read_path(node, 3, &miss), count); /* it answers again, and so do we */
    end();
}

static void a_directory_that_cannot_be_used_is_no_error(void **state) {
    (void)state;
    begin(8, true, 4, 26);
    struct kv_tier *second = NULL;
    struct error error = {0};
    assert_true(is_ok(kv_tier_open(&second, &world.options, &error)));
    kv_tier_trouble(second, &error);
    assert_int_equal(error.code, RESULT_LIMIT); /* in use by the first */
    struct kv_tier_record record = tree_record(&world.tree, 0);
    assert_int_equal(kv_tier_write(second, &record, 1), 0);
    kv_tier_put_host(second, &record, 1);
    assert_true(kv_tier_has(second, &record.key));
    kv_tier_close(second);
    struct kv_tier_options wrong = world.options;
    wrong.block_bytes = 0;
    assert_int_equal(kv_tier_open(&second, &wrong, &error).code, RESULT_INVALID_INPUT);
    end();
}

static void lineages_are_known_on_both_tiers(void **state) {
    (void)state;
    begin(8, true, 2, 27);
    struct kv_lineage child;
    struct kv_lineage grandchild;
    kv_lineage_replay(&world.options.root, 256, &child);
    kv_lineage_replay(&child, 1800, &grandchild);
    kv_tier_note_lineage(world.tier, &child, &world.options.root, 256);
    kv_tier_note_lineage(world.tier, &grandchild, &child, 1800);
    struct kv_tier_record record = tree_record(&world.tree, 0);
    struct kv_key parent = record.parent;
    const struct kv_lineage *lineages[] = {&world.options.root, &child, &grandchild};
    for (size_t i = 0; i < COUNT_OF(lineages); i++) {
        record.lineage = *lineages[i];
        kv_key_make(&parent, &record.lineage, record.tokens, &record.key);
        if (i == 2) {
            assert_int_equal(kv_tier_write(world.tier, &record, 1), 1);
        } else {
            kv_tier_put_host(world.tier, &record, 1);
        }
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    struct kv_lineage found[4];
    assert_int_equal(kv_tier_lineages(world.tier, &parent, found, 4), 2);
    assert_true(kv_lineage_equals(&found[0], &grandchild));
    assert_true(kv_lineage_equals(&found[1], &child));
    assert_int_equal(kv_tier_lineages(world.tier, &parent, found, 1), 1);
    kv_tier_close(world.tier);
    open_tier();
    struct kv_lineage from;
    int32_t position = 0;
    assert_int_equal(kv_tier_lineages(world.tier, &parent, found, 4), 1);
    assert_true(kv_tier_lineage(world.tier, &grandchild, &from, &position));
    assert_true(kv_lineage_equals(&from, &child) && position == 1800);
    assert_true(kv_tier_lineage(world.tier, &child, &from, &position));
    assert_true(kv_lineage_equals(&from, &world.options.root) && position == 256);
    assert_false(kv_tier_lineage(world.tier, &(struct kv_lineage){{9}}, &from, &position));
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_that_hangs_bounds_the_queue_and_blocks_nobody),
        cmocka_unit_test(reading_ahead_is_bounded),
        cmocka_unit_test(tickets_are_bounded),
        cmocka_unit_test(close_finishes_the_queue),
        cmocka_unit_test(close_gives_up_on_a_disk_that_hangs),
        cmocka_unit_test(a_full_disk_ends_writing_and_is_named),
        cmocka_unit_test(a_read_error_ends_the_disk_and_is_named),
        cmocka_unit_test(a_damaged_block_ends_its_ticket_and_is_never_handed_over),
        cmocka_unit_test(an_hour_takes_no_more_than_its_budget),
        cmocka_unit_test(neighbours_leave_the_device_in_one_piece),
        cmocka_unit_test(nothing_of_a_faulty_device_is_written),
        cmocka_unit_test(a_read_that_hangs_ends_its_ticket),
        cmocka_unit_test(a_directory_that_cannot_be_used_is_no_error),
        cmocka_unit_test(lineages_are_known_on_both_tiers),
    };
    return run_world_tests(tests, COUNT_OF(tests));
}
