/* Scalar number formats to the bit: bf16, E4M3 (e4m3fn), E2M1, E8M0 (spec model.md 2.2, 3.0.1, 4).
 *
 * The vector forms in lanes_*.h give the same bits; tests compare the two over every code.
 */
#ifndef HEARTH_KERNELS_CPU_NUMBER_H
#define HEARTH_KERNELS_CPU_NUMBER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_decode(uint16_t code) {
    return float_of_bits((uint32_t)code << 16);
}

/* To nearest even; a NaN stays one. */
static inline uint16_t bf16_encode(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)((bits >> 16) | 0x40U);
    }
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

static inline float bf16_round(float value) {
    return bf16_decode(bf16_encode(value));
}

/* Bits of 2^(code - 127) and of 256 times that, by code; a load is cheaper than the cases. */
#define E8M0_BITS_(s)     ((s) == 0 ? 0x00400000U : (s) == 255 ? 0x7fc00000U : (uint32_t)(s) << 23)
#define E8M0_BITS_256_(s) ((s) == 255 ? 0x7fc00000U : (s) > 246 ? 0x7f800000U : ((s) + 8U) << 23)
#define NUMBER_4_(f, s)   f(s), f((s) + 1), f((s) + 2), f((s) + 3)
#define NUMBER_16_(f, s)                                                                           \
    NUMBER_4_(f, s), NUMBER_4_(f, (s) + 4), NUMBER_4_(f, (s) + 8), NUMBER_4_(f, (s) + 12)
#define NUMBER_64_(f, s)                                                                           \
    NUMBER_16_(f, s), NUMBER_16_(f, (s) + 16), NUMBER_16_(f, (s) + 32), NUMBER_16_(f, (s) + 48)
#define NUMBER_256_(f)                                                                             \
    { NUMBER_64_(f, 0), NUMBER_64_(f, 64), NUMBER_64_(f, 128), NUMBER_64_(f, 192) }

/* 2^(code - 127); 255 is NaN. */
static inline float e8m0_decode(uint8_t code) {
    static const uint32_t bits[256] = NUMBER_256_(E8M0_BITS_);
    return float_of_bits(bits[code]);
}

/* 256 * 2^(code - 127), the factor that goes with E4M3 codes read as FP16 (256 times too small).
 * Codes above 246 give infinity; the loader refuses them (backend.h). */
static inline float e8m0_decode_256(uint8_t code) {
    static const uint32_t bits[256] = NUMBER_256_(E8M0_BITS_256_);
    return float_of_bits(bits[code]);
}

/* Value of an E4M3 code; 0x7f and 0xff read as +-480, as the vector forms do. */
static inline float e4m3_decode(uint8_t code) {
    uint32_t exponent = ((uint32_t)code >> 3) & 15U;
    uint32_t mantissa = code & 7U;
    float magnitude = exponent == 0 ? (float)mantissa * 0x1p-9F
                                    : float_of_bits(((exponent + 120U) << 23) | (mantissa << 20));
    return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

/* Rounds to a format of `mantissa_bits` bits to nearest even. |value| must be in range. `bias` is
 * 127 minus the format's bias, `step` a float whose ulp is the format's smallest step. */
static inline uint32_t
small_float_encode(float value, uint32_t mantissa_bits, uint32_t bias, float step) {
    uint32_t magnitude = float_bits(value) & 0x7fffffffU;
    uint32_t drop = 23U - mantissa_bits;
    if (magnitude < (bias + 1U) << 23) {
        return float_bits(float_of_bits(magnitude) + step) - float_bits(step);
    }
    uint32_t half = (1U << (drop - 1U)) - 1U;
    return ((magnitude + half + ((magnitude >> drop) & 1U)) >> drop) - (bias << mantissa_bits);
}

/* value within [-448, 448]. */
static inline uint8_t e4m3_encode(float value) {
    uint32_t sign = (float_bits(value) >> 24) & 0x80U;
    return (uint8_t)(sign | small_float_encode(value, 3, 120, 16384.0F));
}

static inline float e2m1_decode(uint8_t code) {
    static const float values[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    float magnitude = values[code & 7U];
    return (code & 8U) != 0 ? -magnitude : magnitude;
}

/* value within [-6, 6]; ties go to the even code. */
static inline uint8_t e2m1_encode(float value) {
    uint32_t sign = (float_bits(value) >> 28) & 8U;
    return (uint8_t)(sign | small_float_encode(value, 1, 126, 4194304.0F));
}

/* x86's max and min: the second operand when either is NaN. */
static inline float float_max(float a, float b) {
    return a > b ? a : b;
}

static inline float float_min(float a, float b) {
    return a < b ? a : b;
}

static inline float float_clamp(float value, float limit) {
    return float_min(float_max(value, -limit), limit);
}

/* The E8M0 byte of 2^ceil(log2(t)), t a positive normal number. */
static inline uint8_t e8m0_ceiling(float t) {
    uint32_t bits = float_bits(t);
    return (uint8_t)((bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U));
}

/* Scale byte of an FP8 group with largest magnitude `largest` (spec 3.0.1). */
static inline uint8_t fp8_group_scale(float largest) {
    return e8m0_ceiling(float_max(largest, 1e-4F) * (1.0F / 448.0F));
}

/* Scale byte of an MXFP4 group (spec 4.3). */
static inline uint8_t mxfp4_group_scale(float largest) {
    return e8m0_ceiling(float_max(largest, 6.0F * 0x1p-126F) * (1.0F / 6.0F));
}

/* 1 / 2^(code - 127), exact for the codes the two functions above return. */
static inline float e8m0_reciprocal(uint8_t code) {
    return float_of_bits((254U - code) << 23);
}

#endif
