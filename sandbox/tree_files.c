/* Every step is resolved by the kernel beneath the root, one directory at a time: a symlink where a
 * directory should be is an error, and a file is replaced by rename, never opened. */
#include "tree_files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "resolve.h"

/* Opens the directory of `path` beneath the root, making what is missing; *leaf is its name. */
static result open_parent(
    int root_fd, const char *path, bool makes, int *out_fd, const char **leaf, struct error *error
) {
    char part[TREE_PATH_BYTES_MAX + 1];
    const char *slash = strrchr(path, '/');
    *leaf = slash != NULL ? slash + 1 : path;
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;
    if (length > TREE_PATH_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "a path in the snapshot has %zu bytes", length);
    }
    CLEANUP(fd_cleanup)
    int fd = resolve_open(root_fd, ".", O_PATH | O_DIRECTORY, 0, RESOLVE_CONFINE);
    size_t from = 0;
    while (fd >= 0 && from < length) {
        size_t bytes = strcspn(path + from, "/");
        memcpy(part, path + from, bytes);
        part[bytes] = '\0';
        if (makes && mkdirat(fd, part, 0755) != 0 && errno != EEXIST) {
            FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", path, strerror(errno));
        }
        int next = resolve_open(fd, part, O_PATH | O_DIRECTORY, 0, RESOLVE_CONFINE);
        int number = errno;
        close(fd);
        fd = next;
        errno = number;
        from += bytes + 1;
    }
    if (fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "directory of '%.300s': %s", path, strerror(errno));
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}

result tree_remove_file(int root_fd, const char *path, struct error *error) {
    char text[TREE_PATH_BYTES_MAX + 1];
    size_t length = strlen(path);
    if (length > TREE_PATH_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "a path in the snapshot has %zu bytes", length);
    }
    memcpy(text, path, length + 1);
    int flags = 0;
    for (;;) {
        CLEANUP(fd_cleanup) int parent = -1;
        const char *leaf = NULL;
        TRY(open_parent(root_fd, text, false, &parent, &leaf, error));
        if (unlinkat(parent, leaf, flags) != 0 && errno != ENOENT) {
            if (flags == AT_REMOVEDIR) {
                return OK; // not empty: it holds something else
            }
            FAIL_FOREIGN(error, IO, errno, "removing '%.300s': %s", path, strerror(errno));
        }
        char *slash = strrchr(text, '/');
        if (slash == NULL) {
            return OK;
        }
        *slash = '\0';
        flags = AT_REMOVEDIR;
    }
}

/* Returns 0 or errno. */
static int write_new(int parent, const char *name, enum tree_file_kind kind, struct view content) {
    if (kind == TREE_FILE_SYMLINK) {
        char target[TREE_PATH_BYTES_MAX + 1];
        if (content.length > TREE_PATH_BYTES_MAX) {
            return ENAMETOOLONG;
        }
        memcpy(target, content.data, content.length);
        target[content.length] = '\0';
        return symlinkat(target, parent, name) != 0 ? errno : 0;
    }
    mode_t bits = kind == TREE_FILE_EXECUTABLE ? 0755 : 0644;
    int flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = openat(parent, name, flags, bits);
    if (fd < 0) {
        return errno;
    }
    while (content.length > 0) {
        ssize_t written = write(fd, content.data, content.length);
        if (written <= 0) {
            return written < 0 ? errno : EIO;
        }
        content = view_slice(content, (size_t)written, SIZE_MAX);
    }
    return fchmod(fd, bits) != 0 ? errno : 0;
}

result tree_write_file(
    int root_fd,
    const char *path,
    enum tree_file_kind kind,
    struct view content,
    struct error *error
) {
    CLEANUP(fd_cleanup) int parent = -1;
    const char *leaf = NULL;
    TRY(open_parent(root_fd, path, true, &parent, &leaf, error));
    char temporary[64];
    (void)snprintf(temporary, sizeof temporary, ".hearth-restore-%ld", (long)getpid());
    (void)unlinkat(parent, temporary, 0); // of a restore that was killed
    int number = write_new(parent, temporary, kind, content);
    if (number == 0 && renameat(parent, temporary, parent, leaf) != 0) {
        number = errno;
    }
    if (number != 0) {
        (void)unlinkat(parent, temporary, 0);
        FAIL_FOREIGN(error, IO, number, "writing '%.300s': %s", path, strerror(number));
    }
    return OK;
}
