/* shell: one command line in the sandbox, as `/bin/sh -c`.
 *
 * Standard error joins standard output in one pipe, so the order of lines is the command's own.
 * The text is what the bundled model was trained with: the output, then a line "[exit N]".
 */
#include "tool_shell.h"
#include "tool_jobs.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#define COMMAND_BYTES_MAX ((size_t)100 << 10) /* the kernel takes 128 KiB for one argument */
#define STEP_MS_MAX       1000                /* a step at least so often, whatever happens */

/* Without it every test run leaves __pycache__ in the workspace; the model never saw any. */
static const char no_bytecode[] = "PYTHONDONTWRITEBYTECODE=1";

static void call_cleanup(struct sandbox_call **call) {
    if (*call != NULL) {
        sandbox_call_destroy(*call);
    }
}

static uint64_t bytes_written(const struct sandbox_output *output) {
    return output->head.length + output->dropped + output->tail.length;
}

/* Hands what came since the last time to the live view; what the sandbox dropped in between is not
 * seen. */
static void
show_output(const struct tool_context *context, const struct sandbox_call *call, uint64_t *shown) {
    if (context->options.output == NULL) {
        return;
    }
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    uint64_t total = bytes_written(&output);
    if (*shown < output.head.length) {
        size_t from = (size_t)*shown;
        struct view fresh = view_slice(output.head, from, output.head.length - from);
        context->options.output(context->options.output_context, fresh);
        *shown = output.head.length;
    }
    if (*shown < total) {
        uint64_t fresh = total - *shown;
        size_t length = fresh < output.tail.length ? (size_t)fresh : output.tail.length;
        struct view bytes = view_slice(output.tail, output.tail.length - length, length);
        context->options.output(context->options.output_context, bytes);
        *shown = total;
    }
}

/* One cancel for each time it was asked: the second one does not wait for a polite end. */
static void pass_cancel(struct tool_context *context, struct sandbox_call *call) {
    uint64_t times = 0;
    if (read(context->cancel_fd, &times, sizeof times) != (ssize_t)sizeof times) {
        return;
    }
    for (uint64_t i = 0; i < times && i < 2; i++) {
        sandbox_call_cancel(call);
    }
}

static result
run_to_end(struct tool_context *context, struct sandbox_call *call, struct error *error) {
    uint64_t shown = 0;
    while (!sandbox_call_step(call)) {
        show_output(context, call, &shown);
        struct pollfd fds[] = {{sandbox_call_fd(call), POLLIN, 0}, {context->cancel_fd, POLLIN, 0}};
        int ready = poll(fds, COUNT_OF(fds), STEP_MS_MAX);
        if (ready < 0 && errno != EINTR) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "poll: %s", strerror(code));
        }
        if (ready > 0 && fds[1].revents != 0) {
            pass_cancel(context, call);
        }
    }
    show_output(context, call, &shown);
    return OK;
}

/* Lines between output and "[exit N]" when something beside the command ended it. */
static result append_reason(
    int64_t limit_ms,
    const struct sandbox_policy *policy,
    const struct sandbox_outcome *outcome,
    struct buffer *text,
    struct error *error
) {
    if (outcome->end == SANDBOX_TIMED_OUT) {
        char line[TOOL_STOPPED_BYTES];
        tool_stopped_text(line, limit_ms);
        return buffer_append_format(text, error, "%s\n", line);
    }
    if (outcome->end == SANDBOX_CANCELLED) {
        return buffer_append_text(text, "error: cancelled\n", error);
    }
    if (outcome->out_of_memory) {
        return buffer_append_format(
            text,
            error,
            "error: out of memory (limit %llu MiB)\n",
            (unsigned long long)policy->memory_mib
        );
    }
    if (outcome->processes_refused) {
        return buffer_append_format(
            text,
            error,
            "error: too many processes (limit %llu)\n",
            (unsigned long long)policy->processes
        );
    }
    if (outcome->end == SANDBOX_EXITED || outcome->end == SANDBOX_SIGNALLED) {
        return OK;
    }
    TRY(buffer_append_text(text, "error: ", error));
    TRY(sandbox_sanitise(view_of_text(outcome->reason), 0, text, error));
    return buffer_append_byte(text, '\n', error);
}

static enum tool_status status_of(enum sandbox_end end) {
    if (end == SANDBOX_EXITED || end == SANDBOX_SIGNALLED) {
        return TOOL_OK;
    }
    if (end == SANDBOX_TIMED_OUT) {
        return TOOL_TIMEOUT;
    }
    return end == SANDBOX_CANCELLED ? TOOL_CANCELLED : TOOL_ERROR;
}

/* timeout(1) says 124, a shell 128 + SIGINT; a command ended by a limit has been killed. */
static int exit_status_of(const struct sandbox_outcome *outcome) {
    if (outcome->end == SANDBOX_EXITED || outcome->end == SANDBOX_SIGNALLED) {
        return outcome->exit_status;
    }
    if (outcome->end == SANDBOX_TIMED_OUT) {
        return 124;
    }
    return outcome->end == SANDBOX_CANCELLED ? 130 : 137;
}

static result describe(
    int64_t limit_ms,
    const struct sandbox_policy *policy,
    const struct sandbox_call *call,
    struct tool_result *out,
    struct error *error
) {
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    TRY(buffer_append(&out->output, output.head, error));
    TRY(buffer_append(&out->output, output.tail, error));
    out->output_bytes = bytes_written(&output);
    out->output_gap_at = output.dropped > 0 ? output.head.length : 0;
    struct view raw = buffer_view(&out->output);
    struct tool_cut cut = {0, 0};
    if (output.dropped == 0) {
        cut = tool_cut_characters(
            raw, TOOL_SHELL_TEXT_MAX, TOOL_SHELL_TEXT_HEAD, TOOL_SHELL_TEXT_TAIL
        );
    } else { // the cut must contain the gap
        size_t head = TOOL_SHELL_TEXT_HEAD;
        size_t tail = TOOL_SHELL_TEXT_TAIL;
        cut.head_bytes = tool_cut_characters(output.head, head, head, 0).head_bytes;
        struct tool_cut behind = tool_cut_characters(output.tail, tail, 0, tail);
        size_t kept = behind.head_bytes == output.tail.length ? output.tail.length
                                                              : output.tail.length - behind.tail_at;
        cut.tail_at = raw.length - kept;
    }
    TRY(tool_append_cut(out, raw, cut, output.dropped, error));
    if (out->text.length > 0) {
        TRY(buffer_append_byte(&out->text, '\n', error));
    }
    TRY(append_reason(limit_ms, policy, outcome, &out->text, error));
    out->status = status_of(outcome->end);
    if (outcome->trust_changes[0] != '\0') {
        (void)snprintf( // cut on purpose
            out->notice,
            sizeof out->notice,
            "changed files that programs outside of the sandbox act upon: %.400s",
            outcome->trust_changes
        );
    }
    out->has_exit_status = true;
    out->exit_status = exit_status_of(outcome);
    return buffer_append_format(&out->text, error, "[exit %d]", out->exit_status);
}

result tool_shell_policy(
    const struct tool_context *context,
    const char *environment[TOOL_SHELL_ENVIRONMENT_MAX],
    struct sandbox_policy *policy,
    struct error *error
) {
    *policy = *context->options.policy;
    if (policy->environment_count >= TOOL_SHELL_ENVIRONMENT_MAX) {
        FAIL(
            error,
            LIMIT,
            "sandbox policy: %zu environment entries, at most %d",
            policy->environment_count,
            TOOL_SHELL_ENVIRONMENT_MAX - 1
        );
    }
    environment[0] = no_bytecode; // the policy's own entries come later and win
    for (size_t i = 0; i < policy->environment_count; i++) {
        environment[i + 1] = policy->environment[i];
    }
    policy->environment = environment;
    policy->environment_count += 1;
    policy->workspace = context->workspace;
    policy->merge_output = true;
    int64_t left_ms = context->deadline_ms - clock_monotonic_ms(&context->options.clock);
    left_ms = left_ms < 1 ? 1 : left_ms;
    policy->wall_ms = policy->wall_ms <= 0 || policy->wall_ms > left_ms ? left_ms : policy->wall_ms;
    return OK;
}

/* False: the answer says why the command cannot be run at all. */
static result check_command(
    struct tool_context *context,
    struct view given,
    bool *usable,
    struct tool_result *out,
    struct error *error
) {
    *usable = false;
    if (context->options.sandbox == NULL) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: commands cannot be run here: there is no sandbox"
        );
    }
    if (given.length > COMMAND_BYTES_MAX) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: the command is too long: %zu bytes, at most %zu; write a file and run it",
            given.length,
            COMMAND_BYTES_MAX
        );
    }
    *usable = true;
    return OK;
}

/* `limit_ms` is what the text tells when the time was over. */
static result run_command(
    struct tool_context *context,
    struct view given,
    int64_t limit_ms,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, COMMAND_BYTES_MAX + 1);
    TRY(buffer_append(&line, given, error));
    const char *environment[TOOL_SHELL_ENVIRONMENT_MAX];
    struct sandbox_policy policy;
    TRY(tool_shell_policy(context, environment, &policy, error));
    const char *const command[] = {"/bin/sh", "-c", buffer_text(&line), NULL};
    CLEANUP(call_cleanup) struct sandbox_call *call = NULL;
    TRY(sandbox_start(context->options.sandbox, &policy, command, &call, error));
    TRY(run_to_end(context, call, error));
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    if (outcome->end == SANDBOX_LAUNCH_FAILED) {
        FAIL(error, IO, "the sandbox did not start: %s", outcome->reason);
    }
    return describe(limit_ms, &policy, call, out, error);
}

/* What was promised, not the little that this call's preparation took from it. */
static int64_t promised_ms(const struct tool_context *context) {
    int64_t own_ms = context->options.policy->wall_ms;
    bool own_is_lower = own_ms > 0 && own_ms < context->time_ms_max;
    return own_is_lower ? own_ms : context->time_ms_max;
}

static result run_shell(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "command");
    bool usable = false;
    TRY(check_command(context, given, &usable, out, error));
    return usable ? run_command(context, given, promised_ms(context), out, error) : OK;
}

static result run_shell_wide(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "command");
    bool usable = false;
    TRY(check_command(context, given, &usable, out, error));
    if (!usable) {
        return OK;
    }
    int64_t time_ms = 0;
    bool is_background = false;
    (void)json_as_i64(json_get(arguments, "timeout"), &time_ms);
    (void)json_as_bool(json_get(arguments, "background"), &is_background);
    if (is_background && tool_offered_name(context, &tool_row_job_output) == NULL) {
        return tool_answer(out, TOOL_REFUSED, error, "error: there are no background jobs here");
    }
    if (is_background) {
        return tool_jobs_start(context, given, time_ms, out, error);
    }
    int64_t limit_ms = promised_ms(context);
    int64_t until_ms = clock_monotonic_ms(&context->options.clock) + time_ms;
    if (time_ms > 0 && time_ms < limit_ms && until_ms < context->deadline_ms) {
        limit_ms = time_ms;
        context->deadline_ms = until_ms;
    }
    return run_command(context, given, limit_ms, out, error);
}

/* The dialect in which a command that takes long goes on as a session, when its input can be written. */
result tool_run_exec_command(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    if (tool_offered_name(context, &tool_row_job_input) == NULL) {
        return run_shell(context, arguments, out, error);
    }
    struct view given = tool_argument(arguments, "command");
    bool usable = false;
    int64_t wait_ms = 0;
    TRY(check_command(context, given, &usable, out, error));
    (void)json_as_i64(json_get(arguments, "yield_time_ms"), &wait_ms);
    return usable ? tool_jobs_run(context, given, wait_ms, out, error) : OK;
}

static const struct tool_descriptor wide_shell = {
    "shell",
    "Run a shell command in the workspace, with a minimal system around it and no network unless "
    "allowed; .git is read-only. A background job goes on while you work; its end is told.",
    OBJECT_SCHEMA(
        STRING_PROPERTY(
            "command", "the command line"
        ) ", "
          "\"timeout\": {\"type\": \"integer\", \"description\": \"milliseconds until it is "
          "stopped\", \"minimum\": 1}, " TYPED_PROPERTY(
              "background", "boolean", "start it as a job and do not wait"
          ),
        "\"command\""
    ),
    TOOL_READS | TOOL_WRITES | TOOL_EXECUTES,
    false,
};

const struct tool_row tool_row_shell = {
    .shown =
        {"shell",
         "Run a shell command in the workspace.",
         OBJECT_SCHEMA(STRING_PROPERTY("command", "the command line"), "\"command\""),
         TOOL_READS | TOOL_WRITES | TOOL_EXECUTES,
         true},
    .run = run_shell,
    .wide = &wide_shell,
    .run_wide = run_shell_wide,
};
