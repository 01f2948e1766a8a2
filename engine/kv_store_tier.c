/* Blocks that go to the tiers below and come back. See kv_store.h and kv_tier.h. */
#include "kv_store_internal.h"

/* Keys made before asking whether the tiers have them: a prompt of which they have nothing costs no
 * more than these. */
#define KEYS_AT_ONCE 64
/* Approximate lineages tried for one continuation. */
#define LINEAGES_TRIED 8
/* A path may change its lineage at every replay; each takes one read. */
#define READS_MAX ENGINE_REPLAYS_MAX
/* A read may end without a word when its wake is missed: asked again after this. */
#define READ_POLL_MS 5
/* Copied by one poll, whose caller holds the engine's lock: below a millisecond. */
#define POLL_BYTES ((size_t)1 << 20)
/* The queue to disk is full, or the budget of the hour is spent. */
#define WRITE_RETRY_MS 200

/* ---- coming back ---------------------------------------------------------------------------- */

static void give_back(struct kv_store *store) {
    kv_tier_done(store->options.tier, &store->batch);
    store->has_batch = false;
}

static void stop_waiting(struct kv_store *store, struct kv_binding *binding) {
    if (store->has_batch && store->batch.ticket == binding->ticket) {
        give_back(store);
    }
    struct kv_binding **link = &store->waiting;
    while (*link != NULL && *link != binding) {
        link = &(*link)->waiting_next;
    }
    if (*link != NULL) {
        *link = binding->waiting_next;
    }
    binding->waiting_next = NULL;
    binding->is_waiting = false;
    binding->ticket = 0;
}

void kv_store_tier_cancel(struct kv_store *store, struct kv_binding *binding) {
    if (binding->is_waiting) {
        kv_tier_cancel(store->options.tier, binding->ticket);
        stop_waiting(store, binding);
    }
}

/* Whether a block behind `blocks` whole ones of lineage `parent` can be of a lineage with these
 * replays. Files are foreign: what they say of positions need not fit where they say it. */
static bool is_possible(
    const struct kv_store *store,
    const struct window_replay *replays,
    int32_t count,
    const struct kv_lineage *parent,
    int32_t blocks
) {
    int32_t above = store->options.window;
    int32_t start = blocks * KV_BLOCK_TOKENS;
    for (int32_t i = 0; i < count; i++) {
        int32_t position = replays[i].position;
        if (position <= above || position % 2 != 0 || position >= start + KV_BLOCK_TOKENS) {
            return false;
        }
        above = position;
    }
    struct kv_lineage before = kv_store_lineage_at(store, replays, count, start);
    return kv_lineage_equals(&before, parent);
}

/* Origins of a lineage that only the tiers know, under which they have a block behind `blocks` whole
 * ones of lineage `parent`. */
static bool learn_lineage(
    struct kv_store *store,
    const struct kv_lineage *lineage,
    const struct kv_lineage *parent,
    int32_t blocks
) {
    struct kv_lineage at = *lineage;
    for (int32_t i = 0; i < ENGINE_REPLAYS_MAX && !is_root(store, &at); i++) {
        struct kv_lineage from;
        int32_t position = 0;
        if (!kv_tier_lineage(store->options.tier, &at, &from, &position)) {
            break; /* the store may know it all the same */
        }
        kv_store_note_replay(store, &from, position);
        at = from;
    }
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    int32_t count = 0;
    return kv_store_resolve(store, lineage, replays, &count) &&
           is_possible(store, replays, count, parent, blocks);
}

/* How many blocks of the prompt after `from` the tiers have under the lineage; their keys are in
 * store->keys then. */
static int32_t count_continuation(
    struct kv_store *store,
    const struct kv_lineage *lineage,
    const struct kv_key *parent,
    const int32_t *tokens,
    int32_t blocks,
    enum kv_prefix_miss *why
) {
    struct kv_key last = *parent;
    int32_t found = 0;
    *why = KV_PREFIX_MISS_NONE;
    for (int32_t made = 0; made < blocks && found == made;) {
        int32_t some = blocks - made < KEYS_AT_ONCE ? blocks - made : KEYS_AT_ONCE;
        kv_key_path(
            &last, lineage, tokens + (size_t)made * KV_BLOCK_TOKENS, some, store->keys + made
        );
        found += kv_tier_find(store->options.tier, store->keys + made, some, why);
        made += some;
        last = store->keys[made - 1];
    }
    return found;
}

bool kv_store_tier_ask(
    struct kv_store *store,
    struct kv_binding *binding,
    const struct kv_prefix_match *match,
    const int32_t *tokens,
    int32_t count,
    bool any_lineage
) {
    struct kv_tier *tier = store->options.tier;
    if (tier == NULL || binding->reads == READS_MAX || binding->is_read_out) {
        return false;
    }
    struct kv_prefix_node node = {0};
    struct kv_lineage lineage = store->options.root;
    if (kv_prefix_get(store->tree, match->node, &node)) {
        lineage = node.lineage;
    }
    int32_t blocks = (count > 0 ? (count - 1) / KV_BLOCK_TOKENS : 0) - match->blocks;
    blocks = blocks < KV_TIER_KEYS_MAX ? blocks : KV_TIER_KEYS_MAX;
    if (blocks <= 0) {
        return false;
    }
    tokens += (size_t)match->blocks * KV_BLOCK_TOKENS;
    enum kv_prefix_miss why;
    int32_t found = count_continuation(store, &lineage, &node.key, tokens, blocks, &why);
    binding->tier_miss = found == 0 ? why : KV_PREFIX_MISS_NONE;
    binding->tier_miss_block = match->blocks;
    struct kv_lineage others[LINEAGES_TRIED];
    int32_t tried =
        found == 0 && any_lineage ? kv_tier_lineages(tier, &node.key, others, LINEAGES_TRIED) : 0;
    for (int32_t i = 0; i < tried && found == 0; i++) {
        if (!kv_lineage_equals(&others[i], &lineage) &&
            learn_lineage(store, &others[i], &lineage, match->blocks)) {
            found = count_continuation(store, &others[i], &node.key, tokens, blocks, &why);
        }
    }
    uint64_t ticket = store->next_ticket + 1;
    if (found == 0) {
        return false;
    }
    if (!kv_tier_read(tier, ticket, store->keys, found)) {
        binding->tier_miss = KV_PREFIX_MISS_NOT_READ; /* too many are read: it goes on without */
        return false;
    }
    store->next_ticket = ticket;
    binding->ticket = ticket;
    binding->reads++;
    if (binding->restored_host + binding->restored_disk == 0) {
        binding->restored_from = match->blocks;
    }
    binding->is_waiting = true;
    binding->waiting_next = store->waiting;
    store->waiting = binding;
    binding->node = match->node;
    kv_store_hold_lease(store, binding);
    return true;
}

static int32_t take_block(struct kv_store *store) {
    struct kv_cache *cache = store->options.cache;
    if (cache->block_free_count == 0 && cache->make_room != NULL) {
        cache->make_room(cache->make_room_context, 1);
    }
    return cache->block_free_count == 0 ? -1 : kv_block_take(cache, store->last_block);
}

/* Files one block below the binding's node. False: there is no room, or the node is gone. */
static bool file_record(
    struct kv_store *store, struct kv_binding *binding, const struct kv_tier_record *record
) {
    struct kv_prefix_node node = {0};
    (void)kv_prefix_get(store->tree, binding->node, &node);
    if (!kv_key_equals(&node.key, &record->parent)) {
        return false;
    }
    int32_t block = take_block(store);
    if (block < 0) {
        return false;
    }
    store->last_block = block;
    int32_t compressed[KV_BLOCK_TOKENS] = {0};
    for (int32_t i = 0; store->options.compress != NULL && i < KV_BLOCK_TOKENS; i++) {
        compressed[i] = store->options.compress(store->options.compress_context, record->tokens[i]);
    }
    kv_block_fill(store->options.cache, block, record->tokens, compressed, record->bytes);
    struct kv_prefix_insertion insertion;
    struct error error;
    result filed = kv_prefix_insert(
        store->tree,
        binding->node,
        &record->lineage,
        record->tokens,
        block,
        store->now_ms,
        &insertion,
        &error
    );
    if (is_failed(filed)) {
        (void)kv_block_drop(store->options.cache, block);
        return false;
    }
    binding->node = insertion.node;
    kv_store_hold_lease(store, binding);
    if (kv_tier_is_written(store->options.tier, &record->key)) {
        kv_prefix_forget_unwritten(store->tree, insertion.node);
    }
    return true;
}

/* The binding has all of the batch that it can take. */
static void conclude_batch(struct kv_store *store, struct kv_binding *binding, bool is_cut_short) {
    const struct kv_tier_batch *batch = &store->batch;
    bool is_last = batch->is_last;
    if (is_cut_short) {
        kv_tier_cancel(store->options.tier, batch->ticket);
        binding->is_read_out = true;
    } else if (is_last && batch->miss != KV_PREFIX_MISS_NONE) {
        binding->tier_miss = batch->miss;
        binding->tier_miss_block =
            binding->restored_from + binding->restored_host + binding->restored_disk;
        binding->is_read_out = true;
    }
    give_back(store);
    if (is_cut_short || is_last) {
        stop_waiting(store, binding);
    }
}

/* Takes at most `most` blocks of the batch at hand. Returns how many. */
static int32_t take_some(struct kv_store *store, int32_t most) {
    const struct kv_tier_batch *batch = &store->batch;
    struct kv_binding *binding = store->waiting;
    while (binding != NULL && binding->ticket != batch->ticket) {
        binding = binding->waiting_next;
    }
    if (binding == NULL) {
        give_back(store);
        return 0;
    }
    int32_t filed = 0;
    bool is_cut_short = false;
    while (filed < most && store->batch_at < batch->count && !is_cut_short) {
        is_cut_short = !file_record(store, binding, &batch->records[store->batch_at]);
        store->batch_at += is_cut_short ? 0 : 1;
        filed += is_cut_short ? 0 : 1;
    }
    *(batch->from_disk ? &binding->restored_disk : &binding->restored_host) += filed;
    *(batch->from_disk ? &store->counts.restored_disk_blocks : &store->counts.restored_host_blocks
    ) += (uint64_t)filed;
    if (is_cut_short || store->batch_at == batch->count) {
        conclude_batch(store, binding, is_cut_short);
    }
    return filed;
}

/* Takes at most `most` blocks that came back. Returns how many. */
static int32_t take_blocks(struct kv_store *store, int32_t most) {
    int32_t taken = 0;
    while (taken < most && (store->has_batch || kv_tier_next(store->options.tier, &store->batch))) {
        store->batch_at = store->has_batch ? store->batch_at : 0;
        store->has_batch = true;
        taken += take_some(store, most - taken);
    }
    return taken;
}

/* ---- going down ----------------------------------------------------------------------------- */

static struct kv_tier_record
record_of(const struct kv_store *store, const struct kv_prefix_node *node) {
    return (struct kv_tier_record){
        .key = node->key,
        .parent = node->parent_key,
        .lineage = node->lineage,
        .tokens = node->tokens,
        .bytes = kv_block_address(store->options.cache, node->block),
    };
}

void kv_store_tier_evicted(struct kv_store *store, const struct kv_prefix_node *node) {
    if (store->options.tier != NULL) {
        struct kv_tier_record record = record_of(store, node);
        kv_tier_put_host(store->options.tier, &record, 1);
    }
}

/* Nothing will ever be written: nobody has to ask again. */
static bool is_disk_gone(const struct kv_store *store) {
    struct error trouble = {0};
    kv_tier_trouble(store->options.tier, &trouble);
    return trouble.code != RESULT_OK || !store->options.has_disk;
}

/* The next blocks that are due, at most `most` (below KV_TIER_BATCH_BLOCKS). Returns how many were
 * dealt with; 0: none is due or the tier takes none, *next_ms says when to ask again. */
static int32_t write_some(struct kv_store *store, int32_t most, int64_t *next_ms) {
    struct kv_tier_record records[KV_TIER_BATCH_BLOCKS];
    uint64_t nodes[KV_TIER_BATCH_BLOCKS];
    int32_t count = 0;
    int32_t room = kv_tier_room(store->options.tier);
    room = room < most ? room : most;
    uint64_t at = kv_prefix_unwritten(store->tree);
    *next_ms = INT64_MAX;
    while (at != KV_PREFIX_ROOT && count < room) {
        struct kv_prefix_node node;
        bool is_there = kv_prefix_get(store->tree, at, &node);
        ASSERT(is_there);
        int64_t due_ms = node.filed_ms + KV_STORE_WRITE_AFTER_MS;
        if (due_ms > store->now_ms && node.filed_ms > store->write_all_ms) {
            *next_ms = due_ms;
            break;
        }
        uint64_t next = kv_prefix_unwritten_next(store->tree, at);
        if (node.is_abandoned) {
            kv_prefix_forget_unwritten(store->tree, at);
        } else {
            records[count] = record_of(store, &node);
            nodes[count++] = at;
        }
        at = next;
    }
    if (count == 0 && room == 0 && at != KV_PREFIX_ROOT) {
        *next_ms = is_disk_gone(store) ? INT64_MAX : store->now_ms + WRITE_RETRY_MS;
    }
    int32_t written = count == 0 ? 0 : kv_tier_write(store->options.tier, records, count);
    for (int32_t i = 0; i < written; i++) {
        kv_prefix_forget_unwritten(store->tree, nodes[i]);
    }
    if (written < count) {
        *next_ms = store->now_ms + WRITE_RETRY_MS;
    }
    return written;
}

static int32_t blocks_at_once(const struct kv_store *store) {
    size_t bytes = store->options.poll_bytes == 0 ? POLL_BYTES : store->options.poll_bytes;
    size_t blocks = bytes / store->options.cache->layout.block_bytes;
    blocks = blocks < KV_TIER_BATCH_BLOCKS ? blocks : KV_TIER_BATCH_BLOCKS;
    return blocks < 1 ? 1 : (int32_t)blocks;
}

int64_t kv_store_tier_poll(struct kv_store *store) {
    if (store->options.tier == NULL) {
        return INT64_MAX;
    }
    int32_t most = blocks_at_once(store);
    int32_t taken = take_blocks(store, most);
    int32_t left = most - taken;
    int64_t next_ms = INT64_MAX;
    if (left == 0 || write_some(store, left, &next_ms) > 0) {
        next_ms = store->now_ms; /* the rest after the next step */
    }
    int64_t read_ms = store->waiting != NULL ? store->now_ms + READ_POLL_MS : INT64_MAX;
    return next_ms < read_ms ? next_ms : read_ms;
}

bool kv_store_flush(struct kv_store *store, int64_t timeout_ms, int64_t now_ms) {
    (void)kv_store_time(store, now_ms);
    struct kv_tier *tier = store->options.tier;
    if (tier == NULL) {
        return true;
    }
    store->write_all_ms = store->now_ms;
    struct clock machine = clock_real(); /* waits last as long as they last */
    int64_t until_ms = clock_monotonic_ms(&machine) + timeout_ms;
    int64_t next_ms = 0;
    do {
        while (write_some(store, KV_TIER_BATCH_BLOCKS, &next_ms) > 0) {
        }
        int64_t left_ms = until_ms - clock_monotonic_ms(&machine);
        if (left_ms <= 0 || !kv_tier_flush(tier, left_ms)) {
            return false;
        }
    } while (next_ms != INT64_MAX && kv_tier_room(tier) > 0);
    return kv_prefix_unwritten(store->tree) == KV_PREFIX_ROOT;
}

/* A hit keeps what it used alive below as well. */
void kv_store_tier_touch(struct kv_store *store, uint64_t node) {
    if (store->options.tier == NULL) {
        return;
    }
    int32_t count = 0;
    struct kv_prefix_node about;
    while (count < store->options.cache->blocks_max && kv_prefix_get(store->tree, node, &about)) {
        store->keys[count++] = about.key;
        node = about.parent;
    }
    kv_tier_touch(store->options.tier, store->keys, count);
}
