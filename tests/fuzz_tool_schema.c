/* Schema and arguments from foreign bytes: up to the first newline a schema (or nothing: the schemas
 * of the built-in tools), then arguments. What matches must really have what is required; what does
 * not gets one line that says why. */
#include "tools/tool.h"
#include "tools/tool_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_required(struct json_value schema, struct json_value arguments) {
    struct json_value v = json_first(json_get(schema, "required"));
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view name;
        ASSERT(json_as_string(v, &name));
        ASSERT(json_type(json_get_view(arguments, name)) != JSON_ABSENT);
    }
    struct json_value properties = json_get(schema, "properties");
    v = json_first(arguments);
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        ASSERT(json_type(json_get_view(properties, json_name(v))) != JSON_ABSENT);
    }
}

static void match(struct view schema_text, struct view text) {
    CLEANUP(json_cleanup) struct json_document *schema = NULL;
    CLEANUP(json_cleanup) struct json_document *arguments = NULL;
    struct error error;
    if (is_failed(json_parse(schema_text, NULL, &schema, &error)) ||
        is_failed(tool_schema_check(json_root(schema), &error)) ||
        is_failed(json_parse(text, NULL, &arguments, &error))) {
        return;
    }
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    bool matches = false;
    struct json_value root = json_root(arguments);
    ASSERT(is_ok(tool_schema_match("t", json_root(schema), root, &why, &matches, &error)));
    ASSERT(matches == (why.length == 0));
    if (matches) {
        check_required(json_root(schema), root);
    } else {
        ASSERT(view_starts_with(buffer_view(&why), view_of_text("error: ")));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct view input = view_of(data, size);
    size_t end = view_find(input, view_of_text("\n"), 0);
    if (end == SIZE_MAX) {
        return 0;
    }
    struct view schema = view_slice(input, 0, end);
    struct view arguments = view_slice(input, end + 1, size - end - 1);
    if (schema.length > 0) {
        match(schema, arguments);
        return 0;
    }
    for (size_t i = 0; i < TOOL_DIALECT_COUNT * tool_count(); i++) {
        enum tool_dialect dialect = (enum tool_dialect)(i / tool_count());
        const struct tool_descriptor *tool = tool_form(i % tool_count(), dialect, tool_set_all());
        match(
            view_of_text(tool == NULL ? tool_at(i % tool_count())->schema : tool->schema), arguments
        );
    }
    return 0;
}
