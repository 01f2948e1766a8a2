/* Warp-wide operations: shuffles, votes, sums, tensor-core products, matrix loads. Each is a function
 * that the last lane to come runs over what all lanes brought. */
#include "cuda_emulation_internal.h"

/* Not through memset, which the address sanitizer guards: the variables have red zones between them. */
__attribute__((no_sanitize("address", "undefined"))) void cuda_emulation_spoil_shared(void) {
    volatile unsigned char *at = (unsigned char *)__start_cuda_shared;
    volatile unsigned char *end = (unsigned char *)__stop_cuda_shared;
    while (at < end && (uintptr_t)at % 8 != 0) {
        *at++ = 0xFF;
    }
    for (; at + 8 <= end; at += 8) {
        *(volatile uint64_t *)at = UINT64_MAX;
    }
    while (at < end) {
        *at++ = 0xFF;
    }
}

/* ---- barriers and votes ---- */

void __syncwarp(uint32_t mask, const char *file, int line) {
    static const struct cuda_emulation_collective syncwarp = {"__syncwarp", nullptr, false, true};
    cuda_emulation_collect(&syncwarp, mask, nullptr, file, line);
}

struct vote {
    bool predicate;
    uint32_t value;
    uint32_t result;
};

static void combine_vote(void *const lanes[32], uint32_t mask) {
    uint32_t result = 0;
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1U) != 0 && ((struct vote *)lanes[i])->predicate) {
            result |= 1U << i;
        }
    }
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1U) != 0) {
            ((struct vote *)lanes[i])->result = result;
        }
    }
}

static void combine_match(void *const lanes[32], uint32_t mask) {
    for (int i = 0; i < 32; i++) {
        for (int j = 0; j < 32 && (mask >> i & 1U) != 0; j++) {
            if ((mask >> j & 1U) != 0 &&
                ((struct vote *)lanes[i])->value == ((struct vote *)lanes[j])->value) {
                ((struct vote *)lanes[i])->result |= 1U << j;
            }
        }
    }
}

uint32_t __ballot_sync(uint32_t mask, int predicate, const char *file, int line) {
    static const struct cuda_emulation_collective ballot = {
        "__ballot_sync", combine_vote, false, false};
    struct vote vote = {predicate != 0, 0, 0};
    cuda_emulation_collect(&ballot, mask, &vote, file, line);
    return vote.result;
}

int __any_sync(uint32_t mask, int predicate, const char *file, int line) {
    static const struct cuda_emulation_collective any = {"__any_sync", combine_vote, false, false};
    struct vote vote = {predicate != 0, 0, 0};
    cuda_emulation_collect(&any, mask, &vote, file, line);
    return vote.result != 0;
}

int __all_sync(uint32_t mask, int predicate, const char *file, int line) {
    static const struct cuda_emulation_collective all = {"__all_sync", combine_vote, false, false};
    struct vote vote = {predicate != 0, 0, 0};
    cuda_emulation_collect(&all, mask, &vote, file, line);
    return vote.result == mask;
}

uint32_t __match_any_sync(uint32_t mask, uint32_t value, const char *file, int line) {
    static const struct cuda_emulation_collective match = {
        "__match_any_sync", combine_match, false, false};
    struct vote vote = {false, value, 0};
    cuda_emulation_collect(&match, mask, &vote, file, line);
    return vote.result;
}

/* ---- shuffles ---- */

struct shuffle {
    enum cuda_emulation_shuffle how;
    int operand, width;
    uint64_t value, result;
};

/* The lane that `lane` reads; an own one where the segment ends. */
static int shuffle_source(const struct shuffle *shuffle, int lane) {
    int first = lane & ~(shuffle->width - 1);
    int last = first + shuffle->width - 1;
    int source = lane;
    if (shuffle->how == SHUFFLE_INDEX) {
        return first + (shuffle->operand & (shuffle->width - 1));
    }
    if (shuffle->how == SHUFFLE_UP) {
        source = lane - shuffle->operand;
        return source < first ? lane : source;
    }
    source = shuffle->how == SHUFFLE_DOWN ? lane + shuffle->operand : lane ^ shuffle->operand;
    return source > last ? lane : source;
}

static void combine_shuffle(void *const lanes[32], uint32_t mask) {
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1U) == 0) {
            continue;
        }
        struct shuffle *own = (struct shuffle *)lanes[i];
        int source = shuffle_source(own, i);
        if (source < 0 || source > 31 || (mask >> source & 1U) == 0) {
            cuda_emulation_fail("a shuffle of lane %d reads lane %d, mask 0x%x", i, source, mask);
        }
        own->result = ((struct shuffle *)lanes[source])->value;
    }
}

uint64_t cuda_emulation_shuffle(
    enum cuda_emulation_shuffle how,
    uint32_t mask,
    uint64_t value,
    int operand,
    int width,
    const char *file,
    int line
) {
    static const struct cuda_emulation_collective kinds[] = {
        {"__shfl_sync", combine_shuffle, false, false},
        {"__shfl_up_sync", combine_shuffle, false, false},
        {"__shfl_down_sync", combine_shuffle, false, false},
        {"__shfl_xor_sync", combine_shuffle, false, false},
    };
    if (width <= 0 || width > 32 || (width & (width - 1)) != 0) {
        cuda_emulation_fail("%s with width %d", kinds[how].name, width);
    }
    struct shuffle shuffle = {how, operand, width, value, 0};
    cuda_emulation_collect(&kinds[how], mask, &shuffle, file, line);
    return shuffle.result;
}

/* ---- integer reductions ---- */

struct reduce {
    enum cuda_emulation_reduce how;
    uint32_t value;
};

static uint32_t reduce_two(enum cuda_emulation_reduce how, uint32_t a, uint32_t b) {
    switch (how) {
    case REDUCE_ADD:
        return a + b;
    case REDUCE_MIN:
        return a < b ? a : b;
    case REDUCE_MAX:
        return a > b ? a : b;
    case REDUCE_MIN_SIGNED:
        return (int32_t)a < (int32_t)b ? a : b;
    case REDUCE_MAX_SIGNED:
        return (int32_t)a > (int32_t)b ? a : b;
    case REDUCE_AND:
        return a & b;
    case REDUCE_OR:
        return a | b;
    case REDUCE_XOR:
        break;
    }
    return a ^ b;
}

static void combine_reduce(void *const lanes[32], uint32_t mask) {
    bool first = true;
    uint32_t result = 0;
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1U) != 0) {
            const struct reduce *own = (const struct reduce *)lanes[i];
            result = first ? own->value : reduce_two(own->how, result, own->value);
            first = false;
        }
    }
    for (int i = 0; i < 32; i++) {
        if ((mask >> i & 1U) != 0) {
            ((struct reduce *)lanes[i])->value = result;
        }
    }
}

uint32_t cuda_emulation_reduce(
    enum cuda_emulation_reduce how, uint32_t mask, uint32_t value, const char *file, int line
) {
    static const struct cuda_emulation_collective kind = {
        "__reduce_sync", combine_reduce, false, false};
    struct reduce reduce = {how, value};
    cuda_emulation_collect(&kind, mask, &reduce, file, line);
    return reduce.value;
}

/* ---- tensor cores ---- */

struct product {
    float *d;
    const uint32_t *a, *b;
};

static inline __attribute__((always_inline)) float bf16_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

static inline __attribute__((always_inline)) float bf16_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000U);
}

typedef float four __attribute__((vector_size(16)));

/* PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"; d += a b, k ascending. Much of
 * a test's time goes here: vectors, and no sanitizer, for indices that no input decides. */
__attribute__((no_sanitize("address", "undefined"))) static void
combine_product(void *const lanes[32], uint32_t mask) {
    (void)mask; // all lanes
    float a[16][16];
    union {
        float one[16][8];
        four of[16][2];
    } b, d;
    for (int lane = 0; lane < 32; lane++) {
        const struct product *own = (const struct product *)lanes[lane];
        int group = lane / 4;
        int pair = 2 * (lane % 4);
        for (int r = 0; r < 4; r++) {
            int row = group + 8 * (r % 2);
            int column = pair + 8 * (r / 2);
            a[row][column] = bf16_low(own->a[r]);
            a[row][column + 1] = bf16_high(own->a[r]);
            d.one[group + 8 * (r / 2)][pair + r % 2] = own->d[r];
        }
        for (int r = 0; r < 2; r++) {
            b.one[pair + 8 * r][group] = bf16_low(own->b[r]);
            b.one[pair + 8 * r + 1][group] = bf16_high(own->b[r]);
        }
    }
    for (int i = 0; i < 16; i++) {
        four low = d.of[i][0];
        four high = d.of[i][1];
        for (int k = 0; k < 16; k++) {
            low += a[i][k] * b.of[k][0];
            high += a[i][k] * b.of[k][1];
        }
        d.of[i][0] = low;
        d.of[i][1] = high;
    }
    for (int lane = 0; lane < 32; lane++) {
        struct product *own = (struct product *)lanes[lane];
        for (int r = 0; r < 4; r++) {
            own->d[r] = d.one[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
        }
    }
}

void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], const char *file, int line) {
    static const struct cuda_emulation_collective mma = {"mma_bf16", combine_product, true, false};
    struct product product = {d, a, b};
    cuda_emulation_collect(&mma, 0xffffffffU, &product, file, line);
}

struct load {
    uint32_t *r;
    const void *row;
};

static uint16_t matrix_element(void *const lanes[32], int matrix, int row, int column) {
    uint16_t value;
    const void *from = ((const struct load *)lanes[8 * matrix + row])->row;
    memcpy(&value, (const char *)from + 2 * column, sizeof value);
    return value;
}

static void load_all(void *const lanes[32], bool transposed) {
    for (int lane = 0; lane < 32; lane++) {
        const void *row = ((const struct load *)lanes[lane])->row;
        if ((uintptr_t)row % 16 != 0 || !cuda_emulation_is_shared(row, 16)) {
            cuda_emulation_fail(
                "load_matrices: the address of lane %d, %p, is not 16 aligned bytes of shared "
                "memory",
                lane,
                row
            );
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        int group = lane / 4;
        int pair = 2 * (lane % 4);
        for (int m = 0; m < 4; m++) {
            uint32_t low = transposed ? matrix_element(lanes, m, pair, group)
                                      : matrix_element(lanes, m, group, pair);
            uint32_t high = transposed ? matrix_element(lanes, m, pair + 1, group)
                                       : matrix_element(lanes, m, group, pair + 1);
            ((const struct load *)lanes[lane])->r[m] = high << 16 | low;
        }
    }
}

static void combine_load(void *const lanes[32], uint32_t mask) {
    (void)mask; // all lanes
    load_all(lanes, false);
}

static void combine_load_transposed(void *const lanes[32], uint32_t mask) {
    (void)mask; // all lanes
    load_all(lanes, true);
}

void load_matrices(uint32_t r[4], const void *shared, const char *file, int line) {
    static const struct cuda_emulation_collective kind = {
        "load_matrices", combine_load, true, false};
    struct load load = {r, shared};
    cuda_emulation_collect(&kind, 0xffffffffU, &load, file, line);
}

void load_matrices_transposed(uint32_t r[4], const void *shared, const char *file, int line) {
    static const struct cuda_emulation_collective kind = {
        "load_matrices_transposed", combine_load_transposed, true, false};
    struct load load = {r, shared};
    cuda_emulation_collect(&kind, 0xffffffffU, &load, file, line);
}
