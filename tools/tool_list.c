/* list: the entries of a directory, or of a tree down to some depth. */
#include "tool_match.h"

#define LIST_ENTRIES_MAX ((size_t)1000) /* lines a model can still use */
#define LIST_DEPTH_MAX   20

static tool_run run_list;

const struct tool_row tool_row_list = {
    .shown =
        {"list",
         "List a directory. With a depth above 1 also the directories in it, without ignored "
         "files.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("path", "directory, the workspace when left out") ", " TYPED_PROPERTY(
                 "depth", "integer", "levels to show, 1 when left out"
             ) ", " TYPED_PROPERTY("offset", "integer", "entry to begin with, from 1"),
             ""
         ),
         TOOL_READS,
         false},
    .run = run_list,
};

struct list {
    struct walk walk;
    uint64_t first; /* entry to show */
    uint64_t count; /* seen so far */
    size_t shown;
    size_t start_bytes; /* of the directory's path and its slash: not shown */
};

static void list_cleanup(struct list *list) {
    walk_deinit(&list->walk);
}

static const char *entry_suffix(enum beneath_kind kind) {
    static const char *const suffixes[] = {"", "/", "@", "?"}; // as ls -F marks them
    ASSERT((size_t)kind < COUNT_OF(suffixes));
    return suffixes[kind];
}

static result show_entry(
    void *context, const char *path, const struct beneath_entry *entry, struct error *error
) {
    struct list *list = context;
    struct buffer *text = &list->walk.out->text;
    list->count += 1;
    if (list->count < list->first || list->shown == LIST_ENTRIES_MAX ||
        text->length >= list->walk.context->options.text_bytes_max) {
        return OK; // counted only
    }
    list->shown += 1;
    TRY(buffer_append_text(text, text->length == 0 ? "" : "\n", error));
    TRY(sandbox_sanitise(view_of_text(path + list->start_bytes), 0, text, error));
    return buffer_append_text(text, entry_suffix(entry->info.kind), error);
}

static result end_answer(struct list *list, struct error *error) {
    struct tool_result *out = list->walk.out;
    uint64_t skipped = list->first - 1;
    if (list->count == 0) {
        TRY(tool_answer(out, TOOL_OK, error, "%s", list->walk.hidden > 0 ? "" : "(empty directory)")
        );
        return walk_tell_hidden(&list->walk, error);
    }
    if (list->count <= skipped) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: there are %llu entries", (unsigned long long)list->count
        );
    }
    uint64_t left = list->count - skipped - list->shown;
    if (left > 0 || list->walk.is_full) {
        out->text_is_truncated = true;
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n... [%llu%s more entries omitted, from offset %llu] ...",
            (unsigned long long)left,
            list->walk.is_full ? " or" : "",
            (unsigned long long)(skipped + list->shown + 1)
        ));
    }
    return walk_tell_hidden(&list->walk, error);
}

/* Of an entry, as rules see it. One that is too long is no path of theirs either. */
static const char *
whole_path(const char *directory, const char *name, char out[TOOL_SPELLED_BYTES]) {
    char folder[TOOL_SPELLED_BYTES];
    tool_path_spell(directory, folder);
    int length =
        snprintf(out, TOOL_SPELLED_BYTES, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", name);
    ASSERT(length > 0); // too long: cut
    return out;
}

/* One level shows everything, also what is ignored. */
static result list_directory(struct list *list, const char *path, struct error *error) {
    CLEANUP(beneath_list_deinit) struct beneath_list found = {0};
    struct error why = {0};
    char whole[TOOL_SPELLED_BYTES];
    struct tool_context *context = list->walk.context;
    result status = beneath_list_directory(context->root, path, BENEATH_ENTRIES_MAX, &found, &why);
    if (is_failed(status)) {
        list->walk.has_stopped = true;
        return tool_file_failure(list->walk.out, view_of_text(path), status, &why, error);
    }
    list->walk.is_full = found.truncated;
    list->start_bytes = 0;
    for (size_t i = 0; i < found.count; i++) {
        if (walk_hides(&list->walk, whole_path(path, found.entries[i].name, whole), true)) {
            continue;
        }
        TRY(show_entry(list, found.entries[i].name, &found.entries[i], error));
    }
    return OK;
}

static result run_list(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(tool_argument(arguments, "path"), path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    int64_t depth = 1;
    int64_t first = 1;
    (void)json_as_i64(json_get(arguments, "depth"), &depth);
    (void)json_as_i64(json_get(arguments, "offset"), &first);
    CLEANUP(list_cleanup) struct list list = {.first = first < 1 ? 1 : (uint64_t)first};
    list.walk = (struct walk){.context = context, .out = out, .honours_ignore = true};
    list.walk.depth_max = depth > LIST_DEPTH_MAX ? LIST_DEPTH_MAX : (unsigned)depth;
    out->status = TOOL_OK;
    if (depth <= 1) {
        TRY(list_directory(&list, path, error));
    } else {
        struct beneath_info info;
        char spelled[TOOL_SPELLED_BYTES];
        struct view given = tool_argument(arguments, "path");
        TRY(walk_start(context, given, false, path, &info, &usable, out, error));
        if (!usable) {
            return OK;
        }
        tool_path_spell(path, spelled);
        list.start_bytes = strlen(spelled) + (spelled[0] != '\0');
        TRY(walk_run(&list.walk, path, show_entry, &list, error));
    }
    return list.walk.has_stopped ? OK : end_answer(&list, error);
}
