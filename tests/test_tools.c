/* The tools that the bundled model knows, without a sandbox: bad calls, and every text. */
#include "tools_support.h"

#include <sys/stat.h>
#include <unistd.h>

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    bench_open(bench, NULL, NULL);
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

/* ------------------------------------------------------------- bad calls ---- */

static void unknown_tools_are_refused_with_the_known_ones(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench,
        "bash",
        "{\"command\":\"ls\"}",
        TOOL_REFUSED,
        "error: unknown tool: bash; the tools are: shell, read, edit, write, finish"
    );
    bench_expect_part(bench, "../bin/shell", "{}", TOOL_REFUSED, "unknown tool: ../bin/shell;");
    bench_expect_part(bench, "", "{}", TOOL_REFUSED, "unknown tool: ;");
    bench_expect_part(bench, "sh\x1b[31mell", "{}", TOOL_REFUSED, "\\x1b[31m");
    char long_name[2000];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    bench_call(bench, long_name, "{}");
    assert_true(bench->result.text.length < 200);
}

static void tools_that_are_not_offered_are_unknown(void **state) {
    (void)state;
    struct bench bench;
    struct tool_context_options options = {0};
    options.set = TOOL_SET_DEFAULT;
    bench_open(&bench, NULL, &options);
    bench_expect(
        &bench,
        "list",
        "{}",
        TOOL_REFUSED,
        "error: unknown tool: list; the tools are: shell, read, edit, write"
    );
    bench_close(&bench);
}

static void bad_arguments_are_refused_in_words(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a\",\"old\":\"b\"}",
        TOOL_REFUSED,
        "error: missing parameter 'new'; edit takes path (string), old (string), new (string)"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":7}",
        TOOL_REFUSED,
        "error: parameter 'path' must be of type string, not a number; read takes path (string)"
    );
    bench_expect_part(
        bench, "read", "{\"path\":\"a\",\"limit\":5}", TOOL_REFUSED, "unknown parameter 'limit'"
    );
    bench_expect_part(bench, "read", "", TOOL_REFUSED, "arguments of read are not valid JSON");
    bench_expect_part(bench, "read", "{\"path\":", TOOL_REFUSED, "not valid JSON");
    bench_expect_part(bench, "read", "\"a\"", TOOL_REFUSED, "must be an object, not a string");
    bench_expect_part(
        bench, "read", "{\"path\":\"a\",\"path\":\"b\"}", TOOL_REFUSED, "not valid JSON"
    );
    bench_expect_part(bench, "read", "{\"path\":\"a\\u0000b\"}", TOOL_REFUSED, "not valid JSON");
    char deep[300];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    bench_expect_part(bench, "read", deep, TOOL_REFUSED, "not valid JSON");
}

static void shell_without_a_sandbox_is_refused(void **state) {
    bench_expect(
        *state,
        "shell",
        "{\"command\":\"id\"}",
        TOOL_REFUSED,
        "error: commands cannot be run here: there is no sandbox"
    );
}

/* -------------------------------------------------------------------- read ---- */

static void read_gives_the_text_without_its_last_newlines(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a.py", "def f():\n    return 1\n");
    bench_expect(bench, "read", "{\"path\":\"a.py\"}", TOOL_OK, "def f():\n    return 1");
    assert_false(bench->result.text_is_truncated);
    assert_false(bench->result.ends_task);
    bench_expect(bench, "read", "{\"path\":\"./a.py\"}", TOOL_OK, "def f():\n    return 1");
    bench_expect(
        bench, "read", "{\"path\":\"/workspace/a.py\"}", TOOL_OK, "def f():\n    return 1"
    );
    bench_expect(bench, "read", "{\"path\":\".//a.py\"}", TOOL_OK, "def f():\n    return 1");
    put_text(bench, "blank", "x\n\n\n");
    bench_expect(bench, "read", "{\"path\":\"blank\"}", TOOL_OK, "x");
    put_text(bench, "empty", "");
    bench_expect(bench, "read", "{\"path\":\"empty\"}", TOOL_OK, "");
    put_text(bench, "dos", "a\r\nb\r\n");
    bench_expect(bench, "read", "{\"path\":\"dos\"}", TOOL_OK, "a\nb");
    put_text(bench, "unicode", "h\xC3\xA9llo \xF0\x9F\x98\x80\n");
    bench_expect(bench, "read", "{\"path\":\"unicode\"}", TOOL_OK, "h\xC3\xA9llo \xF0\x9F\x98\x80");
    put_text(bench, "latin", "h\xE9llo\n");
    bench_expect(bench, "read", "{\"path\":\"latin\"}", TOOL_OK, "h\xEF\xBF\xBDllo");
    put_text(bench, "escape", "a\x1b[2Jb\n");
    bench_expect(bench, "read", "{\"path\":\"escape\"}", TOOL_OK, "a\\x1b[2Jb");
}

static void read_of_what_is_no_text_file_says_why(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench, "read", "{\"path\":\"gone.py\"}", TOOL_ERROR, "error: no such file: gone.py"
    );
    bench_expect(
        bench,
        "read",
        "{\"path\":\"no/such/dir.py\"}",
        TOOL_ERROR,
        "error: no such file: no/such/dir.py"
    );
    static const unsigned char binary[] = {0x7F, 'E', 'L', 'F', 0, 1};
    bench_put(bench, "program", view_of(binary, sizeof binary));
    bench_expect(
        bench,
        "read",
        "{\"path\":\"program\"}",
        TOOL_ERROR,
        "error: program is a binary file (6 bytes)"
    );
    bench_expect(
        bench, "read", "{\"path\":\".\"}", TOOL_ERROR, "error: no such file: . (it is a directory)"
    );
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/pipe", bench->workspace);
    assert_int_equal(mkfifo(path, 0600), 0);
    bench_expect_part(
        bench, "read", "{\"path\":\"pipe\"}", TOOL_REFUSED, "error: bad path: pipe ("
    );
}

static void long_file_is_cut_at_lines_and_kept_for_the_record(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    for (int i = 0; i < 20000; i++) {
        MUST(buffer_append_format(&content, &must_error, "line %d\n", i));
    }
    bench_put(bench, "long", buffer_view(&content));
    bench_call(bench, "read", "{\"path\":\"long\"}");
    const struct tool_result *read = &bench->result;
    assert_true(read->text_is_truncated);
    assert_true(read->text.length <= TOOL_TEXT_BYTES_DEFAULT + 100);
    assert_true(read->text.length > TOOL_TEXT_BYTES_DEFAULT / 2);
    assert_true(view_equals(buffer_view(&read->output), buffer_view(&content)));
    assert_int_equal(read->output_bytes, content.length);
    // Text plus what it says it leaves out is the file.
    char marker[100];
    int length = snprintf(
        marker,
        sizeof marker,
        "\n... [%llu bytes omitted] ...\n",
        (unsigned long long)read->omitted_bytes
    );
    assert_non_null(strstr(buffer_text(&read->text), marker));
    size_t shown = read->text.length - (size_t)length;
    assert_int_equal(shown + read->omitted_bytes + 1, content.length);
    assert_int_equal(content.data[read->omitted_at], '\n');
    assert_int_equal(content.data[read->omitted_at + read->omitted_bytes - 1], '\n');
    assert_true(view_starts_with(buffer_view(&read->text), view_of_text("line 0\nline 1\n")));
    assert_true(view_ends_with(buffer_view(&read->text), view_of_text("line 19998\nline 19999")));
}

static void huge_file_is_refused_by_size(void **state) {
    struct bench *bench = *state;
    put_text(bench, "huge", "x");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/huge", bench->workspace);
    assert_int_equal(truncate(path, (off_t)3 << 40), 0);
    bench_expect_part(
        bench, "read", "{\"path\":\"huge\"}", TOOL_ERROR, "error: huge is too large: 3298534883328"
    );
    bench_expect_part(
        bench,
        "edit",
        "{\"path\":\"huge\",\"old\":\"x\",\"new\":\"y\"}",
        TOOL_ERROR,
        "error: huge is too large"
    );
}

/* -------------------------------------------------------------------- edit ---- */

static void edit_replaces_the_one_occurrence(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a.py", "x = 1\ny = 2\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a.py\",\"old\":\"x = 1\",\"new\":\"x = 3\"}",
        TOOL_OK,
        "ok: edited a.py"
    );
    assert_file(bench, "a.py", "x = 3\ny = 2\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a.py\",\"old\":\"x = 1\",\"new\":\"x = 3\"}",
        TOOL_ERROR,
        "error: old text not found in a.py"
    );
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a.py\",\"old\":\"\",\"new\":\"z\"}",
        TOOL_ERROR,
        "error: old text not found in a.py"
    );
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a.py\",\"old\":\" = \",\"new\":\"=\"}",
        TOOL_ERROR,
        "error: old text found 2 times in a.py, give more context"
    );
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"gone.py\",\"old\":\"a\",\"new\":\"b\"}",
        TOOL_ERROR,
        "error: no such file: gone.py"
    );
    assert_file(bench, "a.py", "x = 3\ny = 2\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"a.py\",\"old\":\"x = 3\\ny = 2\\n\",\"new\":\"\"}",
        TOOL_OK,
        "ok: edited a.py"
    );
    assert_file(bench, "a.py", "");
}

static void edit_counts_without_overlap(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "aaa");
    bench_expect(
        bench, "edit", "{\"path\":\"a\",\"old\":\"aa\",\"new\":\"b\"}", TOOL_OK, "ok: edited a"
    );
    assert_file(bench, "a", "ba");
    put_text(bench, "b", "aaaa");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"b\",\"old\":\"aa\",\"new\":\"b\"}",
        TOOL_ERROR,
        "error: old text found 2 times in b, give more context"
    );
}

static void edit_keeps_cr_lf(void **state) {
    struct bench *bench = *state;
    put_text(bench, "dos.py", "a = 1\r\nb = 2\r\nc = 3\r\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"dos.py\",\"old\":\"a = 1\\nb = 2\",\"new\":\"a = 0\\nb = 0\\nd = 4\"}",
        TOOL_OK,
        "ok: edited dos.py"
    );
    assert_file(bench, "dos.py", "a = 0\r\nb = 0\r\nd = 4\r\nc = 3\r\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"dos.py\",\"old\":\"d = 4\\r\\n\",\"new\":\"\"}",
        TOOL_OK,
        "ok: edited dos.py"
    );
    assert_file(bench, "dos.py", "a = 0\r\nb = 0\r\nc = 3\r\n");
}

static void edit_of_unicode_and_binary_changes_only_its_bytes(void **state) {
    struct bench *bench = *state;
    put_text(bench, "u", "na\xC3\xAFve \xF0\x9F\x98\x80 \xE9\n");
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"u\",\"old\":\"\xF0\x9F\x98\x80\",\"new\":\"\\u00e9\"}",
        TOOL_OK,
        "ok: edited u"
    );
    assert_file(bench, "u", "na\xC3\xAFve \xC3\xA9 \xE9\n");
    static const unsigned char binary[] = {0, 1, 'k', 'e', 'y', 0};
    bench_put(bench, "b", view_of(binary, sizeof binary));
    bench_expect(
        bench, "edit", "{\"path\":\"b\",\"old\":\"key\",\"new\":\"KEYS\"}", TOOL_OK, "ok: edited b"
    );
    static const unsigned char edited[] = {0, 1, 'K', 'E', 'Y', 'S', 0};
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    bench_get(bench, "b", &content);
    assert_true(view_equals(buffer_view(&content), view_of(edited, sizeof edited)));
}

static void edit_keeps_the_mode(void **state) {
    struct bench *bench = *state;
    put_text(bench, "run.sh", "echo a\n");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/run.sh", bench->workspace);
    assert_int_equal(chmod(path, 0755), 0);
    bench_expect(
        bench,
        "edit",
        "{\"path\":\"run.sh\",\"old\":\"a\",\"new\":\"b\"}",
        TOOL_OK,
        "ok: edited run.sh"
    );
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777U, 0755);
}

/* ------------------------------------------------------------------- write ---- */

static void write_makes_parents_and_replaces(void **state) {
    struct bench *bench = *state;
    bench_expect(
        bench,
        "write",
        "{\"path\":\"src/deep/a.py\",\"content\":\"print(1)\\n\"}",
        TOOL_OK,
        "ok: wrote src/deep/a.py"
    );
    assert_file(bench, "src/deep/a.py", "print(1)\n");
    bench_expect(
        bench,
        "write",
        "{\"path\":\"/workspace/src/deep/a.py\",\"content\":\"\"}",
        TOOL_OK,
        "ok: wrote /workspace/src/deep/a.py"
    );
    assert_file(bench, "src/deep/a.py", "");
    bench_expect_part(
        bench,
        "write",
        "{\"path\":\"src\",\"content\":\"x\"}",
        TOOL_REFUSED,
        "error: bad path: src ("
    );
    bench_expect_part(
        bench,
        "write",
        "{\"path\":\"src/deep/a.py/b\",\"content\":\"x\"}",
        TOOL_REFUSED,
        "src/deep/a.py/b"
    );
}

static void paths_that_lead_outside_are_refused(void **state) {
    struct bench *bench = *state;
    char link[2 * PATH_BYTES];
    (void)snprintf(link, sizeof link, "%s/link", bench->workspace);
    assert_int_equal(symlink("/etc", link), 0);
    (void)snprintf(link, sizeof link, "%s/passwd", bench->workspace);
    assert_int_equal(symlink("/etc/passwd", link), 0);
    static const char *const paths[] = {
        "../x",
        "/etc/passwd",
        "a/../../x",
        "link/passwd",
        "passwd",
        "/workspace/../etc/passwd",
        "/workspace2/x",
        "..",
        "//etc/passwd",
        "/proc/self/root/etc/passwd"};
    static const char *const calls[][2] = {
        {"read", "{\"path\":\"%s\"}"},
        {"edit", "{\"path\":\"%s\",\"old\":\"root\",\"new\":\"x\"}"},
        {"write", "{\"path\":\"%s\",\"content\":\"hacked\"}"}};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        for (size_t j = 0; j < COUNT_OF(calls); j++) {
            char arguments[300];
            const char *hole = strstr(calls[j][1], "%s");
            (void)snprintf(
                arguments,
                sizeof arguments,
                "%.*s%s%s",
                (int)(hole - calls[j][1]),
                calls[j][1],
                paths[i],
                hole + 2
            );
            bench_call(bench, calls[j][0], arguments);
            const char *text = buffer_text(&bench->result.text);
            if (bench->result.status == TOOL_OK || strstr(text, "error: ") != text ||
                strstr(text, "root:") != NULL) {
                fail_msg("%s %s: %s", calls[j][0], arguments, text);
            }
        }
    }
    bench_expect_part(
        bench, "write", "{\"path\":\".git/config\",\"content\":\"x\"}", TOOL_REFUSED, "bad path"
    );
}

static void absurd_paths_are_refused(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&arguments, 100000);
    MUST(buffer_append_text(&arguments, "{\"path\":\"", &must_error));
    for (int i = 0; i < 5000; i++) {
        MUST(buffer_append_text(&arguments, "a/", &must_error));
    }
    MUST(buffer_append_text(&arguments, "\"}", &must_error));
    bench_expect_part(
        bench, "read", buffer_text(&arguments), TOOL_REFUSED, "10000 bytes, at most 4000"
    );
    assert_true(bench->result.text.length < 300);
    bench_call(bench, "read", "{\"path\":\"\"}");
    assert_int_not_equal(bench->result.status, TOOL_OK);
    bench_call(bench, "write", "{\"path\":\"\",\"content\":\"x\"}");
    assert_int_not_equal(bench->result.status, TOOL_OK);
    bench_call(bench, "write", "{\"path\":\"a/\",\"content\":\"x\"}");
    assert_int_not_equal(bench->result.status, TOOL_OK);
}

/* ------------------------------------------------------------------ finish ---- */

static void finish_ends_the_task(void **state) {
    struct bench *bench = *state;
    bench_expect(bench, "finish", "{\"summary\":\"Fixed it.\"}", TOOL_OK, "Fixed it.");
    assert_true(bench->result.ends_task);
}

/* -------------------------------------------------- cancel, time, leaks ---- */

static void cancel_ends_all_later_calls(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "x");
    tool_cancel(bench->context);
    bench_expect(bench, "read", "{\"path\":\"a\"}", TOOL_CANCELLED, "error: cancelled");
    bench_expect(
        bench, "write", "{\"path\":\"a\",\"content\":\"y\"}", TOOL_CANCELLED, "error: cancelled"
    );
    assert_file(bench, "a", "x");
}

static void thousand_calls_leave_no_descriptor(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "x y\n");
    size_t before = open_descriptor_count();
    for (int i = 0; i < 170; i++) {
        bench_call(bench, "read", "{\"path\":\"a\"}");
        bench_call(bench, "read", "{\"path\":\"gone\"}");
        bench_call(bench, "edit", "{\"path\":\"a\",\"old\":\"x\",\"new\":\"x\"}");
        bench_call(bench, "write", "{\"path\":\"d/b\",\"content\":\"x\"}");
        bench_call(bench, "write", "{\"path\":\"../b\",\"content\":\"x\"}");
        bench_call(bench, "nothing", "{");
    }
    assert_int_equal(open_descriptor_count(), before);
}

static void workspace_must_be_a_directory(void **state) {
    const struct bench *bench = *state;
    struct tool_context_options options = {0};
    options.clock = clock_real();
    struct tool_context *context = NULL;
    struct error error = {0};
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/none", bench->workspace);
    options.workspace = path;
    assert_int_equal(tool_context_create(&context, &options, &error).code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, path));
    put_text(bench, "none", "");
    assert_int_equal(tool_context_create(&context, &options, &error).code, RESULT_INVALID_INPUT);
    assert_null(context);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(unknown_tools_are_refused_with_the_known_ones),
        cmocka_unit_test(tools_that_are_not_offered_are_unknown),
        BENCH_TEST(bad_arguments_are_refused_in_words),
        BENCH_TEST(shell_without_a_sandbox_is_refused),
        BENCH_TEST(read_gives_the_text_without_its_last_newlines),
        BENCH_TEST(read_of_what_is_no_text_file_says_why),
        BENCH_TEST(long_file_is_cut_at_lines_and_kept_for_the_record),
        BENCH_TEST(huge_file_is_refused_by_size),
        BENCH_TEST(edit_replaces_the_one_occurrence),
        BENCH_TEST(edit_counts_without_overlap),
        BENCH_TEST(edit_keeps_cr_lf),
        BENCH_TEST(edit_of_unicode_and_binary_changes_only_its_bytes),
        BENCH_TEST(edit_keeps_the_mode),
        BENCH_TEST(write_makes_parents_and_replaces),
        BENCH_TEST(paths_that_lead_outside_are_refused),
        BENCH_TEST(absurd_paths_are_refused),
        BENCH_TEST(finish_ends_the_task),
        BENCH_TEST(cancel_ends_all_later_calls),
        BENCH_TEST(thousand_calls_leave_no_descriptor),
        BENCH_TEST(workspace_must_be_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
