/* Between the table of jobs (tool_jobs.c) and the tools that look after them (tool_job_calls.c).
 * Thread: that of tool_call.
 */
#ifndef HEARTH_TOOLS_TOOL_JOBS_INTERNAL_H
#define HEARTH_TOOLS_TOOL_JOBS_INTERNAL_H

#include "tool_jobs.h"
#include "tool_pump.h"

#include <pthread.h>
#include <stdatomic.h>

#define JOB_STATE_BYTES 256

struct job {
    unsigned number;
    char *command;
    struct pump *pump; /* null once it ended */
    struct sandbox_outcome outcome;
    int64_t started_ms; /* monotonic */
    int64_t limit_ms;
    bool is_told; /* that it ended */
    /* Shows output while a call waits for the job; null: not shown. The thread of the pump reads it. */
    const struct tool_context *_Atomic shown_by;
    uint64_t read_at;
    pthread_mutex_t mutex; /* guards the two below, which the pump's thread writes */
    unsigned char *ring;
    uint64_t total;
};

struct tool_jobs {
    struct job *items[TOOL_JOBS_MAX]; /* in order of their numbers */
    size_t count;
    unsigned last_number;
};

/* Notices that it has ended. */
void job_settle(struct job *job);
uint64_t job_unread_bytes(struct job *job);
/* Starts one; null: the answer says why not. Expected errors: MEMORY, IO, those of the sandbox. */
MUST_CHECK result job_start(
    struct tool_context *context,
    struct view command,
    int64_t time_ms_max,
    struct job **out,
    struct tool_result *answer,
    struct error *error
);
/* Takes it out of the table, which then knows nothing of it; it has ended. */
void job_forget(struct tool_jobs *jobs, struct job *job);
/* "running for 5 s", "ended, exit 0", ... */
void job_describe_state(
    const struct tool_context *context, const struct job *job, char out[JOB_STATE_BYTES]
);
/* What a job is called here: "job", or as the dialect has it. */
const char *job_word(const struct tool_context *context);
/* What it wrote since the last time, and its end when it has ended, without a line on how it is. */
MUST_CHECK result job_take_output(struct job *job, struct tool_result *out, struct error *error);
/* The same, and how it is. */
MUST_CHECK result job_answer(
    struct tool_context *context, struct job *job, struct tool_result *out, struct error *error
);

#endif
