/* Snapshots of a working tree: taken, compared, restored; the user's own git left alone. */
#include "workspace_support.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/clock.h"
#include "sandbox/lock.h"

static void snapshot_of_the_same_tree_is_the_same(void **state) {
    (void)state;
    struct workspace_snapshot first = snapshot();
    assert_int_equal(strlen(first.commit), 40);
    assert_int_equal(first.files, 4);
    assert_int_equal(first.skipped, 0);
    struct workspace_snapshot second = snapshot();
    assert_string_equal(first.commit, second.commit);
    assert_true(is_ok(open_again())); // the store outlives the process
    second = snapshot();
    assert_string_equal(first.commit, second.commit);
}

static void snapshot_ends_when_its_time_is_over(void **state) {
    (void)state;
    struct clock clock = clock_real();
    struct workspace_snapshot taken;
    struct error error = {0};
    workspace_limit_time(workspace, clock_monotonic_ms(&clock));
    assert_int_equal(
        workspace_take_snapshot(workspace, "late", &taken, &error).code, RESULT_TIMEOUT
    );
    workspace_limit_time(workspace, clock_monotonic_ms(&clock) + 600000);
    assert_true(is_ok(workspace_take_snapshot(workspace, "in time", &taken, &error)));
    workspace_limit_time(workspace, INT64_MAX);
    assert_true(is_ok(workspace_take_snapshot(workspace, "unlimited", &taken, &error)));
}

/* Its files are not deleted ones: whoever merges the snapshot would delete them elsewhere. */
static void snapshot_of_a_directory_that_was_removed_is_none(void **state) {
    (void)state;
    struct workspace_snapshot taken;
    struct error error = {0};
    shell("find ws -mindepth 1 -delete");
    taken = snapshot(); // empty, and there
    assert_int_equal(taken.files, 0);
    shell("rmdir ws");
    assert_int_equal(
        workspace_take_snapshot(workspace, "nothing", &taken, &error).code, RESULT_NOT_FOUND
    );
    assert_non_null(strstr(error.message, "was removed"));
}

static void change_within_the_clock_step_is_seen(void **state) {
    (void)state;
    struct workspace_snapshot last = snapshot();
    for (unsigned i = 0; i < 20; i++) { // same size, as fast as can be
        shell("printf 'k%03u' >ws/keep", i);
        struct workspace_snapshot next = snapshot();
        assert_string_not_equal(last.commit, next.commit);
        last = next;
    }
}

static void difference_has_counts_and_text(void **state) {
    (void)state;
    struct workspace_snapshot before = snapshot();
    shell("cd ws && sed -i 's/two/TWO\\nmore/' src/a.txt && rm keep && echo new >src/b && "
          "chmod -x run && printf 'a\\0b' >binary");
    struct workspace_snapshot after = snapshot();
    struct workspace_difference difference = compare(&before, &after, 1 << 16);
    static const struct workspace_file_change expected[] = {
        {"binary", WORKSPACE_ADDED, true, 0, 0},
        {"keep", WORKSPACE_DELETED, false, 0, 1},
        {"run", WORKSPACE_MODIFIED, false, 0, 0},
        {"src/a.txt", WORKSPACE_MODIFIED, false, 2, 1},
        {"src/b", WORKSPACE_ADDED, false, 1, 0},
    };
    assert_int_equal(difference.file_count, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        assert_string_equal(difference.files[i].path, expected[i].path);
        assert_int_equal(difference.files[i].change, expected[i].change);
        assert_int_equal(difference.files[i].binary, expected[i].binary);
        assert_int_equal(difference.files[i].lines_added, expected[i].lines_added);
        assert_int_equal(difference.files[i].lines_removed, expected[i].lines_removed);
    }
    assert_int_equal(difference.lines_added, 3);
    assert_int_equal(difference.lines_removed, 2);
    assert_non_null(strstr(difference.patch, "-two\n+TWO\n+more\n three\n"));
    assert_non_null(strstr(difference.patch, "--- a/src/a.txt\n+++ b/src/a.txt\n@@"));
    assert_false(difference.patch_truncated);
    workspace_difference_deinit(&difference);
    difference = compare(&before, &after, 50);
    assert_int_equal(difference.patch_bytes, 50);
    assert_true(difference.patch_truncated);
    workspace_difference_deinit(&difference);
    difference = compare(&after, &after, 50);
    assert_int_equal(difference.file_count, 0);
    assert_string_equal(difference.patch, "");
    workspace_difference_deinit(&difference);
}

static void attributes_of_the_tree_do_not_hide_a_change(void **state) {
    (void)state;
    shell("echo '*.txt binary -diff' >ws/.gitattributes");
    struct workspace_snapshot before = snapshot();
    shell("echo four >>ws/src/a.txt");
    struct workspace_snapshot after = snapshot();
    struct workspace_difference difference = compare(&before, &after, 1 << 16);
    assert_int_equal(difference.file_count, 1);
    assert_false(difference.files[0].binary);
    assert_non_null(strstr(difference.patch, "+four"));
    workspace_difference_deinit(&difference);
}

static void restore_brings_the_tree_back(void **state) {
    (void)state;
    struct workspace_snapshot before = snapshot();
    shell("cd ws && echo x >>src/a.txt && rm keep run link && mkdir -p keep/deep new/dir && "
          "echo y >keep/deep/f && echo z >new/dir/f && ln -s /etc run && rm -rf src && echo s >src"
    );
    struct workspace_snapshot changed;
    struct error error = {0};
    if (is_failed(workspace_restore(workspace, before.commit, &changed, &error))) {
        fail_msg("%s", error.message);
    }
    shell("cd ws && test \"$(cat src/a.txt)\" = \"$(printf 'one\\ntwo\\nthree')\" && "
          "test \"$(cat keep)\" = keep && test -x run && test ! -L run && "
          "test \"$(readlink link)\" = src/a.txt && test ! -e new");
    if (is_failed(workspace_restore(workspace, changed.commit, NULL, &error))) { // and forth again
        fail_msg("%s", error.message);
    }
    shell("cd ws && test -L run && test -f src && test -f keep/deep/f && test -f new/dir/f");
}

static void restore_does_not_write_through_a_symlink(void **state) {
    (void)state;
    struct workspace_snapshot before = snapshot();
    shell("mkdir out && rm -r ws/src && ln -s ../out ws/src && rm ws/keep && ln -s ../out/k ws/keep"
    );
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    shell(
        "test -z \"$(ls -A out)\" && test -f ws/src/a.txt && test ! -L ws/src && test ! -L ws/keep"
    );
}

static void large_special_and_ignored_files_are_left_alone(void **state) {
    (void)state;
    shell("cd ws && printf 'build/\\n*.o\\n' >.gitignore && mkdir -p build deep && echo x >build/x "
          "&& "
          "echo x >deep/y.o && truncate -s 11M large && mkfifo fifo && mkdir nested && "
          "mkdir nested/.git && echo c >nested/.git/config && echo n >nested/n");
    struct workspace_snapshot before = snapshot();
    assert_int_equal(before.files, 6); // four, .gitignore, nested/n
    assert_int_equal(before.skipped, 2);
    assert_non_null(strstr(before.skipped_names, "large"));
    assert_non_null(strstr(before.skipped_names, "fifo"));
    shell("cd ws && echo y >build/x && rm deep/y.o && echo z >added");
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    shell("cd ws && grep -q y build/x && test ! -e deep/y.o && test ! -e added && test -e large && "
          "test -p fifo && grep -q c nested/.git/config");
}

static void configuration_of_the_user_does_not_apply(void **state) {
    (void)state;
    shell(
        "mkdir home && printf '[core]\\n\\tautocrlf = true\\n\\texcludesFile = %s/all\\n' "
        ">home/.gitconfig && echo '*' >all && cd ws && git init -q . && "
        "echo '*' >.git/info/exclude && printf '[filter \"f\"]\\n\\tclean = touch %s/ran\\n' "
        ">>.git/config && echo '* filter=f' >.gitattributes && printf 'a\\r\\nb\\r\\n' >crlf",
        base,
        base
    );
    char home[300];
    (void)snprintf(home, sizeof home, "%s/home", base);
    const char *old = getenv("HOME");
    char kept[300];
    (void)snprintf(kept, sizeof kept, "%s", old != NULL ? old : "");
    assert_int_equal(setenv("HOME", home, 1), 0);
    assert_true(is_ok(open_again()));
    struct workspace_snapshot before = snapshot();
    assert_int_equal(before.files, 6); // four, .gitattributes, crlf
    shell("cd ws && rm crlf");
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    shell("test \"$(wc -c <ws/crlf)\" = 6 && test ! -e ran && test ! -e ws/.git/index");
    assert_int_equal(setenv("HOME", kept, 1), 0);
}

static void unreadable_and_odd_names_do_not_stop_a_snapshot(void **state) {
    (void)state;
    shell("cd ws && touch -- '-rf' \"$(printf 'x\\033y')\" \"$(printf '\\377')\" '..a' && "
          "mkdir shut && touch shut/f && chmod 000 shut");
    struct workspace_snapshot taken = snapshot();
    assert_true(taken.files >= 7);
    if (geteuid() != 0) {
        assert_int_equal(taken.skipped, 1);
    }
}

static void deep_tree_is_held_as_far_as_paths_go(void **state) {
    (void)state;
    shell("cd ws && for i in $(seq 300); do mkdir d && cd d || exit 1; done; echo x >f");
    struct workspace_snapshot before = snapshot();
    assert_int_equal(before.files, 5);
    shell("rm -rf ws/d");
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    struct workspace_snapshot after = snapshot();
    assert_int_equal(after.files, 5);
}

static void restore_is_refused_while_a_command_runs(void **state) {
    (void)state;
    struct workspace_snapshot before = snapshot();
    shell("echo changed >ws/keep");
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ws", base);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(directory >= 0);
    int lock = -1;
    assert_true(is_ok(lock_directory(directory, path, &lock, NULL))); // as a running command does
    result restored = workspace_restore(workspace, before.commit, NULL, NULL);
    assert_int_equal(restored.code, RESULT_LIMIT);
    shell("grep -q changed ws/keep");
    close(lock);
    close(directory);
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    shell("grep -q keep ws/keep");
}

static void wrong_names_are_errors(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot();
    struct workspace_difference difference;
    static const char *const names[] = {
        "", "HEAD", "0123456789012345678901234567890123456789", "zz"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        result compared =
            workspace_compare(workspace, names[i], taken.commit, 0, &difference, NULL);
        assert_int_equal(compared.code, RESULT_NOT_FOUND);
        assert_int_equal(workspace_restore(workspace, names[i], NULL, NULL).code, RESULT_NOT_FOUND);
    }
    struct workspace *other = NULL;
    char inside[300];
    char directory[300];
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    (void)snprintf(inside, sizeof inside, "%s/ws/store", base);
    assert_int_equal(workspace_open(directory, inside, &other, NULL).code, RESULT_INVALID_INPUT);
    assert_int_equal(workspace_open("/no/such", inside, &other, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(
        workspace_open(directory, "relative", &other, NULL).code, RESULT_INVALID_INPUT
    );
    assert_int_equal(access(inside, F_OK), -1);
}

/* ---- undo ----------------------------------------------------------------------------------- */

static struct workspace_undone undo(const struct workspace_stretch *stretches, size_t count) {
    struct workspace_undone undone;
    struct error error = {0};
    if (is_failed(workspace_undo(workspace, stretches, count, &undone, &error))) {
        fail_msg("%s", error.message);
    }
    return undone;
}

static void locks_of_a_killed_writer_hold_nobody_up(void **state) {
    (void)state;
    (void)snapshot();
    shell("cd store/a && for name in stat-cache refs/heads/snapshots; do touch "
          "$name.lock; done && "
          "echo x >>../../ws/src/a.txt");
    (void)snapshot();
    shell("cd store/a && ! find . -name 'snapshots.lock' | grep -q .");
}

static void undo_takes_back_what_the_stretches_changed_and_nothing_else(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && echo x >>src/a.txt && rm keep && mkdir keep && echo y >keep/f && chmod 644 run"
    );
    struct workspace_snapshot first = snapshot();
    shell("cd ws && echo mine >note && echo mine >src/note"); // somebody else, in between
    struct workspace_snapshot second = snapshot();
    shell("cd ws && echo z >>src/a.txt && rm link && ln -s nowhere link && echo n >new");
    struct workspace_snapshot third = snapshot();
    shell("cd ws && echo since >later");
    const struct workspace_stretch stretches[] = {
        {start.commit, first.commit}, {second.commit, third.commit}};
    struct workspace_undone undone = undo(stretches, 2);
    shell("cd ws && test \"$(cat src/a.txt)\" = \"$(printf 'one\\ntwo\\nthree')\" && "
          "test \"$(cat keep)\" = keep && test -x run && test \"$(readlink link)\" = src/a.txt && "
          "test ! -e new && test \"$(cat note)\" = mine && test \"$(cat src/note)\" = mine && "
          "test \"$(cat later)\" = since");
    assert_int_equal(undone.files, 6); // src/a.txt, keep, keep/f, run, link, new
    struct error error = {0};
    assert_true(is_ok(workspace_restore(workspace, undone.before, NULL, &error)));
    shell("cd ws && test \"$(cat new)\" = n && test -f keep/f && test ! -x run");
}

static void undo_of_one_stretch_leaves_the_others(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && echo x >one");
    struct workspace_snapshot first = snapshot();
    shell("cd ws && echo x >two");
    struct workspace_snapshot second = snapshot();
    const struct workspace_stretch stretch = {start.commit, first.commit};
    (void)undo(&stretch, 1);
    shell("cd ws && test ! -e one && test -f two");
    const struct workspace_stretch rest = {first.commit, second.commit};
    assert_int_equal(undo(&rest, 1).files, 1);
    shell("cd ws && test ! -e two");
    assert_int_equal(undo(NULL, 0).files, 0);
}

static void undo_refuses_what_somebody_else_changed(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && echo x >>src/a.txt && echo x >new");
    struct workspace_snapshot first = snapshot();
    shell("cd ws && echo mine >>src/a.txt");
    struct workspace_snapshot second = snapshot();
    shell("cd ws && echo y >>src/a.txt");
    struct workspace_snapshot third = snapshot();
    const struct workspace_stretch stretches[] = {
        {start.commit, first.commit}, {second.commit, third.commit}};
    struct workspace_undone undone;
    struct error error = {0};
    result refused = workspace_undo(workspace, stretches, 2, &undone, &error);
    assert_int_equal(refused.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "1 of 2 files"));
    assert_non_null(strstr(error.message, "src/a.txt"));
    shell("cd ws && test -f new && grep -q mine src/a.txt && rm new"); // nothing was done
    refused = workspace_undo(workspace, stretches, 1, &undone, &error);
    assert_int_equal(refused.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "1 of 1 files")); // "new" is gone already, as before
    const struct workspace_stretch unknown = {
        start.commit, "0123456789012345678901234567890123456789"};
    assert_int_equal(
        workspace_undo(workspace, &unknown, 1, &undone, &error).code, RESULT_NOT_FOUND
    );
}

/* What no snapshot holds would be lost: nothing is begun, and the names are told. */
static void files_that_no_snapshot_holds_are_never_overwritten(void **state) {
    (void)state;
    shell("cd ws && mkdir -p deep && echo d >deep/f && echo a >plain");
    struct workspace_snapshot start = snapshot();
    shell("cd ws && rm -r deep plain keep src");
    struct workspace_snapshot gone = snapshot();
    static const char *const obstacles[] = {
        "echo plain >.gitignore && echo precious >plain", // ignored now
        "truncate -s 11M plain",                          // too large
        "mkfifo plain",                                   // of no kind that git holds
        "mkdir -p plain/sub && echo '*.o' >.gitignore && echo precious >plain/sub/x.o",
        "mkdir -p plain/empty",                         // would be in the way
        "echo deep >.gitignore && echo precious >deep", // where a directory is to be
        "mkdir -p plain/.git && echo precious >plain/.git/config",
    };
    const struct workspace_stretch stretch = {start.commit, gone.commit};
    for (size_t i = 0; i < COUNT_OF(obstacles); i++) {
        shell("cd ws && %s", obstacles[i]);
        shell("cp -a ws copy");
        struct error error = {0};
        result restored = workspace_restore(workspace, start.commit, NULL, &error);
        assert_int_equal(restored.code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, i == 5 ? "deep/f" : "plain"));
        struct workspace_undone undone;
        restored = workspace_undo(workspace, &stretch, 1, &undone, &error);
        assert_int_equal(restored.code, RESULT_INVALID_INPUT);
        shell("diff -r --no-dereference ws copy 2>/dev/null >differences || ! grep -v fifo "
              "differences");
        shell("rm -rf copy ws/plain ws/deep ws/.gitignore");
    }
    (void)undo(&stretch, 1);
    shell("cd ws && grep -q d deep/f && grep -q a plain && test -f src/a.txt");
    // A directory of files that a snapshot holds makes way, as it can come back.
    shell("cd ws && rm plain && mkdir -p plain/sub && echo x >plain/sub/f");
    struct workspace_snapshot before;
    assert_true(is_ok(workspace_restore(workspace, start.commit, &before, NULL)));
    shell("cd ws && grep -q a plain");
    assert_true(is_ok(workspace_restore(workspace, before.commit, NULL, NULL)));
    shell("cd ws && grep -q x plain/sub/f");
}

/* What was in the last snapshot is not asked about again; so each way that rules can change. */
static void rules_that_change_hold_for_files_that_are_known(void **state) {
    (void)state;
    static const struct {
        const char *change;
        size_t files;
    } steps[] = {
        {"mkdir -p a/b/c && echo x >a/b/c/f.o && echo x >a/b/g && echo x >a/h.o", 7},
        {":", 7},
        {"echo '*.o' >a/b/.gitignore", 7}, // less f.o, and itself
        {":", 7},
        {"echo 'g' >>a/b/.gitignore", 6},
        {"echo '/a/b/' >.gitignore", 6},    // less .gitignore of a/b, and itself
        {": >.gitignore", 7},               // a/b/.gitignore
        {"mv a/b/.gitignore a/b/rules", 9}, // f.o and g come back, under another name
        {"ln -s rules a/b/.gitignore",
         8}, // f.o and g go, the link comes: rules are read through it
        {"printf '*.o' >a/b/rules", 9},
        {"rm a/b/.gitignore && echo 'b/' >a/.gitignore", 7},
        {"rm a/.gitignore", 9},
        {"rm -r a/b && echo x >a/b", 7},
        {"rm a/b && mkdir a/b && echo x >a/b/f && echo 'b' >.gitignore", 6},
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        shell("cd ws && %s", steps[i].change);
        struct workspace_snapshot taken = snapshot();
        // A store of its own knows nothing, and asks about all.
        shell("rm -rf store/b");
        char directory[300], store[300];
        (void)snprintf(directory, sizeof directory, "%s/ws", base);
        (void)snprintf(store, sizeof store, "%s/store/b", base);
        struct workspace *fresh = NULL;
        struct workspace_snapshot whole;
        assert_true(is_ok(workspace_open(directory, store, &fresh, NULL)));
        assert_true(is_ok(workspace_take_snapshot(fresh, "x", &whole, NULL)));
        workspace_close(fresh);
        assert_int_equal(taken.files, whole.files);
        assert_int_equal(taken.files, steps[i].files);
        if (i % 4 == 1) {
            (void)usleep(2100000); // so that the cache is trusted from here on
            (void)snapshot();
        }
    }
}

static void snapshot_reads_only_what_changed(void **state) {
    (void)state;
    assert_true(snapshot().bytes_read > 0);
    (void)usleep(2100000); // a file changed a moment ago is read again
    (void)snapshot();
    assert_int_equal(snapshot().bytes_read, 0);
    shell("printf 12345 >ws/new");
    assert_int_equal(snapshot().bytes_read, 5);
}

static void undo_is_refused_while_a_command_runs(void **state) {
    (void)state;
    char directory[300];
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    int root = open(directory, O_PATH | O_DIRECTORY);
    int lock = -1;
    struct error error = {0};
    assert_true(is_ok(lock_directory(root, directory, &lock, &error)));
    struct workspace_undone undone;
    assert_int_equal(workspace_undo(workspace, NULL, 0, &undone, &error).code, RESULT_LIMIT);
    close(lock);
    close(root);
    assert_true(is_ok(workspace_undo(workspace, NULL, 0, &undone, &error)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(snapshot_of_the_same_tree_is_the_same),
        TEST(snapshot_ends_when_its_time_is_over),
        TEST(snapshot_of_a_directory_that_was_removed_is_none),
        TEST(change_within_the_clock_step_is_seen),
        TEST(difference_has_counts_and_text),
        TEST(attributes_of_the_tree_do_not_hide_a_change),
        TEST(restore_brings_the_tree_back),
        TEST(restore_does_not_write_through_a_symlink),
        TEST(large_special_and_ignored_files_are_left_alone),
        TEST(configuration_of_the_user_does_not_apply),
        TEST(unreadable_and_odd_names_do_not_stop_a_snapshot),
        TEST(deep_tree_is_held_as_far_as_paths_go),
        TEST(restore_is_refused_while_a_command_runs),
        TEST(wrong_names_are_errors),
        TEST(locks_of_a_killed_writer_hold_nobody_up),
        TEST(undo_takes_back_what_the_stretches_changed_and_nothing_else),
        TEST(undo_of_one_stretch_leaves_the_others),
        TEST(undo_refuses_what_somebody_else_changed),
        TEST(undo_is_refused_while_a_command_runs),
        TEST(files_that_no_snapshot_holds_are_never_overwritten),
        TEST(rules_that_change_hold_for_files_that_are_known),
        TEST(snapshot_reads_only_what_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
