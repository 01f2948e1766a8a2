/* The tiers below the device: a host pool and segment files on disk, behind a worker thread (and one
 * that verifies what it reads).
 *
 * Blocks go down (written behind, or moved to the host pool when the device needs their place) and
 * come back by tickets: the keys of one prompt's blocks in order. What is in host memory is handed
 * over at once, where it lies; what is on disk is read and verified by the worker in large pieces.
 * All queues are bounded, memory is taken once in open (but for the keys of a ticket), and no call
 * waits for the disk but open, flush, drop_disk and close. A disk that fails is switched off and
 * named once; one that hangs costs the tickets that wait for it, after a while, and nobody else.
 * Thread: the engine thread, or whoever holds the engine's lock; kv_tier_trouble any.
 */
#ifndef HEARTH_ENGINE_KV_TIER_H
#define HEARTH_ENGINE_KV_TIER_H

#include "base/clock.h"
#include "kernels/backend.h"
#include "kv_disk.h"
#include "kv_key.h"
#include "kv_prefix.h"

/* Blocks that move in one piece: 3.6 MB at the release's size. */
#define KV_TIER_BATCH_BLOCKS 32
/* Blocks copied and not yet on disk; a second at 15 MB/s and 890 bytes a token is 17,000 tokens. */
#define KV_TIER_QUEUE_BLOCKS 128
/* Batches read from disk and not yet given back: one is used, one waits, two are read ahead. */
#define KV_TIER_BATCHES 4
/* Reads in progress at a time; each waits for its turn at the one disk. */
#define KV_TIER_TICKETS 64
/* Keys of one ticket: 8 million tokens. */
#define KV_TIER_KEYS_MAX 65536
/* Lineages noted since the start, the latest ones. */
#define KV_TIER_LINEAGES 1024
/* Slots of the host pool; 4 million blocks are 478 GB at the release's size. */
#define KV_TIER_HOST_BLOCKS_MAX 4194304

struct kv_tier_options {
    const char *directory; /* of the disk tier (STATE/cache); null: none */
    uint64_t host_bytes;   /* of the host pool, all that it takes; 0: none */
    struct kv_lineage root;
    size_t block_bytes;            /* at least 1 */
    uint64_t disk_bytes_max;       /* 0: 16 GiB, at most a quarter of the free space */
    uint64_t write_bytes_per_hour; /* 0: 8 GiB */
    int64_t lifetime_ms;           /* 0: 72 h */
    int64_t read_timeout_ms;  /* a ticket ends when the disk gives nothing for so long; 0: 10 s */
    int64_t close_timeout_ms; /* longest wait of kv_tier_close; 0: 10 s */
    const char *description;  /* for the folder's info file; null: none */
    struct backend *backend;  /* `bytes` of records given are its memory; null: host memory */
    struct clock clock;       /* also called by the worker, for as long as it hangs, even after */
                              /* kv_tier_close gave up on it; zero: clock_real() */
    void (*wake)(void *context); /* kv_tier_next has something; from a thread of the tier, only */
    void *wake_context;          /* signals; never called again once kv_tier_close returned */
};

/* Bytes that kv_tier_open takes beside the disk tier's index (at most 1 % of what lies there). */
struct kv_tier_size {
    int32_t host_blocks;
    uint64_t host_bytes;  /* pool, with what is known of each block */
    uint64_t queue_bytes; /* copies on their way to disk */
    uint64_t read_bytes;  /* batches on their way back */
    uint64_t total_bytes;
};
void kv_tier_measure(const struct kv_tier_options *options, struct kv_tier_size *out);

struct kv_tier;

/* Scans the directory. What is wrong with it is no error: see kv_tier_trouble.
 * Expected errors: MEMORY, INVALID_INPUT (block_bytes or a size outside its limit). */
MUST_CHECK result
kv_tier_open(struct kv_tier **out, const struct kv_tier_options *options, struct error *error);
/* Finishes queued writes and syncs, for close_timeout_ms at most; what is not written then is lost,
 * which costs time later and nothing else. All batches must have been given back. Accepts null. */
void kv_tier_close(struct kv_tier *tier);
/* Why there is no disk tier (any more); code RESULT_OK when there is one or none was asked for. */
void kv_tier_trouble(const struct kv_tier *tier, struct error *out);

/* ---- what is there ---- */

/* How many of keys [count] can be read, from the first on. *why: the reason of the first that cannot
 * (EVICTED, EXPIRED, DAMAGED, NEVER_COMPUTED; NOT_READ after a read error ended the disk tier), NONE when all can. A block on its way to disk can. */
int32_t kv_tier_find(
    struct kv_tier *tier, const struct kv_key *keys, int32_t count, enum kv_prefix_miss *why
);
/* Whether kv_tier_find would find it. */
bool kv_tier_has(struct kv_tier *tier, const struct kv_key *key);
/* Whether it is on disk or on its way there, so that writing it would change nothing. */
bool kv_tier_is_written(struct kv_tier *tier, const struct kv_key *key);
/* Approximate lineages of known origin under which a block follows `parent` on some tier; distinct,
 * at most `capacity`, in no order. Returns their number. */
int32_t kv_tier_lineages(
    struct kv_tier *tier, const struct kv_key *parent, struct kv_lineage *out, int32_t capacity
);
/* Marks keys as used now on the tiers that hold them: a hit above them counts too. */
void kv_tier_touch(struct kv_tier *tier, const struct kv_key *keys, int32_t count);

/* ---- going down ---- */

/* Blocks that kv_tier_write would copy now: 0 without a disk, with a full queue or a spent budget. */
int32_t kv_tier_room(struct kv_tier *tier);
/* Queues copies of records [count] for the disk, parents first. Those on disk or on their way are
 * passed over. Returns how many were dealt with, from the first on; the others do not fit now: ask
 * again later or never. Neighbours in memory are copied in one piece. */
int32_t kv_tier_write(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count);
/* Copies blocks that leave the device into the host pool, in place of its least valuable ones:
 * leaves before trunks, then the least recently used. Nothing happens without a host pool. */
void kv_tier_put_host(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count);
/* Waits until what is queued is on disk and synced, `timeout_ms` at most. False: it is not. */
bool kv_tier_flush(struct kv_tier *tier, int64_t timeout_ms);

/* ---- coming back ---- */

/* Starts to read keys [count] (1..KV_TIER_KEYS_MAX, copied) in order. `ticket` is the caller's
 * number, not in use. False: too many tickets, or no memory for the keys; ask again later. */
MUST_CHECK bool
kv_tier_read(struct kv_tier *tier, uint64_t ticket, const struct kv_key *keys, int32_t count);
/* Forgets a ticket; no more batches of it come. Batches taken are still to be given back. Accepts
 * one that has ended. */
void kv_tier_cancel(struct kv_tier *tier, uint64_t ticket);

struct kv_tier_batch {
    uint64_t ticket;
    int32_t first; /* records[i] is of keys[first + i] */
    int32_t count; /* 0..KV_TIER_BATCH_BLOCKS; 0 only in a last one that ends early */
    bool from_disk;
    bool is_last;       /* the ticket has ended */
    bool has_timed_out; /* it ended because the disk hung */
    enum kv_prefix_miss
        miss; /* of a last one: why keys[first + count] does not come (NOT_READ for */
              /* one that timed out and for a read error); NONE: all came */
    const struct kv_tier_record *records; /* [count] verified; valid until kv_tier_done */
    int32_t slot;                         /* the tier's own */
};
/* The next batch of any ticket, those of one ticket in order; never waits. Ask right after
 * kv_tier_read, after each wake, and once a second while tickets are open (a disk that hangs cannot
 * wake anybody). False: nothing, or KV_TIER_BATCHES are out; give one back. */
MUST_CHECK bool kv_tier_next(struct kv_tier *tier, struct kv_tier_batch *out);
void kv_tier_done(struct kv_tier *tier, const struct kv_tier_batch *batch);

/* ---- lineages ---- */

/* Notes child = kv_lineage_replay(parent, position), which must hold; to be told before blocks of
 * `child` are written or put. KV_TIER_LINEAGES are remembered, beside those on disk; blocks of a
 * forgotten one are not written. */
void kv_tier_note_lineage(
    struct kv_tier *tier,
    const struct kv_lineage *child,
    const struct kv_lineage *parent,
    int32_t position
);
/* What `child` comes from. False: not known. */
MUST_CHECK bool kv_tier_lineage(
    struct kv_tier *tier,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
);

/* ---- for tests and `hearth cache` ---- */

/* Drops blocks (0: all that nobody reads), as pressure would; returns their number. */
int32_t kv_tier_drop_host(struct kv_tier *tier, int32_t blocks);
/* Waits for the worker, close_timeout_ms at most; 0 then, and it happens later. */
int32_t kv_tier_drop_disk(struct kv_tier *tier, int32_t blocks);

/* What became of folders of other root lineages in the same directory (kv_sweep.h). */
struct kv_tier_others {
    bool is_known;            /* all were looked at once */
    uint64_t bytes;           /* that they hold */
    int64_t expired, evicted; /* blocks, since the tier was opened */
    int32_t removed;          /* folders that had nothing left */
    char names[160];          /* of these, as far as they fit */
};

struct kv_tier_counts {
    int32_t host_blocks, host_blocks_max, queued_blocks, tickets;
    uint64_t host_bytes;                           /* of blocks held */
    uint64_t host_put, host_evicted, host_refused; /* blocks; refused: all others were being read */
    uint64_t host_read_blocks, disk_read_blocks;   /* handed over */
    uint64_t written_blocks;                       /* appended to disk */
    uint64_t duplicate_blocks;                     /* not written again */
    uint64_t lost_blocks;                          /* queued, and the disk failed */
    uint64_t tickets_timed_out;
    int64_t read_timeout_ms;    /* what they waited for */
    struct kv_disk_counts disk; /* zero without a disk tier */
    struct kv_tier_others others;
};
void kv_tier_count(struct kv_tier *tier, struct kv_tier_counts *out);

#endif
