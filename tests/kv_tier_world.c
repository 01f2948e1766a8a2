/* See the header. */
#include "kv_tier_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

/* ---- the machine: writes that fail or hang, a clock that the test moves ----------------------- */

struct iovec; /* NOLINTBEGIN(bugprone-reserved-identifier): the names are what ld --wrap asks for */
ssize_t __real_pwrite(int fd, const void *bytes, size_t count, off_t at);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at);
ssize_t __real_pwritev(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __real_preadv(int fd, const struct iovec *parts, int count, off_t at);
ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at);
/* NOLINTEND(bugprone-reserved-identifier) */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_shut; /* reads and writes wait */
    int32_t waiting;
    int32_t writes_left, reads_left; /* before they fail; -1: they do not */
} disk = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .writes_left = -1,
    .reads_left = -1,
};

/* Waits while the disk hangs. False: the call fails. */
static bool pass(int32_t *left) {
    pthread_mutex_lock(&disk.lock);
    disk.waiting++;
    pthread_cond_broadcast(&disk.changed);
    while (disk.is_shut) {
        pthread_cond_wait(&disk.changed, &disk.lock);
    }
    disk.waiting--;
    bool fails = *left == 0;
    *left -= *left > 0 ? 1 : 0;
    pthread_mutex_unlock(&disk.lock);
    return !fails;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t at) {
    if (!pass(&disk.writes_left)) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwrite(fd, bytes, count, at);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    if (!pass(&disk.writes_left)) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwritev(fd, parts, count, at);
}

ssize_t __wrap_preadv(int fd, const struct iovec *parts, int count, off_t at) {
    if (!pass(&disk.reads_left)) {
        errno = EIO;
        return -1;
    }
    return __real_preadv(fd, parts, count, at);
}

void disk_shut(bool is_shut) {
    pthread_mutex_lock(&disk.lock);
    disk.is_shut = is_shut;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.lock);
}

void disk_fail_after(int32_t writes) {
    pthread_mutex_lock(&disk.lock);
    disk.writes_left = writes;
    pthread_mutex_unlock(&disk.lock);
}

void disk_fail_reads_after(int32_t reads) {
    pthread_mutex_lock(&disk.lock);
    disk.reads_left = reads;
    pthread_mutex_unlock(&disk.lock);
}

void disk_wait_until_stuck(void) {
    pthread_mutex_lock(&disk.lock);
    while (disk.waiting == 0) {
        pthread_cond_wait(&disk.changed, &disk.lock);
    }
    pthread_mutex_unlock(&disk.lock);
}

static atomic_llong now_ms;

void clock_move(int64_t ms) {
    (void)atomic_fetch_add(&now_ms, ms);
}

static int64_t read_monotonic(void *context) {
    (void)context;
    return (int64_t)atomic_load(&now_ms) + 1;
}

static int64_t read_wall(void *context) {
    (void)context;
    return (int64_t)atomic_load(&now_ms) + INT64_C(1800000000000);
}

/* ---- a tier and what is in it ----------------------------------------------------------------- */

struct world world;
static uint64_t base_seed;

static void wake(void *context) {
    (void)sem_post(context);
}

static void wait_woken(void) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    assert_int_equal(sem_timedwait(&world.woken, &until), 0);
}

void open_tier(void) {
    struct error error = {0};
    result opened = kv_tier_open(&world.tier, &world.options, &error);
    if (is_failed(opened)) {
        fail_msg("%s", error.message);
    }
    kv_tier_trouble(world.tier, &error);
    if (error.code != RESULT_OK) {
        fail_msg("%s", error.message);
    }
}

/* host_blocks and is_on_disk: which tiers there are. */
void begin(int32_t host_blocks, bool is_on_disk, int32_t tree_blocks, uint64_t seed) {
    world.random = base_seed ^ seed;
    atomic_store(&now_ms, 0);
    (void)sem_init(&world.woken, 0, 0);
    directory_make(world.directory);
    struct kv_lineage root = {.bytes = {1, 2, 3}};
    tree_make(&world.tree, tree_blocks, BLOCK, &root, random_next(&world.random));
    world.options = (struct kv_tier_options){
        .directory = is_on_disk ? world.directory : NULL,
        .root = root,
        .block_bytes = BLOCK,
        .description = "test",
        .clock = {.monotonic_ms = read_monotonic, .wall_ms = read_wall},
        .wake = wake,
        .wake_context = &world.woken,
    };
    struct kv_tier_size size = {0};
    while (size.host_blocks < host_blocks) {
        world.options.host_bytes += BLOCK / 2;
        kv_tier_measure(&world.options, &size);
    }
    open_tier();
}

void end(void) {
    kv_tier_close(world.tier);
    world.tier = NULL;
    tree_free(&world.tree);
    directory_remove(world.directory);
    (void)sem_destroy(&world.woken);
}

struct kv_tier_counts counts(void) {
    struct kv_tier_counts out;
    kv_tier_count(world.tier, &out);
    return out;
}

void write_node(int32_t node) {
    struct kv_tier_record record = tree_record(&world.tree, node);
    while (kv_tier_write(world.tier, &record, 1) == 0) {
        assert_true(kv_tier_flush(world.tier, WAIT_MS));
    }
}

void put_node(int32_t node) {
    struct kv_tier_record record = tree_record(&world.tree, node);
    kv_tier_put_host(world.tier, &record, 1);
}

bool has_node(int32_t node) {
    return kv_tier_has(world.tier, &world.tree.keys[node]);
}

/* Takes the next batch, waiting for it. */
struct kv_tier_batch take(void) {
    struct kv_tier_batch batch;
    while (!kv_tier_next(world.tier, &batch)) {
        wait_woken();
    }
    return batch;
}

/* Reads the path of a node to its end, compares all of it; returns the blocks that came. */
int32_t read_path(int32_t node, uint64_t ticket, enum kv_prefix_miss *miss) {
    struct kv_key keys[TREE_BLOCKS];
    int32_t path[TREE_BLOCKS];
    int32_t count = tree_path(&world.tree, node, path);
    (void)tree_keys(&world.tree, node, keys);
    assert_true(kv_tier_read(world.tier, ticket, keys, count));
    int32_t came = 0;
    for (bool is_last = false; !is_last;) {
        struct kv_tier_batch batch = take();
        assert_int_equal(batch.ticket, ticket);
        assert_int_equal(batch.first, came);
        for (int32_t i = 0; i < batch.count; i++) {
            assert_true(tree_is(&world.tree, path[came + i], &batch.records[i]));
        }
        came += batch.count;
        is_last = batch.is_last;
        *miss = batch.miss;
        kv_tier_done(world.tier, &batch);
    }
    assert_true((*miss == KV_PREFIX_MISS_NONE) == (came == count));
    return came;
}

int run_world_tests(const struct CMUnitTest *tests, size_t count) {
    const char *seed = getenv("HEARTH_TEST_SEED");
    base_seed = 20261129;
    if (seed != NULL && !parse_u64(view_of_text(seed), &base_seed)) {
        return 2;
    }
    printf("seed %llu\n", (unsigned long long)base_seed);
    return _cmocka_run_group_tests("kv_tier", tests, count, NULL, NULL);
}
