/* Blocks with references: runs, forks, adoption, copy on write and refusals, against a naive model that keeps
 * a whole copy of every sequence and counts references by looking. */
#include "engine/kv_cache.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SEQUENCES 9
#define BLOCKS    12 /* of one sequence */
#define CONTEXT   (BLOCKS * KV_BLOCK_TOKENS - 7)
#define POOL      24 /* too few for all: some appends are refused */
#define STEPS     3000

struct copy {
    struct kv_sequence *sequence; /* null: none */
    int32_t ids[CONTEXT];
    uint8_t entries[CONTEXT]; /* a byte that stands for a token's entries */
    uint8_t *state;
};

struct trial {
    struct backend *backend;
    struct kv_cache cache;
    struct copy copies[SEQUENCES];
    uint32_t seed;
    int32_t refused, forked, copied, adopted;
};

static int32_t draw(struct trial *trial, int32_t below) {
    trial->seed = trial->seed * 1664525U + 1013904223U;
    return (int32_t)((trial->seed >> 8) % (uint32_t)below);
}

static void open_trial(struct trial *trial, uint32_t seed, int32_t blocks) {
    struct backend_options options = {
        .name = "cpu", .threads = 1, .rows_max = 1, .dim_max = 64, .context_max = 64};
    struct model_config *config = calloc(1, sizeof *config);
    struct kv_layout layout;
    struct error error;
    assert_non_null(config);
    config->layers = 3;
    config->head_dim = 32;
    config->index_dim = 32;
    config->window = 4;
    config->kv_source_count = 2;
    config->kv_source_layers[1] = 1;
    config->plan[0].ratio = 2;
    config->plan[1].ratio = 1;
    *trial = (struct trial){.seed = seed};
    assert_true(is_ok(backend_open(&options, &trial->backend, &error)));
    assert_true(is_ok(kv_layout_make(config, &layout, &error)));
    struct kv_cache_shape shape = {
        .context_max = CONTEXT, .sequences_max = SEQUENCES, .block_total = blocks};
    assert_true(is_ok(kv_cache_init_shape(&trial->cache, trial->backend, &layout, &shape, &error)));
    for (int32_t i = 0; i < SEQUENCES; i++) {
        trial->copies[i].state = calloc(1, layout.state_bytes);
        assert_non_null(trial->copies[i].state);
    }
    free(config);
}

static void close_trial(struct trial *trial) {
    for (int32_t i = 0; i < SEQUENCES; i++) {
        free(trial->copies[i].state);
    }
    kv_cache_deinit(&trial->cache);
    backend_close(trial->backend);
}

/* Tokens whose entries are there. */
static int32_t stored(const struct kv_sequence *sequence) {
    return sequence->computed > sequence->kept ? sequence->computed : sequence->kept;
}

/* Every byte of every sequence, and every count, as the copies say. */
static void check_trial(const struct trial *trial) {
    const struct kv_cache *cache = &trial->cache;
    int32_t references[SEQUENCES * BLOCKS] = {0};
    for (int32_t i = 0; i < SEQUENCES; i++) {
        const struct copy *copy = &trial->copies[i];
        const struct kv_sequence *sequence = copy->sequence;
        if (sequence == NULL) {
            continue;
        }
        int32_t ids[CONTEXT];
        kv_cache_read_ids(cache, sequence, 0, sequence->length, ids);
        assert_memory_equal(ids, copy->ids, (size_t)sequence->length * sizeof *ids);
        kv_cache_read_compressed(cache, sequence, 0, sequence->length, ids);
        for (int32_t p = 0; p < sequence->length; p++) {
            assert_int_equal(ids[p], copy->ids[p] + 1);
        }
        for (int32_t p = 0; p < stored(sequence); p++) {
            const uint8_t *block = sequence->device_blocks[p / KV_BLOCK_TOKENS];
            assert_int_equal(block[p % KV_BLOCK_TOKENS], copy->entries[p]);
        }
        assert_memory_equal(sequence->state, copy->state, cache->layout.state_bytes);
        for (int32_t b = 0; b < sequence->block_count; b++) {
            references[sequence->numbers[b]]++;
        }
    }
    int32_t free_count = 0;
    for (int32_t n = 0; n < cache->block_total; n++) {
        uint32_t bits = cache->extents[n / KV_RUN_BLOCKS].free;
        assert_int_equal(cache->block_references[n], references[n]);
        assert_int_equal(bits >> (n % KV_RUN_BLOCKS) & 1U, references[n] == 0);
        free_count += references[n] == 0;
    }
    assert_int_equal(cache->block_free_count, free_count);
}

/* Blocks that an append must take, by looking. */
static int32_t blocks_needed(const struct trial *trial, const struct copy *copy, int32_t tokens) {
    int32_t needed = 0;
    int32_t end = (tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    for (int32_t b = stored(copy->sequence) / KV_BLOCK_TOKENS; b < end; b++) {
        bool is_there = b < copy->sequence->block_count;
        needed += !is_there || trial->cache.block_references[copy->sequence->numbers[b]] > 1;
    }
    return needed;
}

static void append(struct trial *trial, struct copy *copy) {
    struct kv_sequence *sequence = copy->sequence;
    struct error error = {0};
    int32_t room = CONTEXT - sequence->length;
    int32_t count = draw(trial, draw(trial, 4) == 0 ? 400 : 60);
    count = count < room ? count : room;
    int32_t end = sequence->length + count;
    int32_t needed = blocks_needed(trial, copy, end);
    int32_t held = sequence->block_count;
    int32_t free = trial->cache.block_free_count;
    result reserved = kv_cache_reserve(&trial->cache, sequence, end, &error);
    if (needed > free) {
        char number[32];
        (void)snprintf(number, sizeof number, "but %d of %d are free", free, POOL);
        assert_int_equal(reserved.code, RESULT_LIMIT);
        assert_non_null(strstr(error.message, number));
        assert_int_equal(trial->cache.block_free_count, free);
        assert_int_equal(sequence->block_count, held);
        trial->refused++;
        return;
    }
    assert_true(is_ok(reserved));
    assert_int_equal(trial->cache.block_free_count, free - needed);
    trial->copied += needed - (sequence->block_count - held);
    for (int32_t i = 0; i < count; i++) {
        copy->ids[sequence->length] = draw(trial, 100000);
        kv_cache_append(
            &trial->cache, sequence, copy->ids[sequence->length], copy->ids[sequence->length] + 1
        );
    }
    /* Now and then only a part is computed: a prompt that was cancelled. */
    int32_t left = end - sequence->computed;
    int32_t computed = end - (draw(trial, 4) == 0 ? draw(trial, left + 1) : 0);
    assert_true(kv_cache_is_writable(&trial->cache, sequence, sequence->computed, end));
    for (int32_t p = stored(sequence); p < computed; p++) {
        copy->entries[p] = (uint8_t)draw(trial, 256);
        sequence->blocks[p / KV_BLOCK_TOKENS][p % KV_BLOCK_TOKENS] = copy->entries[p];
    }
    sequence->computed = computed;
    size_t at = (size_t)draw(trial, (int32_t)trial->cache.layout.state_bytes);
    copy->state[at] = (uint8_t)draw(trial, 256);
    sequence->state[at] = copy->state[at];
}

static void fork_copy(struct trial *trial, const struct copy *parent) {
    struct copy *child = NULL;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        child = trial->copies[i].sequence == NULL ? &trial->copies[i] : child;
    }
    struct kv_sequence *sequence = kv_cache_fork(&trial->cache, parent->sequence);
    assert_true((sequence == NULL) == (child == NULL));
    if (child != NULL) {
        child->sequence = sequence;
        memcpy(child->ids, parent->ids, sizeof child->ids);
        memcpy(child->entries, parent->entries, sizeof child->entries);
        memcpy(child->state, parent->state, trial->cache.layout.state_bytes);
        trial->forked++;
    }
}

/* A new sequence from the first tokens of another one, as after a hit in the cache. */
static void adopt(struct trial *trial, struct copy *copy, const struct copy *from) {
    int32_t kept = draw(trial, stored(from->sequence) + 1);
    struct kv_adoption adoption = {
        .blocks = from->sequence->numbers,
        .kept = kept,
        .start = kept - draw(trial, 2) * draw(trial, kept + 1),
    };
    copy->sequence = kv_cache_acquire(&trial->cache);
    memcpy(copy->state, copy->sequence->state, trial->cache.layout.state_bytes);
    for (int32_t b = 0; b < (kept + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS; b++) {
        kv_block_share(&trial->cache, from->sequence->numbers[b]);
    }
    kv_cache_adopt(&trial->cache, copy->sequence, &adoption);
    assert_int_equal(copy->sequence->length, kept);
    assert_int_equal(copy->sequence->computed, adoption.start);
    memcpy(copy->ids, from->ids, sizeof copy->ids);
    memcpy(copy->entries, from->entries, sizeof copy->entries);
    trial->adopted++;
}

static void release(struct trial *trial, struct copy *copy) {
    kv_cache_release(&trial->cache, copy->sequence);
    copy->sequence = NULL;
}

static void step(struct trial *trial) {
    struct copy *copy = &trial->copies[draw(trial, SEQUENCES)];
    int32_t action = draw(trial, 20);
    if (copy->sequence == NULL) {
        const struct copy *from = &trial->copies[draw(trial, SEQUENCES)];
        if (action < 4 && from->sequence != NULL) {
            adopt(trial, copy, from);
        } else if (action == 4) {
            copy->sequence = kv_cache_acquire(&trial->cache);
            memcpy(copy->state, copy->sequence->state, trial->cache.layout.state_bytes);
        }
    } else if (action < 11) {
        append(trial, copy);
    } else if (action < 17) {
        fork_copy(trial, copy);
    } else {
        release(trial, copy);
    }
}

static void forks_random_trees_equal_naive_copies(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    for (uint32_t seed = 1; seed <= 4; seed++) {
        print_message("seed %u\n", seed);
        open_trial(trial, seed, POOL);
        for (int32_t s = 0; s < STEPS; s++) {
            step(trial);
            check_trial(trial);
        }
        print_message(
            "%d forks, %d adoptions, %d copies, %d refusals\n",
            trial->forked,
            trial->adopted,
            trial->copied,
            trial->refused
        );
        assert_true(trial->refused > 10 && trial->forked > 100 && trial->copied > 100);
        assert_true(trial->adopted > 20);
        for (int32_t i = 0; i < SEQUENCES; i++) {
            struct copy *copy = &trial->copies[(i * 4 + (int32_t)seed) % SEQUENCES];
            if (copy->sequence != NULL) {
                release(trial, copy);
                check_trial(trial);
            }
        }
        assert_int_equal(trial->cache.block_free_count, POOL);
        close_trial(trial);
    }
    free(trial);
}

/* The size that plans count with never refuses a sequence within its context, forked or not. */
static void forks_planned_pool_never_refuses(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    open_trial(trial, 77, 0);
    assert_int_equal(trial->cache.block_total, SEQUENCES * BLOCKS);
    for (int32_t s = 0; s < STEPS; s++) {
        step(trial);
    }
    for (int32_t i = 0; i < SEQUENCES; i++) {
        struct copy *copy = &trial->copies[i];
        struct error error;
        if (copy->sequence == NULL) {
            copy->sequence = kv_cache_acquire(&trial->cache);
        }
        copy->sequence->kept = 0;
        copy->sequence->computed = 0; /* all of it is written anew: all of it becomes private */
        assert_true(is_ok(kv_cache_reserve(&trial->cache, copy->sequence, CONTEXT, &error)));
    }
    assert_int_equal(trial->refused, 0);
    assert_int_equal(trial->cache.block_free_count, 0);
    close_trial(trial);
    free(trial);
}

/* ---- the owner of the pool -------------------------------------------------------------------- */

struct keeper {
    struct kv_cache *cache;
    int32_t held[4]; /* references of its own; -1: none */
    int32_t calls, asked;
};

static void keeper_makes_room(void *context, int32_t blocks) {
    struct keeper *keeper = context;
    keeper->calls++;
    keeper->asked = blocks;
    for (size_t i = 0; i < COUNT_OF(keeper->held) && blocks > 0; i++) {
        if (keeper->held[i] >= 0) {
            blocks -= kv_block_drop(keeper->cache, keeper->held[i]);
            keeper->held[i] = -1;
        }
    }
}

/* A pool of 4: two blocks of a sequence, which the keeper refers to as well, and two of the keeper
 * alone. */
static struct kv_sequence *open_keeper(struct trial *trial, struct keeper *keeper) {
    open_trial(trial, 1, 4);
    struct kv_cache *cache = &trial->cache;
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    assert_true(is_ok(kv_cache_reserve(cache, sequence, 2 * KV_BLOCK_TOKENS, NULL)));
    for (int32_t p = 0; p < KV_BLOCK_TOKENS + 8; p++) {
        kv_cache_append(cache, sequence, p, p);
    }
    sequence->computed = sequence->length;
    *keeper = (struct keeper){.cache = cache};
    for (int32_t i = 0; i < 2; i++) {
        kv_block_share(cache, sequence->numbers[i]);
        keeper->held[i] = sequence->numbers[i];
        keeper->held[2 + i] = kv_block_take(cache, -1);
    }
    cache->make_room = keeper_makes_room;
    cache->make_room_context = keeper;
    return sequence;
}

static void reserve_asks_for_room_before_it_refuses(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    struct keeper keeper;
    assert_non_null(trial);
    struct kv_sequence *sequence = open_keeper(trial, &keeper);
    struct kv_cache *cache = &trial->cache;
    assert_int_equal(cache->block_free_count, 0);
    /* One copy of the shared tail is lacking. What the keeper drops first frees nothing, but then
     * the tail needs no copy any more. */
    int32_t tail = sequence->numbers[1];
    assert_true(is_ok(kv_cache_reserve(cache, sequence, 2 * KV_BLOCK_TOKENS, NULL)));
    assert_int_equal(keeper.calls, 1);
    assert_int_equal(keeper.asked, 1);
    assert_int_equal(sequence->numbers[1], tail);
    assert_int_equal(cache->block_free_count, 1);
    /* Two more blocks: one is free, one lacking. */
    assert_true(is_ok(kv_cache_reserve(cache, sequence, 4 * KV_BLOCK_TOKENS, NULL)));
    assert_int_equal(keeper.calls, 2);
    assert_int_equal(keeper.asked, 1);
    /* Nothing is left: refused after asking; beyond the context nobody is asked. */
    struct error error = {0};
    assert_int_equal(
        kv_cache_reserve(cache, sequence, 6 * KV_BLOCK_TOKENS, &error).code, RESULT_LIMIT
    );
    assert_int_equal(keeper.calls, 3);
    assert_int_equal(keeper.asked, 2);
    assert_int_equal(
        kv_cache_reserve(cache, sequence, CONTEXT + KV_BLOCK_TOKENS, &error).code, RESULT_LIMIT
    );
    assert_int_equal(keeper.calls, 3);
    close_trial(trial);
    free(trial);
}

/* An equal block of somebody else takes the place of the sequence's own, whose memory is free. */
static void swap_drops_own_block(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    open_trial(trial, 1, 8);
    struct kv_cache *cache = &trial->cache;
    struct kv_sequence *sequences[2];
    for (int32_t s = 0; s < 2; s++) {
        sequences[s] = kv_cache_acquire(cache);
        assert_true(is_ok(kv_cache_reserve(cache, sequences[s], 2 * KV_BLOCK_TOKENS, NULL)));
        for (int32_t p = 0; p < KV_BLOCK_TOKENS + 1; p++) {
            kv_cache_append(cache, sequences[s], p, p + 1);
        }
        sequences[s]->computed = sequences[s]->length;
    }
    int32_t own = sequences[1]->numbers[0];
    int32_t other = sequences[0]->numbers[0];
    kv_cache_swap(cache, sequences[1], 0, own); /* nothing to do */
    assert_int_equal(cache->block_references[own], 1);
    kv_cache_swap(cache, sequences[1], 0, other);
    assert_int_equal(cache->block_references[own], 0);
    assert_int_equal(cache->block_references[other], 2);
    assert_int_equal(sequences[1]->numbers[0], other);
    assert_ptr_equal(sequences[1]->blocks[0], kv_block_address(cache, other));
    assert_ptr_equal(sequences[1]->device_blocks[0], kv_block_address(cache, other));
    assert_int_equal(cache->block_free_count, 5);
    close_trial(trial);
    free(trial);
}

/* A block goes through host memory and back with its ids. */
static void block_filled_from_host_reads_the_same(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    open_trial(trial, 1, 2);
    struct kv_cache *cache = &trial->cache;
    int32_t ids[2][KV_BLOCK_TOKENS];
    size_t bytes = cache->layout.block_bytes;
    uint8_t *from = malloc(bytes);
    uint8_t *to = malloc(bytes);
    ASSERT(from != NULL && to != NULL && bytes > 0);
    for (size_t i = 0; i < bytes; i++) {
        from[i] = (uint8_t)draw(trial, 256);
    }
    for (int32_t i = 0; i < KV_BLOCK_TOKENS; i++) {
        ids[0][i] = draw(trial, 1000);
        ids[1][i] = draw(trial, 1000);
    }
    int32_t number = kv_block_take(cache, -1);
    kv_block_fill(cache, number, ids[0], ids[1], from);
    kv_block_read(cache, number, to);
    assert_memory_equal(to, from, bytes);
    assert_memory_equal(kv_block_ids(cache, number), ids, sizeof ids);
    free(from);
    free(to);
    close_trial(trial);
    free(trial);
}

/* Sequences that grow in turn, block by block, still get neighbours. */
static void pool_growing_in_turn_gives_runs(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    struct kv_sequence *grown[3];
    struct error error;
    assert_non_null(trial);
    open_trial(trial, 1, 3 * KV_RUN_BLOCKS + 5);
    for (int32_t i = 0; i < 3; i++) {
        grown[i] = kv_cache_acquire(&trial->cache);
    }
    for (int32_t b = 1; b < BLOCKS; b++) {
        for (int32_t i = 0; i < 3; i++) {
            int32_t tokens = b * KV_BLOCK_TOKENS;
            assert_true(is_ok(kv_cache_reserve(&trial->cache, grown[i], tokens, &error)));
        }
    }
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(kv_cache_run(&trial->cache, grown[i], 0), BLOCKS - 1);
        assert_int_equal(kv_cache_run(&trial->cache, grown[i], 4), BLOCKS - 5);
    }
    close_trial(trial);
    free(trial);
}

/* A run ends at 32; holes are filled longest first; what is freed joins its neighbours. */
static void pool_takes_longest_free_run(void **state) {
    (void)state;
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    open_trial(trial, 1, 2 * KV_RUN_BLOCKS + 3);
    struct kv_cache *cache = &trial->cache;
    int32_t previous = -1;
    for (int32_t n = 0; n < 2 * KV_RUN_BLOCKS + 3; n++) {
        previous = kv_block_take(cache, previous);
        assert_int_equal(previous, n);
    }
    assert_int_equal(cache->block_free_count, 0);
    static const int32_t freed[] = {5, 10, 12, 11, 40, 41, 64};
    for (size_t i = 0; i < COUNT_OF(freed); i++) {
        kv_block_drop(cache, freed[i]);
    }
    assert_int_equal(kv_block_take(cache, 4), 5);   /* the neighbour */
    assert_int_equal(kv_block_take(cache, -1), 10); /* 10 to 12 is the longest */
    assert_int_equal(kv_block_take(cache, 10), 11);
    assert_int_equal(kv_block_take(cache, 31), 40); /* extents do not join: 40 and 41 */
    kv_block_share(cache, 40);
    kv_block_drop(cache, 40);
    assert_int_equal(cache->block_free_count, 3);
    kv_block_drop(cache, 40);
    assert_int_equal(cache->block_free_count, 4);
    close_trial(trial);
    free(trial);
}

/* ---- misuse --------------------------------------------------------------------------------- */

static void drop_free_block(struct trial *trial) {
    kv_block_drop(&trial->cache, 3);
}

static void share_free_block(struct trial *trial) {
    kv_block_share(&trial->cache, 3);
}

static void drop_block_out_of_pool(struct trial *trial) {
    kv_block_drop(&trial->cache, POOL);
}

static void take_from_empty_pool(struct trial *trial) {
    for (int32_t n = 0; n <= POOL; n++) {
        (void)kv_block_take(&trial->cache, -1);
    }
}

static void release_twice(struct trial *trial) {
    struct kv_sequence *sequence = kv_cache_acquire(&trial->cache);
    kv_cache_release(&trial->cache, sequence);
    kv_cache_release(&trial->cache, sequence);
}

static void fork_released(struct trial *trial) {
    struct kv_sequence *sequence = kv_cache_acquire(&trial->cache);
    kv_cache_release(&trial->cache, sequence);
    (void)kv_cache_fork(&trial->cache, sequence);
}

/* Without reserving first the tail is still the parent's too. */
static void append_to_shared_block(struct trial *trial) {
    struct kv_sequence *parent = kv_cache_acquire(&trial->cache);
    if (is_ok(kv_cache_reserve(&trial->cache, parent, 2, NULL))) {
        kv_cache_append(&trial->cache, parent, 1, 1);
        kv_cache_append(&trial->cache, kv_cache_fork(&trial->cache, parent), 2, 2);
    }
}

static void swap_with_other_tokens(struct trial *trial) {
    struct kv_sequence *sequence = kv_cache_acquire(&trial->cache);
    if (is_ok(kv_cache_reserve(&trial->cache, sequence, KV_BLOCK_TOKENS, NULL))) {
        for (int32_t p = 0; p < KV_BLOCK_TOKENS; p++) {
            kv_cache_append(&trial->cache, sequence, 7, 7);
        }
        sequence->computed = KV_BLOCK_TOKENS;
        kv_cache_swap(&trial->cache, sequence, 0, kv_block_take(&trial->cache, -1));
    }
}

static void adopt_free_block(struct trial *trial) {
    int32_t number = 3;
    struct kv_adoption adoption = {.blocks = &number, .kept = 5, .start = 0};
    kv_cache_adopt(&trial->cache, kv_cache_acquire(&trial->cache), &adoption);
}

/* Each dies at an assertion, in a process of its own. */
static void misuse_is_asserted(void **state) {
    (void)state;
    static void (*const misuses[])(struct trial *) = {
        drop_free_block,
        share_free_block,
        drop_block_out_of_pool,
        take_from_empty_pool,
        release_twice,
        fork_released,
        append_to_shared_block,
        swap_with_other_tokens,
        adopt_free_block,
    };
    for (size_t i = 0; i < COUNT_OF(misuses); i++) {
        struct trial *trial = calloc(1, sizeof *trial);
        assert_non_null(trial);
        open_trial(trial, 1, POOL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            (void)signal(SIGABRT, SIG_DFL); /* not cmocka's */
            (void)close(STDERR_FILENO);
            misuses[i](trial);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGABRT);
        close_trial(trial);
        free(trial);
    }
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* Linked with --wrap: what the cache takes on the host goes through here. */
void *__real_calloc(size_t count, size_t bytes); // NOLINT(bugprone-reserved-identifier)
void *__wrap_calloc(size_t count, size_t bytes); // NOLINT(bugprone-reserved-identifier)
static size_t host_bytes;
static size_t device_bytes;
static result (*real_allocate)(struct backend *, size_t, void **, struct error *);

void *__wrap_calloc(size_t count, size_t bytes) {
    host_bytes += count * bytes;
    return __real_calloc(count, bytes);
}

static result
counting_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    device_bytes += bytes;
    return real_allocate(backend, bytes, out, error);
}

/* What a plan counts is what is taken, to the byte. */
static void cache_takes_what_was_measured(void **state) {
    (void)state;
    static const struct kv_cache_shape shapes[] = {
        {.context_max = 1, .sequences_max = 1},
        {.context_max = 129, .sequences_max = 3},
        {.context_max = 5000, .sequences_max = 7},
        {.context_max = 5000, .sequences_max = 7, .block_total = 33},
    };
    struct trial *trial = calloc(1, sizeof *trial);
    assert_non_null(trial);
    open_trial(trial, 1, 1);
    real_allocate = trial->backend->allocate;
    trial->backend->allocate = counting_allocate;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        struct kv_cache cache;
        struct kv_cache_size size;
        struct error error;
        host_bytes = 0;
        device_bytes = 0;
        const struct kv_layout *layout = &trial->cache.layout;
        kv_cache_measure(layout, &shapes[i], &size);
        result made = kv_cache_init_shape(&cache, trial->backend, layout, &shapes[i], &error);
        assert_true(is_ok(made));
        assert_true(host_bytes > 0 && device_bytes > size.pool_bytes);
        assert_int_equal(host_bytes + device_bytes, size.total_bytes);
        assert_int_equal(size.pool_bytes, (size_t)cache.block_total * layout->block_bytes);
        kv_cache_deinit(&cache);
    }
    trial->backend->allocate = real_allocate;
    close_trial(trial);
    free(trial);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_random_trees_equal_naive_copies),
        cmocka_unit_test(forks_planned_pool_never_refuses),
        cmocka_unit_test(reserve_asks_for_room_before_it_refuses),
        cmocka_unit_test(swap_drops_own_block),
        cmocka_unit_test(block_filled_from_host_reads_the_same),
        cmocka_unit_test(pool_growing_in_turn_gives_runs),
        cmocka_unit_test(pool_takes_longest_free_run),
        cmocka_unit_test(misuse_is_asserted),
        cmocka_unit_test(cache_takes_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
