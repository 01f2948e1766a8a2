/* Inside of the forward pass: the state of a step and each sub-block by itself.
 *
 * Tests feed a sub-block with stored inputs by filling the buffers it reads. All of them work on
 * the rows of the current stage (forward->stage) and leave their result where the comment says.
 * Thread: the engine thread only.
 */
#ifndef HEARTH_ENGINE_FORWARD_LAYER_H
#define HEARTH_ENGINE_FORWARD_LAYER_H

#include "forward.h"

/* Activations of the current rows. R is rows_max; every buffer is device-visible. */
struct forward_buffers {
    int32_t *ids;                           /* [R] */
    int32_t *positions;                     /* [R] */
    int32_t *entry_positions;               /* [R] first position of the row's ratio-2 entry */
    float *main_cosine, *main_sine;         /* [R, r/2] */
    float *compress_cosine, *compress_sine; /* [R, r/2] */
    float *entry_cosine, *entry_sine;       /* [R, r/2] at entry_positions */

    uint16_t *streams;         /* [R, C, D] bf16: X */
    float *mix;                /* [R, C]: a, the mix of the next collapse */
    float *post;               /* [R, C] */
    float *comb;               /* [R, C, C] */
    uint16_t *normed;          /* [R, D] bf16: input of the sub-block */
    struct quantized normed_q; /* [R, D] */
    uint16_t *output;          /* [R, D] bf16: y of the sub-block */

    uint16_t *query_latent;          /* [R, q_lora] bf16: qr */
    struct quantized query_latent_q; /* [R, q_lora] */
    uint16_t *query;                 /* [R, H, d] bf16 */
    uint16_t *window_latent;         /* [R, d] bf16 */
    uint8_t *window_records;         /* [R, window_record_bytes(d)] */
    uint16_t *attended;              /* [R, H, d] bf16 */
    uint16_t *grouped;               /* [R, G o_lora] bf16 */
    struct quantized grouped_q;      /* [R, G o_lora] */

    float *compress_kv, *compress_score; /* [R, d] */
    uint16_t *latent;                    /* [R, d] bf16 */
    uint16_t *index_key;                 /* [R, i] bf16 */
    uint16_t *index_query;               /* [R, I, i] bf16 */
    uint8_t *index_codes;                /* [R, I, i/2] */
    uint8_t *index_scales;               /* [R, I, i/32] */
    uint16_t *index_weights;             /* [R, I] bf16 */
    int32_t *selected;                   /* [R, K] */
    int32_t *selected_count;             /* [R] */
    int32_t *pool;                       /* [R, pool_blocks] */
    int32_t *pool_count;                 /* [R] */

    float *router_logits;  /* [R, E] */
    int32_t *expert_ids;   /* [R, k] */
    float *expert_weights; /* [R, k] */

    int64_t *engram_ids;       /* [engram_count, R, columns] */
    uint16_t *engram_rows;     /* [R, columns, dim] bf16 */
    struct quantized engram_q; /* the same, quantised */
    uint16_t *engram_kv;       /* [R, (C + 1) D] bf16 */
    float *engram_gate;        /* [R, C] */

    uint16_t *target_hidden; /* [R, targets D] bf16: main_hidden (spec 3.14); null: not exported */
    float *even_mix;         /* [R, C]: 1 / C, the mix of a mean; null likewise */

    /* Of the segments with drafts, until forward_keep; h counts their rows, H = drafted_rows_max. */
    uint8_t *held_records;            /* [layers, H, window_record_bytes(d)] */
    float *held_kv, *held_score;      /* [pending_count, H, d] */
    struct sequence_view *held_views; /* [layers, S]: ring = the segment's first held record */

    uint16_t *head_input; /* [R, D] bf16: rows with logits */
    float *logits;        /* [logit_rows_max, V] */

    struct index_counters *index_counters; /* [layers] of a step that is asked for them */
};

struct forward {
    const struct model *model;
    const struct model_config *config;
    const struct engram *engram;
    struct backend *backend;
    struct kv_cache *cache;
    struct forward_options options;
    struct forward_buffers buffers;
    void *arena;        /* device-visible: all buffers */
    float *frequencies; /* device-visible: main set [r/2], then compress set [r/2] */
    bool keep_selected[MODEL_LAYERS_MAX]; /* rows of the selection are still read at or after it */
    bool keep_pool[MODEL_LAYERS_MAX];
    bool keep_targets[MODEL_LAYERS_MAX]; /* between the first and the last target layer */
    bool keep_entries[MODEL_LAYERS_MAX]; /* a later layer pools pairs */

    /* host staging of one step */
    int32_t *host_rows;       /* ids, positions, entry positions: [3, R] */
    int32_t *host_engram;     /* [R, columns] */
    int32_t *host_history;    /* [R + engram_ngram_max] Engram ids of one segment, lookback first */
    int64_t *host_engram_ids; /* [R, columns] of one Engram layer */

    /* the current step; a stage is the rows of each segment at one point of the layer loop */
    const struct forward_segment *segments;
    int32_t segment_count;
    struct row_segments *window_stages; /* [layers]: rows that produce window KV */
    struct row_segments *full_stages;   /* [layers]: rows through attention and FFN */
    struct row_segments all_stage, head_stage;
    struct row_segments target_stage;   /* rows of target_hidden */
    struct row_segments *commit_stages; /* [layers]: window KV that goes into rings now */
    struct row_segments *held_stages;   /* [layers]: and what is held back */
    size_t kept_number;                 /* of the stage of held rows that count */
    int32_t *held_first;                /* [S] first held row of the segment */
    int32_t held_rows;                  /* of the step; 0: it has no drafts */
    struct row_segment *stage_host, *stage_device;   /* [4 layers + 3, S] */
    struct sequence_view *views_host, *views_device; /* [layers, S]; the host's also held_views */
    struct row_segments stage;                       /* rows present now */
    struct layer_counters *counters;                 /* [layers] or null */
    struct index_counters *index_counters;           /* [layers] host copy */
    int32_t
        logits_ready; /* the first rows with logits whose logits the step left in buffers.logits */

    /* tests */
    bool selection_is_given; /* use buffers.selected as it stands instead of selecting */
    float *test_scores;      /* [R, stride] filled by index layers; null outside tests */
    int32_t test_scores_stride;
};

/* Stages of a step, in order: window and full stage of each layer, all rows, rows with logits; with
 * drafts also commit and held stage of each layer, held rows that count. */
static inline size_t forward_stage_count(const struct model_config *config, bool drafts) {
    return (drafts ? 4 : 2) * (size_t)config->layers + (drafts ? 3 : 2);
}

/* What attention scores are multiplied with: d^(-1/2). */
float forward_attention_scale(const struct model_config *config);
/* Rotary frequencies [r/2] of the main or the compress set. */
void forward_frequencies(const struct model_config *config, bool compress, float *out);

/* Key of the steps of so many rows whose arguments all follow from them; `arena` tells apart whose. */
uint64_t forward_step_key(const void *arena, int32_t rows);
/* Rows that reach a layer. */
const struct row_segments *forward_stage_before(const struct forward *forward, int32_t layer);
/* [R, columns] of an Engram layer's slot. */
static inline int64_t *forward_engram_ids(const struct forward *forward, int32_t slot) {
    const struct model_config *config = forward->config;
    int32_t columns = config->engram_heads * (config->engram_ngram_max - 1);
    size_t stride = (size_t)forward->options.rows_max * (size_t)columns;
    return forward->buffers.engram_ids + (size_t)slot * stride;
}
/* Plans the rows of every layer and uploads all that the step needs of the host: ids, positions, stages,
 * views, Engram ids. The stage is then all rows. `segments` must live until the step is over. */
void forward_begin(struct forward *forward, const struct forward_segment *segments, int32_t count);
/* Rope tables of all rows. */
void forward_rope(struct forward *forward);
/* What the step commits at once and what it holds back, from the window stages. */
void forward_plan_held(struct forward *forward);
/* Holds the window records of the layer's drafted segments back. */
void forward_hold_windows(struct forward *forward, int32_t layer);
/* The same for the pairs of a ratio-2 source; the stage is that of compress_kv. */
void forward_hold_pairs(struct forward *forward, int32_t source);
/* Embedding into streams and mix. */
void forward_embed(struct forward *forward);
/* Adds the Engram value of layer `layer` to the streams. */
void forward_engram(struct forward *forward, int32_t layer);
/* t_l of a target layer (spec 3.2 step 2) into target_hidden. Overwrites normed. */
void forward_export_target(struct forward *forward, int32_t layer);
/* normed <- RMSNorm(collapse of streams with mix; weight). */
void forward_collapse(struct forward *forward, const uint16_t *weight);
/* post, comb and the next mix from streams. */
void forward_mix(struct forward *forward, const struct mix_weights *weights);
/* streams <- post y + comb streams, y from output. */
void forward_update(struct forward *forward);
/* normed -> entries and index keys of the layer's own source, for all rows present. */
void forward_compress(struct forward *forward, int32_t layer);
/* normed -> window_records of the rows of the layer's window stage, then narrows to the full
 * stage. */
void forward_window(struct forward *forward, int32_t layer);
/* normed -> rotated query, and query_latent for the indexer. */
void forward_query(struct forward *forward, int32_t layer);
/* query_latent, normed -> selected (and pool) when the layer selects for itself. */
void forward_select(struct forward *forward, int32_t layer);
/* normed -> window_records of the rows present. */
void forward_window_records(struct forward *forward, int32_t layer);
/* query, windows and entries -> attended (before the inverse rotation); commits the windows. */
void forward_attend(struct forward *forward, int32_t layer);
/* attended -> output. */
void forward_project(struct forward *forward, int32_t layer);
/* The whole of attention, normed -> output. */
void forward_attention(struct forward *forward, int32_t layer);
/* normed -> output; `layer` may be that of a draft stage, here and where windows, queries and outputs
 * are computed. */
void forward_experts(struct forward *forward, int32_t layer);
/* All of a layer. */
void forward_layer(struct forward *forward, int32_t layer);
/* Collapse and final norm of the rows with logits into head_input. */
void forward_head(struct forward *forward);

#endif
