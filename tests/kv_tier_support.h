/* Trees of blocks with invented content, for tests of the tiers: what a block holds follows from its
 * key, so that whatever comes back can be checked byte for byte without keeping it. */
#ifndef HEARTH_TESTS_KV_TIER_SUPPORT_H
#define HEARTH_TESTS_KV_TIER_SUPPORT_H

#include "engine/kv_tier.h"

#define TREE_BLOCKS 1024

struct tree {
    size_t block_bytes;
    int32_t count;
    int32_t parents[TREE_BLOCKS]; /* node, or -1 */
    struct kv_key keys[TREE_BLOCKS], parent_keys[TREE_BLOCKS];
    struct kv_lineage lineages[TREE_BLOCKS];
    int32_t tokens[TREE_BLOCKS][KV_BLOCK_TOKENS];
    uint8_t *bytes; /* [count, block_bytes] */
};

/* splitmix64 */
uint64_t random_next(uint64_t *state);
int32_t random_below(uint64_t *state, int32_t bound);

/* `count` blocks; each continues a random earlier one or starts a prompt. Exits without memory. */
void tree_make(
    struct tree *tree,
    int32_t count,
    size_t block_bytes,
    const struct kv_lineage *root,
    uint64_t seed
);
void tree_free(struct tree *tree);
struct kv_tier_record tree_record(const struct tree *tree, int32_t node);
/* Nodes from the first block to `node`, into path [TREE_BLOCKS]; returns their number. */
int32_t tree_path(const struct tree *tree, int32_t node, int32_t *path);
/* Keys of that path. */
int32_t tree_keys(const struct tree *tree, int32_t node, struct kv_key *keys);
/* Whether the record is this node's, with every byte. */
bool tree_is(const struct tree *tree, int32_t node, const struct kv_tier_record *record);

/* A new empty directory under TMPDIR; removed with all in it by directory_remove. */
void directory_make(char path[256]);
void directory_remove(const char *path);

#endif
