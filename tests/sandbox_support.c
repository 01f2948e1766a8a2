#include "sandbox_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"

#define COMMAND_MAX 8192

struct sandbox *shared;
char workspace[256];

int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

void make_workspace(char path[256]) {
    (void)snprintf(path, 256, "/var/tmp/hearth-sandbox-XXXXXX");
    assert_non_null(mkdtemp(path));
}

void remove_tree(const char *path) {
    char text[2048];
    (void)snprintf(text, sizeof text, "rm -rf '%s'", path);
    assert_int_equal(system(text), 0);
}

int set_up(void **state) {
    (void)state;
    make_workspace(workspace);
    return 0;
}

int tear_down(void **state) {
    (void)state;
    remove_tree(workspace);
    return 0;
}

struct sandbox_policy small_policy(void) {
    struct sandbox_policy policy = sandbox_policy_default(workspace);
    policy.wall_ms = 20000;
    policy.memory_mib = 256;
    policy.processes = 64;
    policy.disk_mib = 64;
    return policy;
}

struct sandbox_call *run_with(const struct sandbox_policy *policy, const char *script) {
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_call *call = NULL;
    struct error error = {0};
    result ran = sandbox_run(shared, policy, command, -1, &call, &error);
    if (is_failed(ran)) {
        fail_msg("'%s': %s", script, error.message);
    }
    return call;
}

struct sandbox_call *run(const char *script) {
    struct sandbox_policy policy = small_policy();
    return run_with(&policy, script);
}

void expect_end(const struct sandbox_call *call, enum sandbox_end end, int status) {
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

bool output_has(const struct sandbox_call *call, const char *text) {
    struct buffer shown;
    buffer_init(&shown, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(sandbox_call_text(call, SANDBOX_STDOUT, &shown, NULL)));
    bool has = strstr(buffer_text(&shown), text) != NULL;
    buffer_deinit(&shown);
    return has;
}

/* How many processes of this machine have `tag` on their command line. */
unsigned count_tagged(const char *tag) {
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

/* Steps until the command has printed something. */
void step_until_output(struct sandbox_call *call) {
    int64_t deadline = now_ms() + 60000;
    while (sandbox_call_output(call, SANDBOX_STDOUT).head.length == 0) {
        assert_true(now_ms() < deadline);
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        (void)poll(&entry, 1, 1000);
        bool is_over = sandbox_call_step(call); // of what it printed last
        assert_true(!is_over || sandbox_call_output(call, SANDBOX_STDOUT).head.length > 0);
    }
}

void finish(struct sandbox_call *call) {
    while (!sandbox_call_step(call)) {
        struct pollfd entry = {.fd = sandbox_call_fd(call), .events = POLLIN};
        assert_true(poll(&entry, 1, 10000) > 0); // the one descriptor covers timers too
    }
}

struct sandbox_call *start(const char *script) {
    const char *const command[] = {"bash", "-c", script, NULL};
    struct sandbox_policy policy = small_policy();
    struct sandbox_call *call = NULL;
    struct error error = {0};
    if (is_failed(sandbox_start(shared, &policy, command, &call, &error))) {
        fail_msg("%s", error.message);
    }
    return call;
}

int open_shared(const char *name, int argc, char **argv) {
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
        (void)printf("SKIPPED %s: %s; fix: %s\n", name, probe->refusal, probe->remedy);
        return close_shared(77);
    }
    return 0;
}

int close_shared(int failed) {
    sandbox_close(shared);
    shared = NULL;
    return failed;
}
