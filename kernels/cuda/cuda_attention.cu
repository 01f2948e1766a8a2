/* Attention over window records, selected entries and a sink (spec 3.5 steps 4-5).
 *
 * A block of threads owns one query row and 16, 32 or 64 of its heads. Keys and values are the same
 * latents: 64 records at a time are decoded into shared memory and meet the queries once and the
 * probabilities once. While one block of keys is multiplied, the bytes of the next are on their way;
 * where shared memory has room for two blocks of keys, the next is decoded while scores become
 * probabilities, and 64 keys take two barriers, else four.
 *
 * Bound: prefill by tensor operations and the shared memory that feeds them; decode by the latency
 * of short phases per 64 keys, since one row has few keys: hence fewer heads per block when there
 * are few rows.
 *
 * Order of sums, the same for every number of heads per block: a score is the sum of two halves of
 * the channels, each 16 channels after 16; the denominator of 64 keys a tree over groups of 4 keys
 * (bit 3 of the group's index first); values 16 keys after 16, never split.
 */
#include "cuda_attention_keys.cuh"

#include "base/result.h"

#include <math.h>

#define PAIRS        (CUDA_HEAD_DIM_MAX / TILE) // of 8-channel tiles
#define WARP_PAIRS   (PAIRS / WARPS)            // warp w has pairs w, w + 8, ...
#define SCORE_STRIDE (KEYS + 8)                 // 8 more: no bank conflicts

/* Where a lane points for four 8x8 matrices: 16 rows from `from`, the left 8 columns first. */
__device__ __forceinline__ const unsigned char *
matrix_rows(const unsigned char *from, int32_t stride, int32_t lane) {
    return from + lane % 16 * stride + lane / 16 * 16;
}

/* 16 channels of some queries and keys. */
template <int ROWS, int PER_WARP> struct score_factors {
    uint32_t a[ROWS][4];
    uint32_t b[PER_WARP][4];
};

template <int ROWS, int PER_WARP>
__device__ __forceinline__ void load_factors(
    struct score_factors<ROWS, PER_WARP> *f,
    const unsigned char *query,
    const unsigned char *rows,
    int32_t stride,
    int32_t c
) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        load_matrices(f->a[m], query + m * TILE * stride + 2 * c);
    }
#pragma unroll
    for (int n = 0; n < PER_WARP; n++) {
        load_matrices(f->b[n], rows + n * TILE * stride + 2 * c);
    }
}

template <int ROWS, int PER_WARP>
__device__ __forceinline__ void
multiply_factors(const struct score_factors<ROWS, PER_WARP> *f, float sums[ROWS][2 * PER_WARP][4]) {
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
#pragma unroll
        for (int n = 0; n < 2 * PER_WARP; n++) {
            mma_bf16(sums[m][n], f->a[m], f->b[n / 2] + n % 2 * 2);
        }
    }
}

/* scores[half][head][key]: the first half of the warps takes the first half of the channels. */
template <int M_TILES>
__device__ __forceinline__ void
score_keys(const struct attention_plan *plan, unsigned char *shared, int32_t keys, int32_t dim) {
    constexpr int ROWS = M_TILES < 4 ? 1 : 2; // tiles of 16 heads of one warp
    constexpr int DOWN = M_TILES / ROWS;      // warps along the heads
    // and along the keys: 64 heads are bound by what they load, so half of the warps take wide tiles
    constexpr bool IS_WIDE = M_TILES == 4;
    constexpr int ACROSS = IS_WIDE ? 2 : 4;
    constexpr int PER_WARP = KEYS / TILE / ACROSS; // tiles of 16 keys of one warp
    int32_t lane = thread_index() % WARP;
    int32_t half = thread_index() / WARP / (WARPS / 2);
    int32_t place = thread_index() / WARP % (WARPS / 2);
    if (place >= DOWN * ACROSS) {
        return;
    }
    int32_t head = place % DOWN * ROWS * TILE;
    int32_t key = place / DOWN * PER_WARP * TILE;
    float sums[ROWS][2 * PER_WARP][4] = {};
    const unsigned char *query = matrix_rows(shared + head * plan->stride, plan->stride, lane);
    const unsigned char *rows = shared + keys + key * plan->stride;
    rows += (lane / 16 * 8 + lane % 8) * plan->stride + lane / 8 % 2 * 16;
    query += half * dim; // two bytes a channel
    rows += half * dim;
    int32_t end = dim / 2;
    if constexpr (!IS_WIDE) {
        constexpr int AHEAD = M_TILES < 4 ? 2 : 1; // loads on their way while one is multiplied
        struct score_factors<ROWS, PER_WARP> f[AHEAD + 1];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (i * TILE < end) {
                load_factors(&f[i], query, rows, plan->stride, i * TILE);
            }
        }
#pragma unroll
        for (int i = 0; i < CUDA_HEAD_DIM_MAX / 2 / TILE; i++) {
            int32_t c = i * TILE;
            if (c < end) {
                if (c + AHEAD * TILE < end) {
                    load_factors(
                        &f[(i + AHEAD) % (AHEAD + 1)], query, rows, plan->stride, c + AHEAD * TILE
                    );
                }
                multiply_factors(&f[i % (AHEAD + 1)], sums);
            }
        }
    } else { // registers are short, and other warps multiply meanwhile
        struct score_factors<ROWS, PER_WARP> f;
#pragma unroll 1
        for (int32_t c = 0; c < end; c += TILE) {
            load_factors(&f, query, rows, plan->stride, c);
            multiply_factors(&f, sums);
        }
    }
    float *scores = (float *)(shared + plan->scores) + half * (M_TILES * TILE * SCORE_STRIDE);
    scores += (head + lane / 4) * SCORE_STRIDE + key + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
#pragma unroll
        for (int n = 0; n < 2 * PER_WARP; n++) {
            float *to = scores + m * TILE * SCORE_STRIDE + n * 8;
            *(float2 *)to = make_float2(sums[m][n][0], sums[m][n][1]);
            *(float2 *)(to + 8 * SCORE_STRIDE) = make_float2(sums[m][n][2], sums[m][n][3]);
        }
    }
}

/* Running softmax of one head: neighbouring threads hold the same two numbers. */
struct softmax {
    float maximum, sum;
};

/* Threads of a head, at most one per group of 4 keys; those behind the last head have none. */
template <int M_TILES> __device__ constexpr int lanes_of_head(void) {
    return THREADS / (M_TILES * TILE) < KEYS / 4 ? THREADS / (M_TILES * TILE) : KEYS / 4;
}

/* Scores of `count` keys to bf16 probabilities, and the factor for what was summed before. */
template <int M_TILES>
__device__ __forceinline__ void weigh_keys(
    const struct attention_plan *plan,
    unsigned char *shared,
    float scale,
    int32_t count,
    struct softmax *softmax
) {
    constexpr int HEADS = M_TILES * TILE;
    constexpr int LANES = lanes_of_head<M_TILES>();
    constexpr int GROUPS = KEYS / 4 / LANES; // of 4 keys, of one thread
    int32_t head = thread_index() / LANES;
    int32_t lane = thread_index() % LANES;
    if (head >= HEADS) {
        return;
    }
    const float *scores = (const float *)(shared + plan->scores) + head * SCORE_STRIDE;
    float v[GROUPS][4];
    float now = softmax->maximum;
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        int32_t key = 4 * (lane + i * LANES);
        float4 low = *(const float4 *)(scores + key);
        float4 high = *(const float4 *)(scores + HEADS * SCORE_STRIDE + key);
        v[i][0] = __fmul_rn(__fadd_rn(low.x, high.x), scale);
        v[i][1] = __fmul_rn(__fadd_rn(low.y, high.y), scale);
        v[i][2] = __fmul_rn(__fadd_rn(low.z, high.z), scale);
        v[i][3] = __fmul_rn(__fadd_rn(low.w, high.w), scale);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[i][k] = key + k < count ? v[i][k] : -INFINITY;
            now = fmaxf(now, v[i][k]);
        }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        now = fmaxf(now, __shfl_xor_sync(0xffffffffU, now, step));
    }
    unsigned char *to = shared + plan->probabilities + head * (2 * SCORE_STRIDE);
    float total[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            v[i][k] = expf(__fsub_rn(v[i][k], now));
        }
        total[i] = __fadd_rn(__fadd_rn(v[i][0], v[i][1]), __fadd_rn(v[i][2], v[i][3]));
        *(uint2 *)(to + 8 * (lane + i * LANES)) =
            make_uint2(bf16x2_encode(v[i][0], v[i][1]), bf16x2_encode(v[i][2], v[i][3]));
    }
#pragma unroll
    for (int step = GROUPS / 2; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < step; i++) {
            total[i] = __fadd_rn(total[i], total[i + step]);
        }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        total[0] = __fadd_rn(total[0], __shfl_xor_sync(0xffffffffU, total[0], step));
    }
    float shrink = expf(__fsub_rn(softmax->maximum, now));
    softmax->maximum = now;
    softmax->sum = __fmaf_rn(softmax->sum, shrink, total[0]);
    if (lane == 0) {
        ((float *)(shared + plan->factors))[head] = shrink;
    }
}

/* What a warp sums: all heads of the block by its pairs of 8 channels. */
template <int M_TILES> struct value_sums { float v[M_TILES][WARP_PAIRS][2][4]; };

template <int M_TILES>
__device__ __forceinline__ void scale_sums(
    const struct attention_plan *plan, const unsigned char *shared, struct value_sums<M_TILES> *sums
) {
    const float *factors = (const float *)(shared + plan->factors);
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        float upper = factors[m * TILE + thread_index() % WARP / 4];
        float lower = factors[m * TILE + thread_index() % WARP / 4 + 8];
#pragma unroll
        for (int j = 0; j < 2 * WARP_PAIRS; j++) {
            float *v = sums->v[m][j / 2][j % 2];
            v[0] = __fmul_rn(v[0], upper);
            v[1] = __fmul_rn(v[1], upper);
            v[2] = __fmul_rn(v[2], lower);
            v[3] = __fmul_rn(v[3], lower);
        }
    }
}

/* sums = sums * factor + probabilities * keys. */
template <int M_TILES>
__device__ __forceinline__ void add_values(
    const struct attention_plan *plan,
    const unsigned char *shared,
    int32_t keys,
    int32_t dim,
    struct value_sums<M_TILES> *sums
) {
    int32_t lane = thread_index() % WARP;
    int32_t warp = thread_index() / WARP;
    scale_sums(plan, shared, sums);
    const unsigned char *weights =
        matrix_rows(shared + plan->probabilities, 2 * SCORE_STRIDE, lane);
    const unsigned char *values = matrix_rows(shared + keys, plan->stride, lane);
#pragma unroll
    for (int k = 0; k < KEYS; k += TILE) {
        uint32_t a[M_TILES][4];
        uint32_t b[WARP_PAIRS][4];
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            load_matrices(a[m], weights + m * TILE * (2 * SCORE_STRIDE) + 2 * k);
        }
#pragma unroll
        for (int j = 0; j < WARP_PAIRS; j++) {
            int32_t c = TILE * (warp + j * WARPS);
            if (dim == CUDA_HEAD_DIM_MAX || c < dim) {
                load_matrices_transposed(b[j], values + k * plan->stride + 2 * c);
            }
        }
#pragma unroll
        for (int j = 0; j < WARP_PAIRS; j++) {
            if (dim == CUDA_HEAD_DIM_MAX || TILE * (warp + j * WARPS) < dim) {
#pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma_bf16(sums->v[m][j][0], a[m], b[j]);
                    mma_bf16(sums->v[m][j][1], a[m], b[j] + 2);
                }
            }
        }
    }
}

/* Sums times factors to bf16, by way of shared memory (where keys were) so that rows go out whole. */
template <int M_TILES>
__device__ __forceinline__ void store_heads(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t row,
    int32_t head,
    struct value_sums<M_TILES> *sums
) {
    int32_t lane = thread_index() % WARP;
    scale_sums(plan, shared, sums);
    unsigned char *rows = shared + plan->keys;
#pragma unroll
    for (int m = 0; m < M_TILES; m++) {
#pragma unroll
        for (int j = 0; j < 2 * WARP_PAIRS; j++) {
            int32_t c = TILE * (thread_index() / WARP + j / 2 * WARPS) + j % 2 * 8 + lane % 4 * 2;
            if (c < op->dim) {
                const float *v = sums->v[m][j / 2][j % 2];
                unsigned char *to = rows + (m * TILE + lane / 4) * plan->stride + 2 * c;
                *(uint32_t *)to = bf16x2_encode(v[0], v[1]);
                *(uint32_t *)(to + 8 * plan->stride) = bf16x2_encode(v[2], v[3]);
            }
        }
    }
    __syncthreads();
    int32_t units = op->dim / 8;
    int32_t heads = min(M_TILES * TILE, op->heads - head);
    uint16_t *to = op->output + ((int64_t)row * op->heads + head) * op->dim;
    for (int32_t i = thread_index(); i < heads * units; i += THREADS) {
        const unsigned char *from = rows + i / units * plan->stride + i % units * 16;
        *(uint4 *)(to + (int64_t)i * 8) = from_key_order(*(const uint4 *)from);
    }
}

/* Heads behind the last one are zeros. */
template <int M_TILES>
__device__ __forceinline__ void fetch_query(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t row,
    int32_t head
) {
    int32_t units = op->dim / 8;
    const uint16_t *from = op->query + ((int64_t)row * op->heads + head) * op->dim;
    for (int32_t i = thread_index(); i < M_TILES * TILE * units; i += THREADS) {
        bool valid = head + i / units < op->heads;
        unsigned char *to = shared + i / units * plan->stride + i % units * 16;
        copy_async16(to, valid ? from + (int64_t)i * 8 : from, valid);
    }
}

/* What this thread fetched has come. */
template <int M_TILES>
__device__ __forceinline__ void
order_query(const struct attention_plan *plan, unsigned char *shared, int32_t dim) {
    int32_t units = dim / 8;
    for (int32_t i = thread_index(); i < M_TILES * TILE * units; i += THREADS) {
        uint4 *at = (uint4 *)(shared + i / units * plan->stride + i % units * 16);
        *at = to_key_order(*at);
    }
}

/* DIM: the width of a head where it is known, else 0. */
template <int M_TILES, int DIM>
__global__ void __launch_bounds__(THREADS)
    attention_kernel(struct mark mark, struct attention_op op, struct attention_plan plan) {
    MARK(mark);
    if constexpr (DIM != 0) { // addresses are constants then
        op.dim = DIM;
        plan.stride = 2 * DIM + 16;
    }
    DYNAMIC_SHARED(shared);
    int32_t groups = (op.heads + M_TILES * TILE - 1) / (M_TILES * TILE);
    int32_t row = (int32_t)blockIdx.x / groups;
    int32_t head = (int32_t)blockIdx.x % groups * (M_TILES * TILE);
    fetch_query<M_TILES>(&op, &plan, shared, row, head);
    if (!list_keys(&op, &plan, shared, row)) {
        copy_async_wait<0>();
        return;
    }
    const struct key_list *list = (const struct key_list *)(shared + plan.list);
    int32_t total = list->total;
    struct softmax softmax = {-1e30F, 0.0F};
    struct value_sums<M_TILES> sums = {};
    fetch_records(&op, &plan, shared, 0);
    copy_async_wait<0>();
    order_query<M_TILES>(&plan, shared, op.dim);
    int32_t keys = plan.keys;
    int32_t other = M_TILES < 4 ? plan.spare : 0; // 64 heads leave no room for it
    decode_keys(&op, &plan, shared, keys, 0);
    __syncthreads();
    if (KEYS < total) {
        fetch_records(&op, &plan, shared, KEYS);
    }
    for (int32_t at = 0; at < total; at += KEYS) {
        int32_t next = at + KEYS;
        score_keys<M_TILES>(&plan, shared, keys, op.dim);
        __syncthreads(); // all have met the other keys' probabilities, too
        weigh_keys<M_TILES>(&plan, shared, op.scale, total - at, &softmax);
        if (other != 0 && next < total) {
            decode_keys(&op, &plan, shared, other, next);
            if (next + KEYS < total) {
                fetch_records(&op, &plan, shared, next + KEYS);
            }
        }
        __syncthreads();
        add_values<M_TILES>(&plan, shared, keys, op.dim, &sums);
        if (other != 0) {
            int32_t done = keys;
            keys = other;
            other = done;
        } else if (next < total) {
            __syncthreads();
            decode_keys(&op, &plan, shared, keys, next);
            __syncthreads();
            if (next + KEYS < total) {
                fetch_records(&op, &plan, shared, next + KEYS);
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();
    constexpr int LANES = lanes_of_head<M_TILES>();
    int32_t own = thread_index() / LANES;
    if (thread_index() % LANES == 0 && own < M_TILES * TILE) {
        float sink = head + own < op.heads ? op.sink[head + own] : 0.0F;
        float divisor = __fadd_rn(softmax.sum, expf(__fsub_rn(sink, softmax.maximum)));
        ((float *)(shared + plan.factors))[own] = __fdiv_rn(1.0F, divisor);
    }
    __syncthreads();
    store_heads<M_TILES>(&op, &plan, shared, row, head, &sums);
}

static int32_t take(int32_t *at, size_t bytes) {
    int32_t begin = *at;
    *at += (int32_t)((bytes + 127) / 128 * 128);
    return begin;
}

/* `places` of decoded keys; 0: one, and records are not staged. */
static struct attention_plan
plan_of(const struct attention_op *op, int32_t tiles, int32_t places, int32_t table_keys) {
    struct attention_plan plan = {};
    int32_t heads = tiles * TILE;
    int32_t at = 0;
    plan.stride = 2 * op->dim + 16;
    (void)take(&at, (size_t)(heads * plan.stride));
    plan.keys = take(&at, (size_t)(KEYS * plan.stride));
    plan.window_bytes = (int32_t)window_record_bytes(op->dim);
    if (places == 2) {
        plan.spare = take(&at, (size_t)(KEYS * plan.stride));
    }
    if (places > 0) {
        plan.records = take(&at, (size_t)(KEYS * plan.window_bytes));
    }
    plan.scores = take(&at, (size_t)(2 * heads * SCORE_STRIDE) * sizeof(float));
    plan.probabilities = take(&at, (size_t)(heads * SCORE_STRIDE) * sizeof(uint16_t));
    plan.factors = take(&at, (size_t)heads * sizeof(float));
    plan.list = take(&at, sizeof(struct key_list));
    plan.table_keys = table_keys;
    plan.table = take(&at, (size_t)table_keys * sizeof(void *));
    plan.bytes = at;
    return plan;
}

/* Heads per block: as few as leave all blocks running at once, and as many as fit. */
static int32_t tiles_of(const struct cuda *cuda, const struct attention_op *op) {
    for (int32_t tiles = 1; tiles < 4; tiles *= 2) {
        int64_t groups = (op->heads + tiles * TILE - 1) / (tiles * TILE);
        if (groups == 1 || groups * op->segments.rows <= cuda->multiprocessors) {
            return tiles;
        }
    }
    return 4;
}

void cuda_attention(struct backend *backend, const struct attention_op *op) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(op->dim <= CUDA_HEAD_DIM_MAX);
    if (op->segments.rows == 0) {
        return;
    }
    // A lane has 16 channels of a staged record.
    int32_t places = op->dim == CUDA_HEAD_DIM_MAX ? 2 : 0;
    int32_t keys = op->window + (op->selected == NULL ? 0 : op->topk);
    int32_t blocks = (keys + KEYS - 1) / KEYS;
    int32_t table_keys = KEYS * (blocks < 16 ? blocks : 16);
    int32_t tiles = tiles_of(cuda, op);
    struct attention_plan plan = plan_of(op, tiles, places, table_keys);
    while (plan.bytes > cuda->shared_bytes_max && (places > 1 || tiles > 1)) {
        if (places > 1) {
            places--;
        } else {
            tiles /= 2;
        }
        plan = plan_of(op, tiles, places, table_keys);
    }
    if (plan.bytes > cuda->shared_bytes_max) {
        plan = plan_of(op, tiles, 0, KEYS * (blocks < 4 ? blocks : 4));
    }
    int32_t groups = (op->heads + tiles * TILE - 1) / (tiles * TILE);
    dim3 grid((unsigned)(op->segments.rows * groups));
    constexpr int WIDEST = CUDA_HEAD_DIM_MAX;
    bool is_widest = op->dim == WIDEST;
    auto kernel = tiles == 1   ? is_widest ? attention_kernel<1, WIDEST> : attention_kernel<1, 0>
                    : tiles == 2 ? is_widest ? attention_kernel<2, WIDEST> : attention_kernel<2, 0>
                    : is_widest ? attention_kernel<4, WIDEST>
                               : attention_kernel<4, 0>;
    CUDA_ALLOW_SHARED(cuda, CUDA_OP_ATTENTION, kernel, plan.bytes);
    CUDA_LAUNCH(cuda, CUDA_OP_ATTENTION, kernel, grid, THREADS, plan.bytes, *op, plan);
}
