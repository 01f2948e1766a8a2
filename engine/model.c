/* A model directory: configuration, headers checked against it, mapped weights by role. */
#include "model.h"

#include "base/sha256.h"
#include "weights.h"

#include <inttypes.h>

#define CONFIG_BYTES_MAX    ((size_t)1 << 20)
#define TOKENIZER_BYTES_MAX ((size_t)64 << 20)
#define PATH_BYTES_MAX      4096
#define SCALE_MAX           246 /* E8M0 of FP8 weights: 2^119 */

static const char *const group_names[MODEL_GROUP_COUNT] = {
    [MODEL_GROUP_EMBED] = "embed",
    [MODEL_GROUP_HEAD] = "head",
    [MODEL_GROUP_NORM] = "norm",
    [MODEL_GROUP_ATTENTION] = "attention",
    [MODEL_GROUP_LAYER_NORMS] = "layer_norms",
    [MODEL_GROUP_ROUTER] = "router",
    [MODEL_GROUP_ROUTED_EXPERTS] = "routed_experts",
    [MODEL_GROUP_SHARED_EXPERTS] = "shared_experts",
    [MODEL_GROUP_MIXING] = "mixing",
    [MODEL_GROUP_COMPRESSORS] = "compressors",
    [MODEL_GROUP_INDEXERS] = "indexers",
    [MODEL_GROUP_ENGRAM_TABLES] = "engram_tables",
    [MODEL_GROUP_ENGRAM_OTHER] = "engram_other",
    [MODEL_GROUP_DRAFT_ATTENTION] = "draft_attention",
    [MODEL_GROUP_DRAFT_NORMS] = "draft_norms",
    [MODEL_GROUP_DRAFT_ROUTER] = "draft_router",
    [MODEL_GROUP_DRAFT_ROUTED_EXPERTS] = "draft_routed_experts",
    [MODEL_GROUP_DRAFT_SHARED_EXPERTS] = "draft_shared_experts",
    [MODEL_GROUP_DRAFT_MIXING] = "draft_mixing",
    [MODEL_GROUP_DRAFT_INPUT] = "draft_input",
    [MODEL_GROUP_DRAFT_HEADS] = "draft_heads",
    [MODEL_GROUP_VISION] = "vision",
};

static const char *const storage_names[MODEL_STORAGE_COUNT] = {
    [MODEL_STORAGE_FP8] = "fp8",
    [MODEL_STORAGE_FP4] = "fp4",
    [MODEL_STORAGE_ENGRAM_ROWS] = "engram_rows",
    [MODEL_STORAGE_BF16] = "bf16",
    [MODEL_STORAGE_F32] = "f32",
};

const char *model_group_name(enum model_group group) {
    ASSERT(group < MODEL_GROUP_COUNT);
    return group_names[group];
}

const char *model_storage_name(enum model_storage storage) {
    ASSERT(storage < MODEL_STORAGE_COUNT);
    return storage_names[storage];
}

/* ---- the checkpoint against the list of roles ---- */

/* Tensors of a part that may be left out as a whole. */
struct part_presence {
    size_t present;
    char missing[SAFETENSORS_NAME_MAX]; /* the first one; "" when none */
};

struct check {
    const struct safetensors *files;
    bool mapped;
    bool *claimed; /* [tensors] */
    struct model_size size;
    struct part_presence draft, vision;
};

static result
check_missing(struct check *check, const struct tensor_role *role, struct error *error) {
    if (role->need == TENSOR_OPTIONAL) {
        return OK;
    }
    if (role->need == TENSOR_REQUIRED) {
        char shape[TENSOR_SHAPE_TEXT];
        tensor_shape_text(role->shape, role->rank, shape);
        FAIL(
            error,
            CORRUPT,
            "tensor '%s' (%s %s) is missing",
            role->name,
            tensor_dtype_name(role->dtype),
            shape
        );
    }
    struct part_presence *part = role->need == TENSOR_DRAFT ? &check->draft : &check->vision;
    if (part->missing[0] == '\0') {
        size_t length = strlen(role->name);
        ASSERT(length < sizeof part->missing);
        memcpy(part->missing, role->name, length + 1);
    }
    return OK;
}

static result
check_shape(const struct tensor_role *role, const struct tensor_entry *entry, struct error *error) {
    bool same = entry->rank == role->rank && entry->dtype == role->dtype;
    for (uint32_t i = 0; same && i < role->rank; i++) {
        same = entry->shape[i] == role->shape[i];
    }
    if (!same) {
        char found[TENSOR_SHAPE_TEXT];
        char wanted[TENSOR_SHAPE_TEXT];
        tensor_shape_text(entry->shape, entry->rank, found);
        tensor_shape_text(role->shape, role->rank, wanted);
        FAIL(
            error,
            CORRUPT,
            "tensor '%s' is %s %s, the configuration wants %s %s",
            role->name,
            tensor_dtype_name(entry->dtype),
            found,
            tensor_dtype_name(role->dtype),
            wanted
        );
    }
    return OK;
}

/* FP8 weights are read with 2^8 more than their scale, which must stay finite (kernels/backend.h).
 * These scales are a thousandth of their weights: 7 MB of the release. */
static result check_scales(
    const struct tensor_role *role, const uint8_t *scales, uint64_t bytes, struct error *error
) {
    for (uint64_t i = 0; i < bytes; i++) {
        if (scales[i] > SCALE_MAX) {
            FAIL(
                error,
                CORRUPT,
                "tensor '%s' has scale byte %d at %" PRIu64 ", the largest allowed is %d",
                role->name,
                scales[i],
                i,
                SCALE_MAX
            );
        }
    }
    return OK;
}

static result check_role(void *context, const struct tensor_role *role, struct error *error) {
    struct check *check = context;
    size_t at = safetensors_find(check->files, view_of_text(role->name));
    if (at == SIZE_MAX) {
        return check_missing(check, role, error);
    }
    const struct tensor_entry *entry = safetensors_at(check->files, at);
    TRY(check_shape(role, entry, error));
    ASSERT(!check->claimed[at]); // the list names no tensor twice
    check->claimed[at] = true;
    struct model_bytes *sums[3] = {
        &check->size.groups[role->group], &check->size.storage[role->storage], &check->size.total};
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        sums[i]->tensors += 1;
        sums[i]->bytes += entry->bytes;
    }
    if (role->need == TENSOR_DRAFT) {
        check->draft.present += 1;
    }
    if (role->need == TENSOR_VISION) {
        check->vision.present += 1;
    }
    if (role->slot != NULL && check->mapped) {
        const void *data = safetensors_data(check->files, entry);
        memcpy(role->slot, &data, sizeof data);
        if (role->dtype == TENSOR_F8_E8M0 && role->storage == MODEL_STORAGE_FP8) {
            TRY(check_scales(role, data, entry->bytes, error));
        }
    }
    return OK;
}

static result check_part(const struct part_presence *part, const char *what, struct error *error) {
    if (part->present > 0 && part->missing[0] != '\0') {
        FAIL(
            error,
            CORRUPT,
            "tensor '%s' is missing; %zu others of the %s are there",
            part->missing,
            part->present,
            what
        );
    }
    return OK;
}

static result check_surplus(const struct check *check, struct error *error) {
    size_t surplus = 0;
    size_t first = 0;
    for (size_t i = safetensors_count(check->files); i-- > 0;) {
        if (!check->claimed[i]) {
            surplus += 1;
            first = i;
        }
    }
    if (surplus > 0) {
        const struct tensor_entry *entry = safetensors_at(check->files, first);
        FAIL(
            error,
            CORRUPT,
            "tensor '%.*s' in %s has no role in this configuration (%zu such tensors)",
            VIEW_ARGUMENTS(entry->name),
            safetensors_shard_name(check->files, entry->shard),
            surplus
        );
    }
    return OK;
}

/* Checks every tensor; fills the slots of `model` when it is not null. */
static result check_files(
    const struct safetensors *files,
    const struct model_config *config,
    struct model *model,
    struct model_size *size,
    struct error *error
) {
    CLEANUP(free_cleanup) bool *claimed = calloc(safetensors_count(files) + 1, sizeof *claimed);
    if (claimed == NULL) {
        FAIL(error, MEMORY, "no memory to check %zu tensors", safetensors_count(files));
    }
    struct check check;
    memset(&check, 0, sizeof check);
    check.files = files;
    check.mapped = model != NULL;
    check.claimed = claimed;
    TRY(weights_walk(config, model, check_role, &check, error));
    TRY(check_part(&check.draft, "draft stages", error));
    TRY(check_part(&check.vision, "vision tower", error));
    TRY(check_surplus(&check, error));
    if (model != NULL) {
        model->has_draft = check.draft.present > 0;
    }
    check.size.shards = safetensors_shard_count(files);
    check.size.file_bytes = safetensors_file_bytes(files);
    *size = check.size;
    return OK;
}

/* ---- a directory ---- */

static result read_file(
    const char *directory,
    const char *name,
    size_t bytes_max,
    struct buffer *out,
    struct error *error
) {
    char path[PATH_BYTES_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the model's path is too long");
    }
    buffer_init(out, bytes_max);
    return file_read(path, out, error);
}

static result read_config(
    const char *directory, struct buffer *text, struct model_config *config, struct error *error
) {
    TRY(read_file(directory, "config.json", CONFIG_BYTES_MAX, text, error));
    return model_config_parse(buffer_view(text), config, error);
}

static result measure(
    const char *directory, struct model_config *config, struct model_size *size, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    TRY(read_config(directory, &text, config, error));
    CLEANUP(safetensors_cleanup) struct safetensors *files = NULL;
    TRY(safetensors_open(directory, false, &files, error));
    return check_files(files, config, NULL, size, error);
}

result model_measure(
    const char *directory, struct model_config *config, struct model_size *size, struct error *error
) {
    struct model_config found;
    result measured = limit_as_corrupt(measure(directory, &found, size, error), error);
    TRY_NOTE(error, measured, "model %s", directory);
    *config = found;
    return OK;
}

static void digest_text(struct sha256 *sha, struct view text) {
    unsigned char length[8];
    for (unsigned i = 0; i < 8; i++) {
        length[i] = (unsigned char)((uint64_t)text.length >> (8 * i));
    }
    sha256_update(sha, view_of(length, sizeof length));
    sha256_update(sha, text);
}

static result
make_digest(const char *directory, struct view config, struct model *model, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer tokenizer = {NULL, 0, 0, 0};
    result read = read_file(directory, "tokenizer.json", TOKENIZER_BYTES_MAX, &tokenizer, error);
    if (is_failed(read) && read.code != RESULT_NOT_FOUND) {
        return read; // one that is not there is the tokenizer's to complain about
    }
    struct sha256 sha;
    sha256_init(&sha);
    digest_text(&sha, config);
    digest_text(&sha, buffer_view(&tokenizer));
    digest_text(&sha, view_of_text(safetensors_digest(model->files)));
    sha256_finish_hex(&sha, model->digest);
    return OK;
}

static result allocate_roles(struct model *model, struct error *error) {
    const struct model_config *c = &model->config;
    size_t backbone = (size_t)c->layers;
    size_t layers = backbone + (size_t)c->draft_layers;
    model->layers = calloc(layers, sizeof *model->layers);
    model->engram = calloc((size_t)c->engram_count + 1, sizeof *model->engram);
    if (model->layers == NULL || model->engram == NULL) {
        FAIL(error, MEMORY, "no memory for %zu layers", layers);
    }
    for (size_t l = 0; l < layers; l++) {
        int32_t experts = l < backbone ? c->experts : c->draft_experts;
        struct expert_weights *routed = calloc((size_t)experts, sizeof *routed);
        if (routed == NULL) {
            FAIL(error, MEMORY, "no memory for %d experts", experts);
        }
        model->layers[l].experts = routed;
        model->layers[l].routed = routed;
    }
    return OK;
}

static void model_cleanup(struct model **model) {
    model_close(*model);
}

static result open_model(const char *directory, struct model **out, struct error *error) {
    CLEANUP(model_cleanup) struct model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        FAIL(error, MEMORY, "no memory for a model");
    }
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    TRY(read_config(directory, &text, &model->config, error));
    TRY(safetensors_open(directory, true, &model->files, error));
    TRY(allocate_roles(model, error));
    struct model_size size;
    TRY(check_files(model->files, &model->config, model, &size, error));
    TRY(make_digest(directory, buffer_view(&text), model, error));
    *out = TAKE(model);
    return OK;
}

result model_open(const char *directory, struct model **out, struct error *error) {
    result opened = limit_as_corrupt(open_model(directory, out, error), error);
    TRY_NOTE(error, opened, "model %s", directory);
    return OK;
}

void model_close(struct model *model) {
    if (model == NULL) {
        return;
    }
    int32_t layers = model->config.layers + model->config.draft_layers;
    for (int32_t l = 0; model->layers != NULL && l < layers; l++) {
        free(model->layers[l].experts);
    }
    free(model->layers);
    free(model->engram);
    if (model->backend != NULL) {
        model->backend->release(model->backend, model->tables_memory);
        model->backend->release(model->backend, model->weights_memory);
    }
    safetensors_close(model->files);
    free(model);
}
