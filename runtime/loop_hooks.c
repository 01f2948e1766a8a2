/* Hooks of a run: what those around a call (loop_calls.c) and those at an answer have in common, and the
 * latter. See loop_internal.h. */
#include "loop_internal.h"

#include <sys/eventfd.h>
#include <unistd.h>

bool run_has_hooks(const struct run *run, enum hook_event event, struct view tool) {
    return run->options->hooks != NULL && hooks_apply(run->options->hooks, event, tool);
}

result run_hooks(
    struct run *run, enum hook_event event, const struct hook_subject *subject, struct error *error
) {
    hook_report_deinit(&run->call.report);
    run->call.report = (struct hook_report){0};
    run->call.hook = event;
    return run_has_hooks(run, event, subject->tool)
               ? hooks_run(
                     run->options->hooks, event, subject, run->hooks_fd, &run->call.report, error
                 )
               : OK;
}

void run_hooks_show(struct run *run) {
    struct hook_report *report = &run->call.report;
    for (size_t i = 0; i < report->note_count; i++) {
        struct run_event event = {
            .type = RUN_HOOK,
            .hook = hook_event_name(run->call.hook),
            .text = view_of_text(report->notes[i]),
        };
        run_show(run, &event);
    }
    report->note_count = 0;
}

void run_hooks_cancel(struct run *run) {
    const uint64_t one = 1;
    ssize_t written = run->hooks_fd >= 0 ? write(run->hooks_fd, &one, sizeof one) : 0;
    (void)written; /* fails only when it is readable already */
}

/* Without a descriptor hooks end by their time limit alone. */
void run_hooks_renew(struct run *run) {
    uint64_t times = 0;
    if (run->options->hooks != NULL && run->hooks_fd < 0) {
        run->hooks_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    ssize_t taken = run->hooks_fd >= 0 ? read(run->hooks_fd, &times, sizeof times) : 0;
    (void)taken; /* nothing was there, or it is gone now */
}

/* ---- at an answer --------------------------------------------------------------------------- */

static struct view last_answer(const struct run *run) {
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    for (size_t i = chat_conversation_count(conversation); i > 0; i--) {
        if (messages[i - 1].role == CHAT_ASSISTANT) {
            return messages[i - 1].content;
        }
    }
    return view_of(NULL, 0);
}

static void stop_work(void *context) {
    struct run *run = context;
    const struct hook_subject subject = {
        .session = view_of_text(run->recorder.session.text),
        .reason = view_of_text(agent_stop_name(agent_stop(run->agent))),
        .text = last_answer(run),
    };
    run->step_error = (struct error){0};
    run->step_result = run_hooks(run, HOOK_STOP, &subject, &run->step_error);
}

static void stop_done(void *context) {
    struct run *run = context;
    run->step_is_running = false;
    const struct hook_report *report = &run->call.report;
    bool goes_on = is_ok(run->step_result) && report->is_refused && !report->is_cancelled;
    struct view reason = goes_on ? buffer_view(&report->reason) : view_of(NULL, 0);
    if (goes_on) {
        struct run_event event = {
            .type = RUN_HOOK, .hook = hook_event_name(HOOK_STOP), .text = reason};
        run_show(run, &event);
    }
    run_hooks_show(run);
    run_dispatch(run, &(struct agent_event){.type = AGENT_STOP_CHECKED, .text = reason});
}

void run_check_stop(struct run *run) {
    ASSERT(!run->step_is_running);
    run_hooks_renew(run);
    run->step_is_running = true;
    run->status.activity = "hook";
    run->job = (struct loop_job){.work = stop_work, .done = stop_done, .context = run};
    loop_job_start(run->loop, &run->job);
}
