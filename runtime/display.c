/* Plain lines and the live view: the same lines, the latter wrapped to the width, with colour and a
 * status line below them.
 *
 * The status line sits under a line that is still being written. To go on with that line, the
 * cursor goes back up to its column, which is known because every line is wrapped here, before the
 * terminal would. Text that streams in is collected and drawn with the next tick of the clock. In
 * plain lines everything that differs between two equal runs stands on lines that begin with "#".
 */
#include "display.h"

#include "sandbox/sandbox.h"
#include <inttypes.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#define RESULT_LINES_HEAD 4
#define RESULT_LINES_TAIL 4
#define LINE_BYTES_MAX    400 /* of one shown line of a tool */
#define STATUS_BYTES      320

enum style { STYLE_TEXT, STYLE_DIM, STYLE_CALL, STYLE_GOOD, STYLE_BAD };

struct display {
    struct display_options options;
    struct output *output;
    int column;                /* of the line that is being written */
    bool has_status;           /* the status line is on the screen */
    enum run_event_type block; /* what is being streamed: REASONING or CONTENT */
    bool in_block;
    struct buffer pending; /* streamed text not drawn yet */
    struct run_status status;
    bool status_is_known;
};

struct display_options display_options_for(int fd, bool json) {
    struct display_options options = {.form = DISPLAY_PLAIN, .width = 80};
    const char *term = getenv("TERM");
    if (json) {
        options.form = DISPLAY_JSON;
        return options;
    }
    if (isatty(fd) != 1 || term == NULL || strcmp(term, "dumb") == 0) {
        return options;
    }
    options.form = DISPLAY_TERMINAL;
    const char *no_colour = getenv("NO_COLOR");
    options.has_colour = no_colour == NULL || no_colour[0] == '\0';
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        options.width = size.ws_col;
    }
    return options;
}

result display_create(
    struct display **out,
    const struct display_options *options,
    struct output *output,
    struct error *error
) {
    struct display *display = calloc(1, sizeof *display);
    if (display == NULL) {
        FAIL(error, MEMORY, "no memory for a display");
    }
    display->options = *options;
    display_set_width(display, options->width);
    display->output = output;
    buffer_init(&display->pending, OUTPUT_BYTES_MAX);
    *out = display;
    return OK;
}

void display_destroy(struct display *display) {
    if (display != NULL) {
        buffer_deinit(&display->pending);
        free(display);
    }
}

void display_set_width(struct display *display, int width) {
    display->options.width = width <= 0 ? 80 : width < 20 ? 20 : width;
}

/* ---- characters ----------------------------------------------------------------------------- */

static void put_bytes(struct display *display, struct view bytes) {
    output_append(display->output, bytes);
}

static void put_raw(struct display *display, const char *text) {
    put_bytes(display, view_of_text(text));
}

static bool is_live(const struct display *display) {
    return display->options.form == DISPLAY_TERMINAL;
}

static const char *style_code(enum style style) {
    static const char *const codes[] = {
        [STYLE_TEXT] = "",
        [STYLE_DIM] = "\x1b[2m",
        [STYLE_CALL] = "\x1b[1;36m",
        [STYLE_GOOD] = "\x1b[1;32m",
        [STYLE_BAD] = "\x1b[1;31m",
    };
    return codes[style];
}

static void style_begin(struct display *display, enum style style) {
    if (display->options.has_colour) {
        put_raw(display, style_code(style));
    }
}

static void style_end(struct display *display, enum style style) {
    if (display->options.has_colour && style != STYLE_TEXT) {
        put_raw(display, "\x1b[0m");
    }
}

static int columns_of(uint32_t code_point) {
    int columns = wcwidth((wchar_t)code_point);
    return columns < 0 ? 1 : columns;
}

/* Writes harmless text; each line begins with `prefix`, long ones are wrapped on a terminal. */
static void
put_text(struct display *display, enum style style, const char *prefix, struct view text) {
    style_begin(display, style);
    size_t at = 0;
    while (at < text.length) {
        uint32_t code_point = 0;
        struct view rest = view_slice(text, at, text.length - at);
        size_t length = utf8_decode(rest, &code_point);
        length = length == 0 ? 1 : length;
        at += length;
        if (code_point == '\n') {
            put_raw(display, "\n");
            display->column = 0;
            continue;
        }
        /* A tab's width depends on where it is, so it is shown as blanks. */
        int columns = code_point == '\t' ? 4 : columns_of(code_point);
        if (is_live(display) && display->column + columns > display->options.width - 2) {
            put_raw(display, "\n");
            display->column = 0;
        }
        if (display->column == 0) {
            put_raw(display, prefix);
            display->column = (int)strlen(prefix);
        }
        put_bytes(display, code_point == '\t' ? view_of_text("    ") : view_slice(rest, 0, length));
        display->column += columns;
    }
    style_end(display, style);
}

static void
put_line(struct display *display, enum style style, const char *prefix, struct view text) {
    put_text(display, style, prefix, text);
    put_text(display, style, prefix, view_of_text("\n"));
}

PRINTF_LIKE(3, 4)
static void put_format(struct display *display, enum style style, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, OUTPUT_BYTES_MAX);
    /* Without memory the line is left out; the run goes on. */
    result_ignore(sandbox_sanitise(view_of_text(text), 0, &harmless, NULL));
    put_line(display, style, "", buffer_view(&harmless));
}

static void end_line(struct display *display) {
    if (display->column != 0) {
        put_raw(display, "\n");
        display->column = 0;
    }
}

/* ---- status line ---------------------------------------------------------------------------- */

static void status_erase(struct display *display) {
    if (!display->has_status) {
        return;
    }
    display->has_status = false;
    put_raw(display, "\r\x1b[K");
    if (display->column != 0) {
        char back[32];
        int length = snprintf(back, sizeof back, "\x1b[1A\x1b[%dG", display->column + 1);
        ASSERT(length > 0);
        put_raw(display, back);
    }
}

static int status_text(const struct run_status *status, char text[STATUS_BYTES]) {
    char left[48] = "";
    int length = 0;
    if (status->time_left_ms >= 0) {
        int64_t seconds = status->time_left_ms / 1000;
        length = snprintf(
            left, sizeof left, " | %" PRId64 ":%02" PRId64 " left", seconds / 60, seconds % 60
        );
        ASSERT(length > 0);
    }
    char progress[48] = "";
    if (status->prefill_total > 0) {
        length = snprintf(
            progress, sizeof progress, " %d/%d", status->prefill_done, status->prefill_total
        );
        ASSERT(length > 0);
    }
    return snprintf(
        text,
        STATUS_BYTES,
        "turn %d/%d %s%s | %" PRId64 " tok | %.0f/s | %" PRId64 " reused%s | context %d/%d",
        status->turn,
        status->turns_max,
        status->activity != NULL ? status->activity : "",
        progress,
        status->tokens_sampled,
        status->tokens_per_second,
        status->reused_tokens,
        left,
        status->context_tokens,
        status->context_max
    );
}

static void status_draw(struct display *display) {
    if (!is_live(display) || !display->status_is_known || display->has_status) {
        return;
    }
    char text[STATUS_BYTES];
    int length = status_text(&display->status, text);
    ASSERT(length > 0);
    size_t columns = (size_t)display->options.width - 1;
    struct view line = view_slice(view_of_text(text), 0, columns); /* ASCII: bytes are columns */
    if (display->column != 0) {
        put_raw(display, "\n");
    }
    put_raw(display, display->options.has_colour ? "\x1b[7m" : "");
    put_bytes(display, line);
    put_raw(display, display->options.has_colour ? "\x1b[0m" : "");
    display->has_status = true;
}

/* ---- streamed text -------------------------------------------------------------------------- */

static void draw_pending(struct display *display) {
    if (display->pending.length == 0) {
        return;
    }
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, OUTPUT_BYTES_MAX);
    struct view text = buffer_view(&display->pending);
    if (is_ok(sandbox_sanitise(text, 0, &harmless, NULL))) {
        bool is_reasoning = display->block == RUN_REASONING;
        put_text(
            display,
            is_reasoning ? STYLE_DIM : STYLE_TEXT,
            is_reasoning ? "~ " : "",
            buffer_view(&harmless)
        );
    }
    buffer_clear(&display->pending);
}

static void block_end(struct display *display) {
    draw_pending(display);
    end_line(display);
    display->in_block = false;
}

static void block_text(struct display *display, const struct run_event *event) {
    if (display->in_block && display->block != event->type) {
        status_erase(display);
        block_end(display);
    }
    display->in_block = true;
    display->block = event->type;
    /* Without memory some text is not shown; it is recorded all the same. */
    result_ignore(buffer_append(&display->pending, event->text, NULL));
}

/* ---- tools ---------------------------------------------------------------------------------- */

static size_t count_lines(struct view text) {
    size_t lines = text.length > 0 ? 1 : 0;
    for (size_t i = 0; i + 1 < text.length; i++) {
        lines += text.data[i] == '\n' ? 1 : 0;
    }
    return lines;
}

/* The first and last few lines of a text. */
static void
put_excerpt(struct display *display, enum style style, const char *prefix, struct view text) {
    size_t lines = count_lines(text);
    struct cursor cursor = cursor_over(text);
    for (size_t i = 0; i < lines; i++) {
        struct view line;
        if (!cursor_take_until(&cursor, '\n', &line)) {
            line = view_slice(text, cursor.at, text.length - cursor.at);
        }
        /* A note in place of a single line would save nothing. */
        bool is_head = i < RESULT_LINES_HEAD || lines <= RESULT_LINES_HEAD + RESULT_LINES_TAIL + 1;
        bool is_tail = i + RESULT_LINES_TAIL >= lines;
        if (is_head || is_tail) {
            bool is_long = line.length > LINE_BYTES_MAX;
            struct view shown = view_slice(line, 0, LINE_BYTES_MAX);
            shown.length = utf8_valid_prefix(shown);
            if (shown.length == 0) {
                put_line(display, style, "", view_of_text(prefix));
                continue;
            }
            put_text(display, style, prefix, shown);
            put_line(display, style, prefix, view_of_text(is_long ? " ..." : ""));
        } else if (i == RESULT_LINES_HEAD) {
            char note[64];
            int length = snprintf(
                note,
                sizeof note,
                "... %zu more lines ...",
                lines - RESULT_LINES_HEAD - RESULT_LINES_TAIL
            );
            ASSERT(length > 0);
            put_line(display, style, prefix, view_of_text(note));
        }
    }
}

static void put_harmless_excerpt(
    struct display *display, enum style style, const char *prefix, struct view text
) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, OUTPUT_BYTES_MAX);
    if (is_ok(sandbox_sanitise(text, 0, &harmless, NULL))) {
        put_excerpt(display, style, prefix, buffer_view(&harmless));
    }
}

/* "> shell python3 test.py": the first string argument in the line, further ones below it. */
static void put_call(struct display *display, const struct chat_call *call) {
    CLEANUP(buffer_deinit) struct buffer head;
    buffer_init(&head, OUTPUT_BYTES_MAX);
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct view value = call->arguments;
    struct json_value member = {0};
    if (is_ok(json_parse(call->arguments, NULL, &document, NULL))) {
        member = json_first(json_root(document));
        value = json_as_string(member, &value) ? value : json_raw(member);
    }
    result_ignore(buffer_append(&head, call->name, NULL)); /* shown shorter without memory */
    result_ignore(buffer_append_text(&head, " ", NULL));
    result_ignore(buffer_append(&head, value, NULL));
    put_harmless_excerpt(display, STYLE_CALL, "> ", buffer_view(&head));
    while (json_type(member = json_next(member)) != JSON_ABSENT) {
        value = json_as_string(member, &value) ? value : json_raw(member);
        char prefix[40];
        struct view name = json_name(member);
        bool is_old = view_equals_text(name, "old");
        bool is_new = view_equals_text(name, "new");
        int length = snprintf(
            prefix,
            sizeof prefix,
            "  %.*s ",
            is_old || is_new ? 1 : (int)(name.length > 30 ? 30 : name.length),
            is_old   ? "-"
            : is_new ? "+"
                     : (const char *)name.data
        );
        ASSERT(length > 0);
        put_harmless_excerpt(display, STYLE_TEXT, prefix, value);
    }
}

static void put_result(struct display *display, const struct tool_result *tool) {
    struct view text = buffer_view(&tool->text);
    put_harmless_excerpt(display, STYLE_DIM, "  | ", text);
    if (tool->status == TOOL_TIMEOUT || tool->status == TOOL_CANCELLED) {
        put_format(display, STYLE_BAD, "  | (%s)", tool_status_name(tool->status));
    }
}

/* ---- begin and end -------------------------------------------------------------------------- */

static void put_session(struct display *display, const struct run_event *event) {
    put_format(
        display, STYLE_DIM, "# session %s, seed %" PRIu64, event->session_id, event->sampling->seed
    );
    put_format(
        display, STYLE_DIM, "# model %.*s, %s", VIEW_ARGUMENTS(event->model), event->engine->backend
    );
    put_format(display, STYLE_DIM, "# workspace %.*s", VIEW_ARGUMENTS(event->workspace));
    if (event->is_resumed) {
        put_format(
            display,
            STYLE_DIM,
            "# goes on after turn %d with %d recorded tokens",
            event->status->turns_before,
            event->context_tokens
        );
    }
    put_harmless_excerpt(display, STYLE_TEXT, "task: ", event->task);
}

static void put_change(struct display *display, const struct workspace_file_change *file) {
    static const char marks[] = {
        [WORKSPACE_ADDED] = 'A',
        [WORKSPACE_DELETED] = 'D',
        [WORKSPACE_MODIFIED] = 'M',
        [WORKSPACE_TYPE] = 'T',
    };
    if (file->binary) {
        put_format(display, STYLE_TEXT, " %c %.600s | binary", marks[file->change], file->path);
        return;
    }
    put_format(
        display,
        STYLE_TEXT,
        " %c %.600s | +%zu -%zu",
        marks[file->change],
        file->path,
        file->lines_added,
        file->lines_removed
    );
}

static void put_changes(struct display *display, const struct workspace_difference *difference) {
    if (difference->file_count == 0) {
        put_format(display, STYLE_TEXT, "%s", "no file changed");
        return;
    }
    put_format(
        display,
        STYLE_TEXT,
        "%zu file%s changed, %zu line%s added, %zu removed",
        difference->file_count,
        difference->file_count == 1 ? "" : "s",
        difference->lines_added,
        difference->lines_added == 1 ? "" : "s",
        difference->lines_removed
    );
    for (size_t i = 0; i < difference->file_count && i < 20; i++) {
        put_change(display, &difference->files[i]);
    }
    if (difference->file_count > 20) {
        put_format(display, STYLE_TEXT, " ... and %zu more", difference->file_count - 20);
    }
}

/* How many drafts were tried depends on what they cost, so on the clock. */
static void put_drafts(struct display *display, const struct run_status *status) {
    if (status->drafted_tokens > 0) {
        put_format(
            display,
            STYLE_DIM,
            "# drafted %" PRId64 ", accepted %" PRId64,
            status->drafted_tokens,
            status->accepted_tokens
        );
    }
    if (status->preempted > 0) {
        put_format(
            display,
            STYLE_DIM,
            "# waited %" PRId64 " time%s for a more urgent one",
            status->preempted,
            status->preempted == 1 ? "" : "s"
        );
    }
}

static void put_finished(struct display *display, const struct run_event *event) {
    const struct run_status *status = event->status;
    int32_t turns = status->turn - status->turns_before;
    bool has_detail = event->detail[0] != '\0';
    put_format(
        display,
        event->exit_status == 0 ? STYLE_GOOD : STYLE_BAD,
        "%s%s%s%s",
        event->stop_text,
        has_detail ? " (" : "",
        event->detail,
        has_detail ? ")" : ""
    );
    put_format(
        display,
        STYLE_TEXT,
        "%d turn%s, %" PRId64 " tokens written",
        turns,
        turns == 1 ? "" : "s",
        status->tokens_sampled
    );
    /* What is reused depends on what earlier runs left in the cache. */
    put_format(
        display,
        STYLE_DIM,
        "# prompts: %" PRId64 " tokens reused, %" PRId64 " evaluated, %" PRId64 " rebuilt",
        status->reused_tokens,
        status->evaluated_tokens,
        status->rebuilt_tokens
    );
    put_drafts(display, status);
    put_format(
        display,
        STYLE_DIM,
        "# %.2f s, %.0f tokens/s in the last turn",
        (double)event->duration_ms / 1000.0,
        status->tokens_per_second
    );
    if (event->session_id[0] != '\0') {
        put_format(
            display,
            STYLE_DIM,
            "# next: hearth sessions show %s%s",
            event->session_id,
            event->state_option
        );
    }
    if (event->session_id[0] != '\0' && event->exit_status != 0) {
        put_format(
            display,
            STYLE_DIM,
            "# go on: hearth run --resume %s%s",
            event->session_id,
            event->state_option
        );
    }
}

/* 5,321 */
static const char *grouped(int32_t number, char out[16]) {
    char digits[16];
    int length = snprintf(digits, sizeof digits, "%d", number);
    ASSERT(length > 0 && number >= 0);
    size_t at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) {
            out[at++] = ',';
        }
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

/* What the first generation of a resumed session did not have to evaluate, and why not more. */
static void put_resumed(struct display *display, const struct generation_facts *facts) {
    char numbers[7][16];
    char disk[48] = "";
    char host[48] = "";
    char rebuilt[64] = "";
    char miss[96] = "";
    int length = 0;
    if (facts->restored_disk > 0) {
        length = snprintf(
            disk, sizeof disk, "%s restored from disk, ", grouped(facts->restored_disk, numbers[0])
        );
    }
    if (facts->restored_host > 0) {
        length = snprintf(
            host, sizeof host, "%s from host memory, ", grouped(facts->restored_host, numbers[1])
        );
    }
    if (facts->rebuilt > 0) {
        bool is_approximate =
            facts->window_source != NULL && strcmp(facts->window_source, "replay") == 0;
        length = snprintf(
            rebuilt,
            sizeof rebuilt,
            ", windows %s from %s",
            is_approximate ? "replayed (approximate)" : "rebuilt",
            grouped(facts->rebuilt_from, numbers[2])
        );
    }
    if (facts->miss != NULL && strcmp(facts->miss, "none") != 0) {
        length = snprintf(
            miss,
            sizeof miss,
            "; missed at token %s: %s",
            grouped(facts->miss_token, numbers[3]),
            facts->miss
        );
    }
    ASSERT(length >= 0);
    for (char *at = miss; *at != '\0'; at++) {
        *at = *at == '_' ? ' ' : *at;
    }
    put_format(
        display,
        STYLE_DIM,
        "# resumed: %s tokens of context, %s%s%s evaluated%s%s",
        grouped(facts->prompt_tokens, numbers[4]),
        disk,
        host,
        grouped(facts->evaluated, numbers[5]),
        rebuilt,
        miss
    );
}

/* ---- events --------------------------------------------------------------------------------- */

/* Which guard ended a turn; the model is told in a message of its own. */
static void put_cut(struct display *display, enum finish_reason reason) {
    const char *why = reason == FINISH_LOOP        ? "it repeats one text (--max-repeats)"
                      : reason == FINISH_THINKING  ? "its thinking did not end (--max-thinking)"
                      : reason == FINISH_OPEN_CALL ? "its block of calls did not end (--max-call)"
                                                   : NULL;
    if (why != NULL) {
        put_format(display, STYLE_BAD, "! The turn was ended: %s.", why);
    }
}

/* What put_cut says of the same turn in the words of its option. */
static bool is_said_by_cut(const struct run_event *event) {
    bool is_end = event->problem == CHAT_PROBLEM_THINKING_UNCLOSED ||
                  event->problem == CHAT_PROBLEM_BLOCK_UNCLOSED ||
                  event->problem == CHAT_PROBLEM_END_MISSING;
    return is_end && (event->reason == FINISH_LOOP || event->reason == FINISH_THINKING ||
                      event->reason == FINISH_OPEN_CALL);
}

static void put_event(struct display *display, const struct run_event *event) {
    if (event->type == RUN_SESSION) {
        put_session(display, event);
    } else if (event->type == RUN_PROBLEM && is_said_by_cut(event)) {
        return;
    } else if (event->type == RUN_PROBLEM) {
        put_format(
            display,
            STYLE_BAD,
            "! %s%s%.*s",
            chat_problem_text(event->problem),
            event->text.length > 0 ? " " : "",
            VIEW_ARGUMENTS(event->text)
        );
    } else if (event->type == RUN_USAGE) {
        put_cut(display, event->reason);
    } else if (event->type == RUN_TOOL_CALL) {
        put_call(display, event->call);
    } else if (event->type == RUN_TOOL_RESULT) {
        put_result(display, event->tool);
    } else if (event->type == RUN_CHANGES) {
        put_changes(display, event->difference);
    } else if (event->type == RUN_NOTE) {
        put_format(display, STYLE_DIM, "# %.*s", VIEW_ARGUMENTS(event->text));
    } else if (event->type == RUN_RESUMED) {
        put_resumed(display, event->facts);
    } else if (event->type == RUN_WARNING) {
        put_format(display, STYLE_BAD, "# warning: %.*s", VIEW_ARGUMENTS(event->text));
    } else if (event->type == RUN_STUCK) {
        put_format(
            display,
            STYLE_BAD,
            "# stuck for %" PRId64 " s: %s",
            event->stuck->stuck_ms / 1000,
            event->stuck->why
        );
    } else if (event->type == RUN_FINISHED) {
        put_finished(display, event);
    }
}

void display_event(struct display *display, const struct run_event *event) {
    if (display->options.form == DISPLAY_JSON) {
        CLEANUP(buffer_deinit) struct buffer line;
        buffer_init(&line, OUTPUT_BYTES_MAX);
        /* A line that does not fit into memory is left out whole; the record has it. */
        if (is_ok(display_json_event(&line, event, NULL))) {
            output_append(display->output, buffer_view(&line));
        }
        return;
    }
    if (event->type == RUN_TOKEN || event->type == RUN_STATISTICS) {
        return;
    }
    display->status = *event->status;
    display->status_is_known = true;
    if (event->type == RUN_REASONING || event->type == RUN_CONTENT) {
        block_text(display, event);
        return;
    }
    status_erase(display);
    if (event->type != RUN_TURN) {
        block_end(display);
    }
    put_event(display, event);
    status_draw(display);
}

void display_status(struct display *display, const struct run_status *status) {
    if (display->options.form == DISPLAY_JSON) {
        return;
    }
    display->status = *status;
    display->status_is_known = true;
    if (!is_live(display)) {
        return;
    }
    status_erase(display);
    draw_pending(display);
    status_draw(display);
}

void display_end(struct display *display) {
    if (display->options.form == DISPLAY_JSON) {
        return;
    }
    status_erase(display);
    block_end(display);
    display->status_is_known = false;
}
