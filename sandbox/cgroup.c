/* cgroup v2, v1 or none. Measured here (2 cores, kernel 6.18, v1): making, entering and removing a
 * group takes about 0.3 ms per hierarchy, so each call gets groups of its own.
 *
 * v2 needs a delegated directory: our own one when the host is alone in it (it then moves into a
 * leaf, since a group with members cannot hand controllers down), else a parent that is ours.
 */
#include "cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUP_PREFIX    "hearth-"
#define HOST_LEAF       "hearth-host"
#define CPU_PERIOD_US   UINT64_C(100000)
#define FILE_BYTES_MAX  ((size_t)64 << 10)
#define KILL_ROUNDS_MAX 20 /* v1 without cgroup.kill: members may fork while we read the list */

static bool join(char out[SANDBOX_PATH_BYTES], const char *format, ...) PRINTF_LIKE(2, 3);

static bool join(char out[SANDBOX_PATH_BYTES], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out, SANDBOX_PATH_BYTES, format, arguments);
    va_end(arguments);
    return length >= 0 && length < SANDBOX_PATH_BYTES;
}

static bool read_file(const char *directory, const char *name, char *out, size_t bytes) {
    char path[SANDBOX_PATH_BYTES];
    out[0] = '\0';
    if (!join(path, "%s/%s", directory, name)) {
        return false;
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t used = 0;
    while (used + 1 < bytes) {
        ssize_t got = read(fd, out + used, bytes - 1 - used);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    out[used] = '\0';
    return true;
}

/* Returns 0 or errno. */
static int write_file(const char *directory, const char *name, const char *text) {
    char path[SANDBOX_PATH_BYTES];
    if (!join(path, "%s/%s", directory, name)) {
        return ENAMETOOLONG;
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    size_t length = strlen(text);
    ssize_t written = write(fd, text, length);
    return written == (ssize_t)length ? 0 : written < 0 ? errno : EIO;
}

static int write_number(const char *directory, const char *name, uint64_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    return write_file(directory, name, text);
}

static bool is_writable(const char *directory, const char *name) {
    char path[SANDBOX_PATH_BYTES];
    return join(path, "%s/%s", directory, name) && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* Whether `word` is one of the blank-separated words of `text`. */
static bool has_word(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word)) {
        bool starts = at == text || at[-1] == ' ' || at[-1] == ',' || at[-1] == '\n';
        char after = at[length];
        if (starts && (after == '\0' || after == ' ' || after == ',' || after == '\n')) {
            return true;
        }
    }
    return false;
}

/* The path of this process in one hierarchy, from lines "ID:CONTROLLERS:PATH"; v2 has no
 * controllers. False when there is no such line. */
static bool own_path(const char *own, const char *controller, char out[SANDBOX_PATH_BYTES]) {
    for (const char *line = own; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        size_t length = end != NULL ? (size_t)(end - line) : strlen(line);
        const char *first = memchr(line, ':', length);
        const char *second =
            first != NULL ? memchr(first + 1, ':', length - (size_t)(first + 1 - line)) : NULL;
        if (first != NULL && second != NULL) {
            char names[256];
            size_t names_bytes = (size_t)(second - first - 1);
            size_t path_bytes = length - (size_t)(second + 1 - line);
            if (names_bytes < sizeof names && path_bytes < SANDBOX_PATH_BYTES) {
                memcpy(names, first + 1, names_bytes);
                names[names_bytes] = '\0';
                bool same = controller[0] == '\0' ? names[0] == '\0' : has_word(names, controller);
                if (same) {
                    memcpy(out, second + 1, path_bytes);
                    out[path_bytes] = '\0';
                    return true;
                }
            }
        }
        line = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static bool directory_is_usable(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode) &&
           faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0 &&
           is_writable(path, "cgroup.procs");
}

/* Below our own group when it can be seen (limits then nest), else at the top of the hierarchy. */
static bool find_v1(const char *mount, const char *own, const char *name, char *out) {
    char self[SANDBOX_PATH_BYTES];
    if (own_path(own, name, self) && strcmp(self, "/") != 0 &&
        join(out, "%s/%s%s", mount, name, self) && directory_is_usable(out)) {
        return true;
    }
    return join(out, "%s/%s", mount, name) && directory_is_usable(out);
}

static bool hands_down_limits(const char *directory) {
    char text[1024];
    return read_file(directory, "cgroup.subtree_control", text, sizeof text) &&
           has_word(text, "memory") && has_word(text, "pids");
}

static bool is_alone_in(const char *directory) {
    char text[256];
    char self[32];
    (void)snprintf(self, sizeof self, "%ld\n", (long)getpid());
    return read_file(directory, "cgroup.procs", text, sizeof text) && strcmp(text, self) == 0;
}

static bool prepare_v2(const char *directory) {
    char text[1024];
    if (!directory_is_usable(directory) ||
        !read_file(directory, "cgroup.controllers", text, sizeof text) ||
        !has_word(text, "memory") || !has_word(text, "pids")) {
        return false;
    }
    if (hands_down_limits(directory)) {
        return true;
    }
    const char *wanted = has_word(text, "cpu") ? "+memory +pids +cpu" : "+memory +pids";
    int status = write_file(directory, "cgroup.subtree_control", wanted);
    if (status == EBUSY && is_alone_in(directory)) {
        char leaf[SANDBOX_PATH_BYTES];
        if (join(leaf, "%s/%s", directory, HOST_LEAF) &&
            (mkdir(leaf, 0755) == 0 || errno == EEXIST) &&
            write_file(leaf, "cgroup.procs", "0") == 0) {
            status = write_file(directory, "cgroup.subtree_control", wanted);
        }
    }
    return status == 0 && hands_down_limits(directory);
}

static bool find_v2(const char *mount, const char *own, char out[SANDBOX_PATH_BYTES]) {
    char self[SANDBOX_PATH_BYTES];
    if (!own_path(own, "", self)) {
        return false;
    }
    if (strcmp(self, "/") == 0) {
        self[0] = '\0';
    }
    for (unsigned up = 0; up < 2; up++) {
        if (join(out, "%s%s", mount, self) && prepare_v2(out)) {
            return true;
        }
        char *slash = strrchr(self, '/');
        if (slash == NULL) {
            return false;
        }
        *slash = '\0';
    }
    return false;
}

void cgroup_find(const char *mount, const char *own, struct cgroup_place *out) {
    *out = (struct cgroup_place){.kind = SANDBOX_CGROUP_NONE};
    char text[4096];
    if (own == NULL) {
        if (!read_file("/proc/self", "cgroup", text, sizeof text)) {
            return;
        }
        own = text;
    }
    if (mount == NULL) {
        mount = "/sys/fs/cgroup";
    }
    if (find_v2(mount, own, out->base[CGROUP_KILL])) {
        out->kind = SANDBOX_CGROUP_V2;
        return;
    }
    out->base[CGROUP_KILL][0] = '\0';
    if (find_v1(mount, own, "memory", out->base[CGROUP_MEMORY]) &&
        find_v1(mount, own, "pids", out->base[CGROUP_PIDS])) {
        out->kind = SANDBOX_CGROUP_V1;
        if (!find_v1(mount, own, "cpu", out->base[CGROUP_CPU])) {
            out->base[CGROUP_CPU][0] = '\0';
        }
        if (!join(out->base[CGROUP_KILL], "%s/unified", mount) ||
            !directory_is_usable(out->base[CGROUP_KILL])) {
            out->base[CGROUP_KILL][0] = '\0';
        }
        return;
    }
    out->base[CGROUP_MEMORY][0] = '\0';
    out->base[CGROUP_PIDS][0] = '\0';
}

/* Field 22 of /proc/PID/stat: with the process id it names a process for ever. 0: no process. */
static unsigned long long start_time(long pid) {
    char directory[64];
    char text[1024];
    (void)snprintf(directory, sizeof directory, "/proc/%ld", pid);
    if (!read_file(directory, "stat", text, sizeof text)) {
        return 0;
    }
    const char *at = strrchr(text, ')'); // the name before it may hold anything
    for (unsigned field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

/* Process ids mean something only within their namespace: a host in another container may share
 * the hierarchy, and its groups are none of our business. */
static unsigned long long pid_namespace(void) {
    struct stat about;
    return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

static int limit_memory(const struct cgroup *group, const struct cgroup_limits *limits) {
    const char *memory = group->path[CGROUP_MEMORY];
    if (group->kind == SANDBOX_CGROUP_V2) {
        memory = group->path[CGROUP_KILL];
        int status = write_number(memory, "memory.max", limits->memory_bytes);
        if (status == 0) {
            int swap = write_number(memory, "memory.swap.max", 0);
            status = swap == ENOENT ? 0 : swap;                // no swap accounting: no file
            (void)write_file(memory, "memory.oom.group", "1"); // since Linux 4.19; a nicety
        }
        return status;
    }
    int status = write_number(memory, "memory.limit_in_bytes", limits->memory_bytes);
    if (status == 0) {
        int swap = write_number(memory, "memory.memsw.limit_in_bytes", limits->memory_bytes);
        status = swap == ENOENT || swap == EACCES ? 0 : swap;
    }
    return status;
}

static int set_limits(const struct cgroup *group, const struct cgroup_limits *limits) {
    bool is_v2 = group->kind == SANDBOX_CGROUP_V2;
    int status = limit_memory(group, limits);
    if (status == 0) {
        const char *pids = group->path[is_v2 ? CGROUP_KILL : CGROUP_PIDS];
        status = write_number(pids, "pids.max", limits->processes);
    }
    uint64_t quota_us = limits->cpu_percent * CPU_PERIOD_US / 100;
    if (status == 0 && quota_us > 0 && is_v2) {
        char text[64];
        (void)snprintf(
            text,
            sizeof text,
            "%llu %llu",
            (unsigned long long)quota_us,
            (unsigned long long)CPU_PERIOD_US
        );
        int cpu = write_file(group->path[CGROUP_KILL], "cpu.max", text);
        status = cpu == ENOENT ? 0 : cpu; // the cpu controller is not handed down
    } else if (status == 0 && group->exists[CGROUP_CPU]) {
        status = write_number(group->path[CGROUP_CPU], "cpu.cfs_quota_us", quota_us);
    }
    return status;
}

result cgroup_create(
    const struct cgroup_place *place,
    const struct cgroup_limits *limits,
    struct cgroup *out,
    struct error *error
) {
    static unsigned counter; // atomic: calls start in several threads
    ASSERT(place->kind != SANDBOX_CGROUP_NONE);
    long pid = getpid();
    unsigned number = __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
    struct cgroup group = {.kind = place->kind};
    int status = 0;
    const char *at = "";
    for (int slot = 0; slot < CGROUP_SLOTS && status == 0; slot++) {
        if (place->base[slot][0] == '\0' || (slot == CGROUP_CPU && limits->cpu_percent == 0)) {
            continue;
        }
        at = group.path[slot];
        if (!join(
                group.path[slot],
                "%s/" GROUP_PREFIX "%llu-%ld-%llu-%u",
                place->base[slot],
                pid_namespace(),
                pid,
                start_time(pid),
                number
            )) {
            status = ENAMETOOLONG;
        } else if (mkdir(group.path[slot], 0755) != 0) {
            status = errno;
        } else {
            group.exists[slot] = true;
        }
    }
    if (status == 0) {
        at = group.path[CGROUP_MEMORY][0] != '\0' ? group.path[CGROUP_MEMORY] : at;
        status = set_limits(&group, limits);
    }
    if (status != 0) {
        struct cgroup left = group;
        (void)cgroup_remove(&left); // it has no members yet
        FAIL_FOREIGN(error, IO, status, "making a cgroup (%.300s): %s", at, strerror(status));
    }
    *out = group;
    return OK;
}

int cgroup_open_procs(const struct cgroup *group, int out[CGROUP_SLOTS]) {
    int count = 0;
    for (int slot = 0; slot < CGROUP_SLOTS; slot++) {
        if (!group->exists[slot]) {
            continue;
        }
        char path[SANDBOX_PATH_BYTES];
        int fd = -1;
        if (join(path, "%s/cgroup.procs", group->path[slot])) {
            fd = open(path, O_WRONLY | O_CLOEXEC);
        }
        if (fd < 0) {
            int number = errno;
            while (count > 0) {
                close(out[--count]);
            }
            errno = number;
            return -1;
        }
        out[count++] = fd;
    }
    return count;
}

/* The number after "KEY " at the start of a line; 0 when there is none. */
static unsigned long long number_after(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = text; line != NULL;) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            return strtoull(line + length, NULL, 10);
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return 0;
}

struct cgroup_events cgroup_read_events(const struct cgroup *group) {
    struct cgroup_events events = {0};
    bool is_v2 = group->kind == SANDBOX_CGROUP_V2;
    const char *memory = group->path[is_v2 ? CGROUP_KILL : CGROUP_MEMORY];
    const char *pids = group->path[is_v2 ? CGROUP_KILL : CGROUP_PIDS];
    char text[2048];
    if (read_file(memory, is_v2 ? "memory.events" : "memory.oom_control", text, sizeof text)) {
        events.out_of_memory = number_after(text, "oom_kill") > 0;
    }
    if (read_file(pids, "pids.events", text, sizeof text)) {
        events.processes_refused = number_after(text, "max") > 0;
    }
    return events;
}

static bool kill_members(const char *directory) {
    static const size_t bytes = FILE_BYTES_MAX;
    CLEANUP(free_cleanup) char *text = malloc(bytes);
    if (text == NULL || !read_file(directory, "cgroup.procs", text, bytes)) {
        return false;
    }
    bool any = false;
    for (const char *line = text; *line != '\0';) {
        char *end = NULL;
        long pid = strtol(line, &end, 10);
        if (end == line) {
            break;
        }
        if (pid > 1 && pid != getpid()) {
            any = true;
            (void)kill((pid_t)pid, SIGKILL); // gone already is as good
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return any;
}

void cgroup_kill(const struct cgroup *group) {
    if (group->exists[CGROUP_KILL] &&
        write_file(group->path[CGROUP_KILL], "cgroup.kill", "1") == 0) {
        return;
    }
    int slot = group->exists[CGROUP_PIDS] ? CGROUP_PIDS : CGROUP_KILL;
    for (unsigned round = 0; round < KILL_ROUNDS_MAX; round++) {
        if (!group->exists[slot] || !kill_members(group->path[slot])) {
            return;
        }
    }
}

bool cgroup_remove(struct cgroup *group) {
    bool gone = true;
    for (int slot = 0; slot < CGROUP_SLOTS; slot++) {
        if (!group->exists[slot]) {
            continue;
        }
        if (rmdir(group->path[slot]) == 0 || errno == ENOENT) {
            group->exists[slot] = false;
        } else {
            gone = false;
        }
    }
    return gone;
}

/* hearth-NAMESPACE-PID-START-N: whether its host still lives, as far as we may judge. */
static bool host_lives(const char *name, bool own_too, bool *is_own) {
    *is_own = false;
    char *end = NULL;
    unsigned long long space = strtoull(name + sizeof GROUP_PREFIX - 1, &end, 10);
    if (*end != '-' || space != pid_namespace()) {
        return true;
    }
    long pid = strtol(end + 1, &end, 10);
    if (pid <= 0 || *end != '-') {
        return true; // not one of ours
    }
    unsigned long long start = strtoull(end + 1, &end, 10);
    if (*end != '-') {
        return true;
    }
    if (pid == getpid() && start == start_time(pid)) {
        *is_own = true;
        return !own_too;
    }
    unsigned long long now = start_time(pid);
    return now != 0 && now == start;
}

unsigned cgroup_remove_stale(const struct cgroup_place *place, bool own_too) {
    unsigned removed = 0;
    for (int slot = 0; slot < CGROUP_SLOTS; slot++) {
        DIR *directory = place->base[slot][0] != '\0' ? opendir(place->base[slot]) : NULL;
        if (directory == NULL) {
            continue;
        }
        for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
            bool is_own = false;
            if (strncmp(entry->d_name, GROUP_PREFIX, sizeof GROUP_PREFIX - 1) != 0 ||
                host_lives(entry->d_name, own_too, &is_own)) {
                continue;
            }
            char path[SANDBOX_PATH_BYTES];
            if (!join(path, "%s/%s", place->base[slot], entry->d_name)) {
                continue;
            }
            for (unsigned round = 0; round < KILL_ROUNDS_MAX && rmdir(path) != 0; round++) {
                if (errno != EBUSY || is_own) { // members of our own belong to a running call
                    break;
                }
                if (write_file(path, "cgroup.kill", "1") != 0) {
                    (void)kill_members(path);
                }
                usleep(2000); // the dead leave after a moment; only at start and end of a host
            }
            removed += access(path, F_OK) != 0 ? 1 : 0;
        }
        closedir(directory);
    }
    return removed;
}
