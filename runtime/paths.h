/* Where things lie: relative to this executable, or in the user's state directory. Nothing is
 * compiled in, so a build tree or an installation may be moved. Thread: any.
 */
#ifndef HEARTH_RUNTIME_PATHS_H
#define HEARTH_RUNTIME_PATHS_H

#include "base/bytes.h"

/* The bundled model: ../share/hearth/mini beside bin (installed), or ../../../examples/mini/model
 * from build/PRESET/runtime. Expected errors: NOT_FOUND (names the places), IO. */
MUST_CHECK result path_model_default(struct buffer *out, struct error *error);
/* Absolute, without "." and "..", links of what is there resolved; the rest may be missing. Expected
 * errors: INVALID_INPUT (too long), IO. */
MUST_CHECK result path_absolute(const char *given, struct buffer *out, struct error *error);
/* `given`, or $XDG_STATE_HOME/hearth, or ~/.local/state/hearth, as path_absolute makes it. Parents are made when `make` is
 * set; the directory itself is left to the store. Expected errors: NOT_FOUND (no home), IO. */
MUST_CHECK result path_state(const char *given, bool make, struct buffer *out, struct error *error);
/* The user's home. Borrowed from the environment or getpwuid. Expected errors: NOT_FOUND. */
MUST_CHECK result path_home(const char **out, struct error *error);
/* $XDG_CONFIG_HOME/hearth, or ~/.config/hearth; may be missing. Expected errors: NOT_FOUND (no home). */
MUST_CHECK result path_config(struct buffer *out, struct error *error);
/* Absolute, symlinks resolved; must be a directory. Expected errors: NOT_FOUND, INVALID_INPUT. */
MUST_CHECK result path_directory(const char *given, struct buffer *out, struct error *error);
/* Directory of the cache on disk, in a state directory. */
MUST_CHECK result path_cache(const char *state, struct buffer *out, struct error *error);
/* Directory for copies of workspaces, in a state directory. */
MUST_CHECK result path_worktrees(const char *state, struct buffer *out, struct error *error);
/* Appends a path as one word of a shell, in quotes where it needs them. */
MUST_CHECK result path_quote(const char *path, struct buffer *out, struct error *error);
/* Appends the shell's command that applies a patch from standard input to the directory `home`, an absolute path.
 * Below the root of a repository git would leave out all of a patch, so it is not to look above the directory. */
MUST_CHECK result path_git_apply(const char *home, struct buffer *out, struct error *error);
/* Directory of the store that holds snapshots of a workspace: state/snapshots/DIGITS. */
#define PATH_SNAPSHOTS_DIGITS 16
MUST_CHECK result
path_snapshots(const char *state, const char *workspace, struct buffer *out, struct error *error);
/* A file with these bytes in the place of what was there: whole or not at all. What is no regular file
 * (a pipe) is written to. Expected errors: IO, LIMIT. */
MUST_CHECK result path_replace(const char *path, struct view bytes, struct error *error);
/* Whether that can be done as far as it can be told. Expected errors: INVALID_INPUT. */
MUST_CHECK result path_check_replace(const char *path, struct error *error);

#endif
