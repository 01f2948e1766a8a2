/* Layers of a configuration, one over the other: defaults, the user's file, the project's, options. */
#include "config.h"

#include "agent_history.h"
#include "config_internal.h"
#include "paths.h"
#include "retention.h"
#include "sandbox/beneath.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATHS_BYTES_MAX            ((size_t)2 * PATH_MAX)
#define INSTRUCTIONS_BYTES_DEFAULT ((int64_t)64 << 10)

struct loading {
    const struct config_options *options;
    struct config *config;
    struct config_memory *memory;
    const char *home; /* null: none */
    struct config_layer user, project, given;
    bool is_changed; /* the project's file, since it was accepted */
    const char *notes[CONFIG_NOTES_MAX];
    size_t note_count;
};

static void *field_of(struct config *config, enum config_key key) {
    return (char *)config + config_rows[key].offset;
}

static result note(struct loading *loading, struct error *error, const char *format, ...)
    PRINTF_LIKE(3, 4);

static result note(struct loading *loading, struct error *error, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    if (loading->note_count == CONFIG_NOTES_MAX) {
        return OK; /* a person does not read more */
    }
    return config_copy(
        loading->memory, view_of_text(text), &loading->notes[loading->note_count++], error
    );
}

/* ---- the files ------------------------------------------------------------------------------ */

static result text_of(
    struct loading *loading, const struct buffer *buffer, const char **out, struct error *error
) {
    return config_copy(loading->memory, buffer_view(buffer), out, error);
}

static void layer_begin(
    const struct loading *loading,
    struct config_layer *layer,
    enum config_source source,
    const char *name,
    const char *directory
) {
    *layer = (struct config_layer){
        .source = source,
        .name = name,
        .directory = directory,
        .home = loading->home,
        .memory = loading->memory,
    };
}

static result find_user_file(
    struct loading *loading, const char **file, const char **directory, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer path = {0};
    const char *named = loading->options->user_file;
    *file = NULL;
    *directory = NULL;
    if (named == NULL) {
        result found = path_config(&path, error);
        if (found.code == RESULT_NOT_FOUND) {
            return OK; /* no home: no file */
        }
        TRY(found);
        TRY(text_of(loading, &path, directory, error));
        TRY(buffer_append_text(&path, "/config.json", error));
        return text_of(loading, &path, file, error);
    }
    char resolved[PATH_MAX];
    if (realpath(named, resolved) == NULL) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "--config %.300s: %s", named, strerror(errno));
    }
    TRY(config_copy(loading->memory, view_of_text(resolved), file, error));
    char *slash = strrchr(resolved, '/');
    ASSERT(slash != NULL);
    *slash = '\0';
    return config_copy(
        loading->memory, view_of_text(resolved[0] == '\0' ? "/" : resolved), directory, error
    );
}

/* Whatever is wrong with a file that a person wrote, from its kind to its words, is one fault. */
static result blame(result failed, const char *file, struct error *error) {
    if (is_ok(failed) || failed.code == RESULT_MEMORY) {
        return failed;
    }
    bool is_named = error == NULL || strstr(error->message, file) != NULL;
    if (!is_named) {
        failed = error_note(error, failed, "%.300s", file);
    }
    if (error != NULL) {
        error->code = RESULT_INVALID_INPUT;
    }
    return (result){RESULT_INVALID_INPUT};
}

/* Whoever can change the file decides what runs outside of the sandbox. */
static result check_owner(const char *file, struct error *error) {
    struct stat about;
    bool is_there = stat(file, &about) == 0;
    bool is_foreign = is_there && geteuid() != 0 && about.st_uid != geteuid() && about.st_uid != 0;
    if (is_foreign || (is_there && (about.st_mode & S_IWOTH) != 0)) {
        FAIL(
            error,
            INVALID_INPUT,
            "%.300s: others than the user can change it: see its owner and mode",
            file
        );
    }
    return OK;
}

static result read_user_file(struct loading *loading, struct error *error) {
    const char *file = NULL;
    const char *directory = NULL;
    CLEANUP(buffer_deinit) struct buffer text = {0};
    buffer_init(&text, CONFIG_FILE_BYTES_MAX);
    TRY(find_user_file(loading, &file, &directory, error));
    layer_begin(loading, &loading->user, CONFIG_BY_USER, file, directory);
    loading->config->user_directory = directory;
    if (file == NULL) {
        return OK;
    }
    TRY(check_owner(file, error));
    result read = file_read(file, &text, error);
    if (read.code == RESULT_NOT_FOUND && loading->options->user_file == NULL) {
        return OK;
    }
    TRY(blame(read, file, error));
    loading->config->user_file = file;
    return blame(config_take_file(&loading->user, buffer_view(&text), error), file, error);
}

/* Below the workspace without following a link: a project cannot have another file read. */
static result read_project_file(struct loading *loading, struct error *error) {
    const char *workspace = loading->options->workspace;
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    CLEANUP(buffer_deinit) struct buffer text = {0};
    CLEANUP(buffer_deinit) struct buffer path = {0};
    const char *file = NULL;
    char *digest = loading->config->project_digest;
    (void)snprintf(digest, SHA256_HEX_BYTES, CONFIG_TRUST_NONE);
    layer_begin(loading, &loading->project, CONFIG_BY_PROJECT, "", workspace);
    if (workspace == NULL || loading->options->ignores_project) {
        return OK;
    }
    buffer_init(&path, PATHS_BYTES_MAX);
    buffer_init(&text, CONFIG_FILE_BYTES_MAX + 1);
    TRY(beneath_open(workspace, &root, error));
    result read =
        beneath_read(root, CONFIG_PROJECT_FILE, 0, CONFIG_FILE_BYTES_MAX + 1, &text, NULL, error);
    if (read.code == RESULT_NOT_FOUND) {
        return OK;
    }
    TRY(buffer_append_format(&path, error, "%s/%s", workspace, CONFIG_PROJECT_FILE));
    TRY(text_of(loading, &path, &file, error));
    TRY(blame(read, file, error));
    loading->project.name = file;
    loading->config->project_file = file;
    if (text.length > CONFIG_FILE_BYTES_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "%.300s: larger than the %zu bytes allowed",
            file,
            CONFIG_FILE_BYTES_MAX
        );
    }
    sha256_hex(buffer_view(&text), digest);
    return blame(config_take_file(&loading->project, buffer_view(&text), error), file, error);
}

static result read_options(struct loading *loading, struct error *error) {
    char here[PATH_MAX];
    const char *directory = NULL;
    if (getcwd(here, sizeof here) == NULL) {
        FAIL(error, IO, "the current directory is gone");
    }
    TRY(config_copy(loading->memory, view_of_text(here), &directory, error));
    layer_begin(loading, &loading->given, CONFIG_BY_OPTION, "", directory);
    return config_take_options(&loading->given, loading->options, error);
}

/* ---- one over the other --------------------------------------------------------------------- */

static result set_defaults(struct loading *loading, struct error *error) {
    static const char *const instruction_names[] = {"AGENTS.md", "CLAUDE.md"};
    static const char *const skill_places[] = {
        ".hearth/skills", ".claude/skills", ".agents/skills"};
    struct config *config = loading->config;
    const char *workspace = loading->options->workspace;
    void *places = NULL;
    size_t count = 0;
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        config->origins[i] = (struct config_origin){.source = CONFIG_BY_DEFAULT, .name = ""};
    }
    config->backend = "auto";
    config->policy = PERMISSION_WORKSPACE_WRITE;
    config->instructions_max_bytes = INSTRUCTIONS_BYTES_DEFAULT;
    config->instructions_files =
        (struct config_list){instruction_names, COUNT_OF(instruction_names)};
    config->compaction_at_percent = AGENT_HISTORY_AT_PERCENT;
    config->compaction_keep_turns = AGENT_HISTORY_KEEP_TURNS;
    config->sessions_snapshots_max.bytes = RETENTION_BYTES_DEFAULT;
    config->terminal_markdown = true;
    TRY(config_allocate(
        loading->memory, (COUNT_OF(skill_places) + 1) * sizeof(const char *), &places, error
    ));
    const char **items = places;
    for (size_t i = 0; i <= COUNT_OF(skill_places); i++) {
        bool is_own = i == COUNT_OF(skill_places);
        const char *base = is_own ? config->user_directory : workspace;
        CLEANUP(buffer_deinit) struct buffer path = {0};
        buffer_init(&path, PATHS_BYTES_MAX);
        if (base != NULL) {
            TRY(buffer_append_format(
                &path, error, "%s/%s", base, is_own ? "skills" : skill_places[i]
            ));
            TRY(text_of(loading, &path, &items[count++], error));
        }
    }
    config->skills_directories = (struct config_list){items, count};
    return OK;
}

/* Takes the field of a layer over. */
static void take_over(struct loading *loading, struct config_layer *layer, enum config_key key) {
    memcpy(field_of(loading->config, key), field_of(&layer->values, key), config_rows[key].bytes);
    loading->config->origins[key] = layer->values.origins[key];
}

/* What every list of a configuration looks like. */
struct any_list {
    const void *items;
    size_t count;
};

/* Appends `second` to `first` as a new list. */
static result join(
    struct loading *loading,
    void *field,
    const struct any_list *first,
    const struct any_list *second,
    size_t item_bytes,
    struct error *error
) {
    void *items = NULL;
    struct any_list joined = {.count = first->count + second->count};
    TRY(config_allocate(loading->memory, (joined.count + 1) * item_bytes, &items, error));
    if (first->count > 0) {
        memcpy(items, first->items, first->count * item_bytes);
    }
    if (second->count > 0) {
        memcpy(
            (char *)items + first->count * item_bytes, second->items, second->count * item_bytes
        );
    }
    joined.items = items;
    memcpy(field, &joined, sizeof joined);
    return OK;
}

/* Size of an entry of a list that files add to; 0: a value that is replaced. */
static size_t added_bytes(enum config_key key) {
    switch (config_rows[key].type) {
    case CONFIG_RULE_LIST:
        return sizeof(struct permission_rule);
    case CONFIG_SERVER_LIST:
        return sizeof(struct config_server);
    case CONFIG_HOOK_LIST:
        return sizeof(struct config_hook);
    case CONFIG_DIRECTORIES:
        return sizeof(const char *);
    case CONFIG_DIRECTORY:
    case CONFIG_CHOICE:
    case CONFIG_POLICY_NAME:
    case CONFIG_COLOUR_NAME:
    case CONFIG_EFFORT_LEVEL:
    case CONFIG_INTEGER:
    case CONFIG_DURATION:
    case CONFIG_SIZE:
    case CONFIG_BOOLEAN:
    case CONFIG_TEXTS:
    case CONFIG_HOSTS:
        return 0;
    }
    return 0;
}

/* The layer's entries behind (or before) those that are there. */
static result
add(struct loading *loading,
    struct config_layer *layer,
    enum config_key key,
    bool is_before,
    struct error *error) {
    struct any_list present;
    struct any_list added;
    static_assert(sizeof present == sizeof(struct config_list), "every list has the same members");
    memcpy(&present, field_of(loading->config, key), sizeof present);
    memcpy(&added, field_of(&layer->values, key), sizeof added);
    TRY(join(
        loading,
        field_of(loading->config, key),
        is_before ? &added : &present,
        is_before ? &present : &added,
        added_bytes(key),
        error
    ));
    if (present.count == 0 || is_before) {
        loading->config->origins[key] = layer->values.origins[key];
    }
    return OK;
}

/* A server of the user's keeps its name. */
static result drop_known_servers(struct loading *loading, struct error *error) {
    struct config_servers *servers = &loading->project.values.mcp;
    void *memory = NULL;
    size_t kept = 0;
    TRY(config_allocate(
        loading->memory, (servers->count + 1) * sizeof *servers->items, &memory, error
    ));
    struct config_server *items = memory;
    for (size_t i = 0; i < servers->count; i++) {
        bool is_known = false;
        for (size_t j = 0; j < loading->config->mcp.count; j++) {
            const char *name = loading->config->mcp.items[j].name;
            is_known = is_known || strcmp(name, servers->items[i].name) == 0;
        }
        if (is_known) {
            TRY(note(
                loading,
                error,
                "%s:%u: the server '%s' does not count: the user's file has one of that name",
                servers->items[i].origin.name,
                servers->items[i].origin.line,
                servers->items[i].name
            ));
        } else {
            items[kept++] = servers->items[i];
        }
    }
    *servers = (struct config_servers){.items = items, .count = kept};
    return OK;
}

static result trust_rules(struct loading *loading, struct error *error) {
    struct config_rules *rules = &loading->project.values.rules;
    void *memory = NULL;
    TRY(config_allocate(loading->memory, (rules->count + 1) * sizeof *rules->items, &memory, error)
    );
    struct permission_rule *items = memory;
    for (size_t i = 0; i < rules->count; i++) {
        items[i] = rules->items[i];
        items[i].is_trusted = true;
    }
    rules->items = items;
    return OK;
}

static result say_wider(struct loading *loading, enum config_key key, struct error *error) {
    const struct config_origin *origin = &loading->project.values.origins[key];
    return note(
        loading,
        error,
        "%s:%u: '%s' does not count: it is wider than what the user has set",
        origin->name,
        origin->line,
        config_rows[key].name
    );
}

static result narrow_network(struct loading *loading, struct error *error) {
    const struct config_list *hosts = &loading->project.values.network_allow;
    for (size_t i = 0; i < hosts->count; i++) {
        if (!config_host_is_covered(hosts->items[i], &loading->config->network_allow) &&
            !config_host_is_covered(hosts->items[i], &loading->given.values.network_allow)) {
            const struct config_origin *origin =
                &loading->project.values.origins[CONFIG_NETWORK_ALLOW];
            FAIL(
                error,
                INVALID_INPUT,
                "%.200s:%u: 'network.allow' has '%.80s', which the user's own file does not allow: "
                "a "
                "project cannot widen the network",
                origin->name,
                origin->line,
                hosts->items[i]
            );
        }
    }
    take_over(loading, &loading->project, CONFIG_NETWORK_ALLOW);
    return OK;
}

static result narrow(struct loading *loading, enum config_key key, struct error *error) {
    struct config *config = loading->config;
    struct config *project = &loading->project.values;
    bool is_wider = false;
    if (key == CONFIG_NETWORK_ALLOW) {
        return narrow_network(loading, error);
    }
    if (key == CONFIG_POLICY) {
        is_wider = project->policy > config->policy;
    } else {
        int64_t present = *(int64_t *)field_of(config, key);
        bool is_unlimited = present == 0 && key != CONFIG_INSTRUCTIONS_MAX_BYTES;
        is_wider = !is_unlimited && *(int64_t *)field_of(project, key) > present;
    }
    if (is_wider) {
        return say_wider(loading, key, error);
    }
    take_over(loading, &loading->project, key);
    return OK;
}

static result say_untrusted(struct loading *loading, enum config_key key, struct error *error) {
    const struct config_origin *origin = &loading->project.values.origins[key];
    if (loading->is_changed) {
        return OK; /* that is said of the whole file */
    }
    return note(
        loading,
        error,
        "%s:%u: '%s' does not count: list the directory under \"trust\" in %s to let it",
        origin->name,
        origin->line,
        config_rows[key].name,
        loading->user.name != NULL ? loading->user.name : "the user's file"
    );
}

static result merge_project(struct loading *loading, struct error *error) {
    struct config *config = loading->config;
    struct config_layer *project = &loading->project;
    if (config->is_trusted) {
        TRY(trust_rules(loading, error));
        TRY(drop_known_servers(loading, error));
    }
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        enum config_key key = (enum config_key)i;
        enum config_project allowed = config_rows[key].project;
        ASSERT(!project->is_given[key] || allowed != CONFIG_PROJECT_NEVER);
        if (!project->is_given[key]) {
            continue;
        }
        if (allowed == CONFIG_PROJECT_NARROWS) {
            TRY(narrow(loading, key, error));
        } else if (allowed == CONFIG_PROJECT_TRUSTED && !config->is_trusted) {
            TRY(say_untrusted(loading, key, error));
        } else if (added_bytes(key) > 0) {
            TRY(add(loading, project, key, false, error));
        } else {
            take_over(loading, project, key);
        }
    }
    return OK;
}

/* An untrusted project's rules that allow are kept, since they end the search among its own. */
static result note_rules(struct loading *loading, struct error *error) {
    const struct config_rules *rules = &loading->project.values.rules;
    for (size_t i = 0; i < rules->count && !loading->config->is_trusted && !loading->is_changed;
         i++) {
        if (rules->items[i].action == PERMISSION_ALLOW) {
            return note(
                loading,
                error,
                "%s: rules that allow do not count: list the directory under \"trust\" in %s to "
                "let "
                "them",
                rules->items[i].origin,
                loading->user.name != NULL ? loading->user.name : "the user's file"
            );
        }
    }
    return OK;
}

/* Rules for tools of servers that nobody configures. The user's file is for many workspaces, whose
 * projects have servers of their own: there it is a note. */
static result check_rules(struct loading *loading, struct error *error) {
    const struct config_servers *const servers[] = {
        &loading->config->mcp, &loading->project.values.mcp};
    const struct config_layer *const layers[] = {
        &loading->user, &loading->project, &loading->given};
    for (size_t i = 0; i < COUNT_OF(layers); i++) {
        const struct config_rules *rules = &layers[i]->values.rules;
        for (size_t j = 0; j < rules->count; j++) {
            char reason[200];
            const struct permission_rule *rule = &rules->items[j];
            if (config_tool_is_known(rule->tool, servers, reason, sizeof reason)) {
                continue;
            }
            if (layers[i]->source != CONFIG_BY_USER) {
                FAIL(
                    error,
                    INVALID_INPUT,
                    "%.200s: 'rules' has the tool '%.80s': %s",
                    rule->origin,
                    rule->tool,
                    reason
                );
            }
            TRY(note(
                loading,
                error,
                "%s: the rule for %.80s does nothing here: %s",
                rule->origin,
                rule->tool,
                reason
            ));
        }
    }
    return OK;
}

static bool is_listed(const struct loading *loading) {
    const struct config_layer *layer =
        loading->given.is_given[CONFIG_TRUST] ? &loading->given : &loading->user;
    const struct config_list *directories = &layer->values.trust;
    const char *workspace = loading->options->workspace;
    char resolved[PATH_MAX];
    for (size_t i = 0; i < directories->count && workspace != NULL; i++) {
        if (realpath(directories->items[i], resolved) != NULL && strcmp(resolved, workspace) == 0) {
            return true;
        }
    }
    return false;
}

/* A listed directory's file counts as far as it is the one that was accepted. */
static result decide_trust(struct loading *loading, struct error *error) {
    const struct config_options *options = loading->options;
    struct config *config = loading->config;
    const char *digest = config->project_digest;
    enum config_trust known = CONFIG_TRUST_SAME;
    config->is_listed = is_listed(loading);
    if (config->is_listed && options->trust_state != NULL && !options->ignores_project) {
        TRY(config_trust_look(options->trust_state, options->workspace, digest, &known, error));
    }
    loading->is_changed = known == CONFIG_TRUST_CHANGED;
    config->is_trusted = config->is_listed && !loading->is_changed;
    bool has_file = config->project_file != NULL;
    if (loading->is_changed && has_file) {
        return note(
            loading,
            error,
            "%.300s is not what was accepted: what needs trust in it does not count; look at it, "
            "then: "
            "hearth config accept -C %.300s",
            config->project_file,
            options->workspace
        );
    }
    if (known != CONFIG_TRUST_NEW || !options->records_trust) {
        return OK;
    }
    TRY(config_trust_record(options->trust_state, options->workspace, digest, error));
    return has_file ? note(
                          loading,
                          error,
                          "%.300s is trusted as it is now; changes need: hearth config accept",
                          config->project_file
                      )
                    : OK;
}

static result load(struct loading *loading, struct error *error) {
    struct config *config = loading->config;
    const char *home = NULL;
    struct error ignored;
    if (is_ok(path_home(&home, &ignored))) { /* without one, ~ is an error where it is used */
        TRY(config_copy(loading->memory, view_of_text(home), &loading->home, error));
    }
    TRY(read_user_file(loading, error));
    TRY(read_project_file(loading, error));
    TRY(read_options(loading, error));
    TRY(set_defaults(loading, error));
    TRY(decide_trust(loading, error));
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (loading->user.is_given[i]) {
            take_over(loading, &loading->user, (enum config_key)i);
        }
    }
    TRY(merge_project(loading, error));
    TRY(note_rules(loading, error));
    TRY(check_rules(loading, error));
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        enum config_key key = (enum config_key)i;
        if (key == CONFIG_RULES && loading->given.is_given[key]) {
            TRY(add(loading, &loading->given, key, true, error));
        } else if (loading->given.is_given[key]) {
            take_over(loading, &loading->given, key);
        }
    }
    void *notes = NULL;
    TRY(config_allocate(loading->memory, sizeof loading->notes, &notes, error));
    memcpy(notes, loading->notes, sizeof loading->notes);
    config->notes = (struct config_list){.items = notes, .count = loading->note_count};
    return OK;
}

result config_load(const struct config_options *options, struct config **out, struct error *error) {
    CLEANUP(config_cleanup) struct config *config = calloc(1, sizeof *config);
    CLEANUP(free_cleanup) struct loading *loading = calloc(1, sizeof *loading);
    if (config == NULL || loading == NULL) {
        FAIL(error, MEMORY, "no memory for the configuration");
    }
    TRY(config_memory_create(&config->memory, error));
    loading->options = options;
    loading->config = config;
    loading->memory = config->memory;
    TRY(load(loading, error));
    *out = TAKE(config);
    return OK;
}

void config_destroy(struct config *config) {
    if (config != NULL) {
        config_memory_destroy(config->memory);
        free(config);
    }
}

void config_cleanup(struct config **config) {
    config_destroy(*config);
    *config = NULL;
}
