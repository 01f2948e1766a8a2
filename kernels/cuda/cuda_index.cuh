/* Index selection, the data its kernels share. An op goes slab by slab: as many rows as the scratch
 * has room for the scores of. Of each slab a plan kernel finds from device memory what every row
 * sees; the grids depend on shapes alone, and blocks share the work that there is evenly.
 */
#ifndef HEARTH_KERNELS_CUDA_INDEX_CUH
#define HEARTH_KERNELS_CUDA_INDEX_CUH

#include "cuda_topk.cuh"

#define INDEX_WARPS 8
#define INDEX_STEP  (INDEX_WARPS * 32) /* entries that a block scores at a time, 32 by each warp */

/* A row of the slab. */
struct index_row {
    int32_t segment;    /* -1: in none */
    int32_t visible;    /* entries g < visible */
    int32_t candidates; /* those that compete: all visible ones, or the members of the row's pool */
    bool scored;
};

/* A slab. Its tiles are runs of at most tile_rows rows of one segment; the entries of a tile are
 * scored for all its rows at once. */
struct index_plan {
    int32_t first, rows; /* of the op */
    int32_t tile_rows;
    int32_t candidates_max, blocks_max; /* bounds of any row of the op */
    int32_t stride, block_stride;       /* of scores and block_scores: multiples of 32 */
    struct index_row *row;              /* [rows] */
    int32_t *step_first;              /* [rows + 1] the first step of the tile that begins with the
                                           row; rows that begin none have no steps */
    float *scores;                    /* [rows, stride] */
    float *block_scores;              /* [rows, block_stride]; null when no pool is published */
    uint32_t *chosen, *blocks_chosen; /* [rows, stride / 32], [rows, block_stride / 32] */
    struct topk topk;                 /* a job per row, or two: then the second one is the pool's */
};

/* Entry g of the cache at hand that a candidate of a row is. */
__device__ __forceinline__ int32_t
index_entry(const struct index_select_op *op, int32_t row, int32_t candidate) {
    if (op->mode != INDEX_WITHIN_POOL) {
        return candidate;
    }
    int32_t size = op->pool_block_entries;
    const int32_t *pool = op->pool + (size_t)row * (size_t)op->pool_blocks;
    if ((size & (size - 1)) == 0) { // the usual case, without divisions
        int32_t shift = 31 - __clz(size);
        return (pool[candidate >> shift] << shift) + (candidate & (size - 1));
    }
    return pool[candidate / size] * size + candidate % size;
}

/* Scores of the rows of the slab that need them. */
void cuda_index_scores(
    struct cuda *cuda, const struct index_select_op *op, const struct index_plan *plan
);

/* Query rows whose operands fit a block's shared memory, at most `wanted`, at least 1. */
int32_t cuda_index_tile(const struct cuda *cuda, const struct index_select_op *op, int32_t wanted);

#endif
