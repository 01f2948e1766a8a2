/* See forward_support.h. */
#include "forward_support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

_Noreturn void bench_fail(const char *file, int line, const char *message) {
    print_error("%s:%d: %s\n", file, line, message);
    _fail(file, line);
    abort();
}

static bool strip_file(char path[TEST_PATH_MAX], const char *file) {
    size_t length = strlen(path);
    size_t tail = strlen(file) + 1;
    ASSERT(length > tail);
    path[length - tail] = '\0';
    return true;
}

bool bench_find_model(char path[TEST_PATH_MAX], const char *model) {
    const char *file = "config.json";
    if (strcmp(model, "mini") == 0) {
        int length =
            snprintf(path, TEST_PATH_MAX, "%s", TEST_SOURCE_DIR "/examples/mini/model/config.json");
        ASSERT(length > 0 && length < TEST_PATH_MAX);
        return access(path, R_OK) == 0 && strip_file(path, file);
    }
    char relative[256];
    int length = snprintf(relative, sizeof relative, "%s/%s", model, file);
    ASSERT(length > 0 && (size_t)length < sizeof relative);
    return test_data_find(path, relative) && strip_file(path, file);
}

bool bench_find_vectors(char path[TEST_PATH_MAX], const char *model, const char *file) {
    const char *name = strrchr(model, '/');
    char relative[256];
    int length = snprintf(
        relative,
        sizeof relative,
        "golden/vectors/%s/%s.safetensors",
        name == NULL ? model : name + 1,
        file
    );
    ASSERT(length > 0 && (size_t)length < sizeof relative);
    return test_data_find_outside(path, relative) || test_data_find(path, relative);
}

void bench_open(struct bench *bench, const struct bench_options *options) {
    char directory[TEST_PATH_MAX];
    char path[TEST_PATH_MAX + 32];
    *bench = (struct bench){0};
    if (!bench_find_model(directory, options->model)) {
        bench_fail(__FILE__, __LINE__, options->model);
    }
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    MUST(model_open(directory, &bench->model, error));
    MUST(tokenizer_load(&bench->tokenizer, path, error));
    const struct model_config *config = &bench->model->config;
    bench->config = config;
    struct engram_options tables = model_engram_options(config);
    MUST(engram_create(&bench->engram, bench->tokenizer, &tables, error));
    struct backend_options shape;
    forward_backend_options(config, options->rows_max, options->context_max, &shape);
    shape.name = "cpu";
    shape.threads = options->threads == 0 ? 1 : options->threads;
    shape.isa = options->isa;
    MUST(backend_open(&shape, &bench->backend, error));
    bench->copies = calloc(1, sizeof *bench->copies);
    assert_non_null(bench->copies);
    if (!bench->backend->is_host_memory) {
        MUST(model_to_device(bench->model, bench->backend, false, error));
    }
    struct kv_layout layout;
    MUST(kv_layout_make(config, &layout, error));
    if (options->drafts) {
        kv_layout_add_draft(config, &layout);
    }
    int32_t sequences = options->sequences_max == 0 ? 1 : options->sequences_max;
    MUST(kv_cache_init(
        &bench->cache, bench->backend, &layout, options->context_max, sequences, error
    ));
    struct forward_options forward = {
        .rows_max = options->rows_max,
        .sequences_max = sequences,
        .drafted_rows_max = options->drafts ? options->rows_max : options->drafted_rows_max,
        .exports_targets = options->drafts || options->exports_targets,
    };
    MUST(forward_create(
        &bench->forward, bench->model, bench->engram, bench->backend, &bench->cache, &forward, error
    ));
    if (options->drafts) {
        MUST(draft_create(&bench->draft, bench->forward, error));
    }
}

void bench_close(struct bench *bench) {
    draft_destroy(bench->draft);
    forward_destroy(bench->forward);
    kv_cache_deinit(&bench->cache);
    model_close(bench->model);
    if (bench->backend != NULL) {
        backend_close(bench->backend);
    }
    engram_destroy(bench->engram);
    tokenizer_destroy(bench->tokenizer);
    for (size_t i = 0; bench->copies != NULL && i < BENCH_COPIES; i++) {
        free(bench->copies->memory[i]);
    }
    free(bench->copies);
    *bench = (struct bench){0};
}

const void *bench_read(const struct bench *bench, const void *memory, size_t bytes) {
    struct bench_copies *copies = bench->copies;
    void **copy = &copies->memory[copies->next++ % BENCH_COPIES];
    free(*copy);
    *copy = malloc(bytes + 1);
    assert_non_null(*copy);
    bench->backend->download(bench->backend, *copy, memory, bytes);
    MUST(bench->backend->synchronize(bench->backend, error));
    return *copy;
}

void bench_write(const struct bench *bench, void *memory, const void *from, size_t bytes) {
    bench->backend->upload(bench->backend, memory, from, bytes);
}

void bench_fill(const struct bench *bench, void *memory, int byte, size_t bytes) {
    void *filled = malloc(bytes + 1);
    assert_non_null(filled);
    memset(filled, byte, bytes);
    bench_write(bench, memory, filled, bytes);
    free(filled);
}

struct kv_sequence *bench_sequence(struct bench *bench, const int32_t *ids, int32_t count) {
    struct kv_sequence *sequence = kv_cache_acquire(&bench->cache);
    assert_non_null(sequence);
    bench_append(bench, sequence, ids, count);
    return sequence;
}

void bench_append(
    struct bench *bench, struct kv_sequence *sequence, const int32_t *ids, int32_t count
) {
    MUST(kv_cache_reserve(&bench->cache, sequence, sequence->length + count, error));
    for (int32_t i = 0; i < count; i++) {
        kv_cache_append(&bench->cache, sequence, ids[i], engram_compress(bench->engram, ids[i]));
    }
}

void bench_run(
    struct bench *bench,
    struct kv_sequence *sequence,
    int32_t end,
    int32_t chunk,
    bool all,
    float *logits,
    struct layer_counters *counters
) {
    size_t vocabulary = (size_t)bench->config->vocabulary;
    float *out = logits;
    while (sequence->computed < end) {
        int32_t left = end - sequence->computed;
        int32_t rows = left < chunk ? left : chunk;
        struct forward_segment segment = {
            .sequence = sequence,
            .position = sequence->computed,
            .count = rows,
            .prompt_end = end,
            .logits = all            ? FORWARD_LOGITS_ALL
                      : rows == left ? FORWARD_LOGITS_LAST
                                     : FORWARD_LOGITS_NONE,
            .window_floor_decoder = sequence->decoder_floor,
        };
        MUST(forward_step(bench->forward, &segment, 1, counters, error));
        int32_t with_logits = forward_logit_rows(bench->forward);
        assert_int_equal(with_logits, all ? rows : rows == left ? 1 : 0);
        if (logits != NULL) {
            MUST(forward_logits(bench->forward, 0, with_logits, out, error));
            out += (size_t)with_logits * vocabulary;
        }
        if (bench->draft != NULL) {
            MUST(draft_commit(bench->draft, &segment, NULL, 1, error));
        }
    }
}

void bench_assert_state_equal(
    const struct bench *a,
    const struct kv_sequence *x,
    const struct bench *b,
    const struct kv_sequence *y
) {
    assert_int_equal(x->computed, y->computed);
    const struct model_config *config = a->config;
    size_t key = (size_t)config->index_dim / 2;
    size_t scale = (size_t)config->index_dim / 32;
    size_t block_bytes = a->cache.layout.block_bytes;
    for (int32_t s = 0; s < config->kv_source_count; s++) {
        const struct kv_source_layout *source = &a->cache.layout.sources[s];
        const uint8_t *p = NULL;
        const uint8_t *q = NULL;
        for (int32_t g = 0; g < x->computed / source->ratio; g++) {
            size_t slot = (size_t)(g % source->entries);
            if (slot == 0) {
                p = bench_read(a, x->blocks[g / source->entries], block_bytes);
                q = bench_read(b, y->blocks[g / source->entries], block_bytes);
            }
            size_t at = source->main_offset + slot * source->main_record_bytes;
            assert_memory_equal(p + at, q + at, source->main_record_bytes);
            at = source->index_code_offset + slot * key;
            assert_memory_equal(p + at, q + at, key);
            at = source->index_scale_offset + slot * scale;
            assert_memory_equal(p + at, q + at, scale);
        }
        if (source->ratio == 2 && x->computed % 2 == 1) {
            size_t bytes = 2 * (size_t)config->head_dim * sizeof(float);
            assert_memory_equal(
                bench_read(a, kv_cache_pending(&a->cache, x, s), bytes),
                bench_read(b, kv_cache_pending(&b->cache, y, s), bytes),
                bytes
            );
        }
    }
    size_t record = window_record_bytes(config->head_dim);
    for (int32_t l = 0; l < config->layers; l++) {
        size_t bytes = (size_t)config->window * record;
        const uint8_t *p = bench_read(a, kv_cache_ring(&a->cache, x, l), bytes);
        const uint8_t *q = bench_read(b, kv_cache_ring(&b->cache, y, l), bytes);
        for (int32_t i = 1; i <= config->window && i <= x->computed; i++) {
            size_t slot = (size_t)((x->computed - i) % config->window);
            assert_memory_equal(p + slot * record, q + slot * record, record);
        }
    }
}

static void format_name(char name[256], const char *format, va_list arguments) {
    int length = vsnprintf(name, 256, format, arguments);
    ASSERT(length > 0 && length < 256);
}

bool vectors_has(const struct test_tensors *tensors, const char *format, ...) {
    char name[256];
    va_list arguments;
    va_start(arguments, format);
    format_name(name, format, arguments);
    va_end(arguments);
    struct test_tensor found;
    return test_tensors_get(tensors, name, &found);
}

const void *
vectors_get(const struct test_tensors *tensors, struct test_tensor *out, const char *format, ...) {
    char name[256];
    va_list arguments;
    va_start(arguments, format);
    format_name(name, format, arguments);
    va_end(arguments);
    if (!test_tensors_get(tensors, name, out)) {
        bench_fail(__FILE__, __LINE__, name);
    }
    return out->data;
}

float bf16_value(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Place in the order of all values; both zeros are 0. */
static int32_t bf16_place(uint16_t bits) {
    int32_t magnitude = bits & 0x7fff;
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void bf16_compare(
    struct bf16_difference *total, const uint16_t *got, const uint16_t *wanted, size_t count
) {
    for (size_t i = 0; i < count; i++) {
        int32_t distance = bf16_place(got[i]) - bf16_place(wanted[i]);
        distance = distance < 0 ? -distance : distance;
        total->count++;
        total->equal += distance == 0;
        total->above_2ulp += distance > 2;
        total->ulp_max = distance > total->ulp_max ? distance : total->ulp_max;
    }
}

double bf16_share(const struct bf16_difference *difference) {
    return difference->count == 0 ? 1.0 : (double)difference->equal / (double)difference->count;
}

int32_t logits_argmax(const float *logits, int32_t vocabulary) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocabulary; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static double log_sum(const float *logits, int32_t vocabulary) {
    double top = (double)logits[logits_argmax(logits, vocabulary)];
    double sum = 0;
    for (int32_t i = 0; i < vocabulary; i++) {
        sum += exp((double)logits[i] - top);
    }
    return top + log(sum);
}

double logits_logprob(const float *logits, int32_t vocabulary, int32_t id) {
    return (double)logits[id] - log_sum(logits, vocabulary);
}

void logits_compare(
    struct logit_difference *total, const float *got, const float *wanted, int32_t vocabulary
) {
    double got_sum = log_sum(got, vocabulary);
    double wanted_sum = log_sum(wanted, vocabulary);
    double kl = 0;
    for (int32_t i = 0; i < vocabulary; i++) {
        double difference = (double)got[i] - (double)wanted[i];
        double log_p = (double)wanted[i] - wanted_sum;
        kl += exp(log_p) * (log_p - ((double)got[i] - got_sum));
        total->square_sum += difference * difference;
        if (!(fabs(difference) <= total->difference_max)) { /* also when not a number */
            total->difference_max = fabs(difference);
        }
    }
    total->values += (size_t)vocabulary;
    total->rows++;
    total->kl_sum += kl;
    total->kl_max = kl > total->kl_max ? kl : total->kl_max;
    total->argmax_equal += logits_argmax(got, vocabulary) == logits_argmax(wanted, vocabulary);
}

double logits_rms(const struct logit_difference *difference) {
    return sqrt(difference->square_sum / (double)difference->values);
}

double logits_kl(const struct logit_difference *difference) {
    return difference->kl_sum / (double)difference->rows;
}
