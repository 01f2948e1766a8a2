/* Sums over channels. Bound: reading the weight for one row, fused multiply-adds for many.
 *
 * Every dot is 16 lanes that take channels in increasing order, folded at the end, so it is the
 * same whether a weight is decoded on the fly for one row or once to scratch for many.
 */
#include "lanes.h"

#include "cpu.h"

#define FEW_ROWS 16 /* see few_rows */

/* R x N dots at once. R and N are constants where this is inlined, so the sums stay in registers. */
LANES_INLINE void dots_tile(
    const float *const *x,
    int rows,
    const float *w,
    size_t w_stride,
    int outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    v16 sums[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < outs; n++) {
            sums[r][n] = v_set1(0.0F);
        }
    }
    for (int32_t k = 0; k < in; k += 16) {
        v16 b[4];
#pragma GCC unroll 4
        for (int n = 0; n < outs; n++) {
            b[n] = v_load(w + (size_t)n * w_stride + k);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            v16 a = v_load(x[r] + k);
#pragma GCC unroll 4
            for (int n = 0; n < outs; n++) {
                sums[r][n] = v_fma(a, b[n], sums[r][n]);
            }
        }
    }
    if (rows == 4 && outs == 4) {
        v_reduce_add4x4(sums, out, out_stride);
        return;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        if (outs == 4) {
            v_reduce_add4(
                sums[r][0], sums[r][1], sums[r][2], sums[r][3], out + (size_t)r * out_stride
            );
        } else {
#pragma GCC unroll 4
            for (int n = 0; n < outs; n++) {
                out[(size_t)r * out_stride + (size_t)n] = v_reduce_add(sums[r][n]);
            }
        }
    }
}

/* Up to four rows against all outputs of a panel. */
LANES_INLINE void dots_rows(
    const float *const *x,
    int rows,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    int32_t n = 0;
    for (; n + 4 <= outs; n += 4) {
        dots_tile(x, rows, w + (size_t)n * w_stride, w_stride, 4, in, out + n, out_stride);
    }
    for (; n < outs; n++) {
        dots_tile(x, rows, w + (size_t)n * w_stride, w_stride, 1, in, out + n, out_stride);
    }
}

static void dots_rows4(
    const float *const *x,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    dots_rows(x, 4, w, w_stride, outs, in, out, out_stride);
}

static void dots_rows3(
    const float *const *x,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    dots_rows(x, 3, w, w_stride, outs, in, out, out_stride);
}

static void dots_rows2(
    const float *const *x,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    dots_rows(x, 2, w, w_stride, outs, in, out, out_stride);
}

static void dots_rows1(
    const float *const *x,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    dots_rows(x, 1, w, w_stride, outs, in, out, out_stride);
}

static void dots(
    const float *x,
    size_t x_stride,
    const int32_t *index,
    int32_t rows,
    const float *w,
    size_t w_stride,
    int32_t outs,
    int32_t in,
    float *out,
    size_t out_stride
) {
    for (int32_t r = 0; r < rows;) {
        int32_t step = int_min(4, rows - r);
        const float *pointers[4];
        for (int32_t i = 0; i < step; i++) {
            pointers[i] = x + (size_t)(index == NULL ? r + i : index[r + i]) * x_stride;
        }
        float *to = out + (size_t)r * out_stride;
        if (step == 4) {
            dots_rows4(pointers, w, w_stride, outs, in, to, out_stride);
        } else if (step == 3) {
            dots_rows3(pointers, w, w_stride, outs, in, to, out_stride);
        } else if (step == 2) {
            dots_rows2(pointers, w, w_stride, outs, in, to, out_stride);
        } else {
            dots_rows1(pointers, w, w_stride, outs, in, to, out_stride);
        }
        r += step;
    }
}

void LANES(cpu_dots
)(const float *x,
  size_t x_stride,
  int32_t rows,
  const float *w,
  size_t w_stride,
  int32_t outs,
  int32_t in,
  float *out,
  size_t out_stride) {
    dots(x, x_stride, NULL, rows, w, w_stride, outs, in, out, out_stride);
}

void LANES(cpu_decode_bf16)(const uint16_t *x, int32_t count, bool pairs, float *to) {
    for (int32_t i = 0; pairs && i < count; i += 32) {
        v16 even;
        v16 odd;
        v_load_bf16_pair(x + i, &even, &odd);
        v_store(to + i, even);
        v_store(to + i + 16, odd);
    }
    for (int32_t i = 0; !pairs && i < count; i += 16) {
        v_store(to + i, v_load_bf16(x + i));
    }
}

void LANES(cpu_decode_fp8)(const uint8_t *codes, const uint8_t *scales, int32_t count, float *to) {
    for (int32_t i = 0; i < count; i += 32) {
        v16 even;
        v16 odd;
        v_load_fp8_group(codes + i, scales[i / 32], &even, &odd);
        v_store(to + i, even);
        v_store(to + i + 16, odd);
    }
}

/* The weight's row and its scales, for the four codes below. */
struct weight_row {
    const uint8_t *data;
    const uint8_t *scale;
};

LANES_INLINE struct weight_row
weight_row(enum dtype dtype, const struct weight *weight, int32_t row) {
    size_t in = (size_t)weight->in;
    size_t at = (size_t)row;
    const uint8_t *data = weight->data;
    struct weight_row found = {data, weight->scale};
    if (dtype == DTYPE_FP8) {
        found.data = data + at * in;
        found.scale = weight->scale + at / 32 * (in / 32);
    } else if (dtype == DTYPE_FP4) {
        found.data = data + at * (in / 2);
        found.scale = weight->scale + at * (in / 32);
    } else {
        found.data = data + at * in * (dtype == DTYPE_F32 ? 4 : 2);
    }
    return found;
}

/* 32 channels of a weight row from channel k, decoded. */
LANES_INLINE void
load_group(enum dtype dtype, const struct weight_row *row, int32_t k, v16 *even, v16 *odd) {
    if (dtype == DTYPE_FP8) {
        v_load_e4m3(row->data + k, even, odd);
        v16 factor = v_set1(e8m0_decode_256(row->scale[k / 32]));
        *even = v_mul(*even, factor);
        *odd = v_mul(*odd, factor);
    } else if (dtype == DTYPE_FP4) {
        v_load_e2m1_scaled(row->data + k / 2, e8m0_decode(row->scale[k / 32]), even, odd);
    } else if (dtype == DTYPE_BF16) {
        v_load_bf16_pair((const uint16_t *)(const void *)row->data + k, even, odd);
    } else {
        *even = v_load((const float *)(const void *)row->data + k);
        *odd = v_load((const float *)(const void *)row->data + k + 16);
    }
}

/* N outputs of one row, the weight decoded in registers. N is a constant where this is inlined. */
LANES_INLINE void dot_outputs(
    enum dtype dtype,
    int outs,
    const struct weight *weight,
    int32_t first,
    const float *x,
    float *out
) {
    struct weight_row rows[8] = {{0}};
    v16 sums[8];
    int32_t in = weight->in;
#pragma GCC unroll 8
    for (int n = 0; n < outs; n++) {
        rows[n] = weight_row(dtype, weight, first + n);
        if (dtype == DTYPE_FP8 && first % outs == 0) {
            rows[n].scale = rows[0].scale; // in fact equal, so read once for all
        }
        sums[n] = v_set1(0.0F);
    }
    for (int32_t k = 0; k < in; k += 32) {
        v16 x_even = v_load(x + k);
        v16 x_odd = v_load(x + k + 16);
#pragma GCC unroll 8
        for (int n = 0; n < outs; n++) {
            v16 even;
            v16 odd;
            load_group(dtype, &rows[n], k, &even, &odd);
            sums[n] = v_fma(x_odd, odd, v_fma(x_even, even, sums[n]));
        }
    }
#pragma GCC unroll 2
    for (int n = 0; n < outs; n += 4) {
        v_reduce_add4(sums[n], sums[n + 1], sums[n + 2], sums[n + 3], out + n);
    }
}

/* Eight outputs of one row that share their scales: a scale meets 32 inputs instead of 256 weights, which
 * gives the same bits where that product is exact. Far outside what models hold it is not: then
 * nothing is written, and false returned. */
static bool
row_scaled_inputs(const struct weight *weight, int32_t first, const float *x, float *out) {
    struct weight_row rows[8] = {{0}};
    v16 sums[8];
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++) {
        rows[n] = weight_row(DTYPE_FP8, weight, first + n);
        sums[n] = v_set1(0.0F);
    }
    for (int32_t k = 0; k < weight->in; k += 32) {
        float factor = e8m0_decode_256(rows[0].scale[k / 32]);
        v16 back = v_set1(e8m0_reciprocal(rows[0].scale[k / 32]) * 0x1p-8F);
        v16 x_even = v_mul(v_load(x + k), v_set1(factor));
        v16 x_odd = v_mul(v_load(x + k + 16), v_set1(factor));
        if (!v_all_equal(v_mul(x_even, back), v_load(x + k)) ||
            !v_all_equal(v_mul(x_odd, back), v_load(x + k + 16))) {
            return false;
        }
#pragma GCC unroll 8
        for (int n = 0; n < 8; n++) {
            v16 even;
            v16 odd;
            v_load_e4m3(rows[n].data + k, &even, &odd);
            sums[n] = v_fma(x_odd, odd, v_fma(x_even, even, sums[n]));
        }
    }
    v_reduce_add4(sums[0], sums[1], sums[2], sums[3], out);
    v_reduce_add4(sums[4], sums[5], sums[6], sums[7], out + 4);
    return true;
}

LANES_INLINE void product_row(enum dtype dtype, const struct product *p, const float *x) {
    int32_t n = 0;
    for (; n + 8 <= p->count; n += 8) {
        bool shares_scales = dtype == DTYPE_FP8 && (p->first + n) % 8 == 0;
        if (!shares_scales || !row_scaled_inputs(p->weight, p->first + n, x, p->out + n)) {
            dot_outputs(dtype, 8, p->weight, p->first + n, x, p->out + n);
        }
    }
    for (; n + 4 <= p->count; n += 4) {
        dot_outputs(dtype, 4, p->weight, p->first + n, x, p->out + n);
    }
}

static void product_row_fp8(const struct product *p, const float *x) {
    product_row(DTYPE_FP8, p, x);
}

static void product_row_fp4(const struct product *p, const float *x) {
    product_row(DTYPE_FP4, p, x);
}

static void product_row_bf16(const struct product *p, const float *x) {
    product_row(DTYPE_BF16, p, x);
}

/* Four outputs of up to four rows, the weight decoded in registers. R is a constant where this is
 * inlined. */
LANES_INLINE void few_tile(
    enum dtype dtype,
    int rows,
    const struct weight *weight,
    int32_t first,
    const float *const *x,
    float *out,
    size_t out_stride
) {
    struct weight_row from[4] = {{0}};
    v16 sums[4][4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        from[n] = weight_row(dtype, weight, first + n);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            sums[r][n] = v_set1(0.0F);
        }
    }
    for (int32_t k = 0; k < weight->in; k += 32) {
        v16 even[4];
        v16 odd[4];
#pragma GCC unroll 4
        for (int n = 0; n < 4; n++) {
            load_group(dtype, &from[n], k, &even[n], &odd[n]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            v16 x_even = v_load(x[r] + k);
            v16 x_odd = v_load(x[r] + k + 16);
#pragma GCC unroll 4
            for (int n = 0; n < 4; n++) {
                sums[r][n] = v_fma(x_odd, odd[n], v_fma(x_even, even[n], sums[r][n]));
            }
        }
    }
    if (rows == 4) {
        v_reduce_add4x4(sums, out, out_stride);
        return;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        float *to = out + (size_t)r * out_stride;
        v_reduce_add4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], to);
    }
}

LANES_INLINE void product_few(enum dtype dtype, const struct product *p) {
    const float *x[FEW_ROWS];
    for (int32_t r = 0; r < p->row_count; r++) {
        x[r] = p->x + (size_t)(p->rows == NULL ? r : p->rows[r]) * p->x_stride;
    }
    for (int32_t r = 0; r < p->row_count;) {
        int32_t step = int_min(4, p->row_count - r);
        float *out = p->out + (size_t)r * p->out_stride;
        for (int32_t n = 0; n + 4 <= p->count; n += 4) {
            int32_t first = p->first + n;
            if (step == 4) {
                few_tile(dtype, 4, p->weight, first, x + r, out + n, p->out_stride);
            } else if (step == 3) {
                few_tile(dtype, 3, p->weight, first, x + r, out + n, p->out_stride);
            } else if (step == 2) {
                few_tile(dtype, 2, p->weight, first, x + r, out + n, p->out_stride);
            } else {
                few_tile(dtype, 1, p->weight, first, x + r, out + n, p->out_stride);
            }
        }
        r += step;
    }
}

static void product_few_fp8(const struct product *p) {
    product_few(DTYPE_FP8, p);
}

static void product_few_fp4(const struct product *p) {
    product_few(DTYPE_FP4, p);
}

static void product_few_bf16(const struct product *p) {
    product_few(DTYPE_BF16, p);
}

LANES_INLINE void
decode_row(enum dtype dtype, const struct weight *weight, int32_t row, float *to) {
    struct weight_row from = weight_row(dtype, weight, row);
    for (int32_t k = 0; k < weight->in; k += 32) {
        v16 even;
        v16 odd;
        load_group(dtype, &from, k, &even, &odd);
        v_store(to + k, even);
        v_store(to + k + 16, odd);
    }
}

static void decode_panel(const struct weight *weight, int32_t first, int32_t count, float *to) {
    size_t in = (size_t)weight->in;
    for (int32_t n = 0; n < count; n++) {
        float *row = to + (size_t)n * in;
        if (weight->dtype == DTYPE_FP8) {
            decode_row(DTYPE_FP8, weight, first + n, row);
        } else if (weight->dtype == DTYPE_FP4) {
            decode_row(DTYPE_FP4, weight, first + n, row);
        } else {
            decode_row(DTYPE_BF16, weight, first + n, row);
        }
    }
}

/* Many rows: decode the panel once, then tiles over it. F32 needs no decoding. */
static void product_many(const struct product *p, int32_t first, int32_t count, float *out) {
    const struct weight *weight = p->weight;
    size_t in = (size_t)p->in;
    const float *panel = p->panel;
    if (weight->dtype == DTYPE_F32) {
        panel = (const float *)weight->data + (size_t)first * in;
    } else {
        decode_panel(weight, first, count, p->panel);
    }
    dots(p->x, p->x_stride, p->rows, p->row_count, panel, in, count, p->in, out, p->out_stride);
}

/* Rows up to which decoding in registers, once for four rows, beats decoding a panel to memory.
 * Measured on Zen 4 with 256 channels. */
static int32_t few_rows(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? FEW_ROWS : (dtype == DTYPE_F32 ? 0 : 8);
}

void LANES(cpu_product)(const struct product *product) {
    const struct product *p = product;
    ASSERT_DEBUG(p->count <= CPU_PANEL && p->in == p->weight->in);
    if (p->row_count > few_rows(p->weight->dtype)) {
        product_many(p, p->first, p->count, p->out);
        return;
    }
    bool is_one = p->row_count == 1;
    const float *x = p->x + (size_t)(p->rows == NULL ? 0 : p->rows[0]) * p->x_stride;
    if (p->weight->dtype == DTYPE_FP8) {
        is_one ? product_row_fp8(p, x) : product_few_fp8(p);
    } else if (p->weight->dtype == DTYPE_FP4) {
        is_one ? product_row_fp4(p, x) : product_few_fp4(p);
    } else {
        is_one ? product_row_bf16(p, x) : product_few_bf16(p);
    }
    int32_t rest = p->count % 4;
    if (rest != 0) {
        product_many(p, p->first + p->count - rest, rest, p->out + p->count - rest);
    }
}
