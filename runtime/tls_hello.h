/* Reads which server a TLS client asks for: the server name of its first message (RFC 8446, RFC
 * 6066). Pure; all bytes are foreign. Thread: any.
 */
#ifndef HEARTH_RUNTIME_TLS_HELLO_H
#define HEARTH_RUNTIME_TLS_HELLO_H

#include "base/bytes.h"

#define TLS_HELLO_BYTES_MAX ((size_t)20 << 10) /* post-quantum key shares are a few KiB */
#define TLS_NAME_BYTES      256

enum tls_hello {
    TLS_HELLO_MORE,   /* so far it may become one */
    TLS_HELLO_OTHER,  /* not TLS */
    TLS_HELLO_BROKEN, /* begins like TLS and is malformed or too long */
    TLS_HELLO_DONE    /* name is set; "" when the client names no server */
};

/* `bytes` is all that the client has sent so far. */
enum tls_hello tls_hello_read(struct view bytes, char name[TLS_NAME_BYTES]);

#endif
