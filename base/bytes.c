/* Growth with a ceiling, UTF-8 checks and the bounded cursor. */
#include "bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

struct view view_of(const void *data, size_t length) {
    struct view view = {data, length};
    return view;
}

struct view view_of_text(const char *text) {
    return text == NULL ? view_of("", 0) : view_of(text, strlen(text));
}

bool view_equals(struct view a, struct view b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

bool view_equals_text(struct view a, const char *text) {
    return view_equals(a, view_of_text(text));
}

bool view_starts_with(struct view whole, struct view prefix) {
    return whole.length >= prefix.length &&
           view_equals(view_slice(whole, 0, prefix.length), prefix);
}

bool view_ends_with(struct view whole, struct view suffix) {
    return whole.length >= suffix.length &&
           view_equals(view_slice(whole, whole.length - suffix.length, suffix.length), suffix);
}

struct view view_slice(struct view whole, size_t from, size_t length) {
    if (from > whole.length) {
        from = whole.length;
    }
    if (length > whole.length - from) {
        length = whole.length - from;
    }
    return view_of(from == 0 ? whole.data : whole.data + from, length);
}

size_t view_find(struct view whole, struct view needle, size_t from) {
    if (from > whole.length) {
        return SIZE_MAX;
    }
    if (needle.length == 0) {
        return from;
    }
    if (whole.length == 0) {
        return SIZE_MAX;
    }
    struct view rest = view_of(whole.data + from, whole.length - from);
    const unsigned char *hit = needle.length == 1
                                   ? memchr(rest.data, needle.data[0], rest.length)
                                   : memmem(rest.data, rest.length, needle.data, needle.length);
    return hit == NULL ? SIZE_MAX : (size_t)(hit - whole.data);
}

void buffer_init(struct buffer *buffer, size_t ceiling) {
    ASSERT(buffer != NULL);
    ASSERT(ceiling < SIZE_MAX / 4);
    memset(buffer, 0, sizeof *buffer);
    buffer->ceiling = ceiling;
}

void buffer_deinit(struct buffer *buffer) {
    if (buffer == NULL) {
        return;
    }
    free(buffer->data);
    buffer->data = NULL;
    buffer->length = 0;
    buffer->capacity = 0;
}

void buffer_clear(struct buffer *buffer) {
    buffer->length = 0;
    if (buffer->data != NULL) {
        buffer->data[0] = 0;
    }
}

struct view buffer_view(const struct buffer *buffer) {
    return view_of(buffer->data == NULL ? (const unsigned char *)"" : buffer->data, buffer->length);
}

const char *buffer_text(const struct buffer *buffer) {
    return buffer->data == NULL ? "" : (const char *)buffer->data;
}

result buffer_reserve(struct buffer *buffer, size_t extra, struct error *error) {
    size_t need = 0;
    if (!size_add(buffer->length, extra, &need) || need > buffer->ceiling || need == SIZE_MAX) {
        FAIL(
            error,
            LIMIT,
            "buffer of %zu bytes cannot take %zu more: its ceiling is %zu bytes",
            buffer->length,
            extra,
            buffer->ceiling
        );
    }
    need += 1; // the NUL behind the text
    if (need <= buffer->capacity) {
        return OK;
    }
    size_t capacity = buffer->capacity < 64 ? 64 : buffer->capacity;
    while (capacity < need) {
        capacity *= 2;
    }
    if (capacity - 1 > buffer->ceiling) { // a ceiling of SIZE_MAX has no successor
        capacity = buffer->ceiling + 1;
    }
    unsigned char *data = realloc(buffer->data, capacity);
    if (data == NULL) {
        FAIL(error, MEMORY, "no memory for a buffer of %zu bytes", capacity);
    }
    if (buffer->data == NULL) {
        data[0] = 0;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return OK;
}

result buffer_append(struct buffer *buffer, struct view bytes, struct error *error) {
    TRY(buffer_reserve(buffer, bytes.length, error));
    if (bytes.length > 0) {
        memcpy(buffer->data + buffer->length, bytes.data, bytes.length);
    }
    buffer->length += bytes.length;
    buffer->data[buffer->length] = 0;
    return OK;
}

result buffer_append_text(struct buffer *buffer, const char *text, struct error *error) {
    return buffer_append(buffer, view_of_text(text), error);
}

result buffer_append_byte(struct buffer *buffer, unsigned char byte, struct error *error) {
    return buffer_append(buffer, view_of(&byte, 1), error);
}

result buffer_append_format(struct buffer *buffer, struct error *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int need = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (need < 0) {
        va_end(again);
        FAIL(error, INVALID_INPUT, "format '%s' cannot be printed", format);
    }
    result reserved = buffer_reserve(buffer, (size_t)need, error);
    if (is_ok(reserved)) {
        int written =
            vsnprintf((char *)buffer->data + buffer->length, (size_t)need + 1, format, again);
        ASSERT(written == need);
        buffer->length += (size_t)need;
    }
    va_end(again);
    return reserved;
}

void buffer_consume(struct buffer *buffer, size_t count) {
    ASSERT(count <= buffer->length);
    if (count == 0) {
        return;
    }
    memmove(buffer->data, buffer->data + count, buffer->length - count);
    buffer->length -= count;
    buffer->data[buffer->length] = 0;
}

result buffer_take(struct buffer *buffer, char **out, size_t *length, struct error *error) {
    TRY(buffer_reserve(buffer, 0, error));
    *out = (char *)buffer->data;
    if (length != NULL) {
        *length = buffer->length;
    }
    buffer->data = NULL;
    buffer->length = 0;
    buffer->capacity = 0;
    return OK;
}

struct cursor cursor_over(struct view bytes) {
    struct cursor cursor = {bytes, 0};
    return cursor;
}

size_t cursor_remaining(const struct cursor *cursor) {
    ASSERT(cursor->at <= cursor->bytes.length);
    return cursor->bytes.length - cursor->at;
}

bool cursor_take(struct cursor *cursor, size_t count, struct view *out) {
    if (count > cursor_remaining(cursor)) {
        return false;
    }
    *out = view_slice(cursor->bytes, cursor->at, count);
    cursor->at += count;
    return true;
}

bool cursor_take_u8(struct cursor *cursor, uint8_t *out) {
    struct view one;
    if (!cursor_take(cursor, 1, &one)) {
        return false;
    }
    *out = one.data[0];
    return true;
}

static uint64_t little_endian(struct view bytes) {
    uint64_t value = 0;
    for (size_t i = bytes.length; i > 0; i--) {
        value = value << 8 | bytes.data[i - 1];
    }
    return value;
}

bool cursor_take_u32_le(struct cursor *cursor, uint32_t *out) {
    struct view bytes;
    if (!cursor_take(cursor, 4, &bytes)) {
        return false;
    }
    *out = (uint32_t)little_endian(bytes);
    return true;
}

bool cursor_take_u64_le(struct cursor *cursor, uint64_t *out) {
    struct view bytes;
    if (!cursor_take(cursor, 8, &bytes)) {
        return false;
    }
    *out = little_endian(bytes);
    return true;
}

bool cursor_take_until(struct cursor *cursor, unsigned char delimiter, struct view *out) {
    size_t found = view_find(cursor->bytes, view_of(&delimiter, 1), cursor->at);
    if (found == SIZE_MAX) {
        return false;
    }
    *out = view_slice(cursor->bytes, cursor->at, found - cursor->at);
    cursor->at = found + 1;
    return true;
}

/* Table 3-7 of the Unicode standard: bounds of the second byte by lead byte. */
size_t utf8_decode(struct view text, uint32_t *code_point) {
    if (text.length == 0) {
        return 0;
    }
    const unsigned char *b = text.data;
    if (b[0] < 0x80U) {
        *code_point = b[0];
        return 1;
    }
    size_t need = b[0] >= 0xF0U ? 4 : b[0] >= 0xE0U ? 3 : 2;
    if (b[0] < 0xC2U || b[0] > 0xF4U || text.length < need) {
        return 0;
    }
    unsigned low = b[0] == 0xE0U ? 0xA0U : b[0] == 0xF0U ? 0x90U : 0x80U;
    unsigned high = b[0] == 0xEDU ? 0x9FU : b[0] == 0xF4U ? 0x8FU : 0xBFU;
    if (b[1] < low || b[1] > high) {
        return 0;
    }
    uint32_t value = b[0] & (0xFFU >> (need + 1));
    for (size_t i = 1; i < need; i++) {
        if ((b[i] & 0xC0U) != 0x80U) {
            return 0;
        }
        value = value << 6 | (b[i] & 0x3FU);
    }
    *code_point = value;
    return need;
}

size_t utf8_encode(uint32_t code_point, unsigned char out[4]) {
    ASSERT(code_point <= 0x10FFFFU);
    if (code_point < 0x80U) {
        out[0] = (unsigned char)code_point;
        return 1;
    }
    size_t count = code_point < 0x800U ? 2 : code_point < 0x10000U ? 3 : 4;
    for (size_t i = count - 1; i > 0; i--) {
        out[i] = (unsigned char)(0x80U | (code_point & 0x3FU));
        code_point >>= 6;
    }
    static const unsigned char leads[] = {0, 0, 0xC0U, 0xE0U, 0xF0U};
    out[0] = (unsigned char)(leads[count] | code_point);
    return count;
}

size_t utf8_valid_prefix(struct view text) {
    size_t at = 0;
    while (at < text.length) {
        uint32_t code_point = 0;
        size_t taken = utf8_decode(view_slice(text, at, 4), &code_point);
        if (taken == 0) {
            break;
        }
        at += taken;
    }
    return at;
}

bool utf8_is_valid(struct view text) {
    return utf8_valid_prefix(text) == text.length;
}

/* How many bytes at the start form the longest beginning of some valid sequence; at least 1. */
static size_t maximal_subpart(struct view text) {
    const unsigned char *b = text.data;
    if (b[0] < 0xC2U || b[0] > 0xF4U || text.length < 2) {
        return 1;
    }
    unsigned low = b[0] == 0xE0U ? 0xA0U : b[0] == 0xF0U ? 0x90U : 0x80U;
    unsigned high = b[0] == 0xEDU ? 0x9FU : b[0] == 0xF4U ? 0x8FU : 0xBFU;
    if (b[1] < low || b[1] > high) {
        return 1;
    }
    size_t need = b[0] >= 0xF0U ? 4 : b[0] >= 0xE0U ? 3 : 2;
    size_t have = 2;
    while (have < need && have < text.length && (b[have] & 0xC0U) == 0x80U) {
        have += 1;
    }
    return have;
}

result utf8_append_lossy(struct buffer *buffer, struct view text, struct error *error) {
    while (text.length > 0) {
        size_t good = utf8_valid_prefix(text);
        TRY(buffer_append(buffer, view_slice(text, 0, good), error));
        text = view_slice(text, good, SIZE_MAX);
        if (text.length > 0) {
            TRY(buffer_append_text(buffer, "\xEF\xBF\xBD", error));
            text = view_slice(text, maximal_subpart(text), SIZE_MAX);
        }
    }
    return OK;
}

bool parse_u64(struct view text, uint64_t *out) {
    uint64_t value = 0;
    if (text.length == 0) {
        return false;
    }
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = text.data[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(c - '0'), &value)) {
            return false;
        }
    }
    *out = value;
    return true;
}

bool parse_i64(struct view text, int64_t *out) {
    bool negative = text.length > 0 && text.data[0] == '-';
    uint64_t magnitude = 0;
    if (!parse_u64(view_slice(text, negative ? 1 : 0, SIZE_MAX), &magnitude)) {
        return false;
    }
    if (magnitude > (uint64_t)INT64_MAX + (negative ? 1U : 0U)) {
        return false;
    }
    *out = negative ? (int64_t)(0U - magnitude) : (int64_t)magnitude;
    return true;
}

bool parse_double(struct view text, double *out) {
    char digits[64];
    if (text.length == 0 || text.length >= sizeof digits) {
        return false;
    }
    for (size_t i = 0; i < text.length; i++) {
        if (strchr("0123456789+-.eE", (char)text.data[i]) == NULL || text.data[i] == 0) {
            return false;
        }
        digits[i] = (char)text.data[i];
    }
    digits[text.length] = '\0';
    char *end = NULL;
    double value = strtod(digits, &end); // decimal only: the characters were checked above
    if (end != digits + text.length || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

result file_read(const char *path, struct buffer *out, struct error *error) {
    // Not blocking, so that a FIFO in the file's place is refused instead of waited for.
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        int code = errno;
        if (code == ENOENT || code == ENOTDIR) {
            FAIL_FOREIGN(error, NOT_FOUND, code, "%s: no such file", path);
        }
        FAIL_FOREIGN(error, IO, code, "%s: cannot open: %s", path, strerror(code));
    }
    struct stat status;
    if (fstat(fd, &status) != 0 || (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) {
        FAIL(error, INVALID_INPUT, "%s is no regular file", path);
    }
    for (;;) {
        TRY_NOTE(
            error,
            buffer_reserve(
                out, 65536 < out->ceiling - out->length ? 65536 : out->ceiling - out->length, error
            ),
            "%s",
            path
        );
        size_t room = out->capacity - 1 - out->length;
        unsigned char probe;
        ssize_t got = room > 0 ? read(fd, out->data + out->length, room) : read(fd, &probe, 1);
        if (got < 0) {
            int code = errno;
            if (code == EINTR) {
                continue;
            }
            FAIL_FOREIGN(error, IO, code, "%s: cannot read: %s", path, strerror(code));
        }
        if (got == 0) {
            return OK;
        }
        if (room == 0) {
            FAIL(error, LIMIT, "%s: larger than the %zu bytes allowed", path, out->ceiling);
        }
        out->length += (size_t)got;
        out->data[out->length] = 0;
    }
}
