/* A table of Markdown: its cells as text, then its rows, aligned and wrapped in their columns. Bounded;
 * each function says when it is too large. Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_MARKDOWN_TABLE_H
#define HEARTH_RUNTIME_MARKDOWN_TABLE_H

#include "lines.h"

struct markdown_table;

/* Null: too many columns, or no memory. */
struct markdown_table *markdown_table_create(size_t columns);
void markdown_table_destroy(struct markdown_table *table); /* accepts null */
/* To the cell that is being read; false: no memory. */
bool markdown_table_append(struct markdown_table *table, struct view text);
bool markdown_table_end_cell(struct markdown_table *table);
/* The first row is the head. Lines begin with the prefix, the first one with `first`. False: it does not
 * fit, and nothing was written. */
bool markdown_table_put(
    const struct markdown_table *table, struct lines *lines, const char *first, const char *prefix
);

#endif
