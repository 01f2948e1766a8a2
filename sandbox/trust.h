/* Files that programs on the host act upon without being asked. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_TRUST_H
#define HEARTH_SANDBOX_TRUST_H

#include <time.h>

#include "base/result.h"

/* Names that changed in the directory since then, separated by blanks, as many as fit. */
void trust_list_changes(int directory_fd, const struct timespec *since, char *out, size_t bytes);

#endif
