/* JSON Schema as a regular language.
 *
 * Understood: type (also a list), properties, required, additionalProperties, items, prefixItems,
 * minItems, maxItems, enum, const, anyOf, oneOf (where its branches cannot both fit), allOf of one,
 * $ref inside the document without recursion, $defs, definitions, minLength, maxLength, pattern
 * (below), minimum, maximum, exclusiveMinimum, exclusiveMaximum, nullable; `true` and `{}` for any
 * value. Annotations (title, description, default, examples, format, ...) say nothing. Whatever
 * else is refused by keyword and JSON path.
 *
 * What is generated is a part of what fits: one line in the form of Python's json.dumps; properties
 * in declared order, never others; maps (no properties declared) whose keys may repeat, since no
 * regular language can forbid it; whole numbers of at most 18 digits; numbers with bounds without
 * exponent (the bounds must be whole); any value nested at most SCHEMA_ANY_DEPTH levels; no
 * properties beyond `prefixItems` without `items`. Without `type` a schema's other keywords say
 * what it is.
 *
 * Patterns: literals, classes, ".", groups, "|", greedy or lazy quantifiers, \d \w \s \D \W \S \t
 * \n \r \f \v \xHH \uHHHH, anchors at the ends of a branch that is in no group. Not together with
 * minLength or maxLength.
 */
#ifndef HEARTH_ENGINE_SCHEMA_H
#define HEARTH_ENGINE_SCHEMA_H

#include "base/json.h"
#include "grammar.h"

#define SCHEMA_BYTES_MAX    ((size_t)256 << 10) /* of a schema's text */
#define SCHEMA_DEPTH_MAX    24                  /* levels of values; the parser of calls reads 40 */
#define SCHEMA_ANY_DEPTH    4                   /* levels below a value of any form */
#define SCHEMA_ITEMS_MAX    1024                /* minItems, maxItems, prefixItems */
#define SCHEMA_VALUES_MAX   1024                /* of an enum */
#define SCHEMA_BRANCHES_MAX 256                 /* of anyOf, oneOf */
#define SCHEMA_PLACES_MAX   ((size_t)1 << 14)   /* subschemas met, references followed each time */
#define SCHEMA_PATTERN_MAX  1024                /* bytes of a pattern */
#define SCHEMA_REPEAT_MAX   1024                /* of a quantifier */

/* Adds the values that fit; `next` follows them. Expected errors: UNSUPPORTED (keyword and path),
 * INVALID_INPUT (no schema, or nothing fits it), LIMIT (deep, recursive or large, with the
 * numbers); MEMORY. */
MUST_CHECK result schema_add(
    struct grammar *grammar,
    struct json_value schema,
    uint32_t next,
    uint32_t *out,
    struct error *error
);
/* Adds the parameters of a call, a line each (no line end after the last; none: nothing at all),
 * for a schema of objects. `dsml_id` is the control token in their tags. Expected errors: as
 * schema_add; INVALID_INPUT also for a name that no tag can hold. */
MUST_CHECK result schema_add_parameters(
    struct grammar *grammar,
    struct json_value schema,
    int32_t dsml_id,
    uint32_t next,
    uint32_t *out,
    struct error *error
);

#endif
