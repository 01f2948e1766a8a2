/* See swarm_eval_command.h.
 *
 * The evaluation has a directory of its own in the state directory, with store, workspace and copies: whatever
 * the person works on beside it is neither waited for nor changed.
 */
#include "swarm_eval_command.h"

#include "lines.h"
#include "paths.h"
#include "run_plan.h"
#include "swarm.h"
#include "swarm_eval_host.h"
#include "swarm_settings.h"

#include "sandbox/sandbox.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEEDS_DEFAULT   3
#define TIME_MS_DEFAULT 2000
#define TOKENS_DEFAULT  2600
#define SAY_INTERVAL_MS 30000 /* where nobody looks on */

struct evaluation {
    struct cli_arguments arguments; /* those given, with our own workspace */
    struct run_settings settings;
    struct run_host host;
    struct buffer place, workspace;
    int lock;
    struct swarm_eval_folder folder;
    struct swarm_eval_plan plan;
    struct swarm_eval *eval;
    struct swarm_eval_about about;
    char model[40];
    bool is_live; /* standard error is a terminal */
    int64_t said_ms;
};

/* ---- options ----------------------------------------------------------------------------------- */

static int choose_settings(struct evaluation *evaluation) {
    const char *names = cli_value(&evaluation->arguments, "eval-settings");
    struct cursor cursor = cursor_over(view_of_text(names));
    for (size_t i = 0; names == NULL && i < SWARM_EVAL_SETTINGS; i++) {
        evaluation->plan.has[i] = true;
    }
    while (cursor_remaining(&cursor) > 0) {
        struct view name = view_of(NULL, 0);
        if (!cursor_take_until(&cursor, ',', &name)) {
            bool has_rest = cursor_take(&cursor, cursor_remaining(&cursor), &name);
            ASSERT(has_rest);
        }
        size_t setting = swarm_eval_find_setting(name);
        if (setting == SWARM_EVAL_SETTINGS) {
            return cli_usage(
                &evaluation->arguments,
                "--eval-settings: there is no %.*s; there are single, retries, best-of-8-alone, "
                "best-of-8, race-8, staged, auto",
                VIEW_ARGUMENTS(name)
            );
        }
        evaluation->plan.has[setting] = true;
    }
    return STATUS_DONE;
}

/* What settings and tasks say is not said once more. */
static int check_others(const struct cli_arguments *arguments) {
    static const char *const names[] = {
        "directory",
        "worktree",
        "strategy",
        "verify",
        "attempts",
        "max-agents",
        "at-once",
        "max-depth",
        "verify-time",
        "max-calls",
        "max-processes",
        "max-memory",
        "agent-tools",
        "seed",
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        for (size_t j = 0; j < arguments->given_count; j++) {
            size_t given = arguments->given[j].option;
            if (strcmp(arguments->command->options[given].name, names[i]) == 0) {
                return cli_usage(arguments, "--%s: an evaluation has its own", names[i]);
            }
        }
    }
    return arguments->word_count == 0
               ? STATUS_DONE
               : cli_usage(arguments, "a task: an evaluation has its own, in --eval TASKS");
}

/* What a swarm would refuse. */
static int check_budget(const struct evaluation *evaluation) {
    const struct cli_arguments *arguments = &evaluation->arguments;
    int64_t time_ms = evaluation->plan.limits[SWARM_EVAL_TIME];
    int64_t tokens = evaluation->plan.limits[SWARM_EVAL_TOKENS];
    if (time_ms > 0 && (time_ms < SWARM_SETTINGS_TIME_MS_MIN || time_ms > SWARM_TIME_MS_MAX)) {
        return cli_usage(arguments, "--max-time: 2 seconds to 30 days for a swarm");
    }
    if (tokens > 0 && tokens < SWARM_CHILD_TOKENS_MIN) {
        return cli_usage(
            arguments, "--max-tokens: %d at least for a swarm", SWARM_CHILD_TOKENS_MIN
        );
    }
    return STATUS_DONE;
}

static int read_options(struct evaluation *evaluation) {
    const struct cli_arguments *arguments = &evaluation->arguments;
    struct run_settings *settings = &evaluation->settings;
    struct error error = {0};
    int64_t seeds = SEEDS_DEFAULT;
    int64_t count = 0;
    int status = check_others(arguments);
    if (status == STATUS_DONE) {
        status = settings_numbers(settings);
    }
    if (status != STATUS_DONE) {
        return status;
    }
    if (!cli_i64(arguments, "eval-seeds", 1, SWARM_EVAL_SEEDS_MAX, &seeds) ||
        !cli_i64(arguments, "eval-tasks", 1, SWARM_EVAL_TASKS_MAX, &count)) {
        return STATUS_USAGE;
    }
    bool is_bounded = cli_has(arguments, "max-time") || cli_has(arguments, "max-tokens");
    evaluation->plan.limits[SWARM_EVAL_TIME] = is_bounded ? settings->time_ms_max : TIME_MS_DEFAULT;
    evaluation->plan.limits[SWARM_EVAL_TOKENS] = is_bounded ? settings->tokens_max : TOKENS_DEFAULT;
    evaluation->plan.seed_count = (size_t)seeds;
    status = check_budget(evaluation);
    if (status != STATUS_DONE) {
        return status;
    }
    status = choose_settings(evaluation);
    if (status != STATUS_DONE) {
        return status;
    }
    result opened = swarm_eval_folder_open(
        cli_value(arguments, "eval"), (size_t)count, &evaluation->folder, &error
    );
    if (is_ok(opened)) {
        evaluation->plan.tasks = evaluation->folder.tasks;
        evaluation->plan.task_count = evaluation->folder.count;
        opened = swarm_eval_create(&evaluation->eval, &evaluation->plan, &error);
    }
    return is_ok(opened) ? STATUS_DONE : cli_fail_error(opened, &error);
}

/* ---- the place --------------------------------------------------------------------------------- */

static result make_missing(const char *path, struct error *error) {
    if (mkdir(path, S_IRWXU) != 0 && errno != EEXIST) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: cannot be made: %s", path, strerror(failed));
    }
    return OK;
}

/* Where there was no lock, the directory is nobody's that this program knows of. */
static result
open_lock(const struct evaluation *evaluation, const char *path, int *fd, struct error *error) {
    const char *place = buffer_text(&evaluation->place);
    struct stat info;
    if (lstat(path, &info) != 0 && errno == ENOENT && lstat(place, &info) == 0) {
        FAIL(error, LIMIT, "%s is of no evaluation: name another --state", place);
    }
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: cannot be opened: %s", path, strerror(failed));
    }
    return OK;
}

/* From here on the directory is ours, and goes in the end. */
static result take_place(struct evaluation *evaluation, const char *path, struct error *error) {
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_lock(evaluation, path, &fd, error));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        const char *place = buffer_text(&evaluation->place);
        FAIL(error, LIMIT, "another evaluation works in %s: name another --state", place);
    }
    evaluation->lock = fd;
    fd = -1;
    return OK;
}

/* STATE/eval, empty: what a killed evaluation left there goes. */
static result make_place(struct evaluation *evaluation, struct error *error) {
    struct buffer *state = &evaluation->settings.state;
    CLEANUP(buffer_deinit) struct buffer made = {0};
    CLEANUP(buffer_deinit) struct buffer lock;
    struct stat info;
    buffer_init(&evaluation->place, BUFFER_CEILING_DEFAULT);
    buffer_init(&evaluation->workspace, BUFFER_CEILING_DEFAULT);
    buffer_init(&lock, BUFFER_CEILING_DEFAULT);
    TRY(path_state(buffer_text(state), true, &made, error)); /* its parents */
    TRY(make_missing(buffer_text(state), error));
    TRY(buffer_append_format(&evaluation->place, error, "%s/eval", buffer_text(state)));
    TRY(buffer_append_format(&lock, error, "%s.lock", buffer_text(&evaluation->place)));
    TRY(buffer_append_format(
        &evaluation->workspace, error, "%s/workspace", buffer_text(&evaluation->place)
    ));
    TRY(take_place(evaluation, buffer_text(&lock), error));
    if (lstat(buffer_text(&evaluation->place), &info) == 0) {
        TRY(swarm_eval_remove(buffer_text(&evaluation->place), error));
    }
    TRY(make_missing(buffer_text(&evaluation->place), error));
    TRY(make_missing(buffer_text(&evaluation->workspace), error));
    buffer_clear(state);
    return buffer_append_format(state, error, "%s/state", buffer_text(&evaluation->place));
}

static void use_workspace(struct evaluation *evaluation) {
    struct cli_arguments *arguments = &evaluation->arguments;
    for (size_t i = 0; i < arguments->command->option_count; i++) {
        if (strcmp(arguments->command->options[i].name, "directory") == 0) {
            arguments->values[i] = buffer_text(&evaluation->workspace);
        }
    }
}

/* ---- what is said ------------------------------------------------------------------------------ */

static void say(void *context, struct view line) {
    struct evaluation *evaluation = context;
    const struct clock clock = clock_real();
    int64_t now_ms = clock_monotonic_ms(&clock);
    CLEANUP(buffer_deinit) struct buffer harmless; /* names of a foreign folder are in it */
    buffer_init(&harmless, BUFFER_CEILING_DEFAULT);
    line.length = utf8_valid_prefix(line);
    if (is_failed(sandbox_sanitise(line, 0, &harmless, NULL))) {
        return;
    }
    for (size_t i = 0; i < harmless.length; i++) {
        bool is_blank = harmless.data[i] == '\n' || harmless.data[i] == '\t';
        harmless.data[i] = is_blank ? ' ' : harmless.data[i];
    }
    if (evaluation->is_live) { /* in one row, or the next line would not be in its place */
        struct winsize size = {0};
        bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
        struct view row = text_in_columns(buffer_view(&harmless), is_known ? size.ws_col - 1 : 79);
        (void)fprintf(stderr, "\r\033[K%.*s", VIEW_ARGUMENTS(row));
    } else if (now_ms - evaluation->said_ms >= SAY_INTERVAL_MS) {
        evaluation->said_ms = now_ms;
        (void)fprintf(stderr, "%s\n", buffer_text(&harmless));
    }
}

/* What results depend on beside tasks and limits. */
static result
write_facts(const struct evaluation *evaluation, struct buffer *out, struct error *error) {
    const struct engine_info *info = &evaluation->host.engine.info;
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "program");
    json_write_text(&writer, HEARTH_VERSION);
    json_write_key(&writer, "model");
    json_write_text(&writer, info->model_digest);
    json_write_key(&writer, "backend");
    json_write_text(&writer, info->backend);
    json_write_key(&writer, "effort");
    json_write_i64(&writer, evaluation->settings.effort);
    json_write_key(&writer, "temperature");
    json_write_double(&writer, evaluation->about.temperature);
    json_write_key(&writer, "top_p");
    json_write_double(&writer, evaluation->settings.top_p);
    json_write_key(&writer, "turns_max");
    json_write_i64(&writer, evaluation->settings.turns_max);
    json_write_key(&writer, "context_max");
    json_write_i64(&writer, info->context_max);
    json_write_key(&writer, "window");
    json_write_i64(&writer, evaluation->settings.window);
    json_write_key(&writer, "policy");
    json_write_text(&writer, permission_policy_name(evaluation->settings.config->policy));
    json_write_key(&writer, "dialect");
    json_write_text(&writer, tool_dialect_name(evaluation->settings.dialect));
    json_write_key(&writer, "tools");
    json_write_i64(&writer, (int64_t)evaluation->settings.declared_tools);
    json_write_key(&writer, "generation");
    json_write_raw(&writer, buffer_view(&evaluation->host.generation));
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

static result report(struct evaluation *evaluation, struct error *error) {
    const char *path = cli_value(&evaluation->arguments, "eval-report");
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    if (path != NULL) {
        TRY(swarm_eval_write_json(evaluation->eval, &evaluation->about, &text, error));
        TRY(path_replace(path, buffer_view(&text), error));
        buffer_clear(&text);
    }
    TRY(cli_has(&evaluation->arguments, "json")
            ? swarm_eval_write_json(evaluation->eval, &evaluation->about, &text, error)
            : swarm_eval_write_table(evaluation->eval, &evaluation->about, &text, error));
    if (!cli_print(buffer_view(&text))) {
        FAIL(error, IO, "the table was not written");
    }
    return OK;
}

/* ---- running ----------------------------------------------------------------------------------- */

static int open_all(struct evaluation *evaluation) {
    struct run_settings *settings = &evaluation->settings;
    static const struct swarm_options planned = {
        .nodes_max = SWARM_NODES_DEFAULT, .live_max = SWARM_EVAL_LIVE_MAX};
    struct error error = {0};
    int status = run_host_check_limits();
    if (status == STATUS_DONE) {
        status = settings_state(settings);
    }
    if (status != STATUS_DONE) {
        return status;
    }
    result made = make_place(evaluation, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    use_workspace(evaluation);
    settings->cache.is_off = true;
    settings->cache.is_cold = true;
    settings->swarm = &planned;
    const struct swarm_options largest = {.live_max = SWARM_EVAL_LIVE_MAX};
    status = settings_places(settings);
    if (status == STATUS_DONE) {
        settings->swarm = &largest;
        status = run_plan_open(&evaluation->host, settings);
        settings->swarm = NULL;
    }
    return status == STATUS_DONE ? run_plan_open_session(&evaluation->host, settings) : status;
}

static result drive(struct evaluation *evaluation, struct error *error) {
    const char *path = cli_value(&evaluation->arguments, "eval-results");
    CLEANUP(buffer_deinit) struct buffer facts;
    CLEANUP(buffer_deinit) struct buffer header;
    struct swarm_eval_host host = {
        .host = &evaluation->host,
        .settings = &evaluation->settings,
        .directory = buffer_text(&evaluation->place),
        .say_context = evaluation,
        .say = say,
    };
    struct swarm_eval_port port;
    buffer_init(&facts, BUFFER_CEILING_DEFAULT);
    buffer_init(&header, SWARM_EVAL_LINE_MAX);
    swarm_eval_host_port(&host, &port);
    TRY(write_facts(evaluation, &facts, error));
    TRY(swarm_eval_header(
        evaluation->eval, &evaluation->folder, buffer_view(&facts), &header, error
    ));
    const struct swarm_eval_drive driven = {
        .eval = evaluation->eval,
        .folder = &evaluation->folder,
        .port = &port,
        .path = path != NULL ? path : "eval.jsonl",
        .header = buffer_view(&header),
    };
    return swarm_eval_drive(&driven, error);
}

static int run_all(struct evaluation *evaluation) {
    const struct run_settings *settings = &evaluation->settings;
    struct error error = {0};
    struct error unsaid = {0};
    int status = open_all(evaluation);
    if (status != STATUS_DONE) {
        return status;
    }
    double usual = evaluation->host.engine.sampling.temperature;
    int length = snprintf(
        evaluation->model,
        sizeof evaluation->model,
        "model %.12s",
        evaluation->host.engine.info.model_digest
    );
    ASSERT(length > 0);
    evaluation->about = (struct swarm_eval_about){
        .model = view_of_text(evaluation->model),
        .backend = view_of_text(evaluation->host.engine.info.backend),
        .effort = settings->effort,
        .temperature = settings->temperature >= 0 ? settings->temperature : usual,
    };
    result driven = drive(evaluation, &error);
    if (evaluation->is_live) {
        (void)fputs("\n", stderr);
    }
    bool has_results = is_ok(driven) || driven.code == RESULT_CANCELLED;
    result reported = has_results ? report(evaluation, &unsaid) : OK;
    if (driven.code == RESULT_CANCELLED) {
        return cli_fail(STATUS_INTERRUPTED, "%s", error.message);
    }
    if (is_failed(driven)) {
        return cli_fail_error(driven, &error);
    }
    return is_ok(reported) ? STATUS_DONE : cli_fail_error(reported, &unsaid);
}

int swarm_eval_command(const struct cli_arguments *arguments) {
    struct evaluation evaluation = {
        .arguments = *arguments, .lock = -1, .is_live = isatty(STDERR_FILENO) == 1};
    struct error error = {0};
    evaluation.settings.arguments = &evaluation.arguments;
    evaluation.settings.is_swarm = true;
    int status = read_options(&evaluation);
    if (status == STATUS_DONE) {
        status = run_all(&evaluation);
    }
    run_host_close(&evaluation.host);
    if (evaluation.lock >= 0) {
        result removed = swarm_eval_remove(buffer_text(&evaluation.place), &error);
        if (is_failed(removed)) {
            (void)cli_fail(status, "%s", error.message);
        }
    }
    fd_cleanup(&evaluation.lock);
    swarm_eval_destroy(evaluation.eval);
    swarm_eval_folder_close(&evaluation.folder);
    settings_deinit(&evaluation.settings);
    buffer_deinit(&evaluation.place);
    buffer_deinit(&evaluation.workspace);
    return status;
}
