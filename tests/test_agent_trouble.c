/* An agent that is interrupted, or whose record, engine, tools or memory fail. */
#include "agent_support.h"
#include "failing_memory.h"

static void engine_error_is_recorded_and_stops(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.reason = FINISH_ERROR, .content = "x"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check_script(
        &script, &options, AGENT_STOP_ENGINE, 6, "Begin Turn generate Output TurnEnd End finish"
    );
}

static void interrupt_at_every_effect_ends_cleanly(void **state) {
    (void)state;
    static const enum agent_effect_type places[] = {
        AGENT_RECORD_BEGIN,
        AGENT_RECORD_TURN,
        AGENT_GENERATE,
        AGENT_RECORD_OUTPUT,
        AGENT_RECORD_CALL,
        AGENT_CALL,
        AGENT_RECORD_RESULT,
    };
    static const char *const logs[] = {
        "Begin End finish",
        "Begin Turn TurnEnd End finish",
        "Begin Turn generate cancel-generate Output TurnEnd End finish",
        "Begin Turn generate Output TurnEnd End finish",
        "Begin Turn generate Output Call Result TurnEnd End finish",
        "Begin Turn generate Output Call call cancel-call Result TurnEnd End finish",
        "Begin Turn generate Output Call call Result TurnEnd End finish",
    };
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const struct script script = {
            SCRIPT(same_call), .interrupts = places[i], .interrupts_at = 1};
        struct agent_options options = options_default();
        check_script(&script, &options, AGENT_STOP_INTERRUPT, 130, logs[i]);
    }
}

static void interrupt_before_the_start_finishes_at_once(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    const struct agent_event event = {.type = AGENT_INTERRUPT};
    (void)driver_handle(&driver, &event);
    assert_string_equal(buffer_text(&driver.log), "finish");
    (void)driver_handle(&driver, &event); /* a second one is ignored */
    assert_string_equal(buffer_text(&driver.log), "finish");
    driver_close(&driver);
}

static void failed_record_is_never_acted_upon(void **state) {
    (void)state;
    static const enum agent_effect_type places[] = {
        AGENT_RECORD_BEGIN,
        AGENT_RECORD_TURN,
        AGENT_RECORD_OUTPUT,
        AGENT_RECORD_CALL,
        AGENT_RECORD_RESULT,
        AGENT_RECORD_TURN_END,
    };
    static const char *const logs[] = {
        "Begin End finish",
        "Begin Turn End finish",
        "Begin Turn generate Output End finish",
        "Begin Turn generate Output Call End finish",
        "Begin Turn generate Output Call call Result End finish",
        "Begin Turn generate Output Call call Result TurnEnd End finish",
    };
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const struct script script = {SCRIPT(same_call), .fails = places[i], .fails_at = 1};
        struct agent_options options = options_default();
        struct driver driver;
        driver_open(&driver, &script, &options);
        driver_run(&driver);
        assert_string_equal(buffer_text(&driver.log), logs[i]);
        assert_int_equal(agent_stop(driver.agent), AGENT_STOP_RECORD);
        assert_string_equal(agent_stop_detail(driver.agent), "disk full");
        driver_close(&driver);
    }
    assert_int_equal(agent_stop_exit_status(AGENT_STOP_RECORD), 5);
}

static void end_that_cannot_be_recorded_is_no_success(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer), .fails = AGENT_RECORD_END, .fails_at = 1};
    struct agent_options options = options_default();
    check_script(&script, &options, AGENT_STOP_RECORD, 5, NULL);
}

static void tool_that_the_host_cannot_run_stops(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .call_fails = true};
    struct agent_options options = options_default();
    check_script(
        &script,
        &options,
        AGENT_STOP_TOOL,
        3,
        "Begin Turn generate Output Call call Result TurnEnd End finish"
    );
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const struct script script = {SCRIPT(call_then_answer)};
    struct agent_options options = options_default();
    size_t failures = 0;
    for (size_t nth = 1;; nth++) {
        struct error error = {0};
        struct driver driver = {.script = &script, .now_ms = 1000, .is_quiet = true};
        failing_memory_arm(nth);
        result created = agent_create(&driver.agent, &options, &error);
        if (is_failed(created)) {
            assert_int_equal(created.code, RESULT_MEMORY);
            assert_null(driver.agent);
        } else {
            driver_run(&driver);
        }
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        if (is_ok(created) && fired) {
            /* The record that shows why is closed in order. */
            assert_int_equal(agent_stop(driver.agent), AGENT_STOP_CONTEXT);
            assert_int_equal(driver.seen[AGENT_RECORD_END], 1);
        }
        agent_destroy(driver.agent);
        if (!fired) {
            break;
        }
        failures++;
    }
    assert_true(failures > 3); /* agent, conversation, its arena, tool names */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_error_is_recorded_and_stops),
        cmocka_unit_test(interrupt_at_every_effect_ends_cleanly),
        cmocka_unit_test(interrupt_before_the_start_finishes_at_once),
        cmocka_unit_test(failed_record_is_never_acted_upon),
        cmocka_unit_test(end_that_cannot_be_recorded_is_no_success),
        cmocka_unit_test(tool_that_the_host_cannot_run_stops),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
