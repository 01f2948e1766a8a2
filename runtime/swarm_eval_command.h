/* hearth swarm --eval TASKS: a folder of tasks under several settings; docs/swarm-eval.md. Thread: main. */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_COMMAND_H
#define HEARTH_RUNTIME_SWARM_EVAL_COMMAND_H

#include "cli.h"

/* Of `hearth swarm`. */
/* clang-format off */
#define SWARM_EVAL_OPTIONS                                                                         \
    {"eval", 0, "TASKS", "run a folder of tasks under several settings, and compare them"},        \
    {"eval-results", 0, "FILE", "one line a run; a rerun goes on there (default: eval.jsonl)"},    \
    {"eval-report", 0, "FILE", "all figures as JSON, for scripts/draw_eval"},                      \
    {"eval-settings", 0, "NAMES", "comma-separated (default: all; docs/swarm-eval.md)"},           \
    {"eval-seeds", 0, "N", "runs of each task and setting (default: 3)"},                          \
    {"eval-tasks", 0, "N", "only N of the tasks, of all levels (default: all)"}
/* clang-format on */

/* With --eval. Returns the exit status. */
int swarm_eval_command(const struct cli_arguments *arguments);

#endif
