/* What a turn is made of: text goes where the state says, tags change the state. Every tag is
 * accepted in every state; what does not fit is noted and the nearest reasonable thing is done. */
#include "chat_parser.h"
#include "python_json.h"

#define VALUE_DEPTH_MAX 40 /* nesting of a JSON value; the arguments add one level */

enum tag_kind { TAG_CALLS, TAG_INVOKE, TAG_PARAMETER, TAG_OTHER };

/* ---- notes and events ---- */

void parser_emit(
    struct chat_parser *parser, enum chat_event_type type, struct view text, size_t call_index
) {
    if (parser->options.event != NULL) {
        struct chat_event event = {.type = type, .text = text, .call_index = call_index};
        parser->options.event(parser->options.context, &event);
    }
}

void parser_note(
    struct chat_parser *parser, enum chat_problem problem, size_t call_index, struct view detail
) {
    detail = view_slice(detail, 0, CHAT_DETAIL_MAX);
    detail.length = utf8_valid_prefix(detail);
    if (parser->note_count < CHAT_PROBLEMS_MAX) {
        struct parser_note *note = &parser->notes[parser->note_count];
        note->problem = problem;
        note->call_index = call_index;
        note->detail_length = detail.length;
        if (detail.length > 0) {
            memcpy(note->detail, detail.data, detail.length);
        }
    }
    parser->note_count += 1;
    if (parser->options.event != NULL) {
        struct chat_event event = {CHAT_EVENT_PROBLEM, detail, call_index, problem};
        parser->options.event(parser->options.context, &event);
    }
}

size_t parser_call_index(const struct chat_parser *parser) {
    bool is_in_call = parser->state == PARSER_CALL || parser->state == PARSER_VALUE;
    return is_in_call ? parser->call_count - 1 : SIZE_MAX;
}

static void note_syntax(struct chat_parser *parser, struct view detail) {
    parser_note(parser, CHAT_PROBLEM_CALL_SYNTAX, parser_call_index(parser), detail);
}

/* ---- text ---- */

static bool is_blank(struct view text) {
    for (size_t i = 0; i < text.length; i++) {
        if (strchr(" \t\r\n", text.data[i]) == NULL || text.data[i] == '\0') {
            return false;
        }
    }
    return true;
}

/* Appends to the arguments of the current call and tells the listener. */
static result put_arguments(struct chat_parser *parser, struct view text, struct error *error) {
    size_t index = parser->call_count - 1;
    TRY(buffer_append(&parser->calls[index].arguments, text, error));
    if (text.length > 0) {
        parser_emit(parser, CHAT_EVENT_CALL_ARGUMENTS, text, index);
    }
    return OK;
}

static result
put_json_string_part(struct chat_parser *parser, struct view text, struct error *error) {
    buffer_clear(&parser->scratch);
    TRY(python_json_append_string(&parser->scratch, text, error));
    struct view quoted = buffer_view(&parser->scratch);
    return put_arguments(parser, view_slice(quoted, 1, quoted.length - 2), error);
}

static result put_value_text(struct chat_parser *parser, struct view text, struct error *error) {
    if (parser->value_is_dropped) {
        return OK;
    }
    return parser->value_is_string ? put_json_string_part(parser, text, error)
                                   : buffer_append(&parser->value, text, error);
}

result parser_put_text(struct chat_parser *parser, struct view text, struct error *error) {
    if (text.length == 0) {
        return OK;
    }
    if (parser->state == PARSER_REASONING) {
        TRY(buffer_append(&parser->reasoning, text, error));
        parser_emit(parser, CHAT_EVENT_REASONING, text, SIZE_MAX);
    } else if (parser->state == PARSER_CONTENT) {
        TRY(buffer_append(&parser->content, text, error));
        parser_emit(parser, CHAT_EVENT_CONTENT, text, SIZE_MAX);
    } else if (parser->state == PARSER_VALUE) {
        return put_value_text(parser, text, error);
    } else if (!is_blank(text)) {
        if (parser->state == PARSER_AFTER) {
            parser_note(parser, CHAT_PROBLEM_TEXT_AFTER_CALLS, SIZE_MAX, text);
        } else if (parser->state == PARSER_BLOCK || parser->state == PARSER_CALL) {
            note_syntax(parser, text);
        }
    }
    return OK;
}

/* ---- tags ---- */

static struct view skip_spaces(struct view text) {
    while (text.length > 0 && (text.data[0] == ' ' || text.data[0] == '\n')) {
        text = view_slice(text, 1, SIZE_MAX);
    }
    return text;
}

static enum tag_kind tag_kind(struct view tag) {
    static const struct {
        const char *word;
        enum tag_kind kind;
    } words[] = {
        {"calls", TAG_CALLS},
        {"tool_calls", TAG_CALLS}, // as the model before this one wrote it
        {"function_calls", TAG_CALLS},
        {"invoke", TAG_INVOKE},
        {"parameter", TAG_PARAMETER}};
    tag = skip_spaces(tag);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t length = strlen(words[i].word);
        if (view_starts_with(tag, view_of_text(words[i].word)) &&
            (tag.length == length || strchr(" \n", tag.data[length]) != NULL)) {
            return words[i].kind;
        }
    }
    return TAG_OTHER;
}

/* Value of ATTRIBUTE="..." in a tag; false when it is not there. */
static bool tag_attribute(struct view tag, const char *attribute, struct view *out) {
    char opening[32];
    int length = snprintf(opening, sizeof opening, " %s=\"", attribute);
    ASSERT(length > 0 && (size_t)length < sizeof opening);
    size_t at = view_find(tag, view_of_text(opening), 0);
    if (at == SIZE_MAX) {
        return false;
    }
    size_t from = at + (size_t)length;
    size_t end = view_find(tag, view_of_text("\""), from);
    if (end == SIZE_MAX) {
        return false;
    }
    *out = view_slice(tag, from, end - from);
    return out->length > 0 && out->length <= CHAT_NAME_BYTES_MAX;
}

/* Whether "NAME" with its quotation marks is in the list. */
static result has_name(
    struct chat_parser *parser,
    const struct buffer *names,
    struct view name,
    bool *out,
    struct error *error
) {
    buffer_clear(&parser->scratch);
    TRY(buffer_append_byte(&parser->scratch, '"', error));
    TRY(buffer_append(&parser->scratch, name, error));
    TRY(buffer_append_byte(&parser->scratch, '"', error));
    *out = view_find(buffer_view(names), buffer_view(&parser->scratch), 0) != SIZE_MAX;
    return OK;
}

/* ---- calls ---- */

static result begin_call(struct chat_parser *parser, struct error *error) {
    struct view tag = buffer_view(&parser->tag);
    struct view name;
    bool is_named = tag_attribute(tag, "name", &name);
    if (!is_named || parser->call_count == parser->options.calls_max) {
        enum chat_problem problem = is_named ? CHAT_PROBLEM_LIMIT : CHAT_PROBLEM_CALL_SYNTAX;
        parser->state = PARSER_SKIPPED;
        parser_note(parser, problem, SIZE_MAX, tag);
        return OK;
    }
    size_t index = parser->call_count;
    struct parser_call *call = &parser->calls[index];
    buffer_init(&call->name, CHAT_NAME_BYTES_MAX);
    buffer_init(&call->arguments, BUFFER_CEILING_DEFAULT);
    parser->call_count += 1;
    parser->state = PARSER_CALL;
    (void
    )snprintf(call->id, sizeof call->id, "call_%zu", parser->options.first_call_number + index);
    TRY(buffer_append(&call->name, name, error));
    buffer_clear(&parser->parameter_names);
    parser->parameter_count = 0;
    parser->written_count = 0;
    parser_emit(parser, CHAT_EVENT_CALL_STARTED, buffer_view(&call->name), index);
    if (parser->options.tool_count > 0) {
        bool is_known = false;
        TRY(has_name(parser, &parser->tool_names, name, &is_known, error));
        if (!is_known) {
            parser_note(parser, CHAT_PROBLEM_TOOL_UNKNOWN, index, name);
        }
    }
    return put_arguments(parser, view_of_text("{"), error);
}

static result finish_call(struct chat_parser *parser, struct error *error) {
    size_t index = parser->call_count - 1;
    TRY(put_arguments(parser, view_of_text("}"), error));
    parser->calls[index].is_complete = true;
    parser->state = PARSER_BLOCK;
    struct view arguments = buffer_view(&parser->calls[index].arguments);
    parser_emit(parser, CHAT_EVENT_CALL_FINISHED, arguments, index);
    return OK;
}

static result begin_value(struct chat_parser *parser, struct error *error) {
    struct view tag = buffer_view(&parser->tag);
    struct view name = view_of_text("");
    struct view kind = view_of_text("");
    bool is_named = tag_attribute(tag, "name", &name);
    bool has_kind = tag_attribute(tag, "string", &kind);
    bool is_false = has_kind && view_equals_text(kind, "false");
    size_t index = parser->call_count - 1;
    parser->state = PARSER_VALUE;
    parser->value_is_string = !is_false;
    parser->value_is_dropped = false;
    buffer_clear(&parser->value);
    if (!is_named || (!is_false && !view_equals_text(kind, "true"))) {
        note_syntax(parser, tag);
    }
    bool is_repeated = false;
    TRY(has_name(parser, &parser->parameter_names, name, &is_repeated, error));
    if (is_repeated) {
        parser_note(parser, CHAT_PROBLEM_PARAMETER_REPEATED, index, name);
    }
    bool is_too_many = parser->parameter_count == CHAT_PARAMETERS_MAX;
    if (is_too_many) {
        parser_note(parser, CHAT_PROBLEM_LIMIT, index, name);
    }
    parser->value_is_dropped = !is_named || is_repeated || is_too_many;
    if (parser->value_is_dropped) {
        return OK;
    }
    parser->parameter_count += 1;
    TRY(buffer_append(&parser->parameter_names, buffer_view(&parser->scratch), error));
    TRY(put_arguments(parser, view_of_text(parser->written_count > 0 ? ", " : ""), error));
    parser->written_count += 1;
    buffer_clear(&parser->scratch);
    TRY(python_json_append_string(&parser->scratch, name, error));
    TRY(put_arguments(parser, buffer_view(&parser->scratch), error));
    return put_arguments(parser, view_of_text(parser->value_is_string ? ": \"" : ": "), error);
}

static result end_value(struct chat_parser *parser, struct error *error) {
    size_t index = parser->call_count - 1;
    parser->state = PARSER_CALL;
    if (parser->value_is_dropped) {
        return OK;
    }
    if (parser->value_is_string) {
        return put_arguments(parser, view_of_text("\""), error);
    }
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {.depth_max = VALUE_DEPTH_MAX};
    result parsed = json_parse(buffer_view(&parser->value), &limits, &document, NULL);
    if (is_ok(parsed)) {
        return put_arguments(parser, json_raw(json_root(document)), error);
    }
    if (parsed.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "no memory to check a value of %zu bytes", parser->value.length);
    }
    parser_note(parser, CHAT_PROBLEM_VALUE_INVALID, index, buffer_view(&parser->value));
    TRY(put_arguments(parser, view_of_text("\""), error));
    TRY(put_json_string_part(parser, buffer_view(&parser->value), error));
    return put_arguments(parser, view_of_text("\""), error);
}

/* ---- tags by state ---- */

/* A block opens: the blank line before it belongs to it. */
static result open_block(struct chat_parser *parser, struct error *error) {
    size_t newlines = 0;
    struct view held = buffer_view(&parser->held);
    while (newlines < 2 && newlines < held.length && held.data[held.length - 1 - newlines] == '\n'
    ) {
        newlines += 1;
    }
    TRY(parser_put_text(parser, view_slice(held, 0, held.length - newlines), error));
    buffer_clear(&parser->held);
    if (parser->state == PARSER_REASONING) {
        parser_note(parser, CHAT_PROBLEM_CALL_IN_THINKING, SIZE_MAX, view_of_text(""));
    }
    parser->state = PARSER_BLOCK;
    if (newlines < 2) {
        note_syntax(parser, view_of_text("no blank line before the calls block"));
    }
    if (!view_equals_text(buffer_view(&parser->tag), " calls")) {
        note_syntax(parser, buffer_view(&parser->tag));
    }
    return OK;
}

static result tag_in_text(struct chat_parser *parser, enum tag_kind kind, struct error *error) {
    struct view tag = buffer_view(&parser->tag);
    if (!parser->tag_is_closing && kind == TAG_CALLS) {
        return open_block(parser, error);
    }
    if (!parser->tag_is_closing && kind == TAG_INVOKE) {
        TRY(open_block(parser, error));
        return begin_call(parser, error);
    }
    // Not ours: the marker goes, the characters around it stay.
    parser_note(parser, CHAT_PROBLEM_STRAY_MARKER, SIZE_MAX, tag);
    TRY(buffer_append_text(&parser->held, parser->tag_is_closing ? "</" : "<", error));
    TRY(buffer_append(&parser->held, tag, error));
    TRY(buffer_append_text(&parser->held, ">", error));
    TRY(parser_put_text(parser, buffer_view(&parser->held), error));
    buffer_clear(&parser->held);
    return OK;
}

static result tag_in_block(struct chat_parser *parser, enum tag_kind kind, struct error *error) {
    if (!parser->tag_is_closing && kind == TAG_INVOKE) {
        return begin_call(parser, error);
    }
    if (parser->tag_is_closing && kind == TAG_CALLS) {
        parser->state = PARSER_AFTER;
        return OK;
    }
    note_syntax(parser, buffer_view(&parser->tag));
    return OK;
}

static result tag_in_call(struct chat_parser *parser, enum tag_kind kind, struct error *error) {
    if (!parser->tag_is_closing && kind == TAG_PARAMETER) {
        return begin_value(parser, error);
    }
    if (parser->tag_is_closing && kind == TAG_INVOKE) {
        return finish_call(parser, error);
    }
    note_syntax(parser, buffer_view(&parser->tag));
    bool ends_call = parser->tag_is_closing ? kind == TAG_CALLS : kind == TAG_INVOKE;
    if (!ends_call) {
        return OK;
    }
    TRY(finish_call(parser, error));
    return tag_in_block(parser, kind, error);
}

static result tag_in_value(struct chat_parser *parser, enum tag_kind kind, struct error *error) {
    struct view tag = buffer_view(&parser->tag);
    if (parser->tag_is_closing && kind == TAG_PARAMETER) {
        return end_value(parser, error);
    }
    if (!parser->tag_is_closing && (kind == TAG_CALLS || kind == TAG_OTHER)) {
        parser_note(parser, CHAT_PROBLEM_STRAY_MARKER, parser->call_count - 1, tag);
        TRY(parser_put_text(parser, view_of_text("<"), error));
        TRY(parser_put_text(parser, tag, error));
        return parser_put_text(parser, view_of_text(">"), error);
    }
    note_syntax(parser, tag); // the closing tag of the parameter was left out
    TRY(end_value(parser, error));
    return kind == TAG_OTHER ? OK : tag_in_call(parser, kind, error);
}

static result
tag_in_skipped_call(struct chat_parser *parser, enum tag_kind kind, struct error *error) {
    if (parser->tag_is_closing && kind == TAG_INVOKE) {
        parser->state = PARSER_BLOCK;
        return OK;
    }
    bool ends_call = parser->tag_is_closing ? kind == TAG_CALLS : kind == TAG_INVOKE;
    return ends_call ? tag_in_block(parser, kind, error) : OK;
}

result parser_take_tag(struct chat_parser *parser, struct error *error) {
    enum tag_kind kind = tag_kind(buffer_view(&parser->tag));
    switch (parser->state) {
    case PARSER_REASONING:
    case PARSER_CONTENT:
        return tag_in_text(parser, kind, error);
    case PARSER_BLOCK:
        return tag_in_block(parser, kind, error);
    case PARSER_CALL:
        return tag_in_call(parser, kind, error);
    case PARSER_VALUE:
        return tag_in_value(parser, kind, error);
    case PARSER_SKIPPED:
        return tag_in_skipped_call(parser, kind, error);
    case PARSER_AFTER:
    case PARSER_ENDED:
        break;
    }
    parser_note(parser, CHAT_PROBLEM_TEXT_AFTER_CALLS, SIZE_MAX, buffer_view(&parser->tag));
    return OK;
}

void parser_close(struct chat_parser *parser) {
    struct view none = view_of_text("");
    if (parser->state == PARSER_REASONING) {
        parser_note(parser, CHAT_PROBLEM_THINKING_UNCLOSED, SIZE_MAX, none);
    } else if (parser->state == PARSER_BLOCK) {
        parser_note(parser, CHAT_PROBLEM_BLOCK_UNCLOSED, SIZE_MAX, none);
    } else if (parser->state == PARSER_CALL || parser->state == PARSER_VALUE) {
        size_t index = parser_call_index(parser);
        struct view name = buffer_view(&parser->calls[index].name);
        parser_note(parser, CHAT_PROBLEM_CALL_UNCLOSED, index, name);
    } else if (parser->state == PARSER_SKIPPED) {
        parser_note(parser, CHAT_PROBLEM_CALL_UNCLOSED, SIZE_MAX, none);
    }
    parser->state = PARSER_ENDED;
}
