/* Walks a parsed value without recursion and writes it Python's way. */
#include "python_json.h"

#include <math.h>

result python_json_append_string(struct buffer *out, struct view text, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_string(&writer, text);
    return json_writer_finish(&writer);
}

/* repr(float): the shortest digits that read back, positional for exponents -4 to 15. */
static result append_float(struct buffer *out, double number, struct error *error) {
    if (isinf(number)) {
        return buffer_append_text(out, number < 0 ? "-Infinity" : "Infinity", error);
    }
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, number);
        if (strtod(text, NULL) == number) {
            break;
        }
    }
    char digits[24];
    size_t count = 0;
    const char *exponent_text = strchr(text, 'e');
    ASSERT(exponent_text != NULL);
    for (const char *c = text; c < exponent_text && count < sizeof digits; c++) {
        if (*c >= '0' && *c <= '9') {
            digits[count++] = *c;
        }
    }
    while (count > 1 && digits[count - 1] == '0') {
        count -= 1;
    }
    long exponent = strtol(exponent_text + 1, NULL, 10);
    const char *sign = signbit(number) != 0 ? "-" : "";
    if (exponent < -4 || exponent >= 16) {
        const char *point = count > 1 ? "." : "";
        int rest = (int)count - 1;
        return buffer_append_format(
            out, error, "%s%c%s%.*se%+03ld", sign, digits[0], point, rest, digits + 1, exponent
        );
    }
    size_t whole = exponent < 0 ? 0 : (size_t)exponent + 1; // digits before the point
    TRY(buffer_append_format(out, error, "%s%s", sign, exponent < 0 ? "0." : ""));
    for (long i = exponent; i < -1; i++) {
        TRY(buffer_append_byte(out, '0', error));
    }
    for (size_t i = 0; i < whole || i < count || (whole > 0 && i == whole); i++) {
        if (i > 0 && i == whole) {
            TRY(buffer_append_byte(out, '.', error));
        }
        TRY(buffer_append_byte(out, (unsigned char)(i < count ? digits[i] : '0'), error));
    }
    return OK;
}

static result append_number(struct buffer *out, struct json_value value, struct error *error) {
    struct view raw = json_raw(value);
    bool is_float = false;
    for (size_t i = 0; i < raw.length; i++) {
        is_float = is_float || raw.data[i] == '.' || raw.data[i] == 'e' || raw.data[i] == 'E';
    }
    if (!is_float) {
        return buffer_append(out, view_equals_text(raw, "-0") ? view_of_text("0") : raw, error);
    }
    char text[512];
    if (raw.length >= sizeof text) {
        return buffer_append(out, raw, error);
    }
    memcpy(text, raw.data, raw.length);
    text[raw.length] = '\0';
    return append_float(out, strtod(text, NULL), error);
}

static result append_scalar(struct buffer *out, struct json_value value, struct error *error) {
    struct view text;
    if (json_as_string(value, &text)) {
        return python_json_append_string(out, text, error);
    }
    if (json_type(value) == JSON_NUMBER) {
        return append_number(out, value, error);
    }
    return buffer_append(out, json_raw(value), error);
}

result python_json_append(struct buffer *out, struct json_value value, struct error *error) {
    struct json_value parents[JSON_DEPTH_MAX + 1];
    size_t depth = 0;
    while (json_type(value) != JSON_ABSENT) {
        if (depth > 0 && json_type(parents[depth - 1]) == JSON_OBJECT) {
            TRY(python_json_append_string(out, json_name(value), error));
            TRY(buffer_append_text(out, ": ", error));
        }
        enum json_type type = json_type(value);
        struct json_value child = json_first(value);
        if (type == JSON_OBJECT || type == JSON_ARRAY) {
            TRY(buffer_append_text(out, type == JSON_OBJECT ? "{" : "[", error));
            if (json_type(child) != JSON_ABSENT) {
                ASSERT(depth < COUNT_OF(parents));
                parents[depth++] = value;
                value = child;
                continue;
            }
            TRY(buffer_append_text(out, type == JSON_OBJECT ? "}" : "]", error));
        } else {
            TRY(append_scalar(out, value, error));
        }
        while (depth > 0 && json_type(json_next(value)) == JSON_ABSENT) {
            value = parents[--depth];
            bool is_object = json_type(value) == JSON_OBJECT;
            TRY(buffer_append_text(out, is_object ? "}" : "]", error));
        }
        if (depth == 0) {
            return OK;
        }
        value = json_next(value);
        TRY(buffer_append_text(out, ", ", error));
    }
    return OK;
}
