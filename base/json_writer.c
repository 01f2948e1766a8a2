/* The JSON writer: compact text into a buffer, separators by itself; the first error sticks. */
#include "json.h"

#define WRITER_DEPTH_MAX 64U /* bits in has_items */

void json_writer_init(struct json_writer *writer, struct buffer *out, struct error *error) {
    memset(writer, 0, sizeof *writer);
    writer->out = out;
    writer->error = error;
    writer->status = OK;
}

static void put(struct json_writer *writer, struct view bytes) {
    if (is_ok(writer->status)) {
        writer->status = buffer_append(writer->out, bytes, writer->error);
    }
}

static void put_text(struct json_writer *writer, const char *text) {
    put(writer, view_of_text(text));
}

/* Foreign values may be nested JSON_DEPTH_MAX deep by themselves and deeper within our own. */
static uint64_t depth_bit(unsigned depth) {
    return depth < WRITER_DEPTH_MAX ? (uint64_t)1 << depth : 0;
}

/* The comma before an item; nothing after a key. */
static void begin_item(struct json_writer *writer) {
    if (writer->after_key) {
        writer->after_key = false;
        return;
    }
    uint64_t bit = depth_bit(writer->depth);
    if ((writer->has_items & bit) != 0) {
        put_text(writer, writer->python_separators ? ", " : ",");
    }
    writer->has_items |= bit;
}

static void begin_container(struct json_writer *writer, const char *opener) {
    begin_item(writer);
    put_text(writer, opener);
    writer->depth += 1; // counted even when too deep, so that the ends still match
    writer->has_items &= ~depth_bit(writer->depth);
    if (writer->depth >= WRITER_DEPTH_MAX && is_ok(writer->status)) {
        writer->status = error_set(
            writer->error,
            RESULT_LIMIT,
            0,
            __FILE__,
            __LINE__,
            "JSON nested %u deep; %u can be written",
            writer->depth,
            WRITER_DEPTH_MAX - 1
        );
    }
}

static void end_container(struct json_writer *writer, const char *closer) {
    ASSERT(writer->depth > 0 && !writer->after_key);
    writer->depth -= 1;
    put_text(writer, closer);
}

void json_write_object_begin(struct json_writer *writer) {
    begin_container(writer, "{");
}

void json_write_object_end(struct json_writer *writer) {
    end_container(writer, "}");
}

void json_write_array_begin(struct json_writer *writer) {
    begin_container(writer, "[");
}

void json_write_array_end(struct json_writer *writer) {
    end_container(writer, "]");
}

static void put_escaped(struct json_writer *writer, unsigned char c) {
    static const char short_escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (size_t i = 0; i + 1 < sizeof short_escapes; i += 2) {
        if ((unsigned char)short_escapes[i] == c) {
            char pair[2] = {'\\', short_escapes[i + 1]};
            put(writer, view_of(pair, 2));
            return;
        }
    }
    char escape[7];
    int length = snprintf(escape, sizeof escape, "\\u%04x", c);
    ASSERT(length == 6);
    put(writer, view_of(escape, 6));
}

static void put_string(struct json_writer *writer, struct view text) {
    put_text(writer, "\"");
    size_t clean = 0;
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = text.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        put(writer, view_slice(text, clean, i - clean));
        put_escaped(writer, c);
        clean = i + 1;
    }
    put(writer, view_slice(text, clean, SIZE_MAX));
    put_text(writer, "\"");
}

static void put_lossy_string(struct json_writer *writer, struct view text) {
    if (utf8_is_valid(text)) {
        put_string(writer, text);
        return;
    }
    CLEANUP(buffer_deinit) struct buffer repaired = {NULL, 0, 0, 0};
    buffer_init(&repaired, writer->out->ceiling);
    if (is_ok(writer->status)) {
        writer->status = utf8_append_lossy(&repaired, text, writer->error);
    }
    put_string(writer, buffer_view(&repaired));
}

void json_write_key_view(struct json_writer *writer, struct view name) {
    begin_item(writer);
    put_lossy_string(writer, name);
    put_text(writer, writer->python_separators ? ": " : ":");
    writer->after_key = true;
}

void json_write_key(struct json_writer *writer, const char *name) {
    json_write_key_view(writer, view_of_text(name));
}

void json_write_string(struct json_writer *writer, struct view text) {
    begin_item(writer);
    put_lossy_string(writer, text);
}

void json_write_text(struct json_writer *writer, const char *text) {
    json_write_string(writer, view_of_text(text));
}

void json_write_i64(struct json_writer *writer, int64_t value) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
    json_write_raw(writer, view_of(digits, (size_t)length));
}

void json_write_u64(struct json_writer *writer, uint64_t value) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    json_write_raw(writer, view_of(digits, (size_t)length));
}

void json_write_double(struct json_writer *writer, double value) {
    if (value - value != 0.0) {
        json_write_null(writer);
        return;
    }
    char digits[40];
    int length = 0;
    for (int precision = 1; precision <= 17; precision++) {
        length = snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    json_write_raw(writer, view_of(digits, (size_t)length));
}

void json_write_bool(struct json_writer *writer, bool value) {
    json_write_raw(writer, view_of_text(value ? "true" : "false"));
}

void json_write_null(struct json_writer *writer) {
    json_write_raw(writer, view_of_text("null"));
}

void json_write_raw(struct json_writer *writer, struct view json) {
    begin_item(writer);
    put(writer, json);
}

static void write_scalar(struct json_writer *writer, struct json_value value) {
    struct view text;
    if (json_as_string(value, &text)) {
        json_write_string(writer, text);
    } else {
        json_write_raw(writer, json_raw(value));
    }
}

void json_write_value(struct json_writer *writer, struct json_value value) {
    struct json_value parents[JSON_DEPTH_MAX + 1];
    unsigned depth = 0;
    while (value.node != NULL) {
        enum json_type type = json_type(value);
        if (depth > 0 && json_type(parents[depth - 1]) == JSON_OBJECT) {
            json_write_key_view(writer, json_name(value));
        }
        if (type == JSON_ARRAY || type == JSON_OBJECT) {
            begin_container(writer, type == JSON_OBJECT ? "{" : "[");
            ASSERT(depth < COUNT_OF(parents));
            parents[depth++] = value;
            struct json_value child = json_first(value);
            if (child.node != NULL) {
                value = child;
                continue;
            }
            end_container(writer, type == JSON_OBJECT ? "}" : "]");
            depth -= 1;
        } else {
            write_scalar(writer, value);
        }
        while (depth > 0 && json_next(value).node == NULL) {
            value = parents[--depth];
            end_container(writer, json_type(value) == JSON_OBJECT ? "}" : "]");
        }
        if (depth == 0) {
            return;
        }
        value = json_next(value);
    }
}

result json_writer_finish(struct json_writer *writer) {
    ASSERT(is_failed(writer->status) || (writer->depth == 0 && !writer->after_key));
    return writer->status;
}
