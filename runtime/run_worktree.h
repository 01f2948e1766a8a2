/* A run on a copy of its workspace (--worktree), from its making to its end. Thread: main.
 *
 * A copy in which nothing was changed goes when the run ends. A session whose copy went so gets a new one
 * in its place when it goes on.
 */
#ifndef HEARTH_RUNTIME_RUN_WORKTREE_H
#define HEARTH_RUNTIME_RUN_WORKTREE_H

#include "run_settings.h"

/* Makes the copy in the state directory and puts it in the place of settings->workspace, which becomes
 * settings->worktree_of; says where it is. With a lease of it. An exit status; has said why it is not
 * STATUS_DONE. */
int run_worktree_make(struct run_settings *settings);
/* Makes the copy of a session that goes on once more, at `path`, which is gone. STATUS_USAGE, and nothing
 * is said: it has no copy, or one in which something was changed. */
int run_worktree_make_again(struct run_settings *settings, const char *path);
/* While a run works in a copy nobody removes it; *fd stays -1 where the workspace is none. An exit status. */
int run_worktree_lease(const struct run_settings *settings, int *fd);
/* At the very end, all that works in the copy closed: removes it, or says what takes the work home. Ends
 * the lease. */
void run_worktree_end(
    const struct run_settings *settings, const struct session_id *session, int *lease
);

#endif
