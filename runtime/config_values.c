/* Strings, paths and numbers of a configuration, and what is said about wrong ones. */
#include "config_internal.h"
#include "nearest_name.h"

#include <stdarg.h>

struct config_memory {
    struct config_memory *next;
};

result
config_allocate(struct config_memory *memory, size_t bytes, void **out, struct error *error) {
    struct config_memory *block = calloc(1, sizeof *block + bytes);
    if (block == NULL) {
        FAIL(error, MEMORY, "no memory for the configuration");
    }
    block->next = memory->next;
    memory->next = block;
    *out = block + 1;
    return OK;
}

result
config_copy(struct config_memory *memory, struct view text, const char **out, struct error *error) {
    void *copy = NULL;
    TRY(config_allocate(memory, text.length + 1, &copy, error));
    ASSERT(copy != NULL);
    memcpy(copy, text.length > 0 ? text.data : (const unsigned char *)"", text.length);
    *out = copy;
    return OK;
}

result config_memory_create(struct config_memory **out, struct error *error) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        FAIL(error, MEMORY, "no memory for the configuration");
    }
    return OK;
}

void config_memory_destroy(struct config_memory *memory) {
    while (memory != NULL) {
        struct config_memory *next = memory->next;
        free(memory);
        memory = next;
    }
}

/* ---- places --------------------------------------------------------------------------------- */

/* 0 outside of a file. */
static unsigned line_of(const struct config_layer *layer, struct json_value at) {
    struct view raw = json_raw(at);
    unsigned line = layer->first_line;
    if (layer->text == NULL || raw.length == 0) {
        return 0;
    }
    for (const char *byte = layer->text; byte < (const char *)raw.data; byte++) {
        line += *byte == '\n' ? 1 : 0;
    }
    return line;
}

struct config_origin config_origin_of(const struct config_layer *layer, struct json_value at) {
    return (struct config_origin
    ){.source = layer->source, .name = layer->name, .line = line_of(layer, at)};
}

result config_wrong(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    struct error *error,
    const char *format,
    ...
) {
    char text[ERROR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    unsigned line = line_of(layer, at);
    if (line == 0) {
        FAIL(error, INVALID_INPUT, "%.200s: '%.100s' %s", layer->name, key, text);
    }
    FAIL(error, INVALID_INPUT, "%.200s:%u: '%.100s' %s", layer->name, line, key, text);
}

/* ---- names ---------------------------------------------------------------------------------- */

result config_check_members(
    const struct config_layer *layer,
    struct json_value object,
    const char *key,
    const char *const *names,
    size_t count,
    struct error *error
) {
    if (json_type(object) != JSON_OBJECT) {
        return config_wrong(
            layer, object, key, error, "wants objects, not %s", json_type_name(json_type(object))
        );
    }
    for (struct json_value value = json_first(object); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        bool is_known = false;
        for (size_t i = 0; i < count; i++) {
            is_known = is_known || view_equals_text(json_name(value), names[i]);
        }
        if (!is_known) {
            const char *nearest = nearest_name(json_name(value), names, count);
            return config_wrong(
                layer,
                value,
                key,
                error,
                "has no '%.*s'%s%s%s",
                VIEW_ARGUMENTS(view_slice(json_name(value), 0, 60)),
                nearest != NULL ? ": did you mean '" : "",
                nearest != NULL ? nearest : "",
                nearest != NULL ? "'?" : ""
            );
        }
    }
    return OK;
}

/* ---- values --------------------------------------------------------------------------------- */

result config_take_integer(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    int64_t min,
    int64_t max,
    int64_t *out,
    struct error *error
) {
    int64_t number = 0;
    if (!json_as_i64(value, &number) || number < min || number > max) {
        return config_wrong(
            layer,
            value,
            key,
            error,
            "wants a whole number from %lld to %lld, not %.*s",
            (long long)min,
            (long long)max,
            VIEW_ARGUMENTS(view_slice(json_raw(value), 0, 60))
        );
    }
    *out = number;
    return OK;
}

result config_take_text(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    const char **out,
    struct error *error
) {
    struct view text = {NULL, 0};
    if (!json_as_string(value, &text)) {
        return config_wrong(
            layer, value, key, error, "wants a text, not %s", json_type_name(json_type(value))
        );
    }
    if (text.length > CONFIG_TEXT_BYTES_MAX) {
        return config_wrong(
            layer,
            value,
            key,
            error,
            "has a text of %zu bytes, at most %zu are taken",
            text.length,
            CONFIG_TEXT_BYTES_MAX
        );
    }
    for (size_t i = 0; i < text.length; i++) {
        bool is_c1 = text.data[i] == 0xC2 && i + 1 < text.length && text.data[i + 1] < 0xA0;
        if (text.data[i] < 0x20 || text.data[i] == 0x7F || is_c1) {
            return config_wrong(layer, value, key, error, "has a control character in a text");
        }
    }
    return config_copy(layer->memory, text, out, error);
}

result config_take_texts(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
) {
    size_t count = json_count(value);
    void *items = NULL;
    if (json_type(value) != JSON_ARRAY || count > CONFIG_ITEMS_MAX) {
        return config_wrong(
            layer, value, key, error, "wants a list of at most %d texts", CONFIG_ITEMS_MAX
        );
    }
    TRY(config_allocate(layer->memory, (count + 1) * sizeof *out->items, &items, error));
    ASSERT(items != NULL);
    const char **texts = items;
    size_t index = 0;
    for (struct json_value item = json_first(value); json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        TRY(config_take_text(layer, item, key, &texts[index++], error));
        if (texts[index - 1][0] == '\0') {
            return config_wrong(layer, item, key, error, "has an empty text");
        }
    }
    ASSERT(index == count);
    out->items = texts;
    out->count = count;
    return OK;
}

/* Appends the parts of a path to an absolute one, without "." and ".."; false: it leads above "/". */
static result
append_parts(struct buffer *path, const char *parts, bool *is_below, struct error *error) {
    *is_below = true;
    for (const char *at = parts; *at != '\0';) {
        at += strspn(at, "/");
        size_t length = strcspn(at, "/");
        struct view part = view_of(at, length);
        if (view_equals_text(part, "..")) {
            while (path->length > 0 && path->data[path->length - 1] != '/') {
                path->length -= 1;
            }
            *is_below = *is_below && path->length > 0;
            path->length -= path->length > 0 ? 1 : 0;
        } else if (length > 0 && !view_equals_text(part, ".")) {
            TRY(buffer_append_byte(path, '/', error));
            TRY(buffer_append(path, part, error));
        }
        at += length;
    }
    return OK;
}

bool config_is_below(const char *path, const char *directory) {
    size_t length = strlen(directory);
    bool is_root = length == 1;
    return strncmp(path, directory, length) == 0 &&
           (is_root || path[length] == '/' || path[length] == '\0');
}

result config_take_path(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    const char **out,
    struct error *error
) {
    const char *text = NULL;
    bool is_below = true;
    CLEANUP(buffer_deinit) struct buffer path = {0};
    buffer_init(&path, 4 * CONFIG_TEXT_BYTES_MAX);
    TRY(config_take_text(layer, value, key, &text, error));
    ASSERT(text != NULL);
    if (text[0] == '\0') {
        return config_wrong(layer, value, key, error, "is an empty path");
    }
    if (text[0] == '~' && (text[1] == '/' || text[1] == '\0')) {
        if (layer->home == NULL) {
            return config_wrong(layer, value, key, error, "begins with ~, and there is no home");
        }
        TRY(append_parts(&path, layer->home, &is_below, error));
        text += 1;
    } else if (text[0] != '/') {
        ASSERT(layer->directory != NULL);
        TRY(append_parts(&path, layer->directory, &is_below, error));
    }
    TRY(append_parts(&path, text, &is_below, error));
    const char *absolute = path.length > 0 ? buffer_text(&path) : "/";
    if (layer->source == CONFIG_BY_PROJECT && !config_is_below(absolute, layer->directory)) {
        return config_wrong(
            layer, value, key, error, "leads out of the workspace: '%.200s'", absolute
        );
    }
    if (!is_below) {
        return config_wrong(layer, value, key, error, "leads above '/'");
    }
    return config_copy(layer->memory, view_of_text(absolute), out, error);
}
