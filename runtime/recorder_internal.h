/* Between the files of the recorder: what a run records (recorder.c), and its going on under another model
 * (recorder_model.c). Thread: as recorder.h. */
#ifndef HEARTH_RUNTIME_RECORDER_INTERNAL_H
#define HEARTH_RUNTIME_RECORDER_INTERNAL_H

#include "recorder.h"

/* The turn of a compaction, within the caller's batch; recorder->turn is its number. */
MUST_CHECK result recorder_append_compaction(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
);

#endif
