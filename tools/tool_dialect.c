/* The tools as models of other makers are trained on them: names, argument names, descriptions.
 *
 * A form changes words only: its arguments are renamed to those of the tool's own widest form and
 * run by the same function. Arguments that a dialect has and we do without are renamed to nothing.
 */
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
};
// clang-format on

static const char *const dialect_names[TOOL_DIALECT_COUNT] = {"hearth", "claude", "codex"};

const char *tool_dialect_name(enum tool_dialect dialect) {
    ASSERT((size_t)dialect < TOOL_DIALECT_COUNT);
    return dialect_names[dialect];
}

bool tool_dialect_parse(struct view name, enum tool_dialect *out) {
    for (size_t i = 0; i < TOOL_DIALECT_COUNT; i++) {
        if (view_equals_text(name, dialect_names[i])) {
            *out = (enum tool_dialect)i;
            return true;
        }
    }
    return false;
}

size_t tool_dialect_form_count(void) {
    return COUNT_OF(forms);
}

const struct tool_dialect_form *tool_dialect_form_at(size_t index) {
    ASSERT(index < COUNT_OF(forms));
    return &forms[index];
}

const struct tool_dialect_form *tool_dialect_find(enum tool_dialect dialect, const char *tool) {
    ASSERT(dialect != TOOL_DIALECT_HEARTH);
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        if (forms[i].dialect == dialect && strcmp(forms[i].tool, tool) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ renaming ---- */

/* What `name` is called by the tool; empty when the tool does without it. */
static struct view renamed(const char *renames, struct view name) {
    struct cursor pairs = cursor_over(view_of_text(renames));
    while (cursor_remaining(&pairs) > 0) {
        struct view from;
        struct view to;
        bool has_both = cursor_take_until(&pairs, '=', &from);
        ASSERT(has_both);
        if (!cursor_take_until(&pairs, ' ', &to)) {
            (void)cursor_take(&pairs, cursor_remaining(&pairs), &to);
        }
        if (view_equals(from, name)) {
            return to;
        }
    }
    return name;
}

static bool write_name(struct json_writer *writer, const char *renames, struct json_value member) {
    struct view name = renamed(renames, json_name(member));
    if (name.length > 0) {
        json_write_key_view(writer, name);
    }
    return name.length > 0;
}

static void write_item(struct json_writer *writer, const char *renames, struct json_value item) {
    if (json_type(item) != JSON_OBJECT) {
        json_write_raw(writer, json_raw(item));
        return;
    }
    json_write_object_begin(writer);
    for (struct json_value v = json_first(item); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (write_name(writer, renames, v)) {
            json_write_raw(writer, json_raw(v));
        }
    }
    json_write_object_end(writer);
}

result tool_dialect_rename(
    const char *renames, struct json_value arguments, struct buffer *out, struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    struct json_value v = json_first(arguments);
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (!write_name(&writer, renames, v)) {
            continue;
        }
        if (json_type(v) != JSON_ARRAY) {
            json_write_raw(&writer, json_raw(v));
            continue;
        }
        json_write_array_begin(&writer);
        struct json_value item = json_first(v);
        for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
            write_item(&writer, renames, item);
        }
        json_write_array_end(&writer);
    }
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}
