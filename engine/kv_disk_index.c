/* The index in memory: places by key, children by parent, and what goes first. Entries have stable
 * numbers; all arrays grow together by doubling. See kv_disk_internal.h. */
#include "kv_disk_internal.h"

#define CAPACITY_FIRST 256U
#define CAPACITY_MAX   ((uint32_t)1 << 31)
#define NONE           DISK_NONE

static uint32_t bucket_of(const uint8_t *key, uint32_t capacity) {
    uint32_t hash;
    memcpy(&hash, key, sizeof hash); /* SHA-256 bytes are spread well enough; order is no matter */
    return hash & (capacity - 1);
}

/* ---- heaps: orphans and leaves by last use -------------------------------------------------- */

static int heap_of(const struct disk_entry *entry) {
    if (entry->parent_entry == NONE && !kv_key_is_root(&entry->parent)) {
        return DISK_HEAP_ORPHANS;
    }
    return entry->children == 0 ? DISK_HEAP_LEAVES : -1;
}

static bool goes_before(const struct disk_index *index, uint32_t a, uint32_t b) {
    const struct disk_entry *left = &index->entries[a];
    const struct disk_entry *right = &index->entries[b];
    return left->used_ms != right->used_ms ? left->used_ms < right->used_ms
                                           : left->created_ms < right->created_ms;
}

static void heap_put(struct disk_index *index, int heap, uint32_t at, uint32_t entry) {
    index->heaps[heap][at] = entry;
    index->entries[entry].heap_at = at;
}

static void heap_sift(struct disk_index *index, int heap, uint32_t at) {
    uint32_t entry = index->heaps[heap][at];
    uint32_t count = index->heap_counts[heap];
    while (at > 0 && goes_before(index, entry, index->heaps[heap][(at - 1) / 2])) {
        heap_put(index, heap, at, index->heaps[heap][(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint64_t child = 2 * (uint64_t)at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count &&
            goes_before(index, index->heaps[heap][child + 1], index->heaps[heap][child])) {
            child++;
        }
        if (!goes_before(index, index->heaps[heap][child], entry)) {
            break;
        }
        heap_put(index, heap, at, index->heaps[heap][child]);
        at = (uint32_t)child;
    }
    heap_put(index, heap, at, entry);
}

static void heap_insert(struct disk_index *index, uint32_t entry) {
    int heap = heap_of(&index->entries[entry]);
    ASSERT(index->entries[entry].heap_at == NONE);
    if (heap >= 0) {
        uint32_t at = index->heap_counts[heap]++;
        ASSERT(at < index->capacity);
        heap_put(index, heap, at, entry);
        heap_sift(index, heap, at);
    }
}

/* Before what heap_of() tells from changes. */
static void heap_remove(struct disk_index *index, uint32_t entry) {
    uint32_t at = index->entries[entry].heap_at;
    if (at == NONE) {
        return;
    }
    int heap = heap_of(&index->entries[entry]);
    ASSERT(heap >= 0 && index->heaps[heap][at] == entry);
    uint32_t last = index->heaps[heap][--index->heap_counts[heap]];
    index->entries[entry].heap_at = NONE;
    if (last != entry) {
        heap_put(index, heap, at, last);
        heap_sift(index, heap, at);
    }
}

uint32_t disk_index_victim(const struct disk_index *index) {
    for (int heap = 0; heap < DISK_HEAPS; heap++) {
        if (index->heap_counts[heap] > 0) {
            return index->heaps[heap][0];
        }
    }
    return NONE;
}

uint32_t disk_index_stale(const struct disk_index *index, int64_t limit_ms) {
    for (int heap = 0; heap < DISK_HEAPS; heap++) {
        if (index->heap_counts[heap] > 0 &&
            index->entries[index->heaps[heap][0]].used_ms < limit_ms) {
            return index->heaps[heap][0];
        }
    }
    return NONE;
}

int64_t disk_index_oldest(const struct disk_index *index) {
    int64_t oldest = INT64_MAX;
    for (int heap = 0; heap < DISK_HEAPS; heap++) {
        if (index->heap_counts[heap] > 0) {
            int64_t used = index->entries[index->heaps[heap][0]].used_ms;
            oldest = used < oldest ? used : oldest;
        }
    }
    return oldest;
}

/* ---- memory --------------------------------------------------------------------------------- */

void disk_index_deinit(struct disk_index *index) {
    free(index->entries);
    free(index->by_key);
    free(index->by_parent);
    free(index->heaps[0]);
    free(index->heaps[1]);
    free(index->ghosts);
    free(index->ghost_heads);
    *index = (struct disk_index){0};
}

uint64_t disk_index_bytes(const struct disk_index *index) {
    return (uint64_t)index->capacity * (sizeof(struct disk_entry) + 4 * sizeof(uint32_t)) +
           (uint64_t)index->ghost_capacity * (sizeof(struct disk_ghost) + sizeof(uint32_t));
}

static void chain_entry(struct disk_index *index, uint32_t entry) {
    struct disk_entry *e = &index->entries[entry];
    uint32_t *head = &index->by_key[bucket_of(e->key.bytes, index->capacity)];
    e->next = *head;
    *head = entry;
    head = &index->by_parent[bucket_of(e->parent.bytes, index->capacity)];
    e->sibling_next = *head;
    e->sibling_previous = NONE;
    if (*head != NONE) {
        index->entries[*head].sibling_previous = entry;
    }
    *head = entry;
}

static bool grow_array(uint32_t **array, uint32_t capacity) {
    uint32_t *grown = realloc(*array, (size_t)capacity * sizeof **array);
    *array = grown != NULL ? grown : *array;
    return grown != NULL;
}

static result grow(struct disk_index *index, struct error *error) {
    uint32_t capacity = index->capacity == 0 ? CAPACITY_FIRST : 2 * index->capacity;
    if (index->capacity >= CAPACITY_MAX / 2) {
        FAIL(error, LIMIT, "the disk tier's index holds at most %u blocks", CAPACITY_MAX / 2);
    }
    struct disk_entry *entries =
        realloc(index->entries, (size_t)capacity * sizeof(struct disk_entry));
    index->entries = entries != NULL ? entries : index->entries;
    /* The arrays that got larger keep their content; `capacity` says what counts. */
    if (entries == NULL || !grow_array(&index->by_key, capacity) ||
        !grow_array(&index->by_parent, capacity) || !grow_array(&index->heaps[0], capacity) ||
        !grow_array(&index->heaps[1], capacity)) {
        FAIL(error, MEMORY, "no memory for %u blocks in the disk tier's index", capacity);
    }
    index->capacity = capacity;
    memset(index->by_key, 0xFF, (size_t)capacity * sizeof *index->by_key);
    memset(index->by_parent, 0xFF, (size_t)capacity * sizeof *index->by_parent);
    for (uint32_t i = 0; i < index->high; i++) { /* none is free: that is why it grows */
        chain_entry(index, i);
    }
    return OK;
}

result disk_index_reserve(struct disk_index *index, struct error *error) {
    if (index->count == 0 && index->capacity == 0) {
        index->free = NONE;
    }
    if (index->count < index->capacity) {
        return OK;
    }
    ASSERT(index->free == NONE && index->high == index->count);
    return grow(index, error);
}

/* ---- entries -------------------------------------------------------------------------------- */

uint32_t disk_index_get(const struct disk_index *index, const struct kv_key *key) {
    if (index->capacity == 0) {
        return NONE;
    }
    uint32_t at = index->by_key[bucket_of(key->bytes, index->capacity)];
    while (at != NONE && !kv_key_equals(&index->entries[at].key, key)) {
        at = index->entries[at].next;
    }
    return at;
}

static uint32_t
skip_to_child(const struct disk_index *index, uint32_t at, const struct kv_key *parent) {
    while (at != NONE && !kv_key_equals(&index->entries[at].parent, parent)) {
        at = index->entries[at].sibling_next;
    }
    return at;
}

uint32_t disk_index_child(const struct disk_index *index, const struct kv_key *parent) {
    if (index->capacity == 0) {
        return NONE;
    }
    uint32_t first = index->by_parent[bucket_of(parent->bytes, index->capacity)];
    return skip_to_child(index, first, parent);
}

uint32_t
disk_index_sibling(const struct disk_index *index, uint32_t entry, const struct kv_key *parent) {
    return skip_to_child(index, index->entries[entry].sibling_next, parent);
}

uint32_t disk_index_ring(
    const struct disk_index *index, const struct kv_key *key, const struct kv_key *parent
) {
    if (disk_index_child(index, key) == NONE) {
        return NONE; /* nearly always: parents are filed before their children */
    }
    uint32_t at = kv_key_is_root(parent) ? NONE : disk_index_get(index, parent);
    while (at != NONE && !kv_key_equals(&index->entries[at].parent, key)) {
        at = index->entries[at].parent_entry; /* ends, since there is no ring yet */
    }
    return at;
}

bool disk_index_admits(
    const struct disk_index *index, const struct kv_key *key, const struct kv_key *parent
) {
    return !kv_key_is_root(key) && !kv_key_equals(key, parent) &&
           disk_index_ring(index, key, parent) == NONE;
}

uint32_t disk_index_insert(struct disk_index *index, const struct disk_entry *entry) {
    ASSERT(index->count < index->capacity);
    ASSERT(disk_index_admits(index, &entry->key, &entry->parent));
    uint32_t at = index->free;
    if (at != NONE) {
        index->free = index->entries[at].next;
    } else {
        at = index->high++;
    }
    struct disk_entry *e = &index->entries[at];
    *e = *entry;
    e->children = 0;
    e->heap_at = NONE;
    e->parent_entry = kv_key_is_root(&e->parent) ? NONE : disk_index_get(index, &e->parent);
    if (e->parent_entry != NONE) {
        heap_remove(index, e->parent_entry);
        index->entries[e->parent_entry].children++;
        heap_insert(index, e->parent_entry);
    }
    uint32_t child = disk_index_child(index, &e->key);
    chain_entry(index, at);
    index->count++;
    for (; child != NONE; child = disk_index_sibling(index, child, &e->key)) {
        heap_remove(index, child);
        index->entries[child].parent_entry = at;
        heap_insert(index, child);
        e->children++;
    }
    heap_insert(index, at);
    return at;
}

static void unchain(struct disk_index *index, uint32_t entry) {
    struct disk_entry *e = &index->entries[entry];
    uint32_t *link = &index->by_key[bucket_of(e->key.bytes, index->capacity)];
    while (*link != entry) {
        link = &index->entries[*link].next;
    }
    *link = e->next;
    if (e->sibling_next != NONE) {
        index->entries[e->sibling_next].sibling_previous = e->sibling_previous;
    }
    if (e->sibling_previous != NONE) {
        index->entries[e->sibling_previous].sibling_next = e->sibling_next;
    } else {
        index->by_parent[bucket_of(e->parent.bytes, index->capacity)] = e->sibling_next;
    }
}

void disk_index_remove(struct disk_index *index, uint32_t entry) {
    struct disk_entry *e = &index->entries[entry];
    heap_remove(index, entry);
    unchain(index, entry);
    index->count--;
    if (e->parent_entry != NONE) {
        struct disk_entry *parent = &index->entries[e->parent_entry];
        heap_remove(index, e->parent_entry);
        parent->children--;
        /* A trunk was in use as long as what it carries. */
        parent->used_ms = parent->used_ms > e->used_ms ? parent->used_ms : e->used_ms;
        heap_insert(index, e->parent_entry);
    }
    for (uint32_t child = e->children == 0 ? NONE : disk_index_child(index, &e->key); child != NONE;
         child = disk_index_sibling(index, child, &e->key)) {
        heap_remove(index, child);
        index->entries[child].parent_entry = NONE;
        heap_insert(index, child);
    }
    e->next = index->free;
    e->segment = NONE; /* marks it free */
    index->free = entry;
}

void disk_index_touch(struct disk_index *index, uint32_t entry, int64_t used_ms) {
    struct disk_entry *e = &index->entries[entry];
    if (used_ms > e->used_ms) {
        e->used_ms = used_ms;
        int heap = heap_of(e);
        if (e->heap_at != NONE) {
            heap_sift(index, heap, e->heap_at);
        }
    }
}

/* ---- removed keys --------------------------------------------------------------------------- */

static uint32_t ghost_find(const struct disk_index *index, const uint8_t key[16]) {
    if (index->ghost_capacity == 0) {
        return NONE;
    }
    uint32_t at = index->ghost_heads[bucket_of(key, index->ghost_capacity)];
    while (at != NONE && memcmp(index->ghosts[at].key, key, 16) != 0) {
        at = index->ghosts[at].next;
    }
    return at;
}

static void ghost_chain(struct disk_index *index, uint32_t at) {
    uint32_t *head = &index->ghost_heads[bucket_of(index->ghosts[at].key, index->ghost_capacity)];
    index->ghosts[at].next = *head;
    *head = at;
}

static bool ghosts_grow(struct disk_index *index) {
    uint32_t capacity = index->ghost_capacity == 0 ? CAPACITY_FIRST : 2 * index->ghost_capacity;
    struct disk_ghost *ghosts =
        realloc(index->ghosts, (size_t)capacity * sizeof(struct disk_ghost));
    index->ghosts = ghosts != NULL ? ghosts : index->ghosts;
    if (ghosts == NULL || !grow_array(&index->ghost_heads, capacity)) {
        return false;
    }
    index->ghost_capacity = capacity;
    memset(index->ghost_heads, 0xFF, (size_t)capacity * sizeof(uint32_t));
    for (uint32_t i = 0; i < index->ghost_count; i++) {
        ghost_chain(index, i);
    }
    return true;
}

void disk_index_forget(
    struct disk_index *index, const uint8_t key[16], enum kv_prefix_miss reason
) {
    uint32_t at = ghost_find(index, key);
    if (at != NONE) {
        index->ghosts[at].reason = (uint32_t)reason;
        return;
    }
    if (index->ghost_count == index->ghost_capacity && index->ghost_capacity < DISK_GHOSTS_MAX &&
        index->ghost_at == 0 && !ghosts_grow(index) && index->ghost_capacity == 0) {
        return;
    }
    if (index->ghost_count < index->ghost_capacity) {
        at = index->ghost_count++;
    } else { /* the oldest makes place */
        at = index->ghost_at;
        index->ghost_at = (index->ghost_at + 1) % index->ghost_capacity;
        uint32_t *link =
            &index->ghost_heads[bucket_of(index->ghosts[at].key, index->ghost_capacity)];
        while (*link != at) {
            link = &index->ghosts[*link].next;
        }
        *link = index->ghosts[at].next;
    }
    memcpy(index->ghosts[at].key, key, 16);
    index->ghosts[at].reason = (uint32_t)reason;
    ghost_chain(index, at);
}

enum kv_prefix_miss disk_index_reason(const struct disk_index *index, const struct kv_key *key) {
    uint32_t at = ghost_find(index, key->bytes);
    return at == NONE ? KV_PREFIX_MISS_NEVER_COMPUTED
                      : (enum kv_prefix_miss)index->ghosts[at].reason;
}

/* ---- for tests ------------------------------------------------------------------------------ */

static result validate_entry(const struct disk_index *index, uint32_t at, struct error *error) {
    const struct disk_entry *e = &index->entries[at];
    uint32_t parent = kv_key_is_root(&e->parent) ? NONE : disk_index_get(index, &e->parent);
    uint32_t children = 0;
    for (uint32_t child = disk_index_child(index, &e->key); child != NONE;
         child = disk_index_sibling(index, child, &e->key)) {
        children++;
    }
    if (kv_key_is_root(&e->key) || kv_key_equals(&e->key, &e->parent)) {
        FAIL(error, CORRUPT, "entry %u: the key of the root or of its own parent", at);
    }
    int heap = heap_of(e);
    if (disk_index_get(index, &e->key) != at || e->parent_entry != parent ||
        e->children != children || (heap < 0) != (e->heap_at == NONE)) {
        FAIL(error, CORRUPT, "entry %u: links, %u children of %u", at, e->children, children);
    }
    if (heap >= 0 &&
        (e->heap_at >= index->heap_counts[heap] || index->heaps[heap][e->heap_at] != at ||
         (e->heap_at > 0 && goes_before(index, at, index->heaps[heap][(e->heap_at - 1) / 2])))) {
        FAIL(error, CORRUPT, "entry %u: heap %d at %u", at, heap, e->heap_at);
    }
    uint32_t steps = 0;
    for (parent = e->parent_entry; parent != NONE; parent = index->entries[parent].parent_entry) {
        if (++steps >= index->count) {
            FAIL(error, CORRUPT, "entry %u: a ring of parents", at);
        }
    }
    return OK;
}

result disk_index_validate(const struct disk_index *index, struct error *error) {
    uint32_t count = 0;
    uint32_t in_heaps = 0;
    for (uint32_t i = 0; i < index->high; i++) {
        if (index->entries[i].segment != NONE) {
            TRY(validate_entry(index, i, error));
            count++;
            in_heaps += index->entries[i].heap_at != NONE ? 1 : 0;
        }
    }
    uint32_t heaps = index->heap_counts[DISK_HEAP_ORPHANS] + index->heap_counts[DISK_HEAP_LEAVES];
    if (count != index->count || in_heaps != heaps) {
        FAIL(
            error,
            CORRUPT,
            "%u entries, not %u; %u in heaps, not %u",
            count,
            index->count,
            in_heaps,
            heaps
        );
    }
    return OK;
}
