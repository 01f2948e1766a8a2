/* Quantisers and records: every one equals the CPU's to the bit. */
#include "check.h"

CHECK_CALL(quantize)
CHECK_CALL(window_pack)
CHECK_CALL(index_quantize)
CHECK_CALL(entry_store)

/* What the rows of a case are made of. */
enum contents {
    NORMALS,
    WIDE,       /* finite values of all exponents */
    EVERY_VALUE /* each finite bf16 value is the largest of a group of 32 and lies below one */
};

static const char *const contents_names[] = {"normals", "wide", "every bf16"};

#define EVERY_ROWS 2048 /* of 1,024 channels: 65,536 groups */
#define EVERY_DIM  1024

static void fill_every_value(uint16_t *x) {
    for (uint32_t group = 0; group < 65536; group++) {
        uint16_t value = (uint16_t)((group & 0x7f80U) == 0x7f80U ? group & 0x807fU : group);
        uint16_t *to = x + (size_t)group * 32;
        to[0] = value;
        to[1] = (uint16_t)(value ^ 0x8000U);
        for (int c = 2; c < 32; c++) { // the value with smaller exponents
            int exponent = ((value >> 7) & 255) - c / 2;
            to[c] = (uint16_t)((value & 0x807fU) | (uint32_t)(exponent < 0 ? 0 : exponent) << 7);
        }
    }
}

static const uint16_t *
make_rows(struct check *check, int32_t rows, int32_t columns, enum contents contents) {
    if (contents == NORMALS) {
        return check_normals_bf16(check, rows, columns, 1.0F);
    }
    if (contents == WIDE) {
        return check_wide_bf16(check, rows, columns);
    }
    ASSERT(rows == EVERY_ROWS && columns == EVERY_DIM);
    uint16_t *x = check_input(check, rows, (size_t)columns * sizeof *x);
    fill_every_value(x);
    return x;
}

static struct quantize_op
make_quantize(struct check *check, int32_t rows, int32_t dim, enum contents contents) {
    struct quantize_op op = {.rows = rows, .dim = dim};
    op.x = make_rows(check, rows, dim, contents);
    op.y.codes = check_output(check, rows, (size_t)dim);
    op.y.scales = check_output(check, rows, (size_t)dim / 32);
    return op;
}

static void quantize_case(struct check *check, int32_t rows, int32_t dim, enum contents contents) {
    if (!check_case(check, "quantize", "[%d, %d] %s", rows, dim, contents_names[contents])) {
        return;
    }
    struct quantize_op op = make_quantize(check, rows, dim, contents);
    CHECK_RUN(check, quantize, op);
    check_bits(check, "codes", op.y.codes, check_output_bytes(check, op.y.codes));
    check_bits(check, "scales", op.y.scales, check_output_bytes(check, op.y.scales));
    CHECK_ROWS(check, quantize, op);
}

static struct window_pack_op
make_pack(struct check *check, int32_t rows, int32_t dim, enum contents contents) {
    struct window_pack_op op = {.rows = rows, .dim = dim};
    op.x = make_rows(check, rows, dim, contents);
    op.records = check_output(check, rows, window_record_bytes(dim));
    return op;
}

static void pack_case(struct check *check, int32_t rows, int32_t dim, enum contents contents) {
    if (!check_case(check, "window_pack", "[%d, %d] %s", rows, dim, contents_names[contents])) {
        return;
    }
    struct window_pack_op op = make_pack(check, rows, dim, contents);
    CHECK_RUN(check, window_pack, op);
    check_bits(check, "records", op.records, check_output_bytes(check, op.records));
    CHECK_ROWS(check, window_pack, op);
}

static struct index_quantize_op
make_index(struct check *check, int32_t rows, int32_t heads, int32_t dim, enum contents contents) {
    struct index_quantize_op op = {.rows = rows, .heads = heads, .dim = dim};
    size_t width = (size_t)heads * (size_t)dim;
    op.x = make_rows(check, rows, heads * dim, contents);
    op.codes = check_output(check, rows, width / 2);
    op.scales = check_output(check, rows, width / 32);
    return op;
}

static void
index_case(struct check *check, int32_t rows, int32_t heads, int32_t dim, enum contents contents) {
    if (!check_case(
            check, "index_quantize", "[%d, %d, %d] %s", rows, heads, dim, contents_names[contents]
        )) {
        return;
    }
    struct index_quantize_op op = make_index(check, rows, heads, dim, contents);
    CHECK_RUN(check, index_quantize, op);
    check_bits(check, "codes", op.codes, check_output_bytes(check, op.codes));
    check_bits(check, "scales", op.scales, check_output_bytes(check, op.scales));
    CHECK_ROWS(check, index_quantize, op);
}

#define SEQUENCES 4

struct store {
    struct entry_store_op op;
    uint8_t *blocks;
};

/* An empty segment, one of a single row, rows of no segment, one over several blocks, one of which
 * only a part may be written; or all rows in one. */
static struct store make_store(
    struct check *check,
    int32_t rows, /* at least 4 */
    int32_t dim,
    int32_t index_dim,
    int32_t ratio,
    enum contents contents
) {
    int32_t part = rows / 2;
    int32_t last = rows - part - 2;
    struct row_segment mixed[SEQUENCES] = {
        {0, 0, 12}, {0, 1, 333}, {2, part, 77}, {2 + part, last, 254}};
    struct row_segment all = {0, rows, 0};
    bool whole = contents == EVERY_VALUE;
    const struct row_segment *segments = whole ? &all : mixed;
    int32_t tokens[SEQUENCES];
    int32_t floors[SEQUENCES] = {0, 0, 0, 254 + last / 3};
    struct check_caches_options options = {
        .sequences = whole ? 1 : SEQUENCES,
        .ratio = ratio,
        .dim = dim,
        .index_dim = index_dim,
        .window = 1,
        .tokens = tokens,
        .write_floor = floors};
    for (int32_t s = 0; s < options.sequences; s++) {
        tokens[s] = segments[s].position + segments[s].count;
    }
    struct check_caches caches = check_caches(check, &options);
    struct store store = {.blocks = caches.blocks};
    struct entry_store_op *op = &store.op;
    op->dim = dim;
    op->index_dim = index_dim;
    op->source = caches.source;
    op->segments = check_segments(check, segments, options.sequences);
    op->views = caches.views;
    op->latent = make_rows(check, rows, dim, contents);
    op->key = whole ? op->latent : make_rows(check, rows, index_dim, contents);
    return store;
}

static void store_case(
    struct check *check,
    int32_t rows,
    int32_t dim,
    int32_t index_dim,
    int32_t ratio,
    enum contents contents
) {
    if (!check_case(
            check,
            "entry_store",
            "[%d, %d + %d] ratio %d %s",
            rows,
            dim,
            index_dim,
            ratio,
            contents_names[contents]
        )) {
        return;
    }
    struct store store = make_store(check, rows, dim, index_dim, ratio, contents);
    CHECK_RUN(check, entry_store, store.op);
    check_bits(check, "blocks", store.blocks, check_output_bytes(check, store.blocks));
}

void check_quantize(struct check *check) {
    for (int32_t model = 0; model < CHECK_MODELS; model++) {
        struct check_model m = check_model(check, model);
        int32_t rows;
        for (int32_t i = 0; (rows = check_row_counts(check, model, i)) > 0; i++) {
            enum contents contents = i % 2 == 0 ? NORMALS : WIDE;
            quantize_case(check, rows, m.dim, contents);
            quantize_case(check, rows, m.hidden, contents);
            pack_case(check, rows, m.head_dim, contents);
            index_case(check, rows, m.index_heads, m.index_dim, contents);
            store_case(check, rows + 3, m.head_dim, m.index_dim, 1, contents);
            store_case(check, rows + 3, m.head_dim, m.index_dim, 2, contents);
        }
    }
    quantize_case(check, EVERY_ROWS, EVERY_DIM, EVERY_VALUE);
    pack_case(check, EVERY_ROWS, EVERY_DIM, EVERY_VALUE);
    index_case(check, EVERY_ROWS, EVERY_DIM / 128, 128, EVERY_VALUE);
    store_case(check, EVERY_ROWS, EVERY_DIM, EVERY_DIM, 1, EVERY_VALUE);
    if (!check->emulated) {
        quantize_case(check, 4000, 5120, WIDE);
        store_case(check, 4000, 512, 128, 1, WIDE);
    }
}

void bench_quantize(struct check *check) {
    static const int32_t counts[] = {1, 64, 4096};
    struct check_model m = check_model(check, CHECK_RELEASE);
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int32_t rows = check->emulated ? 4 + (int32_t)i : counts[i];
        double r = rows;
        if (check_case(check, "quantize", "%d rows", rows)) {
            struct quantize_op op = make_quantize(check, rows, m.dim, NORMALS);
            CHECK_BENCH(check, quantize, op, r * m.dim * (3 + 1.0 / 32), 0);
        }
        if (check_case(check, "window_pack", "%d rows", rows)) {
            struct window_pack_op op = make_pack(check, rows, m.head_dim, NORMALS);
            CHECK_BENCH(check, window_pack, op, r * m.head_dim * (3 + 1.0 / 32), 0);
        }
        if (check_case(check, "index_quantize", "%d rows", rows)) {
            struct index_quantize_op op =
                make_index(check, rows, m.index_heads, m.index_dim, NORMALS);
            CHECK_BENCH(
                check, index_quantize, op, r * m.index_heads * m.index_dim * (2.5 + 1.0 / 32), 0
            );
        }
        if (check_case(check, "entry_store", "%d rows", rows)) {
            int32_t stored = rows < 4 ? 4 : rows;
            struct store store = make_store(check, stored, m.head_dim, m.index_dim, 1, NORMALS);
            CHECK_BENCH(
                check,
                entry_store,
                store.op,
                stored * (m.head_dim * 2.5625 + m.index_dim * 2.53125),
                0
            );
        }
    }
}
