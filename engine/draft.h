/* Draft stages (DSpark, spec model.md 3.14): guesses of the next tokens from the target's hidden rows.
 *
 * A stage is a block like a layer without global keys. Its ring holds one row per committed token,
 * made of the target's streams; a pass looks at those and at B rows for the guessed positions, all of
 * which see each other. Guesses never change what the target computes: they are appended, verified
 * and kept or taken back by the caller. Everything runs in the forward pass's buffers between its
 * steps, so logits of the last step must have been read before.
 *
 *     forward_step -> forward_logits, draws -> forward_keep -> draft_commit -> draft_propose
 *
 * Rows of a sequence depend on that sequence alone, whatever shares the call. Thread: the engine
 * thread only.
 */
#ifndef HEARTH_ENGINE_DRAFT_H
#define HEARTH_ENGINE_DRAFT_H

#include "forward.h"

#define DRAFT_BLOCK_MAX 64 /* B of any configuration; the release has 5 */

struct draft;

/* What draft_create takes beside the forward pass's own buffers. */
struct memory_bytes
draft_measure(const struct model_config *config, const struct forward_options *options);

/* The forward pass is borrowed and outlives the object; it exports targets, and its cache's layout has
 * draft rings (kv_layout_add_draft). Expected errors: MEMORY; LIMIT (a step has fewer rows than a block). */
MUST_CHECK result draft_create(struct draft **out, struct forward *forward, struct error *error);
void draft_destroy(struct draft *draft); /* accepts null */

/* Puts rows of the step that ran last into the draft rings: of a segment with drafts the first kept[s],
 * as in forward_keep, of another all that reached the target layers, which of a prompt are the last W.
 * No row of the target runs for it. Call it once after the step, with its segments, before anything
 * else uses the forward pass. A step without this call leaves a gap: what is missing costs accepted
 * drafts until W rows followed. `kept` may be null in a step without drafts. Expected errors: DEVICE. */
MUST_CHECK result draft_commit(
    struct draft *draft,
    const struct forward_segment *segments,
    const int32_t *kept,
    int32_t count,
    struct error *error
);

/* Rows that a pass over the sequence would find in the rings, 0 to W; with few it guesses badly. */
int32_t draft_rows_seen(const struct draft *draft, const struct kv_sequence *sequence);

struct draft_request {
    struct kv_sequence *sequence; /* computed > 0; once per call */
    int32_t token;                /* drawn for position `computed`, appended or not */
    int32_t wanted;               /* guesses, 1 to B */
    /* Draws the guess for `position` (computed + 1 + index) from logits [V] with the target's own
     * noise, so that both agree as often as they can; -1 stops this request's guesses there. The
     * logits may be changed. Null: the largest logit, ties to the lower id. */
    int32_t (*draw)(void *context, int32_t index, int32_t position, float *logits);
    void *context;
};

struct draft_proposal {
    int32_t count; /* at most `wanted`, of ids for positions computed + 1 .. */
    int32_t ids[DRAFT_BLOCK_MAX];
    float
        confidence[DRAFT_BLOCK_MAX]; /* logit that the target keeps the guess, given those before */
};

/* Guesses for `count` sequences, in as few passes as their rows fit into. Expected errors: DEVICE. */
MUST_CHECK result draft_propose(
    struct draft *draft,
    const struct draft_request *requests,
    int32_t count,
    struct draft_proposal *proposals,
    struct error *error
);

/* Work done so far. */
struct draft_counters {
    uint64_t commits, commit_rows; /* rows through main_proj and each stage's wkv */
    uint64_t passes, rows;         /* through all stages and the head: B per sequence */
    uint64_t markov_rows;
};
const struct draft_counters *draft_count(const struct draft *draft);

#endif
