/* The parser of regular expressions. It writes the program directly: jumps are relative, so a piece
 * of it can be moved to make room for an operator in front, and copied for {n,m}.
 */
#include "tool_regex_code.h"

#define REPEATS_MAX 1000

#define NO_JUMP (-1)

struct group {
    size_t begin;       /* of its code */
    size_t alternative; /* where the present one begins */
    int32_t jumps;      /* the last of the jumps to its end, each naming the one before */
};

struct parser {
    struct regex *regex;
    struct cursor rest;
    const char *wrong; /* null: nothing so far */
    struct group groups[REGEX_DEPTH_MAX];
    size_t depth;
    size_t atom; /* where what a quantifier applies to begins; SIZE_MAX: nothing */
};

static bool peek(const struct parser *parser, unsigned char *byte) {
    bool is_there = cursor_remaining(&parser->rest) > 0;
    *byte = is_there ? parser->rest.bytes.data[parser->rest.at] : 0;
    return is_there;
}

static bool accept(struct parser *parser, const char *text) {
    struct view rest = view_slice(parser->rest.bytes, parser->rest.at, SIZE_MAX);
    if (!view_starts_with(rest, view_of_text(text))) {
        return false;
    }
    parser->rest.at += strlen(text);
    return true;
}

static void emit(struct parser *parser, enum operation operation, int32_t value) {
    struct regex *regex = parser->regex;
    if (regex->length + 1 >= REGEX_CODE_MAX) { // one is kept for MATCH
        parser->wrong = "the pattern is too large";
        return;
    }
    regex->code[regex->length] = (struct instruction){.operation = operation, .value = value};
    regex->length += 1;
}

/* Makes room for one instruction in front of code[at...]. */
static void insert(struct parser *parser, size_t at, struct instruction instruction) {
    size_t behind = parser->regex->length - at;
    emit(parser, JUMP, 0);
    if (parser->wrong == NULL) {
        struct instruction *code = &parser->regex->code[at];
        memmove(code + 1, code, behind * sizeof *code);
        *code = instruction;
    }
}

static struct instruction split(enum operation operation, size_t skipped) {
    return (struct instruction
    ){.operation = operation, .value = 1, .other = (int32_t)(skipped + 1)};
}

static void add_range(struct parser *parser, uint32_t low, uint32_t high) {
    struct regex *regex = parser->regex;
    if (regex->range_count == REGEX_RANGES_MAX) {
        parser->wrong = "the pattern has too many classes";
        return;
    }
    regex->ranges[regex->range_count] = (struct range){low, high};
    regex->range_count += 1;
}

struct named_class {
    const char *name;
    const char *ranges; /* pairs of first and last */
};

/* The ranges of a class, or of what is not in it. */
static void
add_ranges(struct parser *parser, const char *pairs, bool above_ascii, bool is_negated) {
    uint32_t from = 0;
    for (; *pairs != '\0'; pairs += 2) {
        uint32_t low = (unsigned char)pairs[0];
        uint32_t high = (unsigned char)pairs[1];
        if (!is_negated) {
            add_range(parser, low, high);
        } else if (low > from) {
            add_range(parser, from, low - 1);
        }
        from = high + 1;
    }
    if (is_negated != above_ascii) {
        add_range(parser, is_negated ? from : 0x80, UINT32_MAX);
    } else if (is_negated) {
        add_range(parser, from, 0x7F);
    }
}

/* \d \w \s and their opposites; false for another letter. */
static bool add_letter_class(struct parser *parser, unsigned char letter) {
    bool is_negated = letter >= 'A' && letter <= 'Z';
    unsigned char lower = (unsigned char)(is_negated ? letter + ('a' - 'A') : letter);
    if (lower == 'd') {
        add_ranges(parser, "09", false, is_negated);
    } else if (lower == 'w') {
        add_ranges(parser, "09AZ__az", true, is_negated);
    } else if (lower == 's') {
        add_ranges(parser, "\t\r  ", false, is_negated);
    } else {
        return false;
    }
    return true;
}

static bool add_named_class(struct parser *parser) {
    static const struct named_class classes[] = {
        {"[:alnum:]", "09AZaz"},
        {"[:alpha:]", "AZaz"},
        {"[:blank:]", "\t\t  "},
        {"[:digit:]", "09"},
        {"[:lower:]", "az"},
        {"[:punct:]", "!/:@[`{~"},
        {"[:space:]", "\t\r  "},
        {"[:upper:]", "AZ"},
        {"[:word:]", "09AZ__az"},
        {"[:xdigit:]", "09AFaf"},
    };
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (accept(parser, classes[i].name)) {
            add_ranges(parser, classes[i].ranges, false, false);
            return true;
        }
    }
    return false;
}

static uint32_t take_character(struct parser *parser) {
    size_t bytes = 0;
    uint32_t code_point = regex_decode(view_slice(parser->rest.bytes, parser->rest.at, 4), &bytes);
    parser->rest.at += bytes;
    return code_point;
}

static uint32_t hex_value(unsigned char byte) {
    if (byte >= '0' && byte <= '9') {
        return byte - (uint32_t)'0';
    }
    return (byte | 0x20U) - (uint32_t)'a' + 10;
}

/* What a backslash and a letter stand for; the backslash has been taken. */
static uint32_t take_escaped(struct parser *parser) {
    static const char letters[] = "tnrfvae0";
    static const char meanings[] = "\t\n\r\f\v\a\x1b";
    unsigned char byte;
    if (!peek(parser, &byte)) {
        parser->wrong = "a backslash at the end";
        return 0;
    }
    if (byte == 'x') {
        uint32_t value = 0;
        parser->rest.at += 1;
        bool is_long = accept(parser, "{");
        for (unsigned i = 0; i < (is_long ? 6U : 2U) && peek(parser, &byte); i++) {
            if (strchr("0123456789abcdefABCDEF", byte) == NULL || byte == '\0') {
                break;
            }
            value = value << 4U | hex_value(byte);
            parser->rest.at += 1;
        }
        if (is_long && !accept(parser, "}")) {
            parser->wrong = "\\x{ without }";
        }
        return value;
    }
    const char *known = byte == '\0' ? NULL : strchr(letters, byte);
    if (known != NULL) {
        parser->rest.at += 1;
        return (unsigned char)meanings[known - letters];
    }
    if ((byte >= '1' && byte <= '9') || byte == 'k' || byte == 'p' || byte == 'P') {
        parser->wrong = "references (\\1) and \\p are not supported";
        return 0;
    }
    return take_character(parser);
}

/* Behind "[". */
static void parse_class(struct parser *parser) {
    size_t begin = parser->regex->range_count;
    bool is_negated = accept(parser, "^");
    unsigned char byte;
    for (bool is_first = true; parser->wrong == NULL; is_first = false) {
        if (!peek(parser, &byte)) {
            parser->wrong = "[ without ]";
            return;
        }
        if (byte == ']' && !is_first) {
            parser->rest.at += 1;
            break;
        }
        if (add_named_class(parser)) {
            continue;
        }
        bool is_escaped = accept(parser, "\\");
        if (is_escaped && peek(parser, &byte) && add_letter_class(parser, byte)) {
            parser->rest.at += 1;
            continue;
        }
        uint32_t low = is_escaped ? take_escaped(parser) : take_character(parser);
        uint32_t high = low;
        struct view rest = view_slice(parser->rest.bytes, parser->rest.at, 2);
        if (rest.length == 2 && rest.data[0] == '-' && rest.data[1] != ']') {
            parser->rest.at += 1;
            high = accept(parser, "\\") ? take_escaped(parser) : take_character(parser);
        }
        if (low > high) {
            parser->wrong = "a range in [] that is the wrong way round";
        }
        add_range(parser, low, high);
    }
    emit(parser, CLASS, (int32_t)begin);
    struct instruction *last = &parser->regex->code[parser->regex->length - 1];
    last->count = (uint32_t)(parser->regex->range_count - begin);
    last->is_negated = is_negated;
}

/* Behind a backslash, outside of []. */
static void parse_escape(struct parser *parser) {
    static const struct {
        char letter;
        enum operation operation;
    } edges[] = {
        {'b', WORD_EDGE}, {'B', NO_WORD_EDGE}, {'A', LINE_BEGIN}, {'z', LINE_END}, {'Z', LINE_END}};
    unsigned char byte;
    bool is_there = peek(parser, &byte);
    for (size_t i = 0; i < COUNT_OF(edges) && is_there; i++) {
        if (byte == (unsigned char)edges[i].letter) {
            parser->rest.at += 1;
            emit(parser, edges[i].operation, 0);
            return;
        }
    }
    size_t begin = parser->regex->range_count;
    if (is_there && add_letter_class(parser, byte)) {
        parser->rest.at += 1;
        emit(parser, CLASS, (int32_t)begin);
        parser->regex->code[parser->regex->length - 1].count =
            (uint32_t)(parser->regex->range_count - begin);
        return;
    }
    emit(parser, CHARACTER, (int32_t)regex_fold(parser->regex, take_escaped(parser)));
}

static void open_group(struct parser *parser) {
    bool looks_around = accept(parser, "?<=") || accept(parser, "?<!");
    if (!looks_around && (accept(parser, "?P<") || accept(parser, "?<"))) {
        unsigned char byte;
        while (peek(parser, &byte) && byte != '>') {
            parser->rest.at += 1;
        }
        parser->rest.at += peek(parser, &byte);
    } else if (looks_around || (!accept(parser, "?:") && accept(parser, "?"))) {
        parser->wrong = "looking around and flags inside of the pattern are not supported";
        return;
    }
    if (parser->depth == REGEX_DEPTH_MAX) {
        parser->wrong = "groups are nested too deeply";
        return;
    }
    size_t at = parser->regex->length;
    parser->groups[parser->depth] = (struct group){at, at, NO_JUMP};
    parser->depth += 1;
}

/* All jumps of the alternatives go to where the code ends now. */
static void end_alternatives(struct parser *parser, struct group *group) {
    struct instruction *code = parser->regex->code;
    for (int32_t at = group->jumps; at != NO_JUMP;) {
        int32_t before = code[at].other;
        code[at].value = (int32_t)parser->regex->length - at;
        at = before;
    }
}

static void next_alternative(struct parser *parser) {
    struct group *group = &parser->groups[parser->depth - 1];
    size_t length = parser->regex->length - group->alternative;
    insert(parser, group->alternative, split(BRANCH, length + 1));
    emit(parser, JUMP, 0);
    if (parser->wrong == NULL) {
        parser->regex->code[parser->regex->length - 1].other = group->jumps;
        group->jumps = (int32_t)parser->regex->length - 1;
        group->alternative = parser->regex->length;
    }
}

static void close_group(struct parser *parser) {
    if (parser->depth <= 1) {
        parser->wrong = ") without (";
        return;
    }
    parser->depth -= 1;
    struct group *group = &parser->groups[parser->depth];
    end_alternatives(parser, group);
    parser->atom = group->begin;
}

/* "{n}", "{n,}", "{n,m}" behind "{"; false: it is no such thing and stands for itself. */
static bool parse_counts(struct parser *parser, uint64_t *least, uint64_t *most) {
    struct cursor trial = parser->rest;
    struct view text;
    if (!cursor_take_until(&trial, '}', &text)) {
        return false;
    }
    size_t comma = view_find(text, view_of_text(","), 0);
    struct view first = view_slice(text, 0, comma == SIZE_MAX ? text.length : comma);
    struct view second = comma == SIZE_MAX ? first : view_slice(text, comma + 1, SIZE_MAX);
    *most = UINT64_MAX;
    if (!parse_u64(first, least) || (second.length > 0 && !parse_u64(second, most))) {
        return false;
    }
    parser->rest = trial;
    if (*least > REPEATS_MAX || (*most != UINT64_MAX && *most > REPEATS_MAX) || *least > *most) {
        parser->wrong = "a count in {} is too large or the wrong way round";
    }
    return true;
}

static void append_copy(struct parser *parser, const struct instruction *piece, size_t length) {
    struct regex *regex = parser->regex;
    if (regex->length + length + 1 >= REGEX_CODE_MAX) {
        parser->wrong = "the pattern is too large";
        return;
    }
    memcpy(&regex->code[regex->length], piece, length * sizeof *piece);
    regex->length += length;
}

/* The atom `least` to `most` times. */
static void repeat(struct parser *parser, uint64_t least, uint64_t most) {
    struct regex *regex = parser->regex;
    size_t length = regex->length - parser->atom;
    struct instruction piece[REGEX_CODE_MAX];
    memcpy(piece, &regex->code[parser->atom], length * sizeof *piece);
    regex->length = parser->atom;
    size_t last = regex->length;
    for (uint64_t i = 0; i < least && parser->wrong == NULL; i++) {
        last = regex->length;
        append_copy(parser, piece, length);
    }
    if (most == UINT64_MAX && least > 0) { // the last copy again and again
        emit(parser, SPLIT, 1);
        if (parser->wrong == NULL) {
            struct instruction *loop = &regex->code[regex->length - 1];
            loop->other = -(int32_t)(regex->length - 1 - last);
        }
    } else if (most == UINT64_MAX) {
        append_copy(parser, piece, length);
        insert(parser, last, split(SPLIT, length + 1));
        emit(parser, JUMP, -(int32_t)(length + 1));
    }
    for (uint64_t i = least; most != UINT64_MAX && i < most && parser->wrong == NULL; i++) {
        size_t at = regex->length;
        append_copy(parser, piece, length);
        insert(parser, at, split(SPLIT, length));
    }
}

/* A quantifier, if there is one behind the atom. */
static void parse_quantifier(struct parser *parser) {
    for (unsigned count = 0; parser->wrong == NULL; count++) {
        uint64_t least = 0;
        uint64_t most = UINT64_MAX;
        size_t before = parser->rest.at;
        if (accept(parser, "+")) {
            least = 1;
        } else if (accept(parser, "?")) {
            most = 1;
        } else if (accept(parser, "{")) {
            if (!parse_counts(parser, &least, &most)) {
                parser->rest.at = before;
                return;
            }
        } else if (!accept(parser, "*")) {
            return;
        }
        if (count > 0) {
            parser->wrong = "two quantifiers in a row";
        } else if (parser->wrong == NULL) {
            repeat(parser, least, most);
            (void)accept(parser, "?"); // lazy: the same lines match
        }
    }
}

static void parse_atom(struct parser *parser) {
    parser->atom = parser->regex->length;
    if (accept(parser, "|")) {
        next_alternative(parser);
        return;
    }
    if (accept(parser, "(")) {
        open_group(parser);
        return;
    }
    if (accept(parser, ")")) {
        close_group(parser);
    } else if (accept(parser, "[")) {
        parse_class(parser);
    } else if (accept(parser, "\\")) {
        parse_escape(parser);
    } else if (accept(parser, ".")) {
        emit(parser, ANY, 0);
    } else if (accept(parser, "^")) {
        emit(parser, LINE_BEGIN, 0);
    } else if (accept(parser, "$")) {
        emit(parser, LINE_END, 0);
    } else if (accept(parser, "*") || accept(parser, "+") || accept(parser, "?")) {
        parser->wrong = "a quantifier with nothing in front";
    } else {
        emit(parser, CHARACTER, (int32_t)regex_fold(parser->regex, take_character(parser)));
    }
    if (parser->wrong == NULL) {
        parse_quantifier(parser);
    }
}

result regex_compile(
    struct view pattern,
    bool ignores_case,
    struct regex **out,
    struct buffer *why,
    struct error *error
) {
    CLEANUP(regex_cleanup) struct regex *regex = calloc(1, sizeof *regex);
    if (regex == NULL) {
        FAIL(error, MEMORY, "regular expression: %zu bytes", sizeof *regex);
    }
    struct parser parser = {.regex = regex, .rest = cursor_over(pattern), .depth = 1};
    parser.groups[0].jumps = NO_JUMP;
    regex->ignores_case = accept(&parser, "(?i)") || ignores_case;
    while (parser.wrong == NULL && cursor_remaining(&parser.rest) > 0) {
        parse_atom(&parser);
    }
    if (parser.wrong == NULL && parser.depth > 1) {
        parser.wrong = "( without )";
    }
    if (parser.wrong != NULL) {
        return buffer_append_format(
            why, error, "%s (at byte %zu of the pattern)", parser.wrong, parser.rest.at
        );
    }
    end_alternatives(&parser, &parser.groups[0]);
    regex->code[regex->length] = (struct instruction){.operation = MATCH};
    regex->length += 1;
    TRY(regex_prepare(regex, error));
    *out = TAKE(regex);
    return OK;
}
