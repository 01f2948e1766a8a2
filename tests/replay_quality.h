/* How far bounded replay is from the exact computation (spec 5.5): after a hit of H tokens a prompt
 * of N tokens is evaluated in several ways, then rows of known text follow, and every row's
 * distribution is compared with the exact one. Thread: one; failures abort the test. */
#ifndef HEARTH_TESTS_REPLAY_QUALITY_H
#define HEARTH_TESTS_REPLAY_QUALITY_H

#include "forward_support.h"

enum replay_variant {
    REPLAY_ENCODER,     /* encoder windows from H - W on, decoder rows as exact as these allow */
    REPLAY_DECODER,     /* exact encoder, decoder rows N - W and later */
    REPLAY_BOTH,        /* what `--window replay` does after a hit */
    REPLAY_LAST_WINDOW, /* no replay: a context cut to the last W tokens */
    REPLAY_VARIANTS
};

extern const char *const replay_variant_names[REPLAY_VARIANTS];

struct replay_case {
    const int32_t *ids; /* [length + rows] */
    int32_t hit;        /* H: even, above W */
    int32_t length;     /* N > H */
    int32_t rows;       /* teacher-forced rows after the prompt */
};

/* Sequences that are exact at H - W and at H; moved on from case to case by growing H. */
struct replay_base {
    struct kv_sequence *behind, *at;
};

/* Rows of one step that a bench for cases of at most `suffix_max` new tokens needs. */
int32_t replay_rows_max(int32_t suffix_max);
#define REPLAY_SEQUENCES 4 /* a bench for these functions has this many */

/* Computes up to the hit. The base starts zeroed. */
void replay_base_advance(
    struct bench *bench, struct replay_base *base, const int32_t *ids, int32_t hit
);
void replay_base_release(struct bench *bench, struct replay_base *base);

/* The sequence after the prompt, one way; `logits` [V] of its last row. To be released. */
struct kv_sequence *replay_exact(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    float *logits
);
struct kv_sequence *replay_variant_run(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    enum replay_variant variant,
    float *logits
);

/* Compares all variants with the exact computation: the prompt's last row and `rows` more are added
 * to totals[variant]. */
void replay_measure(
    struct bench *bench,
    const struct replay_base *base,
    const struct replay_case *chosen,
    struct logit_difference totals[REPLAY_VARIANTS]
);

#endif
