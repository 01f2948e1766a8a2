/* See kernel_cases.h. */
#include "kernel_cases.h"

/* Random bytes that are sane as codes, scales near 1, or small bf16 and FP32 numbers. */
static uint64_t random_state = 1;

static uint32_t random_next(void) {
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(random_state >> 33);
}

static void *make_memory(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (memory == NULL) {
        (void)fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static uint8_t *make_codes(size_t count) {
    uint8_t *codes = make_memory(count);
    for (size_t i = 0; i < count; i++) {
        codes[i] = (uint8_t)(random_next() & 0xbfU);
    }
    return codes;
}

static uint8_t *make_scales(size_t count) {
    uint8_t *scales = make_memory(count);
    for (size_t i = 0; i < count; i++) {
        scales[i] = (uint8_t)(118 + random_next() % 4);
    }
    return scales;
}

static uint16_t *make_bf16(size_t count) {
    uint16_t *values = make_memory(count * 2);
    for (size_t i = 0; i < count; i++) {
        values[i] = (uint16_t)(0x3e00U + (random_next() & 0x81ffU));
    }
    return values;
}

static float *make_f32(size_t count) {
    float *values = make_memory(count * 4);
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)(random_next() % 2001) * 1e-3F - 1.0F;
    }
    return values;
}

static void run_linear(struct backend *backend, void *op) {
    backend_linear(backend, op);
}

struct bench_case
linear_case(const char *what, enum dtype dtype, int32_t rows, int32_t in, int32_t out) {
    struct bench_case bench = {.run = run_linear};
    struct linear_op *op = make_memory(sizeof *op);
    size_t weights = (size_t)in * (size_t)out;
    size_t inputs = (size_t)rows * (size_t)in;
    op->rows = rows;
    op->groups = 1;
    op->in = in;
    op->out = out;
    op->input_dtype = dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_FP8;
    op->output_dtype = DTYPE_BF16;
    op->output = make_memory((size_t)rows * (size_t)out * 2);
    op->weight.dtype = dtype;
    op->weight.out = out;
    op->weight.in = in;
    if (dtype == DTYPE_BF16) {
        op->input = make_bf16(inputs);
        op->weight.data = make_bf16(weights);
        bench.bytes = (double)weights * 2.0;
    } else {
        op->quantized.codes = make_codes(inputs);
        op->quantized.scales = make_scales(inputs / 32);
        op->weight.data = make_codes(dtype == DTYPE_FP4 ? weights / 2 : weights);
        op->weight.scale = make_scales(weights / 32);
        bench.bytes = (double)weights * (dtype == DTYPE_FP4 ? 0.5 + 1.0 / 32 : 1.0);
    }
    bench.op = op;
    bench.flops = 2.0 * (double)weights * rows;
    (void)snprintf(bench.name, sizeof bench.name, "%s, %d x %d, %d rows", what, in, out, rows);
    return bench;
}

struct expert_bench {
    struct experts_op op;
    struct expert_weights weights[17];
};

static void run_experts(struct backend *backend, void *op) {
    backend_experts(backend, op);
}

static struct weight make_weight(enum dtype dtype, int32_t out, int32_t in) {
    size_t count = (size_t)out * (size_t)in;
    struct weight weight = {.dtype = dtype, .out = out, .in = in};
    weight.data = make_codes(dtype == DTYPE_FP4 ? count / 2 : count);
    weight.scale = make_scales(count / 32);
    return weight;
}

struct bench_case experts_case(int32_t rows, int32_t dim, int32_t hidden, int32_t chosen) {
    struct bench_case bench = {.run = run_experts};
    struct expert_bench *b = make_memory(sizeof *b);
    int32_t *ids = make_memory((size_t)(rows * chosen) * 4);
    for (int32_t e = 0; e < 17; e++) {
        enum dtype dtype = e < 16 ? DTYPE_FP4 : DTYPE_FP8;
        b->weights[e].w1 = make_weight(dtype, hidden, dim);
        b->weights[e].w2 = make_weight(dtype, dim, hidden);
        b->weights[e].w3 = make_weight(dtype, hidden, dim);
    }
    for (int32_t r = 0; r < rows; r++) {
        int32_t first = (int32_t)(random_next() % (uint32_t)(17 - chosen));
        for (int32_t i = 0; i < chosen; i++) {
            ids[r * chosen + i] = first + i;
        }
    }
    size_t count = (size_t)rows * (size_t)dim;
    b->op.rows = rows;
    b->op.dim = dim;
    b->op.hidden = hidden;
    b->op.experts = 16;
    b->op.chosen = chosen;
    b->op.limit = 10.0F;
    b->op.routed_dtype = DTYPE_FP4;
    b->op.x.codes = make_codes(count);
    b->op.x.scales = make_scales(count / 32);
    b->op.ids = ids;
    b->op.weights = make_f32((size_t)(rows * chosen));
    b->op.routed = b->weights;
    b->op.shared = &b->weights[16];
    b->op.output = make_memory(count * 2);
    double matrix = (double)dim * hidden * 3.0;
    bench.op = &b->op;
    bench.flops = 2.0 * matrix * rows * (chosen + 1);
    bench.bytes = matrix * (rows == 1 ? chosen * 0.53 + 1.0 : 16 * 0.53 + 1.0);
    (void)snprintf(
        bench.name,
        sizeof bench.name,
        "experts %d x %d, %d of 16, %d rows",
        dim,
        hidden,
        chosen,
        rows
    );
    return bench;
}

/* One sequence with its blocks, for attention and the indexer. */
struct sequence_bench {
    struct attention_op attention;
    struct index_select_op select;
    struct row_segment segment, fresh;
    struct sequence_view view;
};

static void run_attention(struct backend *backend, void *op) {
    backend_attention(backend, op);
}

static void run_select(struct backend *backend, void *op) {
    backend_index_select(backend, op);
}

static void make_blocks(
    struct sequence_bench *b,
    struct kv_source_layout *source,
    int32_t tokens,
    int32_t dim,
    int32_t index_dim
) {
    int32_t count = tokens / 128 + 1;
    uint8_t **blocks = make_memory((size_t)count * sizeof *blocks);
    source->ratio = 1;
    source->entries = 128;
    source->main_record_bytes = (size_t)(dim / 2 + dim / 16);
    source->index_code_offset = 128 * source->main_record_bytes;
    source->index_scale_offset = source->index_code_offset + 64 * (size_t)index_dim;
    for (int32_t i = 0; i < count; i++) {
        blocks[i] = make_codes(source->index_scale_offset + (size_t)(4 * index_dim));
        for (size_t k = 0; k < (size_t)(4 * index_dim); k++) {
            blocks[i][source->index_scale_offset + k] = 120;
        }
    }
    b->view.blocks = blocks;
}

struct bench_case
attention_case(int32_t rows, int32_t heads, int32_t dim, int32_t window, int32_t topk) {
    struct bench_case bench = {.run = run_attention};
    struct sequence_bench *b = make_memory(sizeof *b);
    const int32_t position = 2000;
    size_t width = (size_t)(heads * dim);
    size_t record = window_record_bytes(dim);
    make_blocks(b, &b->attention.source, position + rows, dim, 32);
    uint8_t *ring = make_codes((size_t)window * record);
    uint8_t *fresh = make_codes((size_t)rows * record);
    for (int32_t r = 0; r < window + rows; r++) {
        uint8_t *at =
            r < window ? ring + (size_t)r * record : fresh + (size_t)(r - window) * record;
        memset(at + dim, 120, (size_t)dim / 32);
    }
    int32_t *selected = make_memory((size_t)(rows * topk) * 4);
    int32_t *counts = make_memory((size_t)rows * 4);
    for (int32_t i = 0; i < rows * topk; i++) {
        selected[i] = i % topk * (position / topk);
        counts[i / topk] = topk;
    }
    b->view.ring = ring;
    b->segment = b->fresh = (struct row_segment){0, rows, position};
    struct attention_op *op = &b->attention;
    op->heads = heads;
    op->dim = dim;
    op->window = window;
    op->topk = topk;
    op->scale = 0.1F;
    op->segments = row_segments_of(&b->segment, &b->segment, 1);
    op->fresh_segments = row_segments_of(&b->fresh, &b->fresh, 1);
    op->views = &b->view;
    op->query = make_bf16((size_t)rows * width);
    op->fresh = fresh;
    op->selected = selected;
    op->selected_count = counts;
    op->sink = make_f32((size_t)heads);
    op->output = make_memory((size_t)rows * width * 2);
    bench.op = op;
    bench.flops = 4.0 * (double)width * rows * (window + topk);
    bench.bytes = (double)rows * (window * (double)record + topk * dim * 0.5625);
    (void)snprintf(
        bench.name,
        sizeof bench.name,
        "attention %d heads x %d, %d + %d keys, %d rows",
        heads,
        dim,
        window,
        topk,
        rows
    );
    return bench;
}

struct bench_case
select_case(int32_t rows, int32_t heads, int32_t dim, int32_t topk, int32_t position) {
    struct bench_case bench = {.run = run_select};
    struct sequence_bench *b = make_memory(sizeof *b);
    make_blocks(b, &b->select.source, position + rows, 64, dim);
    b->segment = (struct row_segment){0, rows, position};
    size_t width = (size_t)(rows * heads * dim);
    struct index_select_op *op = &b->select;
    op->heads = heads;
    op->dim = dim;
    op->topk = topk;
    op->mode = INDEX_FULL;
    op->segments = row_segments_of(&b->segment, &b->segment, 1);
    op->views = &b->view;
    op->query_codes = make_codes(width / 2);
    op->query_scales = make_scales(width / 32);
    op->head_weights = make_bf16((size_t)(rows * heads));
    op->head_scale = 0.1F;
    op->selected = make_memory((size_t)(rows * topk) * 4);
    op->selected_count = make_memory((size_t)rows * 4);
    bench.op = op;
    bench.flops = 2.0 * (double)rows * heads * dim * position;
    bench.bytes = (double)rows * position * dim * (0.5 + 1.0 / 32);
    (void)snprintf(
        bench.name,
        sizeof bench.name,
        "index %d heads x %d, %d of %d entries, %d rows",
        heads,
        dim,
        topk,
        position,
        rows
    );
    return bench;
}

static void run_mix(struct backend *backend, void *op) {
    backend_stream_mix(backend, op);
}

struct bench_case mix_case(int32_t rows, int32_t dim) {
    struct bench_case bench = {.run = run_mix};
    struct stream_mix_op *op = make_memory(sizeof *op);
    op->rows = rows;
    op->dim = dim;
    op->streams = 4;
    op->sinkhorn_iterations = 20;
    op->eps = 1e-6F;
    op->norm_eps = 1e-20F;
    op->x = make_bf16((size_t)(rows * 4 * dim));
    op->fn = make_f32((size_t)(24 * 4 * dim));
    op->scale = make_f32(3);
    op->base = make_f32(24);
    op->pre = make_memory((size_t)rows * 16);
    op->post = make_memory((size_t)rows * 16);
    op->comb = make_memory((size_t)rows * 64);
    bench.op = op;
    bench.flops = 2.0 * 24.0 * 4.0 * dim * rows;
    bench.bytes = 24.0 * 4.0 * dim * 4.0;
    (void)snprintf(bench.name, sizeof bench.name, "stream mix 4 x %d, %d rows", dim, rows);
    return bench;
}

struct backend *bench_backend_open(const char *isa, int32_t threads) {
    struct backend_options options = {
        .name = "cpu",
        .threads = threads,
        .isa = isa,
        .rows_max = 256,
        .dim_max = 20480,
        .context_max = 16384,
        .model_dim = 2560,
        .experts = 16,
        .experts_chosen = 6,
        .expert_hidden = 1152,
        .heads = 64,
        .head_dim = 512,
        .index_heads = 32,
        .index_dim = 128,
    };
    struct backend *backend = NULL;
    struct error error = {0};
    if (is_failed(backend_open(&options, &backend, &error))) {
        printf("%s: %s\n", isa, error.message);
        return NULL;
    }
    return backend;
}
