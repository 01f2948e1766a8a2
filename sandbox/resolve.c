#include "resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RETRIES_MAX 256 /* the kernel says EAGAIN when a rename raced with a ".." or a mount */

int resolve_open(int directory, const char *path, int flags, unsigned mode, unsigned resolve) {
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .mode = mode,
        .resolve = resolve,
    };
    for (unsigned i = 0; i < RETRIES_MAX; i++) {
        long fd = syscall(SYS_openat2, directory, path, &how, sizeof how);
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR)) {
            return (int)fd;
        }
    }
    errno = EAGAIN;
    return -1;
}
