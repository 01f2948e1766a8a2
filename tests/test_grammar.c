/* The language of a schema: what it holds, what it does not, what is refused, and that masks are
 * exactly the tokens that can follow. */
#include "grammar_support.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/grammar_internal.h"

#define END 1 /* end-of-sequence token of the bundled model */

/* ---- tables ---- */

struct language {
    const char *schema;
    const char *in[8];
    const char *out[8];
};

static const struct language languages[] = {
    {"{\"type\": \"string\"}",
     {"\"\"", "\"a b\"", "\"\\n\\u0041\\\\\\\"\\/\"", "\"\\ud83d\\ude00\"", "\"é😀\"", "\"\x7F\""},
     {"", "\"", "\"\n\"", "\"\\u0000\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\\x\"", "a"}},
    {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
     {"\"ab\"", "\"éé\"", "\"a\\n\\u0041\"", "\"😀😀😀\"", "\"\\ud83d\\ude00x\""},
     {"\"a\"", "\"abcd\"", "\"\"", "\"ab"}},
    {"{\"type\": \"string\", \"maxLength\": 0}", {"\"\""}, {"\"a\""}},
    {"{\"type\": \"integer\"}",
     {"0", "-1", "12", "999999999999999999"},
     {"-0", "01", "1.0", "1e2", "", "-", "1000000000000000000", "+1"}},
    {"{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 123}",
     {"7", "9", "10", "99", "100", "119", "123"},
     {"6", "0", "124", "130", "200", "-7", "07", "1230"}},
    {"{\"type\": \"integer\", \"minimum\": -12, \"exclusiveMaximum\": 3}",
     {"-12", "-1", "0", "2", "-9"},
     {"-13", "3", "-0", "-20", "10"}},
    {"{\"type\": \"integer\", \"minimum\": 0.5, \"maximum\": 1.5}", {"1"}, {"0", "2"}},
    {"{\"type\": \"integer\", \"maximum\": -5}", {"-5", "-123"}, {"-4", "0", "5"}},
    {"{\"type\": \"number\"}",
     {"0", "-0", "1.5", "-0.25", "1e5", "2.5E-10", "12e+16"},
     {"1.", ".5", "1e", "1e123", "00", "1e+"}},
    {"{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}",
     {"0", "0.5", "1", "1.0", "0.0", "0.999"},
     {"1.1", "-0.5", "2", "1.01", "-1"}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": -2, \"exclusiveMaximum\": 2}",
     {"-1.9", "-0.5", "0", "1", "1.99", "-1"},
     {"-2", "2", "2.0", "-2.0", "3"}},
    {"{\"type\": \"number\", \"exclusiveMinimum\": 0}",
     {"0.5", "0.0001", "1", "99.25"},
     {"0", "0.0", "0.00", "-1"}},
    {"{\"type\": \"boolean\"}", {"true", "false"}, {"null", "True", "t"}},
    {"{\"type\": [\"string\", \"null\"]}", {"null", "\"x\""}, {"1", "nul"}},
    {"{\"type\": \"integer\", \"nullable\": true}", {"null", "3"}, {"\"x\""}},
    {"{\"enum\": [\"a\", 1, null, [1, {\"b\": 2.50}], \"é\\n\"]}",
     {"\"a\"", "1", "null", "[1, {\"b\": 2.5}]", "\"é\\n\""},
     {"\"b\"", "2", "[1,{\"b\":2.5}]", "\"a"}},
    {"{\"type\": \"string\", \"enum\": [\"a\", 1]}", {"\"a\""}, {"1"}},
    {"{\"const\": {\"x\": []}}", {"{\"x\": []}"}, {"{}"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 3}",
     {"[1]", "[1, 2]", "[1, 2, 3]"},
     {"[]", "[1, 2, 3, 4]", "[1,2]", "[1, ]", "[\"a\"]"}},
    {"{\"type\": \"array\", \"items\": {\"type\": \"boolean\"}}",
     {"[]", "[true]", "[true, false, true, true]"},
     {"[, true]", "[true", "[1]"}},
    {"{\"type\": \"array\", \"items\": {\"const\": 1}, \"minItems\": 2}",
     {"[1, 1]", "[1, 1, 1, 1]"},
     {"[1]", "[]"}},
    {"{\"type\": \"array\", \"maxItems\": 0}", {"[]"}, {"[1]"}},
    {"{\"type\": \"array\", \"prefixItems\": [{\"const\": 1}, {\"type\": \"string\"}]}",
     {"[]", "[1]", "[1, \"a\"]"},
     {"[\"a\"]", "[1, \"a\", 2]"}},
    {"{\"prefixItems\": [{\"const\": 1}], \"items\": {\"const\": 2}, \"minItems\": 2}",
     {"[1, 2]", "[1, 2, 2]"},
     {"[1]", "[2, 2]", "[1, 1]"}},
    {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"const\": "
     "1},"
     " \"c\": {\"type\": \"string\"}}, \"required\": [\"b\"]}",
     {"{\"a\": 1, \"b\": 1, \"c\": \"x\"}",
      "{\"b\": 1}",
      "{\"a\": 5, \"b\": 1}",
      "{\"b\": 1, \"c\": \"\"}"},
     {"{}",
      "{\"a\": 1}",
      "{\"b\": 1, \"a\": 1}",
      "{\"b\": 1,\"c\": \"\"}",
      "{, \"b\": 1}",
      "{\"b\": 1, \"d\": 1}",
      "{\"b\": 1, }"}},
    {"{\"properties\": {\"a\": {\"const\": 1}, \"b\": {\"const\": 2}}}",
     {"{}", "{\"a\": 1}", "{\"b\": 2}", "{\"a\": 1, \"b\": 2}"},
     {"{, \"b\": 2}", "{\"b\": 2, \"a\": 1}"}},
    {"{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}",
     {"{}", "{\"x\": 1}", "{\"x\": 1, \"y z\": -5}"},
     {"{\"x\": \"1\"}", "{x: 1}"}},
    {"{\"type\": \"object\", \"additionalProperties\": false}", {"{}"}, {"{\"a\": 1}"}},
    {"{\"anyOf\": [{\"type\": \"integer\"}, {\"const\": \"auto\"}]}", {"5", "\"auto\""}, {"\"a\""}},
    {"{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"string\", \"maxLength\": 1}]}",
     {"5", "\"a\"", "\"\""},
     {"\"ab\"", "null"}},
    {"{\"$defs\": {\"n\": {\"type\": \"integer\"}, \"a/b~\": {\"const\": 7}}, \"type\": \"array\","
     " \"items\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"$ref\": \"#/$defs/a~1b~0\"}]}}",
     {"[1, 2]", "[7]", "[]"},
     {"[\"x\"]"}},
    {"{\"allOf\": [{\"type\": \"integer\"}], \"description\": \"d\"}", {"1"}, {"\"1\""}},
    {"true",
     {"null", "[1, {\"a\": []}]", "{\"a\": \"b\", \"c\": {}}", "\"x\"", "-1.5e3", "[[[[]]]]"},
     {"[1,2]", "{a: 1}", "[[[[[[]]]]]]"}},
    {"{}", {"0", "{}"}, {"", "nul"}},
};

static struct grammar *compile(const char *schema) {
    struct error error = {0};
    struct grammar *grammar = NULL;
    if (is_failed(grammar_test_compile(&grammar, grammar_test_vocabulary(), schema, &error))) {
        fail_msg("%s: %s", schema, error.message);
    }
    return grammar;
}

static void check_language(const struct language *language) {
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(language->schema);
    for (size_t i = 0; i < 8 && language->in[i] != NULL; i++) {
        if (!grammar_test_accepts(grammar, view_of_text(language->in[i]))) {
            fail_msg("%s does not hold %s", language->schema, language->in[i]);
        }
    }
    for (size_t i = 0; i < 8 && language->out[i] != NULL; i++) {
        if (grammar_test_accepts(grammar, view_of_text(language->out[i]))) {
            fail_msg("%s holds %s", language->schema, language->out[i]);
        }
    }
}

static void schema_language_holds_what_fits(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(languages); i++) {
        check_language(&languages[i]);
    }
}

static const struct language patterns[] = {
    {"^[a-z]+$", {"a", "abc"}, {"", "A", "a1", "ab "}},
    {"b+", {"b", "abba", "xb\\ny"}, {"", "aca"}},
    {"^a|b$", {"a", "axx", "b", "xxb"}, {"xa", "bx", ""}},
    {"^(foo|ba[rz])?-\\d{2,3}$", {"-12", "foo-123", "baz-00"}, {"foo", "bar-1", "bax-12", "-1234"}},
    {"^\\w+@\\w+\\.com$", {"a_b@c9.com"}, {"a@b.org", "@b.com", "a@bXcom"}},
    {"^[^\\d\\s]*$", {"", "abé😀", "-"}, {"a1", " ", "\\n", "\\t"}},
    {"^.$", {"a", "é", "😀", "\\\"", "\\\\", "\\u0001"}, {"", "ab", "\\n", "\""}},
    {"^[\\x41-\\u0043é-ü]{2}$", {"AC", "éü", "Bö"}, {"AD", "è", "e"}},
    {"^[a\\-\\]]+$", {"a-]", "-"}, {"b", "\\\\"}},
    {"^(?:a{0}b{0,2}){2}$", {"", "b", "bbbb"}, {"bbbbb", "a"}},
    {"^(a*)*$", {"", "aaa"}, {"b"}},
    {"^x{3,}?$", {"xxx", "xxxxx"}, {"xx"}},
    {"^\\$\\^\\/\\.$", {"$^/."}, {"$^/x"}},
    {"", {"", "anything"}, {"\""}},
    {"^[\\u4e00-\\u9fff]$", {"你"}, {"a", "あ"}},
    {"^[^a]$", {"b", "\\n", "\\\"", "￿", "\xF4\x8F\xBF\xBF"}, {"a", "\xED\xA0\x80", "\xC0\x80"}},
};

/* `in` and `out` as they stand between the quotation marks. */
static void patterns_hold_what_matches(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        CLEANUP(buffer_deinit) struct buffer schema = {NULL, 0, 0, 1 << 16};
        struct json_writer writer;
        json_writer_init(&writer, &schema, NULL);
        json_write_object_begin(&writer);
        json_write_key(&writer, "pattern");
        json_write_text(&writer, patterns[i].schema);
        json_write_object_end(&writer);
        assert_true(is_ok(json_writer_finish(&writer)));
        CLEANUP(grammar_cleanup) struct grammar *grammar = compile(buffer_text(&schema));
        for (size_t j = 0; j < 16; j++) {
            const char *text = j < 8 ? patterns[i].in[j] : patterns[i].out[j - 8];
            CLEANUP(buffer_deinit) struct buffer quoted = {NULL, 0, 0, 1 << 16};
            if (text == NULL) {
                continue;
            }
            assert_true(is_ok(buffer_append_format(&quoted, NULL, "\"%s\"", text)));
            if (grammar_test_accepts(grammar, buffer_view(&quoted)) != (j < 8)) {
                fail_msg("pattern %s, %s: wanted %d", patterns[i].schema, text, j < 8);
            }
        }
    }
}

/* ---- refusals ---- */

static const struct {
    const char *schema;
    enum result_code code;
    const char *message; /* a part of it */
} refusals[] = {
    {"{\"properties\": {\"x\": {\"patternProperties\": {}}}}",
     RESULT_UNSUPPORTED,
     "schema at /properties/x: keyword \"patternProperties\" is not supported"},
    {"{\"not\": {}}", RESULT_UNSUPPORTED, "schema: keyword \"not\" is not supported"},
    {"{\"type\": \"array\", \"items\": {\"if\": {}}}",
     RESULT_UNSUPPORTED,
     "schema at /items: keyword \"if\" is not supported"},
    {"{\"anyOf\": [{}, {\"type\": \"integer\", \"multipleOf\": 2}]}",
     RESULT_UNSUPPORTED,
     "schema at /anyOf/1: keyword \"multipleOf\" is not supported"},
    {"{\"type\": \"array\", \"uniqueItems\": true}", RESULT_UNSUPPORTED, "\"uniqueItems\""},
    {"{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}",
     RESULT_UNSUPPORTED,
     "keyword \"oneOf\": a value could fit both 0 and 1"},
    {"{\"allOf\": [{}, {}]}", RESULT_UNSUPPORTED, "keyword \"allOf\" of 2 schemas; 1 is supported"},
    {"{\"type\": \"string\", \"anyOf\": [{}]}",
     RESULT_UNSUPPORTED,
     "keyword \"type\" beside \"anyOf\" is not supported"},
    {"{\"type\": \"string\", \"enum\": [\"a\"], \"minLength\": 1}",
     RESULT_UNSUPPORTED,
     "keyword \"minLength\" beside \"enum\" is not supported"},
    {"{\"pattern\": \"a\", \"maxLength\": 4}",
     RESULT_UNSUPPORTED,
     "keyword \"maxLength\" beside \"pattern\" is not supported"},
    {"{\"$ref\": \"http://x/y\"}", RESULT_UNSUPPORTED, "outside of the document"},
    {"{\"$ref\": \"#/$defs/x\"}", RESULT_INVALID_INPUT, "'#/$defs/x' is not in the document"},
    {"{\"$ref\": \"#\"}", RESULT_LIMIT, "keyword \"$ref\" to '#' is recursive"},
    {"{\"$defs\": {\"t\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/u\"}},"
     " \"u\": {\"$ref\": \"#/$defs/t\"}}, \"$ref\": \"#/$defs/t\"}",
     RESULT_LIMIT,
     "'#/$defs/t' is recursive; 0 levels"},
    {"{\"type\": \"strin\"}", RESULT_INVALID_INPUT, "type \"strin\" is not known"},
    {"{\"type\": 5}", RESULT_INVALID_INPUT, "type 5 is not known"},
    {"[]", RESULT_INVALID_INPUT, "schema: an array instead of an object"},
    {"{\"properties\": {\"a\": false}}", RESULT_INVALID_INPUT, "at /properties/a: false: no value"},
    {"{\"properties\": {\"a\": {}}, \"required\": [\"b\"]}",
     RESULT_UNSUPPORTED,
     "\"required\" names \"b\""},
    {"{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}",
     RESULT_INVALID_INPUT,
     "no number lies within the bounds"},
    {"{\"type\": \"number\", \"exclusiveMinimum\": 3, \"maximum\": 3}",
     RESULT_INVALID_INPUT,
     "no number lies within"},
    {"{\"type\": \"number\", \"minimum\": 0.5}",
     RESULT_UNSUPPORTED,
     "keyword \"minimum\" is 0.5; for type \"number\" only whole bounds"},
    {"{\"type\": \"integer\", \"minimum\": 1e30}", RESULT_LIMIT, "at most 9e17 is supported"},
    {"{\"exclusiveMinimum\": true}", RESULT_INVALID_INPUT, "\"exclusiveMinimum\" is no number"},
    {"{\"minLength\": 3, \"maxLength\": 2}",
     RESULT_INVALID_INPUT,
     "minLength 3 is above maxLength 2"},
    {"{\"maxLength\": 20000}", RESULT_LIMIT, "\"maxLength\" is 20000; at most 16384 is supported"},
    {"{\"minItems\": 3, \"maxItems\": 2}", RESULT_INVALID_INPUT, "at least 3 items, at most 2"},
    {"{\"minItems\": 2000}", RESULT_LIMIT, "\"minItems\" is 2000; at most 1024 is supported"},
    {"{\"minItems\": -1}", RESULT_INVALID_INPUT, "\"minItems\" is no count"},
    {"{\"enum\": []}", RESULT_INVALID_INPUT, "holds no value of the type"},
    {"{\"type\": \"integer\", \"enum\": [\"a\"]}",
     RESULT_INVALID_INPUT,
     "holds no value of the type"},
    {"{\"type\": \"array\", \"items\": [{}]}", RESULT_UNSUPPORTED, "use \"prefixItems\""},
    {"{\"minLength\": 1, \"minimum\": 1}", RESULT_UNSUPPORTED, "several types without \"type\""},
    {"{\"pattern\": \"(?=a)\"}", RESULT_UNSUPPORTED, "look-around or named group is not supported"},
    {"{\"pattern\": \"\\\\bx\"}", RESULT_UNSUPPORTED, "byte 1: this escape is not supported"},
    {"{\"pattern\": \"(^a)\"}", RESULT_UNSUPPORTED, "'^' but at the beginning"},
    {"{\"pattern\": \"(a\"}", RESULT_INVALID_INPUT, "a group is not closed"},
    {"{\"pattern\": \"[b-a]\"}", RESULT_INVALID_INPUT, "a range of characters that is none"},
    {"{\"pattern\": \"a{2000}\"}", RESULT_LIMIT, "a quantifier above 1024"},
    {"{\"pattern\": \"((a{1000}){1000}){1000}\"}", RESULT_LIMIT, "more than"},
};

static void schema_that_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        struct error error = {0};
        struct grammar *grammar = NULL;
        result status =
            grammar_test_compile(&grammar, grammar_test_vocabulary(), refusals[i].schema, &error);
        if (status.code != refusals[i].code || strstr(error.message, refusals[i].message) == NULL) {
            grammar_destroy(grammar);
            fail_msg("%s: %d '%s'", refusals[i].schema, (int)status.code, error.message);
        }
    }
}

/* {"items": {"items": ... {}}} and the like. */
static void schema_too_deep_or_large_is_refused_with_numbers(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    struct error error = {0};
    struct grammar *grammar = NULL;
    for (int i = 0; i < 26; i++) {
        assert_true(is_ok(buffer_append_text(&text, "{\"items\": ", NULL)));
    }
    assert_true(is_ok(buffer_append_text(&text, "{\"const\": 1}", NULL)));
    for (int i = 0; i < 26; i++) {
        assert_true(is_ok(buffer_append_text(&text, "}", NULL)));
    }
    const struct grammar_vocabulary *vocabulary = grammar_test_vocabulary();
    result status = grammar_test_compile(&grammar, vocabulary, buffer_text(&text), &error);
    assert_int_equal(status.code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "more than 24 levels deep"));
    // References that double at each step: 2^30 subschemas.
    buffer_clear(&text);
    assert_true(is_ok(buffer_append_text(&text, "{\"$ref\": \"#/$defs/a0\", \"$defs\": {", NULL)));
    for (int i = 0; i < 30; i++) {
        assert_true(is_ok(buffer_append_format(
            &text,
            NULL,
            "\"a%d\": {\"anyOf\": [{\"$ref\": \"#/$defs/a%d\"}, {\"$ref\": \"#/$defs/a%d\"}]}, ",
            i,
            i + 1,
            i + 1
        )));
    }
    assert_true(is_ok(buffer_append_text(&text, "\"a30\": {\"const\": 1}}}", NULL)));
    status = grammar_test_compile(&grammar, vocabulary, buffer_text(&text), &error);
    assert_int_equal(status.code, RESULT_LIMIT);
    if (strstr(error.message, "more than 16384 subschemas") == NULL) {
        fail_msg("%s", error.message);
    }
    // Nested arrays of fixed length: 1024^3 elements.
    status = grammar_test_compile(
        &grammar,
        vocabulary,
        "{\"minItems\": 1024, \"items\": {\"minItems\": 1024, \"items\": {\"minItems\": 1024}}}",
        &error
    );
    assert_int_equal(status.code, RESULT_LIMIT);
}

/* ---- masks ---- */

static const char *const walked[] = {
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12},"
    " \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 150}, \"tags\": {\"type\": "
    "\"array\","
    " \"items\": {\"enum\": [\"red\", \"green\", \"blue\"]}, \"maxItems\": 4}, \"p\": {\"type\": "
    "\"number\"}},"
    " \"required\": [\"name\", \"tags\"]}",
    "{\"type\": \"array\", \"items\": {\"anyOf\": [{\"type\": \"string\", \"minLength\": 3}, "
    "{\"type\": "
    "\"null\"}, {\"type\": \"string\", \"maxLength\": 2}, {\"type\": \"integer\"}]}, \"minItems\": "
    "1}",
    "{\"type\": \"string\", \"pattern\": \"^[a-z]{1,8}(-[0-9]+)?$\"}",
    "{}",
    "{\"$defs\": {\"p\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"number\", "
    "\"minimum\": "
    "-1, \"maximum\": 1}, \"y\": {\"type\": \"number\", \"exclusiveMinimum\": 0}}, \"required\": "
    "[\"x\", "
    "\"y\"]}}, \"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/p\"}, \"b\": "
    "{\"$ref\": "
    "\"#/$defs/p\"}, \"m\": {\"type\": \"object\", \"additionalProperties\": {\"type\": "
    "\"boolean\"}}}}",
    "{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"a\"}, \"v\": "
    "{\"type\": "
    "\"integer\", \"minimum\": -1000}}, \"required\": [\"kind\", \"v\"]}, {\"type\": \"object\", "
    "\"properties\": {\"kind\": {\"const\": \"b\"}, \"w\": {\"type\": \"string\"}}, \"required\": "
    "[\"kind\"]}]}",
    "{\"type\": \"string\", \"minLength\": 5, \"maxLength\": 40}",
    "{\"type\": \"string\", \"minLength\": 6}",
    "{\"type\": \"string\", \"minLength\": 9, \"maxLength\": 3000}",
    "{\"prefixItems\": [{\"type\": \"boolean\"}, {\"type\": [\"null\", \"number\"]}], \"items\": "
    "{\"const\": \"z\"}, \"minItems\": 2, \"maxItems\": 5}",
};

static size_t walk_count(void) {
    const char *text = getenv("HEARTH_TEST_WALKS");
    return text != NULL ? (size_t)strtoul(text, NULL, 10) : 60;
}

/* Free objects may repeat a name, which no parser of ours takes; see schema.h. */
static bool repeats_name(const struct error *error) {
    return strstr(error->message, "twice") != NULL || strstr(error->message, "duplicate") != NULL;
}

static void check_walk(struct json_value schema, struct view text, uint64_t seed) {
    CLEANUP(json_cleanup) struct json_document *value = NULL;
    struct error error = {0};
    if (is_failed(json_parse(text, NULL, &value, &error))) {
        if (!repeats_name(&error)) {
            fail_msg("seed %" PRIu64 ": %s: %s", seed, error.message, (const char *)text.data);
        }
        return;
    }
    if (!grammar_test_validate(schema, schema, json_root(value))) {
        fail_msg("seed %" PRIu64 ": does not fit: %s", seed, (const char *)text.data);
    }
}

static void walk_through_masks_gives_what_fits(void **state) {
    (void)state;
    size_t finished = 0;
    size_t walks = walk_count();
    for (size_t i = 0; i < COUNT_OF(walked); i++) {
        CLEANUP(grammar_cleanup) struct grammar *grammar = compile(walked[i]);
        CLEANUP(json_cleanup) struct json_document *schema = NULL;
        assert_true(is_ok(json_parse(view_of_text(walked[i]), NULL, &schema, NULL)));
        for (uint64_t seed = 0; seed < walks; seed++) {
            CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
            if (grammar_test_walk(&walk, grammar, grammar_test_vocabulary(), END, seed, 2000)) {
                finished += 1;
                check_walk(json_root(schema), buffer_view(&walk.text), seed);
            }
        }
    }
    assert_true(finished * 10 > walks * COUNT_OF(walked) * 9);
}

/* Along walks every mask is compared with trying each token alone. */
static void mask_is_what_can_be_advanced_over(void **state) {
    (void)state;
    const struct grammar_vocabulary *vocabulary = grammar_test_vocabulary();
    for (size_t i = 0; i < COUNT_OF(walked); i++) {
        CLEANUP(grammar_cleanup) struct grammar *grammar = compile(walked[i]);
        for (uint64_t seed = 100; seed < 102; seed++) {
            CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
            (void)grammar_test_walk(&walk, grammar, vocabulary, END, seed, 60);
            uint32_t at = grammar_start(grammar);
            for (size_t t = 0; t < walk.ids.count && walk.ids.ids[t] != END; t++) {
                grammar_test_check_mask(grammar, vocabulary, at);
                assert_true(is_ok(grammar_advance(grammar, &at, walk.ids.ids[t], NULL)));
            }
            grammar_test_check_mask(grammar, vocabulary, at);
        }
    }
}

/* The mask admits each token of a text that fits, however the text is cut into tokens. */
static void text_that_fits_is_admitted_in_any_tokens(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"name\": \"Zoë \\\"x\\\"\", \"age\": 42, \"tags\": [\"red\", \"blue\"], \"p\": -1.5e-3}",
        "{\"name\": \"\", \"tags\": []}"};
    const struct grammar_vocabulary *vocabulary = grammar_test_vocabulary();
    CLEANUP(grammar_cleanup) struct grammar *grammar = compile(walked[0]);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct view text = view_of_text(texts[i]);
        for (uint64_t seed = 0; seed < 20; seed++) {
            uint64_t random = seed;
            uint32_t at = grammar_start(grammar);
            for (size_t from = 0; from < text.length;) {
                // A token that the text goes on with: one of them, chosen at random.
                int32_t chosen = -1;
                size_t seen = 0;
                for (size_t id = 0; id < grammar_vocabulary_ids(vocabulary); id++) {
                    struct view bytes = grammar_vocabulary_token(vocabulary, (int32_t)id);
                    bool goes_on = bytes.length > 0 && vocabulary->is_control[id] == 0 &&
                                   view_starts_with(view_slice(text, from, SIZE_MAX), bytes);
                    seen += goes_on ? 1 : 0;
                    if (goes_on && grammar_test_random(&random) % seen == 0) {
                        chosen = (int32_t)id;
                    }
                }
                const uint64_t *mask = NULL;
                assert_true(is_ok(grammar_mask(grammar, at, &mask, NULL)));
                assert_true(chosen >= 0 && grammar_test_has(mask, chosen));
                assert_true(is_ok(grammar_advance(grammar, &at, chosen, NULL)));
                from += grammar_vocabulary_token(vocabulary, chosen).length;
            }
            assert_true(grammar_may_end(grammar, at));
        }
    }
}

/* Twins, ids without bytes, bytes inside characters, ids behind the tokenizer's, long tokens. */
static void masks_of_an_odd_vocabulary_are_right(void **state) {
    (void)state;
    CLEANUP(grammar_vocabulary_cleanup)
    struct grammar_vocabulary *vocabulary = grammar_test_synthetic(6000, 7);
    for (size_t i = 0; i < COUNT_OF(walked); i += 3) {
        CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
        assert_true(is_ok(grammar_test_compile(&grammar, vocabulary, walked[i], NULL)));
        CLEANUP(grammar_walk_deinit) struct grammar_walk walk = {0};
        (void)grammar_test_walk(&walk, grammar, vocabulary, END, 5, 40);
        uint32_t at = grammar_start(grammar);
        for (size_t t = 0; t < walk.ids.count && walk.ids.ids[t] != END; t++) {
            grammar_test_check_mask(grammar, vocabulary, at);
            assert_true(is_ok(grammar_advance(grammar, &at, walk.ids.ids[t], NULL)));
        }
    }
}

static void state_without_a_token_is_an_error_that_says_what_is_expected(void **state) {
    (void)state;
    struct grammar_token tokens[] = {
        {view_of_text("\""), false}, {view_of_text("<end>"), true}, {view_of_text("ab"), false}};
    CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(grammar_vocabulary_create_from(&vocabulary, tokens, 3, NULL)));
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    assert_true(is_ok(grammar_test_compile(&grammar, vocabulary, "{\"const\": \"abc\"}", NULL)));
    uint32_t at = grammar_start(grammar);
    const uint64_t *mask = NULL;
    struct error error = {0};
    assert_true(is_ok(grammar_mask(grammar, at, &mask, &error)));
    assert_int_equal(mask[0], 1);
    assert_true(is_ok(grammar_advance(grammar, &at, 0, &error)));
    assert_true(is_ok(grammar_advance(grammar, &at, 2, &error)));
    assert_int_equal(grammar_mask(grammar, at, &mask, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "the grammar allows no token here"));
    assert_non_null(strstr(error.message, "0x63"));
    uint32_t before = at;
    assert_int_equal(grammar_advance(grammar, &at, 0, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "does not allow token 0"));
    assert_int_equal(at, before);
    assert_int_equal(grammar_advance(grammar, &at, 3, &error).code, RESULT_INVALID_INPUT);
}

/* A long string's states share one mask but near the limits. */
static void masks_are_shared_by_states_that_tokens_cannot_tell_apart(void **state) {
    (void)state;
    CLEANUP(grammar_cleanup)
    struct grammar *grammar = compile("{\"type\": \"string\", \"maxLength\": 3000}");
    uint32_t at = grammar_start(grammar);
    const uint64_t *mask = NULL;
    assert_true(is_ok(grammar_advance_bytes(grammar, &at, view_of_text("\""), NULL)));
    for (int i = 0; i < 2000; i++) {
        assert_true(is_ok(grammar_mask(grammar, at, &mask, NULL)));
        assert_true(is_ok(grammar_advance_bytes(grammar, &at, view_of_text("x"), NULL)));
    }
    struct grammar_facts facts;
    grammar_facts(grammar, &facts);
    assert_int_equal(facts.masks, 1);
    assert_true(facts.states < 9000);
}

static void masks_are_made_anew_after_they_were_dropped(void **state) {
    (void)state;
    // 32 MB of masks of 2^20 ids are 256; a pattern of 300 characters has more.
    struct grammar_token tokens[] = {
        {view_of_text("\""), false}, {view_of_text("<end>"), true}, {view_of_text("a"), false}};
    size_t count = (size_t)1 << 20;
    CLEANUP(free_cleanup) struct grammar_token *all = calloc(count, sizeof *all);
    assert_non_null(all);
    memcpy(all, tokens, sizeof tokens);
    for (size_t i = 3; i < count; i++) {
        all[i].bytes = view_of_text("");
    }
    CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(grammar_vocabulary_create_from(&vocabulary, all, count, NULL)));
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    assert_true(
        is_ok(grammar_test_compile(&grammar, vocabulary, "{\"pattern\": \"^a{300}$\"}", NULL))
    );
    for (int round = 0; round < 2; round++) {
        uint32_t at = grammar_start(grammar);
        const uint64_t *mask = NULL;
        for (int i = 0; i < 302; i++) {
            int32_t id = i == 0 || i == 301 ? 0 : 2;
            assert_true(is_ok(grammar_mask(grammar, at, &mask, NULL)));
            assert_int_equal(mask[0], (uint64_t)1 << id);
            assert_true(is_ok(grammar_advance(grammar, &at, id, NULL)));
        }
        assert_true(grammar_may_end(grammar, at));
    }
    struct grammar_facts facts;
    grammar_facts(grammar, &facts);
    assert_true(facts.masks > 302);
    assert_true(facts.bytes < 80 << 20);
}

static void vocabulary_of_wrong_size_is_refused(void **state) {
    (void)state;
    struct grammar_vocabulary *vocabulary = NULL;
    struct error error = {0};
    result status = grammar_vocabulary_create(&vocabulary, grammar_test_tokenizer(), 100, &error);
    assert_int_equal(status.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "4096 tokens for 100 ids"));
    status = grammar_vocabulary_create(&vocabulary, grammar_test_tokenizer(), 4200, &error);
    assert_true(is_ok(status));
    assert_int_equal(grammar_vocabulary_words(vocabulary), 66);
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    assert_true(is_ok(grammar_test_compile(&grammar, vocabulary, "{\"type\": \"string\"}", NULL)));
    grammar_test_check_mask(grammar, vocabulary, grammar_start(grammar));
    grammar_cleanup(&grammar);
    grammar = NULL;
    grammar_vocabulary_destroy(vocabulary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_language_holds_what_fits),
        cmocka_unit_test(patterns_hold_what_matches),
        cmocka_unit_test(schema_that_is_not_supported_is_refused_by_name),
        cmocka_unit_test(schema_too_deep_or_large_is_refused_with_numbers),
        cmocka_unit_test(walk_through_masks_gives_what_fits),
        cmocka_unit_test(mask_is_what_can_be_advanced_over),
        cmocka_unit_test(text_that_fits_is_admitted_in_any_tokens),
        cmocka_unit_test(masks_of_an_odd_vocabulary_are_right),
        cmocka_unit_test(state_without_a_token_is_an_error_that_says_what_is_expected),
        cmocka_unit_test(masks_are_shared_by_states_that_tokens_cannot_tell_apart),
        cmocka_unit_test(masks_are_made_anew_after_they_were_dropped),
        cmocka_unit_test(vocabulary_of_wrong_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
