/* The driver of scripts for agents; see the header. */
#include "agent_support.h"

const struct scripted_turn answer[] = {{.content = "done"}};
const struct scripted_turn call_then_answer[] = {
    {.content = "", .calls = {{"shell", "{\"command\":\"ls\"}"}, {"read", "{\"path\":\"a\"}"}}},
    {.content = "done"},
};
const struct scripted_turn same_call[] = {
    {.content = "", .calls = {{"shell", "{\"command\":\"ls\"}"}}},
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

struct agent_effect driver_handle(struct driver *driver, const struct agent_event *event) {
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
        struct agent_effect pending = driver_handle(driver, &event);
        assert_int_equal(pending.type, AGENT_FINISH);
    }
}

static void tell_time(struct driver *driver) {
    const struct agent_event event = {.type = AGENT_TIME, .now_ms = driver->now_ms};
    if (driver->now_ms >= agent_deadline_ms(driver->agent)) {
        (void)driver_handle(driver, &event);
    }
}

void driver_run(struct driver *driver) {
    struct error failure = {.code = RESULT_IO, .message = "disk full"};
    struct agent_event event = {.type = AGENT_START, .now_ms = driver->now_ms};
    struct agent_effect pending = driver_handle(driver, &event);
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
        pending = driver_handle(driver, &event);
    }
}

static const struct chat_tool test_tools[] = {
    {.name = {(const unsigned char *)"shell", 5}, .parameters = {(const unsigned char *)"{}", 2}},
    {.name = {(const unsigned char *)"read", 4}, .parameters = {(const unsigned char *)"{}", 2}},
    {.name = {(const unsigned char *)"finish", 6}, .parameters = {(const unsigned char *)"{}", 2}},
};

struct agent_options options_default(void) {
    return (struct agent_options){
        .system = view_of_text("system"),
        .task = view_of_text("task"),
        .tools = test_tools,
        .tool_count = COUNT_OF(test_tools),
        .effort = 50,
        .context_max = 100000,
    };
}

void driver_open(
    struct driver *driver, const struct script *script, const struct agent_options *options
) {
    struct error error = {0};
    *driver = (struct driver){.script = script, .now_ms = 1000};
    buffer_init(&driver->log, 1 << 20);
    assert_true(is_ok(agent_create(&driver->agent, options, &error)));
}

void driver_close(struct driver *driver) {
    buffer_deinit(&driver->log);
    agent_destroy(driver->agent);
}

void check_script(
    const struct script *script,
    const struct agent_options *options,
    enum agent_stop stop,
    int exit_status,
    const char *log
) {
    struct driver driver;
    driver_open(&driver, script, options);
    driver_run(&driver);
    if (log != NULL) {
        assert_string_equal(buffer_text(&driver.log), log);
    }
    assert_string_equal(agent_stop_name(agent_stop(driver.agent)), agent_stop_name(stop));
    assert_int_equal(agent_stop_exit_status(stop), exit_status);
    driver_close(&driver);
}
