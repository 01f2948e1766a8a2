/* The rows at the bottom of a terminal that are drawn again and again, below text that stays.
 *
 * Only what changed is written. A reader that is slow does not make a queue: while much of what was
 * drawn is not written yet, drawing waits for the next call. Rows are narrower than the terminal,
 * so that it never wraps them. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_SCREEN_H
#define HEARTH_RUNTIME_SCREEN_H

#include "output.h"

#define SCREEN_ROWS_MAX 64

struct screen;

/* Borrows the output. Expected errors: MEMORY. */
MUST_CHECK result screen_create(
    struct screen **out, struct output *output, int width, int height, struct error *error
);
void screen_destroy(struct screen *screen);

/* A terminal of another size may have wrapped the rows anew: everything is drawn again. */
void screen_set_size(struct screen *screen, int width, int height);
int screen_width(const struct screen *screen);
int screen_height(const struct screen *screen);

/* Whole lines that stay, above the rows. Seen with the next draw. */
void screen_print(struct screen *screen, struct view lines);

/* The rows to be seen: begin, add from top to bottom, draw. A row is text with escapes that begin
 * and end a style. Of more rows than the terminal has, the last ones are shown. */
void screen_begin(struct screen *screen);
void screen_add(struct screen *screen, struct view row);
size_t screen_row_count(const struct screen *screen);
/* Where the cursor is to stand; without it, behind the last row. */
void screen_set_cursor(struct screen *screen, size_t row, int column);
void screen_draw(struct screen *screen);
/* Whether a draw waits for the terminal. */
bool screen_is_behind(const struct screen *screen);
/* Writes the text that stays and removes the rows: something else may write to the terminal. */
void screen_erase(struct screen *screen);
/* Something else has written: nothing is known of what is to be seen. */
void screen_forget(struct screen *screen);

#endif
