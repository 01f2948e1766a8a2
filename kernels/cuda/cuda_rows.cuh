/* What ops over rows of channels share: eight channels a thread, and sums over a block.
 *
 * A sum has one order that depends on the width alone: the block has as many threads as the row has
 * groups of eight channels (at most 640), a thread adds its own in ascending order, then lanes
 * fold by halves and the warps' sums are added in order.
 */
#ifndef HEARTH_KERNELS_CUDA_ROWS_CUH
#define HEARTH_KERNELS_CUDA_ROWS_CUH

#include "cuda_device.cuh"
#include "cuda_formats.cuh"

#define ROW_THREADS_MAX 640 /* one group of channels each at the width of 5,120 */
#define ROW_WARPS_MAX   (ROW_THREADS_MAX / WARP)

/* Threads of a block that works on one row of `items` groups of channels. */
static inline unsigned row_threads(int32_t items) {
    int32_t threads = (items + WARP - 1) / WARP * WARP;
    return (unsigned)(threads < ROW_THREADS_MAX ? threads : ROW_THREADS_MAX);
}

/* The same where threads need not be of one block: blocks of at most 256 threads that divide the
 * items evenly; a launch has `parts` of them along y. */
static inline unsigned part_threads(int32_t items, unsigned *parts) {
    int32_t count = (items + 255) / 256;
    *parts = (unsigned)count;
    return row_threads((items + count - 1) / count);
}

__device__ __forceinline__ struct eight unpack_eight(uint4 raw) {
    uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    struct eight out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.v[2 * i] = __uint_as_float(words[i] << 16);
        out.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
    return out;
}

__device__ __forceinline__ uint4 pack_eight(const struct eight *x) {
    return make_uint4(
        bf16x2_encode(x->v[0], x->v[1]),
        bf16x2_encode(x->v[2], x->v[3]),
        bf16x2_encode(x->v[4], x->v[5]),
        bf16x2_encode(x->v[6], x->v[7])
    );
}

__device__ __forceinline__ uint4 load_raw(const uint16_t *x) {
    return *reinterpret_cast<const uint4 *>(x);
}

__device__ __forceinline__ void store_raw(uint16_t *to, uint4 raw) {
    *reinterpret_cast<uint4 *>(to) = raw;
}

__device__ __forceinline__ void store_eight(uint16_t *to, const struct eight *x) {
    store_raw(to, pack_eight(x));
}

__device__ __forceinline__ float add_squares(const struct eight *x, float sum) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum = __fmaf_rn(x->v[i], x->v[i], sum);
    }
    return sum;
}

/* 1 / sqrt with two roundings, as the CPU's. */
__device__ __forceinline__ float reciprocal_root(float x) {
    return __fdiv_rn(1.0F, __fsqrt_rn(x));
}

__device__ __forceinline__ float mean_factor(float squares, int32_t width, float eps) {
    return reciprocal_root(__fadd_rn(__fdiv_rn(squares, (float)width), eps));
}

/* y = bf16(w * (x * factor)), spec 3.0.3. */
__device__ __forceinline__ void store_normed(uint16_t *y, uint4 x, uint4 weight, float factor) {
    struct eight value = unpack_eight(x);
    struct eight scale = unpack_eight(weight);
    struct eight normed;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        normed.v[i] = __fmul_rn(scale.v[i], __fmul_rn(value.v[i], factor));
    }
    store_eight(y, &normed);
}

/* Sums of N values over all threads of the block, for all of them; once per kernel. */
template <int N> __device__ __forceinline__ void block_sum(float *values) {
    __shared__ float partial[ROW_WARPS_MAX][N];
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int step = WARP / 2; step > 0; step /= 2) {
            float other = __shfl_xor_sync(0xffffffffU, values[n], step);
            values[n] = __fadd_rn(values[n], other);
        }
        if (threadIdx.x % WARP == 0) {
            partial[threadIdx.x / WARP][n] = values[n];
        }
        values[n] = 0.0F;
    }
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            values[n] = __fadd_rn(values[n], partial[w][n]);
        }
    }
}

#endif
