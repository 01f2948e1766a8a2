/* Whether a session's workspace still is the directory that the session worked in. */
#ifndef HEARTH_RUNTIME_SESSION_PLACE_H
#define HEARTH_RUNTIME_SESSION_PLACE_H

#include "sessions/session.h"

/* `found`: the workspace's path with links resolved, which is there. Blocks on the disk. Expected errors:
 * INVALID_INPUT (a link to somewhere else, a directory made since). Thread: any. */
MUST_CHECK result
session_place_check(const struct session_tree *record, const char *found, struct error *error);

#endif
