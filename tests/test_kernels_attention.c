/* Caches, attention and the indexer: window and ring, floors, entries, candidate pools, ties; against
 * double, and the same bits however rows are split. */
#include "test_kernels_support.h"

#include "kernels/cpu/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* One sequence's whole history: what an engine would hold for it. */
struct history {
    int32_t tokens, dim, index_dim, ratio, window;
    struct kv_source_layout source;
    uint16_t *window_latents; /* [T, d] */
    uint16_t *latents;        /* [T, d] */
    uint16_t *keys;           /* [T, i] */
    uint8_t *records;         /* [T] window records */
    uint8_t **blocks;
};

static struct kv_source_layout source_of(int32_t dim, int32_t index_dim, int32_t ratio) {
    struct kv_source_layout source = {.ratio = ratio, .entries = 128 / ratio};
    size_t entries = (size_t)source.entries;
    source.main_offset = 96; // as if another source came before
    source.main_record_bytes = (size_t)(dim / 2 + dim / 16);
    source.index_code_offset = source.main_offset + entries * source.main_record_bytes;
    source.index_scale_offset = source.index_code_offset + entries * (size_t)index_dim / 2;
    return source;
}

static struct history
history_of(struct numbers *numbers, int32_t tokens, int32_t dim, int32_t index_dim, int32_t ratio) {
    struct history h = {.tokens = tokens, .dim = dim, .index_dim = index_dim, .ratio = ratio};
    size_t count = (size_t)tokens * (size_t)dim;
    h.source = source_of(dim, index_dim, ratio);
    h.window_latents = kernels_bf16(numbers, count, 1.0F);
    h.latents = kernels_bf16(numbers, count, 1.0F);
    h.keys = kernels_bf16(numbers, (size_t)tokens * (size_t)index_dim, 1.0F);
    h.records = kernels_memory((size_t)tokens * window_record_bytes(dim));
    int32_t blocks = tokens / 128 + 1;
    h.blocks = kernels_memory((size_t)blocks * sizeof *h.blocks);
    size_t bytes = h.source.index_scale_offset + (size_t)h.source.entries * (size_t)index_dim / 32;
    for (int32_t b = 0; b < blocks; b++) {
        h.blocks[b] = kernels_memory(bytes);
    }
    struct backend *backend = kernels_open(NULL, 1);
    struct window_pack_op pack = {tokens, dim, h.window_latents, h.records};
    backend_window_pack(backend, &pack);
    struct row_segment all = {0, tokens, 0};
    struct sequence_view view = {.blocks = h.blocks};
    struct entry_store_op store = {
        .dim = dim,
        .index_dim = index_dim,
        .source = h.source,
        .segments = row_segments_of(&all, &all, 1),
        .views = &view,
        .latent = h.latents,
        .key = h.keys,
    };
    backend_entry_store(backend, &store);
    backend_close(backend);
    return h;
}

static double window_at(const struct history *h, int32_t position, int32_t c) {
    const uint8_t *record = h->records + (size_t)position * window_record_bytes(h->dim);
    return (double)e4m3_decode(record[c]) * (double)e8m0_decode(record[h->dim + c / 32]);
}

static double entry_at(const struct history *h, int32_t entry, int32_t c) {
    const struct kv_source_layout *source = &h->source;
    const uint8_t *record = h->blocks[entry / source->entries] + source->main_offset +
                            (size_t)(entry % source->entries) * source->main_record_bytes;
    uint8_t code = (uint8_t)(c % 2 == 0 ? record[c / 2] & 15U : record[c / 2] >> 4U);
    return (double)e2m1_decode(code) * (double)e4m3_decode(record[h->dim / 2 + c / 16]);
}

/* Attention of two sequences whose rows share tensors. */
struct attention_case {
    struct attention_op op;
    struct history history[2];
    struct row_segment segments[2], fresh[2];
    struct sequence_view views[2];
    int32_t rows;
};

/* Ring of the last W records before `position`. */
static uint8_t *ring_of(const struct history *h, int32_t window, int32_t position) {
    size_t bytes = window_record_bytes(h->dim);
    uint8_t *ring = kernels_memory((size_t)window * bytes);
    struct backend *backend = kernels_open(NULL, 1);
    struct row_segment segment = {0, position, 0};
    struct sequence_view view = {.ring = ring};
    struct window_commit_op commit = {
        window, h->dim, row_segments_of(&segment, &segment, 1), &view, h->records};
    backend_window_commit(backend, &commit);
    backend_close(backend);
    for (int32_t p = position > window ? position - window : 0; p < position; p++) {
        kernels_expect_same(
            ring + (size_t)(p % window) * bytes, h->records + (size_t)p * bytes, bytes, "ring slot"
        );
    }
    return ring;
}

/* Points the case's fresh records at positions from `start[s]` on; the ring holds what was before. */
static void set_fresh(struct attention_case *c, const int32_t start[2]) {
    size_t bytes = window_record_bytes(c->op.dim);
    size_t total = 0;
    uint8_t *fresh = kernels_memory(bytes * (size_t)(c->history[0].tokens + c->history[1].tokens));
    for (int s = 0; s < 2; s++) {
        const struct history *h = &c->history[s];
        int32_t count = h->tokens - start[s];
        c->fresh[s] = (struct row_segment){(int32_t)total, count, start[s]};
        memcpy(fresh + total * bytes, h->records + (size_t)start[s] * bytes, (size_t)count * bytes);
        total += (size_t)count;
        c->views[s].ring = ring_of(h, c->op.window, start[s]);
    }
    c->op.fresh = fresh;
    c->op.fresh_segments = row_segments_of(c->fresh, c->fresh, 2);
}

struct attention_shape {
    int32_t heads, dim, window, topk, ratio;
    int32_t tokens[2], start[2];
    int32_t floor;
};

static void attention_init(struct attention_case *c, const struct attention_shape *shape) {
    struct numbers numbers = {(uint64_t)(shape->dim * 31 + shape->heads + shape->topk)};
    memset(c, 0, sizeof *c);
    for (int s = 0; s < 2; s++) {
        int32_t ratio = shape->ratio > 0 ? shape->ratio : 1;
        c->history[s] = history_of(&numbers, shape->tokens[s], shape->dim, 32, ratio);
        int32_t count = shape->tokens[s] - shape->start[s];
        c->segments[s] = (struct row_segment){c->rows, count, shape->start[s]};
        c->views[s].blocks = c->history[s].blocks;
        c->views[s].window_floor = s == 1 ? shape->floor : 0;
        c->rows += count;
    }
    size_t width = (size_t)(shape->heads * shape->dim);
    c->op = (struct attention_op){
        .heads = shape->heads,
        .dim = shape->dim,
        .window = shape->window,
        .topk = shape->topk,
        .scale = 1.0F / sqrtf((float)shape->dim),
        .segments = row_segments_of(c->segments, c->segments, 2),
        .views = c->views,
        .query = kernels_bf16(&numbers, (size_t)c->rows * width, 1.0F),
        .source = c->history[0].source,
        .sink = kernels_f32(&numbers, (size_t)shape->heads, 1.0F),
        .output = kernels_memory((size_t)c->rows * width * 2),
    };
    set_fresh(c, shape->start);
    if (shape->ratio == 0) {
        return;
    }
    int32_t *selected = kernels_memory((size_t)(c->rows * shape->topk) * 4);
    int32_t *counts = kernels_memory((size_t)c->rows * 4);
    for (int32_t row = 0; row < c->rows; row++) {
        int s = row >= c->segments[1].row ? 1 : 0;
        int32_t position = c->segments[s].position + row - c->segments[s].row;
        int32_t visible = (position + 1) / shape->ratio;
        for (int32_t g = 0; g < visible && counts[row] < shape->topk; g++) {
            if (visible <= shape->topk || numbers_below(&numbers, visible) < shape->topk) {
                selected[row * shape->topk + counts[row]++] = g;
            }
        }
    }
    c->op.selected = selected;
    c->op.selected_count = counts;
}

static void run_attention(struct backend *backend, int32_t step, void *context) {
    const struct attention_case *c = context;
    int32_t most = 0;
    for (int s = 0; s < 2; s++) {
        most = c->segments[s].count > most ? c->segments[s].count : most;
    }
    for (int32_t from = 0; from < most; from += step) {
        struct row_segment part[2]; // rows stay where they are; each call covers some of them
        for (int s = 0; s < 2; s++) {
            int32_t rest = c->segments[s].count - from;
            int32_t count = rest < 0 ? 0 : (rest < step ? rest : step);
            int32_t skip = rest < 0 ? c->segments[s].count : from;
            part[s] = (struct row_segment
            ){c->segments[s].row + skip, count, c->segments[s].position + skip};
        }
        struct attention_op op = c->op;
        op.segments = row_segments_of(part, part, 2);
        backend_attention(backend, &op);
    }
}

/* Spec 3.5 with its roundings, in double. */
static void
attention_expected(const struct attention_case *c, int s, int32_t row, int32_t head, double *out) {
    const struct attention_op *op = &c->op;
    const struct history *h = &c->history[s];
    int32_t position = c->segments[s].position + row - c->segments[s].row;
    int32_t first = position - op->window + 1;
    first = first < c->views[s].window_floor ? c->views[s].window_floor : first;
    first = first < 0 ? 0 : first;
    int32_t windows = position - first + 1;
    int32_t total = windows + (op->selected == NULL ? 0 : op->selected_count[row]);
    const uint16_t *query = op->query + (size_t)(row * op->heads + head) * (size_t)op->dim;
    double maximum = -1e30;
    double sum = 0.0;
    memset(out, 0, (size_t)op->dim * sizeof *out);
    for (int32_t base = 0; base < total; base += 64) {
        int32_t count = total - base < 64 ? total - base : 64;
        double logits[64];
        double now = maximum;
        for (int32_t j = 0; j < count; j++) {
            int32_t at = base + j;
            logits[j] = 0.0;
            for (int32_t k = 0; k < op->dim; k++) {
                double key = at < windows
                                 ? window_at(h, first + at, k)
                                 : entry_at(h, op->selected[row * op->topk + at - windows], k);
                logits[j] += (double)bf16_decode(query[k]) * key;
            }
            logits[j] *= (double)op->scale;
            now = logits[j] > now ? logits[j] : now;
        }
        double shrink = exp(maximum - now);
        sum *= shrink;
        for (int32_t k = 0; k < op->dim; k++) {
            out[k] *= shrink;
        }
        for (int32_t j = 0; j < count; j++) {
            int32_t at = base + j;
            double p = exp(logits[j] - now);
            double rounded = (double)bf16_round((float)p);
            sum += p;
            for (int32_t k = 0; k < op->dim; k++) {
                double value = at < windows
                                   ? window_at(h, first + at, k)
                                   : entry_at(h, op->selected[row * op->topk + at - windows], k);
                out[k] += rounded * value;
            }
        }
        maximum = now;
    }
    sum += exp((double)op->sink[head] - maximum);
    for (int32_t k = 0; k < op->dim; k++) {
        out[k] /= sum;
    }
}

static void check_attention(const struct attention_shape *shape) {
    struct attention_case c;
    struct numbers numbers = {99};
    attention_init(&c, shape);
    size_t width = (size_t)(shape->heads * shape->dim);
    size_t bytes = (size_t)c.rows * width * 2;
    kernels_same_everywhere("attention", run_attention, &c, c.op.output, bytes);
    double *expected = kernels_memory((size_t)shape->dim * sizeof *expected);
    for (int i = 0; i < 24; i++) {
        int32_t row = i < 2 ? (i == 0 ? 0 : c.rows - 1) : numbers_below(&numbers, c.rows);
        int32_t head = numbers_below(&numbers, shape->heads);
        attention_expected(&c, row >= c.segments[1].row ? 1 : 0, row, head, expected);
        const uint16_t *got =
            c.op.output + (size_t)(row * shape->heads + head) * (size_t)shape->dim;
        for (int32_t k = 0; k < shape->dim; k++) {
            float value = bf16_decode(got[k]);
            float wanted = (float)expected[k];
            kernels_expect_near(&value, &wanted, 1, 0x1p-8F, 4e-4F, "attention output");
        }
    }
    // the same rows as one chunk, or as later chunks of one: keys move from fresh to the ring
    uint16_t *whole = kernels_memory(bytes);
    memcpy(whole, c.op.output, bytes);
    struct backend *backend = kernels_open(NULL, 2);
    const int32_t later[2] = {shape->tokens[0] - 1, shape->tokens[1] - 2};
    set_fresh(&c, later);
    for (int s = 0; s < 2; s++) {
        c.segments[s].row += later[s] - c.segments[s].position;
        c.segments[s].count = c.history[s].tokens - later[s];
        c.segments[s].position = later[s];
    }
    c.op.segments = row_segments_of(c.segments, c.segments, 2);
    memset(c.op.output, 0, bytes);
    backend_attention(backend, &c.op);
    for (int s = 0; s < 2; s++) {
        size_t from = (size_t)c.segments[s].row * width;
        size_t count = (size_t)c.segments[s].count * width * 2;
        kernels_expect_same(c.op.output + from, whole + from, count, "attention with ring keys");
    }
    backend_close(backend);
    kernels_free_all();
}

static void attention_is_exact_everywhere(void **state) {
    (void)state;
    const struct attention_shape shapes[] = {
        {8, 64, 64, 64, 1, {150, 70}, {120, 60}, 0},      // mini, decoder
        {8, 64, 64, 64, 2, {200, 9}, {180, 0}, 0},        // mini, encoder
        {8, 64, 16, 16, 0, {40, 33}, {20, 10}, 0},        // tiny-a, window only
        {6, 96, 32, 48, 1, {300, 100}, {290, 90}, 85},    // tiny-b, with a window floor
        {5, 512, 128, 100, 1, {260, 131}, {256, 129}, 0}, // a slice of the release
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_attention(&shapes[i]);
    }
}

static void window_floor_hides_older_keys(void **state) {
    (void)state;
    const struct attention_shape shape = {8, 64, 64, 64, 0, {100, 100}, {99, 99}, 90};
    struct attention_case c;
    attention_init(&c, &shape);
    struct backend *backend = kernels_open(NULL, 1);
    size_t width = 8 * 64;
    backend_attention(backend, &c.op);
    uint16_t *before = kernels_memory(width * 2);
    memcpy(before, c.op.output + width, width * 2);
    // sequence 1 sees positions 90..99 only: what lies below in its ring may be anything
    size_t bytes = window_record_bytes(64);
    for (int32_t p = 36; p < 90; p++) {
        memset(c.views[1].ring + (size_t)(p % 64) * bytes, 0x55, bytes);
    }
    backend_attention(backend, &c.op);
    kernels_expect_same(c.op.output + width, before, width * 2, "row with a floor");
    c.views[1].window_floor = 89;
    backend_attention(backend, &c.op);
    assert_true(memcmp(c.op.output + width, before, width * 2) != 0);
    backend_close(backend);
    kernels_free_all();
}

static void entries_below_the_write_floor_stay(void **state) {
    (void)state;
    struct numbers numbers = {5};
    for (int32_t ratio = 1; ratio <= 2; ratio++) {
        struct history h = history_of(&numbers, 140, 64, 32, ratio);
        size_t bytes = h.source.index_scale_offset + (size_t)h.source.entries;
        uint8_t *copies[2];
        for (int b = 0; b < 2; b++) {
            copies[b] = kernels_memory(bytes);
            memcpy(copies[b], h.blocks[b], bytes);
        }
        // rows 126..133 come again with other content; entries of tokens below 130 are kept
        uint16_t *latents = kernels_bf16(&numbers, 8 * 64, 5.0F);
        struct row_segment segment = {0, 8, 126};
        struct sequence_view view = {.blocks = h.blocks, .write_floor = 130};
        struct entry_store_op store = {
            .dim = 64,
            .index_dim = 32,
            .source = h.source,
            .segments = row_segments_of(&segment, &segment, 1),
            .views = &view,
            .latent = latents,
            .key = latents,
        };
        struct backend *backend = kernels_open(NULL, 1);
        backend_entry_store(backend, &store);
        backend_close(backend);
        kernels_expect_same(h.blocks[0], copies[0], bytes, "first block");
        int32_t changed = 0;
        for (int32_t e = 0; e < h.source.entries; e++) {
            size_t at = h.source.main_offset + (size_t)e * h.source.main_record_bytes;
            bool same = memcmp(h.blocks[1] + at, copies[1] + at, h.source.main_record_bytes) == 0;
            int32_t token = 128 + e * ratio;
            assert_int_equal(!same, token >= 130 && token < 134);
            changed += same ? 0 : 1;
        }
        assert_int_equal(changed, 4 / ratio);
    }
    kernels_free_all();
}

/* compress_pool over 11 tokens in calls of `step`, pending carried between calls. */
struct pool_case {
    float *kv, *score;
    uint16_t *latent;
};

static void run_pool(struct backend *backend, int32_t step, void *context) {
    const struct pool_case *c = context;
    float pending[2 * 64] = {0};
    struct sequence_view view = {.pending = pending};
    for (int32_t from = 0; from < 11; from += step) {
        struct row_segment segment = {from, 11 - from < step ? 11 - from : step, from};
        struct compress_pool_op op = {
            .dim = 64,
            .segments = row_segments_of(&segment, &segment, 1),
            .views = &view,
            .kv = c->kv,
            .score = c->score,
            .latent = c->latent,
        };
        backend_compress_pool(backend, &op);
    }
    kernels_expect_same(pending, c->kv + 10 * 64, 64 * 4, "pending kv of the last even token");
    kernels_expect_same(pending + 64, c->score + 10 * 64, 64 * 4, "pending score");
}

static void pooling_is_exact_everywhere(void **state) {
    (void)state;
    struct numbers numbers = {17};
    struct pool_case c = {
        kernels_f32(&numbers, 11 * 64, 1.0F),
        kernels_f32(&numbers, 11 * 64, 4.0F),
        kernels_memory(11 * 64 * 2),
    };
    kernels_same_everywhere("pooling", run_pool, &c, c.latent, 11 * 64 * 2);
    for (size_t i = 0; i < 11 * 64; i++) {
        float expected = 0.0F;
        if (i / 64 % 2 == 1) {
            double first = exp((double)c.score[i - 64]);
            double second = exp((double)c.score[i]);
            double sum = first * (double)c.kv[i - 64] + second * (double)c.kv[i];
            expected = (float)(sum / (first + second));
        }
        float got = bf16_decode(c.latent[i]);
        kernels_expect_near(&got, &expected, 1, 0x1p-8F, 1e-6F, "pooled latent");
    }
    kernels_free_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_exact_everywhere),
        cmocka_unit_test(window_floor_hides_older_keys),
        cmocka_unit_test(entries_below_the_write_floor_stay),
        cmocka_unit_test(pooling_is_exact_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
