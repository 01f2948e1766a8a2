/* What the agent makes of turns that a guard, a stop string or the deadline ended, and when the model
 * is told: tables of how generations end on the left, the stop and what was said on the right. */
#include "base/bytes.h"
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define TURNS_MAX 12

/* How one generation ends: a letter of the script. */
static enum finish_reason reason_of(char letter) {
    return letter == 'L' || letter == 'l'   ? FINISH_LOOP
           : letter == 'T'                  ? FINISH_THINKING
           : letter == 'O' || letter == 'o' ? FINISH_OPEN_CALL
           : letter == 'S' || letter == 's' ? FINISH_STOP
           : letter == 'D'                  ? FINISH_DEADLINE
                                            : FINISH_EOS;
}

/* Letters: L, T, O cut by loop, thinking, open call; S a stop string; D the deadline; c a call that
 * brings something new; r the same call with the same result; l, o, s as above, but behind a whole
 * call; a an answer. The last one is repeated. */
struct world {
    struct agent *agent;
    const char *script;
    size_t turn;
    int calls, generations;
    int64_t now_ms;
    char notices[TURNS_MAX + 1]; /* what each prompt's new message of the user says, or '-' */
};

static bool has_call(char letter) {
    return letter == 'c' || letter == 'r' || letter == 'l' || letter == 'o' || letter == 's';
}

static char notice_of(const struct chat_message *message) {
    static const struct {
        const char *part;
        char letter;
    } rows[] = {
        {"repeated the same text", 'L'},
        {"thinking did not end", 'T'},
        {"block of calls did not end", 'O'},
        {"3 times in the same way", 'r'},
        {"could not be read", 'm'},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (view_find(message->content, view_of_text(rows[i].part), 0) != SIZE_MAX) {
            return rows[i].letter;
        }
    }
    return '?';
}

/* The conversation ends in what the next prompt adds: results, then perhaps a message of the user. */
static void note_prompt(struct world *world) {
    const struct chat_conversation *conversation = agent_conversation(world->agent);
    size_t count = chat_conversation_count(conversation);
    const struct chat_message *last = &chat_conversation_messages(conversation)[count - 1];
    assert_true(world->generations < TURNS_MAX);
    bool is_task = count <= 2;
    world->notices[world->generations++] =
        !is_task && last->role == CHAT_USER ? notice_of(last) : '-';
}

static struct agent_event generated(struct world *world, struct chat_message *message) {
    static struct chat_call call;
    char letter = world->script[world->turn];
    world->turn += world->script[world->turn + 1] != '\0' ? 1 : 0;
    *message = (struct chat_message){.role = CHAT_ASSISTANT, .content = view_of_text("text")};
    call = (struct chat_call){
        .id = view_of_text("call"),
        .name = view_of_text("shell"),
        .arguments = view_of_text("{}"),
    };
    message->calls = &call;
    message->call_count = has_call(letter) ? 1 : 0;
    world->calls += letter == 'r' ? 0 : 1;
    return (struct agent_event){
        .type = AGENT_GENERATED,
        .reason = reason_of(letter),
        .sampled = 10,
        .context_tokens = agent_context_tokens(world->agent) + 15,
        .message = message,
        .has_problems = letter == 'T' || letter == 'O',
        .stop = view_of_text("HALT"),
    };
}

static void drive(struct world *world) {
    struct agent_effects effects;
    struct chat_message message;
    struct agent_event event = {.type = AGENT_START};
    char text[16];
    for (int steps = 0; !agent_is_finished(world->agent); steps++) {
        assert_true(steps < 1000);
        event.now_ms = ++world->now_ms;
        agent_handle(world->agent, &event, &effects);
        event = (struct agent_event){.type = AGENT_RECORDED, .append_tokens = 5};
        for (size_t i = 0; i < effects.count; i++) {
            if (effects.items[i].type == AGENT_RECORD_TURN) {
                note_prompt(world);
            } else if (effects.items[i].type == AGENT_GENERATE) {
                event = generated(world, &message);
            } else if (effects.items[i].type == AGENT_CALL) {
                assert_true(snprintf(text, sizeof text, "%d", world->calls) > 0);
                event = (struct agent_event){.type = AGENT_CALLED, .text = view_of_text(text)};
            }
        }
    }
}

static const struct chat_tool tools[] = {
    {.name = {(const unsigned char *)"shell", 5}, .parameters = {(const unsigned char *)"{}", 2}},
};

static struct agent_options options_default(void) {
    return (struct agent_options){
        .system = view_of_text("system"),
        .task = view_of_text("task"),
        .tools = tools,
        .tool_count = COUNT_OF(tools),
        .effort = 50,
        .context_max = 100000,
    };
}

static void
world_open(struct world *world, const struct agent_options *options, const char *script) {
    struct error error = {0};
    *world = (struct world){.script = script};
    assert_true(is_ok(agent_create(&world->agent, options, &error)));
}

static void ends_of_turns_have_their_outcomes(void **state) {
    (void)state;
    static const struct {
        const char *script;
        enum agent_stop stop;
        const char *notices; /* one letter for each turn */
    } rows[] = {
        /* A loop is told once, and then ends the run by its name. */
        {"L", AGENT_STOP_LOOP, "-L"},
        {"La", AGENT_STOP_ANSWER, "-L"},
        {"cLcLa", AGENT_STOP_ANSWER, "--L-L"}, /* a turn in between that is fine forgives */
        {"T", AGENT_STOP_THINKING, "-TT"},
        {"TTa", AGENT_STOP_ANSWER, "-TT"},
        {"O", AGENT_STOP_OPEN_CALL, "-OO"},
        {"TOT", AGENT_STOP_THINKING, "-TO"}, /* cuts of any kind count together */
        {"TLL", AGENT_STOP_LOOP, "-TL"},
        {"TcTcTca", AGENT_STOP_ANSWER, "-T-T-T-"},
        /* Whole calls before the cut are run first. */
        {"la", AGENT_STOP_ANSWER, "-L"},
        {"oa", AGENT_STOP_ANSWER, "-O"},
        {"l", AGENT_STOP_LOOP, "-L"},
        /* A stop string ends the run, behind a call only the turn. */
        {"S", AGENT_STOP_STRING, "-"},
        {"sa", AGENT_STOP_ANSWER, "--"},
        {"TS", AGENT_STOP_STRING, "-T"},
        /* The model is told of the third call that gives the same again. */
        {"r", AGENT_STOP_REPEAT, "---r"},
        {"rrrca", AGENT_STOP_ANSWER, "---r-"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct world world;
        struct agent_options options = options_default();
        world_open(&world, &options, rows[i].script);
        drive(&world);
        if (strcmp(world.notices, rows[i].notices) != 0 ||
            agent_stop(world.agent) != rows[i].stop) {
            fail_msg(
                "%s: %s, said %s",
                rows[i].script,
                agent_stop_name(agent_stop(world.agent)),
                world.notices
            );
        }
        agent_destroy(world.agent);
    }
}

static void stop_names_the_string(void **state) {
    (void)state;
    struct world world;
    struct agent_options options = options_default();
    world_open(&world, &options, "S");
    drive(&world);
    assert_string_equal(agent_stop_detail(world.agent), "HALT");
    assert_int_equal(agent_stop_exit_status(agent_stop(world.agent)), 0);
    agent_destroy(world.agent);
}

static void engines_deadline_is_the_time_budget(void **state) {
    (void)state;
    struct world world;
    struct agent_options options = options_default();
    options.time_ms_max = 5000;
    world_open(&world, &options, "cD");
    drive(&world);
    assert_int_equal(agent_stop(world.agent), AGENT_STOP_TIME);
    assert_string_equal(agent_stop_detail(world.agent), "5.0 seconds");
    agent_destroy(world.agent);
}

static void generation_has_the_runs_deadline_and_none_starts_behind_it(void **state) {
    (void)state;
    struct error error = {0};
    struct agent_options options = options_default();
    options.time_ms_max = 100;
    for (int late = 0; late < 2; late++) {
        struct agent *agent = NULL;
        struct agent_effects effects;
        assert_true(is_ok(agent_create(&agent, &options, &error)));
        struct agent_event event = {.type = AGENT_START, .now_ms = 7};
        agent_handle(agent, &event, &effects);
        event = (struct agent_event){.type = AGENT_RECORDED, .now_ms = 8};
        agent_handle(agent, &event, &effects);
        event.now_ms = late ? 107 : 106;
        agent_handle(agent, &event, &effects);
        assert_int_equal(effects.count, 1);
        if (late) {
            assert_int_equal(effects.items[0].type, AGENT_RECORD_TURN_END);
            assert_int_equal(agent_stop(agent), AGENT_STOP_TIME);
        } else {
            assert_int_equal(effects.items[0].type, AGENT_GENERATE);
            assert_int_equal(effects.items[0].deadline_ms, 107);
        }
        agent_destroy(agent);
    }
}

static void resumed_agent_says_what_cut_the_last_turn(void **state) {
    (void)state;
    const struct chat_message messages[] = {
        {.role = CHAT_SYSTEM, .content = view_of_text("system")},
        {.role = CHAT_USER, .content = view_of_text("task")},
        {.role = CHAT_ASSISTANT, .content = view_of_text("on and on")},
    };
    const struct agent_resume resume = {
        .messages = messages,
        .message_count = COUNT_OF(messages),
        .context_messages = COUNT_OF(messages),
        .end_is_missing = true,
        .context_tokens = 50,
        .turns = 1,
        .reason = FINISH_LOOP,
    };
    struct agent_options options = options_default();
    options.resume = &resume;
    struct world world;
    world_open(&world, &options, "a");
    drive(&world);
    assert_string_equal(world.notices, "L");
    assert_int_equal(agent_stop(world.agent), AGENT_STOP_ANSWER);
    agent_destroy(world.agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_turns_have_their_outcomes),
        cmocka_unit_test(stop_names_the_string),
        cmocka_unit_test(engines_deadline_is_the_time_budget),
        cmocka_unit_test(generation_has_the_runs_deadline_and_none_starts_behind_it),
        cmocka_unit_test(resumed_agent_says_what_cut_the_last_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
