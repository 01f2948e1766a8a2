/* The shell tool in the real sandbox: every text, cutting, time, cancel, live output, leaks. Skipped
 * where the machine cannot confine a command. */
#include "tools_support.h"

#include <pthread.h>
#include <semaphore.h>

static struct sandbox *sandbox; /* opened once: the probe runs a command */

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    bench_open(bench, sandbox, NULL);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static void run(struct bench *bench, const char *command) {
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&arguments, 1 << 20);
    struct json_writer writer;
    json_writer_init(&writer, &arguments, &must_error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "command");
    json_write_text(&writer, command);
    json_write_object_end(&writer);
    MUST(json_writer_finish(&writer));
    bench_call(bench, "shell", buffer_text(&arguments));
}

static void
expect(struct bench *bench, const char *command, enum tool_status status, const char *text) {
    run(bench, command);
    assert_string_equal(buffer_text(&bench->result.text), text);
    assert_string_equal(tool_status_name(bench->result.status), tool_status_name(status));
}

static void text_is_output_and_exit_line(void **state) {
    struct bench *bench = *state;
    expect(bench, "echo hello", TOOL_OK, "hello\n[exit 0]");
    assert_true(bench->result.has_exit_status && bench->result.exit_status == 0);
    assert_string_equal(buffer_text(&bench->result.output), "hello\n");
    assert_int_equal(bench->result.output_bytes, 6);
    expect(bench, "true", TOOL_OK, "[exit 0]");
    expect(bench, "exit 3", TOOL_OK, "[exit 3]");
    assert_int_equal(bench->result.exit_status, 3);
    expect(
        bench, "echo one; echo two >&2; echo three; exit 1", TOOL_OK, "one\ntwo\nthree\n[exit 1]"
    );
    expect(bench, "printf 'no newline'", TOOL_OK, "no newline\n[exit 0]");
    expect(bench, "printf 'a\\n\\n\\n'", TOOL_OK, "a\n[exit 0]");
    expect(bench, "printf '\\n\\n'", TOOL_OK, "[exit 0]");
    expect(bench, "kill -SEGV $$", TOOL_OK, "[exit 139]");
    assert_int_equal(bench->result.exit_status, 139);
    expect(
        bench,
        "printf 'h\\303\\251\\377\\033[31m\\n'",
        TOOL_OK,
        "h\xC3\xA9\xEF\xBF\xBD\\x1b[31m\n[exit 0]"
    );
    expect(bench, "pwd", TOOL_OK, "/workspace\n[exit 0]");
    run(bench, "no-such-command");
    assert_int_equal(bench->result.exit_status, 127);
}

static void commands_and_file_tools_see_the_same_workspace(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "write", "{\"path\":\"t.py\",\"content\":\"import t2\\nprint(t2.x)\\n\"}");
    bench_call(bench, "write", "{\"path\":\"t2.py\",\"content\":\"x = 41\\n\"}");
    expect(bench, "python3 t.py", TOOL_OK, "41\n[exit 0]");
    bench_call(bench, "edit", "{\"path\":\"t2.py\",\"old\":\"41\",\"new\":\"42\"}");
    expect(bench, "python3 t.py", TOOL_OK, "42\n[exit 0]");
    expect(bench, "ls; echo made > made.txt", TOOL_OK, "t.py\nt2.py\n[exit 0]"); // no __pycache__
    bench_expect(bench, "read", "{\"path\":\"made.txt\"}", TOOL_OK, "made");
}

static void long_output_keeps_1200_and_1000_characters(void **state) {
    struct bench *bench = *state;
    // 2400 characters stay whole.
    run(bench, "i=0; while [ $i -lt 240 ]; do printf 0123456789; i=$((i+1)); done");
    assert_false(bench->result.text_is_truncated);
    assert_int_equal(bench->result.text.length, 2400 + strlen("\n[exit 0]"));
    // One more does not.
    run(bench, "i=0; while [ $i -lt 240 ]; do printf 0123456789; i=$((i+1)); done; printf x");
    const struct tool_result *called = &bench->result;
    assert_true(called->text_is_truncated);
    assert_int_equal(called->omitted_bytes, 201);
    assert_int_equal(called->omitted_at, 1200);
    assert_int_equal(called->output.length, 2401);
    assert_int_equal(called->output_bytes, 2401);
    struct view text = buffer_view(&called->text);
    struct view output = buffer_view(&called->output);
    assert_true(view_starts_with(text, view_slice(output, 0, 1200)));
    struct view marker = view_of_text("\n... [201 bytes omitted] ...\n");
    assert_int_equal(view_find(text, marker, 0), 1200);
    struct view tail = view_slice(text, 1200 + marker.length, 1000);
    assert_true(view_equals(tail, view_slice(output, 1401, 1000)));
    assert_true(view_ends_with(text, view_of_text("x\n[exit 0]")));
    // Characters count, not bytes.
    run(bench, "i=0; while [ $i -lt 2400 ]; do printf '\\303\\251'; i=$((i+1)); done");
    assert_false(bench->result.text_is_truncated);
    run(bench, "i=0; while [ $i -lt 2401 ]; do printf '\\303\\251'; i=$((i+1)); done");
    assert_int_equal(bench->result.omitted_bytes, 402);
}

static void output_above_the_sandbox_limit_says_how_much_is_gone(void **state) {
    struct bench *bench = *state;
    bench->policy.output_kib = 8;
    run(bench, "i=0; while [ $i -lt 20000 ]; do echo 123456789; i=$((i+1)); done; echo end");
    const struct tool_result *called = &bench->result;
    assert_int_equal(called->output_bytes, 200004);
    assert_true(called->output.length < 10000);
    assert_true(called->output_gap_at > 0 && called->output_gap_at < called->output.length);
    assert_true(called->text_is_truncated);
    assert_int_equal(called->omitted_at, 1200);
    assert_int_equal(called->omitted_bytes, 200004 - 2200);
    assert_non_null(strstr(buffer_text(&called->text), "... [197804 bytes omitted] ..."));
    assert_true(view_ends_with(buffer_view(&called->text), view_of_text("end\n[exit 0]")));
}

static void small_limit_of_the_sandbox_still_tells_the_gap(void **state) {
    struct bench *bench = *state;
    bench->policy.output_kib = 1;
    run(bench, "i=0; while [ $i -lt 500 ]; do echo 123456789; i=$((i+1)); done");
    const struct tool_result *called = &bench->result;
    assert_int_equal(called->output_bytes, 5000);
    assert_true(called->text_is_truncated);
    assert_int_equal(called->omitted_bytes, 5000 - called->output.length);
}

static void changed_trusted_files_are_told_to_the_user(void **state) {
    struct bench *bench = *state;
    expect(bench, "echo x > notes", TOOL_OK, "[exit 0]");
    assert_string_equal(bench->result.notice, "");
    run(bench, "echo x > .envrc");
    if (bench->result.exit_status == 0) { // where the sandbox lets it be written it must be told
        assert_non_null(strstr(bench->result.notice, ".envrc"));
    }
}

static void time_limit_ends_the_command(void **state) {
    struct bench *bench = *state;
    tool_context_limit_time(bench->context, 10000); // enough to come to the word, on any machine
    expect(
        bench,
        "echo begun; sleep 600; echo never",
        TOOL_TIMEOUT,
        "begun\nerror: stopped after 10 s\n[exit 124]"
    );
    assert_int_equal(bench->result.exit_status, 124);
    assert_true(bench->result.duration_ms >= 10000 && bench->result.duration_ms < 30000);
    tool_context_limit_time(bench->context, 0);
    expect(bench, "echo on", TOOL_OK, "on\n[exit 0]");
}

/* The shortest counts: what the host allows a call, what the run has left, the policy of the sandbox. */
static void longer_limits_do_not_lengthen_a_command(void **state) {
    (void)state;
    static const struct {
        int64_t own_ms, left_ms, wall_ms;
    } limits[] = {
        {400, 600000, 0},
        {400, 600000, 500000},
        {400, 0, 500000},
        {500000, 400, 600000},
        {500000, 600000, 400},
    };
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        struct bench bench;
        const struct tool_context_options options = {.time_ms_max = limits[i].own_ms};
        bench_open(&bench, sandbox, &options);
        bench.policy.wall_ms = limits[i].wall_ms;
        tool_context_limit_time(bench.context, limits[i].left_ms);
        expect(&bench, "sleep 600", TOOL_TIMEOUT, "error: stopped after 400 ms\n[exit 124]");
        assert_true(bench.result.duration_ms >= 400 && bench.result.duration_ms < 20000);
        bench_close(&bench);
    }
}

/* Cancels as often as output has come. */
struct canceller {
    struct bench bench;
    sem_t outputs;
    unsigned count;
};

static void note_output(void *context, struct view bytes) {
    struct canceller *canceller = context;
    (void)bytes;
    (void)sem_post(&canceller->outputs);
}

static void *cancel_at_output(void *argument) {
    struct canceller *canceller = argument;
    for (unsigned i = 0; i < canceller->count; i++) {
        while (sem_wait(&canceller->outputs) != 0) {
        }
        tool_cancel(canceller->bench.context);
    }
    return NULL;
}

static void run_cancelled(struct canceller *canceller, const char *command) {
    struct tool_context_options options = {0};
    options.output = note_output;
    options.output_context = canceller;
    pthread_t thread;
    assert_int_equal(sem_init(&canceller->outputs, 0, 0), 0);
    bench_open(&canceller->bench, sandbox, &options);
    assert_int_equal(pthread_create(&thread, NULL, cancel_at_output, canceller), 0);
    run(&canceller->bench, command);
    for (unsigned i = 0; i < canceller->count; i++) { // where less has come: no hang
        (void)sem_post(&canceller->outputs);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(sem_destroy(&canceller->outputs), 0);
    assert_int_equal(canceller->bench.result.status, TOOL_CANCELLED);
}

static void cancel_from_another_thread_ends_the_command(void **state) {
    (void)state;
    struct canceller canceller = {.count = 1};
    run_cancelled(&canceller, "echo begun; sleep 600");
    struct bench *bench = &canceller.bench;
    assert_string_equal(buffer_text(&bench->result.text), "begun\nerror: cancelled\n[exit 130]");
    assert_true(bench->result.duration_ms < 30000);
    bench_expect(bench, "shell", "{\"command\":\"echo on\"}", TOOL_CANCELLED, "error: cancelled");
    bench_close(bench);
}

/* Asked to end it takes its time, though less than it has; once of some times it must not come to that, however late
 * the second cancel is on a loaded machine. */
static void second_cancel_does_not_wait_for_a_polite_end(void **state) {
    (void)state;
    bool was_polite = true;
    for (int i = 0; i < 5 && was_polite; i++) {
        struct canceller canceller = {.count = 2};
        run_cancelled(
            &canceller,
            "trap 'echo asked; sleep 1; echo polite; exit' TERM; echo begun; while :; do sleep "
            "0.1; "
            "done"
        );
        was_polite = strstr(buffer_text(&canceller.bench.result.text), "polite") != NULL;
        bench_close(&canceller.bench);
    }
    assert_false(was_polite);
}

static void collect(void *context, struct view bytes) {
    MUST(buffer_append(context, bytes, &must_error));
}

static void live_output_comes_in_order(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer seen = {NULL, 0, 0, 0};
    buffer_init(&seen, BUFFER_CEILING_DEFAULT);
    struct tool_context_options options = {0};
    options.output = collect;
    options.output_context = &seen;
    struct bench bench;
    bench_open(&bench, sandbox, &options);
    run(&bench, "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done");
    assert_true(view_equals(buffer_view(&seen), buffer_view(&bench.result.output)));
    assert_int_equal(seen.length, bench.result.output_bytes);
    bench_close(&bench);
}

static void too_long_command_is_refused(void **state) {
    struct bench *bench = *state;
    CLEANUP(free_cleanup) char *command = malloc(200001);
    assert_non_null(command);
    memset(command, 'x', 200000);
    command[200000] = '\0';
    run(bench, command);
    assert_int_equal(bench->result.status, TOOL_REFUSED);
    assert_non_null(strstr(buffer_text(&bench->result.text), "200000 bytes, at most 102400"));
    memset(command, ' ', 90000);
    command[90000] = '\0';
    memcpy(command, "echo long", 9);
    expect(bench, command, TOOL_OK, "long\n[exit 0]");
}

#define LEAK_CALLS 100 /* the file tools' test makes the thousand; a command takes 20 ms and more */

static void many_commands_leave_no_descriptor(void **state) {
    struct bench *bench = *state;
    run(bench, "true");
    size_t before = open_descriptor_count();
    int64_t total_ms = 0;
    for (int i = 0; i < LEAK_CALLS; i++) {
        run(bench, "true");
        assert_int_equal(bench->result.status, TOOL_OK);
        total_ms += bench->result.duration_ms;
    }
    assert_int_equal(open_descriptor_count(), before);
    print_message("%d commands, %lld ms each\n", LEAK_CALLS, (long long)total_ms / LEAK_CALLS);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    struct error error = {0};
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        printf("SKIPPED test_tools_shell: %s\n", probe->refusal);
        sandbox_close(sandbox);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        BENCH_TEST(text_is_output_and_exit_line),
        BENCH_TEST(commands_and_file_tools_see_the_same_workspace),
        BENCH_TEST(long_output_keeps_1200_and_1000_characters),
        BENCH_TEST(output_above_the_sandbox_limit_says_how_much_is_gone),
        BENCH_TEST(small_limit_of_the_sandbox_still_tells_the_gap),
        BENCH_TEST(changed_trusted_files_are_told_to_the_user),
        BENCH_TEST(time_limit_ends_the_command),
        cmocka_unit_test(longer_limits_do_not_lengthen_a_command),
        BENCH_TEST(cancel_from_another_thread_ends_the_command),
        BENCH_TEST(second_cancel_does_not_wait_for_a_polite_end),
        cmocka_unit_test(live_output_comes_in_order),
        BENCH_TEST(too_long_command_is_refused),
        BENCH_TEST(many_commands_leave_no_descriptor),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sandbox_close(sandbox);
    return failures;
}
