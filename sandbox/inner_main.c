/* hearth-inner: the last stage inside the sandbox, between bubblewrap and the command.
 *
 * In this order: descriptors, rlimits, umask, no_new_privs, the relay of a call with a network,
 * Landlock, the seccomp filter that the host compiled, exec. Any step that fails writes a reason to
 * the status pipe and exits 125: the call is refused rather than run with less. A static program
 * that links nothing of ours.
 *
 * The relay is the way out of an otherwise empty network namespace: it hands each connection that
 * the command makes to its port to the host, socket and all, and looks at none of the bytes.
 *
 * /.inner KEY=NUMBER... ro=PATH... -- COMMAND ARGUMENTS...
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch_spec.h"

/* Landlock from the kernel's own documentation (uapi/linux/landlock.h); Debian 12's headers stop
 * at ABI 2, so the numbers live here. */
#define LANDLOCK_CREATE          444
#define LANDLOCK_ADD             445
#define LANDLOCK_RESTRICT        446
#define LANDLOCK_VERSION_FLAG    1U
#define LANDLOCK_PATH_BENEATH    1
#define LANDLOCK_NET_PORT        2
#define FS_EXECUTE               (UINT64_C(1) << 0)
#define FS_WRITE_FILE            (UINT64_C(1) << 1)
#define FS_READ_FILE             (UINT64_C(1) << 2)
#define FS_READ_DIR              (UINT64_C(1) << 3)
#define FS_MAKE_CHAR             (UINT64_C(1) << 6)
#define FS_MAKE_BLOCK            (UINT64_C(1) << 11)
#define FS_ALL_ABI_1             ((UINT64_C(1) << 13) - 1)
#define FS_REFER                 (UINT64_C(1) << 13) /* ABI 2 */
#define FS_TRUNCATE              (UINT64_C(1) << 14) /* ABI 3 */
#define FS_IOCTL_DEVICE          (UINT64_C(1) << 15) /* ABI 5 */
#define NET_BIND_AND_CONNECT_TCP 3U                  /* ABI 4 */
#define NET_CONNECT_TCP          2U
#define SCOPE_ABSTRACT_SIGNAL    3U /* ABI 6 */

struct landlock_ruleset {
    uint64_t fs;
    uint64_t net;
    uint64_t scoped;
};

struct landlock_path {
    uint64_t access;
    int32_t fd;
} __attribute__((packed));

struct landlock_port {
    uint64_t access;
    uint64_t port;
};

#define FILTER_MAX 4096 /* BPF_MAXINSNS */

struct settings {
    uint64_t cpu_s;
    uint64_t file_bytes;
    uint64_t open_files;
    uint64_t processes;
    uint64_t address_bytes;
    uint64_t data_bytes;
    uint64_t network; /* the relay's port, or 0 */
    const char *read_only[LAUNCH_OUTSIDE_MAX];
    size_t read_only_count;
};

static void say(const char *prefix, const char *what, const char *why) {
    char line[500];
    int length = snprintf(line, sizeof line, "%s%s%s\n", prefix, what, why);
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
        ssize_t written = write(LAUNCH_RECORD_FD, line, bytes);
        (void)written; // nobody is left to tell
    }
}

_Noreturn static void fail(const char *what, int error_number) {
    char why[200];
    (void)snprintf(why, sizeof why, ": %s", strerror(error_number));
    say(LAUNCH_LINE_FAILED "hearth-inner: ", what, why);
    _exit(LAUNCH_STATUS_FAILED);
}

static int parse_settings(int argc, char **argv, struct settings *out) {
    struct {
        const char *key;
        uint64_t *value;
    } numbers[] = {
        {"cpu=", &out->cpu_s},
        {"file=", &out->file_bytes},
        {"open=", &out->open_files},
        {"processes=", &out->processes},
        {"address=", &out->address_bytes},
        {"data=", &out->data_bytes},
        {"network=", &out->network},
    };
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        if (strncmp(argv[at], "ro=", 3) == 0 && out->read_only_count < LAUNCH_OUTSIDE_MAX) {
            out->read_only[out->read_only_count++] = argv[at] + 3;
            continue;
        }
        uint64_t *target = NULL;
        const char *text = NULL;
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            size_t length = strlen(numbers[i].key);
            if (strncmp(argv[at], numbers[i].key, length) == 0) {
                target = numbers[i].value;
                text = argv[at] + length;
            }
        }
        char *end = NULL;
        errno = 0;
        unsigned long long value = text != NULL ? strtoull(text, &end, 10) : 0;
        if (target == NULL || errno != 0 || end == text || *end != '\0') {
            fail("bad argument", EINVAL);
        }
        *target = value;
    }
    if (at + 1 >= argc) {
        fail("no command", EINVAL);
    }
    return at + 1;
}

static void limit(__rlimit_resource_t resource, uint64_t value, const char *name) {
    struct rlimit old;
    if (getrlimit(resource, &old) != 0) {
        fail(name, errno);
    }
    rlim_t wanted = (rlim_t)value < old.rlim_max ? (rlim_t)value : old.rlim_max;
    struct rlimit new_limit = {wanted, wanted};
    if (setrlimit(resource, &new_limit) != 0) {
        fail(name, errno);
    }
}

static void set_limits(const struct settings *settings) {
    limit(RLIMIT_CORE, 0, "rlimit core");
    limit(RLIMIT_MSGQUEUE, 0, "rlimit msgqueue");
    limit(RLIMIT_MEMLOCK, 64U << 10, "rlimit memlock");
    limit(RLIMIT_SIGPENDING, 256, "rlimit sigpending");
    limit(RLIMIT_CPU, settings->cpu_s, "rlimit cpu");
    limit(RLIMIT_FSIZE, settings->file_bytes, "rlimit fsize");
    limit(RLIMIT_NOFILE, settings->open_files, "rlimit nofile");
    limit(RLIMIT_NPROC, settings->processes, "rlimit nproc");
    if (settings->address_bytes != 0) {
        limit(RLIMIT_AS, settings->address_bytes, "rlimit as");
    }
    if (settings->data_bytes != 0) {
        limit(RLIMIT_DATA, settings->data_bytes, "rlimit data");
    }
}

static void allow(int ruleset, const char *path, uint64_t access, int required) {
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) {
        if (required) {
            fail(path, errno);
        }
        return;
    }
    struct stat about;
    if (fstat(fd, &about) != 0) {
        fail(path, errno);
    }
    if (!S_ISDIR(about.st_mode)) {
        access &= FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEVICE;
    }
    struct landlock_path rule = {access, fd};
    if (syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, &rule, 0) != 0) {
        fail("Landlock rule", errno);
    }
    close(fd);
}

/* `port` is the one that TCP may connect to, 0 for none; nothing may be bound. */
static void confine_with_landlock(const struct settings *settings, uint64_t port) {
    long abi = syscall(LANDLOCK_CREATE, NULL, 0, LANDLOCK_VERSION_FLAG);
    if (abi < 1) {
        fail("Landlock is not available", errno);
    }
    uint64_t all = FS_ALL_ABI_1;
    all |= abi >= 2 ? FS_REFER : 0;
    all |= abi >= 3 ? FS_TRUNCATE : 0;
    all |= abi >= 5 ? FS_IOCTL_DEVICE : 0;
    struct landlock_ruleset attributes = {
        .fs = all,
        .net = abi >= 4 ? NET_BIND_AND_CONNECT_TCP : 0,
        .scoped = abi >= 6 ? SCOPE_ABSTRACT_SIGNAL : 0,
    };
    size_t bytes = abi >= 6 ? 24 : abi >= 4 ? 16 : 8;
    long created = syscall(LANDLOCK_CREATE, &attributes, bytes, 0);
    if (created < 0) {
        fail("Landlock ruleset", errno);
    }
    int ruleset = (int)created;
    uint64_t read_only = FS_EXECUTE | FS_READ_FILE | FS_READ_DIR;
    uint64_t read_write = all & ~(FS_MAKE_CHAR | FS_MAKE_BLOCK | FS_IOCTL_DEVICE);
    uint64_t device =
        all & (FS_READ_FILE | FS_WRITE_FILE | FS_READ_DIR | FS_TRUNCATE | FS_IOCTL_DEVICE);
    static const char *const plain[] = {"/bin", "/sbin", "/lib", "/lib64", "/lib32", "/etc"};
    allow(ruleset, "/", FS_READ_DIR, 1); // names only; all there is was put there for the command
    allow(ruleset, "/usr", read_only, 1);
    allow(ruleset, "/proc", read_only, 1);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        allow(ruleset, plain[i], read_only, 0);
    }
    for (size_t i = 0; i < settings->read_only_count; i++) {
        allow(ruleset, settings->read_only[i], read_only, 1);
    }
    allow(ruleset, "/dev", device, 1);
    allow(ruleset, "/dev/shm", read_write, 1);
    allow(ruleset, "/tmp", read_write, 1);
    allow(ruleset, LAUNCH_HOME, read_write, 1);
    allow(ruleset, LAUNCH_WORKSPACE, read_write, 1);
    struct landlock_port rule = {NET_CONNECT_TCP, port};
    if (abi >= 4 && port != 0 && syscall(LANDLOCK_ADD, ruleset, LANDLOCK_NET_PORT, &rule, 0) != 0) {
        fail("Landlock rule for the proxy's port", errno);
    }
    if (syscall(LANDLOCK_RESTRICT, ruleset, 0) != 0) {
        fail("Landlock", errno);
    }
    close(ruleset);
}

static void confine_with_seccomp(void) {
    static struct sock_filter instructions[FILTER_MAX];
    ssize_t bytes = pread(LAUNCH_FILTER_FD, instructions, sizeof instructions, 0);
    if (bytes <= 0 || (size_t)bytes % sizeof instructions[0] != 0) {
        fail("reading the seccomp filter", bytes < 0 ? errno : EINVAL);
    }
    struct sock_fprog program = {
        .len = (unsigned short)((size_t)bytes / sizeof instructions[0]),
        .filter = instructions,
    };
    if (prctl(PR_SET_SECCOMP, 2 /* SECCOMP_MODE_FILTER */, &program, 0, 0) != 0) {
        fail("seccomp filter", errno);
    }
}

/* ---- relay ---------------------------------------------------------------------------------- */

static int open_listener(uint64_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, 64) != 0) {
        fail("listening for the command's connections", errno);
    }
    int above = fcntl(fd, F_DUPFD_CLOEXEC, LAUNCH_NETWORK_FD + 1); // the relay closes those below
    if (above < 0) {
        fail("listening for the command's connections", errno);
    }
    close(fd);
    return above;
}

/* Gives a copy of `connection` to the host; 0 when the host is gone. Waits for a busy host. */
static int hand_over(int host, int connection) {
    char byte = 'c';
    struct iovec bytes = {&byte, 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof connection)];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {
        .msg_iov = &bytes,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = sizeof control.space,
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof connection);
    memcpy(CMSG_DATA(rights), &connection, sizeof connection);
    for (;;) {
        if (sendmsg(host, &message, MSG_NOSIGNAL) == 1 || errno == ETOOMANYREFS) {
            return 1;
        }
        if (errno != EINTR) {
            return 0;
        }
    }
}

_Noreturn static void relay(int listener) {
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0 && (errno == EINTR || errno == ECONNABORTED)) {
            continue;
        }
        if (connection < 0 || !hand_over(LAUNCH_NETWORK_FD, connection)) {
            _exit(0);
        }
        close(connection);
    }
}

/* The relay must be no child of the command, which might wait for all of its children: its parent
 * ends, and process 1 adopts it. It is confined like a command without a network, in a Landlock
 * domain of its own, so that the command cannot signal it (from ABI 6 on). */
static void start_relay(const struct settings *settings) {
    int listener = open_listener(settings->network);
    pid_t parent = fork();
    if (parent < 0) {
        fail("starting the relay", errno);
    }
    if (parent == 0) {
        if (setsid() < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) {
            fail("starting the relay", errno);
        }
        confine_with_landlock(settings, 0);
        confine_with_seccomp();
        pid_t child = fork();
        if (child < 0) {
            fail("starting the relay", errno);
        }
        if (child > 0) {
            _exit(0);
        }
        // Neither the command's output nor the status pipe may hang on it.
        (void)syscall(SYS_close_range, 0U, LAUNCH_NETWORK_FD - 1U, 0);
        relay(listener);
    }
    int status = 0;
    while (waitpid(parent, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        fail("starting the relay", ECHILD);
    }
    close(listener);
    close(LAUNCH_NETWORK_FD);
}

int main(int argc, char **argv) {
    struct settings settings = {0};
    int command = parse_settings(argc, argv, &settings);
    unsigned last_kept = settings.network != 0 ? LAUNCH_NETWORK_FD : LAUNCH_FILTER_FD;
    if (syscall(SYS_close_range, 3U, LAUNCH_RECORD_FD - 1U, 0) != 0 ||
        syscall(SYS_close_range, last_kept + 1U, ~0U, 0) != 0) {
        fail("closing descriptors", errno);
    }
    if (fcntl(LAUNCH_RECORD_FD, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(LAUNCH_FILTER_FD, F_SETFD, FD_CLOEXEC) != 0) {
        _exit(LAUNCH_STATUS_FAILED);
    }
    set_limits(&settings);
    umask(022);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        fail("no_new_privs", errno);
    }
    if (settings.network != 0) {
        start_relay(&settings);
    }
    confine_with_landlock(&settings, settings.network);
    confine_with_seccomp();
    say(LAUNCH_LINE_READY, "", "");
    execvp(argv[command], argv + command);
    // The command itself is wrong: that is its own failure with a shell's status, not ours.
    int error_number = errno;
    char message[400];
    int length = snprintf(
        message, sizeof message, "cannot run '%.300s': %s\n", argv[command], strerror(error_number)
    );
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof message ? (size_t)length : sizeof message - 1;
        ssize_t written = write(STDERR_FILENO, message, bytes);
        (void)written; // standard error may be gone
    }
    _exit(error_number == ENOENT ? 127 : 126);
}
