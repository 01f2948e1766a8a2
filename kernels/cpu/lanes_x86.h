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

/* See lanes_plain.h. Two transposes of 4 x 4 words bring the same word of 8 keys together; adding 12
 * makes the bytes unsigned, which a byte product needs. */
LANES_INLINE void v_index_keys(const uint8_t *codes, size_t stride, uint8_t *keys) {
    __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0)
    );
    __m256i nibble = _mm256_set1_epi8(15);
    __m256i rows[4];
    for (size_t i = 0; i < 4; i++) {
        __m128i low = _mm_loadu_si128((const void *)(codes + i * stride));
        __m128i high = _mm_loadu_si128((const void *)(codes + (i + 4) * stride));
        rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]);
    __m256i b = _mm256_unpacklo_epi32(rows[2], rows[3]);
    __m256i c = _mm256_unpackhi_epi32(rows[0], rows[1]);
    __m256i d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    __m256i words[4] = {
        _mm256_unpacklo_epi64(a, b),
        _mm256_unpackhi_epi64(a, b),
        _mm256_unpacklo_epi64(c, d),
        _mm256_unpackhi_epi64(c, d),
    };
    for (size_t i = 0; i < 4; i++) {
        __m256i low = _mm256_and_si256(words[i], nibble);
        __m256i high = _mm256_and_si256(_mm256_srli_epi16(words[i], 4), nibble);
        _mm256_storeu_si256((void *)(keys + i * 32), _mm256_shuffle_epi8(table, low));
        _mm256_storeu_si256((void *)(keys + i * 32 + 128), _mm256_shuffle_epi8(table, high));
    }
}

/* Four channels of 8 keys times a query's. */
LANES_INLINE __m256i x_index_word(const uint8_t *keys, const int8_t *query) {
    int32_t word;
    memcpy(&word, query, sizeof word);
    return _mm256_maddubs_epi16(_mm256_loadu_si256((const void *)keys), _mm256_set1_epi32(word));
}

/* Exact dots of 8 keys with one query over 32 channels, times four. Products are at most 24 * 12, so
 * 16 of them stay within 16 bits. */
LANES_INLINE __m256i x_index_dots(const uint8_t *keys, const int8_t *query, int32_t bias) {
    __m256i a = x_index_word(keys, query);
    __m256i b = x_index_word(keys + 32, query + 4);
    a = _mm256_add_epi16(a, x_index_word(keys + 64, query + 8));
    b = _mm256_add_epi16(b, x_index_word(keys + 96, query + 12));
    a = _mm256_add_epi16(a, x_index_word(keys + 128, query + 16));
    b = _mm256_add_epi16(b, x_index_word(keys + 160, query + 20));
    a = _mm256_add_epi16(a, x_index_word(keys + 192, query + 24));
    b = _mm256_add_epi16(b, x_index_word(keys + 224, query + 28));
    __m256i sum = _mm256_madd_epi16(_mm256_add_epi16(a, b), _mm256_set1_epi16(1));
    return _mm256_sub_epi32(sum, _mm256_set1_epi32(bias));
}

LANES_INLINE void v_index_scores(
    const uint8_t *keys, const float *key_factors, const struct index_query *query, float *scores
) {
    __m256 zero = _mm256_setzero_ps();
    __m256 sums = zero;
    for (int32_t head = 0; head < query->heads; head++) {
        __m256 dots = zero;
        for (int32_t g = 0; g < query->groups; g++) {
            int32_t at = head * query->groups + g;
            __m256i exact = x_index_dots(
                keys + (size_t)g * 256, query->values + (size_t)at * 32, query->bias[at]
            );
            __m256 scaled = _mm256_cvtepi32_ps(exact);
            scaled = _mm256_mul_ps(scaled, _mm256_loadu_ps(key_factors + (size_t)g * 8));
            scaled = _mm256_mul_ps(scaled, _mm256_set1_ps(query->factors[at]));
            dots = _mm256_add_ps(dots, scaled);
        }
        __m256 weight = _mm256_set1_ps(query->weights[head]);
        sums = _mm256_fmadd_ps(_mm256_max_ps(dots, zero), weight, sums);
    }
    _mm256_storeu_ps(scores, sums);
}

#endif
