/* Top-K by radix: digits of 8 bits from the top of the keys (cuda_topk.cuh) until the candidates that
 * share the digits of the last wanted one are few or all wanted; few are ranked by comparing all with
 * all. The chosen set bits in a map of the candidates, which gives the ids in ascending order.
 *
 * What is chosen depends on the scores alone: counts are integers, and nothing depends on the order
 * in which candidates are met. One block takes a row; those that its registers hold go another way
 * (cuda_topk_short.cuh). Rows longer than TOPK_SHARED, when the launch has few, are first counted
 * twice and filtered by all blocks together, which leaves the one block a short list. Bound:
 * bandwidth; a row is read about three times.
 */
#include "cuda_topk_short.cuh"

#define THREADS TOPK_THREADS
#define WARPS   (THREADS / WARP)

/* How far a selection has come: all keys above `found` under the mask `known` are chosen, and the
 * `wanted` largest of the `inside` keys that equal it there are still to be found. */
struct progress {
    uint64_t found;
    uint64_t known;
    int32_t wanted;
    int32_t inside;
    int32_t shift; /* of the next digit */
};

/* What a block keeps in shared memory. */
struct workspace {
    uint32_t histogram[TOPK_BUCKETS][WARP]; /* a column per lane, so that lanes never collide */
    uint32_t totals[TOPK_BUCKETS];
    uint64_t ranked[TOPK_RANKED_MAX];
    uint32_t ranked_count;
};

/* A row of scores, or a part of one. */
struct score_items {
    const float *scores;
    int32_t from, to; /* from: a multiple of 4 */
};

/* Keys that were listed. */
struct listed_items {
    const uint64_t *keys;
    int32_t count;
};

/* visit(the score's part of the key, the id's) for all items, each by one thread of the block. */
template <class Visit>
__device__ __forceinline__ void for_each(const struct score_items *items, Visit visit) {
    for (int32_t i = items->from + 4 * (int32_t)threadIdx.x; i < items->to; i += 4 * THREADS) {
        if (i + 4 <= items->to) {
            float4 four = *reinterpret_cast<const float4 *>(items->scores + i);
            visit(score_key(four.x), ~(uint32_t)i);
            visit(score_key(four.y), ~(uint32_t)(i + 1));
            visit(score_key(four.z), ~(uint32_t)(i + 2));
            visit(score_key(four.w), ~(uint32_t)(i + 3));
        } else {
            for (int32_t j = i; j < items->to; j++) {
                visit(score_key(items->scores[j]), ~(uint32_t)j);
            }
        }
    }
}

template <class Visit>
__device__ __forceinline__ void for_each(const struct listed_items *items, Visit visit) {
    for (int32_t i = (int32_t)threadIdx.x; i < items->count; i += THREADS) {
        visit((uint32_t)(items->keys[i] >> 32), (uint32_t)items->keys[i]);
    }
}

__device__ __forceinline__ struct progress progress_start(const struct topk_job *job) {
    struct progress p = {0, 0, job->wanted, job->count, 56};
    return p;
}

/* Settles the digit at p->shift from how many keys inside have each value of it. By whole warps, all
 * of which come to the same result. */
__device__ void progress_pick(struct progress *p, const uint32_t *totals, int32_t count) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t top = TOPK_BUCKETS - 1 - 8 * lane; // each lane has eight buckets, the first the largest
    int32_t sum = 0;
    for (int32_t j = 0; j < 8; j++) {
        sum += (int32_t)totals[top - j];
    }
    int32_t inclusive = sum_of_lanes(sum);
    int32_t left = p->wanted - (inclusive - sum);
    uint32_t holders = __ballot_sync(0xffffffffU, left > 0 && left <= sum);
    int32_t bucket = top;
    while (left > 0 && left <= sum && left > (int32_t)totals[bucket]) {
        left -= (int32_t)totals[bucket];
        bucket--;
    }
    int32_t holder = __ffs((int32_t)holders) - 1;
    bucket = __shfl_sync(0xffffffffU, bucket, holder);
    p->wanted = __shfl_sync(0xffffffffU, left, holder);
    p->inside = (int32_t)totals[bucket];
    p->found |= (uint64_t)(uint32_t)bucket << p->shift;
    p->known |= (uint64_t)(TOPK_BUCKETS - 1) << p->shift;
    p->shift -= 8;
    if (p->shift == 24) {
        // Of the complements of ids, the digits that no candidate of so short a row can differ in.
        while (p->shift > 0 && (count - 1) >> p->shift == 0) {
            p->found |= (uint64_t)(TOPK_BUCKETS - 1) << p->shift;
            p->known |= (uint64_t)(TOPK_BUCKETS - 1) << p->shift;
            p->shift -= 8;
        }
    }
}

/* Counts the digit at p->shift of the items inside into work->histogram. The whole block. */
template <class Items>
__device__ void count_digit(const Items *items, const struct progress *p, struct workspace *work) {
    uint32_t *column = &work->histogram[0][threadIdx.x % WARP];
    uint32_t found = (uint32_t)(p->found >> 32);
    uint32_t known = (uint32_t)(p->known >> 32);
    if (p->shift >= 32) {
        int32_t shift = p->shift - 32;
        for_each(items, [=](uint32_t key, uint32_t id) {
            (void)id;
            if (((key ^ found) & known) == 0) {
                atomicAdd(column + ((key >> shift) & (TOPK_BUCKETS - 1)) * WARP, 1U);
            }
        });
    } else {
        uint32_t found_id = (uint32_t)p->found;
        uint32_t known_id = (uint32_t)p->known;
        int32_t shift = p->shift;
        for_each(items, [=](uint32_t key, uint32_t id) {
            if (key == found && ((id ^ found_id) & known_id) == 0) {
                atomicAdd(column + ((id >> shift) & (TOPK_BUCKETS - 1)) * WARP, 1U);
            }
        });
    }
}

__device__ void clear_histogram(struct workspace *work) {
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < TOPK_BUCKETS * WARP; i += THREADS) {
        (&work->histogram[0][0])[i] = 0;
    }
    __syncthreads();
}

/* Adds the columns up into work->totals. */
__device__ void add_columns(struct workspace *work) {
    __syncthreads();
    int32_t lane = (int32_t)threadIdx.x % WARP;
    for (int32_t b = (int32_t)threadIdx.x / WARP; b < TOPK_BUCKETS; b += WARPS) {
        uint32_t total = __reduce_add_sync(0xffffffffU, work->histogram[b][lane]);
        if (lane == 0) {
            work->totals[b] = total;
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void choose(uint32_t *chosen, uint32_t id) {
    atomicOr(chosen + id / 32, 1U << (id % 32));
}

__device__ __forceinline__ bool is_settled(const struct progress *p, int32_t few) {
    return p->inside == p->wanted || p->inside <= few;
}

/* Chooses the items above; those inside too when all of them are wanted, else the first `room` are
 * listed. Call it when p is settled. */
template <class Items>
__device__ void choose_above(
    const Items *items,
    const struct progress *p,
    uint32_t *chosen,
    uint64_t *list,
    uint32_t *listed,
    uint32_t room
) {
    uint64_t found = p->found;
    uint64_t known = p->known;
    bool all_wanted = p->inside == p->wanted;
    for_each(items, [=](uint32_t key, uint32_t id) {
        if ((key & (uint32_t)(known >> 32)) < (uint32_t)(found >> 32)) {
            return; // nearly all
        }
        uint64_t item = (uint64_t)key << 32 | id;
        if ((item & known) > found || (all_wanted && (item & known) == found)) {
            choose(chosen, ~id);
        } else if ((item & known) == found) {
            uint32_t slot = atomicAdd(listed, 1U);
            if (slot < room) {
                list[slot] = item;
            }
        }
    });
}

/* Takes up the digits one by one until few items are left, then ranks those. */
template <class Items>
__device__ void choose_items(
    const Items *items, const struct topk_job *job, struct progress p, struct workspace *work
) {
    while (!is_settled(&p, TOPK_RANKED_MAX)) {
        clear_histogram(work);
        count_digit(items, &p, work);
        add_columns(work);
        progress_pick(&p, work->totals, job->count);
    }
    if (threadIdx.x == 0) {
        work->ranked_count = 0;
    }
    __syncthreads();
    choose_above(items, &p, job->chosen, work->ranked, &work->ranked_count, TOPK_RANKED_MAX);
    __syncthreads();
    int32_t count = (int32_t)work->ranked_count;
    if ((int32_t)threadIdx.x < count) {
        uint64_t own = work->ranked[threadIdx.x];
        int32_t larger = 0;
        for (int32_t i = 0; i < count; i++) {
            larger += work->ranked[i] > own ? 1 : 0;
        }
        if (larger < p.wanted) {
            choose(job->chosen, ~(uint32_t)own);
        }
    }
    __syncthreads();
}

/* Writes the chosen in ascending order: each warp has a run of the map, 32 words at a time. */
__device__ void write_chosen(const struct topk_job *job) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t words = (job->count + 31) / 32;
    int32_t run = (words + THREADS - 1) / THREADS * WARP;
    int32_t from = warp * run;
    int32_t to = least(words, from + run);
    int32_t own = 0;
#pragma unroll 4
    for (int32_t w = from + lane; w < to; w += WARP) {
        own += __popc(job->chosen[w]);
    }
    int32_t total = 0;
    int32_t at = __shfl_sync(0xffffffffU, sum_before(own, &total), 0); // of the warp's run
#pragma unroll 4
    for (int32_t w = from; w < to; w += WARP) {
        uint32_t bits = w + lane < to ? job->chosen[w + lane] : 0;
        if (!__any_sync(0xffffffffU, bits != 0)) {
            continue; // nearly all of a long row
        }
        int32_t inclusive = sum_of_lanes(__popc(bits));
        int32_t next = at + inclusive - __popc(bits);
        for (uint32_t left = bits; left != 0; left &= left - 1) {
            job->ids[next++] = id_of(job, (w + lane) * 32 + __ffs((int32_t)left) - 1);
        }
        at += __shfl_sync(0xffffffffU, inclusive, WARP - 1);
    }
    if (threadIdx.x == 0) {
        *job->ids_count = total;
    }
}

/* Units [unit, next) of the block's share lie in one shared row. */
struct shared_part {
    int32_t index; /* of the job */
    int32_t next;
    struct topk_job job;
    struct topk_state *state;
    struct score_items items;
};

__device__ __forceinline__ struct shared_part
part_at(const struct topk *topk, int32_t unit, int32_t last) {
    struct shared_part part;
    part.index = owner_of(topk->unit_first, topk->jobs, unit);
    part.job = topk->job[part.index];
    part.state = &topk->states[part.index];
    int32_t first = topk->unit_first[part.index];
    part.next = least(last, topk->unit_first[part.index + 1]);
    part.items = {
        part.job.scores,
        (unit - first) * TOPK_UNIT,
        least(part.job.count, (part.next - first) * TOPK_UNIT)};
    return part;
}

/* One digit of the shared rows; the first kernel clears their maps as well. */
__global__ void __launch_bounds__(THREADS, 1)
    topk_count_kernel(struct mark mark, struct topk topk, int32_t digit) {
    MARK(mark);
    __shared__ struct workspace work;
    int32_t unit = 0;
    int32_t last = 0;
    share_of(topk.unit_first[topk.jobs], &unit, &last);
    while (unit < last) {
        const struct shared_part part = part_at(&topk, unit, last);
        struct progress p = progress_start(&part.job);
        if (digit == 0) {
            for (int32_t w = part.items.from / 32 + (int32_t)threadIdx.x; w * 32 < part.items.to;
                 w += THREADS) {
                part.job.chosen[w] = 0;
            }
        } else {
            progress_pick(&p, part.state->histogram[0], part.job.count);
        }
        clear_histogram(&work);
        count_digit(&part.items, &p, &work);
        add_columns(&work);
        for (int32_t b = (int32_t)threadIdx.x; b < TOPK_BUCKETS; b += THREADS) {
            if (work.totals[b] != 0) {
                atomicAdd(&part.state->histogram[digit][b], work.totals[b]);
            }
        }
        unit = part.next;
    }
}

/* Where a shared row stands after both digits. */
__device__ __forceinline__ struct progress
shared_progress(const struct topk_job *job, const struct topk_state *state) {
    struct progress p = progress_start(job);
    progress_pick(&p, state->histogram[0], job->count);
    progress_pick(&p, state->histogram[1], job->count);
    return p;
}

/* Chooses or lists what two digits leave of the shared rows. */
__global__ void __launch_bounds__(THREADS, 1)
    topk_filter_kernel(struct mark mark, struct topk topk) {
    MARK(mark);
    int32_t unit = 0;
    int32_t last = 0;
    share_of(topk.unit_first[topk.jobs], &unit, &last);
    while (unit < last) {
        const struct shared_part part = part_at(&topk, unit, last);
        struct progress p = shared_progress(&part.job, part.state);
        if (is_settled(&p, TOPK_LIST)) {
            uint64_t *list = topk.lists + (size_t)part.index * TOPK_LIST;
            choose_above(&part.items, &p, part.job.chosen, list, &part.state->listed, TOPK_LIST);
        }
        unit = part.next;
    }
}

/* A row of any length, or what is left of a shared one. The job is a copy, so that the caller's stays
 * in registers. */
__device__ void
finish_any(const struct topk *topk, const struct topk_job job, struct workspace *work) {
    struct score_items items = {job.scores, 0, job.count};
    if (!topk->shares || topk_units(job.count, job.wanted) == 0) {
        for (int32_t w = (int32_t)threadIdx.x; w * 32 < job.count; w += THREADS) {
            job.chosen[w] = 0;
        }
        __syncthreads();
        choose_items(&items, &job, progress_start(&job), work);
    } else {
        struct progress p = shared_progress(&job, &topk->states[blockIdx.x]);
        if (!is_settled(&p, TOPK_LIST)) {
            choose_items(&items, &job, p, work); // many ties: from the row itself
        } else if (p.inside != p.wanted) {
            struct listed_items listed = {topk->lists + (size_t)blockIdx.x * TOPK_LIST, p.inside};
            choose_items(&listed, &job, p, work);
        }
    }
    write_chosen(&job);
}

/* One block per job: all of a short row, the rest of a shared one. */
__global__ void __launch_bounds__(THREADS, 1)
    topk_finish_kernel(struct mark mark, struct topk topk) {
    MARK(mark);
    __shared__ union {
        struct workspace any;
        struct short_workspace few;
    } work;
    const struct topk_job job = topk.job[blockIdx.x];
    if (job.count <= job.wanted) {
        if (job.count < 0) {
            return;
        }
        for (int32_t i = (int32_t)threadIdx.x; i < job.wanted; i += THREADS) {
            job.ids[i] = i < job.count ? id_of(&job, i) : -1;
        }
        if (threadIdx.x == 0) {
            *job.ids_count = job.count;
        }
        return;
    }
    if (job.count <= TOPK_SHORT && choose_short(&job, &work.few)) {
        return;
    }
    finish_any(&topk, job, &work.any);
}

void cuda_topk(struct cuda *cuda, enum cuda_op op, const struct topk *topk, int32_t count_max) {
    if (topk->shares) {
        int64_t units = (int64_t)topk->jobs * ((count_max + TOPK_UNIT - 1) / TOPK_UNIT);
        int64_t most = 2 * (int64_t)cuda->multiprocessors;
        unsigned grid = (unsigned)(units < most ? units : most);
        CUDA_LAUNCH(cuda, op, topk_count_kernel, grid, THREADS, 0, *topk, 0);
        CUDA_LAUNCH(cuda, op, topk_count_kernel, grid, THREADS, 0, *topk, 1);
        CUDA_LAUNCH(cuda, op, topk_filter_kernel, grid, THREADS, 0, *topk);
    }
    CUDA_LAUNCH(cuda, op, topk_finish_kernel, (unsigned)topk->jobs, THREADS, 0, *topk);
}
