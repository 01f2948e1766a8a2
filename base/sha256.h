/* SHA-256 (FIPS 180-4), for digests that identify files and configurations.
 *
 * Plain and portable; about 200 MB/s, so not for whole checkpoints. Thread: any; a state belongs to
 * one thread at a time.
 */
#ifndef HEARTH_BASE_SHA256_H
#define HEARTH_BASE_SHA256_H

#include "bytes.h"

#define SHA256_BYTES     32
#define SHA256_HEX_BYTES 65 /* with the NUL */

struct sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    unsigned char block[64];
};

void sha256_init(struct sha256 *sha);
void sha256_update(struct sha256 *sha, struct view bytes);
/* The state must be initialised again before it is used again. */
void sha256_finish(struct sha256 *sha, unsigned char out[SHA256_BYTES]);
void sha256_finish_hex(struct sha256 *sha, char out[SHA256_HEX_BYTES]); /* lower case */
void sha256_hex(struct view bytes, char out[SHA256_HEX_BYTES]);

#endif
