/* What a person answers "always" to: which rules it makes, and what they allow. */
#include "permission_support.h"

/* What "always" adds for the subject of a row; null: nothing. */
static void answers_add_narrow_rules(void **state) {
    (void)state;
    static const struct {
        const char *tool;
        const char *subject, *pattern;
    } rows[] = {
        {"shell", "git status", "git status *"},
        {"shell", "git status -s", "git status *"},
        {"shell", "npm run-script build", "npm run-script *"},
        {"shell", "ls -l src", "ls -l src"},
        {"shell", "cat what?", NULL},
        {"shell", "cat 'what?'", "cat what\\?"},
        {"shell", "cat 'a b'", "cat a\\ b"},
        {"shell", "cat ''", NULL},
        {"shell", "cat 'a\nb'", NULL},
        {"shell", "git status; ls", NULL},
        {"shell", "git status > x", NULL},
        {"shell", "A=1 git status", NULL},
        {"shell", "git $(x)", NULL},
        {"shell", "bash x.sh", NULL},
        {"shell", "sudo ls", NULL},
        {"shell", "python3 -c x", NULL},
        {"shell", "", NULL},
        {"write", "src/a/b.c", "src/a/**"},
        {"write", "b.c", "b.c"},
        {"write", "./x/../s*/c", "s\\*/**"},
        {"write", "../b.c", NULL},
        {"fetch", "https://a.org/x/y", "https://a.org/**"},
        {"fetch", "nonsense", NULL},
        {"mcp__a__b", NULL, ""},
        {"edit", NULL, NULL}, /* of what file is not known */
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(buffer_deinit) struct buffer pattern;
        CLEANUP(permission_cleanup) struct permission *permission = NULL;
        const struct permission_options options = {.policy = PERMISSION_ASK};
        unsigned effects = strcmp(rows[i].tool, "edit") == 0 ? W : F;
        const struct row row = {"", PERMISSION_ASK, rows[i].tool, effects, rows[i].subject, ALLOW};
        struct permission_verdict verdict;
        struct view path;
        bool has_rule = false;
        const struct permission_question question = question_of(&row, &path);
        buffer_init(&pattern, 4096);
        assert_true(is_ok(permission_suggest(&question, &has_rule, &pattern, NULL)));
        assert_int_equal(has_rule, rows[i].pattern != NULL);
        if (!has_rule) {
            continue;
        }
        assert_string_equal(buffer_text(&pattern), rows[i].pattern);
        assert_true(is_ok(permission_create(&permission, &options, NULL)));
        permission_decide(permission, &question, &verdict);
        assert_int_equal(verdict.action, PERMISSION_QUESTION);
        assert_true(
            is_ok(permission_add_session(permission, question.tool, buffer_view(&pattern), NULL))
        );
        permission_decide(permission, &question, &verdict); /* it covers what it was made for */
        assert_int_equal(verdict.action, PERMISSION_ALLOW);
        assert_int_equal(verdict.by, PERMISSION_BY_SESSION);
    }
}

static void answers_silence_questions_and_nothing_else(void **state) {
    (void)state;
    static struct rules rules;
    static const struct {
        const char *command;
        enum permission_action want;
    } rows[] = {
        {"git log", ALLOW},
        {"git push", DENY},   /* the rule that denies stays */
        {"git fetch", ALLOW}, /* the rule that asked was answered */
        {"ls", ASK},
        {"git log; ls", ASK},
        {"git log $(x)", ASK},
    };
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    rules_read("deny:shell:git push *;project ask:shell:git fetch *", &rules);
    const struct permission_options options = {PERMISSION_ASK, rules.rules, rules.count};
    assert_true(is_ok(permission_create(&permission, &options, NULL)));
    assert_true(is_ok(
        permission_add_session(permission, view_of_text("shell"), view_of_text("git *"), NULL)
    ));
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct permission_question question = {
            .tool = view_of_text("shell"),
            .effects = X,
            .has_command = true,
            .command = view_of_text(rows[i].command)};
        struct permission_verdict verdict;
        permission_decide(permission, &question, &verdict);
        assert_int_equal(verdict.action, rows[i].want);
    }
    struct error error = {0};
    size_t added = 1;
    while (
        is_ok(permission_add_session(permission, view_of_text("write"), view_of_text("a"), &error))
    ) {
        added++;
    }
    assert_int_equal(error.code, RESULT_LIMIT);
    assert_int_equal(added, PERMISSION_SESSION_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_add_narrow_rules),
        cmocka_unit_test(answers_silence_questions_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
