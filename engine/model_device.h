/* Weights in a backend's own memory: all tensors a model has, copied once, their pointers redirected.
 *
 * For backends whose memory the host does not share (backend.is_host_memory). The mapped files are
 * closed afterwards: nothing on the host reads a weight. Thread: the one that opens the model.
 */
#ifndef HEARTH_ENGINE_MODEL_DEVICE_H
#define HEARTH_ENGINE_MODEL_DEVICE_H

#include "model.h"

/* Bytes that model_to_device takes, at most; the vision tower, which nothing uses, stays out. */
struct model_device_size {
    uint64_t weight_bytes; /* without the Engram tables */
    uint64_t table_bytes;
};
void model_device_measure(
    const struct model_config *config, const struct model_size *size, struct model_device_size *out
);

/* Copies the weights and closes the files. With `tables_on_host` Engram tables go to host memory that
 * ops can read (a few KB a token are read of them). The backend must outlive the model. After a
 * failure the model is good for model_close only. Expected errors: MEMORY, DEVICE. */
MUST_CHECK result model_to_device(
    struct model *model, struct backend *backend, bool tables_on_host, struct error *error
);

#endif
