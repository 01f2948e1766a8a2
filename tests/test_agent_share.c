/* What an agent makes of a share that grows or shrinks under it, and of remarks: pure, event by event. */
#include "base/bytes.h"
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct bench {
    struct agent *agent;
    struct agent_effects effects;
    int64_t now_ms;
    int32_t context;
    size_t given; /* remarks in turns that were recorded */
};

static const struct chat_tool tools[] = {{.name = {(const unsigned char *)"shell", 5}}};

static struct agent_options options_default(void) {
    return (struct agent_options){
        .system = view_of_text("You are a test."),
        .task = view_of_text("Do it."),
        .tools = tools,
        .tool_count = 1,
        .effort = 50,
        .tokens_max = 100,
        .time_ms_max = 10000,
        .calls_max = 5,
        .context_max = 100000,
    };
}

static bool has_effect(const struct bench *bench, enum agent_effect_type type) {
    bool has = false;
    for (size_t i = 0; i < bench->effects.count; i++) {
        has = has || bench->effects.items[i].type == type;
    }
    return has;
}

static struct agent_effect effect_of(const struct bench *bench, enum agent_effect_type type) {
    assert_true(has_effect(bench, type));
    size_t at = 0;
    while (bench->effects.items[at].type != type) {
        at++;
    }
    return bench->effects.items[at];
}

static void give(struct bench *bench, struct agent_event event) {
    event.now_ms = bench->now_ms;
    agent_handle(bench->agent, &event, &bench->effects);
}

static bool is_record(enum agent_effect_type type) {
    return type == AGENT_RECORD_BEGIN || type == AGENT_RECORD_TURN || type == AGENT_RECORD_OUTPUT ||
           type == AGENT_RECORD_CALL || type == AGENT_RECORD_RESULT ||
           type == AGENT_RECORD_TURN_END || type == AGENT_RECORD_END;
}

/* Answers RECORD effects until something else is wanted, which it gives. */
static const struct agent_effect *settle(struct bench *bench) {
    for (;;) {
        const struct agent_effect *first = &bench->effects.items[0];
        assert_true(bench->effects.count > 0);
        if (!is_record(first->type)) {
            return first;
        }
        bench->given += first->type == AGENT_RECORD_TURN ? first->remark_count : 0;
        give(bench, (struct agent_event){.type = AGENT_RECORDED, .append_tokens = 5});
    }
}

static const struct agent_effect *start(struct bench *bench, const struct agent_options *options) {
    *bench = (struct bench){.now_ms = 1000, .context = 10};
    assert_true(is_ok(agent_create(&bench->agent, options, NULL)));
    give(bench, (struct agent_event){.type = AGENT_START});
    return settle(bench);
}

static const struct agent_effect *
generated(struct bench *bench, enum finish_reason reason, int32_t sampled, size_t call_count) {
    static const struct chat_call call = {
        {(const unsigned char *)"c0", 2},
        {(const unsigned char *)"shell", 5},
        {(const unsigned char *)"{}", 2}};
    const struct chat_message message = {
        .role = CHAT_ASSISTANT,
        .content = view_of_text("text"),
        .calls = &call,
        .call_count = call_count,
    };
    bench->context += sampled + 5;
    give(
        bench,
        (struct agent_event
        ){.type = AGENT_GENERATED,
          .reason = reason,
          .sampled = sampled,
          .context_tokens = bench->context,
          .message = &message}
    );
    return settle(bench);
}

static const struct agent_effect *called(struct bench *bench, const char *words) {
    give(bench, (struct agent_event){.type = AGENT_CALLED, .text = view_of_text(words)});
    return settle(bench);
}

static void share(struct bench *bench, int64_t tokens, int64_t calls, int64_t deadline_ms) {
    give(bench, (struct agent_event){.type = AGENT_SHARE, .share = {tokens, calls, deadline_ms}});
}

static struct view last_text(const struct bench *bench) {
    const struct chat_conversation *conversation = agent_conversation(bench->agent);
    size_t count = chat_conversation_count(conversation);
    return chat_conversation_messages(conversation)[count - 1].content;
}

/* ---- tokens --------------------------------------------------------------------------------- */

static void turn_that_a_share_ended_goes_on_when_it_has_grown(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    assert_int_equal(start(&bench, &options)->tokens_max, 100);
    share(&bench, 150, 5, AGENT_NO_LIMIT);
    assert_int_equal(bench.effects.count, 0);
    const struct agent_effect *next = generated(&bench, FINISH_LENGTH, 100, 0);
    assert_int_equal(next->type, AGENT_GENERATE);
    assert_int_equal(next->tokens_max, 50);
    assert_true(view_equals_text(last_text(&bench), AGENT_LIMIT_RAISED));
    assert_int_equal(generated(&bench, FINISH_LENGTH, 50, 0)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TOKENS);
    agent_destroy(bench.agent);
}

static void turn_beyond_a_smaller_share_is_the_token_budget(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    assert_false(agent_turn_is_spent(bench.agent, 100)); /* the engine ends it there itself */
    share(&bench, 30, 5, AGENT_NO_LIMIT);
    assert_false(agent_turn_is_spent(bench.agent, 29));
    assert_true(agent_turn_is_spent(bench.agent, 30));
    assert_int_equal(generated(&bench, FINISH_CANCELLED, 31, 0)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TOKENS);
    assert_string_equal(agent_stop_detail(bench.agent), "30 tokens");
    agent_destroy(bench.agent);
}

static void share_without_limits_has_none(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    share(&bench, AGENT_NO_LIMIT, AGENT_NO_LIMIT, AGENT_NO_LIMIT);
    const struct agent_effect *next = generated(&bench, FINISH_EOS, 90, 1);
    assert_int_equal(next->type, AGENT_CALL);
    assert_int_equal(next->time_ms_max, 0);
    bench.now_ms += 1000000;
    give(&bench, (struct agent_event){.type = AGENT_TIME});
    assert_int_equal(bench.effects.count, 0);
    next = called(&bench, "result");
    assert_int_equal(next->type, AGENT_GENERATE);
    assert_true(next->tokens_max > 90000);
    assert_int_equal(next->deadline_ms, 0);
    assert_true(view_equals_text(last_text(&bench), "result")); /* nothing is left to tell of */
    agent_destroy(bench.agent);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void share_of_no_calls_refuses_and_a_larger_one_allows(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    share(&bench, 100, 0, AGENT_NO_LIMIT);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_GENERATE);
    assert_true(view_find(last_text(&bench), view_of_text("budget of tool calls"), 0) != SIZE_MAX);
    share(&bench, 100, 2, AGENT_NO_LIMIT);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
    assert_int_equal(called(&bench, "one")->type, AGENT_GENERATE);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
    assert_int_equal(called(&bench, "two")->type, AGENT_GENERATE);
    /* Spent: one turn to answer in, then the end. */
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_GENERATE);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_CALLS);
    agent_destroy(bench.agent);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void deadline_that_is_later_lets_the_turn_go_on(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    assert_int_equal(start(&bench, &options)->deadline_ms, 11000);
    share(&bench, 100, 5, 31000);
    assert_int_equal(effect_of(&bench, AGENT_WAIT).wake_ms, 31000);
    bench.now_ms = 11000;
    give(&bench, (struct agent_event){.type = AGENT_TIME});
    assert_false(has_effect(&bench, AGENT_CANCEL_GENERATE));
    /* The engine still has the old one. */
    const struct agent_effect *next = generated(&bench, FINISH_DEADLINE, 10, 0);
    assert_int_equal(next->type, AGENT_GENERATE);
    assert_int_equal(next->deadline_ms, 31000);
    assert_true(view_equals_text(last_text(&bench), AGENT_LIMIT_RAISED));
    bench.now_ms = 31000;
    assert_int_equal(generated(&bench, FINISH_DEADLINE, 10, 0)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TIME);
    assert_string_equal(agent_stop_detail(bench.agent), "30.0 seconds");
    agent_destroy(bench.agent);
}

/* It waited for its turn in the engine when its old deadline came. */
static void turn_that_did_not_begin_is_asked_for_again(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    share(&bench, 100, 5, 31000);
    size_t before = chat_conversation_count(agent_conversation(bench.agent));
    bench.now_ms = 11000;
    give(&bench, (struct agent_event){.type = AGENT_GENERATED, .reason = FINISH_DEADLINE});
    assert_true(has_effect(&bench, AGENT_RECORD_TURN_END));
    give(&bench, (struct agent_event){.type = AGENT_RECORDED});
    assert_int_equal(effect_of(&bench, AGENT_RECORD_TURN).from_message, 0); /* all of it is new */
    assert_int_equal(settle(&bench)->type, AGENT_GENERATE);
    assert_int_equal(chat_conversation_count(agent_conversation(bench.agent)), before);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 0)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_ANSWER);
    agent_destroy(bench.agent);
}

static void deadline_that_is_earlier_ends_what_runs(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
    share(&bench, 100, 5, 2000);
    assert_int_equal(effect_of(&bench, AGENT_WAIT).wake_ms, 2000);
    bench.now_ms = 3000;
    share(&bench, 100, 5, 2500);
    assert_true(has_effect(&bench, AGENT_CANCEL_CALL));
    assert_int_equal(called(&bench, "cancelled")->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TIME);
    share(&bench, 100, 5, 9000); /* too late */
    assert_int_equal(bench.effects.count, 0);
    agent_destroy(bench.agent);
}

/* ---- remarks -------------------------------------------------------------------------------- */

static void remark(struct bench *bench, const char *words) {
    give(bench, (struct agent_event){.type = AGENT_REMARK, .text = view_of_text(words)});
    assert_int_equal(bench->effects.count, 0);
}

static void remarks_stand_before_the_next_turn_and_are_counted(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    remark(&bench, "one");
    remark(&bench, "two");
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
    remark(&bench, "three");
    assert_int_equal(bench.given, 0);
    assert_int_equal(called(&bench, "result")->type, AGENT_GENERATE);
    assert_int_equal(bench.given, 3);
    const struct chat_conversation *conversation = agent_conversation(bench.agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    size_t count = chat_conversation_count(conversation);
    static const char *const texts[] = {"one", "two", "three"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_int_equal(messages[count - 3 + i].role, CHAT_USER);
        assert_true(view_equals_text(messages[count - 3 + i].content, texts[i]));
    }
    remark(&bench, "too late"); /* the answer is on its way */
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 0)->type, AGENT_FINISH);
    assert_int_equal(bench.given, 3);
    assert_false(agent_takes_remark(bench.agent, 1));
    agent_destroy(bench.agent);
}

static void remarks_are_bounded_and_give_no_more_turns(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.turns_max = 2;
    (void)start(&bench, &options);
    for (int i = 0; i < AGENT_REMARKS_MAX; i++) {
        assert_true(agent_takes_remark(bench.agent, 4));
        remark(&bench, "word");
    }
    assert_false(agent_takes_remark(bench.agent, 4));
    remark(&bench, "more"); /* nothing happens */
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
    assert_int_equal(called(&bench, "result")->type, AGENT_GENERATE);
    assert_int_equal(bench.given, AGENT_REMARKS_MAX);
    assert_true(agent_takes_remark(bench.agent, AGENT_REMARKS_BYTES_MAX));
    assert_false(agent_takes_remark(bench.agent, AGENT_REMARKS_BYTES_MAX + 1));
    remark(&bench, "word");
    assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TURNS);
    agent_destroy(bench.agent);
}

static void remarks_in_between_are_no_circle(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool is_told = i == 1;
        struct bench bench;
        struct agent_options options = options_default();
        options.calls_max = 0;
        options.tokens_max = 0;
        const struct agent_effect *next = start(&bench, &options);
        for (int turn = 0; turn < 2 * AGENT_REPEATS_MAX && next->type == AGENT_GENERATE; turn++) {
            assert_int_equal(generated(&bench, FINISH_EOS, 10, 1)->type, AGENT_CALL);
            if (is_told) {
                remark(&bench, "a message");
            }
            next = called(&bench, "A message has come.");
        }
        assert_int_equal(next->type, is_told ? AGENT_GENERATE : AGENT_FINISH);
        assert_int_equal(agent_stop(bench.agent), is_told ? AGENT_GOES_ON : AGENT_STOP_REPEAT);
        agent_destroy(bench.agent);
    }
}

static void effort_of_any_agent_changes_with_the_next_turn(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    (void)start(&bench, &options);
    give(&bench, (struct agent_event){.type = AGENT_EFFORT, .effort = 20});
    assert_int_equal(agent_chat_options(bench.agent).effort, 50);
    (void)generated(&bench, FINISH_EOS, 10, 1);
    (void)called(&bench, "result");
    assert_int_equal(agent_chat_options(bench.agent).effort, 20);
    assert_true(view_equals_text(last_text(&bench), "Reasoning effort from now on: 20 of 100."));
    agent_destroy(bench.agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turn_that_a_share_ended_goes_on_when_it_has_grown),
        cmocka_unit_test(turn_beyond_a_smaller_share_is_the_token_budget),
        cmocka_unit_test(share_without_limits_has_none),
        cmocka_unit_test(share_of_no_calls_refuses_and_a_larger_one_allows),
        cmocka_unit_test(deadline_that_is_later_lets_the_turn_go_on),
        cmocka_unit_test(turn_that_did_not_begin_is_asked_for_again),
        cmocka_unit_test(deadline_that_is_earlier_ends_what_runs),
        cmocka_unit_test(remarks_stand_before_the_next_turn_and_are_counted),
        cmocka_unit_test(remarks_are_bounded_and_give_no_more_turns),
        cmocka_unit_test(remarks_in_between_are_no_circle),
        cmocka_unit_test(effort_of_any_agent_changes_with_the_next_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
