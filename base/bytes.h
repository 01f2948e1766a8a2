/* Borrowed views, owned buffers with a ceiling, and a bounded cursor over foreign bytes.
 *
 * Everything that arrives from outside (files, model output, tool output) is read through
 * `struct cursor`; everything built up goes into `struct buffer`, which refuses to grow past its
 * ceiling instead of exhausting memory. Thread: any; an object belongs to one thread at a time.
 */
#ifndef HEARTH_BASE_BYTES_H
#define HEARTH_BASE_BYTES_H

#include "result.h"

/* Borrowed bytes; not NUL-terminated. Dies with what it points into. */
struct view {
    const unsigned char *data;
    size_t length;
};

struct view view_of(const void *data, size_t length);
struct view view_of_text(const char *text); /* without the NUL; null gives the empty view */
bool view_equals(struct view a, struct view b);
bool view_equals_text(struct view a, const char *text);
bool view_starts_with(struct view whole, struct view prefix);
bool view_ends_with(struct view whole, struct view suffix);
/* view[from, from + length), clipped to the view. */
struct view view_slice(struct view whole, size_t from, size_t length);
/* Offset of the first occurrence at or after `from`, or SIZE_MAX. */
size_t view_find(struct view whole, struct view needle, size_t from);

/* printf("%.*s", VIEW_ARGUMENTS(v)) */
#define VIEW_ARGUMENTS(v) (int)((v).length > 2048 ? 2048 : (v).length), (const char *)(v).data

/* Owned, growable bytes. data[length] is always 0 once anything was appended, so text can be
 * handed to system calls through buffer_text. */
struct buffer {
    unsigned char *data;
    size_t length;
    size_t capacity;
    size_t ceiling; /* largest length allowed */
};

#define BUFFER_CEILING_DEFAULT ((size_t)256 << 20)

void buffer_init(struct buffer *buffer, size_t ceiling);
void buffer_deinit(struct buffer *buffer); /* usable with CLEANUP; leaves an empty buffer */
void buffer_clear(struct buffer *buffer);  /* keeps the memory */
struct view buffer_view(const struct buffer *buffer);
const char *buffer_text(const struct buffer *buffer); /* NUL-terminated; "" when empty */
/* Expected errors: MEMORY, LIMIT. The content is unchanged on failure. */
MUST_CHECK result buffer_reserve(struct buffer *buffer, size_t extra, struct error *error);
MUST_CHECK result buffer_append(struct buffer *buffer, struct view bytes, struct error *error);
MUST_CHECK result buffer_append_text(struct buffer *buffer, const char *text, struct error *error);
MUST_CHECK result
buffer_append_byte(struct buffer *buffer, unsigned char byte, struct error *error);
MUST_CHECK result
buffer_append_format(struct buffer *buffer, struct error *error, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* Removes bytes from the front. */
void buffer_consume(struct buffer *buffer, size_t count);
/* Moves the bytes out as a malloc'd NUL-terminated block; the buffer becomes empty. */
MUST_CHECK result
buffer_take(struct buffer *buffer, char **out, size_t *length, struct error *error);

/* Reads forward over a view; every read is checked. */
struct cursor {
    struct view bytes;
    size_t at;
};

struct cursor cursor_over(struct view bytes);
size_t cursor_remaining(const struct cursor *cursor);
/* Each returns false, and moves nothing, when too few bytes remain. */
bool cursor_take(struct cursor *cursor, size_t count, struct view *out);
bool cursor_take_u8(struct cursor *cursor, uint8_t *out);
bool cursor_take_u32_le(struct cursor *cursor, uint32_t *out);
bool cursor_take_u64_le(struct cursor *cursor, uint64_t *out);
/* Takes up to and including `delimiter`; the view excludes it. False when there is none. */
bool cursor_take_until(struct cursor *cursor, unsigned char delimiter, struct view *out);

/* UTF-8 as Unicode defines it: no overlong forms, no surrogates, at most U+10FFFF. */
bool utf8_is_valid(struct view text);
/* Length of the longest prefix that is valid and does not end inside a sequence. */
size_t utf8_valid_prefix(struct view text);
/* Decodes one code point at the start: returns its bytes (1..4), or 0 when invalid or torn. */
size_t utf8_decode(struct view text, uint32_t *code_point);
/* Encodes into out[4]; returns 1..4. */
size_t utf8_encode(uint32_t code_point, unsigned char out[4]);
/* Appends text with each invalid byte run replaced by U+FFFD (one per maximal subpart). */
MUST_CHECK result utf8_append_lossy(struct buffer *buffer, struct view text, struct error *error);

/* Decimal integer over the whole view; rejects blanks, signs on unsigned, overflow, empty. */
bool parse_u64(struct view text, uint64_t *out);
bool parse_i64(struct view text, int64_t *out);
/* Finite decimal number over the whole view. */
bool parse_double(struct view text, double *out);

/* Whole regular file into a buffer; never waits. Expected errors: NOT_FOUND, INVALID_INPUT (a FIFO,
 * a device), IO, LIMIT (over the ceiling). */
MUST_CHECK result file_read(const char *path, struct buffer *out, struct error *error);

#endif
