/* Ways back in a recorded session: to a turn, or one change of files less. Blocks on the disk. Thread:
 * one worker at a time, as store and workspace.
 */
#ifndef HEARTH_RUNTIME_REWIND_H
#define HEARTH_RUNTIME_REWIND_H

#include "sandbox/workspace.h"
#include "sessions/session.h"

/* The workspace's snapshot behind a turn of the root agent: that of the last call until then; INT64_MAX: the
 * last one, also of files that were put back. "": none. */
struct view rewind_commit_behind(const struct session_tree *tree, int64_t index);

/* A failure of the workspace as one of the session: snapshots go (retention.h). */
MUST_CHECK result
rewind_note_lost(result failed, const struct session_id *session, struct error *error);

/* Ends the root agent's context at turn `index` (-1: before the first) and takes back what the calls
 * behind it changed. `workspace` null: files are left alone. *out is zero then. Expected errors: NOT_FOUND
 * (no such turn), INVALID_INPUT (unanswered calls; files that somebody else changed: named), LIMIT (a
 * command runs in the workspace), and those of the store. */
MUST_CHECK result rewind_to_turn(
    struct session_store *store,
    const struct session_tree *tree,
    struct workspace *workspace,
    int64_t index,
    struct workspace_undone *out,
    struct error *error
);

/* Takes back the files of the newest call that changed some and was not undone yet; the context stays.
 * Expected errors: NOT_FOUND (there is none), else as above. */
MUST_CHECK result rewind_undo(
    struct session_store *store,
    const struct session_tree *tree,
    struct workspace *workspace,
    struct workspace_undone *out,
    struct error *error
);

#endif
