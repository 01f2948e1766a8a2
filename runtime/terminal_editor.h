/* The line that a person types: libedit's editing commands and history, without a terminal.
 *
 * libedit wants a terminal whose modes it sets and that it waits for. It gets a pseudo terminal of its
 * own and each key by hand, and what it would draw is dropped: so nothing blocks, the modes of the
 * real terminal belong to one place (terminal_modes.h), and the line is drawn where the display wants
 * it. The line may hold newlines. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_EDITOR_H
#define HEARTH_RUNTIME_TERMINAL_EDITOR_H

#include "terminal_keys.h"

#define EDITOR_BYTES_MAX   ((size_t)512 << 10)
#define EDITOR_HISTORY_MAX 1000 /* lines */

struct editor;

/* Expected errors: IO (no pseudo terminal), MEMORY. */
MUST_CHECK result editor_create(struct editor **out, struct error *error);
void editor_destroy(struct editor *editor);

/* An editing key; false when it does nothing, or the line would become too long. */
bool editor_key(struct editor *editor, const struct key *key);
/* At the cursor. False: the line would become too long. */
bool editor_insert(struct editor *editor, struct view text);
/* Replaces the line; the cursor is at its end. */
void editor_set(struct editor *editor, struct view text);
bool editor_is_empty(const struct editor *editor);
/* The line as UTF-8, and how many bytes lie before the cursor; borrowed until the next call. */
struct view editor_line(struct editor *editor, size_t *cursor);
/* Lines that Up and Ctrl-R find, the last one first. */
void editor_remember(struct editor *editor, struct view line);

#endif
