/* Where connections may go: a list of HOST[:PORT], and which addresses are reachable at all.
 *
 * Pure: nothing is resolved here. The proxy of sandboxed commands and the client of the fetch tool
 * ask the same two questions: before a name is resolved, whether the list has it; before an address
 * is connected to, whether it lies in the public internet. Thread: any.
 */
#ifndef HEARTH_RUNTIME_NETWORK_RULES_H
#define HEARTH_RUNTIME_NETWORK_RULES_H

#include <sys/socket.h>

#include "base/bytes.h"

#define NETWORK_HOST_BYTES 256 /* 253 of a name, and NUL */
#define NETWORK_RULES_MAX  1000

/* A host as a client names it: lower-case name without the last dot, or an address in its usual
 * form, without brackets. */
struct network_host {
    char text[NETWORK_HOST_BYTES];
    bool is_address;
    struct sockaddr_storage address; /* of an address; port 0 */
    uint16_t port;
};

/* Reads "name", "name:port", "1.2.3.4:port", "[::1]:port"; `default_port` 0: a port must be there.
 * Names have letters, digits, '-' and '_' in labels of 63; a name that ends in a number
 * ("127.1", "0x7f.1", "1.2.3.4.") is none, since resolvers take it for an address. Expected errors: INVALID_INPUT. */
MUST_CHECK result network_host_parse(
    struct view text, uint16_t default_port, struct network_host *out, struct error *error
);

struct network_rules;

/* Each entry is HOST[:PORT] with HOST a name, an address, or "*.name" for all names below (not the
 * name itself; at least two labels). Without a port 80 and 443 are meant. An empty list allows
 * nothing. Expected errors: INVALID_INPUT (says which entry), LIMIT, MEMORY. */
MUST_CHECK result network_rules_create(
    struct network_rules **out, const char *const *entries, size_t count, struct error *error
);
/* The same from one text with commas between the entries. */
MUST_CHECK result
network_rules_parse(struct network_rules **out, struct view text, struct error *error);
void network_rules_destroy(struct network_rules *rules);
void network_rules_cleanup(struct network_rules **rules);

/* Whether the list has the host at its port. Ask before resolving: a name alone can carry data. */
bool network_rules_allow(const struct network_rules *rules, const struct network_host *host);
/* Whether a resolved address may be connected to at `port`: in the public internet, or listed
 * literally. Loopback, private, link-local, shared, multicast, documentation and the clouds'
 * metadata addresses are not public, whatever name led to them. */
bool network_rules_allow_address(
    const struct network_rules *rules, const struct sockaddr *address, uint16_t port
);
/* The second half of that, for tests. */
bool network_address_is_public(const struct sockaddr *address);

/* What was decided about one request, for the record. Strings live during the callback. */
struct network_decision {
    const char *method; /* "CONNECT", "GET", ...; "" when the request was not understood */
    const char *host;   /* "" when the request was not understood */
    uint16_t port;
    bool is_allowed;
    const char *reason; /* of a refusal, a sentence; "" otherwise */
};

/* Thread: the proxy's or client's, never two at a time for one of these. Must not block for long. */
typedef void network_decide_done(void *context, const struct network_decision *decision);

#endif
