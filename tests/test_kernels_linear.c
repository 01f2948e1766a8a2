/* Linear layers, router and experts: against double, and the same bits on every instruction set,
 * thread count and split of rows. */
#include "test_kernels_support.h"

#include "kernels/cpu/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int32_t rows_of_call(int32_t rows, int32_t from, int32_t step) {
    return rows - from < step ? rows - from : step;
}

static void run_linear(struct backend *backend, int32_t step, void *context) {
    const struct linear_op *whole = context;
    size_t in = (size_t)whole->groups * (size_t)whole->in;
    size_t out = (size_t)whole->groups * (size_t)whole->out;
    size_t size = whole->output_dtype == DTYPE_F32 ? 4 : 2;
    for (int32_t r = 0; r < whole->rows; r += step) {
        struct linear_op op = *whole;
        op.rows = rows_of_call(whole->rows, r, step);
        if (op.input_dtype == DTYPE_FP8) {
            op.quantized.codes += (size_t)r * in;
            op.quantized.scales += (size_t)r * in / 32;
        } else {
            op.input += (size_t)r * in;
        }
        op.output = (uint8_t *)whole->output + (size_t)r * out * size;
        backend_linear(backend, &op);
    }
}

static double linear_expected(const struct linear_op *op, int32_t row, int32_t column) {
    int32_t group = column / op->out;
    int32_t width = op->groups * op->in;
    double sum = 0.0;
    for (int32_t k = 0; k < op->in; k++) {
        int32_t at = group * op->in + k;
        double x = op->input_dtype == DTYPE_FP8
                       ? kernels_quantized_at(&op->quantized, width, row, at)
                       : (double)bf16_decode(op->input[(size_t)row * (size_t)width + (size_t)at]);
        sum += x * kernels_weight_at(&op->weight, column, k);
    }
    return sum;
}

static void check_linear(
    enum dtype input,
    enum dtype weight,
    enum dtype output,
    int32_t rows,
    int32_t groups,
    int32_t in,
    int32_t out
) {
    struct numbers numbers = {(uint64_t)(rows * 1000003 + in * 1009 + out + (int32_t)weight)};
    char what[128];
    int length = snprintf(
        what,
        sizeof what,
        "linear: input %d, weight %d, output %d, %d rows, %d x %d to %d",
        (int)input,
        (int)weight,
        (int)output,
        rows,
        groups,
        in,
        out
    );
    assert_true(length > 0 && (size_t)length < sizeof what);
    struct linear_op op = {
        .rows = rows,
        .groups = groups,
        .in = in,
        .out = out,
        .input_dtype = input,
        .weight = kernels_weight(&numbers, weight, groups * out, in),
        .output_dtype = output,
    };
    if (input == DTYPE_FP8) {
        op.quantized = kernels_quantized(&numbers, rows, groups * in);
    } else {
        op.input = kernels_bf16(&numbers, (size_t)rows * (size_t)(groups * in), 1.0F);
    }
    size_t count = (size_t)rows * (size_t)(groups * out);
    size_t bytes = count * (output == DTYPE_F32 ? 4 : 2);
    op.output = kernels_memory(bytes);
    kernels_same_everywhere(what, run_linear, &op, op.output, bytes);
    for (int i = 0; i < 200; i++) {
        int32_t row = numbers_below(&numbers, rows);
        int32_t column = numbers_below(&numbers, groups * out);
        size_t at = (size_t)row * (size_t)(groups * out) + (size_t)column;
        float expected = (float)linear_expected(&op, row, column);
        float got = output == DTYPE_F32 ? ((float *)op.output)[at]
                                        : bf16_decode(((uint16_t *)op.output)[at]);
        float relative = output == DTYPE_F32 ? 1e-5F : 0x1p-8F;
        kernels_expect_near(&got, &expected, 1, relative, 2e-5F * sqrtf((float)in), what);
    }
    kernels_free_all();
}

static void linear_fp8_is_exact_everywhere(void **state) {
    (void)state;
    check_linear(DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 7, 1, 256, 128); // mini wq_a
    check_linear(DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 7, 1, 128, 512); // mini wq_b
    check_linear(DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 45, 1, 192, 96); // more rows than a slab
    check_linear(DTYPE_FP8, DTYPE_FP8, DTYPE_F32, 5, 1, 96, 72);    // scale rows cut short
    check_linear(DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 6, 1, 5120, 96); // a slice of the release
}

static void linear_fp4_is_exact_everywhere(void **state) {
    (void)state;
    check_linear(DTYPE_FP8, DTYPE_FP4, DTYPE_BF16, 7, 1, 256, 160);
    check_linear(DTYPE_FP8, DTYPE_FP4, DTYPE_BF16, 5, 1, 160, 256);
    check_linear(DTYPE_FP8, DTYPE_FP4, DTYPE_F32, 4, 1, 2304, 64);
}

static void linear_bf16_input_is_exact_everywhere(void **state) {
    (void)state;
    check_linear(DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 7, 1, 256, 16);
    check_linear(DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 5, 1, 192, 18); // tiny-b's router
    check_linear(DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 7, 1, 512, 128);
    check_linear(DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 3, 1, 64, 4);
    check_linear(DTYPE_BF16, DTYPE_F32, DTYPE_F32, 5, 1, 1024, 24);
    check_linear(DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 7, 2, 256, 128); // mini wo_a
    check_linear(DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 6, 8, 128, 32);
    check_linear(DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 4, 3, 192, 64);
}

static void linear_scale_bytes_at_the_ends(void **state) {
    (void)state;
    // 0 is 2^-127 (subnormal), 246 the largest byte that FP8 weights may have
    const uint8_t scales[2] = {0, 246};
    uint8_t *code = kernels_memory(64);
    uint8_t *scale = kernels_memory(2);
    memset(code, 0x08, 32); // 2^-6
    memset(code + 32, 0x38, 32);
    const char *isas[3];
    size_t count = kernels_isas(isas);
    for (size_t i = 0; i < count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        for (size_t j = 0; j < 2; j++) {
            uint8_t one[32];
            uint8_t unit = 127;
            float out[2];
            memset(one, 0, sizeof one);
            one[0] = 0x38;
            scale[0] = scales[j];
            struct linear_op op = {
                .rows = 1,
                .groups = 1,
                .in = 32,
                .out = 2,
                .input_dtype = DTYPE_FP8,
                .quantized = {one, &unit},
                .weight = {DTYPE_FP8, 2, 32, code, scale},
                .output_dtype = DTYPE_F32,
                .output = out,
            };
            backend_linear(backend, &op);
            float factor = e8m0_decode(scales[j]);
            assert_true(out[0] == factor * 0x1p-6F);
            assert_true(out[1] == factor);
        }
        backend_close(backend);
    }
    kernels_free_all();
}

/* Inputs and scales at both ends, so that a scaled input would overflow or lose bits: one row gives
 * what many give, and every instruction set the same. */
static void linear_extreme_scales_are_exact_everywhere(void **state) {
    (void)state;
    static const uint8_t ends[6] = {0, 1, 9, 127, 240, 246};
    struct numbers numbers = {20261130};
    uint16_t *input = kernels_bf16(&numbers, 9 * 256, 1.0F);
    struct weight weight = kernels_weight(&numbers, DTYPE_FP8, 64, 256);
    uint8_t *scales = kernels_memory(16);
    for (int32_t i = 0; i < 9 * 256; i++) { // from 2^-140 to 2^120 and back to zero
        int32_t exponent = i % 7 == 0 ? 0 : numbers_below(&numbers, 260) - 140;
        input[i] = i % 11 == 0 ? 0 : bf16_encode(ldexpf(bf16_decode(input[i]), exponent));
    }
    for (int32_t i = 0; i < 16; i++) {
        scales[i] = ends[numbers_below(&numbers, 6)];
    }
    weight.scale = scales;
    float many[9 * 64];
    struct linear_op op = {
        .rows = 9,
        .groups = 1,
        .in = 256,
        .out = 64,
        .input_dtype = DTYPE_BF16,
        .input = input,
        .weight = weight,
        .output_dtype = DTYPE_F32,
        .output = many,
    };
    kernels_same_everywhere("extreme scales", run_linear, &op, many, sizeof many);
    const char *isas[3];
    size_t count = kernels_isas(isas);
    for (size_t i = 0; i < count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        for (int32_t rows = 1; rows <= 8; rows++) {
            float few[8 * 64];
            op.rows = rows;
            op.output = few;
            backend_linear(backend, &op);
            assert_memory_equal(few, many, (size_t)rows * 64 * sizeof *few);
        }
        backend_close(backend);
    }
    kernels_free_all();
}

static void run_quantize(struct backend *backend, int32_t step, void *context) {
    const struct quantize_op *whole = context;
    size_t dim = (size_t)whole->dim;
    for (int32_t r = 0; r < whole->rows; r += step) {
        struct quantize_op op = *whole;
        op.rows = rows_of_call(whole->rows, r, step);
        op.x += (size_t)r * dim;
        op.y.codes += (size_t)r * dim;
        op.y.scales += (size_t)r * dim / 32;
        backend_quantize(backend, &op);
    }
}

static void quantize_is_exact_everywhere(void **state) {
    (void)state;
    struct numbers numbers = {7};
    const int32_t rows = 37;
    const int32_t dim = 5120;
    size_t count = (size_t)rows * (size_t)dim;
    uint16_t *x = kernels_bf16(&numbers, count, 3.0F);
    for (size_t i = 0; i < 64; i++) {
        x[i] = (uint16_t)numbers_next(&numbers); // any bits, NaN and infinity included
    }
    uint8_t *out = kernels_memory(count + count / 32);
    struct quantize_op op = {.rows = rows, .dim = dim, .x = x, .y = {out, out + count}};
    kernels_same_everywhere("quantize", run_quantize, &op, out, count + count / 32);
    for (size_t i = 64; i < count; i++) {
        float scale = e8m0_decode(op.y.scales[i / 32]);
        float got = e4m3_decode(op.y.codes[i]) * scale;
        float expected = bf16_decode(x[i]);
        kernels_expect_near(&got, &expected, 1, 0x1p-4F, scale * 0x1p-10F, "quantised value");
    }
    kernels_free_all();
}

static void run_route(struct backend *backend, int32_t step, void *context) {
    const struct route_op *whole = context;
    for (int32_t r = 0; r < whole->rows; r += step) {
        struct route_op op = *whole;
        op.rows = rows_of_call(whole->rows, r, step);
        op.logits += (size_t)(r * whole->experts);
        op.ids += (size_t)(r * whole->chosen);
        op.weights += (size_t)(r * whole->chosen);
        backend_route(backend, &op);
    }
}

static void route_ties_go_to_the_lower_expert(void **state) {
    (void)state;
    const int32_t rows = 9;
    struct route_op op = {.rows = rows, .experts = 16, .chosen = 4, .routed_scale = 1.5F};
    float *logits = kernels_memory((size_t)rows * 16 * sizeof *logits);
    int32_t *out = kernels_memory((size_t)rows * 8 * 4);
    for (int32_t r = 0; r < rows; r++) {
        logits[r * 16 + 15 - r] = 2.0F; // one winner; all others are equal
    }
    op.logits = logits;
    op.bias = kernels_memory(16 * sizeof(float));
    op.ids = out;
    op.weights = (float *)(void *)(out + rows * 4);
    kernels_same_everywhere("route", run_route, &op, out, (size_t)rows * 8 * 4);
    for (int32_t r = 0; r < rows; r++) {
        const int32_t expected[4] = {0, 1, 2, 15 - r};
        kernels_expect_same(op.ids + r * 4, expected, sizeof expected, "chosen experts");
        float sum = 0.0F;
        for (int32_t i = 0; i < 4; i++) {
            sum += op.weights[r * 4 + i];
        }
        assert_true(fabsf(sum - 1.5F) < 1e-5F);
    }
    kernels_free_all();
}

static void route_scalars_match_appendix(void **state) {
    (void)state;
    static const float logits[8] = {-10.0F, -4.0F, -1.0F, 0.0F, 1.0F, 4.0F, 10.0F, 20.0F};
    static const float scores[8] = {
        0.0067379F,
        0.1347217F,
        0.5596979F,
        0.8325546F,
        1.1459763F,
        2.0045323F,
        3.1622848F,
        4.4721360F};
    float bias[8] = {0};
    int32_t ids[8];
    float weights[8];
    struct backend *backend = kernels_open(NULL, 1);
    struct route_op op = {
        .rows = 1,
        .experts = 8,
        .chosen = 8,
        .routed_scale = 1.0F,
        .logits = logits,
        .bias = bias,
        .ids = ids,
        .weights = weights,
    };
    backend_route(backend, &op);
    float sum = 0.0F;
    for (int i = 0; i < 8; i++) {
        sum += scores[i];
    }
    for (int i = 0; i < 8; i++) {
        float expected = scores[i] / sum;
        kernels_expect_near(&weights[i], &expected, 1, 2e-5F, 0.0F, "router score");
    }
    backend_close(backend);
}

static void run_experts(struct backend *backend, int32_t step, void *context) {
    const struct experts_op *whole = context;
    size_t dim = (size_t)whole->dim;
    for (int32_t r = 0; r < whole->rows; r += step) {
        struct experts_op op = *whole;
        op.rows = rows_of_call(whole->rows, r, step);
        op.x.codes += (size_t)r * dim;
        op.x.scales += (size_t)r * dim / 32;
        op.ids += (size_t)(r * whole->chosen);
        op.weights += (size_t)(r * whole->chosen);
        op.output += (size_t)r * dim;
        backend_experts(backend, &op);
    }
}

static double product_at(const struct weight *weight, int32_t row, const double *x) {
    double sum = 0.0;
    for (int32_t k = 0; k < weight->in; k++) {
        sum += x[k] * kernels_weight_at(weight, row, k);
    }
    return sum;
}

/* One expert on one row by the formulas of spec 3.11, in double between the roundings. */
static void expert_expected(
    const struct expert_weights *expert, const double *x, float limit, float weight, double *y
) {
    int32_t hidden = expert->w1.out;
    double *inner = kernels_memory((size_t)hidden * sizeof *inner);
    for (int32_t i = 0; i < hidden; i += 32) {
        float values[32];
        float largest = 0.0F;
        for (int32_t j = 0; j < 32; j++) {
            float gate = bf16_round((float)product_at(&expert->w1, i + j, x));
            float up = bf16_round((float)product_at(&expert->w3, i + j, x));
            gate = limit > 0.0F ? fminf(gate, limit) : gate;
            up = limit > 0.0F ? fmaxf(fminf(up, limit), -limit) : up;
            double silu = (double)gate / (1.0 + exp(-(double)gate));
            values[j] = bf16_round(weight * (float)(silu * (double)up));
            largest = fmaxf(largest, fabsf(values[j]));
        }
        float scale = e8m0_decode(fp8_group_scale(largest));
        for (int32_t j = 0; j < 32; j++) {
            inner[i + j] = (double)(e4m3_decode(e4m3_encode(values[j] / scale)) * scale);
        }
    }
    for (int32_t o = 0; o < expert->w2.out; o++) {
        y[o] = (double)bf16_round((float)product_at(&expert->w2, o, inner));
    }
}

static void experts_expected(const struct experts_op *op, int32_t row, float *out) {
    double *x = kernels_memory((size_t)op->dim * sizeof *x);
    double *y = kernels_memory((size_t)op->dim * sizeof *y);
    for (int32_t c = 0; c < op->dim; c++) {
        x[c] = kernels_quantized_at(&op->x, op->dim, row, c);
        out[c] = 0.0F;
    }
    for (int32_t slot = 0; slot <= op->chosen; slot++) {
        bool shared = slot == op->chosen;
        int32_t at = row * op->chosen + slot;
        expert_expected(
            shared ? op->shared : &op->routed[op->ids[at]],
            x,
            op->limit,
            shared ? 1.0F : op->weights[at],
            y
        );
        for (int32_t c = 0; c < op->dim; c++) {
            out[c] += (float)y[c];
        }
    }
}

static void
check_experts(int32_t rows, int32_t dim, int32_t hidden, int32_t experts, int32_t chosen) {
    struct numbers numbers = {(uint64_t)(rows + dim + hidden)};
    struct expert_weights *weights = kernels_memory((size_t)(experts + 1) * sizeof *weights);
    for (int32_t e = 0; e <= experts; e++) {
        enum dtype dtype = e < experts ? DTYPE_FP4 : DTYPE_FP8;
        weights[e].w1 = kernels_weight(&numbers, dtype, hidden, dim);
        weights[e].w2 = kernels_weight(&numbers, dtype, dim, hidden);
        weights[e].w3 = kernels_weight(&numbers, dtype, hidden, dim);
    }
    size_t slots = (size_t)(rows * chosen);
    int32_t *ids = kernels_memory(slots * sizeof *ids);
    float *routing = kernels_memory(slots * sizeof *routing);
    for (int32_t r = 0; r < rows; r++) {
        int32_t first = numbers_below(&numbers, experts - chosen + 1);
        for (int32_t i = 0; i < chosen; i++) {
            ids[r * chosen + i] = r % 3 == 0 ? i : first + i; // some experts are crowded
            routing[r * chosen + i] = numbers_uniform(&numbers, 0.1F, 0.6F);
        }
    }
    size_t count = (size_t)rows * (size_t)dim;
    struct experts_op op = {
        .rows = rows,
        .dim = dim,
        .hidden = hidden,
        .experts = experts,
        .chosen = chosen,
        .limit = 10.0F,
        .routed_dtype = weights[0].w1.dtype,
        .x = kernels_quantized(&numbers, rows, dim),
        .ids = ids,
        .weights = routing,
        .routed = weights,
        .shared = &weights[experts],
        .output = kernels_memory(count * 2),
    };
    kernels_same_everywhere("experts", run_experts, &op, op.output, count * 2);
    float *expected = kernels_memory((size_t)dim * sizeof *expected);
    double difference = 0.0;
    double magnitude = 0.0;
    for (int32_t r = 0; r < rows; r += 4) {
        experts_expected(&op, r, expected);
        for (int32_t c = 0; c < dim; c++) {
            double got = (double)bf16_decode(op.output[r * dim + c]);
            difference += (got - (double)expected[c]) * (got - (double)expected[c]);
            magnitude += (double)expected[c] * (double)expected[c];
        }
    }
    assert_true(magnitude > 0.0);
    // bf16 output rounding is 0.0011 rms; a quantiser step now and then is much less than that
    assert_true(sqrt(difference / magnitude) < 0.003);
    kernels_free_all();
}

static void experts_are_exact_everywhere(void **state) {
    (void)state;
    check_experts(9, 256, 160, 16, 4); // mini
    check_experts(5, 192, 96, 18, 6);  // tiny-b
    check_experts(45, 256, 64, 16, 4); // tiny-a, more rows than a slab
}

static void backend_open_refuses_what_it_cannot_do(void **state) {
    (void)state;
    struct error error = {0};
    struct backend *backend = NULL;
    struct backend_options options = {.name = "abacus", .rows_max = 1, .dim_max = 32};
    assert_int_equal(backend_open(&options, &backend, &error).code, RESULT_UNSUPPORTED);
    options.name = "cpu";
    options.isa = "sse9";
    assert_int_equal(backend_open(&options, &backend, &error).code, RESULT_UNSUPPORTED);
    options.isa = NULL;
    options.rows_max = -1;
    assert_int_equal(backend_open(&options, &backend, &error).code, RESULT_INVALID_INPUT);
    options.rows_max = 1;
    options.threads = 100000;
    assert_int_equal(backend_open(&options, &backend, &error).code, RESULT_INVALID_INPUT);
    options.threads = 1;
    options.dim_max = INT32_MAX;
    options.experts = INT32_MAX;
    options.experts_chosen = INT32_MAX / 2;
    options.expert_hidden = INT32_MAX;
    options.rows_max = INT32_MAX;
    result opened = backend_open(&options, &backend, &error);
    assert_true(opened.code == RESULT_INVALID_INPUT || opened.code == RESULT_MEMORY);
    assert_null(backend);
}

static void backend_memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    struct error error = {0};
    struct backend *backend = kernels_open(NULL, 1);
    void *memory = NULL;
    assert_true(is_ok(backend->allocate(backend, 1000, &memory, &error)));
    assert_true((uintptr_t)memory % 64 == 0);
    static const unsigned char zeros[1000];
    assert_memory_equal(memory, zeros, 1000);
    void *none = NULL;
    assert_int_equal(backend->allocate(backend, SIZE_MAX, &none, &error).code, RESULT_MEMORY);
    assert_null(none);
    backend->upload(backend, memory, "hearth", 6);
    backend->copy(backend, (char *)memory + 8, memory, 6);
    char text[6];
    backend->download(backend, text, (char *)memory + 8, 6);
    assert_memory_equal(text, "hearth", 6);
    assert_true(is_ok(backend->synchronize(backend, &error)));
    backend->release(backend, memory);
    backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backend_open_refuses_what_it_cannot_do),
        cmocka_unit_test(backend_memory_is_zeroed_and_aligned),
        cmocka_unit_test(linear_fp8_is_exact_everywhere),
        cmocka_unit_test(linear_fp4_is_exact_everywhere),
        cmocka_unit_test(linear_bf16_input_is_exact_everywhere),
        cmocka_unit_test(linear_scale_bytes_at_the_ends),
        cmocka_unit_test(linear_extreme_scales_are_exact_everywhere),
        cmocka_unit_test(quantize_is_exact_everywhere),
        cmocka_unit_test(route_ties_go_to_the_lower_expert),
        cmocka_unit_test(route_scalars_match_appendix),
        cmocka_unit_test(experts_are_exact_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
