/* The price of the fixed order: every op, and whole steps of the bundled model, with the product's
 * kernels and with the same sources built to sum in free order (free_order/, tests/order.cmake).
 *
 *   bench_order [PAIRS]      default 15; medians of interleaved pairs, processor time, one thread
 *
 * price = fixed / free - 1. The goal is 8 % in decode and 5 % in prefill. */
#include "examples/kernel_cases.h"

#include <math.h>
#include <time.h>

#include "forward_support.h"

#define PAIRS_MAX    1000
#define CASES_MAX    64
#define BATCH_NS     300000 /* of one sample of an op */
#define PROMPT       512
#define LONG_PROMPT  1024
#define CHUNK        256
#define SEQUENCES    64
#define ROWS_CHOICES 5

void cpu_fill_table_free(struct backend *backend);

static const int32_t rows_choices[ROWS_CHOICES] = {1, 4, 16, 64, 256};
static int32_t pairs = 15;

static double now_us(void) {
    struct timespec now;
    int status = clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    ASSERT(status == 0);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Samples of both builds, taken in turn. */
struct samples {
    double fixed[PAIRS_MAX], free[PAIRS_MAX];
    int32_t count;
};

static void report(const char *name, struct samples *samples) {
    size_t count = (size_t)samples->count;
    static double prices[PAIRS_MAX];
    for (size_t i = 0; i < count; i++) {
        prices[i] = samples->fixed[i] / samples->free[i];
    }
    qsort(prices, count, sizeof *prices, compare_doubles);
    qsort(samples->fixed, count, sizeof *samples->fixed, compare_doubles);
    qsort(samples->free, count, sizeof *samples->free, compare_doubles);
    printf(
        "%-48s %10.1f %10.1f %+7.1f %%\n",
        name,
        samples->fixed[count / 2],
        samples->free[count / 2],
        100 * (prices[count / 2] - 1)
    );
}

static double time_op(struct backend *backend, const struct bench_case *bench, int32_t times) {
    double start = now_us();
    for (int32_t i = 0; i < times; i++) {
        bench->run(backend, bench->op);
    }
    return (now_us() - start) / times;
}

static void
time_case(struct backend *fixed, struct backend *free_order, const struct bench_case *bench) {
    static struct samples samples;
    double once = time_op(fixed, bench, 1);
    once = fmin(once, time_op(fixed, bench, 1));
    int32_t times = once * 1e3 >= BATCH_NS ? 1 : (int32_t)(BATCH_NS / (once * 1e3 + 1)) + 1;
    (void)time_op(free_order, bench, times);
    for (samples.count = 0; samples.count < pairs; samples.count++) {
        samples.fixed[samples.count] = time_op(fixed, bench, times);
        samples.free[samples.count] = time_op(free_order, bench, times);
    }
    report(bench->name, &samples);
}

/* At the bundled model's shapes. */
static size_t mini_cases(struct bench_case cases[CASES_MAX], int32_t rows) {
    size_t n = 0;
    cases[n++] = linear_case("fp8", DTYPE_FP8, rows, 256, 256);
    cases[n++] = linear_case("fp8", DTYPE_FP8, rows, 128, 512);
    cases[n++] = linear_case("bf16", DTYPE_BF16, rows, 256, 4096);
    cases[n++] = experts_case(rows, 256, 160, 4);
    cases[n++] = attention_case(rows, 8, 64, 64, 64);
    cases[n++] = select_case(rows, 4, 32, 64, 2000);
    cases[n++] = mix_case(rows, 256);
    return n;
}

/* A quarter of the release's widths, so that many rows do not take minutes. */
static size_t release_cases(struct bench_case cases[CASES_MAX], int32_t rows) {
    size_t n = 0;
    cases[n++] = linear_case("fp8", DTYPE_FP8, rows, 5120, 1280);
    cases[n++] = linear_case("fp4", DTYPE_FP4, rows, 5120, 1280);
    cases[n++] = linear_case("bf16", DTYPE_BF16, rows, 5120, 1280);
    cases[n++] = experts_case(rows, 2560, 576, 6);
    cases[n++] = attention_case(rows, 64, 512, 128, 512);
    cases[n++] = select_case(rows, 32, 128, 512, 8000);
    cases[n++] = mix_case(rows, 5120);
    return n;
}

static void time_ops(
    const char *title, size_t (*make)(struct bench_case[CASES_MAX], int32_t), int32_t rows_max
) {
    static struct bench_case cases[CASES_MAX];
    struct backend *fixed = bench_backend_open(FREE_ORDER_ISA, 1);
    if (fixed == NULL) {
        exit(1);
    }
    struct backend free_order = *fixed;
    cpu_fill_table_free(&free_order);
    printf("\n%-48s %10s %10s %9s\n", title, "fixed us", "free us", "price");
    for (size_t r = 0; r < ROWS_CHOICES && rows_choices[r] <= rows_max; r++) {
        size_t count = make(cases, rows_choices[r]);
        for (size_t i = 0; i < count; i++) {
            time_case(fixed, &free_order, &cases[i]);
        }
    }
    backend_close(fixed);
}

/* ---- where a step spends its time ---- */

#define OP_NUMBER(name) OP_##name,
enum op_number { BACKEND_OPS(OP_NUMBER) OP_COUNT };
#define OP_NAME(name) #name,
static const char *const op_names[OP_COUNT] = {BACKEND_OPS(OP_NAME)};
static double op_us[OP_COUNT];
static struct backend op_table; /* what is timed */
#define OP_TIMED(name)                                                                             \
    static void timed_##name(struct backend *backend, const struct name##_op *op) {                \
        double start = now_us();                                                                   \
        op_table.name(backend, op);                                                                \
        op_us[OP_##name] += now_us() - start;                                                      \
    }
BACKEND_OPS(OP_TIMED)
#define OP_FILL(name) backend->name = timed_##name;

static void time_each_op(struct backend *backend) {
    op_table = *backend;
    memset(op_us, 0, sizeof op_us);
    BACKEND_OPS(OP_FILL)
}

/* Shares of at least 1 %. Timing takes some 0.1 us a call. */
static void report_ops(const char *name, double steps) {
    double sum = 0;
    for (size_t i = 0; i < OP_COUNT; i++) {
        sum += op_us[i];
    }
    printf("  %s, %.0f us in ops:", name, sum / steps);
    for (size_t i = 0; i < OP_COUNT; i++) {
        if (op_us[i] >= 0.01 * sum) {
            printf(" %s %.0f %%", op_names[i], 100 * op_us[i] / sum);
        }
    }
    printf("\n");
}

/* ---- steps of the bundled model ---- */

static void fill_ids(int32_t *ids, int32_t count, uint32_t seed, int32_t vocabulary) {
    for (int32_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)vocabulary);
    }
}

static double
decode_step(struct bench *bench, struct kv_sequence **sequences, int32_t count, float *logits) {
    struct forward_segment segments[SEQUENCES] = {{0}};
    for (int32_t s = 0; s < count; s++) {
        int32_t id = (sequences[s]->length * 7 + s) % bench->config->vocabulary;
        bench_append(bench, sequences[s], &id, 1);
        segments[s] = (struct forward_segment){
            .sequence = sequences[s],
            .position = sequences[s]->computed,
            .count = 1,
            .prompt_end = sequences[s]->length,
            .logits = FORWARD_LOGITS_LAST,
        };
    }
    double start = now_us();
    MUST(forward_step(bench->forward, segments, count, NULL, error));
    MUST(forward_logits(bench->forward, 0, count, logits, error));
    return now_us() - start;
}

/* Which build the forward pass runs on; its backend is the same memory with another table. */
static void use_order(struct bench *bench, struct backend tables[2], bool is_free) {
    void *state = bench->backend->state;
    *bench->backend = tables[is_free ? 1 : 0];
    ASSERT(bench->backend->state == state);
}

static void time_decode(struct bench *bench, struct backend tables[2], float *logits) {
    static struct samples samples;
    struct kv_sequence *sequences[SEQUENCES];
    int32_t ids[PROMPT];
    for (int32_t s = 0; s < SEQUENCES; s++) {
        fill_ids(ids, PROMPT, (uint32_t)s, bench->config->vocabulary);
        sequences[s] = bench_sequence(bench, ids, PROMPT);
        bench_run(bench, sequences[s], PROMPT, CHUNK, false, NULL, NULL);
    }
    for (size_t r = 0; r < ROWS_CHOICES && rows_choices[r] <= SEQUENCES; r++) {
        int32_t rows = rows_choices[r];
        int32_t steps = rows == 1 ? 16 : (rows == 4 ? 4 : 1);
        for (samples.count = 0; samples.count < pairs; samples.count++) {
            double sums[2] = {0, 0};
            for (int32_t i = 0; i < 2 * steps; i++) {
                use_order(bench, tables, i % 2 == 1);
                sums[i % 2] += decode_step(bench, sequences, rows, logits);
            }
            samples.fixed[samples.count] = sums[0] / steps;
            samples.free[samples.count] = sums[1] / steps;
        }
        char name[64];
        (void)snprintf(name, sizeof name, "decode, %d rows at %d tokens", rows, PROMPT);
        report(name, &samples);
        use_order(bench, tables, false);
        time_each_op(bench->backend);
        for (int32_t i = 0; i < pairs; i++) {
            (void)decode_step(bench, sequences, rows, logits);
        }
        report_ops(name, pairs);
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        kv_cache_release(&bench->cache, sequences[s]);
    }
}

static void time_prefill(struct bench *bench, struct backend tables[2]) {
    static struct samples samples;
    static int32_t ids[LONG_PROMPT];
    fill_ids(ids, LONG_PROMPT, 1, bench->config->vocabulary);
    for (samples.count = 0; samples.count < pairs; samples.count++) {
        for (int32_t order = 0; order < 2; order++) {
            use_order(bench, tables, order == 1);
            struct kv_sequence *sequence = bench_sequence(bench, ids, LONG_PROMPT);
            double start = now_us();
            bench_run(bench, sequence, LONG_PROMPT, CHUNK, false, NULL, NULL);
            double took = (now_us() - start) * CHUNK / LONG_PROMPT;
            (order == 1 ? samples.free : samples.fixed)[samples.count] = took;
            kv_cache_release(&bench->cache, sequence);
        }
    }
    report("prefill, 256 rows of a prompt of 1024", &samples);
}

static void time_steps(void) {
    struct bench bench;
    struct bench_options options = {
        .model = "mini",
        .isa = FREE_ORDER_ISA,
        .threads = 1,
        .rows_max = CHUNK,
        .sequences_max = SEQUENCES,
        .context_max = 16384,
    };
    bench_open(&bench, &options);
    float *logits = calloc((size_t)SEQUENCES * (size_t)bench.config->vocabulary, sizeof *logits);
    ASSERT(logits != NULL);
    struct backend tables[2] = {*bench.backend, *bench.backend};
    cpu_fill_table_free(&tables[1]);
    printf("\n%-48s %10s %10s %9s\n", "whole steps, bundled model", "fixed us", "free us", "price");
    time_decode(&bench, tables, logits);
    time_prefill(&bench, tables);
    use_order(&bench, tables, false);
    free(logits);
    bench_close(&bench);
}

int main(int argc, char **argv) {
    uint64_t wanted = (uint64_t)pairs;
    if (argc > 2 || (argc == 2 && (!parse_u64(view_of_text(argv[1]), &wanted) || wanted == 0 ||
                                   wanted > PAIRS_MAX))) {
        (void)fprintf(stderr, "usage: bench_order [PAIRS: 1 to %d]\n", PAIRS_MAX);
        return 2;
    }
    pairs = (int32_t)wanted;
    time_steps();
    time_ops("bundled model's shapes", mini_cases, CHUNK);
    time_ops("a quarter of the release's shapes", release_cases, SEQUENCES);
    return 0;
}
