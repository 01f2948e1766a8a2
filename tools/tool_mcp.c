/* MCP servers of a context: adding them, calling their tools, starting them again. */
#include "tool_mcp_server.h"

#include <signal.h>

#define CALL_BYTES_MAX (2 * TOOL_ARGUMENTS_BYTES_MAX)
#define SERVERS_MAX    ((size_t)32)
#define STRINGS_MAX    ((size_t)512)

struct tool_servers {
    struct mcp_server *items[SERVERS_MAX];
    size_t count;
};

/* ---- one server ----------------------------------------------------------------------------- */

static bool is_server_name(const char *name) {
    size_t length = strlen(name);
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    return length > 0 && length <= TOOL_MCP_NAME_BYTES_MAX && strspn(name, letters) == length &&
           strstr(name, "__") == NULL; // "mcp__A__B" would not say where the name ends
}

/* Copies a list behind the strings that are there, with a null at its end. */
static result copy_list(
    struct mcp_server *server,
    const char *const *list,
    size_t count,
    const char *const **out,
    struct error *error
) {
    if (server->string_count + count + 1 > STRINGS_MAX) {
        FAIL(error, LIMIT, "more than %zu words in its settings", STRINGS_MAX);
    }
    char **begin = &server->strings[server->string_count];
    for (size_t i = 0; i < count; i++) {
        server->strings[server->string_count] = strdup(list[i]);
        if (server->strings[server->string_count] == NULL) {
            FAIL(error, MEMORY, "no memory for its settings");
        }
        server->string_count += 1;
    }
    server->string_count += 1; // stays null
    memcpy(out, &begin, sizeof *out);
    return OK;
}

static result copy_options(
    struct mcp_server *server, const struct tool_mcp_options *options, struct error *error
) {
    server->name = strdup(options->name);
    server->strings = calloc(STRINGS_MAX, sizeof *server->strings);
    if (server->name == NULL || server->strings == NULL) {
        FAIL(error, MEMORY, "no memory for a server");
    }
    server->is_trusted = options->is_trusted;
    server->time_ms_max =
        options->time_ms_max > 0 ? options->time_ms_max : TOOL_MCP_TIME_MS_DEFAULT;
    server->environment_count = options->environment_count;
    server->read_only_count = options->read_only_count;
    server->reading_tool_count = options->reading_tool_count;
    TRY(copy_list(server, options->command, options->command_count, &server->command, error));
    TRY(copy_list(
        server, options->environment, options->environment_count, &server->environment, error
    ));
    TRY(copy_list(server, options->read_only, options->read_only_count, &server->read_only, error));
    return copy_list(
        server, options->reading_tools, options->reading_tool_count, &server->reading_tools, error
    );
}

/* {"roots":[{"uri":"file:///...","name":"workspace"}]} */
static result write_roots(struct mcp_server *server, struct error *error) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
    const char *path =
        server->is_trusted ? server->context->options.workspace : TOOL_WORKSPACE_INSIDE;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, sizeof server->roots - 1);
    TRY(buffer_append_text(&text, "{\"roots\":[{\"uri\":\"file://", error));
    for (; *path != '\0'; path++) {
        unsigned char byte = (unsigned char)*path;
        bool is_plain = strchr(plain, *path) != NULL;
        TRY(is_plain ? buffer_append_byte(&text, byte, error)
                     : buffer_append_format(&text, error, "%%%02X", (unsigned)byte));
    }
    TRY(buffer_append_text(&text, "\",\"name\":\"workspace\"}]}", error));
    memcpy(server->roots, buffer_text(&text), text.length + 1);
    return OK;
}

result mcp_server_create(
    struct tool_context *context,
    const struct tool_mcp_options *options,
    struct mcp_server **out,
    struct error *error
) {
    if (options->name == NULL || !is_server_name(options->name)) {
        FAIL(error, INVALID_INPUT, "the name of a server is letters, digits, - and single _");
    }
    if (options->command_count == 0) {
        FAIL(error, INVALID_INPUT, "it has no command");
    }
    struct mcp_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        FAIL(error, MEMORY, "no memory for a server");
    }
    server->context = context;
    buffer_init(&server->error_line, MCP_LINE_BYTES_MAX);
    mcp_reader_init(&server->reader);
    server->has_mutex = pthread_mutex_init(&server->mutex, NULL) == 0;
    ASSERT(server->has_mutex);
    result copied = copy_options(server, options, error);
    copied = is_ok(copied) ? write_roots(server, error) : copied;
    if (is_failed(copied)) {
        mcp_server_destroy(server);
        return copied;
    }
    *out = server;
    return OK;
}

void mcp_server_destroy(struct mcp_server *server) {
    if (server == NULL) {
        return;
    }
    mcp_server_stop(server, 0);
    mcp_tools_destroy(server);
    mcp_reader_deinit(&server->reader);
    buffer_deinit(&server->error_line);
    for (size_t i = 0; server->strings != NULL && i < server->string_count; i++) {
        free(server->strings[i]);
    }
    free(server->strings);
    free(server->name);
    (void)pthread_mutex_destroy(&server->mutex);
    free(server);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static result
write_call(const char *name, struct json_value arguments, struct buffer *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "name");
    json_write_text(&writer, name);
    json_write_key(&writer, "arguments");
    json_write_value(&writer, arguments); // what the model wrote may have newlines in between
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

/* False: the answer says why the server cannot be called. */
static result make_ready(
    struct mcp_server *server, bool *is_ready, struct tool_result *out, struct error *error
) {
    TRY(mcp_server_check(server, is_ready, error));
    if (*is_ready) {
        return OK;
    }
    struct error why = {0};
    result started = mcp_server_start(server, &why);
    *is_ready = is_ok(started);
    if (*is_ready || started.code == RESULT_MEMORY) {
        return started;
    }
    enum tool_status status = started.code == RESULT_CANCELLED ? TOOL_CANCELLED : TOOL_ERROR;
    return tool_answer(
        out, status, error, "error: the server %s cannot be started: %s", server->name, why.message
    );
}

static result describe_failure(
    struct mcp_server *server,
    enum mcp_end end,
    int64_t limit_ms,
    struct tool_result *out,
    struct error *error
) {
    char words[MCP_WORDS_BYTES];
    if (end == MCP_TIMED_OUT) {
        tool_stopped_text(words, limit_ms);
        return tool_answer(out, TOOL_TIMEOUT, error, "%.64s", words);
    }
    if (end == MCP_CANCELLED) {
        return tool_answer(out, TOOL_CANCELLED, error, "error: cancelled");
    }
    if (end == MCP_LOST) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: the answer of the server %s is too large", server->name
        );
    }
    mcp_server_stop(server, MCP_LAST_WORDS_MS);
    mcp_server_last_words(server, words);
    return tool_answer(
        out, TOOL_ERROR, error, "error: the server %s is gone: %s", server->name, words
    );
}

static result run_server_tool(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct mcp_server *server = context->running->owner;
    const struct mcp_tool *tool = (const struct mcp_tool *)context->running->shown;
    bool is_ready = false;
    TRY(make_ready(server, &is_ready, out, error));
    if (!is_ready) {
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer params = {NULL, 0, 0, 0};
    buffer_init(&params, CALL_BYTES_MAX);
    TRY(write_call(tool->name, arguments, &params, error));
    int64_t now = clock_monotonic_ms(&context->options.clock);
    bool own_is_lower = now + server->time_ms_max < context->deadline_ms;
    int64_t until = own_is_lower ? now + server->time_ms_max : context->deadline_ms;
    struct mcp_message answer = {0};
    enum mcp_end end = MCP_ENDED;
    TRY(mcp_server_request(server, "tools/call", buffer_view(&params), until, &end, &answer, error)
    );
    if (end != MCP_ANSWERED) {
        int64_t limit_ms = own_is_lower ? server->time_ms_max : context->time_ms_max;
        return describe_failure(server, end, limit_ms, out, error);
    }
    result done;
    if (answer.kind == MCP_RESULT) {
        done = mcp_result_write(answer.result, context->options.text_bytes_max, out, error);
    } else {
        done = tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: the server %s says: %.*s (%lld)",
            server->name,
            VIEW_ARGUMENTS(answer.error_message),
            (long long)answer.error_code
        );
    }
    mcp_message_deinit(&answer);
    return done;
}

/* ---- the context ---------------------------------------------------------------------------- */

static result add_tools(struct mcp_server *server, struct error *error) {
    struct tool_context *context = server->context;
    for (size_t i = 0; i < server->tool_count; i++) {
        const struct tool_descriptor *shown = &server->tools[i]->shown;
        TRY(tool_context_add(context, shown, run_server_tool, server, error));
    }
    return OK;
}

/* A server on its way into the context. */
struct arrival {
    struct tool_mcp_start *start;
    struct mcp_server *server; /* null: it could not even be made */
    pthread_t thread;
    bool has_thread;
};

static result make_server(struct tool_context *context, struct arrival *arrivals, size_t index) {
    const struct tool_mcp_options *options = &arrivals[index].start->options;
    struct error *error = &arrivals[index].start->error;
    const struct tool_servers *servers = context->servers;
    size_t count = servers->count;
    for (size_t i = 0; i < count + index; i++) {
        const struct mcp_server *other = i < count ? servers->items[i] : arrivals[i - count].server;
        if (other != NULL && options->name != NULL && strcmp(other->name, options->name) == 0) {
            FAIL(error, INVALID_INPUT, "there is a server of this name already");
        }
    }
    if (count + index >= SERVERS_MAX) {
        FAIL(error, LIMIT, "more than %zu servers", SERVERS_MAX);
    }
    if (atomic_load_explicit(&context->cancelled, memory_order_acquire)) {
        FAIL(error, CANCELLED, "cancelled");
    }
    return mcp_server_create(context, options, &arrivals[index].server, error);
}

/* Up to the list of its tools: touches nothing of the context but its options and its cancel. */
static void *start_server(void *argument) {
    struct arrival *arrival = argument;
    struct tool_mcp_start *start = arrival->start;
    struct mcp_server *server = arrival->server;
    int64_t until = clock_monotonic_ms(&server->context->options.clock) + TOOL_MCP_START_MS;
    start->status = mcp_server_start(server, &start->error);
    if (is_ok(start->status)) {
        start->status = mcp_tools_list(server, until, &start->error);
    }
    atomic_store_explicit(&start->is_ready, true, memory_order_release);
    return NULL;
}

/* Signals are for the host's other threads. False: there is none to be had. */
static bool create_thread(struct arrival *arrival) {
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    int status = pthread_sigmask(SIG_SETMASK, &all, &old);
    ASSERT(status == 0);
    arrival->has_thread = pthread_create(&arrival->thread, NULL, start_server, arrival) == 0;
    status = pthread_sigmask(SIG_SETMASK, &old, NULL);
    ASSERT(status == 0);
    return arrival->has_thread;
}

/* Its tools, when it has started. */
static void take_server(struct tool_context *context, struct arrival *arrival) {
    struct tool_mcp_start *start = arrival->start;
    if (arrival->has_thread) {
        int status = pthread_join(arrival->thread, NULL);
        ASSERT(status == 0);
    }
    if (is_ok(start->status)) {
        ASSERT(arrival->server != NULL);
        start->status = add_tools(arrival->server, &start->error);
    }
    if (is_ok(start->status)) {
        context->servers->items[context->servers->count++] = arrival->server;
        return;
    }
    const char *name = start->options.name != NULL ? start->options.name : "";
    start->status = error_note(&start->error, start->status, "MCP server '%.32s'", name);
    if (arrival->server != NULL) {
        tool_context_remove(context, arrival->server);
        mcp_server_destroy(arrival->server);
    }
}

static void fail_all(struct tool_mcp_start *starts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        starts[i].status = error_set(
            &starts[i].error, RESULT_MEMORY, 0, __FILE__, __LINE__, "no memory for servers"
        );
        atomic_store_explicit(&starts[i].is_ready, true, memory_order_release);
    }
}

void tool_context_add_servers(
    struct tool_context *context, struct tool_mcp_start *starts, size_t count
) {
    CLEANUP(free_cleanup) struct arrival *arrivals = calloc(count + 1, sizeof *arrivals);
    if (context->servers == NULL) {
        context->servers = calloc(1, sizeof *context->servers);
    }
    if (arrivals == NULL || context->servers == NULL) {
        fail_all(starts, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        arrivals[i].start = &starts[i];
        starts[i].status = make_server(context, arrivals, i);
        if (is_failed(starts[i].status)) {
            atomic_store_explicit(&starts[i].is_ready, true, memory_order_release);
        } else if (count == 1 || !create_thread(&arrivals[i])) {
            (void)start_server(&arrivals[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        take_server(context, &arrivals[i]);
    }
}

result tool_context_add_server(
    struct tool_context *context, const struct tool_mcp_options *options, struct error *error
) {
    struct tool_mcp_start start = {.options = *options};
    tool_context_add_servers(context, &start, 1);
    if (is_failed(start.status) && error != NULL) {
        *error = start.error;
    }
    return start.status;
}

size_t tool_context_server_count(const struct tool_context *context) {
    return context->servers == NULL ? 0 : context->servers->count;
}

void tool_context_server_state(
    const struct tool_context *context, size_t index, struct tool_mcp_state *out
) {
    ASSERT(index < tool_context_server_count(context));
    struct mcp_server *server = context->servers->items[index];
    *out = (struct tool_mcp_state){
        .name = server->name,
        .is_running = mcp_server_is_running(server),
        .is_trusted = server->is_trusted,
        .tool_count = server->tool_count,
        .skipped_count = server->skipped_count,
        .start_count = server->starts,
    };
    (void)snprintf(out->server, sizeof out->server, "%s", server->title);
    mcp_server_last_words(server, out->last_words);
}

void tool_servers_stop(struct tool_servers *servers, int64_t grace_ms) {
    for (size_t i = 0; servers != NULL && i < servers->count; i++) {
        mcp_server_ask_to_stop(servers->items[i]);
    }
    for (size_t i = 0; servers != NULL && i < servers->count; i++) {
        mcp_server_stop(servers->items[i], grace_ms);
    }
}

void tool_servers_destroy(struct tool_servers *servers) {
    for (size_t i = 0; servers != NULL && i < servers->count; i++) {
        mcp_server_destroy(servers->items[i]);
    }
    free(servers);
}
