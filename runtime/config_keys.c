/* The table of keys, and one file or option read into a layer by it. */
#include "config_internal.h"
#include "nearest_name.h"
#include "swarm.h"

#include "cli.h"
#include "engine/chat.h"
#include "tools/tool.h"
#include <stddef.h>

#define MORE_BYTES     120
#define LINE_BYTES     32 /* of one entry of it */
#define NAME_BYTES_MAX 64
#define FIELD(name)    offsetof(struct config, name), sizeof(((struct config *)0)->name)

/* clang-format off */
const struct config_row config_rows[CONFIG_KEY_COUNT] = {
    [CONFIG_MODEL] = {"model", CONFIG_DIRECTORY, CONFIG_PROJECT_TRUSTED, FIELD(model), 0, 0, NULL},
    [CONFIG_BACKEND] = {"backend", CONFIG_CHOICE, CONFIG_PROJECT_SETS, FIELD(backend), 0, 0, "auto cpu cuda"},
    [CONFIG_STATE] = {"state", CONFIG_DIRECTORY, CONFIG_PROJECT_NEVER, FIELD(state), 0, 0, NULL},
    [CONFIG_EFFORT] = {"effort", CONFIG_EFFORT_LEVEL, CONFIG_PROJECT_SETS, FIELD(effort), 0, 0, NULL},
    [CONFIG_CONTEXT] = {"context", CONFIG_INTEGER, CONFIG_PROJECT_SETS, FIELD(context), 1, INT32_MAX, NULL},
    [CONFIG_TOOLS_SET] = {"tools.set", CONFIG_TEXTS, CONFIG_PROJECT_SETS, FIELD(tools_set), 0, 0, NULL},
    [CONFIG_TOOLS_DIALECT] = {"tools.dialect", CONFIG_CHOICE, CONFIG_PROJECT_SETS, FIELD(tools_dialect), 0, 0, "hearth claude codex"},
    [CONFIG_POLICY] = {"policy", CONFIG_POLICY_NAME, CONFIG_PROJECT_NARROWS, FIELD(policy), 0, 0, NULL},
    [CONFIG_RULES] = {"rules", CONFIG_RULE_LIST, CONFIG_PROJECT_SETS, FIELD(rules), 0, 0, NULL},
    [CONFIG_NETWORK_ALLOW] = {"network.allow", CONFIG_HOSTS, CONFIG_PROJECT_NARROWS, FIELD(network_allow), 0, 0, NULL},
    [CONFIG_MCP] = {"mcp", CONFIG_SERVER_LIST, CONFIG_PROJECT_TRUSTED, FIELD(mcp), 0, 0, NULL},
    [CONFIG_HOOKS_BEFORE_TOOL] = {"hooks.before_tool", CONFIG_HOOK_LIST, CONFIG_PROJECT_TRUSTED, FIELD(hooks_before_tool), 0, 0, NULL},
    [CONFIG_HOOKS_AFTER_TOOL] = {"hooks.after_tool", CONFIG_HOOK_LIST, CONFIG_PROJECT_TRUSTED, FIELD(hooks_after_tool), 0, 0, NULL},
    [CONFIG_HOOKS_STOP] = {"hooks.stop", CONFIG_HOOK_LIST, CONFIG_PROJECT_TRUSTED, FIELD(hooks_stop), 0, 0, NULL},
    [CONFIG_INSTRUCTIONS_MAX_BYTES] = {"instructions.max_bytes", CONFIG_INTEGER, CONFIG_PROJECT_NARROWS, FIELD(instructions_max_bytes), 0, 1 << 20, NULL},
    [CONFIG_INSTRUCTIONS_FILES] = {"instructions.files", CONFIG_TEXTS, CONFIG_PROJECT_TRUSTED, FIELD(instructions_files), 0, 0, NULL},
    [CONFIG_SKILLS_DIRECTORIES] = {"skills.directories", CONFIG_DIRECTORIES, CONFIG_PROJECT_SETS, FIELD(skills_directories), 0, 0, NULL},
    [CONFIG_BUDGET_TIME] = {"budget.time", CONFIG_DURATION, CONFIG_PROJECT_NARROWS, FIELD(budget_time_ms), 0, 0, NULL},
    [CONFIG_BUDGET_TOKENS] = {"budget.tokens", CONFIG_INTEGER, CONFIG_PROJECT_NARROWS, FIELD(budget_tokens), 1, INT64_MAX, NULL},
    [CONFIG_BUDGET_CALLS] = {"budget.calls", CONFIG_INTEGER, CONFIG_PROJECT_NARROWS, FIELD(budget_calls), 1, INT64_MAX, NULL},
    [CONFIG_COMPACTION_AT_PERCENT] = {"compaction.at_percent", CONFIG_INTEGER, CONFIG_PROJECT_SETS, FIELD(compaction_at_percent), 0, 95, NULL},
    [CONFIG_COMPACTION_KEEP_TURNS] = {"compaction.keep_turns", CONFIG_INTEGER, CONFIG_PROJECT_SETS, FIELD(compaction_keep_turns), 1, 100, NULL},
    [CONFIG_CACHE_DISK] = {"cache.disk", CONFIG_SIZE, CONFIG_PROJECT_NEVER, FIELD(cache_disk), 0, 0, NULL},
    [CONFIG_CACHE_HOURS] = {"cache.hours", CONFIG_INTEGER, CONFIG_PROJECT_NEVER, FIELD(cache_hours), 1, 87600, NULL},
    [CONFIG_CACHE_WRITES] = {"cache.writes", CONFIG_SIZE, CONFIG_PROJECT_NEVER, FIELD(cache_writes), 1, 0, NULL},
    [CONFIG_CACHE_MEMORY] = {"cache.memory", CONFIG_SIZE, CONFIG_PROJECT_NEVER, FIELD(cache_memory), 0, 0, NULL},
    [CONFIG_CACHE_SNAPSHOTS] = {"cache.snapshots", CONFIG_SIZE, CONFIG_PROJECT_NEVER, FIELD(cache_snapshots), 0, 0, NULL},
    [CONFIG_SESSIONS_SNAPSHOTS_MAX] = {"sessions.snapshots_max", CONFIG_SIZE, CONFIG_PROJECT_NEVER, FIELD(sessions_snapshots_max), 0, 0, NULL},
    [CONFIG_TERMINAL_COLOUR] = {"terminal.colour", CONFIG_COLOUR_NAME, CONFIG_PROJECT_NEVER, FIELD(terminal_colour), 0, 0, "auto always never"},
    [CONFIG_TERMINAL_MARKDOWN] = {"terminal.markdown", CONFIG_BOOLEAN, CONFIG_PROJECT_NEVER, FIELD(terminal_markdown), 0, 0, NULL},
    [CONFIG_SWARM_STRATEGY] = {"swarm.strategy", CONFIG_CHOICE, CONFIG_PROJECT_SETS, FIELD(swarm_strategy), 0, 0, "auto single race best-of plan staged retries"},
    [CONFIG_SWARM_VERIFY] = {"swarm.verify", CONFIG_TEXT, CONFIG_PROJECT_TRUSTED, FIELD(swarm_verify), 0, 0, NULL},
    [CONFIG_SWARM_MAX_AGENTS] = {"swarm.max_agents", CONFIG_INTEGER, CONFIG_PROJECT_NARROWS, FIELD(swarm_max_agents), 1, SWARM_NODES_MAX - 1, NULL},
    [CONFIG_SWARM_AT_ONCE] = {"swarm.at_once", CONFIG_INTEGER, CONFIG_PROJECT_NARROWS, FIELD(swarm_at_once), 1, SWARM_NODES_MAX - 1, NULL},
    [CONFIG_TRUST] = {"trust", CONFIG_DIRECTORIES, CONFIG_PROJECT_NEVER, FIELD(trust), 0, 0, NULL},
};
/* clang-format on */

const char *config_key_name(enum config_key key) {
    ASSERT(key < CONFIG_KEY_COUNT);
    return config_rows[key].name;
}

bool config_key_find(struct view name, enum config_key *out) {
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (view_equals_text(name, config_rows[i].name)) {
            *out = (enum config_key)i;
            return true;
        }
    }
    return false;
}

/* Every key, and with `has_groups` the first parts of those that have two. names: [2 * keys]. */
static size_t
list_names(bool has_groups, const char **names, char groups[CONFIG_KEY_COUNT][NAME_BYTES_MAX]) {
    size_t count = 0;
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        const char *dot = strchr(config_rows[i].name, '.');
        names[count++] = config_rows[i].name;
        if (dot != NULL && has_groups) {
            int length = (int)(dot - config_rows[i].name);
            (void)snprintf(groups[i], NAME_BYTES_MAX, "%.*s", length, config_rows[i].name);
            names[count++] = groups[i];
        }
    }
    return count;
}

const char *config_key_nearest(struct view name) {
    const char *names[2 * CONFIG_KEY_COUNT];
    char groups[CONFIG_KEY_COUNT][NAME_BYTES_MAX];
    return nearest_name(name, names, list_names(false, names, groups)); /* none of `groups` */
}

result config_override_parse(
    const char *text, const char *option, struct config_override *out, struct error *error
) {
    size_t length = strcspn(text, "=");
    if (text[length] == '\0') {
        FAIL(error, INVALID_INPUT, "%s wants KEY=VALUE, not '%.60s'", option, text);
    }
    *out = (struct config_override){.text = text + length + 1, .option = option};
    if (!config_key_find(view_of(text, length), &out->key)) {
        const char *nearest = config_key_nearest(view_of(text, length));
        FAIL(
            error,
            INVALID_INPUT,
            "%s: '%.*s' is not a key%s%s%s",
            option,
            (int)(length < 60 ? length : 60),
            text,
            nearest != NULL ? ": did you mean '" : "",
            nearest != NULL ? nearest : "",
            nearest != NULL ? "'?" : ""
        );
    }
    return OK;
}

/* ---- one value ------------------------------------------------------------------------------ */

/* Whether `word` is one of the words in a blank-separated list; *at is the how-manieth. */
static bool choose(const char *words, struct view word, size_t *at, const char **found) {
    *at = 0;
    for (const char *next = words; *next != '\0'; (*at)++) {
        size_t length = strcspn(next, " ");
        if (length == word.length && memcmp(next, word.data, length) == 0) {
            *found = next;
            return true;
        }
        next += length + (next[length] == ' ' ? 1 : 0);
    }
    return false;
}

static result take_choice(
    const struct config_layer *layer,
    struct json_value value,
    const struct config_row *row,
    size_t *index,
    const char **out,
    struct error *error
) {
    struct view text = {NULL, 0};
    const char *found = NULL;
    if (!json_as_string(value, &text) || !choose(row->words, text, index, &found)) {
        return config_wrong(
            layer,
            value,
            row->name,
            error,
            "wants one of %s, not %.*s",
            row->words,
            VIEW_ARGUMENTS(view_slice(json_raw(value), 0, 60))
        );
    }
    return config_copy(layer->memory, text, out, error);
}

/* A number, or a text that `parse` takes. */
static result take_measure(
    const struct config_layer *layer,
    struct json_value value,
    const struct config_row *row,
    void *field,
    struct error *error
) {
    struct view text = {NULL, 0};
    bool is_number = json_type(value) == JSON_NUMBER;
    if (is_number) {
        text = json_raw(value);
    }
    bool is_text = is_number || json_as_string(value, &text);
    if (row->type == CONFIG_EFFORT_LEVEL) {
        struct error ignored;
        if (is_text && is_ok(chat_effort_parse(field, text, &ignored))) {
            return OK;
        }
        return config_wrong(
            layer, value, row->name, error, "wants 1 to 100, \"low\", \"high\", \"max\" or \"off\""
        );
    }
    if (row->type == CONFIG_DURATION) {
        if (is_text && duration_parse(text, field)) {
            return OK;
        }
        return config_wrong(
            layer, value, row->name, error, "wants a time such as \"90s\", \"10m\" or \"2h\""
        );
    }
    struct config_size size = {.is_off = is_text && view_equals_text(text, "off")};
    bool may_be_off = row->min == 0;
    if ((size.is_off && may_be_off) || (is_text && !size.is_off && size_parse(text, &size.bytes))) {
        memcpy(field, &size, sizeof size);
        return OK;
    }
    return config_wrong(
        layer,
        value,
        row->name,
        error,
        "wants a size such as \"512M\" or \"16G\"%s",
        may_be_off ? ", or \"off\"" : ""
    );
}

static result take_policy(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    enum permission_policy *out,
    struct error *error
) {
    struct view text = {NULL, 0};
    if (!json_as_string(value, &text) || !permission_policy_parse(text, out)) {
        return config_wrong(
            layer, value, key, error, "wants one of read-only, ask, workspace-write, full"
        );
    }
    if (layer->source == CONFIG_BY_PROJECT && *out == PERMISSION_FULL) {
        return config_wrong(
            layer,
            value,
            key,
            error,
            "cannot be \"full\" in a project's file: it would trust itself"
        );
    }
    return OK;
}

result config_take_paths(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
) {
    TRY(config_take_texts(layer, value, key, out, error));
    void *items = NULL;
    TRY(config_allocate(layer->memory, (out->count + 1) * sizeof *out->items, &items, error));
    const char **paths = items;
    struct json_value item = json_first(value);
    for (size_t i = 0; i < out->count; i++, item = json_next(item)) {
        TRY(config_take_path(layer, item, key, &paths[i], error));
    }
    out->items = paths;
    return OK;
}

static result take_hosts(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
) {
    TRY(config_take_texts(layer, value, key, out, error));
    struct json_value item = json_first(value);
    for (size_t i = 0; i < out->count; i++, item = json_next(item)) {
        TRY(config_check_host(layer, item, key, out->items[i], error));
    }
    return OK;
}

static result take_field(
    const struct config_layer *layer,
    const struct config_row *row,
    struct json_value value,
    void *field,
    struct error *error
) {
    const char *ignored = NULL;
    size_t index = 0;
    switch (row->type) {
    case CONFIG_DIRECTORY:
        return config_take_path(layer, value, row->name, field, error);
    case CONFIG_CHOICE:
        return take_choice(layer, value, row, &index, field, error);
    case CONFIG_POLICY_NAME:
        return take_policy(layer, value, row->name, field, error);
    case CONFIG_COLOUR_NAME:
        TRY(take_choice(layer, value, row, &index, &ignored, error));
        *(enum config_colour *)field = (enum config_colour)index;
        return OK;
    case CONFIG_EFFORT_LEVEL:
    case CONFIG_DURATION:
    case CONFIG_SIZE:
        return take_measure(layer, value, row, field, error);
    case CONFIG_INTEGER:
        return config_take_integer(layer, value, row->name, row->min, row->max, field, error);
    case CONFIG_BOOLEAN:
        if (!json_as_bool(value, field)) {
            return config_wrong(layer, value, row->name, error, "wants true or false");
        }
        return OK;
    case CONFIG_TEXT:
        TRY(config_take_text(layer, value, row->name, field, error));
        return strspn(*(const char *const *)field, " ") < strlen(*(const char *const *)field)
                   ? OK
                   : config_wrong(layer, value, row->name, error, "is empty");
    case CONFIG_TEXTS:
        return config_take_texts(layer, value, row->name, field, error);
    case CONFIG_DIRECTORIES:
        return config_take_paths(layer, value, row->name, field, error);
    case CONFIG_HOSTS:
        return take_hosts(layer, value, row->name, field, error);
    case CONFIG_RULE_LIST:
        return config_take_rules(layer, value, row->name, field, error);
    case CONFIG_SERVER_LIST:
        return config_take_servers(layer, value, row->name, field, error);
    case CONFIG_HOOK_LIST:
        return config_take_hooks(layer, value, row->name, field, error);
    }
    ASSERT(false);
    return OK;
}

/* Names that are looked for in directories: they stay below these. */
static result check_instructions(
    const struct config_layer *layer,
    struct json_value value,
    const struct config_list *names,
    struct error *error
) {
    for (size_t i = 0; i < names->count; i++) {
        const char *name = names->items[i];
        bool is_plain = name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, "..") != 0 &&
                        strcmp(name, ".") != 0;
        if (!is_plain) {
            return config_wrong(
                layer, value, "instructions.files", error, "wants names of files, not '%.60s'", name
            );
        }
    }
    return OK;
}

static result check_tools(
    const struct config_layer *layer,
    struct json_value value,
    const struct config_list *names,
    struct error *error
) {
    struct json_value item = json_first(value);
    for (size_t i = 0; i < names->count; i++, item = json_next(item)) {
        struct error why = {0};
        uint64_t ignored = 0;
        if (is_failed(tool_set_parse(view_of_text(names->items[i]), &ignored, &why))) {
            return config_wrong(layer, item, "tools.set", error, "is wrong: %s", why.message);
        }
    }
    return OK;
}

result config_take_value(
    struct config_layer *layer, enum config_key key, struct json_value value, struct error *error
) {
    const struct config_row *row = &config_rows[key];
    if (layer->source == CONFIG_BY_PROJECT && row->project == CONFIG_PROJECT_NEVER) {
        return config_wrong(
            layer,
            value,
            row->name,
            error,
            "has no place in a project's file, only in the user's own"
        );
    }
    if (layer->is_given[key]) {
        return config_wrong(layer, value, row->name, error, "is given twice");
    }
    TRY(take_field(layer, row, value, (char *)&layer->values + row->offset, error));
    if (key == CONFIG_INSTRUCTIONS_FILES) {
        TRY(check_instructions(layer, value, &layer->values.instructions_files, error));
    }
    if (key == CONFIG_TOOLS_SET) {
        TRY(check_tools(layer, value, &layer->values.tools_set, error));
    }
    layer->is_given[key] = true;
    layer->values.origins[key] = config_origin_of(layer, value);
    return OK;
}

/* ---- a whole file --------------------------------------------------------------------------- */

/* Whether a key is "GROUP.something". */
bool config_key_is_in(enum config_key key, struct view group) {
    const char *name = config_rows[key].name;
    return strncmp(name, (const char *)group.data, group.length) == 0 && name[group.length] == '.';
}

static bool is_group(struct view name) {
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (config_key_is_in((enum config_key)i, name)) {
            return true;
        }
    }
    return false;
}

/* `name` is whole ("budget.tim") and not known. */
static result unknown_key(
    const struct config_layer *layer, struct json_value value, const char *name, struct error *error
) {
    const char *names[2 * CONFIG_KEY_COUNT];
    char groups[CONFIG_KEY_COUNT][NAME_BYTES_MAX];
    size_t count = list_names(strchr(name, '.') == NULL, names, groups);
    const char *nearest = nearest_name(view_of_text(name), names, count);
    return config_wrong(
        layer,
        value,
        name,
        error,
        "is not a key%s%s%s",
        nearest != NULL ? ": did you mean '" : "",
        nearest != NULL ? nearest : "",
        nearest != NULL ? "'?" : " (hearth config lists them)"
    );
}

static result take_group(struct config_layer *layer, struct json_value group, struct error *error) {
    struct view prefix = json_name(group);
    char name[2 * NAME_BYTES_MAX];
    if (json_type(group) != JSON_OBJECT) {
        (void)snprintf(name, sizeof name, "%.*s", VIEW_ARGUMENTS(view_slice(prefix, 0, 40)));
        return config_wrong(
            layer, group, name, error, "wants an object, not %s", json_type_name(json_type(group))
        );
    }
    for (struct json_value value = json_first(group); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        enum config_key key;
        struct view member = view_slice(json_name(value), 0, NAME_BYTES_MAX);
        int length = snprintf(
            name, sizeof name, "%.*s.%.*s", VIEW_ARGUMENTS(prefix), VIEW_ARGUMENTS(member)
        );
        ASSERT(length > 0 && (size_t)length < sizeof name); /* the group's name is one of ours */
        if (!config_key_find(view_of_text(name), &key)) {
            return unknown_key(layer, value, name, error);
        }
        TRY(config_take_value(layer, key, value, error));
    }
    return OK;
}

/* Names file, line and column of what is no JSON. */
static result
note_place(const struct config_layer *layer, struct view text, result failed, struct error *error) {
    size_t at = error != NULL && error->foreign > 0 ? (size_t)error->foreign : 0;
    size_t line = 1;
    size_t column = 1;
    if (failed.code != RESULT_INVALID_INPUT || at == 0) {
        return error_note(error, failed, "%.300s", layer->name);
    }
    for (size_t i = 0; i < at && i < text.length; i++) {
        bool is_end = text.data[i] == '\n';
        bool begins = (text.data[i] & 0xC0) != 0x80; /* a character */
        line += is_end ? 1 : 0;
        column = is_end ? 1 : column + (begins ? 1 : 0);
    }
    return error_note(error, failed, "%.300s:%zu:%zu", layer->name, line, column);
}

static result
take_member(struct config_layer *layer, struct json_value value, struct error *error) {
    enum config_key key;
    struct view member = view_slice(json_name(value), 0, NAME_BYTES_MAX);
    char name[NAME_BYTES_MAX + 1];
    (void)snprintf(name, sizeof name, "%.*s", VIEW_ARGUMENTS(member));
    if (is_group(member)) {
        return take_group(layer, value, error);
    }
    if (config_key_find(member, &key)) { /* "budget.time" written as one is as good */
        return config_take_value(layer, key, value, error);
    }
    return unknown_key(layer, value, name, error);
}

/* The first fault is told in full; of the others the lines, so that a person mends them in one go. */
static result
take_members(struct config_layer *layer, struct json_value root, struct error *error) {
    struct error first = {0};
    char more[MORE_BYTES] = "";
    size_t used = 0;
    bool is_wrong = false;
    for (struct json_value value = json_first(root); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        struct error why = {0};
        result taken = take_member(layer, value, &why);
        if (is_ok(taken)) {
            continue;
        }
        if (taken.code != RESULT_INVALID_INPUT || !is_wrong) {
            first = why;
        }
        if (taken.code != RESULT_INVALID_INPUT) {
            is_wrong = true;
            break;
        }
        if (is_wrong && used + LINE_BYTES < sizeof more) {
            int length = snprintf(
                more + used,
                sizeof more - used,
                "%s%u",
                used == 0 ? "; wrong too: line " : ", ",
                config_origin_of(layer, value).line
            );
            ASSERT(length > 0);
            used += (size_t)length;
        }
        is_wrong = true;
    }
    if (!is_wrong) {
        return OK;
    }
    return result_failed(error_set(
        error, first.code, first.foreign, first.file, first.line, "%s%s", first.message, more
    ));
}

result config_take_file(struct config_layer *layer, struct view text, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {.bytes_max = CONFIG_FILE_BYTES_MAX, .depth_max = 16};
    result parsed = json_parse(text, &limits, &document, error);
    if (is_failed(parsed)) {
        return note_place(layer, text, parsed, error);
    }
    struct json_value root = json_root(document);
    layer->first_line = 1;
    for (size_t i = 0; i < text.length && strchr(" \t\r\n", text.data[i]) != NULL; i++) {
        layer->first_line += text.data[i] == '\n' ? 1 : 0;
    }
    layer->text = (const char *)json_raw(root).data;
    if (json_type(root) != JSON_OBJECT) {
        FAIL(
            error,
            INVALID_INPUT,
            "%.300s: the file wants an object, not %s",
            layer->name,
            json_type_name(json_type(root))
        );
    }
    TRY(take_members(layer, root, error));
    layer->text = NULL; /* dies with the document */
    return OK;
}
