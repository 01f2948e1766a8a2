/* The cache as callers see it: whatever is found of a prompt, wherever it branches off and however its
 * windows come back, the tokens and log-probabilities are those of an engine that keeps nothing. */

#include "engine_cache_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- exact ---------------------------------------------------------------------------------- */

/* Branches at block borders, inside blocks, at odd and even positions, near both ends. */
static void branch_anywhere_equals_cold(void **state) {
    (void)state;
    static const int32_t at[] = {2, 17, 127, 128, 129, 301, 511, 777};
    static const int32_t more[] = {1, 2, 20, 140, 290};
    struct fixture warm;
    struct fixture cold;
    open_warm(&warm);
    open_cold(&cold);
    struct answer first;
    once(&warm, &(struct ask){.ids = text, .count = 800, .sampled = 2}, &first);
    assert_string_equal(first.facts.window_source, "cold");
    for (size_t i = 0; i < COUNT_OF(at); i++) {
        int32_t prompt[TEXT + 300];
        int32_t count = at[i] + more[i % COUNT_OF(more)];
        count = count > TEXT ? TEXT : count;
        branch(prompt, at[i], count, 1000U + (uint32_t)i);
        struct ask ask = {.ids = prompt, .count = count, .sampled = SAMPLED};
        struct answer got;
        struct answer wanted;
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        assert_exact(&got);
        assert_int_equal(wanted.facts.reused, 0);
        int32_t most = at[i] & ~1;
        most = most < count ? most : (count - 1) & ~1;
        assert_int_equal(got.facts.reused, most);
        /* The same again starts from what it left. */
        once(&warm, &ask, &got);
        assert_same(&got, &wanted);
        assert_true(got.facts.reused >= most);
    }
    struct engine_cache_status status;
    engine_cache_status(warm.engine, &status);
    assert_true(status.snapshots_used > 0 && status.reused_tokens > 0);
    assert_true(status.rebuilt_tokens > 0 && status.blocks_deduplicated == 0);
    close_engine(&warm);
    close_engine(&cold);
}

/* A conversation that comes back after its sequence was destroyed goes on where it stopped, at an odd
 * position too, and rewinds to any turn. */
static void conversation_returns_by_snapshot(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    open_warm(&warm);
    open_cold(&cold);
    for (int32_t odd = 0; odd < 2; odd++) {
        int32_t context[TEXT];
        int32_t count = 301 + odd;
        branch(context, 0, count, 77U + (uint32_t)odd);
        struct answer got;
        struct answer wanted;
        once(&warm, &(struct ask){.ids = context, .count = count, .sampled = SAMPLED}, &got);
        memcpy(context + count, got.tokens, (size_t)got.count * sizeof *context);
        int32_t end = count + got.count;
        context[end] = 7;
        struct ask ask = {.ids = context, .count = end + 1, .sampled = SAMPLED};
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        assert_exact(&got);
        /* All but the token sampled last, which was never evaluated. */
        assert_int_equal(got.facts.reused, end - 1);
        assert_string_equal(got.facts.window_source, "snapshot");
        assert_int_equal(got.facts.rebuilt, 0);
        /* Regenerate: the prompt alone. */
        ask.count = count;
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        assert_int_equal(got.facts.reused, (count - 1) & ~1);
        assert_string_equal(got.facts.window_source, "rebuilt");
    }
    close_engine(&warm);
    close_engine(&cold);
}

/* Where many prompts branch off, the first one rebuilds and leaves windows for the others. */
static void second_branch_at_a_point_rebuilds_nothing(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    open_warm(&warm);
    open_cold(&cold);
    struct answer got;
    struct answer wanted;
    once(&warm, &(struct ask){.ids = text, .count = 600, .sampled = 1}, &got);
    for (uint32_t i = 0; i < 3; i++) {
        int32_t prompt[TEXT];
        branch(prompt, 444, 700, 50 + i);
        struct ask ask = {.ids = prompt, .count = 700, .sampled = SAMPLED};
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        assert_int_equal(got.facts.reused, 444);
        assert_string_equal(got.facts.window_source, i == 0 ? "rebuilt" : "snapshot");
        assert_true((got.facts.rebuilt == 0) == (i > 0));
    }
    close_engine(&warm);
    close_engine(&cold);
}

/* Two sequences with one prompt at once; the second finds its blocks filed and refers to them. */
static void same_prompt_twice_at_once_shares_blocks(void **state) {
    (void)state;
    struct fixture warm;
    open_warm(&warm);
    struct ask ask = {.ids = text, .count = 520, .sampled = SAMPLED};
    uint64_t ids[2] = {create(&warm), create(&warm)};
    struct answer answers[2];
    memset(answers, 0, sizeof answers);
    send(&warm, ids[0], &ask);
    send(&warm, ids[1], &ask);
    for (int finished = 0; finished < 2;) {
        struct engine_event event = next_event(&warm);
        struct answer *answer = &answers[event.sequence == ids[0] ? 0 : 1];
        if (event.type == ENGINE_TOKEN) {
            answer->logprobs[answer->count] = event.logprob;
            answer->tokens[answer->count++] = event.token;
        }
        finished += event.type == ENGINE_FINISHED;
    }
    assert_same(&answers[0], &answers[1]);
    struct engine_cache_status status;
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 4);
    assert_true(status.blocks_deduplicated > 0);
    /* Four blocks once and the two tails. */
    assert_int_equal(status.blocks_total - status.blocks_free, 6);
    close_engine(&warm);
}

/* ---- pressure and time ---------------------------------------------------------------------- */

/* The smallest pool: whatever is cached and leased, a live sequence grows to its limit. */
static void live_sequence_always_grows(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    struct engine_options least = {
        .context_max = 512, .sequences_max = 2, .cache_memory_bytes = 1, .snapshot_bytes = 1 << 20};
    open_with(&warm, &least);
    open_cold(&cold);
    struct answer got;
    struct answer wanted;
    for (uint32_t i = 0; i < 4; i++) {
        int32_t prompt[512];
        branch(prompt, i % 2 == 0 ? 200 : 0, 480, 300 + i);
        struct ask ask = {.ids = prompt, .count = 470, .sampled = SAMPLED};
        uint64_t other = create(&warm);
        struct ask beside = {.ids = text, .count = 400 + (int32_t)i, .sampled = 40};
        turn(&warm, other, &beside, &got);
        once(&warm, &ask, &got);
        once(&cold, &ask, &wanted);
        assert_same(&got, &wanted);
        struct answer more;
        turn(&warm, other, &(struct ask){.ids = prompt, .count = 50, .sampled = 3}, &more);
        engine_sequence_destroy(warm.engine, other);
    }
    struct engine_cache_status status;
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.blocks_total, 8);
    assert_true(status.blocks_evicted > 0);
    close_engine(&warm);
    close_engine(&cold);
}

/* Leases lapse and lifetimes end while a sequence sleeps: its blocks are filed again. */
static void lapsed_path_is_filed_again(void **state) {
    (void)state;
    struct simulated simulated = {.now_ms = 1000};
    struct clock clock = simulated_clock(&simulated);
    struct fixture warm;
    struct fixture cold;
    open_with(&warm, &(struct engine_options){.clock = clock});
    open_cold(&cold);
    uint64_t sequence = create(&warm);
    struct answer got;
    turn(&warm, sequence, &(struct ask){.ids = text, .count = 600, .sampled = 0}, &got);
    struct engine_cache_status status;
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 4);
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 4); /* leased */
    simulated.now_ms = 1000 + 61000;
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 0);
    turn(&warm, sequence, &(struct ask){.ids = text + 600, .count = 100, .sampled = 3}, &got);
    assert_int_equal(got.facts.reused, 600);
    engine_cache_status(warm.engine, &status);
    assert_int_equal(status.nodes, 5);
    engine_sequence_destroy(warm.engine, sequence);
    /* Its snapshot goes after minutes, its blocks after days. */
    simulated.now_ms += 3600 * 1000;
    struct answer wanted;
    struct ask ask = {.ids = text, .count = 800, .sampled = SAMPLED};
    once(&warm, &ask, &got);
    once(&cold, &ask, &wanted);
    assert_same(&got, &wanted);
    assert_true(got.facts.reused >= 5 * 128);
    assert_string_equal(got.facts.window_source, "rebuilt");
    simulated.now_ms += (int64_t)73 * 3600 * 1000;
    once(&warm, &ask, &got);
    assert_same(&got, &wanted);
    assert_int_equal(got.facts.reused, 0);
    assert_string_equal(got.facts.miss, "expired");
    close_engine(&warm);
    close_engine(&cold);
}

static void every_miss_has_its_reason(void **state) {
    (void)state;
    struct fixture warm;
    open_warm(&warm);
    struct answer got;
    struct ask ask = {.ids = text, .count = 600, .sampled = 1};
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.miss, "never_computed");
    assert_int_equal(got.facts.miss_token, 0);
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.miss, "none");
    int32_t prompt[TEXT];
    branch(prompt, 301, 600, 9);
    once(&warm, &(struct ask){.ids = prompt, .count = 600, .sampled = 1}, &got);
    assert_string_equal(got.facts.miss, "divergent");
    assert_int_equal(got.facts.miss_token, 301);
    struct engine_cache_status before;
    struct engine_cache_status after;
    engine_cache_status(warm.engine, &before);
    engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, -1); /* fewer than none: none */
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, INT32_MIN);
    engine_cache_status(warm.engine, &after);
    assert_true(before.nodes > 0 && after.nodes == before.nodes);
    assert_int_equal(after.snapshots, before.snapshots);
    engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, 0);
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.miss, "evicted");
    branch(prompt, 256, 800, 10);
    ask = (struct ask){.ids = prompt, .count = 700, .sampled = 1, .window = WINDOW_REPLAY};
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.window_source, "replay");
    assert_string_not_equal(got.facts.block_lineage, got.facts.lineage);
    ask.window = WINDOW_EXACT;
    once(&warm, &ask, &got);
    assert_string_equal(got.facts.miss, "other_lineage");
    assert_int_equal(got.facts.reused, 256);
    struct engine_cache_status status;
    engine_cache_status(warm.engine, &status);
    uint64_t misses = 0;
    for (int32_t i = 0; i < ENGINE_MISSES; i++) {
        misses += status.misses[i];
    }
    assert_true(misses == status.lookups && status.lookups == 6);
    close_engine(&warm);
}

/* ---- agents --------------------------------------------------------------------------------- */

static void abandoned_sequence_leaves_no_windows(void **state) {
    (void)state;
    struct fixture warm;
    open_warm(&warm);
    struct engine_cache_status status;
    struct answer got;
    for (int i = 0; i < 2; i++) {
        uint64_t sequence = create(&warm);
        turn(&warm, sequence, &(struct ask){.ids = text, .count = 300, .sampled = 3}, &got);
        engine_sequence_tell(warm.engine, sequence, SEQUENCE_WAITING, 500);
        enum sequence_event event = i == 0 ? SEQUENCE_ABANDONED : SEQUENCE_FINISHED;
        engine_sequence_tell(warm.engine, sequence, event, 0);
        engine_sequence_destroy(warm.engine, sequence);
        engine_cache_status(warm.engine, &status);
        assert_int_equal(status.leases, 0);
        assert_true((status.snapshots > 0) == (i > 0));
        assert_int_equal(status.nodes, 2);
    }
    engine_sequence_tell(warm.engine, 999, SEQUENCE_FINISHED, 0);
    close_engine(&warm);
}

static void fork_goes_on_after_everything_is_dropped(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    open_warm(&warm);
    open_cold(&cold);
    struct answer got;
    struct answer wanted;
    uint64_t parent = create(&warm);
    turn(&warm, parent, &(struct ask){.ids = text, .count = 333, .sampled = 0}, &got);
    uint64_t child = 0;
    struct error error;
    assert_true(is_ok(engine_sequence_fork(warm.engine, parent, &child, &error)));
    engine_sequence_destroy(warm.engine, parent);
    engine_cache_drop(warm.engine, CACHE_TIER_SNAPSHOTS, 0);
    engine_cache_drop(warm.engine, CACHE_TIER_TREE, 0);
    turn(&warm, child, &(struct ask){.ids = text + 333, .count = 267, .sampled = SAMPLED}, &got);
    once(&cold, &(struct ask){.ids = text, .count = 600, .sampled = SAMPLED}, &wanted);
    assert_same(&got, &wanted);
    assert_int_equal(got.facts.reused, 333);
    close_engine(&warm);
    close_engine(&cold);
}

/* A prompt that was only evaluated loses its windows; what follows appends nothing. */
static void evaluated_prompt_goes_on_without_its_windows(void **state) {
    (void)state;
    struct fixture one;
    struct fixture cold;
    open_with(&one, &(struct engine_options){.windows_max = 1});
    open_cold(&cold);
    struct answer got;
    struct answer wanted;
    once(&cold, &(struct ask){.ids = text, .count = 300, .sampled = SAMPLED}, &wanted);
    for (int32_t is_dropped = 0; is_dropped < 2; is_dropped++) {
        uint64_t sequence = create(&one);
        turn(&one, sequence, &(struct ask){.ids = text, .count = 300}, &got);
        once(&one, &(struct ask){.ids = text + 400, .count = 50, .sampled = 3}, &got);
        if (is_dropped) {
            engine_cache_drop(one.engine, CACHE_TIER_SNAPSHOTS, 0);
        }
        turn(&one, sequence, &(struct ask){.sampled = SAMPLED}, &got);
        assert_same(&got, &wanted);
        assert_int_equal(got.facts.reused, 300);
        assert_int_equal(got.facts.evaluated, 0);
        assert_string_equal(got.facts.window_source, is_dropped ? "rebuilt" : "live");
        assert_int_equal(got.facts.rebuilt > 0, is_dropped);
        engine_sequence_destroy(one.engine, sequence);
    }
    close_engine(&one);
    close_engine(&cold);
}

/* Cancelled while rows run again for their windows: the sequence goes on with the rest of them. */
static void cancelled_rebuild_goes_on(void **state) {
    (void)state;
    struct fixture warm;
    struct fixture cold;
    open_warm(&warm);
    open_cold(&cold);
    for (int mode = 0; mode < 2; mode++) {
        struct answer got;
        struct answer wanted;
        int32_t prompt[TEXT];
        branch(prompt, 0, TEXT, 400U + (uint32_t)mode);
        once(&warm, &(struct ask){.ids = prompt, .count = 600, .sampled = 1}, &got);
        prompt[500] = prompt[500] == 3 ? 4 : 3;
        struct ask ask = {.ids = prompt, .count = 600, .sampled = SAMPLED};
        uint64_t sequence = create(&warm);
        send(&warm, sequence, &ask);
        struct engine_event event = next_event(&warm);
        assert_int_equal(event.type, ENGINE_PROGRESS);
        engine_cancel(warm.engine, sequence);
        take(&warm, sequence, &got);
        if (got.reason == FINISH_CANCELLED && got.count == 0) {
            ask = (struct ask){.ids = prompt + 600, .count = 20, .sampled = SAMPLED};
            turn(&warm, sequence, &ask, &got);
            assert_true(got.facts.reused >= 500);
            ask = (struct ask){.ids = prompt, .count = 620, .sampled = SAMPLED};
            once(&cold, &ask, &wanted);
            assert_same(&got, &wanted);
            assert_exact(&got);
        }
        if (mode == 0) {
            engine_sequence_destroy(warm.engine, sequence);
        } else {
            send(&warm, sequence, &(struct ask){.ids = prompt, .count = 100, .sampled = 30});
            engine_sequence_destroy(warm.engine, sequence); /* while it runs */
        }
    }
    close_engine(&warm);
    close_engine(&cold);
}

/* ---- replay and contracts ------------------------------------------------------------------- */

enum prepared { KNOWS_NOTHING, KNOWS_IT_EXACTLY, KNOWS_IT_OTHERWISE };

/* The contract of a recorded generation, on an engine that knows nothing and on one that knows
 * something else: same tokens, same log-probabilities, same lineages. */
static void assert_recreated(
    const int32_t *prompt, int32_t count, const struct answer *recorded, enum prepared prepared
) {
    struct fixture fresh;
    struct answer got;
    open_warm(&fresh);
    if (prepared != KNOWS_NOTHING) {
        bool is_exact = prepared == KNOWS_IT_EXACTLY;
        struct ask other = {
            .ids = prompt,
            .count = is_exact ? count : 290,
            .sampled = 5,
            .window = is_exact ? WINDOW_EXACT : WINDOW_REPLAY,
        };
        once(&fresh, &other, &got);
    }
    struct ask ask = {
        .ids = prompt, .count = count, .sampled = recorded->count, .contract = &recorded->facts};
    once(&fresh, &ask, &got);
    assert_same(&got, recorded);
    assert_string_equal(got.facts.block_lineage, recorded->facts.block_lineage);
    assert_string_equal(got.facts.decoder_lineage, recorded->facts.decoder_lineage);
    assert_int_equal(got.facts.replay_count, recorded->facts.replay_count);
    close_engine(&fresh);
}

static void contract_recreates_replays_on_any_cache(void **state) {
    (void)state;
    struct fixture warm;
    open_warm(&warm);
    struct answer got;
    once(&warm, &(struct ask){.ids = text, .count = 400, .sampled = 1}, &got);
    assert_recreated(text, 400, &got, KNOWS_IT_OTHERWISE);
    /* Chains of encoder replays: each branch is found by the next one. */
    int32_t prompt[TEXT];
    branch(prompt, 256, TEXT, 31);
    struct ask ask = {.ids = prompt, .count = 500, .sampled = SAMPLED, .window = WINDOW_REPLAY};
    once(&warm, &ask, &got);
    assert_int_equal(got.facts.replay_count, 2);
    assert_int_equal(got.facts.reused, 256);
    assert_recreated(prompt, 500, &got, KNOWS_NOTHING);
    assert_recreated(prompt, 500, &got, KNOWS_IT_EXACTLY);
    prompt[450] = prompt[450] == 3 ? 4 : 3;
    ask.count = 700;
    once(&warm, &ask, &got);
    assert_int_equal(got.facts.reused, 450);
    assert_int_equal(got.facts.replay_count, 3);
    assert_recreated(prompt, 700, &got, KNOWS_IT_EXACTLY);
    assert_recreated(prompt, 700, &got, KNOWS_IT_OTHERWISE);
    /* The same prompt again: windows of the replay are there. */
    struct answer again;
    once(&warm, &ask, &again);
    assert_true(again.facts.reused >= 698);
    /* A conversation: replay by snapshot, then a turn that is live. */
    uint64_t sequence = create(&warm);
    branch(prompt, 300, TEXT, 32);
    ask.count = 420;
    turn(&warm, sequence, &ask, &got);
    memcpy(prompt + 420, got.tokens, (size_t)got.count * sizeof *prompt);
    int32_t end = 420 + got.count;
    struct ask live = {
        .ids = prompt + end, .count = 60, .sampled = SAMPLED, .window = WINDOW_REPLAY};
    turn(&warm, sequence, &live, &got);
    assert_string_equal(got.facts.window_source, "replay");
    assert_recreated(prompt, end + 60, &got, KNOWS_NOTHING);
    memcpy(prompt + end + 60, got.tokens, (size_t)got.count * sizeof *prompt);
    end += 60 + got.count;
    live = (struct ask){.ids = prompt + end, .count = 30, .sampled = SAMPLED};
    turn(&warm, sequence, &live, &got); /* exactly, on windows that are not */
    assert_recreated(prompt, end + 30, &got, KNOWS_IT_EXACTLY);
    close_engine(&warm);
}

static void contract_that_is_wrong_is_refused(void **state) {
    (void)state;
    static const struct window_replay wrong[][2] = {
        {{WINDOW_REPLAY_ENCODER, 100}, {WINDOW_REPLAY_DECODER, 90}},
        {{WINDOW_REPLAY_ENCODER, 101}, {WINDOW_REPLAY_DECODER, 200}},
        {{WINDOW_REPLAY_ENCODER, 16}, {WINDOW_REPLAY_DECODER, 200}},
        {{WINDOW_REPLAY_ENCODER, 200}, {WINDOW_REPLAY_DECODER, 200}},
        {{WINDOW_REPLAY_DECODER, 200}, {WINDOW_REPLAY_ENCODER, 100}},
        {{WINDOW_REPLAY_DECODER, 216}, {WINDOW_REPLAY_DECODER, 200}},
        {{WINDOW_REPLAY_DECODER, 0}, {WINDOW_REPLAY_DECODER, 200}},
        {{WINDOW_REPLAY_DECODER, -5}, {WINDOW_REPLAY_DECODER, 200}},
    };
    struct fixture warm;
    struct error error = {0};
    open_warm(&warm);
    uint64_t sequence = create(&warm);
    struct generation_request request = {
        .sequence = sequence,
        .append = text,
        .append_count = 200,
        .sampling = {.temperature = 0, .top_p = 1},
        .tokens_max = 1,
        .has_contract = true,
        .contract_count = 2,
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        request.contract = wrong[i];
        result refused = engine_generate(warm.engine, &request, &error);
        assert_int_equal(refused.code, RESULT_INVALID_INPUT);
        assert_true(strlen(error.message) > 10);
    }
    const struct window_replay unknown[] = {
        {(enum window_replay_kind)99, 100}, {WINDOW_REPLAY_DECODER, 150}};
    request.contract = unknown;
    assert_int_equal(engine_generate(warm.engine, &request, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "there is no kind of replay 99"));
    request.contract_count = ENGINE_REPLAYS_MAX + 1;
    assert_true(is_failed(engine_generate(warm.engine, &request, &error)));
    request.contract_count = 0;
    assert_true(is_ok(engine_generate(warm.engine, &request, &error)));
    struct answer got;
    take(&warm, sequence, &got);
    assert_exact(&got);
    assert_int_equal(engine_generate(warm.engine, &request, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "contract"));
    close_engine(&warm);
}

int main(void) {
    make_text();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(branch_anywhere_equals_cold),
        cmocka_unit_test(conversation_returns_by_snapshot),
        cmocka_unit_test(second_branch_at_a_point_rebuilds_nothing),
        cmocka_unit_test(same_prompt_twice_at_once_shares_blocks),
        cmocka_unit_test(live_sequence_always_grows),
        cmocka_unit_test(lapsed_path_is_filed_again),
        cmocka_unit_test(every_miss_has_its_reason),
        cmocka_unit_test(abandoned_sequence_leaves_no_windows),
        cmocka_unit_test(fork_goes_on_after_everything_is_dropped),
        cmocka_unit_test(evaluated_prompt_goes_on_without_its_windows),
        cmocka_unit_test(cancelled_rebuild_goes_on),
        cmocka_unit_test(contract_recreates_replays_on_any_cache),
        cmocka_unit_test(contract_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
