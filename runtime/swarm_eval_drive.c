/* The loop over the runs and the file of their results; see swarm_eval_drive.h. */
#include "swarm_eval_drive.h"

#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#define FORMAT         "hearth swarm eval results 1"
#define ID_BYTES_SHOWN ((size_t)60)

result swarm_eval_header(
    const struct swarm_eval *eval,
    const struct swarm_eval_folder *folder,
    struct view facts,
    struct buffer *out,
    struct error *error
) {
    const struct swarm_eval_plan *plan = swarm_eval_plan(eval);
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "format");
    json_write_text(&writer, FORMAT);
    json_write_key(&writer, "tasks");
    json_write_text(&writer, folder->digest);
    json_write_key(&writer, "time_ms");
    json_write_i64(&writer, plan->limits[SWARM_EVAL_TIME]);
    json_write_key(&writer, "tokens");
    json_write_i64(&writer, plan->limits[SWARM_EVAL_TOKENS]);
    json_write_key(&writer, "facts");
    json_write_raw(&writer, facts);
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

/* ---- the file ---------------------------------------------------------------------------------- */

static result write_all(int fd, struct view bytes, const char *path, struct error *error) {
    while (bytes.length > 0) {
        ssize_t written = write(fd, bytes.data, bytes.length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            int failed = written < 0 ? errno : EIO;
            FAIL_FOREIGN(error, IO, failed, "%s: cannot be written: %s", path, strerror(failed));
        }
        bytes = view_slice(bytes, (size_t)written, bytes.length);
    }
    return OK;
}

/* Reads what is there; what a kill left of a line is cut off. */
static result continue_file(const struct swarm_eval_drive *drive, int fd, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text;
    size_t used = 0;
    buffer_init(&text, SWARM_EVAL_FILE_MAX);
    TRY(file_read(drive->path, &text, error));
    TRY_NOTE(
        error,
        swarm_eval_read_lines(drive->eval, drive->header, buffer_view(&text), &used, error),
        "%s",
        drive->path
    );
    if (ftruncate(fd, (off_t)used) != 0 || lseek(fd, 0, SEEK_END) < 0) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: %s", drive->path, strerror(failed));
    }
    if (used == 0) {
        TRY(write_all(fd, drive->header, drive->path, error));
        TRY(write_all(fd, view_of_text("\n"), drive->path, error));
    }
    return OK;
}

static result open_file(const struct swarm_eval_drive *drive, int *out, struct error *error) {
    int fd = open(drive->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (fd < 0) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: cannot be opened: %s", drive->path, strerror(failed));
    }
    *out = fd; /* the caller's from here */
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        FAIL(error, LIMIT, "%s: another evaluation writes it", drive->path);
    }
    return continue_file(drive, fd, error);
}

/* ---- the runs ---------------------------------------------------------------------------------- */

struct progress {
    int64_t start_ms;
    size_t made; /* by this call */
};

static void
say(const struct swarm_eval_drive *drive,
    const struct progress *progress,
    const struct swarm_eval_cell *cell,
    const struct swarm_eval_result *found) {
    size_t done = swarm_eval_done(drive->eval);
    size_t total = swarm_eval_total(drive->eval);
    int64_t spent_ms = drive->port->now_ms(drive->port->context) - progress->start_ms;
    int64_t left_s = spent_ms / (int64_t)progress->made * (int64_t)(total - done) / 1000;
    const char *word = found->fault[0] != '\0' ? found->fault
                       : found->is_solved      ? "solved"
                       : found->is_passed      ? "passed, not solved"
                                               : "not solved";
    struct view id = view_slice(drive->folder->items[cell->task].id, 0, ID_BYTES_SHOWN);
    id = view_slice(id, 0, utf8_valid_prefix(id));
    char line[400];
    int length = snprintf(
        line,
        sizeof line,
        "%zu of %zu, %lld:%02lld h left: %.*s %s seed %zu, equal %s: %s, %.1f s, %lld tokens",
        done,
        total,
        (long long)(left_s / 3600),
        (long long)(left_s / 60 % 60),
        VIEW_ARGUMENTS(id),
        swarm_eval_settings[cell->setting].name,
        cell->seed + 1,
        swarm_eval_budget_name(cell->budget),
        word,
        (double)found->duration_ms / 1000,
        (long long)found->tokens
    );
    ASSERT(length > 0);
    size_t shown = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    drive->port->say(drive->port->context, view_of(line, shown));
}

static result run_one(
    const struct swarm_eval_drive *drive,
    const struct swarm_eval_cell *cell,
    struct swarm_eval_result *out,
    struct error *error
) {
    const struct swarm_eval_plan *plan = swarm_eval_plan(drive->eval);
    bool is_timed = cell->budget == SWARM_EVAL_TIME;
    const struct swarm_eval_order order = {
        .item = &drive->folder->items[cell->task],
        .setting = &swarm_eval_settings[cell->setting],
        .time_ms_max = is_timed ? plan->limits[SWARM_EVAL_TIME] : SWARM_EVAL_TOKENS_TIME_MS,
        .tokens_max = is_timed ? 0 : plan->limits[SWARM_EVAL_TOKENS],
        .seed = swarm_eval_seed(drive->eval, cell),
    };
    struct swarm_eval_result found = {0};
    struct error why = {0};
    result made = drive->port->run(drive->port->context, &order, &found, &why);
    if (made.code == RESULT_CANCELLED) {
        FAIL(error, CANCELLED, "interrupted: the same command goes on");
    }
    if (is_failed(made)) {
        struct view text = view_slice(view_of_text(why.message), 0, sizeof found.fault - 1);
        text = view_slice(text, 0, utf8_valid_prefix(text));
        found = (struct swarm_eval_result){0};
        int length = snprintf(
            found.fault,
            sizeof found.fault,
            "%.*s",
            VIEW_ARGUMENTS(text.length > 0 ? text : view_of_text("unknown"))
        );
        ASSERT(length > 0);
    }
    *out = found;
    return OK;
}

static result write_lines(
    const struct swarm_eval_drive *drive, int fd, struct buffer *lines, struct error *error
) {
    TRY(write_all(fd, buffer_view(lines), drive->path, error));
    buffer_clear(lines);
    return OK;
}

/* Lines of faults wait until a run works: runs of a streak that ends it all are made again the next time. */
static result run_all(const struct swarm_eval_drive *drive, int fd, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer lines;
    struct progress progress = {.start_ms = drive->port->now_ms(drive->port->context)};
    struct swarm_eval_cell cell;
    size_t faults = 0;
    buffer_init(&lines, SWARM_EVAL_LINE_MAX * SWARM_EVAL_FAULTS_MAX);
    while (swarm_eval_next(drive->eval, &cell)) {
        struct swarm_eval_result found;
        TRY(run_one(drive, &cell, &found, error));
        faults = found.fault[0] != '\0' ? faults + 1 : 0;
        if (faults == SWARM_EVAL_FAULTS_MAX) {
            FAIL(error, LIMIT, "%zu runs in a row could not be made: %s", faults, found.fault);
        }
        TRY(swarm_eval_write_line(drive->eval, &cell, &found, &lines, error));
        if (faults == 0) {
            TRY(write_lines(drive, fd, &lines, error));
        }
        swarm_eval_add(drive->eval, &cell, &found);
        progress.made++;
        say(drive, &progress, &cell, &found);
    }
    return write_lines(drive, fd, &lines, error);
}

result swarm_eval_drive(const struct swarm_eval_drive *drive, struct error *error) {
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_file(drive, &fd, error));
    return run_all(drive, fd, error);
}
