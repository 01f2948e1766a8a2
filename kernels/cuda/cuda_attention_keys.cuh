/* Keys of attention: which records a row meets, their bytes on the way into shared memory, and their
 * values there as bf16, exactly: codes times scales have at most 6 significant bits.
 */
#ifndef HEARTH_KERNELS_CUDA_ATTENTION_KEYS_CUH
#define HEARTH_KERNELS_CUDA_ATTENTION_KEYS_CUH

#include "cuda_device.cuh"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#define KEYS    64                             // of a block of keys
#define AT_ONCE 4                              // keys of a warp whose loads are under way together
#define UNITS   (CUDA_HEAD_DIM_MAX / 8 / WARP) // of 8 channels, per lane and key

/* Shared memory of a block, offsets in bytes; the queries come first. */
struct attention_plan {
    int32_t stride; // of a row of queries or keys: 16 bytes more than the row, no bank conflicts
    int32_t keys;
    int32_t records;       // of the next keys; 0: they are read where they are
    int32_t window_bytes;  // of a window record, the larger kind
    int32_t scores;        // FP32 of both halves of the channels
    int32_t probabilities; // bf16
    int32_t factors;       // FP32 per head
    int32_t table;         // pointers to records
    int32_t table_keys;    // of how many keys
    int32_t bytes;
};

/* The keys of one row, in order: `windows` window records, then selected entries. */
struct key_list {
    const uint8_t *fresh; // the record of position `fresh_from`
    const uint8_t *ring;
    uint8_t *const *blocks;
    const int32_t *selected;
    int32_t fresh_from;
    int32_t first; // window position
    int32_t windows;
    int32_t total;
};

__device__ __forceinline__ int32_t thread_index(void) {
    return (int32_t)threadIdx.x;
}

/* Exactly one segment holds the row; a thread each looks at some, which takes one round trip. */
__device__ int32_t
find_segment(const struct row_segments *segments, int32_t row, volatile int32_t *found) {
    if (thread_index() == 0) {
        *found = -1;
    }
    __syncthreads();
    for (int32_t s = thread_index(); s < segments->count; s += THREADS) {
        int32_t first = segments->device[s].row;
        if (row >= first && row < first + segments->device[s].count) {
            *found = s;
        }
    }
    __syncthreads();
    return *found;
}

__device__ struct key_list
keys_of(const struct attention_op *op, const struct attention_plan *plan, int32_t row, int32_t s) {
    const struct row_segment *segment = &op->segments.device[s];
    const struct row_segment *fresh = &op->fresh_segments.device[s];
    const struct sequence_view *view = &op->views[s];
    int32_t position = segment->position + row - segment->row;
    struct key_list list;
    list.fresh = op->fresh + (int64_t)fresh->row * plan->window_bytes;
    list.ring = view->ring;
    list.blocks = view->blocks;
    list.fresh_from = fresh->position;
    list.first = max(max(position - op->window + 1, view->window_floor), 0);
    list.windows = max(0, position - list.first + 1);
    list.total = list.windows;
    list.selected = nullptr;
    if (op->selected != nullptr) {
        list.selected = op->selected + (int64_t)row * op->topk;
        list.total += op->selected_count[row];
    }
    return list;
}

__device__ const uint8_t *record_of(
    const struct attention_op *op,
    const struct attention_plan *plan,
    const struct key_list *list,
    int32_t at
) {
    size_t bytes = (size_t)plan->window_bytes;
    if (at < list->windows) {
        int32_t position = list->first + at;
        return position >= list->fresh_from
                   ? list->fresh + (size_t)(position - list->fresh_from) * bytes
                   : list->ring + (size_t)(position % op->window) * bytes;
    }
    int32_t entry = list->selected[at - list->windows];
    size_t in_block = (size_t)(entry % op->source.entries);
    return list->blocks[entry / op->source.entries] + op->source.main_offset +
           in_block * op->source.main_record_bytes;
}

/* Records at odd addresses (small models) are not staged: those lack the 16-byte alignment. */
__device__ __forceinline__ bool
is_staged(const struct attention_plan *plan, const uint8_t *record) {
    return plan->records != 0 && (uintptr_t)record % 16 == 0;
}

/* Starts the copy of the records of keys [at, at + 64): a warp fetches the keys it will decode. */
__device__ void fetch_records(
    const struct attention_op *op,
    const struct attention_plan *plan,
    const struct key_list *list,
    unsigned char *shared,
    int32_t at
) {
    const uint8_t **table = (const uint8_t **)(shared + plan->table);
    if (at % plan->table_keys == 0) {
        for (int32_t i = thread_index(); i < plan->table_keys && at + i < list->total;
             i += THREADS) {
            table[i] = record_of(op, plan, list, at + i);
        }
        __syncthreads();
    }
    table += at % plan->table_keys;
    int32_t lane = thread_index() % WARP;
    for (int32_t i = 0; i < KEYS / WARPS; i++) {
        int32_t key = thread_index() / WARP * (KEYS / WARPS) + i;
        if (at + key >= list->total) {
            break;
        }
        const uint8_t *record = table[key];
        if (is_staged(plan, record)) {
            unsigned char *to = shared + plan->records + key * plan->window_bytes;
            int32_t bytes = at + key < list->windows ? plan->window_bytes
                                                     : (int32_t)op->source.main_record_bytes;
            for (int32_t c = 16 * lane; c < bytes; c += 16 * WARP) {
                copy_async16(to + c, record + c, true);
            }
        }
    }
    copy_async_commit();
}

/* 8 channels of a record as they lie there. */
struct raw_unit {
    uint32_t low, high; // window: 8 codes; entry: 8 codes in `low`
    uint8_t scale;
};

__device__ __forceinline__ uint32_t load_word(const uint8_t *from) {
    if ((uintptr_t)from % 4 == 0) {
        return *(const uint32_t *)from;
    }
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

__device__ __forceinline__ struct raw_unit
load_unit(const uint8_t *record, bool is_window, int32_t dim, int32_t unit) {
    struct raw_unit raw = {0, 0, 0};
    if (record == nullptr || unit * 8 >= dim) {
        return raw;
    }
    if (!is_window) {
        raw.low = load_word(record + 4 * unit);
        raw.scale = record[dim / 2 + unit / 2];
        return raw;
    }
    if ((uintptr_t)record % 8 == 0) {
        uint2 codes = *(const uint2 *)(record + 8 * unit);
        raw.low = codes.x;
        raw.high = codes.y;
    } else {
        raw.low = load_word(record + 8 * unit);
        raw.high = load_word(record + 8 * unit + 4);
    }
    raw.scale = record[dim + unit / 4];
    return raw;
}

/* Two E4M3 codes, in bytes 1 and 3, to bf16: their bits in place are 2^-120 times the value. */
__device__ __forceinline__ uint32_t e4m3_to_bf16(uint32_t codes) {
    uint32_t bits = (codes & 0x80008000U) | ((codes >> 4) & 0x07f007f0U);
    return bf16x2_multiply(bits, 0x7b807b80U);
}

__device__ __forceinline__ uint4 decode_window(struct raw_unit raw) {
    uint32_t scale = raw.scale == 0 ? 0x40U : raw.scale == 255 ? 0x7fc0U : raw.scale * 0x80U;
    scale *= 0x10001U;
    uint4 out;
    out.x = bf16x2_multiply(e4m3_to_bf16(pick_bytes(raw.low, 0, 0x1404)), scale);
    out.y = bf16x2_multiply(e4m3_to_bf16(pick_bytes(raw.low, 0, 0x3424)), scale);
    out.z = bf16x2_multiply(e4m3_to_bf16(pick_bytes(raw.high, 0, 0x1404)), scale);
    out.w = bf16x2_multiply(e4m3_to_bf16(pick_bytes(raw.high, 0, 0x3424)), scale);
    return out;
}

/* Two E2M1 codes, each in the low nibbles of both bytes of a half: bits in place are 2^-126 times
 * the value. Two products, since 2^126 times a scale would overflow. */
__device__ __forceinline__ uint32_t e2m1_to_bf16(uint32_t codes, uint32_t scale) {
    uint32_t bits = ((codes << 4) & 0x80008000U) | ((codes << 6) & 0x01c001c0U);
    return bf16x2_multiply(bf16x2_multiply(bits, 0x7e807e80U), scale);
}

__device__ __forceinline__ uint4 decode_entry(struct raw_unit raw) {
    uint32_t scale = e4m3_to_bf16(raw.scale * 0x01000100U);
    uint32_t even = raw.low & 0x0f0f0f0fU;
    uint32_t odd = (raw.low >> 4) & 0x0f0f0f0fU;
    uint4 out;
    out.x = e2m1_to_bf16(pick_bytes(even, odd, 0x4400), scale);
    out.y = e2m1_to_bf16(pick_bytes(even, odd, 0x5511), scale);
    out.z = e2m1_to_bf16(pick_bytes(even, odd, 0x6622), scale);
    out.w = e2m1_to_bf16(pick_bytes(even, odd, 0x7733), scale);
    return out;
}

/* Keys [at, at + 64) as bf16 rows; zeros behind the last one. */
__device__ void decode_records(
    const struct attention_op *op,
    const struct attention_plan *plan,
    const struct key_list *list,
    unsigned char *shared,
    int32_t at
) {
    const uint8_t *const *table = (const uint8_t *const *)(shared + plan->table);
    table += at % plan->table_keys;
    int32_t lane = thread_index() % WARP;
    for (int32_t first = 0; first < KEYS / WARPS; first += AT_ONCE) {
        int32_t base = thread_index() / WARP * (KEYS / WARPS) + first;
        struct raw_unit raw[AT_ONCE][UNITS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int32_t key = base + i;
            const uint8_t *record = nullptr;
            if (at + key < list->total) {
                record = table[key];
                if (is_staged(plan, record)) {
                    record = shared + plan->records + key * plan->window_bytes;
                }
            }
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                bool is_window = at + key < list->windows;
                raw[i][u] = load_unit(record, is_window, op->dim, lane + u * WARP);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int32_t key = base + i;
            unsigned char *to = shared + plan->keys + key * plan->stride;
#pragma unroll
            for (int u = 0; u < UNITS; u++) {
                int32_t unit = lane + u * WARP;
                if (unit * 8 < op->dim) {
                    *(uint4 *)(to + 16 * unit) = at + key < list->windows ? decode_window(raw[i][u])
                                                                          : decode_entry(raw[i][u]);
                }
            }
        }
    }
}

#endif
