/* What a prompt reuses: the longest cached prefix, the best window snapshot for it, and where rows
 * run again when there is none. See kv_store.h; terms of architecture section 4. */
#include "kv_store_internal.h"

/* What one prompt is looked up for. */
struct wish {
    const struct kv_prompt *prompt;
    int32_t count; /* tokens that may be covered, and one more */
    bool is_replay;
    int32_t decoder_floor; /* of a contract: decoder windows see nothing below; -1: none */
    int32_t replay_at; /* of a contract: its first encoder replay, which ends `count`; 0: none */
    /* A snapshot of encoder rings serves from positions up to here on; negative: none does. */
    int32_t encoder_last, encoder_last_without_source;
};

/* What was found. */
struct find {
    struct kv_prefix_match match;
    int32_t hit, start;
    struct kv_lineage lineage; /* in force at the hit */
    uint64_t snapshot;         /* 0: none */
    enum kv_snapshot_kind kind;
    uint64_t tail;    /* snapshot whose own block is the last one; 0: none */
    bool is_replayed; /* the snapshot is one of a replay at the hit */
    struct window_replay replays[ENGINE_REPLAYS_MAX]; /* of blocks, then of the snapshot */
    int32_t replay_count;
};

/* ---- contracts ------------------------------------------------------------------------------ */

static result check_replay(
    const struct kv_store *store,
    const struct window_replay *replay,
    int32_t above,
    int32_t count,
    struct error *error
) {
    int32_t window = store->options.window;
    int64_t kind = (int64_t)replay->kind;
    if (kind != WINDOW_REPLAY_ENCODER && kind != WINDOW_REPLAY_DECODER) {
        FAIL(error, INVALID_INPUT, "there is no kind of replay %lld", (long long)kind);
    }
    if (replay->kind == WINDOW_REPLAY_ENCODER) {
        if (replay->position <= window || replay->position <= above || replay->position >= count ||
            replay->position % 2 != 0) {
            FAIL(
                error,
                INVALID_INPUT,
                "encoder replay at %d of a prompt of %d tokens: not an even position between %d "
                "and the last one",
                replay->position,
                count,
                above > window ? above : window
            );
        }
    } else if (replay->position < 1 || replay->position - window >= count) {
        FAIL(
            error,
            INVALID_INPUT,
            "decoder replay at %d of a prompt of %d tokens with windows of %d",
            replay->position,
            count,
            window
        );
    }
    return OK;
}

result kv_store_check_contract(
    const struct kv_store *store,
    const struct window_replay *contract,
    int32_t contract_count,
    int32_t count,
    struct error *error
) {
    if (contract_count < 0 || contract_count > ENGINE_REPLAYS_MAX) {
        FAIL(error, INVALID_INPUT, "%d replays, not 0 to %d", contract_count, ENGINE_REPLAYS_MAX);
    }
    int32_t above = 0;
    for (int32_t i = 0; i < contract_count; i++) {
        TRY_NOTE(error, check_replay(store, &contract[i], above, count, error), "replay %d", i + 1);
        above = contract[i].kind == WINDOW_REPLAY_ENCODER ? contract[i].position : above;
    }
    const struct window_replay *last = contract_count > 0 ? &contract[contract_count - 1] : NULL;
    if (above > 0 && (last->kind != WINDOW_REPLAY_DECODER || last->position <= above)) {
        FAIL(error, INVALID_INPUT, "an encoder replay at %d without one of the decoder", above);
    }
    return OK;
}

/* ---- wishes --------------------------------------------------------------------------------- */

/* need(l) = 1 + (L - 1 - l)(W - 1), spec 3.13. */
static int64_t rows_needed(const struct kv_store *store, int32_t layer) {
    return 1 + reach(store, store->options.layers - 1 - layer);
}

static int32_t clamp(int64_t value) {
    return value < -1 ? -1 : (int32_t)value;
}

static struct wish make_wish(const struct kv_store *store, const struct kv_prompt *prompt) {
    int32_t encoder = store->options.encoder_layers;
    struct wish wish = {
        .prompt = prompt,
        .count = prompt->count,
        .is_replay = !prompt->has_contract && prompt->window == WINDOW_REPLAY,
        .decoder_floor = -1,
    };
    for (int32_t i = 0; prompt->has_contract && i < prompt->contract_count; i++) {
        const struct window_replay *replay = &prompt->contract[i];
        if (replay->kind == WINDOW_REPLAY_ENCODER && wish.replay_at == 0) {
            wish.replay_at = replay->position;
        }
        if (replay->kind == WINDOW_REPLAY_DECODER) {
            int32_t floor = replay->position - store->options.window;
            wish.decoder_floor = floor > 0 ? floor : 0;
        }
    }
    if (wish.replay_at > 0) {
        /* Entries are all that counts of what lies before. */
        wish.count = wish.replay_at + 1;
        wish.encoder_last = wish.replay_at;
        wish.encoder_last_without_source = wish.replay_at;
    } else if (wish.decoder_floor >= 0) {
        wish.encoder_last = wish.decoder_floor;
        wish.encoder_last_without_source = wish.decoder_floor;
    } else if (wish.is_replay) {
        /* Below the first decoder row, so that the decoder does replay. */
        wish.encoder_last = clamp((int64_t)prompt->count - store->options.window - 1);
        wish.encoder_last_without_source = wish.encoder_last;
    } else {
        /* The first decoder layer is one more that windows reach through without its ring. */
        int64_t last = prompt->count - rows_needed(store, encoder);
        wish.encoder_last = clamp(last);
        wish.encoder_last_without_source = clamp(last - reach(store, 1));
    }
    return wish;
}

/* First row to run when only entries below the hit are left: model_rebuild_start, and what a contract
 * changes of it. */
static int32_t rebuild_start(const struct kv_store *store, const struct wish *wish, int32_t hit) {
    int64_t entries = hit - reach(store, store->options.encoder_layers);
    int64_t windows = wish->prompt->count - reach(store, store->options.layers) - 1;
    if (wish->replay_at > 0) {
        windows = entries;
    } else if (wish->decoder_floor >= 0) {
        int64_t from = wish->decoder_floor - reach(store, store->options.encoder_layers);
        windows = windows > from ? from : windows;
    }
    int64_t start = entries < windows ? entries : windows;
    return start < 0 ? 0 : (int32_t)start;
}

/* ---- snapshots ------------------------------------------------------------------------------ */

const struct snapshot_replays *
kv_store_snapshot_replays(const struct kv_store *store, uint64_t id) {
    for (int32_t i = 0; i < store->snapshot_replays_count; i++) {
        if (store->snapshot_replays[i].id == id) {
            return &store->snapshot_replays[i];
        }
    }
    return NULL;
}

/* Whether the snapshot's windows belong to the content that the match ends with. */
static bool is_of_lineage(
    const struct kv_store *store,
    const struct wish *wish,
    const struct find *find,
    const struct kv_snapshot *snapshot
) {
    if (!wish->is_replay) {
        return is_root(store, &snapshot->lineage);
    }
    if (kv_lineage_equals(&snapshot->lineage, &find->match.lineage)) {
        return true;
    }
    struct kv_lineage replayed;
    kv_lineage_replay(&find->match.lineage, snapshot->position, &replayed);
    bool has_list = kv_store_snapshot_replays(store, snapshot->id) != NULL;
    return has_list &&
           (snapshot->tail_block >= 0 || (snapshot->position == find->match.position &&
                                          kv_lineage_equals(&snapshot->lineage, &replayed)));
}

/* Takes the snapshot when it is usable and starts later than what was found so far. */
static void consider(
    const struct kv_store *store,
    const struct wish *wish,
    struct find *find,
    const struct kv_snapshot *snapshot
) {
    int32_t position = snapshot->position;
    const int32_t *tokens = wish->prompt->tokens;
    int32_t whole = position - snapshot->tail_count;
    bool is_full = snapshot->kind == KV_SNAPSHOT_FULL && wish->decoder_floor < 0 &&
                   (wish->is_replay || !snapshot->has_decoder_lineage);
    int32_t last =
        snapshot->has_source_ring ? wish->encoder_last : wish->encoder_last_without_source;
    bool is_longer = position > find->hit;
    if (position >= wish->count || position <= find->start ||
        (is_longer && snapshot->tail_block < 0) || (!is_full && position > last) ||
        memcmp(snapshot->tail, tokens + whole, (size_t)snapshot->tail_count * sizeof *tokens) !=
            0 ||
        !is_of_lineage(store, wish, find, snapshot)) {
        return;
    }
    /* An approximate tail is used with its own windows only. */
    bool is_same = kv_lineage_equals(&snapshot->lineage, &find->match.lineage);
    if (!is_longer && !is_same && position < find->hit) {
        return;
    }
    find->start = position;
    find->snapshot = snapshot->id;
    find->kind = is_full ? KV_SNAPSHOT_FULL : KV_SNAPSHOT_ENCODER;
    bool has_tail = snapshot->tail_block >= 0 && (is_longer || !is_same);
    if (has_tail) {
        find->tail = snapshot->id;
        find->hit = position;
    }
    find->lineage = snapshot->lineage;
}

/* Tails of snapshots are blocks that are not whole, so in no tree: a prompt that shares a part of one
 * uses that, as of a block of the tree. */
static void find_tail(const struct kv_store *store, const struct wish *wish, struct find *find) {
    const int32_t *tokens = wish->prompt->tokens;
    int32_t limit = (wish->count - 1) & ~1;
    int32_t whole = find->match.blocks * KV_BLOCK_TOKENS;
    const struct kv_snapshot *snapshot =
        kv_window_first(store->windows, find->match.node, store->now_ms);
    for (; snapshot != NULL; snapshot = kv_window_next(store->windows, snapshot, store->now_ms)) {
        int32_t shared = 0;
        while (snapshot->tail_block >= 0 && shared < snapshot->tail_count &&
               whole + shared < limit && snapshot->tail[shared] == tokens[whole + shared]) {
            shared++;
        }
        int32_t position = (whole + shared) & ~1;
        if (position > find->hit && kv_lineage_equals(&snapshot->lineage, &find->match.lineage)) {
            find->hit = position;
            find->tail = snapshot->id;
        }
        if (whole + shared > find->match.miss_token) {
            find->match.miss_token = whole + shared;
        }
    }
    if (find->hit >= limit) {
        find->match.miss = KV_PREFIX_MISS_NONE;
        find->match.miss_token = limit;
    } else if (find->match.miss == KV_PREFIX_MISS_NEVER_COMPUTED && find->tail != 0) {
        find->match.miss = KV_PREFIX_MISS_DIVERGENT;
    }
}

/* The one that starts latest on the path of the match. */
static void
find_snapshot(const struct kv_store *store, const struct wish *wish, struct find *find) {
    uint64_t at = find->match.node;
    int32_t depth = find->match.blocks;
    for (; (depth + 1) * KV_BLOCK_TOKENS > find->start; depth--) {
        const struct kv_snapshot *snapshot = kv_window_first(store->windows, at, store->now_ms);
        for (; snapshot != NULL;
             snapshot = kv_window_next(store->windows, snapshot, store->now_ms)) {
            consider(store, wish, find, snapshot);
        }
        struct kv_prefix_node node;
        if (!kv_prefix_get(store->tree, at, &node)) {
            return; /* the root */
        }
        at = node.parent;
    }
}

/* ---- lookup --------------------------------------------------------------------------------- */

/* A block that is used in part does not depend, as far as it is used, on replays behind that. */
static void forget_later(const struct kv_store *store, struct find *find) {
    int32_t end = find->match.position;
    while (find->replay_count > 0 && find->replays[find->replay_count - 1].position >= end) {
        find->replay_count--;
    }
    find->match.lineage = kv_store_lineage_at(store, find->replays, find->replay_count, end);
}

static void look_up(struct kv_store *store, const struct wish *wish, struct find *find) {
    const struct kv_prompt *prompt = wish->prompt;
    *find = (struct find){0};
    kv_prefix_lookup(store->tree, prompt->tokens, wish->count, wish->is_replay, &find->match);
    if (!kv_store_resolve(store, &find->match.lineage, find->replays, &find->replay_count)) {
        find->replay_count = 0;
        kv_prefix_lookup(store->tree, prompt->tokens, wish->count, false, &find->match);
    }
    forget_later(store, find);
    find->hit = find->match.position;
    find->lineage = find->match.lineage;
    find_tail(store, wish, find);
    int32_t window = store->options.window;
    bool replays = (wish->is_replay && find->hit > window) ||
                   (wish->replay_at > 0 && find->hit == wish->replay_at);
    /* No snapshot is used that starts no later than rows would without. */
    int32_t start = replays ? find->hit - window : rebuild_start(store, wish, find->hit);
    find->start = replays ? start - 1 : start;
    bool is_there = wish->replay_at > 0 && find->hit == wish->replay_at;
    if (!is_there) {
        find_snapshot(store, wish, find);
    }
    if (find->snapshot == 0) {
        find->start = start;
    }
}

/* ---- taking over ---------------------------------------------------------------------------- */

/* The sequence refers to the blocks of the hit. */
static void adopt(struct kv_store *store, struct kv_sequence *sequence, const struct find *find) {
    int32_t count = 0;
    struct error error;
    int32_t capacity = store->options.cache->blocks_max;
    result retained =
        kv_prefix_retain_path(store->tree, find->match.node, store->path, capacity, &count, &error);
    ASSERT(is_ok(retained)); /* it was found just now, and a prompt fits into a context */
    if (find->hit > count * KV_BLOCK_TOKENS) {
        int32_t block = find->tail != 0 ? kv_window_get(store->windows, find->tail)->tail_block
                                        : kv_prefix_block(store->tree, find->match.partial);
        ASSERT(block >= 0);
        kv_block_share(store->options.cache, block);
        store->path[count] = block;
    }
    const struct kv_adoption adoption = {
        .blocks = store->path, .kept = find->hit, .start = find->start};
    kv_cache_adopt(store->options.cache, sequence, &adoption);
    if (find->snapshot != 0) {
        bool restored =
            kv_window_restore(store->windows, find->snapshot, find->kind, sequence, store->now_ms);
        ASSERT(restored);
        if (find->kind == KV_SNAPSHOT_ENCODER) {
            sequence->decoder_floor = 0;
        }
    }
}

/* The replays that the content depends on so far. */
static void inherit(struct kv_store *store, struct kv_binding *binding, const struct find *find) {
    const struct window_replay *replays = find->replays;
    int32_t count = find->replay_count;
    bool is_full = find->snapshot != 0 && find->kind == KV_SNAPSHOT_FULL;
    const struct snapshot_replays *known =
        find->snapshot == 0 ? NULL : kv_store_snapshot_replays(store, find->snapshot);
    if (known != NULL) {
        replays = known->replays;
        count = known->count;
    }
    for (int32_t i = 0; i < count; i++) {
        if (is_full || replays[i].kind == WINDOW_REPLAY_ENCODER) {
            kv_store_add_replay(store, binding, replays[i].kind, replays[i].position);
        }
    }
    ASSERT(kv_lineage_equals(&binding->lineage, &find->lineage));
}

static const char *
source_of(const struct kv_binding *binding, const struct kv_reuse *reuse, bool has_snapshot) {
    if (binding->is_replay || binding->encoder_floor > 0) {
        return "replay";
    }
    if (reuse->hit == 0) {
        return "cold";
    }
    return has_snapshot && reuse->start == reuse->hit ? "snapshot" : "rebuilt";
}

/* The list of a contract, of which what lies before the hit is there already. */
static void plan_contract(
    struct kv_store *store,
    struct kv_binding *binding,
    const struct wish *wish,
    const struct kv_prompt *prompt
) {
    for (int32_t i = 0; i < prompt->contract_count; i++) {
        const struct window_replay *replay = &prompt->contract[i];
        kv_store_add_replay(store, binding, replay->kind, replay->position);
        if (replay->kind == WINDOW_REPLAY_ENCODER && binding->repeat < 0) {
            binding->repeat = i;
        }
    }
    struct kv_sequence *sequence = binding->sequence;
    if (wish->decoder_floor >= 0) {
        sequence->decoder_floor = wish->decoder_floor;
        /* Far enough below, no row that counts sees the floor. */
        int64_t seen = prompt->count - reach(store, store->options.layers) - 1;
        binding->is_replay = wish->decoder_floor > seen;
    }
    if (binding->repeat >= 0) {
        binding->lineage = store->options.root;
        binding->cut = wish->replay_at;
        if (sequence->kept == wish->replay_at) {
            kv_store_start_replay(store, binding, wish->replay_at);
        }
    }
}

static void bind(
    struct kv_store *store,
    struct kv_binding *binding,
    struct kv_sequence *sequence,
    const struct find *find
) {
    *binding = (struct kv_binding){
        .lease = binding->lease,
        .restored_from = binding->restored_from,
        .tier_miss = binding->tier_miss,
        .tier_miss_block = binding->tier_miss_block,
        .sequence = sequence,
        .node = find->match.node,
        .filed = find->match.blocks,
        .lineage = store->options.root,
        .repeat = -1,
        .expected_ms = INT64_MAX,
        .restored_host = binding->restored_host,
        .restored_disk = binding->restored_disk,
    };
    kv_store_hold_lease(store, binding);
}

/* What came from the tiers of the hit, and what they know about the first block that is missing. */
static void report_tiers(
    const struct kv_binding *binding, const struct kv_prefix_match *match, struct kv_reuse *out
) {
    int32_t from = binding->restored_from * KV_BLOCK_TOKENS;
    int32_t host = binding->restored_host * KV_BLOCK_TOKENS;
    int32_t disk = binding->restored_disk * KV_BLOCK_TOKENS;
    int32_t used = out->hit > from ? out->hit - from : 0;
    out->restored_host = host < used ? host : used;
    out->restored_disk = disk < used - out->restored_host ? disk : used - out->restored_host;
    bool is_told = binding->tier_miss == KV_PREFIX_MISS_EVICTED ||
                   binding->tier_miss == KV_PREFIX_MISS_EXPIRED ||
                   binding->tier_miss == KV_PREFIX_MISS_DAMAGED ||
                   binding->tier_miss == KV_PREFIX_MISS_NOT_READ;
    if (is_told && match->blocks == binding->tier_miss_block && out->miss != KV_PREFIX_MISS_NONE &&
        out->miss != KV_PREFIX_MISS_OTHER_LINEAGE) {
        out->miss = binding->tier_miss;
    }
}

static void
count_reuse(struct kv_store *store, const struct kv_prompt *prompt, const struct kv_reuse *reuse) {
    store->counts.lookups++;
    store->counts.prompt_tokens += (uint64_t)prompt->count;
    store->counts.reused_tokens += (uint64_t)reuse->hit;
    store->counts.rebuilt_tokens += (uint64_t)(reuse->hit - reuse->start);
    store->counts.misses[reuse->miss]++;
}

enum kv_begin kv_store_begin(
    struct kv_store *store,
    struct kv_binding *binding,
    struct kv_sequence *sequence,
    const struct kv_prompt *prompt,
    int64_t now_ms,
    struct kv_reuse *out
) {
    ASSERT(binding->sequence == NULL);
    ASSERT(sequence->length == 0);
    ASSERT(prompt->count > 0);
    kv_prefix_advance(store->tree, kv_store_time(store, now_ms));
    if (binding->is_waiting) {
        return KV_BEGIN_WAIT;
    }
    struct wish wish = make_wish(store, prompt);
    struct find find = {.lineage = store->options.root};
    if (!store->options.keeps_nothing) {
        look_up(store, &wish, &find);
        if (kv_store_tier_ask(
                store, binding, &find.match, prompt->tokens, wish.count, wish.is_replay
            )) {
            return KV_BEGIN_WAIT;
        }
        kv_store_tier_touch(store, find.match.node);
    } else {
        find.match.miss = KV_PREFIX_MISS_NEVER_COMPUTED;
    }
    if (sequence->state == NULL && !kv_cache_window_acquire(store->options.cache, sequence)) {
        return KV_BEGIN_WINDOW;
    }
    bind(store, binding, sequence, &find);
    bool replays = wish.is_replay && find.snapshot == 0 && find.hit > store->options.window;
    if (find.hit > 0) {
        adopt(store, sequence, &find);
    }
    if (!prompt->has_contract) {
        inherit(store, binding, &find);
    }
    if (replays) {
        kv_store_add_replay(store, binding, WINDOW_REPLAY_ENCODER, find.hit);
        kv_store_start_replay(store, binding, find.hit);
    }
    if (prompt->has_contract) {
        binding->complete = prompt->count;
        plan_contract(store, binding, &wish, prompt);
        if (binding->repeat < 0) {
            kv_store_plan_cut(store, binding);
        }
    } else {
        kv_store_extend(store, binding, prompt->count, prompt->window);
    }
    *out = (struct kv_reuse){
        .hit = find.hit,
        .start = sequence->computed,
        .miss = find.match.miss,
        .miss_token = find.match.miss_token,
    };
    if (find.hit > out->miss_token) {
        out->miss_token = find.hit;
    }
    report_tiers(binding, &find.match, out);
    out->window_source = source_of(binding, out, find.snapshot != 0);
    count_reuse(store, prompt, out);
    return KV_BEGIN_READY;
}
