/* Columns are as wide as their widest cell; when that is too wide for the line, the widest ones shrink
 * and their cells are wrapped.
 */
#include "markdown_table.h"

#define COLUMNS_MAX  16
#define CELLS_MAX    2048
#define CELL_COLUMNS 200 /* natural width of a cell; longer ones are wrapped */

struct markdown_table {
    struct buffer text; /* of all cells */
    size_t ends[CELLS_MAX];
    size_t cell_count, columns;
};

struct writer {
    const struct markdown_table *table;
    struct lines *lines;
    const char *first; /* of the next line, null: the prefix */
    const char *prefix;
    int width;
};

struct markdown_table *markdown_table_create(size_t columns) {
    struct markdown_table *table = NULL;
    if (columns > 0 && columns <= COLUMNS_MAX) {
        table = calloc(1, sizeof *table);
    }
    if (table != NULL) {
        buffer_init(&table->text, LINES_BYTES_MAX);
        table->columns = columns;
    }
    return table;
}

void markdown_table_destroy(struct markdown_table *table) {
    if (table != NULL) {
        buffer_deinit(&table->text);
        free(table);
    }
}

bool markdown_table_append(struct markdown_table *table, struct view text) {
    size_t before = table->text.length;
    if (is_failed(buffer_append(&table->text, text, NULL))) {
        return false;
    }
    for (size_t i = before; i < table->text.length; i++) { /* a tab has no width of its own */
        table->text.data[i] = table->text.data[i] < 0x20 ? ' ' : table->text.data[i];
    }
    return true;
}

bool markdown_table_end_cell(struct markdown_table *table) {
    if (table->cell_count == CELLS_MAX) {
        return false;
    }
    table->ends[table->cell_count++] = table->text.length;
    return true;
}

/* ---- writing -------------------------------------------------------------------------------- */

static void begin_line(struct writer *writer) {
    lines_raw_text(writer->lines, writer->first != NULL ? writer->first : writer->prefix);
    writer->first = NULL;
}

static struct view cell_at(const struct markdown_table *table, size_t index) {
    size_t from = index == 0 ? 0 : table->ends[index - 1];
    return view_slice(buffer_view(&table->text), from, table->ends[index] - from);
}

/* Widths that fit into the line; false when not even narrow columns do. */
static bool fit_columns(const struct writer *writer, int *widths) {
    const struct markdown_table *table = writer->table;
    int total = 3 * ((int)table->columns - 1) + columns_of_text(view_of_text(writer->prefix));
    if (total + 3 * (int)table->columns > writer->width) {
        return false;
    }
    for (size_t i = 0; i < table->columns; i++) {
        widths[i] = 1;
    }
    for (size_t i = 0; i < table->cell_count; i++) {
        int columns = columns_of_text(cell_at(table, i));
        int *width = &widths[i % table->columns];
        columns = columns > CELL_COLUMNS ? CELL_COLUMNS : columns;
        *width = columns > *width ? columns : *width;
    }
    for (size_t i = 0; i < table->columns; i++) {
        total += widths[i];
    }
    for (; total > writer->width; total--) {
        size_t widest = 0;
        for (size_t i = 1; i < table->columns; i++) {
            widest = widths[i] > widths[widest] ? i : widest;
        }
        widths[widest]--;
    }
    return true;
}

/* The part of a cell for one line; what is left stays in *rest. */
static struct view take_cell_line(struct view *rest, int width) {
    struct view part = text_in_columns(*rest, width);
    if (part.length == 0 && rest->length > 0) { /* a wide character in a column of one */
        uint32_t code_point = 0;
        size_t length = utf8_decode(*rest, &code_point);
        part = view_slice(*rest, 0, length == 0 ? 1 : length);
    }
    size_t used = part.length;
    if (used < rest->length && rest->data[used] != ' ') {
        size_t blank = used;
        while (blank > 0 && rest->data[blank - 1] != ' ') {
            blank--;
        }
        used = blank > 0 ? blank : used;
    }
    part = view_slice(*rest, 0, used);
    while (part.length > 0 && part.data[part.length - 1] == ' ') {
        part.length--;
    }
    while (used < rest->length && rest->data[used] == ' ') {
        used++;
    }
    *rest = view_slice(*rest, used, rest->length - used);
    return part;
}

static void put_row(struct writer *writer, size_t row, const int *widths) {
    const struct markdown_table *table = writer->table;
    struct view rest[COLUMNS_MAX];
    struct lines *lines = writer->lines;
    bool has_more = true;
    for (size_t i = 0; i < table->columns; i++) {
        rest[i] = cell_at(table, row * table->columns + i);
    }
    const char *style = lines_style(lines, row == 0 ? STYLE_HEADING : STYLE_TEXT);
    while (has_more) {
        has_more = false;
        begin_line(writer);
        for (size_t i = 0; i < table->columns; i++) {
            struct view part = take_cell_line(&rest[i], widths[i]);
            bool is_last = i + 1 == table->columns;
            lines_raw_text(lines, style);
            lines_raw(lines, part);
            lines_raw_text(lines, style[0] != '\0' ? "\x1b[0m" : "");
            for (int at = columns_of_text(part); at < widths[i] && !is_last; at++) {
                lines_raw_text(lines, " ");
            }
            lines_raw_text(lines, is_last ? "" : " | ");
            has_more |= rest[i].length > 0;
        }
        lines_raw_text(writer->lines, "\n");
    }
}

static void put_rule(struct writer *writer, const int *widths) {
    const struct markdown_table *table = writer->table;
    begin_line(writer);
    for (size_t i = 0; i < table->columns; i++) {
        for (int at = 0; at < widths[i]; at++) {
            lines_raw_text(writer->lines, "-");
        }
        lines_raw_text(writer->lines, i + 1 == table->columns ? "" : "-|-");
    }
    lines_raw_text(writer->lines, "\n");
}

bool markdown_table_put(
    const struct markdown_table *table, struct lines *lines, const char *first, const char *prefix
) {
    int widths[COLUMNS_MAX];
    struct writer writer = {
        .table = table,
        .lines = lines,
        .first = first,
        .prefix = prefix,
        .width = lines->width > 0 ? lines->width - 2 : INT32_MAX / 2,
    };
    if (table->cell_count % table->columns != 0 || !fit_columns(&writer, widths)) {
        return false;
    }
    for (size_t row = 0; row < table->cell_count / table->columns; row++) {
        put_row(&writer, row, widths);
        if (row == 0) {
            put_rule(&writer, widths);
        }
    }
    lines->column = 0;
    return true;
}
