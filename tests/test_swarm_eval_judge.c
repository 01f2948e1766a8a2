/* Hidden tests on what agents left: run confined, below the workspace, and not fooled by what is in their way. */
#include "sandbox_support.h"

#include "runtime/swarm_eval_folder.h"

#include <sys/stat.h>
#include <unistd.h>

static char task[300]; /* beside the workspace */

static void shell(const char *format, ...) PRINTF_LIKE(1, 2);

static void shell(const char *format, ...) {
    char text[2048];
    int used = snprintf(text, sizeof text, "cd '%s' && ", workspace);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    assert_true(length > 0 && (size_t)(used + length) < sizeof text);
    if (system(text) != 0) {
        fail_msg("%s", text);
    }
}

static int set_up_task(void **state) {
    (void)set_up(state);
    (void)snprintf(task, sizeof task, "%s-task", workspace);
    shell("mkdir -p '%s/hidden'", task);
    shell("printf 'grep -q right answer && echo 3 passed' >'%s/hidden/check.sh'", task);
    return 0;
}

static int tear_down_task(void **state) {
    remove_tree(task);
    return tear_down(state);
}

static result
judge(int64_t time_ms, const char *command, const char *line, bool *solved, struct error *error) {
    const struct swarm_eval_item item = {
        .id = view_of_text("t"),
        .hidden_command = view_of_text(command),
        .hidden_line = view_of_text(line),
        .directory = task,
    };
    return swarm_eval_judge(&item, shared, workspace, time_ms, solved, error);
}

static bool is_solved_within(int64_t time_ms, const char *command, const char *line) {
    struct error error = {0};
    bool solved = false;
    if (is_failed(judge(time_ms, command, line, &solved, &error))) {
        fail_msg("%s", error.message);
    }
    return solved;
}

static bool is_solved(const char *command, const char *line) {
    return is_solved_within(60000, command, line);
}

static void answers_are_judged_by_the_hidden_tests(void **state) {
    (void)state;
    shell("echo wrong >answer");
    assert_false(is_solved("sh check.sh", "3 passed"));
    shell("echo right >answer");
    assert_true(is_solved("sh check.sh", "3 passed"));
    assert_true(is_solved("sh check.sh", ""));
    assert_false(is_solved("sh check.sh", "passed"));   /* not the whole line */
    assert_false(is_solved("sh check.sh", "4 passed")); /* exit 0 alone is not enough */
    assert_false(is_solved("sh check.sh; exit 1", "3 passed"));
    assert_false(is_solved("sh check.sh; echo more", "3 passed"));
    assert_false(is_solved_within(3000, "sh check.sh; sleep 600", "3 passed")); /* hangs */
}

/* An agent cannot decide what the hidden tests are, nor have them written elsewhere. */
static void what_is_in_their_way_does_not_count(void **state) {
    (void)state;
    char outside[400];
    (void)snprintf(outside, sizeof outside, "%s-outside", workspace);
    shell("echo mine >'%s' && echo wrong >answer && echo 'echo 3 passed' >check.sh", outside);
    assert_false(is_solved("sh check.sh", "3 passed"));
    shell("rm check.sh && ln -s '%s' check.sh && echo right >answer", outside);
    assert_true(is_solved("sh check.sh", "3 passed"));
    shell("grep -q mine '%s' && rm '%s'", outside, outside);
    shell("rm check.sh && mkdir -p check.sh/full");
    assert_false(is_solved("sh check.sh || echo 3 passed", "3 passed"));
}

/* What the task's own folder has is no agent's doing. */
static void tasks_that_cannot_be_copied_are_faults(void **state) {
    (void)state;
    static const char *const wrong[] = {"ln -s check.sh", "mkfifo", "touch"};
    static const char *const names[] = {"link", "pipe", ".envrc"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct error error = {0};
        bool solved = false;
        shell("echo right >answer && cd '%s/hidden' && %s %s", task, wrong[i], names[i]);
        assert_true(is_failed(judge(60000, "sh check.sh", "3 passed", &solved, &error)));
        assert_non_null(strstr(error.message, names[i]));
        shell("rm '%s/hidden/%s' && test ! -e '%s'-??????", task, names[i], workspace);
    }
    assert_true(is_solved("sh check.sh", "3 passed"));
}

static void hidden_tests_may_be_programs_and_say_much(void **state) {
    (void)state;
    shell("echo right >answer && printf '#!/bin/sh\\n. ./check.sh' >'%s/hidden/run'", task);
    shell("chmod 755 '%s/hidden/run'", task);
    assert_true(is_solved("./run", "3 passed"));
    for (int kib = 16; kib <= 256; kib *= 2) { /* the last line across what is kept of them */
        char command[100];
        (void)snprintf(
            command,
            sizeof command,
            "head -c %d /dev/zero | tr '\\0' '\\n'; echo '3 passed'",
            kib * 1024 - 4
        );
        assert_true(is_solved(command, "3 passed"));
    }
}

static void hidden_tests_are_out_of_the_reach_of_agents(void **state) {
    (void)state;
    char script[800];
    (void)snprintf(script, sizeof script, "cat '%s/hidden/check.sh' || ls '%s'", task, task);
    struct sandbox_call *call = run(script);
    assert_false(output_has(call, "passed"));
    assert_false(output_has(call, "hidden"));
    assert_int_not_equal(sandbox_call_outcome(call)->exit_status, 0);
    sandbox_call_destroy(call);
}

#define TASK_TEST(function) cmocka_unit_test_setup_teardown(function, set_up_task, tear_down_task)

int main(int argc, char **argv) {
    int status = open_shared("test_swarm_eval_judge", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TASK_TEST(answers_are_judged_by_the_hidden_tests),
        TASK_TEST(what_is_in_their_way_does_not_count),
        TASK_TEST(tasks_that_cannot_be_copied_are_faults),
        TASK_TEST(hidden_tests_may_be_programs_and_say_much),
        TASK_TEST(hidden_tests_are_out_of_the_reach_of_agents),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
