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

/* Where the keys of a lane are: of entries lane / 4 + 8 j of the warp's 32, j < 4. */
struct keys {
    const uint8_t *codes[4]; /* the lane's word of the first group of channels */
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
    return load_read_only(reinterpret_cast<const uint32_t *>(from));
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

/* Candidates [first, first + 32) of `row`; for those from `count` on, some other one. */
__device__ __forceinline__ struct keys find_keys(
    const struct index_select_op *op, int32_t segment, int32_t row, int32_t first, int32_t count
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    size_t groups = (size_t)op->dim / 32;
    int32_t shift = 31 - __clz(op->source.entries); // 64 or 128 entries a block
    uint8_t *const *blocks = op->views[segment].blocks;
    // 32 entries that begin at a multiple of 32 are in one block; a pool's members may not be.
    bool together = op->mode != INDEX_WITHIN_POOL;
    const uint8_t *shared = together ? blocks[least(first, count - 1) >> shift] : NULL;
    struct keys keys;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        int32_t entry = index_entry(op, row, least(first + lane / 4 + 8 * j, count - 1));
        size_t inside = (size_t)(entry & (op->source.entries - 1));
        const uint8_t *block = together ? shared : blocks[entry >> shift];
        keys.codes[j] = block + op->source.index_code_offset + inside * groups * 16 + lane % 4 * 4;
        keys.scales[j] = block + op->source.index_scale_offset + inside * groups;
    }
    return keys;
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

/* Undecoded keys of a lane at the release's width, whose scales of an entry are one word. */
#define GROUPS 4
struct loaded_keys {
    uint32_t codes[GROUPS][4];
    uint32_t scales[4];
};

__device__ __forceinline__ struct loaded_keys load_keys(const struct keys *keys) {
    struct loaded_keys loaded;
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        loaded.scales[j] = load_word(keys->scales[j]);
#pragma unroll
        for (int32_t g = 0; g < GROUPS; g++) {
            loaded.codes[g][j] = load_word(keys->codes[j] + g * 16);
        }
    }
    return loaded;
}

__device__ __forceinline__ void
decode_scales(const struct loaded_keys *loaded, int32_t group, float scales[4]) {
#pragma unroll
    for (int32_t j = 0; j < 4; j++) {
        scales[j] = e8m0_decode((uint8_t)(loaded->scales[j] >> (8 * group)));
    }
}

/* The keys of a warp, decoded for all groups: of the release's width. */
struct kept_keys {
    struct operand group[GROUPS];
    float scales[GROUPS][4];
};

__device__ __forceinline__ void take_keys(struct kept_keys *kept, const struct keys *keys) {
    struct loaded_keys loaded = load_keys(keys);
#pragma unroll
    for (int32_t g = 0; g < GROUPS; g++) {
        kept->group[g] = decode_keys(loaded.codes[g]);
        decode_scales(&loaded, g, kept->scales[g]);
    }
}

__device__ __forceinline__ void
add_dots(float dots[TILES][4], const struct kept_keys *kept, int32_t groups, const uint4 *query) {
    (void)groups;
#pragma unroll
    for (int32_t g = 0; g < GROUPS; g++) {
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
            codes[j] = load_word(any->keys.codes[j] + g * 16);
            scales[j] = e8m0_decode(load_read_only(any->keys.scales[j] + g));
        }
        struct operand operand = decode_keys(codes);
        add_group(dots, &operand, scales, query[g * WARP]);
    }
}

/* The part of a tile of rows that a block does next. */
struct part {
    int32_t slot, rows; /* of the slab */
    int32_t segment;
    int32_t first, next; /* the tile's first step; the step behind the part */
    int32_t count;       /* candidates of the row that has the most: the last */
};

__device__ struct part part_at(const struct index_plan *plan, int32_t step, int32_t last) {
    struct part part;
    part.slot = block_owner_of(plan->step_first, plan->rows, step);
    part.first = plan->step_first[part.slot];
    part.next = least(last, plan->step_first[part.slot + 1]);
    part.segment = plan->row[part.slot].segment;
    part.rows = 1;
    while (part.rows < plan->tile_rows && part.slot + part.rows < plan->rows) {
        int32_t slot = part.slot + part.rows;
        if (plan->row[slot].segment != part.segment ||
            plan->step_first[slot] != plan->step_first[slot + 1]) {
            break; // another tile begins
        }
        part.rows++;
    }
    part.count = plan->row[part.slot + part.rows - 1].candidates;
    return part;
}

/* What the query rows of a tile need, in shared memory. */
struct tile {
    uint4 *queries;
    float *weights;
    int32_t *counts; /* [row] candidates that are scored */
};

__device__ __forceinline__ struct tile
tile_at(unsigned char *shared, const struct index_select_op *op, const struct index_plan *plan) {
    struct tile tile;
    size_t heads = (size_t)plan->tile_rows * (size_t)head_tiles(op);
    tile.queries = reinterpret_cast<uint4 *>(shared);
    tile.weights = reinterpret_cast<float *>(tile.queries + heads * (size_t)(op->dim / 32) * WARP);
    tile.counts = reinterpret_cast<int32_t *>(tile.weights + heads * HEADS);
    return tile;
}

__device__ void load_tile(
    const struct index_select_op *op,
    const struct index_plan *plan,
    const struct part *part,
    const struct tile *tile
) {
    __syncthreads(); // the tile before may still be read
    load_queries(op, plan->first + part->slot, part->rows, tile->queries, tile->weights);
    if ((int32_t)threadIdx.x < part->rows) {
        const struct index_row *row = &plan->row[part->slot + (int32_t)threadIdx.x];
        tile->counts[threadIdx.x] = row->scored ? row->candidates : 0;
    }
    __syncthreads();
}

/* Writes the score of the lane's candidate, if it is one, of the part's r-th row. */
__device__ __forceinline__ void write_score(
    const struct index_plan *plan, int32_t slot, int32_t from, int32_t count, const float sums[4]
) {
    int32_t lane = (int32_t)threadIdx.x % WARP;
    float score = add_lanes(sums);
    int32_t candidate = from + lane % 4 * 8 + lane / 4;
    if (candidate < count) {
        plan->scores[(size_t)slot * (size_t)plan->stride + (size_t)candidate] = score;
    }
}

/* Clears what the selection of long rows counts into: each block its share. */
__device__ __forceinline__ void clear_states(const struct topk *topk) {
    if (!topk->shares) {
        return;
    }
    uint32_t *words = reinterpret_cast<uint32_t *>(topk->states);
    int32_t count = topk->jobs * (int32_t)(sizeof(struct topk_state) / sizeof(uint32_t));
    int32_t stride = (int32_t)gridDim.x * THREADS;
    for (int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x); i < count; i += stride) {
        words[i] = 0;
    }
}

/* Tiles of any number of rows. */
template <class Decoded>
__global__ void __launch_bounds__(THREADS, 2)
    index_score_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    clear_states(&plan.topk);
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t groups = op.dim / 32;
    int32_t tiles = head_tiles(&op);
    struct tile tile = tile_at(shared, &op, &plan);
    int32_t step = 0;
    int32_t last = 0;
    share_of(plan.step_first[plan.rows], &step, &last);
    while (step < last) {
        struct part part = part_at(&plan, step, last);
        load_tile(&op, &plan, &part, &tile);
        for (; step < part.next; step++) {
            int32_t from = (step - part.first) * INDEX_STEP + warp * 32;
            if (from >= part.count) {
                continue;
            }
            int32_t row = plan.first + part.slot;
            struct keys keys = find_keys(&op, part.segment, row, from, part.count);
            Decoded decoded;
            take_keys(&decoded, &keys);
            for (int32_t r = 0; r < part.rows; r++) {
                int32_t count = tile.counts[r];
                if (from >= count) {
                    continue;
                }
                float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
                const float *weight = tile.weights + r * tiles * HEADS + lane % 4 * 2;
                const uint4 *query = tile.queries + (size_t)r * tiles * groups * WARP + lane;
#pragma unroll 1
                for (int32_t t = 0; t < tiles; t++) {
                    float dots[TILES][4] = {};
                    add_dots(dots, &decoded, groups, query + t * groups * WARP);
                    add_heads(sums, dots, *reinterpret_cast<const float2 *>(weight + t * HEADS));
                }
                write_score(&plan, part.slot + r, from, count, sums);
            }
        }
    }
}

/* Single rows at the release's width and heads: the next keys are under way while the ones at hand
 * are decoded, group by group, and meet all heads. The same products and sums. */
#define ROW_TILES 4 /* of heads */
__global__ void __launch_bounds__(THREADS, 2)
    index_score_row_kernel(struct mark mark, struct index_select_op op, struct index_plan plan) {
    MARK(mark);
    DYNAMIC_SHARED(shared);
    clear_states(&plan.topk);
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    struct tile tile = tile_at(shared, &op, &plan);
    int32_t step = 0;
    int32_t last = 0;
    share_of(plan.step_first[plan.rows], &step, &last);
    while (step < last) {
        struct part part = part_at(&plan, step, last);
        int32_t row = plan.first + part.slot;
        int32_t from = (step - part.first) * INDEX_STEP + warp * 32;
        struct keys keys = find_keys(&op, part.segment, row, from, part.count);
        struct loaded_keys next = load_keys(&keys);
        load_tile(&op, &plan, &part, &tile);
        for (; step < part.next; step++, from += INDEX_STEP) {
            const struct loaded_keys loaded = next;
            if (step + 1 < part.next) {
                keys = find_keys(&op, part.segment, row, from + INDEX_STEP, part.count);
                next = load_keys(&keys);
            }
            if (from >= part.count) {
                continue;
            }
            float dots[ROW_TILES][TILES][4] = {};
#pragma unroll
            for (int32_t g = 0; g < GROUPS; g++) {
                float scales[4];
                decode_scales(&loaded, g, scales);
                struct operand operand = decode_keys(loaded.codes[g]);
#pragma unroll
                for (int32_t t = 0; t < ROW_TILES; t++) {
                    uint4 query = tile.queries[(t * GROUPS + g) * WARP + lane];
                    add_group(dots[t], &operand, scales, query);
                }
            }
            float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
            for (int32_t t = 0; t < ROW_TILES; t++) {
                const float *weight = tile.weights + t * HEADS + lane % 4 * 2;
                add_heads(sums, dots[t], *reinterpret_cast<const float2 *>(weight));
            }
            write_score(&plan, part.slot, from, part.count, sums);
        }
    }
}

static size_t query_bytes(const struct index_select_op *op) {
    size_t tiles = ((size_t)op->heads + HEADS - 1) / HEADS;
    return tiles * ((size_t)op->dim / 32 * WARP * sizeof(uint4) + HEADS * sizeof(float)) +
           sizeof(int32_t);
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
    auto kernel = index_score_kernel<struct any_keys>;
    if (op->dim == 32 * GROUPS) {
        bool single = plan->tile_rows == 1 && (op->heads + HEADS - 1) / HEADS == ROW_TILES;
        kernel = single ? index_score_row_kernel : index_score_kernel<struct kept_keys>;
    }
    if (bytes > 48 * 1024) {
        CUDA_ALLOW_SHARED(cuda, CUDA_OP_INDEX_SELECT, kernel, bytes);
    }
    CUDA_LAUNCH(cuda, CUDA_OP_INDEX_SELECT, kernel, grid, THREADS, bytes, *op, *plan);
}
