/* Constraints in the engine, on the bundled model: turns that fit however the model draws, beside
 * free ones; a constraint that no token can continue ends its request alone. */
#include "engine_support.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/json.h"
#include "engine/chat.h"
#include "engine/constraint.h"
#include "engine/grammar_vocabulary.h"
#include "engine/tokenizer.h"

#define TOKENS_MAX 160
#define AT_ONCE    4

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"mode\": {\"enum\": [\"fast\", \"slow\"]}, \"n\": "
    "{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 50}, \"list\": {\"type\": \"array\", "
    "\"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}}, \"required\": [\"mode\", \"n\"]}";

static void open_mini(struct fixture *fixture) {
    const struct engine_options options = {
        .model_directory = TEST_SOURCE_DIR "/examples/mini/model",
        .threads = 1,
        .context_max = 512,
        .sequences_max = AT_ONCE + 1,
    };
    open_options(fixture, &options);
}

/* A user's turn and the header of an answer without thinking. */
static void encode_prompt(const struct fixture *fixture, struct token_list *ids) {
    const struct tokenizer *tokenizer = engine_tokenizer(fixture->engine);
    static const char text[] = "<｜begin▁of▁sentence｜><｜User｜>Set it up.<｜Assistant｜></think>";
    assert_true(
        is_ok(tokenizer_encode(tokenizer, view_of_text(text), TOKENIZER_MARKERS_ON, ids, NULL))
    );
}

static uint64_t start(
    struct fixture *fixture,
    struct constraint *constraint,
    const struct token_list *prompt,
    uint64_t seed
) {
    struct error error = {0};
    struct generation_request request = {
        .sequence = create(fixture),
        .append = prompt->ids,
        .append_count = prompt->count,
        .sampling = {.temperature = 1.5, .top_p = 1, .seed = seed},
        .tokens_max = TOKENS_MAX,
        .constraint = constraint,
    };
    if (is_failed(engine_generate(fixture->engine, &request, &error))) {
        fail_msg("%s", error.message);
    }
    return request.sequence;
}

struct turn {
    uint64_t sequence;
    struct token_list ids;
    float logprobs[TOKENS_MAX];
    enum finish_reason reason;
    struct error error;
    bool is_finished;
};

static void collect_all(struct fixture *fixture, struct turn *turns, size_t count) {
    for (size_t finished = 0; finished < count;) {
        struct engine_event event = next_event(fixture);
        size_t i = 0;
        while (i < count && turns[i].sequence != event.sequence) {
            i++;
        }
        assert_true(i < count);
        if (event.type == ENGINE_TOKEN) {
            turns[i].logprobs[turns[i].ids.count] = event.logprob;
            assert_true(is_ok(token_list_append(&turns[i].ids, event.token, NULL)));
        } else if (event.type == ENGINE_FINISHED) {
            turns[i].reason = event.reason;
            turns[i].error = event.error;
            finished++;
        }
    }
}

static void check_call(const struct fixture *fixture, const struct turn *turn) {
    struct error error = {0};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *parsed = NULL;
    const struct tokenizer *tokenizer = engine_tokenizer(fixture->engine);
    assert_int_equal(turn->reason, FINISH_EOS);
    assert_true(is_ok(tokenizer_decode(tokenizer, turn->ids.ids, turn->ids.count, &text, NULL)));
    assert_true(is_ok(chat_conversation_create(&parsed, &error)));
    if (is_failed(chat_parse_strict(parsed, buffer_view(&text), false, &error))) {
        fail_msg("%s: %s", error.message, buffer_text(&text));
    }
    const struct chat_message *message = chat_conversation_messages(parsed);
    assert_int_equal(message->call_count, 1);
    CLEANUP(json_cleanup) struct json_document *arguments = NULL;
    assert_true(is_ok(json_parse(message->calls[0].arguments, NULL, &arguments, NULL)));
    int64_t n = 0;
    struct view mode;
    assert_true(json_as_i64(json_get(json_root(arguments), "n"), &n) && n >= 3 && n <= 50);
    assert_true(json_as_string(json_get(json_root(arguments), "mode"), &mode));
    assert_true(view_equals_text(mode, "fast") || view_equals_text(mode, "slow"));
}

static struct constraint *constrain(const struct grammar_vocabulary *vocabulary) {
    struct chat_tool tool = {.name = view_of_text("set"), .parameters = view_of_text(schema)};
    struct constraint_options options = {
        .tools = &tool, .tool_count = 1, .choice = CONSTRAINT_TOOLS_REQUIRED, .one_call = true};
    struct constraint *constraint = NULL;
    assert_true(is_ok(constraint_create(&constraint, vocabulary, &options, NULL)));
    return constraint;
}

static void constrained_turns_fit_beside_a_free_one(void **state) {
    (void)state;
    struct fixture fixture;
    open_mini(&fixture);
    const struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(engine_vocabulary(fixture.engine, &vocabulary, NULL)));
    struct constraint *constraint = constrain(vocabulary);
    CLEANUP(token_list_deinit) struct token_list prompt = {NULL, 0, 0, 512};
    encode_prompt(&fixture, &prompt);
    struct turn turns[AT_ONCE + 1] = {0};
    for (size_t i = 0; i <= AT_ONCE; i++) { // the last one is free
        token_list_init(&turns[i].ids, 1024);
        turns[i].sequence = start(&fixture, i < AT_ONCE ? constraint : NULL, &prompt, i);
    }
    constraint_release(constraint); // the requests hold it
    collect_all(&fixture, turns, AT_ONCE + 1);
    for (size_t i = 0; i < AT_ONCE; i++) {
        check_call(&fixture, &turns[i]);
    }
    assert_true(turns[AT_ONCE].ids.count > 0 && turns[AT_ONCE].reason != FINISH_ERROR);
    // Alone it draws the same tokens.
    for (size_t i = 0; i <= AT_ONCE; i++) {
        engine_sequence_destroy(fixture.engine, turns[i].sequence);
    }
    constraint = constrain(vocabulary);
    struct turn alone = {.sequence = start(&fixture, constraint, &prompt, 2)};
    token_list_init(&alone.ids, 1024);
    collect_all(&fixture, &alone, 1);
    assert_int_equal(alone.ids.count, turns[2].ids.count);
    assert_memory_equal(alone.ids.ids, turns[2].ids.ids, alone.ids.count * sizeof(int32_t));
    constraint_release(constraint);
    close_engine(&fixture);
    token_list_deinit(&alone.ids);
    for (size_t i = 0; i <= AT_ONCE; i++) {
        token_list_deinit(&turns[i].ids);
    }
}

/* A vocabulary of the right size that lacks a letter of the tool's name. */
static void mask_without_a_token_ends_its_request_by_name(void **state) {
    (void)state;
    struct fixture fixture;
    open_mini(&fixture);
    const struct tokenizer *tokenizer = engine_tokenizer(fixture.engine);
    size_t count = tokenizer_vocabulary_size(tokenizer);
    CLEANUP(free_cleanup) struct grammar_token *tokens = calloc(count, sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < count; i++) {
        struct view bytes = tokenizer_bytes(tokenizer, (int32_t)i);
        bool is_control = tokenizer_is_added(tokenizer, (int32_t)i);
        bool is_left_out = !is_control && view_find(bytes, view_of_text("v"), 0) != SIZE_MAX;
        tokens[i] = (struct grammar_token){is_left_out ? view_of_text("") : bytes, is_control};
    }
    CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(grammar_vocabulary_create_from(&vocabulary, tokens, count, NULL)));
    struct constraint *constraint = constrain(vocabulary);
    CLEANUP(token_list_deinit) struct token_list prompt = {NULL, 0, 0, 512};
    encode_prompt(&fixture, &prompt);
    struct turn turns[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        token_list_init(&turns[i].ids, 1024);
        turns[i].sequence = start(&fixture, i == 0 ? constraint : NULL, &prompt, i);
    }
    constraint_release(constraint);
    collect_all(&fixture, turns, 2);
    assert_int_equal(turns[0].reason, FINISH_ERROR); // "invoke" cannot be written
    assert_int_equal(turns[0].error.code, RESULT_INVALID_INPUT);
    if (strstr(turns[0].error.message, "the grammar allows no token here") == NULL) {
        fail_msg("%s", turns[0].error.message);
    }
    assert_true(turns[1].reason == FINISH_EOS || turns[1].reason == FINISH_LENGTH);
    // The neighbour draws what it draws alone; the one that ended takes another request.
    struct turn others[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        token_list_init(&others[i].ids, 1024);
    }
    others[1].sequence = start(&fixture, NULL, &prompt, 1);
    collect_all(&fixture, &others[1], 1);
    assert_int_equal(others[1].reason, turns[1].reason);
    assert_int_equal(others[1].ids.count, turns[1].ids.count);
    assert_true(turns[1].ids.count > turns[0].ids.count);
    assert_memory_equal(others[1].ids.ids, turns[1].ids.ids, turns[1].ids.count * sizeof(int32_t));
    assert_memory_equal(others[1].logprobs, turns[1].logprobs, sizeof turns[1].logprobs);
    others[0].sequence = turns[0].sequence;
    struct error error = {0};
    const struct generation_request more = {
        .sequence = turns[0].sequence,
        .append = prompt.ids,
        .append_count = prompt.count,
        .sampling = {.temperature = 1.5, .top_p = 1},
        .tokens_max = 4,
    };
    assert_true(is_ok(engine_generate(fixture.engine, &more, &error)));
    collect_all(&fixture, others, 1);
    assert_true(others[0].reason == FINISH_EOS || others[0].reason == FINISH_LENGTH);
    close_engine(&fixture);
    for (size_t i = 0; i < 2; i++) {
        token_list_deinit(&turns[i].ids);
        token_list_deinit(&others[i].ids);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constrained_turns_fit_beside_a_free_one),
        cmocka_unit_test(mask_without_a_token_ends_its_request_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
