/* The prefix tree: which full blocks of 128 tokens are cached, found again by their content.
 *
 * A node stands for one block and is keyed by (parent, block lineage, the block's 128 token ids);
 * hashes only find candidates, a hit always compares the ids. The tree refers to a block by its
 * number and owns one reference to it. It does no I/O, reads no clock and allocates nothing after
 * creation. Leaves go before trunks; what a live sequence needs is leased for a while, not pinned.
 * `now_ms` is monotonic time; a smaller value than one seen before counts as that one.
 * Thread: the engine thread.
 */
#ifndef HEARTH_ENGINE_KV_PREFIX_H
#define HEARTH_ENGINE_KV_PREFIX_H

#include "base/result.h"
#include "kernels/formats.h"
#include "kv_key.h"

/* Node and lease ids are never used twice within 2^32 uses of a slot; an old one is refused. */
#define KV_PREFIX_ROOT ((uint64_t)0)

/* 2^31 slots would overflow the index type; 16 million blocks are 1.9 TB at the release's size. */
#define KV_PREFIX_NODES_MAX 16777216
/* Concurrent references of sequences; 65,536 is far beyond the sequences an engine holds. */
#define KV_PREFIX_LEASES_MAX 65536
/* Children looked at for one that shares a part of the next block, newest first. */
#define KV_PREFIX_SIBLINGS_SCANNED 256
/* Nodes whose lifetime passed that one call removes, so that no call stalls an engine step. */
#define KV_PREFIX_EXPIRED_PER_CALL 256

/* Why a lookup did not reuse more of the prompt. */
enum kv_prefix_miss {
    KV_PREFIX_MISS_NONE,           /* all that can be reused is: see the cut below */
    KV_PREFIX_MISS_NEVER_COMPUTED, /* or so long ago that nothing remembers it */
    KV_PREFIX_MISS_EVICTED,        /* its memory was needed */
    KV_PREFIX_MISS_EXPIRED,        /* its lifetime passed */
    KV_PREFIX_MISS_DAMAGED,        /* removed by kv_prefix_remove */
    KV_PREFIX_MISS_OTHER_LINEAGE,  /* cached, but approximate: an exact lookup refuses it */
    KV_PREFIX_MISS_DIVERGENT,      /* cached text goes another way at `miss_token` */
    KV_PREFIX_MISS_NOT_READ        /* on a tier below, and could not be read in time or at all */
};
#define KV_PREFIX_MISSES 8
/* "evicted", "other_lineage", ...: a stable word for records. */
const char *kv_prefix_miss_name(enum kv_prefix_miss miss);

/* What is known of a node; borrowed until the tree changes. */
struct kv_prefix_node {
    uint64_t id, parent;
    struct kv_key key, parent_key; /* names that hold in every process: kv_key.h */
    struct kv_lineage lineage;
    const int32_t *tokens; /* [128] */
    int32_t block;
    int32_t depth;     /* blocks of the path */
    int64_t filed_ms;  /* of insertion */
    bool is_abandoned; /* nobody comes back to the branch that ends here */
    bool is_wanted;    /* in the queue of kv_prefix_unwritten */
};

struct kv_prefix_options {
    int32_t nodes_max;  /* blocks the tree may hold */
    int32_t leases_max; /* references of live sequences at a time */
    int32_t
        ghosts_max;    /* removed nodes remembered for the reason of a miss; 0: nodes_max / 4 + 1 */
    uint64_t hash_key; /* random per process, so that nobody can prepare collisions */
    uint64_t hash_drop; /* bits of hashes to clear, so that tests see collisions; 0 */
    struct kv_lineage root_lineage;
    int64_t lease_ms;    /* a lease lapses this long after its last renewal; 0: 60 s */
    int64_t lifetime_ms; /* unleased leaves unused this long are removed; 0: 72 h */
    int64_t overdue_ms;  /* an estimate missed by this much counts for nothing; 0: 10 min */
    /* Adds a reference to a block. */
    void (*block_retain)(void *context, int32_t block);
    /* Drops a reference; returns whether the block became free. */
    bool (*block_release)(void *context, int32_t block);
    /* A node goes, its block is still there; must not call the tree. May be null. */
    void (*node_removed
    )(void *context, const struct kv_prefix_node *node, enum kv_prefix_miss reason);
    void *context;
};

/* Bytes that kv_prefix_create allocates for these options. */
uint64_t kv_prefix_measure(const struct kv_prefix_options *options);

struct kv_prefix;

/* Expected errors: INVALID_INPUT (a count outside its limit), MEMORY. */
MUST_CHECK result kv_prefix_create(
    struct kv_prefix **out, const struct kv_prefix_options *options, struct error *error
);
/* Releases every block it holds. Accepts null. */
void kv_prefix_destroy(struct kv_prefix *tree);

struct kv_prefix_match {
    uint64_t node;    /* of the last block used whole; KV_PREFIX_ROOT when none */
    int32_t blocks;   /* blocks used whole: those of `node` and its ancestors */
    int32_t position; /* tokens reused: even, and below the prompt's last token */
    uint64_t partial; /* a child of `node` whose first position - 128 * blocks tokens count, */
                      /* or KV_PREFIX_ROOT; its block is copied, never written */
    bool is_exact;    /* every block used has the root lineage */
    struct kv_lineage lineage; /* of the last block used */
    enum kv_prefix_miss miss;
    int32_t miss_token; /* first position that no accepted cached text shares */
};

/* The longest reusable prefix of tokens [count]. Exact lookups accept the root lineage only; with
 * `any_lineage` the longest match of any, exact first on ties. Changes nothing: take a lease before
 * the next call that changes the tree. */
void kv_prefix_lookup(
    const struct kv_prefix *tree,
    const int32_t *tokens,
    int32_t count,
    bool any_lineage,
    struct kv_prefix_match *out
);

struct kv_prefix_insertion {
    uint64_t node;
    int32_t block; /* the one to go on with: an equal block that was there before wins */
    bool is_new;
};

/* Files `block` with its 128 tokens under `parent` and takes over the caller's reference; when an
 * equal node exists that reference is released instead. A full tree evicts one node first. An
 * approximate parent has no exact child (asserted). Failing leaves the reference with the caller.
 * Expected errors: NOT_FOUND (the parent is gone), LIMIT (full, and all leaves are leased). */
MUST_CHECK result kv_prefix_insert(
    struct kv_prefix *tree,
    uint64_t parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    int32_t block,
    int64_t now_ms,
    struct kv_prefix_insertion *out,
    struct error *error
);

/* Writes the blocks of the node's path, root first, into blocks [capacity] and retains each for
 * the caller, whom they outlive a lapsed lease. Returns their number. Expected errors: NOT_FOUND,
 * LIMIT (capacity). */
MUST_CHECK result kv_prefix_retain_path(
    const struct kv_prefix *tree,
    uint64_t node,
    int32_t *blocks,
    int32_t capacity,
    int32_t *count,
    struct error *error
);
/* The node's own block, or -1 for the root and a node that is gone; borrowed. */
int32_t kv_prefix_block(const struct kv_prefix *tree, uint64_t node);

/* False for the root and a node that is gone. */
bool kv_prefix_get(const struct kv_prefix *tree, uint64_t node, struct kv_prefix_node *out);

/* New nodes wait in the order of their insertion to be written below: the first one, or
 * KV_PREFIX_ROOT when none waits. */
uint64_t kv_prefix_unwritten(const struct kv_prefix *tree);
/* The one behind a node that waits. */
uint64_t kv_prefix_unwritten_next(const struct kv_prefix *tree, uint64_t node);
/* Takes a node out of that queue: it is written, or never will be. */
void kv_prefix_forget_unwritten(struct kv_prefix *tree, uint64_t node);
/* The same for all of the path that belongs to this branch alone, which is abandoned: nodes from
 * `node` up to the first that is leased or has other children. */
void kv_prefix_forget_branch(struct kv_prefix *tree, uint64_t node);

/* A lease protects a node and so, leaves going first, its whole path. One that lapses stays known
 * to its owner, who may renew or end it as long as the node is there. One taken at a leaf that nobody
 * leases counts as the return that an ended one may have left expected there.
 * Expected errors: NOT_FOUND (the node is gone), LIMIT (leases_max). */
MUST_CHECK result kv_prefix_acquire(
    struct kv_prefix *tree, uint64_t node, int64_t now_ms, uint64_t *lease, struct error *error
);
/* Moves the lease to `node` (or leaves it there) for another lease_ms. False, with the lease
 * unchanged, when that node is gone. */
MUST_CHECK bool
kv_prefix_renew(struct kv_prefix *tree, uint64_t lease, uint64_t node, int64_t now_ms);
/* Ends the lease; nothing is known about a return. */
void kv_prefix_release(struct kv_prefix *tree, uint64_t lease, int64_t now_ms);

enum kv_prefix_event {
    KV_PREFIX_WAITING,  /* for a tool; back after about `estimate_ms`. The lease runs on */
    KV_PREFIX_FORKED,   /* children start from here: expected at once. The lease runs on */
    KV_PREFIX_FINISHED, /* ends the lease: the work is done, a follow-up is possible */
    KV_PREFIX_ABANDONED /* ends the lease: nobody comes back */
};
/* What the agent knows about the branch that ends at the lease's node. Ancestors take over the
 * best of what is known of their branches when these go. */
void kv_prefix_tell(
    struct kv_prefix *tree,
    uint64_t lease,
    enum kv_prefix_event event,
    int64_t estimate_ms,
    int64_t now_ms
);

/* Lets leases lapse and removes what outlived its lifetime; every call with a time does it too. */
void kv_prefix_advance(struct kv_prefix *tree, int64_t now_ms);
/* Removes unleased leaves until `blocks` blocks became free or none is left: abandoned ones first,
 * then finished ones, then the latest expected return (unknown is latest), then the least
 * recently used. O(log nodes) each. Returns the number of blocks that became free. */
int32_t kv_prefix_evict(struct kv_prefix *tree, int32_t blocks, int64_t now_ms);
/* Quarantines a damaged node with all that continues it, leased or not. */
void kv_prefix_remove(struct kv_prefix *tree, uint64_t node, int64_t now_ms);

struct kv_prefix_counts {
    int32_t nodes;
    int32_t evictable; /* unleased leaves */
    int32_t leases;    /* known, lapsed ones included */
    int32_t lapsed;
    uint64_t inserted, deduplicated;
    uint64_t removed[KV_PREFIX_MISSES]; /* by reason */
};
void kv_prefix_count(const struct kv_prefix *tree, struct kv_prefix_counts *out);

/* Walks the whole tree: links, hashes, order, leases and counts agree. For tests and
 * `hearth cache verify`. Expected errors: CORRUPT. */
MUST_CHECK result kv_prefix_check(const struct kv_prefix *tree, struct error *error);

#endif
