/* What moves between steps: fresh records into rings, pooled pairs of latents, rows that later
 * layers keep. Bound: bandwidth.
 */
#include "cuda_device.cuh"
#include "cuda_formats.cuh"

#include "base/result.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)

/* Copies bytes in the widest steps that both addresses allow; `thread` of `threads`. */
__device__ __forceinline__ void
copy_bytes(uint8_t *to, const uint8_t *from, size_t bytes, uint32_t thread, uint32_t threads) {
    uintptr_t together = (uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes;
    if (together % 16 == 0) {
        for (size_t i = thread; i < bytes / 16; i += threads) {
            ((uint4 *)to)[i] = ((const uint4 *)from)[i];
        }
    } else if (together % 4 == 0) {
        for (size_t i = thread; i < bytes / 4; i += threads) {
            ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
        }
    } else {
        for (size_t i = thread; i < bytes; i += threads) {
            to[i] = from[i];
        }
    }
}

/* ---- rings ---- */

/* A warp per record; block x has segment x, block y some of its last min(W, count) rows. */
__global__ void __launch_bounds__(THREADS)
    commit_kernel(struct mark mark, struct window_commit_op op, size_t record_bytes) {
    MARK(mark);
    const struct row_segment *segment = &op.segments.device[blockIdx.x];
    int32_t i = (int32_t)(blockIdx.y * WARPS + threadIdx.x / WARP);
    i += max(0, segment->count - op.window);
    if (i >= segment->count) {
        return;
    }
    size_t slot = (size_t)((segment->position + i) % op.window);
    const uint8_t *from = op.records + (size_t)(segment->row + i) * record_bytes;
    uint8_t *to = op.views[blockIdx.x].ring + slot * record_bytes;
    copy_bytes(to, from, record_bytes, threadIdx.x % WARP, WARP);
}

void cuda_window_commit(struct backend *backend, const struct window_commit_op *op) {
    struct cuda *cuda = cuda_of(backend);
    int32_t most = 0; // 1 in every step that is recorded
    for (int32_t s = 0; s < op->segments.count; s++) {
        int32_t count = op->segments.host[s].count;
        most = count > most ? count : most;
    }
    most = most < op->window ? most : op->window;
    if (most == 0) {
        return;
    }
    dim3 grid((unsigned)op->segments.count, (unsigned)((most + WARPS - 1) / WARPS));
    size_t bytes = window_record_bytes(op->dim);
    CUDA_LAUNCH(cuda, CUDA_OP_WINDOW_COMMIT, commit_kernel, grid, THREADS, 0, *op, bytes);
}

/* ---- pairs of latents ---- */

/* Softmax over the two scores, times the two values (spec 3.6). */
__device__ __forceinline__ uint16_t pool_pair(float kv0, float score0, float kv1, float score1) {
    float largest = fmaxf(score0, score1);
    float e0 = expf(__fsub_rn(score0, largest));
    float e1 = expf(__fsub_rn(score1, largest));
    float sum = __fadd_rn(e0, e1);
    float first = __fmul_rn(__fdiv_rn(e0, sum), kv0);
    float second = __fmul_rn(__fdiv_rn(e1, sum), kv1);
    return bf16_encode(__fadd_rn(first, second));
}

#define POOL_THREADS_MAX 512 /* a channel each at the release's width */

/* A block per row. The first row of a segment is the one that may read the pending pair, so its
 * block writes the new one too: each thread reads and then writes its own channels. A row on its way takes
 * as long as its round trips to memory: all that follows from its number comes in the first. */
__global__ void __launch_bounds__(POOL_THREADS_MAX)
    pool_kernel(struct mark mark, struct compress_pool_op op) {
    MARK(mark);
    int32_t row = (int32_t)blockIdx.x;
    size_t dim = (size_t)op.dim;
    const float *kv = op.kv + (size_t)row * dim;
    const float *score = op.score + (size_t)row * dim;
    size_t first = min((size_t)threadIdx.x, dim - 1);
    float own_kv = kv[first];
    float own_score = score[first];
    int32_t guess = min(row, op.segments.count - 1); // right when sequences decode
    float *pending = op.views[guess].pending;
    int32_t s = segment_of(op.segments.device, op.segments.count, row);
    if (s < 0) {
        return;
    }
    if (s != guess) {
        pending = op.views[s].pending;
    }
    const struct row_segment *segment = &op.segments.device[s];
    bool is_first = row == segment->row;
    bool is_odd = (segment->position + row - segment->row) % 2 != 0;
    int32_t last = segment->row + segment->count - 1;
    bool leaves_pending = is_first && (segment->position + segment->count - 1) % 2 == 0;
    for (size_t i = threadIdx.x; i < dim; i += blockDim.x) {
        if (i != threadIdx.x) {
            own_kv = kv[i];
            own_score = score[i];
        }
        uint16_t latent = 0;
        if (is_odd) {
            float before_kv = is_first ? pending[i] : (kv - dim)[i];
            float before_score = is_first ? pending[dim + i] : (score - dim)[i];
            latent = pool_pair(before_kv, before_score, own_kv, own_score);
        }
        op.latent[(size_t)row * dim + i] = latent;
        if (leaves_pending) {
            pending[i] = last == row ? own_kv : op.kv[(size_t)last * dim + i];
            pending[dim + i] = last == row ? own_score : op.score[(size_t)last * dim + i];
        }
    }
}

void cuda_compress_pool(struct backend *backend, const struct compress_pool_op *op) {
    struct cuda *cuda = cuda_of(backend);
    int32_t rows = op->segments.rows;
    int32_t whole = (op->dim + WARP - 1) / WARP * WARP;
    unsigned threads = (unsigned)(whole < POOL_THREADS_MAX ? whole : POOL_THREADS_MAX);
    if (rows > 0) {
        CUDA_LAUNCH(cuda, CUDA_OP_COMPRESS_POOL, pool_kernel, (unsigned)rows, threads, 0, *op);
    }
}

/* ---- rows that stay ---- */

/* Destination rows [first, first + grid) of the op, one per block: gathered into the slab, or put
 * where they belong. A row that lies there already is left alone both times. */
__global__ void __launch_bounds__(THREADS) keep_kernel(
    struct mark mark, struct keep_rows_op op, uint8_t *slab, int32_t first, bool gathers
) {
    MARK(mark);
    int32_t row = first + (int32_t)blockIdx.x;
    int32_t s = segment_of(op.to.device, op.to.count, row);
    if (s < 0) {
        return;
    }
    const struct row_segment *from = &op.from.device[s];
    const struct row_segment *to = &op.to.device[s];
    int32_t source = from->row + from->count - to->count + row - to->row;
    if (source == row) {
        return;
    }
    uint8_t *rows = (uint8_t *)op.rows;
    uint8_t *place = slab + (size_t)blockIdx.x * op.row_bytes;
    if (gathers) {
        copy_bytes(place, rows + (size_t)source * op.row_bytes, op.row_bytes, threadIdx.x, THREADS);
    } else {
        copy_bytes(rows + (size_t)row * op.row_bytes, place, op.row_bytes, threadIdx.x, THREADS);
    }
}

/* Rows move to lower places in ascending order, so a slab never lands on what a later one reads;
 * within a slab the way over scratch keeps blocks apart. Slabs stay in the second-level cache. */
#define SLAB_BYTES ((size_t)16 << 20)

void cuda_keep_rows(struct backend *backend, const struct keep_rows_op *op) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(op->row_bytes <= cuda->scratch_bytes);
    size_t slab_bytes = cuda->scratch_bytes < SLAB_BYTES ? cuda->scratch_bytes : SLAB_BYTES;
    size_t fit = slab_bytes > op->row_bytes ? slab_bytes / op->row_bytes : 1;
    int32_t rows = op->to.rows;
    int32_t step = fit < (size_t)rows ? (int32_t)fit : rows;
    uint8_t *slab = (uint8_t *)cuda->scratch;
    for (int32_t first = 0; first < rows; first += step) {
        unsigned count = (unsigned)(rows - first < step ? rows - first : step);
        for (int32_t pass = 0; pass < 2; pass++) {
            bool gathers = pass == 0;
            CUDA_LAUNCH(
                cuda, CUDA_OP_KEEP_ROWS, keep_kernel, count, THREADS, 0, *op, slab, first, gathers
            );
        }
    }
}

/* For keep_rows alone: one row of any kind must fit, many should. */
size_t cuda_attention_scratch(const struct backend_options *limits) {
    size_t row = (size_t)limits->dim_max * sizeof(float);
    size_t all = row * (size_t)limits->rows_max;
    size_t wanted = all < SLAB_BYTES ? all : SLAB_BYTES;
    return wanted > row ? wanted : row;
}
