/* The layer loop's sub-blocks in the order of spec 3.2. See forward_layer.h. */
#include "forward_layer.h"

#include <math.h>

/* y = x w^T by the storage class of the weight: a quantised weight takes the quantised input when
 * there is one, everything else the bf16 input. */
static void linear(
    struct forward *forward,
    const struct weight *weight,
    int32_t groups,
    const uint16_t *input,
    const struct quantized *quantized,
    enum dtype output_dtype,
    void *output
) {
    bool is_quantized = weight->dtype == DTYPE_FP8 || weight->dtype == DTYPE_FP4;
    struct linear_op op = {
        .rows = forward->stage.rows,
        .groups = groups,
        .in = weight->in,
        .out = weight->out / groups,
        .input_dtype = DTYPE_BF16,
        .input = input,
        .weight = *weight,
        .output_dtype = output_dtype,
        .output = output,
    };
    if (is_quantized && quantized != NULL) {
        op.input_dtype = DTYPE_FP8;
        op.quantized = *quantized;
    }
    backend_linear(forward->backend, &op);
}

static void
quantize(struct forward *forward, int32_t dim, const uint16_t *x, const struct quantized *y) {
    struct quantize_op op = {.rows = forward->stage.rows, .dim = dim, .x = x, .y = *y};
    backend_quantize(forward->backend, &op);
}

static void norm(struct forward *forward, int32_t dim, uint16_t *x, const uint16_t *weight) {
    struct norm_op op = {
        .rows = forward->stage.rows,
        .dim = dim,
        .eps = (float)forward->config->norm_eps,
        .x = x,
        .weight = weight,
        .y = x,
    };
    backend_norm(forward->backend, &op);
}

static void rotate(
    struct forward *forward,
    int32_t heads,
    int32_t dim,
    bool inverse,
    const float *cosine,
    const float *sine,
    uint16_t *x
) {
    struct rotate_op op = {
        .rows = forward->stage.rows,
        .heads = heads,
        .dim = dim,
        .rope_dim = forward->config->rope_dim,
        .inverse = inverse,
        .cosine = cosine,
        .sine = sine,
        .x = x,
    };
    backend_rotate(forward->backend, &op);
}

/* The rope set of the layer, at the positions of the rows. */
static void rotate_at_rows(
    struct forward *forward, int32_t layer, int32_t heads, int32_t dim, bool inverse, uint16_t *x
) {
    const struct forward_buffers *b = &forward->buffers;
    bool compress = forward->config->plan[layer].compress_rope;
    rotate(
        forward,
        heads,
        dim,
        inverse,
        compress ? b->compress_cosine : b->main_cosine,
        compress ? b->compress_sine : b->main_sine,
        x
    );
}

static const struct sequence_view *views_of(const struct forward *forward, int32_t layer) {
    return forward->views_device + (size_t)layer * (size_t)forward->options.sequences_max;
}

static const struct attention_weights *weights_of(const struct forward *forward, int32_t layer) {
    return &forward->model->layers[layer].attention;
}

static void keep(struct forward *forward, const struct row_segments *to, void *rows, size_t bytes) {
    struct keep_rows_op op = {
        .from = forward->stage,
        .to = *to,
        .row_bytes = bytes,
        .rows = rows,
    };
    backend_keep_rows(forward->backend, &op);
}

static bool stage_is(const struct forward *forward, const struct row_segments *to) {
    /* Stages only ever shrink, so equal counts are equal rows. */
    return forward->stage.rows == to->rows;
}

/* Drops the rows that `to` lacks from everything that later layers still read. */
static void
narrow(struct forward *forward, int32_t layer, const struct row_segments *to, bool quantized_too) {
    if (!stage_is(forward, to) && to->rows > 0) {
        const struct model_config *config = forward->config;
        const struct forward_buffers *b = &forward->buffers;
        size_t hidden = (size_t)config->hidden;
        size_t table = (size_t)config->rope_dim / 2 * sizeof(float);
        keep(forward, to, b->streams, (size_t)config->streams * hidden * sizeof(uint16_t));
        keep(forward, to, b->normed, hidden * sizeof(uint16_t));
        if (quantized_too) {
            keep(forward, to, b->normed_q.codes, hidden);
            keep(forward, to, b->normed_q.scales, hidden / 32);
        }
        keep(forward, to, b->main_cosine, table);
        keep(forward, to, b->main_sine, table);
        keep(forward, to, b->compress_cosine, table);
        keep(forward, to, b->compress_sine, table);
        if (forward->keep_targets[layer]) {
            size_t targets = (size_t)config->draft_target_count;
            keep(forward, to, b->target_hidden, targets * hidden * sizeof(uint16_t));
        }
        if (forward->keep_entries[layer]) {
            keep(forward, to, b->entry_cosine, table);
            keep(forward, to, b->entry_sine, table);
        }
        if (forward->keep_selected[layer]) {
            keep(forward, to, b->selected, (size_t)config->index_topk * sizeof(int32_t));
            keep(forward, to, b->selected_count, sizeof(int32_t));
        }
        if (forward->keep_pool[layer]) {
            keep(forward, to, b->pool, (size_t)config->candidate_blocks * sizeof(int32_t));
            keep(forward, to, b->pool_count, sizeof(int32_t));
        }
    }
    forward->stage = *to;
}

static void rope_table(
    struct forward *forward, const int32_t *positions, bool compress, float *cosine, float *sine
) {
    int32_t pairs = forward->config->rope_dim / 2;
    struct rope_table_op op = {
        .rows = forward->all_stage.rows,
        .pairs = pairs,
        .positions = positions,
        .frequencies = forward->frequencies + (compress ? pairs : 0),
        .cosine = cosine,
        .sine = sine,
    };
    backend_rope_table(forward->backend, &op);
}

void forward_rope(struct forward *forward) {
    struct forward_buffers *b = &forward->buffers;
    rope_table(forward, b->positions, false, b->main_cosine, b->main_sine);
    rope_table(forward, b->positions, true, b->compress_cosine, b->compress_sine);
    if (forward->cache->layout.pending_count > 0) {
        rope_table(forward, b->entry_positions, true, b->entry_cosine, b->entry_sine);
    }
}

void forward_embed(struct forward *forward) {
    const struct model_config *config = forward->config;
    struct embed_op op = {
        .rows = forward->stage.rows,
        .vocabulary = config->vocabulary,
        .dim = config->hidden,
        .streams = config->streams,
        .ids = forward->buffers.ids,
        .table = forward->model->embed.data,
        .x = forward->buffers.streams,
        .mix = forward->buffers.mix,
    };
    backend_embed(forward->backend, &op);
}

void forward_engram(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    int32_t slot = config->plan[layer].engram;
    ASSERT(slot >= 0);
    const struct engram_weights *weights = &forward->model->engram[slot];
    ASSERT(forward->stage.rows == forward_stage_before(forward, layer)->rows);
    struct engram_gather_op gather = {
        .rows = forward->stage.rows,
        .columns = config->engram_heads * (config->engram_ngram_max - 1),
        .dim = config->engram_dim,
        .ids = forward_engram_ids(forward, slot),
        .table = weights->table,
        .scales = weights->table_scales,
        .output = b->engram_rows,
    };
    backend_engram_gather(forward->backend, &gather);
    quantize(forward, gather.columns * gather.dim, b->engram_rows, &b->engram_q);
    linear(forward, &weights->wkv, 1, b->engram_rows, &b->engram_q, DTYPE_BF16, b->engram_kv);
    struct engram_gate_op gate = {
        .rows = forward->stage.rows,
        .dim = config->hidden,
        .streams = config->streams,
        .norm_eps = (float)config->norm_eps,
        .kv = b->engram_kv,
        .query_weight = weights->query_weight,
        .key_weight = weights->key_weight,
        .x = b->streams,
        .gate = b->engram_gate,
    };
    backend_engram_gate(forward->backend, &gate);
}

void forward_export_target(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    for (int32_t t = 0; b->target_hidden != NULL && t < config->draft_target_count; t++) {
        if (config->draft_targets[t] != layer) {
            continue;
        }
        struct stream_collapse_op op = {
            .rows = forward->stage.rows,
            .dim = config->hidden,
            .streams = config->streams,
            .norm_eps = (float)config->norm_eps,
            .x = b->streams,
            .mix = b->even_mix,
            .weight = forward->model->norm, // the normed output is not wanted
            .collapsed = b->target_hidden + (size_t)t * (size_t)config->hidden,
            .collapsed_stride = config->draft_target_count * config->hidden,
            .normed = b->normed,
        };
        backend_stream_collapse(forward->backend, &op);
    }
}

void forward_collapse(struct forward *forward, const uint16_t *weight) {
    struct stream_collapse_op op = {
        .rows = forward->stage.rows,
        .dim = forward->config->hidden,
        .streams = forward->config->streams,
        .norm_eps = (float)forward->config->norm_eps,
        .x = forward->buffers.streams,
        .mix = forward->buffers.mix,
        .weight = weight,
        .normed = forward->buffers.normed,
    };
    backend_stream_collapse(forward->backend, &op);
}

void forward_mix(struct forward *forward, const struct mix_weights *weights) {
    const struct model_config *config = forward->config;
    struct stream_mix_op op = {
        .rows = forward->stage.rows,
        .dim = config->hidden,
        .streams = config->streams,
        .sinkhorn_iterations = config->sinkhorn_iterations,
        .eps = (float)config->hc_eps,
        .norm_eps = (float)config->norm_eps,
        .x = forward->buffers.streams,
        .fn = weights->fn,
        .scale = weights->scale,
        .base = weights->base,
        .pre = forward->buffers.mix,
        .post = forward->buffers.post,
        .comb = forward->buffers.comb,
    };
    backend_stream_mix(forward->backend, &op);
}

void forward_update(struct forward *forward) {
    struct stream_update_op op = {
        .rows = forward->stage.rows,
        .dim = forward->config->hidden,
        .streams = forward->config->streams,
        .x = forward->buffers.streams,
        .y = forward->buffers.output,
        .post = forward->buffers.post,
        .comb = forward->buffers.comb,
    };
    backend_stream_update(forward->backend, &op);
}

/* Pools the latents of the rows (spec 3.6), not normalised yet. */
static void compress_latents(struct forward *forward, int32_t layer) {
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    if (forward->config->plan[layer].ratio == 1) {
        linear(forward, &weights->compress_wkv, 1, b->normed, NULL, DTYPE_BF16, b->latent);
        return;
    }
    linear(forward, &weights->compress_wkv, 1, b->normed, NULL, DTYPE_F32, b->compress_kv);
    linear(forward, &weights->compress_wgate, 1, b->normed, NULL, DTYPE_F32, b->compress_score);
    struct compress_pool_op op = {
        .dim = forward->config->head_dim,
        .segments = forward->stage,
        .views = views_of(forward, layer),
        .kv = b->compress_kv,
        .score = b->compress_score,
        .latent = b->latent,
    };
    backend_compress_pool(forward->backend, &op);
    forward_hold_pairs(forward, forward->config->plan[layer].source);
}

void forward_compress(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    const struct layer_plan *plan = &config->plan[layer];
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    ASSERT(plan->mode == LAYER_FULL);
    const float *cosine = plan->ratio == 1 ? b->compress_cosine : b->entry_cosine;
    const float *sine = plan->ratio == 1 ? b->compress_sine : b->entry_sine;
    compress_latents(forward, layer);
    norm(forward, config->head_dim, b->latent, weights->compress_norm);
    /* Index keys come from the latent before its rotation. */
    linear(forward, &weights->index_wk, 1, b->latent, NULL, DTYPE_BF16, b->index_key);
    norm(forward, config->index_dim, b->index_key, weights->index_k_norm);
    rotate(forward, 1, config->index_dim, false, cosine, sine, b->index_key);
    rotate(forward, 1, config->head_dim, false, cosine, sine, b->latent);
    struct entry_store_op op = {
        .dim = config->head_dim,
        .index_dim = config->index_dim,
        .source = forward->cache->layout.sources[plan->source],
        .segments = forward->stage,
        .views = views_of(forward, layer),
        .latent = b->latent,
        .key = b->index_key,
    };
    backend_entry_store(forward->backend, &op);
}

void forward_window_records(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    quantize(forward, config->hidden, b->normed, &b->normed_q);
    linear(forward, &weights->wkv, 1, b->normed, &b->normed_q, DTYPE_BF16, b->window_latent);
    norm(forward, config->head_dim, b->window_latent, weights->kv_norm);
    rotate_at_rows(forward, layer, 1, config->head_dim, false, b->window_latent);
    struct window_pack_op op = {
        .rows = forward->stage.rows,
        .dim = config->head_dim,
        .x = b->window_latent,
        .records = b->window_records,
    };
    backend_window_pack(forward->backend, &op);
}

void forward_window(struct forward *forward, int32_t layer) {
    narrow(forward, layer, &forward->window_stages[layer], false);
    if (forward->stage.rows > 0) {
        forward_window_records(forward, layer);
    }
    narrow(forward, layer, &forward->full_stages[layer], true);
}

void forward_query(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    linear(forward, &weights->wq_a, 1, b->normed, &b->normed_q, DTYPE_BF16, b->query_latent);
    norm(forward, config->q_lora, b->query_latent, weights->q_norm);
    quantize(forward, config->q_lora, b->query_latent, &b->query_latent_q);
    linear(forward, &weights->wq_b, 1, b->query_latent, &b->query_latent_q, DTYPE_BF16, b->query);
    rotate_at_rows(forward, layer, config->heads, config->head_dim, false, b->query);
}

static void index_queries(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    linear(
        forward,
        &weights->index_wq_b,
        1,
        b->query_latent,
        &b->query_latent_q,
        DTYPE_BF16,
        b->index_query
    );
    rotate_at_rows(forward, layer, config->index_heads, config->index_dim, false, b->index_query);
    struct index_quantize_op op = {
        .rows = forward->stage.rows,
        .heads = config->index_heads,
        .dim = config->index_dim,
        .x = b->index_query,
        .codes = b->index_codes,
        .scales = b->index_scales,
    };
    backend_index_quantize(forward->backend, &op);
    linear(forward, &weights->index_weights, 1, b->normed, NULL, DTYPE_BF16, b->index_weights);
}

void forward_select(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    const struct layer_plan *plan = &config->plan[layer];
    struct forward_buffers *b = &forward->buffers;
    if (plan->select_layer != layer) {
        return;
    }
    index_queries(forward, layer);
    if (forward->selection_is_given) {
        return;
    }
    struct index_select_op op = {
        .heads = config->index_heads,
        .dim = config->index_dim,
        .topk = config->index_topk,
        .mode = plan->within_pool      ? INDEX_WITHIN_POOL
                : plan->publishes_pool ? INDEX_FULL_PUBLISH
                                       : INDEX_FULL,
        .pool_blocks = config->candidate_blocks,
        .pool_block_entries = config->candidate_block_entries,
        .source = forward->cache->layout.sources[plan->source],
        .segments = forward->stage,
        .views = views_of(forward, layer),
        .query_codes = b->index_codes,
        .query_scales = b->index_scales,
        .head_weights = b->index_weights,
        .head_scale = (float)(1.0 / sqrt((double)config->index_dim * config->index_heads)),
        .selected = b->selected,
        .selected_count = b->selected_count,
        .pool = b->pool,
        .pool_count = b->pool_count,
        .counters = forward->counters == NULL ? NULL : b->index_counters + layer,
        .scores = forward->test_scores,
        .scores_stride = forward->test_scores_stride,
    };
    backend_index_select(forward->backend, &op);
}

float forward_attention_scale(const struct model_config *config) {
    return (float)(1.0 / sqrt((double)config->head_dim));
}

void forward_attend(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    const struct layer_plan *plan = &config->plan[layer];
    struct forward_buffers *b = &forward->buffers;
    bool has_entries = plan->source >= 0;
    struct attention_op op = {
        .heads = config->heads,
        .dim = config->head_dim,
        .window = config->window,
        .topk = has_entries ? config->index_topk : 0,
        .scale = forward_attention_scale(config),
        .segments = forward->full_stages[layer],
        .fresh_segments = forward->window_stages[layer],
        .views = views_of(forward, layer),
        .query = b->query,
        .fresh = b->window_records,
        .selected = has_entries ? b->selected : NULL,
        .selected_count = has_entries ? b->selected_count : NULL,
        .sink = weights_of(forward, layer)->sink,
        .output = b->attended,
    };
    if (has_entries) {
        op.source = forward->cache->layout.sources[plan->source];
    }
    if (forward->full_stages[layer].rows > 0) {
        backend_attention(forward->backend, &op);
    }
    /* Only now: queries may still have needed what the ring held before. */
    forward_hold_windows(forward, layer);
    if (forward->commit_stages[layer].rows > 0) {
        struct window_commit_op commit = {
            .window = config->window,
            .dim = config->head_dim,
            .segments = forward->commit_stages[layer],
            .views = views_of(forward, layer),
            .records = b->window_records,
        };
        backend_window_commit(forward->backend, &commit);
    }
}

void forward_project(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    const struct attention_weights *weights = weights_of(forward, layer);
    rotate_at_rows(forward, layer, config->heads, config->head_dim, true, b->attended);
    /* The input of wo_a is not quantised (spec 3.0 rule 4). */
    linear(forward, &weights->wo_a, config->o_groups, b->attended, NULL, DTYPE_BF16, b->grouped);
    quantize(forward, config->o_groups * config->o_lora, b->grouped, &b->grouped_q);
    linear(forward, &weights->wo_b, 1, b->grouped, &b->grouped_q, DTYPE_BF16, b->output);
}

void forward_attention(struct forward *forward, int32_t layer) {
    if (forward->config->plan[layer].mode == LAYER_FULL) {
        forward_compress(forward, layer);
    }
    forward_window(forward, layer);
    if (forward->stage.rows > 0) {
        forward_query(forward, layer);
        forward_select(forward, layer);
    }
    forward_attend(forward, layer);
    if (forward->stage.rows > 0) {
        forward_project(forward, layer);
    }
}

void forward_experts(struct forward *forward, int32_t layer) {
    const struct model_config *config = forward->config;
    const struct layer_weights *weights = &forward->model->layers[layer];
    struct forward_buffers *b = &forward->buffers;
    bool is_draft = layer >= config->layers;
    int32_t count = is_draft ? config->draft_experts : config->experts;
    int32_t chosen = is_draft ? config->draft_experts_chosen : config->experts_chosen;
    linear(forward, &weights->router, 1, b->normed, NULL, DTYPE_F32, b->router_logits);
    struct route_op route = {
        .rows = forward->stage.rows,
        .experts = count,
        .chosen = chosen,
        .routed_scale = (float)config->routed_scale,
        .logits = b->router_logits,
        .bias = weights->router_bias,
        .ids = b->expert_ids,
        .weights = b->expert_weights,
    };
    backend_route(forward->backend, &route);
    quantize(forward, config->hidden, b->normed, &b->normed_q);
    struct experts_op experts = {
        .rows = forward->stage.rows,
        .dim = config->hidden,
        .hidden = config->expert_hidden,
        .experts = count,
        .chosen = chosen,
        .limit = (float)config->swiglu_limit,
        .routed_dtype = weights->experts[0].w1.dtype,
        .x = b->normed_q,
        .ids = b->expert_ids,
        .weights = b->expert_weights,
        .routed = weights->routed,
        .shared = &weights->shared,
        .output = b->output,
    };
    backend_experts(forward->backend, &experts);
}

void forward_layer(struct forward *forward, int32_t layer) {
    const struct layer_weights *weights = &forward->model->layers[layer];
    if (forward->config->plan[layer].engram >= 0) {
        forward_engram(forward, layer);
    }
    forward_export_target(forward, layer);
    forward_collapse(forward, weights->attn_norm);
    forward_attention(forward, layer);
    if (forward->stage.rows == 0) {
        return;
    }
    forward_mix(forward, &weights->attn_mix);
    forward_update(forward);
    forward_collapse(forward, weights->ffn_norm);
    forward_mix(forward, &weights->ffn_mix);
    forward_experts(forward, layer);
    forward_update(forward);
}

void forward_head(struct forward *forward) {
    const struct model_config *config = forward->config;
    struct forward_buffers *b = &forward->buffers;
    const struct row_segments *to = &forward->head_stage;
    if (to->rows == 0) {
        return;
    }
    if (!stage_is(forward, to)) {
        size_t streams = (size_t)config->streams;
        keep(forward, to, b->streams, streams * (size_t)config->hidden * sizeof(uint16_t));
        keep(forward, to, b->mix, streams * sizeof(float));
    }
    forward->stage = *to;
    struct stream_collapse_op op = {
        .rows = to->rows,
        .dim = config->hidden,
        .streams = config->streams,
        .norm_eps = (float)config->norm_eps,
        .x = b->streams,
        .mix = b->mix,
        .weight = forward->model->norm,
        .normed = b->head_input,
    };
    backend_stream_collapse(forward->backend, &op);
}
