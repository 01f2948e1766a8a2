/* What the tests of the forward pass share: a model opened down to the forward pass, stored
 * vectors, and comparisons. Failures abort the test through cmocka. Thread: any, one at a time. */
#ifndef HEARTH_TESTS_FORWARD_SUPPORT_H
#define HEARTH_TESTS_FORWARD_SUPPORT_H

#include "engine/draft_layer.h"
#include "engine/engine.h"
#include "engine/engram.h"
#include "engine/forward_layer.h"
#include "engine/model_device.h"
#include "engine/tokenizer.h"
#include "test_safetensors.h"

/* Sanitizer builds run ten times slower and look for other faults: long inputs are left to release. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BENCH_IS_SLOW true
#else
#define BENCH_IS_SLOW false
#endif

struct bench_options {
    const char *model; /* "golden/tiny-a", "golden/tiny-b" or "mini" */
    const char *isa;   /* null: best */
    int32_t threads;   /* 0: 1 */
    int32_t rows_max;
    int32_t sequences_max;
    int32_t context_max;
    bool drafts;              /* with draft stages, and segments with drafts in steps */
    int32_t drafted_rows_max; /* without draft stages; 0: no drafts */
    bool exports_targets;     /* the same */
};

/* Host copies of device memory that tests look at. */
#define BENCH_COPIES 8
struct bench_copies {
    void *memory[BENCH_COPIES];
    size_t next;
};

/* A model with everything a forward pass needs, without the engine thread. */
struct bench {
    struct model *model;
    struct tokenizer *tokenizer;
    struct engram *engram;
    struct backend *backend;
    struct kv_cache cache;
    struct forward *forward;
    struct draft *draft; /* null without `drafts` */
    const struct model_config *config;
    struct bench_copies *copies;
};

/* Directory of a model: the copy in the source tree, else that of $HEARTH_TEST_DATA. */
bool bench_find_model(char path[TEST_PATH_MAX], const char *model);
/* Vectors of a tiny model: the complete file below $HEARTH_TEST_DATA, else the cut one. */
bool bench_find_vectors(char path[TEST_PATH_MAX], const char *model, const char *file);
void bench_open(struct bench *bench, const struct bench_options *options);
void bench_close(struct bench *bench);

/* What stands in memory of the backend; gone after BENCH_COPIES more such calls. */
const void *bench_read(const struct bench *bench, const void *memory, size_t bytes);
void bench_write(const struct bench *bench, void *memory, const void *from, size_t bytes);
void bench_fill(const struct bench *bench, void *memory, int byte, size_t bytes);

/* An empty sequence with room for and knowing `count` ids. */
struct kv_sequence *bench_sequence(struct bench *bench, const int32_t *ids, int32_t count);
/* Adds ids to what the sequence knows. */
void bench_append(
    struct bench *bench, struct kv_sequence *sequence, const int32_t *ids, int32_t count
);
/* Runs positions [computed, end) in chunks of at most `chunk` rows towards prompt end `end`;
 * logits (null: none) gets those of every position (all) or of the last one. */
void bench_run(
    struct bench *bench,
    struct kv_sequence *sequence,
    int32_t end,
    int32_t chunk,
    bool all,
    float *logits,
    struct layer_counters *counters
);
/* Everything that later tokens can read is the same, bit for bit: entries, windows of the last W
 * positions, pending pairs. */
void bench_assert_state_equal(
    const struct bench *a,
    const struct kv_sequence *x,
    const struct bench *b,
    const struct kv_sequence *y
);

bool vectors_has(const struct test_tensors *tensors, const char *format, ...) PRINTF_LIKE(2, 3);
/* The tensor's data; aborts the test when it is missing. */
const void *
vectors_get(const struct test_tensors *tensors, struct test_tensor *out, const char *format, ...)
    PRINTF_LIKE(3, 4);

/* How two bf16 arrays differ. */
struct bf16_difference {
    size_t count, equal;
    int32_t ulp_max; /* distance in representable values */
    size_t above_2ulp;
};
void bf16_compare(
    struct bf16_difference *total, const uint16_t *got, const uint16_t *wanted, size_t count
);
double bf16_share(const struct bf16_difference *difference);
float bf16_value(uint16_t bits);

/* How two rows of logits differ, added up over rows. */
struct logit_difference {
    double square_sum, kl_sum, kl_max, difference_max;
    size_t values, rows, argmax_equal;
};
void logits_compare(
    struct logit_difference *total, const float *got, const float *wanted, int32_t vocabulary
);
double logits_rms(const struct logit_difference *difference);
double logits_kl(const struct logit_difference *difference);
int32_t logits_argmax(const float *logits, int32_t vocabulary);
/* Natural log of the softmax at id. */
double logits_logprob(const float *logits, int32_t vocabulary, int32_t id);

/* Aborts the test with the error's message unless the call succeeded. */
#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct error must_error_ = {0};                                                            \
        struct error *error = &must_error_;                                                        \
        if (is_failed(call)) {                                                                     \
            bench_fail(__FILE__, __LINE__, must_error_.message);                                   \
        }                                                                                          \
    } while (0)
_Noreturn void bench_fail(const char *file, int line, const char *message);

#endif
