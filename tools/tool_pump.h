/* A process that runs beside the calls of a context: background jobs and servers.
 *
 * It has a thread of its own that starts it (the kernel ends a sandbox together with the thread that
 * started it), feeds its standard input from a bounded queue and reads what it writes. Others
 * wait for it through a descriptor, together with whatever else they wait for. Internal to tools/.
 */
#ifndef HEARTH_TOOLS_TOOL_PUMP_H
#define HEARTH_TOOLS_TOOL_PUMP_H

#include "sandbox/sandbox.h"

#define PUMP_INPUT_BYTES_MAX ((size_t)8 << 20) /* written but not yet read by the process */

struct pump;

/* All borrowed until pump_start returns; on_output is called on the pump's thread, holding no lock,
 * and not any more once the pump has ended. */
struct pump_options {
    struct sandbox *sandbox;             /* null: outside, in policy->workspace, as ourselves */
    const struct sandbox_policy *policy; /* outside: workspace, environment, has_input, on_output */
    const char *const *command;          /* null-terminated */
};

/* Returns once the process was started. Expected errors: those of sandbox_start; IO, MEMORY. */
MUST_CHECK result
pump_start(const struct pump_options *options, struct pump **out, struct error *error);
/* Ends it at once where it still runs, and waits for that. Accepts null. */
void pump_destroy(struct pump *pump);

/* Queues input. Expected errors: LIMIT (it does not read), IO (it has ended, or its input has),
 * MEMORY. Thread: any. */
MUST_CHECK result pump_write(struct pump *pump, struct view bytes, struct error *error);
void pump_end_input(struct pump *pump);
/* SIGTERM, and SIGKILL 2 s later or at the second call. */
void pump_stop(struct pump *pump);

bool pump_has_ended(struct pump *pump);
/* Only when it has ended. */
const struct sandbox_outcome *pump_outcome(struct pump *pump);
/* Readable since the last pump_clear_notice when there was output or the end. Borrowed. */
int pump_notice_fd(const struct pump *pump);
void pump_clear_notice(struct pump *pump);
/* Waits for the end; false: it did not come in that time. */
bool pump_wait(struct pump *pump, int64_t time_ms_max);

/* ---- between tool_pump.c and tool_pump_outside.c -------------------------------------------- */

/* What the thread does next; each function locks by itself. */
struct view pump_input(struct pump *pump, bool *is_last); /* borrowed until pump_consume */
void pump_consume(struct pump *pump, size_t bytes);
void pump_drop_input(struct pump *pump); /* nobody reads it any more */
unsigned pump_take_stops(struct pump *pump);
int pump_wake_fd(const struct pump *pump);
void pump_notify(struct pump *pump);
void pump_report_start(struct pump *pump, result started, const struct error *error);

/* The thread's work outside of a sandbox. */
void pump_run_outside(
    struct pump *pump, const struct pump_options *options, struct sandbox_outcome *outcome
);

#endif
