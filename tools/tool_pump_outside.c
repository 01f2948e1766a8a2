/* A process that the user trusts, outside of the sandbox: its own session, three pipes, and an end
 * that takes its process group along. setpriv(1), where it is, has the kernel end it with the thread
 * that started it, should Hearth be killed. */
#include "tool_pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS    INT64_C(2000) /* between SIGTERM and SIGKILL, as in the sandbox */
#define DRAIN_MS    INT64_C(250)  /* for pipes that someone still holds */
#define STEP_MS_MAX 1000
#define READ_BYTES  ((size_t)64 << 10)
#define READS_MAX   4 /* per stream and step */
#define WORDS_MAX   260
#define ENVIRON_MAX 1024
#define SETPRIV     "/usr/bin/setpriv"

extern char **environ;

struct outside {
    pid_t pid;
    int pid_fd;
    int input_fd; /* -1: closed */
    int output_fd[2];
    sandbox_on_output *on_output;
    void *on_output_context;
    int64_t kill_at_ms;
    struct sandbox_outcome *outcome;
};

static int64_t now_ms(void) {
    struct timespec now;
    int status = clock_gettime(CLOCK_MONOTONIC, &now);
    ASSERT(status == 0);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void close_fd(int *fd) {
    fd_cleanup(fd);
    *fd = -1;
}

/* ---- start ---------------------------------------------------------------------------------- */

struct plumbing {
    int ends[3][2]; /* for descriptor 0, 1, 2 of the process */
};

static void plumbing_deinit(struct plumbing *pipes) {
    for (size_t i = 0; i < 3; i++) {
        fd_cleanup(&pipes->ends[i][0]);
        fd_cleanup(&pipes->ends[i][1]);
    }
}

static result make_pipes(struct plumbing *pipes, struct error *error) {
    for (size_t i = 0; i < 3; i++) {
        size_t ours = i == 0 ? 1 : 0;
        if (pipe2(pipes->ends[i], O_CLOEXEC) != 0 ||
            fcntl(pipes->ends[i][ours], F_SETFL, O_NONBLOCK) != 0) {
            int number = errno;
            FAIL_FOREIGN(error, IO, number, "pipe: %s", strerror(number));
        }
    }
    return OK;
}

/* Ours, with what the policy adds in front, where it wins. */
static result
fill_environment(const struct sandbox_policy *policy, const char **out, struct error *error) {
    size_t count = 0;
    for (; count < policy->environment_count && count < ENVIRON_MAX; count++) {
        out[count] = policy->environment[count];
    }
    for (size_t i = 0; environ[i] != NULL; i++) {
        if (count >= ENVIRON_MAX) {
            FAIL(error, LIMIT, "more than %d variables in the environment", ENVIRON_MAX);
        }
        out[count++] = environ[i];
    }
    out[count] = NULL;
    return OK;
}

static int set_up(
    posix_spawn_file_actions_t *actions,
    posix_spawnattr_t *attributes,
    const struct plumbing *pipes,
    const char *directory
) {
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    int status = posix_spawnattr_setsigmask(attributes, &none);
    status = status != 0 ? status : posix_spawnattr_setsigdefault(attributes, &all);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID;
    status = status != 0 ? status : posix_spawnattr_setflags(attributes, flags);
    status = status != 0 ? status : posix_spawn_file_actions_adddup2(actions, pipes->ends[0][0], 0);
    for (int i = 1; i < 3 && status == 0; i++) {
        status = posix_spawn_file_actions_adddup2(actions, pipes->ends[i][1], i);
    }
    return status != 0 ? status : posix_spawn_file_actions_addchdir_np(actions, directory);
}

static int spawn(
    const struct pump_options *options,
    const struct plumbing *pipes,
    const char *const *environment,
    pid_t *pid
) {
    const char *words[WORDS_MAX + 4] = {SETPRIV, "--pdeathsig", "KILL"};
    size_t count = access(SETPRIV, X_OK) == 0 ? 3 : 0;
    for (size_t i = 0; options->command[i] != NULL; i++) {
        if (i >= WORDS_MAX) {
            return E2BIG;
        }
        words[count++] = options->command[i];
    }
    words[count] = NULL;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int status = posix_spawn_file_actions_init(&actions);
    if (status != 0) {
        return status;
    }
    status = posix_spawnattr_init(&attributes);
    if (status == 0) {
        status = set_up(&actions, &attributes, pipes, options->policy->workspace);
        char *const *arguments = NULL;
        char *const *variables = NULL;
        memcpy(&arguments, &(const char *const *){words}, sizeof arguments); // takes no const
        memcpy(&variables, &environment, sizeof variables);
        status = status != 0
                     ? status
                     : posix_spawnp(pid, words[0], &actions, &attributes, arguments, variables);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

static result
start(struct outside *outside, const struct pump_options *options, struct error *error) {
    CLEANUP(plumbing_deinit) struct plumbing pipes = {{{-1, -1}, {-1, -1}, {-1, -1}}};
    TRY(make_pipes(&pipes, error));
    const char *environment[ENVIRON_MAX + 1];
    TRY(fill_environment(options->policy, environment, error));
    int status = spawn(options, &pipes, environment, &outside->pid);
    if (status != 0) {
        const char *why = strerror(status);
        FAIL_FOREIGN(error, INVALID_INPUT, status, "'%.200s': %s", options->command[0], why);
    }
    outside->pid_fd = (int)syscall(SYS_pidfd_open, outside->pid, 0);
    if (outside->pid_fd < 0) {
        int number = errno;
        (void)kill(outside->pid, SIGKILL); // our own child, not waited for yet
        (void)waitpid(outside->pid, NULL, 0);
        FAIL_FOREIGN(error, IO, number, "watching a process: %s", strerror(number));
    }
    outside->input_fd = pipes.ends[0][1];
    outside->output_fd[0] = pipes.ends[1][0];
    outside->output_fd[1] = pipes.ends[2][0];
    pipes.ends[0][1] = pipes.ends[1][0] = pipes.ends[2][0] = -1;
    return OK;
}

/* ---- while it runs -------------------------------------------------------------------------- */

/* The thread blocks SIGPIPE, as all signals, and ends with whatever is pending. */
static void feed(struct pump *pump, struct outside *outside) {
    bool is_last = false;
    while (outside->input_fd >= 0) {
        struct view input = pump_input(pump, &is_last);
        ssize_t written = input.length > 0 ? write(outside->input_fd, input.data, input.length) : 0;
        if (written < 0 && errno == EAGAIN) {
            return;
        }
        if (written < 0 && errno != EINTR) {
            close_fd(&outside->input_fd);
            pump_drop_input(pump);
            return;
        }
        pump_consume(pump, written > 0 ? (size_t)written : 0);
        if (input.length == 0) {
            break;
        }
    }
    if (is_last && outside->input_fd >= 0) {
        close_fd(&outside->input_fd);
        pump_drop_input(pump);
    }
}

static void read_output(struct pump *pump, struct outside *outside, size_t stream) {
    static _Thread_local unsigned char bytes[READ_BYTES];
    for (unsigned i = 0; i < READS_MAX && outside->output_fd[stream] >= 0; i++) {
        ssize_t got = read(outside->output_fd[stream], bytes, sizeof bytes);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            close_fd(&outside->output_fd[stream]);
            return;
        }
        uint64_t *total =
            stream == 0 ? &outside->outcome->stdout_bytes : &outside->outcome->stderr_bytes;
        *total += (uint64_t)got;
        if (outside->on_output != NULL) {
            enum sandbox_stream name = stream == 0 ? SANDBOX_STDOUT : SANDBOX_STDERR;
            outside->on_output(outside->on_output_context, name, view_of(bytes, (size_t)got));
        }
        pump_notify(pump);
    }
}

/* Its group is its own: it began a session. The number is not reused before it is waited for. */
static void pass_stops(struct pump *pump, struct outside *outside) {
    for (unsigned stops = pump_take_stops(pump); stops > 0; stops--) {
        outside->outcome->end = SANDBOX_CANCELLED;
        bool is_first = outside->kill_at_ms == INT64_MAX;
        (void)kill(-outside->pid, is_first ? SIGTERM : SIGKILL);
        outside->kill_at_ms = is_first ? now_ms() + GRACE_MS : outside->kill_at_ms;
    }
    if (now_ms() >= outside->kill_at_ms) {
        (void)kill(-outside->pid, SIGKILL);
    }
}

static void wait_for_more(const struct pump *pump, const struct outside *outside, bool has_input) {
    int64_t left = outside->kill_at_ms - now_ms();
    int time_ms = left > STEP_MS_MAX ? STEP_MS_MAX : left < 1 ? 1 : (int)left;
    struct pollfd fds[] = {
        {outside->pid_fd, POLLIN, 0},
        {pump_wake_fd(pump), POLLIN, 0},
        {outside->output_fd[0], POLLIN, 0},
        {outside->output_fd[1], POLLIN, 0},
        {has_input ? outside->input_fd : -1, POLLOUT, 0},
    };
    (void)poll(fds, COUNT_OF(fds), time_ms); // interrupted or not, all is looked at
}

static void describe(struct outside *outside, const siginfo_t *about) {
    struct sandbox_outcome *outcome = outside->outcome;
    bool is_cancelled = outcome->end == SANDBOX_CANCELLED;
    if (about->si_code == CLD_EXITED) {
        outcome->exit_status = about->si_status;
    } else {
        outcome->signal = about->si_status;
        outcome->exit_status = 128 + about->si_status;
        (void
        )snprintf(outcome->reason, sizeof outcome->reason, "ended by signal %d", about->si_status);
    }
    if (is_cancelled) {
        (void)snprintf(outcome->reason, sizeof outcome->reason, "cancelled");
    } else {
        outcome->end = outcome->signal != 0 ? SANDBOX_SIGNALLED : SANDBOX_EXITED;
    }
}

void pump_run_outside(
    struct pump *pump, const struct pump_options *options, struct sandbox_outcome *outcome
) {
    struct outside outside = {
        .pid_fd = -1,
        .input_fd = -1,
        .output_fd = {-1, -1},
        .on_output = options->policy->on_output,
        .on_output_context = options->policy->on_output_context,
        .kill_at_ms = INT64_MAX,
        .outcome = outcome,
    };
    struct error error = {0};
    result started = start(&outside, options, &error);
    int64_t begin_ms = now_ms();
    pump_report_start(pump, started, &error);
    if (is_failed(started)) {
        return;
    }
    siginfo_t about = {0};
    for (;;) {
        feed(pump, &outside);
        read_output(pump, &outside, 0);
        read_output(pump, &outside, 1);
        pass_stops(pump, &outside);
        if (waitid(P_PIDFD, (id_t)outside.pid_fd, &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            about.si_pid != 0) {
            break;
        }
        bool is_last = false;
        wait_for_more(pump, &outside, pump_input(pump, &is_last).length > 0);
    }
    (void)kill(-outside.pid, SIGKILL); // what it left behind in its group
    (void)waitid(P_PIDFD, (id_t)outside.pid_fd, &about, WEXITED);
    int64_t until = now_ms() + DRAIN_MS;
    while ((outside.output_fd[0] >= 0 || outside.output_fd[1] >= 0) && now_ms() < until) {
        read_output(pump, &outside, 0);
        read_output(pump, &outside, 1);
        struct pollfd fds[] = {
            {outside.output_fd[0], POLLIN, 0}, {outside.output_fd[1], POLLIN, 0}};
        (void)poll(fds, COUNT_OF(fds), 10);
    }
    describe(&outside, &about);
    outcome->wall_ms = now_ms() - begin_ms;
    close_fd(&outside.input_fd);
    close_fd(&outside.output_fd[0]);
    close_fd(&outside.output_fd[1]);
    close_fd(&outside.pid_fd);
}
