/* What is declared to a model, and arguments checked against it. */
#include "tools/tool_schema.h"
#include "tools_support.h"

/* What the bundled model was trained with, byte for byte. */
static const char *const trained_declarations[] = {
    "{\"name\": \"shell\", \"description\": \"Run a shell command in the workspace.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"command\": {\"type\": \"string\", "
    "\"description\": \"the command line\"}}, \"required\": [\"command\"]}}",
    "{\"name\": \"read\", \"description\": \"Read a text file.\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"path\": {\"type\": \"string\", \"description\": \"file "
    "path\"}}, \"required\": [\"path\"]}}",
    "{\"name\": \"edit\", \"description\": \"Replace an exact string in a file. The old text must "
    "occur once.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": {\"type\": "
    "\"string\", \"description\": \"file path\"}, \"old\": {\"type\": \"string\", "
    "\"description\": \"exact text to replace\"}, \"new\": {\"type\": \"string\", "
    "\"description\": \"replacement\"}}, \"required\": [\"path\", \"old\", \"new\"]}}",
    "{\"name\": \"write\", \"description\": \"Write a whole file.\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"path\": {\"type\": \"string\", \"description\": \"file "
    "path\"}, \"content\": {\"type\": \"string\", \"description\": \"new file content\"}}, "
    "\"required\": [\"path\", \"content\"]}}",
    "{\"name\": \"finish\", \"description\": \"End the task with a short summary.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"summary\": {\"type\": \"string\", "
    "\"description\": \"what was done\"}}, \"required\": [\"summary\"]}}",
};

static void declarations_are_those_of_the_training(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(trained_declarations); i++) {
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
        buffer_init(&text, 10000);
        struct json_writer writer;
        json_writer_init(&writer, &text, &must_error);
        writer.python_separators = true;
        tool_declaration_write(&writer, tool_at(i));
        MUST(json_writer_finish(&writer));
        assert_string_equal(buffer_text(&text), trained_declarations[i]);
        assert_true(tool_at(i)->is_trained);
    }
    assert_false(tool_at(COUNT_OF(trained_declarations))->is_trained);
}

/* The same against the file that belongs to the model: order, names, schemas. */
static void default_set_is_the_models_default_prompt(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, BUFFER_CEILING_DEFAULT);
    MUST(file_read(TEST_SOURCE_DIR "/examples/mini/default-prompt.json", &file, &must_error));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    MUST(json_parse(buffer_view(&file), NULL, &document, &must_error));
    CLEANUP(buffer_deinit) struct buffer theirs = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer ours = {NULL, 0, 0, 0};
    buffer_init(&theirs, 100000);
    buffer_init(&ours, 100000);
    struct json_writer writer;
    json_writer_init(&writer, &theirs, &must_error);
    writer.python_separators = true;
    json_write_value(&writer, json_get(json_root(document), "tools"));
    MUST(json_writer_finish(&writer));
    json_writer_init(&writer, &ours, &must_error);
    writer.python_separators = true;
    tool_declarations_write(&writer, TOOL_DIALECT_HEARTH, TOOL_SET_DEFAULT);
    MUST(json_writer_finish(&writer));
    assert_string_equal(buffer_text(&ours), buffer_text(&theirs));
}

static void every_schema_is_within_the_subset(void **state) {
    (void)state;
    for (size_t i = 0; i < tool_count(); i++) {
        CLEANUP(json_cleanup) struct json_document *schema = NULL;
        MUST(json_parse(view_of_text(tool_at(i)->schema), NULL, &schema, &must_error));
        MUST(tool_schema_check(json_root(schema), &must_error));
        assert_ptr_equal(tool_find(view_of_text(tool_at(i)->name)), tool_at(i));
    }
    assert_int_equal(tool_set_all() >> (tool_count() - 1), 1);
    assert_null(tool_find(view_of_text("Shell")));
}

static void sets_parse_from_names(void **state) {
    (void)state;
    uint64_t set = 0;
    MUST(tool_set_parse(view_of_text("shell,read,edit,write"), &set, &must_error));
    assert_int_equal(set, TOOL_SET_DEFAULT);
    MUST(tool_set_parse(view_of_text("search"), &set, &must_error));
    assert_int_equal(set, 0x40);
    static const char *const bad[] = {"", "shell,", "shell, read", "bash", ",read"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct error error = {0};
        result status = tool_set_parse(view_of_text(bad[i]), &set, &error);
        assert_int_equal(status.code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, "there are shell"));
    }
}

/* As many bytes as a message shows. */
#define LONG_NAME "a234567890123456789012345678901234567890123456789012345678901234"

static void schemas_outside_the_subset_are_named(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        enum result_code code;
        const char *part;
    } cases[] = {
        {"[]", RESULT_INVALID_INPUT, "object"},
        {"{\"type\":\"string\",\"properties\":{}}", RESULT_UNSUPPORTED, "string"},
        {"{\"type\":\"object\"}", RESULT_INVALID_INPUT, "properties"},
        {"{\"type\":\"object\",\"properties\":{},\"anyOf\":[]}", RESULT_UNSUPPORTED, "anyOf"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}",
         RESULT_UNSUPPORTED,
         "null"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"x\"}}}",
         RESULT_UNSUPPORTED,
         "pattern"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"enum\":[1]}}}",
         RESULT_UNSUPPORTED,
         "enum"},
        {"{\"type\":\"object\",\"properties\":{\"a\":1}}", RESULT_INVALID_INPUT, "'a'"},
        {"{\"type\":\"object\",\"properties\":{\"" LONG_NAME "end\":1}}",
         RESULT_INVALID_INPUT,
         "'" LONG_NAME "' is no object"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
         "\"object\","
         "\"properties\":{\"b\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}}}}}}}",
         RESULT_UNSUPPORTED,
         "objects in objects"},
        {"{\"type\":\"object\",\"properties\":{},\"required\":[\"b\"]}",
         RESULT_INVALID_INPUT,
         "required"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(json_cleanup) struct json_document *schema = NULL;
        struct error error = {0};
        MUST(json_parse(view_of_text(cases[i].schema), NULL, &schema, &must_error));
        assert_int_equal(tool_schema_check(json_root(schema), &error).code, cases[i].code);
        assert_non_null(strstr(error.message, cases[i].part));
    }
}

static const char wide_schema[] =
    "{\"type\": \"object\", \"properties\": {\"s\": {\"type\": \"string\", \"enum\": [\"a\", "
    "\"b\"]}, \"i\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 9}, \"n\": {\"type\": "
    "\"number\"}, \"b\": {\"type\": \"boolean\"}, \"l\": {\"type\": \"array\", \"items\": "
    "{\"type\": \"integer\"}}, \"o\": {\"type\": \"object\"}, \"e\": {\"type\": \"array\", "
    "\"items\": "
    "{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\"}, \"q\": {\"type\": "
    "\"integer\"}}, \"required\": [\"p\"]}}}, \"required\": [\"s\"]}";

static void arguments_are_checked_against_every_keyword(void **state) {
    (void)state;
    static const struct {
        const char *arguments;
        const char *why; /* null: they match */
    } cases[] = {
        {"{\"s\":\"a\"}", NULL},
        {"{\"s\":\"b\",\"i\":9,\"n\":1.5,\"b\":true,\"l\":[1,2],\"o\":{}}", NULL},
        {"{\"s\":\"a\",\"l\":[]}", NULL},
        {"[]", "error: the arguments of t must be an object, not an array"},
        {"{}", "error: missing parameter 's'"},
        {"{\"s\":\"c\"}", "error: parameter 's' must be one of: a, b"},
        {"{\"s\":1}", "error: parameter 's' must be of type string, not a number"},
        {"{\"s\":null}", "error: parameter 's' must be of type string, not null"},
        {"{\"s\":\"a\",\"i\":0}", "error: parameter 'i' must be at least 1"},
        {"{\"s\":\"a\",\"i\":10}", "error: parameter 'i' must be at most 9"},
        {"{\"s\":\"a\",\"i\":1.0}", "error: parameter 'i' must be of type integer"},
        {"{\"s\":\"a\",\"n\":\"1\"}", "error: parameter 'n' must be of type number"},
        {"{\"s\":\"a\",\"b\":0}", "error: parameter 'b' must be of type boolean"},
        {"{\"s\":\"a\",\"l\":{}}", "error: parameter 'l' must be of type array"},
        {"{\"s\":\"a\",\"l\":[1,\"x\"]}", "error: parameter 'l' must hold items of type integer"},
        {"{\"s\":\"a\",\"o\":[]}", "error: parameter 'o' must be of type object"},
        {"{\"s\":\"a\",\"i\":null}", NULL},
        {"{\"s\":\"a\",\"e\":[{\"p\":\"x\"},{\"p\":\"y\",\"q\":null}]}", NULL},
        {"{\"s\":\"a\",\"e\":[{\"p\":\"x\"},{\"q\":1}]}",
         "error: missing parameter 'p' (in an item of 'e'); t takes"},
        {"{\"s\":\"a\",\"e\":[{\"p\":\"x\",\"r\":1}]}",
         "error: unknown parameter 'r' (in an item of 'e')"},
        {"{\"s\":\"a\",\"e\":[1]}", "error: parameter 'e' must hold items of type object"},
        {"{\"s\":\"a\",\"S\":\"a\"}", "error: unknown parameter 'S'"},
    };
    CLEANUP(json_cleanup) struct json_document *schema = NULL;
    MUST(json_parse(view_of_text(wide_schema), NULL, &schema, &must_error));
    MUST(tool_schema_check(json_root(schema), &must_error));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(json_cleanup) struct json_document *arguments = NULL;
        CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
        buffer_init(&why, 10000);
        bool matches = false;
        MUST(json_parse(view_of_text(cases[i].arguments), NULL, &arguments, &must_error));
        MUST(tool_schema_match(
            "t", json_root(schema), json_root(arguments), &why, &matches, &must_error
        ));
        assert_int_equal(matches, cases[i].why == NULL);
        if (cases[i].why != NULL &&
            (strstr(buffer_text(&why), cases[i].why) != buffer_text(&why) ||
             strstr(buffer_text(&why), "; t takes s (string), i (integer, optional)") == NULL)) {
            fail_msg("'%s' for %s", buffer_text(&why), cases[i].arguments);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(declarations_are_those_of_the_training),
        cmocka_unit_test(default_set_is_the_models_default_prompt),
        cmocka_unit_test(every_schema_is_within_the_subset),
        cmocka_unit_test(sets_parse_from_names),
        cmocka_unit_test(schemas_outside_the_subset_are_named),
        cmocka_unit_test(arguments_are_checked_against_every_keyword),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
