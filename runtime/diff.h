/* Differences of texts as coloured lines: "-" what goes, "+" what comes. Foreign text is made
 * harmless. Thread: any.
 */
#ifndef HEARTH_RUNTIME_DIFF_H
#define HEARTH_RUNTIME_DIFF_H

#include "lines.h"

#define DIFF_LINES_SHOWN 40 /* of one call */
#define DIFF_LINE_BYTES  400

struct diff_form {
    const char *prefix; /* of each shown line */
    size_t lines_max;   /* then how many more there are; 0: DIFF_LINES_SHOWN */
    size_t line_bytes;  /* shown of one line; 0: DIFF_LINE_BYTES */
};

/* A unified diff, or any patch whose lines begin with "+", "-" or a blank. False: something was left
 * out. */
bool diff_put(struct lines *lines, const struct diff_form *form, struct view patch);

/* What becomes of a text, without the lines that stay but those beside a change. False: something that
 * changes was left out. */
bool diff_put_change(
    struct lines *lines, const struct diff_form *form, struct view old_text, struct view new_text
);

#endif
