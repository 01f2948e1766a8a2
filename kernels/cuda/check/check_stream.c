/* embed, the residual streams, norm, rotation, Engram: against the CPU and with themselves. */
#include "check.h"

#include "kernels/cpu/number.h"

CHECK_CALL(embed)
CHECK_CALL(stream_mix)
CHECK_CALL(stream_collapse)
CHECK_CALL(stream_update)
CHECK_CALL(norm)
CHECK_CALL(rope_table)
CHECK_CALL(rotate)
CHECK_CALL(engram_gather)
CHECK_CALL(engram_gate)

#define C   4
#define EPS 1e-20F

/* Sums of n squares or products in another order differ by a few 2^-24 sqrt(n); the factor that
 * comes of it moves a rounded value by at most one step. */
static const struct check_limit one_step = {.ulps = 1, .relative = 0};

#define VOCABULARY_MAX 20000 /* of the table of a case: 200 MB at 5,120 channels */

static struct embed_op make_embed(struct check *check, int32_t rows, const struct check_model *m) {
    int32_t vocabulary = m->vocabulary < VOCABULARY_MAX ? m->vocabulary : VOCABULARY_MAX;
    struct embed_op op = {.rows = rows, .vocabulary = vocabulary, .dim = m->dim, .streams = C};
    int32_t *ids = check_input(check, rows, sizeof *ids);
    for (int32_t r = 0; r < rows; r++) {
        ids[r] = r == 0 ? vocabulary - 1 : check_below(check, vocabulary);
    }
    op.ids = ids;
    op.table = check_normals_bf16(check, CHECK_SHARED, vocabulary * m->dim, 1.0F);
    op.x = check_output(check, rows, (size_t)C * (size_t)m->dim * sizeof *op.x);
    op.mix = check_output(check, rows, C * sizeof *op.mix);
    return op;
}

static void embed_case(struct check *check, int32_t rows, const struct check_model *m) {
    if (!check_case(check, "embed", "%s [%d, %d]", m->name, rows, m->dim)) {
        return;
    }
    struct embed_op op = make_embed(check, rows, m);
    CHECK_RUN(check, embed, op);
    check_bits(check, "x", op.x, check_output_bytes(check, op.x));
    check_bits(check, "mix", op.mix, check_output_bytes(check, op.mix));
    CHECK_ROWS(check, embed, op);
}

/* fn is scaled so that mixes have deviation 3. */
static struct stream_mix_op make_mix(struct check *check, int32_t rows, int32_t dim) {
    struct stream_mix_op op = {
        .rows = rows, .dim = dim, .streams = C, .sinkhorn_iterations = 20, .eps = 1e-6F};
    int32_t width = C * dim;
    op.norm_eps = EPS;
    uint16_t *x = check_normals_bf16(check, rows, width, 3.0F);
    if (rows > 2) { // a row of zeros, and one whose squares are near the top of FP32
        memset(x + width, 0, (size_t)width * sizeof *x);
        check_fill_bf16(check, x + 2 * (size_t)width, (size_t)width, 0x1p50F);
    }
    op.x = x;
    float deviation = (float)(1.0 / sqrt(width));
    op.fn = check_normals_f32(check, CHECK_SHARED, (2 + C) * C * width, deviation);
    op.scale = check_normals_f32(check, CHECK_SHARED, 3, 1.0F);
    op.base = check_normals_f32(check, CHECK_SHARED, (2 + C) * C, 1.0F);
    op.pre = check_output(check, rows, C * sizeof *op.pre);
    op.post = check_output(check, rows, C * sizeof *op.post);
    op.comb = check_output(check, rows, (size_t)C * C * sizeof *op.comb);
    return op;
}

static void mix_case(struct check *check, int32_t rows, const struct check_model *m) {
    if (!check_case(check, "stream_mix", "%s [%d, 4, %d]", m->name, rows, m->dim)) {
        return;
    }
    struct stream_mix_op op = make_mix(check, rows, m->dim);
    // A mix is 20,480 products over the root of their squares: in another order it moves by about
    // 1e-6; scale, up to 4, and the exponentials multiply that (3.6e-6 at most on an H200).
    struct check_limit limit = {.relative = 1e-5F};
    CHECK_RUN(check, stream_mix, op);
    check_f32(check, "pre", op.pre, C, limit);
    check_f32(check, "post", op.post, C, limit);
    check_f32(check, "comb", op.comb, C * C, limit);
    CHECK_ROWS(check, stream_mix, op);
}

static struct stream_collapse_op
make_collapse(struct check *check, int32_t rows, int32_t dim, int32_t stride) {
    struct stream_collapse_op op = {.rows = rows, .dim = dim, .streams = C, .norm_eps = EPS};
    op.x = check_normals_bf16(check, rows, C * dim, 2.0F);
    op.mix = check_normals_f32(check, rows, C, 1.0F);
    op.weight = check_normals_bf16(check, CHECK_SHARED, dim, 1.0F);
    if (stride >= 0) {
        size_t width = (size_t)(stride == 0 ? dim : stride);
        op.collapsed = check_output(check, rows, width * sizeof *op.collapsed);
        op.collapsed_stride = stride;
    }
    op.normed = check_output(check, rows, (size_t)dim * sizeof *op.normed);
    return op;
}

/* stride < 0: u is not asked for. */
static void
collapse_case(struct check *check, int32_t rows, const struct check_model *m, int32_t stride) {
    if (!check_case(
            check, "stream_collapse", "%s [%d, 4, %d] stride %d", m->name, rows, m->dim, stride
        )) {
        return;
    }
    struct stream_collapse_op op = make_collapse(check, rows, m->dim, stride);
    CHECK_RUN(check, stream_collapse, op);
    if (op.collapsed != NULL) {
        check_bits(check, "collapsed", op.collapsed, check_output_bytes(check, op.collapsed));
    }
    check_bf16(check, "normed", op.normed, m->dim, one_step);
    CHECK_ROWS(check, stream_collapse, op);
}

static struct stream_update_op make_update(struct check *check, int32_t rows, int32_t dim) {
    struct stream_update_op op = {.rows = rows, .dim = dim, .streams = C};
    size_t width = (size_t)C * (size_t)dim;
    op.x = check_output(check, rows, width * sizeof *op.x);
    check_fill_bf16(check, op.x, (size_t)rows * width, 2.0F);
    op.y = check_normals_bf16(check, rows, dim, 1.0F);
    op.post = check_normals_f32(check, rows, C, 1.0F);
    op.comb = check_normals_f32(check, rows, C * C, 0.5F);
    return op;
}

static void update_case(struct check *check, int32_t rows, const struct check_model *m) {
    if (!check_case(check, "stream_update", "%s [%d, 4, %d]", m->name, rows, m->dim)) {
        return;
    }
    struct stream_update_op op = make_update(check, rows, m->dim);
    CHECK_RUN(check, stream_update, op);
    check_bits(check, "x", op.x, check_output_bytes(check, op.x));
    CHECK_ROWS(check, stream_update, op);
}

static struct norm_op make_norm(struct check *check, int32_t rows, int32_t dim) {
    struct norm_op op = {.rows = rows, .dim = dim, .eps = EPS};
    uint16_t *x = check_normals_bf16(check, rows, dim, 1.0F);
    if (rows > 2) {
        memset(x + dim, 0, (size_t)dim * sizeof *x); // zeros stay zeros
        check_fill_bf16(check, x + 2 * (size_t)dim, (size_t)dim, 0x1p-70F);
    }
    op.x = x;
    op.weight = check_normals_bf16(check, CHECK_SHARED, dim, 1.0F);
    op.y = check_output(check, rows, (size_t)dim * sizeof *op.y);
    return op;
}

/* The device's y against the formula in double: within a bf16 step. */
static void check_exact_norm(struct check *check, const struct norm_op *op) {
    const uint16_t *got = check_got(check, op->y);
    int64_t beyond = 0;
    for (int32_t r = 0; r < op->rows; r++) {
        size_t at = (size_t)r * (size_t)op->dim;
        double sum = 0;
        for (int32_t i = 0; i < op->dim; i++) {
            double value = (double)bf16_decode(op->x[at + (size_t)i]);
            sum += value * value;
        }
        double factor = 1.0 / sqrt(sum / op->dim + (double)op->eps);
        for (int32_t i = 0; i < op->dim; i++) {
            double value = (double)bf16_decode(op->x[at + (size_t)i]) * factor;
            uint16_t want = bf16_encode((float)(value * (double)bf16_decode(op->weight[i])));
            beyond += abs((int)got[at + (size_t)i] - (int)want) > 1;
        }
    }
    check_report(check, beyond == 0, "y: %lld beyond 1 ulp of the exact", (long long)beyond);
}

static void norm_case(struct check *check, int32_t rows, int32_t dim) {
    if (!check_case(check, "norm", "[%d, %d]", rows, dim)) {
        return;
    }
    struct norm_op op = make_norm(check, rows, dim);
    CHECK_RUN(check, norm, op);
    check_bf16(check, "y", op.y, dim, one_step);
    check_exact_norm(check, &op);
    CHECK_ROWS(check, norm, op);
    struct norm_op inside = op;
    inside.x = op.y;
    memcpy(op.y, op.x, check_output_bytes(check, op.y));
    CHECK_RUN(check, norm, inside);
    check_bf16(check, "y in place", op.y, dim, one_step);
}

static struct rope_table_op make_table(struct check *check, int32_t rows, int32_t pairs) {
    struct rope_table_op op = {.rows = rows, .pairs = pairs};
    int32_t *positions = check_input(check, rows, sizeof *positions);
    float *frequencies = check_input(check, CHECK_SHARED, (size_t)pairs * sizeof *frequencies);
    for (int32_t r = 0; r < rows; r++) {
        positions[r] = r % 3 == 0 ? r : check_below(check, r % 3 == 1 ? 1 << 20 : 1 << 28);
    }
    for (int32_t i = 0; i < pairs; i++) {
        frequencies[i] = powf(10000.0F, -(float)i / (float)pairs);
    }
    op.positions = positions;
    op.frequencies = frequencies;
    op.cosine = check_output(check, rows, (size_t)pairs * sizeof *op.cosine);
    op.sine = check_output(check, rows, (size_t)pairs * sizeof *op.sine);
    return op;
}

/* The same polynomials with the same fused steps: the same bits. */
static void table_case(struct check *check, int32_t rows, int32_t pairs) {
    if (!check_case(check, "rope_table", "[%d, %d]", rows, pairs)) {
        return;
    }
    struct rope_table_op op = make_table(check, rows, pairs);
    CHECK_RUN(check, rope_table, op);
    check_bits(check, "cosine", op.cosine, check_output_bytes(check, op.cosine));
    check_bits(check, "sine", op.sine, check_output_bytes(check, op.sine));
    CHECK_ROWS(check, rope_table, op);
}

static struct rotate_op
make_rotate(struct check *check, int32_t rows, int32_t heads, int32_t dim, int32_t rope_dim) {
    struct rotate_op op = {.rows = rows, .heads = heads, .dim = dim, .rope_dim = rope_dim};
    float *cosine = check_input(check, rows, (size_t)rope_dim / 2 * sizeof *cosine);
    float *sine = check_input(check, rows, (size_t)rope_dim / 2 * sizeof *sine);
    for (int32_t i = 0; i < rows * rope_dim / 2; i++) {
        double angle = check_below(check, 1 << 20) * 1e-3;
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
    size_t width = (size_t)heads * (size_t)dim;
    op.cosine = cosine;
    op.sine = sine;
    op.x = check_output(check, rows, width * sizeof *op.x);
    check_fill_bf16(check, op.x, (size_t)rows * width, 1.0F);
    return op;
}

static void rotate_case(
    struct check *check, int32_t rows, const struct check_model *m, int32_t heads, bool inverse
) {
    if (!check_case(
            check,
            "rotate",
            "%s [%d, %d, %d] %s",
            m->name,
            rows,
            heads,
            m->head_dim,
            inverse ? "inverse" : ""
        )) {
        return;
    }
    struct rotate_op op = make_rotate(check, rows, heads, m->head_dim, m->rope_dim);
    op.inverse = inverse;
    CHECK_RUN(check, rotate, op);
    check_bits(check, "x", op.x, check_output_bytes(check, op.x));
    CHECK_ROWS(check, rotate, op);
}

static struct engram_gather_op
make_gather(struct check *check, int32_t rows, const struct check_model *m, int32_t table_rows) {
    struct engram_gather_op op = {.rows = rows, .columns = m->engram_columns, .dim = m->engram_dim};
    int64_t *ids = check_input(check, rows, (size_t)op.columns * sizeof *ids);
    for (int32_t i = 0; i < rows * op.columns; i++) {
        ids[i] = check_below(check, table_rows);
    }
    uint8_t *table = check_input(check, CHECK_SHARED, (size_t)table_rows * (size_t)op.dim);
    uint8_t *scales = check_input(check, CHECK_SHARED, (size_t)table_rows * (size_t)op.dim / 32);
    check_fill_bytes(check, table, (size_t)table_rows * (size_t)op.dim);
    for (size_t i = 0; i < (size_t)table_rows * (size_t)op.dim / 32; i++) {
        scales[i] = (uint8_t)check_below(check, 247); // the loader takes no more
    }
    op.ids = ids;
    op.table = table;
    op.scales = scales;
    op.output = check_output(check, rows, (size_t)(op.columns * op.dim) * sizeof *op.output);
    return op;
}

static void gather_case(struct check *check, int32_t rows, const struct check_model *m) {
    if (!check_case(
            check,
            "engram_gather",
            "%s [%d, %d, %d]",
            m->name,
            rows,
            m->engram_columns,
            m->engram_dim
        )) {
        return;
    }
    struct engram_gather_op op = make_gather(check, rows, m, 1000);
    CHECK_RUN(check, engram_gather, op);
    check_bits(check, "output", op.output, check_output_bytes(check, op.output));
    CHECK_ROWS(check, engram_gather, op);
}

static struct engram_gate_op make_gate(struct check *check, int32_t rows, int32_t dim, bool gates) {
    struct engram_gate_op op = {.rows = rows, .dim = dim, .streams = C, .norm_eps = EPS};
    op.kv = check_normals_bf16(check, rows, (C + 1) * dim, 1.0F);
    op.query_weight = check_normals_bf16(check, CHECK_SHARED, C * dim, 1.0F);
    op.key_weight = check_normals_bf16(check, CHECK_SHARED, C * dim, 1.0F);
    size_t width = (size_t)C * (size_t)dim;
    op.x = check_output(check, rows, width * sizeof *op.x);
    check_fill_bf16(check, op.x, (size_t)rows * width, 2.0F);
    if (rows > 1) {
        memset(op.x + width, 0, width * sizeof *op.x); // g of exactly +0
    }
    op.gate = gates ? check_output(check, rows, C * sizeof *op.gate) : NULL;
    return op;
}

static void gate_case(struct check *check, int32_t rows, const struct check_model *m, bool gates) {
    if (!check_case(
            check, "engram_gate", "%s [%d, 4, %d]%s", m->name, rows, m->dim, gates ? " gates" : ""
        )) {
        return;
    }
    struct engram_gate_op op = make_gate(check, rows, m->dim, gates);
    CHECK_RUN(check, engram_gate, op);
    if (gates) {
        // g is a sum whose terms cancel; its root is as far from exact as 1e-6 / sqrt(g), g > 1e-6
        check_f32(check, "gate", op.gate, C, (struct check_limit){.relative = 1e-4F});
    }
    check_bf16(check, "x", op.x, m->dim, (struct check_limit){.ulps = 1, .relative = 1e-4F});
    CHECK_ROWS(check, engram_gate, op);
}

void check_stream(struct check *check) {
    for (int32_t model = 0; model < CHECK_MODELS; model++) {
        struct check_model m = check_model(check, model);
        int32_t rows;
        for (int32_t i = 0; (rows = check_row_counts(check, model, i)) > 0; i++) {
            embed_case(check, rows, &m);
            mix_case(check, rows, &m);
            collapse_case(check, rows, &m, 0);
            collapse_case(check, rows, &m, -1);
            collapse_case(check, rows, &m, 3 * m.dim);
            update_case(check, rows, &m);
            norm_case(check, rows, m.dim);
            norm_case(check, rows, m.q_rank);
            table_case(check, rows, m.rope_dim / 2);
            rotate_case(check, rows, &m, m.heads, false);
            rotate_case(check, rows, &m, 1, true);
            gather_case(check, rows, &m);
            gate_case(check, rows, &m, i % 2 == 0);
        }
    }
    // wider than a block's threads and the mixes' sums reach in one turn
    struct check_model wide = {.name = "wide", .dim = 10272, .vocabulary = 7};
    embed_case(check, 3, &wide);
    mix_case(check, 3, &wide);
    collapse_case(check, 3, &wide, 3 * wide.dim);
    update_case(check, 3, &wide);
    norm_case(check, 3, wide.dim);
    gate_case(check, 3, &wide, true);
}

/* A case whose name is its rows; false when left out. */
static bool bench_case(struct check *check, const char *op, int32_t rows) {
    return check_case(check, op, "%d rows", rows);
}

void bench_stream(struct check *check) {
    static const int32_t counts[] = {1, 8, 64, 4096};
    struct check_model m = check_model(check, CHECK_RELEASE);
    double d = m.dim;
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int32_t rows = check->emulated ? 1 + (int32_t)i : counts[i];
        double r = rows;
        if (bench_case(check, "embed", rows)) {
            struct embed_op op = make_embed(check, rows, &m);
            CHECK_BENCH(check, embed, op, r * d * 2 * (1 + C), 0);
        }
        if (bench_case(check, "stream_mix", rows)) {
            struct stream_mix_op op = make_mix(check, rows, m.dim);
            CHECK_BENCH(check, stream_mix, op, r * d * 2 * C + 24 * C * d * 4, 0);
        }
        if (bench_case(check, "stream_collapse", rows)) {
            struct stream_collapse_op op = make_collapse(check, rows, m.dim, -1);
            CHECK_BENCH(check, stream_collapse, op, r * d * 2 * (C + 1), 0);
        }
        if (bench_case(check, "stream_update", rows)) {
            struct stream_update_op op = make_update(check, rows, m.dim);
            CHECK_BENCH(check, stream_update, op, r * d * 2 * (2 * C + 1), 0);
        }
        if (bench_case(check, "norm", rows)) {
            struct norm_op op = make_norm(check, rows, m.dim);
            CHECK_BENCH(check, norm, op, r * d * 4, 0);
        }
        if (bench_case(check, "rope_table", rows)) {
            struct rope_table_op op = make_table(check, rows, m.rope_dim / 2);
            CHECK_BENCH(check, rope_table, op, r * m.rope_dim * 4, 0);
        }
        if (bench_case(check, "rotate", rows)) {
            struct rotate_op op = make_rotate(check, rows, m.heads, m.head_dim, m.rope_dim);
            CHECK_BENCH(check, rotate, op, r * m.heads * m.rope_dim * 4, 0);
        }
        if (bench_case(check, "engram_gather", rows)) {
            struct engram_gather_op op = make_gather(check, rows, &m, 1 << 20);
            double gathered = r * m.engram_columns * m.engram_dim;
            CHECK_BENCH(check, engram_gather, op, gathered * (3 + 1.0 / 32), 0);
        }
        if (bench_case(check, "engram_gate", rows)) {
            struct engram_gate_op op = make_gate(check, rows, m.dim, false);
            CHECK_BENCH(check, engram_gate, op, r * d * 2 * (3 * C + 1) + 2 * C * d * 2, 0);
        }
    }
}
