/* A folder of tasks on disk, and their files' way into the workspace of a run and out of it.
 *
 * DIR/TASK/task.json says what is asked; TASK/repo is the workspace that the agents begin with; TASK/hidden has the
 * tests that they never see: these are put into the workspace when the agents have stopped, and run there in a
 * sandbox. Made by examples/mini/harder/make_tasks.py; docs/swarm-eval.md has the members of task.json.
 * Thread: one at a time; calls block on the disk.
 */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_FOLDER_H
#define HEARTH_RUNTIME_SWARM_EVAL_FOLDER_H

#include "swarm_eval.h"

#define SWARM_EVAL_DIGEST_BYTES      65 /* hex, and NUL */
#define SWARM_EVAL_FILES_MAX         1000
#define SWARM_EVAL_FILE_BYTES_MAX    ((size_t)1 << 20)
#define SWARM_EVAL_HIDDEN_MS_DEFAULT 10000

struct json_document;
struct sandbox;

/* All borrowed from the folder. */
struct swarm_eval_item {
    struct view id; /* the directory's name */
    int64_t level;
    struct view prompt, test_command, hidden_command;
    struct view
        hidden_line; /* last line of hidden tests that pass; "": their exit status says it all */
    char *directory;
    struct json_document *document;
};

struct swarm_eval_folder {
    struct swarm_eval_item *items; /* [count], by name */
    struct swarm_eval_task *tasks; /* [count], the same for swarm_eval_plan */
    size_t count;
    char digest[SWARM_EVAL_DIGEST_BYTES]; /* of names and of all task.json */
};

/* At most `count_max` tasks (0: all), as many of each level as there are in proportion. Expected errors:
 * NOT_FOUND (no folder, no task in it), INVALID_INPUT (a task, by its name), LIMIT, MEMORY. */
MUST_CHECK result swarm_eval_folder_open(
    const char *path, size_t count_max, struct swarm_eval_folder *out, struct error *error
);
void swarm_eval_folder_close(struct swarm_eval_folder *folder); /* usable with CLEANUP */

/* Copies the repository into `workspace`, an empty directory. Expected errors: NOT_FOUND, LIMIT, IO. */
MUST_CHECK result
swarm_eval_place(const struct swarm_eval_item *item, const char *workspace, struct error *error);
/* Whether the hidden tests pass on what is in `workspace`, within time_ms_max. What the agents left in their way makes
 * them fail; a failure means that nobody knows. Expected errors: IO, UNSUPPORTED (no sandbox). */
MUST_CHECK result swarm_eval_judge(
    const struct swarm_eval_item *item,
    struct sandbox *sandbox,
    const char *workspace,
    int64_t time_ms_max,
    bool *is_solved,
    struct error *error
);
/* A directory with all that is in it. Expected errors: IO. */
MUST_CHECK result swarm_eval_remove(const char *directory, struct error *error);

#endif
