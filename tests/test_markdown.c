/* Markdown and differences as lines of a terminal: what they look like, and that no text of a model
 * does anything to the terminal. */
#include "runtime/diff.h"
#include "runtime/lines.h"
#include "runtime/markdown.h"

#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct shown {
    struct lines lines;
    const char *text;
};

static void shown_deinit(struct shown *shown) {
    lines_deinit(&shown->lines);
}

/* What comes of a text that arrives in pieces of so many bytes. */
static struct shown show(struct view text, int width, bool has_colour, size_t piece) {
    struct shown shown;
    struct markdown *markdown = NULL;
    struct error error = {0};
    lines_init(&shown.lines, width, has_colour);
    assert_true(is_ok(markdown_create(&markdown, &error)));
    for (size_t at = 0; at < text.length; at += piece) {
        markdown_append(markdown, view_slice(text, at, piece), &shown.lines);
        assert_true(markdown_tail(markdown).length <= MARKDOWN_BLOCK_BYTES_MAX);
    }
    markdown_end(markdown, &shown.lines);
    assert_int_equal(markdown_tail(markdown).length, 0);
    markdown_destroy(markdown);
    shown.text = buffer_text(&shown.lines.text);
    return shown;
}

static void assert_shown(const char *text, int width, bool has_colour, const char *expected) {
    static const size_t pieces[] = {1, 2, 3, 7, 64, 100000};
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        CLEANUP(shown_deinit)
        struct shown shown = show(view_of_text(text), width, has_colour, pieces[i]);
        assert_string_equal(shown.text, expected);
    }
}

static void blocks_are_shown_alike_however_they_stream_in(void **state) {
    (void)state;
    assert_shown(
        "# Title\nfirst *em* **strong** `a b`\nsecond\n\n\n- one\n- two\n  going on\n\n> quoted\n"
        "> more\n\n1. x\n2. y\n\n***\n~~gone~~\n\nUnderlined\n====\n",
        40,
        false,
        "# Title\nfirst *em* **strong** `a b` second\n\n- one\n- two going on\n\n> quoted more\n\n"
        "1. x\n2. y\n\n----------\n~~gone~~\n\n# Underlined\n"
    );
}

static void marks_become_escapes_where_there_is_colour(void **state) {
    (void)state;
    assert_shown(
        "a **b c** `d` [e](http://f)\n",
        40,
        true,
        "a \x1b[1mb c\x1b[0m \x1b[36md\x1b[0m \x1b[4me\x1b[0m (http://f)\n"
    );
    /* A style does not reach over the end of a line into a prefix. */
    assert_shown(
        "- **aaaa bbbb cccc dddd eeee**\n",
        20,
        true,
        "- \x1b[1maaaa bbbb cccc\x1b[0m\n  \x1b[1mdddd eeee\x1b[0m\n"
    );
}

static void code_keeps_its_lines_and_blanks(void **state) {
    (void)state;
    assert_shown(
        "x\n```python\ndef f():\n\n    return  1 # *no*\n```\ny\n",
        40,
        false,
        "x\n  def f():\n\n      return  1 # *no*\ny\n"
    );
    assert_shown(
        "- item\n  ```\n  a\n\n  b\n  ```\n- next\n", 40, false, "- item\n    a\n\n    b\n- next\n"
    );
    assert_shown("~~~\n```\nnever closed", 40, false, "  ```\n  never closed\n");
}

static void nested_lists_keep_their_depth(void **state) {
    (void)state;
    assert_shown(
        "1. a\n   - b\n     - c\n2. d\n\n   para\n- [x] done\n",
        40,
        false,
        "1. a\n   - b\n     - c\n2. d\n   para\n\n[x] done\n"
    );
}

static void tables_are_aligned_and_wrapped_in_their_columns(void **state) {
    (void)state;
    const char *table = "|name|what it is|\n|---|---|\n|a|one two three four|\n|\xe4\xbd\xa0|z|\n";
    assert_shown(
        table,
        40,
        false,
        "name | what it is\n-----|-------------------\na    | one two three four\n"
        "\xe4\xbd\xa0   | z\n"
    );
    assert_shown(
        table,
        20,
        false,
        "name | what it is\n-----|------------\na    | one two\n     | three four\n"
        "\xe4\xbd\xa0   | z\n"
    );
    assert_shown("|a|b|\n|---|---|\n|1\t2|3|\n", 40, false, "a   | b\n----|--\n1 2 | 3\n");
}

static void lines_fit_the_width_in_columns(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 20);
    for (int i = 0; i < 300; i++) {
        assert_true(is_ok(buffer_append_text(
            &text,
            i % 7 == 0    ? "\xe4\xbd\xa0\xe5\xa5\xbd"
            : i % 11 == 0 ? "aaaaaaaaaaaaaaaaaaaaaaaaaaaa "
                          : "e\xcc\x81t ",
            NULL
        )));
    }
    for (int width = 20; width < 90; width += 7) {
        CLEANUP(shown_deinit) struct shown shown = show(buffer_view(&text), width, false, 5);
        struct cursor cursor = cursor_over(buffer_view(&shown.lines.text));
        struct view line;
        size_t count = 0;
        for (; cursor_take_until(&cursor, '\n', &line); count++) {
            assert_true(columns_of_text(line) <= width - 2);
        }
        assert_true(count > 5);
    }
}

static void entities_are_read_but_those_that_act_upon_a_terminal(void **state) {
    (void)state;
    assert_shown(
        "&lt;b&gt; &amp;&#65;&#27;[31m &#8238;x\n", 60, false, "<b> &A&#27;[31m \\u202ex\n"
    );
}

/* Escapes, controls and marks of direction, whole and torn, in every kind of block. */
static void hostile_text_is_harmless(void **state) {
    (void)state;
    static const char *const hostile[] = {
        "\x1b[2J\x1b]0;title\x07 \xc2\x9b"
        "31m \xe2\x80\xae rtl \x7f \b\b\r over",
        "# \x1b[31mx\n- \x1b[31m\n> \x1b[31m\n```\n\x1b[31m\n```\n    "
        "\x1b[31m\n|\x1b[3m|b|\n|-|-|\n|\x1b[1m|c|\n",
        "[a](\x1b[31m) ![i](\x1b]8;;x\x07) `\x1b[0m` <\x1b[1m>",
    };
    for (size_t i = 0; i < COUNT_OF(hostile); i++) {
        for (size_t piece = 1; piece < 9; piece++) {
            CLEANUP(shown_deinit)
            struct shown shown = show(view_of_text(hostile[i]), 40, false, piece);
            for (const char *at = shown.text; *at != '\0'; at++) {
                assert_true((unsigned char)*at >= 0x20 || *at == '\n');
                assert_int_not_equal(*at, 0x7F);
            }
            assert_null(strstr(shown.text, "\xc2\x9b"));
            assert_null(strstr(shown.text, "\xe2\x80\xae"));
            assert_true(utf8_is_valid(buffer_view(&shown.lines.text)));
        }
    }
}

/* Nothing is quadratic, nothing recurses, and what is unfinished stays short (asserted in show). */
static void a_megabyte_of_one_mark_is_bounded(void **state) {
    (void)state;
    static const char *const units[] = {
        "a",       "word ", "> ",  "- ",           "* *", "[",  "[a](b",    "`",
        "`a``b",   "<",     "&",   "|a",           "_a ", "# ", "\xff\xc3", "\xcc\x81",
        "  - x\n", "```\n", "x\n", "\xe4\xbd\xa0",
    };
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 4 << 20);
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        buffer_clear(&text);
        while (text.length < (1 << 20)) {
            assert_true(is_ok(buffer_append_text(&text, units[i], NULL)));
        }
        CLEANUP(shown_deinit) struct shown shown = show(buffer_view(&text), 40, true, 4096);
        assert_true(shown.lines.text.length < (16 << 20));
    }
}

static void characters_without_width_do_not_heap_up(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 20);
    for (int i = 0; i < 20000; i++) {
        assert_true(is_ok(buffer_append_text(&text, i == 0 ? "a" : "\xcc\x81", NULL)));
    }
    struct lines lines;
    lines_init(&lines, 40, false);
    lines_put_line(&lines, STYLE_TEXT, "", buffer_view(&text));
    assert_true(lines.text.length < 32);
    lines_deinit(&lines);
}

static void source_may_be_kept(void **state) {
    (void)state;
    struct lines lines;
    struct markdown *markdown = NULL;
    struct error error = {0};
    const struct view text = view_of_text("# T\n\n\n**b**  `c`\x1b[m\n```\n x\n");
    lines_init(&lines, 40, true);
    assert_true(is_ok(markdown_create(&markdown, &error)));
    markdown_keep_source(markdown);
    for (size_t at = 0; at < text.length; at += 3) {
        markdown_append(markdown, view_slice(text, at, 3), &lines);
    }
    markdown_end(markdown, &lines);
    assert_string_equal(buffer_text(&lines.text), "# T\n\n\n**b**  `c`\\x1b[m\n```\n x\n");
    markdown_destroy(markdown);
    lines_deinit(&lines);
}

/* ---- differences ---------------------------------------------------------------------------- */

static void a_change_shows_what_differs_and_what_lies_beside(void **state) {
    (void)state;
    struct lines lines;
    lines_init(&lines, 80, false);
    diff_put_change(
        &lines,
        &(struct diff_form){.prefix = "  "},
        view_of_text("1\n2\n3\nold a\nsame\nold b\n4\n5\n6\n"),
        view_of_text("1\n2\n3\nnew a\nsame\nnew b\nnew c\n4\n5\n6\n")
    );
    assert_string_equal(
        buffer_text(&lines.text),
        "    2\n    3\n  - old a\n  + new a\n    same\n  - old b\n  + new b\n  + new c\n    4\n    "
        "5\n"
    );
    lines_deinit(&lines);
}

static void lines_that_stay_between_changes_are_counted(void **state) {
    (void)state;
    struct lines lines;
    lines_init(&lines, 80, false);
    assert_true(diff_put_change(
        &lines,
        &(struct diff_form){.prefix = ""},
        view_of_text("a\n1\n2\n3\n4\n5\n6\nb\n1\n2\n3\n4\n5\nc\n"),
        view_of_text("A\n1\n2\n3\n4\n5\n6\nB\n1\n2\n3\n4\n5\nC\n")
    ));
    assert_string_equal(
        buffer_text(&lines.text),
        "- a\n+ A\n  1\n  2\n... 2 lines stay ...\n  5\n  6\n"
        "- b\n+ B\n  1\n  2\n  3\n  4\n  5\n- c\n+ C\n"
    );
    lines_deinit(&lines);
}

static void an_added_or_removed_end_is_shown(void **state) {
    (void)state;
    struct lines lines;
    lines_init(&lines, 80, true);
    diff_put_change(
        &lines, &(struct diff_form){.prefix = ""}, view_of_text("a"), view_of_text("a\nb\x1b[31m")
    );
    diff_put_change(
        &lines, &(struct diff_form){.prefix = ""}, view_of_text("a\nb"), (struct view){0}
    );
    assert_string_equal(
        buffer_text(&lines.text),
        "  a\n\x1b[32m+ b\\x1b[31m\x1b[0m\n\x1b[31m- a\x1b[0m\n\x1b[31m- b\x1b[0m\n"
    );
    lines_deinit(&lines);
}

static void a_patch_has_colours_and_an_end(void **state) {
    (void)state;
    struct lines lines;
    lines_init(&lines, 80, true);
    const struct diff_form form = {.prefix = "", .lines_max = 5};
    assert_false(
        diff_put(&lines, &form, view_of_text("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-o\n+n\n c\n"))
    );
    assert_string_equal(
        buffer_text(&lines.text),
        "\x1b[1m--- a/x\x1b[0m\n\x1b[1m+++ b/x\x1b[0m\n\x1b[2m@@ -1 +1 @@\x1b[0m\n"
        "\x1b[31m-o\x1b[0m\n\x1b[32m+n\x1b[0m\n\x1b[2m... 1 more lines ...\x1b[0m\n"
    );
    lines_deinit(&lines);
}

static void a_large_change_is_cut_with_a_count(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer a;
    CLEANUP(buffer_deinit) struct buffer b;
    buffer_init(&a, 1 << 20);
    buffer_init(&b, 1 << 20);
    for (int i = 0; i < 3000; i++) {
        assert_true(is_ok(buffer_append_format(&a, NULL, "old %d\n", i)));
        assert_true(is_ok(buffer_append_format(&b, NULL, "new %d\n", i)));
    }
    struct lines lines;
    lines_init(&lines, 80, false);
    diff_put_change(&lines, &(struct diff_form){.prefix = ""}, buffer_view(&a), buffer_view(&b));
    assert_non_null(strstr(buffer_text(&lines.text), "- old 39\n... 5960 more lines ...\n"));
    lines_deinit(&lines);
}

int main(void) {
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_shown_alike_however_they_stream_in),
        cmocka_unit_test(marks_become_escapes_where_there_is_colour),
        cmocka_unit_test(code_keeps_its_lines_and_blanks),
        cmocka_unit_test(nested_lists_keep_their_depth),
        cmocka_unit_test(tables_are_aligned_and_wrapped_in_their_columns),
        cmocka_unit_test(lines_fit_the_width_in_columns),
        cmocka_unit_test(entities_are_read_but_those_that_act_upon_a_terminal),
        cmocka_unit_test(hostile_text_is_harmless),
        cmocka_unit_test(a_megabyte_of_one_mark_is_bounded),
        cmocka_unit_test(characters_without_width_do_not_heap_up),
        cmocka_unit_test(source_may_be_kept),
        cmocka_unit_test(a_change_shows_what_differs_and_what_lies_beside),
        cmocka_unit_test(lines_that_stay_between_changes_are_counted),
        cmocka_unit_test(an_added_or_removed_end_is_shown),
        cmocka_unit_test(a_patch_has_colours_and_an_end),
        cmocka_unit_test(a_large_change_is_cut_with_a_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
