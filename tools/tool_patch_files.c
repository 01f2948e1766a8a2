/* apply_patch: several files are changed, added, moved and deleted, all of them or none.
 *
 * Everything is worked out in memory before the first file is touched; what fails after that is
 * undone. A file that a patch names twice is changed twice.
 */
#include "tool_internal.h"
#include "tool_patch.h"

#define PATCH_BYTES_MAX ((size_t)64 << 20) /* of all files, before and after */

static tool_run run_patch;

const struct tool_row tool_row_patch = {
    .shown =
        {"apply_patch",
         "Change, add, move and delete files with a patch: *** Begin Patch, then for each file *** "
         "Update File: PATH (with *** Move to: PATH and hunks of @@, context and lines with - and "
         "+), *** Add File: PATH (lines with +) or *** Delete File: PATH, then *** End Patch. All "
         "files are changed, or none.",
         OBJECT_SCHEMA(STRING_PROPERTY("patch", "the whole patch"), "\"patch\""),
         TOOL_READS | TOOL_WRITES,
         false},
    .run = run_patch,
};

/* A file that the patch touches. Old and new content are both kept: one to undo with. */
struct planned {
    char path[TOOL_SPELLED_BYTES];
    bool was_there;
    bool is_there; /* at the end */
    struct buffer before;
    struct buffer after;
    size_t moved_from; /* another one whose file is renamed to this; SIZE_MAX: none */
    bool is_renamed;   /* done so far */
    bool is_written;
    bool is_removed;
};

struct plan {
    struct tool_context *context;
    struct tool_result *out;
    struct planned **files; /* each on its own: they are large and must not move */
    size_t count;
    bool has_failed; /* the answer says why */
};

static void plan_cleanup(struct plan *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        buffer_deinit(&plan->files[i]->before);
        buffer_deinit(&plan->files[i]->after);
        free(plan->files[i]);
    }
    free(plan->files);
}

static result refuse(struct plan *plan, struct view path, const char *why, struct error *error) {
    plan->has_failed = true;
    return tool_answer(
        plan->out,
        TOOL_ERROR,
        error,
        "error: %.*s %s; nothing was changed",
        VIEW_ARGUMENTS(path),
        why
    );
}

static size_t bytes_planned(const struct plan *plan) {
    size_t bytes = 0;
    for (size_t i = 0; i < plan->count; i++) {
        bytes += plan->files[i]->before.length + plan->files[i]->after.length;
    }
    return bytes;
}

static result
load(struct plan *plan, struct view given, struct planned *file, struct error *error) {
    struct beneath_info info = {0};
    struct error why = {0};
    result status = beneath_stat(plan->context->root, file->path, &info, &why);
    if (status.code == RESULT_NOT_FOUND) {
        return OK;
    }
    bool usable = false;
    if (is_failed(status)) {
        TRY(tool_file_failure(plan->out, given, status, &why, error));
    } else {
        char path[TOOL_PATH_BYTES];
        TRY(tool_file_read(plan->context, given, path, &file->before, &usable, plan->out, error));
    }
    plan->has_failed = !usable;
    if (!usable) {
        return OK;
    }
    file->was_there = true;
    file->is_there = true;
    return buffer_append(&file->after, buffer_view(&file->before), error);
}

/* The planned file of a path; it is read the first time. */
static result plan_file(struct plan *plan, struct view given, size_t *index, struct error *error) {
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(given, path, &usable, plan->out, error));
    plan->has_failed = !usable;
    if (!usable) {
        return OK;
    }
    char spelled[TOOL_SPELLED_BYTES];
    tool_path_spell(path, spelled);
    for (size_t i = 0; i < plan->count; i++) {
        if (strcmp(plan->files[i]->path, spelled) == 0) {
            *index = i;
            return OK;
        }
    }
    struct planned *file = calloc(1, sizeof *file);
    if (file == NULL) {
        FAIL(error, MEMORY, "patch: %zu bytes", sizeof *file);
    }
    memcpy(file->path, spelled, sizeof spelled);
    file->moved_from = SIZE_MAX;
    buffer_init(&file->before, TOOL_FILE_BYTES_MAX);
    buffer_init(&file->after, 2 * TOOL_FILE_BYTES_MAX);
    *index = plan->count;
    plan->files[plan->count] = file;
    plan->count += 1;
    TRY(load(plan, given, file, error));
    if (!plan->has_failed && bytes_planned(plan) > PATCH_BYTES_MAX) {
        return refuse(plan, given, "makes the files of this patch too large together", error);
    }
    return OK;
}

/* What an update makes of `file`, into `after`. */
static result plan_content(
    struct plan *plan,
    const struct patch *patch,
    const struct patch_file *part,
    const struct planned *file,
    struct buffer *after,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    struct view content = file == NULL ? view_of(NULL, 0) : buffer_view(&file->after);
    TRY(patch_apply(patch, part, content, after, &why, error));
    if (why.length > 0) {
        plan->has_failed = true;
        return tool_answer(
            plan->out,
            TOOL_ERROR,
            error,
            "error: %.*s: %s; nothing was changed",
            VIEW_ARGUMENTS(part->path),
            buffer_text(&why)
        );
    }
    return after->length <= TOOL_FILE_BYTES_MAX
               ? OK
               : refuse(plan, part->path, "would become too large", error);
}

static result plan_move(
    struct plan *plan,
    const struct patch_file *part,
    size_t from,
    size_t *index,
    struct error *error
) {
    TRY(plan_file(plan, part->moved_to, index, error));
    if (plan->has_failed || *index == from) {
        return OK;
    }
    struct planned *target = plan->files[*index];
    if (target->is_there || target->was_there) {
        return refuse(plan, part->moved_to, "exists already", error);
    }
    // A file that came from elsewhere in this patch is written anew: its mode is lost.
    target->moved_from = plan->files[from]->was_there ? from : SIZE_MAX;
    target->is_there = true;
    plan->files[from]->is_there = false;
    return OK;
}

static result plan_part(
    struct plan *plan, const struct patch *patch, const struct patch_file *part, struct error *error
) {
    size_t index = 0;
    TRY(plan_file(plan, part->path, &index, error));
    if (plan->has_failed) {
        return OK;
    }
    struct planned *file = plan->files[index];
    if (part->kind == PATCH_ADD && file->is_there) {
        return refuse(plan, part->path, "exists already; use *** Update File", error);
    }
    if (part->kind != PATCH_ADD && !file->is_there) {
        plan->has_failed = true;
        return tool_answer(
            plan->out,
            TOOL_ERROR,
            error,
            "error: no such file: %.*s; nothing was changed",
            VIEW_ARGUMENTS(part->path)
        );
    }
    if (part->kind == PATCH_DELETE) {
        file->is_there = false;
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer after = {NULL, 0, 0, 0};
    buffer_init(&after, 2 * TOOL_FILE_BYTES_MAX);
    TRY(plan_content(plan, patch, part, part->kind == PATCH_ADD ? NULL : file, &after, error));
    if (!plan->has_failed && part->moved_to.length > 0) {
        TRY(plan_move(plan, part, index, &index, error));
    }
    if (plan->has_failed) {
        return OK;
    }
    struct planned *target = plan->files[index];
    target->is_there = true;
    struct buffer old = target->after;
    target->after = after;
    after = old;
    return bytes_planned(plan) <= PATCH_BYTES_MAX
               ? OK
               : refuse(
                     plan, part->path, "makes the files of this patch too large together", error
                 );
}

/* ---------------------------------------------------------------- carrying out ---- */

static bool has_changed(const struct planned *file) {
    return file->is_there && (!file->was_there ||
                              !view_equals(buffer_view(&file->before), buffer_view(&file->after)));
}

/* Parents, renames and writes of one file. */
static result put_file(struct plan *plan, struct planned *file, struct error *why) {
    const struct beneath *root = plan->context->root;
    char *slash = strrchr(file->path, '/');
    if (!file->was_there && slash != NULL && slash != file->path) {
        *slash = '\0';
        result made = beneath_mkdir(root, file->path, true, why);
        *slash = '/';
        TRY(made);
    }
    if (file->moved_from != SIZE_MAX && !plan->files[file->moved_from]->is_there) {
        TRY(beneath_rename(root, plan->files[file->moved_from]->path, file->path, why));
        file->is_renamed = true;
    }
    TRY(beneath_write(root, file->path, buffer_view(&file->after), why));
    file->is_written = true;
    return OK;
}

static bool is_moved_away(const struct plan *plan, size_t index) {
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->files[i]->is_renamed && plan->files[i]->moved_from == index) {
            return true;
        }
    }
    return false;
}

static result carry_out(struct plan *plan, size_t *failed, struct error *why) {
    for (size_t i = 0; i < plan->count; i++) {
        *failed = i;
        if (has_changed(plan->files[i])) {
            TRY(put_file(plan, plan->files[i], why));
        }
    }
    for (size_t i = 0; i < plan->count; i++) { // last: what is gone is the worst to undo
        struct planned *file = plan->files[i];
        *failed = i;
        if (file->was_there && !file->is_there && !is_moved_away(plan, i)) {
            TRY(beneath_remove(plan->context->root, file->path, why));
            file->is_removed = true;
        }
    }
    return OK;
}

/* False: something could not be put back. */
static bool undo(struct plan *plan) {
    const struct beneath *root = plan->context->root;
    bool is_whole = true;
    for (size_t i = plan->count; i > 0; i--) {
        struct planned *file = plan->files[i - 1];
        struct error why;
        result status = OK;
        if (file->is_renamed) {
            struct planned *from = plan->files[file->moved_from];
            status = beneath_rename(root, file->path, from->path, &why);
            if (is_ok(status)) {
                status = beneath_write(root, from->path, buffer_view(&from->before), &why);
            }
        } else if (file->is_removed || (file->is_written && file->was_there)) {
            status = beneath_write(root, file->path, buffer_view(&file->before), &why);
        } else if (file->is_written) {
            status = beneath_remove(root, file->path, &why);
        }
        is_whole = is_whole && is_ok(status);
    }
    return is_whole;
}

static result answer_done(struct plan *plan, struct error *error) {
    struct buffer *text = &plan->out->text;
    TRY(tool_answer(plan->out, TOOL_OK, error, "Success. Updated the following files:"));
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned *file = plan->files[i];
        struct tool_ledger *ledger = &plan->context->ledger;
        if (file->is_there) {
            TRY(tool_ledger_note(ledger, file->path, buffer_view(&file->after), true, error));
        } else {
            tool_ledger_forget(ledger, file->path);
        }
        char letter = file->is_there ? 'M' : 'D';
        letter = file->is_there && !file->was_there && file->moved_from == SIZE_MAX ? 'A' : letter;
        if (file->is_there || (file->was_there && !is_moved_away(plan, i))) {
            TRY(buffer_append_format(text, error, "\n%c ", letter));
            TRY(sandbox_sanitise(view_of_text(file->path), 0, text, error));
        }
    }
    return OK;
}

static result run_plan(struct plan *plan, struct error *error) {
    size_t failed = 0;
    struct error why = {0};
    result status = carry_out(plan, &failed, &why);
    if (is_ok(status)) {
        return answer_done(plan, error);
    }
    bool is_whole = undo(plan);
    TRY(tool_file_failure(plan->out, view_of_text(plan->files[failed]->path), status, &why, error));
    return buffer_append_text(
        &plan->out->text,
        is_whole ? "; nothing was changed"
                 : "; some files were changed and could not be put back: look at them",
        error
    );
}

static result run_patch(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(patch_deinit) struct patch patch = {0};
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    CLEANUP(plan_cleanup) struct plan plan = {.context = context, .out = out};
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    TRY(patch_parse(tool_argument(arguments, "patch"), &patch, &why, error));
    if (why.length > 0) {
        return tool_answer(out, TOOL_REFUSED, error, "error: %s", buffer_text(&why));
    }
    plan.files = calloc(2 * patch.file_count, sizeof(struct planned *)); // a move has two
    if (plan.files == NULL) {
        FAIL(error, MEMORY, "patch of %zu files", patch.file_count);
    }
    for (size_t i = 0; i < patch.file_count && !plan.has_failed; i++) {
        bool stop = false;
        TRY(tool_should_stop(context, out, &stop, error));
        if (stop) {
            return OK;
        }
        TRY(plan_part(&plan, &patch, &patch.files[i], error));
    }
    return plan.has_failed ? OK : run_plan(&plan, error);
}
