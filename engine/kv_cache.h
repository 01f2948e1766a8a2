/* KV memory of all sequences: global entries in blocks of 128 tokens, windows and pending pairs.
 *
 * One block holds the entries of KV_BLOCK_TOKENS tokens of every KV source (kernels/formats.h), so
 * a token costs block_bytes / 128 bytes: 890 at the release's dimensions. Beside each block lie its
 * token ids. Blocks come from one pool, are counted by reference and shared between forks; a block
 * with more than one reference is never written. Window state has slots of its own, fewer than there
 * are sequences when these take turns: one without a slot keeps its blocks and ids and cannot run.
 * All is sized by the memory plan and allocated once: nothing is freed or grown while sequences run.
 * Thread: the engine thread under the engine's lock, or whoever holds it while the sequence is idle;
 * reading a sequence that runs needs no lock.
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
    /* Of draft stages; 0 without. A ring has W + B slots: while B draft rows are looked at with the W
     * rows before them, they stand in the slots of rows that nothing sees any more. */
    int32_t draft_ring_count;
    size_t draft_ring_bytes;
    size_t state_bytes; /* one sequence: rings of all layers, of draft stages, all pending pairs */
};

/* Expected errors: UNSUPPORTED (dimensions that do not divide into the record formats). */
MUST_CHECK result
kv_layout_make(const struct model_config *config, struct kv_layout *out, struct error *error);
/* Adds the rings of the configuration's draft stages to the window state. For a model that has their
 * weights, when drafts are to be made. */
void kv_layout_add_draft(const struct model_config *config, struct kv_layout *layout);
/* Bytes per token as allocated: block_bytes / KV_BLOCK_TOKENS. */
uint64_t kv_layout_token_bytes(const struct kv_layout *layout);

/* Which rows the draft rings hold: positions [first, end), of which the last W count. Goes wherever
 * the window state goes; {0, 0} for an empty, rebuilt or lost one. What is missing costs accepted
 * drafts, never a bit of the output. Written by draft_commit. */
struct kv_draft_rows {
    int32_t first, end;
};

/* One context's caches. `computed` positions have their entries, windows and pending pair stored;
 * ids up to `length` are known. While windows are rebuilt after a cache hit, `computed` is below
 * `kept`: entries below `kept` are there and shared with others, they are read and never written.
 */
struct kv_sequence {
    int32_t length;
    int32_t computed;
    int32_t kept;          /* H: the write floor; 0 for a sequence that started cold */
    int32_t decoder_floor; /* decoder rings hold nothing valid below this position */
    int32_t source_floor;  /* the same for the ring of the first decoder layer */
    struct kv_draft_rows draft;
    /* the rest belongs to kv_sequence.c */
    int32_t block_count;
    int32_t *numbers;        /* [blocks_max] of its blocks in the pool */
    uint8_t **blocks;        /* [blocks_max] their addresses, host copy */
    uint8_t **device_blocks; /* [blocks_max] what ops read */
    uint8_t
        *state; /* state_bytes: rings, draft rings, pending pairs; null: without a window slot */
    int32_t committed; /* tokens whose blocks are promised; 0: none */
    int32_t promised;  /* blocks that this still takes, at most */
    bool used;
};

/* 32 neighbouring blocks of the pool; runs never cross its border. */
#define KV_RUN_BLOCKS 32
struct kv_extent {
    uint32_t free;         /* bit i: block 32 e + i is free */
    int32_t before, after; /* in the list of extents with an equally long free run; -1: none */
};

struct kv_cache {
    struct backend *backend; /* borrowed */
    struct kv_layout layout;
    int32_t context_max, sequences_max;
    int32_t windows_max, window_free_count;
    int32_t blocks_max; /* of one sequence: ceil(context_max / 128) */
    int32_t block_total, block_free_count;
    int32_t block_live_count;         /* that sequences refer to */
    int32_t block_promised_count;     /* sum of what is promised to sequences beside these */
    uint8_t *pool;                    /* [block_total, block_bytes] */
    int32_t *block_ids;               /* [block_total, 2, 128]: token ids, then their Engram ids */
    int32_t *block_references;        /* [block_total]; 0: free */
    int32_t *block_sequences;         /* [block_total]: references of sequences among them */
    struct kv_extent *extents;        /* [ceil(block_total / 32)] */
    int32_t lists[KV_RUN_BLOCKS + 1]; /* first extent by length of its longest free run; -1: none */
    uint64_t lists_used;              /* bit n: lists[n] has one */
    uint8_t *states;                  /* [windows_max, state_bytes] */
    int32_t *windows_free;            /* [windows_max] numbers of free slots, a stack */
    uint8_t **device_blocks;          /* [sequences_max, blocks_max] */
    uint8_t **blocks;                 /* the same on the host */
    int32_t *numbers;                 /* [sequences_max, blocks_max] */
    struct kv_sequence *sequences;    /* [sequences_max] */
    /* Asked to drop references until `blocks` more blocks are free, before kv_cache_reserve refuses
     * for want of them; what it frees may be less. Set by the owner after init; null: none. It must
     * not change sequences. */
    void (*make_room)(void *context, int32_t blocks);
    void *make_room_context;
};

struct kv_cache_shape {
    int32_t context_max, sequences_max;
    /* Blocks of the pool; 0: sequences_max contexts of context_max tokens. That many always suffice,
     * forks included: a sequence refers to at most its own share, and a block of several
     * sequences takes the place of one once only. With fewer, kv_cache_commit says who fits. */
    int32_t block_total;
    int32_t windows_max; /* window slots; 0: sequences_max, so that every sequence has one */
};

/* Bytes that kv_cache_init takes for this shape, by part. */
struct kv_cache_size {
    uint64_t pool_bytes;
    uint64_t window_bytes_per_sequence; /* rings and pending pairs */
    uint64_t device_bytes; /* of the backend's memory: blocks, windows, tables that ops read */
    uint64_t total_bytes;
};
void kv_cache_measure(
    const struct kv_layout *layout, const struct kv_cache_shape *shape, struct kv_cache_size *out
);

/* Expected errors: MEMORY. */
MUST_CHECK result kv_cache_init_shape(
    struct kv_cache *cache,
    struct backend *backend,
    const struct kv_layout *layout,
    const struct kv_cache_shape *shape,
    struct error *error
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

/* ---- blocks of the pool ---- */

/* Marks all blocks free; the arrays are there. */
void kv_block_free_all(struct kv_cache *cache);
/* Takes a free block, of which there must be one, with one reference: the neighbour of `previous`
 * (-1: none) when it is free and of the same extent, else the first of a longest free run. */
int32_t kv_block_take(struct kv_cache *cache, int32_t previous);
/* One reference more to a block in use. */
void kv_block_share(struct kv_cache *cache, int32_t number);
/* One reference less; the last one frees it. Returns whether it became free. */
bool kv_block_drop(struct kv_cache *cache, int32_t number);
/* Its entries; null when the layout has none. */
uint8_t *kv_block_address(const struct kv_cache *cache, int32_t number);
/* Ids of a block, host memory: [128] token ids, then [128] Engram ids. */
const int32_t *kv_block_ids(const struct kv_cache *cache, int32_t number);
/* Fills a block that nobody reads yet: token ids [128], Engram ids [128], block_bytes of entries
 * from host memory. */
void kv_block_fill(
    const struct kv_cache *cache,
    int32_t number,
    const int32_t *tokens,
    const int32_t *compressed,
    const uint8_t *bytes
);
/* Copies a block's entries [block_bytes] to host memory. */
void kv_block_read(const struct kv_cache *cache, int32_t number, uint8_t *bytes);

/* ---- sequences ---- */

/* An empty sequence with a window slot, or null when all of either are in use. */
struct kv_sequence *kv_cache_acquire(struct kv_cache *cache);
/* An empty sequence without a window slot, or null when all sequences are in use. */
struct kv_sequence *kv_cache_acquire_idle(struct kv_cache *cache);
/* A sequence that goes on as the parent would, or null when all sequences are in use. Shares all
 * blocks and copies the window state; neither takes a block before one of the two writes. Without a
 * window slot when the parent has none or none is free: its windows are the caller's to restore.
 * Nothing may be promised to the parent. */
struct kv_sequence *kv_cache_fork(struct kv_cache *cache, const struct kv_sequence *parent);
/* Gives a sequence a window slot, whose content is undefined. False when none is free. */
MUST_CHECK bool kv_cache_window_acquire(struct kv_cache *cache, struct kv_sequence *sequence);
/* Takes it away with what is in it; nothing happens when it has none. Not while it runs. */
void kv_cache_window_release(struct kv_cache *cache, struct kv_sequence *sequence);
/* What an empty sequence takes over from the cache. */
struct kv_adoption {
    const int32_t *blocks; /* [ceil(kept / 128)] in order; the last one may be used in part */
    int32_t kept;          /* H: tokens whose ids and entries count */
    int32_t start;         /* first position to run again, <= kept: what `computed` becomes */
};
/* An empty sequence refers to these blocks from now on: the caller's reference to each becomes the
 * sequence's. Takes no block: one that is used in part is copied when the sequence grows, unless
 * nobody else refers to it by then. The window state is the caller's to restore or rebuild;
 * source_floor says that the first decoder layer's ring has nothing below `start`. */
void kv_cache_adopt(
    struct kv_cache *cache, struct kv_sequence *sequence, const struct kv_adoption *adoption
);
/* The sequence refers to `number` instead of its whole block `index`, which holds the same tokens
 * and entries: adds a reference to the one and drops the other. Not while the sequence runs. */
void kv_cache_swap(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t index, int32_t number
);
/* Blocks that no other sequence refers to become free. */
void kv_cache_release(struct kv_cache *cache, struct kv_sequence *sequence);
/* Gives the sequence blocks for positions [0, tokens); those of positions from `computed` and
 * `kept` on become its own, copied when they are shared. To be called before ids are appended. Asks
 * make_room when the pool lacks blocks. Takes nothing on failure. Expected errors: LIMIT. */
MUST_CHECK result kv_cache_reserve(
    struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens, struct error *error
);
/* Promises the sequence blocks for positions [0, tokens), instead of what was promised before; 0
 * tokens: nothing any more. What it takes later is taken off the promise. False, and nothing is
 * promised, when that is more than the pool has beside blocks of sequences and other promises:
 * whoever was promised blocks never meets an empty pool, and kv_cache_reserve refuses others what is
 * promised. Blocks that only a tree or snapshots refer to do not count, since make_room frees them.
 * A promise ends with kv_cache_release. */
MUST_CHECK bool
kv_cache_commit(struct kv_cache *cache, struct kv_sequence *sequence, int32_t tokens);
/* What kv_cache_commit would look at. `wanted` > `total`: this never fits, whoever waits. */
struct kv_need {
    int32_t wanted;   /* blocks of `tokens` tokens */
    int32_t more;     /* of them, those that the sequence does not have yet, copies included */
    int32_t total;    /* of the pool */
    int32_t live;     /* that sequences refer to, once each */
    int32_t promised; /* to other sequences, beside these */
    int32_t missing;  /* max(0, more + live + promised - total) */
};
void kv_cache_need(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t tokens,
    struct kv_need *out
);
/* Whether counts of blocks, promises and window slots are what the sequences say. For tests. Expected
 * errors: CORRUPT. */
MUST_CHECK result kv_cache_check(const struct kv_cache *cache, struct error *error);
/* Whether positions [from, to), those below `kept` left out, lie in blocks that are the sequence's
 * alone. */
bool kv_cache_is_writable(
    const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t from, int32_t to
);
/* Neighbouring blocks in the pool from the sequence's block `first` on, at most KV_RUN_BLOCKS: what
 * moves as one extent. */
int32_t
kv_cache_run(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t first);

/* Adds one token and its Engram id (0 without tables) in a reserved block. */
void kv_cache_append(
    const struct kv_cache *cache, struct kv_sequence *sequence, int32_t id, int32_t compressed
);
/* Forgets the tokens from `length` on, none of which is computed: drafts that were not accepted.
 * Their blocks stay reserved. */
void kv_cache_truncate(struct kv_sequence *sequence, int32_t length);
/* Copies the ids of positions [from, from + count), all below `length`. */
void kv_cache_read_ids(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t from,
    int32_t count,
    int32_t *out
);
/* The same for Engram ids. */
void kv_cache_read_compressed(
    const struct kv_cache *cache,
    const struct kv_sequence *sequence,
    int32_t from,
    int32_t count,
    int32_t *out
);

/* Ring of a layer of a sequence with a window slot: [W] window records, position p in slot p mod W. */
uint8_t *
kv_cache_ring(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t layer);
/* Ring of a draft stage: [W + B] window records, position p in slot p mod (W + B). */
uint8_t *kv_cache_draft_ring(
    const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t stage
);
/* Pending pair of a source (index into kv_sources): [2, d]; null at ratio 1. */
float *
kv_cache_pending(const struct kv_cache *cache, const struct kv_sequence *sequence, int32_t source);

#endif
