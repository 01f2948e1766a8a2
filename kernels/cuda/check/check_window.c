/* Ring commits, pooled pairs, rows that stay: against the CPU, and the same bits in chunks. */
#include "check.h"

CHECK_CALL(window_commit)
CHECK_CALL(compress_pool)
CHECK_CALL(keep_rows)

#define SEQUENCES 5

/* Segments of `counts` rows at `positions`, `gap` rows apart; returns how many rows. */
static int32_t lay_out(
    struct row_segment *segments,
    int32_t sequences,
    const int32_t *counts,
    const int32_t *positions,
    int32_t gap
) {
    int32_t row = 0;
    for (int32_t s = 0; s < sequences; s++) {
        segments[s] = (struct row_segment){row, counts[s], positions[s]};
        row += counts[s] + gap;
    }
    return row;
}

/* Part `part` of all segments in pieces of `step` rows; rows stay where they are. */
static bool
cut(const struct row_segment *whole,
    int32_t sequences,
    int32_t part,
    int32_t step,
    struct row_segment *to) {
    bool some = false;
    for (int32_t s = 0; s < sequences; s++) {
        int32_t skip = part * step < whole[s].count ? part * step : whole[s].count;
        int32_t rest = whole[s].count - skip;
        to[s] = (struct row_segment
        ){whole[s].row + skip, rest < step ? rest : step, whole[s].position + skip};
        some = some || rest > 0;
    }
    return some;
}

/* Runs an op with `segments` of its own in three pieces at most, on what was there first. */
static void run_in_pieces(
    struct check *check, check_call *call, void *op, size_t op_bytes, struct row_segments *segments
) {
    const struct row_segments whole = *segments;
    struct row_segment parts[SEQUENCES];
    int32_t longest = 0;
    for (int32_t s = 0; s < whole.count; s++) {
        longest = whole.host[s].count > longest ? whole.host[s].count : longest;
    }
    int32_t step = longest / 3 + 1;
    for (int32_t part = 0; cut(whole.host, whole.count, part, step, parts); part++) {
        *segments = check_segments(check, parts, whole.count);
        if (part == 0) {
            check_restore(check);
        }
        check_enqueue(check, call, op, op_bytes);
    }
    *segments = whole;
}

static void
commit_case(struct check *check, int32_t dim, int32_t window, const int32_t counts[SEQUENCES]) {
    if (!check_case(check, "window_commit", "d %d W %d, %d rows first", dim, window, counts[0])) {
        return;
    }
    static const int32_t positions[SEQUENCES] = {0, 1000, 77, 5, 63};
    struct row_segment segments[SEQUENCES];
    int32_t rows = lay_out(segments, SEQUENCES, counts, positions, 2);
    int32_t tokens[SEQUENCES] = {1, 1, 1, 1, 1};
    struct check_caches_options options = {
        .sequences = SEQUENCES,
        .ratio = 1,
        .dim = dim,
        .index_dim = 32,
        .window = window,
        .tokens = tokens,
    };
    struct check_caches caches = check_caches(check, &options);
    struct window_commit_op op = {.window = window, .dim = dim};
    op.segments = check_segments(check, segments, SEQUENCES);
    op.views = caches.views;
    op.records = check_window_records(check, rows, dim);
    CHECK_RUN(check, window_commit, op);
    size_t bytes = (size_t)(SEQUENCES * window) * window_record_bytes(dim);
    check_bits(check, "rings", caches.rings, bytes);
    run_in_pieces(check, call_window_commit, &op, sizeof op, &op.segments);
    check_identical(check, "in pieces");
}

static void
pool_case(struct check *check, int32_t dim, int32_t gap, const int32_t counts[SEQUENCES]) {
    if (!check_case(check, "compress_pool", "d %d gap %d, %d rows first", dim, gap, counts[0])) {
        return;
    }
    static const int32_t positions[SEQUENCES] = {0, 1001, 77, 4, 63};
    struct row_segment segments[SEQUENCES];
    int32_t rows = lay_out(segments, SEQUENCES, counts, positions, gap);
    int32_t tokens[SEQUENCES] = {1, 1, 1, 1, 1};
    struct check_caches_options options = {
        .sequences = SEQUENCES,
        .ratio = 2,
        .dim = dim,
        .index_dim = 32,
        .window = 1,
        .tokens = tokens,
    };
    struct check_caches caches = check_caches(check, &options);
    struct compress_pool_op op = {.dim = dim};
    op.segments = check_segments(check, segments, SEQUENCES);
    op.views = caches.views;
    op.kv = check_normals_f32(check, rows, dim, 1.0F);
    op.score = check_normals_f32(check, rows, dim, 8.0F);
    op.latent = check_output(check, rows, (size_t)dim * sizeof *op.latent);
    CHECK_RUN(check, compress_pool, op);
    // Exponentials are off by 2 ulp of FP32 at most: one step of bf16, or a difference of two
    // values that cancel.
    struct check_limit limit = {.ulps = 1, .relative = 0x1p-20F};
    check_bf16(check, "latent", op.latent, dim, limit);
    size_t bytes = (size_t)(SEQUENCES * 2) * (size_t)dim * sizeof(float);
    check_bits(check, "pending", caches.pending, bytes);
    run_in_pieces(check, call_compress_pool, &op, sizeof op, &op.segments);
    check_identical_part(check, "latent in pieces", op.latent, (size_t)rows * (size_t)dim * 2);
    for (int32_t s = 0; s < SEQUENCES; s++) { // pairs that are complete leave theirs behind
        if (segments[s].count > 0 && (segments[s].position + segments[s].count) % 2 != 0) {
            const float *pending = caches.pending + (size_t)s * 2 * (size_t)dim;
            check_identical_part(check, "pending", pending, 2 * (size_t)dim * sizeof *pending);
        }
    }
}

/* Sequence s keeps the last kept[s] of its counts[s] rows; the rest moves together from row `first`
 * on, `gap` apart. */
struct keep_shape {
    int32_t counts[SEQUENCES], kept[SEQUENCES];
    int32_t first, gap;
};

static void keep_case(struct check *check, size_t row_bytes, const struct keep_shape *shape) {
    static const int32_t positions[SEQUENCES] = {0, 9, 0, 300, 7};
    struct row_segment from[SEQUENCES];
    struct row_segment to[SEQUENCES];
    int32_t rows = shape->first + lay_out(from, SEQUENCES, shape->counts, positions, shape->gap);
    int32_t row = shape->first;
    int32_t stay = 0;
    for (int32_t s = 0; s < SEQUENCES; s++) {
        int32_t skip = shape->counts[s] - shape->kept[s];
        from[s].row += shape->first;
        to[s] = (struct row_segment){row, shape->kept[s], from[s].position + skip};
        row += shape->kept[s];
        stay += shape->kept[s];
    }
    if (!check_case(check, "keep_rows", "%d of %d rows of %zu bytes", stay, rows, row_bytes)) {
        return;
    }
    struct keep_rows_op op = {.row_bytes = row_bytes};
    op.from = check_segments(check, from, SEQUENCES);
    op.to = check_segments(check, to, SEQUENCES);
    op.rows = check_output(check, rows, row_bytes);
    check_fill_bytes(check, op.rows, (size_t)rows * row_bytes);
    CHECK_RUN(check, keep_rows, op);
    // what lies behind the rows that stay is nobody's: only those are compared
    const unsigned char *kept = op.rows;
    check_bits(check, "rows", kept, (size_t)(shape->first + stay) * row_bytes);
}

void check_window(struct check *check) {
    static const int32_t counts[][SEQUENCES] = {
        {1, 1, 1, 1, 1}, {7, 1, 0, 30, 2}, {150, 0, 16, 1, 9}, {20, 129, 3, 0, 64}};
    static const int32_t dims[] = {64, 96, 512};
    static const int32_t windows[] = {16, 32, 128};
    for (size_t d = 0; d < COUNT_OF(dims); d++) {
        for (size_t i = 0; i < COUNT_OF(counts); i++) {
            commit_case(check, dims[d], windows[d], counts[i]);
            pool_case(check, dims[d], i % 2 == 0 ? 0 : 3, counts[i]);
        }
    }
    // segments that move onto rows of the one before, or onto themselves, or not at all
    static const struct keep_shape shapes[] = {
        {{10, 10, 0, 40, 1}, {2, 8, 0, 39, 1}, 0, 0},
        {{3, 20, 5, 2, 30}, {3, 20, 1, 0, 30}, 4, 0},
        {{64, 1, 64, 7, 64}, {1, 1, 1, 1, 1}, 0, 5},
        {{90, 3, 8, 1, 120}, {80, 0, 8, 1, 110}, 1, 2},
    };
    static const size_t row_bytes[] = {5, 20, 99, 160, 1284, 40960};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        for (size_t b = 0; b < COUNT_OF(row_bytes); b++) {
            keep_case(check, row_bytes[b], &shapes[i]);
        }
    }
    // more than one slab of 16 MiB
    keep_case(check, 131072 - 16, &shapes[3]);
}

void bench_window(struct check *check) {
    if (!check_case(check, "keep_rows", "2414 of 4096 rows of 40960 bytes")) {
        return;
    }
    struct row_segment from = {0, 4096, 0};
    struct row_segment to = {0, 2414, 4096 - 2414};
    struct keep_rows_op op = {.row_bytes = 40960};
    op.from = check_segments(check, &from, 1);
    op.to = check_segments(check, &to, 1);
    op.rows = check_output(check, 4096, op.row_bytes);
    struct check_bench bench = {
        .call = call_keep_rows,
        .ops = &op,
        .op_bytes = sizeof op,
        .count = 1,
        .bytes = 2.0 * to.count * (double)op.row_bytes,
    };
    check_bench(check, &bench);
}
