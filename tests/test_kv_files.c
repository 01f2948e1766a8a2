/* What `hearth cache` does, below its command line: listing, verifying, evicting, and a prefix that
 * moves to another cache. */
#include "kv_disk_support.h"

#include "engine/kv_files.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL_BYTES ((size_t)5000)
#define FOLDER      "ab00000000000000"

static void build(struct tier *tier) {
    tier_make_in_memory(tier, SMALL_BYTES);
    tier->options.segment_bytes = 6 * kv_disk_stride(SMALL_BYTES);
    tier_open(tier);
    tier_put_path(tier, 1001, 8);
    tier_pass(tier, HOUR_MS);
    tier_put_path(tier, 1002, 8);
    tier_close(tier);
}

static void flip(const char *path, off_t at) {
    uint8_t byte = 0;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    (void)close(fd);
}

static void kv_files_list_tells_what_is_there(void **state) {
    (void)state;
    struct tier tier;
    struct kv_files_list *list = NULL;
    struct error error;
    tier_make_in_memory(&tier, SMALL_BYTES);
    assert_true(is_ok(kv_files_list(tier.directory, &tier.options.clock, &list, &error)));
    assert_int_equal(list->count, 0);
    free(list);
    tier_remove(&tier);
    build(&tier);
    for (int run = 0; run < 2; run++) { /* the second time beside a writer */
        list = NULL;
        assert_true(is_ok(kv_files_list(tier.directory, &tier.options.clock, &list, &error)));
        assert_int_equal(list->count, 1);
        const struct kv_files_folder *one = &list->folders[0];
        assert_int_equal(one->trouble.code, RESULT_OK);
        assert_string_equal(one->name, FOLDER);
        assert_string_equal(one->description, "a model of tests, cpu");
        assert_int_equal(one->block_bytes, SMALL_BYTES);
        assert_int_equal(one->blocks, 12);
        assert_int_equal(one->tokens, 12 * 128);
        assert_int_equal(one->bytes_max, (uint64_t)1 << 30); /* of the writer */
        assert_int_equal(one->lifetime_ms, 72 * HOUR_MS);
        assert_int_equal(one->oldest_ms, WALL_START);
        assert_int_equal(one->used_ms, WALL_START + HOUR_MS);
        assert_int_equal(one->used_by, run == 0 ? 0 : getpid());
        free(list);
        if (run == 0) {
            tier_open(&tier);
        }
    }
    /* A folder that nothing can be said of does not hide the others. */
    char other[200];
    (void)snprintf(other, sizeof other, "%s/0123456789abcdef", tier.directory);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_true(is_ok(kv_files_list(tier.directory, &tier.options.clock, &list, &error)));
    assert_int_equal(list->count, 2);
    assert_int_equal(list->folders[0].trouble.code, RESULT_CORRUPT);
    assert_int_equal(list->folders[1].trouble.code, RESULT_OK);
    free(list);
    assert_int_equal(rmdir(other), 0);
    tier_remove(&tier);
}

struct named {
    int count;
    char last[400];
};

static void name_damaged(void *context, const char *text) {
    struct named *named = context;
    named->count++;
    (void)snprintf(named->last, sizeof named->last, "%s", text);
}

static struct kv_files_checked verify(struct tier *tier, bool repair, struct named *named) {
    struct kv_files_checked checked = {0};
    struct error error;
    *named = (struct named){0};
    assert_true(is_ok(kv_files_verify(
        tier->directory, FOLDER, &tier->options.clock, repair, name_damaged, named, &checked, &error
    )));
    assert_int_equal(checked.damaged, named->count);
    return checked;
}

static void kv_files_verify_names_and_repairs(void **state) {
    (void)state;
    struct tier tier;
    struct named named;
    struct error error;
    build(&tier);
    assert_int_equal(verify(&tier, false, &named).records, 12);
    assert_int_equal(named.count, 0);
    flip(tier_path(&tier, "seg-00000001.data"), 4096 + 2 * 5824 + 1000);
    flip(tier_path(&tier, "seg-00000001.data"), 4096 + 4 * 5824 + 40); /* a header */
    flip(tier_path(&tier, "seg-00000002.data"), 50);                   /* the file's head */
    for (int run = 0; run < 2; run++) {                                /* changes nothing */
        struct kv_files_checked checked = verify(&tier, false, &named);
        assert_int_equal(checked.records, 10);
        assert_int_equal(checked.damaged, 3);
        assert_int_equal(checked.repaired, 0);
        assert_non_null(strstr(named.last, "seg-00000002.data: the header is damaged"));
    }
    tier_open(&tier);
    struct kv_files_checked refused;
    assert_int_equal(
        kv_files_verify(
            tier.directory, FOLDER, &tier.options.clock, true, NULL, NULL, &refused, &error
        )
            .code,
        RESULT_LIMIT
    );
    tier_close(&tier);
    struct kv_files_checked repaired = verify(&tier, true, &named);
    assert_int_equal(repaired.damaged, 3);
    assert_int_equal(repaired.repaired, 3);
    struct kv_files_checked after = verify(&tier, false, &named);
    assert_int_equal(after.damaged, 0);
    assert_int_equal(after.records, 10);
    tier_open(&tier);
    assert_int_equal(tier_counts(&tier).blocks, 10);
    assert_int_equal(tier_counts(&tier).damaged_found, 0);
    assert_int_equal(tier_why(&tier, 1001, 2), KV_PREFIX_MISS_DAMAGED);
    assert_int_equal(tier_why(&tier, 1001, 4), KV_PREFIX_MISS_DAMAGED);
    tier_remove(&tier);
}

static int64_t evict(struct tier *tier, struct kv_files_eviction what) {
    struct error error;
    int64_t removed = -1;
    assert_true(is_ok(
        kv_files_evict(tier->directory, FOLDER, &tier->options.clock, &what, &removed, &error)
    ));
    return removed;
}

static void kv_files_evict_by_age_size_and_all(void **state) {
    (void)state;
    struct tier tier;
    build(&tier);
    tier_pass(&tier, HOUR_MS);
    assert_int_equal(evict(&tier, (struct kv_files_eviction){.has_age = true, .age_ms = 1}), 12);
    tier_remove(&tier);
    build(&tier);
    tier_pass(&tier, HOUR_MS);
    struct kv_files_eviction by_age = {.has_age = true, .age_ms = HOUR_MS + 1000};
    assert_int_equal(evict(&tier, by_age), 4); /* 1001's own */
    struct kv_files_eviction by_size = {.has_size = true, .bytes_max = 5 * 5824 + 8192};
    assert_int_equal(evict(&tier, by_size), 3);
    tier_open(&tier);
    assert_true(tier_get(&tier, 1002, 4)); /* from the leaf up */
    assert_false(tier_has(&tier, 1002, 5));
    struct error error;
    int64_t removed = 0;
    struct kv_files_eviction all = {.everything = true};
    assert_int_equal(
        kv_files_evict(tier.directory, FOLDER, &tier.options.clock, &all, &removed, &error).code,
        RESULT_LIMIT
    );
    tier_close(&tier);
    assert_int_equal(evict(&tier, all), 5);
    tier_open(&tier); /* budgets of the commands are not those of the next run's display */
    assert_int_equal(tier_counts(&tier).bytes_max, (uint64_t)1 << 30);
    tier_remove(&tier);
}

/* ---- moving --------------------------------------------------------------------------------- */

struct move {
    struct tier from, to;
    char path[100];
    struct kv_files_moved moved;
    struct error error;
};

static void move_make(struct move *move) {
    build(&move->from);
    tier_make_in_memory(&move->to, SMALL_BYTES);
    (void)snprintf(move->path, sizeof move->path, "%s/export", move->from.parent);
}

static result export_keys(struct move *move, const char *const *keys, size_t count) {
    return kv_files_export(
        move->from.directory,
        FOLDER,
        &move->from.options.clock,
        keys,
        count,
        move->path,
        &move->moved,
        &move->error
    );
}

static result import(struct move *move, bool make) {
    return kv_files_import(
        move->to.directory, move->path, &move->to.options.clock, make, &move->moved, &move->error
    );
}

static void move_remove(struct move *move) {
    (void)unlink(move->path);
    tier_remove(&move->from);
    tier_remove(&move->to);
}

static void kv_files_prefix_moves_to_another_cache(void **state) {
    (void)state;
    struct move move;
    move_make(&move);
    tier_open(&move.from); /* beside a writer, with a block of an approximate lineage */
    struct block parent;
    struct kv_lineage child;
    struct kv_key key;
    enum kv_disk_outcome outcome;
    block_make(&move.from, 1002, 7, &parent);
    kv_lineage_replay(&move.from.options.root, 1024, &child);
    assert_true(is_ok(
        kv_disk_note_lineage(move.from.disk, &child, &move.from.options.root, 1024, &move.error)
    ));
    kv_key_make(&parent.key, &child, parent.tokens, &key);
    block_fill(&key, move.from.bytes, SMALL_BYTES);
    const struct kv_tier_record record = {key, parent.key, child, parent.tokens, move.from.bytes};
    assert_true(is_ok(kv_disk_write(move.from.disk, &record, &outcome, &move.error)));
    assert_true(is_ok(export_keys(&move, NULL, 0)));
    assert_int_equal(move.moved.records, 13);
    assert_int_equal(export_keys(&move, NULL, 0).code, RESULT_IO); /* never overwrites */
    assert_int_equal(import(&move, false).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(move.error.message, "is of root lineage " FOLDER));
    assert_non_null(strstr(move.error.message, "has none"));
    assert_true(is_ok(import(&move, true)));
    assert_int_equal(move.moved.added, 13);
    assert_true(is_ok(import(&move, false)));
    assert_int_equal(move.moved.added, 0);
    assert_int_equal(move.moved.present, 13);
    tier_open(&move.to);
    for (int32_t i = 0; i < 8; i++) {
        assert_true(tier_get(&move.to, 1001, i));
        assert_true(tier_get(&move.to, 1002, i));
    }
    struct kv_lineage found[2];
    assert_int_equal(kv_disk_lineages(move.to.disk, &parent.key, found, 2), 1);
    assert_memory_equal(&found[0], &child, sizeof child);
    move_remove(&move);
}

static void kv_files_chosen_paths_move_alone(void **state) {
    (void)state;
    struct move move;
    struct block block;
    char hex[KV_KEY_HEX_BYTES];
    move_make(&move);
    block_make(&move.from, 1001, 5, &block);
    kv_hex(block.key.bytes, hex);
    const char *keys[] = {hex};
    assert_true(is_ok(export_keys(&move, keys, 1)));
    assert_int_equal(move.moved.records, 6);
    assert_true(is_ok(import(&move, true)));
    tier_open(&move.to);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(tier_get(&move.to, 1001, i), i < 6);
        assert_int_equal(tier_get(&move.to, 1002, i), i < 4); /* the trunk */
    }
    const char *wrong[] = {"abc"};
    (void)unlink(move.path);
    assert_int_equal(export_keys(&move, wrong, 1).code, RESULT_INVALID_INPUT);
    hex[0] = hex[0] == '0' ? '1' : '0';
    assert_int_equal(export_keys(&move, keys, 1).code, RESULT_NOT_FOUND);
    assert_int_equal(access(move.path, F_OK), -1); /* nothing half made stays */
    move_remove(&move);
}

static void kv_files_import_respects_budget_and_root(void **state) {
    (void)state;
    struct move move;
    move_make(&move);
    assert_true(is_ok(export_keys(&move, NULL, 0)));
    move.to.options.bytes_max = 6 * 5824 + 3 * 4096;
    tier_open(&move.to);
    tier_put_path(&move.to, 5000, 2);
    assert_int_equal(import(&move, false).code, RESULT_LIMIT);
    tier_close(&move.to);
    assert_true(is_ok(import(&move, false)));
    assert_true(move.moved.added >= 3 && move.moved.added <= 4);
    assert_int_equal(move.moved.no_room, 12 - move.moved.added);
    tier_open(&move.to);
    assert_true(tier_get(&move.to, 5000, 1));
    assert_true(tier_get(&move.to, 1001, 2)); /* parents come first */
    assert_int_equal(tier_counts(&move.to).evicted, 0);
    tier_close(&move.to);
    /* Another root lineage with the same folder name, then with another. */
    struct tier other;
    tier_make_in_memory(&other, SMALL_BYTES);
    other.options.root.bytes[0] = 0xAC;
    (void)snprintf(other.folder, sizeof other.folder, "%s/ac00000000000000", other.directory);
    tier_open(&other);
    tier_close(&other);
    result refused = kv_files_import(
        other.directory, move.path, &other.options.clock, false, &move.moved, &move.error
    );
    assert_int_equal(refused.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(move.error.message, "ab00000000000000"));
    assert_non_null(strstr(move.error.message, "ac00000000000000"));
    tier_remove(&other);
    move_remove(&move);
}

static void kv_files_damaged_export_adds_what_holds(void **state) {
    (void)state;
    struct move move;
    move_make(&move);
    assert_true(is_ok(export_keys(&move, NULL, 0)));
    flip(move.path, 4096 + 3 * 5824 + 2000);
    assert_int_equal(truncate(move.path, 4096 + 10 * 5824 + 700), 0);
    assert_true(is_ok(import(&move, true)));
    assert_int_equal(move.moved.added, 9);
    assert_int_equal(move.moved.damaged, 3);
    flip(move.path, 20);
    assert_int_equal(import(&move, false).code, RESULT_CORRUPT);
    flip(move.path, 0);
    assert_int_equal(import(&move, false).code, RESULT_INVALID_INPUT);
    tier_open(&move.to);
    for (int32_t i = 0; i < 8; i++) {
        (void)tier_get(&move.to, 1001, i); /* right, or not there */
        (void)tier_get(&move.to, 1002, i);
    }
    assert_int_equal(tier_counts(&move.to).damaged, 0);
    move_remove(&move);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_files_list_tells_what_is_there),
        cmocka_unit_test(kv_files_verify_names_and_repairs),
        cmocka_unit_test(kv_files_evict_by_age_size_and_all),
        cmocka_unit_test(kv_files_prefix_moves_to_another_cache),
        cmocka_unit_test(kv_files_chosen_paths_move_alone),
        cmocka_unit_test(kv_files_import_respects_budget_and_root),
        cmocka_unit_test(kv_files_damaged_export_adds_what_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
