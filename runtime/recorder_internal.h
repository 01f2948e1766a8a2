/* Between the files of the recorder: what a run records (recorder.c, recorder_calls.c), how it ends (recorder_end.c),
 * and its going on under another model (recorder_model.c). Thread: as recorder.h. */
#ifndef HEARTH_RUNTIME_RECORDER_INTERNAL_H
#define HEARTH_RUNTIME_RECORDER_INTERNAL_H

#include "recorder.h"

/* Into commit_last, which is "" when there was no time for it. Expected errors: those of the workspace. */
MUST_CHECK result
recorder_snapshot(struct recorder *recorder, const char *message, struct error *error);
/* All or nothing: rolls back when the appends between begin and commit failed. */
MUST_CHECK result
recorder_batch_end(struct recorder *recorder, result appended, struct error *error);
/* The turn of a compaction, within the caller's batch; recorder->turn is its number. */
MUST_CHECK result recorder_append_compaction(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
);

#endif
