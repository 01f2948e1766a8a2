/* Requests that are wrong, that end early and that wait: each is refused by name or ends with a named
 * reason, and others go on with the same bits. */
#include "engine_support.h"

#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#include "engine/constraint.h"
#include "engine/tokenizer.h"

#define TOKENS 24

/* ---- logits that are no numbers -------------------------------------------------------------- */

struct poison {
    uint64_t sequence;
    int32_t length; /* logits that follow so many tokens */
    float value;
    bool is_all;
};

static void inject(void *context, uint64_t sequence, int32_t length, float *logits, int32_t count) {
    const struct poison *poison = context;
    if (sequence != poison->sequence || length != poison->length) {
        return;
    }
    logits[7] = poison->value;
    for (int32_t i = 0; poison->is_all && i < count; i++) {
        logits[i] = poison->value;
    }
}

static void set_poison(struct fixture *fixture, struct poison *poison) {
    pthread_mutex_lock(&fixture->engine->lock);
    fixture->engine->observe = inject;
    fixture->engine->observe_context = poison;
    pthread_mutex_unlock(&fixture->engine->lock);
}

/* Two generations at once; returns the end of the first, tokens of the second. */
static struct engine_event run_two(
    struct fixture *fixture, const uint64_t sequences[2], int32_t tokens[TOKENS], float *logprobs
) {
    int32_t prompt[2][PROMPT];
    struct engine_event end = {0};
    int32_t count = 0;
    for (uint32_t i = 0; i < 2; i++) {
        make_prompt(prompt[i], PROMPT, 11 + i);
        must_generate(fixture, sequences[i], prompt[i], PROMPT, TOKENS);
    }
    for (int ends = 0; ends < 2;) {
        struct engine_event event = next_event(fixture);
        if (event.type == ENGINE_TOKEN && event.sequence == sequences[1]) {
            logprobs[count] = event.logprob;
            tokens[count++] = event.token;
        } else if (event.type == ENGINE_FINISHED) {
            ends++;
            end = event.sequence == sequences[0] ? event : end;
        }
    }
    return end;
}

static void logits_that_are_no_numbers_end_one_request(void **state) {
    (void)state;
    static const struct {
        float value;
        bool is_all;
        enum result_code code;
        bool is_lost;
    } cases[] = {
        {NAN, false, RESULT_DEVICE, true},
        {INFINITY, false, RESULT_DEVICE, true},
        {-INFINITY, true, RESULT_INVALID_INPUT, false},
    };
    int32_t tokens[COUNT_OF(cases) + 1][TOKENS] = {0};
    float logprobs[COUNT_OF(cases) + 1][TOKENS] = {0};
    for (size_t c = 0; c <= COUNT_OF(cases); c++) {
        struct fixture fixture;
        struct error error = {0};
        open_engine(&fixture, 2, 512);
        const uint64_t sequences[2] = {create(&fixture), create(&fixture)};
        struct poison poison = {.sequence = sequences[0], .length = PROMPT + 5};
        if (c < COUNT_OF(cases)) {
            poison.value = cases[c].value;
            poison.is_all = cases[c].is_all;
            set_poison(&fixture, &poison);
        }
        struct engine_event end = run_two(&fixture, sequences, tokens[c], logprobs[c]);
        if (c == COUNT_OF(cases)) {
            assert_int_equal(end.reason, FINISH_LENGTH);
            close_engine(&fixture);
            break;
        }
        assert_int_equal(end.reason, FINISH_ERROR);
        assert_int_equal(end.error.code, cases[c].code);
        assert_non_null(strstr(end.error.message, "155"));
        assert_int_equal(end.facts.sampled, 5);
        int32_t more = 5;
        result again = generate(&fixture, sequences[0], &more, 1, 1, &error);
        assert_int_equal(is_failed(again), cases[c].is_lost);
        if (cases[c].is_lost) {
            assert_non_null(strstr(error.message, "lost"));
        }
        close_engine(&fixture);
    }
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        assert_memory_equal(tokens[c], tokens[COUNT_OF(cases)], sizeof tokens[c]);
        assert_memory_equal(logprobs[c], logprobs[COUNT_OF(cases)], sizeof logprobs[c]);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void
refused(struct fixture *fixture, struct generation_request request, int code, const char *word) {
    static const int32_t ids[] = {5, 6, 7};
    struct error error = {0};
    uint64_t sequence = create(fixture);
    request.sequence = sequence;
    request.append = ids;
    request.append_count = COUNT_OF(ids);
    request.tokens_max = request.tokens_max == 0 ? 4 : request.tokens_max;
    request.sampling.top_p = request.sampling.top_p > 0 ? request.sampling.top_p : 1;
    result got = engine_generate(fixture->engine, &request, &error);
    assert_int_equal(got.code, code);
    if (strstr(error.message, word) == NULL) {
        print_error("'%s' lacks '%s'\n", error.message, word);
        fail();
    }
    engine_sequence_destroy(fixture->engine, sequence);
}

static void requests_out_of_range_are_refused_by_name(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 4, 512);
    static char long_text[10000];
    memset(long_text, 'x', sizeof long_text);
    const struct view empty = {0};
    const struct view too_long = view_of(long_text, sizeof long_text);
    static const struct logit_bias unknown = {.id = VOCABULARY, .bias = 1};
    static const int32_t unknown_id = VOCABULARY;
    refused(
        &fixture,
        (struct generation_request){.sampling = {.bias = &unknown, .bias_count = 1}},
        RESULT_INVALID_INPUT,
        "1280"
    );
    refused(
        &fixture,
        (struct generation_request){.stops = &empty, .stop_count = 1},
        RESULT_INVALID_INPUT,
        "stop"
    );
    refused(
        &fixture,
        (struct generation_request){.stops = &too_long, .stop_count = 1},
        RESULT_LIMIT,
        "10000"
    );
    refused(
        &fixture,
        (struct generation_request){.stop_ids = &unknown_id, .stop_id_count = 1},
        RESULT_INVALID_INPUT,
        "1280"
    );
    refused(
        &fixture, (struct generation_request){.deadline_ms = 1}, RESULT_INVALID_INPUT, "deadline"
    );
    refused(
        &fixture,
        (struct generation_request){.deadline_ms = INT64_MIN},
        RESULT_INVALID_INPUT,
        "negative"
    );
    refused(&fixture, (struct generation_request){.draft_max = 999}, RESULT_INVALID_INPUT, "999");
    refused(
        &fixture,
        (struct generation_request){.speculation = (enum speculate)99},
        RESULT_INVALID_INPUT,
        "speculation 99"
    );
    refused(
        &fixture,
        (struct generation_request){.window = (enum window_mode)99},
        RESULT_INVALID_INPUT,
        "window mode 99"
    );
    refused(
        &fixture,
        (struct generation_request){.guard = {.loop_span_max = 100000}},
        RESULT_LIMIT,
        "100000"
    );
    refused(
        &fixture,
        (struct generation_request){.uses_sequence_seed = true},
        RESULT_INVALID_INPUT,
        "seed"
    );
    close_engine(&fixture);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void stops_end_a_generation_and_say_which(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    int32_t free_tokens[TOKENS];
    int32_t tokens[TOKENS];
    int32_t count = 0;
    const struct generation_request plain = {
        .sampling = {.temperature = 0.8, .seed = 9}, .tokens_max = TOKENS};
    (void)run_request(&fixture, plain, free_tokens, &count);
    assert_int_equal(count, TOKENS);
    struct generation_request request = plain;
    const int32_t ids[] = {VOCABULARY - 1, free_tokens[6]};
    request.stop_ids = ids;
    request.stop_id_count = COUNT_OF(ids);
    struct engine_event end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_STOP);
    assert_int_equal(end.facts.stop_index, 1);
    assert_true(count <= 7);
    assert_memory_equal(tokens, free_tokens, (size_t)count * sizeof *tokens);
    assert_int_equal(tokens[count - 1], free_tokens[6]);
    /* The first token of plain letters, as a string. */
    const struct tokenizer *tokenizer = engine_tokenizer(fixture.engine);
    int32_t at = 0;
    struct view text = {0};
    for (; at < TOKENS; at++) {
        text = tokenizer_bytes(tokenizer, free_tokens[at]);
        if (text.length > 1 && text.data[0] < 0x80 && text.data[1] < 0x80) {
            break;
        }
    }
    assert_true(at < TOKENS);
    const struct view stops[] = {view_of_text("no such text at all"), view_slice(text, 0, 2)};
    request = plain;
    request.stops = stops;
    request.stop_count = COUNT_OF(stops);
    end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_STOP);
    assert_int_equal(end.facts.stop_index, 1);
    assert_true(count <= at + 1 && end.facts.stop_bytes >= 2);
    assert_memory_equal(tokens, free_tokens, (size_t)count * sizeof *tokens);
    close_engine(&fixture);
}

static void guards_end_a_generation_by_name(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    int32_t tokens[256];
    int32_t count = 0;
    const struct logit_bias favourite = {.id = 77, .bias = 100};
    struct generation_request request = {
        .sampling = {.bias = &favourite, .bias_count = 1},
        .tokens_max = 256,
        .guard = {.loop_span_max = 8, .loop_times = 4, .loop_tokens = 40},
    };
    struct engine_event end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_LOOP);
    assert_string_equal(finish_reason_name(end.reason), "loop");
    assert_int_equal(count, 40);
    request.guard = (struct guard_limits){.thinking_max = 12};
    request.starts_in_thinking = true;
    end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_THINKING);
    assert_true(count >= 12 && count <= 13);
    close_engine(&fixture);
}

/* Logits of a model that opens a block of calls and never closes it. */
struct opening {
    struct token_list ids;
    int32_t filler;
};

static void open_call(void *context, uint64_t sequence, int32_t length, float *logits, int32_t n) {
    const struct opening *opening = context;
    size_t at = (size_t)(length - PROMPT);
    (void)sequence;
    for (int32_t i = 0; i < n; i++) {
        logits[i] = 0;
    }
    logits[at < opening->ids.count ? opening->ids.ids[at] : opening->filler] = 50;
}

static void call_that_does_not_end_ends_by_name(void **state) {
    (void)state;
    enum { CALL_MAX = 20 };
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    const struct tokenizer *tokenizer = engine_tokenizer(fixture.engine);
    struct guard_markers markers;
    guard_markers_chat(tokenizer, &markers);
    assert_true(markers.call_open_count > 0);
    CLEANUP(token_list_deinit) struct token_list letters = {NULL, 0, 0, 8};
    struct opening opening = {.ids = {NULL, 0, 0, 64}};
    assert_true(is_ok(
        tokenizer_encode(tokenizer, markers.call_open[0], TOKENIZER_MARKERS_ON, &opening.ids, NULL)
    ));
    assert_true(
        is_ok(tokenizer_encode(tokenizer, view_of_text("a"), TOKENIZER_MARKERS_ON, &letters, NULL))
    );
    opening.filler = letters.ids[0];
    pthread_mutex_lock(&fixture.engine->lock);
    fixture.engine->observe = open_call;
    fixture.engine->observe_context = &opening;
    pthread_mutex_unlock(&fixture.engine->lock);
    int32_t tokens[128];
    int32_t count = 0;
    struct generation_request request = {
        .tokens_max = 128, .guard = {.call_max = CALL_MAX}, .speculation = SPECULATE_OFF};
    struct engine_event end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_OPEN_CALL);
    assert_string_equal(finish_reason_name(end.reason), "open_call");
    int32_t opened = (int32_t)opening.ids.count;
    assert_true(count >= opened + CALL_MAX && count <= opened + CALL_MAX + 1);
    request.guard.call_max = 0; /* off */
    end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_LENGTH);
    close_engine(&fixture);
    token_list_deinit(&opening.ids);
}
static void constrained_text_fits_its_schema(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    open_engine(&fixture, 2, 512);
    const struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(engine_vocabulary(fixture.engine, &vocabulary, &error)));
    const struct constraint_options options = {
        .response_schema = view_of_text("{\"type\":\"boolean\"}")};
    CLEANUP(constraint_cleanup) struct constraint *constraint = NULL;
    if (is_failed(constraint_create(&constraint, vocabulary, &options, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    for (uint64_t seed = 1; seed <= 6; seed++) {
        int32_t tokens[TOKENS];
        int32_t count = 0;
        struct engine_event end = run_request(
            &fixture,
            (struct generation_request
            ){.sampling = {.temperature = 1.5, .seed = seed},
              .tokens_max = TOKENS,
              .constraint = constraint},
            tokens,
            &count
        );
        assert_int_equal(end.reason, FINISH_EOS);
        char text[256];
        size_t length = 0;
        for (int32_t i = 0; i < count - 1; i++) {
            struct view bytes = tokenizer_bytes(engine_tokenizer(fixture.engine), tokens[i]);
            memcpy(text + length, bytes.data, bytes.length);
            length += bytes.length;
        }
        text[length] = '\0';
        assert_true(strcmp(text, "true") == 0 || strcmp(text, "false") == 0);
    }
    close_engine(&fixture);
}

struct moving {
    atomic_llong now_ms;
};

static int64_t moving_ms(void *context) {
    struct moving *moving = context;
    return atomic_fetch_add(&moving->now_ms, 5);
}

static void deadline_that_passes_ends_by_name(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct moving moving = {0};
    atomic_store(&moving.now_ms, 1000);
    struct fixture fixture;
    model_directory(path);
    open_options(
        &fixture,
        &(struct engine_options
        ){.model_directory = path,
          .threads = 1,
          .context_max = 512,
          .sequences_max = 2,
          .step_rows_max = 32,
          .clock = {moving_ms, moving_ms, &moving}}
    );
    int32_t tokens[256];
    int32_t count = 0;
    struct generation_request request = {
        .sampling = {.temperature = 1, .seed = 2},
        .tokens_max = 256,
        .deadline_ms = atomic_load(&moving.now_ms) + 1000,
    };
    struct engine_event end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_DEADLINE);
    assert_true(count < 256);
    /* One that no clock will reach is as good as none. */
    request.deadline_ms = INT64_MAX;
    request.tokens_max = 4;
    end = run_request(&fixture, request, tokens, &count);
    assert_int_equal(end.reason, FINISH_LENGTH);
    close_engine(&fixture);
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static void forks_have_seeds_of_their_own(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    open_engine(&fixture, 4, 512);
    int32_t prompt[PROMPT];
    int32_t tokens[2][64];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 3);
    uint64_t parent = create(&fixture);
    must_generate(&fixture, parent, prompt, PROMPT, 0);
    (void)collect(&fixture, parent, tokens[0], &count);
    for (int32_t i = 0; i < 2; i++) {
        uint64_t child = 0;
        struct sequence_seed seed;
        assert_true(is_ok(engine_sequence_fork(fixture.engine, parent, &child, &error)));
        assert_true(is_ok(engine_sequence_seed(fixture.engine, child, &seed, &error)));
        assert_true(seed.seed == sampling_child_seed(42, (uint64_t)i));
        assert_true(seed.parent_seed == 42 && seed.fork_index == i && seed.has_seed);
        const struct generation_request request = {
            .sequence = child,
            .append_count = 0,
            .sampling = {.temperature = 1, .top_p = 1},
            .uses_sequence_seed = true,
            .tokens_max = 16,
        };
        assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
        struct engine_event end = collect(&fixture, child, tokens[i], &count);
        assert_true(end.facts.seed == seed.seed && end.facts.parent_seed == 42);
        assert_int_equal(end.facts.fork_index, i);
    }
    assert_memory_not_equal(tokens[0], tokens[1], 16 * sizeof(int32_t));
    close_engine(&fixture);
}

static void fork_of_a_sequence_without_a_seed_has_none(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    struct sequence_seed seed;
    open_engine(&fixture, 2, 512);
    int32_t prompt[PROMPT];
    int32_t tokens[TOKENS];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 3);
    uint64_t parent = create(&fixture);
    uint64_t child = 0;
    assert_true(is_ok(engine_sequence_fork(fixture.engine, parent, &child, &error)));
    assert_true(is_ok(engine_sequence_seed(fixture.engine, child, &seed, &error)));
    assert_true(!seed.has_seed && seed.fork_index == -1 && seed.parent_seed == 0);
    const struct generation_request request = {
        .sequence = child,
        .append = prompt,
        .append_count = PROMPT,
        .sampling = {.temperature = 1, .top_p = 1},
        .uses_sequence_seed = true,
        .tokens_max = 4,
    };
    assert_int_equal(engine_generate(fixture.engine, &request, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "no seed yet"));
    /* Its first generation gives it one, as a new sequence gets it; the parent's stays its own. */
    must_generate(&fixture, child, prompt, PROMPT, 4);
    struct engine_event end = collect(&fixture, child, tokens, &count);
    assert_true(end.facts.seed == 42 && end.facts.parent_seed == 0 && end.facts.fork_index == -1);
    assert_true(is_ok(engine_sequence_seed(fixture.engine, child, &seed, &error)));
    assert_true(seed.has_seed && seed.seed == 42);
    assert_true(is_ok(engine_sequence_seed(fixture.engine, parent, &seed, &error)));
    assert_false(seed.has_seed);
    engine_sequence_destroy(fixture.engine, child);
    must_generate(&fixture, parent, prompt, PROMPT, 4);
    (void)collect(&fixture, parent, tokens, &count);
    assert_true(is_ok(engine_sequence_fork(fixture.engine, parent, &child, &error)));
    assert_true(is_ok(engine_sequence_seed(fixture.engine, child, &seed, &error)));
    assert_true(seed.has_seed && seed.seed == sampling_child_seed(42, 0) && seed.fork_index == 0);
    close_engine(&fixture);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void requests_wait_for_blocks_or_are_refused(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct fixture fixture;
    struct error error = {0};
    model_directory(path);
    open_options(
        &fixture,
        &(struct engine_options
        ){.model_directory = path,
          .threads = 1,
          .context_max = 1024,
          .sequences_max = 3,
          .windows_max = 2,
          .kv_tokens_max = 512,
          .has_no_prefix_cache = true,
          .step_rows_max = 32}
    );
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 1);
    uint64_t first = create(&fixture);
    uint64_t second = create(&fixture);
    result never = generate(&fixture, first, prompt, PROMPT, 600, &error);
    assert_int_equal(never.code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "needs 6 blocks, but there are 4"));
    must_generate(&fixture, first, prompt, PROMPT, 200);
    must_generate(&fixture, second, prompt, PROMPT, 200);
    /* The first one runs; the second one's three blocks are not there. */
    struct engine_event event = next_event(&fixture);
    assert_true(event.sequence == first);
    struct engine_statistics statistics;
    engine_statistics(fixture.engine, &statistics);
    assert_int_equal(statistics.request_count, 2);
    while (statistics.waiting_for_memory == 0) { /* said at the next boundary */
        event = next_event(&fixture);
        assert_true(event.sequence == first && event.type != ENGINE_FINISHED);
        engine_statistics(fixture.engine, &statistics);
    }
    assert_int_equal(statistics.waiting_for_memory, 1);
    assert_int_equal(statistics.blocks_total, 4);
    for (int32_t i = 0; i < 2; i++) {
        const struct engine_request_status *request = &statistics.requests[i];
        if (request->sequence == first) {
            assert_int_equal(request->blocks + request->blocks_promised, 3);
        }
    }
    struct engine_stuck stuck;
    assert_true(engine_watch(fixture.engine, 0, &stuck));
    assert_true(stuck.sequence == second && stuck.wait == ENGINE_WAIT_MEMORY);
    assert_non_null(strstr(stuck.why, "blocks"));
    assert_false(engine_watch(fixture.engine, 3600000, &stuck));
    while (event.type != ENGINE_FINISHED) {
        event = next_event(&fixture);
        assert_true(event.sequence == first);
    }
    /* The first one does not run any more: it gives its blocks back. */
    int32_t tokens[256];
    int32_t count = 0;
    struct engine_event end = collect(&fixture, second, tokens, &count);
    assert_true(end.reason == FINISH_LENGTH || end.reason == FINISH_EOS);
    engine_statistics(fixture.engine, &statistics);
    assert_int_equal(statistics.blocks_promised, 0);
    close_engine(&fixture);
}

/* One that waits for all blocks gets them, and holds up nobody for ever. */
static void large_request_does_not_hold_up_idle_engine(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct moving moving = {0};
    atomic_store(&moving.now_ms, 1000);
    struct fixture fixture;
    model_directory(path);
    open_options(
        &fixture,
        &(struct engine_options
        ){.model_directory = path,
          .threads = 1,
          .context_max = 512,
          .sequences_max = 3,
          .kv_tokens_max = 512,
          .has_no_prefix_cache = true,
          .step_rows_max = 32,
          .clock = {moving_ms, moving_ms, &moving}}
    );
    int32_t prompt[PROMPT];
    int32_t tokens[8];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 1);
    uint64_t small = create(&fixture);
    uint64_t large = create(&fixture);
    must_generate(&fixture, small, prompt, 20, 2);
    (void)collect(&fixture, small, tokens, &count);
    must_generate(&fixture, large, prompt, PROMPT, 300); /* four blocks, of which one is taken */
    atomic_fetch_add(&moving.now_ms, 10 * SCHEDULE_PASS_US / 1000);
    must_generate(&fixture, small, prompt, 4, 2);
    for (int32_t ends = 0; ends < 2;) {
        struct engine_event event = next_event(&fixture);
        if (event.type == ENGINE_FINISHED) {
            assert_true(event.reason == FINISH_LENGTH || event.reason == FINISH_EOS);
            ends++;
        }
    }
    struct engine_statistics statistics;
    engine_statistics(fixture.engine, &statistics);
    assert_true(statistics.total.demoted > 0);
    close_engine(&fixture);
}

/* No token follows, so no block for one is asked for. */
static void prompt_alone_takes_no_more_than_its_blocks(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct fixture fixture;
    model_directory(path);
    open_options(
        &fixture,
        &(struct engine_options
        ){.model_directory = path,
          .threads = 1,
          .context_max = 1024,
          .sequences_max = 1,
          .kv_tokens_max = KV_BLOCK_TOKENS,
          .has_no_prefix_cache = true,
          .step_rows_max = 32}
    );
    int32_t prompt[KV_BLOCK_TOKENS];
    make_prompt(prompt, KV_BLOCK_TOKENS, 1);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, KV_BLOCK_TOKENS, 0);
    int32_t tokens[1];
    int32_t count = 0;
    struct engine_event end = collect(&fixture, sequence, tokens, &count);
    if (end.reason == FINISH_ERROR) {
        print_error("%s\n", end.error.message);
    }
    assert_int_equal(end.reason, FINISH_LENGTH);
    close_engine(&fixture);
}

static int64_t thread_cpu_us(pthread_t thread) {
    clockid_t clock;
    struct timespec used;
    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    assert_int_equal(clock_gettime(clock, &used), 0);
    return (int64_t)used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

static void idle_engine_takes_no_cpu(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    int32_t tokens[TOKENS];
    int32_t count = 0;
    (void)run_request(
        &fixture,
        (struct generation_request){.sampling = {.temperature = 1}, .tokens_max = 8},
        tokens,
        &count
    );
    int64_t before = thread_cpu_us(fixture.engine->thread);
    (void)poll(NULL, 0, 400); /* time has to pass for time to be used */
    int64_t used = thread_cpu_us(fixture.engine->thread) - before;
    print_message("idle for 400 ms: %lld us of CPU\n", (long long)used);
    assert_true(used < 20000);
    close_engine(&fixture);
}

static void statistics_sum_to_the_facts(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 512);
    int32_t tokens[TOKENS];
    int32_t count = 0;
    uint64_t sums[4] = {0};
    for (uint64_t i = 0; i < 3; i++) {
        struct engine_event end = run_request(
            &fixture,
            (struct generation_request
            ){.sampling = {.temperature = 1, .seed = i}, .tokens_max = TOKENS},
            tokens,
            &count
        );
        sums[0] += (uint64_t)end.facts.evaluated;
        sums[1] += (uint64_t)end.facts.reused;
        sums[2] += (uint64_t)end.facts.rebuilt;
        sums[3] += (uint64_t)end.facts.sampled;
    }
    struct engine_statistics statistics;
    engine_statistics(fixture.engine, &statistics);
    const struct engine_counts *total = &statistics.total;
    assert_true(total->queued == 3 && total->finished == 3);
    assert_true(total->prefill_rows == sums[0] && total->reused == sums[1]);
    assert_true(total->rebuilt == sums[2] && total->sampled == sums[3]);
    assert_true(total->reused > 0);
    uint64_t steps = 0;
    for (int b = 0; b < ENGINE_STEP_BUCKETS; b++) {
        steps += statistics.step_histogram[b];
    }
    assert_true(steps == total->steps && steps > 0);
    assert_true(statistics.step_us_max > 0 && statistics.decision_us > 0);
    close_engine(&fixture);
}

static void cancelled_prompt_leaves_blocks_as_cache(void **state) {
    (void)state;
    struct fixture fixture;
    open_engine(&fixture, 2, 1024);
    enum { LONG = 700 };
    int32_t prompt[LONG];
    make_prompt(prompt, LONG, 8);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, LONG, 4);
    struct engine_event event = next_event(&fixture);
    int32_t done = 0;
    bool is_cancelled = false;
    while (event.type != ENGINE_FINISHED) {
        done = event.type == ENGINE_PROGRESS ? event.done : done;
        if (done >= 300 && !is_cancelled) {
            engine_cancel(fixture.engine, sequence);
            is_cancelled = true;
        }
        event = next_event(&fixture);
    }
    assert_true(event.reason == FINISH_CANCELLED || event.reason == FINISH_LENGTH);
    engine_sequence_destroy(fixture.engine, sequence);
    uint64_t other = create(&fixture);
    int32_t tokens[8];
    int32_t count = 0;
    must_generate(&fixture, other, prompt, LONG, 1);
    event = collect(&fixture, other, tokens, &count);
    assert_true(event.facts.reused >= done / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS);
    close_engine(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_that_are_no_numbers_end_one_request),
        cmocka_unit_test(requests_out_of_range_are_refused_by_name),
        cmocka_unit_test(stops_end_a_generation_and_say_which),
        cmocka_unit_test(guards_end_a_generation_by_name),
        cmocka_unit_test(call_that_does_not_end_ends_by_name),
        cmocka_unit_test(constrained_text_fits_its_schema),
        cmocka_unit_test(deadline_that_passes_ends_by_name),
        cmocka_unit_test(forks_have_seeds_of_their_own),
        cmocka_unit_test(fork_of_a_sequence_without_a_seed_has_none),
        cmocka_unit_test(requests_wait_for_blocks_or_are_refused),
        cmocka_unit_test(large_request_does_not_hold_up_idle_engine),
        cmocka_unit_test(prompt_alone_takes_no_more_than_its_blocks),
        cmocka_unit_test(idle_engine_takes_no_cpu),
        cmocka_unit_test(statistics_sum_to_the_facts),
        cmocka_unit_test(cancelled_prompt_leaves_blocks_as_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
