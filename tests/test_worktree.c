/* Copies of a workspace: complete, with a repository of their own, kept while they hold work. */
#include "shell_support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/lock.h"
#include "sandbox/worktree.h"

/* `base` holds ws/ and copies/. */
static char source[300];
static char copy[300];

/* A repository with two commits, then changes of every kind. */
static void make_repository(const char *name) {
    shell(
        "mkdir -p %s && cd %s && git init -q -b trunk . && git config user.name t && "
        "git config user.email t@localhost && mkdir -p src/deep && echo one >src/a && "
        "echo b >src/deep/b && ln -s src/a link && printf '#!/bin/sh\\n' >run && chmod 755 run && "
        "printf '*.o\\nbuild/\\n' >.gitignore && mkdir build && echo kept >build/kept && "
        "echo o >tracked.o && git add -f . && git commit -qm first && echo two >src/a && "
        "git commit -qam second && git branch side HEAD~1 && git tag v1 && git gc -q && "
        "echo three >src/a && rm src/deep/b && echo new >src/new && echo x >x.o && "
        "echo y >build/y && echo staged >staged && git add staged && "
        "touch -d '2020-02-03 04:05:06' src/new",
        name,
        name
    );
}

static int set_up(void **state) {
    (void)state;
    base_make("worktree");
    (void)snprintf(source, sizeof source, "%s/ws", base);
    (void)snprintf(copy, sizeof copy, "%s/copies/c", base);
    shell("mkdir copies");
    make_repository("ws");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    base_remove();
    return 0;
}

static struct worktree create(const struct worktree_options *options) {
    struct worktree made;
    struct error error = {0};
    if (is_failed(worktree_create(options, &made, &error))) {
        fail_msg("%s", error.message);
    }
    return made;
}

static struct worktree create_plain(void) {
    const struct worktree_options options = {.source = source, .directory = copy};
    return create(&options);
}

static void expect_refused(const struct worktree_options *options, enum result_code code) {
    struct worktree made;
    struct error error = {0};
    result refused = worktree_create(options, &made, &error);
    if (refused.code != code) {
        fail_msg("%s, not %s: %s", result_name(refused.code), result_name(code), error.message);
    }
    assert_true(error.message[0] != '\0'); // it says why
    shell("test -z \"$(ls -A copies)\"");  // nothing is left
}

static bool is_dirty(void) {
    bool dirty = false;
    char names[WORKTREE_NAMES_BYTES];
    struct error error = {0};
    if (is_failed(worktree_is_dirty(copy, &dirty, names, &error))) {
        fail_msg("%s", error.message);
    }
    assert_true(dirty == (strlen(names) > 0));
    return dirty;
}

static void copy_has_all_but_the_ignored_and_its_own_git(void **state) {
    (void)state;
    shell("(cd ws/.git && find . -type f -exec sha256sum {} + | sort && find . -printf '%%p %%m "
          "%%T@\\n' | sort) >before");
    struct worktree made = create_plain();
    shell("(cd ws/.git && find . -type f -exec sha256sum {} + | sort && find . -printf '%%p %%m "
          "%%T@\\n' | sort) >after && cmp before after"); // the user's own is never written
    assert_int_equal(made.files, 8); // of .gitignore run link src/a src/new staged tracked.o kept
    assert_int_equal(made.skipped, 0);
    shell(
        "test -d copies/c/.git && cd copies/c && test \"$(git rev-parse HEAD)\" = %s && "
        "test \"$(git -C ../../ws rev-parse HEAD)\" = %s && git fsck --strict >/dev/null 2>&1 && "
        "! git symbolic-ref -q HEAD",
        made.head,
        made.head
    );
    // The same state of work; what was staged is a new file like the others.
    shell("git -C ws reset -q && git -C ws status --porcelain >one && "
          "git -C copies/c status --porcelain >two && cmp one two && test -s one");
    shell("cd copies/c && test ! -e x.o && test ! -e build/y && grep -q kept build/kept && "
          "test -x run && test ! -x src/a && test \"$(readlink link)\" = src/a && "
          "test \"$(stat -c %%Y src/new)\" = \"$(stat -c %%Y ../../ws/src/new)\"");
    shell("test \"$(git -C copies/c rev-parse side v1)\" = \"$(git -C ws rev-parse side v1)\" && "
          "test \"$(stat -c %%i ws/.git/objects/pack/*.pack)\" = "
          "\"$(stat -c %%i copies/c/.git/objects/pack/*.pack)\"");
    assert_false(is_dirty());
    // Work in one is not seen in the other.
    shell("cd copies/c && git -c user.name=t -c user.email=t commit -qam work && "
          "git -C ../../ws fsck >/dev/null 2>&1 && ! git -C ../../ws cat-file -e $(git rev-parse "
          "HEAD)"
          " 2>/dev/null");
}

static void branch_and_ignored_files_come_when_asked(void **state) {
    (void)state;
    const struct worktree_options options = {
        .source = source, .directory = copy, .branch = "hearth/abc", .with_ignored = true};
    struct worktree made = create(&options);
    assert_int_equal(made.files, 10);
    shell("cd copies/c && test \"$(git symbolic-ref HEAD)\" = refs/heads/hearth/abc && "
          "test -f x.o && test -f build/y && ! git -C ../../ws rev-parse -q --verify hearth/abc");
    assert_false(is_dirty());
    shell("echo changed >copies/c/build/y"); // copied, so it counts
    assert_true(is_dirty());
}

static void workspace_without_a_repository_gets_a_first_commit(void **state) {
    (void)state;
    shell("rm -rf ws/.git ws/.gitignore && mkdir -p ws/empty");
    struct worktree made = create_plain();
    assert_int_equal(strlen(made.head), 40);
    shell("cd copies/c && test -z \"$(git status --porcelain)\" && "
          "test \"$(git rev-list --count HEAD)\" = 1 && git cat-file -e HEAD:src/new && "
          "test ! -e ../../ws/.git && test -d empty");
    assert_false(is_dirty());
}

static void repository_without_a_commit_is_copied(void **state) {
    (void)state;
    shell("rm -rf ws/.git && git -C ws init -q");
    struct worktree made = create_plain();
    assert_string_equal(made.head, "");
    shell("cd copies/c && ! git rev-parse -q --verify HEAD && test -f src/new");
    assert_false(is_dirty());
}

static void git_worktree_and_submodule_are_copied_with_a_real_git(void **state) {
    (void)state;
    shell("git -C ws worktree add -q ../tree side && echo w >tree/w");
    (void)snprintf(source, sizeof source, "%s/tree", base);
    struct worktree made = create_plain();
    shell(
        "test -f tree/.git && test -d copies/c/.git && cd copies/c && grep -q one src/a && "
        "test -f w && test \"$(git rev-parse HEAD)\" = %s && git fsck >/dev/null 2>&1",
        made.head
    );
    shell("rm -rf copies/c && git -C ws stash -q && mkdir outer && cd outer && git init -q && "
          "git -c protocol.file.allow=always submodule --quiet add ../ws sub && "
          "test -f sub/.git && echo s >sub/s");
    (void)snprintf(source, sizeof source, "%s/outer/sub", base);
    made = create_plain();
    shell(
        "test -d copies/c/.git && cd copies/c && test -f s && test \"$(git rev-parse HEAD)\" = %s "
        "&& git fsck >/dev/null 2>&1",
        made.head
    );
}

static void objects_of_a_shared_clone_come_along(void **state) {
    (void)state;
    shell("git clone -q --shared ws shared && test -f shared/.git/objects/info/alternates");
    (void)snprintf(source, sizeof source, "%s/shared", base);
    (void)create_plain();
    shell("rm -rf ws shared && git -C copies/c fsck >/dev/null 2>&1 && "
          "test \"$(git -C copies/c show HEAD:src/a)\" = two");
}

/* A command may have planted it where there was no .git: it would read any repository of the host. */
static void git_of_somebody_else_is_refused(void **state) {
    (void)state;
    static const char *const plants[] = {
        "echo 'gitdir: ../other/.git' >ws/.git",
        "ln -s ../other/.git ws/.git",
        "mkfifo ws/.git",
        "echo nonsense >ws/.git",
    };
    shell("mv ws/.git other-git && mkdir other && mv other-git other/.git");
    const struct worktree_options options = {.source = source, .directory = copy};
    for (size_t i = 0; i < COUNT_OF(plants); i++) {
        shell("%s", plants[i]);
        expect_refused(&options, RESULT_INVALID_INPUT);
        shell("rm ws/.git");
    }
    shell("mkdir ws/.git && echo broken >ws/.git/HEAD");
    expect_refused(&options, RESULT_UNSUPPORTED);
}

static void wrong_places_are_refused(void **state) {
    (void)state;
    char inside[400];
    char no_parent[400];
    (void)snprintf(inside, sizeof inside, "%s/src/copy", source);
    (void)snprintf(no_parent, sizeof no_parent, "%s/no/such", base);
    const char *const places[] = {"relative", inside, no_parent, base, "/", ""};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const struct worktree_options options = {.source = source, .directory = places[i]};
        expect_refused(&options, RESULT_INVALID_INPUT);
    }
    const struct worktree_options gone = {.source = no_parent, .directory = copy};
    expect_refused(&gone, RESULT_INVALID_INPUT);
    static const char *const branches[] = {"trunk", "a..b", "-", " "};
    for (size_t i = 0; i < COUNT_OF(branches); i++) {
        const struct worktree_options options = {
            .source = source, .directory = copy, .branch = branches[i]};
        if (i != 2) { // '-' is a name that libgit2 takes
            expect_refused(&options, RESULT_INVALID_INPUT);
        }
    }
}

static void odd_files_are_named_and_left(void **state) {
    (void)state;
    shell("cd ws && mkfifo pipe && mkdir -p nested/.git && echo c >nested/.git/config && "
          "echo n >nested/n && truncate -s 100M sparse && printf x >\"$(printf 'a\\nb')\"");
    struct worktree made = create_plain();
    assert_int_equal(made.skipped, 1);
    assert_string_equal(made.skipped_names, "pipe");
    shell("cd copies/c && test ! -e nested/.git && test -f nested/n && "
          "test \"$(stat -c %%s sparse)\" = 104857600");
    assert_false(is_dirty());
}

static void any_change_makes_it_dirty_and_keeps_it(void **state) {
    (void)state;
    static const char *const changes[] = {
        "echo more >>src/a",
        "printf 'THREE\\n' >src/a && touch -r run src/a",
        "rm src/new",
        "rm -r src",
        "echo n >untracked",
        "chmod -x run",
        "rm link && ln -s src/b link",
        "mv src/new src/newer",
        "git branch other",
        "git checkout -q --detach side -f",
        "git -c user.name=t -c user.email=t commit -q --allow-empty -m c",
    };
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        (void)create_plain();
        assert_false(is_dirty());
        shell("cd copies/c && %s", changes[i]);
        if (!is_dirty()) {
            fail_msg("not seen: %s", changes[i]);
        }
        struct error error = {0};
        assert_int_equal(worktree_remove(copy, &error).code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, "would be lost"));
        shell("test -d copies/c/.git && rm -rf copies/c");
    }
}

static void clean_copy_is_removed_whatever_was_built_in_it(void **state) {
    (void)state;
    (void)create_plain();
    shell("cd copies/c && mkdir -p build/shut/x && echo z >build/shut/x/z.o && chmod 000 "
          "build/shut && "
          "ln -s /etc build/etc && echo o >new.o && cd build && "
          "python3 -c 'import os\n"
          "for i in range(900): os.mkdir(\"dddddddd\"); os.chdir(\"dddddddd\")\n"
          "open(\"f.o\", \"w\")'");
    assert_false(is_dirty());
    struct error error = {0};
    if (is_failed(worktree_remove(copy, &error))) {
        fail_msg("%s", error.message);
    }
    shell("test ! -e copies/c && test -d /etc && test -f ws/src/a && git -C ws fsck >/dev/null 2>&1"
    );
    assert_int_equal(worktree_remove(copy, &error).code, RESULT_NOT_FOUND);
    assert_int_equal(worktree_remove(source, &error).code, RESULT_NOT_FOUND); // no copy of ours
    shell("test -f ws/src/a");
}

static void copy_in_use_is_not_removed(void **state) {
    (void)state;
    (void)create_plain();
    int lease = -1;
    int other = -1;
    assert_true(is_ok(worktree_lease(copy, &lease, NULL)));
    assert_true(is_ok(worktree_lease(copy, &other, NULL))); // many may work there
    close(other);
    assert_int_equal(worktree_remove(copy, NULL).code, RESULT_LIMIT);
    close(lease);
    int directory = open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int lock = -1;
    assert_true(is_ok(lock_directory(directory, copy, &lock, NULL))); // as a running command does
    assert_int_equal(worktree_remove(copy, NULL).code, RESULT_LIMIT);
    close(lock);
    close(directory);
    assert_true(is_ok(worktree_remove(copy, NULL)));
}

/* A process that is being started has all descriptors until it runs its program. */
static void lease_is_over_at_once_when_it_is_given_back(void **state) {
    (void)state;
    (void)create_plain();
    int lease = -1;
    assert_true(is_ok(worktree_lease(copy, &lease, NULL)));
    int child = dup(lease); /* of the same lock, as after a fork */
    assert_true(child >= 0);
    worktree_release(&lease);
    assert_int_equal(lease, -1);
    assert_true(is_ok(worktree_remove(copy, NULL)));
    close(child);
    worktree_release(&lease); /* none: nothing is done */
}

static void nothing_is_copied_while_a_command_runs(void **state) {
    (void)state;
    int directory = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int lock = -1;
    assert_true(is_ok(lock_directory(directory, source, &lock, NULL)));
    const struct worktree_options options = {.source = source, .directory = copy};
    expect_refused(&options, RESULT_LIMIT);
    close(lock);
    close(directory);
    (void)create_plain();
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(copy_has_all_but_the_ignored_and_its_own_git),
        TEST(branch_and_ignored_files_come_when_asked),
        TEST(workspace_without_a_repository_gets_a_first_commit),
        TEST(repository_without_a_commit_is_copied),
        TEST(git_worktree_and_submodule_are_copied_with_a_real_git),
        TEST(objects_of_a_shared_clone_come_along),
        TEST(git_of_somebody_else_is_refused),
        TEST(wrong_places_are_refused),
        TEST(odd_files_are_named_and_left),
        TEST(any_change_makes_it_dirty_and_keeps_it),
        TEST(clean_copy_is_removed_whatever_was_built_in_it),
        TEST(copy_in_use_is_not_removed),
        TEST(lease_is_over_at_once_when_it_is_given_back),
        TEST(nothing_is_copied_while_a_command_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
