/* Regular expressions: cases by hand, and random ones against the C library's. */
#include "tools/tool_regex.h"
#include "tools_support.h"

#include <regex.h>

/* 1: matches, 0: does not, -1: refused. */
static int match(const char *pattern, bool ignores_case, struct view line, char *why) {
    CLEANUP(regex_cleanup) struct regex *regex = NULL;
    CLEANUP(buffer_deinit) struct buffer words = {NULL, 0, 0, 0};
    buffer_init(&words, 1000);
    MUST(regex_compile(view_of_text(pattern), ignores_case, &regex, &words, &must_error));
    if (why != NULL) {
        (void)snprintf(why, 200, "%s", buffer_text(&words));
    }
    assert_int_equal(regex == NULL, words.length > 0);
    if (regex == NULL) {
        return -1;
    }
    bool is_there = regex_matches(regex, line);
    struct view literal = regex_literal(regex);
    if (is_there && literal.length > 0 && view_find(line, literal, 0) == SIZE_MAX) {
        fail_msg("'%s' says that '%.*s' is in each match", pattern, VIEW_ARGUMENTS(literal));
    }
    return is_there;
}

static void syntax_is_that_of_perl(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        const char *line;
        int expected;
    } cases[] = {
        {"", "", 1},
        {"abc", "xabcx", 1},
        {"abc", "abx", 0},
        {"^abc$", "abc", 1},
        {"^b", "ab", 0},
        {"a.c",
         "a\xC3\xA9"
         "c",
         1},
        {"^...$", "\xC3\xA9\xF0\x9F\x98\x80\xFF", 1},
        {"a\\.c", "abc", 0},
        {"[a-c]+\\d{2,3}", "xx b12", 1},
        {"^[a-c]+\\d{2,3}$", "b1234", 0},
        {"(foo|ba[rz])+!", "foobaz!", 1},
        {"^(?:a|b|cd)*$", "abcdab", 1},
        {"^(?:a|b|cd)*$", "abcab", 0},
        {"\\bint\\b", "print int;", 1},
        {"\\bint\\b", "printing", 0},
        {"in\\B", "int", 1},
        {"\\w+\\s*=\\s*\\S", "  x_1 \t= 2", 1},
        {"^\\W$", "\xC3\xA9", 0},
        {"^\\D$", "\xC3\xA9", 1},
        {"(?i)HeLLo", "hEllO", 1},
        {"(?i)[a-f]x", "Fx", 1},
        {"a+?b*?c??$", "aab", 1},
        {"x{0}y", "y", 1},
        {"x{2}", "x", 0},
        {"x{2,}", "axxx", 1},
        {"a{,3}", "a{,3}", 1},
        {"function {", "function {", 1},
        {"[]a]", "]", 1},
        {"[^]a]", "]", 0},
        {"[\\]\\d-]", "-", 1},
        {"[[:upper:]_]+$", "aB_", 1},
        {"\\x41\\x{e9}\\t", "A\xC3\xA9\t", 1},
        {"(?P<name>a)(?<other>b)", "ab", 1},
        {"(a*)*b", "aaab", 1},
        {"(|a)+b", "b", 1},
        {"a||b", "", 1},
        {"\xFF", "a\xFF", 1},
        {"^(a|ab)(c|bcd)(d*)$", "abcd", 1},
        {"(", "", -1},
        {")", "", -1},
        {"[a", "", -1},
        {"[b-a]", "", -1},
        {"*a", "", -1},
        {"a**", "", -1},
        {"a\\", "", -1},
        {"(a)\\1", "aa", -1},
        {"(?=a)", "a", -1},
        {"(?<!a)b", "b", -1},
        {"a{2000}", "", -1},
        {"((a{99}){99}){99}", "", -1},
        {"(?i-x:a)", "", -1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char why[200];
        int found = match(cases[i].pattern, false, view_of_text(cases[i].line), why);
        if (found != cases[i].expected) {
            fail_msg("'%s' on '%s': %d %s", cases[i].pattern, cases[i].line, found, why);
        }
    }
    assert_int_equal(match("k", true, view_of_text("K"), NULL), 1);
    assert_int_equal(match("[^k]", true, view_of_text("K"), NULL), 0);
    char deep[300];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    char why[200];
    assert_int_equal(match(deep, false, view_of_text(""), why), -1);
    assert_non_null(strstr(why, "nested too deeply (at byte"));
}

static void hostile_patterns_take_linear_time(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    for (int i = 0; i < 100000; i++) {
        MUST(buffer_append_byte(&line, 'a', &must_error));
    }
    assert_int_equal(match("(a*)*(a|aa)+(a?){30}a{30}$b", false, buffer_view(&line), NULL), 0);
    assert_int_equal(match("(.*)(.*)(.*)(.*)b", false, buffer_view(&line), NULL), 0);
}

/* -------------------------------------------------------- against the C library ---- */

static uint64_t random_state = 7;

static size_t draw(size_t count) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(random_state >> 33) % count;
}

/* What both know in the same way: no empty alternatives, no quantifier on an edge. */
static void append_pattern(struct buffer *out, unsigned depth) {
    static const char *const atoms[] = {"a", "b", "c", ".", "[ab]", "[^a]", "ab"};
    static const char *const quantifiers[] = {"", "", "", "*", "+", "?", "{2}", "{1,2}", "{2,}"};
    for (size_t i = draw(3) + 1; i > 0; i--) {
        if (depth > 0 && draw(3) == 0) {
            MUST(buffer_append_text(out, "(", &must_error));
            append_pattern(out, depth - 1);
            MUST(buffer_append_text(out, ")", &must_error));
        } else {
            MUST(buffer_append_text(out, atoms[draw(COUNT_OF(atoms))], &must_error));
        }
        MUST(buffer_append_text(out, quantifiers[draw(COUNT_OF(quantifiers))], &must_error));
    }
    if (draw(3) == 0) {
        MUST(buffer_append_text(out, "|", &must_error));
        append_pattern(out, depth > 0 ? depth - 1 : 0);
    }
}

static void random_patterns_match_as_the_c_library_says(void **state) {
    (void)state;
    size_t matches = 0;
    for (unsigned round = 0; round < 3000; round++) {
        CLEANUP(buffer_deinit) struct buffer pattern = {NULL, 0, 0, 0};
        buffer_init(&pattern, BUFFER_CEILING_DEFAULT);
        MUST(buffer_append_text(&pattern, draw(4) == 0 ? "^" : "", &must_error));
        append_pattern(&pattern, 2);
        MUST(buffer_append_text(&pattern, draw(3) == 0 ? "$" : "", &must_error));
        regex_t theirs;
        assert_int_equal(regcomp(&theirs, buffer_text(&pattern), REG_EXTENDED | REG_NOSUB), 0);
        for (unsigned i = 0; i < 5; i++) {
            char line[12] = "";
            size_t length = draw(sizeof line);
            for (size_t j = 0; j < length; j++) {
                line[j] = "abcd"[draw(4)];
            }
            int expected = regexec(&theirs, line, 0, NULL, 0) == 0;
            int found = match(buffer_text(&pattern), false, view_of_text(line), NULL);
            if (found != expected) {
                fail_msg("'%s' on '%s': %d", buffer_text(&pattern), line, found);
            }
            matches += found == 1;
        }
        regfree(&theirs);
    }
    assert_true(matches > 1000 && matches < 14000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax_is_that_of_perl),
        cmocka_unit_test(hostile_patterns_take_linear_time),
        cmocka_unit_test(random_patterns_match_as_the_c_library_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
