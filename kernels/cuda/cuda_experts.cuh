/* The product of the experts: weight tiles times the operands of one expert's entries.
 *
 * A warp owns two tiles of 16 weight rows (gate and up of the same channels, or 32 rows of the down
 * matrix) and takes their input channels in chunks of 128. Weights go from memory to the registers
 * of the lane that multiplies them: lane (group, pair), group = lane / 4, holds 16 bytes of rows
 * group and group + 8 of each tile, decodes eight codes at a time to bf16 by bit placement and an
 * exact multiplication, and multiplies. Which input channel meets which column of an mma is ours to
 * choose, as long as weights and operands agree.
 *
 * Order of sums (promise P2): the input is cut into two slices of whole chunks, from the width
 * alone; a warp adds the chunks of its slice in order, and the second slice is added to the first.
 * Entries are columns of the mma, which do not meet: neither their number nor their places matter.
 */
#ifndef HEARTH_KERNELS_CUDA_EXPERTS_CUH
#define HEARTH_KERNELS_CUDA_EXPERTS_CUH

#include "cuda_device.cuh"

#define ALL_LANES 0xffffffffU
#define CHUNK     128 /* input channels of one step: four quantiser groups */
#define SLICES    2
#define TILE_ROWS 16
#define WARP_ROWS (2 * TILE_ROWS)

/* Operands are bf16 with each eight channels 0..7 stored as 0 4 1 5 2 6 3 7: words of the pairs that
 * decode_eight gives. The place of channel i among its eight: */
__device__ __forceinline__ int32_t operand_place(int32_t i) {
    return i % 4 * 2 + i / 4;
}

/* Two tiles as one lane sees them: its rows `group` of both; rows group + 8 are `below` bytes on. */
struct lane_rows {
    const uint8_t *codes[2];
    const uint8_t *scales[2];
    uint32_t codes_below;
    uint32_t scales_below;
    int32_t groups; /* of 32 input channels */
};

/* Some 16 bytes of the four rows, [tile * 2 + half], and their scale bytes, first row lowest. */
struct lane_unit {
    uint4 codes[4];
    uint32_t scales;
};

/* How a lane walks through a chunk: FP4 in one unit of 32 channels (the lane's quantiser group), FP8
 * in two of 16, so that the four lanes of a row read 64 consecutive bytes each time. */
template <enum dtype T> struct walk {
    static constexpr int32_t UNITS = T == DTYPE_FP4 ? 1 : 2;
    static constexpr int32_t EIGHTS = T == DTYPE_FP4 ? 4 : 2; // of a unit
    static constexpr uint32_t BIAS =
        T == DTYPE_FP4 ? 126U : 120U; // codes are placed 2^BIAS too small
};

/* The quantiser group within a chunk that a lane's unit lies in; which eight channels come as its
 * number i. */
template <enum dtype T> __device__ __forceinline__ int32_t walk_group(int32_t unit, int32_t pair) {
    return T == DTYPE_FP4 ? pair : unit * 2 + pair / 2;
}

template <enum dtype T>
__device__ __forceinline__ int32_t walk_eight(int32_t unit, int32_t pair, int32_t i) {
    return T == DTYPE_FP4 ? pair * 4 + i : unit * 8 + pair * 2 + i;
}

/* Rows [first, first + 16) of `weights[tile]`, the row `group` of each. */
__device__ __forceinline__ struct lane_rows lane_rows(
    const struct weight weights[2],
    const int32_t first[2],
    int32_t in_width,
    int32_t group,
    bool is_fp4
) {
    struct lane_rows rows;
    size_t in = (size_t)in_width;
    size_t row_bytes = is_fp4 ? in / 2 : in;
    size_t scale_bytes = in / 32;
#pragma unroll
    for (int t = 0; t < 2; t++) {
        size_t row = (size_t)(first[t] + group);
        rows.codes[t] = (const uint8_t *)weights[t].data + row * row_bytes;
        rows.scales[t] = weights[t].scale + (is_fp4 ? row : row / 32) * scale_bytes;
    }
    rows.codes_below = (uint32_t)(8 * row_bytes);
    rows.scales_below = is_fp4 ? (uint32_t)(8 * scale_bytes) : 0; // FP8: 32 rows share a scale
    rows.groups = in_width / 32;
    return rows;
}

/* `unit` counts from the input's start, UNITS per chunk. Behind the input there are zeros. */
template <enum dtype T>
__device__ __forceinline__ void
load_unit(struct lane_unit *to, const struct lane_rows *rows, int32_t unit, int32_t pair) {
    int32_t chunk = unit / walk<T>::UNITS;
    int32_t group = chunk * (CHUNK / 32) + walk_group<T>(unit % walk<T>::UNITS, pair);
    uint32_t at = (uint32_t)unit * 64 + (uint32_t)pair * 16;
    to->scales = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to->codes[i] = make_uint4(0, 0, 0, 0);
    }
    if (group < rows->groups) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t below = i % 2 == 0 ? 0 : rows->codes_below;
            to->codes[i] = load_streaming(rows->codes[i / 2] + below + at);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t below = i % 2 == 0 ? 0 : rows->scales_below;
            to->scales |= (uint32_t)rows->scales[i / 2][below + (uint32_t)group] << (8 * i);
        }
    }
}

/* 2^(scale - 127) times 2^BIAS as two equal bf16, or as much of it as bf16 holds; the rest. */
template <enum dtype T> __device__ __forceinline__ uint32_t scale_factor(uint32_t scale) {
    uint32_t exponent = scale + walk<T>::BIAS;
    return (exponent > 254U ? 254U : exponent) * 0x00800080U;
}

template <enum dtype T> __device__ __forceinline__ uint32_t scale_rest(uint32_t scale) {
    uint32_t exponent = scale + walk<T>::BIAS;
    return (exponent > 254U ? exponent - 127U : 127U) * 0x00800080U;
}

/* Eight codes of one row as bf16 pairs of channels (0, 4), (1, 5), (2, 6), (3, 7): sign, exponent and
 * mantissa bits put in their places, then times `factor`. */
template <enum dtype T>
__device__ __forceinline__ void decode_eight(
    uint32_t out[4], const uint32_t *codes, uint32_t factor, uint32_t scale, bool is_split
) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t placed;
        if (T == DTYPE_FP4) {
            uint32_t word = codes[0];
            uint32_t magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
            placed = ((word << (12 - 4 * i)) & 0x80008000U) | (magnitude & 0x01c001c0U);
        } else {
            uint32_t tops = pick_bytes(codes[0], codes[1], 0x4000U + (uint32_t)i * 0x1010U);
            placed = (tops & 0x80008000U) | ((tops >> 4) & 0x07f007f0U);
        }
        out[i] = bf16x2_multiply(placed, factor);
    }
    if (is_split) {
        uint32_t rest = scale_rest<T>(scale);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = bf16x2_multiply(out[i], rest);
        }
    }
}

/* The warp's two tiles times up to 8 COLUMNS entries: [tile][n][the four of mma_bf16]. */
template <int COLUMNS> struct sums { float of[2][COLUMNS][4]; };

/* sums += one unit times its operands. `operand(n, i)` gives the lane's eight channels number i of
 * entries 8 n + group. */
template <enum dtype T, int COLUMNS, typename OPERAND>
__device__ __forceinline__ void multiply_unit(
    struct sums<COLUMNS> *sums, const struct lane_unit *unit, int32_t columns, OPERAND operand
) {
    constexpr int WORDS = 4 / walk<T>::EIGHTS;
    // Factors too large for one bf16 are rare; all lanes branch alike.
    bool is_split = __any_sync(ALL_LANES, (unit->scales & 0x80808080U) != 0) != 0;
    uint32_t factor[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        factor[r] = scale_factor<T>((unit->scales >> (8 * r)) & 0xffU);
    }
#pragma unroll
    for (int i = 0; i < walk<T>::EIGHTS; i++) {
        uint32_t a[2][2][4]; // [tile][step of 16 channels][register of the mma]
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t words[4] = {
                unit->codes[r].x, unit->codes[r].y, unit->codes[r].z, unit->codes[r].w};
            uint32_t decoded[4];
            uint32_t scale = (unit->scales >> (8 * r)) & 0xffU;
            decode_eight<T>(decoded, words + i * WORDS, factor[r], scale, is_split);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                a[r / 2][k / 2][k % 2 * 2 + r % 2] = decoded[k];
            }
        }
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
            if (n < columns) {
                uint4 b = operand(n, i);
                uint32_t first[2] = {b.x, b.y};
                uint32_t second[2] = {b.z, b.w};
                mma_bf16(sums->of[0][n], a[0][0], first);
                mma_bf16(sums->of[1][n], a[1][0], first);
                mma_bf16(sums->of[0][n], a[0][1], second);
                mma_bf16(sums->of[1][n], a[1][1], second);
            }
        }
    }
}

template <int COLUMNS> __device__ __forceinline__ void clear_sums(struct sums<COLUMNS> *sums) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums->of[0][n][i] = 0.0F;
            sums->of[1][n][i] = 0.0F;
        }
    }
}

/* Chunks [first, last) of the input are slice `slice`. */
struct slice {
    int32_t first, last;
};

__device__ __forceinline__ struct slice slice_of(int32_t in, int32_t slice) {
    int32_t chunks = (in + CHUNK - 1) / CHUNK;
    int32_t half = (chunks + 1) / 2;
    struct slice s = {slice == 0 ? 0 : half, slice == 0 ? half : chunks};
    return s;
}

#define AHEAD 2 /* units of weights under way */

/* Few entries: nothing is shared by warps, operands come straight from memory, mostly from a cache,
 * and weights of the next units are under way. operands[n]: row of entry 8 n + group, or null. */
template <enum dtype T, int COLUMNS>
__device__ __forceinline__ void narrow_product(
    struct sums<COLUMNS> *sums,
    const struct lane_rows *rows,
    const uint16_t *const operands[COLUMNS],
    int32_t columns,
    int32_t in,
    int32_t slice_index
) {
    int32_t pair = (int32_t)threadIdx.x % 4;
    struct slice slice = slice_of(in, slice_index);
    int32_t unit = slice.first * walk<T>::UNITS;
    int32_t last = slice.last * walk<T>::UNITS;
    struct lane_unit ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (unit + i < last) {
            load_unit<T>(&ahead[i], rows, unit + i, pair);
        }
    }
    for (; unit < last; unit += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int32_t now = unit + i;
            if (now < last) {
                int32_t chunk = now / walk<T>::UNITS;
                int32_t part = now % walk<T>::UNITS;
                int32_t group = chunk * (CHUNK / 32) + walk_group<T>(part, pair);
                auto load = [&](int n, int k) {
                    uint4 eight = make_uint4(0, 0, 0, 0);
                    if (operands[n] != NULL && group < rows->groups) {
                        int32_t number = chunk * (CHUNK / 8) + walk_eight<T>(part, pair, k);
                        eight = *(const uint4 *)(operands[n] + (size_t)number * 8);
                    }
                    return eight;
                };
                // Most experts have up to eight entries: theirs are loaded before the decoding.
                uint4 b[walk<T>::EIGHTS];
#pragma unroll
                for (int k = 0; k < walk<T>::EIGHTS; k++) {
                    b[k] = load(0, k);
                }
                multiply_unit<T, COLUMNS>(sums, &ahead[i], columns, [&](int n, int k) {
                    return n == 0 ? b[k] : load(n, k);
                });
                if (now + AHEAD < last) {
                    load_unit<T>(&ahead[i], rows, now + AHEAD, pair);
                }
            }
        }
    }
}

/* Many entries: the block copies the operands of a chunk of both slices to shared memory while it
 * multiplies the one before. `stage` holds two times [SLICES][8 COLUMNS entries][CHUNK] bf16. */
template <int COLUMNS> struct wide_stage { uint16_t at[2][SLICES][8 * COLUMNS][CHUNK]; };

/* What a warp of such a block is at. */
struct wide_job {
    const uint16_t *input;
    const int32_t *rows; /* shared memory: the operand row of each entry */
    int32_t entries;
    int32_t in;
    int32_t slice;
    bool is_live; /* the warp has weight rows */
};

/* Place of eight channels number `eight` of an entry's chunk: swizzled so that neither the copies nor
 * the reads of FP4 or FP8 walks by eight lanes meet in a bank. */
__device__ __forceinline__ int32_t stage_place(int32_t entry, int32_t eight) {
    return (eight ^ (eight >> 3 << 1) ^ (entry & 1)) * 8;
}

template <int COLUMNS, int THREADS>
__device__ __forceinline__ void
wide_copy(struct wide_stage<COLUMNS> *stage, int32_t step, const struct wide_job *job) {
    constexpr int32_t EIGHTS = CHUNK / 8;
    int32_t eight = (int32_t)threadIdx.x % EIGHTS;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        struct slice slice = slice_of(job->in, s);
        int32_t chunk = slice.first + step;
        int32_t channel = chunk * CHUNK + eight * 8;
        bool inside = chunk < slice.last && channel < job->in;
#pragma unroll
        for (int i = 0; i < 8 * COLUMNS * EIGHTS / THREADS; i++) {
            int32_t entry = i * (THREADS / EIGHTS) + (int32_t)threadIdx.x / EIGHTS;
            bool valid = inside && entry < job->entries;
            const uint16_t *from = job->input;
            if (valid) {
                from += (size_t)job->rows[entry] * (size_t)job->in + (size_t)channel;
            }
            copy_async16(&stage->at[step % 2][s][entry][stage_place(entry, eight)], from, valid);
        }
    }
    copy_async_commit();
}

template <enum dtype T, int COLUMNS, int THREADS>
__device__ __forceinline__ void wide_product(
    struct sums<COLUMNS> *sums,
    const struct lane_rows *rows,
    struct wide_stage<COLUMNS> *stage,
    const struct wide_job *job
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t pair = lane % 4;
    int32_t columns = (job->entries + 7) / 8;
    struct slice slice = slice_of(job->in, job->slice);
    int32_t steps = slice_of(job->in, 0).last; // the first slice is the longer one
    int32_t unit = slice.first * walk<T>::UNITS;
    int32_t last = slice.last * walk<T>::UNITS;
    struct lane_unit now;
    if (job->is_live && unit < last) {
        load_unit<T>(&now, rows, unit, pair);
    }
    wide_copy<COLUMNS, THREADS>(stage, 0, job);
    for (int32_t step = 0; step < steps; step++) {
        copy_async_wait<0>();
        __syncthreads(); // this step's operands are here, the last step's are no longer read
        if (step + 1 < steps) {
            wide_copy<COLUMNS, THREADS>(stage, step + 1, job);
        }
#pragma unroll
        for (int part = 0; part < walk<T>::UNITS; part++) {
            if (job->is_live && unit < last) {
                struct lane_unit next = now;
                if (unit + 1 < last) {
                    load_unit<T>(&next, rows, unit + 1, pair);
                }
                multiply_unit<T, COLUMNS>(sums, &now, columns, [&](int n, int k) {
                    int32_t entry = n * 8 + lane / 4;
                    int32_t place = stage_place(entry, walk_eight<T>(part, pair, k));
                    return *(const uint4 *)&stage->at[step % 2][job->slice][entry][place];
                });
                now = next;
                unit++;
            }
        }
    }
    __syncthreads(); // the stage is free
}

#endif
