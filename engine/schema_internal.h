/* What the files of the schema compiler share; nobody else includes it. */
#ifndef HEARTH_ENGINE_SCHEMA_INTERNAL_H
#define HEARTH_ENGINE_SCHEMA_INTERNAL_H

#include "schema.h"

/* Alternatives gathered into forks. */
struct schema_choice {
    struct grammar *grammar;
    uint32_t node;
    bool has_any;
};

MUST_CHECK result schema_choose(struct schema_choice *choice, uint32_t node, struct error *error);

/* Bounds of a number; both always given, `is_..._open` excludes the bound itself. */
struct schema_bounds {
    int64_t low;
    int64_t high;
    bool low_is_open;
    bool high_is_open;
};

#define SCHEMA_PROPERTIES_MAX 1024                        /* of an object */
#define SCHEMA_NUMBER_MAX     INT64_C(999999999999999999) /* GRAMMAR_NUMBER_DIGITS nines */

/* Whole numbers, or decimal fractions without exponent, within the bounds. *is_empty: none fits,
 * and *out is untouched. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result schema_add_bounded(
    struct grammar *grammar,
    const struct schema_bounds *bounds,
    bool is_whole,
    uint32_t next,
    uint32_t *out,
    bool *is_empty,
    struct error *error
);

/* The characters of a string that match the pattern. Expected errors: UNSUPPORTED, INVALID_INPUT
 * (names the offset), LIMIT; MEMORY. */
MUST_CHECK result schema_add_pattern(
    struct grammar *grammar,
    struct view pattern,
    enum grammar_form form,
    uint32_t next,
    uint32_t *out,
    struct error *error
);

/* ---- the compiler ---- */

/* How a value is written. */
enum schema_form {
    SCHEMA_FORM_JSON,
    SCHEMA_FORM_PARAMETER, /* behind a parameter's name: string="true">text or string="false">JSON */
    SCHEMA_FORM_ARGUMENTS  /* an object as parameters of a call */
};

/* The way to a subschema, for messages and to find recursion. */
struct schema_step {
    uint32_t parent; /* UINT32_MAX: none */
    struct view name;
    size_t index;             /* when name.data is null */
    const struct cJSON *node; /* of the subschema */
};

struct schema_place {
    struct json_value schema;
    uint32_t entry; /* a link */
    uint32_t next;
    uint32_t step;
    uint32_t depth; /* of the value */
    enum schema_form form;
    bool is_any; /* no schema: any value with `any_depth` levels below it */
    uint32_t any_depth;
};

struct schema_compiler {
    struct grammar *grammar;
    struct error *error;
    struct json_value root;
    int32_t dsml_id;
    struct schema_place *places;
    size_t place_count;
    struct schema_step *steps; /* [SCHEMA_PLACES_MAX] */
    size_t step_count;
    struct buffer text;          /* scratch */
    struct buffer where;         /* scratch: a path */
    struct schema_place place;   /* being compiled */
    struct schema_choice choice; /* what it may be */
};

enum schema_type {
    SCHEMA_TYPE_NULL = 1,
    SCHEMA_TYPE_BOOLEAN = 2,
    SCHEMA_TYPE_INTEGER = 4,
    SCHEMA_TYPE_NUMBER = 8,
    SCHEMA_TYPE_STRING = 16,
    SCHEMA_TYPE_ARRAY = 32,
    SCHEMA_TYPE_OBJECT = 64
};

/* A way to a subschema of the one being compiled. */
struct schema_child {
    struct json_value schema;
    const char *keyword;
    struct view name; /* under the keyword; data null: `index` */
    size_t index;     /* SIZE_MAX: the keyword alone */
};

/* "schema at /properties/x", of the place being compiled; valid until the next call. */
const char *schema_where(struct schema_compiler *compiler);

/* FAIL with the place in front. */
#define SCHEMA_REFUSE(compiler, CODE, ...)                                                         \
    do {                                                                                           \
        result refused_ =                                                                          \
            error_set((compiler)->error, RESULT_##CODE, 0, __FILE__, __LINE__, __VA_ARGS__);       \
        return result_failed(error_note((compiler)->error, refused_, "%s", schema_where(compiler)) \
        );                                                                                         \
    } while (0)

/* ---- shared by the files of the compiler; errors are those of schema_add ---- */

bool schema_is_there(struct json_value value);
/* The nth member or element; absent beyond the end. */
struct json_value schema_nth(struct json_value container, size_t index);
/* Type with this name, 0: none. */
unsigned schema_type_named(struct view name);
MUST_CHECK result
schema_add_step(struct schema_compiler *compiler, struct schema_step step, uint32_t *out);
/* Puts a place on the stack; *entry is the link that will lead to it. */
MUST_CHECK result
schema_wait_for(struct schema_compiler *compiler, struct schema_place place, uint32_t *entry);
/* A value one level below. */
MUST_CHECK result schema_add_child(
    struct schema_compiler *compiler,
    const struct schema_child *child,
    enum schema_form form,
    uint32_t next,
    uint32_t *out
);
/* Another schema for the same value. */
MUST_CHECK result
schema_add_instead(struct schema_compiler *compiler, const struct schema_child *child);
MUST_CHECK result schema_choose_node(struct schema_compiler *compiler, uint32_t node);
MUST_CHECK result
schema_literal(struct schema_compiler *compiler, const char *text, uint32_t next, uint32_t *out);
/* Puts in front what stands before a value and makes it one that the place may be. */
MUST_CHECK result
schema_choose_value(struct schema_compiler *compiler, bool is_string, uint32_t node);
/* A count, `otherwise` when the keyword is absent. */
MUST_CHECK result schema_get_count(
    struct schema_compiler *compiler,
    const char *keyword,
    uint32_t most,
    uint32_t otherwise,
    uint32_t *out
);
/* Fails when the keyword is there. */
MUST_CHECK result
schema_refuse_beside(struct schema_compiler *compiler, const char *keyword, const char *other);
bool schema_is_required(struct json_value required, struct view name);

/* What the place being compiled may be. */
MUST_CHECK result schema_add_text(struct schema_compiler *compiler);
MUST_CHECK result schema_add_numbers(struct schema_compiler *compiler, bool is_whole);
MUST_CHECK result schema_add_array(struct schema_compiler *compiler);
MUST_CHECK result schema_add_object(struct schema_compiler *compiler);
MUST_CHECK result schema_add_any(struct schema_compiler *compiler);
/* Values of an enum or a const that are of the types allowed (0: any). */
MUST_CHECK result schema_add_values(struct schema_compiler *compiler, unsigned types);
MUST_CHECK result
schema_add_reference(struct schema_compiler *compiler, struct json_value reference);
MUST_CHECK result schema_add_branches(
    struct schema_compiler *compiler, const char *keyword, struct json_value branches
);

#endif
