/* Parts of the terminal alone: keys, the line that is edited, its rows, history, completion,
 * commands, the status line, and rows that are drawn anew. */
#include "runtime/display.h"
#include "runtime/lines.h"
#include "runtime/screen.h"
#include "runtime/status_line.h"
#include "runtime/terminal_commands.h"
#include "runtime/terminal_complete.h"
#include "runtime/terminal_editor.h"
#include "runtime/terminal_history.h"
#include "runtime/terminal_keys.h"
#include "runtime/terminal_prompt.h"
#include "sandbox/beneath.h"

#include <fcntl.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- keys ----------------------------------------------------------------------------------- */

static const char *const key_names[] = {
    "none",
    "text",
    "control",
    "alt",
    "enter",
    "newline",
    "tab",
    "backspace",
    "delete",
    "up",
    "down",
    "left",
    "right",
    "word-left",
    "word-right",
    "home",
    "end",
    "escape",
    "ignored"};

/* "text:a control:C enter": what the bytes are, given in pieces of so many. */
static void names_of(struct view bytes, size_t piece, char *out, size_t out_bytes) {
    struct keys *keys = NULL;
    struct error error = {0};
    size_t at = 0;
    assert_true(is_ok(keys_create(&keys, &error)));
    out[0] = '\0';
    for (size_t from = 0; from <= bytes.length; from += piece) {
        if (from < bytes.length) {
            keys_add(keys, view_slice(bytes, from, piece));
        } else {
            keys_stop_waiting(keys);
        }
        for (struct key key; (key = keys_next(keys)).type != KEY_NONE;) {
            bool has_letter = key.type == KEY_CONTROL || key.type == KEY_ALT;
            int length = snprintf(
                out + at,
                out_bytes - at,
                "%s%s%s%.*s",
                at > 0 ? " " : "",
                key_names[key.type],
                has_letter || key.type == KEY_TEXT ? ":" : "",
                has_letter ? 1 : (int)key.text.length,
                has_letter ? &key.letter : (const char *)key.text.data
            );
            assert_true(length > 0 && (size_t)length < out_bytes - at);
            at += (size_t)length;
        }
        if (from < bytes.length && from + piece >= bytes.length) {
            from = bytes.length - piece; /* once more, late */
        }
    }
    assert_int_equal(keys_wait_ms(keys), 0);
    keys_destroy(keys);
}

static void keys_are_the_same_however_they_come(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *keys;
    } cases[] = {
        {"a\xc3\xa9\xe4\xbd\xa0", "text:a text:\xc3\xa9 text:\xe4\xbd\xa0"},
        {"\r\n\t\x7f\x08\x03\x01", "enter newline tab backspace backspace control:C control:A"},
        {"\x1b[A\x1b[B\x1b[C\x1b[D\x1bOA\x1bOH", "up down right left up home"},
        {"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[3~\x1b[1;5C\x1b[1;5D",
         "home end home end delete word-right word-left"},
        {"\x1b\r\x1b"
         "b\x1b"
         "F",
         "newline alt:b alt:f"},
        {"\x1b\x1b\x1b[A", "escape escape up"},
        {"\x1b[99;99~x\x1b[?1;2cy", "ignored text:x ignored text:y"},
        {"\x1b[200~one\r\ntwo\x1b[31m\x03\x1b[201~x", "text:one\n\ntwo[31m text:x"},
        {"\x1b[200~never ended", "text:never ended"},
        {"\xff\xc3(\xe4\xbd", "ignored ignored text:( ignored ignored"},
        {"\xc2\x9b"
         "1m",
         "ignored text:1 text:m"},
        {"\x1b[1111111111111111111111111111111111111111m",
         "ignored text:1 text:1 text:1 text:1 text:1 text:1 text:1 text:1 text:1 text:1 text:m"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t piece = 1; piece < 8; piece++) {
            char keys[1024];
            /* Two escapes that come one by one may be a sequence's begin: only the timer tells. */
            names_of(view_of_text(cases[i].bytes), piece, keys, sizeof keys);
            assert_string_equal(keys, cases[i].keys);
        }
    }
}

static void an_escape_alone_waits_and_then_is_one(void **state) {
    (void)state;
    struct keys *keys = NULL;
    struct error error = {0};
    assert_true(is_ok(keys_create(&keys, &error)));
    keys_add(keys, view_of_text("\x1b"));
    assert_int_equal(keys_next(keys).type, KEY_NONE);
    assert_int_equal(keys_wait_ms(keys), KEYS_ESCAPE_MS);
    keys_stop_waiting(keys);
    assert_int_equal(keys_next(keys).type, KEY_ESCAPE);
    assert_int_equal(keys_next(keys).type, KEY_NONE);
    assert_int_equal(keys_wait_ms(keys), 0);
    keys_destroy(keys);
}

/* ---- editor --------------------------------------------------------------------------------- */

static void type(struct editor *editor, const char *text) {
    assert_true(editor_insert(editor, view_of_text(text)));
}

static void press(struct editor *editor, enum key_type key, char letter) {
    (void)editor_key(editor, &(struct key){.type = key, .letter = letter});
}

static void assert_line(struct editor *editor, const char *before, const char *behind) {
    size_t cursor = 0;
    struct view line = editor_line(editor, &cursor);
    assert_int_equal(cursor, strlen(before));
    assert_int_equal(line.length, strlen(before) + strlen(behind));
    assert_memory_equal(line.data, before, strlen(before));
    assert_memory_equal(line.data + cursor, behind, strlen(behind));
}

static void lines_are_edited_in_characters(void **state) {
    (void)state;
    struct editor *editor = NULL;
    struct error error = {0};
    assert_true(is_ok(editor_create(&editor, &error)));
    assert_true(editor_is_empty(editor));
    type(editor, "h\xc3\xa9llo w\xe4\xbd\xa0 \xf0\x9f\x98\x80");
    press(editor, KEY_BACKSPACE, 0);
    press(editor, KEY_LEFT, 0);
    press(editor, KEY_LEFT, 0);
    assert_line(editor, "h\xc3\xa9llo w", "\xe4\xbd\xa0 ");
    press(editor, KEY_DELETE, 0);
    press(editor, KEY_HOME, 0);
    press(editor, KEY_WORD_RIGHT, 0);
    assert_line(editor, "h\xc3\xa9llo", " w ");
    press(editor, KEY_CONTROL, 'W');
    assert_line(editor, "", " w ");
    press(editor, KEY_CONTROL, 'Y');
    press(editor, KEY_CONTROL, 'K');
    assert_line(editor, "h\xc3\xa9llo", "");
    press(editor, KEY_DELETE, 0); /* at the end: nothing, in no way an end of input */
    press(editor, KEY_NEWLINE, 0);
    type(editor, "two");
    assert_line(editor, "h\xc3\xa9llo\ntwo", "");
    press(editor, KEY_CONTROL, 'U');
    assert_true(editor_is_empty(editor));
    press(editor, KEY_BACKSPACE, 0);
    press(editor, KEY_LEFT, 0);
    press(editor, KEY_UP, 0);
    assert_true(editor_is_empty(editor));
    editor_destroy(editor);
}

/* Keys that the library would wait behind, or that end its line, are not given to it. */
static void no_key_waits_or_ends(void **state) {
    (void)state;
    struct editor *editor = NULL;
    struct error error = {0};
    assert_true(is_ok(editor_create(&editor, &error)));
    type(editor, "x");
    for (int letter = 0; letter < 128; letter++) {
        press(editor, KEY_CONTROL, (char)letter);
        press(editor, KEY_ALT, (char)letter);
    }
    for (int key = KEY_NONE; key <= KEY_IGNORED; key++) {
        press(editor, (enum key_type)key, 0);
    }
    editor_set(editor, view_of_text("still"));
    assert_line(editor, "still", "");
    editor_destroy(editor);
}

static void history_is_walked_and_searched(void **state) {
    (void)state;
    struct editor *editor = NULL;
    struct error error = {0};
    assert_true(is_ok(editor_create(&editor, &error)));
    editor_remember(editor, view_of_text("first one"));
    editor_remember(editor, view_of_text("two\nlines \xc3\xa9"));
    editor_remember(editor, view_of_text("third"));
    type(editor, "draft");
    press(editor, KEY_UP, 0);
    assert_line(editor, "third", "");
    press(editor, KEY_UP, 0);
    assert_line(editor, "two\nlines \xc3\xa9", "");
    press(editor, KEY_UP, 0);
    press(editor, KEY_UP, 0);
    assert_line(editor, "first one", "");
    press(editor, KEY_DOWN, 0);
    press(editor, KEY_DOWN, 0);
    press(editor, KEY_DOWN, 0);
    assert_line(editor, "draft", "");
    editor_set(editor, view_of_text("fi"));
    press(editor, KEY_CONTROL, 'R');
    assert_line(editor, "first one", "");
    editor_set(editor, (struct view){0});
    press(editor, KEY_UP, 0);
    assert_line(editor, "third", "");
    editor_destroy(editor);
}

static void a_line_has_a_longest_length(void **state) {
    (void)state;
    struct editor *editor = NULL;
    struct error error = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 20);
    while (text.length < EDITOR_BYTES_MAX - 8) {
        assert_true(is_ok(buffer_append_text(&text, "0123456\n", &error)));
    }
    assert_true(is_ok(editor_create(&editor, &error)));
    assert_true(editor_insert(editor, buffer_view(&text)));
    assert_false(editor_insert(editor, buffer_view(&text)));
    press(editor, KEY_HOME, 0);
    press(editor, KEY_TAB, 0);
    type(editor, "a");
    size_t cursor = 0;
    assert_int_equal(editor_line(editor, &cursor).length, text.length + 1);
    editor_destroy(editor);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void assert_rows(
    const char *line, size_t cursor, size_t rows_max, const char *rows, size_t row, int column
) {
    CLEANUP(buffer_deinit) struct buffer out;
    buffer_init(&out, 1 << 20);
    const struct prompt_request request = {
        .first = view_of_text("> "),
        .line = view_of_text(line),
        .cursor = cursor,
        .width = 11,
        .rows_max = rows_max,
    };
    size_t cursor_row = 99;
    int cursor_column = 99;
    prompt_make(&out, &request, &cursor_row, &cursor_column);
    assert_string_equal(buffer_text(&out), rows);
    assert_int_equal(cursor_row, row);
    assert_int_equal(cursor_column, column);
}

static void a_line_is_laid_out_in_rows(void **state) {
    (void)state;
    assert_rows("", 0, 5, "> \n", 0, 2);
    assert_rows("abc", 1, 5, "> abc\n", 0, 3);
    assert_rows("abcdefgh", 8, 5, "> abcdefgh\n  \n", 1, 2);
    assert_rows("abcdefghi", 9, 5, "> abcdefgh\n  i\n", 1, 3);
    assert_rows("a\nb\n", 4, 5, "> a\n  b\n  \n", 2, 2);
    assert_rows("aaaaaaa\xe4\xbd\xa0", 10, 5, "> aaaaaaa\n  \xe4\xbd\xa0\n", 1, 4);
    assert_rows("a\x1b\xc2\x9b\xe2\x80\xae", 0, 5, "> a???\n", 0, 2);
    assert_rows("a\tb", 3, 5, "> a    b\n", 0, 8);
    assert_rows("1\n2\n3\n4\n5\n6", 4, 3, "  2\n  3\n  4\n", 1, 2);
    assert_rows("1\n2\n3\n4\n5\n6", 11, 3, "  4\n  5\n  6\n", 2, 3);
    assert_rows("1\n2\n3\n4\n5\n6", 0, 3, "> 1\n  2\n  3\n", 0, 2);
}

/* ---- history -------------------------------------------------------------------------------- */

struct loaded {
    size_t count;
    char first[64], last[64];
};

static void keep(void *context, struct view line) {
    struct loaded *loaded = context;
    char *out = loaded->count++ == 0 ? loaded->first : loaded->last;
    (void)snprintf(out, sizeof loaded->first, "%.*s", VIEW_ARGUMENTS(line));
}

static void history_keeps_its_newest_lines(void **state) {
    (void)state;
    char directory[] = "/tmp/hearth-history-XXXXXX";
    char path[128];
    struct error error = {0};
    assert_non_null(mkdtemp(directory));
    assert_true(snprintf(path, sizeof path, "%s/history", directory) > 0);
    struct loaded loaded = {0};
    history_load(path, keep, &loaded);
    assert_int_equal(loaded.count, 0);
    assert_true(is_ok(history_append(path, view_of_text("a\\n\nb\\"), &error)));
    history_load(path, keep, &loaded);
    assert_int_equal(loaded.count, 1);
    assert_string_equal(loaded.first, "a\\n\nb\\");
    for (int i = 0; i < HISTORY_LINES_MAX + 50; i++) {
        char line[32];
        int length = snprintf(line, sizeof line, "line %d", i);
        assert_true(is_ok(history_append(path, view_of(line, (size_t)length), &error)));
    }
    loaded = (struct loaded){0};
    history_load(path, keep, &loaded);
    assert_int_equal(loaded.count, HISTORY_LINES_MAX);
    assert_string_equal(loaded.first, "line 50");
    loaded = (struct loaded){0};
    history_load(path, keep, &loaded); /* was cut on the disk, too */
    assert_string_equal(loaded.first, "line 50");
    assert_string_equal(loaded.last, "line 1049");
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    /* Damage: lines that are no text are left out, a file without an end is its lines. */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_int_equal(write(fd, "good\n\xff\xfe\n\nalso\\\nno end", 21), 21);
    assert_int_equal(close(fd), 0);
    loaded = (struct loaded){0};
    history_load(path, keep, &loaded);
    assert_int_equal(loaded.count, 2);
    assert_string_equal(loaded.last, "also\\");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for it */
    history_load(path, keep, &loaded);
    assert_true(is_failed(history_append(path, view_of_text("x"), &error)));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_true(is_failed(history_append(path, view_of_text("x"), &error)));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(directory), 0);
}

/* ---- commands, completion ------------------------------------------------------------------- */

static void commands_are_told_from_messages(void **state) {
    (void)state;
    const struct terminal_command *command = NULL;
    const char *nearest = NULL;
    struct view argument;
    static const char *const messages[] = {
        "", "help", "/etc/passwd", "/ help", "/Help", "//", "/9"};
    for (size_t i = 0; i < COUNT_OF(messages); i++) {
        assert_false(
            terminal_command_parse(view_of_text(messages[i]), &command, &argument, &nearest)
        );
    }
    assert_true(
        terminal_command_parse(view_of_text("/rewind  3 now"), &command, &argument, &nearest)
    );
    assert_string_equal(command->name, "rewind");
    assert_int_equal(command->run_command, RUN_COMMAND_REWIND);
    assert_true(view_equals_text(argument, "3 now"));
    assert_true(terminal_command_parse(view_of_text("/qiut"), &command, &argument, &nearest));
    assert_null(command);
    assert_string_equal(nearest, "quit");
    static const char *const others[] = {"/", "/zzzzzzzz"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_true(terminal_command_parse(view_of_text(others[i]), &command, &argument, &nearest));
        assert_null(command);
        assert_null(nearest);
    }
    CLEANUP(buffer_deinit) struct buffer help;
    buffer_init(&help, 1 << 16);
    assert_true(is_ok(terminal_help(&help, NULL)));
    struct cursor cursor = cursor_over(buffer_view(&help));
    for (struct view line; cursor_take_until(&cursor, '\n', &line);) {
        assert_true(line.length < 80);
    }
}

static void
assert_completion(const struct beneath *root, const char *line, const char *insert, size_t count) {
    CLEANUP(completion_deinit) struct completion completion;
    completion_init(&completion);
    completion_find(&completion, root, view_of_text(line));
    assert_int_equal(completion.count, count);
    assert_true(view_equals_text(buffer_view(&completion.insert), insert));
}

static void completion_stays_in_the_workspace(void **state) {
    (void)state;
    char directory[] = "/tmp/hearth-complete-XXXXXX";
    struct error error = {0};
    struct beneath *root = NULL;
    assert_non_null(mkdtemp(directory));
    assert_true(is_ok(beneath_open(directory, &root, &error)));
    assert_true(is_ok(beneath_mkdir(root, "src", false, &error)));
    static const char *const files[] = {
        "src/main.c", "src/make.c", "read me.md", ".hidden", "src/\xe4\xbd\xa0"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_true(is_ok(beneath_write(root, files[i], view_of_text("x"), &error)));
    }
    assert_completion(NULL, "/he", "lp", 1);
    assert_completion(NULL, "/effo", "rt ", 1);
    assert_completion(NULL, "/", "", terminal_command_count());
    assert_completion(NULL, "x", "", 0);
    assert_completion(root, "look at s", "rc/", 1);
    assert_completion(root, "src/m", "a", 2);
    assert_completion(root, "'src/mak", "e.c ", 1);
    assert_completion(root, "@src/", "", 3);
    assert_completion(root, "", "", 2);
    assert_completion(root, "x .hi", "dden ", 1);
    assert_completion(root, "../", "", 0);
    assert_completion(root, "x /etc/pass", "", 0);
    assert_completion(root, "none/", "", 0);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_true(is_ok(beneath_remove(root, files[i], &error)));
    }
    assert_true(is_ok(beneath_remove(root, "src", &error)));
    beneath_close(root);
    assert_int_equal(rmdir(directory), 0);
}

/* ---- status line, screen -------------------------------------------------------------------- */

static void the_status_line_fits_and_says_what_matters(void **state) {
    (void)state;
    const struct run_status status = {
        .context_tokens = 5321,
        .context_max = 16384,
        .tokens_sampled = 200,
        .reused_tokens = 131072,
        .tokens_per_second = 38.4,
        .time_left_ms = 130000,
        .tokens_max = 1500,
        .effort = 75,
        .turn = 3,
        .activity = "thinking",
    };
    char text[STATUS_LINE_BYTES];
    status_line_make(&status, 140, text);
    assert_string_equal(
        text,
        "thinking | context 5.3k used, 11k left | 38 tok/s | 2:10 left | 1.3k tokens left | "
        "effort 75 | turn 3 | 131k reused"
    );
    status_line_make(&status, 79, text); /* a terminal of 80 columns */
    assert_string_equal(
        text, "thinking | 5.3k/16k | 38/s | 2:10 | 1.3k tok | effort 75 | turn 3 | 131k reused"
    );
    status_line_make(&status, 30, text);
    assert_string_equal(text, "thinking | 5.3k/16k | 38/s");
    for (int columns = 1; columns < 200; columns++) {
        status_line_make(&status, columns, text);
        assert_true((int)strlen(text) <= columns);
    }
    const struct run_status loading = {.activity = "loading"};
    status_line_make(&loading, 80, text);
    assert_string_equal(text, "loading");
}

static void add(struct screen *screen, const char *row) {
    screen_add(screen, view_of_text(row));
}

/* What was written since the last call; the descriptor is a file. */
static const char *written(int fd, char *out, size_t bytes) {
    off_t end = lseek(fd, 0, SEEK_CUR);
    ssize_t count = pread(fd, out, bytes - 1, 0);
    assert_true(count >= 0 && count == end);
    out[count] = '\0';
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return out;
}

static void only_rows_that_changed_are_drawn(void **state) {
    (void)state;
    char path[] = "/tmp/hearth-screen-XXXXXX";
    char text[4096];
    int fd = mkstemp(path);
    struct error error = {0};
    struct output *output = NULL;
    struct screen *screen = NULL;
    assert_true(fd >= 0);
    assert_true(is_ok(output_create(&output, NULL, fd, &error)));
    assert_true(is_ok(screen_create(&screen, output, 80, 24, &error)));
    screen_begin(screen);
    add(screen, "> abc");
    add(screen, "status");
    screen_set_cursor(screen, 0, 5);
    screen_draw(screen);
    assert_string_equal(
        written(fd, text, sizeof text), "\r> abc\x1b[K\r\nstatus\x1b[K\r\x1b[1A\x1b[5C"
    );
    screen_begin(screen);
    add(screen, "> abcd");
    add(screen, "status");
    screen_set_cursor(screen, 0, 6);
    (void)written(fd, text, sizeof text);
    screen_draw(screen);
    assert_string_equal(written(fd, text, sizeof text), "\r> abcd\x1b[K\r\x1b[6C");
    screen_print(screen, view_of_text("stays\n"));
    screen_begin(screen);
    add(screen, "> abcd");
    add(screen, "status");
    screen_set_cursor(screen, 0, 6);
    screen_draw(screen);
    assert_string_equal(
        written(fd, text, sizeof text),
        "\r\n\x1b[J\r\x1b[1A\x1b[Kstays\n\r> abcd\x1b[K\r\nstatus\x1b[K\r\x1b[1A\x1b[6C"
    );
    screen_erase(screen);
    assert_string_equal(written(fd, text, sizeof text), "\r\n\x1b[J\r\x1b[1A\x1b[K");
    /* More rows than the terminal has: the last ones. */
    screen_set_size(screen, 80, 4);
    screen_begin(screen);
    for (int i = 0; i < 9; i++) {
        char row[8];
        assert_true(snprintf(row, sizeof row, "r%d", i) > 0);
        add(screen, row);
    }
    screen_draw(screen);
    assert_string_equal(
        written(fd, text, sizeof text), "\rr6\x1b[K\r\nr7\x1b[K\r\nr8\x1b[K\r\x1b[2C"
    );
    screen_destroy(screen);
    output_destroy(output);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(path), 0);
}

int main(void) {
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_the_same_however_they_come),
        cmocka_unit_test(an_escape_alone_waits_and_then_is_one),
        cmocka_unit_test(lines_are_edited_in_characters),
        cmocka_unit_test(no_key_waits_or_ends),
        cmocka_unit_test(history_is_walked_and_searched),
        cmocka_unit_test(a_line_has_a_longest_length),
        cmocka_unit_test(a_line_is_laid_out_in_rows),
        cmocka_unit_test(history_keeps_its_newest_lines),
        cmocka_unit_test(commands_are_told_from_messages),
        cmocka_unit_test(completion_stays_in_the_workspace),
        cmocka_unit_test(the_status_line_fits_and_says_what_matters),
        cmocka_unit_test(only_rows_that_changed_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
