/* The real engine and the real tools behind the tables of loop.h. */
#include "loop.h"
#include "tools/tool_mcp.h"

static result
port_generate(void *context, const struct generation_request *request, struct error *error) {
    return engine_generate(context, request, error);
}

static void port_cancel(void *context, uint64_t sequence) {
    engine_cancel(context, sequence);
}

static void
port_tell(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms) {
    engine_sequence_tell(context, sequence, event, estimate_ms);
}

static void port_cache_trouble(void *context, char *out, size_t bytes) {
    struct engine_cache_status status;
    engine_cache_status(context, &status);
    (void)snprintf(out, bytes, "%s", status.trouble); // cut where it is too long
}

static bool port_next_event(void *context, struct engine_event *out) {
    return engine_next_event(context, out);
}

static bool port_watch(void *context, int64_t stuck_ms, struct engine_stuck *out) {
    return engine_watch(context, stuck_ms, out);
}

static void port_statistics(void *context, struct engine_statistics *out) {
    engine_statistics(context, out);
}

static int32_t port_length(void *context, uint64_t sequence) {
    return engine_sequence_length(context, sequence);
}

static result port_create(void *context, uint64_t *out, struct error *error) {
    return engine_sequence_create(context, out, error);
}

static result port_fork(void *context, uint64_t parent, uint64_t *out, struct error *error) {
    return engine_sequence_fork(context, parent, out, error);
}

static void port_destroy(void *context, uint64_t sequence) {
    engine_sequence_destroy(context, sequence);
}

struct engine_ports engine_ports_of(struct engine *engine) {
    return (struct engine_ports){
        .context = engine,
        .generate = port_generate,
        .cancel = port_cancel,
        .tell = port_tell,
        .cache_trouble = port_cache_trouble,
        .next_event = port_next_event,
        .watch = port_watch,
        .statistics = port_statistics,
        .length = port_length,
        .create = port_create,
        .fork = port_fork,
        .destroy = port_destroy,
    };
}

static result port_tool_call(
    void *context,
    struct view name,
    struct view arguments,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    tool_context_limit_time(context, time_ms_max);
    return tool_call(context, name, arguments, out, error);
}

struct file_list {
    void (*file)(void *context, struct view path);
    void *context;
};

static void file_came(void *context, const struct tool_file_read *file) {
    const struct file_list *list = context;
    list->file(list->context, view_of_text(file->path));
}

static void port_tool_files(
    void *context, void (*file)(void *file_context, struct view path), void *file_context
) {
    struct file_list list = {file, file_context};
    tool_context_ledger(context, file_came, &list);
}

static struct view port_tool_todo(void *context) {
    return tool_context_todo(context);
}

static bool port_tool_has_output(void *context, struct view locator) {
    return tool_context_has_output(context, locator);
}

static void port_tool_cancel(void *context) {
    tool_cancel(context);
}

static void port_tool_renew(void *context) {
    tool_cancel_end(context);
}

static void port_tool_settle(void *context) {
    tool_context_stop_processes(context);
}

static result port_tool_subject(
    void *context,
    struct view name,
    struct view arguments,
    struct tool_subject *out,
    struct error *error
) {
    return tool_subject_find(context, name, arguments, out, error);
}

static result port_tool_overwrite(
    void *context,
    struct view name,
    struct view arguments,
    struct tool_overwrite *out,
    struct error *error
) {
    return tool_overwrite_find(context, name, arguments, out, error);
}

struct tool_ports tool_ports_of(struct tool_context *context) {
    return (struct tool_ports){
        .context = context,
        .call = port_tool_call,
        .cancel = port_tool_cancel,
        .renew = port_tool_renew,
        .settle = port_tool_settle,
        .subject = port_tool_subject,
        .overwrite = port_tool_overwrite,
        .files = port_tool_files,
        .has_output = port_tool_has_output,
        .todo = port_tool_todo,
    };
}
