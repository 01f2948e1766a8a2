/* Background jobs: their table and their output; the tools that look after them are in tool_job_calls.c.
 *
 * Output is read by each job's own thread into a ring of the latest bytes; a call takes what came
 * since the last one. A job that ended is told of at the end of the next result, whatever that is of,
 * so that nobody has to ask in vain.
 */
#include "tool_jobs_internal.h"
#include "tool_shell.h"

#define OUTPUT_TOTAL_MIB 1024 /* of one job; more ends it */

/* ---- output --------------------------------------------------------------------------------- */

static void keep_output(void *context, enum sandbox_stream stream, struct view bytes) {
    struct job *job = context;
    (void)stream; // both go into one pipe
    const struct tool_context *shown_by =
        atomic_load_explicit(&job->shown_by, memory_order_relaxed); // it outlives the job
    if (shown_by != NULL && shown_by->options.output != NULL) {
        shown_by->options.output(shown_by->options.output_context, bytes);
    }
    int status = pthread_mutex_lock(&job->mutex);
    ASSERT(status == 0);
    size_t skipped =
        bytes.length > TOOL_JOB_OUTPUT_BYTES ? bytes.length - TOOL_JOB_OUTPUT_BYTES : 0;
    job->total += skipped;
    bytes = view_slice(bytes, skipped, SIZE_MAX);
    while (bytes.length > 0) {
        size_t at = (size_t)(job->total % TOOL_JOB_OUTPUT_BYTES);
        size_t room = TOOL_JOB_OUTPUT_BYTES - at;
        size_t part = bytes.length < room ? bytes.length : room;
        memcpy(job->ring + at, bytes.data, part);
        job->total += part;
        bytes = view_slice(bytes, part, SIZE_MAX);
    }
    status = pthread_mutex_unlock(&job->mutex);
    ASSERT(status == 0);
}

uint64_t job_unread_bytes(struct job *job) {
    int status = pthread_mutex_lock(&job->mutex);
    ASSERT(status == 0);
    uint64_t unread = job->total - job->read_at;
    status = pthread_mutex_unlock(&job->mutex);
    ASSERT(status == 0);
    return unread;
}

/* Moves what is unread to `out`; *missing bytes before it are gone. */
static result
take_output(struct job *job, struct buffer *out, uint64_t *missing, struct error *error) {
    TRY(buffer_reserve(out, TOOL_JOB_OUTPUT_BYTES, error));
    int status = pthread_mutex_lock(&job->mutex);
    ASSERT(status == 0);
    uint64_t unread = job->total - job->read_at;
    *missing = unread > TOOL_JOB_OUTPUT_BYTES ? unread - TOOL_JOB_OUTPUT_BYTES : 0;
    result taken = OK;
    for (uint64_t at = job->read_at + *missing; at < job->total && is_ok(taken);) {
        size_t from = (size_t)(at % TOOL_JOB_OUTPUT_BYTES);
        uint64_t left = job->total - at;
        size_t room = TOOL_JOB_OUTPUT_BYTES - from;
        size_t part = left < room ? (size_t)left : room;
        taken = buffer_append(out, view_of(job->ring + from, part), error);
        at += part;
    }
    job->read_at = job->total;
    status = pthread_mutex_unlock(&job->mutex);
    ASSERT(status == 0);
    return taken;
}

/* ---- table ---------------------------------------------------------------------------------- */

static void job_destroy(struct job *job) {
    pump_destroy(job->pump);
    (void)pthread_mutex_destroy(&job->mutex);
    free(job->command);
    free(job->ring);
    free(job);
}

/* Notices that it has ended. */
void job_settle(struct job *job) {
    if (job->pump != NULL && pump_has_ended(job->pump)) {
        job->outcome = *pump_outcome(job->pump);
        pump_destroy(job->pump);
        job->pump = NULL;
    }
}

static size_t count_running(struct tool_jobs *jobs) {
    size_t running = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        job_settle(jobs->items[i]);
        running += jobs->items[i]->pump != NULL ? 1 : 0;
    }
    return running;
}

void job_forget(struct tool_jobs *jobs, struct job *job) {
    size_t at = 0;
    while (at < jobs->count && jobs->items[at] != job) {
        at++;
    }
    ASSERT(at < jobs->count && job->pump == NULL);
    job_destroy(job);
    jobs->count -= 1;
    for (; at < jobs->count; at++) {
        jobs->items[at] = jobs->items[at + 1];
    }
}

/* Room for one more: the oldest that has ended goes. */
static void forget_oldest(struct tool_jobs *jobs) {
    for (size_t i = 0; i < jobs->count && jobs->count == TOOL_JOBS_MAX; i++) {
        if (jobs->items[i]->pump == NULL) {
            job_forget(jobs, jobs->items[i]);
        }
    }
}

static result job_create(struct view command, struct job **out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    size_t length = 0;
    TRY(buffer_append(&text, command, error));
    struct job *job = calloc(1, sizeof *job);
    if (job == NULL || pthread_mutex_init(&job->mutex, NULL) != 0) {
        free(job);
        FAIL(error, MEMORY, "no memory for a job");
    }
    job->ring = malloc(TOOL_JOB_OUTPUT_BYTES);
    if (job->ring == NULL || is_failed(buffer_take(&text, &job->command, &length, error))) {
        job_destroy(job);
        FAIL(error, MEMORY, "no memory for a job");
    }
    *out = job;
    return OK;
}

result job_start(
    struct tool_context *context,
    struct view command,
    int64_t time_ms_max,
    struct job **out,
    struct tool_result *answer,
    struct error *error
) {
    *out = NULL;
    if (context->jobs == NULL) {
        context->jobs = calloc(1, sizeof *context->jobs);
    }
    struct tool_jobs *jobs = context->jobs;
    if (jobs == NULL) {
        FAIL(error, MEMORY, "no memory for jobs");
    }
    if (count_running(jobs) >= TOOL_JOBS_RUNNING_MAX) {
        return tool_answer(
            answer,
            TOOL_REFUSED,
            error,
            "error: %d %ss are running; stop one",
            TOOL_JOBS_RUNNING_MAX,
            job_word(context)
        );
    }
    forget_oldest(jobs);
    struct job *job = NULL;
    TRY(job_create(command, &job, error));
    ASSERT(job != NULL);
    const char *environment[TOOL_SHELL_ENVIRONMENT_MAX];
    struct sandbox_policy policy;
    result made = tool_shell_policy(context, environment, &policy, error);
    policy.wall_ms = time_ms_max > 0 ? time_ms_max : TOOL_JOB_TIME_MS_DEFAULT;
    policy.wall_ms = policy.wall_ms > TOOL_JOB_TIME_MS_MAX ? TOOL_JOB_TIME_MS_MAX : policy.wall_ms;
    policy.has_input = true;
    policy.output_kib = 1; // kept here
    policy.output_total_mib = OUTPUT_TOTAL_MIB;
    policy.on_output = keep_output;
    policy.on_output_context = job;
    const char *const words[] = {"/bin/sh", "-c", job->command, NULL};
    const struct pump_options options = {context->options.sandbox, &policy, words};
    job->limit_ms = policy.wall_ms;
    job->started_ms = clock_monotonic_ms(&context->options.clock);
    result started = is_ok(made) ? pump_start(&options, &job->pump, error) : made;
    if (is_failed(started)) {
        job_destroy(job);
        return started;
    }
    job->number = ++jobs->last_number;
    jobs->items[jobs->count++] = job;
    *out = job;
    return OK;
}

result tool_jobs_start(
    struct tool_context *context,
    struct view command,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(job_start(context, command, time_ms_max, &job, out, error));
    return job == NULL ? OK : tool_answer(out, TOOL_OK, error, "job %u started", job->number);
}

void tool_jobs_stop(struct tool_jobs *jobs, int64_t grace_ms) {
    if (jobs == NULL) {
        return;
    }
    for (size_t i = 0; i < jobs->count; i++) { // all at once, so that graces do not add up
        if (jobs->items[i]->pump != NULL) {
            pump_stop(jobs->items[i]->pump);
        }
    }
    struct clock clock = clock_real();
    int64_t until = clock_monotonic_ms(&clock) + grace_ms;
    for (size_t i = 0; i < jobs->count; i++) {
        struct job *job = jobs->items[i];
        int64_t left = until - clock_monotonic_ms(&clock);
        if (job->pump != NULL && !pump_wait(job->pump, left > 0 ? left : 0)) {
            pump_stop(job->pump);
            (void)pump_wait(job->pump, STOP_GRACE_MS);
        }
        job_settle(job);
    }
}

void tool_jobs_destroy(struct tool_jobs *jobs) {
    if (jobs == NULL) {
        return;
    }
    for (size_t i = 0; i < jobs->count; i++) {
        job_destroy(jobs->items[i]);
    }
    free(jobs);
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* "exit 0", "stopped after 5 s", "ended by signal 9", ... */
static void describe_end(const struct job *job, char *out, size_t bytes) {
    const struct sandbox_outcome *outcome = &job->outcome;
    char stopped[TOOL_STOPPED_BYTES];
    if (outcome->end == SANDBOX_EXITED) {
        (void)snprintf(out, bytes, "ended, exit %d", outcome->exit_status);
    } else if (outcome->end == SANDBOX_TIMED_OUT) {
        tool_stopped_text(stopped, job->limit_ms);
        (void)snprintf(out, bytes, "%s", stopped + strlen("error: "));
    } else if (outcome->end == SANDBOX_CANCELLED) {
        (void)snprintf(out, bytes, "stopped");
    } else {
        (void)snprintf(out, bytes, "ended: %.200s", outcome->reason); // cut on purpose
    }
}

void job_describe_state(
    const struct tool_context *context, const struct job *job, char out[JOB_STATE_BYTES]
) {
    if (job->pump == NULL) {
        describe_end(job, out, JOB_STATE_BYTES);
        return;
    }
    int64_t run_ms = clock_monotonic_ms(&context->options.clock) - job->started_ms;
    (void)snprintf(out, JOB_STATE_BYTES, "running for %lld s", (long long)(run_ms / 1000));
}

result
tool_jobs_append_news(struct tool_context *context, struct buffer *text, struct error *error) {
    struct tool_jobs *jobs = context->jobs;
    for (size_t i = 0; jobs != NULL && i < jobs->count; i++) {
        struct job *job = jobs->items[i];
        job_settle(job);
        if (job->pump != NULL || job->is_told) {
            continue;
        }
        char state[JOB_STATE_BYTES];
        describe_end(job, state, sizeof state);
        job->is_told = true;
        unsigned long long unread = job_unread_bytes(job);
        TRY(buffer_append_format(
            text, error, "\n[%s %u %s; ", job_word(context), job->number, state
        ));
        TRY(buffer_append_format(text, error, "%llu bytes of output not yet read]", unread));
    }
    return OK;
}

const char *job_word(const struct tool_context *context) {
    return context->options.dialect == TOOL_DIALECT_CODEX ? "session" : "job";
}

result job_take_output(struct job *job, struct tool_result *out, struct error *error) {
    job_settle(job); // first: what it wrote last is then there
    uint64_t missing = 0;
    TRY(take_output(job, &out->output, &missing, error));
    out->output_bytes = out->output.length + missing;
    struct view raw = buffer_view(&out->output);
    if (missing > 0) {
        TRY(buffer_append_format(
            &out->text, error, "... [%llu bytes lost] ...\n", (unsigned long long)missing
        ));
    }
    struct tool_cut cut =
        tool_cut_characters(raw, TOOL_SHELL_TEXT_MAX, TOOL_SHELL_TEXT_HEAD, TOOL_SHELL_TEXT_TAIL);
    TRY(tool_append_cut(out, raw, cut, 0, error));
    if (out->text.length > 0) {
        TRY(buffer_append_byte(&out->text, '\n', error));
    }
    out->status = TOOL_OK;
    if (job->pump == NULL) {
        job->is_told = true;
        out->has_exit_status = job->outcome.end == SANDBOX_EXITED;
        out->exit_status = job->outcome.exit_status;
        (void)snprintf( // cut on purpose
            out->notice,
            sizeof out->notice,
            "%s%.400s",
            job->outcome.trust_changes[0] != '\0'
                ? "changed files that programs outside of the sandbox act upon: "
                : "",
            job->outcome.trust_changes
        );
    }
    return OK;
}

result job_answer(
    struct tool_context *context, struct job *job, struct tool_result *out, struct error *error
) {
    TRY(job_take_output(job, out, error));
    char state[JOB_STATE_BYTES];
    job_describe_state(context, job, state);
    TRY(buffer_append_format(&out->text, error, "[%s %u: ", job_word(context), job->number));
    TRY(sandbox_sanitise(view_of_text(state), 0, &out->text, error));
    return buffer_append_byte(&out->text, ']', error);
}
