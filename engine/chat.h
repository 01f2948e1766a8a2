/* Conversations: the types tools/, sessions/ and runtime/ share, and their way into tokens and back.
 *
 * Encoding renders messages to the model's prompt format (specification section 6); text of users,
 * tools and the model itself never turns into control tokens, which are inserted by id. Rendering
 * is stable byte for byte, so that the next prompt begins with the previous one. Decoding reads
 * model output incrementally and believes none of its syntax. The wording of effort line and tool
 * section belongs to the model and is read from its directory. Thread: wording and encoder are
 * immutable after creation; conversations and parsers belong to one thread at a time.
 */
#ifndef HEARTH_ENGINE_CHAT_H
#define HEARTH_ENGINE_CHAT_H

#include "base/bytes.h"
#include "base/json.h"

struct tokenizer;
struct token_list;

/* ---- Messages ------------------------------------------------------------------------------- */

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_LATEST_REMINDER };

/* Quick tasks: a user message that asks for one classification instead of an answer. */
enum chat_task {
    CHAT_TASK_NONE,
    CHAT_TASK_ACTION,
    CHAT_TASK_QUERY,
    CHAT_TASK_AUTHORITY,
    CHAT_TASK_DOMAIN,
    CHAT_TASK_TITLE,
    CHAT_TASK_READ_URL
};

/* One part of a content list. Anything but text is rendered as "[Unsupported TYPE]". */
struct chat_part {
    struct view text;             /* when unsupported_type is empty */
    struct view unsupported_type; /* for example "image_url" */
};

struct chat_call {
    struct view id;        /* unique in the conversation; results refer to it */
    struct view name;      /* tool */
    struct view arguments; /* raw JSON object text; anything else is sent as one string */
};

/* One of two forms: name, description, parameters (rendered in this order, description left out
 * when its data pointer is null), or `function`: the raw function object, rendered as it stands. */
struct chat_tool {
    struct view name;
    struct view description;
    struct view parameters; /* raw JSON Schema text */
    struct view function;   /* raw JSON object text; wins when not empty */
};

/* A message borrows everything it points at; see struct chat_conversation for an owner. Fields that
 * a role does not use stay zero. */
struct chat_message {
    enum chat_role role;
    struct view content;           /* UTF-8; used when part_count is 0 */
    const struct chat_part *parts; /* content as a list */
    size_t part_count;
    struct view reasoning;         /* assistant */
    const struct chat_call *calls; /* assistant */
    size_t call_count;
    struct view call_id;           /* tool: the call that this answers */
    enum chat_task task;           /* user */
    bool without_eos;              /* assistant: a prefix that the model is to continue */
    const struct chat_tool *tools; /* system: rendered after the content */
    size_t tool_count;
    struct view response_format; /* system: raw JSON Schema text; empty: none */
};

const char *chat_role_name(enum chat_role role); /* "system", "user", "assistant", "tool", ... */
bool chat_role_from_name(struct view name, enum chat_role *role);

/* Owns messages and everything in them; append-only. */
struct chat_conversation;

MUST_CHECK result chat_conversation_create(struct chat_conversation **out, struct error *error);
void chat_conversation_destroy(struct chat_conversation *conversation);
void chat_conversation_cleanup(struct chat_conversation **conversation); /* for CLEANUP */
/* Copies the message deeply. Expected errors: MEMORY. */
MUST_CHECK result chat_conversation_append(
    struct chat_conversation *conversation, const struct chat_message *message, struct error *error
);
/* Appends messages given as a JSON array in OpenAI's shape: role, content (text or parts),
 * reasoning_content, tool_calls, tool_call_id, tools, response_format, task, wo_eos.
 * Expected errors: INVALID_INPUT (names the message's index), MEMORY. */
MUST_CHECK result chat_conversation_append_json(
    struct chat_conversation *conversation, struct json_value messages, struct error *error
);
size_t chat_conversation_count(const struct chat_conversation *conversation);
/* Borrowed array; valid until the next append. */
const struct chat_message *chat_conversation_messages(const struct chat_conversation *conversation);
/* Writes one message in the same JSON shape. */
void chat_message_write_json(struct json_writer *writer, const struct chat_message *message);

/* ---- Options -------------------------------------------------------------------------------- */

#define CHAT_EFFORT_OFF     0 /* chat mode: no thinking */
#define CHAT_EFFORT_LOW     50
#define CHAT_EFFORT_HIGH    75
#define CHAT_EFFORT_MAX     100
#define CHAT_EFFORT_DEFAULT CHAT_EFFORT_HIGH

struct chat_options {
    int32_t effort;     /* CHAT_EFFORT_OFF, or 1..100 */
    bool keep_thinking; /* keeps reasoning of earlier turns; always kept where tools are declared */
};

struct chat_options chat_options_default(void);
/* "off", "low", "high", "max" or an integer 1..100. Expected errors: INVALID_INPUT. */
MUST_CHECK result chat_effort_parse(int32_t *out, struct view text, struct error *error);

/* ---- Wording -------------------------------------------------------------------------------- */

struct chat_wording;

/* Size and SHA-256 that a text taken from a foreign file must have. */
struct chat_wording_digest {
    size_t bytes;
    const char *sha256; /* 64 lower-case hexadecimal digits */
};

/* How the texts are found in a Python file of constants, and what they must be. Templates hold
 * their variable places as {name}; any other {name} in them is a control token or tag name. */
struct chat_wording_source {
    const char *effort_constant;
    const char *effort_place; /* name of the place that takes the number */
    const char *tools_constant;
    const char
        *tools_place; /* takes the schemas: the text before it is the head, after it the tail */
    const char *response_format_constant;
    const char *response_format_place;      /* takes the schema */
    struct chat_wording_digest effort_line; /* with its place as {n} */
    struct chat_wording_digest tools_head;
    struct chat_wording_digest tools_tail;
    struct chat_wording_digest response_format; /* with the blank line before it */
};

/* Names and digests of the released model's encoding/encoding.py. */
const struct chat_wording_source *chat_wording_source_released(void);

/* Reads DIRECTORY/chat.json, or without it DIRECTORY/encoding/encoding.py by `source` (null: the
 * released one). Expected errors: NOT_FOUND (neither file), INVALID_INPUT (damaged), CORRUPT (a
 * digest differs). */
MUST_CHECK result chat_wording_load(
    struct chat_wording **out,
    const char *model_directory,
    const struct chat_wording_source *source,
    struct error *error
);
MUST_CHECK result
chat_wording_parse_json(struct chat_wording **out, struct view text, struct error *error);
MUST_CHECK result chat_wording_parse_python(
    struct chat_wording **out,
    struct view text,
    const struct chat_wording_source *source,
    struct error *error
);
void chat_wording_destroy(struct chat_wording *wording);
void chat_wording_cleanup(struct chat_wording **wording); /* for CLEANUP */

/* ---- Encoding ------------------------------------------------------------------------------- */

struct chat_encoder;

/* Looks up the control tokens; keeps borrowing tokenizer and wording. Expected errors:
 * INVALID_INPUT (the vocabulary lacks a control token; the message names it), MEMORY. */
MUST_CHECK result chat_encoder_create(
    struct chat_encoder **out,
    const struct tokenizer *tokenizer,
    const struct chat_wording *wording,
    struct error *error
);
void chat_encoder_destroy(struct chat_encoder *encoder);
void chat_encoder_cleanup(struct chat_encoder **encoder);        /* for CLEANUP */
int32_t chat_encoder_end_id(const struct chat_encoder *encoder); /* end of sequence: stop here */

/* What to render: all messages of a conversation, or what follows the model's last turn. */
struct chat_request {
    const struct chat_message *messages;
    size_t message_count;
    /* 0: everything from the beginning. n: only messages[n..], to be appended to a sequence that
     * already holds the rendering of messages[0..n) in which messages[n-1] is the model's own turn
     * as it generated it, or the system's message that everything begins with. */
    size_t from;
    /* With from > 0: the generated ids ended without the end-of-sequence token (stopped or cut
     * off), so it is written first. */
    bool end_is_missing;
    struct chat_options options;
};

/* Whether messages[from..] can be appended to what the sequence holds, or earlier turns render
 * differently now (reasoning is dropped), so that the whole prompt must be rendered again. */
bool chat_can_append(const struct chat_request *request);

/* Appends the prompt as text, markers spelled out. Ends with the header of the model's turn where
 * the model is to speak next. Expected errors: INVALID_INPUT (names message and reason), LIMIT,
 * MEMORY. */
MUST_CHECK result chat_render(
    struct buffer *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
);
/* Appends the prompt as token ids; text never becomes control tokens. */
MUST_CHECK result chat_encode(
    struct token_list *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
);
/* As the official encoder does: markers typed by anybody become control tokens. For comparison
 * only; not for prompts that hold foreign text. */
MUST_CHECK result chat_encode_trusting(
    struct token_list *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
);

/* ---- Decoding ------------------------------------------------------------------------------- */

/* What was wrong with model output; the message is usable all the same. */
enum chat_problem {
    CHAT_PROBLEM_THINKING_UNCLOSED,  /* the turn ended inside reasoning */
    CHAT_PROBLEM_CALL_IN_THINKING,   /* a calls block opened before reasoning was closed */
    CHAT_PROBLEM_STRAY_MARKER,       /* a control token where none may be; dropped */
    CHAT_PROBLEM_BLOCK_UNCLOSED,     /* the turn ended inside a calls block */
    CHAT_PROBLEM_CALL_UNCLOSED,      /* the turn ended inside a call; that call is incomplete */
    CHAT_PROBLEM_CALL_SYNTAX,        /* something unreadable inside a calls block; skipped */
    CHAT_PROBLEM_TOOL_UNKNOWN,       /* name not among the declared tools */
    CHAT_PROBLEM_PARAMETER_REPEATED, /* the same name again; the first value is kept */
    CHAT_PROBLEM_VALUE_INVALID,      /* string="false", but the value is not JSON; kept as string */
    CHAT_PROBLEM_TEXT_AFTER_CALLS,   /* text after the calls block; dropped */
    CHAT_PROBLEM_TEXT_INVALID,       /* bytes that are not UTF-8; replaced by U+FFFD */
    CHAT_PROBLEM_LIMIT,      /* a size limit of the parser was reached; the rest is dropped */
    CHAT_PROBLEM_END_MISSING /* finished without the end-of-sequence token */
};

const char *chat_problem_name(enum chat_problem problem); /* "thinking_unclosed", ... */
/* One sentence for people and for the model. */
const char *chat_problem_text(enum chat_problem problem);

struct chat_problem_note {
    enum chat_problem problem;
    size_t call_index;  /* SIZE_MAX: not about a call */
    struct view detail; /* a name or a piece of text, at most CHAT_DETAIL_MAX bytes; may be empty */
};

enum chat_event_type {
    CHAT_EVENT_REASONING,      /* text: more reasoning */
    CHAT_EVENT_CONTENT,        /* text: more of the answer */
    CHAT_EVENT_CALL_STARTED,   /* text: tool name */
    CHAT_EVENT_CALL_ARGUMENTS, /* text: more bytes of the arguments' JSON text */
    CHAT_EVENT_CALL_FINISHED,  /* text: the whole arguments */
    CHAT_EVENT_PROBLEM,        /* problem, text: detail */
    CHAT_EVENT_END             /* the end-of-sequence token was seen */
};

/* Texts are valid UTF-8, never torn inside a character, and borrowed for the call. */
struct chat_event {
    enum chat_event_type type;
    struct view text;
    size_t call_index; /* CALL_*, PROBLEM */
    enum chat_problem problem;
};

typedef void chat_parser_event(void *context, const struct chat_event *event);

struct chat_parser_options {
    bool thinking;     /* the prompt ended with <think>: output begins inside reasoning */
    bool inside_calls; /* the prompt ended with an opened calls block */
    const struct view *tool_names; /* [tool_count] known tools, copied; count 0: not checked */
    size_t tool_count;
    size_t first_call_number; /* calls get the ids "call_<first_call_number + index>" */
    size_t output_bytes_max;  /* of one turn; 0: CHAT_OUTPUT_BYTES_MAX */
    size_t calls_max;         /* 0: CHAT_CALLS_MAX */
    chat_parser_event *event; /* may be null */
    void *context;
};

#define CHAT_OUTPUT_BYTES_MAX ((size_t)16 << 20)
#define CHAT_CALLS_MAX        64  /* calls of one turn */
#define CHAT_PARAMETERS_MAX   128 /* parameters of one call */
#define CHAT_NAME_BYTES_MAX   256 /* name of a tool or parameter */
#define CHAT_PROBLEMS_MAX     64  /* notes kept per turn; further ones are counted */
#define CHAT_DETAIL_MAX       120

struct chat_parser;

/* The tokenizer is borrowed and may be null when only text is pushed. */
MUST_CHECK result chat_parser_create(
    struct chat_parser **out,
    const struct tokenizer *tokenizer,
    const struct chat_parser_options *options,
    struct error *error
);
void chat_parser_destroy(struct chat_parser *parser);
void chat_parser_cleanup(struct chat_parser **parser); /* for CLEANUP */

/* One generated id. Control tokens are recognised by id alone: the same characters spelled with
 * ordinary tokens are text. Expected errors: INVALID_INPUT (id outside the vocabulary), MEMORY. */
MUST_CHECK result chat_parser_push(struct chat_parser *parser, int32_t id, struct error *error);
/* Output as text, in pieces of any size; markers are recognised by their spelling. Do not mix with
 * chat_parser_push in one turn. Expected errors: MEMORY. */
MUST_CHECK result
chat_parser_push_text(struct chat_parser *parser, struct view text, struct error *error);
/* The turn is over. Emits what was held back; the message is then complete. */
MUST_CHECK result chat_parser_finish(struct chat_parser *parser, struct error *error);
bool chat_parser_is_ended(const struct chat_parser *parser); /* end-of-sequence token seen */

/* After finish: role assistant with reasoning, content and the calls that were completed; arguments
 * are always a valid JSON object. Borrowed from the parser. */
const struct chat_message *chat_parser_message(const struct chat_parser *parser);
/* Borrowed; at most CHAT_PROBLEMS_MAX. */
const struct chat_problem_note *
chat_parser_problems(const struct chat_parser *parser, size_t *count);
/* All that were noticed, also beyond those kept. */
size_t chat_parser_problem_count(const struct chat_parser *parser);

/* The official parser's result, or its refusal: one whole completion with its markers as text.
 * Appends the message to `out`; arguments are built as the official parser builds them and need not
 * be valid JSON. Expected errors: INVALID_INPUT (why it is refused), MEMORY. */
MUST_CHECK result chat_parse_strict(
    struct chat_conversation *out, struct view completion, bool thinking, struct error *error
);

#endif
