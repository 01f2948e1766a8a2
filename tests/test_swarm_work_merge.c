/* A merge while somebody works in the target, who acts as a file of the merge is written; and integrators that
 * leave a merge as they find it. Also what a sweep does about a place that it cannot read. */
#include "swarm_work_support.h"

#include <errno.h>

#include "sandbox/tree_files.h"

#define FIRST "echo a >a; echo b >b; echo old >work"

static const char *on_path; /* what is done when this file is to be written; null: nothing */
static const char *person;  /* a command line; null: none */
static bool is_disk_broken; /* that file is not written */

result __real_tree_write_file(
    int root_fd,
    const char *path,
    enum tree_file_kind kind,
    struct view content,
    struct error *error
);
result __wrap_tree_write_file(
    int root_fd,
    const char *path,
    enum tree_file_kind kind,
    struct view content,
    struct error *error
);

result __wrap_tree_write_file(
    int root_fd,
    const char *path,
    enum tree_file_kind kind,
    struct view content,
    struct error *error
) {
    bool is_it = on_path != NULL && strcmp(path, on_path) == 0;
    if (is_it) {
        on_path = NULL;
        if (person != NULL) {
            shell("cd ws; %s", person);
        }
        if (is_disk_broken) {
            FAIL_FOREIGN(error, IO, EIO, "writing '%s': the disk is broken", path);
        }
    }
    return __real_tree_write_file(root_fd, path, kind, content, error);
}

static struct swarm_work_merge
merge_meanwhile(struct swarm_work_node *node, const char *path, const char *does, bool breaks) {
    on_path = path;
    person = does;
    is_disk_broken = breaks;
    struct swarm_work_merge merged = merge_into(node, swarm_work_root(work));
    assert_null(on_path);
    assert_int_equal(merged.merge, SWARM_MERGE_FAILED);
    assert_string_equal(merged.commit, "");
    return merged;
}

static void what_is_saved_during_a_merge_stays(void **state) {
    (void)state;
    begin_swarm(FIRST, NULL);
    struct swarm_work_node *node = node_with("one", "echo 1 >a && echo 1 >b && echo 1 >new");
    struct swarm_work_merge merged =
        merge_meanwhile(node, "b", "echo saved >work; echo mine >mine", false);
    assert_non_null(strstr(merged.detail, "the files are what they were"));
    shell(
        "cd ws; grep -qx a a; grep -qx b b; test ! -e new; grep -qx saved work; grep -qx mine mine"
    );
    assert_int_equal(merge_into(node, swarm_work_root(work)).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx 1 a; grep -qx 1 b; grep -qx 1 new; grep -qx saved work");
    end_swarm();
}

static void what_is_saved_before_the_disk_breaks_stays(void **state) {
    (void)state;
    begin_swarm(FIRST, NULL);
    struct swarm_work_node *node = node_with("one", "echo 1 >a && echo 1 >b && echo 1 >new");
    struct swarm_work_merge merged = merge_meanwhile(node, "b", "echo saved >work", true);
    assert_non_null(strstr(merged.detail, "the disk is broken"));
    assert_non_null(strstr(merged.detail, "the files are what they were"));
    shell("cd ws; grep -qx a a; grep -qx b b; test ! -e new; grep -qx saved work");
    end_swarm();
}

/* A file of the merge itself: it is not known what to make of it, so it stays and is named. */
static void file_that_both_wrote_is_named(void **state) {
    (void)state;
    begin_swarm(FIRST, NULL);
    struct swarm_work_node *node = node_with("one", "echo 1 >a && echo 1 >b && echo 1 >new");
    struct swarm_work_merge merged = merge_meanwhile(node, "b", "echo saved >a", true);
    assert_non_null(strstr(merged.detail, "changed by somebody else since: a"));
    assert_non_null(strstr(merged.detail, "what they were is snapshot "));
    shell("cd ws; grep -qx saved a; grep -qx old work");
    end_swarm();
}

static struct swarm_work_node *integrator_of(struct swarm_work_node *node, const char *name) {
    struct swarm_work_node *join = NULL;
    const struct swarm_work_open options = {
        .name = name, .parent = swarm_work_root(work), .conflict_of = node};
    assert_true(is_ok(swarm_work_open(work, &options, &join, NULL)));
    return join;
}

/* It has no markers: what stands there may be right. */
static void deleted_file_that_is_left_is_a_result(void **state) {
    (void)state;
    begin_swarm(FIRST, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "rm a");
    struct swarm_work_node *two = node_with("two", "echo 2 >a && echo 2 >only");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    assert_int_equal(merge_into(two, root).merge, SWARM_MERGE_CONFLICTS);
    struct swarm_work_node *join = integrator_of(two, "join");
    struct swarm_work_made made = result_of(join);
    assert_string_not_equal(made.commit, "");
    assert_int_equal(made.files, 2);
    assert_int_equal(merge_into(join, root).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx 2 a; grep -qx 2 only");
    end_swarm();
}

static void merge_that_is_clean_by_now_is_a_result(void **state) {
    (void)state;
    begin_swarm(FIRST, NULL);
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *one = node_with("one", "echo 1 >a");
    struct swarm_work_node *two = node_with("two", "echo 2 >a && echo 2 >only");
    assert_int_equal(merge_into(one, root).merge, SWARM_MERGE_OK);
    assert_int_equal(merge_into(two, root).merge, SWARM_MERGE_CONFLICTS);
    shell("echo a >ws/a"); // somebody takes it back
    struct swarm_work_node *join = integrator_of(two, "join");
    assert_string_not_equal(result_of(join).commit, "");
    assert_true(close_node(join));
    assert_int_equal(merge_into(join, root).merge, SWARM_MERGE_OK);
    shell("cd ws; grep -qx 2 a; grep -qx 2 only");

    struct swarm_work_node *again = integrator_of(two, "again"); // all of it is there already
    assert_string_equal(result_of(again).commit, "");
    end_swarm();
}

static void place_that_cannot_be_read_keeps_no_other_one(void **state) {
    (void)state;
    struct swarm_work_swept swept;
    char swarms[300];
    (void)snprintf(swarms, sizeof swarms, "%s/state/swarms", base);
    for (int i = 0; i < 9; i++) { // whichever comes first
        shell("mkdir -p state/swarms/dead%d/work state/swarms/dead%d/stores", i, i);
    }
    shell("mkdir -p state/swarms/broken; echo none >state/swarms/broken/work");
    assert_true(is_ok(swarm_work_sweep(swarms, &swept, NULL)));
    assert_int_equal(swept.kept, 1);
    assert_non_null(strstr(swept.kept_names, "broken: "));
    shell("test \"$(ls state/swarms)\" = broken");
}

int main(int argc, char **argv) {
    int status = open_sandbox("test_swarm_work_merge", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(what_is_saved_during_a_merge_stays),
        TEST(what_is_saved_before_the_disk_breaks_stays),
        TEST(file_that_both_wrote_is_named),
        TEST(deleted_file_that_is_left_is_a_result),
        TEST(merge_that_is_clean_by_now_is_a_result),
        TEST(place_that_cannot_be_read_keeps_no_other_one),
    };
    return close_sandbox(cmocka_run_group_tests(tests, NULL, NULL));
}
