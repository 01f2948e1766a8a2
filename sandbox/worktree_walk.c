/* See worktree_walk.h. */
#include "worktree_walk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "resolve.h"

#define PATH_BYTES_MAX    ((size_t)4000)
#define PENDING_BYTES_MAX ((size_t)64 << 20) /* of paths of directories still to visit */
#define PATH_BYTES_DEEP   ((size_t)3000)     /* longer ones are moved up before they are removed */
#define OBJECTS_MAX       ((size_t)4000000)
#define SMALL_FILE_BYTES  ((uint64_t)64 << 10)

void worktree_note_name(char *names, size_t bytes, const char *name) {
    size_t used = strlen(names);
    size_t length = strlen(name);
    if (used + length + 2 < bytes && utf8_is_valid(view_of(name, length))) {
        (void)snprintf(names + used, bytes - used, "%s%s", used > 0 ? " " : "", name);
    }
}

/* ---- walk ----------------------------------------------------------------------------------- */

static void directory_cleanup(DIR **directory) {
    if (*directory != NULL) {
        closedir(*directory);
    }
}

static bool is_dot(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool is_wanted(const struct worktree_walk *walk, const char *path, bool is_directory) {
    char text[PATH_BYTES_MAX + 2];
    int ignored = 0;
    size_t at = 0;
    (void)snprintf(text, sizeof text, "%s%s", path, is_directory ? "/" : "");
    if (walk->with_ignored || git_ignore_path_is_ignored(&ignored, walk->ignore, text) != 0 ||
        ignored == 0) {
        return true;
    }
    if (walk->tracked == NULL) {
        return false;
    }
    return is_directory ? git_index_find_prefix(&at, walk->tracked, text) == 0
                        : git_index_get_bypath(walk->tracked, path, 0) != NULL;
}

static result visit_directory(
    const struct worktree_walk *walk,
    const char *parent,
    struct buffer *pending,
    struct error *error
) {
    const char *name = parent[0] == '\0' ? "." : parent;
    int fd = resolve_open(walk->root_fd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_CONFINE);
    CLEANUP(directory_cleanup) DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        fd_cleanup(&fd);
        walk->skip(walk->context, name);
        return OK;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char path[PATH_BYTES_MAX];
        struct stat about;
        if (is_dot(entry->d_name) || strcasecmp(entry->d_name, ".git") == 0) {
            continue;
        }
        const char *slash = parent[0] == '\0' ? "" : "/";
        int length = snprintf(path, sizeof path, "%s%s%s", parent, slash, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path ||
            fstatat(dirfd(directory), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
            walk->skip(walk->context, entry->d_name);
            continue;
        }
        if (!is_wanted(walk, path, S_ISDIR(about.st_mode))) {
            continue;
        }
        const struct worktree_entry found = {dirfd(directory), entry->d_name, path, &about};
        TRY(walk->visit(walk->context, &found, error));
        if (S_ISDIR(about.st_mode)) {
            TRY(buffer_append(pending, view_of(path, (size_t)length + 1), error));
        }
    }
    return OK;
}

/* Takes the last path off a list with a NUL after each; false when it is empty. */
static bool pop_path(struct buffer *paths, char out[PATH_BYTES_MAX]) {
    if (paths->length == 0) {
        return false;
    }
    size_t at = paths->length - 1;
    while (at > 0 && paths->data[at - 1] != '\0') {
        at -= 1;
    }
    ASSERT(paths->length - at <= PATH_BYTES_MAX);
    memcpy(out, paths->data + at, paths->length - at);
    paths->length = at;
    return true;
}

result worktree_walk(const struct worktree_walk *walk, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer pending;
    buffer_init(&pending, PENDING_BYTES_MAX);
    char path[PATH_BYTES_MAX] = "";
    do {
        TRY(visit_directory(walk, path, &pending, error));
    } while (pop_path(&pending, path));
    return OK;
}

/* ---- copy ----------------------------------------------------------------------------------- */

/* Shares the blocks where the file system can, lets the kernel copy where it can; small files are read
 * and written, which takes the fewest calls. */
int worktree_copy_bytes(int from, int to, uint64_t bytes, bool *has_clones) {
    bool is_plain = bytes <= SMALL_FILE_BYTES;
    if (!is_plain && *has_clones && ioctl(to, FICLONE, from) == 0) {
        return 0;
    }
    *has_clones = *has_clones && is_plain;
    for (;;) {
        static const size_t block = (size_t)64 << 20;
        ssize_t moved = is_plain ? -1 : copy_file_range(from, NULL, to, NULL, block, 0);
        if (moved == 0) {
            return 0;
        }
        if (moved < 0 && !is_plain &&
            (errno == EXDEV || errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP)) {
            is_plain = true; // nothing was moved yet
        } else if (moved < 0 && !is_plain) {
            return errno;
        }
        if (is_plain) {
            unsigned char block_bytes[65536];
            ssize_t got = read(from, block_bytes, sizeof block_bytes);
            if (got <= 0) {
                return got == 0 ? 0 : errno;
            }
            for (ssize_t at = 0; at < got;) {
                ssize_t written = write(to, block_bytes + at, (size_t)(got - at));
                if (written <= 0) {
                    return written < 0 ? errno : EIO;
                }
                at += written;
            }
        }
    }
}

static result
copy_link(int to_fd, const struct worktree_entry *entry, bool *copied, struct error *error) {
    char target[PATH_BYTES_MAX];
    ssize_t length = readlinkat(entry->directory_fd, entry->name, target, sizeof target - 1);
    if (length < 0) {
        return OK; // went meanwhile
    }
    target[length] = '\0';
    if (symlinkat(target, to_fd, entry->path) != 0) {
        FAIL_FOREIGN(error, IO, errno, "copying '%.300s': %s", entry->path, strerror(errno));
    }
    *copied = true;
    return OK;
}

result worktree_copy_entry(
    int to_fd, const struct worktree_entry *entry, bool *copied, struct error *error
) {
    *copied = false;
    if (S_ISLNK(entry->about->st_mode)) {
        return copy_link(to_fd, entry, copied, error);
    }
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    CLEANUP(fd_cleanup)
    int from =
        S_ISREG(entry->about->st_mode) ? openat(entry->directory_fd, entry->name, flags) : -1;
    struct stat about;
    if (from < 0 || fstat(from, &about) != 0 || !S_ISREG(about.st_mode)) {
        return OK;
    }
    mode_t mode = about.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    CLEANUP(fd_cleanup)
    int to = openat(to_fd, entry->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const struct timespec times[2] = {about.st_mtim, about.st_mtim};
    bool has_clones = true;
    int number =
        to < 0 ? errno : worktree_copy_bytes(from, to, (uint64_t)about.st_size, &has_clones);
    if (number == 0 && (fchmod(to, mode) != 0 || futimens(to, times) != 0)) {
        number = errno;
    }
    if (number != 0) {
        FAIL_FOREIGN(error, IO, number, "copying '%.300s': %s", entry->path, strerror(number));
    }
    *copied = true;
    return OK;
}

/* ---- objects -------------------------------------------------------------------------------- */

/* One file that never changes; 0 or errno. */
static int link_file(int from_fd, int to_fd, const char *name) {
    if (linkat(from_fd, name, to_fd, name, 0) == 0 || errno == EEXIST) {
        return 0;
    }
    if (errno != EXDEV && errno != EPERM && errno != EMLINK) {
        return errno == ENOENT ? 0 : errno; // repacked meanwhile: see worktree_link_objects
    }
    CLEANUP(fd_cleanup) int from = openat(from_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0) {
        return errno == ENOENT ? 0 : errno;
    }
    CLEANUP(fd_cleanup) int to = openat(to_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    bool has_clones = true;
    return to < 0 ? errno : worktree_copy_bytes(from, to, UINT64_MAX, &has_clones);
}

static result
link_directory(int from_root, int to_root, const char *name, size_t *count, struct error *error) {
    int fd = openat(from_root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return OK;
    }
    CLEANUP(directory_cleanup) DIR *from = fd >= 0 ? fdopendir(fd) : NULL;
    if (from == NULL || (mkdirat(to_root, name, 0755) != 0 && errno != EEXIST)) {
        int number = errno;
        if (from == NULL) {
            fd_cleanup(&fd);
        }
        FAIL_FOREIGN(error, IO, number, "objects '%s': %s", name, strerror(number));
    }
    CLEANUP(fd_cleanup) int to = openat(to_root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (struct dirent *entry = readdir(from); to >= 0 && entry != NULL; entry = readdir(from)) {
        struct stat about;
        if (is_dot(entry->d_name) || strncmp(entry->d_name, "tmp_", 4) == 0 ||
            fstatat(dirfd(from), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(about.st_mode)) {
            continue;
        }
        int number = link_file(dirfd(from), to, entry->d_name);
        if (number != 0) {
            FAIL_FOREIGN(
                error, IO, number, "object '%s/%.100s': %s", name, entry->d_name, strerror(number)
            );
        }
        if (++*count > OBJECTS_MAX) {
            FAIL(error, LIMIT, "more than %zu files of objects", OBJECTS_MAX);
        }
    }
    return OK;
}

result worktree_link_objects(const char *from, const char *to, struct error *error) {
    CLEANUP(fd_cleanup) int from_fd = open(from, O_PATH | O_DIRECTORY | O_CLOEXEC);
    CLEANUP(fd_cleanup) int to_fd = open(to, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (from_fd < 0 && errno == ENOENT) {
        return OK;
    }
    if (from_fd < 0 || to_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "objects in '%.300s': %s", from, strerror(errno));
    }
    size_t count = 0;
    for (unsigned i = 0; i < 256; i++) {
        char name[3];
        (void)snprintf(name, sizeof name, "%02x", i);
        TRY(link_directory(from_fd, to_fd, name, &count, error));
    }
    // Packs last and twice: an object that was packed meanwhile is found in one of them.
    TRY(link_directory(from_fd, to_fd, "pack", &count, error));
    return link_directory(from_fd, to_fd, "pack", &count, error);
}

/* ---- removal -------------------------------------------------------------------------------- */

/* Removes the files of one directory and notes its directories in `paths`. */
static result clear_directory(
    int root, const char *path, struct buffer *paths, unsigned *moved, struct error *error
) {
    const char *name = path[0] == '\0' ? "." : path;
    int opened = fchmodat(root, name, 0700, 0); // a command may have shut it
    (void)opened;                               // the next call tells
    int fd = resolve_open(root, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_CONFINE);
    CLEANUP(directory_cleanup) DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        int number = errno;
        fd_cleanup(&fd);
        FAIL_FOREIGN(error, IO, number, "removing '%.300s': %s", name, strerror(number));
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char child[PATH_BYTES_MAX];
        if (is_dot(entry->d_name)) {
            continue;
        }
        if (unlinkat(dirfd(directory), entry->d_name, 0) == 0) {
            continue;
        }
        if (errno != EISDIR && errno != EPERM) {
            FAIL_FOREIGN(error, IO, errno, "removing '%.200s': %s", entry->d_name, strerror(errno));
        }
        const char *slash = path[0] == '\0' ? "" : "/";
        int length = snprintf(child, sizeof child, "%s%s%s", path, slash, entry->d_name);
        ASSERT(length > 0 && (size_t)length < sizeof child); // see PATH_BYTES_DEEP
        if ((size_t)length > PATH_BYTES_DEEP) {
            length = snprintf(child, sizeof child, ".deep-%u", (*moved)++);
            if (renameat(dirfd(directory), entry->d_name, root, child) != 0) {
                FAIL_FOREIGN(error, IO, errno, "removing '%.300s': %s", path, strerror(errno));
            }
        }
        TRY(buffer_append(paths, view_of(child, (size_t)length + 1), error));
    }
    return OK;
}

result worktree_clear(int fd, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer pending;
    CLEANUP(buffer_deinit) struct buffer seen; // parents before what is in them
    buffer_init(&pending, PENDING_BYTES_MAX);
    buffer_init(&seen, PENDING_BYTES_MAX);
    unsigned moved = 0;
    char path[PATH_BYTES_MAX] = "";
    do {
        TRY(clear_directory(fd, path, &pending, &moved, error));
        if (path[0] != '\0') {
            TRY(buffer_append(&seen, view_of(path, strlen(path) + 1), error));
        }
    } while (pop_path(&pending, path));
    while (pop_path(&seen, path)) {
        if (unlinkat(fd, path, AT_REMOVEDIR) != 0 && errno != ENOENT) {
            FAIL_FOREIGN(error, IO, errno, "removing '%.300s': %s", path, strerror(errno));
        }
    }
    return OK;
}
