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

/* Two tiles as one lane sees them: its rows `group` of both; rows group + 8 are `below` bytes on.
 * Scales are loaded by the lanes of a row in turn, lane `pair` those of row pair of the four. */
struct lane_rows {
    const uint8_t *codes[2];
    uint32_t below;
    int32_t groups; /* of 32 input channels */
    const uint8_t *scales;
};

/* Some 16 bytes of the four rows, [tile * 2 + half]; scale bytes of the chunk's four quantiser groups,
 * lowest first, of row `pair`. */
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

/* Rows [first, first + 16) of each tile's weight. */
struct tile_rows {
    const uint8_t *codes, *scales;
    int32_t first;
};

__device__ __forceinline__ struct lane_rows
lane_rows(struct tile_rows upper, struct tile_rows lower, int32_t in_width, bool is_fp4) {
    int32_t group = (int32_t)threadIdx.x % WARP / 4;
    int32_t pair = (int32_t)threadIdx.x % 4;
    size_t in = (size_t)in_width;
    size_t row_bytes = is_fp4 ? in / 2 : in;
    struct lane_rows rows;
    rows.codes[0] = upper.codes + (size_t)(upper.first + group) * row_bytes;
    rows.codes[1] = lower.codes + (size_t)(lower.first + group) * row_bytes;
    rows.below = (uint32_t)(8 * row_bytes);
    rows.groups = in_width / 32;
    int32_t scale_row = (pair < 2 ? upper.first : lower.first) + group + pair % 2 * 8;
    scale_row = is_fp4 ? scale_row : scale_row / 32; // FP8: 32 rows share their scales
    rows.scales = (pair < 2 ? upper.scales : lower.scales) + (size_t)scale_row * (in / 32);
    return rows;
}

/* Units count from the input's start, UNITS per chunk. Behind the input there are zeros. */
template <enum dtype T>
__device__ __forceinline__ bool
unit_is_inside(const struct lane_rows *rows, int32_t unit, int32_t pair) {
    int32_t chunk = unit / walk<T>::UNITS;
    return chunk * (CHUNK / 32) + walk_group<T>(unit % walk<T>::UNITS, pair) < rows->groups;
}

__device__ __forceinline__ const uint8_t *
unit_codes(const struct lane_rows *rows, int32_t unit, int32_t pair, int row) {
    return rows->codes[row / 2] + (row % 2 == 0 ? 0 : rows->below) + unit * 64 + pair * 16;
}

/* The scale bytes of a chunk's groups; whoever needs them waits for them, not the load. */
template <enum dtype T>
__device__ __forceinline__ uint32_t unit_scales(const struct lane_rows *rows, int32_t unit) {
    int32_t first = unit / walk<T>::UNITS * (CHUNK / 32);
    if (rows->groups % 4 == 0) {
        return *(const uint32_t *)(rows->scales + first);
    }
    uint32_t scales = 0;
    for (int32_t i = 0; i < 4 && first + i < rows->groups; i++) {
        scales |= (uint32_t)rows->scales[first + i] << (8 * i);
    }
    return scales;
}

template <enum dtype T>
__device__ __forceinline__ void
load_unit(struct lane_unit *to, const struct lane_rows *rows, int32_t unit, int32_t pair) {
    bool is_inside = unit_is_inside<T>(rows, unit, pair);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to->codes[i] = make_uint4(0, 0, 0, 0);
        if (is_inside) {
            to->codes[i] = load_streaming(unit_codes(rows, unit, pair, i));
        }
    }
    to->scales = unit_scales<T>(rows, unit);
}

/* Placed codes are 2^BIAS too small. One factor makes up for that and applies the scale where their
 * product is a bf16; else (`is_split`) the two are applied one after the other. */
template <enum dtype T>
__device__ __forceinline__ uint32_t scale_factor(uint32_t scale, bool is_split) {
    uint32_t plain = scale == 0 ? 0x00400040U : scale * 0x00800080U;
    return is_split ? plain : (scale + walk<T>::BIAS) * 0x00800080U;
}

/* Eight codes of one row as bf16 pairs of channels (0, 4), (1, 5), (2, 6), (3, 7): sign, exponent and
 * mantissa bits put in their places, then times the factor of their scale. All of it is exact. */
template <enum dtype T>
__device__ __forceinline__ void
decode_eight(uint32_t out[4], const uint32_t codes[2], uint32_t factor, bool is_split) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (T == DTYPE_FP4) {
            uint32_t word = codes[0];
            uint32_t magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
            out[i] = ((word << (12 - 4 * i)) & 0x80008000U) | (magnitude & 0x01c001c0U);
        } else {
            uint32_t tops = pick_bytes(codes[0], codes[1], 0x4000U + (uint32_t)i * 0x1010U);
            out[i] = (tops & 0x80008000U) | ((tops >> 4) & 0x07f007f0U);
        }
    }
    if (is_split) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            out[i] = bf16x2_multiply(out[i], (127U + walk<T>::BIAS) * 0x00800080U);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] = bf16x2_multiply(out[i], factor);
    }
}

/* The warp's two tiles times up to 8 COLUMNS entries: [tile][n][the four of mma_bf16]. */
template <int COLUMNS> struct sums { float of[2][COLUMNS][4]; };

/* Takes the next eight codes of the unit's row r off. */
template <enum dtype T>
__device__ __forceinline__ void take_eight(uint32_t words[2], struct lane_unit *unit, int r) {
    uint4 *codes = &unit->codes[r];
    words[0] = codes->x;
    words[1] = codes->y;
    if (T == DTYPE_FP4) {
        *codes = make_uint4(codes->y, codes->z, codes->w, 0);
    } else {
        *codes = make_uint4(codes->z, codes->w, 0, 0);
    }
}

/* sums += one unit, which is used up, times its operands. `operand(n, i)` gives the lane's eight
 * channels number i of entry 8 n + group. Columns go by AT_ONCE, so that one's products do not wait
 * for another's. With many columns the loop over eights stays one: registers are scarce. */
template <enum dtype T, int COLUMNS, int AT_ONCE, typename OPERAND>
__device__ __forceinline__ void multiply_unit(
    struct sums<COLUMNS> *sums,
    struct lane_unit *unit,
    int32_t part, /* which unit of its chunk */
    int32_t columns,
    OPERAND operand
) {
    constexpr int EIGHTS = walk<T>::EIGHTS;
    // Factors too large for one bf16 are rare; all lanes branch alike.
    bool is_split = __any_sync(ALL_LANES, (unit->scales & 0x80808080U) != 0) != 0;
    int32_t group = walk_group<T>(part, (int32_t)threadIdx.x % 4);
    uint32_t factor[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        uint32_t scales = __shfl_sync(ALL_LANES, unit->scales, r, 4);
        factor[r] = scale_factor<T>((scales >> (8 * group)) & 0xffU, is_split);
    }
#pragma unroll(AT_ONCE == 1 ? EIGHTS : 1)
    for (int i = 0; i < EIGHTS; i++) {
        uint32_t a[2][2][4]; // [step of 16 channels][tile][register of the mma]
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t words[2];
            uint32_t decoded[4];
            take_eight<T>(words, unit, r);
            decode_eight<T>(decoded, words, factor[r], is_split);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                a[k / 2][r / 2][k % 2 * 2 + r % 2] = decoded[k];
            }
        }
#pragma unroll
        for (int n = 0; n < COLUMNS; n += AT_ONCE) {
            if (n < columns) {
                uint32_t b[AT_ONCE][4];
#pragma unroll
                for (int m = 0; m < AT_ONCE; m++) {
                    uint4 eight = operand(n + m, i);
                    b[m][0] = eight.x;
                    b[m][1] = eight.y;
                    b[m][2] = eight.z;
                    b[m][3] = eight.w;
                }
#pragma unroll
                for (int k = 0; k < 2; k++) {
#pragma unroll
                    for (int m = 0; m < AT_ONCE; m++) {
                        mma_bf16(sums->of[0][n + m], a[k][0], b[m] + 2 * k);
                        mma_bf16(sums->of[1][n + m], a[k][1], b[m] + 2 * k);
                    }
                }
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
                multiply_unit<T, COLUMNS, 1>(sums, &ahead[i], part, columns, [&](int n, int k) {
                    return n == 0 ? b[k] : load(n, k);
                });
                if (now + AHEAD < last) {
                    load_unit<T>(&ahead[i], rows, now + AHEAD, pair);
                }
            }
        }
    }
}

/* Many entries: while it multiplies a chunk, the block copies the operands of the next one of both
 * slices to shared memory, and each lane the codes of its next unit: registers are scarce. */
template <int COLUMNS, int THREADS> struct wide_stage {
    uint16_t operands[2][SLICES][8 * COLUMNS][CHUNK];
    uint4 codes[2][4][THREADS];
};

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
__device__ __forceinline__ void wide_copy_operands(
    struct wide_stage<COLUMNS, THREADS> *stage, int32_t step, const struct wide_job *job
) {
    constexpr int32_t EIGHTS = CHUNK / 8;
    int32_t eight = (int32_t)threadIdx.x % EIGHTS;
#pragma unroll 1
    for (int s = 0; s < SLICES; s++) {
        struct slice slice = slice_of(job->in, s);
        int32_t chunk = slice.first + step;
        int32_t channel = chunk * CHUNK + eight * 8;
        bool inside = chunk < slice.last && channel < job->in;
#pragma unroll 2
        for (int i = 0; i < 8 * COLUMNS * EIGHTS / THREADS; i++) {
            int32_t entry = i * (THREADS / EIGHTS) + (int32_t)threadIdx.x / EIGHTS;
            bool valid = inside && entry < job->entries;
            const uint16_t *from = job->input;
            if (valid) {
                from += (size_t)job->rows[entry] * (size_t)job->in + (size_t)channel;
            }
            uint16_t *to = &stage->operands[step % 2][s][entry][stage_place(entry, eight)];
            copy_async16(to, from, valid);
        }
    }
}

/* The lane's codes of a unit; gives its scales. */
template <enum dtype T, int COLUMNS, int THREADS>
__device__ __forceinline__ uint32_t wide_copy_codes(
    struct wide_stage<COLUMNS, THREADS> *stage, const struct lane_rows *rows, int32_t unit
) {
    int32_t pair = (int32_t)threadIdx.x % 4;
    bool is_inside = unit_is_inside<T>(rows, unit, pair);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint8_t *from = is_inside ? unit_codes(rows, unit, pair, i) : rows->codes[0];
        copy_async16(&stage->codes[unit % 2][i][threadIdx.x], from, is_inside);
    }
    return unit_scales<T>(rows, unit);
}

template <enum dtype T, int COLUMNS, int THREADS>
__device__ __forceinline__ void wide_product(
    struct sums<COLUMNS> *sums,
    const struct lane_rows *rows,
    struct wide_stage<COLUMNS, THREADS> *stage,
    const struct wide_job *job
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t pair = lane % 4;
    int32_t columns = (job->entries + 7) / 8;
    struct slice slice = slice_of(job->in, job->slice);
    int32_t steps = slice_of(job->in, 0).last; // the first slice is the longer one
    int32_t unit = slice.first * walk<T>::UNITS;
    int32_t last = job->is_live ? slice.last * walk<T>::UNITS : unit;
    uint32_t scales = 0; // of the next unit
    if (unit < last) {
        scales = wide_copy_codes<T>(stage, rows, unit);
    }
    wide_copy_operands(stage, 0, job);
    copy_async_commit();
#pragma unroll 1
    for (int32_t part = 0; part < steps * walk<T>::UNITS; part++) {
        int32_t step = part / walk<T>::UNITS;
        copy_async_wait<0>();
        if (part % walk<T>::UNITS == 0) {
            __syncthreads(); // this step's operands are here, the last step's are no longer read
            if (step + 1 < steps) {
                wide_copy_operands(stage, step + 1, job);
            }
        }
        struct lane_unit now;
        now.scales = scales;
        if (unit + 1 < last) {
            scales = wide_copy_codes<T>(stage, rows, unit + 1);
        }
        copy_async_commit();
        if (unit < last) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                now.codes[i] = stage->codes[unit % 2][i][threadIdx.x];
            }
            multiply_unit<T, COLUMNS, 2>(
                sums,
                &now,
                part % walk<T>::UNITS,
                columns,
                [&](int n, int k) {
                    int32_t entry = n * 8 + lane / 4;
                    int32_t place =
                        stage_place(entry, walk_eight<T>(part % walk<T>::UNITS, pair, k));
                    return *(const uint4 *)&stage->operands[step % 2][job->slice][entry][place];
                }
            );
        }
        unit++;
    }
    __syncthreads(); // the stage is free
}

#endif
