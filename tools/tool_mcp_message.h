/* Lines and messages of the Model Context Protocol: JSON-RPC 2.0, one message a line.
 *
 * Pure: bytes in, lines out; a line in, a message out. What is no message is told as such, never
 * guessed at. Internal to tools/. Thread: one at a time.
 */
#ifndef HEARTH_TOOLS_TOOL_MCP_MESSAGE_H
#define HEARTH_TOOLS_TOOL_MCP_MESSAGE_H

#include "base/json.h"

#define MCP_LINE_BYTES_MAX   ((size_t)4 << 20)
#define MCP_VALUES_MAX       ((size_t)200000)
#define MCP_DEPTH_MAX        JSON_DEPTH_MAX
#define MCP_ID_BYTES_MAX     ((size_t)256) /* of a server's own request */
#define MCP_METHOD_BYTES_MAX ((size_t)128)

/* Cuts a stream into lines. */
struct mcp_reader {
    struct buffer line; /* begun, without its end */
    bool is_overlong;   /* the line is over the limit: the rest of it is skipped */
};

void mcp_reader_init(struct mcp_reader *reader);
void mcp_reader_deinit(struct mcp_reader *reader);
/* A whole line without its end, or an overlong one, of which `line` is empty. */
typedef void mcp_reader_line(void *context, struct view line, bool is_overlong);
/* Expected errors: MEMORY (the reader has lost its line). */
MUST_CHECK result mcp_reader_take(
    struct mcp_reader *reader,
    struct view bytes,
    mcp_reader_line *on_line,
    void *context,
    struct error *error
);

enum mcp_kind {
    MCP_INVALID,   /* no message, or one of a kind that the protocol does not have */
    MCP_TOO_LARGE, /* over one of the limits above */
    MCP_RESULT,
    MCP_ERROR,
    MCP_REQUEST,
    MCP_NOTIFICATION
};

/* Everything is borrowed from `document`, which the message owns. */
struct mcp_message {
    enum mcp_kind kind;
    struct json_document *document; /* null when invalid or too large */
    int64_t id;                     /* of a result or error, as we gave it */
    struct view request_id;         /* of a request: raw JSON, to be sent back */
    struct view method;             /* of a request or notification */
    struct json_value result;       /* an object */
    int64_t error_code;
    struct view error_message;
};

/* Expected errors: MEMORY. */
MUST_CHECK result mcp_message_parse(struct view line, struct mcp_message *out, struct error *error);
void mcp_message_deinit(struct mcp_message *message);

/* One line each, with its end. `params` is JSON, or empty for none. */
MUST_CHECK result mcp_write_request(
    struct buffer *out, int64_t id, const char *method, struct view params, struct error *error
);
MUST_CHECK result mcp_write_notification(
    struct buffer *out, const char *method, struct view params, struct error *error
);
MUST_CHECK result mcp_write_result(
    struct buffer *out, struct view request_id, struct view value, struct error *error
);
MUST_CHECK result mcp_write_error(
    struct buffer *out, struct view request_id, int code, const char *text, struct error *error
);

#endif
