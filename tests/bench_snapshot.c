/* What a snapshot of a large working tree costs: the first one, the next ones without and with a few
 * changes, and putting the changes back. No test: timings mean something on an idle machine only.
 *
 * bench_snapshot [FILES [ROUNDS]]; the tree and its store are made in /var/tmp and removed.
 */
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sandbox/workspace.h"

#define FILES_PER_DIRECTORY 25

static char base[64];

static double read_ms(clockid_t clock) {
    struct timespec now;
    int status = clock_gettime(clock, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void write_file(unsigned index, unsigned version) {
    char path[200];
    unsigned directory = index / FILES_PER_DIRECTORY;
    (void)snprintf(path, sizeof path, "%s/ws/d%02u/e%u", base, directory % 20, directory);
    (void)mkdir(path, 0755); // there already, mostly
    (void
    )snprintf(path, sizeof path, "%s/ws/d%02u/e%u/f%u.c", base, directory % 20, directory, index);
    CLEANUP(file_cleanup) FILE *file = fopen(path, "w");
    ASSERT(file != NULL);
    for (unsigned line = 0; line < 60; line++) {
        (void)fprintf(file, "line %u of file %u in version %u\n", line, index, version);
    }
}

static double snapshot(struct workspace *workspace, struct workspace_snapshot *out) {
    struct error error = {0};
    double begin = read_ms(CLOCK_MONOTONIC);
    if (is_failed(workspace_take_snapshot(workspace, "bench", out, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    return read_ms(CLOCK_MONOTONIC) - begin;
}

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print(const char *what, double *times, size_t count) {
    qsort(times, count, sizeof times[0], compare_double);
    (void)printf(
        "%-34s min %8.1f  median %8.1f  max %8.1f ms\n",
        what,
        times[0],
        times[count / 2],
        times[count - 1]
    );
}

int main(int argc, char **argv) {
    unsigned files = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 10000;
    size_t rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 15;
    ASSERT(files > 0 && rounds > 0 && rounds <= 1000);
    double times[1000];
    char path[200];
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-bench-XXXXXX");
    ASSERT(mkdtemp(base) != NULL);
    (void)snprintf(path, sizeof path, "bash -c 'mkdir -p %s/ws/d{00..19}'", base);
    ASSERT(system(path) == 0);
    for (unsigned i = 0; i < files; i++) {
        write_file(i, 0);
    }
    struct workspace *workspace = NULL;
    char store[100];
    struct error error = {0};
    (void)snprintf(path, sizeof path, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    ASSERT(is_ok(workspace_open(path, store, &workspace, &error)));
    struct workspace_snapshot first;
    times[0] = snapshot(workspace, &first);
    (void)printf("%zu files\n", first.files);
    print("first snapshot", times, 1);
    (void)sleep(3); // files changed a moment ago are read again
    struct workspace_snapshot taken = first;
    (void)snapshot(workspace, &taken);
    double used = read_ms(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < rounds; i++) {
        times[i] = snapshot(workspace, &taken);
    }
    print("nothing changed", times, rounds);
    for (size_t i = 0; i < rounds; i++) {
        for (unsigned k = 0; k < 5; k++) {
            write_file((unsigned)(i * 997 + k * 101) % files, (unsigned)i + 1);
        }
        times[i] = snapshot(workspace, &taken);
    }
    print("five files changed", times, rounds);
    (void)printf(
        "processor time of one             %8.1f ms\n",
        (read_ms(CLOCK_PROCESS_CPUTIME_ID) - used) / (double)(2 * rounds)
    );
    double begin = read_ms(CLOCK_MONOTONIC);
    if (is_failed(workspace_restore(workspace, first.commit, NULL, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
    }
    times[0] = read_ms(CLOCK_MONOTONIC) - begin;
    print("restored to the first", times, 1);
    workspace_close(workspace);
    (void)snprintf(path, sizeof path, "cat /proc/loadavg; rm -rf '%s'", base);
    return system(path) == 0 ? 0 : 1;
}
