/* The tools as Codex has them; see tool_dialect.c. */
#include "tool_agents_schema.h"
#include "tool_internal.h"

#define CHANGES (TOOL_READS | TOOL_WRITES)

#define TODO_STATUS                                                                                \
    "{\"type\": \"string\", \"enum\": [\"pending\", \"in_progress\", \"completed\"]}"

// A property a line.
// clang-format off
static const struct tool_dialect_form forms[] = {
    {TOOL_DIALECT_CODEX,
     "shell",
     {"exec_command",
      "Runs a command in the workspace, returning its output and exit status, or a session ID for "
      "ongoing interaction when it takes longer than yield_time_ms.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("cmd", "Shell command to execute.") ", "
          TYPED_PROPERTY(
              "yield_time_ms",
              "integer",
              "How long to wait (in milliseconds) for output before yielding; 10000 by default") ", "
          TYPED_PROPERTY(
              "max_output_tokens",
              "integer",
              "Output is truncated in any case"),
          "\"cmd\""),
      CHANGES | TOOL_EXECUTES,
      false},
     "cmd=command max_output_tokens=",
     tool_run_exec_command},
    {TOOL_DIALECT_CODEX,
     "job_input",
     {"write_stdin",
      "Writes characters to an existing exec_command session and returns recent output.",
      OBJECT_SCHEMA(
          TYPED_PROPERTY("session_id", "integer", "Identifier of the running session") ", "
          STRING_PROPERTY(
              "chars",
              "Bytes to write to stdin, may be empty to poll; \\u0003 ends the program, a last "
              "\\u0004 its input") ", "
          TYPED_PROPERTY(
              "yield_time_ms",
              "integer",
              "How long to wait (in milliseconds) for output before yielding") ", "
          TYPED_PROPERTY(
              "max_output_tokens",
              "integer",
              "Output is truncated in any case"),
          "\"session_id\""),
      TOOL_EXECUTES,
      false},
     "session_id=job chars=text yield_time_ms=wait_ms max_output_tokens=",
     tool_run_write_stdin},
    {TOOL_DIALECT_CODEX,
     "apply_patch",
     {"apply_patch",
      "Use the apply_patch tool to edit files. The input is a patch from *** Begin Patch to *** "
      "End Patch with *** Add File, *** Update File (with *** Move to and hunks of @@, context, "
      "- and + lines) and *** Delete File sections.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("input", "The entire contents of the apply_patch command"),
          "\"input\""),
      CHANGES,
      false},
     "input=patch",
     NULL},
    {TOOL_DIALECT_CODEX,
     "todo",
     {"update_plan",
      "Updates the task plan. Provide an optional explanation and a list of plan items, each "
      "with a step and status. At most one step can be in_progress at a time.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("explanation", "Why the plan changes")
          ", \"plan\": {\"type\": \"array\", \"description\": \"The list of steps\", \"items\": "
          OBJECT_SCHEMA(
              STRING_PROPERTY("step", "Task step text") ", \"status\": " TODO_STATUS,
              "\"step\", \"status\"")
          "}",
          "\"plan\""),
      0,
      false},
     "explanation= plan=todos step=content",
     NULL},
    {TOOL_DIALECT_CODEX,
     "image",
     {"view_image",
      "Facts of a local image of the workspace: kind, width, height and size.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("path", "Path to an image file"),
          "\"path\""),
      TOOL_READS,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CODEX,
     "read",
     {"read_file",
      "Reads a file of the workspace with 1-indexed line numbers.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("file_path", "Path to the file") ", "
          TYPED_PROPERTY("offset", "integer", "The line number to start reading from") ", "
          TYPED_PROPERTY("limit", "integer", "The maximum number of lines to return"),
          "\"file_path\""),
      TOOL_READS,
      false},
     "file_path=path",
     NULL},
    {TOOL_DIALECT_CODEX,
     "list",
     {"list_dir",
      "Lists entries of a directory of the workspace.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("dir_path", "Path to the directory to list") ", "
          TYPED_PROPERTY("offset", "integer", "The entry number to start listing from") ", "
          TYPED_PROPERTY("depth", "integer", "The maximum directory depth to traverse"),
          "\"dir_path\""),
      TOOL_READS,
      false},
     "dir_path=path",
     NULL},
    {TOOL_DIALECT_CODEX,
     "grep",
     {"grep_files",
      "Finds files whose contents match the pattern and lists them.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("pattern", "Regular expression pattern to search for") ", "
          STRING_PROPERTY("include", "Optional glob that limits which files are searched") ", "
          STRING_PROPERTY("path", "Directory or file path to search") ", "
          TYPED_PROPERTY("limit", "integer", "Maximum number of file paths to return"),
          "\"pattern\""),
      TOOL_READS,
      false},
     "include=glob",
     tool_run_grep_files},
    {TOOL_DIALECT_CODEX,
     "spawn",
     {"spawn_agent",
      "Spawn a sub-agent for a well-scoped task, in a copy of the workspace. Returns its name at once; "
      "wait_agent gets its result, merge_agent takes over what it has changed. With fork_context the "
      "call returns when the agent has ended.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("message", "The task for the new agent, in full") ", "
          STRING_PROPERTY("agent_type", "There is one type; ignored") ", "
          TYPED_PROPERTY(
              "fork_context",
              "boolean",
              "When true, the agent knows this conversation; then this must be the only call"),
          "\"message\""),
      0,
      false},
     "message=task agent_type= fork_context=fork",
     tool_run_spawn_agent},
    {TOOL_DIALECT_CODEX,
     "message",
     {"send_input",
      "Send a message to an existing agent, which reads it before its next step.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("target", "The agent's name, or parent: the one that spawned you") ", "
          STRING_PROPERTY("message", "The message") ", "
          TYPED_PROPERTY("interrupt", "boolean", "Ignored: what the agent does now it ends first"),
          "\"target\", \"message\""),
      0,
      false},
     "target=name interrupt=",
     NULL},
    {TOOL_DIALECT_CODEX,
     "wait",
     {"wait_agent",
      "Wait until one of the agents has ended, and return its result.",
      OBJECT_SCHEMA(
          "\"targets\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"description\": "
          "\"Names of agents, all that you have spawned when left out\"}, "
          TYPED_PROPERTY(
              "timeout_ms",
              "integer",
              "How long to wait (in milliseconds), as long as there is time when left out"),
          ""),
      0,
      false},
     "targets=names timeout_ms=timeout",
     tool_run_wait_agent},
    {TOOL_DIALECT_CODEX,
     "cancel",
     {"close_agent",
      "Close an agent that is not needed any more; it ends with those that it has spawned.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("target", "The agent's name"),
          "\"target\""),
      0,
      false},
     "target=name",
     tool_run_close_agent},
    {TOOL_DIALECT_CODEX,
     "fork",
     {"fork_agents",
      "Split into several agents that all know this conversation, each in a copy of the workspace, and "
      "return their results. Must be the only call.",
      AGENTS_FORK_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CODEX,
     "receive",
     {"receive_message",
      "Wait until another agent sends a message.",
      AGENTS_RECEIVE_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CODEX,
     "merge",
     {"merge_agent",
      "Take over what an agent that you spawned and that has ended changed in its copy of the "
      "workspace. Nothing is overwritten: conflicts are shown.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("target", "The agent's name"),
          "\"target\""),
      TOOL_WRITES,
      false},
     "target=name",
     NULL},
};
// clang-format on

const struct tool_dialect_forms tool_dialect_codex = {forms, COUNT_OF(forms)};
