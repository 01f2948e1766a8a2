/* The configuration of a synthetic checkpoint: an official one with fewer layers, experts and
 * positions. See model_synth.h. */
#include "model_synth.h"

#include "base/json.h"
#include "model.h"

/* Layers kept, ascending. */
struct kept_layers {
    const struct model_config *config;
    int32_t ids[MODEL_LAYERS_MAX];
    int32_t count;
    bool is_kept[MODEL_LAYERS_MAX];
};

static bool same_kind(const struct layer_plan *a, const struct layer_plan *b) {
    return a->mode == b->mode && a->ratio == b->ratio && a->decoder == b->decoder &&
           a->within_pool == b->within_pool;
}

static bool is_first_of_kind(const struct model_config *config, int32_t layer) {
    for (int32_t l = 0; l < layer; l++) {
        if (same_kind(&config->plan[l], &config->plan[layer])) {
            return false;
        }
    }
    return true;
}

static void keep(struct kept_layers *kept, int32_t layer, int32_t wanted) {
    if (kept->count < wanted && !kept->is_kept[layer]) {
        kept->is_kept[layer] = true;
        kept->count++;
    }
}

/* The first ratio-m layer is a Full one, so every layer kept after it has its source. */
static void choose_layers(struct kept_layers *kept, int32_t wanted) {
    const struct model_config *config = kept->config;
    keep(kept, config->encoder_layers, wanted);
    for (int32_t l = 0; l < config->layers; l++) {
        if (is_first_of_kind(config, l)) {
            keep(kept, l, wanted);
        }
    }
    int32_t missing = wanted - kept->count;
    int32_t left = config->layers - kept->count;
    for (int32_t l = 0, seen = 0; l < config->layers; l++) {
        if (kept->is_kept[l]) {
            continue;
        }
        // the i-th of `left` is taken when i * missing / left steps
        if ((int64_t)(seen + 1) * missing / left > (int64_t)seen * missing / left) {
            kept->is_kept[l] = true;
            kept->count++;
        }
        seen++;
    }
    int32_t at = 0;
    for (int32_t l = 0; l < config->layers; l++) {
        if (kept->is_kept[l]) {
            kept->ids[at++] = l;
        }
    }
    ASSERT(at == kept->count && at == wanted);
}

static void write_ratios(struct json_writer *writer, const struct kept_layers *kept) {
    json_write_array_begin(writer);
    for (int32_t i = 0; i < kept->count; i++) {
        json_write_i64(writer, kept->config->plan[kept->ids[i]].ratio);
    }
    json_write_array_end(writer);
}

/* New ids of the kept layers that are sources (of KV, or of a selection). */
static void
write_sources(struct json_writer *writer, const struct kept_layers *kept, bool of_selection) {
    json_write_array_begin(writer);
    for (int32_t i = 0; i < kept->count; i++) {
        enum layer_mode mode = kept->config->plan[kept->ids[i]].mode;
        if (mode == LAYER_FULL || (of_selection && mode == LAYER_REINDEX)) {
            json_write_i64(writer, i);
        }
    }
    json_write_array_end(writer);
}

static int64_t new_id(const struct kept_layers *kept, int32_t layer) {
    for (int32_t i = 0; i < kept->count; i++) {
        if (kept->ids[i] == layer) {
            return i;
        }
    }
    return -1;
}

/* Writes the new value of a field of text_config; false when it stays as it is. */
static bool write_changed(
    struct json_writer *writer,
    const struct model_synth_options *options,
    const struct kept_layers *kept,
    struct view name
) {
    const struct model_config *config = kept->config;
    int32_t experts = options->experts == 0 ? config->experts : options->experts;
    struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"n_routed_experts", experts},
        {"num_experts_per_tok",
         config->experts_chosen < experts ? config->experts_chosen : experts},
        {"max_position_embeddings",
         options->positions == 0 ? config->positions_max : options->positions},
        {"num_hidden_layers", kept->count},
        {"candidate_source_layer_id", new_id(kept, config->candidate_layer)},
        {"num_nextn_predict_layers", 0},
    };
    bool is_cut = kept->count < config->layers;
    size_t last = is_cut ? COUNT_OF(numbers) : 3;
    for (size_t i = 0; i < last; i++) {
        if (view_equals_text(name, numbers[i].name)) {
            json_write_i64(writer, numbers[i].value);
            return true;
        }
    }
    if (!is_cut) {
        return false;
    }
    if (view_equals_text(name, "compress_ratios")) {
        write_ratios(writer, kept);
    } else if (view_equals_text(name, "kv_source_layer_ids")) {
        write_sources(writer, kept, false);
    } else if (view_equals_text(name, "index_source_layer_ids")) {
        write_sources(writer, kept, true);
    } else if (view_equals_text(name, "engram_layer_ids") || view_equals_text(name, "engram_num_embeddings")) {
        json_write_array_begin(writer);
        json_write_array_end(writer);
    } else {
        return false;
    }
    return true;
}

static void write_config(
    struct json_writer *writer,
    const struct model_synth_options *options,
    const struct kept_layers *kept,
    struct json_value root
) {
    json_write_object_begin(writer);
    for (struct json_value v = json_first(root); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view name = json_name(v);
        bool is_cut = kept->count < kept->config->layers;
        if (is_cut && view_equals_text(name, "vision_config")) {
            continue;
        }
        json_write_key_view(writer, name);
        if (!view_equals_text(name, "text_config")) {
            json_write_value(writer, v);
            continue;
        }
        json_write_object_begin(writer);
        for (struct json_value t = json_first(v); json_type(t) != JSON_ABSENT; t = json_next(t)) {
            json_write_key_view(writer, json_name(t));
            if (!write_changed(writer, options, kept, json_name(t))) {
                json_write_value(writer, t);
            }
        }
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
}

static result
write_from(const struct model_synth_options *options, struct buffer *out, struct error *error) {
    CLEANUP(free_cleanup) struct model_config *config = calloc(1, sizeof *config);
    CLEANUP(free_cleanup) struct kept_layers *kept = calloc(1, sizeof *kept);
    if (config == NULL || kept == NULL) {
        FAIL(error, MEMORY, "no memory for a model's configuration");
    }
    TRY(model_config_parse(options->config, config, error));
    int32_t layers = options->layers == 0 ? config->layers : options->layers;
    if (layers < 1 || layers > config->layers) {
        FAIL(error, INVALID_INPUT, "%d layers wanted, config.json has %d", layers, config->layers);
    }
    kept->config = config;
    choose_layers(kept, layers);
    const struct json_limits limits = {(size_t)1 << 20, (size_t)1 << 16, 8};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(options->config, &limits, &document, error), "config.json");
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    write_config(&writer, options, kept, json_root(document));
    return json_writer_finish(&writer);
}

result model_synth_config(
    const struct model_synth_options *options, struct buffer *out, struct error *error
) {
    ASSERT(options->layers >= 0);
    ASSERT(options->experts >= 0 && options->positions >= 0);
    return write_from(options, out, error);
}
