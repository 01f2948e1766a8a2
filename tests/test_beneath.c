/* File functions below a root: what they do, what they refuse and why, and races against them. */
#include "shell_support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sandbox/beneath.h"

static struct beneath *root; /* ws/ in `base`, which also holds out/: what must not be reached */

static int set_up(void **state) {
    (void)state;
    base_make("beneath");
    shell("mkdir -p ws/sub out && echo TOPSECRET >out/secret && printf inner >ws/sub/f");
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ws", base);
    struct error error = {0};
    if (is_failed(beneath_open(path, &root, &error))) {
        fail_msg("%s", error.message);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    beneath_close(root);
    root = NULL;
    base_remove();
    return 0;
}

static result read_text(const char *path, char *out, size_t bytes, struct error *error) {
    struct buffer content;
    buffer_init(&content, BENEATH_READ_BYTES_MAX);
    result done = beneath_read(root, path, 0, bytes - 1, &content, NULL, error);
    (void)snprintf(out, bytes, "%s", is_ok(done) ? buffer_text(&content) : "");
    buffer_deinit(&content);
    return done;
}

static void expect_text(const char *path, const char *expected) {
    char text[256];
    struct error error = {0};
    if (is_failed(read_text(path, text, sizeof text, &error))) {
        fail_msg("%s", error.message);
    }
    assert_string_equal(text, expected);
}

static result write_text(const char *path, const char *text, struct error *error) {
    return beneath_write(root, path, view_of_text(text), error);
}

static void written_file_is_read_back(void **state) {
    (void)state;
    assert_true(is_ok(write_text("sub/new", "content\n", NULL)));
    expect_text("sub/new", "content\n");
    expect_text("sub/../sub/./f", "inner"); // stays inside, so reading may
    assert_true(is_ok(write_text("sub/new", "", NULL)));
    expect_text("sub/new", "");
}

static void range_of_a_file_is_read(void **state) {
    (void)state;
    assert_true(is_ok(write_text("f", "0123456789", NULL)));
    struct buffer content;
    buffer_init(&content, 100);
    struct beneath_info info;
    assert_true(is_ok(beneath_read(root, "f", 3, 4, &content, &info, NULL)));
    assert_string_equal(buffer_text(&content), "3456");
    assert_int_equal(info.bytes, 10);
    assert_int_equal(info.kind, BENEATH_FILE);
    buffer_clear(&content);
    assert_true(is_ok(beneath_read(root, "f", 100, 4, &content, NULL, NULL)));
    assert_int_equal(content.length, 0);
    buffer_deinit(&content);
}

static void paths_that_leave_are_refused_by_name(void **state) {
    (void)state;
    shell("ln -s ../out ws/d; ln -s ../out/secret ws/l; ln -s /proc/self/root ws/m; ln -s /etc ws/e"
    );
    static const struct {
        const char *path;
        enum result_code code;
        const char *word;
    } cases[] = {
        {"../out/secret", RESULT_INVALID_INPUT, "outside"},
        {"sub/../../out/secret", RESULT_INVALID_INPUT, "outside"},
        {"/etc/passwd", RESULT_INVALID_INPUT, "absolute"},
        {"", RESULT_INVALID_INPUT, "empty"},
        {"l", RESULT_INVALID_INPUT, "symlink"},
        {"d/secret", RESULT_INVALID_INPUT, "symlink"},
        {"m/etc/passwd", RESULT_INVALID_INPUT, "symlink"},
        {"e/passwd", RESULT_INVALID_INPUT, "symlink"},
        {"sub", RESULT_INVALID_INPUT, "directory"},
        {"sub/nothing", RESULT_NOT_FOUND, "does not exist"},
        {"sub/f/g", RESULT_NOT_FOUND, "no directory"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char text[64];
        struct error error = {0};
        result done = read_text(cases[i].path, text, sizeof text, &error);
        assert_int_equal(done.code, cases[i].code);
        assert_non_null(strstr(error.message, cases[i].word));
    }
    char name[BENEATH_PATH_BYTES_MAX + 2];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    char text[64];
    assert_int_equal(read_text(name, text, sizeof text, NULL).code, RESULT_INVALID_INPUT);
    name[300] = '\0';
    assert_int_equal(read_text(name, text, sizeof text, NULL).code, RESULT_INVALID_INPUT);
    assert_int_equal(write_text(name, "x", NULL).code, RESULT_INVALID_INPUT);
}

static void changes_outside_or_of_protected_names_are_refused(void **state) {
    (void)state;
    shell("ln -s ../out ws/d; ln -s ../out/secret ws/l; ln -s ../out/n ws/dangling; mkdir ws/.git");
    static const char *const paths[] = {
        "../out/n",
        "d/n",
        "l",
        "dangling",
        "/tmp/n",
        ".git/hooks/x",
        ".hearth/config.json",
        "sub/../.git/c",
        ".GIT/x",
        ".vscode/x.json",
        ".envrc",
        "sub",
        ".",
        "..",
        "sub/..",
        "",
    };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct error error = {0};
        assert_int_equal(write_text(paths[i], "x", &error).code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, "refused"));
        assert_int_equal(
            beneath_mkdir(root, paths[i], true, NULL).code == RESULT_OK, i == 11 || i == 12
        );
    }
    static const char *const kept[] = {"../out/secret", "d/secret", ".git", ".", "sub/.."};
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        assert_true(is_failed(beneath_remove(root, kept[i], NULL)));
    }
    shell("test \"$(ls -A out)\" = secret && grep -q TOPSECRET out/secret && test -z \"$(ls -A "
          "ws/.git)\"");
}

static void hard_link_is_replaced_and_set_id_dropped(void **state) {
    (void)state;
    shell("ln out/secret ws/hl; printf x >ws/s; chmod 4755 ws/s; printf y >ws/p; chmod 640 ws/p");
    assert_true(is_ok(write_text("hl", "mine", NULL)));
    assert_true(is_ok(write_text("s", "new", NULL)));
    assert_true(is_ok(write_text("p", "new", NULL)));
    shell("grep -q TOPSECRET out/secret; test $(stat -c %%a ws/s) = 755; test $(stat -c %%a ws/p) "
          "= 640");
    expect_text("hl", "mine");
    shell("test -z \"$(ls -A ws | grep tmp)\"");
}

static void special_files_do_not_hang_or_flood(void **state) {
    (void)state;
    shell("mkfifo ws/fifo; truncate -s 8G ws/big");
    char text[64];
    struct error error = {0};
    assert_int_equal(read_text("fifo", text, sizeof text, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "not a regular file"));
    assert_int_equal(write_text("fifo", "x", NULL).code, RESULT_INVALID_INPUT);
    struct buffer content;
    buffer_init(&content, BENEATH_READ_BYTES_MAX);
    assert_true(is_ok(beneath_read(root, "big", 0, BENEATH_READ_BYTES_MAX, &content, NULL, NULL)));
    assert_int_equal(content.length, BENEATH_READ_BYTES_MAX);
    buffer_deinit(&content);
}

static void directories_are_made_and_removed(void **state) {
    (void)state;
    assert_int_equal(beneath_mkdir(root, "a/b/c", false, NULL).code, RESULT_NOT_FOUND);
    assert_true(is_ok(beneath_mkdir(root, "a/b/c", true, NULL)));
    assert_true(is_ok(beneath_mkdir(root, "a//b/c/", true, NULL)));
    struct error error = {0};
    assert_int_equal(beneath_mkdir(root, "a", false, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "exists"));
    assert_int_equal(beneath_remove(root, "a/b", &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "not empty"));
    assert_true(is_ok(beneath_remove(root, "a/b/c", NULL)));
    assert_true(is_ok(beneath_remove(root, "sub/f", NULL)));
    assert_int_equal(beneath_remove(root, "sub/f", NULL).code, RESULT_NOT_FOUND);
    shell("ln -s ../out ws/d");
    assert_true(is_ok(beneath_remove(root, "d", NULL))); // the link itself
    shell("test -e out/secret");
}

static void listing_is_sorted_and_bounded(void **state) {
    (void)state;
    shell("cd ws && touch b a 'x y' && ln -s /etc link && mkfifo fifo && chmod +x a");
    struct beneath_list list;
    assert_true(is_ok(beneath_list_directory(root, "", 100, &list, NULL)));
    static const char *const names[] = {"a", "b", "fifo", "link", "sub", "x y"};
    static const enum beneath_kind kinds[] = {
        BENEATH_FILE,
        BENEATH_FILE,
        BENEATH_OTHER,
        BENEATH_SYMLINK,
        BENEATH_DIRECTORY,
        BENEATH_FILE};
    assert_int_equal(list.count, COUNT_OF(names));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_string_equal(list.entries[i].name, names[i]);
        assert_int_equal(list.entries[i].info.kind, kinds[i]);
    }
    assert_true(list.entries[0].info.executable);
    assert_false(list.truncated);
    beneath_list_deinit(&list);
    assert_true(is_ok(beneath_list_directory(root, ".", 2, &list, NULL)));
    assert_int_equal(list.count, 2);
    assert_true(list.truncated);
    beneath_list_deinit(&list);
    assert_int_equal(beneath_list_directory(root, "a", 9, &list, NULL).code, RESULT_INVALID_INPUT);
    assert_int_equal(
        beneath_list_directory(root, "link", 9, &list, NULL).code, RESULT_INVALID_INPUT
    );
    assert_int_equal(beneath_list_directory(root, "..", 9, &list, NULL).code, RESULT_INVALID_INPUT);
    struct beneath_info info;
    assert_true(is_ok(beneath_stat(root, "link", &info, NULL)));
    assert_int_equal(info.kind, BENEATH_SYMLINK);
    assert_int_equal(beneath_stat(root, "link/passwd", &info, NULL).code, RESULT_INVALID_INPUT);
}

static atomic_bool swapping;

static void *swap(void *context) {
    char sub[300];
    char evil[300];
    (void)snprintf(sub, sizeof sub, "%s/ws/sub", base);
    (void)snprintf(evil, sizeof evil, "%s/ws/evil", base);
    while (atomic_load(&swapping)) {
        (void)syscall(SYS_renameat2, AT_FDCWD, sub, AT_FDCWD, evil, 2U /* RENAME_EXCHANGE */);
    }
    return context;
}

static void exchanged_directory_never_leads_outside(void **state) {
    (void)state;
    shell("ln -s ../out ws/evil");
    pthread_t thread;
    atomic_store(&swapping, true);
    assert_int_equal(pthread_create(&thread, NULL, swap, NULL), 0);
    unsigned done = 0;
    for (unsigned i = 0; i < 3000; i++) {
        char text[64];
        (void)read_text("sub/secret", text, sizeof text, NULL);
        assert_null(strstr(text, "TOPSECRET"));
        done += is_ok(write_text("sub/planted", "x", NULL)) ? 1 : 0;
        done += is_ok(beneath_mkdir(root, "sub/made", false, NULL)) ? 1 : 0;
        done += is_ok(beneath_remove(root, "sub/made", NULL)) ? 1 : 0;
        (void)beneath_remove(root, "sub/secret", NULL).code;
    }
    atomic_store(&swapping, false);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(done > 0); // the race left chances: not every attempt was refused
    shell("test \"$(ls -A out)\" = secret && grep -q TOPSECRET out/secret");
}

static void missing_root_is_an_error(void **state) {
    (void)state;
    struct beneath *other = NULL;
    assert_int_equal(beneath_open("/no/such/root", &other, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(beneath_open("/etc/passwd", &other, NULL).code, RESULT_INVALID_INPUT);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(written_file_is_read_back),
        TEST(range_of_a_file_is_read),
        TEST(paths_that_leave_are_refused_by_name),
        TEST(changes_outside_or_of_protected_names_are_refused),
        TEST(hard_link_is_replaced_and_set_id_dropped),
        TEST(special_files_do_not_hang_or_flood),
        TEST(directories_are_made_and_removed),
        TEST(listing_is_sorted_and_bounded),
        TEST(exchanged_directory_never_leads_outside),
        TEST(missing_root_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
