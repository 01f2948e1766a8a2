/* Limits of sampling settings and the seeds of children. See sampling.h. */
#include "sampling.h"

#include "base/sha256.h"

#include <math.h>

static result check_penalties(const struct sampling *sampling, struct error *error) {
    double repetition = sampling->repetition_penalty;
    if (repetition != 0 &&
        !(repetition >= SAMPLING_REPETITION_LEAST && repetition <= SAMPLING_REPETITION_LARGEST)) {
        FAIL(
            error,
            INVALID_INPUT,
            "repetition_penalty %g is neither 0 nor in [%g, %g]",
            repetition,
            SAMPLING_REPETITION_LEAST,
            SAMPLING_REPETITION_LARGEST
        );
    }
    const struct {
        const char *name;
        double value;
    } penalties[] = {
        {"presence_penalty", sampling->presence_penalty},
        {"frequency_penalty", sampling->frequency_penalty},
    };
    for (size_t i = 0; i < COUNT_OF(penalties); i++) {
        if (!(fabs(penalties[i].value) <= SAMPLING_PENALTY_LARGEST)) {
            FAIL(
                error,
                INVALID_INPUT,
                "%s %g is not in [-%g, %g]",
                penalties[i].name,
                penalties[i].value,
                SAMPLING_PENALTY_LARGEST,
                SAMPLING_PENALTY_LARGEST
            );
        }
    }
    return OK;
}

static result check_bias(const struct sampling *sampling, int32_t vocabulary, struct error *error) {
    if (sampling->bias_count < 0 || (sampling->bias_count > 0 && sampling->bias == NULL)) {
        FAIL(error, INVALID_INPUT, "bias_count is %d", sampling->bias_count);
    }
    if (sampling->bias_count > SAMPLING_BIAS_MAX) {
        FAIL(
            error, LIMIT, "bias on %d tokens, more than %d", sampling->bias_count, SAMPLING_BIAS_MAX
        );
    }
    for (int32_t i = 0; i < sampling->bias_count; i++) {
        const struct logit_bias *bias = &sampling->bias[i];
        if (bias->id < 0 || bias->id >= vocabulary) {
            FAIL(
                error,
                INVALID_INPUT,
                "bias on token %d: the vocabulary has ids 0 to %d",
                bias->id,
                vocabulary - 1
            );
        }
        if (bias->bias != -HUGE_VALF && !(fabsf(bias->bias) <= SAMPLING_BIAS_LARGEST)) {
            FAIL(
                error,
                INVALID_INPUT,
                "bias %g on token %d is neither in [-%g, %g] nor -infinity",
                (double)bias->bias,
                bias->id,
                (double)SAMPLING_BIAS_LARGEST,
                (double)SAMPLING_BIAS_LARGEST
            );
        }
        /* At most half a million comparisons, once per request. */
        for (int32_t j = 0; j < i; j++) {
            if (sampling->bias[j].id == bias->id) {
                FAIL(error, INVALID_INPUT, "bias on token %d is given twice", bias->id);
            }
        }
    }
    return OK;
}

result sampling_check(const struct sampling *sampling, int32_t vocabulary, struct error *error) {
    ASSERT(vocabulary > 0);
    if (!isfinite(sampling->temperature) || sampling->temperature < 0) {
        FAIL(error, INVALID_INPUT, "temperature %g is not a number >= 0", sampling->temperature);
    }
    if (!isfinite(sampling->top_p) || sampling->top_p <= 0 || sampling->top_p > 1) {
        FAIL(error, INVALID_INPUT, "top_p %g is not in (0, 1]", sampling->top_p);
    }
    if (!(sampling->min_p >= 0 && sampling->min_p < 1)) {
        FAIL(error, INVALID_INPUT, "min_p %g is not in [0, 1)", sampling->min_p);
    }
    if (sampling->top_k < 0) {
        FAIL(error, INVALID_INPUT, "top_k %d is negative", sampling->top_k);
    }
    if (sampling->alternatives < 0) {
        FAIL(error, INVALID_INPUT, "alternatives %d is negative", sampling->alternatives);
    }
    if (sampling->alternatives > SAMPLING_ALTERNATIVES_MAX) {
        FAIL(
            error,
            LIMIT,
            "%d alternatives, more than %d",
            sampling->alternatives,
            SAMPLING_ALTERNATIVES_MAX
        );
    }
    TRY(check_penalties(sampling, error));
    return check_bias(sampling, vocabulary, error);
}

bool sampling_has_penalties(const struct sampling *sampling) {
    return (sampling->repetition_penalty != 0 && sampling->repetition_penalty != 1) ||
           sampling->presence_penalty != 0 || sampling->frequency_penalty != 0;
}

uint64_t sampling_child_seed(uint64_t parent, uint64_t index) {
    static const char domain[] = "hearth child seed 1"; /* with its NUL */
    unsigned char numbers[16];
    for (int i = 0; i < 8; i++) {
        numbers[i] = (unsigned char)(parent >> (8 * i));
        numbers[8 + i] = (unsigned char)(index >> (8 * i));
    }
    struct sha256 sha;
    unsigned char digest[SHA256_BYTES];
    sha256_init(&sha);
    sha256_update(&sha, view_of(domain, sizeof domain));
    sha256_update(&sha, view_of(numbers, sizeof numbers));
    sha256_finish(&sha, digest);
    uint64_t first = 0;
    for (int i = 0; i < 8; i++) {
        first = first << 8 | digest[i];
    }
    return first >> 11;
}
