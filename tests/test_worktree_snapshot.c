/* Copies made from snapshots: what the snapshot has, whatever happens to the source meanwhile; a store of
 * their own; leases, the sweep of what dead processes left, removal of what is saved. */
#include "shell_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/lock.h"
#include "sandbox/workspace_merge.h"
#include "sandbox/worktree.h"

/* `base` holds ws/, store/, copies/ and own/. */
static char source[300], store[300], copies[300], copy[300], own[300];
static struct workspace *workspace;

static struct workspace *open_workspace(const char *directory, const char *snapshots) {
    struct workspace *opened = NULL;
    struct error error = {0};
    if (is_failed(workspace_open(directory, snapshots, &opened, &error))) {
        fail_msg("%s", error.message);
    }
    return opened;
}

static struct workspace_snapshot snapshot(struct workspace *of) {
    struct workspace_snapshot taken;
    struct error error = {0};
    if (is_failed(workspace_take_snapshot(of, "test", &taken, &error))) {
        fail_msg("%s", error.message);
    }
    return taken;
}

/* Some files are old, so that the snapshot's cache knows them, and `fresh` is not. */
static int set_up(void **state) {
    (void)state;
    base_make("worktree");
    (void)snprintf(source, sizeof source, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    (void)snprintf(copies, sizeof copies, "%s/copies", base);
    (void)snprintf(copy, sizeof copy, "%s/copies/c", base);
    (void)snprintf(own, sizeof own, "%s/own", base);
    shell("mkdir -p copies ws/src/deep ws/build; cd ws; git init -q -b trunk .; "
          "git config user.name t; git config user.email t@localhost; echo one >src/a; "
          "echo b >src/deep/b; ln -s src/a link; echo '#!/bin/sh' >run; chmod 750 run; "
          "printf '*.o\\nbuild/\\n' >.gitignore; echo o >tracked.o; truncate -s 11M big; "
          "git add -f .; git commit -qm first; echo x >x.o; echo y >build/y; echo new >untracked; "
          "truncate -s 12M untracked-big");
    (void)sleep(3); // the cache trusts no file that was changed a moment ago
    shell("echo fresh >ws/fresh");
    workspace = open_workspace(source, store);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    workspace_cleanup(&workspace);
    base_remove();
    return 0;
}

static struct worktree_options options_for(const char *commit) {
    return (struct worktree_options){
        .source = source,
        .directory = copy,
        .snapshots = store,
        .commit = commit,
        .own_snapshots = own,
    };
}

static struct worktree create(const struct worktree_options *options) {
    struct worktree made;
    struct error error = {0};
    if (is_failed(worktree_create(options, &made, &error))) {
        fail_msg("%s", error.message);
    }
    return made;
}

static bool is_dirty(void) {
    bool dirty = false;
    char names[WORKTREE_NAMES_BYTES];
    assert_true(is_ok(worktree_is_dirty(copy, &dirty, names, NULL)));
    return dirty;
}

static void copy_is_what_the_snapshot_has(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    shell("cp -a ws expected; cd expected; rm -r x.o build untracked-big .git");
    shell("cd ws; echo changed >src/a; rm src/deep/b; rm run; mkdir run; echo z >run/z; echo later "
          ">later; "
          "rm link; ln -s run link; echo 12345 >fresh");
    struct worktree_options options = options_for(taken.commit);
    struct worktree made = create(&options);
    shell("rm -rf check; cp -a copies/c check; rm -rf check/.git; diff -r --no-dereference "
          "expected check");
    assert_int_equal(
        made.files, 9
    ); // .gitignore big fresh link run src/a src/deep/b tracked.o untracked
    assert_int_equal(made.skipped, 0);
    shell(
        "cd copies/c; test -x run; test \"$(git rev-parse HEAD)\" = %s; "
        "test \"$(git status --porcelain | tr '\\n' ' ')\" = '?? fresh ?? untracked '; git fsck "
        "--strict "
        ">/dev/null 2>&1; "
        "test \"$(stat -c '%%a %%Y' untracked)\" = \"$(stat -c '%%a %%Y' ../../ws/untracked)\"",
        made.head
    );
    assert_false(is_dirty());
}

static void first_snapshot_of_a_copy_reads_only_what_was_changed(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    (void)create(&options);
    shell("rm -rf store"); // it lives without the other
    struct workspace *child = open_workspace(copy, own);
    // Ignored though tracked, and too large: no snapshot's, the parent's neither.
    struct workspace_snapshot first = snapshot(child);
    assert_string_equal(first.commit, taken.commit);
    assert_int_equal(first.bytes_read, 0);
    shell("printf 'ONE\\n' >copies/c/src/a"); // the same size, at once
    struct workspace_snapshot second = snapshot(child);
    assert_int_equal(second.bytes_read, 4);
    shell("cd copies/c; rm -r src; echo more >untracked");
    struct error error = {0};
    if (is_failed(workspace_restore(child, taken.commit, NULL, &error))) {
        fail_msg("%s", error.message);
    }
    shell("cd copies/c; grep -qx one src/a; grep -qx b src/deep/b; grep -qx new untracked");
    shell("git -C own fsck --strict >/dev/null 2>&1");
    workspace_cleanup(&child);
}

static void change_right_behind_the_making_is_seen(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    for (unsigned i = 0; i < 20; i++) {
        char path[400];
        struct worktree_options options = options_for(taken.commit);
        (void)snprintf(path, sizeof path, "%s/src/deep/b", copy);
        (void)create(&options);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(write(fd, "B", 1), 1);
        close(fd);
        struct workspace *child = open_workspace(copy, own);
        assert_string_not_equal(snapshot(child).commit, taken.commit);
        assert_true(is_dirty());
        workspace_cleanup(&child);
        shell("rm -rf copies/c own");
    }
}

static void ignored_files_come_when_asked(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    options.with_ignored = true;
    shell("echo later >ws/later; rm ws/fresh; mkdir ws/build/deep; echo d >ws/build/deep/d");
    struct worktree made = create(&options);
    assert_int_equal(made.files, 13);
    shell("cd copies/c; grep -qx x x.o; grep -qx y build/y; grep -qx d build/deep/d; test ! -e "
          "later; "
          "grep -qx fresh fresh; test $(stat -c %%s untracked-big) = 12582912");
    assert_false(is_dirty());
    shell("rm copies/c/build/y");
    assert_true(is_dirty()); // copied, so it counts
}

static void command_may_run_in_the_source(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    int directory = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int lock = -1;
    assert_true(is_ok(lock_directory(directory, source, &lock, NULL)));
    struct worktree_options options = options_for(taken.commit);
    struct worktree made;
    options.with_ignored = true;
    assert_int_equal(worktree_create(&options, &made, NULL).code, RESULT_LIMIT);
    options.with_ignored = false;
    (void)create(&options);
    close(lock);
    close(directory);
}

#define LARGE_FILES 12
#define LARGE_BYTES ((size_t)4 << 20)

/* Writes each large file of the source as soon as its copy appears. */
static void disturb(void) {
    static char text[LARGE_BYTES];
    char partial[700] = "";
    memset(text, 'b', sizeof text);
    while (partial[0] == '\0') {
        DIR *directory = opendir(copies);
        ASSERT(directory != NULL);
        for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
            if (entry->d_name[0] == 'c') {
                (void)snprintf(partial, sizeof partial, "%s/%s", copies, entry->d_name);
            }
        }
        closedir(directory);
    }
    for (unsigned i = 0; i < LARGE_FILES; i++) {
        char made[800];
        char from[400];
        (void)snprintf(made, sizeof made, "%s/many/%c", partial, 'a' + (int)i);
        (void)snprintf(from, sizeof from, "%s/many/%c", source, 'a' + (int)i);
        int fd = open(from, O_WRONLY | O_CLOEXEC);
        while (access(made, F_OK) != 0) {
        }
        (void)(write(fd, text, sizeof text) == 0);
        close(fd);
    }
}

/* A command writes the files that are just being copied. */
static void disturbed_copy_is_what_the_snapshot_has(void **state) {
    (void)state;
    shell("mkdir ws/many; for i in a b c d e f g h i j k l; do head -c 4194304 /dev/zero | tr "
          "'\\0' a "
          ">ws/many/$i; done");
    (void)sleep(3);
    struct workspace_snapshot taken = snapshot(workspace);
    shell("cp -a ws expected; cd expected; rm -r x.o build untracked-big .git");
    pid_t child = fork();
    if (child == 0) {
        disturb();
        _exit(0);
    }
    struct worktree_options options = options_for(taken.commit);
    (void)create(&options);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    shell("cp -a copies/c check; rm -rf check/.git; diff -r --no-dereference expected check; "
          "! cmp -s ws/many/a expected/many/a");
}

static void source_without_a_repository_gets_a_first_commit(void **state) {
    (void)state;
    shell("rm -rf ws/.git");
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    struct worktree made = create(&options);
    assert_int_equal(strlen(made.head), 40);
    shell("rm -rf store; cd copies/c; git fsck --strict >/dev/null 2>&1; "
          "test -z \"$(git status --porcelain)\"; test \"$(git show HEAD:src/a)\" = one; "
          "test \"$(git rev-list --count HEAD)\" = 1; test ! -e ../../ws/.git");
    assert_false(is_dirty());
}

static void expect_refused(const struct worktree_options *options, enum result_code code) {
    struct worktree made;
    struct error error = {0};
    result refused = worktree_create(options, &made, &error);
    if (refused.code != code) {
        fail_msg("%s, not %s: %s", result_name(refused.code), result_name(code), error.message);
    }
    assert_true(error.message[0] != '\0');
    shell("test -z \"$(ls -A copies)\"; test ! -e own"); // nothing is left
}

static void refusals_leave_nothing(void **state) {
    (void)state;
    char inside[320];
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for("0123456789012345678901234567890123456789");
    expect_refused(&options, RESULT_NOT_FOUND);
    options = options_for(taken.commit);
    options.own_snapshots = store; // the source's cache would be another's
    expect_refused(&options, RESULT_INVALID_INPUT);
    options = options_for(taken.commit);
    options.snapshots = NULL;
    expect_refused(&options, RESULT_INVALID_INPUT);
    options = options_for(NULL);
    options.snapshots = NULL;
    expect_refused(&options, RESULT_INVALID_INPUT);
    options = options_for(taken.commit);
    (void)snprintf(inside, sizeof inside, "%s/file/store", base);
    shell("echo >file");
    options.own_snapshots = inside;
    expect_refused(&options, RESULT_IO);
    shell(
        "rm ws/untracked; git -C store rev-parse %s:untracked >name; "
        "rm -f store/objects/$(cut -c1-2 name)/$(cut -c3- name)",
        taken.commit
    );
    options = options_for(taken.commit);
    expect_refused(&options, RESULT_NOT_FOUND);
}

static void permissions_do_not_depend_on_the_umask(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    mode_t before = umask(0077);
    (void)create(&options);
    (void)umask(before);
    shell("test $(stat -c %%a copies/c/run) = 750; test $(stat -c %%a copies/c/untracked) = "
          "$(stat -c %%a ws/untracked); test $(stat -c %%a copies/c/fresh) = 644");
}

struct creator {
    pthread_t thread;
    char directory[400], snapshots[400];
    const char *commit;
    result done;
};

static void *run_creator(void *context) {
    struct creator *creator = context;
    struct worktree made;
    const struct worktree_options options = {
        .source = source,
        .directory = creator->directory,
        .snapshots = store,
        .commit = creator->commit,
        .own_snapshots = creator->snapshots,
    };
    creator->done = worktree_create(&options, &made, NULL);
    return NULL;
}

static void many_are_made_at_once(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct creator creators[8];
    for (size_t i = 0; i < COUNT_OF(creators); i++) {
        (void)snprintf(creators[i].directory, sizeof creators[i].directory, "%s/%zu", copies, i);
        (void)snprintf(creators[i].snapshots, sizeof creators[i].snapshots, "%s-%zu", own, i);
        creators[i].commit = taken.commit;
        assert_int_equal(pthread_create(&creators[i].thread, NULL, run_creator, &creators[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(creators); i++) {
        assert_int_equal(pthread_join(creators[i].thread, NULL), 0);
        assert_true(is_ok(creators[i].done));
        shell("test -f copies/%zu/src/deep/b; git -C own-%zu cat-file -e %s", i, i, taken.commit);
    }
    struct worktree_swept swept;
    assert_true(is_ok(worktree_sweep(copies, false, &swept, NULL)));
    assert_int_equal(swept.removed, COUNT_OF(creators));
    shell("test -z \"$(ls -A copies)\"");
}

/* ---- end of a copy -------------------------------------------------------------------------- */

static void saved_work_may_go(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    (void)create(&options);
    struct workspace *child = open_workspace(copy, own);
    shell("cd copies/c; echo work >src/a; rm run; echo n >n; echo built >n.o");
    struct workspace_snapshot saved = snapshot(child);
    struct error error = {0};
    assert_int_equal(worktree_remove(copy, NULL).code, RESULT_INVALID_INPUT);
    static const char *const more[] = {
        "echo later >later", "truncate -s 11M huge", "truncate -s 13M big", "git branch mine"};
    static const char *const undo[] = {
        "rm later", "rm huge", "truncate -s 11M big", "git branch -qD mine"};
    static const char *const names[] = {"later", "huge", "big", "(branches)"};
    for (size_t i = 0; i < COUNT_OF(more); i++) {
        shell("cd copies/c; %s", more[i]);
        result refused = worktree_remove_saved(copy, own, saved.commit, &error);
        assert_int_equal(refused.code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, names[i]));
        shell("cd copies/c; test -f src/a; %s", undo[i]);
        if (i == 2) { // whatever is written has another time: it stays dirty
            assert_int_equal(
                worktree_remove_saved(copy, own, saved.commit, &error).code, RESULT_INVALID_INPUT
            );
            shell("rm copies/c/big");
        }
    }
    assert_int_equal(
        worktree_remove_saved(copy, own, taken.commit, NULL).code, RESULT_INVALID_INPUT
    );
    int lease = -1;
    assert_true(is_ok(worktree_lease(copy, &lease, NULL)));
    assert_int_equal(worktree_remove_saved(copy, own, saved.commit, NULL).code, RESULT_LIMIT);
    close(lease);
    if (is_failed(worktree_remove_saved(copy, own, saved.commit, &error))) {
        fail_msg("%s", error.message);
    }
    workspace_cleanup(&child);
    shell("test -z \"$(ls -A copies)\"; test \"$(git -C own show %s:src/a)\" = work", saved.commit);
    assert_int_equal(worktree_remove_saved(copy, own, saved.commit, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(worktree_remove_saved(source, own, saved.commit, NULL).code, RESULT_NOT_FOUND);
}

static struct worktree_swept sweep(void) {
    struct worktree_swept swept;
    struct error error = {0};
    if (is_failed(worktree_sweep(copies, false, &swept, &error))) {
        fail_msg("%s", error.message);
    }
    return swept;
}

/* A child process that makes copies/NAME, holds its lease and waits to be killed. */
static pid_t start_owner(const char *commit, const char *name) {
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", copies, name);
    pid_t child = fork();
    if (child == 0) {
        int lease = -1;
        struct worktree made;
        struct worktree_options options = options_for(commit);
        options.directory = path;
        options.own_snapshots = NULL;
        options.lease = &lease;
        if (is_failed(worktree_create(&options, &made, NULL))) {
            _exit(1);
        }
        for (;;) {
            (void)pause();
        }
    }
    while (access(path, F_OK) != 0) {
        (void)usleep(1000);
    }
    return child;
}

static void end_owner(pid_t child) {
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
}

static void sweep_removes_what_the_dead_left(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    shell("mkdir copies/foreign; echo f >copies/foreign/f; echo f >copies/file; "
          "git init -q copies/repository; echo r >copies/repository/r; ln -s ../ws copies/link");
    pid_t clean = start_owner(taken.commit, "clean");
    pid_t dirty = start_owner(taken.commit, "dirty");
    shell("echo work >copies/dirty/work; cp -a copies/clean foreign-copy");
    struct worktree_swept swept = sweep();
    assert_int_equal(swept.in_use, 2);
    assert_int_equal(swept.removed + swept.kept, 0);
    end_owner(clean);
    end_owner(dirty);
    swept = sweep();
    assert_int_equal(swept.removed, 1);
    assert_int_equal(swept.kept, 1);
    assert_int_equal(swept.in_use, 0);
    assert_string_equal(swept.kept_names, "dirty");
    shell("cd copies; test \"$(ls -A | tr '\\n' ' ')\" = 'dirty file foreign link repository '; "
          "grep -qx work dirty/work; grep -qx f foreign/f; grep -qx r repository/r; test -f "
          "../ws/src/a");
    struct worktree_swept none;
    assert_true(is_ok(worktree_sweep("/var/tmp/no/such/directory", false, &none, NULL)));
    assert_int_equal(none.removed + none.kept + none.in_use, 0);
}

static void scratch_copies_go_with_what_is_in_them(void **state) {
    (void)state;
    struct workspace_snapshot taken = snapshot(workspace);
    struct worktree_options options = options_for(taken.commit);
    (void)create(&options);
    assert_int_equal(worktree_discard(copy, NULL).code, RESULT_INVALID_INPUT); // a copy for work
    assert_int_equal(worktree_remove_store(copies, NULL).code, RESULT_NOT_FOUND);
    assert_true(is_ok(worktree_remove(copy, NULL)));
    assert_true(is_ok(worktree_remove_store(own, NULL)));
    assert_int_equal(worktree_remove_store(own, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(worktree_discard(copy, NULL).code, RESULT_NOT_FOUND);
    int lease = -1;
    options.is_scratch = true;
    options.lease = &lease;
    (void)create(&options);
    shell("cd copies/c; echo work >>src/a; mkdir -p x/y; chmod 0 x/y x; rm run");
    assert_int_equal(worktree_discard(copy, NULL).code, RESULT_LIMIT);
    assert_int_equal(sweep().in_use, 1);
    close(lease);
    assert_int_equal(worktree_remove(copy, NULL).code, RESULT_INVALID_INPUT); // dirty
    assert_true(is_ok(worktree_discard(copy, NULL)));
    assert_true(is_ok(worktree_remove_store(own, NULL)));
    (void)create(&options);
    close(lease);
    shell("echo work >>copies/c/src/a");
    assert_int_equal(sweep().removed, 1);
    shell("test -z \"$(ls -A copies)\"");
}

/* Kills a child that makes and removes a copy over and over, at any moment. */
static void killed_making_and_removing_leave_nothing(void **state) {
    (void)state;
    shell("cd ws; mkdir many; for i in $(seq 400); do echo $i >many/$i; done");
    struct workspace_snapshot taken = snapshot(workspace);
    for (unsigned round = 0; round < 30; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct worktree made;
            struct worktree_options options = options_for(taken.commit);
            options.own_snapshots = NULL;
            while (is_ok(worktree_create(&options, &made, NULL)) &&
                   is_ok(worktree_remove(copy, NULL))) {
            }
            _exit(1);
        }
        (void)usleep(20000 + (round * 7919) % 60000);
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0); // it did not fail
        (void)sweep();                                      // takes nothing from under it
        (void)usleep(5000);
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        end_owner(child);
        struct worktree_swept swept = sweep();
        assert_int_equal(swept.kept, 0);
        assert_int_equal(swept.in_use, 0);
        shell("test -z \"$(ls -A copies)\"");
    }
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(copy_is_what_the_snapshot_has),
        TEST(first_snapshot_of_a_copy_reads_only_what_was_changed),
        TEST(change_right_behind_the_making_is_seen),
        TEST(ignored_files_come_when_asked),
        TEST(command_may_run_in_the_source),
        TEST(disturbed_copy_is_what_the_snapshot_has),
        TEST(source_without_a_repository_gets_a_first_commit),
        TEST(refusals_leave_nothing),
        TEST(permissions_do_not_depend_on_the_umask),
        TEST(many_are_made_at_once),
        TEST(saved_work_may_go),
        TEST(sweep_removes_what_the_dead_left),
        TEST(scratch_copies_go_with_what_is_in_them),
        TEST(killed_making_and_removing_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
