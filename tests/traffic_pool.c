/* Blocks by hash with the usual orders of eviction. See traffic_pool.h. */
#include "traffic_pool.h"

#define NOWHERE TRAFFIC_NO_BLOCK

struct entry {
    uint64_t key;
    int64_t rank; /* larger goes first */
    int32_t chain_next;
    int32_t parent;   /* in the orders that keep trunks */
    int32_t children; /* entries whose parent it is */
    int32_t users;
    int32_t slot; /* in the heap, or NOWHERE */
    int32_t newer, older;
};

struct traffic_pool {
    enum traffic_order order;
    int32_t capacity, count;
    struct entry *entries;
    int32_t *buckets;
    uint32_t bucket_mask;
    int32_t free; /* chained by chain_next */
    int32_t newest, oldest;
    int32_t *heap; /* entries that may go */
    int32_t heap_count;
    int64_t use;
    struct traffic_pool_counts counts;
};

result traffic_pool_create(
    struct traffic_pool **out, int32_t blocks, enum traffic_order order, struct error *error
) {
    ASSERT(blocks > 0);
    struct traffic_pool *pool = calloc(1, sizeof *pool);
    uint32_t buckets = 1;
    while (buckets < (uint32_t)blocks) {
        buckets *= 2;
    }
    if (pool != NULL) {
        pool->entries = calloc((size_t)blocks, sizeof *pool->entries);
        pool->buckets = calloc(buckets, sizeof *pool->buckets);
        pool->heap = calloc((size_t)blocks, sizeof *pool->heap);
    }
    if (pool == NULL || pool->entries == NULL || pool->buckets == NULL || pool->heap == NULL) {
        traffic_pool_destroy(pool);
        FAIL(error, MEMORY, "no memory for a pool of %d blocks", blocks);
    }
    memset(pool->buckets, 0xFF, buckets * sizeof *pool->buckets);
    pool->order = order;
    pool->capacity = blocks;
    pool->bucket_mask = buckets - 1;
    pool->newest = NOWHERE;
    pool->oldest = NOWHERE;
    for (int32_t i = 0; i < blocks; i++) {
        pool->entries[i].chain_next = i + 1 < blocks ? i + 1 : NOWHERE;
    }
    *out = pool;
    return OK;
}

void traffic_pool_destroy(struct traffic_pool *pool) {
    if (pool != NULL) {
        free(pool->heap);
        free(pool->buckets);
        free(pool->entries);
        free(pool);
    }
}

static int32_t find(const struct traffic_pool *pool, uint64_t key) {
    int32_t at = pool->buckets[key & pool->bucket_mask];
    while (at != NOWHERE && pool->entries[at].key != key) {
        at = pool->entries[at].chain_next;
    }
    return at;
}

bool traffic_pool_has(const struct traffic_pool *pool, uint64_t key) {
    return find(pool, key) != NOWHERE;
}

int32_t traffic_pool_match(const struct traffic_pool *pool, const uint64_t *keys, int32_t count) {
    int32_t matched = 0;
    while (matched < count && find(pool, keys[matched]) != NOWHERE) {
        matched++;
    }
    return matched;
}

/* ---- the heap of entries that may go ---- */

static void place(struct traffic_pool *pool, int32_t slot, int32_t at) {
    pool->heap[slot] = at;
    pool->entries[at].slot = slot;
}

static void sift(struct traffic_pool *pool, int32_t slot) {
    int32_t at = pool->heap[slot];
    int64_t rank = pool->entries[at].rank;
    while (slot > 0 && rank > pool->entries[pool->heap[(slot - 1) / 2]].rank) {
        place(pool, slot, pool->heap[(slot - 1) / 2]);
        slot = (slot - 1) / 2;
    }
    for (;;) {
        int32_t child = 2 * slot + 1;
        if (child + 1 < pool->heap_count &&
            pool->entries[pool->heap[child + 1]].rank > pool->entries[pool->heap[child]].rank) {
            child++;
        }
        if (child >= pool->heap_count || pool->entries[pool->heap[child]].rank <= rank) {
            break;
        }
        place(pool, slot, pool->heap[child]);
        slot = child;
    }
    place(pool, slot, at);
}

/* Puts the entry into the heap, takes it out or moves it, as its state wants. */
static void order_again(struct traffic_pool *pool, int32_t at) {
    struct entry *entry = &pool->entries[at];
    bool may_go = entry->children == 0 && entry->users == 0;
    if (may_go) {
        if (entry->slot == NOWHERE) {
            place(pool, pool->heap_count++, at);
        }
        sift(pool, entry->slot);
    } else if (entry->slot != NOWHERE) {
        int32_t slot = entry->slot;
        entry->slot = NOWHERE;
        int32_t last = pool->heap[--pool->heap_count];
        if (last != at) {
            place(pool, slot, last);
            sift(pool, slot);
        }
    }
}

/* ---- the list by use ---- */

static void list_remove(struct traffic_pool *pool, int32_t at) {
    struct entry *entry = &pool->entries[at];
    *(entry->newer == NOWHERE ? &pool->newest : &pool->entries[entry->newer].older) = entry->older;
    *(entry->older == NOWHERE ? &pool->oldest : &pool->entries[entry->older].newer) = entry->newer;
}

static void list_push(struct traffic_pool *pool, int32_t at) {
    struct entry *entry = &pool->entries[at];
    entry->older = pool->newest;
    entry->newer = NOWHERE;
    *(pool->newest == NOWHERE ? &pool->oldest : &pool->entries[pool->newest].newer) = at;
    pool->newest = at;
}

/* ---- changes ---- */

static bool evict(struct traffic_pool *pool) {
    bool keeps_trunks = pool->order != TRAFFIC_LRU;
    if (keeps_trunks && pool->heap_count == 0) {
        return false;
    }
    int32_t at = keeps_trunks ? pool->heap[0] : pool->oldest;
    struct entry *entry = &pool->entries[at];
    int32_t *link = &pool->buckets[entry->key & pool->bucket_mask];
    while (*link != at) {
        link = &pool->entries[*link].chain_next;
    }
    *link = entry->chain_next;
    if (keeps_trunks) {
        entry->users = 1; /* so that it leaves the heap */
        order_again(pool, at);
        if (entry->parent != NOWHERE) {
            pool->entries[entry->parent].children--;
            order_again(pool, entry->parent);
        }
    } else {
        list_remove(pool, at);
    }
    entry->chain_next = pool->free;
    pool->free = at;
    pool->count--;
    pool->counts.evicted++;
    return true;
}

static int32_t add(struct traffic_pool *pool, uint64_t key, int32_t parent) {
    if (pool->free == NOWHERE && !evict(pool)) {
        pool->counts.refused++;
        return NOWHERE;
    }
    int32_t at = pool->free;
    struct entry *entry = &pool->entries[at];
    pool->free = entry->chain_next;
    int32_t *head = &pool->buckets[key & pool->bucket_mask];
    *entry = (struct entry){.key = key, .chain_next = *head, .parent = parent, .slot = NOWHERE};
    *head = at;
    pool->count++;
    pool->counts.added++;
    if (pool->order == TRAFFIC_LRU) {
        list_push(pool, at);
    } else if (parent != NOWHERE) {
        pool->entries[parent].children++;
    }
    return at;
}

/* Marks a use and keeps the entry from going; the one before it need not be kept any more. */
static void step_to(struct traffic_pool *pool, int32_t at, int32_t before, int64_t rank) {
    pool->entries[at].rank = rank;
    pool->entries[at].users++;
    order_again(pool, at);
    if (before != NOWHERE) {
        pool->entries[before].users--;
        order_again(pool, before);
    }
}

int32_t traffic_pool_use(struct traffic_pool *pool, int32_t held, const struct traffic_path *path) {
    int32_t last = held;
    for (int32_t i = 0; i < path->count; i++) {
        int32_t at = find(pool, path->keys[i]);
        if (at == NOWHERE) {
            at = add(pool, path->keys[i], last);
        } else if (pool->order == TRAFFIC_LRU) {
            list_remove(pool, at);
            list_push(pool, at);
        }
        if (at == NOWHERE) {
            break;
        }
        if (pool->order != TRAFFIC_LRU) {
            bool is_ideal = pool->order == TRAFFIC_IDEAL;
            step_to(pool, at, last, is_ideal ? path->next_uses[i] : -++pool->use);
        }
        last = at;
    }
    return pool->order == TRAFFIC_LRU ? TRAFFIC_NO_BLOCK : last;
}

void traffic_pool_drop(struct traffic_pool *pool, int32_t held) {
    if (held != TRAFFIC_NO_BLOCK) {
        ASSERT(pool->entries[held].users > 0);
        pool->entries[held].users--;
        order_again(pool, held);
    }
}

void traffic_pool_count(const struct traffic_pool *pool, struct traffic_pool_counts *out) {
    *out = pool->counts;
}
