/* Patterns of paths, and ignore files against git itself. */
#include "tools/tool_match.h"
#include "tools_support.h"

#include <sys/stat.h>

static void names_match_as_git_says(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        const char *name;
        bool fits;
    } cases[] = {
        {"", "", true},
        {"a", "a", true},
        {"a", "b", false},
        {"*", "", true},
        {"*", "abc", true},
        {"a*c", "abbc", true},
        {"a*c", "abcd", false},
        {"*a*b*", "xaxxbx", true},
        {"*a*b*", "xbxxax", false},
        {"?", "", false},
        {"?b", "ab", true},
        {"[a-c]", "b", true},
        {"[!a-c]", "b", false},
        {"[^a-c]", "d", true},
        {"[]a]", "]", true},
        {"[a-]", "-", true},
        {"[[:digit:]x]", "7", true},
        {"[[:digit:]]", "a", false},
        {"[", "[", false},
        {"\\*", "*", true},
        {"\\*", "a", false},
        {"a\\", "a", false},
        {"[\\]]", "]", true},
        {"**a", "bba", true},
        {"*.c", ".c", true},
        {"*[0-9]*x", "a1bx", true},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        if (pattern_fits_name(view_of_text(cases[i].pattern), view_of_text(cases[i].name)) !=
            cases[i].fits) {
            fail_msg("'%s' and '%s'", cases[i].pattern, cases[i].name);
        }
    }
    static const struct {
        const char *pattern;
        const char *path;
        bool fits;
    } paths[] = {
        {"a/b", "a/b", true},
        {"a/*", "a/b/c", false},
        {"a/**", "a/b/c", true},
        {"a/**", "a", false},
        {"**/b", "b", true},
        {"**/b", "x/y/b", true},
        {"a/**/b", "a/b", true},
        {"a/**/b", "a/x/y/b", true},
        {"a/**/b", "x/a/b", false},
        {"**/a/**/b/*", "x/a/a/b/b/c", true},
        {"**", "a", true},
        {"*", "a/b", false},
        {"**/x/**/y", "x/z/y/y", true},
        {"a/**/**/b", "a/b", true},
        {"a?b", "a/b", false},
    };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        if (pattern_fits_path(view_of_text(paths[i].pattern), view_of_text(paths[i].path)) !=
            paths[i].fits) {
            fail_msg("'%s' and '%s'", paths[i].pattern, paths[i].path);
        }
    }
}

static void hostile_patterns_take_no_time(void **state) {
    (void)state;
    char pattern[2000];
    char name[4000];
    memset(name, 'a', sizeof name);
    for (size_t i = 0; i < sizeof pattern; i++) {
        pattern[i] = i % 2 == 0 ? '*' : 'a';
    }
    pattern[sizeof pattern - 1] = 'b';
    assert_false(pattern_fits_name(view_of(pattern, sizeof pattern), view_of(name, sizeof name)));
    for (size_t i = 0; i < sizeof name; i++) {
        name[i] = i % 2 == 0 ? 'a' : '/';
    }
    memcpy(pattern, "**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/a/**/b", 44);
    assert_false(pattern_fits_path(view_of(pattern, 44), view_of(name, sizeof name)));
}

static void braces_expand(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"a", "a|"},
        {"a.{c,h}", "a.c|a.h|"},
        {"{a,b}{1,2}", "a1|a2|b1|b2|"},
        {"{a,b{c,d}}x", "ax|bcx|bdx|"},
        {"{a}", "{a}|"},
        {"{a,}b", "ab|b|"},
        {"\\{a,b}", "\\{a,b}|"},
        {"{a,b", "{a,b|"},
        {"{}{a,b}", "{}a|{}b|"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
        buffer_init(&out, 1000);
        MUST(patterns_expand(view_of_text(cases[i][0]), &out, &must_error));
        for (size_t j = 0; j < out.length; j++) {
            out.data[j] = out.data[j] == '\0' ? '|' : out.data[j];
        }
        assert_string_equal(buffer_text(&out), cases[i][1]);
    }
    CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    struct error error;
    const char *many = "{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}";
    assert_int_equal(patterns_expand(view_of_text(many), &out, &error).code, RESULT_LIMIT);
}

/* ------------------------------------------------------------- against git ---- */

static uint64_t random_state = 20240607;

static size_t draw(size_t count) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(random_state >> 33) % count;
}

/* Of whole parts: git takes "a**" or "a//b" as it happens. */
static void append_rule(struct buffer *text) {
    static const char *const parts[] = {
        "a", "b", "ab", "*", "a*", "*b", "?", "[ab]", "[!a]", "**", "\\a", "c", "*.b", "?c"};
    static const char *const ends[] = {"", "", "", "/", " ", "\\ ", "\r"};
    MUST(buffer_append_text(text, draw(4) == 0 ? "!" : "", &must_error));
    MUST(buffer_append_text(text, draw(4) == 0 ? "/" : "", &must_error));
    size_t count = draw(3) + 1;
    for (size_t i = 0; i < count; i++) {
        MUST(buffer_append_text(text, i == 0 ? "" : "/", &must_error));
        MUST(buffer_append_text(text, parts[draw(COUNT_OF(parts))], &must_error));
    }
    MUST(buffer_append_text(text, ends[draw(COUNT_OF(ends))], &must_error));
    MUST(buffer_append_text(text, draw(8) == 0 ? "\n# a\n\n" : "\n", &must_error));
}

static void put_rules(const struct bench *bench, const char *name) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    for (size_t i = draw(5) + 1; i > 0; i--) {
        append_rule(&text);
    }
    bench_put(bench, name, buffer_view(&text));
}

/* The files that git sees, one a line, in the order of bytes. False: there is no git. */
static bool ask_git(const struct bench *bench, struct buffer *out) {
    char command[3 * PATH_BYTES];
    (void)snprintf(
        command,
        sizeof command,
        "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 XDG_CONFIG_HOME=/dev/null "
        "HOME=/dev/null "
        "git -C '%s' ls-files -o --exclude-standard 2>&1 | LC_ALL=C sort",
        bench->workspace
    );
    FILE *pipe = popen(command, "r"); // a test may
    assert_non_null(pipe);
    char bytes[4096];
    for (size_t got = 1; got > 0;) {
        got = fread(bytes, 1, sizeof bytes, pipe);
        MUST(buffer_append(out, view_of(bytes, got), &must_error));
    }
    assert_int_equal(pclose(pipe), 0);
    return view_find(buffer_view(out), view_of_text("not found"), 0) == SIZE_MAX;
}

/* Returns how many files git sees. */
static size_t compare_with_git(struct bench *bench, unsigned round) {
    CLEANUP(buffer_deinit) struct buffer theirs = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer ours = {NULL, 0, 0, 0};
    buffer_init(&theirs, BUFFER_CEILING_DEFAULT);
    buffer_init(&ours, BUFFER_CEILING_DEFAULT);
    put_rules(bench, ".gitignore");
    put_rules(bench, "a/.gitignore");
    put_rules(bench, "a/b/.gitignore");
    put_rules(bench, ".git/info/exclude");
    if (!ask_git(bench, &theirs)) {
        skip();
    }
    bench_call(bench, "glob", "{\"pattern\":\"**\",\"sort\":\"name\",\"limit\":1000}");
    MUST(buffer_append(&ours, buffer_view(&bench->result.text), &must_error));
    MUST(buffer_append_text(&ours, "\n", &must_error));
    bool is_empty = theirs.length == 0 && strcmp(buffer_text(&ours), "no files match\n") == 0;
    if (!is_empty && strcmp(buffer_text(&ours), buffer_text(&theirs)) != 0) {
        static const char *const names[] = {
            ".git/info/exclude", ".gitignore", "a/.gitignore", "a/b/.gitignore"};
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            CLEANUP(buffer_deinit) struct buffer rules = {NULL, 0, 0, 0};
            bench_get(bench, names[i], &rules);
            print_message("round %u, %s:\n%s\n", round, names[i], buffer_text(&rules));
        }
        assert_string_equal(buffer_text(&ours), buffer_text(&theirs));
    }
    size_t lines = 0;
    for (size_t i = 0; i < theirs.length; i++) {
        lines += theirs.data[i] == '\n';
    }
    return lines;
}

static void ignore_files_hold_as_in_git(void **state) {
    (void)state;
    struct bench bench;
    const struct tool_context_options options = {.set = tool_set_all()};
    bench_open(&bench, NULL, &options);
    static const char *const folders[] = {
        "", "a", "b", "ab", "a/a", "a/b", "b/a", "a/b/a", "a/b/b", "ab/a"};
    char command[2 * PATH_BYTES];
    (void)snprintf(command, sizeof command, "git init -q '%s' 2>/dev/null", bench.workspace);
    if (system(command) != 0) {
        bench_close(&bench);
        skip();
    }
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        static const char *const names[] = {"c", "ac", "x.b", "a ", "[ab]"};
        char path[2 * PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", bench.workspace, folders[i]);
        assert_true(folders[i][0] == '\0' || mkdir(path, 0755) == 0);
        for (size_t j = 0; j < COUNT_OF(names); j++) {
            (void)snprintf(path, sizeof path, "%s%s%s", folders[i], i == 0 ? "" : "/", names[j]);
            bench_put(&bench, path, view_of_text("x"));
        }
    }
    print_message("seed %llu\n", (unsigned long long)random_state);
    size_t telling = 0; // rounds in which the rules take some of the 53 files and leave some
    for (unsigned round = 0; round < 60; round++) {
        size_t seen = compare_with_git(&bench, round);
        telling += seen > 5 && seen < 50;
    }
    assert_true(telling > 20);
    bench_close(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_match_as_git_says),
        cmocka_unit_test(hostile_patterns_take_no_time),
        cmocka_unit_test(braces_expand),
        cmocka_unit_test(ignore_files_hold_as_in_git),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
