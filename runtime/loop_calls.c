/* One call on its way: may it run, the question to a person, the tool on a worker, its live output.
 * See loop_internal.h.
 *
 * The agent sees none of this: AGENT_CALL goes in, AGENT_CALLED comes out. A refusal is a result that
 * tells the model why. What was decided is recorded before it is acted upon.
 */
#include "loop_internal.h"

#define LIVE_CALL_BYTES_MAX ((size_t)256 << 10) /* shown of one call while it runs */

/* ---- live output ---------------------------------------------------------------------------- */

/* `is_last`: the call is over, and nothing is held back. */
static void live_show(struct run *run, bool is_last) {
    CLEANUP(buffer_deinit) struct buffer taken;
    buffer_init(&taken, BUFFER_CEILING_DEFAULT);
    result copied = run_channel_take_output(run->channel, is_last, &taken);
    size_t room = LIVE_CALL_BYTES_MAX - run->call.live_bytes;
    struct view text = view_slice(buffer_view(&taken), 0, room);
    run->call.live_bytes += text.length;
    if (is_ok(copied) && text.length > 0 && run->call.phase == RUN_CALL_RUNS) {
        struct run_event event = {
            .type = RUN_TOOL_OUTPUT,
            .call = agent_call(run->agent, run->step.call_index),
            .text = text,
        };
        run_show(run, &event);
    }
}

void run_live_came(struct run *run) {
    if (run->call.phase == RUN_CALL_RUNS) {
        live_show(run, false);
    }
}

/* ---- the end of a call ---------------------------------------------------------------------- */

void run_call_deinit(struct run *run) {
    tool_subject_deinit(&run->call.subject);
    tool_overwrite_deinit(&run->call.overwrite);
    buffer_deinit(&run->call.pattern);
    buffer_deinit(&run->call.remark);
    hook_report_deinit(&run->call.report);
}

static void call_over(struct run *run) {
    live_show(run, true);
    run_hooks_show(run);
    run->call.phase = RUN_CALL_NONE;
    struct run_event shown = {
        .type = RUN_TOOL_RESULT,
        .call = agent_call(run->agent, run->step.call_index),
        .tool = &run->tool,
    };
    run_note_duration(run, shown.call);
    run_show(run, &shown);
    if (run->tool.notice[0] != '\0') {
        struct run_event notice = {.type = RUN_WARNING, .text = view_of_text(run->tool.notice)};
        run_show(run, &notice);
    }
    run_dispatch(
        run,
        &(struct agent_event
        ){.type = AGENT_CALLED,
          .status = run->tool.status,
          .text = buffer_view(&run->tool.text),
          .ends_task = run->tool.ends_task}
    );
}

static void call_failed(struct run *run, enum agent_event_type type) {
    run->call.phase = RUN_CALL_NONE;
    run_dispatch(run, &(struct agent_event){.type = type, .error = &run->step_error});
}

/* It was cancelled before it could start. */
static void withdraw(struct run *run) {
    run->tool.status = TOOL_CANCELLED;
    result worded =
        buffer_append_text(&run->tool.text, "error: cancelled before it was allowed", NULL);
    result_ignore(worded); /* the status says it too */
    call_over(run);
}

/* ---- on a worker ---------------------------------------------------------------------------- */

static result record_decision(struct run *run, struct error *error) {
    const struct run_call *call = &run->call;
    const struct session_decision_begin decision = {
        .is_allowed = call->is_allowed,
        .kind = view_of_text("tool"),
        .subject = view_of_text(call->subject.tool),
        .decider = view_of_text(call->decider),
        .rule = view_of_text(call->rule),
        .reason = view_of_text(call->reason),
    };
    return recorder_decision(&run->recorder, &decision, error);
}

/* What the model is told. */
static result refuse(struct run *run, struct error *error) {
    const struct run_call *call = &run->call;
    struct tool_result *out = &run->tool;
    out->status = TOOL_REFUSED;
    out->started_ms = clock_wall_ms(&run->options->clock);
    TRY(buffer_append_format(
        &out->text, error, "error: not allowed: %s %s", call->subject.tool, call->reason
    ));
    if (call->remark.length > 0) {
        TRY(buffer_append_text(&out->text, "\nThe user says: ", error));
        TRY(buffer_append(&out->text, buffer_view(&call->remark), error));
    }
    return OK;
}

/* What the hooks say of a result stands behind it. */
static result after_tool(struct run *run, const struct chat_call *call, struct error *error) {
    const struct hook_subject subject = {
        .session = view_of_text(run->recorder.session.text),
        .tool = view_of_text(run->call.subject.tool),
        .arguments = call->arguments,
        .result = &run->tool,
    };
    TRY(run_hooks(run, HOOK_AFTER_TOOL, &subject, error));
    const struct buffer *said[] = {&run->call.report.text, &run->call.report.reason};
    for (size_t i = 0; i < COUNT_OF(said); i++) {
        if (said[i]->length > 0) {
            TRY(buffer_append_text(&run->tool.text, "\n", error));
            TRY(buffer_append(&run->tool.text, buffer_view(said[i]), error));
            while (run->tool.text.data[run->tool.text.length - 1] == '\n') {
                run->tool.text.length--;
            }
        }
    }
    return OK;
}

static void call_work(void *context) {
    struct run *run = context;
    struct error *error = &run->step_error;
    *error = (struct error){0};
    run->call.is_recorded = !run->call.has_decision;
    run->step_result = OK;
    if (run->call.has_decision) {
        run->step_result = record_decision(run, error);
        run->call.is_recorded = is_ok(run->step_result);
    }
    if (!run->call.is_recorded) {
        return;
    }
    if (!run->call.is_allowed) {
        run->step_result = refuse(run, error);
        return;
    }
    const struct chat_call *call = agent_call(run->agent, run->step.call_index);
    const struct tool_ports *tools = &run->options->tools;
    int64_t limit_ms = run->step.time_ms_max;
    run->step_result =
        tools->call(tools->context, call->name, call->arguments, limit_ms, &run->tool, error);
    if (is_ok(run->step_result) && run->call.subject.tool != NULL) {
        run->step_result = after_tool(run, call, error);
    }
}

static void call_done(void *context) {
    struct run *run = context;
    run->step_is_running = false;
    if (is_ok(run->step_result)) {
        call_over(run);
    } else {
        call_failed(run, run->call.is_recorded ? AGENT_CALL_FAILED : AGENT_RECORD_FAILED);
    }
}

static void call_start(struct run *run) {
    run->call.phase = RUN_CALL_RUNS;
    run->status.activity = "tool";
    run->step_is_running = true;
    run->job = (struct loop_job){.work = call_work, .done = call_done, .context = run};
    loop_job_start(run->loop, &run->job);
}

/* ---- may it run ----------------------------------------------------------------------------- */

static void show_decision(struct run *run) {
    struct run_event event = {
        .type = RUN_DECISION,
        .call = agent_call(run->agent, run->step.call_index),
        .verdict = run->call.is_allowed ? "allow" : "deny",
        .decided_by = run->call.decider,
        .reason_text = view_of_text(run->call.reason),
    };
    run_show(run, &event);
}

/* `more`: behind the reason. */
static void
decided(struct run *run, bool is_allowed, const char *decider, const char *why, const char *more) {
    struct run_call *call = &run->call;
    call->has_decision = true;
    call->is_allowed = is_allowed;
    call->decider = decider;
    int length = snprintf(call->reason, sizeof call->reason, "%s%s", why, more);
    ASSERT(length >= 0); /* too long: cut */
    bool is_silent = is_allowed && strcmp(decider, "policy") == 0;
    if (!is_silent) {
        show_decision(run);
    }
    call_start(run);
}

/* The rule as it is written: "allow shell git *". */
static void name_rule(struct run *run, const struct permission_verdict *verdict) {
    const struct run_options *options = run->options;
    if (verdict->by != PERMISSION_BY_RULE || verdict->rule >= options->rule_count) {
        return;
    }
    const struct permission_rule *rule = &options->rules[verdict->rule];
    int length = snprintf(
        run->call.rule,
        sizeof run->call.rule,
        "%s %s%s%s",
        permission_action_name(rule->action),
        rule->tool,
        rule->pattern[0] != '\0' ? " " : "",
        rule->pattern
    );
    ASSERT(length > 0); /* too long: cut */
}

static struct permission_question question_of(const struct run *run) {
    const struct tool_subject *subject = &run->call.subject;
    return (struct permission_question){
        .tool = view_of_text(subject->tool),
        .effects = subject->effects,
        .has_command = subject->has_command,
        .command = subject->command,
        .paths = subject->paths,
        .path_count = subject->path_count,
        .url = subject->url,
        .network_is_listed = run->options->url_is_listed != NULL && subject->url.length > 0 &&
                             run->options->url_is_listed(run->options->url_context, subject->url),
    };
}

static void show_question(struct run *run, bool shows_call) {
    struct run_event event = {
        .type = RUN_ASK,
        .call = agent_call(run->agent, run->step.call_index),
        .overwrite = &run->call.overwrite,
        .question = run->call.question,
        .reason_text = view_of_text(run->call.reason),
        .has_always = run->call.has_always,
        .pattern = buffer_view(&run->call.pattern),
        .shows_call = shows_call,
    };
    run_show(run, &event);
}

static void ask(struct run *run, const struct permission_question *question) {
    struct run_call *call = &run->call;
    call->phase = RUN_CALL_ASKS;
    call->question++;
    buffer_clear(&call->pattern);
    result suggested = permission_suggest(question, &call->has_always, &call->pattern, NULL);
    call->has_always = call->has_always && is_ok(suggested) && !call->subject.has_more_paths;
    run->status.activity = "asking";
    show_question(run, false);
}

static void decide(struct run *run) {
    struct run_call *call = &run->call;
    const struct permission_question question = question_of(run);
    struct permission_verdict verdict;
    permission_decide(run->options->permission, &question, &verdict);
    name_rule(run, &verdict);
    if (call->subject.has_more_paths && verdict.action == PERMISSION_ALLOW) {
        verdict.action = PERMISSION_QUESTION;
        int length = snprintf(
            verdict.reason,
            sizeof verdict.reason,
            "names more than %d files",
            TOOL_SUBJECT_PATHS_MAX
        );
        ASSERT(length > 0);
    }
    if (verdict.action != PERMISSION_QUESTION) {
        bool is_allowed = verdict.action == PERMISSION_ALLOW;
        decided(run, is_allowed, permission_by_name(verdict.by), verdict.reason, "");
        return;
    }
    memcpy(call->reason, verdict.reason, sizeof call->reason);
    bool has_person =
        run->options->is_interactive && run->options->input != NULL && !run->input_has_ended;
    if (has_person) {
        ask(run, &question);
    } else {
        decided(run, false, "default", verdict.reason, "; nobody is there to be asked");
    }
}

/* ---- hooks before it ------------------------------------------------------------------------ */

static void hooks_work(void *context) {
    struct run *run = context;
    const struct hook_subject subject = {
        .session = view_of_text(run->recorder.session.text),
        .tool = view_of_text(run->call.subject.tool),
        .arguments = agent_call(run->agent, run->step.call_index)->arguments,
    };
    run->step_error = (struct error){0};
    run->step_result = run_hooks(run, HOOK_BEFORE_TOOL, &subject, &run->step_error);
}

static void hooks_done(void *context) {
    struct run *run = context;
    run->step_is_running = false;
    run_hooks_show(run);
    struct hook_report *report = &run->call.report;
    if (is_failed(run->step_result)) {
        call_failed(run, AGENT_CALL_FAILED);
    } else if (report->is_cancelled) {
        withdraw(run);
    } else if (report->is_refused) {
        decided(run, false, "hook", "is refused by a ", buffer_text(&report->reason));
    } else {
        decide(run);
    }
}

static void look_before(struct run *run) {
    if (!run_has_hooks(run, HOOK_BEFORE_TOOL, view_of_text(run->call.subject.tool))) {
        decide(run);
        return;
    }
    run->call.phase = RUN_CALL_HOOKS;
    run->status.activity = "hook";
    run->step_is_running = true;
    run->job = (struct loop_job){.work = hooks_work, .done = hooks_done, .context = run};
    loop_job_start(run->loop, &run->job);
}

/* ---- what it writes over -------------------------------------------------------------------- */

static void show_and_go(struct run *run) {
    struct run_event shown = {
        .type = RUN_TOOL_CALL,
        .call = agent_call(run->agent, run->step.call_index),
        .overwrite = &run->call.overwrite,
    };
    run_show(run, &shown);
    if (run->call.is_withdrawn) {
        withdraw(run);
    } else if (run->call.subject.tool != NULL) {
        look_before(run);
    } else { /* an unknown tool: the call itself says so */
        call_start(run);
    }
}

static void file_work(uv_work_t *work) {
    struct run *run = work->data;
    const struct chat_call *call = agent_call(run->agent, run->step.call_index);
    const struct tool_ports *tools = &run->options->tools;
    run->step_result = tools->overwrite(
        tools->context, call->name, call->arguments, &run->call.overwrite, &run->step_error
    );
}

static void file_done(uv_work_t *work, int status) {
    struct run *run = work->data;
    ASSERT(status == 0); /* it is never cancelled in the pool's queue */
    run->step_is_running = false;
    run->call.phase = RUN_CALL_NONE;
    if (is_failed(run->step_result)) {
        call_failed(run, AGENT_CALL_FAILED);
    } else {
        show_and_go(run);
    }
}

/* Before it is shown, so that it is shown as what it changes. */
static void look_at_file(struct run *run) {
    run->call.phase = RUN_CALL_LOOKS;
    run->step_is_running = true;
    run->work.data = run;
    int status = uv_queue_work(&run->loop->uv, &run->work, file_work, file_done);
    ASSERT(status == 0); /* fails only without a work function */
}

void run_call(struct run *run, const struct agent_effect *effect) {
    ASSERT(!run->step_is_running && run->call.phase == RUN_CALL_NONE);
    const struct run_options *options = run->options;
    const struct chat_call *call = agent_call(run->agent, effect->call_index);
    run->step = *effect;
    run_call_deinit(run);
    run->call = (struct run_call){.question = run->call.question, .is_allowed = true};
    buffer_init(&run->call.pattern, BUFFER_CEILING_DEFAULT);
    buffer_init(&run->call.remark, BUFFER_CEILING_DEFAULT);
    run->status.activity = "tool";
    run_tell_waiting(run, call);
    tool_result_deinit(&run->tool);
    tool_result_init(&run->tool);
    options->tools.renew(options->tools.context);
    run_hooks_renew(run);
    run->step_error = (struct error){0};
    result found = OK;
    if (options->permission != NULL) {
        found = options->tools.subject(
            options->tools.context,
            call->name,
            call->arguments,
            &run->call.subject,
            &run->step_error
        );
    }
    if (is_failed(found)) {
        call_failed(run, AGENT_CALL_FAILED);
    } else if (options->tools.overwrite != NULL && tool_may_overwrite(&run->call.subject) &&
               options->display != NULL && display_is_for_people(options->display)) {
        look_at_file(run);
    } else {
        show_and_go(run);
    }
}

void run_call_cancel(struct run *run) {
    if (run->call.phase == RUN_CALL_ASKS) {
        withdraw(run);
        return;
    }
    run->call.is_withdrawn = run->call.phase == RUN_CALL_LOOKS;
    run_hooks_cancel(run);
    run->options->tools.cancel(run->options->tools.context);
}

/* ---- the person's answer -------------------------------------------------------------------- */

bool run_always_parse(struct view rule, struct view *pattern) {
    size_t word = strlen(RUN_ALWAYS);
    if (!view_starts_with(rule, view_of_text(RUN_ALWAYS)) ||
        (rule.length > word && rule.data[word] != ' ')) {
        return false;
    }
    *pattern = view_slice(rule, word + 1, SIZE_MAX);
    return true;
}

/* From now on, and when the session is resumed: the recorded decision holds the rule, whole. */
static void allow_always(struct run *run) {
    struct run_call *call = &run->call;
    struct error error = {0};
    result added = permission_add_session(
        run->options->permission,
        view_of_text(call->subject.tool),
        buffer_view(&call->pattern),
        &error
    );
    if (is_failed(added)) {
        struct run_event note = {.type = RUN_NOTE, .text = view_of_text(error.message)};
        run_show(run, &note);
        return;
    }
    bool is_any = call->pattern.length == 0;
    int length = snprintf(
        call->rule,
        sizeof call->rule,
        RUN_ALWAYS "%s%s",
        is_any ? "" : " ",
        is_any ? "" : buffer_text(&call->pattern)
    );
    ASSERT(length > 0 && (size_t)length < sizeof call->rule); /* the rule was checked */
}

void run_call_answer(struct run *run, const struct run_input *input) {
    struct run_call *call = &run->call;
    if (call->phase != RUN_CALL_ASKS || input->question != call->question) {
        return; /* it was withdrawn meanwhile */
    }
    if (input->answer == RUN_ANSWER_ALWAYS && call->has_always) {
        allow_always(run);
    }
    if (input->answer == RUN_ANSWER_VIEW) {
        show_question(run, true);
    } else if (input->answer == RUN_ANSWER_NO) {
        struct view remark = view_slice(input->text, 0, RUN_REMARK_BYTES_MAX);
        result kept = utf8_is_valid(remark) ? buffer_append(&call->remark, remark, NULL) : OK;
        result_ignore(kept); /* without memory the refusal goes without it */
        decided(run, false, "person", "is refused by the user", "");
    } else {
        decided(run, true, "person", "is allowed by the user", "");
    }
}

void run_call_nobody(struct run *run) {
    if (run->call.phase == RUN_CALL_ASKS) {
        decided(run, false, "default", "has to be asked for, and nobody is there to be asked", "");
    }
}
