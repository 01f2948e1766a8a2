/* Each allocation of the text half of the engine fails once: the call says MEMORY and gives nothing,
 * or is not disturbed. Leaks are the sanitizer build's to find. */
#include "engine/chat.h"
#include "engine/engram.h"
#include "engine/tokenizer.h"
#include "failing_memory.h"
#include "test_tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALLOCATIONS_MAX 5000
#define D               "｜DSML｜"

static const char wording_json[] =
    "{\"effort_line\":\"E {n}\\n\",\"tools_head\":\"## <think>\\n\",\"tools_tail\":\"\\nend\","
    "\"response_format_head\":\"\\n\\nR:\\n\"}";
static const char messages_json[] =
    "[{\"role\":\"system\",\"content\":\"s\",\"tools\":[{\"function\":{\"name\":\"f\"}}],"
    "\"response_format\":{\"a\":1.5}},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
    "\"a\"},{\"type\":\"image_url\"}]},{\"role\":\"assistant\",\"content\":\"b\",\"tool_calls\":[{"
    "\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"k\\\":[1]}\"}}]},{\"role\":"
    "\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]";
static const char output[] =
    "r</think>a\n\n<" D " calls>\n<" D " invoke name=\"f\">\n<" D
    " parameter name=\"k\" string=\"false\">[1]</" D " parameter>\n<" D
    " parameter name=\"s\" string=\"true\">\"</" D " parameter>\n</" D " invoke>\n</" D " calls>";

/* What the steps share; made once with memory. */
static struct tokenizer *tokenizer;
static struct chat_wording *wording;
static struct buffer tokenizer_json;

static int open_all(void **state) {
    (void)state;
    buffer_init(&tokenizer_json, 1 << 20);
    struct test_tokenizer_json sections = {
        .vocabulary = ",\"ab\":256", .merges = "[\"a b\"]", .added_tokens = test_chat_tokens};
    test_tokenizer_json_write(&tokenizer_json, &sections);
    bool is_open = is_ok(tokenizer_parse(&tokenizer, buffer_view(&tokenizer_json), NULL)) &&
                   is_ok(chat_wording_parse_json(&wording, view_of_text(wording_json), NULL));
    return is_open ? 0 : -1;
}

static int close_all(void **state) {
    (void)state;
    tokenizer_destroy(tokenizer);
    chat_wording_destroy(wording);
    buffer_deinit(&tokenizer_json);
    return 0;
}

static result load(struct error *error) {
    CLEANUP(tokenizer_cleanup) struct tokenizer *loaded = NULL;
    result status = tokenizer_parse(&loaded, buffer_view(&tokenizer_json), error);
    ASSERT(is_ok(status) == (loaded != NULL));
    return status;
}

static result encode(struct error *error) {
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    static const char long_text[] =
        "abababababababababababababababababababababababababababab <think> \xFF 12";
    result status =
        tokenizer_encode(tokenizer, view_of_text(long_text), TOKENIZER_MARKERS_ON, &ids, error);
    ASSERT(is_ok(status) || ids.count == 0);
    TRY(status);
    return tokenizer_decode(tokenizer, ids.ids, ids.count, &text, error);
}

static result map(struct error *error) {
    static const int32_t layers[] = {1, 2};
    struct engram_options options = {
        .layer_ids = layers,
        .layer_count = 2,
        .order_max = 4,
        .head_count = 2,
        .prime_start = 100,
        .compressed_count = 239,
        .vocabulary_count = (int32_t)tokenizer_vocabulary_size(tokenizer)};
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    result status = engram_create(&engram, tokenizer, &options, error);
    ASSERT(is_ok(status) == (engram != NULL));
    return status;
}

static result word(struct error *error) {
    CLEANUP(chat_wording_cleanup) struct chat_wording *parsed = NULL;
    return chat_wording_parse_json(&parsed, view_of_text(wording_json), error);
}

static result converse(struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *conversation = NULL;
    CLEANUP(chat_encoder_cleanup) struct chat_encoder *encoder = NULL;
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    TRY(json_parse(view_of_text(messages_json), NULL, &document, error));
    TRY(chat_conversation_create(&conversation, error));
    TRY(chat_conversation_append_json(conversation, json_root(document), error));
    TRY(chat_encoder_create(&encoder, tokenizer, wording, error));
    struct chat_request request = {
        .messages = chat_conversation_messages(conversation),
        .message_count = chat_conversation_count(conversation),
        .options = chat_options_default()};
    TRY(chat_render(&text, encoder, &request, error));
    result status = chat_encode(&ids, encoder, &request, error);
    ASSERT(is_ok(status) || ids.count == 0);
    return status;
}

static result parse(struct error *error) {
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *conversation = NULL;
    struct view tool = view_of_text("f");
    struct chat_parser_options options = {.thinking = true, .tool_names = &tool, .tool_count = 1};
    TRY(chat_parser_create(&parser, tokenizer, &options, error));
    TRY(chat_parser_push_text(parser, view_of_text(output), error));
    TRY(chat_parser_finish(parser, error));
    ASSERT(chat_parser_message(parser)->call_count == 1);
    TRY(chat_conversation_create(&conversation, error));
    return chat_parse_strict(conversation, view_of_text(output), true, error);
}

static void every_failed_allocation_is_told(void **state) {
    (void)state;
    static const struct {
        const char *name;
        result (*step)(struct error *error);
    } steps[] = {
        {"load", load},
        {"encode", encode},
        {"map", map},
        {"word", word},
        {"converse", converse},
        {"parse", parse}};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        size_t nth = 1;
        for (; nth < ALLOCATIONS_MAX; nth++) {
            struct error error = {0};
            failing_memory_arm(nth);
            result status = steps[i].step(&error);
            bool fired = failing_memory_fired();
            failing_memory_arm(0);
            if (!fired) {
                if (is_failed(status)) {
                    fail_msg("%s: %s", steps[i].name, error.message);
                }
                break;
            }
            if (is_failed(status) && status.code != RESULT_MEMORY) {
                fail_msg("%s, allocation %zu: %s", steps[i].name, nth, error.message);
            }
        }
        assert_true(nth > 1 && nth < ALLOCATIONS_MAX);
        print_message("%s: %zu failed allocations\n", steps[i].name, nth - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_is_told),
    };
    return cmocka_run_group_tests_name("text memory", tests, open_all, close_all);
}
