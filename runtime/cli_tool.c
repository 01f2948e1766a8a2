/* hearth tool, hearth sandbox: what an agent can do, done by hand. */
#include "cli.h"
#include "network_rules.h"
#include "paths.h"
#include "proxy.h"

#include "sandbox/command.h"
#include "sandbox/sandbox.h"
#include "tools/tool.h"

/* ---- tool list ------------------------------------------------------------------------------ */

#define TOOL_OPTIONS                                                                               \
    {"dialect", 0, "NAME", "names and arguments: hearth (default), claude, codex"}, {              \
        "tools", 0, "NAMES", "tools to offer, comma-separated, or all"                             \
    }

static const struct cli_option tool_list_options[] = {
    TOOL_OPTIONS,
    {"json", 0, NULL, "the declarations as a model is given them"},
};

/* What the two options say; without --tools, `set` stays as it is. */
static int
tool_options(const struct cli_arguments *arguments, enum tool_dialect *dialect, uint64_t *set) {
    const char *name = cli_value(arguments, "dialect");
    const char *tools = cli_value(arguments, "tools");
    struct error error = {0};
    if (name != NULL && !tool_dialect_parse(view_of_text(name), dialect)) {
        return cli_usage(arguments, "--dialect %s: it is hearth, claude or codex", name);
    }
    if (tools != NULL && is_failed(tool_set_parse(view_of_text(tools), set, &error))) {
        return cli_usage(arguments, "--tools: %s", error.message);
    }
    return STATUS_DONE;
}

static int tool_list(const struct cli_arguments *arguments) {
    enum tool_dialect dialect = TOOL_DIALECT_HEARTH;
    uint64_t set = tool_set_all();
    int status = tool_options(arguments, &dialect, &set);
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    result made = OK;
    if (cli_has(arguments, "json")) {
        struct json_writer writer;
        json_writer_init(&writer, &text, &error);
        tool_declarations_write(&writer, dialect, set);
        made = json_writer_finish(&writer);
        if (is_ok(made)) {
            made = buffer_append_text(&text, "\n", &error);
        }
    }
    for (size_t i = 0; i < tool_count() && is_ok(made) && !cli_has(arguments, "json"); i++) {
        const struct tool_descriptor *tool = tool_form(i, dialect, set);
        if ((set >> i & 1U) != 0 && tool != NULL) {
            made = buffer_append_format(&text, &error, "%-15s %s\n", tool->name, tool->description);
        }
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return cli_print(buffer_view(&text)) ? STATUS_DONE : STATUS_DATA;
}

const struct cli_command command_tool_list = {
    .path = "tool list",
    .operands = "",
    .summary = "the built-in tools",
    .options = tool_list_options,
    .option_count = COUNT_OF(tool_list_options),
    .run = tool_list,
};

/* ---- tool call ------------------------------------------------------------------------------ */

static const struct cli_option tool_call_options[] = {
    TOOL_OPTIONS,
    {"directory", 'C', "DIR", "the workspace (default: the current directory)"},
    {"max-time", 0, "TIME", "time limit of the call (default: 2m)"},
    {"json", 0, NULL, "the whole result as one JSON object"},
};

static result write_result(
    const struct tool_result *value, bool as_json, struct buffer *out, struct error *error
) {
    if (!as_json) {
        TRY(buffer_append(out, buffer_view(&value->text), error));
        return value->text.length > 0 ? buffer_append_text(out, "\n", error) : OK;
    }
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "status");
    json_write_text(&writer, tool_status_name(value->status));
    json_write_key(&writer, "text");
    json_write_string(&writer, buffer_view(&value->text));
    json_write_key(&writer, "truncated");
    json_write_bool(&writer, value->text_is_truncated);
    json_write_key(&writer, "output_bytes");
    json_write_u64(&writer, value->output_bytes);
    json_write_key(&writer, "command_exit_status");
    if (value->has_exit_status) {
        json_write_i64(&writer, value->exit_status);
    } else {
        json_write_null(&writer);
    }
    json_write_key(&writer, "duration_ms");
    json_write_i64(&writer, value->duration_ms);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static int print_result(const struct tool_result *value, bool as_json) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    result made = write_result(value, as_json, &text, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    if (!cli_print(buffer_view(&text))) {
        return STATUS_DATA;
    }
    return value->status == TOOL_OK ? STATUS_DONE : STATUS_TASK_FAILED;
}

static int call_in_context(const struct cli_arguments *arguments, struct tool_context *context) {
    CLEANUP(tool_result_deinit) struct tool_result value;
    tool_result_init(&value);
    struct error error = {0};
    result called = tool_call(
        context,
        view_of_text(arguments->words[0]),
        view_of_text(arguments->words[1]),
        &value,
        &error
    );
    if (is_failed(called)) {
        return called.code == RESULT_UNSUPPORTED ? cli_fail(STATUS_REFUSED, "%s", error.message)
                                                 : cli_fail_error(called, &error);
    }
    return print_result(&value, cli_has(arguments, "json"));
}

static int call_with_sandbox(
    const struct cli_arguments *arguments, struct sandbox *sandbox, const char *workspace
) {
    int64_t time_ms_max = 0;
    enum tool_dialect dialect = TOOL_DIALECT_HEARTH;
    uint64_t set = 0;
    int status = tool_options(arguments, &dialect, &set);
    if (status != STATUS_DONE) {
        return status;
    }
    size_t index = tool_index(view_of_text(arguments->words[0]));
    if (set == 0) { /* as by default, and the one that is called */
        set = tool_set_default(dialect) | (index == SIZE_MAX ? 0 : UINT64_C(1) << index);
    }
    if (!cli_duration(arguments, "max-time", &time_ms_max)) {
        return STATUS_USAGE;
    }
    const struct sandbox_policy policy = sandbox_policy_default(workspace);
    const struct tool_context_options options = {
        .workspace = workspace,
        .sandbox = sandbox,
        .policy = &policy,
        .dialect = dialect,
        .set = set,
        .strictness = TOOL_STRICT_NEVER, /* nothing was read in a context of one call */
        .time_ms_max = time_ms_max,
        .clock = clock_real(),
    };
    struct tool_context *context = NULL;
    struct error error = {0};
    result created = tool_context_create(&context, &options, &error);
    if (is_failed(created)) {
        return cli_fail_error(created, &error);
    }
    status = call_in_context(arguments, context);
    tool_context_destroy(context);
    return status;
}

static int tool_call_run(const struct cli_arguments *arguments) {
    const char *directory = cli_value(arguments, "directory");
    CLEANUP(buffer_deinit) struct buffer workspace = {0};
    struct error error = {0};
    if (is_failed(path_directory(directory != NULL ? directory : ".", &workspace, &error))) {
        return cli_fail(STATUS_USAGE, "workspace: %s", error.message);
    }
    /* Tools that only look at files do not wait for the machine to be probed. */
    const struct tool_descriptor *tool = tool_find(view_of_text(arguments->words[0]));
    struct sandbox *sandbox = NULL;
    if (tool != NULL && (tool->effects & TOOL_EXECUTES) != 0) {
        result opened = sandbox_open(NULL, &sandbox, &error);
        if (is_failed(opened)) {
            return cli_fail_error(opened, &error);
        }
    }
    int status = call_with_sandbox(arguments, sandbox, buffer_text(&workspace));
    if (sandbox != NULL) {
        sandbox_close(sandbox);
    }
    return status;
}

const struct cli_command command_tool_call = {
    .path = "tool call",
    .operands = "NAME JSON",
    .summary = "call one tool as an agent would",
    .text =
        "Prints what the model would be shown. Exit status 0 when the tool ran, 1 when it could\n"
        "not do what was asked, 3 when this machine cannot confine commands.\n",
    .options = tool_call_options,
    .option_count = COUNT_OF(tool_call_options),
    .words_min = 2,
    .words_max = 2,
    .run = tool_call_run,
};

/* ---- sandbox -------------------------------------------------------------------------------- */

struct sandbox_network {
    struct network_rules *rules;
    struct proxy *proxy;
};

/* Refusals are told as they come; the command itself may hide them. */
static void tell_decision(void *context, const struct network_decision *decision) {
    (void)context;
    if (!decision->is_allowed) {
        (void)fprintf(stderr, "hearth sandbox: network: refused: %s\n", decision->reason);
    }
}

static result
open_network(void *context, const char *hosts, const char **socket_path, struct error *error) {
    struct sandbox_network *network = context;
    TRY(network_rules_parse(&network->rules, view_of_text(hosts), error));
    const struct proxy_options options = {.rules = network->rules, .decided = tell_decision};
    TRY(proxy_open(&network->proxy, &options, error));
    *socket_path = proxy_socket(network->proxy);
    return OK;
}

static int sandbox_run_raw(int argc, char **argv) {
    int status = STATUS_DONE;
    struct error error = {0};
    struct sandbox_network network = {.rules = NULL};
    const struct sandbox_command_network way_out = {open_network, &network};
    result ran = sandbox_command_run(argc, argv, NULL, &way_out, &status, &error);
    proxy_close(network.proxy);
    network_rules_destroy(network.rules);
    return is_failed(ran) ? cli_fail_error(ran, &error) : status;
}

static const struct cli_option sandbox_run_options[] = {
    {"", 'C', "DIR", "the workspace: the only directory the command can change"},
    {"max-time", 0, "S", "seconds of wall clock"},
    {"max-memory", 0, "MIB", "memory"},
    {"max-processes", 0, "N", "processes and threads"},
    {"max-disk", 0, "MIB", "growth of the workspace"},
    {"max-output", 0, "KIB", "output kept, first and last half"},
    {"protect", 0, "PATH", "a path below the workspace that stays read-only; may be repeated"},
    {"network", 0, "HOST[:PORT],...", "hosts to be reached through a proxy; none without it"},
};

const struct cli_command command_sandbox_run = {
    .path = "sandbox run",
    .operands = "-C DIR [OPTION]... -- COMMAND...",
    .summary = "run a command exactly as a tool call does",
    .text =
        "Exit status: the command's own; 128 + N after signal N; 124 out of time; 125 refused:\n"
        "this machine cannot confine, or the launcher failed.\n",
    .options = sandbox_run_options,
    .option_count = COUNT_OF(sandbox_run_options),
    .run_raw = sandbox_run_raw,
};

static int sandbox_file_raw(int argc, char **argv) {
    int status = STATUS_DONE;
    struct error error = {0};
    result ran = sandbox_command_file(argc, argv, &status, &error);
    return is_failed(ran) ? cli_fail_error(ran, &error) : status;
}

const struct cli_command command_sandbox_file = {
    .path = "sandbox file",
    .operands = "read|write|mkdir|rm ROOT PATH",
    .summary = "the functions the file tools use",
    .text = "'write' takes standard input. Exit status: 0 done, 1 refused or failed.\n",
    .run_raw = sandbox_file_raw,
};
