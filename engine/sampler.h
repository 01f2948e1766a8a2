/* One token from one row of logits.
 *
 * Gumbel-max: the token with the largest logit / temperature + noise, where the noise is a pure
 * function of (seed, position, token id): the draw depends on nothing else, neither on batch and
 * chunks nor on what was drawn before. All arithmetic here is plain double precision with this
 * file's own exp and log, so that no library or instruction set changes a draw. Thread: a sampler
 * belongs to one thread at a time.
 */
#ifndef HEARTH_ENGINE_SAMPLER_H
#define HEARTH_ENGINE_SAMPLER_H

#include "engine.h"

struct sampler;

/* Holds scratch for `vocabulary` candidates. Expected errors: MEMORY. */
MUST_CHECK result sampler_create(struct sampler **out, int32_t vocabulary, struct error *error);
void sampler_destroy(struct sampler *sampler);

struct sampled_token {
    int32_t id;
    float logprob; /* log-softmax of the raw logits at id */
};

/* Draws the token that follows `position` tokens (its own position). Temperature 0 takes the
 * largest logit; top_p keeps the smallest set of the most likely tokens (after temperature) whose
 * probabilities reach it; equal values go to the lowest id. Logits that are not finite are never
 * taken unless none is. */
void sampler_draw(
    struct sampler *sampler,
    const float *logits,
    const struct sampling *sampling,
    int32_t position,
    struct sampled_token *out
);

/* Uniform in (0, 1) from Philox4x32-10 with key = seed and counter = (position, id). */
double sampler_uniform(uint64_t seed, int32_t position, int32_t id);
/* Standard Gumbel noise of the same. */
double sampler_gumbel(uint64_t seed, int32_t position, int32_t id);
/* Checks temperature and top_p. Expected errors: INVALID_INPUT. */
MUST_CHECK result sampling_check(const struct sampling *sampling, struct error *error);

/* exp and natural log, within 2 ulp; log of a positive finite number. */
double exact_exp(double x);
double exact_log(double x);

#endif
