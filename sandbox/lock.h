/* One user of a directory at a time, across processes. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_LOCK_H
#define HEARTH_SANDBOX_LOCK_H

#include "base/result.h"

/* Locks the directory behind `directory_fd`; `path` is for messages. The lock is a descriptor that
 * the caller closes; it also goes when the process dies. Waits a quarter of a second at most.
 * Expected errors: LIMIT (someone has it), IO. */
MUST_CHECK result
lock_directory(int directory_fd, const char *path, int *out_fd, struct error *error);

#endif
