/* The verbs of agents: what each answers, refuses and leaves behind; a swarm with one agent (node 1) that
 * asks. */
#include "swarm_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

static int set_up(void **state) {
    static struct desk desk;
    struct swarm_options options = desk_options("single");
    options.has_verifier = true;
    options.tokens_max = 40000;
    options.time_ms_max = 100000;
    desk_open(&desk, &options);
    desk_started(&desk, 1);
    *state = &desk;
    return 0;
}

static int tear_down(void **state) {
    desk_close(*state);
    return 0;
}

static const struct view brief_a[] = {{(const unsigned char *)"part a", 6}};
static const struct view brief_b[] = {{(const unsigned char *)"part b", 6}};
static const struct view two_briefs[] = {
    {(const unsigned char *)"left", 4}, {(const unsigned char *)"right", 5}};

static void spawn(struct desk *desk, size_t node, const struct view *brief) {
    desk_asked(
        desk, node, (struct swarm_ask){.type = SWARM_ASK_SPAWN, .briefs = brief, .brief_count = 1}
    );
}

static void ask_names(
    struct desk *desk, size_t node, enum swarm_ask_type type, const char *first, const char *second
) {
    const struct view names[] = {view_of_text(first), view_of_text(second)};
    desk_asked(
        desk,
        node,
        (struct swarm_ask){
            .type = type,
            .names = names,
            .name_count = first == NULL    ? 0
                          : second == NULL ? 1
                                           : 2,
            .text = view_of_text("look at lexer.c"),
        }
    );
}

static void expect_refused(struct desk *desk, size_t node, const char *part) {
    const char *text = desk_answer(desk, node);
    if (strstr(text, part) == NULL || strncmp(text, "Refused: ", 9) != 0) {
        fail_msg("'%s' does not say '%s'", text, part);
    }
}

/* ---- spawn ------------------------------------------------------------------------------------- */

static void spawn_answers_at_once_and_shares(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    assert_string_equal(desk_answer(desk, 1), "Started: agent-2");
    const struct swarm_effect *start = desk_effect_for(desk, SWARM_DO_START, 2);
    assert_non_null(start);
    assert_int_equal(start->tokens_max, 20000);
    const struct swarm_effect *share = desk_effect_for(desk, SWARM_DO_SET_SHARE, 1);
    assert_non_null(share);
    assert_int_equal(share->tokens_max, 20000);
    /* The asker has a tenth of its time for the result. */
    int64_t left_ms = desk_node(desk, 1)->deadline_ms - desk->now_ms;
    assert_int_equal(desk_node(desk, 2)->deadline_ms, desk->now_ms + left_ms - left_ms / 10);
    desk_started(desk, 2);
    desk_turn(desk, 2, 5000, 1);
    desk_ended(desk, 2, SWARM_END_ANSWER, "found it", 0);
    share = desk_effect_for(desk, SWARM_DO_SET_SHARE, 1);
    assert_int_equal(share->tokens_max, 35000);
    assert_int_equal(desk_effect_for(desk, SWARM_DO_TELL, 1)->tell, SWARM_TELL_CHILD_ENDED);
}

static void briefs_of_oneself_and_above_are_refused(void **state) {
    struct desk *desk = *state;
    static const struct view same[] = {{(const unsigned char *)" PART  A\n", 9}};
    static const struct view task[] = {{(const unsigned char *)"Mend the parser", 15}};
    static const struct view blank[] = {{(const unsigned char *)" \n", 2}};
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    spawn(desk, 2, same);
    expect_refused(desk, 2, "the brief of this agent itself");
    spawn(desk, 2, brief_b);
    desk_started(desk, 3);
    assert_int_equal(desk_node(desk, 3)->depth, 3);
    spawn(desk, 1, task);
    expect_refused(desk, 1, "the whole task");
    spawn(desk, 1, blank);
    expect_refused(desk, 1, "needs a brief");
    spawn(desk, 3, two_briefs);
    expect_refused(desk, 3, "deeper than 3");
    assert_int_equal(swarm_node_count(desk->swarm), 4);
}

static void numbers_out_of_range_are_refused_by_name(void **state) {
    struct desk *desk = *state;
    static const struct {
        int64_t count, tokens;
        const char *part;
    } rows[] = {
        {0, 0, "0 agents: a fork makes 1 to 32"},
        {-1, 0, "-1 agents"},
        {10000, 0, "10000 agents: a fork makes 1 to 32"},
        {3, 13334, "tokens: 13334 for each of 3 agents, 40000 left in all"},
        {3, 20, "tokens: 20 for each of 3 agents, at least 256"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        desk_asked(
            desk,
            1,
            (struct swarm_ask
            ){.type = SWARM_ASK_FORK, .count = rows[i].count, .tokens = rows[i].tokens}
        );
        expect_refused(desk, 1, rows[i].part);
    }
    assert_int_equal(swarm_node_count(desk->swarm), 2);
}

static void names_are_checked_and_unique(void **state) {
    struct desk *desk = *state;
    static const struct {
        const char *name, *part;
    } rows[] = {
        {"a b", "letters, digits, - and _"},
        {"../x", "letters, digits, - and _"},
        {"agent-9", "is taken"},
        {"root", "is taken"},
        {"parent", "is taken"},
        {"a-name-that-is-longer-than-all-of-it", "at most 31"},
        {"helper", "is taken"},
    };
    struct swarm_ask ask = {
        .type = SWARM_ASK_SPAWN,
        .briefs = brief_a,
        .brief_count = 1,
        .name = view_of_text("helper")};
    desk_asked(desk, 1, ask);
    assert_string_equal(desk_answer(desk, 1), "Started: helper");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        ask.name = view_of_text(rows[i].name);
        desk_asked(desk, 1, ask);
        expect_refused(desk, 1, rows[i].part);
    }
}

/* ---- fork -------------------------------------------------------------------------------------- */

static void fork_answers_when_all_have_ended(void **state) {
    struct desk *desk = *state;
    desk_asked(
        desk, 1, (struct swarm_ask){.type = SWARM_ASK_FORK, .briefs = two_briefs, .brief_count = 2}
    );
    assert_int_equal(desk_count(desk, SWARM_DO_START), 2);
    assert_int_equal(desk_count(desk, SWARM_DO_ANSWER), 0);
    assert_int_equal(desk_node(desk, 3)->index_of, 1);
    assert_int_equal(desk_node(desk, 3)->kind, SWARM_KIND_FORK);
    assert_true(desk_node(desk, 2)->seed != desk_node(desk, 3)->seed);
    desk_start_all(desk);
    desk_ended(desk, 3, SWARM_END_ANSWER, "right is done", 2);
    assert_int_equal(desk_count(desk, SWARM_DO_ANSWER), 0);
    desk_ended(desk, 2, SWARM_END_FAULT, "left broke", 0);
    const char *text = desk_answer(desk, 1);
    assert_non_null(strstr(text, "agent-2: failed\nleft broke\n"));
    assert_non_null(strstr(text, "agent-3: unverified, 2 lines changed\nright is done\n"));
    assert_true(desk_node(desk, 2)->is_read);
}

static void children_are_told_number_share_and_brief(void **state) {
    struct desk *desk = *state;
    desk_asked(
        desk,
        1,
        (struct swarm_ask
        ){.type = SWARM_ASK_FORK, .briefs = two_briefs, .brief_count = 2, .time_ms = 30000}
    );
    assert_true(is_ok(swarm_start_text(desk->swarm, 3, desk->now_ms, true, &desk->text, NULL)));
    assert_string_equal(
        buffer_text(&desk->text),
        "You are agent-3, number 2 of 2 that work beside each other. Your share of the budget: 30 "
        "s, "
        "13333 tokens. You work in a directory of your own; what you change there and your last "
        "message are your result.\n\nright"
    );
}

static void fork_for_the_first_passing_cancels_the_rest(void **state) {
    struct desk *desk = *state;
    desk_asked(
        desk, 1, (struct swarm_ask){.type = SWARM_ASK_FORK, .count = 3, .join = SWARM_JOIN_PASSING}
    );
    desk_start_all(desk);
    desk_ended(desk, 2, SWARM_END_ANSWER, "no", 1);
    assert_non_null(desk_effect_for(desk, SWARM_DO_VERIFY, 2));
    desk_verified(desk, 2, SWARM_VERIFIED_FAIL);
    assert_int_equal(desk_count(desk, SWARM_DO_ANSWER), 0);
    desk_ended(desk, 3, SWARM_END_ANSWER, "yes", 1);
    desk_verified(desk, 3, SWARM_VERIFIED_PASS);
    assert_non_null(desk_effect_for(desk, SWARM_DO_CANCEL, 4));
    assert_non_null(strstr(desk_answer(desk, 1), "agent-3: passed"));
}

/* ---- wait -------------------------------------------------------------------------------------- */

static void waits_end_by_timeout_message_and_end(void **state) {
    struct desk *desk = *state;
    ask_names(desk, 1, SWARM_ASK_WAIT, NULL, NULL);
    expect_refused(desk, 1, "started nobody");
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    struct swarm_ask ask = {.type = SWARM_ASK_WAIT, .time_ms = 500};
    desk_asked(desk, 1, ask);
    assert_int_equal(desk_count(desk, SWARM_DO_ANSWER), 0);
    assert_int_equal(desk_effect(desk, SWARM_DO_WAIT, 0)->wake_ms, desk->now_ms + 500);
    desk_at(desk, desk->now_ms + 500);
    assert_non_null(
        strstr(desk_answer(desk, 1), "The time of this wait is over. Not ended: agent-2")
    );
    desk_asked(desk, 1, ask);
    ask_names(desk, 2, SWARM_ASK_SEND, "parent", NULL);
    assert_string_equal(desk_answer(desk, 2), "Sent as message 1.");
    assert_non_null(strstr(desk_answer(desk, 1), "A message has come"));
    assert_int_equal(desk_effect_for(desk, SWARM_DO_DELIVER, 1)->message, 1);
    desk_event(desk, (struct swarm_event){.type = SWARM_DELIVERED, .node = 1, .message = 1});
    desk_asked(desk, 1, ask);
    desk_ended(desk, 2, SWARM_END_ANSWER, "done", 0);
    assert_non_null(strstr(desk_answer(desk, 1), "agent-2: unverified\ndone\n"));
    assert_int_equal(desk_count(desk, SWARM_DO_TELL), 0);
    ask_names(desk, 1, SWARM_ASK_WAIT, NULL, NULL); /* its result was read */
    expect_refused(desk, 1, "whose result it has not read");
    ask_names(desk, 1, SWARM_ASK_WAIT, "agent-2", NULL); /* by name again: at once */
    assert_non_null(strstr(desk_answer(desk, 1), "done"));
}

static void waiting_again_and_again_is_no_circle(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    for (int i = 0; i < 2 * SWARM_LOOP_TURNS; i++) {
        desk_asked(desk, 1, (struct swarm_ask){.type = SWARM_ASK_WAIT, .time_ms = 10});
        desk_at(desk, desk->now_ms + 10);
        desk_turn(desk, 1, 10, 77);
    }
    assert_int_equal(desk_node(desk, 1)->cut, SWARM_CUT_NONE);
    for (int i = 0; i < SWARM_LOOP_TURNS; i++) { /* what is refused again and again is one */
        ask_names(desk, 1, SWARM_ASK_WAIT, "nobody", NULL);
        desk_turn(desk, 1, 10, 78);
    }
    assert_int_equal(desk_node(desk, 1)->cut, SWARM_CUT_LOOP);
}

static void wait_for_any_ends_with_the_first(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    spawn(desk, 1, brief_b);
    desk_start_all(desk);
    desk_asked(desk, 1, (struct swarm_ask){.type = SWARM_ASK_WAIT, .join = SWARM_JOIN_ANY});
    desk_ended(desk, 3, SWARM_END_ANSWER, "first", 0);
    const char *text = desk_answer(desk, 1);
    assert_non_null(strstr(text, "agent-3: unverified\nfirst\n"));
    assert_null(strstr(text, "agent-2"));
    assert_true(desk_node(desk, 3)->is_read);
    assert_false(desk_node(desk, 2)->is_read);
}

static void circles_and_ancestors_are_refused_by_name(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    spawn(desk, 1, brief_b);
    desk_start_all(desk);
    ask_names(desk, 2, SWARM_ASK_WAIT, "agent-3", NULL);
    ask_names(desk, 3, SWARM_ASK_WAIT, "agent-2", NULL);
    expect_refused(desk, 3, "a circle of waits: agent-3 waits for agent-2 waits for agent-3");
    ask_names(desk, 3, SWARM_ASK_WAIT, "parent", NULL);
    expect_refused(desk, 3, "agent-1 started this agent");
    ask_names(desk, 3, SWARM_ASK_WAIT, "agent-3", NULL);
    expect_refused(desk, 3, "a circle of waits: agent-3 waits for agent-3");
    ask_names(desk, 3, SWARM_ASK_WAIT, "nobody", NULL);
    expect_refused(desk, 3, "no agent named nobody");
}

static void wait_that_nobody_works_for_is_answered_at_once(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    desk_asked(desk, 2, (struct swarm_ask){.type = SWARM_ASK_RECEIVE});
    assert_int_equal(desk_count(desk, SWARM_DO_ANSWER), 0); /* agent-1 may write */
    ask_names(desk, 1, SWARM_ASK_WAIT, "agent-2", NULL);
    assert_non_null(strstr(desk_answer(desk, 1), "Nobody is at work for this wait"));
    assert_non_null(strstr(desk_answer(desk, 1), "agent-2"));
}

/* ---- messages ---------------------------------------------------------------------------------- */

static void messages_come_in_order_one_at_a_time_or_bounce(void **state) {
    struct desk *desk = *state;
    struct swarm_message message;
    spawn(desk, 1, brief_a);
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL); /* before it runs */
    assert_int_equal(desk_count(desk, SWARM_DO_DELIVER), 0);
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL);
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL);
    desk_started(desk, 2);
    assert_int_equal(desk_count(desk, SWARM_DO_DELIVER), 1);
    assert_int_equal(desk_effect(desk, SWARM_DO_DELIVER, 0)->message, 1);
    assert_true(swarm_message(desk->swarm, 1, &message));
    assert_true(view_equals_text(message.text, "look at lexer.c"));
    struct swarm_event confirmed = {.type = SWARM_DELIVERED, .node = 2, .message = 2};
    desk_event(desk, confirmed); /* not this one */
    assert_int_equal(desk_count(desk, SWARM_DO_DELIVER), 0);
    confirmed.message = 1;
    desk_event(desk, confirmed);
    assert_int_equal(desk_effect(desk, SWARM_DO_DELIVER, 0)->message, 2);
    desk_event(desk, confirmed); /* doubled */
    assert_int_equal(desk_count(desk, SWARM_DO_DELIVER), 0);
    desk_ended(desk, 2, SWARM_END_ANSWER, "", 0);
    assert_int_equal(desk_count(desk, SWARM_DO_TELL), 3); /* 2 and 3, and that it has ended */
    buffer_clear(&desk->text);
    assert_true(is_ok(swarm_tell_text(
        desk->swarm, desk_effect(desk, SWARM_DO_TELL, 1), desk->now_ms, &desk->text, NULL
    )));
    assert_string_equal(
        buffer_text(&desk->text), "[message 3 to agent-2 was not delivered: it has ended]"
    );
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL);
    expect_refused(desk, 1, "agent-2 has ended");
}

static void mailboxes_are_bounded(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    for (int i = 0; i < SWARM_MAILBOX_MAX; i++) {
        ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL);
        assert_non_null(strstr(desk_answer(desk, 1), "Sent"));
    }
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", NULL);
    expect_refused(desk, 1, "agent-2 has 16 messages");
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-1", NULL);
    expect_refused(desk, 1, "to itself");
    ask_names(desk, 1, SWARM_ASK_SEND, "parent", NULL);
    expect_refused(desk, 1, "the root is no agent");
    ask_names(desk, 1, SWARM_ASK_SEND, "agent-2", "agent-1");
    expect_refused(desk, 1, "one agent, not to 2");
}

/* ---- cancel and merge -------------------------------------------------------------------------- */

static void cancel_takes_all_below_and_nobody_else(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    spawn(desk, 2, brief_b);
    desk_started(desk, 3);
    ask_names(desk, 3, SWARM_ASK_CANCEL, "agent-2", NULL);
    expect_refused(desk, 3, "agent-2 was not started by this agent");
    ask_names(desk, 1, SWARM_ASK_CANCEL, "agent-2", NULL);
    assert_string_equal(desk_answer(desk, 1), "Told to end: agent-2");
    assert_int_equal(desk_count(desk, SWARM_DO_CANCEL), 2);
    assert_int_equal(desk_node(desk, 3)->cut, SWARM_CUT_PARENT);
    /* What does not end within its grace is lost, and its share with it. */
    desk_ended(desk, 3, SWARM_END_CANCEL, "", 0);
    desk_at(desk, desk->now_ms + SWARM_GRACE_MS_DEFAULT);
    assert_int_equal(desk_node(desk, 2)->outcome, SWARM_LOST);
    desk_ended(desk, 2, SWARM_END_CANCEL, "late", 0);
    assert_int_equal(desk_node(desk, 2)->outcome, SWARM_LOST);
    assert_int_equal(budget_left(swarm_budget(desk->swarm), 1).of[BUDGET_TOKENS], 20000);
}

static void merge_is_asked_for_and_conflicts_are_shown(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    ask_names(desk, 1, SWARM_ASK_MERGE, "agent-2", NULL);
    expect_refused(desk, 1, "still at work");
    desk_ended(desk, 2, SWARM_END_ANSWER, "done", 4);
    ask_names(desk, 1, SWARM_ASK_MERGE, "agent-2", NULL);
    assert_int_equal(desk_effect(desk, SWARM_DO_MERGE, 0)->target, 1);
    desk_merged(desk, 2, SWARM_MERGE_CONFLICTS);
    assert_non_null(strstr(desk_answer(desk, 1), "Not merged, nothing was changed:\nagent-2"));
    assert_non_null(strstr(desk_answer(desk, 1), "src/parser.c"));
    ask_names(desk, 1, SWARM_ASK_MERGE, "agent-2", NULL);
    desk_merged(desk, 2, SWARM_MERGE_OK);
    assert_string_equal(desk_answer(desk, 1), "Merged into your directory: agent-2");
    ask_names(desk, 1, SWARM_ASK_MERGE, "agent-2", NULL);
    expect_refused(desk, 1, "merged already");
}

static void parent_that_ends_takes_its_children_along(void **state) {
    struct desk *desk = *state;
    spawn(desk, 1, brief_a);
    desk_started(desk, 2);
    desk_ended(desk, 1, SWARM_END_ANSWER, "done", 1);
    assert_non_null(desk_effect_for(desk, SWARM_DO_CANCEL, 2));
    assert_true(budget_is_open(swarm_budget(desk->swarm), 1));
    desk_ended(desk, 2, SWARM_END_CANCEL, "", 0);
    assert_false(budget_is_open(swarm_budget(desk->swarm), 1));
}

static void memory_that_fails_refuses_what_was_asked(void **state) {
    struct desk *desk = *state;
    for (size_t nth = 1; nth <= 3; nth++) {
        failing_memory_arm(nth);
        spawn(desk, 1, brief_a);
        bool has_fired = failing_memory_fired();
        failing_memory_arm(0);
        if (has_fired) {
            expect_refused(desk, 1, "no memory for a brief");
        }
        assert_int_equal(swarm_node_count(desk->swarm), has_fired ? 2 : 3);
        if (!has_fired) {
            return;
        }
    }
    fail_msg("a spawn allocates again and again");
}

/* Half a silence, a word, and more than another half. */
static void node_that_is_heard_does_not_hang(void **state) {
    (void)state;
    struct desk desk;
    struct swarm_options options = desk_options("single");
    options.silent_ms_max = 1000;
    for (int heard = 0; heard < 2; heard++) {
        desk_open(&desk, &options);
        desk_started(&desk, 1);
        desk.now_ms += 600;
        if (heard == 1) {
            desk_event(&desk, (struct swarm_event){.type = SWARM_HEARD, .node = 1});
        }
        desk_at(&desk, desk.now_ms + 600);
        assert_int_equal(desk_node(&desk, 1)->is_cancelling, heard == 0);
        assert_int_equal(desk_node(&desk, 1)->cut, heard == 0 ? SWARM_CUT_SILENT : SWARM_CUT_NONE);
        desk_close(&desk);
    }
}

#define VERB_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        VERB_TEST(spawn_answers_at_once_and_shares),
        VERB_TEST(briefs_of_oneself_and_above_are_refused),
        VERB_TEST(numbers_out_of_range_are_refused_by_name),
        VERB_TEST(names_are_checked_and_unique),
        VERB_TEST(fork_answers_when_all_have_ended),
        VERB_TEST(children_are_told_number_share_and_brief),
        VERB_TEST(fork_for_the_first_passing_cancels_the_rest),
        VERB_TEST(waits_end_by_timeout_message_and_end),
        VERB_TEST(waiting_again_and_again_is_no_circle),
        VERB_TEST(wait_for_any_ends_with_the_first),
        VERB_TEST(circles_and_ancestors_are_refused_by_name),
        VERB_TEST(wait_that_nobody_works_for_is_answered_at_once),
        VERB_TEST(messages_come_in_order_one_at_a_time_or_bounce),
        VERB_TEST(mailboxes_are_bounded),
        VERB_TEST(cancel_takes_all_below_and_nobody_else),
        VERB_TEST(merge_is_asked_for_and_conflicts_are_shown),
        VERB_TEST(parent_that_ends_takes_its_children_along),
        VERB_TEST(memory_that_fails_refuses_what_was_asked),
        cmocka_unit_test(node_that_is_heard_does_not_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
