/* Engram: rows of the table, and their gate (spec 3.10).
 *
 * Bound: bandwidth. A gathered row is 256 bytes of codes and 8 of scales at the release's width, at
 * a random place, of device or of host memory. The gate reads streams, keys and the value once; its
 * three sums have the order of cuda_rows.cuh.
 */
#include "cuda_rows.cuh"

/* A thread per eight channels of row x. */
__global__ void gather_kernel(struct mark mark, struct engram_gather_op op) {
    MARK(mark);
    int32_t per_column = op.dim / 8;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (item >= op.columns * per_column) {
        return;
    }
    size_t column = (size_t)blockIdx.x * (size_t)op.columns + (size_t)(item / per_column);
    int32_t at = 8 * (item % per_column);
    size_t from = (size_t)op.ids[column] * (size_t)op.dim + (size_t)at;
    uint2 codes = *reinterpret_cast<const uint2 *>(op.table + from);
    float scale = e8m0_decode(op.scales[from / 32]);
    struct eight value;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t word = i < 4 ? codes.x : codes.y;
        value.v[i] = __fmul_rn(e4m3_decode((uint8_t)(word >> (8 * (i % 4)))), scale);
    }
    store_eight(op.output + column * (size_t)op.dim + at, &value);
}

void cuda_engram_gather(struct backend *backend, const struct engram_gather_op *op) {
    struct cuda *cuda = cuda_of(backend);
    unsigned parts;
    unsigned threads = part_threads(op->columns * (op->dim / 8), &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_ENGRAM_GATHER, gather_kernel, grid, threads, 0, *op);
    }
}

/* Step 4 of the lookup from the three sums of step 3. */
__device__ float gate_of(const float *sums, int32_t dim, float eps) {
    float g = __fmul_rn(sums[0], mean_factor(sums[1], dim, eps));
    g = __fmul_rn(g, mean_factor(sums[2], dim, eps));
    g = __fmul_rn(g, reciprocal_root((float)dim));
    float root = copysignf(__fsqrt_rn(fmaxf(fabsf(g), 1e-6F)), g);
    return __fdiv_rn(1.0F, __fadd_rn(1.0F, expf(-root)));
}

struct gate_sums {
    float v[3]; /* dot product, squares of the stream, squares of the key */
};

__device__ __forceinline__ void add_products(
    const struct eight *x,
    const uint16_t *key,
    const uint16_t *query_weight,
    const uint16_t *key_weight,
    struct gate_sums *sums
) {
    struct eight b = load_eight(key);
    struct eight q = load_eight(query_weight);
    struct eight k = load_eight(key_weight);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float weighted = __fmul_rn(x->v[i], __fmul_rn(q.v[i], k.v[i]));
        sums->v[0] = __fmaf_rn(weighted, b.v[i], sums->v[0]);
    }
    sums->v[1] = add_squares(x, sums->v[1]);
    sums->v[2] = add_squares(&b, sums->v[2]);
}

__device__ __forceinline__ void
store_added(uint16_t *to, const struct eight *x, const struct eight *value, float gate) {
    struct eight sum;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum.v[i] = __fadd_rn(x->v[i], __fmul_rn(gate, value->v[i]));
    }
    store_eight(to, &sum);
}

/* A block per row x and stream y. A thread keeps its first eight channels of the stream and of the
 * value; rows wider than 5,120 channels have more, which it reads again. */
__global__ void __launch_bounds__(ROW_THREADS_MAX, 2)
    gate_kernel(struct mark mark, struct engram_gate_op op) {
    MARK(mark);
    size_t row = blockIdx.x;
    size_t stream = blockIdx.y;
    size_t dim = (size_t)op.dim;
    size_t streams = (size_t)op.streams;
    uint16_t *x = op.x + (row * streams + stream) * dim;
    const uint16_t *kv = op.kv + row * (streams + 1) * dim;
    const uint16_t *values = kv + streams * dim;
    size_t weights = stream * dim;
    int32_t own = (int32_t)threadIdx.x;
    struct eight first = {};
    struct eight value = {};
    struct gate_sums sums = {};
    for (int32_t item = own; item < op.dim / 8; item += (int32_t)blockDim.x) {
        size_t at = 8 * (size_t)item;
        struct eight a = load_eight(x + at);
        if (item == own) {
            first = a;
            value = load_eight(values + at);
        }
        const uint16_t *query = op.query_weight + weights + at;
        add_products(&a, kv + weights + at, query, op.key_weight + weights + at, &sums);
    }
    block_sum<3>(sums.v);
    float gate = gate_of(sums.v, op.dim, op.norm_eps);
    if (threadIdx.x == 0 && op.gate != NULL) {
        op.gate[row * streams + stream] = gate;
    }
    if (own < op.dim / 8) {
        store_added(x + 8 * own, &first, &value, gate);
    }
    for (int32_t item = own + (int32_t)blockDim.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight a = load_eight(x + 8 * item);
        struct eight next = load_eight(values + 8 * item);
        store_added(x + 8 * item, &a, &next, gate);
    }
}

void cuda_engram_gate(struct backend *backend, const struct engram_gate_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, (unsigned)op->streams);
        unsigned threads = row_threads(op->dim / 8);
        CUDA_LAUNCH(cuda, CUDA_OP_ENGRAM_GATE, gate_kernel, grid, threads, 0, *op);
    }
}
