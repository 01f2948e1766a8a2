/* Permissions by table: rules for files and addresses, globs. */
#include "permission_support.h"

#include "runtime/permission_match.h"

/* A pattern of paths in a rule for all tools is no question about calls without a path. */
static void patterns_of_paths_are_for_calls_with_paths(void **state) {
    (void)state;
    static const char all[] = "deny:*:secrets/**;deny:*:git push *";
    static const struct row rows[] = {
        {all, FULL, "finish", TOOL_ENDS, NULL, ALLOW},
        {all, FULL, "todo", 0, NULL, ALLOW},
        {all, FULL, "grep", R, NULL, ALLOW},
        {all, FULL, "job_stop", TOOL_EXECUTES, NULL, ALLOW},
        {all, FULL, "mcp__fs__list", F, NULL, ALLOW},
        {all, FULL, "fetch", N, "https://a.org/x", ALLOW},
        {all, FULL, "read", R, "secrets/a", DENY},
        {all, FULL, "write", W, "/workspace/./secrets/../secrets/a", DENY},
        {all, FULL, "read", R, "../x", ASK},
        {all, FULL, "read", R, "SECRETS/a", ASK},
        {all, FULL, "read", R, "src/a", ALLOW},
        {all, FULL, "shell", X, "cat secrets/a", ALLOW}, /* a command is not judged by paths */
        {all, FULL, "shell", X, "git push", DENY},
        {all, FULL, "shell", X, "$X", ASK}, /* for the second rule */
        {"deny:*:secrets/**", FULL, "shell", X, "$X \"$(ls)\"", ALLOW},
        {"deny:grep:secrets/**", FULL, "grep", R, NULL, ALLOW},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void what_may_not_be_read_is_hidden_from_all_tools(void **state) {
    (void)state;
    static const char order[] = "allow:read:secrets/public/**;deny:read:secrets;ask:read:*.key";
    static const struct row rows[] = {
        {order, FULL, "grep", R, "secrets", DENY},
        {order, FULL, "grep", R, "secrets/a/b", DENY},
        {order, FULL, "grep", R, "secrets/public/a", ALLOW},
        {order, FULL, "edit", W, "secrets/a", DENY},
        {order, FULL, "image", R, "a.key", ASK},
        {order, ASK_ALL, "edit", W, "secrets/public/a", ASK},
        {order, FULL, "write", TOOL_WRITES, "secrets/a", ALLOW},
        {order, FULL, "grep", R, "secretsx", ALLOW},
    };
    static const struct {
        const char *rules, *tool, *path;
        bool want;
    } hidden[] = {
        {order, "grep", "secrets/a", true},
        {order, "list", "secrets", true},
        {order, "glob", "secrets/public/a", false},
        {order, "search", "x.key", true},
        {order, "search", "x.c", false},
        {"deny:grep:b/*", "grep", "b/a", true},
        {"deny:grep:b/*", "list", "b/a", false},
        {"deny:write:b/*", "grep", "b/a", false},
        {"deny:*:b/**", "grep", "b/c/d", true},
        {"deny:*:git push *", "grep", "git", false},
        {"project deny:read:b", "grep", "b/a", true},
        {"", "grep", "b/a", false},
    };
    check_rows(rows, COUNT_OF(rows));
    for (size_t i = 0; i < COUNT_OF(hidden); i++) {
        static struct rules rules;
        CLEANUP(permission_cleanup) struct permission *permission = NULL;
        rules_read(hidden[i].rules, &rules);
        const struct permission_options options = {PERMISSION_FULL, rules.rules, rules.count};
        assert_true(is_ok(permission_create(&permission, &options, NULL)));
        assert_int_equal(
            permission_hides(
                permission, view_of_text(hidden[i].tool), view_of_text(hidden[i].path)
            ),
            hidden[i].want
        );
    }
}

static void paths_and_urls_are_matched_as_they_are_meant(void **state) {
    (void)state;
    static const char docs[] = "allow:write:docs/**;allow:write:*.md";
    static const char secrets[] = "deny:read:secrets/**;deny:read:.env*";
    static const char web[] = "allow:fetch:https://docs.a.org/**";
    static const struct row rows[] = {
        {docs, ASK_ALL, "write", W, "docs/a", ALLOW},
        {docs, ASK_ALL, "write", W, "docs/a/b/c", ALLOW},
        {docs, ASK_ALL, "write", W, "./docs//a", ALLOW},
        {docs, ASK_ALL, "write", W, "/workspace/docs/a", ALLOW},
        {docs, ASK_ALL, "write", W, "x/../docs/a", ALLOW},
        {docs, ASK_ALL, "write", W, "README.md", ALLOW},
        {docs, ASK_ALL, "write", W, "src/README.md", ASK},
        {docs, ASK_ALL, "write", W, "docs/../src/a", ASK},
        {docs, ASK_ALL, "write", W, "docs/../../docs/a", ASK},
        {docs, ASK_ALL, "write", W, "../docs/a", ASK},
        {docs, ASK_ALL, "write", W, "/docs/a", ASK},
        {docs, ASK_ALL, "write", W, "/etc/a.md", ASK},
        {docs, ASK_ALL, "write", W, "/workspacedocs/a", ASK},
        {docs, ASK_ALL, "write", W, "DOCS/a", ASK},
        {docs, ASK_ALL, "write", W, "doc\xd1\x95/a", ASK},
        {docs, ASK_ALL, "write", W, "", ASK},
        {secrets, CONFINED, "read", R, "secrets/a", DENY},
        {secrets, CONFINED, "read", R, "a/../secrets/b/c", DENY},
        {secrets, CONFINED, "read", R, ".env.local", DENY},
        {secrets, CONFINED, "read", R, "src/.env", ALLOW},
        {secrets, CONFINED, "read", R, "../secrets/a", ASK},
        {secrets, CONFINED, "read", R, "src/a", ALLOW},
        {web, CONFINED, "fetch", N, "https://docs.a.org/x/y?z", ALLOW},
        {web, CONFINED, "fetch", N, "https://docs.a.org.evil.org/x", ASK},
        {web, CONFINED, "fetch", N, "https://docs.a.org@evil.org/x", ASK},
        {web, CONFINED, "fetch", N, "http://docs.a.org/x", ASK},
        {"allow:fetch:https://*.a.org/**", CONFINED, "fetch", N, "https://x.a.org/y", ALLOW},
        {"allow:fetch:https://*.a.org/**", CONFINED, "fetch", N, "https://evil.org/x.a.org/y", ASK},
        {"allow:fetch:https://*.a.org/**", CONFINED, "fetch", N, "https://e.org\\x.a.org/y", ASK},
        {"deny:fetch:https://evil.org/**", FULL, "fetch", N, "https://evil.org/x", DENY},
    };
    check_rows(rows, COUNT_OF(rows));
}

static void every_path_of_a_patch_counts(void **state) {
    (void)state;
    static struct rules rules;
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    const struct view paths[] = {
        view_of_text("docs/a"), view_of_text("src/b"), view_of_text("docs/c")};
    struct permission_verdict verdict;
    rules_read("allow:apply_patch:docs/**;deny:apply_patch:src/**", &rules);
    const struct permission_options options = {PERMISSION_ASK, rules.rules, rules.count};
    struct permission_question question = {
        .tool = view_of_text("apply_patch"), .effects = W, .paths = paths, .path_count = 3};
    assert_true(is_ok(permission_create(&permission, &options, NULL)));
    permission_decide(permission, &question, &verdict);
    assert_int_equal(verdict.action, PERMISSION_DENY);
    assert_int_equal(verdict.by, PERMISSION_BY_RULE);
    assert_int_equal(verdict.rule, 1);
    assert_non_null(strstr(verdict.reason, "config.json:7"));
    question.path_count = 1;
    permission_decide(permission, &question, &verdict);
    assert_int_equal(verdict.action, PERMISSION_ALLOW);
    question.path_count = 0; /* a patch that could not be read */
    permission_decide(permission, &question, &verdict);
    assert_int_equal(verdict.action, PERMISSION_QUESTION);
}

static void listed_hosts_are_not_asked_about(void **state) {
    (void)state;
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    const struct permission_options options = {.policy = PERMISSION_WORKSPACE_WRITE};
    struct permission_verdict verdict;
    struct permission_question question = {
        .tool = view_of_text("fetch"),
        .effects = TOOL_NETWORK,
        .url = view_of_text("https://a.org/"),
        .network_is_listed = true,
    };
    assert_true(is_ok(permission_create(&permission, &options, NULL)));
    permission_decide(permission, &question, &verdict);
    assert_int_equal(verdict.action, PERMISSION_ALLOW);
    permission_set_policy(permission, PERMISSION_ASK);
    permission_decide(permission, &question, &verdict);
    assert_int_equal(verdict.action, PERMISSION_QUESTION);
    assert_int_equal(permission_get_policy(permission), PERMISSION_ASK);
}

static void rules_that_say_nothing_are_refused(void **state) {
    (void)state;
    static char long_text[PERMISSION_PATTERN_MAX + 2];
    memset(long_text, 'a', sizeof long_text - 1);
    const struct permission_rule rows[] = {
        {.tool = "", .pattern = ""},
        {.tool = "shell", .pattern = "  "},
        {.tool = "shell", .pattern = "a\\"},
        {.tool = "sh\nell", .pattern = ""},
        {.tool = "a", .pattern = long_text},
        {.tool = "a", .pattern = "\xff"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct error error = {0};
        assert_int_equal(permission_rule_check(&rows[i], &error).code, RESULT_INVALID_INPUT);
        assert_true(error.message[0] != '\0');
    }
}

static void globs_match_as_their_words_say(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool flat, path;
    } rows[] = {
        {"", "", true, true},
        {"*", "", true, true},
        {"a*c", "abc", true, true},
        {"a*c", "abcd", false, false},
        {"*b*", "aabaa", true, true},
        {"a*/c", "a/b/c", true, false},
        {"**/c", "a/b/c", true, true},
        {"**a*b", "ax/ab", true, true},
        {"a/**", "a/", true, true},
        {"a/**", "a", false, false},
        {"?", "\xc3\xa4", true, true},
        {"a?c", "a/c", true, false},
        {"\\*", "*", true, true},
        {"\\*", "a", false, false},
        {"*.c", "a.c.c", true, true},
        {"*a*b*c*d", "xaxbxcx", false, false},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct view pattern = view_of_text(rows[i].pattern);
        struct view text = view_of_text(rows[i].text);
        assert_int_equal(glob_matches(pattern, text, false), rows[i].flat);
        assert_int_equal(glob_matches(pattern, text, true), rows[i].path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_of_paths_are_for_calls_with_paths),
        cmocka_unit_test(what_may_not_be_read_is_hidden_from_all_tools),
        cmocka_unit_test(paths_and_urls_are_matched_as_they_are_meant),
        cmocka_unit_test(every_path_of_a_patch_counts),
        cmocka_unit_test(listed_hosts_are_not_asked_about),
        cmocka_unit_test(rules_that_say_nothing_are_refused),
        cmocka_unit_test(globs_match_as_their_words_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
