/* See sha256.h. Names follow FIPS 180-4, section 6.2. */
#include "sha256.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, unsigned n) {
    return (x >> n) | (x << (32 - n));
}

static uint32_t big_endian(const unsigned char bytes[4]) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 |
           (uint32_t)bytes[3];
}

/* Round t, modulo 16, with a to h in v[(i - t) mod 8]: the values stay where they are, so that a compiler that
 * unrolls eight rounds keeps them in registers. w holds the last 16 words of the schedule. */
static inline void round_of(uint32_t v[8], uint32_t w[16], unsigned t, uint32_t k, bool is_first) {
    if (!is_first) {
        uint32_t near = w[(t + 14) % 16];
        uint32_t far = w[(t + 1) % 16];
        uint32_t s0 = rotate_right(far, 7) ^ rotate_right(far, 18) ^ (far >> 3);
        uint32_t s1 = rotate_right(near, 17) ^ rotate_right(near, 19) ^ (near >> 10);
        w[t] += s1 + w[(t + 9) % 16] + s0;
    }
    uint32_t a = v[(0U - t) % 8];
    uint32_t b = v[(1U - t) % 8];
    uint32_t c = v[(2U - t) % 8];
    uint32_t e = v[(4U - t) % 8];
    uint32_t f = v[(5U - t) % 8];
    uint32_t g = v[(6U - t) % 8];
    uint32_t s1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
    uint32_t t1 = v[(7U - t) % 8] + s1 + ((e & f) ^ (~e & g)) + k + w[t];
    uint32_t s0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
    v[(3U - t) % 8] += t1;
    v[(7U - t) % 8] = t1 + s0 + ((a & b) ^ (a & c) ^ (b & c));
}

static void process_block(uint32_t state[8], const unsigned char block[64]) {
    uint32_t w[16];
    for (unsigned t = 0; t < 16; t++) {
        w[t] = big_endian(block + (size_t)4 * t);
    }
    uint32_t v[8]; // a to h
    memcpy(v, state, sizeof v);
#pragma GCC unroll 16
    for (unsigned t = 0; t < 16; t++) {
        round_of(v, w, t, K[t], true);
    }
    for (unsigned from = 16; from < 64; from += 16) {
#pragma GCC unroll 16
        for (unsigned t = 0; t < 16; t++) {
            round_of(v, w, t, K[from + t], false);
        }
    }
    for (unsigned i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

void sha256_init(struct sha256 *sha) {
    static const uint32_t initial[8] = {
        0x6a09e667,
        0xbb67ae85,
        0x3c6ef372,
        0xa54ff53a,
        0x510e527f,
        0x9b05688c,
        0x1f83d9ab,
        0x5be0cd19};
    memset(sha, 0, sizeof *sha);
    memcpy(sha->state, initial, sizeof initial);
}

void sha256_update(struct sha256 *sha, struct view bytes) {
    while (bytes.length > 0) {
        size_t used = (size_t)(sha->length % 64);
        size_t take = 64 - used < bytes.length ? 64 - used : bytes.length;
        memcpy(sha->block + used, bytes.data, take);
        sha->length += take;
        bytes = view_slice(bytes, take, bytes.length - take);
        if (sha->length % 64 == 0) {
            process_block(sha->state, sha->block);
        }
    }
}

void sha256_finish(struct sha256 *sha, unsigned char out[SHA256_BYTES]) {
    static const unsigned char padding[64] = {0x80};
    uint64_t bits = sha->length * 8;
    size_t used = (size_t)(sha->length % 64);
    sha256_update(sha, view_of(padding, used < 56 ? 56 - used : 120 - used));
    unsigned char length[8];
    for (unsigned i = 0; i < 8; i++) {
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    }
    sha256_update(sha, view_of(length, sizeof length));
    ASSERT(sha->length % 64 == 0);
    for (unsigned i = 0; i < SHA256_BYTES; i++) {
        out[i] = (unsigned char)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void sha256_finish_hex(struct sha256 *sha, char out[SHA256_HEX_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char bytes[SHA256_BYTES];
    sha256_finish(sha, bytes);
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[SHA256_HEX_BYTES - 1] = '\0';
}

void sha256_hex(struct view bytes, char out[SHA256_HEX_BYTES]) {
    struct sha256 sha;
    sha256_init(&sha);
    sha256_update(&sha, bytes);
    sha256_finish_hex(&sha, out);
}
