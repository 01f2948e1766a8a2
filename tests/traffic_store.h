/* The engine's own KV store in a replayed day: blocks, sequences, leases, window snapshots and lookups
 * are the real ones (engine/kv_store.h over a kv_cache), only nobody computes: blocks have no bytes
 * beside their token ids, a window state has one byte for each of the release's 40 layers, and a
 * step of any length takes no time.
 *
 * What decides is the host, here a server with TRAFFIC_STORE_SEQUENCES sequences. An agent's sequence
 * lives from its first request on, while it is at work and while it waits for tools and sub-agents.
 * It ends, leaving a snapshot, when the agent has answered, when its tool takes TRAFFIC_STORE_IDLE_MS
 * or is known to, or earlier when another needs its place or its memory: the one expected back latest
 * first. What is dropped ends without a snapshot; the same prompt once more, a prompt taken back and
 * a compacted context begin anew. A sub-agent that continues its parent's context is a fork of the
 * parent's sequence when that lives.
 */
#ifndef HEARTH_TESTS_TRAFFIC_STORE_H
#define HEARTH_TESTS_TRAFFIC_STORE_H

#include "engine/kv_store.h"
#include "traffic.h"

#define TRAFFIC_STORE_SEQUENCES 64 /* 2.7 MB of windows each; the day runs 34 at a time at most */
#define TRAFFIC_STORE_IDLE_MS   60000 /* as long as the store's leases */

struct traffic_store_options {
    int32_t blocks;      /* of memory */
    int32_t snapshots;   /* at a time; each 2.7 MB at the release's dimensions */
    int64_t snapshot_ms; /* lifetime of one */
};

struct traffic_store;

/* Expected errors: MEMORY. */
MUST_CHECK result traffic_store_create(
    struct traffic_store **out,
    const struct traffic *traffic,
    const struct traffic_store_options *options,
    struct error *error
);
/* Ends what lives; asserts that tree and pool agree and that no block is lost. Accepts null. */
void traffic_store_destroy(struct traffic_store *store);

struct traffic_store_reuse {
    int32_t hit;               /* tokens */
    int32_t start;             /* first row that runs: below `hit` windows are rebuilt */
    const char *window_source; /* static: "live", "snapshot", "rebuilt" or "cold" */
    double lookup_us;          /* of kv_store_begin; negative: nothing was looked up */
};
/* A request starts; `tokens` is its prompt. Takes the prompt's rows as computed. */
void traffic_store_start(
    struct traffic_store *store,
    const struct traffic_request *request,
    const int32_t *tokens,
    struct traffic_store_reuse *out
);
/* It ends: tokens up to the end of its output, of which only those behind the prompt are read. */
void traffic_store_end(
    struct traffic_store *store, const struct traffic_request *request, const int32_t *tokens
);

struct traffic_store_counts {
    struct kv_store_counts engine;
    int64_t forks;
    int64_t ended_waiting; /* for a tool that takes TRAFFIC_STORE_IDLE_MS */
    int64_t ended_for_place, ended_for_memory;
    int64_t refused; /* requests, or their outputs, that live sequences left no memory for */
};
void traffic_store_count(const struct traffic_store *store, struct traffic_store_counts *out);

#endif
