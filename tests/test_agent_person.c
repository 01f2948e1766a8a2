/* The interactive agent as a state machine: waiting, messages, interrupts, budgets, questions at an
 * answer. Each step names the event and the effects that it must have. */
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct bench {
    struct agent *agent;
    struct agent_effects effects;
    int64_t now_ms;
    int32_t context;
};

static const struct chat_tool tools[] = {{.name = {(const unsigned char *)"shell", 5}}};

static struct agent_options options_default(void) {
    return (struct agent_options){
        .system = view_of_text("You are a test."),
        .tools = tools,
        .tool_count = 1,
        .effort = 50,
        .context_max = 100000,
        .is_interactive = true,
    };
}

static void start(struct bench *bench, const struct agent_options *options) {
    *bench = (struct bench){.now_ms = 1000, .context = 10};
    assert_true(is_ok(agent_create(&bench->agent, options, NULL)));
    agent_handle(
        bench->agent, &(struct agent_event){.type = AGENT_START, .now_ms = 1000}, &bench->effects
    );
}

/* The first effect; AGENT_WAIT is passed over. */
static enum agent_effect_type effect(const struct bench *bench) {
    for (size_t i = 0; i < bench->effects.count; i++) {
        if (bench->effects.items[i].type != AGENT_WAIT) {
            return bench->effects.items[i].type;
        }
    }
    return AGENT_WAIT; /* none that acts */
}

static void give(struct bench *bench, struct agent_event event) {
    event.now_ms = bench->now_ms;
    agent_handle(bench->agent, &event, &bench->effects);
}

static void text(struct bench *bench, enum agent_event_type type, const char *words) {
    give(bench, (struct agent_event){.type = type, .text = view_of_text(words)});
}

/* Answers RECORD effects until something else is wanted. */
static enum agent_effect_type settle(struct bench *bench) {
    for (;;) {
        enum agent_effect_type type = effect(bench);
        bool is_record = type == AGENT_RECORD_BEGIN || type == AGENT_RECORD_TURN ||
                         type == AGENT_RECORD_OUTPUT || type == AGENT_RECORD_CALL ||
                         type == AGENT_RECORD_RESULT || type == AGENT_RECORD_TURN_END ||
                         type == AGENT_RECORD_END;
        if (!is_record) {
            return type;
        }
        give(bench, (struct agent_event){.type = AGENT_RECORDED, .append_tokens = 5});
    }
}

static enum agent_effect_type
generated(struct bench *bench, enum finish_reason reason, const char *words, size_t call_count) {
    static const struct chat_call calls[] = {
        {{(const unsigned char *)"c0", 2},
         {(const unsigned char *)"shell", 5},
         {(const unsigned char *)"{}", 2}},
        {{(const unsigned char *)"c1", 2},
         {(const unsigned char *)"shell", 5},
         {(const unsigned char *)"{}", 2}},
    };
    const struct chat_message message = {
        .role = CHAT_ASSISTANT,
        .content = view_of_text(words),
        .calls = calls,
        .call_count = call_count,
    };
    bench->context += 20;
    give(
        bench,
        (struct agent_event
        ){.type = AGENT_GENERATED,
          .reason = reason,
          .sampled = 10,
          .context_tokens = bench->context,
          .message = &message}
    );
    return settle(bench);
}

static enum agent_effect_type called(struct bench *bench, const char *words) {
    give(
        bench,
        (struct agent_event){.type = AGENT_CALLED, .status = TOOL_OK, .text = view_of_text(words)}
    );
    return settle(bench);
}

static const struct chat_message *last(const struct bench *bench, size_t back) {
    const struct chat_conversation *conversation = agent_conversation(bench->agent);
    size_t count = chat_conversation_count(conversation);
    assert_true(back < count);
    return &chat_conversation_messages(conversation)[count - 1 - back];
}

static void assert_text(struct view view, const char *words) {
    assert_true(view_equals_text(view, words));
}

/* ---- messages ------------------------------------------------------------------------------- */

static void waits_until_a_message_comes(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    assert_int_equal(effect(&bench), AGENT_IDLE);
    assert_false(agent_has_begun(bench.agent));
    assert_int_equal(agent_idle_stop(bench.agent), AGENT_GOES_ON);
    text(&bench, AGENT_MESSAGE, "one");
    assert_int_equal(effect(&bench), AGENT_RECORD_BEGIN);
    assert_text(agent_queued_text(bench.agent, 0), "one");
    assert_int_equal(settle(&bench), AGENT_GENERATE);
    assert_int_equal(agent_queued(bench.agent), 0);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_IDLE);
    assert_int_equal(agent_idle_stop(bench.agent), AGENT_STOP_ANSWER);
    text(&bench, AGENT_QUIT, "");
    assert_int_equal(settle(&bench), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_QUIT);
    assert_int_equal(agent_idle_stop(bench.agent), AGENT_STOP_ANSWER);
    agent_destroy(bench.agent);
}

static void leaving_before_the_first_message_records_nothing(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_INPUT_END, "");
    assert_int_equal(effect(&bench), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_QUIT);
    agent_destroy(bench.agent);
}

static void messages_come_before_the_next_turn(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    assert_int_equal(settle(&bench), AGENT_GENERATE);
    text(&bench, AGENT_MESSAGE, "two");
    assert_int_equal(bench.effects.count, 0);
    assert_int_equal(generated(&bench, FINISH_EOS, "", 1), AGENT_CALL);
    text(&bench, AGENT_MESSAGE, "three");
    give(
        &bench,
        (struct agent_event){.type = AGENT_CALLED, .status = TOOL_OK, .text = view_of_text("r")}
    );
    give(&bench, (struct agent_event){.type = AGENT_RECORDED});
    give(&bench, (struct agent_event){.type = AGENT_RECORDED});
    assert_int_equal(effect(&bench), AGENT_RECORD_TURN);
    assert_int_equal(bench.effects.items[0].person_count, 2);
    assert_int_equal(bench.effects.items[0].unrun_count, 0);
    assert_text(last(&bench, 1)->content, "two");
    assert_text(last(&bench, 0)->content, "three");
    /* One that came with the answer starts the next turn at once. */
    assert_int_equal(settle(&bench), AGENT_GENERATE);
    text(&bench, AGENT_MESSAGE, "four");
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_GENERATE);
    agent_destroy(bench.agent);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    for (int i = 0; i < 2 * AGENT_QUEUE_MAX; i++) {
        text(&bench, AGENT_MESSAGE, "more");
    }
    assert_int_equal(agent_queued(bench.agent), AGENT_QUEUE_MAX);
    assert_false(agent_takes_message(bench.agent, 1));
    give(&bench, (struct agent_event){.type = AGENT_RECORDED}); /* of the beginning */
    assert_int_equal(settle(&bench), AGENT_GENERATE);
    assert_true(agent_takes_message(bench.agent, AGENT_QUEUE_BYTES_MAX));
    assert_false(agent_takes_message(bench.agent, AGENT_QUEUE_BYTES_MAX + 1));
    agent_destroy(bench.agent);
}

/* ---- interrupts ----------------------------------------------------------------------------- */

static void pause_ends_a_generation_and_waits(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    text(&bench, AGENT_PAUSE, "");
    assert_int_equal(effect(&bench), AGENT_CANCEL_GENERATE);
    text(&bench, AGENT_PAUSE, "");
    assert_int_equal(bench.effects.count, 0);
    assert_int_equal(generated(&bench, FINISH_CANCELLED, "half", 0), AGENT_IDLE);
    assert_int_equal(agent_idle_stop(bench.agent), AGENT_STOP_INTERRUPT);
    text(&bench, AGENT_MESSAGE, "two");
    assert_int_equal(effect(&bench), AGENT_RECORD_TURN);
    assert_true(bench.effects.items[0].end_is_missing);
    assert_int_equal(bench.effects.items[0].from_message, 3);
    agent_destroy(bench.agent);
}

static void a_generation_that_did_not_begin_leaves_the_context(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_IDLE);
    text(&bench, AGENT_MESSAGE, "two");
    (void)settle(&bench);
    text(&bench, AGENT_PAUSE, "");
    give(&bench, (struct agent_event){.type = AGENT_GENERATED, .reason = FINISH_CANCELLED});
    assert_int_equal(settle(&bench), AGENT_IDLE);
    text(&bench, AGENT_MESSAGE, "three");
    assert_int_equal(effect(&bench), AGENT_RECORD_TURN);
    assert_false(bench.effects.items[0].end_is_missing);
    assert_int_equal(bench.effects.items[0].from_message, 3); /* "two" is encoded again */
    agent_destroy(bench.agent);
}

static void calls_that_never_ran_are_answered(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    assert_int_equal(generated(&bench, FINISH_EOS, "", 2), AGENT_CALL);
    text(&bench, AGENT_PAUSE, "");
    assert_int_equal(effect(&bench), AGENT_CANCEL_CALL);
    assert_int_equal(called(&bench, "cancelled"), AGENT_IDLE);
    text(&bench, AGENT_MESSAGE, "two");
    assert_int_equal(effect(&bench), AGENT_RECORD_TURN);
    assert_int_equal(bench.effects.items[0].unrun_count, 1);
    assert_int_equal(bench.effects.items[0].unrun_from, 4);
    assert_text(last(&bench, 1)->content, AGENT_NOT_RUN);
    assert_int_equal(last(&bench, 1)->role, CHAT_TOOL);
    assert_text(last(&bench, 1)->call_id, "c1");
    agent_destroy(bench.agent);
}

static void an_end_overrides_a_pause(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    text(&bench, AGENT_PAUSE, "");
    text(&bench, AGENT_INTERRUPT, "by SIGTERM");
    assert_int_equal(bench.effects.count, 0); /* it is cancelled already */
    assert_int_equal(generated(&bench, FINISH_CANCELLED, "half", 0), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_INTERRUPT);
    assert_string_equal(agent_stop_detail(bench.agent), "by SIGTERM");
    agent_destroy(bench.agent);
}

static void the_end_of_the_input_lets_it_finish(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    text(&bench, AGENT_MESSAGE, "two");
    text(&bench, AGENT_INPUT_END, "");
    assert_int_equal(bench.effects.count, 0);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_GENERATE);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_ANSWER);
    agent_destroy(bench.agent);
}

/* ---- effort, budgets ------------------------------------------------------------------------ */

static void effort_is_that_of_the_turn(void **state) {
    (void)state;
    struct bench bench;
    const struct agent_options options = options_default();
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    give(&bench, (struct agent_event){.type = AGENT_EFFORT, .effort = 20});
    assert_int_equal(agent_chat_options(bench.agent).effort, 50); /* of the turn that runs */
    (void)generated(&bench, FINISH_EOS, "yes", 0);
    text(&bench, AGENT_MESSAGE, "two");
    assert_int_equal(agent_chat_options(bench.agent).effort, 20);
    assert_text(last(&bench, 1)->content, "Reasoning effort from now on: 20 of 100.");
    agent_destroy(bench.agent);
}

static void budgets_are_told_at_the_tail(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.time_ms_max = 100000;
    options.tokens_max = 1000000;
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    static const struct {
        int64_t now_ms;
        const char *shown;
    } steps[] = {
        {20000, "r0"},
        {51000, "r1\n[budget left: 50 s, 999980 tokens]"},
        {60000, "r2"},
        {82000, "r3\n[budget left: 19 s, 999960 tokens; finish what you are doing and answer]"},
        {83000, "r4\n[budget left: 18 s, 999950 tokens; finish what you are doing and answer]"},
        {97000, "r5\n[budget left: 4 s, 999940 tokens; answer now]"},
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        char words[8];
        assert_true(snprintf(words, sizeof words, "r%zu", i) > 0);
        assert_int_equal(generated(&bench, FINISH_EOS, "", 1), AGENT_CALL);
        int64_t left = 101000 - bench.now_ms;
        int64_t reserve = left / 4 < 10000 ? left / 4 : 10000;
        for (size_t k = 0; k < bench.effects.count; k++) {
            if (bench.effects.items[k].type == AGENT_CALL) {
                assert_int_equal(bench.effects.items[k].time_ms_max, left - reserve);
            }
        }
        bench.now_ms = steps[i].now_ms;
        give(
            &bench,
            (struct agent_event
            ){.type = AGENT_CALLED, .status = TOOL_OK, .text = view_of_text(words)}
        );
        assert_text(last(&bench, 0)->content, steps[i].shown);
        assert_int_equal(settle(&bench), AGENT_GENERATE);
    }
    bench.now_ms = 101000;
    give(&bench, (struct agent_event){.type = AGENT_TIME});
    assert_int_equal(effect(&bench), AGENT_CANCEL_GENERATE);
    assert_int_equal(generated(&bench, FINISH_DEADLINE, "part", 0), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TIME);
    agent_destroy(bench.agent);
}

static void a_deadline_ends_it_while_it_waits(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.time_ms_max = 5000;
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_IDLE);
    bench.now_ms = 6000;
    give(&bench, (struct agent_event){.type = AGENT_TIME});
    assert_int_equal(settle(&bench), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_TIME);
    agent_destroy(bench.agent);
}

static void spent_calls_leave_one_turn(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.calls_max = 1;
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    assert_int_equal(generated(&bench, FINISH_EOS, "", 2), AGENT_CALL);
    assert_int_equal(called(&bench, "r"), AGENT_GENERATE);
    assert_true(view_starts_with(last(&bench, 0)->content, view_of_text("not run: the budget")));
    assert_int_equal(generated(&bench, FINISH_EOS, "", 1), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_CALLS);
    agent_destroy(bench.agent);
}

static void turns_are_counted_for_each_message(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.turns_max = 2;
    start(&bench, &options);
    for (int i = 0; i < 3; i++) {
        text(&bench, AGENT_MESSAGE, "go");
        assert_int_equal(settle(&bench), AGENT_GENERATE);
        assert_int_equal(generated(&bench, FINISH_EOS, "", 1), AGENT_CALL);
        assert_int_equal(called(&bench, "r"), AGENT_GENERATE);
        assert_int_equal(generated(&bench, FINISH_EOS, "", 1), AGENT_IDLE);
        assert_int_equal(agent_idle_stop(bench.agent), AGENT_STOP_TURNS);
    }
    agent_destroy(bench.agent);
}

/* ---- at an answer --------------------------------------------------------------------------- */

static void an_answer_may_not_be_enough(void **state) {
    (void)state;
    struct bench bench;
    struct agent_options options = options_default();
    options.checks_stop = true;
    start(&bench, &options);
    text(&bench, AGENT_MESSAGE, "one");
    (void)settle(&bench);
    for (int i = 0; i < AGENT_STOP_REFUSALS_MAX; i++) {
        assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_CHECK_STOP);
        text(&bench, AGENT_STOP_CHECKED, "more");
        assert_text(last(&bench, 0)->content, "Checked before the end: more");
        assert_int_equal(settle(&bench), AGENT_GENERATE);
    }
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_IDLE);
    text(&bench, AGENT_MESSAGE, "two"); /* is counted anew */
    (void)settle(&bench);
    assert_int_equal(generated(&bench, FINISH_EOS, "yes", 0), AGENT_CHECK_STOP);
    text(&bench, AGENT_INTERRUPT, "");
    assert_int_equal(effect(&bench), AGENT_CANCEL_CHECK);
    text(&bench, AGENT_STOP_CHECKED, "more");
    assert_int_equal(settle(&bench), AGENT_FINISH);
    assert_int_equal(agent_stop(bench.agent), AGENT_STOP_INTERRUPT);
    agent_destroy(bench.agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_until_a_message_comes),
        cmocka_unit_test(leaving_before_the_first_message_records_nothing),
        cmocka_unit_test(messages_come_before_the_next_turn),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(pause_ends_a_generation_and_waits),
        cmocka_unit_test(a_generation_that_did_not_begin_leaves_the_context),
        cmocka_unit_test(calls_that_never_ran_are_answered),
        cmocka_unit_test(an_end_overrides_a_pause),
        cmocka_unit_test(the_end_of_the_input_lets_it_finish),
        cmocka_unit_test(effort_is_that_of_the_turn),
        cmocka_unit_test(budgets_are_told_at_the_tail),
        cmocka_unit_test(a_deadline_ends_it_while_it_waits),
        cmocka_unit_test(spent_calls_leave_one_turn),
        cmocka_unit_test(turns_are_counted_for_each_message),
        cmocka_unit_test(an_answer_may_not_be_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
