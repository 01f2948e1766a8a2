/* Mixing coefficients of the residual streams: 24 dot products with all streams of a row, FP32
 * weights, then gates and Sinkhorn passes (spec 3.3).
 *
 * Bound: bandwidth (40,960 bytes a row at the release's width) for many rows, latency for few. FP32
 * fused multiply-adds would take 60 us of arithmetic for 4,096 rows where the rows take 40 us to
 * read, so the sums run on tensor cores: a weight is exactly the sum of three bf16 numbers.
 *
 * The order of a sum depends on the width alone. A warp takes 64 channels: four products of 16, for
 * each the lowest part of the weights first, from an accumulator of zero. A block of eight warps adds
 * its slices of 64 in order, the second kernel adds the blocks' sums in order. The weights' parts
 * stay in registers while the block walks over tiles of 16 rows.
 */
#include "cuda_rows.cuh"

#include "base/result.h"

#define STREAMS    4
#define MIXES      24 /* (2 + STREAMS) * STREAMS */
#define TILES      (MIXES / 8)
#define ROWS       16          /* of a tile */
#define WARPS      8           /* slices of a block */
#define SLICE      64          /* channels of a warp */
#define CHUNK      512         /* channels of a block */
#define SUMS       (MIXES + 1) /* and the squares of the row */
#define THREADS    (WARPS * WARP)
#define ROW_STRIDE 40 /* floats between rows in shared memory: half a warp's pairs hit all banks */

/* Weights of this lane: [32 channels][16 channels of these][tile][part], part 0 the highest. */
struct parts {
    uint32_t b[2][2][TILES][3][2];
};

static_assert(CHUNK == WARPS * SLICE && SLICE == 64, "slices of a block");

/* f[0], f[1] as bf16 pairs whose sum they are exactly, but for bits below 2^-133: 24 bits, eight at a
 * time. */
__device__ __forceinline__ void split_pair(const float *f, uint32_t part[3]) {
    float low = f[0];
    float high = f[1];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        uint32_t top = __float_as_uint(high) & 0xffff0000U;
        part[i] = pick_bytes(__float_as_uint(low), top, 0x7632U);
        low = __fsub_rn(low, __uint_as_float(part[i] << 16));
        high = __fsub_rn(high, __uint_as_float(top));
    }
}

/* Channels of the slice in mma's terms: lane `pair` of each four holds channels 8 pair .. 8 pair + 7
 * of 32, so that it reads them at once; product `step` takes four of these, the first two where mma
 * says columns 2 pair and + 1, the others where it says + 8 and + 9. The same on both sides. */
__device__ __forceinline__ void
load_weights(const float *fn, size_t width, size_t channel, struct parts *weights) {
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            size_t mix = (size_t)tile * 8 + lane / 4;
            const float *from = fn + mix * width + channel + 32 * half + 8 * (lane % 4);
            float values[8];
            *reinterpret_cast<float4 *>(values) = *reinterpret_cast<const float4 *>(from);
            *reinterpret_cast<float4 *>(values + 4) = *reinterpret_cast<const float4 *>(from + 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t part[3];
                split_pair(values + 2 * i, part);
#pragma unroll
                for (int p = 0; p < 3; p++) {
                    weights->b[half][i / 2][tile][p][i % 2] = part[p];
                }
            }
        }
    }
}

/* This lane's channels of two rows of a tile, [32 channels][row and row + 8]. */
struct channels {
    uint4 x[2][2];
};

__device__ __forceinline__ void load_channels(
    const uint16_t *x, size_t width, size_t channel, int32_t row, int32_t rows, struct channels *out
) {
    uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int32_t at = row + (int32_t)(lane / 4) + 8 * r;
        const uint16_t *from = x + (size_t)at * width + channel + 8 * (lane % 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            out->x[half][r] = make_uint4(0, 0, 0, 0);
            if (at < rows) {
                out->x[half][r] = *reinterpret_cast<const uint4 *>(from + 32 * half);
            }
        }
    }
}

__device__ __forceinline__ float pair_squares(uint32_t pair, float sum) {
    float low = __uint_as_float(pair << 16);
    float high = __uint_as_float(pair & 0xffff0000U);
    return __fmaf_rn(high, high, __fmaf_rn(low, low, sum));
}

/* Sums of the warp's slice for 16 rows, to shared memory [row][mix, squares]. */
__device__ __forceinline__ void
multiply_slice(const struct channels *rows, const struct parts *weights, float *sums) {
    uint32_t group = threadIdx.x % WARP / 4;
    uint32_t pair = threadIdx.x % 4;
    float d[TILES][4] = {};
    float squares[2] = {0.0F, 0.0F};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint4 *x = rows->x[half];
        uint32_t first[4] = {x[0].x, x[1].x, x[0].y, x[1].y};
        uint32_t second[4] = {x[0].z, x[1].z, x[0].w, x[1].w};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (int part = 2; part >= 0; part--) {
                mma_bf16(d[tile], first, weights->b[half][0][tile][part]);
            }
#pragma unroll
            for (int part = 2; part >= 0; part--) {
                mma_bf16(d[tile], second, weights->b[half][1][tile][part]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            squares[r] = pair_squares(x[r].y, pair_squares(x[r].x, squares[r]));
            squares[r] = pair_squares(x[r].w, pair_squares(x[r].z, squares[r]));
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *to = sums + (group + 8 * r) * ROW_STRIDE;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float2 both = make_float2(d[tile][2 * r], d[tile][2 * r + 1]);
            *reinterpret_cast<float2 *>(to + tile * 8 + 2 * pair) = both;
        }
        float sum = __fadd_rn(squares[r], __shfl_xor_sync(0xffffffffU, squares[r], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, 2));
        if (pair == 0) {
            to[MIXES] = sum;
        }
    }
}

/* Block x takes 512 channels of the row, block y every gridDim.y-th tile of rows. partial: [R,
 * chunks, 25]. */
__global__ void __launch_bounds__(THREADS, 2)
    mix_sums_kernel(struct mark mark, struct stream_mix_op op, float *partial) {
    MARK(mark);
    __shared__ __align__(16) float sums[WARPS][ROWS * ROW_STRIDE];
    size_t width = STREAMS * (size_t)op.dim; // a multiple of 128: slices are whole
    uint32_t warp = threadIdx.x / WARP;
    size_t channel = (size_t)blockIdx.x * CHUNK + warp * SLICE;
    int32_t slices = (int32_t)min((size_t)WARPS, (width - (size_t)blockIdx.x * CHUNK) / SLICE);
    bool live = channel < width;
    struct parts weights;
    struct channels rows;
    int32_t row = (int32_t)blockIdx.y * ROWS;
    if (live) {
        // Rows first: what is done to the weights waits for these.
        load_channels(op.x, width, channel, row, op.rows, &rows);
        load_weights(op.fn, width, channel, &weights);
    }
    while (row < op.rows) {
        int32_t next = row + (int32_t)gridDim.y * ROWS;
        if (live) {
            multiply_slice(&rows, &weights, sums[warp]);
            if (next < op.rows) { // on its way while the sums are added
                load_channels(op.x, width, channel, next, op.rows, &rows);
            }
        }
        __syncthreads();
        for (int32_t i = (int32_t)threadIdx.x; i < ROWS * SUMS; i += THREADS) {
            int32_t r = i / SUMS;
            int32_t at = r * ROW_STRIDE + i % SUMS;
            if (row + r < op.rows) {
                float sum = sums[0][at];
                for (int32_t s = 1; s < slices; s++) {
                    sum = __fadd_rn(sum, sums[s][at]);
                }
                size_t to = ((size_t)(row + r) * gridDim.x + blockIdx.x) * SUMS;
                partial[to + (size_t)(i % SUMS)] = sum;
            }
        }
        __syncthreads();
        row = next;
    }
}

/* Softmax over k, then column and row passes in turn, ending on columns. Lane 4 j + k of the first
 * 16 holds [j, k]; the others go along. */
__device__ __forceinline__ float add_lanes(float x, int first, int second) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffU, x, first));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffU, x, second));
}

__device__ float sinkhorn(float x, int32_t iterations, float eps) {
    float largest = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
    x = expf(__fsub_rn(x, largest));
    x = __fadd_rn(__fdiv_rn(x, add_lanes(x, 2, 1)), eps);
    for (int32_t i = 0; i < iterations; i++) {
        if (i > 0) { // a reciprocal is sooner there than a quotient
            x = __fmul_rn(x, __frcp_rn(__fadd_rn(add_lanes(x, 2, 1), eps)));
        }
        x = __fmul_rn(x, __frcp_rn(__fadd_rn(add_lanes(x, 8, 4), eps)));
    }
    return x;
}

/* What becomes a gate or an entry of comb of the mix of lane l < 24. */
struct mix_affine {
    int32_t kind; /* of scale: pre, post, comb */
    float scale, base;
};

__device__ __forceinline__ struct mix_affine load_affine(const struct stream_mix_op *op) {
    int32_t lane = (int32_t)(threadIdx.x % WARP);
    struct mix_affine affine;
    affine.kind = lane < STREAMS ? 0 : lane < 2 * STREAMS ? 1 : 2;
    affine.scale = op->scale[affine.kind];
    affine.base = lane < MIXES ? op->base[lane] : 0.0F;
    return affine;
}

/* pre, post and comb of a row; lane l < 24 has mix l, before it is normalised, lane 24 the squares. */
__device__ __forceinline__ void write_mixes(
    const struct stream_mix_op *op, const struct mix_affine *affine, size_t row, float sum
) {
    int32_t lane = (int32_t)(threadIdx.x % WARP);
    float squares = __shfl_sync(0xffffffffU, sum, MIXES);
    float mix = __fmul_rn(sum, mean_factor(squares, STREAMS * op->dim, op->norm_eps));
    int32_t kind = affine->kind;
    mix = __fadd_rn(__fmul_rn(mix, affine->scale), affine->base);
    float comb = __shfl_sync(0xffffffffU, mix, lane % 16 + 2 * STREAMS);
    comb = sinkhorn(comb, op->sinkhorn_iterations, op->eps);
    float gate = __fdiv_rn(1.0F, __fadd_rn(1.0F, expf(-mix)));
    if (kind == 0) {
        op->pre[row * STREAMS + (size_t)lane] = __fadd_rn(gate, op->eps);
    } else if (kind == 1) {
        op->post[row * STREAMS + (size_t)lane - STREAMS] = __fmul_rn(2.0F, gate);
    }
    if (lane < STREAMS * STREAMS) {
        op->comb[row * STREAMS * STREAMS + (size_t)lane] = comb;
    }
}

#define FINISH_THREADS 128
#define FINISH_CHUNKS  40 /* whose sums are in shared memory at a time: all of the release's */

/* A block per row: it fetches the sums, the first warp adds them in order. */
__global__ void __launch_bounds__(FINISH_THREADS) mix_finish_kernel(
    struct mark mark, struct stream_mix_op op, const float *partial, int32_t chunks
) {
    MARK(mark);
    __shared__ float sums[FINISH_CHUNKS * SUMS];
    size_t row = blockIdx.x;
    const float *from = partial + row * (size_t)chunks * SUMS;
    uint32_t mine = threadIdx.x < SUMS ? threadIdx.x : 0;
    struct mix_affine affine = load_affine(&op); // it comes while the sums do
    float sum = 0.0F;
    for (int32_t first = 0; first < chunks; first += FINISH_CHUNKS) {
        int32_t count = min(FINISH_CHUNKS, chunks - first);
        constexpr int32_t OWN = (FINISH_CHUNKS * SUMS + FINISH_THREADS - 1) / FINISH_THREADS;
        float own[OWN]; // all on their way at once
#pragma unroll
        for (int32_t i = 0; i < OWN; i++) {
            int32_t at = i * FINISH_THREADS + (int32_t)threadIdx.x;
            own[i] = from[first * SUMS + min(at, count * SUMS - 1)];
        }
#pragma unroll
        for (int32_t i = 0; i < OWN; i++) {
            int32_t at = i * FINISH_THREADS + (int32_t)threadIdx.x;
            if (at < count * SUMS) {
                sums[at] = own[i];
            }
        }
        __syncthreads();
        if (threadIdx.x < WARP) {
#pragma unroll 8
            for (int32_t c = 0; c < count; c++) {
                sum = __fadd_rn(sum, sums[c * SUMS + (int32_t)mine]);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < WARP) {
        write_mixes(&op, &affine, row, sum);
    }
}

static int32_t chunks_of(int64_t width) {
    return (int32_t)((width + CHUNK - 1) / CHUNK);
}

static size_t partial_bytes(int32_t rows, int32_t chunks) {
    return (size_t)rows * (size_t)chunks * SUMS * sizeof(float);
}

size_t cuda_stream_scratch(const struct backend_options *limits) {
    int64_t width = STREAMS * (int64_t)limits->model_dim;
    return partial_bytes(limits->rows_max, chunks_of(width > 0 ? width : limits->dim_max));
}

void cuda_stream_mix(struct backend *backend, const struct stream_mix_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows == 0) {
        return;
    }
    float *partial = (float *)cuda->scratch;
    int32_t chunks = chunks_of(STREAMS * (int64_t)op->dim);
    ASSERT(partial_bytes(op->rows, chunks) <= cuda->scratch_bytes);
    int32_t tiles = (op->rows + ROWS - 1) / ROWS;
    int32_t together = 2 * cuda->multiprocessors / chunks; // fills the machine once
    together = together < 1 ? 1 : together;
    dim3 grid((unsigned)chunks, (unsigned)(tiles < together ? tiles : together));
    unsigned rows = (unsigned)op->rows;
    CUDA_LAUNCH(cuda, CUDA_OP_STREAM_MIX, mix_sums_kernel, grid, THREADS, 0, *op, partial);
    CUDA_LAUNCH(
        cuda, CUDA_OP_STREAM_MIX, mix_finish_kernel, rows, FINISH_THREADS, 0, *op, partial, chunks
    );
}
