/* The model's own wording: from chat.json, or from the string constants of the Python file that
 * ships with a released checkpoint. The Python file is not run: a scanner of its lexical structure
 * finds assignments at the left margin and reads string literals; every text so found must have the
 * size and the digest that the caller expects. */
#include "chat_wording.h"

#include "base/sha256.h"
#include "chat_markers.h"

#define FILE_BYTES_MAX     ((size_t)1 << 20)  /* the released file has some 30 KB */
#define CONSTANT_BYTES_MAX ((size_t)64 << 10) /* the longest of its constants under 2 KB */
#define PLACE_NAME_MAX     64                 /* {name} in a template */

/* ---- life ---- */

static result wording_create(struct chat_wording **out, struct error *error) {
    struct chat_wording *wording = calloc(1, sizeof *wording);
    if (wording == NULL) {
        FAIL(error, MEMORY, "no memory for the wording of prompts");
    }
    buffer_init(&wording->effort_line, CONSTANT_BYTES_MAX);
    buffer_init(&wording->tools_head, CONSTANT_BYTES_MAX);
    buffer_init(&wording->tools_tail, CONSTANT_BYTES_MAX);
    buffer_init(&wording->response_format_head, CONSTANT_BYTES_MAX);
    *out = wording;
    return OK;
}

void chat_wording_destroy(struct chat_wording *wording) {
    if (wording != NULL) {
        buffer_deinit(&wording->effort_line);
        buffer_deinit(&wording->tools_head);
        buffer_deinit(&wording->tools_tail);
        buffer_deinit(&wording->response_format_head);
        free(wording);
    }
}

void chat_wording_cleanup(struct chat_wording **wording) {
    chat_wording_destroy(*wording);
}

/* ---- chat.json ---- */

static result check_effort_line(const struct chat_wording *wording, struct error *error) {
    struct view line = buffer_view(&wording->effort_line);
    struct view place = view_of_text(CHAT_EFFORT_PLACE);
    size_t at = view_find(line, place, 0);
    if (at == SIZE_MAX || view_find(line, place, at + place.length) != SIZE_MAX) {
        FAIL(error, INVALID_INPUT, "effort_line must hold %s once", CHAT_EFFORT_PLACE);
    }
    return OK;
}

result chat_wording_parse_json(struct chat_wording **out, struct view text, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    CLEANUP(chat_wording_cleanup) struct chat_wording *wording = NULL;
    const struct json_limits limits = {.bytes_max = FILE_BYTES_MAX};
    struct view part;
    TRY_NOTE(error, json_parse(text, &limits, &document, error), "chat.json");
    TRY(wording_create(&wording, error));
    struct json_value root = json_root(document);
    TRY_NOTE(error, json_get_string(root, "effort_line", &part, error), "chat.json");
    TRY_NOTE(error, buffer_append(&wording->effort_line, part, error), "chat.json");
    TRY_NOTE(error, check_effort_line(wording, error), "chat.json");
    TRY_NOTE(error, json_get_string(root, "tools_head", &part, error), "chat.json");
    TRY_NOTE(error, buffer_append(&wording->tools_head, part, error), "chat.json");
    TRY_NOTE(error, json_get_string(root, "tools_tail", &part, error), "chat.json");
    TRY_NOTE(error, buffer_append(&wording->tools_tail, part, error), "chat.json");
    if (json_type(json_get(root, "response_format_head")) != JSON_ABSENT) {
        TRY_NOTE(error, json_get_string(root, "response_format_head", &part, error), "chat.json");
        TRY_NOTE(error, buffer_append(&wording->response_format_head, part, error), "chat.json");
    }
    *out = TAKE(wording);
    return OK;
}

/* ---- Python: lexical structure ---- */

struct scanner {
    struct view text;
    size_t at;
    struct error *error;
};

static int peek(const struct scanner *scanner, size_t ahead) {
    size_t at = scanner->at + ahead;
    return at < scanner->text.length ? scanner->text.data[at] : -1;
}

static bool is_name_byte(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static size_t line_of(const struct scanner *scanner) {
    size_t line = 1;
    for (size_t i = 0; i < scanner->at && i < scanner->text.length; i++) {
        line += scanner->text.data[i] == '\n' ? 1 : 0;
    }
    return line;
}

static result broken(const struct scanner *scanner, const char *what) {
    FAIL(scanner->error, INVALID_INPUT, "line %zu: %s", line_of(scanner), what);
}

/* Bytes of a string prefix such as r, f or Rb in front of a quote; SIZE_MAX when none starts here. */
static size_t string_prefix(const struct scanner *scanner, bool *is_raw, bool *is_plain) {
    *is_raw = false;
    *is_plain = true;
    for (size_t length = 0; length <= 2; length++) {
        int c = peek(scanner, length);
        if (c == '"' || c == '\'') {
            return length;
        }
        *is_raw = *is_raw || c == 'r' || c == 'R';
        *is_plain = *is_plain && (c == 'r' || c == 'R' || c == 'u' || c == 'U');
        if (c < 0 || strchr("rRuUbBfF", c) == NULL) {
            break;
        }
    }
    return SIZE_MAX;
}

static result
append_code_point(struct scanner *scanner, size_t digits, unsigned base, struct buffer *out) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; i++) {
        int c = peek(scanner, i);
        int lower = c >= 'A' && c <= 'F' ? c + ('a' - 'A') : c;
        int digit = lower >= '0' && lower <= '9'   ? lower - '0'
                    : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                   : 99;
        if ((unsigned)digit >= base) {
            return broken(scanner, "an escape with too few digits");
        }
        value = value * base + (uint32_t)digit;
    }
    if (value == 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
        return broken(scanner, "an escape that is no character");
    }
    scanner->at += digits;
    unsigned char bytes[4];
    size_t length = utf8_encode(value, bytes);
    return buffer_append(out, view_of(bytes, length), scanner->error);
}

/* After a backslash. */
static result read_escape(struct scanner *scanner, struct buffer *out) {
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    int c = peek(scanner, 0);
    if (c < 0) {
        return broken(scanner, "the file ends inside a string");
    }
    scanner->at += 1;
    if (c == '\n') {
        return OK;
    }
    if (c >= '0' && c <= '7') {
        size_t digits = 1;
        scanner->at -= 1;
        while (digits < 3 && peek(scanner, digits) >= '0' && peek(scanner, digits) <= '7') {
            digits += 1;
        }
        return append_code_point(scanner, digits, 8, out);
    }
    if (c == 'x' || c == 'u' || c == 'U') {
        return append_code_point(scanner, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, out);
    }
    if (c == 'N') {
        return broken(scanner, "a character by name, which is not read here");
    }
    for (size_t i = 0; i + 1 < sizeof simple; i += 2) {
        if (simple[i] == c) {
            return buffer_append_byte(out, (unsigned char)simple[i + 1], scanner->error);
        }
    }
    TRY(buffer_append_byte(out, '\\', scanner->error)); // as Python keeps it
    return buffer_append_byte(out, (unsigned char)c, scanner->error);
}

/* One literal whose prefix has been passed; `out` may be null to skip it. */
static result read_string(struct scanner *scanner, bool is_raw, struct buffer *out) {
    int quote = peek(scanner, 0);
    bool is_long = peek(scanner, 1) == quote && peek(scanner, 2) == quote;
    scanner->at += is_long ? 3 : 1;
    for (;;) {
        int c = peek(scanner, 0);
        if (c < 0 || (c == '\n' && !is_long)) {
            return broken(scanner, "a string is not closed");
        }
        if (c == quote && (!is_long || (peek(scanner, 1) == quote && peek(scanner, 2) == quote))) {
            scanner->at += is_long ? 3 : 1;
            return OK;
        }
        scanner->at += 1;
        if (c == '\\' && out != NULL && !is_raw) {
            TRY(read_escape(scanner, out));
            continue;
        }
        if (out != NULL) {
            TRY(buffer_append_byte(out, (unsigned char)c, scanner->error));
        }
        if (c == '\\' && peek(scanner, 0) >= 0) { // the next byte closes nothing
            if (out != NULL) {
                TRY(buffer_append_byte(out, (unsigned char)peek(scanner, 0), scanner->error));
            }
            scanner->at += 1;
        }
    }
}

static void skip_comment(struct scanner *scanner) {
    while (peek(scanner, 0) >= 0 && peek(scanner, 0) != '\n') {
        scanner->at += 1;
    }
}

/* Skips one item of source that is not looked at; keeps count of brackets. */
static result skip_item(struct scanner *scanner, size_t *depth) {
    bool is_raw = false;
    bool is_plain = false;
    int c = peek(scanner, 0);
    size_t prefix = string_prefix(scanner, &is_raw, &is_plain);
    if (prefix != SIZE_MAX) {
        scanner->at += prefix;
        return read_string(scanner, is_raw, NULL);
    }
    if (c == '#') {
        skip_comment(scanner);
        return OK;
    }
    if (is_name_byte(c)) { // whole, so that the end of a name is no string prefix
        while (is_name_byte(peek(scanner, 0))) {
            scanner->at += 1;
        }
        return OK;
    }
    if (c == '(' || c == '[' || c == '{') {
        *depth += 1;
    } else if ((c == ')' || c == ']' || c == '}') && *depth > 0) {
        *depth -= 1;
    }
    scanner->at += c == '\\' && peek(scanner, 1) == '\n' ? 2 : 1;
    return OK;
}

/* ---- Python: constants ---- */

static void skip_blanks(struct scanner *scanner, bool over_lines) {
    for (;;) {
        int c = peek(scanner, 0);
        if (c == '#' && over_lines) {
            skip_comment(scanner);
        } else if (c == ' ' || c == '\t' || (over_lines && (c == '\n' || c == '\r'))) {
            scanner->at += 1;
        } else if (c == '\\' && peek(scanner, 1) == '\n') {
            scanner->at += 2;
        } else {
            return;
        }
    }
}

/* "NAME =" or "NAME: annotation =" at the scanner; moves behind the sign when it is there. */
static bool take_assignment(struct scanner *scanner, const char *name) {
    size_t length = strlen(name);
    struct view here = view_slice(scanner->text, scanner->at, length);
    if (!view_equals_text(here, name) || is_name_byte(peek(scanner, length))) {
        return false;
    }
    struct scanner ahead = *scanner;
    ahead.at += length;
    skip_blanks(&ahead, false);
    if (peek(&ahead, 0) == ':') {
        while (peek(&ahead, 0) >= 0 && strchr("=\n#\"'", peek(&ahead, 0)) == NULL) {
            ahead.at += 1;
        }
    }
    if (peek(&ahead, 0) != '=' || peek(&ahead, 1) == '=') {
        return false;
    }
    scanner->at = ahead.at + 1;
    return true;
}

/* Literals in a row, in parentheses or not, to the end of the statement. */
static result read_value(struct scanner *scanner, struct buffer *out) {
    size_t parentheses = 0;
    size_t literals = 0;
    skip_blanks(scanner, false);
    while (peek(scanner, 0) == '(') {
        scanner->at += 1;
        parentheses += 1;
        skip_blanks(scanner, true);
    }
    for (;;) {
        bool is_raw = false;
        bool is_plain = false;
        size_t prefix = string_prefix(scanner, &is_raw, &is_plain);
        if (prefix == SIZE_MAX) {
            break;
        }
        if (!is_plain) {
            return broken(scanner, "a bytes or formatted literal, which is not read here");
        }
        scanner->at += prefix;
        TRY(read_string(scanner, is_raw, out));
        literals += 1;
        skip_blanks(scanner, parentheses > 0);
    }
    while (parentheses > 0 && peek(scanner, 0) == ')') {
        scanner->at += 1;
        parentheses -= 1;
        skip_blanks(scanner, parentheses > 0);
    }
    int c = peek(scanner, 0);
    if (literals == 0 || parentheses > 0 || (c >= 0 && strchr("\n\r#;", c) == NULL)) {
        return broken(scanner, "the value is no plain string");
    }
    return OK;
}

/* The value of NAME, which must be assigned exactly once at the left margin. */
static result
find_constant(struct view text, const char *name, struct buffer *out, struct error *error) {
    struct scanner scanner = {.text = text, .error = error};
    size_t depth = 0;
    bool is_found = false;
    bool is_line_start = true;
    while (scanner.at < text.length) {
        if (is_line_start && depth == 0 && take_assignment(&scanner, name)) {
            if (is_found) {
                FAIL(error, INVALID_INPUT, "the constant %s is assigned twice", name);
            }
            TRY_NOTE(error, read_value(&scanner, out), "constant %s", name);
            is_found = true;
        }
        is_line_start = peek(&scanner, 0) == '\n';
        if (scanner.at < text.length) {
            TRY(skip_item(&scanner, &depth));
        }
    }
    if (!is_found) {
        FAIL(error, INVALID_INPUT, "there is no string constant %s", name);
    }
    return OK;
}

/* ---- Python: templates ---- */

/* Text that a place stands for, other than the one that varies. */
static bool known_place(struct view name, struct view *out) {
    static const struct {
        const char *name;
        const char *text;
    } names[] = {
        {"tc_block_name", " calls"},
        {"tool_call_tag_name", " invoke"},
        {"tool_parameter_tag_name", " parameter"}};
    static const struct {
        const char *name;
        enum chat_marker marker;
    } markers[] = {
        {"dsml_token", CHAT_MARKER_DSML},
        {"thinking_start_token", CHAT_MARKER_THINK},
        {"thinking_end_token", CHAT_MARKER_THINK_END}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (view_equals_text(name, names[i].name)) {
            *out = view_of_text(names[i].text);
            return true;
        }
    }
    for (size_t i = 0; i < COUNT_OF(markers); i++) {
        if (view_equals_text(name, markers[i].name)) {
            *out = chat_marker_text(markers[i].marker);
            return true;
        }
    }
    return false;
}

/* Splits a template at the one place named `place` and fills in all others. */
static result expand(
    struct view template,
    const char *place,
    struct buffer *before,
    struct buffer *after,
    struct error *error
) {
    struct buffer *out = before;
    for (size_t i = 0; i < template.length; i++) {
        unsigned char c = template.data[i];
        unsigned char next = i + 1 < template.length ? template.data[i + 1] : 0;
        if (c != '{' && c != '}') {
            TRY(buffer_append_byte(out, c, error));
            continue;
        }
        if (c == next) {
            TRY(buffer_append_byte(out, c, error));
            i += 1;
            continue;
        }
        size_t end = view_find(template, view_of_text("}"), i);
        if (c == '}' || end == SIZE_MAX || end - i > PLACE_NAME_MAX) {
            FAIL(error, INVALID_INPUT, "a lone brace at byte %zu", i);
        }
        struct view name = view_slice(template, i + 1, end - i - 1);
        struct view text;
        i = end;
        if (known_place(name, &text)) {
            TRY(buffer_append(out, text, error));
        } else if (view_equals_text(name, place) && out == before) {
            out = after;
        } else {
            FAIL(
                error,
                INVALID_INPUT,
                "the place {%.*s} is %s",
                VIEW_ARGUMENTS(name),
                view_equals_text(name, place) ? "there twice" : "not known"
            );
        }
    }
    if (out == before) {
        FAIL(error, INVALID_INPUT, "there is no place {%s}", place);
    }
    return OK;
}

static result read_template(
    struct view text,
    const char *constant,
    const char *place,
    struct buffer *before,
    struct buffer *after,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer template = {NULL, 0, 0, 0};
    buffer_init(&template, CONSTANT_BYTES_MAX);
    TRY(find_constant(text, constant, &template, error));
    TRY_NOTE(
        error, expand(buffer_view(&template), place, before, after, error), "constant %s", constant
    );
    return OK;
}

static result check_digest(
    const struct buffer *text,
    const struct chat_wording_digest *digest,
    const char *what,
    struct error *error
) {
    char hex[SHA256_HEX_BYTES];
    sha256_hex(buffer_view(text), hex);
    if (text->length != digest->bytes || strcmp(hex, digest->sha256) != 0) {
        FAIL(
            error,
            CORRUPT,
            "the %s has %zu bytes and SHA-256 %s; %zu and %s are expected",
            what,
            text->length,
            hex,
            digest->bytes,
            digest->sha256
        );
    }
    return OK;
}

static result read_python(
    struct chat_wording *wording,
    struct view text,
    const struct chat_wording_source *source,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer rest = {NULL, 0, 0, 0};
    buffer_init(&rest, CONSTANT_BYTES_MAX);
    TRY(read_template(
        text, source->effort_constant, source->effort_place, &wording->effort_line, &rest, error
    ));
    TRY(buffer_append_text(&wording->effort_line, CHAT_EFFORT_PLACE, error));
    TRY(buffer_append(&wording->effort_line, buffer_view(&rest), error));
    TRY(check_effort_line(wording, error));
    TRY(read_template(
        text,
        source->tools_constant,
        source->tools_place,
        &wording->tools_head,
        &wording->tools_tail,
        error
    ));
    buffer_clear(&rest);
    TRY(buffer_append_text(&wording->response_format_head, "\n\n", error));
    TRY(read_template(
        text,
        source->response_format_constant,
        source->response_format_place,
        &wording->response_format_head,
        &rest,
        error
    ));
    if (rest.length > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "constant %s: text after its place",
            source->response_format_constant
        );
    }
    TRY(check_digest(&wording->effort_line, &source->effort_line, "effort line", error));
    TRY(check_digest(&wording->tools_head, &source->tools_head, "head of the tool section", error));
    TRY(check_digest(&wording->tools_tail, &source->tools_tail, "tail of the tool section", error));
    return check_digest(
        &wording->response_format_head, &source->response_format, "response-format text", error
    );
}

result chat_wording_parse_python(
    struct chat_wording **out,
    struct view text,
    const struct chat_wording_source *source,
    struct error *error
) {
    CLEANUP(chat_wording_cleanup) struct chat_wording *wording = NULL;
    source = source == NULL ? chat_wording_source_released() : source;
    if (text.length > FILE_BYTES_MAX || !utf8_is_valid(text)) {
        FAIL(
            error,
            INVALID_INPUT,
            "a Python file of %zu bytes; at most %zu of UTF-8 are read",
            text.length,
            FILE_BYTES_MAX
        );
    }
    TRY(wording_create(&wording, error));
    TRY(read_python(wording, text, source, error));
    *out = TAKE(wording);
    return OK;
}

const struct chat_wording_source *chat_wording_source_released(void) {
    static const struct chat_wording_source released = {
        .effort_constant = "REASONING_EFFORT_TEMPLATE",
        .effort_place = "budget",
        .tools_constant = "TOOLS_TEMPLATE",
        .tools_place = "tool_schemas",
        .response_format_constant = "response_format_template",
        .response_format_place = "schema",
        .effort_line = {92, "9ef9de99ad1aa3a89a0103086a927abe7e970cbfc0341722fd64e9e24bf62aa9"},
        .tools_head = {884, "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d"},
        .tools_tail = {99, "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7"},
        .response_format = {
            82, "6d26ed6fec4035e03aa2e63f3415e4fbc26261ff7944a721f3158e02fc54cbd2"}};
    return &released;
}

/* ---- directory ---- */

static result
read_file(struct buffer *out, const char *directory, const char *name, struct error *error) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the path of %s is too long", name);
    }
    return file_read(path, out, error);
}

static result load(
    struct chat_wording **out,
    const char *model_directory,
    const struct chat_wording_source *source,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, FILE_BYTES_MAX);
    result read = read_file(&file, model_directory, "chat.json", error);
    if (is_ok(read)) {
        TRY_NOTE(
            error, chat_wording_parse_json(out, buffer_view(&file), error), "%s", model_directory
        );
        return OK;
    }
    if (read.code != RESULT_NOT_FOUND) {
        return read;
    }
    read = read_file(&file, model_directory, "encoding/encoding.py", error);
    if (read.code == RESULT_NOT_FOUND) {
        FAIL(
            error,
            NOT_FOUND,
            "%s has neither chat.json nor encoding/encoding.py: the wording of the model's prompts "
            "is unknown",
            model_directory
        );
    }
    TRY(read);
    TRY_NOTE(
        error,
        chat_wording_parse_python(out, buffer_view(&file), source, error),
        "%s/encoding/encoding.py",
        model_directory
    );
    return OK;
}

result chat_wording_load(
    struct chat_wording **out,
    const char *model_directory,
    const struct chat_wording_source *source,
    struct error *error
) {
    return limit_as_corrupt(load(out, model_directory, source, error), error);
}
