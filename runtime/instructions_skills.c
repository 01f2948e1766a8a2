/* Skills: folders with a SKILL.md, whose front matter (name, description) is listed in the prompt. The
 * rest of the file is read by the model when it needs it. */
#include "instructions_internal.h"

#include <limits.h>

#define ENTRIES_MAX 1000 /* looked at in one directory */
#define FILE_NAME   "SKILL.md"

struct search {
    const struct instructions_options *options;
    struct instructions *out;
    struct error *error;
    const char *directory; /* resolved, absolute */
    bool is_outside;
};

/* ---- front matter --------------------------------------------------------------------------- */

static struct view trimmed(struct view text) {
    while (text.length > 0 && strchr(" \t", text.data[0]) != NULL) {
        text = view_slice(text, 1, text.length);
    }
    while (text.length > 0 && strchr(" \t", text.data[text.length - 1]) != NULL) {
        text.length -= 1;
    }
    return text;
}

/* Appends to a value, with one blank between its lines; what is too long is cut. */
static void add_value(char *out, size_t bytes_max, struct view text) {
    size_t length = strlen(out);
    if (length > 0 && text.length > 0 && length < bytes_max) {
        out[length++] = ' ';
    }
    size_t room = bytes_max - length;
    size_t taken = text.length < room ? text.length : room;
    taken = taken < text.length ? utf8_valid_prefix(view_slice(text, 0, taken)) : taken;
    if (taken > 0) {
        memcpy(out + length, text.data, taken);
    }
    out[length + taken] = '\0';
}

/* The value behind a key on its own line; the marks of a block are none. */
static struct view first_value(struct view text) {
    struct view value = trimmed(text);
    if (value.length > 0 && (value.data[0] == '>' || value.data[0] == '|')) {
        return view_of(NULL, 0);
    }
    bool is_quoted = value.length >= 2 && (value.data[0] == '"' || value.data[0] == '\'') &&
                     value.data[value.length - 1] == value.data[0];
    return is_quoted ? view_slice(value, 1, value.length - 2) : value;
}

/* "key: value" lines between two lines of ---; lines that begin with a blank go on with the value
 * before. Not YAML, but what such files hold of it. False: there is no front matter. */
static bool read_front_matter(struct view text, struct instructions_skill *skill) {
    struct cursor cursor = cursor_over(text);
    struct view line;
    char *value = NULL;
    size_t bytes_max = 0;
    if (!cursor_take_until(&cursor, '\n', &line) || !view_equals_text(trimmed(line), "---")) {
        return false;
    }
    while (cursor_take_until(&cursor, '\n', &line)) {
        if (view_equals_text(trimmed(line), "---")) {
            return true;
        }
        if (line.length > 0 && strchr(" \t", line.data[0]) != NULL) {
            if (value != NULL) {
                add_value(value, bytes_max, trimmed(line));
            }
            continue;
        }
        size_t colon = view_find(line, view_of_text(":"), 0);
        struct view key = view_slice(line, 0, colon == SIZE_MAX ? 0 : colon);
        value = NULL;
        if (view_equals_text(key, "name")) {
            value = skill->name;
            bytes_max = SKILL_NAME_BYTES;
        } else if (view_equals_text(key, "description")) {
            value = skill->description;
            bytes_max = SKILL_DESCRIPTION_BYTES;
        }
        if (value != NULL) {
            value[0] = '\0'; /* the last one counts */
            add_value(value, bytes_max, first_value(view_slice(line, colon + 1, line.length)));
        }
    }
    return false;
}

/* ---- one folder ----------------------------------------------------------------------------- */

/* Whether a folder's name can stand in the prompt as it is. */
static bool is_printable(const char *name) {
    struct view text = view_of_text(name);
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] < 0x20 || text.data[i] == 0x7F) {
            return false;
        }
    }
    return utf8_is_valid(text);
}

static bool is_listed(const struct instructions *out, const char *name) {
    for (size_t i = 0; i < out->skill_count; i++) {
        if (strcmp(out->skills[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static result add_skill(struct search *search, struct instructions_skill *skill, const char *path) {
    struct instructions *out = search->out;
    if (skill->description[0] == '\0') {
        instructions_note(out, "the skill %.160s is left out: it has no description", path);
        return OK;
    }
    if (is_listed(out, skill->name)) {
        instructions_note(
            out, "the skill %.120s is left out: '%.60s' is listed already", path, skill->name
        );
        return OK;
    }
    if (out->skill_count == SKILLS_MAX) {
        instructions_note(out, "the skill %.160s is left out: %d are listed", path, SKILLS_MAX);
        return OK;
    }
    if (out->skills == NULL) {
        out->skills = calloc(SKILLS_MAX, sizeof *out->skills);
    }
    skill->path = out->skills != NULL ? strdup(path) : NULL;
    if (skill->path == NULL) {
        FAIL(search->error, MEMORY, "no memory for skills");
    }
    out->skills[out->skill_count++] = *skill;
    return OK;
}

/* `folder` is below the root that is opened; `path` is what the model would read. */
static result read_skill(
    struct search *search, const struct beneath *root, const char *folder, const char *name
) {
    char inside[PATH_MAX];
    char path[2 * PATH_MAX];
    struct instructions_skill skill = {.is_outside = search->is_outside};
    CLEANUP(buffer_deinit) struct buffer text;
    enum text_found found = TEXT_NONE;
    bool is_cut = false;
    (void)snprintf(
        inside, sizeof inside, "%s%s%s/" FILE_NAME, folder, folder[0] != '\0' ? "/" : "", name
    );
    (void)snprintf(
        path,
        sizeof path,
        "%s%s%s",
        search->is_outside ? search->directory : "",
        search->is_outside ? "/" : "",
        inside
    );
    const struct text_source source = {
        .root = root,
        .directory = search->is_outside ? search->directory : search->options->workspace,
        .path = inside,
        .shown = path,
        .bytes_max = SKILL_HEAD_BYTES_MAX,
    };
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(instructions_read_text(search->out, &source, &text, &is_cut, &found, search->error));
    if (found != TEXT_FOUND) {
        return OK;
    }
    if (!read_front_matter(buffer_view(&text), &skill)) {
        instructions_note(search->out, "the skill %.160s is left out: no front matter", path);
        return OK;
    }
    if (skill.name[0] == '\0') {
        (void)snprintf(skill.name, sizeof skill.name, "%.*s", SKILL_NAME_BYTES, name);
    }
    return add_skill(search, &skill, path);
}

static result
read_directory(struct search *search, const struct beneath *root, const char *folder) {
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    struct error why = {0};
    result listed = beneath_list_directory(root, folder, ENTRIES_MAX, &list, &why);
    if (is_failed(listed)) {
        if (listed.code != RESULT_NOT_FOUND) {
            instructions_note(search->out, "no skills are read: %.180s", why.message);
        }
        return OK;
    }
    if (list.truncated) {
        instructions_note(
            search->out,
            "%.160s: only the first %d entries are looked at",
            search->directory,
            ENTRIES_MAX
        );
    }
    for (size_t i = 0; i < list.count; i++) {
        const struct beneath_entry *entry = &list.entries[i];
        if (entry->info.kind == BENEATH_SYMLINK) {
            instructions_note(
                search->out, "the skill %.100s is left out: it is a link", entry->name
            );
        } else if (entry->info.kind == BENEATH_DIRECTORY && is_printable(entry->name)) {
            TRY(read_skill(search, root, folder, entry->name));
        }
    }
    return OK;
}

/* ---- all of them ---------------------------------------------------------------------------- */

/* What lies below the workspace is opened below it, without following links. */
static result search_inside(struct search *search, const char *folder) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    struct error why = {0};
    if (is_failed(beneath_open(search->options->workspace, &root, &why))) {
        instructions_note(search->out, "no skills are read: %.180s", why.message);
        return OK;
    }
    search->is_outside = false;
    return read_directory(search, root, folder);
}

static result search_outside(struct search *search, const char *directory) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    struct instructions *out = search->out;
    struct error why = {0};
    char resolved[PATH_MAX];
    struct search below = *search;
    size_t before = out->skill_count;
    if (realpath(directory, resolved) == NULL || is_failed(beneath_open(resolved, &root, &why))) {
        return OK; /* most places are not there */
    }
    below.is_outside = true;
    below.directory = resolved;
    TRY(read_directory(&below, root, ""));
    if (out->skill_count > before) {
        char *copy = strdup(resolved);
        if (copy == NULL) {
            FAIL(search->error, MEMORY, "no memory for skills");
        }
        ASSERT(out->skill_root_count < SKILLS_MAX); /* each has at least one of SKILLS_MAX */
        out->skill_roots[out->skill_root_count++] = copy;
    }
    return OK;
}

static result write_list(
    const struct instructions_options *options, struct instructions *out, struct error *error
) {
    if (out->skill_count == 0) {
        return OK;
    }
    TRY(buffer_append_format(
        &out->text,
        error,
        "%sSkills are files with instructions for tasks of one kind. Read the file before such a "
        "task%s:\n",
        out->text.length > 0 ? "\n" : "",
        out->skill_root_count > 0 ? ", one outside of the workspace with the shell" : ""
    ));
    for (size_t i = 0; i < out->skill_count; i++) {
        const struct instructions_skill *skill = &out->skills[i];
        size_t before = out->text.length;
        TRY(buffer_append_format(
            &out->text, error, "- %s (%s): %s\n", skill->name, skill->path, skill->description
        ));
        if (options->text_bytes_max > 0 && out->text.length > options->text_bytes_max) {
            out->text.length = before;
            instructions_note(
                out, "%zu skills are not listed: there is no room", out->skill_count - i
            );
            break;
        }
    }
    return OK;
}

result skills_load(
    const struct instructions_options *options, struct instructions *out, struct error *error
) {
    struct search search = {.options = options, .out = out, .error = error};
    size_t length = strlen(options->workspace);
    for (size_t i = 0; i < options->skill_directory_count; i++) {
        const char *directory = options->skill_directories[i];
        bool is_inside = strncmp(directory, options->workspace, length) == 0 &&
                         directory[length] == '/' && strlen(directory) < PATH_MAX / 2;
        search.directory = directory;
        TRY(is_inside ? search_inside(&search, directory + length + 1)
                      : search_outside(&search, directory));
    }
    return write_list(options, out, error);
}
