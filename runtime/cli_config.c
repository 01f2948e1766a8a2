/* hearth config: every key with its value and where it came from. */
#include "cli.h"
#include "config.h"
#include "paths.h"

#define OVERRIDES_MAX 64
#define COLUMN_KEY    "%-26s"
/* Behind the key and "[". */
#define LIST_INDENT    "                            "
#define LIST_BYTES_MAX 43 /* what an origin "default" leaves of 80 columns */

#define CONFIG_OPTION                                                                              \
    { "config", 0, "FILE", "the user's file (default: $XDG_CONFIG_HOME/hearth/config.json)" }
#define DIRECTORY_OPTION                                                                           \
    { "directory", 'C', "DIR", "the workspace whose file counts (default: the current directory)" }

#define STATE_OPTION                                                                               \
    { "state", 0, "DIR", "state directory, where it stands what was accepted" }

static const struct cli_option show_options[] = {
    CONFIG_OPTION,
    DIRECTORY_OPTION,
    STATE_OPTION,
    {"no-project", 0, NULL, "leave the project's file out"},
    {"set", 0, "KEY=VALUE", "a value over those of the files; repeatable"},
    {"json", 0, NULL, "one JSON object"},
};

static const struct cli_option accept_options[] = {CONFIG_OPTION, DIRECTORY_OPTION, STATE_OPTION};

static const struct cli_option path_options[] = {
    CONFIG_OPTION,
    DIRECTORY_OPTION,
    {"project", 0, NULL, "the project's file instead of the user's"},
};

/* ---- loading -------------------------------------------------------------------------------- */

static int load_fail(result failed, const struct error *error) {
    /* something that a person wrote, as for hearth run */
    return failed.code == RESULT_INVALID_INPUT ? cli_fail(STATUS_USAGE, "%s", error->message)
                                               : cli_fail_error(failed, error);
}

/* The state directory: that of the option, or of the user's file, or the default. */
static int find_state(const struct cli_arguments *arguments, struct buffer *out) {
    CLEANUP(config_cleanup) struct config *config = NULL;
    struct error error = {0};
    const struct config_options options = {.user_file = cli_value(arguments, "config")};
    result found = config_load(&options, &config, &error);
    if (is_ok(found)) {
        const char *state = cli_value(arguments, "state");
        found = path_state(state != NULL ? state : config->state, false, out, &error);
    }
    return is_failed(found) ? load_fail(found, &error) : STATUS_DONE;
}

/* The configuration of a workspace, or a status that is not STATUS_DONE. */
static int load(
    const struct cli_arguments *arguments,
    struct buffer *state,
    struct buffer *workspace,
    struct config **out
) {
    struct config_override overrides[OVERRIDES_MAX];
    size_t count = 0;
    struct error error = {0};
    const char *directory = cli_value(arguments, "directory");
    if (is_failed(path_directory(directory != NULL ? directory : ".", workspace, &error))) {
        return cli_fail(STATUS_USAGE, "workspace: %s", error.message);
    }
    bool is_shown = arguments->command == &command_config;
    for (const char *text = NULL;
         is_shown && (text = cli_value_at(arguments, "set", count)) != NULL;
         count++) {
        if (count == OVERRIDES_MAX) {
            return cli_usage(arguments, "more than %d --set", OVERRIDES_MAX);
        }
        if (is_failed(config_override_parse(text, "--set", &overrides[count], &error))) {
            return cli_usage(arguments, "%s", error.message);
        }
    }
    int status = find_state(arguments, state);
    if (status != STATUS_DONE) {
        return status;
    }
    const struct config_options options = {
        .user_file = cli_value(arguments, "config"),
        .workspace = buffer_text(workspace),
        .ignores_project = is_shown && cli_has(arguments, "no-project"),
        .trust_state = buffer_text(state),
        .overrides = overrides,
        .override_count = count,
    };
    result loaded = config_load(&options, out, &error);
    return is_failed(loaded) ? load_fail(loaded, &error) : STATUS_DONE;
}

result cli_state(
    const struct cli_arguments *arguments, bool make, struct buffer *out, struct error *error
) {
    const char *given = cli_value(arguments, "state");
    if (given != NULL) {
        return path_state(given, make, out, error);
    }
    const struct config_options user = {.ignores_project = true};
    CLEANUP(config_cleanup) struct config *config = NULL;
    TRY(config_load(&user, &config, error));
    return path_state(config->state, make, out, error);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* What counts where nobody says anything and the value alone does not tell; null: it does. */
static const char *default_words(enum config_key key) {
    static const struct {
        enum config_key key;
        const char *words;
    } rows[] = {
        {CONFIG_MODEL, "(the bundled one)"},
        {CONFIG_EFFORT, "(the model's)"},
        {CONFIG_CONTEXT, "(the model's)"},
        {CONFIG_TOOLS_SET, "(the dialect's)"},
        {CONFIG_TOOLS_DIALECT, "(the model's)"},
        {CONFIG_BUDGET_TIME, "(no limit)"},
        {CONFIG_BUDGET_TOKENS, "(no limit)"},
        {CONFIG_BUDGET_CALLS, "(no limit)"},
        {CONFIG_SWARM_VERIFY, "(none)"},
        {CONFIG_CACHE_DISK, "(16G, or a quarter of what is free)"},
        {CONFIG_CACHE_HOURS, "(72)"},
        {CONFIG_CACHE_WRITES, "(8G)"},
        {CONFIG_CACHE_MEMORY, "(by the memory that is there)"},
        {CONFIG_CACHE_SNAPSHOTS, "(a tenth of the memory)"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (rows[i].key == key) {
            return rows[i].words;
        }
    }
    return NULL;
}

/* A list that is too long for a line has a line for each entry. */
static result put_list(struct view value, struct buffer *out, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY(json_parse(value, NULL, &document, error));
    const char *before = "[";
    for (struct json_value item = json_first(json_root(document)); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        TRY(buffer_append_text(out, before, error));
        TRY(buffer_append(out, json_raw(item), error));
        before = ",\n" LIST_INDENT;
    }
    return buffer_append_text(out, "]", error);
}

static result
put_key(const struct config *config, enum config_key key, struct buffer *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer value;
    struct json_writer writer;
    buffer_init(&value, BUFFER_CEILING_DEFAULT);
    json_writer_init(&writer, &value, error);
    const char *words = config_is_set(config, key) ? NULL : default_words(key);
    config_value_write(config, key, &writer);
    TRY(json_writer_finish(&writer));
    const char *shown = words != NULL ? words : buffer_text(&value);
    TRY(buffer_append_format(out, error, COLUMN_KEY " ", config_key_name(key)));
    if (shown[0] == '[' && strlen(shown) > LIST_BYTES_MAX) {
        TRY(put_list(buffer_view(&value), out, error));
    } else {
        TRY(buffer_append_format(out, error, "%-24s", shown));
    }
    TRY(buffer_append_text(out, "  ", error));
    TRY(config_origin_describe(&config->origins[key], out, error));
    return buffer_append_byte(out, '\n', error);
}

/* Each rule has a place of its own, and their order counts. */
static result put_rules(const struct config *config, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < config->rules.count; i++) {
        const struct permission_rule *rule = &config->rules.items[i];
        TRY(buffer_append_format(
            out,
            error,
            COLUMN_KEY " %s %s%s%s  %s\n",
            "rules",
            permission_action_name(rule->action),
            rule->tool,
            rule->pattern[0] != '\0' ? " " : "",
            rule->pattern,
            rule->origin
        ));
    }
    return OK;
}

static result put_text(const struct config *config, struct buffer *out, struct error *error) {
    TRY(buffer_append_format(
        out,
        error,
        "# user: %s; project: %s%s\n",
        config->user_file != NULL ? config->user_file : "no file",
        config->project_file != NULL ? config->project_file : "no file",
        config->is_trusted ? ", trusted" : ""
    ));
    for (size_t i = 0; i < config->notes.count; i++) {
        TRY(buffer_append_format(out, error, "# %s\n", config->notes.items[i]));
    }
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        bool has_rules = i == CONFIG_RULES && config->rules.count > 0;
        TRY(has_rules ? put_rules(config, out, error)
                      : put_key(config, (enum config_key)i, out, error));
    }
    return OK;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void write_file(struct json_writer *writer, const char *name, const char *path) {
    json_write_key(writer, name);
    if (path != NULL) {
        json_write_text(writer, path);
    } else {
        json_write_null(writer);
    }
}

static void write_origin(struct json_writer *writer, const struct config_origin *origin) {
    static const char *const sources[] = {"default", "user", "project", "option"};
    json_write_object_begin(writer);
    json_write_key(writer, "source");
    json_write_text(writer, sources[origin->source]);
    if (origin->name[0] != '\0') {
        json_write_key(writer, "name");
        json_write_text(writer, origin->name);
    }
    if (origin->line > 0) {
        json_write_key(writer, "line");
        json_write_u64(writer, origin->line);
    }
    json_write_object_end(writer);
}

static result put_json(const struct config *config, struct buffer *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    write_file(&writer, "user_file", config->user_file);
    write_file(&writer, "project_file", config->project_file);
    json_write_key(&writer, "trusted");
    json_write_bool(&writer, config->is_trusted);
    json_write_key(&writer, "values");
    json_write_object_begin(&writer);
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        json_write_key(&writer, config_key_name((enum config_key)i));
        json_write_object_begin(&writer);
        json_write_key(&writer, "value");
        config_value_write(config, (enum config_key)i, &writer);
        json_write_key(&writer, "origin");
        write_origin(&writer, &config->origins[i]);
        json_write_object_end(&writer);
    }
    json_write_object_end(&writer);
    json_write_key(&writer, "notes");
    json_write_array_begin(&writer);
    for (size_t i = 0; i < config->notes.count; i++) {
        json_write_text(&writer, config->notes.items[i]);
    }
    json_write_array_end(&writer);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}

/* "budget" as the object of its keys; false: `name` is no group. */
static bool write_group(const struct config *config, struct view name, struct json_writer *writer) {
    bool is_group = false;
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        enum config_key key = (enum config_key)i;
        if (!config_key_is_in(key, name)) {
            continue;
        }
        if (!is_group) {
            json_write_object_begin(writer);
        }
        is_group = true;
        json_write_key(writer, config_key_name(key) + name.length + 1);
        config_value_write(config, key, writer);
    }
    if (is_group) {
        json_write_object_end(writer);
    }
    return is_group;
}

/* "mcp.files" as the file holds it; null: there is no such server. */
static result write_server(
    const struct config *config,
    struct view name,
    bool *is_found,
    struct json_writer *writer,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text;
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct json_writer all;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    json_writer_init(&all, &text, error);
    config_value_write(config, CONFIG_MCP, &all);
    TRY(json_writer_finish(&all));
    TRY(json_parse(buffer_view(&text), NULL, &document, error));
    for (struct json_value one = json_first(json_root(document)); json_type(one) != JSON_ABSENT;
         one = json_next(one)) {
        if (view_equals(json_name(one), name)) {
            json_write_value(writer, one);
            *is_found = true;
        }
    }
    return OK;
}

/* The value of a key, of all keys of a group, of one server. */
static result put_named(
    const struct config *config,
    struct view name,
    bool *is_found,
    struct buffer *out,
    struct error *error
) {
    static const char servers[] = "mcp.";
    enum config_key key = CONFIG_KEY_COUNT;
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    *is_found = true;
    if (config_key_find(name, &key)) {
        config_value_write(config, key, &writer);
    } else if (!write_group(config, name, &writer)) {
        *is_found = false;
        if (view_starts_with(name, view_of_text(servers))) {
            struct view server = view_slice(name, strlen(servers), name.length);
            TRY(write_server(config, server, is_found, &writer, error));
        }
    }
    if (!*is_found) {
        return OK;
    }
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}

/* ---- commands ------------------------------------------------------------------------------- */

static int show(const struct cli_arguments *arguments) {
    CLEANUP(config_cleanup) struct config *config = NULL;
    CLEANUP(buffer_deinit) struct buffer workspace = {0};
    CLEANUP(buffer_deinit) struct buffer state = {0};
    CLEANUP(buffer_deinit) struct buffer out;
    struct error error = {0};
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    int status = load(arguments, &state, &workspace, &config);
    if (status != STATUS_DONE) {
        return status;
    }
    ASSERT(config != NULL);
    config->state = buffer_text(&state); /* the place that it comes to */
    if (cli_has(arguments, "state")) {
        config->origins[CONFIG_STATE] =
            (struct config_origin){.source = CONFIG_BY_OPTION, .name = "--state"};
    }
    const char *name = arguments->word_count > 0 ? arguments->words[0] : NULL;
    bool is_found = true;
    result made;
    if (name != NULL) {
        made = put_named(config, view_of_text(name), &is_found, &out, &error);
    } else {
        made = cli_has(arguments, "json") ? put_json(config, &out, &error)
                                          : put_text(config, &out, &error);
    }
    if (!is_found && is_ok(made)) {
        const char *nearest = config_key_nearest(view_of_text(name));
        return cli_usage(
            arguments,
            "'%.60s' is not a key%s%s%s",
            name,
            nearest != NULL ? ": did you mean '" : "",
            nearest != NULL ? nearest : "",
            nearest != NULL ? "'?" : ""
        );
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return cli_print(buffer_view(&out)) ? STATUS_DONE : STATUS_DATA;
}

static int accept_file(const struct cli_arguments *arguments) {
    CLEANUP(config_cleanup) struct config *config = NULL;
    CLEANUP(buffer_deinit) struct buffer workspace = {0};
    CLEANUP(buffer_deinit) struct buffer state = {0};
    struct error error = {0};
    int status = load(arguments, &state, &workspace, &config);
    if (status != STATUS_DONE) {
        return status;
    }
    ASSERT(config != NULL);
    const char *directory = buffer_text(&workspace);
    if (!config->is_listed) {
        return cli_fail(
            STATUS_REFUSED,
            "%.300s is not listed under \"trust\" in %.300s",
            directory,
            config->user_file != NULL ? config->user_file : "the user's file"
        );
    }
    result recorded =
        config_trust_record(buffer_text(&state), directory, config->project_digest, &error);
    if (is_failed(recorded)) {
        return cli_fail_error(recorded, &error);
    }
    return cli_fail(
        STATUS_DONE,
        "accepted: %.300s%s",
        directory,
        config->project_file != NULL ? "/" CONFIG_PROJECT_FILE : " without a " CONFIG_PROJECT_FILE
    );
}

static result
put_path(const struct cli_arguments *arguments, struct buffer *out, struct error *error) {
    const char *directory = cli_value(arguments, "directory");
    const char *file = cli_value(arguments, "config");
    if (cli_has(arguments, "project")) {
        TRY(path_directory(directory != NULL ? directory : ".", out, error));
        return buffer_append_text(out, "/" CONFIG_PROJECT_FILE "\n", error);
    }
    if (file != NULL) {
        return buffer_append_format(out, error, "%s\n", file);
    }
    TRY(path_config(out, error));
    return buffer_append_text(out, "/config.json\n", error);
}

static int show_path(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer out = {0};
    struct error error = {0};
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    result made = put_path(arguments, &out, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return cli_print(buffer_view(&out)) ? STATUS_DONE : STATUS_DATA;
}

const struct cli_command command_config = {
    .path = "config",
    .operands = "[KEY]",
    .summary = "show the configuration and where each value came from",
    .text =
        "A value is looked for in the options, in the project's file (.hearth/config.json in the\n"
        "workspace), in the user's, and among the defaults. With KEY its value alone, as JSON; a\n"
        "group (budget) and a server (mcp.NAME) too.\n",
    .options = show_options,
    .option_count = COUNT_OF(show_options),
    .words_max = 1,
    .run = show,
};

const struct cli_command command_config_accept = {
    .path = "config accept",
    .operands = "",
    .summary = "let a trusted project's file count as it is now",
    .text =
        "A directory listed under \"trust\" is trusted with the .hearth/config.json that it had "
        "when\n"
        "it was first used. After a change its rules that allow, hooks, servers and so on do not\n"
        "count until it is accepted. Exit status 3: the directory is not listed.\n",
    .options = accept_options,
    .option_count = COUNT_OF(accept_options),
    .words_max = 0,
    .run = accept_file,
};

const struct cli_command command_config_path = {
    .path = "config path",
    .operands = "",
    .summary = "show where the file of the configuration is, or would be",
    .options = path_options,
    .option_count = COUNT_OF(path_options),
    .words_max = 0,
    .run = show_path,
};
