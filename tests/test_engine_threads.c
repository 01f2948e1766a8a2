/* The draws of a step are made by as many threads as there are: tokens, log-probabilities,
 * alternatives and ends are those of one thread, for sequences with settings of all kinds beside each
 * other, with a constraint that some share, with drafts, and from logits that forks share. */
#include "engine_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/constraint.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define AGENTS 14
#define TOKENS 12
#else
#define AGENTS 70 /* more than rows of logits that are fetched at a time */
#define TOKENS 24
#endif
#define FORKS      3 /* of one evaluated prompt */
#define SHARED     40
#define OWN        8
#define DRAFT      4
#define CONTEXT    256
#define SEQUENCES  (AGENTS + FORKS)
#define KINDS      7
#define SHARING    5 /* kind whose agents share one constraint */
#define OF_ITS_OWN 6 /* kind with a constraint each */

struct drawn {
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    int32_t alternative_count[TOKENS];
    struct token_alternative alternatives[TOKENS][SAMPLING_ALTERNATIVES_MAX];
    int32_t count, stop_index;
    enum finish_reason reason;
};

static const struct sampling samplings[KINDS] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 0, .top_p = 1, .alternatives = 20},
    {.temperature = 0.8, .top_p = 0.9, .min_p = 0.01},
    {.temperature = 1,
     .top_p = 1,
     .top_k = 50,
     .repetition_penalty = 1.2,
     .presence_penalty = 0.5,
     .frequency_penalty = 0.2},
    {.temperature = 1.5, .top_p = 1, .alternatives = 3},
    {.temperature = 1.5, .top_p = 1},
    {.temperature = 1.2, .top_p = 0.95},
};

static void open_mini(struct fixture *fixture, int32_t threads) {
    const struct engine_options options = {
        .model_directory = TEST_SOURCE_DIR "/examples/mini/model",
        .threads = threads,
        .context_max = CONTEXT,
        .sequences_max = SEQUENCES + 1,
        .memory_max = (uint64_t)4 << 30,
        .cache_memory_bytes = 1,
        .snapshot_bytes = 1 << 20,
    };
    open_options(fixture, &options);
}

static struct constraint *constrain(struct fixture *fixture) {
    const struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(engine_vocabulary(fixture->engine, &vocabulary, NULL)));
    struct constraint_options options = {
        .response_schema = view_of_text(
            "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": "
            "\"string\"}, {\"enum\": [true, null, \"open\", \"closed\"]}]}}"
        )};
    struct constraint *constraint = NULL;
    assert_true(is_ok(constraint_create(&constraint, vocabulary, &options, NULL)));
    return constraint;
}

static void must(struct fixture *fixture, const struct generation_request *request) {
    struct error error = {0};
    if (is_failed(engine_generate(fixture->engine, request, &error))) {
        fail_msg("%s", error.message);
    }
}

static void take_event(const struct engine_event *event, struct drawn *drawn) {
    if (event->type == ENGINE_TOKEN) {
        int32_t i = drawn->count++;
        assert_true(i < TOKENS);
        drawn->tokens[i] = event->token;
        drawn->logprobs[i] = event->logprob;
        drawn->alternative_count[i] = event->alternative_count;
        for (int32_t a = 0; a < event->alternative_count; a++) {
            drawn->alternatives[i][a] = event->alternatives[a];
        }
    } else if (event->type == ENGINE_FINISHED) {
        drawn->reason = event->reason;
        drawn->stop_index = event->facts.stop_index;
        if (event->reason == FINISH_ERROR) {
            fail_msg("%s", event->error.message);
        }
    }
}

/* Forks first: all of these draw from the logits that the parent left. */
static void fork_parent(struct fixture *fixture, uint64_t sequences[FORKS]) {
    int32_t prompt[SHARED];
    int32_t tokens[1];
    int32_t count = 0;
    make_prompt(prompt, SHARED, 1);
    uint64_t parent = create(fixture);
    must_generate(fixture, parent, prompt, SHARED, 0);
    (void)collect(fixture, parent, tokens, &count);
    for (int32_t i = 0; i < FORKS; i++) {
        struct error error = {0};
        assert_true(is_ok(engine_sequence_fork(fixture->engine, parent, &sequences[i], &error)));
    }
}

static void
start(struct fixture *fixture, uint64_t sequence, int32_t agent, struct constraint *shared) {
    static const struct view stops[] = {{(const uint8_t *)"e", 1}, {(const uint8_t *)"zq", 2}};
    int32_t prompt[OWN];
    int32_t kind = agent % KINDS;
    bool is_fork = agent >= AGENTS;
    make_prompt(prompt, OWN, 100 + (uint32_t)agent);
    struct constraint *own = kind == OF_ITS_OWN && !is_fork ? constrain(fixture) : NULL;
    struct generation_request request = {
        .sequence = sequence,
        .append = is_fork ? NULL : prompt,
        .append_count = is_fork ? 0 : OWN,
        .sampling = samplings[is_fork ? 0 : kind],
        .tokens_max = TOKENS - agent % 3,
        .stops = stops,
        .stop_count = kind == 4 ? COUNT_OF(stops) : 0,
        .speculation = agent % 2 == 0 ? SPECULATE_LOOKUP : SPECULATE_OFF,
        .draft_max = DRAFT,
        .guard = {.loop_span_max = 8, .loop_times = 4, .loop_tokens = 8},
        .constraint = own != NULL                   ? own
                      : kind == SHARING && !is_fork ? shared
                                                    : NULL,
    };
    request.sampling.seed = (uint64_t)agent + 1;
    must(fixture, &request);
    constraint_release(own); // the request holds it
}

/* Drafts that are right now and then: whether they are does not depend on threads. */
static int32_t
suggest(void *context, uint64_t sequence, int32_t length, int32_t most, int32_t *ids) {
    (void)context;
    for (int32_t i = 0; i < most; i++) {
        ids[i] = 3 + (int32_t)((sequence * 31 + (uint64_t)(length + i) * 17) % 200);
    }
    return most;
}

static void draw_with(int32_t threads, struct drawn *drawn) {
    struct fixture fixture;
    uint64_t sequences[SEQUENCES];
    open_mini(&fixture, threads);
    assert_int_equal(fixture.engine->sampler_count, threads);
    fixture.engine->suggest = suggest;
    struct constraint *shared = constrain(&fixture);
    memset(drawn, 0, SEQUENCES * sizeof *drawn);
    fork_parent(&fixture, sequences + AGENTS);
    for (int32_t i = 0; i < AGENTS; i++) {
        sequences[i] = create(&fixture);
    }
    for (int32_t i = 0; i < SEQUENCES; i++) {
        start(&fixture, sequences[i], i, shared);
    }
    constraint_release(shared);
    for (int32_t left = SEQUENCES; left > 0;) {
        struct engine_event event = next_event(&fixture);
        for (int32_t i = 0; i < SEQUENCES; i++) {
            if (sequences[i] == event.sequence) {
                take_event(&event, &drawn[i]);
                left -= event.type == ENGINE_FINISHED;
            }
        }
    }
    close_engine(&fixture);
}

static void draws_are_those_of_one_thread(void **state) {
    (void)state;
    CLEANUP(free_cleanup) struct drawn *wanted = calloc(SEQUENCES, sizeof *wanted);
    CLEANUP(free_cleanup) struct drawn *got = calloc(SEQUENCES, sizeof *got);
    assert_true(wanted != NULL && got != NULL);
    draw_with(1, wanted);
    int32_t tokens = 0;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        assert_true(wanted[i].count > 0);
        tokens += wanted[i].count;
    }
    assert_true(tokens > SEQUENCES * TOKENS / 4); // stops and guards do not end all of it
    static const int32_t threads[] = {2, 5};
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        draw_with(threads[t], got);
        for (int32_t i = 0; i < SEQUENCES; i++) {
            if (memcmp(&got[i], &wanted[i], sizeof *got) != 0) {
                fail_msg("%d threads draw otherwise for sequence %d", threads[t], i);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_those_of_one_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
