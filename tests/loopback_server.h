/* A server on 127.0.0.1 for tests: each connection is given to a handler on the server's thread. */
#ifndef HEARTH_TESTS_LOOPBACK_SERVER_H
#define HEARTH_TESTS_LOOPBACK_SERVER_H

#include <stdatomic.h>

#include "base/bytes.h"

struct loopback_server;

/* Owns nothing of `fd`: the server closes it. */
typedef void loopback_handle(void *context, int fd);

struct loopback_server *loopback_start(loopback_handle *handle, void *context);
uint16_t loopback_port(const struct loopback_server *server);
unsigned loopback_accepted(const struct loopback_server *server); /* connections so far */
void loopback_stop(struct loopback_server *server);

/* A handler: reads one request with its Content-Length body into context->request (if there is
 * room), sends context->answer and closes. */
struct loopback_exchange {
    char request[8192];
    size_t request_bytes;
    const char *answer;
};
loopback_handle loopback_exchange;
/* A handler: sends back what it reads until the end. */
loopback_handle loopback_echo;

#endif
