/* What the words of a simple command come to: programs that run other commands, shells that run a
 * text, options before git's own command. A short list of what is common, for rules that ask or
 * deny; no boundary. Internal to permission*.c. Thread: any. */
#ifndef HEARTH_RUNTIME_PERMISSION_WORDS_H
#define HEARTH_RUNTIME_PERMISSION_WORDS_H

#include "permission_shell.h"

struct command {
    const struct shell_word *words;
    size_t count;
    bool is_longer; /* words that are not known come behind it: xargs */
};

/* The words from `index` on, as a command that the ones before run. */
struct command command_from(struct command command, size_t index);
/* "git" of "/usr/bin/git". */
struct view command_name(const struct shell_word *word);

/* Where what it does begins behind its options: 4 of "git -C DIR -p push"; 1 where that is not known.
 * `is_renamed`: they may give that any other name. */
size_t command_options_end(struct command command, bool *is_renamed);

/* It runs the command in its further words. */
bool command_runs_its_words(struct command command);
/* It runs text as a shell does: of a word, of its input. */
bool command_runs_text(struct command command);
/* Where that text is a word that can be read as it stands: the index of the shell, and the text. */
bool command_find_text(struct command command, size_t *shell_at, struct view *text);
/* It runs other text or commands, so that a rule for its name says little. */
bool command_runs_others(struct command command);

#endif
