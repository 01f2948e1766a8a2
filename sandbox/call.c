/* One confined command from spawn to outcome, as a state machine over one epoll descriptor.
 *
 * Phases go one way: running, ending (SIGTERM sent), killed, emptying (the leader is gone, the pid
 * namespace is on its way out), draining pipes, last survey, finished. The outcome is only given
 * once process 1 of the namespace is gone, which the kernel reports after everything in it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "capture.h"
#include "disk_watch.h"
#include "input_pipe.h"
#include "launch.h"
#include "launch_spec.h"
#include "trust.h"

#define GRACE_MS         INT64_C(2000) /* between SIGTERM and SIGKILL */
#define EMPTYING_MS      INT64_C(2000) /* for a killed namespace to go (disk waits) */
#define DRAIN_MS         INT64_C(250)  /* for pipes that something outside still holds */
#define REMOVE_MS        INT64_C(200)  /* for a cgroup whose dead members linger */
#define DESTROY_MS       INT64_C(3000)
#define READ_BYTES       ((size_t)64 << 10)
#define READS_PER_STEP   4
#define STATUS_BYTES_MAX ((size_t)16 << 10)

enum phase {
    PHASE_RUNNING,
    PHASE_ENDING,
    PHASE_KILLED,
    PHASE_EMPTYING,
    PHASE_DRAINING,
    PHASE_SURVEYING,
    PHASE_REMOVING,
    PHASE_FINISHED
};

struct sandbox_call {
    enum phase phase;
    int epoll_fd;
    int timer_fd;
    pid_t pid;
    int pid_fd;
    int init_fd;        /* process 1 of the namespace */
    bool init_is_child; /* seen as bubblewrap's child: signals surely reach the right one */
    int status_fd;
    int output_fd[2];
    struct input_pipe input;
    struct mounts mounts;
    struct cgroup cgroup;
    bool has_cgroup;
    struct capture output[2];
    uint64_t output_max; /* written in all */
    sandbox_on_output *on_output;
    void *on_output_context;
    struct buffer status_text;
    bool is_ready;      /* hearth-inner handed over to the command */
    int command_status; /* as bubblewrap reports it, or -1 */
    int leader_status;  /* of bubblewrap itself: exit status, or -signal */
    char failure[SANDBOX_TEXT_BYTES];
    bool is_forced;
    enum sandbox_end forced;
    int64_t wall_ms;
    int64_t started_ms;
    int64_t ended_ms;
    int64_t wall_deadline_ms;
    int64_t phase_deadline_ms;
    struct timespec started_wall; /* of the file system's clock, to tell changed files */
    struct disk_watch disk;
    struct sandbox_outcome outcome;
};

static int64_t now_ms(void) {
    struct timespec now;
    int status = clock_gettime(CLOCK_MONOTONIC, &now);
    ASSERT(status == 0);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- start ---------------------------------------------------------------------------------- */

static result
check_policy(const struct sandbox_policy *policy, const char *const *command, struct error *error) {
    static const struct {
        const char *name;
        size_t offset;
        uint64_t min;
        uint64_t max;
    } numbers[] = {
        {"memory (MiB)", offsetof(struct sandbox_policy, memory_mib), 16, UINT64_C(1) << 24},
        {"processes", offsetof(struct sandbox_policy, processes), 8, UINT64_C(1) << 15},
        {"disk (MiB)", offsetof(struct sandbox_policy, disk_mib), 1, UINT64_C(1) << 24},
        {"output (KiB)", offsetof(struct sandbox_policy, output_kib), 1, UINT64_C(1) << 15},
        {"output in all (MiB)",
         offsetof(struct sandbox_policy, output_total_mib),
         1,
         UINT64_C(1) << 20},
        {"CPU (percent)", offsetof(struct sandbox_policy, cpu_percent), 1, 100000},
    };
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        uint64_t value;
        memcpy(&value, (const char *)policy + numbers[i].offset, sizeof value);
        if (value < numbers[i].min || value > numbers[i].max) {
            FAIL(
                error,
                INVALID_INPUT,
                "limit of %s is %llu, must be %llu to %llu",
                numbers[i].name,
                (unsigned long long)value,
                (unsigned long long)numbers[i].min,
                (unsigned long long)numbers[i].max
            );
        }
    }
    if (policy->wall_ms < 1 || policy->wall_ms > INT64_C(86400000)) {
        FAIL(
            error,
            INVALID_INPUT,
            "time limit is %lld ms, must be 1 ms to 1 day",
            (long long)policy->wall_ms
        );
    }
    if (command == NULL || command[0] == NULL || command[0][0] == '\0') {
        FAIL(error, INVALID_INPUT, "no command to run");
    }
    return OK;
}

static result watch(struct sandbox_call *call, int fd, struct error *error) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= 0 && epoll_ctl(call->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        FAIL_FOREIGN(error, IO, errno, "watching a command: %s", strerror(errno));
    }
    return OK;
}

static void unwatch(struct sandbox_call *call, int *fd) {
    if (*fd >= 0) {
        (void)epoll_ctl(call->epoll_fd, EPOLL_CTL_DEL, *fd, NULL); // closing does it as well
        close(*fd);
        *fd = -1;
    }
}

static result
prepare(struct sandbox_call *call, const struct sandbox_policy *policy, struct error *error) {
    size_t kept = (size_t)policy->output_kib << 10;
    TRY(capture_init(&call->output[0], kept, error));
    TRY(capture_init(&call->output[1], policy->merge_output ? 2 : kept, error));
    buffer_init(&call->status_text, STATUS_BYTES_MAX);
    call->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    call->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (call->epoll_fd < 0 || call->timer_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "watching a command: %s", strerror(errno));
    }
    return watch(call, call->timer_fd, error);
}

static void arm_timer(struct sandbox_call *call) {
    int64_t at = sandbox_call_deadline_ms(call);
    if (at == INT64_MAX) {
        at = 0; // disarms
    } else if (at < 1) {
        at = 1;
    }
    struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(at / 1000), .tv_nsec = (long)(at % 1000) * 1000000}};
    int status = timerfd_settime(call->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
    ASSERT(status == 0);
}

static void discard(struct sandbox_call *call) {
    unwatch(call, &call->pid_fd);
    unwatch(call, &call->init_fd);
    unwatch(call, &call->status_fd);
    unwatch(call, &call->output_fd[0]);
    unwatch(call, &call->output_fd[1]);
    input_pipe_close(&call->input);
    fd_cleanup(&call->timer_fd);
    fd_cleanup(&call->epoll_fd);
    mounts_close(&call->mounts);
    disk_watch_deinit(&call->disk);
    capture_deinit(&call->output[0]);
    capture_deinit(&call->output[1]);
    buffer_deinit(&call->status_text);
    free(call);
}

static result start(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct sandbox_call *call,
    struct error *error
) {
    TRY(prepare(call, policy, error));
    TRY(mounts_open(sandbox->holds, policy, sandbox->probe.helper_path, &call->mounts, error));
    int status = clock_gettime(CLOCK_REALTIME_COARSE, &call->started_wall);
    ASSERT(status == 0);
    call->started_ms = now_ms();
    struct launch launch;
    TRY(launch_command(sandbox, policy, &call->mounts, command, &launch, error));
    call->pid = launch.pid;
    call->pid_fd = launch.pid_fd;
    call->status_fd = launch.status_fd;
    call->output_fd[0] = launch.output_fd[0];
    call->output_fd[1] = launch.output_fd[1];
    call->input.fd = launch.input_fd;
    call->cgroup = launch.cgroup;
    call->has_cgroup = launch.has_cgroup;
    call->wall_ms = policy->wall_ms;
    call->output_max = policy->output_total_mib << 20;
    call->on_output = policy->on_output;
    call->on_output_context = policy->on_output_context;
    call->wall_deadline_ms = call->started_ms + policy->wall_ms;
    call->phase_deadline_ms = INT64_MAX;
    disk_watch_start(&call->disk, call->mounts.workspace_fd, policy->disk_mib, call->started_ms);
    TRY(watch(call, call->pid_fd, error));
    TRY(watch(call, call->status_fd, error));
    TRY(watch(call, call->output_fd[0], error));
    TRY(watch(call, call->output_fd[1], error));
    TRY(input_pipe_watch(&call->input, call->epoll_fd, error));
    arm_timer(call);
    return OK;
}

result sandbox_start(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct sandbox_call **out,
    struct error *error
) {
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        FAIL(
            error,
            UNSUPPORTED,
            "sandbox unavailable: %.220s; fix: %.220s",
            probe->refusal,
            probe->remedy
        );
    }
    TRY(check_policy(policy, command, error));
    struct sandbox_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        FAIL(error, MEMORY, "no memory for a sandboxed command");
    }
    call->epoll_fd = call->timer_fd = call->pid_fd = call->init_fd = call->status_fd = -1;
    call->output_fd[0] = call->output_fd[1] = call->input.fd = -1;
    call->mounts.workspace_fd = -1;
    call->command_status = -1;
    result started = start(sandbox, policy, command, call, error);
    if (is_failed(started)) {
        sandbox_call_destroy(call);
        return started;
    }
    *out = call;
    return OK;
}

int sandbox_call_fd(const struct sandbox_call *call) {
    return call->epoll_fd;
}

int64_t sandbox_call_deadline_ms(const struct sandbox_call *call) {
    if (call->phase == PHASE_FINISHED) {
        return INT64_MAX;
    }
    if (call->phase == PHASE_RUNNING) {
        int64_t tick = disk_watch_deadline_ms(&call->disk, now_ms());
        return tick < call->wall_deadline_ms ? tick : call->wall_deadline_ms;
    }
    if (call->phase == PHASE_SURVEYING) {
        return now_ms();
    }
    if (call->phase == PHASE_REMOVING) {
        return now_ms() + 2;
    }
    return call->phase_deadline_ms;
}

/* ---- signals -------------------------------------------------------------------------------- */

static bool signal_by_fd(int pid_fd, int number, unsigned flags) {
    return pid_fd >= 0 && syscall(SYS_pidfd_send_signal, pid_fd, number, NULL, flags) == 0;
}

/* The command runs in the process group of process 1, which itself ignores SIGTERM. */
static void send_term(const struct sandbox_call *call) {
    static const unsigned to_group = 1U << 2; // PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9
    if (!call->init_is_child || signal_by_fd(call->init_fd, SIGTERM, to_group)) {
        return;
    }
    struct pollfd gone = {.fd = call->init_fd, .events = POLLIN};
    char text[64];
    (void)snprintf(text, sizeof text, "/proc/self/fdinfo/%d", call->init_fd);
    CLEANUP(buffer_deinit) struct buffer info;
    buffer_init(&info, 4096);
    if (poll(&gone, 1, 0) != 0 || is_failed(file_read(text, &info, NULL))) {
        return;
    }
    const char *line = strstr(buffer_text(&info), "\nPid:");
    long pid = line != NULL ? strtol(line + 5, NULL, 10) : 0;
    if (pid > 1) { // its number cannot be reused while the descriptor said it lives
        (void)kill((pid_t)-pid, SIGTERM);
    }
}

static void send_kill(const struct sandbox_call *call) {
    if (call->has_cgroup) {
        cgroup_kill(&call->cgroup);
    }
    if (call->init_is_child) {
        (void)signal_by_fd(call->init_fd, SIGKILL, 0);
    }
    (void)signal_by_fd(call->pid_fd, SIGKILL, 0);
}

static void set_phase(struct sandbox_call *call, enum phase phase, int64_t deadline_ms) {
    ASSERT(phase >= call->phase);
    call->phase = phase;
    call->phase_deadline_ms = deadline_ms;
}

static void force(struct sandbox_call *call, enum sandbox_end end, bool at_once) {
    if (call->phase > PHASE_ENDING) {
        return;
    }
    if (!call->is_forced) {
        call->is_forced = true;
        call->forced = end;
    }
    if (at_once || !call->is_ready) {
        send_kill(call);
        set_phase(call, PHASE_KILLED, now_ms() + EMPTYING_MS);
    } else if (call->phase == PHASE_RUNNING) {
        send_term(call);
        set_phase(call, PHASE_ENDING, now_ms() + GRACE_MS);
    }
}

void sandbox_call_cancel(struct sandbox_call *call) {
    force(call, SANDBOX_CANCELLED, call->phase == PHASE_ENDING);
    if (call->phase != PHASE_FINISHED) {
        arm_timer(call);
    }
}

/* ---- status pipe ---------------------------------------------------------------------------- */

/* Whether `pid` is process 1 of a pid namespace below ours, and whose child it is. */
static bool is_namespace_init(pid_t pid, long *parent) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, STATUS_BYTES_MAX);
    if (is_failed(file_read(path, &text, NULL))) {
        return false;
    }
    const char *parent_line = strstr(buffer_text(&text), "\nPPid:");
    const char *space_line = strstr(buffer_text(&text), "\nNSpid:");
    if (parent_line == NULL || space_line == NULL) {
        return false;
    }
    *parent = strtol(parent_line + 6, NULL, 10);
    size_t length = strcspn(space_line + 7, "\n");
    return length >= 2 && memcmp(space_line + 7 + length - 2, "\t1", 2) == 0;
}

static void adopt_init(struct sandbox_call *call, int64_t number) {
    if (call->init_fd >= 0 || number <= 1 || number > INT32_MAX) {
        return;
    }
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)number, 0);
    long parent = 0;
    if (fd < 0) {
        return; // gone already
    }
    bool is_init = is_namespace_init((pid_t)number, &parent);
    if (!is_init) { // bubblewrap ended and the number may be another's
        close(fd);
        return;
    }
    call->init_fd = fd;
    call->init_is_child = parent == call->pid;
}

static void take_status_line(struct sandbox_call *call, struct view line) {
    if (view_equals_text(line, LAUNCH_LINE_READY)) {
        call->is_ready = true;
        return;
    }
    struct view failed = view_of_text(LAUNCH_LINE_FAILED);
    if (view_starts_with(line, failed)) {
        struct view reason = view_slice(line, failed.length, SIZE_MAX);
        (void)snprintf(call->failure, sizeof call->failure, "%.*s", VIEW_ARGUMENTS(reason));
        return;
    }
    struct json_document *document = NULL;
    if (is_failed(json_parse(line, NULL, &document, NULL))) {
        return; // bubblewrap's and of no use, for no one else can write here
    }
    int64_t number = 0;
    struct json_value root = json_root(document);
    if (json_as_i64(json_get(root, "child-pid"), &number)) {
        adopt_init(call, number);
    }
    if (json_as_i64(json_get(root, "exit-code"), &number) && number >= 0 && number <= 255) {
        call->command_status = (int)number;
    }
    json_destroy(document);
}

static void read_status(struct sandbox_call *call) {
    unsigned char bytes[4096];
    for (unsigned i = 0; i < READS_PER_STEP && call->status_fd >= 0; i++) {
        ssize_t got = read(call->status_fd, bytes, sizeof bytes);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            unwatch(call, &call->status_fd);
            return;
        }
        // Over the ceiling it is cut: such a line is none that we know.
        result_ignore(buffer_append(&call->status_text, view_of(bytes, (size_t)got), NULL));
        struct view text = buffer_view(&call->status_text);
        size_t end = view_find(text, view_of_text("\n"), 0);
        while (end != SIZE_MAX) {
            take_status_line(call, view_slice(text, 0, end));
            buffer_consume(&call->status_text, end + 1);
            text = buffer_view(&call->status_text);
            end = view_find(text, view_of_text("\n"), 0);
        }
    }
}

/* ---- output --------------------------------------------------------------------------------- */

static void read_output(struct sandbox_call *call, size_t stream) {
    static _Thread_local unsigned char bytes[READ_BYTES];
    for (unsigned i = 0; i < READS_PER_STEP && call->output_fd[stream] >= 0; i++) {
        ssize_t got = read(call->output_fd[stream], bytes, sizeof bytes);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (got <= 0) {
            unwatch(call, &call->output_fd[stream]);
            return;
        }
        capture_add(&call->output[stream], bytes, (size_t)got);
        if (call->on_output != NULL) {
            enum sandbox_stream name = stream == 0 ? SANDBOX_STDOUT : SANDBOX_STDERR;
            call->on_output(call->on_output_context, name, view_of(bytes, (size_t)got));
        }
    }
}

static void check_output(struct sandbox_call *call) {
    uint64_t total = call->output[0].total + call->output[1].total;
    if (total > call->output_max && call->phase == PHASE_RUNNING) {
        force(call, SANDBOX_OUTPUT_LIMIT, true);
        unwatch(call, &call->output_fd[0]); // nothing of it is of use, and it dies only in its time
        unwatch(call, &call->output_fd[1]);
    }
}

/* ---- input ---------------------------------------------------------------------------------- */

result sandbox_call_write_input(
    struct sandbox_call *call, struct view bytes, size_t *written, struct error *error
) {
    return input_pipe_write(&call->input, bytes, written, error);
}

void sandbox_call_end_input(struct sandbox_call *call) {
    input_pipe_close(&call->input);
}

/* ---- the end -------------------------------------------------------------------------------- */

static bool is_dead(int pid_fd) {
    struct pollfd entry = {.fd = pid_fd, .events = POLLIN};
    return pid_fd < 0 || poll(&entry, 1, 0) > 0;
}

static bool reap_leader(struct sandbox_call *call) {
    siginfo_t about = {0};
    int status = waitid(P_PIDFD, (id_t)call->pid_fd, &about, WEXITED | WNOHANG);
    if (status == 0 && about.si_pid == 0) {
        return false;
    }
    if (status != 0 && errno == EINTR) {
        return false;
    }
    if (status != 0) {
        call->leader_status = LAUNCH_STATUS_FAILED; // waited for by someone else
    } else {
        call->leader_status = about.si_code == CLD_EXITED ? about.si_status : -about.si_status;
    }
    return true;
}

/* The first line that bubblewrap printed, as the reason why it failed. */
static void describe_launch_failure(struct sandbox_call *call) {
    struct sandbox_outcome *outcome = &call->outcome;
    if (call->failure[0] != '\0') {
        (void)snprintf(outcome->reason, sizeof outcome->reason, "%s", call->failure);
        return;
    }
    size_t stream = call->output[1].head_bytes > 0 ? 1 : 0;
    struct view text = capture_head(&call->output[stream]);
    size_t end = view_find(text, view_of_text("\n"), 0);
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, (size_t)SANDBOX_TEXT_BYTES * 2);
    result clean = sandbox_sanitise(view_slice(text, 0, end), 300, &line, NULL);
    if (is_ok(clean) && line.length > 0) {
        (void)snprintf(outcome->reason, sizeof outcome->reason, "%.400s", buffer_text(&line));
    } else if (call->leader_status < 0) {
        int number = -call->leader_status;
        (void)snprintf(
            outcome->reason, sizeof outcome->reason, "the launcher was ended by signal %d", number
        );
    } else {
        (void)snprintf(
            outcome->reason,
            sizeof outcome->reason,
            "the launcher ended with status %d before the command ran",
            call->leader_status
        );
    }
}

static void describe_forced(struct sandbox_call *call) {
    struct sandbox_outcome *outcome = &call->outcome;
    char *out = outcome->reason;
    size_t bytes = sizeof outcome->reason;
    outcome->end = call->forced;
    if (call->forced == SANDBOX_TIMED_OUT) {
        (void)snprintf(out, bytes, "ran longer than %lld ms", (long long)call->wall_ms);
    } else if (call->forced == SANDBOX_OUTPUT_LIMIT) {
        unsigned long long limit = call->output_max >> 20;
        (void)snprintf(out, bytes, "wrote more than %llu MiB of output", limit);
    } else if (call->forced == SANDBOX_DISK_LIMIT) {
        long long limit = (long long)(call->disk.limit_bytes >> 20);
        long long files = (long long)call->disk.limit_entries;
        (void)snprintf(
            out, bytes, "the workspace grew by more than %lld MiB or %lld files", limit, files
        );
    } else {
        (void)snprintf(out, bytes, "cancelled");
    }
}

static void describe_end(struct sandbox_call *call) {
    struct sandbox_outcome *outcome = &call->outcome;
    outcome->exit_status = call->command_status >= 0 ? call->command_status : 0;
    if (outcome->exit_status > 128 && outcome->exit_status <= 128 + 64) {
        outcome->signal = outcome->exit_status - 128;
    }
    if (call->is_forced) {
        describe_forced(call);
        return;
    }
    if (!call->is_ready) {
        outcome->end = SANDBOX_LAUNCH_FAILED;
        describe_launch_failure(call);
        return;
    }
    if (call->command_status < 0 && outcome->out_of_memory) {
        outcome->signal = SIGKILL; // the kernel chose bubblewrap itself
        outcome->exit_status = 128 + SIGKILL;
    } else if (call->command_status < 0) {
        outcome->end = SANDBOX_LOST;
        (void)snprintf(
            outcome->reason,
            sizeof outcome->reason,
            "ended from outside before its status was known"
        );
        return;
    }
    outcome->end = outcome->signal != 0 ? SANDBOX_SIGNALLED : SANDBOX_EXITED;
    if (outcome->signal != 0) {
        const char *memory = outcome->out_of_memory ? " (out of memory)" : "";
        (void)snprintf(
            outcome->reason, sizeof outcome->reason, "ended by signal %d%s", outcome->signal, memory
        );
    }
}

static void finish(struct sandbox_call *call) {
    struct sandbox_outcome *outcome = &call->outcome;
    unwatch(call, &call->output_fd[0]);
    unwatch(call, &call->output_fd[1]);
    sandbox_call_end_input(call);
    capture_settle(&call->output[0]);
    capture_settle(&call->output[1]);
    trust_list_changes(
        call->mounts.workspace_fd,
        &call->started_wall,
        outcome->trust_changes,
        sizeof outcome->trust_changes
    );
    size_t used = strlen(outcome->trust_changes);
    if (call->disk.survey.nested_git > 0) {
        (void)snprintf( // cut: the list is full of names already
            outcome->trust_changes + used,
            sizeof outcome->trust_changes - used,
            "%s(nested)/.git",
            used > 0 ? " " : ""
        );
    }
    outcome->limits_by_cgroup = call->has_cgroup;
    outcome->wall_ms = call->ended_ms - call->started_ms;
    outcome->stdout_bytes = call->output[0].total;
    outcome->stderr_bytes = call->output[1].total;
    outcome->disk_growth_bytes = call->disk.growth_bytes;
    outcome->mode_bits_stripped = call->disk.survey.stripped;
    describe_end(call);
    mounts_close(&call->mounts); // its share in the workspace is free
    set_phase(call, PHASE_FINISHED, INT64_MAX);
    arm_timer(call);
}

/* Moves through the phases behind the leader's death; true when a phase was left. */
static bool wind_up(struct sandbox_call *call, int64_t now) {
    bool is_late = now >= call->phase_deadline_ms;
    switch (call->phase) {
    case PHASE_EMPTYING:
        if (!is_dead(call->init_fd) && !is_late) {
            return false;
        }
        unwatch(call, &call->init_fd);
        set_phase(call, PHASE_DRAINING, now + DRAIN_MS);
        return true;
    case PHASE_DRAINING:
        if ((call->output_fd[0] >= 0 || call->output_fd[1] >= 0) && !is_late) {
            return false;
        }
        if (call->has_cgroup) {
            struct cgroup_events events = cgroup_read_events(&call->cgroup);
            call->outcome.out_of_memory = events.out_of_memory;
            call->outcome.processes_refused = events.processes_refused;
        }
        disk_watch_end(&call->disk, &call->started_wall);
        set_phase(call, PHASE_SURVEYING, INT64_MAX);
        return true;
    case PHASE_SURVEYING:
        if (!disk_watch_end_step(&call->disk)) {
            return false;
        }
        set_phase(call, PHASE_REMOVING, now + REMOVE_MS);
        return true;
    case PHASE_REMOVING:
        // Groups that linger longer are removed when the sandbox is closed or opened again.
        if (call->has_cgroup && !cgroup_remove(&call->cgroup) && !is_late) {
            return false;
        }
        finish(call);
        return false;
    case PHASE_RUNNING:
    case PHASE_ENDING:
    case PHASE_KILLED:
    case PHASE_FINISHED:
    default:
        return false;
    }
}

static void check_clock(struct sandbox_call *call, int64_t now) {
    if (call->phase == PHASE_RUNNING && now >= call->wall_deadline_ms) {
        force(call, SANDBOX_TIMED_OUT, false);
    } else if (call->phase == PHASE_ENDING && now >= call->phase_deadline_ms) {
        send_kill(call);
        set_phase(call, PHASE_KILLED, now + EMPTYING_MS);
    } else if (call->phase == PHASE_KILLED && now >= call->phase_deadline_ms) {
        send_kill(call); // nothing else can be done with what the kernel does not let go
        call->phase_deadline_ms = now + EMPTYING_MS;
    }
}

bool sandbox_call_step(struct sandbox_call *call) {
    if (call->phase == PHASE_FINISHED) {
        return true;
    }
    uint64_t expirations;
    ssize_t got = read(call->timer_fd, &expirations, sizeof expirations);
    (void)got; // armed again below, whether it fired or not
    int64_t now = now_ms();
    bool leader_is_dead = call->phase <= PHASE_KILLED && is_dead(call->pid_fd);
    if (call->status_fd >= 0) {
        read_status(call);
    }
    read_output(call, 0);
    read_output(call, 1);
    input_pipe_step(&call->input); // who still has something to write does it now
    if (leader_is_dead && reap_leader(call)) {
        call->ended_ms = now;
        read_status(call); // what it wrote last
        if (call->init_is_child) {
            (void)signal_by_fd(call->init_fd, SIGKILL, 0);
        }
        unwatch(call, &call->pid_fd);
        result_ignore(watch(call, call->init_fd, NULL)); // the deadline comes anyway
        set_phase(call, PHASE_EMPTYING, now + EMPTYING_MS);
    }
    if (call->phase <= PHASE_KILLED) {
        check_output(call);
        if (call->phase == PHASE_RUNNING && disk_watch_step(&call->disk, now)) {
            force(call, SANDBOX_DISK_LIMIT, true);
        }
        check_clock(call, now);
    }
    while (wind_up(call, now)) {
    }
    if (call->phase != PHASE_FINISHED) {
        arm_timer(call);
    }
    return call->phase == PHASE_FINISHED;
}

const struct sandbox_outcome *sandbox_call_outcome(const struct sandbox_call *call) {
    ASSERT(call->phase == PHASE_FINISHED);
    return &call->outcome;
}

void sandbox_call_destroy(struct sandbox_call *call) {
    if (call == NULL) {
        return;
    }
    if (call->pid_fd >= 0 || call->init_fd >= 0) {
        int64_t deadline = now_ms() + DESTROY_MS;
        force(call, SANDBOX_CANCELLED, true);
        while (!sandbox_call_step(call) && now_ms() < deadline) {
            struct pollfd entry = {.fd = call->epoll_fd, .events = POLLIN};
            (void)poll(&entry, 1, 50);
        }
    }
    if (call->has_cgroup) {
        (void)cgroup_remove(&call->cgroup); // closing the sandbox tries again
    }
    discard(call);
}

struct sandbox_output
sandbox_call_output(const struct sandbox_call *call, enum sandbox_stream stream) {
    const struct capture *capture = &call->output[stream == SANDBOX_STDERR ? 1 : 0];
    struct sandbox_output output = {
        .head = capture_head(capture),
        .tail = capture_tail(capture),
        .dropped = capture_dropped(capture),
    };
    return output;
}
