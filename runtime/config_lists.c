/* Rules, servers, hooks and hosts of a configuration. */
#include "config_internal.h"
#include "network_rules.h"

#include <strings.h>

#define SERVERS_MAX    32
#define HOOKS_MAX      32
#define NAME_BYTES_MAX 48

static result take_items(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    enum json_type type,
    size_t count_max,
    size_t item_bytes,
    void **out,
    struct error *error
) {
    if (json_type(value) != type || json_count(value) > count_max) {
        return config_wrong(
            layer,
            value,
            key,
            error,
            "wants %s of at most %zu entries",
            type == JSON_ARRAY ? "a list" : "an object",
            count_max
        );
    }
    return config_allocate(layer->memory, (json_count(value) + 1) * item_bytes, out, error);
}

/* ---- rules ---------------------------------------------------------------------------------- */

static result take_rule(
    const struct config_layer *layer,
    struct json_value item,
    const char *key,
    struct permission_rule *out,
    struct error *error
) {
    static const char *const names[] = {"tool", "pattern", "action"};
    struct view action = {NULL, 0};
    struct error why = {0};
    CLEANUP(buffer_deinit) struct buffer origin = {0};
    TRY(config_check_members(layer, item, key, names, COUNT_OF(names), error));
    out->tool = "*";
    out->pattern = "";
    if (json_type(json_get(item, "tool")) != JSON_ABSENT) {
        TRY(config_take_text(layer, json_get(item, "tool"), key, &out->tool, error));
    }
    if (json_type(json_get(item, "pattern")) != JSON_ABSENT) {
        TRY(config_take_text(layer, json_get(item, "pattern"), key, &out->pattern, error));
    }
    if (!json_as_string(json_get(item, "action"), &action) ||
        !permission_action_parse(action, &out->action)) {
        return config_wrong(
            layer, item, key, error, "has a rule whose \"action\" is none of allow, ask, deny"
        );
    }
    if (is_failed(permission_rule_check(out, &why))) {
        return config_wrong(
            layer, item, key, error, "has a rule that says nothing: %s", why.message
        );
    }
    TRY(config_take_tool(layer, item, key, &out->tool, error));
    out->is_project = layer->source == CONFIG_BY_PROJECT;
    const struct config_origin place = config_origin_of(layer, item);
    buffer_init(&origin, 2 * CONFIG_TEXT_BYTES_MAX);
    TRY(config_origin_describe(&place, &origin, error));
    return config_copy(layer->memory, buffer_view(&origin), &out->origin, error);
}

result config_take_rules(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    void *out,
    struct error *error
) {
    void *rules = NULL;
    TRY(take_items(
        layer,
        value,
        key,
        JSON_ARRAY,
        CONFIG_ITEMS_MAX,
        sizeof(struct permission_rule),
        &rules,
        error
    ));
    ASSERT(rules != NULL);
    struct config_rules *list = out;
    size_t index = 0;
    for (struct json_value item = json_first(value); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        TRY(take_rule(layer, item, key, (struct permission_rule *)rules + index++, error));
    }
    *list = (struct config_rules){.items = rules, .count = index};
    return OK;
}

/* ---- servers -------------------------------------------------------------------------------- */

static bool is_plain_name(struct view name) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    for (size_t i = 0; i < name.length; i++) {
        if (name.data[i] == '\0' || strchr(letters, name.data[i]) == NULL) {
            return false;
        }
    }
    /* "mcp__A__B" would not say where the server's name ends */
    return name.length > 0 && name.length <= NAME_BYTES_MAX &&
           view_find(name, view_of_text("__"), 0) == SIZE_MAX;
}

/* An object of texts to "NAME=VALUE". */
static result take_environment(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
) {
    void *items = NULL;
    TRY(take_items(
        layer, value, key, JSON_OBJECT, CONFIG_ITEMS_MAX, sizeof *out->items, &items, error
    ));
    const char **texts = items;
    size_t index = 0;
    for (struct json_value item = json_first(value); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        struct view name = json_name(item);
        const char *text = NULL;
        CLEANUP(buffer_deinit) struct buffer entry = {0};
        buffer_init(&entry, 2 * CONFIG_TEXT_BYTES_MAX);
        bool is_digit = name.length > 0 && name.data[0] >= '0' && name.data[0] <= '9';
        if (is_digit || memchr(name.data, '-', name.length) != NULL || !is_plain_name(name)) {
            return config_wrong(
                layer, item, key, error, "has an environment with a name that is none"
            );
        }
        TRY(config_take_text(layer, item, key, &text, error));
        TRY(buffer_append_format(&entry, error, "%.*s=%s", VIEW_ARGUMENTS(name), text));
        TRY(config_copy(layer->memory, buffer_view(&entry), &texts[index++], error));
    }
    *out = (struct config_list){.items = texts, .count = index};
    return OK;
}

static result take_server(
    const struct config_layer *layer,
    struct json_value item,
    const char *key,
    struct config_server *out,
    struct error *error
) {
    static const char *const names[] = {
        "command", "env", "trusted", "timeout_ms", "read_only", "directories"};
    struct json_value directories = json_get(item, "directories");
    struct json_value environment = json_get(item, "env");
    struct json_value trusted = json_get(item, "trusted");
    struct json_value timeout = json_get(item, "timeout_ms");
    struct json_value read_only = json_get(item, "read_only");
    if (!is_plain_name(json_name(item))) {
        return config_wrong(
            layer,
            item,
            key,
            error,
            "has a server whose name is not 1 to %d letters, digits, - and single _",
            NAME_BYTES_MAX
        );
    }
    TRY(config_check_members(layer, item, key, names, COUNT_OF(names), error));
    TRY(config_copy(layer->memory, json_name(item), &out->name, error));
    TRY(config_take_texts(layer, json_get(item, "command"), key, &out->command, error));
    if (out->command.count == 0) {
        return config_wrong(layer, item, key, error, "has a server without a command");
    }
    if (json_type(environment) != JSON_ABSENT) {
        TRY(take_environment(layer, environment, key, &out->environment, error));
    }
    if (json_type(read_only) != JSON_ABSENT) {
        TRY(config_take_texts(layer, read_only, key, &out->read_only, error));
    }
    if (json_type(directories) != JSON_ABSENT) {
        TRY(config_take_paths(layer, directories, key, &out->directories, error));
    }
    if (json_type(trusted) != JSON_ABSENT && !json_as_bool(trusted, &out->is_trusted)) {
        return config_wrong(layer, trusted, key, error, "wants true or false for \"trusted\"");
    }
    if (out->is_trusted && layer->source == CONFIG_BY_PROJECT) {
        return config_wrong(
            layer,
            trusted,
            key,
            error,
            "cannot be \"trusted\" in a project's file, only in the user's"
        );
    }
    out->timeout_ms = CONFIG_MCP_MS_DEFAULT;
    if (json_type(timeout) != JSON_ABSENT) {
        TRY(config_take_integer(
            layer, timeout, "mcp timeout_ms", 1, CONFIG_MCP_MS_MAX, &out->timeout_ms, error
        ));
    }
    out->origin = config_origin_of(layer, item);
    return OK;
}

result config_take_servers(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    void *out,
    struct error *error
) {
    void *servers = NULL;
    TRY(take_items(
        layer, value, key, JSON_OBJECT, SERVERS_MAX, sizeof(struct config_server), &servers, error
    ));
    ASSERT(servers != NULL);
    struct config_servers *list = out;
    size_t index = 0;
    for (struct json_value item = json_first(value); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        TRY(take_server(layer, item, key, (struct config_server *)servers + index++, error));
    }
    *list = (struct config_servers){.items = servers, .count = index};
    return OK;
}

/* ---- hooks ---------------------------------------------------------------------------------- */

/* Among the system's programs, which the sandbox shows anyway, or where it shows no more than hooks:
 * below .hearth of a project, which commands cannot write, below hooks/ beside the user's file. */
static bool is_hook_place(const struct config_layer *layer, const char *path) {
    const char *folder =
        layer->source == CONFIG_BY_PROJECT ? CONFIG_PROJECT_HOOKS : CONFIG_USER_HOOKS;
    size_t length = strlen(layer->directory);
    bool is_below = config_is_below(path, layer->directory) && path[length] == '/';
    return config_is_below(path, "/usr") || config_is_below(path, "/bin") ||
           (is_below && config_is_below(path + length + 1, folder));
}

static result take_hook_command(
    const struct config_layer *layer,
    struct json_value command,
    const char *key,
    struct config_hook *out,
    struct error *error
) {
    struct json_value program = command;
    if (json_type(command) == JSON_ARRAY) {
        program = json_first(command);
        struct config_list words = {NULL, 0};
        TRY(config_take_texts(layer, command, key, &words, error));
        if (words.count > 0) {
            out->arguments = (struct config_list){words.items + 1, words.count - 1};
        }
    }
    if (json_type(program) != JSON_STRING) {
        return config_wrong(
            layer,
            command,
            key,
            error,
            "wants a \"command\": the path of a program, or a list with it"
        );
    }
    struct view text = {NULL, 0};
    bool is_system =
        json_as_string(program, &text) && (view_starts_with(text, view_of_text("/usr/")) ||
                                           view_starts_with(text, view_of_text("/bin/")));
    struct config_layer anywhere =
        *layer; /* what is outside is refused below, in words of its own */
    anywhere.source = is_system ? CONFIG_BY_USER : layer->source;
    TRY(config_take_path(&anywhere, program, key, &out->command, error));
    if (!is_hook_place(layer, out->command)) {
        return config_wrong(
            layer,
            program,
            key,
            error,
            "names '%.120s', which is neither below %.120s/%s nor a program of the system",
            out->command,
            layer->directory,
            layer->source == CONFIG_BY_PROJECT ? CONFIG_PROJECT_HOOKS : CONFIG_USER_HOOKS
        );
    }
    return OK;
}

static result take_hook(
    const struct config_layer *layer,
    struct json_value item,
    const char *key,
    struct config_hook *out,
    struct error *error
) {
    static const char *const names[] = {"command", "tool", "timeout_ms"};
    struct json_value tool = json_get(item, "tool");
    struct json_value timeout = json_get(item, "timeout_ms");
    struct error why = {0};
    TRY(config_check_members(layer, item, key, names, COUNT_OF(names), error));
    TRY(take_hook_command(layer, json_get(item, "command"), key, out, error));
    out->tool = "*";
    if (json_type(tool) != JSON_ABSENT) {
        TRY(config_take_text(layer, tool, key, &out->tool, error));
    }
    const struct permission_rule rule = {.tool = out->tool, .pattern = ""};
    if (is_failed(permission_rule_check(&rule, &why))) {
        return config_wrong(
            layer, tool, key, error, "has a \"tool\" that is none: %s", why.message
        );
    }
    TRY(config_take_tool(layer, tool, key, &out->tool, error));
    out->timeout_ms = CONFIG_HOOK_MS_DEFAULT;
    if (json_type(timeout) != JSON_ABSENT) {
        TRY(config_take_integer(
            layer, timeout, "hooks timeout_ms", 1, CONFIG_HOOK_MS_MAX, &out->timeout_ms, error
        ));
    }
    out->origin = config_origin_of(layer, item);
    return OK;
}

result config_take_hooks(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    void *out,
    struct error *error
) {
    void *hooks = NULL;
    TRY(take_items(
        layer, value, key, JSON_ARRAY, HOOKS_MAX, sizeof(struct config_hook), &hooks, error
    ));
    ASSERT(hooks != NULL);
    struct config_hooks *list = out;
    size_t index = 0;
    for (struct json_value item = json_first(value); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        TRY(take_hook(layer, item, key, (struct config_hook *)hooks + index++, error));
    }
    *list = (struct config_hooks){.items = hooks, .count = index};
    return OK;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

result config_check_host(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    const char *host,
    struct error *error
) {
    CLEANUP(network_rules_cleanup) struct network_rules *rules = NULL;
    struct error why = {0};
    result made = network_rules_create(&rules, &host, 1, &why);
    if (made.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "no memory for the configuration");
    }
    return is_ok(made) ? OK : config_wrong(layer, at, key, error, "is wrong: %s", why.message);
}

/* Host and port of an entry that network_rules_create accepts; an empty port stands for 80 and 443. */
static void split_host(struct view entry, struct view *host, struct view *port) {
    size_t colon = entry.length;
    while (colon > 0 && entry.data[colon - 1] != ':' && entry.data[colon - 1] != ']') {
        colon--;
    }
    bool has_port = colon > 0 && entry.data[colon - 1] == ':';
    *host = view_slice(entry, 0, has_port ? colon - 1 : entry.length);
    *port = view_slice(entry, has_port ? colon : entry.length, entry.length);
}

static bool is_same_port(struct view narrow, struct view wide) {
    uint64_t a = 0;
    uint64_t b = 0;
    if (wide.length == 0) {
        return narrow.length == 0 || (parse_u64(narrow, &a) && (a == 80 || a == 443));
    }
    return parse_u64(narrow, &a) && parse_u64(wide, &b) && a == b;
}

bool config_host_is_covered(const char *entry, const struct config_list *allowed) {
    struct view host;
    struct view port;
    split_host(view_of_text(entry), &host, &port);
    for (size_t i = 0; i < allowed->count; i++) {
        struct view wide;
        struct view wide_port;
        split_host(view_of_text(allowed->items[i]), &wide, &wide_port);
        bool is_suffix = view_starts_with(wide, view_of_text("*."));
        struct view end = is_suffix ? view_slice(wide, 1, wide.length) : wide;
        bool is_long = is_suffix ? host.length > end.length : host.length == end.length;
        bool host_fits = is_long && strncasecmp(
                                        (const char *)host.data + host.length - end.length,
                                        (const char *)end.data,
                                        end.length
                                    ) == 0;
        if (host_fits && is_same_port(port, wide_port)) {
            return true;
        }
    }
    return false;
}
