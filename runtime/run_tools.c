/* See run_tools.h. */
#include "run_tools.h"

#include "http_client.h"
#include "network_rules.h"
#include "proxy.h"

#define INSTRUCTIONS_CONTEXT_PART 4 /* of the context is the most that they take */
#define INSTRUCTIONS_ROUNDS_MAX   8

/* ---- instructions --------------------------------------------------------------------------- */

static result
count_tokens(const struct run_host *host, struct view text, size_t *out, struct error *error) {
    CLEANUP(token_list_deinit) struct token_list tokens;
    token_list_init(&tokens, SIZE_MAX / sizeof(int32_t));
    TRY(tokenizer_encode(host->engine.tokenizer, text, TOKENIZER_MARKERS_OFF, &tokens, error));
    *out = tokens.count;
    return OK;
}

/* What is told may take a part of the context. How many bytes that is depends on the text: where it is
 * too much it is read again, shorter by as much. */
static result load_instructions(
    struct run_host *host,
    const struct run_settings *settings,
    struct instructions_options *options,
    struct error *error
) {
    size_t tokens_max = (size_t)host->engine.info.context_max / INSTRUCTIONS_CONTEXT_PART;
    for (unsigned round = 1;; round++) {
        size_t tokens = 0;
        TRY(instructions_load(options, &host->instructions, error));
        struct view text = buffer_view(&host->instructions.text);
        if (settings->record != NULL) { /* its text is the one that it began with */
            return OK;
        }
        TRY(count_tokens(host, text, &tokens, error));
        if (tokens <= tokens_max) {
            break;
        }
        size_t bytes = options->text_bytes_max > 0 ? options->text_bytes_max : text.length;
        double part = (double)tokens_max / (double)tokens;
        options->text_bytes_max = 1 + (size_t)((double)bytes * part * 15 / 16);
        if (round == INSTRUCTIONS_ROUNDS_MAX) { /* a context of a few words */
            options->bytes_max = 0;
            options->skill_directory_count = 0;
        }
        instructions_deinit(&host->instructions);
    }
    if (options->text_bytes_max > 0) {
        char line[160];
        int length = snprintf(
            line,
            sizeof line,
            "instructions are cut to %zu bytes, a quarter of the context of %d tokens",
            host->instructions.text.length,
            host->engine.info.context_max
        );
        ASSERT(length > 0 && (size_t)length < sizeof line);
        run_host_say(host, RUN_NOTE, view_of_text(line));
    }
    return OK;
}

result run_tools_read_instructions(
    struct run_host *host, const struct run_settings *settings, struct error *error
) {
    const struct config *config = settings->config;
    struct instructions_options options = {
        .workspace = buffer_text(&settings->workspace),
        .user_directory = config->user_directory,
        .file_names = config->instructions_files.items,
        .file_name_count = config->instructions_files.count,
        .bytes_max = (size_t)config->instructions_max_bytes,
        .skill_directories = config->skills_directories.items,
        .skill_directory_count = config->skills_directories.count,
    };
    TRY(load_instructions(host, settings, &options, error));
    const struct instructions *read = &host->instructions;
    for (size_t i = 0; i < read->note_count; i++) {
        run_host_say(host, RUN_NOTE, view_of_text(read->notes[i]));
    }
    buffer_init(&host->system, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_text(&host->system, RUN_SYSTEM_TEXT, error));
    if (read->text.length == 0) {
        return OK; /* the very bytes that the bundled model was trained with */
    }
    TRY(buffer_append_text(&host->system, "\n\n", error));
    return buffer_append(&host->system, buffer_view(&read->text), error);
}

/* Skills outside of the workspace are seen by commands, at the same place; not where the sandbox
 * would refuse every command for it. */
static result bind_skills(struct run_host *host, struct error *error) {
    const struct instructions *read = &host->instructions;
    host->read_only = calloc(read->skill_root_count + 1, sizeof *host->read_only);
    if (host->read_only == NULL) {
        FAIL(error, MEMORY, "no memory for %zu skill directories", read->skill_root_count);
    }
    host->policy.read_only_is_own = true;
    for (size_t i = 0; i < read->skill_root_count; i++) {
        const char *const root[] = {read->skill_roots[i]};
        struct sandbox_policy trial = host->policy;
        struct error why = {0};
        trial.read_only = root;
        trial.read_only_count = 1;
        if (is_ok(sandbox_check_workspace(host->sandbox, &trial, &why))) {
            host->read_only[host->policy.read_only_count++] = root[0];
        } else {
            run_host_say(host, RUN_NOTE, view_of_text(why.message));
        }
    }
    host->policy.read_only = host->read_only;
    return OK;
}

/* ---- network -------------------------------------------------------------------------------- */

/* Thread: a connection's, or that of a fetch. */
static void network_decided(void *context, const struct network_decision *decision) {
    struct run_host *host = context;
    char subject[NETWORK_HOST_BYTES + 16];
    int length = snprintf(
        subject,
        sizeof subject,
        "%s:%u",
        decision->host[0] != '\0' ? decision->host : "?",
        decision->port
    );
    ASSERT(length > 0 && (size_t)length < sizeof subject);
    loop_decided(
        host->loop,
        &(struct loop_decision){
            .is_allowed = decision->is_allowed,
            .kind = "network",
            .subject = subject,
            .decider = "rule",
            .reason = decision->is_allowed ? decision->method : decision->reason,
        }
    );
}

static result
open_network(struct run_host *host, const struct run_settings *settings, struct error *error) {
    const struct config_list *list = &settings->config->network_allow;
    if (list->count == 0) {
        return OK;
    }
    TRY_NOTE(
        error,
        network_rules_create(&host->network, list->items, list->count, error),
        "network.allow"
    );
    const struct proxy_options proxy = {
        .rules = host->network, .decided = network_decided, .decided_context = host};
    const struct http_client_options client = {
        .rules = host->network, .decided = network_decided, .decided_context = host};
    TRY(proxy_open(&host->proxy, &proxy, error));
    host->policy.network_socket = proxy_socket(host->proxy);
    return http_client_open(&host->client, &client, error);
}

bool run_tools_url_is_listed(void *context, struct view url) {
    const struct run_host *host = context;
    static const struct {
        const char *scheme;
        uint16_t port;
    } schemes[] = {{"https://", 443}, {"http://", 80}};
    for (size_t i = 0; i < COUNT_OF(schemes); i++) {
        if (!view_starts_with(url, view_of_text(schemes[i].scheme))) {
            continue;
        }
        struct view rest = view_slice(url, strlen(schemes[i].scheme), SIZE_MAX);
        size_t end = 0;
        while (end < rest.length && strchr("/?#", rest.data[end]) == NULL) {
            end++;
        }
        struct network_host named;
        result parsed = network_host_parse(view_slice(rest, 0, end), schemes[i].port, &named, NULL);
        return is_ok(parsed) && network_rules_allow(host->network, &named);
    }
    return false;
}

/* ---- tools ---------------------------------------------------------------------------------- */

result run_tools_count_prompt(
    const struct run_host *host,
    const struct run_settings *settings,
    const struct tool_declarations *declarations,
    size_t *out,
    struct error *error
) {
    const struct chat_message messages[] = {
        {.role = CHAT_SYSTEM,
         .content = buffer_view(&host->system),
         .tools = declarations->tools,
         .tool_count = declarations->count},
        {.role = CHAT_USER, .content = buffer_view(&settings->task)},
    };
    return prompt_count(host->encoder, messages, COUNT_OF(messages), settings->effort, out, error);
}

result run_tools_open_constraint(
    struct run_host *host,
    const struct run_settings *settings,
    const struct tool_declarations *declarations,
    struct error *error
) {
    if (!settings->generation.constrains_tools) {
        return OK;
    }
    const struct constraint_options options = {
        .tools = declarations->tools,
        .tool_count = declarations->count,
        .choice = CONSTRAINT_TOOLS_AUTO,
        .thinking = settings->effort != CHAT_EFFORT_OFF,
    };
    const struct grammar_vocabulary *vocabulary = NULL;
    if (host->engine.engine == NULL) {
        FAIL(error, UNSUPPORTED, "--constrain-tools: this engine has no vocabulary of grammars");
    }
    TRY(engine_vocabulary(host->engine.engine, &vocabulary, error));
    TRY_NOTE(
        error,
        constraint_create(&host->constraint, vocabulary, &options, error),
        "--constrain-tools"
    );
    return OK;
}

/* Thread: that of a call, while nobody adds a rule. */
static bool hides(void *context, struct view tool, struct view path) {
    const struct run_host *host = context;
    return permission_hides(host->permission, tool, path);
}

/* A hook that is missing would be noticed at its first call, which it then refuses. */
static void say_hooks(struct run_host *host) {
    CLEANUP(hook_report_deinit) struct hook_report report = {0};
    hooks_check(&host->hooks, &report);
    for (size_t i = 0; i < report.note_count; i++) {
        run_host_say(host, RUN_WARNING, view_of_text(report.notes[i]));
    }
}

struct tool_context_options
run_tools_context_options(struct run_host *host, const struct run_settings *settings) {
    return (struct tool_context_options){
        .workspace = buffer_text(&settings->workspace),
        .sandbox = host->sandbox,
        .policy = &host->policy,
        .set = settings->tools,
        .declared = settings->declared_tools,
        .dialect = settings->dialect,
        .output = loop_tool_output,
        .output_context = host->loop,
        .clock = clock_real(),
        .fetch = host->client != NULL ? http_client_fetch : NULL,
        .fetch_context = host->client,
        .hides = hides,
        .hides_context = host,
    };
}

struct permission_options run_tools_permission_options(const struct run_settings *settings) {
    return (struct permission_options){
        .policy = settings->config->policy,
        .rules = settings->config->rules.items,
        .rule_count = settings->config->rules.count,
    };
}

result
run_tools_open(struct run_host *host, const struct run_settings *settings, struct error *error) {
    TRY(bind_skills(host, error));
    TRY(open_network(host, settings, error));
    const struct tool_context_options options = run_tools_context_options(host, settings);
    const struct permission_options permission = run_tools_permission_options(settings);
    TRY(permission_create(&host->permission, &permission, error));
    TRY(tool_context_create(&host->tools, &options, error));
    host->hooks = (struct hooks){settings->config, host->sandbox, &host->policy, NULL};
    say_hooks(host);
    TRY(tool_declarations_make(
        host->tools, settings->dialect, settings->declared_tools, &host->declarations, error
    ));
    bool waits_for_servers = !settings->is_swarm && settings->config->mcp.count > 0;
    return waits_for_servers
               ? OK
               : run_tools_open_constraint(host, settings, &host->declarations, error);
}

void run_tools_close(struct run_host *host) {
    tool_context_destroy(host->tools);
    permission_destroy(host->permission);
    tool_declarations_deinit(&host->declarations);
    tool_declarations_deinit(&host->prepared);
    buffer_deinit(&host->server_lines);
    free(host->server_starts);
    host->server_starts = NULL;
    http_client_close(host->client);
    proxy_close(host->proxy);
    network_rules_destroy(host->network);
    free(host->read_only);
    buffer_deinit(&host->system);
    instructions_deinit(&host->instructions);
    host->tools = NULL;
    host->permission = NULL;
    host->client = NULL;
    host->proxy = NULL;
    host->network = NULL;
    host->read_only = NULL;
    host->policy.network_socket = NULL;
    host->policy.read_only = NULL;
    host->policy.read_only_count = 0;
}
