/* Every line is wrapped here, before the terminal would: so the column is always known. */
#include "lines.h"

#include "sandbox/sandbox.h"
#include <stdarg.h>
#include <wchar.h>

#define TAB_TEXT  "    " /* a tab's width depends on where it is, so it is shown as blanks */
#define MARKS_MAX 8      /* characters without width on end; more are not shown */

void lines_init(struct lines *lines, int width, bool has_colour) {
    *lines = (struct lines){.width = width, .has_colour = has_colour};
    buffer_init(&lines->text, LINES_BYTES_MAX);
}

void lines_deinit(struct lines *lines) {
    buffer_deinit(&lines->text);
}

/* ---- characters ----------------------------------------------------------------------------- */

int columns_of(uint32_t code_point) {
    int columns = wcwidth((wchar_t)code_point);
    return columns < 0 ? 1 : columns;
}

/* Takes one character; a byte that is none counts as one. */
static size_t take_character(struct view text, size_t at, uint32_t *code_point) {
    size_t length = utf8_decode(view_slice(text, at, text.length - at), code_point);
    return length == 0 ? 1 : length;
}

int columns_of_text(struct view text) {
    int columns = 0;
    uint32_t code_point = 0;
    for (size_t at = 0; at < text.length; at += take_character(text, at, &code_point)) {
        (void)take_character(text, at, &code_point);
        columns += columns_of(code_point);
    }
    return columns;
}

struct view text_in_columns(struct view text, int columns) {
    size_t at = 0;
    while (at < text.length) {
        uint32_t code_point = 0;
        size_t length = take_character(text, at, &code_point);
        columns -= columns_of(code_point);
        if (columns < 0) {
            break;
        }
        at += length;
    }
    return view_slice(text, 0, at);
}

void lines_raw(struct lines *lines, struct view bytes) {
    result_ignore(buffer_append(&lines->text, bytes, NULL)); /* see lines.h */
}

void lines_raw_text(struct lines *lines, const char *text) {
    lines_raw(lines, view_of_text(text));
}

const char *lines_style(const struct lines *lines, enum style style) {
    static const char *const codes[] = {
        [STYLE_TEXT] = "",
        [STYLE_DIM] = "\x1b[2m",
        [STYLE_CALL] = "\x1b[1;36m",
        [STYLE_GOOD] = "\x1b[1;32m",
        [STYLE_BAD] = "\x1b[1;31m",
        [STYLE_ADDED] = "\x1b[32m",
        [STYLE_REMOVED] = "\x1b[31m",
        [STYLE_HEADING] = "\x1b[1m",
        [STYLE_CODE] = "\x1b[36m",
        [STYLE_STATUS] = "\x1b[7m",
    };
    return lines->has_colour ? codes[style] : "";
}

static void new_line(struct lines *lines) {
    lines_raw_text(lines, "\n");
    lines->column = 0;
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* Columns of the word at the beginning of a text, as far as a limit. */
static int columns_of_word(struct view text, int limit) {
    int columns = 0;
    size_t length = 0;
    for (size_t at = 0; at < text.length && columns <= limit; at += length) {
        uint32_t code_point = 0;
        length = take_character(text, at, &code_point);
        if (code_point == ' ' || code_point == '\n' || code_point == '\t') {
            break;
        }
        columns += columns_of(code_point);
    }
    return columns;
}

/* Whether a word that would be cut at the end of the line fits into the next one. */
static bool is_better_below(const struct lines *lines, const char *prefix, struct view rest) {
    int before = columns_of_text(view_of_text(prefix));
    int room = lines->width - 2 - before;
    int columns = columns_of_word(rest, room);
    return lines->column > before && columns <= room && lines->column + columns > lines->width - 2;
}

void lines_put(struct lines *lines, enum style style, const char *prefix, struct view text) {
    const char *code = text.length > 0 ? lines_style(lines, style) : "";
    lines_raw_text(lines, code);
    int marks = 0;
    size_t length = 0;
    for (size_t at = 0; at < text.length; at += length) {
        uint32_t code_point = 0;
        length = take_character(text, at, &code_point);
        if (code_point == '\n') {
            new_line(lines);
            continue;
        }
        int columns = code_point == '\t' ? (int)strlen(TAB_TEXT) : columns_of(code_point);
        marks = columns == 0 ? marks + 1 : 0;
        if (marks > MARKS_MAX) {
            continue;
        }
        bool is_word = at > 0 && text.data[at - 1] == ' ' && code_point != ' ';
        struct view rest = view_slice(text, at, text.length - at);
        if (lines->width > 0 && (lines->column + columns > lines->width - 2 ||
                                 (is_word && is_better_below(lines, prefix, rest)))) {
            new_line(lines);
        }
        if (lines->column == 0) {
            lines_raw_text(lines, prefix);
            lines->column = columns_of_text(view_of_text(prefix));
        }
        lines_raw(
            lines, code_point == '\t' ? view_of_text(TAB_TEXT) : view_slice(text, at, length)
        );
        lines->column += columns;
    }
    lines_raw_text(lines, code[0] != '\0' ? "\x1b[0m" : "");
}

void lines_put_line(struct lines *lines, enum style style, const char *prefix, struct view text) {
    lines_put(lines, style, prefix, text);
    new_line(lines);
}

void lines_text(struct lines *lines, enum style style, const char *prefix, struct view text) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, LINES_BYTES_MAX);
    if (is_ok(sandbox_sanitise(text, 0, &harmless, NULL))) {
        lines_put(lines, style, prefix, buffer_view(&harmless));
    }
}

void lines_format(struct lines *lines, enum style style, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    lines_text(lines, style, "", view_of_text(text));
    new_line(lines);
}

void lines_end(struct lines *lines) {
    if (lines->column != 0) {
        new_line(lines);
    }
}

/* ---- excerpts ------------------------------------------------------------------------------- */

static size_t count_lines(struct view text) {
    size_t lines = text.length > 0 ? 1 : 0;
    for (size_t i = 0; i + 1 < text.length; i++) {
        lines += text.data[i] == '\n' ? 1 : 0;
    }
    return lines;
}

/* A long line with both ends: what a command does may stand at its end. */
static bool put_shortened(struct lines *lines, const struct excerpt *excerpt, struct view line) {
    if (line.length == 0) {
        lines_put_line(lines, excerpt->style, "", view_of_text(excerpt->prefix));
        return true;
    }
    if (line.length <= excerpt->line_bytes) {
        lines_put_line(lines, excerpt->style, excerpt->prefix, line);
        return true;
    }
    struct view head = view_slice(line, 0, excerpt->line_bytes * 3 / 4);
    head.length = utf8_valid_prefix(head);
    size_t from = line.length - excerpt->line_bytes / 4;
    while (from < line.length && (line.data[from] & 0xC0) == 0x80) {
        from++;
    }
    char note[64];
    int length = snprintf(note, sizeof note, " ... %zu bytes ... ", from - head.length);
    ASSERT(length > 0);
    lines_put(lines, excerpt->style, excerpt->prefix, head);
    lines_put(lines, STYLE_DIM, excerpt->prefix, view_of_text(note));
    lines_put_line(
        lines, excerpt->style, excerpt->prefix, view_slice(line, from, line.length - from)
    );
    return false;
}

static bool put_excerpt(struct lines *lines, const struct excerpt *excerpt, struct view text) {
    size_t count = count_lines(text);
    size_t around = excerpt->head + excerpt->tail;
    struct cursor cursor = cursor_over(text);
    bool is_whole = true;
    for (size_t i = 0; i < count; i++) {
        struct view line;
        if (!cursor_take_until(&cursor, '\n', &line)) {
            line = view_slice(text, cursor.at, text.length - cursor.at);
        }
        /* A note in place of a single line would save nothing. */
        bool is_head = i < excerpt->head || count <= around + 1;
        bool is_tail = i + excerpt->tail >= count;
        if (is_head || is_tail) {
            is_whole &= put_shortened(lines, excerpt, line);
        } else if (i == excerpt->head) {
            char note[64];
            int length = snprintf(note, sizeof note, "... %zu more lines ...", count - around);
            ASSERT(length > 0);
            lines_put_line(lines, excerpt->style, excerpt->prefix, view_of_text(note));
            is_whole = false;
        }
    }
    return is_whole;
}

bool lines_excerpt(struct lines *lines, const struct excerpt *excerpt, struct view text) {
    struct excerpt filled = *excerpt;
    if (filled.head == 0 && filled.tail == 0) {
        filled.head = LINES_HEAD;
        filled.tail = LINES_TAIL;
    }
    filled.line_bytes = filled.line_bytes == 0 ? LINES_LINE_BYTES : filled.line_bytes;
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, LINES_BYTES_MAX);
    if (is_failed(sandbox_sanitise(text, 0, &harmless, NULL))) {
        return false; /* without memory it is not shown */
    }
    return put_excerpt(lines, &filled, buffer_view(&harmless));
}
