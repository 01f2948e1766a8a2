/* Each rule of the prefix tree. The comparison with a naive model is in test_kv_prefix_model.c. */
#include "engine/kv_prefix.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

#define B           KV_BLOCK_TOKENS
#define BLOCKS      4096
#define BLOCK_BYTES 113920 /* of the release: test_kv_cache.c */

struct fixture {
    struct kv_prefix *tree;
    int32_t references[BLOCKS];
    int32_t released[BLOCKS]; /* in order */
    int32_t released_count;
    int32_t block_next;
};

static const struct kv_lineage exact = {{1}};
static const struct kv_lineage replayed = {{2}};

static void block_retain(void *context, int32_t block) {
    struct fixture *fixture = context;
    assert_in_range(block, 0, BLOCKS - 1);
    fixture->references[block]++;
}

static bool block_release(void *context, int32_t block) {
    struct fixture *fixture = context;
    assert_in_range(block, 0, BLOCKS - 1);
    assert_true(fixture->references[block] > 0);
    fixture->released[fixture->released_count++ % BLOCKS] = block;
    return --fixture->references[block] == 0;
}

static struct kv_prefix_options options_of(struct fixture *fixture, int32_t nodes_max) {
    return (struct kv_prefix_options){
        .nodes_max = nodes_max,
        .leases_max = 8,
        .hash_key = 42,
        .root_lineage = exact,
        .lease_ms = 100,
        .lifetime_ms = 10000,
        .overdue_ms = 500,
        .block_retain = block_retain,
        .block_release = block_release,
        .context = fixture,
    };
}

static struct fixture *open_fixture(int32_t nodes_max) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    struct kv_prefix_options options = options_of(fixture, nodes_max);
    struct error error;
    assert_true(is_ok(kv_prefix_create(&fixture->tree, &options, &error)));
    return fixture;
}

static void close_fixture(struct fixture *fixture) {
    struct error error;
    result checked = kv_prefix_check(fixture->tree, &error);
    if (is_failed(checked)) {
        print_error("%s\n", error.message);
    }
    assert_true(is_ok(checked));
    kv_prefix_destroy(fixture->tree);
    for (int32_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(fixture->references[i], 0);
    }
    free(fixture);
}

/* 128 tokens that start with `first` and go on with a fixed text. */
static const int32_t *text(int32_t first) {
    static int32_t tokens[B];
    for (int32_t i = 0; i < B; i++) {
        tokens[i] = i == 0 ? first : 7 * i;
    }
    return tokens;
}

static struct kv_prefix_insertion put_at(
    struct fixture *fixture,
    uint64_t parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    int64_t now_ms
) {
    int32_t block = fixture->block_next++;
    fixture->references[block] = 1;
    struct kv_prefix_insertion out;
    struct error error;
    result inserted =
        kv_prefix_insert(fixture->tree, parent, lineage, tokens, block, now_ms, &out, &error);
    assert_true(is_ok(inserted));
    return out;
}

static uint64_t put(struct fixture *fixture, uint64_t parent, int32_t first) {
    return put_at(fixture, parent, &exact, text(first), 0).node;
}

static uint64_t lease(struct fixture *fixture, uint64_t node, int64_t now_ms) {
    uint64_t id = 0;
    struct error error;
    assert_true(is_ok(kv_prefix_acquire(fixture->tree, node, now_ms, &id, &error)));
    return id;
}

/* A prompt of the blocks text(firsts[i]) and `more` further tokens. */
static int32_t prompt(int32_t *out, const int32_t *firsts, int32_t blocks, int32_t more) {
    for (int32_t i = 0; i < blocks; i++) {
        memcpy(out + (size_t)i * B, text(firsts[i]), B * sizeof *out);
    }
    for (int32_t i = 0; i < more; i++) {
        out[blocks * B + i] = -1 - i;
    }
    return blocks * B + more;
}

static struct kv_prefix_match
find(const struct fixture *fixture, const int32_t *tokens, int32_t count, bool any) {
    struct kv_prefix_match match;
    kv_prefix_lookup(fixture->tree, tokens, count, any, &match);
    return match;
}

static bool lives(const struct fixture *fixture, uint64_t node) {
    return kv_prefix_block(fixture->tree, node) >= 0;
}

static void lookup_finds_whole_blocks(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t b = put(fixture, a, 2);
    int32_t tokens[4 * B];
    int32_t count = prompt(tokens, (int32_t[]){1, 2}, 2, 30);
    struct kv_prefix_match match = find(fixture, tokens, count, false);
    assert_int_equal(match.node, b);
    assert_int_equal(match.blocks, 2);
    assert_int_equal(match.position, 2 * B);
    assert_int_equal(match.partial, KV_PREFIX_ROOT);
    assert_true(match.is_exact);
    assert_memory_equal(&match.lineage, &exact, sizeof exact);
    int32_t blocks[2];
    struct error error;
    assert_int_equal(
        kv_prefix_retain_path(fixture->tree, b, blocks, 1, &count, &error).code, RESULT_LIMIT
    );
    assert_true(is_ok(kv_prefix_retain_path(fixture->tree, b, blocks, 2, &count, &error)));
    assert_int_equal(count, 2);
    assert_int_equal(blocks[0], 0);
    assert_int_equal(blocks[1], 1);
    assert_int_equal(fixture->references[1], 2);
    assert_int_equal(kv_prefix_evict(fixture->tree, 9, 0), 0); /* both are still in use */
    assert_true(block_release(fixture, 0));
    assert_true(block_release(fixture, 1));
    close_fixture(fixture);
}

/* The same text again, and every cut of it: never the last token, never an odd position. */
static void lookup_stops_before_last_token_on_even_position(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t b = put(fixture, a, 2);
    int32_t tokens[2 * B];
    (void)prompt(tokens, (int32_t[]){1, 2}, 2, 0);
    for (int32_t count = 0; count <= 2 * B; count++) {
        struct kv_prefix_match match = find(fixture, tokens, count, count % 2 == 0);
        int32_t want = count == 0 ? 0 : (count - 1) / 2 * 2;
        assert_int_equal(match.position, want);
        assert_int_equal(match.blocks, want / B);
        assert_int_equal(match.node, want < B ? KV_PREFIX_ROOT : a);
        assert_int_equal(match.partial, want % B == 0 ? KV_PREFIX_ROOT : want < B ? a : b);
        assert_int_equal(match.miss, KV_PREFIX_MISS_NONE);
    }
    close_fixture(fixture);
}

static void lookup_reuses_inside_block_up_to_even_token_before_divergence(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t b = put(fixture, a, 2);
    (void)put(fixture, a, 3);
    for (int32_t shared = 0; shared < B; shared++) {
        int32_t tokens[3 * B];
        int32_t count = prompt(tokens, (int32_t[]){1, 2}, 2, 9);
        tokens[B + shared] = 99999;
        struct kv_prefix_match match = find(fixture, tokens, count, false);
        assert_int_equal(match.blocks, 1);
        assert_int_equal(match.node, a);
        assert_int_equal(match.position, B + shared / 2 * 2);
        assert_int_equal(match.partial, shared < 2 ? KV_PREFIX_ROOT : b);
        assert_int_equal(match.miss, KV_PREFIX_MISS_DIVERGENT);
        assert_int_equal(match.miss_token, B + shared);
    }
    close_fixture(fixture);
}

/* A first block of ever new text has many children; the one with equal text is found whatever
 * their number, one with a shared part among the newest only. */
static void lookup_scans_bounded_number_of_siblings(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(1024);
    uint64_t oldest = put(fixture, KV_PREFIX_ROOT, 0);
    for (int32_t i = 1; i < KV_PREFIX_SIBLINGS_SCANNED; i++) {
        (void)put(fixture, KV_PREFIX_ROOT, i);
    }
    int32_t tokens[2 * B];
    (void)prompt(tokens, (int32_t[]){0}, 1, 9);
    assert_int_equal(find(fixture, tokens, B - 20, false).partial, oldest);
    (void)put(fixture, KV_PREFIX_ROOT, 1000);
    assert_int_equal(find(fixture, tokens, B - 20, false).position, 0);
    assert_int_equal(find(fixture, tokens, B, false).position, B - 2);
    assert_int_equal(find(fixture, tokens, B + 1, false).position, B);
    close_fixture(fixture);
}

static void exact_lookup_refuses_other_lineage(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t approximate = put_at(fixture, a, &replayed, text(2), 0).node;
    int32_t tokens[4 * B];
    int32_t count = prompt(tokens, (int32_t[]){1, 2}, 2, 9);
    struct kv_prefix_match match = find(fixture, tokens, count, false);
    assert_int_equal(match.position, B);
    assert_int_equal(match.miss, KV_PREFIX_MISS_OTHER_LINEAGE);
    match = find(fixture, tokens, B + 40, false); /* nor inside a block */
    assert_int_equal(match.position, B);
    match = find(fixture, tokens, count, true);
    assert_int_equal(match.position, 2 * B);
    assert_int_equal(match.node, approximate);
    assert_false(match.is_exact);
    assert_memory_equal(&match.lineage, &replayed, sizeof replayed);
    close_fixture(fixture);
}

static void replay_lookup_takes_longest_and_exact_on_ties(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t approximate = put_at(fixture, a, &replayed, text(2), 0).node;
    uint64_t longer = put_at(fixture, approximate, &replayed, text(3), 0).node;
    uint64_t same = put(fixture, a, 2);
    int32_t tokens[4 * B];
    int32_t count = prompt(tokens, (int32_t[]){1, 2, 3}, 3, 9);
    assert_int_equal(find(fixture, tokens, count, true).node, longer);
    assert_int_equal(find(fixture, tokens, 2 * B + 1, true).node, same);
    assert_true(find(fixture, tokens, 2 * B + 1, true).is_exact);
    assert_int_equal(find(fixture, tokens, 2 * B - 5, true).partial, same);
    /* One more shared pair decides against the exact one. */
    assert_false(find(fixture, tokens, 2 * B + 3, true).is_exact);
    assert_int_equal(find(fixture, tokens, count, false).node, same);
    close_fixture(fixture);
}

static void insert_of_equal_node_releases_callers_block(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    struct kv_prefix_insertion first = put_at(fixture, KV_PREFIX_ROOT, &exact, text(1), 0);
    struct kv_prefix_insertion second = put_at(fixture, KV_PREFIX_ROOT, &exact, text(1), 0);
    assert_true(first.is_new);
    assert_false(second.is_new);
    assert_int_equal(second.node, first.node);
    assert_int_equal(second.block, first.block);
    assert_int_equal(fixture->references[first.block], 1);
    assert_int_equal(fixture->references[1], 0);
    struct kv_prefix_insertion other = put_at(fixture, KV_PREFIX_ROOT, &replayed, text(1), 0);
    assert_true(other.is_new);
    close_fixture(fixture);
}

static void full_tree_evicts_for_insert_but_never_its_parent(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(2);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t b = put(fixture, KV_PREFIX_ROOT, 2);
    uint64_t c = put(fixture, a, 3); /* a is the older leaf, but the parent */
    assert_true(lives(fixture, a));
    assert_false(lives(fixture, b));
    uint64_t held = lease(fixture, c, 0);
    struct kv_prefix_insertion out;
    struct error error;
    fixture->references[100] = 1;
    result refused = kv_prefix_insert(fixture->tree, c, &exact, text(4), 100, 0, &out, &error);
    assert_int_equal(refused.code, RESULT_LIMIT);
    refused = kv_prefix_insert(fixture->tree, b, &exact, text(4), 100, 0, &out, &error);
    assert_int_equal(refused.code, RESULT_NOT_FOUND);
    assert_int_equal(fixture->references[100], 1);
    fixture->references[100] = 0;
    kv_prefix_release(fixture->tree, held, 0);
    close_fixture(fixture);
}

static void evict_takes_leaves_before_trunks_and_nothing_leased(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t trunk = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t left = put(fixture, trunk, 2);
    uint64_t right = put(fixture, trunk, 3);
    uint64_t held = lease(fixture, right, 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 9, 0), 1);
    assert_false(lives(fixture, left));
    assert_true(lives(fixture, trunk));
    kv_prefix_release(fixture->tree, held, 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 0), 1);
    assert_false(lives(fixture, right));
    assert_true(lives(fixture, trunk));
    assert_int_equal(kv_prefix_evict(fixture->tree, 9, 0), 1);
    close_fixture(fixture);
}

static void evict_follows_what_agents_told(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t nodes[8];
    uint64_t held[8];
    for (int32_t i = 0; i < 8; i++) {
        nodes[i] = put(fixture, KV_PREFIX_ROOT, i);
        held[i] = lease(fixture, nodes[i], 0);
    }
    kv_prefix_tell(fixture->tree, held[0], KV_PREFIX_FORKED, 0, 0);
    kv_prefix_tell(fixture->tree, held[1], KV_PREFIX_WAITING, 300, 0);
    kv_prefix_tell(fixture->tree, held[2], KV_PREFIX_WAITING, 200, 0);
    kv_prefix_tell(fixture->tree, held[3], KV_PREFIX_FINISHED, 0, 0);
    kv_prefix_tell(fixture->tree, held[4], KV_PREFIX_ABANDONED, 0, 0);
    kv_prefix_release(fixture->tree, held[5], 0);
    kv_prefix_tell(fixture->tree, held[6], KV_PREFIX_FINISHED, 0, 0);
    kv_prefix_release(fixture->tree, held[7], 0);
    static const int32_t order[] = {4, 3, 6, 5, 7, 1, 2, 0};
    for (size_t i = 0; i < COUNT_OF(order); i++) { /* at 100 the first three leases lapse */
        assert_int_equal(kv_prefix_evict(fixture->tree, 1, 100), 1);
        assert_false(lives(fixture, nodes[order[i]]));
    }
    close_fixture(fixture);
}

static void overdue_estimate_counts_for_nothing(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t waiting = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t held = lease(fixture, waiting, 0);
    kv_prefix_tell(fixture->tree, held, KV_PREFIX_WAITING, 100, 0);
    kv_prefix_advance(fixture->tree, 200);
    uint64_t later = put_at(fixture, KV_PREFIX_ROOT, &exact, text(2), 200).node;
    (void)put_at(fixture, KV_PREFIX_ROOT, &exact, text(3), 200);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 599), 1);
    assert_false(lives(fixture, later));
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 600), 1);
    assert_false(lives(fixture, waiting));
    close_fixture(fixture);
}

/* Two branches on one trunk: it is worth what the better of them is. */
static void trunk_takes_over_best_of_its_branches(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t trunk = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t held_left = lease(fixture, put(fixture, trunk, 2), 0);
    uint64_t held_right = lease(fixture, put(fixture, trunk, 3), 0);
    uint64_t lone = put(fixture, KV_PREFIX_ROOT, 4);
    uint64_t held_lone = lease(fixture, put(fixture, lone, 5), 0);
    kv_prefix_tell(fixture->tree, held_left, KV_PREFIX_ABANDONED, 0, 0);
    kv_prefix_tell(fixture->tree, held_right, KV_PREFIX_FINISHED, 0, 0);
    kv_prefix_tell(fixture->tree, held_lone, KV_PREFIX_ABANDONED, 0, 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 3, 0), 3); /* left, and all of the lone one */
    assert_false(lives(fixture, lone));
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 0), 1);
    assert_true(lives(fixture, trunk));
    uint64_t other = put(fixture, KV_PREFIX_ROOT, 6); /* untold: better than a finished trunk */
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 0), 1);
    assert_false(lives(fixture, trunk));
    assert_true(lives(fixture, other));
    close_fixture(fixture);
}

/* Who let go while it waited comes back, goes on and is done: nothing is expected there any more. With
 * another at the same place nobody can tell who came, and the return is still expected. */
static void return_to_an_open_end_is_expected_once(void **state) {
    (void)state;
    for (int32_t is_shared = 0; is_shared < 2; is_shared++) {
        struct fixture *fixture = open_fixture(16);
        uint64_t end = put(fixture, KV_PREFIX_ROOT, 1);
        uint64_t held = lease(fixture, end, 0);
        uint64_t twin = is_shared ? lease(fixture, end, 0) : 0;
        kv_prefix_tell(fixture->tree, held, KV_PREFIX_WAITING, 300, 0);
        kv_prefix_release(fixture->tree, held, 0);
        uint64_t other = put(fixture, KV_PREFIX_ROOT, 2);
        held = lease(fixture, end, 10);
        uint64_t further = put_at(fixture, end, &exact, text(3), 10).node;
        assert_true(kv_prefix_renew(fixture->tree, held, further, 10));
        kv_prefix_tell(fixture->tree, held, KV_PREFIX_FINISHED, 0, 20);
        kv_prefix_tell(fixture->tree, twin, KV_PREFIX_FINISHED, 0, 20);
        assert_int_equal(kv_prefix_evict(fixture->tree, 1, 30), 1);
        assert_false(lives(fixture, further));
        assert_int_equal(kv_prefix_evict(fixture->tree, 1, 30), 1);
        assert_int_equal(lives(fixture, end), is_shared);
        assert_int_equal(lives(fixture, other), !is_shared);
        close_fixture(fixture);
    }
}

static void lease_lapses_and_its_owner_can_return(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t held = lease(fixture, a, 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 99), 0);
    assert_true(kv_prefix_renew(fixture->tree, held, a, 99));
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 198), 0);
    kv_prefix_advance(fixture->tree, 199);
    struct kv_prefix_counts counts;
    kv_prefix_count(fixture->tree, &counts);
    assert_int_equal(counts.lapsed, 1);
    assert_int_equal(counts.evictable, 1);
    assert_true(kv_prefix_renew(fixture->tree, held, a, 5000));
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 5001), 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 5100), 1);
    assert_false(kv_prefix_renew(fixture->tree, held, a, 5100)); /* the node is gone */
    struct error error;
    uint64_t other = 0;
    assert_int_equal(
        kv_prefix_acquire(fixture->tree, a, 5100, &other, &error).code, RESULT_NOT_FOUND
    );
    assert_true(kv_prefix_renew(fixture->tree, held, KV_PREFIX_ROOT, 5100));
    kv_prefix_release(fixture->tree, held, 5100);
    kv_prefix_release(fixture->tree, held, 5100); /* an ended lease is ignored */
    kv_prefix_tell(fixture->tree, held, KV_PREFIX_ABANDONED, 0, 5100);
    for (int32_t i = 0; i < 8; i++) {
        other = lease(fixture, KV_PREFIX_ROOT, 5100);
    }
    assert_int_equal(
        kv_prefix_acquire(fixture->tree, KV_PREFIX_ROOT, 5100, &other, &error).code, RESULT_LIMIT
    );
    close_fixture(fixture);
}

static void clock_that_jumps_back_changes_nothing(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    uint64_t a = put_at(fixture, KV_PREFIX_ROOT, &exact, text(1), 1000).node;
    uint64_t held = lease(fixture, a, -5000); /* counts as 1000 */
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 1099), 0);
    kv_prefix_advance(fixture->tree, INT64_MIN);
    assert_true(kv_prefix_renew(fixture->tree, held, a, 0)); /* counts as 1099 */
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 1198), 0);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, INT64_MAX), 0); /* expired already */
    assert_false(lives(fixture, a));
    close_fixture(fixture);
}

static void miss_says_evicted_expired_damaged_or_never(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    int32_t tokens[4 * B];
    int32_t count = prompt(tokens, (int32_t[]){1, 2}, 2, 9);
    assert_int_equal(find(fixture, tokens, count, false).miss, KV_PREFIX_MISS_NEVER_COMPUTED);
    uint64_t a = put(fixture, KV_PREFIX_ROOT, 1);
    struct kv_prefix_match match = find(fixture, tokens, count, false);
    assert_int_equal(match.miss, KV_PREFIX_MISS_NEVER_COMPUTED);
    assert_int_equal(match.miss_token, B);
    (void)put(fixture, a, 2);
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 0), 1);
    match = find(fixture, tokens, count, false);
    assert_int_equal(match.miss, KV_PREFIX_MISS_EVICTED);
    assert_int_equal(match.miss_token, B);
    (void)put(fixture, a, 2);
    kv_prefix_advance(fixture->tree, 10000);
    match = find(fixture, tokens, count, false);
    assert_int_equal(match.miss, KV_PREFIX_MISS_EXPIRED);
    assert_int_equal(match.miss_token, 0);
    a = put(fixture, KV_PREFIX_ROOT, 1);
    uint64_t held = lease(fixture, put(fixture, a, 2), 10000);
    kv_prefix_remove(fixture->tree, a, 10000);
    match = find(fixture, tokens, count, false);
    assert_int_equal(match.miss, KV_PREFIX_MISS_DAMAGED);
    assert_string_equal(kv_prefix_miss_name(match.miss), "damaged");
    kv_prefix_release(fixture->tree, held, 10000);
    struct kv_prefix_counts counts;
    kv_prefix_count(fixture->tree, &counts);
    assert_int_equal(counts.nodes, 0);
    assert_int_equal(counts.removed[KV_PREFIX_MISS_DAMAGED], 2);
    assert_int_equal(counts.removed[KV_PREFIX_MISS_EXPIRED], 2);
    close_fixture(fixture);
}

/* Index memory <= 1 % of the blocks at the release's size, as allocated. */
static void index_takes_at_most_one_percent_of_blocks(void **state) {
    (void)state;
    static const int32_t sizes[] = {1000, 4096, 65537, 1000000};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct fixture *fixture = calloc(1, sizeof *fixture);
        assert_non_null(fixture);
        struct kv_prefix_options options = options_of(fixture, sizes[i]);
        options.leases_max = 256;
        uint64_t bytes = kv_prefix_measure(&options);
        assert_true(bytes * 100 <= (uint64_t)sizes[i] * BLOCK_BYTES);
        if (sizes[i] <= 4096) {
            struct error error;
            size_t before = failing_memory_bytes();
            assert_true(is_ok(kv_prefix_create(&fixture->tree, &options, &error)));
            assert_int_equal(failing_memory_bytes() - before, bytes);
            kv_prefix_destroy(fixture->tree);
        }
        free(fixture);
    }
}

static void create_refuses_counts_and_survives_no_memory(void **state) {
    (void)state;
    struct fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    struct kv_prefix_options options = options_of(fixture, 0);
    struct error error;
    assert_int_equal(kv_prefix_create(&fixture->tree, &options, &error).code, RESULT_INVALID_INPUT);
    options.nodes_max = KV_PREFIX_NODES_MAX + 1;
    assert_int_equal(kv_prefix_create(&fixture->tree, &options, &error).code, RESULT_INVALID_INPUT);
    options.nodes_max = 4;
    size_t nth = 1;
    for (;; nth++) {
        failing_memory_arm(nth);
        result created = kv_prefix_create(&fixture->tree, &options, &error);
        if (!failing_memory_fired()) {
            assert_true(is_ok(created));
            break;
        }
        assert_int_equal(created.code, RESULT_MEMORY);
        assert_null(fixture->tree);
    }
    failing_memory_arm(0);
    assert_int_equal(nth, 15);
    size_t allocations = failing_memory_count();
    for (int32_t i = 0; i < 20; i++) {
        (void)put(fixture, KV_PREFIX_ROOT, i);
        kv_prefix_release(fixture->tree, lease(fixture, KV_PREFIX_ROOT, 0), 0);
    }
    assert_int_equal(failing_memory_count(), allocations);
    close_fixture(fixture);
}

struct gone {
    uint64_t ids[8];
    enum kv_prefix_miss reasons[8];
    int32_t blocks[8];
    int32_t count;
};

static struct gone gone;

static void
node_removed(void *context, const struct kv_prefix_node *node, enum kv_prefix_miss why) {
    const struct fixture *fixture = context;
    assert_true(fixture->references[node->block] > 0); /* its content can be copied still */
    assert_true((size_t)gone.count < COUNT_OF(gone.ids));
    gone.ids[gone.count] = node->id;
    gone.blocks[gone.count] = node->block;
    gone.reasons[gone.count++] = why;
}

static void nodes_have_keys_wait_to_be_written_and_say_goodbye(void **state) {
    (void)state;
    struct fixture *fixture = open_fixture(16);
    kv_prefix_destroy(fixture->tree);
    struct kv_prefix_options options = options_of(fixture, 16);
    options.node_removed = node_removed;
    struct error error;
    assert_true(is_ok(kv_prefix_create(&fixture->tree, &options, &error)));
    gone = (struct gone){0};
    assert_true(kv_prefix_unwritten(fixture->tree) == KV_PREFIX_ROOT);
    uint64_t nodes[5];
    nodes[0] = put(fixture, KV_PREFIX_ROOT, 1);
    nodes[1] = put(fixture, nodes[0], 2);
    nodes[2] = put(fixture, nodes[1], 3);
    nodes[3] = put(fixture, nodes[2], 4);
    nodes[4] = put(fixture, nodes[1], 5);
    (void)put(fixture, nodes[1], 5); /* there already: once is enough */
    struct kv_key keys[2];
    struct kv_prefix_node node;
    int32_t tokens[2 * B];
    (void)prompt(tokens, (int32_t[]){1, 2}, 2, 0);
    kv_key_path(&(struct kv_key){{0}}, &exact, tokens, 2, keys);
    assert_true(kv_prefix_get(fixture->tree, nodes[1], &node));
    assert_true(kv_key_equals(&node.key, &keys[1]));
    assert_true(kv_key_equals(&node.parent_key, &keys[0]));
    assert_true(node.parent == nodes[0] && node.depth == 2 && node.block == 1 && node.is_wanted);
    assert_memory_equal(node.tokens, tokens + B, B * sizeof *tokens);
    assert_false(kv_prefix_get(fixture->tree, KV_PREFIX_ROOT, &node));
    /* First in, first out. */
    uint64_t at = kv_prefix_unwritten(fixture->tree);
    for (int i = 0; i < 5; i++) {
        assert_true(at == nodes[i]);
        at = kv_prefix_unwritten_next(fixture->tree, at);
    }
    assert_true(at == KV_PREFIX_ROOT);
    kv_prefix_forget_unwritten(fixture->tree, nodes[0]);
    kv_prefix_forget_unwritten(fixture->tree, nodes[0]);
    assert_true(kv_prefix_unwritten(fixture->tree) == nodes[1]);
    /* The branch of 3 and 4 is nobody's; 2 is where another one goes on. */
    uint64_t held = lease(fixture, nodes[3], 0);
    kv_prefix_forget_branch(fixture->tree, nodes[3]);
    assert_true(kv_prefix_unwritten_next(fixture->tree, nodes[1]) == nodes[2]); /* leased */
    kv_prefix_tell(fixture->tree, held, KV_PREFIX_ABANDONED, 0, 1);
    assert_true(kv_prefix_get(fixture->tree, nodes[3], &node) && node.is_abandoned);
    kv_prefix_forget_branch(fixture->tree, nodes[3]);
    assert_true(kv_prefix_unwritten(fixture->tree) == nodes[1]);
    assert_true(kv_prefix_unwritten_next(fixture->tree, nodes[1]) == nodes[4]);
    /* Who goes leaves the queue. */
    assert_int_equal(kv_prefix_evict(fixture->tree, 1, 2), 1);
    assert_int_equal(gone.count, 1);
    assert_true(gone.ids[0] == nodes[3] && gone.reasons[0] == KV_PREFIX_MISS_EVICTED);
    assert_int_equal(gone.blocks[0], 3);
    kv_prefix_remove(fixture->tree, nodes[4], 3);
    assert_int_equal(gone.reasons[1], KV_PREFIX_MISS_DAMAGED);
    assert_true(kv_prefix_unwritten_next(fixture->tree, nodes[1]) == KV_PREFIX_ROOT);
    kv_prefix_advance(fixture->tree, 20000);
    assert_int_equal(gone.count, 5);
    assert_int_equal(gone.reasons[4], KV_PREFIX_MISS_EXPIRED);
    assert_true(kv_prefix_unwritten(fixture->tree) == KV_PREFIX_ROOT);
    close_fixture(fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_finds_whole_blocks),
        cmocka_unit_test(nodes_have_keys_wait_to_be_written_and_say_goodbye),
        cmocka_unit_test(lookup_stops_before_last_token_on_even_position),
        cmocka_unit_test(lookup_reuses_inside_block_up_to_even_token_before_divergence),
        cmocka_unit_test(lookup_scans_bounded_number_of_siblings),
        cmocka_unit_test(exact_lookup_refuses_other_lineage),
        cmocka_unit_test(replay_lookup_takes_longest_and_exact_on_ties),
        cmocka_unit_test(insert_of_equal_node_releases_callers_block),
        cmocka_unit_test(full_tree_evicts_for_insert_but_never_its_parent),
        cmocka_unit_test(evict_takes_leaves_before_trunks_and_nothing_leased),
        cmocka_unit_test(evict_follows_what_agents_told),
        cmocka_unit_test(overdue_estimate_counts_for_nothing),
        cmocka_unit_test(trunk_takes_over_best_of_its_branches),
        cmocka_unit_test(return_to_an_open_end_is_expected_once),
        cmocka_unit_test(lease_lapses_and_its_owner_can_return),
        cmocka_unit_test(clock_that_jumps_back_changes_nothing),
        cmocka_unit_test(miss_says_evicted_expired_damaged_or_never),
        cmocka_unit_test(index_takes_at_most_one_percent_of_blocks),
        cmocka_unit_test(create_refuses_counts_and_survives_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
