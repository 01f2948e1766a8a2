/* A model: configuration, layer plan and weights by role, from a directory in the official layout.
 *
 * Everything is derived from config.json; no dimension of a particular model is compiled in.
 * Weights stay as stored in memory-mapped safetensors files. Thread: load on one thread; read-only
 * afterwards, any thread. Sources: spec model.md sections 1 and 2.
 */
#ifndef HEARTH_ENGINE_MODEL_H
#define HEARTH_ENGINE_MODEL_H

#include "base/bytes.h"
#include "kernels/backend.h"

/* Of the static arrays below; draft stages count. The release has 40 + 3. */
#define MODEL_LAYERS_MAX 128

struct engram_options;

enum layer_mode {
    LAYER_WINDOW,  /* ratio 0: window attention only */
    LAYER_FULL,    /* owns KV and index keys, selects for itself */
    LAYER_REINDEX, /* own selection inside the candidate pool, keys of another layer */
    LAYER_REUSE    /* selection and keys of earlier layers */
};

struct layer_plan {
    enum layer_mode mode;
    int32_t ratio;        /* 0, 1, 2 */
    int32_t source;       /* index into kv_sources[] it reads, -1 for none */
    int32_t select_layer; /* layer whose selection it uses (itself for Full and Reindex), -1 */
    int32_t engram;       /* index into engram_layers[], -1 for none */
    bool publishes_pool;  /* the candidate source layer */
    bool within_pool;     /* selects inside the pool: 0 <= candidate layer < layer */
    bool decoder;         /* layer >= encoder_layers */
    bool compress_rope;   /* ratio > 0: rope set with YaRN */
};

struct model_config {
    int32_t vocabulary, hidden, layers, heads, head_dim, rope_dim, q_lora, o_groups, o_lora;
    int32_t
        encoder_layers; /* E: layers below the last KV source, which is the first decoder layer */
    int32_t experts, experts_chosen, expert_hidden;
    int32_t window;
    int32_t index_heads, index_dim, index_topk;
    int32_t candidate_layer, candidate_blocks, candidate_block_entries; /* layer -1: no pool */
    int32_t streams, sinkhorn_iterations;                               /* hc_mult */
    double hc_eps, norm_eps, swiglu_limit, routed_scale;
    double rope_theta, compress_rope_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t yarn_original_positions; /* 0: no YaRN */
    int64_t positions_max;
    int32_t bos_id, eos_id, pad_id, image_id;
    int32_t kv_source_count;
    int32_t kv_source_layers[MODEL_LAYERS_MAX];
    int32_t engram_count;
    int32_t engram_layers[MODEL_LAYERS_MAX];
    int64_t engram_rows[MODEL_LAYERS_MAX];
    int32_t engram_ngram_max, engram_heads, engram_dim, engram_pad_id, engram_compressed_vocabulary;
    int64_t engram_vocabulary; /* start of the prime search */
    /* Draft stages (spec 3.14) are the blocks [layers, layers + draft_layers) of plan[]. */
    int32_t draft_layers, draft_block, draft_experts, draft_experts_chosen, draft_markov_rank;
    int32_t draft_noise_id, draft_target_count;
    int32_t draft_targets[MODEL_LAYERS_MAX]; /* layers whose input the draft stages are fed with */
    /* vision tower: its weights are checked when present, not used yet */
    int32_t vision_layers, vision_hidden, vision_heads, vision_intermediate, vision_patch,
        vision_downsample;
    struct layer_plan plan[MODEL_LAYERS_MAX];
};

/* need(l) = 1 + (layers - 1 - l)(window - 1): trailing rows a decoder layer must run so that the
 * last row is exact (spec 3.13). Encoder layers: INT32_MAX, all rows. */
int32_t model_rows_needed(const struct model_config *config, int32_t layer);
/* The same formula for any layer: how many trailing rows of it the last row depends on through
 * windows. Encoder layers run more than these where they also write entries. */
int32_t model_rows_reached(const struct model_config *config, int32_t layer);
/* A = max(0, min(hit - E (W - 1), prompt_end - L (W - 1) - 1)): the first row to run again so that
 * entries from `hit` on, all windows and the last logits of the prompt are exact, when nothing but
 * the entries below `hit` is left (architecture section 4, "Exact rebuild"). */
int32_t model_rebuild_start(const struct model_config *config, int32_t hit, int32_t prompt_end);

struct attention_weights {
    struct weight wq_a, wq_b, wkv, wo_a, wo_b;
    const uint16_t *q_norm, *kv_norm; /* bf16 */
    const float *sink;                /* [H] */
    /* KV sources only, else data null */
    struct weight compress_wkv, compress_wgate; /* wgate at ratio 2 only */
    const uint16_t *compress_norm;
    struct weight index_wk;
    const uint16_t *index_k_norm;
    /* index sources only */
    struct weight index_wq_b, index_weights;
};

struct mix_weights {
    const float *fn, *base, *scale; /* hc_*_fn, hc_*_base, hc_*_scale */
};

struct layer_weights {
    const uint16_t *attn_norm, *ffn_norm;
    struct mix_weights attn_mix, ffn_mix;
    struct attention_weights attention;
    struct weight router;
    const float *router_bias;
    struct expert_weights shared;
    struct expert_weights *experts;      /* [experts] routed ones, host memory */
    const struct expert_weights *routed; /* the same list where ops read it */
};

struct engram_weights {
    const uint8_t *table, *table_scales; /* [rows, dim], [rows, dim / 32] */
    struct weight wkv;
    const uint16_t *query_weight, *key_weight; /* [C, D] */
};

/* What the draft stages have beside their blocks; embedding and head are the backbone's. */
struct draft_weights {
    struct weight main_proj;                 /* [D, targets D] */
    const uint16_t *main_norm, *norm;        /* [D] bf16: of main_x, before the head */
    struct weight markov_embed, markov_head; /* BF16 [V, rank] */
    struct weight confidence;                /* BF16 [1, D + rank] */
};

struct model {
    struct model_config config;
    struct weight embed, head;     /* BF16 [V, D] */
    const uint16_t *norm;          /* [D] */
    struct layer_weights *layers;  /* [layers + draft_layers]: the draft stages' behind */
    struct engram_weights *engram; /* [engram_count] */
    bool has_draft;                /* the checkpoint has the draft stages' weights */
    struct draft_weights draft;    /* when has_draft */
    char digest
        [65]; /* SHA-256 hex over config, tokenizer and the shards' names, sizes and headers */
    struct safetensors *files; /* mappings; null once the weights are elsewhere */
    /* Whose memory holds the weights (model_device.h); null: the mapped files. */
    struct backend *backend;
    void *weights_memory, *tables_memory;
};

/* Groups of tensors, in the order of spec 2.7. */
enum model_group {
    MODEL_GROUP_EMBED,
    MODEL_GROUP_HEAD,
    MODEL_GROUP_NORM, /* the final one */
    MODEL_GROUP_ATTENTION,
    MODEL_GROUP_LAYER_NORMS,
    MODEL_GROUP_ROUTER,
    MODEL_GROUP_ROUTED_EXPERTS,
    MODEL_GROUP_SHARED_EXPERTS,
    MODEL_GROUP_MIXING,
    MODEL_GROUP_COMPRESSORS,
    MODEL_GROUP_INDEXERS,
    MODEL_GROUP_ENGRAM_TABLES,
    MODEL_GROUP_ENGRAM_OTHER,
    MODEL_GROUP_DRAFT_ATTENTION,
    MODEL_GROUP_DRAFT_NORMS,
    MODEL_GROUP_DRAFT_ROUTER,
    MODEL_GROUP_DRAFT_ROUTED_EXPERTS,
    MODEL_GROUP_DRAFT_SHARED_EXPERTS,
    MODEL_GROUP_DRAFT_MIXING,
    MODEL_GROUP_DRAFT_INPUT, /* main_proj, main_norm */
    MODEL_GROUP_DRAFT_HEADS, /* norm, Markov and confidence heads */
    MODEL_GROUP_VISION,
    MODEL_GROUP_COUNT
};
const char *model_group_name(enum model_group group); /* "routed_experts" */

/* How tensors are stored (spec 2.2); scales count with the weights they belong to. */
enum model_storage {
    MODEL_STORAGE_FP8, /* E4M3, one E8M0 scale per 32x32 */
    MODEL_STORAGE_FP4, /* E2M1, one E8M0 scale per row and 32 */
    MODEL_STORAGE_ENGRAM_ROWS,
    MODEL_STORAGE_BF16,
    MODEL_STORAGE_F32,
    MODEL_STORAGE_COUNT
};
const char *model_storage_name(enum model_storage storage); /* "fp8" */

struct model_bytes {
    size_t tensors;
    uint64_t bytes;
};

/* Bytes of a checkpoint, from headers alone; printed before loading (promise P7). */
struct model_size {
    struct model_bytes groups[MODEL_GROUP_COUNT];
    struct model_bytes storage[MODEL_STORAGE_COUNT];
    struct model_bytes total; /* tensor payload */
    size_t shards;
    uint64_t file_bytes; /* of all shards, headers included: what gets mapped */
};

/* config.json text -> checked configuration and plan. Expected errors: INVALID_INPUT (naming the
 * field and value), UNSUPPORTED (another architecture, or what forward cannot run), MEMORY. */
MUST_CHECK result
model_config_parse(struct view text, struct model_config *out, struct error *error);
/* What its Engram tables are made from; borrows from the configuration. */
struct engram_options model_engram_options(const struct model_config *config);

/* Reads config.json and the headers of all shards, checks every tensor's name, dtype, shape, offsets
 * and overlap; maps nothing and reads no weight. Expected errors: NOT_FOUND, CORRUPT, and those of the
 * configuration. */
MUST_CHECK result model_measure(
    const char *directory, struct model_config *config, struct model_size *size, struct error *error
);

/* The same checks, then maps the shards read-only and resolves every role; weights are paged in
 * when they are first used, only the scales of FP8 matrices are looked through. The files must not be truncated while the model is open: touching a
 * page that is gone is a SIGBUS, which no check here can prevent. */
MUST_CHECK result model_open(const char *directory, struct model **out, struct error *error);
/* Before the backend that holds its weights; accepts null. */
void model_close(struct model *model);

#endif
