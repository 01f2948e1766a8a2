/* Router (spec 3.11): scores, the k best of score + bias, their weights.
 *
 * One block per row, its scores and keys in shared memory; its first warp selects: k rounds of a
 * maximum behind the last one, then each id goes where its rank among the k is. Bound: latency; a
 * row is 4 E bytes.
 */
#include "cuda_device.cuh"

#define ALL_LANES 0xffffffffU
#define THREADS   256

/* sqrt(log(1 + e^x)), log(1 + e^x) = max(x, 0) + log1p(e^-|x|): no cancellation, no overflow. */
__device__ __forceinline__ float route_score(float logit) {
    float tail = log1pf(expf(-fabsf(logit)));
    return __fsqrt_rn(__fadd_rn(fmaxf(logit, 0.0F), tail));
}

/* Larger value, larger key; -0 and 0 are equal. */
__device__ __forceinline__ uint32_t order_key(float value) {
    uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0F));
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/* A place in the order of selection, the best the largest: larger keys first, then lower ids. Of no
 * expert it is 0. */
__device__ __forceinline__ uint64_t place_of(uint32_t key, uint32_t id) {
    return (uint64_t)key << 32 | ~id;
}

/* The best of the lane's experts behind `last`; so many keys are fetched at once. */
#define AT_ONCE 12
__device__ __forceinline__ uint64_t
best_behind(const uint32_t *keys, uint32_t experts, uint64_t last) {
    uint64_t best = 0;
    for (uint32_t first = threadIdx.x; first < experts; first += AT_ONCE * WARP) {
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            uint32_t e = first + i * WARP;
            uint64_t place = place_of(keys[min(e, experts - 1)], e);
            bool is_better = e < experts && place < last && place > best;
            best = is_better ? place : best;
        }
    }
    return best;
}

__global__ void __launch_bounds__(THREADS) route_kernel(struct mark mark, struct route_op op) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    uint32_t experts = (uint32_t)op.experts;
    float *scores = (float *)shared;                 // [E]
    uint32_t *keys = (uint32_t *)(scores + experts); // [E]
    int32_t *found = (int32_t *)(keys + experts);    // [k], the best first
    int32_t *ids = found + op.chosen;                // [k]
    float *picked = (float *)(ids + op.chosen);      // [k] scores of the ids
    size_t row = blockIdx.x;
    const float *logits = op.logits + row * experts;
    for (uint32_t first = threadIdx.x; first < experts; first += 2 * THREADS) {
        uint32_t second = min(first + THREADS, experts - 1);
        const float logit[2] = {logits[first], logits[second]};
        const float bias[2] = {op.bias[first], op.bias[second]};
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t e = first + i * THREADS;
            if (e < experts) {
                float score = route_score(logit[i]);
                scores[e] = score;
                keys[e] = order_key(__fadd_rn(score, bias[i]));
            }
        }
    }
    __syncthreads();
    if (threadIdx.x >= WARP) {
        return;
    }
    uint64_t last = ~(uint64_t)0;
    for (int32_t round = 0; round < op.chosen; round++) {
        uint64_t best = best_behind(keys, experts, last);
        uint32_t key = __reduce_max_sync(ALL_LANES, (uint32_t)(best >> 32));
        bool is_equal = (uint32_t)(best >> 32) == key;
        uint32_t id = ~__reduce_max_sync(ALL_LANES, is_equal ? (uint32_t)best : 0U);
        last = place_of(key, id);
        if (threadIdx.x == 0) {
            found[round] = (int32_t)id;
        }
    }
    __syncwarp();
    for (int32_t first = 0; first < op.chosen; first += WARP) {
        int32_t i = first + (int32_t)threadIdx.x;
        int32_t id = found[min(i, op.chosen - 1)];
        float score = scores[id];
        int32_t lower = 0;
#pragma unroll 4
        for (int32_t j = 0; j < op.chosen; j++) {
            lower += found[j] < id ? 1 : 0;
        }
        // A load may move ahead of its guard, to a word behind `found`: not while that is written
        __syncwarp();
        if (i < op.chosen) {
            ids[lower] = id;
            picked[lower] = score;
        }
        __syncwarp();
    }
    float sum = 0.0F;
#pragma unroll 4
    for (int32_t i = 0; i < op.chosen; i++) {
        sum = __fadd_rn(sum, picked[i]);
    }
    sum = __fadd_rn(sum, 1e-20F);
    for (int32_t i = (int32_t)threadIdx.x; i < op.chosen; i += WARP) {
        size_t at = row * (size_t)op.chosen + (size_t)i;
        op.ids[at] = ids[i];
        op.weights[at] = __fmul_rn(__fdiv_rn(picked[i], sum), op.routed_scale);
    }
}

void cuda_route(struct backend *backend, const struct route_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows == 0) {
        return;
    }
    size_t bytes =
        ((size_t)op->experts * 2 + (size_t)op->chosen * 3) * 4; // below 48 KiB: E <= 4096
    dim3 grid((unsigned)op->rows);
    CUDA_LAUNCH(cuda, CUDA_OP_ROUTE, route_kernel, grid, THREADS, bytes, *op);
}
