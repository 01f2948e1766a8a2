/* Sixteen lanes in plain C: what the other two must equal. Included by lanes.h only. */
#ifndef HEARTH_KERNELS_CPU_LANES_PLAIN_H
#define HEARTH_KERNELS_CPU_LANES_PLAIN_H

typedef struct {
    float f[16];
} v16;

#define LANES_EACH(expression)                                                                     \
    v16 result;                                                                                    \
    for (int i = 0; i < 16; i++) {                                                                 \
        result.f[i] = (expression);                                                                \
    }                                                                                              \
    return result

LANES_INLINE v16 v_set1(float a) {
    LANES_EACH(a);
}

LANES_INLINE v16 v_load(const float *p) {
    LANES_EACH(p[i]);
}

LANES_INLINE void v_store(float *p, v16 a) {
    memcpy(p, a.f, sizeof a.f);
}

LANES_INLINE v16 v_add(v16 a, v16 b) {
    LANES_EACH(a.f[i] + b.f[i]);
}

LANES_INLINE v16 v_sub(v16 a, v16 b) {
    LANES_EACH(a.f[i] - b.f[i]);
}

LANES_INLINE v16 v_mul(v16 a, v16 b) {
    LANES_EACH(a.f[i] * b.f[i]);
}

LANES_INLINE v16 v_div(v16 a, v16 b) {
    LANES_EACH(a.f[i] / b.f[i]);
}

LANES_INLINE v16 v_fma(v16 a, v16 b, v16 c) {
    LANES_EACH(fmaf(a.f[i], b.f[i], c.f[i]));
}

LANES_INLINE v16 v_max(v16 a, v16 b) {
    LANES_EACH(float_max(a.f[i], b.f[i]));
}

LANES_INLINE v16 v_min(v16 a, v16 b) {
    LANES_EACH(float_min(a.f[i], b.f[i]));
}

/* To the nearest integer, ties to even; |a| < 2^22. */
LANES_INLINE v16 v_round(v16 a) {
    LANES_EACH((a.f[i] + 12582912.0F) - 12582912.0F);
}

/* 2^n for an integral n in [-126, 127]. */
LANES_INLINE v16 v_pow2(v16 n) {
    LANES_EACH(float_of_bits((uint32_t)((int32_t)n.f[i] + 127) << 23));
}

/* Lane i of the result is lane i ^ mask of a. */
LANES_INLINE v16 v_swap(v16 a, int mask) {
    LANES_EACH(a.f[i ^ mask]);
}

LANES_INLINE float v_reduce_add(v16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            a.f[i] = a.f[i] + a.f[i + width];
        }
    }
    return a.f[0];
}

LANES_INLINE float v_reduce_max(v16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            a.f[i] = float_max(a.f[i], a.f[i + width]);
        }
    }
    return a.f[0];
}

LANES_INLINE void v_reduce_add4(v16 a, v16 b, v16 c, v16 d, float *out) {
    out[0] = v_reduce_add(a);
    out[1] = v_reduce_add(b);
    out[2] = v_reduce_add(c);
    out[3] = v_reduce_add(d);
}

/* 16 consecutive bf16. */
LANES_INLINE v16 v_load_bf16(const uint16_t *p) {
    LANES_EACH(bf16_decode(p[i]));
}

LANES_INLINE void v_store_bf16(uint16_t *p, v16 a) {
    for (int i = 0; i < 16; i++) {
        p[i] = bf16_encode(a.f[i]);
    }
}

LANES_INLINE v16 v_round_bf16(v16 a) {
    LANES_EACH(bf16_round(a.f[i]));
}

/* 32 consecutive bf16 as even and odd channels. */
LANES_INLINE void v_load_bf16_pair(const uint16_t *p, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) {
        even->f[i] = bf16_decode(p[2 * i]);
        odd->f[i] = bf16_decode(p[2 * i + 1]);
    }
}

LANES_INLINE void v_store_bf16_pair(uint16_t *p, v16 even, v16 odd) {
    for (int i = 0; i < 16; i++) {
        p[2 * i] = bf16_encode(even.f[i]);
        p[2 * i + 1] = bf16_encode(odd.f[i]);
    }
}

/* 32 E4M3 codes, divided by 256. */
LANES_INLINE void v_load_e4m3(const uint8_t *p, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) {
        even->f[i] = e4m3_decode(p[2 * i]) * 0x1p-8F;
        odd->f[i] = e4m3_decode(p[2 * i + 1]) * 0x1p-8F;
    }
}

/* |a| <= 448. */
LANES_INLINE void v_store_e4m3(uint8_t *p, v16 even, v16 odd) {
    for (int i = 0; i < 16; i++) {
        p[2 * i] = e4m3_encode(even.f[i]);
        p[2 * i + 1] = e4m3_encode(odd.f[i]);
    }
}

/* 32 E2M1 codes (16 bytes) times the lane's factor. */
LANES_INLINE void v_load_e2m1(const uint8_t *p, v16 factor, v16 *even, v16 *odd) {
    for (int i = 0; i < 16; i++) {
        even->f[i] = e2m1_decode(p[i] & 15U) * factor.f[i];
        odd->f[i] = e2m1_decode(p[i] >> 4U) * factor.f[i];
    }
}

/* The same with one factor for all. */
LANES_INLINE void v_load_e2m1_scaled(const uint8_t *p, float factor, v16 *even, v16 *odd) {
    v_load_e2m1(p, v_set1(factor), even, odd);
}

/* |a| <= 6. */
LANES_INLINE void v_store_e2m1(uint8_t *p, v16 even, v16 odd) {
    for (int i = 0; i < 16; i++) {
        p[i] = (uint8_t)(e2m1_encode(even.f[i]) | (e2m1_encode(odd.f[i]) << 4U));
    }
}

/* Lanes 0-7 a, lanes 8-15 b. */
LANES_INLINE v16 v_halves(float a, float b) {
    LANES_EACH(i < 8 ? a : b);
}

/* Dots of 8 keys with one query over 32 E2M1 channels, times four: exact integers. Keys and query
 * are int8 (twice the value), 16 even then 16 odd channels; magnitude holds |key|. */
LANES_INLINE void
v_dot8(const uint8_t *magnitude, const int8_t *sign, const int8_t *query, int32_t *out) {
    (void)magnitude;
    for (int e = 0; e < 8; e++) {
        int32_t sum = 0;
        for (int i = 0; i < 32; i++) {
            sum += sign[32 * e + i] * query[i];
        }
        out[e] = sum;
    }
}

/* 32 E2M1 codes to int8 (twice the value) and its magnitude, 16 even then 16 odd channels. */
LANES_INLINE void v_unpack_e2m1(const uint8_t *codes, uint8_t *magnitude, int8_t *value) {
    static const int8_t doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < 32; i++) {
        uint32_t code = i < 16 ? codes[i] & 15U : (uint32_t)codes[i - 16] >> 4U;
        magnitude[i] = (uint8_t)doubled[code & 7U];
        value[i] = (int8_t)((code & 8U) != 0 ? -doubled[code & 7U] : doubled[code & 7U]);
    }
}

#endif
