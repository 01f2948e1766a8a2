/* The snapshot store on disk: one writer at a time, and removal of what nobody refers to.
 *
 * All objects are loose files, so what is unreachable is removed one by one. Commits have the last
 * snapshot as their parent, but that is not followed: a snapshot is its tree, and a store from which
 * nothing could ever go would only grow.
 */
#include "workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define LOCK_WAIT_MS  INT64_C(30000)
#define LOCK_PAUSE_US 5000
#define OBJECTS_MAX   ((size_t)1 << 25) /* a GiB of names */

/* ---- lock ----------------------------------------------------------------------------------- */

result workspace_store_lock(struct workspace *workspace, struct error *error) {
    struct clock clock = clock_real();
    int64_t begin_ms = clock_monotonic_ms(&clock);
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
    return OK;
}

void workspace_store_unlock(struct workspace *workspace) {
    (void)flock(workspace->store_fd, LOCK_UN); // cannot fail on an open descriptor
}

/* ---- names that stay ------------------------------------------------------------------------ */

/* Open addressing; a slot of zeros is free, as no object has that name. */
struct names {
    git_oid *slots;
    size_t capacity; /* power of two */
    size_t count;
};

static void names_deinit(struct names *names) {
    free(names->slots);
}

static size_t slot_of(const struct names *names, const git_oid *id) {
    size_t at;
    memcpy(&at, id->id, sizeof at); // a cryptographic hash: any part of it will do
    for (at &= names->capacity - 1; !git_oid_is_zero(&names->slots[at]);
         at = (at + 1) & (names->capacity - 1)) {
        if (git_oid_equal(&names->slots[at], id)) {
            break;
        }
    }
    return at;
}

static bool has_name(const struct names *names, const git_oid *id) {
    return names->capacity > 0 && !git_oid_is_zero(&names->slots[slot_of(names, id)]);
}

/* *is_new: it was not there. */
static result add_name(struct names *names, const git_oid *id, bool *is_new, struct error *error) {
    if (2 * names->count >= names->capacity) {
        size_t capacity = names->capacity > 0 ? 2 * names->capacity : 1024;
        struct names grown = {.capacity = capacity, .count = names->count};
        grown.slots = capacity <= 2 * OBJECTS_MAX ? calloc(capacity, sizeof *grown.slots) : NULL;
        if (grown.slots == NULL) {
            FAIL(error, MEMORY, "no memory for the names of %zu objects", names->count);
        }
        for (size_t i = 0; i < names->capacity; i++) {
            if (!git_oid_is_zero(&names->slots[i])) {
                grown.slots[slot_of(&grown, &names->slots[i])] = names->slots[i];
            }
        }
        free(names->slots);
        *names = grown;
    }
    size_t at = slot_of(names, id);
    *is_new = git_oid_is_zero(&names->slots[at]);
    if (*is_new) {
        names->slots[at] = *id;
        names->count += 1;
    }
    return OK;
}

/* ---- mark ----------------------------------------------------------------------------------- */

/* Adds a tree and all below it; `pending` is a list of names of trees still to read. */
static result mark_tree(
    struct workspace *workspace, const git_oid *root, struct names *names, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer pending;
    buffer_init(&pending, OBJECTS_MAX);
    bool is_new = false;
    TRY(add_name(names, root, &is_new, error));
    if (is_new) {
        TRY(buffer_append(&pending, view_of(root, sizeof *root), error));
    }
    while (pending.length > 0) {
        git_oid id;
        pending.length -= sizeof id;
        memcpy(&id, pending.data + pending.length, sizeof id);
        CLEANUP(tree_cleanup) git_tree *tree = NULL;
        TRY_GIT(git_tree_lookup(&tree, workspace->repository, &id), "reading a stored directory");
        for (size_t i = 0; i < git_tree_entrycount(tree); i++) {
            const git_tree_entry *entry = git_tree_entry_byindex(tree, i);
            const git_oid *child = git_tree_entry_id(entry);
            TRY(add_name(names, child, &is_new, error));
            if (is_new && git_tree_entry_type(entry) == GIT_OBJECT_TREE) {
                TRY(buffer_append(&pending, view_of(child, sizeof *child), error));
            }
        }
    }
    return OK;
}

static result mark_commit(
    struct workspace *workspace,
    const git_oid *id,
    struct names *names,
    bool *is_missing,
    struct error *error
) {
    git_commit *commit = NULL;
    int status = git_commit_lookup(&commit, workspace->repository, id);
    *is_missing = status == GIT_ENOTFOUND;
    if (*is_missing) {
        return OK;
    }
    TRY_GIT(status, "reading a snapshot");
    git_oid tree = *git_commit_tree_id(commit);
    git_commit_free(commit);
    bool is_new = false;
    TRY(add_name(names, id, &is_new, error));
    return mark_tree(workspace, &tree, names, error);
}

/* The next snapshot takes over what the cache says without looking whether it is there. */
static result mark_index(const git_index *index, struct names *names, struct error *error) {
    git_index *entries = NULL;
    memcpy(&entries, &index, sizeof entries); // libgit2 takes no const
    for (size_t i = 0; i < git_index_entrycount(entries); i++) {
        bool is_new = false;
        TRY(add_name(names, &git_index_get_byindex(entries, i)->id, &is_new, error));
    }
    return OK;
}

static result mark_cache(struct workspace *workspace, struct names *names, struct error *error) {
    char path[4200];
    int length = snprintf(
        path, sizeof path, "%s" WORKSPACE_CACHE_NAME, git_repository_path(workspace->repository)
    );
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the snapshot store has too long a path");
    }
    TRY(mark_index(workspace->cache, names, error));
    git_index *on_disk = NULL; // of another process
    TRY_GIT(git_index_open(&on_disk, path), "opening the snapshot cache");
    result marked = mark_index(on_disk, names, error);
    git_index_free(on_disk);
    return marked;
}

static result mark(
    struct workspace *workspace,
    const char *const *pins,
    size_t count,
    struct names *names,
    struct workspace_collected *collected,
    struct error *error
) {
    git_oid id;
    bool is_missing = false;
    int status = git_reference_name_to_id(&id, workspace->repository, WORKSPACE_SNAPSHOT_REFERENCE);
    if (status == 0) {
        TRY(mark_commit(workspace, &id, names, &is_missing, error));
    } else if (status != GIT_ENOTFOUND) {
        TRY_GIT(status, "reading the last snapshot");
    }
    for (size_t i = 0; i < count; i++) {
        is_missing =
            strlen(pins[i]) != WORKSPACE_COMMIT_BYTES - 1 || git_oid_fromstr(&id, pins[i]) < 0;
        if (!is_missing) {
            TRY(mark_commit(workspace, &id, names, &is_missing, error));
        }
        collected->missing += is_missing ? 1 : 0;
    }
    return mark_cache(workspace, names, error);
}

/* ---- sweep ---------------------------------------------------------------------------------- */

struct sweep {
    const struct names *names;
    time_t older_than;
    struct workspace_collected *collected;
};

/* One of objects/00 to ff. Files that are no objects are left-overs of a killed writer. */
static result
sweep_directory(int objects_fd, const char *name, const struct sweep *sweep, struct error *error) {
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
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        struct stat about;
        char text[GIT_OID_HEXSZ + 1];
        git_oid id;
        if (fstatat(fd, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode)) {
            continue;
        }
        int length = snprintf(text, sizeof text, "%s%s", name, entry->d_name);
        bool is_object = length == GIT_OID_HEXSZ && git_oid_fromstr(&id, text) == 0;
        uint64_t bytes = (uint64_t)about.st_blocks * 512;
        sweep->collected->bytes_before += bytes;
        bool goes =
            about.st_mtim.tv_sec < sweep->older_than && !(is_object && has_name(sweep->names, &id));
        if (goes && unlinkat(fd, entry->d_name, 0) == 0) {
            sweep->collected->removed += 1;
        } else {
            sweep->collected->bytes_after += bytes;
        }
    }
    closedir(directory);
    return OK;
}

static result
sweep_all(struct workspace *workspace, const struct sweep *sweep, struct error *error) {
    CLEANUP(fd_cleanup)
    int objects_fd = openat(workspace->store_fd, "objects", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (objects_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "snapshot store: %s", strerror(errno));
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[3];
        (void)snprintf(name, sizeof name, "%02x", i);
        TRY(sweep_directory(objects_fd, name, sweep, error));
    }
    return OK;
}

result workspace_collect(
    struct workspace *workspace,
    const char *const *pins,
    size_t count,
    int64_t age_s,
    struct workspace_collected *out,
    struct error *error
) {
    CLEANUP(names_deinit) struct names names = {NULL, 0, 0};
    struct workspace_collected collected = {0};
    struct sweep sweep = {&names, time(NULL) - (time_t)age_s, &collected};
    TRY(workspace_store_lock(workspace, error));
    result done = mark(workspace, pins, count, &names, &collected, error);
    if (is_ok(done)) {
        done = sweep_all(workspace, &sweep, error);
    }
    workspace_store_unlock(workspace);
    TRY(done);
    *out = collected;
    return OK;
}
