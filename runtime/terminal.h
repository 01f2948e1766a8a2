/* The keyboard of a person who works with the live view: a line editor with history and completion
 * below what the model writes, commands behind a slash, answers to questions, interrupts.
 *
 * It is a run_front: between attach and detach the terminal is in the modes of terminal_modes.h. When
 * the terminal goes away, the run ends and can be resumed. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_H
#define HEARTH_RUNTIME_TERMINAL_H

#include "loop.h"

struct terminal;

/* All borrowed until terminal_destroy. The display is a live one. */
struct terminal_options {
    struct display *display;
    struct output *output;
    int input, screen;     /* descriptors: standard input and output */
    const char *history;   /* file; null: none is kept */
    const char *workspace; /* for names of files; null: none are completed */
};

/* Expected errors: IO (no pseudo terminal to be had), MEMORY. */
MUST_CHECK result
terminal_create(struct terminal **out, const struct terminal_options *options, struct error *error);
/* After loop_run. Accepts null. */
void terminal_destroy(struct terminal *terminal);
const struct run_front *terminal_front(const struct terminal *terminal);

#endif
