/* Sequences with draft rings that take turns in one window slot: parked states bring the rings back,
 * rebuilt ones run their rows again, and what was left of another sequence is never seen. */
#include "engine/kv_store.h"
#include "forward_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PROMPT 150
#define MORE   20

struct turns {
    struct bench bench;
    struct kv_store *store;
    struct kv_sequence *sequence;
    struct kv_binding binding;
    int32_t ids[PROMPT + 2 * MORE];
    bool is_off; /* rows do not go into the rings */
};

/* `slots` of the snapshot pool; 0: whatever is parked is lost. */
static void open_turns(struct turns *turns, uint64_t slots) {
    *turns = (struct turns){0};
    struct bench_options options = {
        .model = "golden/tiny-a",
        .rows_max = 64,
        .sequences_max = 2,
        .context_max = 512,
        .drafts = true,
    };
    bench_open(&turns->bench, &options);
    const struct model_config *config = turns->bench.config;
    struct kv_store_options store = {
        .cache = &turns->bench.cache,
        .window = config->window,
        .encoder_layers = config->encoder_layers,
        .layers = config->layers,
        .leases_max = 4,
        .snapshot_bytes = slots * turns->bench.cache.layout.state_bytes,
    };
    MUST(kv_store_create(&turns->store, &store, error));
    for (int32_t i = 0; i < (int32_t)COUNT_OF(turns->ids); i++) {
        turns->ids[i] = (i * 7919 + 13) % 1200;
    }
    turns->sequence = kv_cache_acquire(&turns->bench.cache);
    struct kv_prompt prompt = {.tokens = turns->ids, .count = PROMPT};
    struct kv_reuse reuse;
    enum kv_begin begun =
        kv_store_begin(turns->store, &turns->binding, turns->sequence, &prompt, 0, &reuse);
    assert_int_equal(begun, KV_BEGIN_READY);
    assert_int_equal(reuse.hit, 0);
    bench_append(&turns->bench, turns->sequence, turns->ids, PROMPT);
}

static void close_turns(struct turns *turns) {
    kv_store_end(turns->store, &turns->binding, 0);
    kv_cache_release(&turns->bench.cache, turns->sequence);
    kv_store_destroy(turns->store);
    bench_close(&turns->bench);
}

/* Runs [computed, end) towards `prompt_end` in steps of at most `chunk` rows. */
static void run_to(struct turns *turns, int32_t end, int32_t prompt_end, int32_t chunk) {
    struct kv_sequence *sequence = turns->sequence;
    while (sequence->computed < end) {
        int32_t left = end - sequence->computed;
        int32_t rows = kv_store_rows(&turns->binding, left < chunk ? left : chunk);
        bool is_last = sequence->computed + rows == prompt_end;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = rows,
            .prompt_end = prompt_end,
            .logits = is_last ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
            .write_floor = sequence->kept,
        };
        MUST(forward_step(turns->bench.forward, &segment, 1, NULL, error));
        if (!turns->is_off) {
            MUST(draft_commit(turns->bench.draft, &segment, NULL, 1, error));
        }
        kv_store_advance(turns->store, &turns->binding, 0);
    }
}

static void decode(struct turns *turns, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t length = turns->sequence->length;
        bench_append(&turns->bench, turns->sequence, &turns->ids[length], 1);
        run_to(turns, length + 1, length + 1, 1);
    }
}

/* Takes the slot away, lets it fill with something else, and gives it back. */
static void take_a_turn(struct turns *turns, int32_t prompt_end, bool is_rebuilt) {
    struct kv_cache *cache = &turns->bench.cache;
    struct kv_resumption resumption;
    uint8_t *state = turns->sequence->state;
    kv_store_park(turns->store, &turns->binding, true, 0);
    assert_null(turns->sequence->state);
    bench_fill(&turns->bench, state, 0x5a, cache->layout.state_bytes);
    bool is_back = kv_store_resume(turns->store, &turns->binding, prompt_end, 0, &resumption);
    assert_true(is_back);
    assert_int_equal(resumption.is_rebuilt, is_rebuilt);
    run_to(turns, resumption.kept, prompt_end, 50);
}

static void propose(struct turns *turns, struct draft_proposal *out) {
    struct draft_request request = {
        .sequence = turns->sequence,
        .token = 5,
        .wanted = turns->bench.config->draft_block,
    };
    memset(out, 0, sizeof *out);
    MUST(draft_propose(turns->bench.draft, &request, 1, out, error));
}

/* Guesses in the middle of the text and at its end, without a break. */
static void run_unbroken(struct draft_proposal proposals[2]) {
    struct turns turns;
    open_turns(&turns, 2);
    run_to(&turns, PROMPT, PROMPT, 50);
    decode(&turns, MORE);
    propose(&turns, &proposals[0]);
    decode(&turns, MORE);
    propose(&turns, &proposals[1]);
    close_turns(&turns);
}

static void check_turns(uint64_t slots) {
    struct draft_proposal wanted[2];
    struct draft_proposal got[2];
    struct turns turns;
    bool is_rebuilt = slots == 0;
    run_unbroken(wanted);
    open_turns(&turns, slots);
    int32_t window = turns.bench.config->window;
    run_to(&turns, 100, PROMPT, 50);
    take_a_turn(&turns, PROMPT, is_rebuilt);
    run_to(&turns, PROMPT, PROMPT, 50);
    assert_int_equal(draft_rows_seen(turns.bench.draft, turns.sequence), window);
    decode(&turns, MORE);
    take_a_turn(&turns, turns.sequence->length, is_rebuilt);
    assert_int_equal(draft_rows_seen(turns.bench.draft, turns.sequence), window);
    propose(&turns, &got[0]);
    decode(&turns, MORE / 2);
    take_a_turn(&turns, turns.sequence->length, is_rebuilt);
    decode(&turns, MORE / 2);
    propose(&turns, &got[1]);
    assert_memory_equal(got, wanted, sizeof got);
    /* What was in the slot meanwhile does not count, even if nothing takes its place. */
    turns.is_off = true;
    take_a_turn(&turns, turns.sequence->length, is_rebuilt);
    int32_t seen = draft_rows_seen(turns.bench.draft, turns.sequence);
    assert_int_equal(seen, is_rebuilt ? 0 : window);
    close_turns(&turns);
}

static void parked_rings_come_back(void **state) {
    (void)state;
    check_turns(2);
}

static void lost_rings_are_made_again(void **state) {
    (void)state;
    check_turns(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parked_rings_come_back),
        cmocka_unit_test(lost_rings_are_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
