/* Attention: against the CPU, and the same bits alone, at other places, with keys in the ring. */
#include "check.h"

#include <math.h>

CHECK_CALL(attention)

#define SEQUENCES 5

/* Rows of sequence s are queries at positions [position, position + count), records of positions
 * from `fresh` on are in this step. */
struct sequence_shape {
    int32_t position, count, fresh, floor;
};

struct attention_shape {
    const char *name;
    int32_t heads, dim, window;
    int32_t topk, ratio;  /* 0: no entries */
    int32_t gap;          /* rows between segments that belong to none */
    float scale_of_query; /* large: the running maximum moves a lot and most weights vanish */
    int32_t sequences;
    struct sequence_shape sequence[SEQUENCES];
};

struct attention_case {
    struct attention_op op;
    struct check_caches caches;
    struct row_segment segments[SEQUENCES], fresh[SEQUENCES];
    int32_t rows;
};

static int32_t compare_ids(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* `count` different entries below `visible`, ascending; all of them when there are no more. */
static int32_t select_some(struct check *check, int32_t visible, int32_t topk, int32_t *to) {
    int32_t count = 0;
    for (int32_t id = 0; id < visible && visible <= topk; id++) {
        to[count++] = id;
    }
    if (visible > topk) {
        int32_t stride = visible / topk; // one of each run of ids
        for (; count < topk; count++) {
            to[count] = count * stride + check_below(check, stride);
        }
    }
    qsort(to, (size_t)count, sizeof *to, compare_ids);
    return count;
}

static void fill_selected(struct check *check, struct attention_case *c, int32_t ratio) {
    int32_t topk = c->op.topk;
    int32_t *selected = check_input(check, c->rows, (size_t)topk * sizeof *selected);
    int32_t *counts = check_input(check, c->rows, sizeof *counts);
    memset(selected, 0xff, (size_t)c->rows * (size_t)topk * sizeof *selected);
    for (int32_t s = 0; s < c->op.segments.count; s++) {
        for (int32_t i = 0; i < c->segments[s].count; i++) {
            int32_t row = c->segments[s].row + i;
            int32_t visible = (c->segments[s].position + i + 1) / ratio;
            counts[row] = select_some(check, visible, topk, selected + (size_t)row * (size_t)topk);
        }
    }
    c->op.selected = selected;
    c->op.selected_count = counts;
}

/* Records of normals as the CPU packs them. */
static void pack_normals(struct check *check, uint8_t *records, int32_t rows, int32_t dim) {
    uint16_t *latents = check_host(check, (size_t)rows * (size_t)dim * sizeof *latents);
    check_fill_bf16(check, latents, (size_t)rows * (size_t)dim, 1.0F);
    struct window_pack_op op = {.rows = rows, .dim = dim, .x = latents, .records = records};
    backend_window_pack(check->cpu, &op);
}

static void
attention_init(struct check *check, const struct attention_shape *shape, struct attention_case *c) {
    memset(c, 0, sizeof *c);
    int32_t fresh_rows = 0;
    int32_t tokens[SEQUENCES];
    int32_t floors[SEQUENCES];
    for (int32_t s = 0; s < shape->sequences; s++) {
        const struct sequence_shape *sequence = &shape->sequence[s];
        int32_t end = sequence->position + sequence->count;
        int32_t kept = end > sequence->fresh ? end - sequence->fresh : 0;
        c->segments[s] = (struct row_segment){c->rows, sequence->count, sequence->position};
        c->fresh[s] = (struct row_segment){fresh_rows, kept, sequence->fresh};
        c->rows += sequence->count + (s + 1 < shape->sequences ? shape->gap : 0);
        fresh_rows += kept + shape->gap;
        tokens[s] = end;
        floors[s] = sequence->floor;
    }
    struct check_caches_options options = {
        .sequences = shape->sequences,
        .ratio = shape->ratio > 0 ? shape->ratio : 1,
        .dim = shape->dim,
        .index_dim = 32,
        .window = shape->window,
        .tokens = tokens,
        .window_floor = floors,
        .read_only = true,
    };
    c->caches = check_caches(check, &options);
    size_t width = (size_t)shape->heads * (size_t)shape->dim;
    struct attention_op *op = &c->op;
    op->heads = shape->heads;
    op->dim = shape->dim;
    op->window = shape->window;
    op->topk = shape->topk;
    op->scale = (float)(1.0 / sqrt(shape->dim));
    op->segments = check_segments(check, c->segments, shape->sequences);
    op->fresh_segments = check_segments(check, c->fresh, shape->sequences);
    op->views = c->caches.views;
    op->query = check_normals_bf16(check, c->rows, (int32_t)width, shape->scale_of_query);
    uint8_t *fresh = check_input(check, fresh_rows, window_record_bytes(shape->dim));
    pack_normals(check, fresh, fresh_rows, shape->dim);
    pack_normals(check, c->caches.rings, shape->sequences * shape->window, shape->dim);
    op->fresh = fresh;
    op->source = c->caches.source;
    op->sink = check_normals_f32(check, CHECK_SHARED, shape->heads, 2.0F);
    op->output = check_output(check, c->rows, width * sizeof *op->output);
    if (shape->topk > 0) {
        fill_selected(check, c, shape->ratio);
    }
}

/* Rings as they are before the last row of each segment. */
static struct sequence_view *later_views(struct check *check, const struct attention_case *c) {
    int32_t window = c->op.window;
    size_t record = window_record_bytes(c->op.dim);
    int32_t sequences = c->op.segments.count;
    size_t ring_bytes = (size_t)window * record;
    uint8_t *rings = check_input(check, CHECK_SHARED, (size_t)sequences * ring_bytes);
    struct sequence_view *views =
        check_pointers(check, CHECK_SHARED, (size_t)sequences * sizeof *views);
    memcpy(rings, c->caches.rings, (size_t)sequences * ring_bytes);
    memcpy(views, c->caches.views, (size_t)sequences * sizeof *views);
    for (int32_t s = 0; s < sequences; s++) {
        views[s].ring = rings + (size_t)s * ring_bytes;
        int32_t last = c->segments[s].position + c->segments[s].count - 1;
        for (int32_t p = c->fresh[s].position; p < last; p++) {
            size_t row = (size_t)(c->fresh[s].row + p - c->fresh[s].position);
            memcpy(
                views[s].ring + (size_t)(p % window) * record, c->op.fresh + row * record, record
            );
        }
    }
    return views;
}

/* Each row alone, at place 0, the last one of a segment with only its own record fresh. Alone, a
 * block has fewer heads than in the batch. */
static void check_alone(struct check *check, const struct attention_case *c) {
    enum { QUERY, FRESH, KINDS };
    size_t bytes = (size_t)c->rows * KINDS * sizeof(struct row_segment);
    struct row_segment *host = check_host(check, bytes);
    struct row_segment *device = check_input(check, CHECK_SHARED, bytes);
    const struct sequence_view *later = later_views(check, c);
    size_t width = (size_t)c->op.heads * (size_t)c->op.dim;
    check_restore(check);
    for (int32_t s = 0; s < c->op.segments.count; s++) {
        for (int32_t i = 0; i < c->segments[s].count; i++) {
            int32_t row = c->segments[s].row + i;
            int32_t position = c->segments[s].position + i;
            struct row_segment *own = &host[row * KINDS];
            bool in_ring = i == c->segments[s].count - 1 && c->fresh[s].count > 0;
            own[QUERY] = (struct row_segment){0, 1, position};
            own[FRESH] = c->fresh[s];
            if (in_ring) {
                own[FRESH].row += position - c->fresh[s].position;
                own[FRESH].count = 1;
                own[FRESH].position = position;
            }
            memcpy(device + row * KINDS, own, KINDS * sizeof *own);
        }
    }
    for (int32_t s = 0; s < c->op.segments.count; s++) {
        for (int32_t i = 0; i < c->segments[s].count; i++) {
            int32_t row = c->segments[s].row + i;
            const struct row_segment *at = &device[row * KINDS];
            const struct row_segment *own = &host[row * KINDS];
            struct attention_op op = c->op;
            bool in_ring = i == c->segments[s].count - 1 && c->fresh[s].count > 0;
            op.segments = row_segments_of(&own[QUERY], &at[QUERY], 1);
            op.fresh_segments = row_segments_of(&own[FRESH], &at[FRESH], 1);
            op.views = (in_ring ? later : op.views) + s;
            op.query += (size_t)row * width;
            op.output += (size_t)row * width;
            op.selected = op.selected == NULL ? NULL : op.selected + (size_t)row * (size_t)op.topk;
            op.selected_count = op.selected == NULL ? NULL : op.selected_count + row;
            CHECK_ENQUEUE(check, attention, op);
        }
    }
    check_identical(check, "each row alone, the last with earlier keys in the ring");
}

static void attention_case(struct check *check, const struct attention_shape *shape) {
    int32_t rows = 0;
    for (int32_t s = 0; s < shape->sequences; s++) {
        rows += shape->sequence[s].count;
    }
    if (!check_case(
            check,
            "attention",
            "%s %d rows H %d d %d W %d K %d",
            shape->name,
            rows,
            shape->heads,
            shape->dim,
            shape->window,
            shape->topk
        )) {
        return;
    }
    struct attention_case c;
    attention_init(check, shape, &c);
    CHECK_RUN(check, attention, c.op);
    // Scores differ by some 2^-21 from the CPU's, so that one probability in a few thousand falls on
    // the other side of a rounding to bf16. That moves the output by a step of it times the value:
    // at most 2^-8 / 1.5 of the value, since the largest probability is 1 without rounding and has
    // its share of the sum too. Values reach 4 times the root mean square of such a row, since the
    // scales of a record differ: 2^-6 holds for that and a second one.
    struct check_limit limit = {.ulps = 1, .relative = 0x1p-6F};
    check_bf16(check, "output", c.op.output, shape->dim, limit);
    check_alone(check, &c);
}

#define CODES 256

/* All codes under all scales: a row has one window key and one entry, one of them zero, scores of 0
 * and a sink that weighs nothing, so that its output is half of the other one, exactly. */
static void formats_case(struct check *check, int32_t dim) {
    if (!check_case(check, "attention", "codes and scales, d %d", dim)) {
        return;
    }
    static const int32_t tokens[] = {CODES};
    struct check_caches_options options = {
        .sequences = 1,
        .ratio = 1,
        .dim = dim,
        .index_dim = 32,
        .window = 1,
        .tokens = tokens,
        .read_only = true,
    };
    struct check_caches caches = check_caches(check, &options);
    struct row_segment segment = {0, CODES, 0};
    struct attention_op op = {.heads = 1, .dim = dim, .window = 1, .topk = 1, .scale = 1.0F};
    size_t width = (size_t)dim;
    uint8_t *fresh = check_input(check, CODES, window_record_bytes(dim));
    int32_t *selected = check_input(check, CODES, sizeof *selected);
    int32_t *counts = check_input(check, CODES, sizeof *counts);
    float *sink = check_input(check, CHECK_SHARED, sizeof *sink);
    *sink = -1e4F;
    for (int32_t row = 0; row < CODES; row++) {
        uint8_t *record = fresh + (size_t)row * window_record_bytes(dim);
        uint8_t *entry = caches.views[0].blocks[row / caches.source.entries];
        entry += caches.source.main_offset;
        entry += (size_t)(row % caches.source.entries) * caches.source.main_record_bytes;
        selected[row] = row;
        counts[row] = 1;
        memset(entry, 0, caches.source.main_record_bytes);
        if (row % 2 == 0) { // 2^-107 to 2^119: nothing is subnormal, the largest code is finite
            check_fill_bytes(check, record, width);
            for (size_t g = 0; g < width / 32; g++) {
                record[width + g] = (uint8_t)(20 + (row * 7 + (int32_t)g * 13) % 227);
            }
        } else {
            check_fill_bytes(check, entry, width / 2);
            for (size_t g = 0; g < width / 16; g++) {
                entry[width / 2 + g] = (uint8_t)(row / 2 + (int32_t)g * 31);
            }
        }
    }
    op.segments = check_segments(check, &segment, 1);
    op.fresh_segments = op.segments;
    op.views = caches.views;
    op.query = check_input(check, CODES, width * sizeof *op.query); // zeros
    op.fresh = fresh;
    op.source = caches.source;
    op.selected = selected;
    op.selected_count = counts;
    op.sink = sink;
    op.output = check_output(check, CODES, width * sizeof *op.output);
    CHECK_RUN(check, attention, op);
    check_bits(check, "output", op.output, CODES * width * sizeof *op.output);
}

void check_attention(struct check *check) {
    static const struct attention_shape shapes[] = {
        {"window",
         6,
         96,
         32,
         0,
         0,
         2,
         1.0F,
         4,
         {{0, 5, 0, 0}, {70, 6, 60, 65}, {40, 0, 40, 0}, {500, 3, 500, 0}}},
        {"tiny-a", 8, 64, 16, 16, 2, 0, 1.0F, 3, {{0, 4, 0, 0}, {9, 1, 9, 0}, {200, 5, 190, 0}}},
        {"tiny-b",
         6,
         96,
         32,
         48,
         1,
         1,
         1.0F,
         3,
         {{33, 3, 33, 0}, {300, 4, 296, 299}, {5, 2, 4, 0}}},
        {"bundled", 8, 64, 64, 64, 2, 0, 1.0F, 2, {{127, 4, 127, 0}, {400, 3, 390, 380}}},
        {"peaked", 48, 64, 64, 64, 1, 0, 8.0F, 2, {{400, 3, 400, 0}, {1, 1, 1, 0}}},
        {"long window", 8, 64, 1100, 64, 1, 0, 1.0F, 1, {{1500, 2, 1400, 0}}},
        {"draft",
         64,
         512,
         133,
         0,
         0,
         0,
         1.0F,
         3,
         {{400, 1, 401, 0}, {400, 1, 401, 0}, {60, 1, 61, 56}}},
        {"release",
         64,
         512,
         128,
         512,
         1,
         1,
         1.0F,
         3,
         {{1300, 1, 1300, 0}, {20, 0, 20, 0}, {200, 2, 199, 100}}},
        {"release", 64, 512, 128, 512, 2, 0, 3.0F, 2, {{2000, 2, 1990, 0}, {0, 1, 0, 0}}},
        // more rows than multiprocessors, with 64 and with 32 heads per block
        {"release", 64, 512, 128, 512, 1, 0, 1.0F, 2, {{3000, 150, 3000, 0}, {100, 60, 0, 0}}},
        {"release", 64, 512, 128, 512, 2, 0, 1.0F, 2, {{3000, 40, 3000, 0}, {100, 10, 0, 0}}},
        {"bundled", 8, 64, 64, 64, 1, 0, 1.0F, 2, {{0, 500, 0, 0}, {3000, 300, 3000, 0}}},
    };
    int32_t count = check->emulated ? COUNT_OF(shapes) - 3 : COUNT_OF(shapes);
    for (int32_t i = 0; i < count; i++) {
        attention_case(check, &shapes[i]);
    }
    formats_case(check, 96);
    formats_case(check, 512);
}

#define BENCH_VARIANTS 4

/* `sequences` of `count` rows each at position 2048, all keys there are: 128 and 512. */
static void bench_rows(struct check *check, int32_t sequences, int32_t count) {
    if (!check_case(check, "attention", "%d x %d rows", sequences, count)) {
        return;
    }
    struct check_model m = check_model(check, CHECK_RELEASE);
    int32_t rows = sequences * count;
    struct attention_op ops[BENCH_VARIANTS];
    memset(ops, 0, sizeof ops);
    size_t bytes = (size_t)sequences * sizeof(struct row_segment);
    struct row_segment *segments = check_host(check, bytes);
    struct row_segment *device = check_input(check, CHECK_SHARED, bytes);
    int32_t *tokens = check_host(check, (size_t)sequences * sizeof *tokens);
    for (int32_t s = 0; s < sequences; s++) {
        segments[s] = (struct row_segment){s * count, count, 2048};
        tokens[s] = 2048 + count;
    }
    memcpy(device, segments, bytes);
    struct check_caches_options options = {
        sequences, 1, m.head_dim, 32, m.window, tokens, NULL, NULL, true};
    int32_t width = m.heads * m.head_dim;
    const uint16_t *query = check_normals_bf16(check, rows, width, 1.0F);
    uint16_t *output = check_output(check, rows, (size_t)width * sizeof *output);
    const float *sink = check_normals_f32(check, CHECK_SHARED, m.heads, 1.0F);
    for (int32_t v = 0; v < BENCH_VARIANTS; v++) {
        struct attention_op *op = &ops[v];
        struct check_caches caches = check_caches(check, &options);
        int32_t *selected = check_input(check, rows, (size_t)m.topk * sizeof *selected);
        int32_t *counts = check_input(check, rows, sizeof *counts);
        for (int32_t row = 0; row < rows; row++) {
            counts[row] = select_some(check, 2048, m.topk, selected + (size_t)row * (size_t)m.topk);
        }
        op->heads = m.heads;
        op->dim = m.head_dim;
        op->window = m.window;
        op->topk = m.topk;
        op->scale = (float)(1.0 / sqrt(m.head_dim));
        op->segments = row_segments_of(segments, device, sequences);
        op->fresh_segments = op->segments;
        op->views = caches.views;
        op->query = query;
        op->fresh = check_window_records(check, rows, m.head_dim);
        op->source = caches.source;
        op->selected = selected;
        op->selected_count = counts;
        op->sink = sink;
        op->output = output;
    }
    // a sequence's rows share records as far as they can
    double records =
        (double)(count < 4 ? count * m.topk : 2048) * (double)ops[0].source.main_record_bytes;
    records += (double)(count + m.window - 1) * (double)window_record_bytes(m.head_dim);
    struct check_bench bench = {
        .call = call_attention,
        .ops = ops,
        .op_bytes = sizeof ops[0],
        .count = BENCH_VARIANTS,
        .bytes = records * sequences + 4.0 * rows * width,
        .operations = 4.0 * rows * width * (m.window + m.topk),
    };
    check_bench(check, &bench);
}

void bench_attention(struct check *check) {
    bench_rows(check, 1, 1);
    bench_rows(check, 8, 1);
    bench_rows(check, 32, 1);
    bench_rows(check, 64, 1);
    bench_rows(check, 1, 512);
    bench_rows(check, 1, 4096);
}
