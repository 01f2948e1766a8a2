/* Residual streams, norms, rotary embedding, Engram: work per element, bound by memory or latency.
 *
 * Elementwise formulas keep the reference's order of roundings (products, then sums, not fused), so
 * that results are equal to it bit for bit wherever its inputs are. */
#include "lanes.h"

#include "cpu.h"

#define STREAMS   4
#define MIX_COUNT ((2 + STREAMS) * STREAMS)
#define MIX_ROWS  4

static void embed_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct embed_op *op = argument;
    size_t dim = (size_t)op->dim;
    size_t streams = (size_t)op->streams;
    ASSERT(op->ids[row] >= 0 && op->ids[row] < op->vocabulary);
    const uint16_t *from = op->table + (size_t)op->ids[row] * dim;
    for (size_t stream = 0; stream < streams; stream++) {
        memcpy(op->x + ((size_t)row * streams + stream) * dim, from, dim * sizeof *from);
        op->mix[(size_t)row * streams + stream] = stream == 0 ? 1.0F : 0.0F;
    }
}

void LANES(cpu_embed)(struct backend *backend, const struct embed_op *op) {
    cpu_rows(cpu_of(backend), op, embed_row, op->rows, op->dim / 4);
}

static float sum_of_squares(const float *x, int32_t count) {
    v16 sum = v_set1(0.0F);
    for (int32_t i = 0; i < count; i += 16) {
        v16 value = v_load(x + i);
        sum = v_fma(value, value, sum);
    }
    return v_reduce_add(sum);
}

/* Softmax over k, then alternating column and row passes, ending on a column pass (spec 3.3). Lane
 * 4 j + k holds [j, k]; a sum over k folds lanes by 2, 1, a sum over j by 8, 4. */
static v16 sinkhorn(v16 x, int32_t iterations, float eps) {
    v16 small = v_set1(eps);
    v16 largest = v_max(x, v_swap(x, 2));
    largest = v_max(largest, v_swap(largest, 1));
    x = v_exp(v_sub(x, largest));
    for (int32_t i = 0; i < iterations; i++) {
        v16 rows = v_add(x, v_swap(x, 2));
        rows = v_add(rows, v_swap(rows, 1));
        x = i == 0 ? v_add(v_div(x, rows), small) : v_div(x, v_add(rows, small));
        v16 columns = v_add(x, v_swap(x, 8));
        columns = v_add(columns, v_swap(columns, 4));
        x = v_div(x, v_add(columns, small));
    }
    return x;
}

/* pre, post and comb of one row from its 24 mixes, already normalised. */
static void mix_finish(const struct stream_mix_op *op, int32_t row, const float *mixes) {
    float gates[16] = {0};
    for (int j = 0; j < STREAMS; j++) {
        gates[j] = mixes[j] * op->scale[0] + op->base[j];
        gates[STREAMS + j] = mixes[STREAMS + j] * op->scale[1] + op->base[STREAMS + j];
    }
    v_store(gates, v_sigmoid(v_load(gates)));
    for (int j = 0; j < STREAMS; j++) {
        op->pre[row * STREAMS + j] = gates[j] + op->eps;
        op->post[row * STREAMS + j] = 2.0F * gates[STREAMS + j];
    }
    v16 comb = v_mul(v_load(mixes + 2 * STREAMS), v_set1(op->scale[2]));
    comb = v_add(comb, v_load(op->base + 2 * STREAMS));
    comb = sinkhorn(comb, op->sinkhorn_iterations, op->eps);
    v_store(op->comb + (size_t)row * STREAMS * STREAMS, comb);
}

static void mix_rows(struct cpu *cpu, const void *argument, int32_t group, int32_t thread) {
    const struct stream_mix_op *op = argument;
    int32_t width = op->streams * op->dim;
    int32_t first = group * MIX_ROWS;
    int32_t rows = int_min(MIX_ROWS, op->rows - first);
    float *x = cpu->threads[thread].panel;
    float mixes[MIX_ROWS * MIX_COUNT];
    for (int32_t r = 0; r < rows; r++) {
        const uint16_t *from = op->x + (size_t)(first + r) * (size_t)width;
        LANES(cpu_decode_bf16)(from, width, false, x + (size_t)r * (size_t)width);
    }
    size_t stride = (size_t)width;
    LANES(cpu_dots)(x, stride, rows, op->fn, stride, MIX_COUNT, width, mixes, MIX_COUNT);
    for (int32_t r = 0; r < rows; r++) {
        float squares = sum_of_squares(x + (size_t)r * stride, width);
        float factor = lane_rsqrt(squares / (float)width + op->norm_eps);
        float *own = mixes + r * MIX_COUNT;
        for (int i = 0; i < MIX_COUNT; i++) {
            own[i] *= factor;
        }
        mix_finish(op, first + r, own);
    }
}

void LANES(cpu_stream_mix)(struct backend *backend, const struct stream_mix_op *op) {
    int32_t groups = ceil_divide(op->rows, MIX_ROWS);
    cpu_rows(cpu_of(backend), op, mix_rows, groups, 2000 + (int64_t)op->streams * op->dim * 4);
}

/* bf16 row of FP32 values times a factor times the weight; see spec 3.0.3. */
static void
norm_scale(const uint16_t *x, const uint16_t *weight, int32_t dim, float factor, uint16_t *y) {
    v16 scale = v_set1(factor);
    for (int32_t i = 0; i < dim; i += 16) {
        v16 value = v_mul(v_load_bf16(x + i), scale);
        v_store_bf16(y + i, v_mul(v_load_bf16(weight + i), value));
    }
}

static void
norm_row_of(const uint16_t *x, const uint16_t *weight, int32_t dim, float eps, uint16_t *y) {
    v16 sum = v_set1(0.0F);
    for (int32_t i = 0; i < dim; i += 16) {
        v16 value = v_load_bf16(x + i);
        sum = v_fma(value, value, sum);
    }
    norm_scale(x, weight, dim, lane_rsqrt(v_reduce_add(sum) / (float)dim + eps), y);
}

static void norm_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct norm_op *op = argument;
    size_t at = (size_t)row * (size_t)op->dim;
    norm_row_of(op->x + at, op->weight, op->dim, op->eps, op->y + at);
}

void LANES(cpu_norm)(struct backend *backend, const struct norm_op *op) {
    cpu_rows(cpu_of(backend), op, norm_row, op->rows, op->dim / 4);
}

static void collapse_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct stream_collapse_op *op = argument;
    size_t dim = (size_t)op->dim;
    size_t streams = (size_t)op->streams;
    const uint16_t *x = op->x + (size_t)row * streams * dim;
    const float *mix = op->mix + (size_t)row * streams;
    uint16_t *y = op->normed + (size_t)row * dim;
    for (size_t i = 0; i < dim; i += 16) {
        v16 sum = v_mul(v_set1(mix[0]), v_load_bf16(x + i));
        for (size_t j = 1; j < streams; j++) {
            sum = v_add(sum, v_mul(v_set1(mix[j]), v_load_bf16(x + j * dim + i)));
        }
        v_store_bf16(y + i, sum);
    }
    if (op->collapsed != NULL) {
        size_t stride = op->collapsed_stride == 0 ? dim : (size_t)op->collapsed_stride;
        memcpy(op->collapsed + (size_t)row * stride, y, dim * sizeof *y);
    }
    norm_row_of(y, op->weight, op->dim, op->norm_eps, y);
}

void LANES(cpu_stream_collapse)(struct backend *backend, const struct stream_collapse_op *op) {
    cpu_rows(cpu_of(backend), op, collapse_row, op->rows, op->dim * op->streams / 8);
}

static void update_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct stream_update_op *op = argument;
    size_t dim = (size_t)op->dim;
    uint16_t *x = op->x + (size_t)row * STREAMS * dim;
    const uint16_t *y = op->y + (size_t)row * dim;
    const float *post = op->post + (size_t)row * STREAMS;
    const float *comb = op->comb + (size_t)row * STREAMS * STREAMS;
    for (size_t i = 0; i < dim; i += 16) {
        v16 from[STREAMS];
        v16 added = v_load_bf16(y + i);
#pragma GCC unroll 4
        for (size_t j = 0; j < STREAMS; j++) {
            from[j] = v_load_bf16(x + j * dim + i);
        }
        for (size_t k = 0; k < STREAMS; k++) {
            v16 sum = v_mul(v_set1(comb[k]), from[0]);
#pragma GCC unroll 4
            for (size_t j = 1; j < STREAMS; j++) {
                sum = v_add(sum, v_mul(v_set1(comb[j * STREAMS + k]), from[j]));
            }
            v_store_bf16(x + k * dim + i, v_add(v_mul(v_set1(post[k]), added), sum));
        }
    }
}

void LANES(cpu_stream_update)(struct backend *backend, const struct stream_update_op *op) {
    cpu_rows(cpu_of(backend), op, update_row, op->rows, op->dim * op->streams / 4);
}

static void rope_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct rope_table_op *op = argument;
    size_t at = (size_t)row * (size_t)op->pairs;
    float position = (float)op->positions[row];
    for (int32_t i = 0; i < op->pairs; i++) {
        float angle = position * op->frequencies[i]; // rounded to FP32 first: spec 3.4
        double sine;
        double cosine;
        LANES(cpu_sincos)((double)angle, &sine, &cosine);
        op->sine[at + (size_t)i] = (float)sine;
        op->cosine[at + (size_t)i] = (float)cosine;
    }
}

void LANES(cpu_rope_table)(struct backend *backend, const struct rope_table_op *op) {
    cpu_rows(cpu_of(backend), op, rope_row, op->rows, op->pairs * 30);
}

static void rotate_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct rotate_op *op = argument;
    int32_t pairs = op->rope_dim / 2;
    const float *cosine = op->cosine + (size_t)row * (size_t)pairs;
    const float *sine = op->sine + (size_t)row * (size_t)pairs;
    for (int32_t head = 0; head < op->heads; head++) {
        size_t end = ((size_t)row * (size_t)op->heads + (size_t)head + 1) * (size_t)op->dim;
        uint16_t *x = op->x + end - op->rope_dim;
        for (int32_t i = 0; i < pairs; i++) {
            float even = bf16_decode(x[2 * i]);
            float odd = bf16_decode(x[2 * i + 1]);
            float s = op->inverse ? -sine[i] : sine[i];
            x[2 * i] = bf16_encode(even * cosine[i] - odd * s);
            x[2 * i + 1] = bf16_encode(even * s + odd * cosine[i]);
        }
    }
}

void LANES(cpu_rotate)(struct backend *backend, const struct rotate_op *op) {
    cpu_rows(cpu_of(backend), op, rotate_row, op->rows, (int64_t)op->heads * op->rope_dim);
}

static void gather_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct engram_gather_op *op = argument;
    size_t dim = (size_t)op->dim;
    for (int32_t column = 0; column < op->columns; column++) {
        size_t at = (size_t)row * (size_t)op->columns + (size_t)column;
        size_t from = (size_t)op->ids[at];
        for (size_t i = 0; i < dim; i += 32) {
            v16 even;
            v16 odd;
            v_load_fp8_group(
                op->table + from * dim + i, op->scales[(from * dim + i) / 32], &even, &odd
            );
            v_store_bf16_pair(op->output + at * dim + i, even, odd);
        }
    }
}

void LANES(cpu_engram_gather)(struct backend *backend, const struct engram_gather_op *op) {
    cpu_rows(cpu_of(backend), op, gather_row, op->rows, op->columns * (100 + op->dim / 4));
}

/* g_j of spec 3.10 step 3 for one stream, then the gate of step 4. */
static float engram_gate(
    const uint16_t *x,
    const uint16_t *key,
    const uint16_t *query_weight,
    const uint16_t *key_weight,
    int32_t dim,
    float eps
) {
    v16 dot = v_set1(0.0F);
    v16 x_squares = dot;
    v16 key_squares = dot;
    for (int32_t i = 0; i < dim; i += 16) {
        v16 a = v_load_bf16(x + i);
        v16 b = v_load_bf16(key + i);
        v16 weight = v_mul(v_load_bf16(query_weight + i), v_load_bf16(key_weight + i));
        dot = v_fma(v_mul(a, weight), b, dot);
        x_squares = v_fma(a, a, x_squares);
        key_squares = v_fma(b, b, key_squares);
    }
    float width = (float)dim;
    float g = v_reduce_add(dot) * lane_rsqrt(v_reduce_add(x_squares) / width + eps);
    g = g * lane_rsqrt(v_reduce_add(key_squares) / width + eps) * lane_rsqrt(width);
    float root = sqrtf(float_max(fabsf(g), 1e-6F));
    float lanes[16];
    v_store(lanes, v_sigmoid(v_set1(copysignf(root, g))));
    return lanes[0];
}

static void gate_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct engram_gate_op *op = argument;
    size_t dim = (size_t)op->dim;
    size_t streams = (size_t)op->streams;
    const uint16_t *kv = op->kv + (size_t)row * (streams + 1) * dim;
    const uint16_t *value = kv + streams * dim;
    for (size_t j = 0; j < streams; j++) {
        uint16_t *x = op->x + ((size_t)row * streams + j) * dim;
        const uint16_t *query_weight = op->query_weight + j * dim;
        const uint16_t *key_weight = op->key_weight + j * dim;
        float gate = engram_gate(x, kv + j * dim, query_weight, key_weight, op->dim, op->norm_eps);
        if (op->gate != NULL) {
            op->gate[(size_t)row * streams + j] = gate;
        }
        v16 factor = v_set1(gate);
        for (size_t i = 0; i < dim; i += 16) {
            v16 added = v_mul(factor, v_load_bf16(value + i));
            v_store_bf16(x + i, v_add(v_load_bf16(x + i), added));
        }
    }
}

void LANES(cpu_engram_gate)(struct backend *backend, const struct engram_gate_op *op) {
    cpu_rows(cpu_of(backend), op, gate_row, op->rows, op->dim * op->streams / 2);
}

void LANES(cpu_keep_rows)(struct backend *backend, const struct keep_rows_op *op) {
    (void)backend;
    unsigned char *rows = op->rows;
    for (int32_t s = 0; s < op->from.count; s++) {
        const struct row_segment *from = &op->from.host[s];
        const struct row_segment *to = &op->to.host[s];
        size_t first = (size_t)from->row + (size_t)from->count - (size_t)to->count;
        memmove(
            rows + (size_t)to->row * op->row_bytes,
            rows + first * op->row_bytes,
            (size_t)to->count * op->row_bytes
        );
    }
}
