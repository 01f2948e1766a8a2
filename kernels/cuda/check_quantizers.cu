/* Runs the CUDA kernels on a GPU against the stored vectors and the CPU's scalar functions.
 *
 * Usage: check_quantizers FOLDER [bench], FOLDER = golden/vectors/common. Needs nothing but the CUDA
 * runtime, so that check.sh can build it with nvcc alone. Quantisers, records and decode tables must
 * agree to the bit; rotation too (with the CPU's formula), norm to one bf16 ulp and to the bit over
 * any number of rows. Exit status 0 when all of it does.
 */
#include "cuda_formats.cuh"
#include "cuda_ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace cpu { // the same names as the device code's
#include "kernels/cpu/number.h"
}

static int failures = 0;

static void report(const char *what, long long different, long long of) {
    printf(
        "%-6s %-44s %lld of %lld differ\n", different == 0 ? "ok" : "FAILED", what, different, of
    );
    failures += different == 0 ? 0 : 1;
}

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) {                                                              \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));       \
            exit(2);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- stored vectors: trusted files, so a search in the header is enough ---- */

struct file {
    char *header;
    unsigned char *data;
};

static struct file file_open(const char *folder, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *stream = fopen(path, "rb");
    uint64_t header_bytes = 0;
    if (stream == NULL || fread(&header_bytes, 8, 1, stream) != 1 || header_bytes > 1 << 24) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    struct file file = {(char *)calloc(header_bytes + 1, 1), (unsigned char *)malloc(1 << 24)};
    if (fread(file.header, header_bytes, 1, stream) != 1) {
        exit(2);
    }
    size_t got = fread(file.data, 1, 1 << 24, stream);
    (void)got;
    fclose(stream);
    return file;
}

static const void *tensor(const struct file *file, const char *name, size_t *bytes) {
    char key[128];
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = strstr(file->header, key);
    at = at == NULL ? NULL : strstr(at, "data_offsets");
    at = at == NULL ? NULL : strchr(at, '[');
    if (at == NULL) {
        fprintf(stderr, "no tensor %s\n", name);
        exit(2);
    }
    char *end = NULL;
    unsigned long begin = strtoul(at + 1, &end, 10);
    unsigned long stop = strtoul(strchr(end, ',') + 1, NULL, 10);
    *bytes = stop - begin;
    return file->data + begin;
}

/* ---- device memory ---- */

template <typename T> static T *upload(const T *from, size_t count) {
    T *to = NULL;
    CUDA(cudaMalloc(&to, count * sizeof(T)));
    CUDA(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

template <typename T> static T *blank(size_t count) {
    T *to = NULL;
    CUDA(cudaMalloc(&to, count * sizeof(T)));
    CUDA(cudaMemset(to, 0xA5, count * sizeof(T)));
    return to;
}

template <typename T> static T *download(const T *from, size_t count) {
    T *to = (T *)malloc(count * sizeof(T));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

static long long differing(const void *a, const void *b, size_t bytes) {
    const unsigned char *x = (const unsigned char *)a;
    const unsigned char *y = (const unsigned char *)b;
    long long count = 0;
    for (size_t i = 0; i < bytes; i++) {
        count += x[i] != y[i];
    }
    return count;
}

/* ---- the CPU's answers ---- */

static float largest_of_row(const uint16_t *x, int count) {
    float largest = 0.0F;
    for (int i = 0; i < count; i++) {
        largest = cpu::float_max(fabsf(cpu::bf16_decode(x[i])), largest);
    }
    return largest;
}

static void cpu_fp8(const uint16_t *x, int dim, uint8_t *codes, uint8_t *scales) {
    for (int c = 0; c < dim; c += 32) {
        scales[c / 32] = cpu::fp8_group_scale(largest_of_row(x + c, 32));
        float scale = cpu::e8m0_decode(scales[c / 32]);
        for (int i = c; i < c + 32; i++) {
            float value = cpu::float_clamp(cpu::bf16_decode(x[i]) / scale, 448.0F);
            codes[i] = cpu::e4m3_encode(value);
        }
    }
}

static void cpu_fp4(const uint16_t *x, int count, float scale, uint8_t *codes) {
    for (int i = 0; i < count; i += 2) {
        uint8_t low = cpu::e2m1_encode(cpu::float_clamp(cpu::bf16_decode(x[i]) / scale, 6.0F));
        uint8_t high = cpu::e2m1_encode(cpu::float_clamp(cpu::bf16_decode(x[i + 1]) / scale, 6.0F));
        codes[i / 2] = (uint8_t)(low | high << 4);
    }
}

static void cpu_mxfp4(const uint16_t *x, int dim, uint8_t *codes, uint8_t *scales) {
    for (int c = 0; c < dim; c += 32) {
        scales[c / 32] = cpu::mxfp4_group_scale(largest_of_row(x + c, 32));
        cpu_fp4(x + c, 32, cpu::e8m0_decode(scales[c / 32]), codes + c / 2);
    }
}

static void cpu_main(const uint16_t *x, int dim, uint8_t *codes, uint8_t *scales) {
    for (int c = 0; c < dim; c += 16) {
        float largest = cpu::float_max(largest_of_row(x + c, 16), 6.0F * 0x1p-9F);
        scales[c / 16] = cpu::e4m3_encode(cpu::float_min(largest / 6.0F, 448.0F));
        cpu_fp4(x + c, 16, cpu::e4m3_decode(scales[c / 16]), codes + c / 2);
    }
}

/* ---- decode tables ---- */

__global__ void tables_kernel(float *e4m3, float *e8m0, float *e2m1) {
    unsigned i = threadIdx.x;
    e4m3[i] = e4m3_decode((uint8_t)i);
    e8m0[i] = e8m0_decode((uint8_t)i);
    e2m1[i % 16] = e2m1_decode((uint8_t)(i % 16));
}

static void check_tables(const struct file *quant) {
    float *e4m3 = blank<float>(256);
    float *e8m0 = blank<float>(256);
    float *e2m1 = blank<float>(16);
    tables_kernel<<<1, 256>>>(e4m3, e8m0, e2m1);
    CUDA(cudaGetLastError());
    size_t bytes = 0;
    float *got = download(e4m3, 256);
    float *want = (float *)malloc(256 * sizeof(float));
    memcpy(want, tensor(quant, "table.e4m3_all256", &bytes), 256 * sizeof(float));
    want[0x7f] = 480.0F; // NaN in the table; read as 480 here and on the CPU
    want[0xff] = -480.0F;
    report("table e4m3", differing(got, want, 256 * sizeof(float)), 1024);
    got = download(e8m0, 256);
    report("table e8m0", differing(got, tensor(quant, "table.e8m0_0_254", &bytes), 255 * 4), 1020);
    got = download(e2m1, 16);
    report("table e2m1", differing(got, tensor(quant, "table.e2m1_16", &bytes), 64), 64);
}

/* ---- quantisers over rows of x, wanted codes and scales [rows, ...] ---- */

static void check_fp8(
    const char *what, const uint16_t *x, int rows, int dim, const void *codes, const void *scales
) {
    size_t count = (size_t)rows * dim;
    struct quantize_op op = {
        rows, dim, upload(x, count), {blank<uint8_t>(count), blank<uint8_t>(count / 32)}};
    CUDA(cuda_quantize(0, &op));
    long long wrong = differing(download(op.y.codes, count), codes, count) +
                      differing(download(op.y.scales, count / 32), scales, count / 32);
    char name[96];
    snprintf(name, sizeof name, "quantize %s [%d, %d]", what, rows, dim);
    report(name, wrong, (long long)(count + count / 32));

    size_t record = window_record_bytes(dim);
    struct window_pack_op pack = {rows, dim, op.x, blank<uint8_t>(rows * record)};
    CUDA(cuda_window_pack(0, &pack));
    uint8_t *got = download(pack.records, rows * record);
    wrong = 0;
    for (int r = 0; r < rows; r++) {
        wrong += differing(got + r * record, (const uint8_t *)codes + (size_t)r * dim, dim);
        wrong += differing(
            got + r * record + dim, (const uint8_t *)scales + (size_t)r * (dim / 32), dim / 32
        );
    }
    snprintf(name, sizeof name, "window_pack %s [%d, %d]", what, rows, dim);
    report(name, wrong, (long long)(rows * record));
}

static void check_mxfp4(
    const char *what,
    const uint16_t *x,
    int rows,
    int heads,
    int dim,
    const void *codes,
    const void *scales
) {
    size_t count = (size_t)rows * heads * dim;
    struct index_quantize_op op = {
        rows, heads, dim, upload(x, count), blank<uint8_t>(count / 2), blank<uint8_t>(count / 32)};
    CUDA(cuda_index_quantize(0, &op));
    long long wrong = differing(download(op.codes, count / 2), codes, count / 2) +
                      differing(download(op.scales, count / 32), scales, count / 32);
    char name[96];
    snprintf(name, sizeof name, "index_quantize %s [%d, %d, %d]", what, rows, heads, dim);
    report(name, wrong, (long long)(count / 2 + count / 32));
}

/* Stores rows of one sequence that starts at `position` and compares whole blocks, so that a byte
 * written in a wrong place shows. */
struct store_case {
    const char *what;
    const uint16_t *latent, *key;
    int rows, dim, index_dim, ratio, position, write_floor;
};

static void check_entry_store(const struct store_case *t) {
    struct kv_source_layout source;
    memset(&source, 0, sizeof source);
    source.ratio = t->ratio;
    source.entries = KV_BLOCK_TOKENS / t->ratio;
    source.main_offset = 24; // something before it that must stay as it is
    source.main_record_bytes = (size_t)t->dim / 2 + t->dim / 16;
    source.index_code_offset = source.main_offset + source.entries * source.main_record_bytes + 8;
    source.index_scale_offset =
        source.index_code_offset + (size_t)source.entries * t->index_dim / 2;
    size_t block_bytes =
        source.index_scale_offset + (size_t)source.entries * t->index_dim / 32 + 16;
    int block_count = (t->position + t->rows) / KV_BLOCK_TOKENS + 1;
    uint8_t **blocks = (uint8_t **)calloc(block_count, sizeof *blocks);
    uint8_t *want = (uint8_t *)malloc(block_count * block_bytes);
    memset(want, 0xA5, block_count * block_bytes);
    for (int b = 0; b < block_count; b++) {
        blocks[b] = blank<uint8_t>(block_bytes);
    }
    for (int r = 0; r < t->rows; r++) {
        int position = t->position + r;
        if ((position + 1) % t->ratio != 0 || position < t->write_floor) {
            continue;
        }
        int entry = position / t->ratio;
        size_t at = (size_t)(entry % source.entries);
        uint8_t *block = want + (size_t)(entry / source.entries) * block_bytes;
        uint8_t *record = block + source.main_offset + at * source.main_record_bytes;
        cpu_main(t->latent + (size_t)r * t->dim, t->dim, record, record + t->dim / 2);
        cpu_mxfp4(
            t->key + (size_t)r * t->index_dim,
            t->index_dim,
            block + source.index_code_offset + at * (t->index_dim / 2),
            block + source.index_scale_offset + at * (t->index_dim / 32)
        );
    }
    struct row_segment segments[2] = {{0, 0, 0}, {0, t->rows, t->position}};
    struct sequence_view views[2];
    memset(views, 0, sizeof views);
    views[1].blocks = upload(blocks, block_count);
    views[1].write_floor = t->write_floor;
    struct entry_store_op op;
    memset(&op, 0, sizeof op);
    op.dim = t->dim;
    op.index_dim = t->index_dim;
    op.source = source;
    op.segments = row_segments_of(segments, upload(segments, 2), 2); // the first is empty
    op.views = upload(views, 2);
    op.latent = upload(t->latent, (size_t)t->rows * t->dim);
    op.key = upload(t->key, (size_t)t->rows * t->index_dim);
    CUDA(cuda_entry_store(0, &op));
    long long wrong = 0;
    for (int b = 0; b < block_count; b++) {
        wrong += differing(download(blocks[b], block_bytes), want + b * block_bytes, block_bytes);
    }
    char name[96];
    snprintf(name, sizeof name, "entry_store %s ratio %d from %d", t->what, t->ratio, t->position);
    report(name, wrong, (long long)(block_count * block_bytes));
}

/* The stored vectors of one quantiser; the CPU's functions are held to them as well. */
static void check_golden(const struct file *quant) {
    size_t bytes = 0;
    const uint16_t *fp8 = (const uint16_t *)tensor(quant, "fp8_e8m0_g32.input", &bytes);
    int rows = (int)(bytes / 64);
    const void *codes = tensor(quant, "fp8_e8m0_g32.codes", &bytes);
    check_fp8("golden", fp8, rows, 32, codes, tensor(quant, "fp8_e8m0_g32.scales", &bytes));
    const uint16_t *key = (const uint16_t *)tensor(quant, "fp4_e8m0_g32.input", &bytes);
    codes = tensor(quant, "fp4_e8m0_g32.codes", &bytes);
    const void *scales = tensor(quant, "fp4_e8m0_g32.scales", &bytes);
    check_mxfp4("golden", key, rows, 1, 32, codes, scales);
    const uint16_t *wide = (const uint16_t *)tensor(quant, "wide.input", &bytes);
    codes = tensor(quant, "wide.fp8_e8m0_g32.codes", &bytes);
    check_fp8("golden", wide, 16, 512, codes, tensor(quant, "wide.fp8_e8m0_g32.scales", &bytes));
    codes = tensor(quant, "wide.fp4_e8m0_g32.codes", &bytes);
    scales = tensor(quant, "wide.fp4_e8m0_g32.scales", &bytes);
    check_mxfp4("golden", wide, 16, 4, 128, codes, scales);

    const uint16_t *latent = (const uint16_t *)tensor(quant, "fp4_e4m3_g16.input", &bytes);
    int main_rows = (int)(bytes / 32);
    uint8_t got_codes[8];
    uint8_t got_scale;
    long long wrong = 0;
    for (int r = 0; r < main_rows; r++) {
        cpu_main(latent + 16 * r, 16, got_codes, &got_scale);
        const uint8_t *want = (const uint8_t *)tensor(quant, "fp4_e4m3_g16.codes", &bytes);
        wrong += differing(got_codes, want + 8 * r, 8);
        want = (const uint8_t *)tensor(quant, "fp4_e4m3_g16.scales", &bytes);
        wrong += got_scale != want[r];
    }
    report("the CPU's main KV quantiser, golden", wrong, main_rows * 9);
    struct store_case narrow = {"golden", latent, key, main_rows, 16, 32, 1, 0, 0};
    check_entry_store(&narrow);
    struct store_case broad = {"golden wide", wide, wide, 16, 512, 512, 2, 121, 124};
    check_entry_store(&broad);
}

/* ---- random rows ---- */

static uint64_t random_state = 0x9E3779B97F4A7C15U;

static uint32_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* Finite bf16 values; every other row spreads over all exponents, the rest around a random one. */
static uint16_t *random_rows(int rows, int dim) {
    uint16_t *x = (uint16_t *)malloc((size_t)rows * dim * sizeof *x);
    for (int r = 0; r < rows; r++) {
        uint32_t base = 40 + random_bits() % 150;
        for (int c = 0; c < dim; c++) {
            uint32_t exponent = r % 2 == 0 ? random_bits() % 255 : base + random_bits() % 12;
            uint32_t rest = random_bits();
            x[(size_t)r * dim + c] = (uint16_t)((rest & 0x8000U) | exponent << 7 | (rest & 0x7fU));
        }
    }
    return x;
}

static void check_random(int rows, int dim) {
    uint16_t *x = random_rows(rows, dim);
    size_t count = (size_t)rows * dim;
    uint8_t *codes = (uint8_t *)malloc(count);
    uint8_t *scales = (uint8_t *)malloc(count / 32);
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * dim;
        cpu_fp8(x + at, dim, codes + at, scales + at / 32);
    }
    check_fp8("random", x, rows, dim, codes, scales);
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * dim;
        cpu_mxfp4(x + at, dim, codes + at / 2, scales + at / 32);
    }
    check_mxfp4("random", x, rows, 1, dim, codes, scales);
    struct store_case store = {"random", x, x, rows < 3000 ? rows : 3000, dim, dim, 1, 77, 100};
    check_entry_store(&store);
    store.ratio = 2;
    store.position = 130;
    check_entry_store(&store);
}

/* Every finite bf16 value as the largest of a group and below one. */
static void check_every_value(void) {
    int rows = 65536;
    uint16_t *x = (uint16_t *)calloc((size_t)rows * 32, sizeof *x);
    for (int r = 0; r < rows; r++) {
        uint16_t value = (uint16_t)((r & 0x7f80) == 0x7f80 ? r & 0x807f : r); // no inf, no NaN
        x[(size_t)r * 32] = value;
        x[(size_t)r * 32 + 1] = (uint16_t)(value ^ 0x8000U);
        for (int c = 2; c < 32; c++) { // the value with smaller exponents
            int exponent = ((value >> 7) & 255) - c / 2;
            x[(size_t)r * 32 + c] =
                (uint16_t)((value & 0x807fU) | (exponent < 0 ? 0 : exponent) << 7);
        }
    }
    uint8_t *codes = (uint8_t *)malloc((size_t)rows * 32);
    uint8_t *scales = (uint8_t *)malloc(rows);
    for (int r = 0; r < rows; r++) {
        cpu_fp8(x + (size_t)r * 32, 32, codes + (size_t)r * 32, scales + r);
    }
    check_fp8("every bf16", x, rows, 32, codes, scales);
    for (int r = 0; r < rows; r++) {
        cpu_mxfp4(x + (size_t)r * 32, 32, codes + (size_t)r * 16, scales + r);
    }
    check_mxfp4("every bf16", x, rows, 1, 32, codes, scales);
    struct store_case store = {"every bf16", x, x, rows, 32, 32, 1, 0, 0};
    check_entry_store(&store);
}

/* ---- rotation and norm ---- */

static int ulps(uint16_t a, uint16_t b) {
    int x = (a & 0x8000U) != 0 ? -(a & 0x7fff) : a;
    int y = (b & 0x8000U) != 0 ? -(b & 0x7fff) : b;
    return abs(x - y);
}

static void check_rotate(const struct file *rope) {
    size_t bytes = 0;
    const uint16_t *input = (const uint16_t *)tensor(rope, "apply.input_positions0to5", &bytes);
    float *cosine = upload((const float *)tensor(rope, "official_compress.cos", &bytes), 6 * 32);
    float *sine = upload((const float *)tensor(rope, "official_compress.sin", &bytes), 6 * 32);
    for (int inverse = 0; inverse < 2; inverse++) {
        const uint16_t *want =
            (const uint16_t *)tensor(rope, inverse ? "apply.inverse" : "apply.forward", &bytes);
        uint16_t *x = upload(input, 6 * 64);
        struct rotate_op op = {6, 1, 64, 64, inverse != 0, cosine, sine, x};
        CUDA(cuda_rotate(0, &op));
        uint16_t *got = download(x, 6 * 64);
        long long wrong = 0;
        for (int i = 0; i < 6 * 64; i++) {
            wrong += ulps(got[i], want[i]) > 1;
        }
        report(inverse ? "rotate golden inverse (1 ulp)" : "rotate golden (1 ulp)", wrong, 384);
    }

    int rows = 37;
    int heads = 5;
    int dim = 96;
    int rotated = 32;
    uint16_t *x = (uint16_t *)malloc((size_t)rows * heads * dim * 2);
    float *table = (float *)malloc((size_t)rows * rotated * sizeof(float));
    for (int i = 0; i < rows * heads * dim; i++) {
        x[i] = cpu::bf16_encode((float)(int32_t)random_bits() * 0x1p-30F);
    }
    for (int i = 0; i < rows * rotated / 2; i++) {
        double angle = random_bits() * 1e-6;
        table[i] = (float)cos(angle);
        table[rows * rotated / 2 + i] = (float)sin(angle);
    }
    uint16_t *device = upload(x, (size_t)rows * heads * dim);
    struct rotate_op op = {
        rows,
        heads,
        dim,
        rotated,
        true,
        upload(table, rows * rotated / 2),
        upload(table + rows * rotated / 2, rows * rotated / 2),
        device};
    CUDA(cuda_rotate(0, &op));
    for (int r = 0; r < rows; r++) {
        for (int h = 0; h < heads; h++) {
            uint16_t *head = x + ((size_t)r * heads + h + 1) * dim - rotated;
            for (int i = 0; i < rotated / 2; i++) {
                float c = table[r * rotated / 2 + i];
                float s = -table[rows * rotated / 2 + r * rotated / 2 + i];
                float even = cpu::bf16_decode(head[2 * i]);
                float odd = cpu::bf16_decode(head[2 * i + 1]);
                volatile float a = even * c; // volatile: never fused on the host
                volatile float b = odd * s;
                volatile float d = even * s;
                volatile float e = odd * c;
                head[2 * i] = cpu::bf16_encode(a - b);
                head[2 * i + 1] = cpu::bf16_encode(d + e);
            }
        }
    }
    size_t count = (size_t)rows * heads * dim;
    report(
        "rotate random, to the bit", differing(download(device, count), x, 2 * count), 2 * count
    );
}

static void check_norm(int dim) {
    int rows = 300;
    size_t count = (size_t)rows * dim;
    uint16_t *x = (uint16_t *)malloc(count * 2);
    uint16_t *weight = (uint16_t *)malloc(dim * 2);
    for (size_t i = 0; i < count; i++) {
        x[i] = cpu::bf16_encode((float)(int32_t)random_bits() * 0x1p-31F);
    }
    memset(x, 0, dim * 2); // a row of zeros stays zeros
    for (int i = 0; i < dim; i++) {
        weight[i] = cpu::bf16_encode((float)(int32_t)random_bits() * 0x1p-31F);
    }
    uint16_t *device_x = upload(x, count);
    struct norm_op op = {rows, dim, 1e-20F, device_x, upload(weight, dim), blank<uint16_t>(count)};
    CUDA(cuda_norm(0, &op));
    uint16_t *all = download(op.y, count);
    long long beyond = 0;
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int i = 0; i < dim; i++) {
            double value = cpu::bf16_decode(x[(size_t)r * dim + i]);
            sum += value * value;
        }
        double factor = 1.0 / sqrt(sum / dim + 1e-20);
        for (int i = 0; i < dim; i++) {
            double value = cpu::bf16_decode(x[(size_t)r * dim + i]) * factor;
            uint16_t want = cpu::bf16_encode((float)(value * cpu::bf16_decode(weight[i])));
            beyond += ulps(all[(size_t)r * dim + i], want) > 1;
        }
    }
    char name[96];
    snprintf(name, sizeof name, "norm width %d (1 ulp of the exact value)", dim);
    report(name, beyond, (long long)count);
    long long other = 0;
    op.rows = 1;
    for (int r = 0; r < rows; r += 17) { // alone and in place
        op.x = device_x + (size_t)r * dim;
        op.y = device_x + (size_t)r * dim;
        CUDA(cuda_norm(0, &op));
        other += differing(download(op.y, dim), all + (size_t)r * dim, (size_t)dim * 2);
    }
    snprintf(name, sizeof name, "norm width %d, alone as among 300", dim);
    report(name, other, (long long)((rows + 16) / 17) * dim * 2);
}

/* ---- time ---- */

template <typename F> static void bench(const char *what, double bytes, F launch) {
    cudaEvent_t start;
    cudaEvent_t stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    float best = 1e9F;
    for (int i = 0; i < 20; i++) {
        CUDA(cudaEventRecord(start));
        CUDA(launch());
        CUDA(cudaEventRecord(stop));
        CUDA(cudaEventSynchronize(stop));
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, start, stop));
        best = ms < best ? ms : best;
    }
    printf("bench  %-30s %8.1f us  %7.1f GB/s\n", what, best * 1e3, bytes / best * 1e-6);
}

static void run_bench(void) {
    int rows = 65536;
    int dim = 5120;
    size_t count = (size_t)rows * dim;
    uint16_t *x = blank<uint16_t>(count);
    CUDA(cudaMemset(x, 0x3d, count * 2));
    uint16_t *weight = blank<uint16_t>(dim);
    uint8_t *y = blank<uint8_t>(count * 2);
    uint8_t *scales = blank<uint8_t>(count / 32);
    bench("copy (read + write)", 4.0 * count, [&]() {
        return cudaMemcpyAsync(y, x, count * 2, cudaMemcpyDeviceToDevice, 0);
    });
    struct quantize_op quantize = {rows, dim, x, {y, scales}};
    bench("quantize [65536, 5120]", count * (3.0 + 1.0 / 32), [&]() {
        return cuda_quantize(0, &quantize);
    });
    int packed = (int)(count / 512);
    struct window_pack_op pack = {packed, 512, x, y};
    bench("window_pack [655360, 512]", count * (3.0 + 1.0 / 32), [&]() {
        return cuda_window_pack(0, &pack);
    });
    struct index_quantize_op index = {packed / 8, 32, 128, x, y, scales};
    bench("index_quantize [81920, 32, 128]", count * (2.5 + 1.0 / 32), [&]() {
        return cuda_index_quantize(0, &index);
    });
    struct norm_op norm = {rows, dim, 1e-20F, x, weight, (uint16_t *)y};
    bench("norm [65536, 5120]", 4.0 * count, [&]() { return cuda_norm(0, &norm); });
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [bench]\n", argv[0]);
        return 2;
    }
    cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    printf("%s, compute capability %d.%d\n", device.name, device.major, device.minor);
    struct file quant = file_open(argv[1], "quant.safetensors");
    struct file rope = file_open(argv[1], "rope.safetensors");
    check_tables(&quant);
    check_golden(&quant);
    check_random(4000, 512);
    check_random(257, 96);
    check_every_value();
    check_rotate(&rope);
    check_norm(96);
    check_norm(5120);
    if (argc > 2) {
        run_bench();
    }
    printf("%d checks failed\n", failures);
    return failures == 0 ? 0 : 1;
}
