/* Cache records: what is written into rings and blocks, to the byte (spec model.md section 4). */
#include "lanes.h"

#include "cpu.h"

static void pack_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct window_pack_op *op = argument;
    const uint16_t *x = op->x + (size_t)row * (size_t)op->dim;
    uint8_t *record = op->records + (size_t)row * window_record_bytes(op->dim);
    for (int32_t c = 0; c < op->dim; c += 32) {
        v16 even;
        v16 odd;
        v_load_bf16_pair(x + c, &even, &odd);
        record[op->dim + c / 32] = v_quantize_fp8(even, odd, record + c);
    }
}

void LANES(cpu_window_pack)(struct backend *backend, const struct window_pack_op *op) {
    cpu_rows(cpu_of(backend), op, pack_row, op->rows, op->dim / 3);
}

void LANES(cpu_window_commit)(struct backend *backend, const struct window_commit_op *op) {
    (void)backend;
    size_t bytes = window_record_bytes(op->dim);
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *segment = &op->segments.host[s];
        int32_t first = int_max(0, segment->count - op->window);
        for (int32_t i = first; i < segment->count; i++) {
            size_t slot = (size_t)((segment->position + i) % op->window);
            const uint8_t *from = op->records + (size_t)(segment->row + i) * bytes;
            memcpy(op->views[s].ring + slot * bytes, from, bytes);
        }
    }
}

/* latent = bf16(softmax of the two scores, per channel, times the two kv). */
static void pool_pair(
    const float *kv0,
    const float *score0,
    const float *kv1,
    const float *score1,
    int32_t dim,
    uint16_t *latent
) {
    for (int32_t i = 0; i < dim; i += 16) {
        v16 s0 = v_load(score0 + i);
        v16 s1 = v_load(score1 + i);
        v16 largest = v_max(s0, s1);
        v16 e0 = v_exp(v_sub(s0, largest));
        v16 e1 = v_exp(v_sub(s1, largest));
        v16 sum = v_add(e0, e1);
        v16 first = v_mul(v_div(e0, sum), v_load(kv0 + i));
        v16 second = v_mul(v_div(e1, sum), v_load(kv1 + i));
        v_store_bf16(latent + i, v_add(first, second));
    }
}

static void pool_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct compress_pool_op *op = argument;
    int32_t s = cpu_segment_of(&op->segments, row);
    if (s < 0) {
        return;
    }
    size_t dim = (size_t)op->dim;
    const struct row_segment *segment = &op->segments.host[s];
    int32_t position = segment->position + row - segment->row;
    uint16_t *latent = op->latent + (size_t)row * dim;
    if (position % 2 == 0) {
        memset(latent, 0, dim * sizeof *latent);
        return;
    }
    const float *kv = op->kv + (size_t)row * dim;
    const float *score = op->score + (size_t)row * dim;
    if (row > segment->row) {
        pool_pair(kv - dim, score - dim, kv, score, op->dim, latent);
    } else {
        const float *pending = op->views[s].pending;
        pool_pair(pending, pending + dim, kv, score, op->dim, latent);
    }
}

void LANES(cpu_compress_pool)(struct backend *backend, const struct compress_pool_op *op) {
    int32_t rows = op->segments.rows;
    cpu_rows(cpu_of(backend), op, pool_row, rows, op->dim);
    size_t dim = (size_t)op->dim;
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *segment = &op->segments.host[s];
        if (segment->count > 0 && (segment->position + segment->count - 1) % 2 == 0) {
            size_t last = (size_t)(segment->row + segment->count - 1) * dim;
            memcpy(op->views[s].pending, op->kv + last, dim * sizeof(float));
            memcpy(op->views[s].pending + dim, op->score + last, dim * sizeof(float));
        }
    }
}

/* One E4M3 scale byte of 16 channels (spec 4.1). */
static uint8_t main_scale(const float *magnitudes) {
    float largest = 6.0F * 0x1p-9F;
    for (int i = 0; i < 8; i++) {
        largest = float_max(magnitudes[i], largest);
    }
    return e4m3_encode(float_min(largest / 6.0F, 448.0F));
}

/* FP4 with E4M3 scales per 16: d/2 bytes of codes, then d/16 of scales. */
static void store_main(const uint16_t *latent, int32_t dim, uint8_t *record) {
    uint8_t *scales = record + dim / 2;
    for (int32_t c = 0; c < dim; c += 32) {
        v16 even;
        v16 odd;
        float magnitudes[16];
        v_load_bf16_pair(latent + c, &even, &odd);
        v_store(magnitudes, v_max(v_abs(even), v_abs(odd)));
        uint8_t first = main_scale(magnitudes); // lanes 0-7 hold channels 0-15 of the 32
        uint8_t second = main_scale(magnitudes + 8);
        v16 divisor = v_halves(e4m3_decode(first), e4m3_decode(second));
        even = v_clamp(v_div(even, divisor), 6.0F);
        odd = v_clamp(v_div(odd, divisor), 6.0F);
        v_store_e2m1(record + c / 2, even, odd);
        scales[c / 16] = first;
        scales[c / 16 + 1] = second;
    }
}

static void store_key(const uint16_t *key, int32_t dim, uint8_t *codes, uint8_t *scales) {
    for (int32_t c = 0; c < dim; c += 32) {
        v16 even;
        v16 odd;
        v_load_bf16_pair(key + c, &even, &odd);
        scales[c / 32] = v_quantize_mxfp4(even, odd, codes + c / 2);
    }
}

static void store_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct entry_store_op *op = argument;
    int32_t s = cpu_segment_of(&op->segments, row);
    if (s < 0) {
        return;
    }
    const struct kv_source_layout *source = &op->source;
    int32_t position = op->segments.host[s].position + row - op->segments.host[s].row;
    if ((position + 1) % source->ratio != 0 || position < op->views[s].write_floor) {
        return;
    }
    int32_t entry = position / source->ratio;
    size_t at = (size_t)(entry % source->entries);
    uint8_t *block = op->views[s].blocks[entry / source->entries];
    const uint16_t *latent = op->latent + (size_t)row * (size_t)op->dim;
    const uint16_t *key = op->key + (size_t)row * (size_t)op->index_dim;
    store_main(latent, op->dim, block + source->main_offset + at * source->main_record_bytes);
    store_key(
        key,
        op->index_dim,
        block + source->index_code_offset + at * (size_t)(op->index_dim / 2),
        block + source->index_scale_offset + at * (size_t)(op->index_dim / 32)
    );
}

void LANES(cpu_entry_store)(struct backend *backend, const struct entry_store_op *op) {
    int32_t rows = op->segments.rows;
    cpu_rows(cpu_of(backend), op, store_row, rows, op->dim);
}

static void index_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct index_quantize_op *op = argument;
    size_t width = (size_t)op->heads * (size_t)op->dim;
    size_t at = (size_t)row * width;
    store_key(op->x + at, op->heads * op->dim, op->codes + at / 2, op->scales + at / 32);
}

void LANES(cpu_index_quantize)(struct backend *backend, const struct index_quantize_op *op) {
    cpu_rows(cpu_of(backend), op, index_row, op->rows, (int64_t)op->heads * op->dim / 3);
}
