/* What a person may type behind a slash. Pure. Thread: any.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_COMMANDS_H
#define HEARTH_RUNTIME_TERMINAL_COMMANDS_H

#include "loop.h"

enum terminal_command_type {
    TERMINAL_RUN, /* goes to the loop: run_command */
    TERMINAL_HELP,
    TERMINAL_THINKING
};

struct terminal_command {
    const char *name;     /* without its slash */
    const char *argument; /* in help; "" for none */
    const char *help;
    enum terminal_command_type type;
    enum run_command run_command;
};

size_t terminal_command_count(void);
const struct terminal_command *terminal_command_at(size_t index);

/* Whether a line is a command at all: a slash, letters, and then a blank or nothing; or a slash alone. *out is null when
 * there is none of that name: then *nearest is the one that may be meant, or null. */
bool terminal_command_parse(
    struct view line,
    const struct terminal_command **out,
    struct view *argument,
    const char **nearest
);

/* All commands and keys, a line each. */
MUST_CHECK result terminal_help(struct buffer *out, struct error *error);

#endif
