/* Options of the command line as a layer of the configuration: their text becomes JSON, which is then
 * read as that of a file. */
#include "config_internal.h"

/* ACTION:TOOL[:PATTERN] as the object of a rule. */
static void write_rule(struct json_writer *writer, struct view text) {
    struct view rest = text;
    static const char *const names[] = {"action", "tool", "pattern"};
    json_write_object_begin(writer);
    for (size_t i = 0; i < COUNT_OF(names) && rest.data != NULL; i++) {
        size_t colon = i + 1 < COUNT_OF(names) ? view_find(rest, view_of_text(":"), 0) : SIZE_MAX;
        struct view part = colon == SIZE_MAX ? rest : view_slice(rest, 0, colon);
        json_write_key(writer, names[i]);
        json_write_string(writer, part);
        rest = colon == SIZE_MAX ? view_of(NULL, 0) : view_slice(rest, colon + 1, rest.length);
    }
    json_write_object_end(writer);
}

/* The elements of one option of a list. */
static void write_elements(struct json_writer *writer, struct view text) {
    for (size_t from = 0; from <= text.length;) {
        size_t comma = view_find(text, view_of_text(","), from);
        size_t end = comma == SIZE_MAX ? text.length : comma;
        if (end > from) {
            json_write_string(writer, view_slice(text, from, end - from));
        }
        from = end + 1;
    }
}

static bool is_list(enum config_type type) {
    return type == CONFIG_TEXTS || type == CONFIG_DIRECTORIES || type == CONFIG_HOSTS;
}

/* The value of a key as JSON, from all options that give it. */
static result write_override(
    const struct config_options *options,
    const struct config_override *override,
    struct json_writer *writer,
    struct error *error
) {
    enum config_type type = config_rows[override->key].type;
    struct view text = view_of_text(override->text);
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error ignored;
    bool is_raw = type == CONFIG_INTEGER || type == CONFIG_BOOLEAN;
    if (!utf8_is_valid(text)) {
        FAIL(error, INVALID_INPUT, "%s wants UTF-8 text", override->option);
    }
    if (type == CONFIG_RULE_LIST) { /* one by one, each with its own option */
        json_write_array_begin(writer);
        write_rule(writer, text);
        json_write_array_end(writer);
    } else if (is_list(type)) {
        json_write_array_begin(writer);
        for (size_t i = 0; i < options->override_count; i++) {
            if (options->overrides[i].key == override->key) {
                write_elements(writer, view_of_text(options->overrides[i].text));
            }
        }
        json_write_array_end(writer);
    } else if (is_raw && is_ok(json_parse(text, NULL, &document, &ignored))) {
        json_write_value(writer, json_root(document));
    } else {
        json_write_string(writer, text);
    }
    return OK;
}

/* Each option is a rule with an origin of its own. */
static result
append_rules(struct config_layer *layer, const struct config_rules *before, struct error *error) {
    struct config_rules *rules = &layer->values.rules;
    size_t count = before->count + rules->count;
    void *memory = NULL;
    TRY(config_allocate(layer->memory, (count + 1) * sizeof *rules->items, &memory, error));
    struct permission_rule *items = memory;
    for (size_t i = 0; i < count; i++) {
        items[i] = i < before->count ? before->items[i] : rules->items[i - before->count];
    }
    *rules = (struct config_rules){.items = items, .count = count};
    return OK;
}

result config_take_options(
    struct config_layer *layer, const struct config_options *options, struct error *error
) {
    for (size_t i = 0; i < options->override_count; i++) {
        const struct config_override *override = &options->overrides[i];
        const struct config_row *row = &config_rows[override->key];
        const struct config_rules rules = layer->values.rules;
        CLEANUP(buffer_deinit) struct buffer text = {0};
        CLEANUP(json_cleanup) struct json_document *document = NULL;
        struct json_writer writer;
        buffer_init(&text, CONFIG_FILE_BYTES_MAX);
        TRY(config_copy(layer->memory, view_of_text(override->option), &layer->name, error));
        if (row->type == CONFIG_SERVER_LIST || row->type == CONFIG_HOOK_LIST) {
            FAIL(error, INVALID_INPUT, "%s: '%s' is of files only", layer->name, row->name);
        }
        if (layer->is_given[override->key] && is_list(row->type)) {
            continue; /* taken with the first one */
        }
        layer->is_given[override->key] = false; /* the last one counts */
        json_writer_init(&writer, &text, error);
        TRY(write_override(options, override, &writer, error));
        TRY(json_writer_finish(&writer));
        TRY_NOTE(error, json_parse(buffer_view(&text), NULL, &document, error), "%s", layer->name);
        TRY(config_take_value(layer, override->key, json_root(document), error));
        if (row->type == CONFIG_RULE_LIST) {
            TRY(append_rules(layer, &rules, error));
        }
    }
    return OK;
}
