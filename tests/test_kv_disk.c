/* The disk tier as its callers see it: what was written is found again, by this and later runs;
 * budgets, lifetimes, clocks; directories that cannot be used. Damage: test_kv_disk_damage.c. */
#include "kv_disk_support.h"

#include "engine/kv_disk_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void expect_refused(struct tier *tier, enum result_code code, const char *part) {
    struct error error = {0};
    struct kv_disk *disk = NULL;
    result opened = kv_disk_open(&disk, &tier->options, &error);
    assert_int_equal(opened.code, code);
    assert_null(disk);
    if (strstr(error.message, part) == NULL) {
        print_error("'%s' is not in '%s'\n", part, error.message);
    }
    assert_non_null(strstr(error.message, part));
}

static void check_index(struct tier *tier) {
    struct error error;
    result valid = disk_index_validate(&tier->disk->index, &error);
    if (is_failed(valid)) {
        print_error("%s\n", error.message);
    }
    assert_true(is_ok(valid));
}

static void kv_disk_path_is_found_and_read_back(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, RELEASE_BYTES);
    tier_open(&tier);
    assert_int_equal(tier_why(&tier, 1001, 0), KV_PREFIX_MISS_NEVER_COMPUTED);
    tier_put_path(&tier, 1001, 8);
    tier_put_path(&tier, 1002, 6);
    struct kv_key keys[8];
    for (int32_t i = 0; i < 8; i++) {
        struct block block;
        block_make(&tier, 1002, i, &block);
        keys[i] = block.key;
        assert_true(tier_get(&tier, 1001, i));
    }
    enum kv_prefix_miss why = KV_PREFIX_MISS_NONE;
    assert_int_equal(kv_disk_find(tier.disk, keys, 8, &why), 6);
    assert_int_equal(why, KV_PREFIX_MISS_NEVER_COMPUTED);
    assert_int_equal(kv_disk_find(tier.disk, keys, 5, &why), 5);
    assert_int_equal(why, KV_PREFIX_MISS_NONE);
    /* 4 blocks are the trunk of both: written once. */
    struct kv_disk_counts counts = tier_counts(&tier);
    assert_int_equal(counts.blocks, 10);
    assert_int_equal(counts.written, 10);
    assert_int_equal(counts.present, 4);
    assert_int_equal(counts.bytes, 10 * 114688 + 4096);
    assert_int_equal(tier_put(&tier, 1001, 7), KV_DISK_PRESENT);
    check_index(&tier);
    tier_remove(&tier);
}

static void kv_disk_strides_cost_little(void **state) {
    (void)state;
    assert_int_equal(kv_disk_stride(RELEASE_BYTES), 28 * 4096);
    assert_int_equal(kv_disk_stride(MINI_BYTES), 14336); /* 1.057: 768 bytes of header */
    for (size_t bytes = 64; bytes < 400000; bytes += 321) {
        uint64_t stride = kv_disk_stride(bytes);
        assert_true(stride >= bytes + KV_DISK_HEADER_BYTES);
        assert_int_equal(stride % 64, 0);
        assert_true(stride - bytes - KV_DISK_HEADER_BYTES <= bytes / 50 + 64);
    }
}

static void reopen_and_check(struct tier *tier, bool with_index_files) {
    tier_close(tier);
    if (!with_index_files) {
        for (uint32_t i = 0; i < 32; i++) {
            char name[DISK_NAME_BYTES];
            disk_segment_name(i, true, name);
            (void)unlink(tier_path(tier, name));
        }
    }
    tier_open(tier);
    check_index(tier);
    for (int32_t text = 1; text <= 12; text++) {
        for (int32_t i = 0; i < 6; i++) {
            assert_true(tier_get(tier, 1000 * text, i));
        }
    }
}

static void kv_disk_next_run_finds_everything(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.segment_bytes = 20 * 14336;
    tier_open(&tier);
    for (int32_t text = 1; text <= 12; text++) {
        tier_put_path(&tier, 1000 * text, 6);
        tier_pass(&tier, 1000);
    }
    struct kv_disk_counts before = tier_counts(&tier);
    assert_int_equal(before.segments, 4);
    reopen_and_check(&tier, true);
    struct kv_disk_counts after = tier_counts(&tier);
    assert_int_equal(after.blocks, before.blocks);
    assert_int_equal(after.bytes, before.bytes);
    assert_int_equal(after.damaged_found, 0);
    reopen_and_check(&tier, false);
    assert_int_equal(tier_counts(&tier).blocks, before.blocks);
    /* The last segment is gone on with: 72 records in segments of 20. */
    tier_put_path(&tier, 99000, 8);
    assert_int_equal(tier_counts(&tier).segments, 4);
    tier_put_path(&tier, 98000, 1);
    assert_int_equal(tier_counts(&tier).segments, 5);
    tier_remove(&tier);
}

static void kv_disk_budget_takes_leaves_before_trunks(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, RELEASE_BYTES);
    tier.options.bytes_max = 20 * 114688 + 8 * 4096;
    tier.options.segment_bytes = 5 * 114688;
    tier_open(&tier);
    assert_true(tier.disk->can_punch);
    tier_put_path(&tier, 1001, 8); /* 4 trunk, 4 of its own */
    tier_pass(&tier, 1000);
    tier_put_path(&tier, 1002, 8);
    tier_pass(&tier, 1000);
    tier_put_path(&tier, 1003, 8); /* 16 so far */
    tier_pass(&tier, 1000);
    struct block used;
    block_make(&tier, 1001, 7, &used);
    kv_disk_touch(tier.disk, &used.key, 1);
    tier_pass(&tier, 1000);
    tier_put_path(&tier, 1004, 8); /* 20: full */
    assert_int_equal(tier_counts(&tier).evicted, 0);
    tier_pass(&tier, 1000);
    tier_put_path(&tier, 1005, 8); /* takes 1002's own four, from the leaf up */
    struct kv_disk_counts counts = tier_counts(&tier);
    assert_int_equal(counts.blocks, 20);
    assert_int_equal(counts.evicted, 4);
    assert_true(counts.bytes <= counts.bytes_max);
    for (int32_t i = 0; i < 8; i++) {
        assert_true(tier_get(&tier, 1001, i));
        assert_true(tier_get(&tier, 1003, i));
        assert_true(tier_get(&tier, 1005, i));
        assert_int_equal(tier_has(&tier, 1002, i), i < 4);
    }
    assert_int_equal(tier_why(&tier, 1002, 5), KV_PREFIX_MISS_EVICTED);
    assert_true(tier_allocated(&tier) <= counts.bytes + 4096);
    check_index(&tier);
    tier_reopen(&tier); /* neither the blocks nor the reason come back otherwise */
    assert_int_equal(tier_counts(&tier).blocks, 20);
    assert_int_equal(tier_why(&tier, 1002, 5), KV_PREFIX_MISS_EVICTED);
    assert_false(tier_get(&tier, 1002, 5));
    tier_remove(&tier);
}

static void kv_disk_packed_records_free_whole_pages(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    for (int32_t text = 1; text <= 64; text++) {
        tier_put_path(&tier, 1000 * text, 1);
        tier_pass(&tier, 10);
    }
    uint64_t before = tier_allocated(&tier);
    assert_int_equal(kv_disk_drop(tier.disk, 40), 40);
    assert_true(before - tier_allocated(&tier) >= (uint64_t)39 * 14336);
    for (int32_t text = 1; text <= 64; text++) {
        assert_int_equal(tier_get(&tier, 1000 * text, 0), text > 40);
    }
    tier_close(&tier);
    (void)unlink(tier_path(&tier, "seg-00000001.index"));
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).blocks, 24);
    assert_int_equal(tier_counts(&tier).damaged_found, 0);
    assert_int_equal(kv_disk_drop(tier.disk, 0), 24);
    tier_put_path(&tier, 1000, 1);
    tier_remove(&tier);
}

static void kv_disk_without_holes_the_oldest_segment_goes(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.bytes_max = 40 * 14336 + 8 * 4096;
    tier.options.segment_bytes = 10 * 14336;
    tier_open(&tier);
    tier.disk->can_punch = false;
    for (int32_t text = 1; text <= 90; text++) {
        assert_int_equal(tier_put(&tier, 1000 * text, 0), KV_DISK_WRITTEN);
        struct kv_disk_counts counts = tier_counts(&tier);
        assert_true(counts.bytes <= counts.bytes_max);
        assert_true(tier_allocated(&tier) <= counts.bytes_max + 4096);
    }
    assert_int_equal(tier_counts(&tier).blocks, 40);
    assert_int_equal(tier_why(&tier, 7000, 0), KV_PREFIX_MISS_EVICTED);
    assert_true(tier_get(&tier, 90000, 0));
    struct block one;
    block_make(&tier, 90000, 0, &one);
    kv_disk_quarantine(tier.disk, &one.key); /* its header is zeroed */
    tier_close(&tier);
    (void)unlink(tier_path(&tier, "seg-00000009.index"));
    tier_open(&tier);
    assert_false(tier_has(&tier, 90000, 0));
    assert_int_equal(tier_why(&tier, 90000, 0), KV_PREFIX_MISS_DAMAGED);
    check_index(&tier);
    tier_remove(&tier);
}

static void kv_disk_larger_than_its_budget_shrinks(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    for (int32_t text = 1; text <= 400; text++) {
        tier_put_path(&tier, 1000 * text, 1);
    }
    tier_close(&tier);
    tier.options.bytes_max = 50 * 14336;
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).blocks, 400);
    while (kv_disk_advance(tier.disk) == 0) {
    }
    struct kv_disk_counts counts = tier_counts(&tier);
    assert_true(counts.bytes <= counts.bytes_max && counts.blocks >= 48);
    tier_close(&tier);
    tier.options.bytes_max = 14336 + 4095; /* would take nothing: said, and nothing goes for it */
    expect_refused(&tier, RESULT_LIMIT, "holds no block (14336 bytes");
    tier.options.bytes_max = 50 * 14336;
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).blocks, counts.blocks);
    tier_close(&tier);
    tier.options.write_bytes_per_hour = 14335; /* nothing is written, and what is there is read */
    tier_open(&tier);
    struct error trouble = {0};
    kv_disk_trouble(tier.disk, &trouble);
    assert_int_equal(trouble.code, RESULT_LIMIT);
    assert_non_null(strstr(trouble.message, "14335 bytes an hour"));
    assert_int_equal(kv_disk_room(tier.disk), 0);
    assert_true(tier_counts(&tier).is_readable);
    int64_t came = 0;
    for (int32_t text = 1; text <= 400; text++) {
        came += tier_has(&tier, 1000 * text, 0) && tier_get(&tier, 1000 * text, 0) ? 1 : 0;
    }
    assert_int_equal(came, counts.blocks);
    tier_close(&tier);
    tier.options.write_bytes_per_hour = 0;
    tier.options.bytes_max = 14336 + 4096; /* the least */
    tier_open(&tier);
    while (kv_disk_advance(tier.disk) == 0) {
    }
    assert_int_equal(tier_put(&tier, 7, 0), KV_DISK_WRITTEN);
    tier_remove(&tier);
}

static void kv_disk_a_child_never_costs_its_parent(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.bytes_max = 2 * 14336 + 4096;
    tier.options.segment_bytes = 100 * 14336;
    tier_open(&tier);
    tier_put_path(&tier, 1000, 2);
    assert_int_equal(tier_put(&tier, 1000, 2), KV_DISK_NO_ROOM);
    assert_true(tier_has(&tier, 1000, 1));
    assert_int_equal(tier_put(&tier, 2000, 0), KV_DISK_WRITTEN); /* another path: the leaf goes */
    assert_false(tier_has(&tier, 1000, 1));
    assert_true(tier_has(&tier, 1000, 0));
    tier_remove(&tier);
}

static void kv_disk_lifetime_counts_from_the_last_use(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1001, 8);
    tier_put_path(&tier, 1002, 8);
    tier_pass(&tier, 40 * HOUR_MS);
    assert_true(tier_get(&tier, 1002, 7)); /* its path lives on with it */
    tier_reopen(&tier);
    tier_pass(&tier, 32 * HOUR_MS + 1);
    assert_int_equal(kv_disk_advance(tier.disk), HOUR_MS);
    struct kv_disk_counts counts = tier_counts(&tier);
    assert_int_equal(counts.expired, 4); /* the rest of 1001 */
    assert_int_equal(tier_why(&tier, 1001, 4), KV_PREFIX_MISS_EXPIRED);
    assert_true(tier_has(&tier, 1001, 3));
    assert_true(tier_has(&tier, 1002, 7));
    tier_pass(&tier, 40 * HOUR_MS - 1000);
    assert_int_equal(kv_disk_advance(tier.disk), 1000); /* exactly when the next is due */
    tier_pass(&tier, 1000);
    (void)kv_disk_advance(tier.disk);
    assert_int_equal(tier_counts(&tier).blocks, 0);
    tier_reopen(&tier);
    assert_int_equal(tier_counts(&tier).blocks, 0);
    assert_int_equal(tier_why(&tier, 1002, 7), KV_PREFIX_MISS_EXPIRED);
    tier_remove(&tier);
}

static void kv_disk_clock_that_jumps_is_harmless(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 3);
    tier.wall_ms -= 1000 * HOUR_MS; /* backwards: everything is fresh */
    (void)kv_disk_advance(tier.disk);
    assert_true(tier_get(&tier, 1000, 2));
    tier_put_path(&tier, 2000, 3);
    assert_int_equal(tier_counts(&tier).jump_ms, 0);
    tier_reopen(&tier); /* times ahead of the clock become now */
    (void)kv_disk_advance(tier.disk);
    assert_int_equal(tier_counts(&tier).blocks, 6);
    tier.wall_ms += 73 * HOUR_MS; /* forwards: it expires, and the jump is told */
    (void)kv_disk_advance(tier.disk);
    assert_int_equal(tier_counts(&tier).blocks, 0);
    assert_int_equal(tier_counts(&tier).jump_ms, 73 * HOUR_MS);
    tier.wall_ms = -5;
    tier_put_path(&tier, 3000, 3);
    tier_reopen(&tier);
    tier.wall_ms = INT64_MAX / 2;
    (void)kv_disk_advance(tier.disk);
    tier_put_path(&tier, 4000, 3);
    assert_true(tier_get(&tier, 4000, 2));
    tier_remove(&tier);
}

static void kv_disk_hour_budget_slides_and_survives(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.write_bytes_per_hour = 10 * 14336;
    tier_open(&tier);
    assert_int_equal(kv_disk_room(tier.disk), 10);
    tier_put_path(&tier, 1000, 6);
    tier_pass(&tier, HOUR_MS / 2);
    tier_put_path(&tier, 2000, 4);
    assert_int_equal(tier_put(&tier, 3000, 0), KV_DISK_OVER_BUDGET);
    assert_int_equal(kv_disk_room(tier.disk), 0);
    tier_reopen(&tier);
    assert_int_equal(tier_put(&tier, 3000, 0), KV_DISK_OVER_BUDGET);
    /* The state file lost, as in a crash: the records tell. */
    tier_close(&tier);
    assert_int_equal(unlink(tier_path(&tier, "state")), 0);
    tier_open(&tier);
    assert_int_equal(tier_put(&tier, 3000, 0), KV_DISK_OVER_BUDGET);
    /* Records dropped: the state file tells. */
    assert_int_equal(kv_disk_drop(tier.disk, 0), 10);
    tier_reopen(&tier);
    assert_int_equal(kv_disk_room(tier.disk), 0);
    tier_pass(&tier, HOUR_MS / 2 + 60000);
    assert_int_equal(kv_disk_room(tier.disk), 6);
    assert_int_equal(tier_put(&tier, 3000, 0), KV_DISK_WRITTEN);
    /* The wall clock does not buy more. */
    tier.wall_ms += 5 * HOUR_MS;
    assert_int_equal(kv_disk_room(tier.disk), 5);
    tier_remove(&tier);
}

static void kv_disk_orphans_go_first_and_are_adopted(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 6);
    tier_pass(&tier, 1000);
    tier_put_path(&tier, 2000, 6);
    tier_pass(&tier, 1000);
    struct block middle;
    block_make(&tier, 2000, 3, &middle);
    kv_disk_quarantine(tier.disk, &middle.key);
    check_index(&tier);
    assert_int_equal(tier_why(&tier, 2000, 3), KV_PREFIX_MISS_DAMAGED);
    assert_int_equal(
        kv_disk_drop(tier.disk, 1), 1
    ); /* 2000/4: no lookup from the root gets there */
    assert_false(tier_has(&tier, 2000, 4));
    assert_true(tier_has(&tier, 2000, 5));
    assert_true(tier_has(&tier, 1000, 5));
    assert_int_equal(tier_put(&tier, 2000, 3), KV_DISK_WRITTEN); /* computed again */
    assert_int_equal(tier_put(&tier, 2000, 4), KV_DISK_WRITTEN);
    check_index(&tier);
    assert_int_equal(kv_disk_drop(tier.disk, 1), 1); /* now the oldest leaf */
    assert_false(tier_has(&tier, 1000, 5));
    for (int32_t i = 0; i < 6; i++) {
        assert_true(tier_get(&tier, 2000, i));
    }
    tier_remove(&tier);
}

/* ---- lineages ------------------------------------------------------------------------------- */

static enum kv_disk_outcome put_under(
    struct tier *tier, const struct kv_lineage *lineage, const struct kv_key *parent, result *wrote
) {
    struct block block;
    struct error error;
    enum kv_disk_outcome outcome = KV_DISK_OFF;
    block_make(tier, 1001, 5, &block);
    struct kv_key key;
    kv_key_make(parent, lineage, block.tokens, &key);
    block_fill(&key, tier->bytes, tier->options.block_bytes);
    const struct kv_tier_record record = {key, *parent, *lineage, block.tokens, tier->bytes};
    *wrote = kv_disk_write(tier->disk, &record, &outcome, &error);
    return outcome;
}

static void kv_disk_lineages_are_known_before_their_blocks(void **state) {
    (void)state;
    struct tier tier;
    struct error error;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1001, 6);
    struct block parent;
    block_make(&tier, 1001, 4, &parent);
    struct kv_lineage first;
    struct kv_lineage second;
    kv_lineage_replay(&tier.options.root, 640, &first);
    kv_lineage_replay(&first, 642, &second);
    result wrote;
    (void)put_under(&tier, &second, &parent.key, &wrote);
    assert_int_equal(wrote.code, RESULT_INVALID_INPUT);
    assert_true(is_ok(kv_disk_note_lineage(tier.disk, &second, &first, 642, &error)));
    (void)put_under(&tier, &second, &parent.key, &wrote); /* what `first` is, nobody told */
    assert_int_equal(wrote.code, RESULT_INVALID_INPUT);
    assert_true(is_ok(kv_disk_note_lineage(tier.disk, &first, &tier.options.root, 640, &error)));
    assert_int_equal(put_under(&tier, &second, &parent.key, &wrote), KV_DISK_WRITTEN);
    assert_int_equal(
        kv_disk_note_lineage(tier.disk, &second, &first, 643, &error).code, RESULT_INVALID_INPUT
    );
    for (int run = 0; run < 3; run++) {
        struct kv_lineage found[4];
        struct kv_lineage above;
        int32_t position = 0;
        assert_int_equal(kv_disk_lineages(tier.disk, &parent.key, found, 4), run < 2 ? 2 : 1);
        assert_int_equal(kv_disk_lineages(tier.disk, &parent.key, found, 1), 1);
        assert_int_equal(kv_disk_lineage(tier.disk, &second, &above, &position), run < 2);
        assert_false(kv_disk_lineage(tier.disk, &tier.options.root, &above, &position));
        if (run < 2) {
            assert_memory_equal(&above, &first, sizeof above);
            assert_int_equal(position, 642);
        }
        tier_close(&tier);
        if (run == 1) { /* lost: its blocks are never offered */
            assert_int_equal(unlink(tier_path(&tier, "lineages")), 0);
        }
        tier_open(&tier);
    }
    tier_remove(&tier);
}

static void kv_disk_lineages_that_nothing_needs_go(void **state) {
    (void)state;
    struct tier tier;
    struct error error;
    struct block parent;
    struct kv_lineage above;
    result wrote;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1001, 6);
    block_make(&tier, 1001, 4, &parent);
    struct kv_lineage chain[5] = {tier.options.root};
    for (int32_t i = 1; i < 5; i++) { /* a block under the third needs the first two as well */
        kv_lineage_replay(&chain[i - 1], 640 + 2 * i, &chain[i]);
        result noted =
            kv_disk_note_lineage(tier.disk, &chain[i], &chain[i - 1], 640 + 2 * i, &error);
        assert_true(is_ok(noted));
    }
    assert_int_equal(put_under(&tier, &chain[3], &parent.key, &wrote), KV_DISK_WRITTEN);
    disk_lineages_compact(tier.disk);
    tier_reopen(&tier);
    int32_t position = 0;
    for (int32_t i = 1; i < 5; i++) {
        assert_int_equal(kv_disk_lineage(tier.disk, &chain[i], &above, &position), i < 4);
    }
    assert_int_equal(kv_disk_lineages(tier.disk, &parent.key, chain, 4), 2);
    tier_remove(&tier);
}

/* ---- directories that cannot be used --------------------------------------------------------- */

static void kv_disk_second_process_is_refused_by_name(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    int ready[2];
    int done[2];
    assert_true(pipe(ready) == 0 && pipe(done) == 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct error error;
        char byte = 0;
        bool is_open = is_ok(kv_disk_open(&tier.disk, &tier.options, &error));
        (void)(write(ready[1], is_open ? "y" : "n", 1) + read(done[0], &byte, 1));
        _exit(0);
    }
    char byte = 0;
    assert_true(read(ready[0], &byte, 1) == 1 && byte == 'y');
    char wanted[64];
    int length = snprintf(wanted, sizeof wanted, "in use by process %ld", (long)child);
    assert_true(length > 0);
    expect_refused(&tier, RESULT_LIMIT, wanted);
    tier.options.mode = KV_DISK_READER; /* needs no lock */
    tier_open(&tier);
    tier_close(&tier);
    tier.options.mode = KV_DISK_WRITER;
    assert_int_equal(write(done[1], "x", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    tier_open(&tier); /* its lock died with it */
    for (size_t i = 0; i < 2; i++) {
        (void)(close(ready[i]) + close(done[i]));
    }
    tier_remove(&tier);
}

static void kv_disk_directories_that_cannot_be_used(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.mode = KV_DISK_READER;
    expect_refused(&tier, RESULT_NOT_FOUND, "no cache");
    tier.options.mode = KV_DISK_WRITER;
    assert_int_equal(symlink("/tmp", tier.directory), 0);
    expect_refused(&tier, RESULT_IO, "is a symbolic link, which is not followed");
    assert_int_equal(unlink(tier.directory), 0);
    tier_open(&tier);
    struct stat about;
    assert_true(stat(tier.folder, &about) == 0 && (about.st_mode & 0777) == 0700);
    tier_put_path(&tier, 1000, 2);
    assert_true(stat(tier_path(&tier, "seg-00000001.data"), &about) == 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    tier_close(&tier);
    /* The same folder name for another lineage, and another layout. */
    tier.options.root.bytes[20] = 1;
    expect_refused(&tier, RESULT_CORRUPT, "another root lineage (ab00");
    tier.options.root.bytes[20] = 0;
    tier.options.block_bytes = 1000;
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).refused_files, 1);
    assert_int_equal(tier_counts(&tier).blocks, 0);
    tier_close(&tier);
    tier.options.block_bytes = MINI_BYTES;
    if (geteuid() != 0) { /* root may write anywhere */
        assert_int_equal(chmod(tier.folder, 0500), 0);
        assert_int_equal(unlink(tier_path(&tier, "lock")), -1);
        assert_int_equal(chmod(tier.folder, 0700), 0);
    } else {
        assert_int_equal(chown(tier.folder, 12345, 12345), 0);
        expect_refused(&tier, RESULT_IO, "belongs to user 12345, not to 0");
        assert_int_equal(chown(tier.folder, 0, 0), 0);
    }
    tier_open(&tier);
    assert_true(tier_get(&tier, 1000, 1));
    tier_remove(&tier);
    assert_string_equal(disk_network_name(0x6969), "nfs");
    assert_string_equal(disk_network_name(0xFE534D42), "smb2");
    assert_null(disk_network_name(0xEF53));     /* ext4 */
    assert_null(disk_network_name(0x01021994)); /* tmpfs */
}

/* In a mount namespace of its own; status 77: not allowed here. */
static int use_mounts(struct tier *tier) {
    struct error error = {0};
    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mkdir(tier->directory, 0700) != 0 ||
        mount("tmpfs", tier->directory, "tmpfs", 0, "size=512k,mode=700") != 0) {
        return 77;
    }
    struct kv_disk *disk = NULL;
    tier_open(tier);
    int32_t written = 0;
    while (tier_put(tier, 1000 * written, 0) == KV_DISK_WRITTEN) {
        written++;
    }
    kv_disk_trouble(tier->disk, &error);
    if (error.foreign != ENOSPC || written < 20 || !tier_get(tier, 1000 * (written - 1), 0)) {
        return 1;
    }
    tier_reopen(tier); /* whatever could not be saved */
    if (!tier_get(tier, 1000 * (written - 1), 0) || tier_counts(tier).blocks != written) {
        return 2;
    }
    tier_close(tier);
    if (mount("", tier->directory, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0) {
        return 77;
    }
    if (kv_disk_open(&disk, &tier->options, &error).code != RESULT_IO ||
        strstr(error.message, "Read-only file system") == NULL) {
        return 3;
    }
    tier->options.mode = KV_DISK_READER;
    tier_open(tier);
    return tier_get(tier, 1000, 0) ? 0 : 4;
}

static void kv_disk_read_only_and_full_file_systems(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(use_mounts(&tier));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    tier_remove(&tier);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("mounting is not allowed here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void kv_disk_other_versions_are_named(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 2);
    tier_close(&tier);
    uint8_t header[128];
    int fd = open(tier_path(&tier, "seg-00000001.data"), O_RDWR);
    assert_true(fd >= 0 && pread(fd, header, sizeof header, 0) == sizeof header);
    header[8] = 2;
    assert_int_equal(pwrite(fd, header, sizeof header, 0), sizeof header);
    tier_open(&tier); /* a flipped bit, not a version: the records are there */
    assert_true(tier_get(&tier, 1000, 1));
    tier_close(&tier);
    disk_checksum(header, 112, header + 112);
    assert_int_equal(pwrite(fd, header, sizeof header, 0), sizeof header);
    (void)close(fd);
    expect_refused(&tier, RESULT_UNSUPPORTED, "has format 2; this program reads 1");
    tier_remove(&tier);
}

static void kv_disk_planted_files_are_left_alone(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 2);
    tier_close(&tier);
    assert_int_equal(symlink("/etc/passwd", tier_path(&tier, "seg-00000007.data")), 0);
    assert_int_equal(mkfifo(tier_path(&tier, "seg-00000008.data"), 0600), 0);
    assert_int_equal(symlink("/etc/passwd", tier_path(&tier, "seg-00000001.index.tmp")), 0);
    assert_int_equal(unlink(tier_path(&tier, "seg-00000001.index")), 0);
    assert_int_equal(mkfifo(tier_path(&tier, "seg-00000001.index"), 0600), 0);
    assert_int_equal(unlink(tier_path(&tier, "state")), 0);
    assert_int_equal(symlink("/dev/zero", tier_path(&tier, "state")), 0);
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).refused_files, 2);
    assert_true(tier_get(&tier, 1000, 1));
    tier_put_path(&tier, 2000, 3);
    tier_reopen(&tier);
    assert_true(tier_get(&tier, 2000, 2));
    struct stat about;
    assert_true(
        lstat(tier_path(&tier, "seg-00000008.data"), &about) == 0 && S_ISFIFO(about.st_mode)
    );
    tier_remove(&tier);
    /* The lock itself. */
    tier_make(&tier, MINI_BYTES);
    tier_open(&tier);
    tier_close(&tier);
    assert_int_equal(unlink(tier_path(&tier, "lock")), 0);
    assert_int_equal(mkfifo(tier_path(&tier, "lock"), 0600), 0);
    expect_refused(&tier, RESULT_IO, "/lock: it is not a regular file");
    assert_int_equal(unlink(tier_path(&tier, "lock")), 0);
    assert_int_equal(mkdir(tier_path(&tier, "lock"), 0700), 0);
    expect_refused(&tier, RESULT_IO, "/lock: it is not a regular file");
    assert_int_equal(rmdir(tier_path(&tier, "lock")), 0);
    /* What is for people only. */
    assert_int_equal(unlink(tier_path(&tier, "info.json")), 0);
    assert_int_equal(mkdir(tier_path(&tier, "info.json"), 0700), 0);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 2);
    tier_reopen(&tier);
    assert_true(tier_get(&tier, 1000, 1));
    tier_close(&tier);
    assert_int_equal(rmdir(tier_path(&tier, "info.json")), 0);
    tier_remove(&tier);
}

/* ---- two threads ----------------------------------------------------------------------------- */

static void *look_up(void *context) {
    struct tier *tier = context;
    struct block blocks[16];
    struct kv_lineage found[4];
    int64_t seen = 0;
    for (int32_t i = 0; i < 16; i++) {
        block_make(tier, 1000 * (i + 1), 0, &blocks[i]);
    }
    for (int round = 0; round < 2000; round++) {
        const struct block *block = &blocks[round % 16];
        enum kv_prefix_miss why;
        struct kv_disk_counts counts;
        seen += kv_disk_find(tier->disk, &block->key, 1, &why);
        seen += kv_disk_has(tier->disk, &block->key) ? 1 : 0;
        seen += kv_disk_lineages(tier->disk, &block->parent, found, 4);
        kv_disk_touch(tier->disk, &block->key, 1);
        kv_disk_count(tier->disk, &counts);
        seen += kv_disk_room(tier->disk) > 0 ? 1 : 0;
    }
    return seen > 0 ? tier : NULL;
}

static void kv_disk_lookups_run_beside_the_worker(void **state) {
    (void)state;
    struct tier tier;
    tier_make(&tier, MINI_BYTES);
    tier.options.bytes_max = 60 * 14336;
    tier.options.segment_bytes = 6 * 14336;
    tier_open(&tier);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_up, &tier), 0);
    for (int32_t text = 1; text <= 300; text++) {
        assert_int_equal(tier_put(&tier, 1000 * text, 0), KV_DISK_WRITTEN);
        (void)tier_get(&tier, 1000 * (text / 2 + 1), 0);
        (void)kv_disk_advance(tier.disk);
        kv_disk_sync(tier.disk);
    }
    void *seen = NULL;
    assert_int_equal(pthread_join(thread, &seen), 0);
    assert_non_null(seen);
    check_index(&tier);
    tier_remove(&tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_disk_path_is_found_and_read_back),
        cmocka_unit_test(kv_disk_strides_cost_little),
        cmocka_unit_test(kv_disk_next_run_finds_everything),
        cmocka_unit_test(kv_disk_budget_takes_leaves_before_trunks),
        cmocka_unit_test(kv_disk_packed_records_free_whole_pages),
        cmocka_unit_test(kv_disk_without_holes_the_oldest_segment_goes),
        cmocka_unit_test(kv_disk_larger_than_its_budget_shrinks),
        cmocka_unit_test(kv_disk_a_child_never_costs_its_parent),
        cmocka_unit_test(kv_disk_lifetime_counts_from_the_last_use),
        cmocka_unit_test(kv_disk_clock_that_jumps_is_harmless),
        cmocka_unit_test(kv_disk_hour_budget_slides_and_survives),
        cmocka_unit_test(kv_disk_orphans_go_first_and_are_adopted),
        cmocka_unit_test(kv_disk_lineages_are_known_before_their_blocks),
        cmocka_unit_test(kv_disk_lineages_that_nothing_needs_go),
        cmocka_unit_test(kv_disk_second_process_is_refused_by_name),
        cmocka_unit_test(kv_disk_read_only_and_full_file_systems),
        cmocka_unit_test(kv_disk_directories_that_cannot_be_used),
        cmocka_unit_test(kv_disk_other_versions_are_named),
        cmocka_unit_test(kv_disk_planted_files_are_left_alone),
        cmocka_unit_test(kv_disk_lookups_run_beside_the_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
