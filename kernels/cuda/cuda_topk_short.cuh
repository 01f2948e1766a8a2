/* Top-K of a row that the registers of one block hold: read once.
 *
 * Keys are counted in buckets of equal width between the least and the largest, so that scores of a
 * few magnitudes spread over all of them; the bucket of the last wanted key is divided again until it
 * holds few. What is chosen is what cuda_topk.cu's other ways choose: it depends on the keys alone.
 */
#ifndef HEARTH_KERNELS_CUDA_TOPK_SHORT_CUH
#define HEARTH_KERNELS_CUDA_TOPK_SHORT_CUH

#include "cuda_topk.cuh"

#define SHORT_BUCKET_BITS 11
#define SHORT_BUCKETS     (1 << SHORT_BUCKET_BITS)
#define SHORT_WORDS       (TOPK_SHORT / 32)
#define SHORT_RANKED      (TOPK_RANKED_MAX < 64 ? TOPK_RANKED_MAX : 64) /* few enough to rank at once */

static_assert(TOPK_SHORT % (4 * TOPK_THREADS) == 0, "whole quads");
static_assert(
    SHORT_WORDS <= TOPK_THREADS && SHORT_BUCKETS % TOPK_THREADS == 0, "a thread for each"
);

/* The bucket of the last wanted key: how many of its keys are wanted, how many it has. */
struct short_pick {
    int32_t bucket, wanted, inside;
};

struct short_workspace {
    uint32_t buckets[SHORT_BUCKETS];
    uint32_t chosen[SHORT_WORDS];         /* a bit per candidate */
    int32_t before[SHORT_WORDS];          /* chosen ones of the words before */
    uint32_t lowest[WARP], highest[WARP]; /* of each warp */
    uint64_t ranked[TOPK_RANKED_MAX];
    uint32_t ranked_count;
    struct short_pick pick;
};

/* Larger score, larger key; -0 and 0 are equal. */
__device__ __forceinline__ uint32_t score_key(float score) {
    uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0F));
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000U);
}

/* The candidate's id: itself, or the entry of the pool that it stands for. */
__device__ __forceinline__ int32_t id_of(const struct topk_job *job, int32_t candidate) {
    if (job->pool == NULL) {
        return candidate;
    }
    int32_t size = job->pool_block_entries;
    return job->pool[candidate / size] * size + candidate % size;
}

/* What a thread keeps: candidates first(q) to first(q) + 3; those from the count on are none. */
template <int QUADS> struct short_keys { uint32_t key[QUADS][4]; };

__device__ __forceinline__ int32_t short_first(int32_t quad) {
    return 4 * ((int32_t)threadIdx.x + quad * TOPK_THREADS);
}

/* visit(key, candidate) for all that the thread keeps. */
template <int QUADS, class Visit>
__device__ __forceinline__ void
for_each_kept(const struct short_keys<QUADS> *keys, int32_t count, Visit visit) {
#pragma unroll
    for (int32_t q = 0; q < QUADS; q++) {
        int32_t first = short_first(q);
        if (first < count) {
#pragma unroll
            for (int32_t i = 0; i < 4; i++) {
                if (first + i < count) {
                    visit(keys->key[q][i], first + i);
                }
            }
        }
    }
}

template <int QUADS>
__device__ __forceinline__ void
short_load(const struct topk_job *job, struct short_keys<QUADS> *keys) {
#pragma unroll
    for (int32_t q = 0; q < QUADS; q++) {
        int32_t first = short_first(q);
        float score[4] = {};
        if (first + 4 <= job->count) {
            *reinterpret_cast<float4 *>(score) =
                *reinterpret_cast<const float4 *>(job->scores + first);
        } else {
            for (int32_t i = 0; first + i < job->count; i++) {
                score[i] = job->scores[first + i];
            }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            keys->key[q][i] = score_key(score[i]);
        }
    }
}

/* The least and the largest key; on the way the workspace is cleared. */
template <int QUADS>
__device__ __forceinline__ void short_bounds(
    const struct short_keys<QUADS> *keys,
    int32_t count,
    struct short_workspace *work,
    uint32_t *low,
    uint32_t *high
) {
    int32_t thread = (int32_t)threadIdx.x;
    uint32_t lowest = 0xffffffffU;
    uint32_t highest = 0;
    for_each_kept(keys, count, [&](uint32_t key, int32_t candidate) {
        (void)candidate;
        lowest = key < lowest ? key : lowest;
        highest = key > highest ? key : highest;
    });
    lowest = __reduce_min_sync(0xffffffffU, lowest);
    highest = __reduce_max_sync(0xffffffffU, highest);
    if (thread % WARP == 0) {
        work->lowest[thread / WARP] = lowest;
        work->highest[thread / WARP] = highest;
    }
    for (int32_t b = thread; b < SHORT_BUCKETS; b += TOPK_THREADS) {
        work->buckets[b] = 0;
    }
    if (thread < SHORT_WORDS) {
        work->chosen[thread] = 0;
    }
    if (thread == 0) {
        work->ranked_count = 0;
    }
    __syncthreads();
    int32_t warp = thread % WARP % (TOPK_THREADS / WARP);
    *low = __reduce_min_sync(0xffffffffU, work->lowest[warp]);
    *high = __reduce_max_sync(0xffffffffU, work->highest[warp]);
}

/* From the counts of the buckets, the one with the wanted-th largest key. Barriers inside. */
__device__ __forceinline__ struct short_pick
short_find(struct short_workspace *work, int32_t wanted) {
    constexpr int32_t OWN = SHORT_BUCKETS / TOPK_THREADS;
    int32_t top = SHORT_BUCKETS - 1 - OWN * (int32_t)threadIdx.x;
    __syncthreads();
    int32_t own = 0;
#pragma unroll
    for (int32_t i = 0; i < OWN; i++) {
        own += (int32_t)work->buckets[top - i];
    }
    int32_t all = 0;
    int32_t left = wanted - sum_before(own, &all);
    if (left > 0 && left <= own) {
        int32_t bucket = top;
        while (left > (int32_t)work->buckets[bucket]) {
            left -= (int32_t)work->buckets[bucket];
            bucket--;
        }
        work->pick = {bucket, left, (int32_t)work->buckets[bucket]};
    }
    __syncthreads();
    return work->pick;
}

/* Writes the chosen in ascending order. */
template <int QUADS>
__device__ __forceinline__ void short_write(
    const struct topk_job *job, const struct short_keys<QUADS> *keys, struct short_workspace *work
) {
    int32_t thread = (int32_t)threadIdx.x;
    int32_t all = 0;
    int32_t before = sum_before(thread < SHORT_WORDS ? __popc(work->chosen[thread]) : 0, &all);
    if (thread < SHORT_WORDS) {
        work->before[thread] = before;
    }
    __syncthreads();
    for_each_kept(keys, job->count, [=](uint32_t key, int32_t candidate) {
        (void)key;
        uint32_t bits = work->chosen[candidate / 32];
        uint32_t bit = 1U << (candidate % 32);
        if ((bits & bit) != 0) {
            job->ids[work->before[candidate / 32] + __popc(bits & (bit - 1))] =
                id_of(job, candidate);
        }
    });
    if (thread == 0) {
        *job->ids_count = all;
    }
}

/* The whole job, by the whole block; count > wanted, and QUADS quads a thread hold it. False, and nothing
 * is done: too many equal keys compete for the last places. */
template <int QUADS>
__device__ __forceinline__ bool
choose_kept(const struct topk_job *job, struct short_workspace *work) {
    int32_t thread = (int32_t)threadIdx.x;
    struct short_keys<QUADS> keys;
    short_load(job, &keys);
    uint32_t base = 0;
    uint32_t high = 0;
    short_bounds(&keys, job->count, work, &base, &high);
    int32_t shift = 32 - __clz((int32_t)(high - base)) - SHORT_BUCKET_BITS;
    shift = shift < 0 ? 0 : shift;
    uint32_t reach = high - base; // keys inside are base to base + reach
    struct short_pick pick = {0, job->wanted, 0};
    while (true) {
        for_each_kept(&keys, job->count, [=](uint32_t key, int32_t candidate) {
            (void)candidate;
            if (key - base <= reach) {
                atomicAdd(&work->buckets[(key - base) >> shift], 1U);
            }
        });
        pick = short_find(work, pick.wanted);
        base += (uint32_t)pick.bucket << shift;
        reach = (1U << shift) - 1;
        if (pick.inside == pick.wanted || pick.inside <= SHORT_RANKED) {
            break;
        }
        if (shift == 0) {
            return false;
        }
        for (int32_t b = thread; b < SHORT_BUCKETS; b += TOPK_THREADS) {
            work->buckets[b] = 0;
        }
        __syncthreads();
        shift = shift < SHORT_BUCKET_BITS ? 0 : shift - SHORT_BUCKET_BITS;
    }
    bool all_wanted = pick.inside == pick.wanted;
    for_each_kept(&keys, job->count, [=](uint32_t key, int32_t candidate) {
        bool is_inside = key - base <= reach;
        if ((key >= base && !is_inside) || (is_inside && all_wanted)) {
            atomicOr(&work->chosen[candidate / 32], 1U << (candidate % 32));
        } else if (is_inside) {
            uint32_t slot = atomicAdd(&work->ranked_count, 1U);
            work->ranked[slot] = (uint64_t)key << 32 | ~(uint32_t)candidate;
        }
    });
    __syncthreads();
    int32_t ranked = (int32_t)work->ranked_count;
    if (thread < ranked) {
        uint64_t own = work->ranked[thread];
        int32_t larger = 0;
        for (int32_t i = 0; i < ranked; i++) {
            larger += work->ranked[i] > own ? 1 : 0;
        }
        if (larger < pick.wanted) {
            uint32_t candidate = ~(uint32_t)own;
            atomicOr(&work->chosen[candidate / 32], 1U << (candidate % 32));
        }
    }
    __syncthreads();
    short_write(job, &keys, work);
    return true;
}

/* The same of any row of up to TOPK_SHORT candidates. Most have few, and their code is a quarter. */
__device__ __forceinline__ bool
choose_short(const struct topk_job *job, struct short_workspace *work) {
    constexpr int MOST = TOPK_SHORT / (4 * TOPK_THREADS);
    if (MOST == 1 || job->count <= 4 * TOPK_THREADS) {
        return choose_kept<1>(job, work);
    }
    return choose_kept<MOST>(job, work);
}

#endif
