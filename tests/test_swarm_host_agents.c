/* Agents that start, ask and end others by their tools: real tools, runs and records on a scripted engine. */
#include "swarm_work_fake.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SPAWN(name, task)     CALL("spawn", STRING("task", task) STRING("name", name))
#define MESSAGE(name, text)   CALL("message", STRING("name", name) STRING("message", text))
#define WAIT                  CALL("wait", "")
#define RECEIVE               CALL("receive", "")
#define LIST_CALL(tool, list) CALL(tool, VALUE("names", list))

/* One agent's turns, the last one again and again. `first`: what it is known by. */
struct role {
    const char *first;
    const char *turns[8];
    int delay_us;
};

static struct fake_turn plays(void *context, const struct writer_prompt *prompt) {
    const struct stage *stage = context;
    const struct role *role = stage->script;
    while (role->first != NULL && strstr(prompt->first, role->first) == NULL) {
        role++;
    }
    if (role->first == NULL) {
        return (struct fake_turn){.text = ANSWER("Who am I?")};
    }
    int turn = prompt->generation;
    while (role->turns[turn] == NULL) {
        turn--;
    }
    bool is_endless = strcmp(role->turns[turn], "and on") == 0;
    return (struct fake_turn
    ){.text = role->turns[turn], .is_endless = is_endless, .delay_us = role->delay_us};
}

static void act(struct stage *stage, struct role *roles) {
    stage_open(stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage_give_agent_tools(stage);
    stage->script = roles;
    stage_run(stage);
}

static bool has_text(struct view text, const char *words) {
    return view_find(text, view_of_text(words), 0) != SIZE_MAX;
}

static void child_is_spawned_waited_for_and_merged(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Do the half."),
          WAIT,
          CALL("merge", STRING("name", "helper")),
          ANSWER("All is done.")},
         0},
        {"Do the half.", {WRITE_FILE("half.txt"), ANSWER("The half is done.")}, 0},
        {0}};
    struct stage stage;
    act(&stage, roles);
    assert_true(has_text(stage_result(&stage, "agent-1", 0), "helper"));
    assert_true(has_text(stage_result(&stage, "agent-1", 1), "The half is done."));
    const struct stage_node *helper = stage_node(&stage, "helper");
    assert_int_equal(helper->outcome, SWARM_UNVERIFIED);
    assert_true(helper->is_merged);
    const struct session_agent *agent = stage_agent(&stage, "helper");
    assert_string_equal(agent->parent.text, stage_agent(&stage, "agent-1")->id.text);
    assert_string_equal(agent->node->merged_into.text, stage_agent(&stage, "agent-1")->id.text);
    assert_true(view_equals_text(agent->node->kind, "spawn"));
    assert_true(view_equals_text(agent->node->brief, "Do the half."));
    assert_false(stage_was_told(&stage, "helper", "Mend it."));
    stage_close(&stage);
}

static enum swarm_merge conflicts(const char *name) {
    return strcmp(name, "helper") == 0 ? SWARM_MERGE_CONFLICTS : SWARM_MERGE_OK;
}

static void conflict_is_shown_and_nothing_merged_twice(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Do the half."),
          WAIT,
          CALL("merge", STRING("name", "helper")),
          ANSWER("It conflicts.")},
         0},
        {"Do the half.", {WRITE_FILE("half.txt"), ANSWER("The half is done.")}, 0},
        {0}};
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage_give_agent_tools(&stage);
    swarm_work_fake.merge = conflicts;
    stage.script = roles;
    stage_run(&stage);
    assert_true(has_text(stage_result(&stage, "agent-1", 2), "a.txt"));
    assert_false(stage_node(&stage, "helper")->is_merged);
    const struct session_node *node = stage_agent(&stage, "helper")->node;
    assert_true(has_text(node->conflicts, "a.txt"));
    stage_close(&stage);
}

/* Both ways: to a child that waits for it, and to the parent, whose wait it ends. */
static void mail_is_delivered_once_and_in_the_record(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Wait for word."),
          WAIT, /* ended by its message */
          MESSAGE("helper", "Look at b.txt."),
          MESSAGE("helper", "And at c.txt."),
          WAIT,
          ANSWER("Done.")},
         0},
        {"Wait for word.",
         {MESSAGE("parent", "I am here."), RECEIVE, RECEIVE, ANSWER("I looked.")},
         0},
        {0}};
    struct stage stage;
    act(&stage, roles);
    assert_int_equal(stage.messages, 3);
    assert_true(stage_was_told(&stage, "agent-1", "Message from helper:\nI am here."));
    assert_true(stage_was_told(&stage, "helper", "Message from agent-1:\nLook at b.txt."));
    assert_int_equal(stage.tree->mail_count, 3);
    size_t delivered = 0;
    for (size_t i = 0; i < 3; i++) {
        delivered += stage.tree->mail[i].state == SESSION_MAIL_DELIVERED ? 1 : 0;
    }
    assert_true(delivered >= 2); /* the last one may come when the helper does not ask any more */
    assert_true(has_text(stage_result(&stage, "agent-1", 1), "A message has come"));
    stage_close(&stage);
}

/* To one that is ended before it reads. */
static void mail_that_is_not_read_bounces(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Go on."),
          WAIT,
          MESSAGE("helper", "Read this."),
          LIST_CALL("cancel", "[\"helper\"]"),
          LIST_CALL("wait", "[\"helper\"]"),
          ANSWER("It did not read."),
          ANSWER("It did not read.")},
         0},
        {"Go on.", {MESSAGE("parent", "I began."), "and on"}, 200},
        {0}};
    struct stage stage;
    act(&stage, roles);
    assert_int_equal(stage_node(&stage, "helper")->cut, SWARM_CUT_ASKED);
    assert_int_equal(stage.tree->mail_count, 2);
    assert_int_equal(stage.tree->mail[1].state, SESSION_MAIL_BOUNCED);
    assert_true(stage_was_told(&stage, "agent-1", "helper"));
    assert_true(stage.tree->mail[1].turn > 0); /* its sender was told in that turn */
    stage_close(&stage);
}

static void fork_goes_on_behind_the_call_of_its_parent(void **state) {
    (void)state;
    struct role roles[] = {
        {"Mend it.",
         {WRITE_FILE("a.txt"),
          CALL("fork", VALUE("briefs", "[\"the left half\", \"the right half\"]")),
          ANSWER("Both are done.")},
         0},
        {"the left half", {WRITE_FILE("left.txt"), ANSWER("Left is done.")}, 0},
        {"the right half", {WRITE_FILE("right.txt"), ANSWER("Right is done.")}, 0},
        {0}};
    struct stage stage;
    act(&stage, roles);
    assert_int_equal(stage.outcome.totals.nodes, 3);
    assert_true(has_text(stage_result(&stage, "agent-1", 1), "Left is done."));
    assert_true(has_text(stage_result(&stage, "agent-1", 1), "Right is done."));
    const struct session_agent *child = stage_agent(&stage, "agent-2");
    assert_true(view_equals_text(child->node->kind, "fork"));
    assert_true(view_equals_text(child->turns[0].messages[0].role, "tool"));
    assert_true(stage_was_told(&stage, "agent-2", "You are agent-2, number 1 of 2"));
    assert_true(stage_was_told(&stage, "agent-2", "the left half"));
    assert_false(stage_was_told(&stage, "agent-2", "Mend it.")
    ); /* it is in what it goes on behind */
    /* Nothing of it was appended again: the system text once, then what each was told. */
    assert_true(writer_engine_appended(stage.engine) < INT64_C(4500));
    stage_close(&stage);
}

static void child_is_ended_in_the_middle(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Go on."), LIST_CALL("cancel", "[\"helper\"]"), WAIT, ANSWER("Ended.")},
         0},
        {"Go on.", {"and on"}, 0},
        {0}};
    struct stage stage;
    act(&stage, roles);
    assert_int_equal(stage_node(&stage, "helper")->outcome, SWARM_CANCELLED);
    assert_true(has_text(stage_result(&stage, "agent-1", 2), "cancelled"));
    stage_close(&stage);
}

static void what_may_not_be_is_refused_by_name(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {MESSAGE("nobody", "Hello."),
          THOUGHT CALLS_BEGIN INVOKE("fork", VALUE("count", "2"))
              INVOKE("read", STRING("path", "a.txt")) CALLS_END,
          SPAWN("helper", "Mend it."),
          WAIT,
          LIST_CALL("wait", "[\"agent-1\"]"),
          CALL("merge", STRING("name", "nobody")),
          ANSWER("Alone.")},
         0},
        {0}};
    struct stage stage;
    act(&stage, roles);
    static const struct {
        size_t call;
        const char *words;
    } refused[] = {
        {0, "no agent named nobody"},
        {1, "only call of its"},
        {3, "that is the whole task"},
        {4, "started nobody"},
        {5, "agent-1"},
        {6, "no agent named nobody"},
    };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        struct view text = stage_result(&stage, "agent-1", refused[i].call);
        if (!has_text(text, refused[i].words)) {
            fail_msg("call %zu: %.*s", refused[i].call, VIEW_ARGUMENTS(text));
        }
    }
    assert_int_equal(stage.outcome.totals.nodes, 1);
    stage_close(&stage);
}

static void looks_at_names(struct stage *stage, const struct swarm_host_event *event) {
    int *seen = stage->script_looks;
    if (event->type == SWARM_HOST_ACTIVITY) {
        struct swarm_host_look look;
        swarm_host_look(stage->host, event->node, &look);
        struct view activity = view_of_text(look.activity);
        *seen += strncmp(look.activity, "evil", 4) == 0 ? 1 : 0;
        assert_true(utf8_is_valid(activity));
        assert_null(strpbrk(look.activity, "\x1b\x07\n"));
    }
}

/* Whoever shows what an agent does shows whole characters, and nothing that its terminal would obey. */
static void names_of_tools_are_shown_as_harmless_text(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {CALL("evil\x1b[2J\x07\n", ""),
          /* cut within a character */
          CALL("evil-2345678901234567890123456\xc3\xa4\xc3\xa4", ""),
          ANSWER("Nothing came of it.")},
         0},
        {0}};
    struct stage stage;
    int seen = 0;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage.script = roles;
    stage.script_looks = &seen;
    stage.looks = looks_at_names;
    stage_run(&stage);
    assert_true(seen >= 2);
    stage_close(&stage);
}

static void wait_with_a_time_says_who_is_still_at_work(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("helper", "Go on."), CALL("wait", VALUE("timeout", "300")), ANSWER("Enough.")},
         0},
        {"Go on.", {"and on"}, 100},
        {0}};
    struct stage stage;
    act(&stage, roles);
    struct view text = stage_result(&stage, "agent-1", 1);
    assert_true(has_text(text, "time of this wait is over"));
    assert_true(has_text(text, "Not ended: helper"));
    assert_int_equal(stage_node(&stage, "helper")->cut, SWARM_CUT_PARENT);
    stage_close(&stage);
}

/* With room for one at a time, who waits makes room. */
static void parents_that_wait_make_room_for_their_children(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1",
         {SPAWN("left", "The left."), SPAWN("right", "The right."), WAIT, ANSWER("Done.")},
         0},
        {"The left.", {SPAWN("below", "Below."), WAIT, ANSWER("Left.")}, 0},
        {"The right.", {WRITE_FILE("r.txt"), ANSWER("Right.")}, 0},
        {"Below.", {WRITE_FILE("b.txt"), ANSWER("Below.")}, 0},
        {0}};
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage_give_agent_tools(&stage);
    stage.options.swarm.live_max = 1;
    stage.script = roles;
    stage_run(&stage);
    assert_int_equal(stage.outcome.totals.nodes, 4);
    assert_int_equal(stage_count(&stage, SWARM_UNVERIFIED), 4);
    stage_close(&stage);
}

/* The deadline comes while agents wait for each other. */
static void waits_end_with_the_deadline(void **state) {
    (void)state;
    struct role roles[] = {
        {"You are agent-1", {SPAWN("helper", "Go on."), WAIT, ANSWER("Too late.")}, 0},
        {"Go on.", {"and on"}, 1000},
        {0}};
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage_give_agent_tools(&stage);
    stage.options.swarm.time_ms_max = 1500;
    stage.script = roles;
    stage_run(&stage);
    assert_int_equal(stage_count(&stage, SWARM_LOST), 0);
    assert_true(stage.outcome.totals.duration_ms < 1500 + 10000); /* room for a loaded machine */
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_is_spawned_waited_for_and_merged),
        cmocka_unit_test(conflict_is_shown_and_nothing_merged_twice),
        cmocka_unit_test(mail_is_delivered_once_and_in_the_record),
        cmocka_unit_test(mail_that_is_not_read_bounces),
        cmocka_unit_test(fork_goes_on_behind_the_call_of_its_parent),
        cmocka_unit_test(child_is_ended_in_the_middle),
        cmocka_unit_test(what_may_not_be_is_refused_by_name),
        cmocka_unit_test(names_of_tools_are_shown_as_harmless_text),
        cmocka_unit_test(wait_with_a_time_says_who_is_still_at_work),
        cmocka_unit_test(parents_that_wait_make_room_for_their_children),
        cmocka_unit_test(waits_end_with_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
