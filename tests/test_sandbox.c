/* The sandbox as the host uses it: ends, output, limits, and what a command may not do to them.
 * Attack cases have a program of their own (run_sandbox_cases). */
#include "sandbox_support.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- ends ----------------------------------------------------------------------------------- */

static void command_status_is_reported_as_its_own(void **state) {
    (void)state;
    static const int statuses[] = {0, 1, 7, 125, 126, 127, 255};
    for (size_t i = 0; i < COUNT_OF(statuses); i++) {
        char script[64];
        (void)snprintf(script, sizeof script, "exit %d", statuses[i]);
        struct sandbox_call *call = run(script);
        expect_end(call, SANDBOX_EXITED, statuses[i]);
        sandbox_call_destroy(call);
    }
}

static void missing_program_is_the_commands_failure(void **state) {
    (void)state;
    const char *const command[] = {"no-such-program", NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    assert_true(is_ok(sandbox_run(shared, &policy, command, -1, &call, NULL)));
    expect_end(call, SANDBOX_EXITED, 127);
    sandbox_call_destroy(call);
}

static void signal_death_is_reported(void **state) {
    (void)state;
    struct sandbox_call *call = run("kill -SEGV $$");
    expect_end(call, SANDBOX_SIGNALLED, 139);
    assert_int_equal(sandbox_call_outcome(call)->signal, SIGSEGV);
    sandbox_call_destroy(call);
}

static void timeout_ends_the_whole_tree(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.wall_ms = 500;
    char tag[64];
    char script[512];
    (void)snprintf(tag, sizeof tag, "hearth-tag-%ld-timeout", (long)getpid());
    (void)snprintf(
        script,
        sizeof script,
        "trap '' TERM HUP; (setsid bash -c 'trap \"\" TERM; while :; do sleep 0.1; done' %s &);"
        "while :; do sleep 0.1; done",
        tag
    );
    int64_t started = now_ms();
    struct sandbox_call *call = run_with(&policy, script);
    int64_t took = now_ms() - started;
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_int_equal(outcome->end, SANDBOX_TIMED_OUT);
    assert_true(took >= 2500); // the grace period was given
    assert_true(took < 12500); // with room for a loaded machine
    assert_int_equal(count_tagged(tag), 0);
    sandbox_call_destroy(call);
}

static void daemon_that_holds_output_does_not_hold_the_call(void **state) {
    (void)state;
    char tag[64];
    char script[256];
    (void)snprintf(tag, sizeof tag, "hearth-tag-%ld-daemon", (long)getpid());
    (void)snprintf(
        script, sizeof script, "(setsid bash -c 'trap \"\" TERM; sleep 100' %s &); echo done", tag
    );
    int64_t started = now_ms();
    struct sandbox_call *call = run(script);
    assert_true(now_ms() - started < 30000);
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "done"));
    assert_int_equal(count_tagged(tag), 0);
    sandbox_call_destroy(call);
}

static void cancel_lets_a_command_clean_up(void **state) {
    (void)state;
    struct sandbox_call *call =
        start("trap 'echo bye; exit 3' TERM; echo go; while :; do sleep 0.05; done");
    step_until_output(call);
    sandbox_call_cancel(call);
    finish(call);
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_CANCELLED);
    assert_true(output_has(call, "bye"));
    sandbox_call_destroy(call);
}

static void second_cancel_kills_at_once(void **state) {
    (void)state;
    struct sandbox_call *call =
        start("trap 'sleep 1; echo bye; exit 3' TERM; echo go; while :; do sleep 0.05; done");
    step_until_output(call);
    sandbox_call_cancel(call);
    sandbox_call_cancel(call);
    finish(call);
    assert_false(output_has(call, "bye")); // for which it had the time after the first
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_CANCELLED);
    sandbox_call_destroy(call);
}

static void destroy_of_a_running_call_leaves_nothing(void **state) {
    (void)state;
    char tag[64];
    char script[128];
    (void)snprintf(tag, sizeof tag, "hearth-tag-%ld-destroy", (long)getpid());
    (void)snprintf(script, sizeof script, "echo go; exec -a %s sleep 100", tag);
    struct sandbox_call *call = start(script);
    step_until_output(call);
    sandbox_call_destroy(call);
    assert_int_equal(count_tagged(tag), 0);
}

static void cancel_descriptor_ends_a_blocking_run(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    const char *const command[] = {"sleep", "100", NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    assert_true(is_ok(sandbox_run(shared, &policy, command, ends[0], &call, NULL)));
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_CANCELLED);
    sandbox_call_destroy(call);
    close(ends[0]);
    close(ends[1]);
}

/* ---- output --------------------------------------------------------------------------------- */

static void output_keeps_head_and_tail_and_counts_the_rest(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.output_kib = 4;
    struct sandbox_call *call = run_with(&policy, "seq 1 200000; echo problem >&2");
    expect_end(call, SANDBOX_EXITED, 0);
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_int_equal(outcome->stdout_bytes, 1288895);
    assert_int_equal(outcome->stderr_bytes, 8);
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    assert_int_equal(output.head.length, 2048);
    assert_int_equal(output.tail.length, 2048);
    assert_int_equal(output.dropped, 1288895 - 4096);
    assert_true(view_starts_with(output.head, view_of_text("1\n2\n3\n")));
    assert_true(view_ends_with(output.tail, view_of_text("199999\n200000\n")));
    assert_true(output_has(call, "bytes left out"));
    sandbox_call_destroy(call);
}

static void flood_is_ended(void **state) {
    (void)state;
    struct sandbox_call *call = run("head -c 200000000 /dev/zero");
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_int_equal(outcome->end, SANDBOX_OUTPUT_LIMIT);
    assert_true(outcome->stdout_bytes < 68000000);
    sandbox_call_destroy(call);
}

static void merged_output_keeps_the_order(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.merge_output = true;
    struct sandbox_call *call = run_with(&policy, "echo a; echo b >&2; echo c");
    assert_true(output_has(call, "a\nb\nc\n"));
    sandbox_call_destroy(call);
}

static void sanitised_output_has_no_control_characters(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t length;
        const char *out;
    } cases[] = {
        {"plain\ttext\n", 11, "plain\ttext\n"},
        {"a\r\nb\rc", 6, "a\nb\\x0dc"},
        {"\033]0;title\007", 10, "\\x1b]0;title\\x07"},
        {"A\0B\177", 4, "A\\x00B\\x7f"},
        {"\302\233 31m", 6, "\\x9b 31m"},
        {"x\342\200\256y", 5, "x\\u202ey"},
        {"\377\376ok", 4, "\357\277\275\357\277\275ok"},
        {"gr\303\274n \360\237\231\202", 10, "gr\303\274n \360\237\231\202"},
        {"", 0, ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buffer out;
        buffer_init(&out, 4096);
        struct view in = view_of(cases[i].in, cases[i].length);
        assert_true(is_ok(sandbox_sanitise(in, 0, &out, NULL)));
        assert_string_equal(buffer_text(&out), cases[i].out);
        buffer_deinit(&out);
    }
}

static void sanitised_long_lines_are_shortened(void **state) {
    (void)state;
    struct buffer out;
    buffer_init(&out, 4096);
    struct view in = view_of_text("0123456789\nab\303\274cd\nlast");
    assert_true(is_ok(sandbox_sanitise(in, 3, &out, NULL)));
    assert_string_equal(
        buffer_text(&out),
        "012 [7 more bytes in this line]\nab [4 more bytes in this line]\nlas [1 more bytes in "
        "this line]"
    );
    buffer_deinit(&out);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void memory_is_limited(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.memory_mib = 64;
    struct sandbox_call *call =
        run_with(&policy, "head -c 400000000 /dev/zero | tail -c 300000000 | wc -c");
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_false(output_has(call, "300000000"));
    if (outcome->limits_by_cgroup) {
        assert_true(outcome->out_of_memory);
    }
    sandbox_call_destroy(call);
}

static void processes_are_limited(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.processes = 24;
    struct sandbox_call *call = run_with(
        &policy,
        "for i in $(seq 60); do sleep 3 & done 2>/dev/null; jobs -r | wc -l; kill $(jobs -p)"
    );
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_false(output_has(call, "60"));
    if (outcome->limits_by_cgroup) {
        assert_true(outcome->processes_refused);
    }
    sandbox_call_destroy(call);
}

static void disk_growth_is_limited(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.disk_mib = 16;
    struct sandbox_call *call = run_with(
        &policy, "for i in $(seq 400); do head -c 4000000 /dev/zero >f$i; sleep 0.02; done"
    );
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_int_equal(outcome->end, SANDBOX_DISK_LIMIT);
    assert_true(outcome->disk_growth_bytes > (int64_t)16 << 20);
    sandbox_call_destroy(call);
}

static void old_files_do_not_count_as_growth(void **state) {
    (void)state;
    struct sandbox_call *call = run("for i in 1 2 3; do head -c 20000000 /dev/zero >f$i; done");
    expect_end(call, SANDBOX_EXITED, 0);
    sandbox_call_destroy(call);
    struct sandbox_policy policy = small_policy();
    policy.disk_mib = 8;
    call = run_with(&policy, "sleep 1.2; head -c 1000000 /dev/zero >g");
    expect_end(call, SANDBOX_EXITED, 0);
    int64_t growth = sandbox_call_outcome(call)->disk_growth_bytes;
    assert_true(growth > 500000 && growth < 2000000);
    sandbox_call_destroy(call);
}

static void wrong_limits_are_refused(void **state) {
    (void)state;
    const char *const command[] = {"true", NULL};
    struct sandbox_policy policies[] = {
        small_policy(), small_policy(), small_policy(), small_policy(), small_policy()};
    policies[0].memory_mib = 1;
    policies[1].processes = 0;
    policies[2].wall_ms = 0;
    policies[3].disk_mib = UINT64_MAX;
    policies[4].output_kib = 0;
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        struct sandbox_call *call = NULL;
        result started = sandbox_start(shared, &policies[i], command, &call, NULL);
        assert_int_equal(started.code, RESULT_INVALID_INPUT);
    }
}

/* ---- what a command cannot do --------------------------------------------------------------- */

static void forged_status_lines_are_ignored(void **state) {
    (void)state;
    struct sandbox_call *call =
        run("for fd in 1 2 3 4 5 6 7 8 9 10 63; do"
            "  echo '{ \"exit-code\": 0 }' >&$fd; echo 'hearth failed forged' >&$fd;"
            "  echo '{ \"child-pid\": 1 }' >&$fd; done 2>/dev/null;"
            "for p in /proc/[0-9]*; do echo '{ \"exit-code\": 0 }' >$p/fd/4; done 2>/dev/null;"
            "ls /proc/self/fd | wc -l; exit 3");
    expect_end(call, SANDBOX_EXITED, 3);
    assert_true(output_has(call, "\n4\n")); // 0, 1, 2 and the directory that ls reads
    sandbox_call_destroy(call);
}

static void environment_is_built_not_inherited(void **state) {
    (void)state;
    assert_int_equal(setenv("HEARTH_TEST_SECRET", "swordfish", 1), 0);
    static const char *const extra[] = {"GREETING=hello world"};
    struct sandbox_policy policy = small_policy();
    policy.environment = extra;
    policy.environment_count = 1;
    struct sandbox_call *call =
        run_with(&policy, "echo \"$GREETING\"; env; cat /proc/*/environ /proc/*/cmdline");
    assert_true(output_has(call, "hello world"));
    assert_false(output_has(call, "swordfish"));
    assert_true(output_has(call, "HOME=/home/agent"));
    sandbox_call_destroy(call);
    assert_int_equal(unsetenv("HEARTH_TEST_SECRET"), 0);
}

static void protected_path_and_git_are_read_only(void **state) {
    (void)state;
    char text[512];
    (void
    )snprintf(text, sizeof text, "cd %s && mkdir -p .git/hooks keep && echo a >keep/f", workspace);
    assert_int_equal(system(text), 0);
    static const char *const protect[] = {"keep", "missing"};
    struct sandbox_policy policy = small_policy();
    policy.protect = protect;
    policy.protect_count = 2;
    struct sandbox_call *call = run_with(
        &policy,
        "echo b >keep/f; rm -rf keep; mv keep k; touch .git/x; mv .git g; touch free; cat keep/f; "
        "ls -A"
    );
    assert_true(output_has(call, "a\n.git\nfree\nkeep\n"));
    sandbox_call_destroy(call);
}

static void set_id_bits_are_taken_away_afterwards(void **state) {
    (void)state;
    struct sandbox_call *call = start("echo go; sleep 0.3");
    step_until_output(call);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/tool", workspace);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, 04755), 0); // as if the filter had missed a way
    close(fd);
    finish(call);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0755);
    assert_int_equal(sandbox_call_outcome(call)->mode_bits_stripped, 1);
    sandbox_call_destroy(call);
}

static void set_id_bits_cannot_be_made(void **state) {
    (void)state;
    // chmod, creation with a mode, and an unnamed file that is linked in later; control: 0755
    struct sandbox_call *call = run(
        "touch a && chmod 4755 a || echo chmod refused; mkdir d && chmod g+s d || echo g refused;"
        "perl -e '"
        "print sysopen(my $f, \"b\", 0102, 04755) ? \"made\" : \"refused\", \"\\n\";"
        "print sysopen(my $g, \".\", 020200002, 02755) ? \"made\" : \"refused\", \"\\n\";"
        "print sysopen(my $h, \".\", 020200002, 0755) ? \"made\" : \"refused\", \"\\n\";'"
    );
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "chmod refused\ng refused\nrefused\nrefused\nmade\n"));
    sandbox_call_destroy(call);
}

/* Times of files move in steps of the coarse clock, and calls may follow each other faster. */
static void next_clock_step(void) {
    struct timespec first;
    struct timespec now;
    assert_int_equal(clock_gettime(CLOCK_REALTIME_COARSE, &first), 0);
    do {
        (void)sched_yield();
        assert_int_equal(clock_gettime(CLOCK_REALTIME_COARSE, &now), 0);
    } while (now.tv_sec == first.tv_sec && now.tv_nsec == first.tv_nsec);
}

static void read_only_workspace_cannot_be_written(void **state) {
    (void)state;
    sandbox_call_destroy(run("mkdir -p .git d; echo a >f"));
    struct sandbox_policy policy = small_policy();
    policy.is_read_only = true;
    struct sandbox_call *call = run_with(
        &policy,
        "cat f; echo b >f; touch g d/g .git/g; rm f; mv d e; ls -A; echo t >/tmp/t && cat /tmp/t"
    );
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "a\n.git\nd\nf\nt\n"));
    sandbox_call_destroy(call);
}

static void changes_of_trusted_names_are_reported(void **state) {
    (void)state;
    struct sandbox_call *call = run("echo x >.envrc; mkdir .vscode; echo y >code.c");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, ".envrc .vscode");
    sandbox_call_destroy(call);
    next_clock_step(); // a change in the same step as the start counts, to be sure
    call = run("cat .envrc");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, "");
    sandbox_call_destroy(call);
}

static void nested_git_directories_that_change_are_reported(void **state) {
    (void)state;
    struct sandbox_call *call = run("mkdir -p a/b/.git/hooks c/d; echo x >a/b/.git/config");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, "(nested)/.git");
    sandbox_call_destroy(call);
    next_clock_step();
    call = run("cat a/b/.git/config; echo config >c/config");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, "");
    sandbox_call_destroy(call);
    call = run("echo y >a/b/.git/config");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, "(nested)/.git");
    sandbox_call_destroy(call);
    next_clock_step();
    call = run("echo 'gitdir: ../e' >c/d/.git; echo x >.envrc");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, ".envrc (nested)/.git");
    sandbox_call_destroy(call);
}

/* test_sandbox [PATTERN]: all tests, or those whose names match. */
int main(int argc, char **argv) {
    int status = open_shared("test_sandbox", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(command_status_is_reported_as_its_own),
        TEST(missing_program_is_the_commands_failure),
        TEST(signal_death_is_reported),
        TEST(timeout_ends_the_whole_tree),
        TEST(daemon_that_holds_output_does_not_hold_the_call),
        TEST(cancel_lets_a_command_clean_up),
        TEST(second_cancel_kills_at_once),
        TEST(destroy_of_a_running_call_leaves_nothing),
        TEST(cancel_descriptor_ends_a_blocking_run),
        TEST(output_keeps_head_and_tail_and_counts_the_rest),
        TEST(flood_is_ended),
        TEST(merged_output_keeps_the_order),
        TEST(sanitised_output_has_no_control_characters),
        TEST(sanitised_long_lines_are_shortened),
        TEST(memory_is_limited),
        TEST(processes_are_limited),
        TEST(disk_growth_is_limited),
        TEST(old_files_do_not_count_as_growth),
        TEST(wrong_limits_are_refused),
        TEST(forged_status_lines_are_ignored),
        TEST(environment_is_built_not_inherited),
        TEST(protected_path_and_git_are_read_only),
        TEST(set_id_bits_are_taken_away_afterwards),
        TEST(set_id_bits_cannot_be_made),
        TEST(read_only_workspace_cannot_be_written),
        TEST(changes_of_trusted_names_are_reported),
        TEST(nested_git_directories_that_change_are_reported),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
