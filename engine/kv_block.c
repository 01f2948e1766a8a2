/* Layout of blocks and the pool they come from. See kv_cache.h. */
#include "kv_cache.h"

#define ALIGNMENT 64U

static size_t round_up(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

result
kv_layout_make(const struct model_config *config, struct kv_layout *out, struct error *error) {
    if (config->head_dim % 32 != 0 || config->index_dim % 32 != 0) {
        FAIL(
            error,
            UNSUPPORTED,
            "cache records need head_dim (%d) and index_head_dim (%d) to be multiples of 32",
            config->head_dim,
            config->index_dim
        );
    }
    struct kv_layout layout = {.source_count = config->kv_source_count};
    size_t head_dim = (size_t)config->head_dim;
    size_t index_dim = (size_t)config->index_dim;
    size_t at = 0;
    for (int32_t s = 0; s < config->kv_source_count; s++) {
        int32_t ratio = config->plan[config->kv_source_layers[s]].ratio;
        if (ratio != 1 && ratio != 2) {
            FAIL(error, UNSUPPORTED, "KV source %d has compress ratio %d, not 1 or 2", s, ratio);
        }
        struct kv_source_layout *source = &layout.sources[s];
        source->ratio = ratio;
        source->entries = KV_BLOCK_TOKENS / ratio;
        source->main_record_bytes = head_dim / 2 + head_dim / 16;
        source->main_offset = at;
        at += (size_t)source->entries * source->main_record_bytes;
        source->index_code_offset = at;
        at += (size_t)source->entries * (index_dim / 2);
        source->index_scale_offset = at;
        at += (size_t)source->entries * (index_dim / 32);
        layout.pending_slot[s] = ratio == 2 ? layout.pending_count++ : -1;
    }
    layout.block_bytes = at;
    layout.ring_bytes = round_up((size_t)config->window * window_record_bytes(config->head_dim));
    layout.pending_bytes = round_up(2 * head_dim * sizeof(float));
    layout.state_bytes = (size_t)config->layers * layout.ring_bytes +
                         (size_t)layout.pending_count * layout.pending_bytes;
    *out = layout;
    return OK;
}

uint64_t kv_layout_token_bytes(const struct kv_layout *layout) {
    return layout->block_bytes / KV_BLOCK_TOKENS;
}

static int32_t blocks_for(int32_t tokens) {
    return tokens / KV_BLOCK_TOKENS + (tokens % KV_BLOCK_TOKENS != 0);
}

void kv_cache_measure(
    const struct kv_layout *layout,
    int32_t context_max,
    int32_t sequences_max,
    struct kv_cache_size *out
) {
    uint64_t sequences = (uint64_t)sequences_max;
    uint64_t blocks = (uint64_t)blocks_for(context_max);
    out->pool_bytes = sequences * blocks * layout->block_bytes;
    out->window_bytes_per_sequence = layout->state_bytes;
    uint64_t tables = 2 * blocks * sizeof(uint8_t *) + sizeof(int32_t) * blocks +
                      2 * sizeof(int32_t) * (uint64_t)context_max + sizeof(struct kv_sequence);
    out->total_bytes = out->pool_bytes + sequences * (layout->state_bytes + tables);
}

/* Each sequence's share of the tables. */
static void assign_sequences(struct kv_cache *cache) {
    size_t context = (size_t)cache->context_max;
    size_t sequences = (size_t)cache->sequences_max;
    size_t blocks = (size_t)cache->blocks_max;
    for (size_t i = 0; i < sequences; i++) {
        struct kv_sequence *sequence = &cache->sequences[i];
        sequence->ids = cache->ids + i * context;
        sequence->compressed = cache->ids + (sequences + i) * context;
        sequence->blocks = cache->blocks + i * blocks;
        sequence->device_blocks = cache->device_blocks + i * blocks;
        sequence->state = cache->states + i * cache->layout.state_bytes;
    }
}

static result allocate_device(struct kv_cache *cache, struct error *error) {
    struct backend *backend = cache->backend;
    size_t sequences = (size_t)cache->sequences_max;
    size_t blocks = (size_t)cache->block_total;
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
        backend->allocate(backend, sequences * cache->layout.state_bytes, &memory, error),
        "window state of %zu sequences",
        sequences
    );
    cache->states = memory;
    TRY_NOTE(
        error,
        backend->allocate(backend, blocks * sizeof(void *), &memory, error),
        "table of %zu cache blocks",
        blocks
    );
    cache->device_blocks = memory;
    return OK;
}

static result cache_fill(struct kv_cache *cache, struct error *error) {
    size_t sequences = (size_t)cache->sequences_max;
    size_t blocks = (size_t)cache->block_total;
    size_t ids = 2 * sequences * (size_t)cache->context_max;
    TRY(allocate_device(cache, error));
    cache->block_free = calloc(blocks, sizeof *cache->block_free);
    cache->blocks = calloc(blocks, sizeof *cache->blocks);
    cache->ids = calloc(ids, sizeof *cache->ids);
    cache->sequences = calloc(sequences, sizeof *cache->sequences);
    if (cache->block_free == NULL || cache->blocks == NULL || cache->ids == NULL ||
        cache->sequences == NULL) {
        FAIL(error, MEMORY, "no memory for the tables of %zu cache blocks", blocks);
    }
    for (int32_t i = 0; i < cache->block_total; i++) {
        cache->block_free[i] = cache->block_total - 1 - i;
    }
    cache->block_free_count = cache->block_total;
    assign_sequences(cache);
    return OK;
}

result kv_cache_init(
    struct kv_cache *cache,
    struct backend *backend,
    const struct kv_layout *layout,
    int32_t context_max,
    int32_t sequences_max,
    struct error *error
) {
    ASSERT(context_max > 0);
    ASSERT(sequences_max > 0);
    *cache = (struct kv_cache){
        .backend = backend,
        .layout = *layout,
        .context_max = context_max,
        .sequences_max = sequences_max,
        .blocks_max = blocks_for(context_max),
    };
    cache->block_total = narrow_i32((int64_t)cache->blocks_max * sequences_max);
    result filled = cache_fill(cache, error);
    if (is_failed(filled)) {
        kv_cache_deinit(cache);
    }
    return filled;
}

void kv_cache_deinit(struct kv_cache *cache) {
    struct backend *backend = cache->backend;
    if (backend == NULL) {
        return;
    }
    free(cache->sequences);
    free(cache->ids);
    free(cache->blocks);
    free(cache->block_free);
    backend->release(backend, cache->device_blocks);
    backend->release(backend, cache->states);
    backend->release(backend, cache->pool);
    *cache = (struct kv_cache){0};
}

struct kv_sequence *kv_cache_acquire(struct kv_cache *cache) {
    for (int32_t i = 0; i < cache->sequences_max; i++) {
        struct kv_sequence *sequence = &cache->sequences[i];
        if (!sequence->used) {
            ASSERT(sequence->block_count == 0);
            sequence->used = true;
            sequence->length = 0;
            sequence->computed = 0;
            sequence->decoder_floor = 0;
            return sequence;
        }
    }
    return NULL;
}

void kv_cache_release(struct kv_cache *cache, struct kv_sequence *sequence) {
    ASSERT(sequence->used);
    while (sequence->block_count > 0) {
        const uint8_t *block = sequence->blocks[--sequence->block_count];
        size_t number = (size_t)(block - cache->pool) / cache->layout.block_bytes;
        cache->block_free[cache->block_free_count++] = (int32_t)number;
    }
    ASSERT(cache->block_free_count <= cache->block_total);
    sequence->used = false;
}

result kv_cache_reserve(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens, struct error *error
) {
    int32_t wanted = cache->layout.block_bytes == 0 ? 0 : blocks_for(tokens);
    int32_t missing = wanted - sequence->block_count;
    if (missing <= 0) {
        return OK;
    }
    if (wanted > cache->blocks_max || missing > cache->block_free_count) {
        FAIL(
            error,
            LIMIT,
            "%d more cache blocks for %d tokens, but %d are free and a sequence holds at most %d",
            missing,
            tokens,
            cache->block_free_count,
            cache->blocks_max
        );
    }
    int32_t first = sequence->block_count;
    for (int32_t b = first; b < wanted; b++) {
        int32_t number = cache->block_free[--cache->block_free_count];
        sequence->blocks[b] = cache->pool + (size_t)number * cache->layout.block_bytes;
    }
    sequence->block_count = wanted;
    cache->backend->upload(
        cache->backend,
        sequence->device_blocks + first,
        sequence->blocks + first,
        (size_t)missing * sizeof *sequence->blocks
    );
    return OK;
}

uint8_t *
kv_cache_ring(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t layer) {
    return sequence->state + (size_t)layer * cache->layout.ring_bytes;
}

float *
kv_cache_pending(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t source) {
    int32_t slot = cache->layout.pending_slot[source];
    if (slot < 0) {
        return NULL;
    }
    size_t rings = cache->layout.state_bytes -
                   (size_t)cache->layout.pending_count * cache->layout.pending_bytes;
    uint8_t *at = sequence->state + rings + (size_t)slot * cache->layout.pending_bytes;
    return (float *)(void *)at;
}
