/* JSON: a strict scanner in front of cJSON, a read-only view with typed getters, and a writer.
 *
 * The scanner enforces RFC 8259 and the limits below before cJSON sees a byte: UTF-8, depth, size,
 * no duplicate keys, no U+0000 and no lone surrogates in strings. Numbers are re-read from the raw
 * text, so 64-bit integers are exact; any value's raw text can be passed through unchanged.
 * Thread: any; a document belongs to one thread at a time.
 */
#ifndef HEARTH_BASE_JSON_H
#define HEARTH_BASE_JSON_H

#include "bytes.h"

struct json_document;
struct cJSON;

/* Borrowed from its document; a null node means "absent" and every getter then fails politely. */
struct json_value {
    const struct cJSON *node;
    const struct json_document *document;
};

enum json_type {
    JSON_ABSENT,
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json_limits {
    size_t bytes_max;   /* 0: JSON_BYTES_MAX */
    size_t values_max;  /* 0: JSON_VALUES_MAX */
    unsigned depth_max; /* 0: JSON_DEPTH_MAX */
};

#define JSON_BYTES_MAX  ((size_t)64 << 20) /* tokenizer.json of the release is 6.4 MB */
#define JSON_VALUES_MAX ((size_t)4 << 20)
#define JSON_DEPTH_MAX  60U /* a few levels below what can be written, for what goes around it */

/* Parses one value with optional surrounding blanks; keeps its own copy of the text. `limits` may
 * be null. Expected errors: INVALID_INPUT (`foreign`: byte offset), LIMIT, MEMORY. */
MUST_CHECK result json_parse(
    struct view text,
    const struct json_limits *limits,
    struct json_document **out,
    struct error *error
);
void json_destroy(struct json_document *document);
void json_cleanup(struct json_document **document); /* for CLEANUP */
struct json_value json_root(const struct json_document *document);

enum json_type json_type(struct json_value value);
const char *json_type_name(enum json_type type);
/* The exact text of the value in the source. */
struct view json_raw(struct json_value value);

/* Object member by exact, case-sensitive name; absent when missing or not an object. */
struct json_value json_get(struct json_value object, const char *name);
struct json_value json_get_view(struct json_value object, struct view name);
size_t json_count(struct json_value container); /* members or elements; 0 for anything else */

/* for (v = json_first(array); json_type(v) != JSON_ABSENT; v = json_next(v)) */
struct json_value json_first(struct json_value container);
struct json_value json_next(struct json_value value);
struct view json_name(struct json_value member); /* key of an object member */

/* Required members with their type checked; the message names the key and what was found.
 * Expected errors: INVALID_INPUT. Strings are borrowed from the document. */
MUST_CHECK result
json_get_string(struct json_value object, const char *name, struct view *out, struct error *error);
MUST_CHECK result
json_get_i64(struct json_value object, const char *name, int64_t *out, struct error *error);
MUST_CHECK result
json_get_double(struct json_value object, const char *name, double *out, struct error *error);
MUST_CHECK result
json_get_bool(struct json_value object, const char *name, bool *out, struct error *error);
MUST_CHECK result json_get_array(
    struct json_value object, const char *name, struct json_value *out, struct error *error
);
MUST_CHECK result json_get_object(
    struct json_value object, const char *name, struct json_value *out, struct error *error
);

/* The value itself; false when of another type. An integer may be written 12 but not 12.0. */
bool json_as_string(struct json_value value, struct view *out);
bool json_as_i64(struct json_value value, int64_t *out);
bool json_as_double(struct json_value value, double *out);
bool json_as_bool(struct json_value value, bool *out);

/* Writes compact JSON into a buffer; separators are inserted by itself. Errors stick: check once
 * with json_writer_finish. Strings must be valid UTF-8; others are written lossily. */
struct json_writer {
    struct buffer *out;
    struct error *error;
    result status;
    uint64_t has_items; /* bit per depth */
    unsigned depth;
    bool after_key;
    bool python_separators; /* ", " and ": " as Python's json.dumps writes */
};

void json_writer_init(struct json_writer *writer, struct buffer *out, struct error *error);
void json_write_object_begin(struct json_writer *writer);
void json_write_object_end(struct json_writer *writer);
void json_write_array_begin(struct json_writer *writer);
void json_write_array_end(struct json_writer *writer);
void json_write_key(struct json_writer *writer, const char *name);
void json_write_key_view(struct json_writer *writer, struct view name);
void json_write_string(struct json_writer *writer, struct view text);
void json_write_text(struct json_writer *writer, const char *text);
void json_write_i64(struct json_writer *writer, int64_t value);
void json_write_u64(struct json_writer *writer, uint64_t value);
void json_write_double(
    struct json_writer *writer, double value
); /* shortest that reads back; null if not finite */
void json_write_bool(struct json_writer *writer, bool value);
void json_write_null(struct json_writer *writer);
void json_write_raw(struct json_writer *writer, struct view json); /* already JSON */
/* Re-writes a parsed value with this writer's separators; numbers and strings keep their value. */
void json_write_value(struct json_writer *writer, struct json_value value);
MUST_CHECK result json_writer_finish(struct json_writer *writer);

#endif
