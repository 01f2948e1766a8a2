/* Markdown that streams in, as text for a terminal.
 *
 * A block (paragraph, list item, table, line of code, ...) is shown once, when it has ended; what is
 * unfinished can be looked at meanwhile. Text is made harmless, a block is at most
 * MARKDOWN_BLOCK_BYTES_MAX long (a longer one is shown in parts), and what cannot be understood is
 * shown as it stands. Without colour the marks stay, so that nothing is lost. Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_MARKDOWN_H
#define HEARTH_RUNTIME_MARKDOWN_H

#include "lines.h"

#define MARKDOWN_BLOCK_BYTES_MAX ((size_t)16 << 10)

struct markdown;

/* Expected errors: MEMORY. */
MUST_CHECK result markdown_create(struct markdown **out, struct error *error);
void markdown_destroy(struct markdown *markdown);
/* From now on lines are shown as they stand, harmless all the same. */
void markdown_keep_source(struct markdown *markdown);
/* Any bytes, cut anywhere. Blocks that ended are appended to `lines`. */
void markdown_append(struct markdown *markdown, struct view text, struct lines *lines);
/* Ends the text: nothing is unfinished, and the next one begins anew. */
void markdown_end(struct markdown *markdown, struct lines *lines);
/* What is unfinished, harmless; borrowed until the next call. */
struct view markdown_tail(const struct markdown *markdown);

/* One whole block of harmless text; used by markdown.c. */
void markdown_render(struct lines *lines, struct view block);

#endif
