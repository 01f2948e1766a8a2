/* Whether a tool may be called: a policy, rules, and what the person has answered in this session.
 *
 * Pure: no file is looked at and nothing is asked. A shell command is split into its simple commands
 * first; whatever the splitter cannot read for sure makes an allowing rule not apply and a refusing or
 * asking one apply "perhaps", which is a question. The sandbox confines whatever is allowed: rules
 * decide what a person wants to see first, not what is safe. Thread: any; an object belongs to one
 * thread at a time.
 */
#ifndef HEARTH_RUNTIME_PERMISSION_H
#define HEARTH_RUNTIME_PERMISSION_H

#include "base/bytes.h"

#define PERMISSION_REASON_BYTES   320
#define PERMISSION_PARTS_MAX      64 /* simple commands of one command line */
#define PERMISSION_WORDS_MAX      512
#define PERMISSION_SESSION_MAX    256 /* rules added by answers */
#define PERMISSION_PATTERN_MAX    1024
#define PERMISSION_QUESTION_BYTES ((size_t)64 << 10) /* longer commands are not read */

/* From the narrowest to the widest. */
enum permission_policy {
    /* Tools that read. The host binds the workspace read-only as well (sandbox policy), so that what
     * a rule lets execute cannot write; no rule allows any other tool that writes. */
    PERMISSION_READ_ONLY,
    PERMISSION_ASK,             /* all but reading is asked about */
    PERMISSION_WORKSPACE_WRITE, /* reads, writes and executes, confined; the rest is asked about */
    PERMISSION_FULL             /* the policy asks nothing; confined all the same */
};
#define PERMISSION_POLICY_COUNT 4
/* "read-only", "ask", "workspace-write", "full" */
const char *permission_policy_name(enum permission_policy policy);
const char *permission_policy_text(enum permission_policy policy); /* a sentence, for a person */
bool permission_policy_parse(struct view text, enum permission_policy *out);

/* From the widest to the narrowest. */
enum permission_action { PERMISSION_ALLOW, PERMISSION_QUESTION, PERMISSION_DENY };
/* "allow", "ask", "deny" */
const char *permission_action_name(enum permission_action action);
bool permission_action_parse(struct view text, enum permission_action *out);

/* `tool` is a glob over the tool's name. `pattern` is empty or "*" (any call of the tool), or
 *  - of a command: words, each a glob over one word ("\ " is a blank in one); a last word "*" stands
 *    for any further words, which a rule that asks or denies covers anyway;
 *  - of a path: a glob over the path below the workspace; one that asks or denies covers all below a
 *    directory that it fits, and rules for `read` hold for each tool that shows a file;
 *  - of a URL: a glob over the whole of it.
 * In a glob * is any text, ? one character, \ takes the next one as it is; in paths and URLs * and ?
 * stop at '/', ** does not. */
struct permission_rule {
    const char *tool;
    const char *pattern;
    enum permission_action action;
    /* Of a project's file: it can only narrow what the user's rules and the policy give, unless the
     * project is trusted: then its `allow` counts where no rule of the user's applies. */
    bool is_project;
    bool is_trusted;
    const char *origin; /* where it stands, for the reason: "FILE:LINE"; null: not said */
};

/* Expected errors: INVALID_INPUT (says what is wrong with tool or pattern). */
MUST_CHECK result permission_rule_check(const struct permission_rule *rule, struct error *error);

struct permission;

struct permission_options {
    enum permission_policy policy;
    const struct permission_rule *rules; /* in order, first match; borrowed until destroy */
    size_t rule_count;
};

/* The rules are ones that permission_rule_check accepts. Expected errors: MEMORY. */
MUST_CHECK result permission_create(
    struct permission **out, const struct permission_options *options, struct error *error
);
void permission_destroy(struct permission *permission);
void permission_cleanup(struct permission **permission);

/* Everything is borrowed for the call. */
struct permission_question {
    struct view tool;         /* our name, whatever the dialect calls it: "shell", "mcp__S__T" */
    unsigned effects;         /* enum tool_effect (tools/tool.h) */
    bool has_command;         /* the tool runs a command line: */
    struct view command;      /* as for /bin/sh -c */
    const struct view *paths; /* [path_count] files that are named, as the model wrote them */
    size_t path_count;
    struct view url;        /* of a fetch, else empty */
    bool network_is_listed; /* every host is in the allow-list: no question by the policy */
};

enum permission_by { PERMISSION_BY_POLICY, PERMISSION_BY_RULE, PERMISSION_BY_SESSION };
const char *permission_by_name(enum permission_by by); /* "policy", "rule", "person" */

struct permission_verdict {
    enum permission_action action;
    enum permission_by by;
    size_t rule; /* index into the options' rules with BY_RULE, of the session's with BY_SESSION */
    char reason[PERMISSION_REASON_BYTES]; /* one sentence, for model and person */
};

/* Always fills `out`. */
void permission_decide(
    const struct permission *permission,
    const struct permission_question *question,
    struct permission_verdict *out
);

/* Whether a rule keeps a tool that lists or searches from showing this file, which the call does not
 * name: one that denies or asks, of the tool itself or of `read`. */
bool permission_hides(const struct permission *permission, struct view tool, struct view path);

/* The rule that an answer "always" should add for such a question, narrow enough to be shown in one
 * line: appends its pattern (empty: any call of the tool). False: none can be made (the command cannot
 * be read for sure, or runs other commands), so that "always" is not offered. Expected errors of the
 * result: MEMORY, LIMIT. */
MUST_CHECK result permission_suggest(
    const struct permission_question *question,
    bool *has_rule,
    struct buffer *pattern,
    struct error *error
);
/* Answers "always": later questions that tool (an exact name) and pattern cover are allowed instead of
 * asked. A rule that denies still denies. Expected errors: INVALID_INPUT, LIMIT, MEMORY. */
MUST_CHECK result permission_add_session(
    struct permission *permission, struct view tool, struct view pattern, struct error *error
);

/* Those that were added, in order, borrowed until the next; false: there are no more. */
bool permission_session_at(
    const struct permission *permission, size_t index, struct permission_rule *out
);

/* Changes the policy of the questions that follow. */
void permission_set_policy(struct permission *permission, enum permission_policy policy);
enum permission_policy permission_get_policy(const struct permission *permission);

#endif
