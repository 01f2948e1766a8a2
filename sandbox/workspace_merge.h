/* Merges snapshots: what two copies of one tree changed becomes one tree, or is named as a conflict.
 *
 * Works on snapshots alone (workspace.h); the tree is changed by workspace_apply only. Neither the
 * user's git configuration nor attributes or filters act: text is merged by its lines as they are
 * stored. A rename is a deletion and an addition.
 * Thread: any, one at a time per workspace; calls block on the disk, so use a worker.
 */
#ifndef HEARTH_SANDBOX_WORKSPACE_MERGE_H
#define HEARTH_SANDBOX_WORKSPACE_MERGE_H

#include "workspace.h"

/* Larger files are not merged by lines, whose cost grows faster than their number: of random digits,
 * 100,000 lines take 0.6 s of processor time, 2,000,000 more than 30 s. */
#define WORKSPACE_MERGE_BYTES_MAX ((size_t)4 << 20)
#define WORKSPACE_MERGE_LINES_MAX ((size_t)100000)

/* Brings a snapshot, under its own name, from the store of another workspace, such as a copy's. Like a
 * merge's commit it is kept for WORKSPACE_COLLECT_AGE_S; for longer the caller pins it
 * (workspace_collect), as it does with the base. Expected errors: NOT_FOUND (no such
 * store or snapshot), CORRUPT (not whole, or too large for a snapshot), LIMIT (the store is in use), IO. */
MUST_CHECK result workspace_import(
    struct workspace *workspace, const char *store, const char *commit, struct error *error
);

enum workspace_conflict_kind {
    WORKSPACE_CONFLICT_LINES,     /* both changed the same or adjacent lines */
    WORKSPACE_CONFLICT_WHOLE,     /* both changed what has no lines: binary, a symlink, too large */
    WORKSPACE_CONFLICT_ADDED,     /* both added it, differently */
    WORKSPACE_CONFLICT_DELETED,   /* one deleted or renamed it, the other changed it */
    WORKSPACE_CONFLICT_TYPE,      /* a file for one, a symlink for the other */
    WORKSPACE_CONFLICT_DIRECTORY, /* a file for one, a directory with new files for the other */
};

const char *workspace_conflict_text(enum workspace_conflict_kind kind); /* a short sentence */

struct workspace_conflict {
    const char *path;
    enum workspace_conflict_kind kind;
    /* With has_marks: where the marked tree has theirs, beside ours. Null: it has both in one file, with
     * markers, or there is one alone. */
    const char *theirs;
};

struct workspace_merge {
    char commit[WORKSPACE_COMMIT_BYTES]; /* "" when there is a conflict */
    /* With has_marks and a conflict, else "": all that could be merged, and of the rest both sides: lines
     * between "<<<<<<< ours", "||||||| base", "=======" and ">>>>>>> theirs", or theirs beside ours, or what one
     * changed and the other deleted. Kept as `commit` is. */
    char marked[WORKSPACE_COMMIT_BYTES];
    size_t taken;                         /* files that come from theirs as they are, or go */
    size_t joined;                        /* files that both changed, merged by lines */
    struct workspace_conflict *conflicts; /* sorted by path */
    size_t conflict_count;
    char *text; /* files with conflicting lines, each with markers; NUL-terminated, cut */
    size_t text_bytes;
    bool text_truncated;
};

struct workspace_merge_options {
    const char *base;      /* the snapshot that both began with */
    const char *ours;      /* of the workspace that is to receive the merge */
    const char *theirs;    /* see workspace_import */
    size_t text_bytes_max; /* 0: no text */
    bool has_marks;        /* somebody is to resolve the conflicts */
};

/* Merges what became of `base` in `theirs` into `ours`. Conflicts are no error; then nothing but `marked` is
 * stored. Where one side has all that the other has, the commit is that side's.
 * Expected errors: NOT_FOUND (no such snapshot), LIMIT (too many changes, or the store is in use), TIMEOUT
 * (workspace_limit_time), IO. */
MUST_CHECK result workspace_merge(
    struct workspace *workspace,
    const struct workspace_merge_options *options,
    struct workspace_merge *out,
    struct error *error
);
void workspace_merge_deinit(struct workspace_merge *merge); /* for CLEANUP */

/* Appends the conflicts of a merge with marks that are as they were in snapshot `commit`: a file that still has
 * the markers, theirs still beside ours; paths, one a line. Expected errors: NOT_FOUND (no such snapshot), MEMORY. */
MUST_CHECK result workspace_merge_unresolved(
    struct workspace *workspace,
    const struct workspace_merge *merge,
    const char *commit,
    struct buffer *out,
    struct error *error
);

/* Makes the tree what it is in `to` (of a merge), if it still is what it is in `from` (the merge's
 * ours); otherwise names what differs and changes nothing. Each file is replaced whole; where the
 * process is killed meanwhile, workspace_restore to `from` takes all of it back. Holds the lock that a
 * sandboxed command in the same workspace holds. Expected errors: as workspace_restore, INVALID_INPUT
 * also where the tree is not `from`. */
MUST_CHECK result
workspace_apply(struct workspace *workspace, const char *from, const char *to, struct error *error);

#endif
