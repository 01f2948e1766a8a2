/* Folders of other root lineages in one cache directory: they expire, make room, and what is not the
 * cache's stays. */
#include "kv_disk_support.h"

#include "engine/kv_sweep.h"
#include "engine/kv_tier.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL_BYTES ((size_t)5000)
#define BLOCKS      8
#define NO_LIMIT    UINT64_MAX

static const struct kv_lineage own = {{0xAB}};

/* A folder of the root lineage that begins with `root`, closed again. */
static void fill(struct tier *tier, uint8_t root) {
    tier->options.root = (struct kv_lineage){{root}};
    tier_open(tier);
    tier_put_path(tier, 1000, BLOCKS);
    tier_close(tier);
}

static void make(struct tier *tier) {
    tier_make_in_memory(tier, SMALL_BYTES);
    fill(tier, 0xAB);
}

static void path_of(const struct tier *tier, uint8_t root, const char *name, char out[256]) {
    int length =
        snprintf(out, 256, "%s/%02x00000000000000%s", tier->directory, (unsigned)root, name);
    assert_true(length > 0 && length < 256);
}

static bool is_there(const struct tier *tier, uint8_t root, const char *name) {
    char path[256];
    struct stat about;
    path_of(tier, root, name, path);
    return lstat(path, &about) == 0;
}

/* Blocks of a folder; -1: there is none. With `drop` it is emptied and removed. */
static int64_t look(struct tier *tier, uint8_t root, bool drop) {
    struct kv_disk *disk = NULL;
    struct error error;
    struct kv_disk_counts counts;
    struct kv_disk_options options = tier->options;
    if (!is_there(tier, root, "")) {
        return -1;
    }
    options.root = (struct kv_lineage){{root}};
    options.mode = KV_DISK_READER;
    if (is_failed(kv_disk_open(&disk, &options, &error))) {
        fail_msg("%s", error.message);
    }
    kv_disk_count(disk, &counts);
    kv_disk_close(disk);
    if (drop) {
        static const char *const names[] = {
            "/seg-00000001.data",
            "/seg-00000001.index",
            "/info.json",
            "/lock",
            "/lineages",
            "/state"};
        char path[256];
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            path_of(tier, root, names[i], path);
            (void)unlink(path);
        }
        path_of(tier, root, "", path);
        assert_int_equal(rmdir(path), 0);
    }
    return counts.blocks;
}

static struct kv_sweep sweep_all(struct tier *tier, uint64_t bytes_max) {
    struct kv_sweep sweep = {0};
    int steps = 0;
    kv_sweep_start(&sweep, tier->directory, &own);
    while (kv_sweep_step(&sweep, tier->directory, &tier->options.clock, bytes_max)) {
        assert_true(++steps < 100);
    }
    return sweep;
}

static uint64_t folder_bytes(void) {
    return 4096 + BLOCKS * kv_disk_stride(SMALL_BYTES);
}

static void kv_sweep_others_expire(void **state) {
    (void)state;
    struct tier tier;
    make(&tier);
    fill(&tier, 0x10);
    tier_pass(&tier, 71 * HOUR_MS);
    fill(&tier, 0x20);
    struct kv_sweep sweep = sweep_all(&tier, NO_LIMIT);
    assert_int_equal(sweep.count, 2);
    assert_int_equal(sweep.expired + sweep.removed, 0);
    tier_pass(&tier, 2 * HOUR_MS);
    sweep = sweep_all(&tier, NO_LIMIT);
    assert_int_equal(sweep.expired, BLOCKS);
    assert_int_equal(sweep.removed, 1);
    assert_string_equal(sweep.names, "1000000000000000");
    assert_int_equal(look(&tier, 0x10, false), -1);
    assert_int_equal(look(&tier, 0x20, true), BLOCKS);
    assert_int_equal(look(&tier, 0xAB, false), BLOCKS); /* its own run's, not the sweep's */
    tier_remove(&tier);
}

static void kv_sweep_oldest_folders_make_room(void **state) {
    (void)state;
    struct tier tier;
    make(&tier);
    for (uint8_t root = 0x30; root >= 0x10; root = (uint8_t)(root - 0x10)) { /* 0x10 is newest */
        fill(&tier, root);
        tier_pass(&tier, HOUR_MS);
    }
    uint64_t bytes_max = 2 * folder_bytes() - 3 * kv_disk_stride(SMALL_BYTES);
    struct kv_sweep sweep = sweep_all(&tier, bytes_max);
    assert_true(kv_sweep_bytes(&sweep, NULL) <= bytes_max);
    assert_int_equal(sweep.expired, 0);
    assert_int_equal(sweep.removed, 1);
    assert_string_equal(sweep.names, "3000000000000000");
    assert_int_equal(look(&tier, 0x30, false), -1);
    int64_t left = look(&tier, 0x20, false);
    assert_true(left > 0 && left < BLOCKS);
    assert_int_equal(look(&tier, 0x10, false), BLOCKS);
    sweep = sweep_all(&tier, 0);
    assert_int_equal(sweep.removed, 2);
    assert_int_equal(look(&tier, 0x10, false), -1);
    assert_int_equal(look(&tier, 0x20, false), -1);
    tier_remove(&tier);
}

static void write_file(const struct tier *tier, uint8_t root, const char *name) {
    char path[256];
    path_of(tier, root, name, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0 && write(fd, "mine", 4) == 4);
    (void)close(fd);
}

static void kv_sweep_leaves_alone_what_is_not_its_own(void **state) {
    (void)state;
    struct tier tier;
    char path[256];
    char target[128];
    make(&tier);
    fill(&tier, 0x10);
    write_file(&tier, 0x10, "/letter.txt");
    fill(&tier, 0x30); /* a folder behind a link */
    (void)snprintf(target, sizeof target, "%s/elsewhere", tier.parent);
    path_of(&tier, 0x30, "", path);
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    tier.options.root = (struct kv_lineage){{0x20}}; /* one in use */
    tier_open(&tier);
    tier_put_path(&tier, 1000, BLOCKS);
    struct kv_sweep sweep = sweep_all(&tier, 0);
    assert_int_equal(sweep.count, 2);
    assert_int_equal(sweep.removed, 0);
    assert_int_equal(sweep.evicted, BLOCKS);
    assert_true(is_there(&tier, 0x10, "/letter.txt"));
    assert_true(is_there(&tier, 0x10, "/info.json"));
    assert_int_equal(tier_counts(&tier).blocks, BLOCKS);
    uint64_t reducible = 1;
    assert_true(kv_sweep_bytes(&sweep, &reducible) > 0); /* the one in use counts */
    assert_int_equal(reducible, 0);
    tier_close(&tier);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(target, path), 0);
    assert_int_equal(look(&tier, 0x30, true), BLOCKS);
    path_of(&tier, 0x10, "/letter.txt", path);
    assert_int_equal(unlink(path), 0);
    (void)look(&tier, 0x10, true);
    (void)look(&tier, 0x20, true);
    tier_remove(&tier);
}

static struct kv_tier_counts wait_for_others(struct kv_tier *tier, int64_t removed) {
    const struct timespec pause = {0, 2000000};
    struct kv_tier_counts counts = {0};
    for (int i = 0; i < 5000; i++) {
        kv_tier_count(tier, &counts);
        if (counts.others.is_known && counts.others.removed >= removed) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    assert_true(counts.others.is_known);
    assert_int_equal(counts.others.removed, removed);
    return counts;
}

/* When it opens, and again when it has grown. */
static void kv_sweep_by_a_tier_keeps_the_whole_directory_in_its_budget(void **state) {
    (void)state;
    struct tier tier;
    struct kv_tier *tiers = NULL;
    struct error error;
    make(&tier);
    fill(&tier, 0x20);
    tier_pass(&tier, HOUR_MS);
    fill(&tier, 0x10);
    struct kv_tier_options options = {
        .directory = tier.directory,
        .root = own,
        .block_bytes = SMALL_BYTES,
        .disk_bytes_max = 3 * folder_bytes() - kv_disk_stride(SMALL_BYTES),
        .clock = tier.options.clock,
    };
    assert_true(is_ok(kv_tier_open(&tiers, &options, &error)));
    struct kv_tier_counts counts = wait_for_others(tiers, 0);
    assert_true(counts.others.evicted > 0);
    assert_true(counts.disk.bytes + counts.others.bytes <= options.disk_bytes_max);
    tier.options.root = own;
    for (int32_t depth = 0; depth < 2 * BLOCKS; depth++) {
        struct block block;
        block_make(&tier, 2000, depth, &block);
        block_fill(&block.key, tier.bytes, SMALL_BYTES);
        struct kv_tier_record record = {
            block.key, block.parent, block.lineage, block.tokens, tier.bytes};
        assert_int_equal(kv_tier_write(tiers, &record, 1), 1);
    }
    assert_true(kv_tier_flush(tiers, 10000));
    counts = wait_for_others(tiers, 2);
    assert_true(counts.disk.blocks > 2 * BLOCKS);
    assert_true(counts.disk.bytes + counts.others.bytes <= options.disk_bytes_max);
    kv_tier_close(tiers);
    assert_int_equal(look(&tier, 0x10, false), -1);
    assert_int_equal(look(&tier, 0x20, false), -1);
    tier_remove(&tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_sweep_others_expire),
        cmocka_unit_test(kv_sweep_oldest_folders_make_room),
        cmocka_unit_test(kv_sweep_leaves_alone_what_is_not_its_own),
        cmocka_unit_test(kv_sweep_by_a_tier_keeps_the_whole_directory_in_its_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
