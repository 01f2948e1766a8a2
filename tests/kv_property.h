/* The property of the KV store: whatever was cached, shared, evicted, restored or replayed before, a
 * generation gives the bits of a cold run. A world is an engine under test with its sequences, a
 * second engine without a prefix cache that recomputes every generation, and a log of what was done.
 *
 * Failures are kept in the world, not thrown, so that a scenario can be run again without some of
 * its steps. Thread: one. */
#ifndef HEARTH_TESTS_KV_PROPERTY_H
#define HEARTH_TESTS_KV_PROPERTY_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "test_safetensors.h"

#define PROPERTY_SEQUENCES_MAX 5
#define PROPERTY_CONTEXT_MAX   1500
#define PROPERTY_SAMPLES_MAX   16
#define PROPERTY_TEXTS         16

struct property_model {
    const char *name; /* "golden/tiny-a", ... */
    int32_t window, encoder_layers, layers;
    int32_t context; /* long enough for rebuilds that start above 0 */
};

/* What happened, over all worlds: a proof that never reused anything proves nothing. */
enum coverage_kind {
    COVERAGE_GENERATIONS,
    COVERAGE_SAMPLED,
    COVERAGE_COLD,
    COVERAGE_LIVE,
    COVERAGE_HITS,
    COVERAGE_WHOLE_HITS,
    COVERAGE_INNER_HITS,
    COVERAGE_ODD_HITS,
    COVERAGE_SNAPSHOT_HITS,
    COVERAGE_REBUILDS,
    COVERAGE_PARTIAL_REBUILDS,
    COVERAGE_ENCODER_REPLAYS,
    COVERAGE_DECODER_REPLAYS,
    COVERAGE_CONTRACTS,
    COVERAGE_HOST_RESTORES,
    COVERAGE_DISK_RESTORES,
    COVERAGE_FORKS,
    COVERAGE_INNER_FORKS,
    COVERAGE_CANCELS,
    COVERAGE_DROPS,
    COVERAGE_RESTARTS,
    COVERAGE_EVICTED,
    COVERAGE_LEAST_HITS_CHECKED,
    COVERAGE_KINDS
};
extern const char *const coverage_names[COVERAGE_KINDS];
struct coverage {
    long counts[COVERAGE_KINDS];
};

struct random {
    uint64_t state;
};
uint64_t random_next(struct random *random);
/* In [low, high]. */
int32_t random_range(struct random *random, int32_t low, int32_t high);
bool random_chance(struct random *random, int32_t percent);

/* One generation, from the request to its end. */
struct generation {
    bool is_running, is_first, has_contract, has_finished;
    int32_t old_count, prompt_count, tokens_max;
    int32_t least_hit; /* whole blocks of the prompt that were computed before it began */
    struct sampling sampling;
    enum window_mode window;
    struct window_replay contract[ENGINE_REPLAYS_MAX];
    int32_t contract_count;
    int32_t cancel_after; /* events; -1: never */
    int32_t events, count;
    int32_t tokens[PROPERTY_SAMPLES_MAX];
    float logprobs[PROPERTY_SAMPLES_MAX];
    enum finish_reason reason;
    struct generation_facts facts;
    char error[256];
};

struct live {
    bool used;
    bool is_exact; /* never asked for replay, nor did what it was forked from */
    uint64_t id;
    int32_t count;
    int32_t ids[PROPERTY_CONTEXT_MAX];
    struct generation generation;
};

/* A context that was there once, or invented; prompts branch off it. */
struct text {
    int32_t count;
    int32_t computed; /* exactly, by the engine that is open; 0: not */
    int32_t ids[PROPERTY_CONTEXT_MAX];
    bool has_record; /* its last generation, to be done again by contract */
    int32_t prompt_count;
    struct generation record;
};

struct waker {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    int wakes;
};

struct world {
    const struct property_model *model;
    char model_path[TEST_PATH_MAX];
    char folder[TEST_PATH_MAX]; /* of the disk tier, removed at the end */
    uint64_t seed;
    bool has_disk, has_replays, has_no_snapshots, has_tiny_pool, has_host, has_clock;
    struct engine *engine, *cold;
    struct engine_info info;
    int32_t sequences_max;
    struct waker waker, cold_waker;
    atomic_llong clock_offset_ms;
    struct live lives[PROPERTY_SEQUENCES_MAX];
    struct text texts[PROPERTY_TEXTS];
    int32_t text_count, text_next;
    struct coverage *coverage;
    char step_text[512]; /* what the step at hand does */
    struct buffer log;   /* steps so far, a line each */
    char failure[1024];  /* "": none */
    float *logits, *cold_logits;
};

#define FAIL_WORLD(world, ...) world_fail((world), __VA_ARGS__)
void world_fail(struct world *world, const char *format, ...) PRINTF_LIKE(2, 3);
bool world_has_failed(const struct world *world);
/* The count of that kind. */
long *cover(struct world *world, enum coverage_kind kind);
/* Adds to the description of the step. */
void world_say(struct world *world, const char *format, ...) PRINTF_LIKE(2, 3);

/* The second engine is opened by the caller and stays from world to world. */
struct engine *
property_open_cold(const struct property_model *model, const char *path, struct waker *waker);
void waker_init(struct waker *waker);

/* Opens the engine under test with options drawn from `random`. */
void world_open(struct world *world, struct random *random);
void world_close(struct world *world);

struct live *world_create(struct world *world);
struct live *world_fork(struct world *world, const struct live *parent);
void world_destroy(struct world *world, struct live *live);
/* Appends ids and starts a generation; generation.{tokens_max, sampling, window, has_contract,
 * contract, cancel_after} are the caller's. False when the engine refused, which fails the world. */
bool world_start(struct world *world, struct live *live, const int32_t *ids, int32_t count);
/* Whether what the engine says of the generation fits it and itself; counts it. */
void world_check_facts(struct world *world, const struct live *live);
/* Until all generations are over; then checks each against a cold run. */
void world_finish(struct world *world);

#endif
