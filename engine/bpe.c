/* Two ways to the same result: a scan over small arrays, and a heap over a linked list. The scan
 * wins below some 40 bytes, which is nearly every piece of ordinary text. */
#include "bpe.h"

#include "tokenizer.h"

#define SHORT_PIECE_BYTES 40
#define NO_RANK           INT32_MAX
#define NO_PAIR           UINT64_MAX
#define NONE              UINT32_MAX

struct bpe_symbol {
    int32_t id;        /* -1: merged into its left neighbour */
    int32_t pair_rank; /* of the pair that starts here */
    uint32_t previous;
    uint32_t next;
};

struct bpe_candidate {
    int32_t rank;
    uint32_t at;
};

result bpe_init(struct bpe *bpe, size_t merge_count, struct error *error) {
    size_t slot_count = 16;
    unsigned shift = 60;
    while (slot_count < merge_count * 2) { // at most half full
        slot_count *= 2;
        shift -= 1;
    }
    bpe->slots = malloc(slot_count * sizeof *bpe->slots);
    if (bpe->slots == NULL) {
        FAIL(error, MEMORY, "no memory for %zu merges", merge_count);
    }
    for (size_t i = 0; i < slot_count; i++) {
        bpe->slots[i] = (struct bpe_merge){NO_PAIR, NO_RANK, -1};
    }
    bpe->slot_count = slot_count;
    bpe->shift = shift;
    return OK;
}

void bpe_deinit(struct bpe *bpe) {
    free(bpe->slots);
    bpe->slots = NULL;
}

void bpe_scratch_deinit(struct bpe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

/* The slot of the pair, or the free one where it would go. */
static struct bpe_merge *find(const struct bpe *bpe, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = bpe->slot_count - 1;
    size_t at = (size_t)((pair ^ pair >> 29) * 0x9E3779B97F4A7C15U >> bpe->shift);
    while (bpe->slots[at].pair != pair && bpe->slots[at].pair != NO_PAIR) {
        at = (at + 1) & mask;
    }
    return &bpe->slots[at];
}

void bpe_put(struct bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t merged) {
    ASSERT(left >= 0 && right >= 0 && merged >= 0 && rank >= 0 && rank < NO_RANK);
    struct bpe_merge *slot = find(bpe, left, right);
    slot->pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    slot->rank = rank;
    slot->merged = merged;
}

/* ---- short pieces ---- */

static size_t merge_short(const struct bpe *bpe, struct view piece, int32_t ids[]) {
    struct bpe_merge merges[SHORT_PIECE_BYTES];
    size_t count = piece.length;
    for (size_t i = 0; i < count; i++) {
        ids[i] = bpe->byte_ids[piece.data[i]];
    }
    for (size_t i = 0; i + 1 < count; i++) {
        merges[i] = *find(bpe, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = merges[i].rank < merges[best].rank ? i : best;
        }
        if (merges[best].rank == NO_RANK) {
            break;
        }
        ids[best] = merges[best].merged;
        count -= 1;
        for (size_t i = best + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            merges[i - 1] = merges[i];
        }
        if (best > 0) {
            merges[best - 1] = *find(bpe, ids[best - 1], ids[best]);
        }
        if (best + 1 < count) {
            merges[best] = *find(bpe, ids[best], ids[best + 1]);
        }
    }
    return count;
}

/* ---- long pieces ---- */

static bool is_before(struct bpe_candidate a, struct bpe_candidate b) {
    return a.rank < b.rank || (a.rank == b.rank && a.at < b.at);
}

static void sift_down(struct bpe_candidate *heap, size_t count, size_t at) {
    struct bpe_candidate moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && is_before(heap[child + 1], heap[child])) {
            child += 1;
        }
        if (!is_before(heap[child], moving)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void sift_up(struct bpe_candidate *heap, size_t at) {
    struct bpe_candidate moving = heap[at];
    while (at > 0 && is_before(moving, heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moving;
}

/* A piece of n bytes sees at most n - 1 first pairs and two new ones for each of n - 1 merges. */
static result reserve(struct bpe_scratch *scratch, size_t bytes, struct error *error) {
    if (scratch->symbol_capacity < bytes) {
        free(scratch->symbols);
        scratch->symbols = malloc(bytes * sizeof *scratch->symbols);
        scratch->symbol_capacity = scratch->symbols == NULL ? 0 : bytes;
    }
    if (scratch->heap_capacity < 3 * bytes) {
        free(scratch->heap);
        scratch->heap = malloc(3 * bytes * sizeof *scratch->heap);
        scratch->heap_capacity = scratch->heap == NULL ? 0 : 3 * bytes;
    }
    if (scratch->symbols == NULL || scratch->heap == NULL) {
        FAIL(error, MEMORY, "no memory to merge a piece of %zu bytes", bytes);
    }
    return OK;
}

/* Recomputes the pair that starts at `at` and offers it when it can be merged. */
static void
offer(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t at, size_t *heap_count) {
    struct bpe_symbol *symbol = &scratch->symbols[at];
    symbol->pair_rank = NO_RANK;
    if (symbol->next == NONE) {
        return;
    }
    symbol->pair_rank = find(bpe, symbol->id, scratch->symbols[symbol->next].id)->rank;
    if (symbol->pair_rank != NO_RANK) {
        ASSERT(*heap_count < scratch->heap_capacity);
        scratch->heap[*heap_count] = (struct bpe_candidate){symbol->pair_rank, at};
        sift_up(scratch->heap, *heap_count);
        *heap_count += 1;
    }
}

static void merge_long(const struct bpe *bpe, struct bpe_scratch *scratch, struct view piece) {
    struct bpe_symbol *symbols = scratch->symbols;
    uint32_t count = (uint32_t)piece.length;
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].id = bpe->byte_ids[piece.data[i]];
        symbols[i].previous = i == 0 ? NONE : i - 1;
        symbols[i].next = i + 1 == count ? NONE : i + 1;
    }
    size_t heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        offer(bpe, scratch, i, &heap_count);
    }
    while (heap_count > 0) {
        struct bpe_candidate best = scratch->heap[0];
        heap_count -= 1;
        scratch->heap[0] = scratch->heap[heap_count];
        sift_down(scratch->heap, heap_count, 0);
        struct bpe_symbol *left = &symbols[best.at];
        if (left->id < 0 || left->pair_rank != best.rank) {
            continue; // overtaken by another merge
        }
        struct bpe_symbol *right = &symbols[left->next];
        left->id = find(bpe, left->id, right->id)->merged;
        right->id = -1;
        left->next = right->next;
        if (left->next != NONE) {
            symbols[left->next].previous = best.at;
        }
        offer(bpe, scratch, best.at, &heap_count);
        if (left->previous != NONE) {
            offer(bpe, scratch, left->previous, &heap_count);
        }
    }
}

result bpe_encode(
    const struct bpe *bpe,
    struct bpe_scratch *scratch,
    struct view piece,
    struct token_list *out,
    struct error *error
) {
    if (piece.length == 0) {
        return OK;
    }
    if (piece.length <= SHORT_PIECE_BYTES) {
        int32_t ids[SHORT_PIECE_BYTES];
        size_t count = merge_short(bpe, piece, ids);
        return token_list_append_all(out, ids, count, error);
    }
    if (piece.length > BPE_PIECE_BYTES_MAX) {
        FAIL(error, LIMIT, "a piece of %zu bytes without a break", piece.length);
    }
    TRY(reserve(scratch, piece.length, error));
    merge_long(bpe, scratch, piece);
    for (uint32_t at = 0; at != NONE; at = scratch->symbols[at].next) {
        TRY(token_list_append(out, scratch->symbols[at].id, error));
    }
    return OK;
}
