/* A command line for /bin/sh -c split into its simple commands, as far as that is certain.
 *
 * It reads words, quotes, redirections, comments and ; & && || | and newlines. Anything that a shell
 * would still expand or that another shell would read differently makes the line unsure: $, `, (),
 * braces, here-documents, reserved words, characters that do not show. Rules that allow do not apply
 * to it. For rules that deny it is split all the same, into its substitutions too: a word that is
 * expanded may be any text; where a command may be hidden the line is open. The text that a shell in it
 * is given ("sh -c 'ls; date'") is split as well, as further parts. Internal to permission*.c.
 * Thread: any.
 */
#ifndef HEARTH_RUNTIME_PERMISSION_SHELL_H
#define HEARTH_RUNTIME_PERMISSION_SHELL_H

#include "permission.h"

#define SHELL_TEXTS_DEEP 3 /* "sh -c" in "sh -c" */

struct shell_word {
    struct view text; /* without its quotes */
    bool is_expanded; /* the shell makes other text of it: $, `, a brace, *, ?, [, a leading ~ */
};

struct shell_part {
    size_t word_at, word_count; /* may be 0: a redirection or an assignment alone */
    bool is_assigned;           /* NAME=VALUE stood in front */
    bool is_redirected;         /* from or to a file that is not /dev/null */
    bool is_uncertain;          /* may be further words of a command, behind a substitution */
    bool has_text;              /* a shell's, word `shell_at` of it; the text is parts of its own */
    size_t shell_at;
    unsigned depth; /* in texts of shells; 0: of the line itself */
};

struct shell_line {
    const char *doubt;       /* why the line is unsure, a noun phrase; null: it is sure */
    const char *inner_doubt; /* the same of texts of shells in it */
    bool is_open;            /* commands may run that are not among the parts */
    struct shell_word words[PERMISSION_WORDS_MAX];
    size_t word_count;
    struct shell_part parts[PERMISSION_PARTS_MAX];
    size_t part_count;
    char *text; /* what the words point into */
    size_t text_length, text_room;
};

/* Expected errors: MEMORY. */
MUST_CHECK result shell_split(struct view command, struct shell_line *out, struct error *error);
void shell_line_deinit(struct shell_line *line); /* usable with CLEANUP; accepts zero */

#endif
