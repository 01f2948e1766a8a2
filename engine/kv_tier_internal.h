/* Parts of the tiers that kv_tier*.c share. See kv_tier.h.
 *
 * The host pool belongs to the engine thread and takes no lock. Queue, tickets and batches are guarded by
 * the tier's lock, which nobody holds while bytes move: whoever moves them owns the slots.
 */
#ifndef HEARTH_ENGINE_KV_TIER_INTERNAL_H
#define HEARTH_ENGINE_KV_TIER_INTERNAL_H

#include "kv_disk.h"
#include "kv_sweep.h"
#include "kv_tier.h"

#include <pthread.h>

/* What identifies a block, owned. */
struct kv_about {
    struct kv_key key, parent;
    struct kv_lineage lineage;
    int32_t tokens[KV_BLOCK_TOKENS];
};
void kv_about_fill(struct kv_about *about, const struct kv_tier_record *record);
struct kv_tier_record kv_about_record(const struct kv_about *about, const uint8_t *bytes);

/* Records [count] whose bytes are neighbours, from the first on; at most KV_TIER_BATCH_BLOCKS. */
int32_t kv_tier_neighbours(const struct kv_tier_record *records, int32_t count, size_t block_bytes);
/* Copies device memory (backend not null) or host memory. */
void kv_tier_download(struct backend *backend, void *to, const void *from, size_t bytes);

/* ---- host pool ---- */

struct kv_host_slot {
    struct kv_about about;
    uint64_t used;     /* tick of the last use */
    int32_t after_key; /* in its bucket by key, also in the list of free slots; -1: none */
    int32_t after_parent, before_parent; /* in its bucket by parent */
    int32_t children;                    /* slots whose parent is this one's key */
    int32_t pins;                        /* tickets and batches that need it */
    int32_t heap_at;                     /* its place among those that may go; -1: not there */
    bool is_used;
};

struct kv_host {
    size_t block_bytes;
    int32_t capacity, count, free; /* free: first free slot, -1 none */
    uint32_t mask;                 /* buckets - 1 */
    uint8_t *bytes;                /* [capacity, block_bytes] */
    struct kv_host_slot *slots;    /* [capacity] */
    int32_t *by_key, *by_parent;   /* [mask + 1] first slot; -1: none */
    int32_t *heap;                 /* [capacity] slots that may go, least recently used first */
    int32_t heap_count;
    uint64_t
        *ghosts; /* [mask + 1] keys' first words of blocks evicted, the last one of each bucket */
    uint64_t tick;
    uint64_t put, evicted, refused;
};

/* Slots for `bytes` in all, and the bytes that these take. */
int32_t kv_host_capacity(size_t block_bytes, uint64_t bytes, uint64_t *taken);
/* Expected errors: MEMORY. Half-built on failure, for kv_host_deinit. */
MUST_CHECK result
kv_host_init(struct kv_host *host, size_t block_bytes, int32_t capacity, struct error *error);
void kv_host_deinit(struct kv_host *host);
/* Slot of a key, or -1. */
int32_t kv_host_find(const struct kv_host *host, const struct kv_key *key);
/* Whether the key was evicted, as far as that is remembered. */
bool kv_host_remembers(const struct kv_host *host, const struct kv_key *key);
void kv_host_touch(struct kv_host *host, int32_t slot);
/* A pinned slot stays. */
void kv_host_pin(struct kv_host *host, int32_t slot);
void kv_host_unpin(struct kv_host *host, int32_t slot);
/* Takes a slot, evicting if need be, for a block that is not there and files it; the caller fills
 * its bytes. -1: none can go. */
int32_t kv_host_insert(struct kv_host *host, const struct kv_tier_record *record);
uint8_t *kv_host_bytes(const struct kv_host *host, int32_t slot);
/* Evicts the least valuable block. False: none can go. */
bool kv_host_evict(struct kv_host *host);
/* Adds to out [capacity], which holds `count`, the lineages under which a block follows `parent`. */
int32_t kv_host_lineages(
    const struct kv_host *host,
    const struct kv_key *parent,
    const struct kv_lineage *root,
    struct kv_lineage *out,
    int32_t count,
    int32_t capacity
);

/* ---- tickets and batches ---- */

struct kv_ticket {
    bool is_used;
    uint64_t id;
    uint64_t number; /* order of arrival */
    struct kv_key *keys;
    int32_t *host_slots; /* [end at the start] pinned slot of the host pool, or -1: to be read */
    int32_t end;         /* keys that come; less when one turns out to be missing */
    int32_t pinned_end;  /* host_slots holds pins below it */
    int32_t delivered;   /* keys handed over */
    int32_t read;        /* keys below it are in the host pool, being read or read */
    enum kv_prefix_miss miss; /* of the key at `end`; NONE: there is none */
    bool has_timed_out;
};

enum kv_batch_state {
    KV_BATCH_FREE,
    KV_BATCH_READING,  /* the worker's */
    KV_BATCH_FETCHED,  /* waits for the checker */
    KV_BATCH_CHECKING, /* the checker's */
    KV_BATCH_SHORT,    /* waits for the worker: `good` records passed, the others are to be read */
    KV_BATCH_READY,    /* complete, to be handed over */
    KV_BATCH_OUT       /* the caller's */
};

struct kv_batch_slot {
    enum kv_batch_state state;
    int32_t ticket; /* index; -1: cancelled */
    int32_t first, count;
    int32_t fetched, good; /* of count */
    struct kv_key keys[KV_TIER_BATCH_BLOCKS];
    int32_t host_slots[KV_TIER_BATCH_BLOCKS]; /* pinned */
    struct kv_disk_about *about;              /* [KV_TIER_BATCH_BLOCKS] of a batch from disk */
    uint8_t *headers; /* [KV_TIER_BATCH_BLOCKS, KV_DISK_HEADER_BYTES] as they are on disk */
    uint8_t *bytes;   /* [KV_TIER_BATCH_BLOCKS, block_bytes] */
    struct kv_tier_record records[KV_TIER_BATCH_BLOCKS];
};

struct kv_noted_lineage {
    struct kv_lineage child, parent;
    int32_t position;
};

/* Slots [0, KV_TIER_BATCHES) are filled from disk, the others point into the host pool. */
#define KV_TIER_SLOTS (2 * KV_TIER_BATCHES)

struct kv_tier {
    struct kv_tier_options options;
    struct kv_tier_size size;
    struct error open_trouble;
    struct kv_disk *disk; /* null: none; constant between open and close */
    struct kv_host host;  /* the engine thread's */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t to_worker, to_checker, to_caller;
    pthread_t worker;
    bool has_worker, is_stopping, is_abandoned, has_ended;
    int64_t stop_by_ms;    /* machine's clock: no new work after it */
    int64_t busy_since_ms; /* options.clock: the worker has been at the disk since; -1: it is not */

    /* Copies on their way to disk: [queue_tail, queue_head) modulo KV_TIER_QUEUE_BLOCKS. */
    uint8_t *queue_bytes; /* [KV_TIER_QUEUE_BLOCKS, block_bytes] */
    struct kv_about *queue;
    uint64_t queue_head, queue_tail;
    bool wants_sync;   /* flush: sync as soon as the queue is empty */
    bool has_unsynced; /* written since the last sync */
    bool wants_drop;
    int64_t drop_blocks, dropped;
    int64_t sync_ms, advance_ms; /* machine's clock: when it is due */

    char *cache;            /* owned; the directory, null without a disk */
    struct kv_sweep *sweep; /* the worker's; null without a disk */
    bool is_sweeping;
    int64_t sweep_ms; /* machine's clock: when other folders are looked at again */
    struct kv_tier_others others;

    struct kv_ticket tickets[KV_TIER_TICKETS];
    uint64_t ticket_number;
    struct kv_batch_slot slots[KV_TIER_SLOTS];

    struct kv_noted_lineage *lineages; /* [KV_TIER_LINEAGES] ring */
    uint64_t lineage_count;

    uint64_t host_read, disk_read, written, duplicates, lost, timed_out;
};

/* Position of a key in the queue, or -1. Under the lock. */
int64_t kv_tier_queue_find(const struct kv_tier *tier, const struct kv_key *key);
/* Whether a copy can be read back from disk or the queue. Takes the lock. */
bool kv_tier_below_has(struct kv_tier *tier, const struct kv_key *key);
/* Why a key that was not found is not there. Takes the lock of the disk's index. */
enum kv_prefix_miss kv_tier_reason(struct kv_tier *tier, const struct kv_key *key);
/* The ticket's next keys to read from disk: their number (0: none); *first. Under the lock. */
int32_t kv_ticket_wanted(const struct kv_ticket *ticket, int32_t *first);
/* The origin of a noted lineage, not of those on disk. Under the lock. */
bool kv_tier_noted(
    const struct kv_tier *tier,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
);

/* Milliseconds of the machine's monotonic clock, for waits. */
int64_t kv_tier_machine_ms(void);
/* Waits on a condition of the tier until the machine's clock is at `until_ms`. Under the lock. */
void kv_tier_wait(struct kv_tier *tier, pthread_cond_t *condition, int64_t until_ms);
/* Body of the worker thread; context is the tier. */
void *kv_tier_work(void *context);
/* Body of the checker thread, which the worker starts and joins. It never touches the disk. */
void *kv_tier_verify(void *context);
/* The batch can be handed over. Under the lock. */
void kv_tier_publish(struct kv_tier *tier, struct kv_batch_slot *slot);
/* Frees everything; the worker is gone. Closes the disk. */
void kv_tier_free(struct kv_tier *tier);

#endif
