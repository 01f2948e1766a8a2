/* Model output of any bytes: by text in pieces, and by ids. The message must hold together. */
#include "base/json.h"
#include "engine/chat.h"
#include "engine/tokenizer.h"
#include "test_tokenizer_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Lengths of what the events said. */
struct heard {
    size_t reasoning;
    size_t content;
    size_t arguments;
    size_t finished;
};

static void listen(void *context, const struct chat_event *event) {
    struct heard *heard = context;
    ASSERT(utf8_is_valid(event->text));
    heard->reasoning += event->type == CHAT_EVENT_REASONING ? event->text.length : 0;
    heard->content += event->type == CHAT_EVENT_CONTENT ? event->text.length : 0;
    heard->arguments += event->type == CHAT_EVENT_CALL_ARGUMENTS ? event->text.length : 0;
    heard->finished += event->type == CHAT_EVENT_CALL_FINISHED ? 1 : 0;
}

static void check(struct chat_parser *parser, const struct heard *heard) {
    ASSERT(is_ok(chat_parser_finish(parser, NULL)));
    const struct chat_message *message = chat_parser_message(parser);
    ASSERT(message->reasoning.length == heard->reasoning);
    ASSERT(message->content.length == heard->content);
    ASSERT(message->call_count == heard->finished);
    for (size_t i = 0; i < message->call_count; i++) {
        CLEANUP(json_cleanup) struct json_document *document = NULL;
        ASSERT(is_ok(json_parse(message->calls[i].arguments, NULL, &document, NULL)));
        ASSERT(json_type(json_root(document)) == JSON_OBJECT);
    }
    size_t count = 0;
    const struct chat_problem_note *notes = chat_parser_problems(parser, &count);
    for (size_t i = 0; i < count; i++) {
        ASSERT(utf8_is_valid(notes[i].detail));
        ASSERT(strlen(chat_problem_name(notes[i].problem)) > 0);
    }
}

static const struct tokenizer *shared_tokenizer(void) {
    static struct tokenizer *tokenizer; // lives as long as the program
    if (tokenizer == NULL) {
        CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 20};
        struct test_tokenizer_json sections = {.added_tokens = test_chat_tokens};
        test_tokenizer_json_write(&json, &sections);
        ASSERT(is_ok(tokenizer_parse(&tokenizer, buffer_view(&json), NULL)));
    }
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    struct heard heard = {0};
    struct view tool = view_of_text("f");
    struct view text = view_of(data + 1, size - 1);
    struct chat_parser_options options = {
        .thinking = (data[0] & 1U) != 0,
        .inside_calls = (data[0] & 2U) != 0,
        .tool_names = &tool,
        .tool_count = (data[0] >> 2) & 1U,
        .output_bytes_max = (data[0] & 8U) != 0 ? 200 : 0,
        .event = listen,
        .context = &heard};
    size_t piece = 1 + (data[0] >> 5) * 3U;
    CLEANUP(chat_parser_cleanup) struct chat_parser *by_text = NULL;
    ASSERT(is_ok(chat_parser_create(&by_text, NULL, &options, NULL)));
    for (size_t at = 0; at < text.length; at += piece) {
        ASSERT(is_ok(chat_parser_push_text(by_text, view_slice(text, at, piece), NULL)));
    }
    check(by_text, &heard);

    heard = (struct heard){0};
    CLEANUP(chat_parser_cleanup) struct chat_parser *by_ids = NULL;
    ASSERT(is_ok(chat_parser_create(&by_ids, shared_tokenizer(), &options, NULL)));
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 24};
    enum tokenizer_markers markers =
        (data[0] & 16U) != 0 ? TOKENIZER_MARKERS_OFF : TOKENIZER_MARKERS_ON;
    ASSERT(is_ok(tokenizer_encode(shared_tokenizer(), text, markers, &ids, NULL)));
    for (size_t i = 0; i < ids.count; i++) {
        ASSERT(is_ok(chat_parser_push(by_ids, ids.ids[i], NULL)));
    }
    check(by_ids, &heard);

    CLEANUP(chat_conversation_cleanup) struct chat_conversation *conversation = NULL;
    ASSERT(is_ok(chat_conversation_create(&conversation, NULL)));
    result_ignore(chat_parse_strict(conversation, text, options.thinking, NULL)); // may refuse
    return 0;
}
