/* Sums over channels as an engine would take them that owes nobody the same bits: for the bench of
 * the price of the fixed order (bench_order.c), in no product.
 *
 * Few rows: two chains per output, and the scale of a group meets the group's sum instead of its
 * weights. Many rows: panels are transposed, so that a lane is an output and nothing is folded, with
 * the channels cut into pieces that stay in the cache. What is chosen depends on rows and channels.
 * Between, and for the logits of attention, the product's own tiles were the fastest that was found. */
#define cpu_product cpu_fixed_product
#include "kernels/cpu/cpu_product.c"
#undef cpu_product

void LANES(cpu_product)(const struct product *product);

#define PIECE      256 /* channels of a transposed piece: 16 KiB */
#define ROWS       12  /* of a tile: one sum each */
#define OUTER_ROWS 192 /* from here on it is faster than tiles that fold; so measured on Zen 4 */

/* One row against 8 outputs. */
LANES_INLINE void free_outputs(
    enum dtype dtype, const struct weight *weight, int32_t first, const float *x, float *out
) {
    struct weight_row rows[8] = {{0}};
    v16 even_sums[8];
    v16 odd_sums[8];
#pragma GCC unroll 8
    for (int n = 0; n < 8; n++) {
        rows[n] = weight_row(dtype, weight, first + n);
        even_sums[n] = v_set1(0.0F);
        odd_sums[n] = v_set1(0.0F);
    }
    for (int32_t k = 0; k < weight->in; k += 32) {
        v16 x_even = v_load(x + k);
        v16 x_odd = v_load(x + k + 16);
        if (dtype == DTYPE_FP8) { // one scale for 32 x 32 weights
            v16 factor = v_set1(e8m0_decode_256(rows[0].scale[k / 32]));
            x_even = v_mul(x_even, factor);
            x_odd = v_mul(x_odd, factor);
        }
#pragma GCC unroll 8
        for (int n = 0; n < 8; n++) {
            v16 even;
            v16 odd;
            if (dtype == DTYPE_FP8) {
                v_load_e4m3(rows[n].data + k, &even, &odd);
            } else {
                load_group(dtype, &rows[n], k, &even, &odd);
            }
            even_sums[n] = v_fma(x_even, even, even_sums[n]);
            odd_sums[n] = v_fma(x_odd, odd, odd_sums[n]);
        }
    }
#pragma GCC unroll 2
    for (int n = 0; n < 8; n += 4) {
        v_reduce_add4(
            v_add(even_sums[n], odd_sums[n]),
            v_add(even_sums[n + 1], odd_sums[n + 1]),
            v_add(even_sums[n + 2], odd_sums[n + 2]),
            v_add(even_sums[n + 3], odd_sums[n + 3]),
            out + n
        );
    }
}

static void free_row(const struct product *p) {
    const float *x = p->x + (size_t)(p->rows == NULL ? 0 : p->rows[0]) * p->x_stride;
    for (int32_t n = 0; n < p->count; n += 8) {
        if (p->weight->dtype == DTYPE_FP8) {
            free_outputs(DTYPE_FP8, p->weight, p->first + n, x, p->out + n);
        } else if (p->weight->dtype == DTYPE_FP4) {
            free_outputs(DTYPE_FP4, p->weight, p->first + n, x, p->out + n);
        } else {
            free_outputs(DTYPE_BF16, p->weight, p->first + n, x, p->out + n);
        }
    }
}

/* 16 rows of 16 channels to [channel, 16]. The compiler makes shuffles of it. */
static void transpose(const float *from, size_t stride, float *to) {
    for (int block = 0; block < 16; block += 4) {
        for (int k = 0; k < 16; k += 4) {
            __m128 a = _mm_loadu_ps(from + (size_t)block * stride + k);
            __m128 b = _mm_loadu_ps(from + (size_t)(block + 1) * stride + k);
            __m128 c = _mm_loadu_ps(from + (size_t)(block + 2) * stride + k);
            __m128 d = _mm_loadu_ps(from + (size_t)(block + 3) * stride + k);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(to + (k + 0) * 16 + block, a);
            _mm_storeu_ps(to + (k + 1) * 16 + block, b);
            _mm_storeu_ps(to + (k + 2) * 16 + block, c);
            _mm_storeu_ps(to + (k + 3) * 16 + block, d);
        }
    }
}

/* rows x 16 outputs over a piece of the channels, added to what `out` holds unless it is the first. */
LANES_INLINE void outer_tile(
    const float *const *x, int rows, const float *piece, int32_t channels, bool first, float **out
) {
    v16 sums[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        sums[r] = first ? v_set1(0.0F) : v_load(out[r]);
    }
    for (int32_t k = 0; k < channels; k++) {
        v16 w = v_load(piece + (size_t)k * 16);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            sums[r] = v_fma(v_set1(x[r][k]), w, sums[r]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        v_store(out[r], sums[r]);
    }
}

static void outer(
    const float *x,
    size_t x_stride,
    const int32_t *index,
    int32_t rows,
    const float *w,
    size_t w_stride,
    int32_t in,
    float *to,
    size_t out_stride
) {
    _Alignas(64) float piece[PIECE * 16];
    for (int32_t k = 0; k < in; k += PIECE) {
        int32_t channels = int_min(PIECE, in - k);
        for (int32_t i = 0; i < channels; i += 16) {
            transpose(w + k + i, w_stride, piece + (size_t)i * 16);
        }
        for (int32_t r = 0; r < rows; r += ROWS) {
            const float *from[ROWS];
            float *out[ROWS];
            float unused[16];
            int32_t count = int_min(ROWS, rows - r);
            int32_t padded = count > 8 ? ROWS : (count > 4 ? 8 : 4);
            for (int32_t i = 0; i < padded; i++) {
                int32_t row = r + int_min(i, count - 1);
                from[i] = x + (size_t)(index == NULL ? row : index[row]) * x_stride + k;
                out[i] = i < count ? to + (size_t)row * out_stride : unused;
            }
            if (padded == ROWS) {
                outer_tile(from, ROWS, piece, channels, k == 0, out);
            } else if (padded == 8) {
                outer_tile(from, 8, piece, channels, k == 0, out);
            } else {
                outer_tile(from, 4, piece, channels, k == 0, out);
            }
        }
    }
}

void LANES(cpu_product)(const struct product *product) {
    const struct product *p = product;
    if (p->row_count == 1 && p->count % 8 == 0 && p->weight->dtype != DTYPE_F32) {
        free_row(p);
    } else if (p->row_count < OUTER_ROWS || p->count != 16 || p->in % 16 != 0) {
        LANES(cpu_fixed_product)(p);
    } else {
        const float *panel = p->panel;
        if (p->weight->dtype == DTYPE_F32) {
            panel = (const float *)p->weight->data + (size_t)p->first * (size_t)p->in;
        } else {
            decode_panel(p->weight, p->first, p->count, p->panel);
        }
        outer(
            p->x,
            p->x_stride,
            p->rows,
            p->row_count,
            panel,
            (size_t)p->in,
            p->in,
            p->out,
            p->out_stride
        );
    }
}
