/* hearth run: one agent on a workspace, from its options to its exit status.
 *
 * Everything is opened in the order in which a refusal is cheapest: options, workspace, state
 * directory, model; the sandbox probes the machine on a thread of its own meanwhile.
 */
#include "cli.h"
#include "host.h"
#include "loop.h"
#include "output.h"
#include "paths.h"
#include "resume.h"
#include "run_settings.h"

#include "base/log.h"
#include "engine/constraint.h"
#include "sandbox/sandbox.h"
#include <inttypes.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#define SYSTEM_TEXT                                                                                \
    "You are a coding agent. Work in the current directory with the tools and fix what the user "  \
    "asks."
#define FILES_MIN     128
#define CLOCK_JUMP_MS 60000 /* less is a clock that is set right */
#define POOL_THREADS  6     /* of libuv (4), the engine and the sandbox */

static const struct cli_option run_options_table[] = {
    {"resume", 0, "ID", "go on with a recorded session: an id, its beginning, or 'last'"},
    {"directory", 'C', "DIR", "the workspace to work in (default: the current directory)"},
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
    {"max-turns", 0, "N", "stop after N turns (default: the model's agent.json, else 40)"},
    {"tools", 0, "NAMES", "tools to offer, comma-separated (default: shell,read,edit,write)"},
    {"window", 0, "MODE", "exact (default), or replay: approximate, fewer decoder rows"},
    {"context", 0, "N", "longest context in tokens (default: the model's)"},
    BACKEND_OPTION,
    {"threads", 0, "N", "threads of the CPU backend (default: one a core)"},
    {"cache", 0, "SIZE", "cache on disk: at most SIZE, or off (default: 16G, or a quarter free)"},
    {"cache-hours", 0, "N", "keep what is cached on disk for N hours (default: 72)"},
    {"cache-writes", 0, "SIZE", "write at most SIZE an hour to it (default: 8G)"},
    {"cache-memory", 0, "SIZE", "cache in memory beside the live context, or off (see man page)"},
    {"snapshots", 0, "SIZE", "memory for window snapshots, or off (default: a tenth)"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"json", 0, NULL, "write one JSON object a line instead of text"},
};

/* What is open during a run, closed in reverse order. */
struct run_host {
    struct session_store *store;
    struct session_tree *record; /* of the session that goes on, null: a new one */
    struct resume resume;
    struct workspace *workspace;
    struct loop *loop;
    struct output *output;
    struct display *display;
    struct sandbox *sandbox;
    struct sandbox_policy policy;
    struct engine *engine;
    struct chat_encoder *encoder;
    struct tool_context *tools;
    struct tool_declarations declarations;
    struct constraint *constraint; /* of tool calls; null: none */
    struct buffer generation;      /* settings as the record keeps them */
    uint64_t sequence;
    bool is_context_wrong; /* --context, which the model does not have */
};

struct probe_job {
    struct sandbox *sandbox;
    result status;
    struct error error;
    pthread_t thread;
    bool is_started;
};

/* ---- sandbox -------------------------------------------------------------------------------- */

static void *probe_main(void *context) {
    struct probe_job *job = context;
    job->status = sandbox_open(NULL, &job->sandbox, &job->error);
    return NULL;
}

static void probe_start(struct probe_job *job) {
    job->is_started = pthread_create(&job->thread, NULL, probe_main, job) == 0;
}

static void probe_join(struct probe_job *job) {
    if (job->is_started) {
        (void)pthread_join(job->thread, NULL);
        job->is_started = false;
    }
}

/* The sandbox, or the status of a refusal. */
static int probe_finish(struct probe_job *job, struct run_host *host) {
    if (!job->is_started) {
        (void)probe_main(job); /* no thread to be had: probe here */
    }
    probe_join(job);
    if (is_failed(job->status)) {
        return cli_fail_error(job->status, &job->error);
    }
    host->sandbox = job->sandbox;
    const struct sandbox_probe *probe = sandbox_get_probe(host->sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        return cli_fail(
            STATUS_REFUSED,
            "this machine cannot confine commands: %s; %s (see hearth doctor)",
            probe->refusal,
            probe->remedy
        );
    }
    return STATUS_DONE;
}

/* ---- opening -------------------------------------------------------------------------------- */

static void host_close(struct run_host *host) {
    tool_context_destroy(host->tools);
    tool_declarations_deinit(&host->declarations);
    buffer_deinit(&host->generation);
    constraint_release(host->constraint);
    chat_encoder_destroy(host->encoder);
    if (host->engine != NULL) {
        engine_close(host->engine);
    }
    if (host->sandbox != NULL) {
        sandbox_close(host->sandbox);
    }
    display_destroy(host->display);
    loop_destroy(host->loop);
    if (host->workspace != NULL) {
        workspace_close(host->workspace);
    }
    resume_deinit(&host->resume);
    session_tree_destroy(host->record);
    session_store_close(host->store);
}

static result open_store(
    struct run_host *host,
    const struct run_settings *settings,
    enum session_mode mode,
    struct error *error
) {
    const struct session_store_options options = {
        .state_dir = buffer_text(&settings->state),
        .mode = mode,
        .program = "hearth run",
        .clock = clock_real(),
    };
    return session_store_open(&host->store, &options, error);
}

/* The record of the session that is to go on. A state directory without sessions stays as it is. */
static result
load_record(struct run_host *host, const struct run_settings *settings, struct error *error) {
    result looked = open_store(host, settings, SESSION_READ_ONLY, error);
    if (is_failed(looked) && looked.code != RESULT_UNSUPPORTED) { /* an old schema is brought up */
        return looked;
    }
    session_store_cleanup(&host->store);
    TRY(open_store(host, settings, SESSION_READ_WRITE, error));
    const struct session_load_options everything = {.with_tokens = true};
    struct session_id id;
    struct view name = view_of_text(cli_value(settings->arguments, "resume"));
    TRY(session_resolve(host->store, name, &id, error));
    return session_load(host->store, &id, &everything, &host->record, error);
}

static int open_record(struct run_host *host, struct run_settings *settings) {
    struct error error = {0};
    result loaded = load_record(host, settings, &error);
    if (loaded.code == RESULT_INVALID_INPUT) {
        return cli_usage(settings->arguments, "--resume: %s", error.message);
    }
    if (is_failed(loaded)) {
        return cli_fail_error(loaded, &error);
    }
    settings->record = host->record;
    return STATUS_DONE;
}

static int say_nothing_is_left(const struct session_tree *record) {
    (void)cli_fail(
        STATUS_DONE,
        "session %s ended with an answer: nothing is left to do; name a new task to go on",
        record->session.id.text
    );
    return STATUS_DONE;
}

/* Another model cannot go on with the ids of this one. Another backend or numerics can, with other
 * bits, and finds nothing in the cache. */
static int check_record(struct run_host *host, const struct engine_info *info) {
    const struct session_tree *record = host->record;
    const struct session_begin *begin = &record->session.begin;
    const struct session_cache_facts *last = NULL;
    for (size_t i = 0; record->agent_count > 0 && i < record->agents[0].turn_count; i++) {
        const struct session_turn *turn = &record->agents[0].turns[i];
        last = turn->is_finished && turn->end.cache.lineage.length > 0 ? &turn->end.cache : last;
    }
    if (!view_equals_text(begin->model_digest, info->model_digest)) {
        return cli_fail(
            STATUS_REFUSED,
            "session %s was recorded with another model: digest %.16s, this one has %.16s (%.200s)",
            record->session.id.text,
            begin->model_digest.length >= 16 ? (const char *)begin->model_digest.data : "unknown",
            info->model_digest,
            info->model_name
        );
    }
    char numerics[16];
    int length = snprintf(numerics, sizeof numerics, "%" PRIu32, info->numerics);
    ASSERT(length > 0);
    if (last == NULL) {
        return STATUS_DONE;
    }
    size_t word = strcspn(info->backend, " ");
    bool is_same_backend = view_starts_with(last->backend, view_of(info->backend, word)) &&
                           (last->backend.length == word || last->backend.data[word] == ' ');
    host->resume.miss = !view_equals_text(last->numerics_version, numerics)    ? "other_numerics"
                        : !is_same_backend                                     ? "other_backend"
                        : !view_equals_text(last->lineage, info->root_lineage) ? "other_lineage"
                                                                               : NULL;
    return STATUS_DONE;
}

/* After the engine is open: the context and what is left to do. */
static int open_resume(struct run_host *host, const struct run_settings *settings) {
    struct engine_info info;
    engine_get_info(host->engine, &info);
    int status = check_record(host, &info);
    if (status != STATUS_DONE) {
        return status;
    }
    const struct resume_options options = {
        .tokenizer = engine_tokenizer(host->engine),
        .vocabulary = info.vocabulary,
        .end_id = chat_encoder_end_id(host->encoder),
        .system = view_of_text(SYSTEM_TEXT),
        .task = buffer_view(&settings->task),
    };
    const char *miss = host->resume.miss;
    struct error error = {0};
    result made = resume_make(host->record, &options, &host->resume, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    host->resume.miss = miss;
    return STATUS_DONE;
}

static result
host_open_store(struct run_host *host, const struct run_settings *settings, struct error *error) {
    if (host->store == NULL) {
        TRY(open_store(host, settings, SESSION_READ_WRITE, error));
    }
    CLEANUP(buffer_deinit) struct buffer made = {0};
    TRY(path_state(buffer_text(&settings->snapshots), true, &made, error)); /* its parents */
    TRY_NOTE(
        error,
        workspace_open(
            buffer_text(&settings->workspace),
            buffer_text(&settings->snapshots),
            &host->workspace,
            error
        ),
        "workspace"
    );
    return OK;
}

static result
host_open_view(struct run_host *host, const struct run_settings *settings, struct error *error) {
    bool json = cli_has(settings->arguments, "json");
    struct display_options options = display_options_for(STDOUT_FILENO, json);
    TRY(loop_create(&host->loop, error));
    TRY(loop_output(host->loop, STDOUT_FILENO, &host->output, error));
    return display_create(&host->display, &options, host->output, error);
}

/* Whether a plan that failed would not have, with the shortest context. */
static bool context_is_wrong(struct engine_options options) {
    struct engine_plan plan;
    struct error ignored;
    options.context_max = 1;
    return engine_plan_make(&options, &plan, &ignored).code != RESULT_INVALID_INPUT;
}

/* When there is a device and it is not used. */
static result say_why_cpu(struct run_host *host, struct error *error) {
    struct engine_info info;
    engine_get_info(host->engine, &info);
    if (info.backend_note[0] == '\0') {
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, 4096);
    TRY(buffer_append_format(&line, error, "on the CPU: %s", info.backend_note));
    const struct run_status status = {.activity = "loading"};
    const struct run_event why = {.type = RUN_NOTE, .status = &status, .text = buffer_view(&line)};
    display_event(host->display, &why);
    return OK;
}

static result
host_open_engine(struct run_host *host, const struct run_settings *settings, struct error *error) {
    const struct cache_settings *cache = &settings->cache;
    const struct engine_options options = {
        .model_directory = buffer_text(&settings->model),
        .backend = settings->backend,
        .threads = (int32_t)settings->threads,
        .context_max = (int32_t)settings->context_max,
        .sequences_max = 1,
        .cache_directory = cache->is_off ? NULL : buffer_text(&settings->cache_directory),
        .cache_disk_bytes = cache->disk_bytes,
        .cache_write_bytes_hour = cache->write_bytes_hour,
        .cache_lifetime_ms = cache->hours * 3600000,
        .cache_memory_bytes = cache->memory_bytes,
        .snapshot_bytes = cache->snapshot_bytes,
        .wake = loop_wake,
        .wake_context = host->loop,
    };
    struct engine_plan plan;
    result planned = engine_plan_make(&options, &plan, error);
    host->is_context_wrong = planned.code == RESULT_INVALID_INPUT && context_is_wrong(options);
    TRY(planned);
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, 4096);
    TRY(plan_describe(&plan, &line, error));
    const struct run_status status = {.activity = "loading"};
    const struct run_event note = {.type = RUN_NOTE, .status = &status, .text = buffer_view(&line)};
    display_event(host->display, &note);
    if (settings->generation.speculation == SPECULATE_DRAFT && !plan.has_draft_stages) {
        FAIL(
            error,
            LIMIT,
            "--speculate draft: the model in %.200s has no draft stages; lookup works with any",
            options.model_directory
        );
    }
    TRY(engine_open(&options, &host->engine, error));
    TRY(say_why_cpu(host, error));
    if (engine_wording(host->engine) == NULL) { /* token models need none, an agent does */
        FAIL(
            error,
            NOT_FOUND,
            "the model has no wording of prompts: there is neither chat.json nor "
            "encoding/encoding.py in %.200s",
            options.model_directory
        );
    }
    TRY(chat_encoder_create(
        &host->encoder, engine_tokenizer(host->engine), engine_wording(host->engine), error
    ));
    return engine_sequence_create(host->engine, &host->sequence, error);
}

static result
open_constraint(struct run_host *host, const struct run_settings *settings, struct error *error) {
    const struct constraint_options options = {
        .tools = host->declarations.tools,
        .tool_count = host->declarations.count,
        .choice = CONSTRAINT_TOOLS_AUTO,
        .thinking = settings->effort != CHAT_EFFORT_OFF,
    };
    const struct grammar_vocabulary *vocabulary = NULL;
    TRY(engine_vocabulary(host->engine, &vocabulary, error));
    TRY_NOTE(
        error,
        constraint_create(&host->constraint, vocabulary, &options, error),
        "--constrain-tools"
    );
    return OK;
}

static result
host_open_tools(struct run_host *host, const struct run_settings *settings, struct error *error) {
    const struct tool_context_options options = {
        .workspace = buffer_text(&settings->workspace),
        .sandbox = host->sandbox,
        .policy = &host->policy,
        .set = settings->tools,
        .clock = clock_real(),
    };
    TRY(tool_context_create(&host->tools, &options, error));
    TRY(tool_declarations_make(settings->declared_tools, &host->declarations, error));
    return settings->generation.constrains_tools ? open_constraint(host, settings, error) : OK;
}

/* ---- running -------------------------------------------------------------------------------- */

/* On the second signal: what is recorded is on the disk, and the kernel ends the sandboxes. */
static void kill_now(void) {
    _exit(STATUS_INTERRUPTED);
}

static result sampling_fill(
    const struct run_host *host,
    const struct run_settings *settings,
    struct sampling *sampling,
    struct error *error
) {
    engine_default_sampling(host->engine, sampling);
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

/* What the cache did that nobody asked about, once. */
static void log_cache(struct engine *engine) {
    struct engine_cache_status status;
    engine_cache_status(engine, &status);
    if (status.clock_jump_ms >= CLOCK_JUMP_MS) {
        log_event(
            LOG_WARNING,
            "cache",
            "clock_jumped",
            "forwards_ms=%" PRId64 " blocks_expired=%" PRIu64,
            status.clock_jump_ms,
            status.disk_expired
        );
    }
    if (status.others_blocks > 0 || status.others_folders > 0) {
        log_event(
            LOG_INFO,
            "cache",
            "other_models_made_room",
            "blocks=%" PRId64 " folders_removed=%" PRId32 " names=\"%s\"",
            status.others_blocks,
            status.others_folders,
            status.others_names
        );
    }
}

static result run_agent(
    struct run_host *host,
    const struct run_settings *settings,
    struct run_outcome *outcome,
    struct error *error
) {
    const struct generation_settings *generation = &settings->generation;
    struct run_options options = {
        .engine = engine_ports_of(host->engine),
        .tools = tool_ports_of(host->tools),
        .sequence = host->sequence,
        .tokenizer = engine_tokenizer(host->engine),
        .encoder = host->encoder,
        .window = settings->window,
        .stops = generation->stops,
        .stop_count = generation->stop_count,
        .guard = generation_settings_guard(generation),
        .constraint = host->constraint,
        .speculation = generation->speculation,
        .draft_max = (int32_t)generation->draft_max,
        .settings = buffer_view(&host->generation),
        .shows_tokens = generation->shows_tokens,
        .tools_json = buffer_view(&host->declarations.json),
        .store = host->store,
        .workspace = host->workspace,
        .state_option = buffer_text(&settings->state_option),
        .display = host->display,
        .output = host->output,
        .clock = clock_real(),
        .handles_signals = true,
        .kill = kill_now,
    };
    engine_get_info(host->engine, &options.engine_info);
    TRY(sampling_fill(host, settings, &options.sampling, error));
    options.agent = (struct agent_options){
        .system = view_of_text(SYSTEM_TEXT),
        .task = buffer_view(&settings->task),
        .tools = host->declarations.tools,
        .tool_count = host->declarations.count,
        .effort = settings->effort,
        .turns_max = (int32_t)settings->turns_max,
        .turn_tokens_max = (int32_t)settings->turn_tokens_max,
        .tokens_max = settings->tokens_max,
        .time_ms_max = settings->time_ms_max,
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
    };
    if (host->record != NULL) {
        options.resume = resume;
        options.agent.resume = &again;
        if (settings->task.length == 0) {
            options.agent.task = host->record->session.begin.task;
        }
    }
    char numerics[16];
    int length = snprintf(numerics, sizeof numerics, "%" PRIu32, options.engine_info.numerics);
    ASSERT(length > 0);
    options.begin = (struct session_begin){
        .task = options.agent.task,
        .workspace = buffer_view(&settings->workspace),
        .model = buffer_view(&settings->model),
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
    log_cache(host->engine);
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

static void *thread_nothing(void *context) {
    return context;
}

/* libuv ends the program when it cannot make its pipes or threads, so they are tried before. */
static int check_limits(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < FILES_MIN) {
        return cli_fail(
            STATUS_REFUSED,
            "%" PRIu64 " open files are allowed here, %d are needed: see ulimit -n",
            (uint64_t)files.rlim_cur,
            FILES_MIN
        );
    }
    pthread_t threads[POOL_THREADS];
    int made = 0;
    while (made < POOL_THREADS && pthread_create(&threads[made], NULL, thread_nothing, NULL) == 0) {
        made++;
    }
    for (int i = 0; i < made; i++) { /* a stack stays until its thread is joined */
        (void)pthread_join(threads[i], NULL);
    }
    if (made < POOL_THREADS) {
        return cli_fail(
            STATUS_REFUSED,
            "%d of %d threads can be made: memory or processes are limited, see ulimit -a",
            made,
            POOL_THREADS
        );
    }
    return STATUS_DONE;
}

/* Store, display, engine and, meanwhile, the sandbox. */
static int host_open(struct run_host *host, const struct run_settings *settings) {
    struct error error = {0};
    struct probe_job probe = {0};
    host->policy = sandbox_policy_default(buffer_text(&settings->workspace));
    probe_start(&probe);
    result opened = host_open_store(host, settings, &error);
    if (is_ok(opened)) {
        opened = host_open_view(host, settings, &error);
    }
    if (is_ok(opened)) {
        opened = host_open_engine(host, settings, &error);
    }
    if (is_ok(opened)) {
        return probe_finish(&probe, host);
    }
    probe_join(&probe);
    host->sandbox = probe.sandbox; /* host_close closes it */
    if (host->is_context_wrong) {
        return cli_usage(settings->arguments, "--context: %s", error.message);
    }
    struct error place = {0};
    if (opened.code == RESULT_INVALID_INPUT && host->sandbox != NULL &&
        is_failed(sandbox_check_workspace(host->sandbox, &host->policy, &place))) {
        return cli_fail(STATUS_REFUSED, "%s", place.message); /* the better reason */
    }
    return cli_fail_error(opened, &error);
}

/* Only now the model's ids are known. */
static result check_sampling(
    const struct run_host *host, const struct run_settings *settings, struct error *error
) {
    struct engine_info info;
    engine_get_info(host->engine, &info);
    struct sampling sampling;
    engine_default_sampling(host->engine, &sampling);
    generation_settings_sampling(&settings->generation, &sampling);
    return sampling_check(&sampling, info.vocabulary, error);
}

/* The context's length decides some defaults; the record has the numbers. */
static result
resolve_generation(struct run_host *host, struct run_settings *settings, struct error *error) {
    struct engine_info info;
    engine_get_info(host->engine, &info);
    generation_settings_resolve(&settings->generation, info.context_max);
    buffer_init(&host->generation, BUFFER_CEILING_DEFAULT);
    return generation_settings_write(&settings->generation, &host->generation, error);
}

/* A context without room for the first prompt and a token is refused before anything is recorded. */
static int check_prompt(const struct run_host *host, const struct run_settings *settings) {
    struct error error = {0};
    struct engine_info info;
    engine_get_info(host->engine, &info);
    size_t count = 0;
    const struct chat_message messages[] = {
        {.role = CHAT_SYSTEM,
         .content = view_of_text(SYSTEM_TEXT),
         .tools = host->declarations.tools,
         .tool_count = host->declarations.count},
        {.role = CHAT_USER, .content = buffer_view(&settings->task)},
    };
    result encoded =
        prompt_count(host->encoder, messages, COUNT_OF(messages), settings->effort, &count, &error);
    if (is_failed(encoded)) {
        return cli_fail_error(encoded, &error);
    }
    if (count < (size_t)info.context_max) {
        return STATUS_DONE;
    }
    if (settings->context_max > 0) {
        return cli_usage(
            settings->arguments,
            "--context %d leaves the model no room: the prompt alone has %zu tokens",
            info.context_max,
            count
        );
    }
    return cli_fail(
        STATUS_REFUSED,
        "the prompt has %zu tokens, and the model's context no more than %d",
        count,
        info.context_max
    );
}

static int run_opened(struct run_host *host, struct run_settings *settings) {
    struct error error = {0};
    struct run_outcome outcome = {0};
    int status = host_open(host, settings);
    if (status != STATUS_DONE) {
        return status;
    }
    /* Before a snapshot reads the whole tree. */
    if (is_failed(sandbox_check_workspace(host->sandbox, &host->policy, &error))) {
        return cli_fail(STATUS_REFUSED, "%s", error.message);
    }
    if (host->record != NULL) {
        status = open_resume(host, settings);
        if (status != STATUS_DONE || host->resume.is_done) {
            return status != STATUS_DONE ? status : say_nothing_is_left(host->record);
        }
    }
    result opened = check_sampling(host, settings, &error);
    if (is_failed(opened)) {
        return cli_usage(settings->arguments, "%s", error.message);
    }
    opened = resolve_generation(host, settings, &error);
    if (is_ok(opened)) {
        opened = host_open_tools(host, settings, &error);
    }
    if (is_ok(opened) && host->record == NULL) {
        status = check_prompt(host, settings);
        if (status != STATUS_DONE) {
            return status;
        }
    }
    if (is_ok(opened)) {
        opened = run_agent(host, settings, &outcome, &error);
    }
    if (is_failed(opened)) {
        return cli_fail_error(opened, &error);
    }
    if (outcome.exit_status == STATUS_ENGINE || outcome.exit_status == STATUS_DATA ||
        outcome.exit_status == STATUS_REFUSED) {
        const char *text = agent_stop_text(outcome.stop);
        const char *detail = outcome.detail;
        (void
        )(detail[0] != '\0' ? cli_fail(outcome.exit_status, "%s (%s)", text, detail)
                            : cli_fail(outcome.exit_status, "%s", text));
    }
    if (is_failed(output_status(host->output, &error))) {
        (void)cli_fail(STATUS_DATA, "%s; the run was stopped and is recorded", error.message);
    }
    return outcome.exit_status;
}

/* Everything that is known before something is opened, but the record of a session that goes on. */
static int run_prepare(struct run_host *host, struct run_settings *settings) {
    int status = settings_numbers(settings);
    if (status == STATUS_DONE) {
        status = settings_task(settings);
    }
    if (status == STATUS_DONE) {
        status = check_limits();
    }
    if (status == STATUS_DONE) {
        status = settings_state(settings);
    }
    if (status == STATUS_DONE && cli_has(settings->arguments, "resume")) {
        status = open_record(host, settings);
    }
    return status == STATUS_DONE ? settings_places(settings) : status;
}

static int run(const struct cli_arguments *arguments) {
    CLEANUP(settings_deinit) struct run_settings settings = {.arguments = arguments};
    struct run_host host = {0};
    int status = run_prepare(&host, &settings);
    const struct session_tree *record = host.record;
    if (status == STATUS_DONE && record != NULL && record->session.status == SESSION_DONE &&
        settings.task.length == 0) {
        status = say_nothing_is_left(record);
    } else if (status == STATUS_DONE) {
        status = run_opened(&host, &settings);
    }
    host_close(&host);
    return status;
}

const struct cli_command command_run = {
    .path = "run",
    .operands = "[TASK]",
    .summary = "let an agent do a task in a workspace",
    .text =
        "The task is the argument, or standard input. The agent reads, edits and runs commands\n"
        "in the workspace, confined to it. Every step is recorded in the state directory.\n"
        "With --resume a recorded session goes on in its workspace, from the exact tokens of its\n"
        "context; the task, if there is one, is a new message. Refused: another model, a "
        "workspace\n"
        "that is gone, a state directory in use (3); unknown or damaged sessions (5).\n"
        "Ctrl-C stops and keeps everything, a second one ends the program at once.\n"
        "Exit status: 0 done, 1 task failed, 2 usage, 3 refused, 4 budget spent, 5 bad model or\n"
        "file data, 6 engine fault, 130 interrupted.\n",
    .options = run_options_table,
    .option_count = COUNT_OF(run_options_table),
    .words_max = 1,
    .run = run,
};
