/* The state directory and its one writer.
 *
 * The lock is a write lock of an open file description (F_OFD_SETLK) on a file that names the
 * holder. The kernel drops it when the holder dies, so a stale lock cannot exist; the name left in
 * the file then tells the next writer that its predecessor never closed the store. Readers can ask
 * whether it is held without taking it, which flock() cannot offer.
 */
#include "session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static result make_directories(const char *directory, struct error *error) {
    char path[SESSION_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s", directory);
    if (length <= 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "state directory: a path of %d bytes", length);
    }
    for (size_t i = 1; i <= (size_t)length; i++) {
        if (path[i] != '/' && path[i] != '\0') {
            continue;
        }
        char kept = path[i];
        path[i] = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST) {
            int code = errno;
            FAIL_FOREIGN(
                error,
                IO,
                code,
                "state directory %s: cannot make %s: %s; name another with --state DIR",
                directory,
                path,
                strerror(code)
            );
        }
        path[i] = kept;
    }
    return OK;
}

static bool directory_is_empty(const char *directory) {
    DIR *listing = opendir(directory);
    if (listing == NULL) {
        return false;
    }
    bool empty = true;
    for (struct dirent *e = readdir(listing); e != NULL && empty; e = readdir(listing)) {
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    }
    (void)closedir(listing);
    return empty;
}

static result check_private(const char *directory, const struct stat *info, struct error *error) {
    if (info->st_uid != geteuid()) {
        FAIL(
            error,
            INVALID_INPUT,
            "state directory %s belongs to user %u, not to %u; name another with --state DIR",
            directory,
            (unsigned)info->st_uid,
            (unsigned)geteuid()
        );
    }
    if ((info->st_mode & 077U) == 0) {
        return OK;
    }
    // An empty directory was made for us by hand; one with files may be anything, /tmp included.
    if (directory_is_empty(directory) && chmod(directory, 0700) == 0) {
        return OK;
    }
    FAIL(
        error,
        INVALID_INPUT,
        "state directory %s is open to other users (mode %04o) and not empty; "
        "chmod 700 it, or name another with --state DIR",
        directory,
        (unsigned)(info->st_mode & 07777U)
    );
}

result session_directory_prepare(const char *directory, struct error *error) {
    TRY(make_directories(directory, error));
    struct stat info;
    if (stat(directory, &info) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "state directory %s: %s", directory, strerror(code));
    }
    if (!S_ISDIR(info.st_mode)) {
        FAIL(error, INVALID_INPUT, "state directory %s is not a directory", directory);
    }
    TRY(check_private(directory, &info, error));
    struct statfs file_system;
    const char *network = NULL;
    if (statfs(directory, &file_system) == 0) {
        network = session_network_file_system((long)file_system.f_type);
    }
    if (network != NULL) {
        FAIL(
            error,
            UNSUPPORTED,
            "state directory %s is on a network file system (%s), where the database's shared "
            "memory and locks are not safe; name a local one with --state DIR",
            directory,
            network
        );
    }
    return OK;
}

const char *session_network_file_system(long type) {
    // Values of linux/magic.h and statfs(2); FUSE is left out: most of its mounts are local.
    static const struct {
        long type;
        const char *name;
    } known[] = {
        {0x6969, "NFS"},
        {0x517B, "SMB"},
        {0xFF534D42, "CIFS"},
        {0xFE534D42, "SMB2"},
        {0x564C, "NCP"},
        {0x5346414F, "AFS"},
        {0x73757245, "Coda"},
        {0x00C36400, "Ceph"},
        {0x0BD00BD0, "Lustre"},
        {0x47504653, "GPFS"},
        {0x01021997, "9p"},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if ((uint32_t)known[i].type == (uint32_t)type) {
            return known[i].name;
        }
    }
    return NULL;
}

static result fail_locked(int fd, const char *directory, struct error *error) {
    char holder[128] = {0};
    ssize_t length = pread(fd, holder, sizeof holder - 1, 0);
    holder[length > 0 ? (size_t)length : 0] = '\0';
    char *end = strchr(holder, '\n');
    if (end != NULL) {
        *end = '\0';
    }
    FAIL(
        error,
        LIMIT,
        "state directory %s is in use by process %s; wait for it to end, or name another with "
        "--state DIR (%s)",
        directory,
        holder[0] == '\0' ? "(just starting)" : holder,
        SESSION_FORMAT_READERS
    );
}

result session_lock_acquire(
    struct session_lock *out, const char *directory, const char *program, struct error *error
) {
    char path[SESSION_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, SESSION_LOCK_NAME);
    if (length <= 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "state directory: a path of %d bytes", length);
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        int code = errno;
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "state directory %s cannot be written: %s; name another with --state DIR",
            directory,
            strerror(code)
        );
    }
    struct flock whole = {0};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (fcntl(fd, F_OFD_SETLK, &whole) != 0) {
        int code = errno;
        if (code == EAGAIN || code == EACCES) {
            return fail_locked(fd, directory, error);
        }
        FAIL_FOREIGN(error, IO, code, "%s: cannot be locked: %s", path, strerror(code));
    }
    struct stat info = {0};
    bool predecessor_died = fstat(fd, &info) == 0 && info.st_size > 0;
    char line[128];
    length = snprintf(line, sizeof line, "%ld %.80s\n", (long)getpid(), program);
    ASSERT(length > 0 && (size_t)length < sizeof line);
    bool is_written = pwrite(fd, line, (size_t)length, 0) == length && ftruncate(fd, length) == 0;
    // On a full disk the lock holds without the name: what comes next says what cannot be done.
    if (!is_written && errno != ENOSPC && errno != EDQUOT) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "%s cannot be written: %s", path, strerror(code));
    }
    out->fd = fd;
    out->predecessor_died = predecessor_died;
    fd = -1;
    return OK;
}

void session_lock_release(struct session_lock *lock) {
    if (lock->fd < 0) {
        return;
    }
    // Emptied while still held: an empty file says that the store was closed in order. The name
    // stays when the store could not be opened after a crash, since the check is still to be done.
    // When emptying fails the next writer checks the database once more than needed.
    int emptied = lock->predecessor_died ? 0 : ftruncate(lock->fd, 0);
    (void)emptied;
    (void)close(lock->fd);
    lock->fd = -1;
}

bool session_lock_is_held(const char *directory) {
    char path[SESSION_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, SESSION_LOCK_NAME);
    if (length <= 0 || (size_t)length >= sizeof path) {
        return false;
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct flock whole = {0};
    whole.l_type = F_RDLCK; // what a descriptor for reading may ask about
    whole.l_whence = SEEK_SET;
    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}
