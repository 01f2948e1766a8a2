/* Promise P2 over forks: every sequence of a random tree of appends and forks has the logits and
 * caches of the same tokens run alone, bit for bit, whichever side goes on and in whatever order
 * they end. */
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CONTEXT   400
#define SEQUENCES 5
#define STEPS     (BENCH_IS_SLOW ? 10 : 48)
#define SEEDS     (BENCH_IS_SLOW ? 1 : 3)

struct node {
    struct kv_sequence *sequence; /* null: none */
    int32_t ids[CONTEXT];
};

struct tree {
    struct bench bench, alone;
    struct node nodes[SEQUENCES];
    uint32_t seed;
    float *logits, *wanted; /* [V] */
    int32_t forks, inside, odd, copies;
};

static int32_t draw(struct tree *tree, int32_t below) {
    tree->seed = tree->seed * 1664525U + 1013904223U;
    return (int32_t)((tree->seed >> 8) % (uint32_t)below);
}

static void open_tree(struct tree *tree, uint32_t seed) {
    struct bench_options options = {
        .model = "golden/tiny-a",
        .threads = 1,
        .rows_max = CONTEXT,
        .sequences_max = SEQUENCES,
        .context_max = CONTEXT,
    };
    *tree = (struct tree){.seed = seed};
    bench_open(&tree->bench, &options);
    options.sequences_max = 1;
    bench_open(&tree->alone, &options);
    tree->logits = calloc((size_t)tree->bench.config->vocabulary, sizeof(float));
    tree->wanted = calloc((size_t)tree->bench.config->vocabulary, sizeof(float));
    assert_non_null(tree->logits);
    assert_non_null(tree->wanted);
    tree->nodes[0].sequence = kv_cache_acquire(&tree->bench.cache);
    assert_non_null(tree->nodes[0].sequence);
}

/* The last logits and all state against one shot on a cache of its own. */
static void check_alone(struct tree *tree, const struct node *node) {
    int32_t length = node->sequence->length;
    struct kv_sequence *alone = bench_sequence(&tree->alone, node->ids, length);
    bench_run(&tree->alone, alone, length, length, false, tree->wanted, NULL);
    size_t bytes = (size_t)tree->bench.config->vocabulary * sizeof(float);
    assert_memory_equal(tree->logits, tree->wanted, bytes);
    bench_assert_state_equal(&tree->alone, alone, &tree->bench, node->sequence);
    kv_cache_release(&tree->alone.cache, alone);
}

/* Appends; runs what is known unless `is_left`, as a sampled token is left for the next turn. */
static void append(struct tree *tree, struct node *node, bool is_left) {
    struct kv_sequence *sequence = node->sequence;
    int32_t room = CONTEXT - sequence->length;
    int32_t count = 1 + draw(tree, draw(tree, 3) == 0 ? 150 : 40);
    count = count < room ? count : room;
    if (count == 0) {
        return;
    }
    int32_t *ids = node->ids + sequence->length;
    for (int32_t i = 0; i < count; i++) {
        ids[i] = 3 + draw(tree, 1200);
    }
    int32_t free = tree->bench.cache.block_free_count;
    int32_t held = sequence->block_count;
    bench_append(&tree->bench, sequence, ids, count);
    tree->copies += free - tree->bench.cache.block_free_count - (sequence->block_count - held);
    if (!is_left) {
        int32_t chunk = 1 + draw(tree, 160);
        bench_run(&tree->bench, sequence, sequence->length, chunk, false, tree->logits, NULL);
        check_alone(tree, node);
    }
}

static void fork_node(struct tree *tree, const struct node *parent) {
    struct node *child = NULL;
    for (int32_t n = 0; n < SEQUENCES; n++) {
        child = tree->nodes[n].sequence == NULL ? &tree->nodes[n] : child;
    }
    int32_t free = tree->bench.cache.block_free_count;
    struct kv_sequence *sequence = kv_cache_fork(&tree->bench.cache, parent->sequence);
    assert_int_equal(tree->bench.cache.block_free_count, free);
    if (child == NULL) {
        assert_null(sequence);
        return;
    }
    assert_non_null(sequence);
    memcpy(child->ids, parent->ids, sizeof child->ids);
    child->sequence = sequence;
    bench_assert_state_equal(&tree->bench, parent->sequence, &tree->bench, sequence);
    tree->forks++;
    tree->odd += sequence->computed % 2;
    tree->inside += sequence->computed % KV_BLOCK_TOKENS != 0;
}

static void step(struct tree *tree) {
    struct node *node = &tree->nodes[draw(tree, SEQUENCES)];
    int32_t action = draw(tree, 10);
    if (node->sequence == NULL) {
        /* Keep at least one alive. */
        for (int32_t n = 0; n < SEQUENCES && node->sequence == NULL; n++) {
            node = &tree->nodes[n];
        }
    }
    if (node->sequence == NULL) {
        node->sequence = kv_cache_acquire(&tree->bench.cache);
    } else if (action < 5) {
        append(tree, node, action == 0);
    } else if (action < 9) {
        fork_node(tree, node);
    } else {
        kv_cache_release(&tree->bench.cache, node->sequence);
        node->sequence = NULL;
    }
}

static void forks_continue_as_alone(void **state) {
    (void)state;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        struct tree *tree = calloc(1, sizeof *tree);
        assert_non_null(tree);
        open_tree(tree, seed);
        print_message("seed %u\n", seed);
        append(tree, &tree->nodes[0], false);
        for (int32_t s = 0; s < STEPS; s++) {
            step(tree);
        }
        for (int32_t n = 0; n < SEQUENCES; n++) {
            if (tree->nodes[n].sequence != NULL) {
                append(tree, &tree->nodes[n], false);
                kv_cache_release(&tree->bench.cache, tree->nodes[n].sequence);
            }
        }
        assert_int_equal(tree->bench.cache.block_free_count, tree->bench.cache.block_total);
        print_message(
            "%d forks, %d inside a block, %d at odd positions, %d tail copies\n",
            tree->forks,
            tree->inside,
            tree->odd,
            tree->copies
        );
        assert_true(tree->forks > 1 && tree->inside > 0 && tree->odd > 0 && tree->copies > 0);
        free(tree->wanted);
        free(tree->logits);
        bench_close(&tree->alone);
        bench_close(&tree->bench);
        free(tree);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_continue_as_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
