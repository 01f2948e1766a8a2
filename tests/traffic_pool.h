/* What the prefix tree is compared with: blocks found by the hash of all tokens up to their end,
 * evicted in one of the usual orders. Also the model of the disk tier. No agent tells it anything.
 */
#ifndef HEARTH_TESTS_TRAFFIC_POOL_H
#define HEARTH_TESTS_TRAFFIC_POOL_H

#include "base/result.h"

enum traffic_order {
    TRAFFIC_LRU,      /* any block, the one used longest ago; a use goes from the first block on, so
                         a path loses its trunk first. Blocks in use are not kept back */
    TRAFFIC_LEAF_LRU, /* only blocks that nothing continues and nobody uses */
    TRAFFIC_IDEAL     /* of these, the one whose next use is furthest: knows the future */
};

struct traffic_pool;

/* Expected errors: MEMORY. */
MUST_CHECK result traffic_pool_create(
    struct traffic_pool **out, int32_t blocks, enum traffic_order order, struct error *error
);
/* Accepts null. */
void traffic_pool_destroy(struct traffic_pool *pool);

/* How many of keys [count] are there, from the first on. */
int32_t traffic_pool_match(const struct traffic_pool *pool, const uint64_t *keys, int32_t count);
bool traffic_pool_has(const struct traffic_pool *pool, uint64_t key);

/* No block: before the first one, and what TRAFFIC_LRU returns. */
#define TRAFFIC_NO_BLOCK (-1)

/* Blocks one after the other: keys, and when each is used next (null but for TRAFFIC_IDEAL). */
struct traffic_path {
    const uint64_t *keys;
    const int64_t *next_uses;
    int32_t count;
};
/* Uses the path that continues `held`, adding what is missing for what it evicts. The last block
 * is in use until the returned handle is dropped, `held` not any more. Stops early, in all but
 * TRAFFIC_LRU, when everything left is in use. */
int32_t traffic_pool_use(struct traffic_pool *pool, int32_t held, const struct traffic_path *path);
void traffic_pool_drop(struct traffic_pool *pool, int32_t held);

struct traffic_pool_counts {
    int64_t added, evicted, refused;
};
void traffic_pool_count(const struct traffic_pool *pool, struct traffic_pool_counts *out);

#endif
