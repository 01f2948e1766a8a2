/* Checks a schema against the subset, and arguments against a schema. Errors name one thing, say
 * what was given and what is wanted, and list the parameters: a model can repair its call. */
#include "tool_schema.h"

#define NAME_SHOWN_BYTES 64 /* of a property's name in a message */

static const char *const schema_types[] = {
    "object", "string", "integer", "number", "boolean", "array"};

static bool is_known_type(struct view type) {
    for (size_t i = 0; i < COUNT_OF(schema_types); i++) {
        if (view_equals_text(type, schema_types[i])) {
            return true;
        }
    }
    return false;
}

static result check_keywords(
    struct json_value schema,
    const char *const *allowed,
    size_t count,
    const char *where,
    struct error *error
) {
    for (struct json_value v = json_first(schema); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        bool known = false;
        for (size_t i = 0; i < count && !known; i++) {
            known = view_equals_text(json_name(v), allowed[i]);
        }
        if (!known) {
            FAIL(
                error,
                UNSUPPORTED,
                "%s: keyword '%.*s' is not in the subset",
                where,
                VIEW_ARGUMENTS(json_name(v))
            );
        }
    }
    return OK;
}

static result check_type(struct json_value schema, const char *where, struct error *error) {
    struct view type;
    TRY_NOTE(error, json_get_string(schema, "type", &type, error), "%s", where);
    if (!is_known_type(type)) {
        FAIL(error, UNSUPPORTED, "%s: type '%.*s'", where, VIEW_ARGUMENTS(type));
    }
    return OK;
}

static result
check_object(struct json_value schema, const char *where, bool is_item, struct error *error);

static result
check_items(struct json_value items, const char *where, bool is_item, struct error *error) {
    struct view type;
    TRY_NOTE(error, json_get_string(items, "type", &type, error), "%s", where);
    if (view_equals_text(type, "object")) {
        if (is_item) {
            FAIL(error, UNSUPPORTED, "%s: objects in objects in arrays", where);
        }
        return check_object(items, where, true, error);
    }
    static const char *const keywords[] = {"type", "description"};
    TRY(check_keywords(items, keywords, COUNT_OF(keywords), where, error));
    return check_type(items, where, error);
}

/* `is_item`: of an object that is an item of an array; those nest no further. */
static result check_property(struct json_value property, bool is_item, struct error *error) {
    static const char *const keywords[] = {
        "type", "description", "enum", "minimum", "maximum", "items"};
    char where[80];
    struct view name = json_name(property);
    int shown = name.length > NAME_SHOWN_BYTES ? NAME_SHOWN_BYTES : (int)name.length;
    (void)snprintf(where, sizeof where, "property '%.*s'", shown, (const char *)name.data);
    if (json_type(property) != JSON_OBJECT) {
        FAIL(error, INVALID_INPUT, "%s is no object", where);
    }
    TRY(check_keywords(property, keywords, COUNT_OF(keywords), where, error));
    TRY(check_type(property, where, error));
    struct json_value values = json_get(property, "enum");
    struct view text;
    for (struct json_value v = json_first(values); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (!json_as_string(v, &text)) {
            FAIL(error, UNSUPPORTED, "%s: an enum value that is no string", where);
        }
    }
    struct json_value items = json_get(property, "items");
    return json_type(items) == JSON_ABSENT ? OK : check_items(items, where, is_item, error);
}

static result
check_object(struct json_value schema, const char *where, bool is_item, struct error *error) {
    static const char *const keywords[] = {"type", "description", "properties", "required"};
    TRY(check_keywords(schema, keywords, COUNT_OF(keywords), where, error));
    struct json_value properties;
    TRY_NOTE(error, json_get_object(schema, "properties", &properties, error), "%s", where);
    for (struct json_value v = json_first(properties); json_type(v) != JSON_ABSENT;
         v = json_next(v)) {
        TRY(check_property(v, is_item, error));
    }
    struct json_value required = json_get(schema, "required");
    for (struct json_value v = json_first(required); json_type(v) != JSON_ABSENT;
         v = json_next(v)) {
        struct view name;
        if (!json_as_string(v, &name) ||
            json_type(json_get_view(properties, name)) == JSON_ABSENT) {
            FAIL(error, INVALID_INPUT, "%s: a required property that is not declared", where);
        }
    }
    return OK;
}

result tool_schema_check(struct json_value schema, struct error *error) {
    if (json_type(schema) != JSON_OBJECT) {
        FAIL(error, INVALID_INPUT, "a schema must be an object");
    }
    struct view type;
    TRY(json_get_string(schema, "type", &type, error));
    if (!view_equals_text(type, "object")) {
        FAIL(error, UNSUPPORTED, "schema: arguments of type '%.*s'", VIEW_ARGUMENTS(type));
    }
    return check_object(schema, "schema", false, error);
}

/* ----------------------------------------------------------------- arguments ---- */

static bool has_type(struct json_value value, struct view type) {
    enum json_type found = json_type(value);
    int64_t integer = 0;
    if (view_equals_text(type, "string")) {
        return found == JSON_STRING;
    }
    if (view_equals_text(type, "integer")) {
        return json_as_i64(value, &integer);
    }
    if (view_equals_text(type, "number")) {
        return found == JSON_NUMBER;
    }
    if (view_equals_text(type, "boolean")) {
        return found == JSON_BOOL;
    }
    return found == (view_equals_text(type, "array") ? JSON_ARRAY : JSON_OBJECT);
}

static struct view type_of(struct json_value schema) {
    struct view type = {NULL, 0};
    (void)json_as_string(json_get(schema, "type"), &type); // tool_schema_check saw it
    return type;
}

static bool is_required(struct json_value schema, struct view name) {
    struct json_value v = json_first(json_get(schema, "required"));
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view required;
        if (json_as_string(v, &required) && view_equals(required, name)) {
            return true;
        }
    }
    return false;
}

/* "; edit takes path (string), old (string), new (string)" */
static result append_signature(
    const char *tool_name, struct json_value schema, struct buffer *why, struct error *error
) {
    TRY(buffer_append_format(why, error, "; %s takes", tool_name));
    const char *separator = " ";
    struct json_value v = json_first(json_get(schema, "properties"));
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        TRY(buffer_append_format(
            why,
            error,
            "%s%.*s (%.*s%s)",
            separator,
            VIEW_ARGUMENTS(json_name(v)),
            VIEW_ARGUMENTS(type_of(v)),
            is_required(schema, json_name(v)) ? "" : ", optional"
        ));
        separator = ", ";
    }
    return OK;
}

static result append_choices(struct json_value values, struct buffer *why, struct error *error) {
    const char *separator = "";
    for (struct json_value v = json_first(values); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view text;
        if (json_as_string(v, &text)) {
            TRY(buffer_append_format(why, error, "%s%.*s", separator, VIEW_ARGUMENTS(text)));
            separator = ", ";
        }
    }
    return OK;
}

static bool is_one_of(struct json_value value, struct json_value values) {
    struct view text;
    struct view choice;
    for (struct json_value v = json_first(values); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (json_as_string(value, &text) && json_as_string(v, &choice) &&
            view_equals(text, choice)) {
            return true;
        }
    }
    return false;
}

static result match_members(
    struct json_value schema, struct json_value arguments, struct buffer *why, struct error *error
);

/* Goes down once: tool_schema_check lets objects nest no further. */
static result match_items(
    struct json_value property, struct json_value value, struct buffer *why, struct error *error
) {
    struct json_value items = json_get(property, "items");
    if (json_type(items) != JSON_OBJECT) {
        return OK;
    }
    struct view name = json_name(property);
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (!has_type(v, type_of(items))) {
            return buffer_append_format(
                why,
                error,
                "error: parameter '%.*s' must hold items of type %.*s only",
                VIEW_ARGUMENTS(name),
                VIEW_ARGUMENTS(type_of(items))
            );
        }
        if (view_equals_text(type_of(items), "object")) {
            TRY(match_members(items, v, why, error));
            if (why->length > 0) {
                return buffer_append_format(
                    why, error, " (in an item of '%.*s')", VIEW_ARGUMENTS(name)
                );
            }
        }
    }
    return OK;
}

/* Writes into `why` what is wrong with one value; nothing when it is fine. */
static result match_value(
    struct json_value property, struct json_value value, struct buffer *why, struct error *error
) {
    struct view name = json_name(property);
    struct view type = type_of(property);
    if (!has_type(value, type)) {
        return buffer_append_format(
            why,
            error,
            "error: parameter '%.*s' must be of type %.*s, not %s",
            VIEW_ARGUMENTS(name),
            VIEW_ARGUMENTS(type),
            json_type_name(json_type(value))
        );
    }
    struct json_value choices = json_get(property, "enum");
    if (json_type(choices) == JSON_ARRAY && !is_one_of(value, choices)) {
        TRY(buffer_append_format(
            why, error, "error: parameter '%.*s' must be one of: ", VIEW_ARGUMENTS(name)
        ));
        return append_choices(choices, why, error);
    }
    int64_t number = 0;
    int64_t bound = 0;
    if (json_as_i64(value, &number)) {
        if (json_as_i64(json_get(property, "minimum"), &bound) && number < bound) {
            return buffer_append_format(
                why,
                error,
                "error: parameter '%.*s' must be at least %lld",
                VIEW_ARGUMENTS(name),
                (long long)bound
            );
        }
        if (json_as_i64(json_get(property, "maximum"), &bound) && number > bound) {
            return buffer_append_format(
                why,
                error,
                "error: parameter '%.*s' must be at most %lld",
                VIEW_ARGUMENTS(name),
                (long long)bound
            );
        }
    }
    return match_items(property, value, why, error);
}

static result match_members(
    struct json_value schema, struct json_value arguments, struct buffer *why, struct error *error
) {
    struct json_value properties = json_get(schema, "properties");
    struct json_value v = json_first(json_get(schema, "required"));
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view name;
        if (json_as_string(v, &name) && json_type(json_get_view(arguments, name)) == JSON_ABSENT) {
            return buffer_append_format(
                why, error, "error: missing parameter '%.*s'", VIEW_ARGUMENTS(name)
            );
        }
    }
    for (v = json_first(arguments); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view name = json_name(v);
        struct json_value property = json_get_view(properties, name);
        if (json_type(property) == JSON_ABSENT) {
            return buffer_append_format(
                why,
                error,
                "error: unknown parameter '%.*s'",
                (int)(name.length > 64 ? 64 : name.length),
                (const char *)name.data
            );
        }
        if (json_type(v) == JSON_NULL && !is_required(schema, name)) {
            continue; // many models write null for what they leave out
        }
        TRY(match_value(property, v, why, error));
        if (why->length > 0) {
            return OK;
        }
    }
    return OK;
}

result tool_schema_match(
    const char *tool_name,
    struct json_value schema,
    struct json_value arguments,
    struct buffer *why,
    bool *matches,
    struct error *error
) {
    buffer_clear(why);
    if (json_type(arguments) != JSON_OBJECT) {
        TRY(buffer_append_format(
            why,
            error,
            "error: the arguments of %s must be an object, not %s",
            tool_name,
            json_type_name(json_type(arguments))
        ));
    } else {
        TRY(match_members(schema, arguments, why, error));
    }
    *matches = why->length == 0;
    return *matches ? OK : append_signature(tool_name, schema, why, error);
}
