/* A disk tier in a temporary folder, with content that is known from a seed and a clock that is
 * set by hand. */
#ifndef HEARTH_TESTS_KV_DISK_SUPPORT_H
#define HEARTH_TESTS_KV_DISK_SUPPORT_H

#include "engine/kv_disk.h"

#define HOUR_MS       ((int64_t)3600 * 1000)
#define WALL_START    ((int64_t)1700000000000)
#define RELEASE_BYTES ((size_t)113920)
#define MINI_BYTES    ((size_t)13568)

struct tier {
    char parent[64]; /* temporary */
    char directory[80];
    char folder[120];
    struct kv_disk_options options;
    struct kv_disk *disk;
    int64_t wall_ms, monotonic_ms;
    uint8_t *bytes; /* one block */
    struct kv_disk_about about;
};

/* Makes the folder; opens nothing. */
void tier_make(struct tier *tier, size_t block_bytes);
/* The same on a file system in memory where there is one: many files, no waiting. */
void tier_make_in_memory(struct tier *tier, size_t block_bytes);
/* Opens and demands success. */
void tier_open(struct tier *tier);
void tier_close(struct tier *tier);
void tier_reopen(struct tier *tier);
/* Closes, and removes every file. */
void tier_remove(struct tier *tier);
void tier_pass(struct tier *tier, int64_t milliseconds);
/* Path of a file of the folder; one static buffer. */
const char *tier_path(const struct tier *tier, const char *name);

/* Block `depth` of text `text`. The first 4 blocks of texts with the same text / 1000 agree: they
 * are the trunk of those branches. */
struct block {
    int32_t tokens[KV_BLOCK_TOKENS];
    struct kv_key key, parent;
    struct kv_lineage lineage;
};
void block_make(const struct tier *tier, int32_t text, int32_t depth, struct block *out);
/* Its content, from its key. */
void block_fill(const struct kv_key *key, uint8_t *bytes, size_t count);
enum kv_disk_outcome tier_put(struct tier *tier, int32_t text, int32_t depth);
/* Blocks 0..count of a text. */
void tier_put_path(struct tier *tier, int32_t text, int32_t count);
/* Whether it is there; when it is, that everything about it is right. Damage is a miss. */
bool tier_get(struct tier *tier, int32_t text, int32_t depth);
bool tier_has(struct tier *tier, int32_t text, int32_t depth);
enum kv_prefix_miss tier_why(struct tier *tier, int32_t text, int32_t depth);
struct kv_disk_counts tier_counts(struct tier *tier);
/* Bytes that the file system holds for the segments of the folder. */
uint64_t tier_allocated(const struct tier *tier);

#endif
