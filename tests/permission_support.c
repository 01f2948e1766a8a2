/* Support of the tests of permissions; see the header. */
#include "permission_support.h"

void rules_read(const char *text, struct rules *out) {
    *out = (struct rules){0};
    for (const char *at = text; *at != '\0';) {
        struct permission_rule *rule = &out->rules[out->count];
        char(*texts)[128] = out->texts[out->count];
        size_t length = strcspn(at, ";");
        assert_true(out->count < RULES_MAX);
        rule->is_trusted = strncmp(at, "trusted ", 8) == 0;
        rule->is_project = rule->is_trusted || strncmp(at, "project ", 8) == 0;
        size_t skip = rule->is_project ? 8 : 0;
        const char *end = at + length;
        at += skip;
        for (size_t i = 0; i < 3; i++) {
            size_t part = i < 2 ? strcspn(at, ":;") : (size_t)(end - at);
            (void)snprintf(texts[i], sizeof texts[i], "%.*s", (int)part, at);
            at += part;
            at += at < end ? 1 : 0;
        }
        assert_true(permission_action_parse(view_of_text(texts[0]), &rule->action));
        rule->tool = texts[1];
        rule->pattern = texts[2];
        rule->origin = "config.json:7";
        out->count += 1;
        at = *end == ';' ? end + 1 : end;
        assert_true(is_ok(permission_rule_check(rule, NULL)));
    }
}

struct permission_question question_of(const struct row *row, struct view *path) {
    struct permission_question question = {
        .tool = view_of_text(row->tool), .effects = row->effects};
    *path = view_of_text(row->subject);
    if (strcmp(row->tool, "shell") == 0) {
        question.has_command = true;
        question.command = *path;
    } else if (strcmp(row->tool, "fetch") == 0) {
        question.url = *path;
    } else if (row->subject != NULL) {
        question.paths = path;
        question.path_count = 1;
    }
    return question;
}

void decide(const struct row *row, struct permission_verdict *verdict) {
    static struct rules rules;
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    struct view path;
    rules_read(row->rules, &rules);
    const struct permission_options options = {
        .policy = row->policy, .rules = rules.rules, .rule_count = rules.count};
    const struct permission_question question = question_of(row, &path);
    assert_true(is_ok(permission_create(&permission, &options, NULL)));
    permission_decide(permission, &question, verdict);
}

void check_rows(const struct row *rows, size_t count) {
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        struct permission_verdict verdict;
        decide(&rows[i], &verdict);
        if (verdict.action != rows[i].want || verdict.reason[0] == '\0') {
            print_error(
                "row %zu: [%s] %s %s under %s: %s, not %s (%s)\n",
                i,
                rows[i].rules,
                rows[i].tool,
                rows[i].subject != NULL ? rows[i].subject : "",
                permission_policy_name(rows[i].policy),
                permission_action_name(verdict.action),
                permission_action_name(rows[i].want),
                verdict.reason
            );
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}
