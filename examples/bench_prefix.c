/* What the prefix tree costs at the size of a large host: a tree of a million nodes (agents that
 * share a system prompt and tool trunks, then go their own ways), one prompt of 1,000 blocks.
 *
 * bench_prefix [NODES] (1000000): medians of 100, with the 10th and 90th percentile. The target is
 * a match of 1,000 blocks in 100 us. Before each measurement of a match a buffer larger than the
 * last-level cache is read, so that nothing of the tree is in a cache; the prompt, just made, is.
 */
#include <time.h>

#include "engine/kv_prefix.h"

#define B            KV_BLOCK_TOKENS
#define RUNS         100
#define MATCH_BLOCKS 1000
#define SESSION_MAX  1000 /* blocks of the longest session: 128,000 tokens */
#define SWEEP_BYTES  (96U << 20)

static double samples[RUNS];

static double now_us(void) {
    struct timespec now;
    int status = clock_gettime(CLOCK_MONOTONIC, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare_samples(const void *a, const void *b) {
    double first = *(const double *)a;
    double second = *(const double *)b;
    return (first > second) - (first < second);
}

static void report(const char *what, double divisor, const char *unit) {
    qsort(samples, RUNS, sizeof *samples, compare_samples);
    printf(
        "%-52s median %8.2f %s (10%% %.2f, 90%% %.2f)\n",
        what,
        samples[RUNS / 2] / divisor,
        unit,
        samples[RUNS / 10] / divisor,
        samples[RUNS * 9 / 10] / divisor
    );
}

static void block_retain(void *context, int32_t block) {
    (void)context;
    (void)block;
}

static bool block_release(void *context, int32_t block) {
    (void)block;
    *(uint64_t *)context += 1;
    return true;
}

/* Tokens of block `at` of a session: a common trunk, then trunks of 64, then its own text. */
static void fill(int32_t *tokens, int32_t session, int32_t at) {
    int32_t text = at < 8 ? 0 : at < 40 ? 1 + session % 64 : 100 + session;
    for (int32_t i = 0; i < B; i++) {
        uint32_t mixed = (uint32_t)text * 2654435761U + (uint32_t)(at * B + i) * 2246822519U;
        tokens[i] = (int32_t)((mixed ^ mixed >> 15) % 129280);
    }
}

/* Sessions grow turn by turn and interleaved, as they do in a host, so that the blocks of one are
 * spread over the node pool. */
static void grow(struct kv_prefix *tree, int32_t nodes, int32_t sessions, int32_t *blocks) {
    uint64_t *ends = calloc((size_t)sessions, sizeof *ends);
    int32_t *depths = calloc((size_t)sessions, sizeof *depths);
    ASSERT(ends != NULL);
    ASSERT(depths != NULL);
    struct kv_lineage lineage = {{1}};
    int32_t tokens[B];
    uint32_t random = 1;
    while (*blocks < nodes) {
        random = random * 1664525U + 1013904223U;
        int32_t session = (int32_t)((random >> 8) % (uint32_t)sessions);
        for (int32_t i = 0; i < 4 && depths[session] < SESSION_MAX && *blocks < nodes; i++) {
            fill(tokens, session, depths[session]++);
            struct kv_prefix_insertion out;
            result inserted = kv_prefix_insert(
                tree, ends[session], &lineage, tokens, *blocks, *blocks / 1000, &out, NULL
            );
            ASSERT(is_ok(inserted));
            ends[session] = out.node;
            *blocks += out.is_new;
        }
    }
    free(depths);
    free(ends);
}

static uint64_t sweep(const uint8_t *buffer) {
    uint64_t sum = 0;
    for (size_t i = 0; i < SWEEP_BYTES; i += 64) {
        sum += buffer[i];
    }
    return sum;
}

static void measure_match(const struct kv_prefix *tree, int32_t sessions, bool any, bool is_cold) {
    int32_t *tokens = calloc((size_t)(MATCH_BLOCKS + 1) * B, sizeof *tokens);
    uint8_t *buffer = malloc(SWEEP_BYTES);
    ASSERT(tokens != NULL);
    ASSERT(buffer != NULL);
    memset(buffer, 1, SWEEP_BYTES);
    int32_t blocks = 0;
    volatile uint64_t sink = 0;
    for (int32_t run = 0; run < RUNS; run++) {
        sink += is_cold ? sweep(buffer) : 0;
        for (int32_t at = 0; is_cold || run == 0 ? at <= MATCH_BLOCKS : false; at++) {
            fill(tokens + (size_t)at * B, run % sessions, at);
        }
        struct kv_prefix_match match;
        double start = now_us();
        kv_prefix_lookup(tree, tokens, (MATCH_BLOCKS + 1) * B, any, &match);
        samples[run] = now_us() - start;
        blocks = match.blocks;
    }
    char what[80];
    int length = snprintf(
        what,
        sizeof what,
        "%s match of %d blocks, %s",
        any ? "replay" : "exact",
        blocks,
        is_cold ? "caches swept" : "repeated"
    );
    ASSERT(length > 0);
    report(what, 1, "us");
    free(buffer);
    free(tokens);
}

/* Batches of 1,000: evictions, then insertions into the room that they made. */
static void measure_changes(struct kv_prefix *tree, int32_t *blocks) {
    static double evicted[RUNS];
    struct kv_lineage lineage = {{1}};
    int32_t(*tokens)[B] = calloc(1000, sizeof *tokens);
    ASSERT(tokens != NULL);
    for (int32_t run = 0; run < RUNS; run++) {
        double start = now_us();
        int32_t freed = kv_prefix_evict(tree, 1000, *blocks / 1000);
        evicted[run] = now_us() - start;
        ASSERT(freed == 1000);
        uint64_t parent = KV_PREFIX_ROOT;
        for (int32_t i = 0; i < 1000; i++) {
            fill(tokens[i], 1000000 + run, 100 + i);
        }
        start = now_us();
        for (int32_t i = 0; i < 1000; i++) {
            struct kv_prefix_insertion out;
            result inserted = kv_prefix_insert(
                tree, parent, &lineage, tokens[i], *blocks, *blocks / 1000, &out, NULL
            );
            ASSERT(is_ok(inserted));
            parent = out.node;
            *blocks += 1;
        }
        samples[run] = now_us() - start;
    }
    report("insert", 1000, "us each");
    memcpy(samples, evicted, sizeof samples);
    report("evict", 1000, "us each");
    uint64_t lease = 0;
    for (int32_t run = 0; run < RUNS; run++) {
        double start = now_us();
        for (int32_t i = 0; i < 1000; i++) {
            result held = kv_prefix_acquire(tree, KV_PREFIX_ROOT, 0, &lease, NULL);
            ASSERT(is_ok(held));
            kv_prefix_release(tree, lease, 0);
        }
        samples[run] = now_us() - start;
    }
    report("lease acquired and released", 1000, "us each");
    free(tokens);
}

int main(int argc, char **argv) {
    long wanted = argc > 1 ? strtol(argv[1], NULL, 10) : 1000000;
    if (wanted < 200000 || wanted > 8000000) {
        fprintf(stderr, "usage: bench_prefix [NODES: 200000 to 8000000]\n");
        return 2;
    }
    int32_t nodes = (int32_t)wanted;
    uint64_t released = 0;
    struct kv_prefix_options options = {
        .nodes_max = nodes,
        .leases_max = 1024,
        .hash_key = 0x1234567,
        .root_lineage = {{1}},
        .block_retain = block_retain,
        .block_release = block_release,
        .context = &released,
    };
    struct kv_prefix *tree = NULL;
    struct error error;
    if (is_failed(kv_prefix_create(&tree, &options, &error))) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    double bytes = (double)kv_prefix_measure(&options) / nodes;
    printf("%.0f bytes of index per node: %.3f %% of 113,920\n", bytes, bytes / 1139.2);
    int32_t sessions = nodes / 900; /* the last blocks bring most to SESSION_MAX */
    int32_t blocks = 0;
    double start = now_us();
    grow(tree, nodes, sessions, &blocks);
    printf("%d nodes of %d sessions in %.2f s\n", blocks, sessions, (now_us() - start) / 1e6);
    measure_match(tree, sessions, false, true);
    measure_match(tree, sessions, false, false);
    measure_match(tree, sessions, true, true);
    measure_changes(tree, &blocks);
    kv_prefix_destroy(tree);
    return 0;
}
