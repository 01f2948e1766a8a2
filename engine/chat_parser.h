/* Inside of the incremental parser; shared by chat_decoding.c (what comes in) and chat_calls.c
 * (what a turn is made of). */
#ifndef HEARTH_ENGINE_CHAT_PARSER_H
#define HEARTH_ENGINE_CHAT_PARSER_H

#include "chat.h"
#include "chat_markers.h"
#include "tokenizer.h"

#define CHAT_TAG_BYTES_MAX (2 * CHAT_NAME_BYTES_MAX + 64) /* between marker and ">" */

enum parser_state {
    PARSER_REASONING,
    PARSER_CONTENT,
    PARSER_BLOCK,   /* inside a calls block, between calls */
    PARSER_CALL,    /* inside a call, between parameters */
    PARSER_VALUE,   /* inside a parameter */
    PARSER_SKIPPED, /* inside a call that cannot be made */
    PARSER_AFTER,   /* behind the calls block */
    PARSER_ENDED
};

struct parser_call {
    struct buffer name;
    struct buffer arguments; /* JSON text so far */
    char id[32];
    bool is_complete;
};

struct parser_note {
    enum chat_problem problem;
    size_t call_index;
    char detail[CHAT_DETAIL_MAX];
    size_t detail_length;
};

struct chat_parser {
    const struct tokenizer *tokenizer;
    int32_t ids[CHAT_MARKER_COUNT];
    struct chat_parser_options options;
    struct buffer tool_names; /* each between quotation marks */
    enum parser_state state;
    bool end_is_seen;
    bool is_finished;
    bool is_full; /* a size limit was reached */
    size_t output_bytes;

    /* Input on its way: unfinished characters, possible spellings of markers, text that may be the
     * beginning of a tag. */
    struct tokenizer_stream stream;
    struct buffer decoded;
    struct buffer spelled;
    struct buffer held;
    bool in_tag;
    bool tag_is_closing;
    bool tag_in_quotes;
    struct buffer tag;

    /* The parameter being read. */
    struct buffer parameter_names; /* of this call, each between quotation marks */
    size_t parameter_count;
    size_t written_count; /* parameters in the arguments so far */
    bool value_is_string;
    bool value_is_dropped;
    struct buffer value; /* of one that is not a string */
    struct buffer scratch;

    struct buffer reasoning;
    struct buffer content;
    struct parser_call *calls; /* [options.calls_max] */
    size_t call_count;
    struct parser_note notes[CHAT_PROBLEMS_MAX];
    size_t note_count; /* all, also those not kept */

    /* Result, after finish. */
    struct chat_message message;
    struct chat_call *message_calls;
    struct chat_problem_note *message_notes;
};

/* Notes a problem and tells the listener. call_index SIZE_MAX: not about a call. */
void parser_note(
    struct chat_parser *parser, enum chat_problem problem, size_t call_index, struct view detail
);
void parser_emit(
    struct chat_parser *parser, enum chat_event_type type, struct view text, size_t call_index
);
/* Index of the call being read, SIZE_MAX outside of calls. */
size_t parser_call_index(const struct chat_parser *parser);

/* Text that is known to belong to the current state. Expected errors: MEMORY. */
MUST_CHECK result
parser_put_text(struct chat_parser *parser, struct view text, struct error *error);
/* A complete tag is in parser->tag; parser->held keeps the text before it when it may be content.
 * Expected errors: MEMORY. */
MUST_CHECK result parser_take_tag(struct chat_parser *parser, struct error *error);
/* The turn ends here: notes what is open. */
void parser_close(struct chat_parser *parser);

#endif
