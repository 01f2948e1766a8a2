/* The tools as models of other makers are trained on them: names, argument names, descriptions.
 *
 * A form changes words only: its arguments are renamed to those of the tool's own widest form and
 * run by the same function. Arguments that a dialect has and we do without are renamed to nothing.
 */
#include "tool_internal.h"

#define CHANGES (TOOL_READS | TOOL_WRITES)

static const struct tool_dialect_form forms[] = {
    {TOOL_DIALECT_CLAUDE,
     "shell",
     {"Bash",
      "Executes a bash command in the workspace and returns its output and exit status.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("command", "The command to execute") ", " STRING_PROPERTY("description", "What the command does, in 5 to 10 words") ", " TYPED_PROPERTY(
              "timeout", "integer", "Optional timeout in milliseconds"
          ) ", " TYPED_PROPERTY("run_in_background", "boolean", "Set to true to run it in the background"),
          "\"command\""
      ),
      CHANGES | TOOL_EXECUTES,
      false},
     "description= run_in_background=background",
     NULL},
    {TOOL_DIALECT_CLAUDE,
     "job_output",
     {"TaskOutput",
      "Retrieves output from a running or completed background command.",
      OBJECT_SCHEMA(
          STRING_PROPERTY("task_id", "The number of the job") ", " TYPED_PROPERTY(
              "block", "boolean", "Whether to wait for completion"
          ) ", " TYPED_PROPERTY("timeout", "integer", "Max wait time in ms"),
          "\"task_id\""
      ),
      TOOL_READS,
      false},
     "task_id=job timeout=wait_ms",
     tool_run_task_output},
    {TOOL_DIALECT_CLAUDE,
     "job_stop",
     {"TaskStop",
      "Stops a running background command.",
      OBJECT_SCHEMA(STRING_PROPERTY("task_id", "The number of the job"), "\"task_id\""),
      TOOL_EXECUTES,
      false},
     "task_id=job",
     NULL},
    {TOOL_DIALECT_CODEX,
     "shell",
     {"exec_command",
      "Runs a command in the workspace, returning its output and exit status.",
      OBJECT_SCHEMA(STRING_PROPERTY("cmd", "Shell command to execute."), "\"cmd\""),
      CHANGES | TOOL_EXECUTES,
      false},
     "cmd=command",
     NULL},
};

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
