/* The standard input of a sandboxed command: a pipe of the host's that never makes it wait, and
 * /dev/null where nobody asked for one. */
#include "sandbox_support.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#define PIPE_BYTES ((size_t)64 << 10)

static struct sandbox_call *start_with_input(const char *script) {
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_policy policy = small_policy();
    policy.has_input = true;
    struct sandbox_call *call = NULL;
    struct error error = {0};
    if (is_failed(sandbox_start(shared, &policy, command, &call, &error))) {
        fail_msg("%s", error.message);
    }
    return call;
}

/* Writes all of it, stepping in between. */
static void write_all(struct sandbox_call *call, struct view bytes) {
    int64_t deadline = now_ms() + 60000;
    while (bytes.length > 0) {
        size_t written = 0;
        assert_true(is_ok(sandbox_call_write_input(call, bytes, &written, NULL)));
        bytes = view_slice(bytes, written, SIZE_MAX);
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        if (bytes.length > 0) {
            assert_true(poll(&entry, 1, 10000) > 0); // the one descriptor tells of room as well
        }
        bool is_over = sandbox_call_step(call); // it may have been waiting for the last of it
        assert_true(!is_over || bytes.length == 0);
        assert_true(now_ms() < deadline);
    }
}

static void input_is_read_as_it_comes(void **state) {
    (void)state;
    struct sandbox_call *call =
        start_with_input("read a; echo \"got $a\"; read b; echo \"and $b\"");
    write_all(call, view_of_text("one\n"));
    step_until_output(call); // it answers before the second line is there
    assert_true(view_equals_text(sandbox_call_output(call, SANDBOX_STDOUT).head, "got one\n"));
    write_all(call, view_of_text("two\n"));
    finish(call);
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "got one\nand two\n"));
    sandbox_call_destroy(call);
}

static void end_of_input_is_end_of_file(void **state) {
    (void)state;
    struct sandbox_call *call = start_with_input("cat; echo done");
    write_all(call, view_of_text("text without newline"));
    sandbox_call_end_input(call);
    sandbox_call_end_input(call); // again is nothing
    size_t written = 7;
    struct error error = {0};
    result closed = sandbox_call_write_input(call, view_of_text("x"), &written, &error);
    assert_int_equal(closed.code, RESULT_IO);
    assert_int_equal(written, 0);
    finish(call);
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "text without newlinedone\n"));
    sandbox_call_destroy(call);
}

static void much_input_passes_whole(void **state) {
    (void)state;
    size_t bytes = (size_t)3 << 20;
    char *text = malloc(bytes);
    assert_non_null(text);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = (char)('a' + i * 7 % 26);
    }
    struct sandbox_policy policy = small_policy();
    const char *const command[] = {"bash", "-c", "sleep 0.2; wc -c; cat", NULL};
    struct sandbox_call *call = NULL;
    struct view input = view_of(text, bytes);
    assert_true(is_ok(sandbox_run_with_input(shared, &policy, command, input, -1, &call, NULL)));
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "3145728\n"));
    sandbox_call_destroy(call);
    free(text);
}

static void unread_input_never_blocks_the_host(void **state) {
    (void)state;
    struct sandbox_call *call = start_with_input("trap '' TERM; echo up; sleep 60; sleep 60");
    step_until_output(call);
    char *text = calloc(1, 4 * PIPE_BYTES);
    assert_non_null(text);
    size_t written = 0;
    int64_t begin = now_ms();
    struct view all = view_of(text, 4 * PIPE_BYTES);
    assert_true(is_ok(sandbox_call_write_input(call, all, &written, NULL)));
    assert_true(written > 0 && written <= PIPE_BYTES);
    assert_true(is_ok(sandbox_call_write_input(call, all, &written, NULL)));
    assert_int_equal(written, 0);
    assert_true(now_ms() - begin < 20000); // not the 60 s and more of the command
    // A full pipe does not make the call's descriptor ready, so no loop spins on it.
    int wakes = 0;
    for (int64_t until = now_ms() + 300; now_ms() < until; wakes++) {
        assert_false(sandbox_call_step(call));
        assert_true(is_ok(sandbox_call_write_input(call, all, &written, NULL)));
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        (void)poll(&entry, 1, 100);
    }
    assert_true(wakes < 30); // timers alone
    sandbox_call_cancel(call);
    sandbox_call_cancel(call);
    finish(call);
    expect_end(call, SANDBOX_CANCELLED, 0);
    assert_true(is_failed(sandbox_call_write_input(call, all, &written, NULL)));
    sandbox_call_destroy(call);
    free(text);
}

static void command_that_closes_its_input_is_no_signal_for_the_host(void **state) {
    (void)state;
    assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR); // would end this test
    struct sandbox_call *call = start_with_input("echo up");
    step_until_output(call);
    char *text = calloc(1, PIPE_BYTES);
    assert_non_null(text);
    bool failed = false;
    int64_t deadline = now_ms() + 60000;
    while (!failed) { // until the last process of the sandbox that holds it is gone
        size_t written = 0;
        struct view some = view_of(text, 100);
        failed = is_failed(sandbox_call_write_input(call, some, &written, NULL));
        (void)usleep(1000);
        assert_true(now_ms() < deadline);
    }
    finish(call);
    expect_end(call, SANDBOX_EXITED, 0);
    sandbox_call_destroy(call);
    free(text);
}

static void without_input_it_is_the_null_device(void **state) {
    (void)state;
    struct sandbox_call *call = run("readlink /proc/self/fd/0; cat; echo end");
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "/dev/null\nend\n"));
    size_t written = 0;
    assert_true(is_failed(sandbox_call_write_input(call, view_of_text("x"), &written, NULL)));
    sandbox_call_destroy(call);
}

static void nothing_of_the_host_is_left_open(void **state) {
    (void)state;
    // The write end must not reach the command: it would never see the end of its own input.
    struct sandbox_policy policy = small_policy();
    const char *const command[] = {"bash", "-c", "ls /proc/self/fd | wc -l; cat", NULL};
    struct sandbox_call *call = NULL;
    struct view input = view_of_text("end");
    assert_true(is_ok(sandbox_run_with_input(shared, &policy, command, input, -1, &call, NULL)));
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "4\nend")); // 0, 1, 2 and that of the listing
    sandbox_call_destroy(call);
}

int main(int argc, char **argv) {
    int status = open_shared("test_sandbox_input", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(input_is_read_as_it_comes),
        TEST(end_of_input_is_end_of_file),
        TEST(much_input_passes_whole),
        TEST(unread_input_never_blocks_the_host),
        TEST(command_that_closes_its_input_is_no_signal_for_the_host),
        TEST(without_input_it_is_the_null_device),
        TEST(nothing_of_the_host_is_left_open),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
