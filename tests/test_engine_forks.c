/* Forks as callers see them: a child continues as its parent would, beside whatever else runs, and
 * what cannot be forked or grown is refused and kept. Thread and memory sanitizers run this too. */
#include "engine_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static uint64_t fork_of(struct fixture *fixture, uint64_t parent) {
    uint64_t child = 0;
    struct error error = {0};
    if (is_failed(engine_sequence_fork(fixture->engine, parent, &child, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    assert_true(child != parent);
    assert_int_equal(
        engine_sequence_length(fixture->engine, child),
        engine_sequence_length(fixture->engine, parent)
    );
    return child;
}

/* A first prompt finds one block that another sequence left. */
#define FOUND KV_BLOCK_TOKENS

/* One turn; checks what it says of itself and that its tokens are the wanted ones (null: any). */
static void turn(
    struct fixture *fixture,
    uint64_t sequence,
    const int32_t *append,
    int32_t count,
    int32_t reused,
    struct run *out
) {
    must_generate(fixture, sequence, append, (size_t)count, 20);
    struct engine_event event = collect(fixture, sequence, out->tokens, &out->count);
    assert_int_not_equal(event.reason, FINISH_ERROR);
    check_facts(&event.facts, out->count);
    assert_int_equal(event.facts.reused, reused);
    assert_string_equal(
        event.facts.window_source,
        reused == FOUND ? "rebuilt"
        : reused > 0    ? "live"
                        : "cold"
    );
    assert_string_equal(event.facts.decoder_lineage, "0");
}

static void assert_same_tokens(const struct run *a, const struct run *b) {
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens);
}

/* Forks with and without kept logits, of forks, inside a block; parents that go on or are gone. */
static void forks_continue_as_the_parent_would(void **state) {
    (void)state;
    struct fixture fixture;
    struct run prompt;
    struct run first[3];
    struct run second[4];
    make_prompt(prompt.prompt, PROMPT, 21);
    open_engine(&fixture, 4, 300);
    struct run none;
    uint64_t parent = create(&fixture);
    uint64_t empty = fork_of(&fixture, parent);
    must_generate(&fixture, parent, prompt.prompt, PROMPT, 0);
    (void)collect(&fixture, parent, none.tokens, &none.count);
    uint64_t child = fork_of(&fixture, parent);
    turn(&fixture, child, NULL, 0, PROMPT, &first[0]); /* from the logits that came along */
    turn(&fixture, parent, NULL, 0, PROMPT, &first[1]);
    turn(&fixture, empty, prompt.prompt, PROMPT, FOUND, &first[2]);
    assert_same_tokens(&first[0], &first[1]);
    assert_same_tokens(&first[0], &first[2]);
    int32_t reused = PROMPT + first[0].count - 1;
    uint64_t grandchild = fork_of(&fixture, child);
    turn(&fixture, child, prompt.prompt + 3, 7, reused, &second[0]);
    engine_sequence_destroy(fixture.engine, child);
    turn(&fixture, parent, prompt.prompt + 3, 7, reused, &second[1]);
    engine_sequence_destroy(fixture.engine, parent);
    turn(&fixture, grandchild, prompt.prompt + 3, 7, reused, &second[2]);
    turn(&fixture, empty, prompt.prompt + 3, 7, reused, &second[3]);
    for (int i = 1; i < 4; i++) {
        assert_same_tokens(&second[0], &second[i]);
    }
    engine_sequence_destroy(fixture.engine, grandchild);
    engine_sequence_destroy(fixture.engine, empty);
    /* All that is held is held by the cache. */
    struct engine_cache_status status;
    engine_cache_status(fixture.engine, &status);
    assert_int_equal(status.blocks_live, 0);
    assert_true(status.nodes > 0 && status.snapshots > 0);
    engine_cache_drop(fixture.engine, CACHE_TIER_TREE, 0);
    engine_cache_drop(fixture.engine, CACHE_TIER_SNAPSHOTS, 0);
    engine_cache_status(fixture.engine, &status);
    assert_int_equal(status.blocks_free, status.blocks_total);
    close_engine(&fixture);
}

/* Both sides run at once, and forks are made while the other runs. */
static void forks_beside_running_sequences_equal_alone(void **state) {
    (void)state;
    struct fixture fixture;
    struct run prompt;
    struct run alone;
    struct run none;
    make_prompt(prompt.prompt, PROMPT, 22);
    open_engine(&fixture, 4, 300);
    uint64_t parent = create(&fixture);
    must_generate(&fixture, parent, prompt.prompt, PROMPT - 13, 0);
    (void)collect(&fixture, parent, none.tokens, &none.count);
    uint64_t children[2] = {fork_of(&fixture, parent), 0};
    turn(&fixture, parent, prompt.prompt + PROMPT - 13, 13, PROMPT - 13, &alone);
    uint64_t source = fork_of(&fixture, children[0]);
    must_generate(&fixture, children[0], prompt.prompt + PROMPT - 13, 13, 20);
    children[1] = fork_of(&fixture, source); /* most likely while the first one steps */
    must_generate(&fixture, children[1], prompt.prompt + PROMPT - 13, 13, 20);
    engine_sequence_destroy(fixture.engine, source);
    struct run runs[2] = {{.count = 0}, {.count = 0}};
    for (int finished = 0; finished < 2;) {
        struct engine_event event = next_event(&fixture);
        struct run *run = &runs[event.sequence == children[0] ? 0 : 1];
        finished += event.type == ENGINE_FINISHED;
        if (event.type == ENGINE_TOKEN) {
            run->tokens[run->count++] = event.token;
        }
    }
    assert_same_tokens(&alone, &runs[0]);
    assert_same_tokens(&alone, &runs[1]);
    close_engine(&fixture);
}

/* A sequence destroyed in a step holds its window state until the step is over; a fork waits. */
static void fork_after_destroying_a_running_sequence_gets_its_place(void **state) {
    (void)state;
    struct fixture fixture;
    struct run prompt;
    struct run none;
    make_prompt(prompt.prompt, PROMPT, 23);
    open_engine(&fixture, 2, 4096);
    uint64_t parent = create(&fixture);
    must_generate(&fixture, parent, prompt.prompt, 20, 0);
    (void)collect(&fixture, parent, none.tokens, &none.count);
    for (int i = 0; i < 8; i++) {
        uint64_t doomed = create(&fixture);
        must_generate(&fixture, doomed, prompt.prompt, PROMPT, 3000);
        if (i % 2 == 0) {
            (void)next_event(&fixture);
        }
        engine_sequence_destroy(fixture.engine, doomed);
        uint64_t child = fork_of(&fixture, parent);
        turn(&fixture, child, prompt.prompt, 3, 20, &none);
        engine_sequence_destroy(fixture.engine, child);
    }
    close_engine(&fixture);
}

static void forks_that_are_wrong_are_refused(void **state) {
    (void)state;
    struct fixture fixture;
    struct error error = {0};
    struct run prompt;
    uint64_t child = 0;
    make_prompt(prompt.prompt, PROMPT, 24);
    open_engine(&fixture, 2, 4096);
    struct engine *engine = fixture.engine;
    assert_int_equal(engine_sequence_fork(engine, 99, &child, &error).code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, "99"));
    uint64_t parent = create(&fixture);
    must_generate(&fixture, parent, prompt.prompt, PROMPT, 3000);
    assert_int_equal(
        engine_sequence_fork(engine, parent, &child, &error).code, RESULT_INVALID_INPUT
    );
    assert_non_null(strstr(error.message, "busy"));
    uint64_t other = create(&fixture);
    assert_int_equal(engine_sequence_fork(engine, other, &child, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "all 2 sequences"));
    assert_true(child == 0);
    close_engine(&fixture);
}

/* No block for the private copy: refused with the numbers, and nothing is lost. */
static void fork_without_blocks_for_its_copy_is_refused_and_kept(void **state) {
    (void)state;
    struct fixture fixture;
    struct run prompt;
    struct run wanted;
    struct run got;
    int32_t taken[32];
    int32_t count = 0;
    make_prompt(prompt.prompt, PROMPT, 25);
    open_engine(&fixture, 2, 300);
    struct engine *engine = fixture.engine;
    struct kv_cache *cache = &engine->cache;
    uint64_t parent = create(&fixture);
    must_generate(&fixture, parent, prompt.prompt, 30, 0);
    (void)collect(&fixture, parent, got.tokens, &got.count);
    uint64_t child = fork_of(&fixture, parent);
    char free_of_all[64];
    (void)snprintf(free_of_all, sizeof free_of_all, "0 of %d are free", cache->block_total);
    pthread_mutex_lock(&engine->lock);
    while (cache->block_free_count > 0) {
        assert_true((size_t)count < COUNT_OF(taken));
        taken[count++] = kv_block_take(cache, -1);
    }
    pthread_mutex_unlock(&engine->lock);
    for (int i = 0; i < 2; i++) {
        must_generate(&fixture, child, i == 0 ? prompt.prompt : NULL, i == 0 ? 5 : 0, 20);
        struct engine_event event = collect(&fixture, child, got.tokens, &got.count);
        assert_int_equal(event.reason, FINISH_ERROR);
        assert_int_equal(event.error.code, RESULT_LIMIT);
        assert_non_null(strstr(event.error.message, "1 copies"));
        assert_non_null(strstr(event.error.message, free_of_all));
        assert_int_equal(got.count, 0);
        assert_int_equal(engine_sequence_length(engine, child), 30);
    }
    pthread_mutex_lock(&engine->lock);
    while (count > 0) {
        kv_block_drop(cache, taken[--count]);
    }
    pthread_mutex_unlock(&engine->lock);
    turn(&fixture, child, NULL, 0, 30, &got);
    turn(&fixture, parent, NULL, 0, 30, &wanted);
    assert_same_tokens(&wanted, &got);
    close_engine(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_continue_as_the_parent_would),
        cmocka_unit_test(forks_beside_running_sequences_equal_alone),
        cmocka_unit_test(fork_after_destroying_a_running_sequence_gets_its_place),
        cmocka_unit_test(forks_that_are_wrong_are_refused),
        cmocka_unit_test(fork_without_blocks_for_its_copy_is_refused_and_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
