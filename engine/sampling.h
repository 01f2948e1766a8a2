/* How the tokens of one generation are drawn: the settings, their limits and the seeds of children.
 *
 * Order of a draw: raw logits (log-probabilities are of these) -> bias -> repetition penalty ->
 * presence and frequency penalty -> mask of a grammar -> temperature -> top_k -> top_p -> min_p ->
 * Gumbel-max with noise keyed by (seed, position, token id). Every field but temperature, top_p and
 * seed is off when it is zero. Spec: architecture.md 4. Thread: any.
 */
#ifndef HEARTH_ENGINE_SAMPLING_H
#define HEARTH_ENGINE_SAMPLING_H

#include "base/result.h"

/* Added to the logit of one token. */
struct logit_bias {
    int32_t id;
    float bias; /* within +-SAMPLING_BIAS_LARGEST, or -INFINITY: the token is never drawn */
};
#define SAMPLING_BIAS_MAX           1024   /* entries; an id at most once */
#define SAMPLING_BIAS_LARGEST       100.0F /* as OpenAI's API has it */
#define SAMPLING_ALTERNATIVES_MAX   20
#define SAMPLING_PENALTY_LARGEST    2.0 /* presence and frequency; as OpenAI's API has it */
#define SAMPLING_REPETITION_LEAST   0.01
#define SAMPLING_REPETITION_LARGEST 100.0

struct sampling {
    double temperature; /* >= 0; 0 takes the largest logit, ties to the lowest id */
    double top_p;       /* (0, 1]; 1 keeps all */
    /* [0, 1): keeps the tokens at least min_p times as likely as the likeliest, after temperature. */
    double min_p;
    int32_t top_k; /* >= 0: the k largest logits, ties to the lowest id; 0 keeps all */
    /* A logit of a token that occurs in prompt or generation is divided by it when positive, else
     * multiplied with it. 1 and 0: off. */
    double repetition_penalty;
    /* Over the tokens sampled by this generation: a logit loses `presence_penalty` when its token was
     * sampled and `frequency_penalty` each time it was. Within +-SAMPLING_PENALTY_LARGEST. */
    double presence_penalty, frequency_penalty;
    const struct logit_bias *bias; /* [bias_count] borrowed; the engine copies it */
    int32_t bias_count;            /* at most SAMPLING_BIAS_MAX */
    int32_t alternatives; /* most likely tokens to report with each, <= SAMPLING_ALTERNATIVES_MAX */
    uint64_t seed;
};

/* A likely token at a position. */
struct token_alternative {
    int32_t id;
    float logprob; /* log-softmax of the raw logits at id */
};

/* Refuses, with the numbers, what is out of range for a vocabulary of that many ids.
 * Expected errors: INVALID_INPUT; LIMIT (too many biases or alternatives). */
MUST_CHECK result
sampling_check(const struct sampling *sampling, int32_t vocabulary, struct error *error);
/* Whether a draw needs a history of the tokens seen (sampler.h). */
bool sampling_has_penalties(const struct sampling *sampling);

/* Seed of a child: the first 53 bits of SHA-256("hearth child seed 1" and its NUL, then parent and
 * index, 8 bytes each, least significant first), first byte most significant. 53 bits survive every
 * JSON reader; the same on every machine. */
uint64_t sampling_child_seed(uint64_t parent, uint64_t index);

#endif
