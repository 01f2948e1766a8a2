/* Snapshots of nodes, what they made, and merges. See swarm_work.h.
 *
 * Each call opens the stores that it needs by itself: the run of a node uses its own object meanwhile, and
 * stores are locked across objects. Of one directory there is one look or merge at a time.
 */
#include "swarm_work_internal.h"

#include <stdarg.h>

#define MERGE_TRIES 3U /* somebody edits in the target */

/* ---- looking ------------------------------------------------------------------------------------ */

result swarm_work_check_there(const struct swarm_work_node *node, struct error *error) {
    struct stat about;
    struct stat lease;
    bool is_there = stat(node->directory, &about) == 0 && S_ISDIR(about.st_mode) &&
                    about.st_dev == node->device && about.st_ino == node->inode;
    if (is_there && node->lease >= 0) { // its list of files, which nobody inside can remove
        is_there = fstat(node->lease, &lease) == 0 && lease.st_nlink > 0;
    }
    if (!is_there) {
        FAIL(
            error,
            NOT_FOUND,
            "the directory of %s was deleted or replaced: %.300s",
            node->name,
            node->directory
        );
    }
    return OK;
}

result swarm_work_look(
    struct swarm_work_node *node,
    const char *why,
    struct workspace **out,
    struct workspace_snapshot *now,
    struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct workspace_snapshot taken;
    TRY(swarm_work_check_there(node, error));
    TRY(workspace_open(node->directory, node->store, &workspace, error));
    TRY(workspace_take_snapshot(workspace, why, &taken, error));
    // One that is deleted meanwhile looks like one in which all files were deleted.
    TRY(swarm_work_check_there(node, error));
    *now = taken;
    *out = TAKE(workspace);
    return OK;
}

result swarm_work_snapshot(
    struct swarm_work_node *node,
    const char *why,
    char out[WORKSPACE_COMMIT_BYTES],
    struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct workspace_snapshot now;
    SWARM_WORK_LOCK(&node->lock);
    TRY(swarm_work_look(node, why, &workspace, &now, error));
    memcpy(out, now.commit, sizeof now.commit);
    return OK;
}

result swarm_work_bring(
    const char *from_store, const char *commit, const char *to_store, struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *to = NULL;
    if (strcmp(from_store, to_store) == 0) {
        return OK;
    }
    TRY(workspace_open_store(to_store, &to, error));
    return workspace_import(to, from_store, commit, error);
}

/* ---- results ------------------------------------------------------------------------------------ */

static int64_t lines_of(const struct workspace_difference *difference) {
    return (int64_t)difference->lines_added + (int64_t)difference->lines_removed;
}

/* Whether a node left everything as it found it. */
static result is_untouched(
    const struct swarm_work_node *node,
    struct workspace *workspace,
    const char *commit,
    bool *out,
    struct error *error
) {
    struct workspace_difference difference;
    TRY(workspace_compare(workspace, node->commit_before, commit, 0, &difference, error));
    *out = difference.file_count == 0;
    workspace_difference_deinit(&difference);
    return OK;
}

/* Against what it would be merged with, which the parent's store has. */
static result
measure(const struct swarm_work_node *node, struct swarm_work_made *made, struct error *error) {
    CLEANUP(workspace_cleanup) struct workspace *store = NULL;
    struct workspace_difference difference;
    TRY(workspace_open_store(node->parent->store, &store, error));
    TRY(workspace_compare(store, node->base, made->commit, 0, &difference, error));
    made->changed_lines = lines_of(&difference);
    made->files = difference.file_count;
    workspace_difference_deinit(&difference);
    return OK;
}

static result save(struct swarm_work_node *node, struct error *error) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct swarm_work_made made = {.files = 0};
    struct workspace_snapshot now;
    bool untouched = false;
    TRY(swarm_work_look(node, "result", &workspace, &now, error));
    (void)snprintf(made.skipped_names, sizeof made.skipped_names, "%s", now.skipped_names);
    TRY(is_untouched(node, workspace, now.commit, &untouched, error));
    buffer_clear(&node->unresolved);
    if (node->marks.conflict_count > 0) {
        TRY(workspace_merge_unresolved(
            workspace, &node->marks, now.commit, &node->unresolved, error
        ));
    }
    // A merge that needs nothing more is a result as it was found.
    bool is_merge = strcmp(node->base, node->commit_before) != 0 && node->unresolved.length == 0;
    if (!untouched || is_merge) {
        memcpy(made.commit, now.commit, sizeof made.commit);
        TRY(swarm_work_bring(node->store, now.commit, node->parent->store, error));
        TRY(swarm_work_bring(node->store, now.commit, node->work->root->store, error));
        TRY(measure(node, &made, error));
    }
    if (untouched && made.files == 0) {
        made.commit[0] = '\0';
    }
    memcpy(node->saved, now.commit, sizeof node->saved);
    node->made = made;
    node->has_result = true;
    return OK;
}

result
swarm_work_result(struct swarm_work_node *node, struct swarm_work_made *out, struct error *error) {
    ASSERT(node->parent != NULL);
    SWARM_WORK_LOCK(&node->lock);
    swarm_work_close_tools(node);
    if (!node->has_result) {
        TRY_NOTE(error, save(node, error), "result of %s", node->name);
    }
    *out = node->made;
    return OK;
}

/* ---- merges ------------------------------------------------------------------------------------- */

/* What both have in common: what the one below the target, on the way to the node, began with. */
static const struct swarm_work_node *
below(const struct swarm_work_node *node, const struct swarm_work_node *target) {
    while (node != NULL && node->parent != target) {
        node = node->parent;
    }
    return node;
}

result swarm_work_try_merge(
    struct swarm_work_node *node,
    struct swarm_work_node *target,
    bool has_marks,
    struct workspace **out,
    char ours[WORKSPACE_COMMIT_BYTES],
    struct workspace_merge *merge,
    struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct workspace_snapshot now;
    const struct swarm_work_node *way = below(node, target);
    if (way == NULL || !node->has_result) {
        FAIL(
            error,
            INVALID_INPUT,
            "%s has made nothing that could be merged into the directory of %s",
            node->name,
            target->name
        );
    }
    TRY(swarm_work_look(target, "before a merge", &workspace, &now, error));
    const char *theirs = node->made.commit[0] != '\0' ? node->made.commit : way->base;
    const struct workspace_merge_options options = {
        .base = way->base, .ours = now.commit, .theirs = theirs, .has_marks = has_marks};
    const char *root_store = node->work->root->store; // has it; the node may be closed meanwhile
    if (node->made.commit[0] != '\0' && strcmp(root_store, target->store) != 0) {
        TRY(workspace_import(workspace, root_store, theirs, error));
    }
    TRY(workspace_merge(workspace, &options, merge, error));
    memcpy(ours, now.commit, sizeof now.commit);
    *out = TAKE(workspace);
    return OK;
}

/* Appends a line, whole or not at all. */
static bool add_line(struct swarm_work_merge *out, const char *format, ...) PRINTF_LIKE(2, 3);

static bool add_line(struct swarm_work_merge *out, const char *format, ...) {
    size_t used = strlen(out->detail);
    size_t room = sizeof out->detail - used - 40; // for the number of those that are left out
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out->detail + used, room, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= room) {
        out->detail[used] = '\0';
        return false;
    }
    return true;
}

static void name_rest(struct swarm_work_merge *out, size_t rest) {
    size_t used = strlen(out->detail);
    (void)snprintf(out->detail + used, sizeof out->detail - used, "and %zu more\n", rest);
}

static void name_conflicts(const struct workspace_merge *merge, struct swarm_work_merge *out) {
    out->merge = SWARM_MERGE_CONFLICTS;
    out->conflict_count = merge->conflict_count;
    for (size_t i = 0; i < merge->conflict_count; i++) {
        const struct workspace_conflict *conflict = &merge->conflicts[i];
        const char *kind = workspace_conflict_text(conflict->kind);
        if (!utf8_is_valid(view_of_text(conflict->path)) ||
            !add_line(out, "%s: %s\n", conflict->path, kind)) {
            name_rest(out, merge->conflict_count - i);
            return;
        }
    }
}

static void name_unresolved(const struct swarm_work_node *node, struct swarm_work_merge *out) {
    struct cursor paths = cursor_over(buffer_view(&node->unresolved));
    struct view path;
    bool has_room = true;
    size_t rest = 0;
    out->merge = SWARM_MERGE_CONFLICTS;
    while (cursor_take_until(&paths, '\n', &path)) {
        out->conflict_count += 1;
        has_room = has_room && utf8_is_valid(path) &&
                   add_line(out, "%.*s: its conflict is not resolved\n", VIEW_ARGUMENTS(path));
        rest += has_room ? 0 : 1;
    }
    if (rest > 0) {
        name_rest(out, rest);
    }
}

/* What was written before the failure is taken back, and nothing else: somebody may have saved files since. */
static void take_back(
    struct workspace *workspace,
    const char *ours,
    const struct workspace_merge *merge,
    struct swarm_work_merge *out
) {
    const struct workspace_stretch written = {ours, merge->commit};
    struct workspace_undone undone;
    struct error error = {0};
    size_t used = strlen(out->detail);
    char *end = out->detail + used;
    size_t room = sizeof out->detail - used;
    if (is_ok(workspace_undo(workspace, &written, 1, &undone, &error))) {
        (void)snprintf(end, room, "; the files are what they were");
    } else {
        (void
        )snprintf(end, room, "; and what they were is snapshot %s: %.300s", ours, error.message);
    }
}

static result apply(
    struct swarm_work_node *target,
    struct workspace *workspace,
    const char *ours,
    const struct workspace_merge *merge,
    struct swarm_work_merge *out,
    struct error *error
) {
    struct workspace_difference difference;
    const char *root_store = target->work->root->store;
    // Whatever can fail without a trace comes first.
    TRY(swarm_work_bring(target->store, merge->commit, root_store, error));
    TRY(workspace_compare(workspace, target->commit_before, merge->commit, 0, &difference, error));
    int64_t lines = lines_of(&difference);
    workspace_difference_deinit(&difference);
    result applied = workspace_apply(workspace, ours, merge->commit, error);
    if (applied.code == RESULT_IO || applied.code == RESULT_MEMORY) {
        (void)snprintf(out->detail, sizeof out->detail, "%.440s", error->message);
        take_back(workspace, ours, merge, out);
    }
    TRY(applied);
    out->merge = SWARM_MERGE_OK;
    out->changed_lines = lines;
    memcpy(out->commit, merge->commit, sizeof out->commit);
    memcpy(out->before, ours, sizeof out->before);
    return OK;
}

/* *is_moving: somebody changed the target meanwhile, so that another look is worth it. */
static result merge_once(
    struct swarm_work_node *node,
    struct swarm_work_node *target,
    struct swarm_work_merge *out,
    bool *is_moving,
    struct error *error
) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    CLEANUP(workspace_merge_deinit) struct workspace_merge merge = {.taken = 0};
    char ours[WORKSPACE_COMMIT_BYTES];
    TRY(swarm_work_try_merge(node, target, false, &workspace, ours, &merge, error));
    if (merge.conflict_count > 0) {
        name_conflicts(&merge, out);
        return OK;
    }
    result applied = apply(target, workspace, ours, &merge, out, error);
    *is_moving = applied.code == RESULT_INVALID_INPUT;
    return applied;
}

void swarm_work_merge(
    struct swarm_work_node *node, struct swarm_work_node *target, struct swarm_work_merge *out
) {
    struct error error = {0};
    result merged = {RESULT_INVALID_INPUT};
    bool is_moving = true;
    *out = (struct swarm_work_merge){.merge = SWARM_MERGE_FAILED};
    if (node->unresolved.length > 0) {
        name_unresolved(node, out);
        return;
    }
    SWARM_WORK_LOCK(&target->lock);
    for (unsigned i = 0; i < MERGE_TRIES && is_failed(merged) && is_moving; i++) {
        is_moving = false;
        merged = merge_once(node, target, out, &is_moving, &error);
    }
    if (is_failed(merged)) {
        out->is_full = swarm_work_is_full(node->work, &error);
        if (out->detail[0] == '\0') {
            (void)snprintf(out->detail, sizeof out->detail, "%s", error.message);
        }
    }
}
