/* hearth-sandbox: the process between the host and bubblewrap; it becomes bubblewrap.
 *
 * Its job is what the multi-threaded host cannot do after a fork: die with the host's thread,
 * leave the host's session and descriptors behind, enter the cgroups. It execs (never forks), so
 * that no process stands between the host and bubblewrap when the host is killed.
 *
 * hearth-sandbox BWRAP HOST_PID FIRST_CGROUP_FD FDS_END -- INNER ARGUMENTS...
 * Descriptors FIRST_CGROUP_FD..FDS_END-1 are open cgroup.procs files; all from FDS_END on are
 * closed. A static program that links nothing of ours and may exit by itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "launch_spec.h"

#define ARGUMENTS_MAX 4096

_Noreturn static void fail(const char *what, int error_number) {
    char line[400];
    int length =
        snprintf(line, sizeof line, "%s%s: %s\n", LAUNCH_LINE_FAILED, what, strerror(error_number));
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
        ssize_t written = write(LAUNCH_RECORD_FD, line, bytes);
        (void)written; // nobody is left to tell
    }
    _exit(LAUNCH_STATUS_FAILED);
}

static long parse_number(const char *text, long max) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0 || value > max) {
        fail("hearth-sandbox: bad number on the command line", EINVAL);
    }
    return value;
}

static void leave_host(long host_pid, unsigned fds_end) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
        fail("hearth-sandbox: parent death signal", errno);
    }
    if (getppid() != (pid_t)host_pid) { // the host died before the line above
        _exit(LAUNCH_STATUS_FAILED);
    }
    // The host matters more than a command when the whole machine is short of memory.
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0) {
        ssize_t written = write(score, "500", 3);
        (void)written; // a preference only
        close(score);
    }
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        fail("hearth-sandbox: process attributes", errno);
    }
    if (syscall(SYS_close_range, fds_end, ~0U, 0) != 0) {
        fail("hearth-sandbox: closing inherited descriptors", errno);
    }
    for (int number = 1; number < NSIG; number++) {
        (void)signal(number, SIG_DFL); // KILL, STOP and libc's own refuse, as they should
    }
    sigset_t none;
    sigemptyset(&none);
    if (sigprocmask(SIG_SETMASK, &none, NULL) != 0) {
        fail("hearth-sandbox: signal mask", errno);
    }
    if (setsid() < 0 && getsid(0) != getpid()) {
        fail("hearth-sandbox: new session", errno);
    }
}

int main(int argc, char **argv) {
    if (argc < 7 || argc > ARGUMENTS_MAX || strcmp(argv[5], "--") != 0) {
        static const char usage[] = "hearth-sandbox is started by hearth, not by hand\n";
        ssize_t written = write(STDERR_FILENO, usage, sizeof usage - 1);
        (void)written;
        return LAUNCH_STATUS_FAILED;
    }
    long host_pid = parse_number(argv[2], 1L << 30);
    long first_cgroup_fd = parse_number(argv[3], LAUNCH_FDS_MAX);
    long fds_end = parse_number(argv[4], LAUNCH_FDS_MAX);
    leave_host(host_pid, (unsigned)fds_end);
    for (long fd = first_cgroup_fd; fd < fds_end; fd++) {
        if (write((int)fd, "0", 1) != 1) {
            fail("hearth-sandbox: entering a cgroup", errno);
        }
        close((int)fd);
    }
    static char *arguments[ARGUMENTS_MAX + 4];
    static char name[] = "bwrap";
    static char option[] = "--args";
    static char args_fd[] = "3";
    _Static_assert(LAUNCH_ARGUMENTS_FD == 3, "args_fd spells it out");
    size_t count = 0;
    arguments[count++] = name;
    arguments[count++] = option;
    arguments[count++] = args_fd;
    for (int i = 5; i < argc; i++) {
        arguments[count++] = argv[i];
    }
    arguments[count] = NULL;
    char *environment[] = {NULL};
    execve(argv[1], arguments, environment);
    fail("hearth-sandbox: cannot run bubblewrap", errno);
}
