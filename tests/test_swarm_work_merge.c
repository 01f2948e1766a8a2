/* A merge while somebody works in the target, who acts as a file of the merge is written. */
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

int main(int argc, char **argv) {
    int status = open_sandbox("test_swarm_work_merge", argc, argv);
    if (status != 0) {
        return status;
    }
    const struct CMUnitTest tests[] = {
        TEST(what_is_saved_during_a_merge_stays),
        TEST(what_is_saved_before_the_disk_breaks_stays),
        TEST(file_that_both_wrote_is_named),
    };
    return close_sandbox(cmocka_run_group_tests(tests, NULL, NULL));
}
