/* Commands with a time limit of their own and background jobs, in the real sandbox: output, input,
 * ends of every kind, limits, and that nothing outlives them. Skipped where the machine cannot
 * confine a command. */
#include "tools_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tools/tool_agents.h"
#include "tools/tool_mcp.h"

static struct sandbox *sandbox; /* opened once: the probe runs a command */

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    struct tool_context_options options = {.set = tool_set_all()};
    bench_open(bench, sandbox, &options);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static void nap(long ms) {
    struct timespec delay = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&delay, NULL);
}

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

/* How many processes of this machine have `tag` on their command line, as sandbox_support.c does. */
static unsigned count_tagged(const char *tag) {
    unsigned count = 0;
    DIR *processes = opendir("/proc");
    assert_non_null(processes);
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        char path[300];
        char text[4096];
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
        ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
        fd_cleanup(&fd);
        count += got > 0 && memmem(text, (size_t)got, tag, strlen(tag)) != NULL ? 1 : 0;
    }
    assert_int_equal(closedir(processes), 0);
    return count;
}

static void expect_gone(const char *tag) {
    int64_t until = now_ms() + 10000;
    while (count_tagged(tag) > 0) {
        assert_true(now_ms() < until);
        nap(20);
    }
}

/* Reads on until the job has ended; returns all of its output. */
static void read_to_end(struct bench *bench, int job, struct buffer *all) {
    char arguments[80];
    (void)snprintf(arguments, sizeof arguments, "{\"job\":%d,\"wait_ms\":20000}", job);
    bench_call(bench, "job_output", arguments);
    if (all != NULL) {
        MUST(buffer_append(all, buffer_view(&bench->result.output), &must_error));
    }
    assert_null(strstr(buffer_text(&bench->result.text), "running"));
}

static void job_runs_beside_other_commands(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench,
        "shell",
        "{\"command\":\"echo begun; while [ ! -e go ]; do sleep 0.02; done; echo $(cat go) seen\","
        "\"background\":true}",
        TOOL_OK,
        "job 1 started"
    );
    bench_expect_part(bench, "shell", "{\"command\":\"echo beside\"}", TOOL_OK, "beside\n[exit 0]");
    bench_expect_part(bench, "job_list", "{}", TOOL_OK, "job 1: running for ");
    bench_call(bench, "write", "{\"path\":\"go\",\"content\":\"signal\"}");
    bench_expect(
        bench,
        "job_output",
        "{\"job\":1,\"wait_ms\":20000}",
        TOOL_OK,
        "begun\nsignal seen\n[job 1: ended, exit 0]"
    );
    assert_true(bench->result.has_exit_status && bench->result.exit_status == 0);
    // Read output does not come again, and the end is not told twice.
    bench_expect(bench, "job_output", "{\"job\":1}", TOOL_OK, "[job 1: ended, exit 0]");
    bench_expect(bench, "shell", "{\"command\":\"true\"}", TOOL_OK, "[exit 0]");
}

static void end_of_a_job_is_told_with_the_next_result(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "shell", "{\"command\":\"echo out; exit 3\",\"background\":true}");
    const char *text = "";
    for (int i = 0; i < 200 && strstr(text, "job 1") == NULL; i++) {
        nap(20);
        bench_call(bench, "shell", "{\"command\":\"true\"}");
        text = buffer_text(&bench->result.text);
    }
    assert_string_equal(text, "[exit 0]\n[job 1 ended, exit 3; 4 bytes of output not yet read]");
    bench_expect(bench, "shell", "{\"command\":\"true\"}", TOOL_OK, "[exit 0]");
    bench_expect(bench, "job_output", "{\"job\":1}", TOOL_OK, "out\n[job 1: ended, exit 3]");
}

static void input_reaches_a_job_and_its_answer_comes_back(void **state) {
    struct bench *bench = *state;
    bench_call(
        bench,
        "shell",
        "{\"command\":\"while read l; do echo \\\"<$l>\\\"; done; echo eof\",\"background\":true}"
    );
    bench_expect_part(
        bench,
        "job_input",
        "{\"job\":1,\"text\":\"one\\ntwo\\n\",\"wait_ms\":20000}",
        TOOL_OK,
        "<one>\n<two>\n[job 1: running for "
    );
    bench_expect_part(
        bench,
        "job_input",
        "{\"job\":1,\"text\":\"three\\n\",\"end\":true,\"wait_ms\":20000}",
        TOOL_OK,
        "<three>\neof\n[job 1: "
    );
    read_to_end(bench, 1, NULL);
    bench_expect(
        bench,
        "job_input",
        "{\"job\":1,\"text\":\"late\"}",
        TOOL_ERROR,
        "error: job 1 takes no input (ended, exit 0)"
    );
}

static void input_that_is_never_read_is_bounded(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "shell", "{\"command\":\"sleep 1000\",\"background\":true}");
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&arguments, 4 << 20);
    MUST(buffer_append_text(&arguments, "{\"job\":1,\"wait_ms\":1,\"text\":\"", &must_error));
    for (size_t i = 0; i < (size_t)1 << 20; i++) {
        MUST(buffer_append_byte(&arguments, 'x', &must_error));
    }
    MUST(buffer_append_text(&arguments, "\"}", &must_error));
    int accepted = 0;
    do {
        bench_call(bench, "job_input", buffer_text(&arguments));
        accepted += bench->result.status == TOOL_OK ? 1 : 0;
    } while (bench->result.status == TOOL_OK && accepted < 20);
    assert_in_range(accepted, 7, 9);
    assert_string_equal(buffer_text(&bench->result.text), "error: job 1 does not read its input");
}

static void stop_ends_a_job_that_ignores_signals_with_all_its_processes(void **state) {
    struct bench *bench = *state;
    bench_call(
        bench,
        "shell",
        "{\"command\":\"trap '' TERM; setsid sleep 4711.25 & (setsid sh -c 'trap \\\"\\\" TERM "
        "HUP; "
        "exec sleep 4711.25' &); echo up; sleep 4711.25; sleep 4711.25\",\"background\":true}"
    );
    bench_call(bench, "job_input", "{\"job\":1,\"text\":\"\",\"wait_ms\":10000}");
    assert_true(count_tagged("4711.25") >= 3);
    int64_t begin = now_ms();
    bench_expect_part(bench, "job_stop", "{\"job\":1}", TOOL_OK, "[job 1: stopped]");
    assert_true(now_ms() - begin < 8000);
    expect_gone("4711.25");
    bench_expect(bench, "job_stop", "{\"job\":1}", TOOL_OK, "[job 1: stopped]");
}

static void daemon_that_holds_the_output_does_not_hold_the_job(void **state) {
    struct bench *bench = *state;
    bench_call(
        bench, "shell", "{\"command\":\"setsid sleep 4712.25 & echo done\",\"background\":true}"
    );
    bench_expect(
        bench,
        "job_output",
        "{\"job\":1,\"wait_ms\":20000}",
        TOOL_OK,
        "done\n[job 1: ended, exit 0]"
    );
    expect_gone("4712.25");
    bench_expect(
        bench,
        "shell",
        "{\"command\":\"setsid sleep 4712.25 & echo done\"}",
        TOOL_OK,
        "done\n[exit 0]"
    );
    expect_gone("4712.25");
}

static void own_time_limit_ends_command_and_job(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench,
        "shell",
        "{\"command\":\"echo begun; sleep 60\",\"timeout\":400}",
        TOOL_TIMEOUT,
        "begun\nerror: stopped after 400 ms\n[exit 124]"
    );
    bench_call(
        bench,
        "shell",
        "{\"command\":\"trap '' TERM; echo begun; sleep 60; sleep "
        "60\",\"timeout\":400,\"background\":true}"
    );
    bench_expect(
        bench,
        "job_output",
        "{\"job\":1,\"wait_ms\":20000}",
        TOOL_OK,
        "begun\n[job 1: stopped after 400 ms]"
    );
    // More than the context allows does not lengthen a command.
    tool_context_limit_time(bench->context, 500);
    bench_expect_part(
        bench, "shell", "{\"command\":\"sleep 60\",\"timeout\":50000}", TOOL_TIMEOUT, "after 500 ms"
    );
    tool_context_limit_time(bench->context, 0);
    bench_expect_part(
        bench, "shell", "{\"command\":\"true\",\"timeout\":0}", TOOL_REFUSED, "timeout"
    );
}

static void flood_of_a_job_is_bounded_and_told(void **state) {
    struct bench *bench = *state;
    bench_call(
        bench,
        "shell",
        "{\"command\":\"head -c 5000000 /dev/zero | tr '\\\\0' x; echo; echo last\","
        "\"background\":true}"
    );
    CLEANUP(buffer_deinit) struct buffer all = {NULL, 0, 0, 0};
    buffer_init(&all, BUFFER_CEILING_DEFAULT);
    read_to_end(bench, 1, &all);
    assert_int_equal(all.length, 256 << 10);
    assert_int_equal(bench->result.output_bytes, 5000006);
    const char *text = buffer_text(&bench->result.text);
    assert_non_null(strstr(text, "... [4737862 bytes lost] ..."));
    assert_non_null(strstr(text, "bytes omitted] ..."));
    assert_non_null(strstr(text, "last\n[job 1: ended, exit 0]\n[all of it: read of \"output:2\"]")
    );
    assert_true(bench->result.text.length < 4000);
}

static void endless_flood_does_not_grow_memory(void **state) {
    struct bench *bench = *state;
    bench->policy.cpu_percent = 50;
    bench_call(
        bench, "shell", "{\"command\":\"while :; do seq 1 2000; done\",\"background\":true}"
    );
    bench_call(bench, "job_output", "{\"job\":1,\"wait_ms\":700}");
    assert_true(bench->result.output.length <= 256 << 10);
    bench_expect_part(bench, "job_stop", "{\"job\":1}", TOOL_OK, "[job 1: stopped]");
}

static void number_of_jobs_is_bounded(void **state) {
    struct bench *bench = *state;
    for (int i = 0; i < 8; i++) {
        bench_call(bench, "shell", "{\"command\":\"sleep 1000\",\"background\":true}");
        assert_int_equal(bench->result.status, TOOL_OK);
    }
    bench_expect(
        bench,
        "shell",
        "{\"command\":\"true\",\"background\":true}",
        TOOL_REFUSED,
        "error: 8 jobs are running; stop one"
    );
    bench_call(bench, "job_stop", "{\"job\":3}");
    bench_expect_part(
        bench, "shell", "{\"command\":\"true\",\"background\":true}", TOOL_OK, "job 9 started"
    );
    bench_expect_part(
        bench,
        "job_output",
        "{\"job\":99}",
        TOOL_ERROR,
        "error: there is no such job; the last one is 9"
    );
}

static void jobs_that_ended_are_forgotten_in_order(void **state) {
    struct bench *bench = *state;
    for (int i = 1; i <= 34; i++) {
        bench_call(bench, "shell", "{\"command\":\"true\",\"background\":true}");
        read_to_end(bench, i, NULL);
    }
    bench_expect_part(bench, "job_output", "{\"job\":2}", TOOL_ERROR, "no such job");
    bench_expect(bench, "job_output", "{\"job\":3}", TOOL_OK, "[job 3: ended, exit 0]");
}

static void *cancel_soon(void *context) {
    nap(300);
    tool_cancel(context);
    return NULL;
}

static void cancel_ends_waiting(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "shell", "{\"command\":\"sleep 1000\",\"background\":true}");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, bench->context), 0);
    int64_t begin = now_ms();
    bench_call(bench, "job_output", "{\"job\":1,\"wait_ms\":60000}");
    assert_true(now_ms() - begin < 20000);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void end_of_the_context_ends_jobs_and_leaves_nothing_open(void **state) {
    struct bench *bench = *state;
    size_t before = open_descriptor_count();
    struct tool_context_options options = {.set = tool_set_all()};
    for (int i = 0; i < 2; i++) {
        struct bench other;
        bench_open(&other, sandbox, &options);
        for (int j = 0; j < 3; j++) {
            bench_call(
                &other,
                "shell",
                "{\"command\":\"trap '' TERM; setsid sleep 4713.25 & sleep 4713.25; sleep "
                "4713.25\","
                "\"background\":true}"
            );
        }
        bench_call(&other, "job_input", "{\"job\":3,\"text\":\"\",\"wait_ms\":300}");
        int64_t begin = now_ms();
        bench_close(&other);
        assert_true(now_ms() - begin < 6000);
        expect_gone("4713.25");
    }
    assert_int_equal(open_descriptor_count(), before);
    (void)bench;
}

static void killed_host_leaves_no_job(void **state) {
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct bench bench;
        struct tool_context_options options = {.set = tool_set_all()};
        bench_open(&bench, sandbox, &options);
        bench_call(
            &bench,
            "shell",
            "{\"command\":\"trap '' TERM; setsid sleep 4714.25 & echo up; sleep 4714.25\","
            "\"background\":true}"
        );
        bench_call(&bench, "job_input", "{\"job\":1,\"text\":\"\",\"wait_ms\":10000}");
        ssize_t written = write(ready[1], bench.workspace, sizeof bench.workspace);
        (void)written;
        (void)kill(getpid(), SIGKILL);
    }
    char path[PATH_BYTES] = "";
    assert_int_equal(close(ready[1]), 0);
    assert_int_equal(read(ready[0], path, sizeof path), sizeof path);
    assert_int_equal(close(ready[0]), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    expect_gone("4714.25");
    (void)rmdir(path);
}

static void stopping_processes_frees_the_workspace(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "shell", "{\"command\":\"sleep 4715.25\",\"background\":true}");
    tool_context_stop_processes(bench->context);
    expect_gone("4715.25");
    bench_expect(bench, "job_output", "{\"job\":1}", TOOL_OK, "[job 1: stopped]");
    struct sandbox *other = NULL; // as another host, which needs the whole workspace
    MUST(sandbox_open(NULL, &other, &must_error));
    MUST(sandbox_check_workspace(other, &bench->policy, &must_error));
    sandbox_close(other);
}

static void other_dialects_name_jobs_their_own_way(void **state) {
    (void)state;
    const struct tool_agents nobody = {0};
    struct tool_context_options options = {
        .set = tool_set_all(), .dialect = TOOL_DIALECT_CLAUDE, .agents = &nobody};
    struct bench bench;
    bench_open(&bench, sandbox, &options);
    bench_expect_part(
        &bench, "TaskOutput", "{\"task_id\":\"agent-1\"}", TOOL_ERROR, "; AgentWait is for agents"
    );
    bench_expect_part(&bench, "TaskStop", "{\"task_id\":\"2\"}", TOOL_ERROR, "there are no jobs");
    bench_expect(
        &bench,
        "Bash",
        "{\"command\":\"echo hi\",\"description\":\"greet\",\"run_in_background\":true,"
        "\"timeout\":5000}",
        TOOL_OK,
        "job 1 started"
    );
    bench_expect(
        &bench,
        "TaskOutput",
        "{\"task_id\":\"1\"}", // waits by itself
        TOOL_OK,
        "hi\n[job 1: ended, exit 0]"
    );
    bench_expect(&bench, "TaskStop", "{\"task_id\":\"1\"}", TOOL_OK, "[job 1: ended, exit 0]");
    bench_close(&bench);
}

static void codex_commands_that_take_long_are_sessions(void **state) {
    (void)state;
    static const struct {
        const char *name, *arguments;
        enum tool_status status;
        const char *text;
    } calls[] = {
        {"exec_command",
         "{\"cmd\":\"echo hi; exit 3\",\"max_output_tokens\":10}",
         TOOL_OK,
         "hi\n[exit 3]"},
        {"exec_command",
         "{\"cmd\":\"echo name?; read x; echo got $x\",\"yield_time_ms\":500}",
         TOOL_OK,
         "name?\n[session 2: running for"},
        {"write_stdin",
         "{\"session_id\":2,\"chars\":\"me\\n\",\"yield_time_ms\":20000}",
         TOOL_OK,
         "got me\n[session 2: ended, exit 0]"},
        {"write_stdin",
         "{\"session_id\":2,\"chars\":\"x\"}",
         TOOL_ERROR,
         "error: session 2 takes no input (ended, exit 0)"},
        {"write_stdin",
         "{\"session_id\":9,\"chars\":\"\"}",
         TOOL_ERROR,
         "error: there is no such session; the last one is 2"},
        {"exec_command",
         "{\"cmd\":\"cat; echo over\",\"yield_time_ms\":1}",
         TOOL_OK,
         "[session 3: running for"},
        {"write_stdin",
         "{\"session_id\":3,\"chars\":\"a\\u0004\",\"yield_time_ms\":20000}",
         TOOL_OK,
         "aover\n[session 3: ended, exit 0]"},
        {"exec_command",
         "{\"cmd\":\"sleep 1; echo late\",\"yield_time_ms\":1}",
         TOOL_OK,
         "[session 4: running for"},
        {"write_stdin",
         "{\"session_id\":4,\"yield_time_ms\":60000}",
         TOOL_OK,
         "late\n[session 4: ended, exit 0]"},
        {"exec_command",
         "{\"cmd\":\"sleep 1000\",\"yield_time_ms\":1}",
         TOOL_OK,
         "[session 5: running for"},
        {"write_stdin",
         "{\"session_id\":5,\"chars\":\"\\u0003\"}",
         TOOL_OK,
         "[session 5: stopped]"},
    };
    struct tool_context_options options = {.dialect = TOOL_DIALECT_CODEX};
    options.set = tool_set_default(TOOL_DIALECT_CODEX);
    struct bench bench;
    bench_open(&bench, sandbox, &options);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        bool is_part = strstr(calls[i].text, "running") != NULL; /* for how long, nobody knows */
        (is_part ? bench_expect_part : bench_expect
        )(&bench, calls[i].name, calls[i].arguments, calls[i].status, calls[i].text);
    }
    bench_close(&bench);
    options.set = TOOL_SET_TRAINED; /* without write_stdin there are no sessions */
    bench_open(&bench, sandbox, &options);
    bench_expect(
        &bench, "exec_command", "{\"cmd\":\"sleep 1\",\"yield_time_ms\":1}", TOOL_OK, "[exit 0]"
    );
    bench_close(&bench);
}

static void trained_form_knows_no_jobs(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, sandbox, NULL);
    bench_expect_part(
        &bench, "shell", "{\"command\":\"true\",\"background\":true}", TOOL_REFUSED, "background"
    );
    bench_expect_part(&bench, "job_list", "{}", TOOL_REFUSED, "unknown tool");
    bench_close(&bench);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    struct error error = {0};
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        printf("SKIPPED test_tools_jobs: %s\n", probe->refusal);
        sandbox_close(sandbox);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        BENCH_TEST(job_runs_beside_other_commands),
        BENCH_TEST(end_of_a_job_is_told_with_the_next_result),
        BENCH_TEST(input_reaches_a_job_and_its_answer_comes_back),
        BENCH_TEST(input_that_is_never_read_is_bounded),
        BENCH_TEST(stop_ends_a_job_that_ignores_signals_with_all_its_processes),
        BENCH_TEST(daemon_that_holds_the_output_does_not_hold_the_job),
        BENCH_TEST(own_time_limit_ends_command_and_job),
        BENCH_TEST(flood_of_a_job_is_bounded_and_told),
        BENCH_TEST(endless_flood_does_not_grow_memory),
        BENCH_TEST(number_of_jobs_is_bounded),
        BENCH_TEST(jobs_that_ended_are_forgotten_in_order),
        BENCH_TEST(cancel_ends_waiting),
        BENCH_TEST(end_of_the_context_ends_jobs_and_leaves_nothing_open),
        cmocka_unit_test(killed_host_leaves_no_job),
        BENCH_TEST(stopping_processes_frees_the_workspace),
        cmocka_unit_test(other_dialects_name_jobs_their_own_way),
        cmocka_unit_test(codex_commands_that_take_long_are_sessions),
        cmocka_unit_test(trained_form_knows_no_jobs),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sandbox_close(sandbox);
    return failures;
}
