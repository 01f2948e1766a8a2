/* hearth run: one agent on a workspace, from its options to its exit status.
 *
 * What is opened for it is in run_host.h, in the order of run_plan.h.
 */
#include "cli.h"
#include "paths.h"
#include "run_option_table.h"
#include "run_plan.h"
#include "run_worktree.h"

#include "base/log.h"
#include <inttypes.h>

/* clang-format off */
static const struct cli_option run_options_table[] = {
    {"resume", 0, "ID", "go on with a session: an id, its beginning, or 'last'"},
    RUN_PLACE_OPTIONS,
    RUN_GENERATION_OPTIONS,
    {"max-time", 0, "TIME", "stop after 90s, 10m, 2h (default: no limit)"},
    {"max-tokens", 0, "N", "stop after N written tokens (default: no limit)"},
    RUN_TURN_OPTIONS,
    {"max-turns", 0, "N", "stop after N turns (default: the model's agent.json, else 40)"},
    RUN_ENGINE_OPTIONS,
    {"max-calls", 0, "N", "stop after N tool calls (default: no limit)"},
    {"interactive", 0, NULL, "wait for a person; also without a terminal: messages are lines"},
    {"output-last-message", 0, "FILE", "write the model's last message there at the end"},
    {"json", 0, NULL, "write one JSON object a line instead of text"},
};
/* clang-format on */

/* The last text that the model wrote beside its thinking, in a record. */
static struct view last_recorded(const struct session_tree *record) {
    const struct session_agent *agent = record->agent_count > 0 ? &record->agents[0] : NULL;
    for (size_t i = agent != NULL ? agent->turn_count : 0; i > 0; i--) {
        const struct session_turn *turn = &agent->turns[i - 1];
        for (size_t k = turn->is_rewound ? 0 : turn->message_count; k > 0; k--) {
            const struct session_message *message = &turn->messages[k - 1];
            if (view_equals_text(message->role, "assistant") && message->text.length > 0) {
                return message->text;
            }
        }
    }
    return view_of(NULL, 0);
}

/* What was asked for of the end is there all the same. */
static int
say_nothing_is_left(const struct run_settings *settings, const struct session_tree *record) {
    const char *path = cli_value(settings->arguments, "output-last-message");
    struct error error = {0};
    result kept = path != NULL ? path_replace(path, last_recorded(record), &error) : OK;
    if (is_failed(kept)) {
        return cli_fail_error(kept, &error);
    }
    (void)cli_fail(
        STATUS_DONE,
        "session %s ended with an answer: nothing is left to do; name a new task to go on",
        record->session.id.text
    );
    return STATUS_DONE;
}

/* ---- running -------------------------------------------------------------------------------- */

static result run_agent(
    struct run_host *host,
    const struct run_settings *settings,
    struct run_outcome *outcome,
    struct error *error
) {
    struct run_plan plan;
    TRY(run_plan_make(host, settings, &plan, error));
    const struct run_options *options = &plan.options;
    log_event(
        LOG_INFO,
        "run",
        "started",
        "backend=\"%s\" context_tokens=%d kv_bytes_per_token=%" PRIu64,
        options->engine_info.backend,
        options->engine_info.context_max,
        options->engine_info.kv_bytes_per_token
    );
    result ran = loop_run(host->loop, options, outcome, error);
    run_engine_log_cache(&host->engine);
    TRY(ran);
    log_event(
        LOG_INFO,
        "run",
        "finished",
        "stop=%s exit_status=%d",
        agent_stop_name(outcome->stop),
        outcome->exit_status
    );
    return OK;
}

/* What is to be said when the run is over; its exit status. */
static int say_outcome(const struct run_host *host, const struct run_outcome *outcome) {
    struct error error = {0};
    if (outcome->exit_status == STATUS_ENGINE || outcome->exit_status == STATUS_DATA ||
        outcome->exit_status == STATUS_REFUSED) {
        const char *text = agent_stop_text(outcome->stop);
        const char *detail = outcome->detail;
        (void
        )(detail[0] != '\0' ? cli_fail(outcome->exit_status, "%s (%s)", text, detail)
                            : cli_fail(outcome->exit_status, "%s", text));
    }
    if (is_failed(output_status(host->output, &error))) {
        (void)cli_fail(STATUS_DATA, "%s; the run was stopped and is recorded", error.message);
    }
    return outcome->exit_status;
}

/* One session after the other, as long as the person asks for another. *session: becomes that of the last
 * run that had one. */
static int
run_opened(struct run_host *host, struct run_settings *settings, struct session_id *session) {
    struct error error = {0};
    struct run_outcome outcome = {0};
    int status = run_plan_open(host, settings);
    if (status != STATUS_DONE) {
        return status;
    }
    result ran = OK;
    do {
        if (outcome.begins_anew) {
            ran = run_host_begin_anew(host, settings, outcome.sequence, &error);
            outcome.begins_anew = false;
        }
        status = is_ok(ran) ? run_plan_open_session(host, settings) : STATUS_DONE;
        if (status != STATUS_DONE) {
            return status;
        }
        if (is_ok(ran) && host->record != NULL && host->resume.is_done &&
            !settings->is_interactive) {
            return say_nothing_is_left(settings, host->record);
        }
        ran = is_ok(ran) ? run_agent(host, settings, &outcome, &error) : ran;
        *session = outcome.session.text[0] != '\0' ? outcome.session : *session;
    } while (is_ok(ran) && outcome.begins_anew);
    if (is_ok(ran) && outcome.exit_status != STATUS_DATA) { /* else the disk has its trouble */
        run_plan_keep_snapshots_bounded(host, settings);
    }
    return is_failed(ran) ? cli_fail_error(ran, &error) : say_outcome(host, &outcome);
}

/* What only this command has, then everything that is known before something is opened. */
static int run_prepare(struct run_host *host, struct run_settings *settings) {
    const char *last_path = cli_value(settings->arguments, "output-last-message");
    struct error error = {0};
    if (last_path != NULL && is_failed(path_check_replace(last_path, &error))) {
        return cli_usage(settings->arguments, "--output-last-message %s", error.message);
    }
    return run_plan_prepare(host, settings);
}

static int run(const struct cli_arguments *arguments) {
    CLEANUP(fd_cleanup) int lease = -1;
    CLEANUP(settings_deinit)
    struct run_settings settings = {.arguments = arguments, .worktree_lease = &lease};
    struct run_host host = {0};
    struct session_id session = {""};
    int status = run_prepare(&host, &settings);
    if (status == STATUS_DONE) {
        status = run_worktree_lease(&settings, &lease);
    }
    const struct session_tree *record = host.record;
    if (record != NULL) {
        session = record->session.id;
    }
    if (status == STATUS_DONE && record != NULL && record->session.status == SESSION_DONE &&
        settings.task.length == 0 && !settings.is_interactive) {
        status = say_nothing_is_left(&settings, record);
    } else if (status == STATUS_DONE) {
        status = run_opened(&host, &settings, &session);
    }
    run_host_close(&host);
    run_worktree_end(&settings, &session, &lease);
    return status;
}

const struct cli_command command_run = {
    .path = "run",
    .operands = "[TASK]",
    .summary = "let an agent do a task in a workspace",
    .text =
        "The task is the argument, or standard input. The agent reads, edits and runs commands\n"
        "in the workspace, confined to it. Every step is recorded in the state directory.\n"
        "With --resume a recorded session ('last': the newest of DIR) goes on in its workspace,\n"
        "from the exact tokens of its context; the task, if there is one, is a new message.\n"
        "Refused: another model, a workspace that is gone, a state directory in use (3); unknown\n"
        "or damaged sessions (5).\n"
        "On a terminal without a task, or with --interactive, it waits for a person after each\n"
        "answer; Ctrl-C then ends what runs. Else Ctrl-C stops and keeps everything, a second one\n"
        "ends the program at once.\n"
        "Exit status: 0 done, 1 task failed, 2 usage, 3 refused, 4 budget spent, 5 bad model or\n"
        "file data, 6 engine fault, 130 interrupted.\n",
    .options = run_options_table,
    .option_count = COUNT_OF(run_options_table),
    .words_max = 1,
    .run = run,
};
