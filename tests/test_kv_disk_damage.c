/* Files that were torn, flipped, cut, deleted, swapped or copied: what is found is right, what is
 * not is a miss, and the start never fails. */
#include "kv_disk_support.h"

#include "engine/kv_disk_internal.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL_BYTES ((size_t)5000)
#define TEXTS       9
#define DEPTH       6

static void build(struct tier *tier) {
    tier_make_in_memory(tier, SMALL_BYTES);
    tier->options.segment_bytes = 14 * kv_disk_stride(SMALL_BYTES);
    tier_open(tier);
    for (int32_t text = 1; text <= TEXTS; text++) {
        tier_put_path(tier, 1000 * text, DEPTH);
    }
    tier_close(tier);
}

static int32_t count_readable(struct tier *tier) {
    int32_t readable = 0;
    for (int32_t text = 1; text <= TEXTS; text++) {
        for (int32_t i = 0; i < DEPTH; i++) {
            readable += tier_get(tier, 1000 * text, i) ? 1 : 0; /* asserts that it is right */
        }
    }
    return readable;
}

static void flip(const struct tier *tier, const char *name, off_t at) {
    uint8_t byte = 0;
    int fd = open(tier_path(tier, name), O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    (void)close(fd);
}

static void check_index(struct tier *tier) {
    struct error error;
    assert_true(is_ok(disk_index_validate(&tier->disk->index, &error)));
}

static void kv_disk_flipped_block_is_quarantined_once(void **state) {
    (void)state;
    struct tier tier;
    build(&tier);
    off_t record = 4096 + 3 * (off_t)kv_disk_stride(SMALL_BYTES); /* block 3 of text 1 */
    flip(&tier, "seg-00000001.data", record + KV_DISK_HEADER_BYTES + 77);
    tier_open(&tier);
    assert_true(tier_has(&tier, 1000, 3));
    struct block block;
    struct error error = {0};
    block_make(&tier, 1000, 3, &block);
    result got = kv_disk_read(tier.disk, &block.key, tier.bytes, &tier.about, &error);
    assert_int_equal(got.code, RESULT_CORRUPT);
    assert_non_null(strstr(error.message, "seg-00000001.data: record 3 is damaged"));
    got = kv_disk_read(tier.disk, &block.key, tier.bytes, &tier.about, &error);
    assert_int_equal(got.code, RESULT_NOT_FOUND);
    assert_int_equal(tier_why(&tier, 1000, 3), KV_PREFIX_MISS_DAMAGED);
    assert_int_equal(tier_counts(&tier).damaged, 1);
    assert_int_equal(count_readable(&tier), TEXTS * DEPTH - 1);
    /* Neither the index file nor a scan brings it back. */
    tier_reopen(&tier);
    assert_false(tier_has(&tier, 1000, 3));
    assert_int_equal(tier_why(&tier, 1000, 3), KV_PREFIX_MISS_DAMAGED);
    tier_close(&tier);
    assert_int_equal(unlink(tier_path(&tier, "seg-00000001.index")), 0);
    tier_open(&tier);
    assert_false(tier_has(&tier, 1000, 3));
    assert_int_equal(tier_counts(&tier).damaged_found, 0);
    assert_int_equal(tier_put(&tier, 1000, 3), KV_DISK_WRITTEN);
    assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
    tier_remove(&tier);
}

static void kv_disk_every_flipped_header_byte_is_a_miss(void **state) {
    (void)state;
    struct tier tier;
    build(&tier);
    tier_open(&tier);
    tier_close(&tier);
    off_t record = 4096 + 2 * (off_t)kv_disk_stride(SMALL_BYTES);
    uint8_t saved[KV_DISK_HEADER_BYTES];
    int fd = open(tier_path(&tier, "seg-00000001.data"), O_RDWR);
    assert_true(fd >= 0 && pread(fd, saved, sizeof saved, record) == sizeof saved);
    for (off_t at = 0; at < 672; at += 13) {
        assert_int_equal(pwrite(fd, saved, sizeof saved, record), sizeof saved);
        flip(&tier, "seg-00000001.data", record + at);
        tier_open(&tier); /* by the index file, when there is one */
        assert_false(tier_get(&tier, 1000, 2));
        assert_int_equal(tier_why(&tier, 1000, 2), KV_PREFIX_MISS_DAMAGED);
        tier_close(&tier);
        if (at % 2 == 0) {
            (void)unlink(tier_path(&tier, "seg-00000001.index"));
        }
    }
    (void)close(fd);
    tier_remove(&tier);
}

static void kv_disk_swapped_and_copied_segments_stay_right(void **state) {
    (void)state;
    struct tier tier;
    char other[256];
    char third[256];
    build(&tier);
    for (int round = 0; round < 2; round++) {
        (void)snprintf(other, sizeof other, "%s", tier_path(&tier, "seg-00000002.data"));
        (void)snprintf(third, sizeof third, "%s", tier_path(&tier, "swap"));
        assert_int_equal(rename(tier_path(&tier, "seg-00000001.data"), third), 0);
        assert_int_equal(rename(other, tier_path(&tier, "seg-00000001.data")), 0);
        assert_int_equal(rename(third, other), 0);
        tier_open(&tier);
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
        tier_put_path(&tier, 77000 + 1000 * round, 3);
        tier_close(&tier);
    }
    CLEANUP(buffer_deinit) struct buffer copy = {0};
    struct error error;
    buffer_init(&copy, (size_t)1 << 24);
    assert_true(is_ok(file_read(other, &copy, &error)));
    int fd = open(tier_path(&tier, "seg-00000031.data"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, copy.data, copy.length), copy.length);
    (void)close(fd);
    tier_open(&tier);
    assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
    tier_put_path(&tier, 88000, 3);
    struct stat about;
    assert_int_equal(
        stat(tier_path(&tier, "seg-00000031.data"), &about), -1
    ); /* nothing new in it */
    check_index(&tier);
    tier_remove(&tier);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return *state >> 33;
}

static void damage_file(const char *path, uint64_t *random) {
    struct stat about;
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size == 0) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    off_t at = (off_t)(next_random(random) % (uint64_t)about.st_size);
    uint8_t bytes[3000];
    switch (next_random(random) % 6) {
    case 0:
        assert_int_equal(ftruncate(fd, at), 0);
        break;
    case 1:
        assert_int_equal(unlink(path), 0);
        break;
    case 2: /* a page of zeros */
        memset(bytes, 0, sizeof bytes);
        assert_true(pwrite(fd, bytes, sizeof bytes, at) > 0);
        break;
    case 3: /* another place's bytes */
        assert_true(pread(fd, bytes, sizeof bytes, at / 2) > 0);
        assert_true(pwrite(fd, bytes, sizeof bytes, at) > 0);
        break;
    case 4: /* behind the end */
        memset(bytes, 0x5A, sizeof bytes);
        assert_true(pwrite(fd, bytes, sizeof bytes, about.st_size + at / 8) > 0);
        break;
    default:
        for (int i = 0; i < 3; i++) {
            at = (off_t)(next_random(random) % (uint64_t)about.st_size);
            assert_true(pread(fd, bytes, 1, at) >= 0);
            bytes[0] ^= (uint8_t)(1U << (next_random(random) % 8));
            assert_true(pwrite(fd, bytes, 1, at) == 1);
        }
    }
    (void)close(fd);
}

static void kv_disk_random_damage_is_never_wrong(void **state) {
    (void)state;
    const char *more = getenv("HEARTH_KV_DAMAGE_SEEDS");
    uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : 60;
    static const char *const names[] = {
        "seg-00000001.data",
        "seg-00000002.data",
        "seg-00000003.data",
        "seg-00000004.data",
        "seg-00000001.index",
        "seg-00000002.index",
        "seg-00000003.index",
        "seg-00000004.index",
        "state",
        "info.json",
        "lineages",
        "lock"};
    int64_t missing = 0;
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        uint64_t random = seed * 1000003;
        struct tier tier;
        build(&tier);
        for (uint64_t i = 0; i <= seed % 5; i++) {
            damage_file(tier_path(&tier, names[next_random(&random) % COUNT_OF(names)]), &random);
        }
        print_message(seed == seeds ? "seeds 1..%lu\n" : "", (unsigned long)seeds);
        tier.options.mode = seed % 3 == 0 ? KV_DISK_READER : KV_DISK_WRITER;
        tier_open(&tier);
        check_index(&tier);
        int32_t readable = count_readable(&tier);
        missing += TEXTS * DEPTH - readable;
        tier_close(&tier);
        tier.options.mode = KV_DISK_WRITER;
        tier_open(&tier);
        assert_true(count_readable(&tier) >= readable - 2);
        for (int32_t text = 1; text <= TEXTS; text++) { /* what is missing is computed again */
            tier_put_path(&tier, 1000 * text, DEPTH);
        }
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
        tier_reopen(&tier);
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
        check_index(&tier);
        tier_remove(&tier);
    }
    assert_true(missing > 0); /* the damage was real */
}

static void kv_disk_segment_that_vanishes_is_a_miss(void **state) {
    (void)state;
    struct tier tier;
    build(&tier);
    tier_open(&tier);
    assert_true(tier_get(&tier, 1000, 0));
    assert_true(tier_get(&tier, 4000, 5)); /* another segment is open now */
    assert_int_equal(unlink(tier_path(&tier, "seg-00000001.data")), 0);
    assert_false(tier_get(&tier, 1000, 0));
    assert_false(tier_has(&tier, 1000, 0));
    assert_true(tier_get(&tier, 9000, 0));
    for (int32_t i = 0; i < DEPTH; i++) {
        (void)tier_get(&tier, 1000, i);
        (void)tier_get(&tier, 2000, i);
        (void)tier_get(&tier, 3000, i);
    }
    struct error trouble;
    kv_disk_trouble(tier.disk, &trouble);
    assert_int_equal(trouble.code, RESULT_OK);
    check_index(&tier);
    tier_remove(&tier);
}

/* Small records share pages: what is destroyed at the start takes no neighbour along that the scan
 * did not see yet. */
static void kv_disk_scan_destroys_the_damaged_record_only(void **state) {
    (void)state;
    for (off_t slot = 0; slot < DEPTH; slot++) {
        struct tier tier;
        build(&tier);
        flip(&tier, "seg-00000001.data", 4096 + slot * (off_t)kv_disk_stride(SMALL_BYTES) + 40);
        assert_int_equal(unlink(tier_path(&tier, "seg-00000001.index")), 0);
        tier_open(&tier);
        assert_int_equal(tier_counts(&tier).damaged_found, 1);
        assert_false(tier_has(&tier, 1000, (int32_t)slot));
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH - 1);
        tier_remove(&tier);
    }
}

/* ---- what no block can be, with checksums that hold ------------------------------------------ */

enum lie { LIE_ROOT, LIE_OWN_PARENT, LIE_RING, LIE_TIMES, LIES };

/* Makes of the block at depth 0 what cannot be; the ring is closed by the one at depth `deepest`. */
static void
tell_lie(const struct tier *tier, enum lie lie, int32_t deepest, uint8_t *key, uint8_t *parent) {
    struct block block;
    block_make(tier, 1000, deepest, &block);
    switch (lie) {
    case LIE_ROOT:
        memset(key, 0, 32);
        break;
    case LIE_OWN_PARENT:
        memcpy(parent, key, 32);
        break;
    case LIE_RING:
        memcpy(parent, block.key.bytes, 32);
        break;
    case LIE_TIMES:
    case LIES:
        break;
    }
}

static void lie_in_record(const struct tier *tier, enum lie lie, int32_t deepest) {
    uint8_t header[KV_DISK_HEADER_BYTES];
    const int64_t before_all_time = INT64_MIN;
    int fd = open(tier_path(tier, "seg-00000001.data"), O_RDWR);
    assert_true(fd >= 0 && pread(fd, header, sizeof header, 4096) == sizeof header);
    tell_lie(tier, lie, deepest, header + 32, header + 64);
    if (lie == LIE_TIMES) {
        memcpy(header + 16, &before_all_time, 8);
    }
    disk_checksum(header, 656, header + 656);
    assert_int_equal(pwrite(fd, header, sizeof header, 4096), sizeof header);
    (void)close(fd);
    assert_int_equal(unlink(tier_path(tier, "seg-00000001.index")), 0);
}

static void lie_in_index_file(const struct tier *tier, enum lie lie, int32_t deepest) {
    const int64_t before_all_time = INT64_MIN;
    CLEANUP(buffer_deinit) struct buffer file = {0};
    struct error error;
    buffer_init(&file, (size_t)1 << 20);
    assert_true(is_ok(file_read(tier_path(tier, "seg-00000001.index"), &file, &error)));
    uint8_t *entry = file.data + DISK_INDEX_HEADER;
    tell_lie(tier, lie, deepest, entry, entry + 32);
    if (lie == LIE_TIMES) {
        memcpy(entry + 104, &before_all_time, 8);
        memcpy(entry + 112, &before_all_time, 8);
    }
    size_t summed = file.length - DISK_CHECKSUM_BYTES;
    disk_checksum(file.data, summed, file.data + summed);
    int fd = open(tier_path(tier, "seg-00000001.index"), O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, file.data, file.length, 0) == (ssize_t)file.length);
    (void)close(fd);
}

/* Nothing is so entangled that it could never go. */
static void check_all_can_go(struct tier *tier, int64_t blocks) {
    check_index(tier);
    assert_int_equal(tier_counts(tier).blocks, blocks);
    (void)kv_disk_advance(tier->disk); /* counts with times */
    assert_int_equal(tier_counts(tier).blocks, blocks);
    assert_int_equal(kv_disk_drop(tier->disk, 0), blocks);
    check_index(tier);
}

static void kv_disk_record_that_no_block_can_be_is_dropped(void **state) {
    (void)state;
    for (enum lie lie = LIE_ROOT; lie < LIES; lie++) {
        struct tier tier;
        build(&tier);
        lie_in_record(&tier, lie, DEPTH - 1);
        tier.options.mode = KV_DISK_READER;
        tier_open(&tier);
        check_index(&tier);
        tier_close(&tier);
        tier.options.mode = KV_DISK_WRITER;
        tier_open(&tier);
        int64_t dropped = lie == LIE_TIMES ? 0 : 1;
        assert_int_equal(tier_counts(&tier).damaged_found, dropped);
        /* Of the ring the last one is dropped; the first is found out by its reading. */
        assert_int_equal(tier_has(&tier, 1000, 0), lie == LIE_RING || lie == LIE_TIMES);
        assert_int_equal(tier_has(&tier, 1000, DEPTH - 1), lie != LIE_RING);
        assert_int_equal(
            count_readable(&tier), TEXTS * DEPTH - (lie == LIE_RING ? 2 : (int32_t)dropped)
        );
        check_all_can_go(&tier, TEXTS * DEPTH - (lie == LIE_RING ? 2 : dropped));
        tier_remove(&tier);
    }
}

static void kv_disk_index_file_that_no_block_can_be_is_not_believed(void **state) {
    (void)state;
    for (enum lie lie = LIE_ROOT; lie < LIES; lie++) {
        struct tier tier;
        build(&tier);
        lie_in_index_file(&tier, lie, DEPTH - 1);
        tier_open(&tier);
        check_index(&tier);
        assert_int_equal(tier_counts(&tier).damaged_found, 0);
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH); /* the records are right */
        tier_reopen(&tier);                                     /* and a right file was written */
        assert_int_equal(count_readable(&tier), TEXTS * DEPTH);
        check_all_can_go(&tier, TEXTS * DEPTH);
        tier_remove(&tier);
    }
}

static void kv_disk_block_that_would_close_a_ring_drops_the_lie(void **state) {
    (void)state;
    struct tier tier;
    tier_make_in_memory(&tier, SMALL_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, DEPTH);
    tier_close(&tier);
    lie_in_index_file(&tier, LIE_RING, DEPTH); /* the parent that it names is not there yet */
    tier_open(&tier);
    assert_true(tier_has(&tier, 1000, 0));
    assert_int_equal(tier_put(&tier, 1000, DEPTH), KV_DISK_WRITTEN);
    check_index(&tier);
    assert_false(tier_has(&tier, 1000, 0));
    assert_int_equal(tier_why(&tier, 1000, 0), KV_PREFIX_MISS_DAMAGED);
    assert_int_equal(tier_put(&tier, 1000, 0), KV_DISK_WRITTEN);
    for (int32_t i = 0; i <= DEPTH; i++) {
        assert_true(tier_get(&tier, 1000, i));
    }
    check_all_can_go(&tier, DEPTH + 1);
    tier_remove(&tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_disk_flipped_block_is_quarantined_once),
        cmocka_unit_test(kv_disk_every_flipped_header_byte_is_a_miss),
        cmocka_unit_test(kv_disk_swapped_and_copied_segments_stay_right),
        cmocka_unit_test(kv_disk_random_damage_is_never_wrong),
        cmocka_unit_test(kv_disk_segment_that_vanishes_is_a_miss),
        cmocka_unit_test(kv_disk_scan_destroys_the_damaged_record_only),
        cmocka_unit_test(kv_disk_record_that_no_block_can_be_is_dropped),
        cmocka_unit_test(kv_disk_index_file_that_no_block_can_be_is_not_believed),
        cmocka_unit_test(kv_disk_block_that_would_close_a_ring_drops_the_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
