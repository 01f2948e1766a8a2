/* Embedding, residual streams, RMSNorm, rotary embedding.
 *
 * Bound: bandwidth; each element is read once and written once, 16 bytes a thread. Elementwise
 * formulas keep the CPU backend's roundings and give its bits; sums of squares have another order
 * than the CPU's (cuda_rows.cuh), so that normed values agree to a bf16 ulp. stream_mix is in
 * cuda_mix.cu.
 */
#include "cuda_rows.cuh"

#include "base/result.h"

#define STREAMS      4
#define SHARED_PLAIN (40 << 10) /* bytes a block may ask for without a word to the driver */

/* ---- embedding ---- */

/* Block y has some of the channels of row x. */
__global__ void embed_kernel(struct mark mark, struct embed_op op) {
    MARK(mark);
    size_t row = blockIdx.x;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (item < op.dim / 8) {
        size_t id = (size_t)op.ids[row];
        uint4 value = *reinterpret_cast<const uint4 *>(op.table + id * (size_t)op.dim + 8 * item);
        uint16_t *x = op.x + row * (size_t)op.streams * (size_t)op.dim + 8 * item;
        for (int32_t stream = 0; stream < op.streams; stream++) {
            *reinterpret_cast<uint4 *>(x + (size_t)stream * (size_t)op.dim) = value;
        }
    }
    if (item < op.streams) {
        op.mix[row * (size_t)op.streams + (size_t)item] = item == 0 ? 1.0F : 0.0F;
    }
}

void cuda_embed(struct backend *backend, const struct embed_op *op) {
    struct cuda *cuda = cuda_of(backend);
    int32_t items = op->dim / 8 > op->streams ? op->dim / 8 : op->streams;
    unsigned parts;
    unsigned threads = part_threads(items, &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_EMBED, embed_kernel, grid, threads, 0, *op);
    }
}

/* ---- residual streams ---- */

/* A block per row; u waits in shared memory, as bf16, for the sum of its squares. */
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    collapse_kernel(struct mark mark, struct stream_collapse_op op) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    uint16_t *u = reinterpret_cast<uint16_t *>(shared);
    size_t row = blockIdx.x;
    size_t dim = (size_t)op.dim;
    const uint16_t *x = op.x + row * (size_t)op.streams * dim;
    const float *mix = op.mix + row * (size_t)op.streams;
    size_t stride = op.collapsed_stride == 0 ? dim : (size_t)op.collapsed_stride;
    float squares = 0.0F;
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight sum = load_eight(x + 8 * item);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum.v[i] = __fmul_rn(mix[0], sum.v[i]);
        }
#pragma unroll 3
        for (int32_t j = 1; j < op.streams; j++) {
            struct eight from = load_eight(x + (size_t)j * dim + 8 * item);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum.v[i] = __fadd_rn(sum.v[i], __fmul_rn(mix[j], from.v[i]));
            }
        }
        store_eight(u + 8 * item, &sum);
        sum = load_eight(u + 8 * item);
        squares = add_squares(&sum, squares);
        if (op.collapsed != NULL) {
            store_eight(op.collapsed + row * stride + 8 * item, &sum);
        }
    }
    block_sum<1>(&squares);
    float factor = mean_factor(squares, op.dim, op.norm_eps);
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight value = load_eight(u + 8 * item); // this thread's own
        struct eight weight = load_eight(op.weight + 8 * item);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value.v[i] = __fmul_rn(weight.v[i], __fmul_rn(value.v[i], factor));
        }
        store_eight(op.normed + row * dim + 8 * item, &value);
    }
}

void cuda_stream_collapse(struct backend *backend, const struct stream_collapse_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows > 0) {
        size_t shared = (size_t)op->dim * sizeof(uint16_t);
        if (shared > SHARED_PLAIN) {
            CUDA_ALLOW_SHARED(cuda, CUDA_OP_STREAM_COLLAPSE, collapse_kernel, shared);
        }
        CUDA_LAUNCH(
            cuda,
            CUDA_OP_STREAM_COLLAPSE,
            collapse_kernel,
            (unsigned)op->rows,
            row_threads(op->dim / 8),
            shared,
            *op
        );
    }
}

/* Block y has some of the channels of row x. */
__global__ void update_kernel(struct mark mark, struct stream_update_op op) {
    MARK(mark);
    size_t row = blockIdx.x;
    size_t dim = (size_t)op.dim;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (item >= op.dim / 8) {
        return;
    }
    uint16_t *x = op.x + row * STREAMS * dim + 8 * item;
    const float *post = op.post + row * STREAMS;
    const float *comb = op.comb + row * STREAMS * STREAMS;
    struct eight from[STREAMS];
    struct eight added = load_eight(op.y + row * dim + 8 * item);
#pragma unroll
    for (int j = 0; j < STREAMS; j++) {
        from[j] = load_eight(x + (size_t)j * dim);
    }
#pragma unroll
    for (int k = 0; k < STREAMS; k++) {
        struct eight to;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float sum = __fmul_rn(comb[k], from[0].v[i]);
#pragma unroll
            for (int j = 1; j < STREAMS; j++) {
                sum = __fadd_rn(sum, __fmul_rn(comb[j * STREAMS + k], from[j].v[i]));
            }
            to.v[i] = __fadd_rn(__fmul_rn(post[k], added.v[i]), sum);
        }
        store_eight(x + (size_t)k * dim, &to);
    }
}

void cuda_stream_update(struct backend *backend, const struct stream_update_op *op) {
    struct cuda *cuda = cuda_of(backend);
    unsigned parts;
    unsigned threads = part_threads(op->dim / 8, &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_STREAM_UPDATE, update_kernel, grid, threads, 0, *op);
    }
}

/* ---- norm ---- */

/* y = bf16(w * (x * 1/sqrt(mean(x^2) + eps))), a block per row (spec 3.0.3). Each thread reads its
 * channels twice, the second time from the nearest cache, and writes them last: y may be x. */
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    norm_kernel(struct mark mark, struct norm_op op) {
    MARK(mark);
    const uint16_t *x = op.x + (size_t)blockIdx.x * (size_t)op.dim;
    uint16_t *y = op.y + (size_t)blockIdx.x * (size_t)op.dim;
    float squares = 0.0F;
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight value = load_eight(x + 8 * item);
        squares = add_squares(&value, squares);
    }
    block_sum<1>(&squares);
    float factor = mean_factor(squares, op.dim, op.eps);
    for (int32_t item = (int32_t)threadIdx.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        struct eight value = load_eight(x + 8 * item);
        struct eight weight = load_eight(op.weight + 8 * item);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            value.v[i] = __fmul_rn(weight.v[i], __fmul_rn(value.v[i], factor));
        }
        store_eight(y + 8 * item, &value);
    }
}

void cuda_norm(struct backend *backend, const struct norm_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows > 0) {
        unsigned threads = row_threads(op->dim / 8);
        CUDA_LAUNCH(cuda, CUDA_OP_NORM, norm_kernel, (unsigned)op->rows, threads, 0, *op);
    }
}

/* ---- rotary embedding ---- */

/* The CPU backend's steps (cpu_math.c), fused in the same places, so with the same bits: reduction by
 * pi/2 in two parts, then the kernels of fdlibm (Sun, 1993). |x| < 2^31. */
__device__ void sine_and_cosine(double x, float *sine, float *cosine) {
    const double magic = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
    double n = __dsub_rn(__dadd_rn(__dmul_rn(x, 6.36619772367581382433e-01), magic), magic);
    double r = __fma_rn(n, -1.57079632679489655800e+00, x);
    r = __fma_rn(n, -6.12323399573676603587e-17, r);
    double z = __dmul_rn(r, r);
    double s = 1.58969099521155010221e-10;
    s = __fma_rn(s, z, -2.50507602534068634195e-08);
    s = __fma_rn(s, z, 2.75573137070700676789e-06);
    s = __fma_rn(s, z, -1.98412698298579493134e-04);
    s = __fma_rn(s, z, 8.33333333332248946124e-03);
    s = __fma_rn(s, z, -1.66666666666666324348e-01);
    s = __fma_rn(__dmul_rn(s, z), r, r);
    double c = -1.13596475577881948265e-11;
    c = __fma_rn(c, z, 2.08757232129817482790e-09);
    c = __fma_rn(c, z, -2.75573143513906633035e-07);
    c = __fma_rn(c, z, 2.48015872894767294178e-05);
    c = __fma_rn(c, z, -1.38888888888741095749e-03);
    c = __fma_rn(c, z, 4.16666666666666019037e-02);
    c = __fma_rn(__dmul_rn(c, z), z, __fma_rn(z, -0.5, 1.0));
    int64_t quadrant = (int64_t)n & 3;
    float first = (float)((quadrant & 1) != 0 ? c : s);
    float second = (float)((quadrant & 1) != 0 ? s : c);
    *sine = quadrant >= 2 ? -first : first;
    *cosine = quadrant == 1 || quadrant == 2 ? -second : second;
}

#define TABLE_THREADS 128

__global__ void __launch_bounds__(TABLE_THREADS)
    rope_table_kernel(struct mark mark, struct rope_table_op op) {
    MARK(mark);
    int64_t at = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (at < (int64_t)op.rows * op.pairs) {
        float position = (float)op.positions[at / op.pairs];
        float angle = __fmul_rn(position, op.frequencies[at % op.pairs]); // rounded: spec 3.4
        sine_and_cosine((double)angle, &op.sine[at], &op.cosine[at]);
    }
}

void cuda_rope_table(struct backend *backend, const struct rope_table_op *op) {
    struct cuda *cuda = cuda_of(backend);
    int64_t blocks = ((int64_t)op->rows * op->pairs + TABLE_THREADS - 1) / TABLE_THREADS;
    if (blocks > 0) {
        CUDA_LAUNCH(
            cuda, CUDA_OP_ROPE_TABLE, rope_table_kernel, (unsigned)blocks, TABLE_THREADS, 0, *op
        );
    }
}

/* A thread per pair of row x; two products and one addition each, never fused (spec 3.4). */
__global__ void rotate_kernel(struct mark mark, struct rotate_op op) {
    MARK(mark);
    int32_t pairs = op.rope_dim / 2;
    size_t row = blockIdx.x;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (item >= op.heads * pairs) {
        return;
    }
    int32_t head = item / pairs;
    int32_t i = item % pairs;
    size_t end = (row * (size_t)op.heads + (size_t)head + 1) * (size_t)op.dim;
    uint32_t *x = reinterpret_cast<uint32_t *>(op.x + end - op.rope_dim + 2 * i);
    float even = __uint_as_float(*x << 16);
    float odd = __uint_as_float(*x & 0xffff0000U);
    float c = op.cosine[row * (size_t)pairs + (size_t)i];
    float s = op.sine[row * (size_t)pairs + (size_t)i];
    s = op.inverse ? -s : s;
    *x = bf16x2_encode(
        __fsub_rn(__fmul_rn(even, c), __fmul_rn(odd, s)),
        __fadd_rn(__fmul_rn(even, s), __fmul_rn(odd, c))
    );
}

void cuda_rotate(struct backend *backend, const struct rotate_op *op) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(op->dim % 2 == 0); // pairs are read as words
    unsigned parts;
    unsigned threads = part_threads(op->heads * (op->rope_dim / 2), &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_ROTATE, rotate_kernel, grid, threads, 0, *op);
    }
}
