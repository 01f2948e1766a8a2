/* Inside of tools/: the context, the functions behind the registry, and what they share. */
#ifndef HEARTH_TOOLS_TOOL_INTERNAL_H
#define HEARTH_TOOLS_TOOL_INTERNAL_H

#include "sandbox/beneath.h"
#include "sandbox/sandbox.h"
#include "tool.h"
#include "tool_ledger.h"

#include <stdatomic.h>

#define TOOL_WORKSPACE_INSIDE "/workspace" /* where a command sees the workspace */
#define TOOL_RESULT_BYTES_MAX ((size_t)64 << 20)

/* Schemas, spaced as the bundled model was trained with. */
#define TYPED_PROPERTY(name, type, description)                                                    \
    "\"" name "\": {\"type\": \"" type "\", \"description\": \"" description "\"}"
#define STRING_PROPERTY(name, description) TYPED_PROPERTY(name, "string", description)
#define OBJECT_SCHEMA(properties, required)                                                        \
    "{\"type\": \"object\", \"properties\": {" properties "}, \"required\": [" required "]}"

#define TOOL_ROWS_ADDED_MAX ((size_t)1000) /* of all servers together */

/* Runs one tool; `arguments` match its schema. Fills text and status of `out`. */
typedef result tool_run(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
);

/* One built-in tool. To add one: a row beside its function, and its name in tool_registry.c; its
 * forms in other dialects are in tool_dialect.c. */
struct tool_row {
    struct tool_descriptor shown; /* in a set within TOOL_SET_TRAINED */
    tool_run *run;
    const struct tool_descriptor *wide; /* beyond it; null: the same */
    tool_run *run_wide;                 /* null: the same */
    /* Whether a context can offer it at all; null: always. */
    bool (*is_possible)(const struct tool_context_options *options);
};

extern const struct tool_row tool_row_shell, tool_row_read, tool_row_list, tool_row_search,
    tool_row_image, tool_row_job_output, tool_row_job_input, tool_row_job_stop, tool_row_job_list;
extern const struct tool_row tool_row_fetch, tool_row_spawn, tool_row_message, tool_row_wait,
    tool_row_fork, tool_row_receive, tool_row_cancel, tool_row_merge;
extern const struct tool_row tool_row_patch, tool_row_glob, tool_row_grep, tool_row_todo;
extern const struct tool_descriptor tool_wide_read, tool_wide_edit;

/* A tool as another dialect has it. Before it runs, its arguments are renamed to those of the
 * widest hearth form. */
struct tool_dialect_form {
    enum tool_dialect dialect;
    const char *tool; /* its name in tool_at */
    struct tool_descriptor shown;
    const char *renames; /* "file_path=path old_string=old", also inside of arrays; null: none */
    tool_run *run;       /* null: that of the row */
};
struct tool_dialect_forms {
    const struct tool_dialect_form *items;
    size_t count;
};
extern const struct tool_dialect_forms tool_dialect_claude, tool_dialect_codex;
/* Of all dialects. */
size_t tool_dialect_form_count(void);
const struct tool_dialect_form *tool_dialect_form_at(size_t index);
/* Null where the dialect has no such tool. Not for the dialect hearth. */
const struct tool_dialect_form *tool_dialect_find(enum tool_dialect dialect, const char *tool);
/* Writes `arguments` with the names of the hearth form. */
MUST_CHECK result tool_dialect_rename(
    const char *renames, struct json_value arguments, struct buffer *out, struct error *error
);

const struct tool_row *tool_row_at(size_t index);
bool tool_set_is_wide(enum tool_dialect dialect, uint64_t set);

/* One tool that a context offers. */
struct tool_offer {
    const struct tool_row *row;          /* null for one that was added */
    const struct tool_descriptor *shown; /* borrowed from registry or owner */
    tool_run *run;
    const char *renames;          /* as in tool_dialect_form */
    struct json_document *schema; /* null: a server checks its arguments itself */
    void *owner;                  /* of a row that was added; null: built in */
};

struct tool_context {
    struct tool_context_options options;
    char *workspace; /* own copy */
    struct beneath *root;
    struct tool_offer *offers;
    size_t offer_count;
    const struct tool_offer *running; /* during a call */
    bool is_wide;                     /* beyond what the bundled model was trained with */
    uint64_t call_count;              /* the running one included: N of "output:N" */
    bool is_strict;                   /* files are read before they are changed */
    struct tool_ledger ledger;
    struct tool_outputs outputs;
    struct buffer todo;           /* as it is shown */
    struct tool_jobs *jobs;       /* null until there is one */
    struct tool_servers *servers; /* the same */
    int64_t time_ms_max;          /* of the next call */
    int64_t run_ms_left;          /* when it begins; 0: no deadline */
    int64_t deadline_ms;          /* of the running call, monotonic */
    int cancel_fd;                /* eventfd: readable once cancelled */
    atomic_bool cancelled;        /* set before cancel_fd is written; any thread */
};

/* Adds a tool behind those that are there. `shown` (with its texts) and `owner` are borrowed until
 * tool_context_remove or destroy; `run` finds the owner in context->running. Arguments reach it as
 * a JSON object that was checked against no schema. Thread: that of tool_call. Expected errors:
 * INVALID_INPUT (the name is taken), LIMIT, MEMORY. */
MUST_CHECK result tool_context_add(
    struct tool_context *context,
    const struct tool_descriptor *shown,
    tool_run *run,
    void *owner,
    struct error *error
);
/* Of a context: asks all to end, waits so long, and kills what is left. Both accept null. */
void tool_servers_stop(struct tool_servers *servers, int64_t grace_ms);
void tool_servers_destroy(struct tool_servers *servers);
/* Takes away all rows of an owner. */
void tool_context_remove(struct tool_context *context, const void *owner);
/* The name under which a built-in tool is offered here; null: it is not. */
const char *tool_offered_name(const struct tool_context *context, const struct tool_row *row);

tool_run tool_run_read;
tool_run tool_run_task_output;
tool_run tool_run_exec_command;
tool_run tool_run_write_stdin;
tool_run tool_run_edit;
tool_run tool_run_write;
tool_run tool_run_finish;
tool_run tool_run_spawn, tool_run_fork, tool_run_message, tool_run_wait, tool_run_receive,
    tool_run_cancel, tool_run_merge;
tool_run tool_run_agent; /* as Claude Code has it */
tool_run tool_run_spawn_agent, tool_run_wait_agent, tool_run_close_agent; /* as Codex has it */
tool_run tool_run_read_wide;
tool_run tool_run_edit_wide;
tool_run tool_run_grep_files; /* grep that shows files unless told otherwise */

/* Sets the status and replaces the text by a formatted one, made harmless (sandbox_sanitise). */
MUST_CHECK result tool_answer(
    struct tool_result *out, enum tool_status status, struct error *error, const char *format, ...
) PRINTF_LIKE(4, 5);

/* "error: stopped after 120 s" (or ms where it is no whole second) into `line`. */
#define TOOL_STOPPED_BYTES 64
void tool_stopped_text(char line[TOOL_STOPPED_BYTES], int64_t limit_ms);

/* Whether the running call has to stop; then the answer says why (TOOL_CANCELLED, TOOL_TIMEOUT). */
MUST_CHECK result tool_should_stop(
    struct tool_context *context, struct tool_result *out, bool *stop, struct error *error
);

/* A string member that the schema has already checked; "" when it is absent. */
struct view tool_argument(struct json_value arguments, const char *name);

/* The path as beneath.h takes it: without /workspace or ./ in front. False: it leads outside (the
 * answer then says so); `out` needs PATH bytes for a whole path. */
#define TOOL_PATH_BYTES (BENEATH_PATH_BYTES_MAX + 1)
MUST_CHECK result tool_path(
    struct view given,
    char out[TOOL_PATH_BYTES],
    bool *usable,
    struct tool_result *answer,
    struct error *error
);

/* The answer for a failure of beneath.h. Faults of the machine stay errors. */
MUST_CHECK result tool_file_failure(
    struct tool_result *out,
    struct view path,
    result failed,
    const struct error *why,
    struct error *error
);

/* Reads a whole file into `content`; `usable` false: the answer says why not. */
MUST_CHECK result tool_file_read(
    struct tool_context *context,
    struct view given,
    char path[TOOL_PATH_BYTES],
    struct buffer *content,
    bool *usable,
    struct tool_result *out,
    struct error *error
);

/* Whether a file with this content may be changed: where the context is strict, it was read and is
 * as it was then. The answer says why not. */
MUST_CHECK result tool_file_check(
    struct tool_context *context,
    const char *path,
    struct view given,
    struct view content,
    bool *usable,
    struct tool_result *out,
    struct error *error
);

/* Writes it, remembers it and answers "ok: DONE GIVEN". */
MUST_CHECK result tool_file_write(
    struct tool_context *context,
    const char *path,
    struct view given,
    struct view content,
    const char *done,
    struct tool_result *out,
    struct error *error
);
MUST_CHECK result tool_make_parents(
    struct tool_context *context,
    const char *path,
    struct view given,
    bool *made,
    struct tool_result *out,
    struct error *error
);

/* Occurrences that do not overlap, from left to right; `*first` is where the first one is. */
size_t tool_count_occurrences(struct view text, struct view old, size_t *first);
/* Line ends of `text` as CR LF; those that are already stay. */
MUST_CHECK result tool_append_crlf(struct buffer *out, struct view text, struct error *error);

/* What to cut out of `text` so that `head` + `tail` characters stay when there are more than
 * `whole`; invalid bytes count one each. Cuts are never inside a character. */
struct tool_cut {
    size_t head_bytes; /* text[0, head_bytes) stays */
    size_t tail_at;    /* and text[tail_at, length) */
};
struct tool_cut tool_cut_characters(struct view text, size_t whole, size_t head, size_t tail);
/* The same by bytes and at line ends where one is near. */
struct tool_cut tool_cut_lines(struct view text, size_t bytes_max);

/* Appends head, the line "... [K bytes omitted] ..." and tail, harmless, without newlines at the
 * end. `missing` bytes were lost between the two by the sandbox. Sets the truncation fields. */
MUST_CHECK result tool_append_cut(
    struct tool_result *out,
    struct view text,
    struct tool_cut cut,
    uint64_t missing,
    struct error *error
);

#endif
