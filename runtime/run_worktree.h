/* A run on a copy of its workspace (--worktree). Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_WORKTREE_H
#define HEARTH_RUNTIME_RUN_WORKTREE_H

#include "run_settings.h"

/* Makes the copy in the state directory and puts it in the place of settings->workspace; says where it
 * is. An exit status; has said why it is not STATUS_DONE. */
int run_worktree_make(struct run_settings *settings);
/* While a run works in a copy nobody removes it; *fd is -1 where the workspace is none. An exit status. */
int run_worktree_lease(const struct run_settings *settings, int *fd);

#endif
