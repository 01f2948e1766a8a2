/* What a model is told of the tools about other agents; see tool_agents.c.
 *
 * Effects: another agent may do what this one may, and each of its calls is looked at by itself, so that
 * starting one does nothing that has to be asked about. A merge changes files.
 */
#include "tool_agents_schema.h"

static bool is_possible(const struct tool_context_options *options) {
    return options->agents != NULL;
}

// A property a line.
// clang-format off
const struct tool_row tool_row_spawn = {
    .shown =
        {"spawn",
         "Start another agent on a task of its own, in a copy of the workspace; it works while you go "
         "on. The answer is its name. Wait for it before you end: what still works then is cancelled.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("task", "what to do and what to report, in full: it sees nothing else")
             ", " STRING_PROPERTY("name", "how you call it")
             ", " AGENTS_SHARE_PROPERTIES,
             "\"task\""
         ),
         0,
         false},
    .run = tool_run_spawn,
    .is_possible = is_possible,
};

const struct tool_row tool_row_message = {
    .shown =
        {"message",
         "Send a message to an agent; it reads it before its next step.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("name", "the agent, or parent: the one that started you")
             ", " STRING_PROPERTY("message", "the text"),
             "\"name\", \"message\""
         ),
         0,
         false},
    .run = tool_run_message,
    .is_possible = is_possible,
};

const struct tool_row tool_row_wait = {
    .shown =
        {"wait",
         "Wait until agents have ended, and get their results.",
         AGENTS_WAIT_SCHEMA,
         0,
         false},
    .run = tool_run_wait,
    .is_possible = is_possible,
};

const struct tool_row tool_row_fork = {
    .shown =
        {"fork",
         "Split into several agents that all know this conversation, each in a copy of the workspace, "
         "and wait for their results. Must be the only call of its step.",
         AGENTS_FORK_SCHEMA,
         0,
         false},
    .run = tool_run_fork,
    .is_possible = is_possible,
};

const struct tool_row tool_row_receive = {
    .shown =
        {"receive",
         "Wait until another agent sends you a message.",
         AGENTS_RECEIVE_SCHEMA,
         0,
         false},
    .run = tool_run_receive,
    .is_possible = is_possible,
};

const struct tool_row tool_row_cancel = {
    .shown =
        {"cancel",
         "End agents that you have started.",
         AGENTS_CANCEL_SCHEMA,
         0,
         false},
    .run = tool_run_cancel,
    .is_possible = is_possible,
};

const struct tool_row tool_row_merge = {
    .shown =
        {"merge",
         "Take over what an agent that you started and that has ended changed in its copy of the "
         "workspace. Nothing is overwritten: conflicts are shown.",
         AGENTS_MERGE_SCHEMA,
         TOOL_WRITES,
         false},
    .run = tool_run_merge,
    .is_possible = is_possible,
};
// clang-format on
