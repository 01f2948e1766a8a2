/* list, search, glob and grep. */
#include "tools_support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

static void put_text(const struct bench *bench, const char *name, const char *text) {
    bench_put(bench, name, view_of_text(text));
}

static void list_shows_names_in_order(void **state) {
    struct bench *bench = *state;
    bench_expect(bench, "list", "{}", TOOL_OK, "(empty directory)");
    put_text(bench, "b.py", "x");
    bench_call(bench, "write", "{\"path\":\"a/c.py\",\"content\":\"\"}");
    char link[2 * PATH_BYTES];
    (void)snprintf(link, sizeof link, "%s/z", bench->workspace);
    assert_int_equal(symlink("b.py", link), 0);
    bench_expect(bench, "list", "{}", TOOL_OK, "a/\nb.py\nz@");
    bench_expect(bench, "list", "{\"path\":\"a\"}", TOOL_OK, "c.py");
    bench_expect(bench, "list", "{\"path\":\"/workspace\"}", TOOL_OK, "a/\nb.py\nz@");
    bench_expect_part(
        bench, "list", "{\"path\":\"none\"}", TOOL_ERROR, "error: no such file: none"
    );
    for (int i = 0; i < 1100; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "a/f%04d", i);
        put_text(bench, name, "");
    }
    bench_expect_part(
        bench,
        "list",
        "{\"path\":\"a\"}",
        TOOL_OK,
        "f0998\n... [101 more entries omitted, from offset 1001] ..."
    );
    assert_true(bench->result.text_is_truncated);
}

static const char *const hidden_from[] = {"grep", "search", "glob", "list"};

static bool hides_secrets(void *context, struct view tool, struct view path) {
    size_t *asked = context;
    *asked += 1;
    bool is_known = false;
    for (size_t i = 0; i < COUNT_OF(hidden_from); i++) {
        is_known = is_known || view_equals_text(tool, hidden_from[i]);
    }
    assert_true(is_known); /* our name, whatever the dialect */
    return view_equals_text(path, "secrets") || view_starts_with(path, view_of_text("secrets/")) ||
           view_ends_with(path, view_of_text(".key"));
}

/* Everything that finds files by itself, in each dialect, from each way to name the directory. */
static void what_a_rule_hides_is_found_by_no_tool(void **state) {
    (void)state;
    static const struct {
        enum tool_dialect dialect;
        const char *tool, *arguments, *text;
    } rows[] = {
        {TOOL_DIALECT_HEARTH, "grep", "{\"pattern\":\"x\"}", "a.c:1:x\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH,
         "grep",
         "{\"pattern\":\"x\",\"path\":\"/workspace/./secrets/\"}",
         "no matches in 0 files\n(2 left out by a rule)"},
        {TOOL_DIALECT_HEARTH,
         "grep",
         "{\"pattern\":\"x\",\"path\":\"./lib\",\"mode\":\"count\"}",
         "no matches in 0 files\n(1 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "search", "{\"text\":\"x\"}", "a.c:1: x\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH,
         "search",
         "{\"text\":\"e\",\"in\":\"names\"}",
         "no matches in 1 files\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "glob", "{\"pattern\":\"**/*\"}", "a.c\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH,
         "glob",
         "{\"pattern\":\"*\",\"path\":\"secrets/in\"}",
         "no files match\n(1 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "list", "{}", "a.c\nlib/\n(1 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "list", "{\"depth\":2}", "a.c\nlib/\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "list", "{\"depth\":9}", "a.c\nlib/\n(3 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "list", "{\"path\":\".//lib\"}", "\n(1 left out by a rule)"},
        {TOOL_DIALECT_HEARTH, "list", "{\"path\":\"secrets\"}", "\n(2 left out by a rule)"},
        {TOOL_DIALECT_CLAUDE, "LS", "{\"path\":\".\"}", "a.c\nlib/\n(1 left out by a rule)"},
        {TOOL_DIALECT_CLAUDE, "Glob", "{\"pattern\":\"*\"}", "a.c\n(3 left out by a rule)"},
        {TOOL_DIALECT_CLAUDE, "Grep", "{\"pattern\":\"x\"}", "a.c\n(3 left out by a rule)"},
        {TOOL_DIALECT_CODEX, "list_dir", "{\"dir_path\":\"secrets\"}", "\n(2 left out by a rule)"},
        {TOOL_DIALECT_CODEX, "grep_files", "{\"pattern\":\"x\"}", "a.c\n(3 left out by a rule)"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t asked = 0;
        struct bench bench = {0};
        const struct tool_context_options options = {
            .set = tool_set_all(),
            .dialect = rows[i].dialect,
            .hides = hides_secrets,
            .hides_context = &asked};
        bench_open(&bench, NULL, &options);
        static const char *const folders[] = {"secrets", "secrets/in", "lib"};
        for (size_t k = 0; k < COUNT_OF(folders); k++) {
            char path[2 * PATH_BYTES];
            (void)snprintf(path, sizeof path, "%s/%s", bench.workspace, folders[k]);
            assert_int_equal(mkdir(path, 0755), 0);
        }
        put_text(&bench, "a.c", "x\n");
        put_text(&bench, "lib/e.key", "x\n");
        put_text(&bench, "secrets/e", "x\n");
        put_text(&bench, "secrets/in/e", "x\n");
        bench_expect(&bench, rows[i].tool, rows[i].arguments, TOOL_OK, rows[i].text);
        assert_true(asked > 0);
        bench_close(&bench);
    }
}

static void search_finds_lines_and_names(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a.py", "def one():\n    return two()\n\ndef two(): two\n");
    bench_call(bench, "write", "{\"path\":\"lib/two.py\",\"content\":\"two = 2\\nlast two\"}");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/.git", bench->workspace);
    assert_int_equal(mkdir(path, 0755), 0);
    put_text(bench, ".git/two", "two\n");
    static const unsigned char binary[] = {'t', 'w', 'o', 0};
    bench_put(bench, "data.bin", view_of(binary, sizeof binary));
    bench_expect(
        bench,
        "search",
        "{\"text\":\"two\"}",
        TOOL_OK,
        "a.py:2:     return two()\na.py:4: def two(): two\nlib/two.py:1: two = 2\n"
        "lib/two.py:2: last two\n(1 binary, large or unreadable files were not searched)"
    );
    bench_expect(bench, "search", "{\"text\":\"two\",\"in\":\"names\"}", TOOL_OK, "lib/two.py");
    bench_expect(bench, "search", "{\"text\":\"lib\",\"in\":\"names\"}", TOOL_OK, "lib/");
    bench_expect(
        bench, "search", "{\"text\":\"last\",\"path\":\"lib\"}", TOOL_OK, "lib/two.py:2: last two"
    );
    bench_expect(
        bench, "search", "{\"text\":\"absent\",\"path\":\"lib\"}", TOOL_OK, "no matches in 1 files"
    );
    bench_expect(
        bench, "search", "{\"text\":\"\"}", TOOL_REFUSED, "error: the text to search for is empty"
    );
    bench_expect(
        bench,
        "search",
        "{\"text\":\"x\",\"path\":\"none\"}",
        TOOL_ERROR,
        "error: no such directory: none"
    );
    bench_expect_part(
        bench,
        "search",
        "{\"text\":\"x\",\"in\":\"dreams\"}",
        TOOL_REFUSED,
        "one of: content, names"
    );
}

static void search_goes_through_deep_trees_in_order(void **state) {
    struct bench *bench = *state;
    bench_call(bench, "write", "{\"path\":\"b/x/1\",\"content\":\"needle\"}");
    bench_call(bench, "write", "{\"path\":\"a/y/2\",\"content\":\"needle\"}");
    bench_call(bench, "write", "{\"path\":\"a/z\",\"content\":\"needle\"}");
    bench_call(bench, "write", "{\"path\":\"c\",\"content\":\"needle\"}");
    bench_expect(
        bench,
        "search",
        "{\"text\":\"needle\"}",
        TOOL_OK,
        "c:1: needle\na/z:1: needle\na/y/2:1: needle\nb/x/1:1: needle"
    );
}

static void search_is_bounded(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    for (int i = 0; i < 1000; i++) {
        MUST(buffer_append_text(&content, "needle\n", &must_error));
    }
    bench_put(bench, "many", buffer_view(&content));
    bench_expect_part(
        bench,
        "search",
        "{\"text\":\"needle\"}",
        TOOL_OK,
        "\n... [stopped after 200 matches in 1 files]"
    );
    assert_true(bench->result.text_is_truncated);
    buffer_clear(&content);
    for (int i = 0; i < 1000; i++) {
        MUST(buffer_append_text(&content, "long", &must_error));
    }
    bench_put(bench, "many", buffer_view(&content));
    bench_call(bench, "search", "{\"text\":\"long\"}");
    assert_true(bench->result.text.length < 250);
    assert_non_null(strstr(buffer_text(&bench->result.text), "long ..."));
}

static int64_t racing_ms(void *context) {
    int64_t *now = context;
    *now += 1000;
    return *now;
}

static void time_limit_stops_a_search(void **state) {
    (void)state;
    struct bench bench;
    int64_t now = 0;
    struct tool_context_options options = {0};
    options.set = tool_set_all();
    options.clock.monotonic_ms = racing_ms;
    options.clock.wall_ms = racing_ms;
    options.clock.context = &now;
    options.time_ms_max = 5000;
    bench_open(&bench, NULL, &options);
    for (int i = 0; i < 20; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "f%d", i);
        put_text(&bench, name, "x");
    }
    bench_expect(&bench, "search", "{\"text\":\"x\"}", TOOL_TIMEOUT, "error: stopped after 5 s");
    tool_context_limit_time(bench.context, 100);
    bench_expect(&bench, "read", "{\"path\":\"f1\"}", TOOL_TIMEOUT, "error: stopped after 100 ms");
    tool_context_limit_time(bench.context, 0);
    bench_expect(&bench, "read", "{\"path\":\"f1\"}", TOOL_OK, "     1\tx");
    tool_context_limit_time(bench.context, 999999);
    bench_expect(&bench, "search", "{\"text\":\"x\"}", TOOL_TIMEOUT, "error: stopped after 5 s");
    bench_close(&bench);
}

static void put_tree(struct bench *bench) {
    static const char *const files[][2] = {
        {".gitignore", "build/\n*.log\n"},
        {"a.c", "int main(void) {\n    return one();\n}\n"},
        {"src/b.c", "int one(void) {\n    // one\n    return 1;\n}\n"},
        {"src/b.h", "int one(void);\n"},
        {"src/deep/c.py", "def One():\r\n    return 1\r\n"},
        {"build/a.c", "one\n"},
        {"src/x.log", "one\n"}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
        buffer_init(&arguments, 1000);
        struct json_writer writer;
        json_writer_init(&writer, &arguments, &must_error);
        json_write_object_begin(&writer);
        json_write_key(&writer, "path");
        json_write_text(&writer, files[i][0]);
        json_write_key(&writer, "content");
        json_write_text(&writer, files[i][1]);
        json_write_object_end(&writer);
        MUST(json_writer_finish(&writer));
        bench_call(bench, "write", buffer_text(&arguments));
        assert_int_equal(bench->result.status, TOOL_OK);
        char path[2 * PATH_BYTES];
        const struct timespec times[] = {{1000 + (time_t)i, 0}, {1000 + (time_t)i, 0}};
        (void)snprintf(path, sizeof path, "%s/%s", bench->workspace, files[i][0]);
        assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    }
}

static void list_shows_a_tree_in_parts(void **state) {
    struct bench *bench = *state;
    put_tree(bench);
    bench_expect(bench, "list", "{}", TOOL_OK, ".gitignore\na.c\nbuild/\nsrc/");
    bench_expect(
        bench,
        "list",
        "{\"depth\":2}",
        TOOL_OK,
        ".gitignore\na.c\nsrc/\nsrc/b.c\nsrc/b.h\nsrc/deep/"
    );
    bench_expect(
        bench, "list", "{\"path\":\"./src\",\"depth\":5,\"offset\":3}", TOOL_OK, "deep/\ndeep/c.py"
    );
    bench_expect(bench, "list", "{\"offset\":9}", TOOL_ERROR, "error: there are 4 entries");
}

static void glob_finds_by_pattern(void **state) {
    struct bench *bench = *state;
    put_tree(bench);
    bench_expect(bench, "glob", "{\"pattern\":\"*.c\"}", TOOL_OK, "src/b.c\na.c"); // newest first
    bench_expect(
        bench,
        "glob",
        "{\"pattern\":\"**/*.{h,py}\",\"sort\":\"name\"}",
        TOOL_OK,
        "src/b.h\nsrc/deep/c.py"
    );
    bench_expect(bench, "glob", "{\"pattern\":\"src/*.c\"}", TOOL_OK, "src/b.c");
    bench_expect(bench, "glob", "{\"pattern\":\"/workspace/src/*.c\"}", TOOL_OK, "src/b.c");
    bench_expect(
        bench,
        "glob",
        "{\"pattern\":\"b.*\",\"path\":\"src/\",\"limit\":1}",
        TOOL_OK,
        "src/b.h\n... [1 more files match] ..."
    );
    bench_expect(bench, "glob", "{\"pattern\":\"*.log\"}", TOOL_OK, "no files match");
    bench_expect_part(bench, "glob", "{\"pattern\":\"/etc/*\"}", TOOL_REFUSED, "bad path");
    bench_expect_part(
        bench,
        "glob",
        "{\"pattern\":\"*\",\"path\":\"gone\"}",
        TOOL_ERROR,
        "no such directory: gone"
    );
}

static void grep_shows_lines_files_or_counts(void **state) {
    struct bench *bench = *state;
    put_tree(bench);
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"\\\\bone\\\\(\"}",
        TOOL_OK,
        "a.c:2:    return one();\nsrc/b.c:1:int one(void) {\nsrc/b.h:1:int one(void);"
    );
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"ONE\",\"ignore_case\":true,\"mode\":\"files\"}",
        TOOL_OK,
        "a.c\nsrc/b.c\nsrc/b.h\nsrc/deep/c.py"
    );
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"one\",\"mode\":\"count\",\"path\":\"src\"}",
        TOOL_OK,
        "src/b.c:2\nsrc/b.h:1"
    );
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"return \\\\d$\",\"glob\":\"**/*.py\",\"context\":1}",
        TOOL_OK,
        "src/deep/c.py-1-def One():\nsrc/deep/c.py:2:    return 1"
    );
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"one\",\"path\":\"src/b.c\",\"limit\":1}",
        TOOL_OK,
        "src/b.c:1:int one(void) {\n... [stopped after 1 matches in 1 files] ..."
    );
    bench_expect(bench, "grep", "{\"pattern\":\"zero\"}", TOOL_OK, "no matches in 5 files");
    bench_expect_part(
        bench, "grep", "{\"pattern\":\"(a\"}", TOOL_REFUSED, "error: pattern: ( without )"
    );
    bench_expect_part(
        bench, "grep", "{\"pattern\":\"a\",\"path\":\"../x\"}", TOOL_REFUSED, "bad path"
    );
}

static void grep_shows_each_line_once(void **state) {
    struct bench *bench = *state;
    put_text(bench, "f", "1\nx2\n3\n4\nx5\n6\n7\n8\n9\nx10\nx11");
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"x\",\"before\":1,\"after\":2}",
        TOOL_OK,
        "f-1-1\nf:2:x2\nf-3-3\nf-4-4\nf:5:x5\nf-6-6\nf-7-7\n--\nf-9-9\nf:10:x10\nf:11:x11"
    );
}

static void grep_of_hostile_files_is_bounded(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    while (content.length < 5000000) {
        MUST(buffer_append_text(
            &content,
            "\xFF"
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            &must_error
        ));
    }
    bench_put(bench, "line", buffer_view(&content));
    bench_put(bench, "binary", view_of("b\0", 2));
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/pipe", bench->workspace);
    assert_int_equal(mkfifo(path, 0600), 0);
    (void)snprintf(path, sizeof path, "%s/link", bench->workspace);
    assert_int_equal(symlink("line", path), 0);
    put_text(bench, "sparse", "b");
    (void)snprintf(path, sizeof path, "%s/sparse", bench->workspace);
    assert_int_equal(truncate(path, (off_t)3 << 40), 0);
    bench_expect(
        bench,
        "grep",
        "{\"pattern\":\"(a*)*[bc]\"}",
        TOOL_OK,
        "no matches in 3 files\n(2 binary, large or unreadable files were not searched)\n(of 1 "
        "lines "
        "only the first 65536 bytes were searched)"
    );
    bench_call(bench, "grep", "{\"pattern\":\"a\"}");
    assert_true(bench->result.text.length < 1000);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(list_shows_names_in_order),
        BENCH_TEST(list_shows_a_tree_in_parts),
        BENCH_TEST(glob_finds_by_pattern),
        BENCH_TEST(grep_shows_lines_files_or_counts),
        BENCH_TEST(grep_shows_each_line_once),
        BENCH_TEST(grep_of_hostile_files_is_bounded),
        cmocka_unit_test(what_a_rule_hides_is_found_by_no_tool),
        BENCH_TEST(search_finds_lines_and_names),
        BENCH_TEST(search_goes_through_deep_trees_in_order),
        BENCH_TEST(search_is_bounded),
        cmocka_unit_test(time_limit_stops_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
