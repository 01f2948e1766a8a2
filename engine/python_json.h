/* JSON as Python's json.dumps(value, ensure_ascii=False) writes what json.loads read: ", " and ": "
 * between items, floating-point numbers in Python's shortest form. The prompt format is defined by
 * a Python program, so its bytes are. Thread: any.
 */
#ifndef HEARTH_ENGINE_PYTHON_JSON_H
#define HEARTH_ENGINE_PYTHON_JSON_H

#include "base/json.h"

/* Appends the value. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result
python_json_append(struct buffer *out, struct json_value value, struct error *error);
/* Appends text as a JSON string. */
MUST_CHECK result
python_json_append_string(struct buffer *out, struct view text, struct error *error);

#endif
