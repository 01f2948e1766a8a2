/* hearth run: one agent on a workspace, from its options to its exit status.
 *
 * What is opened for it is in run_host.h.
 */
#include "cli.h"
#include "paths.h"
#include "retention.h"
#include "run_config.h"
#include "run_host.h"
#include "run_tools.h"
#include "run_worktree.h"
#include "terminal_modes.h"

#include "base/log.h"
#include <inttypes.h>
#include <sys/random.h>
#include <unistd.h>

#define RETENTION_AT_END_MS 2000 /* what a person waits at most */

static const struct cli_option run_options_table[] = {
    {"resume", 0, "ID", "go on with a session: an id, its beginning, or 'last'"},
    {"directory", 'C', "DIR", "the workspace to work in (default: the current directory)"},
    {"worktree", 0, NULL, "work in a copy of the workspace with a repository of its own"},
    {"model", 0, "DIR", "model in the official layout (default: the bundled one)"},
    {"effort", 0, "N", "1 to 100, low, high, max, off (default: the model's agent.json, else 75)"},
    {"temperature", 0, "T", "0 is greedy (default: generation_config.json, else 1.0)"},
    {"top-p", 0, "P", "above 0, at most 1 (default: generation_config.json, else 0.95)"},
    {"top-k", 0, "N", "only the N most likely tokens (default: 0, all)"},
    {"min-p", 0, "P", "only tokens P times as likely as the likeliest (default: 0, all)"},
    {"repetition-penalty", 0, "R", "0.01 to 100: weakens tokens that were seen (default: 1, off)"},
    {"presence-penalty", 0, "P", "-2 to 2: weakens tokens that were written (default: 0)"},
    {"frequency-penalty", 0, "P", "-2 to 2: the same, each time (default: 0)"},
    {"logit-bias", 0, "ID=BIAS", "-100 to 100 or never, for a token id; commas, repeatable"},
    {"stop", 0, "TEXT", "end the model's turn when it writes TEXT; repeatable"},
    {"speculate", 0, "MODE", "auto (default), off, lookup or draft: faster, the same text"},
    {"draft-max", 0, "N", "1 to 16: tokens of one draft (default: what pays)"},
    {"constrain-tools", 0, "on|off", "tool calls must fit their schemas (default: off)"},
    {"max-thinking", 0, "N|off", "end a turn that thinks N tokens (default: half the context)"},
    {"max-call", 0, "N|off", "end a turn with N tokens in open calls (default: half the context)"},
    {"max-repeats", 0, "N|off", "end a turn that repeats a text N times on end (default: 32)"},
    {"logprobs", 0, "N", "with --json: each token with the N (0 to 20) likeliest in its place"},
    {"seed", 0, "N", "of the sampler (default: drawn, and recorded)"},
    {"max-time", 0, "TIME", "stop after 90s, 10m, 2h (default: no limit)"},
    {"max-tokens", 0, "N", "stop after N written tokens (default: no limit)"},
    {"max-turn-tokens",
     0,
     "N",
     "at most N tokens in one turn (default: the model's, see man page)"},
    {"compact-at", 0, "PERCENT", "make a context that is so full smaller (default: 80; 0: never)"},
    {"keep-turns", 0, "N", "turns that stay as they are then (default: 2)"},
    {"max-turns", 0, "N", "stop after N turns (default: the model's agent.json, else 40)"},
    {"tools", 0, "NAMES", "tools to offer, comma-separated (default: those of the dialect)"},
    {"window", 0, "MODE", "exact (default), or replay: approximate, fewer decoder rows"},
    {"context", 0, "N", "longest context in tokens (default: the model's)"},
    BACKEND_OPTION,
    RUN_CONFIG_OPTIONS,
    {"threads", 0, "N", "threads of the CPU backend (default: one a core)"},
    {"cache", 0, "SIZE", "cache on disk: at most SIZE, or off (default: 16G, or a quarter free)"},
    {"cache-hours", 0, "N", "keep what is cached on disk for N hours (default: 72)"},
    {"cache-writes", 0, "SIZE", "write at most SIZE an hour to it (default: 8G)"},
    {"cache-memory", 0, "SIZE", "cache in memory beside the live context, or off (see man page)"},
    {"snapshots", 0, "SIZE", "memory for window snapshots, or off (default: a tenth)"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"max-calls", 0, "N", "stop after N tool calls (default: no limit)"},
    {"interactive", 0, NULL, "wait for a person; also without a terminal: messages are lines"},
    {"output-last-message", 0, "FILE", "write the model's last message there at the end"},
    {"json", 0, NULL, "write one JSON object a line instead of text"},
};

static int say_nothing_is_left(const struct session_tree *record) {
    (void)cli_fail(
        STATUS_DONE,
        "session %s ended with an answer: nothing is left to do; name a new task to go on",
        record->session.id.text
    );
    return STATUS_DONE;
}

/* ---- running -------------------------------------------------------------------------------- */

/* On the second signal: what is recorded is on the disk, and the kernel ends the sandboxes. */
static void kill_now(void) {
    terminal_modes_leave();
    _exit(STATUS_INTERRUPTED);
}

static result sampling_fill(
    const struct run_host *host,
    const struct run_settings *settings,
    struct sampling *sampling,
    struct error *error
) {
    *sampling = host->engine.sampling;
    generation_settings_sampling(&settings->generation, sampling);
    sampling->seed = settings->seed;
    if (settings->temperature >= 0.0) {
        sampling->temperature = settings->temperature;
    }
    if (settings->top_p >= 0.0) {
        sampling->top_p = settings->top_p;
    }
    if (!settings->has_seed) {
        uint64_t drawn = 0;
        if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) {
            FAIL(error, IO, "the system gives no random seed: name one with --seed");
        }
        sampling->seed = drawn >> 11; /* 53 bits survive every JSON reader */
    }
    return OK;
}

static result run_agent(
    struct run_host *host,
    const struct run_settings *settings,
    struct run_outcome *outcome,
    struct error *error
) {
    const struct generation_settings *generation = &settings->generation;
    struct run_options options = {
        .engine = host->engine.ports,
        .tools = tool_ports_of(host->tools),
        .permission = host->permission,
        .hooks = &host->hooks,
        .rules = settings->config->rules.items,
        .rule_count = settings->config->rules.count,
        .url_is_listed = host->network != NULL ? run_tools_url_is_listed : NULL,
        .url_context = host,
        .sequence = host->engine.sequence,
        .tokenizer = host->engine.tokenizer,
        .encoder = host->encoder,
        .window = settings->window,
        .stops = generation->stops,
        .stop_count = generation->stop_count,
        .guard = generation_settings_guard(generation),
        .constraint = host->constraint,
        .preparation = run_servers_prepare(host, settings),
        .models = settings->is_interactive ? run_models_of(host, settings) : NULL,
        .speculation = generation->speculation,
        .draft_max = (int32_t)generation->draft_max,
        .settings = buffer_view(&host->generation),
        .shows_tokens = generation->shows_tokens,
        .tools_json = buffer_view(&host->declarations.json),
        .store = host->store,
        .workspace = host->workspace,
        .last_message_path = cli_value(settings->arguments, "output-last-message"),
        .state_option = buffer_text(&settings->state_option),
        .display = host->display,
        .output = host->output,
        .clock = clock_real(),
        .handles_signals = true,
        .kill = kill_now,
        .is_interactive = settings->is_interactive,
        .input = run_host_front(host),
    };
    options.engine_info = host->engine.info;
    TRY(sampling_fill(host, settings, &options.sampling, error));
    options.agent = (struct agent_options){
        .system = buffer_view(&host->system),
        .task = buffer_view(&settings->task),
        .tools = host->declarations.tools,
        .tool_count = host->declarations.count,
        .effort = settings->effort,
        .turns_max = (int32_t)settings->turns_max,
        .turn_tokens_max = (int32_t)settings->turn_tokens_max,
        .compact_at_percent = (int32_t)settings->compact_at_percent,
        .compact_keep_turns = (int32_t)settings->compact_keep_turns,
        .tokens_max = settings->tokens_max,
        .time_ms_max = settings->time_ms_max,
        .calls_max = settings->calls_max,
        .is_interactive = settings->is_interactive,
        .checks_stop = hooks_apply(&host->hooks, HOOK_STOP, view_of(NULL, 0)),
        .context_max = options.engine_info.context_max,
    };
    const struct resume *resume = &host->resume;
    const struct agent_resume again = {
        .messages =
            resume->conversation == NULL ? NULL : chat_conversation_messages(resume->conversation),
        .message_count =
            resume->conversation == NULL ? 0 : chat_conversation_count(resume->conversation),
        .context_messages = resume->context_messages,
        .end_is_missing = resume->end_is_missing,
        .context_tokens = narrow_i32((int64_t)resume->ids.count),
        .turns = resume->turns,
        .has_calls = resume->has_calls,
        .turn_message = resume->turn_message,
        .next_call = resume->next_call,
        .calls_total = resume->calls_total,
        .reason = resume->reason,
        .waits = settings->is_interactive && settings->task.length == 0,
    };
    if (host->record != NULL) {
        options.resume = resume;
        options.agent.resume = &again;
        if (settings->task.length == 0 && !settings->is_interactive) {
            options.agent.task = host->record->session.begin.task;
        }
    }
    char numerics[16];
    int length = snprintf(numerics, sizeof numerics, "%" PRIu32, options.engine_info.numerics);
    ASSERT(length > 0);
    options.begin = (struct session_begin){
        .task = options.agent.task,
        .workspace = buffer_view(&settings->workspace),
        .model = buffer_view(
            host->current_directory.length > 0 ? &host->current_directory : &settings->model
        ), /* /model may have changed it */
        .model_digest = view_of_text(options.engine_info.model_digest),
        .backend = view_of_text(options.engine_info.backend),
        .numerics_version = view_of_text(numerics),
        .program_version = view_of_text(HEARTH_VERSION),
        .window_mode = view_of_text(settings->window == WINDOW_EXACT ? "exact" : "replay"),
        .sampler =
            {.seed = options.sampling.seed,
             .temperature = options.sampling.temperature,
             .top_p = options.sampling.top_p,
             .effort = settings->effort,
             .settings = options.settings},
        .time_ms_max = settings->time_ms_max,
        .tokens_max = settings->tokens_max,
        .worktree_of = buffer_view(&settings->worktree_of),
    };
    log_event(
        LOG_INFO,
        "run",
        "started",
        "backend=\"%s\" context_tokens=%d kv_bytes_per_token=%" PRIu64,
        options.engine_info.backend,
        options.engine_info.context_max,
        options.engine_info.kv_bytes_per_token
    );
    result ran = loop_run(host->loop, &options, outcome, error);
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

/* A quiet moment: nothing is running, and no one else can take snapshots that are recorded. A signal ends
 * the program here as anywhere; what is left is done the next time. */
static void keep_snapshots_bounded(struct run_host *host, const struct run_settings *settings) {
    const struct config_size *size = &settings->config->sessions_snapshots_max;
    const struct clock clock = clock_real();
    const struct retention_options options = {
        .state = buffer_text(&settings->state),
        .store = host->store,
        .in_use = buffer_text(&settings->snapshots),
        .bytes_max = size->bytes,
        .until_ms = clock_monotonic_ms(&clock) + RETENTION_AT_END_MS,
    };
    CLEANUP(retention_deinit) struct retention done = {0};
    struct error error = {0};
    uint64_t bytes = 0;
    if (size->is_off) {
        return;
    }
    result kept = retention_measure(options.state, options.until_ms, &bytes, &error);
    if (is_ok(kept) && bytes > options.bytes_max) {
        kept = retention_apply(&options, &done, &error);
    }
    if (is_failed(kept)) {
        log_event(LOG_WARNING, "snapshots", "not_bounded", "reason=\"%s\"", error.message);
    } else if (bytes > options.bytes_max) {
        log_event(
            LOG_INFO,
            "snapshots",
            done.is_cut ? "removed_in_part" : "removed",
            "bytes_before=%" PRIu64 " bytes_after=%" PRIu64 " sessions=%zu",
            done.bytes_before,
            done.bytes_after,
            done.loss_count
        );
    }
}

/* Only now the model's ids are known. */
static result check_sampling(
    const struct run_host *host, const struct run_settings *settings, struct error *error
) {
    struct sampling sampling = host->engine.sampling;
    generation_settings_sampling(&settings->generation, &sampling);
    return sampling_check(&sampling, host->engine.info.vocabulary, error);
}

/* The context's length decides some defaults; the record has the numbers. */
static result
resolve_generation(struct run_host *host, struct run_settings *settings, struct error *error) {
    generation_settings_resolve(&settings->generation, host->engine.info.context_max);
    buffer_init(&host->generation, BUFFER_CEILING_DEFAULT);
    return generation_settings_write(&settings->generation, &host->generation, error);
}

/* A context without room for the first prompt and a token is refused before anything is recorded. */
static int check_prompt(const struct run_host *host, const struct run_settings *settings) {
    struct error error = {0};
    size_t count = 0;
    result encoded = run_tools_count_prompt(host, settings, &host->declarations, &count, &error);
    if (is_failed(encoded)) {
        return cli_fail_error(encoded, &error);
    }
    if (count < (size_t)host->engine.info.context_max) {
        return STATUS_DONE;
    }
    if (settings->context_max > 0) {
        return cli_usage(
            settings->arguments,
            "--context %d leaves the model no room: the prompt alone has %zu tokens",
            host->engine.info.context_max,
            count
        );
    }
    return cli_fail(
        STATUS_REFUSED,
        "the prompt has %zu tokens, and the model's context no more than %d",
        count,
        host->engine.info.context_max
    );
}

/* What a session needs beside the model: its context, and tools. */
static int open_session(struct run_host *host, struct run_settings *settings) {
    struct error error = {0};
    int status = STATUS_DONE;
    result opened = run_tools_read_instructions(host, settings, &error);
    if (is_failed(opened)) {
        return cli_fail_error(opened, &error);
    }
    if (host->record != NULL) {
        status = run_host_open_resume(host, settings);
        if (status != STATUS_DONE || (host->resume.is_done && !settings->is_interactive)) {
            return status;
        }
    }
    opened = check_sampling(host, settings, &error);
    if (is_failed(opened)) {
        return cli_usage(settings->arguments, "%s", error.message);
    }
    opened = resolve_generation(host, settings, &error);
    if (is_ok(opened)) {
        opened = run_tools_open(host, settings, &error);
    }
    if (is_ok(opened) && host->record != NULL) {
        opened = run_tools_restore(host, &error);
    }
    if (is_failed(opened)) {
        return cli_fail_error(opened, &error);
    }
    return host->record == NULL ? check_prompt(host, settings) : STATUS_DONE;
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
    int status = run_host_open(host, settings);
    if (status != STATUS_DONE) {
        return status;
    }
    /* Before a snapshot reads the whole tree. */
    if (is_failed(sandbox_check_workspace(host->sandbox, &host->policy, &error))) {
        return cli_fail(STATUS_REFUSED, "%s", error.message);
    }
    result ran = OK;
    do {
        if (outcome.begins_anew) {
            ran = run_host_begin_anew(host, settings, outcome.sequence, &error);
            outcome.begins_anew = false;
        }
        status = is_ok(ran) ? open_session(host, settings) : STATUS_DONE;
        if (status != STATUS_DONE) {
            return status;
        }
        if (is_ok(ran) && host->record != NULL && host->resume.is_done &&
            !settings->is_interactive) {
            return say_nothing_is_left(host->record);
        }
        ran = is_ok(ran) ? run_agent(host, settings, &outcome, &error) : ran;
        *session = outcome.session.text[0] != '\0' ? outcome.session : *session;
    } while (is_ok(ran) && outcome.begins_anew);
    if (is_ok(ran) && outcome.exit_status != STATUS_DATA) { /* else the disk has its trouble */
        keep_snapshots_bounded(host, settings);
    }
    return is_failed(ran) ? cli_fail_error(ran, &error) : say_outcome(host, &outcome);
}

/* Everything that is known before something is opened, but the record of a session that goes on. */
static int run_prepare(struct run_host *host, struct run_settings *settings) {
    const char *last_path = cli_value(settings->arguments, "output-last-message");
    struct error error = {0};
    if (last_path != NULL && is_failed(path_check_replace(last_path, &error))) {
        return cli_usage(settings->arguments, "--output-last-message %s", error.message);
    }
    int status = settings_numbers(settings);
    if (status == STATUS_DONE) {
        status = settings_task(settings);
    }
    if (status == STATUS_DONE) {
        status = run_host_check_limits();
    }
    if (status == STATUS_DONE) {
        status = settings_state(settings);
    }
    if (status == STATUS_DONE && cli_has(settings->arguments, "resume")) {
        status = run_host_open_record(host, settings);
    }
    return status == STATUS_DONE ? settings_places(settings) : status;
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
        status = say_nothing_is_left(record);
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
