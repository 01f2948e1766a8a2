/* A command line for /bin/sh -c split into its simple commands, as far as that is certain.
 *
 * It reads words, quotes, redirections, comments and ; & && || | and newlines. Anything that a shell
 * would still expand or that another shell would read differently makes the line unsure: $, `, (),
 * braces, here-documents, reserved words, characters that do not show. An unsure line is still split as
 * well as it goes, for rules that deny. Internal to permission*.c. Thread: any.
 */
#ifndef HEARTH_RUNTIME_PERMISSION_SHELL_H
#define HEARTH_RUNTIME_PERMISSION_SHELL_H

#include "permission.h"

struct shell_word {
    struct view text; /* without its quotes */
    bool is_expanded; /* an unquoted *, ?, [ or a leading ~: the shell makes others of it */
};

struct shell_part {
    size_t word_at, word_count; /* may be 0: a redirection or an assignment alone */
    bool is_assigned;           /* NAME=VALUE stood in front */
    bool is_redirected;         /* from or to a file that is not /dev/null */
};

struct shell_line {
    const char *doubt; /* why the line is unsure, a noun phrase; null: it is sure */
    struct shell_word words[PERMISSION_WORDS_MAX];
    size_t word_count;
    struct shell_part parts[PERMISSION_PARTS_MAX];
    size_t part_count;
    char *text; /* what the words point into */
};

/* Expected errors: MEMORY. */
MUST_CHECK result shell_split(struct view command, struct shell_line *out, struct error *error);
void shell_line_deinit(struct shell_line *line); /* usable with CLEANUP; accepts zero */

#endif
