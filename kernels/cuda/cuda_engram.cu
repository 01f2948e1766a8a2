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

/* A block per row x and stream y. */
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    gate_kernel(struct mark mark, struct engram_gate_op op) {
    MARK(mark);
    size_t row = blockIdx.x;
    size_t stream = blockIdx.y;
    size_t dim = (size_t)op.dim;
    size_t streams = (size_t)op.streams;
    uint16_t *x = op.x + (row * streams + stream) * dim;
    const uint16_t *kv = op.kv + row * (streams + 1) * dim;
    float sums[3] = {0.0F, 0.0F, 0.0F};
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight a = load_eight(x + 8 * item);
        struct eight b = load_eight(kv + stream * dim + 8 * item);
        struct eight query = load_eight(op.query_weight + stream * dim + 8 * item);
        struct eight key = load_eight(op.key_weight + stream * dim + 8 * item);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float weighted = __fmul_rn(a.v[i], __fmul_rn(query.v[i], key.v[i]));
            sums[0] = __fmaf_rn(weighted, b.v[i], sums[0]);
        }
        sums[1] = add_squares(&a, sums[1]);
        sums[2] = add_squares(&b, sums[2]);
    }
    block_sum<3>(sums);
    float gate = gate_of(sums, op.dim, op.norm_eps);
    if (threadIdx.x == 0 && op.gate != NULL) {
        op.gate[row * streams + stream] = gate;
    }
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight a = load_eight(x + 8 * item);
        struct eight value = load_eight(kv + streams * dim + 8 * item);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            a.v[i] = __fadd_rn(a.v[i], __fmul_rn(gate, value.v[i]));
        }
        store_eight(x + 8 * item, &a);
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
