/* Layers of a configuration, found and read: defaults, the user's file, the project's, options. */
#include "config.h"

#include "agent_history.h"
#include "config_loading.h"
#include "paths.h"
#include "retention.h"
#include "sandbox/beneath.h"
#include "swarm.h"
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATHS_BYTES_MAX            ((size_t)2 * PATH_MAX)
#define INSTRUCTIONS_BYTES_DEFAULT ((int64_t)64 << 10)

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

/* ---- one after the other -------------------------------------------------------------------- */

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
    config->swarm_strategy = "auto";
    config->swarm_max_agents = SWARM_NODES_DEFAULT - 1;
    config->swarm_at_once = SWARM_LIVE_DEFAULT;
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
            TRY(config_note(
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
        return config_note(
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
    return has_file ? config_note(
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
    config_merge_user(loading);
    TRY(config_merge_project(loading, error));
    TRY(check_rules(loading, error));
    TRY(config_merge_options(loading, error));
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
