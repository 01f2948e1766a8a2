/* Random trees with random changes on two sides: each merge is what a rule a path, written down here
 * without snapshots, says it is, and the same from the other side.
 *
 * test_workspace_merge_random [ROUNDS [SEED]]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sandbox/workspace_merge.h"

#define PATHS  COUNT_OF(paths)
#define BLOCKS 4 /* of lines in a file; far enough apart that changes do not meet */

/* Names that are files here and directories there, and sort on either side of '/'. */
static const char *const paths[] = {
    "a", "a/x", "a/y",   "a/y/z", "a-b", "a.b", "a0", "b",   "b/c/d", "b/c/e",
    "c", "c/d", "c/d/e", "d/f",   "d/g", "e",   "f-", "f/g", "f0",
};

enum kind { ABSENT, PLAIN, PROGRAM, LINK, BINARY };

struct file {
    enum kind kind;
    unsigned values[BLOCKS]; /* a link and a binary file have the first one alone */
};

struct model {
    struct file files[COUNT_OF(paths)];
};

static char base[200];
static struct workspace *workspace;
static uint64_t random_state;
static uint64_t seed;
static unsigned rounds = 150;

static unsigned draw(unsigned below) { // splitmix64
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (unsigned)((z ^ (z >> 31)) % below);
}

/* ---- trees ---------------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

/* A file takes the place of whatever is above and below it. */
static void put(struct model *model, size_t at, struct file file) {
    for (size_t i = 0; file.kind != ABSENT && i < PATHS; i++) {
        if (is_below(paths[i], paths[at]) || is_below(paths[at], paths[i])) {
            model->files[i] = (struct file){.kind = ABSENT};
        }
    }
    model->files[at] = file;
}

static struct file draw_file(void) {
    struct file file = {.kind = draw(3) == 0 ? (enum kind)(PLAIN + draw(4)) : PLAIN};
    for (size_t i = 0; i < BLOCKS; i++) {
        bool is_used = file.kind == PLAIN || file.kind == PROGRAM || i == 0;
        file.values[i] = is_used ? draw(3) : 0;
    }
    return file;
}

static void change(struct model *model) {
    size_t at = draw(PATHS);
    struct file file = model->files[at];
    unsigned what = draw(8);
    if (file.kind == ABSENT || what == 0) {
        put(model, at, draw_file());
    } else if (what == 1) {
        put(model, at, (struct file){.kind = ABSENT});
    } else if (what == 2) { // renamed
        put(model, at, (struct file){.kind = ABSENT});
        put(model, draw(PATHS), file);
    } else if (file.kind == PLAIN || file.kind == PROGRAM) {
        if (what == 3) {
            file.kind = file.kind == PLAIN ? PROGRAM : PLAIN;
        }
        file.values[what == 3 ? 0 : draw(BLOCKS)] = draw(4);
        put(model, at, file);
    } else {
        file.values[0] = draw(4);
        put(model, at, file);
    }
}

static void write_file(const char *path, const struct file *file) {
    char text[64];
    if (file->kind == LINK) {
        (void)snprintf(text, sizeof text, "to%u", file->values[0]);
        assert_int_equal(symlink(text, path), 0);
        return;
    }
    CLEANUP(file_cleanup) FILE *out = fopen(path, "we");
    assert_non_null(out);
    if (file->kind == BINARY) {
        (void)fprintf(out, "x%c%u", '\0', file->values[0]);
    }
    for (unsigned i = 0; file->kind != BINARY && i < BLOCKS; i++) {
        (void
        )fprintf(out, "%u.1\n%u.2\n%u.3\nvalue %u\n%u.4\n%u.5\n", i, i, i, file->values[i], i, i);
    }
    assert_int_equal(fchmod(fileno(out), file->kind == PROGRAM ? 0755 : 0644), 0);
}

static void store(const struct model *model, char commit[WORKSPACE_COMMIT_BYTES]) {
    char path[600];
    (void)snprintf(path, sizeof path, "rm -rf '%s/ws/'*", base);
    assert_int_equal(system(path), 0);
    for (size_t i = 0; i < PATHS; i++) {
        if (model->files[i].kind == ABSENT) {
            continue;
        }
        int length = snprintf(path, sizeof path, "%s/ws/%s", base, paths[i]);
        assert_true(length > 0);
        for (char *slash = path + strlen(base) + 4; (slash = strchr(slash, '/')) != NULL; slash++) {
            *slash = '\0';
            (void)mkdir(path, 0755); // mostly there
            *slash = '/';
        }
        write_file(path, &model->files[i]);
    }
    struct workspace_snapshot taken;
    struct error error = {0};
    if (is_failed(workspace_take_snapshot(workspace, "test", &taken, &error))) {
        fail_msg("%s", error.message);
    }
    memcpy(commit, taken.commit, sizeof taken.commit);
}

/* ---- the rule ------------------------------------------------------------------------------- */

static bool is_same(const struct file *a, const struct file *b) {
    return a->kind == b->kind &&
           (a->kind == ABSENT || memcmp(a->values, b->values, sizeof a->values) == 0);
}

static bool is_lines(const struct file *file) {
    return file->kind == PLAIN || file->kind == PROGRAM;
}

/* -1, or the kind of conflict. */
static int
merge_files(const struct file *b, const struct file *o, const struct file *t, struct file *out) {
    if (is_same(o, t) || is_same(t, b)) {
        *out = *o;
        return -1;
    }
    if (is_same(o, b)) {
        *out = *t;
        return -1;
    }
    if (o->kind == ABSENT || t->kind == ABSENT) {
        return WORKSPACE_CONFLICT_DELETED;
    }
    if (b->kind == ABSENT) {
        return WORKSPACE_CONFLICT_ADDED;
    }
    if ((o->kind == LINK) != (t->kind == LINK)) {
        return WORKSPACE_CONFLICT_TYPE;
    }
    if (!is_lines(o) || !is_lines(t) || !is_lines(b)) {
        // A program for one and changed by the other would be both: a binary file's mode never changes here.
        return WORKSPACE_CONFLICT_WHOLE;
    }
    *out = *o;
    out->kind = o->kind == b->kind ? t->kind : o->kind;
    for (size_t i = 0; i < BLOCKS; i++) {
        if (o->values[i] == b->values[i]) {
            out->values[i] = t->values[i];
        } else if (t->values[i] != b->values[i] && t->values[i] != o->values[i]) {
            return WORKSPACE_CONFLICT_LINES;
        }
    }
    return -1;
}

static bool is_added(const struct model *base_model, const struct model *side, size_t at) {
    return base_model->files[at].kind == ABSENT && side->files[at].kind != ABSENT;
}

/* One side adds a file where the other adds files below it. */
static bool is_directory_conflict(
    const struct model *b, const struct model *o, const struct model *t, size_t at
) {
    for (size_t i = 0; i < PATHS; i++) {
        if (is_below(paths[i], paths[at]) && ((is_added(b, o, at) && is_added(b, t, i)) ||
                                              (is_added(b, t, at) && is_added(b, o, i)))) {
            return true;
        }
    }
    return false;
}

struct expectation {
    struct model merged;
    bool has[COUNT_OF(paths)][WORKSPACE_CONFLICT_DIRECTORY + 1];
    size_t conflicts;
};

static struct expectation
expect(const struct model *b, const struct model *o, const struct model *t) {
    struct expectation expected = {.conflicts = 0};
    for (size_t i = 0; i < PATHS; i++) {
        int kind = merge_files(&b->files[i], &o->files[i], &t->files[i], &expected.merged.files[i]);
        if (kind >= 0) {
            expected.has[i][kind] = true;
            expected.conflicts += 1;
        }
        if (is_directory_conflict(b, o, t, i)) {
            expected.has[i][WORKSPACE_CONFLICT_DIRECTORY] = true;
            expected.conflicts += 1;
        }
    }
    return expected;
}

/* ---- rounds --------------------------------------------------------------------------------- */

static void
expect_conflicts(const struct workspace_merge *merged, const struct expectation *expected) {
    assert_int_equal(merged->conflict_count, expected->conflicts);
    for (size_t k = 0; k < merged->conflict_count; k++) {
        size_t at = 0;
        while (at < PATHS && strcmp(paths[at], merged->conflicts[k].path) != 0) {
            at++;
        }
        assert_true(at < PATHS);
        assert_true(expected->has[at][merged->conflicts[k].kind]);
    }
}

/* Both added it with the same lines, for one as a program: there is nothing to put between markers. */
static bool is_mode_alone(const struct model models[3], const char *path) {
    size_t at = 0;
    while (strcmp(paths[at], path) != 0) {
        at++;
    }
    const struct file *ours = &models[1].files[at];
    const struct file *theirs = &models[2].files[at];
    return is_lines(ours) && is_lines(theirs) &&
           memcmp(ours->values, theirs->values, sizeof ours->values) == 0;
}

/* Each conflict is seen in the marked tree. */
static void expect_marks(const struct workspace_merge *merged, const struct model models[3]) {
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, 100000);
    size_t seen = 0;
    size_t lines = 0;
    for (size_t i = 0; i < merged->conflict_count; i++) {
        const struct workspace_conflict *conflict = &merged->conflicts[i];
        bool is_one = conflict->theirs == NULL && (conflict->kind == WORKSPACE_CONFLICT_DELETED ||
                                                   is_mode_alone(models, conflict->path));
        seen += is_one ? 0 : 1;
    }
    struct error error = {0};
    if (is_failed(workspace_merge_unresolved(workspace, merged, merged->marked, &names, &error))) {
        fail_msg("%s", error.message);
    }
    for (size_t i = 0; i < names.length; i++) {
        lines += names.data[i] == '\n' ? 1 : 0;
    }
    assert_int_equal(lines, seen);
}

static bool round_agrees(void) {
    struct model models[3] = {0};
    char commits[4][WORKSPACE_COMMIT_BYTES];
    for (unsigned i = 0; i < 25; i++) {
        change(&models[0]);
    }
    models[1] = models[2] = models[0];
    for (unsigned side = 1; side < 3; side++) {
        for (unsigned i = draw(6); i > 0; i--) {
            change(&models[side]);
        }
    }
    const struct expectation expected = expect(&models[0], &models[1], &models[2]);
    store(&models[0], commits[0]);
    store(&models[2], commits[2]);
    if (expected.conflicts == 0) {
        store(&expected.merged, commits[3]);
    }
    store(&models[1], commits[1]); // last: the tree is ours
    for (unsigned swapped = 0; swapped < 2; swapped++) {
        const struct workspace_merge_options options = {
            commits[0], commits[1 + swapped], commits[2 - swapped], 1000, true};
        CLEANUP(workspace_merge_deinit) struct workspace_merge merged = {.taken = 0};
        assert_true(is_ok(workspace_merge(workspace, &options, &merged, NULL)));
        expect_conflicts(&merged, &expected);
        if (merged.conflict_count > 0) {
            expect_marks(&merged, models);
            continue;
        }
        assert_string_equal(merged.marked, "");
        struct workspace_difference none;
        assert_true(is_ok(workspace_compare(workspace, merged.commit, commits[3], 0, &none, NULL)));
        assert_int_equal(none.file_count, 0);
        workspace_difference_deinit(&none);
        if (swapped == 0) {
            assert_true(is_ok(workspace_apply(workspace, commits[1], merged.commit, NULL)));
        }
    }
    return expected.conflicts == 0;
}

static void merges_are_what_the_rule_says(void **state) {
    (void)state;
    unsigned clean = 0;
    for (unsigned i = 0; i < rounds; i++) {
        random_state = seed + i;
        print_message("%s%u", i == 0 ? "seeds " : " ", i);
        clean += round_agrees() ? 1 : 0;
    }
    print_message("\n%u of %u without a conflict\n", clean, rounds);
    assert_true(rounds < 100 || (clean > rounds / 10 && clean < rounds - rounds / 10));
}

int main(int argc, char **argv) {
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL) * 1000;
    rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : rounds;
    (void)printf("first seed %llu\n", (unsigned long long)seed);
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-merge-XXXXXX");
    char directory[300];
    char path[300];
    ASSERT(mkdtemp(base) != NULL);
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    (void)snprintf(path, sizeof path, "%s/store", base);
    ASSERT(mkdir(directory, 0700) == 0);
    ASSERT(is_ok(workspace_open(directory, path, &workspace, NULL)));
    const struct CMUnitTest tests[] = {cmocka_unit_test(merges_are_what_the_rule_says)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    workspace_close(workspace);
    (void)snprintf(path, sizeof path, "rm -rf '%s'", base);
    return system(path) == 0 ? failed : 1;
}
