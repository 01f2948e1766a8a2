/* Quantisers: activations to FP8, window records, main KV and index entries, index queries.
 *
 * Bound: bandwidth. A row of d channels is 2 d bytes read and about d (FP8) or d / 2 (FP4) written.
 * A thread takes eight channels with one 16-byte load; a group of 32 is four neighbouring lanes, one
 * of 16 two, so the largest magnitude needs two shuffles or one. Every element depends on its own
 * group only: the bits cannot depend on how many rows share a launch.
 */
#include "cuda_formats.cuh"
#include "cuda_ops.h"

#define THREADS    256
#define BLOCKS_MAX 8192 /* grid-stride beyond; enough to fill any device */

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

/* All lanes of a warp run the same number of turns, so that the shuffles are complete. */
__device__ __forceinline__ int64_t turns(int64_t items) {
    int64_t stride = (int64_t)gridDim.x * THREADS;
    return (items + stride - 1) / stride;
}

/* Codes of row r at codes + r * code_stride, its scales at scales + r * scale_stride. */
__global__ void __launch_bounds__(THREADS) quantize_fp8_kernel(
    const uint16_t *x,
    int64_t items, /* rows * dim / 8 */
    int32_t dim,
    uint8_t *codes,
    int64_t code_stride,
    uint8_t *scales,
    int64_t scale_stride
) {
    int32_t per_row = dim / 8;
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t turn = turns(items); turn > 0; turn--) {
        bool live = item < items;
        struct eight values = load_eight(x + 8 * (live ? item : 0));
        uint8_t scale = fp8_group_scale(largest_of_lanes(largest_of(&values), 4));
        if (live) {
            int64_t row = item / per_row;
            int32_t at = (int32_t)(item % per_row);
            uint64_t packed = encode_fp8(&values, scale);
            store_bytes(codes + row * code_stride + 8 * at, packed, 8);
            if (at % 4 == 0) {
                scales[row * scale_stride + at / 4] = scale;
            }
        }
        item += (int64_t)gridDim.x * THREADS;
    }
}

__global__ void __launch_bounds__(THREADS)
    quantize_mxfp4_kernel(const uint16_t *x, int64_t items, uint8_t *codes, uint8_t *scales) {
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t turn = turns(items); turn > 0; turn--) {
        bool live = item < items;
        struct eight values = load_eight(x + 8 * (live ? item : 0));
        uint8_t scale = mxfp4_group_scale(largest_of_lanes(largest_of(&values), 4));
        if (live) {
            store_bytes(codes + 4 * item, encode_mxfp4(&values, scale), 4);
            if (item % 4 == 0) {
                scales[item / 4] = scale;
            }
        }
        item += (int64_t)gridDim.x * THREADS;
    }
}

/* One block of 128 threads per row, grid (rows of the longest stride, sequences). */
#define STORE_THREADS 128

__device__ void store_main(const uint16_t *latent, int32_t dim, uint8_t *record) {
    int32_t items = dim / 8;
    for (int32_t first = 0; first < items; first += STORE_THREADS) {
        int32_t item = first + (int32_t)threadIdx.x;
        bool live = item < items;
        struct eight values = load_eight(latent + 8 * (live ? item : 0));
        uint8_t scale = main_group_scale(largest_of_lanes(largest_of(&values), 2));
        if (live) {
            store_bytes(record + 4 * item, encode_main(&values, scale), 4);
            if (item % 2 == 0) {
                record[dim / 2 + item / 2] = scale;
            }
        }
    }
}

__device__ void store_key(const uint16_t *key, int32_t dim, uint8_t *codes, uint8_t *scales) {
    int32_t items = dim / 8;
    for (int32_t first = 0; first < items; first += STORE_THREADS) {
        int32_t item = first + (int32_t)threadIdx.x;
        bool live = item < items;
        struct eight values = load_eight(key + 8 * (live ? item : 0));
        uint8_t scale = mxfp4_group_scale(largest_of_lanes(largest_of(&values), 4));
        if (live) {
            store_bytes(codes + 4 * item, encode_mxfp4(&values, scale), 4);
            if (item % 4 == 0) {
                scales[item / 4] = scale;
            }
        }
    }
}

__global__ void __launch_bounds__(STORE_THREADS) entry_store_kernel(struct entry_store_op op) {
    const struct row_segment segment = op.segments.device[blockIdx.y];
    const struct sequence_view *view = &op.views[blockIdx.y];
    const struct kv_source_layout *source = &op.source;
    for (int32_t i = (int32_t)blockIdx.x; i < segment.count; i += (int32_t)gridDim.x) {
        int32_t position = segment.position + i;
        if ((position + 1) % source->ratio != 0 || position < view->write_floor) {
            continue; // the same for the whole block
        }
        int32_t entry = position / source->ratio;
        size_t at = (size_t)(entry % source->entries);
        uint8_t *block = view->blocks[entry / source->entries];
        size_t row = (size_t)(segment.row + i);
        store_main(
            op.latent + row * (size_t)op.dim,
            op.dim,
            block + source->main_offset + at * source->main_record_bytes
        );
        store_key(
            op.key + row * (size_t)op.index_dim,
            op.index_dim,
            block + source->index_code_offset + at * (size_t)(op.index_dim / 2),
            block + source->index_scale_offset + at * (size_t)(op.index_dim / 32)
        );
    }
}

static unsigned grid_for(int64_t items) {
    int64_t blocks = (items + THREADS - 1) / THREADS;
    return (unsigned)(blocks > BLOCKS_MAX ? BLOCKS_MAX : blocks);
}

extern "C" cudaError_t cuda_quantize(cudaStream_t stream, const struct quantize_op *op) {
    int64_t items = (int64_t)op->rows * (op->dim / 8);
    if (items == 0) {
        return cudaSuccess;
    }
    quantize_fp8_kernel<<<grid_for(items), THREADS, 0, stream>>>(
        op->x, items, op->dim, op->y.codes, op->dim, op->y.scales, op->dim / 32
    );
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_window_pack(cudaStream_t stream, const struct window_pack_op *op) {
    int64_t items = (int64_t)op->rows * (op->dim / 8);
    if (items == 0) {
        return cudaSuccess;
    }
    int64_t stride = (int64_t)window_record_bytes(op->dim);
    quantize_fp8_kernel<<<grid_for(items), THREADS, 0, stream>>>(
        op->x, items, op->dim, op->records, stride, op->records + op->dim, stride
    );
    return cudaGetLastError();
}

extern "C" cudaError_t
cuda_index_quantize(cudaStream_t stream, const struct index_quantize_op *op) {
    int64_t items = (int64_t)op->rows * op->heads * (op->dim / 8);
    if (items == 0) {
        return cudaSuccess;
    }
    quantize_mxfp4_kernel<<<grid_for(items), THREADS, 0, stream>>>(
        op->x, items, op->codes, op->scales
    );
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_entry_store(cudaStream_t stream, const struct entry_store_op *op) {
    if (op->segments.count == 0) {
        return cudaSuccess;
    }
    // The segments are in device memory: 256 blocks walk each sequence's rows.
    dim3 grid(256, (unsigned)op->segments.count);
    entry_store_kernel<<<grid, STORE_THREADS, 0, stream>>>(*op);
    return cudaGetLastError();
}
