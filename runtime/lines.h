/* Styled text in lines, for all that a person reads: wrapped at the width of a terminal, or left as
 * it is for a pipe.
 *
 * Text that comes in is harmless already (sandbox_sanitise), or is made so where a function says so.
 * Without memory some text is missing; nothing fails, since the record has it all. Thread: one at a
 * time per object.
 */
#ifndef HEARTH_RUNTIME_LINES_H
#define HEARTH_RUNTIME_LINES_H

#include "base/bytes.h"

#define LINES_BYTES_MAX ((size_t)64 << 20)

enum style {
    STYLE_TEXT,
    STYLE_DIM,
    STYLE_CALL,
    STYLE_GOOD,
    STYLE_BAD,
    STYLE_ADDED,
    STYLE_REMOVED,
    STYLE_HEADING,
    STYLE_CODE,
    STYLE_STATUS
};

struct lines {
    struct buffer text; /* what was written; the owner takes it away */
    int width;          /* columns of a terminal; 0: nothing is wrapped */
    bool has_colour;
    int column; /* of the line that is being written */
};

void lines_init(struct lines *lines, int width, bool has_colour);
void lines_deinit(struct lines *lines);

/* Columns of a terminal that a character or a text without newlines takes. */
int columns_of(uint32_t code_point);
int columns_of_text(struct view text);
/* The longest beginning of the text, in whole characters, that fits into so many columns. */
struct view text_in_columns(struct view text, int columns);

/* Bytes as they are; the column is the caller's business. */
void lines_raw(struct lines *lines, struct view bytes);
void lines_raw_text(struct lines *lines, const char *text);
/* The escape that begins a style; "" without colour. */
const char *lines_style(const struct lines *lines, enum style style);

/* Each line begins with the prefix; long ones go on in the next line on a terminal. */
void lines_put(struct lines *lines, enum style style, const char *prefix, struct view text);
/* Any text, made harmless. */
void lines_text(struct lines *lines, enum style style, const char *prefix, struct view text);
/* lines_put and a newline. */
void lines_put_line(struct lines *lines, enum style style, const char *prefix, struct view text);
/* A whole line of at most 1,023 bytes; made harmless. */
PRINTF_LIKE(3, 4)
void lines_format(struct lines *lines, enum style style, const char *format, ...);
/* Ends the line that is being written, if there is one. */
void lines_end(struct lines *lines);

/* The first and the last few lines of any text, of a long line its two ends, and how much lies in between;
 * made harmless. False: something was left out. */
struct excerpt {
    enum style style;
    const char *prefix;
    size_t head, tail; /* lines; both 0: LINES_HEAD and LINES_TAIL */
    size_t line_bytes; /* shown of one line; 0: LINES_LINE_BYTES */
};
#define LINES_HEAD       4
#define LINES_TAIL       4
#define LINES_LINE_BYTES 400
bool lines_excerpt(struct lines *lines, const struct excerpt *excerpt, struct view text);

#endif
