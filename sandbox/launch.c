/* Builds bubblewrap's arguments and spawns hearth-sandbox with exactly the descriptors it needs.
 *
 * The minimal root is put together from /usr, a few files of /etc and fresh /proc, /dev and tmpfs:
 * a read-only bind of the host's root would leave its sockets usable. Environment and arguments
 * travel in a sealed memfd, since a command line can be read by everyone.
 */
#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "filter.h"
#include "launch_spec.h"

#define ARGUMENTS_BYTES_MAX ((size_t)1 << 20)
#define COMMAND_WORDS_MAX   4000 /* bubblewrap refuses above 9000 in all */
#define INNER_WORDS_MAX     (16 + LAUNCH_OUTSIDE_MAX)
#define TMP_BYTES           ((uint64_t)64 << 20)
#define SMALL_TMP_BYTES     ((uint64_t)16 << 20)
#define SOURCE_FD_MIN       LAUNCH_FDS_MAX /* sources above all targets: no dup2 overwrites one */
#define ADDRESS_BYTES       ((uint64_t)8 << 30)  /* node, the JVM and sanitizers reserve a lot */
#define ADDRESS_BYTES_GROUP ((uint64_t)64 << 30) /* WebAssembly 10 GiB each, as node's fetch does */
#define OPEN_FILES          UINT64_C(1024)
#define FILE_BYTES_MAX      ((uint64_t)256 << 20)
#define CONNECT_S           2 /* a proxy that accepts no call for so long is broken */

static const char passwd_text[] = "root:x:0:0:root:/:/usr/sbin/nologin\n"
                                  "agent:x:1000:1000:agent:" LAUNCH_HOME ":/bin/bash\n";
static const char group_text[] = "root:x:0:\nagent:x:1000:\n";
static const char hosts_text[] = "127.0.0.1 localhost\n";

extern char **environ;

/* Descriptors for the child in order: source[i] becomes LAUNCH_ARGUMENTS_FD + i. All are copies
 * owned by this table. */
struct fd_table {
    int source[LAUNCH_FDS_MAX];
    size_t count;
};

static void fd_table_deinit(struct fd_table *table) {
    for (size_t i = 0; i < table->count; i++) {
        close(table->source[i]);
    }
    table->count = 0;
}

/* Copies `fd` into the table; *target is its number in the child. */
static result fd_table_add(struct fd_table *table, int fd, int *target, struct error *error) {
    if (table->count + LAUNCH_ARGUMENTS_FD >= LAUNCH_FDS_MAX) {
        FAIL(error, LIMIT, "more than %d descriptors for one command", LAUNCH_FDS_MAX);
    }
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, SOURCE_FD_MIN);
    if (copy < 0) {
        FAIL_FOREIGN(error, IO, errno, "copying a descriptor: %s", strerror(errno));
    }
    *target = LAUNCH_ARGUMENTS_FD + (int)table->count;
    table->source[table->count++] = copy;
    return OK;
}

/* Words of bubblewrap's command line, each with its NUL; errors stick. */
struct words {
    struct buffer bytes;
    struct error *error;
    result status;
};

static void add_word(struct words *words, const char *word) {
    if (is_ok(words->status)) {
        words->status = buffer_append(&words->bytes, view_of(word, strlen(word) + 1), words->error);
    }
}

static void add_words(struct words *words, size_t count, const char *const *list) {
    for (size_t i = 0; i < count; i++) {
        add_word(words, list[i]);
    }
}

#define ADD(words, ...)                                                                            \
    do {                                                                                           \
        const char *const list_[] = {__VA_ARGS__};                                                 \
        add_words((words), COUNT_OF(list_), list_);                                                \
    } while (0)

static void add_number(struct words *words, uint64_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_word(words, text);
}

static void add_namespaces(struct words *words) {
    ADD(words, "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000", "--gid");
    ADD(words, "1000", "--cap-drop", "ALL", "--new-session", "--die-with-parent");
    ADD(words, "--hostname", "sandbox", "--json-status-fd");
    add_number(words, LAUNCH_STATUS_FD);
}

/* What checks certificates: the public ones of the system, wherever it keeps them. */
static void add_certificates(struct words *words) {
    static const char *const paths[] = {
        "/etc/ssl/certs",
        "/etc/ssl/cert.pem",
        "/etc/ssl/openssl.cnf",
        "/etc/ca-certificates.conf",
        "/etc/pki/tls/certs",
        "/etc/pki/ca-trust/extracted",
    };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        ADD(words, "--ro-bind-try", paths[i], paths[i]); // without them connections fail, no more
    }
}

static void add_root(const struct sandbox *sandbox, struct words *words) {
    // Nothing to resolve names with: there is no network, or a proxy that does it.
    static const char *const etc[] = {"/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"};
    ADD(words, "--ro-bind", "/usr", "/usr");
    for (size_t i = 0; i < sandbox->root_count; i++) {
        if (sandbox->root[i].target[0] != '\0') {
            ADD(words, "--symlink", sandbox->root[i].target, sandbox->root[i].path);
        } else {
            ADD(words, "--ro-bind", sandbox->root[i].path, sandbox->root[i].path);
        }
    }
    ADD(words, "--dir", "/etc");
    for (size_t i = 0; i < COUNT_OF(etc); i++) {
        ADD(words, "--ro-bind-try", etc[i], etc[i]); // conveniences, none of them a limit
    }
    ADD(words, "--proc", "/proc", "--dev", "/dev");
    static const struct {
        const char *path;
        uint64_t bytes;
    } temporary[] = {
        {"/tmp", TMP_BYTES}, {"/dev/shm", SMALL_TMP_BYTES}, {LAUNCH_HOME, SMALL_TMP_BYTES}};
    for (size_t i = 0; i < COUNT_OF(temporary); i++) {
        add_word(words, "--size");
        add_number(words, temporary[i].bytes);
        ADD(words, "--perms", "1777", "--tmpfs", temporary[i].path);
    }
}

static result add_data_file(
    struct fd_table *table,
    struct words *words,
    const char *text,
    const char *destination,
    struct error *error
) {
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(sealed_memfd_create("hearth-file", text, strlen(text), &fd, error));
    int target = -1;
    TRY(fd_table_add(table, fd, &target, error));
    add_word(words, "--ro-bind-data");
    add_number(words, (uint64_t)target);
    add_word(words, destination);
    return OK;
}

static result add_mounts(
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    struct fd_table *table,
    struct words *words,
    struct error *error
) {
    int target = -1;
    TRY(fd_table_add(table, mounts->workspace_fd, &target, error));
    add_word(words, policy->is_read_only ? "--ro-bind-fd" : "--bind-fd");
    add_number(words, (uint64_t)target);
    add_word(words, LAUNCH_WORKSPACE);
    for (size_t i = 0; i < mounts->item_count; i++) {
        const struct mount_item *item = &mounts->items[i];
        bool is_writable = item->kind == MOUNT_PIN && !policy->is_read_only;
        TRY(fd_table_add(table, item->fd, &target, error));
        add_word(words, is_writable ? "--bind-fd" : "--ro-bind-fd");
        add_number(words, (uint64_t)target);
        add_word(words, item->destination);
    }
    if (mounts->work_tree_link[0] != '\0') {
        ADD(words, "--symlink", LAUNCH_WORKSPACE, mounts->work_tree_link);
    }
    return OK;
}

static result
add_environment(const struct sandbox_policy *policy, struct words *words, struct error *error) {
    ADD(words, "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin");
    ADD(words, "--setenv", "HOME", LAUNCH_HOME, "--setenv", "LANG", "C.UTF-8");
    ADD(words, "--setenv", "TERM", "dumb", "--setenv", "USER", "agent");
    // Python takes compiled code for fresh when size and second of the source are the same, which an
    // agent's edit right after a test run can leave unchanged: it would then test the old code.
    ADD(words, "--setenv", "PYTHONDONTWRITEBYTECODE", "1");
    static const char *const proxies[] = {
        "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"};
    for (size_t i = 0; policy->network_socket != NULL && i < COUNT_OF(proxies); i++) {
        ADD(words, "--setenv", proxies[i], SANDBOX_PROXY_URL);
    }
    if (policy->network_socket != NULL) { // Node's own fetch looks at them when told to
        ADD(words, "--setenv", "NODE_USE_ENV_PROXY", "1");
    }
    for (size_t i = 0; i < policy->environment_count; i++) {
        const char *pair = policy->environment[i];
        const char *equals = strchr(pair, '=');
        char name[128];
        if (equals == NULL || equals == pair || (size_t)(equals - pair) >= sizeof name) {
            FAIL(error, INVALID_INPUT, "environment entry '%.60s' is not NAME=VALUE", pair);
        }
        memcpy(name, pair, (size_t)(equals - pair));
        name[equals - pair] = '\0';
        ADD(words, "--setenv", name, equals + 1);
    }
    return OK;
}

static result get_network_filter(struct sandbox *sandbox, int *fd, struct error *error) {
    int status = pthread_mutex_lock(&sandbox->network_filter_lock);
    ASSERT(status == 0);
    result got = OK;
    if (sandbox->network_filter_fd < 0) {
        got = filter_compile(true, &sandbox->network_filter_fd, error);
    }
    *fd = sandbox->network_filter_fd;
    status = pthread_mutex_unlock(&sandbox->network_filter_lock);
    ASSERT(status == 0);
    return got;
}

static result connect_proxy(const char *path, int *out, struct error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] != '/' || strlen(path) >= sizeof address.sun_path) {
        FAIL(error, INVALID_INPUT, "network socket '%.200s' is no absolute, short path", path);
    }
    memcpy(address.sun_path, path, strlen(path));
    CLEANUP(fd_cleanup) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = CONNECT_S};
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        FAIL_FOREIGN(error, IO, errno, "network socket '%.200s': %s", path, strerror(errno));
    }
    struct timeval forever = {0}; // the relay waits
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &forever, sizeof forever) != 0) {
        FAIL_FOREIGN(error, IO, errno, "network socket '%.200s': %s", path, strerror(errno));
    }
    *out = fd;
    fd = -1;
    return OK;
}

/* The descriptors that hearth-inner knows by number. `status` is the pipe's write end. */
static result add_fixed_fds(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    int status,
    struct fd_table *table,
    struct error *error
) {
    int target = -1;
    TRY(fd_table_add(table, status, &target, error)); // keeps the place of the arguments
    TRY(fd_table_add(table, status, &target, error));
    ASSERT(target == LAUNCH_STATUS_FD);
    TRY(fd_table_add(table, status, &target, error));
    ASSERT(target == LAUNCH_RECORD_FD);
    int filter = sandbox->filter_fd;
    if (policy->network_socket != NULL) {
        TRY(get_network_filter(sandbox, &filter, error));
    }
    TRY(fd_table_add(table, filter, &target, error));
    ASSERT(target == LAUNCH_FILTER_FD);
    if (policy->network_socket != NULL) {
        CLEANUP(fd_cleanup) int proxy = -1;
        TRY(connect_proxy(policy->network_socket, &proxy, error));
        TRY(fd_table_add(table, proxy, &target, error));
        ASSERT(target == LAUNCH_NETWORK_FD);
    }
    return OK;
}

/* Fills the table in the order of launch_spec.h. `status` is the pipe's write end. */
static result build_arguments(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    int status,
    struct fd_table *table,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer owned = {0};
    struct words words = {.error = error, .status = OK};
    buffer_init(&words.bytes, ARGUMENTS_BYTES_MAX);
    TRY(add_fixed_fds(sandbox, policy, status, table, error));
    add_namespaces(&words);
    add_root(sandbox, &words);
    result added = add_data_file(table, &words, passwd_text, "/etc/passwd", error);
    if (is_ok(added) && policy->network_socket != NULL) {
        add_certificates(&words);
        added = add_data_file(table, &words, hosts_text, "/etc/hosts", error);
    }
    if (is_ok(added)) {
        added = add_data_file(table, &words, group_text, "/etc/group", error);
    }
    if (is_ok(added)) {
        added = add_mounts(policy, mounts, table, &words, error);
    }
    char inner[SANDBOX_PATH_BYTES + 32];
    (void)snprintf(inner, sizeof inner, "%s/hearth-inner", sandbox->probe.helper_path);
    ADD(&words, "--ro-bind", inner, LAUNCH_INNER, "--remount-ro", "/");
    ADD(&words, "--chdir", LAUNCH_WORKSPACE);
    if (is_ok(added)) {
        added = add_environment(policy, &words, error);
    }
    owned = words.bytes;
    TRY(added);
    TRY(words.status);
    CLEANUP(fd_cleanup) int arguments = -1;
    TRY(sealed_memfd_create("hearth-args", owned.data, owned.length, &arguments, error));
    int copy = fcntl(arguments, F_DUPFD_CLOEXEC, SOURCE_FD_MIN);
    if (copy < 0) {
        FAIL_FOREIGN(error, IO, errno, "copying a descriptor: %s", strerror(errno));
    }
    close(table->source[0]);
    table->source[0] = copy;
    return OK;
}

/* hearth-sandbox's own command line; strings live in `text`. */
struct command_line {
    const char *words[INNER_WORDS_MAX + COMMAND_WORDS_MAX + 1];
    size_t count;
    char text[INNER_WORDS_MAX][SANDBOX_PATH_BYTES + 8];
    size_t texts;
};

static void add_setting(struct command_line *line, const char *key, uint64_t value) {
    ASSERT(line->texts < INNER_WORDS_MAX);
    char *text = line->text[line->texts++];
    (void)snprintf(text, sizeof line->text[0], "%s%llu", key, (unsigned long long)value);
    line->words[line->count++] = text;
}

static result build_command_line(
    const struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    const char *const *command,
    size_t first_cgroup_fd,
    size_t fds_end,
    struct command_line *line,
    struct error *error
) {
    uint64_t disk_bytes = policy->disk_mib << 20;
    bool has_cgroup = sandbox->place.kind != SANDBOX_CGROUP_NONE;
    line->words[line->count++] = "hearth-sandbox";
    line->words[line->count++] = sandbox->probe.bwrap_path;
    add_setting(line, "", (uint64_t)getpid());
    add_setting(line, "", first_cgroup_fd);
    add_setting(line, "", fds_end);
    line->words[line->count++] = "--";
    line->words[line->count++] = LAUNCH_INNER;
    add_setting(line, "cpu=", (uint64_t)policy->wall_ms / 1000 + 10);
    add_setting(line, "file=", disk_bytes < FILE_BYTES_MAX ? disk_bytes : FILE_BYTES_MAX);
    add_setting(line, "open=", OPEN_FILES);
    add_setting(line, "processes=", policy->processes);
    uint64_t memory_bytes = policy->memory_mib << 20;
    uint64_t address_bytes = has_cgroup ? ADDRESS_BYTES_GROUP : ADDRESS_BYTES; // not what is used
    add_setting(line, "address=", memory_bytes > address_bytes ? memory_bytes : address_bytes);
    if (!has_cgroup) { // private memory of each process, for want of a sum over all
        add_setting(line, "data=", memory_bytes);
    }
    if (policy->network_socket != NULL) {
        add_setting(line, "network=", LAUNCH_PROXY_PORT);
    }
    for (size_t i = 0; i < mounts->item_count; i++) {
        if (mounts->items[i].kind == MOUNT_OUTSIDE) {
            char *text = line->text[line->texts++];
            const char *path = mounts->items[i].destination;
            (void)snprintf(text, sizeof line->text[0], "ro=%s", path);
            line->words[line->count++] = text;
        }
    }
    line->words[line->count++] = "--";
    for (size_t i = 0; command[i] != NULL; i++) {
        if (i >= COMMAND_WORDS_MAX) {
            FAIL(error, INVALID_INPUT, "the command has more than %d words", COMMAND_WORDS_MAX);
        }
        line->words[line->count++] = command[i];
    }
    line->words[line->count] = NULL;
    return OK;
}

/* posix_spawn, not fork: this process has threads and perhaps gigabytes mapped. standard[0] may be
 * -1 for /dev/null. */
static int spawn(
    const char *program,
    const struct command_line *line,
    const struct fd_table *table,
    const int standard[3],
    pid_t *pid
) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int status = posix_spawn_file_actions_init(&actions);
    if (status != 0) {
        return status;
    }
    status = posix_spawnattr_init(&attributes);
    if (status != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return status;
    }
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    status = posix_spawnattr_setsigmask(&attributes, &none);
    status = status != 0 ? status : posix_spawnattr_setsigdefault(&attributes, &all);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID;
    status = status != 0 ? status : posix_spawnattr_setflags(&attributes, flags);
    if (status == 0 && standard[0] < 0) {
        status = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    }
    for (int i = standard[0] < 0 ? 1 : 0; i < 3 && status == 0; i++) {
        status = posix_spawn_file_actions_adddup2(&actions, standard[i], i);
    }
    for (size_t i = 0; i < table->count && status == 0; i++) {
        status = posix_spawn_file_actions_adddup2(
            &actions, table->source[i], LAUNCH_ARGUMENTS_FD + (int)i
        );
    }
    status = status != 0 ? status : posix_spawn_file_actions_addchdir_np(&actions, "/");
    if (status == 0) {
        char *environment[] = {NULL};
        char *const *words = NULL;
        memcpy(&words, &(const char *const *){line->words}, sizeof words); // spawn takes no const
        status = posix_spawn(pid, program, &actions, &attributes, words, environment);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

/* A pipe whose end `ours` (0: to read, 1: to write) does not block, and whose other end does not
 * collide with the child's numbers. */
static result make_pipe(int ends[2], size_t ours, struct error *error) {
    int raw[2];
    if (pipe2(raw, O_CLOEXEC) != 0) {
        FAIL_FOREIGN(error, IO, errno, "pipe: %s", strerror(errno));
    }
    size_t theirs = 1 - ours;
    ends[ours] = raw[ours];
    ends[theirs] = fcntl(raw[theirs], F_DUPFD_CLOEXEC, SOURCE_FD_MIN);
    int number = errno;
    close(raw[theirs]);
    if (ends[theirs] < 0 || fcntl(ends[ours], F_SETFL, O_NONBLOCK) != 0) {
        FAIL_FOREIGN(error, IO, number, "pipe: %s", strerror(number));
    }
    return OK;
}

struct plumbing {
    int status[2];
    int output[2];
    int errors[2];
    int input[2];
};

static void plumbing_deinit(struct plumbing *pipes) {
    for (size_t i = 0; i < 2; i++) {
        fd_cleanup(&pipes->status[i]);
        fd_cleanup(&pipes->output[i]);
        fd_cleanup(&pipes->errors[i]);
        fd_cleanup(&pipes->input[i]);
    }
}

static result make_group(
    const struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    struct launch *launch,
    struct fd_table *table,
    struct error *error
) {
    if (sandbox->place.kind == SANDBOX_CGROUP_NONE) {
        return OK;
    }
    struct cgroup_limits limits = {
        .memory_bytes = policy->memory_mib << 20,
        .processes = policy->processes,
        // A share of all cores is no limit, and one hierarchy less to enter.
        .cpu_percent =
            policy->cpu_percent >= UINT64_C(100) * sandbox->cores ? 0 : policy->cpu_percent,
    };
    TRY(cgroup_create(&sandbox->place, &limits, &launch->cgroup, error));
    launch->has_cgroup = true;
    int procs[CGROUP_SLOTS];
    int count = cgroup_open_procs(&launch->cgroup, procs);
    if (count < 0) {
        FAIL_FOREIGN(error, IO, errno, "opening a cgroup: %s", strerror(errno));
    }
    result added = OK;
    for (int i = 0; i < count; i++) {
        int target = -1;
        if (is_ok(added)) {
            added = fd_table_add(table, procs[i], &target, error);
        }
        close(procs[i]);
    }
    return added;
}

static result launch_parts(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    const char *const *command,
    struct plumbing *pipes,
    struct fd_table *table,
    struct launch *launch,
    struct error *error
) {
    TRY(make_pipe(pipes->status, 0, error));
    TRY(make_pipe(pipes->output, 0, error));
    if (!policy->merge_output) {
        TRY(make_pipe(pipes->errors, 0, error));
    }
    if (policy->has_input) {
        TRY(make_pipe(pipes->input, 1, error));
    }
    TRY(build_arguments(sandbox, policy, mounts, pipes->status[1], table, error));
    size_t first_cgroup_fd = LAUNCH_ARGUMENTS_FD + table->count;
    TRY(make_group(sandbox, policy, launch, table, error));
    CLEANUP(free_cleanup) struct command_line *line = calloc(1, sizeof *line);
    if (line == NULL) {
        FAIL(error, MEMORY, "no memory for a command line");
    }
    size_t fds_end = LAUNCH_ARGUMENTS_FD + table->count;
    TRY(build_command_line(sandbox, policy, mounts, command, first_cgroup_fd, fds_end, line, error)
    );
    char program[SANDBOX_PATH_BYTES + 32];
    (void)snprintf(program, sizeof program, "%s/hearth-sandbox", sandbox->probe.helper_path);
    int standard[3] = {pipes->input[0], pipes->output[1], pipes->output[1]};
    if (!policy->merge_output) {
        standard[2] = pipes->errors[1];
    }
    int status = spawn(program, line, table, standard, &launch->pid);
    if (status == E2BIG) {
        FAIL_FOREIGN(error, INVALID_INPUT, status, "the command is too long for this system");
    }
    if (status != 0) {
        FAIL_FOREIGN(error, IO, status, "starting '%.300s': %s", program, strerror(status));
    }
    launch->pid_fd = (int)syscall(SYS_pidfd_open, launch->pid, 0);
    if (launch->pid_fd < 0) {
        int number = errno;
        (void)kill(launch->pid, SIGKILL); // our own child, not waited for yet
        FAIL_FOREIGN(error, IO, number, "watching hearth-sandbox: %s", strerror(number));
    }
    return OK;
}

result launch_command(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const struct mounts *mounts,
    const char *const *command,
    struct launch *out,
    struct error *error
) {
    struct launch launch = {.pid = -1, .pid_fd = -1, .status_fd = -1, .output_fd = {-1, -1}};
    CLEANUP(plumbing_deinit)
    struct plumbing pipes = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    CLEANUP(fd_table_deinit) struct fd_table table = {.count = 0};
    result done = launch_parts(sandbox, policy, mounts, command, &pipes, &table, &launch, error);
    if (is_failed(done)) {
        if (launch.has_cgroup) {
            cgroup_kill(&launch.cgroup);
            (void)cgroup_remove(&launch.cgroup); // what is left goes at the next start
        }
        return done;
    }
    launch.status_fd = pipes.status[0];
    launch.output_fd[0] = pipes.output[0];
    launch.output_fd[1] = pipes.errors[0];
    launch.input_fd = pipes.input[1];
    pipes.status[0] = pipes.output[0] = pipes.errors[0] = pipes.input[1] = -1;
    *out = launch;
    return OK;
}
