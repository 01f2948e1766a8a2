/* Constraints of whole turns: what walks through their masks give is what the strict parser and the
 * schemas accept, and what the format writes is admitted. */
#include "engine/chat.h"
#include "engine/chat_grammar.h"
#include "engine/grammar_internal.h"
#include "grammar_support.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define D         "｜DSML｜"
#define EOS       "<｜end▁of▁sentence｜>"
#define END       1 /* ids of the bundled model */
#define THINK     6
#define THINK_END 7
#define DSML      8

static struct chat_tool tools[3]; /* filled by set_up */

static const char plan[] =
    "{\"name\": \"plan\", \"parameters\": {\"type\": \"object\", \"properties\": {\"title\": "
    "{\"type\": "
    "\"string\", \"minLength\": 1, \"maxLength\": 20}, \"kind\": {\"enum\": [\"bug\", \"feature\", "
    "3, "
    "null]}, \"size\": {\"type\": [\"integer\", \"string\"], \"minimum\": 1, \"maximum\": 500, "
    "\"pattern\": \"^[SML]$\"}, \"steps\": {\"type\": \"array\", \"items\": {\"type\": \"object\", "
    "\"properties\": {\"file\": {\"type\": \"string\"}, \"line\": {\"type\": \"integer\", "
    "\"minimum\": 1}}, "
    "\"required\": [\"file\"]}, \"maxItems\": 3}, \"any\": {}, \"dry\": {\"type\": \"boolean\"}}, "
    "\"required\": [\"title\", \"steps\"]}}";
static const char answer_schema[] =
    "{\"type\": \"object\", \"properties\": {\"answer\": {\"type\": \"string\"}, \"score\": "
    "{\"type\": "
    "\"number\", \"minimum\": 0, \"maximum\": 1}}, \"required\": [\"answer\"]}";

static int set_up(void **state) {
    (void)state;
    tools[0].parameters =
        view_of_text("{\"type\": \"object\", \"properties\": {\"command\": {\"type\": "
                     "\"string\"}}, \"required\": [\"command\"]}");
    tools[0].name = view_of_text("shell");
    tools[1].function = view_of_text(plan);
    tools[2].name = view_of_text("stop");
    return 0;
}

static struct grammar *compile(const struct constraint_options *options) {
    struct error error = {0};
    struct grammar *grammar = NULL;
    if (is_failed(chat_grammar_create(&grammar, grammar_test_vocabulary(), options, &error))) {
        fail_msg("%s", error.message);
    }
    return grammar;
}

/* ---- what is generated ---- */

static struct json_value schema_of(struct json_document *function, struct view name) {
    bool is_plan = view_equals_text(name, "plan");
    return is_plan ? json_get(json_root(function), "parameters") : (struct json_value){NULL, NULL};
}

static void check_calls(const struct chat_message *message, uint64_t seed) {
    CLEANUP(json_cleanup) struct json_document *function = NULL;
    assert_true(is_ok(json_parse(view_of_text(plan), NULL, &function, NULL)));
    for (size_t i = 0; i < message->call_count; i++) {
        CLEANUP(json_cleanup) struct json_document *arguments = NULL;
        const struct chat_call *call = &message->calls[i];
        struct error error = {0};
        if (is_failed(json_parse(call->arguments, NULL, &arguments, &error))) {
            assert_non_null(strstr(error.message, "twice"));
            continue;
        }
        struct json_value schema = schema_of(function, call->name);
        bool is_known = view_equals_text(call->name, "plan") ||
                        view_equals_text(call->name, "shell") ||
                        view_equals_text(call->name, "stop");
        if (!is_known || (json_type(schema) != JSON_ABSENT &&
                          !grammar_test_validate(schema, schema, json_root(arguments)))) {
            fail_msg(
                "seed %" PRIu64 ": %.*s(%.*s)",
                seed,
                VIEW_ARGUMENTS(call->name),
                VIEW_ARGUMENTS(call->arguments)
            );
        }
    }
}

/* Both parsers take the turn; returns the number of calls. */
static size_t check_turn(
    const struct grammar_walk *walk, const struct constraint_options *options, uint64_t seed
) {
    struct error error = {0};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 24};
    if (options->inside_calls) {
        assert_true(is_ok(buffer_append_text(&text, "\n\n<" D " calls>\n", NULL)));
    }
    assert_true(is_ok(buffer_append(&text, buffer_view(&walk->text), NULL)));
    assert_true(is_ok(buffer_append_text(&text, EOS, NULL)));
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *turn = NULL;
    assert_true(is_ok(chat_conversation_create(&turn, &error)));
    result status = chat_parse_strict(turn, buffer_view(&text), options->thinking, &error);
    if (is_failed(status)) {
        fail_msg("seed %" PRIu64 ": %s: %s", seed, error.message, buffer_text(&text));
    }
    const struct chat_message *message = chat_conversation_messages(turn);
    check_calls(message, seed);

    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    struct chat_parser_options parsing = {
        .thinking = options->thinking, .inside_calls = options->inside_calls};
    assert_true(is_ok(chat_parser_create(&parser, grammar_test_tokenizer(), &parsing, &error)));
    for (size_t i = 0; i < walk->ids.count; i++) {
        assert_true(is_ok(chat_parser_push(parser, walk->ids.ids[i], &error)));
    }
    assert_true(is_ok(chat_parser_finish(parser, &error)));
    size_t count = 0;
    const struct chat_problem_note *notes = chat_parser_problems(parser, &count);
    for (size_t i = 0; i < count; i++) {
        // Free text need not be UTF-8 or without U+0000, and free objects may repeat a name.
        bool is_of_text =
            notes[i].problem == CHAT_PROBLEM_TEXT_INVALID && notes[i].call_index == SIZE_MAX;
        bool is_repeated = notes[i].problem == CHAT_PROBLEM_VALUE_INVALID;
        if (!is_of_text && !is_repeated) {
            fail_msg("seed %" PRIu64 ": problem %s", seed, chat_problem_name(notes[i].problem));
        }
    }
    assert_int_equal(chat_parser_message(parser)->call_count, message->call_count);
    return message->call_count;
}

static size_t walk_count(void) {
    const char *text = getenv("HEARTH_TEST_WALKS");
    return text != NULL ? (size_t)strtoul(text, NULL, 10) : 30;
}

/* Walks; the fewest and the most calls seen in one turn. */
static void walk_turns(const struct constraint_options *options, size_t *fewest, size_t *most) {
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(options);
    size_t finished = 0;
    *fewest = SIZE_MAX;
    *most = 0;
    for (uint64_t seed = 0; seed < walk_count(); seed++) {
        CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
        if (grammar_test_walk(&walk, grammar, grammar_test_vocabulary(), END, seed, 3000)) {
            size_t calls = check_turn(&walk, options, seed);
            *fewest = calls < *fewest ? calls : *fewest;
            *most = calls > *most ? calls : *most;
            finished += 1;
        }
    }
    if (finished * 10 < walk_count() * 8) {
        fail_msg("%zu of %zu walks came to an end", finished, walk_count());
    }
}

static void walk_gives_turns_that_parsers_and_schemas_accept(void **state) {
    (void)state;
    size_t fewest = 0;
    size_t most = 0;
    struct constraint_options options = {
        .tools = tools, .tool_count = 3, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
    walk_turns(&options, &fewest, &most);
    assert_int_equal(fewest, 0);
    options.thinking = false;
    options.choice = CONSTRAINT_TOOLS_REQUIRED;
    walk_turns(&options, &fewest, &most);
    assert_true(fewest == 1 && most > 1);
    options.thinking = true;
    options.one_call = true;
    walk_turns(&options, &fewest, &most);
    assert_true(fewest == 1 && most == 1);
    options.thinking = false;
    options.one_call = false;
    options.inside_calls = true;
    walk_turns(&options, &fewest, &most);
    assert_true(fewest == 1 && most > 1);
    options.inside_calls = false;
    options.choice = CONSTRAINT_TOOLS_NONE;
    walk_turns(&options, &fewest, &most);
    assert_true(fewest == 0 && most == 0);
}

static void named_tool_is_the_only_one_called(void **state) {
    (void)state;
    struct constraint_options options = {
        .tools = tools,
        .tool_count = 3,
        .choice = CONSTRAINT_TOOLS_NAMED,
        .tool_name = view_of_text("plan")};
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(&options);
    for (uint64_t seed = 0; seed < walk_count(); seed++) {
        CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
        if (grammar_test_walk(&walk, grammar, grammar_test_vocabulary(), END, seed, 3000)) {
            assert_true(check_turn(&walk, &options, seed) > 0);
            struct view text = buffer_view(&walk.text);
            assert_int_equal(view_find(text, view_of_text("invoke name=\"shell"), 0), SIZE_MAX);
        }
    }
}

static void response_fits_its_schema(void **state) {
    (void)state;
    struct constraint_options options = {
        .response_schema = view_of_text(answer_schema), .thinking = true};
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(&options);
    CLEANUP(json_cleanup) struct json_document *schema = NULL;
    assert_true(is_ok(json_parse(options.response_schema, NULL, &schema, NULL)));
    for (uint64_t seed = 0; seed < walk_count(); seed++) {
        CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
        if (!grammar_test_walk(&walk, grammar, grammar_test_vocabulary(), END, seed, 3000)) {
            continue;
        }
        assert_int_equal(check_turn(&walk, &options, seed), 0);
        struct view text = buffer_view(&walk.text);
        size_t at = view_find(text, view_of_text("</think>"), 0);
        text = view_slice(text, at + strlen("</think>"), SIZE_MAX);
        CLEANUP(json_cleanup) struct json_document *value = NULL;
        assert_true(is_ok(json_parse(text, NULL, &value, NULL)));
        assert_true(grammar_test_validate(json_root(schema), json_root(schema), json_root(value)));
    }
    // With tools: the value or calls, no text.
    options.thinking = false;
    options.tools = tools;
    options.tool_count = 1;
    options.choice = CONSTRAINT_TOOLS_AUTO;
    CLEANUP(grammar_cleanup) struct grammar *both = compile(&options);
    uint32_t at = grammar_start(both);
    assert_true(is_ok(grammar_advance_bytes(both, &at, view_of_text("{\"answer\": \""), NULL)));
    at = grammar_start(both);
    assert_true(is_ok(grammar_advance_bytes(both, &at, view_of_text("\n\n<"), NULL)));
    assert_true(is_ok(grammar_advance(both, &at, DSML, NULL)));
    at = grammar_start(both);
    assert_true(is_failed(grammar_advance_bytes(both, &at, view_of_text("Hello"), NULL)));
}

/* ---- masks ---- */

static void masks_of_turns_are_what_can_be_advanced_over(void **state) {
    (void)state;
    const struct grammar_vocabulary *vocabulary = grammar_test_vocabulary();
    struct constraint_options options = {
        .tools = tools, .tool_count = 3, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
    for (uint64_t seed = 0; seed < 6; seed++) {
        options.choice = seed % 2 == 0 ? CONSTRAINT_TOOLS_AUTO : CONSTRAINT_TOOLS_REQUIRED;
        CLEANUP(grammar_cleanup) struct grammar *grammar = compile(&options);
        CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
        (void)grammar_test_walk(&walk, grammar, vocabulary, END, seed, 150);
        uint32_t at = grammar_start(grammar);
        for (size_t i = 0; i < walk.ids.count && walk.ids.ids[i] != END; i++) {
            if (i % 3 == seed % 3) {
                grammar_test_check_mask(grammar, vocabulary, at);
            }
            assert_true(is_ok(grammar_advance(grammar, &at, walk.ids.ids[i], NULL)));
        }
    }
}

static size_t allowed(struct constraint *constraint, uint32_t at, const uint64_t **mask) {
    assert_true(is_ok(constraint_mask(constraint, at, mask, NULL)));
    return grammar_test_count(*mask, grammar_vocabulary_words(grammar_test_vocabulary()));
}

static struct constraint *constrain(const struct constraint_options *options) {
    struct error error = {0};
    struct constraint *constraint = NULL;
    if (is_failed(constraint_create(&constraint, grammar_test_vocabulary(), options, &error))) {
        fail_msg("%s", error.message);
    }
    return constraint;
}

static void thinking_is_free_but_for_control_tokens(void **state) {
    (void)state;
    struct constraint_options options = {
        .tools = tools, .tool_count = 3, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
    CLEANUP(constraint_cleanup) struct constraint *constraint = constrain(&options);
    const uint64_t *mask = NULL;
    uint32_t at = constraint_start(constraint);
    size_t ordinary = grammar_vocabulary_ids(grammar_test_vocabulary()) - 17; // 17 are control
    assert_int_equal(allowed(constraint, at, &mask), ordinary + 1);
    assert_true(grammar_test_has(mask, THINK_END));
    assert_false(grammar_test_has(mask, END) || grammar_test_has(mask, DSML));
    assert_false(constraint_may_end(constraint, at));
    assert_true(is_ok(constraint_advance(constraint, &at, THINK_END, NULL)));
    uint32_t answer = at;
    assert_int_equal(allowed(constraint, at, &mask), ordinary + 1);
    assert_true(grammar_test_has(mask, END) && constraint_may_end(constraint, at));
    assert_false(grammar_test_has(mask, THINK_END) || grammar_test_has(mask, DSML));
    struct error error = {0};
    assert_int_equal(constraint_advance(constraint, &at, DSML, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(at, answer); // an old state stays good
    assert_true(is_ok(constraint_advance(constraint, &at, END, NULL)));
    assert_true(constraint_may_end(constraint, at));
    assert_int_equal(constraint_mask(constraint, at, &mask, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "the text has ended"));
    assert_int_equal(allowed(constraint, answer, &mask), ordinary + 1);
    assert_true(constraint_bytes(constraint) > 1000);
    struct constraint *second = constraint_acquire(constraint);
    constraint_release(second);
    constraint_release(NULL);
}

/* ---- what the format writes ---- */

/* A text with its markers as ids, everything else cut at random. */
static void admits(struct grammar *grammar, const char *turn, uint64_t random) {
    const struct grammar_vocabulary *vocabulary = grammar_test_vocabulary();
    static const struct {
        const char *text;
        int32_t id;
    } controls[] = {{"</think>", THINK_END}, {D, DSML}, {EOS, END}};
    struct view text = view_of_text(turn);
    uint32_t at = grammar_start(grammar);
    while (text.length > 0) {
        int32_t chosen = -1;
        size_t border = text.length;
        for (size_t i = 0; i < COUNT_OF(controls); i++) {
            size_t found = view_find(text, view_of_text(controls[i].text), 0);
            chosen = found == 0 ? controls[i].id : chosen;
            border = found < border ? found : border;
        }
        size_t seen = 0;
        for (size_t i = 0; i < grammar_vocabulary_ids(vocabulary) && border > 0; i++) {
            struct view bytes = grammar_vocabulary_token(vocabulary, (int32_t)i);
            bool goes_on = bytes.length > 0 && vocabulary->is_control[i] == 0 &&
                           view_starts_with(view_slice(text, 0, border), bytes);
            seen += goes_on ? 1 : 0;
            chosen = goes_on && grammar_test_random(&random) % seen == 0 ? (int32_t)i : chosen;
        }
        const uint64_t *mask = NULL;
        assert_true(is_ok(grammar_mask(grammar, at, &mask, NULL)));
        if (!grammar_test_has(mask, chosen)) {
            fail_msg("not admitted: %.*s", VIEW_ARGUMENTS(text));
        }
        assert_true(is_ok(grammar_advance(grammar, &at, chosen, NULL)));
        text = view_slice(text, grammar_vocabulary_token(vocabulary, chosen).length, SIZE_MAX);
    }
}

static void turn_as_the_format_writes_it_is_admitted_in_any_tokens(void **state) {
    (void)state;
    static const char *const turns[] = {
        "thoughts\n\n</think>An answer, without calls.\n\n<" EOS,
        "</think>I look.\n\n\n<" D " calls>\n<" D " invoke name=\"shell\">\n<" D
        " parameter name=\"command\" string=\"true\">cat <<X > a; ls </tmp/x\n</p>\"</" D
        " parameter>\n</" D " invoke>\n</" D " calls>" EOS,
        "x</think>\n\n<" D " calls>\n<" D " invoke name=\"stop\">\n\n</" D " invoke>\n<" D
        " invoke name=\"plan\">\n<" D " parameter name=\"title\" string=\"true\">Größe</" D
        " parameter>\n<" D " parameter name=\"kind\" string=\"true\">bug</" D " parameter>\n<" D
        " parameter name=\"size\" string=\"false\">420</" D " parameter>\n<" D
        " parameter name=\"steps\" string=\"false\">[{\"file\": \"a\\\\b\\n\", \"line\": 7}, "
        "{\"file\": \"\"}]</" D " parameter>\n<" D
        " parameter name=\"any\" string=\"false\">{\"x\": [1.5, null]}</" D " parameter>\n</" D
        " invoke>\n</" D " calls>" EOS,
        "</think>\n\n<" D " calls>\n<" D " invoke name=\"plan\">\n<" D
        " parameter name=\"title\" string=\"true\">t</" D " parameter>\n<" D
        " parameter name=\"kind\" string=\"false\">3</" D " parameter>\n<" D
        " parameter name=\"size\" string=\"true\">M</" D " parameter>\n<" D
        " parameter name=\"steps\" string=\"false\">[]</" D " parameter>\n<" D
        " parameter name=\"any\" string=\"true\">text</" D " parameter>\n</" D " invoke>\n</" D
        " calls>" EOS,
    };
    struct constraint_options options = {
        .tools = tools, .tool_count = 3, .choice = CONSTRAINT_TOOLS_AUTO, .thinking = true};
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(&options);
    for (size_t i = 0; i < COUNT_OF(turns); i++) {
        for (uint64_t seed = 0; seed < 8; seed++) {
            admits(grammar, turns[i], seed);
        }
    }
}

/* ---- refusals ---- */

static void
refuse(const struct constraint_options *options, enum result_code code, const char *message) {
    struct error error = {0};
    struct constraint *constraint = NULL;
    result status = constraint_create(&constraint, grammar_test_vocabulary(), options, &error);
    if (status.code != code || strstr(error.message, message) == NULL) {
        fail_msg("%d '%s' instead of '%s'", (int)status.code, error.message, message);
    }
}

static void options_that_make_no_turn_are_refused_by_name(void **state) {
    (void)state;
    struct chat_tool tool = {.name = view_of_text("f")};
    struct constraint_options options = {
        .tools = &tool, .tool_count = 1, .choice = CONSTRAINT_TOOLS_AUTO};
    tool.parameters = view_of_text("{\"properties\": {\"x\": {\"patternProperties\": {}}}}");
    refuse(
        &options,
        RESULT_UNSUPPORTED,
        "tool 'f': schema at /properties/x: keyword \"patternProperties\" is not supported"
    );
    tool.parameters = view_of_text("{\"type\": \"array\"}");
    refuse(&options, RESULT_UNSUPPORTED, "tool 'f': schema: arguments that are no object");
    tool.parameters = view_of_text("{\"properties\": {\"a\\\"b\": {}}}");
    refuse(&options, RESULT_INVALID_INPUT, "has a name that no parameter can have");
    tool.parameters = view_of_text("{");
    refuse(&options, RESULT_INVALID_INPUT, "");
    tool.parameters = view_of_text("{\"$ref\": \"#\"}");
    refuse(&options, RESULT_LIMIT, "tool 'f': schema: keyword \"$ref\" to '#' is recursive");
    tool.parameters = view_of_text("{}");
    tool.name = view_of_text("a\"b");
    refuse(&options, RESULT_INVALID_INPUT, "tool name 'a\"b': no tag can hold it");
    tool.name = view_of_text("f");
    options.choice = CONSTRAINT_TOOLS_NAMED;
    options.tool_name = view_of_text("g");
    refuse(&options, RESULT_INVALID_INPUT, "tool 'g' is to be called");
    options.tool_count = 0;
    refuse(&options, RESULT_INVALID_INPUT, "a call is required, but no tool is declared");
    options.choice = CONSTRAINT_TOOLS_NONE;
    options.response_schema = view_of_text("{\"type\": \"strin\"}");
    refuse(&options, RESULT_INVALID_INPUT, "response: schema: type \"strin\" is not known");
    options.inside_calls = true;
    refuse(&options, RESULT_INVALID_INPUT, "a turn inside calls needs tools");
    options.tool_count = CONSTRAINT_TOOLS_MAX + 1;
    refuse(&options, RESULT_LIMIT, "257 tools; at most 256");
    options.choice = (enum constraint_choice)99;
    refuse(&options, RESULT_INVALID_INPUT, "there is no choice of tools 99");
    struct chat_tool twins[3] = {{.name = view_of_text("f")}, {.name = view_of_text("g")}};
    twins[2].function = view_of_text("{\"name\": \"f\"}"); /* the other form */
    options = (struct constraint_options
    ){.tools = twins, .tool_count = 3, .choice = CONSTRAINT_TOOLS_AUTO};
    refuse(&options, RESULT_INVALID_INPUT, "tools 1 and 3 are both named 'f'");
}

static void vocabulary_without_markers_is_refused_by_name(void **state) {
    (void)state;
    struct grammar_token token = {view_of_text("a"), false};
    CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(grammar_vocabulary_create_from(&vocabulary, &token, 1, NULL)));
    struct constraint_options options = {.thinking = true};
    struct constraint *constraint = NULL;
    struct error error = {0};
    result status = constraint_create(&constraint, vocabulary, &options, &error);
    assert_int_equal(status.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "no control token '" EOS "'"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walk_gives_turns_that_parsers_and_schemas_accept),
        cmocka_unit_test(named_tool_is_the_only_one_called),
        cmocka_unit_test(response_fits_its_schema),
        cmocka_unit_test(masks_of_turns_are_what_can_be_advanced_over),
        cmocka_unit_test(thinking_is_free_but_for_control_tokens),
        cmocka_unit_test(turn_as_the_format_writes_it_is_admitted_in_any_tokens),
        cmocka_unit_test(options_that_make_no_turn_are_refused_by_name),
        cmocka_unit_test(vocabulary_without_markers_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
