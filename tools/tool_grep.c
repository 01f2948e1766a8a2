/* grep: a regular expression in the lines of files, with the lines around them if wanted.
 *
 * Files are found by the walk that honours ignore files, and read whole up to a limit; binary ones
 * are left out. A text that every match contains finds the lines that are worth a look.
 */
#include "tool_match.h"
#include "tool_regex.h"

#define MATCHES_DEFAULT ((int64_t)200)
#define FILES_MAX       ((size_t)100000)
#define CONTEXT_MAX     ((int64_t)50)
#define LINE_CHARACTERS ((size_t)400) /* shown of a line */
#define LINES_PER_LOOK  256           /* at the clock and at cancel */

enum grep_mode { GREP_CONTENT, GREP_FILES, GREP_COUNT };

static tool_run run_grep;

const struct tool_row tool_row_grep =
    {
        .shown =
            {
                "grep",
                "Search the lines of files for a regular expression. Ignored and binary files are "
                "left "
                "out.",
                OBJECT_SCHEMA(
                    STRING_PROPERTY("pattern", "regular expression") ", " STRING_PROPERTY("path", "file or directory, the workspace when left out") ", " STRING_PROPERTY(
                        "glob", "only files like *.c or src/**"
                    ) ", \"mode\": "
                      "{\"type\": \"string\", \"description\": \"what to show\", \"enum\": "
                      "[\"content\", "
                      "\"files\", \"count\"]}, " TYPED_PROPERTY("ignore_case", "boolean", "a is A") ", " TYPED_PROPERTY("before", "integer", "lines to show before a match") ", " TYPED_PROPERTY(
                          "after", "integer", "lines to show behind a match"
                      ) ", " TYPED_PROPERTY("context", "integer", "both") ", " TYPED_PROPERTY("limit", "integer", "matches or files to show, 200 when left out"),
                    "\"pattern\""
                ),
                TOOL_READS,
                false},
        .run = run_grep,
};

struct grep {
    struct walk walk;
    struct regex *regex;
    struct buffer patterns; /* of glob; empty: every file */
    size_t start_bytes;     /* of the directory's path and its slash: not matched by glob */
    enum grep_mode mode;
    int64_t before;
    int64_t after;
    int64_t limit;
    int64_t shown;  /* matches or files */
    size_t matches; /* of all files */
    size_t files;
    size_t skipped;
    size_t long_lines; /* looked at in part */
    struct buffer content;
};

static void grep_cleanup(struct grep *grep) {
    walk_deinit(&grep->walk);
    regex_destroy(grep->regex);
    buffer_deinit(&grep->patterns);
    buffer_deinit(&grep->content);
}

/* Where a walk through one file is. Lines are given by their first byte. */
struct place {
    const char *path;
    struct view content;
    size_t at;     /* a line, and */
    size_t number; /* its number */
    size_t printed_to;
    size_t printed_number; /* of the line at printed_to */
    int64_t after_left;    /* lines behind the last match that are still to be shown */
    size_t matches;
};

static size_t line_end(struct view content, size_t at) {
    size_t end = view_find(content, view_of_text("\n"), at);
    return end == SIZE_MAX ? content.length : end;
}

static bool is_shown_full(const struct grep *grep) {
    return grep->shown >= grep->limit ||
           grep->walk.out->text.length >= grep->walk.context->options.text_bytes_max;
}

static result print_line(
    struct grep *grep, struct place *place, size_t at, size_t number, char mark, struct error *error
) {
    struct buffer *text = &grep->walk.out->text;
    size_t end = line_end(place->content, at);
    struct view line = view_slice(place->content, at, end - at);
    if (line.length > 0 && line.data[line.length - 1] == '\r') {
        line.length -= 1;
    }
    struct tool_cut cut = tool_cut_characters(line, LINE_CHARACTERS, LINE_CHARACTERS, 0);
    TRY(buffer_append_text(text, text->length == 0 ? "" : "\n", error));
    TRY(sandbox_sanitise(view_of_text(place->path), 0, text, error));
    TRY(buffer_append_format(text, error, "%c%zu%c", mark, number, mark));
    TRY(sandbox_sanitise(view_slice(line, 0, cut.head_bytes), 0, text, error));
    if (cut.head_bytes < line.length) {
        TRY(buffer_append_text(text, " ...", error));
    }
    place->printed_to = end + 1;
    place->printed_number = number + 1;
    return OK;
}

/* Lines behind the last match, before `until`. */
static result
print_after(struct grep *grep, struct place *place, size_t until, struct error *error) {
    while (place->after_left > 0 && place->printed_to < until) {
        TRY(print_line(grep, place, place->printed_to, place->printed_number, '-', error));
        place->after_left -= 1;
    }
    place->after_left = 0;
    return OK;
}

static result print_match(struct grep *grep, struct place *place, struct error *error) {
    TRY(print_after(grep, place, place->at, error));
    size_t from = place->at;
    size_t number = place->number;
    for (int64_t i = 0; i < grep->before && from > place->printed_to; i++) {
        from -= 1; // the newline of the line before
        while (from > place->printed_to && place->content.data[from - 1] != '\n') {
            from -= 1;
        }
        number -= 1;
    }
    bool has_context = grep->before > 0 || grep->after > 0;
    if (has_context && grep->walk.out->text.length > 0 &&
        (place->matches == 1 || from > place->printed_to)) {
        TRY(buffer_append_text(&grep->walk.out->text, "\n--", error));
    }
    while (from < place->at) {
        TRY(print_line(grep, place, from, number, '-', error));
        from = place->printed_to;
        number = place->printed_number;
    }
    place->after_left = grep->after;
    grep->shown += 1;
    return print_line(grep, place, place->at, place->number, ':', error);
}

/* Goes to the line that `to` lies in. */
static void go_to(struct place *place, size_t to) {
    for (;;) {
        size_t end = line_end(place->content, place->at);
        if (to <= end || end == place->content.length) {
            return;
        }
        place->at = end + 1;
        place->number += 1;
    }
}

static result grep_lines(struct grep *grep, struct place *place, struct error *error) {
    struct view literal = regex_literal(grep->regex);
    for (size_t looks = 0; place->at < place->content.length; looks++) {
        if (literal.length > 0) {
            size_t found = view_find(place->content, literal, place->at);
            if (found == SIZE_MAX) {
                break;
            }
            go_to(place, found);
        }
        size_t end = line_end(place->content, place->at);
        struct view line = view_slice(place->content, place->at, end - place->at);
        if (looks % LINES_PER_LOOK == 0 || line.length > REGEX_LINE_MAX / 16) {
            TRY(tool_should_stop(grep->walk.context, grep->walk.out, &grep->walk.has_stopped, error)
            );
        }
        if (grep->walk.has_stopped) {
            return OK;
        }
        if (line.length > 0 && line.data[line.length - 1] == '\r') {
            line.length -= 1;
        }
        grep->long_lines += line.length > REGEX_LINE_MAX;
        if (regex_matches(grep->regex, line)) {
            place->matches += 1;
            if (grep->mode == GREP_FILES) {
                return OK;
            }
            if (grep->mode == GREP_CONTENT && is_shown_full(grep)) {
                grep->walk.is_full = true;
                return OK;
            }
            if (grep->mode == GREP_CONTENT) {
                TRY(print_match(grep, place, error));
            }
        }
        place->at = end + 1;
        place->number += 1;
    }
    return print_after(grep, place, place->content.length, error);
}

/* False: it is binary, too large or cannot be read. */
static result read_content(struct grep *grep, const char *path, bool *usable, struct error *error) {
    struct buffer *content = &grep->content;
    buffer_clear(content);
    *usable = false;
    for (size_t before = SIZE_MAX; content->length != before;) {
        before = content->length;
        struct error why = {0};
        struct beneath_info info = {0};
        result status = beneath_read(
            grep->walk.context->root, path, before, BENEATH_READ_BYTES_MAX, content, &info, &why
        );
        if (status.code == RESULT_MEMORY) {
            return error_set(error, RESULT_MEMORY, 0, why.file, why.line, "%s", why.message);
        }
        if (is_failed(status) || info.bytes > TOOL_FILE_BYTES_MAX ||
            content->length > TOOL_FILE_BYTES_MAX) {
            return OK;
        }
        if (content->length == info.bytes) {
            break;
        }
    }
    *usable = content->length == 0 || memchr(content->data, 0, content->length) == NULL;
    return OK;
}

static result grep_file(struct grep *grep, const char *path, struct error *error) {
    bool usable = false;
    TRY(read_content(grep, path, &usable, error));
    grep->files += 1;
    grep->skipped += !usable;
    if (grep->files >= FILES_MAX) {
        grep->walk.is_full = true;
    }
    if (!usable) {
        return OK;
    }
    struct place place = {
        .path = path, .content = buffer_view(&grep->content), .number = 1, .printed_number = 1};
    TRY(grep_lines(grep, &place, error));
    grep->matches += place.matches;
    if (grep->mode == GREP_CONTENT || place.matches == 0 || grep->walk.has_stopped) {
        return OK;
    }
    if (is_shown_full(grep)) {
        grep->walk.is_full = true;
        return OK;
    }
    struct buffer *text = &grep->walk.out->text;
    grep->shown += 1;
    TRY(buffer_append_text(text, text->length == 0 ? "" : "\n", error));
    TRY(sandbox_sanitise(view_of_text(path), 0, text, error));
    return grep->mode == GREP_FILES ? OK : buffer_append_format(text, error, ":%zu", place.matches);
}

static result
visit(void *context, const char *path, const struct beneath_entry *entry, struct error *error) {
    struct grep *grep = context;
    bool is_wanted = entry->info.kind == BENEATH_FILE &&
                     (grep->patterns.length == 0 ||
                      patterns_fit(&grep->patterns, view_of_text(path + grep->start_bytes)));
    return is_wanted ? grep_file(grep, path, error) : OK;
}

static result end_answer(struct grep *grep, struct error *error) {
    struct tool_result *out = grep->walk.out;
    if (grep->matches == 0) {
        TRY(buffer_append_format(&out->text, error, "no matches in %zu files", grep->files));
    }
    if (grep->walk.is_full) {
        out->text_is_truncated = true;
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n... [stopped after %lld %s in %zu files] ...",
            (long long)grep->shown,
            grep->mode == GREP_CONTENT ? "matches" : "files with matches",
            grep->files
        ));
    }
    if (grep->skipped + grep->walk.skipped > 0) {
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n(%zu binary, large or unreadable files were not searched)",
            grep->skipped + grep->walk.skipped
        ));
    }
    TRY(walk_tell_hidden(&grep->walk, error));
    if (grep->long_lines > 0) {
        TRY(buffer_append_format(
            &out->text,
            error,
            "\n(of %zu lines only the first %zu bytes were searched)",
            grep->long_lines,
            REGEX_LINE_MAX
        ));
    }
    return OK;
}

static int64_t
bounded(struct json_value arguments, const char *name, int64_t otherwise, int64_t max) {
    int64_t value = otherwise;
    (void)json_as_i64(json_get(arguments, name), &value);
    value = value < 0 ? 0 : value;
    return value > max ? max : value;
}

/* Pattern, globs and numbers; `usable` false: the answer says what is wrong with them. */
static result
set_up(struct grep *grep, struct json_value arguments, bool *usable, struct error *error) {
    struct tool_result *out = grep->walk.out;
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&why, BUFFER_CEILING_DEFAULT);
    bool ignores_case = false;
    (void)json_as_bool(json_get(arguments, "ignore_case"), &ignores_case);
    struct view pattern = tool_argument(arguments, "pattern");
    TRY(regex_compile(pattern, ignores_case, &grep->regex, &why, error));
    *usable = grep->regex != NULL;
    if (!*usable) {
        return tool_answer(out, TOOL_REFUSED, error, "error: pattern: %s", buffer_text(&why));
    }
    struct view glob = tool_argument(arguments, "glob");
    struct error limit = {0};
    result expanded = glob.length == 0 ? OK : patterns_expand(glob, &grep->patterns, &limit);
    if (expanded.code == RESULT_LIMIT) {
        *usable = false;
        return tool_answer(out, TOOL_REFUSED, error, "error: glob: %s", limit.message);
    }
    if (is_failed(expanded)) {
        return error_set(error, expanded.code, 0, limit.file, limit.line, "%s", limit.message);
    }
    int64_t both = bounded(arguments, "context", 0, CONTEXT_MAX);
    grep->before = bounded(arguments, "before", both, CONTEXT_MAX);
    grep->after = bounded(arguments, "after", both, CONTEXT_MAX);
    grep->limit = bounded(arguments, "limit", MATCHES_DEFAULT, INT64_MAX);
    grep->limit = grep->limit == 0 ? MATCHES_DEFAULT : grep->limit;
    return OK;
}

static result grep_in_mode(
    struct tool_context *context,
    struct json_value arguments,
    enum grep_mode mode,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(grep_cleanup) struct grep grep = {.mode = mode};
    grep.walk = (struct walk){.context = context, .out = out, .honours_ignore = true};
    buffer_init(&grep.patterns, BUFFER_CEILING_DEFAULT);
    buffer_init(&grep.content, TOOL_FILE_BYTES_MAX + BENEATH_READ_BYTES_MAX);
    char path[TOOL_PATH_BYTES];
    char spelled[TOOL_SPELLED_BYTES];
    struct beneath_info info = {0};
    bool usable = false;
    TRY(set_up(&grep, arguments, &usable, error));
    if (usable) {
        struct view given = tool_argument(arguments, "path");
        TRY(walk_start(context, given, true, path, &info, &usable, out, error));
    }
    if (!usable) {
        return OK;
    }
    tool_path_spell(path, spelled);
    out->status = TOOL_OK;
    if (info.kind == BENEATH_FILE) {
        TRY(grep_file(&grep, spelled, error));
    } else {
        grep.start_bytes = strlen(spelled) + (spelled[0] != '\0');
        TRY(walk_run(&grep.walk, path, visit, &grep, error));
    }
    return grep.walk.has_stopped ? OK : end_answer(&grep, error);
}

static enum grep_mode mode_of(struct json_value arguments, enum grep_mode otherwise) {
    struct view mode = tool_argument(arguments, "mode");
    if (mode.length == 0) {
        return otherwise;
    }
    if (view_equals_text(mode, "content")) {
        return GREP_CONTENT;
    }
    return view_equals_text(mode, "count") ? GREP_COUNT : GREP_FILES;
}

static result run_grep(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return grep_in_mode(context, arguments, mode_of(arguments, GREP_CONTENT), out, error);
}

result tool_run_grep_files(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return grep_in_mode(context, arguments, mode_of(arguments, GREP_FILES), out, error);
}
