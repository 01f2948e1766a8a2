/* A backend in a library of its own, loaded when it is asked for: so the program needs neither a GPU
 * nor its driver. The library exports one symbol, `<name>_backend_module`, of the struct below; library
 * and program are built from the same sources, and one of another build is refused.
 * Thread: any.
 */
#ifndef HEARTH_KERNELS_BACKEND_MODULE_H
#define HEARTH_KERNELS_BACKEND_MODULE_H

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever backend.h, tensor.h or formats.h change what crosses: ops, options, facts. */
#define BACKEND_MODULE_VERSION 1U

struct backend_module {
    uint32_t version;       /* BACKEND_MODULE_VERSION of its build */
    uint32_t backend_bytes; /* sizeof(struct backend) of its build */
    /* As backend_probe, backend_open and backend_scratch_bytes; limits are checked already. */
    result (*probe)(int32_t device, struct backend_facts *out, struct error *error);
    result (*open
    )(const struct backend_options *options, struct backend **out, struct error *error);
    uint64_t (*scratch_bytes)(const struct backend_options *options);
};

extern const struct backend_module cuda_backend_module;

/* Loads a library (a name without a slash is looked for beside the program) and gives its module,
 * which stays loaded. Expected errors, with the reason in one line: NOT_FOUND, UNSUPPORTED (another
 * library, or of another build). */
MUST_CHECK result backend_module_load(
    const char *library, const char *symbol, const struct backend_module **out, struct error *error
);

#ifdef __cplusplus
}
#endif

#endif
