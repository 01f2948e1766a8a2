/* A line that is being typed as rows of a terminal, with the place of its cursor. Pure. Thread: any.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_PROMPT_H
#define HEARTH_RUNTIME_TERMINAL_PROMPT_H

#include "base/bytes.h"

struct prompt_request {
    struct view first; /* in front of the first row; further ones begin with as many blanks */
    struct view line;  /* may hold newlines */
    size_t cursor;     /* bytes of it before the cursor */
    int width;         /* columns; a row is narrower */
    size_t rows_max;   /* of more, those around the cursor are given */
};

/* Appends the rows, each ended by a newline; the cursor's row counts from the first one given. What a
 * terminal would obey is a question mark. */
void prompt_make(
    struct buffer *out, const struct prompt_request *request, size_t *cursor_row, int *cursor_column
);

#endif
