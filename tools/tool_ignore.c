/* Ignore files as gitignore(5) has them. See tool_match.h. */
#include "tool_match.h"

static void level_deinit(struct ignore_level *level) {
    free(level->directory);
    free(level->rules);
    buffer_deinit(&level->text);
}

void ignore_deinit(struct ignore *ignore) {
    for (size_t i = 0; i < ignore->count; i++) {
        level_deinit(&ignore->levels[i]);
    }
    free(ignore->levels);
    *ignore = (struct ignore){0};
}

/* Whether `directory` is `above` or within it. */
static bool is_within(const char *above, const char *directory) {
    size_t length = strlen(above);
    return length == 0 || (strncmp(above, directory, length) == 0 &&
                           (directory[length] == '\0' || directory[length] == '/'));
}

/* Blanks at the end go unless a backslash protects them. */
static struct view without_end_blanks(struct view line) {
    size_t kept = 0;
    for (size_t i = 0; i < line.length; i++) {
        if (line.data[i] == '\\' && i + 1 < line.length) {
            i += 1;
            kept = i + 1;
        } else if (line.data[i] != ' ') {
            kept = i + 1;
        }
    }
    return view_slice(line, 0, kept);
}

/* False: the line has no rule. */
static bool parse_rule(struct view line, struct ignore_rule *out) {
    if (line.length > 0 && line.data[line.length - 1] == '\r') {
        line.length -= 1;
    }
    line = without_end_blanks(line);
    if (line.length == 0 || line.data[0] == '#') {
        return false;
    }
    *out = (struct ignore_rule){0};
    if (line.data[0] == '!') {
        out->is_negated = true;
        line = view_slice(line, 1, SIZE_MAX);
    }
    if (line.length > 0 && line.data[line.length - 1] == '/') {
        out->is_for_directories = true;
        line.length -= 1;
    }
    out->is_for_paths = view_find(line, view_of_text("/"), 0) != SIZE_MAX;
    if (line.length > 0 && line.data[0] == '/') {
        line = view_slice(line, 1, SIZE_MAX);
    }
    out->pattern = line;
    return line.length > 0;
}

static size_t rules_in_force(const struct ignore *ignore) {
    size_t count = 0;
    for (size_t i = 0; i < ignore->count; i++) {
        count += ignore->levels[i].rule_count;
    }
    return count;
}

static result parse_level(struct ignore_level *level, size_t rules_max, struct error *error) {
    struct view text = buffer_view(&level->text);
    size_t lines = 1;
    for (size_t i = 0; i < text.length; i++) {
        lines += text.data[i] == '\n';
    }
    lines = lines < rules_max ? lines : rules_max;
    level->rules = calloc(lines + 1, sizeof *level->rules);
    if (level->rules == NULL) {
        FAIL(error, MEMORY, "%zu rules of an ignore file", lines);
    }
    struct cursor rest = cursor_over(text);
    struct view mark = view_of_text("\xEF\xBB\xBF");
    if (view_starts_with(text, mark)) {
        rest.at = mark.length;
    }
    while (cursor_remaining(&rest) > 0 && level->rule_count < lines) {
        struct view line;
        if (!cursor_take_until(&rest, '\n', &line)) {
            (void)cursor_take(&rest, cursor_remaining(&rest), &line);
        }
        level->rule_count += parse_rule(line, &level->rules[level->rule_count]);
    }
    return OK;
}

result ignore_enter(
    struct ignore *ignore, const char *directory, struct view content, struct error *error
) {
    while (ignore->count > 0 && !is_within(ignore->levels[ignore->count - 1].directory, directory)
    ) {
        ignore->count -= 1;
        level_deinit(&ignore->levels[ignore->count]);
    }
    if (content.length == 0) {
        return OK;
    }
    if (ignore->count == ignore->room) {
        size_t room = ignore->room == 0 ? 8 : 2 * ignore->room;
        void *levels = realloc(ignore->levels, room * sizeof *ignore->levels);
        if (levels == NULL) {
            FAIL(error, MEMORY, "%zu ignore files", room);
        }
        ignore->levels = levels;
        ignore->room = room;
    }
    struct ignore_level *level = &ignore->levels[ignore->count];
    *level = (struct ignore_level){.directory = strdup(directory)};
    size_t rules_max = IGNORE_RULES_MAX - rules_in_force(ignore);
    ignore->count += 1; // deinit frees what there is of it
    buffer_init(&level->text, IGNORE_BYTES_MAX);
    if (level->directory == NULL) {
        FAIL(error, MEMORY, "ignore file of a directory");
    }
    TRY(buffer_append(&level->text, content, error));
    return parse_level(level, rules_max, error);
}

bool ignore_covers(const struct ignore *ignore, const char *path, bool is_directory) {
    const char *slash = strrchr(path, '/');
    struct view name = view_of_text(slash == NULL ? path : slash + 1);
    for (size_t i = ignore->count; i > 0; i--) {
        const struct ignore_level *level = &ignore->levels[i - 1];
        size_t above = strlen(level->directory);
        struct view relative = view_of_text(path + above + (above > 0));
        for (size_t j = level->rule_count; j > 0; j--) {
            const struct ignore_rule *rule = &level->rules[j - 1];
            bool fits = (is_directory || !rule->is_for_directories) &&
                        (rule->is_for_paths ? pattern_fits_path(rule->pattern, relative)
                                            : pattern_fits_name(rule->pattern, name));
            if (fits) {
                return !rule->is_negated;
            }
        }
    }
    return false;
}
