/* Sixteen lanes in plain C: what the other two must equal. Included by lanes.h only. */
#ifndef HEARTH_KERNELS_CPU_LANES_PLAIN_H
#define HEARTH_KERNELS_CPU_LANES_PLAIN_H

typedef struct {
    float f[16];
} v16;

#define LANES_EACH(expression)                                                                     \
    v16 lanes;                                                                                     \
    for (int i = 0; i < 16; i++) {                                                                 \
        lanes.f[i] = (expression);                                                                 \
    }                                                                                              \
    return lanes

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

/* False where a lane is not a number. */
LANES_INLINE bool v_all_equal(v16 a, v16 b) {
    bool equal = true;
    for (int i = 0; i < 16; i++) {
        equal = equal && a.f[i] == b.f[i];
    }
    return equal;
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

/* Twice an E2M1 value. */
LANES_INLINE int8_t e2m1_doubled(uint32_t code) {
    static const int8_t doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return (int8_t)((code & 8U) != 0 ? -doubled[code & 7U] : doubled[code & 7U]);
}

/* One group of 32 channels of 8 keys, `stride` bytes apart, as bytes 2 k + 12: for every four bytes
 * of codes, the four low nibbles of each key in turn (and the four high ones 128 bytes on). */
LANES_INLINE void v_index_keys(const uint8_t *codes, size_t stride, uint8_t *keys) {
    for (size_t key = 0; key < 8; key++) {
        for (size_t i = 0; i < 16; i++) {
            uint8_t *to = keys + i / 4 * 32 + key * 4 + i % 4;
            uint32_t code = codes[key * stride + i];
            to[0] = (uint8_t)(e2m1_doubled(code & 15U) + 12);
            to[128] = (uint8_t)(e2m1_doubled(code >> 4U) + 12);
        }
    }
}

/* Scores of 8 keys for one row; see struct index_query. */
LANES_INLINE void v_index_scores(
    const uint8_t *keys, const float *key_factors, const struct index_query *query, float *scores
) {
    float sums[8] = {0};
    for (int32_t head = 0; head < query->heads; head++) {
        float dots[8] = {0};
        for (int32_t g = 0; g < query->groups; g++) {
            int32_t at = head * query->groups + g;
            const int8_t *values = query->values + (size_t)at * 32;
            for (int32_t key = 0; key < 8; key++) {
                int32_t exact = -query->bias[at];
                for (int32_t i = 0; i < 32; i++) {
                    exact +=
                        keys[(size_t)g * 256 + (size_t)(i / 4 * 32 + key * 4 + i % 4)] * values[i];
                }
                dots[key] += (float)exact * key_factors[g * 8 + key] * query->factors[at];
            }
        }
        for (int32_t key = 0; key < 8; key++) {
            sums[key] = fmaf(float_max(dots[key], 0.0F), query->weights[head], sums[key]);
        }
    }
    memcpy(scores, sums, sizeof sums);
}

#endif
