/* openat2 with the flags this folder uses. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_RESOLVE_H
#define HEARTH_SANDBOX_RESOLVE_H

#include <linux/openat2.h>

#include "base/result.h"

#define RESOLVE_PLAIN   (RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
#define RESOLVE_CONFINE (RESOLVE_PLAIN | RESOLVE_BENEATH | RESOLVE_NO_XDEV)

/* A close-on-exec descriptor, or -1 with errno; repeats on EAGAIN (a rename raced). Without
 * openat2 (an old kernel, or a container's filter) errno is ENOSYS. */
int resolve_open(int directory, const char *path, int flags, unsigned mode, unsigned resolve);

#endif
