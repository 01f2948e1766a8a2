/* A tree that shows the conflicts of a merge, for whoever resolves them, and whether somebody did.
 *
 * What could be merged is merged; of the rest both sides are there: in one file with markers where both are
 * text, else theirs stands beside ours under a name of its own.
 */
#include "workspace_merge_internal.h"

#define BESIDE_SUFFIX    ".theirs"
#define BESIDE_TRIES     9U
#define PATH_BYTES       (TREE_PATH_BYTES_MAX + 1)
#define MARKED_BYTES_MAX (4 * WORKSPACE_MERGE_BYTES_MAX)

static const char marker_ours[] = "<<<<<<< " MERGE_LABEL_OURS;
static const char marker_theirs[] = ">>>>>>> " MERGE_LABEL_THEIRS;

/* What of theirs stands under another name, because ours has a file or directory of its own there. */
struct moved {
    char *path, *name;
};

struct marking {
    struct merging *merging;
    git_index *index;
    struct moved *moved;
    size_t moved_count;
};

static void marking_deinit(struct marking *marking) {
    for (size_t i = 0; i < marking->moved_count; i++) {
        free(marking->moved[i].path);
        free(marking->moved[i].name);
    }
    free(marking->moved);
    git_index_free(marking->index);
}

/* ---- names beside ------------------------------------------------------------------------------- */

static bool is_taken(git_index *index, const char *path) {
    char below[PATH_BYTES + 1];
    int length = snprintf(below, sizeof below, "%s/", path);
    ASSERT(length > 0 && (size_t)length < sizeof below);
    return git_index_get_bypath(index, path, 0) != NULL ||
           git_index_find_prefix(NULL, index, below) == 0;
}

/* Whether theirs has something there, which would come later and take the place. */
static bool is_theirs(git_tree *theirs, const char *path) {
    git_tree_entry *entry = NULL;
    bool is_there = git_tree_entry_bypath(&entry, theirs, path) == 0;
    git_tree_entry_free(entry);
    return is_there;
}

/* The first conflict whose path is not before `path`. */
static struct workspace_conflict *find_conflict(struct merging *merging, const char *path) {
    size_t from = 0;
    size_t until = merging->conflict_count;
    while (from < until) {
        size_t middle = from + (until - from) / 2;
        if (strcmp(merging->conflicts[middle].path, path) < 0) {
            from = middle + 1;
        } else {
            until = middle;
        }
    }
    return from < merging->conflict_count ? &merging->conflicts[from] : NULL;
}

static result
add_moved(struct marking *marking, const char *path, const char *name, struct error *error) {
    void *grown = realloc(marking->moved, (marking->moved_count + 1) * sizeof marking->moved[0]);
    if (grown != NULL) {
        marking->moved = grown;
        struct moved *moved = &marking->moved[marking->moved_count++];
        *moved = (struct moved){strdup(path), strdup(name)};
        if (moved->path != NULL && moved->name != NULL) {
            return OK;
        }
    }
    FAIL(error, MEMORY, "no memory for a path");
}

/* Where theirs of `path` lies beside ours; the same at each call. */
static result
name_beside(struct marking *marking, const char *path, const char **out, struct error *error) {
    for (size_t i = 0; i < marking->moved_count; i++) {
        if (strcmp(marking->moved[i].path, path) == 0) {
            *out = marking->moved[i].name;
            return OK;
        }
    }
    for (unsigned i = 1; i <= BESIDE_TRIES; i++) {
        char name[PATH_BYTES];
        char digits[16] = "";
        if (i > 1) {
            (void)snprintf(digits, sizeof digits, "%u", i);
        }
        int length = snprintf(name, sizeof name, "%s" BESIDE_SUFFIX "%s", path, digits);
        if (length > 0 && (size_t)length < sizeof name && !is_taken(marking->index, name) &&
            !is_theirs(marking->merging->theirs.tree, name)) {
            TRY(add_moved(marking, path, name, error));
            *out = marking->moved[marking->moved_count - 1].name;
            return OK;
        }
    }
    FAIL(error, LIMIT, "there is no free name beside '%.300s'", path);
}

/* The conflict of a path, or the first one below it when it ends in '/'. */
static struct workspace_conflict *conflict_at(struct merging *merging, const char *path) {
    struct workspace_conflict *found = find_conflict(merging, path);
    size_t length = strlen(path);
    bool is_it = found != NULL && strncmp(found->path, path, length) == 0 &&
                 (found->path[length] == '\0' || path[length - 1] == '/');
    return is_it ? found : NULL;
}

/* Theirs of `path` is at `name`: says so at the conflict that it is about, which is that of the path, or
 * of the file or directory `place` that stood in its way, or lies below it. */
static result note_theirs(
    struct marking *marking,
    const char *path,
    const char *place,
    const char *name,
    struct error *error
) {
    char below[PATH_BYTES + 1];
    (void)snprintf(below, sizeof below, "%s/", place);
    const char *const paths[] = {path, place, below};
    struct workspace_conflict *conflict = NULL;
    for (size_t i = 0; i < COUNT_OF(paths) && conflict == NULL; i++) {
        conflict = conflict_at(marking->merging, paths[i]);
    }
    if (conflict == NULL) {
        FAIL(error, CORRUPT, "a merge has no place for '%.300s'", path);
    }
    if (conflict->theirs == NULL) {
        conflict->theirs = strdup(name);
    }
    if (conflict->theirs == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    return OK;
}

/* ---- the tree ----------------------------------------------------------------------------------- */

static result add_entry(
    struct marking *marking, const char *path, const struct merge_state *file, struct error *error
) {
    const git_index_entry entry = {.mode = file->mode, .id = file->id, .path = path};
    size_t before = git_index_entrycount(marking->index);
    bool is_there = git_index_get_bypath(marking->index, path, 0) != NULL;
    TRY_GIT(git_index_add(marking->index, &entry), "merging");
    // An index makes room for what is added: nothing may have gone by that.
    ASSERT(git_index_entrycount(marking->index) == before + (is_there ? 0 : 1));
    return OK;
}

static result add_beside(
    struct marking *marking, const char *path, const struct merge_state *file, struct error *error
) {
    const char *beside = NULL;
    TRY(name_beside(marking, path, &beside, error));
    TRY(note_theirs(marking, path, path, beside, error));
    return add_entry(marking, beside, file, error);
}

/* A file of theirs; beside ours where a file stands for a directory of its path, or the other way. */
static result add_theirs(
    struct marking *marking, const char *path, const struct merge_state *file, struct error *error
) {
    char prefix[PATH_BYTES];
    char moved[PATH_BYTES];
    const char *beside = NULL;
    size_t length = strlen(path);
    if (length >= sizeof prefix) {
        FAIL(error, INVALID_INPUT, "a path in the snapshot has %zu bytes", length);
    }
    memcpy(prefix, path, length + 1);
    for (size_t i = 1; i < length; i++) {
        if (path[i] != '/') {
            continue;
        }
        prefix[i] = '\0';
        if (git_index_get_bypath(marking->index, prefix, 0) != NULL) {
            TRY(name_beside(marking, prefix, &beside, error));
            int written = snprintf(moved, sizeof moved, "%s%s", beside, path + i);
            if (written < 0 || (size_t)written >= sizeof moved) {
                FAIL(error, LIMIT, "there is no free name beside '%.300s'", prefix);
            }
            bool is_named = conflict_at(marking->merging, path) == NULL;
            TRY(note_theirs(marking, path, prefix, is_named ? beside : moved, error));
            return add_entry(marking, moved, file, error);
        }
        prefix[i] = '/';
    }
    bool is_free =
        git_index_get_bypath(marking->index, path, 0) != NULL || !is_taken(marking->index, path);
    return is_free ? add_entry(marking, path, file, error) : add_beside(marking, path, file, error);
}

static result store_marked(
    struct marking *marking,
    git_blob *const blobs[3],
    const struct merge_clash *clash,
    struct error *error
) {
    git_merge_file_result merged = {.automergeable = 0};
    struct merge_state file = {.mode = merge_mode(clash->ours, clash->theirs)};
    git_repository *repository = marking->merging->workspace->repository;
    TRY(merge_lines(blobs, &merged, error));
    int status = git_blob_create_from_buffer(&file.id, repository, merged.ptr, merged.len);
    git_merge_file_result_free(&merged);
    TRY_GIT(status, "storing a merged file");
    return add_entry(marking, clash->ours->path, &file, error);
}

/* Both have it: one file with markers, or theirs beside ours. */
static result
mark_both(struct marking *marking, const struct merge_clash *clash, struct error *error) {
    CLEANUP(blob_cleanup) git_blob *base = NULL;
    CLEANUP(blob_cleanup) git_blob *our = NULL;
    CLEANUP(blob_cleanup) git_blob *their = NULL;
    git_repository *repository = marking->merging->workspace->repository;
    const struct merge_state *ours = &clash->ours->after;
    const struct merge_state *theirs = &clash->theirs->after;
    bool are_files = ours->mode != GIT_FILEMODE_LINK && theirs->mode != GIT_FILEMODE_LINK;
    bool has_base = clash->kind == WORKSPACE_CONFLICT_LINES;
    if ((!has_base && clash->kind != WORKSPACE_CONFLICT_ADDED) || !are_files) {
        return add_beside(marking, clash->ours->path, theirs, error);
    }
    if (has_base) {
        const git_oid *id = &clash->ours->before.id;
        TRY_GIT(git_blob_lookup(&base, repository, id), "reading a stored file");
    }
    TRY_GIT(git_blob_lookup(&our, repository, &ours->id), "reading a stored file");
    TRY_GIT(git_blob_lookup(&their, repository, &theirs->id), "reading a stored file");
    if (!merge_is_text(our) || !merge_is_text(their)) {
        return add_beside(marking, clash->ours->path, theirs, error);
    }
    git_blob *const blobs[] = {base, our, their};
    return store_marked(marking, blobs, clash, error);
}

static result
mark_clash(struct marking *marking, const struct merge_clash *clash, struct error *error) {
    if (clash->theirs->after.mode == 0) {
        return OK; // ours stays
    }
    return clash->ours->after.mode == 0
               ? add_theirs(marking, clash->theirs->path, &clash->theirs->after, error)
               : mark_both(marking, clash, error);
}

static result fill_index(struct marking *marking, struct error *error) {
    const struct merging *merging = marking->merging;
    TRY_GIT(git_index_read_tree(marking->index, merging->ours.tree), "merging");
    for (size_t i = 0; i < merging->take_count; i++) { // a directory may stand where a file was
        if (merging->takes[i].after.mode == 0) {
            TRY_GIT(git_index_remove(marking->index, merging->takes[i].path, 0), "merging");
        }
    }
    for (size_t i = 0; i < merging->clash_count; i++) {
        TRY(mark_clash(marking, &merging->clashes[i], error));
    }
    for (size_t i = 0; i < merging->take_count; i++) {
        const struct merge_change *change = &merging->takes[i];
        if (change->after.mode != 0) {
            TRY(add_theirs(marking, change->path, &change->after, error));
        }
    }
    return OK;
}

result merge_mark(
    struct merging *merging,
    const struct workspace_merge_options *options,
    char marked[WORKSPACE_COMMIT_BYTES],
    struct error *error
) {
    CLEANUP(marking_deinit) struct marking marking = {.merging = merging};
    git_oid tree;
    git_oid commit;
    TRY_GIT(git_index_new(&marking.index), "merging");
    TRY(fill_index(&marking, error));
    TRY_GIT(
        git_index_write_tree_to(&tree, marking.index, merging->workspace->repository),
        "storing a merged tree"
    );
    TRY(merge_write_commit(merging, options, &tree, &commit, error));
    TRY(workspace_keep(merging->workspace, &commit, error));
    (void)git_oid_tostr(marked, WORKSPACE_COMMIT_BYTES, &commit);
    return OK;
}

/* ---- whether they are resolved ------------------------------------------------------------------ */

static bool has_line(struct view text, const char *line) {
    struct view wanted = view_of_text(line);
    for (size_t at = view_find(text, wanted, 0); at != SIZE_MAX;
         at = view_find(text, wanted, at + 1)) {
        size_t end = at + wanted.length;
        bool begins = at == 0 || text.data[at - 1] == '\n';
        if (begins && (end == text.length || text.data[end] == '\n' || text.data[end] == '\r')) {
            return true;
        }
    }
    return false;
}

static bool has_markers(git_repository *repository, const git_tree_entry *entry) {
    CLEANUP(blob_cleanup) git_blob *blob = NULL;
    if (git_tree_entry_type(entry) != GIT_OBJECT_BLOB ||
        git_blob_lookup(&blob, repository, git_tree_entry_id(entry)) < 0 ||
        (uint64_t)git_blob_rawsize(blob) > MARKED_BYTES_MAX) {
        return false;
    }
    struct view text = view_of(git_blob_rawcontent(blob), (size_t)git_blob_rawsize(blob));
    return has_line(text, marker_ours) && has_line(text, marker_theirs);
}

static bool is_unresolved(
    git_repository *repository, git_tree *tree, const struct workspace_conflict *conflict
) {
    git_tree_entry *entry = NULL;
    const char *path = conflict->theirs != NULL ? conflict->theirs : conflict->path;
    if (git_tree_entry_bypath(&entry, tree, path) < 0) {
        return false;
    }
    bool unresolved = conflict->theirs != NULL || has_markers(repository, entry);
    git_tree_entry_free(entry);
    return unresolved;
}

result workspace_merge_unresolved(
    struct workspace *workspace,
    const struct workspace_merge *merge,
    const char *commit,
    struct buffer *out,
    struct error *error
) {
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    TRY(workspace_find_tree(workspace, commit, &tree, error));
    for (size_t i = 0; i < merge->conflict_count; i++) {
        const struct workspace_conflict *conflict = &merge->conflicts[i];
        if (is_unresolved(workspace->repository, tree, conflict)) {
            const char *path = conflict->theirs != NULL ? conflict->theirs : conflict->path;
            TRY(buffer_append_format(out, error, "%s\n", path));
        }
    }
    return OK;
}
