/* What backend.c needs of the CPU backend. */
#ifndef HEARTH_KERNELS_CPU_CPU_BACKEND_H
#define HEARTH_KERNELS_CPU_CPU_BACKEND_H

#include "backend.h"

/* Limits are checked already. Expected errors: UNSUPPORTED (instruction set), MEMORY, INVALID_INPUT
 * (scratch that no address space holds). */
MUST_CHECK result
cpu_backend_open(const struct backend_options *options, struct backend **out, struct error *error);
/* Expected errors: UNSUPPORTED. */
MUST_CHECK result cpu_backend_probe(struct backend_facts *out, struct error *error);
uint64_t cpu_backend_scratch_bytes(const struct backend_options *options);

#endif
