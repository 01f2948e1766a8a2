/* Shared by the kernel tests: backends of every instruction set, seeded numbers, comparisons. */
#ifndef HEARTH_TESTS_TEST_KERNELS_SUPPORT_H
#define HEARTH_TESTS_TEST_KERNELS_SUPPORT_H

#include "kernels/backend.h"

/* Instruction sets this CPU has, the reference ("plain") first. */
size_t kernels_isas(const char *names[3]);

/* Opens the CPU backend with limits that hold for every test; fails the test when it cannot. */
struct backend *kernels_open(const char *isa, int32_t threads);

/* Runs `execute` on every instruction set, with 1, 2 and 3 threads, all rows at once and 1 and 3 rows
 * a call, and demands the bits of plain C with one thread and all rows in `out`, which is cleared
 * before each run. `execute` handles `step` rows a call. */
typedef void kernels_case(struct backend *backend, int32_t step, void *context);
void kernels_same_everywhere(
    const char *what, kernels_case *execute, void *context, void *out, size_t bytes
);
#define KERNELS_ALL_ROWS (1 << 20)

/* splitmix64; the seed makes a test's numbers. */
struct numbers {
    uint64_t state;
};
uint64_t numbers_next(struct numbers *numbers);
float numbers_uniform(struct numbers *numbers, float low, float high);
float numbers_normal(struct numbers *numbers);
int32_t numbers_below(struct numbers *numbers, int32_t limit);

/* Zeroed, 64-byte aligned memory freed by kernels_free_all at the end of a test. */
void *kernels_memory(size_t bytes);
void kernels_free_all(void);

/* Random content; freed with the rest. */
uint16_t *kernels_bf16(struct numbers *numbers, size_t count, float scale);
float *kernels_f32(struct numbers *numbers, size_t count, float scale);
struct weight kernels_weight(struct numbers *numbers, enum dtype dtype, int32_t out, int32_t in);
/* FP8 activations as the quantiser makes them. */
struct quantized kernels_quantized(struct numbers *numbers, int32_t rows, int32_t dim);

/* One value of a weight, or of quantised activations, in double. */
double kernels_weight_at(const struct weight *weight, int32_t row, int32_t column);
double kernels_quantized_at(const struct quantized *x, int32_t dim, int32_t row, int32_t column);

/* Fail with a message naming the first difference. */
void kernels_expect_same(const void *got, const void *expected, size_t bytes, const char *what);
void kernels_expect_near(
    const float *got,
    const float *expected,
    size_t count,
    float relative,
    float absolute,
    const char *what
);
/* At most `steps` bf16 steps apart. */
void kernels_expect_bf16(
    const uint16_t *got, const uint16_t *expected, size_t count, int32_t steps, const char *what
);

#endif
