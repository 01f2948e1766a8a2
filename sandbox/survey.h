/* Walks a working tree in small steps: how much it holds, and which changed files carry a setuid
 * or setgid bit, or are a git directory's below the top. Internal to sandbox/.
 *
 * Built for a tree that a hostile process changes meanwhile: one descriptor at a time, no
 * recursion, no symlinks followed, and on the way up each ".." must be the directory we came from,
 * or the pass is called disturbed. Thread: one at a time.
 */
#ifndef HEARTH_SANDBOX_SURVEY_H
#define HEARTH_SANDBOX_SURVEY_H

#include <dirent.h>
#include <sys/types.h>
#include <time.h>

#include "base/bytes.h"

struct survey_totals {
    int64_t bytes; /* allocated, each hard-linked file counted once per name */
    int64_t entries;
    bool is_whole; /* false: something could not be read, or moved while we looked */
};

struct survey_level;

struct survey {
    DIR *current;
    struct survey_level *levels; /* from the root to the current directory */
    size_t depth;
    size_t capacity;
    struct buffer names; /* directories still to visit, NUL after each, of all levels */
    struct survey_totals totals;
    bool is_running;
    bool strips; /* takes away setuid and setgid bits of files changed since `since` */
    struct timespec since;
    unsigned stripped;
    unsigned nested_git; /* `.git`, its config or hooks below the top that changed since `since` */
};

/* Begins a pass over the tree below `root_fd` (borrowed for this call only); an unfinished pass is
 * dropped. `since` null: only count. Expected errors: IO, MEMORY. */
MUST_CHECK result
survey_begin(struct survey *survey, int root_fd, const struct timespec *since, struct error *error);
/* Looks at up to `entries_max` entries; true when the pass is over and totals are final. */
bool survey_step(struct survey *survey, size_t entries_max);
void survey_deinit(struct survey *survey);

#endif
