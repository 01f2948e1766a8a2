/* Background jobs: their table, their output, and the tools that look after them.
 *
 * Output is read by each job's own thread into a ring of the latest bytes; a call takes what came
 * since the last one. A job that ended is told of at the end of the next result, whatever that is of,
 * so that nobody has to ask in vain.
 */
#include "tool_jobs.h"
#include "tool_pump.h"
#include "tool_shell.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>

#define COMMAND_SHOWN_BYTES ((size_t)200)
#define INPUT_BYTES_MAX     ((size_t)1 << 20)
#define WAIT_MS_MAX         3600000 /* of one call, whose own limit is lower as a rule */
#define WAIT_MS_DEFAULT     1000    /* for an answer to input */
#define TASK_WAIT_MS        30000
#define NEVER_WAIT          (-1)
#define QUIET_MS            200  /* after which an answer is taken to be whole */
#define OUTPUT_TOTAL_MIB    1024 /* of one job; more ends it */
#define STOP_GRACE_MS       2500 /* the sandbox's own is 2 s */

struct job {
    unsigned number;
    char *command;
    struct pump *pump; /* null once it ended */
    struct sandbox_outcome outcome;
    int64_t started_ms; /* monotonic */
    int64_t limit_ms;
    bool is_told; /* that it ended */
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

/* ---- output --------------------------------------------------------------------------------- */

static void keep_output(void *context, enum sandbox_stream stream, struct view bytes) {
    struct job *job = context;
    (void)stream; // both go into one pipe
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

static uint64_t unread_bytes(struct job *job) {
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
static void settle(struct job *job) {
    if (job->pump != NULL && pump_has_ended(job->pump)) {
        job->outcome = *pump_outcome(job->pump);
        pump_destroy(job->pump);
        job->pump = NULL;
    }
}

static size_t count_running(struct tool_jobs *jobs) {
    size_t running = 0;
    for (size_t i = 0; i < jobs->count; i++) {
        settle(jobs->items[i]);
        running += jobs->items[i]->pump != NULL ? 1 : 0;
    }
    return running;
}

/* Room for one more: the oldest that has ended goes. */
static void forget_oldest(struct tool_jobs *jobs) {
    for (size_t i = 0; i < jobs->count && jobs->count == TOOL_JOBS_MAX; i++) {
        if (jobs->items[i]->pump == NULL) {
            job_destroy(jobs->items[i]);
            jobs->count -= 1;
            for (size_t j = i; j < jobs->count; j++) {
                jobs->items[j] = jobs->items[j + 1];
            }
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

result tool_jobs_start(
    struct tool_context *context,
    struct view command,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    if (context->jobs == NULL) {
        context->jobs = calloc(1, sizeof *context->jobs);
    }
    struct tool_jobs *jobs = context->jobs;
    if (jobs == NULL) {
        FAIL(error, MEMORY, "no memory for jobs");
    }
    if (count_running(jobs) >= TOOL_JOBS_RUNNING_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: %d jobs are running; stop one", TOOL_JOBS_RUNNING_MAX
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
    return tool_answer(out, TOOL_OK, error, "job %u started", job->number);
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
        settle(job);
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

#define STATE_BYTES 256

static void
describe_state(const struct tool_context *context, const struct job *job, char out[STATE_BYTES]) {
    if (job->pump == NULL) {
        describe_end(job, out, STATE_BYTES);
        return;
    }
    int64_t run_ms = clock_monotonic_ms(&context->options.clock) - job->started_ms;
    (void)snprintf(out, STATE_BYTES, "running for %lld s", (long long)(run_ms / 1000));
}

result
tool_jobs_append_news(struct tool_context *context, struct buffer *text, struct error *error) {
    struct tool_jobs *jobs = context->jobs;
    for (size_t i = 0; jobs != NULL && i < jobs->count; i++) {
        struct job *job = jobs->items[i];
        settle(job);
        if (job->pump != NULL || job->is_told) {
            continue;
        }
        char state[STATE_BYTES];
        describe_end(job, state, sizeof state);
        job->is_told = true;
        unsigned long long unread = unread_bytes(job);
        TRY(buffer_append_format(text, error, "\n[job %u %s; ", job->number, state));
        TRY(buffer_append_format(text, error, "%llu bytes of output not yet read]", unread));
    }
    return OK;
}

/* What it wrote since the last time, and how it is. */
static result answer_output(
    struct tool_context *context, struct job *job, struct tool_result *out, struct error *error
) {
    settle(job); // first: what it wrote last is then there
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
    char state[STATE_BYTES];
    describe_state(context, job, state);
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
    TRY(buffer_append_format(&out->text, error, "[job %u: ", job->number));
    TRY(sandbox_sanitise(view_of_text(state), 0, &out->text, error));
    return buffer_append_byte(&out->text, ']', error);
}

/* ---- tools ---------------------------------------------------------------------------------- */

/* A number, or a text that is one, as other dialects have it. */
static bool take_number(struct json_value arguments, const char *name, int64_t *out) {
    struct json_value value = json_get(arguments, name);
    struct view text;
    return json_as_i64(value, out) || (json_as_string(value, &text) && parse_i64(text, out));
}

/* Null: the answer says which ones there are. */
static result find_job(
    struct tool_context *context,
    struct json_value arguments,
    struct job **out,
    struct tool_result *answer,
    struct error *error
) {
    int64_t number = 0;
    *out = NULL;
    bool is_number = take_number(arguments, "job", &number);
    struct tool_jobs *jobs = context->jobs;
    for (size_t i = 0; jobs != NULL && i < jobs->count && is_number; i++) {
        if (jobs->items[i]->number == number) {
            settle(jobs->items[i]);
            *out = jobs->items[i];
            return OK;
        }
    }
    if (jobs == NULL || jobs->count == 0) {
        return tool_answer(answer, TOOL_ERROR, error, "error: there are no jobs");
    }
    return tool_answer(
        answer,
        TOOL_ERROR,
        error,
        "error: there is no such job; the last one is %u",
        jobs->last_number
    );
}

/* Until it ended or, when `for_output`, wrote something and then nothing for a while. */
static result wait_for_job(
    struct tool_context *context,
    struct job *job,
    int64_t wait_ms,
    bool for_output,
    struct error *error
) {
    const struct clock *clock = &context->options.clock;
    int64_t until = clock_monotonic_ms(clock) + (wait_ms < WAIT_MS_MAX ? wait_ms : WAIT_MS_MAX);
    until = until < context->deadline_ms ? until : context->deadline_ms;
    uint64_t seen = unread_bytes(job);
    int64_t quiet_at = for_output && seen > 0 ? clock_monotonic_ms(clock) + QUIET_MS : INT64_MAX;
    while (job->pump != NULL && !pump_has_ended(job->pump)) {
        int64_t now = clock_monotonic_ms(clock);
        int64_t next = quiet_at < until ? quiet_at : until;
        if (now >= next || atomic_load_explicit(&context->cancelled, memory_order_acquire)) {
            return OK;
        }
        struct pollfd fds[] = {
            {pump_notice_fd(job->pump), POLLIN, 0}, {context->cancel_fd, POLLIN, 0}};
        if (poll(fds, COUNT_OF(fds), (int)(next - now)) < 0 && errno != EINTR) {
            int number = errno;
            FAIL_FOREIGN(error, IO, number, "poll: %s", strerror(number));
        }
        pump_clear_notice(job->pump);
        uint64_t unread = unread_bytes(job);
        if (for_output && unread > seen) {
            quiet_at = clock_monotonic_ms(clock) + QUIET_MS;
        }
        seen = unread;
    }
    return OK;
}

static result wait_and_answer(
    struct tool_context *context,
    struct json_value arguments,
    int64_t wait_ms,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(find_job(context, arguments, &job, out, error));
    if (job == NULL) {
        return OK;
    }
    if (wait_ms != NEVER_WAIT) {
        (void)take_number(arguments, "wait_ms", &wait_ms);
    }
    TRY(wait_for_job(context, job, wait_ms, false, error));
    return answer_output(context, job, out, error);
}

static result run_job_output(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return wait_and_answer(context, arguments, 0, out, error);
}

/* The dialect that waits unless it is told not to. */
result tool_run_task_output(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    bool is_blocking = true;
    (void)json_as_bool(json_get(arguments, "block"), &is_blocking);
    return wait_and_answer(context, arguments, is_blocking ? TASK_WAIT_MS : NEVER_WAIT, out, error);
}

static result run_job_input(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(find_job(context, arguments, &job, out, error));
    if (job == NULL) {
        return OK;
    }
    struct view text = tool_argument(arguments, "text");
    if (text.length > INPUT_BYTES_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: the text is over %zu bytes", INPUT_BYTES_MAX
        );
    }
    struct error why = {0};
    result written = job->pump == NULL ? error_set(&why, RESULT_IO, 0, __FILE__, __LINE__, "ended")
                                       : pump_write(job->pump, text, &why);
    if (written.code == RESULT_IO) {
        char state[STATE_BYTES];
        describe_state(context, job, state);
        return tool_answer(
            out, TOOL_ERROR, error, "error: job %u takes no input (%s)", job->number, state
        );
    }
    if (written.code == RESULT_LIMIT) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: job %u does not read its input", job->number
        );
    }
    if (is_failed(written)) {
        return error_set(error, written.code, why.foreign, why.file, why.line, "%s", why.message);
    }
    bool is_end = false;
    (void)json_as_bool(json_get(arguments, "end"), &is_end);
    if (is_end) {
        pump_end_input(job->pump);
    }
    int64_t wait_ms = WAIT_MS_DEFAULT;
    (void)take_number(arguments, "wait_ms", &wait_ms);
    TRY(wait_for_job(context, job, wait_ms, true, error));
    return answer_output(context, job, out, error);
}

static result run_job_stop(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(find_job(context, arguments, &job, out, error));
    if (job == NULL) {
        return OK;
    }
    if (job->pump != NULL) {
        pump_stop(job->pump);
        if (!pump_wait(job->pump, STOP_GRACE_MS)) {
            pump_stop(job->pump);
            (void)pump_wait(job->pump, STOP_GRACE_MS);
        }
    }
    return answer_output(context, job, out, error);
}

static result run_job_list(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    (void)arguments;
    struct tool_jobs *jobs = context->jobs;
    if (jobs == NULL || jobs->count == 0) {
        return tool_answer(out, TOOL_OK, error, "no jobs");
    }
    out->status = TOOL_OK;
    for (size_t i = 0; i < jobs->count; i++) {
        struct job *job = jobs->items[i];
        settle(job);
        job->is_told = job->is_told || job->pump == NULL;
        char state[STATE_BYTES];
        describe_state(context, job, state);
        CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
        buffer_init(&line, BUFFER_CEILING_DEFAULT);
        struct view command = view_of_text(job->command);
        size_t shown = command.length < COMMAND_SHOWN_BYTES ? command.length : COMMAND_SHOWN_BYTES;
        TRY(buffer_append_format(
            &line,
            error,
            "job %u: %s, %llu bytes of output not yet read: ",
            job->number,
            state,
            (unsigned long long)unread_bytes(job)
        ));
        size_t end = view_find(view_slice(command, 0, shown), view_of_text("\n"), 0);
        TRY(buffer_append(&line, view_slice(command, 0, end < shown ? end : shown), error));
        TRY(buffer_append_text(&line, i + 1 < jobs->count ? "\n" : "", error));
        TRY(sandbox_sanitise(buffer_view(&line), 0, &out->text, error));
    }
    return OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bool is_possible(const struct tool_context_options *options) {
    return options->sandbox != NULL;
}

#define JOB_PROPERTY TYPED_PROPERTY("job", "integer", "number of the job")

const struct tool_row tool_row_job_output = {
    .shown =
        {"job_output",
         "What a background job wrote since the last time, and whether it still runs.",
         OBJECT_SCHEMA(
             JOB_PROPERTY ", " TYPED_PROPERTY(
                 "wait_ms", "integer", "wait for its end, so long at most; 0 when left out"
             ),
             "\"job\""
         ),
         TOOL_READS,
         false},
    .run = run_job_output,
    .is_possible = is_possible,
};

const struct tool_row tool_row_job_input = {
    .shown =
        {"job_input",
         "Write text to the standard input of a background job and see what it answers.",
         OBJECT_SCHEMA(
             JOB_PROPERTY
             ", " STRING_PROPERTY("text", "exactly what it reads, with the newline that ends a line") ", " TYPED_PROPERTY(
                 "end", "boolean", "nothing follows: it reads end of file"
             ) ", " TYPED_PROPERTY("wait_ms", "integer", "wait for the answer, so long at most; 1000 when left out"),
             "\"job\""
         ),
         TOOL_EXECUTES,
         false},
    .run = run_job_input,
    .is_possible = is_possible,
};

const struct tool_row tool_row_job_stop = {
    .shown =
        {"job_stop",
         "End a background job and all its processes.",
         OBJECT_SCHEMA(JOB_PROPERTY, "\"job\""),
         TOOL_EXECUTES,
         false},
    .run = run_job_stop,
    .is_possible = is_possible,
};

const struct tool_row tool_row_job_list = {
    .shown = {"job_list", "List the background jobs.", OBJECT_SCHEMA("", ""), TOOL_READS, false},
    .run = run_job_list,
    .is_possible = is_possible,
};
