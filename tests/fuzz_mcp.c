/* What an MCP server writes, in pieces of a size that the first byte gives: no line is lost or made
 * up, each is a message or is not, and what a message holds is what the writers can send back. */
#include "tools/tool_mcp_message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    struct view all;
    size_t at; /* of the next line in `all` */
};

static void check_message(struct view line) {
    struct mcp_message message;
    ASSERT(is_ok(mcp_message_parse(line, &message, NULL)));
    bool is_none = message.kind == MCP_INVALID || message.kind == MCP_TOO_LARGE;
    ASSERT(is_none == (message.document == NULL));
    CLEANUP(buffer_deinit) struct buffer reply = {NULL, 0, 0, 0};
    buffer_init(&reply, BUFFER_CEILING_DEFAULT);
    if (message.kind == MCP_REQUEST) {
        ASSERT(is_ok(mcp_write_error(&reply, message.request_id, -32601, "no", NULL)));
        struct mcp_message back;
        struct view text = view_slice(buffer_view(&reply), 0, reply.length - 1);
        ASSERT(view_find(text, view_of_text("\n"), 0) == SIZE_MAX);
        ASSERT(is_ok(mcp_message_parse(text, &back, NULL)));
        // An id of ours is a number; a text is somebody else's.
        ASSERT(back.kind == (message.request_id.data[0] == '"' ? MCP_INVALID : MCP_ERROR));
        mcp_message_deinit(&back);
    }
    ASSERT(message.kind != MCP_RESULT || json_type(message.result) == JSON_OBJECT);
    ASSERT(message.kind != MCP_NOTIFICATION || message.method.length > 0);
    mcp_message_deinit(&message);
}

static void take_line(void *context, struct view line, bool is_overlong) {
    struct seen *seen = context;
    ASSERT(!is_overlong); // no input is that long
    ASSERT(view_equals(line, view_slice(seen->all, seen->at, line.length)));
    seen->at += line.length;
    ASSERT(seen->all.data[seen->at] == '\n');
    seen->at += 1;
    check_message(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    size_t piece = (size_t)data[0] + 1;
    struct seen seen = {view_of(data + 1, size - 1), 0};
    struct mcp_reader reader;
    mcp_reader_init(&reader);
    for (size_t at = 0; at < seen.all.length; at += piece) {
        struct view part = view_slice(seen.all, at, piece);
        ASSERT(is_ok(mcp_reader_take(&reader, part, take_line, &seen, NULL)));
    }
    ASSERT(view_equals(buffer_view(&reader.line), view_slice(seen.all, seen.at, SIZE_MAX)));
    mcp_reader_deinit(&reader);
    return 0;
}
