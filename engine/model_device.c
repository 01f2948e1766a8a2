/* Copies a model's tensors into one piece of the backend's memory (the Engram tables into another),
 * then each layer's list of routed experts behind them. See model_device.h. */
#include "model_device.h"

#include "weights.h"

#define ALIGNMENT ((uint64_t)256) /* widest loads of any kernel, and then some */

/* Bytes of one piece; without a base it is only measured. */
struct piece {
    uint8_t *base;
    uint64_t used;
};

struct transfer {
    struct model *model;
    struct piece weights, tables;
};

static uint64_t round_up(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint8_t *take(struct piece *piece, uint64_t bytes) {
    uint8_t *at = piece->base == NULL ? NULL : piece->base + piece->used;
    piece->used += round_up(bytes);
    return at;
}

static int32_t layer_count(const struct model_config *config, bool has_draft) {
    return config->layers + (has_draft ? config->draft_layers : 0);
}

static size_t expert_bytes(const struct model_config *config, int32_t layer) {
    int32_t experts = layer < config->layers ? config->experts : config->draft_experts;
    return (size_t)experts * sizeof(struct expert_weights);
}

void model_device_measure(
    const struct model_config *config, const struct model_size *size, struct model_device_size *out
) {
    const struct model_bytes *tables = &size->groups[MODEL_GROUP_ENGRAM_TABLES];
    const struct model_bytes *vision = &size->groups[MODEL_GROUP_VISION];
    uint64_t tensors = size->total.tensors - tables->tensors - vision->tensors;
    out->weight_bytes = size->total.bytes - tables->bytes - vision->bytes + tensors * ALIGNMENT;
    out->table_bytes = tables->bytes + tables->tensors * ALIGNMENT;
    bool has_draft = size->groups[MODEL_GROUP_DRAFT_HEADS].tensors > 0;
    for (int32_t l = 0; l < layer_count(config, has_draft); l++) {
        out->weight_bytes += round_up(expert_bytes(config, l));
    }
}

/* Gives the tensor its place, and its bytes when there is one: the walk has nulled some slots, so
 * measuring puts the address in the file back. */
static result place_tensor(void *context, const struct tensor_role *role, struct error *error) {
    (void)error;
    struct transfer *transfer = context;
    const struct safetensors *files = transfer->model->files;
    size_t at = safetensors_find(files, view_of_text(role->name));
    if (role->slot == NULL || at == SIZE_MAX) {
        return OK;
    }
    const struct tensor_entry *entry = safetensors_at(files, at);
    const void *data = safetensors_data(files, entry);
    bool is_table = role->group == MODEL_GROUP_ENGRAM_TABLES;
    struct piece *piece = is_table ? &transfer->tables : &transfer->weights;
    uint8_t *to = take(piece, entry->bytes);
    if (to != NULL) {
        struct backend *backend = transfer->model->backend;
        backend->upload(backend, to, data, (size_t)entry->bytes);
        data = to;
    }
    memcpy(role->slot, &data, sizeof data);
    return OK;
}

/* Of a layer's experts the ops read a list in their own memory. */
static void place_experts(struct transfer *transfer) {
    struct model *model = transfer->model;
    for (int32_t l = 0; l < layer_count(&model->config, model->has_draft); l++) {
        size_t bytes = expert_bytes(&model->config, l);
        uint8_t *to = take(&transfer->weights, bytes);
        if (to != NULL) {
            struct layer_weights *layer = &model->layers[l];
            model->backend->upload(model->backend, to, layer->experts, bytes);
            layer->routed = (const struct expert_weights *)(const void *)to;
        }
    }
}

static result place_all(struct transfer *transfer, struct error *error) {
    transfer->weights.used = 0;
    transfer->tables.used = 0;
    struct model *model = transfer->model;
    TRY(weights_walk(&model->config, model, place_tensor, transfer, error));
    place_experts(transfer);
    return OK;
}

result model_to_device(
    struct model *model, struct backend *backend, bool tables_on_host, struct error *error
) {
    ASSERT(model->files != NULL && model->backend == NULL);
    struct transfer transfer = {.model = model};
    TRY(place_all(&transfer, error));
    model->backend = backend;
    TRY_NOTE(
        error,
        backend->allocate(backend, (size_t)transfer.weights.used, &model->weights_memory, error),
        "weights"
    );
    transfer.weights.base = model->weights_memory;
    if (transfer.tables.used > 0) {
        TRY_NOTE(
            error,
            (tables_on_host ? backend->allocate_host : backend->allocate
            )(backend, (size_t)transfer.tables.used, &model->tables_memory, error),
            "Engram tables"
        );
        transfer.tables.base = model->tables_memory;
    }
    TRY(place_all(&transfer, error));
    TRY_NOTE(error, backend->synchronize(backend, error), "weights");
    safetensors_close(model->files);
    model->files = NULL;
    return OK;
}
