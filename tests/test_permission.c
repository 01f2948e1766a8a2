/* Permissions by table: policies, rules, attacks on both kinds of rules, answers of a session. */
#include "runtime/permission.h"
#include "runtime/permission_match.h"
#include "tools/tool.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define RULES_MAX 8
#define R         TOOL_READS
#define W         (TOOL_READS | TOOL_WRITES)
#define X         (TOOL_READS | TOOL_WRITES | TOOL_EXECUTES)
#define N         TOOL_NETWORK
#define F         TOOL_FOREIGN

/* "ACTION:TOOL:PATTERN" parts separated by ';'; "project " and "trusted " in front say whose. */
struct rules {
    struct permission_rule rules[RULES_MAX];
    char texts[RULES_MAX][3][128];
    size_t count;
};

static void rules_read(const char *text, struct rules *out) {
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

struct row {
    const char *rules;
    enum permission_policy policy;
    const char *tool;
    unsigned effects;
    const char *subject; /* of shell: the command; of fetch: the URL; else a path; null: none */
    enum permission_action want;
};

static struct permission_question question_of(const struct row *row, struct view *path) {
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

static void decide(const struct row *row, struct permission_verdict *verdict) {
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

static void check_rows(const struct row *rows, size_t count) {
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

#define READ_ONLY PERMISSION_READ_ONLY
#define ASK_ALL   PERMISSION_ASK
#define CONFINED  PERMISSION_WORKSPACE_WRITE
#define FULL      PERMISSION_FULL
#define ALLOW     PERMISSION_ALLOW
#define ASK       PERMISSION_QUESTION
#define DENY      PERMISSION_DENY

static void policies_decide_without_rules(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"", READ_ONLY, "read", R, "a", ALLOW},
        {"", READ_ONLY, "write", W, "a", DENY},
        {"", READ_ONLY, "shell", X, "ls", DENY},
        {"", READ_ONLY, "fetch", N, "https://a.b/", DENY},
        {"", READ_ONLY, "mcp__fs__list", F, NULL, DENY},
        {"", READ_ONLY, "finish", TOOL_ENDS, NULL, ALLOW},
        {"", READ_ONLY, "todo", 0, NULL, ALLOW},
        {"", ASK_ALL, "read", R, "a", ALLOW},
        {"", ASK_ALL, "write", W, "a", ASK},
        {"", ASK_ALL, "shell", X, "ls", ASK},
        {"", ASK_ALL, "fetch", N, "https://a.b/", ASK},
        {"", CONFINED, "write", W, "a", ALLOW},
        {"", CONFINED, "shell", X, "rm -rf $(ls)", ALLOW},
        {"", CONFINED, "fetch", N, "https://a.b/", ASK},
        {"", CONFINED, "mcp__fs__list", F, NULL, ASK},
        /* what the user says that only reads */
        {"", READ_ONLY, "mcp__fs__list", R | F, NULL, ALLOW},
        {"", ASK_ALL, "mcp__fs__list", R | F, NULL, ALLOW},
        {"", CONFINED, "mcp__fs__list", R | F, NULL, ALLOW},
        {"", CONFINED, "mcp__fs__list", R | W | F, NULL, ASK},
        {"", FULL, "mcp__fs__list", F, NULL, ALLOW},
        {"", FULL, "fetch", N, "https://a.b/", ALLOW},
        {"", FULL, "shell", X, "", ALLOW},
    };
    check_rows(rows, COUNT_OF(rows));
}

/* Under `ask` only a rule allows: what it does not cover for sure is asked. */
static void allowing_rules_cover_only_what_is_certain(void **state) {
    (void)state;
    static const char git[] = "allow:shell:git status *;allow:shell:ls *;allow:shell:rm build/*";
    static const struct row rows[] = {
        {git, ASK_ALL, "shell", X, "git status", ALLOW},
        {git, ASK_ALL, "shell", X, "git status --short -- src", ALLOW},
        {git, ASK_ALL, "shell", X, "  git   status\t-s ", ALLOW},
        {git, ASK_ALL, "shell", X, "'git' \"status\"", ALLOW},
        {git, ASK_ALL, "shell", X, "git status && ls -l | ls; ls", ALLOW},
        {git, ASK_ALL, "shell", X, "git status 2>&1 >/dev/null </dev/null", ALLOW},
        {git, ASK_ALL, "shell", X, "git status # and nothing else; rm x\nls", ALLOW},
        {git, ASK_ALL, "shell", X, "ls 'a b;c$(d)' \"x > y\" a\\ b", ALLOW},
        {git, ASK_ALL, "shell", X, "ls *.c", ALLOW},
        {git, ASK_ALL, "shell", X, "rm build/a.o", ALLOW},
        {git, ASK_ALL, "shell", X, "rm build/sub/a.o", ALLOW},
        /* other commands beside it */
        {git, ASK_ALL, "shell", X, "git status; rm -rf x", ASK},
        {git, ASK_ALL, "shell", X, "git status;rm -rf x", ASK},
        {git, ASK_ALL, "shell", X, "git status\nrm -rf x", ASK},
        {git, ASK_ALL, "shell", X, "git status & rm -rf x", ASK},
        {git, ASK_ALL, "shell", X, "git status | xargs rm", ASK},
        {git, ASK_ALL, "shell", X, "git status || rm x", ASK},
        {git, ASK_ALL, "shell", X, "rm x && git status", ASK},
        {git, ASK_ALL, "shell", X, "git status\r\nls", ASK},
        {git, ASK_ALL, "shell", X, "git status #x\nrm x", ASK},
        {git, ASK_ALL, "shell", X, "ls a#b; rm x", ASK},
        /* expansions */
        {git, ASK_ALL, "shell", X, "git status $(rm x)", ASK},
        {git, ASK_ALL, "shell", X, "git status `rm x`", ASK},
        {git, ASK_ALL, "shell", X, "git status \"$(rm x)\"", ASK},
        {git, ASK_ALL, "shell", X, "git status \"`rm x`\"", ASK},
        {git, ASK_ALL, "shell", X, "git status $X", ASK},
        {git, ASK_ALL, "shell", X, "git status ${X:-y}", ASK},
        {git, ASK_ALL, "shell", X, "ls $'\\x3b'", ASK},
        {git, ASK_ALL, "shell", X, "ls <(rm x)", ASK},
        {git, ASK_ALL, "shell", X, "(git status)", ASK},
        {git, ASK_ALL, "shell", X, "{ git status; }", ASK},
        {git, ASK_ALL, "shell", X, "ls {a,b}", ASK},
        {git, ASK_ALL, "shell", X, "ls() { rm x; }; ls", ASK},
        {git, ASK_ALL, "shell", X, "if ls; then ls; fi", ASK},
        {git, ASK_ALL, "shell", X, "! ls", ASK},
        {git, ASK_ALL, "shell", X, "for i in a; do ls; done", ASK},
        /* where output and input go */
        {git, ASK_ALL, "shell", X, "git status > .bashrc", ASK},
        {git, ASK_ALL, "shell", X, "git status >>x", ASK},
        {git, ASK_ALL, "shell", X, "git status >|x", ASK},
        {git, ASK_ALL, "shell", X, "git status 2>x", ASK},
        {git, ASK_ALL, "shell", X, "git status >&x", ASK},
        {git, ASK_ALL, "shell", X, "git status &>x", ASK},
        {git, ASK_ALL, "shell", X, "git status < x", ASK},
        {git, ASK_ALL, "shell", X, "git status <<E\nrm\nE", ASK},
        {git, ASK_ALL, "shell", X, "> x", ASK},
        {git, ASK_ALL, "shell", X, "git status >", ASK},
        {git, ASK_ALL, "shell", X, "git status > /dev/null/../x", ASK},
        /* what runs it */
        {git, ASK_ALL, "shell", X, "PATH=/tmp git status", ASK},
        {git, ASK_ALL, "shell", X, "PATH=/tmp; git status", ASK},
        {git, ASK_ALL, "shell", X, "A=1 B=2", ASK},
        {git, ASK_ALL, "shell", X, "env git status", ASK},
        {git, ASK_ALL, "shell", X, "bash -c 'git status'", ASK},
        {git, ASK_ALL, "shell", X, "sudo git status", ASK},
        {git, ASK_ALL, "shell", X, "/tmp/git status", ASK},
        {git, ASK_ALL, "shell", X, "./git status", ASK},
        {git, ASK_ALL, "shell", X, "g?t status", ASK},
        {git, ASK_ALL, "shell", X, "git stat*", ASK},
        {git, ASK_ALL, "shell", X, "git  -C /x status", ASK},
        {git, ASK_ALL, "shell", X, "gitstatus", ASK},
        {git, ASK_ALL, "shell", X, "git", ASK},
        {git, ASK_ALL, "shell", X, "", ASK},
        /* words and what is not shown */
        {git, ASK_ALL, "shell", X, "git status \\", ASK},
        {git, ASK_ALL, "shell", X, "git sta\\\ntus; ls", ALLOW},
        {git, ASK_ALL, "shell", X, "git 'status", ASK},
        {git, ASK_ALL, "shell", X, "git \"status", ASK},
        {git, ASK_ALL, "shell", X, "g\xd1\x96t status", ASK},     /* a Cyrillic i */
        {git, ASK_ALL, "shell", X, "git\xc2\xa0status", ASK},     /* no blank to a shell */
        {git, ASK_ALL, "shell", X, "ls \xe2\x80\xae;rm x", ASK},  /* right to left */
        {git, ASK_ALL, "shell", X, "ls a\xe2\x80\x8b", ASK},      /* no width */
        {git, ASK_ALL, "shell", X, "ls \xff", ASK},               /* no UTF-8 */
        {git, ASK_ALL, "shell", X, "ls \x1b[2K", ASK},            /* a terminal's command */
        {git, ASK_ALL, "shell", X, "ls \xc3\xa4\xc3\xb6", ALLOW}, /* letters */
        /* out of a directory */
        {git, ASK_ALL, "shell", X, "rm build/../src", ASK},
        {git, ASK_ALL, "shell", X, "rm build/x src", ASK},
        {git, ASK_ALL, "shell", X, "rm build/x\tsrc", ASK},
        {git, ASK_ALL, "shell", X, "rm build/.?/src", ASK},
        {git, ASK_ALL, "shell", X, "rm -rf build/x", ASK},
        {git, ASK_ALL, "shell", X, "rm build/*", ALLOW}, /* word for word */
        {"allow:shell:\\*", ASK_ALL, "shell", X, "ls", ASK},
        {"allow:shell", ASK_ALL, "shell", X, "rm $(x) > y", ALLOW},
        {"allow:shell:*", ASK_ALL, "shell", X, "rm $(x) > y", ALLOW},
        {"allow:sh?ll:ls", ASK_ALL, "shell", X, "ls", ALLOW},
        {"allow:shell: ls  * ", ASK_ALL, "shell", X, "ls -l a", ALLOW},
        {"allow:shell:cat a\\ b", ASK_ALL, "shell", X, "cat 'a b'", ALLOW},
        {"allow:shell:cat a\\ b", ASK_ALL, "shell", X, "cat a b", ASK},
        {"allow:shell:ls", ASK_ALL, "shell", X, "ls -l", ASK},
    };
    check_rows(rows, COUNT_OF(rows));
}

/* Under `full` only a rule asks or denies: what it may cover is asked. */
static void denying_rules_cover_what_may_be_meant(void **state) {
    (void)state;
    static const char rm[] = "deny:shell:rm *;deny:shell:git push;ask:shell:cat secrets/*";
    static const struct row rows[] = {
        {rm, FULL, "shell", X, "ls -l", ALLOW},
        {rm, FULL, "shell", X, "ls; make | tee x > log", ALLOW},
        {rm, FULL, "shell", X, "python3 test.py", ALLOW},
        {rm, FULL, "shell", X, "find . -name '*.c'", ALLOW},
        {rm, FULL, "shell", X, "echo rm", ALLOW},
        {rm, FULL, "shell", X, "rm", DENY},
        {rm, FULL, "shell", X, "rm -rf x", DENY},
        {rm, FULL, "shell", X, "git status; rm -rf x", DENY},
        {rm, FULL, "shell", X, "git status $(rm x)", DENY},
        {rm, FULL, "shell", X, "git status `rm x`", DENY},
        {rm, FULL, "shell", X, "ls\nrm x", DENY},
        {rm, FULL, "shell", X, "r''m x", DENY},
        {rm, FULL, "shell", X, "\"rm\" x", DENY},
        {rm, FULL, "shell", X, "r\\m x", DENY},
        {rm, FULL, "shell", X, "/bin/rm x", DENY},
        {rm, FULL, "shell", X, "A=1 rm x", DENY},
        {rm, FULL, "shell", X, "rm x > y", DENY},
        {rm, FULL, "shell", X, "> y rm x", DENY},
        {rm, FULL, "shell", X, "if true; then rm x; fi", DENY},
        {rm, FULL, "shell", X, "(rm x)", DENY},
        {rm, FULL, "shell", X, "{ rm x; }", DENY},
        {rm, FULL, "shell", X, "sudo rm x", DENY},
        {rm, FULL, "shell", X, "env A=1 rm x", DENY},
        {rm, FULL, "shell", X, "timeout 5 rm x", DENY},
        {rm, FULL, "shell", X, "ls | xargs -n1 rm", DENY},
        {rm, FULL, "shell", X, "find . -exec rm {} \\;", DENY},
        {rm, FULL, "shell", X, "git push origin main", DENY},
        {rm, FULL, "shell", X, "git pushed", ALLOW},
        {rm, FULL, "shell", X, "git -C x push", DENY},
        {rm, FULL, "shell", X, "git --no-pager -c a=b push origin", DENY},
        {rm, FULL, "shell", X, "git -C x log", ALLOW},
        {rm, FULL, "shell", X, "git log push", ALLOW},
        {rm, FULL, "shell", X, "git -", ALLOW},
        {rm, FULL, "shell", X, "bash -c 'rm x'", DENY},
        {rm, FULL, "shell", X, "bash -lc 'rm x'", DENY},
        {rm, FULL, "shell", X, "sudo sh -c 'rm x'", DENY},
        {rm, FULL, "shell", X, "eval 'rm x'", DENY},
        {rm, FULL, "shell", X, "python3 -c 'x'", ALLOW}, /* no shell: it can do anything */
        {rm, FULL, "shell", X, "echo \"don't rm x\" 'or git push' \"$HOME\" $X", ALLOW},
        {rm, FULL, "shell", X, "for i in a rm; do echo $i; done", ALLOW},
        {rm, FULL, "shell", X, "X=1; echo ${X}; ls $(date) > out", ALLOW},
        {rm, FULL, "shell", X, "ls \\\n  -l", ALLOW},
        {rm, FULL, "shell", X, "cat > f <<'E'\ndon't\nrm x\n$(rm x)\nE\nls", ALLOW},
        {rm, FULL, "shell", X, "cat <<-E | sort\nrm $x\n\tE\nls", ALLOW},
        {rm, FULL, "shell", X, "cat <<E\nrm x\nE\nrm y", DENY},
        {rm, FULL, "shell", X, "cat <<E\n$(rm x)\nE\n", ASK},
        {rm, FULL, "shell", X, "cat <<E\nrm x\n", ASK},
        {rm, FULL, "shell", X, "cat <<E\nrm x\n\tE\nrm y", ASK},
        {rm, FULL, "shell", X, "cat <<E <<'F'\nE\nrm x\nF\nls", ALLOW},
        {rm, FULL, "shell", X, "bash <<E\nrm x\nE", ASK},
        {rm, FULL, "shell", X, "bash <<<'rm x'", ASK},
        {rm, FULL, "shell", X, "echo 'rm x' | sh", ASK},
        {rm, FULL, "shell", X, "bash build.sh", ALLOW},
        {rm, FULL, "shell", X, "bash $X", ASK},
        {rm, FULL, "shell", X, "r\\\nm x", DENY},
        {rm, FULL, "shell", X, "$(echo r)m x", ASK},
        {rm, FULL, "shell", X, "`echo r`m x", ASK},
        {rm, FULL, "shell", X, "echo $(date) rm", ASK}, /* here rm is a word of echo's */
        {rm, FULL, "shell", X, "(ls); rm x", DENY},
        {rm, FULL, "shell", X, "{rm,x}", ASK},
        {rm, FULL, "shell", X, "git $X", ASK},
        {rm, FULL, "shell", X, "alias x=rm; x y", ASK},
        {rm, FULL, "shell", X, "f() { rm x; }; f", ASK},
        {rm, FULL, "shell", X, "function f { rm x; }", ASK},
        {rm, FULL, "shell", X, "coproc rm x", DENY},
        {rm, FULL, "shell", X, "case a in a) rm x;; esac", ASK},
        {rm, FULL, "shell", X, "$X", ASK},
        {rm, FULL, "shell", X, "ls \"$(rm x)\"", ASK},
        {rm, FULL, "shell", X, "/bin/r? x", ASK},
        {rm, FULL, "shell", X, "git p[u]sh", ASK},
        {rm, FULL, "shell", X, "cat secrets/a", ASK},
        {rm, FULL, "shell", X, "cat ./secrets//a", ASK},
        {rm, FULL, "shell", X, "cat x/../secrets/a", ASK},
        {rm, FULL, "shell", X, "cat /workspace/secrets/a", ASK},
        {rm, FULL, "shell", X, "cat notes/a", ALLOW},
        {rm, CONFINED, "shell", X, "bash -c 'ls'", ALLOW},
        {rm, FULL, "shell", X, "time -p rm x", DENY},
        {rm, FULL, "shell", X, "time if rm x; then ls; fi", DENY},
        {rm, FULL, "shell", X, "chrt -b 0 rm x", DENY},
        {rm, FULL, "shell", X, "/lib64/ld-linux-x86-64.so.2 /bin/rm x", DENY},
        {rm, FULL, "shell", X, "env -S 'rm x'", ASK},
        {rm, FULL, "shell", X, "script -c 'rm x' /dev/null", ASK},
        {rm, FULL, "shell", X, "env A='a b' ls", ALLOW},
        /* what hides the end of an expansion, a comment or a here-document */
        {rm, FULL, "shell", X, "cat <<A $(echo\nrm x\n)\nhello\nA", ASK},
        {rm, FULL, "shell", X, "cat <<A `echo\nrm x\n`\nhello\nA", ASK},
        {rm, FULL, "shell", X, "echo $((1<<A)); ls\nrm x\nA", ASK},
        {rm, FULL, "shell", X, "echo ${x:- #}; rm x", ASK},
        {rm, FULL, "shell", X, "echo \"${x#'\"'}\"; rm x; : \\'", ASK},
        {rm, FULL, "shell", X, "echo \"${x:-\"'\"}\"; rm x; : \\'", ASK},
        {rm, FULL, "shell", X, "echo $'\\''; rm x; : \\'", ASK},
        {rm, FULL, "shell", X, "cat <<$'E'\nE\nrm x\n$E", ASK},
        {rm, FULL, "shell", X, "echo $\\\n{x:- #}; rm x", ASK},
        {rm, FULL, "shell", X, "echo \"$\\\n{x:-\"'\"}\"; rm x; : \\'", ASK},
        {rm, FULL, "shell", X, "cat <\\\n<E\n'\nE\nrm x\n: \\'", ASK},
        {rm, FULL, "shell", X, "false && echo $((1 #)); rm x", ASK},
        {rm, FULL, "shell", X, "false && echo $(((1) + (2) #)); rm x", ASK},
        {rm, FULL, "shell", X, "false && echo $((')); rm x; : \\'", ASK},
        {rm, FULL, "shell", X, "echo ${x##*/} \"${x%.c}\" ${#x} $((1 + (2 * n)))", ALLOW},
        {"deny:shell:\xd1\x80m *",
         FULL,
         "shell",
         X,
         "rm x",
         ALLOW}, /* a Cyrillic r is another name */
    };
    check_rows(rows, COUNT_OF(rows));
}

/* One rule, `git push`, and the ways in which a line comes to it. */
static void other_spellings_of_a_command_are_found(void **state) {
    (void)state;
    static const char push[] = "deny:shell:git push *";
    static const struct {
        const char *line;
        enum permission_action want;
    } lines[] = {
        {"ls && git push", DENY},
        {"ls | git push", DENY},
        {"/usr/bin/git push", DENY},
        {"env git push", DENY},
        {"env A=1 -u B /usr/bin/git -C x push", DENY},
        {"git -C x push", DENY},
        {"git -C x -c user.name=push log", ALLOW},
        {"git -C push log", ASK}, /* as text it may be either */
        {"git -p --no-pager --git-dir=x --work-tree y push origin", DENY},
        {"git --namespace n push", DENY},
        {"git -c alias.p=push p", ASK},
        {"git -c ALIAS.p=push p", ASK},
        {"git -c include.path=x p", ASK},
        {"git --config-env=alias.p=X p", ASK},
        {"git -c $X p", ASK},
        {"git $X push", ASK},
        {"git -C $X log", ASK}, /* it may be several words */
        {"git -c user.name=a log", ALLOW},
        {"git", ALLOW},
        {"git -c", ASK},
        {"sh -c 'git push'", DENY},
        {"sh -c 'ls; git -C x push'", DENY},
        {"bash -euo pipefail -c 'git push'", DENY},
        {"sh -c -e 'git push'", DENY},
        {"timeout 5 sh -c 'git push'", DENY},
        {"env A=1 /bin/bash -lc \"git push\"", DENY},
        {"sh -c 'sh -c \"git push\"'", DENY},
        {"sh -c \"sh -c 'git push'\" && ls", DENY},
        {"sh -c \"bash -c 'eval \\\"git push\\\"'\"", DENY},
        {"eval git push", DENY},
        {"eval 'ls; git push'", DENY},
        {"sh -c 'ls' git push", ALLOW}, /* its $0 and $1 */
        {"sh -c 'ls; make'", ALLOW},
        {"sh -c 'git $0' push", ASK},
        {"sh -c '$X'", ASK},
        {"sh -c \"$X\"", ASK},
        {"sh -c 'ls \"$(git push)\"'", ASK},
        {"bash --rcfile x -c 'ls'", ASK},
        {"bash -sc 'ls'", ASK},
        {"$(ls) sh -c 'git push'", ASK},
        {"xargs sh -c 'git push'", DENY},
        {"echo push | xargs git", ASK},
        {"echo push | xargs git log", ALLOW},
        {"echo x | xargs git push", DENY},
    };
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        const struct row row = {push, FULL, "shell", X, lines[i].line, lines[i].want};
        check_rows(&row, 1);
    }
    /* A rule that allows is for the shell and its text, unless another speaks of the text. */
    static const char shell[] = "ask:shell:rm *;allow:shell:sh -c *";
    static const struct row rows[] = {
        {shell, ASK_ALL, "shell", X, "sh -c 'ls $X'", ALLOW},
        {shell, ASK_ALL, "shell", X, "sh -c 'ls; rm x'", ASK},
        {shell, ASK_ALL, "shell", X, "sh -c 'ls'; ls", ASK},
        {"allow:shell:ls", ASK_ALL, "shell", X, "sh -c 'ls'", ASK},
        {"", READ_ONLY, "shell", X, "sh -c 'ls'", DENY},
    };
    check_rows(rows, COUNT_OF(rows));
}

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

static void order_and_whose_rules_they_are_count(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"allow:shell:git status;deny:shell:git *", ASK_ALL, "shell", X, "git status", ALLOW},
        {"allow:shell:git status;deny:shell:git *", ASK_ALL, "shell", X, "git log", DENY},
        {"deny:shell:git *;allow:shell:git status", ASK_ALL, "shell", X, "git status", DENY},
        {"deny:shell:git push *;allow:shell:git *", ASK_ALL, "shell", X, "git p?sh", ASK},
        {"deny:*", FULL, "read", R, "a", DENY},
        {"ask:read", FULL, "read", R, "a", ASK},
        {"deny:mcp__fs__*", FULL, "mcp__fs__delete", F, NULL, DENY},
        {"deny:mcp__fs__*", FULL, "mcp__fsx__delete", F, NULL, ALLOW},
        {"allow:mcp__fs__read*", CONFINED, "mcp__fs__read_file", F, NULL, ALLOW},
        {"allow:mcp__fs__read*", CONFINED, "mcp__fs__write_file", F, NULL, ASK},
        {"allow:mcp__fs__read", CONFINED, "mcp__fs__re\xd0\xb0\x64", F, NULL, ASK},
        {"allow:shell", ASK_ALL, "SHELL", X, NULL, ASK},
        /* a pattern has nothing to be laid over */
        {"allow:mcp__fs__list:docs/*", CONFINED, "mcp__fs__list", F, NULL, ASK},
        {"deny:mcp__fs__list:docs/*", FULL, "mcp__fs__list", F, NULL, ASK},
        /* what no rule lifts */
        {"allow:*", READ_ONLY, "write", W, "a", DENY},
        {"allow:mcp__fs__put", READ_ONLY, "mcp__fs__put", R | W | F, NULL, DENY},
        /* a command writes nothing: the workspace is mounted read-only */
        {"allow:shell:git log *", READ_ONLY, "shell", X, "git log", ALLOW},
        {"allow:shell:git log *", READ_ONLY, "shell", X, "git log; ls", DENY},
        {"allow:shell:git log *", READ_ONLY, "shell", X, "git log > x", DENY},
        {"ask:shell:git log *", READ_ONLY, "shell", X, "git log", ASK},
        /* a project narrows, and allows only when it is trusted and the user says nothing */
        {"project allow:shell", ASK_ALL, "shell", X, "ls", ASK},
        {"trusted allow:shell", ASK_ALL, "shell", X, "ls", ALLOW},
        {"ask:shell;trusted allow:shell", FULL, "shell", X, "ls", ASK},
        {"deny:shell;trusted allow:shell", FULL, "shell", X, "ls", DENY},
        {"project deny:shell:rm *", FULL, "shell", X, "rm x", DENY},
        {"allow:shell;project ask:shell:rm *", FULL, "shell", X, "rm x", ASK},
        {"deny:shell:rm *;project ask:shell:rm *", FULL, "shell", X, "rm x", DENY},
        {"project allow:shell:git *;project deny:*", FULL, "shell", X, "git log", ALLOW},
        {"project allow:shell:git *;project deny:*", FULL, "shell", X, "ls", DENY},
        {"project deny:shell:rm *", FULL, "shell", X, "$X", ASK},
    };
    check_rows(rows, COUNT_OF(rows));
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

static void very_long_commands_are_not_trusted(void **state) {
    (void)state;
    static char text[PERMISSION_QUESTION_BYTES + 64];
    static const size_t lengths[] = {
        PERMISSION_QUESTION_BYTES + 1, (size_t)4 * PERMISSION_WORDS_MAX, PERMISSION_QUESTION_BYTES};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        memset(text, ' ', sizeof text);
        memcpy(text, "ls", 2);
        for (size_t at = 3; at < lengths[i]; at += 3) {
            text[at] = i == 2 ? ';' : 'a';
        }
        memcpy(text + lengths[i] - 6, ";rm x ", 6);
        text[lengths[i]] = '\0';
        const struct row allow = {"allow:shell:ls *", ASK_ALL, "shell", X, text, ASK};
        const struct row deny = {"deny:shell:mv *", FULL, "shell", X, text, ASK};
        check_rows(&allow, 1);
        check_rows(&deny, i == 2 ? 0 : 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies_decide_without_rules),
        cmocka_unit_test(allowing_rules_cover_only_what_is_certain),
        cmocka_unit_test(denying_rules_cover_what_may_be_meant),
        cmocka_unit_test(other_spellings_of_a_command_are_found),
        cmocka_unit_test(patterns_of_paths_are_for_calls_with_paths),
        cmocka_unit_test(what_may_not_be_read_is_hidden_from_all_tools),
        cmocka_unit_test(order_and_whose_rules_they_are_count),
        cmocka_unit_test(paths_and_urls_are_matched_as_they_are_meant),
        cmocka_unit_test(every_path_of_a_patch_counts),
        cmocka_unit_test(listed_hosts_are_not_asked_about),
        cmocka_unit_test(answers_add_narrow_rules),
        cmocka_unit_test(answers_silence_questions_and_nothing_else),
        cmocka_unit_test(rules_that_say_nothing_are_refused),
        cmocka_unit_test(globs_match_as_their_words_say),
        cmocka_unit_test(very_long_commands_are_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
