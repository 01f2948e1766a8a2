/* UUIDv7 (RFC 9562, 5.7): 48 bits of wall time in milliseconds, then 74 random bits. */
#include "session.h"

#include <errno.h>
#include <sys/random.h>

result session_id_create(struct session_id *out, const struct clock *clock, struct error *error) {
    ASSERT(out != NULL && clock != NULL);
    unsigned char bytes[16];
    // Up to 256 bytes come whole or not at all, once the kernel's pool is seeded.
    ssize_t got = getrandom(bytes, sizeof bytes, 0);
    if (got != (ssize_t)sizeof bytes) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "getrandom: %s", strerror(code));
    }
    uint64_t now_ms = (uint64_t)clock_wall_ms(clock);
    for (int i = 0; i < 6; i++) {
        bytes[i] = (unsigned char)(now_ms >> (40 - 8 * i));
    }
    bytes[6] = (unsigned char)(0x70U | (bytes[6] & 0x0FU));
    bytes[8] = (unsigned char)(0x80U | (bytes[8] & 0x3FU));
    static const char digits[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < sizeof bytes; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            out->text[at++] = '-';
        }
        out->text[at++] = digits[bytes[i] >> 4];
        out->text[at++] = digits[bytes[i] & 0x0FU];
    }
    ASSERT(at == SESSION_ID_LENGTH);
    out->text[at] = '\0';
    return OK;
}
