/* A simulated day of agent traffic: it is like the days it was made after, the same seed gives the
 * same day, and the engine's policy of eviction serves it better than LRU does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "traffic_replay.h"

#define B KV_BLOCK_TOKENS

static struct traffic make_day(uint64_t seed, int32_t sessions, int32_t divisor) {
    struct traffic_options options = {.seed = seed, .sessions = sessions, .token_divisor = divisor};
    struct traffic traffic;
    struct error error;
    assert_true(is_ok(traffic_make(&options, &traffic, &error)));
    return traffic;
}

static bool is_between(double value, double low, double high) {
    if (value < low || value > high) {
        print_error("%f is not from %f to %f\n", value, low, high);
    }
    return value >= low && value <= high;
}

/* The figures of the issue that asked for it; 1,500 sessions, so that chance moves little. */
static void traffic_day_has_the_measured_distributions(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct traffic traffic = make_day(seed, 1500, 1);
        struct traffic_summary day;
        assert_true(is_ok(traffic_summarize(&traffic, &day, NULL)));
        assert_true(is_between(day.turns_median, 39, 47));
        assert_true(is_between(day.prompt_median, 130000, 154000));
        assert_true(is_between(day.output_median, 430, 458));
        assert_true(is_between(day.returns_1s, 0.85, 0.87));
        assert_true(is_between(day.returns_10s, 0.945, 0.955));
        assert_true(is_between(day.with_children, 0.41, 0.47));
        assert_true(day.returns_1h < 1 && day.gap_max_ms > 8LL * 3600 * 1000);
        assert_true(day.concurrent_max > 20);
        assert_true(traffic.forked > 500 && traffic.spawned > 500);
        assert_true(traffic.retries > 100 && traffic.rewinds > 100);
        assert_true(traffic.compactions > 100 && traffic.cancelled > 20);
        traffic_free(&traffic);
    }
}

static void traffic_day_is_the_same_for_the_same_seed(void **state) {
    (void)state;
    struct traffic first = make_day(7, 40, 4);
    struct traffic second = make_day(7, 40, 4);
    struct traffic other = make_day(8, 40, 4);
    assert_int_equal(first.request_count, second.request_count);
    assert_int_equal(first.piece_count, second.piece_count);
    assert_memory_equal(
        first.pieces, second.pieces, (size_t)first.piece_count * sizeof *first.pieces
    );
    for (int32_t i = 0; i < first.request_count; i++) {
        const struct traffic_request *a = &first.requests[i];
        const struct traffic_request *b = &second.requests[i];
        assert_int_equal(a->start_ms, b->start_ms);
        assert_int_equal(a->end_ms, b->end_ms);
        assert_int_equal(a->output, b->output);
        assert_int_equal(a->after, b->after);
    }
    assert_int_not_equal(first.piece_count, other.piece_count);
    traffic_free(&other);
    traffic_free(&second);
    traffic_free(&first);
}

static bool is_on_path(const struct traffic *traffic, int32_t piece, int32_t of) {
    while (of > piece) {
        of = traffic->pieces[of].before;
    }
    return of == piece;
}

/* Texts that share a path share tokens and keys; after they part, they share neither. */
static void traffic_tokens_are_equal_exactly_where_paths_are(void **state) {
    (void)state;
    struct traffic traffic = make_day(3, 20, 8);
    size_t room = (size_t)traffic.tokens_max;
    int32_t *first = calloc(room, sizeof *first);
    int32_t *second = calloc(room, sizeof *second);
    uint64_t *keys = calloc(room / B + 1, sizeof *keys);
    assert_true(first != NULL && second != NULL && keys != NULL);
    int32_t parted = 0;
    for (int32_t i = 0; i + 1 < traffic.request_count; i += 17) {
        const struct traffic_request *a = &traffic.requests[i];
        const struct traffic_request *b = &traffic.requests[i + 1];
        int32_t count_a = traffic_count(&traffic, a->output);
        int32_t count_b = traffic_count(&traffic, b->output);
        traffic_fill(&traffic, a->output, 0, first);
        traffic_fill(&traffic, b->output, 0, second);
        int32_t shared = 0;
        while (shared < count_a && shared < count_b && first[shared] == second[shared]) {
            shared++;
        }
        int32_t common = a->output;
        while (!is_on_path(&traffic, common, b->output)) {
            common = traffic.pieces[common].before;
        }
        assert_true(shared >= traffic_count(&traffic, common));
        traffic_keys(first, 0, count_a / B, keys);
        uint64_t last = keys[0];
        traffic_keys(second, 0, count_b / B, keys);
        assert_true(shared < B || keys[0] == last);
        parted += shared < count_a && shared < count_b;
        /* Filling from a position on gives the same. */
        memset(second, 0, room * sizeof *second);
        traffic_fill(&traffic, a->output, count_a / 2, second);
        assert_memory_equal(
            first + count_a / 2,
            second + count_a / 2,
            (size_t)(count_a - count_a / 2) * sizeof *first
        );
    }
    assert_true(parted > 20);
    free(keys);
    free(second);
    free(first);
    traffic_free(&traffic);
}

#define SESSIONS 150
#define DIVISOR  32
#define GIB(n)   ((int32_t)((int64_t)(n) * (1 << 30) / DIVISOR / 113920))

static struct traffic_cache_options cache(enum traffic_policy policy, int32_t blocks) {
    return (struct traffic_cache_options
    ){.policy = policy, .blocks = blocks, .snapshots = 256, .snapshot_ms = 600000};
}

/* Tokens computed that a cache without limits would not have computed. */
static int64_t again(const struct traffic_outcome *outcome, const struct traffic_outcome *most) {
    return outcome->evaluated - most->evaluated;
}

static void assert_adds_up(const struct traffic_outcome *outcome, int32_t requests) {
    assert_int_equal(outcome->requests, requests);
    assert_int_equal(outcome->reused + outcome->evaluated, outcome->prompt);
    assert_true(outcome->rebuilt >= 0 && outcome->rebuilt <= outcome->reused);
    assert_int_equal(
        outcome->cold + outcome->live + outcome->snapshot_hits + outcome->rebuilds,
        outcome->requests
    );
}

/* Text computed again although a cache without limits would have kept it: with the default at most
 * 85 % of plain LRU's (measured for these: 44 to 80 %), and less than leaf-first LRU's except where
 * memory is too small for the agents that are at work. The tree that is told nothing is leaf-first
 * LRU, which another program confirms but for ties. */
static void traffic_default_policy_beats_lru(void **state) {
    (void)state;
    static const int32_t sizes[] = {GIB(1), GIB(2), GIB(4)};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct traffic traffic = make_day(seed, SESSIONS, DIVISOR);
        struct traffic_cache_options caches[3 * 4 + 1];
        struct traffic_outcome outcomes[3 * 4 + 1];
        for (int32_t i = 0; i < 3; i++) {
            caches[4 * i] = cache(TRAFFIC_POLICY_TREE, sizes[i]);
            caches[4 * i + 1] = cache(TRAFFIC_POLICY_UNTOLD, sizes[i]);
            caches[4 * i + 2] = cache(TRAFFIC_POLICY_LRU, sizes[i]);
            caches[4 * i + 3] = cache(TRAFFIC_POLICY_LEAF_LRU, sizes[i]);
        }
        caches[12] = cache(TRAFFIC_POLICY_LEAF_LRU, traffic_blocks_bound(&traffic));
        struct error error;
        assert_true(is_ok(traffic_replay(&traffic, caches, 13, outcomes, &error)));
        const struct traffic_outcome *most = &outcomes[12];
        assert_int_equal(most->evicted, 0);
        for (int32_t i = 0; i < 3; i++) {
            const struct traffic_outcome *at = &outcomes[4 * i];
            for (int32_t j = 0; j < 4; j++) {
                assert_adds_up(&at[j], traffic.request_count);
            }
            double leaf = (double)again(&at[3], most);
            assert_true((double)again(&at[0], most) < 0.85 * (double)again(&at[2], most));
            assert_true(i == 0 || again(&at[0], most) < again(&at[3], most));
            assert_true(
                i == 0 || is_between((double)again(&at[1], most), 0.95 * leaf, 1.05 * leaf)
            );
            assert_true(at[2].evicted > 0);
        }
        traffic_free(&traffic);
    }
}

static void assert_store_is_real(const struct traffic_outcome *outcome) {
    const struct kv_store_counts *engine = &outcome->store.engine;
    assert_int_equal(outcome->store.refused, 0);
    assert_true(outcome->store.forks > 0 && outcome->store.ended_waiting > 0);
    assert_true(outcome->live > 0 && outcome->snapshot_hits > 0 && outcome->rebuilds > 0);
    /* Each request went on with a sequence or was looked up. */
    assert_int_equal(engine->lookups + (uint64_t)outcome->live, outcome->requests);
    assert_true((int64_t)engine->reused_tokens < outcome->reused);
    assert_int_equal(engine->rebuilt_tokens, outcome->rebuilt);
    assert_true(outcome->evicted > 0 && engine->tree.removed[KV_PREFIX_MISS_EXPIRED] == 0);
    assert_true(engine->windows.captured > engine->windows.used);
    assert_true(engine->windows.expired > 0 && engine->windows.dropped > 0);
}

/* The same of the engine's whole store: what it computes again is less than 60 % of plain LRU's (measured
 * for these: less than 0 to 49 %; it may be below 0, for it reuses parts of blocks) and no more than what
 * the tree alone does. Rows of windows are left out here: they are the release's, and 8 times what
 * they are beside texts of full length. */
static void traffic_store_beats_lru(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct traffic traffic = make_day(seed, 40, 8);
        struct traffic_cache_options caches[2 * 3 + 1];
        struct traffic_outcome outcomes[2 * 3 + 1];
        for (int32_t i = 0; i < 2; i++) {
            int32_t blocks = GIB(sizes[i]) * (DIVISOR / 8);
            caches[3 * i] = cache(TRAFFIC_POLICY_STORE, blocks);
            caches[3 * i + 1] = cache(TRAFFIC_POLICY_TREE, blocks);
            caches[3 * i + 2] = cache(TRAFFIC_POLICY_LRU, blocks);
        }
        caches[6] = cache(TRAFFIC_POLICY_LEAF_LRU, traffic_blocks_bound(&traffic));
        struct error error;
        assert_true(is_ok(traffic_replay(&traffic, caches, 7, outcomes, &error)));
        const struct traffic_outcome *most = &outcomes[6];
        for (int32_t i = 0; i < 2; i++) {
            const struct traffic_outcome *at = &outcomes[3 * i];
            assert_adds_up(&at[0], traffic.request_count);
            assert_store_is_real(&at[0]);
            assert_true((double)again(&at[0], most) < 0.6 * (double)again(&at[2], most));
            assert_true(again(&at[0], most) <= again(&at[1], most));
        }
        traffic_free(&traffic);
    }
}

/* A block is written once, and not beyond the hour's budget; what comes back counts as reused. */
static void traffic_disk_writes_each_block_once(void **state) {
    (void)state;
    struct traffic traffic = make_day(5, 60, DIVISOR);
    int32_t bound = traffic_blocks_bound(&traffic);
    struct traffic_cache_options caches[3] = {
        cache(TRAFFIC_POLICY_TREE, GIB(1)),
        cache(TRAFFIC_POLICY_TREE, GIB(1)),
        cache(TRAFFIC_POLICY_LEAF_LRU, bound),
    };
    caches[0].disk_blocks = bound;
    caches[1].disk_blocks = GIB(2);
    caches[1].writes_per_hour = 60;
    struct traffic_outcome outcomes[3];
    assert_true(is_ok(traffic_replay(&traffic, caches, 3, outcomes, NULL)));
    assert_true(outcomes[0].written > 0 && outcomes[0].written <= outcomes[2].filed);
    assert_int_equal(outcomes[0].write_refused, 0);
    assert_true(outcomes[0].from_disk > 0);
    assert_true(outcomes[0].evaluated >= outcomes[2].evaluated);
    assert_true(outcomes[0].evaluated < outcomes[1].evaluated);
    assert_true(outcomes[1].write_refused > 0);
    for (int32_t hour = 0; hour < TRAFFIC_HOURS; hour++) {
        assert_true(outcomes[1].written_hour[hour] <= 60);
    }
    traffic_free(&traffic);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traffic_day_has_the_measured_distributions),
        cmocka_unit_test(traffic_day_is_the_same_for_the_same_seed),
        cmocka_unit_test(traffic_tokens_are_equal_exactly_where_paths_are),
        cmocka_unit_test(traffic_default_policy_beats_lru),
        cmocka_unit_test(traffic_store_beats_lru),
        cmocka_unit_test(traffic_disk_writes_each_block_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
