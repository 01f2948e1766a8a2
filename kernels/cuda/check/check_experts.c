/* route and experts: against the CPU and with themselves. */
#include "check_experts.h"

#include <math.h>

CHECK_CALL(route)

/* ---- route ---- */

/* Some rows have ties: all logits alike, or few values, with biases that repeat. */
static struct route_op make_route(struct check *check, int32_t rows, int32_t experts, int32_t k) {
    struct route_op op = {.rows = rows, .experts = experts, .chosen = k, .routed_scale = 1.5F};
    float *logits = check_normals_f32(check, rows, experts, 3.0F);
    float *bias = check_normals_f32(check, CHECK_SHARED, experts, 0.1F);
    for (int32_t e = 0; e < experts; e++) {
        bias[e] = e % 3 == 0 ? 0.25F : bias[e];
    }
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t e = 0; e < experts && r % 4 != 0; e++) {
            float *logit = &logits[(size_t)r * (size_t)experts + (size_t)e];
            *logit = r % 4 == 1   ? 0.5F
                     : r % 4 == 2 ? (float)check_below(check, 3) - 1.0F
                                  : *logit * 20.0F; // both ends of softplus
        }
    }
    op.logits = logits;
    op.bias = bias;
    op.ids = check_output(check, rows, (size_t)k * sizeof *op.ids);
    op.weights = check_output(check, rows, (size_t)k * sizeof *op.weights);
    return op;
}

static double score_of(float logit) {
    double x = (double)logit;
    return sqrt((x > 0 ? x : 0) + log1p(exp(-fabs(x))));
}

/* A score is right to 1.5e-7 of itself, and so is a sum of it with its bias: as near may be chosen
 * either way, but what is equal in logit and bias goes to the lower id. */
#define NEAR 4e-7

/* Whether ids are ascending and no expert left out should have been chosen; `near` counts a row in
 * which another one is as good. */
static bool is_choice(const struct route_op *op, int32_t row, const int32_t *ids, int32_t *near) {
    const float *logits = op->logits + (size_t)row * (size_t)op->experts;
    for (int32_t i = 0; i < op->chosen; i++) {
        if (ids[i] < 0 || ids[i] >= op->experts || (i > 0 && ids[i] <= ids[i - 1])) {
            return false;
        }
    }
    bool is_near = false;
    for (int32_t i = 0; i < op->chosen; i++) {
        int32_t id = ids[i];
        double own = score_of(logits[id]) + (double)op->bias[id];
        for (int32_t e = 0, next = 0; e < op->experts; e++) {
            if (next < op->chosen && ids[next] == e) {
                next++;
                continue;
            }
            double other = score_of(logits[e]) + (double)op->bias[e];
            double room = NEAR * (fabs(own) + fabs(other) + score_of(logits[e]));
            bool is_equal = logits[e] == logits[id] && op->bias[e] == op->bias[id];
            if (other > own + room || (is_equal && e < id)) {
                return false;
            }
            is_near = is_near || (!is_equal && other >= own - room);
        }
    }
    *near += is_near ? 1 : 0;
    return true;
}

static void route_case(struct check *check, int32_t rows, int32_t experts, int32_t k) {
    if (!check_case(check, "route", "[%d, %d] choose %d", rows, experts, k)) {
        return;
    }
    struct route_op op = make_route(check, rows, experts, k);
    CHECK_RUN(check, route, op);
    const int32_t *got = check_got(check, op.ids);
    const float *weights = check_got(check, op.weights);
    int32_t wrong = 0;
    int32_t near = 0;
    int32_t other = 0;
    double worst = 0;
    // k roundings of the sum, four more of the score and the weight
    double limit = (k + 4) * 0x1p-24;
    for (int32_t r = 0; r < rows; r++) {
        size_t at = (size_t)r * (size_t)k;
        if (!is_choice(&op, r, got + at, &near)) {
            wrong++;
            continue;
        }
        other += memcmp(got + at, op.ids + at, (size_t)k * sizeof *got) != 0 ? 1 : 0;
        double sum = 0;
        const float *logits = op.logits + (size_t)r * (size_t)experts;
        for (int32_t i = 0; i < k; i++) {
            sum += score_of(logits[got[at + (size_t)i]]);
        }
        for (int32_t i = 0; i < k; i++) {
            double wanted = score_of(logits[got[at + (size_t)i]]) / (sum + 1e-20) * 1.5;
            // far below zero softplus is subnormal, and its root right to 3e-23
            double room = limit * wanted + 6e-23 / (sum + 1e-20);
            worst = fmax(worst, fabs((double)weights[at + (size_t)i] - wanted) / room);
        }
    }
    check_report(
        check,
        wrong == 0 && other <= near && worst <= 1,
        "%d wrong, %d unlike the CPU's, %d near; weights %.2f of %.1e",
        wrong,
        other,
        near,
        worst,
        limit
    );
    CHECK_ROWS(check, route, op);
}

/* ---- experts ---- */

void check_call_experts(struct backend *backend, const void *argument) {
    const struct experts_call *call = argument;
    struct experts_op op = call->op;
    op.shared = &call->shared;
    backend_experts(backend, &op);
}

struct experts_shape {
    int32_t rows, dim, hidden, experts, chosen;
    enum dtype routed;
    enum check_weights kind;
    float limit;
    bool has_favourites;
};

static struct expert_weights
make_expert(struct check *check, const struct experts_shape *s, enum dtype dtype) {
    struct expert_weights expert;
    expert.w1 = check_weight(check, dtype, s->hidden, s->dim, s->kind);
    expert.w2 = check_weight(check, dtype, s->dim, s->hidden, s->kind);
    expert.w3 = check_weight(check, dtype, s->hidden, s->dim, s->kind);
    return expert;
}

/* k different ids, ascending. With favourites, rows of the first half prefer the first k + 1 experts, so
 * that lists of all lengths come up. */
static void choose(struct check *check, const struct experts_shape *s, int32_t row, int32_t *ids) {
    int32_t count = 0;
    bool is_popular = s->has_favourites && row < s->rows / 2;
    while (count < s->chosen) {
        bool any = !is_popular || check_below(check, 8) == 0;
        int32_t bound = any || s->chosen + 1 > s->experts ? s->experts : s->chosen + 1;
        int32_t id = check_below(check, bound);
        int32_t at = count;
        while (at > 0 && ids[at - 1] > id) {
            at--;
        }
        if (at > 0 && ids[at - 1] == id) {
            continue;
        }
        memmove(ids + at + 1, ids + at, (size_t)(count - at) * sizeof *ids);
        ids[at] = id;
        count++;
    }
}

static struct experts_call make_experts(struct check *check, const struct experts_shape *s) {
    struct experts_call call = {
        .op = {
            .rows = s->rows,
            .dim = s->dim,
            .hidden = s->hidden,
            .experts = s->experts,
            .chosen = s->chosen,
            .limit = s->limit,
            .routed_dtype = s->routed,
        }};
    struct experts_op *op = &call.op;
    size_t chosen = (size_t)s->chosen;
    op->x = check_quantized(check, s->rows, s->dim);
    // Rows have a root mean square about 2^8; with a limit gates and ups are to lie on both sides of it.
    for (size_t i = 0; s->limit > 0 && i < (size_t)s->rows * (size_t)(s->dim / 32); i++) {
        op->x.scales[i] = (uint8_t)(op->x.scales[i] - 6);
    }
    int32_t *ids = check_input(check, s->rows, chosen * sizeof *ids);
    float *weights = check_input(check, s->rows, chosen * sizeof *weights);
    for (int32_t r = 0; r < s->rows; r++) {
        choose(check, s, r, ids + (size_t)r * chosen);
        for (size_t i = 0; i < chosen; i++) {
            weights[(size_t)r * chosen + i] = (float)(check_below(check, 1000) + 1) / 1000.0F;
        }
    }
    op->ids = ids;
    op->weights = weights;
    size_t table_bytes = (size_t)s->experts * sizeof(struct expert_weights);
    struct expert_weights *table = check_pointers(check, CHECK_SHARED, table_bytes);
    for (int32_t e = 0; e < s->experts; e++) {
        table[e] = make_expert(check, s, s->routed);
    }
    op->routed = table;
    call.shared = make_expert(check, s, DTYPE_FP8);
    op->output = check_output(check, s->rows, (size_t)s->dim * sizeof *op->output);
    return call;
}

static void experts_case(struct check *check, const struct experts_shape *s) {
    if (!check_case(
            check,
            "experts",
            "[%d, %d, %d] %d of %d %s%s",
            s->rows,
            s->dim,
            s->hidden,
            s->chosen,
            s->experts,
            s->routed == DTYPE_FP4 ? "fp4" : "fp8",
            s->kind == CHECK_EXTREME ? " extreme" : ""
        )) {
        return;
    }
    struct experts_call call = make_experts(check, s);
    check_run(check, check_call_experts, &call, sizeof call);
    size_t rows_at = offsetof(struct experts_call, op.rows);
    check_rows(check, check_call_experts, &call, sizeof call, rows_at);
    check_experts_stages(check, &call);
}

void check_experts(struct check *check) {
    static const int32_t routes[][2] = {{16, 4}, {18, 6}, {384, 6}, {128, 3}, {5, 5}, {4096, 33}};
    for (size_t i = 0; i < COUNT_OF(routes); i++) {
        bool is_large = routes[i][0] > 1000;
        route_case(check, 1, routes[i][0], routes[i][1]);
        int32_t rows = check->emulated ? (is_large ? 5 : 40) : 1000;
        route_case(check, rows, routes[i][0], routes[i][1]);
    }
    // The emulation takes a few of these, chosen so that each way through the kernels is gone once.
    static const int32_t counts[] = {1, 3, 7, 33, 75, 150, 300};
    static const bool emulated[CHECK_MODELS][COUNT_OF(counts)] = {
        {true, false, false, true},
        {false, false, true},
        {false, false, false, false, true},
        {false, true}};
    for (int32_t m = 0; m < CHECK_MODELS; m++) {
        struct check_model model = check_model(check, m);
        struct experts_shape s = {
            0,
            model.dim,
            model.hidden,
            model.experts,
            model.chosen,
            DTYPE_FP4,
            CHECK_PLAUSIBLE,
            10.0F,
            true};
        bool is_release = m == CHECK_RELEASE;
        if (is_release) { // as wide as they are, but fewer
            s.experts = check->emulated ? 9 : 24;
        }
        for (size_t i = 0; i < COUNT_OF(counts); i++) {
            s.rows = counts[i];
            if (!check->emulated || emulated[m][i]) {
                experts_case(check, &s);
            }
        }
        if (check->emulated && m != 0 && !is_release) {
            continue;
        }
        s.rows = !check->emulated ? 21 : is_release ? 2 : 26;
        s.routed = DTYPE_FP8;
        s.limit = 0.0F;
        experts_case(check, &s);
        s.kind = CHECK_EXTREME;
        s.limit = 10.0F;
        if (!is_release) {
            experts_case(check, &s);
            s.routed = DTYPE_FP4;
            experts_case(check, &s);
        }
    }
    if (!check->emulated) { // a whole slab
        struct experts_shape s = {4096, 256, 64, 16, 4, DTYPE_FP4, CHECK_PLAUSIBLE, 10.0F, true};
        experts_case(check, &s);
    }
}

/* Distinct experts among the first `rows` of the call. */
static int32_t distinct_experts(const struct experts_op *op) {
    int32_t distinct = 0;
    for (int32_t e = 0; e < op->experts; e++) {
        bool is_used = false;
        for (int32_t i = 0; i < op->rows * op->chosen; i++) {
            is_used = is_used || op->ids[i] == e;
        }
        distinct += is_used ? 1 : 0;
    }
    return distinct;
}

#define BENCH_VARIANTS 8

void bench_experts(struct check *check) {
    static const int32_t counts[] = {1, 8, 64, 512, 4096};
    struct check_model m = check_model(check, CHECK_RELEASE);
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int32_t rows = check->emulated ? 1 + (int32_t)i : counts[i];
        if (check_case(check, "route", "%d rows", rows)) {
            struct route_op op = make_route(check, rows, m.experts, m.chosen);
            struct check_bench bench = {call_route, &op, sizeof op, 1, 0, 0};
            bench.bytes = 4.0 * rows * (m.experts + 2 * m.chosen);
            check_bench(check, &bench);
        }
    }
    struct experts_shape s = {
        counts[COUNT_OF(counts) - 1],
        m.dim,
        m.hidden,
        m.experts,
        m.chosen,
        DTYPE_FP4,
        CHECK_PLAUSIBLE,
        10.0F,
        false};
    s.rows = check->emulated ? (int32_t)COUNT_OF(counts) : s.rows;
    if (!check_case(check, "experts", "all rows")) {
        return;
    }
    struct experts_call all = make_experts(check, &s); // its weights serve for every row count
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int32_t rows = check->emulated ? 1 + (int32_t)i : counts[i];
        struct experts_call calls[BENCH_VARIANTS];
        double bytes = 0;
        // Other rows each time, so other experts.
        for (int32_t v = 0; v < BENCH_VARIANTS; v++) {
            struct experts_op *op = &calls[v].op;
            calls[v] = all;
            int32_t first = (v + 1) * rows <= s.rows ? v * rows : 0;
            op->rows = rows;
            op->x.codes += (size_t)first * (size_t)s.dim;
            op->x.scales += (size_t)first * (size_t)(s.dim / 32);
            op->ids += (size_t)first * (size_t)s.chosen;
            op->weights += (size_t)first * (size_t)s.chosen;
            double weights = 3.0 * s.dim * s.hidden;
            bytes += weights * (distinct_experts(op) * (0.5 + 1.0 / 32) + 1.0);
        }
        snprintf(check->shape, sizeof check->shape, "%d rows", rows);
        struct check_bench bench = {check_call_experts, calls, sizeof *calls, BENCH_VARIANTS, 0, 0};
        bench.bytes = bytes / BENCH_VARIANTS;
        bench.operations = 6.0 * rows * (s.chosen + 1) * s.dim * s.hidden;
        check_bench(check, &bench);
    }
}
