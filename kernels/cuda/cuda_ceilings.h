/* The machine's ceilings for benches: backend.h, `ceilings`. */
#ifndef HEARTH_KERNELS_CUDA_CEILINGS_H
#define HEARTH_KERNELS_CUDA_CEILINGS_H

#include "cuda.h"

/* Some seconds long; takes up to 3 GiB of the device meanwhile. Expected errors: MEMORY, DEVICE. */
result cuda_ceilings(struct backend *backend, struct backend_ceilings *out, struct error *error);

#endif
