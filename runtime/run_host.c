/* See run_host.h. The sandbox probes the machine on a thread of its own while the rest is opened. */
#include "run_host.h"

#include "front_lines.h"
#include "paths.h"
#include "run_tools.h"
#include "session_place.h"
#include "swarm_host.h"
#include "terminal.h"
#include <inttypes.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#define FILES_MIN    128
#define POOL_THREADS 7 /* of libuv (4), calls (1), the engine and the sandbox */

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

void run_host_close(struct run_host *host) {
    run_tools_close(host);
    buffer_deinit(&host->generation);
    constraint_release(host->constraint);
    chat_encoder_destroy(host->encoder);
    run_engine_close(&host->engine);
    buffer_deinit(&host->current_directory);
    if (host->sandbox != NULL) {
        sandbox_close(host->sandbox);
    }
    front_lines_destroy(host->front);
    terminal_destroy(host->terminal);
    buffer_deinit(&host->history);
    display_destroy(host->display);
    loop_destroy(host->loop);
    if (host->workspace != NULL) {
        workspace_close(host->workspace);
    }
    resume_deinit(&host->resume);
    session_tree_destroy(host->record);
    session_store_close(host->store);
}

/* A session that was resumed in a directory which was moved keeps its snapshots where it began them; a new one
 * has its own. */
static result
workspace_anew(struct run_host *host, struct run_settings *settings, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer place = {0}, made = {0};
    const char *workspace = buffer_text(&settings->workspace);
    TRY(path_snapshots(buffer_text(&settings->state), workspace, &place, error));
    if (view_equals(buffer_view(&place), buffer_view(&settings->snapshots))) {
        return OK;
    }
    workspace_close(host->workspace);
    host->workspace = NULL;
    TRY(path_state(buffer_text(&place), true, &made, error)); /* its parents */
    TRY_NOTE(
        error, workspace_open(workspace, buffer_text(&place), &host->workspace, error), "workspace"
    );
    buffer_deinit(&settings->snapshots);
    settings->snapshots = place;
    place = (struct buffer){0};
    return OK;
}

result run_host_begin_anew(
    struct run_host *host, struct run_settings *settings, uint64_t sequence, struct error *error
) {
    const struct engine_ports *engine = &host->engine.ports;
    run_tools_close(host);
    buffer_deinit(&host->generation);
    constraint_release(host->constraint);
    host->constraint = NULL;
    resume_deinit(&host->resume);
    host->resume = (struct resume){0};
    session_tree_destroy(host->record);
    host->record = NULL;
    settings->record = NULL;
    buffer_clear(&settings->task);
    TRY(workspace_anew(host, settings, error));
    workspace_limit_time(host->workspace, INT64_MAX);
    display_begin_again(host->display);
    TRY(engine->create(engine->context, &host->engine.sequence, error));
    engine->destroy(engine->context, sequence);
    return OK;
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
    const char *word = cli_value(settings->arguments, "resume");
    const char *directory = cli_value(settings->arguments, "directory");
    TRY(session_place_resolve(host->store, word, directory, &id, error));
    return session_load(host->store, &id, &everything, &host->record, error);
}

int run_host_open_record(struct run_host *host, struct run_settings *settings) {
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
            "session %s was recorded with another model: digest %.16s, this one has %.16s "
            "(%.200s); "
            "resume it with its own, and /model DIR goes on with another in a fork",
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

int run_host_open_resume(struct run_host *host, const struct run_settings *settings) {
    int status = check_record(host, &host->engine.info);
    if (status != STATUS_DONE) {
        return status;
    }
    const struct resume_options options = {
        .tokenizer = host->engine.tokenizer,
        .vocabulary = host->engine.info.vocabulary,
        .end_id = chat_encoder_end_id(host->encoder),
        .system = buffer_view(&host->system),
        .task = buffer_view(&settings->task),
        .waits = settings->is_interactive && settings->task.length == 0,
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

static void say_input(void *context, const char *text) {
    struct run_host *host = context;
    const struct run_status status = {.activity = "waiting"};
    const struct run_event note = {.type = RUN_NOTE, .status = &status, .text = view_of_text(text)};
    display_event(host->display, &note);
}

/* A line editor on a terminal with the live view; else lines as they come. */
static result
open_front(struct run_host *host, const struct run_settings *settings, struct error *error) {
    bool json = cli_has(settings->arguments, "json");
    if (!display_is_live(host->display) || isatty(STDIN_FILENO) != 1) {
        const struct front_lines_options options = {
            .fd = STDIN_FILENO,
            .is_json = json,
            .display = host->display,
            .say = say_input,
            .context = host,
        };
        return front_lines_create(&host->front, &options, error);
    }
    buffer_init(&host->history, 8192);
    TRY(buffer_append_format(&host->history, error, "%s/history", buffer_text(&settings->state)));
    const struct terminal_options options = {
        .display = host->display,
        .output = host->output,
        .input = STDIN_FILENO,
        .screen = STDOUT_FILENO,
        .history = buffer_text(&host->history),
        .workspace = buffer_text(&settings->workspace),
    };
    return terminal_create(&host->terminal, &options, error);
}

static result
host_open_view(struct run_host *host, const struct run_settings *settings, struct error *error) {
    bool json = cli_has(settings->arguments, "json");
    struct display_options options = display_options_for(STDOUT_FILENO, json);
    enum config_colour colour = settings->config->terminal_colour;
    options.has_colour = options.form == DISPLAY_TERMINAL && colour != CONFIG_COLOUR_NEVER &&
                         (options.has_colour || colour == CONFIG_COLOUR_ALWAYS);
    options.keeps_markdown = !settings->config->terminal_markdown;
    TRY(loop_create(&host->loop, error));
    TRY(loop_output(host->loop, STDOUT_FILENO, &host->output, error));
    TRY(display_create(&host->display, &options, host->output, error));
    return settings->is_interactive ? open_front(host, settings, error) : OK;
}

const struct run_front *run_host_front(const struct run_host *host) {
    return host->terminal != NULL ? terminal_front(host->terminal)
           : host->front != NULL  ? front_lines_front(host->front)
                                  : NULL;
}

void run_host_say(struct run_host *host, enum run_event_type type, struct view line) {
    const struct run_status status = {.activity = "loading"};
    const struct run_event note = {.type = type, .status = &status, .text = line};
    display_event(host->display, &note);
}

static void say_loading(void *context, struct view line) {
    run_host_say(context, RUN_NOTE, line);
}

void run_host_engine_request(
    struct run_host *host, const struct run_settings *settings, struct run_engine_request *out
) {
    const struct cache_settings *cache = &settings->cache;
    *out = (struct run_engine_request){
        .engine =
            {.model_directory = buffer_text(&settings->model),
             .backend = settings->backend,
             .threads = (int32_t)settings->threads,
             .context_max = (int32_t)settings->context_max,
             .sequences_max = settings->swarm != NULL ? 0 : 1,
             .cache_directory = cache->is_off ? NULL : buffer_text(&settings->cache_directory),
             .cache_disk_bytes = cache->disk_bytes,
             .cache_write_bytes_hour = cache->write_bytes_hour,
             .cache_lifetime_ms = cache->hours * 3600000,
             .cache_memory_bytes = cache->memory_bytes,
             .snapshot_bytes = cache->snapshot_bytes,
             .has_no_prefix_cache = cache->is_cold,
             .wake = loop_wake,
             .wake_context = host->loop},
        .wants_draft_stages = settings->generation.speculation == SPECULATE_DRAFT,
        .say = say_loading,
        .says_briefly = display_is_live(host->display),
        .say_context = host,
    };
    if (settings->swarm != NULL) {
        swarm_host_plan_engine(settings->swarm, &out->engine);
    }
}

static result
host_open_engine(struct run_host *host, const struct run_settings *settings, struct error *error) {
    struct run_engine_request request;
    run_host_engine_request(host, settings, &request);
    TRY(run_engine_open(&request, &host->engine, error));
    return chat_encoder_create(&host->encoder, host->engine.tokenizer, host->engine.wording, error);
}

static void *thread_nothing(void *context) {
    return context;
}

/* libuv ends the program when it cannot make its pipes or threads, so they are tried before. */
int run_host_check_limits(void) {
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

int run_host_open(struct run_host *host, const struct run_settings *settings) {
    struct error error = {0};
    struct probe_job probe = {0};
    static const char *const protect[] = {".hearth"}; /* what a run may do, and its hooks */
    host->policy = sandbox_policy_default(buffer_text(&settings->workspace));
    host->policy.protect = protect;
    host->policy.protect_count = COUNT_OF(protect);
    host->policy.is_read_only = settings->config->policy == PERMISSION_READ_ONLY;
    probe_start(&probe);
    result opened = host_open_store(host, settings, &error);
    if (is_ok(opened)) {
        opened = host_open_view(host, settings, &error);
    }
    for (size_t i = 0; is_ok(opened) && i < settings->config->notes.count; i++) {
        say_loading(host, view_of_text(settings->config->notes.items[i]));
    }
    if (is_ok(opened)) {
        opened = host_open_engine(host, settings, &error);
    }
    if (is_ok(opened)) {
        return probe_finish(&probe, host);
    }
    probe_join(&probe);
    host->sandbox = probe.sandbox; /* host_close closes it */
    if (host->engine.is_context_wrong) {
        return cli_usage(settings->arguments, "--context: %s", error.message);
    }
    struct error place = {0};
    if (opened.code == RESULT_INVALID_INPUT && host->sandbox != NULL &&
        is_failed(sandbox_check_workspace(host->sandbox, &host->policy, &place))) {
        return cli_fail(STATUS_REFUSED, "%s", place.message); /* the better reason */
    }
    return cli_fail_error(opened, &error);
}
