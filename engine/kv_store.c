/* Life of the KV store, lineages, counts. See kv_store.h. */
#include "kv_store_internal.h"

/* ---- memory --------------------------------------------------------------------------------- */

static struct kv_prefix_options tree_options(const struct kv_store_options *options) {
    int32_t nodes = options->nodes_max;
    if (nodes == 0) {
        nodes = options->cache->block_total;
        nodes = nodes > KV_PREFIX_NODES_MAX ? KV_PREFIX_NODES_MAX : nodes;
    }
    return (struct kv_prefix_options){
        .nodes_max = nodes,
        .leases_max = options->leases_max,
        .hash_key = options->hash_key,
        .root_lineage = options->root,
        .lease_ms = options->lease_ms,
        .lifetime_ms = options->lifetime_ms,
    };
}

static struct kv_window_options window_options(const struct kv_store_options *options) {
    return (struct kv_window_options){
        .cache = options->cache,
        .encoder_layers = options->encoder_layers,
        .window = options->window,
        .bytes_max = options->snapshot_bytes,
        .lifetime_ms = options->snapshot_lifetime_ms,
    };
}

void kv_store_measure(const struct kv_store_options *options, struct kv_store_size *out) {
    struct kv_prefix_options tree = tree_options(options);
    struct kv_window_options windows = window_options(options);
    struct kv_window_size window_size;
    kv_window_measure(&windows, &window_size);
    *out = (struct kv_store_size){
        .prefix_bytes = kv_prefix_measure(&tree),
        .snapshot_bytes = window_size.total_bytes,
        .other_bytes =
            sizeof(struct kv_store) + KV_STORE_REPLAYS_KNOWN * sizeof(struct derivation) +
            (uint64_t)window_size.slots * sizeof(struct snapshot_replays) +
            (uint64_t)options->cache->blocks_max * (sizeof(int32_t) + sizeof(struct kv_key)),
        .snapshots = window_size.slots,
    };
}

static void block_retain(void *context, int32_t block) {
    const struct kv_store *store = context;
    kv_block_share(store->options.cache, block);
}

static bool block_release(void *context, int32_t block) {
    const struct kv_store *store = context;
    return kv_block_drop(store->options.cache, block);
}

static void
node_removed(void *context, const struct kv_prefix_node *node, enum kv_prefix_miss reason) {
    struct kv_store *store = context;
    kv_window_drop_node(store->windows, node->id);
    if (reason == KV_PREFIX_MISS_EVICTED) {
        kv_store_tier_evicted(store, node);
    }
}

/* A live sequence can always grow, whatever is leased, when the pool has a share of blocks_max for each
 * sequence; with fewer, as far as it was promised by kv_cache_commit. A leased node's path consists of blocks that a sequence refers to itself
 * (what it filed or adopted, equal blocks swapped for those of the tree), or, while a prompt waits
 * for blocks of a tier, of at most the share that it does not use yet. So blocks that nothing here
 * lets go of are never more than the shares, and what a sequence asks for lies within its own:
 * leaves that are not leased, their parents then, and tails of snapshots go until it is there. */
static void make_room(void *context, int32_t blocks) {
    struct kv_store *store = context;
    const struct kv_cache *cache = store->options.cache;
    int32_t wanted = cache->block_free_count + blocks;
    (void)kv_prefix_evict(store->tree, blocks, store->now_ms);
    if (cache->block_free_count < wanted) {
        (void
        )kv_window_release_blocks(store->windows, wanted - cache->block_free_count, store->now_ms);
    }
}

static void store_cleanup(struct kv_store **store) {
    kv_store_destroy(*store);
}

static result store_fill(struct kv_store *store, struct error *error) {
    const struct kv_store_options *options = &store->options;
    struct kv_prefix_options tree = tree_options(options);
    tree.block_retain = block_retain;
    tree.block_release = block_release;
    tree.node_removed = node_removed;
    tree.context = store;
    TRY(kv_prefix_create(&store->tree, &tree, error));
    struct kv_window_options windows = window_options(options);
    struct kv_window_size size;
    kv_window_measure(&windows, &size);
    TRY(kv_window_create(&store->windows, &windows, error));
    store->snapshot_replays_count = size.slots;
    store->path = calloc((size_t)options->cache->blocks_max, sizeof *store->path);
    store->derivations = calloc(KV_STORE_REPLAYS_KNOWN, sizeof *store->derivations);
    store->snapshot_replays = calloc((size_t)size.slots + 1, sizeof *store->snapshot_replays);
    store->keys = calloc((size_t)options->cache->blocks_max, sizeof *store->keys);
    if (store->path == NULL || store->keys == NULL || store->derivations == NULL ||
        store->snapshot_replays == NULL) {
        FAIL(error, MEMORY, "no memory for the tables of the KV store");
    }
    int64_t rows = reach(store, options->encoder_layers);
    rows = rows < KV_STORE_SNAPSHOT_ROWS_MIN ? KV_STORE_SNAPSHOT_ROWS_MIN : rows;
    rows = (rows + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    store->snapshot_rows = size.slots == 0 || rows > INT32_MAX ? INT32_MAX : (int32_t)rows;
    return OK;
}

result kv_store_create(
    struct kv_store **out, const struct kv_store_options *options, struct error *error
) {
    ASSERT(options->cache != NULL);
    ASSERT(options->window > 0);
    ASSERT(options->encoder_layers >= 0 && options->encoder_layers <= options->layers);
    CLEANUP(store_cleanup) struct kv_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        FAIL(error, MEMORY, "no memory for a KV store");
    }
    store->options = *options;
    store->now_ms = INT64_MIN;
    store->write_all_ms = INT64_MIN;
    store->last_block = -1;
    TRY(store_fill(store, error));
    options->cache->make_room = make_room;
    options->cache->make_room_context = store;
    *out = TAKE(store);
    return OK;
}

void kv_store_destroy(struct kv_store *store) {
    if (store == NULL) {
        return;
    }
    if (store->options.cache->make_room_context == store) {
        store->options.cache->make_room = NULL;
        store->options.cache->make_room_context = NULL;
    }
    free(store->snapshot_replays);
    free(store->derivations);
    free(store->keys);
    free(store->path);
    kv_window_destroy(store->windows);
    kv_prefix_destroy(store->tree);
    free(store);
}

int64_t kv_store_time(struct kv_store *store, int64_t now_ms) {
    store->now_ms = now_ms > store->now_ms ? now_ms : store->now_ms;
    return store->now_ms;
}

/* ---- lineages ------------------------------------------------------------------------------- */

struct kv_lineage kv_store_lineage_at(
    const struct kv_store *store, const struct window_replay *replays, int32_t count, int32_t end
) {
    struct kv_lineage lineage = store->options.root;
    for (int32_t i = 0; i < count; i++) {
        if (replays[i].kind == WINDOW_REPLAY_ENCODER && replays[i].position < end) {
            struct kv_lineage parent = lineage;
            kv_lineage_replay(&parent, replays[i].position, &lineage);
        }
    }
    return lineage;
}

static const struct derivation *
find_derivation(const struct kv_store *store, const struct kv_lineage *child) {
    for (int32_t i = 0; i < KV_STORE_REPLAYS_KNOWN; i++) {
        const struct derivation *known = &store->derivations[i];
        if (known->position > 0 && kv_lineage_equals(&known->child, child)) {
            return known;
        }
    }
    return NULL;
}

void kv_store_note_replay(
    struct kv_store *store, const struct kv_lineage *parent, int32_t position
) {
    struct derivation derivation = {.parent = *parent, .position = position};
    kv_lineage_replay(parent, position, &derivation.child);
    if (store->options.tier != NULL) {
        kv_tier_note_lineage(store->options.tier, &derivation.child, parent, position);
    }
    if (find_derivation(store, &derivation.child) == NULL) {
        store->derivations[store->derivation_next] = derivation;
        store->derivation_next = (store->derivation_next + 1) % KV_STORE_REPLAYS_KNOWN;
    }
}

bool kv_store_resolve(
    const struct kv_store *store,
    const struct kv_lineage *lineage,
    struct window_replay out[ENGINE_REPLAYS_MAX],
    int32_t *count
) {
    struct kv_lineage at = *lineage;
    int32_t some = 0;
    while (!is_root(store, &at)) {
        const struct derivation *known = find_derivation(store, &at);
        if (known == NULL || some == ENGINE_REPLAYS_MAX - 2) {
            return false;
        }
        out[some++] =
            (struct window_replay){.kind = WINDOW_REPLAY_ENCODER, .position = known->position};
        at = known->parent;
    }
    for (int32_t i = 0; i < some / 2; i++) {
        struct window_replay other = out[i];
        out[i] = out[some - 1 - i];
        out[some - 1 - i] = other;
    }
    *count = some;
    return true;
}

void kv_store_add_replay(
    struct kv_store *store,
    struct kv_binding *binding,
    enum window_replay_kind kind,
    int32_t position
) {
    ASSERT(binding->replay_count < ENGINE_REPLAYS_MAX);
    binding->replays[binding->replay_count++] =
        (struct window_replay){.kind = kind, .position = position};
    if (kind == WINDOW_REPLAY_ENCODER) {
        struct kv_lineage parent = binding->lineage;
        kv_store_note_replay(store, &parent, position);
        kv_lineage_replay(&parent, position, &binding->lineage);
    } else {
        struct kv_lineage parent = binding->decoder_lineage;
        kv_lineage_decoder_replay(&parent, position, &binding->decoder_lineage);
        binding->has_decoder_lineage = true;
    }
}

/* ---- counts --------------------------------------------------------------------------------- */

void kv_store_count(const struct kv_store *store, struct kv_store_counts *out) {
    *out = store->counts;
    kv_prefix_count(store->tree, &out->tree);
    kv_window_count(store->windows, &out->windows);
}

result kv_store_check(const struct kv_store *store, struct error *error) {
    return kv_prefix_check(store->tree, error);
}
