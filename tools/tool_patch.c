/* Parser of patches: one pass over lines that were split before. See tool_patch.h. */
#include "tool_patch.h"

#define SHOWN_BYTES ((size_t)80) /* of a line, in a message */

struct parser {
    struct patch *patch;
    struct buffer *why;
    struct error *error;
    size_t at;        /* next line */
    bool is_done;     /* after the end */
    size_t file_room; /* allocated */
    size_t hunk_room;
};

void patch_deinit(struct patch *patch) {
    free(patch->lines);
    free(patch->files);
    free(patch->hunks);
    *patch = (struct patch){0};
}

static result wrong(struct parser *parser, const char *what) {
    struct view line = {NULL, 0};
    if (parser->at < parser->patch->line_count) {
        line = parser->patch->lines[parser->at];
    }
    return buffer_append_format(
        parser->why,
        parser->error,
        "patch line %zu: %s%s%.*s%s",
        parser->at + 1,
        what,
        line.length > 0 ? ", not '" : "",
        (int)(line.length > SHOWN_BYTES ? SHOWN_BYTES : line.length),
        line.length > 0 ? (const char *)line.data : "",
        line.length > 0 ? "'" : ""
    );
}

static result split_lines(struct view text, struct parser *parser) {
    size_t count = 1;
    for (size_t i = 0; i < text.length; i++) {
        count += text.data[i] == '\n';
    }
    if (count > PATCH_LINES_MAX) {
        return buffer_append_format(
            parser->why,
            parser->error,
            "the patch has %zu lines, at most %zu",
            count,
            PATCH_LINES_MAX
        );
    }
    struct patch *patch = parser->patch;
    patch->lines = calloc(count, sizeof *patch->lines);
    if (patch->lines == NULL) {
        FAIL(parser->error, MEMORY, "patch of %zu lines", count);
    }
    struct cursor rest = cursor_over(text);
    while (patch->line_count < count) {
        struct view line;
        if (!cursor_take_until(&rest, '\n', &line)) {
            (void)cursor_take(&rest, cursor_remaining(&rest), &line);
        }
        if (line.length > 0 && line.data[line.length - 1] == '\r') {
            line.length -= 1;
        }
        patch->lines[patch->line_count] = line;
        patch->line_count += 1;
    }
    return OK;
}

static struct view without_blanks(struct view text) {
    while (text.length > 0 && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text = view_slice(text, 1, SIZE_MAX);
    }
    while (text.length > 0 &&
           (text.data[text.length - 1] == ' ' || text.data[text.length - 1] == '\t')) {
        text.length -= 1;
    }
    return text;
}

/* The line that is next; false at the end of the text. */
static bool peek(const struct parser *parser, struct view *line) {
    bool is_there = parser->at < parser->patch->line_count;
    *line = is_there ? parser->patch->lines[parser->at] : view_of(NULL, 0);
    return is_there;
}

/* "*** Add File: a.py" begins with "*** Add File:": what is behind it. */
static bool has_marker(struct view line, const char *marker, struct view *argument) {
    struct view text = view_of_text(marker);
    if (!view_starts_with(line, text)) {
        return false;
    }
    *argument = without_blanks(view_slice(line, text.length, SIZE_MAX));
    return true;
}

static bool is_marker(struct view line) {
    return view_starts_with(line, view_of_text("*** "));
}

static bool is_marker_of(struct view line, const char *marker) {
    return view_equals_text(without_blanks(line), marker);
}

/* ------------------------------------------------------------------ sections ---- */

static result
grow(void **items, size_t *room, size_t count, size_t item_bytes, struct error *error) {
    if (count < *room) {
        return OK;
    }
    size_t more = *room == 0 ? 8 : 2 * *room;
    void *grown = realloc(*items, more * item_bytes);
    if (grown == NULL) {
        FAIL(error, MEMORY, "patch: %zu items", more);
    }
    *items = grown;
    *room = more;
    return OK;
}

static result add_file(struct parser *parser, enum patch_kind kind, struct view path) {
    struct patch *patch = parser->patch;
    if (path.length == 0) {
        return wrong(parser, "a path is missing");
    }
    if (patch->file_count == PATCH_FILES_MAX) {
        return wrong(parser, "too many files in one patch");
    }
    void *files = patch->files;
    TRY(grow(&files, &parser->file_room, patch->file_count, sizeof *patch->files, parser->error));
    patch->files = files;
    struct patch_file *file = &patch->files[patch->file_count];
    *file = (struct patch_file){.kind = kind, .path = path, .line = parser->at + 1};
    patch->file_count += 1;
    parser->at += 1;
    file->first = kind == PATCH_ADD ? parser->at : patch->hunk_count;
    return OK;
}

static result parse_added_lines(struct parser *parser) {
    struct patch_file *file = &parser->patch->files[parser->patch->file_count - 1];
    struct view line;
    while (peek(parser, &line) && line.length > 0 && line.data[0] == '+') {
        parser->at += 1;
    }
    file->count = parser->at - file->first;
    while (peek(parser, &line) && line.length == 0) {
        parser->at += 1;
    }
    return !peek(parser, &line) || is_marker(line)
               ? OK
               : wrong(parser, "a line of a new file begins with '+'");
}

/* "@@ -12,3 +12,4 @@ f()", as diff writes it, says lines that models count wrong; only what stands
 * behind it can be an anchor, and that is cut short. */
static struct view anchor_of(struct view line) {
    struct view text = without_blanks(view_slice(line, 2, SIZE_MAX));
    bool has_numbers = text.length > 1 && text.data[0] == '-' && text.data[1] >= '0' &&
                       text.data[1] <= '9' && view_find(text, view_of_text(" +"), 0) != SIZE_MAX;
    bool is_closed = view_ends_with(text, view_of_text("@@")); // "@@ f() @@"
    if (has_numbers) {
        return view_of(NULL, 0);
    }
    return is_closed ? without_blanks(view_slice(text, 0, text.length - 2)) : text;
}

static bool is_hunk_line(struct view line) {
    return line.length == 0 || line.data[0] == ' ' || line.data[0] == '+' || line.data[0] == '-';
}

static result parse_hunk(struct parser *parser) {
    struct patch *patch = parser->patch;
    if (patch->hunk_count == PATCH_HUNKS_MAX) {
        return wrong(parser, "too many hunks in one patch");
    }
    void *hunks = patch->hunks;
    TRY(grow(&hunks, &parser->hunk_room, patch->hunk_count, sizeof *patch->hunks, parser->error));
    patch->hunks = hunks;
    struct patch_hunk *hunk = &patch->hunks[patch->hunk_count];
    *hunk = (struct patch_hunk){0};
    patch->hunk_count += 1;
    struct view line;
    if (peek(parser, &line) && view_starts_with(line, view_of_text("@@"))) {
        hunk->anchor = anchor_of(line);
        parser->at += 1;
    }
    hunk->first = parser->at;
    while (peek(parser, &line) && is_hunk_line(line)) {
        parser->at += 1;
    }
    hunk->count = parser->at - hunk->first;
    // Empty lines in front of the next section separate, they are no context.
    while (hunk->count > 0 && patch->lines[hunk->first + hunk->count - 1].length == 0) {
        hunk->count -= 1;
    }
    if (peek(parser, &line) && is_marker_of(line, "*** End of File")) {
        hunk->ends_file = true;
        parser->at += 1;
    }
    return OK;
}

static result parse_update(struct parser *parser) {
    struct patch *patch = parser->patch;
    struct patch_file *file = &patch->files[patch->file_count - 1];
    struct view line;
    if (peek(parser, &line) && has_marker(line, "*** Move to:", &file->moved_to)) {
        if (file->moved_to.length == 0) {
            return wrong(parser, "a path is missing");
        }
        parser->at += 1;
    }
    size_t lines = 0;
    while (peek(parser, &line) && !is_marker(line)) {
        size_t before = parser->at;
        TRY(parse_hunk(parser));
        if (parser->at == before && parser->why->length == 0) {
            return wrong(parser, "a line of an update begins with ' ', '+', '-' or '@@'");
        }
        if (parser->why->length > 0) {
            return OK;
        }
        lines += patch->hunks[patch->hunk_count - 1].count;
    }
    file->count = patch->hunk_count - file->first;
    if (lines == 0 && file->moved_to.length == 0) {
        parser->at = file->line - 1;
        return wrong(parser, "an update without a change");
    }
    return OK;
}

static result parse_section(struct parser *parser) {
    struct view line;
    struct view path;
    if (!peek(parser, &line)) {
        return wrong(parser, "'*** End Patch' is missing");
    }
    if (is_marker_of(line, "*** End Patch")) {
        parser->is_done = true;
        return OK;
    }
    if (has_marker(line, "*** Add File:", &path)) {
        TRY(add_file(parser, PATCH_ADD, path));
        return parser->why->length > 0 ? OK : parse_added_lines(parser);
    }
    if (has_marker(line, "*** Delete File:", &path)) {
        return add_file(parser, PATCH_DELETE, path);
    }
    if (has_marker(line, "*** Update File:", &path)) {
        TRY(add_file(parser, PATCH_UPDATE, path));
        return parser->why->length > 0 ? OK : parse_update(parser);
    }
    if (without_blanks(line).length == 0) {
        parser->at += 1;
        return OK;
    }
    return wrong(
        parser, "a section begins with '*** Add File: ', '*** Update File: ' or '*** Delete File: '"
    );
}

/* Blank lines, and the first line of a here-document, may stand in front. */
static result parse_begin(struct parser *parser) {
    struct view line;
    while (peek(parser, &line) && (without_blanks(line).length == 0 ||
                                   view_find(line, view_of_text("<<"), 0) != SIZE_MAX)) {
        parser->at += 1;
    }
    if (!peek(parser, &line) || !is_marker_of(line, "*** Begin Patch")) {
        return wrong(parser, "a patch begins with '*** Begin Patch'");
    }
    parser->at += 1;
    return OK;
}

result patch_parse(struct view text, struct patch *out, struct buffer *why, struct error *error) {
    CLEANUP(patch_deinit) struct patch patch = {0};
    struct parser parser = {.patch = &patch, .why = why, .error = error};
    ASSERT(why->length == 0);
    TRY(split_lines(text, &parser));
    if (why->length == 0) {
        TRY(parse_begin(&parser));
    }
    while (why->length == 0 && !parser.is_done) {
        TRY(parse_section(&parser));
    }
    if (why->length == 0 && patch.file_count == 0) {
        TRY(wrong(&parser, "the patch names no file"));
    }
    if (why->length > 0) {
        return OK;
    }
    *out = patch;
    patch = (struct patch){0};
    return OK;
}
