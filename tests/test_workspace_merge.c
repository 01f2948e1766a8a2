/* Merges of snapshots: disjoint changes come together, conflicts are named, the tree is never half
 * overwritten by accident, and nothing of the user's git configuration acts. */
#include "shell_support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/lock.h"
#include "sandbox/workspace_merge.h"

static struct workspace *workspace; /* `base` holds ws/ and store/ */

static struct workspace *open_workspace(const char *name, const char *store) {
    char directory[300];
    char path[300];
    struct workspace *opened = NULL;
    struct error error = {0};
    (void)snprintf(directory, sizeof directory, "%s/%s", base, name);
    (void)snprintf(path, sizeof path, "%s/%s", base, store);
    if (is_failed(workspace_open(directory, path, &opened, &error))) {
        fail_msg("%s", error.message);
    }
    return opened;
}

static int set_up(void **state) {
    (void)state;
    base_make("merge");
    shell("mkdir ws");
    workspace = open_workspace("ws", "store");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    workspace_cleanup(&workspace);
    base_remove();
    return 0;
}

struct commits {
    char base[WORKSPACE_COMMIT_BYTES], ours[WORKSPACE_COMMIT_BYTES], theirs[WORKSPACE_COMMIT_BYTES];
};

static void snapshot(struct workspace *of, char out[WORKSPACE_COMMIT_BYTES]) {
    struct workspace_snapshot taken;
    struct error error = {0};
    if (is_failed(workspace_take_snapshot(of, "test", &taken, &error))) {
        fail_msg("%s", error.message);
    }
    memcpy(out, taken.commit, sizeof taken.commit);
}

static void restore(const char *commit) {
    struct error error = {0};
    if (is_failed(workspace_restore(workspace, commit, NULL, &error))) {
        fail_msg("%s", error.message);
    }
}

/* Three snapshots, made by scripts in ws; it is left as ours. */
static struct commits make(const char *first, const char *ours, const char *theirs) {
    struct commits commits;
    shell("cd ws; %s", first);
    snapshot(workspace, commits.base);
    shell("cd ws; %s", theirs);
    snapshot(workspace, commits.theirs);
    restore(commits.base);
    shell("cd ws; %s", ours);
    snapshot(workspace, commits.ours);
    return commits;
}

static struct workspace_merge merge(const struct commits *commits) {
    struct workspace_merge merged;
    struct error error = {0};
    const struct workspace_merge_options options = {
        commits->base, commits->ours, commits->theirs, 4000, false};
    if (is_failed(workspace_merge(workspace, &options, &merged, &error))) {
        fail_msg("%s", error.message);
    }
    return merged;
}

static void apply(const struct commits *commits, const struct workspace_merge *merged) {
    struct error error = {0};
    assert_int_equal(merged->conflict_count, 0);
    if (is_failed(workspace_apply(workspace, commits->ours, merged->commit, &error))) {
        fail_msg("%s", error.message);
    }
}

/* Merges, applies and runs `check` in ws. */
static void
expect_merged(const char *first, const char *ours, const char *theirs, const char *check) {
    struct commits commits = make(first, ours, theirs);
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    for (size_t i = 0; i < merged.conflict_count; i++) {
        print_message("conflict %d: %s\n", merged.conflicts[i].kind, merged.conflicts[i].path);
    }
    apply(&commits, &merged);
    shell("cd ws; %s", check);
}

/* Exactly one conflict, and the tree left as it was. */
static void expect_conflict(
    const char *first,
    const char *ours,
    const char *theirs,
    const char *path,
    enum workspace_conflict_kind kind
) {
    struct commits commits = make(first, ours, theirs);
    for (unsigned swapped = 0; swapped < 2; swapped++) {
        CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
        assert_int_equal(merged.conflict_count, 1);
        assert_string_equal(merged.conflicts[0].path, path);
        assert_int_equal(merged.conflicts[0].kind, kind);
        assert_true(strlen(workspace_conflict_text(kind)) > 0);
        assert_string_equal(merged.commit, "");
        assert_int_equal(merged.text_bytes > 0, kind == WORKSPACE_CONFLICT_LINES);
        char ours_before[WORKSPACE_COMMIT_BYTES];
        memcpy(ours_before, commits.ours, sizeof ours_before);
        memcpy(commits.ours, commits.theirs, sizeof commits.ours);
        memcpy(commits.theirs, ours_before, sizeof commits.theirs);
    }
    char now[WORKSPACE_COMMIT_BYTES];
    snapshot(workspace, now);
    struct workspace_difference none;
    assert_true(is_ok(workspace_compare(workspace, commits.ours, now, 0, &none, NULL)));
    assert_int_equal(none.file_count, 0);
    workspace_difference_deinit(&none);
    shell("rm -rf ws/* ws/.git*");
}

#define LINES "printf 'a\\nb\\nc\\nd\\ne\\nf\\ng\\nh\\n' >f"

static void disjoint_changes_come_together(void **state) {
    (void)state;
    expect_merged(
        "mkdir d; echo 1 >d/a; echo 2 >d/b; echo 3 >gone; echo 4 >moved; " LINES,
        "echo ours >d/a; echo new >mine; rm gone; sed -i s/b/B/ f",
        "echo theirs >d/b; mkdir -p e/f; echo new >e/f/g; mv moved e/moved; sed -i s/g/G/ f",
        "test \"$(find . -type f | sort | tr '\\n' ' ')\" = './d/a ./d/b ./e/f/g ./e/moved ./f "
        "./mine ';"
        "grep -qx ours d/a; grep -qx theirs d/b; grep -qx 4 e/moved; "
        "test \"$(tr '\\n' ' ' <f)\" = 'a B c d e f G h '"
    );
}

static void same_changes_are_one(void **state) {
    (void)state;
    expect_merged(
        "echo 1 >a; echo 2 >b; echo 3 >c",
        "echo x >a; rm b; echo n >new; ln -s a link; chmod +x c",
        "echo x >a; rm b; echo n >new; ln -s a link; chmod +x c; echo t >theirs",
        "grep -qx x a; test ! -e b; grep -qx n new; test \"$(readlink link)\" = a; test -x c; "
        "grep -qx t theirs"
    );
}

static void modes_and_types_are_merged(void **state) {
    (void)state;
    expect_merged( // one the mode, the other the content; a file for a link and a link for a file
        "echo 1 >run; echo 1 >other; echo f >file; ln -s run link; echo 1 >off; chmod +x off",
        "chmod +x run; echo 2 >other; chmod -x off",
        "echo 2 >run; chmod +x other; rm file; ln -s run file; rm link; echo l >link; echo 2 >off",
        "test -x run; grep -qx 2 run; test -x other; grep -qx 2 other; test -L file; "
        "test ! -L link; grep -qx l link; test ! -x off; grep -qx 2 off"
    );
}

static void directory_and_file_change_places(void **state) {
    (void)state;
    expect_merged(
        "mkdir d; echo 1 >d/a; echo 2 >d/b; echo f >f; echo k >k",
        "echo changed >k; rm d/b",
        "rm -r d; echo now >d; rm f; mkdir -p f/deep; echo x >f/deep/x",
        "test -f d; grep -qx now d; grep -qx x f/deep/x; grep -qx changed k"
    );
}

static void one_side_alone_is_that_side(void **state) {
    (void)state;
    struct commits commits = make("echo 1 >a", "true", "echo 2 >a; echo b >b");
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    assert_string_equal(merged.commit, commits.theirs);
    assert_int_equal(merged.taken, 2);
    apply(&commits, &merged);
    shell("cd ws; grep -qx 2 a; grep -qx b b");
    struct commits back = commits; // theirs changed nothing
    memcpy(back.ours, commits.theirs, sizeof back.ours);
    memcpy(back.theirs, commits.base, sizeof back.theirs);
    CLEANUP(workspace_merge_deinit) struct workspace_merge same = merge(&back);
    assert_string_equal(same.commit, back.ours);
    assert_int_equal(same.taken + same.joined + same.conflict_count, 0);
}

static void conflicts_are_named_by_path_and_kind(void **state) {
    (void)state;
    expect_conflict(LINES, "sed -i s/d/D/ f", "sed -i s/d/X/ f", "f", WORKSPACE_CONFLICT_LINES);
    expect_conflict( // the other file of both is no conflict
        "mkdir d; echo 1 >d/a; echo 1 >b",
        "rm d/a; echo 2 >b",
        "echo 2 >d/a",
        "d/a",
        WORKSPACE_CONFLICT_DELETED
    );
    expect_conflict("echo 1 >a", "mv a b", "echo 2 >a", "a", WORKSPACE_CONFLICT_DELETED);
    expect_conflict("echo k >k", "echo 1 >a", "echo 2 >a", "a", WORKSPACE_CONFLICT_ADDED);
    expect_conflict(
        "echo k >k", "echo 1 >a", "echo 1 >a; chmod +x a", "a", WORKSPACE_CONFLICT_ADDED
    );
    expect_conflict(
        "printf 'a\\0b' >a", "printf 'a\\0c' >a", "printf 'x\\0b' >a", "a", WORKSPACE_CONFLICT_WHOLE
    );
    expect_conflict("ln -s a l", "ln -sf b l", "ln -sf c l", "l", WORKSPACE_CONFLICT_WHOLE);
    expect_conflict("echo 1 >a", "ln -sf b a", "echo 2 >a", "a", WORKSPACE_CONFLICT_TYPE);
    expect_conflict(
        "echo k >k",
        "echo 1 >d",
        "mkdir d; echo 1 >d/a; echo 2 >d/b",
        "d",
        WORKSPACE_CONFLICT_DIRECTORY
    );
    expect_conflict(
        "mkdir d; echo 1 >d/a",
        "rm -r d; echo 1 >d",
        "echo n >d/new",
        "d",
        WORKSPACE_CONFLICT_DIRECTORY
    );
    expect_conflict(
        "mkdir d; echo 1 >d/a",
        "rm -r d; ln -s k d",
        "echo 2 >d/a",
        "d/a",
        WORKSPACE_CONFLICT_DELETED
    );
    // Larger, in bytes and in lines, than is merged by lines.
    expect_conflict(
        "head -c 5000000 /dev/zero | tr '\\0' x | fold -w 99 >a",
        "sed -i 1s/^/x/ a",
        "sed -i '$s/^/x/' a",
        "a",
        WORKSPACE_CONFLICT_WHOLE
    );
    expect_conflict(
        "seq 100001 >a", "sed -i 1s/^/x/ a", "sed -i '$s/^/x/' a", "a", WORKSPACE_CONFLICT_WHOLE
    );
    expect_merged(
        "seq 100000 >a",
        "sed -i 1s/^/x/ a",
        "sed -i '$s/^/x/' a",
        "grep -qx x1 a; grep -qx x100000 a"
    );
}

static void conflicting_lines_come_with_markers(void **state) {
    (void)state;
    struct commits commits = make(LINES, "sed -i s/d/D/ f", "sed -i s/d/X/ f; echo t >t");
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    assert_string_equal(
        merged.text,
        "--- f\na\nb\nc\n<<<<<<< ours\nD\n||||||| base\nd\n=======\nX\n>>>>>>> theirs\ne\nf\ng\nh\n"
    );
    assert_false(merged.text_truncated);
    const struct workspace_merge_options options = {
        commits.base, commits.ours, commits.theirs, 20, false};
    CLEANUP(workspace_merge_deinit) struct workspace_merge cut = {.taken = 0};
    assert_true(is_ok(workspace_merge(workspace, &options, &cut, NULL)));
    assert_int_equal(cut.text_bytes, 20);
    assert_true(cut.text_truncated);
}

static void marked_tree_shows_both_sides(void **state) {
    (void)state;
    struct commits commits = make(
        "seq 9 >lines; printf 'a\\0b' >binary; echo 1 >gone; echo 1 >kept; echo 1 >clean; ln -s a "
        "link",
        "sed -i s/5/ours/ lines; printf 'a\\0o' >binary; rm gone; echo 2 >kept; echo o >new; echo "
        "o >dir; "
        "echo o >dir.theirs; ln -sf o link",
        "sed -i s/5/theirs/ lines; printf 'a\\0t' >binary; echo 2 >gone; rm kept; echo t >new; "
        "mkdir dir; "
        "echo t >dir/x; echo t >dir/y; echo 2 >clean; ln -sf t link"
    );
    const struct workspace_merge_options options = {
        commits.base, commits.ours, commits.theirs, 0, true};
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = {.taken = 0};
    assert_true(is_ok(workspace_merge(workspace, &options, &merged, NULL)));
    assert_int_equal(merged.conflict_count, 7);
    assert_string_equal(merged.commit, "");
    shell("test \"$(cat ws/clean)\" = 1"); // the tree is as it was
    restore(merged.marked);
    shell("cd ws; grep -qx '<<<<<<< ours' lines; grep -qx ours lines; grep -qx theirs lines; "
          "printf 'a\\0o' | cmp - binary; printf 'a\\0t' | cmp - binary.theirs; grep -qx 2 gone; "
          "grep -qx 2 kept; grep -qx o new; grep -qx t new; grep -qx 2 clean; grep -qx o dir; "
          "grep -qx o dir.theirs; grep -qx t dir.theirs2/x; grep -qx t dir.theirs2/y; "
          "test $(readlink link) = o; test $(readlink link.theirs) = t");
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, 1000);
    assert_true(is_ok(workspace_merge_unresolved(workspace, &merged, merged.marked, &names, NULL)));
    assert_string_equal(
        buffer_text(&names), "binary.theirs\ndir.theirs2\nlines\nlink.theirs\nnew\n"
    );
    char resolved[WORKSPACE_COMMIT_BYTES];
    shell(
        "cd ws; seq 8 >lines; rm -r binary.theirs dir.theirs2 link.theirs; echo '<<<<<<< ours' >new"
    );
    snapshot(workspace, resolved);
    buffer_clear(&names);
    assert_true(is_ok(workspace_merge_unresolved(workspace, &merged, resolved, &names, NULL)));
    assert_int_equal(names.length, 0);
}

static void name_beside_leaves_a_file_of_theirs_alone(void **state) {
    (void)state;
    struct commits commits = make(
        "printf 'a\\0b' >binary",
        "printf 'a\\0o' >binary",
        "printf 'a\\0t' >binary; echo own >binary.theirs"
    );
    const struct workspace_merge_options options = {
        commits.base, commits.ours, commits.theirs, 0, true};
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = {.taken = 0};
    assert_true(is_ok(workspace_merge(workspace, &options, &merged, NULL)));
    assert_int_equal(merged.conflict_count, 1);
    assert_string_equal(merged.conflicts[0].theirs, "binary.theirs2");
    restore(merged.marked);
    shell("cd ws; printf 'a\\0o' | cmp - binary; printf 'a\\0t' | cmp - binary.theirs2; "
          "grep -qx own binary.theirs");
}

/* The user's attributes would merge by union, filter and turn line ends around. */
static void attributes_and_filters_do_not_act(void **state) {
    (void)state;
    static const char *const first =
        "git init -q .; git config merge.evil.driver 'touch ../evil; cp %B %A'; "
        "git config filter.evil.clean 'touch ../evil'; git config core.autocrlf true; "
        "printf '* text eol=crlf merge=union filter=evil -diff\\n' >.gitattributes; "
        "printf 'one\\r\\ntwo\\r\\nthree\\r\\nfour\\r\\nfive\\n' >f; printf '1\\n' >g";
    expect_conflict(first, "printf '2\\n' >g", "printf '3\\n' >g", "g", WORKSPACE_CONFLICT_LINES);
    expect_conflict( // line ends are content: both changed the lines
        first,
        "sed -i 's/\\r//' f",
        "sed -i 's/two/TWO/' f",
        "f",
        WORKSPACE_CONFLICT_LINES
    );
    expect_merged(
        first,
        "sed -i 's/one/ONE/' f",
        "sed -i 's/five/FIVE/' f",
        "printf 'ONE\\r\\ntwo\\r\\nthree\\r\\nfour\\r\\nFIVE\\n' | cmp - f; test ! -e ../evil; "
        "test -z \"$(find .git -newer f -name index)\""
    );
}

static void changed_target_is_named_and_left(void **state) {
    (void)state;
    struct commits commits = make("echo 1 >a; echo 1 >b", "true", "echo 2 >a");
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    shell("echo somebody >ws/b; echo new >ws/new");
    struct error error = {0};
    assert_int_equal(
        workspace_apply(workspace, commits.ours, merged.commit, &error).code, RESULT_INVALID_INPUT
    );
    assert_non_null(strstr(error.message, "2 files"));
    assert_non_null(strstr(error.message, "b, new"));
    shell("cd ws; grep -qx 1 a; grep -qx somebody b; grep -qx new new");
    // What the caller does then: merges with what there is now.
    snapshot(workspace, commits.ours);
    CLEANUP(workspace_merge_deinit) struct workspace_merge again = merge(&commits);
    apply(&commits, &again);
    shell("cd ws; grep -qx 2 a; grep -qx somebody b; grep -qx new new");
}

static void nothing_is_applied_while_a_command_runs(void **state) {
    (void)state;
    struct commits commits = make("echo 1 >a", "true", "echo 2 >a");
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ws", base);
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int lock = -1;
    assert_true(is_ok(lock_directory(directory, path, &lock, NULL)));
    assert_int_equal(
        workspace_apply(workspace, commits.ours, merged.commit, NULL).code, RESULT_LIMIT
    );
    shell("grep -qx 1 ws/a");
    close(lock);
    close(directory);
    apply(&commits, &merged);
}

static void what_no_snapshot_holds_is_not_overwritten(void **state) {
    (void)state;
    static const char *const ways[] = {
        "mkdir build; echo kept >build/out",      // ignored: a file is to come there
        "rm -rf build; truncate -s 11M big",      // too large for a snapshot
        "rm -f big; mkdir deep; mkfifo deep/new", // no file
    };
    struct commits commits = make(
        "echo build/ >.gitignore",
        "echo ours >x",
        "echo b >build; echo s >big; mkdir deep; "
        "echo n >deep/new"
    );
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    static const char *const names[] = {": build", ": big", ": deep/new"};
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        shell("cd ws; %s", ways[i]);
        struct error error = {0};
        result refused = workspace_apply(workspace, commits.ours, merged.commit, &error);
        assert_int_equal(refused.code, RESULT_INVALID_INPUT);
        assert_non_null(strstr(error.message, names[i]));
        shell("cd ws; grep -qx ours x; test ! -f deep/new; test ! -f build");
    }
    shell("rm -r ws/deep");
    apply(&commits, &merged);
    shell("cd ws; grep -qx ours x; grep -qx b build; grep -qx s big; grep -qx n deep/new");
}

static void result_of_a_copy_is_brought_over(void **state) {
    (void)state;
    struct commits commits;
    shell("cd ws; mkdir -p d/e; echo 1 >d/e/a; echo 2 >b; cp -a . ../copy");
    snapshot(workspace, commits.base);
    struct workspace *copy = open_workspace("copy", "other");
    shell("cd copy; echo x >d/e/x; rm b; ln -s d link; chmod +x d/e/a");
    snapshot(copy, commits.theirs);
    shell("echo ours >ws/ours");
    snapshot(workspace, commits.ours);
    char store[300];
    char nowhere[300];
    (void)snprintf(store, sizeof store, "%s/other", base);
    (void)snprintf(nowhere, sizeof nowhere, "%s/none", base);
    const struct workspace_merge_options options = {
        commits.base, commits.ours, commits.theirs, 0, false};
    struct workspace_merge missing;
    assert_int_equal(workspace_merge(workspace, &options, &missing, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(
        workspace_import(workspace, nowhere, commits.theirs, NULL).code, RESULT_NOT_FOUND
    );
    assert_int_equal(workspace_import(workspace, store, commits.ours, NULL).code, RESULT_NOT_FOUND);
    assert_int_equal(workspace_import(workspace, store, "short", NULL).code, RESULT_NOT_FOUND);
    for (unsigned i = 0; i < 2; i++) { // again: all is there
        assert_true(is_ok(workspace_import(workspace, store, commits.theirs, NULL)));
    }
    workspace_cleanup(&copy);
    shell("rm -rf other copy"); // it is whole without them
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    apply(&commits, &merged);
    shell("cd ws; grep -qx x d/e/x; test ! -e b; test -L link; test -x d/e/a; grep -qx ours ours");
}

/* Before a session refers to them; collection runs at the end of any other run in the workspace. */
static void results_are_kept_for_a_while(void **state) {
    (void)state;
    struct commits commits;
    char store[300];
    (void)snprintf(store, sizeof store, "%s/other", base);
    shell("cd ws; echo 1 >a; cp -a . ../copy; echo t >../copy/t");
    snapshot(workspace, commits.base);
    struct workspace *copy = open_workspace("copy", "other");
    snapshot(copy, commits.theirs);
    workspace_cleanup(&copy);
    shell("echo o >ws/o");
    snapshot(workspace, commits.ours);
    assert_true(is_ok(workspace_import(workspace, store, commits.theirs, NULL)));
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    struct workspace_collect_options options = {.age_s = WORKSPACE_COLLECT_AGE_S};
    struct workspace_collected collected;
    assert_true(is_ok(workspace_collect(workspace, &options, &collected, NULL)));
    shell(
        "git -C store ls-tree -r %s >a; git -C store ls-tree -r %s >b; test $(wc -l <a) = 2; "
        "test $(wc -l <b) = 3; git -C store cat-file -e %s:t",
        commits.theirs,
        merged.commit,
        merged.commit
    );
    shell("touch -d '2 hours ago' store/kept/*");
    assert_true(is_ok(workspace_collect(workspace, &options, &collected, NULL)));
    shell("test -z \"$(ls store/kept)\"; ! git -C store cat-file -e %s 2>/dev/null", merged.commit);
    assert_int_equal(
        workspace_apply(workspace, commits.ours, merged.commit, NULL).code, RESULT_NOT_FOUND
    );
}

static void damaged_snapshot_is_not_brought_over(void **state) {
    (void)state;
    char commit[WORKSPACE_COMMIT_BYTES];
    char store[300];
    (void)snprintf(store, sizeof store, "%s/other", base);
    shell("mkdir -p copy/d; echo lost >copy/d/a");
    struct workspace *copy = open_workspace("copy", "other");
    snapshot(copy, commit);
    workspace_cleanup(&copy);
    shell(
        "git -C other rev-parse %s:d/a >name; cut -c1-2 name >one; cut -c3- name >two; "
        "rm -f other/objects/$(cat one)/$(cat two)",
        commit
    );
    assert_int_equal(workspace_import(workspace, store, commit, NULL).code, RESULT_CORRUPT);
    shell(
        "! git -C store cat-file -e %s 2>/dev/null", commit
    ); // nothing refers to what is not there
}

#define KILL_FILES 1500

/* Killed while the tree is changed: each file is the old or the new one, and the way back is whole. */
static void killed_merge_can_be_taken_back(void **state) {
    (void)state;
    unsigned cut = 0;
    struct commits commits = make(
        "for i in $(seq 1000 1999); do echo old $i >f$i; done",
        "echo ours >ours",
        "for i in $(seq 1000 1999); do echo new $i >f$i; done; mkdir n; "
        "for i in $(seq 500); do echo new >n/$i; done"
    );
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    assert_int_equal(merged.taken, KILL_FILES);
    for (unsigned round = 0; round < 8; round++) {
        char path[300];
        (void)snprintf(path, sizeof path, "%s/ws/n/%u", base, 1 + round * 60);
        workspace_cleanup(&workspace);
        pid_t child = fork();
        if (child == 0) {
            struct workspace *own = open_workspace("ws", "store");
            _exit(is_ok(workspace_apply(own, commits.ours, merged.commit, NULL)) ? 0 : 1);
        }
        int status = 0;
        while (waitpid(child, &status, WNOHANG) == 0 && access(path, F_OK) != 0) {
            (void)usleep(50);
        }
        (void)kill(child, SIGKILL);
        (void)waitpid(child, &status, 0);
        shell("cd ws; awk '{ i = substr(FILENAME, 2); n++; "
              "if ($0 != \"old \" i && $0 != \"new \" i) exit 1 } END { exit n != 1000 }' f[0-9]*; "
              "test ! -d n || test -z \"$(ls n | wc -l | grep -vx \"$(cat n/* | grep -cx new)\")\""
        );
        shell("ls ws/n | wc -l >count");
        unsigned count = 0;
        char name[300];
        (void)snprintf(name, sizeof name, "%s/count", base);
        CLEANUP(file_cleanup) FILE *file = fopen(name, "r");
        assert_non_null(file);
        assert_int_equal(fscanf(file, "%u", &count), 1);
        cut += count < 500 ? 1 : 0;
        workspace = open_workspace("ws", "store");
        restore(commits.ours);
        shell("cd ws; test \"$(cat f* | grep -c old)\" = 1000; test ! -e n; test $(ls -A | wc -l) "
              "= 1001");
    }
    assert_true(cut > 0); // it was in the middle
    apply(&commits, &merged);
    shell("cd ws; test \"$(cat f* | grep -c new)\" = 1000; test $(ls n | wc -l) = 500");
}

static void ten_thousand_files_are_merged(void **state) {
    (void)state;
    struct commits commits = make(
        "for i in $(seq 1000 1399); do mkdir d$i; for k in $(seq 25); do echo $i $k >d$i/$k; done; "
        "done",
        "for i in $(seq 1000 1099); do echo ours >>d$i/1; rm d$i/2; echo n >d$i/ours; done",
        "for i in $(seq 1050 1199); do echo theirs >>d$i/3; rm d$i/4; echo n >d$i/theirs; done; "
        "rm -r d1399; echo f >d1399"
    );
    shell("cp -a ws expected; cd expected; "
          "for i in $(seq 1050 1199); do echo theirs >>d$i/3; rm d$i/4; echo n >d$i/theirs; done; "
          "rm -r d1399; echo f >d1399");
    CLEANUP(workspace_merge_deinit) struct workspace_merge merged = merge(&commits);
    assert_int_equal(merged.taken, 150 * 3 + 26);
    apply(&commits, &merged);
    shell("diff -r ws expected");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(disjoint_changes_come_together),
        TEST(same_changes_are_one),
        TEST(modes_and_types_are_merged),
        TEST(directory_and_file_change_places),
        TEST(one_side_alone_is_that_side),
        TEST(conflicts_are_named_by_path_and_kind),
        TEST(conflicting_lines_come_with_markers),
        TEST(marked_tree_shows_both_sides),
        TEST(name_beside_leaves_a_file_of_theirs_alone),
        TEST(attributes_and_filters_do_not_act),
        TEST(changed_target_is_named_and_left),
        TEST(nothing_is_applied_while_a_command_runs),
        TEST(what_no_snapshot_holds_is_not_overwritten),
        TEST(result_of_a_copy_is_brought_over),
        TEST(results_are_kept_for_a_while),
        TEST(damaged_snapshot_is_not_brought_over),
        TEST(killed_merge_can_be_taken_back),
        TEST(ten_thousand_files_are_merged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
