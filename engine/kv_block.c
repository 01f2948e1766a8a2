/* Layout of blocks and the pool that hands them out. See kv_cache.h.
 *
 * The pool is cut into extents of 32 blocks with a bitmap of free ones. Extents are listed by the
 * length of their longest free run, so that taking and freeing a block costs the same however many
 * there are, and a sequence that grows gets neighbours. */
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

void kv_layout_add_draft(const struct model_config *config, struct kv_layout *layout) {
    ASSERT(layout->draft_ring_count == 0);
    size_t slots = (size_t)config->window + (size_t)config->draft_block;
    layout->draft_ring_count = config->draft_layers;
    layout->draft_ring_bytes = round_up(slots * window_record_bytes(config->head_dim));
    layout->state_bytes += (size_t)layout->draft_ring_count * layout->draft_ring_bytes;
}

uint64_t kv_layout_token_bytes(const struct kv_layout *layout) {
    return layout->block_bytes / KV_BLOCK_TOKENS;
}

/* ---- pool ------------------------------------------------------------------------------------ */

/* Length of the longest run of set bits, and the first bit of the first such run. */
static int32_t longest_run(uint32_t bits, int32_t *first) {
    int32_t length = 0;
    uint32_t starts = 0;
    for (uint32_t left = bits; left != 0; left &= left >> 1) {
        starts = left;
        length++;
    }
    *first = starts == 0 ? 0 : __builtin_ctz(starts);
    return length;
}

static int32_t list_of(const struct kv_cache *cache, int32_t extent) {
    int32_t first = 0;
    return longest_run(cache->extents[extent].free, &first);
}

static void list_insert(struct kv_cache *cache, int32_t list, int32_t extent) {
    struct kv_extent *entry = &cache->extents[extent];
    entry->before = -1;
    entry->after = cache->lists[list];
    if (entry->after >= 0) {
        cache->extents[entry->after].before = extent;
    }
    cache->lists[list] = extent;
    cache->lists_used |= UINT64_C(1) << list;
}

static void list_remove(struct kv_cache *cache, int32_t list, int32_t extent) {
    const struct kv_extent *entry = &cache->extents[extent];
    if (entry->after >= 0) {
        cache->extents[entry->after].before = entry->before;
    }
    if (entry->before >= 0) {
        cache->extents[entry->before].after = entry->after;
        return;
    }
    ASSERT(cache->lists[list] == extent);
    cache->lists[list] = entry->after;
    if (entry->after < 0) {
        cache->lists_used &= ~(UINT64_C(1) << list);
    }
}

/* Turns the block's bit over and lists its extent where it now belongs. */
static void flip(struct kv_cache *cache, int32_t number) {
    int32_t extent = number / KV_RUN_BLOCKS;
    int32_t list = list_of(cache, extent);
    cache->extents[extent].free ^= UINT32_C(1) << (number % KV_RUN_BLOCKS);
    int32_t now = list_of(cache, extent);
    if (now != list) {
        list_remove(cache, list, extent);
        list_insert(cache, now, extent);
    }
}

void kv_block_free_all(struct kv_cache *cache) {
    for (int32_t list = 0; list <= KV_RUN_BLOCKS; list++) {
        cache->lists[list] = -1;
    }
    cache->lists_used = 0;
    int32_t extents = (cache->block_total + KV_RUN_BLOCKS - 1) / KV_RUN_BLOCKS;
    for (int32_t e = extents - 1; e >= 0; e--) {
        int32_t blocks = cache->block_total - e * KV_RUN_BLOCKS;
        cache->extents[e].free = blocks >= KV_RUN_BLOCKS ? UINT32_MAX : (UINT32_C(1) << blocks) - 1;
        list_insert(cache, list_of(cache, e), e);
    }
    memset(cache->block_references, 0, (size_t)cache->block_total * sizeof(int32_t));
    cache->block_free_count = cache->block_total;
}

static bool is_free(const struct kv_cache *cache, int32_t number) {
    uint32_t free = cache->extents[number / KV_RUN_BLOCKS].free;
    return (free >> (number % KV_RUN_BLOCKS) & 1U) != 0;
}

int32_t kv_block_take(struct kv_cache *cache, int32_t previous) {
    ASSERT(previous >= -1);
    ASSERT(previous < cache->block_total);
    ASSERT(cache->block_free_count > 0);
    int32_t number = previous + 1;
    bool is_neighbour = previous >= 0 && number < cache->block_total &&
                        number % KV_RUN_BLOCKS != 0 && is_free(cache, number);
    if (!is_neighbour) {
        int32_t longest = 63 - __builtin_clzll(cache->lists_used);
        ASSERT(longest > 0);
        int32_t extent = cache->lists[longest];
        int32_t first = 0;
        (void)longest_run(cache->extents[extent].free, &first);
        number = extent * KV_RUN_BLOCKS + first;
    }
    ASSERT(is_free(cache, number));
    ASSERT(cache->block_references[number] == 0);
    flip(cache, number);
    cache->block_references[number] = 1;
    cache->block_free_count--;
    return number;
}

void kv_block_share(struct kv_cache *cache, int32_t number) {
    ASSERT(number >= 0 && number < cache->block_total);
    ASSERT(cache->block_references[number] > 0);
    ASSERT(cache->block_references[number] < INT32_MAX);
    cache->block_references[number]++;
}

bool kv_block_drop(struct kv_cache *cache, int32_t number) {
    ASSERT(number >= 0 && number < cache->block_total);
    ASSERT(cache->block_references[number] > 0);
    if (--cache->block_references[number] > 0) {
        return false;
    }
    ASSERT(!is_free(cache, number));
    flip(cache, number);
    cache->block_free_count++;
    ASSERT(cache->block_free_count <= cache->block_total);
    return true;
}

uint8_t *kv_block_address(const struct kv_cache *cache, int32_t number) {
    ASSERT(number >= 0 && number < cache->block_total);
    return cache->pool == NULL ? NULL : cache->pool + (size_t)number * cache->layout.block_bytes;
}

static int32_t *ids_of(const struct kv_cache *cache, int32_t number) {
    ASSERT(number >= 0 && number < cache->block_total);
    return cache->block_ids + (size_t)number * 2 * KV_BLOCK_TOKENS;
}

const int32_t *kv_block_ids(const struct kv_cache *cache, int32_t number) {
    return ids_of(cache, number);
}

void kv_block_fill(
    const struct kv_cache *cache,
    int32_t number,
    const int32_t *tokens,
    const int32_t *compressed,
    const uint8_t *bytes
) {
    ASSERT(cache->block_references[number] == 1);
    int32_t *ids = ids_of(cache, number);
    memcpy(ids, tokens, KV_BLOCK_TOKENS * sizeof *ids);
    memcpy(ids + KV_BLOCK_TOKENS, compressed, KV_BLOCK_TOKENS * sizeof *ids);
    if (cache->layout.block_bytes > 0) {
        uint8_t *to = kv_block_address(cache, number);
        cache->backend->upload(cache->backend, to, bytes, cache->layout.block_bytes);
    }
}

void kv_block_read(const struct kv_cache *cache, int32_t number, uint8_t *bytes) {
    ASSERT(cache->block_references[number] > 0);
    if (cache->layout.block_bytes > 0) {
        const uint8_t *from = kv_block_address(cache, number);
        cache->backend->download(cache->backend, bytes, from, cache->layout.block_bytes);
    }
}
