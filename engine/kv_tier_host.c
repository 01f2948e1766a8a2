/* The host pool: blocks by key in fixed memory. See kv_tier_internal.h.
 *
 * Two hash tables over the slots, by key and by parent key, tell how many blocks in the pool follow a
 * block whatever the order of arrival; only blocks that nothing follows may go. Those stand in a
 * heap by their last use. Keys are SHA-256 digests, so their first words serve as hashes. */
#include "kv_tier_internal.h"

#include <sys/mman.h>
#include <unistd.h>

#define NONE (-1)

static uint64_t first_word(const struct kv_key *key) {
    uint64_t word;
    memcpy(&word, key->bytes, sizeof word);
    return word;
}

static uint32_t bucket(const struct kv_host *host, const struct kv_key *key) {
    return (uint32_t)first_word(key) & host->mask;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint32_t buckets_for(int32_t capacity) {
    uint32_t buckets = 16;
    while (buckets < (uint32_t)capacity) {
        buckets *= 2;
    }
    return buckets;
}

static uint64_t taken_by(size_t block_bytes, int32_t capacity) {
    uint64_t slot = block_bytes + sizeof(struct kv_host_slot) + sizeof(int32_t);
    uint64_t per_bucket = 2 * sizeof(int32_t) + sizeof(uint64_t);
    return (uint64_t)capacity * slot + buckets_for(capacity) * per_bucket;
}

int32_t kv_host_capacity(size_t block_bytes, uint64_t bytes, uint64_t *taken) {
    int32_t least = 0;
    int32_t most = KV_TIER_HOST_BLOCKS_MAX;
    while (least < most) { /* the greatest number that fits */
        int32_t middle = least + (most - least + 1) / 2;
        if (taken_by(block_bytes, middle) <= bytes) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    *taken = least == 0 ? 0 : taken_by(block_bytes, least);
    return least;
}

/* Blocks are copied from anywhere in the pool; with small pages a copy would wait for page table
 * walks. A hint: nothing depends on it. */
static void ask_for_huge_pages(void *memory, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)memory + bytes) / page * page;
    if (first < last) {
        (void)madvise((uint8_t *)memory + (first - (uintptr_t)memory), last - first, MADV_HUGEPAGE);
    }
}

result
kv_host_init(struct kv_host *host, size_t block_bytes, int32_t capacity, struct error *error) {
    ASSERT(capacity > 0 && capacity <= KV_TIER_HOST_BLOCKS_MAX);
    uint32_t buckets = buckets_for(capacity);
    size_t slots = (size_t)capacity;
    *host = (struct kv_host){
        .block_bytes = block_bytes,
        .capacity = capacity,
        .mask = buckets - 1,
        .bytes = calloc(slots, block_bytes), /* its pages come as they are used */
        .slots = calloc(slots, sizeof *host->slots),
        .by_key = calloc(buckets, sizeof *host->by_key),
        .by_parent = calloc(buckets, sizeof *host->by_parent),
        .heap = calloc(slots, sizeof *host->heap),
        .ghosts = calloc(buckets, sizeof *host->ghosts),
    };
    if (host->bytes == NULL || host->slots == NULL || host->by_key == NULL ||
        host->by_parent == NULL || host->heap == NULL || host->ghosts == NULL) {
        FAIL(
            error,
            MEMORY,
            "no memory for a host pool of %d blocks of %zu bytes",
            capacity,
            block_bytes
        );
    }
    ask_for_huge_pages(host->bytes, slots * block_bytes);
    memset(host->by_key, 0xFF, buckets * sizeof *host->by_key);
    memset(host->by_parent, 0xFF, buckets * sizeof *host->by_parent);
    for (int32_t i = 0; i < capacity; i++) {
        host->slots[i].after_key = i + 1 < capacity ? i + 1 : NONE;
        host->slots[i].heap_at = NONE;
    }
    return OK;
}

void kv_host_deinit(struct kv_host *host) {
    free(host->ghosts);
    free(host->heap);
    free(host->by_parent);
    free(host->by_key);
    free(host->slots);
    free(host->bytes);
    *host = (struct kv_host){0};
}

/* ---- those that may go ----------------------------------------------------------------------- */

static bool goes_before(const struct kv_host *host, int32_t a, int32_t b) {
    uint64_t used_a = host->slots[a].used;
    uint64_t used_b = host->slots[b].used;
    return used_a < used_b || (used_a == used_b && a < b);
}

static void heap_set(struct kv_host *host, int32_t at, int32_t slot) {
    host->heap[at] = slot;
    host->slots[slot].heap_at = at;
}

static void heap_rise(struct kv_host *host, int32_t at) {
    int32_t slot = host->heap[at];
    while (at > 0 && goes_before(host, slot, host->heap[(at - 1) / 2])) {
        heap_set(host, at, host->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(host, at, slot);
}

static void heap_sink(struct kv_host *host, int32_t at) {
    int32_t slot = host->heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= host->heap_count) {
            break;
        }
        if (child + 1 < host->heap_count &&
            goes_before(host, host->heap[child + 1], host->heap[child])) {
            child++;
        }
        if (!goes_before(host, host->heap[child], slot)) {
            break;
        }
        heap_set(host, at, host->heap[child]);
        at = child;
    }
    heap_set(host, at, slot);
}

static void heap_remove(struct kv_host *host, int32_t slot) {
    int32_t at = host->slots[slot].heap_at;
    host->slots[slot].heap_at = NONE;
    int32_t last = host->heap[--host->heap_count];
    if (last != slot) {
        heap_set(host, at, last);
        heap_rise(host, at);
        heap_sink(host, host->slots[last].heap_at);
    }
}

/* Puts the slot among those that may go, or takes it out, as its state has become. */
static void weigh(struct kv_host *host, int32_t slot) {
    struct kv_host_slot *s = &host->slots[slot];
    bool may_go = s->is_used && s->children == 0 && s->pins == 0;
    if (may_go == (s->heap_at != NONE)) {
        return;
    }
    if (may_go) {
        heap_set(host, host->heap_count++, slot);
        heap_rise(host, host->heap_count - 1);
    } else {
        heap_remove(host, slot);
    }
}

/* ---- use ------------------------------------------------------------------------------------- */

int32_t kv_host_find(const struct kv_host *host, const struct kv_key *key) {
    if (host->capacity == 0) {
        return NONE;
    }
    int32_t slot = host->by_key[bucket(host, key)];
    while (slot != NONE && !kv_key_equals(&host->slots[slot].about.key, key)) {
        slot = host->slots[slot].after_key;
    }
    return slot;
}

bool kv_host_remembers(const struct kv_host *host, const struct kv_key *key) {
    return host->capacity > 0 && host->ghosts[bucket(host, key)] == first_word(key) &&
           first_word(key) != 0;
}

void kv_host_touch(struct kv_host *host, int32_t slot) {
    host->slots[slot].used = ++host->tick;
    if (host->slots[slot].heap_at != NONE) {
        heap_sink(host, host->slots[slot].heap_at); /* its use only became later */
    }
}

void kv_host_pin(struct kv_host *host, int32_t slot) {
    ASSERT(host->slots[slot].is_used);
    host->slots[slot].pins++;
    weigh(host, slot);
}

void kv_host_unpin(struct kv_host *host, int32_t slot) {
    ASSERT(host->slots[slot].pins > 0);
    host->slots[slot].pins--;
    weigh(host, slot);
}

uint8_t *kv_host_bytes(const struct kv_host *host, int32_t slot) {
    return host->bytes + (size_t)slot * host->block_bytes;
}

static void unchain_key(struct kv_host *host, int32_t slot) {
    int32_t *link = &host->by_key[bucket(host, &host->slots[slot].about.key)];
    while (*link != slot) {
        ASSERT(*link != NONE);
        link = &host->slots[*link].after_key;
    }
    *link = host->slots[slot].after_key;
}

/* Doubly linked: all first blocks of prompts are in one chain. */
static void unchain_parent(struct kv_host *host, int32_t slot) {
    const struct kv_host_slot *s = &host->slots[slot];
    if (s->after_parent != NONE) {
        host->slots[s->after_parent].before_parent = s->before_parent;
    }
    if (s->before_parent != NONE) {
        host->slots[s->before_parent].after_parent = s->after_parent;
    } else {
        host->by_parent[bucket(host, &s->about.parent)] = s->after_parent;
    }
}

static void chain(struct kv_host *host, int32_t slot) {
    struct kv_host_slot *s = &host->slots[slot];
    int32_t *by_key = &host->by_key[bucket(host, &s->about.key)];
    int32_t *by_parent = &host->by_parent[bucket(host, &s->about.parent)];
    s->after_key = *by_key;
    *by_key = slot;
    s->before_parent = NONE;
    s->after_parent = *by_parent;
    if (*by_parent != NONE) {
        host->slots[*by_parent].before_parent = slot;
    }
    *by_parent = slot;
}

static void add_to_parent(struct kv_host *host, const struct kv_key *parent, int32_t change) {
    int32_t slot = kv_host_find(host, parent);
    if (slot != NONE) {
        host->slots[slot].children += change;
        ASSERT(host->slots[slot].children >= 0);
        weigh(host, slot);
    }
}

bool kv_host_evict(struct kv_host *host) {
    if (host->heap_count == 0) {
        return false;
    }
    int32_t slot = host->heap[0];
    struct kv_host_slot *s = &host->slots[slot];
    heap_remove(host, slot);
    unchain_key(host, slot);
    unchain_parent(host, slot);
    add_to_parent(host, &s->about.parent, -1);
    host->ghosts[bucket(host, &s->about.key)] = first_word(&s->about.key);
    s->is_used = false;
    s->after_key = host->free;
    host->free = slot;
    host->count--;
    host->evicted++;
    return true;
}

int32_t kv_host_insert(struct kv_host *host, const struct kv_tier_record *record) {
    if (host->free == NONE && !kv_host_evict(host)) {
        host->refused++;
        return NONE;
    }
    int32_t slot = host->free;
    struct kv_host_slot *s = &host->slots[slot];
    host->free = s->after_key;
    kv_about_fill(&s->about, record);
    chain(host, slot);
    s->is_used = true;
    s->pins = 0;
    s->used = ++host->tick;
    s->children = 0;
    int32_t child = host->by_parent[bucket(host, &record->key)];
    for (; child != NONE; child = host->slots[child].after_parent) {
        s->children += kv_key_equals(&host->slots[child].about.parent, &record->key) ? 1 : 0;
    }
    add_to_parent(host, &record->parent, 1);
    weigh(host, slot);
    host->count++;
    host->put++;
    return slot;
}

int32_t kv_host_lineages(
    const struct kv_host *host,
    const struct kv_key *parent,
    const struct kv_lineage *root,
    struct kv_lineage *out,
    int32_t count,
    int32_t capacity
) {
    if (host->capacity == 0) {
        return count;
    }
    int32_t slot = host->by_parent[bucket(host, parent)];
    for (int32_t i = 0; slot != NONE && count < capacity && i < KV_PREFIX_SIBLINGS_SCANNED; i++) {
        const struct kv_host_slot *s = &host->slots[slot];
        bool is_new =
            kv_key_equals(&s->about.parent, parent) && !kv_lineage_equals(&s->about.lineage, root);
        for (int32_t j = 0; is_new && j < count; j++) {
            is_new = !kv_lineage_equals(&s->about.lineage, &out[j]);
        }
        if (is_new) {
            out[count++] = s->about.lineage;
        }
        slot = s->after_parent;
    }
    return count;
}
