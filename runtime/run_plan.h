/* The way from options to a run that can start, which `hearth run` and `hearth swarm` share: what is read
 * and opened in which order, and the options of the loop that come of it. Each function that returns an
 * exit status has said why it is not STATUS_DONE. Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_PLAN_H
#define HEARTH_RUNTIME_RUN_PLAN_H

#include "run_host.h"

/* Everything that is known before something is opened, but the record of a session that goes on. */
int run_plan_prepare(struct run_host *host, struct run_settings *settings);
/* Store, view, engine and sandbox; a workspace that may not be worked in is refused. */
int run_plan_open(struct run_host *host, struct run_settings *settings);
/* What a session needs beside the model: its context, and tools. A context without room for the first
 * prompt is refused before anything is recorded. */
int run_plan_open_session(struct run_host *host, struct run_settings *settings);

/* The options of a run, and what they borrow beside host and settings; stays where it is made. */
struct run_plan {
    struct run_options options;
    struct agent_resume again;
    char numerics[16];
};
/* Draws a seed where none is given. Expected errors: IO, MEMORY. */
MUST_CHECK result run_plan_make(
    struct run_host *host,
    const struct run_settings *settings,
    struct run_plan *out,
    struct error *error
);

/* After a run: snapshots of old sessions are kept to the configuration's bound. */
void run_plan_keep_snapshots_bounded(struct run_host *host, const struct run_settings *settings);

#endif
