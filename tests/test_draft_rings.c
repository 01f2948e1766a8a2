/* Draft rings: the same rows however a prompt was cut, verified, shared, restored or rebuilt; what is
 * missing is not looked at; and nothing of all this touches what the target computes. */
#include "engine/kv_window.h"
#include "engine/sampler.h"
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PROMPT 100
#define JUNK   0x5a

struct world {
    struct bench bench;
    int32_t ids[512];
    uint64_t state;
};

static uint32_t draw(struct world *world, uint32_t limit) {
    uint64_t z = world->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % limit);
}

static void open_model(struct world *world, const char *model, int32_t rows_max, bool drafts) {
    *world = (struct world){.state = 7};
    struct bench_options options = {
        .model = model,
        .rows_max = rows_max,
        .sequences_max = 12,
        .context_max = 512,
        .drafts = drafts,
    };
    bench_open(&world->bench, &options);
    for (size_t i = 0; i < COUNT_OF(world->ids); i++) {
        world->ids[i] = (int32_t)draw(world, 1200);
    }
}

static void open_shaped(struct world *world, int32_t rows_max, bool drafts) {
    open_model(world, "golden/tiny-a", rows_max, drafts);
}

static void open_world(struct world *world) {
    open_shaped(world, 128, true);
}

static void close_world(struct world *world) {
    bench_close(&world->bench);
}

/* A sequence that has computed the first `count` ids. */
static struct kv_sequence *run(struct world *world, int32_t count, int32_t chunk) {
    struct kv_sequence *sequence = bench_sequence(&world->bench, world->ids, count);
    bench_run(&world->bench, sequence, count, chunk, false, NULL, NULL);
    return sequence;
}

static void release(struct world *world, struct kv_sequence *sequence) {
    kv_cache_release(&world->bench.cache, sequence);
}

static const uint8_t *
record_of(const struct bench *bench, const struct kv_sequence *x, int32_t stage, int32_t position) {
    int32_t slots = bench->config->window + bench->config->draft_block;
    size_t at = (size_t)(position % slots) * window_record_bytes(bench->config->head_dim);
    const uint8_t *record = kv_cache_draft_ring(&bench->cache, x, stage) + at;
    return bench_read(bench, record, window_record_bytes(bench->config->head_dim));
}

/* Both hold the same last `rows` rows. */
static void assert_rows_equal(
    const struct bench *a,
    const struct kv_sequence *x,
    const struct bench *b,
    const struct kv_sequence *y,
    int32_t rows
) {
    assert_int_equal(x->draft.end, y->draft.end);
    assert_true(x->draft.end - x->draft.first >= rows);
    assert_true(y->draft.end - y->draft.first >= rows);
    for (int32_t stage = 0; stage < a->config->draft_layers; stage++) {
        for (int32_t p = x->draft.end - rows; p < x->draft.end; p++) {
            assert_memory_equal(
                record_of(a, x, stage, p),
                record_of(b, y, stage, p),
                window_record_bytes(a->config->head_dim)
            );
        }
    }
}

static void propose(
    struct world *world, struct kv_sequence *sequence, int32_t token, struct draft_proposal *out
) {
    struct draft_request request = {
        .sequence = sequence, .token = token, .wanted = world->bench.config->draft_block};
    MUST(draft_propose(world->bench.draft, &request, 1, out, error));
    assert_int_equal(out->count, request.wanted);
}

static void
assert_same_proposal(const struct draft_proposal *got, const struct draft_proposal *wanted) {
    assert_int_equal(got->count, wanted->count);
    size_t count = (size_t)got->count;
    assert_memory_equal(got->ids, wanted->ids, count * sizeof *got->ids);
    assert_memory_equal(got->confidence, wanted->confidence, count * sizeof *got->confidence);
}

/* ---- prompts ---------------------------------------------------------------------------------- */

static void chunks_do_not_matter(void **state) {
    (void)state;
    static const int32_t chunks[] = {1, 3, 7, 16, 17, 64, 99};
    struct world world;
    open_world(&world);
    struct kv_sequence *whole = run(&world, PROMPT, PROMPT);
    struct draft_proposal wanted;
    int32_t window = world.bench.config->window;
    assert_int_equal(whole->draft.end, PROMPT);
    assert_int_equal(whole->draft.first, PROMPT - window);
    propose(&world, whole, 5, &wanted);
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        struct kv_sequence *cut = run(&world, PROMPT, chunks[i]);
        assert_rows_equal(&world.bench, cut, &world.bench, whole, window);
        struct draft_proposal proposal;
        propose(&world, cut, 5, &proposal);
        assert_same_proposal(&proposal, &wanted);
        release(&world, cut);
    }
    close_world(&world);
}

/* A prompt's rings cost W rows of main_proj and of each wkv, and no row of the target. */
static void prompts_run_no_row_more(void **state) {
    (void)state;
    struct world with;
    struct world without;
    open_shaped(&with, 256, true);
    open_shaped(&without, 256, false);
    struct layer_counters counts[2][MODEL_LAYERS_MAX] = {0};
    struct kv_sequence *a = bench_sequence(&with.bench, with.ids, 250);
    struct kv_sequence *b = bench_sequence(&without.bench, without.ids, 250);
    bench_run(&with.bench, a, 250, 40, false, NULL, counts[0]);
    bench_run(&without.bench, b, 250, 40, false, NULL, counts[1]);
    assert_memory_equal(counts[0], counts[1], sizeof counts[0]);
    const struct draft_counters *drafts = draft_count(with.bench.draft);
    assert_int_equal(drafts->commit_rows, with.bench.config->window);
    bench_assert_state_equal(&with.bench, a, &without.bench, b);
    close_world(&with);
    close_world(&without);
}

/* A turn that goes on keeps the rows of the last one, however short it is. */
static void turns_go_on(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    struct kv_sequence *whole = run(&world, PROMPT + 3, 128);
    struct kv_sequence *turns = bench_sequence(&world.bench, world.ids, PROMPT);
    bench_run(&world.bench, turns, PROMPT, 128, false, NULL, NULL);
    bench_append(&world.bench, turns, world.ids + PROMPT, 3);
    bench_run(&world.bench, turns, PROMPT + 3, 128, false, NULL, NULL);
    assert_int_equal(turns->draft.first, PROMPT - world.bench.config->window);
    assert_rows_equal(&world.bench, turns, &world.bench, whole, world.bench.config->window);
    close_world(&world);
}

/* ---- passes ----------------------------------------------------------------------------------- */

#define MANY 9

struct noisy {
    struct sampler *sampler;
    struct sampling sampling;
};

static int32_t draw_noisy(void *context, int32_t index, int32_t position, float *logits) {
    struct noisy *noisy = context;
    struct sampler_request request = {
        .logits = logits,
        .sampling = &noisy->sampling,
        .position = position,
        .skips_logprob = true,
    };
    struct sampled_token token;
    (void)index;
    return is_ok(sampler_draw(noisy->sampler, &request, &token, NULL)) ? token.id : -1;
}

/* Requests of one call are independent: alone, together, and in as many passes as rows allow. */
static void requests_do_not_mix(void **state) {
    (void)state;
    static const int32_t rows_max[] = {128, 7, 25, 3};
    struct draft_proposal wanted[MANY];
    for (size_t i = 0; i < (BENCH_IS_SLOW ? 2 : COUNT_OF(rows_max)); i++) {
        struct world world;
        open_shaped(&world, rows_max[i], true);
        struct noisy noisy[MANY];
        struct draft_request requests[MANY];
        for (int32_t s = 0; s < MANY; s++) {
            noisy[s] = (struct noisy
            ){.sampling = {.temperature = s % 3 * 0.7, .top_p = 0.95, .seed = 11 + (uint64_t)s}};
            MUST(sampler_create(&noisy[s].sampler, world.bench.config->vocabulary, error));
            requests[s] = (struct draft_request){
                .sequence = run(&world, 5 + 9 * s, 64 < rows_max[i] ? 64 : rows_max[i]),
                .token = world.ids[s],
                .wanted = 1 + s % world.bench.config->draft_block,
                .draw = s == 1 ? NULL : draw_noisy,
                .context = &noisy[s],
            };
        }
        struct draft_proposal got[MANY];
        if (i == 0) {
            for (int32_t s = 0; s < MANY; s++) {
                MUST(draft_propose(world.bench.draft, &requests[s], 1, &wanted[s], error));
                assert_int_equal(wanted[s].count, requests[s].wanted);
            }
        }
        uint64_t passes = draft_count(world.bench.draft)->passes;
        MUST(draft_propose(world.bench.draft, requests, MANY, got, error));
        int32_t at_once = rows_max[i] / world.bench.config->draft_block;
        int32_t expected = at_once >= MANY ? 1 : (MANY + at_once - 1) / at_once;
        assert_int_equal(draft_count(world.bench.draft)->passes - passes, expected);
        for (int32_t s = 0; s < MANY; s++) {
            assert_same_proposal(&got[s], &wanted[s]);
            sampler_destroy(noisy[s].sampler);
        }
        close_world(&world);
    }
}

/* A draw that gives up ends its own request's guesses alone. */
static int32_t give_up(void *context, int32_t index, int32_t position, float *logits) {
    (void)position;
    (void)logits;
    return index < *(const int32_t *)context ? 9 : -1;
}

static void a_draw_may_give_up(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t limits[] = {0, 1, 2};
    struct draft_request requests[3];
    struct draft_proposal proposals[3];
    for (int32_t s = 0; s < 3; s++) {
        requests[s] = (struct draft_request){
            .sequence = run(&world, 20 + s, 64),
            .token = 4,
            .wanted = 3,
            .draw = give_up,
            .context = &limits[s],
        };
    }
    MUST(draft_propose(world.bench.draft, requests, 3, proposals, error));
    for (int32_t s = 0; s < 3; s++) {
        assert_int_equal(proposals[s].count, limits[s]);
    }
    close_world(&world);
}

static void a_block_must_fit_a_step(void **state) {
    (void)state;
    struct world world;
    open_shaped(&world, 3, true);
    struct bench *bench = &world.bench;
    draft_destroy(bench->draft);
    bench->draft = NULL;
    bench->forward->options.rows_max = 2;
    struct error error = {0};
    result created = draft_create(&bench->draft, bench->forward, &error);
    assert_int_equal(created.code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "a draft block has 3 rows, but a step at most 2"));
    close_world(&world);
}

/* ---- what is missing -------------------------------------------------------------------------- */

/* Overwrites all records that do not belong to positions [first, end). */
static void spoil(struct world *world, struct kv_sequence *sequence, int32_t first, int32_t end) {
    const struct bench *bench = &world->bench;
    int32_t slots = bench->config->window + bench->config->draft_block;
    size_t bytes = window_record_bytes(bench->config->head_dim);
    for (int32_t stage = 0; stage < bench->config->draft_layers; stage++) {
        uint8_t *ring = kv_cache_draft_ring(&bench->cache, sequence, stage);
        for (int32_t slot = 0; slot < slots; slot++) {
            bool is_kept = false;
            for (int32_t p = first; p < end; p++) {
                is_kept = is_kept || p % slots == slot;
            }
            if (!is_kept) {
                bench_fill(bench, ring + (size_t)slot * bytes, JUNK, bytes);
            }
        }
    }
}

/* Runs the next ids one by one, with or without putting their rows into the rings. */
static void step(struct world *world, struct kv_sequence *sequence, int32_t count, bool commits) {
    struct draft *draft = world->bench.draft;
    for (int32_t i = 0; i < count; i++) {
        bench_append(&world->bench, sequence, &world->ids[sequence->length], 1);
        world->bench.draft = commits ? draft : NULL;
        bench_run(&world->bench, sequence, sequence->length, 1, false, NULL, NULL);
        world->bench.draft = draft;
    }
}

static void missing_rows_are_not_seen(void **state) {
    (void)state;
    static const int32_t kept[] = {0, 1, 5, 15, 16, 17, 30};
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        struct kv_sequence *sequence = run(&world, PROMPT, 128);
        step(&world, sequence, 4, false);
        step(&world, sequence, kept[i], true);
        int32_t end = PROMPT + 4 + kept[i];
        assert_int_equal(sequence->draft.first, kept[i] == 0 ? PROMPT - window : PROMPT + 4);
        assert_int_equal(sequence->draft.end, kept[i] == 0 ? PROMPT : end);
        int32_t seen = kept[i] < window ? kept[i] : window;
        assert_int_equal(draft_rows_seen(world.bench.draft, sequence), seen);
        struct draft_proposal before;
        struct draft_proposal after;
        propose(&world, sequence, 5, &before);
        spoil(&world, sequence, end - seen, end);
        propose(&world, sequence, 5, &after);
        assert_same_proposal(&after, &before);
        release(&world, sequence);
    }
    close_world(&world);
}

/* Rows that are there are seen: the oldest of the window as well, one older not. */
static void all_of_the_window_is_seen(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    struct kv_sequence *sequence = run(&world, PROMPT, 128);
    step(&world, sequence, 20, true);
    int32_t end = PROMPT + 20;
    struct draft_proposal whole;
    struct draft_proposal spoilt;
    propose(&world, sequence, 5, &whole);
    spoil(&world, sequence, end - window, end);
    propose(&world, sequence, 5, &spoilt);
    assert_same_proposal(&spoilt, &whole);
    spoil(&world, sequence, end - window + 1, end);
    propose(&world, sequence, 5, &spoilt);
    assert_memory_not_equal(
        spoilt.confidence, whole.confidence, (size_t)whole.count * sizeof *whole.confidence
    );
    close_world(&world);
}

/* ---- forks, snapshots, rebuilds ----------------------------------------------------------------- */

static void forks_go_their_own_way(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    struct kv_sequence *parent = run(&world, PROMPT, 128);
    struct kv_sequence *child = kv_cache_fork(&world.bench.cache, parent);
    assert_non_null(child);
    struct draft_proposal one;
    struct draft_proposal other;
    propose(&world, parent, 5, &one);
    propose(&world, child, 5, &other);
    assert_same_proposal(&other, &one);
    step(&world, parent, 30, true);
    propose(&world, child, 5, &other);
    assert_same_proposal(&other, &one);
    step(&world, child, 30, true);
    assert_rows_equal(&world.bench, child, &world.bench, parent, window);
    close_world(&world);
}

static struct kv_sequence *
adopt(struct world *world, const struct kv_sequence *from, int32_t kept, int32_t start) {
    struct kv_cache *cache = &world->bench.cache;
    struct kv_sequence *sequence = kv_cache_acquire(cache);
    assert_non_null(sequence);
    bench_fill(&world->bench, sequence->state, JUNK, cache->layout.state_bytes);
    for (int32_t b = 0; b * KV_BLOCK_TOKENS < kept; b++) {
        kv_block_share(cache, from->numbers[b]);
    }
    struct kv_adoption adoption = {.blocks = from->numbers, .kept = kept, .start = start};
    kv_cache_adopt(cache, sequence, &adoption);
    return sequence;
}

static void snapshots_carry_the_rings(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    struct kv_window_options options = {
        .cache = &world.bench.cache,
        .encoder_layers = world.bench.config->encoder_layers,
        .window = window,
        .bytes_max = 4 * world.bench.cache.layout.state_bytes,
    };
    struct kv_window *pool = NULL;
    MUST(kv_window_create(&pool, &options, error));
    struct kv_sequence *parent = run(&world, PROMPT, 128);
    step(&world, parent, 7, true);
    int32_t end = PROMPT + 7;
    struct draft_proposal wanted;
    struct draft_proposal got;
    propose(&world, parent, 5, &wanted);
    struct kv_snapshot about = {.kind = KV_SNAPSHOT_FULL, .expected_ms = INT64_MAX};
    uint64_t full = kv_window_capture(pool, parent, &about, 0);
    about.kind = KV_SNAPSHOT_ENCODER;
    uint64_t encoder = kv_window_capture(pool, parent, &about, 0);
    assert_true(full != 0 && encoder != 0);

    struct kv_sequence *back = adopt(&world, parent, end, end);
    assert_int_equal(back->draft.end, 0);
    assert_true(kv_window_restore(pool, full, KV_SNAPSHOT_FULL, back, 0));
    assert_int_equal(back->draft.first, parent->draft.first);
    propose(&world, back, 5, &got);
    assert_same_proposal(&got, &wanted);

    struct kv_sequence *half = adopt(&world, parent, end, end);
    half->draft = parent->draft; // whatever was there before
    assert_true(kv_window_restore(pool, encoder, KV_SNAPSHOT_ENCODER, half, 0));
    assert_int_equal(half->draft.first, 0);
    assert_int_equal(half->draft.end, 0);
    propose(&world, half, 5, &got); // from the block's own rows: junk is not seen
    spoil(&world, half, 0, 0);
    propose(&world, half, 5, &wanted);
    assert_same_proposal(&got, &wanted);
    kv_window_destroy(pool);
    close_world(&world);
}

/* Runs [computed, end) of an adopted sequence towards prompt end `end`. */
static void run_adopted(
    struct world *world,
    struct kv_sequence *sequence,
    int32_t end,
    enum window_mode mode,
    int32_t chunk
) {
    int32_t floor = mode == WINDOW_REPLAY ? end - world->bench.config->window : 0;
    while (sequence->computed < end) {
        int32_t left = end - sequence->computed;
        int32_t rows = left < chunk ? left : chunk;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = rows,
            .prompt_end = end,
            .logits = rows == left ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .window = mode,
            .window_floor_decoder = floor,
            .write_floor = sequence->kept,
        };
        MUST(forward_step(world->bench.forward, &segment, 1, NULL, error));
        MUST(draft_commit(world->bench.draft, &segment, NULL, 1, error));
    }
}

/* After a hit without any window state rows run again, and the rings come back with them, exactly. */
static void rebuilds_bring_the_rings_back(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    int32_t hit = 256;
    int32_t ends[] = {hit + 1, hit + 9, hit + 130};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        struct kv_sequence *cold = run(&world, ends[i], 128);
        int32_t start = model_rebuild_start(world.bench.config, hit, ends[i]);
        struct kv_sequence *warm = adopt(&world, cold, hit, start);
        bench_append(&world.bench, warm, world.ids + hit, ends[i] - hit);
        run_adopted(&world, warm, ends[i], WINDOW_EXACT, 50);
        assert_rows_equal(&world.bench, warm, &world.bench, cold, window);
        release(&world, warm);
        release(&world, cold);
    }
    close_world(&world);
}

/* A bounded replay runs W rows of the decoder, which are all that the rings need. */
static void replays_seed_the_rings(void **state) {
    (void)state;
    struct world world;
    open_world(&world);
    int32_t window = world.bench.config->window;
    int32_t end = 300;
    struct kv_sequence *sequence = bench_sequence(&world.bench, world.ids, end);
    run_adopted(&world, sequence, end, WINDOW_REPLAY, 128);
    assert_int_equal(sequence->draft.first, end - window);
    assert_int_equal(sequence->draft.end, end);
    struct draft_proposal proposal;
    propose(&world, sequence, 5, &proposal);
    close_world(&world);
}

/* ---- verification ------------------------------------------------------------------------------ */

/* Text that one sequence writes with guesses and another without. */
struct text {
    struct world world, plain;
    struct kv_sequence *with, *without;
    struct noisy target, stages; /* how the one and the other draw */
    float *logits;               /* [1 + B, V] of a step with drafts */
    float *wanted;               /* [V] */
    int32_t token;               /* drawn last */
    int32_t passes, guessed, accepted;
};

static void text_open(struct text *text, const char *model, double temperature, uint64_t seed) {
    *text = (struct text){.token = 5};
    open_model(&text->world, model, 128, true);
    open_model(&text->plain, model, 128, true);
    const struct model_config *config = text->world.bench.config;
    size_t vocabulary = (size_t)config->vocabulary;
    text->target.sampling = (struct sampling){.temperature = temperature, .top_p = 1, .seed = 3};
    text->stages.sampling = text->target.sampling;
    text->stages.sampling.seed = seed;
    MUST(sampler_create(&text->target.sampler, config->vocabulary, error));
    MUST(sampler_create(&text->stages.sampler, config->vocabulary, error));
    text->logits = calloc((size_t)(config->draft_block + 1) * vocabulary, sizeof *text->logits);
    text->wanted = calloc(vocabulary, sizeof *text->wanted);
    assert_true(text->logits != NULL && text->wanted != NULL);
    text->with = run(&text->world, 37, 128);
    text->without = run(&text->plain, 37, 128);
}

static void text_close(struct text *text) {
    free(text->logits);
    free(text->wanted);
    sampler_destroy(text->target.sampler);
    sampler_destroy(text->stages.sampler);
    close_world(&text->world);
    close_world(&text->plain);
}

/* Runs the token drawn last and the drafts behind it; returns how many of them are what the target
 * draws, and draws what follows. */
static int32_t verify(struct text *text, const int32_t *drafts, int32_t count) {
    struct bench *bench = &text->world.bench;
    struct kv_sequence *sequence = text->with;
    int32_t vocabulary = bench->config->vocabulary;
    int32_t position = sequence->computed;
    bench_append(bench, sequence, &text->token, 1);
    bench_append(bench, sequence, drafts, count);
    struct forward_segment segment = {
        .sequence = sequence,
        .position = position,
        .count = 1 + count,
        .prompt_end = position + 1 + count,
        .logits = FORWARD_LOGITS_ALL,
        .drafted = count,
    };
    MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    MUST(forward_logits(bench->forward, 0, 1 + count, text->logits, error));
    int32_t kept = 0;
    int32_t drawn;
    do {
        float *row = text->logits + (size_t)kept * (size_t)vocabulary;
        kept++;
        drawn = draw_noisy(&text->target, 0, position + kept, row);
    } while (kept <= count && drawn == drafts[kept - 1]);
    text->token = drawn;
    if (count > 0) {
        forward_keep(bench->forward, &kept);
        kv_cache_truncate(sequence, position + kept);
    }
    MUST(draft_commit(bench->draft, &segment, &kept, 1, error));
    assert_int_equal(sequence->computed, position + kept);
    assert_int_equal(sequence->draft.end, position + kept);
    return kept - 1;
}

/* The same tokens one by one: logits, caches and rings are equal. */
static void compare_plain(struct text *text, const int32_t *tokens, int32_t count) {
    size_t vocabulary = (size_t)text->plain.bench.config->vocabulary;
    struct kv_sequence *sequence = text->without;
    for (int32_t i = 0; i < count; i++) {
        bench_append(&text->plain.bench, sequence, &tokens[i], 1);
        bench_run(&text->plain.bench, sequence, sequence->length, 1, false, text->wanted, NULL);
        assert_memory_equal(
            text->logits + (size_t)i * vocabulary, text->wanted, vocabulary * sizeof(float)
        );
    }
    bench_assert_state_equal(&text->world.bench, text->with, &text->plain.bench, sequence);
    int32_t window = text->world.bench.config->window;
    int32_t rows = text->with->draft.end - text->with->draft.first;
    assert_rows_equal(
        &text->world.bench, text->with, &text->plain.bench, sequence, rows < window ? rows : window
    );
}

/* Text with guesses of the stages, and now and then with arbitrary ones of any number. */
static void write_text(struct text *text, int32_t steps) {
    int32_t block = text->world.bench.config->draft_block;
    for (int32_t n = 0; n < steps; n++) {
        int32_t tokens[1 + DRAFT_BLOCK_MAX] = {text->token};
        struct draft_proposal proposal = {0};
        if (n % 4 == 3) {
            proposal.count = (int32_t)draw(&text->world, (uint32_t)block + 1);
            for (int32_t i = 0; i < proposal.count; i++) {
                proposal.ids[i] = (int32_t)draw(&text->world, 1200);
            }
        } else {
            struct draft_request request = {
                .sequence = text->with,
                .token = text->token,
                .wanted = block,
                .draw = draw_noisy,
                .context = &text->stages,
            };
            MUST(draft_propose(text->world.bench.draft, &request, 1, &proposal, error));
            text->passes++;
        }
        memcpy(tokens + 1, proposal.ids, (size_t)proposal.count * sizeof *tokens);
        int32_t accepted = verify(text, proposal.ids, proposal.count);
        compare_plain(text, tokens, 1 + accepted);
        text->accepted += n % 4 == 3 ? 0 : accepted;
    }
}

/* With drafts everything is as without, greedy and sampled; and some of the stages' are right, when
 * they draw with the target's noise more than with another. */
static void verified_text_is_the_same(void **state) {
    (void)state;
    static const struct {
        const char *model;
        double temperature;
        uint64_t seed;
    } cases[] = {
        {"golden/tiny-a", 0, 3},
        {"golden/tiny-a", 1, 3},
        {"golden/tiny-a", 1, 4},
        {"golden/tiny-b", 0.7, 3},
    };
    int32_t accepted[COUNT_OF(cases)] = {0};
    char path[TEST_PATH_MAX];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (!bench_find_model(path, cases[i].model)) {
            continue;
        }
        struct text text;
        text_open(&text, cases[i].model, cases[i].temperature, cases[i].seed);
        write_text(&text, BENCH_IS_SLOW ? 30 : 120);
        accepted[i] = text.accepted;
        if (getenv("HEARTH_TEST_VERBOSE") != NULL) {
            print_message(
                "%s, temperature %g: %d guesses right in %d passes\n",
                cases[i].model,
                cases[i].temperature,
                text.accepted,
                text.passes
            );
        }
        text_close(&text);
    }
    assert_true(accepted[0] > 0);
    assert_true(BENCH_IS_SLOW || accepted[1] > accepted[2]);
}

/* One step with a prompt's end, another's middle, and verified rows puts the right rows into each. */
static void segments_do_not_mix(void **state) {
    (void)state;
    struct world world;
    struct world alone;
    open_world(&world);
    open_world(&alone);
    int32_t window = world.bench.config->window;
    struct kv_sequence *verified = run(&world, 50, 64);
    struct kv_sequence *ending = bench_sequence(&world.bench, world.ids, 60);
    struct kv_sequence *middle = bench_sequence(&world.bench, world.ids, 200);
    bench_append(&world.bench, verified, world.ids + 50, 4);
    struct forward_segment segments[] = {
        {.sequence = ending, .count = 60, .prompt_end = 60, .logits = FORWARD_LOGITS_LAST},
        {.sequence = verified,
         .position = 50,
         .count = 4,
         .prompt_end = 54,
         .logits = FORWARD_LOGITS_ALL,
         .drafted = 3},
        {.sequence = middle, .count = 40, .prompt_end = 200},
    };
    MUST(forward_step(world.bench.forward, segments, 3, NULL, error));
    int32_t kept[] = {0, 2, 0};
    forward_keep(world.bench.forward, kept);
    MUST(draft_commit(world.bench.draft, segments, kept, 3, error));
    kv_cache_truncate(verified, 52);
    assert_int_equal(middle->draft.end, 0);
    assert_int_equal(ending->draft.end, 60);
    struct kv_sequence *other = run(&alone, 60, 128);
    assert_rows_equal(&world.bench, ending, &alone.bench, other, window);
    struct kv_sequence *third = run(&alone, 50, 128);
    step(&alone, third, 2, true);
    assert_rows_equal(&world.bench, verified, &alone.bench, third, window);
    close_world(&world);
    close_world(&alone);
}

/* ---- models ------------------------------------------------------------------------------------ */

static void models_say_whether_they_have_stages(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct model *model = NULL;
    assert_true(bench_find_model(path, "golden/tiny-a"));
    MUST(model_open(path, &model, error));
    assert_true(model->has_draft);
    int32_t targets = model->config.draft_target_count;
    assert_int_equal(model->draft.main_proj.in, targets * model->config.hidden);
    assert_non_null(model->draft.confidence.data);
    assert_non_null(model->layers[model->config.layers + 1].routed[7].w2.scale);
    model_close(model);
    if (bench_find_model(path, "mini")) {
        MUST(model_open(path, &model, error));
        assert_false(model->has_draft);
        model_close(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(prompts_run_no_row_more),
        cmocka_unit_test(turns_go_on),
        cmocka_unit_test(requests_do_not_mix),
        cmocka_unit_test(a_draw_may_give_up),
        cmocka_unit_test(a_block_must_fit_a_step),
        cmocka_unit_test(missing_rows_are_not_seen),
        cmocka_unit_test(all_of_the_window_is_seen),
        cmocka_unit_test(forks_go_their_own_way),
        cmocka_unit_test(snapshots_carry_the_rings),
        cmocka_unit_test(rebuilds_bring_the_rings_back),
        cmocka_unit_test(replays_seed_the_rings),
        cmocka_unit_test(verified_text_is_the_same),
        cmocka_unit_test(segments_do_not_mix),
        cmocka_unit_test(models_say_whether_they_have_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
