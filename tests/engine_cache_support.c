/* See engine_cache_support.h. */
#include "engine_cache_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

int32_t text[TEXT];

void make_text(void) {
    make_prompt(text, TEXT, 4711);
}

static int64_t simulated_ms(void *context) {
    struct simulated *simulated = context;
    return simulated->now_ms;
}

struct clock simulated_clock(struct simulated *simulated) {
    return (struct clock
    ){.monotonic_ms = simulated_ms, .wall_ms = simulated_ms, .context = simulated};
}

void open_with(struct fixture *fixture, const struct engine_options *more) {
    char path[TEST_PATH_MAX];
    model_directory(path);
    struct engine_options options = *more;
    options.model_directory = path;
    options.threads = 1;
    options.context_max = options.context_max == 0 ? CONTEXT : options.context_max;
    options.sequences_max = options.sequences_max == 0 ? 4 : options.sequences_max;
    options.step_rows_max = 64;
    open_options(fixture, &options);
}

void open_warm(struct fixture *fixture) {
    open_with(fixture, &(struct engine_options){0});
}

void open_cold(struct fixture *fixture) {
    open_with(fixture, &(struct engine_options){.has_no_prefix_cache = true});
}

void send(struct fixture *fixture, uint64_t sequence, const struct ask *ask) {
    struct error error = {0};
    struct generation_request request = {
        .sequence = sequence,
        .append = ask->ids,
        .append_count = (size_t)ask->count,
        .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 42},
        .tokens_max = ask->sampled,
        .window = ask->window,
    };
    if (ask->contract != NULL) {
        request.has_contract = true;
        request.contract = ask->contract->replays;
        request.contract_count = ask->contract->replay_count;
    }
    if (is_failed(engine_generate(fixture->engine, &request, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
}

void take(struct fixture *fixture, uint64_t sequence, struct answer *out) {
    out->count = 0;
    for (;;) {
        struct engine_event event = next_event(fixture);
        assert_true(event.sequence == sequence);
        if (event.type == ENGINE_TOKEN) {
            out->logprobs[out->count] = event.logprob;
            out->tokens[out->count++] = event.token;
        } else if (event.type == ENGINE_FINISHED) {
            out->facts = event.facts;
            out->reason = event.reason;
            out->error = event.error;
            return;
        }
    }
}

void turn(struct fixture *fixture, uint64_t sequence, const struct ask *ask, struct answer *out) {
    send(fixture, sequence, ask);
    take(fixture, sequence, out);
    if (out->reason == FINISH_ERROR) {
        print_error("%s\n", out->error.message);
        fail();
    }
    const struct generation_facts *facts = &out->facts;
    assert_int_equal(facts->evaluated + facts->reused, facts->prompt_tokens);
    if (ask->contract == NULL) {
        assert_int_equal(facts->rebuilt, facts->reused - facts->rebuilt_from);
    }
    assert_int_equal(facts->hit_position, facts->reused);
    assert_int_equal(facts->sampled, out->count);
    assert_non_null(facts->miss);
}

void once(struct fixture *fixture, const struct ask *ask, struct answer *out) {
    uint64_t sequence = create(fixture);
    turn(fixture, sequence, ask, out);
    engine_sequence_destroy(fixture->engine, sequence);
}

void assert_same(const struct answer *a, const struct answer *b) {
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->count * sizeof *a->logprobs);
}

void assert_exact(const struct answer *answer) {
    assert_string_equal(answer->facts.block_lineage, answer->facts.lineage);
    assert_string_equal(answer->facts.decoder_lineage, "0");
    assert_int_equal(answer->facts.replay_count, 0);
}

void branch(int32_t *out, int32_t shared, int32_t count, uint32_t seed) {
    make_prompt(out, count, seed);
    memcpy(out, text, (size_t)shared * sizeof *out);
    if (shared < count && shared < TEXT && out[shared] == text[shared]) {
        out[shared] = out[shared] == 3 ? 4 : out[shared] - 1;
    }
}
