/* Shared by the files behind `hearth sessions`. Thread: main. */
#ifndef HEARTH_RUNTIME_CLI_SESSIONS_H
#define HEARTH_RUNTIME_CLI_SESSIONS_H

#include "cli.h"
#include "sessions/session.h"

enum sessions_use {
    SESSIONS_READ,
    SESSIONS_READ_ALONE, /* no run writes meanwhile; needs no room on the disk */
    SESSIONS_WRITE       /* what was recorded already: nothing is made where nothing is */
};

/* The store of --state. *is_empty (may be null): nothing was recorded yet, which is not said then.
 * Returns an exit status and has said why it is not STATUS_DONE. */
int sessions_open(
    const struct cli_arguments *arguments,
    enum sessions_use use,
    struct session_store **store,
    bool *is_empty
);
/* Text of users, models and tools on its way to a terminal. */
MUST_CHECK result sessions_put_text(struct buffer *out, struct view text, struct error *error);
/* Local time to the second; "" when there is none such. */
void sessions_time_text(int64_t milliseconds, char out[32]);
/* Prints what was made, or why it was not; an exit status. */
int sessions_print(result made, const struct error *error, const struct buffer *text);

#endif
