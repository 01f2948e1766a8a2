/* The tensors a configuration asks for: one list of names, dtypes and shapes.
 *
 * model_measure checks a checkpoint against it, model_open also resolves the roles, the tests write
 * checkpoints from it. Thread: any.
 */
#ifndef HEARTH_ENGINE_WEIGHTS_H
#define HEARTH_ENGINE_WEIGHTS_H

#include "model.h"
#include "safetensors.h"

enum tensor_need {
    TENSOR_REQUIRED,
    TENSOR_OPTIONAL, /* gate.bias_vl: routing of image tokens */
    TENSOR_DRAFT,    /* all draft stages or none */
    TENSOR_VISION    /* the whole vision tower or none */
};

struct tensor_role {
    const char *name; /* valid during the call */
    enum tensor_dtype dtype;
    uint32_t rank;
    uint64_t shape[2];
    enum model_group group;
    enum model_storage storage;
    enum tensor_need need;
    void *slot; /* a pointer variable that receives the data's address; may be null */
};

/* Calls `visit` for every tensor of `config` (which model_config_parse filled), in order of layers,
 * and stops at the first failure. With `model` not null the slots point into it; its arrays must be
 * allocated. Expected errors: those of `visit`. */
MUST_CHECK result weights_walk(
    const struct model_config *config,
    struct model *model,
    result (*visit)(void *context, const struct tensor_role *role, struct error *error),
    void *context,
    struct error *error
);

#endif
