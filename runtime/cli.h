/* The command line: a table of commands, each with its options, from which parsing, help and usage
 * lines all come.
 *
 * A command function returns the program's exit status and prints for itself: results on standard
 * output, one-line messages on standard error. Thread: main.
 */
#ifndef HEARTH_RUNTIME_CLI_H
#define HEARTH_RUNTIME_CLI_H

#include "base/bytes.h"
#include "base/json.h"

#ifndef HEARTH_VERSION /* comes from CMakeLists.txt */
#error "HEARTH_VERSION is not defined"
#endif
#define CLI_OPTIONS_MAX 80  /* of one command */
#define CLI_GIVEN_MAX   256 /* options on one command line */

/* Architecture, section 7. */
enum exit_status {
    STATUS_DONE = 0,
    STATUS_TASK_FAILED = 1,
    STATUS_USAGE = 2,
    STATUS_REFUSED = 3, /* cannot confine, does not fit, already running */
    STATUS_BUDGET = 4,
    STATUS_DATA = 5,   /* bad model, session or file data */
    STATUS_ENGINE = 6, /* engine or device fault */
    STATUS_INTERRUPTED = 130
};

struct cli_option {
    const char *name;  /* long name; "" for a letter alone, in raw commands */
    char letter;       /* 0: none */
    const char *value; /* how the value is called, null: a flag */
    const char *help;
};

struct cli_command;

struct cli_arguments {
    const struct cli_command *command;
    const char *values[CLI_OPTIONS_MAX]; /* by index into command->options; null: not given */
    /* All of them in their order, for options that may be repeated: [given_count]. */
    struct {
        size_t option;
        const char *value;
    } given[CLI_GIVEN_MAX];
    size_t given_count;
    char *const *words; /* what is left, [word_count] */
    int word_count;
};

struct cli_command {
    const char *path;     /* "model logits" */
    const char *operands; /* "[TASK]" */
    const char *summary;  /* one line */
    const char *text;     /* further help, may be null */
    const struct cli_option *options;
    size_t option_count;
    int words_min, words_max; /* words_max < 0: any number */
    int (*run)(const struct cli_arguments *arguments);
    /* Null, or: takes argc and argv from the last word of the path on, unparsed, and documents its
     * own options; `run` is then null. */
    int (*run_raw)(int argc, char **argv);
};

/* All commands, in the order of the help. */
extern const struct cli_command *const cli_commands[];
extern const size_t cli_command_count;

/* Returns the exit status. */
int cli_main(int argc, char **argv);

/* ---- help (cli_help.c) ---- */

void cli_help_version(void);
void cli_help_usage(FILE *file, const struct cli_command *command); /* one line */
void cli_help_command(const struct cli_command *command);
/* Of the commands that begin with a word; "": of all. */
void cli_help_group(FILE *file, const char *group);
bool cli_path_begins(const char *path, const char *group);

/* ---- for command functions ---- */

/* The value of an option, "" for a given flag, null when absent. */
const char *cli_value(const struct cli_arguments *arguments, const char *name);
bool cli_has(const struct cli_arguments *arguments, const char *name);
/* The same, null also where the command has no such option: for code that several commands share. */
const char *cli_shared_value(const struct cli_arguments *arguments, const char *name);
/* The value of an option's nth place on the command line, from 0; null behind the last. */
const char *cli_value_at(const struct cli_arguments *arguments, const char *name, size_t place);

/* "hearth: MESSAGE" on standard error; returns `status`. */
int cli_fail(int status, const char *format, ...) PRINTF_LIKE(2, 3);
/* The same with the usage line of the command; returns STATUS_USAGE. */
int cli_usage(const struct cli_arguments *arguments, const char *format, ...) PRINTF_LIKE(2, 3);
/* Exit status of a failure to open or use a model, a store or a file. */
int cli_status_of(result failed);
int cli_fail_error(result failed, const struct error *error);

/* Typed options: false after having printed why. Absent options leave *out alone. */
bool cli_i64(
    const struct cli_arguments *arguments, const char *name, int64_t min, int64_t max, int64_t *out
);
bool cli_u64(const struct cli_arguments *arguments, const char *name, uint64_t *out);
bool cli_double(
    const struct cli_arguments *arguments, const char *name, double min, double max, double *out
);
/* "90", "90s", "10m", "2h", "500ms" to milliseconds. */
bool cli_duration(const struct cli_arguments *arguments, const char *name, int64_t *out);
bool duration_parse(struct view text, int64_t *milliseconds);
/* "4096", "512M", "16G", "1.5T", also "16GiB": bytes, K = 1024; at least 1, at most 2^60. */
bool cli_size(const struct cli_arguments *arguments, const char *name, uint64_t *out);
bool size_parse(struct view text, uint64_t *bytes);

/* First word as text, else the file "-" or standard input as a whole. */
MUST_CHECK result
cli_input(const char *word, bool word_is_path, struct buffer *out, struct error *error);
/* Writes to standard output, to a terminal with controls and marks of direction as escapes; false when that
 * failed (said on standard error). */
bool cli_print(struct view text);
/* The same; on a terminal words that do not fit go to the next row, under `indent`, or two columns behind where
 * a line begins with blanks. */
bool cli_print_wrapped(struct view text, size_t indent);
/* Columns of the terminal on standard output; 0: it is none. */
int cli_width(void);
/* "3.2 GiB" */
MUST_CHECK result cli_put_bytes(struct buffer *out, uint64_t bytes, struct error *error);
/* The state directory: what --state names, else the user's configuration, else the usual place; `make`: the
 * directory that it lies in is made. Expected errors: INVALID_INPUT (also a broken configuration), NOT_FOUND
 * (no home). */
MUST_CHECK result cli_state(
    const struct cli_arguments *arguments, bool make, struct buffer *out, struct error *error
);

/* ---- the commands, by file ---- */
extern const struct cli_command command_run, command_swarm;
extern const struct cli_command command_sessions_list, command_sessions_show, command_sessions_fork,
    command_sessions_diff, command_sessions_rewind, command_sessions_undo, command_sessions_prune,
    command_sessions_delete;
extern const struct cli_command command_cache_show, command_cache_verify, command_cache_evict,
    command_cache_export, command_cache_import;
extern const struct cli_command command_model_inspect, command_model_tokens, command_model_render,
    command_model_parse, command_model_logits, command_model_synth, command_model_bench;
extern const struct cli_command command_tool_list, command_tool_call;
extern const struct cli_command command_sandbox_run, command_sandbox_file;
extern const struct cli_command command_doctor;
extern const struct cli_command command_config, command_config_accept, command_config_path;

#endif
