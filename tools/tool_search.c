/* search: an exact text in the files of the workspace, or in their names.
 *
 * Binary and very large files are left out, and so is everything past the limits: the answer says
 * what was not looked at. What git ignores is left out without a word, as grep does.
 */
#include "tool_match.h"

#define SEARCH_MATCHES_MAX     ((size_t)200)
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
    struct walk walk;
    size_t matches;
    size_t files;         /* looked at */
    size_t skipped_files; /* binary, too large or unreadable */
    struct buffer scratch;
};

static void search_cleanup(struct search *search) {
    buffer_deinit(&search->scratch);
    walk_deinit(&search->walk);
}

/* Begins a line of the answer with the path; false when the answer is full. */
static result
begin_match(struct search *search, const char *path, bool *begun, struct error *error) {
    struct buffer *text = &search->out->text;
    *begun = search->matches < SEARCH_MATCHES_MAX &&
             text->length < search->context->options.text_bytes_max;
    if (!*begun) {
        search->walk.is_full = true;
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
    for (size_t at = view_find(content, search->text, 0);
         at != SIZE_MAX && !search->walk.is_full;) {
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

static result
visit(void *context, const char *path, const struct beneath_entry *entry, struct error *error) {
    struct search *search = context;
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
    search->walk.is_full = search->walk.is_full || search->files >= SEARCH_FILES_MAX;
    return search->in_names ? OK : search_content(search, path, error);
}

static result end_answer(struct search *search, struct error *error) {
    struct buffer *text = &search->out->text;
    if (search->matches == 0) {
        TRY(buffer_append_format(text, error, "no matches in %zu files", search->files));
    }
    if (search->walk.is_full) {
        search->out->text_is_truncated = true;
        TRY(buffer_append_format(
            text,
            error,
            "\n... [stopped after %zu matches in %zu files] ...",
            search->matches,
            search->files
        ));
    }
    search->skipped_files += search->walk.skipped;
    if (search->skipped_files > 0) {
        TRY(buffer_append_format(
            text,
            error,
            "\n(%zu binary, large or unreadable files were not searched)",
            search->skipped_files
        ));
    }
    return walk_tell_hidden(&search->walk, error);
}

static result run_search(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    char path[TOOL_PATH_BYTES];
    bool usable = false;
    struct beneath_info info = {0};
    struct view given = tool_argument(arguments, "path");
    CLEANUP(search_cleanup) struct search search = {.context = context, .out = out};
    search.walk = (struct walk){.context = context, .out = out, .honours_ignore = true};
    search.text = tool_argument(arguments, "text");
    search.in_names = view_equals_text(tool_argument(arguments, "in"), "names");
    buffer_init(&search.scratch, 2 * SEARCH_FILE_BYTES_MAX);
    if (search.text.length == 0) {
        return tool_answer(out, TOOL_REFUSED, error, "error: the text to search for is empty");
    }
    TRY(walk_start(context, given, false, path, &info, &usable, out, error));
    if (!usable) {
        return OK;
    }
    out->status = TOOL_OK;
    TRY(walk_run(&search.walk, path, visit, &search, error));
    return search.walk.has_stopped ? OK : end_answer(&search, error);
}
