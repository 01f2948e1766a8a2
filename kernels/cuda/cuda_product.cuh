/* Matrix products of weights and rows, in one order of sums, for few rows and for many.
 *
 * Weights are the left operand of mma_bf16 (16 outputs), rows the right one (8 rows); both are decoded
 * to bf16 with their scales, which is exact. Columns are cut into slices, whose length follows from
 * the weight's shape alone, and slices into chunks of 64 columns. Of a chunk, lane `pair` holds columns
 * [16 pair, 16 pair + 16) of its row, so that one 16-byte load of codes feeds four mma: number j
 * takes columns 16 pair + 4 j + (0, 1, 2, 3), or (0, 2, 1, 3) where both operands are FP8. Every output is
 *   ((slice 0) + slice 1) + ...,  slice = mma j = 0..3 of each of its chunks, ascending, from zero
 * and nothing else: product_slice (one warp, weights from memory to registers, few rows) and
 * product_tile (a block, both operands through shared memory, many rows) give the same bits.
 * A last chunk of 32 columns is filled up with zeros in both.
 */
#ifndef HEARTH_KERNELS_CUDA_PRODUCT_CUH
#define HEARTH_KERNELS_CUDA_PRODUCT_CUH

#include "cuda_device.cuh"

#define PRODUCT_CHUNK      64 /* columns */
#define PRODUCT_SLICES_MAX 16

/* Columns of a slice, from the weight's shape alone: slices double until its tiles of 16 outputs
 * times slices give each multiprocessor of a large GPU a dozen warps, but stay above 256 columns. */
static inline int32_t product_slice_columns(int32_t in, int32_t outputs) {
    int32_t tiles = (outputs + 15) / 16;
    int32_t slices = 1;
    while (slices < PRODUCT_SLICES_MAX && slices * tiles < 1600 && in / (2 * slices) >= 256) {
        slices *= 2;
    }
    int32_t columns = (in + slices - 1) / slices;
    return (columns + PRODUCT_CHUNK - 1) / PRODUCT_CHUNK * PRODUCT_CHUNK;
}

/* Where the values of one row begin. Rows outside of a matrix: name any row inside, and drop what
 * comes out. */
struct product_row {
    const uint8_t *data;  /* 16-byte aligned (FP4: 8) */
    const uint8_t *scale; /* of column 0; null for BF16 */
};

template <enum dtype T>
__device__ __forceinline__ struct product_row
product_weight_row(const struct weight *weight, int32_t row) {
    size_t in = (size_t)weight->in;
    size_t at = (size_t)row;
    const uint8_t *data = (const uint8_t *)weight->data;
    if (T == DTYPE_FP8) {
        return {data + at * in, weight->scale + at / 32 * (in / 32)};
    }
    if (T == DTYPE_FP4) {
        return {data + at * (in / 2), weight->scale + at * (in / 32)};
    }
    return {data + at * in * 2, nullptr};
}

/* A row of activations from `column` on, a multiple of 32; `columns` is the width of the matrix. */
__device__ __forceinline__ struct product_row
product_quantized_row(const struct quantized *x, int32_t columns, int32_t row, int32_t column) {
    size_t at = (size_t)row * (size_t)columns + (size_t)column;
    return {x->codes + at, x->scales + at / 32};
}

/* The row from `columns` further on, a multiple of 32, or less than that from one. */
template <enum dtype T>
__device__ __forceinline__ struct product_row product_at(struct product_row row, int32_t columns) {
    row.data += T == DTYPE_FP4 ? columns / 2 : (T == DTYPE_FP8 ? columns : columns * 2);
    row.scale = T == DTYPE_BF16 ? nullptr : row.scale + columns / 32;
    return row;
}

/* Four lanes ask for the beginning of columns [first, last) of a weight's row. No kernel writes weights, so
 * they may come while the kernel before still runs. */
template <enum dtype W>
__device__ __forceinline__ void
product_prefetch(const struct weight *weight, int32_t row, int32_t first, int32_t last) {
    constexpr int32_t BITS = W == DTYPE_BF16 ? 16 : W == DTYPE_FP8 ? 8 : 4;
    int32_t at = (int32_t)threadIdx.x % 4 * 128; // bytes of a line
    if (at < (last - first) * BITS / 8) {
        prefetch_line(product_at<W>(product_weight_row<W>(weight, row), first).data + at);
    }
}

/* 16 values of a row as memory has them: FP8 four words, FP4 two, BF16 eight. */
template <enum dtype T> struct product_codes {
    static constexpr int WORDS = T == DTYPE_BF16 ? 8 : (T == DTYPE_FP8 ? 4 : 2);
    uint32_t word[WORDS];
    uint32_t scale; /* E8M0 */
};

template <enum dtype T> __device__ __forceinline__ void product_clear(struct product_codes<T> *to) {
#pragma unroll
    for (int i = 0; i < product_codes<T>::WORDS; i++) {
        to->word[i] = 0;
    }
    to->scale = 0;
}

/* The row's first 16 values. ONCE: nobody reads these bytes again. */
template <enum dtype T, bool ONCE>
__device__ __forceinline__ void product_load(struct product_codes<T> *to, struct product_row row) {
    if constexpr (T == DTYPE_FP4) {
        uint2 v = load_read_only(reinterpret_cast<const uint2 *>(row.data));
        to->word[0] = v.x;
        to->word[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < product_codes<T>::WORDS; i += 4) {
            const uint4 *quad = reinterpret_cast<const uint4 *>(row.data + 4 * i);
            uint4 v = ONCE ? load_streaming(quad) : load_read_only(quad);
            to->word[i] = v.x;
            to->word[i + 1] = v.y;
            to->word[i + 2] = v.z;
            to->word[i + 3] = v.w;
        }
    }
    to->scale = T == DTYPE_BF16 ? 0 : load_read_only(row.scale);
}

/* 2^(code - 127) twice, as bf16; NaN's code 255 reads as infinity. */
__device__ __forceinline__ uint32_t product_scale(uint32_t code) {
    return max(code * 0x00800080U, 0x00400040U); // code 0 is subnormal
}

/* Two codes whose sign and magnitude are the upper bits of the halves of `bits` (what is below is
 * ignored), as bf16: the magnitude goes to the low end of the exponent field, which makes it too small
 * by 2^120 (E4M3) or 2^126 (E2M1), subnormal codes included. That factor and the scale are applied one
 * after the other: their product may be beyond bf16. Both are exact wherever the value is a bf16. */
__device__ __forceinline__ uint32_t product_decode_fp8(uint32_t bits, uint32_t scale) {
    uint32_t small = (bits & 0x80008000U) | ((bits >> 4) & 0x07f007f0U);
    return bf16x2_multiply(bf16x2_multiply(small, 0x7b807b80U), scale);
}

__device__ __forceinline__ uint32_t product_decode_fp4(uint32_t bits, uint32_t scale) {
    uint32_t small = (bits & 0x80008000U) | ((bits >> 6) & 0x01c001c0U);
    return bf16x2_multiply(bf16x2_multiply(small, 0x7e807e80U), scale);
}

/* Whether operands W and X take their columns as (0, 2), (1, 3), which saves moving FP8's bytes. */
template <enum dtype W, enum dtype X>
static constexpr bool PRODUCT_BY_BYTES = W == DTYPE_FP8 &&X == DTYPE_FP8;

/* The 16 values with their scale: to[i] holds columns 2 i (low half) and 2 i + 1, or, BY_BYTES, of
 * each four (0, 2) and (1, 3). */
template <enum dtype T, bool BY_BYTES>
__device__ __forceinline__ void
product_decode(const struct product_codes<T> *codes, uint32_t to[8]) {
    constexpr int WORDS = product_codes<T>::WORDS;
    uint32_t scale = T == DTYPE_BF16 ? 0 : product_scale(codes->scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t word = codes->word[i * WORDS / 8];
        if (T == DTYPE_FP8 && BY_BYTES) {
            to[i] = product_decode_fp8(i % 2 == 0 ? word << 8 : word, scale);
        } else if (T == DTYPE_FP8) {
            uint32_t at = 2U * (i % 2);
            to[i] = product_decode_fp8(pick_bytes(word, 0, (at + 1) << 12 | at << 4), scale);
        } else if (T == DTYPE_FP4) {
            // Byte `at`: the low nibble, moved up, into the low half, the high nibble into the high.
            uint32_t at = i % 4;
            uint32_t bits = pick_bytes(word, word << 4, at << 12 | (at + 4) << 4);
            to[i] = product_decode_fp4(bits, scale);
        } else {
            to[i] = word;
        }
    }
}

/* d[t] += 16 outputs x rows [8 t, 8 t + 8) over half a chunk, mma j = 0, 1 (then 2, 3): of the lane's
 * 16 columns the first (then the last) eight, of output `lane / 4` (low), of output `lane / 4 + 8` (high)
 * and of row `lane / 4`. d: see mma_bf16. Each waits for the one before on the same d, so those of
 * different t come between. */
template <int NT>
__device__ __forceinline__ void product_half(
    float d[NT][4], const uint32_t low[4], const uint32_t high[4], const uint32_t x[NT][4]
) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a[4] = {low[2 * j], high[2 * j], low[2 * j + 1], high[2 * j + 1]};
#pragma unroll
        for (int t = 0; t < NT; t++) {
            uint32_t b[2] = {x[t][2 * j], x[t][2 * j + 1]};
            mma_bf16(d[t], a, b);
        }
    }
}

/* One warp, up to 8 NT rows: d[t] = outputs x rows [8 t, 8 t + 8) over columns [first, last), a slice.
 * The lane reads weight rows `low` and `high` (see product_half) and rows x[t]; with M = 8 outputs
 * instead of 16 there is no `high`. STAGES chunks of codes are under way while one is multiplied.
 * Needs no shared memory and no barrier. */
template <enum dtype W, enum dtype X, int M, int NT, int STAGES>
__device__ __forceinline__ void product_slice(
    struct product_row low,
    struct product_row high,
    const struct product_row x[NT],
    int32_t first,
    int32_t last,
    float d[NT][4]
) {
    constexpr bool BY_BYTES = PRODUCT_BY_BYTES<W, X>;
    struct product_codes<W> low_codes[STAGES];
    struct product_codes<W> high_codes[STAGES];
    struct product_codes<X> x_codes[STAGES][NT];
    struct product_row x_at[NT];
    int32_t column = 16 * (int32_t)(threadIdx.x % 4);
    low = product_at<W>(low, first + column);
    high = M == 16 ? product_at<W>(high, first + column) : low;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        x_at[t] = product_at<X>(x[t], first + column);
        d[t][0] = d[t][1] = d[t][2] = d[t][3] = 0.0F;
    }
    auto load = [&](int stage, int32_t ahead) {
        product_load<W, true>(&low_codes[stage], product_at<W>(low, ahead));
        if (M == 16) {
            product_load<W, true>(&high_codes[stage], product_at<W>(high, ahead));
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            product_load<X, false>(&x_codes[stage][t], product_at<X>(x_at[t], ahead));
        }
    };
    uint32_t a_low[8];
    uint32_t a_high[8] = {};
    uint32_t b[2][NT][4];
    auto decode = [&](int stage) {
        product_decode<W, BY_BYTES>(&low_codes[stage], a_low);
        if (M == 16) {
            product_decode<W, BY_BYTES>(&high_codes[stage], a_high);
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            uint32_t both[8];
            product_decode<X, BY_BYTES>(&x_codes[stage][t], both);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                b[i / 4][t][i % 4] = both[i];
            }
        }
    };
    auto multiply = [&]() {
        product_half<NT>(d, a_low, a_high, b[0]);
        product_half<NT>(d, a_low + 4, a_high + 4, b[1]);
    };
    int32_t chunks = (last - first) / PRODUCT_CHUNK;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        if (stage < chunks) {
            load(stage, stage * PRODUCT_CHUNK);
        }
    }
    for (int32_t chunk = 0; chunk < chunks; chunk += STAGES) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            if (chunk + stage >= chunks) {
                break;
            }
            decode(stage);
            if (chunk + stage + STAGES < chunks) {
                load(stage, (STAGES + stage) * PRODUCT_CHUNK);
            }
            multiply();
        }
        low = product_at<W>(low, STAGES * PRODUCT_CHUNK);
        high = M == 16 ? product_at<W>(high, STAGES * PRODUCT_CHUNK) : low;
#pragma unroll
        for (int t = 0; t < NT; t++) {
            x_at[t] = product_at<X>(x_at[t], STAGES * PRODUCT_CHUNK);
        }
    }
    if (first + chunks * PRODUCT_CHUNK < last) { // half a chunk: the upper lanes have no columns
        int32_t ahead = (chunks - (chunks + STAGES - 1) / STAGES * STAGES) * PRODUCT_CHUNK;
        load(0, ahead - (column < 32 ? 0 : 32));
        if (column >= 32) {
            product_clear<W>(&low_codes[0]);
            product_clear<W>(&high_codes[0]);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                product_clear<X>(&x_codes[0][t]);
            }
        }
        decode(0);
        multiply();
    }
}

/* The tile of a block: 128 outputs x N rows, N = 64 or 128; a warp takes 32 x 32 of them. */
#define PRODUCT_TILE_M 128

template <int N> struct product_tile_shape {
    static constexpr int THREADS = 4 * N; // all bring 16 values of the rows, each chunk
    static constexpr int WARPS_N = N / 32;
    static constexpr int MT = 2;
    static constexpr int NT = 4;
    static constexpr int PIECES =
        PRODUCT_TILE_M / N; // of 16 values of the weight, that each brings
    static constexpr int BUFFER_BYTES = (PRODUCT_TILE_M + N) * PRODUCT_CHUNK * 2;
    static constexpr int STAGED_STRIDE = PRODUCT_TILE_M + 4; // floats, keeps banks apart
    static constexpr int STAGED_BYTES = N * STAGED_STRIDE * 4;
    static constexpr int SHARED_BYTES =
        STAGED_BYTES > 2 * BUFFER_BYTES ? STAGED_BYTES : 2 * BUFFER_BYTES;
};

/* Which row of the tile thread `thread` brings: its weight row, its input row. */
template <int N> __device__ __forceinline__ int32_t product_tile_output(int32_t thread) {
    return thread * product_tile_shape<N>::PIECES / 4;
}

__device__ __forceinline__ int32_t product_tile_input(int32_t thread) {
    return thread / 4;
}

/* A row of the tile in shared memory is 64 bf16, eight units of 16 bytes, exchanged so that neither
 * writing nor reading meets a bank twice. */
__device__ __forceinline__ unsigned char *
product_unit(unsigned char *tile, int32_t row, int32_t unit) {
    return tile + row * (PRODUCT_CHUNK * 2) + (unit ^ (row & 7)) * 16;
}

/* Decodes 16 values that are columns [16 piece, 16 piece + 16) of a chunk into the tile. */
template <enum dtype T, bool BY_BYTES>
__device__ __forceinline__ void product_stage(
    const struct product_codes<T> *codes, unsigned char *tile, int32_t row, int32_t piece
) {
    uint32_t v[8];
    product_decode<T, BY_BYTES>(codes, v);
    *reinterpret_cast<uint4 *>(product_unit(tile, row, 2 * piece)) =
        make_uint4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<uint4 *>(product_unit(tile, row, 2 * piece + 1)) =
        make_uint4(v[4], v[5], v[6], v[7]);
}

__device__ __forceinline__ void product_fetch(const unsigned char *unit, uint32_t to[4]) {
    uint4 v = *reinterpret_cast<const uint4 *>(unit);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* One chunk of the tile in shared memory onto the warp's sums. */
template <int N>
__device__ __forceinline__ void product_tile_chunk(
    unsigned char *outputs,
    unsigned char *inputs,
    float sum[product_tile_shape<N>::MT][product_tile_shape<N>::NT][4]
) {
    using shape = struct product_tile_shape<N>;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t group = (int32_t)threadIdx.x % WARP / 4;
    int32_t pair = (int32_t)threadIdx.x % 4;
    int32_t row = warp % shape::WARPS_N * 32 + group;
    int32_t output = warp / shape::WARPS_N * (16 * shape::MT) + group;
    constexpr int EIGHT_ROWS = 8 * PRODUCT_CHUNK * 2; // bytes; as far apart, units lie alike
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned char *input_unit = product_unit(inputs, row, 2 * pair + half);
        const unsigned char *output_unit = product_unit(outputs, output, 2 * pair + half);
        uint32_t x[shape::NT][4];
#pragma unroll
        for (int t = 0; t < shape::NT; t++) {
            product_fetch(input_unit + t * EIGHT_ROWS, x[t]);
        }
#pragma unroll
        for (int m = 0; m < shape::MT; m++) {
            uint32_t low[4];
            uint32_t high[4];
            product_fetch(output_unit + 2 * m * EIGHT_ROWS, low);
            product_fetch(output_unit + (2 * m + 1) * EIGHT_ROWS, high);
            product_half<shape::NT>(sum[m], low, high, x);
        }
    }
}

/* A block of THREADS: total[m][t] = 16 outputs x 8 rows over columns [first, last), where `first`
 * begins a slice of `slice` columns; with WALKS sums of slices are added in their order, without it
 * [first, last) lies within one slice. `weight` and `input` are the rows that product_tile_output and
 * product_tile_input name. `shared` has SHARED_BYTES, 128-byte aligned; barriers inside, none needed
 * before, one needed before its reuse. */
template <enum dtype W, enum dtype X, int N, bool WALKS>
__device__ __forceinline__ void product_tile(
    struct product_row weight,
    struct product_row input,
    int32_t first,
    int32_t last,
    int32_t slice,
    unsigned char *shared,
    float total[product_tile_shape<N>::MT][product_tile_shape<N>::NT][4]
) {
    using shape = struct product_tile_shape<N>;
    constexpr bool BY_BYTES = PRODUCT_BY_BYTES<W, X>;
    int32_t thread = (int32_t)threadIdx.x;
    int32_t output_row = product_tile_output<N>(thread);
    int32_t output_piece = thread * shape::PIECES % 4;
    int32_t input_row = product_tile_input(thread);
    int32_t input_piece = thread % 4;
    struct product_codes<W> w[shape::PIECES];
    struct product_codes<X> x;
    struct product_row w_at = product_at<W>(weight, first + 16 * output_piece);
    struct product_row x_at = product_at<X>(input, first + 16 * input_piece);
    // Every load is made, whatever `last` is: one that depends on a condition would be waited for at
    // once. Of half a chunk, pieces without columns bring the first half's, to be cleared when used.
    auto load = [&](int32_t chunk) {
#pragma unroll
        for (int i = 0; i < shape::PIECES; i++) {
            int32_t back = chunk + 16 * (output_piece + i) < last ? 0 : 32;
            product_load<W, false>(&w[i], product_at<W>(product_at<W>(w_at, 16 * i), -back));
        }
        int32_t back = chunk + 16 * input_piece < last ? 0 : 32;
        product_load<X, false>(&x, product_at<X>(x_at, -back));
    };
    auto clear_half = [&](int32_t chunk) {
#pragma unroll
        for (int i = 0; i < shape::PIECES; i++) {
            if (chunk + 16 * (output_piece + i) >= last) {
                product_clear<W>(&w[i]);
            }
        }
        if (chunk + 16 * input_piece >= last) {
            product_clear<X>(&x);
        }
    };
    float sum[shape::MT][shape::NT][4]; // of a slice, when there are several
    auto fold = [&](bool is_first) {
#pragma unroll
        for (int i = 0; i < shape::MT * shape::NT * 4; i++) {
            float *s = &sum[i / (4 * shape::NT)][i / 4 % shape::NT][i % 4];
            float *to = &total[i / (4 * shape::NT)][i / 4 % shape::NT][i % 4];
            *to = is_first ? *s : __fadd_rn(*to, *s);
            *s = 0.0F;
        }
    };
#pragma unroll
    for (int i = 0; i < shape::MT * shape::NT * 4; i++) {
        sum[i / (4 * shape::NT)][i / 4 % shape::NT][i % 4] = 0.0F;
        total[i / (4 * shape::NT)][i / 4 % shape::NT][i % 4] = 0.0F;
    }
    load(first);
    int32_t slice_end = first + slice;
#pragma unroll 1
    for (int32_t chunk = first; chunk < last; chunk += PRODUCT_CHUNK) {
        // Two buffers in turn: who passes the barrier has done with the other one.
        bool is_odd = (chunk - first) / PRODUCT_CHUNK % 2 != 0;
        unsigned char *outputs = shared + (is_odd ? shape::BUFFER_BYTES : 0);
        unsigned char *inputs = outputs + PRODUCT_TILE_M * PRODUCT_CHUNK * 2;
        if (chunk + PRODUCT_CHUNK > last) {
            clear_half(chunk);
        }
#pragma unroll
        for (int i = 0; i < shape::PIECES; i++) {
            product_stage<W, BY_BYTES>(&w[i], outputs, output_row, output_piece + i);
        }
        product_stage<X, BY_BYTES>(&x, inputs, input_row, input_piece);
        // Behind the last chunk it is brought once more, for nothing.
        int32_t next = chunk + PRODUCT_CHUNK < last ? PRODUCT_CHUNK : 0;
        w_at = product_at<W>(w_at, next);
        x_at = product_at<X>(x_at, next);
        load(chunk + next);
        __syncthreads();
        product_tile_chunk<N>(outputs, inputs, WALKS ? sum : total);
        if (WALKS && (chunk + PRODUCT_CHUNK >= slice_end || chunk + PRODUCT_CHUNK >= last)) {
            fold(slice_end == first + slice);
            slice_end += slice;
        }
    }
}

/* Lays the totals out in shared memory as floats [N rows][STAGED_STRIDE], outputs adjacent. Barriers
 * before and after are inside. */
template <int N>
__device__ __forceinline__ float *product_tile_staged(
    const float total[product_tile_shape<N>::MT][product_tile_shape<N>::NT][4],
    unsigned char *shared
) {
    using shape = struct product_tile_shape<N>;
    float *staged = reinterpret_cast<float *>(shared);
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t group = (int32_t)threadIdx.x % WARP / 4;
    int32_t pair = (int32_t)threadIdx.x % 4;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < shape::MT; m++) {
#pragma unroll
        for (int t = 0; t < shape::NT; t++) {
            int32_t row = warp % shape::WARPS_N * 32 + 8 * t + 2 * pair;
            int32_t output = warp / shape::WARPS_N * (16 * shape::MT) + 16 * m + group;
            float *to = staged + row * shape::STAGED_STRIDE + output;
            to[0] = total[m][t][0];
            to[shape::STAGED_STRIDE] = total[m][t][1];
            to[8] = total[m][t][2];
            to[shape::STAGED_STRIDE + 8] = total[m][t][3];
        }
    }
    __syncthreads();
    return staged;
}

#endif
