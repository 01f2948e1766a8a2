/* See run_plan.h. */
#include "run_plan.h"

#include "retention.h"
#include "run_tools.h"
#include "terminal_modes.h"

#include "base/log.h"
#include <inttypes.h>
#include <sys/random.h>
#include <unistd.h>

#define RETENTION_AT_END_MS 2000 /* what a person waits at most */

/* ---- opening -------------------------------------------------------------------------------- */

int run_plan_prepare(struct run_host *host, struct run_settings *settings) {
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
    if (status == STATUS_DONE && cli_shared_value(settings->arguments, "resume") != NULL) {
        status = run_host_open_record(host, settings);
    }
    return status == STATUS_DONE ? settings_places(settings) : status;
}

int run_plan_open(struct run_host *host, struct run_settings *settings) {
    struct error error = {0};
    int status = run_host_open(host, settings);
    if (status != STATUS_DONE) {
        return status;
    }
    /* Before a snapshot reads the whole tree. */
    return is_ok(sandbox_check_workspace(host->sandbox, &host->policy, &error))
               ? STATUS_DONE
               : cli_fail(STATUS_REFUSED, "%s", error.message);
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

int run_plan_open_session(struct run_host *host, struct run_settings *settings) {
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

/* ---- the options of a run ------------------------------------------------------------------- */

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

/* Of a session that goes on. */
static void fill_resume(
    const struct run_host *host, const struct run_settings *settings, struct run_plan *out
) {
    struct run_options *options = &out->options;
    const struct resume *resume = &host->resume;
    out->again = (struct agent_resume){
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
        options->resume = resume;
        options->agent.resume = &out->again;
        if (settings->task.length == 0 && !settings->is_interactive) {
            options->agent.task = host->record->session.begin.task;
        }
    }
}

static void
fill_begin(const struct run_host *host, const struct run_settings *settings, struct run_plan *out) {
    struct run_options *options = &out->options;
    int length =
        snprintf(out->numerics, sizeof out->numerics, "%" PRIu32, options->engine_info.numerics);
    ASSERT(length > 0);
    options->begin = (struct session_begin){
        .task = options->agent.task,
        .workspace = buffer_view(&settings->workspace),
        .model = buffer_view(
            host->current_directory.length > 0 ? &host->current_directory : &settings->model
        ), /* /model may have changed it */
        .model_digest = view_of_text(options->engine_info.model_digest),
        .backend = view_of_text(options->engine_info.backend),
        .numerics_version = view_of_text(out->numerics),
        .program_version = view_of_text(HEARTH_VERSION),
        .window_mode = view_of_text(settings->window == WINDOW_EXACT ? "exact" : "replay"),
        .sampler =
            {.seed = options->sampling.seed,
             .temperature = options->sampling.temperature,
             .top_p = options->sampling.top_p,
             .effort = settings->effort,
             .settings = options->settings},
        .time_ms_max = settings->time_ms_max,
        .tokens_max = settings->tokens_max,
        .worktree_of = buffer_view(&settings->worktree_of),
    };
}

result run_plan_make(
    struct run_host *host,
    const struct run_settings *settings,
    struct run_plan *out,
    struct error *error
) {
    const struct generation_settings *generation = &settings->generation;
    struct run_options *options = &out->options;
    *options = (struct run_options){
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
        .preparation = settings->is_swarm ? NULL : run_servers_prepare(host, settings),
        .models = settings->is_interactive ? run_models_of(host, settings) : NULL,
        .speculation = generation->speculation,
        .draft_max = (int32_t)generation->draft_max,
        .settings = buffer_view(&host->generation),
        .shows_tokens = generation->shows_tokens,
        .tools_json = buffer_view(&host->declarations.json),
        .store = host->store,
        .workspace = host->workspace,
        .last_message_path = cli_shared_value(settings->arguments, "output-last-message"),
        .state_option = buffer_text(&settings->state_option),
        .display = host->display,
        .output = host->output,
        .clock = clock_real(),
        .handles_signals = true,
        .kill = kill_now,
        .is_interactive = settings->is_interactive,
        .input = run_host_front(host),
    };
    options->engine_info = host->engine.info;
    TRY(sampling_fill(host, settings, &options->sampling, error));
    options->agent = (struct agent_options){
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
        .context_max = options->engine_info.context_max,
    };
    fill_resume(host, settings, out);
    fill_begin(host, settings, out);
    return OK;
}

/* ---- afterwards ----------------------------------------------------------------------------- */

/* A quiet moment: nothing is running, and no one else can take snapshots that are recorded. A signal ends
 * the program here as anywhere; what is left is done the next time. */
void run_plan_keep_snapshots_bounded(struct run_host *host, const struct run_settings *settings) {
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
