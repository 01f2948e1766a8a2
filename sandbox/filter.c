/* The seccomp filter: allow by default, refuse what reaches beyond a sandboxed process.
 *
 * Compiled once with libseccomp (about 10 ms) and handed to every call as bytes in a sealed memfd,
 * since compiling in each call costs more than bubblewrap. Refused calls return EPERM; those whose
 * arguments sit in memory, where a filter cannot see them, return ENOSYS so that libc falls back.
 */
#include "filter.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOW_32 UINT64_C(0xffffffff)
#define MODE_A S_ISUID
#define MODE_B S_ISGID

/* Numbers that libseccomp 2.5.4 has no name for (same on every architecture). */
#define SYSTEM_CALL_FCHMODAT2         452
#define SYSTEM_CALL_LSM_SET_SELF_ATTR 460
#define SYSTEM_CALL_OPEN_TREE_ATTR    467

static const char *const refused[] = {
    // other processes and their memory
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "pidfd_getfd",
    "kcmp",
    // kernel surface that needs no privilege
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "bpf",
    "userfaultfd",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "memfd_secret",
    "vmsplice",
    "modify_ldt",
    "lookup_dcookie",
    "move_pages",
    "migrate_pages",
    "fanotify_init",
    // mounts and namespaces
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "setns",
    "unshare",
    "move_mount",
    "open_tree",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "open_by_handle_at",
    "name_to_handle_at",
    // the machine as a whole
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "nfsservctl",
    "syslog",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "iopl",
    "ioperm",
    "vhangup",
};

struct builder {
    scmp_filter_ctx context;
    int status; /* first failure, negative errno */
    const char *at;
};

static void note(struct builder *builder, int status, const char *at) {
    if (status != 0 && builder->status == 0) {
        builder->status = status;
        builder->at = at;
    }
}

static void deny(
    struct builder *builder,
    int error_number,
    int number,
    unsigned count,
    const struct scmp_arg_cmp *arguments,
    const char *name
) {
    if (number == __NR_SCMP_ERROR) {
        return; // this architecture has no such call
    }
    uint32_t action = SCMP_ACT_ERRNO((uint32_t)error_number);
    note(builder, seccomp_rule_add_array(builder->context, action, number, count, arguments), name);
}

/* Refuses when all bits of `bits` are set in the argument. */
static struct scmp_arg_cmp bits_set(unsigned argument, uint64_t mask, uint64_t bits) {
    struct scmp_arg_cmp compare = {argument, SCMP_CMP_MASKED_EQ, mask, bits};
    return compare;
}

/* Refuses the call unless the 32 bits of `argument` that the kernel looks at are a number below 16
 * whose bit is set in `allowed`. `where` (may be null) limits that to calls that match it too. The
 * library takes one comparison of an argument per rule, hence a rule for each number and bit. */
static void deny_unless_among(
    struct builder *builder,
    int error_number,
    const char *name,
    unsigned argument,
    unsigned allowed,
    const struct scmp_arg_cmp *where
) {
    int number = seccomp_syscall_resolve_name(name);
    struct scmp_arg_cmp rule[2];
    unsigned count = 1;
    if (where != NULL) {
        rule[1] = *where;
        count = 2;
    }
    for (uint64_t value = 0; value < 16; value++) {
        rule[0] = bits_set(argument, 15, value);
        if ((allowed >> value & 1) == 0) {
            deny(builder, error_number, number, count, rule, name);
        }
    }
    for (unsigned bit = 4; bit < 32; bit++) {
        rule[0] = bits_set(argument, UINT64_C(1) << bit, UINT64_C(1) << bit);
        deny(builder, error_number, number, count, rule, name);
    }
}

/* Only AF_UNIX: a network namespace does not confine AF_VSOCK, and other families are attack
 * surface. With a network also TCP, to reach the relay; no other protocol of those families. */
static void deny_sockets(struct builder *builder, bool allows_tcp) {
    _Static_assert(AF_UNIX < 16 && AF_INET < 16 && AF_INET6 < 16, "see deny_unless_among");
    static const unsigned families[] = {AF_INET, AF_INET6};
    unsigned pairs = 1U << AF_UNIX;
    unsigned sockets = pairs | (allows_tcp ? 1U << AF_INET | 1U << AF_INET6 : 0);
    deny_unless_among(builder, EAFNOSUPPORT, "socketpair", 0, pairs, NULL);
    deny_unless_among(builder, EAFNOSUPPORT, "socket", 0, sockets, NULL);
    for (size_t i = 0; allows_tcp && i < COUNT_OF(families); i++) {
        struct scmp_arg_cmp family = bits_set(0, LOW_32, families[i]);
        for (uint64_t type = 0; type < 16; type++) { // above are flags
            struct scmp_arg_cmp rule[] = {family, bits_set(1, 15, type)};
            if (type != SOCK_STREAM) {
                deny(builder, EPROTONOSUPPORT, SCMP_SYS(socket), 2, rule, "socket");
            }
        }
        unsigned protocols = 1U << 0 | 1U << IPPROTO_TCP;
        deny_unless_among(builder, EPROTONOSUPPORT, "socket", 2, protocols, &family);
    }
}

/* As root the files made inside belong to the host's root, so a setuid bit must not come into
 * being by any way: chmod family, creation with a mode (O_TMPFILE too), mknod. */
static void deny_set_id_modes(struct builder *builder) {
    static const struct {
        const char *name;
        unsigned mode_argument;
        int flags_argument; /* -1: none */
    } calls[] = {
        {"chmod", 1, -1},
        {"fchmod", 1, -1},
        {"fchmodat", 2, -1},
        {"mknod", 1, -1},
        {"mknodat", 2, -1},
        {"creat", 1, -1},
        {"open", 2, 1},
        {"openat", 3, 2},
    };
    static const uint64_t modes[] = {MODE_A, MODE_B};
    static const uint64_t creating[] = {O_CREAT, O_TMPFILE & ~O_DIRECTORY};
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        int number = seccomp_syscall_resolve_name(calls[i].name);
        for (size_t j = 0; j < COUNT_OF(modes); j++) {
            struct scmp_arg_cmp both[2] = {bits_set(calls[i].mode_argument, modes[j], modes[j])};
            if (calls[i].flags_argument < 0) {
                deny(builder, EPERM, number, 1, both, calls[i].name);
                continue;
            }
            for (size_t k = 0; k < COUNT_OF(creating); k++) {
                both[1] = bits_set((unsigned)calls[i].flags_argument, creating[k], creating[k]);
                deny(builder, EPERM, number, 2, both, calls[i].name);
            }
        }
    }
    deny(builder, ENOSYS, SYSTEM_CALL_FCHMODAT2, 0, NULL, "fchmodat2");
    deny(builder, ENOSYS, seccomp_syscall_resolve_name("openat2"), 0, NULL, "openat2");
}

static void deny_namespaces(struct builder *builder) {
    static const uint64_t flags[] = {
        CLONE_NEWUSER,
        CLONE_NEWNS,
        CLONE_NEWPID,
        CLONE_NEWNET,
        CLONE_NEWIPC,
        CLONE_NEWUTS,
        CLONE_NEWCGROUP,
    };
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        struct scmp_arg_cmp compare = bits_set(0, flags[i], flags[i]);
        deny(builder, EPERM, SCMP_SYS(clone), 1, &compare, "clone");
    }
    deny(builder, ENOSYS, SCMP_SYS(clone3), 0, NULL, "clone3"); // its flags sit in memory
}

static void add_rules(struct builder *builder, bool allows_tcp) {
    scmp_filter_ctx context = builder->context;
    note(
        builder, seccomp_attr_set(context, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS), "arch"
    );
    note(builder, seccomp_attr_set(context, SCMP_FLTATR_CTL_OPTIMIZE, 2), "optimize");
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        deny(builder, EPERM, seccomp_syscall_resolve_name(refused[i]), 0, NULL, refused[i]);
    }
    deny(builder, EPERM, SYSTEM_CALL_LSM_SET_SELF_ATTR, 0, NULL, "lsm_set_self_attr");
    deny(builder, EPERM, SYSTEM_CALL_OPEN_TREE_ATTR, 0, NULL, "open_tree_attr");
    struct scmp_arg_cmp not_zero = {0, SCMP_CMP_NE, 0, 0};
    deny(builder, EPERM, SCMP_SYS(personality), 1, &not_zero, "personality");
    // The kernel looks at 32 bits of the request: a plain comparison of 64 is bypassed
    // (CVE-2019-7303).
    static const uint64_t requests[] = {0x5412 /* TIOCSTI */, 0x541c /* TIOCLINUX */};
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        struct scmp_arg_cmp compare = bits_set(1, LOW_32, requests[i]);
        deny(builder, EPERM, SCMP_SYS(ioctl), 1, &compare, "ioctl");
    }
    deny_namespaces(builder);
    deny_sockets(builder, allows_tcp);
    deny_set_id_modes(builder);
}

static result seal(int fd, struct error *error) {
    int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) {
        FAIL_FOREIGN(error, IO, errno, "sealing a memory file: %s", strerror(errno));
    }
    return OK;
}

result filter_compile(bool allows_tcp, int *out_fd, struct error *error) {
    ASSERT(out_fd != NULL);
    struct builder builder = {.context = seccomp_init(SCMP_ACT_ALLOW)};
    if (builder.context == NULL) {
        FAIL(error, MEMORY, "no memory for the seccomp filter");
    }
    add_rules(&builder, allows_tcp);
    CLEANUP(fd_cleanup) int fd = -1;
    if (builder.status == 0) {
        fd = memfd_create("hearth-filter", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        note(&builder, fd < 0 ? -errno : 0, "memfd");
    }
    if (builder.status == 0) {
        note(&builder, seccomp_export_bpf(builder.context, fd), "export");
    }
    seccomp_release(builder.context);
    if (builder.status != 0) {
        FAIL_FOREIGN(
            error,
            UNSUPPORTED,
            -builder.status,
            "compiling the seccomp filter failed at %s: %s",
            builder.at,
            strerror(-builder.status)
        );
    }
    TRY(seal(fd, error));
    *out_fd = fd;
    fd = -1;
    return OK;
}

result sealed_memfd_create(
    const char *name, const void *bytes, size_t length, int *out_fd, struct error *error
) {
    CLEANUP(fd_cleanup) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "memory file '%s': %s", name, strerror(errno));
    }
    const unsigned char *at = bytes;
    size_t left = length;
    while (left > 0) {
        ssize_t written = write(fd, at, left);
        if (written <= 0) {
            FAIL_FOREIGN(error, IO, errno, "memory file '%s': %s", name, strerror(errno));
        }
        at += written;
        left -= (size_t)written;
    }
    if (lseek(fd, 0, SEEK_SET) != 0) {
        FAIL_FOREIGN(error, IO, errno, "memory file '%s': %s", name, strerror(errno));
    }
    TRY(seal(fd, error));
    *out_fd = fd;
    fd = -1;
    return OK;
}
