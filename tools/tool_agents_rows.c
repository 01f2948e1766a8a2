/* What a model is told of the tools about other agents; see tool_agents.c.
 *
 * Effects: another agent may do what this one may, and each of its calls is looked at by itself, so that
 * starting one does nothing that has to be asked about. A merge changes files.
 */
#include "tool_internal.h"

#define BRIEFS_PROPERTY                                                                            \
    "\"briefs\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"description\": "       \
    "\"what each one is to do, 1 to 32\"}"
#define NAMES_PROPERTY(description)                                                                \
    "\"names\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"description\": "        \
    "\"" description "\"}"
#define JOIN_PROPERTY                                                                              \
    "\"join\": {\"type\": \"string\", \"enum\": [\"all\", \"any\", \"passing\"], "                 \
    "\"description\": \"until all have ended (default), any one, or the first whose work passes "  \
    "verification\"}"
#define SHARE_PROPERTIES                                                                           \
    TYPED_PROPERTY("tokens", "integer", "budget of each, an equal part when left out")             \
    ", " TYPED_PROPERTY("time_ms", "integer", "time of each in milliseconds")
#define TIMEOUT_PROPERTY                                                                           \
    TYPED_PROPERTY("timeout", "integer", "milliseconds, as long as there is time when left out")

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
             ", " SHARE_PROPERTIES,
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
         OBJECT_SCHEMA(
             NAMES_PROPERTY("whom to wait for, all that you have started when left out")
             ", " JOIN_PROPERTY
             ", " TIMEOUT_PROPERTY,
             ""
         ),
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
         OBJECT_SCHEMA(
             BRIEFS_PROPERTY
             ", " TYPED_PROPERTY("count", "integer", "how many, 1 to 32, when all do the same")
             ", " JOIN_PROPERTY
             ", " SHARE_PROPERTIES,
             ""
         ),
         0,
         false},
    .run = tool_run_fork,
    .is_possible = is_possible,
};

const struct tool_row tool_row_receive = {
    .shown =
        {"receive",
         "Wait until another agent sends you a message.",
         OBJECT_SCHEMA(TIMEOUT_PROPERTY, ""),
         0,
         false},
    .run = tool_run_receive,
    .is_possible = is_possible,
};

const struct tool_row tool_row_cancel = {
    .shown =
        {"cancel",
         "End agents that you have started.",
         OBJECT_SCHEMA(NAMES_PROPERTY("whom to end"), "\"names\""),
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
         OBJECT_SCHEMA(STRING_PROPERTY("name", "the agent"), "\"name\""),
         TOOL_WRITES,
         false},
    .run = tool_run_merge,
    .is_possible = is_possible,
};
// clang-format on
