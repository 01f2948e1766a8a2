/* The engine as its callers see it: events, cancelling, destroying, limits, and that what shares the
 * engine changes no token. Thread and memory sanitizers run this too. */
#include "engine_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PROMPT_WINDOW 16

static void generation_reports_progress_tokens_and_facts(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 5);
    open_engine(&fixture, 2, 300);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, PROMPT, 10);
    int32_t done = 0;
    int32_t tokens = 0;
    struct engine_event event;
    for (event = next_event(&fixture); event.type != ENGINE_FINISHED;
         event = next_event(&fixture)) {
        if (event.type == ENGINE_PROGRESS) {
            assert_int_equal(tokens, 0);
            assert_true(event.done > done && event.done <= PROMPT);
            assert_int_equal(event.total, PROMPT);
            done = event.done;
        } else {
            tokens++;
        }
    }
    assert_int_equal(done, PROMPT);
    assert_int_equal(tokens, 10);
    assert_int_equal(event.reason, FINISH_LENGTH);
    check_facts(&event.facts, 10);
    assert_int_equal(event.facts.reused, 0);
    assert_string_equal(event.facts.window_source, "cold");
    assert_string_equal(event.facts.decoder_lineage, "0");
    assert_int_equal(engine_sequence_length(fixture.engine, sequence), PROMPT + 10);
    /* The next turn reuses all but the token that was sampled last and never evaluated. */
    must_generate(&fixture, sequence, prompt, 7, 3);
    int32_t sampled[8];
    int32_t count = 0;
    event = collect(&fixture, sequence, sampled, &count);
    check_facts(&event.facts, 3);
    assert_int_equal(event.facts.prompt_tokens, PROMPT + 17);
    assert_int_equal(event.facts.reused, PROMPT + 9);
    assert_string_equal(event.facts.window_source, "live");
    struct engine_info info;
    engine_get_info(fixture.engine, &info);
    assert_string_equal(event.facts.lineage, info.root_lineage);
    assert_int_equal(info.vocabulary, VOCABULARY);
    assert_string_equal(info.model_name, "tiny-a");
    close_engine(&fixture);
}

/* Turn by turn, alone or beside another sequence, evaluated before or at once: the same tokens. */
static void sequences_interleaved_equal_alone(void **state) {
    (void)state;
    struct run alone[2];
    struct fixture fixture;
    open_engine(&fixture, 3, 300);
    for (int s = 0; s < 2; s++) {
        make_prompt(alone[s].prompt, PROMPT, 100U + (uint32_t)s);
        uint64_t sequence = create(&fixture);
        must_generate(&fixture, sequence, alone[s].prompt, (size_t)(PROMPT - 30 * s), 40);
        (void)collect(&fixture, sequence, alone[s].tokens, &alone[s].count);
        engine_sequence_destroy(fixture.engine, sequence);
    }
    uint64_t ids[2] = {create(&fixture), create(&fixture)};
    int32_t tokens[2][64];
    int32_t counts[2] = {0, 0};
    for (int s = 0; s < 2; s++) {
        must_generate(&fixture, ids[s], alone[s].prompt, (size_t)(PROMPT - 30 * s), 40);
    }
    for (int finished = 0; finished < 2;) {
        struct engine_event event = next_event(&fixture);
        int s = event.sequence == ids[0] ? 0 : 1;
        assert_true(event.sequence == ids[s]);
        finished += event.type == ENGINE_FINISHED;
        if (event.type == ENGINE_TOKEN) {
            tokens[s][counts[s]++] = event.token;
        }
    }
    for (int s = 0; s < 2; s++) {
        assert_int_equal(counts[s], alone[s].count);
        assert_memory_equal(tokens[s], alone[s].tokens, (size_t)counts[s] * sizeof(int32_t));
    }
    /* The prompt in turns, then sampling from logits kept after the last of them. */
    uint64_t third = create(&fixture);
    int32_t none = 0;
    must_generate(&fixture, third, alone[0].prompt, 31, 0);
    (void)collect(&fixture, third, tokens[0], &none);
    assert_int_equal(none, 0);
    must_generate(&fixture, third, alone[0].prompt + 31, PROMPT - 31, 0);
    struct engine_event event = collect(&fixture, third, tokens[0], &none);
    assert_int_equal(event.facts.evaluated, PROMPT - 31);
    must_generate(&fixture, third, NULL, 0, 40);
    event = collect(&fixture, third, tokens[0], &counts[0]);
    assert_int_equal(event.facts.evaluated, 0);
    assert_int_equal(event.facts.reused, PROMPT);
    assert_int_equal(counts[0], alone[0].count);
    assert_memory_equal(tokens[0], alone[0].tokens, (size_t)counts[0] * sizeof(int32_t));
    close_engine(&fixture);
}

static void cancel_in_prompt_keeps_sequence_usable(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    int32_t whole[32];
    int32_t tokens[32];
    int32_t count = 0;
    int32_t whole_count = 0;
    make_prompt(prompt, PROMPT, 9);
    open_engine(&fixture, 2, 300);
    uint64_t reference = create(&fixture);
    must_generate(&fixture, reference, prompt, PROMPT, 20);
    (void)collect(&fixture, reference, whole, &whole_count);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, PROMPT - 10, 20);
    struct engine_event event = next_event(&fixture);
    assert_int_equal(event.type, ENGINE_PROGRESS);
    engine_cancel(fixture.engine, sequence);
    event = collect(&fixture, sequence, tokens, &count);
    /* The step at hand ends first; on a fast machine that may have been the last one. */
    assert_true(event.reason == FINISH_CANCELLED || event.reason == FINISH_LENGTH);
    assert_int_equal(event.facts.evaluated + event.facts.reused, event.facts.prompt_tokens);
    if (event.reason == FINISH_CANCELLED && count == 0) {
        assert_true(event.facts.prompt_tokens < PROMPT - 10);
        assert_int_equal(engine_sequence_length(fixture.engine, sequence), PROMPT - 10);
        must_generate(&fixture, sequence, prompt + PROMPT - 10, 10, 20);
        event = collect(&fixture, sequence, tokens, &count);
        check_facts(&event.facts, count);
        assert_int_equal(count, whole_count);
        assert_memory_equal(tokens, whole, (size_t)count * sizeof(int32_t));
    }
    close_engine(&fixture);
}

static void cancel_while_decoding_keeps_what_was_sampled(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 10);
    open_engine(&fixture, 1, 4096);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, 20, 3000);
    int32_t seen = 0;
    struct engine_event event;
    do {
        event = next_event(&fixture);
        seen += event.type == ENGINE_TOKEN;
        if (seen == 5) {
            engine_cancel(fixture.engine, sequence);
        }
    } while (event.type != ENGINE_FINISHED);
    assert_true(event.reason == FINISH_CANCELLED || event.reason == FINISH_EOS);
    assert_int_equal(event.facts.sampled, seen);
    assert_int_equal(engine_sequence_length(fixture.engine, sequence), 20 + seen);
    engine_cancel(fixture.engine, sequence); /* idle: nothing happens */
    engine_cancel(fixture.engine, 12345);
    close_engine(&fixture);
}

static void destroy_while_running_sends_nothing_more(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 11);
    open_engine(&fixture, 2, 400);
    for (int i = 0; i < 6; i++) {
        uint64_t doomed = create(&fixture);
        must_generate(&fixture, doomed, prompt, PROMPT, 200);
        if (i % 2 == 0) {
            (void)next_event(&fixture);
        }
        engine_sequence_destroy(fixture.engine, doomed);
        /* Its place is free at once, and only the successor is heard of. */
        uint64_t successor = create(&fixture);
        must_generate(&fixture, successor, prompt, 10, 3);
        int32_t tokens[8];
        int32_t count = 0;
        (void)collect(&fixture, successor, tokens, &count);
        engine_sequence_destroy(fixture.engine, successor);
        engine_sequence_destroy(fixture.engine, successor);
    }
    close_engine(&fixture);
}

static void close_while_running_returns(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 12);
    open_engine(&fixture, 2, 4096);
    must_generate(&fixture, create(&fixture), prompt, PROMPT, 3000);
    must_generate(&fixture, create(&fixture), prompt, PROMPT, 3000);
    (void)next_event(&fixture);
    close_engine(&fixture);
}

/* Nobody takes events: the engine waits with everything kept, then goes on. */
static void events_not_taken_hold_the_engine(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 13);
    open_engine(&fixture, 1, 4096);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, 10, 400);
    struct timespec pause = {.tv_nsec = 300000000};
    (void)nanosleep(&pause, NULL);
    int32_t *tokens = calloc(400, sizeof *tokens);
    assert_non_null(tokens);
    int32_t count = 0;
    struct engine_event event = collect(&fixture, sequence, tokens, &count);
    assert_int_equal(event.facts.sampled, count);
    assert_true(count == 400 || tokens[count - 1] == 1);
    free(tokens);
    close_engine(&fixture);
}

static void context_limit_finishes_and_refuses(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    int32_t tokens[64];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 14);
    open_engine(&fixture, 1, 160);
    uint64_t sequence = create(&fixture);
    must_generate(&fixture, sequence, prompt, PROMPT, 64);
    struct engine_event event = collect(&fixture, sequence, tokens, &count);
    if (event.reason != FINISH_EOS) {
        assert_int_equal(event.reason, FINISH_CONTEXT);
        assert_int_equal(count, 10);
        assert_int_equal(generate(&fixture, sequence, prompt, 1, 1, &error).code, RESULT_LIMIT);
        assert_non_null(strstr(error.message, "160"));
        /* Nothing to append, one token left to evaluate, no room to sample. */
        must_generate(&fixture, sequence, NULL, 0, 5);
        event = collect(&fixture, sequence, tokens, &count);
        assert_int_equal(event.reason, FINISH_CONTEXT);
        assert_int_equal(count, 0);
    }
    close_engine(&fixture);
}

static void requests_that_are_wrong_are_refused(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 15);
    open_engine(&fixture, 2, 300);
    uint64_t sequence = create(&fixture);
    int32_t bad[] = {5, VOCABULARY, 7};
    assert_int_equal(generate(&fixture, sequence, bad, 3, 1, &error).code, RESULT_INVALID_INPUT);
    bad[1] = -1;
    assert_int_equal(generate(&fixture, sequence, bad, 3, 1, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(generate(&fixture, sequence, NULL, 0, 1, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(generate(&fixture, 999, prompt, 3, 1, &error).code, RESULT_NOT_FOUND);
    assert_int_equal(
        generate(&fixture, sequence, prompt, 3, -1, &error).code, RESULT_INVALID_INPUT
    );
    must_generate(&fixture, sequence, prompt, PROMPT, 100);
    assert_int_equal(generate(&fixture, sequence, prompt, 1, 1, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "busy"));
    uint64_t second = create(&fixture);
    uint64_t third = 0;
    assert_int_equal(engine_sequence_create(fixture.engine, &third, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "2"));
    engine_sequence_destroy(fixture.engine, second);
    assert_true(is_ok(engine_sequence_create(fixture.engine, &third, &error)));
    close_engine(&fixture);
}

/* ---- logits --------------------------------------------------------------------------------- */

struct rows {
    float *logits; /* [PROMPT, V] */
    int32_t first, count;
};

static void take_row(void *context, int32_t position, const float *logits, int32_t vocabulary) {
    struct rows *rows = context;
    assert_int_equal(vocabulary, VOCABULARY);
    if (rows->count == 0) {
        rows->first = position;
    }
    assert_int_equal(position, rows->first + rows->count);
    rows->count++;
    memcpy(rows->logits + (size_t)position * VOCABULARY, logits, VOCABULARY * sizeof *logits);
}

static void
run_logits(struct fixture *fixture, const struct logits_request *request, struct rows *rows) {
    struct error error = {0};
    rows->count = 0;
    if (is_failed(engine_logits(fixture->engine, request, NULL, take_row, rows, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
}

static void logits_same_by_any_chunk_and_window(void **state) {
    (void)state;
    struct fixture fixture;
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, 16);
    open_engine(&fixture, 1, 300);
    struct rows all = {.logits = calloc((size_t)PROMPT * VOCABULARY, sizeof(float))};
    struct rows other = {.logits = calloc((size_t)PROMPT * VOCABULARY, sizeof(float))};
    assert_non_null(all.logits);
    assert_non_null(other.logits);
    struct logits_request request = {.ids = prompt, .count = PROMPT};
    size_t bytes = (size_t)PROMPT * VOCABULARY * sizeof(float);
    run_logits(&fixture, &request, &all);
    assert_int_equal(all.count, PROMPT);
    request.chunk = 1;
    run_logits(&fixture, &request, &other);
    assert_memory_equal(other.logits, all.logits, bytes);
    request.chunk = 13;
    request.last_only = true;
    run_logits(&fixture, &request, &other);
    assert_int_equal(other.count, 1);
    assert_int_equal(other.first, PROMPT - 1);
    assert_memory_equal(other.logits, all.logits, bytes);
    /* Replay: the last W rows, near the exact ones but not the same. */
    request.last_only = false;
    request.window = WINDOW_REPLAY;
    memset(other.logits, 0, bytes);
    run_logits(&fixture, &request, &other);
    assert_int_equal(other.count, PROMPT_WINDOW);
    assert_int_equal(other.first, PROMPT - PROMPT_WINDOW);
    size_t at = (size_t)(PROMPT - 1) * VOCABULARY;
    assert_true(memcmp(other.logits + at, all.logits + at, VOCABULARY * sizeof(float)) != 0);
    /* A prompt of at most one window is the same by replay. */
    request.count = PROMPT_WINDOW;
    run_logits(&fixture, &request, &other);
    assert_int_equal(other.count, PROMPT_WINDOW);
    assert_memory_equal(
        other.logits, all.logits, (size_t)PROMPT_WINDOW * VOCABULARY * sizeof(float)
    );
    free(other.logits);
    free(all.logits);
    close_engine(&fixture);
}

static void replay_is_recorded_in_lineage(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    int32_t tokens[8];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 17);
    open_engine(&fixture, 1, 300);
    uint64_t sequence = create(&fixture);
    struct generation_request request = {
        .sequence = sequence,
        .append = prompt,
        .append_count = PROMPT_WINDOW,
        .sampling = {.temperature = 0, .top_p = 1},
        .tokens_max = 2,
        .window = WINDOW_REPLAY,
    };
    /* Nothing is skipped: exact. */
    assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
    struct engine_event event = collect(&fixture, sequence, tokens, &count);
    assert_string_equal(event.facts.decoder_lineage, "0");
    assert_string_equal(event.facts.window_source, "cold");
    request.append_count = 60;
    assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
    event = collect(&fixture, sequence, tokens, &count);
    assert_int_equal(strlen(event.facts.decoder_lineage), 64);
    assert_string_equal(event.facts.window_source, "replay");
    assert_int_equal(event.facts.replay_count, 1);
    assert_int_equal(event.facts.replays[0].kind, WINDOW_REPLAY_DECODER);
    assert_int_equal(event.facts.replays[0].position, event.facts.prompt_tokens);
    close_engine(&fixture);
}

static void replays_as_text_come_back(void **state) {
    (void)state;
    static const struct window_replay list[] = {
        {WINDOW_REPLAY_ENCODER, 256}, {WINDOW_REPLAY_DECODER, 1800}, {WINDOW_REPLAY_DECODER, 1}};
    static const char *const wrong[] = {
        "encoder",
        "encoder@",
        "encoder@0",
        "encoder@-1",
        "encoder@2147483648",
        "encoder@1 ",
        " encoder@1",
        "encoder@1  decoder@2",
        "encoder@1,decoder@2",
        "Encoder@1",
        "decoder@1x"};
    struct error error = {0};
    struct window_replay found[ENGINE_REPLAYS_MAX];
    int32_t count = -1;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 4096);
    assert_true(is_ok(window_replays_format(list, 3, &text, &error)));
    assert_true(view_equals_text(buffer_view(&text), "encoder@256 decoder@1800 decoder@1"));
    assert_true(is_ok(window_replays_parse(buffer_view(&text), found, 3, &count, &error)));
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(found[i].kind, list[i].kind);
        assert_int_equal(found[i].position, list[i].position);
    }
    result full = window_replays_parse(buffer_view(&text), found, 2, &count, &error);
    assert_int_equal(full.code, RESULT_LIMIT);
    assert_true(is_ok(window_replays_parse(view_of_text(""), found, 3, &count, &error)));
    assert_int_equal(count, 0);
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct view bad = view_of_text(wrong[i]);
        assert_int_equal(window_replays_parse(bad, found, 9, &count, &error).code, RESULT_CORRUPT);
    }
    for (int32_t i = 0; i < ENGINE_MISSES; i++) {
        assert_non_null(engine_miss_name(i));
    }
    assert_null(engine_miss_name(ENGINE_MISSES));
}

/* A replay cancelled before it reached its window leaves no decoder rows behind: what follows starts
 * where the prompt stopped, and says that it is not exact. */
static void replay_cancelled_in_prompt_goes_on(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    int32_t tokens[64];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 18);
    open_engine(&fixture, 1, 300);
    uint64_t sequence = create(&fixture);
    struct generation_request request = {
        .sequence = sequence,
        .append = prompt,
        .append_count = PROMPT,
        .sampling = {.temperature = 0, .top_p = 1},
        .tokens_max = 4,
        .window = WINDOW_REPLAY,
    };
    assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
    struct engine_event event = next_event(&fixture);
    assert_int_equal(event.type, ENGINE_PROGRESS);
    engine_cancel(fixture.engine, sequence);
    event = collect(&fixture, sequence, tokens, &count);
    request.append_count = 5;
    request.window = WINDOW_EXACT;
    assert_true(is_ok(engine_generate(fixture.engine, &request, &error)));
    event = collect(&fixture, sequence, tokens, &count);
    assert_int_equal(event.facts.evaluated + event.facts.reused, event.facts.prompt_tokens);
    assert_int_equal(strlen(event.facts.decoder_lineage), 64);
    assert_int_equal(count, event.facts.sampled);
    close_engine(&fixture);
}

/* ---- a backend that fails ------------------------------------------------------------------- */

static result failing_synchronize(struct backend *backend, struct error *error) {
    FAIL(error, DEVICE, "attention on backend '%s': broken for a test", backend->name);
}

/* The step's sequences are lost and say so; the engine and other sequences go on. */
static void step_that_fails_ends_its_generations(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    int32_t prompt[PROMPT];
    int32_t tokens[8];
    int32_t count = 0;
    make_prompt(prompt, PROMPT, 19);
    open_engine(&fixture, 2, 300);
    struct backend *backend = fixture.engine->backend;
    result (*synchronize)(struct backend *, struct error *) = backend->synchronize;
    uint64_t lost = create(&fixture);
    /* The engine thread sleeps; the lock that the request takes orders this write. */
    backend->synchronize = failing_synchronize;
    must_generate(&fixture, lost, prompt, 20, 3);
    struct engine_event event = collect(&fixture, lost, tokens, &count);
    assert_int_equal(event.reason, FINISH_ERROR);
    assert_int_equal(event.error.code, RESULT_DEVICE);
    assert_non_null(strstr(event.error.message, "broken for a test"));
    assert_int_equal(count, 0);
    backend->synchronize = synchronize;
    assert_int_equal(generate(&fixture, lost, prompt, 1, 1, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "lost"));
    uint64_t other = create(&fixture);
    must_generate(&fixture, other, prompt, 20, 3);
    event = collect(&fixture, other, tokens, &count);
    assert_int_equal(event.reason, FINISH_LENGTH);
    engine_sequence_destroy(fixture.engine, lost);
    assert_int_not_equal(create(&fixture), lost);
    close_engine(&fixture);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Queues of many sequences are part of the plan; more blocks than numbers are refused. */
static void plan_counts_queues_and_bounds_blocks(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    model_directory(path);
    struct error error = {0};
    struct engine_plan few;
    struct engine_plan many;
    struct engine_options options = {
        .model_directory = path,
        .context_max = 128,
        .sequences_max = 16,
        .step_rows_max = 4096,
        .memory_max = (uint64_t)1 << 40,
    };
    assert_true(is_ok(engine_plan_make(&options, &few, &error)));
    options.sequences_max = 4096;
    assert_true(is_ok(engine_plan_make(&options, &many, &error)));
    uint64_t logits = (4096 - 16) * (uint64_t)VOCABULARY * sizeof(float);
    uint64_t queues = engine_queue_bytes(&many) - engine_queue_bytes(&few);
    assert_true(queues > 50000000);
    uint64_t requests = (4096 - 16) * engine_request_bytes(&few, VOCABULARY);
    uint64_t lookups = (4096 - 16) * lookup_bytes(128);
    assert_true(many.scratch_bytes - few.scratch_bytes >= logits + queues + requests + lookups);
    struct model_config *config = calloc(1, sizeof *config);
    struct model_size size;
    assert_non_null(config);
    assert_true(is_ok(model_measure(path, config, &size, &error)));
    config->positions_max = INT32_MAX;
    options.context_max = 0;
    result refused = engine_plan_fill(&options, config, &size, &many, &error);
    assert_int_equal(refused.code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "blocks"));
    free(config);
}

static void plan_refuses_what_does_not_fit(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    struct error error = {0};
    struct engine_plan plan;
    struct engine *engine = NULL;
    model_directory(path);
    struct engine_options options = {.model_directory = path, .sequences_max = 2};
    assert_true(is_ok(engine_plan_make(&options, &plan, &error)));
    assert_true(plan.total_beside_weights > 0);
    assert_true(plan.total_beside_weights <= plan.memory_max);
    assert_true(plan.weights_mapped > 1000000);
    assert_int_equal(plan.context_max, 4096);
    /* The parts are the whole. */
    options.cache_directory = "/nowhere";
    options.cache_host_bytes = 1 << 20;
    struct engine_plan tiers;
    assert_true(is_ok(engine_plan_make(&options, &tiers, &error)));
    assert_true(tiers.host_bytes > 0 && tiers.host_bytes <= 1 << 20 && tiers.tier_bytes > 0);
    assert_true(tiers.other_bytes > 0 && tiers.other_bytes < tiers.total_beside_weights);
    assert_int_equal(
        tiers.kv_pool_bytes + tiers.snapshot_bytes + tiers.prefix_bytes + tiers.other_bytes +
            tiers.host_bytes + tiers.tier_bytes + tiers.scratch_bytes,
        tiers.total_beside_weights
    );
    options.memory_max = 1 << 20;
    options.cache_host_bytes = 0;
    struct engine_plan none;
    assert_int_equal(engine_plan_make(&options, &none, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "host pool 0, buffers of the cache's tiers "));
    options.memory_max = 0;
    options.cache_directory = NULL;
    /* Each part grows with what it depends on. */
    struct engine_plan larger;
    options.threads = 8;
    assert_true(is_ok(engine_plan_make(&options, &larger, &error)));
    options.threads = 1;
    assert_true(is_ok(engine_plan_make(&options, &plan, &error)));
    assert_true(larger.scratch_bytes > plan.scratch_bytes); /* the backend's, per thread */
    assert_int_equal(larger.kv_pool_bytes, plan.kv_pool_bytes);
    options.threads = 0;
    /* What is kept for later gives way when nobody asked for it. */
    assert_true(plan.cache_pool_bytes > 0 && plan.snapshot_bytes > 0);
    options.memory_max = plan.total_beside_weights - 1;
    assert_true(is_ok(engine_plan_make(&options, &larger, &error)));
    assert_true(larger.total_beside_weights <= options.memory_max);
    options.memory_max = 0;
    options.cache_memory_bytes = plan.cache_pool_bytes;
    options.snapshot_bytes = plan.snapshot_bytes;
    assert_true(is_ok(engine_plan_make(&options, &larger, &error)));
    assert_int_equal(larger.cache_pool_bytes, plan.cache_pool_bytes);
    assert_int_equal(larger.snapshot_bytes, plan.snapshot_bytes);
    options.memory_max = larger.total_beside_weights - 1;
    assert_int_equal(engine_plan_make(&options, &plan, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, ": 1 short"));
    assert_int_equal(engine_open(&options, &engine, &error).code, RESULT_LIMIT);
    assert_null(engine);
    options.memory_max = 0;
    options.context_max = 4097;
    assert_int_equal(engine_plan_make(&options, &plan, &error).code, RESULT_INVALID_INPUT);
    options.context_max = 0;
    options.isa = "vax";
    assert_true(is_failed(engine_open(&options, &engine, &error)));
    options.isa = NULL;
    options.backend = "abacus";
    assert_int_equal(engine_open(&options, &engine, &error).code, RESULT_UNSUPPORTED);
    options.backend = NULL;
    options.model_directory = "/nonexistent/model";
    assert_int_equal(engine_open(&options, &engine, &error).code, RESULT_NOT_FOUND);
    assert_null(engine);
    engine_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generation_reports_progress_tokens_and_facts),
        cmocka_unit_test(sequences_interleaved_equal_alone),
        cmocka_unit_test(cancel_in_prompt_keeps_sequence_usable),
        cmocka_unit_test(cancel_while_decoding_keeps_what_was_sampled),
        cmocka_unit_test(destroy_while_running_sends_nothing_more),
        cmocka_unit_test(close_while_running_returns),
        cmocka_unit_test(events_not_taken_hold_the_engine),
        cmocka_unit_test(context_limit_finishes_and_refuses),
        cmocka_unit_test(requests_that_are_wrong_are_refused),
        cmocka_unit_test(logits_same_by_any_chunk_and_window),
        cmocka_unit_test(replay_is_recorded_in_lineage),
        cmocka_unit_test(replays_as_text_come_back),
        cmocka_unit_test(replay_cancelled_in_prompt_goes_on),
        cmocka_unit_test(step_that_fails_ends_its_generations),
        cmocka_unit_test(plan_refuses_what_does_not_fit),
        cmocka_unit_test(plan_counts_queues_and_bounds_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
