/* Values of each type: what may stand between their first and last byte. Chains are built from their
 * ends. */
#include <math.h>

#include "python_json.h"
#include "schema_internal.h"

/* ---- strings ---- */

/* What follows the characters of a string. */
static result end_string(struct schema_compiler *compiler, uint32_t *out) {
    *out = compiler->place.next;
    return compiler->place.form == SCHEMA_FORM_PARAMETER
               ? OK
               : schema_literal(compiler, "\"", *out, out);
}

static enum grammar_form string_form(const struct schema_compiler *compiler) {
    return compiler->place.form == SCHEMA_FORM_PARAMETER ? GRAMMAR_FORM_RAW : GRAMMAR_FORM_JSON;
}

result schema_add_text(struct schema_compiler *compiler) {
    uint32_t end = 0;
    uint32_t node = 0;
    struct grammar_string string = {.form = string_form(compiler)};
    TRY(end_string(compiler, &end));
    struct json_value pattern = json_get(compiler->place.schema, "pattern");
    if (schema_is_there(pattern)) {
        struct view text;
        if (!json_as_string(pattern, &text)) {
            SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"pattern\" is no string");
        }
        TRY(schema_refuse_beside(compiler, "minLength", "pattern"));
        TRY(schema_refuse_beside(compiler, "maxLength", "pattern"));
        result status =
            schema_add_pattern(compiler->grammar, text, string.form, end, &node, compiler->error);
        TRY_NOTE(compiler->error, status, "%s", schema_where(compiler));
        return schema_choose_value(compiler, true, node);
    }
    uint32_t most = GRAMMAR_CHARACTERS_MAX;
    TRY(schema_get_count(compiler, "minLength", most, 0, &string.characters_min));
    TRY(schema_get_count(compiler, "maxLength", most, UINT32_MAX, &string.characters_max));
    if (string.characters_min > string.characters_max) {
        SCHEMA_REFUSE(
            compiler,
            INVALID_INPUT,
            "minLength %u is above maxLength %u",
            string.characters_min,
            string.characters_max
        );
    }
    TRY(grammar_add_string(compiler->grammar, &string, end, &node, compiler->error));
    return schema_choose_value(compiler, true, node);
}

/* ---- numbers ---- */

/* A bound: whole ones as they are, others for whole numbers rounded inwards. */
static result get_bound(
    struct schema_compiler *compiler,
    const char *keyword,
    bool is_low,
    bool is_whole,
    int64_t *out,
    bool *is_open
) {
    struct json_value value = json_get(compiler->place.schema, keyword);
    bool excludes = keyword[0] == 'e';
    double bound = 0;
    if (!schema_is_there(value)) {
        return OK;
    }
    if (!json_as_double(value, &bound)) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"%s\" is no number", keyword);
    }
    if (bound != floor(bound)) {
        if (!is_whole) {
            SCHEMA_REFUSE(
                compiler,
                UNSUPPORTED,
                "keyword \"%s\" is %.17g; for type \"number\" only whole bounds are supported",
                keyword,
                bound
            );
        }
        bound = is_low ? ceil(bound) : floor(bound);
        excludes = false;
    }
    int64_t whole = 0;
    if (bound > 9e17 || bound < -9e17) { // beyond these 64-bit floats skip whole numbers
        SCHEMA_REFUSE(
            compiler, LIMIT, "keyword \"%s\" is %.17g; at most 9e17 is supported", keyword, bound
        );
    }
    if (!json_as_i64(value, &whole) || bound != (double)whole) {
        whole = (int64_t)bound;
    }
    bool is_tighter = is_low ? whole > *out : whole < *out;
    if (is_tighter || whole == *out) {
        *is_open = excludes || (!is_tighter && *is_open);
        *out = whole;
    }
    return OK;
}

result schema_add_numbers(struct schema_compiler *compiler, bool is_whole) {
    struct schema_bounds bounds = {.low = -SCHEMA_NUMBER_MAX, .high = SCHEMA_NUMBER_MAX};
    struct json_value schema = compiler->place.schema;
    uint32_t next = compiler->place.next;
    uint32_t node = 0;
    TRY(get_bound(compiler, "minimum", true, is_whole, &bounds.low, &bounds.low_is_open));
    TRY(get_bound(compiler, "exclusiveMinimum", true, is_whole, &bounds.low, &bounds.low_is_open));
    TRY(get_bound(compiler, "maximum", false, is_whole, &bounds.high, &bounds.high_is_open));
    TRY(get_bound(compiler, "exclusiveMaximum", false, is_whole, &bounds.high, &bounds.high_is_open)
    );
    bool is_bounded = schema_is_there(json_get(schema, "minimum")) ||
                      schema_is_there(json_get(schema, "maximum")) ||
                      schema_is_there(json_get(schema, "exclusiveMinimum")) ||
                      schema_is_there(json_get(schema, "exclusiveMaximum"));
    if (!is_bounded) {
        TRY(grammar_add_number(compiler->grammar, is_whole, next, &node, compiler->error));
        return schema_choose_value(compiler, false, node);
    }
    bool is_empty = false;
    TRY(schema_add_bounded(
        compiler->grammar, &bounds, is_whole, next, &node, &is_empty, compiler->error
    ));
    if (is_empty) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "no number lies within the bounds");
    }
    return schema_choose_value(compiler, false, node);
}

/* ---- arrays ---- */

struct elements {
    struct json_value prefix; /* list of schemas; absent: none */
    size_t prefix_count;
    struct json_value items; /* absent: any value */
    uint32_t min;
    uint32_t max; /* UINT32_MAX: any number */
};

/* Element `index`, followed by `next`. */
static result add_element(
    struct schema_compiler *compiler,
    const struct elements *elements,
    size_t index,
    struct json_value schema,
    uint32_t next,
    uint32_t *out
) {
    bool is_any = index >= elements->prefix_count && !schema_is_there(schema);
    if (is_any) {
        struct schema_place place = {
            .next = next,
            .step = compiler->place.step,
            .depth = compiler->place.depth + 1,
            .is_any = true,
            .any_depth =
                compiler->place.is_any ? compiler->place.any_depth - 1 : SCHEMA_ANY_DEPTH - 1};
        return schema_wait_for(compiler, place, out);
    }
    bool is_prefix = index < elements->prefix_count;
    struct schema_child child = {
        .schema = schema,
        .keyword = is_prefix ? "prefixItems" : "items",
        .index = is_prefix ? index : SIZE_MAX};
    return schema_add_child(compiler, &child, SCHEMA_FORM_JSON, next, out);
}

static result get_elements(struct schema_compiler *compiler, struct elements *out) {
    struct json_value schema = compiler->place.schema;
    *out = (struct elements
    ){.prefix = json_get(schema, "prefixItems"), .items = json_get(schema, "items")};
    out->prefix_count = json_count(out->prefix);
    bool allows_more = true;
    TRY(schema_get_count(compiler, "minItems", SCHEMA_ITEMS_MAX, 0, &out->min));
    TRY(schema_get_count(compiler, "maxItems", SCHEMA_ITEMS_MAX, UINT32_MAX, &out->max));
    if (schema_is_there(out->prefix) && json_type(out->prefix) != JSON_ARRAY) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"prefixItems\" is no list");
    }
    if (json_type(out->items) == JSON_ARRAY) {
        SCHEMA_REFUSE(compiler, UNSUPPORTED, "keyword \"items\" as a list; use \"prefixItems\"");
    }
    if (out->prefix_count > SCHEMA_ITEMS_MAX) {
        SCHEMA_REFUSE(
            compiler,
            LIMIT,
            "%zu prefixItems; at most %d are supported",
            out->prefix_count,
            SCHEMA_ITEMS_MAX
        );
    }
    bool is_closed = json_as_bool(out->items, &allows_more) && !allows_more;
    bool ends_with_prefix =
        is_closed || (schema_is_there(out->prefix) && !schema_is_there(out->items));
    if (ends_with_prefix && out->max > out->prefix_count) {
        out->max = (uint32_t)out->prefix_count;
    }
    if (out->min > out->max) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "at least %u items, at most %u", out->min, out->max);
    }
    bool is_unique = false;
    if (json_as_bool(json_get(schema, "uniqueItems"), &is_unique) && is_unique && out->max > 1) {
        SCHEMA_REFUSE(compiler, UNSUPPORTED, "keyword \"uniqueItems\" is not supported");
    }
    return OK;
}

/* The nth member or element; absent beyond the end. */
struct json_value schema_nth(struct json_value container, size_t index) {
    struct json_value value = json_first(container);
    for (size_t i = 0; i < index && schema_is_there(value); i++) {
        value = json_next(value);
    }
    return value;
}

/* What may follow elements of which any number more may come; *item is one such element. */
static result add_tail(
    struct schema_compiler *compiler,
    const struct elements *elements,
    uint32_t close,
    uint32_t *item,
    uint32_t *after
) {
    uint32_t link = 0;
    uint32_t comma = 0;
    TRY(grammar_add_link(compiler->grammar, &link, compiler->error));
    TRY(add_element(compiler, elements, SIZE_MAX, elements->items, link, item));
    TRY(schema_literal(compiler, ", ", *item, &comma));
    TRY(grammar_add_fork(compiler->grammar, close, comma, after, compiler->error));
    grammar_aim(compiler->grammar, link, *after);
    return OK;
}

static result add_elements(struct schema_compiler *compiler, const struct elements *elements) {
    uint32_t close = 0;
    TRY(schema_literal(compiler, "]", compiler->place.next, &close));
    bool is_open = elements->max == UINT32_MAX;
    size_t fixed = elements->min > elements->prefix_count ? elements->min : elements->prefix_count;
    size_t count = is_open ? fixed : elements->max;
    uint32_t after = close; // what may follow `count` elements
    uint32_t item = close;  // element `count`, if there may be one
    if (is_open) {
        TRY(add_tail(compiler, elements, close, &item, &after));
    }
    uint32_t begin = is_open ? item : close;
    bool may_begin = is_open;
    for (size_t i = count; i-- > 0;) {
        bool is_prefix = i < elements->prefix_count;
        struct json_value schema = is_prefix ? schema_nth(elements->prefix, i) : elements->items;
        TRY(add_element(compiler, elements, i, schema, after, &item));
        TRY(schema_literal(compiler, ", ", item, &after));
        if (i >= elements->min) {
            TRY(grammar_add_fork(compiler->grammar, close, after, &after, compiler->error));
        }
        begin = item;
        may_begin = true;
    }
    if (may_begin && elements->min == 0) {
        TRY(grammar_add_fork(compiler->grammar, close, begin, &begin, compiler->error));
    }
    TRY(schema_literal(compiler, "[", begin, &begin));
    return schema_choose_value(compiler, false, begin);
}

result schema_add_array(struct schema_compiler *compiler) {
    struct elements elements;
    TRY(get_elements(compiler, &elements));
    return add_elements(compiler, &elements);
}

/* ---- objects ---- */

/* `<DSML parameter name="NAME"`, then the value. */
static result add_parameter_name(
    struct schema_compiler *compiler, struct view name, uint32_t next, uint32_t *out
) {
    for (size_t i = 0; i < name.length; i++) {
        unsigned char c = name.data[i];
        if (c < 0x20 || c == '"' || c == '<' || c == '>') {
            SCHEMA_REFUSE(
                compiler,
                INVALID_INPUT,
                "property \"%.*s\" has a name that no parameter can have",
                VIEW_ARGUMENTS(grammar_shown(name))
            );
        }
    }
    if (name.length == 0 || name.length > 256) {
        SCHEMA_REFUSE(
            compiler, INVALID_INPUT, "a property's name of %zu bytes; 1 to 256", name.length
        );
    }
    struct grammar *grammar = compiler->grammar;
    struct error *error = compiler->error;
    TRY(schema_literal(compiler, "\"", next, &next));
    TRY(grammar_add_literal(grammar, name, next, &next, error));
    TRY(schema_literal(compiler, " parameter name=\"", next, &next));
    TRY(grammar_add_control(grammar, compiler->dsml_id, next, &next, error));
    return schema_literal(compiler, "<", next, out);
}

static result
add_name(struct schema_compiler *compiler, struct view name, uint32_t next, uint32_t *out) {
    buffer_clear(&compiler->text);
    TRY(python_json_append_string(&compiler->text, name, compiler->error));
    TRY(buffer_append_text(&compiler->text, ": ", compiler->error));
    struct view text = buffer_view(&compiler->text);
    return grammar_add_literal(compiler->grammar, text, next, out, compiler->error);
}

/* A property with its name, followed by `next`. */
static result add_property(
    struct schema_compiler *compiler, struct json_value property, uint32_t next, uint32_t *out
) {
    bool is_argument = compiler->place.form == SCHEMA_FORM_ARGUMENTS;
    struct schema_child child = {
        .schema = property, .keyword = "properties", .name = json_name(property)};
    enum schema_form form = is_argument ? SCHEMA_FORM_PARAMETER : SCHEMA_FORM_JSON;
    uint32_t value = 0;
    if (is_argument) {
        TRY(schema_literal(compiler, " parameter>", next, &next));
        TRY(grammar_add_control(compiler->grammar, compiler->dsml_id, next, &next, compiler->error)
        );
        TRY(schema_literal(compiler, "</", next, &next));
    }
    TRY(schema_add_child(compiler, &child, form, next, &value));
    return is_argument ? add_parameter_name(compiler, child.name, value, out)
                       : add_name(compiler, child.name, value, out);
}

bool schema_is_required(struct json_value required, struct view name) {
    struct view text;
    for (struct json_value v = json_first(required); schema_is_there(v); v = json_next(v)) {
        if (json_as_string(v, &text) && view_equals(text, name)) {
            return true;
        }
    }
    return false;
}

static result check_required(
    struct schema_compiler *compiler, struct json_value required, struct json_value properties
) {
    if (schema_is_there(required) && json_type(required) != JSON_ARRAY) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"required\" is no list");
    }
    size_t count = json_count(required);
    if (count > SCHEMA_PROPERTIES_MAX) {
        SCHEMA_REFUSE(
            compiler, LIMIT, "%zu required properties; at most %d", count, SCHEMA_PROPERTIES_MAX
        );
    }
    for (struct json_value v = json_first(required); schema_is_there(v); v = json_next(v)) {
        struct view name;
        if (!json_as_string(v, &name)) {
            SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"required\" holds what is no name");
        }
        if (!schema_is_there(json_get_view(properties, name))) {
            SCHEMA_REFUSE(
                compiler,
                UNSUPPORTED,
                "keyword \"required\" names \"%.*s\", which is not among the properties",
                VIEW_ARGUMENTS(grammar_shown(name))
            );
        }
    }
    return OK;
}

/* Declared properties in their order. */
static result add_properties(struct schema_compiler *compiler, struct json_value properties) {
    struct grammar *grammar = compiler->grammar;
    struct error *error = compiler->error;
    bool is_arguments = compiler->place.form == SCHEMA_FORM_ARGUMENTS;
    struct json_value required = json_get(compiler->place.schema, "required");
    TRY(check_required(compiler, required, properties));
    struct json_value members[SCHEMA_PROPERTIES_MAX];
    size_t count = 0;
    for (struct json_value v = json_first(properties); schema_is_there(v); v = json_next(v)) {
        // The parser of calls reads 128 parameters.
        if (count == (is_arguments ? 128 : SCHEMA_PROPERTIES_MAX)) {
            SCHEMA_REFUSE(compiler, LIMIT, "more than %zu properties", count);
        }
        members[count++] = v;
    }
    uint32_t first = compiler->place.next; // nothing was written before
    if (!is_arguments) {
        TRY(schema_literal(compiler, "}", first, &first));
    }
    uint32_t later = first;
    for (size_t i = count; i-- > 0;) {
        uint32_t property = 0;
        uint32_t separated = 0;
        TRY(add_property(compiler, members[i], later, &property));
        TRY(schema_literal(compiler, is_arguments ? "\n" : ", ", property, &separated));
        if (schema_is_required(required, json_name(members[i]))) {
            first = property;
            later = separated;
        } else {
            TRY(grammar_add_fork(grammar, property, first, &first, error));
            TRY(grammar_add_fork(grammar, separated, later, &later, error));
        }
    }
    if (is_arguments) {
        return schema_choose_node(compiler, first);
    }
    TRY(schema_literal(compiler, "{", first, &first));
    return schema_choose_value(compiler, false, first);
}

/* Any names, values of one schema (absent: any value). */
static result add_map(struct schema_compiler *compiler, struct json_value values) {
    struct grammar *grammar = compiler->grammar;
    struct error *error = compiler->error;
    uint32_t close = 0;
    uint32_t after = 0;
    uint32_t value = 0;
    uint32_t node = 0;
    struct grammar_string name = {.form = GRAMMAR_FORM_JSON, .characters_max = UINT32_MAX};
    struct elements no_prefix = {.items = values};
    TRY(schema_literal(compiler, "}", compiler->place.next, &close));
    TRY(grammar_add_link(grammar, &after, error));
    if (schema_is_there(values)) {
        struct schema_child child = {
            .schema = values, .keyword = "additionalProperties", .index = SIZE_MAX};
        TRY(schema_add_child(compiler, &child, SCHEMA_FORM_JSON, after, &value));
    } else {
        TRY(add_element(compiler, &no_prefix, SIZE_MAX, values, after, &value));
    }
    TRY(schema_literal(compiler, "\": ", value, &node));
    TRY(grammar_add_string(grammar, &name, node, &node, error));
    TRY(schema_literal(compiler, "\"", node, &node));
    uint32_t more = 0;
    TRY(schema_literal(compiler, ", ", node, &more));
    TRY(grammar_add_fork(grammar, close, more, &more, error));
    grammar_aim(grammar, after, more);
    TRY(grammar_add_fork(grammar, close, node, &node, error));
    TRY(schema_literal(compiler, "{", node, &node));
    return schema_choose_value(compiler, false, node);
}

result schema_add_object(struct schema_compiler *compiler) {
    struct json_value schema = compiler->place.schema;
    struct json_value properties = json_get(schema, "properties");
    struct json_value more = json_get(schema, "additionalProperties");
    if (schema_is_there(properties) && json_type(properties) != JSON_OBJECT) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"properties\" is no object");
    }
    bool allows_more = true;
    bool is_closed = json_as_bool(more, &allows_more) && !allows_more;
    bool is_plain = json_count(properties) > 0 || is_closed;
    if (is_plain || compiler->place.form == SCHEMA_FORM_ARGUMENTS) {
        return add_properties(compiler, properties);
    }
    TRY(check_required(compiler, json_get(schema, "required"), properties));
    struct json_value none = {NULL, NULL};
    return add_map(compiler, json_type(more) == JSON_OBJECT ? more : none);
}

/* ---- any value ---- */

result schema_add_any(struct schema_compiler *compiler) {
    struct json_value none = {NULL, NULL};
    struct schema_place *place = &compiler->place;
    uint32_t node = 0;
    if (place->form == SCHEMA_FORM_ARGUMENTS) {
        return add_properties(compiler, none);
    }
    place->schema = none; // no limits
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        TRY(schema_literal(compiler, words[i], place->next, &node));
        TRY(schema_choose_value(compiler, false, node));
    }
    TRY(schema_add_numbers(compiler, false));
    TRY(schema_add_text(compiler));
    if (place->any_depth == 0) {
        return OK;
    }
    struct elements elements = {.max = UINT32_MAX};
    TRY(add_elements(compiler, &elements));
    return add_map(compiler, none);
}

/* ---- enum, const ---- */

static unsigned type_of_value(struct json_value value) {
    double number = 0;
    switch (json_type(value)) {
    case JSON_NULL:
        return SCHEMA_TYPE_NULL;
    case JSON_BOOL:
        return SCHEMA_TYPE_BOOLEAN;
    case JSON_NUMBER:
        return json_as_double(value, &number) && number == floor(number)
                   ? SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_NUMBER
                   : SCHEMA_TYPE_NUMBER;
    case JSON_STRING:
        return SCHEMA_TYPE_STRING;
    case JSON_ARRAY:
        return SCHEMA_TYPE_ARRAY;
    case JSON_OBJECT:
        return SCHEMA_TYPE_OBJECT;
    case JSON_ABSENT:
        break;
    }
    return 0;
}

static result add_value(struct schema_compiler *compiler, struct json_value value) {
    bool is_string = json_type(value) == JSON_STRING;
    struct view text;
    uint32_t node = compiler->place.next;
    if (compiler->place.form == SCHEMA_FORM_ARGUMENTS) {
        SCHEMA_REFUSE(
            compiler, UNSUPPORTED, "arguments as \"enum\" or \"const\" are not supported"
        );
    }
    if (json_as_string(value, &text) && compiler->place.form == SCHEMA_FORM_PARAMETER) {
        TRY(grammar_add_literal(compiler->grammar, text, node, &node, compiler->error));
        return schema_choose_value(compiler, true, node);
    }
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    buffer_clear(&compiler->text);
    TRY(python_json_append(&compiler->text, value, compiler->error));
    text = buffer_view(&compiler->text);
    result parsed = json_parse(text, NULL, &document, NULL);
    if (parsed.code == RESULT_MEMORY) {
        FAIL(compiler->error, MEMORY, "no memory for a value of %zu bytes", text.length);
    }
    if (is_failed(parsed)) { // infinite numbers
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "a value that JSON cannot hold");
    }
    if (is_string) { // its first quotation mark comes with choose_value
        text = view_slice(text, 1, SIZE_MAX);
    }
    TRY(grammar_add_literal(compiler->grammar, text, node, &node, compiler->error));
    return schema_choose_value(compiler, is_string, node);
}

/* Values of an enum or a const that are of the types allowed (0: any). */
result schema_add_values(struct schema_compiler *compiler, unsigned types) {
    struct json_value constant = json_get(compiler->place.schema, "const");
    struct json_value values = json_get(compiler->place.schema, "enum");
    if (schema_is_there(constant) && schema_is_there(values)) {
        return schema_refuse_beside(compiler, "const", "enum");
    }
    if (schema_is_there(constant)) {
        if (types != 0 && (type_of_value(constant) & types) == 0) {
            SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"const\" is not of the type");
        }
        return add_value(compiler, constant);
    }
    if (json_type(values) != JSON_ARRAY || json_count(values) > SCHEMA_VALUES_MAX) {
        SCHEMA_REFUSE(
            compiler,
            INVALID_INPUT,
            "keyword \"enum\" is no list of at most %d values",
            SCHEMA_VALUES_MAX
        );
    }
    for (struct json_value v = json_first(values); schema_is_there(v); v = json_next(v)) {
        if (types == 0 || (type_of_value(v) & types) != 0) {
            TRY(add_value(compiler, v));
        }
    }
    if (!compiler->choice.has_any) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"enum\" holds no value of the type");
    }
    return OK;
}
