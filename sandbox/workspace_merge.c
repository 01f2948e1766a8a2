/* Three-way merges of snapshots.
 *
 * The two lists of changes since the base are joined by path. A path that only one side changed is that
 * side's; one that both changed must have become the same, or be text that merges by lines. What
 * libgit2 merges whole trees with is not used: it reads attributes and drivers, and guesses renames.
 */
#include "workspace_merge.h"

#include <time.h>

#include "workspace_merge_internal.h"

#define CHANGES_MAX ((size_t)1000000) /* of one side */

static void commit_cleanup(git_commit **commit) {
    git_commit_free(*commit);
}

static void signature_cleanup(git_signature **signature) {
    git_signature_free(*signature);
}

static void side_deinit(struct merge_side *side) {
    free(side->changes);
    git_diff_free(side->diff);
    git_tree_free(side->tree);
}

static void conflict_deinit(const struct workspace_conflict *conflict) {
    void *path = NULL;
    memcpy(&path, &conflict->path, sizeof path); // ours to free, const to others
    free(path);
    memcpy(&path, &conflict->theirs, sizeof path);
    free(path);
}

static void conflicts_deinit(struct workspace_conflict *conflicts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        conflict_deinit(&conflicts[i]);
    }
    free(conflicts);
}

static void merging_deinit(struct merging *merging) {
    side_deinit(&merging->ours);
    side_deinit(&merging->theirs);
    free(merging->takes);
    conflicts_deinit(merging->conflicts, merging->conflict_count);
    free(merging->clashes);
    buffer_deinit(&merging->text);
}

void workspace_merge_deinit(struct workspace_merge *merge) {
    conflicts_deinit(merge->conflicts, merge->conflict_count);
    free(merge->text);
    *merge = (struct workspace_merge){.taken = 0};
}

const char *workspace_conflict_text(enum workspace_conflict_kind kind) {
    static const char *const texts[] = {
        [WORKSPACE_CONFLICT_LINES] = "both changed the same lines",
        [WORKSPACE_CONFLICT_WHOLE] = "both changed it, and it is not merged by lines",
        [WORKSPACE_CONFLICT_ADDED] = "both added it, differently",
        [WORKSPACE_CONFLICT_DELETED] = "one deleted or renamed it, the other changed it",
        [WORKSPACE_CONFLICT_TYPE] = "a file for one, a symlink for the other",
        [WORKSPACE_CONFLICT_DIRECTORY] = "a file for one, a directory with new files for the other",
    };
    ASSERT((size_t)kind < COUNT_OF(texts));
    return texts[kind];
}

/* ---- changes of a side ---------------------------------------------------------------------- */

static int by_path(const void *left, const void *right) {
    const struct merge_change *a = left;
    const struct merge_change *b = right;
    return strcmp(a->path, b->path);
}

static result read_side(
    struct workspace *workspace, git_tree *base, struct merge_side *side, struct error *error
) {
    TRY(workspace_compare_trees(workspace, base, side->tree, &side->diff, error));
    size_t count = git_diff_num_deltas(side->diff);
    if (count > CHANGES_MAX) {
        FAIL(error, LIMIT, "more than %zu changed files to merge", CHANGES_MAX);
    }
    side->changes = calloc(count + 1, sizeof *side->changes);
    if (side->changes == NULL) {
        FAIL(error, MEMORY, "no memory for %zu changed files", count);
    }
    for (size_t i = 0; i < count; i++) {
        const git_diff_delta *delta = git_diff_get_delta(side->diff, i);
        bool is_new = delta->status == GIT_DELTA_ADDED;
        bool is_gone = delta->status == GIT_DELTA_DELETED;
        side->changes[i] = (struct merge_change){
            .path = is_new ? delta->new_file.path : delta->old_file.path,
            .before = {delta->old_file.id, is_new ? 0 : delta->old_file.mode},
            .after = {delta->new_file.id, is_gone ? 0 : delta->new_file.mode},
        };
    }
    side->count = count;
    qsort(side->changes, count, sizeof *side->changes, by_path);
    return OK;
}

static bool is_same(const struct merge_state *a, const struct merge_state *b) {
    return a->mode == b->mode && (a->mode == 0 || git_oid_equal(&a->id, &b->id));
}

/* First change of a side whose path is not before `path`. */
static size_t lower_bound(const struct merge_side *side, const char *path) {
    size_t from = 0;
    size_t until = side->count;
    while (from < until) {
        size_t middle = from + (until - from) / 2;
        if (strcmp(side->changes[middle].path, path) < 0) {
            from = middle + 1;
        } else {
            until = middle;
        }
    }
    return from;
}

/* ---- one path ------------------------------------------------------------------------------- */

static result
grow(void **items, size_t count, size_t *capacity, size_t bytes, struct error *error) {
    if (count < *capacity) {
        return OK;
    }
    size_t wanted = *capacity == 0 ? 16 : 2 * *capacity;
    void *grown = realloc(*items, wanted * bytes);
    if (grown == NULL) {
        FAIL(error, MEMORY, "no memory for %zu conflicts", wanted);
    }
    *items = grown;
    *capacity = wanted;
    return OK;
}

static result add_conflict(
    struct merging *merging,
    const char *path,
    enum workspace_conflict_kind kind,
    struct error *error
) {
    void *items = merging->conflicts;
    TRY(grow(
        &items,
        merging->conflict_count,
        &merging->conflict_capacity,
        sizeof *merging->conflicts,
        error
    ));
    merging->conflicts = items;
    char *copy = strdup(path);
    if (copy == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    merging->conflicts[merging->conflict_count++] =
        (struct workspace_conflict){.path = copy, .kind = kind};
    return OK;
}

/* A conflict of two changes of one path. */
static result add_clash(
    struct merging *merging,
    const struct merge_change *ours,
    const struct merge_change *theirs,
    enum workspace_conflict_kind kind,
    struct error *error
) {
    void *items = merging->clashes;
    TRY(grow(
        &items, merging->clash_count, &merging->clash_capacity, sizeof *merging->clashes, error
    ));
    merging->clashes = items;
    merging->clashes[merging->clash_count++] = (struct merge_clash){ours, theirs, kind};
    return add_conflict(merging, ours->path, kind, error);
}

static void take(struct merging *merging, const struct merge_change *change) {
    ASSERT(merging->take_count < merging->theirs.count);
    merging->takes[merging->take_count++] = *change;
}

bool merge_is_text(git_blob *blob) {
    size_t bytes = (size_t)git_blob_rawsize(blob);
    const char *content = git_blob_rawcontent(blob);
    size_t lines = 0;
    if (bytes > WORKSPACE_MERGE_BYTES_MAX) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        lines += content[i] == '\n' ? 1 : 0;
        if (content[i] == '\0' || lines > WORKSPACE_MERGE_LINES_MAX) {
            return false;
        }
    }
    return true;
}

static git_merge_file_input input_of(git_blob *blob) {
    git_merge_file_input input;
    int status = git_merge_file_input_init(&input, GIT_MERGE_FILE_INPUT_VERSION);
    ASSERT(status == 0);
    input.ptr = blob != NULL ? git_blob_rawcontent(blob) : "";
    input.size = blob != NULL ? (size_t)git_blob_rawsize(blob) : 0;
    return input;
}

result merge_lines(git_blob *const blobs[3], git_merge_file_result *out, struct error *error) {
    git_merge_file_options options;
    TRY_GIT(
        git_merge_file_options_init(&options, GIT_MERGE_FILE_OPTIONS_VERSION), "libgit2 options"
    );
    options.ancestor_label = "base";
    options.our_label = MERGE_LABEL_OURS;
    options.their_label = MERGE_LABEL_THEIRS;
    options.flags = GIT_MERGE_FILE_STYLE_DIFF3;
    git_merge_file_input inputs[3];
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        inputs[i] = input_of(blobs[i]);
    }
    TRY_GIT(git_merge_file(out, &inputs[0], &inputs[1], &inputs[2], &options), "merging a file");
    return OK;
}

/* A file with markers, for whoever resolves it. */
static result
note_text(struct merging *merging, const char *path, struct view marked, struct error *error) {
    char head[TREE_PATH_BYTES_MAX + 16];
    int length = snprintf(head, sizeof head, "--- %s\n", path);
    const struct view parts[] = {view_of(head, strlen(head)), marked};
    ASSERT(length > 0);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        size_t room = merging->text.ceiling - merging->text.length;
        merging->text_truncated =
            merging->text_truncated || (room < parts[i].length && merging->text.ceiling > 0);
        TRY(buffer_append(&merging->text, view_slice(parts[i], 0, room), error));
    }
    return OK;
}

/* Merges the lines of three texts and stores them; *clean false: they conflict. */
static result join_lines(
    struct merging *merging,
    const char *path,
    git_blob *const blobs[3],
    bool *clean,
    git_oid *out,
    struct error *error
) {
    git_merge_file_result merged = {.automergeable = 0};
    TRY(merge_lines(blobs, &merged, error));
    *clean = merged.automergeable != 0;
    result done = OK;
    if (*clean) {
        int status = git_blob_create_from_buffer(
            out, merging->workspace->repository, merged.ptr, merged.len
        );
        done = status < 0 ? workspace_git_failed(error, status, "storing a merged file") : OK;
    } else {
        done = note_text(merging, path, view_of(merged.ptr, merged.len), error);
    }
    git_merge_file_result_free(&merged);
    return done;
}

/* Both changed the content of a regular file. */
static result merge_content(
    struct merging *merging,
    const struct merge_change *ours,
    const struct merge_change *theirs,
    uint16_t mode,
    struct error *error
) {
    git_repository *repository = merging->workspace->repository;
    CLEANUP(blob_cleanup) git_blob *base = NULL;
    CLEANUP(blob_cleanup) git_blob *our = NULL;
    CLEANUP(blob_cleanup) git_blob *their = NULL;
    TRY_GIT(git_blob_lookup(&base, repository, &ours->before.id), "reading a stored file");
    TRY_GIT(git_blob_lookup(&our, repository, &ours->after.id), "reading a stored file");
    TRY_GIT(git_blob_lookup(&their, repository, &theirs->after.id), "reading a stored file");
    if (!merge_is_text(base) || !merge_is_text(our) || !merge_is_text(their)) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_WHOLE, error);
    }
    git_blob *const blobs[] = {base, our, their};
    struct merge_change merged = *theirs;
    merged.after.mode = mode;
    bool clean = false;
    TRY(join_lines(merging, ours->path, blobs, &clean, &merged.after.id, error));
    if (!clean) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_LINES, error);
    }
    merging->joined += 1;
    take(merging, &merged);
    return OK;
}

/* Modes and contents are each merged alone; a mode has two values, so two changes agree. */
uint16_t merge_mode(const struct merge_change *ours, const struct merge_change *theirs) {
    return ours->after.mode == ours->before.mode ? theirs->after.mode : ours->after.mode;
}

static bool is_link(const struct merge_state *state) {
    return state->mode == GIT_FILEMODE_LINK;
}

/* Both changed the path, and not to the same. */
static result merge_path(
    struct merging *merging,
    const struct merge_change *ours,
    const struct merge_change *theirs,
    struct error *error
) {
    if (ours->after.mode == 0 || theirs->after.mode == 0) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_DELETED, error);
    }
    if (ours->before.mode == 0) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_ADDED, error);
    }
    if (is_link(&ours->after) != is_link(&theirs->after)) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_TYPE, error);
    }
    if (is_link(&ours->after) || is_link(&ours->before)) {
        return add_clash(merging, ours, theirs, WORKSPACE_CONFLICT_WHOLE, error);
    }
    uint16_t mode = merge_mode(ours, theirs);
    bool same_content = git_oid_equal(&ours->after.id, &theirs->after.id) != 0;
    bool kept_by_ours = git_oid_equal(&ours->after.id, &ours->before.id) != 0;
    bool kept_by_theirs = git_oid_equal(&theirs->after.id, &theirs->before.id) != 0;
    if (!same_content && !kept_by_ours && !kept_by_theirs) {
        return merge_content(merging, ours, theirs, mode, error);
    }
    struct merge_change merged = *theirs;
    merged.after.mode = mode;
    merged.after.id = kept_by_ours ? theirs->after.id : ours->after.id;
    take(merging, &merged);
    return OK;
}

/* ---- files against directories --------------------------------------------------------------- */

bool merge_is_added(const struct merge_change *change) {
    return change->before.mode == 0 && change->after.mode != 0;
}

/* Theirs adds a file: whether ours has added one where a directory of its path is to be. One that was
 * there theirs has deleted, which is a conflict of its own where ours changed it. */
static result check_parents(struct merging *merging, const char *path, struct error *error) {
    char prefix[TREE_PATH_BYTES_MAX + 1];
    size_t length = strlen(path);
    if (length > TREE_PATH_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "a path in the snapshot has %zu bytes", length);
    }
    memcpy(prefix, path, length + 1);
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/') {
            continue;
        }
        prefix[i] = '\0';
        size_t at = lower_bound(&merging->ours, prefix);
        const struct merge_change *change = &merging->ours.changes[at];
        if (at < merging->ours.count && strcmp(change->path, prefix) == 0 &&
            merge_is_added(change)) {
            return add_conflict(merging, prefix, WORKSPACE_CONFLICT_DIRECTORY, error);
        }
        prefix[i] = '/';
    }
    return OK;
}

/* Theirs adds a file: whether ours has added files below a directory of that name. What ours changed
 * there theirs has deleted, which is a conflict of its own. */
static result check_children(struct merging *merging, const char *path, struct error *error) {
    char prefix[TREE_PATH_BYTES_MAX + 2];
    int length = snprintf(prefix, sizeof prefix, "%s/", path);
    ASSERT(length > 0 && (size_t)length < sizeof prefix); // see check_parents
    for (size_t at = lower_bound(&merging->ours, prefix);
         at < merging->ours.count &&
         strncmp(merging->ours.changes[at].path, prefix, (size_t)length) == 0;
         at++) {
        const struct merge_change *change = &merging->ours.changes[at];
        if (merge_is_added(change)) {
            return add_conflict(merging, path, WORKSPACE_CONFLICT_DIRECTORY, error);
        }
    }
    return OK;
}

/* ---- all ------------------------------------------------------------------------------------ */

static result join_changes(struct merging *merging, struct error *error) {
    const struct merge_side *ours = &merging->ours;
    const struct merge_side *theirs = &merging->theirs;
    for (size_t i = 0, k = 0; k < theirs->count; k++) {
        const struct merge_change *change = &theirs->changes[k];
        TRY(workspace_check_time(merging->workspace, error));
        while (i < ours->count && strcmp(ours->changes[i].path, change->path) < 0) {
            i++; // only ours changed it, and has it already
        }
        if (i < ours->count && strcmp(ours->changes[i].path, change->path) == 0) {
            if (!is_same(&ours->changes[i].after, &change->after)) {
                TRY(merge_path(merging, &ours->changes[i], change, error));
            }
            continue;
        }
        take(merging, change);
        if (merge_is_added(change)) {
            TRY(check_parents(merging, change->path, error));
            TRY(check_children(merging, change->path, error));
        }
    }
    return OK;
}

static int by_conflict(const void *left, const void *right) {
    const struct workspace_conflict *a = left;
    const struct workspace_conflict *b = right;
    int order = strcmp(a->path, b->path);
    return order != 0 ? order : (a->kind > b->kind) - (a->kind < b->kind);
}

/* Each once: all files of a directory find the same one in their way. */
static void sort_conflicts(struct merging *merging) {
    size_t kept = 0;
    struct workspace_conflict *all = merging->conflicts;
    if (merging->conflict_count == 0) {
        return;
    }
    qsort(all, merging->conflict_count, sizeof *all, by_conflict);
    for (size_t i = 0; i < merging->conflict_count; i++) {
        if (kept > 0 && by_conflict(&all[kept - 1], &all[i]) == 0) {
            conflict_deinit(&all[i]);
        } else {
            all[kept++] = all[i];
        }
    }
    merging->conflict_count = kept;
}

/* The tree of ours with what is taken. Removals first: a directory may stand where a file was. */
static result write_tree(struct merging *merging, git_oid *out, struct error *error) {
    CLEANUP(index_cleanup) git_index *index = NULL;
    TRY_GIT(git_index_new(&index), "merging");
    TRY_GIT(git_index_read_tree(index, merging->ours.tree), "merging");
    size_t expected = git_index_entrycount(index);
    for (size_t i = 0; i < merging->take_count; i++) {
        const struct merge_change *change = &merging->takes[i];
        if (change->after.mode == 0) {
            TRY_GIT(git_index_remove(index, change->path, 0), "merging");
            expected -= 1;
        }
    }
    for (size_t i = 0; i < merging->take_count; i++) {
        const struct merge_change *change = &merging->takes[i];
        if (change->after.mode != 0) {
            const git_index_entry entry = {
                .mode = change->after.mode, .id = change->after.id, .path = change->path};
            TRY_GIT(git_index_add(index, &entry), "merging");
            expected += change->before.mode == 0 ? 1 : 0;
        }
    }
    // An index makes room for what is added: nothing may have gone by that.
    ASSERT(git_index_entrycount(index) == expected);
    TRY_GIT(
        git_index_write_tree_to(out, index, merging->workspace->repository), "storing a merged tree"
    );
    return OK;
}

result merge_write_commit(
    struct merging *merging,
    const struct workspace_merge_options *options,
    const git_oid *tree_id,
    git_oid *out,
    struct error *error
) {
    git_repository *repository = merging->workspace->repository;
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    CLEANUP(commit_cleanup) git_commit *ours = NULL;
    CLEANUP(commit_cleanup) git_commit *theirs = NULL;
    CLEANUP(signature_cleanup) git_signature *author = NULL;
    git_oid ids[2];
    TRY_GIT(git_oid_fromstr(&ids[0], options->ours), "a snapshot's name");
    TRY_GIT(git_oid_fromstr(&ids[1], options->theirs), "a snapshot's name");
    TRY_GIT(git_tree_lookup(&tree, repository, tree_id), "reading a tree");
    TRY_GIT(git_commit_lookup(&ours, repository, &ids[0]), "reading a snapshot");
    TRY_GIT(git_commit_lookup(&theirs, repository, &ids[1]), "reading a snapshot");
    TRY_GIT(
        git_signature_new(&author, "hearth", "hearth@localhost", (git_time_t)time(NULL), 0),
        "snapshot author"
    );
    const git_commit *parents[] = {ours, theirs};
    TRY_GIT(
        git_commit_create(
            out, repository, NULL, author, author, "UTF-8", "merged", tree, 2, parents
        ),
        "storing a merge"
    );
    return OK;
}

static result merge_all(
    struct merging *merging,
    const struct workspace_merge_options *options,
    struct workspace_merge *merge,
    struct error *error
) {
    struct workspace *workspace = merging->workspace;
    CLEANUP(tree_cleanup) git_tree *base = NULL;
    TRY(workspace_find_tree(workspace, options->base, &base, error));
    TRY(workspace_find_tree(workspace, options->ours, &merging->ours.tree, error));
    TRY(workspace_find_tree(workspace, options->theirs, &merging->theirs.tree, error));
    TRY(read_side(workspace, base, &merging->ours, error));
    TRY(read_side(workspace, base, &merging->theirs, error));
    merging->takes = calloc(merging->theirs.count + 1, sizeof *merging->takes);
    if (merging->takes == NULL) {
        FAIL(error, MEMORY, "no memory for %zu changes", merging->theirs.count);
    }
    TRY(join_changes(merging, error));
    sort_conflicts(merging);
    merge->joined = merging->joined;
    merge->taken = merging->take_count - merging->joined;
    if (merging->conflict_count > 0) {
        return options->has_marks ? merge_mark(merging, options, merge->marked, error) : OK;
    }
    git_oid tree;
    git_oid commit;
    TRY(write_tree(merging, &tree, error));
    if (git_oid_equal(&tree, git_tree_id(merging->ours.tree))) {
        memcpy(merge->commit, options->ours, sizeof merge->commit);
    } else if (git_oid_equal(&tree, git_tree_id(merging->theirs.tree))) {
        memcpy(merge->commit, options->theirs, sizeof merge->commit);
    } else {
        TRY(merge_write_commit(merging, options, &tree, &commit, error));
        TRY(workspace_keep(workspace, &commit, error));
        (void)git_oid_tostr(merge->commit, sizeof merge->commit, &commit);
    }
    return OK;
}

result workspace_merge(
    struct workspace *workspace,
    const struct workspace_merge_options *options,
    struct workspace_merge *out,
    struct error *error
) {
    CLEANUP(merging_deinit) struct merging merging = {.workspace = workspace};
    struct workspace_merge merge = {.taken = 0};
    buffer_init(&merging.text, options->text_bytes_max);
    TRY(workspace_store_lock(workspace, error)); // nothing is collected meanwhile
    workspace_store_grows(workspace);
    result merged = merge_all(&merging, options, &merge, error);
    workspace_store_unlock(workspace);
    TRY(merged);
    TRY(buffer_take(&merging.text, &merge.text, &merge.text_bytes, error));
    merge.text_truncated = merging.text_truncated;
    merge.conflicts = TAKE(merging.conflicts);
    merge.conflict_count = merging.conflict_count;
    merging.conflict_count = 0;
    *out = merge;
    return OK;
}

result workspace_apply(
    struct workspace *workspace, const char *from, const char *to, struct error *error
) {
    return workspace_restore_from(workspace, from, to, NULL, error);
}
