/* Resolves a name within a time limit: getaddrinfo can neither be bounded nor stopped, so it runs
 * on a thread of its own that is left behind when it takes too long.
 *
 * libuv's pool is not used: its few workers may all be busy with the very commands that wait for a
 * name. Thread: any; lookups of one resolver run at the same time.
 */
#ifndef HEARTH_RUNTIME_NAME_LOOKUP_H
#define HEARTH_RUNTIME_NAME_LOOKUP_H

#include <sys/socket.h>

#include "base/result.h"

#define NAME_ADDRESSES_MAX 16
#define NAME_LOOKUPS_MAX   16 /* at a time, those left behind included */

struct name_addresses {
    struct sockaddr_storage items[NAME_ADDRESSES_MAX]; /* IPv4 and IPv6, port set */
    size_t count;
};

/* What resolves: tests put their own in place of getaddrinfo. Blocks; may run after the resolver
 * was closed, so `context` must live as long as the process. */
typedef result name_resolve(
    void *context, const char *host, uint16_t port, struct name_addresses *out, struct error *error
);

struct name_resolver;

/* `resolve` null: getaddrinfo. Expected errors: MEMORY. */
MUST_CHECK result name_resolver_open(
    struct name_resolver **out, name_resolve *resolve, void *context, struct error *error
);
void name_resolver_close(struct name_resolver *resolver); /* lookups may still run behind it */

/* `stop_fd` (-1: none) ends the wait when readable; `deadline_ms` is of the monotonic clock.
 * Expected errors: NOT_FOUND, TIMEOUT, CANCELLED, LIMIT (too many at a time), IO, MEMORY. */
MUST_CHECK result name_lookup(
    struct name_resolver *resolver,
    const char *host,
    uint16_t port,
    int stop_fd,
    int64_t deadline_ms,
    struct name_addresses *out,
    struct error *error
);

#endif
