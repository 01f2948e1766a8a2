/* index_select: scores against the CPU, selections and pools exact given the device's own scores,
 * counters as the CPU's, and the same bits however rows are batched, cut and tiled. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

CHECK_CALL(index_select)

#define SEGMENTS_MAX 16
#define TIE_KINDS    4

enum contents {
    PLAIN, /* keys and queries as check_caches fills them */
    WIDE,  /* scales over 2^-30 to 2^30 */
    TIES,  /* keys repeat, so that scores do */
    ZERO   /* all scores are zero */
};

struct shape {
    const char *name;
    int32_t heads, dim, topk, ratio, pool_blocks, pool_block_entries;
    enum index_mode mode;
    enum contents contents;
    bool is_timed; /* no scores asked for, nothing counted */
    int32_t segments;
    struct row_segment segment[SEGMENTS_MAX]; /* .row is set from the counts */
};

struct index_case {
    const struct shape *shape;
    struct index_select_op op; /* with scores */
    int32_t rows;
    int32_t gap_row; /* of no segment */
    size_t selected_bytes, pool_bytes;
};

/* ---- inputs ---- */

static uint8_t random_scale(struct check *check, enum contents contents) {
    return (uint8_t)(contents == WIDE ? 97 + check_below(check, 61) : 123 + check_below(check, 5));
}

static void fill_keys(
    struct check *check, const struct shape *shape, const struct check_caches *caches, int32_t s
) {
    const struct kv_source_layout *source = &caches->source;
    const struct row_segment *segment = &shape->segment[s];
    size_t code_bytes = (size_t)shape->dim / 2;
    size_t scale_bytes = (size_t)shape->dim / 32;
    int32_t entries = (segment->position + segment->count) / shape->ratio;
    uint8_t *const *blocks = caches->views[s].blocks;
    for (int32_t e = 0; e < entries; e++) {
        size_t at = (size_t)(e % source->entries);
        uint8_t *block = blocks[e / source->entries];
        uint8_t *codes = block + source->index_code_offset + at * code_bytes;
        uint8_t *scales = block + source->index_scale_offset + at * scale_bytes;
        if (shape->contents == TIES && e >= TIE_KINDS) {
            size_t kind = (size_t)(e * 7 % TIE_KINDS);
            memcpy(codes, blocks[0] + source->index_code_offset + kind * code_bytes, code_bytes);
            memcpy(
                scales, blocks[0] + source->index_scale_offset + kind * scale_bytes, scale_bytes
            );
        }
        for (size_t i = 0; shape->contents == WIDE && i < scale_bytes; i++) {
            scales[i] = random_scale(check, WIDE);
        }
    }
}

static void make_queries(struct check *check, struct index_case *c) {
    const struct shape *shape = c->shape;
    size_t width = (size_t)(shape->heads * shape->dim);
    uint8_t *codes = check_input(check, c->rows, width / 2);
    uint8_t *scales = check_input(check, c->rows, width / 32);
    check_fill_bytes(check, codes, (size_t)c->rows * width / 2);
    for (size_t i = 0; i < (size_t)c->rows * width / 32; i++) {
        scales[i] = random_scale(check, shape->contents);
    }
    c->op.query_codes = codes;
    c->op.query_scales = scales;
    c->op.head_weights =
        check_normals_bf16(check, c->rows, shape->heads, shape->contents == ZERO ? 0.0F : 1.0F);
}

static int32_t visible_of(const struct shape *shape, const struct row_segment *segment, int32_t r) {
    return (segment->position + r + 1) / shape->ratio;
}

static int compare_ints(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Pools as another layer would have published them: the newest block and random others. */
static void make_pools(struct check *check, struct index_case *c) {
    const struct shape *shape = c->shape;
    int32_t size = shape->pool_block_entries;
    int32_t *pool = check_input(check, c->rows, c->pool_bytes / (size_t)c->rows);
    int32_t *count = check_input(check, c->rows, sizeof *count);
    for (int32_t s = 0; s < shape->segments; s++) {
        const struct row_segment *segment = &shape->segment[s];
        for (int32_t r = 0; r < segment->count; r++) {
            int32_t row = segment->row + r;
            int32_t blocks = (visible_of(shape, segment, r) + size - 1) / size;
            int32_t kept = blocks < shape->pool_blocks ? blocks : shape->pool_blocks;
            int32_t *to = pool + (size_t)row * (size_t)shape->pool_blocks;
            bool *taken = calloc((size_t)blocks + 1, sizeof *taken);
            if (taken == NULL) {
                check_stop("out of memory");
            }
            for (int32_t i = 0; i < shape->pool_blocks; i++) {
                int32_t b = i < kept ? blocks - 1 - i : -1;
                if (i > 0 && i < kept && kept < blocks) {
                    do {
                        b = check_below(check, blocks);
                    } while (taken[b]);
                }
                to[i] = b;
                if (b >= 0) {
                    taken[b] = true;
                }
            }
            qsort(to, (size_t)kept, sizeof *to, compare_ints);
            count[row] = kept;
            free(taken);
        }
    }
    c->op.pool = pool;
    c->op.pool_count = count;
}

static void make_case(struct check *check, struct index_case *c, struct shape *shape) {
    int32_t tokens[SEGMENTS_MAX];
    int32_t longest = 0;
    *c = (struct index_case){.shape = shape, .gap_row = -1};
    for (int32_t s = 0; s < shape->segments; s++) {
        struct row_segment *segment = &shape->segment[s];
        tokens[s] = segment->position + segment->count;
        longest = tokens[s] > longest ? tokens[s] : longest;
        segment->row = c->rows;
        c->rows += segment->count;
        if (s == 1) { // a row that belongs to nobody
            c->gap_row = c->rows++;
        }
    }
    struct check_caches_options options = {
        .sequences = shape->segments,
        .ratio = shape->ratio,
        .dim = 32,
        .index_dim = shape->dim,
        .window = 1,
        .tokens = tokens,
        .read_only = true,
    };
    struct check_caches caches = check_caches(check, &options);
    for (int32_t s = 0; s < shape->segments; s++) {
        fill_keys(check, shape, &caches, s);
    }
    c->selected_bytes = (size_t)c->rows * (size_t)shape->topk * sizeof(int32_t);
    c->pool_bytes = (size_t)c->rows * (size_t)shape->pool_blocks * sizeof(int32_t);
    c->op = (struct index_select_op){
        .heads = shape->heads,
        .dim = shape->dim,
        .topk = shape->topk,
        .mode = shape->mode,
        .pool_blocks = shape->pool_blocks,
        .pool_block_entries = shape->pool_block_entries,
        .source = caches.source,
        .views = caches.views,
        .head_scale = (float)(1.0 / sqrt((double)shape->heads * shape->dim)),
        .scores_stride = longest / shape->ratio + 3,
    };
    c->op.segments = check_segments(check, shape->segment, shape->segments);
    make_queries(check, c);
    if (shape->mode == INDEX_WITHIN_POOL) {
        make_pools(check, c);
    } else if (shape->mode == INDEX_FULL_PUBLISH) {
        c->op.pool = check_output(check, c->rows, c->pool_bytes / (size_t)c->rows);
        c->op.pool_count = check_output(check, c->rows, sizeof(int32_t));
    }
    c->op.selected = check_output(check, c->rows, c->selected_bytes / (size_t)c->rows);
    c->op.selected_count = check_output(check, c->rows, sizeof(int32_t));
    if (shape->is_timed) {
        return;
    }
    c->op.counters = check_output(check, CHECK_SHARED, sizeof *c->op.counters);
    memset(c->op.counters, 0, sizeof *c->op.counters);
    size_t stride = (size_t)c->op.scores_stride;
    c->op.scores = check_output(check, c->rows, stride * sizeof(float));
}

/* ---- what must come out ---- */

struct candidate {
    float score;
    int32_t id;
};

static int better_first(const void *a, const void *b) {
    const struct candidate *x = a;
    const struct candidate *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id ? 1 : 0;
}

/* The `wanted` best ids ascending, -1 behind them, by sorting; returns how many. */
static int32_t
choose(struct candidate *candidates, int32_t count, int32_t wanted, int32_t *expected) {
    qsort(candidates, (size_t)count, sizeof *candidates, better_first);
    int32_t kept = count < wanted ? count : wanted;
    for (int32_t i = 0; i < wanted; i++) {
        expected[i] = i < kept ? candidates[i].id : -1;
    }
    qsort(expected, (size_t)kept, sizeof *expected, compare_ints);
    return kept;
}

/* How many rows differ from the selection that the device's scores ask for. */
static int32_t wrong_row(
    struct check *check,
    const struct index_case *c,
    int32_t row,
    int32_t visible,
    struct candidate *candidates,
    int32_t *expected
) {
    const struct shape *shape = c->shape;
    const float *scores =
        check_got(check, c->op.scores + (size_t)row * (size_t)c->op.scores_stride);
    int32_t count = 0;
    for (int32_t g = 0; g < c->op.scores_stride; g++) {
        if (scores[g] > -INFINITY) {
            candidates[count++] = (struct candidate){scores[g], g};
        }
    }
    int32_t wrong = 0;
    int32_t kept = choose(candidates, count, shape->topk, expected);
    size_t at = (size_t)row * (size_t)shape->topk;
    wrong += memcmp(check_got(check, c->op.selected + at), expected, (size_t)shape->topk * 4) != 0;
    wrong += *(const int32_t *)check_got(check, c->op.selected_count + row) != kept;
    if (shape->mode == INDEX_FULL_PUBLISH) {
        int32_t size = shape->pool_block_entries;
        int32_t blocks = (visible + size - 1) / size;
        for (int32_t b = 0; b < blocks; b++) {
            candidates[b] = (struct candidate){b == blocks - 1 ? INFINITY : -INFINITY, b};
            for (int32_t g = b * size; g < visible && g < (b + 1) * size; g++) {
                candidates[b].score = fmaxf(candidates[b].score, scores[g]);
            }
        }
        kept = choose(candidates, blocks, shape->pool_blocks, expected);
        at = (size_t)row * (size_t)shape->pool_blocks;
        size_t bytes = (size_t)shape->pool_blocks * sizeof(int32_t);
        wrong += memcmp(check_got(check, c->op.pool + at), expected, bytes) != 0;
        wrong += *(const int32_t *)check_got(check, c->op.pool_count + row) != kept;
    }
    return wrong;
}

static void check_selections(struct check *check, const struct index_case *c) {
    const struct shape *shape = c->shape;
    int32_t most = shape->topk > shape->pool_blocks ? shape->topk : shape->pool_blocks;
    struct candidate *candidates =
        check_host(check, ((size_t)c->op.scores_stride + 1) * sizeof *candidates);
    int32_t *expected = check_host(check, (size_t)most * sizeof *expected);
    int32_t wrong = 0;
    for (int32_t s = 0; s < shape->segments; s++) {
        const struct row_segment *segment = &shape->segment[s];
        for (int32_t r = 0; r < segment->count; r++) {
            int32_t visible = visible_of(shape, segment, r);
            wrong += wrong_row(check, c, segment->row + r, visible, candidates, expected);
        }
    }
    check_report(check, wrong == 0, "selections as the scores ask: %d wrong lists", wrong);
}

/* Dots of a head are equal to the bit, the sum over heads has another order: in either sum each of
 * up to I additions errs by 2^-24 of a sum that is at most I^1/2 times the rms of the scores or so. */
static void check_scores(struct check *check, const struct index_case *c) {
    double limit = 2 * pow(c->shape->heads, 1.5) * 0x1p-24;
    double worst = 0;
    int32_t misplaced = 0; // infinite on one side only
    for (int32_t row = 0; row < c->rows; row++) {
        const float *wanted = c->op.scores + (size_t)row * (size_t)c->op.scores_stride;
        const float *got = check_got(check, wanted);
        double squares = 0;
        double error = 0;
        int32_t count = 0;
        for (int32_t g = 0; g < c->op.scores_stride && row != c->gap_row; g++) {
            if (isinf(wanted[g]) || isinf(got[g])) {
                misplaced += wanted[g] != got[g] ? 1 : 0;
            } else {
                squares += (double)wanted[g] * (double)wanted[g];
                error = fmax(error, fabs((double)wanted[g] - (double)got[g]));
                misplaced += isnan(got[g]) ? 1 : 0;
                count++;
            }
        }
        double rms = count > 0 ? sqrt(squares / count) : 0;
        worst = fmax(worst, error > 0 ? error / rms : 0);
    }
    check_report(
        check,
        worst <= limit && misplaced == 0,
        "scores: worst %.2f of %.1e rms, %d infinite on one side",
        worst / limit,
        limit,
        misplaced
    );
}

/* ---- identity ---- */

/* Segments that begin with the case's first-th one. */
static void enqueue_part(
    struct check *check,
    struct index_select_op op,
    int32_t first,
    const struct row_segment *segments,
    int32_t count
) {
    op.segments = check_segments(check, segments, count);
    op.views += first;
    CHECK_ENQUEUE(check, index_select, op);
}

static void check_identity(struct check *check, const struct index_case *c) {
    const struct shape *shape = c->shape;
    check_restore(check);
    for (int32_t s = 0; s < shape->segments; s++) {
        struct row_segment all = shape->segment[s];
        for (int32_t from = 0, count = 1; from < all.count; from += count, count = 2 * count + 1) {
            count = count < all.count - from ? count : all.count - from;
            struct row_segment part = {all.row + from, count, all.position + from};
            enqueue_part(check, c->op, s, &part, 1);
        }
    }
    check_identical(check, "in chunks of 1, 3, 7, ... rows");
    check_restore(check);
    int32_t half = shape->segments / 2;
    enqueue_part(check, c->op, half, shape->segment + half, shape->segments - half);
    enqueue_part(check, c->op, 0, shape->segment, half);
    check_identical(check, "in two batches");
}

static void run_case(struct check *check, struct shape shape) {
    static const char *const modes[] = {"full", "publish", "within"};
    const char *mode = modes[shape.mode];
    if (!check_case(check, "index_select", "%s %s /%d", shape.name, mode, shape.ratio)) {
        return;
    }
    struct index_case c;
    make_case(check, &c, &shape);
    CHECK_RUN(check, index_select, c.op);
    check_scores(check, &c);
    check_selections(check, &c);
    check_bits(check, "counters", c.op.counters, sizeof *c.op.counters);
    check_identity(check, &c);
    // Rows that need no scores are not scored when nobody asks for them: the same selection.
    struct index_select_op quiet = c.op;
    quiet.scores = NULL;
    check_restore(check);
    CHECK_ENQUEUE(check, index_select, quiet);
    check_identical_part(check, "without scores: selected", c.op.selected, c.selected_bytes);
    if (shape.mode == INDEX_FULL_PUBLISH) {
        check_identical_part(check, "without scores: pool", c.op.pool, c.pool_bytes);
    }
    memset(c.op.counters, 0, sizeof *c.op.counters);
    CHECK_RUN(check, index_select, quiet);
    check_bits(check, "counters without scores", c.op.counters, sizeof *c.op.counters);
}

/* A shape of each mode and ratio that the model has, with decode rows and runs of rows. */
static struct shape shape_of(struct check *check, int32_t index) {
    struct check_model m = check_model(check, index);
    struct shape shape = {
        .name = m.name,
        .heads = m.index_heads,
        .dim = m.index_dim,
        .topk = m.topk,
        .ratio = 1,
        .pool_blocks = check->emulated && m.pool_blocks > 64 ? 64 : m.pool_blocks,
        .pool_block_entries = m.pool_block_entries,
    };
    return shape;
}

static void set_segments(
    struct shape *shape, const char *name, const struct row_segment *segments, int32_t count
) {
    shape->name = name;
    shape->segments = count;
    memcpy(shape->segment, segments, (size_t)count * sizeof *segments);
}

static void model_cases(struct check *check, int32_t index) {
    struct shape shape = shape_of(check, index);
    int32_t k = shape.topk;
    int32_t far = check->emulated ? 2300 : index == CHECK_RELEASE ? 200000 : 20000;
    // one row per sequence: nothing visible at ratio 2, K entries, K + 1, borders of blocks
    const struct row_segment decode[] = {
        {0, 1, 0},
        {0, 1, k - 1},
        {0, 0, 5},
        {0, 1, k},
        {0, 1, 2 * k},
        {0, 1, 126},
        {0, 1, 127},
        {0, 1, 128},
        {0, 1, 255},
        {0, 1, far},
    };
    const struct row_segment runs[] = {{0, 21, k - 9}, {0, 0, 7}, {0, 37, 0}, {0, 5, far - 64}};
    char name[40];
    // The emulation is slow: the models in the middle have one mode each; sources that pools are made
    // of have ratio 1.
    bool few = check->emulated && index != 0 && index != CHECK_RELEASE;
    for (int32_t mode = INDEX_FULL; mode <= INDEX_WITHIN_POOL; mode++) {
        int32_t ratios = check->emulated && mode != INDEX_FULL ? 1 : 2;
        for (shape.ratio = 1; shape.ratio <= ratios && (!few || mode == index); shape.ratio++) {
            shape.mode = (enum index_mode)mode;
            const char *model = check_model(check, index).name;
            snprintf(name, sizeof name, "%s decode", model);
            set_segments(&shape, name, decode, COUNT_OF(decode));
            run_case(check, shape);
            snprintf(name, sizeof name, "%s rows", model);
            set_segments(&shape, name, runs, COUNT_OF(runs));
            run_case(check, shape);
        }
    }
}

static void content_cases(struct check *check) {
    static const char *const names[] = {"plain", "wide", "ties", "zero"};
    int32_t far = check->emulated ? 1500 : 150000;
    const struct row_segment segments[] = {
        {0, 1, far}, {0, 0, 0}, {0, 9, far - 200}, {0, 3, 700}, {0, 1, 300}};
    for (int32_t contents = WIDE; contents <= ZERO; contents++) {
        for (int32_t mode = INDEX_FULL; mode <= INDEX_WITHIN_POOL; mode++) {
            struct shape shape = shape_of(check, contents == WIDE ? CHECK_RELEASE : 2);
            shape.mode = (enum index_mode)mode;
            shape.contents = (enum contents)contents;
            set_segments(&shape, names[contents], segments, COUNT_OF(segments));
            run_case(check, shape);
        }
    }
    // widths and numbers of heads that no model has, blocks of a pool that four does not divide
    struct shape odd = {
        .heads = 11, .dim = 96, .topk = 20, .ratio = 1, .pool_blocks = 9, .pool_block_entries = 7};
    for (int32_t mode = INDEX_FULL; mode <= INDEX_WITHIN_POOL; mode++) {
        odd.mode = (enum index_mode)mode;
        set_segments(&odd, "11 heads of 96", segments, COUNT_OF(segments));
        run_case(check, odd);
    }
}

void check_index(struct check *check) {
    for (int32_t model = 0; model < CHECK_MODELS; model++) {
        model_cases(check, model);
    }
    content_cases(check);
}

/* ---- time ---- */

static void bench_case(
    struct check *check, enum index_mode mode, int32_t sequences, int32_t rows, int32_t position
) {
    struct shape shape = shape_of(check, CHECK_RELEASE);
    static const char *const modes[] = {"full", "publish", "within"};
    if (!check_case(
            check, "index_select", "%s %d x %d at %d", modes[mode], sequences, rows, position
        )) {
        return;
    }
    shape.mode = mode;
    shape.is_timed = true;
    // one cache for all: enough that the last level of caches does not hold it
    shape.segments = 1;
    shape.segment[0] = (struct row_segment){0, sequences * rows, position};
    struct index_case c;
    make_case(check, &c, &shape);
    struct row_segment *segments = check_host(check, (size_t)sequences * sizeof *segments);
    struct sequence_view *views =
        check_pointers(check, CHECK_SHARED, (size_t)sequences * sizeof *views);
    for (int32_t s = 0; s < sequences; s++) {
        segments[s] = (struct row_segment){s * rows, rows, position};
        views[s] = c.op.views[0];
    }
    c.op.segments = check_segments(check, segments, sequences);
    c.op.views = views;
    double pool = (double)shape.pool_blocks * shape.pool_block_entries;
    double entries = mode == INDEX_WITHIN_POOL && pool < position ? pool : position;
    double pairs = (double)sequences * rows * entries;
    struct check_bench bench = {.call = call_index_select, .ops = &c.op, .op_bytes = sizeof c.op};
    bench.count = 1;
    bench.bytes = entries * sequences * (shape.dim / 2 + shape.dim / 32) *
                  (mode == INDEX_WITHIN_POOL ? rows : 1);
    bench.operations = pairs * shape.heads * shape.dim * 2;
    check_bench(check, &bench);
}

void bench_index(struct check *check) {
    int32_t million = check->limits.context - 1;
    bench_case(check, INDEX_FULL, 1, 1, million);
    bench_case(check, INDEX_FULL_PUBLISH, 1, 1, million);
    for (int32_t mode = INDEX_FULL; mode <= INDEX_WITHIN_POOL; mode++) {
        bench_case(check, (enum index_mode)mode, 64, 1, 4096);
    }
    bench_case(check, INDEX_FULL, 64, 1, 65536);
    bench_case(check, INDEX_FULL_PUBLISH, 64, 1, 65536);
    bench_case(check, INDEX_WITHIN_POOL, 64, 1, 65536);
    bench_case(check, INDEX_FULL, 64, 1, million);
    bench_case(check, INDEX_FULL, 1, 4096, 131072);
    bench_case(check, INDEX_WITHIN_POOL, 1, 4096, 131072);
}
