/* What the AVX2 and AVX-512 lanes share, in 256-bit registers. */
#ifndef HEARTH_KERNELS_CPU_LANES_X86_H
#define HEARTH_KERNELS_CPU_LANES_X86_H

#include <immintrin.h>

LANES_INLINE float x_reduce_add8(__m256 a) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

LANES_INLINE float x_reduce_max8(__m256 a) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Four reductions at once, each in the order of x_reduce_add8. */
LANES_INLINE void x_reduce_add8x4(__m256 a, __m256 b, __m256 c, __m256 d, float *out) {
    __m256 ac_low = _mm256_permute2f128_ps(a, c, 0x20);
    __m256 ac_high = _mm256_permute2f128_ps(a, c, 0x31);
    __m256 bd_low = _mm256_permute2f128_ps(b, d, 0x20);
    __m256 bd_high = _mm256_permute2f128_ps(b, d, 0x31);
    __m256 ac = _mm256_add_ps(ac_low, ac_high); // four lanes of a, four of c
    __m256 bd = _mm256_add_ps(bd_low, bd_high);
    __m256 first = _mm256_shuffle_ps(ac, bd, 0x44);  // a0 a1 b0 b1, c0 c1 d0 d1
    __m256 second = _mm256_shuffle_ps(ac, bd, 0xee); // a2 a3 b2 b3, c2 c3 d2 d3
    __m256 two = _mm256_add_ps(first, second);
    __m128 low = _mm256_castps256_ps128(two);
    __m128 high = _mm256_extractf128_ps(two, 1);
    __m128 even = _mm_shuffle_ps(low, high, 0x88);
    __m128 odd = _mm_shuffle_ps(low, high, 0xdd);
    _mm_storeu_ps(out, _mm_add_ps(even, odd));
}

/* An E4M3 code in the upper byte of a word, moved right by one, is an FP16 number 256 times too
 * small: sign to sign, 4 + 3 bits into 5 + 10, subnormals included. */
LANES_INLINE __m256i x_e4m3_odd_fp16(__m256i codes) {
    return _mm256_and_si256(_mm256_srai_epi16(codes, 1), _mm256_set1_epi16((short)0xbf80));
}

LANES_INLINE __m256i x_e4m3_even_fp16(__m256i codes) {
    return x_e4m3_odd_fp16(_mm256_slli_epi16(codes, 8));
}

/* The low nibbles of 16 bytes as FP16: only the upper byte of E2M1's FP16 values is not zero. */
LANES_INLINE __m256i x_e2m1_fp16(__m128i codes) {
    __m128i table = _mm_setr_epi8(
        0x00,
        0x38,
        0x3c,
        0x3e,
        0x40,
        0x42,
        0x44,
        0x46,
        (char)0x80,
        (char)0xb8,
        (char)0xbc,
        (char)0xbe,
        (char)0xc0,
        (char)0xc2,
        (char)0xc4,
        (char)0xc6
    );
    __m128i upper = _mm_shuffle_epi8(table, _mm_and_si128(codes, _mm_set1_epi8(15)));
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(upper), 8);
}

LANES_INLINE void v_unpack_e2m1(const uint8_t *codes, uint8_t *magnitude, int8_t *value) {
    __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
    );
    __m128i packed = _mm_loadu_si128((const void *)codes);
    __m256i wide = _mm256_set_m128i(_mm_srli_epi16(packed, 4), packed);
    __m256i signed_values =
        _mm256_shuffle_epi8(values, _mm256_and_si256(wide, _mm256_set1_epi8(15)));
    _mm256_storeu_si256((void *)value, signed_values);
    _mm256_storeu_si256((void *)magnitude, _mm256_abs_epi8(signed_values));
}

/* |key| * (query with key's sign): products to 144, pairs to 288, so nothing saturates. */
LANES_INLINE __m256i x_dot32(const uint8_t *magnitude, const int8_t *sign, __m256i query) {
    __m256i turned = _mm256_sign_epi8(query, _mm256_loadu_si256((const void *)sign));
    __m256i words = _mm256_maddubs_epi16(_mm256_loadu_si256((const void *)magnitude), turned);
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

LANES_INLINE void
v_dot8(const uint8_t *magnitude, const int8_t *sign, const int8_t *query, int32_t *out) {
    __m256i q = _mm256_loadu_si256((const void *)query);
    __m256i s[8];
    for (int i = 0; i < 8; i++) {
        s[i] = x_dot32(magnitude + 32 * i, sign + 32 * i, q);
    }
    __m256i s01 = _mm256_hadd_epi32(s[0], s[1]);
    __m256i s23 = _mm256_hadd_epi32(s[2], s[3]);
    __m256i s45 = _mm256_hadd_epi32(s[4], s[5]);
    __m256i s67 = _mm256_hadd_epi32(s[6], s[7]);
    __m256i low = _mm256_hadd_epi32(s01, s23);
    __m256i high = _mm256_hadd_epi32(s45, s67);
    __m256i first = _mm256_permute2x128_si256(low, high, 0x20);
    __m256i second = _mm256_permute2x128_si256(low, high, 0x31);
    _mm256_storeu_si256((void *)out, _mm256_add_epi32(first, second));
}

#endif
