/* Shapes, random numbers, weights in their formats, caches of sequences. */
#include "check.h"

#include "kernels/cpu/number.h"

struct check_model check_model(const struct check *check, int32_t index) {
    static const struct check_model models[CHECK_MODELS] = {
        {"tiny-a", 256, 1280, 8, 64, 32, 96, 4, 32, 64, 16, 4, 16, 4, 32, 16, 8, 4, 6, 32},
        {"tiny-b", 192, 1536, 6, 96, 32, 64, 3, 32, 64, 18, 6, 32, 8, 64, 48, 12, 8, 9, 32},
        {"mini", 256, 4096, 8, 64, 16, 128, 2, 128, 160, 16, 4, 64, 4, 32, 64, 32, 8, 12, 32},
        {"release",
         .dim = 5120,
         .vocabulary = 129280,
         .heads = 64,
         .head_dim = 512,
         .rope_dim = 64,
         .q_rank = 1280,
         .o_groups = 8,
         .o_rank = 1024,
         .hidden = 2304,
         .experts = 384,
         .chosen = 6,
         .window = 128,
         .index_heads = 32,
         .index_dim = 128,
         .topk = 512,
         .pool_blocks = 2048,
         .pool_block_entries = 8,
         .engram_columns = 24,
         .engram_dim = 256},
    };
    ASSERT(index >= 0 && index < CHECK_MODELS);
    struct check_model model = models[index];
    if (check->emulated && index == CHECK_RELEASE) {
        model.dim = 640;
        model.vocabulary = 2048;
        model.q_rank = 320;
        model.o_rank = 128;
        model.hidden = 288;
        model.experts = 48;
    }
    return model;
}

int32_t check_row_counts(const struct check *check, int32_t model, int32_t i) {
    static const int32_t counts[] = {1, 2, 7, 17, 64, 300, 1000, 0};
    static const int32_t few[] = {1, 7, 33, 0};
    static const int32_t fewest[] = {1, 9, 0};
    const int32_t *list = !check->emulated ? counts : model == CHECK_RELEASE ? fewest : few;
    return list[i];
}

/* ---- random numbers ---- */

uint64_t check_bits64(struct check *check) { // splitmix64
    uint64_t z = check->random += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

int32_t check_below(struct check *check, int32_t bound) {
    ASSERT(bound > 0);
    return (int32_t)((check_bits64(check) >> 32) * (uint64_t)bound >> 32);
}

#define NORMALS 65536

/* Normals by Box and Muller, drawn from again and again: weights have hundreds of millions. */
static const float *normals(void) {
    static float table[NORMALS];
    static bool is_filled;
    if (!is_filled) {
        for (int32_t i = 0; i < NORMALS; i += 2) {
            // the radius runs over its quantiles, the angle over a sequence that fills the circle
            double radius = sqrt(-2.0 * log((i + 1.0) / (NORMALS + 1.0)));
            double angle = 6.283185307179586 * fmod(i * 0.6180339887498949, 1.0);
            table[i] = (float)(radius * cos(angle));
            table[i + 1] = (float)(radius * sin(angle));
        }
        is_filled = true;
    }
    return table;
}

float check_normal(struct check *check) {
    return normals()[check_bits64(check) >> 48];
}

void check_fill_bf16(struct check *check, uint16_t *to, size_t count, float scale) {
    const float *table = normals();
    uint64_t bits = 0;
    for (size_t i = 0; i < count; i++) {
        bits = i % 4 == 0 ? check_bits64(check) : bits >> 16;
        to[i] = bf16_encode(table[bits & 0xffffU] * scale);
    }
}

void check_fill_bytes(struct check *check, void *to, size_t bytes) {
    unsigned char *at = to;
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++) {
        bits = i % 8 == 0 ? check_bits64(check) : bits >> 8;
        at[i] = (unsigned char)bits;
    }
}

static size_t elements(int32_t rows, int32_t columns) {
    return (size_t)(rows == CHECK_SHARED ? 1 : rows) * (size_t)columns;
}

uint16_t *check_normals_bf16(struct check *check, int32_t rows, int32_t columns, float scale) {
    uint16_t *x = check_input(check, rows, (size_t)columns * sizeof *x);
    check_fill_bf16(check, x, elements(rows, columns), scale);
    return x;
}

float *check_normals_f32(struct check *check, int32_t rows, int32_t columns, float scale) {
    float *x = check_input(check, rows, (size_t)columns * sizeof *x);
    for (size_t i = 0; i < elements(rows, columns); i++) {
        x[i] = check_normal(check) * scale;
    }
    return x;
}

uint16_t *check_wide_bf16(struct check *check, int32_t rows, int32_t columns) {
    uint16_t *x = check_input(check, rows, (size_t)columns * sizeof *x);
    for (int32_t r = 0; r < (rows == CHECK_SHARED ? 1 : rows); r++) {
        int32_t base = 40 + check_below(check, 150);
        for (int32_t c = 0; c < columns; c++) {
            uint32_t rest = (uint32_t)check_bits64(check);
            int32_t exponent = r % 2 == 0 ? check_below(check, 255) : base + check_below(check, 12);
            x[(size_t)r * (size_t)columns + (size_t)c] =
                (uint16_t)((rest & 0x807fU) | (uint32_t)exponent << 7);
        }
    }
    return x;
}

/* ---- quantised contents ---- */

/* FP8 codes and scales of `count` normals times 2^shift, as the CPU quantises (spec 3.0.1). */
static void
fill_fp8(struct check *check, uint8_t *codes, uint8_t *scales, size_t count, int32_t spread) {
    for (size_t g = 0; g < count; g += 32) {
        int32_t kind = check_below(check, 16);
        float factor = kind == 0   ? 0.0F
                       : kind == 1 ? 1024.0F
                       : kind == 2 ? 0x1p-10F
                                   : ldexpf(1.0F, check_below(check, 2 * spread + 1) - spread);
        float values[32];
        float largest = 0.0F;
        for (int i = 0; i < 32; i++) {
            values[i] = bf16_round(check_normal(check) * factor);
            largest = float_max(fabsf(values[i]), largest);
        }
        scales[g / 32] = fp8_group_scale(largest);
        for (size_t i = 0; i < 32; i++) {
            float scaled = values[i] * e8m0_reciprocal(scales[g / 32]);
            codes[g + i] = e4m3_encode(float_clamp(scaled, 448.0F));
        }
    }
}

struct quantized check_quantized(struct check *check, int32_t rows, int32_t columns) {
    ASSERT(columns % 32 == 0);
    struct quantized x;
    x.codes = check_input(check, rows, (size_t)columns);
    x.scales = check_input(check, rows, (size_t)columns / 32);
    fill_fp8(check, x.codes, x.scales, elements(rows, columns), 1);
    return x;
}

/* The power of two next to 1 / sqrt(in). */
static int32_t scale_exponent(int32_t in) {
    return -(int32_t)lround(0.5 * log2(in));
}

static int32_t extreme_exponent(struct check *check) {
    return check_below(check, 161) - 80;
}

static void
fill_scales(struct check *check, uint8_t *to, int32_t count, int32_t exponent, int32_t jitter) {
    for (int32_t i = 0; i < count; i++) {
        to[i] = (uint8_t)(127 + exponent + check_below(check, 2 * jitter + 1) - jitter);
    }
}

static void fill_codes_fp8(struct check *check, uint8_t *to, size_t count) {
    const float *table = normals();
    uint8_t codes[4096];
    for (size_t i = 0; i < sizeof codes; i++) { // normals of deviation 32: few are subnormal codes
        codes[i] = e4m3_encode(float_clamp(table[16 * i + i % 16] * 32.0F, 448.0F));
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < count; i++) {
        bits = i % 5 == 0 ? check_bits64(check) : bits >> 12;
        to[i] = codes[bits & 4095U];
    }
}

static void fill_codes_fp4(struct check *check, uint8_t *to, size_t bytes) {
    const float *table = normals();
    uint8_t codes[4096];
    for (size_t i = 0; i < sizeof codes; i++) { // normals of deviation 2
        float low = table[16 * i + i % 16] * 2.0F;
        float high = table[16 * ((i * 2655) % 4096) + i % 13] * 2.0F;
        uint32_t pair = (uint32_t)e2m1_encode(float_clamp(high, 6.0F)) << 4;
        codes[i] = (uint8_t)(pair | e2m1_encode(float_clamp(low, 6.0F)));
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++) {
        bits = i % 5 == 0 ? check_bits64(check) : bits >> 12;
        to[i] = codes[bits & 4095U];
    }
}

static void weight_fp8(struct check *check, struct weight *weight, enum check_weights kind) {
    size_t count = (size_t)weight->out * (size_t)weight->in;
    int32_t columns = (weight->in + 31) / 32;
    int32_t blocks = (weight->out + 31) / 32;
    uint8_t *codes = check_input(check, CHECK_SHARED, count);
    uint8_t *scales = check_input(check, CHECK_SHARED, (size_t)blocks * (size_t)columns);
    if (kind == CHECK_EXTREME) {
        check_fill_bytes(check, codes, count);
    } else {
        fill_codes_fp8(check, codes, count);
    }
    for (int32_t b = 0; b < blocks; b++) {
        int32_t exponent =
            kind == CHECK_EXTREME ? extreme_exponent(check) : scale_exponent(weight->in) - 5;
        fill_scales(check, scales + (size_t)b * (size_t)columns, columns, exponent, 1);
    }
    weight->data = codes;
    weight->scale = scales;
}

static void weight_fp4(struct check *check, struct weight *weight, enum check_weights kind) {
    size_t bytes = (size_t)weight->out * (size_t)weight->in / 2;
    int32_t columns = weight->in / 32;
    uint8_t *codes = check_input(check, CHECK_SHARED, bytes);
    uint8_t *scales = check_input(check, CHECK_SHARED, (size_t)weight->out * (size_t)columns);
    if (kind == CHECK_EXTREME) {
        check_fill_bytes(check, codes, bytes);
    } else {
        fill_codes_fp4(check, codes, bytes);
    }
    int32_t exponent = 0;
    for (int32_t row = 0; row < weight->out; row++) {
        if (kind == CHECK_PLAUSIBLE) {
            exponent = scale_exponent(weight->in) - 1;
        } else if (row % 32 == 0) {
            exponent = extreme_exponent(check);
        }
        fill_scales(check, scales + (size_t)row * (size_t)columns, columns, exponent, 1);
    }
    weight->data = codes;
    weight->scale = scales;
}

struct weight check_weight(
    struct check *check, enum dtype dtype, int32_t out, int32_t in, enum check_weights kind
) {
    struct weight weight = {.dtype = dtype, .out = out, .in = in};
    size_t count = (size_t)out * (size_t)in;
    float scale = (float)(1.0 / sqrt(in));
    if (dtype == DTYPE_FP8) {
        weight_fp8(check, &weight, kind);
    } else if (dtype == DTYPE_FP4) {
        weight_fp4(check, &weight, kind);
    } else if (dtype == DTYPE_BF16) {
        uint16_t *data = check_input(check, CHECK_SHARED, count * sizeof *data);
        check_fill_bf16(check, data, count, scale);
        weight.data = data;
    } else {
        float *data = check_input(check, CHECK_SHARED, count * sizeof *data);
        for (size_t i = 0; i < count; i++) {
            data[i] = check_normal(check) * scale;
        }
        weight.data = data;
    }
    return weight;
}

/* ---- segments and caches ---- */

struct row_segments
check_segments(struct check *check, const struct row_segment *segments, int32_t count) {
    size_t bytes = (size_t)count * sizeof *segments;
    struct row_segments out = {.count = count};
    struct row_segment *host = check_host(check, bytes);
    struct row_segment *device = check_input(check, CHECK_SHARED, bytes);
    memcpy(host, segments, bytes);
    memcpy(device, segments, bytes);
    out.host = host;
    out.device = device;
    out.rows = count == 0 ? 0 : segments[count - 1].row + segments[count - 1].count;
    return out;
}

/* E4M3 scales of main KV are positive and finite, E8M0 ones of index keys any power near one. */
static void fill_block(struct check *check, const struct check_caches *caches, uint8_t *block) {
    const struct kv_source_layout *source = &caches->source;
    size_t codes = (source->main_record_bytes / 9) * 8; // d/2 of d/2 + d/16
    check_fill_bytes(check, block, caches->block_bytes);
    for (int32_t e = 0; e < source->entries; e++) {
        uint8_t *record = block + source->main_offset + (size_t)e * source->main_record_bytes;
        for (size_t i = codes; i < source->main_record_bytes; i++) {
            record[i] = (uint8_t)(0x20 + check_below(check, 32)); // 2^-3 to 2^1
        }
    }
    for (size_t i = source->index_scale_offset; i < caches->block_bytes; i++) {
        block[i] = (uint8_t)(123 + check_below(check, 4));
    }
}

static void set_layout(struct check_caches *caches, const struct check_caches_options *o) {
    struct kv_source_layout *source = &caches->source;
    size_t entries = (size_t)(KV_BLOCK_TOKENS / o->ratio);
    source->ratio = o->ratio;
    source->entries = (int32_t)entries;
    source->main_offset = 0;
    source->main_record_bytes = (size_t)(o->dim / 2 + o->dim / 16);
    source->index_code_offset = entries * source->main_record_bytes;
    source->index_scale_offset = source->index_code_offset + entries * (size_t)(o->index_dim / 2);
    caches->block_bytes = source->index_scale_offset + entries * (size_t)(o->index_dim / 32);
}

/* The pointers to the blocks of all sequences, in no order of memory. */
static uint8_t **scatter_blocks(struct check *check, struct check_caches *caches, int32_t count) {
    size_t pointer = sizeof(uint8_t *);
    uint8_t **blocks = check_pointers(check, CHECK_SHARED, (size_t)count * pointer);
    for (int32_t b = 0; b < count; b++) {
        blocks[b] = caches->blocks + (size_t)b * caches->block_bytes;
        fill_block(check, caches, blocks[b]);
    }
    for (int32_t b = count - 1; b > 0; b--) {
        int32_t other = check_below(check, b + 1);
        uint8_t *kept = blocks[b];
        blocks[b] = blocks[other];
        blocks[other] = kept;
    }
    return blocks;
}

struct check_caches check_caches(struct check *check, const struct check_caches_options *o) {
    struct check_caches caches = {0};
    void *(*make)(struct check *, int32_t, size_t) = o->read_only ? check_input : check_output;
    set_layout(&caches, o);
    int32_t count = 0;
    for (int32_t s = 0; s < o->sequences; s++) {
        count += o->tokens[s] / KV_BLOCK_TOKENS + 1;
    }
    size_t sequences = (size_t)o->sequences;
    size_t ring_bytes = (size_t)o->window * window_record_bytes(o->dim);
    caches.blocks = make(check, CHECK_SHARED, (size_t)count * caches.block_bytes);
    caches.rings = make(check, CHECK_SHARED, sequences * ring_bytes);
    for (size_t i = 0; i < sequences * (size_t)o->window; i++) {
        uint8_t *record = caches.rings + i * window_record_bytes(o->dim);
        fill_fp8(check, record, record + o->dim, (size_t)o->dim, 1);
    }
    if (o->ratio == 2) {
        caches.pending = make(check, CHECK_SHARED, sequences * (size_t)o->dim * 2 * sizeof(float));
        for (size_t i = 0; i < sequences * (size_t)o->dim * 2; i++) {
            caches.pending[i] = check_normal(check);
        }
    }
    uint8_t **blocks = scatter_blocks(check, &caches, count);
    caches.views = check_pointers(check, CHECK_SHARED, sequences * sizeof *caches.views);
    for (int32_t s = 0; s < o->sequences; s++) {
        struct sequence_view *view = &caches.views[s];
        view->blocks = blocks;
        blocks += o->tokens[s] / KV_BLOCK_TOKENS + 1;
        view->ring = caches.rings + (size_t)s * ring_bytes;
        view->pending =
            caches.pending == NULL ? NULL : caches.pending + (size_t)s * 2 * (size_t)o->dim;
        view->window_floor = o->window_floor == NULL ? 0 : o->window_floor[s];
        view->write_floor = o->write_floor == NULL ? 0 : o->write_floor[s];
    }
    return caches;
}

uint8_t *check_window_records(struct check *check, int32_t rows, int32_t dim) {
    uint8_t *records = check_input(check, rows, window_record_bytes(dim));
    for (int32_t r = 0; r < rows; r++) {
        uint8_t *record = records + (size_t)r * window_record_bytes(dim);
        fill_fp8(check, record, record + dim, (size_t)dim, 1);
    }
    return records;
}
