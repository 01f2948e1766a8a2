/* Life of the draft stages, their rings, and guesses from logits. See draft.h. */
#include "draft.h"

#include "draft_layer.h"

#define ALIGNMENT ((size_t)64)

/* Hands out pieces of one allocation; with a null base it only measures. */
struct pieces {
    uint8_t *base;
    size_t used;
};

static void *take(struct pieces *pieces, size_t count, size_t item_bytes) {
    size_t bytes = 0;
    bool fits = size_multiply(count, item_bytes, &bytes);
    ASSERT(fits);
    void *piece = pieces->base == NULL ? NULL : pieces->base + pieces->used;
    pieces->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return piece;
}

/* Counts of the parts; rows and segments as the forward pass has them. */
struct draft_shape {
    size_t rows, sequences, stages, vocabulary, hidden, targets, rank;
    size_t per_head; /* sequences of one head product */
    size_t logit_rows;
};

static struct draft_shape
shape_of(const struct model_config *config, const struct forward_options *options) {
    int32_t most =
        options->rows_max < FORWARD_LOGIT_ROWS_MAX ? options->rows_max : FORWARD_LOGIT_ROWS_MAX;
    int32_t fit = most / config->draft_block;
    size_t per_head = (size_t)(fit < options->sequences_max ? fit : options->sequences_max);
    return (struct draft_shape){
        .rows = (size_t)options->rows_max,
        .sequences = (size_t)options->sequences_max,
        .stages = (size_t)config->draft_layers,
        .vocabulary = (size_t)config->vocabulary,
        .hidden = (size_t)config->hidden,
        .targets = (size_t)config->draft_target_count,
        .rank = (size_t)config->draft_markov_rank,
        .per_head = per_head,
        .logit_rows = per_head * (size_t)config->draft_block,
    };
}

static size_t draft_arena(uint8_t *base, const struct draft_shape *shape, struct draft *draft) {
    struct pieces pieces = {.base = base};
    size_t wide = shape->rows * shape->targets * shape->hidden;
    size_t per_head = shape->per_head;
    draft->hidden_q.codes = take(&pieces, wide, 1);
    draft->hidden_q.scales = take(&pieces, wide / 32, 1);
    draft->collapsed = take(&pieces, shape->rows * shape->hidden, sizeof(uint16_t));
    draft->confidence = take(&pieces, shape->rows, sizeof(float));
    draft->markov = take(&pieces, per_head * shape->rank, sizeof(uint16_t));
    draft->markov_mix = take(&pieces, per_head, sizeof(float));
    draft->markov_confidence = take(&pieces, per_head, sizeof(float));
    draft->rows = take(&pieces, shape->sequences, sizeof *draft->rows);
    draft->query = take(&pieces, shape->rows, sizeof *draft->query);
    draft->fresh = take(&pieces, shape->rows, sizeof *draft->fresh);
    draft->ring_views = take(&pieces, shape->stages * shape->sequences, sizeof *draft->ring_views);
    draft->query_views = take(&pieces, shape->stages * shape->rows, sizeof *draft->query_views);
    return pieces.used;
}

static size_t draft_host(uint8_t *base, const struct draft_shape *shape, struct draft *draft) {
    struct pieces pieces = {.base = base};
    size_t rows = shape->rows;
    draft->host_rows = take(&pieces, shape->sequences, sizeof *draft->host_rows);
    draft->host_query = take(&pieces, rows, sizeof *draft->host_query);
    draft->host_fresh = take(&pieces, rows, sizeof *draft->host_fresh);
    draft->host_ring_views =
        take(&pieces, shape->stages * shape->sequences, sizeof *draft->host_ring_views);
    draft->host_query_views = take(&pieces, shape->stages * rows, sizeof *draft->host_query_views);
    draft->host_ids = take(&pieces, rows, sizeof *draft->host_ids);
    draft->host_positions = take(&pieces, rows, sizeof *draft->host_positions);
    draft->host_tokens = take(&pieces, shape->per_head, sizeof *draft->host_tokens);
    draft->host_confidence = take(&pieces, rows, sizeof *draft->host_confidence);
    draft->host_markov_confidence =
        take(&pieces, shape->per_head, sizeof *draft->host_markov_confidence);
    draft->host_logits =
        take(&pieces, shape->logit_rows * shape->vocabulary, sizeof *draft->host_logits);
    draft->host_bias = take(&pieces, shape->per_head * shape->vocabulary, sizeof *draft->host_bias);
    return pieces.used;
}

struct memory_bytes
draft_measure(const struct model_config *config, const struct forward_options *options) {
    struct draft measured = {0};
    struct draft_shape shape = shape_of(config, options);
    return (struct memory_bytes){
        .device = draft_arena(NULL, &shape, &measured),
        .host = draft_host(NULL, &shape, &measured),
    };
}

static void draft_cleanup(struct draft **draft) {
    draft_destroy(*draft);
}

result draft_create(struct draft **out, struct forward *forward, struct error *error) {
    const struct model_config *config = forward->config;
    ASSERT(forward->model->has_draft);
    ASSERT(forward->options.exports_targets);
    ASSERT(forward->cache->layout.draft_ring_count == config->draft_layers);
    ASSERT(config->draft_block <= DRAFT_BLOCK_MAX);
    if (config->draft_block > forward->options.rows_max) {
        FAIL(
            error,
            LIMIT,
            "a draft block has %d rows, but a step at most %d",
            config->draft_block,
            forward->options.rows_max
        );
    }
    CLEANUP(draft_cleanup) struct draft *draft = calloc(1, sizeof *draft);
    if (draft == NULL) {
        FAIL(error, MEMORY, "no memory for the draft stages");
    }
    struct draft_shape shape = shape_of(config, &forward->options);
    draft->forward = forward;
    draft->config = config;
    draft->block = config->draft_block;
    int32_t fit = forward->options.rows_max / draft->block;
    int32_t sequences = forward->options.sequences_max;
    draft->at_once = fit < sequences ? fit : sequences;
    draft->per_head = (int32_t)shape.per_head;
    struct backend *backend = forward->backend;
    size_t bytes = draft_host(NULL, &shape, draft);
    TRY_NOTE(
        error,
        backend_staging_take(backend, bytes, &draft->host, NULL, error),
        "logits of %zu draft rows",
        shape.logit_rows
    );
    (void)draft_host(draft->host.memory, &shape, draft);
    bytes = draft_arena(NULL, &shape, draft);
    TRY_NOTE(error, backend->allocate(backend, bytes, &draft->arena, error), "draft activations");
    (void)draft_arena(draft->arena, &shape, draft);
    *out = TAKE(draft);
    return OK;
}

void draft_destroy(struct draft *draft) {
    if (draft == NULL) {
        return;
    }
    struct backend *backend = draft->forward->backend;
    backend->release(backend, draft->arena);
    backend_staging_release(backend, &draft->host);
    free(draft);
}

const struct draft_counters *draft_count(const struct draft *draft) {
    return &draft->counters;
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* Rows [first, end) are in the rings now. Those before them count when they reach up to `first`. */
static void rows_extend(struct kv_draft_rows *rows, int32_t first, int32_t end) {
    if (first < rows->first || first > rows->end) {
        rows->first = first;
    }
    rows->end = end;
}

int32_t draft_rows_seen(const struct draft *draft, const struct kv_sequence *sequence) {
    const struct kv_draft_rows *rows = &sequence->draft;
    int32_t count = rows->end == sequence->computed ? rows->end - rows->first : 0;
    return count < draft->config->window ? count : draft->config->window;
}

/* Fills the segments and views of the rows to keep; returns how many there are. */
static int32_t plan_commit(
    struct draft *draft,
    const struct forward_segment *segments,
    const int32_t *kept,
    const struct row_segments *targets
) {
    size_t stride = (size_t)draft->forward->options.sequences_max;
    int32_t rows = 0;
    for (int32_t s = 0; s < targets->count; s++) {
        const struct row_segment *there = &targets->host[s];
        struct row_segment *taken = &draft->host_rows[s];
        *taken = *there;
        if (segments[s].drafted > 0) {
            ASSERT(there->count == segments[s].count); // no part of a prompt
            ASSERT(kept[s] >= 0 && kept[s] <= there->count);
            taken->count = kept[s];
        }
        for (int32_t stage = 0; stage < draft->config->draft_layers; stage++) {
            draft->host_ring_views[(size_t)stage * stride + (size_t)s] = (struct sequence_view
            ){.ring = kv_cache_draft_ring(draft->forward->cache, segments[s].sequence, stage)};
        }
        for (int32_t i = 0; i < there->count; i++) {
            draft->host_positions[there->row + i] = there->position + i;
        }
        rows += taken->count;
    }
    return rows;
}

/* Uploads what plan_commit or plan_pass filled, and the rope table of the rows. */
static void upload_plan(struct draft *draft, int32_t rows, int32_t sequences) {
    struct forward *forward = draft->forward;
    struct backend *backend = forward->backend;
    struct forward_buffers *b = &forward->buffers;
    size_t stages = (size_t)draft->config->draft_layers;
    size_t stride = (size_t)forward->options.sequences_max;
    draft->sequences = sequences;
    draft->row_count = rows;
    backend->upload(
        backend, draft->rows, draft->host_rows, (size_t)sequences * sizeof *draft->rows
    );
    backend->upload(
        backend,
        draft->ring_views,
        draft->host_ring_views,
        stages * stride * sizeof *draft->ring_views
    );
    backend->upload(
        backend, b->positions, draft->host_positions, (size_t)rows * sizeof *b->positions
    );
    struct rope_table_op rope = {
        .rows = rows,
        .pairs = draft->config->rope_dim / 2,
        .positions = b->positions,
        .frequencies = forward->frequencies,
        .cosine = b->main_cosine,
        .sine = b->main_sine,
    };
    backend_rope_table(backend, &rope);
}

/* window_records -> rings of the stage. */
static void commit_records(struct draft *draft, int32_t stage) {
    struct forward *forward = draft->forward;
    struct window_commit_op op = {
        .window = draft->config->window + draft->block,
        .dim = draft->config->head_dim,
        .segments = row_segments_of(draft->host_rows, draft->rows, draft->sequences),
        .views = draft->ring_views + (size_t)stage * (size_t)forward->options.sequences_max,
        .records = forward->buffers.window_records,
    };
    backend_window_commit(forward->backend, &op);
}

void draft_main_input(struct draft *draft, const uint16_t *hidden) {
    struct forward *forward = draft->forward;
    struct forward_buffers *b = &forward->buffers;
    const struct draft_weights *weights = &forward->model->draft;
    int32_t rows = forward->stage.rows;
    struct quantize_op quantize = {
        .rows = rows, .dim = weights->main_proj.in, .x = hidden, .y = draft->hidden_q};
    backend_quantize(forward->backend, &quantize);
    struct linear_op project = {
        .rows = rows,
        .groups = 1,
        .in = weights->main_proj.in,
        .out = weights->main_proj.out,
        .input_dtype = DTYPE_FP8,
        .quantized = draft->hidden_q,
        .weight = weights->main_proj,
        .output_dtype = DTYPE_BF16,
        .output = b->normed,
    };
    backend_linear(forward->backend, &project);
    struct norm_op norm = {
        .rows = rows,
        .dim = draft->config->hidden,
        .eps = (float)draft->config->norm_eps,
        .x = b->normed,
        .weight = weights->main_norm,
        .y = b->normed,
    };
    backend_norm(forward->backend, &norm);
}

result draft_commit(
    struct draft *draft,
    const struct forward_segment *segments,
    const int32_t *kept,
    int32_t count,
    struct error *error
) {
    struct forward *forward = draft->forward;
    struct forward_targets targets;
    forward_targets(forward, &targets);
    ASSERT(count == targets.segments.count);
    if (targets.segments.rows == 0 || plan_commit(draft, segments, kept, &targets.segments) == 0) {
        return OK;
    }
    int32_t rows = targets.segments.rows;
    upload_plan(draft, rows, count);
    forward->stage = targets.segments;
    draft_main_input(draft, targets.hidden);
    for (int32_t stage = 0; stage < draft->config->draft_layers; stage++) {
        forward_window_records(forward, draft->config->layers + stage);
        commit_records(draft, stage);
    }
    TRY_NOTE(error, forward->backend->synchronize(forward->backend, error), "draft rings");
    for (int32_t s = 0; s < count; s++) {
        const struct row_segment *kept_rows = &draft->host_rows[s];
        if (kept_rows->count > 0) {
            int32_t end = kept_rows->position + kept_rows->count;
            rows_extend(&segments[s].sequence->draft, kept_rows->position, end);
        }
    }
    draft->counters.commits++;
    draft->counters.commit_rows += (uint64_t)rows;
    return OK;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Segments and views of one sequence: its B rows go into the ring together, then each is a query of
 * its own that stands at the last of them, so that all see all. */
static void plan_sequence(struct draft *draft, const struct draft_request *request, int32_t s) {
    const struct kv_cache *cache = draft->forward->cache;
    const struct kv_sequence *sequence = request->sequence;
    size_t rows_max = (size_t)draft->forward->options.rows_max;
    size_t stride = (size_t)draft->forward->options.sequences_max;
    int32_t first = s * draft->block;
    int32_t position = sequence->computed; // of the drawn token
    int32_t last = position + draft->block - 1;
    bool follows = sequence->draft.end == position;
    draft->host_rows[s] =
        (struct row_segment){.row = first, .count = draft->block, .position = position};
    for (int32_t i = 0; i < draft->block; i++) {
        draft->host_ids[first + i] = i == 0 ? request->token : draft->config->draft_noise_id;
        draft->host_positions[first + i] = position + i;
        draft->host_query[first + i] =
            (struct row_segment){.row = first + i, .count = 1, .position = last};
        draft->host_fresh[first + i] =
            (struct row_segment){.row = first + i, .count = 0, .position = last + 1};
    }
    for (int32_t stage = 0; stage < draft->config->draft_layers; stage++) {
        struct sequence_view view = {
            .ring = kv_cache_draft_ring(cache, sequence, stage),
            .window_floor = follows ? sequence->draft.first : position,
        };
        draft->host_ring_views[(size_t)stage * stride + (size_t)s] = view;
        for (int32_t i = 0; i < draft->block; i++) {
            draft->host_query_views[(size_t)stage * rows_max + (size_t)(first + i)] = view;
        }
    }
}

void draft_begin(struct draft *draft, const struct draft_request *requests, int32_t count) {
    struct forward *forward = draft->forward;
    struct backend *backend = forward->backend;
    ASSERT(count > 0 && count <= draft->at_once);
    int32_t rows = count * draft->block;
    for (int32_t s = 0; s < count; s++) {
        plan_sequence(draft, &requests[s], s);
    }
    upload_plan(draft, rows, count);
    size_t segments = (size_t)rows * sizeof *draft->query;
    backend->upload(backend, draft->query, draft->host_query, segments);
    backend->upload(backend, draft->fresh, draft->host_fresh, segments);
    size_t views = (size_t)draft->config->draft_layers * (size_t)forward->options.rows_max;
    backend->upload(
        backend, draft->query_views, draft->host_query_views, views * sizeof *draft->query_views
    );
    backend->upload(
        backend, forward->buffers.ids, draft->host_ids, (size_t)rows * sizeof *draft->host_ids
    );
    forward->stage = row_segments_of(draft->host_rows, draft->rows, count);
    forward_embed(forward);
}

/* Fetches `count` F32 values of the device. */
static void fetch(struct draft *draft, float *to, const float *from, size_t count) {
    struct backend *backend = draft->forward->backend;
    backend->download(backend, to, from, count * sizeof *to);
}

/* y = x w^T to FP32, x bf16. */
static void product(
    struct draft *draft, int32_t rows, const struct weight *weight, const uint16_t *x, float *y
) {
    struct linear_op op = {
        .rows = rows,
        .groups = 1,
        .in = weight->in,
        .out = weight->out,
        .input_dtype = DTYPE_BF16,
        .input = x,
        .weight = *weight,
        .output_dtype = DTYPE_F32,
        .output = y,
    };
    backend_linear(draft->forward->backend, &op);
}

void draft_head(struct draft *draft) {
    struct forward *forward = draft->forward;
    struct forward_buffers *b = &forward->buffers;
    const struct draft_weights *weights = &forward->model->draft;
    struct stream_collapse_op collapse = {
        .rows = forward->stage.rows,
        .dim = draft->config->hidden,
        .streams = draft->config->streams,
        .norm_eps = (float)draft->config->norm_eps,
        .x = b->streams,
        .mix = b->mix,
        .weight = weights->norm,
        .collapsed = draft->collapsed,
        .normed = b->head_input,
    };
    backend_stream_collapse(forward->backend, &collapse);
    struct weight from_hidden = weights->confidence; // its first D columns
    from_hidden.in = draft->config->hidden;
    product(draft, forward->stage.rows, &from_hidden, draft->collapsed, draft->confidence);
    fetch(draft, draft->host_confidence, draft->confidence, (size_t)forward->stage.rows);
}

/* ---- guesses --------------------------------------------------------------------------------- */

static int32_t largest(const float *logits, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* markov_embed of the latest tokens -> host_bias, and its part of the confidence. */
static result markov_step(struct draft *draft, int32_t count, struct error *error) {
    struct forward *forward = draft->forward;
    struct backend *backend = forward->backend;
    const struct draft_weights *weights = &forward->model->draft;
    size_t vocabulary = (size_t)draft->config->vocabulary;
    backend->upload(
        backend,
        forward->buffers.ids,
        draft->host_tokens,
        (size_t)count * sizeof *draft->host_tokens
    );
    struct embed_op embed = {
        .rows = count,
        .vocabulary = draft->config->vocabulary,
        .dim = draft->config->draft_markov_rank,
        .streams = 1,
        .ids = forward->buffers.ids,
        .table = weights->markov_embed.data,
        .x = draft->markov,
        .mix = draft->markov_mix,
    };
    backend_embed(backend, &embed);
    product(draft, count, &weights->markov_head, draft->markov, forward->buffers.logits);
    const uint16_t *columns = weights->confidence.data;
    struct weight from_markov = weights->confidence; // the rest of its columns
    from_markov.in = draft->config->draft_markov_rank;
    from_markov.data = columns + draft->config->hidden;
    product(draft, count, &from_markov, draft->markov, draft->markov_confidence);
    fetch(draft, draft->host_bias, forward->buffers.logits, (size_t)count * vocabulary);
    fetch(draft, draft->host_markov_confidence, draft->markov_confidence, (size_t)count);
    draft->counters.markov_rows += (uint64_t)count;
    return backend->synchronize(backend, error);
}

/* Adds the guess number `index` of sequence s of a head product, whose first row is `row` of the
 * pass. */
static void guess(
    struct draft *draft,
    const struct draft_request *request,
    int32_t s,
    int32_t row,
    int32_t index,
    struct draft_proposal *proposal
) {
    size_t vocabulary = (size_t)draft->config->vocabulary;
    float *logits = draft->host_logits + (size_t)(s * draft->block + index) * vocabulary;
    const float *bias = draft->host_bias + (size_t)s * vocabulary;
    for (size_t i = 0; i < vocabulary; i++) {
        logits[i] += bias[i];
    }
    int32_t position = request->sequence->computed + 1 + index;
    int32_t id = request->draw == NULL ? largest(logits, draft->config->vocabulary)
                                       : request->draw(request->context, index, position, logits);
    ASSERT(id < draft->config->vocabulary);
    if (id < 0) {
        return;
    }
    proposal->ids[index] = id;
    proposal->confidence[index] =
        draft->host_confidence[row + index] + draft->host_markov_confidence[s];
    proposal->count = index + 1;
    draft->host_tokens[s] = id;
}

/* Guesses of `count` sequences from row `row` of the pass on: one head product. */
static result guess_some(
    struct draft *draft,
    const struct draft_request *requests,
    int32_t row,
    int32_t count,
    struct draft_proposal *proposals,
    struct error *error
) {
    struct forward *forward = draft->forward;
    size_t vocabulary = (size_t)draft->config->vocabulary;
    int32_t rows = count * draft->block;
    const uint16_t *input =
        forward->buffers.head_input + (size_t)row * (size_t)draft->config->hidden;
    product(draft, rows, &forward->model->head, input, forward->buffers.logits);
    fetch(draft, draft->host_logits, forward->buffers.logits, (size_t)rows * vocabulary);
    TRY(forward->backend->synchronize(forward->backend, error));
    int32_t wanted = 0;
    for (int32_t s = 0; s < count; s++) {
        draft->host_tokens[s] = requests[s].token;
        proposals[s].count = 0;
        wanted = requests[s].wanted > wanted ? requests[s].wanted : wanted;
    }
    bool goes_on = true;
    for (int32_t i = 0; i < wanted && goes_on; i++) {
        TRY(markov_step(draft, count, error));
        goes_on = false;
        for (int32_t s = 0; s < count; s++) {
            if (requests[s].wanted > i && proposals[s].count == i) {
                guess(draft, &requests[s], s, row + s * draft->block, i, &proposals[s]);
                goes_on = goes_on || proposals[s].count == i + 1;
            }
        }
    }
    return OK;
}

/* Guesses of `count` sequences whose rows fit a step: the stages once, the head as often as its rows
 * need. */
static result pass(
    struct draft *draft,
    const struct draft_request *requests,
    int32_t count,
    struct draft_proposal *proposals,
    struct error *error
) {
    draft_begin(draft, requests, count);
    draft->forward->logits_ready = 0; // the buffer is the head products' from here on
    for (int32_t stage = 0; stage < draft->config->draft_layers; stage++) {
        draft_stage(draft, stage);
    }
    draft_head(draft);
    draft->counters.passes++;
    draft->counters.rows += (uint64_t)(count * draft->block);
    for (int32_t done = 0; done < count; done += draft->per_head) {
        int32_t some = count - done < draft->per_head ? count - done : draft->per_head;
        TRY(guess_some(draft, requests + done, done * draft->block, some, proposals + done, error));
    }
    return OK;
}

result draft_propose(
    struct draft *draft,
    const struct draft_request *requests,
    int32_t count,
    struct draft_proposal *proposals,
    struct error *error
) {
    for (int32_t s = 0; s < count; s++) {
        ASSERT(requests[s].sequence->computed > 0);
        ASSERT(requests[s].wanted >= 1 && requests[s].wanted <= draft->block);
        ASSERT(requests[s].token >= 0 && requests[s].token < draft->config->vocabulary);
    }
    for (int32_t done = 0; done < count; done += draft->at_once) {
        int32_t some = count - done < draft->at_once ? count - done : draft->at_once;
        result passed = pass(draft, requests + done, some, proposals + done, error);
        TRY_NOTE(error, passed, "draft stages");
    }
    return OK;
}

/* ---- a stage --------------------------------------------------------------------------------- */

void draft_window(struct draft *draft, int32_t stage) {
    forward_window_records(draft->forward, draft->config->layers + stage);
    commit_records(draft, stage);
}

void draft_attend(struct draft *draft, int32_t stage) {
    struct forward *forward = draft->forward;
    struct attention_op op = {
        .heads = draft->config->heads,
        .dim = draft->config->head_dim,
        .window = draft->config->window + draft->block,
        .scale = forward_attention_scale(draft->config),
        .segments = row_segments_of(draft->host_query, draft->query, draft->row_count),
        .fresh_segments = row_segments_of(draft->host_fresh, draft->fresh, draft->row_count),
        .views = draft->query_views + (size_t)stage * (size_t)forward->options.rows_max,
        .query = forward->buffers.query,
        .fresh = forward->buffers.window_records,
        .sink = forward->model->layers[draft->config->layers + stage].attention.sink,
        .output = forward->buffers.attended,
    };
    backend_attention(forward->backend, &op);
}

void draft_stage(struct draft *draft, int32_t stage) {
    struct forward *forward = draft->forward;
    int32_t layer = draft->config->layers + stage;
    const struct layer_weights *weights = &forward->model->layers[layer];
    forward_collapse(forward, weights->attn_norm);
    draft_window(draft, stage);
    forward_query(forward, layer);
    draft_attend(draft, stage);
    forward_project(forward, layer);
    forward_mix(forward, &weights->attn_mix);
    forward_update(forward);
    forward_collapse(forward, weights->ffn_norm);
    forward_mix(forward, &weights->ffn_mix);
    forward_experts(forward, layer);
    forward_update(forward);
}
