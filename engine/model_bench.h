/* What a model costs on a backend: steps of decode and prefill over batch sizes and contexts, and the
 * kernels of each, beside the least time that their bytes and operations take on this machine.
 *
 * Contexts are made up: random but valid entries and windows, never zeros. The model needs no
 * tokenizer unless it has Engram tables. Thread: any one; nothing else may use the device.
 */
#ifndef HEARTH_ENGINE_MODEL_BENCH_H
#define HEARTH_ENGINE_MODEL_BENCH_H

#include "base/bytes.h"

#define MODEL_BENCH_CASES_MAX 32
#define MODEL_BENCH_LABEL     64

struct model_bench_options {
    const char *model_directory;
    const char *backend;                                    /* "cpu", "cuda" */
    int32_t threads;                                        /* of the CPU backend; 0: one a core */
    int32_t batches[MODEL_BENCH_CASES_MAX], batch_count;    /* decode: sequences, one row each */
    int32_t contexts[MODEL_BENCH_CASES_MAX], context_count; /* tokens before the step */
    int32_t chunks[MODEL_BENCH_CASES_MAX], chunk_count;     /* prefill: rows of one sequence */
    int32_t repeats;                                        /* timed steps of each case */
    /* Called with a line for each case as it begins, on the caller's thread; null: not. */
    void (*progress)(void *context, const char *line);
    void *progress_context;
};

enum model_bench_kind {
    MODEL_BENCH_STEP, /* a whole step, recorded where the backend can; nothing in between is timed */
    MODEL_BENCH_KERNEL /* all calls of one op with one shape in a step */
};

/* One line of the table. A floor is the largest of bytes over the measured rate of reads, operations
 * over the measured rate of products, and one launch for each call; 0 when the backend cannot measure
 * them. What stamps around a kernel cost is taken off its seconds. */
struct model_bench_row {
    enum model_bench_kind kind;
    bool is_prefill;
    int32_t batch, rows, context;  /* rows: of the whole step */
    char label[MODEL_BENCH_LABEL]; /* "step", "linear fp8 1280 -> 32768" */
    int32_t calls;
    double seconds; /* median over the repeats */
    double seconds_min, seconds_max;
    double device_seconds; /* of a step: from its first op to its last, median; 0: not known */
    double floor_seconds;
    double bytes, operations;
};

struct model_bench_report {
    char backend[128]; /* description */
    uint64_t memory_total;
    double read_rate, copy_rate; /* bytes a second, copies count both ways; 0: not measured */
    double bf16_rate, fp8_rate;  /* operations a second */
    double launch_seconds;       /* of the least op of a recorded step; 0: not measured */
    double stamp_seconds;        /* what stamps around an op add, each call; 0: nothing */
    int32_t layers, experts;
    uint64_t kv_bytes_per_token;
    uint64_t weight_bytes;
    struct model_bench_row *rows;
    size_t row_count, row_capacity;
    char skipped[MODEL_BENCH_CASES_MAX][160]; /* cases that do not fit, and why */
    int32_t skipped_count;
};

/* Expected errors: those of opening a model and a backend, LIMIT (nothing fits), DEVICE. */
MUST_CHECK result model_bench_run(
    const struct model_bench_options *options, struct model_bench_report *out, struct error *error
);
void model_bench_deinit(struct model_bench_report *report);

#endif
