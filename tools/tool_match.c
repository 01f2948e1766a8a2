/* Patterns of names and paths. See tool_match.h.
 *
 * A star first takes nothing, and one more each time that what is behind it does not fit. Only the
 * last star has to be gone back to: what is before it fits whatever it takes. The same holds for
 * the parts of a path and **.
 */
#include "tool_match.h"

#include <ctype.h>

static bool is_in_named_class(struct view name, unsigned char byte) {
    static const struct {
        const char *name;
        int (*test)(int byte);
    } classes[] = {
        {"alnum", isalnum},
        {"alpha", isalpha},
        {"blank", isblank},
        {"cntrl", iscntrl},
        {"digit", isdigit},
        {"graph", isgraph},
        {"lower", islower},
        {"print", isprint},
        {"punct", ispunct},
        {"space", isspace},
        {"upper", isupper},
        {"xdigit", isxdigit},
    };
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (view_equals_text(name, classes[i].name)) {
            return byte < 0x80 && classes[i].test(byte) != 0;
        }
    }
    return false;
}

/* The byte at `at`, which a backslash may protect; `*at` goes behind it. */
static unsigned char class_byte(struct view pattern, size_t *at) {
    *at += pattern.data[*at] == '\\' && *at + 1 < pattern.length;
    unsigned char byte = pattern.data[*at];
    *at += 1;
    return byte;
}

/* "[...]" at `*at`, which goes behind it; false, with `*at` at the end, when it is not closed. */
static bool match_class(struct view pattern, size_t *at, unsigned char byte) {
    size_t i = *at + 1;
    bool is_negated = i < pattern.length && (pattern.data[i] == '!' || pattern.data[i] == '^');
    bool is_in = false;
    i += is_negated;
    for (size_t first = i; i < pattern.length && (pattern.data[i] != ']' || i == first);) {
        size_t close = view_find(pattern, view_of_text(":]"), i + 2);
        if (pattern.data[i] == '[' && i + 1 < pattern.length && pattern.data[i + 1] == ':' &&
            close != SIZE_MAX) {
            is_in = is_in || is_in_named_class(view_slice(pattern, i + 2, close - i - 2), byte);
            i = close + 2;
            continue;
        }
        unsigned char low = class_byte(pattern, &i);
        unsigned char high = low;
        if (i + 1 < pattern.length && pattern.data[i] == '-' && pattern.data[i + 1] != ']') {
            i += 1;
            high = class_byte(pattern, &i);
        }
        is_in = is_in || (low <= byte && byte <= high);
    }
    bool is_closed = i < pattern.length;
    *at = is_closed ? i + 1 : pattern.length;
    return is_closed && is_in != is_negated;
}

/* One item of the pattern, which is no star, against one byte. */
static bool match_item(struct view pattern, size_t *at, unsigned char byte) {
    unsigned char item = pattern.data[*at];
    if (item == '[') {
        return match_class(pattern, at, byte);
    }
    if (item == '\\') {
        bool is_last = *at + 1 == pattern.length; // git: such a pattern matches nothing
        *at += is_last ? 1 : 2;
        return !is_last && pattern.data[*at - 1] == byte;
    }
    *at += 1;
    return item == '?' || item == byte;
}

bool pattern_fits_name(struct view pattern, struct view name) {
    size_t at = 0;
    size_t star = SIZE_MAX; // behind the last one
    size_t star_name = 0;   // what it takes ends here
    for (size_t i = 0;;) {
        if (at < pattern.length && pattern.data[at] == '*') {
            at += 1;
            star = at;
            star_name = i;
            continue;
        }
        if (i == name.length && at == pattern.length) {
            return true;
        }
        if (i < name.length && at < pattern.length && match_item(pattern, &at, name.data[i])) {
            i += 1;
            continue;
        }
        if (star == SIZE_MAX || star_name == name.length) {
            return false;
        }
        star_name += 1;
        i = star_name;
        at = star;
    }
}

/* The part at `at`; `*next` is above the length when it is the last. */
static struct view part_at(struct view path, size_t at, size_t *next) {
    size_t slash = view_find(path, view_of_text("/"), at);
    size_t end = slash == SIZE_MAX ? path.length : slash;
    *next = end + 1;
    return view_slice(path, at, end - at);
}

bool pattern_fits_path(struct view pattern, struct view path) {
    size_t at = 0;
    size_t star = SIZE_MAX; // the part behind the last **
    size_t star_path = 0;
    for (size_t i = 0;;) {
        bool is_pattern_end = at > pattern.length;
        bool is_path_end = i > path.length;
        size_t next = 0;
        size_t next_path = 0;
        if (is_pattern_end && is_path_end) {
            return true;
        }
        if (!is_pattern_end) {
            struct view part = part_at(pattern, at, &next);
            if (view_equals_text(part, "**")) {
                if (next > pattern.length) {
                    return !is_path_end;
                }
                at = next;
                star = next;
                star_path = i;
                continue;
            }
            if (!is_path_end && pattern_fits_name(part, part_at(path, i, &next_path))) {
                at = next;
                i = next_path;
                continue;
            }
        }
        if (star == SIZE_MAX || star_path > path.length) {
            return false;
        }
        (void)part_at(path, star_path, &star_path);
        i = star_path;
        at = star;
    }
}

/* -------------------------------------------------------------------- braces ---- */

/* The first "{...}" with a comma of its own: `*open` and `*close` are its braces. */
static bool find_braces(struct view text, size_t *open, size_t *close) {
    for (size_t begin = 0; begin < text.length; begin++) {
        if (text.data[begin] != '{') {
            begin += text.data[begin] == '\\';
            continue;
        }
        size_t depth = 0;
        bool has_comma = false;
        for (size_t i = begin; i < text.length; i++) {
            unsigned char byte = text.data[i];
            depth += byte == '{';
            depth -= byte == '}';
            has_comma = has_comma || (byte == ',' && depth == 1);
            i += byte == '\\';
            if (depth == 0) {
                *open = begin;
                *close = i;
                break;
            }
        }
        if (depth == 0 && has_comma) {
            return true;
        }
    }
    return false;
}

/* Puts the alternatives of the first braces of `text` at the end of `out`. */
static result
expand_once(struct view text, size_t open, size_t close, struct buffer *out, struct error *error) {
    size_t depth = 0;
    size_t from = open + 1;
    for (size_t i = open; i <= close; i++) {
        unsigned char byte = text.data[i];
        depth += byte == '{';
        depth -= byte == '}';
        if ((byte == ',' && depth == 1) || depth == 0) {
            TRY(buffer_append(out, view_slice(text, 0, open), error));
            TRY(buffer_append(out, view_slice(text, from, i - from), error));
            TRY(buffer_append(out, view_slice(text, close + 1, SIZE_MAX), error));
            TRY(buffer_append_byte(out, '\0', error));
            from = i + 1;
        }
        i += byte == '\\';
    }
    return OK;
}

result patterns_expand(struct view pattern, struct buffer *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer waiting = {NULL, 0, 0, 0};
    buffer_init(&waiting, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&waiting, pattern, error));
    TRY(buffer_append_byte(&waiting, '\0', error));
    struct cursor rest = cursor_over(buffer_view(&waiting));
    struct view next;
    for (size_t count = 0; cursor_take_until(&rest, '\0', &next); count++) {
        size_t open = 0;
        size_t close = 0;
        if (count == PATTERNS_MAX) {
            FAIL(error, LIMIT, "more than %zu patterns in braces", PATTERNS_MAX);
        }
        if (!find_braces(next, &open, &close)) {
            TRY(buffer_append(out, next, error));
            TRY(buffer_append_byte(out, '\0', error));
            continue;
        }
        CLEANUP(buffer_deinit) struct buffer copy = {NULL, 0, 0, 0}; // `waiting` moves as it grows
        buffer_init(&copy, BUFFER_CEILING_DEFAULT);
        TRY(buffer_append(&copy, next, error));
        TRY(expand_once(buffer_view(&copy), open, close, &waiting, error));
        rest.bytes = buffer_view(&waiting);
    }
    return OK;
}

bool patterns_fit(const struct buffer *patterns, struct view path) {
    struct cursor rest = cursor_over(buffer_view(patterns));
    struct view pattern;
    size_t name = path.length;
    while (name > 0 && path.data[name - 1] != '/') {
        name -= 1;
    }
    while (cursor_take_until(&rest, '\0', &pattern)) {
        bool is_name = view_find(pattern, view_of_text("/"), 0) == SIZE_MAX;
        is_name = is_name && !view_equals_text(pattern, "**");
        if (is_name ? pattern_fits_name(pattern, view_slice(path, name, SIZE_MAX))
                    : pattern_fits_path(pattern, path)) {
            return true;
        }
    }
    return false;
}
