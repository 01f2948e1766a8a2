/* The device backend of check_ops: the CUDA backend itself, linked in, on an emulated device. */
#include "kernels/backend_module.h"
#include "kernels/cuda/check/check.h"

static result
open_emulated(const struct backend_options *options, struct backend **out, struct error *error) {
    return cuda_backend_module.open(options, out, error);
}

const struct check_device check_device = {open_emulated, backend_close};
