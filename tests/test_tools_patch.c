/* apply_patch: what patches make of files, and what the answer says of those that do not fit. */
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

static void assert_file(const struct bench *bench, const char *name, const char *text) {
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    bench_get(bench, name, &content);
    assert_string_equal(buffer_text(&content), text);
}

static bool is_there(const struct bench *bench, const char *name) {
    char path[2 * PATH_BYTES];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", bench->workspace, name);
    return lstat(path, &info) == 0;
}

/* Calls with "*** Begin Patch", `body` and "*** End Patch". */
static void
patch(struct bench *bench, const char *body, enum tool_status status, const char *text) {
    CLEANUP(buffer_deinit) struct buffer whole = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&whole, BUFFER_CEILING_DEFAULT);
    buffer_init(&arguments, BUFFER_CEILING_DEFAULT);
    MUST(buffer_append_format(&whole, &must_error, "*** Begin Patch\n%s*** End Patch\n", body));
    struct json_writer writer;
    json_writer_init(&writer, &arguments, &must_error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "patch");
    json_write_string(&writer, buffer_view(&whole));
    json_write_object_end(&writer);
    MUST(json_writer_finish(&writer));
    bench_expect(bench, "apply_patch", buffer_text(&arguments), status, text);
}

#define DONE "Success. Updated the following files:"

static void files_are_added_changed_moved_and_deleted(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a.py", "def f():\n    return 1\n\ndef g():\n    return 1\n");
    put_text(bench, "run.sh", "echo a\n");
    put_text(bench, "old", "x");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/run.sh", bench->workspace);
    assert_int_equal(chmod(path, 0755), 0);
    patch(
        bench,
        "*** Add File: lib/new.py\n+one\n+\n+two\n"
        "*** Update File: a.py\n@@ def g():\n-    return 1\n+    return 2\n+    # end\n"
        "*** Update File: run.sh\n*** Move to: bin/run\n@@\n-echo a\n+echo b\n"
        "*** Delete File: old\n",
        TOOL_OK,
        DONE "\nA lib/new.py\nM a.py\nM bin/run\nD old"
    );
    assert_file(bench, "lib/new.py", "one\n\ntwo\n");
    assert_file(bench, "a.py", "def f():\n    return 1\n\ndef g():\n    return 2\n    # end\n");
    assert_file(bench, "bin/run", "echo b\n");
    assert_false(is_there(bench, "old"));
    assert_false(is_there(bench, "run.sh"));
    (void)snprintf(path, sizeof path, "%s/bin/run", bench->workspace);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777U, 0755);
}

static void hunks_follow_each_other(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "1\n2\n3\n4\n5\n6\n");
    patch(
        bench,
        "*** Update File: a\n-1\n+one\n 2\n@@\n 4\n+4.5\n 5\n@@\n-6\n+six\n*** End of File\n",
        TOOL_OK,
        DONE "\nM a"
    );
    assert_file(bench, "a", "one\n2\n3\n4\n4.5\n5\nsix\n");
    patch(bench, "*** Update File: a\n@@ 4\n+behind 4\n@@\n+last\n", TOOL_OK, DONE "\nM a");
    assert_file(bench, "a", "one\n2\n3\n4\nbehind 4\n4.5\n5\nsix\nlast\n");
    patch(
        bench,
        "*** Update File: a\n-5\n+5!\n*** Update File: ./a\n-six\n+6\n",
        TOOL_OK,
        DONE "\nM a"
    );
    assert_file(bench, "a", "one\n2\n3\n4\nbehind 4\n4.5\n5!\n6\nlast\n");
}

static void blanks_and_line_ends_are_the_files_own(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "keep  \t\nold \nno end");
    patch(
        bench, "*** Update File: a\n@@\n keep\n-old\n+new\n no end\n+end\n", TOOL_OK, DONE "\nM a"
    );
    assert_file(bench, "a", "keep  \t\nnew\nno end\nend\n");
    put_text(bench, "dos", "a\r\nb\r\nc\r\n");
    patch(bench, "*** Update File: dos\n a\n-b\n+B\n c\n", TOOL_OK, DONE "\nM dos");
    assert_file(bench, "dos", "a\r\nB\r\nc\r\n");
    // As models write them: diff's numbers, an empty line for an empty context line, and one
    // in front of the next section; a here-document around it all.
    put_text(bench, "b", "x\n\ny\n");
    bench_call(
        bench,
        "apply_patch",
        "{\"patch\":\"<<'EOF'\\n*** Begin Patch\\n*** Update File: b\\n@@ -1,3 +1,3 @@\\n "
        "x\\n\\n-y\\n"
        "+z\\n\\n*** Add File: c\\n+c\\n\\n*** End Patch\\nEOF\"}"
    );
    assert_string_equal(buffer_text(&bench->result.text), DONE "\nM b\nA c");
    assert_file(bench, "b", "x\n\nz\n");
}

static void patches_that_do_not_fit_change_nothing(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "one\ntwo\nthree\none\ntwo\nfour\n");
    static const char *const cases[][2] = {
        {"*** Update File: a\n one\n-two\n+2\n",
         "a: hunk 1 (patch line 5) fits at line 1 and at line 4; give more context or an anchor "
         "(@@ "
         "line)"},
        {"*** Update File: a\n@@ three\n-one\n+1\n@@\n-three\n+3\n",
         "a: hunk 2 (patch line 9) does not fit: its first line is not in the file behind the hunk "
         "before it"},
        {"*** Update File: a\n@@\n one\n two\n-five\n+5\n",
         "a: hunk 1 (patch line 6) does not fit: patch line 8 differs from line 3 of the file, "
         "'three'"},
        {"*** Update File: a\n@@ def f():\n-one\n+1\n",
         "a: hunk 1 (patch line 6) has an anchor that is not in the file: 'def f():'"},
        {"*** Update File: a\n-three\n+3\n*** End of File\n",
         "a: hunk 1 (patch line 5) does not fit: its first line is not in the file"},
        {"*** Update File: gone\n-a\n+b\n", "no such file: gone"},
        {"*** Delete File: gone\n", "no such file: gone"},
        {"*** Add File: a\n+x\n", "a exists already; use *** Update File"},
        {"*** Update File: a\n*** Move to: b\n", "b exists already"},
    };
    put_text(bench, "b", "b");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char body[500];
        char text[500];
        // What comes before the mistake is not done either.
        (void)snprintf(body, sizeof body, "*** Add File: new\n+x\n%s", cases[i][0]);
        (void)snprintf(text, sizeof text, "error: %s; nothing was changed", cases[i][1]);
        patch(bench, body, TOOL_ERROR, text);
        assert_false(is_there(bench, "new"));
    }
    assert_file(bench, "a", "one\ntwo\nthree\none\ntwo\nfour\n");
}

static void broken_patches_name_their_line(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "x\n");
    static const char *const cases[][2] = {
        {"", "patch line 2: the patch names no file, not '*** End Patch'"},
        {"a\n",
         "patch line 2: a section begins with '*** Add File: ', '*** Update File: ' or '*** Delete "
         "File: ', not 'a'"},
        {"*** Add File: b\n+x\ny\n", "patch line 4: a line of a new file begins with '+', not 'y'"},
        {"*** Update File: a\n@@\nx\n",
         "patch line 4: a line of an update begins with ' ', '+', '-' or '@@', not 'x'"},
        {"*** Update File: a\n",
         "patch line 2: an update without a change, not '*** Update File: a'"},
        {"*** Add File: \n+x\n", "patch line 2: a path is missing, not '*** Add File: '"},
        {"*** Update File: a\n*** Move to:\n-x\n+y\n",
         "patch line 3: a path is missing, not '*** Move to:'"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[500];
        (void)snprintf(text, sizeof text, "error: %s", cases[i][1]);
        patch(bench, cases[i][0], TOOL_REFUSED, text);
    }
    bench_expect(
        bench,
        "apply_patch",
        "{\"patch\":\"--- a\\n+++ b\\n\"}",
        TOOL_REFUSED,
        "error: patch line 1: a patch begins with '*** Begin Patch', not '--- a'"
    );
    bench_expect(
        bench,
        "apply_patch",
        "{\"patch\":\"*** Begin Patch\\n*** Delete File: a\"}",
        TOOL_REFUSED,
        "error: patch line 3: '*** End Patch' is missing"
    );
    assert_file(bench, "a", "x\n");
}

static void what_fails_while_writing_is_undone(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "a\n");
    put_text(bench, "b", "b\n");
    put_text(bench, "run.sh", "x\n");
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/run.sh", bench->workspace);
    assert_int_equal(chmod(path, 0700), 0);
    bench_call(bench, "read", "{\"path\":\"a\"}");
    patch(
        bench,
        "*** Update File: a\n-a\n+A\n*** Add File: new\n+x\n*** Update File: run.sh\n*** Move to: "
        "run2\n-x\n+y\n*** Delete File: b\n*** Add File: .envrc\n+x\n",
        TOOL_REFUSED,
        "error: bad path: .envrc (refused: '.envrc' is protected (.envrc)); nothing was changed"
    );
    assert_file(bench, "a", "a\n");
    assert_file(bench, "b", "b\n");
    assert_file(bench, "run.sh", "x\n");
    assert_false(is_there(bench, "new"));
    assert_false(is_there(bench, "run2"));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777U, 0700);
    patch(
        bench,
        "*** Update File: ../a\n-a\n+A\n",
        TOOL_REFUSED,
        "error: bad path: ../a (refused: '../a' leads outside the root)"
    );
}

static void names_may_come_twice(void **state) {
    struct bench *bench = *state;
    put_text(bench, "a", "a\n");
    patch(
        bench,
        "*** Delete File: a\n*** Add File: a\n+new\n*** Update File: a\n*** Move to: b\n-new\n+b\n"
        "*** Add File: a\n+third\n",
        TOOL_OK,
        DONE "\nM a\nM b"
    );
    assert_file(bench, "a", "third\n");
    assert_file(bench, "b", "b\n");
    patch(
        bench,
        "*** Update File: b\n*** Move to: c\n*** Update File: c\n*** Move to: d\n",
        TOOL_OK,
        DONE "\nD b\nA d"
    );
    assert_file(bench, "d", "b\n");
    assert_false(is_there(bench, "b") || is_there(bench, "c"));
}

static void work_on_a_hostile_file_is_bounded(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer body = {NULL, 0, 0, 0};
    buffer_init(&content, BUFFER_CEILING_DEFAULT);
    buffer_init(&body, BUFFER_CEILING_DEFAULT);
    for (int i = 0; i < 200000; i++) {
        MUST(buffer_append_text(&content, "a\n", &must_error));
    }
    bench_put(bench, "many", buffer_view(&content));
    MUST(buffer_append_text(&body, "*** Update File: many\n", &must_error));
    for (int i = 0; i < 1000; i++) {
        MUST(buffer_append_text(&body, " a\n", &must_error));
    }
    MUST(buffer_append_text(&body, "-b\n", &must_error));
    patch(
        bench,
        buffer_text(&body),
        TOOL_ERROR,
        "error: many: hunk 1 (patch line 3) takes too long to find; give it an anchor (@@ line); "
        "nothing was changed"
    );
}

/* What permission is asked for is what the patch does, however its headers are written. */
static void the_subject_names_every_file_that_is_changed(void **state) {
    struct bench *bench = *state;
    static const struct {
        const char *body;
        const char *paths; /* each with a blank behind it */
    } rows[] = {
        {"*** Update File: a\\n@@\\n-x\\n+y\\n*** Delete File: b\\n", "a b "},
        {"*** Update File:a\\n*** Move to:c\\n@@\\n-x\\n+y\\n*** Add File:\\td/e \\r\\n+z\\n",
         "a c d/e "},
        {"*** Add File:   a\\n+*** Delete File: no\\n", "a "},
        {"*** Rename File: a\\n", ""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(tool_subject_deinit) struct tool_subject subject = {0};
        char arguments[512];
        char found[256] = "";
        (void)snprintf(
            arguments,
            sizeof arguments,
            "{\"patch\": \"*** Begin Patch\\n%s*** End Patch\"}",
            rows[i].body
        );
        MUST(tool_subject_find(
            bench->context,
            view_of_text("apply_patch"),
            view_of_text(arguments),
            &subject,
            &must_error
        ));
        for (size_t j = 0; j < subject.path_count; j++) {
            size_t used = strlen(found);
            (void
            )snprintf(found + used, sizeof found - used, "%.*s ", VIEW_ARGUMENTS(subject.paths[j]));
        }
        assert_string_equal(found, rows[i].paths);
    }
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(files_are_added_changed_moved_and_deleted),
        BENCH_TEST(hunks_follow_each_other),
        BENCH_TEST(blanks_and_line_ends_are_the_files_own),
        BENCH_TEST(patches_that_do_not_fit_change_nothing),
        BENCH_TEST(broken_patches_name_their_line),
        BENCH_TEST(what_fails_while_writing_is_undone),
        BENCH_TEST(names_may_come_twice),
        BENCH_TEST(the_subject_names_every_file_that_is_changed),
        BENCH_TEST(work_on_a_hostile_file_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
