/* What comes from a model, and what comes from a keyboard: whatever the bytes, Markdown gives lines of
 * the width without anything that a terminal obeys, keys are whole, and a line that is typed is drawn
 * in rows with its cursor. The first byte chooses width and pieces. */
#include "runtime/lines.h"
#include "runtime/markdown.h"
#include "runtime/terminal_keys.h"
#include "runtime/terminal_prompt.h"

#include <locale.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_lines(struct view text, int width) {
    ASSERT(utf8_is_valid(text));
    struct cursor cursor = cursor_over(text);
    struct view line;
    while (cursor_take_until(&cursor, '\n', &line)) {
        ASSERT(columns_of_text(line) < width);
    }
    ASSERT(cursor_remaining(&cursor) == 0);
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = text.data[i];
        ASSERT(byte == '\n' || (byte >= 0x20U && byte != 0x7fU));
        ASSERT(byte != 0xc2U || text.data[i + 1] >= 0xa0U); // C1
    }
}

static void try_markdown(struct view text, int width, size_t piece) {
    struct markdown *markdown = NULL;
    struct lines lines;
    lines_init(&lines, width, false);
    ASSERT(is_ok(markdown_create(&markdown, NULL)));
    for (size_t at = 0; at < text.length; at += piece) {
        markdown_append(markdown, view_slice(text, at, piece), &lines);
        ASSERT(markdown_tail(markdown).length <= MARKDOWN_BLOCK_BYTES_MAX);
    }
    markdown_end(markdown, &lines);
    check_lines(buffer_view(&lines.text), width);
    markdown_destroy(markdown);
    lines_deinit(&lines);
}

static void try_keys(struct view bytes, size_t piece, struct buffer *typed) {
    struct keys *keys = NULL;
    ASSERT(is_ok(keys_create(&keys, NULL)));
    for (size_t at = 0; at < bytes.length + piece; at += piece) {
        if (at < bytes.length) {
            keys_add(keys, view_slice(bytes, at, piece));
        } else {
            keys_stop_waiting(keys);
        }
        for (struct key key; (key = keys_next(keys)).type != KEY_NONE;) {
            ASSERT(key.type == KEY_TEXT || key.text.length == 0);
            ASSERT(utf8_is_valid(key.text));
            ASSERT(is_ok(buffer_append(typed, key.text, NULL)));
        }
    }
    keys_destroy(keys);
}

static void try_prompt(struct view line, int width) {
    struct buffer rows;
    buffer_init(&rows, 16 << 20);
    const struct prompt_request request = {
        .first = view_of_text("> "),
        .line = line,
        .cursor = line.length,
        .width = width,
        .rows_max = 5,
    };
    size_t row = 0;
    int column = 0;
    prompt_make(&rows, &request, &row, &column);
    ASSERT(row < 5 && column < width);
    check_lines(buffer_view(&rows), width);
    buffer_deinit(&rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ASSERT(setlocale(LC_CTYPE, "C.UTF-8") != NULL);
    size_t choice = size > 0 ? data[0] : 0;
    int width = 20 + (int)(choice % 64);
    struct view text = view_slice(view_of(data, size), 1, size);
    struct buffer typed;
    buffer_init(&typed, 16 << 20);
    try_markdown(text, width, 1 + choice % 7);
    try_keys(text, 1 + choice % 7, &typed);
    try_prompt(buffer_view(&typed), width);
    buffer_deinit(&typed);
    return 0;
}
