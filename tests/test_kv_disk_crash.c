/* kill -9 at every write of the disk tier, failing writes and reads, failing memory: linked with
 * --wrap for the calls that change files. What a later start finds is right to the byte. */
#include "kv_disk_support.h"

#include "engine/kv_disk_internal.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failing_memory.h"

#define SMALL_BYTES ((size_t)5000)
#define TEXTS       8
#define DEPTH       6

/* The `at`th change from now on (1 is the next) ends the process after `bytes` of it, or fails. */
static struct {
    long at;
    size_t bytes;
    int code;      /* 0: SIGKILL */
    int read_code; /* of every preadv */
    int head_code; /* of every pread */
    long changes;
} fault;

ssize_t __real_pwritev(int fd, const struct iovec *parts, int count, off_t at); // NOLINT
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at); // NOLINT
ssize_t __real_pwrite(int fd, const void *bytes, size_t count, off_t at);       // NOLINT
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at);       // NOLINT
ssize_t __real_preadv(int fd, const struct iovec *parts, int count, off_t at);  // NOLINT
ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at);  // NOLINT
ssize_t __real_pread(int fd, void *bytes, size_t count, off_t at);              // NOLINT
ssize_t __wrap_pread(int fd, void *bytes, size_t count, off_t at);              // NOLINT
int __real_fallocate(int fd, int mode, off_t from, off_t bytes);                // NOLINT
int __wrap_fallocate(int fd, int mode, off_t from, off_t bytes);                // NOLINT
int __real_unlinkat(int fd, const char *name, int flags);                       // NOLINT
int __wrap_unlinkat(int fd, const char *name, int flags);                       // NOLINT
int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);  // NOLINT
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);  // NOLINT
int __wrap_fdatasync(int fd);                                                   // NOLINT

static bool is_due(void) {
    fault.changes++;
    return fault.at > 0 && --fault.at == 0;
}

static void die(void) {
    (void)kill(getpid(), SIGKILL);
    (void)pause();
}

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at) { // NOLINT
    if (is_due()) {
        assert_true(count == 1 && fault.bytes < parts[0].iov_len);
        struct iovec part = {parts[0].iov_base, fault.bytes};
        ssize_t wrote = fault.bytes > 0 ? __real_pwritev(fd, &part, 1, at) : 0;
        if (fault.code == 0) {
            die();
        }
        fault.at = 1; /* the rest fails */
        if (wrote > 0) {
            fault.bytes = 0;
            return wrote;
        }
        fault.at = 0;
        errno = fault.code;
        return -1;
    }
    return __real_pwritev(fd, parts, count, at);
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at) { // NOLINT
    if (is_due()) {
        size_t part = fault.bytes < count ? fault.bytes : count / 2;
        ssize_t wrote = __real_pwrite(fd, bytes, part, at);
        if (fault.code == 0) {
            die();
        }
        errno = fault.code;
        return wrote < 0 ? wrote : -1;
    }
    return __real_pwrite(fd, bytes, count, at);
}

ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at) { // NOLINT
    if (fault.read_code != 0) {
        errno = fault.read_code;
        return -1;
    }
    return __real_preadv(fd, parts, count, at);
}

ssize_t __wrap_pread(int fd, void *bytes, size_t count, off_t at) { // NOLINT
    if (fault.head_code != 0) {
        errno = fault.head_code;
        return -1;
    }
    return __real_pread(fd, bytes, count, at);
}

int __wrap_fallocate(int fd, int mode, off_t from, off_t bytes) { // NOLINT
    if (is_due() && fault.code == 0) {
        die();
    }
    return __real_fallocate(fd, mode, from, bytes);
}

int __wrap_unlinkat(int fd, const char *name, int flags) { // NOLINT
    if (is_due() && fault.code == 0) {
        die();
    }
    return __real_unlinkat(fd, name, flags);
}

int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to) { // NOLINT
    if (is_due() && fault.code == 0) {
        die();
    }
    return __real_renameat(from_fd, from, to_fd, to);
}

int __wrap_fdatasync(int fd) { // NOLINT
    return fd < 0 ? -1 : 0;    /* the kernel keeps what a killed process wrote */
}

static void make(struct tier *tier) {
    tier_make_in_memory(tier, SMALL_BYTES);
    tier->options.segment_bytes = 7 * kv_disk_stride(SMALL_BYTES);
    tier->options.bytes_max = 30 * kv_disk_stride(SMALL_BYTES) + 8 * 4096;
}

/* Writes, evicts, quarantines, notes a lineage, saves and closes. */
static void work(struct tier *tier) {
    struct error error;
    tier_open(tier);
    for (int32_t text = 1; text <= TEXTS; text++) {
        (void)kv_disk_advance(tier->disk);
        for (int32_t i = 0; i < DEPTH; i++) {
            (void)tier_put(tier, 1000 * text, i);
        }
        tier_pass(tier, 61000);
        kv_disk_sync(tier->disk);
    }
    struct block block;
    block_make(tier, 1000 * TEXTS, 2, &block);
    kv_disk_quarantine(tier->disk, &block.key);
    struct kv_lineage child;
    kv_lineage_replay(&tier->options.root, 640, &child);
    result_ignore(kv_disk_note_lineage(tier->disk, &child, &tier->options.root, 640, &error));
    (void)kv_disk_drop(tier->disk, 5);
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

static void check(struct tier *tier) {
    struct error error;
    tier_open(tier);
    assert_true(is_ok(disk_index_validate(&tier->disk->index, &error)));
    (void)count_readable(tier);
    assert_int_equal(tier_counts(tier).damaged, 0); /* what is torn is not offered at all */
    assert_int_equal(tier_put(tier, 500000, 0), KV_DISK_WRITTEN);
    tier_reopen(tier);
    assert_true(tier_get(tier, 500000, 0));
    assert_int_equal(tier_counts(tier).damaged_found, 0);
    tier_remove(tier);
}

/* Whether the child came to its end. */
static bool work_in_child(struct tier *tier, long at, size_t bytes, int wait_us) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fault.at = at;
        fault.bytes = bytes;
        work(tier);
        _exit(0);
    }
    if (wait_us >= 0) {
        (void)usleep((useconds_t)wait_us);
        (void)kill(child, SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) || WTERMSIG(status) == SIGKILL);
    return WIFEXITED(status);
}

static void kv_disk_killed_at_every_write_is_never_wrong(void **state) {
    (void)state;
    static const size_t torn[] = {0, 300, 768, 3000};
    bool is_done = false;
    long at = 1;
    for (; !is_done; at++) {
        struct tier tier;
        make(&tier);
        is_done = work_in_child(&tier, at, torn[at % 4], -1);
        check(&tier);
    }
    print_message("killed at each of %ld changes\n", at - 2);
    assert_true(at > 100);
}

static void kv_disk_killed_at_random_instants_is_never_wrong(void **state) {
    (void)state;
    struct tier tier;
    make(&tier);
    for (int i = 0; i < 25; i++) { /* one directory through many crashes */
        (void)work_in_child(&tier, 0, 0, (i * 977) % 9000);
        tier_open(&tier);
        (void)count_readable(&tier);
        tier_close(&tier);
    }
    check(&tier);
}

static void kv_disk_full_disk_ends_writing_once(void **state) {
    (void)state;
    for (size_t bytes = 0; bytes <= 4000; bytes += 1000) {
        struct tier tier;
        struct error trouble;
        make(&tier);
        tier_open(&tier);
        tier_put_path(&tier, 1000, 4);
        fault.at = 1;
        fault.bytes = bytes;
        fault.code = ENOSPC;
        assert_int_equal(tier_put(&tier, 1000, 4), KV_DISK_OFF);
        memset(&fault, 0, sizeof fault);
        kv_disk_trouble(tier.disk, &trouble);
        assert_int_equal(trouble.code, RESULT_IO);
        assert_int_equal(trouble.foreign, ENOSPC);
        assert_non_null(strstr(trouble.message, "No space left on device"));
        assert_int_equal(tier_put(&tier, 1000, 4), KV_DISK_OFF); /* never tried again */
        assert_int_equal(kv_disk_room(tier.disk), 0);
        for (int32_t i = 0; i < 4; i++) {
            assert_true(tier_get(&tier, 1000, i)); /* reading goes on */
        }
        tier_reopen(&tier); /* the next run may try */
        assert_int_equal(tier_counts(&tier).damaged_found, 0);
        assert_int_equal(tier_put(&tier, 1000, 4), KV_DISK_WRITTEN);
        tier_remove(&tier);
    }
}

static void kv_disk_failing_change_is_never_wrong(void **state) {
    (void)state;
    for (long at = 1; at < 150; at++) {
        struct tier tier;
        make(&tier);
        tier_open(&tier);
        tier_close(&tier); /* the first start makes the folder and may be refused */
        fault.at = at + 2; /* the lock and its probe */
        fault.bytes = (size_t)(at * 37 % 5000);
        fault.code = at % 2 == 0 ? ENOSPC : EIO;
        work(&tier);
        memset(&fault, 0, sizeof fault);
        check(&tier);
    }
}

/* What cannot be read while it is opened is neither a miss nor damage: nothing is removed for it. */
static void kv_disk_read_error_at_the_start_removes_nothing(void **state) {
    (void)state;
    struct tier tier;
    struct error error;
    tier_make(&tier, SMALL_BYTES);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 3);
    tier_close(&tier);
    fault.head_code = EIO;
    result opened = kv_disk_open(&tier.disk, &tier.options, &error);
    fault.head_code = 0;
    assert_int_equal(opened.code, RESULT_IO);
    assert_non_null(strstr(error.message, "seg-00000001.data: Input/output error"));
    assert_null(tier.disk);
    tier_open(&tier);
    for (int32_t i = 0; i < 3; i++) {
        assert_true(tier_get(&tier, 1000, i));
    }
    tier_remove(&tier);
}

static void kv_disk_read_error_ends_everything_once(void **state) {
    (void)state;
    struct tier tier;
    struct error error;
    struct block block;
    make(&tier);
    tier_open(&tier);
    tier_put_path(&tier, 1000, 4);
    block_make(&tier, 1000, 1, &block);
    fault.read_code = EIO;
    result got = kv_disk_read(tier.disk, &block.key, tier.bytes, &tier.about, &error);
    assert_int_equal(got.code, RESULT_IO);
    fault.read_code = 0;
    assert_false(tier_has(&tier, 1000, 0));
    assert_false(tier_get(&tier, 1000, 0));
    assert_int_equal(tier_put(&tier, 2000, 0), KV_DISK_OFF);
    kv_disk_trouble(tier.disk, &error);
    assert_int_equal(error.foreign, EIO);
    assert_non_null(strstr(error.message, "cannot read from the cache"));
    tier_reopen(&tier);
    assert_true(tier_get(&tier, 1000, 1));
    /* Out of descriptors is no word about the disk. */
    fault.read_code = ENOMEM;
    got = kv_disk_read(tier.disk, &block.key, tier.bytes, &tier.about, &error);
    assert_int_equal(got.code, RESULT_IO);
    fault.read_code = 0;
    assert_true(tier_get(&tier, 1000, 1));
    tier_remove(&tier);
}

static void kv_disk_without_memory_nothing_is_lost(void **state) {
    (void)state;
    bool is_done = false;
    for (size_t nth = 1; !is_done; nth++) {
        struct tier tier;
        struct error error;
        make(&tier);
        tier_open(&tier);
        tier_put_path(&tier, 1000, 6);
        tier_close(&tier);
        failing_memory_arm(nth);
        result opened = kv_disk_open(&tier.disk, &tier.options, &error);
        if (is_ok(opened)) {
            for (int32_t i = 0; i < 6; i++) {
                struct block block;
                enum kv_disk_outcome outcome;
                block_make(&tier, 2000, i, &block);
                block_fill(&block.key, tier.bytes, SMALL_BYTES);
                const struct kv_tier_record record = {
                    block.key, block.parent, block.lineage, block.tokens, tier.bytes};
                result wrote = kv_disk_write(tier.disk, &record, &outcome, &error);
                assert_true(is_ok(wrote) || wrote.code == RESULT_MEMORY);
            }
            (void)kv_disk_drop(tier.disk, 1);
            tier_close(&tier);
        } else {
            assert_int_equal(opened.code, RESULT_MEMORY);
        }
        is_done = !failing_memory_fired();
        failing_memory_arm(0);
        tier_open(&tier);
        assert_true(tier_get(&tier, 1000, 4)); /* 5 may have been dropped */
        tier_remove(&tier);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_disk_killed_at_every_write_is_never_wrong),
        cmocka_unit_test(kv_disk_killed_at_random_instants_is_never_wrong),
        cmocka_unit_test(kv_disk_full_disk_ends_writing_once),
        cmocka_unit_test(kv_disk_failing_change_is_never_wrong),
        cmocka_unit_test(kv_disk_read_error_at_the_start_removes_nothing),
        cmocka_unit_test(kv_disk_read_error_ends_everything_once),
        cmocka_unit_test(kv_disk_without_memory_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
