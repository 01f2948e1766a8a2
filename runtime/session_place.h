/* Sessions and the directories they work in: which one `last` means there, and whether a session's workspace
 * still is the directory that it worked in. */
#ifndef HEARTH_RUNTIME_SESSION_PLACE_H
#define HEARTH_RUNTIME_SESSION_PLACE_H

#include "cli.h"
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
/* The directory in which a recorded session goes on, with links resolved: the one that it worked in or, where that
 * is gone, what a person names (`given`, may be null). A person who names the directory itself means it, whoever
 * made it. Blocks on the disk. Expected errors: NOT_FOUND (it is gone), UNSUPPORTED (a link or another directory
 * has its place), INVALID_INPUT (`given` is none, or is another one beside it). Thread: any. */
MUST_CHECK result session_place_find(
    const struct session_tree *record, const char *given, struct buffer *out, struct error *error
);
/* Says such a failure; returns its exit status, the same for all that a person can do with a session. */
int session_place_fail(
    const struct cli_arguments *arguments, result failed, const struct error *error
);
/* The store of a session's snapshots goes by the directory that was recorded, wherever that is by now. */
MUST_CHECK result session_place_snapshots(
    const struct session_tree *record, const char *state, struct buffer *out, struct error *error
);

#endif
