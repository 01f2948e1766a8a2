/* What an agent may do: the built-in tools, called by name with JSON arguments.
 *
 * `tool_call` blocks until the tool has ended and is meant for a worker thread; `tool_cancel`
 * stops it from any other thread. Whatever the model did wrong (unknown tool, bad arguments,
 * missing file) is a result with a text worded for it; only faults of the host are errors. Tools
 * reach files through sandbox/beneath.h and run commands through sandbox/sandbox.h, never
 * otherwise.
 */
#ifndef HEARTH_TOOLS_TOOL_H
#define HEARTH_TOOLS_TOOL_H

#include "base/clock.h"
#include "base/json.h"

#define TOOL_TIME_MS_DEFAULT     120000             /* one call, when the context names no other */
#define TOOL_ARGUMENTS_BYTES_MAX ((size_t)4 << 20)  /* a whole file may be an argument */
#define TOOL_FILE_BYTES_MAX      ((size_t)8 << 20)  /* largest file read, edited or written */
#define TOOL_TEXT_BYTES_DEFAULT  ((size_t)32 << 10) /* shown of a file, listing or search */
#define TOOL_NOTICE_BYTES        480
#define TOOL_SHELL_TEXT_MAX      2400 /* characters of shell output shown whole */
#define TOOL_SHELL_TEXT_HEAD     1200 /* characters kept in front when it is longer */
#define TOOL_SHELL_TEXT_TAIL     1000 /* and behind */

struct sandbox;
struct sandbox_policy;
struct tool_fetch_request;
struct tool_fetch_answer;
struct tool_agents;

enum tool_effect {
    TOOL_READS = 1,    /* looks at the workspace */
    TOOL_WRITES = 2,   /* changes files of the workspace */
    TOOL_EXECUTES = 4, /* starts processes in the sandbox */
    TOOL_ENDS = 8,     /* ends the task */
    TOOL_NETWORK = 16, /* reaches the network through the runtime */
    TOOL_FOREIGN = 32  /* is done by a server that Hearth did not write */
};

/* What a model is told of a tool. */
struct tool_descriptor {
    const char *name;
    const char *description;
    const char *schema; /* JSON schema of the arguments; built-in: in the subset of tool_schema.c */
    unsigned effects;   /* enum tool_effect */
    bool is_trained;    /* the bundled model knows it: shell, read, edit, write, finish */
};

/* Every built-in tool, in the order in which they are declared to a model: shell, read, edit,
 * write, finish (which the bundled model knows), then the others. */
size_t tool_count(void);
/* Its own name; of the first five the form that the bundled model was trained with. */
const struct tool_descriptor *tool_at(size_t index);
/* By a name of any dialect: the index of tool_at, or SIZE_MAX; its descriptor, or null. */
size_t tool_index(struct view name);
const struct tool_descriptor *tool_find(struct view name);

/* Names, argument names and descriptions that models are trained on; one implementation. */
enum tool_dialect { TOOL_DIALECT_HEARTH, TOOL_DIALECT_CLAUDE, TOOL_DIALECT_CODEX };
#define TOOL_DIALECT_COUNT 3
const char *tool_dialect_name(enum tool_dialect dialect); /* "hearth", "claude", "codex" */
bool tool_dialect_parse(struct view name, enum tool_dialect *out);

/* The tools offered in a context: one bit per index of tool_at. */
#define TOOL_COUNT_MAX   64
#define TOOL_SET_DEFAULT ((uint64_t)0xF)  /* shell, read, edit, write */
#define TOOL_SET_TRAINED ((uint64_t)0x1F) /* and finish */
uint64_t tool_set_all(void);
/* What a model of a dialect is offered when nobody says otherwise. */
uint64_t tool_set_default(enum tool_dialect dialect);

/* Comma-separated names, of any dialect, or "all", to a set. Expected errors: INVALID_INPUT (names
 * the unknown tool). */
MUST_CHECK result tool_set_parse(struct view names, uint64_t *out, struct error *error);

/* A tool as it is declared in a dialect when `set` is offered; null where the dialect has none.
 * The first five have their trained form in the dialect hearth as long as the set is within
 * TOOL_SET_TRAINED; beyond it (a "wide" set) read, edit and others can do more. */
const struct tool_descriptor *tool_form(size_t index, enum tool_dialect dialect, uint64_t set);

/* {"name": ..., "description": ..., "parameters": {...}}, written as the model was trained (Python
 * separators when the writer has them). Errors stick in the writer. */
void tool_declaration_write(struct json_writer *writer, const struct tool_descriptor *tool);
/* A JSON array of the declarations of a set. */
void tool_declarations_write(struct json_writer *writer, enum tool_dialect dialect, uint64_t set);

enum tool_status {
    TOOL_OK,        /* it ran; a command's exit status may still be non-zero */
    TOOL_ERROR,     /* it could not do what was asked: no such file, old text not found */
    TOOL_TIMEOUT,   /* stopped at the time limit */
    TOOL_CANCELLED, /* stopped by tool_cancel */
    TOOL_REFUSED    /* not started: unknown tool, bad arguments, outside of the workspace */
};

const char *tool_status_name(enum tool_status status); /* "ok", "error", "timeout", ... */

/* Owned by the caller; tool_result_deinit frees it. */
struct tool_result {
    enum tool_status status;
    struct buffer text;    /* for the model: valid UTF-8 without control characters but \n and \t */
    struct buffer output;  /* raw bytes as they came, for the record; empty when text says it all */
    uint64_t output_bytes; /* produced in all; above output.length when the sandbox cut it: */
    uint64_t output_gap_at; /* the missing bytes lay at this offset of output */
    bool text_is_truncated; /* text shows less than was produced: */
    uint64_t omitted_at;    /* byte offset in output where text leaves off, and */
    uint64_t omitted_bytes; /* how many bytes it leaves out from there, missing ones included */
    bool has_exit_status;
    int exit_status;    /* of the command; 128 + signal number when a signal ended it */
    int64_t started_ms; /* wall clock, UTC */
    int64_t duration_ms;
    bool ends_task; /* the finish tool was called; text is its summary */
    /* For the user, not the model: changed files that programs on the host act upon. "": none. */
    char notice[TOOL_NOTICE_BYTES];
};

void tool_result_init(struct tool_result *value);
void tool_result_deinit(struct tool_result *value); /* usable with CLEANUP */

/* Live output of a running command: raw bytes in order, on the thread of tool_call. Must not
 * block. */
typedef void tool_output(void *context, struct view bytes);

/* Whether a file has to be read before it is edited or written over, and again when it changed. */
enum tool_strictness {
    TOOL_STRICT_BY_SET, /* where the set is wide: the bundled model was trained without */
    TOOL_STRICT_ALWAYS,
    TOOL_STRICT_NEVER
};

struct tool_context_options {
    const char *workspace; /* directory the tools act in; /workspace for commands */
    /* For commands; both borrowed until destroy. With sandbox null the shell tool is refused. The
     * context sets workspace, wall_ms (if lower than the policy's), merge_output and an environment
     * entry by itself. */
    struct sandbox *sandbox;
    const struct sandbox_policy *policy;
    enum tool_dialect dialect;
    uint64_t set;      /* tools that may be called; 0: tool_set_default of the dialect */
    uint64_t declared; /* what the prompt declares where that is more; 0: `set` */
    enum tool_strictness strictness;
    int64_t time_ms_max;   /* one call; 0: TOOL_TIME_MS_DEFAULT */
    size_t text_bytes_max; /* of read, list and search; 0: TOOL_TEXT_BYTES_DEFAULT */
    struct clock clock;
    tool_output *output; /* may be null */
    void *output_context;
    /* See tool_fetch.h; null: the fetch tool is refused. */
    result (*fetch
    )(void *context,
      const struct tool_fetch_request *request,
      struct tool_fetch_answer *out,
      struct error *error);
    void *fetch_context;
    const struct tool_agents *agents; /* see tool_agents.h; null: its tools are not offered */
    /* Whether a tool (our name) that lists or searches must not show a path below the workspace that
     * it found. Thread: that of tool_call. Null: it may show all. */
    bool (*hides)(void *context, struct view tool, struct view path);
    void *hides_context;
};

struct tool_context;

/* Opens the workspace. Expected errors: NOT_FOUND, INVALID_INPUT (no directory), UNSUPPORTED (the
 * kernel has no openat2), IO. */
MUST_CHECK result tool_context_create(
    struct tool_context **out, const struct tool_context_options *options, struct error *error
);
void tool_context_destroy(struct tool_context *context); /* no call may be running; accepts null */
void tool_context_cleanup(struct tool_context **context);

/* Lowers the time limit of the calls that follow, as a run's deadline comes near. Same thread as
 * tool_call. `time_ms_max` <= 0 restores the context's own. */
void tool_context_limit_time(struct tool_context *context, int64_t time_ms_max);

/* What this context offers: the forms of its set that its dialect has, in order, and behind them
 * what servers added. Borrowed until the context's tools change. Thread: that of tool_call. */
size_t tool_context_count(const struct tool_context *context);
const struct tool_descriptor *tool_context_at(const struct tool_context *context, size_t index);
const struct tool_descriptor *
tool_context_find(const struct tool_context *context, struct view name);
/* Their declarations as a JSON array. */
void tool_context_declarations(const struct tool_context *context, struct json_writer *writer);

/* The files that this context read or wrote, the latest last. Thread: that of tool_call. */
struct tool_file_read {
    const char *path; /* below the workspace */
    uint64_t bytes;
    bool is_written; /* by an edit or a write, at some time */
};
typedef void tool_context_ledger_entry(void *context, const struct tool_file_read *file);
void tool_context_ledger(
    const struct tool_context *context, tool_context_ledger_entry *entry, void *entry_context
);

/* Whether "output:N" can be read now. Thread: that of tool_call. */
bool tool_context_has_output(const struct tool_context *context, struct view locator);

/* The list that the todo tool wrote last, as text; empty: none. Borrowed until the next call. */
struct view tool_context_todo(const struct tool_context *context);
/* Whether this is the todo tool, in any dialect. */
bool tool_is_todo(struct view name);
/* For a resume: the last call of the todo tool, by its name and arguments in the record. Other
 * tools are left alone. Expected errors: MEMORY. */
MUST_CHECK result tool_context_restore_todo(
    struct tool_context *context, struct view name, struct view arguments, struct error *error
);

/* Runs one tool to its end. `arguments` is the JSON object from the model, exactly as it wrote it.
 * One call at a time per context. Thread: a worker that outlives the call (see sandbox.h); blocks
 * for as long as the tool takes, at most the time limit and the sandbox's kill grace; a call about
 * other agents (tool_agents.h) for as long as they take. Expected errors: MEMORY, IO, UNSUPPORTED
 * (the machine cannot confine commands; the message carries reason and remedy). `out` is set in every case and may be deinitialised. */
MUST_CHECK result tool_call(
    struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_result *out,
    struct error *error
);

/* Stops the running call and makes all later ones end as TOOL_CANCELLED, until tool_cancel_end.
 * Thread: any, and safe in a signal handler. */
void tool_cancel(struct tool_context *context);
/* Calls run again. No call may be running. Thread: any. */
void tool_cancel_end(struct tool_context *context);

/* What a call is about, for those who decide whether it may run. */
#define TOOL_SUBJECT_PATHS_MAX 256
struct tool_subject {
    const char *tool; /* our name, whatever the dialect calls it; borrowed from the context */
    unsigned effects;
    bool has_command; /* the tool runs a command line: */
    struct view command;
    struct view paths[TOOL_SUBJECT_PATHS_MAX]; /* files that are named, as the model wrote them */
    size_t path_count;
    bool has_more_paths;             /* than are listed */
    struct view url;                 /* empty: none */
    struct json_document *arguments; /* views point into it */
    struct buffer renamed;
};
/* `out` is set in every case; its `tool` is null when the context does not offer that tool, and only
 * tool and effects are known of arguments that are no object. Thread: any while no call runs. Expected
 * errors: MEMORY. */
MUST_CHECK result tool_subject_find(
    const struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_subject *out,
    struct error *error
);
void tool_subject_deinit(struct tool_subject *subject); /* accepts zero; usable with CLEANUP */

/* What a call replaces without naming it, so that a person sees what changes. */
struct tool_overwrite {
    bool is_there; /* a file that is written over: */
    uint64_t bytes;
    bool has_patch;      /* else it is too large, binary, or cannot be read: */
    struct buffer patch; /* hunks of a unified diff; empty: nothing changes */
};
bool tool_may_overwrite(const struct tool_subject *subject);
/* The file as it is now: it may be another one when the call runs. `out` is set in every case. Thread: that
 * of tool_call, while no call runs; reads the file. Expected errors: MEMORY. */
MUST_CHECK result tool_overwrite_find(
    struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_overwrite *out,
    struct error *error
);
void tool_overwrite_deinit(struct tool_overwrite *overwrite); /* accepts zero */

#endif
