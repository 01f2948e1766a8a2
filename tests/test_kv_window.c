/* The snapshot pool: what is captured comes back byte for byte, who goes first, lifetimes, blocks
 * held and given back, refusals; and a random run against a naive list. */
#include "engine/kv_window.h"
#include "failing_memory.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/mman.h>

#include <cmocka.h>

#define WINDOW    8
#define LAYERS    5
#define ENCODER   2
#define SEQUENCES 4
#define CONTEXT   (3 * KV_BLOCK_TOKENS)
#define SLOTS     6
#define LIFETIME  1000
#define UNKNOWN   INT64_MAX

/* Linked with --wrap, as is failing_memory.c. */
void *__real_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset); // NOLINT
void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset); // NOLINT
static bool mmap_fails;
static size_t mapped_bytes;

void *__wrap_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) { // NOLINT
    if (mmap_fails) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    mapped_bytes += bytes;
    return __real_mmap(at, bytes, prot, flags, fd, offset);
}

struct bench {
    struct backend *backend;
    struct kv_cache cache;
    struct kv_window_options options;
    struct kv_window *pool;
    struct kv_sequence *sequences[SEQUENCES];
    uint32_t seed;
};

static int32_t draw(struct bench *bench, int32_t below) {
    bench->seed = bench->seed * 1664525U + 1013904223U;
    return (int32_t)((bench->seed >> 8) % (uint32_t)below);
}

static void open_cache(struct bench *bench) {
    struct backend_options options = {
        .name = "cpu", .threads = 1, .rows_max = 1, .dim_max = 64, .context_max = 64};
    struct model_config *config = calloc(1, sizeof *config);
    struct kv_layout layout;
    assert_non_null(config);
    config->layers = LAYERS;
    config->head_dim = 32;
    config->index_dim = 32;
    config->window = WINDOW;
    config->kv_source_count = 2;
    config->kv_source_layers[1] = 1;
    config->plan[0].ratio = 2;
    config->plan[1].ratio = 1;
    *bench = (struct bench){.seed = 1};
    assert_true(is_ok(backend_open(&options, &bench->backend, NULL)));
    assert_true(is_ok(kv_layout_make(config, &layout, NULL)));
    free(config);
    assert_true(
        is_ok(kv_cache_init(&bench->cache, bench->backend, &layout, CONTEXT, SEQUENCES, NULL))
    );
    bench->options = (struct kv_window_options){
        .cache = &bench->cache,
        .encoder_layers = ENCODER,
        .window = WINDOW,
        .bytes_max = SLOTS * layout.state_bytes + 17,
        .lifetime_ms = LIFETIME,
    };
}

static struct bench *open_bench(void) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    assert_true(is_ok(kv_window_create(&bench->pool, &bench->options, NULL)));
    return bench;
}

static void close_bench(struct bench *bench) {
    kv_window_destroy(bench->pool);
    for (int32_t i = 0; i < SEQUENCES; i++) {
        if (bench->sequences[i] != NULL) {
            kv_cache_release(&bench->cache, bench->sequences[i]);
        }
    }
    assert_int_equal(bench->cache.block_free_count, bench->cache.block_total);
    kv_cache_deinit(&bench->cache);
    backend_close(bench->backend);
    free(bench);
}

/* A sequence of `tokens` ids, all computed, with random state. */
static struct kv_sequence *add_sequence(struct bench *bench, int32_t tokens) {
    int32_t at = 0;
    while (bench->sequences[at] != NULL) {
        at++;
        assert_true(at < SEQUENCES);
    }
    struct kv_sequence *sequence = kv_cache_acquire(&bench->cache);
    assert_non_null(sequence);
    bench->sequences[at] = sequence;
    assert_true(is_ok(kv_cache_reserve(&bench->cache, sequence, tokens, NULL)));
    for (int32_t i = 0; i < tokens; i++) {
        kv_cache_append(&bench->cache, sequence, draw(bench, 1000), 0);
    }
    sequence->computed = tokens;
    for (size_t i = 0; i < bench->cache.layout.state_bytes; i++) {
        sequence->state[i] = (uint8_t)draw(bench, 256);
    }
    return sequence;
}

static uint64_t take(
    struct bench *bench,
    const struct kv_sequence *sequence,
    enum kv_snapshot_kind kind,
    uint64_t node,
    int64_t expected_ms,
    int64_t now_ms
) {
    struct kv_snapshot about = {.kind = kind, .node = node, .expected_ms = expected_ms};
    return kv_window_capture(bench->pool, sequence, &about, now_ms);
}

static struct kv_window_counts counts_of(const struct bench *bench) {
    struct kv_window_counts counts;
    kv_window_count(bench->pool, &counts);
    return counts;
}

static bool is_there(const struct bench *bench, uint64_t id) {
    return kv_window_get(bench->pool, id) != NULL;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static size_t rings_of(int32_t layers, const struct kv_layout *layout) {
    return (size_t)layers * layout->ring_bytes;
}

static void capture_full_restores_every_byte(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequence = add_sequence(bench, 131);
    sequence->decoder_floor = 17;
    size_t bytes = bench->cache.layout.state_bytes;
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, sequence->state, bytes);
    int32_t tail = sequence->numbers[1];
    uint64_t id = take(bench, sequence, KV_SNAPSHOT_FULL, 9, UNKNOWN, 5);
    assert_true(id != 0);
    const struct kv_snapshot *snapshot = kv_window_get(bench->pool, id);
    assert_int_equal(snapshot->position, 131);
    assert_int_equal(snapshot->tail_count, 3);
    assert_int_equal(snapshot->tail_block, tail);
    assert_true(snapshot->has_source_ring);
    assert_int_equal(bench->cache.block_references[tail], 2);
    int32_t ids[3];
    kv_cache_read_ids(&bench->cache, sequence, 128, 3, ids);
    assert_memory_equal(snapshot->tail, ids, sizeof ids);
    /* The sequence goes; the snapshot and its block stay. */
    kv_cache_release(&bench->cache, sequence);
    bench->sequences[0] = NULL;
    assert_int_equal(bench->cache.block_references[tail], 1);
    struct kv_sequence *again = add_sequence(bench, 131);
    assert_true(kv_window_restore(bench->pool, id, KV_SNAPSHOT_FULL, again, 6));
    assert_memory_equal(again->state, copy, bytes);
    assert_int_equal(again->decoder_floor, 17);
    assert_int_equal(again->source_floor, 0);
    kv_window_drop(bench->pool, id);
    assert_int_equal(bench->cache.block_references[tail], 0);
    assert_false(kv_window_restore(bench->pool, id, KV_SNAPSHOT_FULL, again, 6));
    assert_int_equal(counts_of(bench).used, 1);
    free(copy);
    close_bench(bench);
}

/* Rings up to the first decoder layer and the pending pairs; the other rings stay as they are. */
static void capture_encoder_restores_its_part(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    const struct kv_layout *layout = &bench->cache.layout;
    struct kv_sequence *sequence = add_sequence(bench, 256);
    struct kv_sequence *other = add_sequence(bench, 256);
    size_t rings = rings_of(ENCODER + 1, layout);
    size_t end = rings_of(LAYERS, layout);
    assert_true(layout->state_bytes > end); /* a pending pair is there */
    uint8_t *before = malloc(layout->state_bytes);
    assert_non_null(before);
    for (int32_t from_full = 0; from_full < 2; from_full++) {
        enum kv_snapshot_kind kind = from_full ? KV_SNAPSHOT_FULL : KV_SNAPSHOT_ENCODER;
        uint64_t id = take(bench, sequence, kind, 9, UNKNOWN, 5);
        memset(other->state, 0x11 + from_full, layout->state_bytes);
        memcpy(before, other->state, layout->state_bytes);
        other->decoder_floor = 99;
        assert_true(kv_window_restore(bench->pool, id, KV_SNAPSHOT_ENCODER, other, 6));
        assert_memory_equal(other->state, sequence->state, rings);
        assert_memory_equal(other->state + rings, before + rings, end - rings);
        assert_memory_equal(other->state + end, sequence->state + end, layout->state_bytes - end);
        assert_int_equal(other->decoder_floor, 0);
        assert_int_equal(kv_window_get(bench->pool, id)->tail_block, -1);
    }
    assert_int_equal(counts_of(bench).blocks, 0);
    free(before);
    close_bench(bench);
}

static void capture_says_whether_source_ring_is_complete(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequence = add_sequence(bench, 100);
    sequence->source_floor = 100 - (WINDOW - 1);
    uint64_t id = take(bench, sequence, KV_SNAPSHOT_ENCODER, 0, UNKNOWN, 0);
    assert_true(kv_window_get(bench->pool, id)->has_source_ring);
    sequence->source_floor++;
    id = take(bench, sequence, KV_SNAPSHOT_ENCODER, 0, UNKNOWN, 0);
    assert_false(kv_window_get(bench->pool, id)->has_source_ring);
    assert_true(kv_window_restore(bench->pool, id, KV_SNAPSHOT_ENCODER, sequence, 0));
    assert_int_equal(sequence->source_floor, 100);
    struct kv_sequence *early = add_sequence(bench, WINDOW - 2);
    id = take(bench, early, KV_SNAPSHOT_ENCODER, 0, UNKNOWN, 0);
    assert_true(kv_window_get(bench->pool, id)->has_source_ring);
    close_bench(bench);
}

/* ---- the index ------------------------------------------------------------------------------- */

static void list_of_node_starts_at_greatest_position(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequences[] = {
        add_sequence(bench, 140), add_sequence(bench, 200), add_sequence(bench, 150)};
    uint64_t ids[4];
    for (int32_t i = 0; i < 3; i++) {
        ids[i] = take(bench, sequences[i], KV_SNAPSHOT_FULL, 7, UNKNOWN, i);
    }
    ids[3] = take(bench, sequences[1], KV_SNAPSHOT_ENCODER, 7, UNKNOWN, 3);
    uint64_t elsewhere = take(bench, sequences[1], KV_SNAPSHOT_ENCODER, 8, UNKNOWN, 3);
    const uint64_t wanted[] = {ids[1], ids[3], ids[2], ids[0]};
    const struct kv_snapshot *at = kv_window_first(bench->pool, 7, 4);
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        assert_non_null(at);
        assert_true(at->id == wanted[i]);
        at = kv_window_next(bench->pool, at, 4);
    }
    assert_null(at);
    assert_null(kv_window_first(bench->pool, 6, 4));
    kv_window_drop_node(bench->pool, 7);
    assert_null(kv_window_first(bench->pool, 7, 4));
    assert_true(is_there(bench, elsewhere));
    assert_int_equal(counts_of(bench).dropped, 4);
    assert_int_equal(counts_of(bench).blocks, 0);
    close_bench(bench);
}

/* The same place again takes the place of the first; another tail, lineage or kind does not. */
static void capture_again_replaces(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequence = add_sequence(bench, 130);
    struct kv_sequence *other = add_sequence(bench, 130);
    uint64_t first = take(bench, sequence, KV_SNAPSHOT_FULL, 7, UNKNOWN, 0);
    uint64_t encoder = take(bench, sequence, KV_SNAPSHOT_ENCODER, 7, UNKNOWN, 0);
    uint64_t divergent = take(bench, other, KV_SNAPSHOT_FULL, 7, UNKNOWN, 0);
    struct kv_snapshot about = {.node = 7, .expected_ms = UNKNOWN, .lineage.bytes[3] = 1};
    uint64_t approximate = kv_window_capture(bench->pool, sequence, &about, 0);
    about = (struct kv_snapshot){.node = 7, .expected_ms = UNKNOWN, .has_decoder_lineage = true};
    uint64_t replayed = kv_window_capture(bench->pool, sequence, &about, 0);
    assert_int_equal(counts_of(bench).full + counts_of(bench).encoder, 5);
    assert_int_equal(counts_of(bench).replaced, 0);
    uint64_t second = take(bench, sequence, KV_SNAPSHOT_FULL, 7, UNKNOWN, 1);
    assert_false(is_there(bench, first));
    assert_true(is_there(bench, second) && is_there(bench, encoder) && is_there(bench, divergent));
    assert_true(is_there(bench, approximate) && is_there(bench, replayed));
    assert_int_equal(counts_of(bench).replaced, 1);
    assert_int_equal(bench->cache.block_references[sequence->numbers[1]], 4);
    close_bench(bench);
}

/* ---- who goes -------------------------------------------------------------------------------- */

static void full_pool_evicts_by_kind_then_return_then_use(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequence = add_sequence(bench, 128);
    uint64_t encoder_soon = take(bench, sequence, KV_SNAPSHOT_ENCODER, 1, 110, 100);
    uint64_t full_unknown = take(bench, sequence, KV_SNAPSHOT_FULL, 2, UNKNOWN, 101);
    uint64_t full_late = take(bench, sequence, KV_SNAPSHOT_FULL, 3, 900, 102);
    uint64_t full_soon = take(bench, sequence, KV_SNAPSHOT_FULL, 4, 200, 103);
    uint64_t full_older = take(bench, sequence, KV_SNAPSHOT_FULL, 5, 300, 104);
    uint64_t full_newer = take(bench, sequence, KV_SNAPSHOT_FULL, 6, 300, 105);
    assert_true(kv_window_restore(bench->pool, full_older, KV_SNAPSHOT_FULL, sequence, 106));
    const uint64_t order[] = {
        encoder_soon, full_unknown, full_late, full_newer, full_older, full_soon};
    for (uint64_t i = 0; i < COUNT_OF(order); i++) {
        for (uint64_t j = 0; j < COUNT_OF(order); j++) {
            assert_int_equal(is_there(bench, order[j]), j >= i);
        }
        /* The new ones are expected at once, so they are not among the victims. */
        assert_true(take(bench, sequence, KV_SNAPSHOT_FULL, 100 + i, 0, 107) != 0);
    }
    assert_int_equal(counts_of(bench).evicted, 6);
    /* An encoder snapshot never takes the place of a full one. */
    assert_true(take(bench, sequence, KV_SNAPSHOT_ENCODER, 200, 0, 107) == 0);
    assert_int_equal(counts_of(bench).refused, 1);
    assert_int_equal(counts_of(bench).full, SLOTS);
    close_bench(bench);
}

static void lifetimes_follow_use_and_expected_return(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *sequence = add_sequence(bench, 128);
    uint64_t idle = take(bench, sequence, KV_SNAPSHOT_FULL, 1, UNKNOWN, 0);
    uint64_t used = take(bench, sequence, KV_SNAPSHOT_FULL, 2, UNKNOWN, 0);
    uint64_t expected = take(bench, sequence, KV_SNAPSHOT_FULL, 3, 700, 0);
    uint64_t distant = take(bench, sequence, KV_SNAPSHOT_FULL, 4, INT64_MAX - 1, 0);
    assert_true(kv_window_restore(bench->pool, used, KV_SNAPSHOT_FULL, sequence, 500));
    assert_int_equal(kv_window_advance(bench->pool, LIFETIME - 1), LIFETIME);
    assert_true(is_there(bench, idle));
    assert_non_null(kv_window_first(bench->pool, 1, LIFETIME - 1));
    assert_null(kv_window_first(bench->pool, 1, LIFETIME)); /* not shown, though still there */
    assert_int_equal(kv_window_advance(bench->pool, LIFETIME), 500 + LIFETIME);
    assert_false(is_there(bench, idle));
    assert_int_equal(kv_window_advance(bench->pool, 600 + LIFETIME), 700 + LIFETIME);
    assert_false(is_there(bench, used));
    kv_window_expect(bench->pool, expected, 800, 600 + LIFETIME);
    assert_int_equal(kv_window_advance(bench->pool, 700 + LIFETIME), 800 + LIFETIME);
    assert_true(is_there(bench, expected));
    /* Nobody holds memory for longer than an hour's announcement. */
    assert_int_equal(kv_window_advance(bench->pool, 800 + LIFETIME), 3600000 + LIFETIME);
    assert_true(is_there(bench, distant));
    assert_int_equal(kv_window_advance(bench->pool, 3600000 + LIFETIME), INT64_MAX);
    assert_false(is_there(bench, distant));
    assert_int_equal(counts_of(bench).expired, 4);
    kv_window_expect(bench->pool, distant, 5, 6); /* gone: nothing happens */
    kv_window_drop(bench->pool, distant);
    close_bench(bench);
}

static void release_blocks_drops_tails_until_enough_are_free(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct kv_sequence *live = add_sequence(bench, 130);
    uint64_t shared = take(bench, live, KV_SNAPSHOT_FULL, 1, UNKNOWN, 0);
    uint64_t without = take(bench, add_sequence(bench, 128), KV_SNAPSHOT_FULL, 2, UNKNOWN, 0);
    uint64_t alone[2];
    for (int32_t i = 0; i < 2; i++) {
        struct kv_sequence *sequence = add_sequence(bench, 140);
        alone[i] = take(bench, sequence, KV_SNAPSHOT_FULL, 3, UNKNOWN, 1 + i);
        kv_cache_release(&bench->cache, sequence);
        bench->sequences[2] = NULL;
    }
    int32_t free = bench->cache.block_free_count;
    assert_int_equal(kv_window_release_blocks(bench->pool, 1, 3), 1);
    assert_int_equal(bench->cache.block_free_count, free + 1);
    assert_false(is_there(bench, shared)); /* was first; its block is still the sequence's */
    assert_false(is_there(bench, alone[0]));
    assert_true(is_there(bench, alone[1]) && is_there(bench, without));
    assert_int_equal(kv_window_release_blocks(bench->pool, 5, 3), 1);
    assert_true(is_there(bench, without));
    close_bench(bench);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void pool_without_slots_keeps_nothing(void **state) {
    (void)state;
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    bench->options.bytes_max = bench->cache.layout.state_bytes - 1;
    assert_true(is_ok(kv_window_create(&bench->pool, &bench->options, NULL)));
    struct kv_sequence *sequence = add_sequence(bench, 130);
    assert_true(take(bench, sequence, KV_SNAPSHOT_FULL, 1, UNKNOWN, 0) == 0);
    assert_null(kv_window_first(bench->pool, 1, 0));
    assert_int_equal(kv_window_advance(bench->pool, 100), INT64_MAX);
    assert_int_equal(kv_window_release_blocks(bench->pool, 1, 0), 0);
    assert_int_equal(counts_of(bench).refused, 1);
    close_bench(bench);
}

/* What is measured is what is taken, and touched no earlier than used. */
static void pool_takes_what_was_measured(void **state) {
    (void)state;
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    struct kv_window_size size;
    kv_window_measure(&bench->options, &size);
    const struct kv_layout *layout = &bench->cache.layout;
    assert_int_equal(size.slots, SLOTS);
    assert_int_equal(
        size.encoder_bytes,
        rings_of(ENCODER + 1, layout) + (layout->state_bytes - rings_of(LAYERS, layout))
    );
    mapped_bytes = 0;
    assert_true(is_ok(kv_window_create(&bench->pool, &bench->options, NULL)));
    assert_int_equal(mapped_bytes, size.slot_bytes);
    assert_true(size.total_bytes > size.slot_bytes);
    assert_int_equal(counts_of(bench).bytes_touched, 0);
    struct kv_sequence *sequence = add_sequence(bench, 128);
    uint64_t id = take(bench, sequence, KV_SNAPSHOT_ENCODER, 1, UNKNOWN, 0);
    assert_int_equal(counts_of(bench).bytes_touched, size.encoder_bytes);
    kv_window_drop(bench->pool, id);
    id = take(bench, sequence, KV_SNAPSHOT_FULL, 1, UNKNOWN, 0); /* the same slot */
    assert_int_equal(counts_of(bench).bytes_touched, layout->state_bytes);
    for (uint64_t node = 2; node < 2 * SLOTS; node++) {
        (void)take(bench, sequence, KV_SNAPSHOT_FULL, node, UNKNOWN, 0);
    }
    assert_int_equal(counts_of(bench).bytes_touched, SLOTS * layout->state_bytes);
    close_bench(bench);
}

static void pool_limits_slots(void **state) {
    (void)state;
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    struct kv_window_size size;
    bench->options.bytes_max = UINT64_MAX;
    kv_window_measure(&bench->options, &size);
    assert_int_equal(size.slots, KV_WINDOW_COUNT_MAX);
    bench->options.count_max = 2;
    kv_window_measure(&bench->options, &size);
    assert_int_equal(size.slots, 2);
    bench->options.count_max = 100000;
    kv_window_measure(&bench->options, &size);
    assert_int_equal(size.slots, KV_WINDOW_COUNT_MAX);
    close_bench(bench);
}

static void create_without_memory_leaves_nothing(void **state) {
    (void)state;
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    size_t failures = 0;
    for (size_t nth = 1;; nth++) {
        struct kv_window *pool = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result created = kv_window_create(&pool, &bench->options, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        if (!fired) {
            assert_true(is_ok(created));
            kv_window_destroy(pool);
            break;
        }
        assert_int_equal(created.code, RESULT_MEMORY);
        assert_null(pool);
        failures++;
    }
    assert_int_equal(failures, 3);
    struct kv_window *pool = NULL;
    struct error error = {0};
    mmap_fails = true;
    assert_int_equal(kv_window_create(&pool, &bench->options, &error).code, RESULT_MEMORY);
    mmap_fails = false;
    assert_null(pool);
    assert_non_null(strstr(error.message, "6 window snapshots"));
    kv_window_destroy(NULL);
    close_bench(bench);
}

/* ---- a random run ---------------------------------------------------------------------------- */

#define NODES     5
#define STEPS     20000
#define MODEL_MAX 64

struct known {
    struct kv_snapshot snapshot;
    uint8_t *bytes; /* state at the capture */
};

struct naive {
    struct known items[MODEL_MAX];
    int32_t count;
};

static int64_t naive_expiry(const struct kv_snapshot *s) {
    int64_t base = s->used_ms;
    if (s->expected_ms != UNKNOWN && s->expected_ms > base) {
        base = s->expected_ms < base + 3600000 ? s->expected_ms : base + 3600000;
    }
    return base + LIFETIME;
}

static void naive_remove(struct naive *naive, int32_t at) {
    free(naive->items[at].bytes);
    memmove(
        &naive->items[at],
        &naive->items[at + 1],
        (size_t)(naive->count - at - 1) * sizeof naive->items[0]
    );
    naive->count--;
}

static void naive_expire(struct naive *naive, int64_t now_ms) {
    for (int32_t i = naive->count; i-- > 0;) {
        if (naive_expiry(&naive->items[i].snapshot) <= now_ms) {
            naive_remove(naive, i);
        }
    }
}

/* -1 when none may go. Ties are impossible: every step has its own time. */
static int32_t naive_victim(const struct naive *naive, bool encoder_only) {
    int32_t best = -1;
    for (int32_t i = 0; i < naive->count; i++) {
        const struct kv_snapshot *a = &naive->items[i].snapshot;
        if (encoder_only && a->kind == KV_SNAPSHOT_FULL) {
            continue;
        }
        const struct kv_snapshot *b = best < 0 ? NULL : &naive->items[best].snapshot;
        bool first =
            b == NULL || a->kind > b->kind ||
            (a->kind == b->kind && a->expected_ms > b->expected_ms) ||
            (a->kind == b->kind && a->expected_ms == b->expected_ms && a->used_ms < b->used_ms);
        best = first ? i : best;
    }
    return best;
}

static void check_naive(const struct bench *bench, const struct naive *naive, int64_t now_ms) {
    int32_t references[SEQUENCES * 3] = {0};
    int32_t shown = 0;
    int32_t full = 0;
    for (int32_t i = 0; i < naive->count; i++) {
        const struct kv_snapshot *snapshot = &naive->items[i].snapshot;
        const struct kv_snapshot *found = kv_window_get(bench->pool, snapshot->id);
        assert_non_null(found);
        assert_int_equal(found->position, snapshot->position);
        full += snapshot->kind == KV_SNAPSHOT_FULL;
        if (snapshot->tail_block >= 0) {
            references[snapshot->tail_block]++;
        }
    }
    for (uint64_t node = 0; node < NODES; node++) {
        int32_t before = INT32_MAX;
        for (const struct kv_snapshot *at = kv_window_first(bench->pool, node, now_ms); at != NULL;
             at = kv_window_next(bench->pool, at, now_ms)) {
            assert_true(at->node == node && at->position <= before);
            before = at->position;
            shown++;
        }
    }
    assert_int_equal(shown, naive->count);
    struct kv_window_counts counts = counts_of(bench);
    assert_int_equal(counts.full, full);
    assert_int_equal(counts.encoder, naive->count - full);
    for (int32_t i = 0; i < SEQUENCES; i++) {
        const struct kv_sequence *sequence = bench->sequences[i];
        for (int32_t b = 0; sequence != NULL && b < sequence->block_count; b++) {
            references[sequence->numbers[b]]++;
        }
    }
    for (int32_t n = 0; n < bench->cache.block_total; n++) {
        assert_int_equal(bench->cache.block_references[n], references[n]);
    }
}

static void naive_capture(struct bench *bench, struct naive *naive, int64_t now_ms) {
    struct kv_sequence *sequence = bench->sequences[draw(bench, SEQUENCES)];
    struct kv_snapshot about = {
        .kind = draw(bench, 2) == 0 ? KV_SNAPSHOT_FULL : KV_SNAPSHOT_ENCODER,
        .node = (uint64_t)draw(bench, NODES),
        .expected_ms = draw(bench, 2) == 0 ? UNKNOWN : now_ms + draw(bench, 2 * LIFETIME),
    };
    sequence->state[draw(bench, (int32_t)bench->cache.layout.state_bytes)] ^= 0x55;
    int32_t place = -1;
    for (int32_t i = 0; i < naive->count; i++) {
        const struct kv_snapshot *s = &naive->items[i].snapshot;
        if (s->kind == about.kind && s->node == about.node &&
            s->position == sequence->computed) { /* positions tell the sequences apart */
            place = i;
        }
    }
    if (place < 0 && naive->count == SLOTS) {
        place = naive_victim(naive, about.kind == KV_SNAPSHOT_ENCODER);
    }
    bool fits = place >= 0 || naive->count < SLOTS;
    if (place >= 0) {
        naive_remove(naive, place);
    }
    uint64_t id = kv_window_capture(bench->pool, sequence, &about, now_ms);
    assert_int_equal(id != 0, fits);
    if (fits) {
        struct known *known = &naive->items[naive->count++];
        known->snapshot = *kv_window_get(bench->pool, id);
        assert_int_equal(known->snapshot.position, sequence->computed);
        known->bytes = malloc(bench->cache.layout.state_bytes);
        assert_non_null(known->bytes);
        memcpy(known->bytes, sequence->state, bench->cache.layout.state_bytes);
    }
}

/* Only a sequence of the same position may take it. */
static void naive_restore(struct bench *bench, struct naive *naive, int64_t now_ms) {
    struct known *known = &naive->items[draw(bench, naive->count)];
    const struct kv_layout *layout = &bench->cache.layout;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        struct kv_sequence *sequence = bench->sequences[i];
        if (sequence->computed != known->snapshot.position) {
            continue;
        }
        enum kv_snapshot_kind kind = known->snapshot.kind;
        assert_true(kv_window_restore(bench->pool, known->snapshot.id, kind, sequence, now_ms));
        size_t rings = rings_of(kind == KV_SNAPSHOT_FULL ? LAYERS : ENCODER + 1, layout);
        size_t end = rings_of(LAYERS, layout);
        assert_memory_equal(sequence->state, known->bytes, rings);
        assert_memory_equal(sequence->state + end, known->bytes + end, layout->state_bytes - end);
        known->snapshot.used_ms = now_ms;
    }
}

static void naive_step(struct bench *bench, struct naive *naive, int64_t now_ms) {
    int32_t action = draw(bench, 20);
    if (action < 9) {
        naive_capture(bench, naive, now_ms);
    } else if (naive->count == 0) {
        (void)kv_window_advance(bench->pool, now_ms);
    } else if (action < 14) {
        naive_restore(bench, naive, now_ms);
    } else if (action < 16) {
        int32_t at = draw(bench, naive->count);
        int64_t expected_ms = now_ms + draw(bench, LIFETIME);
        naive->items[at].snapshot.expected_ms = expected_ms;
        kv_window_expect(bench->pool, naive->items[at].snapshot.id, expected_ms, now_ms);
    } else if (action < 18) {
        int32_t at = draw(bench, naive->count);
        kv_window_drop(bench->pool, naive->items[at].snapshot.id);
        naive_remove(naive, at);
    } else if (action == 18) {
        uint64_t node = (uint64_t)draw(bench, NODES);
        kv_window_drop_node(bench->pool, node);
        for (int32_t i = naive->count; i-- > 0;) {
            if (naive->items[i].snapshot.node == node) {
                naive_remove(naive, i);
            }
        }
    }
}

static void random_run_equals_naive_list(void **state) {
    (void)state;
    struct bench *bench = open_bench();
    struct naive *naive = calloc(1, sizeof *naive);
    assert_non_null(naive);
    const int32_t tokens[SEQUENCES] = {1, 131, 256, 383};
    for (int32_t i = 0; i < SEQUENCES; i++) {
        (void)add_sequence(bench, tokens[i]);
    }
    int64_t now_ms = 0;
    for (int32_t s = 0; s < STEPS; s++) {
        now_ms += 1 + (draw(bench, 10) == 0 ? draw(bench, LIFETIME) : draw(bench, 20));
        (void)kv_window_advance(bench->pool, now_ms);
        naive_expire(naive, now_ms);
        naive_step(bench, naive, now_ms);
        check_naive(bench, naive, now_ms);
    }
    struct kv_window_counts counts = counts_of(bench);
    print_message(
        "seed 1: %llu captured, %llu replaced, %llu evicted, %llu expired, %llu refused\n",
        (unsigned long long)counts.captured,
        (unsigned long long)counts.replaced,
        (unsigned long long)counts.evicted,
        (unsigned long long)counts.expired,
        (unsigned long long)counts.refused
    );
    assert_true(counts.replaced > 50 && counts.evicted > 50 && counts.expired > 50);
    assert_true(counts.refused > 0);
    while (naive->count > 0) {
        naive_remove(naive, 0);
    }
    free(naive);
    close_bench(bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture_full_restores_every_byte),
        cmocka_unit_test(capture_encoder_restores_its_part),
        cmocka_unit_test(capture_says_whether_source_ring_is_complete),
        cmocka_unit_test(list_of_node_starts_at_greatest_position),
        cmocka_unit_test(capture_again_replaces),
        cmocka_unit_test(full_pool_evicts_by_kind_then_return_then_use),
        cmocka_unit_test(lifetimes_follow_use_and_expected_return),
        cmocka_unit_test(release_blocks_drops_tails_until_enough_are_free),
        cmocka_unit_test(pool_without_slots_keeps_nothing),
        cmocka_unit_test(pool_takes_what_was_measured),
        cmocka_unit_test(pool_limits_slots),
        cmocka_unit_test(create_without_memory_leaves_nothing),
        cmocka_unit_test(random_run_equals_naive_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
