/* What the fetch tool asks of its host: one document over HTTP, within the policy for the network.
 *
 * The tool checks the form of the URL and turns what comes into text; the host decides whether the
 * address is allowed, at each redirection anew, and moves the bytes.
 */
#ifndef HEARTH_TOOLS_TOOL_FETCH_H
#define HEARTH_TOOLS_TOOL_FETCH_H

#include "base/bytes.h"

#define TOOL_FETCH_URL_BYTES  2048
#define TOOL_FETCH_TYPE_BYTES 128
#define TOOL_FETCH_TEXT_BYTES 480

struct tool_fetch_request {
    const char *url;     /* http:// or https://, printable ASCII, no user or password in it */
    size_t bytes_max;    /* of the body, decompressed; the rest is not read */
    int64_t time_ms_max; /* for all of it */
    int cancel_fd;       /* give up when it becomes readable */
};

enum tool_fetch_end {
    TOOL_FETCH_DONE,    /* the server answered, with whatever status */
    TOOL_FETCH_REFUSED, /* the policy does not allow the address, or that of a redirection */
    TOOL_FETCH_FAILED,  /* no such name, no connection, bad certificate, too many redirections */
    TOOL_FETCH_TIMEOUT,
    TOOL_FETCH_CANCELLED
};

struct tool_fetch_answer {
    enum tool_fetch_end end;
    int status;                               /* of HTTP */
    char url[TOOL_FETCH_URL_BYTES];           /* behind the redirections */
    char content_type[TOOL_FETCH_TYPE_BYTES]; /* as the server sent it; "" when it did not */
    struct buffer body;                       /* initialised by the tool, with its ceiling */
    bool is_cut;                              /* there was more than bytes_max */
    char reason[TOOL_FETCH_TEXT_BYTES];       /* one sentence unless DONE */
};

/* Blocks. Thread: that of tool_call. Expected errors: MEMORY, IO. */
typedef result tool_fetch_function(
    void *context,
    const struct tool_fetch_request *request,
    struct tool_fetch_answer *out,
    struct error *error
);

#endif
