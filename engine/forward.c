/* Life of the forward pass, its buffers, and one step from ids to logits. See forward.h. */
#include "forward.h"

#include <math.h>

#include "forward_layer.h"

#define ALIGNMENT ((size_t)64)

/* Hands out pieces of one allocation; with a null base it only measures. */
struct arena {
    uint8_t *base;
    size_t used;
};

static void *arena_take(struct arena *arena, size_t count, size_t item_bytes) {
    size_t bytes = 0;
    bool fits = size_multiply(count, item_bytes, &bytes);
    ASSERT(fits);
    void *piece = arena->base == NULL ? NULL : arena->base + arena->used;
    arena->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return piece;
}

static struct quantized arena_take_quantized(struct arena *arena, size_t rows, size_t columns) {
    struct quantized taken;
    taken.codes = arena_take(arena, rows * columns, 1);
    taken.scales = arena_take(arena, rows * ((columns + 31) / 32), 1);
    return taken;
}

static size_t engram_columns(const struct model_config *config) {
    return config->engram_count == 0
               ? 0
               : (size_t)config->engram_heads * (size_t)(config->engram_ngram_max - 1);
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t logit_rows_max(const struct forward_options *options) {
    return options->rows_max < FORWARD_LOGIT_ROWS_MAX ? options->rows_max : FORWARD_LOGIT_ROWS_MAX;
}

static void buffers_take_streams(
    struct arena *arena,
    const struct model_config *config,
    const struct forward_options *options,
    struct forward_buffers *out
) {
    size_t rows = (size_t)options->rows_max;
    size_t streams = (size_t)config->streams;
    size_t hidden = (size_t)config->hidden;
    size_t pairs = (size_t)config->rope_dim / 2;
    out->ids = arena_take(arena, rows, sizeof(int32_t));
    out->positions = arena_take(arena, rows, sizeof(int32_t));
    out->entry_positions = arena_take(arena, rows, sizeof(int32_t));
    out->main_cosine = arena_take(arena, rows * pairs, sizeof(float));
    out->main_sine = arena_take(arena, rows * pairs, sizeof(float));
    out->compress_cosine = arena_take(arena, rows * pairs, sizeof(float));
    out->compress_sine = arena_take(arena, rows * pairs, sizeof(float));
    out->entry_cosine = arena_take(arena, rows * pairs, sizeof(float));
    out->entry_sine = arena_take(arena, rows * pairs, sizeof(float));
    out->streams = arena_take(arena, rows * streams * hidden, sizeof(uint16_t));
    out->mix = arena_take(arena, rows * streams, sizeof(float));
    out->post = arena_take(arena, rows * streams, sizeof(float));
    out->comb = arena_take(arena, rows * streams * streams, sizeof(float));
    out->normed = arena_take(arena, rows * hidden, sizeof(uint16_t));
    out->normed_q = arena_take_quantized(arena, rows, hidden);
    out->output = arena_take(arena, rows * hidden, sizeof(uint16_t));
    if (options->exports_targets) {
        size_t targets = (size_t)config->draft_target_count;
        out->target_hidden = arena_take(arena, rows * targets * hidden, sizeof(uint16_t));
        out->even_mix = arena_take(arena, rows * streams, sizeof(float));
    }
    out->head_input = arena_take(arena, rows * hidden, sizeof(uint16_t));
    out->logits = arena_take(
        arena, (size_t)logit_rows_max(options) * (size_t)config->vocabulary, sizeof(float)
    );
    out->index_counters = arena_take(arena, (size_t)config->layers, sizeof(struct index_counters));
}

static void buffers_take_attention(
    struct arena *arena, const struct model_config *config, size_t rows, struct forward_buffers *out
) {
    size_t head_dim = (size_t)config->head_dim;
    size_t query = (size_t)config->heads * head_dim;
    size_t q_lora = (size_t)config->q_lora;
    size_t grouped = (size_t)config->o_groups * (size_t)config->o_lora;
    size_t index_dim = (size_t)config->index_dim;
    size_t index_query = (size_t)config->index_heads * index_dim;
    out->query_latent = arena_take(arena, rows * q_lora, sizeof(uint16_t));
    out->query_latent_q = arena_take_quantized(arena, rows, q_lora);
    out->query = arena_take(arena, rows * query, sizeof(uint16_t));
    out->window_latent = arena_take(arena, rows * head_dim, sizeof(uint16_t));
    out->window_records = arena_take(arena, rows, window_record_bytes(config->head_dim));
    out->attended = arena_take(arena, rows * query, sizeof(uint16_t));
    out->grouped = arena_take(arena, rows * grouped, sizeof(uint16_t));
    out->grouped_q = arena_take_quantized(arena, rows, grouped);
    out->compress_kv = arena_take(arena, rows * head_dim, sizeof(float));
    out->compress_score = arena_take(arena, rows * head_dim, sizeof(float));
    out->latent = arena_take(arena, rows * head_dim, sizeof(uint16_t));
    out->index_key = arena_take(arena, rows * index_dim, sizeof(uint16_t));
    out->index_query = arena_take(arena, rows * index_query, sizeof(uint16_t));
    out->index_codes = arena_take(arena, rows * index_query / 2, 1);
    out->index_scales = arena_take(arena, rows * index_query / 32, 1);
    out->index_weights = arena_take(arena, rows * (size_t)config->index_heads, sizeof(uint16_t));
    out->selected = arena_take(arena, rows * (size_t)config->index_topk, sizeof(int32_t));
    out->selected_count = arena_take(arena, rows, sizeof(int32_t));
    out->pool = arena_take(arena, rows * (size_t)config->candidate_blocks, sizeof(int32_t));
    out->pool_count = arena_take(arena, rows, sizeof(int32_t));
}

static void buffers_take_experts(
    struct arena *arena, const struct model_config *config, size_t rows, struct forward_buffers *out
) {
    size_t columns = engram_columns(config);
    size_t engram = columns * (size_t)config->engram_dim;
    size_t kv = columns == 0 ? 0 : (size_t)(config->streams + 1) * (size_t)config->hidden;
    size_t chosen = (size_t)larger(config->experts_chosen, config->draft_experts_chosen);
    size_t experts = (size_t)larger(config->experts, config->draft_experts);
    out->router_logits = arena_take(arena, rows * experts, sizeof(float));
    out->expert_ids = arena_take(arena, rows * chosen, sizeof(int32_t));
    out->expert_weights = arena_take(arena, rows * chosen, sizeof(float));
    out->engram_ids =
        arena_take(arena, (size_t)config->engram_count * rows * columns, sizeof(int64_t));
    out->engram_rows = arena_take(arena, rows * engram, sizeof(uint16_t));
    out->engram_q = arena_take_quantized(arena, rows, engram);
    out->engram_kv = arena_take(arena, rows * kv, sizeof(uint16_t));
    out->engram_gate = arena_take(arena, rows * (size_t)config->streams, sizeof(float));
}

static size_t pair_count(const struct model_config *config) {
    size_t pairs = 0;
    for (int32_t s = 0; s < config->kv_source_count; s++) {
        pairs += config->plan[config->kv_source_layers[s]].ratio == 2;
    }
    return pairs;
}

/* What drafted segments hold back. */
static void buffers_take_held(
    struct arena *arena,
    const struct model_config *config,
    const struct forward_options *options,
    struct forward_buffers *out
) {
    size_t rows = (size_t)options->drafted_rows_max;
    size_t layers = (size_t)config->layers;
    if (rows > 0) {
        size_t pairs = pair_count(config) * rows * (size_t)config->head_dim;
        out->held_records = arena_take(arena, layers * rows, window_record_bytes(config->head_dim));
        out->held_kv = arena_take(arena, pairs, sizeof(float));
        out->held_score = arena_take(arena, pairs, sizeof(float));
        out->held_views = arena_take(
            arena, layers * (size_t)options->sequences_max, sizeof(struct sequence_view)
        );
    }
}

static size_t forward_arena(
    uint8_t *base,
    const struct model_config *config,
    const struct forward_options *options,
    struct forward *forward
) {
    struct arena arena = {.base = base};
    size_t sequences = (size_t)options->sequences_max;
    buffers_take_streams(&arena, config, options, &forward->buffers);
    buffers_take_attention(&arena, config, (size_t)options->rows_max, &forward->buffers);
    buffers_take_experts(&arena, config, (size_t)options->rows_max, &forward->buffers);
    forward->frequencies = arena_take(&arena, (size_t)config->rope_dim, sizeof(float));
    buffers_take_held(&arena, config, options, &forward->buffers);
    size_t stages = forward_stage_count(config, options->drafted_rows_max > 0);
    forward->stage_device = arena_take(&arena, stages * sequences, sizeof(struct row_segment));
    forward->views_device =
        arena_take(&arena, (size_t)config->layers * sequences, sizeof(struct sequence_view));
    return arena.used;
}

struct memory_bytes
forward_measure(const struct model_config *config, const struct forward_options *options) {
    struct forward measured = {0};
    size_t rows = (size_t)options->rows_max;
    return (struct memory_bytes){
        .device = forward_arena(NULL, config, options, &measured),
        .host = (4 * rows + (size_t)config->engram_ngram_max) * sizeof(int32_t) +
                rows * engram_columns(config) * (sizeof(int32_t) + sizeof(int64_t)),
    };
}

/* Widest row of any linear input, and of all streams. */
static int32_t widest_row(const struct model_config *config) {
    int64_t widths[] = {
        (int64_t)config->streams * config->hidden,
        (int64_t)config->heads * config->head_dim,
        (int64_t)config->o_groups * config->o_lora,
        config->q_lora,
        config->expert_hidden,
        (int64_t)engram_columns(config) * config->engram_dim,
        (int64_t)config->draft_target_count * config->hidden,
    };
    int64_t widest = 0;
    for (size_t i = 0; i < COUNT_OF(widths); i++) {
        widest = widths[i] > widest ? widths[i] : widest;
    }
    return narrow_i32(widest);
}

void forward_backend_options(
    const struct model_config *config,
    int32_t rows_max,
    int32_t context_max,
    struct backend_options *out
) {
    *out = (struct backend_options){
        .rows_max = rows_max,
        .dim_max = widest_row(config),
        .context_max = context_max,
        .model_dim = config->hidden,
        .experts = larger(config->experts, config->draft_experts),
        .experts_chosen = larger(config->experts_chosen, config->draft_experts_chosen),
        .expert_hidden = config->expert_hidden,
        .heads = config->heads,
        .head_dim = config->head_dim,
        .index_heads = config->index_heads,
        .index_dim = config->index_dim,
        .index_topk = config->index_topk,
    };
}

/* f_i = theta^(-2i/r) in FP32 as the reference computes it; with YaRN the slow pairs are divided by
 * the factor, over a linear ramp between the two correction dimensions (spec 3.4). */
void forward_frequencies(const struct model_config *config, bool compress, float *out) {
    int32_t dim = config->rope_dim;
    double theta = compress ? config->compress_rope_theta : config->rope_theta;
    bool yarn = compress && config->yarn_original_positions > 0;
    double low = 0;
    double high = 0;
    if (yarn) {
        const double two_pi = 6.283185307179586;
        double original = config->yarn_original_positions;
        double scale = dim / (2 * log(theta));
        low = floor(scale * log(original / (config->yarn_beta_fast * two_pi)));
        high = ceil(scale * log(original / (config->yarn_beta_slow * two_pi)));
        low = low < 0 ? 0 : low;
        high = high > dim - 1 ? dim - 1 : high;
        high = high <= low ? low + 0.001 : high;
    }
    for (int32_t i = 0; i < dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)dim;
        float frequency = 1.0F / (float)pow(theta, (double)exponent);
        if (yarn) {
            float ramp = ((float)i - (float)low) / (float)(high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            float smooth = 1.0F - ramp;
            frequency =
                frequency / (float)config->yarn_factor * (1.0F - smooth) + frequency * smooth;
        }
        out[i] = frequency;
    }
}

static result forward_upload_frequencies(struct forward *forward, struct error *error) {
    const struct model_config *config = forward->config;
    size_t pairs = (size_t)config->rope_dim / 2;
    CLEANUP(free_cleanup) float *frequencies = calloc(2 * pairs, sizeof *frequencies);
    if (frequencies == NULL) {
        FAIL(error, MEMORY, "no memory for %zu rotary frequencies", 2 * pairs);
    }
    forward_frequencies(config, false, frequencies);
    forward_frequencies(config, true, frequencies + pairs);
    forward->backend->upload(
        forward->backend, forward->frequencies, frequencies, 2 * pairs * sizeof *frequencies
    );
    return forward->backend->synchronize(forward->backend, error);
}

static result forward_upload_even_mix(struct forward *forward, struct error *error) {
    if (forward->buffers.even_mix == NULL) {
        return OK;
    }
    size_t count = (size_t)forward->options.rows_max * (size_t)forward->config->streams;
    CLEANUP(free_cleanup) float *mix = calloc(count, sizeof *mix);
    if (mix == NULL) {
        FAIL(error, MEMORY, "no memory for the mix of %d rows", forward->options.rows_max);
    }
    for (size_t i = 0; i < count; i++) {
        mix[i] = 1.0F / (float)forward->config->streams;
    }
    forward->backend->upload(forward->backend, forward->buffers.even_mix, mix, count * sizeof *mix);
    return forward->backend->synchronize(forward->backend, error);
}

/* A selection (or pool) made at layer s is read by the rows of later layers that use it. */
static void forward_plan_keeping(struct forward *forward) {
    const struct model_config *config = forward->config;
    bool selected = false;
    bool pool = false;
    bool entries = false;
    for (int32_t l = config->layers - 1; l >= 0; l--) {
        const struct layer_plan *plan = &config->plan[l];
        forward->keep_entries[l] = entries; // its own pairs are pooled before its rows are narrowed
        entries = entries || (plan->mode == LAYER_FULL && plan->ratio == 2);
        /* What is made at l is not there yet when its rows are narrowed. */
        if (plan->select_layer == l) {
            selected = false;
        }
        pool = pool && !plan->publishes_pool;
        selected = selected || (plan->select_layer >= 0 && plan->select_layer < l);
        pool = pool || plan->within_pool;
        forward->keep_selected[l] = selected;
        forward->keep_pool[l] = pool;
        int32_t targets = forward->options.exports_targets ? config->draft_target_count : 0;
        forward->keep_targets[l] =
            targets > 0 && l >= config->draft_targets[0] && l < config->draft_targets[targets - 1];
    }
}

static result forward_allocate_host(struct forward *forward, struct error *error) {
    const struct model_config *config = forward->config;
    size_t rows = (size_t)forward->options.rows_max;
    size_t sequences = (size_t)forward->options.sequences_max;
    size_t layers = (size_t)config->layers;
    size_t columns = engram_columns(config);
    size_t engram = rows * columns + 1;
    forward->host_rows = calloc(3 * rows, sizeof *forward->host_rows);
    forward->host_engram = calloc(engram, sizeof *forward->host_engram);
    forward->host_history =
        calloc(rows + (size_t)config->engram_ngram_max, sizeof *forward->host_history);
    forward->host_engram_ids = calloc(engram, sizeof *forward->host_engram_ids);
    forward->window_stages = calloc(layers, sizeof *forward->window_stages);
    forward->full_stages = calloc(layers, sizeof *forward->full_stages);
    forward->commit_stages = calloc(layers, sizeof *forward->commit_stages);
    forward->held_stages = calloc(layers, sizeof *forward->held_stages);
    forward->held_first = calloc(sequences, sizeof *forward->held_first);
    bool drafts = forward->options.drafted_rows_max > 0;
    size_t stages = forward_stage_count(config, drafts);
    forward->stage_host = calloc(stages * sequences, sizeof *forward->stage_host);
    forward->views_host =
        calloc((drafts ? 2 : 1) * layers * sequences, sizeof *forward->views_host);
    forward->index_counters = calloc(layers, sizeof *forward->index_counters);
    if (forward->host_rows == NULL || forward->host_engram == NULL ||
        forward->host_history == NULL || forward->host_engram_ids == NULL ||
        forward->window_stages == NULL || forward->full_stages == NULL ||
        forward->commit_stages == NULL || forward->held_stages == NULL ||
        forward->held_first == NULL || forward->stage_host == NULL || forward->views_host == NULL ||
        forward->index_counters == NULL) {
        FAIL(error, MEMORY, "no memory for the plan of a step of %zu rows", rows);
    }
    return OK;
}

static void forward_cleanup(struct forward **forward) {
    forward_destroy(*forward);
}

result forward_create(
    struct forward **out,
    const struct model *model,
    const struct engram *engram,
    struct backend *backend,
    struct kv_cache *cache,
    const struct forward_options *options,
    struct error *error
) {
    ASSERT(options->rows_max > 0);
    ASSERT(options->sequences_max > 0);
    ASSERT(engram != NULL || model->config.engram_count == 0);
    CLEANUP(forward_cleanup) struct forward *forward = calloc(1, sizeof *forward);
    if (forward == NULL) {
        FAIL(error, MEMORY, "no memory for the forward pass");
    }
    forward->model = model;
    forward->config = &model->config;
    forward->engram = engram;
    forward->backend = backend;
    forward->cache = cache;
    forward->options = *options;
    ASSERT(!options->exports_targets || model->config.draft_target_count > 0);
    TRY(forward_allocate_host(forward, error));
    size_t bytes = forward_arena(NULL, forward->config, options, forward);
    TRY_NOTE(
        error,
        backend->allocate(backend, bytes, &forward->arena, error),
        "activations of %d rows",
        options->rows_max
    );
    (void)forward_arena(forward->arena, forward->config, options, forward);
    forward_plan_keeping(forward);
    TRY(forward_upload_frequencies(forward, error));
    TRY(forward_upload_even_mix(forward, error));
    *out = TAKE(forward);
    return OK;
}

void forward_destroy(struct forward *forward) {
    if (forward == NULL) {
        return;
    }
    struct backend *backend = forward->backend;
    if (backend != NULL && backend->step_forget != NULL) {
        backend->step_forget(backend);
    }
    if (backend != NULL) {
        backend->release(backend, forward->arena);
    }
    free(forward->index_counters);
    free(forward->views_host);
    free(forward->stage_host);
    free(forward->held_first);
    free(forward->held_stages);
    free(forward->commit_stages);
    free(forward->full_stages);
    free(forward->window_stages);
    free(forward->host_engram_ids);
    free(forward->host_history);
    free(forward->host_engram);
    free(forward->host_rows);
    free(forward);
}

static void count_rows(struct forward *forward) {
    size_t layers = (size_t)forward->config->layers;
    if (forward->counters == NULL) {
        return;
    }
    forward->backend->download(
        forward->backend,
        forward->index_counters,
        forward->buffers.index_counters,
        layers * sizeof *forward->index_counters
    );
    for (size_t l = 0; l < layers; l++) {
        struct layer_counters *counters = &forward->counters[l];
        const struct index_counters *index = &forward->index_counters[l];
        int32_t full = forward->full_stages[l].rows;
        counters->rows_full += (uint64_t)full;
        counters->rows_window_only += (uint64_t)(forward->window_stages[l].rows - full);
        counters->index_rows += index->entries_scored;
        counters->topk_runs += index->topk_runs;
        if (index->entries_scored_max > counters->index_rows_max) {
            counters->index_rows_max = index->entries_scored_max;
        }
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Logits of rows [first, first + rows) of those that have some, into the first rows of the buffer. */
static void head_product(struct forward *forward, int32_t first, int32_t rows) {
    const struct model_config *config = forward->config;
    struct linear_op op = {
        .rows = rows,
        .groups = 1,
        .in = config->hidden,
        .out = config->vocabulary,
        .input_dtype = DTYPE_BF16,
        .input = forward->buffers.head_input + (size_t)first * (size_t)config->hidden,
        .weight = forward->model->head,
        .output_dtype = DTYPE_F32,
        .output = forward->buffers.logits,
    };
    backend_linear(forward->backend, &op);
}

/* Whether the step's ops and their arguments follow from its number of rows alone: each sequence
 * decodes one row, which reaches every layer and has logits, and nothing of it is held back, counted or
 * looked at. */
static bool step_is_uniform(const struct forward *forward) {
    int32_t rows = forward->all_stage.rows;
    bool is_uniform = rows == forward->segment_count && forward->head_stage.rows == rows &&
                      rows <= logit_rows_max(&forward->options) && forward->held_rows == 0 &&
                      forward->counters == NULL && !forward->selection_is_given &&
                      forward->test_scores == NULL;
    for (int32_t l = 0; l < forward->config->layers && is_uniform; l++) {
        is_uniform = forward->window_stages[l].rows == rows && forward->full_stages[l].rows == rows;
    }
    return is_uniform;
}

uint64_t forward_step_key(const void *arena, int32_t rows) {
    ASSERT(rows >= 0 && rows < 1 << 16);
    return (uint64_t)(uintptr_t)arena << 16 | (uint64_t)rows; // addresses have 48 bits
}

static void run_layers(struct forward *forward) {
    forward_rope(forward);
    forward_embed(forward);
    for (int32_t l = 0; l < forward->config->layers && forward->stage.rows > 0; l++) {
        forward_layer(forward, l);
    }
    forward_head(forward);
}

static void run_step(struct forward *forward) {
    struct backend *backend = forward->backend;
    if (backend->step_begin == NULL || !step_is_uniform(forward)) {
        run_layers(forward);
        return;
    }
    int32_t rows = forward->head_stage.rows;
    bool runs = backend->step_begin(backend, forward_step_key(forward->arena, rows));
    if (!runs) {
        run_layers(forward);
        head_product(forward, 0, rows);
        runs = backend->step_end(backend);
    }
    if (!runs) {
        forward->stage = forward->all_stage;
        run_layers(forward);
        head_product(forward, 0, rows);
    }
    forward->stage = forward->head_stage;
    forward->logits_ready = rows;
}

result forward_step(
    struct forward *forward,
    const struct forward_segment *segments,
    int32_t count,
    struct layer_counters *counters,
    struct error *error
) {
    forward->counters = counters;
    forward_begin(forward, segments, count);
    run_step(forward);
    result ran = forward->backend->synchronize(forward->backend, error);
    if (is_failed(ran)) {
        forward->held_rows = 0; // nothing of it can be kept
        return ran;
    }
    count_rows(forward);
    const struct row_segment *source = forward->window_stages[forward->config->encoder_layers].host;
    for (int32_t s = 0; s < count; s++) {
        struct kv_sequence *sequence = segments[s].sequence;
        if (segments[s].drafted == 0) {
            sequence->computed = segments[s].position + segments[s].count;
        }
        if (source[s].position > segments[s].position) {
            sequence->source_floor = source[s].position; // rows before never got there
        }
    }
    return OK;
}

void forward_targets(const struct forward *forward, struct forward_targets *out) {
    ASSERT(forward->options.exports_targets);
    *out = (struct forward_targets){
        .hidden = forward->buffers.target_hidden,
        .segments = forward->target_stage,
    };
}

int32_t forward_logit_rows(const struct forward *forward) {
    return forward->head_stage.rows;
}

result forward_logits(
    struct forward *forward, int32_t first, int32_t count, float *out, struct error *error
) {
    ASSERT(first >= 0);
    ASSERT(count >= 0);
    ASSERT(first + count <= forward->head_stage.rows);
    struct backend *backend = forward->backend;
    size_t vocabulary = (size_t)forward->config->vocabulary;
    int32_t at_once = logit_rows_max(&forward->options);
    for (int32_t done = 0; done < count;) {
        int32_t rows = count - done < at_once ? count - done : at_once;
        const float *from = forward->buffers.logits;
        if (first + count <= forward->logits_ready) {
            from += (size_t)(first + done) * vocabulary;
        } else {
            forward->logits_ready = 0;
            head_product(forward, first + done, rows);
        }
        size_t bytes = (size_t)rows * vocabulary * sizeof(float);
        backend->download(backend, out + (size_t)done * vocabulary, from, bytes);
        TRY(backend->synchronize(backend, error));
        done += rows;
    }
    return OK;
}
