/* Routed and shared experts (spec 3.11).
 *
 * Rows are taken in slabs. An entry is one (row, slot), or one row for the shared expert:
 *   prepare  x to bf16 operands; the entries of each expert, ascending
 *   plan     items: up to 16 entries of an expert (narrow), or up to 64 of one with many (wide)
 *   product  gate and up, SwiGLU, quantised, as bf16 operands; then down to bf16 per entry
 *   combine  a row's entries by ascending id, then the shared one
 * Grids hold the most items that so many rows can have; blocks without one return at once.
 *
 * Bound: few rows read each chosen expert's weights once (18.8 MB in FP4 at the release's sizes);
 * thousands are bound by mma.sync. A block of the narrow product is small, so that one row's seven
 * experts fill all multiprocessors; one of the wide product decodes its weights once for 64 entries.
 * The two give the same bits: see cuda_experts.cuh. With up to NARROW_ROWS rows the few experts with
 * more entries than a narrow item are cut up: their weights come from the L2 cache again, which costs
 * less than a second launch that fills a part of the multiprocessors.
 */
#include "cuda_experts.cuh"
#include "cuda_formats.cuh"

#ifdef CUDA_EMULATION /* so that small checks have all of it */
#define SLAB_ROWS   72
#define NARROW_ROWS 24
#else
#define SLAB_ROWS   4096 /* bounds scratch: about 120 KB a row at the release's sizes */
#define NARROW_ROWS 128  /* up to here all items are narrow */
#endif
#define NARROW_COLUMNS 2 /* of 8 entries */
#define NARROW_WARPS   2 /* warps of weight rows; each SLICES times */
#define WIDE_COLUMNS   8
#define WIDE_WARPS     4
#define NARROW_ENTRIES (8 * NARROW_COLUMNS)
#define WIDE_ENTRIES   (8 * WIDE_COLUMNS)
#define THREADS        256 /* of the kernels other than the product */
#define PLAN_THREADS   512

/* Some entries of one expert: [first, first + count) of its list. */
struct experts_item {
    int32_t expert; /* E: the shared one */
    int32_t first;
    int32_t count;
};

/* One slab. */
struct experts_job {
    int32_t rows, dim, hidden, experts, chosen;
    float limit;
    enum dtype routed_dtype;
    struct quantized x;
    const int32_t *ids;
    const float *weights;
    const struct expert_weights *routed;
    struct expert_weights shared;
    uint16_t *output;
    /* scratch */
    uint16_t *input;           /* [R, D] bf16 operands */
    uint16_t *hidden_operands; /* [R (k + 1), hidden] */
    uint16_t *outputs;         /* [R (k + 1), D] bf16 */
    int32_t *entries;          /* [E + 1, R] the entries of each expert */
    int32_t *entry_counts;     /* [E + 1] */
    struct experts_item
        *narrow; /* [narrow_max]; behind the last one there are some without entries */
    struct experts_item *wide;
    int32_t narrow_max, wide_max;
};

/* The most items of a slab: every expert's last tile may hold one entry. */
static int32_t narrow_items(int32_t rows, int32_t experts, int32_t chosen) {
    int32_t busy = rows * chosen < experts ? rows * chosen : experts;
    if (rows > NARROW_ROWS) {
        return busy + 1;
    }
    return busy + rows * chosen / NARROW_ENTRIES + rows / NARROW_ENTRIES + 1;
}

static int32_t wide_items(int32_t rows, int32_t experts, int32_t chosen) {
    int32_t busy = rows * chosen / (NARROW_ENTRIES + 1);
    busy = busy < experts ? busy : experts;
    return busy + rows * chosen / WIDE_ENTRIES + rows / WIDE_ENTRIES + 1;
}

/* Lists the entries that chose expert `e`, in order; one warp. */
__device__ void list_entries(const struct experts_job *job, int32_t e, int32_t lane) {
    int32_t routed = job->rows * job->chosen;
    int32_t *list = job->entries + (size_t)e * (size_t)job->rows;
    int32_t count = 0;
    if (e == job->experts) {
        for (int32_t row = lane; row < job->rows; row += WARP) {
            list[row] = routed + row;
        }
        count = job->rows;
    } else {
#pragma unroll 4
        for (int32_t first = 0; first < routed; first += WARP) {
            int32_t entry = first + lane;
            bool is_mine = entry < routed && job->ids[entry < routed ? entry : 0] == e;
            uint32_t mask = __ballot_sync(ALL_LANES, is_mine);
            if (is_mine) {
                list[count + __popc(mask & ((1U << lane) - 1U))] = entry;
            }
            count += __popc(mask);
        }
    }
    if (lane == 0) {
        job->entry_counts[e] = count;
    }
}

/* Eight values as one operand word group: see operand_place. */
__device__ __forceinline__ uint4 operand_of(const float v[8]) {
    return make_uint4(
        bf16x2_encode(v[0], v[4]),
        bf16x2_encode(v[1], v[5]),
        bf16x2_encode(v[2], v[6]),
        bf16x2_encode(v[3], v[7])
    );
}

/* E4M3 codes times 2^(scale - 127): exact in bf16. */
__device__ __forceinline__ uint4 operand_of_codes(uint64_t codes, uint8_t scale) {
    float factor = e8m0_decode(scale);
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = __fmul_rn(e4m3_decode((uint8_t)(codes >> (8 * i))), factor);
    }
    return operand_of(v);
}

/* The first `list_blocks` blocks list entries, a warp per expert; the others decode x. */
__global__ void __launch_bounds__(THREADS)
    experts_prepare_kernel(struct mark mark, struct experts_job job, int32_t list_blocks) {
    MARK(mark);
    int32_t block = (int32_t)blockIdx.x;
    if (block < list_blocks) {
        int32_t e = block * (THREADS / WARP) + (int32_t)threadIdx.x / WARP;
        if (e <= job.experts) {
            list_entries(&job, e, (int32_t)threadIdx.x % WARP);
        }
        return;
    }
    size_t item = (size_t)(block - list_blocks) * THREADS + threadIdx.x;
    if (item < (size_t)job.rows * (size_t)(job.dim / 8)) {
        uint2 codes = *(const uint2 *)(job.x.codes + item * 8);
        uint64_t eight = (uint64_t)codes.y << 32 | codes.x;
        ((uint4 *)job.input)[item] = operand_of_codes(eight, job.x.scales[item / 4]);
    }
}

/* One block. The shared expert comes first: it has the most bytes per entry. */
__global__ void __launch_bounds__(PLAN_THREADS)
    experts_plan_kernel(struct mark mark, struct experts_job job) {
    MARK(mark);
    __shared__ uint32_t totals[PLAN_THREADS / WARP];
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    uint32_t base = 0; // narrow items in the low half, wide ones in the high half
    for (int32_t first = 0; first <= job.experts; first += PLAN_THREADS) {
        int32_t i = first + (int32_t)threadIdx.x;
        int32_t expert = i == 0 ? job.experts : i - 1;
        int32_t count = i <= job.experts ? job.entry_counts[expert] : 0;
        bool is_wide = count > NARROW_ENTRIES && job.rows > NARROW_ROWS;
        int32_t most = is_wide ? WIDE_ENTRIES : NARROW_ENTRIES;
        int32_t tiles = (count + most - 1) / most;
        uint32_t own = (uint32_t)tiles << (is_wide ? 16 : 0);
        uint32_t sum = own;
        for (uint32_t step = 1; step < WARP; step *= 2) {
            uint32_t other = __shfl_up_sync(ALL_LANES, sum, step);
            sum += lane >= (int32_t)step ? other : 0;
        }
        if (lane == WARP - 1) {
            totals[warp] = sum;
        }
        __syncthreads();
        uint32_t before = base + sum - own;
        for (int32_t w = 0; w < PLAN_THREADS / WARP; w++) {
            before += w < warp ? totals[w] : 0;
            base += totals[w];
        }
        __syncthreads();
        struct experts_item *to =
            is_wide ? job.wide + (before >> 16) : job.narrow + (before & 0xffffU);
        // Tiles of one size, in whole columns of eight.
        int32_t size = tiles > 0 ? ((count + tiles - 1) / tiles + 7) / 8 * 8 : 0;
        for (int32_t t = 0; t < tiles; t++) {
            int32_t rest = count - t * size;
            to[t] = {expert, t * size, rest < size ? rest : size};
        }
    }
    int32_t thread = (int32_t)threadIdx.x;
    for (int32_t i = (int32_t)(base & 0xffffU) + thread; i < job.narrow_max; i += PLAN_THREADS) {
        job.narrow[i] = {0, 0, 0};
    }
    for (int32_t i = (int32_t)(base >> 16) + thread; i < job.wide_max; i += PLAN_THREADS) {
        job.wide[i] = {0, 0, 0};
    }
}

/* Shared memory of a block of the product. After the products, halves of sums meet in `exchange`,
 * and rounded values are turned round in `tile`, entries by channels. */
template <int COLUMNS, int WARPS> struct product_shared {
    float exchange[WARPS][2][COLUMNS][4][WARP];
    uint16_t tile[8 * COLUMNS][WARPS * WARP_ROWS + 8];
};

struct product_entries {
    int32_t entry[WIDE_ENTRIES];
    int32_t row[WIDE_ENTRIES]; /* of the operands */
    float weight[WIDE_ENTRIES];
};

/* Spec 3.11; comparisons as in the CPU backend, so that a NaN becomes the limit. */
__device__ __forceinline__ uint16_t activate(float gate, float up, float limit, float weight) {
    float g = bf16_decode(bf16_encode(gate));
    float u = bf16_decode(bf16_encode(up));
    if (limit > 0.0F) {
        g = g < limit ? g : limit;
        u = u > -limit ? u : -limit;
        u = u < limit ? u : limit;
    }
    float silu = __fdiv_rn(g, __fadd_rn(1.0F, expf(-g)));
    return bf16_encode(__fmul_rn(weight, __fmul_rn(silu, u)));
}

/* Adds the second slice's sums to the first's, rounds and lays them out by entry. */
template <int COLUMNS, int WARPS>
__device__ __forceinline__ void exchange_sums(
    struct product_shared<COLUMNS, WARPS> *shared,
    const struct sums<COLUMNS> *sums,
    const struct product_entries *entries,
    bool is_down,
    float limit
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP % WARPS;
    bool is_second = (int32_t)threadIdx.x / WARP >= WARPS;
    if (is_second) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                shared->exchange[warp][0][n][i][lane] = sums->of[0][n][i];
                shared->exchange[warp][1][n][i][lane] = sums->of[1][n][i];
            }
        }
    }
    __syncthreads();
    if (!is_second) {
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float a = __fadd_rn(sums->of[0][n][i], shared->exchange[warp][0][n][i][lane]);
                float b = __fadd_rn(sums->of[1][n][i], shared->exchange[warp][1][n][i][lane]);
                int32_t row = lane / 4 + i / 2 * 8;
                int32_t entry = n * 8 + lane % 4 * 2 + i % 2;
                uint16_t *to = shared->tile[entry];
                if (is_down) {
                    to[warp * WARP_ROWS + row] = bf16_encode(a);
                    to[warp * WARP_ROWS + TILE_ROWS + row] = bf16_encode(b);
                } else {
                    to[warp * TILE_ROWS + row] = activate(a, b, limit, entries->weight[entry]);
                }
            }
        }
    }
    __syncthreads();
}

/* Writes the tile's first `count` entries: outputs as they are, hidden ones quantised per 32. */
template <int COLUMNS, int WARPS>
__device__ __forceinline__ void store_tile(
    const struct product_shared<COLUMNS, WARPS> *shared,
    const struct product_entries *entries,
    const struct experts_job *job,
    int32_t count,
    bool is_down
) {
    constexpr int32_t BLOCK_THREADS = WARPS * SLICES * WARP;
    int32_t eights = (is_down ? WARP_ROWS : TILE_ROWS) * WARPS / 8;
    int32_t width = is_down ? job->dim : job->hidden;
    int32_t items = count * eights;
    for (int32_t first = 0; first < items; first += BLOCK_THREADS) {
        int32_t item = first + (int32_t)threadIdx.x;
        int32_t slot = item < items ? item / eights : 0;
        int32_t eight = item % eights;
        int32_t channel = ((int32_t)blockIdx.x * eights + eight) * 8;
        bool live = item < items && channel < width;
        const uint16_t *from = &shared->tile[slot][eight * 8];
        size_t at = (size_t)entries->entry[slot] * (size_t)width + (size_t)channel;
        if (is_down) {
            if (live) {
                *(uint4 *)(job->outputs + at) = *(const uint4 *)from;
            }
            continue;
        }
        struct eight values = load_eight(from);
        float largest = largest_of(&values);
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        uint8_t scale = fp8_group_scale(largest);
        if (live) {
            *(uint4 *)(job->hidden_operands + at) =
                operand_of_codes(encode_fp8(&values, scale), scale);
        }
    }
}

__device__ __forceinline__ struct tile_rows rows_of(const struct weight &weight, int32_t first) {
    struct tile_rows rows = {(const uint8_t *)weight.data, weight.scale, first};
    return rows;
}

/* Grid (blocks of weight rows, items). Gate and up or, with `is_down`, the down product. */
template <int COLUMNS, int WARPS, bool WIDE, int BLOCKS>
__global__ void __launch_bounds__(WARPS *SLICES *WARP, BLOCKS)
    experts_product_kernel(struct mark mark, struct experts_job job, bool is_down) {
    MARK(mark);
    DYNAMIC_SHARED(memory);
    __shared__ struct product_entries entries;
    constexpr int32_t BLOCK_THREADS = WARPS * SLICES * WARP;
    struct experts_item item = (WIDE ? job.wide : job.narrow)[blockIdx.y];
    if (item.count == 0) {
        return;
    }
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP % WARPS;
    int32_t slice = (int32_t)threadIdx.x / WARP / WARPS;
    int32_t out = is_down ? job.dim : job.hidden;
    int32_t in = is_down ? job.hidden : job.dim;
    int32_t first = ((int32_t)blockIdx.x * WARPS + warp) * (is_down ? WARP_ROWS : TILE_ROWS);
    bool is_live = first < out;
    first = is_live ? first : 0;
    bool is_shared = item.expert == job.experts;
    struct tile_rows upper;
    struct tile_rows lower;
    if (is_shared) { // no pointer to either: that would put a copy of the parameter on the stack
        const struct expert_weights &weights = job.shared;
        upper = rows_of(is_down ? weights.w2 : weights.w1, first);
        lower = rows_of(is_down ? weights.w2 : weights.w3, first);
    } else {
        const struct expert_weights &weights = job.routed[item.expert];
        upper = rows_of(is_down ? weights.w2 : weights.w1, first);
        lower = rows_of(is_down ? weights.w2 : weights.w3, first);
    }
    lower.first += is_down ? TILE_ROWS : 0;
    bool is_fp4 = (is_shared ? job.shared.w1.dtype : job.routed_dtype) == DTYPE_FP4;
    struct lane_rows rows = lane_rows(upper, lower, in, is_fp4);
    int32_t routed = job.rows * job.chosen;
    for (int32_t i = (int32_t)threadIdx.x; i < 8 * COLUMNS; i += BLOCK_THREADS) {
        // Columns behind the count repeat an entry; nothing of theirs is stored.
        int32_t place = item.first + (i < item.count ? i : 0);
        int32_t entry = job.entries[(size_t)item.expert * (size_t)job.rows + (size_t)place];
        entries.entry[i] = entry;
        entries.row[i] = is_down ? entry : is_shared ? entry - routed : entry / job.chosen;
        entries.weight[i] = is_shared ? 1.0F : job.weights[entry];
    }
    __syncthreads();
    const uint16_t *input = is_down ? job.hidden_operands : job.input;
    struct sums<COLUMNS> sums;
    clear_sums(&sums);
    if constexpr (WIDE) {
        auto *stage = (struct wide_stage<COLUMNS, BLOCK_THREADS> *)memory;
        struct wide_job wide = {input, entries.row, item.count, in, slice, is_live};
        if (is_fp4) {
            wide_product<DTYPE_FP4>(&sums, &rows, stage, &wide);
        } else {
            wide_product<DTYPE_FP8>(&sums, &rows, stage, &wide);
        }
    } else if (is_live) {
        const uint16_t *operands[COLUMNS];
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            int32_t i = n * 8 + lane / 4;
            bool used = i < item.count;
            operands[n] = used ? input + (size_t)entries.row[i] * (size_t)in : NULL;
        }
        int32_t columns = (item.count + 7) / 8;
        if (is_fp4) {
            narrow_product<DTYPE_FP4, COLUMNS>(&sums, &rows, operands, columns, in, slice);
        } else {
            narrow_product<DTYPE_FP8, COLUMNS>(&sums, &rows, operands, columns, in, slice);
        }
    }
    auto *shared = (struct product_shared<COLUMNS, WARPS> *)memory;
    exchange_sums(shared, &sums, &entries, is_down, job.limit);
    store_tile(shared, &entries, &job, item.count, is_down);
}

/* A thread adds eight channels of a row. */
__global__ void __launch_bounds__(THREADS)
    experts_combine_kernel(struct mark mark, struct experts_job job) {
    MARK(mark);
    int32_t eights = job.dim / 8;
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (item >= (int64_t)job.rows * eights) {
        return;
    }
    int64_t row = item / eights;
    int64_t channel = item % eights * 8;
    float sum[8] = {0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
    for (int32_t slot = 0; slot <= job.chosen; slot++) {
        int64_t entry = row * job.chosen + slot;
        if (slot == job.chosen) {
            entry = (int64_t)job.rows * job.chosen + row;
        }
        struct eight values = load_eight(job.outputs + entry * job.dim + channel);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] = __fadd_rn(sum[i], values.v[i]);
        }
    }
    *(uint4 *)(job.output + row * job.dim + channel) = make_uint4(
        bf16x2_encode(sum[0], sum[1]),
        bf16x2_encode(sum[2], sum[3]),
        bf16x2_encode(sum[4], sum[5]),
        bf16x2_encode(sum[6], sum[7])
    );
}

/* Gives the next part of scratch; with `base` null only counts. */
static void *carve(uint8_t *base, size_t *used, size_t bytes) {
    void *part = base == NULL ? NULL : base + *used;
    *used += (bytes + 255) / 256 * 256;
    return part;
}

/* Lays the job's scratch out from `base`; its bytes. */
static size_t experts_layout(struct experts_job *job, uint8_t *base) {
    size_t used = 0;
    size_t rows = (size_t)job->rows;
    size_t dim = (size_t)job->dim;
    size_t entries = rows * (size_t)(job->chosen + 1);
    size_t lists = (size_t)job->experts + 1;
    job->narrow_max = narrow_items(job->rows, job->experts, job->chosen);
    job->wide_max = wide_items(job->rows, job->experts, job->chosen);
    size_t narrow = (size_t)job->narrow_max;
    size_t wide = (size_t)job->wide_max;
    job->input = (uint16_t *)carve(base, &used, rows * dim * 2);
    job->hidden_operands = (uint16_t *)carve(base, &used, entries * (size_t)job->hidden * 2);
    job->outputs = (uint16_t *)carve(base, &used, entries * dim * 2);
    job->entries = (int32_t *)carve(base, &used, lists * rows * 4);
    job->entry_counts = (int32_t *)carve(base, &used, lists * 4);
    job->narrow = (struct experts_item *)carve(base, &used, narrow * sizeof *job->narrow);
    job->wide = (struct experts_item *)carve(base, &used, wide * sizeof *job->wide);
    return used;
}

static int32_t slab_rows(int32_t rows) {
    return rows < SLAB_ROWS ? rows : SLAB_ROWS;
}

size_t cuda_experts_scratch(const struct backend_options *limits) {
    if (limits->experts == 0) {
        return 0;
    }
    struct experts_job job = {};
    job.dim = limits->model_dim;
    job.hidden = limits->expert_hidden;
    job.experts = limits->experts;
    job.chosen = limits->experts_chosen;
    job.rows = slab_rows(limits->rows_max);
    size_t bytes = experts_layout(&job, NULL);
    // the most rows that are all narrow have more narrow items than one more
    job.rows = job.rows < NARROW_ROWS ? job.rows : NARROW_ROWS;
    size_t narrow_bytes = experts_layout(&job, NULL);
    return bytes > narrow_bytes ? bytes : narrow_bytes;
}

static unsigned blocks_of(int64_t items, int64_t per_block) {
    return (unsigned)((items + per_block - 1) / per_block);
}

static void launch_product(struct cuda *cuda, const struct experts_job *job, bool is_down) {
    int32_t rows_of_weight = is_down ? job->dim : job->hidden;
    int32_t warp_rows = is_down ? WARP_ROWS : TILE_ROWS;
    auto narrow = experts_product_kernel<NARROW_COLUMNS, NARROW_WARPS, false, 4>;
    dim3 narrow_grid(
        blocks_of(rows_of_weight, NARROW_WARPS * warp_rows), (unsigned)job->narrow_max
    );
    size_t narrow_bytes = sizeof(struct product_shared<NARROW_COLUMNS, NARROW_WARPS>);
    int narrow_threads = NARROW_WARPS * SLICES * WARP;
    CUDA_LAUNCH(
        cuda, CUDA_OP_EXPERTS, narrow, narrow_grid, narrow_threads, narrow_bytes, *job, is_down
    );
    if (job->rows <= NARROW_ROWS) {
        return;
    }
    auto wide = experts_product_kernel<WIDE_COLUMNS, WIDE_WARPS, true, 2>;
    dim3 wide_grid(blocks_of(rows_of_weight, WIDE_WARPS * warp_rows), (unsigned)job->wide_max);
    constexpr int wide_threads = WIDE_WARPS * SLICES * WARP;
    size_t stage = sizeof(struct wide_stage<WIDE_COLUMNS, wide_threads>);
    size_t wide_bytes = sizeof(struct product_shared<WIDE_COLUMNS, WIDE_WARPS>);
    wide_bytes = wide_bytes > stage ? wide_bytes : stage;
    CUDA_ALLOW_SHARED(cuda, CUDA_OP_EXPERTS, wide, wide_bytes);
    CUDA_LAUNCH(cuda, CUDA_OP_EXPERTS, wide, wide_grid, wide_threads, wide_bytes, *job, is_down);
}

static void launch_slab(struct cuda *cuda, const struct experts_job *job) {
    unsigned list_blocks = blocks_of(job->experts + 1, THREADS / WARP);
    unsigned operand_blocks = blocks_of((int64_t)job->rows * (job->dim / 8), THREADS);
    dim3 prepare_grid(list_blocks + operand_blocks);
    CUDA_LAUNCH(
        cuda,
        CUDA_OP_EXPERTS,
        experts_prepare_kernel,
        prepare_grid,
        THREADS,
        0,
        *job,
        (int32_t)list_blocks
    );
    CUDA_LAUNCH(cuda, CUDA_OP_EXPERTS, experts_plan_kernel, dim3(1), PLAN_THREADS, 0, *job);
    launch_product(cuda, job, false);
    launch_product(cuda, job, true);
    dim3 combine_grid(operand_blocks);
    CUDA_LAUNCH(cuda, CUDA_OP_EXPERTS, experts_combine_kernel, combine_grid, THREADS, 0, *job);
}

void cuda_experts(struct backend *backend, const struct experts_op *op) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(op->routed_dtype == DTYPE_FP4 || op->routed_dtype == DTYPE_FP8);
    ASSERT(op->shared->w1.dtype == DTYPE_FP4 || op->shared->w1.dtype == DTYPE_FP8);
    ASSERT(op->shared->w2.dtype == op->shared->w1.dtype);
    ASSERT(op->shared->w3.dtype == op->shared->w1.dtype);
    for (int32_t row = 0; row < op->rows; row += SLAB_ROWS) {
        struct experts_job job = {};
        size_t at = (size_t)row;
        job.rows = slab_rows(op->rows - row);
        job.dim = op->dim;
        job.hidden = op->hidden;
        job.experts = op->experts;
        job.chosen = op->chosen;
        job.limit = op->limit;
        job.routed_dtype = op->routed_dtype;
        job.x.codes = op->x.codes + at * (size_t)op->dim;
        job.x.scales = op->x.scales + at * (size_t)(op->dim / 32);
        job.ids = op->ids + at * (size_t)op->chosen;
        job.weights = op->weights + at * (size_t)op->chosen;
        job.routed = op->routed;
        job.shared = *op->shared;
        job.output = op->output + at * (size_t)op->dim;
        size_t bytes = experts_layout(&job, (uint8_t *)cuda->scratch);
        ASSERT(bytes <= cuda->scratch_bytes);
        ASSERT(
            job.narrow_max <= 65535 && job.wide_max <= 65535
        ); // of a grid, and of the plan's sums
        launch_slab(cuda, &job);
    }
}
