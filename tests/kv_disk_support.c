/* See kv_disk_support.h. */
#include "kv_disk_support.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TRUNK_BLOCKS 4

static int64_t tier_monotonic(void *context) {
    return ((const struct tier *)context)->monotonic_ms;
}

static int64_t tier_wall(void *context) {
    return ((const struct tier *)context)->wall_ms;
}

static void name_folders(struct tier *tier, const char *base) {
    int length = snprintf(tier->parent, sizeof tier->parent, "%s/hearth-kv-XXXXXX", base);
    assert_true(length > 0 && mkdtemp(tier->parent) != NULL);
    length = snprintf(tier->directory, sizeof tier->directory, "%s/cache", tier->parent);
    assert_true(length > 0 && length < (int)sizeof tier->directory);
    length = snprintf(tier->folder, sizeof tier->folder, "%s/ab00000000000000", tier->directory);
    assert_true(length > 0 && length < (int)sizeof tier->folder);
}

void tier_make_in_memory(struct tier *tier, size_t block_bytes) {
    tier_make(tier, block_bytes);
    if (access("/dev/shm", W_OK) == 0) {
        assert_int_equal(rmdir(tier->parent), 0);
        name_folders(tier, "/dev/shm");
    }
}

void tier_make(struct tier *tier, size_t block_bytes) {
    *tier = (struct tier){.wall_ms = WALL_START, .monotonic_ms = 5000};
    name_folders(tier, "/tmp");
    tier->bytes = malloc(block_bytes);
    assert_non_null(tier->bytes);
    tier->options = (struct kv_disk_options){
        .directory = tier->directory,
        .root = {{0xAB}},
        .block_bytes = block_bytes,
        .bytes_max = (uint64_t)1 << 30,
        .description = "a model of tests, cpu",
        .clock = {tier_monotonic, tier_wall, tier},
    };
}

void tier_open(struct tier *tier) {
    struct error error = {0};
    result opened = kv_disk_open(&tier->disk, &tier->options, &error);
    if (is_failed(opened)) {
        print_error("%s\n", error.message);
    }
    assert_true(is_ok(opened));
}

void tier_close(struct tier *tier) {
    kv_disk_close(tier->disk);
    tier->disk = NULL;
}

void tier_reopen(struct tier *tier) {
    tier_close(tier);
    tier_open(tier);
}

static void remove_files(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[512];
        struct stat about;
        int length = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        assert_true(length > 0 && (size_t)length < sizeof name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            lstat(name, &about) == 0 && !S_ISDIR(about.st_mode)) {
            assert_int_equal(unlink(name), 0);
        }
    }
    (void)closedir(folder);
    assert_int_equal(rmdir(path), 0);
}

void tier_remove(struct tier *tier) {
    tier_close(tier);
    remove_files(tier->folder);
    remove_files(tier->directory);
    remove_files(tier->parent);
    free(tier->bytes);
}

void tier_pass(struct tier *tier, int64_t milliseconds) {
    tier->wall_ms += milliseconds;
    tier->monotonic_ms += milliseconds;
}

const char *tier_path(const struct tier *tier, const char *name) {
    static char path[256];
    int length = snprintf(path, sizeof path, "%s/%s", tier->folder, name);
    assert_true(length > 0 && (size_t)length < sizeof path);
    return path;
}

void block_make(const struct tier *tier, int32_t text, int32_t depth, struct block *out) {
    struct kv_key key = {{0}};
    out->lineage = tier->options.root;
    for (int32_t i = 0; i <= depth; i++) {
        int32_t at = i < TRUNK_BLOCKS ? text / 1000 * 1000 : text;
        for (int32_t j = 0; j < KV_BLOCK_TOKENS; j++) {
            out->tokens[j] = at + 7 * i + 13 * j;
        }
        out->parent = key;
        kv_key_make(&out->parent, &out->lineage, out->tokens, &key);
    }
    out->key = key;
}

void block_fill(const struct kv_key *key, uint8_t *bytes, size_t count) {
    uint64_t state = 0;
    memcpy(&state, key->bytes, sizeof state);
    for (size_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
        bytes[i] = (uint8_t)(state >> 56);
    }
}

enum kv_disk_outcome tier_put(struct tier *tier, int32_t text, int32_t depth) {
    struct block block;
    struct error error = {0};
    enum kv_disk_outcome outcome = KV_DISK_OFF;
    block_make(tier, text, depth, &block);
    block_fill(&block.key, tier->bytes, tier->options.block_bytes);
    const struct kv_tier_record record = {
        block.key, block.parent, block.lineage, block.tokens, tier->bytes};
    result wrote = kv_disk_write(tier->disk, &record, &outcome, &error);
    assert_true(is_ok(wrote) || outcome == KV_DISK_OFF);
    return outcome;
}

void tier_put_path(struct tier *tier, int32_t text, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        enum kv_disk_outcome outcome = tier_put(tier, text, i);
        assert_true(outcome == KV_DISK_WRITTEN || outcome == KV_DISK_PRESENT);
    }
}

bool tier_has(struct tier *tier, int32_t text, int32_t depth) {
    struct block block;
    block_make(tier, text, depth, &block);
    return kv_disk_has(tier->disk, &block.key);
}

bool tier_get(struct tier *tier, int32_t text, int32_t depth) {
    struct block block;
    struct error error = {0};
    block_make(tier, text, depth, &block);
    memset(tier->bytes, 0x55, tier->options.block_bytes);
    result got = kv_disk_read(tier->disk, &block.key, tier->bytes, &tier->about, &error);
    if (is_failed(got)) {
        return false;
    }
    uint8_t *wanted = malloc(tier->options.block_bytes);
    assert_non_null(wanted);
    block_fill(&block.key, wanted, tier->options.block_bytes);
    assert_memory_equal(tier->bytes, wanted, tier->options.block_bytes);
    free(wanted);
    assert_memory_equal(&tier->about.parent, &block.parent, sizeof block.parent);
    assert_memory_equal(&tier->about.lineage, &block.lineage, sizeof block.lineage);
    assert_memory_equal(tier->about.tokens, block.tokens, sizeof block.tokens);
    return true;
}

enum kv_prefix_miss tier_why(struct tier *tier, int32_t text, int32_t depth) {
    struct block block;
    enum kv_prefix_miss why = KV_PREFIX_MISS_DIVERGENT;
    block_make(tier, text, depth, &block);
    (void)kv_disk_find(tier->disk, &block.key, 1, &why);
    return why;
}

struct kv_disk_counts tier_counts(struct tier *tier) {
    struct kv_disk_counts counts;
    kv_disk_count(tier->disk, &counts);
    return counts;
}

uint64_t tier_allocated(const struct tier *tier) {
    uint64_t bytes = 0;
    DIR *folder = opendir(tier->folder);
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        struct stat about;
        if (strstr(entry->d_name, ".data") != NULL &&
            lstat(tier_path(tier, entry->d_name), &about) == 0) {
            bytes += (uint64_t)about.st_blocks * 512;
        }
    }
    (void)closedir(folder);
    return bytes;
}
