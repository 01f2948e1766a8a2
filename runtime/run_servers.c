/* See run_tools.h. Servers start on a worker; what there is to say of them waits for the loop thread. */
#include "run_tools.h"

#include "tools/tool_mcp.h"
#include <stdarg.h>

#define LINES_BYTES_MAX ((size_t)64 << 10)
#define LINE_IS_NOTE    'n'
#define LINE_IS_WARNING 'w'

/* One line for later; what does not fit is left out. */
PRINTF_LIKE(3, 4)
static void keep(struct run_host *host, char kind, const char *format, ...) {
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut */
    for (char *at = text; *at != '\0'; at++) {
        *at = *at == '\n' ? ' ' : *at;
    }
    result kept = buffer_append_format(&host->server_lines, NULL, "%c%s\n", kind, text);
    result_ignore(kept);
}

static struct tool_mcp_options options_of(const struct config_server *server) {
    return (struct tool_mcp_options){
        .name = server->name,
        .command = server->command.items,
        .command_count = server->command.count,
        .environment = server->environment.items,
        .environment_count = server->environment.count,
        .read_only = server->directories.items,
        .read_only_count = server->directories.count,
        .reading_tools = server->read_only.items,
        .reading_tool_count = server->read_only.count,
        .is_trusted = server->is_trusted,
        .time_ms_max = server->timeout_ms,
    };
}

static void say_start(struct run_host *host, const struct tool_mcp_start *start) {
    const struct tool_mcp_options *server = &start->options;
    if (is_failed(start->status)) {
        bool has_hosts = host->settings->config->network_allow.count > 0;
        keep(
            host,
            LINE_IS_WARNING,
            "without the server %s: %s%s",
            server->name,
            start->error.message,
            server->is_trusted ? ""
            : has_hosts        ? " (it runs in the sandbox, with the hosts of network.allow only)"
                               : " (it runs in the sandbox, without a network: see network.allow "
                                 "and \"trusted\")"
        );
        return;
    }
    if (server->is_trusted) { /* it runs outside of the sandbox: the record says so */
        loop_decided(
            host->loop,
            &(struct loop_decision){
                .is_allowed = true,
                .kind = "server",
                .subject = server->name,
                .decider = "rule",
                .reason = "trusted by the user's configuration: runs outside of the sandbox",
            }
        );
    }
}

static result check_prompt(struct run_host *host, struct error *error) {
    size_t count = 0;
    TRY(run_tools_count_prompt(host, host->settings, &host->prepared, &count, error));
    if (host->record == NULL && count >= (size_t)host->engine.info.context_max) {
        FAIL(
            error,
            LIMIT,
            "with the tools of the servers the prompt has %zu tokens, and the context no more than "
            "%d",
            count,
            host->engine.info.context_max
        );
    }
    return OK;
}

static result servers_prepare(void *context, struct error *error) {
    struct run_host *host = context;
    const struct run_settings *settings = host->settings;
    const struct config_servers *servers = &settings->config->mcp;
    if (host->server_starts == NULL) {
        FAIL(error, MEMORY, "no memory for %zu servers", servers->count);
    }
    tool_context_add_servers(host->tools, host->server_starts, servers->count);
    for (size_t i = 0; i < servers->count; i++) {
        say_start(host, &host->server_starts[i]);
    }
    for (size_t i = 0; i < tool_context_server_count(host->tools); i++) {
        struct tool_mcp_state state;
        tool_context_server_state(host->tools, i, &state);
        keep(
            host,
            LINE_IS_NOTE,
            "server %s: %zu tools%s%s",
            state.name,
            state.tool_count,
            state.skipped_count > 0 ? ", some left out" : "",
            state.is_trusted ? ", outside of the sandbox" : ""
        );
    }
    TRY(tool_declarations_make(
        host->tools, settings->dialect, settings->declared_tools, &host->prepared, error
    ));
    TRY(check_prompt(host, error));
    return run_tools_open_constraint(host, settings, &host->prepared, error);
}

static const char *servers_wait_for(void *context) {
    struct run_host *host = context;
    const struct config_servers *servers = &host->settings->config->mcp;
    size_t at = 0;
    while (host->server_starts != NULL && at + 1 < servers->count &&
           atomic_load_explicit(&host->server_starts[at].is_ready, memory_order_acquire)) {
        at++;
    }
    return servers->items[at].name;
}

static void servers_ready(void *context, struct run_declared *out) {
    struct run_host *host = context;
    struct view rest = buffer_view(&host->server_lines);
    while (rest.length > 0) {
        size_t end = view_find(rest, view_of_text("\n"), 0);
        enum run_event_type type = rest.data[0] == LINE_IS_WARNING ? RUN_WARNING : RUN_NOTE;
        run_host_say(host, type, view_slice(rest, 1, end - 1));
        rest = view_slice(rest, end + 1, rest.length);
    }
    *out = (struct run_declared){
        .tools = host->prepared.tools,
        .tool_count = host->prepared.count,
        .tools_json = buffer_view(&host->prepared.json),
        .constraint = host->constraint,
    };
}

const struct run_preparation *
run_servers_prepare(struct run_host *host, const struct run_settings *settings) {
    if (settings->config->mcp.count == 0) {
        return NULL;
    }
    const struct config_servers *servers = &settings->config->mcp;
    host->settings = settings;
    host->server_starts = calloc(servers->count, sizeof *host->server_starts);
    for (size_t i = 0; host->server_starts != NULL && i < servers->count; i++) {
        host->server_starts[i].options = options_of(&servers->items[i]);
    }
    buffer_init(&host->server_lines, LINES_BYTES_MAX);
    host->preparation =
        (struct run_preparation){host, servers_prepare, servers_wait_for, servers_ready};
    return &host->preparation;
}
