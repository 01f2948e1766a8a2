/* What the files of swarm_eval.h share. Pure. */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_INTERNAL_H
#define HEARTH_RUNTIME_SWARM_EVAL_INTERNAL_H

#include "swarm_eval.h"

struct swarm_eval_slot {
    bool is_known;
    struct swarm_eval_result result;
};

struct swarm_eval {
    struct swarm_eval_plan plan;
    struct swarm_eval_slot *slots; /* by budget, setting, task, seed; also those beside the plan */
    double *values;                /* [task_count] */
    double *scratch;               /* [SWARM_EVAL_RESAMPLES] */
};

#endif
