/* What a background job shares with the shell tool. Internal to tools/. Thread: that of tool_call.
 */
#ifndef HEARTH_TOOLS_TOOL_SHELL_H
#define HEARTH_TOOLS_TOOL_SHELL_H

#include "tool_internal.h"

#define TOOL_SHELL_ENVIRONMENT_MAX 64

/* The context's policy with what belongs to a command of the model: one pipe for both outputs, its
 * environment, the time that the running call has left. `environment` lives as long as the policy.
 * Expected errors: LIMIT. */
MUST_CHECK result tool_shell_policy(
    const struct tool_context *context,
    const char *environment[TOOL_SHELL_ENVIRONMENT_MAX],
    struct sandbox_policy *policy,
    struct error *error
);

#endif
