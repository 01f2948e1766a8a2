/* Messages and their owner: deep copies into blocks that live as long as the conversation, and the
 * JSON shape of messages, both ways. */
#include "chat.h"

#define BLOCK_BYTES        ((size_t)64 << 10)
#define PARTS_PER_MESSAGE  4096 /* parts, calls or tools in one message from JSON */
#define MESSAGES_INITIALLY 16

struct chat_block {
    struct chat_block *previous;
    size_t used;
    size_t capacity;
    unsigned char bytes[];
};

struct chat_conversation {
    struct chat_block *block;
    struct chat_message *messages;
    size_t count;
    size_t capacity;
};

static const char *const role_names[] = {"system", "user", "assistant", "tool", "latest_reminder"};
static const char *const task_names[] = {
    "", "action", "query", "authority", "domain", "title", "read_url"};

const char *chat_role_name(enum chat_role role) {
    ASSERT(role >= 0 && (size_t)role < COUNT_OF(role_names));
    return role_names[role];
}

bool chat_role_from_name(struct view name, enum chat_role *role) {
    for (size_t i = 0; i < COUNT_OF(role_names); i++) {
        if (view_equals_text(name, role_names[i])) {
            *role = (enum chat_role)i;
            return true;
        }
    }
    return false;
}

/* ---- ownership ---- */

result chat_conversation_create(struct chat_conversation **out, struct error *error) {
    struct chat_conversation *conversation = calloc(1, sizeof *conversation);
    if (conversation == NULL) {
        FAIL(error, MEMORY, "no memory for a conversation");
    }
    *out = conversation;
    return OK;
}

void chat_conversation_destroy(struct chat_conversation *conversation) {
    if (conversation == NULL) {
        return;
    }
    while (conversation->block != NULL) {
        struct chat_block *block = conversation->block;
        conversation->block = block->previous;
        free(block);
    }
    free(conversation->messages);
    free(conversation);
}

void chat_conversation_cleanup(struct chat_conversation **conversation) {
    chat_conversation_destroy(*conversation);
}

size_t chat_conversation_count(const struct chat_conversation *conversation) {
    return conversation->count;
}

const struct chat_message *chat_conversation_messages(const struct chat_conversation *conversation
) {
    return conversation->messages;
}

static result
reserve(struct chat_conversation *conversation, void *out, size_t bytes, struct error *error) {
    struct chat_block *block = conversation->block;
    bytes = (bytes + 15) / 16 * 16;
    if (block == NULL || block->capacity - block->used < bytes) {
        size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = malloc(sizeof *block + capacity + 16);
        if (block == NULL) {
            FAIL(error, MEMORY, "no memory for a message of %zu bytes", bytes);
        }
        *block = (struct chat_block){conversation->block, 0, capacity};
        // The first item starts at a multiple of 16.
        block->used = (16 - (uintptr_t)block->bytes % 16) % 16;
        block->capacity += block->used;
        conversation->block = block;
    }
    void *place = block->bytes + block->used;
    block->used += bytes;
    memcpy(out, &place, sizeof place);
    return OK;
}

static result
copy_view(struct chat_conversation *conversation, struct view *view, struct error *error) {
    if (view->data == NULL || view->length == 0) {
        view->data = view->data == NULL ? NULL : (const unsigned char *)"";
        return OK;
    }
    unsigned char *copy = NULL;
    TRY(reserve(conversation, &copy, view->length, error));
    memcpy(copy, view->data, view->length);
    view->data = copy;
    return OK;
}

static result copy_parts(
    struct chat_conversation *conversation, struct chat_message *message, struct error *error
) {
    struct chat_part *parts = NULL;
    TRY(reserve(conversation, &parts, message->part_count * sizeof *parts, error));
    for (size_t i = 0; i < message->part_count; i++) {
        parts[i] = message->parts[i];
        TRY(copy_view(conversation, &parts[i].text, error));
        TRY(copy_view(conversation, &parts[i].unsupported_type, error));
    }
    message->parts = parts;
    return OK;
}

static result copy_calls(
    struct chat_conversation *conversation, struct chat_message *message, struct error *error
) {
    struct chat_call *calls = NULL;
    TRY(reserve(conversation, &calls, message->call_count * sizeof *calls, error));
    for (size_t i = 0; i < message->call_count; i++) {
        calls[i] = message->calls[i];
        TRY(copy_view(conversation, &calls[i].id, error));
        TRY(copy_view(conversation, &calls[i].name, error));
        TRY(copy_view(conversation, &calls[i].arguments, error));
    }
    message->calls = calls;
    return OK;
}

static result copy_tools(
    struct chat_conversation *conversation, struct chat_message *message, struct error *error
) {
    struct chat_tool *tools = NULL;
    TRY(reserve(conversation, &tools, message->tool_count * sizeof *tools, error));
    for (size_t i = 0; i < message->tool_count; i++) {
        tools[i] = message->tools[i];
        TRY(copy_view(conversation, &tools[i].name, error));
        TRY(copy_view(conversation, &tools[i].description, error));
        TRY(copy_view(conversation, &tools[i].parameters, error));
        TRY(copy_view(conversation, &tools[i].function, error));
    }
    message->tools = tools;
    return OK;
}

result chat_conversation_append(
    struct chat_conversation *conversation, const struct chat_message *message, struct error *error
) {
    if (conversation->count == conversation->capacity) {
        size_t capacity =
            conversation->capacity == 0 ? MESSAGES_INITIALLY : conversation->capacity * 2;
        struct chat_message *messages =
            realloc(conversation->messages, capacity * sizeof *messages);
        if (messages == NULL) {
            FAIL(error, MEMORY, "no memory for %zu messages", capacity);
        }
        conversation->messages = messages;
        conversation->capacity = capacity;
    }
    struct chat_message copy = *message;
    TRY(copy_view(conversation, &copy.content, error));
    TRY(copy_view(conversation, &copy.reasoning, error));
    TRY(copy_view(conversation, &copy.call_id, error));
    TRY(copy_view(conversation, &copy.response_format, error));
    TRY(copy_parts(conversation, &copy, error));
    TRY(copy_calls(conversation, &copy, error));
    TRY(copy_tools(conversation, &copy, error));
    conversation->messages[conversation->count++] = copy;
    return OK;
}

/* ---- from JSON ---- */

/* Arrays that a message read from JSON borrows until it is copied. */
struct reading {
    struct chat_part *parts;
    struct chat_call *calls;
    struct chat_tool *tools;
};

static void reading_deinit(struct reading *reading) {
    free(reading->parts);
    free(reading->calls);
    free(reading->tools);
}

static bool is_given(struct json_value value) {
    return json_type(value) != JSON_ABSENT && json_type(value) != JSON_NULL;
}

/* Allocates an array for the elements of a JSON array. */
static result begin_array(
    void *out, struct json_value array, const char *name, size_t item_bytes, struct error *error
) {
    size_t count = json_count(array);
    if (json_type(array) != JSON_ARRAY || count > PARTS_PER_MESSAGE) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%s' is %s of %zu; it must be an array of at most %d",
            name,
            json_type_name(json_type(array)),
            count,
            PARTS_PER_MESSAGE
        );
    }
    void *items = calloc(count + 1, item_bytes);
    if (items == NULL) {
        FAIL(error, MEMORY, "no memory for %zu items of '%s'", count, name);
    }
    memcpy(out, &items, sizeof items);
    return OK;
}

static result
read_text(struct json_value object, const char *name, struct view *out, struct error *error) {
    return is_given(json_get(object, name)) ? json_get_string(object, name, out, error) : OK;
}

static result read_content(
    struct reading *reading,
    struct json_value value,
    struct chat_message *message,
    struct error *error
) {
    if (json_as_string(value, &message->content) || !is_given(value)) {
        return OK;
    }
    TRY(begin_array(&reading->parts, value, "content", sizeof *reading->parts, error));
    message->parts = reading->parts;
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct chat_part *part = &reading->parts[message->part_count];
        struct view type;
        TRY(json_get_string(v, "type", &type, error));
        if (view_equals_text(type, "text")) {
            TRY(json_get_string(v, "text", &part->text, error));
        } else {
            part->unsupported_type = type;
        }
        message->part_count += 1;
    }
    return OK;
}

static result read_calls(
    struct reading *reading,
    struct json_value value,
    struct chat_message *message,
    struct error *error
) {
    TRY(begin_array(&reading->calls, value, "tool_calls", sizeof *reading->calls, error));
    message->calls = reading->calls;
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct chat_call *call = &reading->calls[message->call_count];
        struct json_value function;
        TRY(read_text(v, "id", &call->id, error));
        TRY(json_get_object(v, "function", &function, error));
        TRY(json_get_string(function, "name", &call->name, error));
        struct json_value arguments = json_get(function, "arguments");
        if (!json_as_string(arguments, &call->arguments)) {
            call->arguments = json_raw(arguments);
        }
        message->call_count += 1;
    }
    return OK;
}

static result read_tools(
    struct reading *reading,
    struct json_value value,
    struct chat_message *message,
    struct error *error
) {
    TRY(begin_array(&reading->tools, value, "tools", sizeof *reading->tools, error));
    message->tools = reading->tools;
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct json_value function = json_get(v, "function");
        function = json_type(function) == JSON_OBJECT ? function : v;
        struct chat_tool *tool = &reading->tools[message->tool_count];
        TRY(json_get_string(function, "name", &tool->name, error));
        tool->function = json_raw(function);
        message->tool_count += 1;
    }
    return OK;
}

static result read_task(struct view name, struct chat_message *message, struct error *error) {
    for (size_t i = 1; i < COUNT_OF(task_names); i++) {
        if (view_equals_text(name, task_names[i])) {
            message->task = (enum chat_task)i;
            return OK;
        }
    }
    FAIL(error, INVALID_INPUT, "unknown task '%.*s'", VIEW_ARGUMENTS(view_slice(name, 0, 60)));
}

static result read_message(
    struct reading *reading,
    struct json_value value,
    struct chat_message *message,
    struct error *error
) {
    struct view role;
    struct view task = {NULL, 0};
    TRY(json_get_string(value, "role", &role, error));
    if (!chat_role_from_name(role, &message->role)) {
        FAIL(error, INVALID_INPUT, "unknown role '%.*s'", VIEW_ARGUMENTS(view_slice(role, 0, 60)));
    }
    TRY(read_content(reading, json_get(value, "content"), message, error));
    TRY(read_text(value, "reasoning_content", &message->reasoning, error));
    TRY(read_text(value, "tool_call_id", &message->call_id, error));
    if (is_given(json_get(value, "tool_calls"))) {
        TRY(read_calls(reading, json_get(value, "tool_calls"), message, error));
    }
    if (is_given(json_get(value, "tools"))) {
        TRY(read_tools(reading, json_get(value, "tools"), message, error));
    }
    if (is_given(json_get(value, "response_format"))) {
        message->response_format = json_raw(json_get(value, "response_format"));
    }
    if (is_given(json_get(value, "wo_eos"))) {
        TRY(json_get_bool(value, "wo_eos", &message->without_eos, error));
    }
    TRY(read_text(value, "task", &task, error));
    return task.data == NULL ? OK : read_task(task, message, error);
}

result chat_conversation_append_json(
    struct chat_conversation *conversation, struct json_value messages, struct error *error
) {
    if (json_type(messages) != JSON_ARRAY) {
        FAIL(
            error,
            INVALID_INPUT,
            "messages are %s; they must be an array",
            json_type_name(json_type(messages))
        );
    }
    size_t index = 0;
    for (struct json_value v = json_first(messages); json_type(v) != JSON_ABSENT;
         v = json_next(v)) {
        CLEANUP(reading_deinit) struct reading reading = {NULL, NULL, NULL};
        struct chat_message message = {.role = CHAT_USER};
        TRY_NOTE(error, read_message(&reading, v, &message, error), "message %zu", index);
        TRY(chat_conversation_append(conversation, &message, error));
        index += 1;
    }
    return OK;
}

/* ---- to JSON ---- */

static void write_view(struct json_writer *writer, const char *name, struct view text) {
    json_write_key(writer, name);
    json_write_string(writer, text);
}

static void write_content(struct json_writer *writer, const struct chat_message *message) {
    if (message->part_count == 0) {
        write_view(writer, "content", message->content);
        return;
    }
    json_write_key(writer, "content");
    json_write_array_begin(writer);
    for (size_t i = 0; i < message->part_count; i++) {
        const struct chat_part *part = &message->parts[i];
        json_write_object_begin(writer);
        json_write_key(writer, "type");
        if (part->unsupported_type.length > 0) {
            json_write_string(writer, part->unsupported_type);
        } else {
            json_write_text(writer, "text");
            write_view(writer, "text", part->text);
        }
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_calls(struct json_writer *writer, const struct chat_message *message) {
    json_write_key(writer, "tool_calls");
    json_write_array_begin(writer);
    for (size_t i = 0; i < message->call_count; i++) {
        const struct chat_call *call = &message->calls[i];
        json_write_object_begin(writer);
        if (call->id.length > 0) {
            write_view(writer, "id", call->id);
        }
        write_view(writer, "type", view_of_text("function"));
        json_write_key(writer, "function");
        json_write_object_begin(writer);
        write_view(writer, "name", call->name);
        write_view(writer, "arguments", call->arguments);
        json_write_object_end(writer);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_tool(struct json_writer *writer, const struct chat_tool *tool) {
    json_write_object_begin(writer);
    write_view(writer, "type", view_of_text("function"));
    json_write_key(writer, "function");
    if (tool->function.length > 0) {
        json_write_raw(writer, tool->function);
    } else {
        json_write_object_begin(writer);
        write_view(writer, "name", tool->name);
        if (tool->description.data != NULL) {
            write_view(writer, "description", tool->description);
        }
        json_write_key(writer, "parameters");
        json_write_raw(writer, tool->parameters);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
}

void chat_message_write_json(struct json_writer *writer, const struct chat_message *message) {
    json_write_object_begin(writer);
    write_view(writer, "role", view_of_text(chat_role_name(message->role)));
    write_content(writer, message);
    if (message->role == CHAT_ASSISTANT) {
        write_view(writer, "reasoning_content", message->reasoning);
        write_calls(writer, message);
    }
    if (message->without_eos) {
        json_write_key(writer, "wo_eos");
        json_write_bool(writer, true);
    }
    if (message->call_id.length > 0) {
        write_view(writer, "tool_call_id", message->call_id);
    }
    if (message->task != CHAT_TASK_NONE) {
        write_view(writer, "task", view_of_text(task_names[message->task]));
    }
    if (message->tool_count > 0) {
        json_write_key(writer, "tools");
        json_write_array_begin(writer);
        for (size_t i = 0; i < message->tool_count; i++) {
            write_tool(writer, &message->tools[i]);
        }
        json_write_array_end(writer);
    }
    if (message->response_format.length > 0) {
        json_write_key(writer, "response_format");
        json_write_raw(writer, message->response_format);
    }
    json_write_object_end(writer);
}
