/* One token from one row of logits.
 *
 * Gumbel-max: the token with the largest logit / temperature + noise, where the noise is a pure
 * function of (seed, position, token id): the draw depends on nothing else, neither on batch and
 * chunks nor on what was drawn before. All arithmetic here is plain double precision with this
 * file's own exp and log, so that no library or instruction set changes a draw. Order and meaning of
 * the settings: sampling.h. Bias and penalties each give an FP32 logit, rounded once and kept finite.
 * Thread: a sampler belongs to one thread at a time; so does a history.
 */
#ifndef HEARTH_ENGINE_SAMPLER_H
#define HEARTH_ENGINE_SAMPLER_H

#include "sampling.h"

struct sampler;
struct sampler_history;

/* Holds scratch for `vocabulary` candidates; a draw allocates nothing. Expected errors: MEMORY. */
MUST_CHECK result sampler_create(struct sampler **out, int32_t vocabulary, struct error *error);
void sampler_destroy(struct sampler *sampler);
/* Bytes that sampler_create takes, for the memory plan. */
uint64_t sampler_bytes(int32_t vocabulary);

/* The tokens of one generation, for penalties: to be had only when sampling_has_penalties. Room for
 * `tokens_max` tokens of prompt and generation (never more than `vocabulary` distinct ones): 20 to 28
 * bytes each; pushing allocates nothing. Re-derived from the ids when it is lost. Expected errors:
 * MEMORY. */
MUST_CHECK result sampler_history_create(
    struct sampler_history **out, int32_t vocabulary, int32_t tokens_max, struct error *error
);
void sampler_history_destroy(struct sampler_history *history);
/* Bytes that sampler_history_create takes. */
uint64_t sampler_history_bytes(int32_t vocabulary, int32_t tokens_max);
/* The prompt (the whole context before the first token sampled): only repetition_penalty counts it.
 * Before the first push; at most tokens_max ids with what is pushed later. */
void sampler_history_prompt(struct sampler_history *history, const int32_t *ids, int32_t count);
/* A token sampled, or a draft taken for one. */
void sampler_history_push(struct sampler_history *history, int32_t id);
/* Takes back the token pushed last, which has to be `id`. */
void sampler_history_pop(struct sampler_history *history, int32_t id);

struct sampler_request {
    const float *logits;                   /* [V] */
    const struct sampling *sampling;       /* checked by sampling_check */
    const struct sampler_history *history; /* null: nothing was seen */
    const uint64_t *mask; /* a bit per id, the lowest bit of a word first; null: all may be drawn */
    int32_t position;     /* the token follows so many: its own position */
    /* Reports no log-probabilities (0 and no alternatives); for drafts. With a mask only the logits
     * that it allows are looked at then. */
    bool skips_logprob;
};

struct sampled_token {
    int32_t id;
    float logprob;             /* log-softmax of the raw logits at id */
    int32_t alternative_count; /* sampling.alternatives, fewer where fewer are above -infinity */
    /* The most likely by the raw logits, falling, ties to the lowest id; the one drawn is among them
     * only when it is so likely. */
    struct token_alternative alternatives[SAMPLING_ALTERNATIVES_MAX];
};

/* Draws the token that follows `position` tokens. A logit of -infinity is never taken. Expected
 * errors: DEVICE (NaN or +infinity among the logits), INVALID_INPUT (mask, bias or -infinity leave no
 * token); both name the position. */
MUST_CHECK result sampler_draw(
    struct sampler *sampler,
    const struct sampler_request *request,
    struct sampled_token *out,
    struct error *error
);

/* Uniform in (0, 1) from Philox4x32-10 with key = seed and counter = (position, id). */
double sampler_uniform(uint64_t seed, int32_t position, int32_t id);
/* Standard Gumbel noise of the same. */
double sampler_gumbel(uint64_t seed, int32_t position, int32_t id);

/* exp and natural log, within 2 ulp; log of a positive finite number. */
double exact_exp(double x);
double exact_log(double x);

#endif
