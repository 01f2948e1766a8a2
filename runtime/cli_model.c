/* hearth model tokens, render, parse: text stages of the engine, without its weights. */
#include "cli.h"
#include "host.h"
#include "model_input.h"

static const struct cli_option tokens_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    {"decode", 'd', NULL, "the other way: ids to text"},
    {"no-markers", 0, NULL, "markers in the text stay text, as in user messages"},
    {"pieces", 0, NULL, "one line a token: position, id, text"},
    {"json", 0, NULL, "one JSON object"},
};

static int open_text(const struct cli_arguments *arguments, struct text_model *model) {
    CLEANUP(buffer_deinit) struct buffer directory = {0};
    struct error error = {0};
    result opened = model_directory(cli_value(arguments, "model"), &directory, &error);
    if (is_ok(opened)) {
        opened = text_model_open(buffer_text(&directory), model, &error);
    }
    return is_failed(opened) ? cli_fail_error(opened, &error) : STATUS_DONE;
}

static int print_made(result made, const struct error *error, const struct buffer *text) {
    if (is_failed(made)) {
        return cli_fail_error(made, error);
    }
    return cli_print(buffer_view(text)) ? STATUS_DONE : STATUS_DATA;
}

/* ---- tokens --------------------------------------------------------------------------------- */

static void write_ids(struct json_writer *writer, const struct token_list *ids) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < ids->count; i++) {
        json_write_i64(writer, ids->ids[i]);
    }
    json_write_array_end(writer);
}

static result put_pieces(
    struct buffer *out,
    const struct tokenizer *tokenizer,
    const struct token_list *ids,
    struct error *error
) {
    for (size_t i = 0; i < ids->count; i++) {
        TRY(buffer_append_format(out, error, "%zu\t%d\t", i, ids->ids[i]));
        struct json_writer writer;
        json_writer_init(&writer, out, error);
        json_write_string(&writer, tokenizer_bytes(tokenizer, ids->ids[i]));
        TRY(json_writer_finish(&writer));
        TRY(buffer_append_text(out, "\n", error));
    }
    return OK;
}

static result put_ids(struct buffer *out, const struct token_list *ids, struct error *error) {
    for (size_t i = 0; i < ids->count; i++) {
        TRY(buffer_append_format(out, error, i == 0 ? "%d" : " %d", ids->ids[i]));
    }
    return buffer_append_text(out, "\n", error);
}

static result put_text_and_ids(
    struct buffer *out, struct view text, const struct token_list *ids, struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "text");
    json_write_string(&writer, text);
    json_write_key(&writer, "ids");
    write_ids(&writer, ids);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static result tokens_make(
    const struct cli_arguments *arguments,
    const struct tokenizer *tokenizer,
    struct view input,
    struct buffer *out,
    struct error *error
) {
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    CLEANUP(buffer_deinit) struct buffer decoded;
    buffer_init(&decoded, BUFFER_CEILING_DEFAULT);
    bool decodes = cli_has(arguments, "decode");
    if (decodes) {
        TRY(ids_parse(input, &ids, error));
        TRY(tokenizer_decode(tokenizer, ids.ids, ids.count, &decoded, error));
    } else {
        bool off = cli_has(arguments, "no-markers");
        TRY(tokenizer_encode(
            tokenizer, input, off ? TOKENIZER_MARKERS_OFF : TOKENIZER_MARKERS_ON, &ids, error
        ));
    }
    if (cli_has(arguments, "json")) {
        return put_text_and_ids(out, decodes ? buffer_view(&decoded) : input, &ids, error);
    }
    if (cli_has(arguments, "pieces")) {
        return put_pieces(out, tokenizer, &ids, error);
    }
    return decodes ? buffer_append(out, buffer_view(&decoded), error) : put_ids(out, &ids, error);
}

static int model_tokens(const struct cli_arguments *arguments) {
    CLEANUP(text_model_close) struct text_model model = {0};
    CLEANUP(buffer_deinit) struct buffer input = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    int status = open_text(arguments, &model);
    if (status != STATUS_DONE) {
        return status;
    }
    const char *word = arguments->word_count > 0 ? arguments->words[0] : NULL;
    result made = cli_input(word, false, &input, &error);
    if (is_ok(made)) {
        made = tokens_make(arguments, model.tokenizer, buffer_view(&input), &text, &error);
    }
    return print_made(made, &error, &text);
}

const struct cli_command command_model_tokens = {
    .path = "model tokens",
    .operands = "[TEXT]",
    .summary = "text to token ids and back",
    .text = "TEXT is the argument or standard input, byte for byte. With --decode it holds ids,\n"
            "separated by blanks, commas or brackets, and the decoded bytes are written raw.\n",
    .options = tokens_options,
    .option_count = COUNT_OF(tokens_options),
    .words_max = 1,
    .run = model_tokens,
};

/* ---- render --------------------------------------------------------------------------------- */

static const struct cli_option render_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    {"effort", 0, "N", "1 to 100, or low, high, max, off (default: high)"},
    {"drop-thinking", 0, NULL, "leave out the reasoning of earlier turns where the format allows"},
    {"trusting",
     0,
     NULL,
     "markers in messages become control tokens, as the official encoder does"},
    {"ids", 0, NULL, "token ids instead of text"},
    {"json", 0, NULL, "one JSON object with text and ids"},
};

/* The first message with "tools" of the request put into it; a request that begins with another
 * role gets an empty system message. */
static void
write_with_tools(struct json_writer *writer, struct json_value messages, struct json_value tools) {
    struct json_value first = json_first(messages);
    struct view role = {0};
    bool has_system =
        json_as_string(json_get(first, "role"), &role) && view_equals_text(role, "system");
    json_write_array_begin(writer);
    json_write_object_begin(writer);
    if (!has_system) {
        json_write_key(writer, "role");
        json_write_text(writer, "system");
        json_write_key(writer, "content");
        json_write_text(writer, "");
    }
    struct json_value member = json_first(first);
    for (; has_system && json_type(member) != JSON_ABSENT; member = json_next(member)) {
        json_write_key_view(writer, json_name(member));
        json_write_raw(writer, json_raw(member));
    }
    json_write_key(writer, "tools");
    json_write_raw(writer, json_raw(tools));
    json_write_object_end(writer);
    struct json_value message = has_system ? json_next(first) : first;
    for (; json_type(message) != JSON_ABSENT; message = json_next(message)) {
        json_write_raw(writer, json_raw(message));
    }
    json_write_array_end(writer);
}

static result append_with_tools(
    struct chat_conversation *out,
    struct json_value messages,
    struct json_value tools,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct json_writer writer;
    json_writer_init(&writer, &text, error);
    write_with_tools(&writer, messages, tools);
    TRY(json_writer_finish(&writer));
    TRY_NOTE(error, json_parse(buffer_view(&text), NULL, &document, error), "conversation");
    return chat_conversation_append_json(out, json_root(document), error);
}

/* An array of messages, or an object with "messages" and perhaps "tools", as requests have them. */
static result
conversation_parse(struct view text, struct chat_conversation *out, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(text, NULL, &document, error), "conversation");
    struct json_value root = json_root(document);
    struct json_value messages = root;
    if (json_type(root) == JSON_OBJECT) {
        TRY_NOTE(error, json_get_array(root, "messages", &messages, error), "conversation");
    }
    if (json_type(messages) != JSON_ARRAY) {
        FAIL(error, INVALID_INPUT, "conversation: neither an array of messages nor an object");
    }
    struct json_value tools = json_get(root, "tools");
    return json_type(tools) == JSON_ARRAY ? append_with_tools(out, messages, tools, error)
                                          : chat_conversation_append_json(out, messages, error);
}

static result render_make(
    const struct cli_arguments *arguments,
    const struct text_model *model,
    struct chat_request *request,
    struct buffer *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    TRY(chat_render(&text, model->encoder, request, error));
    if (cli_has(arguments, "trusting")) {
        TRY(chat_encode_trusting(&ids, model->encoder, request, error));
    } else {
        TRY(chat_encode(&ids, model->encoder, request, error));
    }
    if (cli_has(arguments, "json")) {
        return put_text_and_ids(out, buffer_view(&text), &ids, error);
    }
    return cli_has(arguments, "ids") ? put_ids(out, &ids, error)
                                     : buffer_append(out, buffer_view(&text), error);
}

static int model_render(const struct cli_arguments *arguments) {
    CLEANUP(text_model_close) struct text_model model = {0};
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *conversation = NULL;
    CLEANUP(buffer_deinit) struct buffer input = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    struct chat_request request = {.options = chat_options_default()};
    const char *effort = cli_value(arguments, "effort");
    if (effort != NULL &&
        is_failed(chat_effort_parse(&request.options.effort, view_of_text(effort), &error))) {
        return cli_usage(arguments, "--effort: %s", error.message);
    }
    request.options.keep_thinking = !cli_has(arguments, "drop-thinking");
    int status = open_text(arguments, &model);
    if (status != STATUS_DONE) {
        return status;
    }
    const char *word = arguments->word_count > 0 ? arguments->words[0] : NULL;
    result made = cli_input(word, true, &input, &error);
    if (is_ok(made)) {
        made = chat_conversation_create(&conversation, &error);
    }
    if (is_ok(made)) {
        made = conversation_parse(buffer_view(&input), conversation, &error);
    }
    if (is_ok(made)) {
        request.messages = chat_conversation_messages(conversation);
        request.message_count = chat_conversation_count(conversation);
        made = render_make(arguments, &model, &request, &text, &error);
    }
    return print_made(made, &error, &text);
}

const struct cli_command command_model_render = {
    .path = "model render",
    .operands = "[FILE]",
    .summary = "a conversation to the prompt's text and ids",
    .text =
        "FILE (default: standard input) holds messages as JSON in OpenAI's shape, or an object\n"
        "with \"messages\".\n",
    .options = render_options,
    .option_count = COUNT_OF(render_options),
    .words_max = 1,
    .run = model_render,
};

/* ---- parse ---------------------------------------------------------------------------------- */

static const struct cli_option parse_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    {"effort", 0, "N", "off: the output begins after </think> (default: inside thinking)"},
    {"ids", 0, NULL, "the input holds token ids instead of text"},
    {"tools", 0, "NAMES", "known tools, comma-separated (default: any name)"},
    {"strict", 0, NULL, "as the official parser: refuses what is malformed"},
};

#define PARSE_TOOLS_MAX 64

struct tool_names {
    struct view names[PARSE_TOOLS_MAX];
    size_t count;
};

static void names_split(const char *text, struct tool_names *out) {
    while (text != NULL && *text != '\0' && out->count < PARSE_TOOLS_MAX) {
        size_t length = strcspn(text, ",");
        if (length > 0) {
            out->names[out->count++] = view_of(text, length);
        }
        text += length + (text[length] == ',' ? 1 : 0);
    }
}

static result put_parsed(struct chat_parser *parser, struct buffer *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "message");
    chat_message_write_json(&writer, chat_parser_message(parser));
    json_write_key(&writer, "ended");
    json_write_bool(&writer, chat_parser_is_ended(parser));
    json_write_key(&writer, "problems");
    json_write_array_begin(&writer);
    size_t count = 0;
    const struct chat_problem_note *notes = chat_parser_problems(parser, &count);
    for (size_t i = 0; i < count; i++) {
        json_write_object_begin(&writer);
        json_write_key(&writer, "problem");
        json_write_text(&writer, chat_problem_name(notes[i].problem));
        json_write_key(&writer, "detail");
        json_write_string(&writer, notes[i].detail);
        json_write_object_end(&writer);
    }
    json_write_array_end(&writer);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static result parse_push(
    const struct cli_arguments *arguments,
    struct chat_parser *parser,
    struct view input,
    struct error *error
) {
    if (!cli_has(arguments, "ids")) {
        TRY(chat_parser_push_text(parser, input, error));
        return chat_parser_finish(parser, error);
    }
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    TRY(ids_parse(input, &ids, error));
    for (size_t i = 0; i < ids.count; i++) {
        TRY(chat_parser_push(parser, ids.ids[i], error));
    }
    return chat_parser_finish(parser, error);
}

static result parse_make(
    const struct cli_arguments *arguments,
    const struct text_model *model,
    bool thinking,
    struct view input,
    struct buffer *out,
    struct error *error
) {
    if (cli_has(arguments, "strict")) {
        CLEANUP(chat_conversation_cleanup) struct chat_conversation *conversation = NULL;
        TRY(chat_conversation_create(&conversation, error));
        TRY(chat_parse_strict(conversation, input, thinking, error));
        struct json_writer writer;
        json_writer_init(&writer, out, error);
        chat_message_write_json(&writer, chat_conversation_messages(conversation));
        TRY(json_writer_finish(&writer));
        return buffer_append_text(out, "\n", error);
    }
    struct tool_names names = {0};
    names_split(cli_value(arguments, "tools"), &names);
    const struct chat_parser_options options = {
        .thinking = thinking,
        .tool_names = names.names,
        .tool_count = names.count,
    };
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    TRY(chat_parser_create(&parser, model->tokenizer, &options, error));
    TRY(parse_push(arguments, parser, input, error));
    return put_parsed(parser, out, error);
}

static int model_parse(const struct cli_arguments *arguments) {
    CLEANUP(text_model_close) struct text_model model = {0};
    CLEANUP(buffer_deinit) struct buffer input = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    int32_t effort = CHAT_EFFORT_DEFAULT;
    const char *given = cli_value(arguments, "effort");
    if (given != NULL && is_failed(chat_effort_parse(&effort, view_of_text(given), &error))) {
        return cli_usage(arguments, "--effort: %s", error.message);
    }
    if (cli_has(arguments, "strict") && cli_has(arguments, "ids")) {
        return cli_usage(arguments, "--strict reads text, not ids");
    }
    int status = open_text(arguments, &model);
    if (status != STATUS_DONE) {
        return status;
    }
    const char *word = arguments->word_count > 0 ? arguments->words[0] : NULL;
    result made = cli_input(word, true, &input, &error);
    if (is_ok(made)) {
        made = parse_make(
            arguments, &model, effort != CHAT_EFFORT_OFF, buffer_view(&input), &text, &error
        );
    }
    return print_made(made, &error, &text);
}

const struct cli_command command_model_parse = {
    .path = "model parse",
    .operands = "[FILE]",
    .summary = "model output to a message, with what was wrong in it",
    .text = "FILE (default: standard input) holds one turn of a model, markers spelled out.\n",
    .options = parse_options,
    .option_count = COUNT_OF(parse_options),
    .words_max = 1,
    .run = model_parse,
};
