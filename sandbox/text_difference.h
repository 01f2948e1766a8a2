/* The difference of two texts as the hunks of a unified diff: what a file becomes when it is written over.
 * Thread: any; a worker for large texts.
 */
#ifndef HEARTH_SANDBOX_TEXT_DIFFERENCE_H
#define HEARTH_SANDBOX_TEXT_DIFFERENCE_H

#include "base/bytes.h"

/* Of either text; the cost grows faster than the number of lines (workspace_merge.h). */
#define TEXT_DIFFERENCE_BYTES_MAX ((size_t)1 << 20)
#define TEXT_DIFFERENCE_LINES_MAX ((size_t)20000)

/* Appends "@@ ..." and lines that begin with "-", "+" or a blank, two lines around each change; nothing
 * when the texts are equal. Expected errors: LIMIT (a text is too large), INVALID_INPUT (binary), MEMORY. */
MUST_CHECK result text_difference(
    struct view old_text, struct view new_text, struct buffer *out, struct error *error
);

#endif
