/* The way out of the sandbox: an HTTP proxy that lets a command reach listed hosts and no others.
 *
 * Commands run in a network namespace without a route. What they connect to at SANDBOX_PROXY_URL
 * arrives here as open sockets (see policy.network_socket), is asked for a CONNECT or an http://
 * request, and is decided by network_rules.h: the name before it is resolved, each address before
 * it is connected to, and the connection goes to the very address that was looked at.
 *
 * Threads: one that accepts, one per connection (blocking code with deadlines; at most
 * PROXY_CONNECTIONS_MAX), and those of name_lookup.h. None of them takes signals.
 */
#ifndef HEARTH_RUNTIME_PROXY_H
#define HEARTH_RUNTIME_PROXY_H

#include "name_lookup.h"
#include "network_rules.h"

#define PROXY_CONNECTIONS_MAX 64 /* of all calls together; more are answered with 503 */
#define PROXY_CALLS_MAX       64

struct proxy_options {
    const struct network_rules *rules; /* borrowed until proxy_close */
    network_decide_done *decided;      /* may be null; on a connection's thread */
    void *decided_context;
    name_resolve *resolve; /* null: the system's */
    void *resolve_context;
    /* Milliseconds; 0 for the default. */
    int64_t head_ms;    /* for the request's head to arrive in full (10 s) */
    int64_t connect_ms; /* for lookup and connecting together (20 s) */
    int64_t idle_ms;    /* without a byte in either direction (2 min) */
    int64_t total_ms;   /* of one connection (30 min) */
    uint16_t tls_port;  /* where tunnels must speak TLS; 0: 443 */
};

struct proxy;

/* Listens on a socket in a private directory. Expected errors: MEMORY, IO. */
MUST_CHECK result
proxy_open(struct proxy **out, const struct proxy_options *options, struct error *error);
const char *proxy_socket(const struct proxy *proxy); /* for policy.network_socket */
/* Ends all connections; waits for their threads, which takes no longer than a moment. */
void proxy_close(struct proxy *proxy);
void proxy_cleanup(struct proxy **proxy);

#endif
