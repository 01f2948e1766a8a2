/* Any bytes as a command line, the first line apart, which is a pattern: the splitter stays inside its
 * bounds, and a rule that allows never covers what a rule with the same pattern would not deny. */
#include "runtime/permission_match.h"
#include "tools/tool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum permission_action
decide(const struct permission_rule *rule, enum permission_policy policy, struct view command) {
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    const struct permission_options options = {policy, rule, 1};
    const struct permission_question question = {
        .tool = view_of_text("shell"),
        .effects = TOOL_EXECUTES,
        .has_command = true,
        .command = command,
    };
    struct permission_verdict verdict;
    ASSERT(is_ok(permission_create(&permission, &options, NULL)));
    permission_decide(permission, &question, &verdict);
    ASSERT(utf8_is_valid(view_of_text(verdict.reason)));
    return verdict.action;
}

/* The same bytes as a path: what a rule that allows covers, one that denies keeps from being found. */
static void check_path(struct permission_rule rule, struct view path) {
    const struct permission_question question = {
        .tool = view_of_text("read"), .effects = TOOL_READS, .paths = &path, .path_count = 1};
    const struct permission_options options = {PERMISSION_FULL, &rule, 1};
    CLEANUP(permission_cleanup) struct permission *permission = NULL;
    struct permission_verdict verdict;
    rule.tool = "read";
    rule.action = PERMISSION_ALLOW;
    ASSERT(is_ok(permission_create(&permission, &options, NULL)));
    permission_decide(permission, &question, &verdict);
    ASSERT(!permission_hides(permission, view_of_text("grep"), path));
    rule.action = PERMISSION_DENY;
    bool is_covered = verdict.by == PERMISSION_BY_RULE;
    ASSERT(!is_covered || permission_hides(permission, view_of_text("grep"), path));
}

/* What "always" adds covers the command that it was made for. */
static void check_suggestion(struct view command) {
    CLEANUP(buffer_deinit) struct buffer pattern;
    const struct permission_question question = {
        .tool = view_of_text("shell"), .has_command = true, .command = command};
    bool has_rule = false;
    buffer_init(&pattern, BUFFER_CEILING_DEFAULT);
    ASSERT(is_ok(permission_suggest(&question, &has_rule, &pattern, NULL)));
    const struct permission_rule rule = {
        .tool = "shell", .pattern = buffer_text(&pattern), .action = PERMISSION_ALLOW};
    if (has_rule && is_ok(permission_rule_check(&rule, NULL))) {
        ASSERT(decide(&rule, PERMISSION_ASK, command) == PERMISSION_ALLOW);
    }
}

static void check_line(struct view command) {
    CLEANUP(shell_line_deinit) struct shell_line line = {0};
    ASSERT(is_ok(shell_split(command, &line, NULL)));
    ASSERT(line.part_count <= PERMISSION_PARTS_MAX && line.word_count <= PERMISSION_WORDS_MAX);
    for (size_t i = 0; i < line.part_count; i++) {
        ASSERT(line.parts[i].word_at + line.parts[i].word_count <= line.word_count);
    }
    for (size_t i = 0; i < line.word_count; i++) {
        struct view word = line.words[i].text;
        ASSERT(word.data >= (const unsigned char *)line.text);
        ASSERT(word.data + word.length <= (const unsigned char *)line.text + line.text_room);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char pattern[PERMISSION_PATTERN_MAX + 1] = "";
    struct view all = view_of(data, size);
    size_t end = size > 0 ? view_find(all, view_of_text("\n"), 0) : SIZE_MAX;
    size_t length = end == SIZE_MAX ? 0 : end;
    struct view command = view_slice(all, end == SIZE_MAX ? 0 : end + 1, size);
    check_line(command);
    check_suggestion(command);
    if (length > PERMISSION_PATTERN_MAX) {
        return 0;
    }
    (void)snprintf(pattern, sizeof pattern, "%.*s", (int)length, (const char *)data);
    struct permission_rule rule = {.tool = "shell", .pattern = pattern, .action = PERMISSION_ALLOW};
    if (is_failed(permission_rule_check(&rule, NULL))) {
        return 0;
    }
    check_path(rule, command);
    enum permission_action allowed = decide(&rule, PERMISSION_ASK, command);
    rule.action = PERMISSION_DENY;
    enum permission_action denied = decide(&rule, PERMISSION_FULL, command);
    ASSERT(allowed != PERMISSION_ALLOW || denied == PERMISSION_DENY);
    return 0;
}
