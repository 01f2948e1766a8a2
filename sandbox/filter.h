/* The seccomp filter of the inner stage, compiled once by the host. Internal to sandbox/. */
#ifndef HEARTH_SANDBOX_FILTER_H
#define HEARTH_SANDBOX_FILTER_H

#include "base/result.h"

/* Compiles into a sealed memfd (close-on-exec) that the caller closes; about 10 ms. Thread: any.
 * `allows_tcp`: sockets for TCP beside AF_UNIX. Expected errors: UNSUPPORTED (this architecture),
 * IO, MEMORY. */
MUST_CHECK result filter_compile(bool allows_tcp, int *out_fd, struct error *error);

/* Creates a memfd with `bytes` in it, sealed against every change, offset 0; the caller closes.
 * Expected errors: IO. */
MUST_CHECK result sealed_memfd_create(
    const char *name, const void *bytes, size_t length, int *out_fd, struct error *error
);

#endif
