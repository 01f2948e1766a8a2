/* Sixteen lanes as one AVX-512 register (F, BW, DQ, VL). See lanes_plain.h for meanings. */
#ifndef HEARTH_KERNELS_CPU_LANES_AVX512_H
#define HEARTH_KERNELS_CPU_LANES_AVX512_H

#include <immintrin.h>

#include "lanes_x86.h"

typedef __m512 v16;

LANES_INLINE v16 v_set1(float a) {
    return _mm512_set1_ps(a);
}

LANES_INLINE v16 v_load(const float *p) {
    return _mm512_loadu_ps(p);
}

LANES_INLINE void v_store(float *p, v16 a) {
    _mm512_storeu_ps(p, a);
}

LANES_INLINE v16 v_add(v16 a, v16 b) {
    return _mm512_add_ps(a, b);
}

LANES_INLINE v16 v_sub(v16 a, v16 b) {
    return _mm512_sub_ps(a, b);
}

LANES_INLINE v16 v_mul(v16 a, v16 b) {
    return _mm512_mul_ps(a, b);
}

LANES_INLINE v16 v_div(v16 a, v16 b) {
    return _mm512_div_ps(a, b);
}

LANES_INLINE v16 v_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}

LANES_INLINE v16 v_max(v16 a, v16 b) {
    return _mm512_max_ps(a, b);
}

LANES_INLINE v16 v_min(v16 a, v16 b) {
    return _mm512_min_ps(a, b);
}

LANES_INLINE bool v_all_equal(v16 a, v16 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) == 0;
}

LANES_INLINE v16 v_round(v16 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

LANES_INLINE v16 v_pow2(v16 n) {
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}

LANES_INLINE v16 v_swap(v16 a, int mask) {
    if (mask == 8) {
        return _mm512_shuffle_f32x4(a, a, 0x4e);
    }
    if (mask == 4) {
        return _mm512_shuffle_f32x4(a, a, 0xb1);
    }
    if (mask == 2) {
        return _mm512_permute_ps(a, 0x4e);
    }
    return _mm512_permute_ps(a, 0xb1);
}

LANES_INLINE __m256 z_low(v16 a) {
    return _mm512_castps512_ps256(a);
}

LANES_INLINE __m256 z_high(v16 a) {
    return _mm512_extractf32x8_ps(a, 1);
}

LANES_INLINE float v_reduce_add(v16 a) {
    return x_reduce_add8(_mm256_add_ps(z_low(a), z_high(a)));
}

LANES_INLINE float v_reduce_max(v16 a) {
    return x_reduce_max8(_mm256_max_ps(z_low(a), z_high(a)));
}

LANES_INLINE void v_reduce_add4(v16 a, v16 b, v16 c, v16 d, float *out) {
    x_reduce_add8x4(
        _mm256_add_ps(z_low(a), z_high(a)),
        _mm256_add_ps(z_low(b), z_high(b)),
        _mm256_add_ps(z_low(c), z_high(c)),
        _mm256_add_ps(z_low(d), z_high(d)),
        out
    );
}

/* Both halves of a plus b's, then the same of quarters: rows stay in 128-bit lanes of their own. */
LANES_INLINE v16 z_fold_halves(v16 a, v16 b) {
    return v_add(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
}

LANES_INLINE v16 z_fold_quarters(v16 a, v16 b) {
    return v_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

LANES_INLINE void v_reduce_add4x4(v16 sums[4][4], float *out, size_t out_stride) {
    v16 folded[4];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) {
        v16 low = z_fold_halves(sums[0][n], sums[1][n]);
        v16 high = z_fold_halves(sums[2][n], sums[3][n]);
        folded[n] = z_fold_quarters(low, high); // four lanes of each row
    }
    v16 ab = v_add(
        _mm512_shuffle_ps(folded[0], folded[1], 0x44), _mm512_shuffle_ps(folded[0], folded[1], 0xee)
    );
    v16 cd = v_add(
        _mm512_shuffle_ps(folded[2], folded[3], 0x44), _mm512_shuffle_ps(folded[2], folded[3], 0xee)
    );
    v16 all = v_add(_mm512_shuffle_ps(ab, cd, 0x88), _mm512_shuffle_ps(ab, cd, 0xdd));
    _mm_storeu_ps(out, _mm512_castps512_ps128(all));
    _mm_storeu_ps(out + out_stride, _mm512_extractf32x4_ps(all, 1));
    _mm_storeu_ps(out + 2 * out_stride, _mm512_extractf32x4_ps(all, 2));
    _mm_storeu_ps(out + 3 * out_stride, _mm512_extractf32x4_ps(all, 3));
}

LANES_INLINE v16 v_load_bf16(const uint16_t *p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* The rounded bf16 in the upper half of each lane; the lower half is junk. */
LANES_INLINE __m512i z_bf16_upper(v16 a) {
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
}

LANES_INLINE void v_store_bf16(uint16_t *p, v16 a) {
    __m512i low = _mm512_srli_epi32(z_bf16_upper(a), 16);
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(low));
}

LANES_INLINE v16 v_round_bf16(v16 a) {
    __m512i mask = _mm512_set1_epi32((int)0xffff0000U);
    return _mm512_castsi512_ps(_mm512_and_si512(z_bf16_upper(a), mask));
}

LANES_INLINE void v_load_bf16_pair(const uint16_t *p, v16 *even, v16 *odd) {
    __m512i both = _mm512_loadu_si512((const void *)p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000U)));
}

LANES_INLINE void v_store_bf16_pair(uint16_t *p, v16 even, v16 odd) {
    __m512i low = _mm512_srli_epi32(z_bf16_upper(even), 16);
    __m512i both = _mm512_mask_blend_epi16(0xaaaaaaaaU, low, z_bf16_upper(odd));
    _mm512_storeu_si512((void *)p, both);
}

LANES_INLINE void v_load_e4m3(const uint8_t *p, v16 *even, v16 *odd) {
    __m256i codes = _mm256_loadu_si256((const void *)p);
    *even = _mm512_cvtph_ps(x_e4m3_even_fp16(codes));
    *odd = _mm512_cvtph_ps(x_e4m3_odd_fp16(codes));
}

/* Codes without sign in the low bits of each lane; see small_float_encode. */
LANES_INLINE __m512i z_encode(v16 a, unsigned mantissa_bits, int bias, float step) {
    __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff));
    unsigned drop = 23U - mantissa_bits;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, drop), _mm512_set1_epi32(1));
    __m512i half = _mm512_set1_epi32((1 << (drop - 1U)) - 1);
    __m512i normal = _mm512_add_epi32(magnitude, _mm512_add_epi32(half, odd));
    normal =
        _mm512_sub_epi32(_mm512_srli_epi32(normal, drop), _mm512_set1_epi32(bias << mantissa_bits));
    v16 steps = _mm512_set1_ps(step);
    __m512i small = _mm512_sub_epi32(
        _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), steps)),
        _mm512_castps_si512(steps)
    );
    __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32((bias + 1) << 23));
    return _mm512_mask_mov_epi32(normal, is_small, small);
}

LANES_INLINE __m512i z_encode_e4m3(v16 a) {
    __m512i sign =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 24), _mm512_set1_epi32(0x80));
    return _mm512_or_si512(sign, z_encode(a, 3, 120, 16384.0F));
}

LANES_INLINE __m512i z_encode_e2m1(v16 a) {
    __m512i sign =
        _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 28), _mm512_set1_epi32(8));
    return _mm512_or_si512(sign, z_encode(a, 1, 126, 4194304.0F));
}

LANES_INLINE void v_store_e4m3(uint8_t *p, v16 even, v16 odd) {
    __m512i both = _mm512_or_si512(z_encode_e4m3(even), _mm512_slli_epi32(z_encode_e4m3(odd), 8));
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(both));
}

LANES_INLINE v16 z_e2m1_table(void) {
    return _mm512_setr_ps(
        0.0F,
        0.5F,
        1.0F,
        1.5F,
        2.0F,
        3.0F,
        4.0F,
        6.0F,
        -0.0F,
        -0.5F,
        -1.0F,
        -1.5F,
        -2.0F,
        -3.0F,
        -4.0F,
        -6.0F
    );
}

/* A permutation reads only the low four bits of each index lane: a table look-up per nibble. */
LANES_INLINE void z_load_e2m1(const uint8_t *p, v16 table, v16 *even, v16 *odd) {
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    *even = _mm512_permutexvar_ps(codes, table);
    *odd = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table);
}

LANES_INLINE void v_load_e2m1(const uint8_t *p, v16 factor, v16 *even, v16 *odd) {
    z_load_e2m1(p, z_e2m1_table(), even, odd);
    *even = v_mul(*even, factor);
    *odd = v_mul(*odd, factor);
}

/* The factor goes into the table: the same products, two fewer multiplications. */
LANES_INLINE void v_load_e2m1_scaled(const uint8_t *p, float factor, v16 *even, v16 *odd) {
    z_load_e2m1(p, v_mul(z_e2m1_table(), v_set1(factor)), even, odd);
}

LANES_INLINE void v_store_e2m1(uint8_t *p, v16 even, v16 odd) {
    __m512i both = _mm512_or_si512(z_encode_e2m1(even), _mm512_slli_epi32(z_encode_e2m1(odd), 4));
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(both));
}

LANES_INLINE v16 v_halves(float a, float b) {
    return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}

#endif
