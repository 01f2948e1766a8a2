/* hearth doctor: whether a run would work on this machine, and if not, what to do about it. */
#include "cli.h"
#include "host.h"
#include "paths.h"

#include "sandbox/sandbox.h"
#include "sessions/session.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct cli_option doctor_options[] = {
    {"model", 0, "DIR", "model to look at (default: the bundled one)"},
    BACKEND_OPTION,
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"json", 0, NULL, "one JSON object"},
};

#define TEXT_COLUMN 17 /* of a finding */

enum finding { FINDING_GOOD, FINDING_WEAK, FINDING_BAD };

/* Findings are collected as JSON and printed in either form. */
struct doctor {
    const struct cli_arguments *arguments;
    struct buffer text;
    struct buffer json;
    struct json_writer writer;
    struct error error;
    result status;
    bool would_work;
    const char *backend;
};

static const char *finding_name(enum finding finding) {
    static const char *const names[] = {
        [FINDING_GOOD] = "ok", [FINDING_WEAK] = "weak", [FINDING_BAD] = "bad"};
    return names[finding];
}

PRINTF_LIKE(5, 6)
static void finding_add(
    struct doctor *doctor,
    const char *subject,
    enum finding finding,
    const char *remedy,
    const char *format,
    ...
) {
    char text[1600];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    if (finding == FINDING_BAD) {
        doctor->would_work = false;
    }
    json_write_object_begin(&doctor->writer);
    json_write_key(&doctor->writer, "subject");
    json_write_text(&doctor->writer, subject);
    json_write_key(&doctor->writer, "finding");
    json_write_text(&doctor->writer, finding_name(finding));
    json_write_key(&doctor->writer, "text");
    json_write_text(&doctor->writer, text);
    json_write_key(&doctor->writer, "remedy");
    json_write_text(&doctor->writer, remedy);
    json_write_object_end(&doctor->writer);
    if (is_ok(doctor->status)) {
        doctor->status = buffer_append_format(
            &doctor->text,
            &doctor->error,
            "%-5s %-10s %s\n%s%s%s",
            finding_name(finding),
            subject,
            text,
            remedy[0] ? "                 remedy: " : "",
            remedy,
            remedy[0] ? "\n" : ""
        );
    }
}

/* ---- subjects ------------------------------------------------------------------------------- */

static void look_at_sandbox(struct doctor *doctor) {
    struct sandbox *sandbox = NULL;
    struct error error = {0};
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        finding_add(doctor, "sandbox", FINDING_BAD, "", "%s", error.message);
        return;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        finding_add(doctor, "sandbox", FINDING_BAD, probe->remedy, "refused: %s", probe->refusal);
    } else {
        finding_add(
            doctor,
            "sandbox",
            probe->weaker[0] ? FINDING_WEAK : FINDING_GOOD,
            probe->weaker[0] ? probe->remedy : "",
            "%s: bubblewrap %s, seccomp %s, Landlock ABI %d, cgroup %s, one command takes %" PRId64
            " ms%s%s",
            sandbox_rung_name(probe->rung),
            probe->bwrap_version,
            probe->seccomp ? "yes" : "no",
            probe->landlock_abi,
            sandbox_cgroup_name(probe->cgroup),
            probe->start_ms,
            probe->weaker[0] ? "; weaker: " : "",
            probe->weaker
        );
    }
    sandbox_close(sandbox);
}

static void look_at_machine(struct doctor *doctor) {
    const char *isa = "plain C";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        isa = "AVX2";
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl")) {
        isa = "AVX-512";
    }
#endif
    finding_add(
        doctor,
        "processor",
        FINDING_GOOD,
        "",
        "%ld processors online, vector code: %s",
        sysconf(_SC_NPROCESSORS_ONLN),
        isa
    );
    const double mib = 1048576.0;
    double page = (double)sysconf(_SC_PAGESIZE);
    finding_add(
        doctor,
        "memory",
        FINDING_GOOD,
        "",
        "%.0f MiB, of which %.0f MiB are free now",
        (double)sysconf(_SC_PHYS_PAGES) * page / mib,
        (double)sysconf(_SC_AVPHYS_PAGES) * page / mib
    );
}

/* Without a GPU runs use the CPU, which is no finding; with one that cannot be used it is one. */
static void look_at_cuda(struct doctor *doctor) {
    const double mib = 1048576.0;
    struct engine_device device;
    struct error error = {0};
    result probed = engine_device_find(&device, &error);
    if (is_ok(probed)) {
        finding_add(
            doctor,
            "cuda",
            FINDING_GOOD,
            "",
            "%s, %.0f MiB, of which %.0f MiB are free now",
            device.description,
            (double)device.memory_total / mib,
            (double)device.memory_free / mib
        );
        return;
    }
    bool is_absent = probed.code == RESULT_NOT_FOUND;
    finding_add(
        doctor,
        "cuda",
        is_absent ? FINDING_GOOD : FINDING_WEAK,
        "",
        "%s; runs use the CPU",
        error.message
    );
}

static void look_at_model(struct doctor *doctor) {
    CLEANUP(buffer_deinit) struct buffer directory = {0};
    CLEANUP(buffer_deinit) struct buffer plan_text;
    buffer_init(&plan_text, 4096);
    struct error error = {0};
    struct model_settings settings;
    result looked = model_directory(cli_value(doctor->arguments, "model"), &directory, &error);
    if (is_ok(looked)) {
        looked = model_settings_load(buffer_text(&directory), &settings, &error);
    }
    const struct engine_options options = {
        .model_directory = buffer_text(&directory),
        .backend = doctor->backend,
        .sequences_max = 1,
    };
    struct engine_plan plan;
    struct engine *engine = NULL;
    if (is_ok(looked)) {
        looked = engine_plan_make(&options, &plan, &error);
    }
    if (is_ok(looked)) {
        looked = plan_describe(&plan, &plan_text, &error);
    }
    if (is_ok(looked)) {
        looked = engine_open(&options, &engine, &error);
    }
    if (is_failed(looked)) {
        finding_add(
            doctor, "model", FINDING_BAD, "name another with --model DIR", "%s", error.message
        );
        return;
    }
    struct engine_info info;
    engine_get_info(engine, &info);
    engine_close(engine);
    finding_add(
        doctor,
        "model",
        FINDING_GOOD,
        "",
        "%.300s, digest %.16s, %s; %s%s%s",
        buffer_text(&directory),
        info.model_digest,
        info.backend,
        buffer_text(&plan_text),
        info.backend_note[0] != '\0' ? "; on the CPU: " : "",
        info.backend_note
    );
}

static bool is_existing_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The nearest existing directory above a path must be writable for the state to be made. */
static void look_at_missing_state(struct doctor *doctor, const char *path) {
    CLEANUP(free_cleanup) char *parent = strdup(path);
    while (parent != NULL && !is_existing_directory(parent)) {
        char *slash = strrchr(parent, '/');
        if (slash == NULL || slash == parent) {
            break;
        }
        *slash = '\0';
    }
    bool writable = parent != NULL && access(parent, W_OK | X_OK) == 0;
    finding_add(
        doctor,
        "state",
        writable ? FINDING_GOOD : FINDING_BAD,
        writable ? "" : "name another directory with --state DIR",
        "%.600s does not exist yet and %s be made",
        path,
        writable ? "will" : "cannot"
    );
}

static void look_at_state(struct doctor *doctor) {
    CLEANUP(buffer_deinit) struct buffer state = {0};
    struct error error = {0};
    result looked = cli_state(doctor->arguments, false, &state, &error);
    if (is_failed(looked)) {
        finding_add(doctor, "state", FINDING_BAD, "", "%s", error.message);
        return;
    }
    const char *path = buffer_text(&state);
    if (!is_existing_directory(path)) {
        look_at_missing_state(doctor, path);
        return;
    }
    const struct session_store_options options = {
        .state_dir = path,
        .mode = SESSION_READ_ONLY,
        .program = "hearth doctor",
        .clock = clock_real(),
        .accepts_older = true,
    };
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    looked = session_store_open(&store, &options, &error);
    if (is_ok(looked)) {
        looked = session_store_verify(store, &error);
    }
    bool is_writable = access(path, W_OK | X_OK) == 0;
    if (is_failed(looked) && looked.code != RESULT_NOT_FOUND) {
        finding_add(
            doctor,
            "state",
            FINDING_BAD,
            "name another directory with --state DIR",
            "%s",
            error.message
        );
    } else if (!is_writable) {
        finding_add(
            doctor,
            "state",
            FINDING_BAD,
            "name another directory with --state DIR",
            "%.600s cannot be written",
            path
        );
    } else {
        finding_add(
            doctor,
            "state",
            FINDING_GOOD,
            "",
            "%.600s: %s%s",
            path,
            store == NULL ? "nothing recorded yet" : "database sound (integrity and keys checked)",
            store != NULL && session_store_is_older(store)
                ? "; of an older version, the next run brings it up"
                : ""
        );
    }
}

/* Bytes on disk of the regular files in one folder. */
static uint64_t folder_bytes(int parent, const char *name) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return 0;
    }
    uint64_t bytes = 0;
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        struct stat info;
        if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode)) {
            bytes += (uint64_t)info.st_blocks * 512;
        }
    }
    (void)closedir(folder);
    return bytes;
}

/* Folders of a cache (one for each model, backend and numerics version) and their bytes. */
static void measure_cache(const char *path, int *folders, uint64_t *bytes) {
    DIR *cache = opendir(path);
    *folders = 0;
    *bytes = 0;
    if (cache == NULL) {
        return;
    }
    const struct dirent *entry = NULL;
    while ((entry = readdir(cache)) != NULL) {
        struct stat info;
        if (entry->d_name[0] != '.' &&
            fstatat(dirfd(cache), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(info.st_mode)) {
            *folders += 1;
            *bytes += folder_bytes(dirfd(cache), entry->d_name);
        }
    }
    (void)closedir(cache);
}

/* A cache that cannot be used makes runs slower, never impossible. */
static void look_at_cache(struct doctor *doctor) {
    CLEANUP(buffer_deinit) struct buffer state = {0};
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    struct error error = {0};
    if (is_failed(cli_state(doctor->arguments, false, &state, &error)) ||
        is_failed(path_cache(buffer_text(&state), &cache, &error))) {
        return; /* said with the state */
    }
    const char *path = buffer_text(&cache);
    struct stat info;
    if (lstat(path, &info) != 0) {
        finding_add(doctor, "cache", FINDING_GOOD, "", "%.600s does not exist yet", path);
        return;
    }
    const char *trouble = !S_ISDIR(info.st_mode)           ? "is no directory"
                          : info.st_uid != geteuid()       ? "belongs to another user"
                          : (info.st_mode & 0077) != 0     ? "is open to other users"
                          : access(path, W_OK | X_OK) != 0 ? "cannot be written"
                                                           : NULL;
    if (trouble != NULL) {
        finding_add(
            doctor,
            "cache",
            FINDING_WEAK,
            "remove it, or name another directory with --state DIR",
            "%.600s %s: runs keep no cache on disk",
            path,
            trouble
        );
        return;
    }
    int folders = 0;
    uint64_t bytes = 0;
    measure_cache(path, &folders, &bytes);
    finding_add(
        doctor,
        "cache",
        FINDING_GOOD,
        "",
        "%.600s: %.1f MiB for %d model%s",
        path,
        (double)bytes / 1048576.0,
        folders,
        folders == 1 ? "" : "s"
    );
}

static void look_at_terminal(struct doctor *doctor) {
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    finding_add(
        doctor,
        "terminal",
        FINDING_GOOD,
        "",
        "standard output is %s, TERM=%.40s%s",
        isatty(STDOUT_FILENO) == 1 ? "a terminal" : "no terminal: plain lines",
        term != NULL ? term : "",
        no_colour != NULL && no_colour[0] != '\0' ? ", NO_COLOR is set" : ""
    );
}

/* ---- all of them ---------------------------------------------------------------------------- */

static int doctor_print(struct doctor *doctor) {
    json_write_array_end(&doctor->writer);
    json_write_key(&doctor->writer, "would_work");
    json_write_bool(&doctor->writer, doctor->would_work);
    json_write_object_end(&doctor->writer);
    result made = json_writer_finish(&doctor->writer);
    if (is_ok(made)) {
        made = doctor->status;
    }
    if (is_ok(made)) {
        made = buffer_append_text(&doctor->json, "\n", &doctor->error);
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &doctor->error);
    }
    bool as_json = cli_has(doctor->arguments, "json");
    if (!(as_json ? cli_print(buffer_view(&doctor->json))
                  : cli_print_wrapped(buffer_view(&doctor->text), TEXT_COLUMN))) {
        return STATUS_DATA;
    }
    if (!as_json) {
        (void)printf("%s\n", doctor->would_work ? "a run would work" : "a run would be refused");
    }
    return doctor->would_work ? STATUS_DONE : STATUS_REFUSED;
}

static int doctor_run(const struct cli_arguments *arguments) {
    struct doctor doctor = {.arguments = arguments, .would_work = true};
    int chosen = backend_option(arguments, &doctor.backend);
    if (chosen != STATUS_DONE) {
        return chosen;
    }
    buffer_init(&doctor.text, BUFFER_CEILING_DEFAULT);
    buffer_init(&doctor.json, BUFFER_CEILING_DEFAULT);
    json_writer_init(&doctor.writer, &doctor.json, &doctor.error);
    json_write_object_begin(&doctor.writer);
    json_write_key(&doctor.writer, "version");
    json_write_text(&doctor.writer, HEARTH_VERSION);
    json_write_key(&doctor.writer, "findings");
    json_write_array_begin(&doctor.writer);
    look_at_sandbox(&doctor);
    look_at_machine(&doctor);
    look_at_cuda(&doctor);
    look_at_model(&doctor);
    look_at_state(&doctor);
    look_at_cache(&doctor);
    look_at_terminal(&doctor);
    int status = doctor_print(&doctor);
    buffer_deinit(&doctor.text);
    buffer_deinit(&doctor.json);
    return status;
}

const struct cli_command command_doctor = {
    .path = "doctor",
    .operands = "",
    .summary = "whether a run would work on this machine, and remedies",
    .text = "Exit status: 0 a run would work, 3 it would be refused.\n",
    .options = doctor_options,
    .option_count = COUNT_OF(doctor_options),
    .run = doctor_run,
};
