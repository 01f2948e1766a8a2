/* A configuration written out: values as a file would hold them, and where each came from. */
#include "config_internal.h"

#include <inttypes.h>

bool config_is_set(const struct config *config, enum config_key key) {
    return config->origins[key].source != CONFIG_BY_DEFAULT;
}

result config_origin_describe(
    const struct config_origin *origin, struct buffer *out, struct error *error
) {
    if (origin->source == CONFIG_BY_DEFAULT) {
        return buffer_append_text(out, "default", error);
    }
    TRY(buffer_append_text(out, origin->name, error));
    return origin->line > 0 ? buffer_append_format(out, error, ":%u", origin->line) : OK;
}

static void write_texts(struct json_writer *writer, const struct config_list *list) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < list->count; i++) {
        json_write_text(writer, list->items[i]);
    }
    json_write_array_end(writer);
}

static void write_rules(struct json_writer *writer, const struct config_rules *rules) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < rules->count; i++) {
        const struct permission_rule *rule = &rules->items[i];
        json_write_object_begin(writer);
        json_write_key(writer, "tool");
        json_write_text(writer, rule->tool);
        if (rule->pattern[0] != '\0') {
            json_write_key(writer, "pattern");
            json_write_text(writer, rule->pattern);
        }
        json_write_key(writer, "action");
        json_write_text(writer, permission_action_name(rule->action));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_hooks(struct json_writer *writer, const struct config_hooks *hooks) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < hooks->count; i++) {
        const struct config_hook *hook = &hooks->items[i];
        json_write_object_begin(writer);
        json_write_key(writer, "command");
        json_write_array_begin(writer);
        json_write_text(writer, hook->command);
        for (size_t j = 0; j < hook->arguments.count; j++) {
            json_write_text(writer, hook->arguments.items[j]);
        }
        json_write_array_end(writer);
        json_write_key(writer, "tool");
        json_write_text(writer, hook->tool);
        json_write_key(writer, "timeout_ms");
        json_write_i64(writer, hook->timeout_ms);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_server(struct json_writer *writer, const struct config_server *server) {
    json_write_key(writer, server->name);
    json_write_object_begin(writer);
    json_write_key(writer, "command");
    write_texts(writer, &server->command);
    json_write_key(writer, "env");
    json_write_object_begin(writer);
    for (size_t i = 0; i < server->environment.count; i++) {
        const char *entry = server->environment.items[i];
        json_write_key_view(writer, view_of(entry, strcspn(entry, "=")));
        json_write_text(writer, "..."); /* may be a secret */
    }
    json_write_object_end(writer);
    json_write_key(writer, "trusted");
    json_write_bool(writer, server->is_trusted);
    json_write_key(writer, "timeout_ms");
    json_write_i64(writer, server->timeout_ms);
    json_write_key(writer, "read_only");
    write_texts(writer, &server->read_only);
    json_write_key(writer, "directories");
    write_texts(writer, &server->directories);
    json_write_object_end(writer);
}

static void write_size(struct json_writer *writer, const struct config_size *size) {
    char text[32];
    if (size->is_off || size->bytes == 0) {
        json_write_text(writer, size->is_off ? "off" : "default");
        return;
    }
    int length = snprintf(text, sizeof text, "%" PRIu64, size->bytes);
    ASSERT(length > 0);
    json_write_text(writer, text);
}

/* Numbers whose 0 means that there is none. */
static void write_number(struct json_writer *writer, enum config_key key, int64_t number) {
    bool is_none = number == 0 && config_rows[key].min > 0;
    if (is_none) {
        json_write_null(writer);
    } else {
        json_write_i64(writer, number);
    }
}

static void write_duration(struct json_writer *writer, int64_t milliseconds) {
    char text[32];
    int length = snprintf(text, sizeof text, "%" PRId64 "ms", milliseconds);
    ASSERT(length > 0);
    if (milliseconds == 0) {
        json_write_null(writer);
    } else {
        json_write_text(writer, text);
    }
}

static void write_word(struct json_writer *writer, const char *word) {
    if (word == NULL) {
        json_write_null(writer);
    } else {
        json_write_text(writer, word);
    }
}

void config_value_write(
    const struct config *config, enum config_key key, struct json_writer *writer
) {
    static const char *const colours[] = {"auto", "always", "never"};
    ASSERT(key < CONFIG_KEY_COUNT);
    const void *field = (const char *)config + config_rows[key].offset;
    switch (config_rows[key].type) {
    case CONFIG_DIRECTORY:
    case CONFIG_CHOICE:
    case CONFIG_TEXT:
        write_word(writer, *(const char *const *)field);
        break;
    case CONFIG_POLICY_NAME:
        json_write_text(writer, permission_policy_name(config->policy));
        break;
    case CONFIG_COLOUR_NAME:
        json_write_text(writer, colours[config->terminal_colour]);
        break;
    case CONFIG_EFFORT_LEVEL:
        if (config_is_set(config, key)) {
            config->effort == 0 ? json_write_text(writer, "off")
                                : json_write_i64(writer, config->effort);
        } else {
            json_write_null(writer);
        }
        break;
    case CONFIG_INTEGER:
        write_number(writer, key, *(const int64_t *)field);
        break;
    case CONFIG_DURATION:
        write_duration(writer, *(const int64_t *)field);
        break;
    case CONFIG_SIZE:
        write_size(writer, field);
        break;
    case CONFIG_BOOLEAN:
        json_write_bool(writer, *(const bool *)field);
        break;
    case CONFIG_TEXTS:
    case CONFIG_DIRECTORIES:
    case CONFIG_HOSTS:
        write_texts(writer, field);
        break;
    case CONFIG_RULE_LIST:
        write_rules(writer, field);
        break;
    case CONFIG_SERVER_LIST:
        json_write_object_begin(writer);
        for (size_t i = 0; i < config->mcp.count; i++) {
            write_server(writer, &config->mcp.items[i]);
        }
        json_write_object_end(writer);
        break;
    case CONFIG_HOOK_LIST:
        write_hooks(writer, field);
        break;
    }
}
