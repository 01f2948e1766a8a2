/* config.json in the official schema -> checked configuration and layer plan.
 *
 * Every number is checked against a named limit before anything is computed from it, and every
 * relation the forward pass relies on is checked here once (spec model.md 8.1), so that weights.c
 * and the forward pass can multiply dimensions without care. Fields that change the computation in
 * a way this engine does not implement are refused by name; fields that change nothing are ignored.
 */
#include "model.h"

#include "config_fields.h"
#include "engram.h"

/* Largest dimensions accepted; each is far above the release's and keeps all products in 63 bits. */
#define VOCABULARY_MAX (1 << 22)
#define WIDTH_MAX      (1 << 16) /* hidden_size, ranks, expert width */
#define HEADS_MAX      1024
#define HEAD_DIM_MAX   4096
#define EXPERTS_MAX    4096
#define CHOSEN_MAX     64
#define WINDOW_MAX     (1 << 16)
#define TOPK_MAX       (1 << 16)
#define POOL_MAX       (1 << 20) /* candidate blocks */
#define POOL_BLOCK_MAX 1024      /* entries per candidate block */
#define STREAMS_MAX    4
#define SINKHORN_MAX   1000
#define VISION_MAX     256 /* layers */

#define CONFIG_BYTES_MAX  ((size_t)1 << 20)
#define CONFIG_VALUES_MAX ((size_t)1 << 16)
#define CONFIG_DEPTH_MAX  8U
#define GROUP             32 /* channels per quantisation group (spec 2.2, 3.0.1) */

#define FIELD(name, member, min, max)                                                              \
    { (name), offsetof(struct model_config, member), (min), (max) }

static const struct integer_field text_fields[] = {
    FIELD("vocab_size", vocabulary, 1, VOCABULARY_MAX),
    FIELD("hidden_size", hidden, 1, WIDTH_MAX),
    FIELD("num_hidden_layers", layers, 1, MODEL_LAYERS_MAX),
    FIELD("num_attention_heads", heads, 1, HEADS_MAX),
    FIELD("head_dim", head_dim, 1, HEAD_DIM_MAX),
    FIELD("qk_rope_head_dim", rope_dim, 2, HEAD_DIM_MAX),
    FIELD("q_lora_rank", q_lora, 1, WIDTH_MAX),
    FIELD("o_groups", o_groups, 1, HEADS_MAX),
    FIELD("o_lora_rank", o_lora, 1, WIDTH_MAX),
    FIELD("n_routed_experts", experts, 1, EXPERTS_MAX),
    FIELD("num_experts_per_tok", experts_chosen, 1, CHOSEN_MAX),
    FIELD("moe_intermediate_size", expert_hidden, 1, WIDTH_MAX),
    FIELD("sliding_window", window, 1, WINDOW_MAX),
    FIELD("index_n_heads", index_heads, 1, HEADS_MAX),
    FIELD("index_head_dim", index_dim, 1, HEAD_DIM_MAX),
    FIELD("index_topk", index_topk, 1, TOPK_MAX),
    FIELD("hc_mult", streams, 2, STREAMS_MAX),
    FIELD("hc_sinkhorn_iters", sinkhorn_iterations, 1, SINKHORN_MAX),
};

static const struct integer_field candidate_fields[] = {
    FIELD("candidate_topk_blocks", candidate_blocks, 1, POOL_MAX),
    FIELD("candidate_block_size", candidate_block_entries, 1, POOL_BLOCK_MAX),
};

static const struct integer_field engram_fields[] = {
    FIELD("engram_max_ngram_size", engram_ngram_max, 2, ENGRAM_ORDER_MAX),
    FIELD("engram_n_heads", engram_heads, 1, ENGRAM_HEADS_MAX),
    FIELD("engram_head_dim", engram_dim, 1, HEAD_DIM_MAX),
    FIELD("engram_compressed_vocab_size", engram_compressed_vocabulary, 1, VOCABULARY_MAX),
};

static const struct integer_field draft_fields[] = {
    FIELD("dspark_block_size", draft_block, 1, 64),
    FIELD("dspark_noise_token_id", draft_noise_id, 0, VOCABULARY_MAX),
    FIELD("dspark_markov_rank", draft_markov_rank, 1, WIDTH_MAX),
    FIELD("dspark_n_routed_experts", draft_experts, 1, EXPERTS_MAX),
    FIELD("dspark_num_experts_per_tok", draft_experts_chosen, 1, CHOSEN_MAX),
};

static const struct integer_field vision_fields[] = {
    FIELD("hidden_size", vision_hidden, 1, WIDTH_MAX),
    FIELD("num_attention_heads", vision_heads, 1, HEADS_MAX),
    FIELD("intermediate_size", vision_intermediate, 1, WIDTH_MAX),
    FIELD("patch_size", vision_patch, 1, 256),
    FIELD("downsample_ratio", vision_downsample, 1, 16),
};

/* ---- what is computed in one way only ---- */

static result check_architecture(struct json_value root, struct error *error) {
    struct json_value list;
    TRY(json_get_array(root, "architectures", &list, error));
    struct view name = {NULL, 0};
    if (json_count(list) != 1 || !json_as_string(json_first(list), &name) ||
        !view_equals_text(name, "DeepseekV41ForCausalLM")) {
        FAIL(
            error,
            UNSUPPORTED,
            "'architectures' is %.*s, this engine knows only [\"DeepseekV41ForCausalLM\"]",
            VIEW_ARGUMENTS(view_slice(json_raw(list), 0, 120))
        );
    }
    TRY(field_is_text(root, "model_type", "deepseek_v41", error));
    return OK;
}

static result check_quantization(struct json_value root, struct error *error) {
    struct json_value quantization;
    TRY(json_get_object(root, "quantization_config", &quantization, error));
    TRY(field_is_text(quantization, "quant_method", "fp8", error));
    TRY(field_is_text(quantization, "activation_scheme", "dynamic", error));
    TRY(field_is_text(quantization, "scale_fmt", "ue8m0", error));
    TRY(field_is_text(quantization, "expert_dtype", "fp4", error));
    struct json_value block;
    TRY(json_get_array(quantization, "weight_block_size", &block, error));
    int64_t rows = 0;
    int64_t columns = 0;
    if (json_count(block) != 2 || !json_as_i64(json_first(block), &rows) ||
        !json_as_i64(json_next(json_first(block)), &columns) || rows != GROUP || columns != GROUP) {
        FAIL(
            error,
            UNSUPPORTED,
            "'weight_block_size' is %.*s, this engine knows only [32, 32]",
            VIEW_ARGUMENTS(view_slice(json_raw(block), 0, 60))
        );
    }
    return OK;
}

static result check_fixed_fields(struct json_value text, struct error *error) {
    TRY(field_is_integer(text, "num_key_value_heads", 1, error));
    TRY(field_is_integer(text, "n_shared_experts", 1, error));
    TRY(field_is_bool(text, "attention_bias", false, error));
    TRY(field_is_bool(text, "tie_word_embeddings", false, error));
    TRY(field_is_bool(text, "norm_topk_prob", true, error));
    TRY(field_is_text(text, "hidden_act", "silu", error));
    TRY(field_is_text(text, "scoring_func", "sqrtsoftplus", error));
    TRY(field_is_text(text, "topk_method", "noaux_tc", error));
    if (json_type(json_get(text, "gate_temp")) != JSON_ABSENT) {
        double temperature = 0;
        TRY(field_double(text, "gate_temp", 1.0, 1.0, &temperature, error));
    }
    return OK;
}

/* ---- groups of fields ---- */

static result read_constants(struct json_value text, struct model_config *c, struct error *error) {
    int64_t positions = 0;
    TRY(field_integer(text, "max_position_embeddings", 1, INT32_MAX, &positions, error));
    c->positions_max = positions;
    TRY(field_double(text, "rms_norm_eps", 0x1p-126, 1.0, &c->norm_eps, error));
    TRY(field_double(text, "hc_eps", 0.0, 1.0, &c->hc_eps, error));
    TRY(field_double(text, "swiglu_limit", 0.0, 1e30, &c->swiglu_limit, error));
    TRY(field_double(text, "routed_scaling_factor", 1e-6, 1e6, &c->routed_scale, error));
    TRY(field_double(text, "rope_theta", 1.000001, 1e12, &c->rope_theta, error));
    TRY(field_double(text, "compress_rope_theta", 1.000001, 1e12, &c->compress_rope_theta, error));
    struct json_value scaling = json_get(text, "rope_scaling");
    if (json_type(scaling) == JSON_ABSENT || json_type(scaling) == JSON_NULL) {
        c->yarn_factor = 1.0;
        return OK;
    }
    TRY(json_get_object(text, "rope_scaling", &scaling, error));
    TRY_NOTE(error, field_is_text(scaling, "rope_type", "yarn", error), "'rope_scaling'");
    TRY_NOTE(
        error, field_double(scaling, "factor", 1.0, 1e6, &c->yarn_factor, error), "'rope_scaling'"
    );
    TRY(field_double(scaling, "beta_fast", 1e-6, 1e6, &c->yarn_beta_fast, error));
    TRY(field_double(scaling, "beta_slow", 1e-6, 1e6, &c->yarn_beta_slow, error));
    if (c->yarn_beta_fast <= c->yarn_beta_slow) {
        FAIL(
            error,
            INVALID_INPUT,
            "'beta_fast' is %g, must be above 'beta_slow' %g",
            c->yarn_beta_fast,
            c->yarn_beta_slow
        );
    }
    int64_t original = 0;
    TRY(field_integer(scaling, "original_max_position_embeddings", 1, INT32_MAX, &original, error));
    c->yarn_original_positions = narrow_i32(original);
    return OK;
}

static result
read_engram_rows(struct json_value text, struct model_config *c, struct error *error) {
    struct json_value rows;
    TRY(json_get_array(text, "engram_num_embeddings", &rows, error));
    if (json_count(rows) != (size_t)c->engram_count) {
        FAIL(
            error,
            INVALID_INPUT,
            "'engram_num_embeddings' has %zu numbers, 'engram_layer_ids' %d",
            json_count(rows),
            c->engram_count
        );
    }
    int32_t slot = 0;
    for (struct json_value v = json_first(rows); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        int64_t count = 0;
        if (!json_as_i64(v, &count) || count < 1 || count > INT32_MAX) {
            FAIL(
                error,
                INVALID_INPUT,
                "'engram_num_embeddings'[%d] is %.*s, allowed are 1 to %d",
                slot,
                VIEW_ARGUMENTS(view_slice(json_raw(v), 0, 40)),
                INT32_MAX
            );
        }
        c->engram_rows[slot++] = count;
    }
    return OK;
}

static result read_engram(struct json_value text, struct model_config *c, struct error *error) {
    if (json_type(json_get(text, "engram_layer_ids")) == JSON_ABSENT) {
        return OK;
    }
    TRY(field_layers(text, "engram_layer_ids", c->layers, c->engram_layers, &c->engram_count, error)
    );
    if (c->engram_count == 0) {
        return OK;
    }
    if (c->engram_count > ENGRAM_LAYERS_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "'engram_layer_ids' has %d layers, allowed are %d",
            c->engram_count,
            ENGRAM_LAYERS_MAX
        );
    }
    TRY(field_integers(text, engram_fields, COUNT_OF(engram_fields), c, error));
    TRY(field_integer(text, "engram_vocab_size", 2, INT32_MAX, &c->engram_vocabulary, error));

    // The checkpoint says engram_pad_token_id, Transformers' class engram_pad_id (spec 0.3).
    const char *names[] = {"engram_pad_token_id", "engram_pad_id"};
    int64_t pad = -1;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (json_type(json_get(text, names[i])) == JSON_ABSENT) {
            continue;
        }
        int64_t value = 0;
        TRY(field_integer(text, names[i], 0, c->vocabulary - 1, &value, error));
        if (pad >= 0 && value != pad) {
            FAIL(
                error,
                INVALID_INPUT,
                "'engram_pad_token_id' is %lld, 'engram_pad_id' %lld",
                (long long)pad,
                (long long)value
            );
        }
        pad = value;
    }
    if (pad < 0) {
        FAIL(error, INVALID_INPUT, "'engram_pad_token_id' is missing");
    }
    c->engram_pad_id = narrow_i32(pad);
    return read_engram_rows(text, c, error);
}

static result read_draft(struct json_value text, struct model_config *c, struct error *error) {
    int64_t layers = 0;
    if (json_type(json_get(text, "num_nextn_predict_layers")) != JSON_ABSENT) {
        TRY(field_integer(
            text, "num_nextn_predict_layers", 0, MODEL_LAYERS_MAX - c->layers, &layers, error
        ));
    }
    c->draft_layers = narrow_i32(layers);
    if (layers == 0) {
        return OK;
    }
    TRY(field_integers(text, draft_fields, COUNT_OF(draft_fields), c, error));
    TRY(field_layers(
        text, "dspark_target_layer_ids", c->layers, c->draft_targets, &c->draft_target_count, error
    ));
    if (c->draft_target_count == 0) {
        FAIL(error, INVALID_INPUT, "'dspark_target_layer_ids' is empty");
    }
    if (c->draft_noise_id >= c->vocabulary) {
        FAIL(
            error,
            INVALID_INPUT,
            "'dspark_noise_token_id' is %d, the vocabulary has %d",
            c->draft_noise_id,
            c->vocabulary
        );
    }
    if (c->draft_markov_rank % 32 != 0) {
        FAIL(
            error,
            UNSUPPORTED,
            "'dspark_markov_rank' is %d, this engine knows multiples of 32",
            c->draft_markov_rank
        );
    }
    if (c->draft_experts_chosen > c->draft_experts) {
        FAIL(
            error,
            INVALID_INPUT,
            "'dspark_num_experts_per_tok' is %d, 'dspark_n_routed_experts' %d",
            c->draft_experts_chosen,
            c->draft_experts
        );
    }
    return OK;
}

static result read_vision(struct json_value root, struct model_config *c, struct error *error) {
    struct json_value vision = json_get(root, "vision_config");
    if (json_type(vision) == JSON_ABSENT || json_type(vision) == JSON_NULL) {
        return OK;
    }
    TRY(json_get_object(root, "vision_config", &vision, error));
    int64_t layers = 0;
    TRY(field_integer(vision, "num_hidden_layers", 0, VISION_MAX, &layers, error));
    c->vision_layers = narrow_i32(layers);
    if (layers > 0) {
        TRY(field_integers(vision, vision_fields, COUNT_OF(vision_fields), c, error));
    }
    return OK;
}

/* Special ids stand at the root; the mini model repeats them in text_config. */
static result read_token_ids(struct json_value root, struct model_config *c, struct error *error) {
    struct {
        const char *name;
        int32_t *out;
        bool required;
    } ids[] = {
        {"bos_token_id", &c->bos_id, true},
        {"eos_token_id", &c->eos_id, true},
        {"pad_token_id", &c->pad_id, false},
        {"image_token_id", &c->image_id, false},
    };
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        *ids[i].out = -1;
        if (!ids[i].required && json_type(json_get(root, ids[i].name)) == JSON_ABSENT) {
            continue;
        }
        int64_t value = 0;
        TRY(field_integer(root, ids[i].name, 0, c->vocabulary - 1, &value, error));
        *ids[i].out = narrow_i32(value);
    }
    return OK;
}

/* ---- relations (spec 8.1) ---- */

static result check_multiple(const char *what, int64_t value, int64_t of, struct error *error) {
    if (value % of != 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "%s is %lld, must be a multiple of %lld",
            what,
            (long long)value,
            (long long)of
        );
    }
    return OK;
}

static result check_relations(const struct model_config *c, struct error *error) {
    TRY(check_multiple("'hidden_size'", c->hidden, GROUP, error));
    TRY(check_multiple("'head_dim'", c->head_dim, GROUP, error));
    TRY(check_multiple("'index_head_dim'", c->index_dim, GROUP, error));
    TRY(check_multiple("'q_lora_rank'", c->q_lora, GROUP, error));
    TRY(check_multiple("'moe_intermediate_size'", c->expert_hidden, GROUP, error));
    TRY(check_multiple("'o_groups' x 'o_lora_rank'", (int64_t)c->o_groups * c->o_lora, GROUP, error)
    );
    TRY(check_multiple("'qk_rope_head_dim'", c->rope_dim, 2, error));
    TRY(check_multiple("'num_attention_heads'", c->heads, c->o_groups, error));
    if (c->engram_count > 0) {
        TRY(check_multiple("'engram_head_dim'", c->engram_dim, GROUP, error));
    }
    if (c->vision_layers > 0) {
        TRY(check_multiple(
            "'hidden_size' of 'vision_config'", c->vision_hidden, c->vision_heads, error
        ));
    }
    int32_t narrower = c->head_dim < c->index_dim ? c->head_dim : c->index_dim;
    if (c->rope_dim > narrower) {
        FAIL(
            error,
            INVALID_INPUT,
            "'qk_rope_head_dim' is %d, 'head_dim' %d and 'index_head_dim' %d allow at most %d",
            c->rope_dim,
            c->head_dim,
            c->index_dim,
            narrower
        );
    }
    if (c->experts_chosen > c->experts) {
        FAIL(
            error,
            INVALID_INPUT,
            "'num_experts_per_tok' is %d, 'n_routed_experts' %d",
            c->experts_chosen,
            c->experts
        );
    }
    return OK;
}

/* ---- layer plan (spec 1.5, 3.6 to 3.9) ---- */

static result read_ratios(struct json_value text, struct model_config *c, struct error *error) {
    struct json_value ratios;
    TRY(json_get_array(text, "compress_ratios", &ratios, error));
    int32_t wanted = c->layers + c->draft_layers;
    if (json_count(ratios) != (size_t)wanted) {
        FAIL(
            error,
            INVALID_INPUT,
            "'compress_ratios' has %zu numbers for %d layers and %d draft stages",
            json_count(ratios),
            c->layers,
            c->draft_layers
        );
    }
    int32_t l = 0;
    for (struct json_value v = json_first(ratios); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        int64_t ratio = -1;
        int64_t max = l < c->layers ? 2 : 0;
        if (!json_as_i64(v, &ratio) || ratio < 0 || ratio > max) {
            FAIL(
                error,
                UNSUPPORTED,
                "'compress_ratios'[%d] is %.*s, this engine knows %s",
                l,
                VIEW_ARGUMENTS(view_slice(json_raw(v), 0, 40)),
                max == 2 ? "0, 1 and 2" : "only 0 for draft stages"
            );
        }
        c->plan[l++].ratio = narrow_i32(ratio);
    }
    ASSERT(l == wanted);
    return OK;
}

static bool list_has(const int32_t *list, int32_t count, int32_t layer) {
    for (int32_t i = 0; i < count; i++) {
        if (list[i] == layer) {
            return true;
        }
    }
    return false;
}

struct plan_state {
    int32_t source; /* index of the latest KV source, -1 */
    int32_t select; /* latest index source, -1 */
};

static result plan_layer(
    struct model_config *c,
    int32_t l,
    const int32_t *index_sources,
    int32_t index_count,
    struct plan_state *state,
    struct error *error
) {
    struct layer_plan *plan = &c->plan[l];
    bool owns = list_has(c->kv_source_layers, c->kv_source_count, l);
    bool selects = list_has(index_sources, index_count, l);
    plan->source = -1;
    plan->select_layer = -1;
    plan->decoder = l >= c->encoder_layers;
    plan->compress_rope = plan->ratio > 0;
    plan->mode = LAYER_WINDOW;
    if (plan->ratio == 0) {
        if (owns || selects) {
            FAIL(
                error,
                INVALID_INPUT,
                "layer %d is in '%s' but has ratio 0",
                l,
                owns ? "kv_source_layer_ids" : "index_source_layer_ids"
            );
        }
        return OK;
    }
    if (owns) {
        if (!selects) {
            FAIL(
                error,
                INVALID_INPUT,
                "layer %d is in 'kv_source_layer_ids' but not in 'index_source_layer_ids'",
                l
            );
        }
        state->source += 1;
    }
    if (state->source < 0) {
        FAIL(error, INVALID_INPUT, "layer %d has ratio %d but no KV source", l, plan->ratio);
    }
    int32_t source_layer = c->kv_source_layers[state->source];
    if (c->plan[source_layer].ratio != plan->ratio) {
        FAIL(
            error,
            INVALID_INPUT,
            "layer %d has ratio %d, its KV source, layer %d, has %d",
            l,
            plan->ratio,
            source_layer,
            c->plan[source_layer].ratio
        );
    }
    if (selects) {
        state->select = l;
    }
    plan->mode = owns ? LAYER_FULL : selects ? LAYER_REINDEX : LAYER_REUSE;
    plan->source = state->source;
    plan->select_layer = state->select;
    plan->publishes_pool = l == c->candidate_layer;
    plan->within_pool = selects && c->candidate_layer >= 0 && l > c->candidate_layer;
    if (plan->within_pool && plan->source != c->plan[c->candidate_layer].source) {
        FAIL(
            error,
            INVALID_INPUT,
            "layer %d selects inside the pool of layer %d but reads another KV source",
            l,
            c->candidate_layer
        );
    }
    return OK;
}

static result read_candidate(
    struct json_value text,
    const int32_t *index_sources,
    int32_t index_count,
    struct model_config *c,
    struct error *error
) {
    c->candidate_layer = -1;
    enum json_type type = json_type(json_get(text, "candidate_source_layer_id"));
    if (type == JSON_ABSENT || type == JSON_NULL) {
        return OK;
    }
    int64_t layer = -1;
    TRY(field_integer(text, "candidate_source_layer_id", -1, c->layers - 1, &layer, error));
    if (layer < 0) {
        return OK;
    }
    if (!list_has(index_sources, index_count, narrow_i32(layer))) {
        FAIL(
            error,
            INVALID_INPUT,
            "'candidate_source_layer_id' is %lld, which is not in 'index_source_layer_ids'",
            (long long)layer
        );
    }
    c->candidate_layer = narrow_i32(layer);
    TRY(field_integers(text, candidate_fields, COUNT_OF(candidate_fields), c, error));
    return OK;
}

static result make_plan(struct json_value text, struct model_config *c, struct error *error) {
    int32_t index_sources[MODEL_LAYERS_MAX];
    int32_t index_count = 0;
    TRY(read_ratios(text, c, error));
    TRY(field_layers(
        text, "kv_source_layer_ids", c->layers, c->kv_source_layers, &c->kv_source_count, error
    ));
    TRY(field_layers(text, "index_source_layer_ids", c->layers, index_sources, &index_count, error)
    );
    if (c->kv_source_count == 0) {
        FAIL(error, UNSUPPORTED, "'kv_source_layer_ids' is empty: no global KV cache");
    }
    c->encoder_layers = c->kv_source_layers[c->kv_source_count - 1];
    TRY(read_candidate(text, index_sources, index_count, c, error));
    struct plan_state state = {-1, -1};
    for (int32_t l = 0; l < c->layers; l++) {
        TRY(plan_layer(c, l, index_sources, index_count, &state, error));
        c->plan[l].engram = -1;
    }
    for (int32_t l = c->layers; l < c->layers + c->draft_layers; l++) {
        c->plan[l] = (struct layer_plan
        ){.mode = LAYER_WINDOW, .source = -1, .select_layer = -1, .engram = -1, .decoder = true};
    }
    for (int32_t i = 0; i < c->engram_count; i++) {
        // Decoder layers run only trailing rows and the last KV source projects all of them, so an
        // Engram there would need a pass of its own. The official models have none.
        if (c->engram_layers[i] >= c->encoder_layers) {
            FAIL(
                error,
                UNSUPPORTED,
                "'engram_layer_ids'[%d] is %d, this engine knows Engram only below layer %d, the "
                "last KV source",
                i,
                c->engram_layers[i],
                c->encoder_layers
            );
        }
        c->plan[c->engram_layers[i]].engram = i;
    }
    return OK;
}

static result parse_root(struct json_value root, struct model_config *config, struct error *error) {
    if (json_type(root) != JSON_OBJECT) {
        FAIL(error, INVALID_INPUT, "not an object but %s", json_type_name(json_type(root)));
    }
    TRY(check_architecture(root, error));
    TRY(check_quantization(root, error));
    struct json_value text;
    TRY(json_get_object(root, "text_config", &text, error));
    TRY(check_fixed_fields(text, error));
    TRY(field_integers(text, text_fields, COUNT_OF(text_fields), config, error));
    TRY(read_constants(text, config, error));
    TRY(read_token_ids(root, config, error));
    TRY(read_engram(text, config, error));
    TRY(read_draft(text, config, error));
    TRY(read_vision(root, config, error));
    TRY(check_relations(config, error));
    TRY(make_plan(text, config, error));
    return OK;
}

result model_config_parse(struct view text, struct model_config *out, struct error *error) {
    const struct json_limits limits = {CONFIG_BYTES_MAX, CONFIG_VALUES_MAX, CONFIG_DEPTH_MAX};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(text, &limits, &document, error), "config.json");
    struct model_config config;
    memset(&config, 0, sizeof config);
    TRY_NOTE(error, parse_root(json_root(document), &config, error), "config.json");
    *out = config;
    return OK;
}

struct engram_options model_engram_options(const struct model_config *config) {
    return (struct engram_options){
        .layer_ids = config->engram_layers,
        .layer_count = (size_t)config->engram_count,
        .row_counts = config->engram_rows,
        .order_max = config->engram_ngram_max,
        .head_count = config->engram_heads,
        .prime_start = config->engram_vocabulary,
        .pad_token_id = config->engram_pad_id,
        .compressed_count = config->engram_compressed_vocabulary,
        .vocabulary_count = config->vocabulary,
    };
}

int32_t model_rows_needed(const struct model_config *config, int32_t layer) {
    ASSERT(layer >= 0 && layer < config->layers);
    return layer < config->encoder_layers ? INT32_MAX : model_rows_reached(config, layer);
}

int32_t model_rows_reached(const struct model_config *config, int32_t layer) {
    ASSERT(layer >= 0 && layer < config->layers);
    int64_t rows = 1 + (int64_t)(config->layers - 1 - layer) * (config->window - 1);
    return rows > INT32_MAX ? INT32_MAX : (int32_t)rows;
}

int32_t model_rebuild_start(const struct model_config *config, int32_t hit, int32_t prompt_end) {
    ASSERT(hit >= 0);
    ASSERT(hit <= prompt_end);
    int64_t older = config->window - 1;
    int64_t entries = hit - config->encoder_layers * older;
    int64_t windows = prompt_end - config->layers * older - 1;
    int64_t start = entries < windows ? entries : windows;
    return start < 0 ? 0 : (int32_t)start;
}
