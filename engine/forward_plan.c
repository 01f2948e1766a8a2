/* The rows of a step: which run in each layer, and what the ops need to know about them.
 *
 * In layer l the rows at and after first_full(l) run, and those of the window before it produce
 * window KV; both depend only on the write floor and the end of the prompt, never on how it was cut
 * into steps. Decoder layers run what the last row depends on (spec 3.13), encoder layers also what
 * the entries from the write floor on depend on: without a hit, all rows. See forward.h.
 */
#include "engram.h"
#include "forward_layer.h"

static int32_t clip(int64_t value, const struct forward_segment *segment) {
    int64_t end = (int64_t)segment->position + segment->count;
    if (value < segment->position) {
        return segment->position;
    }
    return (int32_t)(value > end ? end : value);
}

/* First position that runs attention and FFN in a decoder layer, not clipped. */
static int64_t decoder_floor(
    const struct model_config *config, const struct forward_segment *segment, int32_t layer
) {
    if (segment->window == WINDOW_REPLAY) {
        return segment->window_floor_decoder;
    }
    if (segment->logits == FORWARD_LOGITS_ALL) {
        return 0;
    }
    return (int64_t)segment->prompt_end - model_rows_needed(config, layer);
}

/* The same for an encoder layer: every row of the next layer needs W - 1 older ones of this one,
 * down from the write floor and from the first row of the decoder. An encoder replay runs all that
 * it has. */
static int64_t encoder_floor(
    const struct model_config *config, const struct forward_segment *segment, int32_t layer
) {
    if (segment->logits == FORWARD_LOGITS_ALL || segment->window_floor_encoder > 0) {
        return 0;
    }
    int64_t above = (int64_t)(config->encoder_layers - 1 - layer) * (config->window - 1);
    int64_t entries = segment->write_floor - above;
    int64_t windows = segment->window == WINDOW_REPLAY
                          ? segment->window_floor_decoder - above
                          : (int64_t)segment->prompt_end - model_rows_reached(config, layer);
    return entries < windows ? entries : windows;
}

static int32_t first_full(
    const struct model_config *config, const struct forward_segment *segment, int32_t layer
) {
    bool is_decoder = config->plan[layer].decoder;
    int64_t floor =
        is_decoder ? decoder_floor(config, segment, layer) : encoder_floor(config, segment, layer);
    return clip(floor, segment);
}

/* First position that produces window KV in the layer. The first decoder layer does so for every
 * row that it gets for its entries: little work, and its ring is then as complete as the encoder's,
 * so that a snapshot of both serves any prompt that goes on from there. */
static int32_t first_window(
    const struct model_config *config, const struct forward_segment *segment, int32_t layer
) {
    int32_t older = config->window - 1;
    if (layer == config->encoder_layers) {
        return layer == 0 ? segment->position : first_full(config, segment, layer - 1);
    }
    if (!config->plan[layer].decoder) {
        return clip(encoder_floor(config, segment, layer) - older, segment);
    }
    if (segment->window == WINDOW_REPLAY) {
        return first_full(config, segment, layer);
    }
    return clip(decoder_floor(config, segment, layer) - older, segment);
}

/* Fills segment s of a stage with the segment's rows from `first` on. */
static void stage_put(
    struct row_segment *stage, int32_t s, const struct forward_segment *segment, int32_t first
) {
    int32_t row = s == 0 ? 0 : stage[s - 1].row + stage[s - 1].count;
    stage[s] = (struct row_segment){
        .row = row,
        .count = segment->position + segment->count - first,
        .position = first,
    };
}

static struct row_segments stage_make(const struct forward *forward, size_t number) {
    size_t at = number * (size_t)forward->options.sequences_max;
    return row_segments_of(
        forward->stage_host + at, forward->stage_device + at, forward->segment_count
    );
}

static int32_t
first_with_logits(const struct model_config *config, const struct forward_segment *segment) {
    int32_t end = segment->position + segment->count;
    if (segment->logits == FORWARD_LOGITS_NONE) {
        return end;
    }
    return segment->logits == FORWARD_LOGITS_ALL ? first_full(config, segment, config->layers - 1)
                                                 : end - 1;
}

/* Rows that reach the last target layer: those that the layer before it does not drop. */
static struct row_segments target_stage(const struct forward *forward) {
    const struct model_config *config = forward->config;
    if (!forward->options.exports_targets) {
        return (struct row_segments){0};
    }
    int32_t last = config->draft_targets[config->draft_target_count - 1];
    return last == 0 ? forward->all_stage : forward->full_stages[last - 1];
}

static void plan_stages(struct forward *forward) {
    const struct model_config *config = forward->config;
    size_t layers = (size_t)config->layers;
    size_t stride = (size_t)forward->options.sequences_max;
    struct row_segment *host = forward->stage_host;
    for (int32_t s = 0; s < forward->segment_count; s++) {
        const struct forward_segment *segment = &forward->segments[s];
        for (int32_t l = 0; l < config->layers; l++) {
            size_t stage = 2 * (size_t)l;
            stage_put(host + stage * stride, s, segment, first_window(config, segment, l));
            stage_put(host + (stage + 1) * stride, s, segment, first_full(config, segment, l));
        }
        stage_put(host + 2 * layers * stride, s, segment, segment->position);
        stage_put(host + (2 * layers + 1) * stride, s, segment, first_with_logits(config, segment));
    }
    for (size_t l = 0; l < layers; l++) {
        forward->window_stages[l] = stage_make(forward, 2 * l);
        forward->full_stages[l] = stage_make(forward, 2 * l + 1);
    }
    forward->all_stage = stage_make(forward, 2 * layers);
    forward->head_stage = stage_make(forward, 2 * layers + 1);
    forward->target_stage = target_stage(forward);
    forward_plan_held(forward);
    forward->backend->upload(
        forward->backend,
        forward->stage_device,
        host,
        forward_stage_count(config, forward->held_rows > 0) * stride * sizeof *host
    );
}

static void plan_views(struct forward *forward) {
    const struct model_config *config = forward->config;
    const struct kv_cache *cache = forward->cache;
    size_t stride = (size_t)forward->options.sequences_max;
    for (int32_t l = 0; l < config->layers; l++) {
        const struct layer_plan *plan = &config->plan[l];
        for (int32_t s = 0; s < forward->segment_count; s++) {
            const struct forward_segment *segment = &forward->segments[s];
            struct sequence_view *view = &forward->views_host[(size_t)l * stride + (size_t)s];
            *view = (struct sequence_view){
                .blocks = segment->sequence->device_blocks,
                .ring = kv_cache_ring(cache, segment->sequence, l),
                .window_floor =
                    plan->decoder ? segment->window_floor_decoder : segment->window_floor_encoder,
                .write_floor = segment->write_floor,
            };
            if (plan->mode == LAYER_FULL) {
                view->pending = kv_cache_pending(cache, segment->sequence, plan->source);
            }
        }
    }
    forward->backend->upload(
        forward->backend,
        forward->views_device,
        forward->views_host,
        (size_t)config->layers * stride * sizeof *forward->views_host
    );
}

static void upload_rows(struct forward *forward) {
    size_t stride = (size_t)forward->options.rows_max;
    int32_t *ids = forward->host_rows;
    int32_t *positions = ids + stride;
    int32_t *entries = positions + stride;
    int32_t row = 0;
    for (int32_t s = 0; s < forward->segment_count; s++) {
        const struct forward_segment *segment = &forward->segments[s];
        kv_cache_read_ids(
            forward->cache, segment->sequence, segment->position, segment->count, ids + row
        );
        for (int32_t i = 0; i < segment->count; i++, row++) {
            int32_t position = segment->position + i;
            positions[row] = position;
            entries[row] = position - position % 2;
        }
    }
    struct backend *backend = forward->backend;
    struct forward_buffers *buffers = &forward->buffers;
    size_t bytes = (size_t)row * sizeof *ids;
    backend->upload(backend, buffers->ids, ids, bytes);
    backend->upload(backend, buffers->positions, positions, bytes);
    backend->upload(backend, buffers->entry_positions, entries, bytes);
}

const struct row_segments *forward_stage_before(const struct forward *forward, int32_t layer) {
    return layer == 0 ? &forward->all_stage : &forward->full_stages[layer - 1];
}

/* Table rows of the rows that reach the layer, from the sequences' token ids: the lookback crosses the
 * borders of steps. */
static void upload_engram_ids(struct forward *forward, int32_t slot, int32_t layer) {
    const struct engram *engram = forward->engram;
    const struct row_segments *stage = forward_stage_before(forward, layer);
    size_t columns = engram_column_count(engram);
    int32_t lookback = narrow_i32((int64_t)engram_lookback(engram));
    for (int32_t s = 0; s < stage->count; s++) {
        const struct row_segment *rows = &stage->host[s];
        int32_t lead = rows->position < lookback ? rows->position : lookback;
        int32_t *history = forward->host_history;
        kv_cache_read_compressed(
            forward->cache,
            forward->segments[s].sequence,
            rows->position - lead,
            lead + rows->count,
            history
        );
        engram_rows(
            engram,
            (size_t)slot,
            history,
            (size_t)lead,
            (size_t)rows->count,
            forward->host_engram + (size_t)rows->row * columns
        );
    }
    size_t count = (size_t)stage->rows * columns;
    for (size_t i = 0; i < count; i++) {
        forward->host_engram_ids[i] = forward->host_engram[i];
    }
    forward->backend->upload(
        forward->backend,
        forward_engram_ids(forward, slot),
        forward->host_engram_ids,
        count * sizeof *forward->host_engram_ids
    );
}

static void zero_index_counters(struct forward *forward) {
    size_t bytes = (size_t)forward->config->layers * sizeof *forward->index_counters;
    memset(forward->index_counters, 0, bytes);
    forward->backend->upload(
        forward->backend, forward->buffers.index_counters, forward->index_counters, bytes
    );
}

static void check_segment(const struct forward *forward, const struct forward_segment *segment) {
    ASSERT(segment->count > 0);
    ASSERT(segment->position >= 0);
    ASSERT(segment->position + segment->count <= segment->prompt_end);
    int32_t end = segment->position + segment->count;
    ASSERT(end <= forward->cache->context_max);
    int32_t floor =
        segment->position > segment->write_floor ? segment->position : segment->write_floor;
    ASSERT(floor >= segment->sequence->kept);
    ASSERT(kv_cache_is_writable(forward->cache, segment->sequence, floor, end));
    ASSERT(
        segment->logits != FORWARD_LOGITS_LAST ||
        segment->position + segment->count == segment->prompt_end
    );
    if (segment->drafted != 0) {
        ASSERT(segment->drafted > 0 && segment->drafted < segment->count);
        ASSERT(segment->logits == FORWARD_LOGITS_ALL && segment->window == WINDOW_EXACT);
        ASSERT(segment->position >= segment->write_floor && segment->window_floor_encoder == 0);
    }
}

void forward_begin(struct forward *forward, const struct forward_segment *segments, int32_t count) {
    ASSERT(count > 0);
    ASSERT(count <= forward->options.sequences_max);
    ASSERT(forward->held_rows == 0); // the last step's drafts were kept or taken back
    for (int32_t s = 0; s < count; s++) {
        check_segment(forward, &segments[s]);
    }
    forward->segments = segments;
    forward->segment_count = count;
    plan_stages(forward);
    ASSERT(forward->all_stage.rows <= forward->options.rows_max);
    plan_views(forward);
    upload_rows(forward);
    for (int32_t l = 0; l < forward->config->layers; l++) {
        if (forward->config->plan[l].engram >= 0) {
            upload_engram_ids(forward, forward->config->plan[l].engram, l);
        }
    }
    if (forward->counters != NULL) {
        zero_index_counters(forward);
    }
    forward->stage = forward->all_stage;
    forward->logits_ready = 0;
}
