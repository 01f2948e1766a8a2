/* Index scores over MXFP4 keys (spec 3.7): score = sum over heads of relu(q_h . k_g) w_h.
 *
 * Keys are the rows of the products (two tiles of 16 entries a warp), heads the columns. A warp
 * decodes 32 keys once, to bf16 without their scales, and takes them to all query rows of its tile,
 * whose decoded operands lie in shared memory. A group of 32 channels is two products that begin at
 * zero: its dot is exact, the scales are powers of two, so the groups add up in FP32 to the CPU's
 * bits. The weighted sum over heads is in another fixed order: the tiles of 8 heads ascending in
 * each lane, the lane's two heads of each in turn, then the four lanes. Nothing else enters a score.
 *
 * Bound: for one row per sequence bandwidth, i/2 + i/32 bytes per entry; for many rows of one
 * sequence products, 2 I i operations per entry and row.
 */
#include "cuda_formats.cuh"
#include "cuda_index.cuh"

#define THREADS (INDEX_WARPS * WARP)
#define TILES   2 /* of 16 entries, of a warp */
#define HEADS   8 /* of a tile of heads */

/* Where the entries of a lane are: entries lane / 4 + 8 j of the warp's 32, j < 4. */
struct keys {
    const uint8_t *codes[4]; /* null: no entry */
    const uint8_t *scales[4];
};

/* The decoded codes of a lane for one group of channels: per tile the operands of two products. */
struct operand {
    uint32_t product[TILES][2][4];
};

/* Eight E2M1 codes to four pairs of bf16: codes j and j + 4 make pair j. Which channels meet in a
 * product does not matter as long as keys and queries agree. */
__device__ __forceinline__ void decode_codes(uint32_t codes, uint32_t pairs[4]) {
    // Sign, exponent and mantissa where bf16 has them make the value times 2^-126.
    const uint32_t sign = 0x80008000U;
    const uint32_t magnitude = 0x01c001c0U;
    const uint32_t factor = 0x7e807e80U; // 2^126
    pairs[0] = bf16x2_multiply(((codes << 12) & sign) | ((codes << 6) & magnitude), factor);
    pairs[1] = bf16x2_multiply(((codes << 8) & sign) | ((codes << 2) & magnitude), factor);
    pairs[2] = bf16x2_multiply(((codes << 4) & sign) | ((codes >> 2) & magnitude), factor);
    pairs[3] = bf16x2_multiply((codes & sign) | ((codes >> 6) & magnitude), factor);
}

/* 2^(code - 127) in both halves, as e8m0_decode. */
__device__ __forceinline__ uint32_t scale_pair(uint8_t code) {
    uint32_t bits = code == 0 ? 0x0040U : code == 255 ? 0x7fc0U : (uint32_t)code << 7;
    return bits | bits << 16;
}

__device__ __forceinline__ int32_t head_tiles(const struct index_select_op *op) {
    return (op->heads + HEADS - 1) / HEADS;
}

__device__ __forceinline__ uint32_t load_word(const uint8_t *from) {
    return __ldg(reinterpret_cast<const uint32_t *>(from));
}

/* Decodes the queries of `rows` rows into [row, tile of heads, group of channels, lane] operands and
 * their head weights into [row, head]. Heads that fill the last tile up are zero. */
__device__ void load_queries(
    const struct index_select_op *op, int32_t first, int32_t rows, uint4 *queries, float *weights
) {
    int32_t tiles = head_tiles(op);
    int32_t groups = op->dim / 32;
    for (int32_t i = (int32_t)threadIdx.x; i < rows * tiles * groups * WARP; i += THREADS) {
        int32_t lane = i % WARP;
        int32_t group = i / WARP % groups;
        int32_t tile = i / WARP / groups % tiles;
        int32_t head = tile * HEADS + lane / 4;
        uint32_t pairs[4] = {0, 0, 0, 0};
        if (head < op->heads) {
            size_t row = (size_t)(first + i / WARP / groups / tiles);
            size_t at = (row * (size_t)op->heads + (size_t)head) * (size_t)groups + (size_t)group;
            uint32_t scale = scale_pair(op->query_scales[at]);
            decode_codes(load_word(op->query_codes + at * 16 + lane % 4 * 4), pairs);
            for (int32_t j = 0; j < 4; j++) {
                pairs[j] = bf16x2_multiply(pairs[j], scale);
            }
        }
        queries[i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
    int32_t padded = tiles * HEADS;
    for (int32_t i = (int32_t)threadIdx.x; i < rows * padded; i += THREADS) {
        int32_t head = i % padded;
        float weight = 0.0F;
        if (head < op->heads) {
            size_t at = (size_t)(first + i / padded) * (size_t)op->heads + (size_t)head;
            weight = __fmul_rn(bf16_decode(op->head_weights[at]), op->head_scale);
        }
        weights[i] = bf16_decode(bf16_encode(weight));
    }
}

/* Candidates [first, first + 32) of `row`, those below `count`. */
__device__ __forceinline__ struct keys find_keys(
    const struct index_select_op *op,
    const struct index_row *at,
    int32_t row,
    int32_t first,
    int32_t count
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    size_t groups = (size_t)op->dim / 32;
    int32_t shift = 31 - __clz(op->source.entries); // 64 or 128 entries a block
    uint8_t *const *blocks = op->views[at->segment].blocks;
    struct keys keys;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        int32_t candidate = first + lane / 4 + 8 * j;
        keys.codes[j] = NULL;
        keys.scales[j] = NULL;
        if (candidate < count) {
            int32_t entry = index_entry(op, row, candidate);
            size_t inside = (size_t)(entry & (op->source.entries - 1));
            const uint8_t *block = blocks[entry >> shift];
            keys.codes[j] =
                block + op->source.index_code_offset + inside * groups * 16 + lane % 4 * 4;
            keys.scales[j] = block + op->source.index_scale_offset + inside * groups;
        }
    }
    return keys;
}

__device__ __forceinline__ uint32_t load_codes(const struct keys *keys, int32_t j, int32_t group) {
    return keys->codes[j] == NULL ? 0 : load_word(keys->codes[j] + group * 16);
}

__device__ __forceinline__ float load_scale(const struct keys *keys, int32_t j, int32_t group) {
    return keys->scales[j] == NULL ? 0.0F : e8m0_decode(__ldg(keys->scales[j] + group));
}

/* From the codes of a lane's four entries. */
__device__ __forceinline__ struct operand decode_keys(const uint32_t codes[4]) {
    struct operand keys;
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        uint32_t low[4]; // entry lane / 4 of the tile
        uint32_t high[4];
        decode_codes(codes[2 * tile], low);
        decode_codes(codes[2 * tile + 1], high);
#pragma unroll
        for (int32_t i = 0; i < 2; i++) {
            keys.product[tile][i][0] = low[2 * i];
            keys.product[tile][i][1] = high[2 * i];
            keys.product[tile][i][2] = low[2 * i + 1];
            keys.product[tile][i][3] = high[2 * i + 1];
        }
    }
    return keys;
}

/* dots += (q . k over one group) * scale of the key. */
__device__ __forceinline__ void
add_group(float dots[TILES][4], const struct operand *keys, const float scales[4], uint4 query) {
    const uint32_t first[2] = {query.x, query.y};
    const uint32_t second[2] = {query.z, query.w};
#pragma unroll
    for (int32_t tile = 0; tile < TILES; tile++) {
        float exact[4] = {0.0F, 0.0F, 0.0F, 0.0F};
        mma_bf16(exact, keys->product[tile][0], first);
        mma_bf16(exact, keys->product[tile][1], second);
#pragma unroll
        for (int32_t i = 0; i < 4; i++) {
            dots[tile][i] = __fmaf_rn(exact[i], scales[2 * tile + i / 2], dots[tile][i]);
        }
    }
}

/* Adds the relu of the dots with two heads, weighted, to the four entries' sums. */
__device__ __forceinline__ void
add_heads(float sums[4], const float dots[TILES][4], float2 weights) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        const float *dot = &dots[j / 2][j % 2 * 2];
        sums[j] = __fmaf_rn(fmaxf(dot[0], 0.0F), weights.x, sums[j]);
        sums[j] = __fmaf_rn(fmaxf(dot[1], 0.0F), weights.y, sums[j]);
    }
}

/* The four lanes of an entry add their sums up, ((0 + 1) + (2 + 3)); each gets one of its four. */
__device__ __forceinline__ float add_lanes(const float sums[4]) {
    int32_t lane = (int32_t)threadIdx.x;
    bool odd = (lane & 1) != 0;
    bool upper = (lane & 2) != 0;
    float low = __shfl_xor_sync(0xffffffffU, odd ? sums[0] : sums[1], 1);
    float high = __shfl_xor_sync(0xffffffffU, odd ? sums[2] : sums[3], 1);
    low = __fadd_rn(odd ? sums[1] : sums[0], low);
    high = __fadd_rn(odd ? sums[3] : sums[2], high);
    float other = __shfl_xor_sync(0xffffffffU, upper ? low : high, 2);
    return __fadd_rn(upper ? high : low, other);
}

/* The keys of a warp, decoded for all groups: of the release's width. */
#define KEPT_GROUPS 4
struct kept_keys {
    struct operand group[KEPT_GROUPS];
    float scales[KEPT_GROUPS][4];
};

__device__ __forceinline__ void take_keys(struct kept_keys *kept, const struct keys *keys) {
    uint32_t codes[KEPT_GROUPS][4];
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        static_assert(KEPT_GROUPS == 4, "the scales of an entry are one word");
        uint32_t word = keys->scales[j] == NULL ? 0 : load_word(keys->scales[j]);
#pragma unroll
        for (int32_t g = 0; g < KEPT_GROUPS; g++) {
            codes[g][j] = load_codes(keys, j, g);
            kept->scales[g][j] = e8m0_decode((uint8_t)(word >> (8 * g)));
        }
    }
#pragma unroll
    for (int32_t g = 0; g < KEPT_GROUPS; g++) {
        kept->group[g] = decode_keys(codes[g]);
    }
}

__device__ __forceinline__ void
add_dots(float dots[TILES][4], const struct kept_keys *kept, int32_t groups, const uint4 *query) {
    (void)groups;
#pragma unroll
    for (int32_t g = 0; g < KEPT_GROUPS; g++) {
        add_group(dots, &kept->group[g], kept->scales[g], query[g * WARP]);
    }
}

/* Of any other width they are decoded anew at each use; the products are the same. */
struct any_keys {
    struct keys keys;
};

__device__ __forceinline__ void take_keys(struct any_keys *any, const struct keys *keys) {
    any->keys = *keys;
}

__device__ __forceinline__ void
add_dots(float dots[TILES][4], const struct any_keys *any, int32_t groups, const uint4 *query) {
    for (int32_t g = 0; g < groups; g++) {
        uint32_t codes[4];
        float scales[4];
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            codes[j] = load_codes(&any->keys, j, g);
            scales[j] = load_scale(&any->keys, j, g);
        }
        struct operand operand = decode_keys(codes);
        add_group(dots, &operand, scales, query[g * WARP]);
    }
}

template <class Decoded>
__global__ void __launch_bounds__(THREADS, 2)
    index_score_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t groups = op.dim / 32;
    int32_t tiles = head_tiles(&op);
    uint4 *queries = reinterpret_cast<uint4 *>(shared);
    float *weights =
        reinterpret_cast<float *>(queries + (size_t)plan.tile_rows * tiles * groups * WARP);
    int32_t step = 0;
    int32_t last = 0;
    share_of(plan.step_first[plan.rows], &step, &last);
    while (step < last) {
        int32_t head = owner_of(plan.step_first, plan.rows, step);
        int32_t first = plan.step_first[head];
        int32_t next = least(last, plan.step_first[head + 1]);
        int32_t segment = plan.row[head].segment;
        int32_t rows = 1;
        while (rows < plan.tile_rows && head + rows < plan.rows &&
               plan.row[head + rows].segment == segment &&
               plan.step_first[head + rows] == plan.step_first[head + rows + 1]) {
            rows++;
        }
        int32_t count = plan.row[head + rows - 1].candidates; // of the row that has the most
        __syncthreads();
        load_queries(&op, plan.first + head, rows, queries, weights);
        __syncthreads();
        for (; step < next; step++) {
            int32_t from = (step - first) * INDEX_STEP + warp * 32;
            if (from >= count) {
                continue;
            }
            struct keys keys = find_keys(&op, &plan.row[head], plan.first + head, from, count);
            Decoded decoded;
            take_keys(&decoded, &keys);
            for (int32_t r = 0; r < rows; r++) {
                const struct index_row *row = &plan.row[head + r];
                if (!row->scored || from >= row->candidates) {
                    continue;
                }
                float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
                const float *weight = weights + r * tiles * HEADS + lane % 4 * 2;
                const uint4 *query = queries + (size_t)r * tiles * groups * WARP + lane;
#pragma unroll 1
                for (int32_t t = 0; t < tiles; t++) {
                    float dots[TILES][4] = {};
                    add_dots(dots, &decoded, groups, query + t * groups * WARP);
                    add_heads(sums, dots, *reinterpret_cast<const float2 *>(weight + t * HEADS));
                }
                float score = add_lanes(sums);
                int32_t candidate = from + lane % 4 * 8 + lane / 4;
                if (candidate < row->candidates) {
                    plan.scores[(size_t)(head + r) * (size_t)plan.stride + (size_t)candidate] =
                        score;
                }
            }
        }
    }
}

static size_t query_bytes(const struct index_select_op *op) {
    size_t tiles = ((size_t)op->heads + HEADS - 1) / HEADS;
    return tiles * ((size_t)op->dim / 32 * WARP * sizeof(uint4) + HEADS * sizeof(float));
}

int32_t cuda_index_tile(const struct cuda *cuda, const struct index_select_op *op, int32_t wanted) {
    size_t fitting = (size_t)cuda->shared_bytes_max / 2 / query_bytes(op);
    int32_t rows = (int32_t)(fitting < (size_t)wanted ? fitting : (size_t)wanted);
    return rows < 1 ? 1 : rows;
}

void cuda_index_scores(
    struct cuda *cuda, const struct index_select_op *op, const struct index_plan *plan
) {
    size_t bytes = (size_t)plan->tile_rows * query_bytes(op);
    int64_t steps = (int64_t)plan->rows * ((plan->candidates_max + INDEX_STEP - 1) / INDEX_STEP);
    int64_t most = 2 * (int64_t)cuda->multiprocessors;
    unsigned grid = (unsigned)(steps < most ? steps : most);
    auto kernel = op->dim == 32 * KEPT_GROUPS ? index_score_kernel<struct kept_keys>
                                              : index_score_kernel<struct any_keys>;
    if (bytes > 48 * 1024) {
        CUDA_ALLOW_SHARED(cuda, CUDA_OP_INDEX_SELECT, kernel, bytes);
    }
    CUDA_LAUNCH(cuda, CUDA_OP_INDEX_SELECT, kernel, grid, THREADS, bytes, *op, *plan);
}
