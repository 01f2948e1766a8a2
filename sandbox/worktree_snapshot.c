/* Copies made from a snapshot. Most files of the source are still what they were: the snapshot's cache says
 * so by their times, and copying them costs less than unpacking. They are looked at again behind the copy,
 * so that a command may run there meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "resolve.h"
#include "worktree_internal.h"

#define COARSE_TRIES    50U /* of a millisecond; the kernel's clock for files takes 10 at most */
#define COARSE_PAUSE_US 1000

/* Where the walk over the sorted paths is. */
struct place {
    char path
        [WORKTREE_PATH_BYTES]; /* of a directory below the root, with a '/' behind; "": the root */
    int to_fd, from_fd;        /* the latter -1 where the source has none */
    bool is_open;
};

static void place_close(struct place *place) {
    fd_cleanup(&place->to_fd);
    fd_cleanup(&place->from_fd);
    place->is_open = false;
}

struct copying {
    struct worktree_creation *creation;
    git_index *wanted; /* the snapshot's files */
    struct place place;
};

static void copying_deinit(struct copying *copying) {
    place_close(&copying->place);
    git_index_free(copying->wanted);
}

/* Makes the directories of `path` in the copy and opens its own. *leaf is the last name; *entered is false
 * where a file of the copy stands in the way. */
static result enter(
    struct copying *copying, const char *path, const char **leaf, bool *entered, struct error *error
) {
    struct place *place = &copying->place;
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash + 1 - path) : 0;
    *leaf = path + length;
    *entered = true;
    if (place->is_open && strlen(place->path) == length && memcmp(place->path, path, length) == 0) {
        return OK;
    }
    if (length >= sizeof place->path) {
        FAIL(error, INVALID_INPUT, "a path in the snapshot has %zu bytes", strlen(path));
    }
    place_close(place);
    for (size_t i = 1; i < length; i++) {
        memcpy(place->path, path, i);
        place->path[i] = '\0';
        if (path[i] == '/' && mkdirat(copying->creation->to_fd, place->path, 0755) != 0 &&
            errno != EEXIST && errno != ENOTDIR) {
            FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", place->path, strerror(errno));
        }
    }
    memcpy(place->path, path, length);
    place->path[length] = '\0';
    const char *name = length > 0 ? place->path : ".";
    int flags = O_PATH | O_DIRECTORY;
    place->to_fd = resolve_open(copying->creation->to_fd, name, flags, 0, RESOLVE_CONFINE);
    if (place->to_fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
        *entered = false;
        return OK;
    }
    if (place->to_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", place->path, strerror(errno));
    }
    place->from_fd = resolve_open(copying->creation->source_fd, name, flags, 0, RESOLVE_CONFINE);
    place->is_open = true;
    return OK;
}

static bool is_known(const git_index_entry *known, const struct stat *about) {
    git_index_entry now;
    worktree_fill_entry(&now, known->path, NULL, about);
    return S_ISREG(about->st_mode) && worktree_is_same_entry(known, &now);
}

/* Copies a file of the source that is what the snapshot has. False, and nothing is left: it is not. */
static bool copy_known(
    struct copying *copying, const git_index_entry *wanted, const char *leaf, struct stat *made
) {
    const struct place *place = &copying->place;
    const git_index_entry *known =
        git_index_get_bypath(copying->creation->snapshots->cache, wanted->path, 0);
    struct stat about;
    if (known == NULL || known->mode != wanted->mode || !git_oid_equal(&known->id, &wanted->id) ||
        place->from_fd < 0 || wanted->mode == GIT_FILEMODE_LINK) {
        return false;
    }
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    CLEANUP(fd_cleanup) int from = openat(place->from_fd, leaf, flags);
    if (from < 0 || fstat(from, &about) != 0 || !is_known(known, &about)) {
        return false;
    }
    mode_t mode = about.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    CLEANUP(fd_cleanup)
    int to = openat(place->to_fd, leaf, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    const struct timespec times[2] = {about.st_mtim, about.st_mtim};
    bool copied =
        to >= 0 &&
        worktree_copy_bytes(from, to, (uint64_t)about.st_size, &copying->creation->has_clones) ==
            0 &&
        futimens(to, times) == 0 && fstat(to, made) == 0 && fstat(from, &about) == 0 &&
        is_known(known, &about) && made->st_size == about.st_size;
    if (copied && (made->st_mode & (S_IRWXU | S_IRWXG | S_IRWXO)) != mode) { // the umask
        copied = fchmod(to, mode) == 0 && fstat(to, made) == 0;
    }
    if (!copied && to >= 0) {
        (void)unlinkat(place->to_fd, leaf, 0); // the next one who makes it tells
    }
    return copied;
}

/* 0 or errno. */
static int write_content(int fd, struct view content) {
    while (content.length > 0) {
        ssize_t written = write(fd, content.data, content.length);
        if (written <= 0) {
            return written < 0 ? errno : EIO;
        }
        content = view_slice(content, (size_t)written, SIZE_MAX);
    }
    return 0;
}

static int write_link(int directory_fd, const char *leaf, struct view content) {
    char target[WORKTREE_PATH_BYTES];
    if (content.length >= sizeof target) {
        return ENAMETOOLONG;
    }
    memcpy(target, content.data, content.length);
    target[content.length] = '\0';
    return symlinkat(target, directory_fd, leaf) == 0 ? 0 : errno;
}

static result unpack(
    struct copying *copying,
    const git_index_entry *wanted,
    const char *leaf,
    struct stat *made,
    struct error *error
) {
    CLEANUP(blob_cleanup) git_blob *blob = NULL;
    CLEANUP(fd_cleanup) int fd = -1;
    int to_fd = copying->place.to_fd;
    int number = 0;
    git_repository *repository = copying->creation->snapshots->repository;
    TRY_GIT(git_blob_lookup(&blob, repository, &wanted->id), "reading a stored file");
    struct view content = view_of(git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob));
    if (wanted->mode == GIT_FILEMODE_LINK) {
        number = write_link(to_fd, leaf, content);
    } else {
        mode_t mode = wanted->mode == GIT_FILEMODE_BLOB_EXECUTABLE ? 0755 : 0644;
        fd = openat(to_fd, leaf, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        number = fd < 0 ? errno : write_content(fd, content);
        number = number == 0 && fchmod(fd, mode) != 0 ? errno : number;
    }
    if (number == 0 && fstatat(to_fd, leaf, made, AT_SYMLINK_NOFOLLOW) != 0) {
        number = errno;
    }
    if (number != 0) {
        FAIL_FOREIGN(error, IO, number, "writing '%.300s': %s", wanted->path, strerror(number));
    }
    return OK;
}

static result copy_wanted(struct copying *copying, struct error *error) {
    for (size_t i = 0; i < git_index_entrycount(copying->wanted); i++) {
        const git_index_entry *wanted = git_index_get_byindex(copying->wanted, i);
        const char *leaf = NULL;
        bool entered = false;
        struct stat made;
        TRY(enter(copying, wanted->path, &leaf, &entered, error));
        if (!entered) {
            FAIL(error, CORRUPT, "the snapshot has a file above '%.300s'", wanted->path);
        }
        if (!copy_known(copying, wanted, leaf, &made)) {
            TRY(unpack(copying, wanted, leaf, &made, error));
        }
        TRY(worktree_note_made(copying->creation, wanted->path, &wanted->id, &made, error));
    }
    return OK;
}

/* ---- what no snapshot holds ------------------------------------------------------------------ */

static bool can_be_held(const struct copying *copying, const char *path, const struct stat *about) {
    int ignored = 0;
    git_repository *ignore = copying->creation->snapshots->ignore;
    return (uint64_t)about->st_size <= WORKSPACE_FILE_BYTES_MAX &&
           git_ignore_path_is_ignored(&ignored, ignore, path) == 0 && ignored == 0;
}

static bool is_unchanged(const struct worktree_entry *entry) {
    struct stat now;
    return fstatat(entry->directory_fd, entry->name, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
           now.st_ino == entry->about->st_ino && now.st_size == entry->about->st_size &&
           now.st_mtim.tv_sec == entry->about->st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == entry->about->st_mtim.tv_nsec;
}

/* A file of the source, if no snapshot could have it and none is in its place. */
static result copy_rest(void *context, const struct worktree_entry *entry, struct error *error) {
    struct copying *copying = context;
    struct worktree_creation *creation = copying->creation;
    bool is_file = S_ISREG(entry->about->st_mode) || S_ISLNK(entry->about->st_mode);
    if (!is_file || git_index_get_bypath(creation->files, entry->path, 0) != NULL ||
        can_be_held(copying, entry->path, entry->about)) {
        return OK;
    }
    const char *leaf = NULL;
    bool entered = false;
    bool copied = false;
    struct stat made;
    TRY(enter(copying, entry->path, &leaf, &entered, error));
    if (entered && fstatat(copying->place.to_fd, leaf, &made, AT_SYMLINK_NOFOLLOW) != 0) {
        TRY(worktree_copy_entry(creation->to_fd, entry, &copied, error));
    }
    if (copied && !is_unchanged(entry)) {
        copied = unlinkat(copying->place.to_fd, leaf, 0) != 0;
    }
    if (!copied || fstatat(copying->place.to_fd, leaf, &made, AT_SYMLINK_NOFOLLOW) != 0) {
        worktree_skip(creation, entry->path);
        return OK;
    }
    return worktree_note_made(creation, entry->path, NULL, &made, error);
}

static result copy_tracked(struct copying *copying, git_index *tracked, struct error *error) {
    for (size_t i = 0; i < git_index_entrycount(tracked); i++) {
        char directory[WORKTREE_PATH_BYTES];
        struct stat about;
        const char *path = git_index_get_byindex(tracked, i)->path;
        const char *slash = strrchr(path, '/');
        if (git_index_get_bypath(copying->wanted, path, 0) != NULL ||
            strlen(path) >= sizeof directory) {
            continue;
        }
        int length = slash != NULL ? (int)(slash - path) : 1;
        (void)snprintf(directory, sizeof directory, "%.*s", length, slash != NULL ? path : ".");
        int flags = O_PATH | O_DIRECTORY;
        CLEANUP(fd_cleanup)
        int fd = resolve_open(copying->creation->source_fd, directory, flags, 0, RESOLVE_CONFINE);
        const struct worktree_entry entry = {fd, slash != NULL ? slash + 1 : path, path, &about};
        if (fd >= 0 && fstatat(fd, entry.name, &about, AT_SYMLINK_NOFOLLOW) == 0) {
            TRY(copy_rest(copying, &entry, error));
        }
    }
    return OK;
}

static void skip_unreadable(void *context, const char *path) {
    struct copying *copying = context;
    worktree_skip(copying->creation, path);
}

result worktree_copy_snapshot(
    struct worktree_creation *creation, git_index *tracked, struct error *error
) {
    CLEANUP(copying_deinit)
    struct copying copying = {.creation = creation, .place = {.to_fd = -1, .from_fd = -1}};
    TRY_GIT(git_index_new(&copying.wanted), "reading a snapshot");
    TRY_GIT(git_index_read_tree(copying.wanted, creation->tree), "reading a snapshot");
    TRY(copy_wanted(&copying, error));
    if (tracked != NULL) {
        TRY(copy_tracked(&copying, tracked, error));
    }
    if (!creation->options->with_ignored) {
        return OK;
    }
    const struct worktree_walk walk = {
        .root_fd = creation->source_fd,
        .with_ignored = true,
        .visit = copy_rest,
        .skip = skip_unreadable,
        .context = &copying,
    };
    return worktree_walk(&walk, error);
}

/* ---- the copy's own store --------------------------------------------------------------------- */

/* From now on a change of any file gives it another time than it has in our list. False: the clock does
 * not go on. */
static bool wait_for_clock(const struct timespec *last) {
    for (unsigned i = 0; i < COARSE_TRIES; i++) {
        struct timespec now;
        if (clock_gettime(CLOCK_REALTIME_COARSE, &now) == 0 &&
            (now.tv_sec > last->tv_sec ||
             (now.tv_sec == last->tv_sec && now.tv_nsec > last->tv_nsec))) {
            return true;
        }
        (void)usleep(COARSE_PAUSE_US);
    }
    return false;
}

/* Only what the snapshot has: of other files the list knows no object. */
static result
fill_cache(struct worktree_creation *creation, struct workspace *own, struct error *error) {
    static const git_oid none = {{1}};
    for (size_t i = 0; i < git_index_entrycount(creation->files); i++) {
        const git_index_entry *entry = git_index_get_byindex(creation->files, i);
        if (!git_oid_equal(&entry->id, &none)) {
            TRY_GIT(git_index_add(own->cache, entry), "snapshot cache");
        }
    }
    TRY_GIT(git_index_write(own->cache), "writing the snapshot cache");
    return OK;
}

static result
fill_store(struct worktree_creation *creation, struct workspace *own, struct error *error) {
    git_oid id;
    git_reference *latest = NULL;
    TRY_GIT(git_oid_fromstr(&id, creation->options->commit), "a snapshot's name");
    TRY(workspace_link_snapshot(creation->snapshots, &id, own, error));
    TRY_GIT(
        git_reference_create(&latest, own->repository, WORKSPACE_SNAPSHOT_REFERENCE, &id, 1, NULL),
        "storing a snapshot"
    );
    git_reference_free(latest);
    TRY_GIT(git_index_clear(own->cache), "snapshot cache");
    return wait_for_clock(&creation->last) ? fill_cache(creation, own, error) : OK;
}

static result open_and_fill(struct worktree_creation *creation, struct error *error) {
    CLEANUP(workspace_cleanup) struct workspace *own = NULL;
    const char *store = creation->options->own_snapshots;
    TRY(workspace_open(creation->directory, store, &own, error));
    TRY(workspace_store_lock(own, error));
    workspace_store_grows(own);
    result filled = fill_store(creation, own, error);
    workspace_store_unlock(own);
    return filled;
}

result worktree_seed_store(struct worktree_creation *creation, struct error *error) {
    const char *store = creation->options->own_snapshots;
    bool is_new = access(store, F_OK) != 0;
    result filled = open_and_fill(creation, error);
    CLEANUP(fd_cleanup)
    int fd = is_failed(filled) && is_new ? open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        result_ignore(worktree_clear(fd, NULL)); // the first failure is the one to tell
        (void)rmdir(store);
    }
    return filled;
}
