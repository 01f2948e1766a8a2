/* Number formats of the model as device code: bf16, E4M3, E2M1, E8M0, encode and decode to the bit
 * (spec model.md 2.2, 3.0.1, 4). The scalar twin is kernels/cpu/number.h; check_quantizers.cu
 * compares the two over every code and every bf16 value.
 *
 * Everything here is exact or rounds once, so it needs IEEE division and subnormals: never compile
 * it with -use_fast_math, -ftz=true or -prec-div=false.
 */
#ifndef HEARTH_KERNELS_CUDA_FORMATS_CUH
#define HEARTH_KERNELS_CUDA_FORMATS_CUH

#include <stdint.h>

__device__ __forceinline__ float bf16_decode(uint16_t code) {
    return __uint_as_float((uint32_t)code << 16);
}

/* To nearest even; a NaN stays one. */
__device__ __forceinline__ uint16_t bf16_encode(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)((bits >> 16) | 0x40U);
    }
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/* 2^(code - 127); 255 is NaN. */
__device__ __forceinline__ float e8m0_decode(uint8_t code) {
    uint32_t bits = code == 0 ? 0x00400000U : (uint32_t)code << 23;
    return __uint_as_float(code == 255 ? 0x7fc00000U : bits);
}

/* 1 / 2^(code - 127), exact for the bytes that the group scales below give (1 to 253): multiplying
 * by it rounds as dividing by the scale does, and is cheaper. */
__device__ __forceinline__ float e8m0_reciprocal(uint8_t code) {
    return __uint_as_float((254U - code) << 23);
}

/* The E8M0 byte of 2^ceil(log2(t)), t a positive normal number. */
__device__ __forceinline__ uint8_t e8m0_ceiling(float t) {
    uint32_t bits = __float_as_uint(t);
    return (uint8_t)((bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U));
}

/* 0x7f and 0xff read as +-480, as the CPU backend does. */
__device__ __forceinline__ float e4m3_decode(uint8_t code) {
    uint32_t exponent = ((uint32_t)code >> 3) & 15U;
    uint32_t mantissa = code & 7U;
    float magnitude = exponent == 0 ? (float)mantissa * 0x1p-9F
                                    : __uint_as_float(((exponent + 120U) << 23) | (mantissa << 20));
    return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

/* |value| <= 448, to nearest even; the sign of zero is kept. */
__device__ __forceinline__ uint8_t e4m3_encode(float value) {
    uint32_t bits = __float_as_uint(value);
    uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t code;
    if (magnitude < (121U << 23)) {
        // Below 2^-6: steps of 2^-9, which is the ulp of 2^14.
        code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0F)) -
               __float_as_uint(16384.0F);
    } else {
        code = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
    }
    return (uint8_t)(((bits >> 24) & 0x80U) | code);
}

__device__ __forceinline__ float e2m1_decode(uint8_t code) {
    uint32_t exponent = ((uint32_t)code >> 1) & 3U;
    uint32_t mantissa = code & 1U;
    float magnitude = exponent == 0 ? (float)mantissa * 0.5F
                                    : __uint_as_float(((exponent + 126U) << 23) | (mantissa << 22));
    return (code & 8U) != 0 ? -magnitude : magnitude;
}

/* |value| <= 6, ties to the even code; the sign of zero is kept. */
__device__ __forceinline__ uint32_t e2m1_encode(float value) {
    uint32_t bits = __float_as_uint(value);
    uint32_t magnitude = bits & 0x7fffffffU;
    uint32_t code;
    if (magnitude < (127U << 23)) {
        // Below 1: steps of 0.5, which is the ulp of 2^22.
        code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 4194304.0F)) -
               __float_as_uint(4194304.0F);
    } else {
        code = ((magnitude + 0x1fffffU + ((magnitude >> 22) & 1U)) >> 22) - (126U << 1);
    }
    return ((bits >> 28) & 8U) | code;
}

__device__ __forceinline__ float clamp_magnitude(float value, float limit) {
    return fminf(fmaxf(value, -limit), limit);
}

/* Scale bytes of a group whose largest magnitude is `largest`: FP8 per 32 (3.0.1), MXFP4 per 32
 * (4.3), and the E4M3 scale of 16 channels of main KV (4.1). */
__device__ __forceinline__ uint8_t fp8_group_scale(float largest) {
    return e8m0_ceiling(__fmul_rn(fmaxf(largest, 1e-4F), 1.0F / 448.0F));
}

__device__ __forceinline__ uint8_t mxfp4_group_scale(float largest) {
    return e8m0_ceiling(__fmul_rn(fmaxf(largest, 6.0F * 0x1p-126F), 1.0F / 6.0F));
}

__device__ __forceinline__ uint8_t main_group_scale(float largest) {
    return e4m3_encode(fminf(__fdiv_rn(fmaxf(largest, 6.0F * 0x1p-9F), 6.0F), 448.0F));
}

/* Eight channels as one thread holds them. */
struct eight {
    float v[8];
};

__device__ __forceinline__ struct eight load_eight(const uint16_t *x) {
    uint4 raw = *reinterpret_cast<const uint4 *>(x); // rows are multiples of 64 bytes
    uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
    struct eight out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.v[2 * i] = __uint_as_float(words[i] << 16);
        out.v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    }
    return out;
}

__device__ __forceinline__ float largest_of(const struct eight *x) {
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        largest = fmaxf(largest, fabsf(x->v[i]));
    }
    return largest;
}

__device__ __forceinline__ uint64_t encode_fp8(const struct eight *x, uint8_t scale) {
    float reciprocal = e8m0_reciprocal(scale);
    uint64_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint8_t code = e4m3_encode(clamp_magnitude(__fmul_rn(x->v[i], reciprocal), 448.0F));
        codes |= (uint64_t)code << (8 * i);
    }
    return codes;
}

__device__ __forceinline__ uint32_t encode_mxfp4(const struct eight *x, uint8_t scale) {
    float reciprocal = e8m0_reciprocal(scale);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes |= e2m1_encode(clamp_magnitude(__fmul_rn(x->v[i], reciprocal), 6.0F)) << (4 * i);
    }
    return codes;
}

/* The scale of main KV is no power of two: a true division (4.1). */
__device__ __forceinline__ uint32_t encode_main(const struct eight *x, uint8_t scale) {
    float divisor = e4m3_decode(scale);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        codes |= e2m1_encode(clamp_magnitude(__fdiv_rn(x->v[i], divisor), 6.0F)) << (4 * i);
    }
    return codes;
}

#endif
