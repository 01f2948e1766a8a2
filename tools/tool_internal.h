/* Inside of tools/: the context, the functions behind the registry, and what they share. */
#ifndef HEARTH_TOOLS_TOOL_INTERNAL_H
#define HEARTH_TOOLS_TOOL_INTERNAL_H

#include "sandbox/beneath.h"
#include "sandbox/sandbox.h"
#include "tool.h"

#include <stdatomic.h>

#define TOOL_COUNT            7
#define TOOL_WORKSPACE_INSIDE "/workspace" /* where a command sees the workspace */
#define TOOL_RESULT_BYTES_MAX ((size_t)64 << 20)

struct tool_context {
    struct tool_context_options options;
    char *workspace; /* own copy */
    struct beneath *root;
    struct json_document *schemas[TOOL_COUNT];
    int64_t time_ms_max;   /* of the next call */
    int64_t deadline_ms;   /* of the running call, monotonic */
    int cancel_fd;         /* eventfd: readable once cancelled */
    atomic_bool cancelled; /* set before cancel_fd is written; any thread */
};

/* Runs one tool; `arguments` match its schema. Fills text and status of `out`. */
typedef result tool_run(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
);

tool_run tool_run_shell;
tool_run tool_run_read;
tool_run tool_run_edit;
tool_run tool_run_write;
tool_run tool_run_finish;
tool_run tool_run_list;
tool_run tool_run_search;

tool_run *tool_function(size_t index);

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
