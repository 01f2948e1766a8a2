/* What the files of kv_store share. Thread: as kv_store.h, one at a time under the engine's lock. */
#ifndef HEARTH_ENGINE_KV_STORE_INTERNAL_H
#define HEARTH_ENGINE_KV_STORE_INTERNAL_H

#include "kv_store.h"
#include "kv_tier.h"

/* Inside a prompt an encoder snapshot is taken about as often as a rebuild is long, and not for less
 * than this many rows. */
#define KV_STORE_SNAPSHOT_ROWS_MIN 1024

struct derivation { /* child = kv_lineage_replay(parent, position) */
    struct kv_lineage child, parent;
    int32_t position;
};

struct snapshot_replays { /* of a snapshot with any */
    uint64_t id;
    int32_t count;
    struct window_replay replays[ENGINE_REPLAYS_MAX];
};

struct kv_store {
    struct kv_store_options options;
    struct kv_prefix *tree;
    struct kv_window *windows;
    int64_t now_ms;
    int32_t *path;              /* [blocks_max of a sequence] scratch */
    struct kv_key *keys;        /* the same; null without a tier */
    struct kv_binding *waiting; /* for blocks of a tier */
    struct kv_tier_batch batch; /* of which some is taken, up to batch_at; when has_batch */
    int32_t batch_at;
    bool has_batch;
    uint64_t next_ticket;
    int64_t write_all_ms; /* what was filed until then is written without delay */
    int32_t last_block;   /* the neighbour of the next one that comes back; -1: none */
    int32_t snapshot_rows;
    struct derivation *derivations; /* ring [KV_STORE_REPLAYS_KNOWN], zero when unused */
    int32_t derivation_next;
    struct snapshot_replays *snapshot_replays; /* [snapshots] */
    int32_t snapshot_replays_count;
    struct kv_store_counts counts;
};

/* W - 1 positions of `layers` layers: how far windows reach through them. */
static inline int64_t reach(const struct kv_store *store, int32_t layers) {
    return (int64_t)layers * (store->options.window - 1);
}

static inline bool is_root(const struct kv_store *store, const struct kv_lineage *lineage) {
    return kv_lineage_equals(lineage, &store->options.root);
}

int64_t kv_store_time(struct kv_store *store, int64_t now_ms);

/* The lineage of the block that holds position `end` - 1 as its last, after the encoder replays of the
 * list [count] that lie before `end`. */
struct kv_lineage kv_store_lineage_at(
    const struct kv_store *store, const struct window_replay *replays, int32_t count, int32_t end
);
/* Remembers, so that the list can be told from the lineage later. */
void kv_store_note_replay(
    struct kv_store *store, const struct kv_lineage *parent, int32_t position
);
/* The encoder replays that lead to a lineage, oldest first. False when they are forgotten, or more
 * than leave room for two more in a list. */
bool kv_store_resolve(
    const struct kv_store *store,
    const struct kv_lineage *lineage,
    struct window_replay out[ENGINE_REPLAYS_MAX],
    int32_t *count
);

/* A replay happened or is planned: appends it and derives the binding's lineages. */
void kv_store_add_replay(
    struct kv_store *store,
    struct kv_binding *binding,
    enum window_replay_kind kind,
    int32_t position
);
/* The encoder's part of a replay that starts now: rows from H - W run again, windows empty. */
void kv_store_start_replay(struct kv_store *store, struct kv_binding *binding, int32_t position);
/* Where the next snapshot inside the prompt is due. */
void kv_store_plan_cut(const struct kv_store *store, struct kv_binding *binding);

/* The child of a fork without a window slot shares the parent's parked state, or has one parked. */
void kv_store_fork_parked(
    struct kv_store *store, const struct kv_binding *parent, struct kv_binding *child
);

/* The lease moves to the binding's node, or begins there; without one when the node is gone. */
void kv_store_hold_lease(struct kv_store *store, struct kv_binding *binding);

/* Starts to read what the tiers have of a prompt [count] beyond the match. False: nothing to wait
 * for, and binding->tier_miss says why. */
bool kv_store_tier_ask(
    struct kv_store *store,
    struct kv_binding *binding,
    const struct kv_prefix_match *match,
    const int32_t *tokens,
    int32_t count,
    bool any_lineage
);
void kv_store_tier_cancel(struct kv_store *store, struct kv_binding *binding);
void kv_store_tier_evicted(struct kv_store *store, const struct kv_prefix_node *node);
/* Returns when to call again. */
int64_t kv_store_tier_poll(struct kv_store *store);
void kv_store_tier_touch(struct kv_store *store, uint64_t node);

/* Replays that a snapshot depends on; null for none. */
const struct snapshot_replays *kv_store_snapshot_replays(const struct kv_store *store, uint64_t id);

#endif
