/* What the files of kv_prefix share: nodes, leases and the two orders of evictable nodes. Thread: as
 * kv_prefix.h. */
#ifndef HEARTH_ENGINE_KV_PREFIX_INTERNAL_H
#define HEARTH_ENGINE_KV_PREFIX_INTERNAL_H

#include "kv_prefix.h"

#define NOWHERE (-1)
#define NEVER   INT64_MAX

/* What is known of a branch. UNTOLD: nothing ended here; the node takes over what its children
 * knew. Larger is worth more. */
enum stamp { STAMP_UNTOLD, STAMP_ABANDONED, STAMP_FINISHED, STAMP_OPEN };

struct node {
    /* The first line of the cache: all that a walk reads. */
    uint64_t hash;      /* of all tokens from the root on */
    int32_t parent;     /* of a free slot: the next free one */
    int32_t chain_next; /* in the same hash bucket */
    uint32_t generation;
    int32_t block;
    int32_t depth; /* blocks up to this one */
    int32_t first_child, sibling_next, sibling_previous;
    int32_t lease_count;
    uint8_t stamp;
    bool is_exact;
    bool is_live;
    uint64_t used; /* order of last use */
    int64_t used_ms;
    /* The second line. */
    int64_t expected_ms; /* of a return, NEVER when unknown */
    struct kv_lineage lineage;
    int32_t queue_next, queue_previous; /* of those not written; of itself: not in the queue */
    int64_t filed_ms;
};

struct lease {
    uint64_t node;
    int64_t ends_ms;
    int64_t expected_ms;
    uint32_t generation;
    int32_t next_free;
    bool is_live;   /* known to its owner */
    bool is_lapsed; /* protects nothing any more */
};

struct ghost {
    uint64_t hash;
    int32_t next;
    uint8_t miss; /* KV_PREFIX_MISS_NONE: an empty slot */
    bool is_exact;
};

/* A binary heap of indices that knows where each one is. */
struct heap {
    int32_t *items; /* [count] */
    int32_t *slots; /* by index: where it is, or NOWHERE */
    int32_t count;
    bool (*before)(const struct kv_prefix *tree, int32_t a, int32_t b);
};

struct kv_prefix {
    struct kv_prefix_options options;
    int64_t now_ms;
    uint64_t use;        /* counts uses */
    struct node *nodes;  /* [nodes_max + 1]; 0 is the root */
    int32_t *tokens;     /* [nodes_max + 1, 128] */
    struct kv_key *keys; /* [nodes_max + 1] */
    int32_t *buckets;    /* [bucket_mask + 1] heads of chains */
    uint32_t bucket_mask;
    int32_t node_free;
    struct lease *leases;
    int32_t lease_free;
    struct ghost *ghosts;   /* a ring, oldest overwritten */
    int32_t *ghost_buckets; /* [ghost_mask + 1] */
    uint32_t ghost_mask;
    int32_t ghost_next;
    struct heap evict_order; /* evictable nodes, first to go first */
    struct heap due_order;   /* the same nodes by the time at which something changes */
    struct heap lease_order; /* running leases by their end */
    struct kv_prefix_counts counts;
};

static inline const int32_t *node_tokens(const struct kv_prefix *tree, int32_t index) {
    return tree->tokens + (size_t)index * KV_BLOCK_TOKENS;
}

static inline uint64_t id_make(uint32_t generation, int32_t index) {
    return (uint64_t)generation << 32 | (uint32_t)index;
}

/* What a child is looked up by, lineage apart. */
struct node_key {
    int32_t parent;
    const int32_t *tokens; /* [128] */
    uint64_t hash;         /* chain_hash of both */
};

/* Keyed hash of a path, given that of its parent's path and the last block's tokens. */
uint64_t chain_hash(const struct kv_prefix *tree, uint64_t parent_hash, const int32_t *tokens);
/* First node with this key in the chain from `from` on, of any lineage, or NOWHERE. */
int32_t node_equal(const struct kv_prefix *tree, int32_t from, const struct node_key *key);
/* The queue of nodes that are not written runs in a circle through node 0. */
void queue_append(struct kv_prefix *tree, int32_t index);
void queue_remove(struct kv_prefix *tree, int32_t index);
/* Index of a live node, or NOWHERE. */
int32_t node_find(const struct kv_prefix *tree, uint64_t id);
/* Unlinks a leaf, passes what it knew to its parent, leaves a ghost, releases its block. Returns
 * whether the block became free. */
bool node_remove(struct kv_prefix *tree, int32_t index, enum kv_prefix_miss miss);

void order_init(struct kv_prefix *tree);
/* Puts the node where it belongs after any change of children, leases, stamp or use. */
void order_update(struct kv_prefix *tree, int32_t index);
/* Combines what is known of a branch with what a second user of the same node knows. */
void stamp_merge(struct node *node, enum stamp stamp, int64_t expected_ms);
result order_check(const struct kv_prefix *tree, struct error *error);

#endif
