/* See config_fields.h. */
#include "config_fields.h"

result field_integer(
    struct json_value object,
    const char *name,
    int64_t min,
    int64_t max,
    int64_t *out,
    struct error *error
) {
    int64_t value = 0;
    TRY(json_get_i64(object, name, &value, error));
    if (value < min || value > max) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%s' is %lld, allowed are %lld to %lld",
            name,
            (long long)value,
            (long long)min,
            (long long)max
        );
    }
    *out = value;
    return OK;
}

result field_integers(
    struct json_value object,
    const struct integer_field *fields,
    size_t count,
    struct model_config *config,
    struct error *error
) {
    for (size_t i = 0; i < count; i++) {
        int64_t value = 0;
        TRY(field_integer(object, fields[i].name, fields[i].min, fields[i].max, &value, error));
        int32_t narrow = narrow_i32(value);
        memcpy((unsigned char *)config + fields[i].offset, &narrow, sizeof narrow);
    }
    return OK;
}

result field_double(
    struct json_value object,
    const char *name,
    double min,
    double max,
    double *out,
    struct error *error
) {
    double value = 0;
    TRY(json_get_double(object, name, &value, error));
    if (!(value >= min && value <= max)) { // also false for a NaN
        FAIL(error, INVALID_INPUT, "'%s' is %g, allowed are %g to %g", name, value, min, max);
    }
    *out = value;
    return OK;
}

/* Array of ascending distinct integers in [0, limit). */
result field_layers(
    struct json_value object,
    const char *name,
    int32_t limit,
    int32_t list[MODEL_LAYERS_MAX],
    int32_t *count,
    struct error *error
) {
    struct json_value array;
    TRY(json_get_array(object, name, &array, error));
    int32_t n = 0;
    int64_t previous = -1;
    for (struct json_value v = json_first(array); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        int64_t layer = 0;
        if (!json_as_i64(v, &layer) || layer <= previous || layer >= limit) {
            FAIL(
                error,
                INVALID_INPUT,
                "'%s'[%d] is %.*s, wanted is an ascending list of layers from 0 to %d",
                name,
                n,
                VIEW_ARGUMENTS(view_slice(json_raw(v), 0, 40)),
                limit - 1
            );
        }
        ASSERT(n < MODEL_LAYERS_MAX);
        list[n++] = narrow_i32(layer);
        previous = layer;
    }
    *count = n;
    return OK;
}

result
field_is_text(struct json_value object, const char *name, const char *wanted, struct error *error) {
    struct view text = {NULL, 0};
    TRY(json_get_string(object, name, &text, error));
    if (!view_equals_text(text, wanted)) {
        FAIL(
            error,
            UNSUPPORTED,
            "'%s' is \"%.*s\", this engine knows only \"%s\"",
            name,
            VIEW_ARGUMENTS(view_slice(text, 0, 80)),
            wanted
        );
    }
    return OK;
}

result
field_is_integer(struct json_value object, const char *name, int64_t wanted, struct error *error) {
    int64_t value = 0;
    TRY(json_get_i64(object, name, &value, error));
    if (value != wanted) {
        FAIL(
            error,
            UNSUPPORTED,
            "'%s' is %lld, this engine knows only %lld",
            name,
            (long long)value,
            (long long)wanted
        );
    }
    return OK;
}

result field_is_bool(struct json_value object, const char *name, bool wanted, struct error *error) {
    bool value = false;
    TRY(json_get_bool(object, name, &value, error));
    if (value != wanted) {
        FAIL(
            error,
            UNSUPPORTED,
            "'%s' is %s, this engine knows only %s",
            name,
            value ? "true" : "false",
            wanted ? "true" : "false"
        );
    }
    return OK;
}
