/* Router (spec 3.11): scores, the k best of score + bias, their weights.
 *
 * One block per row, its scores and keys in shared memory; its first warp selects. The k-th best
 * (score + bias, id) is found in k rounds of a maximum below the last one; a pass over the ids then
 * takes all that are not below it, so they come out ascending. Bound: latency; a row is 4 E bytes.
 */
#include "cuda_device.cuh"

#define ALL_LANES 0xffffffffU
#define THREADS   128

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

/* A place in the order of selection: larger keys first, then lower ids. */
struct place {
    uint32_t key;
    uint32_t id;
};

__device__ __forceinline__ bool is_behind(uint32_t key, uint32_t id, struct place place) {
    return key < place.key || (key == place.key && id > place.id);
}

/* The chosen-th best of keys[0..experts); chosen >= 1. */
__device__ struct place last_place(const uint32_t *keys, uint32_t experts, int32_t chosen) {
    struct place last = {0xffffffffU, 0};
    for (int32_t round = 0; round < chosen; round++) {
        struct place best = {0, 0xffffffffU};
#pragma unroll 4
        for (uint32_t e = threadIdx.x; e < experts; e += WARP) {
            uint32_t key = keys[e];
            bool open = round == 0 || is_behind(key, e, last);
            if (open && (best.id == 0xffffffffU || key > best.key)) {
                best.key = key;
                best.id = e;
            }
        }
        uint32_t key = __reduce_max_sync(ALL_LANES, best.key);
        last.id = __reduce_min_sync(ALL_LANES, best.key == key ? best.id : 0xffffffffU);
        last.key = key;
    }
    return last;
}

__global__ void __launch_bounds__(THREADS) route_kernel(struct mark mark, struct route_op op) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    uint32_t experts = (uint32_t)op.experts;
    float *scores = (float *)shared;                 // [E]
    uint32_t *keys = (uint32_t *)(scores + experts); // [E]
    int32_t *ids = (int32_t *)(keys + experts);      // [k]
    size_t row = blockIdx.x;
    const float *logits = op.logits + row * experts;
    for (uint32_t e = threadIdx.x; e < experts; e += THREADS) {
        scores[e] = route_score(logits[e]);
        keys[e] = order_key(__fadd_rn(scores[e], op.bias[e]));
    }
    __syncthreads();
    if (threadIdx.x >= WARP) {
        return;
    }
    struct place last = last_place(keys, experts, op.chosen);
    int32_t written = 0;
    for (uint32_t first = 0; first < experts; first += WARP) {
        uint32_t e = first + threadIdx.x;
        bool is_chosen = e < experts && !is_behind(keys[e < experts ? e : 0], e, last);
        uint32_t mask = __ballot_sync(ALL_LANES, is_chosen);
        if (is_chosen) {
            ids[written + __popc(mask & ((1U << threadIdx.x) - 1U))] = (int32_t)e;
        }
        written += __popc(mask);
    }
    __syncwarp();
    float sum = 0.0F;
    for (int32_t i = 0; i < op.chosen; i++) {
        sum = __fadd_rn(sum, scores[ids[i]]);
    }
    sum = __fadd_rn(sum, 1e-20F);
    for (int32_t i = (int32_t)threadIdx.x; i < op.chosen; i += WARP) {
        size_t at = row * (size_t)op.chosen + (size_t)i;
        op.ids[at] = ids[i];
        op.weights[at] = __fmul_rn(__fdiv_rn(scores[ids[i]], sum), op.routed_scale);
    }
}

void cuda_route(struct backend *backend, const struct route_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows == 0) {
        return;
    }
    size_t bytes = ((size_t)op->experts * 2 + (size_t)op->chosen) * 4; // at most 48 KiB: E <= 4096
    dim3 grid((unsigned)op->rows);
    CUDA_LAUNCH(cuda, CUDA_OP_ROUTE, route_kernel, grid, THREADS, bytes, *op);
}
