/* What backend.c needs of the CPU backend. */
#ifndef HEARTH_KERNELS_CPU_CPU_BACKEND_H
#define HEARTH_KERNELS_CPU_CPU_BACKEND_H

#include "backend.h"

/* Expected errors: UNSUPPORTED (instruction set), MEMORY, INVALID_INPUT (limits). */
MUST_CHECK result
cpu_backend_open(const struct backend_options *options, struct backend **out, struct error *error);
/* Expected errors: UNSUPPORTED. */
MUST_CHECK result cpu_backend_probe(struct backend_facts *out, struct error *error);
void cpu_backend_close(struct backend *backend);
/* 0 for limits that cpu_backend_open refuses. */
uint64_t cpu_backend_scratch_bytes(const struct backend_options *options);

#endif
