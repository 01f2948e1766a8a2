/* See tool_html.h. */
#include "tool_html.h"

#define NAME_BYTES_MAX   16 /* of a tag that means something here */
#define LINK_BYTES_MAX   ((size_t)400)
#define ENTITY_BYTES_MAX ((size_t)12)

enum tag_effect {
    TAG_BREAK,     /* a line ends */
    TAG_PARAGRAPH, /* an empty line, too */
    TAG_ITEM,      /* a line that begins with "- " */
    TAG_CELL,      /* a blank bar */
    TAG_PRE,       /* blanks inside are kept */
    TAG_SKIP,      /* what is inside is no text; ends at its own end tag whatever comes before */
    TAG_LINK,
    TAG_IMAGE
};

static const struct {
    const char *name;
    enum tag_effect effect;
    const char *mark; /* in front of what follows */
} tags[] = {
    {"a", TAG_LINK, ""},
    {"address", TAG_BREAK, ""},
    {"article", TAG_PARAGRAPH, ""},
    {"aside", TAG_PARAGRAPH, ""},
    {"blockquote", TAG_PARAGRAPH, "> "},
    {"br", TAG_BREAK, ""},
    {"dd", TAG_BREAK, "  "},
    {"div", TAG_BREAK, ""},
    {"dl", TAG_PARAGRAPH, ""},
    {"dt", TAG_BREAK, ""},
    {"figure", TAG_PARAGRAPH, ""},
    {"footer", TAG_PARAGRAPH, ""},
    {"form", TAG_PARAGRAPH, ""},
    {"h1", TAG_PARAGRAPH, "# "},
    {"h2", TAG_PARAGRAPH, "## "},
    {"h3", TAG_PARAGRAPH, "### "},
    {"h4", TAG_PARAGRAPH, "#### "},
    {"h5", TAG_PARAGRAPH, "##### "},
    {"h6", TAG_PARAGRAPH, "###### "},
    {"header", TAG_PARAGRAPH, ""},
    {"hr", TAG_PARAGRAPH, ""},
    {"img", TAG_IMAGE, ""},
    {"li", TAG_ITEM, "- "},
    {"main", TAG_PARAGRAPH, ""},
    {"nav", TAG_PARAGRAPH, ""},
    {"ol", TAG_BREAK, ""},
    {"option", TAG_BREAK, ""},
    {"p", TAG_PARAGRAPH, ""},
    {"pre", TAG_PRE, ""},
    {"script", TAG_SKIP, ""},
    {"section", TAG_PARAGRAPH, ""},
    {"style", TAG_SKIP, ""},
    {"svg", TAG_SKIP, ""},
    {"table", TAG_PARAGRAPH, ""},
    {"td", TAG_CELL, ""},
    {"template", TAG_SKIP, ""},
    {"th", TAG_CELL, ""},
    {"title", TAG_PARAGRAPH, ""},
    {"tr", TAG_BREAK, ""},
    {"ul", TAG_BREAK, ""},
};

static const struct {
    const char *name;
    uint32_t code_point;
} entities[] = {
    {"amp", '&'},      {"lt", '<'},       {"gt", '>'},       {"quot", '"'},      {"apos", '\''},
    {"nbsp", ' '},     {"copy", 0xa9},    {"reg", 0xae},     {"deg", 0xb0},      {"plusmn", 0xb1},
    {"middot", 0xb7},  {"laquo", 0xab},   {"raquo", 0xbb},   {"frac12", 0xbd},   {"times", 0xd7},
    {"eacute", 0xe9},  {"egrave", 0xe8},  {"agrave", 0xe0},  {"ccedil", 0xe7},   {"auml", 0xe4},
    {"ouml", 0xf6},    {"uuml", 0xfc},    {"Auml", 0xc4},    {"Ouml", 0xd6},     {"Uuml", 0xdc},
    {"szlig", 0xdf},   {"ndash", 0x2013}, {"mdash", 0x2014}, {"lsquo", 0x2018},  {"rsquo", 0x2019},
    {"ldquo", 0x201c}, {"rdquo", 0x201d}, {"bull", 0x2022},  {"hellip", 0x2026}, {"euro", 0x20ac},
    {"trade", 0x2122}, {"larr", 0x2190},  {"rarr", 0x2192},  {"minus", 0x2212},  {"le", 0x2264},
    {"ge", 0x2265},    {"ne", 0x2260},
};

struct page {
    struct view html;
    size_t at;
    struct buffer *out;
    struct error *error;
    size_t begin;     /* of our text in `out` */
    unsigned breaks;  /* line ends due before the next character: 0, 1 or 2 */
    bool blank;       /* a blank is due */
    const char *mark; /* due before the next character, behind the line ends */
    bool is_pre;
    struct view link; /* address of the link that is open, or empty */
};

static unsigned char lower(unsigned char c) {
    return c >= 'A' && c <= 'Z' ? (unsigned char)(c - 'A' + 'a') : c;
}

static bool is_space(unsigned char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

static bool is_named(struct view text, const char *name) {
    size_t length = strlen(name);
    bool same = text.length == length;
    for (size_t i = 0; same && i < length; i++) {
        same = lower(text.data[i]) == (unsigned char)name[i];
    }
    return same;
}

/* ---- output --------------------------------------------------------------------------------- */

/* What is due before the next visible thing. */
static result settle(struct page *page) {
    bool is_first = page->out->length == page->begin;
    for (; page->breaks > 0 && !is_first; page->breaks--) {
        TRY(buffer_append_byte(page->out, '\n', page->error));
        page->blank = false;
    }
    page->breaks = 0;
    if (page->blank && !is_first) {
        TRY(buffer_append_byte(page->out, ' ', page->error));
    }
    page->blank = false;
    const char *mark = page->mark;
    page->mark = "";
    return buffer_append_text(page->out, mark, page->error);
}

static result put(struct page *page, struct view text) {
    TRY(settle(page));
    return buffer_append(page->out, text, page->error);
}

static void break_line(struct page *page, unsigned count) {
    page->breaks = page->breaks > count ? page->breaks : count;
    page->blank = false;
}

/* A character reference; false: it is none, and the ampersand stands for itself. */
static bool take_entity(struct page *page, unsigned char out[4], size_t *length) {
    struct view rest = view_slice(page->html, page->at + 1, ENTITY_BYTES_MAX);
    size_t end = view_find(rest, view_of(";", 1), 0);
    uint32_t code_point = 0;
    if (end == SIZE_MAX || end == 0) {
        return false;
    }
    struct view name = view_slice(rest, 0, end);
    if (name.data[0] == '#') {
        bool is_hex = name.length > 1 && lower(name.data[1]) == 'x';
        for (size_t i = is_hex ? 2 : 1; i < name.length; i++) {
            unsigned char c = lower(name.data[i]);
            bool is_digit = c >= '0' && c <= '9';
            if (!is_digit && !(is_hex && c >= 'a' && c <= 'f')) {
                return false;
            }
            uint32_t digit = is_digit ? (uint32_t)(c - '0') : (uint32_t)(c - 'a' + 10);
            code_point =
                code_point > 0x10ffffU ? code_point : code_point * (is_hex ? 16 : 10) + digit;
        }
        bool is_wrong = code_point == 0 || code_point > 0x10ffffU ||
                        (code_point >= 0xd800U && code_point <= 0xdfffU);
        code_point = is_wrong ? 0xfffdU : code_point;
    }
    for (size_t i = 0; i < COUNT_OF(entities) && code_point == 0; i++) {
        code_point = view_equals_text(name, entities[i].name) ? entities[i].code_point : 0;
    }
    if (code_point == 0) {
        return false;
    }
    *length = utf8_encode(code_point, out);
    page->at += end + 2;
    return true;
}

static result take_text(struct page *page) {
    unsigned char c = page->html.data[page->at];
    unsigned char encoded[4] = {0};
    size_t length = 0;
    if (c == '&' && take_entity(page, encoded, &length)) {
        bool is_blank = length == 1 && is_space(encoded[0]);
        page->blank = page->blank || is_blank;
        return is_blank ? OK : put(page, view_of(encoded, length));
    }
    page->at += 1;
    if (page->is_pre && c == '\n') {
        page->breaks += page->breaks < 2 ? 1 : 0;
        return OK;
    }
    if (is_space(c) && !page->is_pre) {
        page->blank = true;
        return OK;
    }
    return c == '\r' ? OK : put(page, view_of(&c, 1));
}

/* ---- tags ----------------------------------------------------------------------------------- */

/* From "<" to behind the ">" that is in no quotes; the rest of the page when there is none. */
static struct view take_tag(struct page *page) {
    size_t from = page->at;
    unsigned char quote = 0;
    for (page->at += 1; page->at < page->html.length; page->at++) {
        unsigned char c = page->html.data[page->at];
        if (quote != 0) {
            quote = c == quote ? 0 : quote;
        } else if (c == '"' || c == '\'') {
            // Only behind "=": an apostrophe in a broken tag must not swallow the page.
            quote = page->html.data[page->at - 1] == '=' ? c : 0;
        } else if (c == '>') {
            page->at += 1;
            break;
        }
    }
    return view_slice(page->html, from, page->at - from);
}

/* Value of an attribute of a tag; empty when it has none. */
static struct view attribute(struct view tag, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 1; i + length + 1 < tag.length; i++) {
        if (!is_space(tag.data[i - 1]) || tag.data[i + length] != '=' ||
            !is_named(view_slice(tag, i, length), name)) {
            continue;
        }
        size_t from = i + length + 1;
        unsigned char quote = tag.data[from];
        bool is_quoted = quote == '"' || quote == '\'';
        from += is_quoted ? 1 : 0;
        size_t to = from;
        while (to < tag.length && (is_quoted ? tag.data[to] != quote
                                             : tag.data[to] != '>' && !is_space(tag.data[to]))) {
            to += 1;
        }
        return view_slice(tag, from, to - from);
    }
    return view_of(NULL, 0);
}

/* Behind the end tag of this name, or the end of the page. */
static void skip_element(struct page *page, const char *name) {
    size_t length = strlen(name);
    while (page->at < page->html.length) {
        size_t end = view_find(page->html, view_of("</", 2), page->at);
        page->at = end == SIZE_MAX ? page->html.length : end;
        if (is_named(view_slice(page->html, page->at + 2, length), name)) {
            (void)take_tag(page);
            return;
        }
        page->at += page->at < page->html.length ? 2 : 0;
    }
}

static result end_link(struct page *page) {
    struct view link = page->link;
    page->link = view_of(NULL, 0);
    if (link.length == 0) {
        return OK;
    }
    TRY(put(page, view_of(" (", 2)));
    TRY(put(page, link));
    return put(page, view_of(")", 1));
}

static result take_link(struct page *page, struct view tag, bool is_end) {
    TRY(end_link(page));
    struct view link = attribute(tag, "href");
    bool is_of_use = !is_end && link.length > 0 && link.length <= LINK_BYTES_MAX &&
                     link.data[0] != '#' &&
                     !is_named(view_slice(link, 0, strlen("javascript:")), "javascript:") &&
                     !is_named(view_slice(link, 0, strlen("data:")), "data:");
    page->link = is_of_use ? link : view_of(NULL, 0);
    return OK;
}

static result take_image(struct page *page, struct view tag) {
    struct view text = attribute(tag, "alt");
    if (text.length == 0 || text.length > LINK_BYTES_MAX) {
        return OK;
    }
    TRY(put(page, view_of("[", 1)));
    TRY(put(page, text));
    return put(page, view_of("]", 1));
}

static result apply(struct page *page, size_t index, struct view tag, bool is_end) {
    switch (tags[index].effect) {
    case TAG_BREAK:
    case TAG_ITEM:
        break_line(page, 1);
        break;
    case TAG_PARAGRAPH:
        break_line(page, 2);
        break;
    case TAG_CELL:
        if (!is_end && page->breaks == 0 && page->out->length > page->begin) {
            return put(page, view_of(" | ", 3));
        }
        return OK;
    case TAG_PRE:
        break_line(page, 2);
        page->is_pre = !is_end;
        break;
    case TAG_SKIP:
        if (!is_end) {
            skip_element(page, tags[index].name);
        }
        return OK;
    case TAG_LINK:
        return take_link(page, tag, is_end);
    case TAG_IMAGE:
        return take_image(page, tag);
    default:
        return OK;
    }
    if (is_end || tags[index].mark[0] != '\0') { // "<li><p>" is an item still
        page->mark = is_end ? "" : tags[index].mark;
    }
    return OK;
}

static result take_markup(struct page *page) {
    if (view_starts_with(view_slice(page->html, page->at, 4), view_of("<!--", 4))) {
        size_t end = view_find(page->html, view_of("-->", 3), page->at + 4);
        page->at = end == SIZE_MAX ? page->html.length : end + 3;
        return OK;
    }
    struct view tag = take_tag(page);
    bool is_end = tag.length > 1 && tag.data[1] == '/';
    struct view name = view_slice(tag, is_end ? 2 : 1, NAME_BYTES_MAX);
    size_t length = 0;
    while (length < name.length && !is_space(name.data[length]) && name.data[length] != '>' &&
           name.data[length] != '/') {
        length += 1;
    }
    name = view_slice(name, 0, length);
    for (size_t i = 0; i < COUNT_OF(tags); i++) {
        if (is_named(name, tags[i].name)) {
            return apply(page, i, tag, is_end);
        }
    }
    return OK; // inline, or unknown: its text goes on
}

static bool begins_tag(const struct page *page) {
    if (page->html.data[page->at] != '<' || page->at + 1 >= page->html.length) {
        return false;
    }
    unsigned char c = lower(page->html.data[page->at + 1]);
    return (c >= 'a' && c <= 'z') || c == '/' || c == '!' || c == '?';
}

result tool_html_text(struct view html, struct buffer *out, struct error *error) {
    struct page page = {.html = html, .out = out, .error = error, .begin = out->length, .mark = ""};
    while (page.at < html.length) {
        TRY(begins_tag(&page) ? take_markup(&page) : take_text(&page));
    }
    return end_link(&page);
}
