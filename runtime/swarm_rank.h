/* How good the model itself thinks that its results are: one question behind each context, which is evaluated
 * already, and one token of answer.
 *
 * The score is the probability of yes among yes and no, from the raw logits of that token: each word is forced in
 * turn, so that a model that would say something else has an opinion too; words among the likeliest tokens need no
 * turn of their own. Contexts are asked one after the other, in forks that go with their answer.
 * Thread: that of the loop.
 */
#ifndef HEARTH_RUNTIME_SWARM_RANK_H
#define HEARTH_RUNTIME_SWARM_RANK_H

#include "loop_nodes.h"

#define SWARM_RANK_QUESTION                                                                        \
    "Look back at the task and at what you did. Is the task solved, completely and without a "     \
    "mistake? Answer with one word, yes or no."

#define SWARM_RANK_WORDS 4 /* yes and no, with a capital too */

struct swarm_rank;

struct swarm_rank_context {
    uint64_t sequence;   /* that holds it; of nobody who generates; 0: it is gone */
    bool end_is_missing; /* it ends in a turn of the model without end of sequence */
};

/* Borrowed until `done`, what it points to as well. */
struct swarm_rank_options {
    struct loop *loop;
    struct engine_ports engine;
    const struct tokenizer *tokenizer;
    const struct chat_encoder *encoder;
    enum window_mode window;
    const struct swarm_rank_context *contexts; /* [count] */
    size_t count;
    int64_t tokens_max; /* sampled, in all: SWARM_RANK_WORDS for each context, or it fails */
    void *context;
    /* Once, never before swarm_rank_start has returned; then it is to be destroyed. scores [count], null: it
     * failed or was cancelled. */
    void (*done)(void *context, const double *scores, int64_t tokens);
};

/* Expected errors: MEMORY, LIMIT (tokens), and those of the engine for the first context; then nothing is left. */
MUST_CHECK result swarm_rank_start(
    struct swarm_rank **out, const struct swarm_rank_options *options, struct error *error
);
void swarm_rank_cancel(struct swarm_rank *rank);  /* `done` comes soon */
void swarm_rank_destroy(struct swarm_rank *rank); /* after `done`; accepts null */

#endif
