/* What confinement costs: interleaved rounds of a plain spawn, bubblewrap alone, and a whole
 * sandboxed call from sandbox_start to its outcome (which includes waiting until every process of
 * it is gone, removing its cgroup and looking through the workspace).
 *
 * bench_sandbox [ROUNDS] (100): medians with 10th and 90th percentile, and the difference.
 */
#include <errno.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

#define ROUNDS_MAX 10000U

enum variant { PLAIN, BUBBLEWRAP, SANDBOX, VARIANTS };

static const char *const names[VARIANTS] = {
    "posix_spawn sh -c true", "bubblewrap alone, minimal root", "sandboxed call of sh -c true"};

static double now_ms(void) {
    struct timespec now;
    int status = clock_gettime(CLOCK_MONOTONIC, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static bool spawn_and_wait(const char *const *words) {
    char *const *arguments = NULL;
    memcpy(&arguments, &words, sizeof arguments); // posix_spawn takes no const
    char *environment[] = {NULL};
    pid_t pid = -1;
    if (posix_spawn(&pid, words[0], NULL, NULL, arguments, environment) != 0) {
        return false;
    }
    int ended = 0;
    while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

static bool run_variant(enum variant variant, struct sandbox *sandbox, const char *workspace) {
    static const char *const plain[] = {"/bin/sh", "-c", "true", NULL};
    if (variant == PLAIN) {
        return spawn_and_wait(plain);
    }
    if (variant == BUBBLEWRAP) {
        const char *const words[] = {
            sandbox_get_probe(sandbox)->bwrap_path,
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--cap-drop",
            "ALL",
            "--new-session",
            "--die-with-parent",
            "--ro-bind",
            "/usr",
            "/usr",
            "--symlink",
            "usr/bin",
            "/bin",
            "--symlink",
            "usr/lib",
            "/lib",
            "--symlink",
            "usr/lib64",
            "/lib64",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--tmpfs",
            "/tmp",
            "--bind",
            workspace,
            "/workspace",
            "--chdir",
            "/workspace",
            "--",
            "/bin/sh",
            "-c",
            "true",
            NULL};
        return spawn_and_wait(words);
    }
    struct sandbox_policy policy = sandbox_policy_default(workspace);
    struct sandbox_call *call = NULL;
    struct error error = {0};
    if (is_failed(sandbox_run(sandbox, &policy, plain, -1, &call, &error))) {
        (void)fprintf(stderr, "bench_sandbox: %s\n", error.message);
        return false;
    }
    bool good = sandbox_call_outcome(call)->end == SANDBOX_EXITED;
    sandbox_call_destroy(call);
    return good;
}

static int compare_doubles(const void *a, const void *b) {
    double first;
    double second;
    memcpy(&first, a, sizeof first);
    memcpy(&second, b, sizeof second);
    return first < second ? -1 : first > second ? 1 : 0;
}

static void report(double *times[VARIANTS], unsigned rounds) {
    double medians[VARIANTS];
    (void)printf("%-32s %9s %9s %9s\n", "", "median ms", "p10", "p90");
    for (int i = 0; i < VARIANTS; i++) {
        qsort(times[i], rounds, sizeof times[i][0], compare_doubles);
        medians[i] = times[i][rounds / 2];
        (void)printf(
            "%-32s %9.2f %9.2f %9.2f\n",
            names[i],
            medians[i],
            times[i][rounds / 10],
            times[i][rounds - 1 - rounds / 10]
        );
    }
    (void)printf(
        "a call adds %.2f ms over a plain spawn, %.2f ms of them in bubblewrap\n",
        medians[SANDBOX] - medians[PLAIN],
        medians[BUBBLEWRAP] - medians[PLAIN]
    );
}

static int measure(struct sandbox *sandbox, const char *workspace, unsigned rounds) {
    double *times[VARIANTS] = {NULL};
    int status = 0;
    for (int i = 0; i < VARIANTS; i++) {
        times[i] = calloc(rounds, sizeof times[i][0]);
        status = times[i] == NULL ? 1 : status;
    }
    for (unsigned round = 0; round < rounds && status == 0; round++) {
        for (int i = 0; i < VARIANTS; i++) {
            double started = now_ms();
            if (!run_variant((enum variant)i, sandbox, workspace)) {
                (void)fprintf(stderr, "bench_sandbox: %s failed\n", names[i]);
                status = 1;
                break;
            }
            times[i][round] = now_ms() - started;
        }
    }
    if (status == 0) {
        report(times, rounds);
    }
    for (int i = 0; i < VARIANTS; i++) {
        free(times[i]);
    }
    return status;
}

int main(int argc, char **argv) {
    uint64_t rounds = 100;
    if (argc > 2 || (argc == 2 && (!parse_u64(view_of_text(argv[1]), &rounds) || rounds < 10 ||
                                   rounds > ROUNDS_MAX))) {
        (void)fprintf(stderr, "usage: bench_sandbox [ROUNDS, 10 to %u]\n", ROUNDS_MAX);
        return 2;
    }
    struct error error = {0};
    struct sandbox *sandbox = NULL;
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        (void)fprintf(stderr, "bench_sandbox: %s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    char workspace[] = "/var/tmp/hearth-bench-XXXXXX";
    int status = 1;
    if (probe->rung == SANDBOX_REFUSED) {
        (void)fprintf(stderr, "bench_sandbox: %s; fix: %s\n", probe->refusal, probe->remedy);
    } else if (mkdtemp(workspace) != NULL) {
        (void)printf(
            "bubblewrap %s, cgroup %s, %s, %u rounds\n",
            probe->bwrap_version,
            sandbox_cgroup_name(probe->cgroup),
            probe->is_root ? "root" : "ordinary user",
            (unsigned)rounds
        );
        status = measure(sandbox, workspace, (unsigned)rounds);
        (void)rmdir(workspace); // empty
    }
    sandbox_close(sandbox);
    return status;
}
