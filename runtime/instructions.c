/* Which files are read, in which order, and what the text made of them looks like. */
#include "instructions.h"

#include "instructions_internal.h"
#include "sandbox/sandbox.h"

#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define USER_FILE       "AGENTS.md"
#define CUT_BYTES_MIN   512  /* less of a file, behind another one, says nothing */
#define LINE_NEAR_BYTES 2048 /* a cut moves back so far to end a line */

/* One file on its way into the text. */
struct entry {
    struct buffer text;
    struct instructions_file file;
};

struct collection {
    const struct instructions_options *options;
    struct instructions *out;
    struct entry entries[INSTRUCTIONS_FILES_MAX];  /* the nearest directory first */
    size_t group_at[INSTRUCTIONS_PARENTS_MAX + 3]; /* where each directory's entries begin */
    size_t group_count;
    size_t count;
    size_t bytes_left;
};

void instructions_note(struct instructions *instructions, const char *format, ...) {
    char text[1024];
    CLEANUP(buffer_deinit) struct buffer harmless;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    if (instructions->note_count == INSTRUCTIONS_NOTES_MAX) {
        return;
    }
    for (char *at = text; *at != '\0'; at++) {
        if (*at == '\n' || *at == '\t') {
            *at = ' ';
        }
    }
    buffer_init(&harmless, 8 * sizeof text);
    if (is_failed(sandbox_sanitise(view_of_text(text), 0, &harmless, NULL))) {
        return; /* no memory for a note */
    }
    struct view shown = view_slice(buffer_view(&harmless), 0, INSTRUCTIONS_NOTE_BYTES - 1);
    (void)snprintf(
        instructions->notes[instructions->note_count++],
        INSTRUCTIONS_NOTE_BYTES,
        "%.*s",
        (int)utf8_valid_prefix(shown),
        (const char *)shown.data
    );
}

/* ---- one file ------------------------------------------------------------------------------- */

/* The length that text is cut to: at a line's end when one is near, never inside a character. */
static size_t cut_length(struct view text, size_t bytes_max) {
    if (text.length <= bytes_max) {
        return text.length;
    }
    for (size_t at = bytes_max; at > 0 && bytes_max - at < LINE_NEAR_BYTES; at--) {
        if (text.data[at - 1] == '\n') {
            return at;
        }
    }
    size_t length = bytes_max;
    while (length > 0 && (text.data[length] & 0xC0) == 0x80) {
        length--;
    }
    return length;
}

static bool is_binary(struct view bytes) {
    for (size_t i = 0; i < bytes.length; i++) {
        unsigned char c = bytes.data[i];
        if (c < 0x20 && strchr("\t\n\r\f\v\b\x1b", c) == NULL) {
            return true;
        }
        if (c == 0) {
            return true;
        }
    }
    return false;
}

/* A link to a plain name in its own directory, such as CLAUDE.md to AGENTS.md. */
static bool link_target(const struct text_source *source, char target[NAME_MAX + 1]) {
    char path[2 * PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", source->directory, source->path);
    if (length < 0 || (size_t)length >= sizeof path) {
        return false;
    }
    ssize_t got = readlink(path, target, NAME_MAX + 1);
    if (got <= 0 || got > NAME_MAX || memchr(target, '/', (size_t)got) != NULL) {
        return false;
    }
    target[got] = '\0';
    return strcmp(target, ".") != 0 && strcmp(target, "..") != 0;
}

/* The reason of a refusal in the words of beneath.h, without the path that they repeat. */
static void note_refusal(
    struct instructions *instructions, const struct text_source *source, const struct error *error
) {
    instructions_note(instructions, "%.120s is not read: %.100s", source->shown, error->message);
}

/* The path that is opened, with one link within the directory followed. */
static enum text_found find_file(
    struct instructions *instructions,
    const struct text_source *source,
    char target[NAME_MAX + 1],
    const char **path
) {
    struct beneath_info info;
    struct error why = {0};
    *path = source->path;
    result looked = beneath_stat(source->root, *path, &info, &why);
    if (is_ok(looked) && info.kind == BENEATH_SYMLINK && link_target(source, target)) {
        for (size_t i = 0; i < source->name_count; i++) {
            if (strcmp(source->names[i], target) == 0 && strcmp(target, source->path) != 0) {
                return TEXT_LINKED;
            }
        }
        *path = target;
        looked = beneath_stat(source->root, *path, &info, &why);
    }
    if (looked.code == RESULT_NOT_FOUND) {
        return TEXT_NONE;
    }
    if (is_failed(looked)) {
        note_refusal(instructions, source, &why);
        return TEXT_NONE;
    }
    if (info.kind != BENEATH_FILE) {
        instructions_note(
            instructions,
            "%.120s is not read: %s",
            source->shown,
            info.kind == BENEATH_SYMLINK     ? "it is a link that leads elsewhere"
            : info.kind == BENEATH_DIRECTORY ? "it is a directory"
                                             : "it is no regular file"
        );
        return TEXT_NONE;
    }
    return TEXT_FOUND;
}

result instructions_read_text(
    struct instructions *instructions,
    const struct text_source *source,
    struct buffer *out,
    bool *is_cut,
    enum text_found *found,
    struct error *error
) {
    char target[NAME_MAX + 1];
    const char *path = NULL;
    struct error why = {0};
    CLEANUP(buffer_deinit) struct buffer raw;
    buffer_init(&raw, BUFFER_CEILING_DEFAULT);
    *found = find_file(instructions, source, target, &path);
    if (*found != TEXT_FOUND) {
        return OK;
    }
    *found = TEXT_NONE;
    /* One byte more says whether the file goes on; what it grows by meanwhile does not count. */
    result read = beneath_read(source->root, path, 0, source->bytes_max + 1, &raw, NULL, &why);
    if (read.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "no memory for %.200s", source->shown);
    }
    if (is_failed(read)) {
        note_refusal(instructions, source, &why);
        return OK;
    }
    *is_cut = raw.length > source->bytes_max;
    struct view text =
        view_slice(buffer_view(&raw), 0, cut_length(buffer_view(&raw), source->bytes_max));
    if (is_binary(text)) {
        instructions_note(instructions, "%.120s is not read: it is not text", source->shown);
        return OK;
    }
    if (view_starts_with(text, view_of_text("\xef\xbb\xbf"))) {
        text = view_slice(text, 3, text.length);
    }
    if (!utf8_is_valid(text)) {
        instructions_note(
            instructions, "%.120s is not UTF-8: some characters are replaced", source->shown
        );
    }
    size_t before = out->length;
    TRY(sandbox_sanitise(text, 0, out, error));
    *found = out->length > before ? TEXT_FOUND : TEXT_NONE;
    return OK;
}

/* ---- one directory -------------------------------------------------------------------------- */

static bool is_repeated(const struct collection *all, size_t from, const struct buffer *text) {
    for (size_t i = from; i < all->count; i++) {
        if (view_equals(buffer_view(&all->entries[i].text), buffer_view(text))) {
            return true; /* CLAUDE.md as a copy of AGENTS.md */
        }
    }
    return false;
}

/* Takes an entry in, as far as there is room. */
static result keep(
    struct collection *all, struct buffer *text, const char *shown, bool is_cut, struct error *error
) {
    struct entry *entry = &all->entries[all->count];
    size_t length = cut_length(buffer_view(text), all->bytes_left);
    bool is_scrap = length < text->length && length < CUT_BYTES_MIN && all->count > 0;
    if (length == 0 || is_scrap) {
        instructions_note(all->out, "%.120s is not read: there is no room for it", shown);
        return OK;
    }
    is_cut = is_cut || length < text->length;
    if (is_cut) {
        instructions_note(all->out, "%.120s is cut after %zu bytes", shown, length);
    }
    text->length = length;
    all->bytes_left -= length;
    if (text->data[length - 1] != '\n') {
        TRY(buffer_append_byte(text, '\n', error));
    }
    (void)snprintf(entry->file.name, sizeof entry->file.name, "%s", shown);
    entry->file.bytes = length;
    entry->file.is_cut = is_cut;
    entry->text = *text;
    buffer_init(text, 0);
    all->count += 1;
    return OK;
}

/* `prefix` is what stands before the names in the text ("", "../", ...), or with `is_user` all of it. */
static result collect_directory(
    struct collection *all,
    const char *directory,
    const char *prefix,
    bool is_user,
    const char *const *names,
    size_t name_count,
    struct error *error
) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    struct error why = {0};
    size_t from = all->count;
    all->group_at[all->group_count++] = from;
    result opened = beneath_open(directory, &root, &why);
    if (is_failed(opened)) {
        if (opened.code != RESULT_NOT_FOUND) {
            instructions_note(all->out, "no instructions are read: %.160s", why.message);
        }
        return OK;
    }
    for (size_t i = 0; i < name_count; i++) {
        char shown[INSTRUCTIONS_NAME_BYTES];
        CLEANUP(buffer_deinit) struct buffer text;
        enum text_found found = TEXT_NONE;
        bool is_cut = false;
        (void)snprintf(shown, sizeof shown, "%s%s", prefix, is_user ? "" : names[i]);
        const struct text_source source = {
            .root = root,
            .directory = directory,
            .path = names[i],
            .shown = shown,
            .names = names,
            .name_count = name_count,
            .bytes_max = INSTRUCTIONS_FILE_BYTES_MAX,
        };
        buffer_init(&text, BUFFER_CEILING_DEFAULT);
        TRY(instructions_read_text(all->out, &source, &text, &is_cut, &found, error));
        if (found != TEXT_FOUND || is_repeated(all, from, &text)) {
            continue;
        }
        if (all->count == INSTRUCTIONS_FILES_MAX) {
            instructions_note(
                all->out, "%.120s is not read: it is file %d", shown, INSTRUCTIONS_FILES_MAX + 1
            );
            continue;
        }
        TRY(keep(all, &text, shown, is_cut, error));
    }
    return OK;
}

/* ---- where to look -------------------------------------------------------------------------- */

/* How many directories above the workspace the repository's root lies; 0 without a repository. Only
 * directories of the same user count: a .git in /tmp says nothing about what lies below. */
static size_t parents_of(const char *workspace) {
    char path[PATH_MAX];
    char inside[PATH_MAX + 8];
    (void)snprintf(path, sizeof path, "%s", workspace);
    for (size_t above = 0; above <= INSTRUCTIONS_PARENTS_MAX; above++) {
        struct stat about;
        (void)snprintf(inside, sizeof inside, "%s/.git", path);
        if (stat(path, &about) != 0 || about.st_uid != geteuid()) {
            return 0;
        }
        if (lstat(inside, &about) == 0 && (S_ISDIR(about.st_mode) || S_ISREG(about.st_mode))) {
            return above;
        }
        char *slash = strrchr(path, '/');
        if (slash == NULL || slash == path) {
            return 0;
        }
        *slash = '\0';
    }
    return 0;
}

static result collect_project(struct collection *all, struct error *error) {
    const struct instructions_options *options = all->options;
    char path[PATH_MAX];
    char prefix[3 * (INSTRUCTIONS_PARENTS_MAX + 1) + 1] = "";
    size_t above = parents_of(options->workspace);
    (void)snprintf(path, sizeof path, "%s", options->workspace);
    for (size_t i = 0; i <= above; i++) {
        TRY(collect_directory(
            all, path, prefix, false, options->file_names, options->file_name_count, error
        ));
        char *slash = strrchr(path, '/');
        ASSERT(slash != NULL);
        *slash = '\0';
        memcpy(prefix + 3 * i, "../", 4);
    }
    return OK;
}

/* The user's own file may be a link: it is the user's. */
static result collect_user(struct collection *all, struct error *error) {
    char path[PATH_MAX + sizeof USER_FILE + 1];
    char resolved[PATH_MAX];
    if (all->options->user_directory == NULL) {
        return OK;
    }
    int length = snprintf(path, sizeof path, "%s/" USER_FILE, all->options->user_directory);
    if (length < 0 || (size_t)length >= sizeof path || realpath(path, resolved) == NULL) {
        return OK;
    }
    char *slash = strrchr(resolved, '/');
    ASSERT(slash != NULL);
    const char *name = slash + 1;
    *slash = '\0';
    return collect_directory(
        all, resolved[0] == '\0' ? "/" : resolved, "the user's " USER_FILE, true, &name, 1, error
    );
}

/* ---- the text ------------------------------------------------------------------------------- */

static result write_text(struct collection *all, struct error *error) {
    struct instructions *out = all->out;
    if (all->count == 0) {
        return OK;
    }
    TRY(buffer_append_text(
        &out->text,
        "Instructions for work in this project follow. Where two of them differ the later one "
        "counts; what the user asks for counts more than any of them.\n",
        error
    ));
    all->group_at[all->group_count] = all->count;
    for (size_t group = all->group_count; group > 0; group--) { /* the nearest directory last */
        for (size_t i = all->group_at[group - 1]; i < all->group_at[group]; i++) {
            const struct entry *entry = &all->entries[i];
            TRY(buffer_append_format(&out->text, error, "\n<%s>\n", entry->file.name));
            TRY(buffer_append(&out->text, buffer_view(&entry->text), error));
            if (entry->file.is_cut) {
                TRY(buffer_append_text(&out->text, "[the file goes on]\n", error));
            }
            TRY(buffer_append_format(&out->text, error, "</%s>\n", entry->file.name));
            out->files[out->file_count++] = entry->file;
        }
    }
    return OK;
}

result instructions_load(
    const struct instructions_options *options, struct instructions *out, struct error *error
) {
    *out = (struct instructions){0};
    buffer_init(&out->text, BUFFER_CEILING_DEFAULT);
    struct collection *all = calloc(1, sizeof *all);
    if (all == NULL) {
        FAIL(error, MEMORY, "no memory for instructions");
    }
    all->options = options;
    all->out = out;
    bool is_tighter = options->text_bytes_max > 0 && options->text_bytes_max < options->bytes_max;
    all->bytes_left = is_tighter ? options->text_bytes_max : options->bytes_max;
    result done = OK;
    if (options->bytes_max > 0) {
        done = collect_project(all, error);
        done = is_ok(done) ? collect_user(all, error) : done;
        done = is_ok(done) ? write_text(all, error) : done;
    }
    for (size_t i = 0; i < all->count; i++) {
        buffer_deinit(&all->entries[i].text);
    }
    free(all);
    return is_ok(done) ? skills_load(options, out, error) : done;
}

void instructions_deinit(struct instructions *instructions) {
    buffer_deinit(&instructions->text);
    for (size_t i = 0; i < instructions->skill_count; i++) {
        free(instructions->skills[i].path);
    }
    free(instructions->skills);
    for (size_t i = 0; i < instructions->skill_root_count; i++) {
        free(instructions->skill_roots[i]);
    }
    *instructions = (struct instructions){0};
}
