/* Sequences over the pool of blocks: growing, forking with copy on write, token ids; and the memory
 * of it all. See kv_cache.h. */
#include "kv_cache.h"

#define BLOCK_IDS ((size_t)2 * KV_BLOCK_TOKENS)

static int32_t blocks_for(int32_t tokens) {
    return tokens / KV_BLOCK_TOKENS + (tokens % KV_BLOCK_TOKENS != 0);
}

static int64_t shape_blocks(const struct kv_cache_shape *shape) {
    return shape->block_total != 0 ? shape->block_total
                                   : (int64_t)blocks_for(shape->context_max) * shape->sequences_max;
}

static int32_t shape_windows(const struct kv_cache_shape *shape) {
    return shape->windows_max != 0 ? shape->windows_max : shape->sequences_max;
}

static size_t extent_count(int32_t blocks) {
    return ((size_t)blocks + KV_RUN_BLOCKS - 1) / KV_RUN_BLOCKS;
}

void kv_cache_measure(
    const struct kv_layout *layout, const struct kv_cache_shape *shape, struct kv_cache_size *out
) {
    uint64_t blocks = (uint64_t)shape_blocks(shape);
    uint64_t windows = (uint64_t)shape_windows(shape);
    uint64_t sequences = (uint64_t)shape->sequences_max;
    uint64_t entries = sequences * (uint64_t)blocks_for(shape->context_max);
    out->pool_bytes = blocks * layout->block_bytes;
    out->window_bytes_per_sequence = layout->state_bytes;
    out->device_bytes =
        out->pool_bytes + windows * layout->state_bytes + entries * sizeof(uint8_t *);
    out->total_bytes = out->device_bytes + blocks * (BLOCK_IDS + 2) * sizeof(int32_t) +
                       (blocks + KV_RUN_BLOCKS - 1) / KV_RUN_BLOCKS * sizeof(struct kv_extent) +
                       windows * sizeof(int32_t) + entries * (sizeof(uint8_t *) + sizeof(int32_t)) +
                       sequences * sizeof(struct kv_sequence);
}

/* Each sequence's share of the tables. */
static void assign_sequences(struct kv_cache *cache) {
    size_t blocks = (size_t)cache->blocks_max;
    for (size_t i = 0; i < (size_t)cache->sequences_max; i++) {
        struct kv_sequence *sequence = &cache->sequences[i];
        sequence->numbers = cache->numbers + i * blocks;
        sequence->blocks = cache->blocks + i * blocks;
        sequence->device_blocks = cache->device_blocks + i * blocks;
    }
    for (int32_t i = cache->windows_max; i-- > 0;) {
        cache->windows_free[cache->window_free_count++] = i;
    }
}

static result allocate_device(struct kv_cache *cache, struct error *error) {
    struct backend *backend = cache->backend;
    size_t windows = (size_t)cache->windows_max;
    size_t blocks = (size_t)cache->block_total;
    size_t entries = (size_t)cache->sequences_max * (size_t)cache->blocks_max;
    void *memory = NULL;
    if (cache->layout.block_bytes > 0) {
        TRY_NOTE(
            error,
            backend->allocate(backend, blocks * cache->layout.block_bytes, &memory, error),
            "%zu cache blocks",
            blocks
        );
    }
    cache->pool = memory;
    TRY_NOTE(
        error,
        backend->allocate(backend, windows * cache->layout.state_bytes, &memory, error),
        "window state of %zu sequences",
        windows
    );
    cache->states = memory;
    TRY_NOTE(
        error,
        backend->allocate(backend, entries * sizeof(void *), &memory, error),
        "tables of %zu cache blocks",
        entries
    );
    cache->device_blocks = memory;
    return OK;
}

static result cache_fill(struct kv_cache *cache, struct error *error) {
    size_t sequences = (size_t)cache->sequences_max;
    size_t blocks = (size_t)cache->block_total;
    size_t entries = sequences * (size_t)cache->blocks_max;
    TRY(allocate_device(cache, error));
    cache->block_ids = calloc(blocks * BLOCK_IDS, sizeof *cache->block_ids);
    cache->block_references = calloc(blocks, sizeof *cache->block_references);
    cache->block_sequences = calloc(blocks, sizeof *cache->block_sequences);
    cache->windows_free = calloc((size_t)cache->windows_max, sizeof *cache->windows_free);
    cache->extents = calloc(extent_count(cache->block_total), sizeof *cache->extents);
    cache->blocks = calloc(entries, sizeof *cache->blocks);
    cache->numbers = calloc(entries, sizeof *cache->numbers);
    cache->sequences = calloc(sequences, sizeof *cache->sequences);
    if (cache->block_ids == NULL || cache->block_references == NULL ||
        cache->block_sequences == NULL || cache->windows_free == NULL || cache->extents == NULL ||
        cache->blocks == NULL || cache->numbers == NULL || cache->sequences == NULL) {
        FAIL(error, MEMORY, "no memory for the tables of %zu cache blocks", blocks);
    }
    kv_block_free_all(cache);
    assign_sequences(cache);
    return OK;
}

result kv_cache_init_shape(
    struct kv_cache *cache,
    struct backend *backend,
    const struct kv_layout *layout,
    const struct kv_cache_shape *shape,
    struct error *error
) {
    ASSERT(shape->context_max > 0);
    ASSERT(shape->sequences_max > 0);
    ASSERT(shape->block_total >= 0);
    ASSERT(shape->windows_max >= 0 && shape->windows_max <= shape->sequences_max);
    *cache = (struct kv_cache){
        .backend = backend,
        .layout = *layout,
        .context_max = shape->context_max,
        .sequences_max = shape->sequences_max,
        .windows_max = shape_windows(shape),
        .blocks_max = blocks_for(shape->context_max),
        .block_total = narrow_i32(shape_blocks(shape)),
    };
    result filled = cache_fill(cache, error);
    if (is_failed(filled)) {
        kv_cache_deinit(cache);
    }
    return filled;
}

result kv_cache_init(
    struct kv_cache *cache,
    struct backend *backend,
    const struct kv_layout *layout,
    int32_t context_max,
    int32_t sequences_max,
    struct error *error
) {
    struct kv_cache_shape shape = {.context_max = context_max, .sequences_max = sequences_max};
    return kv_cache_init_shape(cache, backend, layout, &shape, error);
}

void kv_cache_deinit(struct kv_cache *cache) {
    struct backend *backend = cache->backend;
    if (backend == NULL) {
        return;
    }
    free(cache->sequences);
    free(cache->numbers);
    free(cache->blocks);
    free(cache->extents);
    free(cache->windows_free);
    free(cache->block_sequences);
    free(cache->block_references);
    free(cache->block_ids);
    backend->release(backend, cache->device_blocks);
    backend->release(backend, cache->states);
    backend->release(backend, cache->pool);
    *cache = (struct kv_cache){0};
}

/* ---- life of a sequence ---------------------------------------------------------------------- */

struct kv_sequence *kv_cache_acquire_idle(struct kv_cache *cache) {
    for (int32_t i = 0; i < cache->sequences_max; i++) {
        struct kv_sequence *sequence = &cache->sequences[i];
        if (!sequence->used) {
            ASSERT(sequence->block_count == 0);
            ASSERT(sequence->state == NULL && sequence->promised == 0);
            sequence->used = true;
            sequence->length = 0;
            sequence->computed = 0;
            sequence->kept = 0;
            sequence->decoder_floor = 0;
            sequence->source_floor = 0;
            sequence->draft = (struct kv_draft_rows){0};
            return sequence;
        }
    }
    return NULL;
}

struct kv_sequence *kv_cache_acquire(struct kv_cache *cache) {
    struct kv_sequence *sequence =
        cache->window_free_count == 0 ? NULL : kv_cache_acquire_idle(cache);
    if (sequence != NULL) {
        bool taken = kv_cache_window_acquire(cache, sequence);
        ASSERT(taken);
    }
    return sequence;
}

bool kv_cache_window_acquire(struct kv_cache *cache, struct kv_sequence *sequence) {
    ASSERT(sequence->used);
    ASSERT(sequence->state == NULL);
    if (cache->window_free_count == 0) {
        return false;
    }
    int32_t slot = cache->windows_free[--cache->window_free_count];
    sequence->state = cache->states + (size_t)slot * cache->layout.state_bytes;
    return true;
}

void kv_cache_window_release(struct kv_cache *cache, struct kv_sequence *sequence) {
    ASSERT(sequence->used);
    if (sequence->state != NULL) {
        size_t slot = (size_t)(sequence->state - cache->states) / cache->layout.state_bytes;
        ASSERT(cache->window_free_count < cache->windows_max);
        cache->windows_free[cache->window_free_count++] = (int32_t)slot;
        sequence->state = NULL;
    }
}

/* ---- references of sequences, and what is promised to them ------------------------------------ */

/* A sequence refers to the block: the reference itself is there. */
static void enter(struct kv_cache *cache, int32_t number) {
    cache->block_live_count += cache->block_sequences[number]++ == 0;
}

/* A sequence refers to it no more. */
static void leave(struct kv_cache *cache, int32_t number) {
    ASSERT(cache->block_sequences[number] > 0);
    cache->block_live_count -= --cache->block_sequences[number] == 0;
    (void)kv_block_drop(cache, number);
}

/* First position that the sequence itself writes. */
static int32_t write_start(const struct kv_sequence *sequence) {
    return sequence->computed > sequence->kept ? sequence->computed : sequence->kept;
}

/* Blocks that the sequence takes at most when it grows to `tokens`. A copy of a block that a tree or
 * a snapshot holds beside it takes one no longer than until make_room lets go of that. */
static int32_t
blocks_to_take(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t tokens) {
    int32_t wanted = blocks_for(tokens);
    int32_t held = sequence->block_count;
    int32_t more = wanted > held ? wanted - held : 0;
    for (int32_t b = write_start(sequence) / KV_BLOCK_TOKENS; b < held && b < wanted; b++) {
        more += cache->block_sequences[sequence->numbers[b]] > 1;
    }
    return more;
}

/* The sequence's blocks have changed. */
static void renew_promise(struct kv_cache *cache, struct kv_sequence *sequence) {
    int32_t promised =
        sequence->committed == 0 ? 0 : blocks_to_take(cache, sequence, sequence->committed);
    cache->block_promised_count += promised - sequence->promised;
    sequence->promised = promised;
}

void kv_cache_need(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t tokens,
    struct kv_need *out
) {
    *out = (struct kv_need){
        .wanted = blocks_for(tokens),
        .more = blocks_to_take(cache, sequence, tokens),
        .total = cache->block_total,
        .live = cache->block_live_count,
        .promised = cache->block_promised_count - sequence->promised,
    };
    int64_t missing = (int64_t)out->more + out->live + out->promised - out->total;
    out->missing = missing > 0 ? (int32_t)missing : 0;
}

bool kv_cache_commit(struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens) {
    ASSERT(sequence->used);
    ASSERT(tokens >= 0 && tokens <= cache->context_max);
    struct kv_need need;
    kv_cache_need(cache, sequence, tokens, &need);
    sequence->committed = tokens > 0 && need.missing == 0 ? tokens : 0;
    renew_promise(cache, sequence);
    return tokens == 0 || need.missing == 0;
}

/* Tells ops of the blocks [first, end). */
static void upload_table(
    const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t first, int32_t end
) {
    if (end > first) {
        cache->backend->upload(
            cache->backend,
            sequence->device_blocks + first,
            sequence->blocks + first,
            (size_t)(end - first) * sizeof *sequence->blocks
        );
    }
}

struct kv_sequence *kv_cache_fork(struct kv_cache *cache, const struct kv_sequence *parent) {
    ASSERT(parent->used);
    int32_t blocks = blocks_for(parent->length);
    ASSERT(parent->computed <= parent->length);
    ASSERT(blocks <= parent->block_count);
    ASSERT(parent->committed == 0);
    struct kv_sequence *child = kv_cache_acquire_idle(cache);
    if (child == NULL) {
        return NULL;
    }
    child->length = parent->length;
    child->computed = parent->computed;
    child->kept = parent->kept;
    child->decoder_floor = parent->decoder_floor;
    child->source_floor = parent->source_floor;
    child->draft = parent->draft;
    for (int32_t b = 0; b < blocks; b++) {
        kv_block_share(cache, parent->numbers[b]);
        enter(cache, parent->numbers[b]);
    }
    memcpy(child->numbers, parent->numbers, (size_t)blocks * sizeof *child->numbers);
    memcpy(child->blocks, parent->blocks, (size_t)blocks * sizeof *child->blocks);
    child->block_count = blocks;
    upload_table(cache, child, 0, blocks);
    if (parent->state != NULL && kv_cache_window_acquire(cache, child)) {
        size_t bytes = cache->layout.state_bytes;
        cache->backend->copy(cache->backend, child->state, parent->state, bytes);
    }
    return child;
}

void kv_cache_adopt(
    struct kv_cache *cache, struct kv_sequence *sequence, const struct kv_adoption *adoption
) {
    ASSERT(sequence->used);
    ASSERT(sequence->length == 0 && sequence->block_count == 0);
    ASSERT(adoption->start >= 0 && adoption->start <= adoption->kept);
    ASSERT(adoption->kept <= cache->context_max);
    int32_t blocks = blocks_for(adoption->kept);
    for (int32_t b = 0; b < blocks; b++) {
        int32_t number = adoption->blocks[b];
        ASSERT(number >= 0 && number < cache->block_total);
        ASSERT(cache->block_references[number] > 0);
        sequence->numbers[b] = number;
        sequence->blocks[b] = kv_block_address(cache, number);
        enter(cache, number);
    }
    sequence->block_count = blocks;
    sequence->length = adoption->kept;
    sequence->kept = adoption->kept;
    sequence->computed = adoption->start;
    sequence->decoder_floor = 0;
    sequence->source_floor = adoption->start;
    sequence->draft = (struct kv_draft_rows){0};
    upload_table(cache, sequence, 0, blocks);
    renew_promise(cache, sequence);
}

void kv_cache_release(struct kv_cache *cache, struct kv_sequence *sequence) {
    ASSERT(sequence->used);
    sequence->committed = 0;
    renew_promise(cache, sequence);
    while (sequence->block_count > 0) {
        leave(cache, sequence->numbers[--sequence->block_count]);
    }
    kv_cache_window_release(cache, sequence);
    sequence->used = false;
}

/* ---- growing --------------------------------------------------------------------------------- */

static int32_t *ids_of(const struct kv_cache *cache, int32_t number) {
    return cache->block_ids + (size_t)number * BLOCK_IDS;
}

static bool
is_shared(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t block) {
    return cache->block_references[sequence->numbers[block]] > 1;
}

static void put_new_block(struct kv_cache *cache, struct kv_sequence *sequence, int32_t block) {
    int32_t previous = block == 0 ? -1 : sequence->numbers[block - 1];
    int32_t number = kv_block_take(cache, previous);
    sequence->numbers[block] = number;
    sequence->blocks[block] = kv_block_address(cache, number);
    enter(cache, number);
}

/* Copy on write. Blocks behind what is computed or kept hold ids alone. */
static void make_private(struct kv_cache *cache, struct kv_sequence *sequence, int32_t block) {
    int32_t shared = sequence->numbers[block];
    put_new_block(cache, sequence, block);
    int32_t own = sequence->numbers[block];
    memcpy(ids_of(cache, own), ids_of(cache, shared), BLOCK_IDS * sizeof(int32_t));
    size_t bytes = cache->layout.block_bytes;
    if (bytes > 0 && write_start(sequence) > block * KV_BLOCK_TOKENS) {
        const uint8_t *from = kv_block_address(cache, shared);
        cache->backend->copy(cache->backend, sequence->blocks[block], from, bytes);
    }
    leave(cache, shared);
}

/* What growing to `wanted` blocks takes from the pool. */
struct growth {
    int32_t first, common; /* the sequence's blocks [first, common) are looked at for copies */
    int32_t missing;       /* new blocks */
    int32_t copies;        /* of shared ones */
};

static struct growth
growth_of(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t wanted) {
    int32_t held = sequence->block_count;
    struct growth growth = {
        .first = write_start(sequence) / KV_BLOCK_TOKENS,
        .common = wanted < held ? wanted : held,
        .missing = wanted > held ? wanted - held : 0,
    };
    for (int32_t b = growth.first; b < growth.common; b++) {
        growth.copies += is_shared(cache, sequence, b);
    }
    return growth;
}

/* Whether growing takes blocks that others were promised. A block that it copies because a tree or a
 * snapshot holds it too can be freed afterwards. What nobody was promised is free as long as it is
 * there. */
static bool
takes_promised(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t tokens) {
    int32_t others = cache->block_promised_count - sequence->promised;
    int32_t more = blocks_to_take(cache, sequence, tokens);
    return others > 0 && more > sequence->promised &&
           (int64_t)cache->block_live_count + others + more > cache->block_total;
}

result kv_cache_reserve(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens, struct error *error
) {
    ASSERT(sequence->used);
    int32_t wanted = blocks_for(tokens);
    int32_t held = sequence->block_count;
    struct growth growth = growth_of(cache, sequence, wanted);
    int32_t lacking = growth.missing + growth.copies - cache->block_free_count;
    if (wanted <= cache->blocks_max && lacking > 0 && cache->make_room != NULL) {
        cache->make_room(cache->make_room_context, lacking);
        growth = growth_of(cache, sequence, wanted); // a shared block may be its own by now
    }
    int32_t taken = growth.missing + growth.copies;
    if (wanted > cache->blocks_max || taken > cache->block_free_count ||
        takes_promised(cache, sequence, tokens)) {
        FAIL(
            error,
            LIMIT,
            "%d more cache blocks and %d copies of shared ones for %d tokens, but %d of %d are "
            "free, %d are promised to others and a sequence holds at most %d",
            growth.missing,
            growth.copies,
            tokens,
            cache->block_free_count,
            cache->block_total,
            cache->block_promised_count - sequence->promised,
            cache->blocks_max
        );
    }
    for (int32_t b = growth.first; b < growth.common && growth.copies > 0; b++) {
        if (is_shared(cache, sequence, b)) {
            make_private(cache, sequence, b);
            upload_table(cache, sequence, b, b + 1);
        }
    }
    for (int32_t b = held; b < wanted; b++) {
        put_new_block(cache, sequence, b);
    }
    sequence->block_count = held + growth.missing;
    upload_table(cache, sequence, held, held + growth.missing);
    renew_promise(cache, sequence);
    return OK;
}

void kv_cache_swap(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t index, int32_t number
) {
    ASSERT(index >= 0 && index < write_start(sequence) / KV_BLOCK_TOKENS);
    int32_t former = sequence->numbers[index];
    if (number == former) {
        return;
    }
    ASSERT(memcmp(ids_of(cache, former), ids_of(cache, number), BLOCK_IDS * sizeof(int32_t)) == 0);
    kv_block_share(cache, number);
    enter(cache, number);
    sequence->numbers[index] = number;
    sequence->blocks[index] = kv_block_address(cache, number);
    upload_table(cache, sequence, index, index + 1);
    leave(cache, former);
}

bool kv_cache_is_writable(
    const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t from, int32_t to
) {
    bool is_writable = blocks_for(to) <= sequence->block_count;
    from = from > sequence->kept ? from : sequence->kept;
    for (int32_t b = from / KV_BLOCK_TOKENS; is_writable && from < to && b < blocks_for(to); b++) {
        is_writable = cache->block_references[sequence->numbers[b]] == 1;
    }
    return is_writable;
}

int32_t
kv_cache_run(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t first) {
    ASSERT(first >= 0 && first < sequence->block_count);
    ASSERT(sequence->block_count <= cache->blocks_max);
    int32_t count = 1;
    while (count < KV_RUN_BLOCKS && first + count < sequence->block_count &&
           sequence->numbers[first + count] == sequence->numbers[first] + count) {
        count++;
    }
    return count;
}

/* ---- token ids ------------------------------------------------------------------------------- */

void kv_cache_append(
    const struct kv_cache *cache, struct kv_sequence *sequence, int32_t id, int32_t compressed
) {
    int32_t at = sequence->length;
    ASSERT(at < cache->context_max);
    ASSERT(kv_cache_is_writable(cache, sequence, at, at + 1));
    int32_t *ids = ids_of(cache, sequence->numbers[at / KV_BLOCK_TOKENS]);
    ids[at % KV_BLOCK_TOKENS] = id;
    ids[KV_BLOCK_TOKENS + at % KV_BLOCK_TOKENS] = compressed;
    sequence->length++;
}

void kv_cache_truncate(struct kv_sequence *sequence, int32_t length) {
    ASSERT(sequence->used);
    ASSERT(length <= sequence->length);
    ASSERT(length >= sequence->computed && length >= sequence->kept);
    sequence->length = length;
}

/* `plane`: 0 for token ids, 1 for Engram ids. */
static void read_plane(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    size_t plane,
    int32_t from,
    int32_t count,
    int32_t *out
) {
    ASSERT(from >= 0);
    ASSERT(count >= 0 && count <= sequence->length - from);
    for (int32_t done = 0; done < count;) {
        int32_t at = from + done;
        int32_t inside = at % KV_BLOCK_TOKENS;
        int32_t some =
            KV_BLOCK_TOKENS - inside < count - done ? KV_BLOCK_TOKENS - inside : count - done;
        const int32_t *ids = ids_of(cache, sequence->numbers[at / KV_BLOCK_TOKENS]);
        ids += plane * KV_BLOCK_TOKENS + (size_t)inside;
        memcpy(out + done, ids, (size_t)some * sizeof *out);
        done += some;
    }
}

void kv_cache_read_ids(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t from,
    int32_t count,
    int32_t *out
) {
    read_plane(cache, sequence, 0, from, count, out);
}

void kv_cache_read_compressed(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t from,
    int32_t count,
    int32_t *out
) {
    read_plane(cache, sequence, 1, from, count, out);
}

/* ---- window state ---------------------------------------------------------------------------- */

uint8_t *
kv_cache_ring(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t layer) {
    ASSERT(sequence->state != NULL);
    return sequence->state + (size_t)layer * cache->layout.ring_bytes;
}

uint8_t *kv_cache_draft_ring(
    const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t stage
) {
    const struct kv_layout *layout = &cache->layout;
    ASSERT(stage >= 0 && stage < layout->draft_ring_count);
    size_t pending = (size_t)layout->pending_count * layout->pending_bytes;
    size_t behind = (size_t)(layout->draft_ring_count - stage) * layout->draft_ring_bytes;
    return sequence->state + (layout->state_bytes - pending - behind);
}

float *
kv_cache_pending(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t source) {
    int32_t slot = cache->layout.pending_slot[source];
    if (slot < 0) {
        return NULL;
    }
    size_t rings = cache->layout.state_bytes -
                   (size_t)cache->layout.pending_count * cache->layout.pending_bytes;
    ASSERT(sequence->state != NULL);
    uint8_t *at = sequence->state + rings + (size_t)slot * cache->layout.pending_bytes;
    return (float *)(void *)at;
}

/* ---- check ----------------------------------------------------------------------------------- */

static result check_sequence(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t *seen,
    struct error *error
) {
    long number = (long)(sequence - cache->sequences);
    for (int32_t b = 0; b < sequence->block_count; b++) {
        seen[sequence->numbers[b]]++;
    }
    if (!sequence->used && (sequence->block_count != 0 || sequence->state != NULL ||
                            sequence->promised != 0 || sequence->committed != 0)) {
        FAIL(error, CORRUPT, "sequence %ld is not in use and holds something", number);
    }
    int32_t more =
        sequence->committed == 0 ? 0 : blocks_to_take(cache, sequence, sequence->committed);
    if (more > sequence->promised) {
        FAIL(
            error,
            CORRUPT,
            "sequence %ld of %d committed tokens may take %d blocks, but %d are promised",
            number,
            sequence->committed,
            more,
            sequence->promised
        );
    }
    return OK;
}

static result check_counts(const struct kv_cache *cache, int32_t *seen, struct error *error) {
    int32_t promised = 0;
    int32_t windows = 0;
    int32_t live = 0;
    for (int32_t i = 0; i < cache->sequences_max; i++) {
        const struct kv_sequence *sequence = &cache->sequences[i];
        TRY(check_sequence(cache, sequence, seen, error));
        promised += sequence->promised;
        windows += sequence->state != NULL;
    }
    for (int32_t n = 0; n < cache->block_total; n++) {
        live += seen[n] > 0;
        if (seen[n] != cache->block_sequences[n] || seen[n] > cache->block_references[n]) {
            FAIL(
                error,
                CORRUPT,
                "%d sequences refer to block %d, counted are %d of %d references",
                seen[n],
                n,
                cache->block_sequences[n],
                cache->block_references[n]
            );
        }
    }
    if (promised != cache->block_promised_count || live != cache->block_live_count ||
        windows + cache->window_free_count != cache->windows_max) {
        FAIL(
            error,
            CORRUPT,
            "%d blocks live, %d promised, %d windows in use, but counted are %d, %d and %d of %d "
            "free",
            live,
            promised,
            windows,
            cache->block_live_count,
            cache->block_promised_count,
            cache->window_free_count,
            cache->windows_max
        );
    }
    if (promised > 0 && live + promised > cache->block_total) {
        FAIL(
            error,
            CORRUPT,
            "%d blocks live and %d promised of %d",
            live,
            promised,
            cache->block_total
        );
    }
    return OK;
}

result kv_cache_check(const struct kv_cache *cache, struct error *error) {
    int32_t *seen = calloc((size_t)cache->block_total, sizeof *seen);
    if (seen == NULL) {
        FAIL(error, MEMORY, "no memory to check %d blocks", cache->block_total);
    }
    result checked = check_counts(cache, seen, error);
    free(seen);
    return checked;
}
