/* Keys of attention: which records a row meets, their bytes on the way into shared memory, and their
 * values there as bf16, exactly: codes times scales have at most 6 significant bits.
 *
 * Within every 8 channels the order in shared memory is 0 4 1 5 2 6 3 7, since nibbles of a word come
 * apart most cheaply that way. Queries are brought into that order, what is summed out of it again.
 */
#ifndef HEARTH_KERNELS_CUDA_ATTENTION_KEYS_CUH
#define HEARTH_KERNELS_CUDA_ATTENTION_KEYS_CUH

#include "cuda_device.cuh"

#define THREADS                                                                                    \
    512 // what a block does is a chain of short phases: many warps hide each other's waits
#define WARPS   (THREADS / WARP)
#define KEYS    64 // of a block of keys
#define AT_ONCE 4  // keys of a warp whose loads are under way together
#define TILE    16 // rows and depth of a product; channels of a lane

static_assert(CUDA_HEAD_DIM_MAX == TILE * WARP, "a lane has 16 channels of a record");

/* Shared memory of a block, offsets in bytes; the queries come first. */
struct attention_plan {
    int32_t stride; // of a row of queries or keys: 16 bytes more than the row, no bank conflicts
    int32_t keys;
    int32_t spare;         // a second place of keys, decoded while the first is in use; or 0
    int32_t records;       // of the next keys; 0: they are read where they are
    int32_t window_bytes;  // of a window record, the larger kind
    int32_t scores;        // FP32 of both halves of the channels
    int32_t probabilities; // bf16
    int32_t factors;       // FP32 per head
    int32_t list;          // struct key_list
    int32_t table;         // pointers to records
    int32_t table_keys;    // of how many keys
    int32_t bytes;
};

/* The keys of one row, in order: `windows` window records, then selected entries. In shared memory,
 * since registers are short. */
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
__device__ __forceinline__ int32_t
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

__device__ __forceinline__ struct key_list
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

/* Writes the row's list of keys into shared memory; false: the row is in no segment. When sequences decode, a
 * row's segment has its number, and all about it comes in one round trip. Barriers inside. */
__device__ __forceinline__ bool list_keys(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t row
) {
    struct key_list *list = (struct key_list *)(shared + plan->list);
    volatile int32_t *found = (volatile int32_t *)(shared + plan->factors);
    if (thread_index() == 0) {
        int32_t guess = min(row, op->segments.count - 1);
        const struct row_segment *segment = &op->segments.device[guess];
        bool is_inside = row >= segment->row && row < segment->row + segment->count;
        *list = keys_of(op, plan, row, guess);
        *found = is_inside ? guess : -1;
    }
    __syncthreads();
    bool is_right = *found >= 0;
    if (!is_right) {
        __syncthreads(); // all have looked
        int32_t segment = find_segment(&op->segments, row, found);
        if (segment < 0) {
            return false;
        }
        if (thread_index() == 0) {
            *list = keys_of(op, plan, row, segment);
        }
        __syncthreads();
    }
    return true;
}

__device__ __forceinline__ const uint8_t *record_of(
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

#define OWN (KEYS / WARPS) // keys that a warp fetches and decodes: no barrier in between
static_assert(OWN == 4, "pointers to them are read as 32 bytes");

/* Fills the table when `at` is the first of its keys. */
__device__ __forceinline__ void fill_table(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t at
) {
    if (at % plan->table_keys == 0) {
        const struct key_list *list = (const struct key_list *)(shared + plan->list);
        const uint8_t **table = (const uint8_t **)(shared + plan->table);
        int32_t total = list->total;
        for (int32_t i = thread_index(); i < plan->table_keys && at + i < total; i += THREADS) {
            table[i] = record_of(op, plan, list, at + i);
        }
        __syncthreads();
    }
}

/* Starts the copy of the records of keys [at, at + 64). */
__device__ __forceinline__ void fetch_records(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t at
) {
    fill_table(op, plan, shared, at);
    if (plan->records == 0) {
        copy_async_commit(); // the queries
        return;
    }
    const struct key_list *list = (const struct key_list *)(shared + plan->list);
    int32_t windows = list->windows;
    int32_t total = list->total;
    int32_t lane = thread_index() % WARP;
    int32_t base = thread_index() / WARP * OWN;
    const ulonglong2 *table =
        (const ulonglong2 *)(shared + plan->table) + (at % plan->table_keys + base) / 2;
    ulonglong2 early = table[0];
    ulonglong2 late = table[1];
    const unsigned long long records[OWN] = {early.x, early.y, late.x, late.y};
    unsigned char *to = shared + plan->records + base * plan->window_bytes;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        int32_t key = at + base + i;
        int32_t bytes = key < windows ? plan->window_bytes : (int32_t)op->source.main_record_bytes;
        bytes = key < total ? bytes : 0;
        const uint8_t *record = (const uint8_t *)records[i];
        if (records[i] % 16 == 0) {
#pragma unroll
            for (int32_t c = 0; c < 2 * 16 * WARP; c += 16 * WARP) {
                if (c + 16 * lane < bytes) {
                    copy_async16(to + c + 16 * lane, record + c + 16 * lane, true);
                }
            }
        } else {
            for (int32_t c = lane; c < bytes; c += WARP) {
                to[c] = record[c];
            }
        }
        to += plan->window_bytes;
    }
    copy_async_commit();
}

/* One lane's share of a record, as it lies there: 16 channels. */
struct raw_channels {
    uint32_t codes[4]; // window: 4 to a word; entry: 8 to a word, in two
    uint8_t scale;
};

__device__ __forceinline__ uint32_t load_word(const uint8_t *from) {
    if ((uintptr_t)from % 4 == 0) {
        return *(const uint32_t *)from;
    }
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

__device__ __forceinline__ struct raw_channels
load_channels(const uint8_t *record, bool is_window, int32_t dim, int32_t lane) {
    struct raw_channels raw = {};
    if (record == nullptr || TILE * lane >= dim) {
        return raw;
    }
    const uint8_t *from = record + (is_window ? TILE : TILE / 2) * lane;
    if ((uintptr_t)from % 16 == 0 && is_window) {
        uint4 codes = *(const uint4 *)from;
        raw.codes[0] = codes.x;
        raw.codes[1] = codes.y;
        raw.codes[2] = codes.z;
        raw.codes[3] = codes.w;
    } else if ((uintptr_t)from % 8 == 0 && !is_window) {
        uint2 codes = *(const uint2 *)from;
        raw.codes[0] = codes.x;
        raw.codes[1] = codes.y;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            raw.codes[i] = i < 2 || is_window ? load_word(from + 4 * i) : 0;
        }
    }
    raw.scale = is_window ? record[dim + lane / 2] : record[dim / 2 + lane];
    return raw;
}

/* Two E4M3 codes, in bytes 1 and 3, to bf16: their bits in place are 2^-120 times the value. The
 * other bytes may hold anything. */
__device__ __forceinline__ uint32_t e4m3_to_bf16(uint32_t codes) {
    uint32_t bits = (codes & 0x80008000U) | ((codes >> 4) & 0x07f007f0U);
    return bf16x2_multiply(bits, 0x7b807b80U);
}

/* 8 codes of a window record; `scale` is bf16, twice. */
__device__ __forceinline__ uint4 decode_window(uint32_t low, uint32_t high, uint32_t scale) {
    uint4 out;
    out.x = bf16x2_multiply(e4m3_to_bf16(pick_bytes(low, high, 0x4400)), scale);
    out.y = bf16x2_multiply(e4m3_to_bf16(pick_bytes(low, high, 0x5511)), scale);
    out.z = bf16x2_multiply(e4m3_to_bf16(pick_bytes(low, high, 0x6622)), scale);
    out.w = bf16x2_multiply(e4m3_to_bf16(pick_bytes(low, high, 0x7733)), scale);
    return out;
}

/* Two E2M1 codes: bits in place are 2^-126 times the value. 2^126 times a scale would overflow, so
 * it takes two products. */
__device__ __forceinline__ uint32_t
e2m1_to_bf16(uint32_t signs, uint32_t magnitudes, uint32_t scale) {
    uint32_t bits = (signs & 0x80008000U) | (magnitudes & 0x01c001c0U);
    return bf16x2_multiply(bf16x2_multiply(bits, 0x7e807e80U), scale);
}

/* 8 codes of an entry, of which 0 and 4, 1 and 5, ... stand at the same place of their halves. */
__device__ __forceinline__ uint4 decode_entry(uint32_t codes, uint32_t scale) {
    uint4 out;
    out.x = e2m1_to_bf16(codes << 12, codes << 6, scale);
    out.y = e2m1_to_bf16(codes << 8, codes << 2, scale);
    out.z = e2m1_to_bf16(codes << 4, codes >> 2, scale);
    out.w = e2m1_to_bf16(codes, codes >> 6, scale);
    return out;
}

/* Writes a lane's 16 channels. Every other four lanes write their second 8 first: so 8 lanes at a
 * time fall into different banks. */
__device__ __forceinline__ void
store_channels(unsigned char *row, const struct raw_channels *raw, bool is_window, int32_t lane) {
    // E8M0 is a bf16 exponent; packing gives no byte 0 or 255, which would mean something else
    uint32_t scale = is_window ? raw->scale * 0x800080U : e4m3_to_bf16(raw->scale * 0x01000100U);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool is_second = (i + lane / 4) % 2 != 0;
        uint4 *to = (uint4 *)(row + 2 * TILE * lane + (is_second ? TILE : 0));
        if (is_window) {
            uint32_t low = is_second ? raw->codes[2] : raw->codes[0];
            uint32_t high = is_second ? raw->codes[3] : raw->codes[1];
            *to = decode_window(low, high, scale);
        } else {
            *to = decode_entry(is_second ? raw->codes[1] : raw->codes[0], scale);
        }
    }
}

/* 8 bf16 into the order that rows of keys have, and back. */
__device__ __forceinline__ uint4 to_key_order(uint4 x) {
    return make_uint4(
        pick_bytes(x.x, x.z, 0x5410),
        pick_bytes(x.x, x.z, 0x7632),
        pick_bytes(x.y, x.w, 0x5410),
        pick_bytes(x.y, x.w, 0x7632)
    );
}

__device__ __forceinline__ uint4 from_key_order(uint4 x) {
    return make_uint4(
        pick_bytes(x.x, x.y, 0x5410),
        pick_bytes(x.z, x.w, 0x5410),
        pick_bytes(x.x, x.y, 0x7632),
        pick_bytes(x.z, x.w, 0x7632)
    );
}

/* As load_channels, of a record in shared memory, which has all 512 channels. */
__device__ __forceinline__ struct raw_channels
load_staged(const unsigned char *record, bool is_window, int32_t lane) {
    struct raw_channels raw = {};
    if (is_window) {
        uint4 codes = *(const uint4 *)(record + TILE * lane);
        raw.codes[0] = codes.x;
        raw.codes[1] = codes.y;
        raw.codes[2] = codes.z;
        raw.codes[3] = codes.w;
        raw.scale = record[CUDA_HEAD_DIM_MAX + lane / 2];
    } else {
        uint2 codes = *(const uint2 *)(record + TILE / 2 * lane);
        raw.codes[0] = codes.x;
        raw.codes[1] = codes.y;
        raw.scale = record[CUDA_HEAD_DIM_MAX / 2 + lane];
    }
    return raw;
}

/* All keys of a warp, of one kind. */
template <bool IS_WINDOW>
__device__ __forceinline__ void
decode_alike(const struct attention_plan *plan, const unsigned char *records, unsigned char *rows) {
    int32_t lane = thread_index() % WARP;
    struct raw_channels raw[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        raw[i] = load_staged(records + i * plan->window_bytes, IS_WINDOW, lane);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        store_channels(rows + i * plan->stride, &raw[i], IS_WINDOW, lane);
    }
}

/* Keys [at, at + 64), which were fetched, to bf16 rows at `keys`; zeros behind the last one. */
__device__ __forceinline__ void
decode_staged(const struct attention_plan *plan, unsigned char *shared, int32_t keys, int32_t at) {
    const struct key_list *list = (const struct key_list *)(shared + plan->list);
    int32_t lane = thread_index() % WARP;
    int32_t base = thread_index() / WARP * OWN;
    const unsigned char *records = shared + plan->records + base * plan->window_bytes;
    unsigned char *rows = shared + keys + base * plan->stride;
    int32_t windows = list->windows - at - base; // of the warp's keys and of those behind
    int32_t total = list->total - at - base;
    copy_async_wait<0>();
    __syncwarp();
    if (windows >= OWN) {
        decode_alike<true>(plan, records, rows);
    } else if (windows <= 0 && total >= OWN) {
        decode_alike<false>(plan, records, rows);
    } else {
#pragma unroll 1
        for (int32_t i = 0; i < OWN; i++) {
            struct raw_channels raw = {};
            if (i < total) {
                raw = load_staged(records + i * plan->window_bytes, i < windows, lane);
            }
            store_channels(rows + i * plan->stride, &raw, i < windows, lane);
        }
    }
    __syncwarp();
}

/* Keys [at, at + 64) from where they are; zeros behind the last one (codes and scale 0 of an entry).
 */
__device__ __forceinline__ void decode_records(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t at
) {
    const struct key_list *list = (const struct key_list *)(shared + plan->list);
    int32_t windows = list->windows;
    int32_t total = list->total;
    const uint8_t *const *table = (const uint8_t *const *)(shared + plan->table);
    table += at % plan->table_keys;
    int32_t lane = thread_index() % WARP;
    for (int32_t first = 0; first < KEYS / WARPS; first += AT_ONCE) {
        int32_t base = thread_index() / WARP * (KEYS / WARPS) + first;
        struct raw_channels raw[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int32_t key = base + i;
            const uint8_t *record = nullptr;
            if (at + key < total) {
                record = table[key];
            }
            raw[i] = load_channels(record, at + key < windows, op->dim, lane);
        }
        if (TILE * lane < op->dim) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                unsigned char *row = shared + plan->keys + (base + i) * plan->stride;
                store_channels(row, &raw[i], at + base + i < windows, lane);
            }
        }
    }
}

__device__ __forceinline__ void decode_keys(
    const struct attention_op *op,
    const struct attention_plan *plan,
    unsigned char *shared,
    int32_t keys,
    int32_t at
) {
    if (plan->records != 0) {
        decode_staged(plan, shared, keys, at);
    } else {
        decode_records(op, plan, shared, at);
    }
}

#endif
