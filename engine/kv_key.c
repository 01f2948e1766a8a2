/* See kv_key.h. */
#include "kv_key.h"

#include "base/sha256.h"
#include <assert.h>

#define TOKEN_PIECE 32 /* ids encoded at a time */

static void put_u32(uint8_t out[4], uint32_t value) {
    for (unsigned i = 0; i < 4; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

void kv_key_make(
    const struct kv_key *parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    struct kv_key *out
) {
    struct sha256 sha;
    uint8_t piece[4 * TOKEN_PIECE];
    static_assert(KV_BLOCK_TOKENS % TOKEN_PIECE == 0, "whole pieces");
    sha256_init(&sha);
    sha256_update(&sha, view_of_text("hearth block 1\n"));
    sha256_update(&sha, view_of(parent->bytes, sizeof parent->bytes));
    sha256_update(&sha, view_of(lineage->bytes, sizeof lineage->bytes));
    for (int32_t i = 0; i < KV_BLOCK_TOKENS; i += TOKEN_PIECE) {
        for (int32_t j = 0; j < TOKEN_PIECE; j++) {
            put_u32(piece + (size_t)4 * (size_t)j, (uint32_t)tokens[i + j]);
        }
        sha256_update(&sha, view_of(piece, sizeof piece));
    }
    sha256_finish(&sha, out->bytes);
}

void kv_key_path(
    const struct kv_key *parent,
    const struct kv_lineage *lineage,
    const int32_t *tokens,
    int32_t count,
    struct kv_key *out
) {
    for (int32_t i = 0; i < count; i++) {
        kv_key_make(
            i == 0 ? parent : &out[i - 1],
            lineage,
            tokens + (size_t)KV_BLOCK_TOKENS * (size_t)i,
            &out[i]
        );
    }
}

bool kv_key_equals(const struct kv_key *a, const struct kv_key *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

bool kv_key_is_root(const struct kv_key *key) {
    static const struct kv_key root;
    return kv_key_equals(key, &root);
}

bool kv_lineage_equals(const struct kv_lineage *a, const struct kv_lineage *b) {
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static void
derive(const char *domain, const struct kv_lineage *parent, int32_t position, uint8_t out[32]) {
    ASSERT(position >= 0);
    struct sha256 sha;
    uint8_t number[4];
    put_u32(number, (uint32_t)position);
    sha256_init(&sha);
    sha256_update(&sha, view_of_text(domain));
    sha256_update(&sha, view_of(parent->bytes, sizeof parent->bytes));
    sha256_update(&sha, view_of(number, sizeof number));
    sha256_finish(&sha, out);
}

void kv_lineage_replay(const struct kv_lineage *parent, int32_t position, struct kv_lineage *out) {
    derive("hearth encoder replay 1\n", parent, position, out->bytes);
}

void kv_lineage_decoder_replay(
    const struct kv_lineage *parent, int32_t position, struct kv_lineage *out
) {
    derive("hearth decoder replay 1\n", parent, position, out->bytes);
}

void kv_hex(const uint8_t bytes[32], char out[KV_KEY_HEX_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 32; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[64] = '\0';
}

static int digit_of(char letter) {
    if (letter >= '0' && letter <= '9') {
        return letter - '0';
    }
    if (letter >= 'a' && letter <= 'f') {
        return letter - 'a' + 10;
    }
    return letter >= 'A' && letter <= 'F' ? letter - 'A' + 10 : -1;
}

bool kv_hex_parse(const char *text, uint8_t bytes[32]) {
    uint8_t parsed[32];
    if (strlen(text) != 64) {
        return false;
    }
    for (size_t i = 0; i < 32; i++) {
        int high = digit_of(text[2 * i]);
        int low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        parsed[i] = (uint8_t)(high * 16 + low);
    }
    memcpy(bytes, parsed, sizeof parsed);
    return true;
}
