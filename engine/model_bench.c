/* Steps over made-up contexts, timed as wholes and op by op. See model_bench.h. */
#include "model_bench.h"

#include "engram.h"
#include "forward.h"
#include "model_bench_ops.h"
#include "model_device.h"
#include "tokenizer.h"

#include <time.h>

#define WARM_STEPS  3
#define REPEATS_MAX 64
#define VARIANTS    16 /* different blocks of made-up entries */
#define PREFILL_BEYOND                                                                             \
    (1 << 20) /* rows of the prompt behind a timed chunk: the encoder half alone */

struct model_bench {
    const struct model_bench_options *options;
    struct model_bench_report *report;
    struct model *model;
    struct tokenizer *tokenizer;
    struct engram *engram;
    struct backend *backend;
    struct kv_cache cache;
    struct forward *forward;
    struct kv_layout layout;
    struct backend_staging logits;
    uint8_t *variants; /* [VARIANTS, block_bytes] */
    uint8_t *ring;     /* one layer's */
    uint64_t random;
};

struct bench_case {
    bool is_prefill;
    int32_t batch, rows, context; /* rows: of each sequence */
};

/* ---- made-up contexts ---- */

static uint64_t next_random(struct model_bench *bench) {
    uint64_t x = bench->random; // xorshift64 (Marsaglia 2003)
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    bench->random = x;
    return x;
}

static void
fill_random(struct model_bench *bench, uint8_t *to, size_t bytes, uint8_t low, uint8_t span) {
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(low + next_random(bench) % span);
    }
}

/* Codes of any value; scales that give values near one: E4M3 0x28 to 0x37, E8M0 124 to 127. */
static void make_block(struct model_bench *bench, uint8_t *block) {
    const struct model_config *config = &bench->model->config;
    size_t codes = (size_t)config->head_dim / 2;
    size_t key = (size_t)config->index_dim;
    for (int32_t s = 0; s < bench->layout.source_count; s++) {
        const struct kv_source_layout *source = &bench->layout.sources[s];
        for (int32_t e = 0; e < source->entries; e++) {
            uint8_t *record = block + source->main_offset + (size_t)e * source->main_record_bytes;
            fill_random(bench, record, codes, 0, 255);
            fill_random(bench, record + codes, source->main_record_bytes - codes, 0x28, 16);
        }
        size_t entries = (size_t)source->entries;
        fill_random(bench, block + source->index_code_offset, entries * key / 2, 0, 255);
        fill_random(bench, block + source->index_scale_offset, entries * key / 32, 124, 4);
    }
}

/* FP8 codes below NaN, scales E8M0 118 to 121: values near one. */
static void make_ring(struct model_bench *bench) {
    size_t dim = (size_t)bench->model->config.head_dim;
    size_t record = window_record_bytes(bench->model->config.head_dim);
    for (int32_t w = 0; w < bench->model->config.window; w++) {
        uint8_t *to = bench->ring + (size_t)w * record;
        fill_random(bench, to, dim, 0x20, 0x38);
        for (size_t i = 0; i < dim; i++) {
            to[i] |= (uint8_t)((next_random(bench) & 1) << 7);
        }
        fill_random(bench, to + dim, record - dim, 120, 4);
    }
}

static int32_t random_id(struct model_bench *bench) {
    return (int32_t)(next_random(bench) % (uint64_t)bench->model->config.vocabulary);
}

static void append_ids(struct model_bench *bench, struct kv_sequence *sequence, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t id = random_id(bench);
        int32_t compressed = bench->engram == NULL ? 0 : engram_compress(bench->engram, id);
        kv_cache_append(&bench->cache, sequence, id, compressed);
    }
}

/* A sequence that looks as if it had computed `context` tokens, with room for `more`. */
static result make_context(
    struct model_bench *bench,
    int32_t context,
    int32_t more,
    struct kv_sequence **out,
    struct error *error
) {
    const struct model_config *config = &bench->model->config;
    struct kv_sequence *sequence = kv_cache_acquire(&bench->cache);
    ASSERT(sequence != NULL);
    TRY(kv_cache_reserve(&bench->cache, sequence, context + more, error));
    append_ids(bench, sequence, context);
    for (int32_t b = 0; b < (context + more + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS; b++) {
        size_t variant = (size_t)(next_random(bench) % VARIANTS);
        bench->backend->upload(
            bench->backend,
            sequence->blocks[b],
            bench->variants + variant * bench->layout.block_bytes,
            bench->layout.block_bytes
        );
    }
    for (int32_t l = 0; l < config->layers; l++) {
        size_t bytes = (size_t)config->window * window_record_bytes(config->head_dim);
        make_ring(bench);
        bench->backend->upload(
            bench->backend, kv_cache_ring(&bench->cache, sequence, l), bench->ring, bytes
        );
    }
    sequence->computed = context;
    *out = sequence;
    return OK;
}

/* ---- opening ---- */

/* Rows that a case adds to each sequence: warm-up, timed, counted and stamped steps. */
static int32_t case_tokens(const struct model_bench *bench, const struct bench_case *one) {
    return one->rows * (2 * WARM_STEPS + 2 * bench->options->repeats + 1);
}

static result open_engram(struct model_bench *bench, struct error *error) {
    const struct model_config *config = &bench->model->config;
    if (config->engram_count == 0) {
        return OK;
    }
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/tokenizer.json", bench->options->model_directory);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the model's path is too long");
    }
    TRY_NOTE(error, tokenizer_load(&bench->tokenizer, path, error), "for the Engram tables");
    struct engram_options options = model_engram_options(config);
    return engram_create(&bench->engram, bench->tokenizer, &options, error);
}

static size_t
list_cases(const struct model_bench *bench, struct bench_case cases[MODEL_BENCH_CASES_MAX]) {
    const struct model_bench_options *options = bench->options;
    size_t count = 0;
    for (int32_t c = 0; c < options->context_count; c++) {
        for (int32_t b = 0; b < options->batch_count && count < MODEL_BENCH_CASES_MAX; b++) {
            cases[count++] =
                (struct bench_case){false, options->batches[b], 1, options->contexts[c]};
        }
        for (int32_t p = 0; p < options->chunk_count && count < MODEL_BENCH_CASES_MAX; p++) {
            cases[count++] = (struct bench_case){true, 1, options->chunks[p], options->contexts[c]};
        }
    }
    return count;
}

static uint64_t case_blocks(const struct model_bench *bench, const struct bench_case *one) {
    uint64_t tokens = (uint64_t)one->context + (uint64_t)case_tokens(bench, one);
    return (uint64_t)one->batch * ((tokens + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS + 1);
}

/* Bytes beside weights and scratch that may be used; without a device the caller's to know. */
static uint64_t bytes_free(const struct model_bench *bench) {
    struct backend_facts facts;
    struct model_config config;
    struct model_size size;
    struct model_device_size weights = {0};
    if (is_ok(model_measure(bench->options->model_directory, &config, &size, NULL))) {
        model_device_measure(&config, &size, &weights);
    }
    const char *name = bench->options->backend == NULL ? "cpu" : bench->options->backend;
    if (is_failed(backend_probe(name, 0, &facts, NULL)) || facts.is_host_memory) {
        return UINT64_MAX;
    }
    uint64_t usable = facts.memory_free - facts.memory_free / 20;
    uint64_t taken = weights.weight_bytes + weights.table_bytes;
    return usable > taken ? usable - taken : 0;
}

struct bench_shape {
    int32_t sequences, rows, context;
    uint64_t blocks;
};

/* The largest of the cases that fit. Those that do not are taken out of the list and noted. */
static struct bench_shape
choose_shape(struct model_bench *bench, struct bench_case *cases, size_t *count) {
    struct bench_shape shape = {1, 1, 1, 1};
    uint64_t free_bytes = bytes_free(bench);
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        const struct bench_case *one = &cases[i];
        int64_t tokens = (int64_t)one->context + case_tokens(bench, one);
        uint64_t blocks = case_blocks(bench, one);
        bool is_long = tokens > bench->model->config.positions_max;
        if (is_long || blocks * bench->layout.block_bytes > free_bytes) {
            struct model_bench_report *report = bench->report;
            char *why = report->skipped[report->skipped_count++];
            int length = snprintf(
                why, sizeof report->skipped[0], "batch %d at %d tokens: ", one->batch, one->context
            );
            ASSERT(length > 0 && (size_t)length < sizeof report->skipped[0]);
            size_t room = sizeof report->skipped[0] - (size_t)length;
            if (is_long) {
                (void)snprintf(
                    why + length,
                    room,
                    "%lld positions, the model has %lld",
                    (long long)tokens,
                    (long long)bench->model->config.positions_max
                );
            } else {
                (void)snprintf(
                    why + length,
                    room,
                    "%llu bytes of KV, %llu free",
                    (unsigned long long)(blocks * bench->layout.block_bytes),
                    (unsigned long long)free_bytes
                );
            }
            continue;
        }
        int32_t rows = one->batch * one->rows;
        shape.sequences = one->batch > shape.sequences ? one->batch : shape.sequences;
        shape.rows = rows > shape.rows ? rows : shape.rows;
        shape.context = tokens > shape.context ? (int32_t)tokens : shape.context;
        shape.blocks = blocks > shape.blocks ? blocks : shape.blocks;
        cases[kept++] = *one;
    }
    *count = kept;
    return shape;
}

static result
open_forward(struct model_bench *bench, const struct bench_shape *shape, struct error *error) {
    const struct model_config *config = &bench->model->config;
    struct backend_options backend;
    forward_backend_options(config, shape->rows, shape->context, &backend);
    backend.name = bench->options->backend;
    backend.threads = bench->options->threads;
    TRY(backend_open(&backend, &bench->backend, error));
    if (!bench->backend->is_host_memory) {
        TRY(model_to_device(bench->model, bench->backend, false, error));
    }
    struct kv_cache_shape cache = {
        .context_max = shape->context,
        .sequences_max = shape->sequences,
        .block_total = (int32_t)shape->blocks,
        .windows_max = shape->sequences,
    };
    TRY(kv_cache_init_shape(&bench->cache, bench->backend, &bench->layout, &cache, error));
    struct forward_options forward = {.rows_max = shape->rows, .sequences_max = shape->sequences};
    TRY(forward_create(
        &bench->forward, bench->model, bench->engram, bench->backend, &bench->cache, &forward, error
    ));
    size_t vocabulary = (size_t)config->vocabulary;
    TRY(backend_staging_take(
        bench->backend,
        (size_t)shape->sequences * vocabulary * sizeof(float),
        &bench->logits,
        NULL,
        error
    ));
    bench->variants = malloc(VARIANTS * bench->layout.block_bytes + 1);
    bench->ring = malloc(bench->layout.ring_bytes);
    if (bench->variants == NULL || bench->ring == NULL) {
        FAIL(error, MEMORY, "no memory for made-up blocks");
    }
    for (size_t v = 0; v < VARIANTS; v++) {
        make_block(bench, bench->variants + v * bench->layout.block_bytes);
    }
    return OK;
}

/* ---- steps ---- */

struct bench_run {
    const struct bench_case *one;
    struct kv_sequence **sequences; /* [batch] */
    struct forward_segment *segments;
};

static double now_seconds(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One step, logits of decode rows included. `device`: from the first op to the last, where ops can be
 * stamped; may be null. */
static result run_step(
    struct model_bench *bench,
    struct bench_run *run,
    double *seconds,
    double *device,
    struct error *error
) {
    struct backend *backend = bench->backend;
    bool is_stamped = device != NULL && backend->stamp != NULL;
    const struct bench_case *one = run->one;
    for (int32_t s = 0; s < one->batch; s++) {
        struct kv_sequence *sequence = run->sequences[s];
        append_ids(bench, sequence, one->rows);
        run->segments[s] = (struct forward_segment){
            .sequence = sequence,
            .position = sequence->computed,
            .count = one->rows,
            .prompt_end = sequence->length + (one->is_prefill ? PREFILL_BEYOND : 0),
            .logits = one->is_prefill ? FORWARD_LOGITS_NONE : FORWARD_LOGITS_LAST,
        };
    }
    double start = now_seconds();
    if (is_stamped) {
        backend->stamp(backend, 0);
    }
    TRY(forward_step(bench->forward, run->segments, one->batch, NULL, error));
    if (is_stamped) {
        backend->stamp(backend, 1);
    }
    int32_t rows = forward_logit_rows(bench->forward);
    TRY(forward_logits(bench->forward, 0, rows, bench->logits.memory, error));
    *seconds = now_seconds() - start;
    if (is_stamped) {
        TRY(backend->synchronize(backend, error)); // without logits nobody has waited
        *device = backend->stamp_seconds(backend, 0, 1);
    }
    return OK;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

static double floor_of(const struct model_bench_report *report, const struct meter_label *label) {
    if (report->read_rate <= 0 || report->bf16_rate <= 0) {
        return 0;
    }
    double reading = label->bytes / report->read_rate;
    double computing = label->operations / report->bf16_rate;
    double launching = label->calls * report->launch_seconds;
    double longer = reading > computing ? reading : computing;
    return longer > launching ? longer : launching;
}

static result add_row(
    struct model_bench *bench,
    const struct bench_case *one,
    const struct meter_label *label,
    double times[REPEATS_MAX],
    struct error *error
) {
    struct model_bench_report *report = bench->report;
    if (report->row_count == report->row_capacity) {
        size_t capacity = 2 * report->row_capacity + 64;
        void *grown = realloc(report->rows, capacity * sizeof *report->rows);
        if (grown == NULL) {
            FAIL(error, MEMORY, "no memory for %zu lines of the table", capacity);
        }
        report->rows = grown;
        report->row_capacity = capacity;
    }
    int32_t repeats = bench->options->repeats;
    qsort(times, (size_t)repeats, sizeof *times, compare_doubles);
    struct model_bench_row *row = &report->rows[report->row_count++];
    *row = (struct model_bench_row){
        .kind = MODEL_BENCH_KERNEL,
        .is_prefill = one->is_prefill,
        .batch = one->batch,
        .rows = one->batch * one->rows,
        .context = one->context,
        .calls = label->calls,
        .seconds = times[repeats / 2],
        .seconds_min = times[0],
        .seconds_max = times[repeats - 1],
        .floor_seconds = floor_of(report, label),
        .bytes = label->bytes,
        .operations = label->operations,
    };
    (void)snprintf(row->label, sizeof row->label, "%s", label->text);
    return OK;
}

/* Bytes and operations of a step, by op. */
static result count_step(struct model_bench *bench, struct bench_run *run, struct error *error) {
    double seconds = 0;
    meter_reset();
    meter_attach(bench->backend, METER_COUNT);
    result ran = run_step(bench, run, &seconds, NULL, error);
    meter_detach(bench->backend);
    return ran;
}

static result time_step(struct model_bench *bench, struct bench_run *run, struct error *error) {
    double times[REPEATS_MAX] = {0};
    double device[REPEATS_MAX] = {0};
    double seconds = 0;
    int32_t repeats = bench->options->repeats;
    for (int32_t i = 0; i < WARM_STEPS; i++) {
        TRY(run_step(bench, run, &seconds, NULL, error));
    }
    for (int32_t i = 0; i < repeats; i++) {
        TRY(run_step(bench, run, &times[i], &device[i], error));
    }
    struct meter_label whole = {.text = "step", .calls = 1};
    double floors = 0;
    for (int32_t i = 0; i < meter_label_count(); i++) {
        const struct meter_label *label = meter_label_get(i);
        whole.bytes += label->bytes;
        whole.operations += label->operations;
        floors += floor_of(bench->report, label);
    }
    TRY(add_row(bench, run->one, &whole, times, error));
    struct model_bench_row *row = &bench->report->rows[bench->report->row_count - 1];
    row->kind = MODEL_BENCH_STEP;
    row->floor_seconds = floors; // ops follow each other: their floors add up
    qsort(device, (size_t)repeats, sizeof *device, compare_doubles);
    row->device_seconds = device[repeats / 2];
    return OK;
}

static result time_kernels(struct model_bench *bench, struct bench_run *run, struct error *error) {
    static double times[METER_LABELS_MAX][REPEATS_MAX];
    double seconds = 0;
    // steps of a prompt are not recorded: what stamps cost there is not known, and little beside them
    double stamps = run->one->is_prefill ? 0 : bench->report->stamp_seconds;
    result ran = OK;
    meter_attach(bench->backend, METER_STAMP);
    for (int32_t i = 0; i < WARM_STEPS + bench->options->repeats && is_ok(ran); i++) {
        meter_begin_step();
        ran = run_step(bench, run, &seconds, NULL, error);
        if (is_failed(ran)) {
            break;
        }
        meter_collect(bench->backend);
        for (int32_t l = 0; i >= WARM_STEPS && l < meter_label_count(); l++) {
            const struct meter_label *label = meter_label_get(l);
            times[l][i - WARM_STEPS] = label->seconds - label->calls * stamps;
        }
    }
    meter_detach(bench->backend);
    TRY(ran);
    for (int32_t l = 0; l < meter_label_count(); l++) {
        TRY(add_row(bench, run->one, meter_label_get(l), times[l], error));
    }
    return OK;
}

static result run_on(struct model_bench *bench, struct bench_run *run, struct error *error) {
    const struct bench_case *one = run->one;
    for (int32_t s = 0; s < one->batch; s++) {
        TRY(make_context(bench, one->context, case_tokens(bench, one), &run->sequences[s], error));
    }
    TRY(count_step(bench, run, error));
    TRY(time_step(bench, run, error));
    if (bench->backend->stamp != NULL) {
        TRY(time_kernels(bench, run, error));
    }
    return OK;
}

static result
run_case(struct model_bench *bench, const struct bench_case *one, struct error *error) {
    if (bench->options->progress != NULL) {
        char line[160];
        (void)snprintf(
            line,
            sizeof line,
            "%s: %d sequence(s) of %d row(s) at %d tokens",
            one->is_prefill ? "prefill" : "decode",
            one->batch,
            one->rows,
            one->context
        );
        bench->options->progress(bench->options->progress_context, line);
    }
    size_t batch = (size_t)one->batch;
    CLEANUP(free_cleanup) struct kv_sequence **sequences = calloc(batch, sizeof(void *));
    CLEANUP(free_cleanup) struct forward_segment *segments = calloc(batch, sizeof *segments);
    if (sequences == NULL || segments == NULL) {
        FAIL(error, MEMORY, "no memory for %zu segments", batch);
    }
    struct bench_run run = {one, sequences, segments};
    result ran = run_on(bench, &run, error);
    for (size_t s = 0; s < batch; s++) {
        if (sequences[s] != NULL) {
            kv_cache_release(&bench->cache, sequences[s]);
        }
    }
    return ran;
}

/* ---- the whole ---- */

static void bench_close(struct model_bench *bench) {
    forward_destroy(bench->forward);
    kv_cache_deinit(&bench->cache);
    model_close(bench->model); // its device memory is the backend's
    backend_staging_release(bench->backend, &bench->logits);
    backend_close(bench->backend);
    engram_destroy(bench->engram);
    tokenizer_destroy(bench->tokenizer);
    free(bench->variants);
    free(bench->ring);
}

static result fill_facts(struct model_bench *bench, struct error *error) {
    struct model_bench_report *report = bench->report;
    struct backend *backend = bench->backend;
    (void)snprintf(report->backend, sizeof report->backend, "%s", backend->description);
    report->layers = bench->model->config.layers;
    report->experts = bench->model->config.experts;
    report->kv_bytes_per_token = kv_layout_token_bytes(&bench->layout);
    if (backend->ceilings != NULL) {
        struct backend_ceilings ceilings;
        TRY(backend->ceilings(backend, &ceilings, error));
        report->read_rate = ceilings.read_bytes;
        report->copy_rate = ceilings.copy_bytes;
        report->bf16_rate = ceilings.bf16_operations;
        report->fp8_rate = ceilings.fp8_operations;
        report->launch_seconds = ceilings.launch_seconds;
        report->stamp_seconds = ceilings.stamp_seconds;
    }
    return OK;
}

static result bench_all(struct model_bench *bench, struct error *error) {
    TRY(model_open(bench->options->model_directory, &bench->model, error));
    TRY(kv_layout_make(&bench->model->config, &bench->layout, error));
    TRY(open_engram(bench, error));
    struct bench_case cases[MODEL_BENCH_CASES_MAX];
    size_t count = list_cases(bench, cases);
    struct bench_shape shape = choose_shape(bench, cases, &count);
    if (count == 0) {
        FAIL(
            error,
            LIMIT,
            "none of the cases fits: %s",
            bench->report->skipped_count > 0 ? bench->report->skipped[0] : "none was asked for"
        );
    }
    TRY(open_forward(bench, &shape, error));
    TRY(fill_facts(bench, error));
    for (size_t i = 0; i < count; i++) {
        TRY(run_case(bench, &cases[i], error));
    }
    return OK;
}

result model_bench_run(
    const struct model_bench_options *options, struct model_bench_report *out, struct error *error
) {
    ASSERT(options->repeats > 0 && options->repeats <= REPEATS_MAX);
    *out = (struct model_bench_report){0};
    struct model_bench bench = {.options = options, .report = out, .random = 0x9E3779B97F4A7C15U};
    result ran = bench_all(&bench, error);
    bench_close(&bench);
    if (is_failed(ran)) {
        model_bench_deinit(out);
    }
    return ran;
}

void model_bench_deinit(struct model_bench_report *report) {
    free(report->rows);
    *report = (struct model_bench_report){0};
}
