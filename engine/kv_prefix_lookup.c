/* Lookup in the prefix tree, and why it ended where it did. See kv_prefix.h. */
#include "kv_prefix_internal.h"

/* Blocks hashed before they are compared: a tree of a million nodes is in no cache, so the nodes'
 * memory is asked for ahead. */
#define AHEAD 4

struct request {
    const struct kv_prefix *tree;
    const int32_t *tokens;
    int32_t count;
    int32_t limit; /* even, and below the last token: no hit goes further */
    bool any_lineage;
};

/* Where a lookup could end. */
struct candidate {
    int32_t node;
    int32_t partial;  /* a child of it, or NOWHERE */
    int32_t shared;   /* tokens of the next block shared with some accepted child */
    int32_t position; /* after the cut */
    int32_t exact_blocks;
    bool is_exact;
};

static bool is_accepted(const struct request *request, int32_t index) {
    return request->any_lineage || request->tree->nodes[index].is_exact;
}

static int32_t first_equal(const struct kv_prefix *tree, const struct node_key *key) {
    return node_equal(tree, tree->buckets[key->hash & tree->bucket_mask], key);
}

static int32_t exact_equal(const struct kv_prefix *tree, const struct node_key *key) {
    int32_t found = first_equal(tree, key);
    while (found != NOWHERE && !tree->nodes[found].is_exact) {
        found = node_equal(tree, tree->nodes[found].chain_next, key);
    }
    return found;
}

/* The key of the block after `node` in the prompt, which must hold it whole. */
static struct node_key next_key(const struct request *request, int32_t node) {
    const struct node *at = &request->tree->nodes[node];
    const int32_t *tokens = request->tokens + (size_t)at->depth * KV_BLOCK_TOKENS;
    return (struct node_key
    ){.parent = node, .tokens = tokens, .hash = chain_hash(request->tree, at->hash, tokens)};
}

static bool holds_next(const struct request *request, int32_t node) {
    return request->count / KV_BLOCK_TOKENS > request->tree->nodes[node].depth;
}

static int32_t count_shared(const int32_t *a, const int32_t *b, int32_t count) {
    int32_t shared = 0;
    while (shared < count && a[shared] == b[shared]) {
        shared++;
    }
    return shared;
}

/* Considers one child for the part of the next block that it shares. */
static void
consider_child(const struct request *request, int32_t child, struct candidate *candidate) {
    const struct kv_prefix *tree = request->tree;
    int32_t start = tree->nodes[candidate->node].depth * KV_BLOCK_TOKENS;
    int32_t left = request->count - start;
    left = left < KV_BLOCK_TOKENS ? left : KV_BLOCK_TOKENS;
    int32_t shared = count_shared(node_tokens(tree, child), request->tokens + start, left);
    if (shared > candidate->shared) {
        candidate->shared = shared;
    }
    int32_t position = start + shared;
    position = (position < request->limit ? position : request->limit) & ~1;
    if (position == start) {
        return;
    }
    bool is_better = position > candidate->position ||
                     (position == candidate->position && candidate->partial != NOWHERE &&
                      tree->nodes[child].is_exact && !candidate->is_exact);
    if (is_better) {
        candidate->position = position;
        candidate->partial = child;
        candidate->is_exact = tree->nodes[child].is_exact;
    }
}

/* What reuse would be if the whole blocks end with `node`. */
static struct candidate consider(const struct request *request, int32_t node) {
    const struct kv_prefix *tree = request->tree;
    const struct node *at = &tree->nodes[node];
    struct candidate candidate = {
        .node = node,
        .partial = NOWHERE,
        .position = at->depth * KV_BLOCK_TOKENS,
        .is_exact = at->is_exact,
    };
    int32_t above = node;
    while (!tree->nodes[above].is_exact) {
        above = tree->nodes[above].parent;
    }
    candidate.exact_blocks = tree->nodes[above].depth;
    if (candidate.position >= request->limit) {
        return candidate; /* also an empty or one-token prompt */
    }
    if (holds_next(request, node)) { /* the prompt itself, cut before its last token */
        struct node_key key = next_key(request, node);
        for (int32_t i = first_equal(tree, &key); i != NOWHERE;
             i = node_equal(tree, tree->nodes[i].chain_next, &key)) {
            if (is_accepted(request, i)) {
                consider_child(request, i, &candidate);
            }
        }
    }
    int32_t scanned = 0;
    for (int32_t i = at->first_child; i != NOWHERE && scanned < KV_PREFIX_SIBLINGS_SCANNED;
         i = tree->nodes[i].sibling_next) {
        scanned++;
        if (is_accepted(request, i)) {
            consider_child(request, i, &candidate);
        }
    }
    return candidate;
}

/* Longest first, exact first on ties, then more exact blocks. */
static bool is_better(const struct candidate *a, const struct candidate *b) {
    if (a->position != b->position) {
        return a->position > b->position;
    }
    if (a->is_exact != b->is_exact) {
        return a->is_exact;
    }
    return a->exact_blocks > b->exact_blocks;
}

/* Every node that matches, depth first: equal tokens may lie there in several lineages. */
static struct candidate find_any(const struct request *request) {
    const struct kv_prefix *tree = request->tree;
    struct candidate best = {.node = NOWHERE};
    int32_t at = 0;
    for (;;) {
        int32_t child = NOWHERE;
        if (request->limit / KV_BLOCK_TOKENS > tree->nodes[at].depth) {
            struct node_key key = next_key(request, at);
            child = first_equal(tree, &key);
        }
        if (child == NOWHERE) {
            struct candidate found = consider(request, at);
            if (best.node == NOWHERE || is_better(&found, &best)) {
                best = found;
            }
        }
        while (child == NOWHERE && at != 0) {
            struct node_key key = {
                .parent = tree->nodes[at].parent,
                .tokens = node_tokens(tree, at),
                .hash = tree->nodes[at].hash,
            };
            child = node_equal(tree, tree->nodes[at].chain_next, &key);
            at = tree->nodes[at].parent;
        }
        if (child == NOWHERE) {
            return best;
        }
        at = child;
    }
}

/* Inlined always: gcc 12 takes a function that only prefetches for one without effect, and drops
 * the calls. */
__attribute__((always_inline)) static inline void
prefetch_node(const struct kv_prefix *tree, uint64_t hash) {
    int32_t index = tree->buckets[hash & tree->bucket_mask];
    if (index == NOWHERE) {
        return;
    }
    const char *node = (const char *)&tree->nodes[index];
    const char *tokens = (const char *)node_tokens(tree, index);
    __builtin_prefetch(node);
    for (int32_t i = 0; i < KV_BLOCK_TOKENS * 4; i += 64) {
        __builtin_prefetch(tokens + i);
    }
}

/* The one path of exact nodes. Hashes run 2 * AHEAD blocks before the comparison: first the bucket
 * is asked for, AHEAD blocks later the node that it names. */
static struct candidate find_exact(const struct request *request) {
    const struct kv_prefix *tree = request->tree;
    int32_t blocks = request->limit / KV_BLOCK_TOKENS;
    uint64_t hashes[4 * AHEAD] = {0};
    uint64_t last = tree->nodes[0].hash;
    int32_t hashed = 0;
    int32_t at = 0;
    for (int32_t i = -2 * AHEAD; i < blocks; i++) {
        if (hashed < blocks) {
            last = chain_hash(tree, last, request->tokens + (size_t)hashed * KV_BLOCK_TOKENS);
            hashes[hashed % (4 * AHEAD)] = last;
            __builtin_prefetch(&tree->buckets[last & tree->bucket_mask]);
            hashed++;
        }
        int32_t ahead = i + AHEAD;
        if (ahead >= 0 && ahead < hashed) {
            prefetch_node(tree, hashes[ahead % (4 * AHEAD)]);
        }
        if (i >= 0) {
            struct node_key key = {
                .parent = at,
                .tokens = request->tokens + (size_t)i * KV_BLOCK_TOKENS,
                .hash = hashes[i % (4 * AHEAD)],
            };
            int32_t child = exact_equal(tree, &key);
            if (child == NOWHERE) {
                break;
            }
            at = child;
        }
    }
    return consider(request, at);
}

static enum kv_prefix_miss find_ghost(const struct request *request, uint64_t hash) {
    const struct kv_prefix *tree = request->tree;
    int32_t i = tree->ghost_buckets[hash & tree->ghost_mask];
    for (; i != NOWHERE; i = tree->ghosts[i].next) {
        const struct ghost *ghost = &tree->ghosts[i];
        if (ghost->hash == hash && (request->any_lineage || ghost->is_exact)) {
            return (enum kv_prefix_miss)ghost->miss;
        }
    }
    return KV_PREFIX_MISS_NONE;
}

/* Why the match ends at `best`, the first position that nothing accepted shares. */
static enum kv_prefix_miss
find_reason(const struct request *request, const struct candidate *best, int32_t *token) {
    const struct kv_prefix *tree = request->tree;
    const struct node *node = &tree->nodes[best->node];
    *token = node->depth * KV_BLOCK_TOKENS + best->shared;
    if (best->position >= request->limit) {
        *token = request->limit;
        return KV_PREFIX_MISS_NONE;
    }
    if (holds_next(request, best->node)) {
        struct node_key key = next_key(request, best->node);
        enum kv_prefix_miss removed = find_ghost(request, key.hash);
        if (removed != KV_PREFIX_MISS_NONE) {
            return removed;
        }
        if (first_equal(tree, &key) != NOWHERE) {
            return KV_PREFIX_MISS_OTHER_LINEAGE;
        }
    }
    bool has_other_text = best->shared > 0 || (best->node != 0 && node->first_child != NOWHERE);
    return has_other_text ? KV_PREFIX_MISS_DIVERGENT : KV_PREFIX_MISS_NEVER_COMPUTED;
}

void kv_prefix_lookup(
    const struct kv_prefix *tree,
    const int32_t *tokens,
    int32_t count,
    bool any_lineage,
    struct kv_prefix_match *out
) {
    ASSERT(count >= 0);
    struct request request = {
        .tree = tree,
        .tokens = tokens,
        .count = count,
        .limit = count > 0 ? (count - 1) & ~1 : 0,
        .any_lineage = any_lineage,
    };
    struct candidate best = any_lineage ? find_any(&request) : find_exact(&request);
    int32_t last = best.partial != NOWHERE ? best.partial : best.node;
    *out = (struct kv_prefix_match){
        .node = id_make(tree->nodes[best.node].generation, best.node),
        .blocks = tree->nodes[best.node].depth,
        .position = best.position,
        .partial = best.partial == NOWHERE
                       ? KV_PREFIX_ROOT
                       : id_make(tree->nodes[best.partial].generation, best.partial),
        .is_exact = best.is_exact,
        .lineage = tree->nodes[last].lineage,
    };
    out->miss = find_reason(&request, &best, &out->miss_token);
}
