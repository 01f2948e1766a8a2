/* What kv_files*.c and kv_sweep.c share. Thread: any one, blocking. */
#ifndef HEARTH_ENGINE_KV_FILES_INTERNAL_H
#define HEARTH_ENGINE_KV_FILES_INTERNAL_H

#include "kv_disk_internal.h"
#include "kv_files.h"

void kv_disk_cleanup(struct kv_disk **disk); /* for CLEANUP */
/* Opens a folder by name, with the budgets of its last run. Expected errors: NOT_FOUND, CORRUPT
 * (nothing tells which root lineage it is of), and those of kv_disk_open. */
MUST_CHECK result files_open(
    const char *cache,
    const char *folder,
    struct kv_disk_options *options,
    struct kv_disk **out,
    struct error *error
);
/* Root lineage and block size of a folder: from info.json, else from a segment. */
bool files_identify(int folder_fd, struct disk_info *out);

#endif
