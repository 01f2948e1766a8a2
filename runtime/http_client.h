/* Gets one document over HTTPS, from hosts of the allow-list: what the fetch tool asks of its host.
 *
 * The same list and the same questions as the proxy of commands: the name is decided before it is
 * resolved, each address before it is connected to, and every redirection anew. Plain http:// only
 * to addresses that are listed literally: a server of one's own. No cookies, no passwords, no proxy
 * of the environment. Thread: any; several fetches at once.
 */
#ifndef HEARTH_RUNTIME_HTTP_CLIENT_H
#define HEARTH_RUNTIME_HTTP_CLIENT_H

#include "name_lookup.h"
#include "network_rules.h"
#include "tools/tool_fetch.h"

#define HTTP_REDIRECTIONS_MAX 5
#define HTTP_HEADERS_BYTES    ((size_t)64 << 10) /* of one answer */

struct http_client_options {
    const struct network_rules *rules; /* borrowed until http_client_close */
    network_decide_done *decided;      /* may be null; on the thread of the fetch */
    void *decided_context;
    name_resolve *resolve; /* null: the system's */
    void *resolve_context;
    const char *authorities; /* file with certificates to trust; null: the system's */
};

struct http_client;

/* Opening the first one initialises libcurl for the process. Expected errors: MEMORY, IO. */
MUST_CHECK result http_client_open(
    struct http_client **out, const struct http_client_options *options, struct error *error
);
void http_client_close(struct http_client *client); /* no fetch may be running */
void http_client_cleanup(struct http_client **client);

/* A tool_fetch_function; the context is a struct http_client. */
MUST_CHECK result http_client_fetch(
    void *client,
    const struct tool_fetch_request *request,
    struct tool_fetch_answer *out,
    struct error *error
);

#endif
