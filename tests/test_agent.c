/* The agent as event scripts: what a model does on the left, the effects on the right. A driver
 * answers every effect at once; the log of effects is compared as one string. */
#include "base/bytes.h"
#include "failing_memory.h"
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CALLS_MAX 4

struct scripted_call {
    const char *name;
    const char *arguments;
};

/* One generation of the scripted model; the last one is repeated for ever. */
struct scripted_turn {
    enum finish_reason reason; /* FINISH_EOS is 0 */
    const char *content;
    struct scripted_call calls[CALLS_MAX];
    const char *problem;
    int32_t sampled; /* 0: 10 */
};

struct script {
    const struct scripted_turn *turns;
    size_t turn_count;
    const char *const *results; /* of calls, in order; the last one is repeated */
    size_t result_count;
    enum agent_effect_type fails;      /* this RECORD effect fails, the ... */
    int fails_at;                      /* ... nth time; 0: never */
    enum agent_effect_type interrupts; /* an interrupt arrives right after this effect ... */
    int interrupts_at;                 /* ... the nth time; 0: never */
    int64_t milliseconds;              /* each answer takes */
    enum tool_status status;
    bool ends_task;
    bool call_fails;
};

struct driver {
    const struct script *script;
    struct agent *agent;
    struct buffer log;
    int64_t now_ms;
    size_t turn, result;
    int seen[AGENT_FINISH + 1];
    bool is_cancelled;
    bool has_interrupted;
    bool is_quiet; /* no log: it would allocate */
};

static const char *const effect_words[] = {
    [AGENT_RECORD_BEGIN] = "Begin",
    [AGENT_RECORD_TURN] = "Turn",
    [AGENT_GENERATE] = "generate",
    [AGENT_CANCEL_GENERATE] = "cancel-generate",
    [AGENT_RECORD_OUTPUT] = "Output",
    [AGENT_RECORD_CALL] = "Call",
    [AGENT_CALL] = "call",
    [AGENT_CANCEL_CALL] = "cancel-call",
    [AGENT_RECORD_RESULT] = "Result",
    [AGENT_RECORD_TURN_END] = "TurnEnd",
    [AGENT_RECORD_END] = "End",
    [AGENT_WAIT] = "wait",
    [AGENT_FINISH] = "finish",
};

static struct view text_view(const char *text) {
    return view_of_text(text);
}

static void
answer_generation(struct driver *driver, struct agent_event *event, struct chat_message *message) {
    const struct script *script = driver->script;
    size_t last = script->turn_count - 1;
    const struct scripted_turn *turn = &script->turns[driver->turn < last ? driver->turn : last];
    static struct chat_call calls[CALLS_MAX];
    static char ids[CALLS_MAX][32];
    driver->turn++;
    *message = (struct chat_message){.role = CHAT_ASSISTANT, .content = text_view(turn->content)};
    for (size_t i = 0; i < CALLS_MAX && turn->calls[i].name != NULL; i++) {
        int length = snprintf(ids[i], sizeof ids[i], "call_%zu_%zu", driver->turn, i);
        assert_true(length > 0);
        calls[i] = (struct chat_call){
            .id = text_view(ids[i]),
            .name = text_view(turn->calls[i].name),
            .arguments = text_view(turn->calls[i].arguments),
        };
        message->call_count++;
    }
    message->calls = calls;
    event->type = AGENT_GENERATED;
    event->reason = driver->is_cancelled ? FINISH_CANCELLED : turn->reason;
    event->sampled = turn->sampled > 0 ? turn->sampled : 10;
    event->context_tokens = agent_context_tokens(driver->agent) + 5 + event->sampled;
    event->message = message;
    event->has_problems = turn->problem != NULL;
    event->problem = text_view(turn->problem);
}

static void answer_call(struct driver *driver, struct agent_event *event) {
    const struct script *script = driver->script;
    const char *text = "ok";
    if (script->result_count > 0) {
        size_t last = script->result_count - 1;
        text = script->results[driver->result < last ? driver->result : last];
    }
    driver->result++;
    event->type = script->call_fails ? AGENT_CALL_FAILED : AGENT_CALLED;
    event->status = driver->is_cancelled ? TOOL_CANCELLED : script->status;
    event->text = text_view(text);
    event->ends_task = script->ends_task;
}

static void log_effect(struct driver *driver, const struct agent_effect *effect) {
    struct error error;
    driver->seen[effect->type]++;
    if (driver->is_quiet) {
        return;
    }
    assert_true(is_ok(buffer_append_format(
        &driver->log, &error, "%s%s", driver->log.length > 0 ? " " : "", effect_words[effect->type]
    )));
}

/* The effect that the driver has to answer; cancels and waits need none of their own. */
static bool wants_answer(enum agent_effect_type type) {
    return type != AGENT_WAIT && type != AGENT_CANCEL_GENERATE && type != AGENT_CANCEL_CALL &&
           type != AGENT_FINISH;
}

static struct agent_effect handle(struct driver *driver, const struct agent_event *event) {
    struct agent_effects effects;
    struct agent_effect pending = {.type = AGENT_FINISH};
    agent_handle(driver->agent, event, &effects);
    for (size_t i = 0; i < effects.count; i++) {
        log_effect(driver, &effects.items[i]);
        driver->is_cancelled |= effects.items[i].type == AGENT_CANCEL_GENERATE ||
                                effects.items[i].type == AGENT_CANCEL_CALL;
        if (wants_answer(effects.items[i].type)) {
            assert_int_equal(pending.type, AGENT_FINISH); /* one thing at a time */
            pending = effects.items[i];
        }
    }
    return pending;
}

static void maybe_interrupt(struct driver *driver, enum agent_effect_type type) {
    const struct script *script = driver->script;
    if (script->interrupts_at > 0 && script->interrupts == type &&
        driver->seen[type] == script->interrupts_at && !driver->has_interrupted) {
        driver->has_interrupted = true;
        const struct agent_event event = {.type = AGENT_INTERRUPT, .now_ms = driver->now_ms};
        struct agent_effect pending = handle(driver, &event);
        assert_int_equal(pending.type, AGENT_FINISH);
    }
}

static void tell_time(struct driver *driver) {
    const struct agent_event event = {.type = AGENT_TIME, .now_ms = driver->now_ms};
    if (driver->now_ms >= agent_deadline_ms(driver->agent)) {
        (void)handle(driver, &event);
    }
}

static void drive(struct driver *driver) {
    struct error failure = {.code = RESULT_IO, .message = "disk full"};
    struct agent_event event = {.type = AGENT_START, .now_ms = driver->now_ms};
    struct agent_effect pending = handle(driver, &event);
    for (int steps = 0; !agent_is_finished(driver->agent); steps++) {
        assert_true(steps < 10000);
        maybe_interrupt(driver, pending.type);
        driver->now_ms += driver->script->milliseconds;
        tell_time(driver);
        struct chat_message message;
        event = (struct agent_event){.type = AGENT_RECORDED, .now_ms = driver->now_ms};
        event.append_tokens = 5;
        event.error = &failure;
        if (pending.type == AGENT_GENERATE) {
            answer_generation(driver, &event, &message);
        } else if (pending.type == AGENT_CALL) {
            answer_call(driver, &event);
        } else if (driver->script->fails_at > 0 && pending.type == driver->script->fails &&
                   driver->seen[pending.type] >= driver->script->fails_at) {
            event.type = AGENT_RECORD_FAILED;
        }
        pending = handle(driver, &event);
    }
}

static const struct chat_tool test_tools[] = {
    {.name = {(const unsigned char *)"shell", 5}, .parameters = {(const unsigned char *)"{}", 2}},
    {.name = {(const unsigned char *)"read", 4}, .parameters = {(const unsigned char *)"{}", 2}},
    {.name = {(const unsigned char *)"finish", 6}, .parameters = {(const unsigned char *)"{}", 2}},
};

static struct agent_options options_default(void) {
    return (struct agent_options){
        .system = view_of_text("system"),
        .task = view_of_text("task"),
        .tools = test_tools,
        .tool_count = COUNT_OF(test_tools),
        .effort = 50,
        .context_max = 100000,
    };
}

static void driver_open(
    struct driver *driver, const struct script *script, const struct agent_options *options
) {
    struct error error = {0};
    *driver = (struct driver){.script = script, .now_ms = 1000};
    buffer_init(&driver->log, 1 << 20);
    assert_true(is_ok(agent_create(&driver->agent, options, &error)));
}

static void driver_close(struct driver *driver) {
    buffer_deinit(&driver->log);
    agent_destroy(driver->agent);
}

/* Runs a script with options and checks stop, exit status and (when not null) the effects. */
static void check(
    const struct script *script,
    const struct agent_options *options,
    enum agent_stop stop,
    int exit_status,
    const char *log
) {
    struct driver driver;
    driver_open(&driver, script, options);
    drive(&driver);
    if (log != NULL) {
        assert_string_equal(buffer_text(&driver.log), log);
    }
    assert_string_equal(agent_stop_name(agent_stop(driver.agent)), agent_stop_name(stop));
    assert_int_equal(agent_stop_exit_status(stop), exit_status);
    driver_close(&driver);
}

#define SCRIPT(turns_array) .turns = (turns_array), .turn_count = COUNT_OF(turns_array)

static const struct scripted_turn answer[] = {{.content = "done"}};
static const struct scripted_turn call_then_answer[] = {
    {.content = "", .calls = {{"shell", "{\"command\":\"ls\"}"}, {"read", "{\"path\":\"a\"}"}}},
    {.content = "done"},
};
static const struct scripted_turn same_call[] = {
    {.content = "", .calls = {{"shell", "{\"command\":\"ls\"}"}}},
};

/* ---- tests ---------------------------------------------------------------------------------- */

static void turn_without_call_ends_the_run(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    check(&script, &options, AGENT_STOP_ANSWER, 0, "Begin Turn generate Output TurnEnd End finish");
}

static void calls_are_recorded_before_they_start_and_answered_in_order(void **state) {
    (void)state;
    const struct script script = {SCRIPT(call_then_answer)};
    struct agent_options options = options_default();
    check(
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
    drive(&driver);
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
    check(
        &script,
        &options,
        AGENT_STOP_FINISH,
        0,
        "Begin Turn generate Output Call call Result TurnEnd End finish"
    );
}

static void turn_limit_stops_without_running_the_last_calls(void **state) {
    (void)state;
    static const char *const results[] = {"a", "b", "c", "d", "e", "f"};
    const struct script script = {SCRIPT(same_call), .results = results, .result_count = 6};
    struct agent_options options = options_default();
    options.turns_max = 2;
    check(
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

static void repeated_call_with_same_result_stops(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    drive(&driver);
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
    drive(&driver);
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
    check(&script, &options, AGENT_STOP_TURNS, 4, NULL);
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
    check(&script, &options, AGENT_STOP_ANSWER, 0, NULL);
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
    drive(&driver);
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
    drive(&driver);
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
    check(&script, &options, AGENT_STOP_GARBAGE, 1, NULL);
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
    check(&script, &options, AGENT_STOP_ANSWER, 0, NULL);
}

static void endless_turn_stops_by_length(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.reason = FINISH_LENGTH, .content = "on and on"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    options.turn_tokens_max = 10;
    check(&script, &options, AGENT_STOP_LENGTH, 1, "Begin Turn generate Output TurnEnd End finish");
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
    drive(&driver);
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
    check(
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
    check(&script, &options, AGENT_STOP_CONTEXT, 1, NULL);
}

static void engine_error_is_recorded_and_stops(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{.reason = FINISH_ERROR, .content = "x"}};
    const struct script script = {SCRIPT(turns)};
    struct agent_options options = options_default();
    check(&script, &options, AGENT_STOP_ENGINE, 6, "Begin Turn generate Output TurnEnd End finish");
}

static void deadline_cancels_a_generation(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .milliseconds = 100};
    struct agent_options options = options_default();
    options.time_ms_max = 250; /* begin at 1100, turn at 1200, then generating */
    check(
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
    check(
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
    check(
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
        check(&script, &options, AGENT_STOP_INTERRUPT, 130, logs[i]);
    }
}

static void interrupt_before_the_start_finishes_at_once(void **state) {
    (void)state;
    const struct script script = {SCRIPT(answer)};
    struct agent_options options = options_default();
    struct driver driver;
    driver_open(&driver, &script, &options);
    const struct agent_event event = {.type = AGENT_INTERRUPT};
    (void)handle(&driver, &event);
    assert_string_equal(buffer_text(&driver.log), "finish");
    (void)handle(&driver, &event); /* a second one is ignored */
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
        drive(&driver);
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
    check(&script, &options, AGENT_STOP_RECORD, 5, NULL);
}

static void tool_that_the_host_cannot_run_stops(void **state) {
    (void)state;
    const struct script script = {SCRIPT(same_call), .call_fails = true};
    struct agent_options options = options_default();
    check(
        &script,
        &options,
        AGENT_STOP_TOOL,
        3,
        "Begin Turn generate Output Call call Result TurnEnd End finish"
    );
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
    (void)handle(&driver, &event);
    event = (struct agent_event){.type = AGENT_RECORDED, .append_tokens = 5};
    (void)handle(&driver, &event);
    (void)handle(&driver, &event);
    event = (struct agent_event
    ){.type = AGENT_GENERATED, .sampled = 1, .context_tokens = 6, .message = &message};
    (void)handle(&driver, &event);
    assert_int_equal(agent_stop(driver.agent), AGENT_STOP_CONTEXT);
    free(text);
    driver_close(&driver);
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
            drive(&driver);
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

static void same_events_give_same_effects(void **state) {
    (void)state;
    struct buffer logs[2];
    for (int i = 0; i < 2; i++) {
        const struct script script = {SCRIPT(call_then_answer), .milliseconds = 7};
        struct agent_options options = options_default();
        options.time_ms_max = 100000;
        struct driver driver;
        driver_open(&driver, &script, &options);
        drive(&driver);
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

/* ---- resume --------------------------------------------------------------------------------- */

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
        cmocka_unit_test(turn_limit_stops_without_running_the_last_calls),
        cmocka_unit_test(default_turn_limit_is_forty),
        cmocka_unit_test(repeated_call_with_same_result_stops),
        cmocka_unit_test(alternating_calls_that_bring_nothing_new_stop),
        cmocka_unit_test(same_call_with_changing_results_goes_on),
        cmocka_unit_test(something_new_in_between_forgives_repetition),
        cmocka_unit_test(unknown_tools_in_a_row_stop),
        cmocka_unit_test(garbage_is_answered_twice_and_then_stops),
        cmocka_unit_test(empty_turns_are_garbage),
        cmocka_unit_test(one_bad_turn_is_forgiven),
        cmocka_unit_test(endless_turn_stops_by_length),
        cmocka_unit_test(token_budget_limits_the_generation_and_stops),
        cmocka_unit_test(full_context_stops_before_generating),
        cmocka_unit_test(engine_says_context_is_full),
        cmocka_unit_test(engine_error_is_recorded_and_stops),
        cmocka_unit_test(deadline_cancels_a_generation),
        cmocka_unit_test(deadline_cancels_a_call),
        cmocka_unit_test(deadline_while_recording_acts_after_the_record),
        cmocka_unit_test(early_time_event_only_waits_again),
        cmocka_unit_test(interrupt_at_every_effect_ends_cleanly),
        cmocka_unit_test(interrupt_before_the_start_finishes_at_once),
        cmocka_unit_test(failed_record_is_never_acted_upon),
        cmocka_unit_test(end_that_cannot_be_recorded_is_no_success),
        cmocka_unit_test(tool_that_the_host_cannot_run_stops),
        cmocka_unit_test(oversized_conversation_stops),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(same_events_give_same_effects),
        cmocka_unit_test(every_stop_has_a_name_of_its_own),
        cmocka_unit_test(resumed_agent_runs_the_calls_that_never_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
