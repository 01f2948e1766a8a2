/* Bytes and operations of each op, counted from its shapes: inputs read once, outputs written once,
 * weights once, cache entries as often as rows that cannot share them look at them. A product of n
 * terms is 2 n operations. See model_bench_ops.h. */
#include "model_bench_ops.h"

#include <stdarg.h>

struct count {
    char label[MODEL_BENCH_LABEL];
    double bytes, operations;
};

static struct {
    struct backend own; /* the table behind */
    enum meter_mode mode;
    struct meter_label labels[METER_LABELS_MAX];
    int32_t label_count;
    int16_t calls[METER_CALLS_MAX]; /* label of each stamped call */
    int32_t call_count;
    int32_t recorded_from, recorded_to; /* calls of the recorded step among these */
} meter;

static int32_t find_label(const char *text) {
    for (int32_t i = 0; i < meter.label_count; i++) {
        if (strcmp(meter.labels[i].text, text) == 0) {
            return i;
        }
    }
    ASSERT(meter.label_count < METER_LABELS_MAX);
    struct meter_label *label = &meter.labels[meter.label_count];
    memset(label, 0, sizeof *label);
    (void)snprintf(label->text, sizeof label->text, "%s", text);
    return meter.label_count++;
}

PRINTF_LIKE(4, 5)
static struct count
counted(struct backend *backend, double bytes, double operations, const char *format, ...) {
    (void)backend;
    struct count count = {.bytes = bytes, .operations = operations};
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(count.label, sizeof count.label, format, arguments);
    va_end(arguments);
    ASSERT(length > 0);
    return count;
}

static double bytes_per_weight(const struct weight *weight) {
    switch (weight->dtype) {
    case DTYPE_F32:
        return 4;
    case DTYPE_BF16:
        return 2;
    case DTYPE_FP8:
        return 1 + 1.0 / 1024;
    case DTYPE_FP4:
        return 0.5 + 1.0 / 32;
    }
    return 0;
}

static const char *dtype_text(enum dtype dtype) {
    static const char *const names[] = {"f32", "bf16", "fp8", "fp4"};
    return names[dtype];
}

static double weight_bytes(const struct weight *weight) {
    return (double)weight->out * weight->in * bytes_per_weight(weight);
}

static struct count count_embed(struct backend *b, const struct embed_op *op) {
    double row = 2.0 * op->dim * (1 + op->streams) + 4.0 * op->streams;
    return counted(b, op->rows * row, 0, "embed");
}

static struct count count_stream_mix(struct backend *b, const struct stream_mix_op *op) {
    double outputs = (2.0 + op->streams) * op->streams;
    double width = (double)op->streams * op->dim;
    return counted(b, op->rows * (2 * width + 4 * outputs) + 4 * outputs * width, 0, "stream_mix");
}

static struct count count_stream_collapse(struct backend *b, const struct stream_collapse_op *op) {
    double written = op->collapsed == NULL ? 1 : 2;
    return counted(b, 2.0 * op->rows * op->dim * (op->streams + written), 0, "stream_collapse");
}

static struct count count_stream_update(struct backend *b, const struct stream_update_op *op) {
    return counted(b, 2.0 * op->rows * op->dim * (2 * op->streams + 1), 0, "stream_update");
}

static struct count count_norm(struct backend *b, const struct norm_op *op) {
    return counted(b, 4.0 * op->rows * op->dim, 0, "norm %d", op->dim);
}

static struct count count_quantize(struct backend *b, const struct quantize_op *op) {
    return counted(b, op->rows * (3 + 1.0 / 32) * op->dim, 0, "quantize %d", op->dim);
}

static struct count count_linear(struct backend *b, const struct linear_op *op) {
    double out = (double)op->groups * op->out;
    double in = (double)op->groups * op->in;
    double input = op->input_dtype == DTYPE_FP8 ? 1 + 1.0 / 32 : 2;
    double output = op->output_dtype == DTYPE_F32 ? 4 : 2;
    double bytes = weight_bytes(&op->weight) + op->rows * (in * input + out * output);
    char groups[16] = "";
    if (op->groups > 1) {
        (void)snprintf(groups, sizeof groups, "%d x ", op->groups);
    }
    return counted(
        b,
        bytes,
        2.0 * op->rows * out * op->in,
        "linear %s %s%d -> %d",
        dtype_text(op->weight.dtype),
        groups,
        op->in,
        op->out
    );
}

static struct count count_rope_table(struct backend *b, const struct rope_table_op *op) {
    return counted(b, op->rows * (4 + 8.0 * op->pairs), 0, "rope_table");
}

static struct count count_rotate(struct backend *b, const struct rotate_op *op) {
    double bytes = op->rows * (4.0 * op->heads * op->rope_dim + 4.0 * op->rope_dim);
    return counted(b, bytes, 0, "rotate %d x %d", op->heads, op->rope_dim);
}

static struct count count_window_pack(struct backend *b, const struct window_pack_op *op) {
    double bytes = op->rows * (2.0 * op->dim + (double)window_record_bytes(op->dim));
    return counted(b, bytes, 0, "window_pack");
}

static struct count count_window_commit(struct backend *b, const struct window_commit_op *op) {
    double rows = 0;
    for (int32_t s = 0; s < op->segments.count; s++) {
        int32_t count = op->segments.host[s].count;
        rows += count < op->window ? count : op->window;
    }
    return counted(b, 2 * rows * (double)window_record_bytes(op->dim), 0, "window_commit");
}

static struct count count_compress_pool(struct backend *b, const struct compress_pool_op *op) {
    return counted(b, 10.0 * op->segments.rows * op->dim, 0, "compress_pool");
}

static struct count count_entry_store(struct backend *b, const struct entry_store_op *op) {
    double main = 2.0 * op->dim + (double)op->source.main_record_bytes;
    double index = (2 + 0.5 + 1.0 / 32) * op->index_dim;
    double entries = (double)op->segments.rows / op->source.ratio;
    return counted(b, entries * (main + index), 0, "entry_store");
}

static struct count count_index_quantize(struct backend *b, const struct index_quantize_op *op) {
    return counted(b, op->rows * (2.5 + 1.0 / 32) * op->heads * op->dim, 0, "index_quantize");
}

/* Keys of a sequence are read once for all of its rows. */
static struct count count_index_select(struct backend *b, const struct index_select_op *op) {
    double key = (0.5 + 1.0 / 32) * op->dim;
    double pool = (double)op->pool_blocks * op->pool_block_entries;
    double keys = 0;
    double scores = 0;
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *segment = &op->segments.host[s];
        double visible = (double)(segment->position + segment->count) / op->source.ratio;
        if (segment->count == 0 || visible <= op->topk) {
            continue;
        }
        bool is_pooled = op->mode == INDEX_WITHIN_POOL && visible > pool;
        keys += is_pooled ? pool * segment->count : visible;
        scores += (is_pooled ? pool : visible) * segment->count;
    }
    double query = (2.0 + (0.5 + 1.0 / 32) * op->dim) * op->heads + 4.0 * op->topk;
    static const char *const modes[] = {"", " and pool", " in pool"};
    return counted(
        b,
        keys * key + op->segments.rows * query,
        2 * scores * op->heads * op->dim,
        "index_select%s m %d",
        modes[op->mode],
        op->source.ratio
    );
}

static struct count count_attention(struct backend *b, const struct attention_op *op) {
    double windows = 0; // records that somebody reads, once
    double entries = 0;
    double keys = 0;
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *segment = &op->segments.host[s];
        int32_t end = segment->position + segment->count;
        int32_t oldest = segment->position - op->window + 1;
        windows += segment->count == 0 ? 0 : end - (oldest < 0 ? 0 : oldest);
        for (int32_t p = segment->position; p < end; p++) {
            double window = p + 1 < op->window ? p + 1 : op->window;
            double selected = 0;
            if (op->selected != NULL) {
                int32_t visible = (p + 1) / op->source.ratio;
                selected = visible < op->topk ? visible : op->topk;
            }
            entries += selected;
            keys += window + selected;
        }
    }
    double record = op->selected == NULL ? 0 : (double)op->source.main_record_bytes;
    double bytes = windows * (double)window_record_bytes(op->dim) + entries * record +
                   4.0 * op->segments.rows * op->heads * op->dim;
    return counted(
        b,
        bytes,
        4 * keys * op->heads * op->dim,
        op->selected == NULL ? "attention, window" : "attention, entries m %d",
        op->source.ratio
    );
}

static struct count count_route(struct backend *b, const struct route_op *op) {
    return counted(b, op->rows * (4.0 * op->experts + 8.0 * op->chosen), 0, "route");
}

/* Experts that some row chose: ids are fetched, so ops before must have been enqueued. */
static int32_t distinct_experts(const struct experts_op *op) {
    enum { IDS_MAX = 1 << 17, EXPERTS_MAX = 4096 };
    static int32_t ids[IDS_MAX];
    static bool seen[EXPERTS_MAX];
    int32_t count = op->rows * op->chosen;
    int32_t distinct = 0;
    ASSERT(count <= IDS_MAX && op->experts <= EXPERTS_MAX);
    meter.own.download(&meter.own, ids, op->ids, (size_t)count * sizeof *ids);
    memset(seen, 0, sizeof seen);
    for (int32_t i = 0; i < count; i++) {
        distinct += seen[ids[i]] ? 0 : 1;
        seen[ids[i]] = true;
    }
    return distinct;
}

static struct count count_experts(struct backend *b, const struct experts_op *op) {
    const struct weight routed = {op->routed_dtype, op->hidden, op->dim, NULL, NULL};
    int32_t active = meter.mode == METER_COUNT ? distinct_experts(op) : 0;
    double bytes = active * 3 * weight_bytes(&routed) + weight_bytes(&op->shared->w1) +
                   weight_bytes(&op->shared->w2) + weight_bytes(&op->shared->w3) +
                   op->rows * (1 + 1.0 / 32 + 2) * op->dim;
    double operations = 2.0 * op->rows * (op->chosen + 1) * 3.0 * op->hidden * op->dim;
    return counted(
        b, bytes, operations, "experts %s of %d", dtype_text(op->routed_dtype), op->experts
    );
}

static struct count count_engram_gather(struct backend *b, const struct engram_gather_op *op) {
    return counted(b, op->rows * op->columns * ((3 + 1.0 / 32) * op->dim + 8), 0, "engram_gather");
}

static struct count count_engram_gate(struct backend *b, const struct engram_gate_op *op) {
    return counted(b, 2.0 * op->rows * op->dim * (3 * op->streams + 1), 0, "engram_gate");
}

static struct count count_keep_rows(struct backend *b, const struct keep_rows_op *op) {
    return counted(b, 2.0 * op->to.rows * (double)op->row_bytes, 0, "keep_rows");
}

static void before(struct backend *backend, const struct count *count) {
    int32_t label = find_label(count->label);
    if (meter.mode == METER_COUNT) {
        meter.labels[label].calls++;
        meter.labels[label].bytes += count->bytes;
        meter.labels[label].operations += count->operations;
        return;
    }
    ASSERT(meter.call_count < METER_CALLS_MAX);
    meter.calls[meter.call_count] = (int16_t)label;
    meter.own.stamp(backend, 2 * meter.call_count);
}

static void after(struct backend *backend) {
    if (meter.mode == METER_STAMP) {
        meter.own.stamp(backend, 2 * meter.call_count + 1);
        meter.call_count++;
    }
}

#define METERED(name)                                                                              \
    static void metered_##name(struct backend *backend, const struct name##_op *op) {              \
        struct count count = count_##name(backend, op);                                            \
        before(backend, &count);                                                                   \
        meter.own.name(backend, op);                                                               \
        after(backend);                                                                            \
    }
BACKEND_OPS(METERED)

#define METER_FILL(name) backend->name = metered_##name;

/* A step that is replayed calls no op: its calls are those that were recorded, in the same places. */
static bool stamped_step_begin(struct backend *backend, uint64_t key) {
    if (meter.own.step_begin(backend, key)) {
        ASSERT(meter.call_count == meter.recorded_from);
        meter.call_count = meter.recorded_to;
        return true;
    }
    meter.recorded_from = meter.call_count;
    return false;
}

static bool stamped_step_end(struct backend *backend) {
    bool is_run = meter.own.step_end(backend);
    meter.recorded_to = meter.call_count;
    if (!is_run) {
        meter.call_count = meter.recorded_from; // they are enqueued once more
    }
    return is_run;
}

void meter_attach(struct backend *backend, enum meter_mode mode) {
    meter.own = *backend;
    meter.mode = mode;
    meter.call_count = 0;
    BACKEND_OPS(METER_FILL)
    if (mode == METER_COUNT) {
        backend->step_begin = NULL; // ids are fetched between ops
    } else if (backend->step_begin != NULL) {
        backend->step_forget(backend);
        backend->step_begin = stamped_step_begin;
        backend->step_end = stamped_step_end;
    }
}

void meter_detach(struct backend *backend) {
    void *state = backend->state;
    if (meter.mode == METER_STAMP && meter.own.step_begin != NULL) {
        meter.own.step_forget(backend);
    }
    *backend = meter.own;
    ASSERT(backend->state == state);
}

void meter_reset(void) {
    meter.label_count = 0;
    meter.call_count = 0;
}

void meter_begin_step(void) {
    meter.call_count = 0;
}

void meter_collect(struct backend *backend) {
    for (int32_t i = 0; i < meter.label_count; i++) {
        meter.labels[i].seconds = 0;
    }
    for (int32_t i = 0; i < meter.call_count; i++) {
        meter.labels[meter.calls[i]].seconds += meter.own.stamp_seconds(backend, 2 * i, 2 * i + 1);
    }
}

int32_t meter_label_count(void) {
    return meter.label_count;
}

const struct meter_label *meter_label_get(int32_t index) {
    ASSERT(index >= 0 && index < meter.label_count);
    return &meter.labels[index];
}
