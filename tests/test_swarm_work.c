/* Directories of a swarm's nodes: what they begin with, results, merges, conflicts, what stays and what goes. */
#include "swarm_work_support.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

#define REPOSITORY                                                                                 \
    "git init -q -b trunk .; git config user.name t; git config user.email t@localhost; "          \
    "seq 9 >lines; echo a >a; echo b >b; git add -A; git commit -qm first; "

static void node_works_in_a_directory_of_its_own(void **state) {
    (void)state;
    begin_swarm(REPOSITORY "echo new >untracked; echo 'x.o' >.gitignore; echo x >x.o", NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *node = open_node("one", root);
    assert_string_equal(swarm_work_commit_before(node), swarm_work_commit_before(root));
    assert_non_null(swarm_work_workspace(node));
    assert_non_null(swarm_work_permission(node));
    assert_null(swarm_work_tools(root));
    run_in(
        node,
        "test \"$PWD\" = /workspace && grep -qx new untracked && test ! -e x.o && "
        "git log --oneline | grep -q first && echo more >>a && rm b && echo c >c"
    );
    struct swarm_work_made made = result_of(node);
    assert_int_equal(made.files, 3);
    assert_int_equal(made.changed_lines, 3);
    assert_null(swarm_work_tools(node));
    assert_null(swarm_work_workspace(node));
    shell(
        "cd ws; grep -qx a a; test -e b; test ! -e c; git -C ../store cat-file -e %s", made.commit
    );
    assert_true(close_node(node));
    shell("test -z \"$(ls state/swarms/session/work state/swarms/session/stores | grep one)\"");
    end_swarm();
}

static void untouched_node_has_no_result(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *node = open_node("one", swarm_work_root(work));
    run_in(node, "cp a old && echo z >a && cat old >a && rm old"); // touched, and as before
    struct swarm_work_made made = result_of(node);
    assert_string_equal(made.commit, "");
    assert_int_equal(made.changed_lines, 0);
    assert_int_equal(merge_into(node, swarm_work_root(work)).merge, SWARM_MERGE_OK);
    assert_true(close_node(node));
    struct swarm_work_node *never = open_node("two", swarm_work_root(work));
    assert_true(close_node(never)); // no agent ever worked there
    end_swarm();
}

static void disjoint_results_are_merged(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "sed -i s/1/one/ lines && echo 1 >new1 && rm a");
    struct swarm_work_node *two = node_with("two", "sed -i s/9/nine/ lines && echo 2 >new2");
    struct swarm_work_merge first = merge_into(one, root);
    assert_int_equal(first.merge, SWARM_MERGE_OK);
    assert_string_equal(first.before, swarm_work_commit_before(root));
    struct swarm_work_merge second = merge_into(two, root);
    assert_int_equal(second.merge, SWARM_MERGE_OK);
    shell("git -C store diff --quiet %s %s", second.before, first.commit);
    assert_int_equal(second.changed_lines, 2 + 2 + 1 + 1 + 1);
    shell(
        "cd ws; head -1 lines | grep -qx one; tail -1 lines | grep -qx nine; test -e new1; test -e "
        "new2; test ! -e a; grep -qx b b"
    );
    assert_true(close_node(one) && close_node(two));
    end_swarm();
}

static void conflicts_are_named_and_nothing_is_written(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "sed -i s/5/one/ lines && echo 1 >new && rm a");
    struct swarm_work_node *two =
        node_with("two", "sed -i s/5/two/ lines && echo 2 >new && echo 2 >a && echo 2 >only");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    shell("cp -a ws expected");
    struct swarm_work_merge merged = merge_into(two, root);
    assert_int_equal(merged.merge, SWARM_MERGE_CONFLICTS);
    assert_int_equal(merged.conflict_count, 3);
    assert_string_equal(merged.commit, "");
    assert_string_equal(
        merged.detail,
        "a: one deleted or renamed it, the other changed it\n"
        "lines: both changed the same lines\n"
        "new: both added it, differently\n"
    );
    shell("diff -r expected ws");
    assert_true(close_node(two)); // its result is in the root's store
    assert_int_equal(merge_into(two, root).merge, SWARM_MERGE_CONFLICTS);
    end_swarm();
}

static void many_conflicts_are_counted(void **state) {
    (void)state;
    begin_swarm("for i in $(seq 1000 1400); do echo 0 >some-longer-name-$i; done", NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "for i in *; do echo 1 >$i; done");
    struct swarm_work_node *two = node_with("two", "for i in *; do echo 2 >$i; done");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    struct swarm_work_merge merged = merge_into(two, root);
    assert_int_equal(merged.conflict_count, 401);
    size_t lines = 0;
    for (const char *at = merged.detail; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    char last[40];
    (void)snprintf(last, sizeof last, "\nand %zu more\n", 401 - (lines - 1));
    assert_non_null(strstr(merged.detail, last));
    end_swarm();
}

static void integrator_finds_both_sides(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "sed -i s/5/one/ lines && printf 'a\\0o' >a");
    struct swarm_work_node *two =
        node_with("two", "sed -i s/5/two/ lines && printf 'a\\0t' >a && echo 2 >only");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    assert_int_equal(merge_into(two, root).merge, SWARM_MERGE_CONFLICTS);
    const struct swarm_work_open options = {.name = "join", .parent = root, .conflict_of = two};
    struct swarm_work_node *join = NULL;
    assert_true(is_ok(swarm_work_open(work, &options, &join, NULL)));
    assert_string_not_equal(swarm_work_commit_before(join), swarm_work_commit_before(root));
    run_in(
        join,
        "grep -qx '<<<<<<< ours' lines && grep -qx one lines && grep -qx two lines && "
        "grep -qx 2 only && test -e a.theirs"
    );
    (void)result_of(join);
    assert_true(close_node(join));

    const struct swarm_work_open again = {.name = "half", .parent = root, .conflict_of = two};
    struct swarm_work_node *half = NULL;
    assert_true(is_ok(swarm_work_open(work, &again, &half, NULL)));
    run_in(half, "seq 9 | sed s/5/both/ >lines");
    assert_string_not_equal(result_of(half).commit, "");
    struct swarm_work_merge merged = merge_into(half, root);
    assert_int_equal(merged.merge, SWARM_MERGE_CONFLICTS);
    assert_string_equal(merged.detail, "a.theirs: its conflict is not resolved\n");

    const struct swarm_work_open third = {.name = "whole", .parent = root, .conflict_of = two};
    struct swarm_work_node *whole = NULL;
    assert_true(is_ok(swarm_work_open(work, &third, &whole, NULL)));
    run_in(whole, "seq 9 | sed s/5/both/ >lines && mv a.theirs a");
    assert_int_equal(result_of(whole).files, 3); // against the root: lines, a, only
    shell("echo person >ws/b");                  // meanwhile
    merged = merge_into(whole, root);
    assert_string_equal(merged.detail, "");
    assert_int_equal(merged.merge, SWARM_MERGE_OK);
    shell(
        "cd ws; grep -qx both lines; printf 'a\\0t' | cmp - a; grep -qx 2 only; grep -qx person b; "
        "test ! -e a.theirs"
    );
    end_swarm();
}

/* An integrator that does nothing is not one that wants the markers merged. */
static void untouched_conflicts_are_no_result(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "echo 1 >a");
    struct swarm_work_node *two = node_with("two", "echo 2 >a && echo 2 >only");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    const struct swarm_work_open options = {.name = "join", .parent = root, .conflict_of = two};
    struct swarm_work_node *join = NULL;
    assert_true(is_ok(swarm_work_open(work, &options, &join, NULL)));
    assert_string_equal(result_of(join).commit, "");
    assert_int_equal(merge_into(join, root).merge, SWARM_MERGE_CONFLICTS);
    shell("cd ws; grep -qx 1 a; test ! -e only");
    end_swarm();
}

static void grandchild_goes_into_its_parent_or_the_root(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *middle = open_node("middle", root);
    run_in(middle, "echo m >middle");
    struct swarm_work_node *leaf = open_node("leaf", middle);
    run_in(middle, "echo later >later");
    run_in(leaf, "grep -qx m middle && test ! -e later && echo l >leaf");
    struct swarm_work_made made = result_of(leaf);
    assert_int_equal(made.files, 1);
    shell(
        "git -C store cat-file -e %s; git -C store cat-file -e %s",
        made.commit,
        swarm_work_commit_before(leaf)
    );
    assert_int_equal(merge_into(leaf, middle).merge, SWARM_MERGE_OK);
    run_in(middle, "grep -qx l leaf && grep -qx later later");            // its tools still work
    assert_int_equal(merge_into(middle, root).merge, SWARM_MERGE_FAILED); // no result yet
    assert_int_equal(merge_into(leaf, leaf).merge, SWARM_MERGE_FAILED);
    assert_int_equal(merge_into(leaf, root).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx l leaf; grep -qx m middle; test ! -e later");
    (void)result_of(middle);
    assert_int_equal(merge_into(middle, root).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx later later");
    end_swarm();
}

static void persons_changes_are_kept(void **state) {
    (void)state;
    begin_swarm(REPOSITORY "echo '*.o' >.gitignore", NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one =
        node_with("one", "echo 1 >a && echo 1 >c.x && rm .gitignore && echo o >x.o");
    shell("echo person >ws/b; echo mine >ws/x.o"); // ignored: no snapshot has it
    struct swarm_work_merge merged = merge_into(one, root);
    assert_int_equal(merged.merge, SWARM_MERGE_FAILED);
    assert_non_null(strstr(merged.detail, "x.o"));
    shell("cd ws; grep -qx mine x.o; grep -qx a a; test ! -e c.x");
    shell("rm ws/x.o");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx person b; grep -qx 1 a; grep -qx o x.o");
    end_swarm();
}

static void snapshot_serves_many_children(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    char commit[WORKSPACE_COMMIT_BYTES];
    assert_true(is_ok(swarm_work_snapshot(root, "for children", commit, NULL)));
    shell("echo later >ws/a");
    struct swarm_work_open options = {.name = "one", .parent = root, .commit = commit};
    struct swarm_work_node *node = NULL;
    assert_true(is_ok(swarm_work_open(work, &options, &node, NULL)));
    run_in(node, "grep -qx a a");
    assert_int_equal(swarm_work_open(work, &options, &node, NULL).code, RESULT_INVALID_INPUT);
    options.name = "../two";
    assert_int_equal(swarm_work_open(work, &options, &node, NULL).code, RESULT_INVALID_INPUT);
    options.name = "";
    assert_int_equal(swarm_work_open(work, &options, &node, NULL).code, RESULT_INVALID_INPUT);
    options.name = "two";
    options.commit = "0123456789012345678901234567890123456789";
    assert_int_equal(swarm_work_open(work, &options, &node, NULL).code, RESULT_NOT_FOUND);
    end_swarm();
}

static void workspaces_without_a_repository_and_with_a_file_for_one(void **state) {
    (void)state;
    begin_swarm("echo a >a; mkdir d; echo b >d/b", NULL);
    struct swarm_work_node *one = node_with("one", "git status >/dev/null && echo c >>a");
    assert_int_equal(merge_into(one, swarm_work_root(work)).merge, SWARM_MERGE_OK);
    shell("test $(wc -l <ws/a) = 2; test ! -e ws/.git");
    end_swarm();
    shell("rm -rf ws store; mkdir main; cd main; " REPOSITORY "git worktree add -q ../ws");
    begin_swarm("test -f .git", NULL);
    one = node_with("one", "git log --oneline | grep -q first && echo c >>a");
    assert_int_equal(merge_into(one, swarm_work_root(work)).merge, SWARM_MERGE_OK);
    shell("test $(wc -l <ws/a) = 2; test -f ws/.git; cd ws; git status --short | grep -qx ' M a'");
    end_swarm();
}

static void work_that_nobody_saved_stays(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *node = open_node("one", swarm_work_root(work));
    run_in(node, "echo work >a");
    struct swarm_work_closed closed;
    swarm_work_close(node, &closed); // without a result
    assert_false(closed.is_removed);
    assert_non_null(strstr(closed.reason, "a"));
    struct swarm_work_node *late = node_with("two", "echo work >a");
    shell("echo more >>state/swarms/session/work/two/a"); // behind the result
    swarm_work_close(late, &closed);
    assert_false(closed.is_removed);
    struct swarm_work_node *large = node_with("three", "truncate -s 11M large; echo 3 >b");
    swarm_work_close(large, &closed); // no snapshot holds it
    assert_false(closed.is_removed);
    assert_non_null(strstr(closed.reason, "large"));
    swarm_work_cleanup(&work);
    shell("grep -qx work state/swarms/session/work/one/a; grep -qx more "
          "state/swarms/session/work/two/a");
    struct swarm_work_swept swept;
    char swarms[300];
    (void)snprintf(swarms, sizeof swarms, "%s/state/swarms", base);
    assert_true(is_ok(swarm_work_sweep(swarms, &swept, NULL)));
    assert_int_equal(swept.kept, 3);
    assert_int_equal(swept.removed, 0);
    assert_non_null(strstr(swept.kept_names, "session: "));
    assert_non_null(strstr(swept.kept_names, "one"));
    shell("grep -qx work state/swarms/session/work/one/a; ls state/swarms/session/stores | grep "
          "-qx one");
    shell("rm -rf state/swarms/session/work/*");
    assert_true(is_ok(swarm_work_sweep(swarms, &swept, NULL)));
    shell("test -z \"$(ls -A state/swarms)\"");
}

static void directory_that_is_deleted_is_named(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *node = open_node("one", root);
    struct swarm_work_node *other = node_with("two", "echo 2 >a");
    run_in(node, "echo work >a");
    shell("rm -rf state/swarms/session/work/one");
    struct swarm_work_made made;
    struct error error = {0};
    assert_int_equal(swarm_work_result(node, &made, &error).code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, "deleted"));
    struct swarm_work_node *child = NULL;
    const struct swarm_work_open options = {.name = "child", .parent = node};
    assert_int_equal(swarm_work_open(work, &options, &child, &error).code, RESULT_NOT_FOUND);
    assert_true(close_node(node));
    shell("cp -a state/swarms/session/work/two copy; rm -rf state/swarms/session/work/two; "
          "mv copy state/swarms/session/work/two");                  // another one in its place
    assert_int_equal(merge_into(other, root).merge, SWARM_MERGE_OK); // of its snapshot
    assert_true(close_node(other)); // ours is gone; what is there is not ours
    shell("rm -rf state/swarms/session/work/two");
    shell("mv ws gone; mkdir ws");
    struct swarm_work_node *late = NULL;
    const struct swarm_work_open more = {.name = "late", .parent = root};
    assert_int_equal(swarm_work_open(work, &more, &late, &error).code, RESULT_NOT_FOUND);
    struct swarm_work_merge merged = merge_into(other, root);
    assert_int_equal(merged.merge, SWARM_MERGE_FAILED);
    assert_non_null(strstr(merged.detail, "deleted"));
    shell("test -z \"$(ls -A ws)\"");
    end_swarm();
}

static void command_in_the_target_refuses_the_merge(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "echo 1 >a");
    char directory[300];
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    struct sandbox_policy policy = sandbox_policy_default(directory);
    const char *const command[] = {"/bin/sleep", "60", NULL};
    struct sandbox_call *call = NULL;
    assert_true(is_ok(sandbox_start(sandbox, &policy, command, &call, NULL)));
    struct swarm_work_merge merged = merge_into(one, root);
    sandbox_call_destroy(call);
    assert_int_equal(merged.merge, SWARM_MERGE_FAILED);
    shell("grep -qx a ws/a");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    end_swarm();
}

/* ---- a process that is killed ----------------------------------------------------------------- */

static void killed_process_leaves_only_work(void **state) {
    (void)state;
    char swarms[300];
    struct swarm_work_swept swept;
    (void)snprintf(swarms, sizeof swarms, "%s/state/swarms", base);
    int told[2];
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        begin_swarm(REPOSITORY, "sleep 600");
        (void)open_node("clean", swarm_work_root(work));
        struct swarm_work_node *dirty = open_node("dirty", swarm_work_root(work));
        run_in(dirty, "echo work >a");
        (void)result_of(dirty);
        ssize_t sent = write(told[1], "x", 1);
        (void)sent;
        (void)verify(dirty, 600000);
        _exit(1);
    }
    char byte;
    assert_int_equal(read(told[0], &byte, 1), 1);
    for (unsigned i = 0; i < 600 && !shell_says("ls state/swarms/session/verify | grep -q .");
         i++) {
        (void)usleep(20000);
    }
    (void)usleep(200000); // in the verifier, or about to be
    assert_true(is_ok(swarm_work_sweep(swarms, &swept, NULL)));
    assert_int_equal(swept.in_use, 1);
    assert_int_equal(swept.removed + swept.kept, 0);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(told[0]);
    close(told[1]);
    bool is_clear = false; // its commands end with it, and have a moment for it
    for (unsigned i = 0; i < 500 && !is_clear; i++) {
        assert_true(is_ok(swarm_work_sweep(swarms, &swept, NULL)));
        is_clear = swept.in_use == 0 &&
                   !shell_says("ls state/swarms/session/verify 2>/dev/null | grep -q .");
        (void)usleep(20000);
    }
    assert_true(is_clear);
    assert_int_equal(swept.kept, 1);
    shell("test \"$(ls state/swarms/session/work state/swarms/session/stores | tr '\\n' ' ')\" = "
          "'state/swarms/session/stores: dirty  state/swarms/session/work: dirty ' || "
          "{ find state/swarms -maxdepth 3; false; }; "
          "grep -qx work state/swarms/session/work/dirty/a");
    begin_swarm("true", NULL); // the place can be had again
    struct swarm_work_node *node = NULL;
    const struct swarm_work_open options = {.name = "dirty", .parent = swarm_work_root(work)};
    assert_int_equal(swarm_work_open(work, &options, &node, NULL).code, RESULT_INVALID_INPUT);
    shell("grep -qx work state/swarms/session/work/dirty/a");
}

static void place_has_one_owner(void **state) {
    (void)state;
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work *first = work;
    char place[300], workspace[300], store[300];
    (void)snprintf(place, sizeof place, "%s/state/swarms/session", base);
    (void)snprintf(workspace, sizeof workspace, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    const struct sandbox_policy policy = sandbox_policy_default(workspace);
    struct swarm_work_options options = {
        .workspace = workspace,
        .snapshots = store,
        .place = place,
        .sandbox = sandbox,
        .policy = &policy};
    struct swarm_work *second = NULL;
    assert_int_equal(swarm_work_create(&second, &options, NULL).code, RESULT_LIMIT);
    options.place = "relative";
    assert_int_equal(swarm_work_create(&second, &options, NULL).code, RESULT_INVALID_INPUT);
    assert_null(second);
    assert_ptr_equal(work, first);
    end_swarm();
}

/* ---- a full disk -------------------------------------------------------------------------------- */

#define CHILD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* The state directory is a disk of 8 MiB; 77: it cannot be made here. */
static int full_disk_child(void) {
    char path[300];
    struct error error = {0};
    struct swarm_work_node *node = NULL;
    struct swarm_work_made made;
    (void)snprintf(path, sizeof path, "%s/state", base);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", path, "tmpfs", 0, "size=8m,mode=0700") != 0) {
        return 77;
    }
    begin_swarm(REPOSITORY "head -c 1000000 /dev/urandom >large", "true");
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_open options = {.name = "one", .parent = root};
    CHILD_CHECK(is_ok(swarm_work_open(work, &options, &node, &error)));
    shell("head -c 5500000 /dev/urandom >state/ballast 2>/dev/null || true");
    struct swarm_work_node *second = NULL;
    options.name = "two";
    result opened = swarm_work_open(work, &options, &second, &error);
    CHILD_CHECK(is_failed(opened) && swarm_work_is_full(work, &error));
    (void)fprintf(stderr, "%s\n", error.message);
    CHILD_CHECK(shell_says(
        "test \"$(ls state/swarms/session/work state/swarms/session/stores | tr -d '\\n')\" = "
        "'state/swarms/session/stores:onestate/swarms/session/work:one'"
    ));
    shell("cp /dev/zero state/ballast 2>/dev/null || true; "
          "printf new >state/swarms/session/work/one/b 2>/dev/null || true");
    struct swarm_work_verdict verdict = verify(root, 10000);
    CHILD_CHECK(verdict.verdict == SWARM_VERIFIED_CRASHED && verdict.is_full);
    (void)fprintf(stderr, "%s\n", verdict.detail);
    error = (struct error){0};
    result failed = swarm_work_result(node, &made, &error);
    CHILD_CHECK(is_failed(failed) && swarm_work_is_full(work, &error));
    (void)fprintf(stderr, "%s\n", error.message);
    shell("rm state/ballast; echo new >state/swarms/session/work/one/b");
    CHILD_CHECK(is_ok(swarm_work_result(node, &made, &error)) && made.commit[0] != '\0');
    CHILD_CHECK(verify(node, 10000).verdict == SWARM_VERIFIED_PASS);
    CHILD_CHECK(merge_into(node, root).merge == SWARM_MERGE_OK);
    CHILD_CHECK(close_node(node));
    end_swarm();
    return 0;
}

static void full_disk_is_named_and_gone_on_from(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        _exit(full_disk_child());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The root's workspace is on a full disk: a merge leaves what was there. */
static int full_root_child(void) {
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ws", base);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", path, "tmpfs", 0, "size=4m,mode=0755") != 0) {
        return 77;
    }
    begin_swarm(REPOSITORY, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *node =
        node_with("one", "echo changed >a && rm b && head -c 3000000 /dev/urandom >large");
    shell("cp -a ws expected; head -c 3000000 /dev/urandom >ws/ballast; cp ws/ballast expected");
    struct swarm_work_merge merged = merge_into(node, root);
    (void)fprintf(stderr, "%s\n", merged.detail);
    CHILD_CHECK(merged.merge == SWARM_MERGE_FAILED && merged.is_full);
    CHILD_CHECK(strstr(merged.detail, "the files are what they were") != NULL);
    CHILD_CHECK(shell_says("diff -r -x .git expected ws"));
    shell("rm ws/ballast");
    CHILD_CHECK(merge_into(node, root).merge == SWARM_MERGE_OK);
    CHILD_CHECK(shell_says("grep -qx changed ws/a && test ! -e ws/b && test -s ws/large"));
    end_swarm();
    return 0;
}

static void merge_on_a_full_disk_is_taken_back(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        _exit(full_root_child());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv) {
    int status = open_sandbox("test_swarm_work", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(node_works_in_a_directory_of_its_own),
        TEST(untouched_node_has_no_result),
        TEST(disjoint_results_are_merged),
        TEST(conflicts_are_named_and_nothing_is_written),
        TEST(many_conflicts_are_counted),
        TEST(integrator_finds_both_sides),
        TEST(untouched_conflicts_are_no_result),
        TEST(grandchild_goes_into_its_parent_or_the_root),
        TEST(persons_changes_are_kept),
        TEST(snapshot_serves_many_children),
        TEST(workspaces_without_a_repository_and_with_a_file_for_one),
        TEST(work_that_nobody_saved_stays),
        TEST(directory_that_is_deleted_is_named),
        TEST(command_in_the_target_refuses_the_merge),
        TEST(killed_process_leaves_only_work),
        TEST(place_has_one_owner),
        TEST(full_disk_is_named_and_gone_on_from),
        TEST(merge_on_a_full_disk_is_taken_back),
    };
    return close_sandbox(cmocka_run_group_tests(tests, NULL, NULL));
}
