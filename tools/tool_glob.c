/* glob: files by a pattern of their paths, the newest first or by name. */
#include "tool_match.h"

#define MATCHES_MAX   ((size_t)50000)
#define NAMES_MAX     ((size_t)8 << 20) /* bytes of all paths found */
#define SHOWN_DEFAULT 200

static tool_run run_glob;

const struct tool_row tool_row_glob = {
    .shown =
        {"glob",
         "Find files by a pattern such as src/**/*.{c,h}. A pattern without a slash is for names "
         "in "
         "any directory. Ignored files are left out.",
         OBJECT_SCHEMA(
             STRING_PROPERTY(
                 "pattern", "* ? [a-z] {a,b} and ** for directories"
             ) ","
               " " STRING_PROPERTY(
                   "path",
                   "directory "
                   "to look in, "
                   "the "
                   "workspace "
                   "when left "
                   "out"
               ) ", \"sort\": "
                 "{\"type\": "
                 "\"string\", "
                 "\"description"
                 "\": \"newest "
                 "first, or by "
                 "name\", "
                 "\"enum\": "
                 "[\"time\", "
                 "\"name\"]},"
                 " " TYPED_PROPERTY(
                     "limit",
                     "integer",
                     "files to "
                     "show, 200 "
                     "when left "
                     "out"
                 ),
             "\"pattern\""
         ),
         TOOL_READS,
         false},
    .run = run_glob,
};

struct match {
    size_t path_at; /* in the names */
    uint64_t mtime_ns;
};

struct glob {
    struct walk walk;
    struct buffer patterns;
    struct buffer names; /* paths, each with a NUL behind it */
    struct match *matches;
    size_t count;
    size_t room;
    size_t start_bytes; /* of the directory's path and its slash: not matched */
};

static void glob_cleanup(struct glob *glob) {
    walk_deinit(&glob->walk);
    buffer_deinit(&glob->patterns);
    buffer_deinit(&glob->names);
    free(glob->matches);
}

static result
visit(void *context, const char *path, const struct beneath_entry *entry, struct error *error) {
    struct glob *glob = context;
    if (entry->info.kind != BENEATH_FILE ||
        !patterns_fit(&glob->patterns, view_of_text(path + glob->start_bytes))) {
        return OK;
    }
    size_t bytes = strlen(path) + 1;
    if (glob->count == MATCHES_MAX || bytes > NAMES_MAX - glob->names.length) {
        glob->walk.is_full = true;
        return OK;
    }
    if (glob->count == glob->room) {
        size_t room = glob->room == 0 ? 64 : 2 * glob->room;
        void *matches = realloc(glob->matches, room * sizeof *glob->matches);
        if (matches == NULL) {
            FAIL(error, MEMORY, "%zu files found", room);
        }
        glob->matches = matches;
        glob->room = room;
    }
    glob->matches[glob->count] = (struct match){glob->names.length, entry->info.mtime_ns};
    TRY(buffer_append(&glob->names, view_of(path, bytes), error));
    glob->count += 1;
    return OK;
}

static int compare_names(const void *a, const void *b, void *names) {
    const struct match *first = a;
    const struct match *second = b;
    const char *text = names;
    return strcmp(text + first->path_at, text + second->path_at);
}

static int compare_times(const void *a, const void *b, void *names) {
    const struct match *first = a;
    const struct match *second = b;
    if (first->mtime_ns != second->mtime_ns) {
        return first->mtime_ns > second->mtime_ns ? -1 : 1;
    }
    return compare_names(a, b, names);
}

static result end_answer(struct glob *glob, int64_t limit, struct error *error) {
    struct tool_result *out = glob->walk.out;
    if (glob->count == 0) {
        TRY(tool_answer(out, TOOL_OK, error, "no files match"));
    }
    size_t shown = 0;
    for (; shown < glob->count && (int64_t)shown < limit &&
           out->text.length < glob->walk.context->options.text_bytes_max;
         shown++) {
        const char *path = (const char *)glob->names.data + glob->matches[shown].path_at;
        TRY(buffer_append_text(&out->text, shown == 0 ? "" : "\n", error));
        TRY(sandbox_sanitise(view_of_text(path), 0, &out->text, error));
    }
    if (shown < glob->count || glob->walk.is_full) {
        out->text_is_truncated = true;
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n... [%zu%s more files match] ...",
            glob->count - shown,
            glob->walk.is_full ? " or" : ""
        ));
    }
    return walk_tell_hidden(&glob->walk, error);
}

static result run_glob(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view pattern = tool_argument(arguments, "pattern");
    char path[TOOL_PATH_BYTES];
    char glob_pattern[TOOL_PATH_BYTES];
    struct beneath_info info;
    bool usable = false;
    CLEANUP(glob_cleanup) struct glob glob = {0};
    glob.walk = (struct walk){.context = context, .out = out, .honours_ignore = true};
    buffer_init(&glob.patterns, BUFFER_CEILING_DEFAULT);
    buffer_init(&glob.names, NAMES_MAX);
    TRY(walk_start(
        context, tool_argument(arguments, "path"), false, path, &info, &usable, out, error
    ));
    if (usable) { // "/workspace/src/*.c" and "./*.c" as paths are
        TRY(tool_path(pattern, glob_pattern, &usable, out, error));
    }
    if (!usable) {
        return OK;
    }
    struct error why = {0};
    result expanded = patterns_expand(view_of_text(glob_pattern), &glob.patterns, &why);
    if (expanded.code == RESULT_LIMIT) {
        return tool_answer(out, TOOL_REFUSED, error, "error: %s", why.message);
    }
    if (is_failed(expanded)) {
        return error_set(error, expanded.code, 0, why.file, why.line, "%s", why.message);
    }
    char spelled[TOOL_SPELLED_BYTES];
    tool_path_spell(path, spelled);
    glob.start_bytes = strlen(spelled) + (spelled[0] != '\0');
    TRY(walk_run(&glob.walk, path, visit, &glob, error));
    if (glob.walk.has_stopped) {
        return OK;
    }
    bool by_name = view_equals_text(tool_argument(arguments, "sort"), "name");
    if (glob.count > 0) {
        int (*compare)(const void *, const void *, void *) =
            by_name ? compare_names : compare_times;
        qsort_r(glob.matches, glob.count, sizeof *glob.matches, compare, glob.names.data);
    }
    int64_t limit = SHOWN_DEFAULT;
    (void)json_as_i64(json_get(arguments, "limit"), &limit);
    out->status = TOOL_OK;
    return end_answer(&glob, limit < 1 ? SHOWN_DEFAULT : limit, error);
}
