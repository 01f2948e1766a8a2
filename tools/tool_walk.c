/* The walk through a workspace. See tool_match.h. */
#include "tool_match.h"

#define WAITING_BYTES_MAX ((size_t)4 << 20) /* paths of directories still to be walked */

void walk_deinit(struct walk *walk) {
    ignore_deinit(&walk->ignore);
    buffer_deinit(&walk->waiting);
}

static result push(struct walk *walk, const char *path, struct error *error) {
    size_t bytes = strlen(path) + 1;
    if (bytes > WAITING_BYTES_MAX - walk->waiting.length) {
        walk->is_full = true;
        return OK;
    }
    return buffer_append(&walk->waiting, view_of(path, bytes), error);
}

static void pop(struct walk *walk, char path[TOOL_PATH_BYTES]) {
    struct buffer *waiting = &walk->waiting;
    ASSERT(waiting->length > 0);
    size_t begin = waiting->length - 1; // the NUL of the last path
    while (begin > 0 && waiting->data[begin - 1] != '\0') {
        begin -= 1;
    }
    size_t bytes = waiting->length - begin;
    ASSERT(bytes <= TOOL_PATH_BYTES);
    memcpy(path, waiting->data + begin, bytes);
    waiting->length = begin;
}

/* False when it is deeper than paths can be. */
static bool join(char path[TOOL_PATH_BYTES], const char *folder, const char *name) {
    bool at_top = strcmp(folder, ".") == 0;
    int length =
        snprintf(path, TOOL_PATH_BYTES, "%s%s%s", at_top ? "" : folder, at_top ? "" : "/", name);
    return length > 0 && (size_t)length < TOOL_PATH_BYTES;
}

/* What cannot be read (no file, a link, no text) has no rules. */
static result
enter_file(struct walk *walk, const char *folder, const char *name, struct error *error) {
    char path[TOOL_PATH_BYTES];
    CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
    buffer_init(&content, IGNORE_BYTES_MAX);
    struct error why;
    if (!join(path, folder, name) ||
        is_failed(beneath_read(walk->context->root, path, 0, IGNORE_BYTES_MAX, &content, NULL, &why)
        )) {
        buffer_clear(&content);
    }
    const char *directory = strcmp(folder, ".") == 0 ? "" : folder;
    return ignore_enter(&walk->ignore, directory, buffer_view(&content), error);
}

static result enter(struct walk *walk, const char *folder, struct error *error) {
    if (!walk->honours_ignore) {
        return OK;
    }
    if (strcmp(folder, ".") == 0) {
        TRY(enter_file(walk, folder, ".git/info/exclude", error));
    }
    return enter_file(walk, folder, ".gitignore", error);
}

/* The ignore files above the directory in which the walk begins. */
static result enter_parents(struct walk *walk, const char *start, struct error *error) {
    if (strcmp(start, ".") == 0) {
        return OK;
    }
    TRY(enter(walk, ".", error));
    char parent[TOOL_PATH_BYTES];
    for (size_t i = 1; start[i] != '\0'; i++) {
        if (start[i] == '/') {
            memcpy(parent, start, i);
            parent[i] = '\0';
            TRY(enter(walk, parent, error));
        }
    }
    return OK;
}

static unsigned depth_of(const char *path) {
    unsigned depth = strcmp(path, ".") == 0 ? 0 : 1;
    for (const char *at = path; *at != '\0'; at++) {
        depth += *at == '/';
    }
    return depth;
}

static bool
is_left_out(const struct walk *walk, const char *path, const struct beneath_entry *entry) {
    return strcmp(entry->name, ".git") == 0 ||
           (walk->honours_ignore &&
            ignore_covers(&walk->ignore, path, entry->info.kind == BENEATH_DIRECTORY));
}

bool walk_hides(struct walk *walk, const char *path, bool counts) {
    const struct tool_context *context = walk->context;
    const struct tool_context_options *options = &context->options;
    struct view tool = view_of_text(context->running->row->shown.name);
    bool hides =
        options->hides != NULL && options->hides(options->hides_context, tool, view_of_text(path));
    walk->hidden += hides && counts;
    return hides;
}

result walk_tell_hidden(const struct walk *walk, struct error *error) {
    struct buffer *text = &walk->out->text;
    return walk->hidden == 0
               ? OK
               : buffer_append_format(text, error, "\n(%zu left out by a rule)", walk->hidden);
}

static result walk_directory(
    struct walk *walk,
    const char *folder,
    bool goes_deeper,
    walk_visit *visit,
    void *visit_context,
    struct error *error
) {
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    struct error why = {0};
    struct beneath *root = walk->context->root;
    result status = beneath_list_directory(root, folder, BENEATH_ENTRIES_MAX, &list, &why);
    if (is_failed(status)) {
        walk->skipped += 1; // gone or unreadable meanwhile
        return status.code == RESULT_MEMORY ? error_note(error, status, "%s", why.message) : OK;
    }
    char path[TOOL_PATH_BYTES];
    for (size_t i = 0; i < list.count && !walk->is_full; i++) {
        TRY(tool_should_stop(walk->context, walk->out, &walk->has_stopped, error));
        if (walk->has_stopped) {
            return OK;
        }
        const struct beneath_entry *entry = &list.entries[i];
        bool is_entered = goes_deeper && entry->info.kind == BENEATH_DIRECTORY;
        if (!join(path, folder, entry->name)) {
            walk->skipped += 1;
        } else if (!is_left_out(walk, path, entry) && !walk_hides(walk, path, !is_entered)) {
            TRY(visit(visit_context, path, entry, error));
        }
    }
    walk->is_full = walk->is_full || list.truncated;
    // The stack gives the last one first: pushed backwards, names come in order.
    for (size_t i = list.count; i > 0 && goes_deeper; i--) {
        const struct beneath_entry *entry = &list.entries[i - 1];
        if (entry->info.kind == BENEATH_DIRECTORY && join(path, folder, entry->name) &&
            !is_left_out(walk, path, entry)) {
            TRY(push(walk, path, error));
        }
    }
    return OK;
}

result walk_run(
    struct walk *walk,
    const char *start,
    walk_visit *visit,
    void *visit_context,
    struct error *error
) {
    ASSERT(walk->waiting.length == 0);
    buffer_init(&walk->waiting, WAITING_BYTES_MAX);
    char spelled[TOOL_SPELLED_BYTES];
    tool_path_spell(start, spelled);
    start = spelled[0] == '\0' ? "." : spelled;
    unsigned depth_start = depth_of(start);
    TRY(enter_parents(walk, start, error));
    TRY(push(walk, start, error));
    while (walk->waiting.length > 0 && !walk->is_full && !walk->has_stopped) {
        char folder[TOOL_PATH_BYTES];
        pop(walk, folder);
        TRY(enter(walk, folder, error));
        unsigned depth = depth_of(folder) - depth_start + 1;
        bool goes_deeper = walk->depth_max == 0 || depth < walk->depth_max;
        TRY(walk_directory(walk, folder, goes_deeper, visit, visit_context, error));
    }
    return OK;
}

result walk_start(
    struct tool_context *context,
    struct view given,
    bool may_be_file,
    char path[TOOL_PATH_BYTES],
    struct beneath_info *info,
    bool *usable,
    struct tool_result *out,
    struct error *error
) {
    TRY(tool_path(given, path, usable, out, error));
    if (!*usable) {
        return OK;
    }
    struct error why = {0};
    result status = beneath_stat(context->root, path, info, &why);
    *usable = is_ok(status) &&
              (info->kind == BENEATH_DIRECTORY || (may_be_file && info->kind == BENEATH_FILE));
    if (*usable) {
        return OK;
    }
    if (status.code == RESULT_INVALID_INPUT) {
        return tool_file_failure(out, given, status, &why, error);
    }
    return tool_answer(
        out,
        TOOL_ERROR,
        error,
        "error: no such %sdirectory: %.*s",
        may_be_file ? "file or " : "",
        VIEW_ARGUMENTS(given)
    );
}
