/* Patterns of paths as git's ignore files have them, and the walk through a workspace that honours
 * those files. Internal to tools/. Thread: one at a time.
 */
#ifndef HEARTH_TOOLS_TOOL_MATCH_H
#define HEARTH_TOOLS_TOOL_MATCH_H

#include "tool_internal.h"

/* One name, or part of a path: * ? [a-z] [!a] [[:alpha:]] \x, byte by byte. */
bool pattern_fits_name(struct view pattern, struct view name);
/* The parts of a path against those of the pattern; a part ** stands for any number of them, at the
 * end for at least one. Time is their product at most. */
bool pattern_fits_path(struct view pattern, struct view path);

#define PATTERNS_MAX ((size_t)100)
/* "a.{c,h}" as "a.c" and "a.h", each with a NUL behind it in `out`. Expected errors: MEMORY, LIMIT
 * (more than PATTERNS_MAX). */
MUST_CHECK result patterns_expand(struct view pattern, struct buffer *out, struct error *error);
/* A glob as tools take it: one of the patterns of patterns_expand; one without a slash is that of a
 * name in any directory. */
bool patterns_fit(const struct buffer *patterns, struct view path);

#define IGNORE_BYTES_MAX ((size_t)256 << 10) /* read of one ignore file */
#define IGNORE_RULES_MAX ((size_t)20000)     /* in force at one time */

struct ignore_rule {
    struct view pattern; /* of the level's text */
    bool is_negated;
    bool is_for_directories;
    bool is_for_paths; /* relative to the level's directory; else for names */
};

struct ignore_level {
    char *directory; /* "" is the root */
    struct buffer text;
    struct ignore_rule *rules;
    size_t rule_count;
};

/* The ignore files of a directory and of those above it. All zero is empty. */
struct ignore {
    struct ignore_level *levels;
    size_t count;
    size_t room;
};

void ignore_deinit(struct ignore *ignore);
/* Leaves the directories that are not above `directory` and adds a file of that one. */
MUST_CHECK result ignore_enter(
    struct ignore *ignore, const char *directory, struct view content, struct error *error
);
/* Of an entry of the directory that was entered last; its parents are not ignored. */
bool ignore_covers(const struct ignore *ignore, const char *path, bool is_directory);

/* Goes through directories without recursion: of each first all entries by name, then the
 * directories in it. Left out are .git and, if wanted, what is ignored. Links are not followed. */
struct walk {
    struct tool_context *context;
    struct tool_result *out;
    bool honours_ignore;
    unsigned depth_max; /* 0: any */
    bool is_full;       /* set by a visitor to end it, or by a limit of the walk */
    bool has_stopped;   /* cancelled or out of time: the answer says so */
    size_t skipped;     /* directories that could not be read */
    size_t hidden;      /* entries that a rule keeps from the running tool */
    struct ignore ignore;
    struct buffer waiting; /* a stack of paths, each with a NUL behind it */
};

typedef result
walk_visit(void *context, const char *path, const struct beneath_entry *entry, struct error *error);
/* `start` is a directory of the workspace, "." for all of it. */
MUST_CHECK result walk_run(
    struct walk *walk,
    const char *start,
    walk_visit *visit,
    void *visit_context,
    struct error *error
);
void walk_deinit(struct walk *walk);
/* Whether a rule hides an entry. Counts it, not a directory in which entries will be counted. */
bool walk_hides(struct walk *walk, const char *path, bool counts);
/* Ends the answer with the number of those. */
MUST_CHECK result walk_tell_hidden(const struct walk *walk, struct error *error);

/* The directory that an argument names, or the answer says why it is none. With `may_be_file` also
 * a file. */
MUST_CHECK result walk_start(
    struct tool_context *context,
    struct view given,
    bool may_be_file,
    char path[TOOL_PATH_BYTES],
    struct beneath_info *info,
    bool *usable,
    struct tool_result *out,
    struct error *error
);

#endif
