/* Runs an untrusted command in a workspace, confined by bubblewrap and an inner stage of our own.
 *
 * `sandbox_open` finds out once what this machine can enforce; `sandbox_start` starts one command
 * as a call, or refuses: nothing is ever run with less confinement than the probe promised. A call
 * has one pollable descriptor (pipes, process and timers behind it), so that an event loop watches
 * it and calls `sandbox_call_step`; `sandbox_run` does the same with a loop of its own.
 *
 * Threads: a call belongs to one thread at a time. The kernel ends a sandbox when the THREAD that
 * started it ends (PR_SET_PDEATHSIG), so call sandbox_start and sandbox_run from threads that live
 * as long as the call: the loop thread, or a pool worker that is kept. Different calls may run in
 * different threads at once. The process never forks by hand, it spawns `hearth-sandbox`.
 */
#ifndef HEARTH_SANDBOX_SANDBOX_H
#define HEARTH_SANDBOX_SANDBOX_H

#include "base/bytes.h"

enum sandbox_rung {
    SANDBOX_REFUSED,  /* the machine cannot confine a command: see refusal and remedy */
    SANDBOX_FULL,     /* namespaces, seccomp, Landlock, cgroup limits */
    SANDBOX_NO_CGROUP /* the same, but memory and processes are limited by rlimits only */
};

enum sandbox_cgroup_kind { SANDBOX_CGROUP_NONE, SANDBOX_CGROUP_V1, SANDBOX_CGROUP_V2 };

#define SANDBOX_PATH_BYTES 1024
#define SANDBOX_TEXT_BYTES 480

/* What this machine can enforce, as `hearth doctor` shows it. */
struct sandbox_probe {
    enum sandbox_rung rung;
    enum sandbox_cgroup_kind cgroup;
    bool is_root;         /* the effective user is 0: cgroup limits are then mandatory */
    bool user_namespaces; /* a command really ran in its own user namespace */
    bool seccomp;         /* the filter was compiled and loaded by that command */
    int landlock_abi;     /* 0: none */
    int64_t start_ms;     /* what that one confined command took, spawn to outcome */
    char bwrap_path[SANDBOX_PATH_BYTES];
    char bwrap_version[64];
    char cgroup_path[SANDBOX_PATH_BYTES]; /* directory that groups are made in, "" for none */
    char helper_path[SANDBOX_PATH_BYTES]; /* directory of hearth-sandbox and hearth-inner */
    char refusal[SANDBOX_TEXT_BYTES];     /* why commands are refused, "" when they are not */
    char remedy[SANDBOX_TEXT_BYTES];      /* what a person can do about it, one line */
    char weaker[SANDBOX_TEXT_BYTES];      /* what is weaker than full, "" for nothing */
};

struct sandbox_options {
    /* Directory with hearth-sandbox and hearth-inner; null: beside this executable, then
     * ../libexec/hearth from it, then ../sandbox or sandbox from it (a build tree). */
    const char *helper_directory;
    const char *bwrap_path;   /* null: beside hearth-sandbox, then /usr/bin, /bin, /usr/local/bin */
    const char *cgroup_mount; /* null: /sys/fs/cgroup; tests name another */
};

struct sandbox; /* opened once by the host; calls borrow it */

/* Looks for helpers and bubblewrap, compiles the filter, removes cgroups left by dead hosts and
 * really runs one command. A machine that cannot confine is no failure here: the probe says so and
 * sandbox_start refuses. Blocks for about the time of one command. `options` may be null.
 * Expected errors: MEMORY, IO. */
MUST_CHECK result
sandbox_open(const struct sandbox_options *options, struct sandbox **out, struct error *error);
void sandbox_close(struct sandbox *sandbox); /* after all of its calls were destroyed */
const struct sandbox_probe *sandbox_get_probe(const struct sandbox *sandbox);

enum sandbox_stream { SANDBOX_STDOUT, SANDBOX_STDERR };

/* All bytes of a stream in order, inside of sandbox_call_step; must not block. */
typedef void sandbox_on_output(void *context, enum sandbox_stream stream, struct view bytes);

struct sandbox_policy {
    const char *workspace; /* host directory; /workspace inside; must belong to the caller */
    int64_t wall_ms;       /* SIGTERM then, SIGKILL 2 s later */
    uint64_t memory_mib;
    uint64_t processes;        /* and threads */
    uint64_t disk_mib;         /* growth of the workspace during the call; also the largest file */
    uint64_t output_kib;       /* kept per stream: first half and last half */
    uint64_t cpu_percent;      /* 100 is one core */
    uint64_t output_total_mib; /* written in all; more ends the command */
    sandbox_on_output *on_output; /* sees what is not kept, too; may be null */
    void *on_output_context;
    bool merge_output; /* standard error goes into the same pipe as standard output */
    bool is_read_only; /* the workspace cannot be written */
    bool has_input;    /* standard input is a pipe of the host; else it is /dev/null */
    const char *const
        *protect; /* paths below the workspace that stay read-only; missing: ignored */
    size_t protect_count;
    const char *const *environment; /* further "NAME=VALUE" for the command */
    size_t environment_count;
    const char *const
        *read_only; /* further absolute host paths, seen read-only at the same place */
    size_t read_only_count;
    bool read_only_is_own; /* these may belong to the caller, such as a person's hooks and skills */
    /* Null: no network. Otherwise the unix socket (SOCK_SEQPACKET) of whoever decides where the
     * command may connect to, usually proxy_socket of runtime/proxy.h. The call connects to it
     * once; each connection that the command then makes to SANDBOX_PROXY_URL, the one address that
     * it reaches, is handed over as a message of one byte with the TCP socket (SCM_RIGHTS). */
    const char *network_socket;
};

#define SANDBOX_PROXY_PORT 3128
#define SANDBOX_PROXY_URL  "http://127.0.0.1:3128" /* in http_proxy and so on of the command */

/* 10 min, 2048 MiB, 256 processes, 2048 MiB disk, 128 KiB output of 64 MiB, 200 % CPU, nothing
 * extra. */
struct sandbox_policy sandbox_policy_default(const char *workspace);

/* Whether sandbox_start would accept the policy's workspace and paths: no system or home directory,
 * owned by the caller, and so on. For hosts that want to refuse before they do anything else with
 * the directory. Expected errors: INVALID_INPUT, LIMIT (as sandbox_start), UNSUPPORTED. */
MUST_CHECK result sandbox_check_workspace(
    const struct sandbox *sandbox, const struct sandbox_policy *policy, struct error *error
);

enum sandbox_end {
    SANDBOX_EXITED,        /* exit_status is the command's own */
    SANDBOX_SIGNALLED,     /* ended by `signal`; exit_status is 128 + signal */
    SANDBOX_TIMED_OUT,     /* wall_ms passed */
    SANDBOX_CANCELLED,     /* sandbox_call_cancel */
    SANDBOX_OUTPUT_LIMIT,  /* more than output_total_mib written; ended */
    SANDBOX_DISK_LIMIT,    /* the workspace grew too much; ended */
    SANDBOX_LAUNCH_FAILED, /* the command never ran; `reason` says why */
    SANDBOX_LOST           /* ended from outside (the host's thread ended, someone sent SIGKILL) */
};

struct sandbox_outcome {
    enum sandbox_end end;
    int exit_status; /* of the command when it ended by itself; 128 + N also when a shell says so */
    int signal;      /* 0: none */
    bool out_of_memory;     /* the kernel killed for memory; known with cgroup limits only */
    bool processes_refused; /* a fork was refused at the limit; known with cgroup limits only */
    bool limits_by_cgroup;  /* false: rlimits only */
    int64_t wall_ms;
    uint64_t stdout_bytes; /* written by the command, kept or not */
    uint64_t stderr_bytes;
    int64_t disk_growth_bytes;
    unsigned mode_bits_stripped; /* files whose setuid or setgid bit was taken away afterwards */
    /* Files that tools on the host act upon by themselves (.envrc, .vscode, CI files and so on)
     * and that this call changed; the first few names, separated by blanks, "" for none. A git
     * directory below the top (of a submodule, say) is "(nested)/.git". */
    char trust_changes[SANDBOX_TEXT_BYTES];
    char reason[SANDBOX_TEXT_BYTES]; /* one sentence on anything but SANDBOX_EXITED */
};

struct sandbox_call;

/* Starts `command` (null-terminated, command[0] looked up in /usr/bin and /bin inside).
 * The policy and the command are copied. Commands of one sandbox can run in a workspace together
 * when all of them see the same .git and protected paths as the first, and these are direct children
 * of the workspace; a .git that appears while some run is read-only only after the last has ended.
 * Expected errors: UNSUPPORTED (refused: cannot confine), INVALID_INPUT (workspace or policy), LIMIT
 * (a command of another host runs there, or one that cannot share it), IO. */
MUST_CHECK result sandbox_start(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct sandbox_call **out,
    struct error *error
);
/* One descriptor, readable whenever sandbox_call_step has something to do (timers included).
 * Borrowed: lives until sandbox_call_destroy. */
int sandbox_call_fd(const struct sandbox_call *call);
/* Milliseconds (CLOCK_MONOTONIC) at which a step is due even if nothing happens; for loops that
 * prefer their own timer. INT64_MAX when finished. */
int64_t sandbox_call_deadline_ms(const struct sandbox_call *call);
/* Does what is ready, never blocks, at most about a millisecond; true once the call is finished. */
bool sandbox_call_step(struct sandbox_call *call);
/* Ends the command: SIGTERM now, SIGKILL 2 s later. Keep stepping until finished. A second cancel
 * sends SIGKILL at once. */
void sandbox_call_cancel(struct sandbox_call *call);
/* Only when finished. Borrowed. */
const struct sandbox_outcome *sandbox_call_outcome(const struct sandbox_call *call);
/* Kills and waits for what still runs (at most 3 s). */
void sandbox_call_destroy(struct sandbox_call *call);

/* Writes to the command's standard input (policy.has_input) what fits its pipe, never waiting;
 * *written may be less than `bytes`, or 0. The call's descriptor then becomes readable once there is
 * room: step, and write the rest. The pipe takes bytes before the command runs, and holds 64 KiB that
 * nobody may ever read. Expected errors: IO (closed by sandbox_call_end_input, by the command's end,
 * or because nothing reads it any more). */
MUST_CHECK result sandbox_call_write_input(
    struct sandbox_call *call, struct view bytes, size_t *written, struct error *error
);
/* The command reads end of file behind what was written. Can be repeated; nothing without a pipe. */
void sandbox_call_end_input(struct sandbox_call *call);

/* Raw bytes kept so far: the first and the last ones; `dropped` bytes lay in between. Borrowed,
 * until the next step. */
struct sandbox_output {
    struct view head;
    struct view tail;
    uint64_t dropped;
};
struct sandbox_output
sandbox_call_output(const struct sandbox_call *call, enum sandbox_stream stream);

/* The same as text for a model or a terminal: sanitised, with a line in words where bytes were
 * dropped. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result sandbox_call_text(
    const struct sandbox_call *call,
    enum sandbox_stream stream,
    struct buffer *out,
    struct error *error
);

/* Appends `bytes` as harmless text: invalid UTF-8 becomes U+FFFD; ESC, other C0 and C1 controls,
 * DEL and bidirectional controls become visible escapes (\x1b, \u202e); newline and tab stay,
 * CR LF becomes LF. Lines over `line_bytes_max` (0: no limit) are shortened, with a note.
 * Expected errors: MEMORY, LIMIT. */
MUST_CHECK result
sandbox_sanitise(struct view bytes, size_t line_bytes_max, struct buffer *out, struct error *error);
#define SANDBOX_LINE_BYTES_MAX ((size_t)4096)

/* Starts and steps until finished; *out is a finished call that the caller destroys. `cancel_fd`
 * (-1: none) ends the call when it becomes readable. */
MUST_CHECK result sandbox_run(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    int cancel_fd,
    struct sandbox_call **out,
    struct error *error
);

/* The same with all of `input` and then end of file as standard input. A command that ends without
 * having read it is no failure. */
MUST_CHECK result sandbox_run_with_input(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct view input,
    int cancel_fd,
    struct sandbox_call **out,
    struct error *error
);

/* "exited", "timed_out", ...: a stable word for records and JSON. */
const char *sandbox_end_name(enum sandbox_end end);
const char *sandbox_rung_name(enum sandbox_rung rung);
const char *sandbox_cgroup_name(enum sandbox_cgroup_kind kind);

#endif
