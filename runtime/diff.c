/* Lines that both texts have in the same order are found by the longest common subsequence, behind
 * the equal ends, which are cut off first. Too many lines for its table: all of one, all of the
 * other.
 */
#include "diff.h"

#include "sandbox/sandbox.h"

#define TABLE_LINES_MAX 400 /* of either side: 320 kB of counts */
#define CONTEXT_LINES   2

static enum style style_of(struct view line) {
    if (view_starts_with(line, view_of_text("+++")) ||
        view_starts_with(line, view_of_text("---")) ||
        view_starts_with(line, view_of_text("diff ")) ||
        view_starts_with(line, view_of_text("index ")) ||
        view_starts_with(line, view_of_text("*** "))) {
        return STYLE_HEADING;
    }
    if (view_starts_with(line, view_of_text("@@"))) {
        return STYLE_DIM;
    }
    return line.length > 0 && line.data[0] == '+'   ? STYLE_ADDED
           : line.length > 0 && line.data[0] == '-' ? STYLE_REMOVED
                                                    : STYLE_TEXT;
}

/* False: it was cut. */
static bool put_line(
    struct lines *lines, enum style style, const char *prefix, size_t bytes, struct view line
) {
    struct view shown = view_slice(line, 0, bytes);
    shown.length = utf8_valid_prefix(shown);
    bool is_cut = shown.length < line.length;
    if (shown.length == 0) {
        lines_put_line(lines, STYLE_TEXT, "", view_of_text(prefix));
        return !is_cut;
    }
    lines_put(lines, style, prefix, shown);
    lines_put_line(lines, style, prefix, view_of_text(is_cut ? " ..." : ""));
    return !is_cut;
}

static struct diff_form filled(const struct diff_form *form) {
    struct diff_form out = *form;
    out.lines_max = form->lines_max == 0 ? DIFF_LINES_SHOWN : form->lines_max;
    out.line_bytes = form->line_bytes == 0 ? DIFF_LINE_BYTES : form->line_bytes;
    return out;
}

static bool next_line(struct cursor *cursor, struct view *line) {
    if (cursor_remaining(cursor) == 0) {
        return false;
    }
    if (!cursor_take_until(cursor, '\n', line)) {
        *line = (struct view){0};
        return cursor_take(cursor, cursor_remaining(cursor), line);
    }
    return true;
}

static void put_rest(struct lines *lines, const char *prefix, size_t count) {
    if (count > 0) {
        char note[64];
        int length = snprintf(note, sizeof note, "... %zu more lines ...", count);
        ASSERT(length > 0);
        lines_put_line(lines, STYLE_DIM, prefix, view_of_text(note));
    }
}

bool diff_put(struct lines *lines, const struct diff_form *given, struct view patch) {
    const struct diff_form form = filled(given);
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, LINES_BYTES_MAX);
    if (is_failed(sandbox_sanitise(patch, 0, &harmless, NULL))) {
        return false; /* without memory it is not shown */
    }
    struct cursor cursor = cursor_over(buffer_view(&harmless));
    struct view line;
    size_t count = 0;
    bool is_whole = true;
    for (; next_line(&cursor, &line); count++) {
        if (count < form.lines_max) {
            is_whole &= put_line(lines, style_of(line), form.prefix, form.line_bytes, line);
        }
    }
    put_rest(lines, form.prefix, count > form.lines_max ? count - form.lines_max : 0);
    return is_whole && count <= form.lines_max;
}

/* ---- two texts ------------------------------------------------------------------------------ */

struct line_list {
    struct view *lines;
    size_t count;
};

static void line_list_deinit(struct line_list *list) {
    free(list->lines);
}

static bool line_list_split(struct line_list *list, struct view text) {
    struct cursor cursor = cursor_over(text);
    struct view line;
    size_t count = 0;
    while (next_line(&cursor, &line)) {
        count++;
    }
    list->lines = calloc(count + 1, sizeof *list->lines);
    if (list->lines == NULL) {
        return false;
    }
    cursor = cursor_over(text);
    while (next_line(&cursor, &line)) {
        list->lines[list->count++] = line;
    }
    ASSERT(list->count == count);
    return true;
}

/* Shows lines one after the other, as many as there is room for. */
struct change {
    struct lines *lines;
    struct diff_form form;
    size_t shown, left_out;
    bool is_cut;
};

static void put_changed(struct change *change, char mark, struct view line) {
    if (change->shown == change->form.lines_max) {
        change->left_out++;
        return;
    }
    change->shown++;
    char prefix[48];
    int length = snprintf(prefix, sizeof prefix, "%s%c ", change->form.prefix, mark);
    ASSERT(length > 0 && (size_t)length < sizeof prefix);
    enum style style = mark == '+' ? STYLE_ADDED : mark == '-' ? STYLE_REMOVED : STYLE_TEXT;
    change->is_cut |= !put_line(change->lines, style, prefix, change->form.line_bytes, line);
}

/* Lines that stay between two changes: those beside them. */
static void put_kept(struct change *change, const struct view *kept, size_t count) {
    size_t hidden = count > 2 * CONTEXT_LINES + 1 ? count - 2 * CONTEXT_LINES : 0;
    for (size_t i = 0; i < count; i++) {
        if (hidden == 0 || i < CONTEXT_LINES || i >= count - CONTEXT_LINES) {
            put_changed(change, ' ', kept[i]);
        } else if (i == CONTEXT_LINES && change->shown < change->form.lines_max) {
            char note[64];
            int length = snprintf(note, sizeof note, "... %zu lines stay ...", hidden);
            ASSERT(length > 0);
            lines_put_line(change->lines, STYLE_DIM, change->form.prefix, view_of_text(note));
        }
    }
}

/* Counts of common lines: table[i][j] for the lines from i of the one and from j of the other. */
static uint16_t *
make_table(const struct view *a, size_t rows, const struct view *b, size_t columns) {
    uint16_t *table = calloc((rows + 1) * (columns + 1), sizeof *table);
    if (table == NULL) {
        return NULL;
    }
    size_t stride = columns + 1;
    for (size_t i = rows; i-- > 0;) {
        for (size_t j = columns; j-- > 0;) {
            uint16_t below = table[(i + 1) * stride + j];
            uint16_t beside = table[i * stride + j + 1];
            table[i * stride + j] = view_equals(a[i], b[j])
                                        ? (uint16_t)(table[(i + 1) * stride + j + 1] + 1)
                                        : (below > beside ? below : beside);
        }
    }
    return table;
}

static void put_middle(
    struct change *change, const struct view *a, size_t rows, const struct view *b, size_t columns
) {
    bool is_small = rows <= TABLE_LINES_MAX && columns <= TABLE_LINES_MAX;
    uint16_t *table = is_small ? make_table(a, rows, b, columns) : NULL;
    size_t stride = columns + 1;
    size_t i = 0;
    size_t j = 0;
    while (i < rows || j < columns) {
        bool is_both = i < rows && j < columns;
        if (table != NULL && is_both && view_equals(a[i], b[j])) {
            size_t count = 1;
            while (i + count < rows && j + count < columns &&
                   view_equals(a[i + count], b[j + count])) {
                count++;
            }
            put_kept(change, a + i, count);
            i += count;
            j += count;
        } else if (i < rows && (j == columns || table == NULL || table[(i + 1) * stride + j] >= table[i * stride + j + 1])) {
            put_changed(change, '-', a[i++]);
        } else {
            put_changed(change, '+', b[j++]);
        }
    }
    free(table);
}

static void put_lists(struct change *change, const struct line_list *a, const struct line_list *b) {
    size_t least = a->count < b->count ? a->count : b->count;
    size_t head = 0;
    while (head < least && view_equals(a->lines[head], b->lines[head])) {
        head++;
    }
    size_t tail = 0;
    while (tail < least - head &&
           view_equals(a->lines[a->count - 1 - tail], b->lines[b->count - 1 - tail])) {
        tail++;
    }
    for (size_t i = head > CONTEXT_LINES ? head - CONTEXT_LINES : 0; i < head; i++) {
        put_changed(change, ' ', a->lines[i]);
    }
    put_middle(
        change, a->lines + head, a->count - head - tail, b->lines + head, b->count - head - tail
    );
    for (size_t i = a->count - tail; i < a->count && i < a->count - tail + CONTEXT_LINES; i++) {
        put_changed(change, ' ', a->lines[i]);
    }
}

bool diff_put_change(
    struct lines *lines, const struct diff_form *form, struct view old_text, struct view new_text
) {
    CLEANUP(buffer_deinit) struct buffer harmless_old;
    CLEANUP(buffer_deinit) struct buffer harmless_new;
    buffer_init(&harmless_old, LINES_BYTES_MAX);
    buffer_init(&harmless_new, LINES_BYTES_MAX);
    CLEANUP(line_list_deinit) struct line_list a = {0};
    CLEANUP(line_list_deinit) struct line_list b = {0};
    if (is_failed(sandbox_sanitise(old_text, 0, &harmless_old, NULL)) ||
        is_failed(sandbox_sanitise(new_text, 0, &harmless_new, NULL)) ||
        !line_list_split(&a, buffer_view(&harmless_old)) ||
        !line_list_split(&b, buffer_view(&harmless_new))) {
        return false; /* without memory it is not shown */
    }
    struct change change = {.lines = lines, .form = filled(form)};
    put_lists(&change, &a, &b);
    put_rest(lines, form->prefix, change.left_out);
    return change.left_out == 0 && !change.is_cut;
}
