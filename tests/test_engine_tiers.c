/* Tiers below the device as callers see them: what was computed before a restart is found after it, with
 * the same results; what is gone or damaged is a miss with its reason. */
#include "engine_cache_support.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

struct iovec; /* NOLINTBEGIN(bugprone-reserved-identifier): the names are what ld --wrap asks for */
ssize_t __real_preadv(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __real_pwritev(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at);
/* NOLINTEND(bugprone-reserved-identifier) */

static atomic_bool disk_hangs, disk_is_stuck, reads_fail, writes_fail;

static void pause_ms(long ms) {
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at) {
    while (disk_hangs) {
        disk_is_stuck = true;
        pause_ms(1);
    }
    if (reads_fail) {
        errno = EIO;
        return -1;
    }
    return __real_preadv(fd, parts, count, at);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    if (writes_fail) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwritev(fd, parts, count, at);
}

static char directory[256];

static void remove_tree(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        (void)unlink(path);
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        int length = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        assert_true(length > 0 && (size_t)length < sizeof name);
        struct stat about;
        assert_int_equal(lstat(name, &about), 0);
        if (S_ISDIR(about.st_mode)) {
            remove_tree(name);
        } else {
            (void)unlink(name);
        }
    }
    (void)closedir(folder);
    (void)rmdir(path);
}

static int make_directory(void **state) {
    (void)state;
    int length = snprintf(directory, sizeof directory, "%s/tiers-XXXXXX", TEST_BINARY_DIR);
    return length > 0 && (size_t)length < sizeof directory && mkdtemp(directory) != NULL ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    remove_tree(directory);
    return 0;
}

static void open_disk(struct fixture *fixture) {
    open_with(fixture, &(struct engine_options){.cache_directory = directory});
}

static void restart_restores_what_was_computed(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    struct answer got;
    struct answer wanted;
    struct engine_cache_status status;
    open_cold(&cold);
    open_disk(&warm);
    struct ask ask = {.ids = text, .count = 800, .sampled = SAMPLED};
    once(&warm, &ask, &got);
    engine_cache_flush(warm.engine);
    engine_cache_status(warm.engine, &status);
    assert_true(status.has_disk && status.trouble[0] == '\0');
    assert_int_equal(status.disk_blocks, 6);
    close_engine(&warm);
    for (int again = 0; again < 2; again++) {
        open_disk(&warm);
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        assert_exact(&got);
        assert_int_equal(got.facts.reused, 768);
        assert_int_equal(got.facts.restored_disk, 768);
        assert_int_equal(got.facts.restored_host, 0);
        assert_string_equal(got.facts.window_source, "rebuilt");
        /* Nothing is written twice. */
        engine_cache_flush(warm.engine);
        engine_cache_status(warm.engine, &status);
        assert_int_equal(status.disk_blocks, 6);
        assert_true(status.written_bytes == 0);
        /* A branch inside what came back; too short for a block of its own, which would be written
         * or not, as time goes. */
        int32_t prompt[TEXT];
        branch(prompt, 333, 360, 5);
        struct ask other = {.ids = prompt, .count = 360, .sampled = SAMPLED};
        once(&warm, &other, &got);
        once(&cold, &other, &wanted);
        assert_same(&got, &wanted);
        assert_int_equal(got.facts.reused, 332);
        assert_int_equal(got.facts.restored_disk, 0);
        engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, 0);
        engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
        if (again == 0) {
            once(&warm, &ask, &got);
            assert_int_equal(got.facts.restored_disk, 768);
        }
        close_engine(&warm);
    }
    remove_tree(directory);
    open_disk(&warm);
    once(&warm, &ask, &got);
    assert_int_equal(got.facts.reused, 0);
    assert_string_equal(got.facts.miss, "never_computed");
    close_engine(&warm);
    close_engine(&cold);
}

/* What an engine is closed with is written without anybody's asking. */
static void close_writes_what_waits(void **state) {
    (void)state;
    struct fixture warm;
    struct answer got;
    struct ask ask = {.ids = text, .count = 500, .sampled = 1};
    open_disk(&warm);
    uint64_t live = create(&warm);
    turn(&warm, live, &ask, &got);
    close_engine(&warm);
    open_disk(&warm);
    once(&warm, &ask, &got);
    assert_int_equal(got.facts.restored_disk, 384);
    close_engine(&warm);
}

static void abandoned_branch_is_not_written(void **state) {
    (void)state;
    struct fixture warm;
    struct answer got;
    struct engine_cache_status status;
    struct simulated simulated = {.now_ms = 1000000};
    open_with(
        &warm,
        &(struct engine_options){.cache_directory = directory, .clock = simulated_clock(&simulated)}
    );
    int32_t prompt[TEXT];
    for (int i = 0; i < 2; i++) {
        branch(prompt, 256, 640, 60U + (uint32_t)i);
        uint64_t sequence = create(&warm);
        turn(&warm, sequence, &(struct ask){.ids = prompt, .count = 640, .sampled = 1}, &got);
        engine_sequence_tell(
            warm.engine, sequence, i == 0 ? SEQUENCE_WAITING : SEQUENCE_ABANDONED, 10
        );
        if (i == 0) {
            engine_cache_flush(warm.engine);
        }
        simulated.now_ms += 10; /* less than a new block waits */
        engine_sequence_destroy(warm.engine, sequence);
    }
    engine_cache_flush(warm.engine);
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 8);
    assert_int_equal(status.disk_blocks, 5);
    close_engine(&warm);
}

static void host_pool_holds_what_was_evicted(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    struct answer got;
    struct answer wanted;
    open_cold(&cold);
    open_with(&warm, &(struct engine_options){.cache_host_bytes = 4 << 20});
    struct ask ask = {.ids = text, .count = 700, .sampled = SAMPLED};
    once(&warm, &ask, &got);
    engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, 0);
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    once(&warm, &ask, &got);
    once(&cold, &ask, &wanted);
    assert_same(&got, &wanted);
    assert_int_equal(got.facts.restored_host, 640);
    assert_int_equal(got.facts.reused, 640);
    engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, 0);
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    engine_cache_drop(warm.engine, CACHE_TIER_HOST, 0);
    once(&warm, &ask, &got);
    assert_same(&got, &wanted);
    assert_int_equal(got.facts.reused, 0);
    assert_string_equal(got.facts.miss, "evicted");
    close_engine(&warm);
    close_engine(&cold);
}

/* Approximate content comes back under its lineage, for those who accept it. */
static void replay_is_restored_with_its_lineage(void **state) {
    (void)state;
    struct fixture warm;
    struct answer first;
    struct answer got;
    struct answer wanted;
    int32_t prompt[TEXT];
    branch(prompt, 300, TEXT, 70);
    struct ask ask = {.ids = prompt, .count = 700, .sampled = SAMPLED, .window = WINDOW_REPLAY};
    open_disk(&warm);
    once(&warm, &(struct ask){.ids = text, .count = 500, .sampled = 1}, &got);
    once(&warm, &ask, &first);
    assert_int_equal(first.facts.reused, 300);
    assert_string_not_equal(first.facts.block_lineage, first.facts.lineage);
    close_engine(&warm);
    open_disk(&warm);
    ask.count = 800;
    once(&warm, &ask, &got);
    assert_int_equal(got.facts.restored_disk, 5 * KV_BLOCK_TOKENS);
    assert_int_equal(got.facts.reused, 5 * KV_BLOCK_TOKENS);
    assert_int_equal(got.facts.replays[0].position, 300);
    close_engine(&warm);
    struct ask contract = ask;
    contract.contract = &got.facts;
    open_warm(&warm);
    once(&warm, &contract, &wanted);
    assert_same(&got, &wanted);
    assert_string_equal(got.facts.block_lineage, wanted.facts.block_lineage);
    close_engine(&warm);
    open_disk(&warm);
    ask.window = WINDOW_EXACT;
    once(&warm, &ask, &got);
    assert_exact(&got);
    assert_int_equal(got.facts.restored_disk, 2 * KV_BLOCK_TOKENS);
    close_engine(&warm);
}

/* Cancelled or destroyed while blocks are on their way, beside others that go on. */
static void restore_can_be_given_up(void **state) {
    (void)state;
    struct fixture warm;
    struct answer got;
    struct ask ask = {.ids = text, .count = 900, .sampled = 3};
    open_disk(&warm);
    once(&warm, &ask, &got);
    close_engine(&warm);
    for (int i = 0; i < 9; i++) {
        open_disk(&warm);
        uint64_t sequence = create(&warm);
        uint64_t other = create(&warm);
        send(&warm, sequence, &ask);
        if (i % 3 == 0) {
            engine_cancel(warm.engine, sequence);
            take(&warm, sequence, &got);
            assert_true(got.reason == FINISH_CANCELLED || got.reason == FINISH_LENGTH);
            assert_int_equal(got.count, got.facts.sampled);
            if (got.facts.prompt_tokens == 0) {
                assert_int_equal(engine_sequence_length(warm.engine, sequence), 0);
                turn(&warm, sequence, &ask, &got);
                assert_int_equal(got.facts.restored_disk, 7 * KV_BLOCK_TOKENS);
            }
        } else if (i % 3 == 1) {
            engine_sequence_destroy(warm.engine, sequence);
        }
        if (i % 3 != 2) {
            turn(&warm, other, &(struct ask){.ids = text + 5, .count = 100, .sampled = 3}, &got);
        }
        close_engine(&warm); /* with the read in flight, every third time */
    }
}

static void flip_every_segment(const char *path) {
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char name[1024];
        if (entry->d_name[0] == '.') {
            continue;
        }
        int length = snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        assert_true(length > 0 && (size_t)length < sizeof name);
        struct stat about;
        assert_int_equal(lstat(name, &about), 0);
        if (S_ISDIR(about.st_mode)) {
            flip_every_segment(name);
            continue;
        }
        FILE *file = fopen(name, "r+b");
        assert_non_null(file);
        /* Where records may lie; the first one stays as it is. */
        for (long at = 30000; at < about.st_size; at += 5000) {
            assert_int_equal(fseek(file, at, SEEK_SET), 0);
            int byte = fgetc(file);
            assert_int_equal(fseek(file, at, SEEK_SET), 0);
            assert_true(fputc(byte ^ 0x10, file) != EOF);
        }
        assert_int_equal(fclose(file), 0);
    }
    (void)closedir(folder);
}

static void damaged_block_is_a_miss(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    struct answer got;
    struct answer wanted;
    struct ask ask = {.ids = text, .count = 800, .sampled = SAMPLED};
    open_cold(&cold);
    once(&cold, &ask, &wanted);
    open_disk(&warm);
    once(&warm, &ask, &got);
    close_engine(&warm);
    flip_every_segment(directory);
    open_disk(&warm);
    once(&warm, &ask, &got);
    assert_same(&got, &wanted);
    assert_true(got.facts.reused < 768);
    assert_string_equal(got.facts.miss, "damaged");
    close_engine(&warm);
    close_engine(&cold);
}

static void trouble_is_named_and_not_fatal(void **state) {
    (void)state;
    struct fixture warm;
    struct answer got;
    struct engine_cache_status status;
    open_with(&warm, &(struct engine_options){.cache_directory = "/proc/nothing/of/the/kind"});
    once(&warm, &(struct ask){.ids = text, .count = 300, .sampled = 3}, &got);
    engine_cache_flush(warm.engine);
    engine_cache_status(warm.engine, &status);
    assert_false(status.has_disk);
    assert_memory_equal(status.trouble, "no cache on disk: ", 18);
    close_engine(&warm);
    /* Two engines on one folder: the second one does without. */
    struct fixture second;
    open_disk(&warm);
    open_disk(&second);
    once(&second, &(struct ask){.ids = text, .count = 300, .sampled = 3}, &got);
    engine_cache_status(second.engine, &status);
    assert_false(status.has_disk);
    assert_memory_equal(status.trouble, "no cache on disk: ", 18);
    engine_cache_status(warm.engine, &status);
    assert_true(status.has_disk);
    close_engine(&second);
    close_engine(&warm);
}

static _Atomic int64_t wall_ahead_ms;

static int64_t steady_ms(void *context) {
    (void)context;
    struct clock real = clock_real();
    return clock_monotonic_ms(&real);
}

static int64_t jumping_ms(void *context) {
    return steady_ms(context) + INT64_C(1700000000000) + wall_ahead_ms;
}

static void wall_clock_that_jumps_is_told(void **state) {
    (void)state;
    struct fixture warm;
    struct answer got;
    struct engine_cache_status status;
    open_with(
        &warm,
        &(struct engine_options
        ){.cache_directory = directory, .clock = {steady_ms, jumping_ms, NULL}}
    );
    once(&warm, &(struct ask){.ids = text, .count = 300, .sampled = 3}, &got);
    engine_cache_status(warm.engine, &status);
    assert_true(status.clock_jump_ms < 1000);
    wall_ahead_ms = 80 * 3600 * 1000;
    engine_cache_status(warm.engine, &status);
    assert_true(status.clock_jump_ms > 79 * 3600 * 1000);
    wall_ahead_ms = 0;
    close_engine(&warm);
}

static int64_t moved_ms(void *context) {
    return 1000000 + (int64_t)atomic_load((atomic_llong *)context);
}

static void expect_trouble(struct fixture *fixture, const char *beginning) {
    struct engine_cache_status status;
    engine_cache_status(fixture->engine, &status);
    if (strncmp(status.trouble, beginning, strlen(beginning)) != 0) {
        fail_msg("'%s' does not begin with '%s'", status.trouble, beginning);
    }
}

/* What trouble says is so: a disk that hangs, is full, cannot be read. */
static void trouble_says_what_is_so(void **state) {
    (void)state;
    struct fixture warm;
    struct answer first;
    struct answer got;
    atomic_llong now_ms = 0;
    struct engine_options options = {
        .cache_directory = directory, .clock = {moved_ms, moved_ms, &now_ms}};
    struct ask ask = {.ids = text, .count = 500, .sampled = 3};
    open_with(&warm, &options);
    once(&warm, &ask, &first);
    close_engine(&warm);
    open_with(&warm, &options);
    disk_hangs = true;
    uint64_t sequence = create(&warm);
    send(&warm, sequence, &ask);
    while (!disk_is_stuck) {
        pause_ms(1);
    }
    atomic_fetch_add(&now_ms, 11000);
    take(&warm, sequence, &got);
    disk_hangs = false;
    assert_same(&got, &first);
    assert_int_equal(got.facts.reused, 0);
    assert_string_equal(got.facts.miss, "not_read");
    expect_trouble(&warm, "the cache's disk did not answer for 10 s: ");
    writes_fail = true;
    once(&warm, &(struct ask){.ids = text + 5, .count = 300, .sampled = 3}, &got);
    engine_cache_flush(warm.engine);
    expect_trouble(&warm, "nothing more is written to the cache on disk, what is there is still ");
    close_engine(&warm);
    writes_fail = false;
    open_with(&warm, &options);
    reads_fail = true;
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.miss, "not_read");
    expect_trouble(&warm, "the cache on disk is not used any more: ");
    close_engine(&warm);
    reads_fail = false;
}

int main(void) {
    make_text();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            restart_restores_what_was_computed, make_directory, remove_directory
        ),
        cmocka_unit_test_setup_teardown(close_writes_what_waits, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(
            abandoned_branch_is_not_written, make_directory, remove_directory
        ),
        cmocka_unit_test(host_pool_holds_what_was_evicted),
        cmocka_unit_test_setup_teardown(
            replay_is_restored_with_its_lineage, make_directory, remove_directory
        ),
        cmocka_unit_test_setup_teardown(restore_can_be_given_up, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(damaged_block_is_a_miss, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(
            trouble_is_named_and_not_fatal, make_directory, remove_directory
        ),
        cmocka_unit_test_setup_teardown(trouble_says_what_is_so, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(
            wall_clock_that_jumps_is_told, make_directory, remove_directory
        ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
