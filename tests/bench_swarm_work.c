/* What children of a swarm cost the host beside their KV: time to open and close their directories, and memory
 * while their agents could run and after their results. No test: timings mean something on an idle machine only.
 *
 * bench_swarm_work [FILES [CHILDREN [DIRECTORY]]]; the tree and all copies are made in DIRECTORY (/var/tmp) and
 * removed. Where many files were deleted within the last seconds ext4 looks long for an inode that was not.
 */
#include <malloc.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/swarm_work.h"
#include "sandbox/sandbox.h"

#define FILES_PER_DIRECTORY 25
#define CHILDREN_MAX        64

static char base[64];

static double read_ms(clockid_t clock) {
    struct timespec now;
    int status = clock_gettime(clock, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

struct times {
    double wall[CHILDREN_MAX], processor[CHILDREN_MAX];
    size_t count;
    double begun[2];
};

static void begin(struct times *times) {
    times->begun[0] = read_ms(CLOCK_MONOTONIC);
    times->begun[1] = read_ms(CLOCK_PROCESS_CPUTIME_ID);
}

static void end(struct times *times) {
    times->wall[times->count] = read_ms(CLOCK_MONOTONIC) - times->begun[0];
    times->processor[times->count++] = read_ms(CLOCK_PROCESS_CPUTIME_ID) - times->begun[1];
}

static void shell(const char *command) {
    char text[400];
    int length = snprintf(text, sizeof text, "cd '%s' && %s", base, command);
    ASSERT(length > 0 && (size_t)length < sizeof text);
    ASSERT(system(text) == 0);
}

static void check(result done, const struct error *error) {
    if (is_failed(done)) {
        (void)fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
}

static void write_files(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        char path[200];
        unsigned directory = i / FILES_PER_DIRECTORY;
        (void)snprintf(path, sizeof path, "%s/ws/e%u", base, directory);
        (void)mkdir(path, 0755); // there already, mostly
        (void)snprintf(path, sizeof path, "%s/ws/e%u/f%u.c", base, directory, i);
        CLEANUP(file_cleanup) FILE *file = fopen(path, "w");
        ASSERT(file != NULL);
        for (unsigned line = 0; line < 60; line++) {
            (void)fprintf(file, "line %u of file %u\n", line, i);
        }
    }
    shell("cd ws && git init -q . && git add . && git -c user.name=b -c user.email=b commit -qm b");
}

/* Bytes that are allocated, and resident. */
struct memory {
    double heap, resident;
};

static struct memory memory_now(void) {
    long pages[2] = {0, 0};
    struct mallinfo2 heap = mallinfo2();
    CLEANUP(file_cleanup) FILE *file = fopen("/proc/self/statm", "r");
    ASSERT(file != NULL && fscanf(file, "%ld %ld", &pages[0], &pages[1]) == 2);
    return (struct memory){
        (double)(heap.uordblks + heap.hblkhd) / 1048576.0,
        (double)pages[1] * (double)sysconf(_SC_PAGESIZE) / 1048576.0,
    };
}

static void print_memory(const char *what, struct memory before, size_t children) {
    struct memory now = memory_now();
    (void)printf(
        "%-28s %6.2f MiB a child allocated, %6.2f MiB resident\n",
        what,
        (now.heap - before.heap) / (double)children,
        (now.resident - before.resident) / (double)children
    );
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_times(const char *what, struct times *times) {
    size_t count = times->count;
    qsort(times->wall, count, sizeof times->wall[0], by_value);
    qsort(times->processor, count, sizeof times->processor[0], by_value);
    (void)printf(
        "%-28s wall min %7.1f  median %7.1f  max %7.1f; processor median %7.1f ms\n",
        what,
        times->wall[0],
        times->wall[count / 2],
        times->wall[count - 1],
        times->processor[count / 2]
    );
}

static void run(struct swarm_work *work, size_t children) {
    static struct swarm_work_node *nodes[CHILDREN_MAX];
    static struct times opening, ending, closing;
    struct error error = {0};
    struct memory before = memory_now();
    for (size_t i = 0; i < children; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "child-%zu", i);
        const struct swarm_work_open options = {.name = name, .parent = swarm_work_root(work)};
        begin(&opening);
        check(swarm_work_open(work, &options, &nodes[i], &error), &error);
        end(&opening);
    }
    print_memory("open", before, children);
    for (size_t i = 0; i < children;
         i++) { // the run's own first look, which keeps its list of files
        struct workspace_snapshot taken;
        struct workspace *workspace = swarm_work_workspace(nodes[i]);
        check(workspace_take_snapshot(workspace, "bench", &taken, &error), &error);
    }
    print_memory("after a call each", before, children);
    shell("for c in state/session/work/*; do echo work >>$c/e0/f0.c; done");
    for (size_t i = 0; i < children; i++) {
        struct swarm_work_made made;
        begin(&ending);
        check(swarm_work_result(nodes[i], &made, &error), &error);
        end(&ending);
    }
    print_memory("after the results", before, children);
    for (size_t i = 0; i < children; i++) {
        struct swarm_work_closed closed;
        begin(&closing);
        swarm_work_close(nodes[i], &closed);
        end(&closing);
        ASSERT(closed.is_removed);
    }
    print_times("opened", &opening);
    print_times("result brought home", &ending);
    print_times("closed", &closing);
}

int main(int argc, char **argv) {
    unsigned files = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10000;
    size_t children = argc > 2 ? strtoul(argv[2], NULL, 10) : 8;
    ASSERT(files > 0 && children > 0 && children <= CHILDREN_MAX);
    char workspace[100], store[100], place[100];
    struct sandbox *sandbox = NULL;
    struct swarm_work *work = NULL;
    struct error error = {0};
    const char *directory = argc > 3 ? argv[3] : "/var/tmp";
    int length = snprintf(base, sizeof base, "%s/hearth-bench-XXXXXX", directory);
    ASSERT(length > 0 && (size_t)length < sizeof base);
    ASSERT(mkdtemp(base) != NULL);
    shell("mkdir ws");
    write_files(files);
    (void)snprintf(workspace, sizeof workspace, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    (void)snprintf(place, sizeof place, "%s/state/session", base);
    const struct sandbox_options helpers = {.helper_directory = TEST_BINARY_DIR "/sandbox"};
    check(sandbox_open(&helpers, &sandbox, &error), &error);
    const struct sandbox_policy policy = sandbox_policy_default(workspace);
    const struct tool_context_options tools = {.clock = clock_real()};
    const struct permission_options permission = {.policy = PERMISSION_WORKSPACE_WRITE};
    const struct swarm_work_options options = {
        .workspace = workspace,
        .snapshots = store,
        .place = place,
        .sandbox = sandbox,
        .policy = &policy,
        .tools = &tools,
        .permission = &permission,
    };
    (void)sleep(3); // files changed a moment ago are not trusted to be the same
    check(swarm_work_create(&work, &options, &error), &error);
    (void)printf("%u files, %zu children\n", files, children);
    run(work, children);
    swarm_work_destroy(work);
    sandbox_close(sandbox);
    shell("cat /proc/loadavg; rm -rf ws store state");
    return rmdir(base) == 0 ? 0 : 1;
}
