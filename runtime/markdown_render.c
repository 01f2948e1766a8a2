/* One block through md4c. Text is collected in words, which go to the line they fit into; a word
 * carries the escapes of the marks that begin and end in it. Depth is bounded; a block that is deeper, or
 * a table that does not fit, is shown as it stands.
 */
#include "markdown.h"
#include "markdown_table.h"

#include "sandbox/sandbox.h"
#include <md4c.h>

#define DEPTH_MAX    16
#define PREFIX_BYTES 96

enum mark { MARK_STRONG = 1, MARK_EMPHASIS = 2, MARK_CODE = 4, MARK_LINK = 8, MARK_DELETED = 16 };

struct list {
    bool is_ordered;
    unsigned number;
};

struct render {
    struct lines *lines;
    struct list lists[DEPTH_MAX];
    size_t list_count;
    size_t prefix_before[DEPTH_MAX]; /* lengths, one for each container */
    size_t container_count;
    char prefix[PREFIX_BYTES + 1];
    char first[PREFIX_BYTES + 1]; /* of the next line, where an item begins */
    bool has_first;
    struct buffer word;
    int word_columns;
    unsigned marks, word_marks; /* now, and where the word began */
    bool has_space;             /* between the line and the word */
    bool in_code;
    struct markdown_table *table; /* while one is read */
};

/* ---- lines ---------------------------------------------------------------------------------- */

static int width_of(const struct render *render) {
    return render->lines->width > 0 ? render->lines->width - 2 : INT32_MAX / 2;
}

static void put_codes(struct render *render, struct buffer *out, unsigned marks) {
    static const struct {
        unsigned mark;
        const char *code;
    } codes[] = {
        {MARK_STRONG, "\x1b[1m"},
        {MARK_EMPHASIS, "\x1b[3m"},
        {MARK_CODE, "\x1b[36m"},
        {MARK_LINK, "\x1b[4m"},
        {MARK_DELETED, "\x1b[9m"},
    };
    for (size_t i = 0; i < COUNT_OF(codes) && render->lines->has_colour; i++) {
        if ((marks & codes[i].mark) != 0) {
            result_ignore(buffer_append_text(out, codes[i].code, NULL)); /* see lines.h */
        }
    }
}

static void end_codes(struct render *render, struct buffer *out, unsigned marks) {
    if (marks != 0 && render->lines->has_colour) {
        result_ignore(buffer_append_text(out, "\x1b[0m", NULL));
    }
}

static void begin_line(struct render *render) {
    const char *prefix = render->has_first ? render->first : render->prefix;
    lines_raw_text(render->lines, prefix);
    render->lines->column = columns_of_text(view_of_text(prefix));
    render->has_first = false;
}

static void end_line(struct render *render) {
    lines_raw_text(render->lines, "\n");
    render->lines->column = 0;
}

/* The word that was collected, in this line or the next. */
static void put_word(struct render *render) {
    if (render->word_columns == 0) {
        return; /* escapes wait for text */
    }
    struct lines *lines = render->lines;
    bool is_begun = lines->column > 0;
    int space = is_begun && render->has_space ? 1 : 0;
    if (is_begun && lines->column + space + render->word_columns > width_of(render)) {
        end_codes(render, &lines->text, render->word_marks);
        end_line(render);
        is_begun = false;
    }
    if (!is_begun) {
        begin_line(render);
        put_codes(render, &lines->text, render->word_marks);
    } else if (space > 0) {
        lines_raw_text(lines, " ");
        lines->column++;
    }
    lines_raw(lines, buffer_view(&render->word));
    lines->column += render->word_columns;
    buffer_clear(&render->word);
    render->word_columns = 0;
    render->word_marks = render->marks;
    render->has_space = false;
}

static void end_text(struct render *render) {
    put_word(render);
    if (render->word.length > 0) { /* escapes behind the last word */
        lines_raw(render->lines, buffer_view(&render->word));
        buffer_clear(&render->word);
    }
    if (render->lines->column > 0) {
        end_line(render);
    }
    render->has_space = false;
    render->word_marks = render->marks;
}

static void put_character(struct render *render, struct view character, uint32_t code_point) {
    int columns = columns_of(code_point);
    int room = width_of(render) - columns_of_text(view_of_text(render->prefix));
    if (render->word_columns + columns > room) { /* longer than any line */
        put_word(render);
        end_codes(render, &render->lines->text, render->marks);
        end_line(render);
    }
    if (columns == 0 && render->word.length > 1024) {
        return; /* a heap of marks on one character */
    }
    result_ignore(buffer_append(&render->word, character, NULL));
    render->word_columns += columns;
}

static void put_words(struct render *render, struct view text, bool keeps_blanks) {
    size_t length = 0;
    for (size_t at = 0; at < text.length; at += length) {
        uint32_t code_point = 0;
        struct view rest = view_slice(text, at, text.length - at);
        length = utf8_decode(rest, &code_point);
        length = length == 0 ? 1 : length;
        bool is_blank = code_point == ' ' || code_point == '\t' || code_point == '\n';
        if (is_blank && !keeps_blanks) {
            put_word(render);
            render->has_space = true;
        } else if (is_blank) {
            put_character(render, view_of_text(" "), ' ');
        } else {
            put_character(render, view_slice(rest, 0, length), code_point);
        }
    }
}

static void put_code_lines(struct render *render, struct view text) {
    for (size_t at = 0; at < text.length;) {
        size_t end = view_find(text, view_of_text("\n"), at);
        end = end == SIZE_MAX ? text.length : end;
        struct view line = view_slice(text, at, end - at);
        if (render->lines->column == 0 && line.length > 0) {
            begin_line(render);
            lines_raw_text(render->lines, "  ");
            render->lines->column += 2;
        }
        lines_put(render->lines, STYLE_CODE, render->prefix, line);
        if (end < text.length) {
            end_line(render);
        }
        at = end + 1;
    }
}

/* ---- containers ----------------------------------------------------------------------------- */

/* What stands in front of the lines of an item or a quotation. Beyond half of the width, and beyond
 * a depth, nothing is added. */
static bool enter_container(struct render *render, const char *first, const char *later) {
    if (render->container_count == DEPTH_MAX) {
        return false;
    }
    size_t length = strlen(render->prefix);
    render->prefix_before[render->container_count++] = length;
    if (!render->has_first) {
        memcpy(render->first, render->prefix, length + 1);
    }
    size_t first_length = strlen(render->first);
    render->has_first = true;
    bool fits = (int)(length + strlen(later)) < width_of(render) / 2 &&
                length + strlen(later) <= PREFIX_BYTES &&
                first_length + strlen(first) <= PREFIX_BYTES;
    if (fits) {
        memcpy(render->first + first_length, first, strlen(first) + 1);
        memcpy(render->prefix + length, later, strlen(later) + 1);
    }
    return true;
}

static void leave_container(struct render *render) {
    end_text(render);
    if (render->has_first) { /* nothing was in it */
        begin_line(render);
        end_line(render);
    }
    ASSERT(render->container_count > 0);
    render->prefix[render->prefix_before[--render->container_count]] = '\0';
}

static bool enter_item(struct render *render, const MD_BLOCK_LI_DETAIL *detail) {
    ASSERT(render->list_count > 0);
    struct list *list = &render->lists[render->list_count - 1];
    char marker[32] = "- ";
    if (list->is_ordered) {
        int length = snprintf(marker, sizeof marker, "%u. ", list->number++);
        ASSERT(length > 0);
    } else if (detail->is_task) {
        int length = snprintf(marker, sizeof marker, "[%c] ", detail->task_mark);
        ASSERT(length > 0);
    }
    char later[32];
    size_t length = strlen(marker);
    memset(later, ' ', length);
    later[length] = '\0';
    return enter_container(render, marker, later);
}

/* ---- callbacks of md4c: 0 to go on ---------------------------------------------------------- */

static int enter_block(MD_BLOCKTYPE type, void *detail, void *context) {
    struct render *render = context;
    bool fine = true;
    if (type == MD_BLOCK_UL || type == MD_BLOCK_OL) {
        end_text(render);
        fine = render->list_count < DEPTH_MAX;
        if (fine) {
            const MD_BLOCK_OL_DETAIL *ordered = detail;
            render->lists[render->list_count++] = (struct list){
                .is_ordered = type == MD_BLOCK_OL,
                .number = type == MD_BLOCK_OL ? ordered->start : 0,
            };
        }
    } else if (type == MD_BLOCK_LI) {
        end_text(render);
        fine = enter_item(render, detail);
    } else if (type == MD_BLOCK_QUOTE) {
        end_text(render);
        fine = enter_container(render, "> ", "> ");
    } else if (type == MD_BLOCK_H) {
        const MD_BLOCK_H_DETAIL *heading = detail;
        if (!render->lines->has_colour) {
            put_words(render, view_slice(view_of_text("######"), 0, heading->level), true);
            put_words(render, view_of_text(" "), true);
        }
        render->marks |= MARK_STRONG;
        render->word_marks = render->lines->has_colour ? render->marks : 0;
    } else if (type == MD_BLOCK_CODE) {
        end_text(render);
        render->in_code = true;
    } else if (type == MD_BLOCK_HR) {
        begin_line(render);
        lines_raw_text(render->lines, "----------");
        end_line(render);
    } else if (type == MD_BLOCK_TABLE) {
        const MD_BLOCK_TABLE_DETAIL *table = detail;
        render->table = markdown_table_create(table->col_count);
        fine = render->table != NULL;
    }
    return fine ? 0 : 1;
}

static int leave_block(MD_BLOCKTYPE type, void *detail, void *context) {
    struct render *render = context;
    (void)detail;
    if (type == MD_BLOCK_UL || type == MD_BLOCK_OL) {
        render->list_count--;
    } else if (type == MD_BLOCK_LI || type == MD_BLOCK_QUOTE) {
        leave_container(render);
    } else if (type == MD_BLOCK_H) {
        end_codes(render, &render->word, render->marks);
        render->marks = 0;
        end_text(render);
    } else if (type == MD_BLOCK_P) {
        end_text(render);
    } else if (type == MD_BLOCK_CODE) {
        render->in_code = false;
        lines_end(render->lines);
    } else if (type == MD_BLOCK_TH || type == MD_BLOCK_TD) {
        return render->table != NULL && markdown_table_end_cell(render->table) ? 0 : 1;
    } else if (type == MD_BLOCK_TABLE) {
        const char *first = render->has_first ? render->first : render->prefix;
        bool fine = markdown_table_put(render->table, render->lines, first, render->prefix);
        render->has_first = false;
        markdown_table_destroy(render->table);
        render->table = NULL;
        return fine ? 0 : 1;
    }
    return 0;
}

static unsigned mark_of(MD_SPANTYPE type) {
    return type == MD_SPAN_STRONG ? MARK_STRONG
           : type == MD_SPAN_EM   ? MARK_EMPHASIS
           : type == MD_SPAN_CODE ? MARK_CODE
           : type == MD_SPAN_DEL  ? MARK_DELETED
           : type == MD_SPAN_A    ? MARK_LINK
                                  : 0;
}

/* What stands for a mark where there is no colour. */
static const char *sign_of(MD_SPANTYPE type) {
    return type == MD_SPAN_STRONG ? "**"
           : type == MD_SPAN_EM   ? "*"
           : type == MD_SPAN_CODE ? "`"
           : type == MD_SPAN_DEL  ? "~~"
                                  : "";
}

static void put_sign(struct render *render, MD_SPANTYPE type) {
    if (!render->lines->has_colour) {
        put_words(render, view_of_text(sign_of(type)), true);
    }
}

static int enter_span(MD_SPANTYPE type, void *detail, void *context) {
    struct render *render = context;
    (void)detail;
    if (render->table != NULL) {
        return 0;
    }
    put_sign(render, type);
    if (type == MD_SPAN_IMG) {
        put_words(render, view_of_text("[image: "), false);
    }
    unsigned mark = mark_of(type);
    if ((render->marks & mark) == 0) {
        render->marks |= mark;
        put_codes(render, &render->word, mark);
    }
    return 0;
}

/* Where a link leads, unless its text says so. */
static void put_target(struct render *render, const MD_ATTRIBUTE *target) {
    struct view href = view_of(target->text, target->size);
    struct view word = buffer_view(&render->word);
    struct view plain =
        view_starts_with(href, view_of_text("mailto:")) ? view_slice(href, 7, href.length) : href;
    if (href.length > 0 && view_find(word, plain, 0) == SIZE_MAX) {
        put_words(render, view_of_text(" ("), false);
        put_words(render, href, true);
        put_words(render, view_of_text(")"), true);
    }
}

static int leave_span(MD_SPANTYPE type, void *detail, void *context) {
    struct render *render = context;
    if (render->table != NULL) {
        return 0;
    }
    unsigned mark = mark_of(type);
    if (mark != 0 && (render->marks & mark) != 0) {
        end_codes(render, &render->word, mark);
        render->marks &= ~mark;
        put_codes(render, &render->word, render->marks);
    }
    put_sign(render, type);
    if (type == MD_SPAN_A) {
        const MD_SPAN_A_DETAIL *link = detail;
        put_target(render, &link->href);
    } else if (type == MD_SPAN_IMG) {
        const MD_SPAN_IMG_DETAIL *image = detail;
        put_words(render, view_of_text("]"), false);
        put_target(render, &image->src);
    }
    return 0;
}

/* "&amp;" and the like; false: shown as it stands. Controls and marks of direction stay written. */
static bool decode_entity(struct view entity, struct buffer *out) {
    static const struct {
        const char *name;
        const char *text;
    } names[] = {
        {"&amp;", "&"},
        {"&lt;", "<"},
        {"&gt;", ">"},
        {"&quot;", "\""},
        {"&apos;", "'"},
        {"&nbsp;", " "},
        {"&mdash;", "\xe2\x80\x94"},
        {"&ndash;", "\xe2\x80\x93"},
        {"&hellip;", "\xe2\x80\xa6"},
        {"&rarr;", "\xe2\x86\x92"},
        {"&copy;", "\xc2\xa9"},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (view_equals_text(entity, names[i].name)) {
            return is_ok(buffer_append_text(out, names[i].text, NULL));
        }
    }
    uint64_t number = 0;
    struct view digits = entity.length > 3 ? view_slice(entity, 2, entity.length - 3) : entity;
    if (!view_starts_with(entity, view_of_text("&#")) || !parse_u64(digits, &number) ||
        number < 0x20 || number > 0x10FFFF || (number >= 0xD800 && number < 0xE000)) {
        return false;
    }
    unsigned char bytes[4];
    size_t length = utf8_encode((uint32_t)number, bytes);
    return is_ok(sandbox_sanitise(view_of(bytes, length), 0, out, NULL));
}

static int put_text(MD_TEXTTYPE type, const MD_CHAR *data, MD_SIZE size, void *context) {
    struct render *render = context;
    struct view text = view_of(data, size);
    CLEANUP(buffer_deinit) struct buffer decoded;
    buffer_init(&decoded, 4096);
    if (type == MD_TEXT_ENTITY && decode_entity(text, &decoded)) {
        text = buffer_view(&decoded);
    }
    if (render->table != NULL) {
        bool is_break = type == MD_TEXT_BR || type == MD_TEXT_SOFTBR;
        struct view cell = is_break ? view_of_text(" ") : text;
        return markdown_table_append(render->table, cell) ? 0 : 1;
    }
    if (render->in_code) {
        put_code_lines(render, text);
    } else if (type == MD_TEXT_BR) {
        put_word(render);
        end_codes(render, &render->lines->text, render->marks);
        end_line(render);
        render->has_space = false;
    } else if (type == MD_TEXT_SOFTBR) {
        put_words(render, view_of_text(" "), false);
    } else {
        put_words(render, text, type == MD_TEXT_CODE);
    }
    return 0;
}

void markdown_render(struct lines *lines, struct view block) {
    static const MD_PARSER parser = {
        .flags = MD_FLAG_NOHTML | MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_TASKLISTS |
                 MD_FLAG_PERMISSIVEAUTOLINKS,
        .enter_block = enter_block,
        .leave_block = leave_block,
        .enter_span = enter_span,
        .leave_span = leave_span,
        .text = put_text,
    };
    ASSERT(lines->column == 0);
    struct render render = {.lines = lines};
    buffer_init(&render.word, LINES_BYTES_MAX);
    /* Items of a list come one by one: the indent of each is its place in the list. */
    size_t indent = 0;
    while (indent < block.length && indent < 3 && block.data[indent] == ' ') {
        render.prefix[indent++] = ' ';
    }
    size_t before = lines->text.length;
    int parsed = md_parse((const char *)block.data, (MD_SIZE)block.length, &parser, &render);
    if (parsed != 0) {
        lines->text.length = before;
        lines->column = 0;
        lines_put(lines, STYLE_TEXT, "", block);
    }
    lines_end(lines);
    markdown_table_destroy(render.table);
    buffer_deinit(&render.word);
}
