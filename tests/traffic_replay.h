/* Replays a day of traffic (traffic.h) against caches. Nobody computes: a request reuses what the
 * cache holds of its prompt, is charged for the rest, and files its blocks. All caches see the same
 * times, which do not depend on what they reuse. Prompts are charged in whole blocks, except after
 * a window snapshot; see traffic_replay.c for the models of snapshots and disk.
 */
#ifndef HEARTH_TESTS_TRAFFIC_REPLAY_H
#define HEARTH_TESTS_TRAFFIC_REPLAY_H

#include "traffic.h"
#include "traffic_store.h"

enum traffic_policy {
    TRAFFIC_POLICY_STORE,  /* the engine's whole store: traffic_store.h; no disk */
    TRAFFIC_POLICY_TREE,   /* the engine's prefix tree with what agents tell it */
    TRAFFIC_POLICY_UNTOLD, /* the same tree and leases, no events */
    TRAFFIC_POLICY_LRU,    /* traffic_pool.h */
    TRAFFIC_POLICY_LEAF_LRU,
    TRAFFIC_POLICY_IDEAL
};
#define TRAFFIC_POLICIES 6
/* What started in the last hour may end in the next. */
#define TRAFFIC_HOURS 25
const char *traffic_policy_name(enum traffic_policy policy);

struct traffic_cache_options {
    enum traffic_policy policy;
    int32_t blocks;          /* of memory */
    int32_t disk_blocks;     /* 0: no disk */
    int64_t writes_per_hour; /* blocks; 0: no limit */
    int32_t snapshots;       /* at a time */
    int64_t snapshot_ms;     /* lifetime of one */
};

/* What happened; tokens unless said otherwise. prompt = reused + evaluated. */
struct traffic_outcome {
    int64_t requests, prompt, reused, evaluated, rebuilt;
    int64_t from_disk;     /* of reused */
    int64_t cold;          /* requests that reused nothing */
    int64_t live;          /* requests that went on with a sequence that lives, forks included */
    int64_t snapshot_hits; /* requests that went on from one without rebuilding */
    int64_t rebuilds;      /* requests */
    int64_t filed;         /* blocks; those that come back after an eviction count again */
    int64_t evicted;       /* blocks, for room */
    int64_t unfiled;       /* blocks: everything else was in use */
    int64_t written;       /* blocks, to disk */
    int64_t write_refused; /* attempts over the hour's budget */
    int64_t written_hour[TRAFFIC_HOURS];
    int64_t disk_evicted; /* blocks */
    double lookup_us[3];  /* median, 99th percentile, most; 0 where nothing was timed */
    struct traffic_store_counts store; /* zero for others */
};

/* Blocks that are certainly enough for everything that the day computes. */
int32_t traffic_blocks_bound(const struct traffic *traffic);

/* Runs all caches through the day at once. Expected errors: MEMORY. */
MUST_CHECK result traffic_replay(
    const struct traffic *traffic,
    const struct traffic_cache_options *caches,
    int32_t count,
    struct traffic_outcome *out,
    struct error *error
);

#endif
