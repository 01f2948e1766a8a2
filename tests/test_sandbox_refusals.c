/* What the sandbox refuses and how it says so, and the host around it: threads, leaks, death. */
#include "sandbox_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
        "gitdir: /etc/ssl\n",
        "gitdir: .hidden\n",
        "gitdir: /no/such\n",
        "rubbish",
        "",
        "gitdir: ../workspace/link\n"}; // inside a path that a command could prepare
    for (size_t i = 0; i < COUNT_OF(contents); i++) {
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        assert_true(fputs(contents[i], file) >= 0);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(try_workspace(workspace, &error).code, RESULT_INVALID_INPUT);
    }
    assert_non_null(strstr(error.message, "lies in it inside"));
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

static void bwrap_is_never_taken_from_the_path(void **state) {
    (void)state;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/bwrap", workspace);
    write_script(path, "#!/bin/sh\nexit 0\n", 0755);
    const char *old = getenv("PATH");
    char kept[4096];
    (void)snprintf(kept, sizeof kept, "%s", old != NULL ? old : "");
    assert_int_equal(setenv("PATH", workspace, 1), 0);
    struct sandbox_options options = {.helper_directory = HELPERS};
    struct sandbox *sandbox = NULL;
    assert_true(is_ok(sandbox_open(&options, &sandbox, NULL)));
    assert_string_equal(
        sandbox_get_probe(sandbox)->bwrap_path, sandbox_get_probe(shared)->bwrap_path
    );
    sandbox_close(sandbox);
    assert_int_equal(setenv("PATH", kept, 1), 0);
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
    int64_t deadline = now_ms() + 60000;
    while (access(path, F_OK) != 0) {
        assert_true(now_ms() < deadline);
        assert_int_equal(poll(NULL, 0, 10), 0);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    deadline = now_ms() + 60000;
    while (count_tagged(tag) > 0) { // the kernel ends the namespace in its own time
        assert_true(now_ms() < deadline);
        assert_int_equal(poll(NULL, 0, 10), 0);
    }
    struct sandbox_options options = {.helper_directory = HELPERS};
    struct sandbox *sandbox = NULL;
    bool is_clear = false;
    deadline = now_ms() + 60000;
    while (!is_clear
    ) { // a restarted host removes what the dead one left, once nobody dies in it any more
        assert_true(now_ms() < deadline);
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
        is_clear = system(text) == 0;
        sandbox_close(sandbox);
    }
}

static void command_line_exit_status_tells_what_happened(void **state) {
    (void)state;
    static const struct {
        const char *arguments; /* "@" stands for the workspace */
        int status;
    } cases[] = {
        {"run -C @ -- true", 0},
        {"run -C @ -- sh -c 'exit 9'", 9},
        {"run -C @ -- sh -c 'exit 125'", 125},
        {"run -C @ -- bash -c 'kill -ABRT $$'", 134},
        {"run -C @ --max-time 1 -- sleep 20", 124},
        {"run -C / -- true", 125},
        {"run -C @/missing -- true", 125},
        {"run -C @ --protect ../x -- true", 125},
        {"run -C @ --max-memory 0 -- true", 125},
        {"run -C @ --max-memory x -- true", 2},
        {"run -C @ --no-such-option -- true", 2},
        {"run -C @", 2},
        {"run -- true", 2},
        {"run --help", 0},
        {"file --help", 0},
        {"file write @ a </dev/null", 0},
        {"file read @ a", 0},
        {"file read @ ../a", 1},
        {"file mkdir @ d", 0},
        {"file rm @ d", 0},
        {"file rm @ .git", 1},
        {"file frobnicate @ d", 2},
        {"file read @", 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[2048];
        size_t used = 0;
        used += (size_t)snprintf(text, sizeof text, TEST_BINARY_DIR "/tests/sandbox_cli sandbox ");
        for (const char *at = cases[i].arguments; *at != '\0'; at++) {
            const char *part = *at == '@' ? workspace : (const char[]){*at, '\0'};
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", part);
            assert_true(used < sizeof text - 32);
        }
        (void)snprintf(text + used, sizeof text - used, " >/dev/null 2>&1");
        int status = system(text);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != cases[i].status) {
            fail_msg("'%s': %d, not %d", cases[i].arguments, status >> 8, cases[i].status);
        }
    }
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

/* test_sandbox_refusals [PATTERN]: all tests, or those whose names match. */
int main(int argc, char **argv) {
    int status = open_shared("test_sandbox_refusals", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(unfit_workspaces_are_refused),
        TEST(planted_git_is_refused),
        TEST(git_worktree_and_submodule_are_usable),
        TEST(machine_that_cannot_confine_is_refused_with_a_remedy),
        TEST(bwrap_is_never_taken_from_the_path),
        TEST(sandbox_that_stops_working_refuses_the_next_call),
        TEST(no_cgroup_is_a_lower_rung_or_a_refusal),
        TEST(calls_leave_no_descriptor_and_no_cgroup),
        TEST(calls_run_in_several_threads_at_once),
        TEST(killed_host_takes_its_commands_along),
        TEST(command_line_exit_status_tells_what_happened),
        TEST(probe_says_what_is_enforced),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
