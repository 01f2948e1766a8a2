/* What the hunks of a patch make of a text. See tool_patch.h.
 *
 * A hunk belongs where its context and old lines follow each other: at or behind its anchor, behind
 * the hunk before it. They are compared exactly at first and then without the blanks at their ends.
 * A hunk without an anchor that fits twice is refused rather than put at the first place.
 */
#include "tool_patch.h"

struct fit {
    const struct patch *patch;
    const struct patch_hunk *hunk;
    struct view content;
    struct view line_end; /* of the file: LF or CR LF */
    size_t compares_left;
    size_t at;         /* content before it has been written */
    size_t best_count; /* old lines that fit at the best place, for the message */
    size_t best_at;
    size_t best_line; /* of the patch: what did not fit there */
};

static struct view line_at(struct view content, size_t at, size_t *next) {
    size_t end = view_find(content, view_of_text("\n"), at);
    *next = end == SIZE_MAX ? content.length : end + 1;
    return view_slice(content, at, (end == SIZE_MAX ? content.length : end) - at);
}

static struct view without_end_blanks(struct view line) {
    while (line.length > 0) {
        unsigned char last = line.data[line.length - 1];
        if (last != ' ' && last != '\t' && last != '\r') {
            break;
        }
        line.length -= 1;
    }
    return line;
}

static struct view without_blanks(struct view line) {
    while (line.length > 0 && (line.data[0] == ' ' || line.data[0] == '\t')) {
        line = view_slice(line, 1, SIZE_MAX);
    }
    return without_end_blanks(line);
}

static bool is_old(struct view line) {
    return line.length == 0 || line.data[0] != '+';
}

/* Context and old lines at `at`; `*end` is behind them. */
static bool fits_at(struct fit *fit, size_t at, bool is_exact, size_t *end) {
    size_t count = 0;
    for (size_t i = 0; i < fit->hunk->count; i++) {
        struct view wanted = fit->patch->lines[fit->hunk->first + i];
        if (!is_old(wanted)) {
            continue;
        }
        wanted = view_slice(wanted, 1, SIZE_MAX);
        size_t next = at;
        struct view line = line_at(fit->content, at, &next);
        fit->compares_left -= fit->compares_left > 0;
        bool is_equal =
            at < fit->content.length && fit->compares_left > 0 &&
            (is_exact ? view_equals(line, wanted)
                      : view_equals(without_end_blanks(line), without_end_blanks(wanted)));
        if (!is_equal) {
            if (count > fit->best_count) {
                fit->best_count = count;
                fit->best_at = at;
                fit->best_line = fit->hunk->first + i + 1;
            }
            return false;
        }
        count += 1;
        at = next;
    }
    *end = at;
    return !fit->hunk->ends_file || at == fit->content.length;
}

/* The first place at or behind `from`; SIZE_MAX: none. */
static size_t find_place(struct fit *fit, size_t from, bool is_exact, size_t *end) {
    for (size_t at = from; at < fit->content.length && fit->compares_left > 0;) {
        if (fits_at(fit, at, is_exact, end)) {
            return at;
        }
        (void)line_at(fit->content, at, &at);
    }
    return SIZE_MAX;
}

/* The line that the anchor names: exactly, without blanks around it, or its beginning. */
static size_t find_anchor(struct fit *fit, struct view anchor) {
    for (unsigned pass = 0; pass < 3; pass++) {
        for (size_t at = fit->at; at < fit->content.length && fit->compares_left > 0;) {
            size_t next = at;
            struct view line = line_at(fit->content, at, &next);
            fit->compares_left -= 1;
            struct view bare = without_blanks(line);
            if ((pass == 0 && view_equals(line, anchor)) ||
                (pass == 1 && view_equals(bare, anchor)) ||
                (pass == 2 && view_starts_with(bare, anchor))) {
                return at;
            }
            at = next;
        }
    }
    return SIZE_MAX;
}

static size_t old_count(const struct fit *fit) {
    size_t count = 0;
    for (size_t i = 0; i < fit->hunk->count; i++) {
        count += is_old(fit->patch->lines[fit->hunk->first + i]);
    }
    return count;
}

static size_t number_of(struct view content, size_t at) {
    size_t number = 1;
    for (size_t i = 0; i < at; i++) {
        number += content.data[i] == '\n';
    }
    return number;
}

static result say_absent(const struct fit *fit, struct buffer *why, struct error *error) {
    if (fit->compares_left == 0) {
        return buffer_append_text(
            why, "takes too long to find; give it an anchor (@@ line)", error
        );
    }
    if (fit->best_count == 0) {
        return buffer_append_format(
            why,
            error,
            "does not fit: its first line is not in the file%s",
            fit->at > 0 ? " behind the hunk before it" : ""
        );
    }
    size_t next = 0;
    struct view line = line_at(fit->content, fit->best_at, &next);
    return buffer_append_format(
        why,
        error,
        "does not fit: patch line %zu differs from line %zu of the file, '%.*s'",
        fit->best_line,
        number_of(fit->content, fit->best_at),
        (int)(line.length > 200 ? 200 : line.length),
        line.length > 0 ? (const char *)line.data : ""
    );
}

/* Where the hunk goes: its lines replace content[*place, *end). */
static result
locate(struct fit *fit, size_t *place, size_t *end, struct buffer *why, struct error *error) {
    bool has_anchor = fit->hunk->anchor.length > 0;
    size_t from = has_anchor ? find_anchor(fit, fit->hunk->anchor) : fit->at;
    if (from == SIZE_MAX) {
        return buffer_append_format(
            why,
            error,
            "has an anchor that is not in the file%s: '%.*s'",
            fit->at > 0 ? " behind the hunk before it" : "",
            (int)(fit->hunk->anchor.length > 200 ? 200 : fit->hunk->anchor.length),
            (const char *)fit->hunk->anchor.data
        );
    }
    if (fit->hunk->count == 0) { // an anchor alone, or nothing
        *place = from;
        *end = from;
        return OK;
    }
    if (old_count(fit) == 0) { // only new lines: behind the anchor, or at the end
        *place = fit->content.length;
        if (has_anchor) {
            (void)line_at(fit->content, from, place);
        }
        *end = *place;
        return OK;
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        bool is_exact = pass == 0;
        *place = find_place(fit, from, is_exact, end);
        if (*place == SIZE_MAX) {
            continue;
        }
        size_t next = 0;
        size_t other_end = 0;
        (void)line_at(fit->content, *place, &next);
        size_t other = has_anchor ? SIZE_MAX : find_place(fit, next, is_exact, &other_end);
        if (other != SIZE_MAX) {
            return buffer_append_format(
                why,
                error,
                "fits at line %zu and at line %zu; give more context or an anchor (@@ line)",
                number_of(fit->content, *place),
                number_of(fit->content, other)
            );
        }
        if (fit->compares_left > 0) {
            return OK;
        }
    }
    return say_absent(fit, why, error);
}

static result
write_new_line(const struct fit *fit, struct view line, struct buffer *out, struct error *error) {
    if (out->length > 0 && out->data[out->length - 1] != '\n') { // the old last line had no end
        TRY(buffer_append(out, fit->line_end, error));
    }
    TRY(buffer_append(out, line, error));
    return buffer_append(out, fit->line_end, error);
}

/* The hunk's lines; context is kept as the file has it. */
static result
write_hunk(const struct fit *fit, size_t at, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < fit->hunk->count; i++) {
        struct view line = fit->patch->lines[fit->hunk->first + i];
        if (!is_old(line)) {
            TRY(write_new_line(fit, view_slice(line, 1, SIZE_MAX), out, error));
            continue;
        }
        size_t next = at;
        (void)line_at(fit->content, at, &next);
        if (line.length == 0 || line.data[0] == ' ') {
            TRY(buffer_append(out, view_slice(fit->content, at, next - at), error));
        }
        at = next;
    }
    return OK;
}

static result add_lines(
    const struct patch *patch,
    const struct patch_file *file,
    struct buffer *out,
    struct error *error
) {
    for (size_t i = 0; i < file->count; i++) {
        TRY(buffer_append(out, view_slice(patch->lines[file->first + i], 1, SIZE_MAX), error));
        TRY(buffer_append_byte(out, '\n', error));
    }
    return OK;
}

result patch_apply(
    const struct patch *patch,
    const struct patch_file *file,
    struct view content,
    struct buffer *out,
    struct buffer *why,
    struct error *error
) {
    ASSERT(why->length == 0);
    if (file->kind == PATCH_ADD) {
        return add_lines(patch, file, out, error);
    }
    ASSERT(file->kind == PATCH_UPDATE);
    size_t newline = view_find(content, view_of_text("\n"), 0);
    bool is_crlf = newline != SIZE_MAX && newline > 0 && content.data[newline - 1] == '\r';
    struct fit fit = {.patch = patch, .content = content, .compares_left = PATCH_COMPARES_MAX};
    fit.line_end = view_of_text(is_crlf ? "\r\n" : "\n");
    for (size_t i = 0; i < file->count; i++) {
        fit.hunk = &patch->hunks[file->first + i];
        fit.best_count = 0;
        size_t place = 0;
        size_t end = 0;
        TRY(locate(&fit, &place, &end, why, error));
        if (why->length > 0) {
            CLEANUP(buffer_deinit) struct buffer what = *why;
            *why = (struct buffer){NULL, 0, 0, what.ceiling};
            return buffer_append_format(
                why,
                error,
                "hunk %zu (patch line %zu) %s",
                i + 1,
                fit.hunk->first + 1,
                buffer_text(&what)
            );
        }
        TRY(buffer_append(out, view_slice(content, fit.at, place - fit.at), error));
        TRY(write_hunk(&fit, place, out, error));
        fit.at = end;
    }
    return buffer_append(out, view_slice(content, fit.at, SIZE_MAX), error);
}
