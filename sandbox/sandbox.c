/* Finds out once what this machine can enforce, by looking and then by really running a command. */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "filter.h"
#include "hold.h"
#include "launch.h"
#include "mounts.h"

#define PROBE_WALL_MS INT64_C(20000)

struct sandbox_policy sandbox_policy_default(const char *workspace) {
    struct sandbox_policy policy = {
        .workspace = workspace,
        .wall_ms = 600000,
        .memory_mib = 2048,
        .processes = 256,
        .disk_mib = 2048,
        .output_kib = 128,
        .cpu_percent = 200,
        .output_total_mib = 64,
    };
    return policy;
}

const char *sandbox_end_name(enum sandbox_end end) {
    static const char *const names[] = {
        "exited",
        "signalled",
        "timed_out",
        "cancelled",
        "output_limit",
        "disk_limit",
        "launch_failed",
        "lost",
    };
    ASSERT((size_t)end < COUNT_OF(names));
    return names[end];
}

const char *sandbox_rung_name(enum sandbox_rung rung) {
    static const char *const names[] = {"refused", "full", "no_cgroup"};
    ASSERT((size_t)rung < COUNT_OF(names));
    return names[rung];
}

const char *sandbox_cgroup_name(enum sandbox_cgroup_kind kind) {
    static const char *const names[] = {"none", "v1", "v2"};
    ASSERT((size_t)kind < COUNT_OF(names));
    return names[kind];
}

/* ---- helpers -------------------------------------------------------------------------------- */

static void refuse(struct sandbox_probe *probe, const char *why, const char *remedy) {
    if (probe->refusal[0] == '\0') { // the first reason is the one to mend first
        (void)snprintf(probe->refusal, sizeof probe->refusal, "%s", why);
        (void)snprintf(probe->remedy, sizeof probe->remedy, "%s", remedy);
    }
}

/* A file that others cannot replace: regular, ours or root's, not writable by group or others, and
 * not setuid (a setuid bubblewrap is another program: CVE-2026-41163). */
static bool is_trusted_program(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & S_IXUSR) != 0 &&
           (about.st_mode & (S_IWGRP | S_IWOTH | S_ISUID | S_ISGID)) == 0 &&
           (about.st_uid == 0 || about.st_uid == geteuid());
}

static bool has_helpers(const char *directory) {
    static const char *const names[] = {"hearth-sandbox", "hearth-inner"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[SANDBOX_PATH_BYTES + 32];
        int length = snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        if (length < 0 || (size_t)length >= sizeof path || !is_trusted_program(path)) {
            return false;
        }
    }
    return true;
}

static bool keep_real_path(const char *path, char out[SANDBOX_PATH_BYTES]) {
    CLEANUP(free_cleanup) char *resolved = realpath(path, NULL);
    if (resolved == NULL || strlen(resolved) >= SANDBOX_PATH_BYTES) {
        return false;
    }
    memcpy(out, resolved, strlen(resolved) + 1);
    return true;
}

static bool find_helpers(const char *given, char out[SANDBOX_PATH_BYTES]) {
    if (given != NULL) {
        return keep_real_path(given, out) && has_helpers(out);
    }
    char self[SANDBOX_PATH_BYTES];
    if (!keep_real_path("/proc/self/exe", self)) {
        return false;
    }
    *strrchr(self, '/') = '\0';
    static const char *const places[] = {"", "/../libexec/hearth", "/../sandbox", "/sandbox"};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        char path[SANDBOX_PATH_BYTES + 32];
        (void)snprintf(path, sizeof path, "%s%s", self, places[i]);
        if (keep_real_path(path, out) && has_helpers(out)) {
            return true;
        }
    }
    out[0] = '\0';
    return false;
}

static bool find_bwrap(const char *given, const char *helpers, char out[SANDBOX_PATH_BYTES]) {
    if (given != NULL) {
        return keep_real_path(given, out) && is_trusted_program(out);
    }
    char beside[SANDBOX_PATH_BYTES + 32];
    (void)snprintf(beside, sizeof beside, "%s/bwrap", helpers);
    const char *const places[] = {
        beside, "/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"}; // never $PATH
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        struct stat about;
        bool is_ours = i == 0; // of a carried install; elsewhere it must be root's
        if (keep_real_path(places[i], out) && is_trusted_program(out) && stat(out, &about) == 0 &&
            (is_ours || about.st_uid == 0)) {
            return true;
        }
    }
    out[0] = '\0';
    return false;
}

/* "bubblewrap 0.8.0" without the name. */
static void read_version(const char *bwrap, char *out, size_t bytes) {
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return;
    }
    if (posix_spawn_file_actions_init(&actions) != 0) {
        close(ends[0]);
        close(ends[1]);
        return;
    }
    char name[] = "bwrap";
    char option[] = "--version";
    char *words[] = {name, option, NULL};
    char *environment[] = {NULL};
    pid_t pid = -1;
    int status = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    status = status != 0 ? status : posix_spawn(&pid, bwrap, &actions, NULL, words, environment);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char text[128];
    ssize_t got = status == 0 ? read(ends[0], text, sizeof text - 1) : -1;
    close(ends[0]);
    if (status == 0) {
        int ended = 0;
        while (waitpid(pid, &ended, 0) < 0 && errno == EINTR) {
        }
    }
    if (got > 0) {
        text[got] = '\0';
        text[strcspn(text, "\n")] = '\0';
        const char *version = strrchr(text, ' ');
        (void)snprintf(out, bytes, "%.60s", version != NULL ? version + 1 : text);
    }
}

static long read_knob(const char *path) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 4096);
    if (is_failed(file_read(path, &text, NULL))) {
        return -1;
    }
    return strtol(buffer_text(&text), NULL, 10);
}

static void find_root(struct sandbox *sandbox) {
    static const char *const paths[] = {"/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct stat about;
        if (lstat(paths[i], &about) != 0) {
            continue;
        }
        size_t at = sandbox->root_count;
        ssize_t length = 0;
        if (S_ISLNK(about.st_mode)) {
            size_t bytes = sizeof sandbox->root[at].target;
            length = readlink(paths[i], sandbox->root[at].target, bytes - 1);
            if (length <= 0) {
                continue;
            }
        }
        sandbox->root[at].target[length] = '\0';
        (void)snprintf(sandbox->root[at].path, sizeof sandbox->root[at].path, "%s", paths[i]);
        sandbox->root_count += 1;
    }
}

/* ---- probe ---------------------------------------------------------------------------------- */

/* What a person can do about the message that bubblewrap gave. */
static const char *remedy_for(const char *message) {
    if (read_knob("/proc/sys/user/max_user_namespaces") == 0) {
        return "sysctl -w user.max_user_namespaces=15000";
    }
    if (read_knob("/proc/sys/kernel/unprivileged_userns_clone") == 0) {
        return "sysctl -w kernel.unprivileged_userns_clone=1";
    }
    if (strstr(message, "RTM_NEWADDR") != NULL || strstr(message, "uid map") != NULL ||
        read_knob("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == 1) {
        return "an AppArmor profile that allows 'userns' for bwrap and hearth-sandbox "
               "(Ubuntu 24.04: kernel.apparmor_restrict_unprivileged_userns)";
    }
    if (strstr(message, "Landlock") != NULL) {
        return "a kernel with Landlock switched on (boot parameter lsm=landlock,...)";
    }
    if (strstr(message, "make / slave") != NULL || strstr(message, "mount proc") != NULL) {
        return "a container that may mount: run it with an unmasked /proc and user namespaces";
    }
    return "see the message; 'bwrap --unshare-all --ro-bind / / true' should work by hand";
}

static bool make_probe_workspace(char path[SANDBOX_PATH_BYTES]) {
    const char *const places[] = {getenv("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (places[i] == NULL) {
            continue;
        }
        int length = snprintf(path, SANDBOX_PATH_BYTES, "%s/hearth-probe-XXXXXX", places[i]);
        if (length > 0 && length < SANDBOX_PATH_BYTES && mkdtemp(path) != NULL) {
            return true;
        }
    }
    return false;
}

/* Runs a command that reads what the kernel says of its confinement. */
static void probe_by_running(struct sandbox *sandbox) {
    struct sandbox_probe *probe = &sandbox->probe;
    char workspace[SANDBOX_PATH_BYTES];
    if (!make_probe_workspace(workspace)) {
        refuse(probe, "no temporary directory can be made for a trial", "set TMPDIR");
        return;
    }
    struct sandbox_policy policy = sandbox_policy_default(workspace);
    policy.wall_ms = PROBE_WALL_MS;
    static const char *const command[] = {
        "/usr/bin/grep", "-E", "^(CapEff|NoNewPrivs|Seccomp):", "/proc/self/status", NULL};
    struct sandbox_call *call = NULL;
    struct error error = {0};
    result ran = sandbox_run(sandbox, &policy, command, -1, &call, &error);
    (void)rmdir(workspace); // empty, but for a failure that leaves a directory in /tmp
    if (is_failed(ran)) {
        refuse(probe, error.message, "see the message");
        return;
    }
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    probe->start_ms = outcome->wall_ms;
    if (outcome->end != SANDBOX_EXITED || outcome->exit_status != 0) {
        refuse(probe, outcome->reason, remedy_for(outcome->reason));
    } else {
        probe->user_namespaces = true;
        probe->seccomp = view_find(output.head, view_of_text("Seccomp:\t2"), 0) != SIZE_MAX;
        bool has_none =
            view_find(output.head, view_of_text("CapEff:\t0000000000000000"), 0) != SIZE_MAX;
        bool no_new = view_find(output.head, view_of_text("NoNewPrivs:\t1"), 0) != SIZE_MAX;
        if (!probe->seccomp || !has_none || !no_new) {
            refuse(
                probe,
                "a trial command kept privileges that it should have lost",
                "a kernel and bubblewrap that drop them; please report this machine"
            );
        }
    }
    sandbox_call_destroy(call);
}

static void look_around(struct sandbox *sandbox, const struct sandbox_options *options) {
    struct sandbox_probe *probe = &sandbox->probe;
    probe->is_root = geteuid() == 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    sandbox->cores = cores > 0 ? (unsigned)cores : 1;
    find_root(sandbox);
    long abi = syscall(444 /* landlock_create_ruleset */, NULL, 0, 1U);
    probe->landlock_abi = abi > 0 ? (int)abi : 0;
    if (!find_helpers(options->helper_directory, probe->helper_path)) {
        refuse(
            probe,
            "hearth-sandbox and hearth-inner are not beside Hearth, or others can change them",
            "build or install Hearth again; both programs must belong to you or root"
        );
    }
    if (!find_bwrap(options->bwrap_path, probe->helper_path, probe->bwrap_path)) {
        refuse(
            probe,
            "bubblewrap (bwrap) is missing, setuid, or can be changed by others",
            "apt-get install bubblewrap"
        );
    } else {
        read_version(probe->bwrap_path, probe->bwrap_version, sizeof probe->bwrap_version);
    }
    if (probe->landlock_abi < 1) {
        refuse(probe, "Landlock is not available", remedy_for("Landlock"));
    }
    cgroup_find(options->cgroup_mount, NULL, &sandbox->place);
    probe->cgroup = sandbox->place.kind;
    int slot = probe->cgroup == SANDBOX_CGROUP_V1 ? CGROUP_MEMORY : CGROUP_KILL;
    if (probe->cgroup != SANDBOX_CGROUP_NONE) {
        memcpy(probe->cgroup_path, sandbox->place.base[slot], sizeof probe->cgroup_path);
        (void)cgroup_remove_stale(&sandbox->place, false);
    } else {
        memset(sandbox->place.base, 0, sizeof sandbox->place.base);
    }
    if (probe->cgroup == SANDBOX_CGROUP_NONE && probe->is_root) {
        refuse(
            probe,
            "as root the limits on memory and processes need cgroups, and none can be made here",
            "run Hearth as an ordinary user, or give root a writable cgroup tree"
        );
    }
}

result
sandbox_open(const struct sandbox_options *options, struct sandbox **out, struct error *error) {
    static const struct sandbox_options none = {0};
    struct sandbox *sandbox = calloc(1, sizeof *sandbox);
    if (sandbox == NULL) {
        FAIL(error, MEMORY, "no memory for the sandbox");
    }
    sandbox->filter_fd = sandbox->network_filter_fd = -1;
    result created = hold_table_create(&sandbox->holds, error);
    if (is_failed(created)) {
        free(sandbox);
        return created;
    }
    int locked = pthread_mutex_init(&sandbox->network_filter_lock, NULL);
    ASSERT(locked == 0);
    struct sandbox_probe *probe = &sandbox->probe;
    look_around(sandbox, options != NULL ? options : &none);
    struct error filter_error = {0};
    if (is_failed(filter_compile(false, &sandbox->filter_fd, &filter_error))) {
        refuse(probe, filter_error.message, "an architecture and libseccomp that know the filter");
    }
    if (probe->refusal[0] == '\0') {
        bool has_cgroup = probe->cgroup != SANDBOX_CGROUP_NONE;
        probe->rung = has_cgroup ? SANDBOX_FULL : SANDBOX_NO_CGROUP;
        probe_by_running(sandbox);
    }
    if (probe->refusal[0] != '\0') {
        probe->rung = SANDBOX_REFUSED;
    } else if (probe->rung == SANDBOX_NO_CGROUP) {
        (void)snprintf(
            probe->weaker,
            sizeof probe->weaker,
            "no cgroup can be made: memory is limited per process only (start Hearth with "
            "'systemd-run --user --scope -p Delegate=yes hearth ...' for full limits)"
        );
    }
    *out = sandbox;
    return OK;
}

void sandbox_close(struct sandbox *sandbox) {
    if (sandbox == NULL) {
        return;
    }
    if (sandbox->place.kind != SANDBOX_CGROUP_NONE) {
        (void)cgroup_remove_stale(&sandbox->place, true);
    }
    fd_cleanup(&sandbox->filter_fd);
    hold_table_destroy(sandbox->holds);
    fd_cleanup(&sandbox->network_filter_fd);
    (void)pthread_mutex_destroy(&sandbox->network_filter_lock);
    free(sandbox);
}

const struct sandbox_probe *sandbox_get_probe(const struct sandbox *sandbox) {
    return &sandbox->probe;
}

result sandbox_check_workspace(
    const struct sandbox *sandbox, const struct sandbox_policy *policy, struct error *error
) {
    struct mounts mounts;
    TRY(mounts_open(sandbox->holds, policy, sandbox->probe.helper_path, &mounts, error));
    mounts_close(&mounts);
    return OK;
}
