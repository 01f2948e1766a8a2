/* The context of a workspace and the way from a name and arguments to a result. */
#include "tool_internal.h"
#include "tool_schema.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ARGUMENTS_VALUES_MAX 10000
#define ARGUMENTS_DEPTH_MAX  16

static result parse_schemas(struct tool_context *context, struct error *error) {
    for (size_t i = 0; i < TOOL_COUNT; i++) {
        const struct tool_descriptor *tool = tool_at(i);
        struct view schema = view_of_text(tool->schema);
        TRY_NOTE(
            error,
            json_parse(schema, NULL, &context->schemas[i], error),
            "schema of tool %s",
            tool->name
        );
        TRY_NOTE(
            error,
            tool_schema_check(json_root(context->schemas[i]), error),
            "schema of tool %s",
            tool->name
        );
    }
    return OK;
}

result tool_context_create(
    struct tool_context **out, const struct tool_context_options *options, struct error *error
) {
    ASSERT(options->workspace != NULL && options->clock.monotonic_ms != NULL);
    ASSERT(options->sandbox == NULL || options->policy != NULL);
    CLEANUP(tool_context_cleanup) struct tool_context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        FAIL(error, MEMORY, "tool context: %zu bytes", sizeof *context);
    }
    context->cancel_fd = -1;
    context->options = *options;
    if (context->options.set == 0) {
        context->options.set = TOOL_SET_DEFAULT;
    }
    if (context->options.time_ms_max <= 0) {
        context->options.time_ms_max = TOOL_TIME_MS_DEFAULT;
    }
    if (context->options.text_bytes_max == 0) {
        context->options.text_bytes_max = TOOL_TEXT_BYTES_DEFAULT;
    }
    context->time_ms_max = context->options.time_ms_max;
    context->workspace = strdup(options->workspace);
    if (context->workspace == NULL) {
        FAIL(error, MEMORY, "tool context: path of the workspace");
    }
    context->options.workspace = context->workspace;
    TRY(beneath_open(context->workspace, &context->root, error));
    TRY(parse_schemas(context, error));
    context->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (context->cancel_fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "tool context: eventfd: %s", strerror(code));
    }
    *out = TAKE(context);
    return OK;
}

void tool_context_destroy(struct tool_context *context) {
    if (context == NULL) {
        return;
    }
    fd_cleanup(&context->cancel_fd);
    for (size_t i = 0; i < TOOL_COUNT; i++) {
        json_destroy(context->schemas[i]);
    }
    beneath_close(context->root);
    free(context->workspace);
    free(context);
}

void tool_context_cleanup(struct tool_context **context) {
    tool_context_destroy(*context);
    *context = NULL;
}

void tool_context_limit_time(struct tool_context *context, int64_t time_ms_max) {
    int64_t own = context->options.time_ms_max;
    context->time_ms_max = time_ms_max <= 0 || time_ms_max > own ? own : time_ms_max;
}

void tool_cancel(struct tool_context *context) {
    // The flag is what counts; the descriptor only wakes a call that sleeps. Release pairs with the
    // acquire in tool_should_stop.
    atomic_store_explicit(&context->cancelled, true, memory_order_release);
    int saved = errno; // a signal handler must not change it
    const uint64_t one = 1;
    ssize_t written = write(context->cancel_fd, &one, sizeof one);
    (void)written; // fails only when the counter is full, and then it is readable
    errno = saved;
}

result tool_should_stop(
    struct tool_context *context, struct tool_result *out, bool *stop, struct error *error
) {
    *stop = true;
    if (atomic_load_explicit(&context->cancelled, memory_order_acquire)) {
        return tool_answer(out, TOOL_CANCELLED, error, "error: cancelled");
    }
    if (clock_monotonic_ms(&context->options.clock) >= context->deadline_ms) {
        char line[TOOL_STOPPED_BYTES];
        tool_stopped_text(line, context->time_ms_max);
        return tool_answer(out, TOOL_TIMEOUT, error, "%s", line);
    }
    *stop = false;
    return OK;
}

/* "shell, read, edit, write" */
static result
list_offered(const struct tool_context *context, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < TOOL_COUNT; i++) {
        if ((context->options.set >> i & 1U) != 0) {
            TRY(buffer_append_format(
                out, error, "%s%s", out->length == 0 ? "" : ", ", tool_at(i)->name
            ));
        }
    }
    return OK;
}

static result refuse_unknown(
    const struct tool_context *context,
    struct view name,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer offered = {NULL, 0, 0, 0};
    buffer_init(&offered, 4096);
    TRY(list_offered(context, &offered, error));
    return tool_answer(
        out,
        TOOL_REFUSED,
        error,
        "error: unknown tool: %.*s; the tools are: %s",
        (int)(name.length > 64 ? 64 : name.length),
        (const char *)name.data,
        buffer_text(&offered)
    );
}

static result call_known(
    struct tool_context *context,
    size_t index,
    struct view arguments,
    struct tool_result *out,
    struct error *error
) {
    const char *name = tool_at(index)->name;
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {
        TOOL_ARGUMENTS_BYTES_MAX, ARGUMENTS_VALUES_MAX, ARGUMENTS_DEPTH_MAX};
    struct error why = {0};
    result parsed = json_parse(arguments, &limits, &document, &why);
    if (parsed.code == RESULT_MEMORY) {
        return error_set(error, RESULT_MEMORY, 0, why.file, why.line, "%s", why.message);
    }
    if (is_failed(parsed)) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: the arguments of %s are not valid JSON: %s",
            name,
            why.message
        );
    }
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, TOOL_RESULT_BYTES_MAX);
    bool matches = false;
    struct json_value schema = json_root(context->schemas[index]);
    struct json_value root = json_root(document);
    TRY(tool_schema_match(name, schema, root, &line, &matches, error));
    if (!matches) {
        return tool_answer(out, TOOL_REFUSED, error, "%s", buffer_text(&line));
    }
    bool stop = false;
    TRY(tool_should_stop(context, out, &stop, error));
    return stop ? OK : tool_function(index)(context, root, out, error);
}

result tool_call(
    struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_result *out,
    struct error *error
) {
    tool_result_init(out);
    const struct clock *clock = &context->options.clock;
    out->started_ms = clock_wall_ms(clock);
    int64_t begin_ms = clock_monotonic_ms(clock);
    context->deadline_ms = begin_ms + context->time_ms_max;
    const struct tool_descriptor *tool = tool_find(name);
    size_t index = tool == NULL ? TOOL_COUNT : (size_t)(tool - tool_at(0));
    result status = OK;
    if (tool == NULL || (context->options.set >> index & 1U) == 0) {
        status = refuse_unknown(context, name, out, error);
    } else {
        status = call_known(context, index, arguments, out, error);
    }
    out->duration_ms = clock_monotonic_ms(clock) - begin_ms;
    TRY_NOTE(error, status, "tool %.*s", (int)(name.length > 64 ? 64 : name.length), name.data);
    ASSERT(utf8_is_valid(buffer_view(&out->text)));
    return OK;
}
