/* Model output as it arrives: bytes become whole characters, spelled markers are found (in text
 * mode), and text that may turn out to be the beginning of a tag is held back. chat_calls.c then
 * decides what it means. All sizes are bounded; nothing here trusts what it reads. */
#include "chat_parser.h"

/* ---- life ---- */

static result copy_tool_names(struct chat_parser *parser, struct error *error) {
    for (size_t i = 0; i < parser->options.tool_count; i++) {
        TRY(buffer_append_byte(&parser->tool_names, '"', error));
        TRY(buffer_append(&parser->tool_names, parser->options.tool_names[i], error));
        TRY(buffer_append_byte(&parser->tool_names, '"', error));
    }
    parser->options.tool_names = NULL;
    return OK;
}

result chat_parser_create(
    struct chat_parser **out,
    const struct tokenizer *tokenizer,
    const struct chat_parser_options *options,
    struct error *error
) {
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = calloc(1, sizeof *parser);
    if (parser == NULL) {
        FAIL(error, MEMORY, "no memory for a chat parser");
    }
    parser->tokenizer = tokenizer;
    parser->options = *options;
    if (parser->options.output_bytes_max == 0) {
        parser->options.output_bytes_max = CHAT_OUTPUT_BYTES_MAX;
    }
    if (parser->options.calls_max == 0) {
        parser->options.calls_max = CHAT_CALLS_MAX;
    }
    struct buffer *const buffers[] = {
        &parser->tool_names,
        &parser->decoded,
        &parser->spelled,
        &parser->held,
        &parser->tag,
        &parser->parameter_names,
        &parser->value,
        &parser->scratch,
        &parser->reasoning,
        &parser->content};
    for (size_t i = 0; i < COUNT_OF(buffers); i++) {
        // Escaping makes at most six bytes of one; the limit on output is kept by take_text.
        buffer_init(buffers[i], SIZE_MAX / 8);
    }
    parser->calls = calloc(parser->options.calls_max, sizeof *parser->calls);
    if (parser->calls == NULL) {
        FAIL(error, MEMORY, "no memory for %zu calls", parser->options.calls_max);
    }
    if (tokenizer != NULL) {
        chat_marker_ids(tokenizer, parser->ids);
    }
    parser->state = options->inside_calls ? PARSER_BLOCK
                    : options->thinking   ? PARSER_REASONING
                                          : PARSER_CONTENT;
    TRY(copy_tool_names(parser, error));
    *out = TAKE(parser);
    return OK;
}

void chat_parser_destroy(struct chat_parser *parser) {
    if (parser == NULL) {
        return;
    }
    buffer_deinit(&parser->tool_names);
    buffer_deinit(&parser->decoded);
    buffer_deinit(&parser->spelled);
    buffer_deinit(&parser->held);
    buffer_deinit(&parser->tag);
    buffer_deinit(&parser->parameter_names);
    buffer_deinit(&parser->value);
    buffer_deinit(&parser->scratch);
    buffer_deinit(&parser->reasoning);
    buffer_deinit(&parser->content);
    for (size_t i = 0; i < parser->call_count; i++) {
        buffer_deinit(&parser->calls[i].name);
        buffer_deinit(&parser->calls[i].arguments);
    }
    free(parser->calls);
    free(parser->message_calls);
    free(parser->message_notes);
    free(parser);
}

void chat_parser_cleanup(struct chat_parser **parser) {
    chat_parser_destroy(*parser);
}

/* ---- text and markers ---- */

/* Length of the end of `text` that may stand before the marker of a tag: up to two newlines, then
 * "<" or "</". */
static size_t tag_beginning(struct view text) {
    size_t length = 0;
    if (view_ends_with(text, view_of_text("</"))) {
        length = 2;
    } else if (view_ends_with(text, view_of_text("<"))) {
        length = 1;
    }
    for (size_t i = 0; i < 2 && length < text.length; i++) {
        length += text.data[text.length - 1 - length] == '\n' ? 1 : 0;
    }
    return length;
}

static result release_held(struct chat_parser *parser, size_t keep, struct error *error) {
    struct view held = buffer_view(&parser->held);
    ASSERT(keep <= held.length);
    TRY(parser_put_text(parser, view_slice(held, 0, held.length - keep), error));
    buffer_consume(&parser->held, held.length - keep);
    return OK;
}

/* Inside a tag: takes up to its end; returns the bytes used. */
static result
take_tag_text(struct chat_parser *parser, struct view text, size_t *used, struct error *error) {
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = text.data[i];
        *used = i + 1;
        if (c == '>' && !parser->tag_in_quotes) {
            parser->in_tag = false;
            return parser_take_tag(parser, error);
        }
        parser->tag_in_quotes = parser->tag_in_quotes != (c == '"');
        TRY(buffer_append_byte(&parser->tag, c, error));
        if (parser->tag.length > CHAT_TAG_BYTES_MAX) {
            while (*used < text.length && (text.data[*used] & 0xC0U) == 0x80U) {
                *used += 1; // the rest begins with a whole character
            }
            struct view tag = buffer_view(&parser->tag);
            parser->in_tag = false;
            parser_note(parser, CHAT_PROBLEM_CALL_SYNTAX, parser_call_index(parser), tag);
            return OK;
        }
    }
    return OK;
}

/* Counts output; false once the limit is reached. */
static bool is_within_limit(struct chat_parser *parser, size_t bytes) {
    parser->output_bytes += bytes;
    if (!parser->is_full && parser->output_bytes > parser->options.output_bytes_max) {
        parser->is_full = true;
        parser_note(
            parser, CHAT_PROBLEM_LIMIT, parser_call_index(parser), view_of_text("output of a turn")
        );
    }
    return !parser->is_full;
}

/* Whole characters of ordinary text without U+0000. */
static result take_clean_text(struct chat_parser *parser, struct view text, struct error *error) {
    while (text.length > 0 && parser->state != PARSER_ENDED) {
        size_t used = text.length;
        if (parser->in_tag) {
            TRY(take_tag_text(parser, text, &used, error));
        } else {
            TRY(buffer_append(&parser->held, text, error));
            TRY(release_held(parser, tag_beginning(buffer_view(&parser->held)), error));
        }
        text = view_slice(text, used, SIZE_MAX);
    }
    return OK;
}

static result take_text(struct chat_parser *parser, struct view text, struct error *error) {
    if (parser->state == PARSER_ENDED || !is_within_limit(parser, text.length)) {
        return OK;
    }
    while (text.length > 0) {
        size_t zero = view_find(text, view_of("", 1), 0);
        size_t length = zero == SIZE_MAX ? text.length : zero;
        TRY(take_clean_text(parser, view_slice(text, 0, length), error));
        if (zero != SIZE_MAX) { // our JSON knows no U+0000
            parser_note(
                parser, CHAT_PROBLEM_TEXT_INVALID, parser_call_index(parser), view_of_text("U+0000")
            );
            TRY(take_clean_text(parser, view_of_text("\xEF\xBF\xBD"), error));
            length += 1;
        }
        text = view_slice(text, length, SIZE_MAX);
    }
    return OK;
}

/* A tag that was begun will not be finished. */
static void abandon_tag(struct chat_parser *parser) {
    if (parser->in_tag) {
        parser->in_tag = false;
        struct view tag = buffer_view(&parser->tag);
        parser_note(parser, CHAT_PROBLEM_CALL_SYNTAX, parser_call_index(parser), tag);
    }
}

static result begin_tag(struct chat_parser *parser, struct error *error) {
    struct view held = buffer_view(&parser->held);
    bool is_closing = view_ends_with(held, view_of_text("</"));
    bool is_opening = view_ends_with(held, view_of_text("<"));
    if (!is_closing && !is_opening) {
        struct view marker = chat_marker_text(CHAT_MARKER_DSML);
        parser_note(parser, CHAT_PROBLEM_STRAY_MARKER, parser_call_index(parser), marker);
        return release_held(parser, 0, error);
    }
    parser->held.length -= is_closing ? 2 : 1;
    if (parser->state != PARSER_REASONING && parser->state != PARSER_CONTENT) {
        TRY(release_held(parser, 0, error));
    }
    parser->in_tag = true;
    parser->tag_is_closing = is_closing;
    parser->tag_in_quotes = false;
    buffer_clear(&parser->tag);
    return OK;
}

static result
take_marker(struct chat_parser *parser, int marker, struct view text, struct error *error) {
    if (parser->state == PARSER_ENDED || (parser->is_full && marker != CHAT_MARKER_END)) {
        return OK;
    }
    abandon_tag(parser);
    if (marker == CHAT_MARKER_DSML) {
        return begin_tag(parser, error);
    }
    TRY(release_held(parser, 0, error));
    if (marker == CHAT_MARKER_END) {
        parser_close(parser);
        parser->end_is_seen = true;
        parser_emit(parser, CHAT_EVENT_END, view_of_text(""), SIZE_MAX);
    } else if (marker == CHAT_MARKER_THINK_END && parser->state == PARSER_REASONING) {
        parser->state = PARSER_CONTENT;
    } else {
        parser_note(parser, CHAT_PROBLEM_STRAY_MARKER, parser_call_index(parser), text);
    }
    return OK;
}

/* ---- bytes to characters ---- */

/* Decodes into parser->decoded and notes what had to be replaced. */
static result decode_bytes(struct chat_parser *parser, struct view bytes, struct error *error) {
    buffer_clear(&parser->decoded);
    TRY(tokenizer_stream_push_bytes(&parser->stream, bytes, &parser->decoded, error));
    if (parser->stream.has_replaced) {
        parser->stream.has_replaced = false;
        parser_note(parser, CHAT_PROBLEM_TEXT_INVALID, parser_call_index(parser), view_of_text(""));
    }
    return OK;
}

static result decode_rest(struct chat_parser *parser, struct error *error) {
    buffer_clear(&parser->decoded);
    if (parser->stream.held_count > 0) {
        TRY(tokenizer_stream_finish(&parser->stream, &parser->decoded, error));
        parser->stream.has_replaced = false;
        parser_note(parser, CHAT_PROBLEM_TEXT_INVALID, parser_call_index(parser), view_of_text(""));
    }
    return OK;
}

/* ---- ids ---- */

result chat_parser_push(struct chat_parser *parser, int32_t id, struct error *error) {
    ASSERT(parser->tokenizer != NULL && !parser->is_finished);
    if (id < 0 || (size_t)id >= tokenizer_vocabulary_size(parser->tokenizer)) {
        FAIL(
            error,
            INVALID_INPUT,
            "the model gave token %d; the vocabulary has %zu",
            id,
            tokenizer_vocabulary_size(parser->tokenizer)
        );
    }
    if (!tokenizer_is_added(parser->tokenizer, id)) {
        TRY(decode_bytes(parser, tokenizer_bytes(parser->tokenizer, id), error));
        return take_text(parser, buffer_view(&parser->decoded), error);
    }
    TRY(decode_rest(parser, error));
    TRY(take_text(parser, buffer_view(&parser->decoded), error));
    int marker = 0;
    while (marker < CHAT_MARKER_COUNT && parser->ids[marker] != id) {
        marker += 1;
    }
    return take_marker(parser, marker, tokenizer_bytes(parser->tokenizer, id), error);
}

/* ---- spelled markers ---- */

enum spelling { SPELLING_NONE, SPELLING_BEGUN, SPELLING_WHOLE };

/* Whether a marker is spelled at text[at..], or may be once more text arrives. */
static enum spelling spelling_at(struct view text, size_t at, int *marker) {
    struct view rest = view_slice(text, at, SIZE_MAX);
    for (int i = 0; i < CHAT_MARKER_COUNT; i++) {
        struct view whole = chat_marker_text((enum chat_marker)i);
        if (view_starts_with(rest, whole)) {
            *marker = i;
            return SPELLING_WHOLE;
        }
        if (view_starts_with(whole, rest)) {
            return SPELLING_BEGUN;
        }
    }
    return SPELLING_NONE;
}

/* Passes on what is certain of parser->spelled; all of it when no more will come. */
static result take_spelled(struct chat_parser *parser, bool is_last, struct error *error) {
    size_t from = 0;
    size_t at = 0;
    struct view text = buffer_view(&parser->spelled);
    while (at < text.length) {
        int marker = 0;
        bool may_begin = text.data[at] == '<' || text.data[at] == 0xEF;
        enum spelling spelling = may_begin ? spelling_at(text, at, &marker) : SPELLING_NONE;
        if (spelling == SPELLING_BEGUN && !is_last) {
            break;
        }
        if (spelling != SPELLING_WHOLE) {
            at += 1;
            continue;
        }
        struct view whole = chat_marker_text((enum chat_marker)marker);
        TRY(take_text(parser, view_slice(text, from, at - from), error));
        TRY(take_marker(parser, marker, whole, error));
        at += whole.length;
        from = at;
    }
    TRY(take_text(parser, view_slice(text, from, at - from), error));
    buffer_consume(&parser->spelled, at);
    return OK;
}

result chat_parser_push_text(struct chat_parser *parser, struct view text, struct error *error) {
    ASSERT(!parser->is_finished);
    TRY(decode_bytes(parser, text, error));
    TRY(buffer_append(&parser->spelled, buffer_view(&parser->decoded), error));
    return take_spelled(parser, false, error);
}

/* ---- end ---- */

static result build_message(struct chat_parser *parser, struct error *error) {
    size_t kept = parser->note_count < CHAT_PROBLEMS_MAX ? parser->note_count : CHAT_PROBLEMS_MAX;
    parser->message_calls = calloc(parser->call_count + 1, sizeof *parser->message_calls);
    parser->message_notes = calloc(kept + 1, sizeof *parser->message_notes);
    if (parser->message_calls == NULL || parser->message_notes == NULL) {
        FAIL(error, MEMORY, "no memory for %zu calls", parser->call_count);
    }
    size_t count = 0;
    for (size_t i = 0; i < parser->call_count; i++) {
        const struct parser_call *call = &parser->calls[i];
        if (call->is_complete) {
            parser->message_calls[count++] = (struct chat_call
            ){view_of_text(call->id), buffer_view(&call->name), buffer_view(&call->arguments)};
        }
    }
    for (size_t i = 0; i < kept; i++) {
        const struct parser_note *note = &parser->notes[i];
        parser->message_notes[i] = (struct chat_problem_note
        ){note->problem, note->call_index, view_of(note->detail, note->detail_length)};
    }
    parser->message = (struct chat_message
    ){.role = CHAT_ASSISTANT,
      .content = buffer_view(&parser->content),
      .reasoning = buffer_view(&parser->reasoning),
      .calls = parser->message_calls,
      .call_count = count};
    return OK;
}

result chat_parser_finish(struct chat_parser *parser, struct error *error) {
    ASSERT(!parser->is_finished);
    TRY(decode_rest(parser, error));
    TRY(buffer_append(&parser->spelled, buffer_view(&parser->decoded), error));
    TRY(take_spelled(parser, true, error));
    if (!parser->end_is_seen) {
        abandon_tag(parser);
        TRY(release_held(parser, 0, error));
        parser_close(parser);
        parser_note(parser, CHAT_PROBLEM_END_MISSING, SIZE_MAX, view_of_text(""));
    }
    parser->is_finished = true;
    return build_message(parser, error);
}

bool chat_parser_is_ended(const struct chat_parser *parser) {
    return parser->end_is_seen;
}

const struct chat_message *chat_parser_message(const struct chat_parser *parser) {
    ASSERT(parser->is_finished);
    return &parser->message;
}

const struct chat_problem_note *
chat_parser_problems(const struct chat_parser *parser, size_t *count) {
    ASSERT(parser->is_finished);
    *count = parser->note_count < CHAT_PROBLEMS_MAX ? parser->note_count : CHAT_PROBLEMS_MAX;
    return parser->message_notes;
}

size_t chat_parser_problem_count(const struct chat_parser *parser) {
    return parser->note_count;
}
