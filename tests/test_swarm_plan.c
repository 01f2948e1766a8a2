/* Plan-and-split: the list of tasks that a planner writes, and what is started, merged and planned again
 * because of it. */
#include "swarm_support.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "runtime/task_list.h"

/* ---- the list ---------------------------------------------------------------------------------- */

static void list_is_found_between_words(void **state) {
    (void)state;
    static const char *const texts[] = {
        "[{\"id\":\"a\",\"brief\":\"x\"}, {\"id\":\"b\",\"brief\":\"y\",\"needs\":[\"a\",\"a\"]}]",
        "I [really] plan:\n```json\n[ {\"id\":\"a\",\"brief\":\"x\"},\n "
        "{\"id\":\"b\",\"brief\":\"y\","
        "\"needs\":[\"a\"]}]\n```\nThat is all.",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct task_list list = {0};
        struct error error = {0};
        if (is_failed(task_list_parse(view_of_text(texts[i]), &list, &error))) {
            fail_msg("%zu: %s", i, error.message);
        }
        assert_int_equal(list.count, 2);
        assert_true(view_equals_text(list.tasks[1].brief, "y"));
        assert_int_equal(list.tasks[1].need_count, 1);
        assert_int_equal(task_list_chain(&list, 0), 2);
        assert_int_equal(task_list_chain(&list, 1), 1);
        task_list_deinit(&list);
    }
}

static void bad_lists_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "holds no list"},
        {"no list [here] at all", "holds no list"},
        {"[]", "0 tasks: 1 to 32"},
        {"[{\"id\":\"a\"}]", "task a: "},
        {"[{\"brief\":\"a\"}]", "task 1: "},
        {"[{\"id\":\"\",\"brief\":\"x\"}]", "task 1: an id has 1 to 31 bytes"},
        {"[{\"id\":\"a\",\"brief\":\"\"}]", "task a: a brief has 1 to"},
        {"[{\"id\":\"a\",\"brief\":\"x\"},{\"id\":\"a\",\"brief\":\"y\"}]",
         "two tasks are named a"},
        {"[{\"id\":\"a\",\"brief\":\"x\",\"needs\":[\"z\"]}]",
         "task a needs \"z\", which is no task"},
        {"[{\"id\":\"a\",\"brief\":\"x\",\"needs\":[7]}]", "task a needs 7, which is no task"},
        {"[{\"id\":\"a\",\"brief\":\"x\",\"needs\":\"b\"}]", "\"needs\" is a list"},
        {"[{\"id\":\"a\",\"brief\":\"x\",\"needs\":[\"a\"]}]", "a circle of tasks: a needs a"},
        {"[{\"id\":\"q\",\"brief\":\"x\",\"needs\":[\"a\"]},"
         "{\"id\":\"a\",\"brief\":\"x\",\"needs\":[\"b\"]},"
         "{\"id\":\"b\",\"brief\":\"x\",\"needs\":[\"c\"]},"
         "{\"id\":\"c\",\"brief\":\"x\",\"needs\":[\"a\"]}]",
         "a circle of tasks: a needs b needs c needs a"},
        {"[{\"id\":\"a\",\"brief\":\"x\"},", "holds no list"},
        {"[{\"id\":\"a\",\"brief\":\"x\"},]", "in the list of tasks"},
        {"[{\"id\":\"a\",\"brief\":[[[[[[[[\"x\"]]]]]]]]}]", "in the list of tasks"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct task_list list = {0};
        struct error error = {0};
        assert_true(is_failed(task_list_parse(view_of_text(rows[i].text), &list, &error)));
        if (strstr(error.message, rows[i].part) == NULL) {
            fail_msg("%zu: '%s' does not say '%s'", i, error.message, rows[i].part);
        }
        assert_int_equal(list.count, 0);
    }
}

/* ---- the strategy ------------------------------------------------------------------------------ */

#define LIST                                                                                       \
    "[{\"id\":\"lexer\",\"brief\":\"write the lexer\"},{\"id\":\"docs\",\"brief\":\"write "        \
    "docs\"},"                                                                                     \
    "{\"id\":\"parser\",\"brief\":\"write the parser\",\"needs\":[\"lexer\"]}]"

static void open_plan(struct desk *desk, bool has_verifier) {
    struct swarm_options options = desk_options("plan");
    options.has_verifier = has_verifier;
    options.tokens_max = 100000;
    options.time_ms_max = 1000000;
    desk_open(desk, &options);
    assert_int_equal(desk_count(desk, SWARM_DO_START), 1);
    assert_int_equal(desk_effect(desk, SWARM_DO_START, 0)->tokens_max, 20000);
    desk_start_all(desk);
}

static bool brief_says(const struct desk *desk, size_t node, const char *part) {
    return view_find(buffer_view(&desk_node(desk, node)->brief), view_of_text(part), 0) != SIZE_MAX;
}

/* To the point where all three tasks are merged and the whole is verified. */
static void work_and_merge(struct desk *desk) {
    desk_ended(desk, 1, SWARM_END_ANSWER, LIST, 0);
    assert_int_equal(desk_count(desk, SWARM_DO_START), 2); /* the parser needs the lexer */
    assert_true(brief_says(desk, 2, "write the lexer"));
    desk_start_all(desk);
    desk_ended(desk, 3, SWARM_END_ANSWER, "docs", 2);
    desk_ended(desk, 2, SWARM_END_ANSWER, "lexer", 5);
    assert_int_equal(desk_count(desk, SWARM_DO_MERGE), 0); /* one at a time */
    desk_merged(desk, 3, SWARM_MERGE_OK);
    assert_int_equal(desk_effect(desk, SWARM_DO_MERGE, 0)->node, 2);
    assert_int_equal(desk_count(desk, SWARM_DO_START), 0);
    desk_merged(desk, 2, SWARM_MERGE_OK);
    assert_int_equal(desk_count(desk, SWARM_DO_START), 1);
    assert_true(brief_says(desk, 4, "write the parser"));
    desk_start_all(desk);
    desk_ended(desk, 4, SWARM_END_ANSWER, "parser", 7);
    desk_merged(desk, 4, SWARM_MERGE_OK);
}

static void tasks_are_done_as_they_need_each_other(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, true);
    work_and_merge(&desk);
    assert_non_null(desk_effect_for(&desk, SWARM_DO_VERIFY, SWARM_ROOT));
    desk_verified(&desk, SWARM_ROOT, SWARM_VERIFIED_PASS);
    assert_true(swarm_is_finished(desk.swarm));
    const struct swarm_result *end = swarm_result(desk.swarm);
    assert_int_equal(end->node, SWARM_ROOT);
    assert_int_equal(end->outcome, SWARM_PASSED);
    assert_true(end->is_merged);
    assert_string_equal(end->why, "the parts are merged, in 1 plans: what was merged, verified.");
    desk_close(&desk);
}

static void without_a_verifier_the_merged_parts_are_the_result(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, false);
    work_and_merge(&desk);
    assert_true(swarm_is_finished(desk.swarm));
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_UNVERIFIED);
    assert_int_equal(swarm_result(desk.swarm)->node, SWARM_ROOT);
    desk_close(&desk);
}

static void whole_that_does_not_pass_is_integrated(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, true);
    work_and_merge(&desk);
    desk_verified(&desk, SWARM_ROOT, SWARM_VERIFIED_FAIL);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
    assert_true(brief_says(&desk, 5, "2 tests failed"));
    desk_start_all(&desk);
    desk_ended(&desk, 5, SWARM_END_ANSWER, "mended", 1);
    desk_merged(&desk, 5, SWARM_MERGE_OK);
    assert_non_null(desk_effect_for(&desk, SWARM_DO_VERIFY, SWARM_ROOT));
    /* What the verifier said before was of another tree. */
    desk_event(&desk, (struct swarm_event){.type = SWARM_INTERRUPT});
    assert_true(swarm_is_finished(desk.swarm));
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_UNVERIFIED);
    desk_close(&desk);
}

static void integrators_that_fail_bring_another_plan(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, true);
    work_and_merge(&desk);
    desk_verified(&desk, SWARM_ROOT, SWARM_VERIFIED_FAIL);
    for (size_t node = 5; node <= 7; node++) {
        assert_true(brief_says(&desk, node, "2 tests failed"));
        desk_start_all(&desk);
        desk_ended(&desk, node, SWARM_END_FAULT, "", 0);
        assert_int_equal(desk_count(&desk, SWARM_DO_VERIFY), 0); /* nothing has changed */
    }
    assert_true(brief_says(&desk, 8, "- the whole does not pass the verifier: 2 tests failed"));
    desk_start_all(&desk);
    desk_ended(
        &desk,
        8,
        SWARM_END_ANSWER,
        "[{\"id\":\"a\",\"brief\":\"x\"},{\"id\":\"b\",\"brief\":\"y\"}]",
        0
    );
    desk_start_all(&desk);
    desk_ended(&desk, 9, SWARM_END_ANSWER, "", 2);
    desk_merged(&desk, 9, SWARM_MERGE_OK);
    desk_event(&desk, (struct swarm_event){.type = SWARM_INTERRUPT});
    desk_ended(&desk, 10, SWARM_END_CANCEL, "", 0);
    assert_true(swarm_is_finished(desk.swarm));
    assert_int_equal(swarm_result(desk.swarm)->node, SWARM_ROOT);
    assert_int_equal(
        swarm_result(desk.swarm)->outcome, SWARM_UNVERIFIED
    ); /* it is another tree now */
    desk_close(&desk);
}

static void conflict_starts_an_integrator_that_sees_both(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, false);
    desk_ended(
        &desk,
        1,
        SWARM_END_ANSWER,
        "[{\"id\":\"a\",\"brief\":\"x\"},{\"id\":\"b\",\"brief\":\"y\"}]",
        0
    );
    desk_start_all(&desk);
    desk_ended(&desk, 2, SWARM_END_ANSWER, "", 2);
    desk_merged(&desk, 2, SWARM_MERGE_OK);
    desk_ended(&desk, 3, SWARM_END_ANSWER, "", 2);
    desk_merged(&desk, 3, SWARM_MERGE_CONFLICTS);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
    assert_int_equal(desk_node(&desk, 4)->conflict_of, 3);
    assert_true(brief_says(&desk, 4, "src/parser.c"));
    desk_start_all(&desk);
    desk_ended(&desk, 4, SWARM_END_ANSWER, "", 3);
    desk_merged(&desk, 4, SWARM_MERGE_OK);
    assert_true(swarm_is_finished(desk.swarm));
    assert_true(swarm_result(desk.swarm)->is_merged);
    desk_close(&desk);
}

/* What the task had changed is nowhere: it is not done. */
static void integrator_that_changes_nothing_brings_another_plan(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, false);
    desk_ended(
        &desk,
        1,
        SWARM_END_ANSWER,
        "[{\"id\":\"a\",\"brief\":\"x\"},{\"id\":\"b\",\"brief\":\"y\"}]",
        0
    );
    desk_start_all(&desk);
    desk_ended(&desk, 2, SWARM_END_ANSWER, "", 2);
    desk_merged(&desk, 2, SWARM_MERGE_OK);
    desk_ended(&desk, 3, SWARM_END_ANSWER, "", 2);
    desk_merged(&desk, 3, SWARM_MERGE_CONFLICTS);
    desk_start_all(&desk);
    desk_ended(&desk, 4, SWARM_END_ANSWER, "looks fine", 0);
    assert_false(swarm_is_finished(desk.swarm));
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
    assert_true(brief_says(&desk, 5, "- a is merged"));
    assert_true(brief_says(&desk, 5, "- b still conflicts: looks fine"));
    desk_event(&desk, (struct swarm_event){.type = SWARM_INTERRUPT});
    desk_close(&desk);
}

static void circle_is_planned_again_with_its_name_and_not_for_ever(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, true);
    for (size_t plan = 1; plan <= 3; plan++) {
        desk_ended(
            &desk,
            plan,
            SWARM_END_ANSWER,
            "[{\"id\":\"a\",\"brief\":\"x\",\"needs\":[\"b\"]},"
            "{\"id\":\"b\",\"brief\":\"y\",\"needs\":[\"a\"]}]",
            0
        );
        if (plan < 3) {
            assert_true(brief_says(&desk, plan + 1, "a circle of tasks"));
        }
        desk_start_all(&desk);
    }
    assert_true(swarm_is_finished(desk.swarm));
    assert_int_equal(swarm_result(desk.swarm)->node, SWARM_NONE);
    assert_string_equal(
        swarm_result(desk.swarm)->why, "no plan came to a result: there is no result."
    );
    desk_close(&desk);
}

static void failed_task_brings_a_plan_of_the_rest(void **state) {
    (void)state;
    struct desk desk;
    open_plan(&desk, true);
    desk_ended(&desk, 1, SWARM_END_ANSWER, LIST, 0);
    desk_start_all(&desk);
    desk_ended(&desk, 2, SWARM_END_FAULT, "", 0); /* the lexer: the parser has to wait */
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 0);
    desk_ended(&desk, 3, SWARM_END_ANSWER, "docs are written", 2);
    desk_merged(&desk, 3, SWARM_MERGE_OK);
    assert_int_equal(desk_count(&desk, SWARM_DO_START), 1);
    assert_true(brief_says(&desk, 4, "- lexer failed"));
    assert_true(brief_says(&desk, 4, "- docs is merged: docs are written"));
    desk_start_all(&desk);
    desk_ended(&desk, 4, SWARM_END_ANSWER, "[{\"id\":\"all\",\"brief\":\"the rest\"}]", 0);
    desk_start_all(&desk);
    desk_ended(&desk, 5, SWARM_END_ANSWER, "", 4);
    desk_merged(&desk, 5, SWARM_MERGE_OK);
    desk_verified(&desk, SWARM_ROOT, SWARM_VERIFIED_PASS);
    assert_int_equal(swarm_result(desk.swarm)->outcome, SWARM_PASSED);
    desk_close(&desk);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(list_is_found_between_words),
        cmocka_unit_test(bad_lists_are_refused_by_name),
        cmocka_unit_test(tasks_are_done_as_they_need_each_other),
        cmocka_unit_test(without_a_verifier_the_merged_parts_are_the_result),
        cmocka_unit_test(whole_that_does_not_pass_is_integrated),
        cmocka_unit_test(integrators_that_fail_bring_another_plan),
        cmocka_unit_test(conflict_starts_an_integrator_that_sees_both),
        cmocka_unit_test(integrator_that_changes_nothing_brings_another_plan),
        cmocka_unit_test(circle_is_planned_again_with_its_name_and_not_for_ever),
        cmocka_unit_test(failed_task_brings_a_plan_of_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
