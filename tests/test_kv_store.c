/* What the KV store decides, over blocks that nobody computed: lists of replays when work is cut
 * short or branches off, lineages that files invent, flushing to a disk that is slow. What it means
 * for results is tested with the engine. */
#include "engine/kv_store_internal.h"
#include "engine/kv_tier.h"
#include "kv_tier_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cmocka.h>

#define WINDOW    8
#define LAYERS    6
#define ENCODER   3
#define SEQUENCES 4
#define CONTEXT   (16 * KV_BLOCK_TOKENS)
#define TEXT      CONTEXT

/* Linked with --wrap: each write takes this long. */
ssize_t __real_pwritev(int fd, const struct iovec *parts, int count, off_t offset); // NOLINT
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t offset); // NOLINT
static useconds_t write_us;
static int32_t poll_blocks; /* of stores opened from now on; 0: the default */

ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int count, off_t offset) { // NOLINT
    if (write_us > 0) {
        (void)usleep(write_us);
    }
    return __real_pwritev(fd, parts, count, offset);
}

struct bench {
    struct backend *backend;
    struct kv_cache cache;
    struct kv_lineage root;
    struct kv_tier *tier;
    struct kv_store *store;
    int32_t text[TEXT];
};

static void make_text(int32_t *out, int32_t count, uint64_t seed) {
    for (int32_t i = 0; i < count; i++) {
        out[i] = random_below(&seed, 1000);
    }
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
    config->kv_source_count = 1;
    config->plan[0].ratio = 2;
    assert_true(is_ok(backend_open(&options, &bench->backend, NULL)));
    assert_true(is_ok(kv_layout_make(config, &layout, NULL)));
    free(config);
    struct kv_cache_shape shape = {
        .context_max = CONTEXT, .sequences_max = SEQUENCES, .block_total = 1024};
    assert_true(is_ok(kv_cache_init_shape(&bench->cache, bench->backend, &layout, &shape, NULL)));
}

/* directory: null for no disk; host_bytes 0: no host pool. */
static struct bench *open_bench(const char *directory, uint64_t host_bytes) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_cache(bench);
    make_text(bench->text, TEXT, 7);
    memset(bench->root.bytes, 0x5A, sizeof bench->root.bytes);
    if (directory != NULL || host_bytes > 0) {
        struct kv_tier_options tier = {
            .directory = directory,
            .host_bytes = host_bytes,
            .root = bench->root,
            .block_bytes = bench->cache.layout.block_bytes,
        };
        assert_true(is_ok(kv_tier_open(&bench->tier, &tier, NULL)));
    }
    struct kv_store_options options = {
        .cache = &bench->cache,
        .window = WINDOW,
        .encoder_layers = ENCODER,
        .layers = LAYERS,
        .root = bench->root,
        .hash_key = 1,
        .leases_max = 2 * SEQUENCES,
        .snapshot_bytes = 16 * bench->cache.layout.state_bytes,
        .tier = bench->tier,
        .poll_bytes = (size_t)poll_blocks * bench->cache.layout.block_bytes,
        .has_disk = directory != NULL,
    };
    assert_true(is_ok(kv_store_create(&bench->store, &options, NULL)));
    return bench;
}

static void close_bench(struct bench *bench) {
    assert_true(is_ok(kv_store_check(bench->store, NULL)));
    kv_tier_close(bench->tier);
    kv_store_destroy(bench->store);
    assert_int_equal(bench->cache.block_free_count, bench->cache.block_total);
    kv_cache_deinit(&bench->cache);
    backend_close(bench->backend);
    free(bench);
}

struct live {
    struct kv_sequence *sequence;
    struct kv_binding binding;
    struct kv_reuse reuse;
};

static void append(struct bench *bench, struct live *live, const int32_t *tokens, int32_t end) {
    assert_true(is_ok(kv_cache_reserve(&bench->cache, live->sequence, end, NULL)));
    while (live->sequence->length < end) {
        kv_cache_append(&bench->cache, live->sequence, tokens[live->sequence->length], 0);
    }
}

/* Waits for blocks of a tier as the engine would, and appends the rest of the prompt. */
static void begin(struct bench *bench, struct live *live, const struct kv_prompt *prompt) {
    *live = (struct live){.sequence = kv_cache_acquire(&bench->cache)};
    assert_non_null(live->sequence);
    while (kv_store_begin(bench->store, &live->binding, live->sequence, prompt, 1, &live->reuse) ==
           KV_BEGIN_WAIT) {
        (void)kv_store_poll(bench->store, 1);
    }
    append(bench, live, prompt->tokens, prompt->count);
}

/* Rows up to `end` count as run, some at a time. */
static void run(struct bench *bench, struct live *live, int32_t end) {
    struct kv_sequence *sequence = live->sequence;
    while (sequence->computed < end) {
        int32_t rows = end - sequence->computed < 50 ? end - sequence->computed : 50;
        sequence->computed += kv_store_rows(&live->binding, rows);
        kv_store_advance(bench->store, &live->binding, 1);
    }
}

static void end(struct bench *bench, struct live *live) {
    kv_store_end(bench->store, &live->binding, 1);
    kv_cache_release(&bench->cache, live->sequence);
}

/* ---- lists of replays ----------------------------------------------------------------------- */

/* The decoder's rows from its floor on ran before the encoder's replay was due: what follows depends
 * on that, and no exact prompt may take it. */
static void contract_cut_short_is_not_taken_for_exact(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    const struct window_replay contract[] = {
        {WINDOW_REPLAY_ENCODER, 258}, {WINDOW_REPLAY_DECODER, 262}};
    struct kv_prompt prompt = {
        .tokens = bench->text,
        .count = 262,
        .has_contract = true,
        .contract = contract,
        .contract_count = 2,
    };
    struct live live;
    begin(bench, &live, &prompt);
    run(bench, &live, 256);
    append(bench, &live, bench->text, 300);
    kv_store_extend(bench->store, &live.binding, 300, WINDOW_EXACT);
    assert_int_equal(live.binding.replay_count, 1);
    assert_int_equal(live.binding.replays[0].kind, WINDOW_REPLAY_DECODER);
    assert_int_equal(live.binding.replays[0].position, 262);
    assert_true(live.binding.has_decoder_lineage);
    assert_true(kv_lineage_equals(&live.binding.lineage, &bench->root));
    run(bench, &live, 300);
    end(bench, &live);
    prompt = (struct kv_prompt){.tokens = bench->text, .count = 310};
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, 300); /* entries are exact */
    assert_string_equal(live.reuse.window_source, "rebuilt");
    assert_false(live.binding.has_decoder_lineage);
    end(bench, &live);
    /* Before the decoder's first row nothing happened yet. */
    prompt = (struct kv_prompt){
        .tokens = bench->text + 1,
        .count = 262,
        .has_contract = true,
        .contract = contract,
        .contract_count = 2,
    };
    begin(bench, &live, &prompt);
    run(bench, &live, 200);
    append(bench, &live, bench->text + 1, 300);
    kv_store_extend(bench->store, &live.binding, 300, WINDOW_EXACT);
    assert_int_equal(live.binding.replay_count, 1); /* from here on */
    assert_int_equal(live.binding.replays[0].position, 200 + WINDOW);
    end(bench, &live);
    close_bench(bench);
}

static void full_list_cut_short_stays_within_its_bound(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    struct window_replay contract[ENGINE_REPLAYS_MAX];
    for (int32_t i = 0; i < ENGINE_REPLAYS_MAX; i++) {
        contract[i] = (struct window_replay){WINDOW_REPLAY_DECODER, 230 + i};
    }
    struct kv_prompt prompt = {
        .tokens = bench->text,
        .count = 300,
        .has_contract = true,
        .contract = contract,
        .contract_count = ENGINE_REPLAYS_MAX,
    };
    struct live live;
    assert_true(is_ok(
        kv_store_check_contract(bench->store, contract, ENGINE_REPLAYS_MAX, prompt.count, NULL)
    ));
    begin(bench, &live, &prompt);
    run(bench, &live, 250);
    append(bench, &live, bench->text, 320);
    kv_store_extend(bench->store, &live.binding, 320, WINDOW_EXACT);
    assert_int_equal(live.binding.replay_count, ENGINE_REPLAYS_MAX);
    assert_int_equal(live.binding.replays[ENGINE_REPLAYS_MAX - 1].position, 250 + WINDOW);
    struct kv_lineage lineage = {0};
    for (int32_t i = 0; i < ENGINE_REPLAYS_MAX; i++) {
        struct kv_lineage parent = lineage;
        kv_lineage_decoder_replay(&parent, live.binding.replays[i].position, &lineage);
    }
    assert_true(kv_lineage_equals(&live.binding.decoder_lineage, &lineage));
    end(bench, &live);
    close_bench(bench);
}

/* A branch off a block of an approximate lineage, before the place where it became approximate: its
 * list is one that can be computed again. */
static void branch_before_a_replay_does_not_depend_on_it(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    struct live live;
    struct kv_prompt prompt = {.tokens = bench->text, .count = 384};
    begin(bench, &live, &prompt);
    run(bench, &live, 384);
    kv_store_tell(bench->store, &live.binding, SEQUENCE_ABANDONED, 0, 1);
    end(bench, &live);
    int32_t other[TEXT];
    make_text(other, TEXT, 8);
    memcpy(other, bench->text, 300 * sizeof *other);
    other[300] = bench->text[300] + 1;
    prompt = (struct kv_prompt){.tokens = other, .count = 500, .window = WINDOW_REPLAY};
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, 300);
    assert_int_equal(live.binding.replays[0].position, 300);
    run(bench, &live, 500);
    end(bench, &live);
    kv_store_drop(bench->store, CACHE_TIER_TREE, 1, 1); /* the exact block */
    for (int32_t at = 300; at >= 280; at -= 20) {
        int32_t branch[TEXT];
        make_text(branch, TEXT, 9);
        memcpy(branch, other, (size_t)at * sizeof *branch);
        branch[at] = other[at] + 1;
        prompt = (struct kv_prompt){.tokens = branch, .count = 400, .window = WINDOW_REPLAY};
        begin(bench, &live, &prompt);
        assert_int_equal(live.reuse.hit, at);
        assert_int_equal(live.binding.replay_count, 2);
        assert_int_equal(live.binding.replays[0].kind, WINDOW_REPLAY_ENCODER);
        assert_int_equal(live.binding.replays[0].position, at);
        assert_true(is_ok(kv_store_check_contract(
            bench->store, live.binding.replays, live.binding.replay_count, 400, NULL
        )));
        run(bench, &live, 400);
        kv_store_tell(bench->store, &live.binding, SEQUENCE_ABANDONED, 0, 1);
        end(bench, &live);
    }
    close_bench(bench);
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* A sequence that ends while it is parked leaves its windows as one that does not. */
static void end_while_parked_keeps_the_windows(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    struct live live;
    struct kv_prompt prompt = {.tokens = bench->text, .count = 301};
    begin(bench, &live, &prompt);
    run(bench, &live, 301);
    memset(live.sequence->state, 9, bench->cache.layout.state_bytes);
    kv_store_park(bench->store, &live.binding, false, 1);
    assert_null(live.sequence->state);
    assert_true(live.binding.parked != 0);
    struct live child = {.sequence = kv_cache_fork(&bench->cache, live.sequence)};
    kv_store_fork(bench->store, &live.binding, &child.binding, child.sequence, 1);
    assert_true(child.binding.parked == live.binding.parked);
    end(bench, &live);
    prompt.count = 310;
    begin(bench, &live, &prompt);
    assert_string_equal(live.reuse.window_source, "snapshot");
    assert_int_equal(live.reuse.start, 301);
    assert_int_equal(live.sequence->state[0], 9);
    /* The fork has its own still. */
    struct kv_resumption resumption;
    assert_true(kv_store_resume(bench->store, &child.binding, 301, 1, &resumption));
    assert_false(resumption.is_rebuilt);
    assert_int_equal(child.sequence->state[0], 9);
    end(bench, &child);
    run(bench, &live, 310);
    end(bench, &live);
    /* Cut short inside a prompt: the encoder's part. */
    prompt = (struct kv_prompt){.tokens = bench->text + 1, .count = 400};
    begin(bench, &live, &prompt);
    run(bench, &live, 256);
    kv_store_park(bench->store, &live.binding, true, 1);
    end(bench, &live);
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, 256);
    assert_int_equal(live.reuse.start, 256);
    end(bench, &live);
    close_bench(bench);
}

/* Rows that the store expects to run again when everything in its pool is parked. */
static int32_t foreseen_when_full(struct bench *bench, struct live *live, int32_t prompt_end) {
    enum { SLOTS_MAX = 16 };
    uint64_t tickets[SLOTS_MAX];
    struct kv_window *pool = bench->store->windows;
    int32_t count = 0;
    for (; kv_window_has_room(pool); count++) {
        assert_true(count < SLOTS_MAX);
        tickets[count] = kv_window_park(pool, live->sequence, 0, 1);
        assert_true(tickets[count] != 0);
    }
    assert_true(count > 0);
    int32_t rows = kv_store_rebuild_rows(bench->store, &live->binding, prompt_end);
    while (count > 0) {
        kv_window_leave(pool, tickets[--count]);
    }
    return rows;
}

/* Where rows begin again when the state was dropped: architecture section 4, with W - 1 = 7, E = 3,
 * L = 6. */
static void dropped_state_is_rebuilt_from_where_windows_reach(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    struct live live;
    struct kv_resumption resumption;
    struct kv_prompt prompt = {.tokens = bench->text, .count = 301};
    begin(bench, &live, &prompt);
    run(bench, &live, 201); /* inside the prompt: entries from 201 on are missing */
    assert_int_equal(kv_store_rebuild_rows(bench->store, &live.binding, 301), 0);
    assert_int_equal(foreseen_when_full(bench, &live, 301), 3 * 7);
    kv_store_park(bench->store, &live.binding, true, 1);
    kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
    assert_true(kv_store_resume(bench->store, &live.binding, 301, 1, &resumption));
    assert_true(resumption.is_rebuilt);
    assert_int_equal(resumption.start, 201 - 3 * 7);
    assert_int_equal(resumption.kept, 201);
    assert_int_equal(live.sequence->computed, resumption.start);
    assert_int_equal(live.sequence->kept, 201);
    run(bench, &live, 190);
    kv_store_park(bench->store, &live.binding, true, 1); /* in the middle of that */
    kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
    assert_true(kv_store_resume(bench->store, &live.binding, 301, 1, &resumption));
    assert_int_equal(resumption.start, 201 - 3 * 7);
    run(bench, &live, 301);
    append(bench, &live, bench->text, 302);
    assert_int_equal(foreseen_when_full(bench, &live, 302), 301 - (302 - 6 * 7 - 1));
    kv_store_park(bench->store, &live.binding, true, 1);
    kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
    assert_true(kv_store_resume(bench->store, &live.binding, 302, 1, &resumption));
    assert_int_equal(resumption.start, 302 - 6 * 7 - 1); /* as far as the decoder's last row sees */
    assert_int_equal(resumption.kept, 301);
    run(bench, &live, 302);
    struct kv_store_counts counts;
    kv_store_count(bench->store, &counts);
    assert_int_equal(counts.parked, 3);
    assert_int_equal(counts.resumed, 3);
    assert_int_equal(counts.resumed_rebuilt, 3);
    assert_int_equal(counts.resumed_rows, 21 + 21 + 42);
    end(bench, &live);
    close_bench(bench);
}

/* A replay that is cancelled while windows are rebuilt: rows before the end of that never were the
 * decoder's, so its windows begin there and the list says so. */
static void replay_cut_short_during_a_rebuild_begins_behind_it(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 0);
    struct live live;
    struct kv_resumption resumption;
    struct kv_prompt prompt = {.tokens = bench->text, .count = 301, .window = WINDOW_REPLAY};
    begin(bench, &live, &prompt);
    assert_int_equal(live.sequence->decoder_floor, 301 - WINDOW);
    run(bench, &live, 250);
    kv_store_park(bench->store, &live.binding, true, 1);
    kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
    assert_true(kv_store_resume(bench->store, &live.binding, 301, 1, &resumption));
    assert_int_equal(resumption.start, 250 - 3 * 7);
    run(bench, &live, 240);
    append(bench, &live, bench->text, 310);
    kv_store_extend(bench->store, &live.binding, 310, WINDOW_EXACT);
    assert_int_equal(live.sequence->decoder_floor, 250);
    assert_int_equal(live.binding.replay_count, 2);
    assert_int_equal(live.binding.replays[1].kind, WINDOW_REPLAY_DECODER);
    assert_int_equal(live.binding.replays[1].position, 250 + WINDOW);
    end(bench, &live);
    close_bench(bench);
}

/* ---- what files say ------------------------------------------------------------------------- */

/* A tier has a block of a lineage that derives from the root by replays at these positions; whether
 * a prompt takes it. */
static bool takes_lineage(const int32_t *positions, int32_t count) {
    struct bench *bench = open_bench(NULL, 1 << 20);
    struct kv_lineage lineage = bench->root;
    for (int32_t i = 0; i < count; i++) {
        struct kv_lineage parent = lineage;
        kv_lineage_replay(&parent, positions[i], &lineage);
        kv_tier_note_lineage(bench->tier, &lineage, &parent, positions[i]);
    }
    uint8_t *bytes = calloc(1, bench->cache.layout.block_bytes);
    assert_non_null(bytes);
    struct kv_tier_record record = {.lineage = lineage, .tokens = bench->text, .bytes = bytes};
    kv_key_make(&record.parent, &lineage, bench->text, &record.key);
    kv_tier_put_host(bench->tier, &record, 1);
    free(bytes);
    struct live live;
    struct kv_prompt prompt = {.tokens = bench->text, .count = 600, .window = WINDOW_REPLAY};
    begin(bench, &live, &prompt);
    int32_t hit = live.reuse.hit;
    assert_true(hit == 0 || hit == KV_BLOCK_TOKENS);
    run(bench, &live, 600);
    end(bench, &live);
    close_bench(bench);
    return hit > 0;
}

static void lineage_that_cannot_be_is_a_miss(void **state) {
    (void)state;
    assert_true(takes_lineage((const int32_t[]){64}, 1));
    assert_true(takes_lineage((const int32_t[]){64, 126}, 2));
    assert_false(takes_lineage((const int32_t[]){128}, 1)); /* behind its block */
    assert_false(takes_lineage((const int32_t[]){100000}, 1));
    assert_false(takes_lineage((const int32_t[]){64, 100000}, 2));
    assert_false(takes_lineage((const int32_t[]){100, 60}, 2));
    assert_false(takes_lineage((const int32_t[]){64, 64}, 2));
    assert_false(takes_lineage((const int32_t[]){65}, 1));
    assert_false(takes_lineage((const int32_t[]){WINDOW}, 1));
    assert_false(takes_lineage((const int32_t[]){0}, 1));
}

/* With no ticket free a prompt goes on without the tiers, and what they have was not evicted. */
static void prompt_without_a_ticket_was_not_read(void **state) {
    (void)state;
    struct bench *bench = open_bench(NULL, 1 << 20);
    struct kv_prompt prompt = {.tokens = bench->text, .count = 600};
    struct live live;
    begin(bench, &live, &prompt);
    run(bench, &live, prompt.count);
    end(bench, &live);
    kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
    kv_store_drop(bench->store, CACHE_TIER_TREE, 0, 1);
    struct kv_key key;
    struct kv_key parent = {0};
    kv_key_path(&parent, &bench->root, bench->text, 1, &key);
    for (uint64_t i = 0; i < KV_TIER_TICKETS; i++) {
        assert_true(kv_tier_read(bench->tier, 1000 + i, &key, 1));
    }
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, 0);
    assert_int_equal(live.reuse.miss, KV_PREFIX_MISS_NOT_READ);
    end(bench, &live);
    for (uint64_t i = 0; i < KV_TIER_TICKETS; i++) {
        kv_tier_cancel(bench->tier, 1000 + i);
    }
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, 4 * KV_BLOCK_TOKENS);
    end(bench, &live);
    close_bench(bench);
}

/* ---- time ----------------------------------------------------------------------------------- */

static uint64_t restored(struct bench *bench) {
    struct kv_store_counts counts;
    kv_store_count(bench->store, &counts);
    return counts.restored_host_blocks;
}

/* Whoever holds the engine's lock copies a few blocks only, wherever a batch ends; what was begun can
 * be given up in the middle of one. */
static void poll_takes_a_few_blocks_at_a_time(void **state) {
    (void)state;
    poll_blocks = 3;
    struct bench *bench = open_bench(NULL, 1 << 20);
    poll_blocks = 0;
    const int32_t blocks = CONTEXT / KV_BLOCK_TOKENS - 1;
    struct kv_prompt prompt = {.tokens = bench->text, .count = blocks * KV_BLOCK_TOKENS + 10};
    struct live live;
    begin(bench, &live, &prompt);
    run(bench, &live, prompt.count);
    end(bench, &live);
    for (int32_t given_up_after = 1; given_up_after <= blocks / 3 + 1; given_up_after++) {
        kv_store_drop(bench->store, CACHE_TIER_SNAPSHOTS, 0, 1);
        kv_store_drop(bench->store, CACHE_TIER_TREE, 0, 1);
        live = (struct live){.sequence = kv_cache_acquire(&bench->cache)};
        int32_t polls = 0;
        uint64_t before = restored(bench);
        bool is_waiting = true;
        while (is_waiting && polls < given_up_after) {
            is_waiting = kv_store_begin(
                             bench->store, &live.binding, live.sequence, &prompt, 1, &live.reuse
                         ) == KV_BEGIN_WAIT;
            if (is_waiting) {
                uint64_t at = restored(bench);
                int64_t again_ms = kv_store_poll(bench->store, 1);
                assert_true(restored(bench) - at <= 3);
                assert_true(again_ms <= 1 || restored(bench) - at < 3);
                polls++;
            }
        }
        if (is_waiting) {
            assert_int_equal(restored(bench) - before, blocks < 3 * polls ? blocks : 3 * polls);
            kv_store_cancel(bench->store, &live.binding, 1);
            kv_cache_release(&bench->cache, live.sequence);
        } else {
            append(bench, &live, prompt.tokens, prompt.count);
            end(bench, &live);
        }
    }
    begin(bench, &live, &prompt);
    assert_int_equal(live.reuse.hit, blocks * KV_BLOCK_TOKENS);
    run(bench, &live, prompt.count);
    end(bench, &live);
    close_bench(bench);
}

static void flush_takes_no_longer_than_allowed(void **state) {
    (void)state;
    char directory[256];
    directory_make(directory);
    struct bench *bench = open_bench(directory, 0);
    for (int32_t i = 0; i < 48; i++) { /* 6 times what the queue holds */
        struct live live;
        bench->text[0] = i;
        struct kv_prompt prompt = {.tokens = bench->text, .count = CONTEXT};
        begin(bench, &live, &prompt);
        run(bench, &live, CONTEXT);
        end(bench, &live);
    }
    struct clock clock = clock_real();
    write_us = 4000;
    int64_t started = clock_monotonic_ms(&clock);
    assert_false(kv_store_flush(bench->store, 1000, 1));
    int64_t took = clock_monotonic_ms(&clock) - started;
    assert_true(took >= 1000 && took < 2000);
    write_us = 0;
    assert_true(kv_store_flush(bench->store, 60000, 1));
    struct kv_tier_counts counts;
    kv_tier_count(bench->tier, &counts);
    assert_int_equal(counts.disk.blocks, 48 * CONTEXT / KV_BLOCK_TOKENS);
    close_bench(bench);
    directory_remove(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contract_cut_short_is_not_taken_for_exact),
        cmocka_unit_test(full_list_cut_short_stays_within_its_bound),
        cmocka_unit_test(branch_before_a_replay_does_not_depend_on_it),
        cmocka_unit_test(end_while_parked_keeps_the_windows),
        cmocka_unit_test(dropped_state_is_rebuilt_from_where_windows_reach),
        cmocka_unit_test(replay_cut_short_during_a_rebuild_begins_behind_it),
        cmocka_unit_test(lineage_that_cannot_be_is_a_miss),
        cmocka_unit_test(prompt_without_a_ticket_was_not_read),
        cmocka_unit_test(poll_takes_a_few_blocks_at_a_time),
        cmocka_unit_test(flush_takes_no_longer_than_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
