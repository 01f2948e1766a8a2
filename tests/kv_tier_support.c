/* See the header. */
#include "kv_tier_support.h"

#include <ftw.h>
#include <unistd.h>

uint64_t random_next(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

int32_t random_below(uint64_t *state, int32_t bound) {
    return (int32_t)(random_next(state) % (uint64_t)bound);
}

static void fill(uint8_t *bytes, size_t count, const struct kv_key *key) {
    uint64_t state;
    memcpy(&state, key->bytes, sizeof state);
    size_t at = 0;
    for (; at + sizeof state <= count; at += sizeof state) {
        uint64_t word = random_next(&state);
        memcpy(bytes + at, &word, sizeof word);
    }
    uint64_t word = random_next(&state);
    memcpy(bytes + at, &word, count - at);
}

void tree_make(
    struct tree *tree,
    int32_t count,
    size_t block_bytes,
    const struct kv_lineage *root,
    uint64_t seed
) {
    ASSERT(count <= TREE_BLOCKS);
    uint64_t random = seed;
    *tree = (struct tree){.block_bytes = block_bytes, .count = count};
    tree->bytes = malloc((size_t)count * block_bytes);
    ASSERT(tree->bytes != NULL);
    for (int32_t node = 0; node < count; node++) {
        /* Mostly long paths: the latest block goes on. */
        int32_t kind = random_below(&random, 16);
        int32_t parent = node - 1;
        if (kind == 0) {
            parent = -1;
        } else if (kind < 4 && node > 0) {
            parent = random_below(&random, node);
        }
        tree->parents[node] = parent;
        tree->lineages[node] = *root;
        if (parent >= 0) {
            tree->parent_keys[node] = tree->keys[parent];
        }
        for (int32_t t = 0; t < KV_BLOCK_TOKENS; t++) {
            tree->tokens[node][t] = random_below(&random, 100000);
        }
        kv_key_make(&tree->parent_keys[node], root, tree->tokens[node], &tree->keys[node]);
        fill(tree->bytes + (size_t)node * block_bytes, block_bytes, &tree->keys[node]);
    }
}

void tree_free(struct tree *tree) {
    free(tree->bytes);
    tree->bytes = NULL;
}

struct kv_tier_record tree_record(const struct tree *tree, int32_t node) {
    return (struct kv_tier_record){
        .key = tree->keys[node],
        .parent = tree->parent_keys[node],
        .lineage = tree->lineages[node],
        .tokens = tree->tokens[node],
        .bytes = tree->bytes + (size_t)node * tree->block_bytes,
    };
}

int32_t tree_path(const struct tree *tree, int32_t node, int32_t *path) {
    int32_t count = 0;
    for (int32_t at = node; at >= 0; at = tree->parents[at]) {
        count++;
    }
    int32_t place = count;
    for (int32_t at = node; at >= 0; at = tree->parents[at]) {
        path[--place] = at;
    }
    return count;
}

int32_t tree_keys(const struct tree *tree, int32_t node, struct kv_key *keys) {
    int32_t path[TREE_BLOCKS];
    int32_t count = tree_path(tree, node, path);
    for (int32_t i = 0; i < count; i++) {
        keys[i] = tree->keys[path[i]];
    }
    return count;
}

bool tree_is(const struct tree *tree, int32_t node, const struct kv_tier_record *record) {
    struct kv_tier_record own = tree_record(tree, node);
    return kv_key_equals(&own.key, &record->key) && kv_key_equals(&own.parent, &record->parent) &&
           kv_lineage_equals(&own.lineage, &record->lineage) &&
           memcmp(own.tokens, record->tokens, sizeof tree->tokens[node]) == 0 &&
           memcmp(own.bytes, record->bytes, tree->block_bytes) == 0;
}

void directory_make(char path[256]) {
    const char *parent = getenv("TMPDIR");
    int length = snprintf(path, 256, "%s/kv_tier.XXXXXX", parent == NULL ? "/tmp" : parent);
    ASSERT(length > 0 && length < 256);
    ASSERT(mkdtemp(path) != NULL);
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *ftw) {
    (void)about;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void directory_remove(const char *path) {
    ASSERT(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
}
