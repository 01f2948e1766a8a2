/* Starting one confined command: arguments, descriptors, spawn. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_LAUNCH_H
#define HEARTH_SANDBOX_LAUNCH_H

#include <pthread.h>
#include <sys/types.h>

#include "cgroup.h"
#include "mounts.h"
#include "sandbox.h"

#define LAUNCH_ROOT_LINKS_MAX 8

/* What sandbox_open found out; read-only afterwards, so that threads share it. */
struct sandbox {
    struct sandbox_probe probe;
    struct cgroup_place place;
    int filter_fd;
    struct hold_table *holds;            /* has a lock of its own */
    pthread_mutex_t network_filter_lock; /* guards the one below */
    int network_filter_fd;               /* of calls with a network; compiled by the first */
    unsigned cores;
    struct {
        char path[16];    /* "/bin", ... */
        char target[256]; /* what the host's symlink holds; "" when it is a directory */
    } root[LAUNCH_ROOT_LINKS_MAX];
    size_t root_count;
};

struct launch {
    pid_t pid; /* hearth-sandbox, later bubblewrap */
    int pid_fd;
    int status_fd;    /* non-blocking read end: bubblewrap's JSON and our lines */
    int output_fd[2]; /* non-blocking read ends; [1] is -1 when merged */
    int input_fd;     /* non-blocking write end, or -1 */
    struct cgroup cgroup;
    bool has_cgroup;
};

/* Spawns the command. Thread: the one whose end may end the sandbox. Expected errors: IO,
 * UNSUPPORTED (the promised limits cannot be set), INVALID_INPUT. */
MUST_CHECK result launch_command(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    const char *const *command,
    struct launch *out,
    struct error *error
);

#endif
