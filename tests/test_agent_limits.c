/* Where an agent stops by itself: turns, tokens, context, time. */
#include "agent_support.h"

static void turn_limit_stops_without_running_the_last_calls(void **state) {
    (void)state;
    static const char *const results[] = {"a", "b", "c", "d", "e", "f"};
    const struct script script = {SCRIPT(same_call), .results = results, .result_count = 6};
    struct agent_options options = options_default();
    options.turns_max = 2;
    check_script(
        &script,
        &options,
        AGENT_STOP_TURNS,
        4,
        "Begin Turn generate Output Call call Result TurnEnd "
        "Turn generate Output TurnEnd End finish"
    );
}

static void default_turn_limit_is_forty(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    assert_int_equal(agent_turns_max(driver.agent), 40);
    driver_close(&driver);
}

static void endless_turn_stops_by_length(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.reason = FINISH_LENGTH, .content = "on and on"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    options.turn_tokens_max = 10;
    check_script(
        &script, &options, AGENT_STOP_LENGTH, 1, "Begin Turn generate Output TurnEnd End finish"
    );
}

static void token_budget_limits_the_generation_and_stops(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {
        {.content = "", .calls = {{"shell", "{}"}}, .sampled = 30},
        {.reason = FINISH_LENGTH, .content = "x", .sampled = 20},
    };
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    options.tokens_max = 50;
    struct driver driver;
    driver_open(&driver, &script, &options);
    driver_run(&driver);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_TOKENS);
    assert_int_equal(agent_stop_exit_status(AGENT_STOP_TOKENS), 4);
    assert_int_equal(agent_tokens_sampled(driver.agent), 50);
    driver_close(&driver);
}

static void full_context_stops_before_generating(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call)};
    struct agent_options options = options_default();
    options.context_max = 20; /* 5 appended, 10 sampled, 5 more to append */
    check_script(
        &script,
        &options,
        AGENT_STOP_CONTEXT,
        1,
        "Begin Turn generate Output Call call Result TurnEnd Turn TurnEnd End finish"
    );
}

static void engine_says_context_is_full(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.reason = FINISH_CONTEXT, .content = "x"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check_script(&script, &options, AGENT_STOP_CONTEXT, 1, NULL);
}

static void oversized_conversation_stops(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    size_t bytes = AGENT_CONVERSATION_BYTES_MAX + 1;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, 'x', bytes);
    const struct chat_message message = {.role = CHAT_ASSISTANT, .content = view_of(text, bytes)};
    struct agent_event event = {.type = AGENT_START};
    (void)driver_handle(&driver, &event);
    event = (struct agent_event){.type = AGENT_RECORDED, .append_tokens = 5};
    (void)driver_handle(&driver, &event);
    (void)driver_handle(&driver, &event);
    event = (struct agent_event
    ){.type = AGENT_GENERATED, .sampled = 1, .context_tokens = 6, .message = &message};
    (void)driver_handle(&driver, &event);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_CONTEXT);
    free(text);
    driver_close(&driver);
}

static void deadline_cancels_a_generation(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .milliseconds = 100};
    struct agent_options options = options_default();
    options.time_ms_max = 250; /* begin at 1100, turn at 1200, then generating */
    check_script(
        &script,
        &options,
        AGENT_STOP_TIME,
        4,
        "Begin wait Turn generate cancel-generate Output TurnEnd End finish"
    );
}

static void deadline_cancels_a_call(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .milliseconds = 100};
    struct agent_options options = options_default();
    options.time_ms_max = 550;
    check_script(
        &script,
        &options,
        AGENT_STOP_TIME,
        4,
        "Begin wait Turn generate Output Call call cancel-call Result TurnEnd End finish"
    );
}

static void deadline_while_recording_acts_after_the_record(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .milliseconds = 100};
    struct agent_options options = options_default();
    options.time_ms_max = 450; /* while the call is being recorded: it never starts */
    check_script(
        &script,
        &options,
        AGENT_STOP_TIME,
        4,
        "Begin wait Turn generate Output Call Result TurnEnd End finish"
    );
}

static void early_time_event_only_waits_again(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    options.time_ms_max = 1000;
    struct driver driver;
    driver_open(&driver, &script, &options);
    struct agent_effects effects;
    agent_handle(driver.agent, &(struct agent_event){.type = AGENT_START, .now_ms = 50}, &effects);
    assert_int_equal(effects.count, 2);
    assert_int_equal(effects.items[1].wake_ms, 1050);
    agent_handle(driver.agent, &(struct agent_event){.type = AGENT_TIME, .now_ms = 1049}, &effects);
    assert_int_equal(effects.count, 1);
    assert_int_equal(effects.items[0].type, AGENT_WAIT);
    assert_int_equal(effects.items[0].wake_ms, 1050);
    assert_int_equal(agent_stop(driver.agent), AGENT_GOES_ON);
    driver_close(&driver);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turn_limit_stops_without_running_the_last_calls),
        cmocka_unit_test(default_turn_limit_is_forty),
        cmocka_unit_test(endless_turn_stops_by_length),
        cmocka_unit_test(token_budget_limits_the_generation_and_stops),
        cmocka_unit_test(full_context_stops_before_generating),
        cmocka_unit_test(engine_says_context_is_full),
        cmocka_unit_test(oversized_conversation_stops),
        cmocka_unit_test(deadline_cancels_a_generation),
        cmocka_unit_test(deadline_cancels_a_call),
        cmocka_unit_test(deadline_while_recording_acts_after_the_record),
        cmocka_unit_test(early_time_event_only_waits_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
