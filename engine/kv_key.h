/* Names of cached content: path keys of blocks, and the lineages that approximate content depends on.
 *
 * A path key names a block by everything that decides its bytes: the blocks before it, the lineage
 * in force and its own 128 token ids. So the same content has the same name in every process and on
 * every machine with the same root lineage. Pure. Thread: any.
 */
#ifndef HEARTH_ENGINE_KV_KEY_H
#define HEARTH_ENGINE_KV_KEY_H

#include "base/result.h"
#include "kernels/formats.h"

#define KV_KEY_HEX_BYTES 65 /* with the NUL */

/* What a block's content depends on beside its tokens: a SHA-256. The root lineage is exact. */
struct kv_lineage {
    uint8_t bytes[32];
};

/* All zero: the root, before the first block. */
struct kv_key {
    uint8_t bytes[32];
};

/* One block with what identifies it; everything is borrowed. The tiers below the device and their
 * files share it. */
struct kv_tier_record {
    struct kv_key key, parent;
    struct kv_lineage lineage;
    const int32_t *tokens; /* [128] */
    const uint8_t *bytes;  /* [block_bytes] */
};

/* SHA-256("hearth block 1\n" || parent || lineage || tokens [128], int32 little endian). */
void kv_key_make(
    const struct kv_key *parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    struct kv_key *out
);
/* Keys of the first `count` blocks of `tokens` [128 * count], all of one lineage. */
void kv_key_path(
    const struct kv_key *parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    int32_t count,
    struct kv_key *out
);
bool kv_key_equals(const struct kv_key *a, const struct kv_key *b);
bool kv_key_is_root(const struct kv_key *key);
bool kv_lineage_equals(const struct kv_lineage *a, const struct kv_lineage *b);

/* The lineage of blocks written after an encoder replay at `position`, and the decoder lineage of a
 * sequence after a decoder replay: SHA-256("hearth encoder replay 1\n" || parent || position,
 * uint32 little endian), or with "decoder". */
void kv_lineage_replay(const struct kv_lineage *parent, int32_t position, struct kv_lineage *out);
void kv_lineage_decoder_replay(
    const struct kv_lineage *parent, int32_t position, struct kv_lineage *out
);

/* Lower-case hexadecimal digits of 32 bytes, of a key or a lineage. */
void kv_hex(const uint8_t bytes[32], char out[KV_KEY_HEX_BYTES]);
/* The other way; false unless `text` is 64 hexadecimal digits. */
bool kv_hex_parse(const char *text, uint8_t bytes[32]);

#endif
