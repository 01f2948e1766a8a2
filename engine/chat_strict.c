/* The official parser of whole completions, rule by rule: what it accepts, what it refuses, and how
 * it builds arguments. For comparison and for `parse --strict`; agents use the incremental parser. */
#include "chat.h"
#include "chat_markers.h"
#include "python_json.h"

struct strict {
    struct view text;
    size_t at;
    struct error *error;
    struct chat_call *calls;
    size_t call_count;
    struct buffer arguments[CHAT_CALLS_MAX];
};

/* Spellings that end a stretch of text. */
enum stop {
    STOP_NONE,
    STOP_THINK_END,
    STOP_END,
    STOP_CALLS,           /* blank line and "<DSML calls" */
    STOP_CALLS_END,       /* "</DSML calls>" */
    STOP_INVOKE,          /* "<DSML invoke" */
    STOP_INVOKE_END,      /* "</DSML invoke" */
    STOP_PARAMETER,       /* "<DSML parameter" */
    STOP_PARAMETER_SLASH, /* "/DSML parameter" */
    STOP_COUNT
};

static struct view stop_text(enum stop stop) {
    static const char *const texts[STOP_COUNT] = {
        [STOP_CALLS] = "\n\n<｜DSML｜ calls",
        [STOP_CALLS_END] = "</｜DSML｜ calls>",
        [STOP_INVOKE] = "<｜DSML｜ invoke",
        [STOP_INVOKE_END] = "</｜DSML｜ invoke",
        [STOP_PARAMETER] = "<｜DSML｜ parameter",
        [STOP_PARAMETER_SLASH] = "/｜DSML｜ parameter"};
    if (stop == STOP_THINK_END || stop == STOP_END) {
        return chat_marker_text(stop == STOP_END ? CHAT_MARKER_END : CHAT_MARKER_THINK_END);
    }
    return view_of_text(texts[stop]);
}

/* Text up to the first of two stops, which is passed; STOP_NONE and all the rest without one. */
static enum stop
read_until(struct strict *strict, enum stop first, enum stop second, struct view *out) {
    size_t first_at = view_find(strict->text, stop_text(first), strict->at);
    size_t second_at = view_find(strict->text, stop_text(second), strict->at);
    enum stop stop = first_at <= second_at ? first : second;
    size_t at = first_at <= second_at ? first_at : second_at;
    if (at == SIZE_MAX) {
        *out = view_slice(strict->text, strict->at, SIZE_MAX);
        strict->at = strict->text.length;
        return STOP_NONE;
    }
    *out = view_slice(strict->text, strict->at, at - strict->at);
    strict->at = at + stop_text(stop).length;
    return stop;
}

static result expect_line_end(const struct strict *strict, struct view found, const char *what) {
    if (!view_equals_text(found, ">\n")) {
        FAIL(
            strict->error,
            INVALID_INPUT,
            "%s format error: expected '>\\n' but got '%.*s'",
            what,
            VIEW_ARGUMENTS(view_slice(found, 0, 80))
        );
    }
    return OK;
}

/* ` name="NAME">` and a line end (a second one is let pass), white space in front allowed. */
static result parse_name(const struct strict *strict, struct view tag, struct view *name) {
    struct view rest = tag;
    while (rest.length > 0 && strchr(" \t\r\n\v\f", rest.data[0]) != NULL) {
        rest = view_slice(rest, 1, SIZE_MAX);
    }
    size_t cut = view_ends_with(rest, view_of_text("\">\n\n")) ? 4 : 3;
    bool is_sound = view_starts_with(rest, view_of_text("name=\"")) && rest.length >= 6 + cut &&
                    (cut == 4 || view_ends_with(rest, view_of_text("\">\n")));
    if (!is_sound) {
        FAIL(
            strict->error,
            INVALID_INPUT,
            "Tool name format error: '%.*s'",
            VIEW_ARGUMENTS(view_slice(tag, 0, 80))
        );
    }
    *name = view_slice(rest, 6, rest.length - 6 - cut);
    return OK;
}

struct parameter {
    struct view name;
    struct view value;
    bool is_string;
};

/* ` name="NAME" string="true|false">VALUE<`. */
static result parse_parameter(const struct strict *strict, struct view tag, struct parameter *out) {
    struct view opening = view_of_text(" name=\"");
    struct view when_true = view_of_text("\" string=\"true\">");
    struct view when_false = view_of_text("\" string=\"false\">");
    size_t true_at = view_find(tag, when_true, opening.length);
    size_t false_at = view_find(tag, when_false, opening.length);
    out->is_string = true_at < false_at;
    size_t name_end = out->is_string ? true_at : false_at;
    size_t value_at = name_end == SIZE_MAX
                          ? 0
                          : name_end + (out->is_string ? when_true.length : when_false.length);
    size_t cut = view_ends_with(tag, view_of_text("<\n")) ? 2 : 1;
    bool is_sound = view_starts_with(tag, opening) && name_end != SIZE_MAX &&
                    tag.length >= value_at + cut &&
                    (cut == 2 || view_ends_with(tag, view_of_text("<")));
    if (!is_sound) {
        FAIL(
            strict->error,
            INVALID_INPUT,
            "Parameter format error: '%.*s'",
            VIEW_ARGUMENTS(view_slice(tag, 0, 80))
        );
    }
    out->name = view_slice(tag, opening.length, name_end - opening.length);
    out->value = view_slice(tag, value_at, tag.length - cut - value_at);
    return OK;
}

static result
append_parameter(struct buffer *arguments, const struct parameter *parameter, struct error *error) {
    TRY(buffer_append_text(arguments, arguments->length > 1 ? ", " : "", error));
    TRY(python_json_append_string(arguments, parameter->name, error));
    TRY(buffer_append_text(arguments, ": ", error));
    return parameter->is_string ? python_json_append_string(arguments, parameter->value, error)
                                : buffer_append(arguments, parameter->value, error);
}

static result parse_call(struct strict *strict) {
    struct error *error = strict->error;
    struct view tag;
    struct view names[CHAT_PARAMETERS_MAX];
    size_t name_count = 0;
    if (strict->call_count == CHAT_CALLS_MAX) {
        FAIL(error, INVALID_INPUT, "more than %d calls", CHAT_CALLS_MAX);
    }
    struct chat_call *call = &strict->calls[strict->call_count];
    struct buffer *arguments = &strict->arguments[strict->call_count];
    strict->call_count += 1;
    buffer_init(arguments, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_text(arguments, "{", error));
    enum stop stop = read_until(strict, STOP_PARAMETER, STOP_INVOKE_END, &tag);
    TRY(parse_name(strict, tag, &call->name));
    while (stop == STOP_PARAMETER) {
        struct parameter parameter = {0};
        (void)read_until(strict, STOP_PARAMETER_SLASH, STOP_PARAMETER_SLASH, &tag);
        TRY(parse_parameter(strict, tag, &parameter));
        for (size_t i = 0; i < name_count; i++) {
            if (view_equals(names[i], parameter.name)) {
                FAIL(
                    error,
                    INVALID_INPUT,
                    "Duplicate parameter name: '%.*s'",
                    VIEW_ARGUMENTS(view_slice(parameter.name, 0, 80))
                );
            }
        }
        if (name_count == CHAT_PARAMETERS_MAX) {
            FAIL(error, INVALID_INPUT, "more than %d parameters", CHAT_PARAMETERS_MAX);
        }
        names[name_count++] = parameter.name;
        TRY(append_parameter(arguments, &parameter, error));
        stop = read_until(strict, STOP_PARAMETER, STOP_INVOKE_END, &tag);
        TRY(expect_line_end(strict, tag, "Parameter"));
    }
    TRY(buffer_append_text(arguments, "}", error));
    call->arguments = buffer_view(arguments);
    return OK;
}

static result parse_calls(struct strict *strict) {
    while (strict->at < strict->text.length) {
        struct view between;
        enum stop stop = read_until(strict, STOP_INVOKE, STOP_CALLS_END, &between);
        TRY(expect_line_end(strict, between, "Tool call"));
        if (stop == STOP_CALLS_END) {
            return OK;
        }
        if (stop == STOP_NONE) {
            FAIL(strict->error, INVALID_INPUT, "Missing special token in tool calls");
        }
        TRY(parse_call(strict));
    }
    return OK;
}

static result check_no_markers(const struct strict *strict, struct view text) {
    static const enum chat_marker markers[] = {
        CHAT_MARKER_BEGIN,
        CHAT_MARKER_END,
        CHAT_MARKER_THINK,
        CHAT_MARKER_THINK_END,
        CHAT_MARKER_DSML};
    for (size_t i = 0; i < COUNT_OF(markers); i++) {
        struct view marker = chat_marker_text(markers[i]);
        if (view_find(text, marker, 0) != SIZE_MAX) {
            FAIL(
                strict->error,
                INVALID_INPUT,
                "Unexpected special token '%.*s' in content",
                VIEW_ARGUMENTS(marker)
            );
        }
    }
    return OK;
}

static result parse(struct strict *strict, bool thinking, struct chat_message *message) {
    struct error *error = strict->error;
    struct view rest;
    if (thinking &&
        read_until(strict, STOP_THINK_END, STOP_CALLS, &message->reasoning) != STOP_THINK_END) {
        FAIL(error, INVALID_INPUT, "Invalid thinking format: missing </think>");
    }
    enum stop stop = read_until(strict, STOP_END, STOP_CALLS, &message->content);
    if (stop == STOP_NONE) {
        FAIL(error, INVALID_INPUT, "Invalid format: missing EOS token");
    }
    if (stop == STOP_CALLS) {
        TRY(parse_calls(strict));
        (void)read_until(strict, STOP_END, STOP_END, &rest);
        if (rest.length > 0) {
            FAIL(error, INVALID_INPUT, "Unexpected content after tool calls");
        }
    }
    if (strict->at != strict->text.length) {
        FAIL(error, INVALID_INPUT, "Unexpected content at end");
    }
    TRY(check_no_markers(strict, message->content));
    TRY(check_no_markers(strict, message->reasoning));
    message->calls = strict->calls;
    message->call_count = strict->call_count;
    return OK;
}

static void strict_deinit(struct strict *strict) {
    for (size_t i = 0; i < strict->call_count; i++) {
        buffer_deinit(&strict->arguments[i]);
    }
    free(strict->calls);
}

result chat_parse_strict(
    struct chat_conversation *out, struct view completion, bool thinking, struct error *error
) {
    CLEANUP(strict_deinit) struct strict strict = {.text = completion, .error = error};
    strict.calls = calloc(CHAT_CALLS_MAX, sizeof *strict.calls);
    if (strict.calls == NULL) {
        FAIL(error, MEMORY, "no memory for %d calls", CHAT_CALLS_MAX);
    }
    struct chat_message message = {.role = CHAT_ASSISTANT};
    TRY(parse(&strict, thinking, &message));
    return chat_conversation_append(out, &message, error);
}
