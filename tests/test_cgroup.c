/* Where groups can be made, on trees of plain files that look like cgroup mounts; and, where this
 * machine lets us, real groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/cgroup.h"

static char mount[256];

static void shell(const char *command) {
    char text[2048];
    (void)snprintf(text, sizeof text, "cd '%s' && %s", mount, command);
    assert_int_equal(system(text), 0);
}

static int set_up(void **state) {
    (void)state;
    (void)snprintf(mount, sizeof mount, "/var/tmp/hearth-cgroup-XXXXXX");
    assert_non_null(mkdtemp(mount));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    shell("cd / && rm -rf \"$OLDPWD\"");
    return 0;
}

static struct cgroup_place find(const char *own) {
    struct cgroup_place place;
    cgroup_find(mount, own, &place);
    return place;
}

static void expect_below_mount(const char *path, const char *expected) {
    assert_int_equal(strncmp(path, mount, strlen(mount)), 0);
    assert_string_equal(path + strlen(mount), expected);
}

static void empty_or_damaged_places_are_none(void **state) {
    (void)state;
    static const char *const texts[] = {
        "", "\n", "0::", "0::/", "rubbish", "::::\n1:", "5:memory:/\n6:pids:/\n", "0::/a/b/c\n"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_int_equal(find(texts[i]).kind, SANDBOX_CGROUP_NONE);
    }
}

static void v1_nests_below_our_own_group(void **state) {
    (void)state;
    shell("mkdir -p memory/user/me pids unified cpu && touch memory/user/me/cgroup.procs "
          "memory/cgroup.procs pids/cgroup.procs cpu/cgroup.procs unified/cgroup.procs");
    struct cgroup_place place = find("9:cpu,cpuacct:/x\n4:memory:/user/me\n8:pids:/gone\n0::/\n");
    assert_int_equal(place.kind, SANDBOX_CGROUP_V1);
    expect_below_mount(place.base[CGROUP_MEMORY], "/memory/user/me");
    expect_below_mount(place.base[CGROUP_PIDS], "/pids"); // our own one cannot be seen
    expect_below_mount(place.base[CGROUP_CPU], "/cpu");
    expect_below_mount(place.base[CGROUP_KILL], "/unified");
    shell("rm -r pids");
    assert_int_equal(find("4:memory:/user/me\n8:pids:/\n").kind, SANDBOX_CGROUP_NONE);
}

static void v2_takes_a_directory_that_hands_limits_down(void **state) {
    (void)state;
    shell("mkdir -p app.slice/me.scope && for d in app.slice app.slice/me.scope; do "
          "touch $d/cgroup.procs; echo 'cpu memory pids' >$d/cgroup.controllers; done; "
          "echo 'memory pids' >app.slice/cgroup.subtree_control; "
          ": >app.slice/me.scope/cgroup.subtree_control; "
          "chmod a-w app.slice/me.scope/cgroup.procs");
    if (geteuid() != 0) { // root may write anyway
        struct cgroup_place place = find("0::/app.slice/me.scope\n");
        assert_int_equal(place.kind, SANDBOX_CGROUP_V2);
        expect_below_mount(place.base[CGROUP_KILL], "/app.slice");
    }
    shell("echo 'memory pids' >app.slice/me.scope/cgroup.subtree_control; "
          "chmod u+w app.slice/me.scope/cgroup.procs");
    struct cgroup_place own = find("0::/app.slice/me.scope\n");
    assert_int_equal(own.kind, SANDBOX_CGROUP_V2);
    expect_below_mount(own.base[CGROUP_KILL], "/app.slice/me.scope");
    shell("for d in app.slice app.slice/me.scope; do echo hugetlb >$d/cgroup.controllers; done");
    assert_int_equal(find("0::/app.slice/me.scope\n").kind, SANDBOX_CGROUP_NONE);
}

static void group_that_cannot_be_limited_leaves_nothing(void **state) {
    (void)state;
    shell("mkdir memory pids && touch memory/cgroup.procs pids/cgroup.procs");
    struct cgroup_place place = find("4:memory:/\n8:pids:/\n");
    assert_int_equal(place.kind, SANDBOX_CGROUP_V1);
    struct cgroup_limits limits = {.memory_bytes = 1 << 26, .processes = 10};
    struct cgroup group;
    struct error error = {0};
    assert_int_equal(cgroup_create(&place, &limits, &group, &error).code, RESULT_IO);
    shell("test \"$(ls memory pids | grep -c hearth)\" = 0");
}

static void groups_of_dead_hosts_are_removed(void **state) {
    (void)state;
    struct stat space;
    assert_int_equal(stat("/proc/self/ns/pid", &space), 0);
    char text[1024];
    (void)snprintf(
        text,
        sizeof text,
        "mkdir memory pids && touch memory/cgroup.procs pids/cgroup.procs && cd memory && "
        "mkdir hearth-%llu-999999999-5-0 hearth-%llu-1-1-0 hearth-7-999999999-5-0 hearth-host "
        "hearth-x other-1-2-3",
        (unsigned long long)space.st_ino,
        (unsigned long long)space.st_ino
    );
    shell(text);
    struct cgroup_place place = find("4:memory:/\n8:pids:/\n");
    assert_int_equal(cgroup_remove_stale(&place, false), 2); // no such process; another start time
    shell("test \"$(ls memory | tr '\\n' ' ')\" = "
          "'cgroup.procs hearth-7-999999999-5-0 hearth-host hearth-x other-1-2-3 '");
}

static void real_group_holds_and_kills_its_members(void **state) {
    (void)state;
    struct cgroup_place place;
    cgroup_find(NULL, NULL, &place);
    if (place.kind == SANDBOX_CGROUP_NONE) {
        skip(); // no group can be made here
    }
    struct cgroup_limits limits = {.memory_bytes = 64 << 20, .processes = 10, .cpu_percent = 50};
    struct cgroup group;
    struct error error = {0};
    if (is_failed(cgroup_create(&place, &limits, &group, &error))) {
        fail_msg("%s", error.message);
    }
    int procs[CGROUP_SLOTS];
    int count = cgroup_open_procs(&group, procs);
    assert_true(count >= 1);
    pid_t pid = fork(); // the test has one thread
    if (pid == 0) {
        for (int i = 0; i < count; i++) {
            if (write(procs[i], "0", 1) != 1) {
                _exit(1);
            }
        }
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    int ended = 0;
    while (waitpid(pid, &ended, WNOHANG) == 0) { // until it is in, the kill finds nobody
        cgroup_kill(&group);
        usleep(1000);
    }
    for (int i = 0; i < count; i++) {
        close(procs[i]);
    }
    assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
    struct cgroup_events events = cgroup_read_events(&group);
    assert_false(events.out_of_memory);
    assert_false(events.processes_refused);
    for (unsigned i = 0; i < 1000 && !cgroup_remove(&group); i++) {
        usleep(1000);
    }
    assert_true(cgroup_remove(&group));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(empty_or_damaged_places_are_none),
        TEST(v1_nests_below_our_own_group),
        TEST(v2_takes_a_directory_that_hands_limits_down),
        TEST(group_that_cannot_be_limited_leaves_nothing),
        TEST(groups_of_dead_hosts_are_removed),
        TEST(real_group_holds_and_kills_its_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
