/* Completion of the word before the cursor: commands behind a slash, else files of the workspace.
 * Blocks on the disk for files: a worker's business. Thread: any.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_COMPLETE_H
#define HEARTH_RUNTIME_TERMINAL_COMPLETE_H

#include "base/bytes.h"

struct beneath;

struct completion {
    struct buffer insert;     /* what all candidates have in common behind what is typed */
    struct buffer candidates; /* a line each, at most COMPLETION_SHOWN */
    size_t count;             /* of all candidates */
};
#define COMPLETION_SHOWN 40

void completion_init(struct completion *completion);
void completion_deinit(struct completion *completion); /* usable with CLEANUP */

/* `line` up to the cursor. `root` null: no files. Nothing found, or no memory: count is 0. */
void completion_find(struct completion *out, const struct beneath *root, struct view line);

#endif
