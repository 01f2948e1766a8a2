/* The agents of a session as a tree: who did what, what came of it, what it cost, and their mail. Pure. */
#ifndef HEARTH_RUNTIME_CLI_SESSIONS_TREE_H
#define HEARTH_RUNTIME_CLI_SESSIONS_TREE_H

#include "sessions/session.h"

/* Lines of at most 80 columns. Expected errors: MEMORY. */
MUST_CHECK result
sessions_put_tree(struct buffer *out, const struct session_tree *tree, struct error *error);

#endif
