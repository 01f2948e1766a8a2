/* search: an exact text in the files of the workspace, or in their names.
 *
 * Walks without recursion, of each directory first its files and then its directories in order of
 * names; `.git`, links, binary and very large files are left
 * out, and so is everything past the limits: the answer says what was not looked at.
 */
#include "tool_internal.h"

#define SEARCH_MATCHES_MAX     ((size_t)200)
#define SEARCH_WAITING_BYTES   ((size_t)4 << 20) /* paths of directories still to be walked */
#define SEARCH_FILES_MAX       ((size_t)100000)
#define SEARCH_FILE_BYTES_MAX  BENEATH_READ_BYTES_MAX
#define SEARCH_LINE_CHARACTERS 200

static tool_run run_search;

const struct tool_row tool_row_search = {
    .shown =
        {"search",
         "Search the files of the workspace for a text, or for file names that contain it.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("text", "exact text to look for") ", " STRING_PROPERTY(
                 "path", "directory to search, the workspace when left out"
             ) ", \"in\": {\"type\": \"string\", \"description\": \"what to search\", \"enum\": "
               "[\"content\", \"names\"]}",
             "\"text\""
         ),
         TOOL_READS,
         false},
    .run = run_search,
};

struct search {
    struct tool_context *context;
    struct tool_result *out;
    struct view text;
    bool in_names;
    bool is_full; /* a limit of the answer was reached */
    size_t matches;
    size_t files;         /* looked at */
    size_t skipped_files; /* binary, too large or unreadable */
    struct buffer scratch;
    struct buffer waiting; /* a stack of relative paths, each with a NUL behind it */
};

static void search_cleanup(struct search *search) {
    buffer_deinit(&search->scratch);
    buffer_deinit(&search->waiting);
}

static result push_directory(struct search *search, const char *path, struct error *error) {
    size_t bytes = strlen(path) + 1;
    if (bytes > SEARCH_WAITING_BYTES - search->waiting.length) {
        search->is_full = true;
        return OK;
    }
    return buffer_append(&search->waiting, view_of(path, bytes), error);
}

static void pop_directory(struct search *search, char path[TOOL_PATH_BYTES]) {
    struct buffer *waiting = &search->waiting;
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

/* Begins a line of the answer with the path; false when the answer is full. */
static result
begin_match(struct search *search, const char *path, bool *begun, struct error *error) {
    struct buffer *text = &search->out->text;
    *begun = search->matches < SEARCH_MATCHES_MAX &&
             text->length < search->context->options.text_bytes_max;
    if (!*begun) {
        search->is_full = true;
        return OK;
    }
    search->matches += 1;
    if (text->length > 0) {
        TRY(buffer_append_byte(text, '\n', error));
    }
    return sandbox_sanitise(view_of_text(path), 0, text, error);
}

static result match_line(
    struct search *search, const char *path, size_t number, struct view line, struct error *error
) {
    bool begun = false;
    TRY(begin_match(search, path, &begun, error));
    if (!begun) {
        return OK;
    }
    struct buffer *text = &search->out->text;
    TRY(buffer_append_format(text, error, ":%zu: ", number));
    size_t limit = SEARCH_LINE_CHARACTERS;
    struct tool_cut cut = tool_cut_characters(line, limit, limit, 0);
    TRY(sandbox_sanitise(view_slice(line, 0, cut.head_bytes), 0, text, error));
    return cut.head_bytes < line.length ? buffer_append_text(text, " ...", error) : OK;
}

static result search_content(struct search *search, const char *path, struct error *error) {
    buffer_clear(&search->scratch);
    struct beneath_info info = {0};
    struct error why = {0};
    size_t limit = SEARCH_FILE_BYTES_MAX;
    result status =
        beneath_read(search->context->root, path, 0, limit, &search->scratch, &info, &why);
    struct view content = buffer_view(&search->scratch);
    if (is_failed(status) || info.bytes > limit ||
        (content.length > 0 && memchr(content.data, 0, content.length) != NULL)) {
        search->skipped_files += 1;
        return OK;
    }
    size_t number = 1;
    size_t counted_to = 0; // lines are counted up to here
    for (size_t at = view_find(content, search->text, 0); at != SIZE_MAX && !search->is_full;) {
        size_t begin = counted_to;
        for (size_t i = counted_to; i < at; i++) {
            if (content.data[i] == '\n') {
                number += 1;
                begin = i + 1;
            }
        }
        size_t end = view_find(content, view_of_text("\n"), at);
        end = end == SIZE_MAX ? content.length : end;
        TRY(match_line(search, path, number, view_slice(content, begin, end - begin), error));
        counted_to = begin;
        at = end >= content.length ? SIZE_MAX : view_find(content, search->text, end + 1);
    }
    return OK;
}

/* The path of an entry; false when it is deeper than paths can be. */
static bool join_path(char path[TOOL_PATH_BYTES], const char *folder, const char *name) {
    bool at_top = strcmp(folder, ".") == 0;
    int length =
        snprintf(path, TOOL_PATH_BYTES, "%s%s%s", at_top ? "" : folder, at_top ? "" : "/", name);
    return length > 0 && (size_t)length < TOOL_PATH_BYTES;
}

static result visit_entry(
    struct search *search,
    const char *folder,
    const struct beneath_entry *entry,
    struct error *error
) {
    char path[TOOL_PATH_BYTES];
    if (!join_path(path, folder, entry->name)) {
        search->skipped_files += 1;
        return OK;
    }
    if (search->in_names && view_find(view_of_text(entry->name), search->text, 0) != SIZE_MAX) {
        bool begun = false;
        TRY(begin_match(search, path, &begun, error));
        if (begun && entry->info.kind == BENEATH_DIRECTORY) {
            TRY(buffer_append_byte(&search->out->text, '/', error));
        }
    }
    if (entry->info.kind != BENEATH_FILE) {
        return OK;
    }
    search->files += 1;
    search->is_full = search->is_full || search->files >= SEARCH_FILES_MAX;
    return search->in_names ? OK : search_content(search, path, error);
}

static bool is_ignored(const struct beneath_entry *entry) {
    return strcmp(entry->name, ".git") == 0;
}

/* Walks one directory from the stack; `*stop` when the answer is final. */
static result visit_directory(struct search *search, bool *stop, struct error *error) {
    char folder[TOOL_PATH_BYTES];
    pop_directory(search, folder);
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    struct error why = {0};
    struct beneath *root = search->context->root;
    if (is_failed(beneath_list_directory(root, folder, BENEATH_ENTRIES_MAX, &list, &why))) {
        search->skipped_files += 1; // gone or unreadable meanwhile
        return OK;
    }
    search->is_full = search->is_full || list.truncated;
    for (size_t i = 0; i < list.count && !search->is_full; i++) {
        TRY(tool_should_stop(search->context, search->out, stop, error));
        if (*stop) {
            return OK;
        }
        if (!is_ignored(&list.entries[i])) {
            TRY(visit_entry(search, folder, &list.entries[i], error));
        }
    }
    // The stack gives the last one first: pushed backwards, names come in order.
    for (size_t i = list.count; i > 0; i--) {
        const struct beneath_entry *entry = &list.entries[i - 1];
        char path[TOOL_PATH_BYTES];
        if (entry->info.kind == BENEATH_DIRECTORY && !is_ignored(entry) &&
            join_path(path, folder, entry->name)) {
            TRY(push_directory(search, path, error));
        }
    }
    return OK;
}

static result end_answer(struct search *search, struct error *error) {
    struct buffer *text = &search->out->text;
    if (search->matches == 0) {
        TRY(buffer_append_format(text, error, "no matches in %zu files", search->files));
    }
    if (search->is_full) {
        search->out->text_is_truncated = true;
        TRY(buffer_append_format(
            text,
            error,
            "\n... [stopped after %zu matches in %zu files] ...",
            search->matches,
            search->files
        ));
    }
    if (search->skipped_files > 0) {
        TRY(buffer_append_format(
            text,
            error,
            "\n(%zu binary, large or unreadable files were not searched)",
            search->skipped_files
        ));
    }
    return OK;
}

static result run_search(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct view given = tool_argument(arguments, "path");
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    TRY(tool_path(given, path, &usable, out, error));
    if (!usable) {
        return OK;
    }
    CLEANUP(search_cleanup) struct search search = {0};
    search.context = context;
    search.out = out;
    search.text = tool_argument(arguments, "text");
    search.in_names = view_equals_text(tool_argument(arguments, "in"), "names");
    buffer_init(&search.scratch, 2 * SEARCH_FILE_BYTES_MAX);
    buffer_init(&search.waiting, SEARCH_WAITING_BYTES);
    if (search.text.length == 0) {
        return tool_answer(out, TOOL_REFUSED, error, "error: the text to search for is empty");
    }
    struct beneath_info info = {0};
    struct error why = {0};
    result status = beneath_stat(context->root, path, &info, &why);
    if (status.code == RESULT_INVALID_INPUT) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: bad path: %.*s (%s)",
            VIEW_ARGUMENTS(given),
            why.message
        );
    }
    if (is_failed(status) || info.kind != BENEATH_DIRECTORY) {
        return tool_answer(
            out, TOOL_ERROR, error, "error: no such directory: %.*s", VIEW_ARGUMENTS(given)
        );
    }
    out->status = TOOL_OK;
    TRY(push_directory(&search, path, error));
    bool stop = false;
    while (search.waiting.length > 0 && !search.is_full && !stop) {
        TRY(visit_directory(&search, &stop, error));
    }
    return stop ? OK : end_answer(&search, error);
}
