/* Sequences that do not run give their blocks to those that wait for some, and go on later with the same
 * bits as if they had kept them. Every script runs twice: with few blocks and with enough for all. */
#include "engine_cache_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

/* Sanitizer builds run ten times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define AGENTS 4
#else
#define AGENTS 8
#endif
#define TURNS 4

struct pair {
    struct fixture few, many;
};

static void open_pair(struct pair *pair, int32_t sequences, int64_t tokens) {
    struct engine_options options = {
        .context_max = CONTEXT,
        .sequences_max = sequences,
        .kv_tokens_max = tokens,
        .cache_memory_bytes = 1,
    };
    open_with(&pair->few, &options);
    options.kv_tokens_max = 0;
    open_with(&pair->many, &options);
}

static void close_pair(struct pair *pair) {
    struct engine_statistics statistics;
    engine_statistics(pair->many.engine, &statistics);
    assert_int_equal(statistics.total.demoted, 0);
    struct error error = {0};
    pthread_mutex_lock(&pair->few.engine->lock);
    assert_true(is_ok(kv_cache_check(&pair->few.engine->cache, &error)));
    assert_true(is_ok(kv_store_check(pair->few.engine->store, &error)));
    pthread_mutex_unlock(&pair->few.engine->lock);
    close_engine(&pair->few);
    close_engine(&pair->many);
}

static struct engine_statistics statistics_of(const struct pair *pair) {
    struct engine_statistics statistics;
    engine_statistics(pair->few.engine, &statistics);
    return statistics;
}

/* What content depends on is told alike. */
static void assert_same_content(const struct answer *a, const struct answer *b) {
    assert_same(a, b);
    assert_int_equal(a->reason, b->reason);
    assert_int_equal(a->facts.prompt_tokens, b->facts.prompt_tokens);
    assert_string_equal(a->facts.block_lineage, b->facts.block_lineage);
    assert_string_equal(a->facts.decoder_lineage, b->facts.decoder_lineage);
    assert_int_equal(a->facts.replay_count, b->facts.replay_count);
    for (int32_t i = 0; i < a->facts.replay_count; i++) {
        assert_int_equal(a->facts.replays[i].kind, b->facts.replays[i].kind);
        assert_int_equal(a->facts.replays[i].position, b->facts.replays[i].position);
    }
}

/* The same turn of the same sequence in both. */
static struct answer both(struct pair *pair, const uint64_t ids[2], const struct ask *ask) {
    struct answer few;
    struct answer many;
    /* Not turn(): rows that a replay of the list repeats are counted as rebuilt beside the hit's. */
    send(&pair->few, ids[0], ask);
    take(&pair->few, ids[0], &few);
    assert_int_equal(few.facts.evaluated + few.facts.reused, few.facts.prompt_tokens);
    assert_true(few.facts.rebuilt >= few.facts.reused - few.facts.rebuilt_from);
    turn(&pair->many, ids[1], ask, &many);
    assert_same_content(&few, &many);
    return few;
}

static void create_both(struct pair *pair, uint64_t ids[2]) {
    ids[0] = create(&pair->few);
    ids[1] = create(&pair->many);
}

static struct ask ask_for(const int32_t *ids, int32_t count, int32_t sampled) {
    return (struct ask){.ids = ids, .count = count, .sampled = sampled};
}

/* Another sequence takes all blocks. */
static void push_out(struct pair *pair, int32_t tokens) {
    int32_t ids[CONTEXT];
    int64_t demoted = (int64_t)statistics_of(pair).total.demoted;
    make_prompt(ids, tokens - 4, (uint32_t)tokens * 77 + (uint32_t)demoted);
    struct ask ask = ask_for(ids, tokens - 4, 4);
    struct answer answer;
    once(&pair->few, &ask, &answer);
    assert_true((int64_t)statistics_of(pair).total.demoted > demoted);
}

static void exact_content_goes_on_with_the_same_bits(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    uint64_t b[2];
    int32_t more[64];
    make_text();
    make_prompt(more, 64, 5);
    open_pair(&pair, 4, 3 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    create_both(&pair, b);
    struct ask first = ask_for(text, 200, SAMPLED);
    struct ask other = ask_for(text + 300, 180, SAMPLED);
    (void)both(&pair, a, &first);
    (void)both(&pair, b, &other); /* takes a's blocks */
    assert_int_equal(statistics_of(&pair).total.demoted, 1);
    assert_int_equal(statistics_of(&pair).demoted, 1);
    assert_int_equal(engine_sequence_length(pair.few.engine, a[0]), 200 + SAMPLED);
    for (int32_t i = 0; i < 3; i++) {
        struct ask next = ask_for(more + 10 * i, 10, SAMPLED);
        struct answer got = both(&pair, a, &next);
        assert_string_not_equal(got.facts.window_source, "live");
        assert_exact(&got);
        assert_int_equal(statistics_of(&pair).demoted, 1);
        (void)both(&pair, b, &next);
    }
    assert_int_equal(statistics_of(&pair).total.demoted, 7);
    /* Nothing of the cache is left: all is computed again, and says so. */
    engine_cache_drop(pair.few.engine, CACHE_TIER_TREE, 0);
    engine_cache_drop(pair.few.engine, CACHE_TIER_SNAPSHOTS, 0);
    struct ask last = ask_for(more + 40, 10, SAMPLED);
    struct answer got = both(&pair, a, &last);
    assert_string_equal(got.facts.window_source, "cold");
    assert_int_equal(got.facts.evaluated, got.facts.prompt_tokens);
    close_pair(&pair);
}

static void what_was_demoted_is_found_in_the_cache(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    make_text();
    open_pair(&pair, 4, 8 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask first = ask_for(text, 500, SAMPLED);
    (void)both(&pair, a, &first);
    /* The other one's promise takes the place of half of it. */
    struct answer answer;
    struct ask other = ask_for(text + 600, 200, 350);
    uint64_t b = create(&pair.few);
    int32_t stop = 3;
    struct generation_request request = {
        .sequence = b,
        .append = other.ids,
        .append_count = 200,
        .tokens_max = 700,
        .sampling =
            {.top_p = 1, .bias = &(struct logit_bias){.id = 3, .bias = 100}, .bias_count = 1},
        .stop_ids = &stop,
        .stop_id_count = 1,
    };
    struct error error = {0};
    assert_true(is_ok(engine_generate(pair.few.engine, &request, &error)));
    take(&pair.few, b, &answer);
    assert_int_equal(answer.reason, FINISH_STOP);
    assert_int_equal(statistics_of(&pair).demoted, 1);
    struct ask next = ask_for(text + 20, 10, SAMPLED);
    struct answer got = both(&pair, a, &next);
    assert_string_equal(got.facts.window_source, "snapshot");
    assert_true(got.facts.reused >= 500 && got.facts.evaluated < 30 && got.facts.rebuilt == 0);
    close_pair(&pair);
}

static void replayed_content_goes_on_with_the_same_bits(void **state) {
    (void)state;
    struct pair pair;
    static int32_t ids[TEXT];
    static const enum window_mode modes[] = {WINDOW_EXACT, WINDOW_REPLAY, WINDOW_EXACT};
    make_text();
    open_pair(&pair, 4, 8 * KV_BLOCK_TOKENS);
    /* A prompt whose windows were replayed behind a hit: such a list is what the other repeats. */
    struct answer known;
    struct ask whole = ask_for(text, 420, 0);
    once(&pair.many, &whole, &known);
    branch(ids, 400, 600, 9);
    struct ask replayed = ask_for(ids, 600, SAMPLED);
    replayed.window = WINDOW_REPLAY;
    once(&pair.many, &replayed, &known);
    assert_true(known.facts.replay_count >= 2);
    for (int32_t kind = 0; kind < 2; kind++) {
        uint64_t a[2];
        create_both(&pair, a);
        struct ask first = ask_for(ids, 600, SAMPLED);
        first.window = WINDOW_REPLAY;
        first.contract = kind == 0 ? NULL : &known.facts;
        if (kind == 0) {
            first.ids = text + 200;
            first.count = 500;
        }
        struct answer got = both(&pair, a, &first);
        assert_true(got.facts.replay_count > 0);
        for (size_t i = 0; i < COUNT_OF(modes); i++) {
            push_out(&pair, 1000 - 10 * (int32_t)i);
            int32_t more[100];
            make_prompt(more, 100, (uint32_t)i + 50);
            struct ask next = ask_for(more, i == 1 ? 140 - 40 : 7, SAMPLED);
            next.window = modes[i];
            got = both(&pair, a, &next);
            assert_string_not_equal(got.facts.window_source, "live");
        }
        engine_sequence_destroy(pair.few.engine, a[0]);
        engine_sequence_destroy(pair.many.engine, a[1]);
    }
    close_pair(&pair);
}

static void forks_and_kept_logits_of_a_demoted_one_go_on(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    uint64_t child[2];
    struct error error = {0};
    make_text();
    open_pair(&pair, 6, 8 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask prompt = ask_for(text, 300, 0);
    (void)both(&pair, a, &prompt);
    push_out(&pair, 1000);
    assert_int_equal(statistics_of(&pair).demoted, 1);
    assert_true(is_ok(engine_sequence_fork(pair.few.engine, a[0], &child[0], &error)));
    assert_true(is_ok(engine_sequence_fork(pair.many.engine, a[1], &child[1], &error)));
    assert_int_equal(statistics_of(&pair).demoted, 2);
    assert_int_equal(engine_sequence_length(pair.few.engine, child[0]), 300);
    struct ask nothing = ask_for(text, 0, SAMPLED); /* the logits that were kept */
    struct answer first = both(&pair, child, &nothing);
    push_out(&pair, 990);
    struct answer second = both(&pair, a, &nothing);
    assert_same(&first, &second);
    struct ask more = ask_for(text + 400, 20, SAMPLED);
    push_out(&pair, 980);
    (void)both(&pair, child, &more);
    push_out(&pair, 970);
    engine_sequence_destroy(pair.few.engine, a[0]); /* as it is */
    engine_sequence_destroy(pair.many.engine, a[1]);
    assert_int_equal(statistics_of(&pair).demoted, 1);
    (void)both(&pair, child, &more);
    close_pair(&pair);
}

static void request_that_ends_before_it_began_leaves_a_demoted_one_as_it_was(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    make_text();
    open_pair(&pair, 4, 8 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask prompt = ask_for(text, 300, SAMPLED);
    prompt.window = WINDOW_REPLAY;
    struct answer before = both(&pair, a, &prompt);
    push_out(&pair, 1000);
    uint64_t b = create(&pair.few); /* runs, with all blocks promised to it */
    struct ask running = ask_for(text, 900, 100);
    send(&pair.few, b, &running);
    struct ask next = ask_for(text + 40, 30, SAMPLED);
    send(&pair.few, a[0], &next);
    engine_cancel(pair.few.engine, a[0]);
    bool is_cancelled = false;
    for (int32_t ends = 0; ends < 2;) {
        struct engine_event event = next_event(&pair.few);
        ends += event.type == ENGINE_FINISHED;
        if (event.type == ENGINE_FINISHED && event.sequence == a[0]) {
            is_cancelled = true;
            assert_int_equal(event.reason, FINISH_CANCELLED);
            assert_int_equal(event.facts.prompt_tokens, 0); /* nothing ran */
            assert_int_equal(event.facts.reused, 0);
            assert_int_equal(event.facts.evaluated, 0);
            assert_int_equal(event.facts.replay_count, before.facts.replay_count);
            assert_string_equal(event.facts.decoder_lineage, before.facts.decoder_lineage);
        } else if (event.type == ENGINE_TOKEN && !is_cancelled) {
            engine_cancel(pair.few.engine, b);
        }
    }
    assert_true(is_cancelled);
    assert_int_equal(engine_sequence_length(pair.few.engine, a[0]), 300 + SAMPLED);
    (void)both(&pair, a, &next);
    close_pair(&pair);
}

/* ---- a pool for one context ------------------------------------------------------------------ */

struct agent {
    uint64_t id;
    struct answer answer;
    int32_t turns;
    int32_t text[64];
};

static void agent_send(struct fixture *fixture, struct agent *agent, int32_t number) {
    make_prompt(agent->text, 64, (uint32_t)(100 * number + agent->turns));
    struct ask ask = ask_for(agent->text, agent->turns == 0 ? 40 + 3 * number : 10 + number, 6);
    ask.window = number % 3 == 2 ? WINDOW_REPLAY : WINDOW_EXACT;
    agent->answer.count = 0;
    send(fixture, agent->id, &ask);
}

/* All agents at once; each goes on when its turn is over and the tool has answered. */
static void run_agents(struct fixture *fixture, struct answer answers[AGENTS][TURNS]) {
    struct agent agents[AGENTS] = {0};
    for (int32_t i = 0; i < AGENTS; i++) {
        agents[i].id = create(fixture);
        agent_send(fixture, &agents[i], i);
    }
    for (int32_t left = AGENTS * TURNS; left > 0;) {
        struct engine_event event = next_event(fixture);
        int32_t number = 0;
        while (agents[number].id != event.sequence) {
            number++;
        }
        struct agent *agent = &agents[number];
        if (event.type == ENGINE_TOKEN) {
            agent->answer.logprobs[agent->answer.count] = event.logprob;
            agent->answer.tokens[agent->answer.count++] = event.token;
        } else if (event.type == ENGINE_FINISHED) {
            if (event.reason == FINISH_ERROR) {
                print_error("%s\n", event.error.message);
                fail();
            }
            agent->answer.facts = event.facts;
            agent->answer.reason = event.reason;
            assert_int_equal(event.facts.evaluated + event.facts.reused, event.facts.prompt_tokens);
            answers[number][agent->turns++] = agent->answer;
            left--;
            engine_sequence_tell(fixture->engine, agent->id, SEQUENCE_WAITING, 10 * number);
            if (agent->turns < TURNS) {
                agent_send(fixture, agent, number);
            }
        }
    }
}

static void many_agents_take_turns_in_a_pool_for_one(void **state) {
    (void)state;
    static struct answer few[AGENTS][TURNS];
    static struct answer many[AGENTS][TURNS];
    struct pair pair;
    struct engine_options options = {
        .context_max = 2 * KV_BLOCK_TOKENS,
        .sequences_max = AGENTS,
        .windows_max = 3,
        .kv_tokens_max = 2 * KV_BLOCK_TOKENS,
        .cache_memory_bytes = 1,
    };
    open_with(&pair.few, &options);
    options.kv_tokens_max = 0;
    open_with(&pair.many, &options);
    run_agents(&pair.few, few);
    run_agents(&pair.many, many);
    for (int32_t i = 0; i < AGENTS; i++) {
        for (int32_t t = 0; t < TURNS; t++) {
            assert_same_content(&few[i][t], &many[i][t]);
        }
    }
    /* All have content at the end, and two blocks hold that of two: the others were demoted. How
       many more were is a matter of who was faster. */
    assert_true(statistics_of(&pair).total.demoted >= AGENTS - 2);
    assert_int_equal(statistics_of(&pair).request_count, 0);
    close_pair(&pair);
}

/* ---- the end of the rope --------------------------------------------------------------------- */

static void blocks_that_nobody_can_give_back_end_a_request_with_numbers(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    struct error error = {0};
    make_text();
    open_pair(&pair, 4, 4 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask first = ask_for(text, 200, SAMPLED);
    (void)both(&pair, a, &first);
    struct kv_cache *cache = &pair.few.engine->cache;
    pthread_mutex_lock(&pair.few.engine->lock);
    struct kv_sequence *held = kv_cache_acquire_idle(cache);
    assert_non_null(held);
    assert_true(is_ok(kv_cache_reserve(cache, held, KV_BLOCK_TOKENS, &error)));
    pthread_mutex_unlock(&pair.few.engine->lock);
    struct answer answer;
    struct ask more = ask_for(text + 300, 250, SAMPLED);
    send(&pair.few, a[0], &more);
    take(&pair.few, a[0], &answer);
    assert_int_equal(answer.reason, FINISH_ERROR);
    assert_int_equal(answer.error.code, RESULT_LIMIT);
    assert_string_equal(
        answer.error.message, "needs 4 blocks, but 1 of 4 are taken or promised: 1 short"
    );
    assert_int_equal(engine_sequence_length(pair.few.engine, a[0]), 200 + SAMPLED);
    pthread_mutex_lock(&pair.few.engine->lock);
    kv_cache_release(cache, held);
    pthread_mutex_unlock(&pair.few.engine->lock);
    (void)both(&pair, a, &more);
    close_pair(&pair);
}

/* One generation while the nth allocation fails; whether it ended for want of memory. */
static bool starved(struct pair *pair, uint64_t id, const struct ask *ask, size_t nth) {
    struct error error = {0};
    struct answer answer = {0};
    const struct generation_request request = {
        .sequence = id,
        .append = ask->ids,
        .append_count = (size_t)ask->count,
        .sampling = {.temperature = 0.8, .top_p = 0.9, .seed = 42},
        .tokens_max = ask->sampled,
        .speculation = SPECULATE_OFF,
    };
    failing_memory_arm(nth);
    result asked = engine_generate(pair->few.engine, &request, &error);
    if (is_ok(asked)) {
        take(&pair->few, id, &answer);
        error = answer.error;
    }
    bool fired = failing_memory_fired();
    failing_memory_arm(0);
    bool is_starved = is_failed(asked) || answer.reason == FINISH_ERROR;
    assert_int_equal(is_starved, fired);
    if (is_starved) {
        assert_int_equal(error.code, RESULT_MEMORY);
        assert_non_null(strstr(error.message, "memory"));
    }
    return is_starved;
}

/* Whoever lacks it ends by name; the sequences are what they were, and go on with the same bits. */
static void allocations_that_fail_leave_sequences_as_they_were(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    uint64_t child[2];
    struct error error = {0};
    make_text();
    open_pair(&pair, 5, 4 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask first = ask_for(text, 200, SAMPLED);
    (void)both(&pair, a, &first);
    /* Who needs the blocks: its ids, then a place for the tokens of the one that gives them. */
    struct ask whole = ask_for(text + 400, 390, 4);
    for (size_t nth = 1; nth <= 3; nth++) {
        uint64_t b = create(&pair.few);
        assert_int_equal(starved(&pair, b, &whole, nth), nth <= 2);
        assert_int_equal(statistics_of(&pair).total.demoted, nth <= 2 ? 0 : 1);
        engine_sequence_destroy(pair.few.engine, b);
    }
    /* A fork of what was demoted copies its tokens. */
    failing_memory_arm(1);
    assert_true(is_failed(engine_sequence_fork(pair.few.engine, a[0], &child[0], &error)));
    failing_memory_arm(0);
    assert_int_equal(error.code, RESULT_MEMORY);
    assert_true(is_ok(engine_sequence_fork(pair.few.engine, a[0], &child[0], &error)));
    assert_true(is_ok(engine_sequence_fork(pair.many.engine, a[1], &child[1], &error)));
    /* It goes on: its ids, then a place for these behind those that it has. */
    struct ask more = ask_for(text + 300, 20, SAMPLED);
    for (size_t nth = 1; nth <= 2; nth++) {
        assert_true(starved(&pair, a[0], &more, nth));
        assert_int_equal(engine_sequence_length(pair.few.engine, a[0]), 200 + SAMPLED);
    }
    (void)both(&pair, a, &more);
    (void)both(&pair, child, &more);
    close_pair(&pair);
}

static void ignore_row(void *context, int32_t position, const float *logits, int32_t vocabulary) {
    (void)logits;
    (void)vocabulary;
    *(int32_t *)context = position;
}

static void logits_take_blocks_of_those_that_do_not_run(void **state) {
    (void)state;
    struct pair pair;
    uint64_t a[2];
    struct error error = {0};
    int32_t last = 0;
    make_text();
    open_pair(&pair, 4, 4 * KV_BLOCK_TOKENS);
    create_both(&pair, a);
    struct ask first = ask_for(text, 200, SAMPLED);
    (void)both(&pair, a, &first);
    const struct logits_request request = {.ids = text, .count = 500, .last_only = true};
    assert_true(is_ok(engine_logits(pair.few.engine, &request, NULL, ignore_row, &last, &error)));
    assert_int_equal(last, 499);
    assert_int_equal(statistics_of(&pair).demoted, 1);
    struct ask more = ask_for(text + 300, 20, SAMPLED);
    (void)both(&pair, a, &more);
    close_pair(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_content_goes_on_with_the_same_bits),
        cmocka_unit_test(what_was_demoted_is_found_in_the_cache),
        cmocka_unit_test(replayed_content_goes_on_with_the_same_bits),
        cmocka_unit_test(forks_and_kept_logits_of_a_demoted_one_go_on),
        cmocka_unit_test(request_that_ends_before_it_began_leaves_a_demoted_one_as_it_was),
        cmocka_unit_test(many_agents_take_turns_in_a_pool_for_one),
        cmocka_unit_test(blocks_that_nobody_can_give_back_end_a_request_with_numbers),
        cmocka_unit_test(allocations_that_fail_leave_sequences_as_they_were),
        cmocka_unit_test(logits_take_blocks_of_those_that_do_not_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
