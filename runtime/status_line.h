/* The status line of the live view: where the run stands, in as many words as there is room for.
 * Thread: any.
 */
#ifndef HEARTH_RUNTIME_STATUS_LINE_H
#define HEARTH_RUNTIME_STATUS_LINE_H

#include "display.h"

#define STATUS_LINE_BYTES 320

/* ASCII, at most `columns` characters. */
void status_line_make(const struct run_status *status, int columns, char out[STATUS_LINE_BYTES]);

#endif
