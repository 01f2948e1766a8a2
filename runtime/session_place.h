/* Sessions and the directories they work in: which one `last` means there, and whether a session's workspace
 * still is the directory that it worked in. */
#ifndef HEARTH_RUNTIME_SESSION_PLACE_H
#define HEARTH_RUNTIME_SESSION_PLACE_H

#include "sessions/session.h"

/* The session that a person names: an id, the beginning of one, or 'last', the newest of `directory` (null:
 * the current one). Expected errors: those of session_resolve, and NOT_FOUND (no such directory). */
MUST_CHECK result session_place_resolve(
    struct session_store *store,
    const char *word,
    const char *directory,
    struct session_id *out,
    struct error *error
);
/* `found`: the workspace's path with links resolved, which is there. Blocks on the disk. Expected errors:
 * INVALID_INPUT (a link to somewhere else, a directory made since). Thread: any. */
MUST_CHECK result
session_place_check(const struct session_tree *record, const char *found, struct error *error);

#endif
