/* The indexer: scores against double, selection and candidate pools from the scores, ties. */
#include "test_kernels_support.h"

#include "kernels/cpu/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct index_case {
    struct index_select_op op;
    struct row_segment segment;
    struct sequence_view view;
    int32_t entries;
    int32_t *out; /* selected, its count, pool, its count */
    size_t out_bytes;
};

struct index_shape {
    int32_t heads, dim, topk, ratio;
    int32_t position, count;
    enum index_mode mode;
    int32_t pool_blocks, pool_block_entries;
    bool ties;
};

static const uint8_t *key_codes(const struct index_case *c, int32_t entry) {
    const struct kv_source_layout *source = &c->op.source;
    return c->view.blocks[entry / source->entries] + source->index_code_offset +
           (size_t)(entry % source->entries) * (size_t)c->op.dim / 2;
}

static const uint8_t *key_scales(const struct index_case *c, int32_t entry) {
    const struct kv_source_layout *source = &c->op.source;
    return c->view.blocks[entry / source->entries] + source->index_scale_offset +
           (size_t)(entry % source->entries) * (size_t)c->op.dim / 32;
}

static void store_keys(struct index_case *c, struct numbers *numbers, int32_t tokens, bool ties) {
    struct kv_source_layout *source = &c->op.source;
    size_t entries = (size_t)source->entries;
    source->main_record_bytes = 18;
    source->index_code_offset = entries * 18;
    source->index_scale_offset = source->index_code_offset + entries * (size_t)c->op.dim / 2;
    int32_t count = tokens / 128 + 1;
    uint8_t **blocks = kernels_memory((size_t)count * sizeof *blocks);
    for (int32_t b = 0; b < count; b++) {
        blocks[b] = kernels_memory(source->index_scale_offset + entries * (size_t)c->op.dim / 32);
    }
    c->view.blocks = blocks;
    uint16_t *keys = kernels_bf16(numbers, (size_t)tokens * (size_t)c->op.dim, 1.0F);
    for (int32_t t = 0; ties && t < tokens; t++) {
        // only four kinds of keys, so that scores repeat
        size_t kind = (size_t)(t / source->ratio * 7 % 4 * source->ratio + source->ratio - 1);
        memcpy(
            keys + (size_t)t * (size_t)c->op.dim,
            keys + kind * (size_t)c->op.dim,
            (size_t)c->op.dim * 2
        );
    }
    struct row_segment all = {0, tokens, 0};
    struct entry_store_op store = {
        .dim = 32,
        .index_dim = c->op.dim,
        .source = *source,
        .segments = row_segments_of(&all, &all, 1),
        .views = &c->view,
        .latent = kernels_bf16(numbers, (size_t)tokens * 32, 1.0F),
        .key = keys,
    };
    struct backend *backend = kernels_open(NULL, 1);
    backend_entry_store(backend, &store);
    backend_close(backend);
}

static void store_queries(struct index_case *c, struct numbers *numbers) {
    size_t count = (size_t)(c->segment.count * c->op.heads * c->op.dim);
    struct index_quantize_op quantize = {
        .rows = c->segment.count,
        .heads = c->op.heads,
        .dim = c->op.dim,
        .x = kernels_bf16(numbers, count, 1.0F),
        .codes = kernels_memory(count / 2),
        .scales = kernels_memory(count / 32),
    };
    struct backend *backend = kernels_open(NULL, 1);
    backend_index_quantize(backend, &quantize);
    backend_close(backend);
    c->op.query_codes = quantize.codes;
    c->op.query_scales = quantize.scales;
    size_t rows = (size_t)c->segment.count;
    c->op.head_weights = kernels_bf16(numbers, rows * (size_t)c->op.heads, 1.0F);
}

static void index_init(struct index_case *c, const struct index_shape *shape) {
    struct numbers numbers = {(uint64_t)(shape->heads * 7 + shape->position)};
    memset(c, 0, sizeof *c);
    c->segment = (struct row_segment){0, shape->count, shape->position};
    c->op = (struct index_select_op){
        .heads = shape->heads,
        .dim = shape->dim,
        .topk = shape->topk,
        .mode = shape->mode,
        .pool_blocks = shape->pool_blocks,
        .pool_block_entries = shape->pool_block_entries,
        .source = {.ratio = shape->ratio, .entries = 128 / shape->ratio},
        .segments = row_segments_of(&c->segment, &c->segment, 1),
        .views = &c->view,
        .head_scale = 1.0F / sqrtf((float)(shape->heads * shape->dim)),
    };
    int32_t tokens = shape->position + shape->count;
    c->entries = tokens / shape->ratio;
    store_keys(c, &numbers, tokens, shape->ties);
    store_queries(c, &numbers);
    size_t rows = (size_t)shape->count;
    size_t selected = rows * (size_t)shape->topk;
    size_t pool = rows * (size_t)shape->pool_blocks;
    c->out_bytes = (selected + pool + 2 * rows) * 4;
    c->out = kernels_memory(c->out_bytes);
    c->op.selected = c->out;
    c->op.selected_count = c->out + selected;
    c->op.pool = c->out + selected + rows;
    c->op.pool_count = c->out + selected + rows + pool;
}

static double score_expected(const struct index_case *c, int32_t row, int32_t entry) {
    const struct index_select_op *op = &c->op;
    const uint8_t *codes = key_codes(c, entry);
    const uint8_t *scales = key_scales(c, entry);
    double score = 0.0;
    for (int32_t head = 0; head < op->heads; head++) {
        double dot = 0.0;
        for (int32_t k = 0; k < op->dim; k++) {
            size_t at = (size_t)((row * op->heads + head) * op->dim + k);
            uint32_t shift = k % 2 == 0 ? 0U : 4U;
            double query =
                (double)e2m1_decode((uint8_t)((uint32_t)op->query_codes[at / 2] >> shift & 15U)) *
                (double)e8m0_decode(op->query_scales[at / 32]);
            double key = (double)e2m1_decode((uint8_t)((uint32_t)codes[k / 2] >> shift & 15U)) *
                         (double)e8m0_decode(scales[k / 32]);
            dot += query * key;
        }
        float weight = bf16_decode(op->head_weights[row * op->heads + head]);
        weight = bf16_round(weight * op->head_scale);
        score += dot > 0.0 ? dot * (double)weight : 0.0;
    }
    return score;
}

static void run_select(struct backend *backend, int32_t step, void *context) {
    const struct index_case *c = context;
    int32_t rows = c->segment.count;
    for (int32_t from = 0; from < rows; from += step) {
        struct row_segment part = {
            from, rows - from < step ? rows - from : step, c->segment.position + from};
        struct index_select_op op = c->op;
        op.segments = row_segments_of(&part, &part, 1);
        backend_index_select(backend, &op);
    }
}

/* The k best of scores among the allowed, by definition: each beats all that are left out. */
static void check_best(
    const float *scores,
    const bool *allowed,
    int32_t count,
    const int32_t *chosen,
    int32_t kept,
    int32_t k
) {
    bool *in = kernels_memory((size_t)count + 1);
    int32_t available = 0;
    for (int32_t i = 0; i < count; i++) {
        available += allowed[i] ? 1 : 0;
    }
    assert_int_equal(kept, available < k ? available : k);
    for (int32_t i = 0; i < kept; i++) {
        assert_true(chosen[i] >= 0 && chosen[i] < count && allowed[chosen[i]]);
        assert_true(i == 0 || chosen[i] > chosen[i - 1]);
        in[chosen[i]] = true;
    }
    for (int32_t i = 0; i < kept; i++) {
        for (int32_t j = 0; j < count; j++) {
            bool loses =
                scores[j] < scores[chosen[i]] || (scores[j] == scores[chosen[i]] && j > chosen[i]);
            assert_true(in[j] || !allowed[j] || loses);
        }
    }
}

/* Block scores with the newest pinned; spec 3.8. */
static void
check_pool(const struct index_case *c, int32_t row, const float *scores, int32_t visible) {
    const struct index_select_op *op = &c->op;
    int32_t size = op->pool_block_entries;
    int32_t blocks = (visible + size - 1) / size;
    float *best = kernels_memory((size_t)(blocks + 1) * sizeof *best);
    bool *allowed = kernels_memory((size_t)blocks + 1);
    for (int32_t b = 0; b < blocks; b++) {
        best[b] = -INFINITY;
        allowed[b] = true;
        for (int32_t g = b * size; g < visible && g < (b + 1) * size; g++) {
            best[b] = fmaxf(best[b], scores[g]);
        }
    }
    best[blocks - 1] = INFINITY;
    const int32_t *pool = op->pool + row * op->pool_blocks;
    check_best(best, allowed, blocks, pool, op->pool_count[row], op->pool_blocks);
    for (int32_t i = op->pool_count[row]; i < op->pool_blocks; i++) {
        assert_int_equal(pool[i], -1);
    }
}

/* Runs once more with scores asked for: the choice must be the same, and right. */
static void check_choice(struct index_case *c, bool check_scores) {
    int32_t rows = c->segment.count;
    int32_t *kept = kernels_memory(c->out_bytes);
    memcpy(kept, c->out, c->out_bytes);
    struct backend *backend = kernels_open(NULL, 2);
    struct index_counters counters = {0};
    c->op.scores_stride = c->entries + 3;
    c->op.scores = kernels_memory((size_t)(rows * c->op.scores_stride) * sizeof(float));
    c->op.counters = &counters;
    backend_index_select(backend, &c->op);
    backend_close(backend);
    kernels_expect_same(c->out, kept, c->out_bytes, "selection with scores");
    uint64_t scored = 0;
    for (int32_t row = 0; row < rows; row++) {
        int32_t visible = (c->segment.position + row + 1) / c->op.source.ratio;
        const float *scores = c->op.scores + row * c->op.scores_stride;
        bool *allowed = kernels_memory((size_t)c->op.scores_stride);
        for (int32_t g = 0; g < c->op.scores_stride; g++) {
            allowed[g] = scores[g] > -INFINITY;
            scored += allowed[g] ? 1 : 0;
            assert_true(g < visible || !allowed[g]);
            if (allowed[g] && check_scores && (g + row) % 5 == 0) {
                float expected = (float)score_expected(c, row, g);
                kernels_expect_near(&scores[g], &expected, 1, 1e-5F, 1e-5F, "index score");
            }
        }
        const int32_t *selected = c->op.selected + row * c->op.topk;
        check_best(
            scores, allowed, c->op.scores_stride, selected, c->op.selected_count[row], c->op.topk
        );
        for (int32_t i = c->op.selected_count[row]; i < c->op.topk; i++) {
            assert_int_equal(selected[i], -1);
        }
        if (c->op.mode == INDEX_FULL_PUBLISH && visible > 0) {
            check_pool(c, row, scores, visible);
        }
        if (c->op.mode == INDEX_WITHIN_POOL) {
            int32_t size = c->op.pool_block_entries;
            for (int32_t g = 0; g < visible; g++) {
                bool in = false;
                for (int32_t i = 0; i < c->op.pool_count[row]; i++) {
                    in = in || c->op.pool[row * c->op.pool_blocks + i] == g / size;
                }
                assert_int_equal(in, allowed[g]);
            }
        }
    }
    assert_int_equal(counters.entries_scored, scored);
    c->op.scores = NULL;
    c->op.counters = NULL;
}

static void check_index(const struct index_shape *shape) {
    struct index_case c;
    index_init(&c, shape);
    kernels_same_everywhere("index select", run_select, &c, c.out, c.out_bytes);
    check_choice(&c, true);
    if (shape->mode == INDEX_FULL_PUBLISH) {
        // a later layer with queries of its own looks inside the pool that was published
        struct numbers numbers = {3};
        size_t rows = (size_t)shape->count;
        size_t pool_bytes = rows * (size_t)shape->pool_blocks * 4;
        int32_t *pool = kernels_memory(pool_bytes);
        int32_t *pool_count = kernels_memory(rows * 4);
        memcpy(pool, c.op.pool, pool_bytes);
        memcpy(pool_count, c.op.pool_count, rows * 4);
        store_queries(&c, &numbers);
        c.op.mode = INDEX_WITHIN_POOL;
        c.op.pool = pool;
        c.op.pool_count = pool_count;
        kernels_same_everywhere("select in pool", run_select, &c, c.out, c.out_bytes);
        check_choice(&c, true);
        kernels_expect_same(pool, c.op.pool, pool_bytes, "pool is only read");
    }
    kernels_free_all();
}

static void select_is_exact_everywhere(void **state) {
    (void)state;
    const struct index_shape shapes[] = {
        {4, 32, 64, 2, 300, 9, INDEX_FULL, 0, 0, false},
        {4, 32, 64, 1, 900, 7, INDEX_FULL_PUBLISH, 32, 8, false},    // mini
        {4, 32, 16, 1, 10, 40, INDEX_FULL_PUBLISH, 8, 4, false},     // tiny-a: pool and K fill up
        {4, 32, 48, 1, 180, 5, INDEX_FULL_PUBLISH, 12, 8, false},    // tiny-b
        {32, 128, 512, 1, 700, 3, INDEX_FULL_PUBLISH, 64, 8, false}, // a slice of the release
        {4, 64, 20, 2, 0, 50, INDEX_FULL, 0, 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_index(&shapes[i]);
    }
}

static void ties_go_to_the_lower_entry(void **state) {
    (void)state;
    const struct index_shape shapes[] = {
        {4, 32, 64, 1, 600, 4, INDEX_FULL_PUBLISH, 16, 8, true},
        {4, 32, 10, 2, 100, 30, INDEX_FULL, 0, 0, true},
    };
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_index(&shapes[i]);
    }
}

static void few_entries_are_taken_without_scoring(void **state) {
    (void)state;
    const struct index_shape shape = {4, 32, 64, 1, 0, 66, INDEX_FULL_PUBLISH, 32, 8, false};
    struct index_case c;
    index_init(&c, &shape);
    struct index_counters counters = {0};
    c.op.counters = &counters;
    struct backend *backend = kernels_open(NULL, 1);
    backend_index_select(backend, &c.op);
    backend_close(backend);
    assert_int_equal(counters.topk_runs, 2); // rows 64 and 65 see 65 and 66 entries
    assert_int_equal(counters.entries_scored, 65 + 66);
    assert_int_equal(counters.entries_scored_max, 66);
    for (int32_t row = 0; row < 64; row++) {
        assert_int_equal(c.op.selected_count[row], row + 1);
        for (int32_t i = 0; i < 64; i++) {
            assert_int_equal(c.op.selected[row * 64 + i], i <= row ? i : -1);
        }
    }
    kernels_free_all();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(select_is_exact_everywhere),
        cmocka_unit_test(ties_go_to_the_lower_entry),
        cmocka_unit_test(few_entries_are_taken_without_scoring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
