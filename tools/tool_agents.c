/* spawn, message, wait: the model's side of tool_agents.h. */
#include "tool_agents.h"
#include "tool_internal.h"

#define TASK_BYTES_MAX ((size_t)256 << 10)
#define NAME_BYTES_MAX ((size_t)64)
#define TEXT_BYTES_MAX ((size_t)8 << 20)

static bool is_possible(const struct tool_context_options *options) {
    return options->agents != NULL;
}

static bool is_name(struct view name) {
    for (size_t i = 0; i < name.length; i++) {
        unsigned char c = name.data[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && c != '-' && c != '_') {
            return false;
        }
    }
    return name.length > 0 && name.length <= NAME_BYTES_MAX;
}

static result refuse_name(struct tool_result *out, struct error *error) {
    return tool_answer(
        out,
        TOOL_REFUSED,
        error,
        "error: a name is 1 to %zu letters, digits, - and _",
        NAME_BYTES_MAX
    );
}

/* What the host wrote, made harmless and cut. */
static result finish(
    const struct tool_context *context,
    enum tool_status status,
    const struct buffer *text,
    struct tool_result *out,
    struct error *error
) {
    out->status = status;
    TRY(buffer_append(&out->output, buffer_view(text), error));
    out->output_bytes = out->output.length;
    struct view raw = buffer_view(&out->output);
    return tool_append_cut(
        out, raw, tool_cut_lines(raw, context->options.text_bytes_max), 0, error
    );
}

static result run_spawn(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    const struct tool_agents *agents = context->options.agents;
    struct tool_agents_spawn spawn = {
        .task = tool_argument(arguments, "task"),
        .name = tool_argument(arguments, "name"),
        .role = tool_argument(arguments, "role"),
    };
    (void)json_as_bool(json_get(arguments, "fork"), &spawn.is_fork);
    if (spawn.task.length == 0 || spawn.task.length > TASK_BYTES_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: a task is 1 to %zu bytes long", TASK_BYTES_MAX
        );
    }
    if ((spawn.name.length > 0 && !is_name(spawn.name)) ||
        (spawn.role.length > 0 && !is_name(spawn.role))) {
        return refuse_name(out, error);
    }
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, TEXT_BYTES_MAX);
    enum tool_status status = TOOL_ERROR;
    TRY(agents->spawn(agents->context, &spawn, &status, &text, error));
    return finish(context, status, &text, out, error);
}

static result run_message(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    const struct tool_agents *agents = context->options.agents;
    struct view name = tool_argument(arguments, "name");
    struct view message = tool_argument(arguments, "message");
    if (!is_name(name)) {
        return refuse_name(out, error);
    }
    if (message.length == 0 || message.length > TASK_BYTES_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: a message is 1 to %zu bytes long", TASK_BYTES_MAX
        );
    }
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, TEXT_BYTES_MAX);
    enum tool_status status = TOOL_ERROR;
    TRY(agents->message(agents->context, name, message, &status, &text, error));
    return finish(context, status, &text, out, error);
}

static result run_wait(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    const struct tool_agents *agents = context->options.agents;
    struct json_value names = json_get(arguments, "names");
    struct tool_agents_wait wait = {.cancel_fd = context->cancel_fd};
    if (json_count(names) > TOOL_AGENTS_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: at most %d names at once", TOOL_AGENTS_MAX
        );
    }
    struct json_value item = json_first(names);
    for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
        struct view *name = &wait.names[wait.name_count++];
        if (!json_as_string(item, name) || !is_name(*name)) {
            return refuse_name(out, error);
        }
    }
    (void)json_as_bool(json_get(arguments, "all"), &wait.for_all);
    int64_t left_ms = context->deadline_ms - clock_monotonic_ms(&context->options.clock);
    int64_t wanted_ms = left_ms;
    (void)json_as_i64(json_get(arguments, "timeout"), &wanted_ms);
    wait.time_ms_max = wanted_ms < left_ms ? wanted_ms : left_ms;
    wait.time_ms_max = wait.time_ms_max < 0 ? 0 : wait.time_ms_max;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, TEXT_BYTES_MAX);
    enum tool_status status = TOOL_ERROR;
    TRY(agents->wait(agents->context, &wait, &status, &text, error));
    return finish(context, status, &text, out, error);
}

const struct tool_row tool_row_spawn = {
    .shown =
        {"spawn",
         "Start another agent on a task of its own; it works while you go on.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("task", "what to do and what to report, in full: it sees nothing else") ", " STRING_PROPERTY(
                 "name", "how you call it"
             ) ", " STRING_PROPERTY("role", "kind of agent") ", " TYPED_PROPERTY("fork", "boolean", "it knows this conversation"),
             "\"task\""
         ),
         TOOL_READS | TOOL_WRITES | TOOL_EXECUTES,
         false},
    .run = run_spawn,
    .is_possible = is_possible,
};

const struct tool_row tool_row_message = {
    .shown =
        {"message",
         "Send a message to an agent; it reads it before its next step.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("name", "the agent") ", " STRING_PROPERTY("message", "the text"),
             "\"name\", \"message\""
         ),
         TOOL_READS,
         false},
    .run = run_message,
    .is_possible = is_possible,
};

const struct tool_row tool_row_wait = {
    .shown =
        {"wait",
         "Wait until one of your agents has ended, and get its result.",
         OBJECT_SCHEMA(
             "\"names\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, "
             "\"description\": \"whom to wait for, anyone when left out\"}, " TYPED_PROPERTY(
                 "all", "boolean", "until all of them have ended"
             ) ", " TYPED_PROPERTY("timeout", "integer", "milliseconds"),
             ""
         ),
         TOOL_READS,
         false},
    .run = run_wait,
    .is_possible = is_possible,
};
