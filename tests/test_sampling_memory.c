/* Every allocation of sampler, history, stops and guard fails once; draws make none. */
#include "failing_memory.h"

#include "engine/guard.h"
#include "engine/sampler.h"
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct parts {
    struct sampler *sampler;
    struct sampler_history *history;
    struct stop *stop;
    struct guard *guard;
    struct guard_state *guard_state;
};

static result make(struct parts *parts, struct error *error) {
    TRY(sampler_create(&parts->sampler, 100, error));
    TRY(sampler_history_create(&parts->history, 100, 50, error));
    struct view strings[] = {view_of_text("one"), view_of_text("two")};
    struct stop_options options = {.strings = strings, .string_count = 2};
    TRY(stop_create(&parts->stop, &options, error));
    struct guard_limits limits = {
        .loop_span_max = 8, .loop_times = 3, .loop_tokens = 6, .thinking_max = 5, .call_max = 5};
    struct guard_markers markers = {
        .thinking_open = 1,
        .thinking_close = 2,
        .call_open = {view_of_text("<")},
        .call_open_count = 1,
        .call_close = {view_of_text(">")},
        .call_close_count = 1,
    };
    TRY(guard_create(&parts->guard, &limits, &markers, error));
    return guard_state_create(&parts->guard_state, false, error);
}

static void unmake(struct parts *parts) {
    guard_state_destroy(parts->guard_state);
    guard_destroy(parts->guard);
    stop_destroy(parts->stop);
    sampler_history_destroy(parts->history);
    sampler_destroy(parts->sampler);
    *parts = (struct parts){0};
}

static void failed_allocations_are_reported(void **state) {
    (void)state;
    size_t failures = 0;
    for (size_t nth = 1;; nth++) {
        struct parts parts = {0};
        struct error error = {0};
        failing_memory_arm(nth);
        result made = make(&parts, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        unmake(&parts);
        if (!fired) {
            assert_true(is_ok(made));
            break;
        }
        assert_int_equal(made.code, RESULT_MEMORY);
        assert_non_null(strstr(error.message, "no memory"));
        failures++;
    }
    print_message("%zu allocations failed once each\n", failures);
    assert_true(failures >= 16);
}

static void tokens_cost_no_allocation(void **state) {
    (void)state;
    struct parts parts = {0};
    struct error error;
    assert_true(is_ok(make(&parts, &error)));
    float logits[100] = {0};
    const uint64_t mask[2] = {~(uint64_t)0, 0xffffU};
    const struct logit_bias bias = {7, 3};
    struct sampling sampling = {
        .temperature = 1,
        .top_p = 0.9,
        .min_p = 0.01,
        .top_k = 60,
        .repetition_penalty = 1.1,
        .presence_penalty = 0.5,
        .bias = &bias,
        .bias_count = 1,
        .alternatives = 20,
    };
    struct sampler_request request = {
        .logits = logits, .sampling = &sampling, .history = parts.history};
    struct stop_state stop_state = {0};
    size_t before = failing_memory_count();
    for (int32_t i = 0; i < 50; i++) {
        struct sampled_token token;
        struct stop_match match;
        struct guard_finding finding;
        request.position = i;
        request.mask = i % 2 == 0 ? mask : NULL;
        assert_true(is_ok(sampler_draw(parts.sampler, &request, &token, &error)));
        sampler_history_push(parts.history, token.id);
        assert_false(stop_feed(parts.stop, &stop_state, token.id, view_of_text("xyz"), &match));
        guard_feed(parts.guard, parts.guard_state, token.id, view_of_text("<>"), &finding);
    }
    assert_int_equal(failing_memory_count(), before);
    unmake(&parts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_allocations_are_reported),
        cmocka_unit_test(tokens_cost_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
