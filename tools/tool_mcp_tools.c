/* What a server offers and answers, made fit for a model: names, descriptions and schemas within
 * bounds, content as text. */
#include "tool_mcp_server.h"

#include <fnmatch.h>

#define NAME_BYTES_MAX        ((size_t)64)
#define DESCRIPTION_BYTES_MAX ((size_t)2048)
#define SCHEMA_BYTES_MAX      ((size_t)32 << 10)
#define SCHEMA_DEPTH_MAX      20U
#define DECLARED_BYTES_MAX    ((size_t)256 << 10) /* of one server: a prompt has to hold it */
#define ITEMS_MAX             1000                /* of content */
#define URI_SHOWN_BYTES       ((size_t)300)

/* ---- tools/list ----------------------------------------------------------------------------- */

static bool is_tool_name(struct view name) {
    for (size_t i = 0; i < name.length; i++) {
        unsigned char c = name.data[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && c != '_' && c != '-' && c != '.') {
            return false;
        }
    }
    return name.length > 0 && name.length <= NAME_BYTES_MAX;
}

static unsigned effects_of(const struct mcp_server *server, const char *name) {
    for (size_t i = 0; i < server->reading_tool_count; i++) {
        if (fnmatch(server->reading_tools[i], name, 0) == 0) {
            return TOOL_FOREIGN | TOOL_READS;
        }
    }
    unsigned all = TOOL_FOREIGN | TOOL_READS | TOOL_WRITES | TOOL_EXECUTES;
    return server->is_trusted ? all | TOOL_NETWORK : all;
}

/* Compact, and no deeper or longer than a prompt should hold. */
static result
write_schema(struct json_value schema, struct buffer *out, bool *fits, struct error *error) {
    static const struct json_limits limits = {SCHEMA_BYTES_MAX, 0, SCHEMA_DEPTH_MAX};
    struct view type;
    struct json_writer writer;
    *fits = false;
    if (json_type(schema) != JSON_OBJECT || !json_as_string(json_get(schema, "type"), &type) ||
        !view_equals_text(type, "object") || json_raw(schema).length > 2 * SCHEMA_BYTES_MAX) {
        return OK;
    }
    json_writer_init(&writer, out, error);
    json_write_value(&writer, schema);
    TRY(json_writer_finish(&writer));
    CLEANUP(json_cleanup) struct json_document *checked = NULL;
    result parsed = json_parse(buffer_view(out), &limits, &checked, NULL);
    *fits = is_ok(parsed);
    return parsed.code == RESULT_MEMORY ? parsed : OK;
}

static void tool_destroy(struct mcp_tool *tool) {
    if (tool != NULL) {
        free(tool->name);
        free(tool->texts);
        free(tool);
    }
}

static void tool_cleanup(struct mcp_tool **tool) {
    tool_destroy(*tool);
}

/* `texts`: name, description and schema, each with its NUL. */
static result make_tool(
    const struct mcp_server *server,
    struct view name,
    struct buffer *texts,
    size_t description_at,
    size_t schema_at,
    struct mcp_tool **out,
    struct error *error
) {
    CLEANUP(tool_cleanup) struct mcp_tool *tool = calloc(1, sizeof *tool);
    size_t length = 0;
    if (tool == NULL) {
        FAIL(error, MEMORY, "no memory for a tool");
    }
    tool->name = strndup((const char *)name.data, name.length);
    if (tool->name == NULL) {
        FAIL(error, MEMORY, "no memory for a tool");
    }
    TRY(buffer_take(texts, &tool->texts, &length, error));
    tool->shown = (struct tool_descriptor){
        .name = tool->texts,
        .description = tool->texts + description_at,
        .schema = tool->texts + schema_at,
        .effects = effects_of(server, tool->name),
    };
    *out = TAKE(tool);
    return OK;
}

/* Null: it is left out. */
static result read_tool(
    const struct mcp_server *server,
    struct json_value value,
    struct mcp_tool **out,
    struct error *error
) {
    struct view name = {NULL, 0};
    struct view description = {NULL, 0};
    *out = NULL;
    if (!json_as_string(json_get(value, "name"), &name) || !is_tool_name(name)) {
        return OK;
    }
    (void)json_as_string(json_get(value, "description"), &description);
    CLEANUP(buffer_deinit) struct buffer texts = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer schema = {NULL, 0, 0, 0};
    buffer_init(&texts, BUFFER_CEILING_DEFAULT);
    buffer_init(&schema, BUFFER_CEILING_DEFAULT);
    bool fits = false;
    TRY(write_schema(json_get(value, "inputSchema"), &schema, &fits, error));
    if (!fits) {
        return OK;
    }
    TRY(buffer_append_format(&texts, error, "mcp__%s__%.*s", server->name, VIEW_ARGUMENTS(name)));
    TRY(buffer_append_byte(&texts, '\0', error));
    size_t description_at = texts.length;
    size_t shown = description.length;
    if (shown > DESCRIPTION_BYTES_MAX) {
        shown = utf8_valid_prefix(view_slice(description, 0, DESCRIPTION_BYTES_MAX));
    }
    TRY(sandbox_sanitise(view_slice(description, 0, shown), 0, &texts, error));
    TRY(buffer_append_text(&texts, shown < description.length ? " ..." : "", error));
    TRY(buffer_append_byte(&texts, '\0', error));
    size_t schema_at = texts.length;
    TRY(buffer_append(&texts, buffer_view(&schema), error));
    return make_tool(server, name, &texts, description_at, schema_at, out, error);
}

static bool is_listed(const struct mcp_server *server, const struct mcp_tool *tool) {
    for (size_t i = 0; i < server->tool_count; i++) {
        if (strcmp(server->tools[i]->name, tool->name) == 0) {
            return true;
        }
    }
    return false;
}

static result take_page(struct mcp_server *server, struct json_value page, struct error *error) {
    struct json_value item = json_first(json_get(page, "tools"));
    for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
        CLEANUP(tool_cleanup) struct mcp_tool *tool = NULL;
        TRY(read_tool(server, item, &tool, error));
        size_t bytes = tool == NULL ? 0
                                    : strlen(tool->shown.name) + strlen(tool->shown.description) +
                                          strlen(tool->shown.schema);
        if (tool == NULL || server->tool_count >= MCP_TOOLS_MAX || is_listed(server, tool) ||
            server->declared_bytes + bytes > DECLARED_BYTES_MAX) {
            server->skipped_count += 1;
            continue;
        }
        if (server->tools == NULL) {
            server->tools = calloc(MCP_TOOLS_MAX, sizeof(struct mcp_tool *));
        }
        if (server->tools == NULL) {
            FAIL(error, MEMORY, "no memory for %zu tools", MCP_TOOLS_MAX);
        }
        server->declared_bytes += bytes;
        server->tools[server->tool_count++] = TAKE(tool);
    }
    return OK;
}

static result
write_cursor(struct json_value page, struct buffer *params, bool *has_more, struct error *error) {
    struct view cursor = {NULL, 0};
    struct json_writer writer;
    buffer_clear(params);
    *has_more = json_as_string(json_get(page, "nextCursor"), &cursor);
    if (!*has_more) {
        return OK;
    }
    if (cursor.length > MCP_CURSOR_BYTES) {
        FAIL(error, IO, "a cursor of tools/list is over %zu bytes", MCP_CURSOR_BYTES);
    }
    json_writer_init(&writer, params, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "cursor");
    json_write_string(&writer, cursor);
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

result mcp_tools_list(struct mcp_server *server, int64_t deadline_ms, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer params = {NULL, 0, 0, 0};
    buffer_init(&params, 8 * MCP_CURSOR_BYTES);
    bool has_more = server->has_tools;
    for (unsigned i = 0; i < MCP_PAGES_MAX && has_more; i++) {
        struct mcp_message answer = {0};
        enum mcp_end end = MCP_ENDED;
        TRY(mcp_server_request(
            server, "tools/list", buffer_view(&params), deadline_ms, &end, &answer, error
        ));
        result taken = OK;
        if (end == MCP_ENDED) {
            char words[MCP_WORDS_BYTES];
            mcp_server_stop(server, MCP_LAST_WORDS_MS);
            mcp_server_last_words(server, words);
            FAIL(error, IO, "%s", words);
        }
        if (end == MCP_TIMED_OUT) {
            FAIL(error, TIMEOUT, "it did not list its tools in time");
        }
        if (end != MCP_ANSWERED) {
            FAIL(error, IO, "its list of tools cannot be read");
        }
        if (answer.kind == MCP_RESULT) {
            taken = take_page(server, answer.result, error);
            taken = is_ok(taken) ? write_cursor(answer.result, &params, &has_more, error) : taken;
        } else {
            has_more = false;
        }
        mcp_message_deinit(&answer);
        TRY(taken);
    }
    return OK;
}

void mcp_tools_destroy(struct mcp_server *server) {
    for (size_t i = 0; i < server->tool_count; i++) {
        tool_destroy(server->tools[i]);
    }
    free(server->tools);
    server->tools = NULL;
    server->tool_count = 0;
}

/* ---- tools/call ----------------------------------------------------------------------------- */

static struct view member(struct json_value value, const char *name) {
    struct view text = {NULL, 0};
    (void)json_as_string(json_get(value, name), &text);
    return text;
}

static result append_item(struct json_value item, struct buffer *out, struct error *error) {
    struct view type = member(item, "type");
    if (view_equals_text(type, "text")) {
        return buffer_append(out, member(item, "text"), error);
    }
    struct json_value resource = json_get(item, "resource");
    struct json_value about = json_type(resource) == JSON_OBJECT ? resource : item;
    struct view uri = view_slice(member(about, "uri"), 0, URI_SHOWN_BYTES);
    struct view mime = view_slice(member(about, "mimeType"), 0, URI_SHOWN_BYTES);
    struct view text = member(resource, "text");
    struct view shown = view_slice(type, 0, 40);
    TRY(buffer_append_text(out, "[", error));
    TRY(buffer_append(out, shown.length > 0 ? shown : view_of_text("item"), error));
    TRY(buffer_append_text(out, uri.length > 0 ? " " : "", error));
    TRY(buffer_append(out, uri, error));
    TRY(buffer_append_text(out, mime.length > 0 ? " " : "", error));
    TRY(buffer_append(out, mime, error));
    size_t encoded = member(item, "data").length + member(resource, "blob").length;
    if (encoded > 0) { // base64: of no use as text
        TRY(buffer_append_format(out, error, ", %zu bytes left out", encoded / 4 * 3));
    }
    TRY(buffer_append_text(out, text.length > 0 ? "]\n" : "]", error));
    return buffer_append(out, text, error);
}

result mcp_result_write(
    struct json_value value, size_t text_bytes_max, struct tool_result *out, struct error *error
) {
    struct json_value content = json_get(value, "content");
    size_t items = 0;
    struct json_value item = json_first(content);
    for (; json_type(item) != JSON_ABSENT && items < ITEMS_MAX; item = json_next(item)) {
        TRY(buffer_append_text(&out->output, items > 0 ? "\n" : "", error));
        TRY(append_item(item, &out->output, error));
        items += 1;
    }
    if (json_count(content) > items) {
        size_t left = json_count(content) - items;
        TRY(buffer_append_format(&out->output, error, "\n[%zu more items left out]", left));
    }
    struct json_value structured = json_get(value, "structuredContent");
    if (items == 0 && json_type(structured) == JSON_OBJECT) {
        TRY(buffer_append(&out->output, json_raw(structured), error));
    }
    bool is_error = false;
    (void)json_as_bool(json_get(value, "isError"), &is_error);
    out->status = is_error ? TOOL_ERROR : TOOL_OK;
    out->output_bytes = out->output.length;
    struct view raw = buffer_view(&out->output);
    if (raw.length == 0) {
        return buffer_append_text(&out->text, is_error ? "error: (no text)" : "(no text)", error);
    }
    if (is_error && !view_starts_with(raw, view_of_text("error"))) {
        TRY(buffer_append_text(&out->text, "error: ", error));
    }
    return tool_append_cut(out, raw, tool_cut_lines(raw, text_bytes_max), 0, error);
}
