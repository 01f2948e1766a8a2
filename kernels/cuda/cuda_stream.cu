/* RMSNorm and rotary embedding.
 *
 * Bound: bandwidth; 2 bytes read and 2 written per element. The sum of a row's squares has one fixed
 * order: thread t adds its elements t, t + 256, ... in that order, then a tree over lanes and one
 * over warps. It depends on the width only, never on the number of rows. It is another order than
 * the CPU backend's, so the two agree to a bf16 ulp, not to the bit.
 */
#include "cuda_formats.cuh"
#include "cuda_ops.h"

#define THREADS 256
#define WARPS   (THREADS / 32)

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float partial[WARPS];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(0xffffffffU, value, step));
    }
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        sum = __fadd_rn(sum, partial[i]);
    }
    return sum;
}

/* y = bf16(w * (x * 1/sqrt(mean(x^2) + eps))), one block per row (spec 3.0.3). */
__global__ void __launch_bounds__(THREADS) norm_kernel(struct norm_op op) {
    const uint16_t *x = op.x + (size_t)blockIdx.x * (size_t)op.dim;
    uint16_t *y = op.y + (size_t)blockIdx.x * (size_t)op.dim;
    float squares = 0.0F;
    for (int32_t i = (int32_t)threadIdx.x; i < op.dim; i += THREADS) {
        float value = bf16_decode(x[i]);
        squares = __fmaf_rn(value, value, squares);
    }
    float mean = __fdiv_rn(block_sum(squares), (float)op.dim);
    float factor = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(mean, op.eps)));
    for (int32_t i = (int32_t)threadIdx.x; i < op.dim; i += THREADS) {
        float normed = __fmul_rn(bf16_decode(x[i]), factor);
        y[i] = bf16_encode(__fmul_rn(bf16_decode(op.weight[i]), normed));
    }
}

/* One thread per pair; two products and one addition each, never fused (spec 3.4). */
__global__ void __launch_bounds__(THREADS) rotate_kernel(struct rotate_op op) {
    int32_t pairs = op.rope_dim / 2;
    int64_t items = (int64_t)op.rows * op.heads * pairs;
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x; item < items; item += stride) {
        int64_t head = item / pairs; // counted over rows
        int32_t i = (int32_t)(item % pairs);
        int64_t row = head / op.heads;
        uint16_t *x = op.x + (head + 1) * op.dim - op.rope_dim + 2 * i;
        float even = bf16_decode(x[0]);
        float odd = bf16_decode(x[1]);
        float c = op.cosine[row * pairs + i];
        float s = op.inverse ? -op.sine[row * pairs + i] : op.sine[row * pairs + i];
        x[0] = bf16_encode(__fsub_rn(__fmul_rn(even, c), __fmul_rn(odd, s)));
        x[1] = bf16_encode(__fadd_rn(__fmul_rn(even, s), __fmul_rn(odd, c)));
    }
}

extern "C" cudaError_t cuda_norm(cudaStream_t stream, const struct norm_op *op) {
    if (op->rows == 0) {
        return cudaSuccess;
    }
    norm_kernel<<<(unsigned)op->rows, THREADS, 0, stream>>>(*op);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_rotate(cudaStream_t stream, const struct rotate_op *op) {
    int64_t items = (int64_t)op->rows * op->heads * (op->rope_dim / 2);
    if (items == 0) {
        return cudaSuccess;
    }
    int64_t blocks = (items + THREADS - 1) / THREADS;
    rotate_kernel<<<(unsigned)(blocks > 8192 ? 8192 : blocks), THREADS, 0, stream>>>(*op);
    return cudaGetLastError();
}
