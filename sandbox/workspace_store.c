/* The snapshot store on disk: one writer at a time, its files, its size. All objects are loose files. */
#include "workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"

#define LOCK_WAIT_MS  INT64_C(30000)
#define LOCK_PAUSE_US 5000
#define SIZE_NAME     "bytes" /* of a file in the store: what its objects take */

/* ---- lock ----------------------------------------------------------------------------------- */

result workspace_store_lock(struct workspace *workspace, struct error *error) {
    struct clock clock = clock_real();
    int64_t begin_ms = clock_monotonic_ms(&clock);
    if (workspace->lock_depth > 0) {
        workspace->lock_depth += 1;
        return OK;
    }
    while (flock(workspace->store_fd, LOCK_EX | LOCK_NB) != 0) {
        int64_t now_ms = clock_monotonic_ms(&clock);
        if (errno != EWOULDBLOCK && errno != EINTR) {
            FAIL_FOREIGN(error, IO, errno, "locking the snapshot store: %s", strerror(errno));
        }
        if (now_ms >= atomic_load_explicit(&workspace->until_ms, memory_order_relaxed)) {
            FAIL(
                error, TIMEOUT, "no time is left for a snapshot of '%.300s'", workspace->directory
            );
        }
        if (now_ms - begin_ms > LOCK_WAIT_MS) {
            FAIL(error, LIMIT, "another process has used the snapshot store for half a minute");
        }
        (void)usleep(LOCK_PAUSE_US);
    }
    /* Only a writer that was killed leaves these, and now it is us who writes. */
    static const char *const left[] = {
        WORKSPACE_CACHE_NAME ".lock", WORKSPACE_SNAPSHOT_REFERENCE ".lock"};
    for (size_t n = 0; n < COUNT_OF(left); n++) {
        (void)unlinkat(workspace->store_fd, left[n], 0); // none: all the better
    }
    workspace->lock_depth = 1;
    return OK;
}

void workspace_store_unlock(struct workspace *workspace) {
    ASSERT(workspace->lock_depth > 0);
    workspace->lock_depth -= 1;
    if (workspace->lock_depth == 0) {
        (void)flock(workspace->store_fd, LOCK_UN); // cannot fail on an open descriptor
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

static result visit_directory(
    int objects_fd, const char *name, store_visit visit, void *context, struct error *error
) {
    int fd = openat(objects_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return OK;
    }
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        int number = errno;
        fd_cleanup(&fd);
        FAIL_FOREIGN(error, IO, number, "snapshot store '%s': %s", name, strerror(number));
    }
    result status = OK;
    for (struct dirent *entry = readdir(directory); entry != NULL && is_ok(status);
         entry = readdir(directory)) {
        struct stat about;
        char path[GIT_OID_HEXSZ + NAME_MAX];
        char text[GIT_OID_HEXSZ + 1];
        git_oid id;
        if (fstatat(fd, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode)) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s", name, entry->d_name);
        int length = snprintf(text, sizeof text, "%s%s", name, entry->d_name);
        bool is_object = length == GIT_OID_HEXSZ && git_oid_fromstr(&id, text) == 0;
        status = visit(context, path, is_object ? &id : NULL, &about, error);
    }
    closedir(directory);
    return status;
}

result workspace_store_visit(
    struct workspace *workspace, store_visit visit, void *context, struct error *error
) {
    CLEANUP(fd_cleanup)
    int objects_fd = openat(workspace->store_fd, "objects", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (objects_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "snapshot store: %s", strerror(errno));
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[3];
        (void)snprintf(name, sizeof name, "%02x", i);
        TRY(workspace_check_time(workspace, error));
        TRY(visit_directory(objects_fd, name, visit, context, error));
    }
    return OK;
}

/* ---- size ------------------------------------------------------------------------------------ */

void workspace_store_grows(struct workspace *workspace) {
    (void)unlinkat(workspace->store_fd, SIZE_NAME, 0); // none, mostly
}

/* Without it everything is counted again: no failure is told. */
void workspace_store_has(struct workspace *workspace, uint64_t bytes) {
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = openat(workspace->store_fd, SIZE_NAME, flags, 0600);
    char text[32];
    int length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)bytes);
    if (fd >= 0 && write(fd, text, (size_t)length) != length) {
        workspace_store_grows(workspace);
    }
}

static bool read_size(const char *store, uint64_t *bytes) {
    char path[4200];
    int path_length = snprintf(path, sizeof path, "%s/" SIZE_NAME, store);
    bool has_path = path_length > 0 && (size_t)path_length < sizeof path;
    CLEANUP(fd_cleanup) int fd = has_path ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
    char text[32];
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text) : 0;
    int64_t value = 0;
    // Whole only with its end of line.
    if (length < 2 || text[length - 1] != '\n' ||
        !parse_i64(view_of(text, (size_t)length - 1), &value) || value < 0) {
        return false;
    }
    *bytes = (uint64_t)value;
    return true;
}

static result add_size(
    void *context,
    const char *name,
    const git_oid *id,
    const struct stat *about,
    struct error *error
) {
    (void)name, (void)id, (void)error;
    *(uint64_t *)context += (uint64_t)about->st_blocks * 512;
    return OK;
}

result
workspace_measure(const char *store, int64_t until_ms, uint64_t *bytes, struct error *error) {
    if (read_size(store, bytes)) {
        return OK;
    }
    uint64_t sum = 0;
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    TRY(workspace_open_store(store, &workspace, error));
    workspace_limit_time(workspace, until_ms);
    TRY(workspace_store_lock(workspace, error));
    CLEANUP(store_lock_cleanup) struct workspace *locked = workspace;
    TRY(workspace_store_visit(workspace, add_size, &sum, error));
    workspace_store_has(locked, sum);
    *bytes = sum;
    return OK;
}
