/* Sequences that take turns in few window slots give the bits of sequences that never do: parked and
 * brought back, or dropped and rebuilt, inside prompts, during rebuilds, while they decode, whatever
 * replays they depend on, forked and destroyed while they are parked. Random runs of the KV store over
 * the forward pass, as the engine drives them; each generation is done again alone, cold, by its
 * contract. Blocks are too few for all: whoever was promised blocks never lacks one. */
#include "engine/kv_store.h"
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define AGENTS       5
#define WINDOWS      2
#define SNAPSHOTS    4
#define CONTEXT_MAX  900
#define DECODE_MAX   6
#define RECORDS      8
#define ROWS_MAX     96
#define TRUNK        260
#define BLOCKS_SPARE 2 /* beside two contexts */

struct agent {
    struct kv_sequence *sequence; /* null: none */
    struct kv_binding binding;
    bool is_running;
    int32_t prompt;      /* N of the generation */
    int32_t prompt_end;  /* what segments say: N, or the length at the last rebuild */
    int32_t decode;      /* tokens drawn after it */
    int32_t logit_count; /* of max(1, decode) */
    int32_t known;       /* tokens of a sequence that ended; 0: none */
    int32_t ids[CONTEXT_MAX];
    float *logits; /* [DECODE_MAX, V] */
};

/* A generation that depended on replays, to be done again by contract. */
struct record {
    int32_t prompt;
    int32_t ids[CONTEXT_MAX];
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    int32_t replay_count;
};

enum moment {
    INSIDE_PROMPT,
    INSIDE_REBUILD,
    DECODE_EVEN,
    DECODE_ODD,
    IDLE,
    BEFORE_CONTRACT, /* an encoder replay of a contract is due */
    AFTER_REPLAY,    /* content depends on an encoder replay */
    MOMENTS
};
static const char *const moment_names[MOMENTS] = {
    "inside a prompt",
    "inside a rebuild",
    "decode at even positions",
    "at odd ones",
    "idle",
    "before a contract's replay",
    "after an encoder replay",
};

struct turns {
    struct bench bench, cold;
    struct kv_store *store, *cold_store;
    const char *model;
    int32_t context;
    bool has_replays;
    uint64_t seed;
    struct agent agents[AGENTS];
    struct record records[RECORDS];
    int32_t record_count;
    int32_t trunk[CONTEXT_MAX];
    int64_t now_ms;
    float *logits;
    long generations, contracts, refused, forks_of_parked, ends_parked, snapshot_hits, cancels;
    long parked[MOMENTS], rebuilt[MOMENTS];
    enum moment moments[AGENTS]; /* when each was parked last */
};

static int32_t draw(struct turns *turns, int32_t below) {
    turns->seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = turns->seed;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int32_t)((z ^ z >> 31) % (uint64_t)below);
}

static bool chance(struct turns *turns, int32_t percent) {
    return draw(turns, 100) < percent;
}

/* ---- life ----------------------------------------------------------------------------------- */

static struct kv_store *
open_store(struct bench *bench, const struct kv_cache_shape *shape, bool keeps_nothing) {
    struct kv_layout layout = bench->cache.layout;
    kv_cache_deinit(&bench->cache);
    MUST(kv_cache_init_shape(&bench->cache, bench->backend, &layout, shape, error));
    struct kv_store_options options = {
        .cache = &bench->cache,
        .window = bench->config->window,
        .encoder_layers = bench->config->encoder_layers,
        .layers = bench->config->layers,
        .hash_key = 1,
        .leases_max = 2 * AGENTS,
        .snapshot_bytes = SNAPSHOTS * layout.state_bytes,
        .keeps_nothing = keeps_nothing,
    };
    struct kv_store *store = NULL;
    MUST(kv_store_create(&store, &options, error));
    return store;
}

static struct turns *open_turns(const char *model, int32_t context, bool has_replays) {
    char path[TEST_PATH_MAX];
    if (!bench_find_model(path, model)) {
        print_message("SKIPPED %s: set HEARTH_TEST_DATA\n", model);
        skip();
    }
    struct turns *turns = calloc(1, sizeof *turns);
    assert_non_null(turns);
    turns->model = model;
    turns->context = context;
    turns->has_replays = has_replays;
    struct bench_options options = {
        .model = model,
        .rows_max = ROWS_MAX,
        .sequences_max = AGENTS,
        .context_max = context,
    };
    bench_open(&turns->bench, &options);
    options.sequences_max = 1;
    options.rows_max = 512;
    bench_open(&turns->cold, &options);
    int32_t blocks = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    struct kv_cache_shape shape = {
        .context_max = context,
        .sequences_max = AGENTS,
        .block_total = 2 * blocks + BLOCKS_SPARE,
        .windows_max = WINDOWS,
    };
    turns->store = open_store(&turns->bench, &shape, false);
    shape = (struct kv_cache_shape){.context_max = context, .sequences_max = 1};
    turns->cold_store = open_store(&turns->cold, &shape, true);
    size_t row = (size_t)turns->bench.config->vocabulary * sizeof(float);
    turns->logits = malloc(row);
    assert_non_null(turns->logits);
    for (int32_t i = 0; i < AGENTS; i++) {
        turns->agents[i].logits = calloc(DECODE_MAX, row);
        assert_non_null(turns->agents[i].logits);
    }
    return turns;
}

static void close_turns(struct turns *turns) {
    kv_store_destroy(turns->store);
    kv_store_destroy(turns->cold_store);
    assert_int_equal(turns->bench.cache.block_free_count, turns->bench.cache.block_total);
    assert_int_equal(turns->bench.cache.window_free_count, WINDOWS);
    for (int32_t i = 0; i < AGENTS; i++) {
        free(turns->agents[i].logits);
    }
    bench_close(&turns->bench);
    bench_close(&turns->cold);
    free(turns->logits);
    free(turns);
}

/* ---- each generation once more -------------------------------------------------------------- */

static void step_of(
    struct bench *bench,
    struct kv_store *store,
    struct kv_binding *binding,
    int32_t prompt_end,
    int32_t rows_wanted,
    float *logits
) {
    struct kv_sequence *kv = binding->sequence;
    bool is_prompt = kv->computed < prompt_end;
    int32_t left = (is_prompt ? prompt_end : kv->length) - kv->computed;
    int32_t rows = kv_store_rows(binding, rows_wanted < left ? rows_wanted : left);
    int32_t end = kv->computed + rows;
    struct forward_segment segment = {
        .sequence = kv,
        .position = kv->computed,
        .count = rows,
        .prompt_end = is_prompt ? prompt_end : end,
        .logits = rows == left ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
        .window = is_prompt && binding->is_replay ? WINDOW_REPLAY : WINDOW_EXACT,
        .window_floor_encoder = kv->computed < kv->kept ? binding->encoder_floor : 0,
        .window_floor_decoder = kv->decoder_floor,
        .write_floor = kv->kept,
    };
    MUST(forward_step(bench->forward, &segment, 1, NULL, error));
    if (rows == left) {
        MUST(forward_logits(bench->forward, 0, 1, logits, error));
    }
    kv_store_advance(store, binding, 1);
}

/* Alone and cold, by the list of replays: the same logits, and the same caches when none narrows what
 * can be compared. */
static void check_generation(struct turns *turns, const struct agent *agent) {
    struct bench *cold = &turns->cold;
    size_t row = (size_t)cold->config->vocabulary;
    struct kv_binding binding = {0};
    struct kv_sequence *kv = kv_cache_acquire(&cold->cache);
    assert_non_null(kv);
    const struct kv_prompt prompt = {
        .tokens = agent->ids,
        .count = agent->prompt,
        .has_contract = true,
        .contract = agent->binding.replays,
        .contract_count = agent->binding.replay_count,
    };
    MUST(kv_store_check_contract(
        turns->cold_store, prompt.contract, prompt.contract_count, prompt.count, error
    ));
    struct kv_reuse reuse;
    enum kv_begin begun = kv_store_begin(turns->cold_store, &binding, kv, &prompt, 1, &reuse);
    assert_int_equal(begun, KV_BEGIN_READY);
    bench_append(cold, kv, agent->ids, agent->prompt);
    for (int32_t i = 0; i < agent->logit_count; i++) {
        while (kv->computed < kv->length) {
            step_of(cold, turns->cold_store, &binding, agent->prompt, 512, turns->logits);
        }
        assert_memory_equal(turns->logits, agent->logits + (size_t)i * row, row * sizeof(float));
        if (i + 1 < agent->logit_count) {
            bench_append(cold, kv, agent->ids + kv->length, 1);
        }
    }
    if (agent->binding.replay_count == 0) {
        bench_assert_state_equal(&turns->bench, agent->sequence, cold, kv);
    }
    kv_store_end(turns->cold_store, &binding, 1);
    kv_cache_release(&cold->cache, kv);
    turns->generations++;
}

/* ---- what agents do ------------------------------------------------------------------------- */

static enum moment moment_of(const struct agent *agent) {
    const struct kv_sequence *kv = agent->sequence;
    if (agent->binding.repeat >= 0) {
        return BEFORE_CONTRACT;
    }
    for (int32_t i = 0; i < agent->binding.replay_count; i++) {
        if (agent->binding.replays[i].kind == WINDOW_REPLAY_ENCODER) {
            return AFTER_REPLAY;
        }
    }
    if (kv->computed < kv->kept) {
        return INSIDE_REBUILD;
    }
    if (!agent->is_running) {
        return IDLE;
    }
    if (kv->computed < agent->prompt) {
        return INSIDE_PROMPT;
    }
    return kv->computed % 2 == 0 ? DECODE_EVEN : DECODE_ODD;
}

static void park(struct turns *turns, struct agent *agent) {
    if (agent->sequence->state != NULL) {
        enum moment moment = moment_of(agent);
        turns->parked[moment]++;
        turns->moments[agent - turns->agents] = moment;
    }
    kv_store_park(turns->store, &agent->binding, agent->is_running, turns->now_ms);
    assert_null(agent->sequence->state);
}

/* Somebody else gives up a window slot, when all are taken. */
static void make_slot(struct turns *turns, const struct agent *agent) {
    while (turns->bench.cache.window_free_count == 0) {
        struct agent *other = &turns->agents[draw(turns, AGENTS)];
        if (other != agent && other->sequence != NULL && other->sequence->state != NULL) {
            park(turns, other);
        }
    }
}

static void resume(struct turns *turns, struct agent *agent) {
    struct kv_resumption resumption;
    int32_t end = agent->sequence->length;
    int32_t computed = agent->sequence->computed;
    bool has_slot = turns->bench.cache.window_free_count > 0;
    bool resumed = kv_store_resume(turns->store, &agent->binding, end, turns->now_ms, &resumption);
    assert_int_equal(resumed, has_slot);
    if (!has_slot) {
        assert_int_equal(agent->sequence->computed, computed);
        make_slot(turns, agent);
        assert_true(kv_store_resume(turns->store, &agent->binding, end, turns->now_ms, &resumption)
        );
    }
    assert_non_null(agent->sequence->state);
    if (resumption.is_rebuilt) {
        turns->rebuilt[turns->moments[agent - turns->agents]]++;
        agent->prompt_end = end;
        /* What is left over from others must not be read. */
        memset(agent->sequence->state, 0x78, turns->bench.cache.layout.state_bytes);
    } else {
        assert_int_equal(agent->sequence->computed, computed);
    }
}

static void stop(struct turns *turns, struct agent *agent) {
    agent->is_running = false;
    assert_true(kv_store_commit(turns->store, agent->sequence, 0));
}

static void finish(struct turns *turns, struct agent *agent) {
    check_generation(turns, agent);
    stop(turns, agent);
    bool has_encoder = false;
    for (int32_t i = 0; i < agent->binding.replay_count; i++) {
        has_encoder = has_encoder || agent->binding.replays[i].kind == WINDOW_REPLAY_ENCODER;
    }
    if (agent->binding.replay_count > 0 && (has_encoder || chance(turns, 20))) {
        struct record *record = &turns->records[turns->record_count++ % RECORDS];
        record->prompt = agent->prompt;
        memcpy(record->ids, agent->ids, sizeof record->ids);
        memcpy(record->replays, agent->binding.replays, sizeof record->replays);
        record->replay_count = agent->binding.replay_count;
    }
}

static void run(struct turns *turns, struct agent *agent) {
    struct kv_sequence *kv = agent->sequence;
    if (kv->state == NULL) {
        resume(turns, agent);
    }
    size_t row = (size_t)turns->bench.config->vocabulary;
    float *logits = agent->logits + (size_t)agent->logit_count * row;
    int32_t rows = 1 + draw(turns, ROWS_MAX);
    step_of(&turns->bench, turns->store, &agent->binding, agent->prompt_end, rows, logits);
    if (kv->computed < kv->length) {
        return;
    }
    agent->logit_count++;
    if (agent->logit_count <= agent->decode) {
        bench_append(&turns->bench, kv, agent->ids + kv->length, 1);
    }
    if (agent->logit_count >= agent->decode) {
        finish(turns, agent);
    }
}

/* The rest of the context is drawn at once: what is "sampled" is known beforehand. */
static void draw_rest(struct turns *turns, struct agent *agent, int32_t from) {
    for (int32_t i = from; i < turns->context; i++) {
        agent->ids[i] = 3 + draw(turns, 1000);
    }
}

static void start(struct agent *agent, int32_t prompt) {
    agent->is_running = true;
    agent->prompt = prompt;
    agent->prompt_end = prompt;
    agent->logit_count = 0;
}

static enum window_mode draw_window(struct turns *turns) {
    return turns->has_replays && chance(turns, 60) ? WINDOW_REPLAY : WINDOW_EXACT;
}

/* A new text, one that branches off another, or what ended here and goes on. */
static void draw_text(struct turns *turns, struct agent *agent) {
    const struct agent *other = &turns->agents[draw(turns, AGENTS)];
    int32_t most = TRUNK;
    const int32_t *from = turns->trunk;
    bool returns = agent->known > 0 && chance(turns, 50);
    if (returns) {
        most = agent->known;
        from = agent->ids;
    } else if (other != agent && other->sequence != NULL && chance(turns, 60)) {
        most = other->sequence->length;
        from = other->ids;
    }
    int32_t shared = most - (returns || chance(turns, 50) ? 0 : draw(turns, most));
    memmove(agent->ids, from, (size_t)shared * sizeof *agent->ids);
    draw_rest(turns, agent, shared);
}

static void create(struct turns *turns, struct agent *agent) {
    struct kv_prompt prompt = {.tokens = agent->ids, .window = draw_window(turns)};
    agent->decode = draw(turns, DECODE_MAX + 1);
    if (turns->record_count > 0 && chance(turns, 30)) {
        int32_t known = turns->record_count < RECORDS ? turns->record_count : RECORDS;
        const struct record *record = &turns->records[draw(turns, known)];
        memcpy(agent->ids, record->ids, sizeof agent->ids);
        prompt.count = record->prompt;
        prompt.has_contract = true;
        prompt.contract = record->replays;
        prompt.contract_count = record->replay_count;
        turns->contracts++;
    } else {
        draw_text(turns, agent);
        int32_t most = turns->context - DECODE_MAX;
        prompt.count = 1 + draw(turns, most);
        if (agent->known > 0 && chance(turns, 70)) {
            prompt.count = agent->known + 1 + draw(turns, 60);
            prompt.count = prompt.count < most ? prompt.count : most;
        }
    }
    agent->known = 0;
    agent->sequence = kv_cache_acquire_idle(&turns->bench.cache);
    assert_non_null(agent->sequence);
    agent->binding = (struct kv_binding){0};
    if (!kv_store_commit(turns->store, agent->sequence, prompt.count + agent->decode)) {
        kv_cache_release(&turns->bench.cache, agent->sequence);
        agent->sequence = NULL;
        turns->refused++;
        return;
    }
    struct kv_reuse reuse;
    enum kv_begin wanted =
        turns->bench.cache.window_free_count > 0 ? KV_BEGIN_READY : KV_BEGIN_WINDOW;
    enum kv_begin begun = kv_store_begin(
        turns->store, &agent->binding, agent->sequence, &prompt, turns->now_ms, &reuse
    );
    assert_int_equal(begun, wanted);
    if (begun == KV_BEGIN_WINDOW) {
        make_slot(turns, agent);
        begun = kv_store_begin(
            turns->store, &agent->binding, agent->sequence, &prompt, turns->now_ms, &reuse
        );
        assert_int_equal(begun, KV_BEGIN_READY);
    }
    turns->snapshot_hits += strcmp(reuse.window_source, "snapshot") == 0;
    int32_t hit = agent->sequence->length;
    bench_append(&turns->bench, agent->sequence, agent->ids + hit, prompt.count - hit);
    start(agent, prompt.count);
}

static void append(struct turns *turns, struct agent *agent) {
    struct kv_sequence *kv = agent->sequence;
    int32_t room = turns->context - kv->length - DECODE_MAX;
    if (room < 1) {
        return;
    }
    int32_t count = 1 + draw(turns, room < 80 ? room : 80);
    agent->decode = draw(turns, DECODE_MAX + 1);
    int32_t end = kv->length + count;
    if (!kv_store_commit(turns->store, kv, end + agent->decode)) {
        turns->refused++;
        return;
    }
    MUST(kv_cache_reserve(&turns->bench.cache, kv, end, error));
    kv_store_extend(turns->store, &agent->binding, end, draw_window(turns));
    bench_append(&turns->bench, kv, agent->ids + kv->length, count);
    start(agent, end);
}

static void fork_agent(struct turns *turns, struct agent *parent) {
    struct agent *child = NULL;
    for (int32_t i = 0; i < AGENTS; i++) {
        child = turns->agents[i].sequence == NULL ? &turns->agents[i] : child;
    }
    if (child == NULL) {
        return;
    }
    float *logits = child->logits;
    bool has_slot = turns->bench.cache.window_free_count > 0;
    *child = *parent;
    child->logits = logits;
    child->sequence = kv_cache_fork(&turns->bench.cache, parent->sequence);
    assert_non_null(child->sequence);
    child->binding = (struct kv_binding){0};
    kv_store_fork(turns->store, &parent->binding, &child->binding, child->sequence, turns->now_ms);
    bool is_parked = parent->sequence->state == NULL;
    assert_int_equal(child->sequence->state != NULL, !is_parked && has_slot);
    turns->forks_of_parked += is_parked && parent->binding.parked != 0;
    turns->moments[child - turns->agents] = moment_of(child);
    draw_rest(turns, child, child->sequence->length);
}

static void end(struct turns *turns, struct agent *agent) {
    turns->ends_parked += agent->binding.parked != 0;
    agent->known = agent->sequence->computed;
    kv_store_end(turns->store, &agent->binding, turns->now_ms);
    kv_cache_release(&turns->bench.cache, agent->sequence);
    agent->sequence = NULL;
}

static void act(struct turns *turns) {
    struct agent *agent = &turns->agents[draw(turns, AGENTS)];
    if (agent->sequence == NULL) {
        if (chance(turns, 40)) {
            create(turns, agent);
        }
    } else if (chance(turns, 20)) {
        park(turns, agent);
    } else if (agent->is_running) {
        if (chance(turns, 3) && agent->sequence->computed < agent->prompt) {
            stop(turns, agent);
            turns->cancels++;
        } else {
            run(turns, agent);
        }
    } else {
        int32_t kind = draw(turns, 10);
        if (kind < 5) {
            append(turns, agent);
        } else if (kind < 7) {
            fork_agent(turns, agent);
        } else if (kind < 9) {
            end(turns, agent);
        } else {
            kv_store_tell(
                turns->store, &agent->binding, SEQUENCE_WAITING, draw(turns, 1000), turns->now_ms
            );
        }
    }
    bool is_due = agent->sequence != NULL && agent->binding.repeat >= 0 && chance(turns, 50);
    if (is_due) {
        park(turns, agent);
    }
    if (chance(turns, is_due ? 50 : 3)) {
        kv_store_drop(turns->store, CACHE_TIER_SNAPSHOTS, 0, turns->now_ms);
    } else if (chance(turns, 2)) {
        kv_store_drop(turns->store, CACHE_TIER_TREE, 0, turns->now_ms);
    }
    turns->now_ms += draw(turns, 50);
    MUST(kv_cache_check(&turns->bench.cache, error));
}

#define LONG 50 /* generations that meet everything */

static void
run_turns(const char *model, int32_t context, bool has_replays, uint64_t seed, long generations) {
    struct turns *turns = open_turns(model, context, has_replays);
    turns->seed = seed;
    for (int32_t i = 0; i < CONTEXT_MAX; i++) {
        turns->trunk[i] = 3 + draw(turns, 1000);
    }
    print_message(
        "%s%s, seed %llu\n", model, has_replays ? " with replays" : "", (unsigned long long)seed
    );
    while (turns->generations < generations) {
        act(turns);
    }
    for (int32_t i = 0; i < AGENTS; i++) {
        if (turns->agents[i].sequence != NULL) {
            end(turns, &turns->agents[i]);
        }
    }
    MUST(kv_store_check(turns->store, error));
    struct kv_store_counts counts;
    kv_store_count(turns->store, &counts);
    print_message(
        "  %ld generations (%ld by contract), %ld refused, %ld cancels, %ld forks of parked ones, "
        "%ld ended parked, %ld prompts from snapshots\n",
        turns->generations,
        turns->contracts,
        turns->refused,
        turns->cancels,
        turns->forks_of_parked,
        turns->ends_parked,
        turns->snapshot_hits
    );
    bool is_long = generations >= LONG; /* a short run meets some of the moments only */
    for (int32_t i = 0; i < MOMENTS; i++) {
        print_message(
            "  %s: parked %ld, rebuilt %ld\n", moment_names[i], turns->parked[i], turns->rebuilt[i]
        );
        bool is_of_replays = i == BEFORE_CONTRACT || i == AFTER_REPLAY;
        if (is_long && is_of_replays == has_replays && getenv("HEARTH_TURNS_SEED") == NULL) {
            assert_true(turns->parked[i] > 0 && turns->rebuilt[i] > 0);
        }
    }
    assert_true(turns->refused > 0 || !is_long);
    close_turns(turns);
}

static uint64_t seed_of(uint64_t seed) {
    const char *text = getenv("HEARTH_TURNS_SEED");
    (void)(text != NULL && parse_u64(view_of_text(text), &seed));
    return seed;
}

static void turns_give_the_bits_of_sequences_alone(void **state) {
    (void)state;
    run_turns("golden/tiny-a", 500, false, seed_of(1), BENCH_IS_SLOW ? 10 : 80);
}

static void turns_with_replays_give_the_bits_of_their_contracts(void **state) {
    (void)state;
    run_turns("golden/tiny-a", 500, true, seed_of(3), BENCH_IS_SLOW ? 10 : 90);
}

static void turns_of_another_model_give_the_same_bits(void **state) {
    (void)state;
    run_turns("golden/tiny-b", 700, false, seed_of(3), BENCH_IS_SLOW ? 2 : 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_give_the_bits_of_sequences_alone),
        cmocka_unit_test(turns_with_replays_give_the_bits_of_their_contracts),
        cmocka_unit_test(turns_of_another_model_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
