/* The wording of prompts: chat.json, and string constants of a Python file that is never run. The
 * Python file here is ours, with our words; its digests come from sha256sum. */
#include "engine/chat.h"

#include "engine/tokenizer.h"
#include "test_safetensors.h"
#include "test_tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* After expansion: "E {n} e\n", "## T\n<｜DSML｜ calls> <think> {\"x\"}\n", "\nend\n", "\n\nR:\n". */
static const char python[] = "#!/usr/bin/env python3\n"
                             "\"\"\"A module text.\n"
                             "TOOLS = \"not this one\"\n"
                             "\"\"\"\n"
                             "import json  # EFFORT = \"nor this\"\n"
                             "other: str = 'it''s \"quoted\" \\'' r\"\\\" (\"\n"
                             "SETTINGS = {\n"
                             "EFFORT: 1, 'b': [\n"
                             "TOOLS],\n"
                             "}\n"
                             "EFFORT_2 = \"longer name\"\n"
                             "if other == TOOLS_2:\n"
                             "    EFFORT = \"indented\"\n"
                             "EFFORT = (\n"
                             "    \"E {budget}\"  # the number\n"
                             "    ' e\\n'\n"
                             ")\n"
                             "TOOLS: str = \"\"\"## T\n"
                             "<{dsml_token}{tc_block_name}> {thinking_start_token} {{\\\"x\\\"}}\n"
                             "{schemas}\n"
                             "\\x65\\u006e\\144\n"
                             "\"\"\"\n"
                             "FORMAT = u'R:' \"\\n\" \\\n"
                             "    '''{schema}'''\n"
                             "def f(TOOLS=\"default\"):\n"
                             "    return rb'\\'' + f\"{EFFORT}\"\n";

#define WORDS_EFFORT "E {n} e\n"
#define WORDS_HEAD   "## T\n<｜DSML｜ calls> <think> {\"x\"}\n"
#define WORDS_TAIL   "\nend\n"
#define WORDS_FORMAT "\n\nR:\n"

static struct chat_wording_source our_source(void) {
    return (struct chat_wording_source
    ){.effort_constant = "EFFORT",
      .effort_place = "budget",
      .tools_constant = "TOOLS",
      .tools_place = "schemas",
      .response_format_constant = "FORMAT",
      .response_format_place = "schema",
      .effort_line = {8, "eee427b280533e68926d809297f5c28a82eacddfd3fb9f2acc30f3cebe39a104"},
      .tools_head = {38, "00aea24e57db40457f3723b3f95c3eef2fc91bdc1648222d20e8b7cc11952bd4"},
      .tools_tail = {5, "d91646a47b5455203bae65030ca6eae33ed786d37532b3e592af4dc71905787b"},
      .response_format = {5, "7dbb95bf622225a4eb779ada8c0c9272fd18ee9769d0c731d625f869667357d3"}};
}

/* Renders a conversation that uses all texts, with a vocabulary made for tests. */
static void expect_words(const struct chat_wording *wording) {
    CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
    CLEANUP(chat_encoder_cleanup) struct chat_encoder *encoder = NULL;
    test_tokenizer_json_write(
        &json, &(struct test_tokenizer_json){.added_tokens = test_chat_tokens}
    );
    assert_true(is_ok(tokenizer_parse(&tokenizer, buffer_view(&json), NULL)));
    assert_true(is_ok(chat_encoder_create(&encoder, tokenizer, wording, NULL)));
    struct chat_tool tool = {.function = view_of_text("{\"name\":\"f\"}")};
    struct chat_message message = {
        .role = CHAT_SYSTEM,
        .content = view_of_text("s"),
        .tools = &tool,
        .tool_count = 1,
        .response_format = view_of_text("{}")};
    struct chat_request request = {
        .messages = &message, .message_count = 1, .options = {.effort = 33}};
    assert_true(is_ok(chat_render(&text, encoder, &request, NULL)));
    assert_string_equal(
        buffer_text(&text),
        "<｜begin▁of▁sentence｜><｜System｜>E 33 e\ns\n\n" WORDS_HEAD
        "{\"name\": \"f\"}" WORDS_TAIL WORDS_FORMAT "{}"
    );
}

static void constants_of_a_python_file_are_read_without_python(void **state) {
    (void)state;
    struct chat_wording_source source = our_source();
    CLEANUP(chat_wording_cleanup) struct chat_wording *wording = NULL;
    struct error error = {0};
    if (is_failed(chat_wording_parse_python(&wording, view_of_text(python), &source, &error))) {
        fail_msg("%s", error.message);
    }
    expect_words(wording);
}

static void other_words_are_refused_by_their_digest(void **state) {
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        struct chat_wording_source source = our_source();
        struct chat_wording_digest *const digests[] = {
            &source.effort_line, &source.tools_head, &source.tools_tail, &source.response_format};
        if (i < 4) {
            digests[i]->bytes += 1;
        } else {
            digests[i - 4]->sha256 =
                "0000000000000000000000000000000000000000000000000000000000000000";
        }
        struct chat_wording *wording = NULL;
        struct error error = {0};
        result parsed = chat_wording_parse_python(&wording, view_of_text(python), &source, &error);
        assert_int_equal(parsed.code, RESULT_CORRUPT);
        assert_null(wording);
        assert_non_null(strstr(error.message, "SHA-256"));
    }
}

/* The Python text with its first `from` replaced. */
static void replace(struct buffer *out, const char *from, const char *to) {
    struct view text = view_of_text(python);
    size_t at = view_find(text, view_of_text(from), 0);
    assert_true(at != SIZE_MAX);
    assert_true(is_ok(buffer_append(out, view_slice(text, 0, at), NULL)));
    assert_true(is_ok(buffer_append_text(out, to, NULL)));
    assert_true(is_ok(buffer_append(out, view_slice(text, at + strlen(from), SIZE_MAX), NULL)));
}

static void every_kind_of_damage_is_refused_with_its_reason(void **state) {
    (void)state;
    static const struct {
        const char *from;
        const char *to;
        enum result_code code;
        const char *part;
    } cases[] = {
        {"FORMAT = u", "FORMAT_ = u", RESULT_INVALID_INPUT, "no string constant FORMAT"},
        {"import json", "EFFORT = 'again'", RESULT_INVALID_INPUT, "assigned twice"},
        {"FORMAT = u'", "FORMAT = f'", RESULT_INVALID_INPUT, "formatted"},
        {"FORMAT = u'", "FORMAT = b'", RESULT_INVALID_INPUT, "bytes"},
        {"FORMAT = u'", "FORMAT = x + u'", RESULT_INVALID_INPUT, "no plain string"},
        {"'''{schema}'''", "'''{schema}''' + x", RESULT_INVALID_INPUT, "no plain string"},
        {"'''{schema}'''", "'''{schema}'''.x", RESULT_INVALID_INPUT, "no plain string"},
        {"'''{schema}'''", "'''{schema}''' if x else ''", RESULT_INVALID_INPUT, "no plain string"},
        {"' e\\n'\n)", "' e\\n'\n", RESULT_INVALID_INPUT, "no plain string"},
        {"' e\\n'\n)", "' e\\n',\n)", RESULT_INVALID_INPUT, "no plain string"},
        {"\"\"\"\nFORMAT", "\nFORMAT", RESULT_INVALID_INPUT, "not closed"},
        {"u'R:'", "u'R:", RESULT_INVALID_INPUT, "not closed"},
        {"{dsml_token}", "{dsml}", RESULT_INVALID_INPUT, "{dsml}"},
        {"{budget}", "{n}", RESULT_INVALID_INPUT, "{n}"},
        {"{budget}", "", RESULT_INVALID_INPUT, "no place {budget}"},
        {"{budget}", "{budget}{budget}", RESULT_INVALID_INPUT, "there twice"},
        {"{budget}", "{{n}}{budget}", RESULT_INVALID_INPUT, "once"},
        {"{budget}", "{budget", RESULT_INVALID_INPUT, "brace"},
        {"{budget}", "}{budget}", RESULT_INVALID_INPUT, "brace"},
        {"{budget}", "{}", RESULT_INVALID_INPUT, "{}"},
        {"{schema}", "{schema}.", RESULT_INVALID_INPUT, "after its place"},
        {"\\x65", "\\x6", RESULT_INVALID_INPUT, "digits"},
        {"\\x65", "\\ud800", RESULT_INVALID_INPUT, "no character"},
        {"\\x65", "\\0", RESULT_INVALID_INPUT, "no character"},
        {"\\x65", "\\U00110000", RESULT_INVALID_INPUT, "no character"},
        {"\\x65", "\\N{DASH}", RESULT_INVALID_INPUT, "by name"},
        {"\\x65", "\\q", RESULT_CORRUPT, "tail"},
        {"\\x65", "\xFF", RESULT_INVALID_INPUT, "UTF-8"},
        {"## T", "## U", RESULT_CORRUPT, "head"},
        {"\"E {", "\"F {", RESULT_CORRUPT, "effort line"},
        {"u'R:'", "u'R;'", RESULT_CORRUPT, "response-format"},
        {"u'R:'", "ur'R:\\n'", RESULT_CORRUPT, "response-format"},
    };
    struct chat_wording_source source = our_source();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
        struct chat_wording *wording = NULL;
        struct error error = {0};
        replace(&text, cases[i].from, cases[i].to);
        result parsed = chat_wording_parse_python(&wording, buffer_view(&text), &source, &error);
        if (parsed.code != cases[i].code || wording != NULL ||
            strstr(error.message, cases[i].part) == NULL) {
            fail_msg(
                "'%s' for '%s': %d %s", cases[i].to, cases[i].from, parsed.code, error.message
            );
        }
    }
}

static void every_cut_and_every_changed_byte_gives_the_same_words_or_a_refusal(void **state) {
    (void)state;
    struct chat_wording_source source = our_source();
    size_t length = sizeof python - 1;
    size_t accepted = 0;
    for (size_t i = 0; i < length; i++) {
        CLEANUP(chat_wording_cleanup) struct chat_wording *cut = NULL;
        struct error error = {0};
        if (is_ok(chat_wording_parse_python(&cut, view_of(python, i), &source, &error))) {
            expect_words(cut);
        }
        for (unsigned bit = 0; bit < 8; bit++) {
            char text[sizeof python];
            CLEANUP(chat_wording_cleanup) struct chat_wording *changed = NULL;
            memcpy(text, python, sizeof python);
            text[i] = (char)(text[i] ^ (int)(1U << bit));
            if (is_ok(chat_wording_parse_python(&changed, view_of(text, length), &source, NULL))) {
                expect_words(changed);
                accepted += 1;
            }
        }
    }
    assert_true(accepted > 0 && accepted < length * 8);
}

static void absurd_sizes_are_refused(void **state) {
    (void)state;
    struct chat_wording_source source = our_source();
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 22};
    struct chat_wording *wording = NULL;
    struct error error = {0};
    assert_true(is_ok(buffer_append_text(&text, "EFFORT = '", NULL)));
    for (size_t i = 0; i < 100000; i++) {
        assert_true(is_ok(buffer_append_byte(&text, 'x', NULL)));
    }
    assert_true(is_ok(buffer_append_text(&text, "'\n", NULL)));
    result parsed = chat_wording_parse_python(&wording, buffer_view(&text), &source, &error);
    assert_int_equal(parsed.code, RESULT_LIMIT);
    for (size_t i = 0; i < 1 << 20; i++) {
        assert_true(is_ok(buffer_append_byte(&text, '\n', NULL)));
    }
    parsed = chat_wording_parse_python(&wording, buffer_view(&text), &source, &error);
    assert_int_equal(parsed.code, RESULT_INVALID_INPUT);
    parsed = chat_wording_parse_python(&wording, view_of_text(""), &source, &error);
    assert_int_equal(parsed.code, RESULT_INVALID_INPUT);
    assert_null(wording);
}

/* ---- chat.json and directories ---- */

static void chat_json_needs_its_three_texts(void **state) {
    (void)state;
    static const struct {
        const char *json;
        const char *part; /* null: accepted */
    } cases[] = {
        {"{\"effort_line\":\"{n}\",\"tools_head\":\"a\",\"tools_tail\":\"b\"}", NULL},
        {"{\"effort_line\":\"{n}\",\"tools_head\":\"a\",\"tools_tail\":\"b\",\"more\":1}", NULL},
        {"{\"effort_line\":\"n\",\"tools_head\":\"a\",\"tools_tail\":\"b\"}", "{n} once"},
        {"{\"effort_line\":\"{n}{n}\",\"tools_head\":\"a\",\"tools_tail\":\"b\"}", "{n} once"},
        {"{\"effort_line\":\"{n}\",\"tools_tail\":\"b\"}", "tools_head"},
        {"{\"effort_line\":\"{n}\",\"tools_head\":\"a\",\"tools_tail\":7}", "tools_tail"},
        {"{\"effort_line\":\"{n}\",\"tools_head\":\"a\",\"tools_tail\":\"b\",\"response_format_"
         "head\":null}",
         "response_format_head"},
        {"[]", "effort_line"},
        {"{", "chat.json"},
        {"", "chat.json"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(chat_wording_cleanup) struct chat_wording *wording = NULL;
        struct error error = {0};
        result parsed = chat_wording_parse_json(&wording, view_of_text(cases[i].json), &error);
        if (cases[i].part == NULL) {
            assert_true(is_ok(parsed));
        } else if (is_ok(parsed) || strstr(error.message, cases[i].part) == NULL) {
            fail_msg("%s: %s", cases[i].json, error.message);
        }
    }
}

static void write_file(const char *folder, const char *name, const char *text) {
    char path[512];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_true(length > 0 && (size_t)length < sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_file(const char *folder, const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(remove(path), 0);
}

static void directory_gives_chat_json_first_then_the_python_file(void **state) {
    (void)state;
    char folder[] = "/tmp/hearth-wording-XXXXXX";
    char encoding[64];
    struct chat_wording_source source = our_source();
    struct error error = {0};
    struct chat_wording *none = NULL;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chat_wording_load(&none, folder, &source, &error).code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, folder));
    (void)snprintf(encoding, sizeof encoding, "%s/encoding", folder);
    assert_int_equal(mkdir(encoding, 0700), 0);
    write_file(folder, "encoding/encoding.py", python);
    CLEANUP(chat_wording_cleanup) struct chat_wording *from_python = NULL;
    assert_true(is_ok(chat_wording_load(&from_python, folder, &source, &error)));
    expect_words(from_python);
    // With the released digests our words are not the released model's.
    assert_true(is_failed(chat_wording_load(&none, folder, NULL, &error)));
    write_file(folder, "chat.json", "{\"effort_line\":\"x\"}");
    assert_int_equal(chat_wording_load(&none, folder, &source, &error).code, RESULT_INVALID_INPUT);
    remove_file(folder, "chat.json");
    remove_file(folder, "encoding/encoding.py");
    remove_file(folder, "encoding");
    assert_int_equal(rmdir(folder), 0);
    assert_null(none);
}

static void bundled_wording_has_the_published_digests(void **state) {
    (void)state;
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    struct chat_wording *wording = NULL;
    struct error error = {0};
    const char *path = TEST_SOURCE_DIR "/examples/mini/model/chat.json";
    assert_true(is_ok(file_read(path, &file, NULL)));
    assert_true(is_ok(json_parse(buffer_view(&file), NULL, &document, NULL)));
    // The bundled words as the released file would hold them, but for the response format, which
    // the bundled model lacks: everything before it must pass.
    static const char *const names[][3] = {
        {"REASONING_EFFORT_TEMPLATE", "effort_line", NULL},
        {"TOOLS_TEMPLATE", "tools_head", "tools_tail"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_true(is_ok(buffer_append_format(&text, NULL, "%s = r'''", names[i][0])));
        for (size_t j = 1; j < 3 && names[i][j] != NULL; j++) {
            struct view words;
            assert_true(is_ok(json_get_string(json_root(document), names[i][j], &words, NULL)));
            size_t at = i == 0 ? view_find(words, view_of_text("{n}"), 0) : words.length;
            assert_true(is_ok(buffer_append(&text, view_slice(words, 0, at), NULL)));
            const char *place = i == 0 ? "{budget}" : j == 1 ? "{tool_schemas}" : "";
            assert_true(is_ok(buffer_append_text(&text, place, NULL)));
            assert_true(is_ok(buffer_append(&text, view_slice(words, at + 3, SIZE_MAX), NULL)));
        }
        assert_true(is_ok(buffer_append_text(&text, "'''\n", NULL)));
    }
    assert_true(is_ok(buffer_append_text(&text, "response_format_template = '{schema}'\n", NULL)));
    result parsed = chat_wording_parse_python(&wording, buffer_view(&text), NULL, &error);
    assert_int_equal(parsed.code, RESULT_CORRUPT);
    assert_non_null(strstr(error.message, "response-format text"));
    assert_null(wording);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constants_of_a_python_file_are_read_without_python),
        cmocka_unit_test(other_words_are_refused_by_their_digest),
        cmocka_unit_test(every_kind_of_damage_is_refused_with_its_reason),
        cmocka_unit_test(every_cut_and_every_changed_byte_gives_the_same_words_or_a_refusal),
        cmocka_unit_test(absurd_sizes_are_refused),
        cmocka_unit_test(chat_json_needs_its_three_texts),
        cmocka_unit_test(directory_gives_chat_json_first_then_the_python_file),
        cmocka_unit_test(bundled_wording_has_the_published_digests),
    };
    return cmocka_run_group_tests_name("chat wording", tests, NULL, NULL);
}
