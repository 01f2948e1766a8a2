/* The only file that includes cJSON. A strict scan first records where every value starts and ends,
 * in document order; the tree is then walked in the same order and each node remembers its index
 * in `valueint` (which nothing else reads), so that a node finds its raw text. No recursion. */
#include "json.h"

#include <cjson/cJSON.h>
#include <limits.h>

struct span {
    uint32_t start;
    uint32_t end;
};

struct json_document {
    char *text; /* own copy, NUL-terminated */
    size_t length;
    cJSON *root;
    struct span *spans; /* one per value, in document order */
    size_t span_count;
    size_t span_capacity;
};

static const char *const type_names[] = {
    "nothing", "null", "a boolean", "a number", "a string", "an array", "an object"};

/* ---- strict scan ---- */

struct scan {
    struct json_document *document;
    size_t at;
    size_t values_max;
    unsigned depth_max;
    unsigned depth;
    char closers[JSON_DEPTH_MAX];
    size_t open_spans[JSON_DEPTH_MAX];
    struct error *error;
};

static int peek(const struct scan *scan) {
    return scan->at < scan->document->length ? (unsigned char)scan->document->text[scan->at] : -1;
}

/* A byte offset as the code of an error. */
static int place(size_t at) {
    return at > INT_MAX ? INT_MAX : (int)at;
}

static void skip_blanks(struct scan *scan) {
    int c = peek(scan);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        scan->at += 1;
        c = peek(scan);
    }
}

static result unexpected(const struct scan *scan, const char *wanted) {
    int c = peek(scan);
    if (c < 0) {
        FAIL_FOREIGN(
            scan->error,
            INVALID_INPUT,
            place(scan->at),
            "JSON ends at byte %zu where %s is due",
            scan->at,
            wanted
        );
    }
    FAIL_FOREIGN(
        scan->error,
        INVALID_INPUT,
        place(scan->at),
        "JSON has byte 0x%02x at offset %zu where %s is due",
        (unsigned)c,
        scan->at,
        wanted
    );
}

static bool take_hex4(struct scan *scan, unsigned *out) {
    unsigned value = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(scan);
        unsigned digit = 0;
        if (c >= '0' && c <= '9') {
            digit = (unsigned)c - '0';
        } else if (c >= 'a' && c <= 'f') {
            digit = (unsigned)c - 'a' + 10;
        } else if (c >= 'A' && c <= 'F') {
            digit = (unsigned)c - 'A' + 10;
        } else {
            return false;
        }
        value = value << 4 | digit;
        scan->at += 1;
    }
    *out = value;
    return true;
}

static result scan_escape(struct scan *scan) {
    int c = peek(scan);
    if (c > 0 && strchr("\"\\/bfnrt", c) != NULL) {
        scan->at += 1;
        return OK;
    }
    size_t start = scan->at - 1;
    unsigned unit = 0;
    scan->at += 1;
    if (c != 'u' || !take_hex4(scan, &unit)) {
        FAIL_FOREIGN(
            scan->error, INVALID_INPUT, place(start), "JSON has a bad escape at offset %zu", start
        );
    }
    if (unit == 0) {
        FAIL_FOREIGN(
            scan->error,
            INVALID_INPUT,
            place(start),
            "JSON has U+0000 in a string at offset %zu",
            start
        );
    }
    if (unit < 0xD800U || unit > 0xDFFFU) {
        return OK;
    }
    unsigned low = 0;
    bool paired = unit < 0xDC00U && peek(scan) == '\\';
    if (paired) {
        scan->at += 1;
        paired = peek(scan) == 'u';
        scan->at += 1;
    }
    if (!paired || !take_hex4(scan, &low) || low < 0xDC00U || low > 0xDFFFU) {
        FAIL_FOREIGN(
            scan->error,
            INVALID_INPUT,
            place(start),
            "JSON has a lone surrogate at offset %zu",
            start
        );
    }
    return OK;
}

static result scan_string(struct scan *scan) {
    size_t start = scan->at;
    scan->at += 1;
    for (;;) {
        int c = peek(scan);
        if (c < 0) {
            FAIL_FOREIGN(
                scan->error,
                INVALID_INPUT,
                place(start),
                "JSON string at offset %zu is not closed",
                start
            );
        }
        if (c < 0x20) {
            FAIL_FOREIGN(
                scan->error,
                INVALID_INPUT,
                place(scan->at),
                "JSON has control byte 0x%02x in a string at offset %zu",
                (unsigned)c,
                scan->at
            );
        }
        scan->at += 1;
        if (c == '"') {
            return OK;
        }
        if (c == '\\') {
            TRY(scan_escape(scan));
        }
    }
}

static bool take_digits(struct scan *scan) {
    size_t start = scan->at;
    while (peek(scan) >= '0' && peek(scan) <= '9') {
        scan->at += 1;
    }
    return scan->at > start;
}

static result scan_number(struct scan *scan) {
    if (peek(scan) == '-') {
        scan->at += 1;
    }
    if (peek(scan) == '0') {
        scan->at += 1;
    } else if (!take_digits(scan)) {
        return unexpected(scan, "a digit");
    }
    if (peek(scan) == '.') {
        scan->at += 1;
        if (!take_digits(scan)) {
            return unexpected(scan, "a digit");
        }
    }
    if (peek(scan) == 'e' || peek(scan) == 'E') {
        scan->at += 1;
        if (peek(scan) == '+' || peek(scan) == '-') {
            scan->at += 1;
        }
        if (!take_digits(scan)) {
            return unexpected(scan, "a digit");
        }
    }
    return OK;
}

static result scan_word(struct scan *scan, const char *word) {
    size_t length = strlen(word);
    struct view rest =
        view_slice(view_of(scan->document->text, scan->document->length), scan->at, length);
    if (!view_equals_text(rest, word)) {
        return unexpected(scan, "a value");
    }
    scan->at += length;
    return OK;
}

static result open_span(struct scan *scan, size_t *index) {
    struct json_document *document = scan->document;
    if (document->span_count == scan->values_max) {
        FAIL(scan->error, LIMIT, "JSON has more than the %zu values allowed", scan->values_max);
    }
    if (document->span_count == document->span_capacity) {
        size_t capacity = document->span_capacity == 0 ? 32 : document->span_capacity * 2;
        struct span *spans = realloc(document->spans, capacity * sizeof *spans);
        if (spans == NULL) {
            FAIL(scan->error, MEMORY, "no memory for %zu JSON values", capacity);
        }
        document->spans = spans;
        document->span_capacity = capacity;
    }
    *index = document->span_count;
    document->spans[document->span_count].start = (uint32_t)scan->at;
    document->spans[document->span_count].end = (uint32_t)scan->at;
    document->span_count += 1;
    return OK;
}

/* Scans one value; a non-empty container is left open on the stack. */
static result scan_value(struct scan *scan, bool *opened) {
    size_t index = 0;
    TRY(open_span(scan, &index));
    *opened = false;
    int c = peek(scan);
    if (c == '{' || c == '[') {
        if (scan->depth == scan->depth_max) {
            FAIL(
                scan->error,
                LIMIT,
                "JSON nests deeper than the %u levels allowed at offset %zu",
                scan->depth_max,
                scan->at
            );
        }
        scan->at += 1;
        skip_blanks(scan);
        char closer = c == '{' ? '}' : ']';
        if (peek(scan) == closer) {
            scan->at += 1;
        } else {
            scan->closers[scan->depth] = closer;
            scan->open_spans[scan->depth] = index;
            scan->depth += 1;
            *opened = true;
        }
    } else if (c == '"') {
        TRY(scan_string(scan));
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        TRY(scan_number(scan));
    } else if (c == 't' || c == 'f' || c == 'n') {
        TRY(scan_word(scan, c == 't' ? "true" : c == 'f' ? "false" : "null"));
    } else {
        return unexpected(scan, "a value");
    }
    scan->document->spans[index].end = (uint32_t)scan->at;
    return OK;
}

static result scan_member_name(struct scan *scan) {
    if (peek(scan) != '"') {
        return unexpected(scan, "a member name");
    }
    TRY(scan_string(scan));
    skip_blanks(scan);
    if (peek(scan) != ':') {
        return unexpected(scan, "':'");
    }
    scan->at += 1;
    skip_blanks(scan);
    return OK;
}

/* After a value: closes containers that end here; true when another item follows. */
static result scan_after_value(struct scan *scan, bool *more) {
    while (scan->depth > 0) {
        skip_blanks(scan);
        char closer = scan->closers[scan->depth - 1];
        if (peek(scan) == ',') {
            scan->at += 1;
            skip_blanks(scan);
            *more = true;
            return OK;
        }
        if (peek(scan) != closer) {
            return unexpected(scan, closer == '}' ? "',' or '}'" : "',' or ']'");
        }
        scan->at += 1;
        scan->depth -= 1;
        scan->document->spans[scan->open_spans[scan->depth]].end = (uint32_t)scan->at;
    }
    *more = false;
    return OK;
}

static result scan_text(struct scan *scan) {
    skip_blanks(scan);
    for (;;) {
        if (scan->depth > 0 && scan->closers[scan->depth - 1] == '}') {
            TRY(scan_member_name(scan));
        }
        bool opened = false;
        TRY(scan_value(scan, &opened));
        if (opened) {
            continue;
        }
        bool more = false;
        TRY(scan_after_value(scan, &more));
        if (!more) {
            break;
        }
    }
    skip_blanks(scan);
    if (scan->at < scan->document->length) {
        return unexpected(scan, "the end");
    }
    return OK;
}

/* ---- tree ---- */

static int compare_names(const void *a, const void *b) {
    const char *const *left = a;
    const char *const *right = b;
    return strcmp(*left, *right);
}

static result check_duplicates(const cJSON *object, struct error *error) {
    size_t count = 0;
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        count += 1;
    }
    if (count < 2) {
        return OK;
    }
    CLEANUP(free_cleanup) const char **sorted = malloc(count * sizeof *sorted);
    if (sorted == NULL) {
        FAIL(error, MEMORY, "no memory to check %zu JSON member names", count);
    }
    size_t at = 0;
    for (const cJSON *member = object->child; member != NULL; member = member->next) {
        sorted[at++] = member->string;
    }
    qsort(sorted, count, sizeof *sorted, compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            FAIL(error, INVALID_INPUT, "JSON object has the member '%.64s' twice", sorted[i]);
        }
    }
    return OK;
}

/* Gives every node its index in document order and refuses duplicate member names. */
static result index_nodes(struct json_document *document, struct error *error) {
    cJSON *parents[JSON_DEPTH_MAX + 1];
    unsigned depth = 0;
    size_t index = 0;
    cJSON *node = document->root;
    while (node != NULL) {
        node->valueint = narrow_i32((int64_t)index);
        index += 1;
        if (cJSON_IsObject(node)) {
            TRY(check_duplicates(node, error));
        }
        if (node->child != NULL) {
            ASSERT(depth < COUNT_OF(parents));
            parents[depth++] = node;
            node = node->child;
            continue;
        }
        while (node != NULL && (depth == 0 || node->next == NULL)) {
            node = depth == 0 ? NULL : parents[--depth];
        }
        node = node == NULL ? NULL : node->next;
    }
    ASSERT(index == document->span_count);
    return OK;
}

static result build(
    struct view text,
    const struct json_limits *limits,
    struct json_document *document,
    struct error *error
) {
    document->text = malloc(text.length + 1);
    if (document->text == NULL) {
        FAIL(error, MEMORY, "no memory for a JSON text of %zu bytes", text.length);
    }
    if (text.length > 0) { // the view of no text may be null
        memcpy(document->text, text.data, text.length);
    }
    document->text[text.length] = '\0';
    document->length = text.length;
    struct scan scan = {.document = document, .error = error};
    scan.values_max = limits->values_max == 0 ? JSON_VALUES_MAX : limits->values_max;
    scan.depth_max = limits->depth_max == 0 ? JSON_DEPTH_MAX : limits->depth_max;
    ASSERT(scan.depth_max <= JSON_DEPTH_MAX && scan.values_max < INT32_MAX);
    TRY(scan_text(&scan));
    document->root = cJSON_ParseWithLength(document->text, document->length);
    if (document->root == NULL) {
        FAIL(error, MEMORY, "no memory for the tree of a JSON text of %zu bytes", text.length);
    }
    return index_nodes(document, error);
}

result json_parse(
    struct view text,
    const struct json_limits *limits,
    struct json_document **out,
    struct error *error
) {
    struct json_limits defaults = {0, 0, 0};
    if (limits == NULL) {
        limits = &defaults;
    }
    size_t bytes_max = limits->bytes_max == 0 ? JSON_BYTES_MAX : limits->bytes_max;
    if (text.length > bytes_max || text.length >= UINT32_MAX) {
        FAIL(error, LIMIT, "JSON of %zu bytes exceeds the %zu allowed", text.length, bytes_max);
    }
    size_t valid = utf8_valid_prefix(text);
    if (valid != text.length) {
        FAIL_FOREIGN(error, INVALID_INPUT, place(valid), "JSON is not UTF-8 at offset %zu", valid);
    }
    CLEANUP(json_cleanup) struct json_document *document = calloc(1, sizeof *document);
    if (document == NULL) {
        FAIL(error, MEMORY, "no memory for a JSON document");
    }
    TRY(build(text, limits, document, error));
    *out = TAKE(document);
    return OK;
}

void json_destroy(struct json_document *document) {
    if (document == NULL) {
        return;
    }
    cJSON_Delete(document->root);
    free(document->spans);
    free(document->text);
    free(document);
}

void json_cleanup(struct json_document **document) {
    json_destroy(*document);
    *document = NULL;
}

struct json_value json_root(const struct json_document *document) {
    struct json_value value = {document->root, document};
    return value;
}

static struct json_value absent(void) {
    struct json_value value = {NULL, NULL};
    return value;
}

static struct json_value wrap(const cJSON *node, const struct json_document *document) {
    struct json_value value = {node, document};
    return node == NULL ? absent() : value;
}

enum json_type json_type(struct json_value value) {
    if (value.node == NULL) {
        return JSON_ABSENT;
    }
    if (cJSON_IsBool(value.node)) {
        return JSON_BOOL;
    }
    if (cJSON_IsNumber(value.node)) {
        return JSON_NUMBER;
    }
    if (cJSON_IsString(value.node)) {
        return JSON_STRING;
    }
    if (cJSON_IsArray(value.node)) {
        return JSON_ARRAY;
    }
    return cJSON_IsObject(value.node) ? JSON_OBJECT : JSON_NULL;
}

const char *json_type_name(enum json_type type) {
    ASSERT((size_t)type < COUNT_OF(type_names));
    return type_names[type];
}

struct view json_raw(struct json_value value) {
    if (value.node == NULL) {
        return view_of("", 0);
    }
    struct span span = value.document->spans[value.node->valueint];
    return view_of(value.document->text + span.start, span.end - span.start);
}

struct json_value json_get_view(struct json_value object, struct view name) {
    if (json_type(object) != JSON_OBJECT) {
        return absent();
    }
    for (const cJSON *member = object.node->child; member != NULL; member = member->next) {
        if (view_equals_text(name, member->string)) {
            return wrap(member, object.document);
        }
    }
    return absent();
}

struct json_value json_get(struct json_value object, const char *name) {
    return json_get_view(object, view_of_text(name));
}

size_t json_count(struct json_value container) {
    size_t count = 0;
    for (struct json_value v = json_first(container); v.node != NULL; v = json_next(v)) {
        count += 1;
    }
    return count;
}

struct json_value json_first(struct json_value container) {
    return container.node == NULL ? absent() : wrap(container.node->child, container.document);
}

struct json_value json_next(struct json_value value) {
    return value.node == NULL ? absent() : wrap(value.node->next, value.document);
}

struct view json_name(struct json_value member) {
    return view_of_text(member.node == NULL ? NULL : member.node->string);
}

bool json_as_string(struct json_value value, struct view *out) {
    if (json_type(value) != JSON_STRING) {
        return false;
    }
    *out = view_of_text(value.node->valuestring);
    return true;
}

bool json_as_i64(struct json_value value, int64_t *out) {
    return json_type(value) == JSON_NUMBER && parse_i64(json_raw(value), out);
}

bool json_as_double(struct json_value value, double *out) {
    if (json_type(value) != JSON_NUMBER) {
        return false;
    }
    *out = value.node->valuedouble;
    return *out - *out == 0.0; // false for an infinity, which 1e999 becomes
}

bool json_as_bool(struct json_value value, bool *out) {
    if (json_type(value) != JSON_BOOL) {
        return false;
    }
    *out = cJSON_IsTrue(value.node);
    return true;
}

static result
wrong_type(struct json_value value, const char *name, const char *wanted, struct error *error) {
    enum json_type type = json_type(value);
    if (type == JSON_ABSENT) {
        FAIL(error, INVALID_INPUT, "'%s' is missing; it must be %s", name, wanted);
    }
    if (type == JSON_NUMBER) {
        struct view raw = json_raw(value);
        FAIL(
            error, INVALID_INPUT, "'%s' is %.*s; it must be %s", name, VIEW_ARGUMENTS(raw), wanted
        );
    }
    FAIL(error, INVALID_INPUT, "'%s' is %s; it must be %s", name, json_type_name(type), wanted);
}

result
json_get_string(struct json_value object, const char *name, struct view *out, struct error *error) {
    struct json_value value = json_get(object, name);
    return json_as_string(value, out) ? OK : wrong_type(value, name, "a string", error);
}

result json_get_i64(struct json_value object, const char *name, int64_t *out, struct error *error) {
    struct json_value value = json_get(object, name);
    return json_as_i64(value, out) ? OK : wrong_type(value, name, "a 64-bit integer", error);
}

result
json_get_double(struct json_value object, const char *name, double *out, struct error *error) {
    struct json_value value = json_get(object, name);
    return json_as_double(value, out) ? OK : wrong_type(value, name, "a finite number", error);
}

result json_get_bool(struct json_value object, const char *name, bool *out, struct error *error) {
    struct json_value value = json_get(object, name);
    return json_as_bool(value, out) ? OK : wrong_type(value, name, "true or false", error);
}

result json_get_array(
    struct json_value object, const char *name, struct json_value *out, struct error *error
) {
    struct json_value value = json_get(object, name);
    if (json_type(value) != JSON_ARRAY) {
        return wrong_type(value, name, "an array", error);
    }
    *out = value;
    return OK;
}

result json_get_object(
    struct json_value object, const char *name, struct json_value *out, struct error *error
) {
    struct json_value value = json_get(object, name);
    if (json_type(value) != JSON_OBJECT) {
        return wrong_type(value, name, "an object", error);
    }
    *out = value;
    return OK;
}
