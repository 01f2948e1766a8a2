/* 64 children at once, each opened, worked in, verified, merged and closed on a thread of its own, with
 * commands that ignore SIGTERM: afterwards no process, directory, lease, descriptor or group is left. */
#include "swarm_work_support.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

#define CHILDREN 64

static char commit[WORKSPACE_COMMIT_BYTES];
static atomic_uint merged_count, conflict_count, cancelled_count;
static pthread_barrier_t opened;

static size_t count_entries(const char *path) {
    size_t count = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

/* Groups of commands, of all kinds that there may be. */
/* Of this process: others may run sandboxes too. */
static size_t count_groups(void) {
    char own[32];
    (void)snprintf(own, sizeof own, "-%ld-", (long)getpid());
    const char *path = sandbox_get_probe(sandbox)->cgroup_path;
    size_t count = 0;
    DIR *directory = path[0] != '\0' ? opendir(path) : NULL;
    for (struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        count += strstr(entry->d_name, own) != NULL ? 1 : 0;
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return count;
}

/* Whether a stubborn command of this process sleeps, of a child or (CHILDREN) of any. The number of seconds is nobody
 * else's; brackets, so that the shell which asks is not found. */
static bool sleeps(size_t index) {
    char command[100];
    char which[24] = "";
    if (index < CHILDREN) {
        (void)snprintf(which, sizeof which, "%02zu", index);
    }
    (void)snprintf(
        command, sizeof command, "pgrep -f 'sleep[ ]613.%07ld%s' >/dev/null", (long)getpid(), which
    );
    return shell_says(command);
}

struct canceller {
    struct swarm_work_node *node;
    size_t index;
};

static void *cancel_tools(void *context) {
    const struct canceller *canceller = context;
    while (!sleeps(canceller->index)) {
        (void)usleep(50000);
    }
    tool_cancel(swarm_work_tools(canceller->node));
    return NULL;
}

/* Every 16th child runs a command that does not want to end, and is cancelled. */
static void run_stubborn(struct swarm_work_node *node, size_t index) {
    CLEANUP(tool_result_deinit) struct tool_result outcome = {.status = TOOL_OK};
    pthread_t thread;
    char arguments[300];
    (void)snprintf(
        arguments,
        sizeof arguments,
        "{\"command\": \"echo late >stubborn; trap '' TERM; (trap '' TERM; setsid sleep "
        "613.%07ld%02zu) & "
        "while true; do sleep 613.%07ld%02zu; done\"}",
        (long)getpid(),
        index,
        (long)getpid(),
        index
    );
    struct canceller canceller = {node, index};
    assert_int_equal(pthread_create(&thread, NULL, cancel_tools, &canceller), 0);
    result called = tool_call(
        swarm_work_tools(node), view_of_text("shell"), view_of_text(arguments), &outcome, NULL
    );
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_ok(called));
    assert_int_equal(outcome.status, TOOL_CANCELLED);
    atomic_fetch_add(&cancelled_count, 1);
}

static void *live(void *context) {
    size_t index = *(const size_t *)context;
    char name[32];
    char script[200];
    struct swarm_work_node *node = NULL;
    struct error error = {0};
    (void)snprintf(name, sizeof name, "child-%zu", index);
    const struct swarm_work_open options = {
        .name = name, .parent = swarm_work_root(work), .commit = index % 2 == 0 ? commit : NULL};
    if (is_failed(swarm_work_open(work, &options, &node, &error))) {
        print_message("%s: %s\n", name, error.message);
        abort();
    }
    (void)pthread_barrier_wait(&opened);
    (void)snprintf(
        script,
        sizeof script,
        "echo %zu >own-%zu && echo %zu >d/pair-%zu",
        index,
        index,
        index,
        index / 2
    );
    run_in(node, script);
    if (index % 16 == 0) {
        run_stubborn(node, index);
    }
    (void)result_of(node);
    if (verify(node, 120000).verdict != SWARM_VERIFIED_PASS) {
        abort();
    }
    struct swarm_work_merge merged = merge_into(node, swarm_work_root(work));
    if (merged.merge == SWARM_MERGE_FAILED) {
        print_message("%s: %s\n", name, merged.detail);
        abort();
    }
    atomic_fetch_add(merged.merge == SWARM_MERGE_OK ? &merged_count : &conflict_count, 1);
    if (!close_node(node)) {
        abort();
    }
    return NULL;
}

static void sixty_four_at_once_leave_nothing(void **state) {
    (void)state;
    pthread_t threads[CHILDREN];
    size_t indexes[CHILDREN];
    begin_swarm(
        "git init -q .; mkdir d; for i in $(seq 200); do echo $i >d/$i; done; git add -A; "
        "git -c user.name=t -c user.email=t commit -qm f",
        "ls own-*"
    );
    assert_true(is_ok(swarm_work_snapshot(swarm_work_root(work), "for all", commit, NULL)));
    size_t descriptors = count_entries("/proc/self/fd");
    size_t groups = count_groups();
    assert_int_equal(pthread_barrier_init(&opened, NULL, CHILDREN), 0);
    for (size_t i = 0; i < CHILDREN; i++) {
        indexes[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, live, &indexes[i]), 0);
    }
    for (size_t i = 0; i < CHILDREN; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    (void)pthread_barrier_destroy(&opened);
    assert_int_equal(cancelled_count, CHILDREN / 16);
    assert_int_equal(merged_count, CHILDREN / 2); // of two that write one file the first
    assert_int_equal(conflict_count, CHILDREN / 2);
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    assert_int_equal(count_groups(), groups);
    assert_false(sleeps(CHILDREN));
    shell(
        "test $(ls ws | grep -c own-) = %d; test $(ls ws/d | grep -c pair-) = %d",
        CHILDREN / 2,
        CHILDREN / 2
    );
    shell("test -z \"$(ls state/swarms/session/*/)\" || ls state/swarms/session/* | grep -v : | "
          "{ ! grep .; }");
    end_swarm();
}

int main(int argc, char **argv) {
    int status = open_sandbox("test_swarm_work_many", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {TEST(sixty_four_at_once_leave_nothing)};
    return close_sandbox(cmocka_run_group_tests(tests, NULL, NULL));
}
