/* Exact top-K by radix: find the K-th largest key, then take everything above it and the lowest ids
 * among its equals. Linear in the number of scores; nothing is sorted. Bound: about two passes. */
#include "cpu.h"
#include "number.h"

#define RADIX_BITS    11
#define RADIX_BUCKETS (1 << RADIX_BITS)

/* Larger score, larger key; -0 and 0 are equal. */
static uint32_t score_key(float score) {
    uint32_t bits = float_bits(score + 0.0F);
    return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/* The bucket in which the wanted-th largest falls, counting down; *wanted becomes its rank there. */
static uint32_t bucket_of_rank(const int32_t *histogram, int32_t buckets, int32_t *wanted) {
    for (int32_t bucket = buckets - 1; bucket > 0; bucket--) {
        if (histogram[bucket] >= *wanted) {
            return (uint32_t)bucket;
        }
        *wanted -= histogram[bucket];
    }
    return 0;
}

/* The wanted-th largest of keys[0..count); how many equals of it are wanted comes back. */
static uint32_t key_of_rank(uint32_t *keys, int32_t count, int32_t *wanted) {
    uint32_t found = 0;
    uint32_t known = 0; // bits of `found` that are settled
    static const uint32_t shifts[3] = {21, 10, 0};
    static const uint32_t widths[3] = {11, 11, 10};
    for (int step = 0; step < 3; step++) {
        int32_t histogram[RADIX_BUCKETS] = {0};
        uint32_t mask = (1U << widths[step]) - 1U;
        for (int32_t i = 0; i < count; i++) {
            if ((keys[i] & known) == found) {
                histogram[(keys[i] >> shifts[step]) & mask]++;
            }
        }
        uint32_t bucket = bucket_of_rank(histogram, 1 << widths[step], wanted);
        found |= bucket << shifts[step];
        known |= mask << shifts[step];
        if (histogram[bucket] == 1) {
            for (int32_t i = 0; i < count; i++) {
                if ((keys[i] & known) == found) {
                    return keys[i];
                }
            }
        }
    }
    return found;
}

int32_t cpu_topk(const float *scores, int32_t count, int32_t k, uint32_t *keys, int32_t *selected) {
    if (count <= k) {
        for (int32_t i = 0; i < count; i++) {
            selected[i] = i;
        }
        return count;
    }
    if (k <= 0) {
        return 0;
    }
    for (int32_t i = 0; i < count; i++) {
        keys[i] = score_key(scores[i]);
    }
    int32_t equals = k;
    uint32_t limit = key_of_rank(keys, count, &equals);
    int32_t written = 0;
    for (int32_t i = 0; i < count && written < k; i++) {
        // without branches on the scores, which nothing could predict
        bool tie = keys[i] == limit && equals > 0;
        equals -= tie ? 1 : 0;
        selected[written] = i;
        written += keys[i] > limit || tie ? 1 : 0;
    }
    ASSERT(written == k);
    return written;
}
