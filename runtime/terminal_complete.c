/* See terminal_complete.h. */
#include "terminal_complete.h"

#include "sandbox/beneath.h"
#include "terminal_commands.h"

#define ENTRIES_MAX 5000

void completion_init(struct completion *completion) {
    completion->count = 0;
    buffer_init(&completion->insert, BENEATH_PATH_BYTES_MAX);
    buffer_init(&completion->candidates, COMPLETION_SHOWN * BENEATH_PATH_BYTES_MAX);
}

void completion_deinit(struct completion *completion) {
    buffer_deinit(&completion->insert);
    buffer_deinit(&completion->candidates);
}

static void candidate(struct completion *out, struct view name, const char *end, size_t typed) {
    struct view rest = view_slice(name, typed, name.length - typed);
    if (out->count == 0) {
        result_ignore(buffer_append(&out->insert, rest, NULL)); /* less is completed then */
        result_ignore(buffer_append_text(&out->insert, end, NULL));
    } else {
        size_t same = 0;
        while (same < rest.length && same < out->insert.length &&
               rest.data[same] == out->insert.data[same]) {
            same++;
        }
        out->insert.length = same;
        out->insert.length = utf8_valid_prefix(buffer_view(&out->insert));
    }
    if (out->count++ < COMPLETION_SHOWN) {
        result_ignore(buffer_append(&out->candidates, name, NULL));
        result_ignore(buffer_append_text(&out->candidates, end[0] == '/' ? "/\n" : "\n", NULL));
    }
}

static void find_commands(struct completion *out, struct view line) {
    for (size_t i = 0; i < terminal_command_count(); i++) {
        const struct terminal_command *command = terminal_command_at(i);
        char name[32];
        int length = snprintf(name, sizeof name, "/%s", command->name);
        ASSERT(length > 0 && (size_t)length < sizeof name);
        if (view_starts_with(view_of_text(name), line)) {
            candidate(
                out, view_of_text(name), command->argument[0] != '\0' ? " " : "", line.length
            );
        }
    }
}

/* Names that can be typed and shown. */
static bool is_plain(struct view name) {
    for (size_t i = 0; i < name.length; i++) {
        if (name.data[i] < 0x20 || name.data[i] == 0x7F) {
            return false;
        }
    }
    return utf8_is_valid(name);
}

static void find_files(struct completion *out, const struct beneath *root, struct view word) {
    size_t slash = word.length;
    while (slash > 0 && word.data[slash - 1] != '/') {
        slash--;
    }
    struct view begin = view_slice(word, slash, word.length - slash);
    CLEANUP(buffer_deinit) struct buffer folder;
    buffer_init(&folder, BENEATH_PATH_BYTES_MAX);
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    if (is_failed(buffer_append(&folder, view_slice(word, 0, slash > 0 ? slash - 1 : 0), NULL)) ||
        is_failed(beneath_list_directory(root, buffer_text(&folder), ENTRIES_MAX, &list, NULL))) {
        return;
    }
    for (size_t i = 0; i < list.count; i++) {
        struct view name = view_of_text(list.entries[i].name);
        bool is_hidden = name.data[0] == '.' && begin.length == 0;
        if (!is_hidden && is_plain(name) && view_starts_with(name, begin)) {
            bool is_folder = list.entries[i].info.kind == BENEATH_DIRECTORY;
            candidate(out, name, is_folder ? "/" : " ", begin.length);
        }
    }
}

void completion_find(struct completion *out, const struct beneath *root, struct view line) {
    size_t from = line.length;
    while (from > 0 && strchr(" \t\n\"'`(=@", line.data[from - 1]) == NULL) {
        from--;
    }
    struct view word = view_slice(line, from, line.length - from);
    if (from == 0 && word.length > 0 && word.data[0] == '/') {
        find_commands(out, word);
    } else if (root != NULL) {
        find_files(out, root, word);
    }
}
