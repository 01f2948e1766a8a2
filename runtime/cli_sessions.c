/* hearth sessions list: what was recorded; and what the commands of sessions share. Reads beside a running
 * writer. */
#include "cli_sessions.h"
#include "lines.h"

#include "sandbox/sandbox.h"
#include "sessions/session.h"
#include <inttypes.h>
#include <time.h>

#define COLUMN_TASK_BYTES 60
#define ID_BYTES_SHOWN    18 /* its time, and enough of what is random */
#define TIME_BYTES_SHOWN  16 /* to the minute */

static result open_as(
    const char *state, enum sessions_use use, struct session_store **store, struct error *error
) {
    const struct session_store_options options = {
        .state_dir = state,
        .mode = use == SESSIONS_WRITE ? SESSION_READ_WRITE : SESSION_READ_ONLY,
        .keeps_writers_out = use == SESSIONS_READ_ALONE,
        .program = "hearth sessions",
        .clock = clock_real(),
    };
    return session_store_open(store, &options, error);
}

int sessions_open(
    const struct cli_arguments *arguments,
    enum sessions_use use,
    struct session_store **store,
    bool *is_empty
) {
    CLEANUP(buffer_deinit) struct buffer state = {0};
    struct error error = {0};
    enum sessions_use first = use == SESSIONS_WRITE ? SESSIONS_READ : use;
    result opened = cli_state(arguments, false, &state, &error);
    if (is_ok(opened)) {
        opened = open_as(buffer_text(&state), first, store, &error);
    }
    /* A writer makes what is not there, and brings up an old schema. */
    if (use == SESSIONS_WRITE && (is_ok(opened) || opened.code == RESULT_UNSUPPORTED)) {
        session_store_cleanup(store);
        opened = open_as(buffer_text(&state), use, store, &error);
    }
    if (opened.code == RESULT_NOT_FOUND && is_empty != NULL) {
        *is_empty = true;
        return STATUS_DATA;
    }
    return is_failed(opened) ? cli_fail_error(opened, &error) : STATUS_DONE;
}

int sessions_print(result made, const struct error *error, const struct buffer *text) {
    if (is_failed(made)) {
        return cli_fail_error(made, error);
    }
    return cli_print(buffer_view(text)) ? STATUS_DONE : STATUS_DATA;
}

result sessions_put_text(struct buffer *out, struct view text, struct error *error) {
    return sandbox_sanitise(text, 0, out, error);
}

void sessions_time_text(int64_t milliseconds, char out[32]) {
    time_t seconds = (time_t)(milliseconds / 1000);
    struct tm local;
    out[0] = '\0';
    if (localtime_r(&seconds, &local) != NULL &&
        strftime(out, 32, "%Y-%m-%d %H:%M:%S", &local) == 0) {
        out[0] = '\0';
    }
}

/* ---- list ----------------------------------------------------------------------------------- */

static const struct cli_option list_options[] = {
    {"count", 'n', "N", "at most N sessions, the newest ones (default: 20)"},
    {"task", 0, "TEXT", "only those whose task contains TEXT"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"json", 0, NULL, "one JSON object a line"},
};

/* On a terminal one row, with as much of the id as names the session and of the task as fits. */
static result list_row(
    struct buffer *out, const struct session_summary *session, int width, struct error *error
) {
    char created[32];
    sessions_time_text(session->created_ms, created);
    CLEANUP(buffer_deinit) struct buffer task;
    buffer_init(&task, BUFFER_CEILING_DEFAULT);
    struct view first = session->begin.task;
    size_t newline = view_find(first, view_of_text("\n"), 0);
    first = view_slice(first, 0, newline == SIZE_MAX ? first.length : newline);
    first = view_slice(first, 0, width > 0 ? first.length : COLUMN_TASK_BYTES);
    first.length = utf8_valid_prefix(first);
    TRY(sessions_put_text(&task, first, error));
    CLEANUP(buffer_deinit) struct buffer row;
    buffer_init(&row, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(
        &row,
        error,
        "%.*s  %.*s  %-11s %3" PRId64 " turns  %s",
        width > 0 ? ID_BYTES_SHOWN : SESSION_ID_LENGTH,
        session->id.text,
        width > 0 ? TIME_BYTES_SHOWN : (int)sizeof created,
        created,
        session_status_name(session->status),
        session->usage.turns,
        buffer_text(&task)
    ));
    struct view shown = buffer_view(&row);
    TRY(buffer_append(out, width > 0 ? text_in_columns(shown, width) : shown, error));
    return buffer_append_byte(out, '\n', error);
}

static result
list_write(const struct session_list *list, bool as_json, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < list->count; i++) {
        if (!as_json) {
            TRY(list_row(out, &list->sessions[i], cli_width(), error));
            continue;
        }
        struct json_writer writer;
        json_writer_init(&writer, out, error);
        session_summary_write(&writer, &list->sessions[i]);
        TRY(json_writer_finish(&writer));
        TRY(buffer_append_text(out, "\n", error));
    }
    if (!as_json && list->count == 0) {
        return buffer_append_text(out, "no sessions\n", error);
    }
    if (!as_json && list->is_cut) {
        return buffer_append_text(out, "... and older ones (--count N)\n", error);
    }
    return OK;
}

static int sessions_list(const struct cli_arguments *arguments) {
    int64_t count = 20;
    if (!cli_i64(arguments, "count", 1, SESSION_LIST_COUNT_MAX, &count)) {
        return STATUS_USAGE;
    }
    const char *task = cli_value(arguments, "task");
    const struct session_filter filter = {
        .count_max = (size_t)count,
        .task_part = view_of_text(task),
    };
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    bool is_empty = false;
    int status = sessions_open(arguments, SESSIONS_READ, &store, &is_empty);
    if (is_empty) { /* no session is no failure of a list */
        return cli_has(arguments, "json") || cli_print(view_of_text("no sessions\n")) ? STATUS_DONE
                                                                                      : STATUS_DATA;
    }
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    result made = session_list_load(store, &filter, &list, &error);
    if (is_ok(made)) {
        made = list_write(list, cli_has(arguments, "json"), &text, &error);
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_list = {
    .path = "sessions list",
    .operands = "",
    .summary = "recorded sessions, newest first",
    .options = list_options,
    .option_count = COUNT_OF(list_options),
    .run = sessions_list,
};
