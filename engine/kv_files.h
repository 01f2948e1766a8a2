/* What `hearth cache` does with the disk tier's files, beside a running program or on its own.
 *
 * CACHE holds one folder for each root lineage (kv_disk.h), named by the lineage's first 16
 * hexadecimal digits. Listing, verifying and exporting take no lock and change nothing; what changes
 * something takes the folder's lock and is refused while another process has it (LIMIT).
 * Thread: any one, blocking.
 */
#ifndef HEARTH_ENGINE_KV_FILES_H
#define HEARTH_ENGINE_KV_FILES_H

#include "base/clock.h"
#include "base/result.h"

#define KV_FILES_NAME_BYTES        17
#define KV_FILES_DESCRIPTION_BYTES 512
#define KV_FILES_FOLDERS_MAX       256

struct kv_files_folder {
    char name[KV_FILES_NAME_BYTES];
    char root_lineage[65]; /* hexadecimal; "" when nothing tells */
    char
        description[KV_FILES_DESCRIPTION_BYTES]; /* of who made it; "" unknown; not to be trusted */
    uint64_t block_bytes;
    int64_t blocks, tokens, segments;
    uint64_t bytes, bytes_max; /* of segments; the budget of the last run, or the default */
    int64_t lifetime_ms;
    int64_t oldest_ms, used_ms;        /* wall time: first creation, last use; 0: no blocks */
    int64_t evicted, expired, damaged; /* removed keys that are remembered, by reason */
    int64_t damaged_found, refused_files;
    uint64_t hour_bytes;  /* written within the last hour */
    long used_by;         /* process that has the lock; 0: none */
    struct error trouble; /* code OK, or why nothing but the name is known */
};

struct kv_files_list {
    size_t count;
    struct kv_files_folder folders[];
};
/* All folders, by name. No directory is no folder. Free with free(). Expected errors: MEMORY, IO,
 * UNSUPPORTED (network file system). */
MUST_CHECK result kv_files_list(
    const char *cache, const struct clock *clock, struct kv_files_list **out, struct error *error
);

struct kv_files_checked {
    int64_t records, damaged, repaired;
    uint64_t bytes;
};
/* Reads every record of a folder and checks it. `damaged` (may be null) is called with one line per
 * damaged one; with `repair` they are destroyed. Damage is no failure.
 * Expected errors: NOT_FOUND, LIMIT (repair: in use), IO. */
MUST_CHECK result kv_files_verify(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    bool repair,
    void (*damaged)(void *context, const char *text),
    void *context,
    struct kv_files_checked *out,
    struct error *error
);

struct kv_files_eviction {
    bool everything;
    bool has_age, has_size;
    int64_t age_ms;     /* what was not used for this long */
    uint64_t bytes_max; /* until it is no larger */
};
/* Removes blocks, leaves first; *removed of them. Expected errors: NOT_FOUND, LIMIT (in use), IO. */
MUST_CHECK result kv_files_evict(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    const struct kv_files_eviction *what,
    int64_t *removed,
    struct error *error
);

struct kv_files_moved {
    char folder[KV_FILES_NAME_BYTES];
    int64_t records;                 /* export: written; import: in the file */
    int64_t added, present, no_room; /* import */
    int64_t damaged;                 /* left out */
    uint64_t bytes;                  /* of the file */
};
/* Writes blocks with the paths to them into a new file: all, or those that lead to keys
 * [key_count] (64 hexadecimal digits each). Works beside a running program.
 * Expected errors: NOT_FOUND (a folder, a key), IO (the file is there already, a full disk). */
MUST_CHECK result kv_files_export(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    const char *const *keys,
    size_t key_count,
    const char *path,
    struct kv_files_moved *out,
    struct error *error
);
/* Adds what is missing, every record verified, within the folder's budget; evicts nothing for it.
 * The folder of the file's root lineage must be there, unless `make`.
 * Expected errors: INVALID_INPUT (another root lineage, no export file), LIMIT (in use), CORRUPT
 * (the head is damaged). Damaged or cut records are counted, not a failure. */
MUST_CHECK result kv_files_import(
    const char *cache,
    const char *path,
    const struct clock *clock,
    bool make,
    struct kv_files_moved *out,
    struct error *error
);

#endif
