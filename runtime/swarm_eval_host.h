/* The runs of an evaluation with the real host of swarms: one process and one open model serve all of them. Each
 * begins cold: nothing of an earlier run is found in any cache, and nothing of it is left on the disk.
 * Thread: main.
 */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_HOST_H
#define HEARTH_RUNTIME_SWARM_EVAL_HOST_H

#include "run_host.h"
#include "swarm_eval_drive.h"

#define SWARM_EVAL_LIVE_MAX 8 /* agents at work at one time, in all settings that have several */

/* Opened by run_plan.h for a workspace that is the evaluation's own. */
struct swarm_eval_host {
    struct run_host *host;
    const struct run_settings *settings; /* its `workspace` is made anew for each run */
    const char *directory; /* beside it; the snapshots of a run lie in it, and its copies */
    void *say_context;
    void (*say)(void *context, struct view line);
};

void swarm_eval_host_port(struct swarm_eval_host *host, struct swarm_eval_port *out);

#endif
