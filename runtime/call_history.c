/* See call_history.h. */
#include "call_history.h"

/* FNV-1a, 64 bits: good enough to compare a few dozen texts of one run. */
static uint64_t hash_bytes(uint64_t hash, struct view bytes) {
    for (size_t i = 0; i < bytes.length; i++) {
        hash = (hash ^ bytes.data[i]) * UINT64_C(1099511628211);
    }
    return (hash ^ 0xFFU) * UINT64_C(1099511628211); /* separates the parts */
}

uint64_t call_digest(uint64_t before, const struct chat_call *call, struct view text) {
    uint64_t hash = hash_bytes(UINT64_C(14695981039346656037) ^ before, call->name);
    hash = hash_bytes(hash, call->arguments);
    hash = hash_bytes(hash, text);
    return hash != 0 ? hash : 1;
}

int call_history_add(struct call_history *history, const struct chat_call *call, struct view text) {
    uint64_t hash = call_digest(0, call, text);
    for (size_t i = 0; i < history->count; i++) {
        if (history->fingerprints[i] == hash) {
            return ++history->counts[i];
        }
    }
    /* Something new happened: earlier repetitions were not in vain. */
    for (size_t i = 0; i < history->count; i++) {
        history->counts[i] = 1;
    }
    if (history->count == CALL_HISTORY_MAX) {
        history->count--;
        memmove(
            history->fingerprints,
            history->fingerprints + 1,
            history->count * sizeof history->fingerprints[0]
        );
    }
    history->fingerprints[history->count] = hash;
    history->counts[history->count] = 1;
    history->count++;
    return 1;
}
