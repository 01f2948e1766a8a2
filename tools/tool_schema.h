/* Arguments of a tool call against its declared JSON schema.
 *
 * Subset understood: "type" (object, string, integer, number, boolean, array), "description",
 * "properties", "required", "enum" of strings, "minimum" and "maximum" of integers, "items" with a
 * type, which may be an object as long as none is inside of it. Keys that a schema does not declare
 * are refused: a model that invents one must be told. Null for an optional key is as if left out.
 * Thread: any.
 */
#ifndef HEARTH_TOOLS_TOOL_SCHEMA_H
#define HEARTH_TOOLS_TOOL_SCHEMA_H

#include "base/json.h"

/* Whether `schema` stays within the subset. Expected errors: UNSUPPORTED (names the keyword),
 * INVALID_INPUT (no schema at all). */
MUST_CHECK result tool_schema_check(struct json_value schema, struct error *error);

/* Checks `arguments` against a schema that passed tool_schema_check. False: `why` then holds one
 * line worded for a model, such as "error: shell needs the parameter \"command\" (string)". */
MUST_CHECK result tool_schema_match(
    const char *tool_name,
    struct json_value schema,
    struct json_value arguments,
    struct buffer *why,
    bool *matches,
    struct error *error
);

#endif
