#include "swarm_work_fake.h"

#include "tools/tool_agents.h"
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct swarm_work_fake swarm_work_fake;

struct swarm_work_node {
    struct swarm_work_node *next;
    struct swarm_work *work;
    char name[SWARM_NAME_BYTES], directory[512];
    struct tool_context *tools;
    struct permission *permission;
    struct hooks hooks;
    bool is_open;
};

struct swarm_work {
    struct swarm_work_options options;
    char place[400];
    pthread_mutex_t lock; /* guards the list */
    struct swarm_work_node root;
    struct swarm_work_node *nodes;
};

void stage_work_reset(struct stage *stage) {
    (void)stage;
    memset(&swarm_work_fake, 0, sizeof swarm_work_fake);
}

void stage_work_check(const struct stage *stage) {
    (void)stage;
    ASSERT(swarm_work_fake.opened == swarm_work_fake.closed);
}

static void pause_ms(int ms) {
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&pause, NULL);
}

static result make_directories(const char *path, struct error *error) {
    char part[600];
    size_t length = strlen(path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            (void)snprintf(part, sizeof part, "%.*s", (int)i, path);
            if (mkdir(part, 0700) != 0 && errno != EEXIST) {
                FAIL_FOREIGN(error, IO, errno, "cannot make %s", part);
            }
        }
    }
    return OK;
}

result swarm_work_create(
    struct swarm_work **out, const struct swarm_work_options *options, struct error *error
) {
    struct swarm_work *work = calloc(1, sizeof *work);
    ASSERT(work != NULL);
    work->options = *options;
    (void)snprintf(work->place, sizeof work->place, "%s", options->place);
    result made = make_directories(work->place, error);
    if (is_failed(made)) {
        free(work);
        return made;
    }
    (void)pthread_mutex_init(&work->lock, NULL);
    work->root.work = work;
    (void)snprintf(work->root.name, sizeof work->root.name, "root");
    (void)snprintf(work->root.directory, sizeof work->root.directory, "%s", options->workspace);
    *out = work;
    if (swarm_work_fake.interrupts_create) {
        ASSERT(kill(getpid(), SIGINT) == 0);
        pause_ms(500); /* until the loop has seen it */
    }
    return OK;
}

void swarm_work_destroy(struct swarm_work *work) {
    if (work == NULL) {
        return;
    }
    while (work->nodes != NULL) {
        struct swarm_work_node *node = work->nodes;
        struct swarm_work_closed closed;
        work->nodes = node->next;
        swarm_work_close(node, &closed);
        free(node);
    }
    (void)pthread_mutex_destroy(&work->lock);
    free(work);
}

struct swarm_work_node *swarm_work_root(struct swarm_work *work) {
    return &work->root;
}

static bool is_named(const char *names, const char *name) {
    return names != NULL && (strcmp(names, "*") == 0 || strcmp(names, name) == 0);
}

static result open_node(
    struct swarm_work_node *node, const struct swarm_work_open *options, struct error *error
) {
    struct swarm_work *work = node->work;
    (void)snprintf(node->name, sizeof node->name, "%s", options->name);
    (void)snprintf(node->directory, sizeof node->directory, "%s/%s", work->place, node->name);
    TRY(make_directories(node->directory, error));
    struct tool_context_options tools = *work->options.tools;
    tools.workspace = node->directory;
    tools.output = options->output;
    tools.output_context = options->output_context;
    tools.agents = options->agents;
    TRY(tool_context_create(&node->tools, &tools, error));
    return permission_create(&node->permission, work->options.permission, error);
}

static void close_tools(struct swarm_work_node *node) {
    tool_context_destroy(node->tools);
    permission_destroy(node->permission);
    node->tools = NULL;
    node->permission = NULL;
}

result swarm_work_open(
    struct swarm_work *work,
    const struct swarm_work_open *options,
    struct swarm_work_node **out,
    struct error *error
) {
    pause_ms(swarm_work_fake.open_ms);
    if (is_named(swarm_work_fake.open_fails, options->name)) {
        FAIL(error, IO, "no directory for %s", options->name);
    }
    ASSERT(options->parent != NULL);
    struct swarm_work_node *node = calloc(1, sizeof *node);
    ASSERT(node != NULL);
    node->work = work;
    result opened = open_node(node, options, error);
    if (is_failed(opened)) {
        close_tools(node);
        free(node);
        return opened;
    }
    node->is_open = true;
    swarm_work_fake.opened++;
    (void)pthread_mutex_lock(&work->lock);
    node->next = work->nodes;
    work->nodes = node;
    (void)pthread_mutex_unlock(&work->lock);
    *out = node;
    return OK;
}

void swarm_work_limit(
    struct swarm_work_node *node, int64_t processes_max, int64_t memory_bytes_max
) {
    ASSERT(node->tools != NULL && processes_max >= 0 && memory_bytes_max >= 0);
}

const char *swarm_work_directory(const struct swarm_work_node *node) {
    return node->directory;
}

const char *swarm_work_commit_before(const struct swarm_work_node *node) {
    (void)node;
    return "";
}

struct workspace *swarm_work_workspace(struct swarm_work_node *node) {
    (void)node;
    return NULL;
}

struct tool_context *swarm_work_tools(struct swarm_work_node *node) {
    return node->tools;
}

struct permission *swarm_work_permission(struct swarm_work_node *node) {
    return node->permission;
}

const struct hooks *swarm_work_hooks(struct swarm_work_node *node) {
    (void)node;
    return NULL;
}

const char *swarm_work_skipped(const struct swarm_work_node *node) {
    (void)node;
    return swarm_work_fake.skips != NULL ? swarm_work_fake.skips : "";
}

static size_t files_in(const char *path) {
    DIR *directory = opendir(path);
    size_t count = 0;
    ASSERT(directory != NULL);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        count += entry->d_name[0] != '.' ? 1 : 0;
    }
    (void)closedir(directory);
    return count;
}

result
swarm_work_result(struct swarm_work_node *node, struct swarm_work_made *out, struct error *error) {
    ASSERT(node->is_open);
    close_tools(node);
    if (is_named(swarm_work_fake.result_fails, node->name)) {
        FAIL(error, IO, "no snapshot of %s", node->name);
    }
    *out = (struct swarm_work_made){.files = files_in(node->directory)};
    out->changed_lines = (int64_t)out->files;
    if (out->files > 0) {
        (void)snprintf(out->commit, sizeof out->commit, "of-%s", node->name);
    }
    return OK;
}

void swarm_work_close(struct swarm_work_node *node, struct swarm_work_closed *out) {
    *out = (struct swarm_work_closed){.is_removed = true};
    if (!node->is_open) {
        return;
    }
    pause_ms(swarm_work_fake.close_ms);
    node->is_open = false;
    swarm_work_fake.closed++;
    close_tools(node);
}

/* ---- verification ---------------------------------------------------------------------------- */

result swarm_work_cancel_create(int *out_fd, struct error *error) {
    (void)error;
    *out_fd = eventfd(0, EFD_CLOEXEC);
    ASSERT(*out_fd >= 0);
    return OK;
}

void swarm_work_cancel(int fd) {
    const uint64_t one = 1;
    ASSERT(write(fd, &one, sizeof one) == (ssize_t)sizeof one);
}

void swarm_work_verify(
    struct swarm_work_node *node,
    const struct swarm_work_verification *options,
    struct swarm_work_verdict *out
) {
    *out = (struct swarm_work_verdict){.verdict = SWARM_NOT_VERIFIED};
    pause_ms(atomic_exchange(&swarm_work_fake.deaf_ms, 0));
    int now = ++swarm_work_fake.verified_now;
    if (now > swarm_work_fake.most_verified_at_once) {
        swarm_work_fake.most_verified_at_once = now;
    }
    struct pollfd cancel = {.fd = options->cancel_fd, .events = POLLIN};
    int64_t wait_ms = swarm_work_fake.verify_ms < options->time_ms_max ? swarm_work_fake.verify_ms
                                                                       : options->time_ms_max;
    bool is_cancelled = poll(&cancel, 1, (int)wait_ms) > 0;
    swarm_work_fake.verified_now--;
    swarm_work_fake.verify_cancelled += is_cancelled ? 1 : 0;
    swarm_work_fake.verified++;
    if (is_cancelled) {
        return;
    }
    out->verdict = wait_ms < swarm_work_fake.verify_ms ? SWARM_VERIFIED_HUNG
                   : swarm_work_fake.verify != NULL
                       ? swarm_work_fake.verify(node->name, node->directory)
                   : files_in(node->directory) > 0 ? SWARM_VERIFIED_PASS
                                                   : SWARM_VERIFIED_FAIL;
    (void)snprintf(out->detail, sizeof out->detail, "looked at %s", node->name);
}

/* ---- merges ---------------------------------------------------------------------------------- */

void swarm_work_merge(
    struct swarm_work_node *node, struct swarm_work_node *target, struct swarm_work_merge *out
) {
    *out = (struct swarm_work_merge){.merge = SWARM_MERGE_OK, .changed_lines = 1};
    pause_ms(swarm_work_fake.merge_ms);
    if (swarm_work_fake.merge != NULL) {
        out->merge = swarm_work_fake.merge(node->name);
    }
    if (out->merge == SWARM_MERGE_OK) {
        (void)snprintf(out->commit, sizeof out->commit, "%.10s+%.10s", target->name, node->name);
        swarm_work_fake.merged++;
    } else {
        (void)snprintf(out->detail, sizeof out->detail, "a.txt: both changed the same lines\n");
    }
}

bool swarm_work_is_full(const struct swarm_work *work, const struct error *error) {
    (void)work;
    (void)error;
    return swarm_work_fake.disk_is_full;
}

/* Of the program, which the linker takes along. */
result swarm_work_sweep(const char *swarms, struct swarm_work_swept *out, struct error *error) {
    (void)swarms;
    (void)error;
    *out = (struct swarm_work_swept){0};
    return OK;
}
