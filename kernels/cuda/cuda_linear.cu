/* Linear layers. Bound: reading the weight for few rows, tensor-core products for many.
 *
 * Three ways that give the same bits (cuda_product.cuh says why):
 *   few     up to 32 rows: a warp per (8 or 16 outputs, slice) streams its part of the weight through
 *           registers; the slices of a tile are warps of one block
 *   middle  more rows: a block per (128 outputs, 64 rows) decodes the rows once into shared memory for
 *           four warps, each of which has 32 outputs, whose codes it decodes in registers. A block
 *           per slice where there are few tiles: sums go to scratch and a second kernel adds them;
 *           so few that a warp waits for its own products: 16 outputs a warp, or 64 a block.
 *           Else the block walks the slices, with the totals in shared memory
 *   tiled   a block per tile of 128 outputs x 64 or 128 rows, both operands decoded into shared memory,
 *           for what middle does not take: FP4, bf16 of more than 64 rows, `out` no multiple of four
 * F32 weights are rare and small: one warp per output, lanes fold in a fixed tree.
 */
#include "cuda_product.cuh"

#include "cuda_formats.cuh"

#define FEW_ROWS_MAX 32
#define FEW_WARPS    16 /* at most; a block has 8 unless a tile alone has more slices */
#define FEW_STAGES(X, NT)                                                                          \
    ((NT) == 4 ? ((X) == DTYPE_BF16 ? 1 : 2) : ((X) == DTYPE_BF16 ? 2 : 5 - (NT)))
#define MIDDLE_ROWS   64 /* at most */
#define MIDDLE_BUFFER (MIDDLE_ROWS * PRODUCT_CHUNK * 2)
#define SPLIT_BYTES   ((size_t)48 << 20)

/* What a kernel needs of the op. */
struct linear_job {
    int32_t rows, groups, in, out;
    int32_t slice; /* columns */
    int32_t slices;
    const uint16_t *input;
    struct quantized quantized;
    struct weight weight;
    bool is_f32; /* output */
    void *output;
    float *partial; /* [slices, R, groups * out] */
};

template <enum dtype X>
__device__ __forceinline__ struct product_row
linear_input_row(const struct linear_job *job, int32_t row, int32_t group) {
    int32_t columns = job->groups * job->in;
    if (X == DTYPE_BF16) {
        size_t at = (size_t)row * (size_t)columns + (size_t)group * (size_t)job->in;
        return {reinterpret_cast<const uint8_t *>(job->input + at), nullptr};
    }
    return product_quantized_row(&job->quantized, columns, row, group * job->in);
}

__device__ __forceinline__ void
linear_store(const struct linear_job *job, int32_t row, int32_t column, float value) {
    size_t at = (size_t)row * ((size_t)job->groups * (size_t)job->out) + (size_t)column;
    if (job->is_f32) {
        static_cast<float *>(job->output)[at] = value;
    } else {
        static_cast<uint16_t *>(job->output)[at] = bf16_encode(value);
    }
}

/* What linear_few reads first. */
template <enum dtype W, int M>
__device__ __forceinline__ void
linear_few_prefetch(const struct linear_job *job, int32_t tiles_per_block) {
#if CUDA_OVERLAP
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t tiles_per_group = (job->out + M - 1) / M;
    int32_t tile = (int32_t)blockIdx.x * tiles_per_block + warp / job->slices;
    int32_t first = warp % job->slices * job->slice;
    if (tile < tiles_per_group * job->groups) {
#pragma unroll
        for (int32_t i = 0; i < M; i += 8) {
            int32_t output = tile % tiles_per_group * M + (int32_t)threadIdx.x % WARP / 4 + i;
            int32_t row = tile / tiles_per_group * job->out + min(output, job->out - 1);
            product_prefetch<W>(&job->weight, row, first, min(first + job->slice, job->in));
        }
    }
#else
    (void)job;
    (void)tiles_per_block;
#endif
}

/* Grid: tiles of M outputs (8 or 16) over all groups, `tiles_per_block` a block of tiles_per_block x
 * slices warps. Shared memory: a float for each (warp, row, output). */
template <enum dtype W, enum dtype X, int M, int NT>
__global__ void __launch_bounds__(FEW_WARPS *WARP)
    linear_few(struct mark mark, struct linear_job job, int32_t tiles_per_block) {
    linear_few_prefetch<W, M>(&job, tiles_per_block);
    MARK(mark);
    DYNAMIC_SHARED(shared);
    float *partial = reinterpret_cast<float *>(shared); // [tiles][slices][8 NT rows][M]
    constexpr int32_t TILE = 8 * NT * M;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t group_of_lanes = (int32_t)threadIdx.x % WARP / 4;
    int32_t pair = (int32_t)threadIdx.x % 4;
    int32_t tiles_per_group = (job.out + M - 1) / M;
    int32_t tiles = tiles_per_group * job.groups;
    int32_t first_tile = (int32_t)blockIdx.x * tiles_per_block;
    int32_t tile = first_tile + warp / job.slices;
    if (tile < tiles) {
        int32_t group = tile / tiles_per_group;
        int32_t low = tile % tiles_per_group * M + group_of_lanes;
        int32_t high = min(low + 8, job.out - 1);
        low = min(low, job.out - 1);
        int32_t base = group * job.out;
        struct product_row x[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) {
            x[t] = linear_input_row<X>(&job, min(8 * t + group_of_lanes, job.rows - 1), group);
        }
        int32_t first = warp % job.slices * job.slice;
        float d[NT][4];
        product_slice<W, X, M, NT, FEW_STAGES(X, NT)>(
            product_weight_row<W>(&job.weight, base + low),
            product_weight_row<W>(&job.weight, base + high),
            x,
            first,
            min(first + job.slice, job.in),
            d
        );
#pragma unroll
        for (int t = 0; t < NT; t++) {
            float *to = partial + warp * TILE + (8 * t + 2 * pair) * M + group_of_lanes;
            to[0] = d[t][0];
            to[M] = d[t][1];
            if (M == 16) {
                to[8] = d[t][2];
                to[M + 8] = d[t][3];
            }
        }
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < tiles_per_block * TILE; i += (int32_t)blockDim.x) {
        int32_t row = i / M % (8 * NT);
        int32_t at = first_tile + i / TILE;
        int32_t output = at % tiles_per_group * M + i % M;
        if (at >= tiles || row >= job.rows || output >= job.out) {
            continue;
        }
        const float *from = partial + i / TILE * job.slices * TILE + i % TILE;
        float total = from[0];
        for (int32_t s = 1; s < job.slices; s++) {
            total = __fadd_rn(total, from[s * TILE]);
        }
        linear_store(&job, row, at / tiles_per_group * job.out + output, total);
    }
}

/* COUNT (2 or 4) adjacent outputs of a row; `column` is a multiple of it. */
template <int COUNT>
__device__ __forceinline__ void linear_store_adjacent(
    const struct linear_job *job, bool is_partial, int32_t row, int32_t column, const float value[4]
) {
    size_t at = (size_t)row * ((size_t)job->groups * (size_t)job->out) + (size_t)column;
    if (is_partial || job->is_f32) {
        size_t slice = (size_t)blockIdx.z * (size_t)job->rows;
        float *to = is_partial ? job->partial + slice * ((size_t)job->groups * job->out)
                               : static_cast<float *>(job->output);
        if constexpr (COUNT == 4) {
            *reinterpret_cast<float4 *>(to + at) =
                make_float4(value[0], value[1], value[2], value[3]);
        } else {
            *reinterpret_cast<float2 *>(to + at) = make_float2(value[0], value[1]);
        }
        return;
    }
    uint16_t *to = static_cast<uint16_t *>(job->output) + at;
    uint32_t low = bf16_encode(value[0]) | (uint32_t)bf16_encode(value[1]) << 16;
    if constexpr (COUNT == 4) {
        uint32_t high = bf16_encode(value[2]) | (uint32_t)bf16_encode(value[3]) << 16;
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
    } else {
        *reinterpret_cast<uint32_t *>(to) = low;
    }
}

/* A block of the middle way: WARPS warps of MT tiles of 16 outputs, whose lane groups have OWN adjacent
 * ones. */
template <enum dtype W, int MT, int WARPS, bool WALKS> struct middle_shape {
    static constexpr int THREADS = WARPS * WARP;
    static constexpr int OWN = 2 * MT;
    static constexpr int OUTPUTS = 16 * MT * WARPS;
    static constexpr int QUADS = W == DTYPE_BF16 ? 2 : 1;    // 16 bytes each, of a lane's 16 values
    static constexpr int STAGE = THREADS * OWN * QUADS * 16; // bytes of codes
    // Walking takes room for totals: three blocks still fit a multiprocessor.
    static constexpr int STAGES = WALKS ? 3 : 4;
    static constexpr int TOTALS = WALKS ? OUTPUTS * MIDDLE_ROWS * 4 : 0;
    static constexpr int BYTES = 2 * MIDDLE_BUFFER + STAGES * STAGE + TOTALS;
    static constexpr int BLOCKS = MT == 2 ? 3 : WARPS == 8 ? 2 : 4; // of a multiprocessor
};

/* One chunk of rows in shared memory onto the warp's sums: sum[m] += outputs (low, high) of `w[2 m]`
 * and `w[2 m + 1]`. */
template <enum dtype W, bool BY_BYTES, int MT, int NT>
__device__ __forceinline__ void linear_middle_chunk(
    unsigned char *rows, const struct product_codes<W> w[2 * MT], float sum[MT][NT][4]
) {
    constexpr int AT_ONCE = 2; // of the NT: so many operands are in registers
    int32_t group = (int32_t)threadIdx.x % WARP / 4;
    int32_t pair = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned char *unit = product_unit(rows, group, 2 * pair + half);
        uint32_t a[2 * MT][4];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            uint32_t both[8];
            product_decode<W, BY_BYTES>(&w[i], both);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                a[i][j] = both[4 * half + j];
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t += AT_ONCE) {
            uint32_t x[AT_ONCE][4];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                product_fetch(unit + (t + i) * 8 * PRODUCT_CHUNK * 2, x[i]);
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    uint32_t left[4] = {
                        a[2 * m][2 * j],
                        a[2 * m + 1][2 * j],
                        a[2 * m][2 * j + 1],
                        a[2 * m + 1][2 * j + 1],
                    };
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i++) {
                        uint32_t right[2] = {x[i][2 * j], x[i][2 * j + 1]};
                        mma_bf16(sum[m][t + i], left, right);
                    }
                }
            }
        }
    }
}

/* What linear_middle reads first. */
template <enum dtype W, class Shape>
__device__ __forceinline__ void linear_middle_prefetch(const struct linear_job *job) {
#if CUDA_OVERLAP
    int32_t tiles_per_group = (job->out + Shape::OUTPUTS - 1) / Shape::OUTPUTS;
    int32_t output = (int32_t)blockIdx.y % tiles_per_group * Shape::OUTPUTS;
    output += (int32_t)threadIdx.x / 4 * Shape::OWN;
    int32_t first = (int32_t)blockIdx.z * job->slice;
#pragma unroll
    for (int32_t i = 0; i < Shape::OWN; i++) {
        int32_t row = (int32_t)blockIdx.y / tiles_per_group * job->out;
        row += min(output + i, job->out - 1);
        product_prefetch<W>(&job->weight, row, first, min(first + job->slice, job->in));
    }
#else
    (void)job;
#endif
}

/* Grid: x tiles of MIDDLE_ROWS, y tiles of the shape's OUTPUTS over all groups, z slices; or, when there
 * are several and the block WALKS them, 1. Rows vary fastest, as in linear_tiled. `out` is a multiple of
 * four: a lane group's adjacent outputs share an FP8 weight's scales. Shared memory: two buffers of a
 * chunk of rows, then codes of the weight as they are, where each lane reads what it brought itself. */
template <enum dtype W, enum dtype X, int MT, int WARPS, bool WALKS>
__global__ void __launch_bounds__(WARPS *WARP, middle_shape<W, MT, WARPS, WALKS>::BLOCKS)
    linear_middle(struct mark mark, struct linear_job job) {
    using shape = struct middle_shape<W, MT, WARPS, WALKS>;
    linear_middle_prefetch<W, shape>(&job);
    MARK(mark);
    DYNAMIC_SHARED(shared);
    constexpr bool BY_BYTES = PRODUCT_BY_BYTES<W, X>;
    constexpr int NT = MIDDLE_ROWS / 8;
    constexpr int OWN = shape::OWN;
    constexpr int STAGES = shape::STAGES;
    constexpr int THREADS_A_ROW = shape::THREADS / (8 * NT); // bring it
    constexpr int PIECES = 4 / THREADS_A_ROW;                // of 16 columns, each
    int32_t thread = (int32_t)threadIdx.x;
    int32_t pair = thread % 4;
    int32_t tiles_per_group = (job.out + shape::OUTPUTS - 1) / shape::OUTPUTS;
    int32_t group = (int32_t)blockIdx.y / tiles_per_group;
    int32_t output = (int32_t)blockIdx.y % tiles_per_group * shape::OUTPUTS + thread / 4 * OWN;
    bool is_inside = output < job.out;
    int32_t first_row = (int32_t)blockIdx.x * MIDDLE_ROWS;
    int32_t first = (int32_t)blockIdx.z * job.slice;
    int32_t last = WALKS ? job.in : min(first + job.slice, job.in);
    int32_t piece = thread % THREADS_A_ROW * PIECES;
    int32_t x_row = thread / THREADS_A_ROW;
    struct product_row x_from = product_at<X>(
        linear_input_row<X>(&job, min(first_row + x_row, job.rows - 1), group), first + 16 * piece
    );
    struct product_row w_from = product_at<W>(
        product_weight_row<W>(&job.weight, group * job.out + (is_inside ? output : job.out - OWN)),
        first + 16 * pair
    );
    size_t stride = (size_t)job.in * (W == DTYPE_BF16 ? 2 : 1);
    unsigned char *codes = shared + 2 * MIDDLE_BUFFER + thread * 16;
    constexpr int BETWEEN = shape::THREADS * 16; // bytes from one quad of codes to the next
    struct product_codes<W> w[OWN];
    struct product_codes<X> x[PIECES];
    uint32_t scale = 0; // of the next chunk
    int32_t columns = last - first;
    // A group of copies for each chunk, whether there is one or not.
    auto load_w = [&](int32_t at) {
        if (at < columns) {
            bool is_valid = at + 16 * pair < columns;
            const uint8_t *from = product_at<W>(w_from, is_valid ? at : at - 32).data;
            unsigned char *to = codes + at / PRODUCT_CHUNK % STAGES * shape::STAGE;
#pragma unroll
            for (int i = 0; i < OWN * shape::QUADS; i++) {
                int32_t quad = i % shape::QUADS * 16;
                copy_async16(to + i * BETWEEN, from + i / shape::QUADS * stride + quad, is_valid);
            }
        }
        copy_async_commit();
    };
    auto load_scale = [&](int32_t at) {
        bool is_valid = at + 16 * pair < columns; // else codes are zero and the scale finite
        if (W != DTYPE_BF16) {
            scale = is_valid ? load_read_only(product_at<W>(w_from, at).scale) : 0;
        }
    };
    auto take_w = [&](int32_t at) {
        unsigned char *from = codes + at / PRODUCT_CHUNK % STAGES * shape::STAGE;
#pragma unroll
        for (int i = 0; i < OWN * shape::QUADS; i++) {
            product_fetch(from + i * BETWEEN, w[i / shape::QUADS].word + i % shape::QUADS * 4);
            w[i / shape::QUADS].scale = scale;
        }
    };
    // Of half a chunk, pieces without columns bring the first half's, to be cleared when used.
    auto load_x = [&](int32_t ahead) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            bool is_behind = first + ahead + 16 * (piece + i) >= last;
            struct product_row from = product_at<X>(x_from, is_behind ? ahead - 32 : ahead);
            from.data += i * (X == DTYPE_BF16 ? 32 : 16); // within 32 columns of one scale
            product_load<X, false>(&x[i], from);
        }
    };
    float sum[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) {
        sum[i / (4 * NT)][i / 4 % NT][i % 4] = 0.0F;
    }
    // Totals of the slices so far are the lane's own, too; the last one's stay in `sum`.
    float *totals =
        reinterpret_cast<float *>(shared + 2 * MIDDLE_BUFFER + STAGES * shape::STAGE) + thread;
    auto fold = [&](bool is_first, bool is_last) {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
            float *s = &sum[i / (4 * NT)][i / 4 % NT][i % 4];
            float *to = totals + i * shape::THREADS;
            float total = is_first ? *s : __fadd_rn(*to, *s);
            *to = total;
            *s = is_last ? total : 0.0F;
        }
    };
    int32_t slice_end = job.slice;
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        load_w(stage * PRODUCT_CHUNK);
    }
    load_x(0);
    load_scale(0);
#pragma unroll 1
    for (int32_t at = 0; at < columns; at += PRODUCT_CHUNK) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            if (at + 16 * (piece + i) >= columns) {
                product_clear<X>(&x[i]);
            }
        }
        // Who passes the barrier has done with the other buffer, and with its codes of this chunk.
        unsigned char *rows = shared + at / PRODUCT_CHUNK % 2 * MIDDLE_BUFFER;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            product_stage<X, BY_BYTES>(&x[i], rows, x_row, piece + i);
        }
        if (at + PRODUCT_CHUNK < columns) {
            load_x(at + PRODUCT_CHUNK);
        }
        copy_async_wait<STAGES - 1>();
        take_w(at);
        load_scale(at + PRODUCT_CHUNK);
        __syncthreads();
        load_w(at + STAGES * PRODUCT_CHUNK);
        linear_middle_chunk<W, BY_BYTES, MT, NT>(rows, w, sum);
        if (WALKS && (at + PRODUCT_CHUNK >= slice_end || at + PRODUCT_CHUNK >= columns)) {
            fold(slice_end == job.slice, at + PRODUCT_CHUNK >= columns);
            slice_end += job.slice;
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        int32_t row = first_row + i / 2 * 8 + 2 * pair + i % 2;
        if (is_inside && row < job.rows) {
            constexpr int LAST = MT - 1; // two values or four
            const float value[4] = {
                sum[0][i / 2][i % 2],
                sum[0][i / 2][2 + i % 2],
                sum[LAST][i / 2][i % 2],
                sum[LAST][i / 2][2 + i % 2],
            };
            linear_store_adjacent<OWN>(
                &job, !WALKS && job.slices > 1, row, group * job.out + output, value
            );
        }
    }
}

/* Grid: x tiles of N rows, y tiles of 128 outputs over all groups, z slices when they are split.
 * Rows vary fastest: blocks that run together share their weights. */
template <enum dtype W, enum dtype X, int N>
__global__ void __launch_bounds__(product_tile_shape<N>::THREADS, N == 64 ? 2 : 1)
    linear_tiled(struct mark mark, struct linear_job job) {
    using shape = struct product_tile_shape<N>;
    MARK(mark);
    DYNAMIC_SHARED(shared);
    int32_t thread = (int32_t)threadIdx.x;
    int32_t tiles_per_group = (job.out + PRODUCT_TILE_M - 1) / PRODUCT_TILE_M;
    int32_t group = (int32_t)blockIdx.y / tiles_per_group;
    int32_t first_output = (int32_t)blockIdx.y % tiles_per_group * PRODUCT_TILE_M;
    int32_t first_row = (int32_t)blockIdx.x * N;
    int32_t output = min(first_output + product_tile_output<N>(thread), job.out - 1);
    int32_t row = min(first_row + product_tile_input(thread), job.rows - 1);
    bool is_split = gridDim.z > 1;
    int32_t first = (int32_t)blockIdx.z * job.slice;
    float total[shape::MT][shape::NT][4];
    product_tile<W, X, N, N == 128>(
        product_weight_row<W>(&job.weight, group * job.out + output),
        linear_input_row<X>(&job, row, group),
        first,
        is_split ? min(first + job.slice, job.in) : job.in,
        job.slice,
        shared,
        total
    );
    const float *staged = product_tile_staged<N>(total, shared);
    size_t columns = (size_t)job.groups * (size_t)job.out;
    float *partial = job.partial + (size_t)blockIdx.z * (size_t)job.rows * columns;
    for (int32_t i = thread; i < N * PRODUCT_TILE_M; i += shape::THREADS) {
        int32_t to_row = first_row + i / PRODUCT_TILE_M;
        int32_t to_output = first_output + i % PRODUCT_TILE_M;
        if (to_row >= job.rows || to_output >= job.out) {
            continue;
        }
        float value = staged[i / PRODUCT_TILE_M * shape::STAGED_STRIDE + i % PRODUCT_TILE_M];
        int32_t column = group * job.out + to_output;
        if (is_split) {
            partial[(size_t)to_row * columns + (size_t)column] = value;
        } else {
            linear_store(&job, to_row, column, value);
        }
    }
}

/* Adds the slices of each output in their order; SLICES: their number where it is known, else 0. Grid:
 * x columns, y rows. */
template <int SLICES>
__global__ void __launch_bounds__(256) linear_combine(struct mark mark, struct linear_job job) {
    MARK(mark);
    constexpr int MOST = SLICES == 0 ? PRODUCT_SLICES_MAX : SLICES;
    int32_t columns = job.groups * job.out;
    int32_t column = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= columns) {
        return;
    }
    size_t stride = (size_t)job.rows * (size_t)columns;
    const float *from = job.partial + (size_t)blockIdx.y * (size_t)columns + (size_t)column;
    float part[MOST]; // all on their way at once, if their number is known
#pragma unroll
    for (int s = 0; s < MOST; s++) {
        part[s] = SLICES != 0 || s < job.slices ? from[(size_t)s * stride] : 0.0F;
    }
    float total = part[0];
#pragma unroll
    for (int s = 1; s < MOST; s++) {
        total = SLICES != 0 || s < job.slices ? __fadd_rn(total, part[s]) : total;
    }
    linear_store(&job, (int32_t)blockIdx.y, column, total);
}

/* Grid: x outputs over all groups, eight a block, y rows. */
__global__ void __launch_bounds__(256) linear_f32(struct mark mark, struct linear_job job) {
    MARK(mark);
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t column = (int32_t)blockIdx.x * 8 + (int32_t)threadIdx.x / WARP;
    if (column >= job.groups * job.out) {
        return;
    }
    int32_t row = (int32_t)blockIdx.y;
    size_t at = (size_t)row * job.groups * job.in + (size_t)(column / job.out) * (size_t)job.in;
    const float *weight = static_cast<const float *>(job.weight.data) + (size_t)column * job.in;
    float sum = 0.0F;
    for (int32_t k = lane; k < job.in; k += WARP) {
        sum = __fmaf_rn(bf16_decode(job.input[at + k]), weight[k], sum);
    }
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffU, sum, distance));
    }
    if (lane == 0) {
        linear_store(&job, row, column, sum);
    }
}

template <enum dtype W, enum dtype X, int M, int NT>
static void launch_few(struct cuda *cuda, const struct linear_job *job) {
    int32_t tiles = (job->out + M - 1) / M * job->groups;
    int32_t per_block = job->slices < 8 ? 8 / job->slices : 1;
    int32_t warps = per_block * job->slices;
    auto kernel = linear_few<W, X, M, NT>;
    CUDA_LAUNCH(
        cuda,
        CUDA_OP_LINEAR,
        kernel,
        dim3((unsigned)((tiles + per_block - 1) / per_block)),
        dim3((unsigned)(warps * WARP)),
        (size_t)warps * 8 * NT * M * sizeof(float),
        *job,
        per_block
    );
}

static void launch_combine(struct cuda *cuda, const struct linear_job *job) {
    int32_t columns = job->groups * job->out;
    auto kernel = job->slices == 16  ? linear_combine<16>
                  : job->slices == 8 ? linear_combine<8>
                  : job->slices == 4 ? linear_combine<4>
                                     : linear_combine<0>;
    CUDA_LAUNCH(
        cuda,
        CUDA_OP_LINEAR,
        kernel,
        dim3((unsigned)((columns + 255) / 256), (unsigned)job->rows),
        dim3(256),
        0,
        *job
    );
}

template <enum dtype W, enum dtype X, int MT, int WARPS, bool WALKS>
static void launch_middle_of(struct cuda *cuda, const struct linear_job *job) {
    using shape = struct middle_shape<W, MT, WARPS, WALKS>;
    int32_t row_tiles = (job->rows + MIDDLE_ROWS - 1) / MIDDLE_ROWS;
    int32_t tiles = (job->out + shape::OUTPUTS - 1) / shape::OUTPUTS * job->groups;
    auto kernel = linear_middle<W, X, MT, WARPS, WALKS>;
    CUDA_ALLOW_SHARED(cuda, CUDA_OP_LINEAR, kernel, shape::BYTES);
    CUDA_LAUNCH(
        cuda,
        CUDA_OP_LINEAR,
        kernel,
        dim3((unsigned)row_tiles, (unsigned)tiles, (unsigned)(WALKS ? 1 : job->slices)),
        dim3(shape::THREADS),
        (size_t)shape::BYTES,
        *job
    );
    if (!WALKS && job->slices > 1) {
        launch_combine(cuda, job);
    }
}

/* FP8 weights. */
template <enum dtype X>
static void launch_middle(struct cuda *cuda, const struct linear_job *job, bool is_split) {
    constexpr enum dtype W = DTYPE_FP8;
    int64_t machine = cuda->multiprocessors;
    int64_t blocks = (int64_t)((job->rows + MIDDLE_ROWS - 1) / MIDDLE_ROWS) * job->groups *
                     ((job->out + 127) / 128) * job->slices;
    // Sums of slices of up to MIDDLE_ROWS have room: there are less than 3,200 of 16 outputs.
    if (!is_split && job->rows > MIDDLE_ROWS && job->slices > 1) {
        launch_middle_of<W, X, 2, 4, true>(cuda, job);
    } else if (job->slices == 1 || blocks > 2 * machine) {
        launch_middle_of<W, X, 2, 4, false>(cuda, job);
    } else if (2 * blocks <= machine || (blocks > machine && 2 * blocks < 3 * machine)) {
        // half of the machine would do nothing, or most of it wait for a few second blocks
        launch_middle_of<W, X, 1, 4, false>(cuda, job);
    } else {
        launch_middle_of<W, X, 1, 8, false>(cuda, job);
    }
}

template <enum dtype W, enum dtype X, int N>
static void launch_tiled(struct cuda *cuda, const struct linear_job *job, bool is_split) {
    int32_t row_tiles = (job->rows + N - 1) / N;
    int32_t tiles = (job->out + PRODUCT_TILE_M - 1) / PRODUCT_TILE_M * job->groups;
    auto kernel = linear_tiled<W, X, N>;
    CUDA_ALLOW_SHARED(cuda, CUDA_OP_LINEAR, kernel, product_tile_shape<N>::SHARED_BYTES);
    CUDA_LAUNCH(
        cuda,
        CUDA_OP_LINEAR,
        kernel,
        dim3((unsigned)row_tiles, (unsigned)tiles, (unsigned)(is_split ? job->slices : 1)),
        dim3(product_tile_shape<N>::THREADS),
        (size_t)product_tile_shape<N>::SHARED_BYTES,
        *job
    );
    if (is_split) {
        launch_combine(cuda, job);
    }
}

/* Whether tiles alone would leave much of the device idle, and the slices' sums have room. */
static bool is_better_split(const struct cuda *cuda, const struct linear_job *job) {
    int64_t tiles = (int64_t)((job->out + PRODUCT_TILE_M - 1) / PRODUCT_TILE_M) * job->groups *
                    ((job->rows + 63) / 64);
    size_t bytes = (size_t)job->slices * job->rows * job->groups * job->out * sizeof(float);
    return job->slices > 1 && tiles < 2 * (int64_t)cuda->multiprocessors &&
           bytes <= cuda->scratch_bytes;
}

template <enum dtype W, enum dtype X>
static void launch_product(struct cuda *cuda, const struct linear_job *job) {
    // Small weights are bound by decoding them, so they go to twice as many multiprocessors.
    bool is_small = job->groups * job->out < 16 * cuda->multiprocessors;
    bool is_split = is_better_split(cuda, job);
    if (job->rows <= 8 && is_small) {
        launch_few<W, X, 8, 1>(cuda, job);
    } else if (job->rows <= 8) {
        launch_few<W, X, 16, 1>(cuda, job);
    } else if (job->rows <= 16) {
        launch_few<W, X, 16, 2>(cuda, job);
    } else if (job->rows <= FEW_ROWS_MAX) {
        launch_few<W, X, 16, 4>(cuda, job);
    } else if (W == DTYPE_FP8 && job->out % 4 == 0) { // FP4 is of no layer of the release
        launch_middle<X>(cuda, job, is_split);
    } else if (W == DTYPE_BF16 && job->out % 4 == 0 && is_split && job->rows <= MIDDLE_ROWS) {
        launch_middle_of<DTYPE_BF16, DTYPE_BF16, 1, 4, false>(cuda, job); // W and X
    } else if (is_split) {
        launch_tiled<W, X, 64>(cuda, job, true);
    } else if (job->rows <= 64 && job->slices == 1) {
        launch_tiled<W, X, 64>(cuda, job, false);
    } else {
        launch_tiled<W, X, 128>(cuda, job, false);
    }
}

size_t cuda_linear_scratch(const struct backend_options *limits) {
    return limits->rows_max > FEW_ROWS_MAX ? SPLIT_BYTES : 0;
}

void cuda_linear(struct backend *backend, const struct linear_op *op) {
    struct cuda *cuda = cuda_of(backend);
    if (op->rows == 0) {
        return;
    }
    struct linear_job job = {};
    job.rows = op->rows;
    job.groups = op->groups;
    job.in = op->in;
    job.out = op->out;
    job.slice = product_slice_columns(op->in, op->groups * op->out);
    job.slices = (op->in + job.slice - 1) / job.slice;
    job.input = op->input;
    job.quantized = op->quantized;
    job.weight = op->weight;
    job.is_f32 = op->output_dtype == DTYPE_F32;
    job.output = op->output;
    job.partial = static_cast<float *>(cuda->scratch);
    if (op->weight.dtype == DTYPE_F32) {
        int32_t columns = op->groups * op->out;
        CUDA_LAUNCH(
            cuda,
            CUDA_OP_LINEAR,
            linear_f32,
            dim3((unsigned)((columns + 7) / 8), (unsigned)op->rows),
            dim3(256),
            0,
            job
        );
    } else if (op->input_dtype == DTYPE_FP8 && op->weight.dtype == DTYPE_FP8) {
        launch_product<DTYPE_FP8, DTYPE_FP8>(cuda, &job);
    } else if (op->input_dtype == DTYPE_FP8) {
        launch_product<DTYPE_FP4, DTYPE_FP8>(cuda, &job);
    } else if (op->weight.dtype == DTYPE_FP8) {
        launch_product<DTYPE_FP8, DTYPE_BF16>(cuda, &job);
    } else {
        launch_product<DTYPE_BF16, DTYPE_BF16>(cuda, &job);
    }
}
