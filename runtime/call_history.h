/* Calls and their results, as far back as an agent remembers: whether it goes round in circles.
 * Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_CALL_HISTORY_H
#define HEARTH_RUNTIME_CALL_HISTORY_H

#include "engine/chat.h"

#define CALL_HISTORY_MAX 64 /* fingerprints of calls remembered */

/* Zeroed: empty. */
struct call_history {
    uint64_t fingerprints[CALL_HISTORY_MAX]; /* call and result */
    int counts[CALL_HISTORY_MAX];            /* since something new happened */
    size_t count;
};

/* Of a call and its result, behind `before`: 0, or that of those before it. Never 0. */
uint64_t call_digest(uint64_t before, const struct chat_call *call, struct view text);
/* Counts how often this call gave this result since a call last gave something new. */
int call_history_add(struct call_history *history, const struct chat_call *call, struct view text);

#endif
