/* Commands of the person that only tell, at any time: status, budget, permissions. See loop_internal.h. */
#include "loop_internal.h"

#include <inttypes.h>
#include <stdarg.h>

PRINTF_LIKE(2, 3)
static void say(struct run *run, const char *format, ...) {
    char text[640];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut */
    size_t bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    struct view shown = view_of(text, bytes);
    shown.length = utf8_valid_prefix(shown);
    struct run_event note = {.type = RUN_NOTE, .text = shown};
    run_show(run, &note);
}

static void show_budget(struct run *run) {
    run_status_update(run);
    const struct run_status *status = &run->status;
    char line[400];
    size_t used = 0;
    int length = snprintf(
        line,
        sizeof line,
        "context %d of %d tokens; written %" PRId64,
        status->context_tokens,
        status->context_max,
        status->tokens_sampled
    );
    used += length > 0 ? (size_t)length : 0;
    if (status->tokens_max > 0) {
        length = snprintf(line + used, sizeof line - used, " of %" PRId64, status->tokens_max);
        used += length > 0 ? (size_t)length : 0;
    }
    length = snprintf(line + used, sizeof line - used, "; calls %d", status->calls);
    used += length > 0 ? (size_t)length : 0;
    if (status->calls_max > 0) {
        length = snprintf(line + used, sizeof line - used, " of %d", status->calls_max);
        used += length > 0 ? (size_t)length : 0;
    }
    if (status->time_left_ms >= 0) {
        length = snprintf(
            line + used, sizeof line - used, "; %" PRId64 " s left", status->time_left_ms / 1000
        );
        used += length > 0 ? (size_t)length : 0;
    }
    ASSERT(used < sizeof line); /* eight numbers */
    say(run, "%s", line);
}

static void show_status(struct run *run) {
    const struct run_options *options = run->options;
    const char *id = run->recorder.session.text[0] != '\0' ? run->recorder.session.text
                     : run->resume != NULL                 ? run->resume->session.text
                                                           : "not begun";
    run_status_update(run);
    const struct run_status *status = &run->status;
    say(run, "session %s, turn %d of %d", id, status->turn, status->turns_max);
    say(run, "workspace %.*s", VIEW_ARGUMENTS(options->begin.workspace));
    say(run, "model %.*s (%s)", VIEW_ARGUMENTS(options->begin.model), options->engine_info.backend);
    say(run,
        "effort %d; %zu tools; policy %s",
        status->effort,
        run->declared.tool_count,
        options->permission != NULL
            ? permission_policy_name(permission_get_policy(options->permission))
            : "none");
    show_budget(run);
}

/* In the order in which they are looked at. */
static void show_permissions(struct run *run) {
    const struct run_options *options = run->options;
    if (options->permission == NULL) {
        say(run, "every call may run");
        return;
    }
    enum permission_policy policy = permission_get_policy(options->permission);
    say(run, "policy %s: %s", permission_policy_name(policy), permission_policy_text(policy));
    for (size_t i = 0; i < options->rule_count; i++) {
        const struct permission_rule *rule = &options->rules[i];
        say(run,
            "%s %s%s%s%s%s%s",
            permission_action_name(rule->action),
            rule->tool,
            rule->pattern[0] != '\0' ? " " : "",
            rule->pattern,
            rule->origin != NULL ? " (" : "",
            rule->origin != NULL ? rule->origin : "",
            rule->origin != NULL ? ")" : "");
    }
    struct permission_rule rule;
    for (size_t i = 0; permission_session_at(options->permission, i, &rule); i++) {
        bool is_any = rule.pattern[0] == '\0';
        say(run, "allow %s %s (always, in this session)", rule.tool, is_any ? "*" : rule.pattern);
    }
}

bool run_tell(struct run *run, enum run_command command) {
    if (command == RUN_COMMAND_BUDGET) {
        show_budget(run);
    } else if (command == RUN_COMMAND_STATUS) {
        show_status(run);
    } else if (command == RUN_COMMAND_PERMISSIONS) {
        show_permissions(run);
    } else {
        return false;
    }
    return true;
}
