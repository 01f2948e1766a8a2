/* Several commands at once in one workspace: who may join, who may not, and that nothing below the
 * workspace is mounted where a running command could have laid a trap. */
#include "sandbox_support.h"

#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static void host(const char *script) {
    char text[1024];
    int length = snprintf(text, sizeof text, "cd '%s' && { %s; }", workspace, script);
    assert_true(length > 0 && (size_t)length < sizeof text);
    assert_int_equal(system(text), 0);
}

static bool exists(const char *name) {
    char path[600];
    struct stat about;
    (void)snprintf(path, sizeof path, "%s/%s", workspace, name);
    return lstat(path, &about) == 0;
}

static struct sandbox_call *start_up(const char *script) {
    struct sandbox_call *call = start(script);
    step_until_output(call);
    return call;
}

static void end(struct sandbox_call *call) {
    sandbox_call_cancel(call);
    sandbox_call_cancel(call);
    finish(call);
    sandbox_call_destroy(call);
}

static result try(const struct sandbox_policy *policy, struct error *error) {
    static const char *const command[] = {"true", NULL};
    struct sandbox_call *call = NULL;
    result started = sandbox_start(shared, policy, command, &call, error);
    if (is_ok(started)) {
        finish(call);
        sandbox_call_destroy(call);
    }
    return started;
}

static void expect_refused(const struct sandbox_policy *policy, const char *part) {
    struct error error = {0};
    assert_int_equal(try(policy, &error).code, RESULT_LIMIT);
    if (strstr(error.message, part) == NULL) {
        fail_msg("'%s' lacks '%s'", error.message, part);
    }
}

static void commands_share_files_but_no_processes(void **state) {
    (void)state;
    struct sandbox_call *first = start_up("echo up; for i in $(seq 500); do [ -e b ] && break; "
                                          "sleep 0.02; done; cat b; echo a >a");
    struct sandbox_call *second = run("echo from b >b; ls /proc | grep -c '^[0-9]*$'");
    expect_end(second, SANDBOX_EXITED, 0);
    finish(first);
    assert_true(output_has(first, "from b"));
    assert_true(exists("a"));
    sandbox_call_destroy(second);
    sandbox_call_destroy(first);
}

static void git_stays_read_only_for_each_of_them(void **state) {
    (void)state;
    host("mkdir -p .git/hooks; echo ref >.git/HEAD");
    struct sandbox_call *first = start_up("echo up; sleep 60");
    static const char attack[] = "touch .git/x; mv .git g; rm -rf .git; ln -s /tmp .git; "
                                 "python3 -c \"import ctypes; l = ctypes.CDLL(None); "
                                 "l.syscall(316, -100, b'.git', -100, b'other', 2)\"; "
                                 "mkdir -p other; ls -A; cat .git/HEAD";
    for (int i = 0; i < 3; i++) {
        struct sandbox_call *second = run(attack);
        expect_end(second, SANDBOX_EXITED, 0);
        assert_true(output_has(second, ".git\nother\nref\n"));
        sandbox_call_destroy(second);
    }
    end(first);
    assert_false(exists(".git/x"));
    assert_true(exists(".git/HEAD"));
}

/* The trap of CVE-2026-87766: what is to be protected appears while a command runs, which swaps it
 * with a link before the next one's mount is made; bubblewrap would create the file outside. */
static void link_planted_by_a_running_command_is_never_followed(void **state) {
    (void)state;
    char outside[256];
    make_workspace(outside);
    char script[800];
    (void)snprintf( // a file when it is checked, the link when it is mounted on
        script,
        sizeof script,
        "touch keep; ln -s /oldroot%s/made trap; echo up; exec python3 -c \"import ctypes\nl = "
        "ctypes.CDLL(None)\nwhile 1: l.syscall(316, -100, b'keep', -100, b'trap', 2)\"",
        outside
    );
    static const char *const keep[] = {"keep"};
    struct sandbox_policy policy = small_policy();
    policy.protect = keep;
    policy.protect_count = 1;
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_call *first = NULL;
    assert_true(is_ok(sandbox_start(shared, &policy, command, &first, NULL)));
    step_until_output(first);
    for (int i = 0; i < 60; i++) {
        struct error error = {0};
        result started = try(&policy, &error); // refused while the link is seen, else harmless
        assert_true(is_ok(started) || started.code == RESULT_INVALID_INPUT);
        (void)sandbox_call_step(first);
    }
    end(first);
    char check[600];
    (void)snprintf(check, sizeof check, "[ -z \"$(ls -A '%s')\" ]", outside);
    assert_int_equal(system(check), 0);
    remove_tree(outside);
}

static void git_made_by_a_running_command_is_protected_once_all_ended(void **state) {
    (void)state;
    struct sandbox_call *first = start_up("mkdir -p .git/hooks; echo up; sleep 60");
    struct sandbox_call *second = run("touch .git/own && echo written");
    assert_true(output_has(second, "written")); // as the first could; but it is told:
    const struct sandbox_outcome *outcome = sandbox_call_outcome(second);
    assert_non_null(strstr(outcome->trust_changes, ".git"));
    sandbox_call_destroy(second);
    end(first);
    second = run("touch .git/later || echo protected");
    assert_true(output_has(second, "protected"));
    sandbox_call_destroy(second);
}

static void replaced_git_waits_for_the_running_command(void **state) {
    (void)state;
    host("mkdir .git");
    struct sandbox_call *first = start_up("echo up; sleep 60");
    struct sandbox_policy policy = small_policy();
    host("mv .git old; mkdir .git");
    expect_refused(&policy, "since before .git");
    host("rmdir .git");
    expect_refused(&policy, "since before .git");
    host("mv old .git");
    assert_true(is_ok(try(&policy, NULL)));
    end(first);
    assert_true(is_ok(try(&policy, NULL)));
}

static void protected_paths_must_be_the_same_and_on_top(void **state) {
    (void)state;
    static const char *const top[] = {"keep"};
    static const char *const deep[] = {"deep/keep"};
    host("mkdir -p keep deep/keep");
    struct sandbox_policy plain = small_policy();
    struct sandbox_policy with_top = small_policy();
    with_top.protect = top;
    with_top.protect_count = 1;
    struct sandbox_policy with_deep = small_policy();
    with_deep.protect = deep;
    with_deep.protect_count = 1;
    static const char *const command[] = {"sh", "-c", "echo up; sleep 60", NULL};
    struct sandbox_call *first = NULL;
    assert_true(is_ok(sandbox_start(shared, &with_top, command, &first, NULL)));
    step_until_output(first);
    assert_true(is_ok(try(&with_top, NULL)));
    expect_refused(&plain, "protected path");
    expect_refused(&with_deep, "protected path");
    end(first);
    // `mv deep x` would move the mount point's parent away.
    assert_true(is_ok(sandbox_start(shared, &with_deep, command, &first, NULL)));
    step_until_output(first);
    expect_refused(&with_deep, "one at a time");
    expect_refused(&plain, "one at a time");
    end(first);
}

static void another_host_is_kept_out(void **state) {
    (void)state;
    struct sandbox_options options = {.helper_directory = HELPERS};
    struct sandbox *other = NULL;
    assert_true(is_ok(sandbox_open(&options, &other, NULL)));
    struct sandbox_call *first = start_up("echo up; sleep 60");
    struct sandbox_call *second = start_up("echo up; sleep 60");
    struct sandbox_policy policy = small_policy();
    static const char *const command[] = {"true", NULL};
    struct sandbox_call *third = NULL;
    assert_int_equal(sandbox_start(other, &policy, command, &third, NULL).code, RESULT_LIMIT);
    end(first); // one of two: the lock stays
    assert_int_equal(sandbox_start(other, &policy, command, &third, NULL).code, RESULT_LIMIT);
    end(second);
    assert_true(is_ok(sandbox_start(other, &policy, command, &third, NULL)));
    finish(third);
    sandbox_call_destroy(third);
    sandbox_close(other);
}

static void *run_some(void *context) {
    unsigned *failures = context;
    for (int i = 0; i < 6; i++) {
        struct sandbox_policy policy = small_policy();
        static const char *const command[] = {"sh", "-c", "echo $$ >>log", NULL};
        struct sandbox_call *call = NULL;
        if (is_failed(sandbox_run(shared, &policy, command, -1, &call, NULL))) {
            *failures += 1;
            continue;
        }
        *failures += sandbox_call_outcome(call)->end == SANDBOX_EXITED ? 0 : 1;
        sandbox_call_destroy(call);
    }
    return NULL;
}

static void threads_start_and_end_commands_at_once(void **state) {
    (void)state;
    host("mkdir .git");
    pthread_t threads[4];
    unsigned failures[4] = {0};
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_some, &failures[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(failures[i], 0);
    }
    host("[ $(wc -l <log) = 24 ]");
}

struct seen {
    uint64_t bytes[2];
    unsigned char last;
};

static void see(void *context, enum sandbox_stream stream, struct view bytes) {
    struct seen *seen = context;
    seen->bytes[stream == SANDBOX_STDERR] += bytes.length;
    seen->last = bytes.data[bytes.length - 1];
}

static void every_byte_of_output_is_seen_though_few_are_kept(void **state) {
    (void)state;
    struct seen seen = {{0}, 0};
    struct sandbox_policy policy = small_policy();
    policy.output_kib = 1;
    policy.on_output = see;
    policy.on_output_context = &seen;
    struct sandbox_call *call =
        run_with(&policy, "head -c 3000000 /dev/zero; echo end; echo e >&2");
    expect_end(call, SANDBOX_EXITED, 0);
    assert_int_equal(seen.bytes[0], 3000004);
    assert_int_equal(seen.bytes[1], 2);
    assert_int_equal(seen.last, '\n');
    sandbox_call_destroy(call);
    policy.output_total_mib = 1;
    call = run_with(&policy, "head -c 3000000 /dev/zero; sleep 10");
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_OUTPUT_LIMIT);
    assert_non_null(strstr(sandbox_call_outcome(call)->reason, "1 MiB"));
    sandbox_call_destroy(call);
}

int main(int argc, char **argv) {
    int status = open_shared("test_sandbox_together", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(commands_share_files_but_no_processes),
        TEST(git_stays_read_only_for_each_of_them),
        TEST(link_planted_by_a_running_command_is_never_followed),
        TEST(git_made_by_a_running_command_is_protected_once_all_ended),
        TEST(replaced_git_waits_for_the_running_command),
        TEST(protected_paths_must_be_the_same_and_on_top),
        TEST(another_host_is_kept_out),
        TEST(threads_start_and_end_commands_at_once),
        TEST(every_byte_of_output_is_seen_though_few_are_kept),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
