/* What the files of kv_disk share: formats, index, segments. Private to kv_disk*.c and kv_files.c.
 *
 *   kv_disk_format.c     bytes of headers and index files; pure
 *   kv_disk_index.c      keys to places, children, eviction order, removed keys; pure
 *   kv_disk_directory.c  the folder, its lock and its owner
 *   kv_disk_segment.c    segment files and their index files
 *   kv_disk_state.c      lineages, hour's budget, removed keys between runs
 *   kv_disk_open.c       opening and closing
 *   kv_disk.c            lookups, writing, reading, removing
 */
#ifndef HEARTH_ENGINE_KV_DISK_INTERNAL_H
#define HEARTH_ENGINE_KV_DISK_INTERNAL_H

#include "base/bytes.h"
#include "kv_disk.h"
#include <pthread.h>

#define DISK_FORMAT            1U
#define DISK_SEGMENT_HEADER    4096 /* bytes before the first record; the rest of it is zero */
#define DISK_CHECKSUM_BYTES    16
#define DISK_INDEX_HEADER      128
#define DISK_INDEX_ENTRY       128
#define DISK_LINEAGE_BYTES     128
#define DISK_SEGMENT_SLOTS_MAX 65536 /* bounds what one foreign file can make us hold */
#define DISK_SEGMENTS_MAX      4096  /* beyond it the oldest goes: 1 TB at the default size */
#define DISK_LINEAGES_MAX      65536
#define DISK_GHOSTS_MAX        65536 /* removed keys remembered: 2 MB */
#define DISK_NAME_BYTES        32
#define DISK_NONE              UINT32_MAX
#define DISK_MINUTES           60

/* ---- formats ---- */

enum disk_file_kind { DISK_FILE_SEGMENT, DISK_FILE_EXPORT };

struct disk_file_header {
    enum disk_file_kind kind;
    uint32_t version; /* encoding writes DISK_FORMAT */
    uint32_t number;  /* of a segment; 0 in an export */
    struct kv_lineage root;
    uint64_t block_bytes, stride;
    int64_t created_ms;
    uint64_t nonce;                     /* two segments never have the same header */
    uint32_t lineages, records;         /* of an export: how many follow; 0 in a segment */
    uint8_t stamp[DISK_CHECKSUM_BYTES]; /* decoded only: names this very file */
};

struct disk_record_header {
    struct kv_key key, parent;
    struct kv_lineage lineage;
    uint64_t block_bytes;
    int64_t created_ms;
    int32_t tokens[KV_BLOCK_TOKENS];
    uint8_t checksum[DISK_CHECKSUM_BYTES]; /* of the block bytes */
};

struct disk_index_entry {
    struct kv_key key, parent;
    struct kv_lineage lineage;
    uint32_t slot;
    int64_t created_ms, used_ms;
};

struct disk_lineage {
    struct kv_lineage child, parent;
    int32_t position;
};

void disk_checksum(const void *data, size_t bytes, uint8_t out[DISK_CHECKSUM_BYTES]);
/* bytes [128]: the part of a file header that is not zero. */
void disk_file_header_encode(const struct disk_file_header *header, uint8_t *bytes);
/* False: not ours or damaged. Another version decodes `version` only. */
bool disk_file_header_decode(struct view bytes, struct disk_file_header *out);
/* bytes [KV_DISK_HEADER_BYTES] */
void disk_record_encode(const struct disk_record_header *header, uint8_t *bytes);
enum disk_slot { DISK_SLOT_RECORD, DISK_SLOT_HOLE, DISK_SLOT_DAMAGED };
/* The header's checksum holds (RECORD), everything is zero (HOLE), or neither. */
enum disk_slot
disk_record_decode(struct view bytes, uint64_t block_bytes, struct disk_record_header *out);
/* Whether key, parent, lineage and tokens agree. */
bool disk_record_key_holds(const struct disk_record_header *header);
void disk_lineage_encode(const struct disk_lineage *lineage, uint8_t bytes[DISK_LINEAGE_BYTES]);
/* False: damaged or not the replay it says it is. */
bool disk_lineage_decode(struct view bytes, struct disk_lineage *out);

/* Binds an index file to its segment. */
struct disk_index_header {
    uint8_t stamp[DISK_CHECKSUM_BYTES];
    uint32_t slots, count;
};
void disk_index_header_encode(const struct disk_index_header *header, uint8_t *bytes);
void disk_index_entry_encode(const struct disk_index_entry *entry, uint8_t *bytes);
/* Checks the whole file: header, checksum, ascending slots below header.slots. */
bool disk_index_check(struct view file, struct disk_index_header *out);
void disk_index_entry_get(struct view file, uint32_t at, struct disk_index_entry *out);

/* ---- index ---- */

struct disk_entry {
    struct kv_key key, parent;
    int64_t created_ms, used_ms;
    uint32_t lineage;       /* in the disk's lineages */
    uint32_t segment, slot; /* segment: in the disk's segments */
    uint32_t children;
    uint32_t parent_entry; /* DISK_NONE: the root, or not there */
    uint32_t next;         /* of this key hash, or of the free list */
    uint32_t sibling_next, sibling_previous;
    uint32_t heap_at; /* DISK_NONE: in none */
};

struct disk_ghost {
    uint8_t key[16];
    uint32_t next;
    uint32_t reason; /* enum kv_prefix_miss */
};

enum { DISK_HEAP_ORPHANS, DISK_HEAP_LEAVES, DISK_HEAPS };

struct disk_index {
    struct disk_entry *entries; /* [capacity] */
    uint32_t capacity, high, count, free;
    uint32_t *by_key, *by_parent; /* [capacity]: buckets */
    uint32_t *heaps[DISK_HEAPS]; /* [capacity]: orphans and leaves, the least recently used first */
    uint32_t heap_counts[DISK_HEAPS];
    struct disk_ghost *ghosts; /* a ring once DISK_GHOSTS_MAX are there */
    uint32_t *ghost_heads;     /* [ghost_capacity] */
    uint32_t ghost_capacity, ghost_count, ghost_at;
};

void disk_index_deinit(struct disk_index *index);
uint64_t disk_index_bytes(const struct disk_index *index);
/* So that one insertion cannot fail. Expected errors: MEMORY, LIMIT (2^31 entries). */
MUST_CHECK result disk_index_reserve(struct disk_index *index, struct error *error);
uint32_t disk_index_get(const struct disk_index *index, const struct kv_key *key);
/* Whether a block may be filed as what it says it is: it is not the root, not its own parent and in
 * no ring of parents. Hashes are none of that; bytes of a file may say anything. */
MUST_CHECK bool disk_index_admits(
    const struct disk_index *index, const struct kv_key *key, const struct kv_key *parent
);
/* The entry above `parent`, or of it, that follows `key`: with `key` filed they are a ring, of which
 * nothing is an orphan or a leaf, so nothing could ever go. DISK_NONE: there is none. */
uint32_t disk_index_ring(
    const struct disk_index *index, const struct kv_key *key, const struct kv_key *parent
);
/* The key is not there, is admitted, and room is reserved. Children that were there before are
 * adopted. */
uint32_t disk_index_insert(struct disk_index *index, const struct disk_entry *entry);
/* Children become orphans. */
void disk_index_remove(struct disk_index *index, uint32_t entry);
void disk_index_touch(struct disk_index *index, uint32_t entry, int64_t used_ms);
/* What goes first: an orphan, then a leaf; the least recently used of each. DISK_NONE: empty. */
uint32_t disk_index_victim(const struct disk_index *index);
/* An orphan or leaf unused since before `limit_ms`, or DISK_NONE. */
uint32_t disk_index_stale(const struct disk_index *index, int64_t limit_ms);
/* Last use of the orphan or leaf that was unused longest; INT64_MAX: none. */
int64_t disk_index_oldest(const struct disk_index *index);
/* First child of a key and the ones after it, newest first; DISK_NONE ends. */
uint32_t disk_index_child(const struct disk_index *index, const struct kv_key *parent);
uint32_t
disk_index_sibling(const struct disk_index *index, uint32_t entry, const struct kv_key *parent);
/* Remembers why a key went; memory failing forgets. */
void disk_index_forget(struct disk_index *index, const uint8_t key[16], enum kv_prefix_miss reason);
enum kv_prefix_miss disk_index_reason(const struct disk_index *index, const struct kv_key *key);
/* Counts, links, heaps and children agree, and every way up ends. For tests. */
MUST_CHECK result disk_index_validate(const struct disk_index *index, struct error *error);

/* ---- segments ---- */

struct disk_segment {
    bool is_used; /* this place of the table */
    bool has_index_file;
    bool is_changed; /* records came or went since its index file was written */
    bool is_touched; /* under the lock: times of use did change */
    bool is_renamed; /* its header is damaged or names another number: never appended to */
    bool is_header_damaged;
    uint32_t number; /* of the file's name */
    uint32_t slots;  /* records appended, dead ones included */
    uint32_t live;
    int64_t created_ms;
    uint32_t *by_slot; /* [slot_capacity] entry or DISK_NONE */
    uint32_t slot_capacity;
    uint8_t stamp[DISK_CHECKSUM_BYTES];
};

struct disk_lineage_slot {
    struct kv_lineage lineage;
    bool is_known; /* parent and position are; false: a block named it, nothing derives it */
    int32_t position;
    uint32_t parent; /* in the table */
    uint32_t next;
};

struct kv_disk {
    /* constant once open */
    enum kv_disk_mode mode;
    struct kv_lineage root;
    size_t block_bytes;
    uint64_t stride, bytes_max, hour_max;
    int64_t lifetime_ms;
    bool keep_damaged;
    struct disk_budgets {
        uint64_t bytes_max, hour_max;
        int64_t lifetime_ms;
    } noted; /* of the last run with a description; 0: unknown */
    struct clock clock;
    int64_t wall_open_ms, monotonic_open_ms;
    uint32_t slots_per_segment;
    int fd, lock_fd;
    bool can_punch;
    char folder[200]; /* for messages */

    pthread_mutex_t lock; /* guards the rest, up to the worker's part */
    bool has_lock;        /* the mutex was made */
    struct disk_index index;
    struct disk_lineage_slot *lineages; /* [lineage_count], the root first */
    uint32_t lineage_count, lineage_capacity;
    uint32_t lineage_heads[1024];
    struct kv_disk_counts counts; /* blocks, bytes and index_bytes are filled in when asked */
    uint64_t held_bytes;          /* of all segments, as allocated */
    uint64_t hour_bytes[DISK_MINUTES];
    int64_t hour_minutes[DISK_MINUTES];
    struct error trouble;
    bool is_write_off, is_off;

    /* the worker's own */
    struct disk_segment *segments; /* [segment_count], places reused */
    uint32_t segment_count, segment_capacity;
    uint32_t active; /* DISK_NONE: none */
    int active_fd;
    uint32_t cached; /* segment of cached_fd */
    int cached_fd;
    uint32_t number_next;
    uint8_t *scratch; /* [stride] */
    int64_t saved_ms, touched_saved_ms;
    bool is_state_changed;
};

static inline void disk_lock(struct kv_disk *disk) {
    ASSERT(pthread_mutex_lock(&disk->lock) == 0);
}

static inline void disk_unlock(struct kv_disk *disk) {
    ASSERT(pthread_mutex_unlock(&disk->lock) == 0);
}

int64_t disk_wall_ms(const struct kv_disk *disk);
/* Wall time of the start plus what passed since: never jumps. */
int64_t disk_steady_ms(const struct kv_disk *disk);
/* Ends writing, or everything; the first reason stays. */
void disk_end(struct kv_disk *disk, bool everything, const struct error *why);
void disk_segment_name(uint32_t number, bool is_index, char out[DISK_NAME_BYTES]);
uint64_t disk_slot_offset(const struct kv_disk *disk, uint32_t slot);

/* kv_disk_directory.c */
/* "nfs" and the like for a file system of another machine or process, by statfs' f_type. */
const char *disk_network_name(uint64_t type);
/* The name of a lineage's folder under CACHE. */
void disk_folder_name(const struct kv_lineage *root, char out[17]);
#define DISK_DESCRIPTION_BYTES 512
/* What info.json says; only what agrees with its own check counts. */
struct disk_info {
    int64_t format, block_bytes;
    struct kv_lineage root;
    char description[DISK_DESCRIPTION_BYTES];
};
bool disk_info_load(int folder_fd, struct disk_info *out);
/* Opens (and in writer mode makes and locks) the folder; sets fd, lock_fd, can_punch, folder. */
MUST_CHECK result disk_directory_open(
    struct kv_disk *disk, const struct kv_disk_options *options, struct error *error
);
/* Removes the folder CACHE/name that `disk` has locked, and the tier is off then. False: there is
 * something in it that is not the cache's, and nothing happened; or it could not go as a whole. */
bool disk_directory_remove(struct kv_disk *disk, const char *cache, const char *name);
/* A regular file of this user in the folder, or -1 with errno (ELOOP: refused). Never waits. */
int disk_file_open(int folder_fd, const char *name, int flags);
/* Writes a small file whole: a temporary one, then a rename. */
bool disk_file_replace(int folder_fd, const char *name, struct view bytes);
/* A file of at most `ceiling` bytes as a whole; false: not there or not readable. */
bool disk_file_load(int folder_fd, const char *name, size_t ceiling, struct buffer *out);

/* kv_disk_segment.c */
/* Lists and loads all segments. Expected errors: MEMORY, UNSUPPORTED (version). */
MUST_CHECK result disk_segments_load(struct kv_disk *disk, struct error *error);
/* Expected errors: IO, LIMIT, MEMORY. */
MUST_CHECK result disk_segment_create(struct kv_disk *disk, struct error *error);
/* The active one is full or the tier closes: syncs it and writes its index file. */
void disk_segment_seal(struct kv_disk *disk);
/* Makes sure that by_slot has a place for the next slot. */
MUST_CHECK result
disk_segment_reserve(struct disk_segment *segment, uint32_t slots, struct error *error);
/* Descriptor for reading (and in writer mode writing); -1 with errno. Borrowed, until the next. */
int disk_segment_fd(struct kv_disk *disk, uint32_t segment);
/* Destroys a record that is in no index any more, and the file when nothing else is in it. */
void disk_segment_kill(struct kv_disk *disk, uint32_t segment, uint32_t slot);
void disk_segment_delete(struct kv_disk *disk, uint32_t segment);
/* Writes a new header where it is damaged. */
bool disk_segment_heal(struct kv_disk *disk, uint32_t segment);
/* Writes index files of changed (and touched) segments. */
void disk_segments_save(struct kv_disk *disk, bool touched_too);

/* kv_disk_state.c */
MUST_CHECK result disk_state_load(struct kv_disk *disk, struct error *error);
void disk_state_save(struct kv_disk *disk);
/* Its number in the table, made when it is new. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result disk_lineage_number(
    struct kv_disk *disk, const struct kv_lineage *lineage, uint32_t *out, struct error *error
);
void disk_lineages_compact(struct kv_disk *disk);
uint32_t disk_lineage_find(const struct kv_disk *disk, const struct kv_lineage *lineage);
/* Whether the derivation from the root is known. */
bool disk_lineage_is_known(const struct kv_disk *disk, uint32_t number);
void disk_hour_charge(struct kv_disk *disk, int64_t at_ms, uint64_t bytes);
uint64_t disk_hour_sum(const struct kv_disk *disk);

/* kv_disk.c */
/* One entry leaves the index (not the disk). */
void disk_remove(struct kv_disk *disk, uint32_t entry, enum kv_prefix_miss reason);
/* Reads a slot into scratch and bytes [block_bytes]; *state tells what is there. False: errno. */
bool disk_slot_read(
    struct kv_disk *disk,
    uint32_t segment,
    uint32_t slot,
    uint8_t *bytes,
    struct disk_record_header *header,
    enum disk_slot *state
);

#endif
