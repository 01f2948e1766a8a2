/* Rules in order, then the policy; the strictest part of a command decides for all of it. */
#include "permission.h"

#include "permission_match.h"
#include "permission_words.h"
#include "tools/tool.h"

#include <stdarg.h>

struct session_rule {
    char *tool;
    char *pattern;
};

struct permission {
    enum permission_policy policy;
    const struct permission_rule *rules;
    size_t rule_count;
    struct session_rule session[PERMISSION_SESSION_MAX];
    size_t session_count;
};

static const char *const policy_names[] = {"read-only", "ask", "workspace-write", "full"};
static const char *const action_names[] = {"allow", "ask", "deny"};

const char *permission_policy_text(enum permission_policy policy) {
    static const char *const texts[] = {
        "tools only read",
        "all but reading is asked about",
        "reading, writing and commands are allowed, confined; the rest is asked about",
        "nothing is asked; commands are confined all the same",
    };
    return texts[policy];
}

/* ---- words ---------------------------------------------------------------------------------- */

const char *permission_policy_name(enum permission_policy policy) {
    return policy_names[policy];
}

bool permission_policy_parse(struct view text, enum permission_policy *out) {
    for (size_t i = 0; i < COUNT_OF(policy_names); i++) {
        if (view_equals_text(text, policy_names[i])) {
            *out = (enum permission_policy)i;
            return true;
        }
    }
    return false;
}

const char *permission_action_name(enum permission_action action) {
    return action_names[action];
}

bool permission_action_parse(struct view text, enum permission_action *out) {
    for (size_t i = 0; i < COUNT_OF(action_names); i++) {
        if (view_equals_text(text, action_names[i])) {
            *out = (enum permission_action)i;
            return true;
        }
    }
    return false;
}

const char *permission_by_name(enum permission_by by) {
    static const char *const names[] = {"policy", "rule", "person"};
    return names[by];
}

/* ---- rules ---------------------------------------------------------------------------------- */

static result check_glob(const char *text, const char *what, struct error *error) {
    struct view glob = view_of_text(text);
    if (glob.length > PERMISSION_PATTERN_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "%s of %zu bytes, at most %d are taken",
            what,
            glob.length,
            PERMISSION_PATTERN_MAX
        );
    }
    if (!utf8_is_valid(glob)) {
        FAIL(error, INVALID_INPUT, "%s is not UTF-8", what);
    }
    for (size_t i = 0; i < glob.length; i++) {
        if (glob.data[i] < 0x20 || glob.data[i] == 0x7F) {
            FAIL(error, INVALID_INPUT, "%s has a control character", what);
        }
        if (glob.data[i] == '\\' && ++i == glob.length) {
            FAIL(error, INVALID_INPUT, "%s ends with a backslash", what);
        }
    }
    return OK;
}

result permission_rule_check(const struct permission_rule *rule, struct error *error) {
    if (rule->tool[0] == '\0') {
        FAIL(error, INVALID_INPUT, "the tool's name is empty");
    }
    TRY(check_glob(rule->tool, "the tool", error));
    TRY(check_glob(rule->pattern, "the pattern", error));
    const char *pattern = rule->pattern;
    if (pattern[0] != '\0' && strspn(pattern, " ") == strlen(pattern)) {
        FAIL(error, INVALID_INPUT, "the pattern is blank");
    }
    return OK;
}

result permission_create(
    struct permission **out, const struct permission_options *options, struct error *error
) {
    struct permission *permission = calloc(1, sizeof *permission);
    if (permission == NULL) {
        FAIL(error, MEMORY, "no memory for permissions");
    }
    permission->policy = options->policy;
    permission->rules = options->rules;
    permission->rule_count = options->rule_count;
    *out = permission;
    return OK;
}

void permission_destroy(struct permission *permission) {
    if (permission == NULL) {
        return;
    }
    for (size_t i = 0; i < permission->session_count; i++) {
        free(permission->session[i].tool);
        free(permission->session[i].pattern);
    }
    free(permission);
}

void permission_cleanup(struct permission **permission) {
    permission_destroy(*permission);
    *permission = NULL;
}

void permission_set_policy(struct permission *permission, enum permission_policy policy) {
    permission->policy = policy;
}

enum permission_policy permission_get_policy(const struct permission *permission) {
    return permission->policy;
}

result permission_add_session(
    struct permission *permission, struct view tool, struct view pattern, struct error *error
) {
    CLEANUP(free_cleanup) char *tool_copy = strndup((const char *)tool.data, tool.length);
    CLEANUP(free_cleanup)
    char *pattern_copy =
        strndup(pattern.length > 0 ? (const char *)pattern.data : "", pattern.length);
    if (tool_copy == NULL || pattern_copy == NULL) {
        FAIL(error, MEMORY, "no memory for a rule");
    }
    const struct permission_rule rule = {.tool = tool_copy, .pattern = pattern_copy};
    TRY(permission_rule_check(&rule, error));
    if (permission->session_count == PERMISSION_SESSION_MAX) {
        FAIL(error, LIMIT, "more than %d rules in a session", PERMISSION_SESSION_MAX);
    }
    permission->session[permission->session_count++] =
        (struct session_rule){.tool = TAKE(tool_copy), .pattern = TAKE(pattern_copy)};
    return OK;
}

bool permission_session_at(
    const struct permission *permission, size_t index, struct permission_rule *out
) {
    if (index >= permission->session_count) {
        return false;
    }
    const struct session_rule *rule = &permission->session[index];
    *out = (struct permission_rule
    ){.tool = rule->tool, .pattern = rule->pattern, .action = PERMISSION_ALLOW};
    return true;
}

/* ---- one part of a question ----------------------------------------------------------------- */

/* What is decided about: a simple command, a path, a URL, or a call without any of these. */
struct subject {
    const struct permission_question *question;
    struct view tool;              /* whose rules count */
    bool only_rules;               /* what no rule speaks of is allowed */
    const struct shell_line *line; /* null: no command */
    const struct shell_part *part;
    const struct named_path *path;
};

/* A rule for all tools is of files and addresses, unless its pattern is a command's words: only then
 * does what cannot be read of a command make it doubtful. */
static bool may_be_doubted(const struct permission_rule *rule, const struct subject *subject) {
    bool is_for_all = rule->tool[strspn(rule->tool, "*")] == '\0';
    if (subject->line != NULL) {
        return !is_for_all || strchr(rule->pattern, ' ') != NULL;
    }
    bool is_laid_over = subject->path != NULL || subject->question->url.length > 0;
    return is_laid_over || !is_for_all;
}

static enum match match_pattern(const char *text, const struct subject *subject, bool is_strict) {
    struct view pattern = view_of_text(text);
    const struct permission_question *question = subject->question;
    if (pattern.length == 0 || view_equals_text(pattern, "*") || view_equals_text(pattern, "**")) {
        return MATCH_YES;
    }
    if (subject->part != NULL) {
        return match_command(pattern, subject->line, subject->part, is_strict);
    }
    if (subject->path != NULL) {
        return match_path(pattern, subject->path, is_strict);
    }
    if (question->url.length > 0) {
        return match_url(pattern, question->url, is_strict);
    }
    /* Nothing that a pattern could be laid over. Of a command that was not read, or a server's tool,
     * that means nothing; any other call names no file. */
    bool is_unread = subject->line != NULL && subject->line->is_open;
    bool is_foreign = (question->effects & TOOL_FOREIGN) != 0;
    return !is_strict && (is_unread || is_foreign) ? MATCH_PERHAPS : MATCH_NO;
}

struct finding {
    bool is_found;
    enum permission_action action;
    size_t rule;
    bool is_perhaps; /* an asking or denying rule before it may apply: rule `doubtful` */
    size_t doubtful;
};

/* The first rule of the user's, or of the project's, that applies. */
static struct finding
find_rule(const struct permission *permission, const struct subject *subject, bool is_project) {
    struct finding found = {0};
    for (size_t i = 0; i < permission->rule_count; i++) {
        const struct permission_rule *rule = &permission->rules[i];
        bool allows = rule->action == PERMISSION_ALLOW;
        if (rule->is_project != is_project ||
            !glob_matches(view_of_text(rule->tool), subject->tool, false)) {
            continue;
        }
        enum match match = match_pattern(rule->pattern, subject, allows);
        if (match == MATCH_YES) {
            found.is_found = true;
            found.action = rule->action;
            found.rule = i;
            return found;
        }
        if (match == MATCH_PERHAPS && !found.is_perhaps && may_be_doubted(rule, subject)) {
            found.is_perhaps = true;
            found.doubtful = i;
        }
    }
    return found;
}

static bool
is_in_session(const struct permission *permission, const struct subject *subject, size_t *index) {
    for (size_t i = 0; i < permission->session_count; i++) {
        const struct session_rule *rule = &permission->session[i];
        if (view_equals_text(subject->question->tool, rule->tool) &&
            match_pattern(rule->pattern, subject, true) == MATCH_YES) {
            *index = i;
            return true;
        }
    }
    return false;
}

/* ---- reasons -------------------------------------------------------------------------------- */

static void set_reason(struct permission_verdict *verdict, const char *format, ...)
    PRINTF_LIKE(2, 3);

static void set_reason(struct permission_verdict *verdict, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(verdict->reason, sizeof verdict->reason, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    size_t end = strlen(verdict->reason);
    verdict->reason[utf8_valid_prefix(view_of(verdict->reason, end))] = '\0';
}

static void reason_of_rule(
    const struct permission *permission, size_t index, struct permission_verdict *verdict
) {
    static const char *const verbs[] = {"is allowed", "has to be asked for", "is denied"};
    const struct permission_rule *rule = &permission->rules[index];
    set_reason(
        verdict,
        "%s by the rule %.60s%s%.100s%s%.100s%s",
        verbs[rule->action],
        rule->tool,
        rule->pattern[0] != '\0' ? " " : "",
        rule->pattern,
        rule->origin != NULL ? " (" : "",
        rule->origin != NULL ? rule->origin : "",
        rule->origin != NULL ? ")" : ""
    );
}

/* ---- the decision --------------------------------------------------------------------------- */

static void decide_by_policy(
    const struct permission *permission,
    const struct subject *subject,
    struct permission_verdict *out
) {
    const unsigned confined = TOOL_READS | TOOL_WRITES | TOOL_EXECUTES;
    const char *name = policy_names[permission->policy];
    const struct permission_question *question = subject->question;
    unsigned effects = question->effects & ~(unsigned)TOOL_ENDS;
    /* Of a server's tool that is what the user has said of it. */
    bool only_reads =
        (effects & ~(unsigned)TOOL_READS) == 0 || effects == (unsigned)(TOOL_READS | TOOL_FOREIGN);
    bool is_confined =
        (effects & ~confined) == 0 || (question->url.length > 0 && question->network_is_listed);
    *out = (struct permission_verdict){.by = PERMISSION_BY_POLICY};
    if (permission->policy == PERMISSION_FULL || only_reads || subject->only_rules ||
        (permission->policy == PERMISSION_WORKSPACE_WRITE && is_confined)) {
        out->action = PERMISSION_ALLOW;
        set_reason(out, "is allowed by the policy %s", name);
    } else if (permission->policy == PERMISSION_READ_ONLY) {
        out->action = PERMISSION_DENY;
        set_reason(out, "is denied by the policy %s, under which tools only read", name);
    } else {
        out->action = PERMISSION_QUESTION;
        set_reason(out, "has to be asked for under the policy %s", name);
    }
}

static void
take_rule(const struct permission *permission, size_t rule, struct permission_verdict *out) {
    *out = (struct permission_verdict
    ){.action = permission->rules[rule].action, .by = PERMISSION_BY_RULE, .rule = rule};
    reason_of_rule(permission, rule, out);
}

/* A rule that may apply makes a question of what would be allowed. */
static void take_doubt(
    const struct permission *permission,
    const struct subject *subject,
    const struct finding *found,
    struct permission_verdict *out
) {
    const struct permission_rule *rule = &permission->rules[found->doubtful];
    const struct shell_line *line = subject->line;
    const char *doubt = line == NULL ? NULL : line->doubt != NULL ? line->doubt : line->inner_doubt;
    if (!found->is_perhaps || out->action != PERMISSION_ALLOW) {
        return;
    }
    *out = (struct permission_verdict
    ){.action = PERMISSION_QUESTION, .by = PERMISSION_BY_RULE, .rule = found->doubtful};
    set_reason(
        out,
        "has to be asked for: the rule %.60s %.100s cannot be checked for sure%s%.60s",
        rule->tool,
        rule->pattern,
        doubt != NULL ? ", the command has " : "",
        doubt != NULL ? doubt : ""
    );
}

static void decide_subject(
    const struct permission *permission,
    const struct subject *subject,
    struct permission_verdict *out
) {
    struct finding user = find_rule(permission, subject, false);
    struct finding project = find_rule(permission, subject, true);
    size_t index = 0;
    if (user.is_found) {
        take_rule(permission, user.rule, out);
    } else if (project.is_found && project.action == PERMISSION_ALLOW &&
               permission->rules[project.rule].is_trusted) {
        take_rule(permission, project.rule, out);
    } else {
        decide_by_policy(permission, subject, out);
    }
    if (project.is_found && project.action > out->action) {
        take_rule(permission, project.rule, out);
    }
    take_doubt(permission, subject, &user, out);
    take_doubt(permission, subject, &project, out);
    if (out->action == PERMISSION_QUESTION && is_in_session(permission, subject, &index)) {
        *out = (struct permission_verdict
        ){.action = PERMISSION_ALLOW, .by = PERMISSION_BY_SESSION, .rule = index};
        set_reason(out, "is allowed by an answer of this session");
    }
    /* No rule lifts that; a command is held by the workspace, which is mounted read-only. */
    if (permission->policy == PERMISSION_READ_ONLY && out->action != PERMISSION_DENY &&
        !subject->only_rules && !subject->question->has_command &&
        (subject->question->effects & TOOL_WRITES) != 0) {
        decide_by_policy(permission, subject, out);
    }
}

/* The strictest of several; the first of equals. */
static void keep_strictest(
    const struct permission *permission,
    const struct subject *subject,
    bool *is_first,
    struct permission_verdict *out
) {
    struct permission_verdict verdict;
    decide_subject(permission, subject, &verdict);
    if (*is_first || verdict.action > out->action) {
        *out = verdict;
    }
    *is_first = false;
}

/* A text in the line was given to a shell: what it runs is covered by what allows the shell, unless a
 * rule speaks of it. */
static void decide_command(
    const struct permission *permission,
    struct subject subject,
    bool *is_first,
    struct permission_verdict *out
) {
    struct error ignored;
    CLEANUP(shell_line_deinit) struct shell_line line = {0};
    if (is_failed(shell_split(subject.question->command, &line, &ignored))) {
        line.doubt = "more text than there is memory for";
        line.is_open = true;
    }
    subject.line = &line;
    for (size_t i = 0; i < line.part_count; i++) {
        subject.part = &line.parts[i];
        subject.only_rules = subject.part->depth > 0;
        keep_strictest(permission, &subject, is_first, out);
    }
    if (*is_first) {
        keep_strictest(permission, &subject, is_first, out);
    }
}

/* What may not be read may not be shown by another tool either. */
static void decide_path(
    const struct permission *permission,
    struct subject subject,
    struct view path,
    bool *is_first,
    struct permission_verdict *out
) {
    struct named_path named;
    named.given = path;
    named.is_inside = path_normalise(path, named.clean);
    if (!named.is_inside) {
        named.clean[0] = '\0';
    }
    subject.path = &named;
    keep_strictest(permission, &subject, is_first, out);
    if ((subject.question->effects & TOOL_READS) != 0 && !view_equals_text(subject.tool, "read")) {
        subject.tool = view_of_text("read");
        subject.only_rules = true;
        keep_strictest(permission, &subject, is_first, out);
    }
}

void permission_decide(
    const struct permission *permission,
    const struct permission_question *question,
    struct permission_verdict *out
) {
    struct subject subject = {.question = question, .tool = question->tool};
    bool is_first = true;
    if (question->has_command) {
        decide_command(permission, subject, &is_first, out);
    }
    for (size_t i = 0; i < question->path_count; i++) {
        decide_path(permission, subject, question->paths[i], &is_first, out);
    }
    if (is_first) {
        keep_strictest(permission, &subject, &is_first, out);
    }
    ASSERT(out->reason[0] != '\0');
}

bool permission_hides(const struct permission *permission, struct view tool, struct view path) {
    const struct permission_question question = {.tool = tool, .effects = TOOL_READS};
    struct permission_verdict verdict = {.action = PERMISSION_ALLOW};
    bool is_first = true;
    if (permission->rule_count > 0) {
        const struct subject subject = {.question = &question, .tool = tool, .only_rules = true};
        decide_path(permission, subject, path, &is_first, &verdict);
    }
    return verdict.action != PERMISSION_ALLOW;
}

/* ---- what "always" adds --------------------------------------------------------------------- */

/* The text as a glob that fits it alone. */
static result append_escaped(struct buffer *out, struct view text, struct error *error) {
    for (size_t i = 0; i < text.length; i++) {
        if (strchr("*?\\ ", text.data[i]) != NULL) {
            TRY(buffer_append_byte(out, '\\', error));
        }
        TRY(buffer_append_byte(out, text.data[i], error));
    }
    return OK;
}

/* "status" of "git status": a word that names what a command does. */
static bool is_verb(struct view word) {
    for (size_t i = 0; i < word.length; i++) {
        bool is_letter = word.data[i] >= 'a' && word.data[i] <= 'z';
        if (!is_letter && !(i > 0 && word.data[i] == '-')) {
            return false;
        }
    }
    return word.length > 1;
}

static result
suggest_command(struct view command, bool *has_rule, struct buffer *pattern, struct error *error) {
    CLEANUP(shell_line_deinit) struct shell_line line = {0};
    TRY(shell_split(command, &line, error));
    const struct shell_part *part = &line.parts[0];
    bool is_single = line.doubt == NULL && line.part_count == 1 && part->word_count > 0 &&
                     !part->is_assigned && !part->is_redirected;
    if (!is_single || command_runs_others((struct command){line.words, part->word_count, false})) {
        return OK;
    }
    bool has_verb = part->word_count >= 2 && is_verb(line.words[1].text);
    size_t count = has_verb ? 2 : part->word_count;
    for (size_t i = 0; i < count; i++) {
        const struct shell_word *word = &line.words[i];
        if (word->text.length == 0 || word->is_expanded) {
            pattern->length = 0; /* no pattern could say that */
            return OK;
        }
        TRY(i > 0 ? buffer_append_byte(pattern, ' ', error) : OK);
        TRY(append_escaped(pattern, word->text, error));
    }
    *has_rule = true;
    return has_verb ? buffer_append_text(pattern, " *", error) : OK;
}

/* The directory that a path lies in, with everything below it. */
static result
suggest_path(struct view path, bool *has_rule, struct buffer *pattern, struct error *error) {
    char clean[PERMISSION_PATH_MAX + 1];
    if (!path_normalise(path, clean)) {
        return OK;
    }
    char *slash = strrchr(clean, '/');
    *has_rule = true;
    if (slash == NULL) {
        return append_escaped(pattern, view_of_text(clean), error);
    }
    TRY(append_escaped(pattern, view_of(clean, (size_t)(slash - clean)), error));
    return buffer_append_text(pattern, "/**", error);
}

/* The host of a URL, whatever is asked of it. */
static result
suggest_url(struct view url, bool *has_rule, struct buffer *pattern, struct error *error) {
    size_t scheme = view_find(url, view_of_text("://"), 0);
    size_t slash = scheme == SIZE_MAX ? SIZE_MAX : view_find(url, view_of_text("/"), scheme + 3);
    if (slash == SIZE_MAX) {
        return OK;
    }
    *has_rule = true;
    TRY(append_escaped(pattern, view_slice(url, 0, slash), error));
    return buffer_append_text(pattern, "/**", error);
}

/* Any call of the tool, where nothing tells them apart; not of one whose files are not known. */
static bool can_be_named_alone(const struct permission_question *question) {
    const unsigned changes = TOOL_WRITES | TOOL_EXECUTES;
    return question->path_count == 0 &&
           ((question->effects & TOOL_FOREIGN) != 0 || (question->effects & changes) == 0);
}

result permission_suggest(
    const struct permission_question *question,
    bool *has_rule,
    struct buffer *pattern,
    struct error *error
) {
    *has_rule = false;
    buffer_clear(pattern);
    if (question->has_command) {
        TRY(suggest_command(question->command, has_rule, pattern, error));
    } else if (question->path_count == 1) {
        TRY(suggest_path(question->paths[0], has_rule, pattern, error));
    } else if (question->url.length > 0) {
        TRY(suggest_url(question->url, has_rule, pattern, error));
    } else {
        *has_rule = can_be_named_alone(question);
    }
    const struct permission_rule rule = {.tool = "*", .pattern = buffer_text(pattern)};
    *has_rule = *has_rule && is_ok(permission_rule_check(&rule, NULL)); /* one line, not too long */
    return OK;
}
