/* The life of a swarm's nodes: the place, opening, closing. See swarm_work.h. */
#include "swarm_work_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PLACE_TRIES           8U
#define COMMAND_MEMORY_MIN    ((uint64_t)32) /* MiB; with less no shell starts */
#define COMMAND_PROCESSES_MIN ((uint64_t)8)

/* ---- small things ------------------------------------------------------------------------------- */

result swarm_work_join(
    char out[SWARM_WORK_PATH],
    const char *directory,
    const char *folder,
    const char *name,
    struct error *error
) {
    int length = snprintf(
        out, SWARM_WORK_PATH, "%s/%s%s%s", directory, folder, name[0] != '\0' ? "/" : "", name
    );
    if (length < 0 || (size_t)length >= SWARM_WORK_PATH) {
        FAIL(error, INVALID_INPUT, "'%.300s' is too long a path", directory);
    }
    return OK;
}

static result copy_path(char out[SWARM_WORK_PATH], const char *path, struct error *error) {
    int length = snprintf(out, SWARM_WORK_PATH, "%s", path);
    if (length < 0 || (size_t)length >= SWARM_WORK_PATH) {
        FAIL(error, INVALID_INPUT, "'%.300s' is too long a path", path);
    }
    return OK;
}

static bool is_disk_error(int number) {
    return number == ENOSPC || number == EDQUOT;
}

static bool has_no_room(const char *path) {
    struct statvfs about;
    return statvfs(path, &about) == 0 &&
           (about.f_bavail == 0 || (about.f_files > 0 && about.f_favail == 0));
}

bool swarm_work_is_full(const struct swarm_work *work, const struct error *error) {
    // libgit2 gives no number, but the system's words behind its own.
    return is_disk_error(error->foreign) || strstr(error->message, strerror(ENOSPC)) != NULL ||
           strstr(error->message, strerror(EDQUOT)) != NULL || has_no_room(work->place) ||
           has_no_room(work->options.snapshots);
}

/* ---- the place ---------------------------------------------------------------------------------- */

static result make_directory(const char *path, struct error *error) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", path, strerror(errno));
    }
    return OK;
}

/* A sweep of another process may find the place before it is locked, and then it is gone. */
static result lock_place(struct swarm_work *work, struct error *error) {
    for (unsigned i = 0; i < PLACE_TRIES; i++) {
        struct stat about;
        struct stat named;
        TRY(make_directory(work->place, error));
        CLEANUP(fd_cleanup)
        int fd = open(work->place, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno != ENOENT) {
            FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", work->place, strerror(errno));
        }
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
            FAIL_FOREIGN(error, LIMIT, errno, "'%.300s' is in use", work->place);
        }
        if (fd >= 0 && fstat(fd, &about) == 0 && stat(work->place, &named) == 0 &&
            about.st_dev == named.st_dev && about.st_ino == named.st_ino) {
            work->place_fd = fd;
            fd = -1;
            return OK;
        }
    }
    FAIL(error, IO, "'%.300s' is removed as soon as it is made", work->place);
}

static result make_place(struct swarm_work *work, struct error *error) {
    static const char *const folders[] = {SWARM_WORK_COPIES, SWARM_WORK_STORES, SWARM_WORK_VERIFY};
    char path[SWARM_WORK_PATH];
    const char *place = work->options.place;
    const char *leaf = strrchr(place, '/');
    // Names of nodes and stores are put behind it.
    if (place[0] != '/' || leaf == place || leaf[1] == '\0' ||
        strlen(place) > SWARM_WORK_PATH / 2) {
        FAIL(error, INVALID_INPUT, "'%.300s' is no absolute path for a swarm", place);
    }
    (void)snprintf(work->place, sizeof work->place, "%s", place);
    (void)snprintf(path, sizeof path, "%.*s", (int)(leaf - place), place);
    TRY(make_directory(path, error));
    TRY(lock_place(work, error));
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        TRY(swarm_work_join(path, work->place, folders[i], "", error));
        TRY(make_directory(path, error));
    }
    return OK;
}

/* Folders with something in them stay. */
static void leave_place(struct swarm_work *work) {
    static const char *const folders[] = {SWARM_WORK_COPIES, SWARM_WORK_STORES, SWARM_WORK_VERIFY};
    char path[SWARM_WORK_PATH];
    if (work->place_fd < 0) {
        return;
    }
    result_ignore(swarm_work_sweep_rest(work->place, NULL)); // the next swarm's sweep looks again
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        if (is_ok(swarm_work_join(path, work->place, folders[i], "", NULL))) {
            (void)rmdir(path);
        }
    }
    (void)rmdir(work->place);
    (void)flock(work->place_fd, LOCK_UN); // at once: see worktree_release
    fd_cleanup(&work->place_fd);
}

/* ---- nodes -------------------------------------------------------------------------------------- */

static struct swarm_work_node *node_create(struct swarm_work *work, const char *name) {
    struct swarm_work_node *node = calloc(1, sizeof *node);
    if (node != NULL) {
        node->work = work;
        node->lease = -1;
        buffer_init(&node->unresolved, BUFFER_CEILING_DEFAULT);
        (void)snprintf(node->name, sizeof node->name, "%s", name);
        (void)pthread_mutex_init(&node->lock, NULL);
    }
    return node;
}

void swarm_work_close_tools(struct swarm_work_node *node) {
    tool_context_destroy(node->tools);
    permission_destroy(node->permission);
    workspace_close(node->workspace);
    node->tools = NULL;
    node->permission = NULL;
    node->workspace = NULL;
}

static void node_destroy(struct swarm_work_node *node) {
    if (node == NULL) {
        return;
    }
    swarm_work_close_tools(node);
    worktree_release(&node->lease);
    workspace_merge_deinit(&node->marks);
    buffer_deinit(&node->unresolved);
    (void)pthread_mutex_destroy(&node->lock);
    free(node);
}

static void node_cleanup(struct swarm_work_node **node) {
    node_destroy(*node);
    *node = NULL;
}

static result note_place(struct swarm_work_node *node, struct error *error) {
    struct stat about;
    if (stat(node->directory, &about) != 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", node->directory, strerror(errno));
    }
    node->device = about.st_dev;
    node->inode = about.st_ino;
    return OK;
}

static result open_root(struct swarm_work *work, struct error *error) {
    CLEANUP(node_cleanup) struct swarm_work_node *root = node_create(work, "root");
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct workspace_snapshot first;
    if (root == NULL) {
        FAIL(error, MEMORY, "no memory for the root");
    }
    TRY(copy_path(root->directory, work->options.workspace, error));
    TRY(copy_path(root->store, work->options.snapshots, error));
    TRY(note_place(root, error));
    TRY(swarm_work_look(root, "swarm", &workspace, &first, error));
    memcpy(root->commit_before, first.commit, sizeof root->commit_before);
    memcpy(root->base, first.commit, sizeof root->base);
    root->policy = *work->options.policy;
    work->root = TAKE(root);
    return OK;
}

result swarm_work_create(
    struct swarm_work **out, const struct swarm_work_options *options, struct error *error
) {
    CLEANUP(swarm_work_cleanup) struct swarm_work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        FAIL(error, MEMORY, "no memory for a swarm's directories");
    }
    work->options = *options;
    work->place_fd = -1;
    (void)pthread_mutex_init(&work->lock, NULL);
    TRY(make_place(work, error));
    TRY(open_root(work, error));
    *out = TAKE(work);
    return OK;
}

void swarm_work_destroy(struct swarm_work *work) {
    if (work == NULL) {
        return;
    }
    for (struct swarm_work_node *node = work->nodes; node != NULL; node = node->next) {
        struct swarm_work_closed closed;
        swarm_work_close(node, &closed);
    }
    while (work->nodes != NULL) {
        struct swarm_work_node *node = work->nodes;
        work->nodes = node->next;
        node_destroy(node);
    }
    node_destroy(work->root);
    leave_place(work);
    (void)pthread_mutex_destroy(&work->lock);
    free(work);
}

void swarm_work_cleanup(struct swarm_work **work) {
    swarm_work_destroy(*work);
    *work = NULL;
}

/* ---- opening ------------------------------------------------------------------------------------ */

static result check_name(struct swarm_work *work, const char *name, struct error *error) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t length = strlen(name);
    if (length == 0 || length >= SWARM_NAME_BYTES || strspn(name, allowed) != length) {
        FAIL(error, INVALID_INPUT, "'%.60s' is no name for a node", name);
    }
    SWARM_WORK_LOCK(&work->lock);
    for (const struct swarm_work_node *node = work->nodes; node != NULL; node = node->next) {
        if (strcmp(node->name, name) == 0) {
            FAIL(error, INVALID_INPUT, "there is a node '%s' already", name);
        }
    }
    return OK;
}

/* The snapshot that it begins with: the conflicts of another node's merge with the parent. */
static result begin_with_conflicts(
    struct swarm_work_node *node, struct swarm_work_node *conflict_of, struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    SWARM_WORK_LOCK(&node->parent->lock);
    TRY(swarm_work_try_merge(
        conflict_of, node->parent, true, &workspace, node->base, &node->marks, error
    ));
    bool is_clean = node->marks.conflict_count == 0; // the parent has changed since
    memcpy(
        node->commit_before,
        is_clean ? node->marks.commit : node->marks.marked,
        sizeof node->commit_before
    );
    return OK;
}

static result
begin(struct swarm_work_node *node, const struct swarm_work_open *options, struct error *error) {
    if (options->conflict_of != NULL) {
        return begin_with_conflicts(node, options->conflict_of, error);
    }
    if (options->commit != NULL && strlen(options->commit) != WORKSPACE_COMMIT_BYTES - 1) {
        FAIL(error, INVALID_INPUT, "'%.60s' is not the name of a snapshot", options->commit);
    }
    if (options->commit != NULL) {
        memcpy(node->commit_before, options->commit, sizeof node->commit_before);
    } else {
        TRY(swarm_work_snapshot(node->parent, "for a child", node->commit_before, error));
    }
    memcpy(node->base, node->commit_before, sizeof node->base);
    return OK;
}

static result make_copy(struct swarm_work_node *node, struct error *error) {
    const struct swarm_work *work = node->work;
    const struct swarm_work_node *parent = node->parent;
    const struct worktree_options options = {
        .source = parent->directory,
        .directory = node->directory,
        .with_ignored = work->options.with_ignored,
        .snapshots = parent->store,
        .commit = node->commit_before,
        .own_snapshots = node->store,
        .lease = &node->lease,
    };
    struct worktree made;
    TRY(swarm_work_join(node->directory, work->place, SWARM_WORK_COPIES, node->name, error));
    TRY(swarm_work_join(node->store, work->place, SWARM_WORK_STORES, node->name, error));
    TRY(worktree_create(&options, &made, error));
    (void)snprintf(node->skipped, sizeof node->skipped, "%s", made.skipped_names);
    return OK;
}

static void limit(uint64_t *value, int64_t share, uint64_t least) {
    if (share <= 0 || share == BUDGET_NO_LIMIT || (uint64_t)share >= *value) {
        return;
    }
    *value = (uint64_t)share > least ? (uint64_t)share : least;
}

static void set_limits(struct swarm_work_node *node, int64_t processes, int64_t memory) {
    bool has_limit = memory != BUDGET_NO_LIMIT && memory > 0;
    limit(&node->policy.processes, processes, COMMAND_PROCESSES_MIN);
    limit(&node->policy.memory_mib, has_limit ? (memory >> 20) + 1 : memory, COMMAND_MEMORY_MIN);
}

void swarm_work_limit(
    struct swarm_work_node *node, int64_t processes_max, int64_t memory_bytes_max
) {
    const struct sandbox_policy *all = node->work->options.policy;
    node->policy.processes = all->processes;
    node->policy.memory_mib = all->memory_mib;
    /* Nothing left is the least, not everything. */
    set_limits(
        node, processes_max > 0 ? processes_max : 1, memory_bytes_max > 0 ? memory_bytes_max : 1
    );
}

static bool hides(void *context, struct view tool, struct view path) {
    const struct swarm_work_node *node = context;
    return permission_hides(node->permission, tool, path);
}

static result open_tools(
    struct swarm_work_node *node, const struct swarm_work_open *options, struct error *error
) {
    const struct swarm_work_options *all = &node->work->options;
    node->policy = *all->policy;
    node->policy.workspace = node->directory;
    set_limits(node, options->processes_max, options->memory_bytes_max);
    node->hooks = (struct hooks){all->config, all->sandbox, &node->policy, all->workspace};
    TRY(workspace_open(node->directory, node->store, &node->workspace, error));
    if (all->permission != NULL) {
        TRY(permission_create(&node->permission, all->permission, error));
    }
    if (all->tools == NULL) {
        return OK;
    }
    struct tool_context_options tools = *all->tools;
    tools.workspace = node->directory;
    tools.sandbox = all->sandbox;
    tools.policy = &node->policy;
    tools.output = options->output;
    tools.output_context = options->output_context;
    tools.agents = options->agents;
    tools.hides = node->permission != NULL ? hides : NULL;
    tools.hides_context = node;
    return tool_context_create(&node->tools, &tools, error);
}

static result open_parts(
    struct swarm_work_node *node, const struct swarm_work_open *options, struct error *error
) {
    const struct swarm_work_node *root = node->work->root;
    TRY(begin(node, options, error));
    TRY(make_copy(node, error));
    result opened = note_place(node, error);
    if (is_ok(opened)) {
        opened = open_tools(node, options, error);
    }
    if (is_ok(opened) && node->parent != root) { // the record refers to it there
        opened = swarm_work_bring(node->store, node->commit_before, root->store, error);
    }
    if (is_failed(opened)) {
        swarm_work_close_tools(node);
        worktree_release(&node->lease);
        result_ignore(worktree_remove(node->directory, NULL)
        ); // the first failure is the one to tell
        result_ignore(worktree_remove_store(node->store, NULL));
    }
    return opened;
}

result swarm_work_open(
    struct swarm_work *work,
    const struct swarm_work_open *options,
    struct swarm_work_node **out,
    struct error *error
) {
    TRY(check_name(work, options->name, error));
    CLEANUP(node_cleanup) struct swarm_work_node *node = node_create(work, options->name);
    if (node == NULL) {
        FAIL(error, MEMORY, "no memory for node '%s'", options->name);
    }
    ASSERT(options->parent != NULL);
    node->parent = options->parent;
    TRY_NOTE(error, open_parts(node, options, error), "directory of %s", options->name);
    SWARM_WORK_LOCK(&work->lock);
    node->next = work->nodes;
    work->nodes = node;
    *out = node;
    node = NULL;
    return OK;
}

/* ---- looking ------------------------------------------------------------------------------------ */

struct swarm_work_node *swarm_work_root(struct swarm_work *work) {
    return work->root;
}

const char *swarm_work_directory(const struct swarm_work_node *node) {
    return node->directory;
}

const char *swarm_work_commit_before(const struct swarm_work_node *node) {
    return node->commit_before;
}

struct workspace *swarm_work_workspace(struct swarm_work_node *node) {
    return node->workspace;
}

struct tool_context *swarm_work_tools(struct swarm_work_node *node) {
    return node->tools;
}

struct permission *swarm_work_permission(struct swarm_work_node *node) {
    return node->permission;
}

const struct hooks *swarm_work_hooks(struct swarm_work_node *node) {
    return node->tools != NULL && node->hooks.config != NULL ? &node->hooks : NULL;
}

const char *swarm_work_skipped(const struct swarm_work_node *node) {
    return node->skipped;
}

/* ---- closing ------------------------------------------------------------------------------------ */

void swarm_work_close(struct swarm_work_node *node, struct swarm_work_closed *out) {
    struct error error = {0};
    *out = (struct swarm_work_closed){.is_removed = false};
    SWARM_WORK_LOCK(&node->lock);
    if (node->parent == NULL || node->is_closed) {
        return;
    }
    node->is_closed = true;
    swarm_work_close_tools(node);
    bool is_gone = is_failed(swarm_work_check_there(node, NULL));
    worktree_release(&node->lease);
    result removed = is_gone ? OK
                     : node->has_result
                         ? worktree_remove_saved(node->directory, node->store, node->saved, &error)
                         : worktree_remove(node->directory, &error);
    if (is_failed(removed)) {
        (void)snprintf(out->reason, sizeof out->reason, "%.310s", error.message);
        out->reason[utf8_valid_prefix(view_of_text(out->reason))] = '\0';
        return;
    }
    out->is_removed = true;
    result_ignore(worktree_remove_store(node->store, NULL)); // a sweep finds what stays of it
}
