/* Typed reads of configuration fields with their allowed range; messages name field and value.
 *
 * Thread: any.
 */
#ifndef HEARTH_ENGINE_CONFIG_FIELDS_H
#define HEARTH_ENGINE_CONFIG_FIELDS_H

#include "base/json.h"
#include "model.h"

struct integer_field {
    const char *name;
    size_t offset; /* of an int32_t in struct model_config */
    int32_t min, max;
};

/* Required number within [min, max]. Expected errors: INVALID_INPUT. */
MUST_CHECK result field_integer(
    struct json_value object,
    const char *name,
    int64_t min,
    int64_t max,
    int64_t *out,
    struct error *error
);
MUST_CHECK result field_double(
    struct json_value object,
    const char *name,
    double min,
    double max,
    double *out,
    struct error *error
);
MUST_CHECK result field_integers(
    struct json_value object,
    const struct integer_field *fields,
    size_t count,
    struct model_config *config,
    struct error *error
);

/* Required array of ascending distinct integers in [0, limit); limit <= MODEL_LAYERS_MAX.
 * Expected errors: INVALID_INPUT. */
MUST_CHECK result field_layers(
    struct json_value object,
    const char *name,
    int32_t limit,
    int32_t list[MODEL_LAYERS_MAX],
    int32_t *count,
    struct error *error
);

/* Fields with only one value that this engine computes. Expected errors: INVALID_INPUT (absent or of
 * another type), UNSUPPORTED (another value). */
MUST_CHECK result
field_is_text(struct json_value object, const char *name, const char *wanted, struct error *error);
MUST_CHECK result
field_is_integer(struct json_value object, const char *name, int64_t wanted, struct error *error);
MUST_CHECK result
field_is_bool(struct json_value object, const char *name, bool wanted, struct error *error);

#endif
