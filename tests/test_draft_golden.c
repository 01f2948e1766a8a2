/* Draft stages against the official reference: every sub-block fed with stored inputs, passes fed with
 * stored hidden rows and rings, and whole runs behind the target, whose noise they carry. */
#include "forward_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define STEPS     24
#define TRACE_LEN 333

static const char *const models[] = {"golden/tiny-a", "golden/tiny-b"};
static const int lengths[] = {12, 37, 129, 200};

struct golden {
    struct bench bench;
    struct test_tensors vectors;
    const char *model;
    struct kv_sequence *sequence;
    int32_t block, window;
    int failures;
    void *placed; /* of the backend: a segment and a view */
};

/* A copy of what the draft stages left in a buffer. */
static const void *look(const struct golden *golden, const void *buffer, size_t bytes) {
    return bench_read(&golden->bench, buffer, bytes);
}

static void feed(const struct golden *golden, void *buffer, const void *from, size_t bytes) {
    bench_write(&golden->bench, buffer, from, bytes);
}

static bool is_verbose(void) {
    return getenv("HEARTH_TEST_VERBOSE") != NULL;
}

static bool open_golden(struct golden *golden, const char *model) {
    char path[TEST_PATH_MAX];
    *golden = (struct golden){.model = model};
    if (!bench_find_model(path, model) || !bench_find_vectors(path, model, "dspark")) {
        print_message("SKIPPED dspark of %s: set HEARTH_TEST_DATA\n", model);
        return false;
    }
    MUST(test_tensors_open(&golden->vectors, path, error));
    struct bench_options options = {
        .model = model, .rows_max = 64, .sequences_max = 2, .context_max = 512, .drafts = true};
    bench_open(&golden->bench, &options);
    golden->block = golden->bench.config->draft_block;
    golden->window = golden->bench.config->window;
    golden->sequence = kv_cache_acquire(&golden->bench.cache);
    assert_non_null(golden->sequence);
    struct backend *backend = golden->bench.backend;
    size_t bytes = 64 + sizeof(struct sequence_view);
    MUST(backend->allocate(backend, bytes, &golden->placed, error));
    return true;
}

static void close_golden(struct golden *golden) {
    assert_int_equal(golden->failures, 0);
    golden->bench.backend->release(golden->bench.backend, golden->placed);
    bench_close(&golden->bench);
    test_tensors_close(&golden->vectors);
}

static void check(struct golden *golden, bool holds, const char *name) {
    if (!holds) {
        print_error("FAILED: %s: %s\n", golden->model, name);
        golden->failures++;
    }
}

/* At least 99 % bit-equal, none more than 2 ulp away; without a stored tensor nothing. */
static void check_bf16(struct golden *golden, const uint16_t *got, size_t count, const char *name) {
    struct test_tensor tensor;
    if (!test_tensors_get(&golden->vectors, name, &tensor)) {
        return;
    }
    assert_int_equal(tensor.count, count);
    struct bf16_difference difference = {0};
    bf16_compare(&difference, got, tensor.data, count);
    bool holds = bf16_share(&difference) >= 0.99 && difference.above_2ulp == 0;
    if (!holds || is_verbose()) {
        print_message(
            "%s %s: %.3f %% equal, largest distance %d ulp, %zu too far\n",
            golden->model,
            name,
            100 * bf16_share(&difference),
            difference.ulp_max,
            difference.above_2ulp
        );
    }
    check(golden, holds, name);
}

/* 1e-5 relative; values below 1e-3 count as 1e-3. */
static void check_f32(struct golden *golden, const float *got, size_t count, const char *name) {
    struct test_tensor tensor;
    const float *wanted = vectors_get(&golden->vectors, &tensor, "%s", name);
    assert_int_equal(tensor.count, count);
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double scale = fabs((double)wanted[i]) > 1e-3 ? fabs((double)wanted[i]) : 1e-3;
        double relative = fabs((double)got[i] - (double)wanted[i]) / scale;
        worst = relative > worst || isnan(relative) ? relative : worst;
    }
    if (!(worst <= 1e-5) || is_verbose()) {
        print_message("%s %s: %g relative\n", golden->model, name, worst);
    }
    check(golden, worst <= 1e-5, name);
}

/* Values of window records, as the reference stores them. */
static void unpack(const uint8_t *records, int32_t rows, int32_t dim, uint16_t *out) {
    size_t bytes = window_record_bytes(dim);
    for (int32_t r = 0; r < rows; r++) {
        const uint8_t *record = records + (size_t)r * bytes;
        for (int32_t c = 0; c < dim; c++) {
            int32_t code = record[c];
            int32_t exponent = (code >> 3) & 15;
            double magnitude = exponent == 0 ? (code & 7) * 0.125 : 1 + (code & 7) * 0.125;
            magnitude = ldexp(magnitude, (exponent == 0 ? 1 : exponent) - 7);
            magnitude = ldexp(magnitude, record[dim + c / 32] - 127);
            float value = (float)(code & 0x80 ? -magnitude : magnitude);
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            assert_int_equal(bits & 0xffff, 0); // exact in bf16
            out[(size_t)r * (size_t)dim + (size_t)c] = (uint16_t)(bits >> 16);
        }
    }
}

/* Writes stored values of positions [first, first + count) into the ring of a stage, by way of
 * window_latent. */
static void load_ring(
    struct golden *golden, int32_t stage, int32_t first, int32_t count, const uint16_t *rows
) {
    struct forward *forward = golden->bench.forward;
    int32_t dim = golden->bench.config->head_dim;
    uint16_t *latent = forward->buffers.window_latent;
    feed(golden, latent, rows, (size_t)count * (size_t)dim * sizeof *rows);
    struct window_pack_op pack = {
        .rows = count, .dim = dim, .x = latent, .records = forward->buffers.window_records};
    backend_window_pack(forward->backend, &pack);
    struct row_segment segment = {.row = 0, .count = count, .position = first};
    struct sequence_view view = {
        .ring = kv_cache_draft_ring(&golden->bench.cache, golden->sequence, stage)};
    void *placed_view = (uint8_t *)golden->placed + 64;
    feed(golden, golden->placed, &segment, sizeof segment);
    feed(golden, placed_view, &view, sizeof view);
    struct window_commit_op commit = {
        .window = golden->window + golden->block,
        .dim = dim,
        .segments = row_segments_of(&segment, golden->placed, 1),
        .views = placed_view,
        .records = forward->buffers.window_records,
    };
    backend_window_commit(forward->backend, &commit);
}

/* The same from values in the reference's order, slot = position mod W; all positions below `end`
 * that a ring of W holds. */
static void load_slots(struct golden *golden, int32_t stage, int32_t end, const uint16_t *slots) {
    size_t dim = (size_t)golden->bench.config->head_dim;
    uint16_t rows[DRAFT_BLOCK_MAX * 128];
    int32_t count = end < golden->window ? end : golden->window;
    assert_true((size_t)count * dim <= COUNT_OF(rows));
    for (int32_t i = 0; i < count; i++) {
        int32_t slot = (end - count + i) % golden->window;
        memcpy(rows + (size_t)i * dim, slots + (size_t)slot * dim, dim * sizeof *rows);
    }
    load_ring(golden, stage, end - count, count, rows);
    golden->sequence->draft = (struct kv_draft_rows){.first = end - count, .end = end};
}

/* ---- sub-blocks at one position --------------------------------------------------------------- */

static const void *trace_get(struct golden *golden, int32_t stage, const char *what, size_t bytes) {
    struct test_tensor tensor;
    const void *data = vectors_get(&golden->vectors, &tensor, "trace.mtp.%d.%s", stage, what);
    assert_int_equal(tensor.bytes, bytes);
    return data;
}

static void trace_name(char name[64], int32_t stage, const char *what) {
    (void)snprintf(name, 64, "trace.mtp.%d.%s", stage, what);
}

static void trace_bf16(
    struct golden *golden, int32_t stage, const char *what, const uint16_t *buffer, size_t count
) {
    char name[64];
    trace_name(name, stage, what);
    assert_true(vectors_has(&golden->vectors, "%s", name));
    check_bf16(golden, look(golden, buffer, count * sizeof *buffer), count, name);
}

static void trace_f32(
    struct golden *golden, int32_t stage, const char *what, const float *buffer, size_t count
) {
    char name[64];
    trace_name(name, stage, what);
    check_f32(golden, look(golden, buffer, count * sizeof *buffer), count, name);
}

/* Experts of each row as a set, and the weight of each; the reference lists them by score. */
static void check_routing(struct golden *golden, int32_t stage) {
    const struct forward_buffers *b = &golden->bench.forward->buffers;
    size_t chosen = (size_t)golden->bench.config->draft_experts_chosen;
    size_t count = (size_t)golden->block * chosen;
    const int32_t *ids = trace_get(golden, stage, "router.experts", count * sizeof *ids);
    const float *weights = trace_get(golden, stage, "router.weights", count * sizeof *weights);
    const int32_t *got_ids = look(golden, b->expert_ids, count * sizeof *got_ids);
    const float *got_weights = look(golden, b->expert_weights, count * sizeof *got_weights);
    for (size_t i = 0; i < count; i++) {
        size_t row = i / chosen * chosen;
        size_t at = row;
        while (at < row + chosen && got_ids[at] != ids[i]) {
            at++;
        }
        bool holds = at < row + chosen &&
                     fabs((double)(got_weights[at] - weights[i])) <= 1e-5 * (double)weights[i];
        check(golden, holds, "router");
    }
}

static void check_stage_attention(struct golden *golden, int32_t stage, int32_t position) {
    struct draft *draft = golden->bench.draft;
    struct forward *forward = golden->bench.forward;
    struct forward_buffers *b = &forward->buffers;
    const struct model_config *config = golden->bench.config;
    size_t rows = (size_t)golden->block;
    size_t dim = (size_t)config->head_dim;
    size_t hidden = rows * (size_t)config->hidden;
    size_t query = rows * (size_t)config->heads * dim;
    int32_t layer = config->layers + stage;
    feed(golden, b->normed, trace_get(golden, stage, "attn.in", 2 * hidden), 2 * hidden);
    uint16_t values[DRAFT_BLOCK_MAX * 128];
    assert_true(rows * dim <= COUNT_OF(values));
    draft_window(draft, stage);
    size_t record_bytes = rows * window_record_bytes(config->head_dim);
    const uint8_t *records = look(golden, b->window_records, record_bytes);
    unpack(records, golden->block, config->head_dim, values);
    char name[64];
    trace_name(name, stage, "window_kv.dequant");
    assert_true(vectors_has(&golden->vectors, "%s", name));
    check_bf16(golden, values, rows * dim, name);
    size_t keys = (size_t)(golden->window + golden->block) * dim;
    const uint16_t *kv = trace_get(golden, stage, "attn.kv_rows", 2 * keys);
    load_slots(golden, stage, position + 1, kv);
    load_ring(golden, stage, position + 1, golden->block, kv + (size_t)golden->window * dim);
    forward_query(forward, layer);
    trace_bf16(golden, stage, "attn.q", b->query, query);
    feed(golden, b->query, trace_get(golden, stage, "attn.q", 2 * query), 2 * query);
    draft_attend(draft, stage);
    trace_bf16(golden, stage, "attn.o_rotated", b->attended, query);
    feed(golden, b->attended, trace_get(golden, stage, "attn.o_rotated", 2 * query), 2 * query);
    forward_project(forward, layer);
    trace_bf16(golden, stage, "attn.out", b->output, hidden);
}

static void check_stage_streams(struct golden *golden, int32_t stage) {
    struct forward *forward = golden->bench.forward;
    struct forward_buffers *b = &forward->buffers;
    const struct model_config *config = golden->bench.config;
    size_t rows = (size_t)golden->block;
    size_t hidden = rows * (size_t)config->hidden;
    size_t streams = (size_t)config->streams;
    int32_t layer = config->layers + stage;
    const struct layer_weights *weights = &forward->model->layers[layer];
    trace_f32(golden, stage, "in.pre_mix", b->mix, rows * streams);
    forward_collapse(forward, weights->attn_norm);
    trace_bf16(golden, stage, "attn.in", b->normed, hidden);
    forward_mix(forward, &weights->attn_mix);
    trace_f32(golden, stage, "hc_attn.pre", b->mix, rows * streams);
    trace_f32(golden, stage, "hc_attn.post", b->post, rows * streams);
    trace_f32(golden, stage, "hc_attn.comb", b->comb, rows * streams * streams);
    feed(golden, b->output, trace_get(golden, stage, "attn.out", 2 * hidden), 2 * hidden);
    forward_update(forward);
    trace_bf16(golden, stage, "streams_after_attn", b->streams, streams * hidden);
    const void *after = trace_get(golden, stage, "streams_after_attn", 2 * streams * hidden);
    feed(golden, b->streams, after, 2 * streams * hidden);
    forward_collapse(forward, weights->ffn_norm);
    trace_bf16(golden, stage, "ffn.in", b->normed, hidden);
    feed(golden, b->normed, trace_get(golden, stage, "ffn.in", 2 * hidden), 2 * hidden);
    forward_mix(forward, &weights->ffn_mix);
    trace_f32(golden, stage, "hc_ffn.pre", b->mix, rows * streams);
    forward_experts(forward, layer);
    check_routing(golden, stage);
    trace_bf16(golden, stage, "ffn.out", b->output, hidden);
    feed(golden, b->output, trace_get(golden, stage, "ffn.out", 2 * hidden), 2 * hidden);
    forward_update(forward);
    trace_bf16(golden, stage, "streams_after_ffn", b->streams, streams * hidden);
    after = trace_get(golden, stage, "streams_after_ffn", 2 * streams * hidden);
    feed(golden, b->streams, after, 2 * streams * hidden); // what the next stage starts from
    feed(
        golden,
        b->mix,
        trace_get(golden, stage, "hc_ffn.pre", rows * streams * sizeof(float)),
        rows * streams * sizeof(float)
    );
}

/* main_x of the traced position, from its stored main_hidden. */
static void check_main_row(struct golden *golden, int32_t step) {
    struct forward *forward = golden->bench.forward;
    const struct model_config *config = golden->bench.config;
    struct test_tensor tensor;
    if (!vectors_has(&golden->vectors, "len%d.main_hidden", TRACE_LEN)) {
        return;
    }
    const uint16_t *all = vectors_get(&golden->vectors, &tensor, "len%d.main_hidden", TRACE_LEN);
    size_t width = tensor.count / STEPS;
    int32_t rows = forward->stage.rows;
    forward->stage.rows = 1;
    uint16_t *hidden_rows = forward->buffers.target_hidden;
    feed(golden, hidden_rows, all + (size_t)step * width, width * sizeof *all);
    draft_main_input(golden->bench.draft, hidden_rows);
    const uint16_t *main_x = vectors_get(&golden->vectors, &tensor, "len%d.main_x", TRACE_LEN);
    struct bf16_difference difference = {0};
    size_t hidden = (size_t)config->hidden;
    const uint16_t *normed = look(golden, forward->buffers.normed, hidden * sizeof *normed);
    bf16_compare(&difference, normed, main_x + (size_t)step * hidden, hidden);
    check(golden, bf16_share(&difference) >= 0.99 && difference.above_2ulp == 0, "main_x");
    forward->stage.rows = rows;
}

static void check_trace(const char *model) {
    struct golden golden;
    if (!open_golden(&golden, model)) {
        skip();
    }
    struct test_tensor tensor;
    const int32_t *position = vectors_get(&golden.vectors, &tensor, "trace.position");
    const int32_t *tokens = vectors_get(&golden.vectors, &tensor, "len%d.token", TRACE_LEN);
    int32_t step = *position - (TRACE_LEN - 1);
    golden.sequence->computed = *position + 1;
    struct draft_request request = {
        .sequence = golden.sequence, .token = tokens[step], .wanted = golden.block};
    golden.sequence->draft =
        (struct kv_draft_rows){.first = *position + 1 - golden.window, .end = *position + 1};
    draft_begin(golden.bench.draft, &request, 1);
    check_main_row(&golden, step);
    for (int32_t stage = 0; stage < golden.bench.config->draft_layers; stage++) {
        check_stage_streams(&golden, stage);
    }
    draft_head(golden.bench.draft);
    size_t hidden = (size_t)golden.block * (size_t)golden.bench.config->hidden;
    const uint16_t *collapsed =
        vectors_get(&golden.vectors, &tensor, "len%d.collapsed_hidden", TRACE_LEN);
    assert_true(tensor.count >= (size_t)(step + 1) * hidden);
    struct bf16_difference difference = {0};
    const uint16_t *got = look(&golden, golden.bench.draft->collapsed, hidden * sizeof *got);
    bf16_compare(&difference, got, collapsed + (size_t)step * hidden, hidden);
    check(&golden, bf16_share(&difference) >= 0.99 && difference.above_2ulp == 0, "collapsed");
    for (int32_t stage = 0; stage < golden.bench.config->draft_layers; stage++) {
        check_stage_attention(&golden, stage, *position);
    }
    close_golden(&golden);
}

static void trace_of_tiny_a(void **state) {
    (void)state;
    check_trace(models[0]);
}

static void trace_of_tiny_b(void **state) {
    (void)state;
    check_trace(models[1]);
}

/* ---- passes ----------------------------------------------------------------------------------- */

struct totals {
    struct logit_difference base, corrected;
    double confidence_square, confidence_largest;
    size_t confidences;
    int drafts, clear, equal, clear_equal; /* clear: the reference's margin exceeds 0.1 */
    int accepted, accepted_wanted, steps;
};

/* Compares the guesses of step `step` of a prompt with the stored ones. */
static void compare_step(
    struct golden *golden,
    int length,
    int step,
    const struct draft_proposal *proposal,
    struct totals *totals
) {
    struct test_tensor tensor;
    const struct test_tensors *vectors = &golden->vectors;
    size_t block = (size_t)golden->block;
    const int32_t *drafts = vectors_get(vectors, &tensor, "len%d.drafts", length);
    const float *margin = vectors_get(vectors, &tensor, "len%d.draft_margin", length);
    const float *confidence = vectors_get(vectors, &tensor, "len%d.confidence", length);
    const int32_t *tokens = vectors_get(vectors, &tensor, "len%d.token", length);
    const int32_t *accepted = vectors_get(vectors, &tensor, "len%d.accepted", length);
    assert_int_equal(proposal->count, golden->block);
    bool same = true; // as long as the Markov chain is the same
    for (size_t i = 0; i < block; i++) {
        size_t at = (size_t)step * block + i;
        bool equal = proposal->ids[i] == drafts[at];
        totals->drafts += same;
        totals->equal += same && equal;
        totals->clear += same && margin[at] > 0.1F;
        totals->clear_equal += same && equal && margin[at] > 0.1F;
        if (same) {
            double difference = fabs((double)(proposal->confidence[i] - confidence[at]));
            totals->confidence_square += difference * difference;
            totals->confidences++;
            totals->confidence_largest = fmax(totals->confidence_largest, difference);
        }
        same = same && equal;
    }
    /* The reference's greedy continuation is its next tokens, where it stored that many. */
    if (step + golden->block < STEPS) {
        int length_kept = 0;
        while (length_kept < golden->block &&
               proposal->ids[length_kept] == tokens[step + 1 + length_kept]) {
            length_kept++;
        }
        totals->accepted += length_kept;
        totals->accepted_wanted += accepted[step];
        totals->steps++;
        check(golden, !same || length_kept == accepted[step], "accepted");
    }
}

/* Base and corrected logits of the pass that ran last, where they are stored. */
static void compare_logits(struct golden *golden, int length, int step, struct totals *totals) {
    struct test_tensor tensor;
    struct forward *forward = golden->bench.forward;
    const struct draft *draft = golden->bench.draft;
    int32_t vocabulary = golden->bench.config->vocabulary;
    size_t row = (size_t)vocabulary;
    if (!vectors_has(&golden->vectors, "len%d.base_logits", length)) {
        return;
    }
    const float *base = vectors_get(&golden->vectors, &tensor, "len%d.base_logits", length);
    size_t steps = tensor.count / row / (size_t)golden->block;
    if ((size_t)step >= steps) {
        return;
    }
    const float *corrected =
        vectors_get(&golden->vectors, &tensor, "len%d.corrected_logits", length);
    struct linear_op head = {
        .rows = golden->block,
        .groups = 1,
        .in = golden->bench.config->hidden,
        .out = vocabulary,
        .input_dtype = DTYPE_BF16,
        .input = forward->buffers.head_input,
        .weight = forward->model->head,
        .output_dtype = DTYPE_F32,
        .output = forward->buffers.logits,
    };
    backend_linear(forward->backend, &head);
    const int32_t *drafts = vectors_get(&golden->vectors, &tensor, "len%d.drafts", length);
    size_t all = (size_t)golden->block * row * sizeof(float);
    const float *logits = look(golden, forward->buffers.logits, all);
    bool same = true;
    for (size_t i = 0; i < (size_t)golden->block; i++) {
        size_t at = ((size_t)step * (size_t)golden->block + i) * row;
        logits_compare(&totals->base, logits + i * row, base + at, vocabulary);
        if (same) {
            const float *got = draft->host_logits + i * row;
            logits_compare(&totals->corrected, got, corrected + at, vocabulary);
            same =
                logits_argmax(got, vocabulary) == drafts[(size_t)step * (size_t)golden->block + i];
        }
    }
}

struct limits {
    double base_rms, base_kl, confidence; /* largest */
    double equal;                         /* share of drafts */
};

static void
check_totals(struct golden *golden, const struct totals *t, const struct limits *limits) {
    check(golden, t->clear > 0 && t->clear_equal == t->clear, "clear drafts");
    check(golden, t->equal >= limits->equal * t->drafts, "drafts");
    check(golden, t->confidence_largest <= limits->confidence, "confidence");
    if (t->base.rows > 0) {
        check(golden, logits_rms(&t->base) <= limits->base_rms, "base logits");
        check(golden, logits_kl(&t->base) <= limits->base_kl, "base logits: KL");
        check(golden, logits_rms(&t->corrected) <= limits->base_rms, "corrected logits");
    }
}

static void report(const struct golden *golden, const char *what, const struct totals *t) {
    if (golden->failures == 0 && !is_verbose()) {
        return;
    }
    print_message(
        "%s %s: drafts %d of %d equal, clear ones %d of %d; accepted %d, reference %d, in %d "
        "steps; "
        "confidence rms %.4f, largest %.4f\n",
        golden->model,
        what,
        t->equal,
        t->drafts,
        t->clear_equal,
        t->clear,
        t->accepted,
        t->accepted_wanted,
        t->steps,
        sqrt(t->confidence_square / (double)t->confidences),
        t->confidence_largest
    );
    if (t->base.rows > 0) {
        print_message(
            "  base rms %.4f, KL %.5f, argmax %zu of %zu; corrected rms %.4f, KL %.5f\n",
            logits_rms(&t->base),
            logits_kl(&t->base),
            t->base.argmax_equal,
            t->base.rows,
            logits_rms(&t->corrected),
            logits_kl(&t->corrected)
        );
    }
}

/* A step of the target that stored hidden rows stand in for: one row at `position`. */
static void commit_stored(struct golden *golden, int32_t position, const uint16_t *hidden) {
    struct forward *forward = golden->bench.forward;
    const struct model_config *config = golden->bench.config;
    size_t width = (size_t)config->draft_target_count * (size_t)config->hidden;
    struct row_segment row = {.row = 0, .count = 1, .position = position};
    struct forward_segment segment = {
        .sequence = golden->sequence, .position = position, .count = 1};
    feed(golden, forward->buffers.target_hidden, hidden, width * sizeof *hidden);
    feed(golden, golden->placed, &row, sizeof row);
    forward->target_stage = row_segments_of(&row, golden->placed, 1);
    forward->segment_count = 1;
    MUST(draft_commit(golden->bench.draft, &segment, NULL, 1, error));
    golden->sequence->computed = position + 1;
}

/* All stored main_hidden rows of a prompt at once. */
static void check_main_x(struct golden *golden, int length) {
    struct test_tensor tensor;
    char name[64];
    struct forward *forward = golden->bench.forward;
    size_t hidden = (size_t)golden->bench.config->hidden;
    forward->stage.rows = STEPS;
    const uint16_t *rows = vectors_get(&golden->vectors, &tensor, "len%d.main_hidden", length);
    feed(golden, forward->buffers.target_hidden, rows, tensor.bytes);
    draft_main_input(golden->bench.draft, forward->buffers.target_hidden);
    (void)snprintf(name, sizeof name, "len%d.main_x", length);
    size_t count = STEPS * hidden;
    check_bf16(golden, look(golden, forward->buffers.normed, 2 * count), count, name);
}

/* The ring row of the prompt's last position, from its stored hidden row. */
static void
check_ring_row(struct golden *golden, int length, const uint16_t *slots, int32_t stage) {
    const struct model_config *config = golden->bench.config;
    size_t dim = (size_t)config->head_dim;
    uint16_t values[128];
    int32_t position = length - 1;
    size_t slot = (size_t)(position % (golden->window + golden->block));
    const uint8_t *ring = kv_cache_draft_ring(&golden->bench.cache, golden->sequence, stage);
    size_t bytes = window_record_bytes(config->head_dim);
    unpack(look(golden, ring + slot * bytes, bytes), 1, config->head_dim, values);
    const uint16_t *wanted = slots + (size_t)(position % golden->window) * dim;
    struct bf16_difference difference = {0};
    bf16_compare(&difference, values, wanted, dim);
    if (bf16_share(&difference) < 0.99) {
        print_message(
            "%s len%d stage %d: %zu of %zu\n",
            golden->model,
            length,
            stage,
            difference.equal,
            difference.count
        );
    }
    check(golden, bf16_share(&difference) >= 0.99, "ring row of the last position");
}

static void pass_length(struct golden *golden, int length, struct totals *totals) {
    struct test_tensor tensor;
    const struct test_tensors *vectors = &golden->vectors;
    const struct model_config *config = golden->bench.config;
    size_t width = (size_t)config->draft_target_count * (size_t)config->hidden;
    size_t dim = (size_t)config->head_dim;
    check_main_x(golden, length);
    const uint16_t *rings = vectors_get(vectors, &tensor, "len%d.rings_after_prompt", length);
    size_t ring = tensor.count / (size_t)config->draft_layers;
    assert_int_equal(ring, dim * (size_t)(length < golden->window ? length : golden->window));
    const uint16_t *hidden = vectors_get(vectors, &tensor, "len%d.main_hidden", length);
    const int32_t *tokens = vectors_get(vectors, &tensor, "len%d.token", length);
    for (int32_t stage = 0; stage < config->draft_layers; stage++) {
        load_slots(golden, stage, length, rings + (size_t)stage * ring);
    }
    for (int step = 0; step < STEPS; step++) {
        commit_stored(golden, length - 1 + step, hidden + (size_t)step * width);
        for (int32_t stage = 0; step == 0 && stage < config->draft_layers; stage++) {
            check_ring_row(golden, length, rings + (size_t)stage * ring, stage);
        }
        struct draft_request request = {
            .sequence = golden->sequence, .token = tokens[step], .wanted = golden->block};
        struct draft_proposal proposal;
        MUST(draft_propose(golden->bench.draft, &request, 1, &proposal, error));
        compare_step(golden, length, step, &proposal, totals);
        compare_logits(golden, length, step, totals);
    }
}

static void check_passes(const char *model) {
    struct golden golden;
    if (!open_golden(&golden, model)) {
        skip();
    }
    struct totals totals = {0};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        if (vectors_has(&golden.vectors, "len%d.main_hidden", lengths[i]) &&
            vectors_has(&golden.vectors, "len%d.drafts", lengths[i])) {
            pass_length(&golden, lengths[i], &totals);
        }
    }
    /* Measured: 100 % equal, rms 0.0004, confidences 0.011 apart. */
    const struct limits limits = {0.004, 1e-5, 0.05, 1.0};
    check_totals(&golden, &totals, &limits);
    report(&golden, "passes", &totals);
    close_golden(&golden);
}

static void passes_of_tiny_a(void **state) {
    (void)state;
    check_passes(models[0]);
}

static void passes_of_tiny_b(void **state) {
    (void)state;
    check_passes(models[1]);
}

/* ---- whole runs -------------------------------------------------------------------------------- */

/* Rings after a prompt. Rows depend on the whole run and are quantised twice on the way, so they
 * carry the target's noise: measured 1 to 9 % of their size, where a wrong position is 100 %. */
static void check_rings(struct golden *golden, const struct kv_sequence *sequence, int length) {
    struct test_tensor tensor;
    const struct model_config *config = golden->bench.config;
    size_t dim = (size_t)config->head_dim;
    int32_t slots = golden->window + golden->block;
    const uint16_t *rings =
        vectors_get(&golden->vectors, &tensor, "len%d.rings_after_prompt", length);
    size_t ring = tensor.count / (size_t)config->draft_layers;
    int32_t first = length < golden->window ? 0 : length - golden->window;
    assert_true(sequence->draft.first <= first);
    double square = 0;
    double error_square = 0;
    struct bf16_difference difference = {0};
    for (int32_t stage = 0; stage < config->draft_layers; stage++) {
        const uint8_t *records = look(
            golden,
            kv_cache_draft_ring(&golden->bench.cache, sequence, stage),
            golden->bench.cache.layout.draft_ring_bytes
        );
        for (int32_t p = first; p < length; p++) {
            uint16_t values[128];
            size_t slot = (size_t)(p % slots);
            unpack(
                records + slot * window_record_bytes(config->head_dim), 1, config->head_dim, values
            );
            const uint16_t *wanted =
                rings + (size_t)stage * ring + (size_t)(p % golden->window) * dim;
            bf16_compare(&difference, values, wanted, dim);
            for (size_t c = 0; c < dim; c++) {
                double value = (double)bf16_value(wanted[c]);
                double error = (double)bf16_value(values[c]) - value;
                square += value * value;
                error_square += error * error;
            }
        }
    }
    double relative = sqrt(error_square / square);
    if (is_verbose()) {
        print_message(
            "%s len%d: rings %.1f %% equal, %.4f off\n",
            golden->model,
            length,
            100 * bf16_share(&difference),
            relative
        );
    }
    check(golden, relative <= 0.15, "rings after the prompt");
}

static void run_length(
    struct golden *golden, const struct test_tensors *prompts, int length, struct totals *totals
) {
    struct test_tensor tensor;
    struct bench *bench = &golden->bench;
    const int32_t *tokens = vectors_get(&golden->vectors, &tensor, "len%d.token", length);
    struct kv_sequence *sequence = kv_cache_acquire(&bench->cache);
    assert_non_null(sequence);
    const int32_t *ids = vectors_get(prompts, &tensor, "len%d.input_ids", length);
    assert_int_equal(tensor.count, length);
    bench_append(bench, sequence, ids, length);
    bench_run(bench, sequence, length, 32, false, NULL, NULL);
    assert_int_equal(sequence->draft.end, length);
    check_rings(golden, sequence, length);
    for (int step = 0; step < STEPS; step++) {
        struct draft_request request = {
            .sequence = sequence, .token = tokens[step], .wanted = golden->block};
        struct draft_proposal proposal;
        MUST(draft_propose(bench->draft, &request, 1, &proposal, error));
        compare_step(golden, length, step, &proposal, totals);
        compare_logits(golden, length, step, totals);
        bench_append(bench, sequence, &tokens[step], 1);
        bench_run(bench, sequence, sequence->length, 1, false, NULL, NULL);
    }
    kv_cache_release(&bench->cache, sequence);
}

static void check_runs(const char *model) {
    struct golden golden;
    char path[TEST_PATH_MAX];
    struct test_tensors prompts;
    if (!open_golden(&golden, model)) {
        skip();
    }
    assert_true(bench_find_vectors(path, model, "e2e"));
    MUST(test_tensors_open(&prompts, path, error));
    struct totals totals = {0};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        if (vectors_has(&prompts, "len%d.input_ids", lengths[i]) &&
            vectors_has(&golden.vectors, "len%d.drafts", lengths[i]) &&
            (!BENCH_IS_SLOW || lengths[i] <= 37)) {
            run_length(&golden, &prompts, lengths[i], &totals);
        }
    }
    /* Drafts follow the target's hidden rows and so carry its noise; the README's limits for logits
     * of the target are 0.23 and 0.16. Measured: rms 0.046, 96 % equal. */
    const struct limits limits = {0.12, 0.004, 0.3, 0.9};
    check_totals(&golden, &totals, &limits);
    report(&golden, "runs", &totals);
    test_tensors_close(&prompts);
    close_golden(&golden);
}

static void runs_of_tiny_a(void **state) {
    (void)state;
    check_runs(models[0]);
}

static void runs_of_tiny_b(void **state) {
    (void)state;
    check_runs(models[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_of_tiny_a),
        cmocka_unit_test(trace_of_tiny_b),
        cmocka_unit_test(passes_of_tiny_a),
        cmocka_unit_test(passes_of_tiny_b),
        cmocka_unit_test(runs_of_tiny_a),
        cmocka_unit_test(runs_of_tiny_b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
