/* The modes of the terminal: keys come one by one, and on every way out things are as they were.
 *
 * A process has one terminal, so its state is the process's; that is what a signal handler needs.
 * Signals that end the process by a fault restore the modes first.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_MODES_H
#define HEARTH_RUNTIME_TERMINAL_MODES_H

#include "base/result.h"

/* Keys as they come, without echo and without signals of keys; pasted text in brackets. Again after
 * terminal_modes_leave it does the same. Expected errors: IO (no terminal). Thread: loop. */
MUST_CHECK result terminal_modes_enter(int input, int output, struct error *error);
/* Restores the modes when they were changed. Thread: any; safe in a signal handler. */
void terminal_modes_leave(void);
/* Whether this process may use its terminal now: it is not in the background. */
bool terminal_is_ours(int input);

#endif
