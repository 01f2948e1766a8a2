/* What a draw should be, by the shortest way from the definition: for the tests of the sampler. */
#ifndef HEARTH_TESTS_SAMPLING_SUPPORT_H
#define HEARTH_TESTS_SAMPLING_SUPPORT_H

#include "engine/sampler.h"

#define NAIVE_MAX 1024 /* tokens of a vocabulary */

/* Tokens seen, as plain lists. */
struct naive_history {
    const int32_t *prompt;
    int32_t prompt_count;
    const int32_t *sampled;
    int32_t sampled_count;
};

/* Probabilities [vocabulary] that the settings leave: filters and all, before the noise. False when
 * no token is left. `adjusted` [vocabulary], the logits after bias and penalties, may be null. */
bool naive_probabilities(
    const struct sampler_request *request,
    const struct naive_history *history,
    int32_t vocabulary,
    double *probabilities,
    float *adjusted
);
/* The token drawn; -1 when none is left. */
int32_t naive_draw(
    const struct sampler_request *request, const struct naive_history *history, int32_t vocabulary
);

/* A generator for tests: the next number of a sequence. */
uint32_t next_random(uint64_t *state);
double next_uniform(uint64_t *state); /* [0, 1) */

#endif
