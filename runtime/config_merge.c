/* One layer of a configuration over the other: values that replace, lists that are joined, and what a
 * project may not widen. See config_loading.h. */
#include "config_loading.h"

#include <assert.h>
#include <stdarg.h>

result config_note(struct loading *loading, struct error *error, const char *format, ...) {
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

static void *field_of(struct config *config, enum config_key key) {
    return (char *)config + config_rows[key].offset;
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
    case CONFIG_TEXT:
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
            TRY(config_note(
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
    return config_note(
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
    return config_note(
        loading,
        error,
        "%s:%u: '%s' does not count: list the directory under \"trust\" in %s to let it",
        origin->name,
        origin->line,
        config_rows[key].name,
        loading->user.name != NULL ? loading->user.name : "the user's file"
    );
}

static result merge_fields(struct loading *loading, struct error *error) {
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
            return config_note(
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

void config_merge_user(struct loading *loading) {
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (loading->user.is_given[i]) {
            take_over(loading, &loading->user, (enum config_key)i);
        }
    }
}

result config_merge_project(struct loading *loading, struct error *error) {
    TRY(merge_fields(loading, error));
    return note_rules(loading, error);
}

result config_merge_options(struct loading *loading, struct error *error) {
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        enum config_key key = (enum config_key)i;
        if (key == CONFIG_RULES && loading->given.is_given[key]) {
            TRY(add(loading, &loading->given, key, true, error));
        } else if (loading->given.is_given[key]) {
            take_over(loading, &loading->given, key);
        }
    }
    return OK;
}
