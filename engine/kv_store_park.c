/* Sequences that take turns in fewer window slots: states parked in the snapshot pool, windows rebuilt
 * when those were dropped, blocks promised beforehand. See kv_store.h.
 *
 * What a rebuild has to re-create is the state that was lost, not an exact one: a sequence whose
 * content depends on replays gets the windows that these left behind. */
#include "kv_store_internal.h"

/* The last encoder replay that has happened; 0: none. */
static int32_t last_encoder_replay(const struct kv_binding *binding) {
    int32_t happened = binding->repeat >= 0 ? binding->repeat : binding->replay_count;
    int32_t position = 0;
    for (int32_t i = 0; i < happened; i++) {
        const struct window_replay *replay = &binding->replays[i];
        if (replay->kind == WINDOW_REPLAY_ENCODER && replay->position > position) {
            position = replay->position;
        }
    }
    return position;
}

/* Its windows are lost: rows run again as after a hit that covers all entries that are there.
 *
 * Of the decoder, no row below its floor counts, and none that the end of the prompt is too far from
 * to see; while a contract's encoder replay is still due, none at all, since that starts with empty
 * windows. Of the encoder, what lies before the window of its last replay was never seen. */
static void rebuild(struct kv_store *store, struct kv_binding *binding, int32_t prompt_end) {
    struct kv_sequence *sequence = binding->sequence;
    int32_t stored = sequence->computed > sequence->kept ? sequence->computed : sequence->kept;
    int64_t encoder = reach(store, store->options.encoder_layers);
    int64_t seen = prompt_end - reach(store, store->options.layers) - 1;
    int32_t floor = sequence->decoder_floor;
    bool is_inside = sequence->computed < binding->complete;
    binding->is_replay = floor > seen || (binding->is_replay && is_inside);
    int64_t start = stored - encoder;
    int64_t windows = binding->is_replay ? floor - encoder : seen;
    if (binding->repeat < 0 && windows < start) {
        start = windows;
    }
    start = start < 0 ? 0 : start;
    int32_t replayed = last_encoder_replay(binding);
    int32_t lowest = replayed - store->options.window;
    binding->encoder_floor = 0;
    if (replayed > 0 && start < lowest) {
        start = lowest;
        binding->encoder_floor = lowest;
    }
    sequence->kept = stored;
    sequence->computed = (int32_t)start;
    sequence->source_floor = (int32_t)start;
    sequence->draft = (struct kv_draft_rows){0};
    if (binding->complete < prompt_end) {
        binding->complete = prompt_end;
    }
    store->counts.resumed_rebuilt++;
    store->counts.resumed_rows += (uint64_t)(stored - (int32_t)start);
}

int32_t kv_store_rebuild_rows(
    const struct kv_store *store, const struct kv_binding *binding, int32_t prompt_end
) {
    const struct kv_sequence *sequence = binding->sequence;
    if (sequence == NULL || kv_window_has_room(store->windows)) {
        return 0;
    }
    int32_t stored = sequence->computed > sequence->kept ? sequence->computed : sequence->kept;
    int64_t entries = stored - reach(store, store->options.encoder_layers);
    int64_t windows = prompt_end - reach(store, store->options.layers) - 1;
    int64_t start = windows < entries ? windows : entries;
    return stored - (int32_t)(start > 0 ? start : 0);
}

void kv_store_park(
    struct kv_store *store, struct kv_binding *binding, bool is_preempted, int64_t now_ms
) {
    struct kv_sequence *sequence = binding->sequence;
    ASSERT(sequence != NULL);
    (void)kv_store_time(store, now_ms);
    if (sequence->state == NULL) {
        return;
    }
    ASSERT(binding->parked == 0);
    if (sequence->computed > 0 && !binding->is_lost) {
        int64_t expected_ms = is_preempted ? 0 : binding->expected_ms;
        binding->parked = kv_window_park(store->windows, sequence, expected_ms, store->now_ms);
    }
    kv_cache_window_release(store->options.cache, sequence);
    store->counts.parked++;
}

bool kv_store_resume(
    struct kv_store *store,
    struct kv_binding *binding,
    int32_t prompt_end,
    int64_t now_ms,
    struct kv_resumption *out
) {
    struct kv_sequence *sequence = binding->sequence;
    ASSERT(sequence != NULL && !binding->is_lost);
    ASSERT(sequence->state == NULL);
    ASSERT(prompt_end >= sequence->length);
    (void)kv_store_time(store, now_ms);
    if (!kv_cache_window_acquire(store->options.cache, sequence)) {
        return false;
    }
    store->counts.resumed++;
    bool is_back =
        sequence->computed == 0 || kv_window_unpark(store->windows, binding->parked, sequence);
    binding->parked = 0;
    if (!is_back) {
        rebuild(store, binding, prompt_end);
    }
    *out = (struct kv_resumption){
        .is_rebuilt = !is_back,
        .start = sequence->computed,
        .kept = sequence->computed > sequence->kept ? sequence->computed : sequence->kept,
    };
    return true;
}

void kv_store_fork_parked(
    struct kv_store *store, const struct kv_binding *parent, struct kv_binding *child
) {
    child->parked = 0;
    if (child->sequence->state != NULL || parent->sequence->computed == 0) {
        return;
    }
    if (parent->sequence->state != NULL) {
        child->parked = kv_window_park(store->windows, parent->sequence, 0, store->now_ms);
    } else if (kv_window_share(store->windows, parent->parked)) {
        child->parked = parent->parked;
    }
    store->counts.parked += child->parked != 0;
}

void kv_store_demote(
    struct kv_store *store, struct kv_binding *binding, int64_t now_ms, struct kv_demoted *out
) {
    const struct kv_sequence *sequence = binding->sequence;
    ASSERT(sequence != NULL);
    *out = (struct kv_demoted){
        .lineage = binding->lineage,
        .decoder_lineage = binding->decoder_lineage,
        .has_decoder_lineage = binding->has_decoder_lineage,
        .replay_count = binding->replay_count,
        .repeat = binding->repeat,
        .length = sequence->length,
        .computed = sequence->computed,
        .kept = sequence->kept,
        .decoder_floor = sequence->decoder_floor,
    };
    memcpy(out->replays, binding->replays, sizeof out->replays);
    kv_store_end(store, binding, now_ms);
}

int32_t kv_store_contract(
    struct kv_store *store,
    const struct kv_demoted *demoted,
    int32_t prompt_end,
    enum window_mode window,
    struct window_replay out[ENGINE_REPLAYS_MAX]
) {
    /* What kv_store_extend would have made of the list. */
    struct kv_sequence sequence = {
        .length = demoted->length,
        .computed = demoted->computed,
        .kept = demoted->kept,
        .decoder_floor = demoted->decoder_floor,
    };
    struct kv_binding binding = {
        .sequence = &sequence,
        .lineage = demoted->lineage,
        .decoder_lineage = demoted->decoder_lineage,
        .has_decoder_lineage = demoted->has_decoder_lineage,
        .replay_count = demoted->replay_count,
        .repeat = demoted->repeat,
    };
    memcpy(binding.replays, demoted->replays, sizeof binding.replays);
    kv_store_extend(store, &binding, prompt_end, window);
    memcpy(out, binding.replays, sizeof binding.replays);
    return binding.replay_count;
}

bool kv_store_commit(struct kv_store *store, struct kv_sequence *sequence, int32_t tokens) {
    return kv_cache_commit(store->options.cache, sequence, tokens);
}

void kv_store_need(
    const struct kv_store *store,
    const struct kv_sequence *sequence,
    int32_t tokens,
    struct kv_need *out
) {
    kv_cache_need(store->options.cache, sequence, tokens, out);
}
