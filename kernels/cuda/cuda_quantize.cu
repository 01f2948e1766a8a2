/* Quantisers: activations to FP8, window records, main KV and index entries, index queries.
 *
 * Bound: bandwidth, closely followed by the instructions of the encoding. A row of d channels is 2 d
 * bytes read and about d (FP8) or d / 2 (FP4) written. A thread takes eight channels with one
 * 16-byte load; a group of 32 is four neighbouring lanes, one of 16 two, so the largest magnitude
 * needs two shuffles or one. Every element depends on its own group only: the bits cannot depend on
 * how many rows share a launch.
 */
#include "cuda_rows.cuh"

__device__ __forceinline__ float largest_of_lanes(float largest, int lanes) {
    for (int step = 1; step < lanes; step *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, step));
    }
    return largest;
}

/* Records may start at any byte (d of 64 gives 66-byte window records). */
__device__ __forceinline__ void store_bytes(uint8_t *to, uint64_t bytes, int count) {
    if (((uintptr_t)to & 7U) == 0 && count == 8) {
        *reinterpret_cast<uint64_t *>(to) = bytes;
    } else if (((uintptr_t)to & 3U) == 0 && count == 4) {
        *reinterpret_cast<uint32_t *>(to) = (uint32_t)bytes;
    } else {
        for (int i = 0; i < count; i++) {
            to[i] = (uint8_t)(bytes >> (8 * i));
        }
    }
}

/* Row x; codes of row r at codes + r * code_stride, its scales at scales + r * scale_stride. All
 * lanes stay for the shuffles: a group is never split, as a row's items are a multiple of four. */
__global__ void quantize_fp8_kernel(
    struct mark mark,
    const uint16_t *x,
    int32_t dim,
    uint8_t *codes,
    size_t code_stride,
    uint8_t *scales,
    size_t scale_stride
) {
    MARK(mark);
    size_t row = blockIdx.x;
    int32_t item = (int32_t)(blockIdx.y * blockDim.x + threadIdx.x);
    bool live = item < dim / 8;
    struct eight values = load_eight(x + row * (size_t)dim + 8 * (live ? item : 0));
    uint8_t scale = fp8_group_scale(largest_of_lanes(largest_of(&values), 4));
    if (live) {
        store_bytes(codes + row * code_stride + 8 * item, encode_fp8(&values, scale), 8);
        if (item % 4 == 0) {
            scales[row * scale_stride + item / 4] = scale;
        }
    }
}

static void launch_fp8(
    struct cuda *cuda,
    enum cuda_op op,
    int32_t rows,
    int32_t dim,
    const uint16_t *x,
    struct quantized y,
    size_t record_bytes /* from one row of codes or scales to the next; 0: they are dense */
) {
    unsigned parts;
    unsigned threads = part_threads(dim / 8, &parts);
    size_t code_stride = record_bytes == 0 ? (size_t)dim : record_bytes;
    size_t scale_stride = record_bytes == 0 ? (size_t)dim / 32 : record_bytes;
    if (rows > 0) {
        dim3 grid((unsigned)rows, parts);
        CUDA_LAUNCH(
            cuda,
            op,
            quantize_fp8_kernel,
            grid,
            threads,
            0,
            x,
            dim,
            y.codes,
            code_stride,
            y.scales,
            scale_stride
        );
    }
}

void cuda_quantize(struct backend *backend, const struct quantize_op *op) {
    launch_fp8(cuda_of(backend), CUDA_OP_QUANTIZE, op->rows, op->dim, op->x, op->y, 0);
}

void cuda_window_pack(struct backend *backend, const struct window_pack_op *op) {
    struct quantized y = {op->records, op->records + op->dim};
    size_t record_bytes = window_record_bytes(op->dim);
    launch_fp8(cuda_of(backend), CUDA_OP_WINDOW_PACK, op->rows, op->dim, op->x, y, record_bytes);
}

/* MXFP4 of `dim` channels by the whole block, from item `first` on in its steps. */
__device__ __forceinline__ void
store_mxfp4(const uint16_t *x, int32_t dim, uint8_t *codes, uint8_t *scales, int32_t first) {
    int32_t item = first + (int32_t)threadIdx.x;
    bool live = item < dim / 8;
    struct eight values = load_eight(x + 8 * (live ? item : 0));
    uint8_t scale = mxfp4_group_scale(largest_of_lanes(largest_of(&values), 4));
    if (live) {
        store_bytes(codes + 4 * item, encode_mxfp4(&values, scale), 4);
        if (item % 4 == 0) {
            scales[item / 4] = scale;
        }
    }
}

__global__ void index_quantize_kernel(struct mark mark, struct index_quantize_op op) {
    MARK(mark);
    int32_t width = op.heads * op.dim;
    size_t at = (size_t)blockIdx.x * (size_t)width;
    int32_t first = (int32_t)(blockIdx.y * blockDim.x);
    store_mxfp4(op.x + at, width, op.codes + at / 2, op.scales + at / 32, first);
}

void cuda_index_quantize(struct backend *backend, const struct index_quantize_op *op) {
    struct cuda *cuda = cuda_of(backend);
    unsigned parts;
    unsigned threads = part_threads(op->heads * op->dim / 8, &parts);
    if (op->rows > 0) {
        dim3 grid((unsigned)op->rows, parts);
        CUDA_LAUNCH(cuda, CUDA_OP_INDEX_QUANTIZE, index_quantize_kernel, grid, threads, 0, *op);
    }
}

/* ---- entries of the caches ---- */

#define STORE_THREADS_MAX 256

/* Where an entry's two records go: main KV as FP4 with E4M3 scales per 16, d/2 bytes of codes, then d/16 of
 * scales; the index key. */
struct entry_places {
    uint8_t *main, *index_codes, *index_scales;
};

/* Item i of a row: eight channels of the latent, behind those eight of the key. Both have a multiple of four
 * items: lanes that share a scale are of one kind. All lanes of a warp call it. */
__device__ __forceinline__ void store_item(
    const struct entry_store_op *op, struct entry_places to, struct eight values, int32_t item
) {
    int32_t mains = op->dim / 8;
    float largest = largest_of_lanes(largest_of(&values), 2);
    float of_four = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
    if (item < mains) {
        uint8_t scale = main_group_scale(largest);
        store_bytes(to.main + 4 * item, encode_main(&values, scale), 4);
        if (item % 2 == 0) {
            to.main[op->dim / 2 + item / 2] = scale;
        }
    } else if (item < mains + op->index_dim / 8) {
        item -= mains;
        uint8_t scale = mxfp4_group_scale(of_four);
        store_bytes(to.index_codes + 4 * item, encode_mxfp4(&values, scale), 4);
        if (item % 4 == 0) {
            to.index_scales[item / 4] = scale;
        }
    }
}

__device__ __forceinline__ struct eight
load_item(const struct entry_store_op *op, int32_t row, int32_t item) {
    int32_t mains = op->dim / 8;
    int32_t key = min(item - mains, op->index_dim / 8 - 1); // behind the last one: anything
    const uint16_t *from = item < mains ? op->latent + (size_t)row * (size_t)op->dim + 8 * item
                                        : op->key + (size_t)row * (size_t)op->index_dim + 8 * key;
    return load_eight(from);
}

/* A block per row; rows of no segment, those that complete no entry and those below the write floor
 * have nothing to do. What follows from the row's number alone is on its way at once. */
__global__ void __launch_bounds__(STORE_THREADS_MAX)
    entry_store_kernel(struct mark mark, struct entry_store_op op) {
    MARK(mark);
    int32_t row = (int32_t)blockIdx.x;
    struct eight values = load_item(&op, row, (int32_t)threadIdx.x);
    int32_t guess = min(row, op.segments.count - 1); // right when sequences decode
    uint8_t *const *blocks = op.views[guess].blocks;
    int32_t write_floor = op.views[guess].write_floor;
    int32_t s = segment_of(op.segments.device, op.segments.count, row);
    if (s < 0) {
        return;
    }
    if (s != guess) {
        blocks = op.views[s].blocks;
        write_floor = op.views[s].write_floor;
    }
    const struct row_segment *segment = &op.segments.device[s];
    const struct kv_source_layout *source = &op.source;
    int32_t position = segment->position + row - segment->row;
    if ((position + 1) % source->ratio != 0 || position < write_floor) {
        return;
    }
    int32_t entry = position / source->ratio;
    size_t at = (size_t)(entry % source->entries);
    uint8_t *block = blocks[entry / source->entries];
    struct entry_places to = {
        block + source->main_offset + at * source->main_record_bytes,
        block + source->index_code_offset + at * (size_t)(op.index_dim / 2),
        block + source->index_scale_offset + at * (size_t)(op.index_dim / 32)};
    int32_t items = (op.dim + op.index_dim) / 8;
    for (int32_t first = 0; first < items; first += (int32_t)blockDim.x) {
        int32_t item = first + (int32_t)threadIdx.x;
        if (first > 0) {
            values = load_item(&op, row, item);
        }
        store_item(&op, to, values, item);
    }
}

void cuda_entry_store(struct backend *backend, const struct entry_store_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->segments.rows > 0) {
        unsigned rows = (unsigned)op->segments.rows;
        unsigned all = row_threads((op->dim + op->index_dim) / 8);
        unsigned threads = all < STORE_THREADS_MAX ? all : STORE_THREADS_MAX;
        CUDA_LAUNCH(cuda, CUDA_OP_ENTRY_STORE, entry_store_kernel, rows, threads, 0, *op);
    }
}
