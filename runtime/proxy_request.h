/* Reads the head of one request to the proxy and says what may be sent on. Pure; all bytes are
 * foreign. Thread: any.
 *
 * A connection carries one request: what follows its body is never sent on, so that no second
 * request can hide behind an allowed one. Transfer-Encoding is refused, Content-Length must be one
 * plain number, and the head that goes on is written anew from what was understood.
 */
#ifndef HEARTH_RUNTIME_PROXY_REQUEST_H
#define HEARTH_RUNTIME_PROXY_REQUEST_H

#include "network_rules.h"

#define PROXY_HEAD_BYTES_MAX   ((size_t)16 << 10)
#define PROXY_HEADERS_MAX      100
#define PROXY_METHOD_BYTES_MAX 16

struct proxy_request {
    char method[PROXY_METHOD_BYTES_MAX + 1];
    bool is_tunnel; /* CONNECT: no head to send on, bytes pass in both directions */
    struct network_host host;
    struct buffer head;  /* for the server, complete; empty for a tunnel */
    uint64_t body_bytes; /* that follow the head; 0 for a tunnel */
};

void proxy_request_deinit(struct proxy_request *request); /* usable with CLEANUP */

/* Bytes of the head up to and with its empty line, or SIZE_MAX while that has not come. */
size_t proxy_head_length(struct view bytes);

/* `head` is complete, as proxy_head_length says. A failure's foreign code is the HTTP status for
 * the client: 400, 411 (length wanted), 431 (too many headers), 501 (not spoken here).
 * Expected errors: INVALID_INPUT, MEMORY. */
MUST_CHECK result
proxy_request_parse(struct view head, struct proxy_request *out, struct error *error);

#endif
