/* Differences of texts as coloured lines: "-" what goes, "+" what comes. Foreign text is made
 * harmless. Thread: any.
 */
#ifndef HEARTH_RUNTIME_DIFF_H
#define HEARTH_RUNTIME_DIFF_H

#include "lines.h"

#define DIFF_LINES_SHOWN 40 /* of one call */

/* A unified diff, or any patch whose lines begin with "+", "-" or a blank: at most `lines_max` of
 * them, then how many more there are. Each shown line begins with `prefix`. */
void diff_put(struct lines *lines, const char *prefix, struct view patch, size_t lines_max);

/* What becomes of a text, without the lines that stay but those beside a change; at most
 * DIFF_LINES_SHOWN. */
void diff_put_change(
    struct lines *lines, const char *prefix, struct view old_text, struct view new_text
);

#endif
