/* Subschemas in place of others: references, which are followed each time, and branches. */
#include "schema_internal.h"

/* ---- references ---- */

/* One step of a JSON pointer: NAME with ~0 and ~1 undone in scratch. */
static result unescape(
    struct schema_compiler *compiler, struct view part, struct json_value at, struct json_value *out
) {
    uint64_t index = 0;
    if (json_type(at) == JSON_ARRAY) {
        *out = parse_u64(part, &index) && index < json_count(at) ? schema_nth(at, (size_t)index)
                                                                 : (struct json_value){NULL, NULL};
        return OK;
    }
    buffer_clear(&compiler->text);
    for (size_t i = 0; i < part.length; i++) {
        unsigned char c = part.data[i];
        if (c == '~' && i + 1 < part.length) {
            i += 1;
            c = part.data[i] == '1' ? '/' : '~';
        }
        TRY(buffer_append_byte(&compiler->text, c, compiler->error));
    }
    *out = json_get_view(at, buffer_view(&compiler->text));
    return OK;
}

static result
resolve(struct schema_compiler *compiler, struct view pointer, struct json_value *out) {
    struct json_value at = compiler->root;
    if (!view_starts_with(pointer, view_of_text("#"))) {
        SCHEMA_REFUSE(
            compiler,
            UNSUPPORTED,
            "keyword \"$ref\" to '%.*s' outside of the document is not supported",
            VIEW_ARGUMENTS(grammar_shown(pointer))
        );
    }
    struct view rest = view_slice(pointer, 1, SIZE_MAX);
    while (rest.length > 0 && schema_is_there(at)) {
        size_t end = view_find(rest, view_of_text("/"), 1);
        end = end == SIZE_MAX ? rest.length : end;
        if (rest.data[0] != '/') {
            at = (struct json_value){NULL, NULL};
            break;
        }
        TRY(unescape(compiler, view_slice(rest, 1, end - 1), at, &at));
        rest = view_slice(rest, end, SIZE_MAX);
    }
    if (!schema_is_there(at)) {
        SCHEMA_REFUSE(
            compiler,
            INVALID_INPUT,
            "keyword \"$ref\": '%.*s' is not in the document",
            VIEW_ARGUMENTS(grammar_shown(pointer))
        );
    }
    *out = at;
    return OK;
}

result schema_add_reference(struct schema_compiler *compiler, struct json_value reference) {
    struct view pointer;
    struct schema_child child = {.keyword = "$ref", .index = SIZE_MAX};
    if (!json_as_string(reference, &pointer)) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"$ref\" is no string");
    }
    TRY(resolve(compiler, pointer, &child.schema));
    for (uint32_t at = compiler->place.step; at != UINT32_MAX; at = compiler->steps[at].parent) {
        if (compiler->steps[at].node == child.schema.node) {
            SCHEMA_REFUSE(
                compiler,
                LIMIT,
                "keyword \"$ref\" to '%.*s' is recursive; 0 levels of recursion are supported",
                VIEW_ARGUMENTS(grammar_shown(pointer))
            );
        }
    }
    return schema_add_instead(compiler, &child);
}

/* ---- branches ---- */

/* Branches are compared in pairs: longer lists count as values that could be the same. */
#define VALUES_COMPARED_MAX     64
#define PROPERTIES_COMPARED_MAX 16

/* What a branch of oneOf says about itself at first sight. */
static struct json_value look_through(struct schema_compiler *compiler, struct json_value schema) {
    for (int i = 0; i < 8; i++) {
        struct view pointer;
        if (!json_as_string(json_get(schema, "$ref"), &pointer) ||
            is_failed(resolve(compiler, pointer, &schema))) {
            break;
        }
    }
    return schema;
}

static bool is_same_text(struct json_value a, struct json_value b) {
    struct view left;
    struct view right;
    bool are_strings = json_as_string(a, &left) && json_as_string(b, &right);
    return are_strings && view_equals(left, right);
}

/* Whether both name values, all strings, and share none. */
static bool values_differ(struct json_value a, struct json_value b) {
    struct json_value left = json_get(a, "enum");
    struct json_value right = json_get(b, "enum");
    bool left_is_list = json_type(left) == JSON_ARRAY;
    bool right_is_list = json_type(right) == JSON_ARRAY;
    if (json_count(left) > VALUES_COMPARED_MAX || json_count(right) > VALUES_COMPARED_MAX) {
        return false;
    }
    struct json_value l = left_is_list ? json_first(left) : json_get(a, "const");
    if (!schema_is_there(l)) {
        return false;
    }
    for (; schema_is_there(l); l = left_is_list ? json_next(l) : (struct json_value){NULL, NULL}) {
        struct json_value r = right_is_list ? json_first(right) : json_get(b, "const");
        if (!schema_is_there(r)) {
            return false;
        }
        for (; schema_is_there(r);
             r = right_is_list ? json_next(r) : (struct json_value){NULL, NULL}) {
            bool are_strings = json_type(l) == JSON_STRING && json_type(r) == JSON_STRING;
            if (!are_strings || is_same_text(l, r)) {
                return false;
            }
        }
    }
    return true;
}

/* The one type that it names, whole numbers as numbers; 0: none or several. */
static unsigned simple_type(struct json_value schema) {
    struct view name;
    if (schema_is_there(json_get(schema, "nullable")) ||
        !json_as_string(json_get(schema, "type"), &name)) {
        return 0;
    }
    unsigned type = schema_type_named(name);
    return type == SCHEMA_TYPE_INTEGER ? SCHEMA_TYPE_NUMBER : type;
}

/* Whether no value fits both, as far as is seen at once: other types, other strings, or a required
 * property with other strings. */
static bool
are_disjoint(struct schema_compiler *compiler, struct json_value a, struct json_value b) {
    a = look_through(compiler, a);
    b = look_through(compiler, b);
    unsigned left = simple_type(a);
    unsigned right = simple_type(b);
    if ((left != 0 && right != 0 && left != right) || values_differ(a, b)) {
        return true;
    }
    if (left != SCHEMA_TYPE_OBJECT || right != SCHEMA_TYPE_OBJECT) {
        return false;
    }
    size_t seen = 0;
    struct json_value v = json_first(json_get(a, "properties"));
    for (; schema_is_there(v) && seen < PROPERTIES_COMPARED_MAX; v = json_next(v), seen++) {
        struct view name = json_name(v);
        struct json_value other = json_get_view(json_get(b, "properties"), name);
        if (schema_is_required(json_get(a, "required"), name) &&
            schema_is_required(json_get(b, "required"), name) &&
            values_differ(look_through(compiler, v), look_through(compiler, other))) {
            return true;
        }
    }
    return false;
}

static result check_disjoint(struct schema_compiler *compiler, struct json_value branches) {
    size_t i = 0;
    for (struct json_value a = json_first(branches); schema_is_there(a); a = json_next(a), i++) {
        size_t j = i + 1;
        for (struct json_value b = json_next(a); schema_is_there(b); b = json_next(b), j++) {
            if (!are_disjoint(compiler, a, b)) {
                SCHEMA_REFUSE(
                    compiler,
                    UNSUPPORTED,
                    "keyword \"oneOf\": a value could fit both %zu and %zu; use \"anyOf\"",
                    i,
                    j
                );
            }
        }
    }
    return OK;
}

result schema_add_branches(
    struct schema_compiler *compiler, const char *keyword, struct json_value branches
) {
    size_t count = json_count(branches);
    if (json_type(branches) != JSON_ARRAY || count == 0 || count > SCHEMA_BRANCHES_MAX) {
        SCHEMA_REFUSE(
            compiler,
            INVALID_INPUT,
            "keyword \"%s\" is no list of 1 to %d schemas",
            keyword,
            SCHEMA_BRANCHES_MAX
        );
    }
    if (keyword[1] == 'l' && count > 1) {
        SCHEMA_REFUSE(
            compiler, UNSUPPORTED, "keyword \"allOf\" of %zu schemas; 1 is supported", count
        );
    }
    if (keyword[0] == 'o') {
        TRY(check_disjoint(compiler, branches));
    }
    struct schema_child child = {.keyword = keyword};
    for (struct json_value v = json_first(branches); schema_is_there(v); v = json_next(v)) {
        child.schema = v;
        TRY(schema_add_instead(compiler, &child));
        child.index += 1;
    }
    return OK;
}
