/* The command line in front of the sandbox and of the file functions. */
#include "command.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "beneath.h"

#define STATUS_USAGE  2
#define PROTECTED_MAX 32
#define EXTRA_MAX     32

static const char run_usage[] =
    "Usage: hearth sandbox run -C DIR [OPTION]... -- COMMAND [ARGUMENT]...\n"
    "Runs COMMAND confined to the workspace DIR, which it sees as /workspace: no network unless\n"
    "listed, nothing else of the host writable, limits on time, memory, processes, disk and\n"
    "output.\n"
    "\n"
    "  -C DIR                 the workspace\n"
    "  --max-time S           seconds until SIGTERM; SIGKILL follows 2 s later (600)\n"
    "  --max-memory MIB       memory of all its processes together (2048)\n"
    "  --max-processes N      processes and threads (256)\n"
    "  --max-disk MIB         growth of the workspace, and largest file (2048)\n"
    "  --max-output KIB       kept of each stream: first and last half (128)\n"
    "  --protect PATH         path below DIR that stays read-only; may be repeated\n"
    "  --environment NAME=VALUE  a further variable; may be repeated\n"
    "  --read-only PATH       a further host directory, shown read-only; may be repeated\n"
    "  --network HOST[:PORT],...  hosts that it may reach through a proxy (ports 80 and 443 when\n"
    "                         none is given): names, *.name.tld, addresses\n"
    "  --report               say on standard error how it ended and what it used\n"
    "  --help                 this text\n"
    "\n"
    "Exit status: the command's own, 128 + N after signal N, 124 when the time was over, 125 when\n"
    "it was refused or could not be started, 2 for a wrong command line.\n";

static const char file_usage[] =
    "Usage: hearth sandbox file read|write|mkdir|rm ROOT PATH\n"
    "The functions behind the file tools: PATH is relative and cannot leave ROOT, whatever links\n"
    "are in it. 'read' prints at most 1 MiB; 'write' takes standard input and replaces the file;\n"
    "'rm' removes a file or an empty directory. Exit status: 0 done, 1 refused, 2 wrong usage.\n";

struct run_options {
    struct sandbox_policy policy;
    const char *protect[PROTECTED_MAX];
    const char *environment[EXTRA_MAX];
    const char *read_only[EXTRA_MAX];
    const char *network;
    bool report;
    bool help;
    int command_at;
};

static result write_all(int fd, struct view bytes, struct error *error) {
    while (bytes.length > 0) {
        ssize_t written = write(fd, bytes.data, bytes.length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            FAIL_FOREIGN(error, IO, errno, "writing output: %s", strerror(errno));
        }
        bytes = view_slice(bytes, (size_t)written, SIZE_MAX);
    }
    return OK;
}

static result complain(const char *what, const char *detail, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, 4096);
    TRY(buffer_append_format(&line, error, "hearth sandbox: %.300s%.700s\n", what, detail));
    return write_all(STDERR_FILENO, buffer_view(&line), error);
}

static result
add_path(const char **list, size_t max, size_t *count, const char *value, struct error *error) {
    if (*count >= max) {
        FAIL(error, INVALID_INPUT, "an option is repeated more than %zu times", max);
    }
    list[(*count)++] = value;
    return OK;
}

static result parse_number(const char *name, const char *text, uint64_t *out, struct error *error) {
    if (!parse_u64(view_of_text(text), out)) {
        FAIL(error, INVALID_INPUT, "--%s takes a number, not '%.60s'", name, text);
    }
    return OK;
}

enum option_id {
    OPTION_TIME = 256,
    OPTION_MEMORY,
    OPTION_PROCESSES,
    OPTION_DISK,
    OPTION_OUTPUT,
    OPTION_PROTECT,
    OPTION_ENVIRONMENT,
    OPTION_READ_ONLY,
    OPTION_NETWORK,
    OPTION_REPORT,
    OPTION_HELP
};

static result take_option(int id, const char *value, struct run_options *run, struct error *error) {
    struct sandbox_policy *policy = &run->policy;
    uint64_t seconds = 0;
    switch (id) {
    case 'C':
        policy->workspace = value;
        return OK;
    case OPTION_TIME:
        TRY(parse_number("max-time", value, &seconds, error));
        policy->wall_ms = seconds > 1000000 ? INT64_MAX : (int64_t)seconds * 1000;
        return OK;
    case OPTION_MEMORY:
        return parse_number("max-memory", value, &policy->memory_mib, error);
    case OPTION_PROCESSES:
        return parse_number("max-processes", value, &policy->processes, error);
    case OPTION_DISK:
        return parse_number("max-disk", value, &policy->disk_mib, error);
    case OPTION_OUTPUT:
        return parse_number("max-output", value, &policy->output_kib, error);
    case OPTION_PROTECT:
        return add_path(run->protect, PROTECTED_MAX, &policy->protect_count, value, error);
    case OPTION_ENVIRONMENT:
        return add_path(run->environment, EXTRA_MAX, &policy->environment_count, value, error);
    case OPTION_READ_ONLY:
        return add_path(run->read_only, EXTRA_MAX, &policy->read_only_count, value, error);
    case OPTION_NETWORK:
        run->network = value;
        return OK;
    case OPTION_REPORT:
        run->report = true;
        return OK;
    case OPTION_HELP:
        run->help = true;
        return OK;
    default:
        ASSERT(false); // parse_run has dealt with what getopt refuses
        return OK;
    }
}

static result parse_run(int argc, char *const *argv, struct run_options *run, struct error *error) {
    static const struct option options[] = {
        {"max-time", required_argument, NULL, OPTION_TIME},
        {"max-memory", required_argument, NULL, OPTION_MEMORY},
        {"max-processes", required_argument, NULL, OPTION_PROCESSES},
        {"max-disk", required_argument, NULL, OPTION_DISK},
        {"max-output", required_argument, NULL, OPTION_OUTPUT},
        {"protect", required_argument, NULL, OPTION_PROTECT},
        {"environment", required_argument, NULL, OPTION_ENVIRONMENT},
        {"read-only", required_argument, NULL, OPTION_READ_ONLY},
        {"network", required_argument, NULL, OPTION_NETWORK},
        {"report", no_argument, NULL, OPTION_REPORT},
        {"help", no_argument, NULL, OPTION_HELP},
        {NULL, 0, NULL, 0},
    };
    run->policy = sandbox_policy_default(NULL);
    run->policy.protect = run->protect;
    run->policy.environment = run->environment;
    run->policy.read_only = run->read_only;
    optind = 1;
    opterr = 0;
    for (;;) {
        int id = getopt_long(argc, argv, "+:C:", options, NULL); // '+': stop at the command
        if (id < 0) {
            break;
        }
        if (id == '?' || id == ':') {
            const char *what = id == ':' ? "value missing after" : "unknown option";
            FAIL(error, INVALID_INPUT, "%s '%.60s'", what, argv[optind - 1]);
        }
        TRY(take_option(id, optarg, run, error));
    }
    run->command_at = optind;
    if (!run->help && run->policy.workspace == NULL) {
        FAIL(error, INVALID_INPUT, "-C DIR is missing");
    }
    if (!run->help && optind >= argc) {
        FAIL(error, INVALID_INPUT, "no command");
    }
    return OK;
}

static int exit_status_of(const struct sandbox_outcome *outcome) {
    switch (outcome->end) {
    case SANDBOX_EXITED:
    case SANDBOX_SIGNALLED:
        return outcome->exit_status;
    case SANDBOX_TIMED_OUT:
        return SANDBOX_STATUS_TIMED_OUT;
    case SANDBOX_CANCELLED:
        return 128 + SIGINT;
    case SANDBOX_OUTPUT_LIMIT:
    case SANDBOX_DISK_LIMIT:
        return 128 + SIGKILL;
    case SANDBOX_LAUNCH_FAILED:
    case SANDBOX_LOST:
    default:
        return SANDBOX_STATUS_REFUSED;
    }
}

static result report(const struct sandbox_outcome *outcome, bool all, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, 8192);
    if (all) {
        TRY(buffer_append_format(
            &line,
            error,
            "hearth sandbox: %s, status %d, %lld ms, %llu + %llu bytes out, %lld bytes on disk, "
            "limits by %s%s%s\n",
            sandbox_end_name(outcome->end),
            outcome->exit_status,
            (long long)outcome->wall_ms,
            (unsigned long long)outcome->stdout_bytes,
            (unsigned long long)outcome->stderr_bytes,
            (long long)outcome->disk_growth_bytes,
            outcome->limits_by_cgroup ? "cgroup" : "rlimit",
            outcome->out_of_memory ? ", out of memory" : "",
            outcome->processes_refused ? ", processes refused" : ""
        ));
    }
    if (outcome->end != SANDBOX_EXITED) {
        const char *name = sandbox_end_name(outcome->end);
        TRY(buffer_append_format(&line, error, "hearth sandbox: %s: %s\n", name, outcome->reason));
    }
    if (outcome->mode_bits_stripped > 0) {
        unsigned count = outcome->mode_bits_stripped;
        TRY(buffer_append_format(
            &line, error, "hearth sandbox: setuid or setgid taken away from %u files\n", count
        ));
    }
    if (outcome->trust_changes[0] != '\0') {
        TRY(buffer_append_format(
            &line,
            error,
            "hearth sandbox: changed files that other programs act upon: %s\n",
            outcome->trust_changes
        ));
    }
    return write_all(STDERR_FILENO, buffer_view(&line), error);
}

static result print_streams(const struct sandbox_call *call, struct error *error) {
    static const struct {
        enum sandbox_stream stream;
        int fd;
    } streams[] = {{SANDBOX_STDOUT, STDOUT_FILENO}, {SANDBOX_STDERR, STDERR_FILENO}};
    for (size_t i = 0; i < COUNT_OF(streams); i++) {
        CLEANUP(buffer_deinit) struct buffer text;
        buffer_init(&text, BUFFER_CEILING_DEFAULT);
        TRY(sandbox_call_text(call, streams[i].stream, &text, error));
        TRY(write_all(streams[i].fd, buffer_view(&text), error));
    }
    return OK;
}

static void sandbox_cleanup(struct sandbox **sandbox) {
    sandbox_close(*sandbox);
}

static void call_cleanup(struct sandbox_call **call) {
    sandbox_call_destroy(*call);
}

/* Ctrl-C, SIGTERM and SIGHUP end the command in order; a signal of our own tells when the process
 * that called us is gone, whatever killed it. */
static int watch_signals(int caller_gone, sigset_t *old) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigaddset(&watched, caller_gone);
    if (sigprocmask(SIG_BLOCK, &watched, old) != 0) {
        return -1;
    }
    int fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd >= 0) {
        (void)prctl(PR_SET_PDEATHSIG, caller_gone, 0, 0, 0); // without it Ctrl-C works still
    }
    return fd;
}

static void take_signals(int signals, int caller_gone, pid_t caller, struct sandbox_call *call) {
    struct signalfd_siginfo about;
    while (read(signals, &about, sizeof about) == (ssize_t)sizeof about) {
        if ((int)about.ssi_signo != caller_gone) {
            sandbox_call_cancel(call);
        } else if (getppid() != caller) { // not only the thread that started us
            sandbox_call_cancel(call);
            sandbox_call_cancel(call); // nobody waits for an orderly end
        }
    }
}

static result run_watched(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct sandbox_call **out,
    struct error *error
) {
    int caller_gone = SIGRTMIN + 5;
    pid_t caller = getppid();
    sigset_t old;
    sigemptyset(&old);
    CLEANUP(fd_cleanup) int signals = watch_signals(caller_gone, &old);
    struct sandbox_call *call = NULL;
    result started = sandbox_start(sandbox, policy, command, &call, error);
    if (is_ok(started)) {
        struct pollfd entries[2] = {
            {.fd = sandbox_call_fd(call), .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        while (!sandbox_call_step(call)) {
            (void)poll(entries, 2, -1); // interrupted or not, the step looks by itself
            take_signals(signals, caller_gone, caller, call);
        }
        *out = call;
    }
    (void)prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    return started;
}

static result run_parsed(
    struct run_options *run,
    char *const *argv,
    const struct sandbox_options *options,
    const struct sandbox_command_network *network,
    int *exit_status,
    struct error *error
) {
    struct error refusal = {0};
    if (run->network != NULL &&
        (network == NULL ||
         is_failed(
             network->open(network->context, run->network, &run->policy.network_socket, &refusal)
         ))) {
        *exit_status = STATUS_USAGE;
        const char *reason = network != NULL ? refusal.message : "this program has no network";
        return complain("--network: ", reason, error);
    }
    CLEANUP(sandbox_cleanup) struct sandbox *sandbox = NULL;
    TRY(sandbox_open(options, &sandbox, error));
    const char *const *command = NULL;
    char *const *words = &argv[run->command_at];
    memcpy(&command, &words, sizeof command); // adds const only
    CLEANUP(call_cleanup) struct sandbox_call *call = NULL;
    if (is_failed(run_watched(sandbox, &run->policy, command, &call, &refusal))) {
        *exit_status = SANDBOX_STATUS_REFUSED;
        return complain("refused: ", refusal.message, error);
    }
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    *exit_status = exit_status_of(outcome);
    if (outcome->end != SANDBOX_LAUNCH_FAILED) {
        TRY(print_streams(call, error));
    }
    return report(outcome, run->report, error);
}

result sandbox_command_run(
    int argc,
    char *const *argv,
    const struct sandbox_options *options,
    const struct sandbox_command_network *network,
    int *exit_status,
    struct error *error
) {
    struct run_options run = {0};
    struct error usage_error = {0};
    if (is_failed(parse_run(argc, argv, &run, &usage_error))) {
        *exit_status = STATUS_USAGE;
        TRY(complain("", usage_error.message, error));
        struct view usage = view_of_text(run_usage);
        return write_all(
            STDERR_FILENO, view_slice(usage, 0, view_find(usage, view_of("\n", 1), 0) + 1), error
        );
    }
    if (run.help) {
        *exit_status = 0;
        return write_all(STDOUT_FILENO, view_of_text(run_usage), error);
    }
    return run_parsed(&run, argv, options, network, exit_status, error);
}

/* ---- file ----------------------------------------------------------------------------------- */

static result read_standard_input(struct buffer *out, struct error *error) {
    unsigned char bytes[16384];
    for (;;) {
        ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            FAIL_FOREIGN(error, IO, errno, "reading standard input: %s", strerror(errno));
        }
        if (got == 0) {
            return OK;
        }
        TRY(buffer_append(out, view_of(bytes, (size_t)got), error));
    }
}

static result do_file(
    const char *verb, const char *root_path, const char *path, bool *is_known, struct error *error
) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    CLEANUP(buffer_deinit) struct buffer bytes;
    buffer_init(&bytes, BENEATH_WRITE_BYTES_MAX);
    *is_known = true;
    TRY(beneath_open(root_path, &root, error));
    if (strcmp(verb, "read") == 0) {
        TRY(beneath_read(root, path, 0, BENEATH_READ_BYTES_MAX, &bytes, NULL, error));
        return write_all(STDOUT_FILENO, buffer_view(&bytes), error);
    }
    if (strcmp(verb, "write") == 0) {
        TRY(read_standard_input(&bytes, error));
        return beneath_write(root, path, buffer_view(&bytes), error);
    }
    if (strcmp(verb, "mkdir") == 0) {
        return beneath_mkdir(root, path, false, error);
    }
    if (strcmp(verb, "rm") == 0) {
        return beneath_remove(root, path, error);
    }
    *is_known = false;
    FAIL(error, INVALID_INPUT, "unknown function '%.60s'", verb);
}

result sandbox_command_file(int argc, char *const *argv, int *exit_status, struct error *error) {
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        *exit_status = 0;
        return write_all(STDOUT_FILENO, view_of_text(file_usage), error);
    }
    if (argc != 4) {
        *exit_status = STATUS_USAGE;
        return write_all(STDERR_FILENO, view_of_text(file_usage), error);
    }
    struct error refusal = {0};
    bool is_known = false;
    *exit_status = 0;
    if (is_failed(do_file(argv[1], argv[2], argv[3], &is_known, &refusal))) {
        *exit_status = is_known ? 1 : STATUS_USAGE;
        return complain("", refusal.message, error);
    }
    return OK;
}
