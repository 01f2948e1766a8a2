/* Git directories below the top of a workspace: what commands can do there, alone and together. */
#include "sandbox/nested.h"
#include "sandbox_support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void host(const char *script) {
    char text[1024];
    int length = snprintf(text, sizeof text, "cd '%s' && { %s; }", workspace, script);
    assert_true(length > 0 && (size_t)length < sizeof text);
    assert_int_equal(system(text), 0);
}

/* A repository in lib/in, a submodule's file in sub. */
static void make_nested(void) {
    host("mkdir -p lib/in/.git/hooks sub src; echo config >lib/in/.git/config; "
         "echo 'gitdir: ../.git/modules/sub' >sub/.git; echo file >lib/in/file");
}

static void check_nested(void) {
    host("[ \"$(cat lib/in/.git/config)\" = config ] && [ -z \"$(ls -A lib/in/.git/hooks)\" ]");
    host("[ \"$(ls lib/in/.git)\" = \"$(printf 'config\\nhooks')\" ]");
    host("[ \"$(cat sub/.git)\" = 'gitdir: ../.git/modules/sub' ]");
    host("[ ! -L lib ] && [ ! -L lib/in ] && [ ! -L lib/in/.git ] && [ ! -L sub/.git ]");
}

static const char attack[] =
    "for f in lib/in/.git/config lib/in/.git/hooks/x lib/in/.git/commondir sub/.git; do "
    "echo x >>$f; done; mv lib/in/.git lib/in/git; rm -rf lib/in/.git sub/.git; "
    "mv lib other; mv lib/in lib/out; mv sub bus; rm -rf lib/in; rmdir sub; "
    "ln -sfn /oldroot/tmp lib/in/.git; chmod 777 lib/in/.git; "
    "python3 -c \"import ctypes; l = ctypes.CDLL(None); "
    "l.syscall(316, -100, b'lib', -100, b'src', 2)\"; "
    "ls -d lib/in/.git sub/.git src";

static void no_command_writes_there(void **state) {
    (void)state;
    make_nested();
    for (int i = 0; i < 2; i++) {
        struct sandbox_call *call = run(attack);
        expect_end(call, SANDBOX_EXITED, 0);
        assert_true(output_has(call, "lib/in/.git\nsrc\nsub/.git\n"));
        /* The first one begins in the same tick of the clock in which we made them. */
        assert_true(i == 0 || strstr(sandbox_call_outcome(call)->trust_changes, ".git") == NULL);
        sandbox_call_destroy(call);
        check_nested();
    }
}

static void everything_beside_stays_writable(void **state) {
    (void)state;
    make_nested();
    struct sandbox_call *call =
        run("set -e; echo new >lib/in/new; mv lib/in/new lib/in/newer; mv lib/in/newer src/; "
            "mkdir lib/more; rm -rf lib/more; echo s >sub/s; cat lib/in/.git/config src/newer");
    expect_end(call, SANDBOX_EXITED, 0);
    assert_true(output_has(call, "config\nnew\n"));
    sandbox_call_destroy(call);
    host("[ \"$(cat src/newer)\" = new ] && [ -e sub/s ]");
}

static void commands_still_share_the_workspace(void **state) {
    (void)state;
    make_nested();
    struct sandbox_call *first = start("echo up; sleep 60");
    step_until_output(first);
    for (int i = 0; i < 3; i++) {
        struct sandbox_call *second = run(attack);
        expect_end(second, SANDBOX_EXITED, 0);
        assert_true(output_has(second, "lib/in/.git\nsrc\nsub/.git\n"));
        sandbox_call_destroy(second);
        check_nested();
    }
    host("mv lib/in/.git away; mkdir lib/in/.git"); /* another one than the first command has */
    const struct sandbox_policy policy = small_policy();
    static const char *const command[] = {"true", NULL};
    struct sandbox_call *third = NULL;
    assert_int_equal(sandbox_start(shared, &policy, command, &third, NULL).code, RESULT_LIMIT);
    sandbox_call_cancel(first);
    sandbox_call_cancel(first);
    finish(first);
    sandbox_call_destroy(first);
}

static void one_that_a_command_made_is_told(void **state) {
    (void)state;
    host("mkdir a");
    struct sandbox_call *call = run("mkdir -p a/.git/hooks; echo x >a/.git/config");
    assert_non_null(strstr(sandbox_call_outcome(call)->trust_changes, "(nested)/.git"));
    sandbox_call_destroy(call);
    call = run("echo y >>a/.git/config && echo written"); /* it is the command's own */
    assert_true(output_has(call, "written"));
    assert_non_null(strstr(sandbox_call_outcome(call)->trust_changes, "(nested)/.git"));
    sandbox_call_destroy(call);
}

static void a_read_only_workspace_stays_so(void **state) {
    (void)state;
    make_nested();
    struct sandbox_policy policy = small_policy();
    policy.is_read_only = true;
    struct sandbox_call *call =
        run_with(&policy, "echo x >lib/x || echo x >lib/in/x || echo x >sub/x || echo refused");
    assert_true(output_has(call, "refused"));
    sandbox_call_destroy(call);
}

static void protected_paths_in_pinned_directories_stay_so(void **state) {
    (void)state;
    static const char *const protect[] = {"lib/in/keep", "sub"};
    make_nested();
    host("echo keep >lib/in/keep");
    struct sandbox_policy policy = small_policy();
    policy.protect = protect;
    policy.protect_count = COUNT_OF(protect);
    struct sandbox_call *call =
        run_with(&policy, "echo x >lib/in/keep || echo x >sub/x || echo x >lib/in/y && echo both");
    assert_true(output_has(call, "both"));
    sandbox_call_destroy(call);
    check_nested();
    host("[ \"$(cat lib/in/keep)\" = keep ] && [ ! -e sub/x ] && [ -e lib/in/y ]");
}

static void what_goes_away_holds_nobody_up(void **state) {
    (void)state;
    make_nested();
    sandbox_call_destroy(run("true"));
    host("rm -rf lib; ln -s /tmp lib; rm sub/.git; mkfifo sub/.git");
    struct sandbox_call *call = run("readlink lib; echo x >sub/x && echo fine");
    assert_true(output_has(call, "/tmp\nfine\n"));
    sandbox_call_destroy(call);
}

static void the_search_is_bounded(void **state) {
    (void)state;
    static struct nested found;
    struct error error = {0};
    host("mkdir -p .git/modules/x/.git a/b/c/.git/d/.git deep; ln -s ../.git a/.git; ln -s / root; "
         "touch .gitx; mkdir e; mkfifo e/.git");
    CLEANUP(fd_cleanup) int fd = open(workspace, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0 && is_ok(nested_find(fd, &found, &error)));
    assert_int_equal(found.count, 1);
    assert_string_equal(found.paths[0], "a/b/c/.git");
    host("for i in $(seq 30); do mkdir -p z$i/.git; done; cd deep; "
         "for i in $(seq 200); do mkdir dddddddddd; cd dddddddddd; done; mkdir .git");
    assert_true(is_ok(nested_find(fd, &found, &error)));
    assert_int_equal(found.count, NESTED_MAX); /* the upper ones */
    for (size_t i = 0; i < found.count; i++) {
        assert_int_equal(found.paths[i][0], 'z');
    }
    struct sandbox_call *call =
        run("echo x >z1/.git/x || echo refused"); /* as many as there is room for */
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_EXITED);
    sandbox_call_destroy(call);
}

int main(int argc, char **argv) {
    int status = open_shared("test_sandbox_nested", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(no_command_writes_there),
        TEST(everything_beside_stays_writable),
        TEST(commands_still_share_the_workspace),
        TEST(one_that_a_command_made_is_told),
        TEST(a_read_only_workspace_stays_so),
        TEST(protected_paths_in_pinned_directories_stay_so),
        TEST(what_goes_away_holds_nobody_up),
        TEST(the_search_is_bounded),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
