/* One tier over a tree of invented blocks, a disk whose writes can hang or fail (link with
 * -Wl,--wrap=pwrite,--wrap=pwritev,--wrap=preadv) and a clock that the test moves. The functions check with cmocka. */
#ifndef HEARTH_TESTS_KV_TIER_WORLD_H
#define HEARTH_TESTS_KV_TIER_WORLD_H

#include "base/bytes.h"
#include "kv_tier_support.h"

#include <semaphore.h>

#define WAIT_MS 60000
#define BLOCK   1000 /* an odd size: nothing is aligned by luck */

struct world {
    struct kv_tier *tier;
    struct kv_tier_options options;
    char directory[256];
    sem_t woken;
    struct tree tree;
    uint64_t random;
};

extern struct world world;

/* Reads and writes wait until it is opened again. */
void disk_shut(bool is_shut);
/* Writes fail, no space, after that many; -1: they do not. */
void disk_fail_after(int32_t writes);
/* Reads of blocks fail, EIO, after that many. */
void disk_fail_reads_after(int32_t reads);
void disk_wait_until_stuck(void);
/* The tier's clock, which stands still otherwise. */
void clock_move(int64_t ms);

/* host_blocks and is_on_disk: which tiers there are. */
void begin(int32_t host_blocks, bool is_on_disk, int32_t tree_blocks, uint64_t seed);
void open_tier(void);
void end(void);
struct kv_tier_counts counts(void);
/* Waits for room. */
void write_node(int32_t node);
void put_node(int32_t node);
bool has_node(int32_t node);
/* Takes the next batch, waiting for it. */
struct kv_tier_batch take(void);
/* Reads the path of a node to its end, compares all of it; returns the blocks that came. */
int32_t read_path(int32_t node, uint64_t ticket, enum kv_prefix_miss *miss);
/* Sets and prints the seed, runs. */
struct CMUnitTest;
int run_world_tests(const struct CMUnitTest *tests, size_t count);

#endif
