/* Sixteen lanes as two AVX2 registers. Included by lanes.h only; see lanes_plain.h for meanings. */
#ifndef HEARTH_KERNELS_CPU_LANES_AVX2_H
#define HEARTH_KERNELS_CPU_LANES_AVX2_H

#include <immintrin.h>

#include "lanes_x86.h"

typedef struct {
    __m256 a, b;
} v16;

LANES_INLINE v16 v_make(__m256 a, __m256 b) {
    v16 both = {a, b};
    return both;
}

LANES_INLINE v16 v_set1(float a) {
    return v_make(_mm256_set1_ps(a), _mm256_set1_ps(a));
}

LANES_INLINE v16 v_load(const float *p) {
    return v_make(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}

LANES_INLINE void v_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.a);
    _mm256_storeu_ps(p + 8, a.b);
}

LANES_INLINE v16 v_add(v16 a, v16 b) {
    return v_make(_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b));
}

LANES_INLINE v16 v_sub(v16 a, v16 b) {
    return v_make(_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b));
}

LANES_INLINE v16 v_mul(v16 a, v16 b) {
    return v_make(_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b));
}

LANES_INLINE v16 v_div(v16 a, v16 b) {
    return v_make(_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b));
}

LANES_INLINE v16 v_fma(v16 a, v16 b, v16 c) {
    return v_make(_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b));
}

LANES_INLINE v16 v_max(v16 a, v16 b) {
    return v_make(_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b));
}

LANES_INLINE v16 v_min(v16 a, v16 b) {
    return v_make(_mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b));
}

LANES_INLINE bool v_all_equal(v16 a, v16 b) {
    __m256 low = _mm256_cmp_ps(a.a, b.a, _CMP_NEQ_UQ);
    __m256 high = _mm256_cmp_ps(a.b, b.b, _CMP_NEQ_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(low, high)) == 0;
}

LANES_INLINE v16 v_round(v16 a) {
    v16 magic = v_set1(12582912.0F);
    return v_sub(v_add(a, magic), magic);
}

LANES_INLINE __m256 x_pow2(__m256 n) {
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}

LANES_INLINE v16 v_pow2(v16 n) {
    return v_make(x_pow2(n.a), x_pow2(n.b));
}

LANES_INLINE v16 v_swap(v16 a, int mask) {
    if (mask == 8) {
        return v_make(a.b, a.a);
    }
    if (mask == 4) {
        return v_make(_mm256_permute2f128_ps(a.a, a.a, 1), _mm256_permute2f128_ps(a.b, a.b, 1));
    }
    if (mask == 2) {
        return v_make(_mm256_permute_ps(a.a, 0x4e), _mm256_permute_ps(a.b, 0x4e));
    }
    return v_make(_mm256_permute_ps(a.a, 0xb1), _mm256_permute_ps(a.b, 0xb1));
}

LANES_INLINE float v_reduce_add(v16 a) {
    return x_reduce_add8(_mm256_add_ps(a.a, a.b));
}

LANES_INLINE float v_reduce_max(v16 a) {
    return x_reduce_max8(_mm256_max_ps(a.a, a.b));
}

LANES_INLINE void v_reduce_add4(v16 a, v16 b, v16 c, v16 d, float *out) {
    x_reduce_add8x4(
        _mm256_add_ps(a.a, a.b),
        _mm256_add_ps(b.a, b.b),
        _mm256_add_ps(c.a, c.b),
        _mm256_add_ps(d.a, d.b),
        out
    );
}

LANES_INLINE __m256 x_load_bf16(const uint16_t *p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

LANES_INLINE v16 v_load_bf16(const uint16_t *p) {
    return v_make(x_load_bf16(p), x_load_bf16(p + 8));
}

/* The rounded bf16 in the upper half of each lane; the lower half is junk. */
LANES_INLINE __m256i x_bf16_upper(__m256 a) {
    __m256i bits = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 is_nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan)
    );
}

LANES_INLINE void v_store_bf16(uint16_t *p, v16 a) {
    __m256i low = _mm256_srli_epi32(x_bf16_upper(a.a), 16);
    __m256i high = _mm256_srli_epi32(x_bf16_upper(a.b), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256((void *)p, packed);
}

LANES_INLINE __m256 x_round_bf16(__m256 a) {
    __m256i mask = _mm256_set1_epi32((int)0xffff0000U);
    return _mm256_castsi256_ps(_mm256_and_si256(x_bf16_upper(a), mask));
}

LANES_INLINE v16 v_round_bf16(v16 a) {
    return v_make(x_round_bf16(a.a), x_round_bf16(a.b));
}

LANES_INLINE void v_load_bf16_pair(const uint16_t *p, v16 *even, v16 *odd) {
    __m256i mask = _mm256_set1_epi32((int)0xffff0000U);
    __m256i low = _mm256_loadu_si256((const void *)p);
    __m256i high = _mm256_loadu_si256((const void *)(p + 16));
    even->a = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
    even->b = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
    odd->a = _mm256_castsi256_ps(_mm256_and_si256(low, mask));
    odd->b = _mm256_castsi256_ps(_mm256_and_si256(high, mask));
}

LANES_INLINE __m256i x_join_bf16(__m256 even, __m256 odd) {
    __m256i low = _mm256_srli_epi32(x_bf16_upper(even), 16);
    return _mm256_blend_epi16(low, x_bf16_upper(odd), 0xaa);
}

LANES_INLINE void v_store_bf16_pair(uint16_t *p, v16 even, v16 odd) {
    _mm256_storeu_si256((void *)p, x_join_bf16(even.a, odd.a));
    _mm256_storeu_si256((void *)(p + 16), x_join_bf16(even.b, odd.b));
}

/* 16 FP16 to lanes. */
LANES_INLINE v16 x_from_fp16(__m256i halves) {
    return v_make(
        _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
        _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))
    );
}

LANES_INLINE void v_load_e4m3(const uint8_t *p, v16 *even, v16 *odd) {
    __m256i codes = _mm256_loadu_si256((const void *)p);
    *even = x_from_fp16(x_e4m3_even_fp16(codes));
    *odd = x_from_fp16(x_e4m3_odd_fp16(codes));
}

/* Codes without sign in the low bits of each lane; see small_float_encode. */
LANES_INLINE __m256i x_encode(__m256 a, int mantissa_bits, int bias, float step) {
    __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
    int drop = 23 - mantissa_bits;
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, drop), _mm256_set1_epi32(1));
    __m256i half = _mm256_set1_epi32((1 << (drop - 1)) - 1);
    __m256i normal = _mm256_add_epi32(magnitude, _mm256_add_epi32(half, odd));
    normal =
        _mm256_sub_epi32(_mm256_srli_epi32(normal, drop), _mm256_set1_epi32(bias << mantissa_bits));
    __m256 steps = _mm256_set1_ps(step);
    __m256i small = _mm256_sub_epi32(
        _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), steps)),
        _mm256_castps_si256(steps)
    );
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((bias + 1) << 23), magnitude);
    return _mm256_blendv_epi8(normal, small, is_small);
}

LANES_INLINE __m256i x_encode_e4m3(__m256 a) {
    __m256i sign =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(a), 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(sign, x_encode(a, 3, 120, 16384.0F));
}

LANES_INLINE __m256i x_encode_e2m1(__m256 a) {
    __m256i sign =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(a), 28), _mm256_set1_epi32(8));
    return _mm256_or_si256(sign, x_encode(a, 1, 126, 4194304.0F));
}

LANES_INLINE void v_store_e4m3(uint8_t *p, v16 even, v16 odd) {
    __m256i low =
        _mm256_or_si256(x_encode_e4m3(even.a), _mm256_slli_epi32(x_encode_e4m3(odd.a), 8));
    __m256i high =
        _mm256_or_si256(x_encode_e4m3(even.b), _mm256_slli_epi32(x_encode_e4m3(odd.b), 8));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    _mm256_storeu_si256((void *)p, packed);
}

LANES_INLINE void v_load_e2m1(const uint8_t *p, v16 factor, v16 *even, v16 *odd) {
    __m128i codes = _mm_loadu_si128((const void *)p);
    *even = v_mul(x_from_fp16(x_e2m1_fp16(codes)), factor);
    *odd = v_mul(x_from_fp16(x_e2m1_fp16(_mm_srli_epi16(codes, 4))), factor);
}

LANES_INLINE void v_load_e2m1_scaled(const uint8_t *p, float factor, v16 *even, v16 *odd) {
    v_load_e2m1(p, v_set1(factor), even, odd);
}

LANES_INLINE void v_store_e2m1(uint8_t *p, v16 even, v16 odd) {
    __m256i low =
        _mm256_or_si256(x_encode_e2m1(even.a), _mm256_slli_epi32(x_encode_e2m1(odd.a), 4));
    __m256i high =
        _mm256_or_si256(x_encode_e2m1(even.b), _mm256_slli_epi32(x_encode_e2m1(odd.b), 4));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    __m128i bytes =
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((void *)p, bytes);
}

LANES_INLINE v16 v_halves(float a, float b) {
    return v_make(_mm256_set1_ps(a), _mm256_set1_ps(b));
}

#endif
