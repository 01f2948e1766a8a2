/* list, search, glob and grep. */
#include "tools_support.h"

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
        bench, "list", "{\"path\":\"a\"}", TOOL_OK, "f0998\n... [101 more entries omitted, from offset 1001] ..."
    );
    assert_true(bench->result.text_is_truncated);
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

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(list_shows_names_in_order),
        BENCH_TEST(search_finds_lines_and_names),
        BENCH_TEST(search_goes_through_deep_trees_in_order),
        BENCH_TEST(search_is_bounded),
        cmocka_unit_test(time_limit_stops_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
