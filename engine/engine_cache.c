/* The cache as callers of the engine see it: replays as text, events, counts. See engine.h. */
#include <assert.h>

#include "engine_internal.h"
#include "kv_prefix.h"

/* ---- replays as text ------------------------------------------------------------------------ */

static const char *const replay_names[] = {
    [WINDOW_REPLAY_ENCODER] = "encoder",
    [WINDOW_REPLAY_DECODER] = "decoder",
};

result window_replays_format(
    const struct window_replay *replays, int32_t count, struct buffer *out, struct error *error
) {
    ASSERT(count >= 0);
    for (int32_t i = 0; i < count; i++) {
        ASSERT((size_t)replays[i].kind < COUNT_OF(replay_names));
        TRY(buffer_append_format(
            out,
            error,
            "%s%s@%d",
            i == 0 ? "" : " ",
            replay_names[replays[i].kind],
            replays[i].position
        ));
    }
    return OK;
}

static bool parse_replay(struct view word, struct window_replay *out) {
    for (size_t kind = 0; kind < COUNT_OF(replay_names); kind++) {
        struct view name = view_of_text(replay_names[kind]);
        uint64_t position = 0;
        if (view_starts_with(word, name) && word.length > name.length + 1 &&
            word.data[name.length] == '@' &&
            parse_u64(view_slice(word, name.length + 1, SIZE_MAX), &position)) {
            if (position < 1 || position > INT32_MAX) {
                return false;
            }
            *out = (struct window_replay
            ){.kind = (enum window_replay_kind)kind, .position = (int32_t)position};
            return true;
        }
    }
    return false;
}

result window_replays_parse(
    struct view text,
    struct window_replay *out,
    int32_t capacity,
    int32_t *count,
    struct error *error
) {
    struct window_replay found[ENGINE_REPLAYS_MAX];
    int32_t most = capacity < ENGINE_REPLAYS_MAX ? capacity : ENGINE_REPLAYS_MAX;
    int32_t some = 0;
    size_t at = 0;
    while (at < text.length) {
        size_t end = view_find(text, view_of_text(" "), at);
        end = end == SIZE_MAX ? text.length : end;
        struct window_replay replay;
        if (!parse_replay(view_slice(text, at, end - at), &replay) || end + 1 == text.length) {
            FAIL(error, CORRUPT, "replay %d of a list is not 'encoder@N' or 'decoder@N'", some + 1);
        }
        if (some == most) {
            FAIL(error, LIMIT, "a list of more than %d replays", most);
        }
        found[some++] = replay;
        at = end + 1;
    }
    for (int32_t i = 0; i < some; i++) {
        out[i] = found[i];
    }
    *count = some;
    return OK;
}

/* ---- events and counts ---------------------------------------------------------------------- */

static_assert(ENGINE_MISSES == KV_PREFIX_MISSES, "the words of misses are those of the tree");

const char *engine_miss_name(int32_t miss) {
    return miss >= 0 && miss < ENGINE_MISSES ? kv_prefix_miss_name((enum kv_prefix_miss)miss)
                                             : NULL;
}

void engine_sequence_tell(
    struct engine *engine, uint64_t sequence, enum sequence_event event, int64_t estimate_ms
) {
    engine_lock(engine);
    struct context *context = engine_context_find(engine, sequence);
    if (context != NULL) {
        int64_t estimate = estimate_ms > 0 ? estimate_ms : 0;
        int64_t now_ms = engine_now_ms(engine);
        kv_store_tell(engine->store, &context->binding, event, estimate, now_ms);
        bool is_known = event == SEQUENCE_WAITING && estimate > 0 && estimate < INT64_MAX - now_ms;
        context->return_ms = is_known ? now_ms + estimate : INT64_MAX;
        context->is_over = event != SEQUENCE_WAITING;
        pthread_cond_signal(&engine->to_engine);
    }
    pthread_mutex_unlock(&engine->lock);
}

static void fill_device(const struct engine *engine, struct engine_cache_status *out) {
    const struct kv_cache *cache = &engine->cache;
    out->blocks_total = cache->block_total;
    out->blocks_free = cache->block_free_count;
    out->block_bytes = cache->layout.block_bytes;
    out->snapshot_bytes = cache->layout.state_bytes;
    out->pool_bytes = engine->plan.kv_pool_bytes;
    out->snapshot_pool_bytes = engine->plan.snapshot_bytes;
    out->prefix_bytes = engine->plan.prefix_bytes;
    out->host_bytes = engine->plan.host_bytes;
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        if (context->used && context->kv != NULL) {
            out->blocks_live += context->kv->block_count;
        }
    }
}

static void fill_counts(const struct engine *engine, struct engine_cache_status *out) {
    struct kv_store_counts counts;
    kv_store_count(engine->store, &counts);
    out->nodes = counts.tree.nodes;
    out->nodes_evictable = counts.tree.evictable;
    out->leases = counts.tree.leases;
    out->leases_lapsed = counts.tree.lapsed;
    out->snapshots = counts.windows.full + counts.windows.encoder;
    out->snapshots_max = counts.windows.slots;
    out->lookups = counts.lookups;
    out->prompt_tokens = counts.prompt_tokens;
    out->reused_tokens = counts.reused_tokens;
    out->rebuilt_tokens = counts.rebuilt_tokens;
    memcpy(out->misses, counts.misses, sizeof out->misses);
    out->blocks_inserted = counts.tree.inserted;
    out->blocks_deduplicated = counts.tree.deduplicated;
    out->blocks_evicted = counts.tree.removed[KV_PREFIX_MISS_EVICTED];
    out->blocks_expired = counts.tree.removed[KV_PREFIX_MISS_EXPIRED];
    out->snapshots_captured = counts.windows.captured;
    out->snapshots_used = counts.windows.used;
    out->snapshots_expired = counts.windows.expired;
    out->snapshots_evicted = counts.windows.evicted;
    out->restored_host_blocks = counts.restored_host_blocks;
    out->restored_disk_blocks = counts.restored_disk_blocks;
}

static void fill_tiers(const struct engine *engine, struct engine_cache_status *out) {
    struct kv_tier_counts counts;
    struct error trouble = {0};
    kv_tier_count(engine->tier, &counts);
    kv_tier_trouble(engine->tier, &trouble);
    out->host_blocks = counts.host_blocks;
    out->disk_blocks = (int32_t)(counts.disk.blocks < INT32_MAX ? counts.disk.blocks : INT32_MAX);
    out->disk_bytes = counts.disk.bytes;
    out->disk_bytes_max = counts.disk.bytes_max;
    out->written_bytes = counts.disk.written_bytes;
    out->read_bytes = counts.disk.read_bytes;
    out->writes_refused = counts.disk.over_budget + counts.disk.no_room;
    out->disk_expired = counts.disk.expired;
    out->clock_jump_ms = counts.disk.jump_ms;
    out->others_blocks = counts.others.expired + counts.others.evicted;
    out->others_folders = counts.others.removed;
    memcpy(out->others_names, counts.others.names, sizeof out->others_names);
    out->has_disk = counts.disk.bytes_max > 0 && trouble.code == RESULT_OK;
    if (trouble.code != RESULT_OK) {
        const char *what = counts.disk.bytes_max == 0 ? "no cache on disk"
                           : counts.disk.is_readable
                               ? "nothing more is written to the cache on disk, what is there is "
                                 "still read"
                               : "the cache on disk is not used any more";
        (void)snprintf(out->trouble, sizeof out->trouble, "%s: %s", what, trouble.message);
    } else if (counts.tickets_timed_out > 0) {
        (void)snprintf(
            out->trouble,
            sizeof out->trouble,
            "the cache's disk did not answer for %.0f s: what was to be read was computed again",
            (double)counts.read_timeout_ms / 1000
        );
    }
}

void engine_cache_status(struct engine *engine, struct engine_cache_status *out) {
    *out = (struct engine_cache_status){0};
    engine_lock(engine);
    (void)engine_free_idle(engine);
    fill_device(engine, out);
    fill_counts(engine, out);
    if (engine->tier != NULL) {
        fill_tiers(engine, out);
    }
    pthread_mutex_unlock(&engine->lock);
}

void engine_cache_drop(struct engine *engine, enum cache_tier tier, int32_t blocks) {
    if (blocks < 0) {
        return; /* as few as none; 0 would be all */
    }
    engine_lock(engine);
    (void)engine_free_idle(engine);
    kv_store_drop(engine->store, tier, blocks, engine_now_ms(engine));
    pthread_mutex_unlock(&engine->lock);
}

void engine_cache_flush(struct engine *engine) {
    engine_lock(engine);
    (void)engine_free_idle(engine);
    (void)kv_store_flush(engine->store, ENGINE_FLUSH_MS, engine_now_ms(engine));
    pthread_mutex_unlock(&engine->lock);
}
