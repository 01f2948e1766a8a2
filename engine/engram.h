/* Engram token map and hash: which table rows a token looks up (specification section 3.10).
 *
 * The compressed token map is computed from the tokenizer's vocabulary; multipliers, primes and
 * offsets from the layer ids. Takes plain parameters, so that it knows no model configuration. It
 * reads no tables: rows are fetched by the forward pass. Thread: immutable after creation.
 */
#ifndef HEARTH_ENGINE_ENGRAM_H
#define HEARTH_ENGINE_ENGRAM_H

#include "base/result.h"

struct tokenizer;
struct engram;

#define ENGRAM_LAYERS_MAX 64   /* layers with a table */
#define ENGRAM_ORDER_MAX  8    /* longest n-gram */
#define ENGRAM_HEADS_MAX  64   /* tables per order */
#define ENGRAM_DEAD       (-1) /* compressed id of an image position: blocks all lookback past it */

struct engram_options {
    const int32_t *layer_ids; /* [layer_count] model layer numbers; they seed the multipliers */
    size_t layer_count;
    const int64_t *row_counts; /* [layer_count] rows each table must have; null: not checked */
    int32_t order_max;         /* engram_max_ngram_size: orders 2..order_max */
    int32_t head_count;        /* engram_n_heads */
    int64_t prime_start;       /* engram_vocab_size: where the search for primes begins */
    int32_t pad_token_id;      /* raw token id */
    int64_t compressed_count;  /* engram_compressed_vocab_size; any other result is refused */
    int32_t vocabulary_count;  /* vocab_size: raw ids 0..vocabulary_count-1 get a compressed id */
};

/* Computes map and constants; the tokenizer is not kept. With `tokenizer` null the map is the
 * identity over compressed_count ids (hash tests). Expected errors: INVALID_INPUT (sizes disagree,
 * parameters out of range), MEMORY. */
MUST_CHECK result engram_create(
    struct engram **out,
    const struct tokenizer *tokenizer,
    const struct engram_options *options,
    struct error *error
);
void engram_destroy(struct engram *engram);
void engram_cleanup(struct engram **engram); /* for CLEANUP */

size_t engram_layer_count(const struct engram *engram);
/* Row ids per token and layer: head_count * (order_max - 1). */
size_t engram_column_count(const struct engram *engram);
/* Ids of history that one token looks at beside itself: order_max - 1. */
size_t engram_lookback(const struct engram *engram);

/* Compressed id of a raw token id; the pad's for an id outside the vocabulary. */
int32_t engram_compress(const struct engram *engram, int32_t token_id);
/* Borrowed [vocabulary_count] raw id -> compressed id. */
const int32_t *engram_token_map(const struct engram *engram, size_t *count);
int32_t engram_pad(const struct engram *engram); /* compressed */

/* Constants of the layer with index `slot` in layer_ids; borrowed. */
const int64_t *engram_multipliers(const struct engram *engram, size_t slot); /* [order_max] */
const int64_t *engram_primes(const struct engram *engram, size_t slot);      /* [columns] */
const int64_t *engram_offsets(const struct engram *engram, size_t slot);     /* [columns] */
int64_t engram_row_count(const struct engram *engram, size_t slot);

/* Row ids of `count` consecutive tokens of one sequence.
 *
 * history[0 .. lead + count) are compressed ids (or ENGRAM_DEAD) in order of position; the first
 * `lead` of them only serve as lookback. With lead < engram_lookback the sequence starts at
 * history[0]. rows: [count][columns], order-major then head, each below engram_row_count. */
void engram_rows(
    const struct engram *engram,
    size_t slot,
    const int32_t *history,
    size_t lead,
    size_t count,
    int32_t *rows
);

#endif
