/* Quantisers, decode tables and rotation against the stored vectors of golden/vectors/common, made
 * by the reference; the CPU backend is held to them as well. */
#include "check.h"

#include "kernels/cpu/number.h"

CHECK_CALL(engram_gather)
CHECK_CALL(linear)
CHECK_CALL(quantize)
CHECK_CALL(window_pack)
CHECK_CALL(index_quantize)
CHECK_CALL(entry_store)
CHECK_CALL(rotate)

/* ---- safetensors files; they are trusted, so a search in the header is enough ---- */

#define FILE_BYTES_MAX ((size_t)1 << 24)

struct vectors {
    char *header;
    unsigned char *data;
    size_t bytes;
};

static struct vectors vectors_open(const struct check *check, const char *name) {
    char path[1024];
    uint64_t header_bytes = 0;
    snprintf(path, sizeof path, "%s/%s", check->vectors, name);
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fread(&header_bytes, 8, 1, stream) != 1 ||
        header_bytes > FILE_BYTES_MAX) {
        check_stop("%s: cannot be read; --vectors names its folder", path);
    }
    struct vectors vectors = {calloc(header_bytes + 1, 1), calloc(FILE_BYTES_MAX, 1), 0};
    if (vectors.header == NULL || vectors.data == NULL ||
        fread(vectors.header, header_bytes, 1, stream) != 1) {
        check_stop("%s: cannot be read", path);
    }
    vectors.bytes = fread(vectors.data, 1, FILE_BYTES_MAX, stream);
    fclose(stream);
    return vectors;
}

static void vectors_close(struct vectors *vectors) {
    free(vectors->header);
    free(vectors->data);
}

static const void *tensor(const struct vectors *vectors, const char *name, size_t *bytes) {
    char key[128];
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = strstr(vectors->header, key);
    at = at == NULL ? NULL : strstr(at, "data_offsets");
    at = at == NULL ? NULL : strchr(at, '[');
    unsigned long begin = 0;
    unsigned long end = 0;
    if (at == NULL || sscanf(at, "[%lu,%lu]", &begin, &end) != 2 || end > vectors->bytes ||
        begin > end) {
        check_stop("no tensor %s", name);
    }
    *bytes = end - begin;
    return vectors->data + begin;
}

/* An input with the content of a tensor. */
static void *
tensor_input(struct check *check, const struct vectors *vectors, const char *name, int32_t rows) {
    size_t bytes;
    const void *from = tensor(vectors, name, &bytes);
    size_t row_bytes = bytes / (size_t)(rows == CHECK_SHARED ? 1 : rows);
    void *to = check_input(check, rows, row_bytes);
    memcpy(to, from, bytes);
    return to;
}

/* Counts bytes that differ from the wanted ones in what the CPU and the device gave. */
struct tally {
    size_t cpu, device, of;
};

static void tally_bytes(
    struct check *check, struct tally *tally, const void *output, const void *wanted, size_t bytes
) {
    const unsigned char *cpu = output;
    const unsigned char *device = check_got(check, output);
    const unsigned char *want = wanted;
    for (size_t i = 0; i < bytes; i++) {
        tally->cpu += cpu[i] != want[i];
        tally->device += device[i] != want[i];
    }
    tally->of += bytes;
}

static void report(struct check *check, const char *what, const struct tally *tally) {
    check_report(
        check,
        tally->cpu == 0 && tally->device == 0 && tally->of > 0,
        "%s: %zu of %zu differ from the stored ones, %zu on the CPU",
        what,
        tally->device,
        tally->of,
        tally->cpu
    );
}

/* ---- decode tables ---- */

/* All codes times 1, then 1 times all scales: rows of an Engram table. */
static void check_fp8_tables(struct check *check, const struct vectors *quant) {
    if (!check_case(check, "engram_gather", "stored decode tables")) {
        return;
    }
    size_t bytes;
    const float *e4m3 = tensor(quant, "table.e4m3_all256", &bytes);
    const float *e8m0 = tensor(quant, "table.e8m0_0_254", &bytes);
    struct engram_gather_op op = {.rows = 1, .columns = 8 + 255, .dim = 32};
    size_t columns = (size_t)op.columns;
    int64_t *ids = check_input(check, 1, columns * sizeof *ids);
    uint8_t *table = check_input(check, CHECK_SHARED, columns * 32);
    uint8_t *scales = check_input(check, CHECK_SHARED, columns);
    uint16_t *wanted = check_host(check, columns * 32 * sizeof *wanted);
    for (size_t column = 0; column < columns; column++) {
        ids[column] = (int64_t)column;
        scales[column] = (uint8_t)(column < 8 ? 127 : column - 8);
        for (size_t i = 0; i < 32; i++) {
            size_t code = column < 8 ? column * 32 + i : 0x38; // 1
            // NaN in the stored table; read as 480 here
            float value = code == 0x7f ? 480.0F : code == 0xff ? -480.0F : e4m3[code];
            value = column < 8 ? value : e8m0[column - 8];
            table[column * 32 + i] = (uint8_t)code;
            wanted[column * 32 + i] = bf16_encode(value); // exact
        }
    }
    op.ids = ids;
    op.table = table;
    op.scales = scales;
    op.output = check_output(check, 1, columns * 32 * sizeof *op.output);
    CHECK_RUN(check, engram_gather, op);
    struct tally tally = {0};
    tally_bytes(check, &tally, op.output, wanted, columns * 32 * sizeof *wanted);
    report(check, "E4M3 and E8M0", &tally);
}

/* Row c of the weight has code c in its first column, the input a 1 there. */
static void check_fp4_table(struct check *check, const struct vectors *quant) {
    if (!check_case(check, "linear", "stored decode table")) {
        return;
    }
    size_t bytes;
    const float *e2m1 = tensor(quant, "table.e2m1_16", &bytes);
    struct linear_op op = {.rows = 1, .groups = 1, .in = 32, .out = 16};
    uint8_t *codes = check_input(check, CHECK_SHARED, 16 * 16);
    uint8_t *scales = check_input(check, CHECK_SHARED, 16);
    for (size_t code = 0; code < 16; code++) {
        codes[code * 16] = (uint8_t)code;
        scales[code] = 127;
    }
    op.input_dtype = DTYPE_FP8;
    op.quantized.codes = check_input(check, 1, 32);
    op.quantized.scales = check_input(check, 1, 1);
    op.quantized.codes[0] = 0x38;
    op.quantized.scales[0] = 127;
    op.weight = (struct weight){DTYPE_FP4, 16, 32, codes, scales};
    op.output_dtype = DTYPE_F32;
    op.output = check_output(check, 1, 16 * sizeof(float));
    CHECK_RUN(check, linear, op);
    const float *device = check_got(check, op.output);
    const float *cpu = op.output;
    struct tally tally = {.of = 16};
    for (size_t code = 0; code < 16; code++) { // a sum does not keep the sign of zero
        tally.device += !(device[code] == e2m1[code]);
        tally.cpu += !(cpu[code] == e2m1[code]);
    }
    report(check, "E2M1", &tally);
}

/* ---- quantisers ---- */

static void check_fp8(
    struct check *check,
    const struct vectors *quant,
    const char *input,
    const char *output, /* + ".codes", ".scales" */
    int32_t rows,
    int32_t dim
) {
    char name[64];
    size_t bytes;
    snprintf(name, sizeof name, "%s.codes", output);
    const uint8_t *codes = tensor(quant, name, &bytes);
    ASSERT(bytes == (size_t)rows * (size_t)dim);
    snprintf(name, sizeof name, "%s.scales", output);
    const uint8_t *scales = tensor(quant, name, &bytes);
    if (check_case(check, "quantize", "stored %s", output)) {
        struct quantize_op op = {.rows = rows, .dim = dim};
        op.x = tensor_input(check, quant, input, rows);
        op.y.codes = check_output(check, rows, (size_t)dim);
        op.y.scales = check_output(check, rows, (size_t)dim / 32);
        CHECK_RUN(check, quantize, op);
        struct tally tally = {0};
        tally_bytes(check, &tally, op.y.codes, codes, (size_t)(rows * dim));
        tally_bytes(check, &tally, op.y.scales, scales, (size_t)(rows * dim / 32));
        report(check, "codes and scales", &tally);
    }
    if (check_case(check, "window_pack", "stored %s", output)) {
        struct window_pack_op op = {.rows = rows, .dim = dim};
        size_t record = window_record_bytes(dim);
        op.x = tensor_input(check, quant, input, rows);
        op.records = check_output(check, rows, record);
        CHECK_RUN(check, window_pack, op);
        struct tally tally = {0};
        for (int32_t r = 0; r < rows; r++) {
            uint8_t *at = op.records + (size_t)r * record;
            tally_bytes(check, &tally, at, codes + r * dim, (size_t)dim);
            tally_bytes(check, &tally, at + dim, scales + r * dim / 32, (size_t)dim / 32);
        }
        report(check, "records", &tally);
    }
}

static void check_mxfp4(
    struct check *check,
    const struct vectors *quant,
    const char *input,
    const char *output,
    const int32_t shape[3] /* rows, heads, dim */
) {
    if (!check_case(check, "index_quantize", "stored %s", output)) {
        return;
    }
    char name[64];
    size_t bytes;
    struct index_quantize_op op = {.rows = shape[0], .heads = shape[1], .dim = shape[2]};
    size_t width = (size_t)shape[1] * (size_t)shape[2];
    op.x = tensor_input(check, quant, input, op.rows);
    op.codes = check_output(check, op.rows, width / 2);
    op.scales = check_output(check, op.rows, width / 32);
    CHECK_RUN(check, index_quantize, op);
    struct tally tally = {0};
    snprintf(name, sizeof name, "%s.codes", output);
    const void *codes = tensor(quant, name, &bytes);
    tally_bytes(check, &tally, op.codes, codes, bytes);
    snprintf(name, sizeof name, "%s.scales", output);
    const void *scales = tensor(quant, name, &bytes);
    tally_bytes(check, &tally, op.scales, scales, bytes);
    report(check, "codes and scales", &tally);
}

/* Two stored groups of 16 a latent, two of 32 a key; all entries of one sequence from 0 on. */
static void check_entries(struct check *check, const struct vectors *quant) {
    if (!check_case(check, "entry_store", "stored fp4_e4m3_g16, fp4_e8m0_g32")) {
        return;
    }
    int32_t rows = 47;
    size_t bytes;
    struct check_caches_options options = {
        .sequences = 1, .ratio = 1, .dim = 32, .index_dim = 64, .window = 1, .tokens = &rows};
    struct check_caches caches = check_caches(check, &options);
    struct row_segment segment = {0, rows, 0};
    struct entry_store_op op = {.dim = 32, .index_dim = 64, .source = caches.source};
    op.segments = check_segments(check, &segment, 1);
    op.views = caches.views;
    op.latent = tensor_input(check, quant, "fp4_e4m3_g16.input", rows);
    op.key = tensor_input(check, quant, "fp4_e8m0_g32.input", rows);
    CHECK_RUN(check, entry_store, op);
    const uint8_t *main_codes = tensor(quant, "fp4_e4m3_g16.codes", &bytes);
    ASSERT(bytes == (size_t)rows * 16);
    const uint8_t *main_scales = tensor(quant, "fp4_e4m3_g16.scales", &bytes);
    const uint8_t *key_codes = tensor(quant, "fp4_e8m0_g32.codes", &bytes);
    const uint8_t *key_scales = tensor(quant, "fp4_e8m0_g32.scales", &bytes);
    struct tally tally = {0};
    const uint8_t *block = caches.views[0].blocks[0];
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *record = block + (size_t)r * caches.source.main_record_bytes;
        tally_bytes(check, &tally, record, main_codes + 16 * r, 16);
        tally_bytes(check, &tally, record + 16, main_scales + 2 * r, 2);
        const uint8_t *codes = block + caches.source.index_code_offset + 32 * (size_t)r;
        tally_bytes(check, &tally, codes, key_codes + 32 * r, 32);
        const uint8_t *scales = block + caches.source.index_scale_offset + 2 * (size_t)r;
        tally_bytes(check, &tally, scales, key_scales + 2 * r, 2);
    }
    report(check, "entries", &tally);
}

/* ---- rotation ---- */

static void check_rotation(struct check *check, const struct vectors *rope, bool inverse) {
    if (!check_case(check, "rotate", "stored%s", inverse ? " inverse" : "")) {
        return;
    }
    struct rotate_op op = {.rows = 6, .heads = 1, .dim = 64, .rope_dim = 64, .inverse = inverse};
    size_t bytes;
    const float *cosine = tensor(rope, "official_compress.cos", &bytes);
    const float *sine = tensor(rope, "official_compress.sin", &bytes);
    float *own_cosine = check_input(check, 6, 32 * sizeof(float));
    float *own_sine = check_input(check, 6, 32 * sizeof(float));
    memcpy(own_cosine, cosine, sizeof(float) * 6 * 32);
    memcpy(own_sine, sine, sizeof(float) * 6 * 32);
    op.cosine = own_cosine;
    op.sine = own_sine;
    op.x = check_output(check, 6, 64 * sizeof *op.x);
    memcpy(op.x, tensor(rope, "apply.input_positions0to5", &bytes), sizeof *op.x * 6 * 64);
    CHECK_RUN(check, rotate, op);
    const uint16_t *wanted = tensor(rope, inverse ? "apply.inverse" : "apply.forward", &bytes);
    const uint16_t *device = check_got(check, op.x);
    struct tally tally = {.of = 6 * 64};
    for (size_t i = 0; i < tally.of; i++) { // the reference may fuse: one step of bf16
        tally.device += abs((int)device[i] - (int)wanted[i]) > 1;
        tally.cpu += abs((int)op.x[i] - (int)wanted[i]) > 1;
    }
    report(check, "to one bf16 step", &tally);
}

void check_golden(struct check *check) {
    struct vectors quant = vectors_open(check, "quant.safetensors");
    struct vectors rope = vectors_open(check, "rope.safetensors");
    check_fp8_tables(check, &quant);
    check_fp4_table(check, &quant);
    check_fp8(check, &quant, "fp8_e8m0_g32.input", "fp8_e8m0_g32", 94, 32);
    check_fp8(check, &quant, "wide.input", "wide.fp8_e8m0_g32", 16, 512);
    check_mxfp4(check, &quant, "fp4_e8m0_g32.input", "fp4_e8m0_g32", (int32_t[]){94, 1, 32});
    check_mxfp4(check, &quant, "wide.input", "wide.fp4_e8m0_g32", (int32_t[]){16, 4, 128});
    check_entries(check, &quant);
    check_rotation(check, &rope, false);
    check_rotation(check, &rope, true);
    check_case_end(check);
    vectors_close(&quant);
    vectors_close(&rope);
}

void bench_golden(struct check *check) {
    (void)check; // nothing of its own to time
}
