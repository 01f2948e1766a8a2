/* Snapshots of a working tree in a store outside of it: what changed, and how to go back.
 *
 * The store is a bare git directory of our own (libgit2). The user's own repository, its
 * configuration, hooks, filters and attributes are neither read nor written. Ignored files
 * (.gitignore), `.git` directories and files over WORKSPACE_FILE_BYTES_MAX are left out, and said.
 * Thread: any, one at a time per object; calls block on the disk, so use a worker.
 */
#ifndef HEARTH_SANDBOX_WORKSPACE_H
#define HEARTH_SANDBOX_WORKSPACE_H

#include "base/bytes.h"

#define WORKSPACE_FILE_BYTES_MAX ((uint64_t)10 << 20)
#define WORKSPACE_COMMIT_BYTES   41 /* 40 hex digits and NUL */

struct workspace;

/* `directory` is the working tree, `store` a directory for the git data, created when missing
 * (0700); it must not lie inside the tree. Expected errors: NOT_FOUND, INVALID_INPUT, IO. */
MUST_CHECK result workspace_open(
    const char *directory, const char *store, struct workspace **out, struct error *error
);
/* The store alone, whose tree may be gone: to measure, collect and compare. Expected errors: NOT_FOUND
 * (there is none), IO. */
MUST_CHECK result
workspace_open_store(const char *store, struct workspace **out, struct error *error);
void workspace_close(struct workspace *workspace);
void workspace_cleanup(struct workspace **workspace); /* for CLEANUP */

struct workspace_snapshot {
    char commit[WORKSPACE_COMMIT_BYTES];
    size_t files;            /* in the snapshot */
    size_t skipped;          /* left out: too large, unreadable, or of a kind git cannot hold */
    char skipped_names[480]; /* the first few, separated by blanks */
    uint64_t bytes_read;     /* of files that were new or changed: the store grows by less */
};

/* Records the tree as it is; unchanged files are not read again. `message` becomes the commit's.
 * Expected errors: IO, MEMORY, NOT_FOUND (the directory was removed), TIMEOUT (see workspace_limit_time), LIMIT
 * (another process has used the store for half a minute). */
MUST_CHECK result workspace_take_snapshot(
    struct workspace *workspace,
    const char *message,
    struct workspace_snapshot *out,
    struct error *error
);

/* Snapshots, the one in progress too, fail with TIMEOUT once the monotonic clock has reached
 * `until_ms`; INT64_MAX (the beginning) for no limit. Thread: any, at any time. */
void workspace_limit_time(struct workspace *workspace, int64_t until_ms);

/* Bytes that a store's objects take on the disk. Kept in the store until the next snapshot, so that asking
 * again costs a file. Expected errors: NOT_FOUND (no store), LIMIT (another process uses the store),
 * TIMEOUT (at `until_ms`, as workspace_limit_time). */
MUST_CHECK result
workspace_measure(const char *store, int64_t until_ms, uint64_t *bytes, struct error *error);

#define WORKSPACE_NOT_THERE UINT64_MAX

struct workspace_weight {
    uint64_t bytes; /* of the store's objects on disk */
    uint64_t fixed; /* of these, what the latest snapshot and the next one need */
};

/* pins [count] are snapshots, those first that are to stay longest. bytes[i] receives what a pin needs
 * beside those before it and the fixed part, WORKSPACE_NOT_THERE for one that the store does not have.
 * Expected errors: as workspace_collect. */
MUST_CHECK result workspace_weigh(
    struct workspace *workspace,
    const char *const *pins,
    size_t count,
    uint64_t *bytes,
    struct workspace_weight *out,
    struct error *error
);

#define WORKSPACE_COLLECT_AGE_S 3600

struct workspace_collect_options {
    const char *const *pins; /* [count] snapshots that a session refers to */
    size_t count;
    size_t keep; /* the first ones stay; those behind go, before anything that they need */
    int64_t
        age_s; /* snapshots younger than this stay, pinned or not: another process may have taken
                        * one and not recorded it (WORKSPACE_COLLECT_AGE_S); 0: there is none */
    bool drops_latest; /* the latest one goes too, unless it is pinned */
    bool is_trial;     /* says what would go */
};

struct workspace_collected {
    uint64_t bytes_before; /* of the store's objects on disk */
    uint64_t bytes_after;
    size_t removed; /* files */
    size_t missing; /* of those to keep: the store does not have them */
    size_t damaged; /* of those to keep: not whole; what there is of them stays */
    bool is_cut;    /* there was no time for all (workspace_limit_time); the next one goes on */
};

/* Removes what neither a pinned snapshot nor the latest one needs. A snapshot that goes is not found any
 * more from the first moment on, so that one that was interrupted leaves none of which a part is gone.
 * Expected errors: MEMORY, IO, TIMEOUT (nothing was removed), LIMIT (another process uses the store). */
MUST_CHECK result workspace_collect(
    struct workspace *workspace,
    const struct workspace_collect_options *options,
    struct workspace_collected *out,
    struct error *error
);

enum workspace_change { WORKSPACE_ADDED, WORKSPACE_DELETED, WORKSPACE_MODIFIED, WORKSPACE_TYPE };

struct workspace_file_change {
    const char *path;
    enum workspace_change change;
    bool binary;
    size_t lines_added;
    size_t lines_removed;
};

struct workspace_difference {
    struct workspace_file_change *files; /* sorted by path */
    size_t file_count;
    size_t lines_added;
    size_t lines_removed;
    char *patch; /* unified text of all files, NUL-terminated; cut at patch_bytes_max */
    size_t patch_bytes;
    bool patch_truncated;
};

/* Difference between two snapshots. `patch_bytes_max` 0 leaves the text out.
 * Expected errors: NOT_FOUND (no such commit), MEMORY. */
MUST_CHECK result workspace_compare(
    struct workspace *workspace,
    const char *from_commit,
    const char *to_commit,
    size_t patch_bytes_max,
    struct workspace_difference *out,
    struct error *error
);
/* The same, the text with the contents of binary files: what `git apply` takes. */
MUST_CHECK result workspace_compare_whole(
    struct workspace *workspace,
    const char *from_commit,
    const char *to_commit,
    size_t patch_bytes_max,
    struct workspace_difference *out,
    struct error *error
);
void workspace_difference_deinit(struct workspace_difference *difference);

/* Of either text; the cost grows faster than the number of lines (workspace_merge.h). */
#define WORKSPACE_TEXT_BYTES_MAX ((size_t)1 << 20)
#define WORKSPACE_TEXT_LINES_MAX ((size_t)20000)
/* Appends what makes one text of the other, as hunks of a unified diff: "@@ ...", then lines that begin with
 * "-", "+" or a blank, two of them around each change; nothing when they are equal. Needs no workspace.
 * Expected errors: LIMIT (a text is too large), INVALID_INPUT (binary), MEMORY. */
MUST_CHECK result workspace_compare_texts(
    struct view old_text, struct view new_text, struct buffer *out, struct error *error
);

/* Makes the tree what it was at `commit`: changed and deleted files come back, new files that a
 * snapshot would hold go; ignored and skipped ones stay. Takes a snapshot of the present state
 * first (`before`, may be null). Holds the lock that a sandboxed command in the same workspace
 * holds. Expected errors: NOT_FOUND (no such snapshot, or not whole: nothing was changed), LIMIT (a command runs there), INVALID_INPUT
 * (ignored or skipped files stand where files of the snapshot were: named, nothing was changed), IO
 * (the message names the snapshot of before). */
MUST_CHECK result workspace_restore(
    struct workspace *workspace,
    const char *commit,
    struct workspace_snapshot *before,
    struct error *error
);

/* A piece of work, such as one call: the snapshots around it. */
struct workspace_stretch {
    const char *from, *to;
};

struct workspace_undone {
    char before[WORKSPACE_COMMIT_BYTES]; /* safety snapshot */
    char after[WORKSPACE_COMMIT_BYTES];
    size_t files; /* put back */
};

/* Takes back what the stretches [count], oldest first, changed, and nothing else: each file that one of
 * them touched becomes what it was before the first of them. Refuses, before anything is changed, when
 * somebody else changed one of these files between the stretches or since, or where an ignored or
 * skipped file stands in the way; files that are back already are left. A snapshot is taken first.
 * Holds the lock that a sandboxed command in the same workspace holds. Expected errors: NOT_FOUND (no
 * such snapshot), INVALID_INPUT (changed by somebody else: named), LIMIT (a command runs there), IO. */
MUST_CHECK result workspace_undo(
    struct workspace *workspace,
    const struct workspace_stretch *stretches,
    size_t count,
    struct workspace_undone *out,
    struct error *error
);

#endif
