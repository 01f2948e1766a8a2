/* The index_select op: what each row sees, scores, candidate pools, top-K (spec 3.7, 3.8).
 *
 * Rows that see at most K entries take all of them without scores. The pool of a row is a top-K of
 * its own, over the largest score of each block of entries; both selections of a slab run at once.
 */
#include "cuda_index.cuh"

#define THREADS   256
#define TILE_ROWS 8 /* rows of one sequence that share decoded keys */
#define ALIGNMENT ((size_t)256)
#ifndef CUDA_EMULATION
#define PLAN_THREADS 1024
#define SLAB_BYTES   ((size_t)320 << 20) /* 64 rows of 2^20 entries with their pools */
#define SEGMENTS_MAX 1024                /* that the plan's block keeps */
#else
#define PLAN_THREADS 32 /* fewer than the rows of its checks, and those go slab by slab */
#define SLAB_BYTES   ((size_t)512 << 10)
#define SEGMENTS_MAX 2
#endif

/* What is known of a row before any score. `segments`: the op's, wherever they are near. */
__device__ struct index_row
row_of(const struct index_select_op *op, const struct row_segment *segments, int32_t row) {
    struct index_row at = {-1, 0, 0, false};
    at.segment = segment_of(segments, op->segments.count, row);
    if (at.segment < 0) {
        return at;
    }
    const struct row_segment *segment = &segments[at.segment];
    at.visible = (segment->position + (row - segment->row) + 1) / op->source.ratio;
    at.candidates = at.visible;
    int32_t size = op->pool_block_entries;
    if (op->mode == INDEX_WITHIN_POOL) {
        // Blocks ascend, so that only the last one may reach beyond what is visible.
        const int32_t *pool = op->pool + (size_t)row * (size_t)op->pool_blocks;
        int32_t blocks = op->pool_count[row];
        while (blocks > 0 && pool[blocks - 1] * size >= at.visible) {
            blocks--;
        }
        at.candidates =
            blocks == 0 ? 0
                        : (blocks - 1) * size + least(size, at.visible - pool[blocks - 1] * size);
    }
    bool competes =
        op->mode == INDEX_FULL_PUBLISH && (at.visible + size - 1) / size > op->pool_blocks;
    at.scored = op->scores != NULL || at.candidates > op->topk || competes;
    return at;
}

/* Steps of the tile that begins with the row; 0 when none does, or no row of it is scored. */
__device__ int32_t steps_of(
    const struct index_select_op *op,
    const struct index_plan *plan,
    const struct row_segment *segments,
    const struct index_row at,
    int32_t row
) {
    if (at.segment < 0) {
        return 0;
    }
    const struct row_segment segment = segments[at.segment];
    int32_t start = segment.row < plan->first ? plan->first : segment.row;
    int32_t end = least(segment.row + segment.count, plan->first + plan->rows);
    if ((row - start) % plan->tile_rows != 0) {
        return 0;
    }
    // Later rows see no fewer entries.
    int32_t last = least(row + plan->tile_rows, end) - 1;
    const struct index_row most = last == row ? at : row_of(op, segments, last);
    return most.scored ? (most.candidates + INDEX_STEP - 1) / INDEX_STEP : 0;
}

__device__ struct topk_job entries_job(
    const struct index_select_op *op,
    const struct index_plan *plan,
    const struct index_row *at,
    int32_t row
) {
    size_t slot = (size_t)(row - plan->first);
    struct topk_job job;
    job.scores = plan->scores + slot * (size_t)plan->stride;
    job.chosen = plan->chosen + slot * (size_t)plan->stride / 32;
    job.count = at->segment < 0 ? -1 : at->candidates;
    job.wanted = op->topk;
    job.ids = op->selected + (size_t)row * (size_t)op->topk;
    job.ids_count = op->selected_count + row;
    job.pool = NULL;
    job.pool_block_entries = op->pool_block_entries;
    if (op->mode == INDEX_WITHIN_POOL) {
        job.pool = op->pool + (size_t)row * (size_t)op->pool_blocks;
    }
    return job;
}

__device__ struct topk_job pool_job(
    const struct index_select_op *op,
    const struct index_plan *plan,
    const struct index_row *at,
    int32_t row
) {
    size_t slot = (size_t)(row - plan->first);
    int32_t size = op->pool_block_entries;
    struct topk_job job;
    job.scores = plan->block_scores + slot * (size_t)plan->block_stride;
    job.chosen = plan->blocks_chosen + slot * (size_t)plan->block_stride / 32;
    job.count = at->segment < 0 ? -1 : (at->visible + size - 1) / size;
    job.wanted = op->pool_blocks;
    job.ids = op->pool + (size_t)row * (size_t)op->pool_blocks;
    job.ids_count = op->pool_count + row;
    job.pool = NULL;
    job.pool_block_entries = 0;
    return job;
}

/* Adds what the threads of a block counted, first within each warp. */
__device__ void add_counters(
    struct index_counters *counters,
    unsigned long long scored,
    unsigned long long largest,
    int32_t runs
) {
    for (int32_t step = WARP / 2; step > 0; step /= 2) {
        unsigned long long other = __shfl_xor_sync(0xffffffffU, largest, step);
        scored += __shfl_xor_sync(0xffffffffU, scored, step);
        runs += __shfl_xor_sync(0xffffffffU, runs, step);
        largest = other > largest ? other : largest;
    }
    if (threadIdx.x % WARP != 0) {
        return;
    }
    // Integers: their order does not matter. uint64_t is another type of the same size.
    if (scored != 0) {
        atomicAdd((unsigned long long *)&counters->entries_scored, scored);
        atomicMax((unsigned long long *)&counters->entries_scored_max, largest);
    }
    if (runs != 0) {
        atomicAdd((unsigned long long *)&counters->topk_runs, (unsigned long long)runs);
    }
}

/* One block: rows, steps and jobs of the slab. */
__global__ void __launch_bounds__(PLAN_THREADS, 1)
    index_plan_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    __shared__ struct row_segment kept[SEGMENTS_MAX];
    const struct row_segment *segments = op.segments.device;
    int32_t thread = (int32_t)threadIdx.x;
    if (op.segments.count <= SEGMENTS_MAX) { // looking for one takes several of them in turn
        for (int32_t i = thread; i < op.segments.count; i += PLAN_THREADS) {
            kept[i] = segments[i];
        }
        segments = kept;
        __syncthreads();
    }
    int32_t steps_before = 0;
    int32_t units_before = 0;
    int32_t per_row = plan.topk.jobs / plan.rows;
    unsigned long long scored = 0;
    unsigned long long largest = 0;
    int32_t runs = 0;
    for (int32_t base = 0; base < plan.rows; base += PLAN_THREADS) {
        int32_t slot = base + thread;
        int32_t row = plan.first + slot;
        int32_t steps = 0;
        int32_t units[2] = {0, 0};
        if (slot < plan.rows) {
            struct index_row at = row_of(&op, segments, row);
            plan.row[slot] = at;
            steps = steps_of(&op, &plan, segments, at, row);
            struct topk_job job = entries_job(&op, &plan, &at, row);
            plan.topk.job[slot * per_row] = job;
            units[0] = topk_units(job.count, job.wanted);
            if (per_row == 2) {
                job = pool_job(&op, &plan, &at, row);
                plan.topk.job[slot * 2 + 1] = job;
                units[1] = topk_units(job.count, job.wanted);
            }
            unsigned long long own = at.scored ? (unsigned long long)at.candidates : 0;
            scored += own;
            largest = own > largest ? own : largest;
            runs += at.candidates > op.topk ? 1 : 0;
        }
        int32_t all_steps = 0;
        int32_t all_units = 0;
        int32_t step = steps_before + sum_before(steps, &all_steps);
        int32_t unit = units_before + sum_before(units[0] + units[1], &all_units);
        if (slot < plan.rows) {
            plan.step_first[slot] = step;
            plan.topk.unit_first[slot * per_row] = unit;
            if (per_row == 2) {
                plan.topk.unit_first[slot * 2 + 1] = unit + units[0];
            }
        }
        steps_before += all_steps;
        units_before += all_units;
    }
    if (thread == 0) {
        plan.step_first[plan.rows] = steps_before;
        plan.topk.unit_first[plan.topk.jobs] = units_before;
    }
    if (op.counters != NULL) {
        add_counters(op.counters, scored, largest, runs);
    }
}

/* The largest score of each block of entries of the rows whose pools need them; infinite for the
 * newest block, which is always kept. Grid: [rows, parts of a row]. */
__global__ void __launch_bounds__(THREADS)
    index_block_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    const struct topk_job job = plan.topk.job[2 * blockIdx.x + 1];
    if (job.count <= job.wanted) {
        return;
    }
    int32_t visible = plan.row[blockIdx.x].visible;
    int32_t size = op.pool_block_entries;
    const float *scores = plan.scores + (size_t)blockIdx.x * (size_t)plan.stride;
    float *to = plan.block_scores + (size_t)blockIdx.x * (size_t)plan.block_stride;
    int32_t stride = (int32_t)gridDim.y * THREADS;
    for (int32_t b = (int32_t)(blockIdx.y * THREADS + threadIdx.x); b < job.count; b += stride) {
        float best = -INFINITY;
        int32_t last = least(visible, (b + 1) * size);
        int32_t g = b * size;
        for (; size % 4 == 0 && g + 4 <= last; g += 4) {
            float4 four = *reinterpret_cast<const float4 *>(scores + g);
            best = fmaxf(fmaxf(best, fmaxf(four.x, four.y)), fmaxf(four.z, four.w));
        }
        for (; g < last; g++) {
            best = fmaxf(best, scores[g]);
        }
        to[b] = b == job.count - 1 ? INFINITY : best;
    }
}

/* Hands the scores out when a test asks. A block per row. */
__global__ void __launch_bounds__(THREADS)
    index_export_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    const struct index_row at = plan.row[blockIdx.x];
    if (at.segment < 0) {
        return;
    }
    int32_t row = plan.first + (int32_t)blockIdx.x;
    const float *scores = plan.scores + (size_t)blockIdx.x * (size_t)plan.stride;
    float *to = op.scores + (size_t)row * (size_t)op.scores_stride;
    for (int32_t i = (int32_t)threadIdx.x; i < op.scores_stride; i += THREADS) {
        to[i] = -INFINITY;
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < at.candidates; i += THREADS) {
        to[index_entry(&op, row, i)] = scores[i];
    }
}

static int32_t round_up_32(int32_t count) {
    return (count + 31) / 32 * 32;
}

static size_t take(size_t *at, size_t bytes) {
    size_t start = *at;
    *at += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

/* Lays the slab of plan->rows rows and plan->topk.jobs jobs out from `base`; returns its bytes. */
static size_t lay_out(struct index_plan *plan, uint8_t *base) {
    size_t rows = (size_t)plan->rows;
    size_t jobs = (size_t)plan->topk.jobs;
    size_t pools = jobs - rows; // 0 or rows
    size_t shared = plan->topk.shares ? jobs : 0;
    size_t scores = rows * (size_t)plan->stride;
    size_t blocks = pools * (size_t)plan->block_stride;
    size_t at = 0;
    plan->scores = (float *)(base + take(&at, scores * sizeof(float)));
    plan->chosen = (uint32_t *)(base + take(&at, scores / 8));
    plan->block_scores = (float *)(base + take(&at, blocks * sizeof(float)));
    plan->blocks_chosen = (uint32_t *)(base + take(&at, blocks / 8));
    plan->topk.lists = (uint64_t *)(base + take(&at, shared * TOPK_LIST * sizeof(uint64_t)));
    plan->topk.states = (struct topk_state *)(base + take(&at, shared * sizeof(struct topk_state)));
    plan->topk.job = (struct topk_job *)(base + take(&at, jobs * sizeof(struct topk_job)));
    plan->topk.unit_first = (int32_t *)(base + take(&at, (jobs + 1) * sizeof(int32_t)));
    plan->row = (struct index_row *)(base + take(&at, rows * sizeof(struct index_row)));
    plan->step_first = (int32_t *)(base + take(&at, (rows + 1) * sizeof(int32_t)));
    return at;
}

/* Bytes of a slab of one row. */
static size_t row_bytes(int32_t candidates, int32_t blocks, bool shares) {
    struct index_plan plan = {};
    plan.rows = 1;
    plan.topk.jobs = blocks == 0 ? 1 : 2;
    plan.topk.shares = shares;
    plan.stride = round_up_32(candidates);
    plan.block_stride = round_up_32(blocks);
    return lay_out(&plan, NULL);
}

size_t cuda_index_scratch(const struct backend_options *limits) {
    if (limits->index_heads == 0) {
        return 0;
    }
    int32_t entries = limits->context_max;
    bool shares = entries > TOPK_SHARED;
    size_t one = row_bytes(entries, entries, shares); // blocks of one entry: the worst pool
    size_t all = (size_t)limits->rows_max * row_bytes(entries, (entries + 7) / 8, shares);
    size_t slab = all < SLAB_BYTES ? all : SLAB_BYTES;
    return slab > one ? slab : one;
}

/* Bounds of any row's candidates and blocks. Of one row per sequence only the limits are known, as
 * the step may be recorded; in longer runs the rows at hand tell. */
static void find_bounds(
    struct index_plan *plan, const struct backend_options *limits, const struct index_select_op *op
) {
    int32_t longest = 0;
    int32_t end = 0;
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *segment = &op->segments.host[s];
        longest = segment->count > longest ? segment->count : longest;
        if (segment->count > 0 && segment->position + segment->count > end) {
            end = segment->position + segment->count;
        }
    }
    int32_t entries = (longest <= 1 ? limits->context_max : end) / op->source.ratio;
    plan->candidates_max = entries;
    plan->tile_rows = longest < 1 ? 1 : longest < TILE_ROWS ? longest : TILE_ROWS;
    int64_t size = op->pool_block_entries;
    if (op->mode == INDEX_FULL_PUBLISH) {
        plan->blocks_max = (int32_t)((entries + size - 1) / size);
    } else if (op->mode == INDEX_WITHIN_POOL) {
        int64_t members = size * op->pool_blocks;
        plan->candidates_max = members < entries ? (int32_t)members : entries;
        plan->tile_rows = 1; // every row has a pool of its own
    }
}

static void
select_slab(struct cuda *cuda, const struct index_select_op *op, const struct index_plan *plan) {
    unsigned rows = (unsigned)plan->rows;
    CUDA_LAUNCH(cuda, CUDA_OP_INDEX_SELECT, index_plan_kernel, 1, PLAN_THREADS, 0, *op, *plan);
    if (plan->candidates_max > 0) {
        cuda_index_scores(cuda, op, plan);
    }
    if (op->scores != NULL) {
        CUDA_LAUNCH(cuda, CUDA_OP_INDEX_SELECT, index_export_kernel, rows, THREADS, 0, *op, *plan);
    }
    if (plan->blocks_max > op->pool_blocks) {
        unsigned whole = (unsigned)((plan->blocks_max + THREADS - 1) / THREADS);
        unsigned parts = (unsigned)(4 * cuda->multiprocessors) / rows + 1;
        dim3 grid(rows, parts < whole ? parts : whole);
        CUDA_LAUNCH(cuda, CUDA_OP_INDEX_SELECT, index_block_kernel, grid, THREADS, 0, *op, *plan);
    }
    cuda_topk(cuda, CUDA_OP_INDEX_SELECT, &plan->topk, plan->candidates_max);
}

void cuda_index_select(struct backend *backend, const struct index_select_op *op) {
    struct cuda *cuda = cuda_of(backend);
    struct index_plan plan = {};
    int32_t rows = op->segments.rows;
    if (rows == 0) {
        return;
    }
    find_bounds(&plan, &cuda->limits, op);
    plan.tile_rows = cuda_index_tile(cuda, op, plan.tile_rows);
    plan.stride = round_up_32(plan.candidates_max);
    plan.block_stride = round_up_32(plan.blocks_max);
    int32_t per_row = op->mode == INDEX_FULL_PUBLISH ? 2 : 1;
    plan.topk.shares = plan.candidates_max > TOPK_SHARED && rows <= TOPK_SHARED_MAX;
    size_t one = row_bytes(plan.candidates_max, plan.blocks_max, plan.topk.shares);
    size_t room = cuda->scratch_bytes < SLAB_BYTES ? cuda->scratch_bytes : SLAB_BYTES;
    int32_t slab = (int32_t)(room / one < (size_t)rows ? room / one : (size_t)rows);
    slab = slab < 1 ? 1 : slab; // the scratch is never smaller than one row's
    for (plan.first = 0; plan.first < rows; plan.first += slab) {
        plan.rows = rows - plan.first < slab ? rows - plan.first : slab;
        plan.topk.jobs = plan.rows * per_row;
        lay_out(&plan, (uint8_t *)cuda->scratch);
        select_slab(cuda, op, &plan);
    }
}
