/* A lock that is the name of an abstract socket: it needs no file, goes with its holder, and a
 * command in its own network namespace can neither see nor take it (it could flock its directory).
 */
#include "lock.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TRIES_MAX 250U
#define PAUSE_US  1000

result lock_directory(int directory_fd, const char *path, int *out_fd, struct error *error) {
    struct stat about;
    if (fstat(directory_fd, &about) != 0) {
        FAIL_FOREIGN(error, IO, errno, "workspace '%.300s': %s", path, strerror(errno));
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(
        address.sun_path + 1,
        sizeof address.sun_path - 1,
        "hearth-workspace-%u-%llx-%llx",
        (unsigned)geteuid(),
        (unsigned long long)about.st_dev,
        (unsigned long long)about.st_ino
    );
    ASSERT(length > 0 && (size_t)length < sizeof address.sun_path - 1);
    CLEANUP(fd_cleanup) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "locking '%.300s': %s", path, strerror(errno));
    }
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    // A child that another thread is just starting holds a copy of our last lock until its exec.
    int status = bind(fd, (const struct sockaddr *)&address, bytes);
    for (unsigned i = 0; status != 0 && errno == EADDRINUSE && i < TRIES_MAX; i++) {
        (void)usleep(PAUSE_US);
        status = bind(fd, (const struct sockaddr *)&address, bytes);
    }
    if (status != 0) {
        FAIL_FOREIGN(error, LIMIT, errno, "another command is running in workspace '%.300s'", path);
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}
