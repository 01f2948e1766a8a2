/* Replay of a day against caches. See traffic_replay.h.
 *
 * Windows: a full snapshot is taken when a generation ends and lives for snapshot_ms, at most
 * `snapshots` of them, oldest first out. A prompt that continues its text goes on from it when the
 * blocks before it are there. Otherwise the hit ends at a block and rows before it run again, as
 * many as the release's exact rebuild takes (W 128, E 20, L 40).
 * Disk: every block filed is written once, while the hour's budget lasts, except outputs that are
 * dropped at once; a block refused is tried again when its path is used. Full, it loses the block used
 * longest ago of those that no other continues. What memory lacks is looked for there.
 */
#include "traffic_replay.h"

#include <time.h>

#include "engine/kv_prefix.h"
#include "traffic_future.h"
#include "traffic_pool.h"

#define B            KV_BLOCK_TOKENS
#define RUNNING      128 /* requests at a time; a day of 600 sessions has 40 */
#define HOUR_MS      3600000LL
#define ENCODER_ROWS 2540 /* E (W - 1) */
#define ALL_ROWS     5080 /* L (W - 1) */

/* A request that runs. */
struct running {
    int32_t request; /* -1: free */
    int32_t blocks;  /* whole ones of the prompt */
    uint64_t *keys;  /* [blocks of the longest output] */
};

struct snapshot {
    int32_t piece;
    int64_t taken_ms;
};

struct cache {
    struct traffic_cache_options options;
    struct traffic_store *store;
    struct kv_prefix *tree; /* null when another cache's memory serves: it does the same */
    struct cache *memory;   /* that one; null: its own */
    int32_t found;          /* blocks in memory, of the request that starts */
    struct traffic_pool *pool, *disk;
    int32_t *held;      /* [RUNNING] of the pool */
    int32_t *held_disk; /* [RUNNING] of the disk's */
    uint64_t *leases;   /* [agents] */
    uint64_t *nodes;    /* [agents] where the lease is */
    int64_t *snapshots; /* [pieces] when taken; INT64_MIN: none */
    struct snapshot *ring;
    int32_t ring_next;
    int64_t hour, hour_written;
    double *lookups; /* [requests] us */
    int32_t lookup_count;
    struct traffic_outcome outcome;
};

struct replay {
    const struct traffic *traffic;
    struct running running[RUNNING];
    int32_t *tokens;    /* [tokens_max] */
    int64_t *next_uses; /* [blocks of the longest output], of the request that starts */
    struct traffic_future *future;
    struct cache *caches;
    int32_t count;
};

const char *traffic_policy_name(enum traffic_policy policy) {
    static const char *const names[TRAFFIC_POLICIES] = {
        "engine's store",
        "prefix tree",
        "leaf-first LRU (tree)",
        "plain LRU",
        "leaf-first LRU",
        "ideal"};
    return names[policy];
}

/* Of its own or another's. */
static bool has_tree(const struct cache *cache) {
    return cache->options.policy == TRAFFIC_POLICY_TREE ||
           cache->options.policy == TRAFFIC_POLICY_UNTOLD;
}

/* ---- disk ---- */

/* Writes what of the path from..to, which continues `held`, is not on disk yet; a use otherwise.
 * Returns the last block, in use until it is dropped. */
static int32_t write_behind(
    struct cache *cache,
    int32_t held,
    const uint64_t *keys,
    int32_t from,
    int32_t to,
    int64_t now_ms
) {
    int64_t hour = now_ms / HOUR_MS;
    if (hour != cache->hour) {
        cache->hour = hour;
        cache->hour_written = 0;
    }
    for (int32_t i = from; i < to; i++) {
        if (!traffic_pool_has(cache->disk, keys[i])) {
            int64_t limit = cache->options.writes_per_hour;
            if (limit > 0 && cache->hour_written >= limit) {
                cache->outcome.write_refused++;
                continue;
            }
            cache->hour_written++;
            cache->outcome.written++;
            cache->outcome.written_hour[hour < TRAFFIC_HOURS ? hour : TRAFFIC_HOURS - 1]++;
        }
        struct traffic_path path = {.keys = keys + i, .count = 1};
        held = traffic_pool_use(cache->disk, held, &path);
    }
    return held;
}

/* ---- window snapshots ---- */

static void take_snapshot(struct cache *cache, int32_t piece, int64_t now_ms) {
    struct snapshot *slot = &cache->ring[cache->ring_next];
    if (slot->taken_ms != INT64_MIN && cache->snapshots[slot->piece] == slot->taken_ms) {
        cache->snapshots[slot->piece] = INT64_MIN;
    }
    *slot = (struct snapshot){.piece = piece, .taken_ms = now_ms};
    cache->snapshots[piece] = now_ms;
    cache->ring_next = (cache->ring_next + 1) % cache->options.snapshots;
}

/* The last position beyond `start` on the prompt's path that has a snapshot, or -1. Snapshots lie
 * before the last token that was sampled; the blocks before them have to be among those found. */
static int32_t find_snapshot(
    const struct replay *replay,
    const struct cache *cache,
    int32_t piece,
    int32_t found,
    int32_t start,
    int64_t now_ms
) {
    const struct traffic_piece *pieces = replay->traffic->pieces;
    for (int32_t at = pieces[piece].before; pieces[at].end - 1 > start; at = pieces[at].before) {
        int64_t taken_ms = cache->snapshots[at];
        int32_t position = pieces[at].end - 1;
        if (taken_ms != INT64_MIN && now_ms - taken_ms <= cache->options.snapshot_ms &&
            position / B <= found) {
            return position;
        }
    }
    return -1;
}

/* Charges a request that finds `found` blocks of its prompt. */
static void charge(
    const struct replay *replay, struct cache *cache, int32_t piece, int32_t found, int64_t now_ms
) {
    struct traffic_outcome *outcome = &cache->outcome;
    int32_t prompt = traffic_count(replay->traffic, piece);
    int32_t last = (prompt - 1) & ~1;
    int32_t hit = found * B < last ? found * B : last;
    int32_t start = hit - ENCODER_ROWS;
    start = start < prompt - ALL_ROWS - 1 ? start : prompt - ALL_ROWS - 1;
    start = start > 0 ? start : 0;
    int32_t snapshot = find_snapshot(replay, cache, piece, found, start, now_ms);
    if (snapshot >= hit) {
        hit = snapshot;
        start = snapshot;
    } else if (snapshot > start) {
        start = snapshot;
    }
    outcome->requests++;
    outcome->prompt += prompt;
    outcome->reused += hit;
    outcome->evaluated += prompt - hit;
    outcome->rebuilt += hit - start;
    outcome->cold += hit == 0;
    outcome->snapshot_hits += hit > 0 && hit == start;
    outcome->rebuilds += start < hit;
}

/* ---- the tree ---- */

static void block_retain(void *context, int32_t block) {
    (void)context;
    (void)block;
}

static bool block_release(void *context, int32_t block) {
    (void)context;
    (void)block;
    return true;
}

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Protects what the agent's request found. */
static void lease_node(struct cache *cache, int32_t agent, uint64_t node, int64_t now_ms) {
    if (cache->leases[agent] != 0 &&
        kv_prefix_renew(cache->tree, cache->leases[agent], node, now_ms)) {
        cache->nodes[agent] = node;
        return;
    }
    kv_prefix_release(cache->tree, cache->leases[agent], now_ms); /* of a node that is gone */
    cache->leases[agent] = 0;
    result held = kv_prefix_acquire(cache->tree, node, now_ms, &cache->leases[agent], NULL);
    ASSERT(is_ok(held)); /* a lease for each agent */
    cache->nodes[agent] = node;
}

/* Files blocks from..to of the tokens behind the agent's node. */
static void file_blocks(
    const struct replay *replay,
    struct cache *cache,
    int32_t agent,
    int32_t from,
    int32_t to,
    int64_t now_ms
) {
    static const struct kv_lineage lineage = {{1}};
    uint64_t node = cache->nodes[agent];
    for (int32_t i = from; i < to; i++) {
        struct kv_prefix_insertion filed;
        const int32_t *tokens = replay->tokens + (size_t)i * B;
        result done =
            kv_prefix_insert(cache->tree, node, &lineage, tokens, 0, now_ms, &filed, NULL);
        if (is_failed(done)) {
            cache->outcome.unfiled += to - i;
            break;
        }
        node = filed.node;
    }
    lease_node(cache, agent, node, now_ms);
}

static int32_t tree_find(
    const struct replay *replay, struct cache *cache, int32_t agent, int32_t tokens, int64_t now_ms
) {
    struct kv_prefix_match match;
    double start_us = now_us();
    kv_prefix_lookup(cache->tree, replay->tokens, tokens, false, &match);
    double us = now_us() - start_us;
    cache->lookups[cache->lookup_count++] = us;
    lease_node(cache, agent, match.node, now_ms);
    return match.blocks;
}

static void tell(struct cache *cache, const struct traffic_request *request, int64_t now_ms) {
    uint64_t *lease = &cache->leases[request->agent];
    if (cache->options.policy == TRAFFIC_POLICY_UNTOLD) {
        kv_prefix_release(cache->tree, *lease, now_ms);
        *lease = 0;
        return;
    }
    enum kv_prefix_event event = request->after == TRAFFIC_TOOL       ? KV_PREFIX_WAITING
                                 : request->after == TRAFFIC_CHILDREN ? KV_PREFIX_FORKED
                                 : request->after == TRAFFIC_ANSWERED ? KV_PREFIX_FINISHED
                                                                      : KV_PREFIX_ABANDONED;
    kv_prefix_tell(cache->tree, *lease, event, request->estimate_ms, now_ms);
    if (event == KV_PREFIX_FINISHED || event == KV_PREFIX_ABANDONED) {
        *lease = 0;
    }
}

/* ---- the engine's store ---- */

static void start_in_store(
    const struct replay *replay, struct cache *cache, const struct traffic_request *request
) {
    struct traffic_outcome *outcome = &cache->outcome;
    struct traffic_store_reuse reuse;
    traffic_store_start(cache->store, request, replay->tokens, &reuse);
    if (reuse.lookup_us >= 0) {
        cache->lookups[cache->lookup_count++] = reuse.lookup_us;
    }
    int32_t prompt = traffic_count(replay->traffic, request->prompt);
    outcome->requests++;
    outcome->prompt += prompt;
    outcome->reused += reuse.hit;
    outcome->evaluated += prompt - reuse.hit;
    outcome->rebuilt += reuse.hit - reuse.start;
    outcome->live += strcmp(reuse.window_source, "live") == 0;
    outcome->snapshot_hits += strcmp(reuse.window_source, "snapshot") == 0;
    outcome->rebuilds += strcmp(reuse.window_source, "rebuilt") == 0;
    outcome->cold += strcmp(reuse.window_source, "cold") == 0;
}

/* ---- events ---- */

static void start_in(
    const struct replay *replay,
    struct cache *cache,
    int32_t slot,
    const struct traffic_request *request
) {
    const struct running *running = &replay->running[slot];
    int64_t now_ms = request->start_ms;
    int32_t tokens = traffic_count(replay->traffic, request->prompt);
    int32_t found = cache->memory != NULL ? cache->memory->found
                    : has_tree(cache)
                        ? tree_find(replay, cache, request->agent, tokens, now_ms)
                        : traffic_pool_match(cache->pool, running->keys, running->blocks);
    cache->found = found;
    int32_t in_memory = found;
    if (cache->disk != NULL) {
        found += traffic_pool_match(cache->disk, running->keys + found, running->blocks - found);
        cache->held_disk[slot] =
            write_behind(cache, TRAFFIC_NO_BLOCK, running->keys, 0, running->blocks, now_ms);
    }
    cache->outcome.from_disk += (int64_t)(found - in_memory) * B;
    charge(replay, cache, request->prompt, found, now_ms);
    if (cache->memory != NULL) {
        return;
    }
    if (has_tree(cache)) {
        file_blocks(replay, cache, request->agent, in_memory, running->blocks, now_ms);
    } else {
        struct traffic_path path = {
            .keys = running->keys, .next_uses = replay->next_uses, .count = running->blocks};
        cache->held[slot] = traffic_pool_use(cache->pool, TRAFFIC_NO_BLOCK, &path);
    }
}

static void end_in(
    const struct replay *replay,
    struct cache *cache,
    int32_t slot,
    const struct traffic_request *request
) {
    const struct running *running = &replay->running[slot];
    int64_t now_ms = request->end_ms;
    int32_t blocks = (traffic_count(replay->traffic, request->output) - 1) / B;
    bool is_dropped = request->after == TRAFFIC_DROPPED;
    if (cache->tree != NULL) {
        file_blocks(replay, cache, request->agent, running->blocks, blocks, now_ms);
        tell(cache, request, now_ms);
    } else if (cache->memory == NULL) {
        struct traffic_path path = {
            .keys = running->keys + running->blocks,
            .next_uses = replay->next_uses + running->blocks,
            .count = blocks - running->blocks,
        };
        int32_t last = traffic_pool_use(cache->pool, cache->held[slot], &path);
        traffic_pool_drop(cache->pool, last);
    }
    if (cache->disk != NULL) {
        int32_t to = is_dropped ? running->blocks : blocks;
        int32_t last =
            write_behind(cache, cache->held_disk[slot], running->keys, running->blocks, to, now_ms);
        traffic_pool_drop(cache->disk, last);
    }
    if (!is_dropped && request->after != TRAFFIC_JOINED) {
        take_snapshot(cache, request->output, now_ms);
    }
}

/* Events come by time; an end before a start at the same time. */
static void start_request(struct replay *replay, int32_t number) {
    const struct traffic_request *request = &replay->traffic->requests[number];
    int32_t slot = 0;
    while (replay->running[slot].request >= 0) {
        slot++;
        ASSERT(slot < RUNNING);
    }
    struct running *running = &replay->running[slot];
    running->request = number;
    running->blocks = traffic_count(replay->traffic, request->prompt) / B;
    traffic_fill(replay->traffic, request->prompt, 0, replay->tokens);
    traffic_keys(replay->tokens, 0, running->blocks, running->keys);
    if (replay->future != NULL) {
        traffic_future_fill(replay->future, number, running->blocks, replay->next_uses);
    }
    for (int32_t i = 0; i < replay->count; i++) {
        if (replay->caches[i].store != NULL) {
            start_in_store(replay, &replay->caches[i], request);
        } else {
            start_in(replay, &replay->caches[i], slot, request);
        }
    }
}

static void end_request(struct replay *replay, int32_t slot) {
    struct running *running = &replay->running[slot];
    const struct traffic_request *request = &replay->traffic->requests[running->request];
    int32_t blocks = (traffic_count(replay->traffic, request->output) - 1) / B;
    traffic_fill(replay->traffic, request->output, running->blocks * B, replay->tokens);
    traffic_keys(replay->tokens, running->blocks, blocks, running->keys);
    if (replay->future != NULL) {
        traffic_future_fill(replay->future, running->request, blocks, replay->next_uses);
    }
    for (int32_t i = 0; i < replay->count; i++) {
        if (replay->caches[i].store != NULL) {
            traffic_store_end(replay->caches[i].store, request, replay->tokens);
        } else {
            end_in(replay, &replay->caches[i], slot, request);
        }
    }
    running->request = -1;
}

/* Ends what ends up to the time, earliest first. */
static void end_until(struct replay *replay, int64_t until_ms) {
    for (;;) {
        int32_t first = -1;
        int64_t first_ms = INT64_MAX;
        for (int32_t slot = 0; slot < RUNNING; slot++) {
            int32_t number = replay->running[slot].request;
            if (number >= 0 && replay->traffic->requests[number].end_ms < first_ms) {
                first = slot;
                first_ms = replay->traffic->requests[number].end_ms;
            }
        }
        if (first < 0 || first_ms > until_ms) {
            return;
        }
        end_request(replay, first);
    }
}

/* ---- create and destroy ---- */

static void cache_close(struct cache *cache) {
    free(cache->lookups);
    free(cache->ring);
    free(cache->snapshots);
    free(cache->nodes);
    free(cache->leases);
    free(cache->held_disk);
    free(cache->held);
    traffic_pool_destroy(cache->disk);
    traffic_pool_destroy(cache->pool);
    kv_prefix_destroy(cache->tree);
    traffic_store_destroy(cache->store);
}

static result open_memory(struct cache *cache, const struct traffic *traffic, struct error *error) {
    enum traffic_policy policy = cache->options.policy;
    int32_t agents = traffic->agent_count;
    if (policy == TRAFFIC_POLICY_STORE) {
        ASSERT(cache->options.disk_blocks == 0);
        const struct traffic_store_options options = {
            .blocks = cache->options.blocks,
            .snapshots = cache->options.snapshots,
            .snapshot_ms = cache->options.snapshot_ms,
        };
        return traffic_store_create(&cache->store, traffic, &options, error);
    }
    if (cache->memory != NULL) {
        return OK;
    }
    if (!has_tree(cache)) {
        enum traffic_order order = policy == TRAFFIC_POLICY_LRU        ? TRAFFIC_LRU
                                   : policy == TRAFFIC_POLICY_LEAF_LRU ? TRAFFIC_LEAF_LRU
                                                                       : TRAFFIC_IDEAL;
        return traffic_pool_create(&cache->pool, cache->options.blocks, order, error);
    }
    struct kv_prefix_options options = {
        .nodes_max = cache->options.blocks,
        .leases_max = agents < KV_PREFIX_LEASES_MAX ? agents : KV_PREFIX_LEASES_MAX,
        .hash_key = 0x1234567,
        .root_lineage = {{1}},
        .block_retain = block_retain,
        .block_release = block_release,
    };
    return kv_prefix_create(&cache->tree, &options, error);
}

static result cache_open(
    struct cache *cache,
    const struct traffic_cache_options *options,
    const struct traffic *traffic,
    struct error *error
) {
    size_t agents = (size_t)traffic->agent_count;
    size_t pieces = (size_t)traffic->piece_count;
    cache->options = *options;
    cache->hour = -1;
    cache->held = calloc(RUNNING, sizeof *cache->held);
    cache->held_disk = calloc(RUNNING, sizeof *cache->held_disk);
    cache->leases = calloc(agents, sizeof *cache->leases);
    cache->nodes = calloc(agents, sizeof *cache->nodes);
    cache->snapshots = calloc(pieces, sizeof *cache->snapshots);
    cache->ring = calloc((size_t)options->snapshots, sizeof *cache->ring);
    cache->lookups = calloc((size_t)traffic->request_count, sizeof *cache->lookups);
    if (cache->held == NULL || cache->held_disk == NULL || cache->leases == NULL ||
        cache->nodes == NULL || cache->snapshots == NULL || cache->ring == NULL ||
        cache->lookups == NULL) {
        FAIL(error, MEMORY, "no memory for a cache of %d agents", traffic->agent_count);
    }
    for (size_t i = 0; i < pieces; i++) {
        cache->snapshots[i] = INT64_MIN;
    }
    for (int32_t i = 0; i < options->snapshots; i++) {
        cache->ring[i].taken_ms = INT64_MIN;
    }
    TRY(open_memory(cache, traffic, error));
    return options->disk_blocks == 0
               ? OK
               : traffic_pool_create(&cache->disk, options->disk_blocks, TRAFFIC_LEAF_LRU, error);
}

static int compare_times(const void *a, const void *b) {
    double first = *(const double *)a;
    double second = *(const double *)b;
    return (first > second) - (first < second);
}

static void report_lookups(struct cache *cache, struct traffic_outcome *out) {
    qsort(cache->lookups, (size_t)cache->lookup_count, sizeof(double), compare_times);
    if (cache->lookup_count > 0) {
        out->lookup_us[0] = cache->lookups[cache->lookup_count / 2];
        out->lookup_us[1] = cache->lookups[(int64_t)cache->lookup_count * 99 / 100];
        out->lookup_us[2] = cache->lookups[cache->lookup_count - 1];
    }
}

static void report_tree(const struct kv_prefix_counts *counts, struct traffic_outcome *out) {
    out->filed = (int64_t)counts->inserted;
    out->evicted = (int64_t)counts->removed[KV_PREFIX_MISS_EVICTED];
}

static void cache_report(struct cache *cache, struct traffic_outcome *out) {
    const struct cache *memory = cache->memory != NULL ? cache->memory : cache;
    *out = cache->outcome;
    out->unfiled = memory->outcome.unfiled;
    report_lookups(cache, out);
    if (cache->store != NULL) {
        traffic_store_count(cache->store, &out->store);
        report_tree(&out->store.engine.tree, out);
    } else if (has_tree(cache)) {
        struct kv_prefix_counts counts;
        kv_prefix_count(memory->tree, &counts);
        report_tree(&counts, out);
    } else {
        struct traffic_pool_counts counts;
        traffic_pool_count(cache->pool, &counts);
        out->filed = counts.added;
        out->evicted = counts.evicted;
        out->unfiled = counts.refused;
    }
    if (cache->disk != NULL) {
        struct traffic_pool_counts counts;
        traffic_pool_count(cache->disk, &counts);
        out->disk_evicted = counts.evicted;
    }
}

static void replay_close(struct replay *replay) {
    for (int32_t i = 0; replay->caches != NULL && i < replay->count; i++) {
        cache_close(&replay->caches[i]);
    }
    for (int32_t slot = 0; slot < RUNNING; slot++) {
        free(replay->running[slot].keys);
    }
    traffic_future_free(replay->future);
    free(replay->caches);
    free(replay->next_uses);
    free(replay->tokens);
    free(replay);
}

/* An earlier cache with the same tree and no disk: what the memory holds does not depend on a disk. */
static struct cache *
find_memory(struct cache *caches, int32_t count, const struct traffic_cache_options *options) {
    for (int32_t i = 0; i < count && options->disk_blocks > 0; i++) {
        const struct traffic_cache_options *other = &caches[i].options;
        if (other->disk_blocks == 0 && other->policy == options->policy && has_tree(&caches[i]) &&
            other->blocks == options->blocks) {
            return &caches[i];
        }
    }
    return NULL;
}

static result replay_open(
    struct replay *replay,
    const struct traffic_cache_options *caches,
    int32_t count,
    struct error *error
) {
    size_t blocks = (size_t)(replay->traffic->tokens_max / B) + 1;
    replay->tokens = calloc(blocks * B, sizeof *replay->tokens);
    replay->next_uses = calloc(blocks, sizeof *replay->next_uses);
    replay->caches = calloc((size_t)count, sizeof *replay->caches);
    bool is_full = replay->tokens == NULL || replay->next_uses == NULL || replay->caches == NULL;
    for (int32_t slot = 0; slot < RUNNING && !is_full; slot++) {
        replay->running[slot].request = -1;
        replay->running[slot].keys = calloc(blocks, sizeof(uint64_t));
        is_full = replay->running[slot].keys == NULL;
    }
    if (is_full) {
        FAIL(error, MEMORY, "no memory for a replay of %zu blocks", blocks);
    }
    replay->count = count;
    bool has_ideal = false;
    for (int32_t i = 0; i < count; i++) {
        replay->caches[i].memory = find_memory(replay->caches, i, &caches[i]);
        TRY(cache_open(&replay->caches[i], &caches[i], replay->traffic, error));
        has_ideal = has_ideal || caches[i].policy == TRAFFIC_POLICY_IDEAL;
    }
    return has_ideal ? traffic_future_make(&replay->future, replay->traffic, error) : OK;
}

int32_t traffic_blocks_bound(const struct traffic *traffic) {
    int64_t tokens = 0;
    for (int32_t i = 1; i < traffic->piece_count; i++) {
        tokens += traffic->pieces[i].end - traffic->pieces[traffic->pieces[i].before].end;
    }
    return narrow_i32(tokens / B + traffic->piece_count);
}

result traffic_replay(
    const struct traffic *traffic,
    const struct traffic_cache_options *caches,
    int32_t count,
    struct traffic_outcome *out,
    struct error *error
) {
    struct replay *replay = calloc(1, sizeof *replay);
    if (replay == NULL) {
        FAIL(error, MEMORY, "no memory for a replay");
    }
    replay->traffic = traffic;
    result done = replay_open(replay, caches, count, error);
    for (int32_t i = 0; is_ok(done) && i < traffic->request_count; i++) {
        end_until(replay, traffic->requests[i].start_ms);
        start_request(replay, i);
    }
    if (is_ok(done)) {
        end_until(replay, INT64_MAX);
    }
    for (int32_t i = 0; is_ok(done) && i < count; i++) {
        cache_report(&replay->caches[i], &out[i]);
    }
    replay_close(replay);
    return done;
}
