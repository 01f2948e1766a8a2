/* Sixteen FP32 lanes: the one vocabulary of all vector code (promise P2, architecture.md 4).
 *
 * Three implementations give the same bits: plain C, 2 x AVX2, AVX-512. A reduction is always: lane
 * j takes its share in increasing order with fused multiply-add, then lanes fold by 8, 4, 2, 1.
 *
 * "Pair" layout: a group of 32 channels is held as one vector of its 16 even channels, then one of
 * its 16 odd ones. Two-byte and packed four-bit codes fall apart into even and odd lanes with a
 * shift and a mask, so every format but F32 is decoded to this layout, activations too. It fixes
 * the order of a sum: within 32 channels, lane j takes channel 2j, then 2j + 1.
 */
#ifndef HEARTH_KERNELS_CPU_LANES_H
#define HEARTH_KERNELS_CPU_LANES_H

#include <stdbool.h>

#include "number.h"

#define LANES_JOIN_(a, b) a##_##b
#define LANES_JOIN(a, b)  LANES_JOIN_(a, b)
#define LANES(name)       LANES_JOIN(name, CPU_LANES)

/* Plain C is left to the compiler: forcing its loops into each other makes sanitized builds take
 * minutes a file. */
#if defined(CPU_LANES_AVX512) || defined(CPU_LANES_AVX2)
#define LANES_INLINE static inline __attribute__((always_inline))
#else
#define LANES_INLINE static inline
#endif

/* One row's index queries: twice the E2M1 values as int8, per group of 32 channels the 16 even, then
 * the 16 odd ones; bias = 12 times their sum, which takes back the 12 added to every key. */
struct index_query {
    int32_t heads, groups;
    const int8_t *values; /* [heads, groups, 32] */
    const int32_t *bias;  /* [heads, groups] */
    const float *factors; /* [heads, groups] a quarter of the scale: both sides are doubled */
    const float *weights; /* [heads] */
};

#if defined(CPU_LANES_AVX512)
#include "lanes_avx512.h"
#elif defined(CPU_LANES_AVX2)
#include "lanes_avx2.h"
#else
#include "lanes_plain.h"
#endif

#if !defined(CPU_LANES_AVX512)
/* Sixteen reductions at once: [row][output]. */
LANES_INLINE void v_reduce_add4x4(v16 sums[4][4], float *out, size_t out_stride) {
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++) {
        v_reduce_add4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], out + r * out_stride);
    }
}
#endif

LANES_INLINE v16 v_abs(v16 a) {
    return v_max(a, v_sub(v_set1(0.0F), a));
}

LANES_INLINE v16 v_clamp(v16 a, float limit) {
    return v_min(v_max(a, v_set1(-limit)), v_set1(limit));
}

/* e^x within about 1 ulp; subnormal results included, 0 below -104, infinity above 88.73.
 * Reduction by n ln 2 in two parts, then a degree 6 minimax polynomial (Cephes). */
LANES_INLINE v16 v_exp(v16 x) {
    x = v_min(v_max(x, v_set1(-106.0F)), v_set1(90.0F));
    v16 n = v_round(v_mul(x, v_set1(1.44269504F)));
    v16 r = v_fma(n, v_set1(-0.693359375F), x);
    r = v_fma(n, v_set1(2.12194440e-4F), r);
    v16 p = v_set1(1.9875691500e-4F);
    p = v_fma(p, r, v_set1(1.3981999507e-3F));
    p = v_fma(p, r, v_set1(8.3334519073e-3F));
    p = v_fma(p, r, v_set1(4.1665795894e-2F));
    p = v_fma(p, r, v_set1(1.6666665459e-1F));
    p = v_fma(p, r, v_set1(5.0000001201e-1F));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set1(1.0F));
    v16 half = v_round(v_mul(n, v_set1(0.5F)));
    return v_mul(v_mul(p, v_pow2(half)), v_pow2(v_sub(n, half)));
}

/* The scalar view of the same function: one bit pattern for both. */
LANES_INLINE float lane_exp(float x) {
    float lanes[16];
    v_store(lanes, v_exp(v_set1(x)));
    return lanes[0];
}

LANES_INLINE v16 v_sigmoid(v16 x) {
    v16 one = v_set1(1.0F);
    return v_div(one, v_add(one, v_exp(v_sub(v_set1(0.0F), x))));
}

/* sqrtf is correctly rounded everywhere, so this is 1 / sqrt with two roundings. */
LANES_INLINE float lane_rsqrt(float x) {
    return 1.0F / sqrtf(x);
}

/* 32 channels of FP8 with their own E8M0 scale, in two exact steps. */
LANES_INLINE void v_load_fp8_group(const uint8_t *codes, uint8_t scale, v16 *even, v16 *odd) {
    v_load_e4m3(codes, even, odd);
    v16 unit = v_set1(256.0F);
    v16 factor = v_set1(e8m0_decode(scale));
    *even = v_mul(v_mul(*even, unit), factor);
    *odd = v_mul(v_mul(*odd, unit), factor);
}

/* Quantises 32 bf16 channels to FP8 (spec 3.0.1); returns the scale byte. */
LANES_INLINE uint8_t v_quantize_fp8(v16 even, v16 odd, uint8_t *codes) {
    uint8_t scale = fp8_group_scale(v_reduce_max(v_max(v_abs(even), v_abs(odd))));
    v16 factor = v_set1(e8m0_reciprocal(scale));
    v_store_e4m3(codes, v_clamp(v_mul(even, factor), 448.0F), v_clamp(v_mul(odd, factor), 448.0F));
    return scale;
}

/* Quantises 32 bf16 channels to MXFP4 (spec 4.3), 16 bytes of codes; returns the scale byte. */
LANES_INLINE uint8_t v_quantize_mxfp4(v16 even, v16 odd, uint8_t *codes) {
    uint8_t scale = mxfp4_group_scale(v_reduce_max(v_max(v_abs(even), v_abs(odd))));
    v16 factor = v_set1(e8m0_reciprocal(scale));
    v_store_e2m1(codes, v_clamp(v_mul(even, factor), 6.0F), v_clamp(v_mul(odd, factor), 6.0F));
    return scale;
}

#endif
