/* The agent by scripts: turns, calls and results, repetition and garbage, and going on from a record. */
#include "agent_support.h"

static void turn_without_call_ends_the_run(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    check_script(
        &script, &options, AGENT_STOP_ANSWER, 0, "Begin Turn generate Output TurnEnd End finish"
    );
}

static void calls_are_recorded_before_they_start_and_answered_in_order(void **state) {
    (void)state;
    const struct script script = {SCRIPT(call_then_answer)};
    struct agent_options options = options_default();
    check_script(
        &script,
        &options,
        AGENT_STOP_ANSWER,
        0,
        "Begin Turn generate Output Call call Result Call call Result TurnEnd "
        "Turn generate Output TurnEnd End finish"
    );
}

static void results_go_back_in_the_order_of_the_calls(void **state) {
    (void)state;
    static const char *const results[] = {"first", "second"};
    const struct script script = {SCRIPT(call_then_answer), .results = results, .result_count = 2};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    const struct chat_conversation *conversation = agent_conversation(driver.agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    assert_int_equal(chat_conversation_count(conversation), 6);
    assert_int_equal(messages[3].role, CHAT_TOOL);
    assert_true(view_equals_text(messages[3].content, "first"));
    assert_true(view_equals(messages[3].call_id, messages[2].calls[0].id));
    assert_true(view_equals_text(messages[4].content, "second"));
    assert_true(view_equals(messages[4].call_id, messages[2].calls[1].id));
    driver_close(&driver);
}

static void finish_tool_ends_the_run(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.content = "", .calls = {{"finish", "{}"}}}};
    const struct script script = {SCRIPT(turns), .ends_task = true};
    struct agent_options options = options_default();
    check_script(
        &script,
        &options,
        AGENT_STOP_FINISH,
        0,
        "Begin Turn generate Output Call call Result TurnEnd End finish"
    );
}

static void repeated_call_with_same_result_stops(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_REPEAT);
    assert_int_equal(driver.seen[AGENT_CALL], AGENT_REPEATS_MAX);
    assert_non_null(strstr(agent_stop_detail(driver.agent), "shell"));
    driver_close(&driver);
}

static void alternating_calls_that_bring_nothing_new_stop(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {
        {.content = "", .calls = {{"shell", "{\"command\":\"ls\"}"}, {"read", "{\"path\":\"a\"}"}}},
    };
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_REPEAT);
    assert_int_equal(driver.seen[AGENT_CALL], 2 * AGENT_REPEATS_MAX - 1);
    driver_close(&driver);
}

static void same_call_with_changing_results_goes_on(void **state) {
    (void)state;
    static char texts[60][8];
    static const char *results[60];
    for (int i = 0; i < 60; i++) {
        assert_true(snprintf(texts[i], sizeof texts[i], "%d", i) > 0);
        results[i] = texts[i];
    }
    const struct script script = {SCRIPT(same_call), .results = results, .result_count = 60};
    struct agent_options options = options_default();
    options.turns_max = 30;
    check_script(&script, &options, AGENT_STOP_TURNS, 4, NULL);
}

static void something_new_in_between_forgives_repetition(void **state) {
    (void)state;
    /* The tests fail in the same way after each different edit: no loop. */
    static const struct scripted_turn turns[] = {
        {.content = "", .calls = {{"shell", "{}"}, {"read", "{\"path\":\"1\"}"}}},
        {.content = "", .calls = {{"shell", "{}"}, {"read", "{\"path\":\"2\"}"}}},
        {.content = "", .calls = {{"shell", "{}"}, {"read", "{\"path\":\"3\"}"}}},
        {.content = "", .calls = {{"shell", "{}"}, {"read", "{\"path\":\"4\"}"}}},
        {.content = "", .calls = {{"shell", "{}"}, {"read", "{\"path\":\"5\"}"}}},
        {.content = "done"},
    };
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check_script(&script, &options, AGENT_STOP_ANSWER, 0, NULL);
}

static void unknown_tools_in_a_row_stop(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {
        {.content = "", .calls = {{"fly", "{\"to\":\"1\"}"}}},
        {.content = "", .calls = {{"fly", "{\"to\":\"2\"}"}, {"swim", "{}"}}},
        {.content = "", .calls = {{"fly", "{\"to\":\"3\"}"}}},
        {.content = "done"},
    };
    static const char *const results[] = {"1", "2", "3", "4"};
    const struct script script = {
        SCRIPT(turns), .status = TOOL_REFUSED, .results = results, .result_count = 4};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_UNKNOWN);
    assert_int_equal(agent_stop_exit_status(AGENT_STOP_UNKNOWN), 1);
    assert_int_equal(driver.seen[AGENT_CALL], AGENT_UNKNOWN_MAX);
    driver_close(&driver);
}

static void garbage_is_answered_twice_and_then_stops(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.content = "", .problem = "a call was torn"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_GARBAGE);
    assert_int_equal(driver.seen[AGENT_GENERATE], AGENT_MALFORMED_MAX);
    const struct chat_message *messages =
        chat_conversation_messages(agent_conversation(driver.agent));
    assert_int_equal(messages[3].role, CHAT_USER);
    assert_true(view_find(messages[3].content, view_of_text("a call was torn"), 0) != SIZE_MAX);
    driver_close(&driver);
}

static void empty_turns_are_garbage(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.content = ""}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check_script(&script, &options, AGENT_STOP_GARBAGE, 1, NULL);
}

static void one_bad_turn_is_forgiven(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {
        {.content = "", .problem = "torn"},
        {.content = "", .calls = {{"shell", "{}"}}},
        {.content = "", .problem = "torn"},
        {.content = "", .problem = "torn"},
        {.content = "done"},
    };
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check_script(&script, &options, AGENT_STOP_ANSWER, 0, NULL);
}

static void same_events_give_same_effects(void **state) {
    (void)state;
    struct buffer logs[2];
    for (int i = 0; i < 2; i++) {
        const struct script script = {SCRIPT(call_then_answer), .milliseconds = 7};
        struct agent_options options = options_default();
        options.time_ms_max = 100000;
        struct driver driver;
        driver_open(&driver, &script, &options);
        driver_run(&driver);
        logs[i] = driver.log;
        buffer_init(&driver.log, 1);
        driver_close(&driver);
    }
    assert_string_equal(buffer_text(&logs[0]), buffer_text(&logs[1]));
    buffer_deinit(&logs[0]);
    buffer_deinit(&logs[1]);
}

static void every_stop_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int i = AGENT_GOES_ON; i <= AGENT_STOP_TOOL; i++) {
        for (int j = i + 1; j <= AGENT_STOP_TOOL; j++) {
            assert_string_not_equal(
                agent_stop_name((enum agent_stop)i), agent_stop_name((enum agent_stop)j)
            );
        }
        assert_true(strlen(agent_stop_text((enum agent_stop)i)) > 0);
    }
}

/* Two calls of the last turn: one has its result, the other runs before the next turn. */
static void resumed_agent_runs_the_calls_that_never_ran(void **state) {
    (void)state;
    static const struct chat_call calls[] = {
        {.id = {(const unsigned char *)"call_0", 6}, .name = {(const unsigned char *)"read", 4}},
        {.id = {(const unsigned char *)"call_1", 6}, .name = {(const unsigned char *)"shell", 5}},
    };
    const struct chat_message messages[] = {
        {.role = CHAT_SYSTEM, .content = view_of_text("s")},
        {.role = CHAT_USER, .content = view_of_text("u")},
        {.role = CHAT_ASSISTANT, .calls = calls, .call_count = 2},
        {.role = CHAT_TOOL, .content = view_of_text("ok"), .call_id = calls[0].id},
    };
    const struct agent_resume resume = {
        .messages = messages,
        .message_count = COUNT_OF(messages),
        .context_messages = 3,
        .context_tokens = 100,
        .turns = 5,
        .has_calls = true,
        .turn_message = 2,
        .next_call = 1,
        .calls_total = 2,
    };
    const struct agent_options options = {.context_max = 1000, .turns_max = 2, .resume = &resume};
    struct error error = {0};
    CLEANUP(agent_cleanup) struct agent *agent = NULL;
    assert_true(is_ok(agent_create(&agent, &options, &error)));
    assert_int_equal(agent_turns(agent), 5);
    assert_int_equal(agent_turns_max(agent), 7);
    static const struct {
        enum agent_event_type event;
        enum agent_effect_type effect;
    } steps[] = {
        {AGENT_START, AGENT_RECORD_BEGIN},
        {AGENT_RECORDED, AGENT_RECORD_CALL},
        {AGENT_RECORDED, AGENT_CALL},
        {AGENT_CALLED, AGENT_RECORD_RESULT},
        {AGENT_RECORDED, AGENT_RECORD_TURN}, /* the turn of the calls was closed before */
        {AGENT_RECORDED, AGENT_GENERATE},
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct agent_effects effects;
        const struct agent_event event = {
            .type = steps[i].event, .text = view_of_text("fine"), .append_tokens = 7};
        agent_handle(agent, &event, &effects);
        assert_int_equal(effects.count, 1);
        assert_int_equal(effects.items[0].type, steps[i].effect);
        if (steps[i].effect == AGENT_RECORD_CALL) {
            assert_int_equal(effects.items[0].call_index, 1);
        } else if (steps[i].effect == AGENT_RECORD_TURN) {
            assert_int_equal(effects.items[0].from_message, 3);
        } else if (steps[i].effect == AGENT_GENERATE) {
            assert_int_equal(effects.items[0].tokens_max, 1000 - 107);
            assert_int_equal(effects.items[0].first_call_number, 2);
        }
    }
    assert_int_equal(chat_conversation_count(agent_conversation(agent)), 5);
    assert_int_equal(agent_turns(agent), 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turn_without_call_ends_the_run),
        cmocka_unit_test(calls_are_recorded_before_they_start_and_answered_in_order),
        cmocka_unit_test(results_go_back_in_the_order_of_the_calls),
        cmocka_unit_test(finish_tool_ends_the_run),
        cmocka_unit_test(repeated_call_with_same_result_stops),
        cmocka_unit_test(alternating_calls_that_bring_nothing_new_stop),
        cmocka_unit_test(same_call_with_changing_results_goes_on),
        cmocka_unit_test(something_new_in_between_forgives_repetition),
        cmocka_unit_test(unknown_tools_in_a_row_stop),
        cmocka_unit_test(garbage_is_answered_twice_and_then_stops),
        cmocka_unit_test(empty_turns_are_garbage),
        cmocka_unit_test(one_bad_turn_is_forgiven),
        cmocka_unit_test(same_events_give_same_effects),
        cmocka_unit_test(every_stop_has_a_name_of_its_own),
        cmocka_unit_test(resumed_agent_runs_the_calls_that_never_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
