/* Inside of the draft stages, for draft.c and for tests of each sub-block. See draft.h.
 *
 * The sub-blocks are the forward pass's (forward_layer.h) with layer number `layers + stage`; rows,
 * activations and rope tables stand in forward->buffers. Thread: the engine thread only.
 */
#ifndef HEARTH_ENGINE_DRAFT_LAYER_H
#define HEARTH_ENGINE_DRAFT_LAYER_H

#include "draft.h"
#include "forward_layer.h"

struct draft {
    struct forward *forward;
    const struct model_config *config;
    int32_t block;    /* B */
    int32_t at_once;  /* sequences of one pass through the stages */
    int32_t per_head; /* sequences of one head product */
    struct draft_counters counters;

    /* device-visible */
    void *arena;
    struct quantized hidden_q;         /* [R, targets D]: target_hidden */
    uint16_t *collapsed;               /* [R, D] bf16: h of the draft rows */
    float *confidence;                 /* [R]: its part from h */
    uint16_t *markov;                  /* [S, rank] bf16 */
    float *markov_mix;                 /* [S]: not read */
    float *markov_confidence;          /* [S] */
    struct row_segment *rows;          /* [S] rows that go into the rings */
    struct row_segment *query;         /* [R] one query each: all see the same keys */
    struct row_segment *fresh;         /* [R] none: all keys stand in the rings */
    struct sequence_view *ring_views;  /* [stages, S] */
    struct sequence_view *query_views; /* [stages, R] */

    /* host: pieces of one allocation */
    struct backend_staging host;
    struct row_segment *host_rows, *host_query, *host_fresh;
    struct sequence_view *host_ring_views, *host_query_views;
    int32_t *host_ids, *host_positions; /* [R] */
    int32_t *host_tokens;               /* [S] */
    float *host_confidence;             /* [R] */
    float *host_markov_confidence;      /* [S] */
    float *host_logits;                 /* [logit rows, V] */
    float *host_bias;                   /* [S, V] of one head product */
    int32_t sequences, row_count;       /* of the call */
};

/* main_hidden [rows of the stage, targets D] -> normed: main_x. */
void draft_main_input(struct draft *draft, const uint16_t *hidden);
/* Rows of `count` sequences for a pass: ids, positions, segments and views; streams embedded. */
void draft_begin(struct draft *draft, const struct draft_request *requests, int32_t count);
/* normed -> records of the draft rows in the rings of the stage. */
void draft_window(struct draft *draft, int32_t stage);
/* query, rings -> attended. */
void draft_attend(struct draft *draft, int32_t stage);
/* All of a stage. */
void draft_stage(struct draft *draft, int32_t stage);
/* streams -> head_input, collapsed and its part of the confidence. */
void draft_head(struct draft *draft);

#endif
