/* Exact top-K of many rows of FP32 scores: the data that its kernels (cuda_topk.cu) share with the
 * one that sets the jobs up, and the helpers of a block that both use.
 *
 * The order of candidates is one of 64-bit keys, larger first: the score's bits made monotone, then
 * the complement of the id, so that ties go to the lower id and no two keys are equal.
 */
#ifndef HEARTH_KERNELS_CUDA_TOPK_CUH
#define HEARTH_KERNELS_CUDA_TOPK_CUH

#include "cuda_device.cuh"

#define TOPK_BUCKETS 256
#ifndef CUDA_EMULATION
#define TOPK_THREADS    1024
#define TOPK_UNIT       4096  /* scores that one step of the kernels that share a row takes */
#define TOPK_LIST       8192  /* candidates of a shared row that are kept in a list */
#define TOPK_SHARED     65536 /* rows longer than this are shared by several blocks */
#define TOPK_SHARED_MAX 256   /* rows of a launch; more keep the device busy with a block each */
#define TOPK_RANKED_MAX 256   /* candidates that are ranked by comparing all with all */
#define TOPK_SHORT      16384 /* rows up to this stay in a block's registers */
#else
#define TOPK_THREADS    128 /* so small that the short rows of its checks go every way */
#define TOPK_UNIT       256
#define TOPK_LIST       128
#define TOPK_SHARED     1024
#define TOPK_SHARED_MAX 16
#define TOPK_RANKED_MAX 32
#define TOPK_SHORT      1024
#endif
static_assert(TOPK_RANKED_MAX <= TOPK_THREADS, "a thread for each");
static_assert(TOPK_RANKED_MAX < TOPK_LIST && TOPK_UNIT % 32 == 0, "lists, words of maps");

/* The `wanted` best of `count` scores, ids ascending; all of them when there are no more. */
struct topk_job {
    const float *scores; /* [count], 16-byte aligned; not read when count <= wanted */
    uint32_t *chosen;    /* [ceil(count / 32)] scratch: a bit per candidate */
    int32_t count;       /* negative: no job */
    int32_t wanted;
    int32_t *ids; /* [wanted], -1 behind the count */
    int32_t *ids_count;
    const int32_t *pool; /* null, or the blocks whose members the candidates are, in order */
    int32_t pool_block_entries;
};

/* Of a shared row: how many candidates have each first digit, and each second digit behind the
 * first digit of the last one that is wanted; how many are in its list. */
struct topk_state {
    uint32_t histogram[2][TOPK_BUCKETS];
    uint32_t listed;
};

/* Everything of one launch; device memory. */
struct topk {
    int32_t jobs;
    bool shares;               /* whether long rows are shared; else states and lists are unused */
    struct topk_job *job;      /* [jobs] */
    int32_t *unit_first;       /* [jobs + 1] the first unit of each job; short rows have none */
    struct topk_state *states; /* [jobs], zero before the first kernel: cuda_index_scores clears */
    uint64_t *lists;           /* [jobs, TOPK_LIST] */
};

/* Enqueues the kernels; `count_max` bounds the jobs' counts. */
void cuda_topk(struct cuda *cuda, enum cuda_op op, const struct topk *topk, int32_t count_max);

/* Units of a job in topk.unit_first. */
__host__ __device__ __forceinline__ int32_t topk_units(int32_t count, int32_t wanted) {
    return count > wanted && count > TOPK_SHARED ? (count + TOPK_UNIT - 1) / TOPK_UNIT : 0;
}

__device__ __forceinline__ int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* The last i in [0, count) with first[i] <= at, where first ascends and first[0] is 0: the owner of
 * item `at`; those without items are passed over. */
__device__ __forceinline__ int32_t owner_of(const int32_t *first, int32_t count, int32_t at) {
    int32_t low = 0;
    int32_t high = count;
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (first[middle] <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The same by the whole block, in one round trip: the owner of `at`, which has items. Barriers inside. */
__device__ __forceinline__ int32_t block_owner_of(const int32_t *first, int32_t count, int32_t at) {
    __shared__ int32_t owner;
    __syncthreads(); // the call before may still read
    for (int32_t i = (int32_t)threadIdx.x; i < count; i += (int32_t)blockDim.x) {
        if (first[i] <= at && at < first[i + 1]) {
            owner = i;
        }
    }
    __syncthreads();
    return owner;
}

/* The items [*from, *to) of this block when all blocks share `total` evenly. */
__device__ __forceinline__ void share_of(int32_t total, int32_t *from, int32_t *to) {
    *from = (int32_t)((int64_t)total * blockIdx.x / gridDim.x);
    *to = (int32_t)((int64_t)total * (blockIdx.x + 1) / gridDim.x);
}

/* The sum of the values of the warp's lanes up to this one. */
__device__ __forceinline__ int32_t sum_of_lanes(int32_t value) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
#pragma unroll
    for (int32_t step = 1; step < WARP; step *= 2) {
        int32_t before = __shfl_up_sync(0xffffffffU, value, step);
        value += lane >= step ? before : 0;
    }
    return value;
}

/* The sum of the values of the threads before this one, and of all. Of blocks of whole warps; every
 * thread calls it. */
__device__ __forceinline__ int32_t sum_before(int32_t value, int32_t *total) {
    __shared__ int32_t sums[WARP];
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t inclusive = sum_of_lanes(value);
    __syncthreads(); // the call before may still read
    if (lane == WARP - 1) {
        sums[warp] = inclusive;
    }
    __syncthreads();
    int32_t upto = sum_of_lanes(lane < (int32_t)blockDim.x / WARP ? sums[lane] : 0);
    int32_t base = __shfl_sync(0xffffffffU, upto, warp == 0 ? 0 : warp - 1);
    *total = __shfl_sync(0xffffffffU, upto, WARP - 1);
    return (warp == 0 ? 0 : base) + inclusive - value;
}

#endif
