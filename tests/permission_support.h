/* What the tests of permissions share: rules and questions as rows of a table. */
#ifndef HEARTH_TESTS_PERMISSION_SUPPORT_H
#define HEARTH_TESTS_PERMISSION_SUPPORT_H

#include "runtime/permission.h"
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
#define READ_ONLY PERMISSION_READ_ONLY
#define ASK_ALL   PERMISSION_ASK
#define CONFINED  PERMISSION_WORKSPACE_WRITE
#define FULL      PERMISSION_FULL
#define ALLOW     PERMISSION_ALLOW
#define ASK       PERMISSION_QUESTION
#define DENY      PERMISSION_DENY

/* "ACTION:TOOL:PATTERN" parts separated by ';'; "project " and "trusted " in front say whose. */
struct rules {
    struct permission_rule rules[RULES_MAX];
    char texts[RULES_MAX][3][128];
    size_t count;
};

struct row {
    const char *rules;
    enum permission_policy policy;
    const char *tool;
    unsigned effects;
    const char *subject; /* of shell: the command; of fetch: the URL; else a path; null: none */
    enum permission_action want;
};

void rules_read(const char *text, struct rules *out);
struct permission_question question_of(const struct row *row, struct view *path);
void decide(const struct row *row, struct permission_verdict *verdict);
/* Prints each row whose verdict is another one, and fails then. */
void check_rows(const struct row *rows, size_t count);

#endif
