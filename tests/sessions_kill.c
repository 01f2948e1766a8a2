#include "sessions_kill.h"

#include "base/result.h"

#include <signal.h>
#include <sqlite3.h>
#include <unistd.h>

static _Atomic int writes;
static int last; /* 0: none */

static bool is_last(void) {
    return ++writes == last;
}

static ssize_t torn_pwrite(int fd, const void *data, size_t size, off_t at) {
    if (is_last()) {
        ssize_t ignored = pwrite(fd, data, size / 2, at);
        (void)ignored;
        (void)kill(getpid(), SIGKILL);
    }
    return pwrite(fd, data, size, at);
}

static ssize_t torn_write(int fd, const void *data, size_t size) {
    if (is_last()) {
        ssize_t ignored = write(fd, data, size / 2);
        (void)ignored;
        (void)kill(getpid(), SIGKILL);
    }
    return write(fd, data, size);
}

void sessions_kill_at(int nth) {
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    ASSERT(vfs != NULL);
    writes = 0;
    last = nth;
    (void)vfs->xSetSystemCall(vfs, "write", (sqlite3_syscall_ptr)torn_write);
    (void)vfs->xSetSystemCall(vfs, "pwrite", (sqlite3_syscall_ptr)torn_pwrite);
    (void)vfs->xSetSystemCall(vfs, "pwrite64", (sqlite3_syscall_ptr)torn_pwrite);
}

int sessions_writes(void) {
    return writes;
}
