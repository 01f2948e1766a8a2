/* Shared by sampler*.c only. */
#ifndef HEARTH_ENGINE_SAMPLER_INTERNAL_H
#define HEARTH_ENGINE_SAMPLER_INTERNAL_H

#include "sampler.h"

struct sampler_history_entry {
    int32_t id;
    int32_t sampled; /* times */
    bool is_in_prompt;
};

/* The distinct tokens seen, in order of first occurrence; none of a null history. Borrowed. */
const struct sampler_history_entry *
sampler_history_entries(const struct sampler_history *history, int32_t *count);

struct candidate {
    double weight; /* exp((logit - largest) / temperature) */
    int32_t at;    /* index in the row; rows are in order of ids */
};

/* 2^(j/EXP_STEPS), so that a short series does for the rest. */
#define EXP_STEPS      64
#define EXP_STEPS_LOG2 6

/* Largest of a histogram of a selection: 11 bits of a key. */
#define SELECT_BITS 11

struct sampler {
    int32_t vocabulary;
    struct candidate *heap; /* [V] */
    double *weights;        /* [V] */
    float *logits;          /* [V] of a row that is not the request's own */
    int32_t *ids;           /* [V] */
    double powers[EXP_STEPS];
    uint32_t counts[1 << SELECT_BITS];
};

/* The tokens that may be drawn, by rising id. */
struct sampler_row {
    const float *logits; /* [count]: the request's, or in the sampler */
    const int32_t *ids;  /* [count] in the sampler; null: every index is its id */
    int32_t count;
    int32_t largest; /* index of the largest logit, the first of equals; all may be -infinity */
};

static inline int32_t sampler_row_id(const struct sampler_row *row, int32_t at) {
    return row->ids == NULL ? at : row->ids[at];
}

/* Finds the largest. Expected errors: DEVICE (NaN or +infinity). */
MUST_CHECK result sampler_row_scan(struct sampler_row *row, int32_t position, struct error *error);
/* The row that the request's mask, bias and penalties make of its logits, which are scanned already
 * unless only those that the mask allows are looked at. Expected errors: INVALID_INPUT (no token is
 * left), DEVICE. */
MUST_CHECK result sampler_row_make(
    struct sampler *sampler,
    const struct sampler_request *request,
    struct sampler_row *row,
    struct error *error
);
/* Keeps the k largest, ties to the lowest id; the row then lies in the sampler. O(count). */
void sampler_row_keep_largest(struct sampler *sampler, struct sampler_row *row, int32_t k);
/* Indices of the k largest, at most SAMPLING_ALTERNATIVES_MAX, falling, ties to the lowest; those of
 * -infinity are left out. Returns how many. */
int32_t sampler_row_largest(
    struct sampler *sampler, const struct sampler_row *row, int32_t k, int32_t *indices
);

#endif
