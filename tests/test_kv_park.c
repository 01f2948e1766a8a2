/* Parked window states and promised blocks: what is parked comes back byte for byte, who goes first,
 * what forks share, what becomes of it when its sequence ends; and random runs against naive lists.
 * What it means for results is tested with the forward pass: test_kv_turns.c. */
#include "engine/kv_window.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define WINDOW    8
#define LAYERS    5
#define ENCODER   2
#define SEQUENCES 8
#define WINDOWS   3
#define CONTEXT   (4 * KV_BLOCK_TOKENS - 5)
#define BLOCKS    4 /* of a context */
#define POOL      14
#define SLOTS     4
#define LIFETIME  1000
#define UNKNOWN   INT64_MAX

struct bench {
    struct backend *backend;
    struct kv_cache cache;
    struct kv_window *pool;
    uint32_t seed;
};

static int32_t draw(struct bench *bench, int32_t below) {
    bench->seed = bench->seed * 1664525U + 1013904223U;
    return (int32_t)((bench->seed >> 8) % (uint32_t)below);
}

static void open_bench(struct bench *bench, int32_t windows, uint32_t seed) {
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
    *bench = (struct bench){.seed = seed};
    assert_true(is_ok(backend_open(&options, &bench->backend, NULL)));
    assert_true(is_ok(kv_layout_make(config, &layout, NULL)));
    free(config);
    const struct kv_cache_shape shape = {
        .context_max = CONTEXT,
        .sequences_max = SEQUENCES,
        .block_total = POOL,
        .windows_max = windows,
    };
    assert_true(is_ok(kv_cache_init_shape(&bench->cache, bench->backend, &layout, &shape, NULL)));
    const struct kv_window_options window = {
        .cache = &bench->cache,
        .encoder_layers = ENCODER,
        .window = WINDOW,
        .bytes_max = SLOTS * layout.state_bytes,
        .lifetime_ms = LIFETIME,
    };
    assert_true(is_ok(kv_window_create(&bench->pool, &window, NULL)));
}

static void close_bench(struct bench *bench) {
    kv_window_destroy(bench->pool);
    for (int32_t i = 0; i < SEQUENCES; i++) {
        if (bench->cache.sequences[i].used) {
            kv_cache_release(&bench->cache, &bench->cache.sequences[i]);
        }
    }
    assert_true(is_ok(kv_cache_check(&bench->cache, NULL)));
    assert_int_equal(bench->cache.block_free_count, bench->cache.block_total);
    assert_int_equal(bench->cache.window_free_count, bench->cache.windows_max);
    kv_cache_deinit(&bench->cache);
    backend_close(bench->backend);
}

static void fill(struct bench *bench, struct kv_sequence *sequence, uint8_t byte) {
    memset(sequence->state, byte, bench->cache.layout.state_bytes);
}

static void assert_filled(const struct bench *bench, const struct kv_sequence *sequence, int byte) {
    for (size_t i = 0; i < bench->cache.layout.state_bytes; i++) {
        assert_int_equal(sequence->state[i], byte);
    }
}

static void grow(struct bench *bench, struct kv_sequence *sequence, int32_t tokens) {
    assert_true(is_ok(kv_cache_reserve(&bench->cache, sequence, tokens, NULL)));
    while (sequence->length < tokens) {
        kv_cache_append(&bench->cache, sequence, draw(bench, 1000), 0);
    }
    sequence->computed = tokens;
}

/* A sequence of `tokens` computed ones, its state full of a byte. */
static struct kv_sequence *add(struct bench *bench, int32_t tokens, uint8_t byte) {
    struct kv_sequence *sequence = kv_cache_acquire(&bench->cache);
    assert_non_null(sequence);
    grow(bench, sequence, tokens);
    fill(bench, sequence, byte);
    return sequence;
}

static uint64_t
park(struct bench *bench, struct kv_sequence *sequence, int64_t expected_ms, int64_t now_ms) {
    uint64_t ticket = kv_window_park(bench->pool, sequence, expected_ms, now_ms);
    kv_cache_window_release(&bench->cache, sequence);
    return ticket;
}

static void unpark(struct bench *bench, struct kv_sequence *sequence, uint64_t ticket, int byte) {
    assert_true(kv_cache_window_acquire(&bench->cache, sequence));
    assert_true(kv_window_unpark(bench->pool, ticket, sequence));
    assert_filled(bench, sequence, byte);
}

/* ---- window slots --------------------------------------------------------------------------- */

static void sequences_outnumber_window_slots(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    struct kv_sequence *sequences[SEQUENCES];
    for (int32_t i = 0; i < WINDOWS; i++) {
        sequences[i] = add(&bench, 1, (uint8_t)i);
    }
    assert_null(kv_cache_acquire(&bench.cache));
    for (int32_t i = WINDOWS; i < SEQUENCES; i++) {
        sequences[i] = kv_cache_acquire_idle(&bench.cache);
        assert_non_null(sequences[i]);
        assert_null(sequences[i]->state);
        assert_false(kv_cache_window_acquire(&bench.cache, sequences[i]));
    }
    assert_null(kv_cache_acquire_idle(&bench.cache));
    assert_true(is_ok(kv_cache_check(&bench.cache, NULL)));
    const uint8_t *slot = sequences[1]->state;
    kv_cache_window_release(&bench.cache, sequences[1]);
    kv_cache_window_release(&bench.cache, sequences[1]); /* nothing more to take */
    assert_true(kv_cache_window_acquire(&bench.cache, sequences[5]));
    assert_ptr_equal(sequences[5]->state, slot);
    assert_filled(&bench, sequences[0], 0);
    assert_filled(&bench, sequences[2], 2);
    kv_cache_release(&bench.cache, sequences[0]);
    kv_cache_release(&bench.cache, sequences[7]);
    /* A fork shares blocks with or without a slot. */
    struct kv_sequence *child = kv_cache_fork(&bench.cache, sequences[2]);
    assert_filled(&bench, child, 2);
    struct kv_sequence *bare = kv_cache_fork(&bench.cache, sequences[2]);
    assert_null(bare->state);
    assert_int_equal(bare->computed, 1);
    assert_int_equal(bare->numbers[0], sequences[2]->numbers[0]);
    close_bench(&bench);
}

/* ---- parked states -------------------------------------------------------------------------- */

static void parked_state_comes_back_once(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    struct kv_sequence *sequence = add(&bench, 131, 7);
    sequence->kept = 200; /* in the middle of a rebuild */
    uint64_t ticket = park(&bench, sequence, UNKNOWN, 0);
    assert_true(ticket != 0 && kv_window_is_parked(bench.pool, ticket));
    /* Nobody finds it, and time alone does not drop it. */
    assert_null(kv_window_first(bench.pool, KV_PREFIX_ROOT, 0));
    assert_null(kv_window_get(bench.pool, ticket));
    (void)kv_window_advance(bench.pool, 1000 * LIFETIME);
    struct kv_sequence *other = add(&bench, 5, 9); /* takes the slot */
    unpark(&bench, sequence, ticket, 7);
    assert_filled(&bench, other, 9);
    assert_false(kv_window_is_parked(bench.pool, ticket));
    assert_false(kv_window_unpark(bench.pool, ticket, sequence));
    struct kv_window_counts counts;
    kv_window_count(bench.pool, &counts);
    assert_int_equal(counts.parked, 0);
    assert_int_equal(counts.parks, 1);
    assert_int_equal(counts.unparks, 1);
    close_bench(&bench);
}

static uint64_t capture(
    struct bench *bench,
    const struct kv_sequence *sequence,
    enum kv_snapshot_kind kind,
    uint64_t node,
    int64_t now_ms
) {
    struct kv_snapshot about = {.kind = kind, .node = node, .expected_ms = UNKNOWN};
    return kv_window_capture(bench->pool, sequence, &about, now_ms);
}

/* Encoder snapshots, parked ones whose lifetime passed, full snapshots, parked ones. */
static void full_pool_drops_parked_states_last(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    struct kv_sequence *sequence = add(&bench, 20, 1);
    uint64_t old = kv_window_park(bench.pool, sequence, UNKNOWN, 0);
    int64_t now = LIFETIME + 1;
    uint64_t encoder = capture(&bench, sequence, KV_SNAPSHOT_ENCODER, 1, now);
    uint64_t full = capture(&bench, sequence, KV_SNAPSHOT_FULL, 2, now);
    uint64_t first = kv_window_park(bench.pool, sequence, UNKNOWN, now);
    uint64_t soon = kv_window_park(bench.pool, sequence, now + 5, now); /* the encoder's goes */
    assert_null(kv_window_get(bench.pool, encoder));
    assert_true(kv_window_is_parked(bench.pool, old));
    uint64_t at_once = kv_window_park(bench.pool, sequence, 0, now); /* the old one */
    assert_false(kv_window_is_parked(bench.pool, old));
    assert_non_null(kv_window_get(bench.pool, full));
    uint64_t again = kv_window_park(bench.pool, sequence, 0, now); /* the full snapshot */
    assert_null(kv_window_get(bench.pool, full));
    assert_int_equal(capture(&bench, sequence, KV_SNAPSHOT_FULL, 3, now), 0);
    assert_int_equal(capture(&bench, sequence, KV_SNAPSHOT_ENCODER, 3, now), 0);
    assert_true(kv_window_is_parked(bench.pool, first));
    /* Among parked ones: the latest return, unknown being latest; the new one counts too. */
    uint64_t later = kv_window_park(bench.pool, sequence, now + 9, now + 1);
    assert_true(later != 0);
    assert_false(kv_window_is_parked(bench.pool, first));
    assert_int_equal(kv_window_park(bench.pool, sequence, UNKNOWN, now + 1), 0);
    kv_window_expect(bench.pool, later, now + 1, now + 1); /* something new is known */
    assert_true(kv_window_park(bench.pool, sequence, now + 2, now + 1) != 0);
    assert_false(kv_window_is_parked(bench.pool, soon));
    assert_true(kv_window_is_parked(bench.pool, later));
    assert_true(kv_window_is_parked(bench.pool, at_once));
    assert_true(kv_window_is_parked(bench.pool, again));
    struct kv_window_counts counts;
    kv_window_count(bench.pool, &counts);
    assert_int_equal(counts.parked, SLOTS);
    assert_int_equal(counts.parks_lost, 3);
    assert_int_equal(counts.parks_refused, 1);
    kv_window_drop_all(bench.pool);
    assert_false(kv_window_is_parked(bench.pool, again));
    close_bench(&bench);
}

static void forks_share_a_parked_state(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    struct kv_sequence *parent = add(&bench, 77, 3);
    uint64_t ticket = park(&bench, parent, UNKNOWN, 0);
    struct kv_sequence *children[2];
    for (int32_t i = 0; i < 2; i++) {
        children[i] = kv_cache_fork(&bench.cache, parent);
        assert_null(children[i]->state);
        assert_true(kv_window_share(bench.pool, ticket));
    }
    unpark(&bench, children[0], ticket, 3);
    fill(&bench, children[0], 4); /* it goes on: the others have theirs */
    unpark(&bench, parent, ticket, 3);
    assert_true(kv_window_is_parked(bench.pool, ticket));
    kv_window_leave(bench.pool, ticket);
    assert_false(kv_window_is_parked(bench.pool, ticket));
    assert_false(kv_window_share(bench.pool, ticket));
    kv_window_leave(bench.pool, ticket);
    close_bench(&bench);
}

/* The end of a parked sequence leaves a snapshot; a fork that shares the state keeps it. */
static void parked_state_becomes_a_snapshot(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    struct kv_sequence *sequence = add(&bench, 129, 5);
    struct kv_sequence *child = kv_cache_fork(&bench.cache, sequence);
    kv_cache_window_release(&bench.cache, child);
    uint64_t ticket = park(&bench, sequence, UNKNOWN, 0);
    assert_true(kv_window_share(bench.pool, ticket));
    struct kv_snapshot about = {.kind = KV_SNAPSHOT_FULL, .node = 8, .expected_ms = UNKNOWN};
    uint64_t id = kv_window_file(bench.pool, ticket, sequence, &about, 0);
    assert_true(id != 0);
    const struct kv_snapshot *found = kv_window_first(bench.pool, 8, 0);
    assert_non_null(found);
    assert_int_equal(found->position, 129);
    assert_int_equal(found->tail_block, sequence->numbers[1]);
    kv_cache_release(&bench.cache, sequence);
    struct kv_window_counts counts;
    kv_window_count(bench.pool, &counts);
    assert_int_equal(counts.full, 1);
    assert_int_equal(counts.parked, 1);
    (void)kv_window_advance(bench.pool, LIFETIME); /* the snapshot expires, the fork's state not */
    assert_null(kv_window_get(bench.pool, id));
    /* The child's becomes one of an encoder, in the shape of those that were captured. */
    about.kind = KV_SNAPSHOT_ENCODER;
    id = kv_window_file(bench.pool, ticket, child, &about, LIFETIME);
    assert_true(id != 0);
    assert_false(kv_window_is_parked(bench.pool, ticket));
    assert_true(kv_cache_window_acquire(&bench.cache, child));
    fill(&bench, child, 0);
    assert_true(kv_window_restore(bench.pool, id, KV_SNAPSHOT_ENCODER, child, LIFETIME));
    const struct kv_layout *layout = &bench.cache.layout;
    assert_int_equal(*kv_cache_ring(&bench.cache, child, ENCODER), 5);
    assert_int_equal(*kv_cache_ring(&bench.cache, child, ENCODER + 1), 0);
    assert_int_equal(*(uint8_t *)kv_cache_pending(&bench.cache, child, 0), 5);
    assert_int_equal(child->state[layout->state_bytes - 1], 5);
    close_bench(&bench);
}

static void pool_without_slots_parks_nothing(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, WINDOWS, 1);
    kv_window_destroy(bench.pool);
    bench.pool = NULL;
    const struct kv_window_options none = {
        .cache = &bench.cache, .encoder_layers = ENCODER, .window = WINDOW, .bytes_max = 1};
    assert_true(is_ok(kv_window_create(&bench.pool, &none, NULL)));
    struct kv_sequence *sequence = add(&bench, 9, 1);
    assert_int_equal(kv_window_park(bench.pool, sequence, 0, 0), 0);
    assert_false(kv_window_unpark(bench.pool, 0, sequence));
    assert_false(kv_window_share(bench.pool, 0));
    close_bench(&bench);
}

/* ---- a naive list of parked states ---------------------------------------------------------- */

struct naive {
    struct kv_sequence *sequence; /* null: none */
    uint64_t ticket;
    uint8_t byte;
    int64_t expected_ms, parked_ms;
    bool is_dropped;
};

static struct naive *naive_victim(struct naive *list, int64_t now_ms) {
    struct naive *best = NULL;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        struct naive *at = &list[i];
        if (at->sequence == NULL || at->ticket == 0 || at->is_dropped) {
            continue;
        }
        int64_t base = at->expected_ms != UNKNOWN && at->expected_ms > at->parked_ms
                           ? at->expected_ms
                           : at->parked_ms;
        bool lapsed = base + LIFETIME <= now_ms;
        int64_t best_base = best == NULL ? 0
                            : best->expected_ms != UNKNOWN && best->expected_ms > best->parked_ms
                                ? best->expected_ms
                                : best->parked_ms;
        bool best_lapsed = best != NULL && best_base + LIFETIME <= now_ms;
        bool is_first = best == NULL || (lapsed != best_lapsed ? lapsed
                                         : at->expected_ms != best->expected_ms
                                             ? at->expected_ms > best->expected_ms
                                             : at->parked_ms < best->parked_ms);
        best = is_first ? at : best;
    }
    return best;
}

static void naive_park(struct bench *bench, struct naive *list, struct naive *at, int64_t now_ms) {
    int32_t held = 0;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        held += list[i].sequence != NULL && list[i].ticket != 0 && !list[i].is_dropped;
    }
    int64_t expected_ms = draw(bench, 3) == 0   ? UNKNOWN
                          : draw(bench, 3) == 0 ? 0
                                                : now_ms + draw(bench, 3000);
    struct naive *victim = held == SLOTS ? naive_victim(list, now_ms) : NULL;
    bool is_refused = false;
    if (victim != NULL) {
        struct naive candidate = {.expected_ms = expected_ms, .parked_ms = now_ms};
        int64_t base = victim->expected_ms != UNKNOWN && victim->expected_ms > victim->parked_ms
                           ? victim->expected_ms
                           : victim->parked_ms;
        bool lapsed = base + LIFETIME <= now_ms;
        is_refused = !lapsed && candidate.expected_ms > victim->expected_ms;
        victim->is_dropped = !is_refused;
    }
    at->ticket = park(bench, at->sequence, expected_ms, now_ms);
    assert_int_equal(at->ticket == 0, is_refused);
    at->expected_ms = expected_ms;
    at->parked_ms = now_ms;
    at->is_dropped = false;
}

static void random_run_equals_naive_list(void **state) {
    (void)state;
    long lost = 0;
    long back = 0;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct bench bench;
        struct naive list[SEQUENCES] = {0};
        open_bench(&bench, WINDOWS, seed);
        int64_t now_ms = 0;
        for (int32_t step = 0; step < 4000; step++) {
            now_ms += 1 + draw(&bench, 60);
            struct naive *at = &list[draw(&bench, SEQUENCES)];
            if (at->sequence == NULL) {
                at->byte = (uint8_t)draw(&bench, 256);
                at->sequence = bench.cache.window_free_count > 0
                                   ? add(&bench, 1 + draw(&bench, KV_BLOCK_TOKENS), at->byte)
                                   : NULL;
                at->ticket = 0;
                at->is_dropped = false;
            } else if (at->sequence->state != NULL) {
                naive_park(&bench, list, at, now_ms);
            } else if (draw(&bench, 6) == 0) {
                kv_window_leave(bench.pool, at->ticket);
                kv_cache_release(&bench.cache, at->sequence);
                at->sequence = NULL;
            } else if (kv_cache_window_acquire(&bench.cache, at->sequence)) {
                bool is_there = kv_window_unpark(bench.pool, at->ticket, at->sequence);
                assert_int_equal(is_there, at->ticket != 0 && !at->is_dropped);
                if (is_there) {
                    assert_filled(&bench, at->sequence, at->byte);
                }
                lost += !is_there;
                back += is_there;
                at->ticket = 0;
                fill(&bench, at->sequence, at->byte);
            }
            assert_true(is_ok(kv_cache_check(&bench.cache, NULL)));
        }
        close_bench(&bench);
    }
    print_message("%ld came back, %ld were dropped\n", back, lost);
    assert_true(back > 500 && lost > 100);
}

/* ---- promised blocks ------------------------------------------------------------------------ */

static void promise_says_what_is_missing(void **state) {
    (void)state;
    struct bench bench;
    open_bench(&bench, SEQUENCES, 1);
    struct kv_sequence *first = kv_cache_acquire(&bench.cache);
    struct kv_sequence *second = kv_cache_acquire(&bench.cache);
    struct kv_sequence *third = kv_cache_acquire(&bench.cache);
    struct kv_sequence *other = add(&bench, 3 * KV_BLOCK_TOKENS, 1);
    assert_true(kv_cache_commit(&bench.cache, first, CONTEXT));
    assert_true(kv_cache_commit(&bench.cache, second, CONTEXT));
    struct kv_need need;
    kv_cache_need(&bench.cache, third, CONTEXT, &need);
    assert_int_equal(need.wanted, BLOCKS);
    assert_int_equal(need.more, BLOCKS);
    assert_int_equal(need.total, POOL);
    assert_int_equal(need.live, 3);
    assert_int_equal(need.promised, 2 * BLOCKS);
    assert_int_equal(need.missing, 1);
    assert_false(kv_cache_commit(&bench.cache, third, CONTEXT));
    assert_int_equal(third->committed, 0);
    assert_true(kv_cache_commit(&bench.cache, third, CONTEXT - KV_BLOCK_TOKENS));
    /* Whoever was promised nothing gets nothing any more, though blocks are free. */
    struct error error = {0};
    result refused = kv_cache_reserve(&bench.cache, other, 3 * KV_BLOCK_TOKENS + 1, &error);
    assert_int_equal(refused.code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "11 are promised to others"));
    assert_int_equal(bench.cache.block_free_count, POOL - 3);
    /* Nor more than it was. */
    refused = kv_cache_reserve(&bench.cache, third, CONTEXT, &error);
    assert_int_equal(refused.code, RESULT_LIMIT);
    grow(&bench, third, CONTEXT - KV_BLOCK_TOKENS);
    grow(&bench, first, CONTEXT);
    grow(&bench, second, CONTEXT);
    assert_int_equal(bench.cache.block_promised_count, 0);
    assert_int_equal(bench.cache.block_free_count, 0);
    kv_cache_release(&bench.cache, first);
    grow(&bench, third, CONTEXT); /* nothing is promised any more */
    assert_true(kv_cache_commit(&bench.cache, third, 0));
    assert_true(is_ok(kv_cache_check(&bench.cache, NULL)));
    close_bench(&bench);
}

/* Random sequences and forks: whoever was promised blocks gets them, and a promise is refused only
 * when the blocks are not there. */
static void random_promises_are_kept(void **state) {
    (void)state;
    long kept = 0;
    long refused = 0;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        struct bench bench;
        open_bench(&bench, SEQUENCES, seed);
        struct kv_sequence *list[SEQUENCES] = {0};
        for (int32_t step = 0; step < 6000; step++) {
            int32_t index = draw(&bench, SEQUENCES);
            struct kv_sequence *at = list[index];
            int32_t action = draw(&bench, 10);
            if (at == NULL) {
                struct kv_sequence *parent = list[draw(&bench, SEQUENCES)];
                list[index] = parent == NULL || parent->committed != 0
                                  ? kv_cache_acquire(&bench.cache)
                                  : kv_cache_fork(&bench.cache, parent);
            } else if (at->committed == 0 && action < 7) {
                int32_t tokens = at->length + draw(&bench, CONTEXT - at->length + 1);
                struct kv_need need;
                kv_cache_need(&bench.cache, at, tokens, &need);
                bool fits = kv_cache_commit(&bench.cache, at, tokens);
                assert_int_equal(fits, tokens == 0 || need.missing == 0);
                refused += !fits;
            } else if (action < 8) {
                int32_t left = at->committed - at->length;
                if (left > 0) {
                    grow(&bench, at, at->length + 1 + draw(&bench, left));
                    kept++;
                } else {
                    assert_true(kv_cache_commit(&bench.cache, at, 0));
                }
            } else {
                kv_cache_release(&bench.cache, at);
                list[index] = NULL;
            }
            assert_true(is_ok(kv_cache_check(&bench.cache, NULL)));
        }
        close_bench(&bench);
    }
    print_message("%ld growths within promises, %ld promises refused\n", kept, refused);
    assert_true(kept > 1000 && refused > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_outnumber_window_slots),
        cmocka_unit_test(parked_state_comes_back_once),
        cmocka_unit_test(full_pool_drops_parked_states_last),
        cmocka_unit_test(forks_share_a_parked_state),
        cmocka_unit_test(parked_state_becomes_a_snapshot),
        cmocka_unit_test(pool_without_slots_parks_nothing),
        cmocka_unit_test(random_run_equals_naive_list),
        cmocka_unit_test(promise_says_what_is_missing),
        cmocka_unit_test(random_promises_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
