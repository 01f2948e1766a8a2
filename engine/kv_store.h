/* The KV store: prefix tree, window snapshots, tiers and lineages around one pool of blocks.
 *
 * It decides what a prompt reuses, from where its rows run again and what is kept of a sequence. It
 * computes nothing: the scheduler runs the rows, from `computed` on, and reports after each step; a
 * simulation may run none. Content is found by its tokens and lineage whoever computed it, so that
 * a sequence destroyed, another sequence and the one before a restart are the same to it.
 * Thread: one at a time (the engine's lock). Times are monotonic milliseconds.
 */
#ifndef HEARTH_ENGINE_KV_STORE_H
#define HEARTH_ENGINE_KV_STORE_H

#include "engine.h"
#include "kv_cache.h"
#include "kv_prefix.h"
#include "kv_window.h"

struct kv_store;
struct kv_tier;

#define KV_STORE_REPLAYS_KNOWN  1024 /* derivations of approximate lineages remembered */
#define KV_STORE_WRITE_AFTER_MS 1000 /* a new block waits this long before it is written below */

struct kv_store_options {
    struct kv_cache *cache; /* borrowed; its make_room becomes the store's */
    int32_t window, encoder_layers, layers;
    struct kv_lineage root;
    uint64_t hash_key;
    int32_t nodes_max;   /* of the tree; 0: one per block of the pool */
    int32_t leases_max;  /* sequences bound at a time, waiting ones included */
    int64_t lease_ms;    /* 0: 60 s */
    int64_t lifetime_ms; /* of blocks; 0: 72 h */
    uint64_t snapshot_bytes;
    int64_t snapshot_lifetime_ms; /* 0: 10 min */
    struct kv_tier *tier;         /* borrowed; null: none */
    size_t poll_bytes;            /* of blocks copied by one kv_store_poll; 0: 1 MiB */
    bool has_disk;                /* the tier was opened with a directory */
    /* Engram id of a token, for blocks that come from a tier; null: 0. */
    int32_t (*compress)(void *context, int32_t id);
    void *compress_context;
    bool ignores_events; /* policy of a simulation: least recently used alone */
    bool keeps_nothing;  /* every sequence starts cold */
};

/* Bytes of tree, snapshots and tables when all of it is in use, beside the pool of blocks. */
struct kv_store_size {
    uint64_t prefix_bytes, snapshot_bytes, other_bytes;
    int32_t snapshots;
};
void kv_store_measure(const struct kv_store_options *options, struct kv_store_size *out);

/* Expected errors: MEMORY, INVALID_INPUT (counts outside the tree's limits). */
MUST_CHECK result
kv_store_create(struct kv_store **out, const struct kv_store_options *options, struct error *error);
/* Lets go of every block. Sequences may be there still, bindings not. Accepts null. */
void kv_store_destroy(struct kv_store *store);

/* What the store knows of one sequence. All zero before kv_store_bind. */
struct kv_binding {
    struct kv_sequence *sequence; /* borrowed; null: not bound */
    uint64_t lease;               /* 0: none */
    uint64_t node;                /* of the last whole block that is filed */
    int32_t filed;                /* whole blocks that are filed, those of `node` and above */
    struct kv_lineage lineage;    /* in force: of the next block to be filed */
    struct kv_lineage decoder_lineage;
    bool has_decoder_lineage;
    struct window_replay replays[ENGINE_REPLAYS_MAX]; /* all that the content depends on */
    int32_t replay_count;
    int32_t encoder_floor; /* windows of encoder layers see nothing below; matters below `kept` */
    int32_t complete;      /* from here on all windows serve any continuation: the prompt's end */
    bool is_replay;        /* decoder rows before sequence->decoder_floor do not run */
    int32_t cut;           /* a step ends here: kv_store_advance has something to do; 0: nowhere */
    int32_t repeat;        /* index in `replays` of the encoder replay that is due at `cut`; -1 */
    bool is_lost;          /* a step failed: nothing of it may be kept any more */
    bool is_abandoned;
    bool is_waiting;                      /* for blocks from a tier */
    int64_t expected_ms;                  /* of a return; INT64_MAX: unknown */
    uint64_t parked;                      /* ticket of its window state; 0: none */
    uint64_t ticket;                      /* of the read in flight; 0: none */
    int32_t reads;                        /* started so far */
    bool is_read_out;                     /* no more reads for this prompt */
    int32_t restored_from;                /* blocks that were there before the first read */
    int32_t restored_host, restored_disk; /* blocks so far */
    enum kv_prefix_miss tier_miss;        /* why a tier does not have block `tier_miss_block` */
    int32_t tier_miss_block;
    struct kv_binding *waiting_next; /* a waiting binding does not move in memory */
};

struct kv_prompt {
    const int32_t *tokens; /* the whole prompt */
    int32_t count;
    enum window_mode window;
    bool has_contract; /* re-create these replays; `window` is ignored */
    const struct window_replay *contract;
    int32_t contract_count;
};

/* What was decided: H is `hit`. */
struct kv_reuse {
    int32_t hit;
    int32_t start;             /* first row that runs; below `hit` when windows are rebuilt */
    const char *window_source; /* static: as generation_facts */
    enum kv_prefix_miss miss;
    int32_t miss_token;
    int32_t restored_host, restored_disk; /* tokens of the hit */
};

/* Whether a list can have been recorded of a prompt of `count` tokens. Expected errors:
 * INVALID_INPUT. */
MUST_CHECK result kv_store_check_contract(
    const struct kv_store *store,
    const struct window_replay *contract,
    int32_t contract_count,
    int32_t count,
    struct error *error
);

enum kv_begin {
    KV_BEGIN_READY,
    KV_BEGIN_WAIT,  /* blocks are on their way from a tier: ask again after a kv_store_poll */
    KV_BEGIN_WINDOW /* all is there but a window slot: ask again when one is free */
};
/* Gives an empty sequence what is cached of its prompt: blocks, their ids, window state; `computed`
 * is where rows start, `kept` the hit. The caller reserves and appends the rest of the prompt. A
 * sequence without a window slot gets one when the blocks are there.
 * Never fails: what is not usable, or has no memory to be read back, is a miss. */
enum kv_begin kv_store_begin(
    struct kv_store *store,
    struct kv_binding *binding,
    struct kv_sequence *sequence,
    const struct kv_prompt *prompt,
    int64_t now_ms,
    struct kv_reuse *out
);
/* Gives up waiting: an unbound binding again. */
void kv_store_cancel(struct kv_store *store, struct kv_binding *binding, int64_t now_ms);
/* A bound sequence goes on by a prompt that ends at `prompt_end`: decides which decoder rows run. Not
 * after kv_store_begin, which did it. */
void kv_store_extend(
    struct kv_store *store, struct kv_binding *binding, int32_t prompt_end, enum window_mode window
);
/* Rows that may run in one step from `computed` on, of `rows` wanted: cuts are respected. */
int32_t kv_store_rows(const struct kv_binding *binding, int32_t rows);
/* After a step of the sequence: files blocks that became whole, takes snapshots, starts a replay
 * of a contract. `computed` may be lower afterwards. */
void kv_store_advance(struct kv_store *store, struct kv_binding *binding, int64_t now_ms);
/* `child` is to a fork of the parent's sequence what the parent's binding is to the parent's. A parked
 * parent's state is shared; a child that got no window slot has the state parked, when there is room. */
void kv_store_fork(
    struct kv_store *store,
    struct kv_binding *parent,
    struct kv_binding *child,
    struct kv_sequence *sequence,
    int64_t now_ms
);
void kv_store_tell(
    struct kv_store *store,
    struct kv_binding *binding,
    enum sequence_event event,
    int64_t estimate_ms,
    int64_t now_ms
);
/* The sequence is about to be released: keeps its windows, unless it is lost or abandoned, and ends
 * its lease. The binding is zero afterwards. Constant time. */
void kv_store_end(struct kv_store *store, struct kv_binding *binding, int64_t now_ms);

/* ---- sequences that take turns ---- */

/* Between two steps: takes a bound sequence's window slot away and keeps its window state in the
 * snapshot pool, if there is room; the rest of the sequence stays. `is_preempted`: it goes on as soon
 * as it may, so its state goes last under pressure; else it waits, as long as kv_store_tell said.
 * Nothing happens to one without a slot. Costs a copy of state_bytes. */
void kv_store_park(
    struct kv_store *store, struct kv_binding *binding, bool is_preempted, int64_t now_ms
);
/* About how many rows will have to run again should this sequence, which has a slot, be parked now: none
 * while the pool has room, else those of its own rebuild (another one's, which gives way, are about as
 * many). `prompt_end` as for kv_store_resume. */
int32_t kv_store_rebuild_rows(
    const struct kv_store *store, const struct kv_binding *binding, int32_t prompt_end
);
/* What a sequence that goes on has to do. */
struct kv_resumption {
    bool
        is_rebuilt; /* its state was dropped: rows below `kept` run again for their windows alone */
    int32_t start;  /* first row that runs: `computed` */
    int32_t kept;   /* rows from here on are new ones */
};
/* A bound sequence without a window slot gets one, and its state back. When that was dropped, rows run
 * again from an earlier `computed` on, as a prompt's that ends at `prompt_end` (>= its length: the
 * end of its prompt, or its length when it decodes): every forward_segment up to there says so, and
 * its window mode is binding->is_replay's. The results are those of a sequence that was never parked,
 * bit for bit, whatever replays it depends on. After kv_store_extend, when the sequence goes on by a
 * prompt. False when no window slot is free: nothing has happened. */
MUST_CHECK bool kv_store_resume(
    struct kv_store *store,
    struct kv_binding *binding,
    int32_t prompt_end,
    int64_t now_ms,
    struct kv_resumption *out
);

/* What the content of a sequence that was demoted depends on beside its tokens. */
struct kv_demoted {
    struct kv_lineage lineage, decoder_lineage;
    bool has_decoder_lineage;
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    int32_t replay_count;
    int32_t repeat;                                /* as in the binding */
    int32_t length, computed, kept, decoder_floor; /* as in the sequence */
};
/* A bound sequence that does not run is about to be released although it goes on later: kv_store_end,
 * which see, after its tokens' number and what they depend on were written to `out`. Its next prompt
 * begins with all its tokens and kv_store_contract's list. */
void kv_store_demote(
    struct kv_store *store, struct kv_binding *binding, int64_t now_ms, struct kv_demoted *out
);
/* The contract that makes a prompt of `prompt_end` tokens, the demoted ones and what is appended, the
 * same to the bit as if the sequence had never been demoted. Returns its length. */
int32_t kv_store_contract(
    struct kv_store *store,
    const struct kv_demoted *demoted,
    int32_t prompt_end,
    enum window_mode window,
    struct window_replay out[ENGINE_REPLAYS_MAX]
);

/* Promise P7: blocks that a generation may still take (prompt and tokens_max) are promised before it
 * begins, or it does not begin: kv_cache_commit, which see. For the first prompt of a sequence before
 * kv_store_begin. `tokens` 0 takes the promise back: to be called when a generation ends. */
MUST_CHECK bool
kv_store_commit(struct kv_store *store, struct kv_sequence *sequence, int32_t tokens);
/* The numbers for whoever is not admitted: kv_cache_need. */
void kv_store_need(
    const struct kv_store *store,
    const struct kv_sequence *sequence,
    int32_t tokens,
    struct kv_need *out
);

/* Completions of reads, writing behind, lifetimes: after each step, and when idle. Returns when it
 * wants to be called again; INT64_MAX: when something else happens. */
int64_t kv_store_poll(struct kv_store *store, int64_t now_ms);
/* Drops content of a tier; `blocks` 0: all. The disk's blocks until it is done. */
void kv_store_drop(struct kv_store *store, enum cache_tier tier, int32_t blocks, int64_t now_ms);
/* Blocks until everything that waits to be written is on disk. False: it is not, because the tier
 * takes no more for now, or after `timeout_ms` without an end. */
bool kv_store_flush(struct kv_store *store, int64_t timeout_ms, int64_t now_ms);

struct kv_store_counts {
    struct kv_prefix_counts tree;
    struct kv_window_counts windows;
    uint64_t lookups, prompt_tokens, reused_tokens, rebuilt_tokens;
    uint64_t misses[KV_PREFIX_MISSES];
    uint64_t restored_host_blocks, restored_disk_blocks;
    uint64_t refiled; /* paths filed again because their node was gone */
    uint64_t parked,
        resumed; /* by kv_store_park and kv_store_resume; forks with a parked state count */
    uint64_t resumed_rebuilt; /* of resumed, those whose state was gone */
    uint64_t resumed_rows;    /* that these run again; not in rebuilt_tokens */
};
void kv_store_count(const struct kv_store *store, struct kv_store_counts *out);
/* Whether tree and pool agree. Expected errors: CORRUPT. For tests. */
MUST_CHECK result kv_store_check(const struct kv_store *store, struct error *error);

#endif
