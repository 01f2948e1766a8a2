/* When an agent compacts, as event scripts: the driver answers each effect, and the log of effects is
 * compared as one string. */
#include "base/bytes.h"
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* One generation; the last one is repeated. */
struct scripted_turn {
    enum finish_reason reason;
    int32_t sampled;
    const char *call; /* path that it reads; null: an answer */
};

enum answer { COMPACTS, FAILS_TO_SHRINK, IS_CANCELLED, FAILS_IN_ENGINE, FAILS_TO_RECORD };

struct script {
    const struct scripted_turn *turns;
    size_t turn_count;
    int32_t append[8];    /* tokens of the nth prompt; 0: 10 */
    int32_t after;        /* tokens of a new context */
    enum answer answer;   /* of a compaction */
    bool interrupts;      /* while it compacts; */
    bool pauses;          /* as the person, who stays */
    int64_t milliseconds; /* a compaction takes */
    const char *ask_at;   /* /compact right behind this effect, the first time */
    const char *message;  /* of the person, when it first waits */
};

struct driver {
    const struct script *script;
    struct agent *agent;
    struct buffer log;
    int64_t now_ms;
    size_t turn, prompt;
    struct agent_effect pending;
    bool has_asked, has_said;
    struct agent_effect compact; /* the last one */
    int32_t append_max;          /* of the last RECORD_TURN */
    int32_t tokens_max;          /* of the last GENERATE */
};

static const char *const words[] = {
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
    [AGENT_COMPACT] = "compact",
    [AGENT_CANCEL_COMPACT] = "cancel-compact",
    [AGENT_IDLE] = "idle",
    [AGENT_WAIT] = "wait",
    [AGENT_FINISH] = "finish",
};

static void send(struct driver *driver, struct agent_event event) {
    struct agent_effects effects;
    event.now_ms = driver->now_ms;
    agent_handle(driver->agent, &event, &effects);
    for (size_t i = 0; i < effects.count; i++) {
        const struct agent_effect *effect = &effects.items[i];
        const char *space = driver->log.length > 0 ? " " : "";
        assert_true(
            is_ok(buffer_append_format(&driver->log, NULL, "%s%s", space, words[effect->type]))
        );
        if (effect->type != AGENT_WAIT && effect->type != AGENT_CANCEL_COMPACT) {
            driver->pending = *effect;
        }
    }
}

/* What a driver would build: the beginning, a summary, the last turn, and what came since. */
static struct chat_conversation *shorter(const struct driver *driver, size_t *person) {
    const struct chat_conversation *old = agent_conversation(driver->agent);
    const struct chat_message *messages = chat_conversation_messages(old);
    size_t count = chat_conversation_count(old);
    int32_t tokens[256] = {0};
    assert_true(count <= COUNT_OF(tokens));
    const struct agent_history history = {
        .messages = messages,
        .tokens = tokens,
        .count = count,
        .context_messages = driver->compact.from_message,
        .person_message = driver->compact.person_message,
        .keep_turns = driver->compact.keep_turns,
    };
    struct agent_history_plan plan = {0};
    struct agent_history_made made;
    assert_true(agent_history_plan_next(&history, true, 1000, &plan));
    assert_true(is_ok(agent_history_build(&made, &history, &plan, view_of_text("S"), NULL)));
    *person = made.person_message;
    return made.conversation;
}

static void answer_compact(struct driver *driver) {
    const struct script *script = driver->script;
    static const struct error errors[] = {
        [FAILS_TO_SHRINK] = {.code = RESULT_LIMIT, .message = "3900 tokens stay 3000"},
        [IS_CANCELLED] = {.code = RESULT_CANCELLED, .message = "stopped"},
        [FAILS_IN_ENGINE] = {.code = RESULT_DEVICE, .message = "broken"},
        [FAILS_TO_RECORD] = {.code = RESULT_IO, .message = "disk full"},
    };
    driver->compact = driver->pending;
    if (script->interrupts || script->pauses) {
        send(driver, (struct agent_event){.type = script->pauses ? AGENT_PAUSE : AGENT_INTERRUPT});
    }
    driver->now_ms += script->milliseconds;
    if (driver->now_ms >= agent_deadline_ms(driver->agent)) {
        send(driver, (struct agent_event){.type = AGENT_TIME});
    }
    struct agent_event event = {
        .type = script->answer == COMPACTS          ? AGENT_COMPACTED
                : script->answer == FAILS_TO_RECORD ? AGENT_RECORD_FAILED
                                                    : AGENT_COMPACT_FAILED,
        .error = &errors[script->answer],
        .sampled = 7,
        .context_tokens = script->after,
    };
    if (event.type == AGENT_COMPACTED) {
        event.conversation = shorter(driver, &event.person_message);
    }
    send(driver, event);
}

static void answer_generation(struct driver *driver) {
    const struct script *script = driver->script;
    size_t last = script->turn_count - 1;
    const struct scripted_turn *turn = &script->turns[driver->turn < last ? driver->turn : last];
    char id[16], path[64];
    assert_true(snprintf(id, sizeof id, "call_%zu", driver->turn++) > 0);
    assert_true(snprintf(path, sizeof path, "{\"path\":\"%s%zu\"}", turn->call, driver->turn) > 0);
    const struct chat_call call = {
        .id = view_of_text(id), .name = view_of_text("read"), .arguments = view_of_text(path)};
    const struct chat_message message = {
        .role = CHAT_ASSISTANT,
        .content = view_of_text("So."),
        .calls = &call,
        .call_count = turn->call != NULL ? 1 : 0,
    };
    driver->tokens_max = driver->pending.tokens_max;
    int32_t sampled = turn->sampled < driver->tokens_max ? turn->sampled : driver->tokens_max;
    size_t prompt = driver->prompt - 1;
    int32_t append = prompt < COUNT_OF(script->append) ? script->append[prompt] : 0;
    send(
        driver,
        (struct agent_event
        ){.type = AGENT_GENERATED,
          .reason = sampled < turn->sampled ? FINISH_LENGTH : turn->reason,
          .sampled = sampled,
          .context_tokens =
              agent_context_tokens(driver->agent) + (append > 0 ? append : 10) + sampled,
          .message = &message}
    );
}

static void answer_turn(struct driver *driver) {
    const struct script *script = driver->script;
    size_t prompt = driver->prompt;
    int32_t append = prompt < COUNT_OF(script->append) ? script->append[prompt] : 0;
    append = append > 0 ? append : 10;
    size_t count = chat_conversation_count(agent_conversation(driver->agent));
    append = driver->pending.from_message == count ? 0 : append; /* all is in the context */
    driver->append_max = driver->pending.append_max;
    bool fits = append <= driver->pending.append_max;
    driver->prompt += fits ? 1 : 0;
    send(
        driver,
        (struct agent_event
        ){.type = fits ? AGENT_RECORDED : AGENT_DOES_NOT_FIT, .append_tokens = append}
    );
}

static void step(struct driver *driver) {
    enum agent_effect_type type = driver->pending.type;
    if (driver->script->ask_at != NULL && !driver->has_asked &&
        strcmp(driver->script->ask_at, words[type]) == 0) {
        driver->has_asked = true;
        send(
            driver, (struct agent_event){.type = AGENT_ASK_COMPACT, .text = view_of_text("names")}
        );
        type = driver->pending.type;
    }
    if (type == AGENT_COMPACT) {
        answer_compact(driver);
    } else if (type == AGENT_GENERATE) {
        answer_generation(driver);
    } else if (type == AGENT_RECORD_TURN) {
        answer_turn(driver);
    } else if (type == AGENT_CALL) {
        char text[32];
        assert_true(snprintf(text, sizeof text, "text %zu", driver->turn) > 0);
        send(driver, (struct agent_event){.type = AGENT_CALLED, .text = view_of_text(text)});
    } else if (type == AGENT_IDLE && driver->script->message != NULL && !driver->has_said) {
        driver->has_said = true;
        send(
            driver,
            (struct agent_event
            ){.type = AGENT_MESSAGE, .text = view_of_text(driver->script->message)}
        );
    } else if (type == AGENT_IDLE) {
        send(driver, (struct agent_event){.type = AGENT_QUIT});
    } else {
        send(driver, (struct agent_event){.type = AGENT_RECORDED});
    }
}

static struct agent_options options_of(bool is_interactive) {
    static const struct chat_tool tools[] = {
        {.name = {(const unsigned char *)"read", 4},
         .parameters = {(const unsigned char *)"{}", 2}},
    };
    return (struct agent_options){
        .system = view_of_text("You are a test."),
        .task = view_of_text("Do it."),
        .tools = tools,
        .tool_count = COUNT_OF(tools),
        .effort = 50,
        .is_interactive = is_interactive,
        .context_max = 4096, /* turns end at 3328, and begin with 256 tokens of room */
        .compact_at_percent = 80,
        .compact_keep_turns = 1,
    };
}

static void
run(struct driver *driver, const struct script *script, const struct agent_options *options) {
    *driver = (struct driver){.script = script};
    buffer_init(&driver->log, 1 << 16);
    assert_true(is_ok(agent_create(&driver->agent, options, NULL)));
    send(driver, (struct agent_event){.type = AGENT_START});
    for (int steps = 0; !agent_is_finished(driver->agent); steps++) {
        assert_true(steps < 1000);
        step(driver);
    }
}

static void done(struct driver *driver) {
    agent_destroy(driver->agent);
    buffer_deinit(&driver->log);
}

#define READS(tokens)                                                                              \
    { FINISH_EOS, tokens, "f" }
#define ANSWERS(tokens)                                                                            \
    { FINISH_EOS, tokens, NULL }
#define TURN "Turn generate Output "
#define READ TURN "Call call Result TurnEnd "

/* ---- tests ---------------------------------------------------------------------------------- */

static void check(
    const struct scripted_turn *turns,
    size_t count,
    struct script script,
    struct agent_options options,
    const char *log,
    enum agent_stop stop
) {
    struct driver driver;
    script.turns = turns;
    script.turn_count = count;
    script.after = script.after > 0 ? script.after : 1000;
    run(&driver, &script, &options);
    assert_string_equal(buffer_text(&driver.log), log);
    assert_int_equal(agent_stop(driver.agent), stop);
    done(&driver);
}

static void full_context_is_replaced_between_two_turns(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(3070), ANSWERS(10)};
    check(
        turns,
        2,
        (struct script){0},
        options_of(false),
        "Begin " READ "compact " TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
    static const struct scripted_turn less[] = {READS(3040), ANSWERS(10)};
    check(
        less,
        2,
        (struct script){0},
        options_of(false),
        "Begin " READ TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
    struct agent_options off = options_of(false);
    off.compact_at_percent = 0;
    check(
        turns,
        2,
        (struct script){0},
        off,
        "Begin " READ TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
}

static void context_begins_anew_and_nothing_is_appended(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(100), READS(3000), ANSWERS(10)};
    const struct script script = {.turns = turns, .turn_count = 3, .after = 900};
    const struct agent_options options = options_of(false);
    struct driver driver;
    run(&driver, &script, &options);
    const struct chat_conversation *conversation = agent_conversation(driver.agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    assert_int_equal(chat_conversation_count(conversation), 6);
    assert_true(view_equals_text(messages[1].content, "Do it."));
    assert_true(agent_history_is_summary(&messages[2]));
    assert_true(view_equals_text(messages[4].content, "text 2"));
    assert_int_equal(driver.compact.from_message, 5); /* the result was still to be appended */
    assert_int_equal(driver.compact.tokens_max, agent_history_summary_tokens(4096));
    assert_int_equal(agent_context_tokens(driver.agent), 900 + 10 + 10);
    assert_int_equal(agent_tokens_sampled(driver.agent), 100 + 3000 + 7 + 10);
    done(&driver);
}

static void prompt_that_does_not_fit_is_not_recorded(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(1000), ANSWERS(10)};
    struct script script = {.append = {10, 2063}};
    check(
        turns,
        2,
        script,
        options_of(false),
        "Begin " READ "Turn compact " TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
    script.append[1] = 2062; /* 1010 + 2062 + 256 = 3328 */
    check(
        turns,
        2,
        script,
        options_of(false),
        "Begin " READ TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
}

/* Nothing is made smaller behind an answer, and nothing is said for the person to go on. */
static void finished_turn_is_not_gone_on_with(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {ANSWERS(3300)};
    check(
        turns,
        1,
        (struct script){0},
        options_of(false),
        "Begin " TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
    check(
        turns,
        1,
        (struct script){0},
        options_of(true),
        "Begin " TURN "TurnEnd idle End finish",
        AGENT_STOP_QUIT
    );
    static const struct scripted_turn more[] = {ANSWERS(3300), ANSWERS(10)};
    check(
        more,
        2,
        (struct script){.message = "More."},
        options_of(true),
        "Begin " TURN "TurnEnd idle compact " TURN "TurnEnd idle End finish",
        AGENT_STOP_QUIT
    );
}

static void turn_ends_where_a_summary_needs_the_room(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{FINISH_EOS, 5000, NULL}, ANSWERS(10)};
    const struct script script = {.turns = turns, .turn_count = 2, .after = 900};
    const struct agent_options options = options_of(false);
    struct driver driver;
    run(&driver, &script, &options);
    assert_string_equal(
        buffer_text(&driver.log), "Begin " TURN "TurnEnd compact " TURN "TurnEnd End finish"
    );
    const struct chat_conversation *conversation = agent_conversation(driver.agent);
    size_t count = chat_conversation_count(conversation);
    const struct chat_message *told = &chat_conversation_messages(conversation)[count - 2];
    assert_int_equal(told->role, CHAT_USER);
    assert_true(view_equals_text(told->content, agent_cut_text(FINISH_LENGTH)));
    done(&driver);
}

/* The model fills the new context too, without ever ending a turn. */
static void not_twice_without_a_turn_that_ended(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {{FINISH_EOS, 5000, NULL}};
    check(
        turns,
        1,
        (struct script){0},
        options_of(false),
        "Begin " TURN "TurnEnd compact " TURN "TurnEnd End finish",
        AGENT_STOP_CONTEXT
    );
    /* Nor for a prompt that is too long for the new one. */
    static const struct scripted_turn reads[] = {READS(3070), {FINISH_LOOP, 10, NULL}};
    check(
        reads,
        2,
        (struct script){.append = {10, 10, 9000}, .after = 2400},
        options_of(false),
        "Begin " READ "compact " TURN "TurnEnd Turn TurnEnd End finish",
        AGENT_STOP_CONTEXT
    );
}

static void each_turn_that_ends_allows_another(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {
        READS(3070), READS(2100), READS(2100), ANSWERS(10)};
    check(
        turns,
        4,
        (struct script){0},
        options_of(false),
        "Begin " READ "compact " READ "compact " READ "compact " TURN "TurnEnd End finish",
        AGENT_STOP_ANSWER
    );
}

static void failure_ends_the_run_by_its_reason(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(3070), ANSWERS(10)};
    static const struct {
        struct script script;
        const char *log;
        enum agent_stop stop;
        const char *detail;
    } rows[] = {
        {{.answer = FAILS_TO_SHRINK},
         "compact End finish",
         AGENT_STOP_CONTEXT,
         "3900 tokens stay 3000"},
        {{.answer = FAILS_IN_ENGINE}, "compact End finish", AGENT_STOP_ENGINE, "broken"},
        {{.answer = FAILS_TO_RECORD}, "compact End finish", AGENT_STOP_RECORD, "disk full"},
        {{.answer = IS_CANCELLED, .interrupts = true},
         "compact cancel-compact End finish",
         AGENT_STOP_INTERRUPT,
         "by the user"},
        /* It was recorded before the interrupt could stop it. */
        {{.answer = COMPACTS, .interrupts = true},
         "compact cancel-compact End finish",
         AGENT_STOP_INTERRUPT,
         "by the user"},
        {{.answer = IS_CANCELLED, .milliseconds = 6000},
         "compact cancel-compact End finish",
         AGENT_STOP_TIME,
         "5.0 seconds"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct script script = rows[i].script;
        struct agent_options options = options_of(false);
        options.time_ms_max = 5000;
        script.turns = turns;
        script.turn_count = 2;
        script.after = 900;
        struct driver driver;
        run(&driver, &script, &options);
        char log[256];
        assert_true(snprintf(log, sizeof log, "Begin wait " READ "%s", rows[i].log) > 0);
        assert_string_equal(buffer_text(&driver.log), log);
        assert_int_equal(agent_stop(driver.agent), rows[i].stop);
        assert_string_equal(agent_stop_detail(driver.agent), rows[i].detail);
        done(&driver);
    }
}

static void interrupted_compaction_waits_with_the_old_context(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {ANSWERS(3300), ANSWERS(10)};
    const struct script script = {
        .turns = turns, .turn_count = 2, .answer = IS_CANCELLED, .ask_at = "idle"};
    const struct agent_options options = options_of(true);
    struct driver driver;
    run(&driver, &script, &options);
    assert_string_equal(
        buffer_text(&driver.log), "Begin " TURN "TurnEnd idle compact idle End finish"
    );
    assert_int_equal(chat_conversation_count(agent_conversation(driver.agent)), 3);
    assert_int_equal(agent_context_tokens(driver.agent), 3310);
    done(&driver);
}

static void stopped_compaction_is_tried_again_when_the_work_goes_on(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(1000), ANSWERS(10)};
    const struct agent_options options = options_of(true);
    const struct script script = {
        .turns = turns,
        .turn_count = 2,
        .append = {10, 2500},
        .answer = IS_CANCELLED,
        .pauses = true,
        .message = "More.",
    };
    struct driver driver;
    run(&driver, &script, &options);
    assert_string_equal(
        buffer_text(&driver.log),
        "Begin " READ "Turn compact cancel-compact idle Turn compact cancel-compact idle End finish"
    );
    done(&driver);
}

static void person_asks_while_it_waits_and_while_it_works(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {READS(10), ANSWERS(10)};
    check(
        turns,
        2,
        (struct script){.ask_at = "idle", .message = "More."},
        options_of(true),
        "Begin " READ TURN "TurnEnd idle compact idle " TURN "TurnEnd idle End finish",
        AGENT_STOP_QUIT
    );
    check(
        turns,
        2,
        (struct script){.ask_at = "call"},
        options_of(true),
        "Begin " READ "compact " TURN "TurnEnd idle End finish",
        AGENT_STOP_QUIT
    );
    /* What cannot be made smaller goes on as it is. */
    check(
        turns,
        2,
        (struct script){.ask_at = "call", .answer = FAILS_TO_SHRINK},
        options_of(true),
        "Begin " READ "compact " TURN "TurnEnd idle End finish",
        AGENT_STOP_QUIT
    );
    struct agent_options empty = options_of(true);
    empty.task = view_of_text("");
    check(turns, 2, (struct script){.ask_at = "idle"}, empty, "idle finish", AGENT_STOP_QUIT);
}

/* The person's last message is the one that stays, and is still told from others behind it. */
static void message_of_the_person_moves_along(void **state) {
    (void)state;
    static const struct scripted_turn turns[] = {ANSWERS(3300), READS(10), ANSWERS(10)};
    const struct script script = {
        .turns = turns, .turn_count = 3, .message = "Another.", .after = 900};
    const struct agent_options options = options_of(true);
    struct driver driver;
    run(&driver, &script, &options);
    assert_int_equal(driver.compact.person_message, 3);
    const struct chat_message *messages =
        chat_conversation_messages(agent_conversation(driver.agent));
    assert_true(view_equals_text(messages[4].content, "Another."));
    done(&driver);
}

/* ---- at random ------------------------------------------------------------------------------ */

static uint64_t random_next(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static int32_t below(uint64_t *state, int32_t bound) {
    return (int32_t)(random_next(state) % (uint64_t)bound);
}

/* Two compactions that nobody asked for or stopped have a turn between them that ended. */
static void check_log(const char *log, bool may_repeat) {
    size_t outputs = 0;
    size_t compactions = 0;
    for (const char *at = log; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ' ? 1 : 0;
        outputs += strncmp(at, "Output", 6) == 0 ? 1 : 0;
        if (strncmp(at, "compact", 7) == 0) {
            compactions++;
            assert_true(outputs >= compactions || may_repeat);
        }
    }
}

static void random_scripts_end_and_never_go_round(void **state) {
    (void)state;
    static const char *const asks[] = {
        NULL, NULL, NULL, "idle", "call", "generate", "Turn", "compact"};
    uint64_t random = 77;
    size_t compacted = 0;
    for (int i = 0; i < 3000; i++) {
        struct scripted_turn turns[6];
        struct script script = {.turns = turns, .turn_count = COUNT_OF(turns)};
        for (size_t k = 0; k < COUNT_OF(turns); k++) {
            turns[k] = (struct scripted_turn){
                .reason = below(&random, 8) == 0 ? FINISH_LOOP : FINISH_EOS,
                .sampled = 1 + below(&random, below(&random, 2) == 0 ? 200 : 5000),
                .call = k + 1 < COUNT_OF(turns) && below(&random, 4) != 0 ? "f" : NULL,
            };
        }
        for (size_t k = 0; k < COUNT_OF(script.append); k++) {
            script.append[k] = 1 + below(&random, below(&random, 3) == 0 ? 6000 : 300);
        }
        script.append[0] = 1 + below(&random, 1000);
        script.after = 400 + below(&random, 1500);
        script.answer = below(&random, 4) == 0 ? (enum answer)below(&random, 5) : COMPACTS;
        script.interrupts = below(&random, 10) == 0;
        script.ask_at = asks[below(&random, (int32_t)COUNT_OF(asks))];
        script.message = below(&random, 2) == 0 ? "More." : NULL;
        struct agent_options options = options_of(below(&random, 2) == 0);
        options.tokens_max = below(&random, 4) == 0 ? 1 + below(&random, 9000) : 0;
        options.compact_keep_turns = 1 + below(&random, 3);
        struct driver driver;
        run(&driver, &script, &options);
        check_log(buffer_text(&driver.log), script.ask_at != NULL || script.answer == IS_CANCELLED);
        compacted += strstr(buffer_text(&driver.log), "compact Turn") != NULL ? 1 : 0;
        done(&driver);
    }
    assert_true(compacted > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_context_is_replaced_between_two_turns),
        cmocka_unit_test(context_begins_anew_and_nothing_is_appended),
        cmocka_unit_test(prompt_that_does_not_fit_is_not_recorded),
        cmocka_unit_test(finished_turn_is_not_gone_on_with),
        cmocka_unit_test(turn_ends_where_a_summary_needs_the_room),
        cmocka_unit_test(not_twice_without_a_turn_that_ended),
        cmocka_unit_test(each_turn_that_ends_allows_another),
        cmocka_unit_test(failure_ends_the_run_by_its_reason),
        cmocka_unit_test(interrupted_compaction_waits_with_the_old_context),
        cmocka_unit_test(stopped_compaction_is_tried_again_when_the_work_goes_on),
        cmocka_unit_test(person_asks_while_it_waits_and_while_it_works),
        cmocka_unit_test(message_of_the_person_moves_along),
        cmocka_unit_test(random_scripts_end_and_never_go_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
