/* Patterns: parsed into a tree with a stack of groups, then turned into nodes from the end to the
 * beginning with a stack of pieces; no recursion. Classes of characters become ranges of UTF-8
 * bytes, and in JSON form escapes where a character needs one. */
#include "schema_internal.h"

#include <assert.h>
#include <stdlib.h>

#define CODE_POINT_MAX  0x10FFFFU
#define RANGES_MAX      256 /* of one class */
#define GROUPS_MAX      64
#define TREE_MAX        (4 * SCHEMA_PATTERN_MAX)
#define PIECES_MAX      ((size_t)1 << 15) /* waiting to be turned into nodes */
#define REPEAT_NO_LIMIT UINT32_MAX
#define NONE            UINT32_MAX

struct range {
    uint32_t low, high;
};

struct set {
    struct range ranges[RANGES_MAX];
    size_t count;
};

enum tree_kind { TREE_EMPTY, TREE_SET, TREE_SEQUENCE, TREE_EITHER, TREE_REPEAT };

struct tree {
    enum tree_kind kind;
    uint32_t first; /* SEQUENCE, EITHER, REPEAT: trees; SET: first range */
    uint32_t second;
    uint32_t min; /* REPEAT; SET: count of ranges */
    uint32_t max;
};

struct group {
    uint32_t either;   /* branches before, or NONE */
    uint32_t sequence; /* of the branch being read, or NONE */
    bool is_anchored;  /* the branch began with ^ */
};

struct pattern {
    struct view text;
    size_t at;
    struct error *error;
    struct tree trees[TREE_MAX];
    size_t tree_count;
    struct range *ranges;
    size_t range_count;
    size_t range_capacity;
    struct group groups[GROUPS_MAX];
    size_t depth; /* index of the group being read */
    struct set set;
};

static result refuse(struct pattern *pattern, const char *what) {
    FAIL(
        pattern->error,
        UNSUPPORTED,
        "pattern '%.*s', byte %zu: %s is not supported",
        VIEW_ARGUMENTS(grammar_shown(pattern->text)),
        pattern->at,
        what
    );
}

static result complain(struct pattern *pattern, const char *what) {
    FAIL(
        pattern->error,
        INVALID_INPUT,
        "pattern '%.*s', byte %zu: %s",
        VIEW_ARGUMENTS(grammar_shown(pattern->text)),
        pattern->at,
        what
    );
}

/* ---- reading ---- */

static bool is_done(const struct pattern *pattern) {
    return pattern->at >= pattern->text.length;
}

static unsigned peek(const struct pattern *pattern) {
    return is_done(pattern) ? 0 : pattern->text.data[pattern->at];
}

static bool take(struct pattern *pattern, const char *text) {
    struct view wanted = view_of_text(text);
    if (!view_starts_with(view_slice(pattern->text, pattern->at, SIZE_MAX), wanted)) {
        return false;
    }
    pattern->at += wanted.length;
    return true;
}

static result take_character(struct pattern *pattern, uint32_t *out) {
    size_t length = utf8_decode(view_slice(pattern->text, pattern->at, SIZE_MAX), out);
    if (length == 0) {
        return complain(pattern, "ends too early");
    }
    pattern->at += length;
    return OK;
}

static result add_tree(struct pattern *pattern, struct tree tree, uint32_t *out) {
    if (pattern->tree_count == TREE_MAX) {
        FAIL(pattern->error, LIMIT, "a pattern of more than %d parts", TREE_MAX);
    }
    pattern->trees[pattern->tree_count] = tree;
    *out = (uint32_t)pattern->tree_count;
    pattern->tree_count += 1;
    return OK;
}

static result add_pair(
    struct pattern *pattern, enum tree_kind kind, uint32_t first, uint32_t second, uint32_t *out
) {
    return add_tree(pattern, (struct tree){.kind = kind, .first = first, .second = second}, out);
}

/* ---- classes ---- */

static result put_range(struct pattern *pattern, uint32_t low, uint32_t high) {
    struct set *set = &pattern->set;
    if (set->count == RANGES_MAX) {
        FAIL(pattern->error, LIMIT, "a class of more than %d ranges", RANGES_MAX);
    }
    set->ranges[set->count++] = (struct range){low, high};
    return OK;
}

static int compare_ranges(const void *a, const void *b) {
    const struct range *left = a;
    const struct range *right = b;
    return left->low < right->low ? -1 : left->low > right->low ? 1 : 0;
}

/* Sorts and joins. */
static void tidy(struct set *set) {
    if (set->count == 0) {
        return;
    }
    qsort(set->ranges, set->count, sizeof *set->ranges, compare_ranges);
    size_t kept = 0;
    for (size_t i = 1; i < set->count; i++) {
        struct range *last = &set->ranges[kept];
        if (set->ranges[i].low <= last->high + 1) {
            last->high = set->ranges[i].high > last->high ? set->ranges[i].high : last->high;
        } else {
            set->ranges[++kept] = set->ranges[i];
        }
    }
    set->count = kept + 1;
}

/* Everything that the set does not hold. */
static result invert(struct pattern *pattern) {
    struct set *set = &pattern->set;
    tidy(set);
    static_assert(sizeof(struct set) < 4096, "lies on the stack");
    struct set before = *set;
    uint32_t from = 0;
    set->count = 0;
    for (size_t i = 0; i < before.count; i++) {
        if (before.ranges[i].low > from) {
            TRY(put_range(pattern, from, before.ranges[i].low - 1));
        }
        from = before.ranges[i].high + 1;
    }
    return from <= CODE_POINT_MAX ? put_range(pattern, from, CODE_POINT_MAX) : OK;
}

/* \d, \w, \s and their opposites. */
static result put_class(struct pattern *pattern, unsigned letter) {
    static const struct range digits[] = {{'0', '9'}};
    static const struct range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct range spaces[] = {
        {0x09, 0x0D},
        {0x20, 0x20},
        {0xA0, 0xA0},
        {0x1680, 0x1680},
        {0x2000, 0x200A},
        {0x2028, 0x2029},
        {0x202F, 0x202F},
        {0x205F, 0x205F},
        {0x3000, 0x3000},
        {0xFEFF, 0xFEFF}};
    unsigned lower = letter | 0x20U;
    const struct range *ranges = lower == 'd' ? digits : lower == 'w' ? words : spaces;
    size_t count = lower == 'd'   ? COUNT_OF(digits)
                   : lower == 'w' ? COUNT_OF(words)
                                  : COUNT_OF(spaces);
    uint32_t from = 0;
    for (size_t i = 0; i < count; i++) {
        if (letter == lower) {
            TRY(put_range(pattern, ranges[i].low, ranges[i].high));
        } else if (ranges[i].low > from) {
            TRY(put_range(pattern, from, ranges[i].low - 1));
        }
        from = ranges[i].high + 1;
    }
    return letter == lower ? OK : put_range(pattern, from, CODE_POINT_MAX);
}

static result take_hex(struct pattern *pattern, size_t digits, uint32_t *out) {
    struct view text = view_slice(pattern->text, pattern->at, digits);
    uint32_t value = 0;
    for (size_t i = 0; i < text.length; i++) {
        static const char all[] = "0123456789abcdef";
        unsigned byte = text.data[i];
        unsigned lower = byte >= 'A' && byte <= 'F' ? byte | 0x20U : byte;
        const char *found = byte == 0 ? NULL : strchr(all, (int)lower);
        if (found == NULL) {
            return complain(pattern, "a hexadecimal digit is missing");
        }
        value = value * 16 + (uint32_t)(found - all);
    }
    if (text.length < digits || (value >= 0xD800 && value < 0xE000)) {
        return complain(pattern, "no character has this number");
    }
    pattern->at += digits;
    *out = value;
    return OK;
}

/* Behind a backslash: a class (*is_class, put into the set) or one character. */
static result take_escape(struct pattern *pattern, bool *is_class, uint32_t *out) {
    static const char names[] = "tnrfv0";
    static const unsigned char values[] = "\t\n\r\f\v";
    uint32_t c = 0;
    TRY(take_character(pattern, &c));
    *is_class = c < 0x80 && c != 0 && strchr("dwsDWS", (int)c) != NULL;
    if (*is_class) {
        return put_class(pattern, c);
    }
    const char *name = c < 0x80 && c != 0 ? strchr(names, (int)c) : NULL;
    if (name != NULL) {
        *out = values[name - names];
        return OK;
    }
    if (c == 'x' || c == 'u') {
        return take_hex(pattern, c == 'x' ? 2 : 4, out);
    }
    bool is_letter = (c | 0x20U) >= 'a' && (c | 0x20U) <= 'z';
    if (is_letter || (c >= '1' && c <= '9') || c >= 0x80) {
        pattern->at -= 1;
        return refuse(pattern, "this escape");
    }
    *out = c;
    return OK;
}

/* One end of a range in a class. */
static result take_class_item(struct pattern *pattern, bool *is_class, uint32_t *out) {
    *is_class = false;
    if (take(pattern, "\\")) {
        if (take(pattern, "b")) {
            *out = 0x08;
            return OK;
        }
        return take_escape(pattern, is_class, out);
    }
    return take_character(pattern, out);
}

static result take_class(struct pattern *pattern) {
    bool is_inverted = take(pattern, "^");
    while (!take(pattern, "]")) {
        bool is_class = false;
        bool is_class_too = false;
        uint32_t low = 0;
        TRY(take_class_item(pattern, &is_class, &low));
        uint32_t high = low;
        bool is_range = !is_class && peek(pattern) == '-' &&
                        pattern->at + 1 < pattern->text.length &&
                        pattern->text.data[pattern->at + 1] != ']';
        if (is_range) {
            pattern->at += 1;
            TRY(take_class_item(pattern, &is_class_too, &high));
            if (is_class_too || high < low) {
                return complain(pattern, "a range of characters that is none");
            }
        }
        if (!is_class) {
            TRY(put_range(pattern, low, high));
        }
    }
    if (is_inverted) {
        return invert(pattern);
    }
    return OK;
}

/* The set becomes a tree; without U+0000 and surrogates, which no text holds. */
static result add_set(struct pattern *pattern, uint32_t *out) {
    tidy(&pattern->set);
    uint32_t first = (uint32_t)pattern->range_count;
    for (size_t i = 0; i < pattern->set.count; i++) {
        struct range range = pattern->set.ranges[i];
        struct range parts[2] = {
            {range.low > 1 ? range.low : 1, range.high < 0xD7FF ? range.high : 0xD7FF},
            {range.low > 0xE000 ? range.low : 0xE000, range.high}};
        for (size_t part = 0; part < 2; part++) {
            if (parts[part].low > parts[part].high) {
                continue;
            }
            if (pattern->range_count == pattern->range_capacity) {
                size_t capacity = 2 * pattern->range_capacity + 64;
                struct range *ranges = realloc(pattern->ranges, capacity * sizeof *ranges);
                if (ranges == NULL) {
                    FAIL(pattern->error, MEMORY, "no memory for %zu ranges", capacity);
                }
                pattern->ranges = ranges;
                pattern->range_capacity = capacity;
            }
            pattern->ranges[pattern->range_count++] = parts[part];
        }
    }
    uint32_t count = (uint32_t)pattern->range_count - first;
    if (count == 0) {
        return complain(pattern, "a class that no character is in");
    }
    return add_tree(pattern, (struct tree){.kind = TREE_SET, .first = first, .min = count}, out);
}

/* ---- structure ---- */

static result take_number(struct pattern *pattern, uint32_t *out) {
    uint64_t value = 0;
    size_t from = pattern->at;
    while (peek(pattern) >= '0' && peek(pattern) <= '9' && value <= SCHEMA_REPEAT_MAX) {
        value = value * 10 + (peek(pattern) - '0');
        pattern->at += 1;
    }
    if (pattern->at == from) {
        return complain(pattern, "a number is missing in the quantifier");
    }
    if (value > SCHEMA_REPEAT_MAX) {
        FAIL(
            pattern->error,
            LIMIT,
            "pattern, byte %zu: a quantifier above %d",
            pattern->at,
            SCHEMA_REPEAT_MAX
        );
    }
    *out = (uint32_t)value;
    return OK;
}

/* Quantifiers behind `tree`, which they replace. */
static result take_quantifier(struct pattern *pattern, uint32_t *tree) {
    struct tree repeat = {.kind = TREE_REPEAT, .first = *tree, .max = REPEAT_NO_LIMIT};
    if (take(pattern, "*")) {
        repeat.min = 0;
    } else if (take(pattern, "+")) {
        repeat.min = 1;
    } else if (take(pattern, "?")) {
        repeat.max = 1;
    } else if (take(pattern, "{")) {
        TRY(take_number(pattern, &repeat.min));
        repeat.max = repeat.min;
        if (take(pattern, ",")) {
            repeat.max = REPEAT_NO_LIMIT;
            if (peek(pattern) != '}') {
                TRY(take_number(pattern, &repeat.max));
            }
        }
        if (!take(pattern, "}") || repeat.max < repeat.min) {
            return complain(pattern, "a quantifier that is none");
        }
    } else {
        return OK;
    }
    (void)take(pattern, "?"); // lazy: the same language
    if (peek(pattern) == '*' || peek(pattern) == '+' || peek(pattern) == '{') {
        return complain(pattern, "a quantifier behind a quantifier");
    }
    return add_tree(pattern, repeat, tree);
}

static result append_tree(struct pattern *pattern, uint32_t tree) {
    struct group *group = &pattern->groups[pattern->depth];
    if (group->sequence == NONE) {
        group->sequence = tree;
        return OK;
    }
    return add_pair(pattern, TREE_SEQUENCE, group->sequence, tree, &group->sequence);
}

static result add_anything(struct pattern *pattern, uint32_t *out) {
    pattern->set.count = 0;
    TRY(put_range(pattern, 1, CODE_POINT_MAX));
    TRY(add_set(pattern, out));
    struct tree repeat = {.kind = TREE_REPEAT, .first = *out, .max = REPEAT_NO_LIMIT};
    return add_tree(pattern, repeat, out);
}

/* The branch being read is over. Outside of groups a side without anchor may have anything there. */
static result end_branch(struct pattern *pattern, bool is_anchored_after) {
    struct group *group = &pattern->groups[pattern->depth];
    if (group->sequence == NONE) {
        TRY(add_tree(pattern, (struct tree){.kind = TREE_EMPTY}, &group->sequence));
    }
    uint32_t anything = 0;
    if (pattern->depth == 0 && !group->is_anchored) {
        TRY(add_anything(pattern, &anything));
        TRY(add_pair(pattern, TREE_SEQUENCE, anything, group->sequence, &group->sequence));
    }
    if (pattern->depth == 0 && !is_anchored_after) {
        TRY(add_anything(pattern, &anything));
        TRY(append_tree(pattern, anything));
    }
    if (group->either == NONE) {
        group->either = group->sequence;
    } else {
        TRY(add_pair(pattern, TREE_EITHER, group->either, group->sequence, &group->either));
    }
    group->sequence = NONE;
    group->is_anchored = pattern->depth == 0 && take(pattern, "^");
    return OK;
}

static result open_group(struct pattern *pattern) {
    if (take(pattern, "?") && !take(pattern, ":")) {
        return refuse(pattern, "a look-around or named group");
    }
    if (pattern->depth + 1 == GROUPS_MAX) {
        FAIL(pattern->error, LIMIT, "a pattern of groups nested more than %d deep", GROUPS_MAX - 1);
    }
    pattern->depth += 1;
    pattern->groups[pattern->depth] = (struct group){NONE, NONE, false};
    return OK;
}

static result close_group(struct pattern *pattern) {
    if (pattern->depth == 0) {
        return complain(pattern, "a group is closed that is not open");
    }
    TRY(end_branch(pattern, false));
    uint32_t tree = pattern->groups[pattern->depth].either;
    pattern->depth -= 1;
    TRY(take_quantifier(pattern, &tree));
    return append_tree(pattern, tree);
}

static result take_atom(struct pattern *pattern) {
    uint32_t c = 0;
    pattern->set.count = 0;
    if (take(pattern, ".")) {
        TRY(put_range(pattern, '\n', '\n'));
        TRY(put_range(pattern, '\r', '\r'));
        TRY(put_range(pattern, 0x2028, 0x2029));
        TRY(invert(pattern));
    } else if (take(pattern, "[")) {
        TRY(take_class(pattern));
    } else if (take(pattern, "\\")) {
        bool is_class = false;
        TRY(take_escape(pattern, &is_class, &c));
        if (!is_class) {
            TRY(put_range(pattern, c, c));
        }
    } else {
        TRY(take_character(pattern, &c));
        if (c < 0x80 && c != 0 && strchr("*+?{}]", (int)c) != NULL) {
            pattern->at -= 1;
            return complain(pattern, "a character that must be escaped");
        }
        TRY(put_range(pattern, c, c));
    }
    uint32_t tree = 0;
    TRY(add_set(pattern, &tree));
    TRY(take_quantifier(pattern, &tree));
    return append_tree(pattern, tree);
}

static result parse(struct pattern *pattern, uint32_t *out) {
    pattern->groups[0] = (struct group){NONE, NONE, false};
    pattern->groups[0].is_anchored = take(pattern, "^");
    bool is_anchored_after = false;
    while (!is_done(pattern)) {
        if (take(pattern, "(")) {
            TRY(open_group(pattern));
        } else if (take(pattern, ")")) {
            TRY(close_group(pattern));
        } else if (take(pattern, "|")) {
            TRY(end_branch(pattern, false));
        } else if (peek(pattern) == '^') {
            return refuse(pattern, "'^' but at the beginning of a branch outside of groups");
        } else if (take(pattern, "$")) {
            is_anchored_after = pattern->depth == 0 && is_done(pattern);
            bool ends_branch = pattern->depth == 0 && peek(pattern) == '|';
            if (!is_anchored_after && !ends_branch) {
                return refuse(pattern, "'$' but at the end of a branch outside of groups");
            }
            if (ends_branch) {
                pattern->at += 1;
                TRY(end_branch(pattern, true));
            }
        } else {
            TRY(take_atom(pattern));
        }
    }
    if (pattern->depth > 0) {
        return complain(pattern, "a group is not closed");
    }
    TRY(end_branch(pattern, is_anchored_after));
    *out = pattern->groups[0].either;
    return OK;
}

/* ---- characters as bytes ---- */

/* Characters whose encodings differ in no other way than byte by byte within ranges. */
static result choose_aligned(
    struct schema_choice *choice, struct range range, uint32_t next, struct error *error
) {
    unsigned char low[4];
    unsigned char high[4];
    size_t length = utf8_encode(range.low, low);
    size_t other = utf8_encode(range.high, high);
    ASSERT(length == other);
    uint32_t node = next;
    for (size_t i = length; i-- > 0;) {
        TRY(grammar_add_range(choice->grammar, low[i], high[i], node, &node, error));
    }
    return schema_choose(choice, node, error);
}

/* The first part of the range that choose_aligned can take; *rest begins behind it. */
static struct range aligned_part(struct range range) {
    static const uint32_t lengths[] = {0x7F, 0x7FF, 0xFFFF};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        if (range.low <= lengths[i] && range.high > lengths[i]) {
            range.high = lengths[i];
        }
    }
    for (unsigned bits = 6; bits <= 18 && range.low > 0x7F; bits += 6) {
        uint32_t mask = ((uint32_t)1 << bits) - 1;
        if ((range.low & ~mask) == (range.high & ~mask)) {
            break;
        }
        if ((range.low & mask) != 0) {
            range.high = range.low | mask;
            break;
        }
        if ((range.high & mask) != mask) {
            range.high = (range.high & ~mask) - 1;
        }
    }
    return range;
}

/* A character below U+0080 that JSON writes as an escape. */
static result
choose_escaped(struct schema_choice *choice, uint32_t c, uint32_t next, struct error *error) {
    static const char names[] = "\"\\bfnrt";
    static const char values[] = "\"\\\b\f\n\r\t";
    char text[8];
    const char *found = strchr(values, (int)c);
    int length = found != NULL && c != 0
                     ? snprintf(text, sizeof text, "\\%c", names[found - values])
                     : snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    ASSERT(length > 0 && (size_t)length < sizeof text);
    uint32_t node = 0;
    TRY(grammar_add_literal(choice->grammar, view_of_text(text), next, &node, error));
    return schema_choose(choice, node, error);
}

static result choose_range(
    struct schema_choice *choice,
    struct range range,
    enum grammar_form form,
    uint32_t next,
    struct error *error
) {
    while (range.low <= range.high) {
        bool is_escaped = form == GRAMMAR_FORM_JSON &&
                          (range.low < 0x20 || range.low == '"' || range.low == '\\');
        struct range part = range;
        if (is_escaped) {
            part.high = range.low;
            TRY(choose_escaped(choice, range.low, next, error));
        } else {
            bool may_meet = form == GRAMMAR_FORM_JSON;
            if (may_meet && part.low < '"' && part.high >= '"') {
                part.high = '"' - 1;
            } else if (may_meet && part.low < '\\' && part.high >= '\\') {
                part.high = '\\' - 1;
            }
            part = aligned_part(part);
            TRY(choose_aligned(choice, part, next, error));
        }
        range.low = part.high + 1;
    }
    return OK;
}

/* ---- nodes ---- */

/* A tree that is to follow `entry` and be followed by `next`. */
struct piece {
    uint32_t tree;
    uint32_t entry; /* a link */
    uint32_t next;
};

struct emitter {
    struct grammar *grammar;
    const struct pattern *pattern;
    enum grammar_form form;
    struct piece *pieces;
    size_t count;
    struct error *error;
};

static result push(struct emitter *emitter, uint32_t tree, uint32_t next, uint32_t *entry) {
    if (emitter->count == PIECES_MAX) {
        FAIL(emitter->error, LIMIT, "a pattern of more than %zu pieces at once", PIECES_MAX);
    }
    TRY(grammar_add_link(emitter->grammar, entry, emitter->error));
    emitter->pieces[emitter->count++] = (struct piece){tree, *entry, next};
    return OK;
}

static result
emit_repeat(struct emitter *emitter, const struct tree *tree, uint32_t next, uint32_t *out) {
    uint32_t at = next;
    uint32_t body = 0;
    if (tree->max == REPEAT_NO_LIMIT) {
        uint32_t loop = 0;
        TRY(grammar_add_link(emitter->grammar, &loop, emitter->error));
        TRY(push(emitter, tree->first, loop, &body));
        TRY(grammar_add_fork(emitter->grammar, body, next, &at, emitter->error));
        grammar_aim(emitter->grammar, loop, at);
    } else {
        for (uint32_t i = tree->min; i < tree->max; i++) {
            TRY(push(emitter, tree->first, at, &body));
            TRY(grammar_add_fork(emitter->grammar, body, next, &at, emitter->error));
        }
    }
    for (uint32_t i = 0; i < tree->min; i++) {
        TRY(push(emitter, tree->first, at, &at));
    }
    *out = at;
    return OK;
}

static result emit(struct emitter *emitter, struct piece piece, uint32_t *out) {
    const struct tree *tree = &emitter->pattern->trees[piece.tree];
    uint32_t first = 0;
    uint32_t second = 0;
    struct schema_choice choice = {.grammar = emitter->grammar};
    switch (tree->kind) {
    case TREE_EMPTY:
        *out = piece.next;
        return OK;
    case TREE_SET:
        for (uint32_t i = 0; i < tree->min; i++) {
            struct range range = emitter->pattern->ranges[tree->first + i];
            TRY(choose_range(&choice, range, emitter->form, piece.next, emitter->error));
        }
        *out = choice.node;
        return OK;
    case TREE_SEQUENCE:
        TRY(push(emitter, tree->second, piece.next, &second));
        return push(emitter, tree->first, second, out);
    case TREE_EITHER:
        TRY(push(emitter, tree->first, piece.next, &first));
        TRY(push(emitter, tree->second, piece.next, &second));
        return grammar_add_fork(emitter->grammar, first, second, out, emitter->error);
    case TREE_REPEAT:
        return emit_repeat(emitter, tree, piece.next, out);
    }
    return OK;
}

static result emit_all(struct emitter *emitter, uint32_t tree, uint32_t next, uint32_t *out) {
    TRY(push(emitter, tree, next, out));
    while (emitter->count > 0) {
        struct piece piece = emitter->pieces[--emitter->count];
        uint32_t node = 0;
        TRY(emit(emitter, piece, &node));
        grammar_aim(emitter->grammar, piece.entry, node);
    }
    return OK;
}

static void pattern_cleanup(struct pattern **pattern) {
    if (*pattern != NULL) {
        free((*pattern)->ranges);
        free(*pattern);
    }
}

result schema_add_pattern(
    struct grammar *grammar,
    struct view text,
    enum grammar_form form,
    uint32_t next,
    uint32_t *out,
    struct error *error
) {
    if (text.length > SCHEMA_PATTERN_MAX) {
        FAIL(error, LIMIT, "a pattern of %zu bytes; at most %d", text.length, SCHEMA_PATTERN_MAX);
    }
    CLEANUP(pattern_cleanup) struct pattern *pattern = calloc(1, sizeof *pattern);
    CLEANUP(free_cleanup) struct piece *pieces = calloc(PIECES_MAX, sizeof *pieces);
    if (pattern == NULL || pieces == NULL) {
        FAIL(error, MEMORY, "no memory for a pattern of %zu bytes", text.length);
    }
    pattern->text = text;
    pattern->error = error;
    uint32_t tree = 0;
    TRY(parse(pattern, &tree));
    struct emitter emitter = {grammar, pattern, form, pieces, 0, error};
    return emit_all(&emitter, tree, next, out);
}
