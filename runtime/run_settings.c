/* See run_settings.h. */
#include "run_settings.h"

#include "agent_history.h"
#include "paths.h"
#include "run_config.h"
#include "run_worktree.h"
#include "session_place.h"
#include "tools/tool_agents.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define TASK_BYTES_MAX  ((size_t)1 << 20)
#define CACHE_HOURS_MAX 87600 /* ten years */

void settings_deinit(struct run_settings *settings) {
    buffer_deinit(&settings->task);
    buffer_deinit(&settings->workspace);
    buffer_deinit(&settings->state);
    buffer_deinit(&settings->model);
    buffer_deinit(&settings->snapshots);
    buffer_deinit(&settings->state_option);
    buffer_deinit(&settings->worktree_of);
    buffer_deinit(&settings->cache_directory);
    generation_settings_deinit(&settings->generation);
    config_destroy(settings->user_config);
    config_destroy(settings->config);
    for (size_t i = 0; i < settings->rule_count; i++) {
        buffer_deinit(&settings->rules[i]);
    }
}

/* An option of the cache that takes a size or "off". *is_off may be null: off is CACHE_NO_POOL_BYTES. */
static bool size_or_off(
    const struct cli_arguments *arguments, const char *name, bool *is_off, uint64_t *bytes
) {
    const char *text = cli_value(arguments, name);
    bool is_written_off = text != NULL && strcmp(text, "off") == 0;
    if (is_off != NULL) {
        *is_off = is_written_off;
    } else if (is_written_off) {
        *bytes = CACHE_NO_POOL_BYTES;
    }
    if (text != NULL && !is_written_off && !size_parse(view_of_text(text), bytes)) {
        (void)cli_usage(
            arguments, "--%s wants a size such as 512M or 16G, or off, not '%.60s'", name, text
        );
        return false;
    }
    return true;
}

static bool settings_cache(struct run_settings *settings) {
    const struct cli_arguments *arguments = settings->arguments;
    struct cache_settings *cache = &settings->cache;
    if (!size_or_off(arguments, "cache", &cache->is_off, &cache->disk_bytes) ||
        !size_or_off(arguments, "cache-memory", NULL, &cache->memory_bytes) ||
        !size_or_off(arguments, "snapshots", NULL, &cache->snapshot_bytes) ||
        !cli_i64(arguments, "cache-hours", 1, CACHE_HOURS_MAX, &cache->hours) ||
        !cli_size(arguments, "cache-writes", &cache->write_bytes_hour)) {
        return false;
    }
    if (cache->is_off && (cache->hours > 0 || cache->write_bytes_hour > 0)) {
        (void)cli_usage(arguments, "--cache off leaves nothing for --cache-hours, --cache-writes");
        return false;
    }
    return true;
}

int settings_numbers(struct run_settings *settings) {
    const struct cli_arguments *arguments = settings->arguments;
    struct error error = {0};
    const char *effort = cli_value(arguments, "effort");
    const char *window = cli_value(arguments, "window");
    const char *tools = cli_value(arguments, "tools");
    settings->compact_at_percent = AGENT_HISTORY_AT_PERCENT;
    settings->temperature = -1.0;
    settings->top_p = -1.0;
    settings->tools = TOOL_SET_DEFAULT;
    settings->has_seed = cli_has(arguments, "seed");
    if (!cli_double(arguments, "temperature", 0.0, 100.0, &settings->temperature) ||
        !cli_double(arguments, "top-p", 1e-6, 1.0, &settings->top_p) ||
        !cli_u64(arguments, "seed", &settings->seed) ||
        !cli_duration(arguments, "max-time", &settings->time_ms_max) ||
        !cli_i64(arguments, "max-tokens", 1, INT64_MAX, &settings->tokens_max) ||
        !cli_i64(arguments, "max-turn-tokens", 1, INT32_MAX, &settings->turn_tokens_max) ||
        !cli_i64(arguments, "max-turns", 1, 1000000, &settings->turns_max) ||
        !cli_i64(arguments, "compact-at", 0, 100, &settings->compact_at_percent) ||
        !cli_i64(arguments, "keep-turns", 1, 1000, &settings->compact_keep_turns) ||
        !cli_i64(arguments, "max-calls", 1, INT64_MAX, &settings->calls_max) ||
        !cli_i64(arguments, "context", 1, INT32_MAX, &settings->context_max) ||
        !cli_i64(arguments, "threads", 1, 256, &settings->threads) || !settings_cache(settings)) {
        return STATUS_USAGE;
    }
    int status = backend_option(arguments, &settings->backend);
    if (status != STATUS_DONE) {
        return status;
    }
    status = generation_settings_read(arguments, &settings->generation);
    if (status != STATUS_DONE) {
        return status;
    }
    if (effort != NULL &&
        is_failed(chat_effort_parse(&settings->effort, view_of_text(effort), &error))) {
        return cli_usage(arguments, "--effort: %s", error.message);
    }
    if (tools != NULL && is_failed(tool_set_parse(view_of_text(tools), &settings->tools, &error))) {
        return cli_usage(arguments, "--tools: %s", error.message);
    }
    if (window != NULL && strcmp(window, "replay") == 0) {
        settings->window = WINDOW_REPLAY;
    } else if (window != NULL && strcmp(window, "exact") != 0) {
        return cli_usage(arguments, "--window wants exact or replay, not '%.60s'", window);
    }
    return STATUS_DONE;
}

int settings_task(struct run_settings *settings) {
    const struct cli_arguments *arguments = settings->arguments;
    struct error error = {0};
    const char *word = arguments->word_count > 0 ? arguments->words[0] : NULL;
    bool is_resumed = cli_shared_value(arguments, "resume") != NULL;
    bool is_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    settings->is_interactive =
        !settings->is_swarm && (cli_has(arguments, "interactive") ||
                                (word == NULL && is_terminal && !cli_has(arguments, "json")));
    if (settings->is_interactive && word == NULL) {
        return STATUS_DONE; /* the person gives it */
    }
    if (is_resumed && word == NULL) {
        return STATUS_DONE; /* it goes on as it stands */
    }
    if (word == NULL && isatty(STDIN_FILENO) == 1) {
        return cli_usage(
            arguments, "there is no task: give it as an argument or on standard input"
        );
    }
    result read = cli_input(word, false, &settings->task, &error);
    if (is_failed(read)) {
        return cli_fail_error(read, &error);
    }
    struct buffer *task = &settings->task;
    while (task->length > 0 && strchr("\n\r\t ", task->data[task->length - 1]) != NULL) {
        task->length--;
    }
    if (task->length == 0) {
        return cli_usage(arguments, "the task is empty");
    }
    if (task->length > TASK_BYTES_MAX) {
        return cli_fail(
            STATUS_DATA,
            "the task has %zu bytes, at most %zu are taken",
            task->length,
            TASK_BYTES_MAX
        );
    }
    if (!utf8_is_valid(buffer_view(task))) {
        return cli_fail(STATUS_DATA, "the task is not UTF-8 text");
    }
    return STATUS_DONE;
}

int settings_state(struct run_settings *settings) {
    const char *state = cli_value(settings->arguments, "state");
    struct error error = {0};
    int status = run_config_user(settings);
    if (status != STATUS_DONE) {
        return status;
    }
    const char *place = state != NULL ? state : settings->user_config->state;
    result found = path_state(place, false, &settings->state, &error);
    buffer_init(&settings->state_option, 8192);
    if (is_ok(found) && state != NULL) {
        found = buffer_append_text(&settings->state_option, " --state ", &error);
    }
    if (is_ok(found) && state != NULL) {
        found = path_quote(buffer_text(&settings->state), &settings->state_option, &error);
    }
    return is_failed(found) ? cli_fail_error(found, &error) : STATUS_DONE;
}

static result settings_find(struct run_settings *settings, struct error *error) {
    const char *model = cli_value(settings->arguments, "model");
    CLEANUP(buffer_deinit) struct buffer recorded = {0};
    if (model == NULL && settings->record != NULL) {
        buffer_init(&recorded, 8192);
        TRY(buffer_append(&recorded, settings->record->session.begin.model, error));
        model = buffer_text(&recorded);
    }
    model = model != NULL ? model : settings->config->model;
    CLEANUP(buffer_deinit) struct buffer made = {0};
    TRY(model_directory(model, &settings->model, error));
    TRY(model_settings_load(buffer_text(&settings->model), &settings->model_settings, error));
    TRY(path_state(buffer_text(&settings->state), true, &made, error)); /* its parents */
    const char *state = buffer_text(&settings->state);
    if (settings->record != NULL) {
        TRY(session_place_snapshots(settings->record, state, &settings->snapshots, error));
    } else {
        TRY(path_snapshots(state, buffer_text(&settings->workspace), &settings->snapshots, error));
    }
    return path_cache(buffer_text(&settings->state), &settings->cache_directory, error);
}

/* The workspace of a session that goes on is its own. */
static int settings_workspace_again(struct run_settings *settings) {
    const struct session_begin *begin = &settings->record->session.begin;
    const char *given = cli_value(settings->arguments, "directory");
    CLEANUP(buffer_deinit) struct buffer recorded;
    struct error error = {0};
    buffer_init(&recorded, 8192);
    buffer_init(&settings->worktree_of, 8192);
    result found = buffer_append(&recorded, begin->workspace, &error);
    if (is_ok(found)) {
        found = session_place_find(settings->record, given, &settings->workspace, &error);
    }
    if (found.code == RESULT_NOT_FOUND && given == NULL) {
        int status = run_worktree_make_again(settings, buffer_text(&recorded));
        if (status != STATUS_USAGE) {
            return status;
        }
    }
    if (is_ok(found)) {
        found = buffer_append(&settings->worktree_of, begin->worktree_of, &error);
    }
    return is_ok(found) ? STATUS_DONE : session_place_fail(settings->arguments, found, &error);
}

/* The dialect that has the tool under that name; `otherwise` where more than one does. */
static enum tool_dialect dialect_of(size_t index, struct view name, enum tool_dialect otherwise) {
    enum tool_dialect found = otherwise;
    size_t count = 0;
    for (size_t i = 0; i < TOOL_DIALECT_COUNT; i++) {
        const struct tool_descriptor *form = tool_form(index, (enum tool_dialect)i, tool_set_all());
        if (form != NULL && view_equals_text(name, form->name)) {
            found = (enum tool_dialect)i;
            count++;
        }
    }
    return count == 1 ? found : otherwise;
}

/* Names of the declared tools, in a record's JSON. */
static result
recorded_tools(struct view text, enum tool_dialect *dialect, uint64_t *out, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(text, NULL, &document, error), "recorded tools");
    uint64_t set = 0;
    for (struct json_value item = json_first(json_root(document)); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        struct view name;
        TRY_NOTE(error, json_get_string(item, "name", &name, error), "recorded tools");
        size_t index = tool_index(name);
        set |= index == SIZE_MAX ? 0 : UINT64_C(1) << index;
        *dialect = index == SIZE_MAX ? *dialect : dialect_of(index, name, *dialect);
    }
    *out = set;
    return OK;
}

/* What is not given on the command line goes on as it was. */
static int settings_continue(struct run_settings *settings) {
    const struct cli_arguments *arguments = settings->arguments;
    const struct session_tree *record = settings->record;
    const struct session_agent *agent = record->agent_count > 0 ? &record->agents[0] : NULL;
    struct session_sampler sampler = record->session.begin.sampler;
    uint64_t declared = TOOL_SET_DEFAULT;
    struct error error = {0};
    for (size_t i = 0; agent != NULL && i < agent->turn_count; i++) {
        if (agent->turns[i].is_finished) {
            sampler = agent->turns[i].end.sampler;
        }
    }
    if (agent != NULL &&
        is_failed(recorded_tools(agent->tools, &settings->dialect, &declared, &error))) {
        return cli_fail(STATUS_DATA, "session %s: %s", record->session.id.text, error.message);
    }
    if (is_failed(
            generation_settings_restore(&settings->generation, arguments, sampler.settings, &error)
        )) {
        return cli_fail(STATUS_DATA, "session %s: %s", record->session.id.text, error.message);
    }
    if (cli_has(arguments, "tools") && (settings->tools & ~declared) != 0) {
        return cli_usage(
            arguments, "--tools can only take away: the session's prompt declares no other tools"
        );
    }
    settings->declared_tools = declared;
    if (!cli_has(arguments, "tools")) {
        settings->tools = declared;
    }
    if (!cli_has(arguments, "effort")) {
        settings->effort = (int32_t
        )(sampler.effort < 0 || sampler.effort > CHAT_EFFORT_MAX ? CHAT_EFFORT_DEFAULT
                                                                 : sampler.effort);
    }
    if (!settings->has_seed) {
        settings->seed = sampler.seed;
        settings->has_seed = true;
    }
    if (settings->temperature < 0.0) {
        settings->temperature = sampler.temperature;
    }
    if (settings->top_p < 0.0) {
        settings->top_p = sampler.top_p;
    }
    if (!cli_has(arguments, "window") &&
        view_equals_text(record->session.begin.window_mode, "replay")) {
        settings->window = WINDOW_REPLAY;
    }
    return STATUS_DONE;
}

/* One agent has no others: what `all` takes in is left out; a swarm adds it. */
static int without_agents(struct run_settings *settings) {
    settings->tools &= ~tool_set_agents();
    return settings->tools != 0
               ? STATUS_DONE
               : cli_usage(
                     settings->arguments, "tools: only those for other agents, and there are none"
                 );
}

int settings_places(struct run_settings *settings) {
    const struct cli_arguments *arguments = settings->arguments;
    const char *directory = cli_value(arguments, "directory");
    struct error error = {0};
    if (settings->record != NULL) {
        int status = settings_workspace_again(settings);
        if (status != STATUS_DONE) {
            return status;
        }
    } else if (is_failed(
                   path_directory(directory != NULL ? directory : ".", &settings->workspace, &error)
               )) {
        return cli_fail(STATUS_USAGE, "workspace: %s", error.message);
    }
    int status = run_config_load(settings); /* of the workspace itself, which may be trusted */
    if (status == STATUS_DONE && settings->check != NULL) {
        status = settings->check(settings->check_context, settings);
    }
    if (status == STATUS_DONE && cli_has(arguments, "worktree")) {
        status = settings->record == NULL ? run_worktree_make(settings)
                                          : cli_usage(arguments, "--worktree is for a new session");
    }
    if (status != STATUS_DONE) {
        return status;
    }
    result found = settings_find(settings, &error);
    if (is_failed(found)) {
        return cli_fail_error(found, &error);
    }
    status = run_config_apply(settings);
    if (status != STATUS_DONE) {
        return status;
    }
    if (settings->turns_max == 0) {
        settings->turns_max = settings->model_settings.turns_max;
    }
    if (settings->turn_tokens_max == 0) {
        settings->turn_tokens_max = settings->model_settings.turn_tokens_max;
    }
    status = without_agents(settings);
    if (status != STATUS_DONE) {
        return status;
    }
    settings->declared_tools = settings->tools;
    return settings->record != NULL ? settings_continue(settings) : STATUS_DONE;
}
