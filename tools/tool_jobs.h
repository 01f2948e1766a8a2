/* Commands that go on while other tools are called: at most TOOL_JOBS_RUNNING_MAX, none longer than
 * the context. Internal to tools/. Thread: that of tool_call.
 */
#ifndef HEARTH_TOOLS_TOOL_JOBS_H
#define HEARTH_TOOLS_TOOL_JOBS_H

#include "tool_internal.h"

#define TOOL_JOBS_RUNNING_MAX    8
#define TOOL_JOBS_MAX            32 /* ended ones included; the oldest are forgotten */
#define TOOL_JOB_OUTPUT_BYTES    ((size_t)256 << 10) /* unread output that is kept, the latest */
#define TOOL_JOB_TIME_MS_DEFAULT INT64_C(3600000)
#define TOOL_JOB_TIME_MS_MAX     INT64_C(86400000) /* as the sandbox has it */
#define STOP_GRACE_MS            2500              /* the sandbox's own is 2 s */

struct tool_jobs;

/* Starts `command` as the shell tool would and answers with its number. `time_ms_max` 0: the
 * default. */
MUST_CHECK result tool_jobs_start(
    struct tool_context *context,
    struct view command,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
);
/* Runs it as the shell tool would for `wait_ms` (0: a default); what runs longer is a job from then on. */
MUST_CHECK result tool_jobs_run(
    struct tool_context *context,
    struct view command,
    int64_t wait_ms,
    struct tool_result *out,
    struct error *error
);
/* Appends a line for each job that ended and was not told of yet. */
MUST_CHECK result
tool_jobs_append_news(struct tool_context *context, struct buffer *text, struct error *error);
/* Ends all of them: SIGTERM, and SIGKILL after `grace_ms` at most. Accepts null. */
void tool_jobs_stop(struct tool_jobs *jobs, int64_t grace_ms);
void tool_jobs_destroy(struct tool_jobs *jobs);

#endif
