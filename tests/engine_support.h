/* What the tests of the engine's callers share: an engine on tiny-a, its events, prompts. Failures
 * abort the test through cmocka. Thread: any one. */
#ifndef HEARTH_TESTS_ENGINE_SUPPORT_H
#define HEARTH_TESTS_ENGINE_SUPPORT_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/engine_internal.h"
#include "test_safetensors.h"

#define VOCABULARY 1280
#define PROMPT     150

/* What the wake function signals; the test waits here as the loop would. */
struct waker {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    int wakes;
};

struct fixture {
    struct waker waker;
    struct engine *engine;
};

struct run {
    int32_t prompt[PROMPT];
    int32_t tokens[64];
    int32_t count;
};

void model_directory(char path[TEST_PATH_MAX]);
/* With the fixture's wake function. */
void open_options(struct fixture *fixture, const struct engine_options *options);
void open_engine(struct fixture *fixture, int32_t sequences, int32_t context);
void close_engine(struct fixture *fixture);
/* Blocks until an event is there; fails the test after two minutes. */
struct engine_event next_event(struct fixture *fixture);
/* Ids of a fixed generator. */
void make_prompt(int32_t *ids, int32_t count, uint32_t seed);
uint64_t create(struct fixture *fixture);
MUST_CHECK result generate(
    struct fixture *fixture,
    uint64_t sequence,
    const int32_t *ids,
    size_t count,
    int32_t tokens,
    struct error *error
);
void must_generate(
    struct fixture *fixture, uint64_t sequence, const int32_t *ids, size_t count, int32_t tokens
);
/* Collects the tokens of one generation; events of other sequences fail the test. */
struct engine_event
collect(struct fixture *fixture, uint64_t sequence, int32_t *tokens, int32_t *count);
void check_facts(const struct generation_facts *facts, int32_t sampled);

/* Runs the request on a new sequence with the prompt of make_prompt(3); its sampled tokens and its
 * last event. */
struct engine_event run_request(
    struct fixture *fixture, struct generation_request request, int32_t *tokens, int32_t *count
);

#endif
