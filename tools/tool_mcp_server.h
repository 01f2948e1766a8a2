/* One MCP server: its process, and requests to it with their answers. Internal to tools/.
 *
 * The process's thread reads and answers what the server asks by itself; the owner's thread sends one
 * request at a time and waits for its answer, a deadline or a cancel.
 */
#ifndef HEARTH_TOOLS_TOOL_MCP_SERVER_H
#define HEARTH_TOOLS_TOOL_MCP_SERVER_H

#include "tool_internal.h"
#include "tool_mcp.h"
#include "tool_mcp_message.h"
#include "tool_pump.h"

#include <pthread.h>

#define MCP_STARTS_MAX    6 /* of one server in a context */
#define MCP_TOOLS_MAX     ((size_t)1000)
#define MCP_PAGES_MAX     100
#define MCP_CURSOR_BYTES  ((size_t)1024)
#define MCP_LAST_WORDS_MS 500 /* for a server that is ending to say why */
#define MCP_WORDS_BYTES   256
#define MCP_BAD_LINES_MAX 100U
#define MCP_UNASKED_MAX   10000U /* messages that answer nothing, since the last answer */
#define MCP_UNASKED_BYTES ((uint64_t)64 << 20) /* and their bytes */

struct mcp_tool {
    struct tool_descriptor shown; /* first: context->running->shown is one of these */
    char *name;                   /* as the server has it */
    char *texts;                  /* what `shown` points into */
};

struct mcp_server {
    struct tool_context *context; /* borrowed, its owner */
    char *name;
    char *
        *strings; /* copies: command, environment, read_only, reading_tools; each null-terminated */
    size_t string_count;
    const char *const *command;
    const char *const *environment;
    size_t environment_count;
    const char *const *read_only;
    size_t read_only_count;
    const char *const *reading_tools;
    size_t reading_tool_count;
    bool is_trusted;
    int64_t time_ms_max;
    struct mcp_tool **tools;
    size_t tool_count;
    size_t skipped_count;
    size_t declared_bytes;
    bool has_tools; /* says that it has some */
    unsigned starts;
    int64_t last_id;
    char title[128]; /* name and version that it gives */
    struct pump *pump;
    struct mcp_reader reader; /* of the pump's thread */
    char roots[2 * SANDBOX_PATH_BYTES];
    bool has_mutex;
    pthread_mutex_t mutex; /* guards all below, for the pump's thread */
    int64_t waiting_id;    /* 0: none */
    struct mcp_message answer;
    bool has_answer;
    bool answer_is_lost; /* a line that may have been the answer was overlong or no message */
    bool is_suspect;     /* has said nothing since it let a request time out */
    unsigned bad_lines;
    unsigned unasked;
    uint64_t unasked_bytes;
    char violation[MCP_WORDS_BYTES]; /* why it was stopped; "" */
    struct buffer error_line;
    char last_words[MCP_WORDS_BYTES]; /* of its standard error */
};

enum mcp_end { MCP_ANSWERED, MCP_TIMED_OUT, MCP_CANCELLED, MCP_LOST, MCP_ENDED };

/* Copies the options. Expected errors: INVALID_INPUT, MEMORY. */
MUST_CHECK result mcp_server_create(
    struct tool_context *context,
    const struct tool_mcp_options *options,
    struct mcp_server **out,
    struct error *error
);
void mcp_server_destroy(struct mcp_server *server);

bool mcp_server_is_running(struct mcp_server *server);
/* Process and handshake. Expected errors: those of tool_context_add_server. */
MUST_CHECK result mcp_server_start(struct mcp_server *server, struct error *error);
/* Begins to stop it: end of input. */
void mcp_server_ask_to_stop(struct mcp_server *server);
/* Stops it for good within `grace_ms` and what killing takes. */
void mcp_server_stop(struct mcp_server *server, int64_t grace_ms);
/* Why it ended; a borrowed line of text, sanitised. Only when it is not running. */
void mcp_server_last_words(struct mcp_server *server, char out[MCP_WORDS_BYTES]);

/* Sends a request and waits until `deadline_ms` of the context's clock. The answer, when there is
 * one, belongs to the caller. Expected errors: MEMORY, IO. */
MUST_CHECK result mcp_server_request(
    struct mcp_server *server,
    const char *method,
    struct view params,
    int64_t deadline_ms,
    enum mcp_end *end,
    struct mcp_message *answer,
    struct error *error
);
/* Whether it answers at all, where there is doubt. */
MUST_CHECK result mcp_server_check(struct mcp_server *server, bool *answers, struct error *error);

/* ---- tool_mcp_tools.c ----------------------------------------------------------------------- */

/* Fills the tools by tools/list, page by page. */
MUST_CHECK result
mcp_tools_list(struct mcp_server *server, int64_t deadline_ms, struct error *error);
void mcp_tools_destroy(struct mcp_server *server);
/* The content of a tools/call result as text for the model. */
MUST_CHECK result mcp_result_write(
    struct json_value value, size_t text_bytes_max, struct tool_result *out, struct error *error
);

#endif
