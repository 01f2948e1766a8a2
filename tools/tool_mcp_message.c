/* The reader, the parser and the writers of tool_mcp_message.h. */
#include "tool_mcp_message.h"

void mcp_reader_init(struct mcp_reader *reader) {
    buffer_init(&reader->line, MCP_LINE_BYTES_MAX);
    reader->is_overlong = false;
}

void mcp_reader_deinit(struct mcp_reader *reader) {
    buffer_deinit(&reader->line);
}

result mcp_reader_take(
    struct mcp_reader *reader,
    struct view bytes,
    mcp_reader_line *on_line,
    void *context,
    struct error *error
) {
    while (bytes.length > 0) {
        const unsigned char *end = memchr(bytes.data, '\n', bytes.length);
        size_t length = end == NULL ? bytes.length : (size_t)(end - bytes.data);
        struct view part = view_slice(bytes, 0, length);
        bytes = view_slice(bytes, end == NULL ? length : length + 1, SIZE_MAX);
        if (!reader->is_overlong && part.length > MCP_LINE_BYTES_MAX - reader->line.length) {
            reader->is_overlong = true;
            buffer_deinit(&reader->line);
            buffer_init(&reader->line, MCP_LINE_BYTES_MAX);
        }
        if (end == NULL) {
            return reader->is_overlong ? OK : buffer_append(&reader->line, part, error);
        }
        if (reader->is_overlong) {
            on_line(context, view_of(NULL, 0), true);
        } else if (reader->line.length == 0) { // the usual case: no copy
            on_line(context, part, false);
        } else {
            TRY(buffer_append(&reader->line, part, error));
            on_line(context, buffer_view(&reader->line), false);
        }
        reader->is_overlong = false;
        buffer_clear(&reader->line);
    }
    return OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

static bool is_plain(struct view text) {
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] < 0x21 || text.data[i] > 0x7e) {
            return false;
        }
    }
    return text.length > 0;
}

static bool take_call(struct json_value root, struct mcp_message *out) {
    struct json_value id = json_get(root, "id");
    if (!json_as_string(json_get(root, "method"), &out->method) || !is_plain(out->method) ||
        out->method.length > MCP_METHOD_BYTES_MAX) {
        return false;
    }
    if (json_type(id) == JSON_ABSENT) {
        out->kind = MCP_NOTIFICATION;
        return true;
    }
    int64_t number = 0;
    out->request_id = json_raw(id);
    out->kind = MCP_REQUEST;
    return (json_type(id) == JSON_STRING || json_as_i64(id, &number)) &&
           out->request_id.length <= MCP_ID_BYTES_MAX;
}

static bool take_response(struct json_value root, struct mcp_message *out) {
    struct json_value failure = json_get(root, "error");
    out->result = json_get(root, "result");
    if (!json_as_i64(json_get(root, "id"), &out->id)) {
        return false; // every id of ours is a number
    }
    if (json_type(failure) == JSON_ABSENT) {
        out->kind = MCP_RESULT;
        return json_type(out->result) == JSON_OBJECT;
    }
    out->kind = MCP_ERROR;
    return json_type(out->result) == JSON_ABSENT && json_type(failure) == JSON_OBJECT &&
           json_as_i64(json_get(failure, "code"), &out->error_code) &&
           json_as_string(json_get(failure, "message"), &out->error_message);
}

result mcp_message_parse(struct view line, struct mcp_message *out, struct error *error) {
    static const struct json_limits limits = {MCP_LINE_BYTES_MAX, MCP_VALUES_MAX, MCP_DEPTH_MAX};
    memset(out, 0, sizeof *out);
    struct mcp_message message = {0};
    struct error why = {0};
    result parsed = json_parse(line, &limits, &message.document, &why);
    if (parsed.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "no memory for a message of %zu bytes", line.length);
    }
    if (is_failed(parsed)) {
        out->kind = parsed.code == RESULT_LIMIT ? MCP_TOO_LARGE : MCP_INVALID;
        return OK;
    }
    struct json_value root = json_root(message.document);
    struct view version = {NULL, 0};
    bool is_rpc = json_type(root) == JSON_OBJECT &&
                  json_as_string(json_get(root, "jsonrpc"), &version) &&
                  view_equals_text(version, "2.0");
    bool is_call = json_type(json_get(root, "method")) != JSON_ABSENT;
    if (is_rpc && (is_call ? take_call(root, &message) : take_response(root, &message))) {
        *out = message;
    } else {
        json_destroy(message.document);
    }
    return OK;
}

void mcp_message_deinit(struct mcp_message *message) {
    json_destroy(message->document);
    memset(message, 0, sizeof *message);
}

/* ---- writing -------------------------------------------------------------------------------- */

static void begin(struct json_writer *writer, struct buffer *out, struct error *error) {
    json_writer_init(writer, out, error);
    json_write_object_begin(writer);
    json_write_key(writer, "jsonrpc");
    json_write_text(writer, "2.0");
}

static result end(struct json_writer *writer, struct buffer *out, struct error *error) {
    json_write_object_end(writer);
    TRY(json_writer_finish(writer));
    return buffer_append_byte(out, '\n', error);
}

static void write_method(struct json_writer *writer, const char *method, struct view params) {
    json_write_key(writer, "method");
    json_write_text(writer, method);
    if (params.length > 0) {
        json_write_key(writer, "params");
        json_write_raw(writer, params);
    }
}

result mcp_write_request(
    struct buffer *out, int64_t id, const char *method, struct view params, struct error *error
) {
    struct json_writer writer;
    begin(&writer, out, error);
    json_write_key(&writer, "id");
    json_write_i64(&writer, id);
    write_method(&writer, method, params);
    return end(&writer, out, error);
}

result mcp_write_notification(
    struct buffer *out, const char *method, struct view params, struct error *error
) {
    struct json_writer writer;
    begin(&writer, out, error);
    write_method(&writer, method, params);
    return end(&writer, out, error);
}

result mcp_write_result(
    struct buffer *out, struct view request_id, struct view value, struct error *error
) {
    struct json_writer writer;
    begin(&writer, out, error);
    json_write_key(&writer, "id");
    json_write_raw(&writer, request_id);
    json_write_key(&writer, "result");
    json_write_raw(&writer, value);
    return end(&writer, out, error);
}

result mcp_write_error(
    struct buffer *out, struct view request_id, int code, const char *text, struct error *error
) {
    struct json_writer writer;
    begin(&writer, out, error);
    json_write_key(&writer, "id");
    json_write_raw(&writer, request_id);
    json_write_key(&writer, "error");
    json_write_object_begin(&writer);
    json_write_key(&writer, "code");
    json_write_i64(&writer, code);
    json_write_key(&writer, "message");
    json_write_text(&writer, text);
    json_write_object_end(&writer);
    return end(&writer, out, error);
}
