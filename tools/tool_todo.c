/* todo: the model's own list of what it means to do. It writes the whole list each time, is shown it
 * back, and the context keeps it: for compaction, for the person, and after a resume. */
#include "tool_internal.h"

#define TODO_ITEMS_MAX ((size_t)100)
#define TODO_BYTES_MAX ((size_t)1000) /* of one item */
#define TODO_PROPERTIES                                                                            \
    STRING_PROPERTY("content", "what to do")                                                       \
    ", \"status\": {\"type\": \"string\", \"enum\": [\"pending\", \"in_progress\", "               \
    "\"completed\"]}"

static tool_run run_todo;

const struct tool_row tool_row_todo = {
    .shown =
        {"todo",
         "Write the list of what is to be done: the whole list each time, with the state of each "
         "item.",
         OBJECT_SCHEMA(
             "\"todos\": {\"type\": \"array\", \"description\": \"the whole list\", "
             "\"items\": " OBJECT_SCHEMA(TODO_PROPERTIES, "\"content\", \"status\"") "}",
             "\"todos\""
         ),
         0,
         false},
    .run = run_todo,
};

static const char *mark_of(struct view status) {
    if (view_equals_text(status, "completed")) {
        return "[x] ";
    }
    return view_equals_text(status, "in_progress") ? "[>] " : "[ ] ";
}

static result write_list(struct json_value todos, struct buffer *out, struct error *error) {
    struct json_value item = json_first(todos);
    for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
        struct view content = tool_argument(item, "content");
        TRY(buffer_append_text(out, out->length == 0 ? "" : "\n", error));
        TRY(buffer_append_text(out, mark_of(tool_argument(item, "status")), error));
        TRY(sandbox_sanitise(content, 0, out, error));
    }
    return OK;
}

static result run_todo(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct json_value todos = json_get(arguments, "todos");
    if (json_count(todos) > TODO_ITEMS_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: a list has at most %zu items", TODO_ITEMS_MAX
        );
    }
    struct json_value item = json_first(todos);
    for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
        if (tool_argument(item, "content").length > TODO_BYTES_MAX) {
            return tool_answer(
                out, TOOL_REFUSED, error, "error: an item has at most %zu bytes", TODO_BYTES_MAX
            );
        }
    }
    CLEANUP(buffer_deinit) struct buffer list = {NULL, 0, 0, 0};
    buffer_init(&list, BUFFER_CEILING_DEFAULT);
    TRY(write_list(todos, &list, error));
    out->status = TOOL_OK;
    TRY(list.length == 0 ? tool_answer(out, TOOL_OK, error, "(the list is empty)")
                         : buffer_append(&out->text, buffer_view(&list), error));
    struct buffer before = context->todo;
    context->todo = list;
    list = before;
    return OK;
}

struct view tool_context_todo(const struct tool_context *context) {
    return buffer_view(&context->todo);
}

bool tool_is_todo(struct view name) {
    size_t index = tool_index(name);
    return index != SIZE_MAX && tool_row_at(index) == &tool_row_todo;
}

result tool_context_restore_todo(
    struct tool_context *context, struct view name, struct view arguments, struct error *error
) {
    if (!tool_is_todo(name)) {
        return OK;
    }
    CLEANUP(tool_result_deinit) struct tool_result shown;
    return tool_call(context, name, arguments, &shown, error);
}
