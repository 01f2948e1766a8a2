/* The prefix tree: creation, insertion and removal of nodes. See kv_prefix.h. */
#include "kv_prefix_internal.h"

#include <assert.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEASE_MS_DEFAULT    60000
#define LIFETIME_MS_DEFAULT (72LL * 3600 * 1000)
#define OVERDUE_MS_DEFAULT  600000

/* A tree of fewer nodes fits into the second-level translation buffer with small pages. */
#define HUGE_PAGES_FROM 8192

static_assert(KV_BLOCK_TOKENS * sizeof(int32_t) % 64 == 0, "the hash reads 64 bytes at a time");

/* Product of two words folded to one: the mixing step of wyhash. */
static uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 product = a;
    product *= b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Two lanes, so that the multiplications of one hide behind the other's. */
static uint64_t hash_block(uint64_t key, uint64_t parent, const int32_t *tokens) {
    static const uint64_t odd[] = {
        0xA0761D6478BD642FU, 0xE7037ED1A0B428DBU, 0x8EBC6AF09C88C6E3U, 0x589965CC75374CC3U};
    uint64_t first = parent ^ key;
    uint64_t second = parent ^ odd[3];
    for (int32_t i = 0; i < KV_BLOCK_TOKENS; i += 8) {
        uint64_t words[4];
        memcpy(words, tokens + i, sizeof words);
        first = mix(words[0] ^ odd[0] ^ key, words[1] ^ first);
        second = mix(words[2] ^ odd[1] ^ key, words[3] ^ second);
    }
    return mix(first ^ odd[2], second ^ key);
}

uint64_t chain_hash(const struct kv_prefix *tree, uint64_t parent_hash, const int32_t *tokens) {
    return hash_block(tree->options.hash_key, parent_hash, tokens) & ~tree->options.hash_drop;
}

const char *kv_prefix_miss_name(enum kv_prefix_miss miss) {
    static const char *const names[KV_PREFIX_MISSES] = {
        "none",
        "never_computed",
        "evicted",
        "expired",
        "damaged",
        "other_lineage",
        "divergent",
        "not_read",
    };
    ASSERT((size_t)miss < COUNT_OF(names));
    return names[miss];
}

static uint32_t power_of_two(int32_t at_least) {
    uint32_t size = 1;
    while (size < (uint32_t)at_least) {
        size *= 2;
    }
    return size;
}

static int32_t ghosts_of(const struct kv_prefix_options *options) {
    return options->ghosts_max > 0 ? options->ghosts_max : options->nodes_max / 4 + 1;
}

uint64_t kv_prefix_measure(const struct kv_prefix_options *options) {
    uint64_t nodes = (uint64_t)options->nodes_max + 1;
    uint64_t leases = (uint64_t)options->leases_max;
    uint64_t ghosts = (uint64_t)ghosts_of(options);
    uint64_t node_bytes =
        sizeof(struct node) + sizeof(struct kv_key) + (KV_BLOCK_TOKENS + 4) * sizeof(int32_t);
    uint64_t buckets = power_of_two(options->nodes_max) + power_of_two(ghosts_of(options));
    return sizeof(struct kv_prefix) + nodes * node_bytes + buckets * sizeof(int32_t) +
           leases * (sizeof(struct lease) + 2 * sizeof(int32_t)) + ghosts * sizeof(struct ghost);
}

/* A walk touches ten cache lines at a random place per block; with small pages most of its time
 * would go into page table walks. A hint: nothing depends on it. */
static void ask_for_huge_pages(void *memory, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)memory + bytes) / page * page;
    if (first < last) {
        (void)madvise((void *)first, last - first, MADV_HUGEPAGE);
    }
}

static bool heap_allocate(struct heap *heap, int32_t count) {
    heap->items = calloc((size_t)count, sizeof *heap->items);
    heap->slots = calloc((size_t)count, sizeof *heap->slots);
    if (heap->items == NULL || heap->slots == NULL) {
        return false;
    }
    memset(heap->slots, 0xFF, (size_t)count * sizeof *heap->slots);
    return true;
}

static bool tree_allocate(struct kv_prefix *tree) {
    const struct kv_prefix_options *options = &tree->options;
    size_t nodes = (size_t)options->nodes_max + 1;
    size_t buckets = power_of_two(options->nodes_max);
    size_t ghosts = (size_t)options->ghosts_max;
    size_t ghost_buckets = power_of_two(options->ghosts_max);
    tree->nodes = calloc(nodes, sizeof *tree->nodes);
    tree->tokens = calloc(nodes, KV_BLOCK_TOKENS * sizeof *tree->tokens);
    tree->keys = calloc(nodes, sizeof *tree->keys);
    tree->buckets = calloc(buckets, sizeof *tree->buckets);
    tree->leases = calloc((size_t)options->leases_max, sizeof *tree->leases);
    tree->ghosts = calloc(ghosts, sizeof *tree->ghosts);
    tree->ghost_buckets = calloc(ghost_buckets, sizeof *tree->ghost_buckets);
    if (tree->nodes == NULL || tree->tokens == NULL || tree->keys == NULL ||
        tree->buckets == NULL || tree->leases == NULL || tree->ghosts == NULL ||
        tree->ghost_buckets == NULL || !heap_allocate(&tree->evict_order, options->nodes_max + 1) ||
        !heap_allocate(&tree->due_order, options->nodes_max + 1) ||
        !heap_allocate(&tree->lease_order, options->leases_max)) {
        return false;
    }
    if (nodes >= HUGE_PAGES_FROM) {
        ask_for_huge_pages(tree->nodes, nodes * sizeof *tree->nodes);
        ask_for_huge_pages(tree->tokens, nodes * KV_BLOCK_TOKENS * sizeof *tree->tokens);
        ask_for_huge_pages(tree->buckets, buckets * sizeof *tree->buckets);
    }
    memset(tree->buckets, 0xFF, buckets * sizeof *tree->buckets);
    memset(tree->ghost_buckets, 0xFF, ghost_buckets * sizeof *tree->ghost_buckets);
    tree->bucket_mask = (uint32_t)buckets - 1;
    tree->ghost_mask = (uint32_t)ghost_buckets - 1;
    return true;
}

static void tree_link_free(struct kv_prefix *tree) {
    for (int32_t i = 1; i <= tree->options.nodes_max; i++) {
        tree->nodes[i].generation = 1;
        tree->nodes[i].parent = i < tree->options.nodes_max ? i + 1 : NOWHERE;
    }
    tree->node_free = 1;
    for (int32_t i = 0; i < tree->options.leases_max; i++) {
        tree->leases[i].generation = 1;
        tree->leases[i].next_free = i + 1 < tree->options.leases_max ? i + 1 : NOWHERE;
    }
    tree->lease_free = 0;
    tree->nodes[0] = (struct node){
        .hash = tree->options.hash_key,
        .lineage = tree->options.root_lineage,
        .parent = NOWHERE,
        .chain_next = NOWHERE,
        .first_child = NOWHERE,
        .sibling_next = NOWHERE,
        .sibling_previous = NOWHERE,
        .block = NOWHERE,
        .expected_ms = NEVER,
        .is_exact = true,
        .is_live = true,
    };
}

result kv_prefix_create(
    struct kv_prefix **out, const struct kv_prefix_options *options, struct error *error
) {
    ASSERT(options->block_retain != NULL);
    ASSERT(options->block_release != NULL);
    if (options->nodes_max < 1 || options->nodes_max > KV_PREFIX_NODES_MAX ||
        options->leases_max < 1 || options->leases_max > KV_PREFIX_LEASES_MAX ||
        options->ghosts_max < 0 || options->ghosts_max > KV_PREFIX_NODES_MAX ||
        options->lease_ms < 0 || options->lifetime_ms < 0 || options->overdue_ms < 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "a prefix tree of %d nodes (1 to %d), %d leases (1 to %d), %d ghosts, times %lld, "
            "%lld and %lld ms",
            options->nodes_max,
            KV_PREFIX_NODES_MAX,
            options->leases_max,
            KV_PREFIX_LEASES_MAX,
            options->ghosts_max,
            (long long)options->lease_ms,
            (long long)options->lifetime_ms,
            (long long)options->overdue_ms
        );
    }
    struct kv_prefix *tree = calloc(1, sizeof *tree);
    if (tree == NULL) {
        FAIL(error, MEMORY, "no memory for a prefix tree");
    }
    tree->options = *options;
    tree->options.ghosts_max = ghosts_of(options);
    tree->options.lease_ms = options->lease_ms > 0 ? options->lease_ms : LEASE_MS_DEFAULT;
    tree->options.lifetime_ms =
        options->lifetime_ms > 0 ? options->lifetime_ms : LIFETIME_MS_DEFAULT;
    tree->options.overdue_ms = options->overdue_ms > 0 ? options->overdue_ms : OVERDUE_MS_DEFAULT;
    tree->now_ms = INT64_MIN;
    if (!tree_allocate(tree)) {
        uint64_t bytes = kv_prefix_measure(options);
        kv_prefix_destroy(tree);
        FAIL(
            error,
            MEMORY,
            "no memory for a prefix tree of %d nodes (%llu bytes)",
            options->nodes_max,
            (unsigned long long)bytes
        );
    }
    tree_link_free(tree);
    order_init(tree);
    *out = tree;
    return OK;
}

static void heap_free(struct heap *heap) {
    free(heap->slots);
    free(heap->items);
}

void kv_prefix_destroy(struct kv_prefix *tree) {
    if (tree == NULL) {
        return;
    }
    for (int32_t i = 1; tree->nodes != NULL && i <= tree->options.nodes_max; i++) {
        if (tree->nodes[i].is_live) {
            (void)tree->options.block_release(tree->options.context, tree->nodes[i].block);
        }
    }
    heap_free(&tree->lease_order);
    heap_free(&tree->due_order);
    heap_free(&tree->evict_order);
    free(tree->ghost_buckets);
    free(tree->ghosts);
    free(tree->leases);
    free(tree->buckets);
    free(tree->keys);
    free(tree->tokens);
    free(tree->nodes);
    free(tree);
}

int32_t node_find(const struct kv_prefix *tree, uint64_t id) {
    uint32_t index = (uint32_t)id;
    if (index > (uint32_t)tree->options.nodes_max) {
        return NOWHERE;
    }
    const struct node *node = &tree->nodes[index];
    return node->is_live && node->generation == id >> 32 ? (int32_t)index : NOWHERE;
}

int32_t node_equal(const struct kv_prefix *tree, int32_t from, const struct node_key *key) {
    for (int32_t i = from; i != NOWHERE; i = tree->nodes[i].chain_next) {
        const struct node *node = &tree->nodes[i];
        if (node->hash == key->hash && node->parent == key->parent &&
            memcmp(node_tokens(tree, i), key->tokens, KV_BLOCK_TOKENS * sizeof(int32_t)) == 0) {
            return i;
        }
    }
    return NOWHERE;
}

/* ---- nodes that are not written ---- */

void queue_append(struct kv_prefix *tree, int32_t index) {
    struct node *node = &tree->nodes[index];
    struct node *end = &tree->nodes[0];
    ASSERT(node->queue_next == index);
    node->queue_next = 0;
    node->queue_previous = end->queue_previous;
    tree->nodes[end->queue_previous].queue_next = index;
    end->queue_previous = index;
}

void queue_remove(struct kv_prefix *tree, int32_t index) {
    struct node *node = &tree->nodes[index];
    ASSERT(index != 0);
    tree->nodes[node->queue_previous].queue_next = node->queue_next;
    tree->nodes[node->queue_next].queue_previous = node->queue_previous;
    node->queue_next = index;
    node->queue_previous = index;
}

static uint64_t id_of(const struct kv_prefix *tree, int32_t index) {
    return index == 0 ? KV_PREFIX_ROOT : id_make(tree->nodes[index].generation, index);
}

static void describe(const struct kv_prefix *tree, int32_t index, struct kv_prefix_node *out) {
    const struct node *node = &tree->nodes[index];
    *out = (struct kv_prefix_node){
        .id = id_of(tree, index),
        .parent = id_of(tree, node->parent),
        .key = tree->keys[index],
        .parent_key = tree->keys[node->parent],
        .lineage = node->lineage,
        .tokens = node_tokens(tree, index),
        .block = node->block,
        .depth = node->depth,
        .filed_ms = node->filed_ms,
        .is_abandoned = node->stamp == STAMP_ABANDONED && node->lease_count == 0,
        .is_wanted = node->queue_next != index,
    };
}

bool kv_prefix_get(const struct kv_prefix *tree, uint64_t node, struct kv_prefix_node *out) {
    int32_t index = node_find(tree, node);
    if (index == NOWHERE || index == 0) {
        return false;
    }
    describe(tree, index, out);
    return true;
}

uint64_t kv_prefix_unwritten(const struct kv_prefix *tree) {
    return id_of(tree, tree->nodes[0].queue_next);
}

uint64_t kv_prefix_unwritten_next(const struct kv_prefix *tree, uint64_t node) {
    int32_t index = node_find(tree, node);
    ASSERT(index > 0);
    ASSERT(tree->nodes[index].queue_next != index);
    return id_of(tree, tree->nodes[index].queue_next);
}

void kv_prefix_forget_unwritten(struct kv_prefix *tree, uint64_t node) {
    int32_t index = node_find(tree, node);
    if (index != NOWHERE && index != 0) {
        queue_remove(tree, index);
    }
}

void kv_prefix_forget_branch(struct kv_prefix *tree, uint64_t node) {
    int32_t index = node_find(tree, node);
    while (index != NOWHERE && index != 0) {
        const struct node *at = &tree->nodes[index];
        int32_t child = at->first_child;
        if (at->lease_count > 0 ||
            (child != NOWHERE && tree->nodes[child].sibling_next != NOWHERE)) {
            return;
        }
        queue_remove(tree, index);
        index = at->parent;
    }
}

/* Forgets the oldest ghost when the ring is full. */
static void ghost_add(struct kv_prefix *tree, const struct node *node, enum kv_prefix_miss miss) {
    struct ghost *ghost = &tree->ghosts[tree->ghost_next];
    if (ghost->miss != KV_PREFIX_MISS_NONE) {
        int32_t *link = &tree->ghost_buckets[ghost->hash & tree->ghost_mask];
        while (*link != tree->ghost_next) {
            ASSERT(*link != NOWHERE);
            link = &tree->ghosts[*link].next;
        }
        *link = ghost->next;
    }
    int32_t *head = &tree->ghost_buckets[node->hash & tree->ghost_mask];
    *ghost = (struct ghost
    ){.hash = node->hash, .next = *head, .miss = (uint8_t)miss, .is_exact = node->is_exact};
    *head = tree->ghost_next;
    tree->ghost_next = (tree->ghost_next + 1) % tree->options.ghosts_max;
}

static void link_node(struct kv_prefix *tree, int32_t index) {
    struct node *node = &tree->nodes[index];
    struct node *parent = &tree->nodes[node->parent];
    int32_t *head = &tree->buckets[node->hash & tree->bucket_mask];
    node->chain_next = *head;
    *head = index;
    node->sibling_previous = NOWHERE;
    node->sibling_next = parent->first_child;
    if (parent->first_child != NOWHERE) {
        tree->nodes[parent->first_child].sibling_previous = index;
    }
    parent->first_child = index;
}

static void unlink_node(struct kv_prefix *tree, int32_t index) {
    struct node *node = &tree->nodes[index];
    int32_t *link = &tree->buckets[node->hash & tree->bucket_mask];
    while (*link != index) {
        ASSERT(*link != NOWHERE);
        link = &tree->nodes[*link].chain_next;
    }
    *link = node->chain_next;
    if (node->sibling_previous == NOWHERE) {
        ASSERT(tree->nodes[node->parent].first_child == index);
        tree->nodes[node->parent].first_child = node->sibling_next;
    } else {
        tree->nodes[node->sibling_previous].sibling_next = node->sibling_next;
    }
    if (node->sibling_next != NOWHERE) {
        tree->nodes[node->sibling_next].sibling_previous = node->sibling_previous;
    }
}

/* What it knew goes to its parent. */
static void pass_up(struct kv_prefix *tree, const struct node *node) {
    struct node *parent = &tree->nodes[node->parent];
    if (node->parent != 0) {
        enum stamp known = node->stamp == STAMP_UNTOLD ? STAMP_OPEN : (enum stamp)node->stamp;
        stamp_merge(parent, known, node->expected_ms);
        parent->used_ms = node->used_ms > parent->used_ms ? node->used_ms : parent->used_ms;
        parent->used = node->used > parent->used ? node->used : parent->used;
    }
}

bool node_remove(struct kv_prefix *tree, int32_t index, enum kv_prefix_miss miss) {
    ASSERT(index > 0);
    struct node *node = &tree->nodes[index];
    ASSERT(node->is_live);
    ASSERT(node->first_child == NOWHERE);
    if (tree->options.node_removed != NULL) {
        struct kv_prefix_node about;
        describe(tree, index, &about);
        tree->options.node_removed(tree->options.context, &about, miss);
    }
    queue_remove(tree, index);
    int32_t above = node->parent;
    unlink_node(tree, index);
    ghost_add(tree, node, miss);
    pass_up(tree, node);
    int32_t block = node->block;
    node->is_live = false;
    node->generation = node->generation == UINT32_MAX ? 1 : node->generation + 1;
    node->lease_count = 0; /* leases on it find its generation gone */
    order_update(tree, index);
    order_update(tree, above);
    node->parent = tree->node_free;
    tree->node_free = index;
    tree->counts.nodes--;
    tree->counts.removed[miss]++;
    return tree->options.block_release(tree->options.context, block);
}

/* A slot for a new child of `parent`, which must not go to make room for it. */
static int32_t take_slot(struct kv_prefix *tree, int32_t parent) {
    if (tree->node_free == NOWHERE) {
        struct node *kept = &tree->nodes[parent];
        kept->lease_count++;
        order_update(tree, parent);
        if (tree->evict_order.count > 0) {
            (void)node_remove(tree, tree->evict_order.items[0], KV_PREFIX_MISS_EVICTED);
        }
        kept->lease_count--;
        order_update(tree, parent);
    }
    int32_t index = tree->node_free;
    if (index != NOWHERE) {
        tree->node_free = tree->nodes[index].parent;
    }
    return index;
}

static void fill_node(
    struct kv_prefix *tree,
    int32_t index,
    const struct node_key *key,
    const struct kv_lineage *lineage,
    int32_t block
) {
    struct node *node = &tree->nodes[index];
    const struct node *parent = &tree->nodes[key->parent];
    *node = (struct node){
        .hash = key->hash,
        .lineage = *lineage,
        .generation = node->generation,
        .parent = key->parent,
        .first_child = NOWHERE,
        .block = block,
        .depth = parent->depth + 1,
        .used_ms = tree->now_ms,
        .used = ++tree->use,
        .expected_ms = NEVER,
        .queue_next = index,
        .queue_previous = index,
        .filed_ms = tree->now_ms,
        .stamp = STAMP_UNTOLD,
        .is_exact = memcmp(lineage, &tree->options.root_lineage, sizeof *lineage) == 0,
        .is_live = true,
    };
    ASSERT(parent->is_exact || !node->is_exact);
    memcpy(
        tree->tokens + (size_t)index * KV_BLOCK_TOKENS,
        key->tokens,
        KV_BLOCK_TOKENS * sizeof(int32_t)
    );
    kv_key_make(&tree->keys[key->parent], lineage, key->tokens, &tree->keys[index]);
    link_node(tree, index);
    queue_append(tree, index);
    tree->counts.nodes++;
    tree->counts.inserted++;
    order_update(tree, index);
    order_update(tree, key->parent);
}

result kv_prefix_insert(
    struct kv_prefix *tree,
    uint64_t parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    int32_t block,
    int64_t now_ms,
    struct kv_prefix_insertion *out,
    struct error *error
) {
    ASSERT(block >= 0);
    kv_prefix_advance(tree, now_ms);
    int32_t above = node_find(tree, parent);
    if (above == NOWHERE) {
        FAIL(error, NOT_FOUND, "prefix node %llx is gone", (unsigned long long)parent);
    }
    struct node_key key = {
        .parent = above,
        .tokens = tokens,
        .hash = chain_hash(tree, tree->nodes[above].hash, tokens),
    };
    int32_t equal = node_equal(tree, tree->buckets[key.hash & tree->bucket_mask], &key);
    while (equal != NOWHERE && memcmp(&tree->nodes[equal].lineage, lineage, sizeof *lineage) != 0) {
        equal = node_equal(tree, tree->nodes[equal].chain_next, &key);
    }
    bool is_new = equal == NOWHERE;
    if (is_new) {
        equal = take_slot(tree, above);
        if (equal == NOWHERE) {
            FAIL(
                error,
                LIMIT,
                "all %d nodes of the prefix tree are leased or lead to leased ones",
                tree->options.nodes_max
            );
        }
        fill_node(tree, equal, &key, lineage, block);
    } else {
        struct node *node = &tree->nodes[equal];
        node->used = ++tree->use;
        node->used_ms = tree->now_ms;
        order_update(tree, equal);
        tree->counts.deduplicated++;
        (void)tree->options.block_release(tree->options.context, block);
    }
    *out = (struct kv_prefix_insertion){
        .node = id_make(tree->nodes[equal].generation, equal),
        .block = tree->nodes[equal].block,
        .is_new = is_new,
    };
    return OK;
}

int32_t kv_prefix_block(const struct kv_prefix *tree, uint64_t node) {
    int32_t index = node_find(tree, node);
    return index == NOWHERE ? NOWHERE : tree->nodes[index].block;
}

result kv_prefix_retain_path(
    const struct kv_prefix *tree,
    uint64_t node,
    int32_t *blocks,
    int32_t capacity,
    int32_t *count,
    struct error *error
) {
    int32_t index = node_find(tree, node);
    if (index == NOWHERE) {
        FAIL(error, NOT_FOUND, "prefix node %llx is gone", (unsigned long long)node);
    }
    int32_t depth = tree->nodes[index].depth;
    if (depth > capacity) {
        FAIL(error, LIMIT, "a path of %d blocks does not fit into %d", depth, capacity);
    }
    *count = depth;
    for (; index != 0; index = tree->nodes[index].parent) {
        blocks[tree->nodes[index].depth - 1] = tree->nodes[index].block;
        tree->options.block_retain(tree->options.context, tree->nodes[index].block);
    }
    return OK;
}

void kv_prefix_remove(struct kv_prefix *tree, uint64_t node, int64_t now_ms) {
    kv_prefix_advance(tree, now_ms);
    int32_t top = node_find(tree, node);
    if (top == NOWHERE || top == 0) {
        return;
    }
    int32_t at = top;
    for (;;) {
        while (tree->nodes[at].first_child != NOWHERE) {
            at = tree->nodes[at].first_child;
        }
        int32_t above = tree->nodes[at].parent;
        (void)node_remove(tree, at, KV_PREFIX_MISS_DAMAGED);
        if (at == top) {
            return;
        }
        at = above;
    }
}
