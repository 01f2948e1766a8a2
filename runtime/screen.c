/* The cursor is moved relative to where it stands, which is known, since nothing else writes. */
#include "screen.h"

#include "lines.h"

#define PRINTED_BYTES_MAX ((size_t)64 << 20)
#define ROW_BYTES_MAX     ((size_t)64 << 10) /* of all rows */
#define BEHIND_BYTES      2048               /* not written yet: no more is drawn */

/* Rows in one buffer, each ended by a newline. */
struct rows {
    struct buffer text;
    size_t ends[SCREEN_ROWS_MAX]; /* offsets behind each row, without its newline */
    size_t count;
    size_t cursor_row;
    int cursor_column;
};

struct screen {
    struct output *output;
    int width, height;
    struct buffer printed; /* to be seen above the rows */
    struct rows wanted;
    struct rows shown; /* what the terminal shows, with the cursor where it stands */
    struct buffer out;
    bool is_behind;
};

result screen_create(
    struct screen **out, struct output *output, int width, int height, struct error *error
) {
    struct screen *screen = calloc(1, sizeof *screen);
    if (screen == NULL) {
        FAIL(error, MEMORY, "no memory for a screen");
    }
    screen->output = output;
    screen->width = width;
    screen->height = height;
    buffer_init(&screen->printed, PRINTED_BYTES_MAX);
    buffer_init(&screen->wanted.text, ROW_BYTES_MAX);
    buffer_init(&screen->shown.text, ROW_BYTES_MAX);
    buffer_init(&screen->out, PRINTED_BYTES_MAX + 2 * ROW_BYTES_MAX);
    *out = screen;
    return OK;
}

void screen_destroy(struct screen *screen) {
    if (screen != NULL) {
        buffer_deinit(&screen->printed);
        buffer_deinit(&screen->wanted.text);
        buffer_deinit(&screen->shown.text);
        buffer_deinit(&screen->out);
        free(screen);
    }
}

int screen_width(const struct screen *screen) {
    return screen->width;
}

int screen_height(const struct screen *screen) {
    return screen->height;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static struct view row_at(const struct rows *rows, size_t index) {
    ASSERT(index < rows->count);
    size_t from = index == 0 ? 0 : rows->ends[index - 1] + 1;
    return view_slice(buffer_view(&rows->text), from, rows->ends[index] - from);
}

/* Columns of a row without its escapes. */
static int row_columns(struct view row) {
    int columns = 0;
    size_t at = 0;
    while (at < row.length) {
        size_t escape = view_find(row, view_of_text("\x1b"), at);
        size_t end = escape == SIZE_MAX ? row.length : escape;
        columns += columns_of_text(view_slice(row, at, end - at));
        at = end;
        while (at < row.length && row.data[at] != 'm') {
            at++;
        }
        at += at < row.length ? 1 : 0;
    }
    return columns;
}

static void rows_clear(struct rows *rows) {
    buffer_clear(&rows->text);
    rows->count = 0;
    rows->cursor_row = 0;
    rows->cursor_column = 0;
}

static void rows_drop_first(struct rows *rows) {
    size_t bytes = rows->ends[0] + 1;
    buffer_consume(&rows->text, bytes);
    rows->count--;
    for (size_t i = 0; i < rows->count; i++) {
        rows->ends[i] = rows->ends[i + 1] - bytes;
    }
    rows->cursor_row -= rows->cursor_row > 0 ? 1 : 0;
}

void screen_begin(struct screen *screen) {
    rows_clear(&screen->wanted);
}

size_t screen_row_count(const struct screen *screen) {
    return screen->wanted.count;
}

void screen_add(struct screen *screen, struct view row) {
    struct rows *rows = &screen->wanted;
    size_t before = rows->text.length;
    if (rows->count == SCREEN_ROWS_MAX || (int)rows->count + 1 >= screen->height) {
        if (rows->count == 0) {
            return;
        }
        rows_drop_first(rows);
        before = rows->text.length;
    }
    if (is_failed(buffer_append(&rows->text, row, NULL)) ||
        is_failed(buffer_append_byte(&rows->text, '\n', NULL))) {
        rows->text.length = before; /* too long, or no memory: the row is not shown */
        return;
    }
    rows->ends[rows->count++] = rows->text.length - 1;
    rows->cursor_row = rows->count - 1;
    rows->cursor_column = row_columns(row);
}

void screen_set_cursor(struct screen *screen, size_t row, int column) {
    if (row < screen->wanted.count) {
        screen->wanted.cursor_row = row;
        screen->wanted.cursor_column = column;
    }
}

void screen_print(struct screen *screen, struct view lines) {
    /* Without memory some text is not seen; it is recorded all the same. */
    result_ignore(buffer_append(&screen->printed, lines, NULL));
}

/* ---- drawing -------------------------------------------------------------------------------- */

static void put(struct screen *screen, const char *text) {
    result_ignore(buffer_append_text(&screen->out, text, NULL)); /* as in screen_print */
}

/* CSI number letter */
static void put_move(struct screen *screen, int number, char letter) {
    char text[32];
    int length = snprintf(text, sizeof text, "\x1b[%d%c", number, letter);
    ASSERT(length > 0);
    put(screen, text);
}

/* From the present row of the shown ones to another, at its beginning. */
static void go_to_row(struct screen *screen, size_t row) {
    struct rows *shown = &screen->shown;
    put(screen, "\r");
    if (row < shown->cursor_row) {
        put_move(screen, (int)(shown->cursor_row - row), 'A');
    }
    for (; shown->cursor_row < row; shown->cursor_row++) {
        put(screen, "\n"); /* makes room at the end of the terminal, too */
    }
    shown->cursor_row = row;
    shown->cursor_column = 0;
}

/* To where the rows begin, with nothing below. A terminal that is cleared from its first place on
 * may keep what was there as history, so the first row is cleared by itself. */
static void clear_shown(struct screen *screen) {
    if (screen->shown.count > 1) {
        go_to_row(screen, 1);
        put(screen, "\x1b[J");
    }
    if (screen->shown.count > 0) {
        go_to_row(screen, 0);
        put(screen, "\x1b[K");
    }
    rows_clear(&screen->shown);
}

static void print_pending(struct screen *screen) {
    if (screen->printed.length == 0) {
        return;
    }
    clear_shown(screen);
    result_ignore(buffer_append(&screen->out, buffer_view(&screen->printed), NULL));
    if (screen->printed.data[screen->printed.length - 1] != '\n') {
        put(screen, "\n");
    }
    buffer_clear(&screen->printed);
}

static void draw_rows(struct screen *screen) {
    struct rows *shown = &screen->shown;
    const struct rows *wanted = &screen->wanted;
    for (size_t i = 0; i < wanted->count; i++) {
        struct view row = row_at(wanted, i);
        if (i < shown->count && view_equals(row, row_at(shown, i))) {
            continue;
        }
        go_to_row(screen, i);
        result_ignore(buffer_append(&screen->out, row, NULL));
        put(screen, "\x1b[K");
    }
    if (wanted->count < shown->count) {
        go_to_row(screen, wanted->count);
        put(screen, "\x1b[J");
    }
    if (wanted->count > 0) {
        go_to_row(screen, wanted->cursor_row);
        if (wanted->cursor_column > 0) {
            put_move(screen, wanted->cursor_column, 'C');
        }
    }
    struct rows drawn = screen->wanted;
    screen->wanted = screen->shown;
    screen->shown = drawn;
}

static void flush(struct screen *screen) {
    if (screen->out.length > 0) {
        output_append(screen->output, buffer_view(&screen->out));
        buffer_clear(&screen->out);
    }
}

static bool is_same(const struct screen *screen) {
    const struct rows *a = &screen->wanted;
    const struct rows *b = &screen->shown;
    return screen->printed.length == 0 && a->count == b->count && a->cursor_row == b->cursor_row &&
           a->cursor_column == b->cursor_column &&
           view_equals(buffer_view(&a->text), buffer_view(&b->text));
}

void screen_draw(struct screen *screen) {
    screen->is_behind = output_buffer(screen->output)->length > BEHIND_BYTES;
    if (screen->is_behind || is_same(screen)) {
        return;
    }
    print_pending(screen);
    if (screen->wanted.count == 0) {
        clear_shown(screen);
    }
    draw_rows(screen);
    flush(screen);
}

bool screen_is_behind(const struct screen *screen) {
    return screen->is_behind;
}

void screen_erase(struct screen *screen) {
    print_pending(screen);
    clear_shown(screen);
    flush(screen);
    screen->is_behind = false;
}

void screen_forget(struct screen *screen) {
    rows_clear(&screen->shown);
}

void screen_set_size(struct screen *screen, int width, int height) {
    struct rows *shown = &screen->shown;
    if (shown->count > 0 && width < screen->width) {
        /* Rows that are longer than the new width were wrapped by the terminal. */
        int above = shown->cursor_column / width;
        for (size_t i = 0; i < shown->cursor_row; i++) {
            int columns = row_columns(row_at(shown, i));
            above += columns > width ? (columns + width - 1) / width : 1;
        }
        put(screen, "\r");
        if (above > 0) {
            put_move(screen, above, 'A');
        }
        put(screen, "\x1b[J");
        rows_clear(shown);
    } else {
        clear_shown(screen);
    }
    flush(screen);
    screen->width = width;
    screen->height = height;
}
