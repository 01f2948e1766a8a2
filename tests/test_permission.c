/* Permissions by table: policies, rules for commands and attacks on both kinds of them, whose rules count. */
#include "permission_support.h"

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

/* Each call of another agent is looked at by itself; what it changed comes in as a write. */
static void other_agents_ask_for_nothing_but_a_merge(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"", READ_ONLY, "spawn", 0, NULL, ALLOW},
        {"", ASK_ALL, "fork", 0, NULL, ALLOW},
        {"", READ_ONLY, "merge", TOOL_WRITES, NULL, DENY},
        {"", ASK_ALL, "merge", TOOL_WRITES, NULL, ASK},
        {"", CONFINED, "merge", TOOL_WRITES, NULL, ALLOW},
        {"allow:merge:", READ_ONLY, "merge", TOOL_WRITES, NULL, DENY},
        {"allow:merge:", ASK_ALL, "merge", TOOL_WRITES, NULL, ALLOW},
        {"deny:spawn:", FULL, "spawn", 0, NULL, DENY},
        {"ask:fork:*", FULL, "fork", 0, NULL, ASK},
        {"deny:*:secrets/**", FULL, "merge", TOOL_WRITES, NULL, ALLOW},
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
        cmocka_unit_test(other_agents_ask_for_nothing_but_a_merge),
        cmocka_unit_test(allowing_rules_cover_only_what_is_certain),
        cmocka_unit_test(denying_rules_cover_what_may_be_meant),
        cmocka_unit_test(other_spellings_of_a_command_are_found),
        cmocka_unit_test(order_and_whose_rules_they_are_count),
        cmocka_unit_test(very_long_commands_are_not_trusted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
