/* Inside the CPU backend: its state, scratch memory and the functions shared by op files.
 *
 * Files compiled once per instruction set name their functions with LANES(); the rest is compiled
 * once. Scratch is sized when the backend opens: no op allocates.
 */
#ifndef HEARTH_KERNELS_CPU_CPU_H
#define HEARTH_KERNELS_CPU_CPU_H

#include "backend.h"
#include "cpu_team.h"

#include <time.h>

/* Rows handled at a time: what is decoded for one slab of rows is used by all of them. */
#define CPU_SLAB_ROWS 256
/* Output channels of a weight decoded at a time. */
#define CPU_PANEL 16
/* Keys of one softmax block (spec 3.5). */
#define CPU_ATTENTION_KEYS 64

/* Scratch of one team member. */
struct cpu_thread {
    float *panel;        /* [CPU_PANEL, dim_max] a decoded weight panel; or 4 rows of streams */
    float *product;      /* [2, slab, 32] outputs of a panel before they are rounded */
    float *keys;         /* [64, d] */
    float *query;        /* [H, d] */
    float *sum;          /* [H, d] */
    float *logits;       /* [H, 64] */
    float *softmax;      /* [2, H] running maximum, denominator */
    float *scores;       /* [CPU_INDEX_ROWS, entries] */
    float *blocks;       /* [entries] best score of each candidate block */
    int32_t *members;    /* [entries] the entry of each score inside a pool */
    uint32_t *select;    /* [entries] */
    int8_t *index_query; /* [CPU_INDEX_ROWS, I, i] see struct index_query */
    int32_t *index_bias; /* [CPU_INDEX_ROWS, I, i/32] */
    float *index_factor; /* [CPU_INDEX_ROWS, I, i/32] */
    float *index_weight; /* [CPU_INDEX_ROWS, I] */
    uint8_t *index_key;  /* [i/32, 256] 8 keys */
    float *index_scale;  /* [i/32, 8] */
    uint8_t *index_tail; /* [8, i/2 + i/32] a copy of the last keys of a block */
    struct index_counters counters;
};

/* Rows of a sequence whose index scores are computed together. */
#define CPU_INDEX_ROWS 8

struct cpu {
    struct backend backend;
    struct backend_options limits;
    struct cpu_team *team;
    struct cpu_thread *threads;
    int32_t entries_max; /* stride of cpu_thread.scores */
    int32_t slab;        /* min(rows_max, CPU_SLAB_ROWS) */
    float *input;        /* [slab, dim_max] a linear's input, decoded */

    /* experts: one entry per (row, chosen expert), then one per row for the shared expert */
    float *expert_hidden;    /* [slab (k + 1), hidden] */
    uint16_t *expert_output; /* [slab (k + 1), D] bf16 */
    int32_t *expert_first;   /* [E + 2] first entry of each expert in the list below */
    int32_t *expert_entries; /* [slab k] entries (row k + slot) grouped by expert */
    int32_t *expert_rows;    /* [slab k] the row of each of these */
    int32_t *expert_active;  /* [E + 1] experts with entries */

    struct timespec stamps[BACKEND_STAMPS_MAX];
    char description[64];
    void *memory; /* what all pointers above point into */
};

static inline struct cpu *cpu_of(struct backend *backend) {
    return (struct cpu *)backend->state;
}

static inline int32_t int_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static inline int32_t int_max(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static inline int32_t ceil_divide(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/* cpu_topk.c: writes the k ids of the largest scores, ascending; ties go to the lower id. Ids are
 * 0..count-1. count <= k takes all. keys: [count] scratch. Returns how many were written. */
int32_t cpu_topk(const float *scores, int32_t count, int32_t k, uint32_t *keys, int32_t *selected);

/* Calls the function for each of `rows` rows (or groups of rows), spread over the team. The estimate
 * is per row. */
typedef void cpu_row_function(struct cpu *cpu, const void *op, int32_t row, int32_t thread);
void cpu_rows(
    struct cpu *cpu, const void *op, cpu_row_function *function, int32_t rows, int64_t nanoseconds
);

/* Index of the segment that holds `row`, or -1. */
int32_t cpu_segment_of(const struct row_segments *segments, int32_t row);

#ifdef LANES
/* cpu_math.c: scalar functions in double, the same bits on every instruction set. */
double LANES(cpu_exp)(double x);
double LANES(cpu_softplus)(double x);
/* |x| < 2^31. */
void LANES(cpu_sincos)(double x, double *sine, double *cosine);

/* out[r * out_stride + j] = dot of x row rows[r] (or r) with weight row first + j, j < count <=
 * CPU_PANEL, in FP32. x rows are decoded with LANES(cpu_decode_input) for this weight. */
struct product {
    const struct weight *weight;
    int32_t first, count, in;
    const float *x;
    size_t x_stride;
    const int32_t *rows; /* null: consecutive */
    int32_t row_count;
    float *panel; /* scratch [CPU_PANEL, in] */
    float *out;
    size_t out_stride;
};
void LANES(cpu_product)(const struct product *product);

/* Dots of `rows` vectors with `outs` vectors: the one place where sums over channels happen. */
void LANES(cpu_dots
)(const float *x,
  size_t x_stride,
  int32_t rows,
  const float *w,
  size_t w_stride,
  int32_t outs,
  int32_t in,
  float *out,
  size_t out_stride);

/* bf16 to FP32 in pair layout (or in natural order for F32 weights). */
void LANES(cpu_decode_bf16)(const uint16_t *x, int32_t count, bool pairs, float *to);
/* FP8 with E8M0 scales to FP32 in pair layout. */
void LANES(cpu_decode_fp8)(const uint8_t *codes, const uint8_t *scales, int32_t count, float *to);

void LANES(cpu_fill_table)(struct backend *backend);

#define CPU_OP(name) void LANES(cpu_##name)(struct backend * backend, const struct name##_op *op);
BACKEND_OPS(CPU_OP)
#endif

#endif
