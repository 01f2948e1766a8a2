/* The device backend of check_ops as the emulation: linked in. */
#include "kernels/cuda/check/check.h"

result
emulated_open(const struct backend_options *options, struct backend **out, struct error *error);
void emulated_close(struct backend *backend);

const struct check_device check_device = {emulated_open, emulated_close};
