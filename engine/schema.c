/* Subschemas wait on a stack, each with the link that is to lead to it and the node that follows
 * it; one becomes nodes, and those inside of it wait in turn. So nothing recurses, and depth and
 * number are limits, not stack. Chains (properties, elements) are built from their ends. */
#include <math.h>

#include "schema_internal.h"

static const struct {
    const char *name;
    unsigned type;
} type_names[] = {
    {"null", SCHEMA_TYPE_NULL},
    {"boolean", SCHEMA_TYPE_BOOLEAN},
    {"integer", SCHEMA_TYPE_INTEGER},
    {"number", SCHEMA_TYPE_NUMBER},
    {"string", SCHEMA_TYPE_STRING},
    {"array", SCHEMA_TYPE_ARRAY},
    {"object", SCHEMA_TYPE_OBJECT}};

/* What a keyword belongs to. */
enum { KEY_NOTE = 1, KEY_TYPE = 2, KEY_VALUES = 4, KEY_BRANCH = 8, KEY_REF = 16 };

static const struct {
    const char *name;
    unsigned kind;  /* KEY_..., 0: a limit on values of `types` */
    unsigned types; /* without "type" the values are of these */
} keywords[] = {
    {"title", KEY_NOTE, 0},
    {"description", KEY_NOTE, 0},
    {"default", KEY_NOTE, 0},
    {"example", KEY_NOTE, 0},
    {"examples", KEY_NOTE, 0},
    {"format", KEY_NOTE, 0},
    {"deprecated", KEY_NOTE, 0},
    {"readOnly", KEY_NOTE, 0},
    {"writeOnly", KEY_NOTE, 0},
    {"$schema", KEY_NOTE, 0},
    {"$id", KEY_NOTE, 0},
    {"$comment", KEY_NOTE, 0},
    {"$defs", KEY_NOTE, 0},
    {"definitions", KEY_NOTE, 0},
    {"type", KEY_TYPE, 0},
    {"nullable", KEY_TYPE, 0},
    {"enum", KEY_VALUES, 0},
    {"const", KEY_VALUES, 0},
    {"anyOf", KEY_BRANCH, 0},
    {"oneOf", KEY_BRANCH, 0},
    {"allOf", KEY_BRANCH, 0},
    {"$ref", KEY_REF, 0},
    {"properties", 0, SCHEMA_TYPE_OBJECT},
    {"required", 0, SCHEMA_TYPE_OBJECT},
    {"additionalProperties", 0, SCHEMA_TYPE_OBJECT},
    {"items", 0, SCHEMA_TYPE_ARRAY},
    {"prefixItems", 0, SCHEMA_TYPE_ARRAY},
    {"minItems", 0, SCHEMA_TYPE_ARRAY},
    {"maxItems", 0, SCHEMA_TYPE_ARRAY},
    {"uniqueItems", 0, SCHEMA_TYPE_ARRAY},
    {"minLength", 0, SCHEMA_TYPE_STRING},
    {"maxLength", 0, SCHEMA_TYPE_STRING},
    {"pattern", 0, SCHEMA_TYPE_STRING},
    {"minimum", 0, SCHEMA_TYPE_NUMBER},
    {"maximum", 0, SCHEMA_TYPE_NUMBER},
    {"exclusiveMinimum", 0, SCHEMA_TYPE_NUMBER},
    {"exclusiveMaximum", 0, SCHEMA_TYPE_NUMBER}};

unsigned schema_type_named(struct view name) {
    for (size_t i = 0; i < COUNT_OF(type_names); i++) {
        if (view_equals_text(name, type_names[i].name)) {
            return type_names[i].type;
        }
    }
    return 0;
}

bool schema_is_there(struct json_value value) {
    return json_type(value) != JSON_ABSENT;
}

/* ---- where ---- */

#define WHERE_STEPS_SHOWN 24

/* "schema at /properties/x"; the root alone is "schema". */
const char *schema_where(struct schema_compiler *compiler) {
    buffer_clear(&compiler->where);
    uint32_t shown[WHERE_STEPS_SHOWN];
    size_t count = 0;
    uint32_t step = compiler->place.step;
    while (step != UINT32_MAX && compiler->steps[step].parent != UINT32_MAX) {
        if (count < WHERE_STEPS_SHOWN) {
            shown[count] = step;
        }
        count += 1;
        step = compiler->steps[step].parent;
    }
    size_t kept = count < WHERE_STEPS_SHOWN ? count : WHERE_STEPS_SHOWN;
    const char *begin = count == 0 ? "schema" : count > kept ? "schema at ..." : "schema at ";
    // A message that memory is too short for is cut.
    result_ignore(buffer_append_text(&compiler->where, begin, NULL));
    for (size_t i = kept; i-- > 0;) {
        const struct schema_step *at = &compiler->steps[shown[i]];
        result status =
            at->name.data == NULL
                ? buffer_append_format(&compiler->where, NULL, "/%zu", at->index)
                : buffer_append_format(
                      &compiler->where, NULL, "/%.*s", VIEW_ARGUMENTS(grammar_shown(at->name))
                  );
        result_ignore(status);
    }
    return buffer_text(&compiler->where);
}

result schema_add_step(struct schema_compiler *compiler, struct schema_step step, uint32_t *out) {
    if (compiler->step_count == SCHEMA_PLACES_MAX) {
        SCHEMA_REFUSE(
            compiler,
            LIMIT,
            "more than %zu subschemas (what is referred to counts each time)",
            SCHEMA_PLACES_MAX
        );
    }
    compiler->steps[compiler->step_count] = step;
    *out = (uint32_t)compiler->step_count;
    compiler->step_count += 1;
    return OK;
}

/* ---- what waits ---- */

result
schema_wait_for(struct schema_compiler *compiler, struct schema_place place, uint32_t *entry) {
    if (place.depth > SCHEMA_DEPTH_MAX) {
        SCHEMA_REFUSE(compiler, LIMIT, "values nested more than %d levels deep", SCHEMA_DEPTH_MAX);
    }
    if (compiler->place_count == SCHEMA_PLACES_MAX) {
        SCHEMA_REFUSE(compiler, LIMIT, "more than %zu subschemas at once", SCHEMA_PLACES_MAX);
    }
    TRY(grammar_add_link(compiler->grammar, &place.entry, compiler->error));
    compiler->places[compiler->place_count++] = place;
    *entry = place.entry;
    return OK;
}

static result
step_to(struct schema_compiler *compiler, const struct schema_child *child, uint32_t *out) {
    struct schema_step step = {
        .parent = compiler->place.step,
        .name = view_of_text(child->keyword),
        .node = child->schema.node};
    if (child->name.data == NULL && child->index == SIZE_MAX) {
        return schema_add_step(compiler, step, out);
    }
    struct schema_step inner = {
        .name = child->name, .index = child->index, .node = child->schema.node};
    step.node = NULL;
    TRY(schema_add_step(compiler, step, &inner.parent));
    return schema_add_step(compiler, inner, out);
}

/* A value one level below, in JSON. */
result schema_add_child(
    struct schema_compiler *compiler,
    const struct schema_child *child,
    enum schema_form form,
    uint32_t next,
    uint32_t *out
) {
    struct schema_place place = {
        .schema = child->schema, .next = next, .depth = compiler->place.depth + 1, .form = form};
    TRY(step_to(compiler, child, &place.step));
    return schema_wait_for(compiler, place, out);
}

/* Another schema for the same value. */
result schema_add_instead(struct schema_compiler *compiler, const struct schema_child *child) {
    struct schema_place place = compiler->place;
    place.schema = child->schema;
    uint32_t entry = 0;
    TRY(step_to(compiler, child, &place.step));
    TRY(schema_wait_for(compiler, place, &entry));
    return schema_choose(&compiler->choice, entry, compiler->error);
}

result schema_choose_node(struct schema_compiler *compiler, uint32_t node) {
    return schema_choose(&compiler->choice, node, compiler->error);
}

result
schema_literal(struct schema_compiler *compiler, const char *text, uint32_t next, uint32_t *out) {
    return grammar_add_literal(compiler->grammar, view_of_text(text), next, out, compiler->error);
}

/* What stands in front of a value: `is_string` ones are raw text in a parameter. */
result schema_choose_value(struct schema_compiler *compiler, bool is_string, uint32_t node) {
    if (compiler->place.form == SCHEMA_FORM_PARAMETER) {
        const char *tag = is_string ? " string=\"true\">" : " string=\"false\">";
        TRY(schema_literal(compiler, tag, node, &node));
    } else if (is_string) {
        TRY(schema_literal(compiler, "\"", node, &node));
    }
    return schema_choose_node(compiler, node);
}

/* ---- limits as keywords ---- */

/* A count, `otherwise` when the keyword is absent. */
result schema_get_count(
    struct schema_compiler *compiler,
    const char *keyword,
    uint32_t most,
    uint32_t otherwise,
    uint32_t *out
) {
    struct json_value value = json_get(compiler->place.schema, keyword);
    double count = 0;
    *out = otherwise;
    if (!schema_is_there(value)) {
        return OK;
    }
    if (!json_as_double(value, &count) || count < 0 || count != floor(count)) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"%s\" is no count", keyword);
    }
    if (count > most) {
        SCHEMA_REFUSE(
            compiler, LIMIT, "keyword \"%s\" is %.0f; at most %u is supported", keyword, count, most
        );
    }
    *out = (uint32_t)count;
    return OK;
}

result
schema_refuse_beside(struct schema_compiler *compiler, const char *keyword, const char *other) {
    if (schema_is_there(json_get(compiler->place.schema, keyword))) {
        SCHEMA_REFUSE(
            compiler, UNSUPPORTED, "keyword \"%s\" beside \"%s\" is not supported", keyword, other
        );
    }
    return OK;
}

/* ---- types ---- */

/* Types named by "type" and "nullable"; 0: none is. */
static result get_types(struct schema_compiler *compiler, unsigned *out) {
    struct json_value type = json_get(compiler->place.schema, "type");
    struct json_value one = json_type(type) == JSON_ARRAY ? json_first(type) : type;
    *out = 0;
    if (json_type(type) == JSON_ARRAY && json_count(type) == 0) {
        SCHEMA_REFUSE(compiler, INVALID_INPUT, "keyword \"type\" is an empty list");
    }
    for (; schema_is_there(one); one = json_next(one)) {
        struct view name;
        unsigned found = json_as_string(one, &name) ? schema_type_named(name) : 0;
        if (found == 0) {
            SCHEMA_REFUSE(
                compiler,
                INVALID_INPUT,
                "type %.*s is not known",
                VIEW_ARGUMENTS(grammar_shown(json_raw(one)))
            );
        }
        *out |= found;
        if (json_type(type) != JSON_ARRAY) {
            break; // a member's next is another keyword
        }
    }
    bool is_nullable = false;
    if (json_as_bool(json_get(compiler->place.schema, "nullable"), &is_nullable) && is_nullable &&
        *out != 0) {
        *out |= SCHEMA_TYPE_NULL;
    }
    return OK;
}

static result add_types(struct schema_compiler *compiler, unsigned types) {
    uint32_t node = 0;
    uint32_t next = compiler->place.next;
    if (compiler->place.form == SCHEMA_FORM_ARGUMENTS) {
        if ((types & SCHEMA_TYPE_OBJECT) == 0) {
            SCHEMA_REFUSE(compiler, UNSUPPORTED, "arguments that are no object are not supported");
        }
        types = SCHEMA_TYPE_OBJECT;
    }
    if ((types & SCHEMA_TYPE_NULL) != 0) {
        TRY(schema_literal(compiler, "null", next, &node));
        TRY(schema_choose_value(compiler, false, node));
    }
    if ((types & SCHEMA_TYPE_BOOLEAN) != 0) {
        TRY(schema_literal(compiler, "true", next, &node));
        TRY(schema_choose_value(compiler, false, node));
        TRY(schema_literal(compiler, "false", next, &node));
        TRY(schema_choose_value(compiler, false, node));
    }
    if ((types & (SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_NUMBER)) != 0) {
        TRY(schema_add_numbers(compiler, (types & SCHEMA_TYPE_NUMBER) == 0));
    }
    if ((types & SCHEMA_TYPE_STRING) != 0) {
        TRY(schema_add_text(compiler));
    }
    if ((types & SCHEMA_TYPE_ARRAY) != 0) {
        TRY(schema_add_array(compiler));
    }
    return (types & SCHEMA_TYPE_OBJECT) != 0 ? schema_add_object(compiler) : OK;
}

/* ---- one subschema ---- */

/* Which kinds of keywords are there; unknown ones are refused. */
static result look_at_keywords(
    struct schema_compiler *compiler, unsigned *kinds, unsigned *types, const char **single
) {
    struct json_value v = json_first(compiler->place.schema);
    *kinds = 0;
    *types = 0;
    *single = NULL;
    for (; schema_is_there(v); v = json_next(v)) {
        size_t i = 0;
        while (i < COUNT_OF(keywords) && !view_equals_text(json_name(v), keywords[i].name)) {
            i += 1;
        }
        if (i == COUNT_OF(keywords)) {
            SCHEMA_REFUSE(
                compiler,
                UNSUPPORTED,
                "keyword \"%.*s\" is not supported",
                VIEW_ARGUMENTS(grammar_shown(json_name(v)))
            );
        }
        bool decides = (keywords[i].kind & (KEY_VALUES | KEY_BRANCH | KEY_REF)) != 0;
        if (decides && *single == NULL) {
            *single = keywords[i].name;
        }
        *kinds |= keywords[i].kind;
        *types |= keywords[i].types;
    }
    return OK;
}

/* Beside an enum, branches or a reference only annotations stand, beside an enum also the type. */
static result check_company(struct schema_compiler *compiler, unsigned kinds, const char *single) {
    bool has_values = (kinds & KEY_VALUES) != 0;
    struct json_value v = json_first(compiler->place.schema);
    for (; schema_is_there(v); v = json_next(v)) {
        size_t i = 0;
        while (!view_equals_text(json_name(v), keywords[i].name)) {
            i += 1;
        }
        unsigned kind = keywords[i].kind;
        bool is_fine = (kind & KEY_NOTE) != 0 || keywords[i].name == single ||
                       (has_values && (kind & KEY_TYPE) != 0);
        if (!is_fine) {
            TRY(schema_refuse_beside(compiler, keywords[i].name, single));
        }
    }
    return OK;
}

static result add_object_schema(struct schema_compiler *compiler) {
    unsigned kinds = 0;
    unsigned inferred = 0;
    unsigned types = 0;
    const char *single = NULL;
    struct json_value schema = compiler->place.schema;
    TRY(look_at_keywords(compiler, &kinds, &inferred, &single));
    if (single != NULL) {
        TRY(check_company(compiler, kinds, single));
    }
    if ((kinds & KEY_REF) != 0) {
        return schema_add_reference(compiler, json_get(schema, "$ref"));
    }
    if ((kinds & KEY_BRANCH) != 0) {
        return schema_add_branches(compiler, single, json_get(schema, single));
    }
    TRY(get_types(compiler, &types));
    if ((kinds & KEY_VALUES) != 0) {
        return schema_add_values(compiler, types);
    }
    if (types == 0 && inferred == 0) {
        compiler->place.any_depth = SCHEMA_ANY_DEPTH;
        return schema_add_any(compiler);
    }
    bool is_one = (inferred & (inferred - 1)) == 0;
    if (types == 0 && !is_one) {
        SCHEMA_REFUSE(
            compiler, UNSUPPORTED, "keywords of several types without \"type\" are not supported"
        );
    }
    return add_types(compiler, types != 0 ? types : inferred);
}

static result add_place(struct schema_compiler *compiler) {
    struct json_value schema = compiler->place.schema;
    bool allows = false;
    if (compiler->place.is_any) {
        return schema_add_any(compiler);
    }
    if (json_as_bool(schema, &allows)) {
        if (!allows) {
            SCHEMA_REFUSE(compiler, INVALID_INPUT, "false: no value fits");
        }
        compiler->place.any_depth = SCHEMA_ANY_DEPTH;
        return schema_add_any(compiler);
    }
    if (json_type(schema) != JSON_OBJECT) {
        SCHEMA_REFUSE(
            compiler, INVALID_INPUT, "%s instead of an object", json_type_name(json_type(schema))
        );
    }
    return add_object_schema(compiler);
}

static void compiler_deinit(struct schema_compiler *compiler) {
    free(compiler->places);
    free(compiler->steps);
    buffer_deinit(&compiler->text);
    buffer_deinit(&compiler->where);
}

static result
compile(struct schema_compiler *compiler, enum schema_form form, uint32_t next, uint32_t *out) {
    struct error *error = compiler->error;
    size_t bytes = json_raw(compiler->root).length;
    if (bytes > SCHEMA_BYTES_MAX) {
        FAIL(error, LIMIT, "a schema of %zu bytes; at most %zu", bytes, SCHEMA_BYTES_MAX);
    }
    buffer_init(&compiler->text, BUFFER_CEILING_DEFAULT);
    buffer_init(&compiler->where, 4096);
    compiler->places = calloc(SCHEMA_PLACES_MAX, sizeof *compiler->places);
    compiler->steps = calloc(SCHEMA_PLACES_MAX, sizeof *compiler->steps);
    if (compiler->places == NULL || compiler->steps == NULL) {
        FAIL(error, MEMORY, "no memory for a schema of %zu bytes", bytes);
    }
    struct schema_place root = {.schema = compiler->root, .next = next, .form = form};
    struct schema_step step = {.parent = UINT32_MAX, .node = compiler->root.node};
    TRY(schema_add_step(compiler, step, &root.step));
    TRY(schema_wait_for(compiler, root, out));
    while (compiler->place_count > 0) {
        compiler->place_count -= 1;
        compiler->place = compiler->places[compiler->place_count];
        compiler->choice = (struct schema_choice){.grammar = compiler->grammar};
        uint32_t entry = compiler->place.entry;
        TRY(add_place(compiler));
        ASSERT(compiler->choice.has_any);
        grammar_aim(compiler->grammar, entry, compiler->choice.node);
    }
    return OK;
}

result schema_add(
    struct grammar *grammar,
    struct json_value schema,
    uint32_t next,
    uint32_t *out,
    struct error *error
) {
    CLEANUP(compiler_deinit)
    struct schema_compiler compiler = {
        .grammar = grammar, .error = error, .root = schema, .dsml_id = -1};
    return compile(&compiler, SCHEMA_FORM_JSON, next, out);
}

result schema_add_parameters(
    struct grammar *grammar,
    struct json_value schema,
    int32_t dsml_id,
    uint32_t next,
    uint32_t *out,
    struct error *error
) {
    CLEANUP(compiler_deinit)
    struct schema_compiler compiler = {
        .grammar = grammar, .error = error, .root = schema, .dsml_id = dsml_id};
    return compile(&compiler, SCHEMA_FORM_ARGUMENTS, next, out);
}
