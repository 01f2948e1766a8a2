/* Byte-pair merging of one piece of text: the pair of lowest rank first, leftmost on a tie.
 *
 * Short pieces are scanned, long ones kept in a linked list with a heap: n log n, also for a piece
 * of a megabyte without a break. Thread: the table is immutable once filled; scratch belongs to
 * one call.
 */
#ifndef HEARTH_ENGINE_BPE_H
#define HEARTH_ENGINE_BPE_H

#include "base/bytes.h"

struct token_list;

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; BPE_NO_PAIR in a free slot */
    int32_t rank;
    int32_t merged;
};

struct bpe {
    struct bpe_merge *slots; /* open addressing, power of two */
    size_t slot_count;
    unsigned shift; /* 64 - log2(slot_count) */
    int32_t byte_ids[256];
};

#define BPE_PIECE_BYTES_MAX ((size_t)1 << 30) /* positions are 32-bit */

/* Expected errors: MEMORY. */
MUST_CHECK result bpe_init(struct bpe *bpe, size_t merge_count, struct error *error);
void bpe_deinit(struct bpe *bpe);
/* A pair given again replaces the earlier rank. At most merge_count different pairs. */
void bpe_put(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t merged);

/* Memory of one encode call, reused from piece to piece; zero-initialise. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t symbol_capacity;
    struct bpe_candidate *heap;
    size_t heap_capacity;
};

void bpe_scratch_deinit(struct bpe_scratch *scratch); /* usable with CLEANUP */

/* Appends the ids of one piece. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result bpe_encode(
    const struct bpe *bpe,
    struct bpe_scratch *scratch,
    struct view piece,
    struct token_list *out,
    struct error *error
);

#endif
