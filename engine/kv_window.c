/* The snapshot pool: fixed slots in one mapping, their records, an index by node. See kv_window.h.
 *
 * Records are few (at most 1,024), so whoever has to go is found by looking at all of them; only the
 * lookup by node, which every admission does, goes through a hash table. */
#include "kv_window.h"

#include <errno.h>
#include <sys/mman.h>

#define PAGE_BYTES      ((size_t)4096) /* of the accounting; larger pages only round further up */
#define EXPECTED_MAX_MS 3600000 /* memory is not held longer than this for an announced return */

struct slot {
    struct kv_snapshot snapshot; /* id 0: none */
    uint32_t generation;
    int32_t next; /* in its bucket, or in the free list; -1: none */
    size_t touched;
    /* A parked state, which a snapshot may share when its sequence ended and a fork did not. */
    uint64_t ticket; /* 0: none */
    int32_t holders; /* sequences that have it */
    int32_t position;
    int64_t expected_ms, parked_ms;
};

struct kv_window {
    struct kv_window_options options;
    struct kv_window_counts counts;
    struct slot *slots; /* [counts.slots] */
    int32_t *buckets;   /* [bucket_mask + 1] first slot; -1: none */
    uint64_t bucket_mask;
    int32_t free;           /* first free slot; -1: none */
    uint8_t *memory;        /* [slots, state_bytes], mapped */
    size_t map_bytes;       /* 0: none */
    int64_t next_expiry_ms; /* no snapshot expires before */
};

static uint64_t slots_of(const struct kv_window_options *options) {
    uint64_t state = options->cache->layout.state_bytes;
    uint64_t most = options->count_max > 0 && options->count_max < KV_WINDOW_COUNT_MAX
                        ? (uint64_t)options->count_max
                        : KV_WINDOW_COUNT_MAX;
    uint64_t fit = state == 0 ? 0 : options->bytes_max / state;
    return fit < most ? fit : most;
}

static uint64_t bucket_count(uint64_t slots) {
    uint64_t count = 1;
    while (count < 2 * slots) {
        count *= 2;
    }
    return count;
}

static size_t rings_end(const struct kv_layout *layout) {
    return layout->state_bytes - (size_t)layout->pending_count * layout->pending_bytes;
}

/* Rings of layers 0 .. E. */
static size_t encoder_rings(const struct kv_window_options *options) {
    const struct kv_layout *layout = &options->cache->layout;
    size_t bytes = (size_t)(options->encoder_layers + 1) * layout->ring_bytes;
    return bytes < rings_end(layout) ? bytes : rings_end(layout);
}

void kv_window_measure(const struct kv_window_options *options, struct kv_window_size *out) {
    const struct kv_layout *layout = &options->cache->layout;
    uint64_t slots = slots_of(options);
    uint64_t bytes = slots * layout->state_bytes;
    *out = (struct kv_window_size){
        .slots = (int32_t)slots,
        .slot_bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES,
        .encoder_bytes = encoder_rings(options) + (layout->state_bytes - rings_end(layout)),
    };
    out->total_bytes = out->slot_bytes + sizeof(struct kv_window) + slots * sizeof(struct slot) +
                       bucket_count(slots) * sizeof(int32_t);
}

static result window_fill(struct kv_window *pool, struct error *error) {
    struct kv_window_size size;
    kv_window_measure(&pool->options, &size);
    size_t slots = (size_t)size.slots;
    size_t buckets = (size_t)bucket_count(slots);
    pool->bucket_mask = buckets - 1;
    pool->buckets = malloc(buckets * sizeof *pool->buckets);
    pool->slots = slots == 0 ? NULL : calloc(slots, sizeof *pool->slots);
    if (pool->buckets == NULL || (pool->slots == NULL && slots > 0)) {
        FAIL(error, MEMORY, "no memory for the records of %zu window snapshots", slots);
    }
    for (size_t b = 0; b < buckets; b++) {
        pool->buckets[b] = -1;
    }
    pool->free = -1;
    for (size_t i = slots; i-- > 0;) {
        pool->slots[i].next = pool->free;
        pool->free = (int32_t)i;
    }
    if (slots > 0) {
        /* Not reserved: it is a ceiling, and is often never reached. */
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *memory = mmap(NULL, size.slot_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) {
            int code = errno;
            return error_set(
                error,
                RESULT_MEMORY,
                code,
                __FILE__,
                __LINE__,
                "no memory for %zu window snapshots of %zu bytes",
                slots,
                pool->options.cache->layout.state_bytes
            );
        }
        pool->memory = memory;
        pool->map_bytes = size.slot_bytes;
    }
    pool->counts.slots = size.slots;
    return OK;
}

result kv_window_create(
    struct kv_window **out, const struct kv_window_options *options, struct error *error
) {
    ASSERT(options->cache != NULL);
    ASSERT(options->encoder_layers >= 0);
    ASSERT(options->count_max >= 0);
    ASSERT(options->lifetime_ms >= 0);
    struct kv_window *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        FAIL(error, MEMORY, "no memory for the pool of window snapshots");
    }
    pool->options = *options;
    pool->next_expiry_ms = INT64_MAX;
    if (options->lifetime_ms == 0) {
        pool->options.lifetime_ms = KV_WINDOW_LIFETIME_MS;
    }
    result filled = window_fill(pool, error);
    if (is_failed(filled)) {
        kv_window_destroy(pool);
        return filled;
    }
    *out = pool;
    return OK;
}

void kv_window_destroy(struct kv_window *pool) {
    if (pool == NULL) {
        return;
    }
    kv_window_drop_all(pool);
    if (pool->map_bytes > 0) {
        int unmapped = munmap(pool->memory, pool->map_bytes);
        ASSERT(unmapped == 0);
    }
    free(pool->slots);
    free(pool->buckets);
    free(pool);
}

/* ---- the index ------------------------------------------------------------------------------- */

static int32_t *bucket_of(const struct kv_window *pool, uint64_t node) {
    uint64_t mixed = node * UINT64_C(0x9e3779b97f4a7c15);
    return &pool->buckets[(mixed ^ mixed >> 32) & pool->bucket_mask];
}

static bool lies_before(const struct kv_snapshot *a, const struct kv_snapshot *b) {
    return a->position != b->position ? a->position > b->position : a->kind < b->kind;
}

static void index_insert(struct kv_window *pool, int32_t number) {
    struct slot *slot = &pool->slots[number];
    int32_t *at = bucket_of(pool, slot->snapshot.node);
    while (*at >= 0 && lies_before(&pool->slots[*at].snapshot, &slot->snapshot)) {
        at = &pool->slots[*at].next;
    }
    slot->next = *at;
    *at = number;
}

static void index_remove(struct kv_window *pool, int32_t number) {
    int32_t *at = bucket_of(pool, pool->slots[number].snapshot.node);
    while (*at != number) {
        ASSERT(*at >= 0);
        at = &pool->slots[*at].next;
    }
    *at = pool->slots[number].next;
}

/* The slot of a parked state, or -1. */
static int32_t slot_of_ticket(const struct kv_window *pool, uint64_t ticket) {
    uint64_t number = (ticket & UINT32_MAX) - 1;
    if (ticket == 0 || number >= (uint64_t)pool->counts.slots) {
        return -1;
    }
    return pool->slots[number].ticket == ticket ? (int32_t)number : -1;
}

/* The slot of a live snapshot, or -1. */
static int32_t slot_of(const struct kv_window *pool, uint64_t id) {
    uint64_t number = (id & UINT32_MAX) - 1;
    if (id == 0 || number >= (uint64_t)pool->counts.slots) {
        return -1;
    }
    return pool->slots[number].snapshot.id == id ? (int32_t)number : -1;
}

/* ---- lifetimes ------------------------------------------------------------------------------- */

static int64_t add_ms(int64_t time_ms, int64_t more_ms) {
    int64_t sum;
    return __builtin_add_overflow(time_ms, more_ms, &sum) ? INT64_MAX : sum;
}

static int64_t expiry_at(const struct kv_window *pool, int64_t used_ms, int64_t expected_ms) {
    int64_t base = used_ms;
    if (expected_ms != INT64_MAX && expected_ms > base) {
        int64_t latest = add_ms(base, EXPECTED_MAX_MS);
        base = expected_ms < latest ? expected_ms : latest;
    }
    return add_ms(base, pool->options.lifetime_ms);
}

static int64_t expiry_of(const struct kv_window *pool, const struct kv_snapshot *snapshot) {
    return expiry_at(pool, snapshot->used_ms, snapshot->expected_ms);
}

static bool
is_expired(const struct kv_window *pool, const struct kv_snapshot *snapshot, int64_t now_ms) {
    return expiry_of(pool, snapshot) <= now_ms;
}

static void free_unused(struct kv_window *pool, int32_t number) {
    struct slot *slot = &pool->slots[number];
    if (slot->snapshot.id == 0 && slot->ticket == 0) {
        slot->next = pool->free;
        pool->free = number;
    }
}

/* Drops the slot's snapshot. Returns whether its tail block became free. */
static bool drop_snapshot(struct kv_window *pool, int32_t number) {
    struct slot *slot = &pool->slots[number];
    bool freed = false;
    ASSERT(slot->snapshot.id != 0);
    index_remove(pool, number);
    if (slot->snapshot.tail_block >= 0) {
        freed = kv_block_drop(pool->options.cache, slot->snapshot.tail_block);
        pool->counts.blocks--;
    }
    if (slot->snapshot.kind == KV_SNAPSHOT_FULL) {
        pool->counts.full--;
    } else {
        pool->counts.encoder--;
    }
    slot->snapshot.id = 0;
    free_unused(pool, number);
    return freed;
}

/* One holder less. */
static void leave(struct kv_window *pool, int32_t number) {
    struct slot *slot = &pool->slots[number];
    ASSERT(slot->holders > 0);
    if (--slot->holders == 0) {
        slot->ticket = 0;
        pool->counts.parked--;
        free_unused(pool, number);
    }
}

static void drop_parked(struct kv_window *pool, int32_t number) {
    pool->counts.parks_lost++;
    while (pool->slots[number].holders > 0) {
        leave(pool, number);
    }
}

int64_t kv_window_advance(struct kv_window *pool, int64_t now_ms) {
    if (now_ms < pool->next_expiry_ms) {
        return pool->next_expiry_ms;
    }
    pool->next_expiry_ms = INT64_MAX;
    for (int32_t i = 0; i < pool->counts.slots; i++) {
        const struct kv_snapshot *snapshot = &pool->slots[i].snapshot;
        if (snapshot->id == 0) {
            continue;
        }
        int64_t expiry_ms = expiry_of(pool, snapshot);
        if (expiry_ms <= now_ms) {
            (void)drop_snapshot(pool, i);
            pool->counts.expired++;
        } else if (expiry_ms < pool->next_expiry_ms) {
            pool->next_expiry_ms = expiry_ms;
        }
    }
    return pool->next_expiry_ms;
}

/* ---- who goes -------------------------------------------------------------------------------- */

/* What makes room for whom: later ones outlive earlier ones. */
enum rank { RANK_ENCODER, RANK_LAPSED, RANK_FULL, RANK_PARKED };
struct claim {
    enum rank rank;
    int64_t expected_ms, used_ms;
};

static struct claim
claim_of(const struct kv_window *pool, const struct slot *slot, int64_t now_ms) {
    const struct kv_snapshot *snapshot = &slot->snapshot;
    if (slot->ticket == 0 || snapshot->id != 0) {
        bool is_shared = slot->ticket != 0;
        return (struct claim){
            .rank = is_shared                               ? RANK_PARKED
                    : snapshot->kind == KV_SNAPSHOT_ENCODER ? RANK_ENCODER
                                                            : RANK_FULL,
            .expected_ms = is_shared ? slot->expected_ms : snapshot->expected_ms,
            .used_ms = is_shared ? slot->parked_ms : snapshot->used_ms,
        };
    }
    bool has_lapsed = expiry_at(pool, slot->parked_ms, slot->expected_ms) <= now_ms;
    return (struct claim){
        .rank = has_lapsed ? RANK_LAPSED : RANK_PARKED,
        .expected_ms = slot->expected_ms,
        .used_ms = slot->parked_ms,
    };
}

static bool goes_before(const struct claim *a, const struct claim *b) {
    if (a->rank != b->rank) {
        return a->rank < b->rank;
    }
    if (a->expected_ms != b->expected_ms) {
        return a->expected_ms > b->expected_ms;
    }
    return a->used_ms < b->used_ms;
}

/* The slot in use that goes first, its claim no stronger than `most`; -1: none. */
static int32_t victim(const struct kv_window *pool, const struct claim *most, int64_t now_ms) {
    int32_t best = -1;
    struct claim least = *most;
    for (int32_t i = 0; i < pool->counts.slots; i++) {
        const struct slot *slot = &pool->slots[i];
        if (slot->snapshot.id == 0 && slot->ticket == 0) {
            continue;
        }
        struct claim claim = claim_of(pool, slot, now_ms);
        if (best < 0 ? !goes_before(most, &claim) : goes_before(&claim, &least)) {
            best = i;
            least = claim;
        }
    }
    return best;
}

/* Makes a slot free, if need be by dropping what goes before `claim`. False: all goes later. */
static bool make_room(struct kv_window *pool, const struct claim *claim, int64_t now_ms) {
    if (pool->free >= 0) {
        return true;
    }
    int32_t number = pool->counts.slots == 0 ? -1 : victim(pool, claim, now_ms);
    if (number < 0) {
        return false;
    }
    if (pool->slots[number].snapshot.id != 0) {
        (void)drop_snapshot(pool, number);
        pool->counts.evicted++;
    }
    if (pool->slots[number].ticket != 0) {
        drop_parked(pool, number);
    }
    ASSERT(pool->free == number);
    return true;
}

/* The snapshot with a block that goes first; -1: none. */
static int32_t block_victim(const struct kv_window *pool, int64_t now_ms) {
    int32_t best = -1;
    struct claim least = {0};
    for (int32_t i = 0; i < pool->counts.slots; i++) {
        const struct slot *slot = &pool->slots[i];
        if (slot->snapshot.id != 0 && slot->snapshot.tail_block >= 0) {
            struct claim claim = claim_of(pool, slot, now_ms);
            if (best < 0 || goes_before(&claim, &least)) {
                best = i;
                least = claim;
            }
        }
    }
    return best;
}

int32_t kv_window_release_blocks(struct kv_window *pool, int32_t blocks, int64_t now_ms) {
    (void)kv_window_advance(pool, now_ms);
    int32_t freed = 0;
    while (freed < blocks) {
        int32_t number = block_victim(pool, now_ms);
        if (number < 0) {
            break;
        }
        freed += drop_snapshot(pool, number);
        pool->counts.evicted++;
    }
    return freed;
}

/* ---- capture --------------------------------------------------------------------------------- */

static struct kv_snapshot describe(
    const struct kv_window *pool,
    const struct kv_sequence *sequence,
    const struct kv_snapshot *about,
    int64_t now_ms
) {
    const struct kv_cache *cache = pool->options.cache;
    int32_t position = sequence->computed;
    int32_t tail = position % KV_BLOCK_TOKENS;
    struct kv_snapshot snapshot = {
        .kind = about->kind,
        .node = about->node,
        .lineage = about->lineage,
        .has_decoder_lineage = about->has_decoder_lineage,
        .expected_ms = about->expected_ms,
        .position = position,
        .decoder_floor = sequence->decoder_floor,
        .draft = about->kind == KV_SNAPSHOT_FULL ? sequence->draft : (struct kv_draft_rows){0},
        .tail_count = tail,
        .tail_block = -1,
        .captured_ms = now_ms,
        .used_ms = now_ms,
    };
    if (about->has_decoder_lineage) {
        snapshot.decoder_lineage = about->decoder_lineage;
    }
    /* The next row sees W - 1 older ones, of which the ring must have all that exist. */
    int32_t oldest = position - (pool->options.window - 1);
    snapshot.has_source_ring =
        about->kind == KV_SNAPSHOT_FULL || sequence->source_floor <= (oldest > 0 ? oldest : 0);
    kv_cache_read_ids(cache, sequence, position - tail, tail, snapshot.tail);
    if (about->kind == KV_SNAPSHOT_FULL && tail > 0) {
        snapshot.tail_block = sequence->numbers[position / KV_BLOCK_TOKENS];
    }
    return snapshot;
}

static bool is_same_place(const struct kv_snapshot *a, const struct kv_snapshot *b) {
    return a->kind == b->kind && a->node == b->node && a->position == b->position &&
           a->has_decoder_lineage == b->has_decoder_lineage &&
           memcmp(&a->lineage, &b->lineage, sizeof a->lineage) == 0 &&
           memcmp(&a->decoder_lineage, &b->decoder_lineage, sizeof a->decoder_lineage) == 0 &&
           memcmp(a->tail, b->tail, (size_t)a->tail_count * sizeof *a->tail) == 0;
}

/* An equal one goes. */
static void replace(struct kv_window *pool, const struct kv_snapshot *snapshot) {
    for (int32_t i = *bucket_of(pool, snapshot->node); i >= 0; i = pool->slots[i].next) {
        if (is_same_place(&pool->slots[i].snapshot, snapshot)) {
            (void)drop_snapshot(pool, i);
            pool->counts.replaced++;
            return;
        }
    }
}

static uint8_t *memory_of(const struct kv_window *pool, int32_t number) {
    return pool->memory + (size_t)number * pool->options.cache->layout.state_bytes;
}

/* FULL and parked: the state as it is. ENCODER: rings 0 .. E with the pending pairs right behind
 * them. */
static void copy_out(
    struct kv_window *pool, int32_t number, const struct kv_sequence *sequence, bool is_whole
) {
    const struct kv_layout *layout = &pool->options.cache->layout;
    struct backend *backend = pool->options.cache->backend;
    struct slot *slot = &pool->slots[number];
    uint8_t *to = memory_of(pool, number);
    size_t bytes = layout->state_bytes;
    if (is_whole) {
        backend->download(backend, to, sequence->state, bytes);
    } else {
        size_t rings = encoder_rings(&pool->options);
        size_t end = rings_end(layout);
        backend->download(backend, to, sequence->state, rings);
        backend->download(backend, to + rings, sequence->state + end, bytes - end);
        bytes = rings + (bytes - end);
    }
    if (bytes > slot->touched) {
        pool->counts.bytes_touched += bytes - slot->touched;
        slot->touched = bytes;
    }
}

static uint64_t next_id(struct kv_window *pool, int32_t number) {
    struct slot *slot = &pool->slots[number];
    slot->generation++;
    return (uint64_t)slot->generation << 32 | (uint64_t)(number + 1);
}

/* The slot's bytes are this snapshot's from now on. */
static uint64_t put(struct kv_window *pool, int32_t number, const struct kv_snapshot *snapshot) {
    struct slot *slot = &pool->slots[number];
    ASSERT(slot->snapshot.id == 0);
    slot->snapshot = *snapshot;
    slot->snapshot.id = next_id(pool, number);
    index_insert(pool, number);
    if (snapshot->tail_block >= 0) {
        kv_block_share(pool->options.cache, snapshot->tail_block);
        pool->counts.blocks++;
    }
    pool->counts.full += snapshot->kind == KV_SNAPSHOT_FULL;
    pool->counts.encoder += snapshot->kind == KV_SNAPSHOT_ENCODER;
    pool->counts.captured++;
    int64_t expiry_ms = expiry_of(pool, snapshot);
    pool->next_expiry_ms = expiry_ms < pool->next_expiry_ms ? expiry_ms : pool->next_expiry_ms;
    return slot->snapshot.id;
}

uint64_t kv_window_capture(
    struct kv_window *pool,
    const struct kv_sequence *sequence,
    const struct kv_snapshot *about,
    int64_t now_ms
) {
    ASSERT(sequence->used && sequence->state != NULL);
    ASSERT(sequence->computed > 0);
    ASSERT(sequence->computed >= sequence->kept);
    (void)kv_window_advance(pool, now_ms);
    struct kv_snapshot snapshot = describe(pool, sequence, about, now_ms);
    replace(pool, &snapshot);
    bool is_full = snapshot.kind == KV_SNAPSHOT_FULL;
    /* Whatever is of no later rank goes. */
    const struct claim most = {.rank = is_full ? RANK_FULL : RANK_ENCODER, .used_ms = INT64_MAX};
    if (!make_room(pool, &most, now_ms)) {
        pool->counts.refused++;
        return 0;
    }
    int32_t number = pool->free;
    pool->free = pool->slots[number].next;
    uint64_t id = put(pool, number, &snapshot);
    copy_out(pool, number, sequence, is_full);
    return id;
}

/* ---- parked states --------------------------------------------------------------------------- */

uint64_t kv_window_park(
    struct kv_window *pool, const struct kv_sequence *sequence, int64_t expected_ms, int64_t now_ms
) {
    ASSERT(sequence->used && sequence->state != NULL);
    (void)kv_window_advance(pool, now_ms);
    const struct claim claim = {.rank = RANK_PARKED, .expected_ms = expected_ms, .used_ms = now_ms};
    if (!make_room(pool, &claim, now_ms)) {
        pool->counts.parks_refused++;
        return 0;
    }
    int32_t number = pool->free;
    struct slot *slot = &pool->slots[number];
    pool->free = slot->next;
    slot->ticket = next_id(pool, number);
    slot->holders = 1;
    slot->position = sequence->computed;
    slot->expected_ms = expected_ms;
    slot->parked_ms = now_ms;
    copy_out(pool, number, sequence, true);
    pool->counts.parked++;
    pool->counts.parks++;
    return slot->ticket;
}

bool kv_window_unpark(struct kv_window *pool, uint64_t ticket, struct kv_sequence *sequence) {
    int32_t number = slot_of_ticket(pool, ticket);
    if (number < 0) {
        return false;
    }
    ASSERT(sequence->state != NULL);
    ASSERT(sequence->computed == pool->slots[number].position);
    struct backend *backend = pool->options.cache->backend;
    size_t bytes = pool->options.cache->layout.state_bytes;
    backend->upload(backend, sequence->state, memory_of(pool, number), bytes);
    leave(pool, number);
    pool->counts.unparks++;
    return true;
}

bool kv_window_share(struct kv_window *pool, uint64_t ticket) {
    int32_t number = slot_of_ticket(pool, ticket);
    if (number >= 0) {
        pool->slots[number].holders++;
    }
    return number >= 0;
}

void kv_window_leave(struct kv_window *pool, uint64_t ticket) {
    int32_t number = slot_of_ticket(pool, ticket);
    if (number >= 0) {
        leave(pool, number);
    }
}

bool kv_window_is_parked(const struct kv_window *pool, uint64_t ticket) {
    return slot_of_ticket(pool, ticket) >= 0;
}

bool kv_window_has_room(const struct kv_window *pool) {
    return pool->counts.parked < pool->counts.slots;
}

/* A whole state in the shape of an encoder snapshot. */
static void pack_encoder(struct kv_window *pool, int32_t number) {
    const struct kv_layout *layout = &pool->options.cache->layout;
    uint8_t *memory = memory_of(pool, number);
    size_t end = rings_end(layout);
    memmove(memory + encoder_rings(&pool->options), memory + end, layout->state_bytes - end);
}

uint64_t kv_window_file(
    struct kv_window *pool,
    uint64_t ticket,
    const struct kv_sequence *sequence,
    const struct kv_snapshot *about,
    int64_t now_ms
) {
    (void)kv_window_advance(pool, now_ms);
    int32_t number = slot_of_ticket(pool, ticket);
    if (number < 0) {
        return 0;
    }
    struct slot *slot = &pool->slots[number];
    ASSERT(sequence->computed == slot->position);
    ASSERT(sequence->computed > 0 && sequence->computed >= sequence->kept);
    bool is_full = about->kind == KV_SNAPSHOT_FULL;
    uint64_t id = 0;
    if (is_full || slot->holders == 1) {
        struct kv_snapshot snapshot = describe(pool, sequence, about, now_ms);
        replace(pool, &snapshot);
        if (slot->snapshot.id == 0) {
            id = put(pool, number, &snapshot);
        }
        if (id != 0 && !is_full) {
            pack_encoder(pool, number);
        }
    }
    leave(pool, number);
    return id;
}

/* ---- use ------------------------------------------------------------------------------------- */

/* The first shown one of the node at or behind a slot in its bucket. */
static const struct kv_snapshot *
show(const struct kv_window *pool, int32_t at, uint64_t node, int64_t now_ms) {
    for (; at >= 0; at = pool->slots[at].next) {
        const struct kv_snapshot *snapshot = &pool->slots[at].snapshot;
        if (snapshot->node == node && !is_expired(pool, snapshot, now_ms)) {
            return snapshot;
        }
    }
    return NULL;
}

const struct kv_snapshot *
kv_window_first(const struct kv_window *pool, uint64_t node, int64_t now_ms) {
    return show(pool, *bucket_of(pool, node), node, now_ms);
}

const struct kv_snapshot *
kv_window_next(const struct kv_window *pool, const struct kv_snapshot *snapshot, int64_t now_ms) {
    int32_t number = slot_of(pool, snapshot->id);
    ASSERT(number >= 0);
    return show(pool, pool->slots[number].next, snapshot->node, now_ms);
}

const struct kv_snapshot *kv_window_get(const struct kv_window *pool, uint64_t id) {
    int32_t number = slot_of(pool, id);
    return number < 0 ? NULL : &pool->slots[number].snapshot;
}

bool kv_window_restore(
    struct kv_window *pool,
    uint64_t id,
    enum kv_snapshot_kind kind,
    struct kv_sequence *sequence,
    int64_t now_ms
) {
    int32_t number = slot_of(pool, id);
    if (number < 0) {
        return false;
    }
    struct kv_snapshot *snapshot = &pool->slots[number].snapshot;
    ASSERT(kind == snapshot->kind || kind == KV_SNAPSHOT_ENCODER);
    ASSERT(sequence->computed == snapshot->position);
    const struct kv_layout *layout = &pool->options.cache->layout;
    struct backend *backend = pool->options.cache->backend;
    const uint8_t *from = memory_of(pool, number);
    if (kind == KV_SNAPSHOT_FULL) {
        backend->upload(backend, sequence->state, from, layout->state_bytes);
        sequence->decoder_floor = snapshot->decoder_floor;
        sequence->draft = snapshot->draft;
    } else {
        size_t rings = encoder_rings(&pool->options);
        size_t end = rings_end(layout);
        size_t pending = snapshot->kind == KV_SNAPSHOT_FULL ? end : rings;
        backend->upload(backend, sequence->state, from, rings);
        backend->upload(backend, sequence->state + end, from + pending, layout->state_bytes - end);
        sequence->decoder_floor = 0;
        sequence->draft = (struct kv_draft_rows){0};
    }
    sequence->source_floor = snapshot->has_source_ring ? 0 : snapshot->position;
    snapshot->used_ms = now_ms;
    pool->counts.used++;
    return true;
}

void kv_window_expect(struct kv_window *pool, uint64_t id, int64_t expected_ms, int64_t now_ms) {
    int32_t number = slot_of(pool, id);
    if (number >= 0) {
        struct kv_snapshot *snapshot = &pool->slots[number].snapshot;
        snapshot->expected_ms = expected_ms;
        int64_t expiry_ms = expiry_of(pool, snapshot);
        pool->next_expiry_ms = expiry_ms < pool->next_expiry_ms ? expiry_ms : pool->next_expiry_ms;
        (void)kv_window_advance(pool, now_ms);
    }
    int32_t parked = slot_of_ticket(pool, id);
    if (parked >= 0) {
        pool->slots[parked].expected_ms = expected_ms;
    }
}

void kv_window_drop(struct kv_window *pool, uint64_t id) {
    int32_t number = slot_of(pool, id);
    if (number >= 0) {
        (void)drop_snapshot(pool, number);
        pool->counts.dropped++;
    }
}

void kv_window_drop_node(struct kv_window *pool, uint64_t node) {
    for (int32_t at = *bucket_of(pool, node); at >= 0;) {
        int32_t next = pool->slots[at].next;
        if (pool->slots[at].snapshot.node == node) {
            (void)drop_snapshot(pool, at);
            pool->counts.dropped++;
        }
        at = next;
    }
}

void kv_window_drop_all(struct kv_window *pool) {
    for (int32_t i = 0; i < pool->counts.slots; i++) {
        if (pool->slots[i].snapshot.id != 0) {
            (void)drop_snapshot(pool, i);
            pool->counts.dropped++;
        }
        if (pool->slots[i].ticket != 0) {
            drop_parked(pool, i);
        }
    }
}

void kv_window_count(const struct kv_window *pool, struct kv_window_counts *out) {
    *out = pool->counts;
}
