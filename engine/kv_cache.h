/* KV memory of all sequences: global entries in blocks of 128 tokens, windows and pending pairs.
 *
 * One block holds the entries of KV_BLOCK_TOKENS tokens of every KV source (kernels/formats.h), so
 * a token costs block_bytes / 128 bytes: 890 at the release's dimensions. Blocks come from one
 * pool and window state from a fixed number of slots; both are sized by the memory plan and
 * allocated once. Nothing here is freed or grown while sequences run. Thread: the engine thread, or
 * whoever holds its lock while the sequence is idle.
 */
#ifndef HEARTH_ENGINE_KV_CACHE_H
#define HEARTH_ENGINE_KV_CACHE_H

#include "kernels/backend.h"
#include "model.h"

/* Byte layout derived from the configuration. */
struct kv_layout {
    int32_t source_count;
    struct kv_source_layout sources[MODEL_LAYERS_MAX];
    int32_t pending_slot[MODEL_LAYERS_MAX]; /* of a source: its pair's number, -1 at ratio 1 */
    int32_t pending_count;                  /* ratio-2 sources */
    size_t block_bytes;
    size_t ring_bytes;    /* one layer: W window records, rounded up to 64 */
    size_t pending_bytes; /* one source: kv and score, [2, d] FP32 */
    size_t state_bytes;   /* one sequence: rings of all layers, then all pending pairs */
};

/* Expected errors: UNSUPPORTED (dimensions that do not divide into the record formats). */
MUST_CHECK result
kv_layout_make(const struct model_config *config, struct kv_layout *out, struct error *error);
/* Bytes per token as allocated: block_bytes / KV_BLOCK_TOKENS. */
uint64_t kv_layout_token_bytes(const struct kv_layout *layout);

/* One context's caches. `computed` positions have their entries, windows and pending pair stored;
 * ids up to `length` are known. */
struct kv_sequence {
    int32_t *ids;        /* [context_max] */
    int32_t *compressed; /* [context_max] Engram ids of the same positions */
    int32_t length;
    int32_t computed;
    int32_t decoder_floor; /* decoder rings hold nothing valid below this position */
    /* the rest belongs to kv_block.c */
    int32_t block_count;
    uint8_t **blocks;        /* [blocks_max] host copy */
    uint8_t **device_blocks; /* [blocks_max] what ops read */
    uint8_t *state;          /* state_bytes: rings, then pending pairs */
    bool used;
};

struct kv_cache {
    struct backend *backend; /* borrowed */
    struct kv_layout layout;
    int32_t context_max, sequences_max;
    int32_t blocks_max; /* of one sequence: ceil(context_max / 128) */
    int32_t block_total, block_free_count;
    uint8_t *pool;                 /* [block_total, block_bytes] */
    int32_t *block_free;           /* stack of free block numbers */
    uint8_t *states;               /* [sequences_max, state_bytes] */
    uint8_t **device_blocks;       /* [sequences_max, blocks_max] */
    uint8_t **blocks;              /* the same on the host */
    int32_t *ids;                  /* [2, sequences_max, context_max]: ids, then compressed ones */
    struct kv_sequence *sequences; /* [sequences_max] */
};

/* Bytes that kv_cache_init takes for this shape, by part. */
struct kv_cache_size {
    uint64_t pool_bytes;
    uint64_t window_bytes_per_sequence; /* rings and pending pairs */
    uint64_t total_bytes;
};
void kv_cache_measure(
    const struct kv_layout *layout,
    int32_t context_max,
    int32_t sequences_max,
    struct kv_cache_size *out
);

/* The pool holds sequences_max contexts of context_max tokens, so that an admitted sequence can
 * always grow. Expected errors: MEMORY. */
MUST_CHECK result kv_cache_init(
    struct kv_cache *cache,
    struct backend *backend,
    const struct kv_layout *layout,
    int32_t context_max,
    int32_t sequences_max,
    struct error *error
);
void kv_cache_deinit(struct kv_cache *cache);

/* An empty sequence, or null when all slots are in use. */
struct kv_sequence *kv_cache_acquire(struct kv_cache *cache);
void kv_cache_release(struct kv_cache *cache, struct kv_sequence *sequence);
/* Gives the sequence blocks for positions [0, tokens). Expected errors: LIMIT. */
MUST_CHECK result kv_cache_reserve(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens, struct error *error
);

/* Ring of a layer: [W] window records, position p in slot p mod W. */
uint8_t *
kv_cache_ring(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t layer);
/* Pending pair of a source (index into kv_sources): [2, d]; null at ratio 1. */
float *
kv_cache_pending(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t source);

#endif
