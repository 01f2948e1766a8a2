/* Window snapshots: window states of sequences, kept for minutes in a pool of their own.
 *
 * Global entries live in blocks and are shared; what a sequence needs beside them to go on exactly
 * is its window state (rings of all layers and pending pairs), which no block holds. A snapshot is a
 * copy of it at one position, filed under the prefix tree's node of the last whole block before
 * that position. A parked state is the same of a sequence that gave up its window slot for a while:
 * nobody else finds it. The pool has slots of state_bytes in host memory, mapped at creation and touched
 * as they are first used; nothing is allocated later. It reads no clock: `now_ms` is monotonic time.
 * Thread: the engine thread. Source: architecture section 4, "Window state".
 */
#ifndef HEARTH_ENGINE_KV_WINDOW_H
#define HEARTH_ENGINE_KV_WINDOW_H

#include "kv_cache.h"
#include "kv_prefix.h"

#define KV_WINDOW_COUNT_MAX   1024   /* slots, whatever the bytes: lists are walked when full */
#define KV_WINDOW_LIFETIME_MS 600000 /* of one that nobody uses and nobody expects back */

enum kv_snapshot_kind {
    KV_SNAPSHOT_FULL,   /* all rings: the sequence goes on from here whatever follows */
    KV_SNAPSHOT_ENCODER /* rings of layers 0 .. E and pending pairs: exact when enough rows follow */
};

struct kv_snapshot {
    /* the caller says */
    enum kv_snapshot_kind kind;
    uint64_t node;                     /* of whole block position / 128 - 1; KV_PREFIX_ROOT: none */
    struct kv_lineage lineage;         /* block lineage in force at `position` */
    struct kv_lineage decoder_lineage; /* when has_decoder_lineage */
    bool has_decoder_lineage;          /* decoder rings depend on a replay */
    int64_t expected_ms;               /* when the sequence probably returns; INT64_MAX: unknown */
    /* the pool says */
    uint64_t id;      /* never 0, never used twice */
    int32_t position; /* S: tokens computed */
    int32_t decoder_floor;
    struct kv_draft_rows draft; /* FULL only */
    bool has_source_ring; /* the ring of layer E holds the last W - 1 positions (FULL: always) */
    int32_t tail_count;   /* S mod 128 */
    int32_t tail[KV_BLOCK_TOKENS]; /* ids of [S - tail_count, S) */
    int32_t tail_block;            /* FULL with a tail: its block, retained; else -1 */
    int64_t captured_ms, used_ms;
};

struct kv_window_options {
    struct kv_cache *cache; /* borrowed; outlives the pool */
    int32_t encoder_layers; /* E of the model */
    int32_t window;         /* W */
    uint64_t bytes_max;     /* of slots; fewer than one slot: the pool keeps nothing */
    int32_t count_max;      /* 0: KV_WINDOW_COUNT_MAX, which is the most */
    int64_t lifetime_ms;    /* 0: KV_WINDOW_LIFETIME_MS */
};

/* Bytes that kv_window_create takes when every slot is in use. */
struct kv_window_size {
    int32_t slots;
    uint64_t slot_bytes;    /* slots * state_bytes, in pages */
    uint64_t total_bytes;   /* with the tables */
    uint64_t encoder_bytes; /* touched by one encoder snapshot */
};
void kv_window_measure(const struct kv_window_options *options, struct kv_window_size *out);

struct kv_window;

/* Expected errors: MEMORY. */
MUST_CHECK result kv_window_create(
    struct kv_window **out, const struct kv_window_options *options, struct error *error
);
/* Drops all snapshots and their blocks. Accepts null. */
void kv_window_destroy(struct kv_window *pool);

/* Copies the window state of a sequence whose windows are complete (computed >= kept, and for FULL
 * not inside a prompt); `about` gives what the caller says. A FULL snapshot inside a block shares
 * that block: the sequence must reserve again before it goes on. In a full pool these go first:
 * expired snapshots, encoder ones, parked states whose lifetime passed, full ones, parked states;
 * among these the latest expected return (unknown is latest), then the least recently used. One of
 * the same kind, lineages and tokens under the same node is replaced. Returns its id; 0 when the pool
 * has no slots, or only such as go later than its kind. */
uint64_t kv_window_capture(
    struct kv_window *pool,
    const struct kv_sequence *sequence,
    const struct kv_snapshot *about,
    int64_t now_ms
);

/* Snapshots filed under a node, greatest position first, FULL before ENCODER on ties; null at the
 * end. Borrowed until the next call that captures or drops. Expired ones are not shown. */
const struct kv_snapshot *
kv_window_first(const struct kv_window *pool, uint64_t node, int64_t now_ms);
const struct kv_snapshot *
kv_window_next(const struct kv_window *pool, const struct kv_snapshot *snapshot, int64_t now_ms);
/* Null when it is gone. */
const struct kv_snapshot *kv_window_get(const struct kv_window *pool, uint64_t id);

/* Copies a snapshot's rings and pending pairs into a sequence that goes on at its position (adopted
 * with `start` = position), and sets decoder_floor and source_floor. `kind` KV_SNAPSHOT_ENCODER of a
 * FULL one takes the encoder's part alone. The snapshot stays; this counts as its use. False when
 * it is gone. */
MUST_CHECK bool kv_window_restore(
    struct kv_window *pool,
    uint64_t id,
    enum kv_snapshot_kind kind,
    struct kv_sequence *sequence,
    int64_t now_ms
);

/* ---- parked states ---- */

/* Copies the window state of a sequence with a window slot, wherever it is: inside a prompt, in the
 * middle of a rebuild, at odd positions. Its blocks, ids and floors stay with the sequence, which must
 * not change until kv_window_unpark. Time alone drops none: it belongs to somebody alive; under
 * pressure it goes as kv_window_capture says, this one included. `expected_ms`: when the sequence
 * probably goes on; INT64_MAX: unknown; 0: as soon as it may. Returns a ticket, never 0 nor used
 * twice, nor equal to a snapshot's id; 0 when there is no room. */
uint64_t kv_window_park(
    struct kv_window *pool, const struct kv_sequence *sequence, int64_t expected_ms, int64_t now_ms
);
/* Copies it back into the sequence's window slot; the ticket is used up. False, and nothing happens,
 * when it was dropped. */
MUST_CHECK bool
kv_window_unpark(struct kv_window *pool, uint64_t ticket, struct kv_sequence *sequence);
/* The ticket counts for one sequence more, a fork, that stands where the first one does: each unparks
 * or leaves once. False when it was dropped. */
MUST_CHECK bool kv_window_share(struct kv_window *pool, uint64_t ticket);
/* One of them does not come back. Nothing happens when it was dropped. */
void kv_window_leave(struct kv_window *pool, uint64_t ticket);
/* Leaves it as a snapshot, without a copy: the sequence is about to end. ENCODER only when no other
 * sequence shares it. Returns the snapshot's id; 0: none, only left. */
uint64_t kv_window_file(
    struct kv_window *pool,
    uint64_t ticket,
    const struct kv_sequence *sequence,
    const struct kv_snapshot *about,
    int64_t now_ms
);
bool kv_window_is_parked(const struct kv_window *pool, uint64_t ticket);
/* Whether one more can be parked without another parked one being dropped. */
bool kv_window_has_room(const struct kv_window *pool);

/* ---- both ---- */

/* What is newly known about the return of a snapshot or parked state. Nothing happens when it is
 * gone. */
void kv_window_expect(struct kv_window *pool, uint64_t id, int64_t expected_ms, int64_t now_ms);
void kv_window_drop(struct kv_window *pool, uint64_t id);
/* All of a node: the tree removed it. */
void kv_window_drop_node(struct kv_window *pool, uint64_t node);
/* All of them, parked states too: memory pressure, tests. */
void kv_window_drop_all(struct kv_window *pool);
/* Drops snapshots whose lifetime passed: unused for lifetime_ms, and as long beyond an expected return.
 * Returns when the next one does; INT64_MAX: none. */
int64_t kv_window_advance(struct kv_window *pool, int64_t now_ms);
/* Drops snapshots that retain a block, in order of eviction, until `blocks` became free. Returns
 * how many did. */
int32_t kv_window_release_blocks(struct kv_window *pool, int32_t blocks, int64_t now_ms);

struct kv_window_counts {
    int32_t slots, full, encoder; /* now */
    int32_t parked;               /* now */
    int32_t blocks;               /* retained tails */
    uint64_t bytes_touched;       /* of slots, by all snapshots so far: host memory in use */
    uint64_t captured, replaced, refused, used, expired, evicted, dropped;
    uint64_t parks, unparks, parks_refused, parks_lost; /* lost: dropped while somebody held it */
};
void kv_window_count(const struct kv_window *pool, struct kv_window_counts *out);

#endif
