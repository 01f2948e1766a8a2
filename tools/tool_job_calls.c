/* The tools that look after background jobs: their output, input and end, also as other dialects have
 * them. The jobs themselves are in tool_jobs.c.
 */
#include "tool_jobs_internal.h"
#include "tool_shell.h"

#include <errno.h>
#include <poll.h>

#define COMMAND_SHOWN_BYTES ((size_t)200)
#define INPUT_BYTES_MAX     ((size_t)1 << 20)
#define WAIT_MS_MAX         3600000 /* of one call, whose own limit is lower as a rule */
#define WAIT_MS_DEFAULT     1000    /* for an answer to input */
#define TASK_WAIT_MS        30000
#define NEVER_WAIT          (-1)
#define QUIET_MS            200   /* after which an answer is taken to be whole */
#define SESSION_WAIT_MS     10000 /* for a command that may go on as a session */
#define SESSION_POLL_MS     5000
#define KEY_INTERRUPT       "\003"
#define KEY_END_OF_INPUT    "\004"

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
            job_settle(jobs->items[i]);
            *out = jobs->items[i];
            return OK;
        }
    }
    const char *wait = tool_offered_name(context, &tool_row_wait);
    if (!is_number && wait != NULL) { // elsewhere one tool is for both
        return tool_answer(
            answer,
            TOOL_ERROR,
            error,
            "error: that is no number of a %s; %s is for agents",
            job_word(context),
            wait
        );
    }
    if (jobs == NULL || jobs->count == 0) {
        return tool_answer(answer, TOOL_ERROR, error, "error: there are no %ss", job_word(context));
    }
    return tool_answer(
        answer,
        TOOL_ERROR,
        error,
        "error: there is no such %s; the last one is %u",
        job_word(context),
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
    uint64_t seen = job_unread_bytes(job);
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
        uint64_t unread = job_unread_bytes(job);
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
    return job_answer(context, job, out, error);
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

static result write_input(
    struct tool_context *context,
    struct json_value arguments,
    struct view text,
    bool is_end,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(find_job(context, arguments, &job, out, error));
    if (job == NULL) {
        return OK;
    }
    if (text.length > INPUT_BYTES_MAX) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: the text is over %zu bytes", INPUT_BYTES_MAX
        );
    }
    struct error why = {0};
    result written = job->pump == NULL ? error_set(&why, RESULT_IO, 0, __FILE__, __LINE__, "ended")
                                       : pump_write(job->pump, text, &why);
    if (written.code == RESULT_IO) {
        char state[JOB_STATE_BYTES];
        job_describe_state(context, job, state);
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: %s %u takes no input (%s)",
            job_word(context),
            job->number,
            state
        );
    }
    if (written.code == RESULT_LIMIT) {
        return tool_answer(
            out,
            TOOL_ERROR,
            error,
            "error: %s %u does not read its input",
            job_word(context),
            job->number
        );
    }
    if (is_failed(written)) {
        return error_set(error, written.code, why.foreign, why.file, why.line, "%s", why.message);
    }
    if (is_end) {
        pump_end_input(job->pump);
    }
    int64_t wait_ms = WAIT_MS_DEFAULT;
    (void)take_number(arguments, "wait_ms", &wait_ms);
    TRY(wait_for_job(context, job, wait_ms, true, error));
    return job_answer(context, job, out, error);
}

static result run_job_input(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    bool is_end = false;
    (void)json_as_bool(json_get(arguments, "end"), &is_end);
    struct view text = tool_argument(arguments, "text");
    return write_input(context, arguments, text, is_end, out, error);
}

static void stop_job(struct job *job) {
    if (job->pump != NULL) {
        pump_stop(job->pump);
        if (!pump_wait(job->pump, STOP_GRACE_MS)) {
            pump_stop(job->pump);
            (void)pump_wait(job->pump, STOP_GRACE_MS);
        }
    }
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
    stop_job(job);
    return job_answer(context, job, out, error);
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
        job_settle(job);
        job->is_told = job->is_told || job->pump == NULL;
        char state[JOB_STATE_BYTES];
        job_describe_state(context, job, state);
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
            (unsigned long long)job_unread_bytes(job)
        ));
        size_t end = view_find(view_slice(command, 0, shown), view_of_text("\n"), 0);
        TRY(buffer_append(&line, view_slice(command, 0, end < shown ? end : shown), error));
        TRY(buffer_append_text(&line, i + 1 < jobs->count ? "\n" : "", error));
        TRY(sandbox_sanitise(buffer_view(&line), 0, &out->text, error));
    }
    return OK;
}

/* ---- as Codex has it ------------------------------------------------------------------------ */

result tool_jobs_run(
    struct tool_context *context,
    struct view command,
    int64_t wait_ms,
    struct tool_result *out,
    struct error *error
) {
    struct job *job = NULL;
    TRY(job_start(context, command, 0, &job, out, error));
    if (job == NULL) {
        return OK;
    }
    atomic_store_explicit(&job->shown_by, context, memory_order_relaxed);
    result waited =
        wait_for_job(context, job, wait_ms > 0 ? wait_ms : SESSION_WAIT_MS, false, error);
    atomic_store_explicit(&job->shown_by, NULL, memory_order_relaxed);
    TRY(waited);
    if (atomic_load_explicit(&context->cancelled, memory_order_acquire) && job->pump != NULL &&
        !pump_has_ended(job->pump)) {
        stop_job(job);
        TRY(job_answer(context, job, out, error));
        out->status = TOOL_CANCELLED;
        return OK;
    }
    job_settle(job);
    if (job->pump != NULL || job->outcome.end != SANDBOX_EXITED) {
        return job_answer(context, job, out, error);
    }
    TRY(job_take_output(job, out, error)); /* as if it had never been a job */
    TRY(buffer_append_format(&out->text, error, "[exit %d]", out->exit_status));
    job_forget(context->jobs, job);
    return OK;
}

/* Without text it waits; the keys that end a program or its input are what they do. */
result tool_run_write_stdin(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view text = tool_argument(arguments, "text");
    if (text.length == 0) {
        return wait_and_answer(context, arguments, SESSION_POLL_MS, out, error);
    }
    if (view_equals_text(text, KEY_INTERRUPT)) {
        return run_job_stop(context, arguments, out, error);
    }
    bool is_end = view_ends_with(text, view_of_text(KEY_END_OF_INPUT));
    return write_input(
        context, arguments, view_slice(text, 0, text.length - (is_end ? 1 : 0)), is_end, out, error
    );
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
