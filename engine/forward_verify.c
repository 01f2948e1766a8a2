/* Segments with drafts: what they would overwrite is held back until it is known what counts.
 *
 * A ring has W slots, and the records of rejected rows would take the place of records that are
 * needed again; a pending pair likewise. So a drafted segment commits nothing in the step: its window
 * records of all layers and the pairs of ratio-2 sources go aside, and forward_keep commits those of
 * the kept rows with the op that a step uses. Attention reads fresh records of the step itself, so
 * nothing else differs, whatever the window and the number of drafts. See forward.h.
 */
#include "forward_layer.h"

static bool is_drafted(const struct forward *forward, int32_t s) {
    return forward->segments[s].drafted > 0;
}

static struct row_segments stage_at(const struct forward *forward, size_t number) {
    size_t at = number * (size_t)forward->options.sequences_max;
    return row_segments_of(
        forward->stage_host + at, forward->stage_device + at, forward->segment_count
    );
}

/* Splits a layer's window stage: undrafted segments are committed at once, the others go to slots
 * 0, 1, ... of their held rows. */
static void split_windows(struct forward *forward, int32_t layer, size_t number) {
    size_t stride = (size_t)forward->options.sequences_max;
    struct row_segment *commit = forward->stage_host + number * stride;
    struct row_segment *held = commit + stride;
    const struct row_segments *windows = &forward->window_stages[layer];
    for (int32_t s = 0; s < forward->segment_count; s++) {
        commit[s] = windows->host[s];
        held[s] = (struct row_segment){.row = windows->host[s].row};
        if (is_drafted(forward, s)) {
            ASSERT(commit[s].count == forward->segments[s].count); // nothing of it is narrowed away
            held[s].count = commit[s].count;
            commit[s].count = 0;
        }
    }
    forward->commit_stages[layer] = stage_at(forward, number);
    forward->held_stages[layer] = stage_at(forward, number + 1);
}

static void plan_held_views(struct forward *forward) {
    const struct model_config *config = forward->config;
    size_t stride = (size_t)forward->options.sequences_max;
    size_t record = window_record_bytes(config->head_dim);
    size_t rows = (size_t)forward->options.drafted_rows_max;
    struct sequence_view *views = forward->views_host + (size_t)config->layers * stride;
    for (int32_t l = 0; l < config->layers; l++) {
        uint8_t *records = forward->buffers.held_records + (size_t)l * rows * record;
        for (int32_t s = 0; s < forward->segment_count; s++) {
            uint8_t *first = records + (size_t)forward->held_first[s] * record;
            views[(size_t)l * stride + (size_t)s] = (struct sequence_view){.ring = first};
        }
    }
    forward->backend->upload(
        forward->backend,
        forward->buffers.held_views,
        views,
        (size_t)config->layers * stride * sizeof *views
    );
}

void forward_plan_held(struct forward *forward) {
    size_t layers = (size_t)forward->config->layers;
    forward->held_rows = 0;
    for (int32_t s = 0; s < forward->segment_count; s++) {
        forward->held_first[s] = forward->held_rows;
        forward->held_rows += is_drafted(forward, s) ? forward->segments[s].count : 0;
        ASSERT(forward->held_rows <= forward->options.drafted_rows_max);
    }
    if (forward->held_rows == 0) {
        memcpy(
            forward->commit_stages, forward->window_stages, layers * sizeof *forward->commit_stages
        );
        return;
    }
    size_t number = forward_stage_count(forward->config, false);
    for (size_t l = 0; l < layers; l++) {
        split_windows(forward, (int32_t)l, number + 2 * l);
    }
    forward->kept_number = number + 2 * layers;
    plan_held_views(forward);
}

void forward_hold_windows(struct forward *forward, int32_t layer) {
    if (forward->held_rows == 0) {
        return;
    }
    struct window_commit_op op = {
        .window = forward->options.drafted_rows_max, // never reached: slots are rows
        .dim = forward->config->head_dim,
        .segments = forward->held_stages[layer],
        .views =
            forward->buffers.held_views + (size_t)layer * (size_t)forward->options.sequences_max,
        .records = forward->buffers.window_records,
    };
    backend_window_commit(forward->backend, &op);
}

/* First float of a held row of a source. */
static size_t pair_at(const struct forward *forward, int32_t source, int32_t row) {
    size_t slot = (size_t)forward->cache->layout.pending_slot[source];
    size_t rows = slot * (size_t)forward->options.drafted_rows_max + (size_t)row;
    return rows * (size_t)forward->config->head_dim;
}

void forward_hold_pairs(struct forward *forward, int32_t source) {
    struct backend *backend = forward->backend;
    const struct forward_buffers *b = &forward->buffers;
    size_t dim = (size_t)forward->config->head_dim;
    for (int32_t s = 0; s < forward->segment_count && forward->held_rows > 0; s++) {
        if (is_drafted(forward, s)) {
            const struct row_segment *rows = &forward->stage.host[s];
            ASSERT(rows->count == forward->segments[s].count);
            size_t from = (size_t)rows->row * dim;
            size_t to = pair_at(forward, source, forward->held_first[s]);
            size_t bytes = (size_t)rows->count * dim * sizeof(float);
            backend->copy(backend, b->held_kv + to, b->compress_kv + from, bytes);
            backend->copy(backend, b->held_score + to, b->compress_score + from, bytes);
        }
    }
}

/* The pair that waits for its second half is that of the last kept row, if that is at an even
 * position; behind an odd one nobody reads it. */
static void keep_pairs(struct forward *forward, int32_t s, int32_t kept) {
    const struct model_config *config = forward->config;
    const struct kv_cache *cache = forward->cache;
    struct backend *backend = forward->backend;
    struct kv_sequence *sequence = forward->segments[s].sequence;
    size_t dim = (size_t)config->head_dim;
    if ((forward->segments[s].position + kept - 1) % 2 != 0) {
        return;
    }
    for (int32_t source = 0; source < config->kv_source_count; source++) {
        float *pending = kv_cache_pending(cache, sequence, source);
        if (pending != NULL) {
            size_t at = pair_at(forward, source, forward->held_first[s] + kept - 1);
            const struct forward_buffers *b = &forward->buffers;
            backend->copy(backend, pending, b->held_kv + at, dim * sizeof(float));
            backend->copy(backend, pending + dim, b->held_score + at, dim * sizeof(float));
        }
    }
}

static void keep_windows(struct forward *forward, const struct row_segments *kept) {
    const struct model_config *config = forward->config;
    size_t record = window_record_bytes(config->head_dim);
    size_t rows = (size_t)forward->options.drafted_rows_max;
    for (int32_t l = 0; l < config->layers; l++) {
        struct window_commit_op op = {
            .window = config->window,
            .dim = config->head_dim,
            .segments = *kept,
            .views = forward->views_device + (size_t)l * (size_t)forward->options.sequences_max,
            .records = forward->buffers.held_records + (size_t)l * rows * record,
        };
        backend_window_commit(forward->backend, &op);
    }
}

void forward_keep(struct forward *forward, const int32_t *kept) {
    ASSERT(forward->held_rows > 0);
    size_t at = forward->kept_number * (size_t)forward->options.sequences_max;
    struct row_segment *rows = forward->stage_host + at;
    for (int32_t s = 0; s < forward->segment_count; s++) {
        const struct forward_segment *segment = &forward->segments[s];
        rows[s] =
            (struct row_segment){.row = forward->held_first[s], .position = segment->position};
        if (is_drafted(forward, s)) {
            ASSERT(segment->sequence->computed == segment->position);
            ASSERT(kept[s] >= segment->count - segment->drafted && kept[s] <= segment->count);
            rows[s].count = kept[s];
            keep_pairs(forward, s, kept[s]);
            segment->sequence->computed = segment->position + kept[s];
        }
    }
    forward->backend->upload(
        forward->backend,
        forward->stage_device + at,
        rows,
        (size_t)forward->segment_count * sizeof *rows
    );
    struct row_segments stage = stage_at(forward, forward->kept_number);
    keep_windows(forward, &stage);
    forward->held_rows = 0;
}
