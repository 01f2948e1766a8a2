/* The CPU backend against vectors of the official reference (tests/data/golden/vectors/common) and
 * the specification's appendix A, on every instruction set of this machine. */
#include "test_kernels_support.h"
#include "test_safetensors.h"

#include "kernels/cpu/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char *isas[3];
static size_t isa_count;

static void open_vectors(struct test_tensors *vectors, const char *name) {
    char path[TEST_PATH_MAX];
    char relative[128];
    struct error error = {0};
    int length = snprintf(relative, sizeof relative, "golden/vectors/common/%s", name);
    assert_true(length > 0 && (size_t)length < sizeof relative);
    if (!test_data_find(path, relative)) {
        fail_msg("tests/data/%s is missing", relative);
    }
    if (is_failed(test_tensors_open(vectors, path, &error))) {
        fail_msg("%s", error.message);
    }
}

/* A tensor's bytes in aligned memory. */
static void *
tensor_of(const struct test_tensors *vectors, const char *prefix, const char *name, size_t *count) {
    char full[128];
    struct test_tensor tensor;
    int length = snprintf(full, sizeof full, "%s%s", prefix, name);
    assert_true(length > 0 && (size_t)length < sizeof full);
    if (!test_tensors_get(vectors, full, &tensor)) {
        fail_msg("tensor %s is missing", full);
    }
    void *copy = kernels_memory(tensor.bytes);
    memcpy(copy, tensor.data, tensor.bytes);
    if (count != NULL) {
        *count = tensor.count;
    }
    return copy;
}

static void tables_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "quant.safetensors");
    const float *e4m3 = tensor_of(&vectors, "table.", "e4m3_all256", NULL);
    const float *e8m0 = tensor_of(&vectors, "table.", "e8m0_0_254", NULL);
    const float *e2m1 = tensor_of(&vectors, "table.", "e2m1_16", NULL);
    for (int i = 0; i < 256; i++) {
        if (i % 128 != 127) { // 0x7f and 0xff are NaN there, +-480 here (backend.h)
            float value = e4m3_decode((uint8_t)i);
            kernels_expect_same(&value, &e4m3[i], sizeof value, "e4m3");
            assert_int_equal(e4m3_encode(value), i);
        }
    }
    for (int i = 0; i < 255; i++) {
        float value = e8m0_decode((uint8_t)i);
        kernels_expect_same(&value, &e8m0[i], sizeof value, "e8m0");
    }
    for (int i = 0; i < 16; i++) {
        float value = e2m1_decode((uint8_t)i);
        kernels_expect_same(&value, &e2m1[i], sizeof value, "e2m1");
        assert_int_equal(e2m1_encode(value), i);
    }
    kernels_free_all();
}

static void check_fp8(
    struct backend *backend,
    const uint16_t *x,
    int32_t rows,
    int32_t dim,
    const uint8_t *codes,
    const uint8_t *scales
) {
    size_t count = (size_t)rows * (size_t)dim;
    struct quantize_op op = {
        .rows = rows,
        .dim = dim,
        .x = x,
        .y = {kernels_memory(count), kernels_memory(count / 32)},
    };
    backend_quantize(backend, &op);
    kernels_expect_same(op.y.scales, scales, count / 32, "fp8 scales");
    kernels_expect_same(op.y.codes, codes, count, "fp8 codes");
}

static void check_mxfp4(
    struct backend *backend,
    const uint16_t *x,
    int32_t rows,
    int32_t dim,
    const uint8_t *codes,
    const uint8_t *scales
) {
    size_t count = (size_t)rows * (size_t)dim;
    struct index_quantize_op op = {
        .rows = rows,
        .heads = 1,
        .dim = dim,
        .x = x,
        .codes = kernels_memory(count / 2),
        .scales = kernels_memory(count / 32),
    };
    backend_index_quantize(backend, &op);
    kernels_expect_same(op.scales, scales, count / 32, "mxfp4 scales");
    kernels_expect_same(op.codes, codes, count / 2, "mxfp4 codes");
}

/* Main KV records: rows of `dim` channels, dim / 16 scales each. */
static void check_main(
    struct backend *backend,
    const uint16_t *x,
    int32_t rows,
    int32_t dim,
    const uint8_t *codes,
    const uint8_t *scales
) {
    size_t record = (size_t)(dim / 2 + dim / 16);
    struct kv_source_layout source = {
        .ratio = 1,
        .entries = 128,
        .main_record_bytes = record,
        .index_code_offset = 128 * record,
        .index_scale_offset = 128 * (record + 16),
    };
    uint8_t *block = kernels_memory(128 * (record + 17));
    struct row_segment segment = {0, rows, 0};
    struct sequence_view view = {.blocks = &block};
    struct entry_store_op op = {
        .dim = dim,
        .index_dim = 32,
        .source = source,
        .segments = row_segments_of(&segment, &segment, 1),
        .views = &view,
        .latent = x,
        .key = kernels_memory((size_t)rows * 64),
    };
    assert_true(rows <= 128);
    backend_entry_store(backend, &op);
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *at = block + (size_t)r * record;
        size_t code_bytes = (size_t)dim / 2;
        size_t scale_bytes = (size_t)dim / 16;
        kernels_expect_same(at, codes + (size_t)r * code_bytes, code_bytes, "main codes");
        kernels_expect_same(
            at + code_bytes, scales + (size_t)r * scale_bytes, scale_bytes, "main scales"
        );
    }
}

static void quantisers_match_edge_rows(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "quant.safetensors");
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        size_t count;
        const uint16_t *x = tensor_of(&vectors, "fp8_e8m0_g32.", "input", &count);
        check_fp8(
            backend,
            x,
            (int32_t)count / 32,
            32,
            tensor_of(&vectors, "fp8_e8m0_g32.", "codes", NULL),
            tensor_of(&vectors, "fp8_e8m0_g32.", "scales", NULL)
        );
        x = tensor_of(&vectors, "fp4_e8m0_g32.", "input", &count);
        check_mxfp4(
            backend,
            x,
            (int32_t)count / 32,
            32,
            tensor_of(&vectors, "fp4_e8m0_g32.", "codes", NULL),
            tensor_of(&vectors, "fp4_e8m0_g32.", "scales", NULL)
        );
        // two rows of 16 make one record of 32 channels: codes and scales stay in order
        x = tensor_of(&vectors, "fp4_e4m3_g16.", "input", &count);
        const uint8_t *codes = tensor_of(&vectors, "fp4_e4m3_g16.", "codes", NULL);
        const uint8_t *scales = tensor_of(&vectors, "fp4_e4m3_g16.", "scales", NULL);
        check_main(backend, x, (int32_t)count / 32, 32, codes, scales);
        backend_close(backend);
    }
    kernels_free_all();
}

static void quantisers_match_wide_rows(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "quant.safetensors");
    const uint16_t *x = tensor_of(&vectors, "wide.", "input", NULL);
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        check_fp8(
            backend,
            x,
            16,
            512,
            tensor_of(&vectors, "wide.", "fp8_e8m0_g32.codes", NULL),
            tensor_of(&vectors, "wide.", "fp8_e8m0_g32.scales", NULL)
        );
        check_mxfp4(
            backend,
            x,
            16,
            512,
            tensor_of(&vectors, "wide.", "fp4_e8m0_g32.codes", NULL),
            tensor_of(&vectors, "wide.", "fp4_e8m0_g32.scales", NULL)
        );
        check_main(
            backend,
            x,
            16,
            512,
            tensor_of(&vectors, "wide.", "fp4_e4m3_g16.codes", NULL),
            tensor_of(&vectors, "wide.", "fp4_e4m3_g16.scales", NULL)
        );
        backend_close(backend);
    }
    kernels_free_all();
}

static void dequantised_values_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "quant.safetensors");
    size_t count;
    const uint16_t *fp8 = tensor_of(&vectors, "fp8_e8m0_g32.", "dequant", &count);
    const uint8_t *codes = tensor_of(&vectors, "fp8_e8m0_g32.", "codes", NULL);
    const uint8_t *scales = tensor_of(&vectors, "fp8_e8m0_g32.", "scales", NULL);
    for (size_t i = 0; i < isa_count; i++) {
        // the Engram gather is the op that dequantises FP8 rows to bf16
        struct backend *backend = kernels_open(isas[i], 1);
        size_t rows = count / 32;
        int64_t *ids = kernels_memory(rows * sizeof *ids);
        for (size_t r = 0; r < rows; r++) {
            ids[r] = (int64_t)r;
        }
        struct engram_gather_op op = {
            .rows = (int32_t)rows,
            .columns = 1,
            .dim = 32,
            .ids = ids,
            .table = codes,
            .scales = scales,
            .output = kernels_memory(count * 2),
        };
        backend_engram_gather(backend, &op);
        kernels_expect_same(op.output, fp8, count * 2, "fp8 dequantised");
        backend_close(backend);
    }
    const uint16_t *fp4 = tensor_of(&vectors, "fp4_e4m3_g16.", "dequant", &count);
    codes = tensor_of(&vectors, "fp4_e4m3_g16.", "codes", NULL);
    scales = tensor_of(&vectors, "fp4_e4m3_g16.", "scales", NULL);
    for (size_t i = 0; i < count; i++) {
        uint8_t code = (uint8_t)(i % 2 == 0 ? codes[i / 2] & 15U : codes[i / 2] >> 4U);
        uint16_t value = bf16_encode(e2m1_decode(code) * e4m3_decode(scales[i / 16]));
        assert_int_equal(value, fp4[i]);
    }
    kernels_free_all();
}

static void products_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "quant.safetensors");
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        struct linear_op op = {
            .rows = 5,
            .groups = 1,
            .in = 96,
            .out = 64,
            .input_dtype = DTYPE_FP8,
            .quantized =
                {tensor_of(&vectors, "gemm.", "input_codes", NULL),
                 tensor_of(&vectors, "gemm.", "input_scales", NULL)},
            .weight =
                {DTYPE_FP8,
                 64,
                 96,
                 tensor_of(&vectors, "gemm.fp8.", "weight", NULL),
                 tensor_of(&vectors, "gemm.fp8.", "scale", NULL)},
            .output_dtype = DTYPE_BF16,
            .output = kernels_memory(5 * 64 * 2),
        };
        backend_linear(backend, &op);
        const uint16_t *expected = tensor_of(&vectors, "gemm.fp8.", "out_bf16", NULL);
        kernels_expect_bf16(op.output, expected, 320, 1, "fp8 product");
        op.weight = (struct weight
        ){DTYPE_FP4,
          64,
          96,
          tensor_of(&vectors, "gemm.fp4.", "weight", NULL),
          tensor_of(&vectors, "gemm.fp4.", "scale", NULL)};
        backend_linear(backend, &op);
        expected = tensor_of(&vectors, "gemm.fp4.", "out_bf16", NULL);
        kernels_expect_bf16(op.output, expected, 320, 1, "fp4 product");
        backend_close(backend);
    }
    kernels_free_all();
}

/* cos and sin at the stored positions; frequencies by the formulas of spec 3.4. */
static void check_rope_set(
    const struct test_tensors *vectors, const char *set, int32_t dim, const float *frequencies
) {
    size_t count;
    const int64_t *wide = tensor_of(vectors, "", "positions", NULL);
    const float *cosine = tensor_of(vectors, set, ".cos", &count);
    const float *sine = tensor_of(vectors, set, ".sin", NULL);
    int32_t pairs = dim / 2;
    int32_t rows = (int32_t)count / pairs;
    int32_t *positions = kernels_memory((size_t)rows * sizeof *positions);
    for (int32_t r = 0; r < rows; r++) {
        positions[r] = (int32_t)wide[r];
    }
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 2);
        struct rope_table_op op = {
            .rows = rows,
            .pairs = pairs,
            .positions = positions,
            .frequencies = frequencies,
            .cosine = kernels_memory(count * sizeof(float)),
            .sine = kernels_memory(count * sizeof(float)),
        };
        backend_rope_table(backend, &op);
        kernels_expect_near(op.cosine, cosine, count, 0.0F, 1.2e-7F, set);
        kernels_expect_near(op.sine, sine, count, 0.0F, 1.2e-7F, set);
        backend_close(backend);
    }
}

/* Spec 3.4, in FP32 as the reference: 1 / base^(2i/dim), blended towards 1/16 of it by the ramp. */
static float *frequencies_of(double base, bool yarn) {
    float *frequencies = kernels_memory(32 * sizeof *frequencies);
    for (int i = 0; i < 32; i++) {
        float frequency = 1.0F / (float)pow(base, (double)(2 * i) / 64.0);
        float ramp = fminf(fmaxf((float)(i - 15) / 10.0F, 0.0F), 1.0F);
        float blended = frequency * (1.0F - ramp) + frequency / 16.0F * ramp;
        frequencies[i] = yarn ? blended : frequency;
    }
    return frequencies;
}

static void rope_tables_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "rope.safetensors");
    check_rope_set(&vectors, "official_compress", 64, frequencies_of(160000.0, true));
    check_rope_set(&vectors, "official_main", 64, frequencies_of(10000.0, false));
    kernels_free_all();
}

static void rotations_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "rope.safetensors");
    const uint16_t *input = tensor_of(&vectors, "apply.", "input_positions0to5", NULL);
    const uint16_t *forward = tensor_of(&vectors, "apply.", "forward", NULL);
    const uint16_t *inverse = tensor_of(&vectors, "apply.", "inverse", NULL);
    const int64_t *positions = tensor_of(&vectors, "", "positions", NULL);
    const float *cosine = tensor_of(&vectors, "official_compress.", "cos", NULL);
    const float *sine = tensor_of(&vectors, "official_compress.", "sin", NULL);
    for (int r = 0; r < 6; r++) {
        assert_int_equal(positions[r], r);
    }
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        uint16_t *x = kernels_memory(6 * 64 * 2);
        memcpy(x, input, 6 * 64 * 2);
        struct rotate_op op = {
            .rows = 6,
            .heads = 1,
            .dim = 64,
            .rope_dim = 64,
            .cosine = cosine,
            .sine = sine,
            .x = x};
        backend_rotate(backend, &op);
        kernels_expect_bf16(x, forward, 384, 1, "rotation");
        memcpy(x, input, 6 * 64 * 2);
        op.inverse = true;
        backend_rotate(backend, &op);
        kernels_expect_bf16(x, inverse, 384, 1, "inverse rotation");
        backend_close(backend);
    }
    kernels_free_all();
}

static void stream_site_matches(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "mhc.safetensors");
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        uint16_t *x = tensor_of(&vectors, "site.", "streams", NULL);
        struct stream_mix_op mix = {
            .rows = 4,
            .dim = 32,
            .streams = 4,
            .sinkhorn_iterations = 20,
            .eps = 1e-6F,
            .norm_eps = 1e-20F,
            .x = x,
            .fn = tensor_of(&vectors, "site.", "fn", NULL),
            .scale = tensor_of(&vectors, "", "scale", NULL),
            .base = tensor_of(&vectors, "", "base", NULL),
            .pre = kernels_memory(16 * sizeof(float)),
            .post = kernels_memory(16 * sizeof(float)),
            .comb = kernels_memory(64 * sizeof(float)),
        };
        backend_stream_mix(backend, &mix);
        kernels_expect_near(
            mix.pre, tensor_of(&vectors, "site.", "pre", NULL), 16, 1e-5F, 2e-6F, "pre"
        );
        kernels_expect_near(
            mix.post, tensor_of(&vectors, "site.", "post", NULL), 16, 1e-5F, 2e-6F, "post"
        );
        kernels_expect_near(
            mix.comb, tensor_of(&vectors, "site.", "comb", NULL), 64, 1e-5F, 2e-6F, "comb"
        );
        uint16_t *ones = kernels_memory(64);
        for (int c = 0; c < 32; c++) {
            ones[c] = 0x3f80;
        }
        struct stream_collapse_op collapse = {
            .rows = 4,
            .dim = 32,
            .streams = 4,
            .norm_eps = 1e-20F,
            .x = x,
            .mix = mix.pre,
            .weight = ones,
            .collapsed = kernels_memory(256),
            .normed = kernels_memory(256),
        };
        backend_stream_collapse(backend, &collapse);
        kernels_expect_bf16(
            collapse.collapsed,
            tensor_of(&vectors, "site.", "collapsed_with_pre", NULL),
            128,
            1,
            "collapsed"
        );
        struct stream_update_op update = {
            .rows = 4,
            .dim = 32,
            .streams = 4,
            .x = x,
            .y = tensor_of(&vectors, "site.", "sublayer_out", NULL),
            .post = mix.post,
            .comb = mix.comb,
        };
        backend_stream_update(backend, &update);
        kernels_expect_bf16(
            x, tensor_of(&vectors, "site.", "streams_out", NULL), 512, 1, "updated streams"
        );
        backend_close(backend);
    }
    kernels_free_all();
}

/* Mixes given directly: one stream value v with fn[t] = mix[t] / v and nothing else. The factor
 * rsqrt(mean(x^2)) is then sqrt(width) / v. */
static void check_mixes(
    const float *mixes,
    size_t rows,
    const float *scale,
    const float *base,
    const float *pre,
    const float *post,
    const float *comb
) {
    const int32_t dim = 32;
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        for (size_t r = 0; r < rows; r++) {
            uint16_t *x = kernels_memory(4 * 32 * 2);
            float *fn = kernels_memory(24 * 128 * sizeof(float));
            x[0] = 0x3f80;
            for (size_t t = 0; t < 24; t++) {
                fn[t * 128] = mixes[r * 24 + t] / sqrtf(128.0F);
            }
            float out[24];
            struct stream_mix_op op = {
                .rows = 1,
                .dim = dim,
                .streams = 4,
                .sinkhorn_iterations = 20,
                .eps = 1e-6F,
                .norm_eps = 1e-20F,
                .x = x,
                .fn = fn,
                .scale = scale,
                .base = base,
                .pre = out,
                .post = out + 4,
                .comb = out + 8,
            };
            backend_stream_mix(backend, &op);
            kernels_expect_near(op.pre, pre + 4 * r, 4, 1e-5F, 2e-6F, "pre");
            kernels_expect_near(op.post, post + 4 * r, 4, 1e-5F, 2e-6F, "post");
            kernels_expect_near(op.comb, comb + 16 * r, 16, 1e-5F, 2e-5F, "comb");
        }
        backend_close(backend);
    }
}

static void mixes_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "mhc.safetensors");
    check_mixes(
        tensor_of(&vectors, "", "mixes", NULL),
        64,
        tensor_of(&vectors, "", "scale", NULL),
        tensor_of(&vectors, "", "base", NULL),
        tensor_of(&vectors, "", "pre", NULL),
        tensor_of(&vectors, "", "post", NULL),
        tensor_of(&vectors, "", "comb", NULL)
    );
    kernels_free_all();
}

static void mixes_match_appendix(void **state) {
    (void)state;
    static const float pre[4] = {0.2450860F, 0.5926676F, 0.3486461F, 0.7057860F};
    static const float post[4] = {0.9687602F, 0.9065237F, 1.3027097F, 1.2449187F};
    static const float comb[16] = {
        0.1854436F,
        0.3714011F,
        0.3278036F,
        0.1153508F,
        0.2842735F,
        0.0363971F,
        0.5025034F,
        0.1768251F,
        0.2381698F,
        0.4770001F,
        0.1366815F,
        0.1481476F,
        0.2921122F,
        0.1152008F,
        0.0330105F,
        0.5596755F,
    };
    static const float scale[3] = {0.5F, 0.75F, 1.0F};
    float mixes[24];
    float base[24];
    for (int t = 0; t < 24; t++) {
        mixes[t] = (float)(7 * t % 11 - 5) / 4.0F;
        base[t] = (float)(5 * t % 9 - 4) / 8.0F;
    }
    check_mixes(mixes, 1, scale, base, pre, post, comb);
    kernels_free_all();
}

static void check_router(
    const struct test_tensors *vectors, const char *prefix, int32_t experts, int32_t chosen
) {
    const uint16_t *bf16 = tensor_of(vectors, prefix, "logits", NULL);
    const int32_t *ids = tensor_of(vectors, prefix, "experts", NULL);
    const float *weights = tensor_of(vectors, prefix, "weights", NULL);
    const float *margin = tensor_of(vectors, prefix, "margin", NULL);
    size_t count = 32 * (size_t)experts;
    float *logits = kernels_memory(count * sizeof *logits);
    for (size_t i = 0; i < count; i++) {
        logits[i] = bf16_decode(bf16[i]);
    }
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        struct route_op op = {
            .rows = 32,
            .experts = experts,
            .chosen = chosen,
            .routed_scale = 1.5F,
            .logits = logits,
            .bias = tensor_of(vectors, prefix, "bias", NULL),
            .ids = kernels_memory((size_t)(32 * chosen) * 4),
            .weights = kernels_memory((size_t)(32 * chosen) * 4),
        };
        backend_route(backend, &op);
        for (int32_t r = 0; r < 32; r++) {
            for (int32_t a = 0; a < chosen && margin[r] >= 1e-5F; a++) {
                bool found = false;
                for (int32_t b = 0; b < chosen; b++) {
                    if (op.ids[r * chosen + a] == ids[r * chosen + b]) {
                        found = true;
                        kernels_expect_near(
                            &op.weights[r * chosen + a],
                            &weights[r * chosen + b],
                            1,
                            2e-6F,
                            0.0F,
                            "router weight"
                        );
                    }
                }
                assert_true(found);
                assert_true(a == 0 || op.ids[r * chosen + a] > op.ids[r * chosen + a - 1]);
            }
        }
        backend_close(backend);
    }
}

static void routers_match(void **state) {
    (void)state;
    CLEANUP(test_tensors_close) struct test_tensors vectors = {0};
    open_vectors(&vectors, "router.safetensors");
    check_router(&vectors, "E384.", 384, 6);
    check_router(&vectors, "E128.", 128, 3);
    check_router(&vectors, "E16.", 16, 4);
    kernels_free_all();
}

/* Two hex digits a byte. */
static const uint8_t *bytes_of(const char *hex) {
    size_t count = strlen(hex) / 2;
    uint8_t *bytes = kernels_memory(count);
    for (size_t i = 0; i < count; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
        bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return bytes;
}

static void quantisers_match_appendix(void **state) {
    (void)state;
    uint16_t *x = kernels_memory(64);
    uint16_t *y = kernels_memory(64);
    for (int i = 0; i < 32; i++) {
        x[i] = bf16_encode((float)(37 * i % 64 - 32) / 7.0F);
        y[i] = bf16_encode(0.3F * bf16_decode(x[i]));
    }
    for (size_t i = 0; i < isa_count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        check_fp8(
            backend,
            x,
            1,
            32,
            bytes_of("f963f571ee76d9f869f372ea7851f76df174e67961f570ef76def968f372eb77"),
            bytes_of("79")
        );
        check_main(
            backend, y, 1, 32, bytes_of("2f5e6cf9d3b5074e6d7ae2d5963f5e7c"), bytes_of("2726")
        );
        check_mxfp4(
            backend, y, 1, 32, bytes_of("2f5e6ce9d3b5064e6d7ae1c4962f5d6b"), bytes_of("7d")
        );
        uint16_t *zeros = kernels_memory(64);
        const char *none = "00000000000000000000000000000000"
                           "00000000000000000000000000000000";
        check_fp8(backend, zeros, 1, 32, bytes_of(none), bytes_of("69"));
        check_main(backend, zeros, 1, 32, bytes_of(none), bytes_of("0101"));
        check_mxfp4(backend, zeros, 1, 32, bytes_of(none), bytes_of("01"));
        backend_close(backend);
    }
    kernels_free_all();
}

static int setup(void **state) {
    (void)state;
    isa_count = kernels_isas(isas);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_match),
        cmocka_unit_test(quantisers_match_edge_rows),
        cmocka_unit_test(quantisers_match_wide_rows),
        cmocka_unit_test(quantisers_match_appendix),
        cmocka_unit_test(dequantised_values_match),
        cmocka_unit_test(products_match),
        cmocka_unit_test(rope_tables_match),
        cmocka_unit_test(rotations_match),
        cmocka_unit_test(stream_site_matches),
        cmocka_unit_test(mixes_match),
        cmocka_unit_test(mixes_match_appendix),
        cmocka_unit_test(routers_match),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
