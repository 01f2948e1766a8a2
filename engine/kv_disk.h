/* The disk tier's files: blocks of one root lineage in append-only segments under
 * CACHE/<16 hex digits of the root lineage>/.
 *
 * A record is found by its path key (kv_key.h) and trusted only after its checksum, key, parent,
 * lineage and tokens were verified by the read. The index lives in memory (about 200 bytes a block)
 * and is rebuilt from the segments; index files only make that faster. Never written twice: a key
 * that is there is refused before anything is written. Leaves go before trunks.
 *
 * Durability: nothing here has to survive a crash, so no record waits for the disk. fdatasync runs
 * when a segment is full, in kv_disk_sync and in kv_disk_close; what a crash tears or loses is a
 * miss, found out by checksums.
 *
 * Threads: one thread at a time calls what is marked WORKER (these do the I/O). Functions marked ANY
 * may be called from any thread meanwhile: they take the index's lock, which the worker never holds
 * during I/O, and do none themselves. open and close: nobody else is inside.
 */
#ifndef HEARTH_ENGINE_KV_DISK_H
#define HEARTH_ENGINE_KV_DISK_H

#include "base/clock.h"
#include "base/result.h"
#include "kv_key.h"
#include "kv_prefix.h"

#define KV_DISK_BYTES_DEFAULT    ((uint64_t)16 << 30) /* at most a quarter of the free space */
#define KV_DISK_WRITES_DEFAULT   ((uint64_t)8 << 30)  /* per hour */
#define KV_DISK_LIFETIME_DEFAULT ((int64_t)72 * 3600 * 1000)

/* A block record: 768 bytes of header, then the block; rounded up to 4,096 when that costs at most
 * 2 % (the release: 114,688 for 113,920 bytes), else to 64 with pages shared by neighbours. */
#define KV_DISK_HEADER_BYTES 768
/* 2^26 bytes is 590 times the release's block; larger ones are no KV blocks. */
#define KV_DISK_BLOCK_BYTES_MAX ((size_t)64 << 20)
uint64_t kv_disk_stride(size_t block_bytes);

enum kv_disk_mode {
    KV_DISK_WRITER, /* takes the lock; may write and remove */
    KV_DISK_READER  /* no lock, changes nothing, works beside a writer: for `hearth cache` */
};

struct kv_disk_options {
    const char *directory; /* CACHE: made (0700) when missing; its parent must be there */
    struct kv_lineage root;
    size_t block_bytes;            /* 1 .. KV_DISK_BLOCK_BYTES_MAX */
    uint64_t bytes_max;            /* 0: KV_DISK_BYTES_DEFAULT */
    uint64_t write_bytes_per_hour; /* 0: KV_DISK_WRITES_DEFAULT */
    int64_t lifetime_ms;           /* since the last use; 0: KV_DISK_LIFETIME_DEFAULT */
    const char *description;       /* model name, backend, numerics: for people; null: none, */
                                   /* and budgets of 0 are those of the last run that had one */
    struct clock clock;            /* wall time for lifetimes, monotonic for the hour's budget */
    enum kv_disk_mode mode;
    uint64_t segment_bytes; /* 0: 256 MiB, less for small blocks and budgets */
    bool keep_damaged;      /* the start destroys nothing that is torn: `hearth cache verify` */
};

struct kv_disk;

/* Expected errors: MEMORY; anything else is the directory's trouble, named in the message, and means
 * "no disk tier": LIMIT (in use by process N, a byte budget that holds no block), UNSUPPORTED (network file system, format version),
 * IO (read-only, permissions, another user's), CORRUPT (files of another root lineage),
 * NOT_FOUND (a reader, and there is nothing). Damaged files never fail it. */
MUST_CHECK result
kv_disk_open(struct kv_disk **out, const struct kv_disk_options *options, struct error *error);
/* Writes index files, syncs, gives the lock back. Accepts null. */
void kv_disk_close(struct kv_disk *disk);

/* ---- ANY: lookups in memory ---- */

bool kv_disk_has(struct kv_disk *disk, const struct kv_key *key);
/* How many of keys [count] are there from the first on. *why (may be null): of the first that is
 * not: NEVER_COMPUTED, EVICTED, EXPIRED, DAMAGED or, after a read error ended everything, NOT_READ;
 * NONE when all are there. */
int32_t kv_disk_find(
    struct kv_disk *disk, const struct kv_key *keys, int32_t count, enum kv_prefix_miss *why
);
/* Lineages, of which the derivation is known, under which a block follows `parent`; distinct, at
 * most `capacity`, in no order. Looks at KV_PREFIX_SIBLINGS_SCANNED children, newest first. */
int32_t kv_disk_lineages(
    struct kv_disk *disk, const struct kv_key *parent, struct kv_lineage *out, int32_t capacity
);
/* Whether `child` is known as kv_lineage_replay(parent, position). */
bool kv_disk_lineage(
    struct kv_disk *disk,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
);
/* Marks keys as used now (a hit above the disk counts too). */
void kv_disk_touch(struct kv_disk *disk, const struct kv_key *keys, int32_t count);
/* Blocks that the budget of this hour still takes; 0 once writing ended for good. */
int64_t kv_disk_room(struct kv_disk *disk);
/* Bytes of segments as allocated; *bytes_max: the budget in force. */
uint64_t kv_disk_bytes(struct kv_disk *disk, uint64_t *bytes_max);
/* What ended writing (ENOSPC, a write error, an hour's budget below one block) or everything (a read error) since it was opened: code
 * OK when nothing did. Set once, then constant. */
void kv_disk_trouble(struct kv_disk *disk, struct error *out);

struct kv_disk_counts {
    int64_t blocks;
    uint64_t bytes; /* of segments as allocated, dead records that could not be freed included */
    uint64_t bytes_max;   /* the budget in force */
    uint64_t index_bytes; /* memory of the index */
    int64_t segments;
    int64_t refused_files; /* links, FIFOs, other users' files, other root lineages: left alone */
    int64_t damaged_found; /* records that the start found torn or unreadable */
    /* since it was opened */
    uint64_t written, written_bytes; /* blocks; bytes given to the file system, headers included */
    uint64_t read, read_bytes;
    uint64_t present, over_budget, no_room; /* writes refused: there already, hour, size */
    uint64_t evicted, expired, damaged;     /* removals by reason */
    int64_t hour_bytes;         /* written within the last hour, earlier runs included */
    int64_t oldest_ms, used_ms; /* wall time: first creation of what is there, last use */
    bool is_readable;           /* no read error ended everything */
    int64_t jump_ms; /* the wall clock's largest jump forwards against the monotonic one */
};
void kv_disk_count(struct kv_disk *disk, struct kv_disk_counts *out);

/* ---- WORKER ---- */

/* Notes child = kv_lineage_replay(parent, position) on disk unless it is known; to be called before
 * the first block of `child` is written. Expected errors: LIMIT (65,536 are known), INVALID_INPUT
 * (it is not that), IO. */
MUST_CHECK result kv_disk_note_lineage(
    struct kv_disk *disk,
    const struct kv_lineage *child,
    const struct kv_lineage *parent,
    int32_t position,
    struct error *error
);

enum kv_disk_outcome {
    KV_DISK_WRITTEN,
    KV_DISK_PRESENT,     /* the key is there */
    KV_DISK_OVER_BUDGET, /* of this hour: later */
    KV_DISK_NO_ROOM,     /* larger than the whole budget, or everything there is newer and needed */
    KV_DISK_OFF          /* writing ended: kv_disk_trouble */
};
/* Appends one block; its tokens and key must agree (asserted), an approximate lineage must be noted
 * (else INVALID_INPUT). Removes other blocks first when the byte budget asks for it. Failing leaves
 * the tier as it was, and what it means has happened already (see OFF): the error is for the log.
 * Expected errors: MEMORY, IO, INVALID_INPUT. */
MUST_CHECK result kv_disk_write(
    struct kv_disk *disk,
    const struct kv_tier_record *record,
    enum kv_disk_outcome *outcome,
    struct error *error
);

/* What a read gives beside the block itself. */
struct kv_disk_about {
    struct kv_key parent;
    struct kv_lineage lineage;
    int32_t tokens[KV_BLOCK_TOKENS];
    int64_t created_ms; /* wall time */
};
/* Reads and verifies one block into bytes [block_bytes] and marks it used. A damaged record is
 * quarantined: it is destroyed, never read again, and a later miss says DAMAGED.
 * Expected errors: NOT_FOUND, CORRUPT (damaged, quarantined now), IO (everything ended). */
MUST_CHECK result kv_disk_read(
    struct kv_disk *disk,
    const struct kv_key *key,
    uint8_t *bytes,
    struct kv_disk_about *about,
    struct error *error
);
/* Reads the records of keys [count] from the first on as far as they are neighbours, in one piece:
 * headers [count, KV_DISK_HEADER_BYTES] and bytes [count, block_bytes]. Nothing is verified: each is
 * to pass kv_disk_check, or kv_disk_read is to be asked, as for those that do not come, which says
 * what is the matter. Returns how many came, 0 when the first did not. */
#define KV_DISK_FETCH_MAX 32
int32_t kv_disk_fetch(
    struct kv_disk *disk, const struct kv_key *keys, int32_t count, uint8_t *headers, uint8_t *bytes
);
/* ANY, also beside the worker: whether these bytes are the whole record of `key`. Fills *about. */
MUST_CHECK bool kv_disk_check(
    const struct kv_disk *disk,
    const struct kv_key *key,
    const uint8_t *header,
    const uint8_t *bytes,
    struct kv_disk_about *about
);
/* A block that turned out wrong above (it contradicts what was computed): as damaged. */
void kv_disk_quarantine(struct kv_disk *disk, const struct kv_key *key);

/* Removes what expired or is over the budget, at most KV_DISK_REMOVED_PER_CALL blocks. Returns the
 * milliseconds after which to call again (0: at once). */
#define KV_DISK_REMOVED_PER_CALL 256
int64_t kv_disk_advance(struct kv_disk *disk);
/* Removes `count` blocks (0: all), leaves first. Returns how many went. */
int64_t kv_disk_drop(struct kv_disk *disk, int64_t count);
/* Writes index files of changed segments and syncs the rest: now and then, and when idle. */
void kv_disk_sync(struct kv_disk *disk);

#endif
