/* Bounded capture of a stream, and its translation into text that is safe to show. */
#include "capture.h"

#include "sandbox.h"

result capture_init(struct capture *capture, size_t kept, struct error *error) {
    ASSERT(kept >= 2);
    *capture = (struct capture){.head_max = kept / 2, .tail_max = kept - kept / 2};
    capture->head = malloc(capture->head_max);
    capture->ring = malloc(capture->tail_max);
    if (capture->head == NULL || capture->ring == NULL) {
        capture_deinit(capture);
        FAIL(error, MEMORY, "no memory to keep %zu bytes of output", kept);
    }
    return OK;
}

void capture_deinit(struct capture *capture) {
    free(capture->head);
    free(capture->ring);
    *capture = (struct capture){0};
}

void capture_add(struct capture *capture, const unsigned char *bytes, size_t length) {
    capture->total += length;
    size_t room = capture->head_max - capture->head_bytes;
    size_t first = length < room ? length : room;
    if (first > 0) {
        memcpy(capture->head + capture->head_bytes, bytes, first);
        capture->head_bytes += first;
        bytes += first;
        length -= first;
    }
    if (length > capture->tail_max) { // only its end can stay
        bytes += length - capture->tail_max;
        length = capture->tail_max;
    }
    while (length > 0) {
        size_t space = capture->tail_max - capture->ring_at;
        size_t part = length < space ? length : space;
        memcpy(capture->ring + capture->ring_at, bytes, part);
        capture->ring_at = (capture->ring_at + part) % capture->tail_max;
        capture->ring_bytes += part;
        bytes += part;
        length -= part;
    }
    if (capture->ring_bytes > capture->tail_max) {
        capture->ring_bytes = capture->tail_max;
    }
}

static void reverse(unsigned char *bytes, size_t length) {
    for (size_t i = 0; i < length / 2; i++) {
        unsigned char other = bytes[length - 1 - i];
        bytes[length - 1 - i] = bytes[i];
        bytes[i] = other;
    }
}

void capture_settle(struct capture *capture) {
    if (capture->ring_bytes < capture->tail_max || capture->ring_at == 0) {
        return; // it never wrapped, or just did
    }
    // Rotate left by ring_at through three reversals; no further memory.
    reverse(capture->ring, capture->ring_at);
    reverse(capture->ring + capture->ring_at, capture->tail_max - capture->ring_at);
    reverse(capture->ring, capture->tail_max);
    capture->ring_at = 0;
}

struct view capture_head(const struct capture *capture) {
    return view_of(capture->head, capture->head_bytes);
}

struct view capture_tail(const struct capture *capture) {
    return view_of(capture->ring, capture->ring_bytes);
}

uint64_t capture_dropped(const struct capture *capture) {
    return capture->total - capture->head_bytes - capture->ring_bytes;
}

/* Characters that change the order in which text is shown, or hide in it. */
static bool is_deceptive(uint32_t code_point) {
    return code_point == 0x061cU || code_point == 0x200eU || code_point == 0x200fU ||
           (code_point >= 0x202aU && code_point <= 0x202eU) ||
           (code_point >= 0x2066U && code_point <= 0x2069U) || code_point == 0xfeffU ||
           (code_point >= 0xe0000U && code_point <= 0xe007fU);
}

/* `text` is valid UTF-8 and not empty; *used becomes the bytes taken. */
static result
append_shown(struct view text, size_t *used, struct buffer *out, struct error *error) {
    size_t plain = 0;
    while (plain < text.length && text.data[plain] >= 0x20U && text.data[plain] < 0x7fU) {
        plain += 1;
    }
    if (plain > 0) {
        *used = plain;
        return buffer_append(out, view_slice(text, 0, plain), error);
    }
    uint32_t code_point = 0;
    size_t length = utf8_decode(text, &code_point);
    ASSERT(length > 0);
    *used = length;
    if (code_point == '\t') {
        return buffer_append_byte(out, '\t', error);
    }
    if (code_point < 0x20U || (code_point >= 0x7fU && code_point <= 0x9fU)) {
        return buffer_append_format(out, error, "\\x%02x", (unsigned)code_point);
    }
    if (is_deceptive(code_point)) {
        return buffer_append_format(out, error, "\\u%04x", (unsigned)code_point);
    }
    return buffer_append(out, view_slice(text, 0, length), error);
}

/* One line without its newline. */
static result
append_line(struct view line, size_t line_bytes_max, struct buffer *out, struct error *error) {
    size_t shown = line.length;
    if (line_bytes_max > 0 && line.length > line_bytes_max) {
        shown = line_bytes_max;
        while (shown > 0 && (line.data[shown] & 0xc0U) == 0x80U) {
            shown -= 1; // not within a character
        }
    }
    for (size_t at = 0; at < shown;) {
        size_t used = 0;
        TRY(append_shown(view_slice(line, at, shown - at), &used, out, error));
        at += used;
    }
    if (shown < line.length) {
        TRY(buffer_append_format(out, error, " [%zu more bytes in this line]", line.length - shown)
        );
    }
    return OK;
}

result sandbox_sanitise(
    struct view bytes, size_t line_bytes_max, struct buffer *out, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer valid;
    buffer_init(&valid, BUFFER_CEILING_DEFAULT);
    TRY(utf8_append_lossy(&valid, bytes, error));
    struct view text = buffer_view(&valid);
    for (size_t at = 0; at < text.length;) {
        const unsigned char *end = memchr(text.data + at, '\n', text.length - at);
        size_t to = end != NULL ? (size_t)(end - text.data) : text.length;
        size_t line_to = to;
        if (end != NULL && to > at && text.data[to - 1] == '\r') {
            line_to -= 1; // CR LF is one line end
        }
        TRY(append_line(view_slice(text, at, line_to - at), line_bytes_max, out, error));
        if (end != NULL) {
            TRY(buffer_append_byte(out, '\n', error));
        }
        at = to + 1;
    }
    return OK;
}
