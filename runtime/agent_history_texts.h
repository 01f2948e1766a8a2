/* Texts that stand for what a compaction leaves out; between the files of agent_history.h. Pure. Thread: any.
 */
#ifndef HEARTH_RUNTIME_AGENT_HISTORY_TEXTS_H
#define HEARTH_RUNTIME_AGENT_HISTORY_TEXTS_H

#include "agent_history.h"

/* How many of the last `count` files are listed; *bytes receives what their lines take. */
size_t history_listed_files(
    const struct agent_history *history, const struct view *files, size_t count, size_t *bytes
);
/* In the place of output `at`, which is removed. */
MUST_CHECK result history_write_removed(
    struct buffer *out, const struct agent_history *history, size_t at, struct error *error
);
/* The beginning of message `at`; with its note no longer than `bytes`. */
MUST_CHECK result history_write_cut(
    struct buffer *out,
    const struct agent_history *history,
    size_t at,
    size_t bytes,
    struct error *error
);
/* The message that stands for what came before `tail`. */
MUST_CHECK result history_write_summary(
    struct buffer *out,
    const struct agent_history *history,
    size_t tail,
    struct view summary,
    struct error *error
);

#endif
