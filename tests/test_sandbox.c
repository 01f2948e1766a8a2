/* The sandbox as the host uses it: limits, ends, refusals, and what a command may not do to them.
 * Attack cases have a program of their own (run_sandbox_cases). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "sandbox/sandbox.h"

#define HELPERS     TEST_BINARY_DIR "/sandbox"
#define COMMAND_MAX 8192

static struct sandbox *shared;
static char workspace[256];

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static void make_workspace(char path[256]) {
    (void)snprintf(path, 256, "/var/tmp/hearth-sandbox-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static void remove_tree(const char *path) {
    char text[2048];
    (void)snprintf(text, sizeof text, "rm -rf '%s'", path);
    assert_int_equal(system(text), 0);
}

static int set_up(void **state) {
    (void)state;
    make_workspace(workspace);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    remove_tree(workspace);
    return 0;
}

static struct sandbox_policy small_policy(void) {
    struct sandbox_policy policy = sandbox_policy_default(workspace);
    policy.wall_ms = 20000;
    policy.memory_mib = 256;
    policy.processes = 64;
    policy.disk_mib = 64;
    return policy;
}

static struct sandbox_call *run_with(const struct sandbox_policy *policy, const char *script) {
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_call *call = NULL;
    struct error error = {0};
    result ran = sandbox_run(shared, policy, command, -1, &call, &error);
    if (is_failed(ran)) {
        fail_msg("'%s': %s", script, error.message);
    }
    return call;
}

static struct sandbox_call *run(const char *script) {
    struct sandbox_policy policy = small_policy();
    return run_with(&policy, script);
}

static void expect_end(const struct sandbox_call *call, enum sandbox_end end, int status) {
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    if (outcome->end != end || outcome->exit_status != status) {
        fail_msg(
            "%s with status %d (%s), not %s with %d",
            sandbox_end_name(outcome->end),
            outcome->exit_status,
            outcome->reason,
            sandbox_end_name(end),
            status
        );
    }
}

static bool output_has(const struct sandbox_call *call, const char *text) {
    struct buffer shown;
    buffer_init(&shown, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(sandbox_call_text(call, SANDBOX_STDOUT, &shown, NULL)));
    bool has = strstr(buffer_text(&shown), text) != NULL;
    buffer_deinit(&shown);
    return has;
}

/* How many processes of this machine have `tag` on their command line. */
static unsigned count_tagged(const char *tag) {
    unsigned count = 0;
    DIR *processes = opendir("/proc");
    assert_non_null(processes);
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        char path[300];
        char text[COMMAND_MAX];
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
        ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
        fd_cleanup(&fd);
        if (got > 0 && memmem(text, (size_t)got, tag, strlen(tag)) != NULL) {
            count += 1;
        }
    }
    closedir(processes);
    return count;
}

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
    assert_true(took < 8000);
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
    assert_true(now_ms() - started < 5000);
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "done"));
    assert_int_equal(count_tagged(tag), 0);
    sandbox_call_destroy(call);
}

/* Steps until the command has printed something. */
static void step_until_output(struct sandbox_call *call) {
    int64_t deadline = now_ms() + 10000;
    while (sandbox_call_output(call, SANDBOX_STDOUT).head.length == 0) {
        assert_true(now_ms() < deadline);
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        (void)poll(&entry, 1, 1000);
        assert_false(sandbox_call_step(call));
    }
}

static void finish(struct sandbox_call *call) {
    while (!sandbox_call_step(call)) {
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        assert_true(poll(&entry, 1, 10000) > 0); // the one descriptor covers timers too
    }
}

static struct sandbox_call *start(const char *script) {
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    struct error error = {0};
    if (is_failed(sandbox_start(shared, &policy, command, &call, &error))) {
        fail_msg("%s", error.message);
    }
    return call;
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
    struct sandbox_call *call = start("trap '' TERM; echo go; while :; do sleep 0.05; done");
    step_until_output(call);
    int64_t started = now_ms();
    sandbox_call_cancel(call);
    sandbox_call_cancel(call);
    finish(call);
    assert_true(now_ms() - started < 1900);
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
    assert_true(outcome->stdout_bytes < 100000000);
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

static void changes_of_trusted_names_are_reported(void **state) {
    (void)state;
    struct sandbox_call *call = run("echo x >.envrc; mkdir .vscode; echo y >code.c");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, ".envrc .vscode");
    sandbox_call_destroy(call);
    call = run("cat .envrc");
    assert_string_equal(sandbox_call_outcome(call)->trust_changes, "");
    sandbox_call_destroy(call);
}

/* ---- refusals ------------------------------------------------------------------------------- */

static result try_workspace(const char *path, struct error *error) {
    const char *const command[] = {"true", NULL};
    struct sandbox_policy policy = sandbox_policy_default(path);
    struct sandbox_call *call = NULL;
    result started = sandbox_start(shared, &policy, command, &call, error);
    if (is_ok(started)) {
        sandbox_call_destroy(call);
    }
    return started;
}

static void unfit_workspaces_are_refused(void **state) {
    (void)state;
    static const char *const paths[] = {"/", "/tmp", "/usr", "/proc/self", "/no/such/place", ""};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        assert_int_equal(try_workspace(paths[i], NULL).code, RESULT_INVALID_INPUT);
    }
    assert_int_equal(try_workspace(TEST_BINARY_DIR, NULL).code, RESULT_INVALID_INPUT);
    char home[300];
    (void)snprintf(home, sizeof home, "%s/home", workspace);
    assert_int_equal(mkdir(home, 0755), 0);
    const char *old = getenv("HOME");
    char kept[300];
    (void)snprintf(kept, sizeof kept, "%s", old != NULL ? old : "");
    assert_int_equal(setenv("HOME", home, 1), 0);
    assert_int_equal(try_workspace(home, NULL).code, RESULT_INVALID_INPUT);
    assert_int_equal(try_workspace(workspace, NULL).code, RESULT_INVALID_INPUT);
    assert_int_equal(setenv("HOME", kept, 1), 0);
    assert_true(is_ok(try_workspace(workspace, NULL)));
    if (geteuid() == 0) {
        assert_int_equal(chown(workspace, 12345, 12345), 0);
        struct error error = {0};
        assert_int_equal(try_workspace(workspace, &error).code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, "12345"));
        assert_int_equal(chown(workspace, 0, 0), 0);
    }
}

static void planted_git_is_refused(void **state) {
    (void)state;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/.git", workspace);
    assert_int_equal(symlink("/etc", path), 0);
    struct error error = {0};
    assert_int_equal(try_workspace(workspace, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "symlink"));
    assert_int_equal(unlink(path), 0);
    static const char *const contents[] = {
        "gitdir: /etc/ssl\n", "gitdir: .hidden\n", "gitdir: /no/such\n", "rubbish", ""};
    for (size_t i = 0; i < COUNT_OF(contents); i++) {
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        assert_true(fputs(contents[i], file) >= 0);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(try_workspace(workspace, NULL).code, RESULT_INVALID_INPUT);
    }
}

static void git_worktree_and_submodule_are_usable(void **state) {
    (void)state;
    char text[1024];
    (void)snprintf(
        text,
        sizeof text,
        "exec >/dev/null 2>&1; export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null; cd %s && "
        "git init -q main && cd main && git config user.name n && git config user.email e && "
        "echo a >f && git add f && git commit -qm first && git worktree add -q ../tree && cd .. && "
        "git init -q super && cd super && git -c protocol.file.allow=always submodule add -q "
        "../main sub",
        workspace
    );
    assert_int_equal(system(text), 0);
    static const char *const names[] = {"tree", "super/sub"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s/%s", workspace, names[i]);
        struct sandbox_policy policy = small_policy();
        policy.workspace = path;
        struct sandbox_call *call =
            run_with(&policy, "git log --format=%s; echo b >>f; git diff --stat | head -1");
        expect_end(call, SANDBOX_EXITED, 0);
        assert_true(output_has(call, "first\n"));
        assert_true(output_has(call, "f | 1 +"));
        sandbox_call_destroy(call);
    }
}

static void second_command_in_a_workspace_is_refused(void **state) {
    (void)state;
    struct sandbox_call *call = start("echo go; sleep 100");
    step_until_output(call);
    struct error error = {0};
    assert_int_equal(try_workspace(workspace, &error).code, RESULT_LIMIT);
    sandbox_call_destroy(call);
    assert_true(is_ok(try_workspace(workspace, &error)));
}

static void expect_refusal(const struct sandbox_options *options, const char *remedy) {
    struct sandbox *sandbox = NULL;
    assert_true(is_ok(sandbox_open(options, &sandbox, NULL)));
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    assert_int_equal(probe->rung, SANDBOX_REFUSED);
    assert_true(probe->refusal[0] != '\0');
    assert_non_null(strstr(probe->remedy, remedy));
    const char *const command[] = {"true", NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    struct error error = {0};
    result started = sandbox_start(sandbox, &policy, command, &call, &error);
    assert_int_equal(started.code, RESULT_UNSUPPORTED);
    assert_non_null(strstr(error.message, remedy));
    sandbox_close(sandbox);
}

static void write_script(const char *path, const char *text, mode_t mode) {
    (void)unlink(path);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0700);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void machine_that_cannot_confine_is_refused_with_a_remedy(void **state) {
    (void)state;
    struct sandbox_options missing = {.helper_directory = HELPERS, .bwrap_path = "/no/such/bwrap"};
    expect_refusal(&missing, "apt-get install bubblewrap");
    struct sandbox_options helpers = {.helper_directory = "/usr/bin"};
    expect_refusal(&helpers, "install Hearth again");
    char path[300];
    (void)snprintf(path, sizeof path, "%s/bwrap", workspace);
    struct sandbox_options fake = {.helper_directory = HELPERS, .bwrap_path = path};
    write_script(path, "#!/bin/sh\nexec /usr/bin/bwrap \"$@\"\n", 0777);
    expect_refusal(&fake, "apt-get install bubblewrap"); // anyone can change it
    write_script(path, "#!/bin/sh\nexec /usr/bin/bwrap \"$@\"\n", 04755);
    expect_refusal(&fake, "apt-get install bubblewrap"); // setuid
    write_script(
        path, "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n", 0755
    );
    expect_refusal(&fake, "AppArmor");
    write_script(
        path,
        "#!/bin/sh\nshift 2\nwhile [ \"$1\" != -- ]; do shift; done; shift 1\n"
        "echo 'CapEff: all'; exit 0\n",
        0755
    );
    expect_refusal(&fake, "bwrap"); // claims success without a confined command
}

static void sandbox_that_stops_working_refuses_the_next_call(void **state) {
    (void)state;
    char path[300];
    char text[800];
    (void)snprintf(path, sizeof path, "%s-bwrap", workspace);
    (void)snprintf(text, sizeof text, "cp /usr/bin/bwrap %s && chmod 755 %s", path, path);
    assert_int_equal(system(text), 0);
    struct sandbox_options options = {.helper_directory = HELPERS, .bwrap_path = path};
    struct sandbox *sandbox = NULL;
    assert_true(is_ok(sandbox_open(&options, &sandbox, NULL)));
    assert_int_not_equal(sandbox_get_probe(sandbox)->rung, SANDBOX_REFUSED);
    write_script(
        path, "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n", 0755
    );
    const char *const command[] = {"touch", "ran", NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    assert_true(is_ok(sandbox_run(sandbox, &policy, command, -1, &call, NULL)));
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    assert_int_equal(outcome->end, SANDBOX_LAUNCH_FAILED);
    assert_non_null(strstr(outcome->reason, "No permissions"));
    sandbox_call_destroy(call);
    sandbox_close(sandbox);
    assert_int_equal(unlink(path), 0);
    (void)snprintf(path, sizeof path, "%s/ran", workspace);
    assert_int_equal(access(path, F_OK), -1);
}

static void no_cgroup_is_a_lower_rung_or_a_refusal(void **state) {
    (void)state;
    struct sandbox_options options = {.helper_directory = HELPERS, .cgroup_mount = "/no/such"};
    if (geteuid() == 0) {
        expect_refusal(&options, "ordinary user");
        return;
    }
    struct sandbox *sandbox = NULL;
    assert_true(is_ok(sandbox_open(&options, &sandbox, NULL)));
    assert_int_equal(sandbox_get_probe(sandbox)->rung, SANDBOX_NO_CGROUP);
    assert_true(sandbox_get_probe(sandbox)->weaker[0] != '\0');
    sandbox_close(sandbox);
}

/* ---- the host ------------------------------------------------------------------------------- */

static unsigned count_descriptors(void) {
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count += 1;
    }
    closedir(directory);
    return count;
}

static void calls_leave_no_descriptor_and_no_cgroup(void **state) {
    (void)state;
    unsigned before = count_descriptors();
    for (unsigned i = 0; i < 10; i++) {
        sandbox_call_destroy(run("exit 0"));
        assert_true(is_failed(try_workspace("/", NULL)));
    }
    assert_int_equal(count_descriptors(), before);
    const char *place = sandbox_get_probe(shared)->cgroup_path;
    char text[SANDBOX_PATH_BYTES + 200];
    (void)snprintf(
        text,
        sizeof text,
        "! ls -d '%s'/hearth-*-%ld-* >/dev/null 2>&1",
        place[0] != '\0' ? place : "/no/such",
        (long)getpid()
    );
    assert_int_equal(system(text), 0);
}

static void *run_in_thread(void *context) {
    const char *path = context;
    for (unsigned i = 0; i < 3; i++) {
        struct sandbox_policy policy = sandbox_policy_default(path);
        const char *const command[] = {"sh", "-c", "echo $PPID; exit 9", NULL};
        struct sandbox_call *call = NULL;
        struct error error = {0};
        if (is_failed(sandbox_run(shared, &policy, command, -1, &call, &error))) {
            (void)fprintf(stderr, "%s\n", error.message);
            return NULL;
        }
        bool good = sandbox_call_outcome(call)->exit_status == 9;
        if (!good) {
            const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
            (void)fprintf(stderr, "%s: %s\n", sandbox_end_name(outcome->end), outcome->reason);
        }
        sandbox_call_destroy(call);
        if (!good) {
            return NULL;
        }
    }
    return context;
}

static void calls_run_in_several_threads_at_once(void **state) {
    (void)state;
    pthread_t threads[4];
    char paths[4][256];
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        make_workspace(paths[i]);
        assert_int_equal(pthread_create(&threads[i], NULL, run_in_thread, paths[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        void *good = NULL;
        assert_int_equal(pthread_join(threads[i], &good), 0);
        assert_ptr_equal(good, paths[i]);
        remove_tree(paths[i]);
    }
}

static void killed_host_takes_its_commands_along(void **state) {
    (void)state;
    char tag[64];
    char script[128];
    (void)snprintf(tag, sizeof tag, "hearth-tag-%ld-killed", (long)getpid());
    (void)snprintf(script, sizeof script, "touch ready; exec -a %s sleep 100", tag);
    char program[] = TEST_BINARY_DIR "/tests/sandbox_cli";
    char word[] = "sandbox";
    char verb[] = "run";
    char option[] = "-C";
    char dashes[] = "--";
    char shell[] = "bash";
    char flag[] = "-c";
    char *words[] = {program, word, verb, option, workspace, dashes, shell, flag, script, NULL};
    char *environment[] = {NULL};
    pid_t pid = -1;
    assert_int_equal(posix_spawn(&pid, program, NULL, NULL, words, environment), 0);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ready", workspace);
    int64_t deadline = now_ms() + 10000;
    while (access(path, F_OK) != 0) {
        assert_true(now_ms() < deadline);
        assert_int_equal(poll(NULL, 0, 10), 0);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    deadline = now_ms() + 5000;
    while (count_tagged(tag) > 0) { // the kernel ends the namespace in its own time
        assert_true(now_ms() < deadline);
        assert_int_equal(poll(NULL, 0, 10), 0);
    }
    struct sandbox_options options = {.helper_directory = HELPERS};
    struct sandbox *sandbox = NULL; // a restarted host removes what the dead one left
    assert_true(is_ok(sandbox_open(&options, &sandbox, NULL)));
    char text[SANDBOX_PATH_BYTES + 200];
    const char *place = sandbox_get_probe(sandbox)->cgroup_path;
    (void)snprintf(
        text,
        sizeof text,
        "! ls -d '%s'/hearth-*-%ld-* >/dev/null 2>&1",
        place[0] != '\0' ? place : "/no/such",
        (long)pid
    );
    assert_int_equal(system(text), 0);
    sandbox_close(sandbox);
}

static void probe_says_what_is_enforced(void **state) {
    (void)state;
    const struct sandbox_probe *probe = sandbox_get_probe(shared);
    assert_true(probe->user_namespaces);
    assert_true(probe->seccomp);
    assert_true(probe->landlock_abi >= 1);
    assert_true(probe->bwrap_path[0] == '/');
    assert_true(probe->bwrap_version[0] >= '0' && probe->bwrap_version[0] <= '9');
    assert_int_equal(probe->is_root, geteuid() == 0);
    assert_int_equal(probe->rung == SANDBOX_FULL, probe->cgroup != SANDBOX_CGROUP_NONE);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

/* test_sandbox [PATTERN]: all tests, or those whose names match. */
int main(int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    struct sandbox_options options = {.helper_directory = HELPERS};
    struct error error = {0};
    if (is_failed(sandbox_open(&options, &shared, &error))) {
        (void)printf("%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(shared);
    if (probe->rung == SANDBOX_REFUSED) {
        (void)printf("SKIPPED test_sandbox: %s; fix: %s\n", probe->refusal, probe->remedy);
        sandbox_close(shared);
        return 77;
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
        TEST(changes_of_trusted_names_are_reported),
        TEST(unfit_workspaces_are_refused),
        TEST(planted_git_is_refused),
        TEST(git_worktree_and_submodule_are_usable),
        TEST(second_command_in_a_workspace_is_refused),
        TEST(machine_that_cannot_confine_is_refused_with_a_remedy),
        TEST(sandbox_that_stops_working_refuses_the_next_call),
        TEST(no_cgroup_is_a_lower_rung_or_a_refusal),
        TEST(calls_leave_no_descriptor_and_no_cgroup),
        TEST(calls_run_in_several_threads_at_once),
        TEST(killed_host_takes_its_commands_along),
        TEST(probe_says_what_is_enforced),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sandbox_close(shared);
    return failed;
}
