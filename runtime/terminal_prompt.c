/* Laid out twice: once to find the cursor's row, once to write the rows around it. */
#include "terminal_prompt.h"

#include "lines.h"

#define TAB_COLUMNS 4

struct layout {
    const struct prompt_request *request;
    int indent, limit; /* columns */
    size_t row;
    int column;
    size_t cursor_row;
    int cursor_column;
    size_t first_row, end_row; /* that are written */
    struct buffer *out;        /* null: nothing is */
};

static bool acts_upon_terminals(uint32_t code_point) {
    return code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) ||
           (code_point >= 0x200E && code_point <= 0x200F) ||
           (code_point >= 0x2028 && code_point <= 0x202E) ||
           (code_point >= 0x2066 && code_point <= 0x2069);
}

static void write_bytes(struct layout *layout, struct view bytes) {
    if (layout->out != NULL && layout->row >= layout->first_row && layout->row < layout->end_row) {
        result_ignore(buffer_append(layout->out, bytes, NULL)); /* not seen without memory */
    }
}

static void begin_row(struct layout *layout) {
    if (layout->row == 0) {
        write_bytes(layout, layout->request->first);
    } else {
        for (int i = 0; i < layout->indent; i++) {
            write_bytes(layout, view_of_text(" "));
        }
    }
    layout->column = layout->indent;
}

static void next_row(struct layout *layout) {
    write_bytes(layout, view_of_text("\n"));
    layout->row++;
    begin_row(layout);
}

static void put_character(struct layout *layout, struct view character, uint32_t code_point) {
    bool is_tab = code_point == '\t';
    bool is_bad = !is_tab && acts_upon_terminals(code_point);
    int columns = is_tab ? TAB_COLUMNS : is_bad ? 1 : columns_of(code_point);
    if (layout->column + columns > layout->limit) {
        next_row(layout);
    }
    write_bytes(layout, is_tab ? view_of_text("    ") : is_bad ? view_of_text("?") : character);
    layout->column += columns;
}

static void lay_out(struct layout *layout) {
    struct view line = layout->request->line;
    begin_row(layout);
    for (size_t at = 0; at <= line.length;) {
        if (at == layout->request->cursor) {
            if (layout->column >= layout->limit) {
                next_row(layout);
            }
            layout->cursor_row = layout->row;
            layout->cursor_column = layout->column;
        }
        if (at == line.length) {
            break;
        }
        uint32_t code_point = 0;
        struct view rest = view_slice(line, at, line.length - at);
        size_t length = utf8_decode(rest, &code_point);
        length = length == 0 ? 1 : length;
        if (code_point == '\n') {
            next_row(layout);
        } else {
            put_character(layout, view_slice(rest, 0, length), code_point);
        }
        at += length;
    }
    write_bytes(layout, view_of_text("\n"));
}

void prompt_make(
    struct buffer *out, const struct prompt_request *request, size_t *cursor_row, int *cursor_column
) {
    ASSERT(request->rows_max > 0 && request->cursor <= request->line.length);
    struct layout layout = {
        .request = request,
        .indent = columns_of_text(request->first),
        .limit = request->width - 1,
    };
    lay_out(&layout);
    size_t count = layout.row + 1;
    size_t first = 0;
    if (count > request->rows_max) {
        size_t half = request->rows_max / 2;
        first = layout.cursor_row > half ? layout.cursor_row - half : 0;
        first = first + request->rows_max > count ? count - request->rows_max : first;
    }
    *cursor_row = layout.cursor_row - first;
    *cursor_column = layout.cursor_column;
    layout.row = 0;
    layout.first_row = first;
    layout.end_row = first + request->rows_max;
    layout.out = out;
    lay_out(&layout);
}
