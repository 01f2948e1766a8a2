/* File functions below a root, resolved by the kernel.
 *
 * Reading opens the path twice: O_PATH first, to see what it is without touching it (opening a
 * FIFO or a device has effects), then for reading, and compares the two. Writing never opens the
 * target: a temporary file in the same, already opened directory is renamed over it, so neither a
 * hard link nor a setuid file is written through.
 */
#include "beneath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "resolve.h"

#define TEMPORARY_PREFIX ".hearth-tmp-"
#define NAME_BYTES_MAX   255
#define TRIES_MAX        16

struct beneath {
    int fd;
};

/* Changing these would let a later, unconfined program act for the command (git hooks, editors), or
 * change what a later run may do (.hearth). */
static const char *const protected_names[] = {
    ".git",
    ".hearth",
    ".vscode",
    ".idea",
    ".husky",
    ".envrc",
    ".mcp.json",
    ".gitmodules",
};

result beneath_open(const char *root, struct beneath **out, struct error *error) {
    CLEANUP(fd_cleanup) int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        FAIL_FOREIGN(error, NOT_FOUND, errno, "root '%.300s' does not exist", root);
    }
    if (fd < 0) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "root '%.300s': %s", root, strerror(errno));
    }
    int trial = resolve_open(fd, ".", O_PATH | O_DIRECTORY, 0, RESOLVE_CONFINE);
    if (trial < 0) {
        FAIL_FOREIGN(
            error, UNSUPPORTED, errno, "this kernel or container has no openat2 (Linux 5.6)"
        );
    }
    close(trial);
    struct beneath *opened = malloc(sizeof *opened);
    if (opened == NULL) {
        FAIL(error, MEMORY, "no memory for a root directory");
    }
    opened->fd = fd;
    fd = -1;
    *out = opened;
    return OK;
}

void beneath_close(struct beneath *root) {
    if (root != NULL) {
        close(root->fd);
        free(root);
    }
}

void beneath_cleanup(struct beneath **root) {
    beneath_close(*root);
    *root = NULL;
}

/* Names each refusal; `number` is errno of the resolution. */
static result refused(const char *path, int number, struct error *error) {
    switch (number) {
    case ENOENT:
        FAIL_FOREIGN(error, NOT_FOUND, number, "'%.300s' does not exist", path);
    case ENOTDIR:
        FAIL_FOREIGN(error, NOT_FOUND, number, "'%.300s': a part of it is no directory", path);
    case ELOOP:
        FAIL_FOREIGN(
            error, INVALID_INPUT, number, "refused: '%.300s' leads through a symlink", path
        );
    case EXDEV:
        FAIL_FOREIGN(
            error, INVALID_INPUT, number, "refused: '%.300s' leads outside the root", path
        );
    case EAGAIN:
        FAIL_FOREIGN(error, INVALID_INPUT, number, "refused: '%.300s' keeps changing", path);
    case ENAMETOOLONG:
        FAIL_FOREIGN(error, INVALID_INPUT, number, "refused: '%.100s...' is too long", path);
    default:
        FAIL_FOREIGN(error, IO, number, "'%.300s': %s", path, strerror(number));
    }
}

static result check_path(const char *path, struct error *error) {
    if (path[0] == '\0') {
        FAIL(error, INVALID_INPUT, "refused: the path is empty");
    }
    if (path[0] == '/') {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' is absolute; paths are relative", path);
    }
    if (strlen(path) > BENEATH_PATH_BYTES_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "refused: the path has %zu bytes, at most %zu are allowed",
            strlen(path),
            BENEATH_PATH_BYTES_MAX
        );
    }
    return OK;
}

/* For changing functions: no "..", so that what is checked is what is meant, and no protected
 * name, in any case of letters, since some file systems ignore case. */
static result check_changeable(const char *path, struct error *error) {
    TRY(check_path(path, error));
    for (const char *at = path; *at != '\0';) {
        at += strspn(at, "/");
        size_t length = strcspn(at, "/");
        if (length == 2 && at[0] == '.' && at[1] == '.') {
            FAIL(error, INVALID_INPUT, "refused: '%.300s' contains '..'", path);
        }
        for (size_t i = 0; i < COUNT_OF(protected_names); i++) {
            if (length == strlen(protected_names[i]) &&
                strncasecmp(at, protected_names[i], length) == 0) {
                FAIL(
                    error,
                    INVALID_INPUT,
                    "refused: '%.300s' is protected (%s)",
                    path,
                    protected_names[i]
                );
            }
        }
        at += length;
    }
    return OK;
}

static void fill_info(const struct stat *about, struct beneath_info *out) {
    enum beneath_kind kind = BENEATH_OTHER;
    if (S_ISREG(about->st_mode)) {
        kind = BENEATH_FILE;
    } else if (S_ISDIR(about->st_mode)) {
        kind = BENEATH_DIRECTORY;
    } else if (S_ISLNK(about->st_mode)) {
        kind = BENEATH_SYMLINK;
    }
    *out = (struct beneath_info){
        .kind = kind,
        .bytes = (uint64_t)about->st_size,
        .mtime_ns =
            (uint64_t)about->st_mtim.tv_sec * 1000000000U + (uint64_t)about->st_mtim.tv_nsec,
        .executable = (about->st_mode & 0111) != 0,
    };
}

/* Opens the directory that holds the last component; *leaf points into `path`. */
static result open_parent(
    const struct beneath *root, const char *path, int *out_fd, char leaf[], struct error *error
) {
    char parent[BENEATH_PATH_BYTES_MAX + 2];
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] == '/') {
        length -= 1;
    }
    size_t from = length;
    while (from > 0 && path[from - 1] != '/') {
        from -= 1;
    }
    size_t leaf_bytes = length - from;
    if (leaf_bytes > NAME_BYTES_MAX) {
        return refused(path, ENAMETOOLONG, error);
    }
    memcpy(leaf, path + from, leaf_bytes);
    leaf[leaf_bytes] = '\0';
    if (leaf_bytes == 0 || strcmp(leaf, ".") == 0 || strcmp(leaf, "..") == 0) {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' does not name a file", path);
    }
    memcpy(parent, path, from);
    parent[from] = '\0';
    const char *name = from == 0 ? "." : parent;
    int fd = resolve_open(root->fd, name, O_PATH | O_DIRECTORY, 0, RESOLVE_CONFINE);
    if (fd < 0) {
        return refused(path, errno, error);
    }
    *out_fd = fd;
    return OK;
}

result beneath_stat(
    const struct beneath *root, const char *path, struct beneath_info *out, struct error *error
) {
    TRY(check_path(path, error));
    CLEANUP(fd_cleanup)
    int fd = resolve_open(root->fd, path, O_PATH | O_NOFOLLOW, 0, RESOLVE_CONFINE);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        return refused(path, errno, error);
    }
    fill_info(&about, out);
    return OK;
}

static result open_for_reading(
    const struct beneath *root,
    const char *path,
    int *out_fd,
    struct stat *about,
    struct error *error
) {
    CLEANUP(fd_cleanup) int seen = resolve_open(root->fd, path, O_PATH, 0, RESOLVE_CONFINE);
    if (seen < 0 || fstat(seen, about) != 0) {
        return refused(path, errno, error);
    }
    if (S_ISDIR(about->st_mode)) {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' is a directory", path);
    }
    if (!S_ISREG(about->st_mode)) {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' is not a regular file", path);
    }
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY;
    CLEANUP(fd_cleanup) int fd = resolve_open(root->fd, path, flags, 0, RESOLVE_CONFINE);
    struct stat again;
    if (fd < 0 || fstat(fd, &again) != 0) {
        return refused(path, errno, error);
    }
    if (again.st_dev != about->st_dev || again.st_ino != about->st_ino) {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' was exchanged while being opened", path);
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}

result beneath_read(
    const struct beneath *root,
    const char *path,
    uint64_t offset,
    size_t length_max,
    struct buffer *out,
    struct beneath_info *info,
    struct error *error
) {
    TRY(check_path(path, error));
    CLEANUP(fd_cleanup) int fd = -1;
    struct stat about;
    TRY(open_for_reading(root, path, &fd, &about, error));
    if (offset > INT64_MAX - length_max) {
        FAIL(error, INVALID_INPUT, "offset %llu is too large", (unsigned long long)offset);
    }
    size_t before = out->length;
    unsigned char bytes[16384];
    for (size_t left = length_max; left > 0;) {
        size_t wanted = left < sizeof bytes ? left : sizeof bytes;
        ssize_t got = pread(fd, bytes, wanted, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            int number = errno;
            out->length = before;
            FAIL_FOREIGN(error, IO, number, "reading '%.300s': %s", path, strerror(number));
        }
        if (got == 0) {
            break;
        }
        TRY(buffer_append(out, view_of(bytes, (size_t)got), error));
        offset += (uint64_t)got;
        left -= (size_t)got;
    }
    if (info != NULL) {
        fill_info(&about, info);
    }
    return OK;
}

/* The directory was opened without O_PATH's blessing to create: a fresh name in it, exclusively. */
static int create_temporary(int parent, char name[64]) {
    for (unsigned i = 0; i < TRIES_MAX; i++) {
        uint64_t number = 0;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
            return -1;
        }
        (void)snprintf(name, 64, TEMPORARY_PREFIX "%016llx", (unsigned long long)number);
        int flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
        int fd = openat(parent, name, flags, 0600);
        if (fd >= 0 || errno != EEXIST) {
            return fd;
        }
    }
    errno = EEXIST;
    return -1;
}

/* Returns 0 or errno. */
static int fill_file(int fd, struct view content, mode_t mode) {
    while (content.length > 0) {
        ssize_t written = write(fd, content.data, content.length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return written < 0 ? errno : EIO;
        }
        content = view_slice(content, (size_t)written, SIZE_MAX);
    }
    return fchmod(fd, mode) != 0 || fsync(fd) != 0 ? errno : 0;
}

result beneath_write(
    const struct beneath *root, const char *path, struct view content, struct error *error
) {
    TRY(check_changeable(path, error));
    if (content.length > BENEATH_WRITE_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "%zu bytes for '%.300s', at most %zu can be written at once",
            content.length,
            path,
            BENEATH_WRITE_BYTES_MAX
        );
    }
    CLEANUP(fd_cleanup) int parent = -1;
    char leaf[NAME_BYTES_MAX + 1];
    TRY(open_parent(root, path, &parent, leaf, error));
    mode_t mode = 0644;
    struct stat about;
    if (fstatat(parent, leaf, &about, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISLNK(about.st_mode)) {
            return refused(path, ELOOP, error);
        }
        if (!S_ISREG(about.st_mode)) {
            FAIL(error, INVALID_INPUT, "refused: '%.300s' is not a regular file", path);
        }
        mode = about.st_mode & 0777;
    }
    char temporary[64];
    CLEANUP(fd_cleanup) int fd = create_temporary(parent, temporary);
    if (fd < 0) {
        FAIL_FOREIGN(
            error, IO, errno, "creating a file beside '%.300s': %s", path, strerror(errno)
        );
    }
    int number = fill_file(fd, content, mode);
    if (number == 0 && renameat(parent, temporary, parent, leaf) != 0) {
        number = errno;
    }
    if (number != 0) {
        (void)unlinkat(parent, temporary, 0); // as good as we can
        FAIL_FOREIGN(error, IO, number, "writing '%.300s': %s", path, strerror(number));
    }
    return OK;
}

static result
make_one(const struct beneath *root, const char *path, bool may_exist, struct error *error) {
    CLEANUP(fd_cleanup) int parent = -1;
    char leaf[NAME_BYTES_MAX + 1];
    TRY(open_parent(root, path, &parent, leaf, error));
    if (mkdirat(parent, leaf, 0755) == 0) {
        return OK;
    }
    int number = errno;
    struct stat about;
    bool is_directory = number == EEXIST &&
                        fstatat(parent, leaf, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISDIR(about.st_mode);
    if (may_exist && is_directory) {
        return OK;
    }
    if (number == EEXIST) {
        FAIL_FOREIGN(error, INVALID_INPUT, number, "refused: '%.300s' exists already", path);
    }
    return refused(path, number, error);
}

result
beneath_mkdir(const struct beneath *root, const char *path, bool parents, struct error *error) {
    TRY(check_changeable(path, error));
    if (!parents) {
        return make_one(root, path, false, error);
    }
    char part[BENEATH_PATH_BYTES_MAX + 1];
    size_t length = strlen(path);
    for (size_t at = 1; at <= length; at++) {
        bool ends = path[at] == '\0' || (path[at] == '/' && path[at - 1] != '/');
        if (ends) {
            memcpy(part, path, at);
            part[at] = '\0';
            if (strcmp(part, ".") != 0) {
                TRY(make_one(root, part, true, error));
            }
        }
    }
    return OK;
}

result beneath_remove(const struct beneath *root, const char *path, struct error *error) {
    TRY(check_changeable(path, error));
    CLEANUP(fd_cleanup) int parent = -1;
    char leaf[NAME_BYTES_MAX + 1];
    TRY(open_parent(root, path, &parent, leaf, error));
    if (unlinkat(parent, leaf, 0) == 0) {
        return OK;
    }
    int number = errno;
    if (number == EISDIR || number == EPERM) { // Linux says the first, POSIX the second
        number = unlinkat(parent, leaf, AT_REMOVEDIR) == 0 ? 0 : errno;
    }
    if (number == 0) {
        return OK;
    }
    if (number == ENOTEMPTY || number == EEXIST) {
        FAIL_FOREIGN(error, INVALID_INPUT, number, "refused: '%.300s' is not empty", path);
    }
    return refused(path, number, error);
}

result
beneath_rename(const struct beneath *root, const char *from, const char *to, struct error *error) {
    TRY(check_changeable(from, error));
    TRY(check_changeable(to, error));
    CLEANUP(fd_cleanup) int from_parent = -1;
    CLEANUP(fd_cleanup) int to_parent = -1;
    char from_leaf[NAME_BYTES_MAX + 1];
    char to_leaf[NAME_BYTES_MAX + 1];
    TRY(open_parent(root, from, &from_parent, from_leaf, error));
    TRY(open_parent(root, to, &to_parent, to_leaf, error));
    struct stat about;
    if (fstatat(from_parent, from_leaf, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return refused(from, errno, error);
    }
    if (!S_ISREG(about.st_mode)) {
        FAIL(error, INVALID_INPUT, "refused: '%.300s' is not a regular file", from);
    }
    if (renameat2(from_parent, from_leaf, to_parent, to_leaf, RENAME_NOREPLACE) != 0) {
        int number = errno;
        if (number == EEXIST) {
            FAIL_FOREIGN(error, INVALID_INPUT, number, "refused: '%.300s' exists already", to);
        }
        return refused(to, number, error);
    }
    return OK;
}

/* ---- listing -------------------------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b) {
    const struct beneath_entry *first = a;
    const struct beneath_entry *second = b;
    return strcmp(first->name, second->name);
}

static void directory_cleanup(DIR **directory) {
    if (*directory != NULL) {
        closedir(*directory);
    }
}

void beneath_list_deinit(struct beneath_list *list) {
    free(list->entries);
    free(list->names);
    *list = (struct beneath_list){0};
}

/* Names of a directory, each with its NUL; *count of them, at most `entries_max`. */
static result read_names(
    DIR *directory,
    size_t entries_max,
    struct buffer *names,
    size_t *count,
    bool *truncated,
    struct error *error
) {
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (*count >= entries_max) {
            *truncated = true;
            return OK;
        }
        TRY(buffer_append(names, view_of(entry->d_name, strlen(entry->d_name) + 1), error));
        *count += 1;
    }
    return OK;
}

static result
fill_list(DIR *directory, size_t entries_max, struct beneath_list *list, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, BENEATH_ENTRIES_MAX * (NAME_BYTES_MAX + 1));
    size_t count = 0;
    TRY(read_names(directory, entries_max, &names, &count, &list->truncated, error));
    TRY(buffer_take(&names, &list->names, NULL, error));
    list->entries = calloc(count + 1, sizeof *list->entries);
    if (list->entries == NULL) {
        FAIL(error, MEMORY, "no memory to list %zu entries", count);
    }
    const char *name = list->names;
    for (size_t i = 0; i < count; i++) {
        struct stat about;
        if (fstatat(dirfd(directory), name, &about, AT_SYMLINK_NOFOLLOW) == 0) {
            struct beneath_entry *entry = &list->entries[list->count++];
            entry->name = name;
            fill_info(&about, &entry->info);
        } // else removed meanwhile
        name += strlen(name) + 1;
    }
    qsort(list->entries, list->count, sizeof list->entries[0], compare_entries);
    return OK;
}

result beneath_list_directory(
    const struct beneath *root,
    const char *path,
    size_t entries_max,
    struct beneath_list *out,
    struct error *error
) {
    const char *name = path[0] == '\0' ? "." : path;
    TRY(check_path(name, error));
    if (entries_max > BENEATH_ENTRIES_MAX) {
        entries_max = BENEATH_ENTRIES_MAX;
    }
    int fd = resolve_open(root->fd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_CONFINE);
    if (fd < 0 && errno == ENOTDIR) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "refused: '%.300s' is not a directory", path);
    }
    if (fd < 0) {
        return refused(path, errno, error);
    }
    CLEANUP(directory_cleanup) DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        int number = errno;
        close(fd);
        return refused(path, number, error);
    }
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    TRY(fill_list(directory, entries_max, &list, error));
    *out = list;
    list = (struct beneath_list){0};
    return OK;
}
