/* Names, dtypes and shapes of the checkpoint's tensors (spec model.md 2.2 to 2.6), once.
 *
 * Dimensions come from a checked configuration, so products of two of them fit int32_t and of
 * shapes uint64_t (limits in model_config.c).
 */
#include "weights.h"

#include <stdarg.h>

#define GROUP 32 /* scale tile and group (spec 2.2) */

struct walk {
    const struct model_config *config;
    result (*visit)(void *context, const struct tensor_role *role, struct error *error);
    void *context;
    struct error *error;
    result status; /* the first failure sticks */
    char prefix[SAFETENSORS_NAME_MAX];
    enum model_group group;
    enum tensor_need need;
};

struct walk_shape {
    enum tensor_dtype dtype;
    enum model_storage storage;
    uint32_t rank;
    uint64_t rows, columns;
};

/* Visits the tensor prefix + name + suffix. */
static void
emit(struct walk *w, struct walk_shape shape, void *slot, const char *name, const char *suffix) {
    if (is_failed(w->status)) {
        return;
    }
    char whole[SAFETENSORS_NAME_MAX];
    int length = snprintf(whole, sizeof whole, "%s%s%s", w->prefix, name, suffix);
    ASSERT(length > 0 && (size_t)length < sizeof whole);
    struct tensor_role role = {
        .name = whole,
        .dtype = shape.dtype,
        .rank = shape.rank,
        .shape = {shape.rows, shape.columns},
        .group = w->group,
        .storage = shape.storage,
        .need = w->need,
        .slot = slot,
    };
    w->status = w->visit(w->context, &role, w->error);
}

PRINTF_LIKE(2, 3) static void set_prefix(struct walk *w, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(w->prefix, sizeof w->prefix, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0 && (size_t)length < sizeof w->prefix);
}

static uint64_t tiles(int32_t count) {
    return ((uint64_t)count + GROUP - 1) / GROUP;
}

static void
fp8_matrix(struct walk *w, struct weight *weight, int32_t out, int32_t in, const char *name) {
    struct weight unused;
    struct weight *target = weight == NULL ? &unused : weight;
    *target = (struct weight){DTYPE_FP8, out, in, NULL, NULL};
    struct walk_shape codes = {TENSOR_F8_E4M3, MODEL_STORAGE_FP8, 2, (uint64_t)out, (uint64_t)in};
    struct walk_shape scales = {TENSOR_F8_E8M0, MODEL_STORAGE_FP8, 2, tiles(out), tiles(in)};
    emit(w, codes, weight == NULL ? NULL : &target->data, name, ".weight");
    emit(w, scales, weight == NULL ? NULL : &target->scale, name, ".scale");
}

static void
fp4_matrix(struct walk *w, struct weight *weight, int32_t out, int32_t in, const char *name) {
    struct weight unused;
    struct weight *target = weight == NULL ? &unused : weight;
    *target = (struct weight){DTYPE_FP4, out, in, NULL, NULL};
    struct walk_shape codes = {TENSOR_I8, MODEL_STORAGE_FP4, 2, (uint64_t)out, (uint64_t)in / 2};
    struct walk_shape scales = {
        TENSOR_F8_E8M0, MODEL_STORAGE_FP4, 2, (uint64_t)out, (uint64_t)in / GROUP};
    emit(w, codes, weight == NULL ? NULL : &target->data, name, ".weight");
    emit(w, scales, weight == NULL ? NULL : &target->scale, name, ".scale");
}

static void
bf16_matrix(struct walk *w, struct weight *weight, int32_t out, int32_t in, const char *name) {
    struct walk_shape shape = {TENSOR_BF16, MODEL_STORAGE_BF16, 2, (uint64_t)out, (uint64_t)in};
    if (weight != NULL) {
        *weight = (struct weight){DTYPE_BF16, out, in, NULL, NULL};
    }
    emit(w, shape, weight == NULL ? NULL : &weight->data, name, ".weight");
}

/* `name` is whole: some vectors end in .weight, some do not. columns 0: a vector. */
static void
bf16_plain(struct walk *w, const uint16_t **slot, int32_t rows, int32_t columns, const char *name) {
    struct walk_shape shape = {
        TENSOR_BF16, MODEL_STORAGE_BF16, columns == 0 ? 1 : 2, (uint64_t)rows, (uint64_t)columns};
    emit(w, shape, slot, name, "");
}

static void
f32_plain(struct walk *w, const float **slot, int32_t rows, int32_t columns, const char *name) {
    struct walk_shape shape = {
        TENSOR_F32, MODEL_STORAGE_F32, columns == 0 ? 1 : 2, (uint64_t)rows, (uint64_t)columns};
    emit(w, shape, slot, name, "");
}

/* ---- one block: a layer of the backbone or a draft stage (spec 2.4) ---- */

/* Where a block's groups count: the draft stages have groups of their own. */
struct block_groups {
    enum model_group attention, norms, router, routed, shared, mixing;
};

static const struct block_groups backbone_groups = {
    MODEL_GROUP_ATTENTION,
    MODEL_GROUP_LAYER_NORMS,
    MODEL_GROUP_ROUTER,
    MODEL_GROUP_ROUTED_EXPERTS,
    MODEL_GROUP_SHARED_EXPERTS,
    MODEL_GROUP_MIXING};

static const struct block_groups draft_groups = {
    MODEL_GROUP_DRAFT_ATTENTION,
    MODEL_GROUP_DRAFT_NORMS,
    MODEL_GROUP_DRAFT_ROUTER,
    MODEL_GROUP_DRAFT_ROUTED_EXPERTS,
    MODEL_GROUP_DRAFT_SHARED_EXPERTS,
    MODEL_GROUP_DRAFT_MIXING};

static void walk_attention(struct walk *w, struct attention_weights *a) {
    const struct model_config *c = w->config;
    f32_plain(w, a == NULL ? NULL : &a->sink, c->heads, 0, "attn.attn_sink");
    bf16_plain(w, a == NULL ? NULL : &a->q_norm, c->q_lora, 0, "attn.q_norm.weight");
    bf16_plain(w, a == NULL ? NULL : &a->kv_norm, c->head_dim, 0, "attn.kv_norm.weight");
    fp8_matrix(w, a == NULL ? NULL : &a->wq_a, c->q_lora, c->hidden, "attn.wq_a");
    fp8_matrix(w, a == NULL ? NULL : &a->wq_b, c->heads * c->head_dim, c->q_lora, "attn.wq_b");
    fp8_matrix(w, a == NULL ? NULL : &a->wkv, c->head_dim, c->hidden, "attn.wkv");
    int32_t grouped = c->o_groups * c->o_lora;
    int32_t group_in = c->heads / c->o_groups * c->head_dim;
    fp8_matrix(w, a == NULL ? NULL : &a->wo_a, grouped, group_in, "attn.wo_a");
    fp8_matrix(w, a == NULL ? NULL : &a->wo_b, c->hidden, grouped, "attn.wo_b");
}

static void walk_experts(
    struct walk *w, struct layer_weights *layer, int32_t experts, const struct block_groups *groups
) {
    const struct model_config *c = w->config;
    w->group = groups->routed;
    for (int32_t e = 0; e < experts && is_ok(w->status); e++) {
        struct expert_weights *x = layer == NULL ? NULL : &layer->experts[e];
        struct weight *matrices[3] = {
            x == NULL ? NULL : &x->w1, x == NULL ? NULL : &x->w2, x == NULL ? NULL : &x->w3};
        for (int i = 0; i < 3; i++) {
            char name[64];
            int length = snprintf(name, sizeof name, "ffn.experts.%d.w%d", e, i + 1);
            ASSERT(length > 0 && (size_t)length < sizeof name);
            bool down = i == 1;
            int32_t out = down ? c->hidden : c->expert_hidden;
            int32_t in = down ? c->expert_hidden : c->hidden;
            fp4_matrix(w, matrices[i], out, in, name);
        }
    }
    w->group = groups->shared;
    struct expert_weights *s = layer == NULL ? NULL : &layer->shared;
    fp8_matrix(w, s == NULL ? NULL : &s->w1, c->expert_hidden, c->hidden, "ffn.shared_experts.w1");
    fp8_matrix(w, s == NULL ? NULL : &s->w2, c->hidden, c->expert_hidden, "ffn.shared_experts.w2");
    fp8_matrix(w, s == NULL ? NULL : &s->w3, c->expert_hidden, c->hidden, "ffn.shared_experts.w3");
}

static void walk_mixing(struct walk *w, struct mix_weights *mix, const char *site) {
    const struct model_config *c = w->config;
    int32_t outputs = (2 + c->streams) * c->streams; // pre, post, comb (spec 3.3)
    struct {
        const char *part;
        const float **slot;
        int32_t rows, columns;
    } parts[] = {
        {"fn", mix == NULL ? NULL : &mix->fn, outputs, c->streams * c->hidden},
        {"base", mix == NULL ? NULL : &mix->base, outputs, 0},
        {"scale", mix == NULL ? NULL : &mix->scale, 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char name[64];
        int length = snprintf(name, sizeof name, "hc_%s_%s", site, parts[i].part);
        ASSERT(length > 0 && (size_t)length < sizeof name);
        f32_plain(w, parts[i].slot, parts[i].rows, parts[i].columns, name);
    }
}

static void walk_block(
    struct walk *w, struct layer_weights *layer, int32_t experts, const struct block_groups *groups
) {
    const struct model_config *c = w->config;
    w->group = groups->norms;
    bf16_plain(w, layer == NULL ? NULL : &layer->attn_norm, c->hidden, 0, "attn_norm.weight");
    bf16_plain(w, layer == NULL ? NULL : &layer->ffn_norm, c->hidden, 0, "ffn_norm.weight");
    w->group = groups->attention;
    walk_attention(w, layer == NULL ? NULL : &layer->attention);
    w->group = groups->router;
    bf16_matrix(w, layer == NULL ? NULL : &layer->router, experts, c->hidden, "ffn.gate");
    f32_plain(w, layer == NULL ? NULL : &layer->router_bias, experts, 0, "ffn.gate.bias");
    enum tensor_need need = w->need;
    w->need = need == TENSOR_REQUIRED ? TENSOR_OPTIONAL : need;
    f32_plain(w, NULL, experts, 0, "ffn.gate.bias_vl"); // image tokens only: not used
    w->need = need;
    walk_experts(w, layer, experts, groups);
    w->group = groups->mixing;
    walk_mixing(w, layer == NULL ? NULL : &layer->attn_mix, "attn");
    walk_mixing(w, layer == NULL ? NULL : &layer->ffn_mix, "ffn");
}

/* ---- tensors that depend on the layer's role (spec 2.5) ---- */

static void walk_selection(struct walk *w, int32_t l, struct attention_weights *a) {
    const struct model_config *c = w->config;
    const struct layer_plan *plan = &c->plan[l];
    if (plan->mode == LAYER_FULL) {
        w->group = MODEL_GROUP_COMPRESSORS;
        struct weight *wkv = a == NULL ? NULL : &a->compress_wkv;
        bf16_matrix(w, wkv, c->head_dim, c->hidden, "attn.compressor.wkv");
        if (plan->ratio == 2) {
            struct weight *gate = a == NULL ? NULL : &a->compress_wgate;
            bf16_matrix(w, gate, c->head_dim, c->hidden, "attn.compressor.wgate");
        }
        const uint16_t **norm = a == NULL ? NULL : &a->compress_norm;
        bf16_plain(w, norm, c->head_dim, 0, "attn.compressor.norm.weight");
        w->group = MODEL_GROUP_INDEXERS;
        struct weight *wk = a == NULL ? NULL : &a->index_wk;
        bf16_matrix(w, wk, c->index_dim, c->head_dim, "attn.indexer.wk");
        const uint16_t **k_norm = a == NULL ? NULL : &a->index_k_norm;
        bf16_plain(w, k_norm, c->index_dim, 0, "attn.indexer.k_norm.weight");
    }
    if (plan->mode == LAYER_FULL || plan->mode == LAYER_REINDEX) {
        w->group = MODEL_GROUP_INDEXERS;
        struct weight *wq_b = a == NULL ? NULL : &a->index_wq_b;
        fp8_matrix(w, wq_b, c->index_heads * c->index_dim, c->q_lora, "attn.indexer.wq_b");
        struct weight *weights = a == NULL ? NULL : &a->index_weights;
        bf16_matrix(w, weights, c->index_heads, c->hidden, "attn.indexer.weights_proj");
    }
}

static void walk_engram(struct walk *w, int32_t slot, struct engram_weights *engram) {
    const struct model_config *c = w->config;
    uint64_t rows = (uint64_t)c->engram_rows[slot];
    uint64_t dim = (uint64_t)c->engram_dim;
    struct walk_shape codes = {TENSOR_F8_E4M3, MODEL_STORAGE_ENGRAM_ROWS, 2, rows, dim};
    struct walk_shape scales = {TENSOR_F8_E8M0, MODEL_STORAGE_ENGRAM_ROWS, 2, rows, dim / GROUP};
    w->group = MODEL_GROUP_ENGRAM_TABLES;
    emit(w, codes, engram == NULL ? NULL : &engram->table, "engram.embed", ".weight");
    emit(w, scales, engram == NULL ? NULL : &engram->table_scales, "engram.embed", ".scale");
    w->group = MODEL_GROUP_ENGRAM_OTHER;
    int32_t columns = (c->engram_ngram_max - 1) * c->engram_heads * c->engram_dim;
    int32_t outputs = (c->streams + 1) * c->hidden;
    fp8_matrix(w, engram == NULL ? NULL : &engram->wkv, outputs, columns, "engram.wkv");
    const uint16_t **query = engram == NULL ? NULL : &engram->query_weight;
    const uint16_t **key = engram == NULL ? NULL : &engram->key_weight;
    bf16_plain(w, query, c->streams, c->hidden, "engram.q_weight");
    bf16_plain(w, key, c->streams, c->hidden, "engram.k_weight");
}

/* ---- draft stages ---- */

static void walk_draft_input(struct walk *w, struct draft_weights *d) {
    const struct model_config *c = w->config;
    struct weight *proj = d == NULL ? NULL : &d->main_proj;
    w->group = MODEL_GROUP_DRAFT_INPUT;
    fp8_matrix(w, proj, c->hidden, c->draft_target_count * c->hidden, "main_proj");
    bf16_plain(w, d == NULL ? NULL : &d->main_norm, c->hidden, 0, "main_norm.weight");
}

static void walk_draft_heads(struct walk *w, struct draft_weights *d) {
    const struct model_config *c = w->config;
    int32_t rank = c->draft_markov_rank;
    w->group = MODEL_GROUP_DRAFT_HEADS;
    bf16_plain(w, d == NULL ? NULL : &d->norm, c->hidden, 0, "norm.weight");
    struct weight *embed = d == NULL ? NULL : &d->markov_embed;
    bf16_matrix(w, embed, c->vocabulary, rank, "markov_head.embed");
    struct weight *head = d == NULL ? NULL : &d->markov_head;
    bf16_matrix(w, head, c->vocabulary, rank, "markov_head.head");
    struct weight *confidence = d == NULL ? NULL : &d->confidence;
    bf16_matrix(w, confidence, 1, c->hidden + rank, "confidence_head.proj");
}

static void walk_draft(struct walk *w, struct model *model) {
    const struct model_config *c = w->config;
    struct draft_weights *draft = model == NULL ? NULL : &model->draft;
    w->need = TENSOR_DRAFT;
    for (int32_t stage = 0; stage < c->draft_layers && is_ok(w->status); stage++) {
        struct layer_weights *block = model == NULL ? NULL : &model->layers[c->layers + stage];
        set_prefix(w, "mtp.%d.", stage);
        walk_block(w, block, c->draft_experts, &draft_groups);
        if (stage == 0) {
            walk_draft_input(w, draft);
        }
        if (stage == c->draft_layers - 1) {
            walk_draft_heads(w, draft);
        }
    }
}

/* ---- vision tower: checked, not used yet ---- */

static void walk_vision(struct walk *w) {
    const struct model_config *c = w->config;
    int32_t width = c->vision_hidden;
    w->need = TENSOR_VISION;
    w->group = MODEL_GROUP_VISION;
    set_prefix(w, "vision.");
    bf16_matrix(w, NULL, width, 3 * c->vision_patch * c->vision_patch, "patch_embed.proj");
    bf16_plain(w, NULL, width, 0, "patch_embed.proj.bias");
    bf16_plain(w, NULL, width, 0, "norm.weight");
    for (int32_t block = 0; block < c->vision_layers && is_ok(w->status); block++) {
        set_prefix(w, "vision.blocks.%d.", block);
        bf16_plain(w, NULL, width, 0, "norm1.weight");
        bf16_plain(w, NULL, width, 0, "norm2.weight");
        bf16_matrix(w, NULL, 3 * width, width, "attn.wqkv");
        bf16_plain(w, NULL, 3 * width, 0, "attn.wqkv.bias");
        bf16_matrix(w, NULL, width, width, "attn.wo");
        bf16_plain(w, NULL, width, 0, "attn.wo.bias");
        bf16_matrix(w, NULL, 2 * c->vision_intermediate, width, "mlp.w1");
        bf16_matrix(w, NULL, width, c->vision_intermediate, "mlp.w2");
    }
    set_prefix(w, "%s", "");
    int32_t unfolded = width * c->vision_downsample * c->vision_downsample;
    bf16_matrix(w, NULL, c->hidden, unfolded, "aligner.w1");
    bf16_plain(w, NULL, c->hidden, 0, "aligner.w1.bias");
    bf16_matrix(w, NULL, c->hidden, c->hidden, "aligner.w2");
    bf16_plain(w, NULL, c->hidden, 0, "aligner.w2.bias");
    bf16_plain(w, NULL, c->hidden, 0, "image_start");
    bf16_plain(w, NULL, c->hidden, 0, "image_end");
    bf16_plain(w, NULL, c->hidden, 0, "image_newline");
}

static void walk_globals(struct walk *w, struct model *model) {
    const struct model_config *c = w->config;
    set_prefix(w, "%s", "");
    w->group = MODEL_GROUP_EMBED;
    bf16_matrix(w, model == NULL ? NULL : &model->embed, c->vocabulary, c->hidden, "embed");
    w->group = MODEL_GROUP_HEAD;
    bf16_matrix(w, model == NULL ? NULL : &model->head, c->vocabulary, c->hidden, "head");
    w->group = MODEL_GROUP_NORM;
    bf16_plain(w, model == NULL ? NULL : &model->norm, c->hidden, 0, "norm.weight");
}

result weights_walk(
    const struct model_config *config,
    struct model *model,
    result (*visit)(void *context, const struct tensor_role *role, struct error *error),
    void *context,
    struct error *error
) {
    struct walk walk = {
        .config = config,
        .visit = visit,
        .context = context,
        .error = error,
        .status = OK,
        .need = TENSOR_REQUIRED,
    };
    walk_globals(&walk, model);
    for (int32_t l = 0; l < config->layers && is_ok(walk.status); l++) {
        struct layer_weights *layer = model == NULL ? NULL : &model->layers[l];
        set_prefix(&walk, "layers.%d.", l);
        walk_block(&walk, layer, config->experts, &backbone_groups);
        walk_selection(&walk, l, layer == NULL ? NULL : &layer->attention);
        int32_t slot = config->plan[l].engram;
        if (slot >= 0) {
            walk_engram(&walk, slot, model == NULL ? NULL : &model->engram[slot]);
        }
    }
    walk_draft(&walk, model);
    if (config->vision_layers > 0) {
        walk_vision(&walk);
    }
    return walk.status;
}
