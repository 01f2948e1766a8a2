/* What the files that load a session's tree share. Internal to sessions/. Thread: that of
 * session_load. */
#ifndef HEARTH_SESSIONS_SESSION_LOADER_H
#define HEARTH_SESSIONS_SESSION_LOADER_H

#include "session_row.h"

struct loader {
    struct session_store *store;
    struct arena *arena;
    struct session_load_options options;
};

/* session_swarm_load.c: by rows of session and agent. */
MUST_CHECK result loader_load_swarms(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
);
MUST_CHECK result loader_load_mail(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
);
/* Leaves agent->node null when the agent is of no swarm. */
MUST_CHECK result loader_load_node(
    const struct loader *loader, int64_t agent, struct session_agent *out, struct error *error
);

#endif
