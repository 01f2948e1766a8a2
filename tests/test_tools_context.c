/* What a context offers and keeps: dialects, tools that were added, outputs, the todo list; and
 * facts of pictures. */
#include "tools/tool_internal.h"
#include "tools_support.h"

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    const struct tool_context_options options = {.set = tool_set_all()};
    bench_open(bench, NULL, &options);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

/* ---------------------------------------------------------------- dialects ---- */

static void forms_are_whole(void **state) {
    (void)state;
    for (size_t i = 0; i < tool_dialect_form_count(); i++) {
        const struct tool_dialect_form *form = tool_dialect_form_at(i);
        size_t index = tool_index(view_of_text(form->tool));
        assert_int_not_equal(index, SIZE_MAX);
        assert_ptr_equal(tool_dialect_find(form->dialect, form->tool), form); // once each
        assert_int_equal(tool_index(view_of_text(form->shown.name)), index);
        if (form->shown.effects != tool_at(index)->effects || form->shown.is_trained) {
            fail_msg("%s: other effects than %s", form->shown.name, form->tool);
        }
    }
    for (size_t dialect = 0; dialect < TOOL_DIALECT_COUNT; dialect++) {
        enum tool_dialect parsed = TOOL_DIALECT_HEARTH;
        const char *name = tool_dialect_name((enum tool_dialect)dialect);
        assert_true(tool_dialect_parse(view_of_text(name), &parsed));
        assert_int_equal(parsed, dialect);
        uint64_t set = tool_set_default((enum tool_dialect)dialect);
        for (size_t i = 0; i < tool_count(); i++) {
            bool is_default = (set >> i & 1U) != 0;
            assert_true(!is_default || tool_form(i, parsed, set) != NULL);
        }
    }
    enum tool_dialect parsed = TOOL_DIALECT_HEARTH;
    assert_false(tool_dialect_parse(view_of_text("Claude"), &parsed));
}

static void claude_calls_by_its_own_names(void **state) {
    (void)state;
    struct bench bench;
    const struct tool_context_options options = {
        .set = tool_set_all(), .dialect = TOOL_DIALECT_CLAUDE};
    bench_open(&bench, NULL, &options);
    bench_expect_part(
        &bench, "read", "{}", TOOL_REFUSED, "unknown tool: read; the tools are: Bash, "
    );
    bench_expect(
        &bench,
        "Write",
        "{\"file_path\":\"a.py\",\"content\":\"x = 1\\ny = 1\\n\"}",
        TOOL_OK,
        "ok: wrote a.py"
    );
    bench_expect_part(
        &bench, "Write", "{\"path\":\"a.py\"}", TOOL_REFUSED, "Write takes file_path (string)"
    );
    bench_expect(
        &bench,
        "Read",
        "{\"file_path\":\"/workspace/a.py\",\"offset\":2}",
        TOOL_OK,
        "     2\ty = 1\n[lines 2-2, the last ones]"
    );
    bench_expect(
        &bench,
        "Edit",
        "{\"file_path\":\"a.py\",\"old_string\":\"= 1\",\"new_string\":\"= "
        "2\",\"replace_all\":true}",
        TOOL_OK,
        "ok: edited a.py (2 replacements)"
    );
    bench_expect(&bench, "Glob", "{\"pattern\":\"*.py\"}", TOOL_OK, "a.py");
    bench_expect(&bench, "Grep", "{\"pattern\":\"= \\\\d\"}", TOOL_OK, "a.py");
    bench_expect(
        &bench,
        "Grep",
        "{\"pattern\":\"Y\",\"-i\":true,\"-n\":true,\"output_mode\":\"content\",\"-B\":1}",
        TOOL_OK,
        "a.py-1-x = 2\na.py:2:y = 2"
    );
    bench_expect(
        &bench,
        "TodoWrite",
        "{\"todos\":[{\"content\":\"a\",\"status\":\"completed\",\"activeForm\":\"doing a\"}]}",
        TOOL_OK,
        "[x] a"
    );
    bench_close(&bench);
}

static void codex_calls_by_its_own_names(void **state) {
    (void)state;
    struct bench bench;
    const struct tool_context_options options = {
        .set = tool_set_all(), .dialect = TOOL_DIALECT_CODEX};
    bench_open(&bench, NULL, &options);
    bench_expect(
        &bench,
        "apply_patch",
        "{\"input\":\"*** Begin Patch\\n*** Add File: a\\n+one\\n*** End Patch\"}",
        TOOL_OK,
        "Success. Updated the following files:\nA a"
    );
    bench_expect(&bench, "read_file", "{\"file_path\":\"a\"}", TOOL_OK, "     1\tone");
    bench_expect(&bench, "list_dir", "{\"dir_path\":\".\"}", TOOL_OK, "a");
    bench_expect(&bench, "grep_files", "{\"pattern\":\"o\",\"include\":\"*\"}", TOOL_OK, "a");
    bench_expect(
        &bench,
        "update_plan",
        "{\"explanation\":\"why\",\"plan\":[{\"step\":\"a\",\"status\":\"in_progress\"},"
        "{\"step\":\"b\",\"status\":\"pending\"}]}",
        TOOL_OK,
        "[>] a\n[ ] b"
    );
    bench_close(&bench);
}

/* -------------------------------------------------------------- added tools ---- */

static size_t output_bytes = 0; // what the added tool says

static result run_added(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    assert_ptr_equal(context->running->owner, &output_bytes);
    for (size_t i = 0; i < output_bytes; i++) {
        TRY(buffer_append_byte(&out->output, i % 10 == 9 ? '\n' : 'x', error));
    }
    out->output_bytes = output_bytes;
    out->text_is_truncated = output_bytes > 0;
    return tool_answer(
        out, TOOL_OK, error, "%s%zu", context->running->shown->name, json_count(arguments)
    );
}

static const struct tool_descriptor added = {
    "mcp__s__t", "A tool.", "{\"type\": \"object\", \"anyOf\": []}", TOOL_FOREIGN, false};

static void added_tools_are_called_and_taken_away(void **state) {
    struct bench *bench = *state;
    size_t before = tool_context_count(bench->context);
    output_bytes = 0;
    MUST(tool_context_add(bench->context, &added, run_added, &output_bytes, &must_error));
    struct error error;
    result again = tool_context_add(bench->context, &added, run_added, &output_bytes, &error);
    assert_int_equal(again.code, RESULT_INVALID_INPUT);
    assert_int_equal(tool_context_count(bench->context), before + 1);
    assert_ptr_equal(tool_context_at(bench->context, before), &added);
    assert_ptr_equal(tool_context_find(bench->context, view_of_text("mcp__s__t")), &added);
    bench_expect(bench, "mcp__s__t", "{\"any\":1,\"thing\":[]}", TOOL_OK, "mcp__s__t2");
    bench_expect_part(bench, "mcp__s__t", "[]", TOOL_REFUSED, "must be an object");
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &text, &must_error);
    tool_context_declarations(bench->context, &writer);
    MUST(json_writer_finish(&writer));
    assert_true(view_ends_with(
        buffer_view(&text),
        view_of_text(
            "{\"name\":\"mcp__s__t\",\"description\":\"A tool.\",\"parameters\":{\"type\": "
            "\"object\", \"anyOf\": []}}]"
        )
    ));
    tool_context_remove(bench->context, &output_bytes);
    bench_expect_part(bench, "mcp__s__t", "{}", TOOL_REFUSED, "unknown tool");
    assert_int_equal(tool_context_count(bench->context), before);
}

static void outputs_cut_short_are_read_on(void **state) {
    struct bench *bench = *state;
    MUST(tool_context_add(bench->context, &added, run_added, &output_bytes, &must_error));
    output_bytes = 25;
    bench_expect(
        bench, "mcp__s__t", "{}", TOOL_OK, "mcp__s__t0\n[all of it: read of \"output:1\"]"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"output:1\"}",
        TOOL_OK,
        "     1\txxxxxxxxx\n     2\txxxxxxxxx\n     3\txxxxx"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"output:1\",\"offset\":3,\"limit\":1}",
        TOOL_OK,
        "     3\txxxxx\n[lines 3-3, the last ones]"
    );
    bench_expect_part(bench, "read", "{\"path\":\"output:2\"}", TOOL_ERROR, "is not kept");
    output_bytes = 5;
    for (int i = 0; i < 64; i++) {
        bench_call(bench, "mcp__s__t", "{}");
    }
    bench_expect_part(bench, "read", "{\"path\":\"output:1\"}", TOOL_ERROR, "is not kept");
    bench_expect(bench, "read", "{\"path\":\"output:5\"}", TOOL_OK, "     1\txxxxx");
    output_bytes = TOOL_OUTPUTS_BYTES_MAX; // alone it has room
    bench_call(bench, "mcp__s__t", "{}");
    bench_expect_part(bench, "read", "{\"path\":\"output:5\"}", TOOL_ERROR, "is not kept");
    bench_expect_part(bench, "read", "{\"path\":\"output:71\"}", TOOL_OK, "     1\txxxxxxxxx\n");
    output_bytes += 1;
    bench_expect(bench, "mcp__s__t", "{}", TOOL_OK, "mcp__s__t0");
    bench_put(bench, "output:3", view_of_text("file"));
    bench_expect(bench, "read", "{\"path\":\"./output:3\"}", TOOL_OK, "     1\tfile");
}

/* -------------------------------------------------------------------- todo ---- */

static void todo_list_is_kept_and_restored(void **state) {
    struct bench *bench = *state;
    assert_int_equal(tool_context_todo(bench->context).length, 0);
    bench_expect(
        bench,
        "todo",
        "{\"todos\":[{\"content\":\"a\\u001b[1m\",\"status\":\"completed\"},{\"content\":\"b\","
        "\"status\":\"in_progress\"},{\"content\":\"c\",\"status\":\"pending\"}]}",
        TOOL_OK,
        "[x] a\\x1b[1m\n[>] b\n[ ] c"
    );
    bench_expect_part(
        bench,
        "todo",
        "{\"todos\":[{\"content\":\"a\",\"status\":\"done\"}]}",
        TOOL_REFUSED,
        "one of"
    );
    assert_true(view_ends_with(tool_context_todo(bench->context), view_of_text("[>] b\n[ ] c")));
    bench_expect(bench, "todo", "{\"todos\":[]}", TOOL_OK, "(the list is empty)");
    assert_int_equal(tool_context_todo(bench->context).length, 0);
    struct view call = view_of_text("{\"todos\":[{\"content\":\"a\",\"status\":\"pending\"}]}");
    MUST(tool_context_restore_todo(bench->context, view_of_text("read"), call, &must_error));
    assert_int_equal(tool_context_todo(bench->context).length, 0);
    MUST(tool_context_restore_todo(bench->context, view_of_text("todo"), call, &must_error));
    assert_true(view_equals_text(tool_context_todo(bench->context), "[ ] a"));
}

/* ------------------------------------------------------------------ pictures ---- */

static void pictures_are_described(void **state) {
    struct bench *bench = *state;
    static const struct {
        const char *data;
        size_t bytes;
        const char *facts; /* null: no picture */
    } cases[] = {
        {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\2\x80\0\0\1\xe0\x8\6\0\0\0",
         29,
         "PNG image, 640 x 480"},
        {"GIF89a\x0a\0\x14\0\0", 11, "GIF image, 10 x 20"},
        {"BM\0\0\0\0\0\0\0\0\0\0\0\0\x28\0\0\0\5\0\0\0\xFB\xFF\xFF\xFF\0", 27, "BMP image, 5 x 5"},
        {"BM\0\0\0\0\0\0\0\0\0\0\0\0\x0c\0\0\0\5\0\7\0\0\0\0\0", 26, "BMP image, 5 x 7"},
        {"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0\xff\1\0\x0f\0\0", 30, "WebP image, 512 x 16"},
        {"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x09\x40\2\0\0\0\0\0\0", 31, "WebP image, 10 x 10"},
        {"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\1\x2a\x20\0\x10\0", 30, "WebP image, 32 x 16"},
        {"\xff\xd8\xff\xe0\0\4\0\0\xff\xff\xc2\0\x0b\x8\0\x10\0\x20\3\0\0\0",
         22,
         "JPEG image, 32 x 16"},
        {"\xff\xd8\xff\xe0\0\1\0\0\0\0\0\0\0", 13, NULL},
        {"\xff\xd8\xff\xe0\xff\xff\0\0\0\0\0\0\0", 13, NULL},
        {"\xff\xd8\xff\xc0\0\x0b\x8\0\0\0\x20\3\0", 13, NULL},
        {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", 18, NULL},
        {"BM\0\0", 4, NULL},
        {"text", 4, NULL},
        {"", 0, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        bench_put(bench, "p", view_of(cases[i].data, cases[i].bytes));
        char expected[100] = "error: p is no PNG, JPEG, GIF, WebP or BMP image";
        if (cases[i].facts != NULL) {
            (void)snprintf(
                expected, sizeof expected, "p: %s pixels, %zu bytes", cases[i].facts, cases[i].bytes
            );
        }
        enum tool_status status = cases[i].facts != NULL ? TOOL_OK : TOOL_ERROR;
        bench_expect(bench, "image", "{\"path\":\"p\"}", status, expected);
    }
    bench_put(bench, "p", view_of(cases[0].data, cases[0].bytes));
    bench_expect(
        bench, "read", "{\"path\":\"p\"}", TOOL_OK, "p: PNG image, 640 x 480 pixels, 29 bytes"
    );
    bench_expect_part(bench, "image", "{\"path\":\"gone\"}", TOOL_ERROR, "no such file");
    bench_expect_part(bench, "image", "{\"path\":\"../p\"}", TOOL_REFUSED, "bad path");
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_are_whole),
        cmocka_unit_test(claude_calls_by_its_own_names),
        cmocka_unit_test(codex_calls_by_its_own_names),
        BENCH_TEST(added_tools_are_called_and_taken_away),
        BENCH_TEST(outputs_cut_short_are_read_on),
        BENCH_TEST(todo_list_is_kept_and_restored),
        BENCH_TEST(pictures_are_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
