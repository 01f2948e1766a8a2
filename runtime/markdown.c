/* Where blocks end, line by line, so that each is given to the renderer once. Lines of fenced code
 * are blocks of their own, since much code comes in one. Items of a list are, too; where blank lines
 * stood, one is shown.
 */
#include "markdown.h"

#include "sandbox/sandbox.h"

#define CODE_INDENT    "  "
#define PIECE_BYTES    4096 /* taken at a time, so that what is unfinished stays short */
#define HELD_BYTES_MAX 4    /* of a torn character, and a carriage return */

enum kind { KIND_NONE, KIND_TEXT, KIND_ITEM, KIND_QUOTE, KIND_INDENTED, KIND_FENCE };

enum line_class {
    LINE_BLANK,
    LINE_TEXT,
    LINE_HEADING,
    LINE_RULE,
    LINE_UNDERLINE, /* "---" or "===": makes the text before it a heading */
    LINE_ITEM,
    LINE_QUOTE,
    LINE_INDENTED,
    LINE_FENCE
};

struct markdown {
    struct buffer held;  /* bytes of a character, or of a line's end, that are not all there */
    struct buffer block; /* unfinished */
    size_t line_at;      /* of it: the line that is being written */
    enum kind kind;
    unsigned char fence; /* KIND_FENCE, and in an item: '`' or '~', 0: none */
    size_t fence_length, fence_indent;
    size_t item_content; /* KIND_ITEM: column of its text */
    bool item_has_blank;
    bool has_blank; /* since the last block that was shown */
    bool has_shown;
    bool keeps_source;
};

result markdown_create(struct markdown **out, struct error *error) {
    struct markdown *markdown = calloc(1, sizeof *markdown);
    if (markdown == NULL) {
        FAIL(error, MEMORY, "no memory for Markdown");
    }
    buffer_init(&markdown->held, 64);
    buffer_init(&markdown->block, LINES_BYTES_MAX);
    *out = markdown;
    return OK;
}

void markdown_destroy(struct markdown *markdown) {
    if (markdown != NULL) {
        buffer_deinit(&markdown->held);
        buffer_deinit(&markdown->block);
        free(markdown);
    }
}

void markdown_keep_source(struct markdown *markdown) {
    markdown->keeps_source = true;
}

struct view markdown_tail(const struct markdown *markdown) {
    return buffer_view(&markdown->block);
}

/* ---- lines ---------------------------------------------------------------------------------- */

static size_t count_of(struct view line, size_t at, unsigned char byte) {
    size_t count = 0;
    while (at + count < line.length && line.data[at + count] == byte) {
        count++;
    }
    return count;
}

static size_t indent_of(struct view line) {
    size_t columns = 0;
    for (size_t i = 0; i < line.length; i++) {
        if (line.data[i] == '\t') {
            columns += 4 - columns % 4;
        } else if (line.data[i] == ' ') {
            columns++;
        } else {
            break;
        }
    }
    return columns;
}

static struct view trimmed(struct view line) {
    size_t from = 0;
    while (from < line.length && (line.data[from] == ' ' || line.data[from] == '\t')) {
        from++;
    }
    while (line.length > from &&
           (line.data[line.length - 1] == ' ' || line.data[line.length - 1] == '\t')) {
        line.length--;
    }
    return view_slice(line, from, line.length - from);
}

/* Width of "- ", "12. " with the blanks behind it, or 0. */
static size_t item_marker(struct view text) {
    size_t digits = 0;
    while (digits < text.length && digits < 9 && text.data[digits] >= '0' &&
           text.data[digits] <= '9') {
        digits++;
    }
    size_t at = digits;
    if (at == text.length || strchr(digits > 0 ? ".)" : "-*+", text.data[at]) == NULL ||
        text.data[at] == '\0') {
        return 0;
    }
    at++;
    size_t blanks = count_of(text, at, ' ');
    if (at < text.length && blanks == 0) {
        return 0;
    }
    return at + (blanks == 0 || blanks > 4 ? 1 : blanks);
}

/* Three or more of one mark, with blanks between them. */
static bool is_rule(struct view text) {
    size_t marks = 0;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] == text.data[0]) {
            marks++;
        } else if (text.data[i] != ' ') {
            return false;
        }
    }
    return marks >= 3 && strchr("-*_", text.data[0]) != NULL;
}

static size_t fence_of(struct view text) {
    unsigned char mark = text.data[0];
    size_t length = mark == '`' || mark == '~' ? count_of(text, 0, mark) : 0;
    bool has_mark_behind = mark == '`' && view_find(text, view_of_text("`"), length) != SIZE_MAX;
    return length >= 3 && !has_mark_behind ? length : 0;
}

static enum line_class classify(struct view line) {
    struct view text = trimmed(line);
    if (text.length == 0) {
        return LINE_BLANK;
    }
    if (indent_of(line) >= 4) {
        return LINE_INDENTED;
    }
    size_t hashes = count_of(text, 0, '#');
    if (hashes > 0 && hashes <= 6 && (hashes == text.length || text.data[hashes] == ' ')) {
        return LINE_HEADING;
    }
    if (fence_of(text) > 0) {
        return LINE_FENCE;
    }
    if (text.data[0] == '>') {
        return LINE_QUOTE;
    }
    size_t same = count_of(text, 0, text.data[0]);
    if (same == text.length && (text.data[0] == '=' || text.data[0] == '-')) {
        return LINE_UNDERLINE;
    }
    if (is_rule(text)) {
        return LINE_RULE;
    }
    return item_marker(text) > 0 ? LINE_ITEM : LINE_TEXT;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static void space_before(struct markdown *markdown, struct lines *lines) {
    if (markdown->has_blank && markdown->has_shown) {
        lines_put_line(lines, STYLE_TEXT, "", (struct view){0});
    }
    markdown->has_blank = false;
    markdown->has_shown = true;
}

/* Shows the first `bytes` of the block and removes them. */
static void show(struct markdown *markdown, size_t bytes, struct lines *lines) {
    struct view block = view_slice(buffer_view(&markdown->block), 0, bytes);
    if (trimmed(block).length > 0) {
        space_before(markdown, lines);
        markdown_render(lines, block);
    }
    buffer_consume(&markdown->block, bytes);
    markdown->line_at -= markdown->line_at > bytes ? bytes : markdown->line_at;
    if (markdown->kind == KIND_ITEM && markdown->item_has_blank) {
        markdown->has_blank = true;
    }
    markdown->kind = KIND_NONE;
    markdown->fence = 0;
    markdown->item_has_blank = false;
}

static bool closes_fence(const struct markdown *markdown, struct view line) {
    struct view text = trimmed(line);
    size_t length = count_of(text, 0, markdown->fence);
    return length >= markdown->fence_length && length == text.length;
}

static void open_fence(struct markdown *markdown, struct view line) {
    struct view text = trimmed(line);
    markdown->fence = text.data[0];
    markdown->fence_length = fence_of(text);
    markdown->fence_indent = indent_of(line);
}

static void code_line(struct markdown *markdown, struct view line, struct lines *lines) {
    size_t indent = count_of(line, 0, ' ');
    size_t cut = indent < markdown->fence_indent ? indent : markdown->fence_indent;
    struct view code = view_slice(line, cut, line.length - cut);
    space_before(markdown, lines);
    lines_put_line(lines, STYLE_CODE, code.length > 0 ? CODE_INDENT : "", code);
}

/* Whether the line belongs to the item that is being written. */
static bool continues_item(struct markdown *markdown, struct view line, enum line_class class) {
    size_t indent = indent_of(line);
    if (class == LINE_BLANK) {
        markdown->item_has_blank = markdown->fence == 0;
        return true;
    }
    bool is_inside = indent >= markdown->item_content;
    if (markdown->fence != 0) {
        markdown->fence = closes_fence(markdown, line) ? 0 : markdown->fence;
        return is_inside || indent >= 2;
    }
    if (is_inside) {
        struct view text = trimmed(line);
        if (fence_of(text) > 0) {
            open_fence(markdown, line);
        }
        return true;
    }
    return class == LINE_TEXT && !markdown->item_has_blank;
}

static bool continues(struct markdown *markdown, struct view line, enum line_class class) {
    if (markdown->kind == KIND_ITEM) {
        return continues_item(markdown, line, class);
    }
    if (markdown->kind == KIND_INDENTED) {
        return class == LINE_BLANK || class == LINE_INDENTED;
    }
    if (markdown->kind == KIND_QUOTE) {
        return class == LINE_QUOTE || class == LINE_TEXT;
    }
    return class == LINE_TEXT || class == LINE_INDENTED || class == LINE_UNDERLINE;
}

static void begin(struct markdown *markdown, struct view line, enum line_class class) {
    markdown->kind = class == LINE_ITEM       ? KIND_ITEM
                     : class == LINE_QUOTE    ? KIND_QUOTE
                     : class == LINE_INDENTED ? KIND_INDENTED
                     : class == LINE_FENCE    ? KIND_FENCE
                                              : KIND_TEXT;
    markdown->item_content = indent_of(line) + item_marker(trimmed(line));
}

/* The line [line_at, line_at + length) of the block is whole; a newline stands behind it. */
static void take_line(struct markdown *markdown, size_t length, struct lines *lines) {
    size_t at = markdown->line_at;
    struct view line = view_slice(buffer_view(&markdown->block), at, length);
    enum line_class class = classify(line);
    if (markdown->keeps_source) {
        lines_put_line(lines, STYLE_TEXT, "", line);
        buffer_consume(&markdown->block, length + 1);
        return;
    }
    if (markdown->kind == KIND_FENCE) {
        ASSERT(at == 0);
        if (closes_fence(markdown, line)) {
            markdown->kind = KIND_NONE;
            markdown->fence = 0;
        } else {
            code_line(markdown, line, lines);
        }
        buffer_consume(&markdown->block, length + 1);
        return;
    }
    bool is_underline = class == LINE_UNDERLINE && markdown->kind == KIND_TEXT;
    if (markdown->kind != KIND_NONE && !continues(markdown, line, class)) {
        show(markdown, at, lines);
        at = 0;
        line = view_slice(buffer_view(&markdown->block), 0, length);
    }
    if (class == LINE_BLANK && markdown->kind == KIND_NONE) {
        markdown->has_blank = true;
        buffer_consume(&markdown->block, length + 1);
        return;
    }
    if (markdown->kind == KIND_NONE) {
        begin(markdown, line, class);
    }
    if (markdown->kind == KIND_FENCE) {
        open_fence(markdown, line);
        buffer_consume(&markdown->block, length + 1);
        return;
    }
    markdown->line_at = at + length + 1;
    if (class == LINE_HEADING || class == LINE_RULE || is_underline) {
        show(markdown, markdown->line_at, lines);
    }
}

/* A block without end is shown up to a place between lines, words or characters. */
static void cut_long(struct markdown *markdown, struct lines *lines) {
    struct view part = view_slice(buffer_view(&markdown->block), 0, MARKDOWN_BLOCK_BYTES_MAX);
    part.length = utf8_valid_prefix(part);
    if (markdown->kind == KIND_FENCE || markdown->keeps_source) {
        if (markdown->keeps_source) {
            lines_put_line(lines, STYLE_TEXT, "", part);
        } else {
            code_line(markdown, part, lines);
        }
        buffer_consume(&markdown->block, part.length);
        return;
    }
    size_t bytes = part.length;
    while (bytes > 0 && part.data[bytes - 1] != ' ' && part.data[bytes - 1] != '\n') {
        bytes--;
    }
    enum kind kind = markdown->kind;
    show(markdown, bytes > 0 ? bytes : part.length, lines);
    markdown->kind = kind == KIND_QUOTE || kind == KIND_INDENTED ? kind : KIND_TEXT;
}

static void take_lines(struct markdown *markdown, struct lines *lines) {
    size_t from = markdown->line_at;
    for (;;) {
        size_t end = view_find(buffer_view(&markdown->block), view_of_text("\n"), from);
        if (end == SIZE_MAX || end > MARKDOWN_BLOCK_BYTES_MAX) {
            if (markdown->block.length <= MARKDOWN_BLOCK_BYTES_MAX) {
                return;
            }
            cut_long(markdown, lines);
        } else {
            take_line(markdown, end - markdown->line_at, lines);
        }
        from = markdown->line_at;
    }
}

static void append_piece(struct markdown *markdown, struct view text, struct lines *lines) {
    unsigned char whole[PIECE_BYTES + HELD_BYTES_MAX];
    size_t held = markdown->held.length;
    ASSERT(held <= HELD_BYTES_MAX && text.length > 0 && text.length <= PIECE_BYTES);
    if (held > 0) {
        memcpy(whole, markdown->held.data, held);
    }
    memcpy(whole + held, text.data, text.length);
    struct view now = view_of(whole, held + text.length);
    size_t valid = utf8_valid_prefix(now);
    if (now.length - valid < 4) { /* else it is damaged, not torn */
        now.length = valid;
    }
    if (now.length > 0 && now.data[now.length - 1] == '\r') {
        now.length--;
    }
    size_t rest = held + text.length - now.length;
    ASSERT(rest <= HELD_BYTES_MAX);
    buffer_clear(&markdown->held);
    result_ignore(buffer_append(&markdown->held, view_of(whole + now.length, rest), NULL));
    result_ignore(sandbox_sanitise(now, 0, &markdown->block, NULL));
    take_lines(markdown, lines);
}

void markdown_append(struct markdown *markdown, struct view text, struct lines *lines) {
    for (size_t at = 0; at < text.length; at += PIECE_BYTES) {
        append_piece(markdown, view_slice(text, at, PIECE_BYTES), lines);
    }
}

void markdown_end(struct markdown *markdown, struct lines *lines) {
    result_ignore(sandbox_sanitise(buffer_view(&markdown->held), 0, &markdown->block, NULL));
    buffer_clear(&markdown->held);
    if (markdown->block.length > markdown->line_at &&
        is_ok(buffer_append_byte(&markdown->block, '\n', NULL))) {
        take_lines(markdown, lines);
    }
    if (markdown->kind != KIND_FENCE && markdown->block.length > 0) {
        show(markdown, markdown->block.length, lines);
    }
    buffer_clear(&markdown->block);
    markdown->line_at = 0;
    markdown->kind = KIND_NONE;
    markdown->fence = 0;
    markdown->item_has_blank = false;
    markdown->has_blank = false;
    markdown->has_shown = false;
}
