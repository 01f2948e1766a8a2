/* One pass over the bytes; see permission_shell.h for what it is certain about. */
#include "permission_shell.h"

#include "permission_words.h"

#define HERE_DOCUMENTS_MAX 8 /* of one line */

/* Text behind the line, up to a line that is the delimiter. */
struct here_document {
    struct view delimiter;
    bool is_quoted;   /* the delimiter was: nothing in the text is expanded */
    bool strips_tabs; /* <<- */
};

struct splitter {
    struct view in;
    size_t at;
    struct shell_line *line;
    size_t text_length;
    unsigned depth;         /* of the parts */
    bool is_uncertain;      /* all of them */
    struct shell_word word; /* at hand */
    size_t word_start;      /* in line->text */
    bool has_word;          /* quotes make an empty one */
    bool is_quoted;         /* some of it was */
    bool has_brace;
    bool takes_target; /* the next word is a redirection's */
    bool is_copy;      /* ... of a descriptor: >&1 */
    bool is_delimiter; /* ... of a here-document */
    bool strips_tabs;
    bool in_backquotes;
    struct here_document documents[HERE_DOCUMENTS_MAX]; /* that begin at the next newline */
    size_t document_count;
    struct shell_part part;
};

/* Each of these stands before a command, so that the command behind it is looked at as well. */
static const char *const leading_words[] = {
    "if",
    "then",
    "else",
    "elif",
    "while",
    "until",
    "do",
    "!",
    "{",
    "}",
    "fi",
    "done",
    "esac",
    "coproc"};
/* "time" is a program of its own to some shells: then its options follow, and the command. */
static const char *const other_words[] = {"for", "case", "select", "function", "in", "[[", "time"};

static void doubt(struct splitter *splitter, const char *why) {
    struct shell_line *line = splitter->line;
    const char **kept = splitter->depth == 0 ? &line->doubt : &line->inner_doubt;
    *kept = *kept == NULL ? why : *kept;
}

/* A command may be hidden. */
static void doubt_all(struct splitter *splitter, const char *why) {
    doubt(splitter, why);
    splitter->line->is_open = true;
}

static int peek(const struct splitter *splitter, size_t ahead) {
    size_t at = splitter->at + ahead;
    return at < splitter->in.length ? splitter->in.data[at] : -1;
}

static void put(struct splitter *splitter, int byte) {
    splitter->line->text[splitter->text_length++] = (char)byte;
    splitter->has_word = true;
}

static bool is_among(struct view word, const char *const *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (view_equals_text(word, words[i])) {
            return true;
        }
    }
    return false;
}

/* NAME=..., NAME+=... */
static bool is_assignment(struct view word) {
    size_t length = 0;
    for (; length < word.length; length++) {
        unsigned char c = word.data[length];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!is_letter && !(length > 0 && c >= '0' && c <= '9')) {
            break;
        }
    }
    bool is_plus = length + 1 < word.length && word.data[length] == '+';
    size_t equals = length + (is_plus ? 1 : 0);
    return length > 0 && equals < word.length && word.data[equals] == '=';
}

static bool is_digits(struct view text) {
    uint64_t number = 0;
    return text.length <= 4 && parse_u64(text, &number);
}

/* The word behind a redirection. */
static void place_target(struct splitter *splitter, struct shell_word word) {
    struct shell_part *part = &splitter->part;
    splitter->takes_target = false;
    if (splitter->is_delimiter) {
        if (splitter->document_count == HERE_DOCUMENTS_MAX) {
            doubt_all(splitter, "more here-documents than are read");
            return;
        }
        splitter->documents[splitter->document_count++] = (struct here_document){
            .delimiter = word.text,
            .is_quoted = splitter->is_quoted,
            .strips_tabs = splitter->strips_tabs,
        };
        return;
    }
    bool is_harmless = splitter->is_copy
                           ? is_digits(word.text) || view_equals_text(word.text, "-")
                           : view_equals_text(word.text, "/dev/null") && !word.is_expanded;
    part->is_redirected = part->is_redirected || !is_harmless;
}

/* What the word at hand is in its command. */
static void place_word(struct splitter *splitter, struct shell_word word) {
    struct shell_line *line = splitter->line;
    struct shell_part *part = &splitter->part;
    bool is_first = part->word_count == 0;
    if (splitter->takes_target) {
        place_target(splitter, word);
        return;
    }
    if (is_first && is_assignment(word.text)) {
        part->is_assigned = true; /* quoted it would be none, and no command of that name either */
        return;
    }
    bool is_plain = is_first && !splitter->is_quoted;
    if (is_plain && is_among(word.text, leading_words, COUNT_OF(leading_words))) {
        doubt(splitter, "a reserved word of the shell");
        return;
    }
    if (is_plain && is_among(word.text, other_words, COUNT_OF(other_words))) {
        doubt(splitter, "a reserved word of the shell");
        line->is_open = line->is_open || view_equals_text(word.text, "function");
    }
    for (size_t i = 0; is_first && i < word.text.length; i++) {
        if (word.text.data[i] >= 0x80) {
            doubt(splitter, "a command's name that is not ASCII");
        }
    }
    if (line->word_count == PERMISSION_WORDS_MAX) {
        doubt_all(splitter, "more words than are read");
        return;
    }
    if (is_first) {
        part->word_at = line->word_count;
    }
    line->words[line->word_count++] = word;
    part->word_count += 1;
}

static void end_word(struct splitter *splitter) {
    if (!splitter->has_word) {
        return;
    }
    struct shell_word word = splitter->word;
    word.text = view_of(
        splitter->line->text + splitter->word_start, splitter->text_length - splitter->word_start
    );
    if (view_equals_text(word.text, "[")) {
        word.is_expanded = false; /* the test command */
    }
    if (splitter->has_brace && !view_equals_text(word.text, "{}")) {
        doubt(splitter, "a brace");
        word.is_expanded = true;
    }
    place_word(splitter, word);
    splitter->word = (struct shell_word){0};
    splitter->word_start = splitter->text_length;
    splitter->has_word = splitter->is_quoted = splitter->has_brace = false;
}

static void end_part(struct splitter *splitter) {
    struct shell_line *line = splitter->line;
    struct shell_part *part = &splitter->part;
    end_word(splitter);
    if (splitter->takes_target) {
        doubt(splitter, "a redirection without a file");
        part->is_redirected = true;
        splitter->takes_target = false;
    }
    part->depth = splitter->depth;
    part->is_uncertain = part->is_uncertain || splitter->is_uncertain;
    if (part->word_count > 0 || part->is_assigned || part->is_redirected) {
        if (line->part_count == PERMISSION_PARTS_MAX) {
            doubt_all(splitter, "more commands than are read");
        } else {
            line->parts[line->part_count++] = *part;
        }
    }
    *part = (struct shell_part){0};
}

/* ---- what stands in a line ------------------------------------------------------------------ */

static void take_single_quotes(struct splitter *splitter) {
    splitter->at += 1;
    splitter->has_word = splitter->is_quoted = true;
    for (;;) {
        int c = peek(splitter, 0);
        if (c < 0) {
            doubt_all(splitter, "a quote that is not closed");
            return;
        }
        splitter->at += 1;
        if (c == '\'') {
            return;
        }
        put(splitter, c);
    }
}

/* Behind "$": in "${x#'}'}" quotes, blanks and # do not mean what they mean around it. */
static void take_parameter(struct splitter *splitter) {
    size_t ahead = 1;
    if (peek(splitter, 0) != '{') {
        return;
    }
    for (int c = peek(splitter, ahead); c != '}'; c = peek(splitter, ++ahead)) {
        if (c < 0 || strchr("'\"\\`$ \t\n;&|()<>", c) != NULL) {
            doubt_all(splitter, "an expansion of an expression");
            return;
        }
    }
}

/* At "((": neither do they in arithmetic, "$((1 #))". */
static void take_arithmetic(struct splitter *splitter) {
    size_t depth = 0;
    for (size_t ahead = 0;; ahead++) {
        int c = peek(splitter, ahead);
        if (c < 0 || strchr("'\"\\`#\n", c) != NULL) {
            doubt_all(splitter, "arithmetic that is not read");
            return;
        }
        depth += c == '(' ? 1 : 0;
        depth -= c == ')' ? 1 : 0;
        if (depth == 0) {
            return;
        }
    }
}

/* Between "$" and "{", "<" and "<": not every shell makes one token of them. */
static void check_continuation(struct splitter *splitter) {
    if (splitter->at > 0 && strchr("$<(", splitter->in.data[splitter->at - 1]) != NULL) {
        doubt_all(splitter, "a line that goes on within a token");
    }
}

static void take_double_quotes(struct splitter *splitter) {
    splitter->at += 1;
    splitter->has_word = splitter->is_quoted = true;
    for (;;) {
        int c = peek(splitter, 0);
        if (c < 0) {
            doubt_all(splitter, "a quote that is not closed");
            return;
        }
        splitter->at += 1;
        if (c == '"') {
            return;
        }
        if (c == '`' || (c == '$' && peek(splitter, 0) == '(')) {
            doubt_all(splitter, "a substitution in quotes");
        }
        if (c == '$' || c == '`') {
            doubt(splitter, "an expansion");
            splitter->word.is_expanded = true;
            take_parameter(splitter);
        } else if (c == '\\') {
            int next = peek(splitter, 0);
            if (next == '\n') {
                splitter->at -= 1;
                check_continuation(splitter);
                splitter->at += 2; /* the line goes on: neither is there */
                continue;
            }
            if (next == '$' || next == '`' || next == '"' || next == '\\') {
                c = next;
                splitter->at += 1;
            }
        }
        put(splitter, c);
    }
}

static void take_backslash(struct splitter *splitter) {
    int next = peek(splitter, 1);
    if (next == '\n') {
        check_continuation(splitter);
    }
    splitter->at += 1;
    if (next < 0) {
        doubt_all(splitter, "a backslash at the end");
        return;
    }
    if (next == '\n') {
        splitter->at += 1; /* the line goes on: neither is there */
        return;
    }
    splitter->is_quoted = true;
    put(splitter, next);
    splitter->at += 1;
}

/* At < or >. */
static void take_redirection(struct splitter *splitter) {
    int first = peek(splitter, 0);
    int second = peek(splitter, 1);
    size_t length = 1;
    struct view word = view_of(
        splitter->line->text + splitter->word_start, splitter->text_length - splitter->word_start
    );
    if (splitter->has_word && !splitter->is_quoted && is_digits(word)) {
        splitter->text_length = splitter->word_start; /* 2> is no word */
        splitter->has_word = false;
    }
    end_word(splitter);
    if (splitter->takes_target) {
        doubt(splitter, "a redirection without a file");
        splitter->part.is_redirected = true;
    }
    splitter->is_delimiter = first == '<' && second == '<' && peek(splitter, 2) != '<';
    if (first == '<' && second == '<') {
        doubt(splitter, "a here-document");
        splitter->strips_tabs = splitter->is_delimiter && peek(splitter, 2) == '-';
        length = splitter->is_delimiter && !splitter->strips_tabs ? 2 : 3;
    } else if (second == '>' || (first == '>' && second == '|')) {
        length = 2;
    }
    splitter->is_copy = second == '&';
    length += splitter->is_copy ? 1 : 0;
    splitter->takes_target = true;
    splitter->at += length;
}

/* Behind a newline: skips the text of a here-document. */
static void skip_document(struct splitter *splitter, const struct here_document *document) {
    while (splitter->at < splitter->in.length) {
        size_t newline = view_find(splitter->in, view_of_text("\n"), splitter->at);
        size_t end = newline == SIZE_MAX ? splitter->in.length : newline;
        struct view line = view_slice(splitter->in, splitter->at, end - splitter->at);
        splitter->at = end + (newline == SIZE_MAX ? 0 : 1);
        while (document->strips_tabs && view_starts_with(line, view_of_text("\t"))) {
            line = view_slice(line, 1, line.length);
        }
        if (view_equals(line, document->delimiter)) {
            return;
        }
        bool runs = view_find(line, view_of_text("$("), 0) != SIZE_MAX ||
                    view_find(line, view_of_text("`"), 0) != SIZE_MAX ||
                    view_ends_with(line, view_of_text("\\"));
        if (runs && !document->is_quoted) {
            doubt_all(splitter, "a substitution in a here-document");
        }
    }
    doubt_all(splitter, "a here-document that does not end");
}

static void skip_documents(struct splitter *splitter) {
    for (size_t i = 0; i < splitter->document_count; i++) {
        skip_document(splitter, &splitter->documents[i]);
    }
    splitter->document_count = 0;
}

/* At ; & | ( ) or a newline: where a command ends. */
static void take_separator(struct splitter *splitter) {
    int first = peek(splitter, 0);
    int second = peek(splitter, 1);
    end_part(splitter);
    if (first == '(' && second == '(') {
        take_arithmetic(splitter);
    }
    if ((first == '(' || first == ')') && splitter->document_count > 0) {
        doubt_all(splitter, "a here-document that begins somewhere else"); /* <<E $(...) */
    }
    splitter->at += 1;
    if (first == '\n') {
        skip_documents(splitter);
    } else if (first == '(' || first == ')') {
        doubt(splitter, "a parenthesis");
        splitter->part.is_uncertain = first == ')';
    } else if (first == ';' && second == ';') {
        doubt(splitter, "';;'");
    } else if (first == '&' && (second == '>' || second == '<')) {
        doubt(splitter, "'&>'"); /* not the same in every shell */
    } else if (first == '|' && second == '&') {
        doubt(splitter, "'|&'");
    } else if ((first == '&' || first == '|') && second == first) {
        splitter->at += 1;
    }
}

static void take_comment(struct splitter *splitter) {
    while (peek(splitter, 0) >= 0 && peek(splitter, 0) != '\n') {
        splitter->at += 1;
    }
}

/* The first of two begins commands, the second one ends them; both are part of a word. */
static void take_backquote(struct splitter *splitter) {
    doubt(splitter, "an expansion");
    if (splitter->document_count > 0) {
        doubt_all(splitter, "a here-document that begins somewhere else");
    }
    if (!splitter->in_backquotes) {
        splitter->word.is_expanded = true;
        put(splitter, '`');
    }
    end_part(splitter);
    splitter->part.is_uncertain = splitter->in_backquotes;
    splitter->in_backquotes = !splitter->in_backquotes;
}

/* An ordinary byte of a word, or one that a shell would expand. */
static void take_byte(struct splitter *splitter, int c) {
    splitter->at += 1;
    if (c == '$') {
        doubt(splitter, "an expansion");
        splitter->word.is_expanded = true;
        take_parameter(splitter);
        if (peek(splitter, 0) == '\'') {
            doubt_all(splitter, "a quote that is not the same in every shell");
        }
    } else if (c == '`') {
        take_backquote(splitter);
        return;
    } else if (c == '{' || c == '}') {
        splitter->has_brace = true;
    } else if (c == '*' || c == '?' || c == '[' || (c == '~' && !splitter->has_word)) {
        splitter->word.is_expanded = true;
    } else if (c < 0x20 || c == 0x7F) {
        doubt(splitter, "a control character");
    }
    put(splitter, c);
}

static void take(struct splitter *splitter) {
    int c = peek(splitter, 0);
    switch (c) {
    case ' ':
    case '\t':
        end_word(splitter);
        splitter->at += 1;
        return;
    case '\n':
    case ';':
    case '&':
    case '|':
    case '(':
    case ')':
        take_separator(splitter);
        return;
    case '<':
    case '>':
        take_redirection(splitter);
        return;
    case '\'':
        take_single_quotes(splitter);
        return;
    case '"':
        take_double_quotes(splitter);
        return;
    case '\\':
        take_backslash(splitter);
        return;
    default:
        if (c == '#' && !splitter->has_word) {
            take_comment(splitter);
        } else {
            take_byte(splitter, c);
        }
    }
}

/* Characters that a person does not see, or sees in another place. */
static bool is_hidden(uint32_t c) {
    return c == 0xAD || (c >= 0x80 && c <= 0x9F) || c == 0x061C || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
           (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE0FFF);
}

static void check_characters(struct splitter *splitter) {
    for (size_t at = 0; at < splitter->in.length;) {
        uint32_t c = 0;
        size_t length = utf8_decode(view_slice(splitter->in, at, 4), &c);
        if (length == 0) {
            doubt_all(splitter, "bytes that are no UTF-8");
            return;
        }
        if (c == 0 || is_hidden(c)) {
            doubt_all(splitter, "a character that does not show");
            return;
        }
        at += length;
    }
}

/* Adds the parts of a text, which lies in the line's own memory when it is a shell's. */
static void split_text(struct shell_line *line, struct view text, const struct shell_part *outer) {
    struct splitter splitter = {
        .in = text,
        .line = line,
        .text_length = line->text_length,
        .word_start = line->text_length};
    if (outer != NULL) {
        splitter.depth = outer->depth + 1;
        splitter.is_uncertain = outer->is_uncertain;
    }
    if (text.length > line->text_room - line->text_length) {
        doubt_all(&splitter, "more text than is read");
        return;
    }
    check_characters(&splitter);
    while (splitter.at < text.length) {
        take(&splitter);
        /* a byte is written once at most */
        ASSERT(splitter.text_length - line->text_length <= splitter.at);
    }
    end_part(&splitter);
    if (splitter.document_count > 0) {
        doubt_all(&splitter, "a here-document that does not end");
    }
    line->text_length = splitter.text_length;
}

/* Parts that are added are looked at in their turn. */
static void split_texts(struct shell_line *line) {
    for (size_t i = 0; i < line->part_count; i++) {
        struct shell_part *part = &line->parts[i];
        const struct command command = {line->words + part->word_at, part->word_count, false};
        struct view text;
        if (part->depth < SHELL_TEXTS_DEEP && part->word_count > 0 &&
            command_find_text(command, &part->shell_at, &text)) {
            part->has_text = true;
            const struct shell_part outer = *part;
            split_text(line, text, &outer);
        }
    }
}

result shell_split(struct view command, struct shell_line *out, struct error *error) {
    *out = (struct shell_line){0};
    if (command.length <= PERMISSION_QUESTION_BYTES) {
        out->text_room = (command.length + 1) * (1 + SHELL_TEXTS_DEEP);
        out->text = malloc(out->text_room);
        if (out->text == NULL) {
            FAIL(error, MEMORY, "no memory for a command of %zu bytes", command.length);
        }
    }
    split_text(out, command, NULL);
    split_texts(out);
    return OK;
}

void shell_line_deinit(struct shell_line *line) {
    free(line->text);
    line->text = NULL;
}
