/* Drafts change nothing but time: tokens, log-probabilities, ends and what comes after them are the
 * same with speculation on or off, greedy or sampled, with penalties, stops and guards; whatever is
 * proposed and however much of it is accepted. */
#include "engine_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW true
#else
#define IS_SLOW false
#endif

/* Thousands of steps more, for long checks. */
static bool is_long(void) {
    return getenv("HEARTH_SPECULATION_LONG") != NULL;
}

/* Sanitizers look for other faults, and tiny-a has all paths. */
static bool is_left_to_release(const char *model) {
    if (!IS_SLOW || is_long() || strcmp(model, "tiny-a") == 0) {
        return false;
    }
    print_message("SKIPPED %s with sanitizers: set HEARTH_SPECULATION_LONG\n", model);
    return true;
}

#define TOKENS_MAX 400
#define LANES      4 /* sequences at a time */

/* What one generation gave. */
struct outcome {
    int32_t tokens[TOKENS_MAX];
    float logprobs[TOKENS_MAX];
    struct token_alternative second[TOKENS_MAX]; /* of the alternatives the second, if asked for */
    int32_t count;
    enum finish_reason reason;
    struct generation_facts facts;
    int32_t length; /* of the sequence afterwards */
};

struct setting {
    const char *name;
    struct sampling sampling;
    int32_t tokens;
    bool has_stop; /* on a byte that is common, and an id */
    bool has_guard;
};

/* Makes a loop. */
static const struct logit_bias often = {.id = 33, .bias = 90};

static const struct setting settings[] = {
    {.name = "greedy", .sampling = {.temperature = 0, .top_p = 1}, .tokens = 120},
    {.name = "sampled", .sampling = {.temperature = 1, .top_p = 1, .seed = 7}, .tokens = 140},
    {.name = "filtered",
     .sampling = {.temperature = 0.7, .top_p = 0.9, .top_k = 40, .min_p = 0.02, .seed = 8},
     .tokens = 80},
    {.name = "penalties",
     .sampling =
         {.temperature = 0.3,
          .top_p = 1,
          .repetition_penalty = 1.2,
          .presence_penalty = 0.5,
          .frequency_penalty = 0.3,
          .alternatives = 2,
          .seed = 9},
     .tokens = 110},
    {.name = "greedy with penalties",
     .sampling = {.temperature = 0, .top_p = 1, .frequency_penalty = 0.4},
     .tokens = 80},
    {.name = "stops",
     .sampling = {.temperature = 1, .top_p = 1, .seed = 10},
     .tokens = 120,
     .has_stop = true},
    {.name = "guard",
     .sampling = {.temperature = 0, .top_p = 1, .bias = &often, .bias_count = 1},
     .tokens = 60,
     .has_guard = true},
    {.name = "one token", .sampling = {.temperature = 1, .top_p = 1, .seed = 11}, .tokens = 1},
    {.name = "two tokens", .sampling = {.temperature = 1, .top_p = 1, .seed = 12}, .tokens = 2},
};

static struct fixture fixture;
static int32_t vocabulary;
static uint32_t random_state; /* of prompts: every run has the same ones */

static int32_t draw_below(uint32_t *random, int32_t bound) {
    *random = *random * 1664525U + 1013904223U;
    return (int32_t)((*random >> 8) % (uint32_t)bound);
}

static int32_t random_below(int32_t bound) {
    return draw_below(&random_state, bound);
}

static void take_event(const struct engine_event *event, struct outcome *out) {
    if (event->type == ENGINE_TOKEN) {
        assert_true(out->count < TOKENS_MAX);
        out->tokens[out->count] = event->token;
        out->logprobs[out->count] = event->logprob;
        if (event->alternative_count > 1) {
            out->second[out->count] = event->alternatives[1];
        }
        out->count++;
    } else if (event->type == ENGINE_FINISHED) {
        if (event->reason == FINISH_ERROR) {
            print_error("%s\n", event->error.message);
        }
        out->reason = event->reason;
        out->facts = event->facts;
        out->length = engine_sequence_length(fixture.engine, event->sequence);
    }
}

/* Runs generations of the sequences until all have ended. */
static void collect_all(const uint64_t *sequences, int32_t count, struct outcome *outcomes) {
    int32_t left = count;
    for (int32_t i = 0; i < count; i++) {
        memset(&outcomes[i], 0, sizeof outcomes[i]);
    }
    while (left > 0) {
        struct engine_event event = next_event(&fixture);
        for (int32_t i = 0; i < count; i++) {
            if (event.sequence == sequences[i]) {
                take_event(&event, &outcomes[i]);
                left -= event.type == ENGINE_FINISHED;
            }
        }
    }
}

static int32_t tokens_of(const struct setting *setting) {
    int32_t share = is_long() || setting->has_stop || setting->has_guard ? 1 : IS_SLOW ? 8 : 2;
    int32_t tokens = setting->tokens / share;
    return tokens > 2 ? tokens : setting->tokens;
}

static void start(
    const struct setting *setting,
    uint64_t sequence,
    const int32_t *ids,
    int32_t count,
    enum speculate mode,
    int32_t draft_max
) {
    struct view stop = view_of_text("th");
    int32_t stop_id = 17;
    struct generation_request request = {
        .sequence = sequence,
        .append = ids,
        .append_count = (size_t)count,
        .sampling = setting->sampling,
        .tokens_max = tokens_of(setting),
        .speculation = mode,
        .draft_max = draft_max,
    };
    if (setting->has_stop) {
        request.stops = &stop;
        request.stop_count = 1;
        request.stop_ids = &stop_id;
        request.stop_id_count = 1;
    }
    if (setting->has_guard) {
        request.guard.loop_span_max = 64;
        request.guard.loop_times = 6;
        request.guard.loop_tokens = 40;
    }
    struct error error = {0};
    if (is_failed(engine_generate(fixture.engine, &request, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
}

static void check_same(const struct outcome *got, const struct outcome *wanted) {
    for (int32_t i = 0; i < wanted->count && i < got->count; i++) {
        if (got->tokens[i] != wanted->tokens[i]) {
            print_error("token %d is %d, not %d\n", i, got->tokens[i], wanted->tokens[i]);
            fail();
        }
    }
    assert_int_equal(got->count, wanted->count);
    size_t count = (size_t)wanted->count;
    assert_memory_equal(got->logprobs, wanted->logprobs, count * sizeof(float));
    assert_memory_equal(got->second, wanted->second, count * sizeof *got->second);
    assert_int_equal(got->reason, wanted->reason);
    assert_int_equal(got->length, wanted->length);
    assert_int_equal(got->facts.sampled, wanted->facts.sampled);
    assert_int_equal(got->facts.stop_index, wanted->facts.stop_index);
    assert_int_equal(got->facts.stop_bytes, wanted->facts.stop_bytes);
    assert_int_equal(got->facts.prompt_tokens, wanted->facts.prompt_tokens);
}

/* ---- drafts of the test's own ------------------------------------------------------------------ */

/* What the sequences are going to say, and where their prompts end. */
struct oracle {
    const struct outcome *truth;
    int32_t prompt_end;
    int32_t wrong_one_in; /* chance of a wrong token in a draft; 0: never */
    uint32_t random;      /* of the engine's thread, which asks as often as it likes */
};

static int32_t
suggest(void *context, uint64_t sequence, int32_t length, int32_t most, int32_t *ids) {
    struct oracle *oracle = context;
    (void)sequence;
    int32_t at = length - oracle->prompt_end;
    int32_t count = draw_below(&oracle->random, most + 1);
    for (int32_t i = 0; i < count; i++) {
        bool is_wrong =
            at + i >= oracle->truth->count ||
            (oracle->wrong_one_in > 0 && draw_below(&oracle->random, oracle->wrong_one_in) == 0);
        ids[i] = is_wrong ? draw_below(&oracle->random, vocabulary) : oracle->truth->tokens[at + i];
    }
    return count;
}

static void set_oracle(struct oracle *oracle) {
    engine_lock(fixture.engine);
    fixture.engine->suggest_context = oracle;
    fixture.engine->suggest = oracle == NULL ? NULL : suggest;
    engine_unlock(fixture.engine);
}

/* ---- the comparison ---------------------------------------------------------------------------- */

struct totals {
    int64_t tokens, drafted, accepted;
    int64_t ends[FINISH_OPEN_CALL + 1];
};

static void add(struct totals *totals, const struct outcome *outcome) {
    totals->tokens += outcome->count;
    totals->drafted += outcome->facts.drafted;
    totals->accepted += outcome->facts.accepted;
    totals->ends[outcome->reason]++;
    assert_true(outcome->facts.accepted <= outcome->facts.drafted);
}

static void fill_prompt(int32_t *ids, int32_t count, uint32_t seed) {
    random_state = seed;
    for (int32_t i = 0; i < count; i++) {
        /* Half of it is copied from what came before: something to look up. */
        bool is_copy = i >= 24 && (i / 12) % 2 == 1;
        ids[i] = is_copy ? ids[i - 24] : 3 + random_below(vocabulary - 3);
    }
}

/* One turn of a sequence without drafts, then of others with them, all at once; and a second turn that
 * goes on from what the first left. */
static void compare(
    const struct setting *setting,
    const enum speculate *modes,
    const int32_t *drafts_max,
    int32_t count,
    struct oracle *oracle,
    struct totals *totals
) {
    static struct outcome truth[2];
    static struct outcome others[LANES];
    int32_t ids[PROMPT];
    int32_t lengths[2] = {17 + random_below(PROMPT - 17), 1 + random_below(20)};
    uint32_t seed = (uint32_t)random_below(1 << 20);
    fill_prompt(ids, PROMPT, seed);
    uint64_t alone = create(&fixture);
    for (int32_t t = 0; t < 2; t++) {
        start(setting, alone, ids, lengths[t], SPECULATE_OFF, 0);
        collect_all(&alone, 1, &truth[t]);
        assert_int_equal(truth[t].facts.drafted, 0);
    }
    engine_sequence_destroy(fixture.engine, alone);
    uint64_t sequences[LANES];
    for (int32_t i = 0; i < count; i++) {
        sequences[i] = create(&fixture);
    }
    for (int32_t t = 0; t < 2; t++) {
        if (oracle != NULL) {
            oracle->truth = &truth[t];
            oracle->prompt_end = truth[t].facts.prompt_tokens;
            set_oracle(oracle);
        }
        for (int32_t i = 0; i < count; i++) {
            start(setting, sequences[i], ids, lengths[t], modes[i], drafts_max[i]);
        }
        collect_all(sequences, count, others);
        set_oracle(NULL);
        for (int32_t i = 0; i < count; i++) {
            check_same(&others[i], &truth[t]);
            add(totals, &others[i]);
        }
    }
    for (int32_t i = 0; i < count; i++) {
        engine_sequence_destroy(fixture.engine, sequences[i]);
    }
}

static bool open_model(const char *model, int32_t context) {
    char path[TEST_PATH_MAX];
    if (strcmp(model, "mini") == 0) {
        (void)snprintf(path, sizeof path, "%s", TEST_SOURCE_DIR "/examples/mini/model");
    } else {
        char relative[64];
        (void)snprintf(relative, sizeof relative, "golden/%s/config.json", model);
        if (!test_data_find(path, relative)) {
            print_message("SKIPPED %s: set HEARTH_TEST_DATA\n", model);
            return false;
        }
        path[strlen(path) - strlen("/config.json")] = '\0';
    }
    const struct engine_options options = {
        .model_directory = path,
        .threads = 1,
        .context_max = context,
        .sequences_max = LANES + 1,
        .step_rows_max = 80,
    };
    open_options(&fixture, &options);
    struct engine_info info;
    engine_get_info(fixture.engine, &info);
    vocabulary = info.vocabulary;
    return true;
}

/* Random proposals, right for a while and then wrong, in all settings. */
static void check_proposals(const char *model) {
    int32_t rounds = is_long() ? 4 : 1;
    if (is_left_to_release(model) || !open_model(model, 1024)) {
        skip();
    }
    static const enum speculate modes[LANES] = {
        SPECULATE_LOOKUP, SPECULATE_LOOKUP, SPECULATE_AUTO, SPECULATE_OFF};
    static const int32_t drafts_max[LANES] = {0, 16, 5, 0};
    static const int32_t wrong_one_in[] = {6, 0, 2, 15};
    struct totals totals = {0};
    random_state = 1;
    for (int32_t r = 0; r < rounds; r++) {
        for (size_t s = 0; s < COUNT_OF(settings); s++) {
            struct oracle oracle = {.wrong_one_in = wrong_one_in[(size_t)r % 4]};
            compare(&settings[s], modes, drafts_max, LANES, &oracle, &totals);
        }
    }
    print_message(
        "%s: %lld tokens, %lld drafted, %lld accepted; ends: %lld eos, %lld stop, %lld loop\n",
        model,
        (long long)totals.tokens,
        (long long)totals.drafted,
        (long long)totals.accepted,
        (long long)totals.ends[FINISH_EOS],
        (long long)totals.ends[FINISH_STOP],
        (long long)totals.ends[FINISH_LOOP]
    );
    assert_true(totals.accepted > totals.tokens / 10);
    assert_true(totals.drafted > totals.accepted);
    assert_true(totals.ends[FINISH_STOP] > 0 && totals.ends[FINISH_LENGTH] > 0);
    assert_true(totals.ends[FINISH_LOOP] > 0);
    close_engine(&fixture);
}

static void speculation_tiny_a_any_proposal_same_output(void **state) {
    (void)state;
    check_proposals("tiny-a");
}

static void speculation_tiny_b_any_proposal_same_output(void **state) {
    (void)state;
    check_proposals("tiny-b");
}

static void speculation_mini_any_proposal_same_output(void **state) {
    (void)state;
    check_proposals("mini");
}

/* What the engine proposes by itself. */
static void check_sources(const char *model, bool has_stages) {
    int32_t rounds = is_long() ? 4 : 1;
    if (is_left_to_release(model) || !open_model(model, 1024)) {
        skip();
    }
    const enum speculate modes[] = {SPECULATE_LOOKUP, SPECULATE_AUTO, SPECULATE_DRAFT};
    const int32_t drafts_max[] = {0, 0, 0};
    struct totals totals[COUNT_OF(modes)] = {0};
    random_state = 2;
    for (int32_t r = 0; r < rounds; r++) {
        for (size_t s = 0; s < COUNT_OF(settings); s++) {
            for (size_t m = 0; m < (has_stages ? 3 : 2); m++) {
                compare(&settings[s], &modes[m], &drafts_max[m], 1, NULL, &totals[m]);
            }
        }
    }
    static const char *const names[] = {"lookup", "auto", "draft stages"};
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        print_message(
            "%s, %s: %lld tokens, %lld drafted, %lld accepted\n",
            model,
            names[m],
            (long long)totals[m].tokens,
            (long long)totals[m].drafted,
            (long long)totals[m].accepted
        );
    }
    assert_true(totals[0].drafted > 0 || IS_SLOW);
    if (has_stages) {
        assert_true(totals[2].drafted > 0 && totals[2].accepted > 0);
    }
    close_engine(&fixture);
}

static void speculation_tiny_a_sources_same_output(void **state) {
    (void)state;
    check_sources("tiny-a", true);
}

static void speculation_tiny_b_sources_same_output(void **state) {
    (void)state;
    check_sources("tiny-b", true);
}

static void speculation_mini_sources_same_output(void **state) {
    (void)state;
    check_sources("mini", false);
}

/* Drafts end where the context does. */
static void speculation_at_end_of_context_same_output(void **state) {
    (void)state;
    static const enum speculate modes[LANES] = {
        SPECULATE_LOOKUP, SPECULATE_LOOKUP, SPECULATE_AUTO, SPECULATE_DRAFT};
    static const int32_t drafts_max[LANES] = {16, 3, 1, 0};
    struct totals totals = {0};
    random_state = 3;
    for (int32_t context = 190; context < (IS_SLOW ? 191 : 194); context++) {
        assert_true(open_model("tiny-a", context));
        struct oracle oracle = {0};
        struct setting setting = settings[1];
        setting.tokens = 400;
        /* It would end where the draws want it to. */
        struct engine_info info;
        engine_get_info(fixture.engine, &info);
        const struct logit_bias never = {.id = info.eos_id, .bias = -INFINITY};
        setting.sampling.bias = &never;
        setting.sampling.bias_count = 1;
        static struct outcome truth;
        static struct outcome others[LANES];
        int32_t ids[PROMPT];
        fill_prompt(ids, PROMPT, (uint32_t)context);
        uint64_t sequences[LANES + 1];
        for (int32_t i = 0; i <= LANES; i++) {
            sequences[i] = create(&fixture);
        }
        start(&setting, sequences[LANES], ids, PROMPT, SPECULATE_OFF, 0);
        collect_all(&sequences[LANES], 1, &truth);
        assert_int_equal(truth.reason, FINISH_CONTEXT);
        oracle.truth = &truth;
        oracle.prompt_end = PROMPT;
        set_oracle(&oracle);
        for (int32_t i = 0; i < LANES; i++) {
            start(&setting, sequences[i], ids, PROMPT, modes[i], drafts_max[i]);
        }
        collect_all(sequences, LANES, others);
        for (int32_t i = 0; i < LANES; i++) {
            check_same(&others[i], &truth);
            add(&totals, &others[i]);
        }
        close_engine(&fixture);
    }
    assert_true(totals.accepted > 30);
}

static void speculation_refuses_stages_that_are_not_there(void **state) {
    (void)state;
    assert_true(open_model("mini", 256));
    uint64_t sequence = create(&fixture);
    int32_t id = 5;
    struct generation_request request = {
        .sequence = sequence,
        .append = &id,
        .append_count = 1,
        .sampling = {.temperature = 1, .top_p = 1},
        .tokens_max = 3,
        .speculation = SPECULATE_DRAFT,
    };
    struct error error = {0};
    result refused = engine_generate(fixture.engine, &request, &error);
    assert_int_equal(refused.code, RESULT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "the model has none"));
    request.speculation = SPECULATE_LOOKUP;
    request.draft_max = ENGINE_DRAFT_MAX + 1;
    refused = engine_generate(fixture.engine, &request, &error);
    assert_int_equal(refused.code, RESULT_INVALID_INPUT);
    close_engine(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speculation_tiny_a_any_proposal_same_output),
        cmocka_unit_test(speculation_tiny_b_any_proposal_same_output),
        cmocka_unit_test(speculation_mini_any_proposal_same_output),
        cmocka_unit_test(speculation_tiny_a_sources_same_output),
        cmocka_unit_test(speculation_tiny_b_sources_same_output),
        cmocka_unit_test(speculation_mini_sources_same_output),
        cmocka_unit_test(speculation_at_end_of_context_same_output),
        cmocka_unit_test(speculation_refuses_stages_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
