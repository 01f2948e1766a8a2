/* The live view: lines that stay, and below them what is unfinished, the input and the status line.
 *
 * A block of the model's text is shown as it streams in, unformatted, in a few rows; when it has
 * ended it is formatted and stays. Thinking is one line unless it is unfolded; of a tool's output
 * the last lines are seen until its result is there.
 */
#include "display_internal.h"

#include "markdown.h"
#include "screen.h"
#include "status_line.h"

#include "sandbox/sandbox.h"

#define WIDTH_MIN          20
#define HEIGHT_MIN         6
#define TAIL_ROWS_MAX      8
#define TOOL_ROWS_MAX      5
#define PROMPT_BYTES_MAX   ((size_t)32 << 10)
#define THINKING_BYTES_MAX ((size_t)256 << 10) /* kept to be unfolded; the rest is in the record */
#define TOOL_BYTES_MAX     ((size_t)8 << 10)   /* of its output, the last */
#define QUEUED_BYTES_MAX   ((size_t)4 << 10)
#define THOUGHT            "~ "

struct live {
    struct output *output;
    struct screen *screen;
    struct markdown *markdown;
    struct lines lines;        /* that stay, until they are given to the screen */
    struct lines rows;         /* scratch, to wrap what is drawn */
    enum run_event_type block; /* what is being streamed: REASONING or CONTENT */
    bool in_block;
    struct buffer thinking; /* of this turn or the last one */
    size_t thinking_bytes;  /* all of it */
    size_t thinking_shown;  /* of `thinking`, in lines that stay */
    bool is_unfolded;
    struct buffer tool; /* output of the tool that runs */
    bool in_tool;
    struct buffer queued; /* messages that wait, a line each */
    struct buffer prompt;
    size_t prompt_row;
    int prompt_column;
    struct run_status status;
    bool has_status, is_paused, is_ended;
};

static void set_size(struct live *live, int width, int height) {
    width = width <= 0 ? 80 : width < WIDTH_MIN ? WIDTH_MIN : width;
    height = height <= 0 ? 24 : height < HEIGHT_MIN ? HEIGHT_MIN : height;
    live->lines.width = width;
    live->rows.width = width;
    if (live->screen != NULL) {
        screen_set_size(live->screen, width, height);
    }
}

result live_create(
    struct live **out,
    const struct display_options *options,
    struct output *output,
    struct error *error
) {
    struct live *live = calloc(1, sizeof *live);
    if (live == NULL) {
        FAIL(error, MEMORY, "no memory for a live view");
    }
    live->output = output;
    lines_init(&live->lines, 80, options->has_colour);
    lines_init(&live->rows, 80, options->has_colour);
    buffer_init(&live->thinking, THINKING_BYTES_MAX);
    buffer_init(&live->tool, 2 * TOOL_BYTES_MAX);
    buffer_init(&live->queued, QUEUED_BYTES_MAX);
    buffer_init(&live->prompt, PROMPT_BYTES_MAX);
    result created = screen_create(&live->screen, output, 80, 24, error);
    if (is_ok(created)) {
        created = markdown_create(&live->markdown, error);
    }
    if (is_failed(created)) {
        live_destroy(live);
        return created;
    }
    if (options->keeps_markdown) {
        markdown_keep_source(live->markdown);
    }
    set_size(live, options->width, options->height);
    *out = live;
    return OK;
}

void live_destroy(struct live *live) {
    if (live != NULL) {
        screen_destroy(live->screen);
        markdown_destroy(live->markdown);
        lines_deinit(&live->lines);
        lines_deinit(&live->rows);
        buffer_deinit(&live->thinking);
        buffer_deinit(&live->tool);
        buffer_deinit(&live->queued);
        buffer_deinit(&live->prompt);
        free(live);
    }
}

int live_width(const struct live *live) {
    return live->lines.width;
}

/* ---- drawing -------------------------------------------------------------------------------- */

static void add_rows(struct live *live, struct view text, size_t rows_max) {
    size_t count = 0;
    for (size_t i = 0; i < text.length; i++) {
        count += text.data[i] == '\n' ? 1 : 0;
    }
    struct cursor cursor = cursor_over(text);
    struct view row;
    for (; cursor_take_until(&cursor, '\n', &row); count--) {
        if (count <= rows_max) {
            screen_add(live->screen, row);
        }
    }
}

/* The last rows of a text, wrapped; of a long one only the end is looked at. */
static void
add_tail(struct live *live, enum style style, const char *prefix, struct view text, size_t rows) {
    size_t bytes_max = (rows + 1) * (size_t)live->rows.width * 4;
    if (text.length > bytes_max) {
        size_t from = text.length - bytes_max;
        while (from < text.length && (text.data[from] & 0xC0) == 0x80) {
            from++;
        }
        text = view_slice(text, from, text.length - from);
    }
    buffer_clear(&live->rows.text);
    live->rows.column = 0;
    /* A row each with a style of its own, since only some are shown. */
    struct cursor cursor = cursor_over(text);
    while (cursor_remaining(&cursor) > 0) {
        struct view line;
        if (!cursor_take_until(&cursor, '\n', &line)) {
            line = view_slice(text, cursor.at, text.length - cursor.at);
            cursor.at = text.length;
        }
        lines_text(&live->rows, STYLE_TEXT, prefix, line);
        lines_raw_text(&live->rows, "\n");
        live->rows.column = 0;
    }
    struct view all = buffer_view(&live->rows.text);
    CLEANUP(buffer_deinit) struct buffer styled;
    buffer_init(&styled, LINES_BYTES_MAX);
    const char *code = lines_style(&live->rows, style);
    cursor = cursor_over(all);
    struct view row;
    while (cursor_take_until(&cursor, '\n', &row)) {
        result_ignore(buffer_append_format(
            &styled, NULL, "%s%.*s%s\n", code, VIEW_ARGUMENTS(row), code[0] != '\0' ? "\x1b[0m" : ""
        ));
    }
    add_rows(live, buffer_view(&styled), rows);
}

static void add_unfinished(struct live *live, size_t rows) {
    if (live->in_block && live->block == RUN_CONTENT) {
        add_tail(live, STYLE_TEXT, "", markdown_tail(live->markdown), rows);
    } else if (live->in_block && live->is_unfolded) {
        size_t from = live->thinking_shown;
        struct view rest =
            view_slice(buffer_view(&live->thinking), from, live->thinking.length - from);
        add_tail(live, STYLE_DIM, THOUGHT, rest, rows);
    } else if (live->in_block) {
        char text[96];
        int length = snprintf(text, sizeof text, "thinking: %zu bytes", live->thinking_bytes);
        ASSERT(length > 0);
        add_tail(live, STYLE_DIM, THOUGHT, view_of_text(text), 1);
    } else if (live->in_tool) {
        add_tail(
            live,
            STYLE_DIM,
            "  | ",
            buffer_view(&live->tool),
            rows < TOOL_ROWS_MAX ? rows : TOOL_ROWS_MAX
        );
    }
}

static void add_status(struct live *live) {
    char text[STATUS_LINE_BYTES];
    status_line_make(&live->status, live->lines.width - 1, text);
    char row[STATUS_LINE_BYTES + 16];
    const char *code = lines_style(&live->lines, STYLE_STATUS);
    int length = snprintf(row, sizeof row, "%s%s%s", code, text, code[0] != '\0' ? "\x1b[0m" : "");
    ASSERT(length >= 0);
    screen_add(live->screen, view_of_text(row));
}

static size_t count_rows(struct view text) {
    size_t count = 0;
    for (size_t i = 0; i < text.length; i++) {
        count += text.data[i] == '\n' ? 1 : 0;
    }
    return count;
}

void live_draw(struct live *live) {
    if (live->is_paused || live->is_ended) {
        return;
    }
    if (live->lines.text.length > 0) {
        screen_print(live->screen, buffer_view(&live->lines.text));
        buffer_clear(&live->lines.text);
    }
    size_t prompt_rows = count_rows(buffer_view(&live->prompt));
    size_t room = (size_t)screen_height(live->screen) - 3;
    room = room > prompt_rows ? room - prompt_rows : 1;
    screen_begin(live->screen);
    add_unfinished(live, room < TAIL_ROWS_MAX ? room : TAIL_ROWS_MAX);
    add_tail(live, STYLE_DIM, "queued: ", buffer_view(&live->queued), 3);
    add_rows(live, buffer_view(&live->prompt), SCREEN_ROWS_MAX);
    size_t below = screen_row_count(live->screen);
    if (live->has_status) {
        add_status(live);
    }
    if (prompt_rows > 0) {
        size_t rows = screen_row_count(live->screen);
        below = rows < below + 1 ? rows - (live->has_status ? 1 : 0) : below;
        size_t first = below >= prompt_rows ? below - prompt_rows : 0;
        screen_set_cursor(live->screen, first + live->prompt_row, live->prompt_column);
    }
    screen_draw(live->screen);
}

/* ---- streamed text -------------------------------------------------------------------------- */

/* Unfolded thinking stays line by line. */
static void show_thinking(struct live *live, bool with_rest) {
    struct view text = buffer_view(&live->thinking);
    struct view rest = view_slice(text, live->thinking_shown, text.length - live->thinking_shown);
    size_t end = rest.length;
    while (!with_rest && end > 0 && rest.data[end - 1] != '\n') {
        end--;
    }
    lines_text(&live->lines, STYLE_DIM, THOUGHT, view_slice(rest, 0, end));
    live->thinking_shown += end;
    if (with_rest) {
        lines_end(&live->lines);
    }
}

/* One line: the thought itself when it fits, else how it begins and its size. */
static void fold_thinking(struct live *live) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, LINES_BYTES_MAX);
    char size[48] = "";
    if (live->thinking_bytes == 0) {
        return;
    }
    struct view begin = view_slice(buffer_view(&live->thinking), 0, 1024);
    begin.length = utf8_valid_prefix(begin);
    if (is_failed(sandbox_sanitise(begin, 0, &harmless, NULL))) {
        return; /* without memory it is not shown */
    }
    while (harmless.length > 0 && strchr("\n ", harmless.data[harmless.length - 1]) != NULL) {
        harmless.length--;
    }
    for (size_t i = 0; i < harmless.length; i++) {
        harmless.data[i] = harmless.data[i] == '\n' ? ' ' : harmless.data[i];
    }
    struct view text = buffer_view(&harmless);
    int room = live->lines.width - 2 - (int)strlen(THOUGHT);
    if (columns_of_text(text) > room || live->thinking_bytes > begin.length) {
        int length = snprintf(size, sizeof size, " ... (%zu bytes)", live->thinking_bytes);
        ASSERT(length > 0);
        text = text_in_columns(text, room > length ? room - length : 0);
    }
    lines_put(&live->lines, STYLE_DIM, THOUGHT, text);
    lines_put_line(&live->lines, STYLE_DIM, THOUGHT, view_of_text(size));
}

static void end_block(struct live *live) {
    if (!live->in_block) {
        return;
    }
    live->in_block = false;
    if (live->block == RUN_CONTENT) {
        markdown_end(live->markdown, &live->lines);
    } else if (live->is_unfolded) {
        show_thinking(live, true);
    } else {
        fold_thinking(live);
    }
}

static void begin_block(struct live *live, enum run_event_type type) {
    if (live->in_block && live->block != type) {
        end_block(live);
    }
    if (!live->in_block && type == RUN_REASONING) {
        buffer_clear(&live->thinking);
        live->thinking_bytes = 0;
        live->thinking_shown = 0;
    }
    live->in_block = true;
    live->block = type;
}

static void stream(struct live *live, const struct run_event *event) {
    begin_block(live, event->type);
    if (event->type == RUN_CONTENT) {
        markdown_append(live->markdown, event->text, &live->lines);
        return;
    }
    live->thinking_bytes += event->text.length;
    /* What does not fit is not shown; it is recorded all the same. */
    result_ignore(buffer_append(&live->thinking, event->text, NULL));
    if (live->is_unfolded) {
        show_thinking(live, false);
    }
}

void live_toggle_thinking(struct live *live) {
    live->is_unfolded = !live->is_unfolded;
    if (live->is_unfolded && live->thinking.length > 0) {
        live->thinking_shown = 0;
        show_thinking(live, !(live->in_block && live->block == RUN_REASONING));
    } else {
        lines_format(
            &live->lines, STYLE_DIM, "# thinking is %s", live->is_unfolded ? "shown" : "folded"
        );
    }
    live_draw(live);
}

/* ---- events --------------------------------------------------------------------------------- */

static void keep_output(struct live *live, struct view text) {
    if (text.length > TOOL_BYTES_MAX) {
        text = view_slice(text, text.length - TOOL_BYTES_MAX, TOOL_BYTES_MAX);
    }
    if (live->tool.length + text.length > 2 * TOOL_BYTES_MAX) {
        buffer_consume(&live->tool, live->tool.length - TOOL_BYTES_MAX / 2);
    }
    result_ignore(buffer_append(&live->tool, text, NULL)); /* not shown without memory */
}

static void queue(struct live *live, struct view text) {
    size_t end = view_find(text, view_of_text("\n"), 0);
    result_ignore(
        buffer_append(&live->queued, view_slice(text, 0, end == SIZE_MAX ? text.length : end), NULL)
    );
    result_ignore(buffer_append_byte(&live->queued, '\n', NULL));
}

/* A message that enters the context is queued no more. */
static void unqueue(struct live *live) {
    size_t end = view_find(buffer_view(&live->queued), view_of_text("\n"), 0);
    if (end != SIZE_MAX) {
        buffer_consume(&live->queued, end + 1);
    }
}

void live_event(struct live *live, const struct run_event *event) {
    live->status = *event->status;
    live->has_status = true;
    if (event->type == RUN_REASONING || event->type == RUN_CONTENT) {
        stream(live, event);
        return;
    }
    if (event->type == RUN_TOOL_OUTPUT) {
        keep_output(live, event->text);
        return;
    }
    if (event->type == RUN_QUEUED) {
        queue(live, event->text);
        live_draw(live);
        return;
    }
    if (event->type != RUN_TURN) {
        end_block(live);
    }
    if (event->type == RUN_USER) {
        unqueue(live);
        lines_raw_text(&live->lines, "\n");
    }
    bool is_answer =
        event->type == RUN_IDLE && event->stop != NULL && strcmp(event->stop, "answer") == 0;
    if (event->type == RUN_TOOL_CALL || event->type == RUN_TOOL_RESULT) {
        live->in_tool = event->type == RUN_TOOL_CALL;
        buffer_clear(&live->tool);
    }
    if (event->type == RUN_EARLIER) {
        display_put_earlier(&live->lines, live->markdown, event);
    } else if (!is_answer) { /* that is seen */
        display_put_event(&live->lines, event);
    }
    live_draw(live);
}

void live_status(struct live *live, const struct run_status *status) {
    live->status = *status;
    live->has_status = true;
    live_draw(live);
}

void live_say(struct live *live, struct view text) {
    lines_end(&live->lines);
    lines_text(&live->lines, STYLE_DIM, "", text);
    lines_end(&live->lines);
    live_draw(live);
}

void live_set_prompt(struct live *live, const struct display_prompt *prompt) {
    buffer_clear(&live->prompt);
    if (prompt != NULL) {
        live->prompt_row = prompt->cursor_row;
        live->prompt_column = prompt->cursor_column;
        result_ignore(buffer_append(&live->prompt, prompt->rows, NULL)
        ); /* not shown without memory */
    }
    live_draw(live);
}

void live_set_size(struct live *live, int width, int height) {
    if (!live->is_paused && !live->is_ended) {
        set_size(live, width, height);
    }
}

void live_pause(struct live *live, bool is_paused) {
    if (is_paused && !live->is_ended) {
        screen_erase(live->screen);
    }
    live->is_paused = is_paused;
    live_draw(live);
}

void live_end(struct live *live) {
    end_block(live);
    live->is_paused = false;
    if (!live->is_ended && live->lines.text.length > 0) {
        screen_print(live->screen, buffer_view(&live->lines.text));
        buffer_clear(&live->lines.text);
    }
    screen_erase(live->screen);
    live->is_ended = true;
}

void live_begin_again(struct live *live) {
    live->is_ended = false;
    live->in_tool = false;
    live->has_status = false;
    live->thinking_bytes = 0;
    live->thinking_shown = 0;
    buffer_clear(&live->thinking);
    buffer_clear(&live->queued);
    buffer_clear(&live->prompt);
    screen_forget(live->screen);
    lines_raw_text(&live->lines, "\n");
}
