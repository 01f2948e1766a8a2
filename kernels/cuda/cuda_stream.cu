/* Embedding, residual streams, RMSNorm, rotary embedding.
 *
 * Bound: bandwidth; each element is read once and written once, 16 bytes a thread. Elementwise
 * formulas keep the CPU backend's roundings and give its bits; sums of squares have another order
 * than the CPU's (cuda_rows.cuh), so that normed values agree to a bf16 ulp. stream_mix is in
 * cuda_mix.cu.
 */
#include "cuda_rows.cuh"

#include "base/result.h"

#define STREAMS 4

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

/* u of eight channels, rounded to bf16, from all streams. */
__device__ __forceinline__ uint4
collapse_eight(const uint16_t *x, const float *mix, int32_t streams, size_t dim) {
    uint4 raw[STREAMS];
#pragma unroll
    for (int32_t j = 0; j < STREAMS; j++) { // all on their way at once
        raw[j] = load_raw(x + (size_t)min(j, streams - 1) * dim);
    }
    struct eight sum = unpack_eight(raw[0]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum.v[i] = __fmul_rn(mix[0], sum.v[i]);
    }
    auto add = [&](uint4 more, float times) {
        struct eight from = unpack_eight(more);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum.v[i] = __fadd_rn(sum.v[i], __fmul_rn(times, from.v[i]));
        }
    };
#pragma unroll
    for (int32_t j = 1; j < STREAMS; j++) {
        if (j < streams) {
            add(raw[j], mix[j]);
        }
    }
    for (int32_t j = STREAMS; j < streams; j++) {
        add(load_raw(x + (size_t)j * dim), mix[j]);
    }
    return pack_eight(&sum);
}

/* A block per row. A thread keeps its first eight channels and their weights; rows wider than 5,120
 * channels have more, whose u waits in `normed`. */
__global__ void __launch_bounds__(ROW_THREADS_MAX, 2)
    collapse_kernel(struct mark mark, struct stream_collapse_op op) {
    MARK(mark);
    size_t row = blockIdx.x;
    size_t dim = (size_t)op.dim;
    const uint16_t *x = op.x + row * (size_t)op.streams * dim;
    const float *mix = op.mix + row * (size_t)op.streams;
    uint16_t *normed = op.normed + row * dim;
    size_t stride = op.collapsed_stride == 0 ? dim : (size_t)op.collapsed_stride;
    uint16_t *collapsed = op.collapsed == NULL ? NULL : op.collapsed + row * stride;
    int32_t own = (int32_t)threadIdx.x;
    uint4 first = make_uint4(0, 0, 0, 0);
    // It comes while the streams do, and waits where it takes no registers.
    __shared__ uint4 weights[ROW_THREADS_MAX];
    copy_async16(&weights[own], op.weight + 8 * min(own, op.dim / 8 - 1), true);
    copy_async_commit();
    float squares = 0.0F;
    for (int32_t item = own; item < op.dim / 8; item += (int32_t)blockDim.x) {
        uint4 u = collapse_eight(x + 8 * item, mix, op.streams, dim);
        struct eight value = unpack_eight(u);
        squares = add_squares(&value, squares);
        if (collapsed != NULL) {
            store_raw(collapsed + 8 * item, u);
        }
        if (item == own) {
            first = u;
        } else {
            store_raw(normed + 8 * item, u);
        }
    }
    block_sum<1>(&squares);
    float factor = mean_factor(squares, op.dim, op.norm_eps);
    copy_async_wait<0>();
    if (own < op.dim / 8) {
        store_normed(normed + 8 * own, first, weights[own], factor);
    }
    for (int32_t item = own + (int32_t)blockDim.x; item < op.dim / 8; item += (int32_t)blockDim.x) {
        uint4 u = load_raw(normed + 8 * item);
        store_normed(normed + 8 * item, u, load_raw(op.weight + 8 * item), factor);
    }
}

void cuda_stream_collapse(struct backend *backend, const struct stream_collapse_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows > 0) {
        unsigned rows = (unsigned)op->rows;
        unsigned threads = row_threads(op->dim / 8);
        CUDA_LAUNCH(cuda, CUDA_OP_STREAM_COLLAPSE, collapse_kernel, rows, threads, 0, *op);
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

/* y = bf16(w * (x * 1/sqrt(mean(x^2) + eps))), a block per row (spec 3.0.3). A thread keeps its first
 * eight channels; rows wider than 5,120 channels have more, which it reads twice. y may be x. */
__global__ void __launch_bounds__(ROW_THREADS_MAX)
    norm_kernel(struct mark mark, struct norm_op op) {
    MARK(mark);
    const uint16_t *x = op.x + (size_t)blockIdx.x * (size_t)op.dim;
    uint16_t *y = op.y + (size_t)blockIdx.x * (size_t)op.dim;
    int32_t own = (int32_t)threadIdx.x;
    int32_t second = own + (int32_t)blockDim.x;
    uint4 first = make_uint4(0, 0, 0, 0);
    uint4 weight = first;
    if (own < op.dim / 8) {
        first = load_raw(x + 8 * own);
        weight = load_raw(op.weight + 8 * own);
    }
    struct eight value = unpack_eight(first);
    float squares = add_squares(&value, 0.0F);
    for (int32_t item = second; item < op.dim / 8; item += (int32_t)blockDim.x) {
        value = load_eight(x + 8 * item);
        squares = add_squares(&value, squares);
    }
    block_sum<1>(&squares);
    float factor = mean_factor(squares, op.dim, op.eps);
    if (own < op.dim / 8) {
        store_normed(y + 8 * own, first, weight, factor);
    }
    for (int32_t item = second; item < op.dim / 8; item += (int32_t)blockDim.x) {
        uint4 next = load_raw(op.weight + 8 * item);
        store_normed(y + 8 * item, load_raw(x + 8 * item), next, factor);
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

/* A thread per PAIRS pairs of one head of row x; two products and one addition each, never fused
 * (spec 3.4). */
template <int PAIRS> __global__ void rotate_kernel(struct mark mark, struct rotate_op op) {
    MARK(mark);
    int32_t per_head = op.rope_dim / (2 * PAIRS);
    size_t row = blockIdx.x;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    if (item >= op.heads * per_head) {
        return;
    }
    size_t head = row * (size_t)op.heads + (size_t)(item / per_head);
    int32_t first = PAIRS * (item % per_head);
    uint16_t *x = op.x + (head + 1) * (size_t)op.dim - op.rope_dim + 2 * first;
    size_t at = row * (size_t)(op.rope_dim / 2) + (size_t)first;
    struct alignas(4 * PAIRS) group {
        uint32_t words[PAIRS];
    };
    struct group pairs = *reinterpret_cast<const struct group *>(x);
    struct group cosines = *reinterpret_cast<const struct group *>(op.cosine + at);
    struct group sines = *reinterpret_cast<const struct group *>(op.sine + at);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        float even = __uint_as_float(pairs.words[i] << 16);
        float odd = __uint_as_float(pairs.words[i] & 0xffff0000U);
        float c = __uint_as_float(cosines.words[i]);
        float s = __uint_as_float(sines.words[i]);
        s = op.inverse ? -s : s;
        pairs.words[i] = bf16x2_encode(
            __fsub_rn(__fmul_rn(even, c), __fmul_rn(odd, s)),
            __fadd_rn(__fmul_rn(even, s), __fmul_rn(odd, c))
        );
    }
    *reinterpret_cast<struct group *>(x) = pairs;
}

void cuda_rotate(struct backend *backend, const struct rotate_op *op) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(op->dim % 2 == 0); // pairs are read as words
    bool wide = op->rope_dim % 8 == 0 && op->dim % 8 == 0;
    auto kernel = wide ? rotate_kernel<4> : rotate_kernel<1>;
    unsigned parts;
    unsigned threads = part_threads(op->heads * (op->rope_dim / (wide ? 8 : 2)), &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_ROTATE, kernel, grid, threads, 0, *op);
    }
}
