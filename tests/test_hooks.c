/* Hooks as scripts in a real sandbox: what they are told, what their outcomes mean, and bad ones. */
#include "runtime/hooks.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox_support.h"

static char user[300]; /* a directory of the configuration beside the workspace */

static int begin(void **state) {
    (void)set_up(state);
    char path[360];
    (void)snprintf(user, sizeof user, "%s-user", workspace);
    assert_int_equal(mkdir(user, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/hooks", user);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/.hearth", workspace);
    assert_int_equal(mkdir(path, 0700), 0);
    return 0;
}

static int end(void **state) {
    remove_tree(user);
    return tear_down(state);
}

/* A script of the project's (in .hearth) or of the user's. */
static void make_hook(const char *directory, const char *name, const char *script) {
    char path[360];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    CLEANUP(file_cleanup) FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "#!/bin/sh\n%s\n", script) > 0);
    assert_int_equal(fchmod(fileno(file), 0755), 0);
}

static struct tool_result tool_said; /* what a hook after a tool is shown */

/* Runs one hook on an event with a limit of time. */
static void run_hook(
    enum hook_event event,
    const char *command,
    int64_t timeout_ms,
    int cancel_fd,
    struct hook_report *out
) {
    static const char *const protect[] = {".hearth"};
    static const char *const arguments[] = {"one", "two words"};
    const struct config_hook hook = {
        .command = command,
        .arguments = {arguments, COUNT_OF(arguments)},
        .tool = "sh*",
        .timeout_ms = timeout_ms,
    };
    const struct config_hooks list = {&hook, 1};
    const struct config config = {
        .hooks_before_tool = list,
        .hooks_after_tool = list,
        .hooks_stop = list,
        .user_directory = user,
    };
    struct sandbox_policy policy = small_policy();
    policy.protect = protect;
    policy.protect_count = COUNT_OF(protect);
    const struct hooks hooks = {.config = &config, .sandbox = shared, .policy = &policy};
    const struct hook_subject subject = {
        .session = view_of_text("s1"),
        .tool = event == HOOK_STOP ? view_of(NULL, 0) : view_of_text("shell"),
        .arguments = view_of_text("{\"command\": \"ls \\\"a\\\"\"}"),
        .result = event == HOOK_AFTER_TOOL ? &tool_said : NULL,
        .reason = event == HOOK_STOP ? view_of_text("done") : view_of(NULL, 0),
        .text = event == HOOK_STOP ? view_of_text("all done") : view_of(NULL, 0),
    };
    struct error error = {0};
    assert_true(hooks_apply(&hooks, event, subject.tool));
    if (is_failed(hooks_run(&hooks, event, &subject, cancel_fd, out, &error))) {
        fail_msg("%s", error.message);
    }
}

static void
run_script(enum hook_event event, const char *script, int64_t timeout_ms, struct hook_report *out) {
    char directory[300];
    char command[360];
    (void)snprintf(directory, sizeof directory, "%s/.hearth", workspace);
    (void)snprintf(command, sizeof command, "%s/check", directory);
    make_hook(directory, "check", script);
    run_hook(event, command, timeout_ms, -1, out);
}

static void expect_note(const struct hook_report *report, const char *part) {
    if (report->note_count != 1 || strstr(report->notes[0], part) == NULL) {
        fail_msg(
            "%zu notes: '%s', not '%s'",
            report->note_count,
            report->note_count > 0 ? report->notes[0] : "",
            part
        );
    }
    assert_null(strchr(report->notes[0], '\n'));
}

static void hooks_are_told_what_happens(void **state) {
    (void)state;
    static const struct {
        enum hook_event event;
        const char *want;
    } rows[] = {
        {HOOK_BEFORE_TOOL,
         "{\"version\":1,\"event\":\"before_tool\",\"session\":\"s1\",\"workspace\":\"/workspace\","
         "\"tool\":\"shell\",\"arguments\":{\"command\":\"ls \\\"a\\\"\"}}\n"},
        {HOOK_AFTER_TOOL,
         "{\"version\":1,\"event\":\"after_tool\",\"session\":\"s1\",\"workspace\":\"/workspace\","
         "\"tool\":\"shell\",\"arguments\":{\"command\":\"ls \\\"a\\\"\"},"
         "\"result\":{\"status\":\"ok\",\"exit_status\":3,\"text\":\"a\\n\",\"is_cut\":false}}\n"},
        {HOOK_STOP,
         "{\"version\":1,\"event\":\"stop\",\"session\":\"s1\",\"workspace\":\"/workspace\","
         "\"reason\":\"done\",\"text\":\"all done\"}\n"},
    };
    tool_said.has_exit_status = true;
    tool_said.exit_status = 3;
    assert_true(is_ok(buffer_append_text(&tool_said.text, "a\n", NULL)));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(hook_report_deinit) struct hook_report report;
        CLEANUP(buffer_deinit) struct buffer seen;
        char path[300];
        run_script(rows[i].event, "cat >seen; echo \"$HEARTH_HOOK $# $2\" >>seen", 20000, &report);
        assert_false(report.is_refused);
        assert_int_equal(report.note_count, 0);
        assert_int_equal(report.text.length, 0);
        buffer_init(&seen, 65536);
        (void)snprintf(path, sizeof path, "%s/seen", workspace);
        assert_true(is_ok(file_read(path, &seen, NULL)));
        assert_int_equal(strncmp(buffer_text(&seen), rows[i].want, strlen(rows[i].want)), 0);
        char rest[64];
        (void)snprintf(rest, sizeof rest, "%s 2 two words\n", hook_event_name(rows[i].event));
        assert_string_equal(buffer_text(&seen) + strlen(rows[i].want), rest);
    }
}

/* One row for each way in which a hook can end. */
static void outcomes_mean_what_is_said(void **state) {
    (void)state;
    static const struct {
        const char *script;
        bool refuses_before, refuses_other; /* is_refused before a tool; after it and at the end */
        const char *note;                   /* null: none */
        const char *reason;                 /* of the refusal before a tool */
    } rows[] = {
        {"exit 0", false, false, NULL, ""},
        {"echo some words; exit 0", false, false, NULL, ""},
        {"echo no >&2; exit 2", true, true, NULL, "hook check: no"},
        {"printf 'a\\033[2K\\nb\\n\\n' >&2; exit 2", true, true, NULL, "hook check: a\\x1b[2K\nb"},
        {"exit 2", true, true, NULL, "hook check: it refuses, without a reason"},
        {"echo hm >&2; exit 1", false, false, "exit status 1: hm", ""},
        {"printf 'a\\nb\\n' >&2; exit 3", false, false, "exit status 3: a b", ""},
        {"exit 127", true, false, "exit status 127", "hook check: it could not do its work"},
        {"kill -9 $$", true, false, "signalled", "hook check: it could not do its work"},
        {"kill -SEGV $$", true, false, "signalled", "hook check: it could not do its work"},
        {"sleep 60", true, false, "stopped after 300 ms", "hook check: it could not do its work"},
        {"trap '' TERM; sleep 60", true, false, "stopped after 300 ms", "could not do"},
        {"sleep 60 & exec sleep 60", true, false, "stopped after 300 ms", "could not do"},
        {"cat /dev/zero", true, false, "too much", "could not do"},
        {"cat /dev/zero >&2", true, false, "too much", "could not do"},
        {"exec 0<&-; exit 0", false, false, NULL, ""},
        {"touch .hearth/x 2>/dev/null && exit 0; exit 2", true, true, NULL, "hook check"},
        {"cat .hearth/check >/dev/null", false, false, NULL, ""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        for (int event = HOOK_BEFORE_TOOL; event <= HOOK_STOP; event++) {
            CLEANUP(hook_report_deinit) struct hook_report report;
            bool is_before = event == HOOK_BEFORE_TOOL;
            int64_t started = now_ms();
            bool hangs = strstr(rows[i].script, "sleep") != NULL;
            run_script((enum hook_event)event, rows[i].script, hangs ? 300 : 20000, &report);
            assert_true(now_ms() - started < 20000);
            if (report.is_refused != (is_before ? rows[i].refuses_before : rows[i].refuses_other)) {
                fail_msg(
                    "row %zu, %s: refused %d",
                    i,
                    hook_event_name((enum hook_event)event),
                    report.is_refused
                );
            }
            if (is_before && strstr(buffer_text(&report.reason), rows[i].reason) == NULL) {
                fail_msg("row %zu: '%s'", i, buffer_text(&report.reason));
            }
            if (rows[i].note != NULL) {
                expect_note(&report, rows[i].note);
            } else {
                assert_int_equal(report.note_count, 0);
            }
        }
    }
}

static void what_hooks_after_a_tool_say_is_kept_and_bounded(void **state) {
    (void)state;
    CLEANUP(hook_report_deinit) struct hook_report report;
    run_script(HOOK_AFTER_TOOL, "printf 'three\\nlines\\n\\033[1m\\n\\n'", 20000, &report);
    assert_string_equal(buffer_text(&report.text), "[hook check]\nthree\nlines\n\\x1b[1m\n");
    hook_report_deinit(&report);
    run_script(HOOK_AFTER_TOOL, "head -c 100000 /dev/zero | tr '\\000' x", 20000, &report);
    assert_true(report.text.length > HOOK_TEXT_BYTES_MAX);
    assert_true(report.text.length < HOOK_TEXT_BYTES_MAX + 64);
    assert_true(view_ends_with(buffer_view(&report.text), view_of_text(" [cut]\n")));
}

static void executables_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *make; /* in the workspace; %s is the user's directory */
        bool is_users;
        const char *note;
    } rows[] = {
        {"true", false, "does not exist"},
        {"mkdir .hearth/check", false, "no executable"},
        {"mkfifo .hearth/check; chmod 755 .hearth/check", false, "no executable"},
        {"echo >.hearth/check", false, "no executable"},
        {"ln -s /bin/true .hearth/check", false, "no executable"},
        {"rmdir .hearth; mkdir real; ln -s real .hearth; cp /bin/true real/check",
         false,
         "symlink"},
        {"printf '#!/no/such/interpreter\\n' >.hearth/check; chmod 755 .hearth/check", false, ""},
        {"printf '\\177ELF garbage' >.hearth/check; chmod 755 .hearth/check", false, ""},
        {"true", true, "No such file"},
        {"mkdir \"$U/hooks/check\"", true, "no executable"},
        {"echo >\"$U/hooks/check\"", true, "no executable"},
        {"cp /bin/true \"$U/hooks/check\"; chmod 777 \"$U/hooks/check\"",
         true,
         "others than the user"},
        {"cp /bin/true \"$U/other\"; ln -s ../other \"$U/hooks/check\"", true, "leads out of"},
        {"ln -s check \"$U/hooks/check\"", true, "Too many levels"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(hook_report_deinit) struct hook_report report;
        char text[1024];
        char command[360];
        (void)snprintf(
            text,
            sizeof text,
            "U='%s'; cd '%s' && rm -rf .hearth real \"$U\" && mkdir -p .hearth \"$U/hooks\" && %s",
            user,
            workspace,
            rows[i].make
        );
        assert_int_equal(system(text), 0);
        (void)snprintf(
            command,
            sizeof command,
            "%s/%s/check",
            rows[i].is_users ? user : workspace,
            rows[i].is_users ? "hooks" : ".hearth"
        );
        run_hook(HOOK_BEFORE_TOOL, command, 20000, -1, &report);
        if (!report.is_refused) {
            fail_msg("row %zu: not refused", i);
        }
        expect_note(&report, rows[i].note);
        hook_report_deinit(&report);
        run_hook(HOOK_STOP, command, 20000, -1, &report);
        assert_false(report.is_refused);
        expect_note(&report, rows[i].note);
    }
}

static void hooks_of_the_user_and_the_system_run(void **state) {
    (void)state;
    CLEANUP(hook_report_deinit) struct hook_report report;
    char directory[360];
    char command[400];
    (void)snprintf(directory, sizeof directory, "%s/hooks", user);
    (void)snprintf(command, sizeof command, "%s/real", directory);
    make_hook(directory, "helper", "echo helped");
    make_hook(
        directory,
        "real",
        "here=$(dirname \"$0\"); touch \"$here/x\" 2>/dev/null && exit 1; \"$here/helper\""
    );
    run_hook(HOOK_AFTER_TOOL, command, 20000, -1, &report);
    assert_string_equal(buffer_text(&report.text), "[hook real]\nhelped\n");
    assert_int_equal(report.note_count, 0);
    hook_report_deinit(&report);
    run_hook(HOOK_AFTER_TOOL, "/usr/bin/printf", 20000, -1, &report);
    assert_string_equal(buffer_text(&report.text), "[hook printf]\none\n");
    hook_report_deinit(&report);
    make_hook(user, "config.json", "exit 0"); /* what lies beside hooks/ is not shown */
    make_hook(
        directory,
        "real",
        "cat \"$(dirname \"$0\")/../config.json\" && exit 0; echo gone >&2; exit 2"
    );
    run_hook(HOOK_BEFORE_TOOL, command, 20000, -1, &report);
    assert_true(report.is_refused);
    assert_non_null(strstr(buffer_text(&report.reason), "gone"));
}

static void hooks_have_no_network_and_cancel_ends_them(void **state) {
    (void)state;
    CLEANUP(hook_report_deinit) struct hook_report report;
    char directory[300];
    char command[360];
    run_script(
        HOOK_BEFORE_TOOL, "grep -q '00000000' /proc/net/route && exit 2; exit 0", 20000, &report
    );
    assert_false(report.is_refused);
    hook_report_deinit(&report);
    (void)snprintf(directory, sizeof directory, "%s/.hearth", workspace);
    (void)snprintf(command, sizeof command, "%s/check", directory);
    make_hook(directory, "check", "exec sleep 60");
    CLEANUP(fd_cleanup) int cancel = eventfd(1, EFD_CLOEXEC);
    assert_true(cancel >= 0);
    run_hook(HOOK_BEFORE_TOOL, command, 60000, cancel, &report);
    assert_true(report.is_refused);
    assert_true(report.is_cancelled);
    hook_report_deinit(&report);
    run_hook(HOOK_STOP, command, 60000, cancel, &report);
    assert_false(report.is_refused);
    assert_true(report.is_cancelled);
}

static void the_first_refusal_before_a_tool_ends_the_rest(void **state) {
    (void)state;
    char directory[300];
    char paths[3][360];
    static const char *const scripts[] = {
        "echo a; exit 0", "echo stop >&2; exit 2", "touch ran; echo c; echo too >&2; exit 2"};
    static const char *const tools[] = {"*", "shell", "read"};
    struct config_hook items[3] = {0};
    (void)snprintf(directory, sizeof directory, "%s/.hearth", workspace);
    for (size_t i = 0; i < 3; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "h%zu", i);
        make_hook(directory, name, scripts[i]);
        (void)snprintf(paths[i], sizeof paths[i], "%s/%s", directory, name);
        items[i] = (struct config_hook){.command = paths[i], .tool = tools[i], .timeout_ms = 20000};
    }
    const struct config_hooks list = {items, 3};
    const struct config config = {.hooks_before_tool = list, .hooks_after_tool = list};
    struct sandbox_policy policy = small_policy();
    struct hooks hooks = {.config = &config, .sandbox = shared, .policy = &policy};
    struct hook_subject subject = {
        .tool = view_of_text("shell"), .arguments = view_of_text("not JSON")};
    CLEANUP(hook_report_deinit) struct hook_report report;
    assert_true(is_ok(hooks_run(&hooks, HOOK_BEFORE_TOOL, &subject, -1, &report, NULL)));
    assert_string_equal(buffer_text(&report.reason), "hook h1: stop");
    hook_report_deinit(&report);
    assert_true(is_ok(hooks_run(&hooks, HOOK_AFTER_TOOL, &subject, -1, &report, NULL)));
    assert_string_equal(buffer_text(&report.text), "[hook h0]\na\n");
    assert_string_equal(buffer_text(&report.reason), "hook h1: stop");
    hook_report_deinit(&report);
    subject.tool = view_of_text("read");
    assert_true(is_ok(hooks_run(&hooks, HOOK_BEFORE_TOOL, &subject, -1, &report, NULL)));
    assert_string_equal(buffer_text(&report.reason), "hook h2: too");
    hook_report_deinit(&report);
    assert_false(hooks_apply(&hooks, HOOK_STOP, view_of(NULL, 0)));
    items[0].tool = "x*";
    assert_false(hooks_apply(&hooks, HOOK_BEFORE_TOOL, view_of_text("write")));
    hooks.sandbox = NULL; /* nothing can be confined: nothing is allowed */
    assert_true(is_ok(hooks_run(&hooks, HOOK_BEFORE_TOOL, &subject, -1, &report, NULL)));
    assert_true(report.is_refused);
    expect_note(&report, "cannot be confined");
}

static void large_events_are_cut_and_need_not_be_read(void **state) {
    (void)state;
    CLEANUP(hook_report_deinit) struct hook_report report;
    buffer_clear(&tool_said.text);
    for (size_t i = 0; i < HOOK_RESULT_BYTES_MAX / 2; i++) {
        assert_true(is_ok(buffer_append_text(&tool_said.text, "\xc3\xa4 ", NULL)));
    }
    run_script(HOOK_AFTER_TOOL, "wc -c", 20000, &report);
    struct view counted = view_slice(buffer_view(&report.text), strlen("[hook check]\n"), SIZE_MAX);
    uint64_t bytes = 0;
    assert_true(parse_u64(view_slice(counted, 0, counted.length - 1), &bytes));
    assert_true(bytes > HOOK_RESULT_BYTES_MAX && bytes < HOOK_RESULT_BYTES_MAX + 1000);
    hook_report_deinit(&report);
    run_script(HOOK_AFTER_TOOL, "grep -q 'is_cut.:true' && echo cut", 20000, &report);
    assert_string_equal(buffer_text(&report.text), "[hook check]\ncut\n");
    hook_report_deinit(&report);
    run_script(HOOK_AFTER_TOOL, "sleep 0.2; echo unread", 20000, &report);
    assert_string_equal(buffer_text(&report.text), "[hook check]\nunread\n");
    assert_int_equal(report.note_count, 0);
}

/* The configuration was read in another directory, of which the workspace is a copy. */
static void copy_of_a_workspace_runs_its_own_hooks(void **state) {
    (void)state;
    static const char origin[] = "/srv/origin";
    char directory[300];
    (void)snprintf(directory, sizeof directory, "%s/.hearth", workspace);
    make_hook(directory, "check", "echo of the copy >&2; exit 2");
    const struct config_hook hook = {
        .command = "/srv/origin/.hearth/check", .tool = "*", .timeout_ms = 20000};
    const struct config_hooks list = {&hook, 1};
    const struct config config = {.hooks_before_tool = list};
    const struct sandbox_policy policy = small_policy();
    struct hooks hooks = {
        .config = &config, .sandbox = shared, .policy = &policy, .origin = origin};
    const struct hook_subject subject = {
        .tool = view_of_text("shell"), .arguments = view_of_text("{}")};
    CLEANUP(hook_report_deinit) struct hook_report report;
    assert_true(is_ok(hooks_run(&hooks, HOOK_BEFORE_TOOL, &subject, -1, &report, NULL)));
    assert_string_equal(buffer_text(&report.reason), "hook check: of the copy");
    hook_report_deinit(&report);
    hooks.origin = NULL;
    assert_true(is_ok(hooks_run(&hooks, HOOK_BEFORE_TOOL, &subject, -1, &report, NULL)));
    assert_true(report.is_refused);
    assert_int_equal(report.note_count, 1); // it is not there
}

int main(int argc, char **argv) {
#define HOOK_TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)
    const struct CMUnitTest tests[] = {
        HOOK_TEST(hooks_are_told_what_happens),
        HOOK_TEST(outcomes_mean_what_is_said),
        HOOK_TEST(what_hooks_after_a_tool_say_is_kept_and_bounded),
        HOOK_TEST(executables_that_are_none_are_refused),
        HOOK_TEST(hooks_of_the_user_and_the_system_run),
        HOOK_TEST(hooks_have_no_network_and_cancel_ends_them),
        HOOK_TEST(the_first_refusal_before_a_tool_ends_the_rest),
        HOOK_TEST(large_events_are_cut_and_need_not_be_read),
        HOOK_TEST(copy_of_a_workspace_runs_its_own_hooks),
    };
    tool_result_init(&tool_said);
    int status = open_shared("test_hooks", argc, argv);
    if (status != 0) {
        return status;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tool_result_deinit(&tool_said);
    return close_shared(failed);
}
