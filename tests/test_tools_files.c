/* read and edit in their wide form, what a context remembers of files, and pictures. */
#include "tools_support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    const struct tool_context_options options = {.set = tool_set_all(), .text_bytes_max = 4000};
    bench_open(bench, NULL, &options);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static void put_text(const struct bench *bench, const char *name, const char *text) {
    bench_put(bench, name, view_of_text(text));
}

static void assert_file(const struct bench *bench, const char *name, const char *text) {
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    bench_get(bench, name, &content);
    assert_string_equal(buffer_text(&content), text);
}

/* -------------------------------------------------------------------- read ---- */

static void read_numbers_the_lines_of_a_range(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "one\ntwo\r\n\nfour\x1b\n");
    bench_expect(
        bench,
        "read",
        "{\"path\":\"a\"}",
        TOOL_OK,
        "     1\tone\n     2\ttwo\n     3\t\n     4\tfour\\x1b"
    );
    assert_false(bench->result.text_is_truncated);
    bench_expect(
        bench,
        "read",
        "{\"path\":\"a\",\"offset\":2,\"limit\":1}",
        TOOL_OK,
        "     2\ttwo\n[lines 2-2; 7 of 16 bytes follow; read on with offset 3]"
    );
    assert_true(bench->result.text_is_truncated);
    bench_expect(
        bench,
        "read",
        "{\"path\":\"./a\",\"offset\":4}",
        TOOL_OK,
        "     4\tfour\\x1b\n[lines 4-4, the last ones]"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"a\",\"offset\":5}",
        TOOL_ERROR,
        "error: a has 4 lines, offset 5 is behind the last"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"a\",\"offset\":0,\"limit\":null}",
        TOOL_OK,
        "     1\tone\n     2\ttwo\n     3\t\n     4\tfour\\x1b"
    );
    put_text(bench, "no-newline", "x");
    bench_expect(bench, "read", "{\"path\":\"no-newline\"}", TOOL_OK, "     1\tx");
    put_text(bench, "empty", "");
    bench_expect(bench, "read", "{\"path\":\"empty\"}", TOOL_OK, "(empty file)");
    bench_expect(bench, "read", "{\"path\":\"gone\"}", TOOL_ERROR, "error: no such file: gone");
}

/* The lines that were shown, put together by following what each answer says. */
static size_t read_all(struct bench *bench, const char *path) {
    size_t lines = 0;
    unsigned long long offset = 1;
    for (size_t calls = 0; calls < 1000; calls++) {
        char arguments[200];
        (void
        )snprintf(arguments, sizeof arguments, "{\"path\":\"%s\",\"offset\":%llu}", path, offset);
        bench_call(bench, "read", arguments);
        assert_int_equal(bench->result.status, TOOL_OK);
        assert_true(bench->result.text.length < 4300);
        const char *text = buffer_text(&bench->result.text);
        const char *next = strstr(text, "read on with offset ");
        for (const char *tab = strchr(text, '\t'); tab != NULL; tab = strchr(tab + 1, '\t')) {
            lines += 1;
        }
        if (next == NULL) {
            return lines;
        }
        assert_int_equal(sscanf(next, "read on with offset %llu", &offset), 1);
        assert_int_equal(offset, lines + 1);
    }
    fail_msg("%s does not end", path);
    return 0;
}

static void long_files_are_read_on_to_their_end(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    for (int i = 0; i < 5000; i++) {
        MUST(buffer_append_format(&content, &must_error, "line %d\n", i));
    }
    bench_put(bench, "long", buffer_view(&content));
    assert_int_equal(read_all(bench, "long"), 5000);
    assert_int_equal(bench->result.output.length, 0);
}

static void huge_files_are_read_without_being_loaded(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    while (content.length <= TOOL_FILE_BYTES_MAX) {
        MUST(buffer_append_format(&content, &must_error, "%099zu\n", content.length / 100 + 1));
    }
    bench_put(bench, "huge", buffer_view(&content));
    bench_call(bench, "read", "{\"path\":\"huge\",\"offset\":83000,\"limit\":1}");
    char expected[300];
    (void)snprintf(expected, sizeof expected, " 83000\t%099d\n[lines 83000-83000; ", 83000);
    assert_true(view_starts_with(buffer_view(&bench->result.text), view_of_text(expected)));
    bench_expect_part(
        bench, "read", "{\"path\":\"huge\",\"offset\":900000}", TOOL_ERROR, "huge has 83887 lines"
    );
    bench_expect_part(
        bench,
        "edit",
        "{\"path\":\"huge\",\"old\":\"1\",\"new\":\"2\"}",
        TOOL_ERROR,
        "huge is too large"
    );
    // A sparse file of 3 TB whose first block has text: the walk to a line far behind is bounded.
    put_text(bench, "sparse", "first\n");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/sparse", bench->workspace);
    assert_int_equal(truncate(path, (off_t)3 << 40), 0);
    bench_expect_part(
        bench, "read", "{\"path\":\"sparse\"}", TOOL_ERROR, "binary file (3298534883328 bytes)"
    );
}

static void long_lines_are_cut_and_read_on_by_bytes(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    MUST(buffer_append_text(&content, "a\nx", &must_error));
    while (content.length < 10000000) {
        MUST(buffer_append_text(&content, "\xC3\xA9", &must_error)); // two bytes each
    }
    MUST(buffer_append_text(&content, "\nlast", &must_error));
    bench_put(bench, "wide", buffer_view(&content));
    bench_call(bench, "read", "{\"path\":\"wide\"}");
    const char *text = buffer_text(&bench->result.text);
    assert_non_null(
        strstr(text, "\xA9 ... [9998000 more bytes of this line, from byte_offset 2001]\n")
    );
    assert_non_null(strstr(text, "\n     3\tlast"));
    assert_true(bench->result.text.length < 2200);
    bench_call(bench, "read", "{\"path\":\"wide\",\"byte_offset\":2001}");
    text = buffer_text(&bench->result.text);
    assert_true(view_starts_with(buffer_view(&bench->result.text), view_of_text("\xC3\xA9")));
    assert_non_null(strstr(text, "\n[bytes 2001-6000 of 10000006; read on with byte_offset 6001]"));
    bench_expect(
        bench,
        "read",
        "{\"path\":\"wide\",\"byte_offset\":10000002}",
        TOOL_OK,
        "last\n[bytes 10000002-10000005, the last ones]"
    );
    bench_expect_part(
        bench, "read", "{\"path\":\"wide\",\"byte_offset\":10000006}", TOOL_ERROR, "behind the last"
    );
}

static void what_is_no_text_is_named(void **state) {
    struct bench *bench = *state;
    bench_put(
        bench,
        "program",
        view_of(
            "\x7f"
            "ELF\0\1",
            6
        )
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"program\"}",
        TOOL_ERROR,
        "error: program is a binary file (6 bytes, ELF program)"
    );
    bench_put(bench, "blob", view_of("a\0b", 3));
    bench_expect(
        bench, "read", "{\"path\":\"blob\"}", TOOL_ERROR, "error: blob is a binary file (3 bytes)"
    );
    put_text(bench, "latin", "h\xE9llo \x80\n");
    bench_expect(
        bench, "read", "{\"path\":\"latin\"}", TOOL_OK, "     1\th\xEF\xBF\xBDllo \xEF\xBF\xBD"
    );
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/pipe", bench->workspace);
    assert_int_equal(mkfifo(path, 0600), 0);
    bench_expect_part(bench, "read", "{\"path\":\"pipe\"}", TOOL_REFUSED, "bad path: pipe (");
    (void)snprintf(path, sizeof path, "%s/link", bench->workspace);
    assert_int_equal(symlink("latin", path), 0);
    bench_expect_part(bench, "read", "{\"path\":\"link\"}", TOOL_REFUSED, "bad path: link (");
    bench_expect_part(bench, "read", "{\"path\":\".\"}", TOOL_ERROR, "it is a directory");
}

/* -------------------------------------------------------------------- edit ---- */

#define EDIT(old, new) "{\"old\":\"" old "\",\"new\":\"" new "\"}"

static void several_edits_are_made_or_none(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "one\ntwo\ntwo\nthree\n");
    bench_call(bench, "read", "{\"path\":\"a\"}");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a\",\"edits\":[" EDIT("one", "1") "," EDIT("two", "2") "]}",
        TOOL_ERROR,
        "error: edits[1]: old text found 2 times in a, at lines 2, 3; give more context or set "
        "replace_all; nothing was changed"
    );
    assert_file(bench, "a", "one\ntwo\ntwo\nthree\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a\",\"edits\":[" EDIT("one", "1") ",{\"old\":\"two\",\"new\":\"2\","
                                                       "\"replace_all\":true}," EDIT(
                                                           "1\\n2", "first"
                                                       ) "]}",
        TOOL_OK,
        "ok: edited a (4 replacements)"
    );
    assert_file(bench, "a", "first\n2\nthree\n");
    bench_expect(
        bench, "edit", "{\"path\":\"a\",\"old\":\"2\\n\",\"new\":\"\"}", TOOL_OK, "ok: edited a"
    );
    assert_file(bench, "a", "first\nthree\n");
}

static void failed_edits_say_what_to_do(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "if x:\n    y = 1\n");
    bench_call(bench, "read", "{\"path\":\"a\"}");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a\",\"old\":\"\\ty = 1\\n\",\"new\":\"z\"}",
        TOOL_ERROR,
        "error: old text not found in a; its first line is like line 2, but blanks or what follows "
        "differ"
    );
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a\",\"old\":\"nowhere\",\"new\":\"z\"}",
        TOOL_ERROR,
        "error: old text not found in a"
    );
    static const char *const refused[][2] = {
        {"{\"path\":\"a\"}", "either old and new, or edits"},
        {"{\"path\":\"a\",\"old\":\"x\"}", "either old and new, or edits"},
        {"{\"path\":\"a\",\"old\":\"x\",\"new\":\"y\",\"edits\":[" EDIT("x", "y") "]}", "either"},
        {"{\"path\":\"a\",\"edits\":[]}", "either"},
        {"{\"path\":\"a\",\"edits\":[{\"old\":\"x\"}]}", "missing parameter 'new' (in an item"},
        {"{\"path\":\"a\",\"old\":\"\",\"new\":\"y\"}", "the old text is empty"},
        {"{\"path\":\"a\",\"old\":\"x\",\"new\":\"x\"}", "the same"}};
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        bench_expect_part(bench, "edit", refused[i][0], TOOL_REFUSED, refused[i][1]);
    }
    assert_file(bench, "a", "if x:\n    y = 1\n");
    put_text(bench, "dos", "a\r\nb\r\n");
    bench_call(bench, "read", "{\"path\":\"dos\"}");
    bench_call(bench, "edit", "{\"path\":\"dos\",\"old\":\"a\\nb\",\"new\":\"c\\nd\"}");
    assert_file(bench, "dos", "c\r\nd\r\n");
}

static void growth_of_a_file_is_bounded(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    for (size_t i = 0; i < 100000; i++) {
        MUST(buffer_append_byte(&text, 'x', &must_error));
    }
    bench_put(bench, "a", buffer_view(&text));
    bench_call(bench, "read", "{\"path\":\"a\"}");
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&arguments, BUFFER_CEILING_DEFAULT);
    MUST(buffer_append_text(
        &arguments, "{\"path\":\"a\",\"replace_all\":true,\"old\":\"x\",\"new\":\"", &must_error
    ));
    MUST(buffer_append(&arguments, buffer_view(&text), &must_error));
    MUST(buffer_append_text(&arguments, "y\"}", &must_error));
    bench_expect_part(bench, "edit", buffer_text(&arguments), TOOL_REFUSED, "too large");
}

/* ---------------------------------------------------------- what is known ---- */

static void files_are_read_before_they_are_changed(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "one\n");
    static const char edit[] = "{\"path\":\"a\",\"old\":\"one\",\"new\":\"two\"}";
    static const char write[] = "{\"path\":\"./a\",\"content\":\"x\"}";
    bench_expect(
        bench, "edit", edit, TOOL_REFUSED, "error: a has not been read yet; read it first"
    );
    bench_expect_part(bench, "write", write, TOOL_REFUSED, "has not been read yet");
    bench_call(bench, "read", "{\"path\":\"/workspace//./a\"}");
    put_text(bench, "a", "one \n"); // somebody else
    bench_expect(
        bench, "edit", edit, TOOL_REFUSED, "error: a changed since it was read; read it again"
    );
    bench_expect_part(bench, "write", write, TOOL_REFUSED, "changed since it was read");
    assert_file(bench, "a", "one \n");
    put_text(bench, "a", "one\n"); // as it was: only the content counts
    bench_expect(bench, "edit", edit, TOOL_OK, "ok: edited a");
    bench_expect(bench, "write", write, TOOL_OK, "ok: wrote ./a"); // our own edit is known
    bench_expect(bench, "write", "{\"path\":\"new\",\"content\":\"x\"}", TOOL_OK, "ok: wrote new");
    bench_expect(
        bench, "edit", "{\"path\":\"new\",\"old\":\"x\",\"new\":\"y\"}", TOOL_OK, "ok: edited new"
    );
}

static void note_file(void *context, const struct tool_file_read *file) {
    struct buffer *text = context;
    MUST(buffer_append_format(
        text,
        &must_error,
        "%s %llu%s;",
        file->path,
        (unsigned long long)file->bytes,
        file->is_written ? " written" : ""
    ));
}

static void ledger_lists_files_in_order(void **state) {
    (void)state;
    struct bench bench;
    bench_open(&bench, NULL, NULL); // the trained tools keep it too, and refuse nothing
    put_text(&bench, "a", "one");
    put_text(&bench, "b", "three");
    bench_call(&bench, "read", "{\"path\":\"b\"}");
    bench_call(&bench, "read", "{\"path\":\"a\"}");
    bench_call(&bench, "read", "{\"path\":\"gone\"}");
    bench_call(&bench, "write", "{\"path\":\"c\",\"content\":\"12\"}");
    bench_call(&bench, "edit", "{\"path\":\"b\",\"old\":\"th\",\"new\":\"\"}");
    bench_call(&bench, "read", "{\"path\":\"b\"}");
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, 1000);
    tool_context_ledger(bench.context, note_file, &text);
    assert_string_equal(buffer_text(&text), "a 3;c 2 written;b 3 written;");
    for (int i = 0; i < 2100; i++) { // the oldest make room
        char arguments[64];
        (void)snprintf(arguments, sizeof arguments, "{\"path\":\"f%d\",\"content\":\"\"}", i);
        bench_call(&bench, "write", arguments);
    }
    buffer_deinit(&text);
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    tool_context_ledger(bench.context, note_file, &text);
    assert_true(view_starts_with(buffer_view(&text), view_of_text("f52 0 written;f53")));
    bench_close(&bench);
}

static void overwritten(
    const struct bench *bench,
    const char *tool,
    const char *arguments,
    bool is_there,
    const char *patch
) {
    struct tool_overwrite found;
    MUST(tool_overwrite_find(
        bench->context, view_of_text(tool), view_of_text(arguments), &found, &must_error
    ));
    assert_int_equal(found.is_there, is_there);
    assert_int_equal(found.has_patch, patch != NULL);
    assert_string_equal(buffer_text(&found.patch), patch != NULL ? patch : "");
    tool_overwrite_deinit(&found);
}

static void what_is_written_over_is_compared(void **state) {
    (void)state;
    const struct tool_context_options claude = {
        .set = tool_set_all(), .dialect = TOOL_DIALECT_CLAUDE};
    const struct tool_context_options *const options[] = {NULL, &claude};
    static const char *const tools[] = {"write", "Write"};
    static const char *const paths[] = {"path", "file_path"};
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        struct bench bench;
        bench_open(&bench, NULL, options[i]);
        put_text(&bench, "a", "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        bench_put(&bench, "binary", view_of("a\0b", 3));
        const struct {
            const char *path, *content, *patch;
            bool is_there;
        } cases[] = {
            {"a",
             "one\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9",
             "@@ -1,3 +1,3 @@\n-1\n+one\n 2\n 3\n@@ -7,3 +7,3 @@\n 7\n 8\n-9\n+9\n\\ No newline at "
             "end of file\n",
             true},
            {"/workspace/a", "1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n", "", true}, // nothing changes
            {"binary", "x", NULL, true},
            {"none", "x", NULL, false},
            {"../a", "x", NULL, false},
            {".", "x", NULL, false},
        };
        for (size_t j = 0; j < COUNT_OF(cases); j++) {
            char arguments[200];
            (void)snprintf(
                arguments,
                sizeof arguments,
                "{\"content\":\"%s\",\"%s\":\"%s\"}",
                cases[j].content,
                paths[i],
                cases[j].path
            );
            overwritten(&bench, tools[i], arguments, cases[j].is_there, cases[j].patch);
        }
        overwritten(&bench, tools[i], "no JSON", false, NULL);
        overwritten(&bench, tools[i], "[]", false, NULL);
        overwritten(&bench, tools[i], "{\"path\":\"a\"}", false, NULL);
        overwritten(&bench, "unknown", "{\"path\":\"a\",\"content\":\"x\"}", false, NULL);
        overwritten(
            &bench,
            i == 0 ? "edit" : "Edit",
            "{\"path\":\"a\",\"old\":\"1\",\"new\":\"x\"}",
            false,
            NULL
        );
        bench_close(&bench);
    }
}

static void too_large_files_are_not_compared(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer large = {NULL, 0, 0, 0};
    buffer_init(&large, BUFFER_CEILING_DEFAULT);
    while (large.length < 40002) { // lines, not bytes, are too many
        MUST(buffer_append_text(&large, "\n", &must_error));
    }
    bench_put(bench, "lines", buffer_view(&large));
    while (large.length <= (size_t)1 << 20) {
        MUST(buffer_append_text(&large, "xxxxxxxxxxxxxxx", &must_error));
    }
    bench_put(bench, "bytes", buffer_view(&large));
    overwritten(bench, "write", "{\"path\":\"lines\",\"content\":\"\"}", true, NULL);
    overwritten(bench, "write", "{\"path\":\"bytes\",\"content\":\"\"}", true, NULL);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(read_numbers_the_lines_of_a_range),
        BENCH_TEST(long_files_are_read_on_to_their_end),
        BENCH_TEST(huge_files_are_read_without_being_loaded),
        BENCH_TEST(long_lines_are_cut_and_read_on_by_bytes),
        BENCH_TEST(what_is_no_text_is_named),
        BENCH_TEST(several_edits_are_made_or_none),
        BENCH_TEST(failed_edits_say_what_to_do),
        BENCH_TEST(growth_of_a_file_is_bounded),
        BENCH_TEST(files_are_read_before_they_are_changed),
        cmocka_unit_test(ledger_lists_files_in_order),
        cmocka_unit_test(what_is_written_over_is_compared),
        BENCH_TEST(too_large_files_are_not_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
