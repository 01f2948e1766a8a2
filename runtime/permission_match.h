/* Globs, and whether the pattern of a rule covers a command or a path. Internal to permission*.c.
 * Thread: any. */
#ifndef HEARTH_RUNTIME_PERMISSION_MATCH_H
#define HEARTH_RUNTIME_PERMISSION_MATCH_H

#include "permission_shell.h"

/* * any bytes, ? one character, \x the character x. `is_path`: * and ? stop at '/', ** does not. */
bool glob_matches(struct view pattern, struct view text, bool is_path);

#define PERMISSION_PATH_MAX 4096
enum match { MATCH_NO, MATCH_PERHAPS, MATCH_YES };

/* `is_strict`, for rules that allow: yes only where it is certain, never perhaps. Otherwise, for rules
 * that ask or deny: yes when it is likely meant, perhaps when it cannot be told. */
enum match match_command(
    struct view pattern,
    const struct shell_line *line,
    const struct shell_part *part,
    bool is_strict
);
/* A path that a call names or a tool found, read once for all rules. */
struct named_path {
    struct view given;
    bool is_inside;
    char clean[PERMISSION_PATH_MAX + 1]; /* as path_normalise makes it */
};
enum match match_path(struct view pattern, const struct named_path *path, bool is_strict);
enum match match_url(struct view pattern, struct view url, bool is_strict);

/* The path below the workspace without "." and "..", "" for the workspace itself. False: it leads
 * outside, or has more than PERMISSION_PATH_MAX bytes. */
bool path_normalise(struct view path, char out[PERMISSION_PATH_MAX + 1]);

#endif
