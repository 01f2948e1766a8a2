/* The tools as Claude Code has them; see tool_dialect.c. */
#include "tool_agents_schema.h"
#include "tool_internal.h"

#define CHANGES (TOOL_READS | TOOL_WRITES)

#define TODO_STATUS                                                                                \
    "{\"type\": \"string\", \"enum\": [\"pending\", \"in_progress\", \"completed\"]}"

// A property a line.
// clang-format off
static const struct tool_dialect_form forms[] = {
    {TOOL_DIALECT_CLAUDE,
     "read",
     {"Read",
      "Reads a file of the workspace, with line numbers as cat -n has them. By default it reads "
      "up to 2000 lines from the beginning of the file; use offset and limit for others.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("file_path", "The path to the file to read") ", "
          TYPED_PROPERTY("offset", "integer", "The line number to start reading from") ", "
          TYPED_PROPERTY("limit", "integer", "The number of lines to read") ", "
          TYPED_PROPERTY(
              "byte_offset",
              "integer",
              "The byte to start reading from, for very long lines"),
          "\"file_path\""),
      TOOL_READS,
      false},
     "file_path=path",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "edit",
     {"Edit",
      "Performs exact string replacements in files. The file must have been read before. The "
      "edit fails if old_string is not unique in the file, unless replace_all is true.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("file_path", "The path to the file to modify") ", "
          STRING_PROPERTY("old_string", "The text to replace") ", "
          STRING_PROPERTY(
              "new_string",
              "The text to replace it with (must be different from old_string)") ", "
          TYPED_PROPERTY(
              "replace_all",
              "boolean",
              "Replace all occurrences of old_string (default false)"),
          "\"file_path\", \"old_string\", \"new_string\""),
      CHANGES,
      false},
     "file_path=path old_string=old new_string=new",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "write",
     {"Write",
      "Writes a file to the workspace. An existing file is overwritten and must have been read "
      "before.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("file_path", "The path to the file to write") ", "
          STRING_PROPERTY("content", "The content to write to the file"),
          "\"file_path\", \"content\""),
      TOOL_WRITES,
      false},
     "file_path=path",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "glob",
     {"Glob",
      "Fast file pattern matching: patterns like \"**/*.js\" or \"src/**/*.ts\". Returns "
      "matching file paths sorted by modification time.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("pattern", "The glob pattern to match files against") ", "
          STRING_PROPERTY("path", "The directory to search in, the workspace if omitted"),
          "\"pattern\""),
      TOOL_READS,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "grep",
     {"Grep",
      "Searches the contents of files with a regular expression. Filter files with the glob "
      "parameter; choose what is shown with output_mode.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("pattern", "The regular expression to search for") ", "
          STRING_PROPERTY("path", "File or directory to search in, the workspace if omitted") ", "
          STRING_PROPERTY(
              "glob",
              "Glob pattern to filter files, like \\\"*.js\\\" or \\\"*.{ts,tsx}\\\"")
          ", \"output_mode\": {\"type\": \"string\", \"description\": \"content shows lines, "
          "files_with_matches paths (default), count numbers of matches\", \"enum\": "
          "[\"content\", \"files_with_matches\", \"count\"]}, "
          TYPED_PROPERTY("-i", "boolean", "Case insensitive search") ", "
          TYPED_PROPERTY("-n", "boolean", "Line numbers, which are always shown") ", "
          TYPED_PROPERTY("-A", "integer", "Lines to show after each match") ", "
          TYPED_PROPERTY("-B", "integer", "Lines to show before each match") ", "
          TYPED_PROPERTY("-C", "integer", "Lines to show before and after each match") ", "
          TYPED_PROPERTY("head_limit", "integer", "Limit output to the first N matches or files"),
          "\"pattern\""),
      TOOL_READS,
      false},
     "output_mode=mode -i=ignore_case -n= -A=after -B=before -C=context head_limit=limit",
     tool_run_grep_files},
    {TOOL_DIALECT_CLAUDE,
     "todo",
     {"TodoWrite",
      "Creates and manages the task list of this session: the whole list each time.",
      OBJECT_SCHEMA(
          "\"todos\": {\"type\": \"array\", \"description\": \"The updated todo list\", "
          "\"items\": "
          OBJECT_SCHEMA(
              STRING_PROPERTY("content", "What needs to be done")
              ", \"status\": "
              TODO_STATUS
              ", "
              STRING_PROPERTY("activeForm", "The same in the present continuous"),
              "\"content\", \"status\"")
          "}",
          "\"todos\""),
      0,
      false},
     "activeForm=",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "list",
     {"LS",
      "Lists files and directories in a given path.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("path", "The path of the directory to list"),
          "\"path\""),
      TOOL_READS,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "shell",
     {"Bash",
      "Executes a bash command in the workspace and returns its output and exit status.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("command", "The command to execute") ", "
          STRING_PROPERTY("description", "What the command does, in 5 to 10 words") ", "
          TYPED_PROPERTY("timeout", "integer", "Optional timeout in milliseconds") ", "
          TYPED_PROPERTY(
              "run_in_background",
              "boolean",
              "Set to true to run it in the background"),
          "\"command\""),
      CHANGES | TOOL_EXECUTES,
      false},
     "description= run_in_background=background",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "job_output",
     {"TaskOutput",
      "Retrieves output from a running or completed background command.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("task_id", "The number of the job") ", "
          TYPED_PROPERTY("block", "boolean", "Whether to wait for completion") ", "
          TYPED_PROPERTY("timeout", "integer", "Max wait time in ms"),
          "\"task_id\""),
      TOOL_READS,
      false},
     "task_id=job timeout=wait_ms",
     tool_run_task_output},
    {TOOL_DIALECT_CLAUDE,
     "job_stop",
     {"TaskStop",
      "Stops a running background command.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("task_id", "The number of the job"),
          "\"task_id\""),
      TOOL_EXECUTES,
      false},
     "task_id=job",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "fetch",
     {"WebFetch",
      "Fetches the content of a URL as text.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("url", "The URL to fetch content from") ", "
          STRING_PROPERTY("prompt", "What to look for in it"),
          "\"url\""),
      TOOL_NETWORK,
      false},
     "prompt=",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "spawn",
     {"Agent",
      "Launches a new agent that works on a task in a copy of the workspace, and returns its result. "
      "With run_in_background it returns the agent's name at once, so that several work at the same "
      "time; AgentWait then gets their results. AgentMerge takes over what one has changed.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("description", "A short (3-5 word) description of the task") ", "
          STRING_PROPERTY("prompt", "The task for the agent to perform, in full") ", "
          STRING_PROPERTY(
              "subagent_type",
              "fork: the agent knows this conversation; any other: it sees its prompt only") ", "
          STRING_PROPERTY("name", "How you call it") ", "
          TYPED_PROPERTY(
              "run_in_background",
              "boolean",
              "Set to true to go on while it works; a fork is waited for in any case"),
          "\"description\", \"prompt\""),
      0,
      false},
     "description= prompt=task subagent_type=kind run_in_background=background",
     tool_run_agent},
    {TOOL_DIALECT_CLAUDE,
     "message",
     {"SendMessage",
      "Sends a message to another agent, which reads it before its next step.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("to", "The agent's name, or parent: the one that started you") ", "
          STRING_PROPERTY("message", "The text of the message") ", "
          STRING_PROPERTY("summary", "The message in 5 to 10 words"),
          "\"to\", \"message\""),
      0,
      false},
     "to=name summary=",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "wait",
     {"AgentWait",
      "Waits until agents have ended, and returns their results.",
      AGENTS_WAIT_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "fork",
     {"AgentFork",
      "Splits into several agents that all know this conversation, each in a copy of the workspace, "
      "and returns their results. Must be the only call of its step.",
      AGENTS_FORK_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "receive",
     {"ReceiveMessage",
      "Waits until another agent sends a message.",
      AGENTS_RECEIVE_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "cancel",
     {"AgentStop",
      "Stops agents that you have started.",
      AGENTS_CANCEL_SCHEMA,
      0,
      false},
     NULL,
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "merge",
     {"AgentMerge",
      "Takes over what an agent that you started and that has ended changed in its copy of the "
      "workspace. Nothing is overwritten: conflicts are shown.",
      AGENTS_MERGE_SCHEMA,
      TOOL_WRITES,
      false},
     NULL,
     NULL},
};
// clang-format on

const struct tool_dialect_forms tool_dialect_claude = {forms, COUNT_OF(forms)};
