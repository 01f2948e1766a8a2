/* Client of the Model Context Protocol (revision 2025-06-18) for servers on standard input and
 * output.
 *
 * A server is a process of its own beside the calls of a context, in the sandbox like a command
 * unless the user trusts it. Its tools stand behind the built-in ones as "mcp__SERVER__TOOL". All it
 * says is foreign: lines, messages, tools and answers are bounded, and it is stopped when it does
 * not keep to the protocol. A server that ended is started again at the next call, a few times.
 */
#ifndef HEARTH_TOOLS_TOOL_MCP_H
#define HEARTH_TOOLS_TOOL_MCP_H

#include "tool.h"
#include <stdatomic.h>

#define TOOL_MCP_TIME_MS_DEFAULT 60000
#define TOOL_MCP_START_MS        30000 /* to answer initialize and list its tools */
#define TOOL_MCP_NAME_BYTES_MAX  32    /* of a server */

/* All borrowed until what takes them returns. */
struct tool_mcp_options {
    const char *name; /* letters, digits, - and single _ */
    const char *const *command;
    size_t command_count;
    const char *const *environment; /* "NAME=VALUE" */
    size_t environment_count;
    const char *const *read_only; /* host directories that it sees at the same place */
    size_t read_only_count;
    const char *const *reading_tools; /* globs over its tools that only read (TOOL_READS) */
    size_t reading_tool_count;
    /* Runs outside of the sandbox, in the workspace, with Hearth's own rights and environment. */
    bool is_trusted;
    int64_t time_ms_max; /* of one call; 0: TOOL_MCP_TIME_MS_DEFAULT */
};

/* Starts the server and adds its tools to the context, which stops it when it is destroyed. Blocks
 * for TOOL_MCP_START_MS at most; tool_cancel ends it. Expected errors: CANCELLED, UNSUPPORTED (no sandbox, or a protocol that we do
 * not speak), INVALID_INPUT (its name or command), TIMEOUT, IO (it ended; with its last words),
 * LIMIT. Thread: that of tool_call. */
MUST_CHECK result tool_context_add_server(
    struct tool_context *context, const struct tool_mcp_options *options, struct error *error
);

/* One of several. */
struct tool_mcp_start {
    struct tool_mcp_options options;
    result status; /* as of tool_context_add_server */
    struct error error;
    atomic_bool
        is_ready; /* it is over, well or not; the rest follows when all are. Readable by any thread */
};
/* Starts them beside each other, so that it takes as long as the slowest, and adds their tools in the order of
 * the list. Thread: that of tool_call. */
void tool_context_add_servers(
    struct tool_context *context, struct tool_mcp_start *starts, size_t count
);

struct tool_mcp_state {
    const char *name;
    bool is_running;
    bool is_trusted;
    size_t tool_count;
    size_t skipped_count; /* tools left out: bad name, too large, too many */
    unsigned start_count;
    char server[128];     /* name and version that it gives of itself */
    char last_words[256]; /* why it ended, or the last line of its standard error */
};
size_t tool_context_server_count(const struct tool_context *context);
void tool_context_server_state(
    const struct tool_context *context, size_t index, struct tool_mcp_state *out
);

/* Stops servers and background jobs, so that the workspace is free (for a restore, say). Servers
 * come back with the next call to them, jobs do not. Thread: that of tool_call. */
void tool_context_stop_processes(struct tool_context *context);

#endif
