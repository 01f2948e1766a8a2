#include "test_kernels_support.h"

#include "kernels/cpu/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALLOCATIONS_MAX 4096

static void *allocations[ALLOCATIONS_MAX];
static size_t allocation_count;

size_t kernels_isas(const char *names[3]) {
    static const char *const all[3] = {"plain", "avx2", "avx512"};
    size_t count = 0;
    for (size_t i = 0; i < 3; i++) {
        struct backend_options options = {
            .name = "cpu", .threads = 1, .isa = all[i], .rows_max = 1, .dim_max = 32};
        struct backend *backend = NULL;
        struct error error;
        result opened = backend_open(&options, &backend, &error);
        if (is_ok(opened)) {
            names[count++] = all[i];
            backend_close(backend);
        } else {
            assert_int_equal(opened.code, RESULT_UNSUPPORTED);
        }
    }
    assert_true(count >= 1);
    return count;
}

struct backend *kernels_open(const char *isa, int32_t threads) {
    struct backend_options options = {
        .name = "cpu",
        .threads = threads,
        .isa = isa,
        .rows_max = 40,
        .dim_max = 20480,
        .context_max = 20000,
        .model_dim = 5120,
        .experts = 384,
        .experts_chosen = 6,
        .expert_hidden = 2304,
        .heads = 64,
        .head_dim = 512,
        .index_heads = 32,
        .index_dim = 128,
    };
    struct backend *backend = NULL;
    struct error error = {0};
    if (is_failed(backend_open(&options, &backend, &error))) {
        fail_msg("cannot open cpu/%s: %s", isa, error.message);
    }
    return backend;
}

void kernels_same_everywhere(
    const char *what, kernels_case *execute, void *context, void *out, size_t bytes
) {
    static const int32_t steps[3] = {KERNELS_ALL_ROWS, 1, 3};
    const char *isas[3];
    size_t isa_count = kernels_isas(isas);
    unsigned char *expected = NULL;
    char where[160];
    for (size_t i = 0; i < isa_count; i++) {
        for (int32_t threads = 1; threads <= 3; threads++) {
            struct backend *backend = kernels_open(isas[i], threads);
            for (size_t step = 0; step < COUNT_OF(steps); step++) {
                memset(out, 0, bytes);
                execute(backend, steps[step], context);
                if (expected == NULL) {
                    expected = kernels_memory(bytes);
                    memcpy(expected, out, bytes);
                }
                int length = snprintf(
                    where,
                    sizeof where,
                    "%s on %s, %d threads, %d rows a call",
                    what,
                    isas[i],
                    threads,
                    steps[step]
                );
                assert_true(length > 0 && (size_t)length < sizeof where);
                kernels_expect_same(out, expected, bytes, where);
            }
            backend_close(backend);
        }
    }
}

uint64_t numbers_next(struct numbers *numbers) {
    numbers->state += 0x9e3779b97f4a7c15U;
    uint64_t z = numbers->state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

float numbers_uniform(struct numbers *numbers, float low, float high) {
    return low + (high - low) * (float)(numbers_next(numbers) >> 40) * 0x1p-24F;
}

/* The sum of four uniforms is near enough to a normal number here. */
float numbers_normal(struct numbers *numbers) {
    float sum = 0.0F;
    for (int i = 0; i < 4; i++) {
        sum += numbers_uniform(numbers, -1.0F, 1.0F);
    }
    return sum * 0.866F;
}

int32_t numbers_below(struct numbers *numbers, int32_t limit) {
    return (int32_t)(numbers_next(numbers) % (uint64_t)limit);
}

void *kernels_memory(size_t bytes) {
    assert_true(allocation_count < ALLOCATIONS_MAX);
    size_t rounded = (bytes + 64) / 64 * 64;
    void *memory = aligned_alloc(64, rounded);
    assert_non_null(memory);
    memset(memory, 0, rounded);
    allocations[allocation_count++] = memory;
    return memory;
}

void kernels_free_all(void) {
    for (size_t i = 0; i < allocation_count; i++) {
        free(allocations[i]);
    }
    allocation_count = 0;
}

uint16_t *kernels_bf16(struct numbers *numbers, size_t count, float scale) {
    uint16_t *values = kernels_memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = bf16_encode(numbers_normal(numbers) * scale);
    }
    return values;
}

float *kernels_f32(struct numbers *numbers, size_t count, float scale) {
    float *values = kernels_memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = numbers_normal(numbers) * scale;
    }
    return values;
}

struct weight kernels_weight(struct numbers *numbers, enum dtype dtype, int32_t out, int32_t in) {
    size_t count = (size_t)out * (size_t)in;
    struct weight weight = {.dtype = dtype, .out = out, .in = in};
    if (dtype == DTYPE_BF16) {
        weight.data = kernels_bf16(numbers, count, 0.05F);
        return weight;
    }
    if (dtype == DTYPE_F32) {
        weight.data = kernels_f32(numbers, count, 0.05F);
        return weight;
    }
    size_t bytes = dtype == DTYPE_FP8 ? count : count / 2;
    size_t scale_rows = dtype == DTYPE_FP8 ? ((size_t)out + 31) / 32 : (size_t)out;
    size_t scale_bytes = scale_rows * (((size_t)in + 31) / 32);
    uint8_t *data = kernels_memory(bytes);
    uint8_t *scale = kernels_memory(scale_bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = dtype == DTYPE_FP8 ? e4m3_encode(numbers_normal(numbers) * 60.0F)
                                     : (uint8_t)numbers_next(numbers);
    }
    for (size_t i = 0; i < scale_bytes; i++) {
        scale[i] = (uint8_t)(115 + numbers_below(numbers, 5));
    }
    weight.data = data;
    weight.scale = scale;
    return weight;
}

struct quantized kernels_quantized(struct numbers *numbers, int32_t rows, int32_t dim) {
    size_t count = (size_t)rows * (size_t)dim;
    struct quantized x = {kernels_memory(count), kernels_memory(count / 32)};
    for (size_t i = 0; i < count; i++) {
        x.codes[i] = e4m3_encode(numbers_normal(numbers) * 100.0F);
    }
    for (size_t i = 0; i < count / 32; i++) {
        x.scales[i] = (uint8_t)(117 + numbers_below(numbers, 4));
    }
    return x;
}

double kernels_weight_at(const struct weight *weight, int32_t row, int32_t column) {
    size_t at = (size_t)row * (size_t)weight->in + (size_t)column;
    const uint8_t *bytes = weight->data;
    size_t groups = (size_t)weight->in / 32;
    if (weight->dtype == DTYPE_F32) {
        return (double)((const float *)weight->data)[at];
    }
    if (weight->dtype == DTYPE_BF16) {
        return (double)bf16_decode(((const uint16_t *)weight->data)[at]);
    }
    if (weight->dtype == DTYPE_FP8) {
        uint8_t scale = weight->scale[(size_t)row / 32 * groups + (size_t)column / 32];
        return (double)e4m3_decode(bytes[at]) * (double)e8m0_decode(scale);
    }
    uint8_t code = (uint8_t)(at % 2 == 0 ? bytes[at / 2] & 15U : bytes[at / 2] >> 4U);
    return (double)e2m1_decode(code) * (double)e8m0_decode(weight->scale[at / 32]);
}

double kernels_quantized_at(const struct quantized *x, int32_t dim, int32_t row, int32_t column) {
    size_t at = (size_t)row * (size_t)dim + (size_t)column;
    return (double)e4m3_decode(x->codes[at]) * (double)e8m0_decode(x->scales[at / 32]);
}

void kernels_expect_same(const void *got, const void *expected, size_t bytes, const char *what) {
    const unsigned char *a = got;
    const unsigned char *b = expected;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            fail_msg("%s: byte %zu of %zu is %02x, not %02x", what, i, bytes, a[i], b[i]);
        }
    }
}

void kernels_expect_near(
    const float *got,
    const float *expected,
    size_t count,
    float relative,
    float absolute,
    const char *what
) {
    for (size_t i = 0; i < count; i++) {
        float difference = fabsf(got[i] - expected[i]);
        if (!(difference <= absolute + relative * fabsf(expected[i]))) {
            fail_msg(
                "%s: element %zu of %zu is %.9g, not %.9g",
                what,
                i,
                count,
                (double)got[i],
                (double)expected[i]
            );
        }
    }
}

/* bf16 codes in order of value. */
static int32_t bf16_order(uint16_t code) {
    return (code & 0x8000U) != 0 ? -(int32_t)(code & 0x7fffU) : (int32_t)code;
}

void kernels_expect_bf16(
    const uint16_t *got, const uint16_t *expected, size_t count, int32_t steps, const char *what
) {
    for (size_t i = 0; i < count; i++) {
        if (abs(bf16_order(got[i]) - bf16_order(expected[i])) > steps) {
            fail_msg(
                "%s: element %zu of %zu is %.9g, not %.9g",
                what,
                i,
                count,
                (double)bf16_decode(got[i]),
                (double)bf16_decode(expected[i])
            );
        }
    }
}
