/* What the workspace of a child costs: a copy of a snapshot with a store of its own, its first snapshot, its
 * way into the parent's store, and the merge. No test: timings mean something on an idle machine only.
 *
 * bench_worktree [FILES [ROUNDS]]; the trees and stores are made in /var/tmp and removed.
 */
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sandbox/workspace_merge.h"
#include "sandbox/worktree.h"

#define FILES_PER_DIRECTORY 25
#define ROUNDS_MAX          100

static char base[64];

enum step { COPY, FIRST, IMPORT, MERGE, APPLY, REMOVE, STEPS };

static double wall[STEPS][ROUNDS_MAX], processor[STEPS][ROUNDS_MAX];

static double read_ms(clockid_t clock) {
    struct timespec now;
    int status = clock_gettime(clock, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void shell(const char *format, ...) PRINTF_LIKE(1, 2);

static void shell(const char *format, ...) {
    char text[1000];
    int used = snprintf(text, sizeof text, "cd '%s' && ", base);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    ASSERT(length > 0 && (size_t)(used + length) < sizeof text);
    ASSERT(system(text) == 0);
}

static void write_file(unsigned index) {
    char path[200];
    unsigned directory = index / FILES_PER_DIRECTORY;
    (void)snprintf(path, sizeof path, "%s/ws/d%02u/e%u", base, directory % 20, directory);
    (void)mkdir(path, 0755); // there already, mostly
    (void
    )snprintf(path, sizeof path, "%s/ws/d%02u/e%u/f%u.c", base, directory % 20, directory, index);
    CLEANUP(file_cleanup) FILE *file = fopen(path, "w");
    ASSERT(file != NULL);
    for (unsigned line = 0; line < 60; line++) {
        (void)fprintf(file, "line %u of file %u\n", line, index);
    }
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print(const char *what, enum step step, size_t count) {
    qsort(wall[step], count, sizeof wall[step][0], compare_double);
    qsort(processor[step], count, sizeof processor[step][0], compare_double);
    (void)printf(
        "%-34s wall min %8.1f  median %8.1f  max %8.1f; processor median %8.1f ms\n",
        what,
        wall[step][0],
        wall[step][count / 2],
        wall[step][count - 1],
        processor[step][count / 2]
    );
}

static void check(result done, const struct error *error) {
    if (is_failed(done)) {
        (void)fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
}

static double began[2];

static void begin(void) {
    began[0] = read_ms(CLOCK_MONOTONIC);
    began[1] = read_ms(CLOCK_PROCESS_CPUTIME_ID);
}

static void end(enum step step, size_t at) {
    wall[step][at] = read_ms(CLOCK_MONOTONIC) - began[0];
    processor[step][at] = read_ms(CLOCK_PROCESS_CPUTIME_ID) - began[1];
}

/* One child: made, worked in, brought home. */
static void run_round(struct workspace *parent, const char *store, size_t at) {
    char source[100], directory[100], own[100];
    struct worktree made;
    struct error error = {0};
    struct workspace_snapshot now, result_of;
    struct workspace *child = NULL;
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = {.taken = 0};
    (void)snprintf(source, sizeof source, "%s/ws", base);
    (void)snprintf(directory, sizeof directory, "%s/child%zu", base, at);
    (void)snprintf(own, sizeof own, "%s/own%zu", base, at);
    check(workspace_take_snapshot(parent, "parent", &now, &error), &error);
    const struct worktree_options options = {
        .source = source,
        .directory = directory,
        .snapshots = store,
        .commit = now.commit,
        .own_snapshots = own,
    };
    begin();
    check(worktree_create(&options, &made, &error), &error);
    end(COPY, at);
    shell("for i in 0 1 2 3 4; do echo work >>child%zu/d0$i/e$i/work; done", at);
    check(workspace_open(directory, own, &child, &error), &error);
    begin();
    check(workspace_take_snapshot(child, "child", &result_of, &error), &error);
    end(FIRST, at);
    workspace_close(child);
    begin();
    check(workspace_import(parent, own, result_of.commit, &error), &error);
    end(IMPORT, at);
    const struct workspace_merge_options merging = {
        now.commit, now.commit, result_of.commit, 0, false};
    begin();
    check(workspace_merge(parent, &merging, &merged, &error), &error);
    end(MERGE, at);
    ASSERT(merged.conflict_count == 0);
    begin();
    check(workspace_apply(parent, now.commit, merged.commit, &error), &error);
    end(APPLY, at);
    begin();
    check(worktree_remove_saved(directory, own, result_of.commit, &error), &error);
    end(REMOVE, at);
}

int main(int argc, char **argv) {
    unsigned files = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10000;
    size_t rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 8;
    ASSERT(files > 0 && rounds > 0 && rounds <= ROUNDS_MAX);
    char path[200], store[100];
    struct workspace *parent = NULL;
    struct error error = {0};
    struct workspace_snapshot first;
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-bench-XXXXXX");
    ASSERT(mkdtemp(base) != NULL);
    shell("bash -c 'mkdir -p ws/d{00..19}'");
    for (unsigned i = 0; i < files; i++) {
        write_file(i);
    }
    shell("cd ws && git init -q . && git add . && git -c user.name=b -c user.email=b commit -qm b");
    (void)snprintf(path, sizeof path, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    check(workspace_open(path, store, &parent, &error), &error);
    (void)sleep(3); // files changed a moment ago are not trusted to be the same
    check(workspace_take_snapshot(parent, "bench", &first, &error), &error);
    for (size_t i = 0; i < rounds; i++) {
        run_round(parent, store, i);
    }
    (void)printf("%zu files\n", first.files);
    print("copy with its own store", COPY, rounds);
    print("first snapshot in it", FIRST, rounds);
    print("brought into the parent's store", IMPORT, rounds);
    print("merged", MERGE, rounds);
    print("applied to the parent", APPLY, rounds);
    print("copy removed", REMOVE, rounds);
    workspace_close(parent);
    shell("cat /proc/loadavg; rm -rf ws store own* child* ");
    return rmdir(base) == 0 ? 0 : 1;
}
