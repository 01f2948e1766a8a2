/* What is kept of a sequence: its whole blocks in the tree, its windows in snapshots. See kv_store.h. */
#include "kv_store_internal.h"

/* ---- filing --------------------------------------------------------------------------------- */

/* Files the block after those that are filed. False: not now. */
static bool file_next(struct kv_store *store, struct kv_binding *binding) {
    struct kv_cache *cache = store->options.cache;
    struct kv_sequence *sequence = binding->sequence;
    int32_t index = binding->filed;
    int32_t block = sequence->numbers[index];
    int32_t happened = binding->repeat >= 0 ? binding->repeat : binding->replay_count;
    struct kv_lineage lineage =
        kv_store_lineage_at(store, binding->replays, happened, (index + 1) * KV_BLOCK_TOKENS);
    struct kv_prefix_insertion insertion;
    struct error error;
    kv_block_share(cache, block);
    result filed = kv_prefix_insert(
        store->tree,
        binding->node,
        &lineage,
        kv_block_ids(cache, block),
        block,
        store->now_ms,
        &insertion,
        &error
    );
    if (is_failed(filed)) {
        (void)kv_block_drop(cache, block);
        if (filed.code == RESULT_NOT_FOUND && binding->filed > 0) {
            /* Its lease had lapsed. The blocks are there still: the path is filed again. */
            binding->node = KV_PREFIX_ROOT;
            binding->filed = 0;
            store->counts.refiled++;
            return true;
        }
        return false;
    }
    kv_cache_swap(cache, sequence, index, insertion.block);
    binding->node = insertion.node;
    binding->filed++;
    return true;
}

void kv_store_hold_lease(struct kv_store *store, struct kv_binding *binding) {
    struct error error;
    if (binding->lease != 0 &&
        kv_prefix_renew(store->tree, binding->lease, binding->node, store->now_ms)) {
        return;
    }
    if (binding->lease == 0 &&
        is_failed(
            kv_prefix_acquire(store->tree, binding->node, store->now_ms, &binding->lease, &error)
        )) {
        binding->lease = 0; /* the node is gone: the next block that is filed finds out */
    }
}

/* All whole blocks that are computed are in the tree afterwards, if it has room. */
static void file_blocks(struct kv_store *store, struct kv_binding *binding) {
    const struct kv_sequence *sequence = binding->sequence;
    int32_t whole = sequence->computed / KV_BLOCK_TOKENS;
    if (sequence->computed < sequence->kept || store->options.keeps_nothing) {
        return;
    }
    int32_t refiled = 0;
    while (binding->filed < whole && refiled < 2) {
        int32_t before = binding->filed;
        if (!file_next(store, binding)) {
            break;
        }
        refiled += binding->filed < before;
        /* The path must not go while it grows. */
        kv_store_hold_lease(store, binding);
    }
    kv_store_hold_lease(store, binding);
}

/* ---- snapshots ------------------------------------------------------------------------------ */

static void
remember_replays(struct kv_store *store, const struct kv_binding *binding, uint64_t snapshot) {
    for (int32_t i = 0; i < store->snapshot_replays_count; i++) {
        struct snapshot_replays *entry = &store->snapshot_replays[i];
        if (entry->id == 0 || kv_window_get(store->windows, entry->id) == NULL) {
            entry->id = snapshot;
            entry->count = binding->replay_count;
            memcpy(entry->replays, binding->replays, sizeof entry->replays);
            return;
        }
    }
    kv_window_drop(store->windows, snapshot); /* as many entries as slots: never */
}

static void
capture(struct kv_store *store, struct kv_binding *binding, enum kv_snapshot_kind kind) {
    const struct kv_sequence *sequence = binding->sequence;
    struct kv_prefix_node node;
    bool has_node = binding->filed == 0 || kv_prefix_get(store->tree, binding->node, &node);
    if (store->options.keeps_nothing || sequence->computed == 0 ||
        binding->filed != sequence->computed / KV_BLOCK_TOKENS || !has_node) {
        return;
    }
    const struct kv_snapshot about = {
        .kind = kind,
        .node = binding->filed == 0 ? KV_PREFIX_ROOT : binding->node,
        .lineage = binding->lineage,
        .decoder_lineage = binding->decoder_lineage,
        .has_decoder_lineage = kind == KV_SNAPSHOT_FULL && binding->has_decoder_lineage,
        .expected_ms = binding->expected_ms,
    };
    uint64_t id = 0;
    if (sequence->state != NULL) {
        id = kv_window_capture(store->windows, sequence, &about, store->now_ms);
    } else {
        id = kv_window_file(store->windows, binding->parked, sequence, &about, store->now_ms);
        binding->parked = 0;
    }
    if (id != 0 && binding->replay_count > 0) {
        remember_replays(store, binding, id);
    }
}

void kv_store_plan_cut(const struct kv_store *store, struct kv_binding *binding) {
    const struct kv_sequence *sequence = binding->sequence;
    int32_t from = sequence->computed;
    binding->cut = 0;
    if (from < sequence->kept) {
        binding->cut = sequence->kept; /* others come back to where this prompt branched off */
        return;
    }
    int64_t next = ((int64_t)from / store->snapshot_rows + 1) * store->snapshot_rows;
    /* Without rows behind it no prompt of this length could use it. */
    int64_t needed = 1 + reach(store, store->options.layers - 1 - store->options.encoder_layers);
    if (store->options.encoder_layers < store->options.layers &&
        next + needed <= binding->complete) {
        binding->cut = (int32_t)next;
    }
}

/* ---- replays -------------------------------------------------------------------------------- */

void kv_store_start_replay(struct kv_store *store, struct kv_binding *binding, int32_t position) {
    struct kv_sequence *sequence = binding->sequence;
    int32_t from = position - store->options.window;
    ASSERT(from > 0);
    ASSERT(sequence->length >= position);
    sequence->kept = position;
    sequence->computed = from;
    sequence->source_floor = from;
    binding->encoder_floor = from;
    if (binding->repeat < 0) {
        return;
    }
    /* Of a contract: the next one, if any. */
    struct kv_lineage parent = binding->lineage;
    kv_lineage_replay(&parent, position, &binding->lineage);
    int32_t next = binding->repeat + 1;
    while (next < binding->replay_count && binding->replays[next].kind == WINDOW_REPLAY_DECODER) {
        next++;
    }
    bool has_next = next < binding->replay_count;
    binding->repeat = has_next ? next : -1;
    binding->cut = has_next ? binding->replays[next].position : 0;
    if (!has_next) {
        kv_store_plan_cut(store, binding);
    }
}

/* The list is its first `count` entries, the lineages follow from it. */
static void cut_replays(struct kv_store *store, struct kv_binding *binding, int32_t count) {
    struct window_replay kept[ENGINE_REPLAYS_MAX];
    memcpy(kept, binding->replays, sizeof kept);
    binding->replay_count = 0;
    binding->has_decoder_lineage = false;
    binding->decoder_lineage = (struct kv_lineage){0};
    binding->lineage = store->options.root;
    for (int32_t i = 0; i < count; i++) {
        kv_store_add_replay(store, binding, kept[i].kind, kept[i].position);
    }
}

/* Positions whose entries are there. */
static int32_t stored(const struct kv_sequence *sequence) {
    return sequence->computed > sequence->kept ? sequence->computed : sequence->kept;
}

/* Replays of a contract that did not happen, because it was cancelled. Its last one of the decoder
 * did, once rows from its floor on ran: an encoder replay may be due behind that floor. */
static void drop_planned(struct kv_store *store, struct kv_binding *binding) {
    if (binding->repeat < 0) {
        return;
    }
    const struct kv_sequence *sequence = binding->sequence;
    int32_t floor = sequence->decoder_floor;
    cut_replays(store, binding, binding->repeat);
    binding->repeat = -1;
    if (floor > 0 && floor <= stored(sequence)) {
        kv_store_add_replay(store, binding, WINDOW_REPLAY_DECODER, floor + store->options.window);
    }
}

void kv_store_extend(
    struct kv_store *store, struct kv_binding *binding, int32_t prompt_end, enum window_mode window
) {
    struct kv_sequence *sequence = binding->sequence;
    drop_planned(store, binding);
    binding->is_abandoned = false;
    binding->complete = prompt_end;
    int32_t bound = prompt_end - store->options.window;
    /* One entry stays free for a replay that is cut short, below. */
    binding->is_replay = window == WINDOW_REPLAY && bound > sequence->computed &&
                         binding->replay_count < ENGINE_REPLAYS_MAX - 1;
    if (binding->is_replay) {
        sequence->decoder_floor = bound;
        kv_store_add_replay(store, binding, WINDOW_REPLAY_DECODER, prompt_end);
    } else if (sequence->decoder_floor > stored(sequence)) {
        /* A replay was cancelled before it reached its window: decoder rows begin here; or, while
         * windows are rebuilt, where that is done, since those of the encoder serve no decoder row
         * before. In a list that is full its entry gives way, since no row depends on it. */
        sequence->decoder_floor = stored(sequence);
        if (binding->replay_count == ENGINE_REPLAYS_MAX) {
            cut_replays(store, binding, ENGINE_REPLAYS_MAX - 1);
        }
        kv_store_add_replay(
            store, binding, WINDOW_REPLAY_DECODER, stored(sequence) + store->options.window
        );
    }
    kv_store_plan_cut(store, binding);
}

int32_t kv_store_rows(const struct kv_binding *binding, int32_t rows) {
    int32_t left = binding->cut - binding->sequence->computed;
    return left > 0 && left < rows ? left : rows;
}

void kv_store_advance(struct kv_store *store, struct kv_binding *binding, int64_t now_ms) {
    ASSERT(!binding->is_lost);
    kv_prefix_advance(store->tree, kv_store_time(store, now_ms));
    struct kv_sequence *sequence = binding->sequence;
    file_blocks(store, binding);
    if (binding->cut == 0 || sequence->computed != binding->cut) {
        return;
    }
    if (binding->repeat >= 0) {
        kv_store_start_replay(store, binding, binding->cut);
        return;
    }
    capture(store, binding, KV_SNAPSHOT_ENCODER);
    kv_store_plan_cut(store, binding);
}

/* ---- life ----------------------------------------------------------------------------------- */

void kv_store_fork(
    struct kv_store *store,
    struct kv_binding *parent,
    struct kv_binding *child,
    struct kv_sequence *sequence,
    int64_t now_ms
) {
    ASSERT(child->sequence == NULL);
    (void)kv_store_time(store, now_ms);
    *child = *parent;
    child->sequence = sequence;
    child->lease = 0;
    child->is_abandoned = false;
    child->expected_ms = INT64_MAX;
    kv_store_fork_parked(store, parent, child);
    kv_store_hold_lease(store, child);
    if (parent->lease != 0 && !store->options.ignores_events) {
        kv_prefix_tell(store->tree, parent->lease, KV_PREFIX_FORKED, 0, store->now_ms);
    }
}

void kv_store_tell(
    struct kv_store *store,
    struct kv_binding *binding,
    enum sequence_event event,
    int64_t estimate_ms,
    int64_t now_ms
) {
    (void)kv_store_time(store, now_ms);
    if (store->options.ignores_events) {
        return;
    }
    bool is_waiting = event == SEQUENCE_WAITING;
    binding->is_abandoned = event == SEQUENCE_ABANDONED;
    int64_t back_ms = INT64_MAX;
    if (is_waiting && __builtin_add_overflow(store->now_ms, estimate_ms, &back_ms)) {
        back_ms = INT64_MAX;
    }
    binding->expected_ms = back_ms;
    kv_window_expect(store->windows, binding->parked, back_ms, store->now_ms);
    if (binding->sequence == NULL || binding->lease == 0) {
        return;
    }
    kv_prefix_tell(
        store->tree,
        binding->lease,
        is_waiting                   ? KV_PREFIX_WAITING
        : event == SEQUENCE_FINISHED ? KV_PREFIX_FINISHED
                                     : KV_PREFIX_ABANDONED,
        estimate_ms,
        store->now_ms
    );
    store->write_all_ms = store->now_ms;
    if (!is_waiting) {
        binding->lease = 0;
    }
    if (binding->is_abandoned) {
        kv_prefix_forget_branch(store->tree, binding->node);
    }
}

void kv_store_end(struct kv_store *store, struct kv_binding *binding, int64_t now_ms) {
    (void)kv_store_time(store, now_ms);
    struct kv_sequence *sequence = binding->sequence;
    if (sequence != NULL && !binding->is_lost && !binding->is_abandoned && binding->repeat < 0 &&
        sequence->computed >= sequence->kept) {
        bool is_complete = sequence->computed >= binding->complete;
        capture(store, binding, is_complete ? KV_SNAPSHOT_FULL : KV_SNAPSHOT_ENCODER);
    }
    kv_window_leave(store->windows, binding->parked);
    if (binding->lease != 0) {
        kv_prefix_release(store->tree, binding->lease, store->now_ms);
    }
    *binding = (struct kv_binding){0};
}

void kv_store_cancel(struct kv_store *store, struct kv_binding *binding, int64_t now_ms) {
    ASSERT(binding->sequence == NULL);
    (void)kv_store_time(store, now_ms);
    kv_store_tier_cancel(store, binding);
    if (binding->lease != 0) {
        kv_prefix_release(store->tree, binding->lease, store->now_ms);
    }
    *binding = (struct kv_binding){0};
}

int64_t kv_store_poll(struct kv_store *store, int64_t now_ms) {
    kv_prefix_advance(store->tree, kv_store_time(store, now_ms));
    int64_t windows_ms = kv_window_advance(store->windows, store->now_ms);
    int64_t tier_ms = kv_store_tier_poll(store);
    return windows_ms < tier_ms ? windows_ms : tier_ms;
}

void kv_store_drop(struct kv_store *store, enum cache_tier tier, int32_t blocks, int64_t now_ms) {
    (void)kv_store_time(store, now_ms);
    struct kv_tier *below = store->options.tier;
    if (tier == CACHE_TIER_TREE) {
        (void)kv_prefix_evict(store->tree, blocks > 0 ? blocks : INT32_MAX, store->now_ms);
    } else if (tier == CACHE_TIER_SNAPSHOTS) {
        kv_window_drop_all(store->windows);
    } else if (tier == CACHE_TIER_HOST && below != NULL) {
        (void)kv_tier_drop_host(below, blocks);
    } else if (tier == CACHE_TIER_DISK && below != NULL) {
        (void)kv_tier_drop_disk(below, blocks);
    }
}
