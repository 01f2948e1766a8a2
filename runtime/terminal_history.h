/* Lines that a person typed, in a file of the state directory: one a line, with backslash and newline
 * escaped. Readable by its owner alone. Blocks on the disk. Thread: any.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_HISTORY_H
#define HEARTH_RUNTIME_TERMINAL_HISTORY_H

#include "base/bytes.h"

#define HISTORY_LINES_MAX      1000
#define HISTORY_FILE_BYTES_MAX ((size_t)1 << 20)
#define HISTORY_LINE_BYTES_MAX ((size_t)16 << 10) /* longer ones are not kept */

/* Gives the lines from old to new. A file that is too long, or has more lines, is cut to its newest
 * lines. A file that is missing or cannot be read is an empty one. */
void history_load(const char *path, void (*line)(void *context, struct view text), void *context);
/* Expected errors: IO, MEMORY, LIMIT (too long). */
MUST_CHECK result history_append(const char *path, struct view line, struct error *error);

#endif
