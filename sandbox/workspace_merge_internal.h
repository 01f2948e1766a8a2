/* Between workspace_merge.c (what changes come to) and workspace_merge_marks.c (a tree that shows the conflicts
 * of a merge). Internal to sandbox/. Thread: as workspace_merge.h.
 */
#ifndef HEARTH_SANDBOX_WORKSPACE_MERGE_INTERNAL_H
#define HEARTH_SANDBOX_WORKSPACE_MERGE_INTERNAL_H

#include "tree_files.h"
#include "workspace_internal.h"
#include "workspace_merge.h"

#define MERGE_LABEL_OURS   "ours"
#define MERGE_LABEL_THEIRS "theirs"

/* A file in a tree; mode 0: it is not there. */
struct merge_state {
    git_oid id;
    uint16_t mode;
};

/* What one side did to a path, which is borrowed from the difference. */
struct merge_change {
    const char *path;
    struct merge_state before, after;
};

struct merge_side {
    git_tree *tree;
    git_diff *diff;
    struct merge_change *changes; /* sorted by path */
    size_t count;
};

/* Two changes of one path that do not go together. */
struct merge_clash {
    const struct merge_change *ours, *theirs;
    enum workspace_conflict_kind kind;
};

struct merging {
    struct workspace *workspace;
    struct merge_side ours, theirs;
    struct merge_change *takes; /* [theirs.count] what is to be done to ours, sorted */
    size_t take_count;
    size_t joined;
    struct workspace_conflict *conflicts; /* paths are owned */
    size_t conflict_count, conflict_capacity;
    struct merge_clash *clashes;
    size_t clash_count, clash_capacity;
    struct buffer text;
    bool text_truncated;
};

static inline void index_cleanup(git_index **index) {
    git_index_free(*index);
}

bool merge_is_added(const struct merge_change *change);
bool merge_is_text(git_blob *blob); /* that is merged by lines */
/* Of a file that both have. */
uint16_t merge_mode(const struct merge_change *ours, const struct merge_change *theirs);
/* Base (null: empty), ours, theirs; with markers where automergeable is 0. The caller frees `out`. Expected
 * errors: IO. */
MUST_CHECK result
merge_lines(git_blob *const blobs[3], git_merge_file_result *out, struct error *error);
/* A commit of a tree with both sides as its parents. */
MUST_CHECK result merge_write_commit(
    struct merging *merging,
    const struct workspace_merge_options *options,
    const git_oid *tree,
    git_oid *out,
    struct error *error
);

/* With the store's lock, behind the sorted conflicts, of which there are some: stores what the header says of
 * workspace_merge.marked. */
MUST_CHECK result merge_mark(
    struct merging *merging,
    const struct workspace_merge_options *options,
    char marked[WORKSPACE_COMMIT_BYTES],
    struct error *error
);

#endif
