/* The incremental walk over a workspace: complete, in any step size, at any depth, and honest about
 * what moved under it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sandbox/survey.h"

static char base[256];
static int root;

static void shell(const char *command) {
    char text[2048];
    (void)snprintf(text, sizeof text, "cd '%s' && %s", base, command);
    assert_int_equal(system(text), 0);
}

static int set_up(void **state) {
    (void)state;
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-survey-XXXXXX");
    assert_non_null(mkdtemp(base));
    root = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(root >= 0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    close(root);
    shell("cd / && rm -rf \"$OLDPWD\"");
    return 0;
}

static struct survey_totals walk(size_t entries_per_step) {
    struct survey survey = {0};
    assert_true(is_ok(survey_begin(&survey, root, NULL, NULL)));
    for (unsigned steps = 0; !survey_step(&survey, entries_per_step); steps++) {
        assert_true(steps < 1000000);
    }
    struct survey_totals totals = survey.totals;
    survey_deinit(&survey);
    return totals;
}

static void every_entry_is_counted_once(void **state) {
    (void)state;
    shell(
        "mkdir -p a/b/c a/d e f/g && touch 1 a/1 a/b/1 a/b/c/1 a/b/c/2 a/d/1 f/g/1 && ln -s / l && "
        "head -c 1000000 /dev/zero >big && sync big"
    );
    static const size_t steps[] = {1, 2, 3, 7, 1000};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct survey_totals totals = walk(steps[i]);
        assert_true(totals.is_whole);
        assert_int_equal(totals.entries, 16);
        assert_true(totals.bytes >= 1000000 && totals.bytes < 1200000);
    }
}

static void empty_tree_has_nothing(void **state) {
    (void)state;
    struct survey_totals totals = walk(1);
    assert_true(totals.is_whole);
    assert_int_equal(totals.entries, 0);
}

static void deep_tree_needs_no_long_path_and_few_descriptors(void **state) {
    (void)state;
    int at = dup(root);
    for (unsigned i = 0; i < 3000; i++) {
        assert_int_equal(mkdirat(at, "deep", 0755), 0);
        int next = openat(at, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(next >= 0);
        close(at);
        at = next;
    }
    close(at);
    struct survey_totals totals = walk(100);
    assert_true(totals.is_whole);
    assert_int_equal(totals.entries, 3000);
}

static void directory_that_moves_away_ends_the_pass(void **state) {
    (void)state;
    shell("mkdir -p a/b/c x && touch a/b/c/1 a/b/c/2 a/b/c/3");
    struct survey survey = {0};
    assert_true(is_ok(survey_begin(&survey, root, NULL, NULL)));
    while (survey.depth < 4) { // within a/b/c
        assert_false(survey_step(&survey, 1));
    }
    shell("mv a/b/c x/c"); // ".." leads elsewhere now
    assert_true(survey_step(&survey, 1000));
    assert_false(survey.totals.is_whole);
    survey_deinit(&survey);
}

static void unreadable_directory_is_not_whole(void **state) {
    (void)state;
    if (geteuid() == 0) {
        skip(); // root reads everything
    }
    shell("mkdir shut && touch shut/f && chmod 000 shut");
    assert_false(walk(10).is_whole);
    shell("chmod 700 shut");
}

static void only_changed_files_lose_their_bits(void **state) {
    (void)state;
    shell("touch old && chmod 6755 old && sleep 0.05");
    struct timespec since;
    assert_int_equal(clock_gettime(CLOCK_REALTIME_COARSE, &since), 0);
    shell("sleep 0.05; mkdir d && touch d/new && chmod 6755 d/new && touch d/shut && chmod 4000 "
          "d/shut && mkdir g && chmod 2755 g");
    struct survey survey = {0};
    assert_true(is_ok(survey_begin(&survey, root, &since, NULL)));
    assert_true(survey_step(&survey, 1000));
    assert_int_equal(survey.stripped, 2);
    survey_deinit(&survey);
    shell("test $(stat -c %a old) = 6755 && test $(stat -c %a d/new) = 755 && test $(stat -c %a "
          "d/shut) = 0 && test $(stat -c %a g) "
          "= 2755");
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_entry_is_counted_once),
        TEST(empty_tree_has_nothing),
        TEST(deep_tree_needs_no_long_path_and_few_descriptors),
        TEST(directory_that_moves_away_ends_the_pass),
        TEST(unreadable_directory_is_not_whole),
        TEST(only_changed_files_lose_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
