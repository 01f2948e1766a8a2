/* See run_config.h. */
#include "run_config.h"

#define OVERRIDES_MAX 128

struct overrides {
    struct config_override items[OVERRIDES_MAX];
    size_t count;
};

static int
add(const struct run_settings *settings,
    struct overrides *overrides,
    const struct config_override *override) {
    if (overrides->count == OVERRIDES_MAX) {
        return cli_usage(
            settings->arguments, "more than %d values over the configuration", OVERRIDES_MAX
        );
    }
    overrides->items[overrides->count++] = *override;
    return STATUS_DONE;
}

/* --allow and --deny in their order: the first rule that fits counts. */
static int add_rules(struct run_settings *settings, struct overrides *overrides) {
    const struct cli_arguments *arguments = settings->arguments;
    for (size_t i = 0; i < arguments->given_count; i++) {
        const char *name = arguments->command->options[arguments->given[i].option].name;
        bool is_allow = strcmp(name, "allow") == 0;
        if (!is_allow && strcmp(name, "deny") != 0) {
            continue;
        }
        if (settings->rule_count == RUN_RULES_MAX) {
            return cli_usage(arguments, "more than %d --allow and --deny", RUN_RULES_MAX);
        }
        struct buffer *text = &settings->rules[settings->rule_count++];
        buffer_init(text, 8192);
        struct error error = {0};
        result made = buffer_append_format(
            text, &error, "%s:%s", is_allow ? "allow" : "deny", arguments->given[i].value
        );
        if (is_failed(made)) {
            return cli_fail_error(made, &error);
        }
        const struct config_override override = {
            CONFIG_RULES, buffer_text(text), is_allow ? "--allow" : "--deny"};
        int status = add(settings, overrides, &override);
        if (status != STATUS_DONE) {
            return status;
        }
    }
    return STATUS_DONE;
}

static int add_options(struct run_settings *settings, struct overrides *overrides) {
    static const struct {
        enum config_key key;
        const char *name, *option;
    } options[] = {
        {CONFIG_POLICY, "policy", "--policy"},
        {CONFIG_TOOLS_DIALECT, "dialect", "--dialect"},
    };
    const struct cli_arguments *arguments = settings->arguments;
    struct error error = {0};
    const char *text = NULL;
    for (size_t i = 0; (text = cli_value_at(arguments, "set", i)) != NULL; i++) {
        struct config_override override;
        if (is_failed(config_override_parse(text, "--set", &override, &error))) {
            return cli_usage(arguments, "%s", error.message);
        }
        int status = add(settings, overrides, &override);
        if (status != STATUS_DONE) {
            return status;
        }
    }
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        text = cli_value(arguments, options[i].name);
        const struct config_override override = {options[i].key, text, options[i].option};
        int status = text != NULL ? add(settings, overrides, &override) : STATUS_DONE;
        if (status != STATUS_DONE) {
            return status;
        }
    }
    return STATUS_DONE;
}

static int load(
    struct run_settings *settings,
    const char *workspace,
    const struct overrides *overrides,
    struct config **out
) {
    struct error error = {0};
    const struct config_options options = {
        .user_file = cli_value(settings->arguments, "config"),
        .workspace = workspace,
        .trust_state = workspace != NULL ? buffer_text(&settings->state) : NULL,
        .records_trust = true,
        .overrides = overrides->items,
        .override_count = overrides->count,
    };
    result loaded = config_load(&options, out, &error);
    if (loaded.code == RESULT_INVALID_INPUT) { /* something that a person wrote */
        return cli_fail(STATUS_USAGE, "%s", error.message);
    }
    return is_failed(loaded) ? cli_fail_error(loaded, &error) : STATUS_DONE;
}

int run_config_user(struct run_settings *settings) {
    struct overrides none = {.count = 0};
    return load(settings, NULL, &none, &settings->user_config);
}

int run_config_load(struct run_settings *settings) {
    struct overrides overrides = {.count = 0};
    int status = add_rules(settings, &overrides);
    if (status == STATUS_DONE) {
        status = add_options(settings, &overrides);
    }
    if (status == STATUS_DONE) {
        status = load(settings, buffer_text(&settings->workspace), &overrides, &settings->config);
    }
    return status;
}

/* ---- what is left open ---------------------------------------------------------------------- */

static int apply_tools(struct run_settings *settings) {
    const struct config *config = settings->config;
    const char *dialect =
        config->tools_dialect != NULL ? config->tools_dialect : settings->model_settings.dialect;
    struct error error = {0};
    if (dialect[0] != '\0' && !tool_dialect_parse(view_of_text(dialect), &settings->dialect)) {
        return cli_fail(
            STATUS_USAGE, "the dialect of tools is hearth, claude or codex, not '%.40s'", dialect
        );
    }
    if (cli_has(settings->arguments, "tools")) {
        return STATUS_DONE;
    }
    settings->tools = tool_set_default(settings->dialect);
    if (config->tools_set.count == 0) {
        return STATUS_DONE;
    }
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, BUFFER_CEILING_DEFAULT);
    result made = OK;
    for (size_t i = 0; i < config->tools_set.count && is_ok(made); i++) {
        made = buffer_append_format(
            &names, &error, "%s%s", i > 0 ? "," : "", config->tools_set.items[i]
        );
    }
    if (is_ok(made)) {
        made = tool_set_parse(buffer_view(&names), &settings->tools, &error);
    }
    return is_failed(made) ? cli_fail(STATUS_USAGE, "tools.set: %s", error.message) : STATUS_DONE;
}

static void apply_cache(struct run_settings *settings) {
    const struct config *config = settings->config;
    const struct cli_arguments *arguments = settings->arguments;
    struct cache_settings *cache = &settings->cache;
    const struct {
        const char *option;
        const struct config_size *from;
        uint64_t *to;
    } sizes[] = {
        {"cache", &config->cache_disk, &cache->disk_bytes},
        {"cache-writes", &config->cache_writes, &cache->write_bytes_hour},
        {"cache-memory", &config->cache_memory, &cache->memory_bytes},
        {"snapshots", &config->cache_snapshots, &cache->snapshot_bytes},
    };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        if (!cli_has(arguments, sizes[i].option)) {
            *sizes[i].to = sizes[i].from->is_off ? CACHE_NO_POOL_BYTES : sizes[i].from->bytes;
        }
    }
    if (!cli_has(arguments, "cache")) {
        cache->is_off = config->cache_disk.is_off;
    }
    if (!cli_has(arguments, "cache-hours")) {
        cache->hours = config->cache_hours;
    }
}

int run_config_apply(struct run_settings *settings) {
    const struct config *config = settings->config;
    const struct cli_arguments *arguments = settings->arguments;
    int status = apply_tools(settings);
    if (status == STATUS_DONE && !cli_has(arguments, "backend")) {
        status = backend_choose(config->backend, &settings->backend);
    }
    if (status != STATUS_DONE) {
        return status;
    }
    apply_cache(settings);
    const struct {
        int64_t *to;
        int64_t value;
    } numbers[] = {
        {&settings->context_max, config->context},
        {&settings->time_ms_max, config->budget_time_ms},
        {&settings->tokens_max, config->budget_tokens},
        {&settings->calls_max, config->budget_calls},
    };
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        *numbers[i].to = *numbers[i].to != 0 ? *numbers[i].to : numbers[i].value;
    }
    if (!cli_has(arguments, "compact-at") && config_is_set(config, CONFIG_COMPACTION_AT_PERCENT)) {
        settings->compact_at_percent = config->compaction_at_percent;
    }
    if (!cli_has(arguments, "keep-turns") && config_is_set(config, CONFIG_COMPACTION_KEEP_TURNS)) {
        settings->compact_keep_turns = config->compaction_keep_turns;
    }
    if (settings->record == NULL && !cli_has(arguments, "effort")) {
        settings->effort =
            config_is_set(config, CONFIG_EFFORT) ? config->effort : settings->model_settings.effort;
    }
    return STATUS_DONE;
}
