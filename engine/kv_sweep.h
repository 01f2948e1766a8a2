/* Folders of other root lineages in one cache directory: lifetime and budget hold for all of them.
 *
 * A folder whose lock is free loses what is older than the lifetime that its last run asked for; then
 * the folder whose last use is longest ago loses blocks, leaves first, until all others fit; one
 * with nothing left is removed. One in use, of another format or another user, or with files that
 * are not the cache's is left alone, and links are never followed.
 * Thread: any one, blocking; a step handles one folder.
 */
#ifndef HEARTH_ENGINE_KV_SWEEP_H
#define HEARTH_ENGINE_KV_SWEEP_H

#include "base/clock.h"
#include "kv_files.h"
#include "kv_key.h"

struct kv_sweep_folder {
    char name[KV_FILES_NAME_BYTES];
    bool is_fixed; /* cannot be made smaller now */
    uint64_t bytes;
    int64_t used_ms;
};

struct kv_sweep {
    struct kv_sweep_folder folders[KV_FILES_FOLDERS_MAX];
    int32_t count;
    int32_t looked_at; /* folders [0, looked_at) lost what expired */
    /* Since the start of the first sweep. */
    int64_t expired, evicted; /* blocks */
    int32_t removed;          /* folders */
    char names[160];          /* of folders removed, as far as they fit, with spaces */
};

/* Begins anew: lists the folders but `own`. What cannot be listed is no folder. */
void kv_sweep_start(struct kv_sweep *sweep, const char *cache, const struct kv_lineage *own);
/* Handles the next folder; all of them are to have `bytes_max` at most. False: all is done. */
bool kv_sweep_step(
    struct kv_sweep *sweep, const char *cache, const struct clock *clock, uint64_t bytes_max
);
/* Bytes of all folders, as far as they were looked at; *reducible (may be null): of those that a
 * sweep could make smaller. */
uint64_t kv_sweep_bytes(const struct kv_sweep *sweep, uint64_t *reducible);

#endif
