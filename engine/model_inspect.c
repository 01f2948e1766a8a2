/* See model_inspect.h. Text and JSON are written from the same facts. */
#include "model_inspect.h"

#include "base/json.h"
#include "model.h"

#include <inttypes.h>

struct facts {
    struct model_config config;
    struct model_size size;
    uint64_t kv_block_bytes;        /* global KV of 128 tokens, all sources (spec 4.1, 4.3) */
    double kv_bytes_per_token;      /* a 128th of it */
    uint64_t window_sequence_bytes; /* rings of all layers and draft stages */
    uint64_t pending_bytes;         /* FP32 pairs of ratio-2 sources (4.4) */
};

static const char *const mode_names[] = {
    [LAYER_WINDOW] = "window",
    [LAYER_FULL] = "full",
    [LAYER_REINDEX] = "reindex",
    [LAYER_REUSE] = "reuse",
};

static void count_caches(struct facts *facts) {
    const struct model_config *c = &facts->config;
    uint64_t d = (uint64_t)c->head_dim;
    uint64_t i = (uint64_t)c->index_dim;
    uint64_t entry = d / 2 + d / 16 + i / 2 + i / 32;
    for (int32_t s = 0; s < c->kv_source_count; s++) {
        int32_t ratio = c->plan[c->kv_source_layers[s]].ratio;
        ASSERT(ratio == 1 || ratio == 2);
        facts->kv_block_bytes += KV_BLOCK_TOKENS / (uint64_t)ratio * entry;
        facts->pending_bytes += ratio == 2 ? 2 * d * sizeof(float) : 0;
    }
    facts->kv_bytes_per_token = (double)facts->kv_block_bytes / KV_BLOCK_TOKENS;
    facts->window_sequence_bytes = (uint64_t)(c->layers + c->draft_layers) * (uint64_t)c->window *
                                   window_record_bytes(c->head_dim);
}

/* Layer numbers a layer reads from; -1 for none. */
static int32_t source_layer(const struct model_config *c, const struct layer_plan *plan) {
    return plan->source < 0 ? -1 : c->kv_source_layers[plan->source];
}

/* ---- text ---- */

static result write_dimensions(const struct facts *f, struct buffer *out, struct error *error) {
    const struct model_config *c = &f->config;
    TRY(buffer_append_format(
        out,
        error,
        "layers      %d (%d encoder, %d decoder), %d draft stages, %d vision layers\n"
        "width       %d in %d streams, vocabulary %d\n",
        c->layers,
        c->encoder_layers,
        c->layers - c->encoder_layers,
        c->draft_layers,
        c->vision_layers,
        c->hidden,
        c->streams,
        c->vocabulary
    ));
    TRY(buffer_append_format(
        out,
        error,
        "attention   %d heads of %d (%d rotated), window %d, positions %" PRId64 "\n"
        "index       %d heads of %d, top %d",
        c->heads,
        c->head_dim,
        c->rope_dim,
        c->window,
        c->positions_max,
        c->index_heads,
        c->index_dim,
        c->index_topk
    ));
    if (c->candidate_layer >= 0) {
        TRY(buffer_append_format(
            out,
            error,
            ", pool of %d blocks of %d from layer %d",
            c->candidate_blocks,
            c->candidate_block_entries,
            c->candidate_layer
        ));
    }
    return buffer_append_format(
        out,
        error,
        "\nexperts     %d of %d and a shared one, width %d\n",
        c->experts_chosen,
        c->experts,
        c->expert_hidden
    );
}

static result write_bytes(
    const char *name,
    const struct model_bytes *part,
    uint64_t total,
    struct buffer *out,
    struct error *error
) {
    if (part->tensors == 0) {
        return OK;
    }
    return buffer_append_format(
        out,
        error,
        "  %-22s %8zu %20" PRIu64 " %6.2f %%\n",
        name,
        part->tensors,
        part->bytes,
        total == 0 ? 0.0 : 100.0 * (double)part->bytes / (double)total
    );
}

static result write_sizes(const struct facts *f, struct buffer *out, struct error *error) {
    const struct model_size *s = &f->size;
    TRY(buffer_append_format(
        out, error, "\n  %-22s %8s %20s %8s\n", "group", "tensors", "bytes", "share"
    ));
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        const char *name = model_group_name((enum model_group)g);
        TRY(write_bytes(name, &s->groups[g], s->total.bytes, out, error));
    }
    TRY(write_bytes("total", &s->total, s->total.bytes, out, error));
    TRY(buffer_append_format(
        out, error, "\n  %-22s %8s %20s %8s\n", "stored as", "tensors", "bytes", "share"
    ));
    for (int i = 0; i < MODEL_STORAGE_COUNT; i++) {
        const char *name = model_storage_name((enum model_storage)i);
        TRY(write_bytes(name, &s->storage[i], s->total.bytes, out, error));
    }
    return buffer_append_format(
        out,
        error,
        "\nmapped      %" PRIu64 " bytes in %zu file%s\n"
        "global KV   %.10g bytes per token (%" PRIu64 " per block of %d)\n"
        "per sequence  %" PRIu64 " bytes of window rings, %" PRIu64 " of pending pairs\n",
        s->file_bytes,
        s->shards,
        s->shards == 1 ? "" : "s",
        f->kv_bytes_per_token,
        f->kv_block_bytes,
        KV_BLOCK_TOKENS,
        f->window_sequence_bytes,
        f->pending_bytes
    );
}

/* "7", or "-" for none. */
static void layer_text(int32_t layer, char out[16]) {
    int length = layer < 0 ? snprintf(out, 16, "-") : snprintf(out, 16, "%d", layer);
    ASSERT(length > 0 && length < 16);
}

static result write_plan(const struct facts *f, struct buffer *out, struct error *error) {
    const struct model_config *c = &f->config;
    TRY(buffer_append_text(
        out, "\nlayer  half  ratio  mode     KV of  selection of  pool       engram  rope\n", error
    ));
    for (int32_t l = 0; l < c->layers; l++) {
        const struct layer_plan *plan = &c->plan[l];
        char source[16];
        char select[16];
        char engram[16];
        layer_text(source_layer(c, plan), source);
        layer_text(plan->select_layer, select);
        layer_text(plan->engram, engram);
        TRY(buffer_append_format(
            out,
            error,
            "%5d  %-4s  %5d  %-7s  %5s  %12s  %-9s  %6s  %s\n",
            l,
            plan->decoder ? "dec" : "enc",
            plan->ratio,
            mode_names[plan->mode],
            source,
            select,
            plan->publishes_pool ? "publishes"
            : plan->within_pool  ? "inside"
                                 : "-",
            engram,
            plan->compress_rope ? "compress" : "main"
        ));
    }
    return OK;
}

static result
write_text(const char *directory, const struct facts *f, struct buffer *out, struct error *error) {
    TRY(buffer_append_format(out, error, "model       %s\n", directory));
    TRY(write_dimensions(f, out, error));
    TRY(write_sizes(f, out, error));
    return write_plan(f, out, error);
}

/* ---- JSON ---- */

static void json_bytes(struct json_writer *w, const char *name, const struct model_bytes *part) {
    json_write_key(w, name);
    json_write_object_begin(w);
    json_write_key(w, "tensors");
    json_write_u64(w, part->tensors);
    json_write_key(w, "bytes");
    json_write_u64(w, part->bytes);
    json_write_object_end(w);
}

static void json_dimensions(struct json_writer *w, const struct model_config *c) {
    struct {
        const char *name;
        int64_t value;
    } const fields[] = {
        {"vocabulary", c->vocabulary},
        {"hidden", c->hidden},
        {"layers", c->layers},
        {"encoder_layers", c->encoder_layers},
        {"draft_layers", c->draft_layers},
        {"vision_layers", c->vision_layers},
        {"streams", c->streams},
        {"heads", c->heads},
        {"head_dim", c->head_dim},
        {"rope_dim", c->rope_dim},
        {"window", c->window},
        {"positions_max", c->positions_max},
        {"index_heads", c->index_heads},
        {"index_dim", c->index_dim},
        {"index_topk", c->index_topk},
        {"candidate_layer", c->candidate_layer},
        {"candidate_blocks", c->candidate_blocks},
        {"candidate_block_entries", c->candidate_block_entries},
        {"experts", c->experts},
        {"experts_chosen", c->experts_chosen},
        {"expert_hidden", c->expert_hidden},
    };
    json_write_key(w, "dimensions");
    json_write_object_begin(w);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        json_write_key(w, fields[i].name);
        json_write_i64(w, fields[i].value);
    }
    json_write_object_end(w);
}

static void json_plan(struct json_writer *w, const struct model_config *c) {
    json_write_key(w, "plan");
    json_write_array_begin(w);
    for (int32_t l = 0; l < c->layers; l++) {
        const struct layer_plan *plan = &c->plan[l];
        json_write_object_begin(w);
        json_write_key(w, "layer");
        json_write_i64(w, l);
        json_write_key(w, "decoder");
        json_write_bool(w, plan->decoder);
        json_write_key(w, "ratio");
        json_write_i64(w, plan->ratio);
        json_write_key(w, "mode");
        json_write_text(w, mode_names[plan->mode]);
        json_write_key(w, "source_layer");
        json_write_i64(w, source_layer(c, plan));
        json_write_key(w, "select_layer");
        json_write_i64(w, plan->select_layer);
        json_write_key(w, "publishes_pool");
        json_write_bool(w, plan->publishes_pool);
        json_write_key(w, "within_pool");
        json_write_bool(w, plan->within_pool);
        json_write_key(w, "engram");
        json_write_i64(w, plan->engram);
        json_write_key(w, "compress_rope");
        json_write_bool(w, plan->compress_rope);
        json_write_object_end(w);
    }
    json_write_array_end(w);
}

static result
write_json(const char *directory, const struct facts *f, struct buffer *out, struct error *error) {
    struct json_writer w;
    json_writer_init(&w, out, error);
    json_write_object_begin(&w);
    json_write_key(&w, "model");
    json_write_text(&w, directory);
    json_dimensions(&w, &f->config);
    json_write_key(&w, "groups");
    json_write_object_begin(&w);
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        json_bytes(&w, model_group_name((enum model_group)g), &f->size.groups[g]);
    }
    json_write_object_end(&w);
    json_write_key(&w, "storage");
    json_write_object_begin(&w);
    for (int i = 0; i < MODEL_STORAGE_COUNT; i++) {
        json_bytes(&w, model_storage_name((enum model_storage)i), &f->size.storage[i]);
    }
    json_write_object_end(&w);
    json_bytes(&w, "total", &f->size.total);
    json_write_key(&w, "shards");
    json_write_u64(&w, f->size.shards);
    json_write_key(&w, "file_bytes");
    json_write_u64(&w, f->size.file_bytes);
    json_write_key(&w, "kv_bytes_per_token");
    json_write_double(&w, f->kv_bytes_per_token);
    json_write_key(&w, "kv_block_bytes");
    json_write_u64(&w, f->kv_block_bytes);
    json_write_key(&w, "window_bytes_per_sequence");
    json_write_u64(&w, f->window_sequence_bytes);
    json_write_key(&w, "pending_bytes_per_sequence");
    json_write_u64(&w, f->pending_bytes);
    json_plan(&w, &f->config);
    json_write_object_end(&w);
    return json_writer_finish(&w);
}

result model_inspect(const char *directory, bool json, struct buffer *out, struct error *error) {
    struct facts facts;
    memset(&facts, 0, sizeof facts);
    TRY(model_measure(directory, &facts.config, &facts.size, error));
    count_caches(&facts);
    return json ? write_json(directory, &facts, out, error)
                : write_text(directory, &facts, out, error);
}
